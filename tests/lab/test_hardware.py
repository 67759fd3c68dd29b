"""``nccl-doctor check`` over four GPU machines that are not there: real sshd, agents, probes and rules from end to end.

Each lab host gets a tree of files, a stand-in NVML and a stub nvidia-smi of its own (see tests/hardware_kit); one check
meets a fault on each. What is broken in how many ways is the unit tests' business; here the whole way is walked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet

from tests.hardware_kit import machines
from tests.hardware_kit.faults import FAULTS, ODD, ROCE_FAULTS, Break, flapping
from tests.hardware_kit.machines import Machine

from . import gate
from .lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled"),
]

STAGES = ("--stage", "gpu,topology,infiniband")
# The lab's own limit on locked memory is no fault of the machines that are not there, and not even root may raise it.
THRESHOLDS = "memlock.rdma: 0\n"
VARIABLES = ("NCCL_DOCTOR_ROOT", "NVML_STAND_IN", "LD_LIBRARY_PATH", "PATH")


@pytest.fixture(scope="module")
def places(whole_lab: Lab) -> Iterator[dict[str, Path]]:
    """Host -> directory of its machine; every login of the hosts sees its own from now on."""
    found = {name: whole_lab.host(name).directory / "hardware" for name in whole_lab.hostnames}  # a host's own /tmp
    try:
        for name, place in found.items():
            Machine(place).write()
            shutil.copytree(machines.library(), place / "library")
            whole_lab.set_env(
                name,
                NCCL_DOCTOR_ROOT=str(place / "root"),
                NVML_STAND_IN=str(place / "nvml.conf"),
                LD_LIBRARY_PATH=str(place / "library"),
                PATH=f"{place / 'bin'}:{whole_lab.host(name).environment()['PATH']}",
            )
        yield found
    finally:
        for name, place in found.items():
            whole_lab.set_env(name, **dict.fromkeys(VARIABLES))
            shutil.rmtree(place, ignore_errors=True)


Examine = Callable[..., tuple[int, Any]]


@dataclass(frozen=True)
class Saved:
    """The place of what the last check saved, and preflight's decision from it."""

    directory: Path

    @property
    def thresholds(self) -> Path:
        path = self.directory / "thresholds.yaml"
        path.write_text(THRESHOLDS)
        return path

    def decide(self, *options: str) -> gate.Run:
        words = ("--thresholds", str(self.thresholds), *options)
        return gate.decide(self.directory / "bundle", self.directory / "gate", *words)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


@pytest.fixture
def examine(lab: Lab, places: dict[str, Path], saved: Saved) -> Iterator[Examine]:
    """Exit status and report of a check. What is done to the machines of some hosts first is undone at the end."""
    broken: list[str] = []

    def run(breaking: Mapping[str, Break] = MappingProxyType({}), *options: str) -> tuple[int, Any]:
        for name, apply in breaking.items():
            broken.append(name)
            machine = Machine(places[name])
            apply(machine)
            machine.write()
        words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--format", "json", *STAGES, *options]
        words += ["--thresholds", str(saved.thresholds), "--save", str(saved.directory / "bundle")]
        done = lab.run(words, timeout=120)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    yield run
    for name in broken:
        Machine(places[name]).write()


def test_healthy_machines(examine: Examine) -> None:
    status, report = examine()
    assert (status, report["verdict"], report["findings"], report["unknown"]) == (0, "healthy", [], [])
    assert [(stage["name"], stage["state"]) for stage in report["stages"]] == [
        ("gpu", "pass"),
        ("topology", "pass"),
        ("infiniband", "pass"),
    ]


SYSTEM_PYTHON = "/usr/bin/python3"


def lacks_pynvml(python: str) -> bool:
    """Whether this Python is there and cannot import pynvml."""
    if not Path(python).exists():
        return False
    return subprocess.run([python, "-I", "-c", "import pynvml"], capture_output=True).returncode != 0


@pytest.mark.skipif(not lacks_pynvml(SYSTEM_PYTHON), reason=f"no {SYSTEM_PYTHON} without pynvml here")
def test_pynvml_is_sent_along(examine: Examine) -> None:
    """A host whose Python has no pynvml is examined all the same."""
    status, report = examine({}, "--python", SYSTEM_PYTHON)
    assert (status, report["findings"], report["unknown"]) == (0, [], [])
    assert [stage["state"] for stage in report["stages"]] == ["pass", "pass", "pass"]


