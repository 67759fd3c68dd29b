"""The tests for real GPU machines, run over a machine that is not there: they must not break unseen until somebody has
a GPU at hand; and what was recorded on real machines, judged again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.rules.judge import judge
from tests.gpu import recording, worlds
from tests.hardware_kit import machines
from tests.hardware_kit.machines import Machine

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = sorted((ROOT / "tests" / "fixtures" / "hardware").glob("*/machine.ndb"))


@pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
def test_the_gpu_suite_passes_on_a_machine_that_is_not_there(tmp_path: Path) -> None:
    machine = Machine.alone(tmp_path / "machine")
    machine.write()
    record = tmp_path / "record"
    # What a lent machine lacks lies on PYTHONPATH: all that the suite starts must find it there.
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        f"import sys\nprint(sys.orig_argv, file=open({str(tmp_path / 'started')!r}, 'a'))\n"
    )
    environment = {**machine.environment(), "NCCL_DOCTOR_RECORD": str(record)}
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/gpu/test_hardware_here.py"],
        env=environment, capture_output=True, text=True, cwd=ROOT, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout, done.stdout  # every comparison with nvidia-smi was made
    assert "'nccl_doctor', 'check'" in (tmp_path / "started").read_text()
    assert sorted(os.listdir(record)) == ["machine.ndb", "tools.json", "tree.tar.gz"]
    assert "Product Name" in json.loads((record / "tools.json").read_text())["nvidia-smi -q"]["out"]


@pytest.mark.skipif(not RECORDINGS, reason="no recording of a real GPU machine yet (NCCL_DOCTOR_RECORD, make test-gpu)")
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.parent.name)
def test_recorded_machines_are_judged_as_before(recording: Path) -> None:
    """Findings and gaps of a real machine, as read when it was recorded: ``expect.json`` beside the bundle."""
    report = judge(bundles.read(recording))
    found = {
        "findings": sorted({f"{item.severity.value} {item.id}" for item in report.findings}),
        "unknown": sorted({gap.what for gap in report.unknown}),
    }
    assert found == json.loads((recording.parent / "expect.json").read_text())


def test_a_host_that_is_called_as_a_field_is_recorded_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither is a field renamed, nor is anything kept of the kernel's command line that the probes do not read."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("console=ttyS0 ip=172.16.0.2 token=abc iommu=pt pci=nomsi\n")
    monkeypatch.setattr(recording, "ROOT", str(tmp_path))
    monkeypatch.setattr(recording, "TOOLS", ())
    plan = Plan(stages=("gpu",))
    host = HostFacts(
        "plan",
        Reach(ReachOutcome.OK),
        {"gpu": ProbeResult(Outcome.OK, {"plan": "on plan, GPU-5b1c7e2a-9d3f-4c6e-8a70-000000000009"})},
    )
    recording.record(Bundle(1, "0", "2026-11-23T00:00:00+00:00", plan, (host,)), tmp_path / "record")
    (again,) = bundles.read(tmp_path / "record/machine.ndb").hosts
    assert again.name == "gpu01"
    told = json.loads(bytes(again.probes["gpu"].data))
    assert told["plan"].startswith("on gpu01, GPU-00000000-0000-0000-0000-")
    with tarfile.open(tmp_path / "record/tree.tar.gz") as archive:
        kept = archive.extractfile("proc/cmdline")
        assert kept is not None and kept.read() == b"iommu=pt pci=nomsi\n"


def test_what_names_the_machine_is_not_kept_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    kept = worlds.neutral(
        "12:34:56 /usr/lib/libcuda.so 00000000:3B:00.0 eth0:192.168.7.9<0> eth0 fd00:1:2::9/64 [fe80::ab:1%eth0] ::1 fd00:1:2::9"
    )
    assert kept == (
        "12:34:56 /usr/lib/libcuda.so 00000000:3B:00.0 eth0:10.0.0.1<0> eth0 2001:db8::2/64 [fe80::1%eth0] ::1 2001:db8::2"
    )
