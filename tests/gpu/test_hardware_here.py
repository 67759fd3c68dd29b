"""The real probes and rules on a real GPU machine: two witnesses agree, nothing healthy is blamed, a recording is whole.

`NCCL_DOCTOR_RECORD=DIRECTORY make test-gpu` keeps a recording there (see recording.py); under tests/fixtures/hardware/
it becomes a test that runs everywhere. What a container or sandbox hides makes a test skip with the reason.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.agent.containers import GVISOR
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_matrix import parse as parse_matrix
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.judge import judge
from tests.gpu import recording
from tests.tools import smi_query

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.gpu
STAGES = ("gpu", "topology", "infiniband")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a check of this machine."""
    path = tmp_path_factory.mktemp("gpu") / "this-machine.ndb"
    stages = [word for stage in STAGES for word in ("--stage", stage)]
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "check", *stages, "--save", str(path), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))),
    )
    assert done.returncode in (0, 4, 11), done.stderr + done.stdout
    return path


@pytest.fixture(scope="session")
def probes(saved: Path) -> dict[str, Any]:
    return dict(bundles.read(saved).hosts[0].probes)


@pytest.fixture(scope="session")
def gpus(probes: dict[str, Any]) -> GpuFact:
    fact: GpuFact = probes["gpu"].fact(GpuFact)
    return fact


