"""ibstat, ibv_devinfo and show_gids as further witnesses: they agree with sysfs, are named where they do not, and stand in."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.facts.infiniband import Device, InfinibandFact, Port, Tool
from nccl_doctor.facts.infiniband_witness import completed, disagreements, told
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.judge import Report, judge
from tests.hardware_kit import machines
from tests.hardware_kit.machines import Machine

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
HW = SHARED / "corpus" / "hw"
needs_gcc = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
needs_samples = pytest.mark.skipif(not HW.is_dir(), reason="the shared hardware samples are not here")


def report(*facts: dict[str, Any]) -> Report:
    reach = Reach(ReachOutcome.OK)
    hosts = tuple(
        HostFacts(f"host{n}", reach, {"infiniband": ProbeResult(Outcome.OK, data)}) for n, data in enumerate(facts)
    )
    plan = Plan(stages=("infiniband",))
    return judge(Bundle(BUNDLE_SCHEMA, "t", "2026-11-21T00:00:00+00:00", plan, hosts))


def ids(found: Report) -> set[str]:
    return {item.id for item in found.findings}


@pytest.fixture(scope="module")
def roce(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The infiniband fact of a RoCE machine on which all three tools print what sysfs says."""
    if machines.compiler_missing():
        pytest.skip("no gcc")
    machine = Machine(tmp_path_factory.mktemp("roce")).roce()
    machine.tools = machine.rdma_tools()
    data: dict[str, Any] = machine.facts()["infiniband"]["data"]
    return data


def test_tools_that_agree_are_no_finding(roce: dict[str, Any]) -> None:
    assert {name: tool["outcome"] for name, tool in roce["witnesses"].items()} == dict.fromkeys(
        ("ibstat", "ibv_devinfo", "show_gids"), "ok"
    )
    found = report(roce, roce)
    assert "ib.witnesses-differ" not in ids(found)
    assert not [gap for gap in found.unknown if gap.what in roce["witnesses"]]


@pytest.mark.parametrize(
    ("tool", "old", "new", "quote"),
    [
        ("ibstat", "State: Active", "State: Down", "mlx5_0:1: state 1: DOWN; sysfs: 4: ACTIVE"),
        ("ibstat", "Rate: 400", "Rate: 200", "rate 200 Gb/sec; sysfs: 400 Gb/sec (4X NDR)"),
        ("ibstat", "Physical state: LinkUp", "Physical state: Polling", "physical state 2: Polling; sysfs: 5: LinkUp"),
        ("ibv_devinfo", "PORT_ACTIVE (4)", "PORT_DOWN (1)", "state 1: DOWN; sysfs: 4: ACTIVE"),
        ("ibv_devinfo", "fw_ver:                         28", "fw_ver:   27", "firmware 27"),
        ("show_gids", "0b00:0001", "0b00:0099", "GID 2 0000:0000:0000:0000:0000:ffff:0b00:0099"),
        ("show_gids", "\t v2\t", "\t v1\t", "IB/RoCE v1; sysfs"),
        ("ibstat", "CA 'mlx5_0'", "CA 'mlx5_9'", "mlx5_9:1: is listed by the tool; sysfs: no such port"),
    ],
)
def test_a_tool_that_disagrees_is_quoted(roce: dict[str, Any], tool: str, old: str, new: str, quote: str) -> None:
    odd = copy.deepcopy(roce)
    text = odd["witnesses"][tool]["text"]
    assert old in text
    odd["witnesses"][tool]["text"] = text.replace(old, new, 1)
    found = report(roce, odd)
    (item,) = [item for item in found.findings if item.id == "ib.witnesses-differ"]
    assert (item.severity, item.hosts) == (Severity.WARN, ("host1",))
    assert any(quote in proof.text and proof.source == tool for proof in item.evidence), item.evidence


@pytest.mark.parametrize("word", ["Unspecified", "Unknown"])
def test_an_efas_link_layer_has_two_words(roce: dict[str, Any], word: str) -> None:
    """The kernel writes Unknown where libibverbs writes Unspecified."""
    efa = copy.deepcopy(roce)
    for device in efa["devices"]:
        device["ports"][0]["link_layer"] = word
    for tool, other in (("ibstat", "Unknown"), ("ibv_devinfo", "Unspecified")):
        efa["witnesses"][tool]["text"] = efa["witnesses"][tool]["text"].replace("Ethernet", other)
    assert "ib.witnesses-differ" not in ids(report(efa))


