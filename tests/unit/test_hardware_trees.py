"""The hardware probes over trees of files that say anything: no content of sysfs or /proc ends a probe, and what it gives is facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_doctor.agent import probing
from nccl_doctor.agent.probes import gpu, infiniband, interfaces, topology
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact, Port
from nccl_doctor.facts.model import (
    BUNDLE_SCHEMA,
    Bundle,
    HostFacts,
    Outcome,
    Plan,
    ProbeResult,
    Reach,
    ReachOutcome,
)
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.rules.judge import judge
from tests.hardware_kit.machines import Machine

NUMBERS = (
    b"--3\n",
    b"-1\n",
    "\u0663\n".encode(),
    "\u00b2\n".encode(),
    b"1e999\n",
    b"9" * 4096,
    b"0x\n",
    b"nan nan\n",
    b": : :\n",
    b"\n",
)
CONTENT = st.one_of(st.binary(max_size=64), st.sampled_from(NUMBERS))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One GPU and one RoCE port, as files."""
    machine = Machine(tmp_path_factory.mktemp("tree"), gpus=1, nics=1)
    machine.nvswitches = 0
    return machine.roce().write()


@pytest.fixture(autouse=True)
def no_tools(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes see the tree, and none of this machine's programs."""
    missing = probing.CommandResult("tool-missing", None, "", "", 0.0)
    for module in (gpu, infiniband, topology):
        monkeypatch.setattr(module, "run_command", lambda *_, **__: missing)
    monkeypatch.setattr(probing, "ROOT", str(tree))


def probes() -> dict[str, dict[str, Any]]:
    no_nvml = {"outcome": "failed", "detail": "", "seconds": 0.0, "gpus": [], "lines": []}
    return {
        "gpu": {**gpu._witnesses(), "nvml": no_nvml, "smi": no_nvml},
        "topology": topology.topology({}),
        "infiniband": infiniband.infiniband({"interval_s": 0.0}),
    }


def files(tree: Path) -> list[Path]:
    return sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.mark.parametrize("content", NUMBERS)
def test_any_uptime(content: bytes, tree: Path) -> None:
    place = tree / "proc/uptime"
    before = place.read_bytes()
    try:
        place.write_bytes(content)
        assert probing.uptime() in (None, 3.0)  # one of them is a three in Arabic digits
    finally:
        place.write_bytes(before)


WORDS = st.one_of(st.sampled_from(["-1", "zz", "00000003", "00200200", "f" * 32, "f" * 40, "lo"]), st.text(max_size=9))


@given(lines=st.lists(st.lists(WORDS, min_size=6, max_size=11), max_size=9))
def test_any_routing_table(lines: list[list[str]]) -> None:
    good = "eth0 0000000A 0100000A 0003 0 0 100 000000FF"
    text = "\n".join(["", *(" ".join(words) for words in lines), good])
    with mock.patch.object(interfaces, "read_text", lambda place, _: text if place == "/proc/net/route" else ""):
        assert interfaces.routes()[-1]["gateway"] == "10.0.0.1"
    with mock.patch.object(interfaces, "read_text", lambda place, _: "" if place == "/proc/net/route" else text):
        interfaces.routes()


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_content_of_any_file(data: st.DataObject, tree: Path) -> None:
    chosen = data.draw(st.lists(st.sampled_from(files(tree)), min_size=1, max_size=12, unique=True))
    before = {path: path.read_bytes() for path in chosen}
    try:
        for path in chosen:
            path.write_bytes(data.draw(CONTENT))
        found = probes()
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    results = {name: ProbeResult(Outcome.OK, one) for name, one in found.items()}
    for name, kind in (("gpu", GpuFact), ("topology", TopologyFact), ("infiniband", InfinibandFact)):
        results[name].fact(kind)
    host = HostFacts("gpu01", Reach(ReachOutcome.OK), results)
    report = judge(
        Bundle(
            BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(stages=("gpu", "topology", "infiniband")), (host,)
        )
    )
    assert [item.evidence for item in report.findings if item.id == "internal-error"] == []


@pytest.mark.parametrize("rate", ["nan", "inf Gb/sec", "", "fast"])
def test_a_rate_that_is_no_number_is_not_told(rate: str) -> None:
    """Found by drawing: a rule divided the ports into those that have a rate and those that have none."""
    assert Port(1, rate=rate).gbps is None


@pytest.mark.parametrize("content", NUMBERS, ids=range(len(NUMBERS)))
def test_odd_numbers_everywhere(content: bytes, tree: Path) -> None:
    before = {path: path.read_bytes() for path in files(tree)}
    keep = ("vendor", "class")
    try:
        for path in before:
            if path.name not in keep:
                path.write_bytes(content)
        found = probes()
    finally:
        for path, old in before.items():
            path.write_bytes(old)
    assert len(found["infiniband"]["devices"]) == 1 and len(found["gpu"]["pci_gpus"]) == 1