# Each check meets one fault per host: faults of one host are told apart from its neighbours', which have their own.
TOGETHER = (
    ("7 of 8 GPUs", "uncorrectable ECC", "row remap pending", "thermal"),
    ("hanging NVML", "driver mismatch", "Xid 79", "Xid 94"),
    ("power brake", "PCIe x8", "PCIe Gen3", "NVLink down"),
    ("no fabric manager", "MIG", "held by a process", "IB port down"),
    ("other model", "other driver", "half rate", "no peermem"),
    ("no IB here",),
)


def expect(report: Any, saved: Saved, wanted: dict[str, tuple[set[str], str]]) -> None:
    """Exactly the wanted ids on each host (beyond information), with the quote in the evidence and a playbook.

    And preflight keeps exactly these hosts out: files, decision, JUnit.
    """
    causes = [item for item in report["findings"] if item["severity"] != "info" and not item.get("folded_under")]
    told: dict[str, set[str]] = {}
    for item in causes:
        assert len(item["hosts"]) == 1, item
        told.setdefault(item["hosts"][0], set()).add(item["id"])
        assert item["evidence"] and item["playbook"], item
    assert told == {host: ids for host, (ids, _) in wanted.items()}
    for host, (_, quote) in wanted.items():
        words = [
            item["title"] + " ".join(proof["text"] for proof in item["evidence"])
            for item in causes
            if item["hosts"] == [host]
        ]
        assert any(quote in text for text in words), (host, quote, words)
    guilty = sorted(wanted)
    others = [host for host in ("gpu01", "gpu02", "gpu03", "gpu04") if host not in wanted]
    run = saved.decide("--strict")
    assert run.code == gate.FAULTY and "NO-GO" in run.out
    assert (run.good, [host for line in run.bad for host in NodeSet(line)]) == (others, guilty), run.out
    told_in_junit: dict[str, str] = {}
    for part in (run.cases("failure"), run.cases("error"), run.warned()):
        told_in_junit |= {host: told_in_junit.get(host, "") + text for host, text in part.items()}
    assert sorted(told_in_junit) == guilty, told_in_junit
    failing = {host for item in causes if item["severity"] == "fail" for host in item["hosts"]}
    assert failing and set(run.cases("failure")) == failing
    assert {host for host, made in run.report["decisions"].items() if made["state"] == "bad"} == failing
    assert failing.isdisjoint(saved.decide("--min-hosts", "1").good)  # a warning alone may run, a failure never


@pytest.mark.parametrize("names", TOGETHER, ids=", ".join)
def test_every_fault_is_named_on_its_host(names: tuple[str, ...], examine: Examine, lab: Lab, saved: Saved) -> None:
    faults = {host: FAULTS[name] for host, name in zip(lab.hostnames, names, strict=False)}
    status, report = examine({host: breaking for host, (breaking, _, _) in faults.items()})
    assert status == 11
    expect(report, saved, {host: (ids, quote.replace(ODD, host)) for host, (_, ids, quote) in faults.items()})


def test_link_flaps_that_rise(examine: Examine, lab: Lab, places: dict[str, Path], saved: Saved) -> None:
    host = lab.hostnames[2]
    with flapping(places[host]):
        status, report = examine()
    assert status == 11
    expect(report, saved, {host: ({"ib.link-flapping"}, "link_downed")})
    Machine(places[host]).write()


def test_gid_table_without_roce_v2(examine: Examine, lab: Lab, saved: Saved) -> None:
    """A fleet with RoCE rails: healthy but for one port of one host."""
    breaking, ids = ROCE_FAULTS["no RoCE v2"]
    odd = lab.hostnames[1]

    def apply(machine: Machine) -> None:
        machine.roce()
        if machine.directory.parent.name == odd or odd in machine.directory.parts:
            breaking(machine)

    status, report = examine(dict.fromkeys(lab.hostnames, apply))
    assert status == 11
    expect(report, saved, {odd: (ids, "RoCE v2")})


def test_topology_of_all_hosts(lab: Lab, places: dict[str, Path]) -> None:
    done = lab.run(["nccl-doctor", "topo", "--hosts", str(lab.hostfile), "--format", "json"], timeout=120)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout)["hosts"]
    assert sorted(documents) == lab.hostnames
    assert all(len(one["gpus"]) == 8 and len(one["nics"]) == 8 and not one["truncated"] for one in documents.values())