def test_a_tool_that_gives_up_on_a_device_is_quoted(roce: dict[str, Any]) -> None:
    odd = copy.deepcopy(roce)
    line = "ibpanic: [3127] main: stat of IB device 'mlx5_3' failed: No such file or directory"
    odd["witnesses"]["ibstat"] = {"outcome": "failed", "detail": f"exit status 255: {line}", "text": ""}
    (item,) = [item for item in report(odd).findings if item.id == "ib.witnesses-differ"]
    assert "mlx5_3" in item.evidence[0].text


@pytest.mark.parametrize(("outcome", "text"), [("timed-out", ""), ("ok", "what?")])
def test_a_tool_that_says_nothing_is_unknown(roce: dict[str, Any], outcome: str, text: str) -> None:
    odd = copy.deepcopy(roce)
    silent = {"ibstat": {"outcome": outcome, "detail": "", "text": text}}
    odd["witnesses"] = silent
    assert any("ibstat" in gap.what for gap in report(odd).unknown)
    if outcome == "timed-out":  # whatever the others say
        odd["witnesses"] = {**roce["witnesses"], **silent}
        assert any(gap.what == "ibstat" for gap in report(odd).unknown)


def test_tools_stand_in_for_sysfs(roce: dict[str, Any]) -> None:
    """A container with a masked /sys: ports, rates and GIDs from the tools; counters stay unknown."""
    odd = copy.deepcopy(roce)
    odd["devices"] = []
    text = odd["witnesses"]["ibstat"]["text"]
    odd["witnesses"]["ibstat"]["text"] = text.replace("Rate: 400", "Rate: 200", 1)
    found = report(odd)
    assert {"ib.sysfs-missing", "ib.rate.degraded"} <= ids(found)
    assert "ib.gid-index.no-roce-v2" not in ids(found)
    (slow,) = [item for item in found.findings if item.id == "ib.rate.degraded"]
    assert slow.evidence[0].source == "ibstat mlx5_0:1"
    assert any(gap.what == "port counters" for gap in found.unknown)
    del odd["witnesses"]["show_gids"]
    found = report(odd)
    assert "ib.gid-index.no-roce-v2" not in ids(found)
    assert any(gap.what == "GID table" for gap in found.unknown)


@needs_gcc
def test_the_probe_asks_the_tools_without_sysfs(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nics=2)
    machine.tools = machine.rdma_tools()
    machine.hcas.clear()
    machine.files["/dev/infiniband/uverbs0"] = ""
    data = machine.facts()["infiniband"]["data"]
    assert data["devices"] == [] and "mlx5_0" in data["witnesses"]["ibstat"]["text"]


@needs_samples
@pytest.mark.parametrize("sample", sorted(HW.glob("ibstat-*.txt")), ids=lambda path: path.stem)
def test_real_samples_stand_in_and_agree_with_themselves(sample: Path) -> None:
    tool = Tool("ok", text=sample.read_bytes().decode("utf-8", "replace"))
    fact = completed(InfinibandFact((), witnesses={"ibstat": tool}))
    ports = [(device.name, port.port) for device in fact.devices for port in device.ports]
    assert sorted(ports) == sorted(told("ibstat", tool))
    assert all(port.state and port.phys_state and port.rate for device in fact.devices for port in device.ports)
    assert disagreements(fact) == []


def test_a_port_without_link_layer() -> None:
    """Soft RoCE of an old rdma-core: what is not told is not compared."""
    fact = InfinibandFact(
        devices=(Device("rxe0", ports=(Port(1, state="4: ACTIVE", link_layer="Ethernet"),)),),
        witnesses={"ibv_devinfo": Tool("ok", text="hca_id: rxe0\n\tport: 1\n\t\tstate: PORT_ACTIVE (4)\n")},
    )
    assert disagreements(fact) == []


@given(text=st.text(max_size=300), name=st.sampled_from(["ibstat", "ibv_devinfo", "show_gids"]))
def test_any_text(text: str, name: str) -> None:
    fact = completed(InfinibandFact((), witnesses={name: Tool("ok", text=text)}))
    disagreements(fact)
