"""The table of what differs between hosts: hardware rows, folded, for the terminal and the page."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from nccl_doctor.facts.model import Bundle, Reach, ReachOutcome
from nccl_doctor.report import differences
from nccl_doctor.rules.engine import reached
from nccl_doctor.rules.hardware_table import hardware_table
from tests.hardware_kit import fleet, machines
from tests.hardware_kit.faults import FAULTS
from tests.hardware_kit.machines import Machine

pytestmark = pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


def told(name: str, place: Path, *faults: str) -> fleet.Facts:
    machine = Machine(place / name)
    for fault in faults:
        FAULTS[fault][0](machine)
    return machine.facts()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("table")
    faults = {
        "gpu01": (),
        "gpu02": ("other driver", "half rate"),
        "gpu03": (),
        "gpu04": ("driver mismatch", "no IB here"),
    }
    return fleet.bundle({name: told(name, place, *those) for name, those in faults.items()})


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
    console = Console(width=100, file=io.StringIO())
    differences.render(fleet.bundle({}), console)
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == ""


@pytest.mark.parametrize(
    ("lost", "words"), [((1, 3), "nothing that is known of the 2 hosts reached differs"), ((1, 2, 3), "")]
)
def test_of_hosts_that_were_not_reached_it_is_not_said_that_they_are_equal(
    bundle: Bundle, lost: tuple[int, ...], words: str
) -> None:
    silent = Reach(ReachOutcome.TIMED_OUT)
    hosts = tuple(
        msgspec.structs.replace(host, reach=silent, probes={}) if number in lost else host
        for number, host in enumerate(bundle.hosts)
    )
    console = Console(width=100, file=io.StringIO())
    differences.render(msgspec.structs.replace(bundle, hosts=hosts), console)
    assert isinstance(console.file, io.StringIO) and words in console.file.getvalue()
    assert bool(words) == bool(console.file.getvalue())