def smi(*arguments: str) -> str:
    """What nvidia-smi prints; the test skips where it is not there or may not."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=120)
    except OSError as error:
        pytest.skip(f"no nvidia-smi to compare with: {error}")
    if done.returncode:
        pytest.skip(f"nvidia-smi {' '.join(arguments)}: exit status {done.returncode}: {done.stdout + done.stderr}")
    return done.stdout


def test_the_recording_is_whole(saved: Path, tmp_path: Path) -> None:
    """It is readable, gives the same findings, and holds nothing that names this machine. First, as it is what remains."""
    bundle = bundles.read(saved)
    target = Path(os.environ.get("NCCL_DOCTOR_RECORD") or tmp_path)
    recording.record(bundle, target)
    again = bundles.read(target / "machine.ndb")
    assert {item.id for item in judge(again).findings} == {item.id for item in judge(bundle).findings}
    names = [text for gpu in bundle.hosts[0].probes["gpu"].fact(GpuFact).gpus
             for text in (gpu.uuid, gpu.serial) if text and text.strip("0")]  # fmt: skip
    written = gzip.decompress((target / "machine.ndb").read_bytes()).decode() + (target / "tools.json").read_text()
    assert not [name for name in names if name in written]
    with tarfile.open(target / "tree.tar.gz") as archive:
        assert "proc/cpuinfo" in archive.getnames()


def test_nvml_answers_in_time(gpus: GpuFact) -> None:
    assert gpus.nvml.outcome == "ok", gpus.nvml.detail
    assert gpus.system.count == len(gpus.gpus) > 0
    assert gpus.nvml.seconds < 20


def test_no_call_failed(gpus: GpuFact) -> None:
    """What a driver does not have is not supported or not permitted; an error is neither."""
    failed = {gpu.index: gpu.errors for gpu in gpus.gpus if gpu.errors}
    if failed and gpus.container == GVISOR:
        pytest.skip(f"a sandbox (gVisor) does not pass on every call: {failed}")
    assert failed == {}


def test_what_every_driver_tells_is_told(gpus: GpuFact) -> None:
    """A misspelt call or a wrong structure shows as "not supported" where every data-centre GPU answers."""
    for gpu in gpus.gpus:
        print(gpu.index, "not supported:", gpu.not_supported, "not permitted:", gpu.not_permitted)
        for field in ("uuid", "name", "bus_id", "memory_total_bytes", "compute_capability", "temperature_c"):
            assert getattr(gpu, field) is not None, (field, gpu.not_supported, gpu.not_permitted, gpu.errors)
        assert gpu.throttle_reasons is not None and gpu.pcie_gen_max and gpu.pcie_width_max
        assert gpu.processes is not None


def test_nvidia_smi_agrees(gpus: GpuFact) -> None:
    query = smi_query.parse(smi("-q"))
    assert query.driver == gpus.system.driver
    assert query.cuda in (None, gpus.system.cuda_driver)
    assert query.attached == len(gpus.gpus)
    for device, told in zip(gpus.gpus, query.gpus, strict=True):
        assert told.get("Product Name") == device.name
        assert told.get("GPU UUID") == device.uuid
        assert told.get("VBIOS Version") == device.vbios
        assert told.bus_id.endswith(device.bus_id or "?")
        if device.remap_pending is not None and (pending := told.get("Remapped Rows", "Pending")):
            assert pending == ("Yes" if device.remap_pending else "No")
        state = (told.get("Fabric", "State") or "").lower().replace(" ", "-")
        if device.fabric is not None and state:
            assert state == device.fabric.state


def _watts(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


# nvidia-smi's name of a field -> the same out of our facts, in its words. None is its [N/A].
SAME: dict[str, Callable[[GpuDevice], Any]] = {
    "serial": lambda gpu: gpu.serial,
    "vbios_version": lambda gpu: gpu.vbios,
    "inforom.img": lambda gpu: gpu.inforom,
    "compute_cap": lambda gpu: gpu.compute_capability,
    "memory.total": lambda gpu: (gpu.memory_total_bytes or 0) >> 20,
    "pcie.link.gen.max": lambda gpu: gpu.pcie_gen_max,
    "pcie.link.width.max": lambda gpu: gpu.pcie_width_max,
    "pcie.link.width.current": lambda gpu: gpu.pcie_width,
    "power.limit": lambda gpu: _watts(gpu.power_limit_w),
    "power.default_limit": lambda gpu: _watts(gpu.power_default_w),
    "clocks.max.sm": lambda gpu: gpu.clock_sm_max_mhz,
    "clocks.max.memory": lambda gpu: gpu.clock_memory_max_mhz,
    "ecc.mode.current": lambda gpu: {True: "Enabled", False: "Disabled", None: None}[gpu.ecc_mode],
    "ecc.errors.uncorrected.volatile.total": lambda gpu: gpu.ecc_uncorrected_volatile,
    "ecc.errors.uncorrected.aggregate.total": lambda gpu: gpu.ecc_uncorrected_aggregate,
    "persistence_mode": lambda gpu: {True: "Enabled", False: "Disabled", None: None}[gpu.persistence_mode],
    "compute_mode": lambda gpu: {"default": "Default", "prohibited": "Prohibited"}.get(
        gpu.compute_mode or "", "Exclusive_Process"
    ),
    "mig.mode.current": lambda gpu: {True: "Enabled", False: "Disabled", None: None}[gpu.mig_mode],
    "gsp.mode.current": lambda gpu: "Enabled" if gpu.gsp_firmware else None,
}


@pytest.fixture(scope="session")
def printed() -> dict[str, tuple[str, ...]]:
    """Each field's values by nvidia-smi, all by one call: where nothing keeps the driver up, each one starts it anew.
    None where the driver lacks a field, which then refuses all."""
    with contextlib.suppress(pytest.skip.Exception):
        lines = smi("--query-gpu=" + ",".join(SAME), "--format=csv,noheader,nounits").splitlines()
        return dict(zip(SAME, zip(*(line.split(", ") for line in lines), strict=True), strict=True))
    return {}


@pytest.mark.parametrize("field", SAME)
def test_nvidia_smi_has_the_same(field: str, gpus: GpuFact, printed: dict[str, tuple[str, ...]]) -> None:
    lines = printed.get(field) or smi(f"--query-gpu={field}", "--format=csv,noheader,nounits").splitlines()
    for gpu, line in zip(gpus.gpus, lines, strict=True):
        mine, text = SAME[field](gpu), line.strip()
        if mine is None or text.startswith("["):  # [N/A], [Not Supported], [Insufficient Permissions]
            assert (mine is None and text.startswith("[")) or field == "gsp.mode.current", (field, mine, text)
        else:
            assert text == str(mine)


def test_links_agree_with_nvidia_smi(gpus: GpuFact) -> None:
    blocks = re.split(r"^GPU \d+:", smi("nvlink", "-s"), flags=re.MULTILINE)[1:]
    for gpu, block in zip(gpus.gpus, blocks, strict=False):
        if gpu.nvlinks is not None:
            assert len(re.findall(r"Link \d+: [0-9.]+ GB/s", block)) == sum(link.active for link in gpu.nvlinks), block


def test_the_model_is_in_the_catalogue(gpus: GpuFact) -> None:
    for device in gpus.gpus:
        model = find(device.name)
        assert model is not None, f"{device.name}: add it to gpu_models.yaml"
        assert model.capability == device.compute_capability


def test_the_matrix_parses(probes: dict[str, Any], gpus: GpuFact) -> None:
    topology = probes["topology"].fact(TopologyFact)
    if topology.matrix.outcome != "ok":
        pytest.skip(f"nvidia-smi topo -m: {topology.matrix.detail or topology.matrix.outcome}")
    matrix = parse_matrix(topology.matrix.text)
    assert not matrix.truncated, (matrix.notes, topology.matrix.text)
    assert len(matrix.gpus) == len(gpus.gpus), topology.matrix.text


def test_every_gpu_is_on_the_bus(probes: dict[str, Any], gpus: GpuFact) -> None:
    if not gpus.pci_gpus:
        pytest.skip("no NVIDIA GPU in sysfs: a sandbox hides the PCI bus")
    assert {gpu.bus_id for gpu in gpus.gpus} <= {gpu.bus_id for gpu in gpus.pci_gpus}
    assert all(gpu.driver == "nvidia" for gpu in gpus.pci_gpus if gpu.bus_id in {one.bus_id for one in gpus.gpus})


def test_no_rule_breaks(saved: Path) -> None:
    """Every rule runs on real facts; what it says has proof. A real fault is its owner's business, not this test's."""
    report = judge(bundles.read(saved))
    assert [(item.title, item.evidence) for item in report.findings if item.id == "internal-error"] == []
    for item in report.findings:
        assert item.evidence
    print(json.dumps([(item.severity.value, item.id, item.title) for item in report.findings], indent=1))
    print(json.dumps([(gap.what, gap.why) for gap in report.unknown], indent=1))


def test_one_gpu_alone_is_not_blamed(saved: Path, gpus: GpuFact) -> None:
    """A lent machine with one GPU of a board: links, fabric and switches of the board are not its faults."""
    if len(gpus.gpus) != 1:
        pytest.skip("more than one GPU here")
    fails = [item for item in judge(bundles.read(saved)).findings if item.severity is Severity.FAIL]
    about = ("gpu.nvlink", "gpu.fabric-manager", "gpu.not-visible", "topology")
    assert [(item.id, item.evidence) for item in fails if item.id.startswith(about)] == []
