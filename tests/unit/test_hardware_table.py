"""The table of what differs between hosts: hardware rows, folded, for the terminal and the page."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.report import differences
from nccl_doctor.rules.engine import reached
from nccl_doctor.rules.hardware_table import hardware_table
from tests.hardware_kit import machines
from tests.hardware_kit.faults import FAULTS
from tests.hardware_kit.machines import Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


def host(name: str, place: Path, *faults: str) -> HostFacts:
    machine = Machine(place / name)
    for fault in faults:
        FAULTS[fault][0](machine)
    probes = {key: msgspec.convert(result, ProbeResult) for key, result in machine.facts().items()}
    return HostFacts(name, Reach(ReachOutcome.OK), probes)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("table")
    hosts = (
        host("gpu01", place),
        host("gpu02", place, "other driver", "half rate"),
        msgspec.structs.replace(host("gpu03", place), name="gpu03"),
        host("gpu04", place, "driver mismatch", "no IB here"),
    )
    plan = Plan(stages=("gpu", "topology", "infiniband"))
    return Bundle(BUNDLE_SCHEMA, "t", "2026-11-21T00:00:00+00:00", plan, hosts)


def test_rows(bundle: Bundle) -> None:
    rows = {row.subject: row for row in hardware_table(reached(bundle), bundle.plan)}
    assert rows["driver"].values[0][1] == ("gpu01", "gpu03")  # gpu04's NVML did not answer: it takes no part
    assert rows["driver"].odd == ("gpu02",)
    assert rows["rail rates (Gb/s)"].odd == () and rows["rail rates (Gb/s)"].tie
    assert rows["rails"].odd == ("gpu04",)
    assert rows["model"].equal
    assert rows["topology"].values[0] == ("8 GPUs NV18, 8 NICs PIX", ("gpu01", "gpu02", "gpu03"))


def test_the_table_in_the_terminal(bundle: Bundle) -> None:
    console = Console(width=100, file=io.StringIO())
    differences.render(bundle, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "what differs between hosts" in text
    assert "535.161.08  on gpu02" in text
    assert "equal  " in text and "model" in text.partition("equal  ")[2]


def test_hosts_without_facts_give_no_table() -> None:
    empty = Bundle(BUNDLE_SCHEMA, "t", "2026-11-21T00:00:00+00:00", Plan(stages=("gpu",)), ())
    console = Console(width=100, file=io.StringIO())
    differences.render(empty, console)
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""
