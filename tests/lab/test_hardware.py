"""``nccl-doctor check`` over four GPU machines that are not there: real sshd, agents, probes and rules from end to end.

Each lab host gets a tree of files, a stand-in NVML and a stub nvidia-smi of its own (see tests/hardware_kit); the fault
is in one of them. What is broken in how many ways is the unit tests' business; here the whole way is walked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hardware_kit import machines
from tests.hardware_kit.machines import Machine

from .lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled"),
]

STAGES = ("--stage", "gpu", "--stage", "topology", "--stage", "infiniband")
VARIABLES = ("NCCL_DOCTOR_ROOT", "NVML_STAND_IN", "LD_LIBRARY_PATH", "PATH")
GUILTY = "gpu02"


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


@pytest.fixture
def examine(lab: Lab, places: dict[str, Path]) -> Iterator[Examine]:
    """Exit status and report of a check; ``breaking`` is done to one of the machines first, and undone at the end."""

    def run(breaking: Callable[[Machine], None] | None = None, *options: str) -> tuple[int, Any]:
        if breaking is not None:
            machine = Machine(places[GUILTY])
            breaking(machine)
            machine.write()
        words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--format", "json", *STAGES, *options]
        done = lab.run(words, timeout=120)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    yield run
    Machine(places[GUILTY]).write()


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
    status, report = examine(None, "--python", SYSTEM_PYTHON)
    assert (status, report["findings"], report["unknown"]) == (0, [], [])
    assert [stage["state"] for stage in report["stages"]] == ["pass", "pass", "pass"]


def seven_of_eight(machine: Machine) -> None:
    del machine.gpus[5]


def hanging_driver(machine: Machine) -> None:
    machine.settings["hang"] = "nvmlDeviceGetUUID"
    machine.smi_hangs = True


def fallen_off(machine: Machine) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    machine.kernel_log.append((machine.uptime_s - 60, line))


def half_a_rail(machine: Machine) -> None:
    machine.hcas[3].rate = "200 Gb/sec (2X NDR)"


def another_driver(machine: Machine) -> None:
    machine.settings["driver"] = machine.module_version = "535.161.08"


CASES = [
    (seven_of_eight, "gpu.not-visible.fewer-than-bus", "0000:6b:00.0"),
    (hanging_driver, "gpu.driver.hang", "nvmlDeviceGetUUID of GPU 0"),
    (fallen_off, "gpu.fell-off-bus", "fallen off the bus"),
    (half_a_rail, "ib.rate.degraded", "200 Gb/sec (2X NDR)"),
    (another_driver, "gpu.driver.differs", "535.161.08 on gpu02"),
]


@pytest.mark.parametrize(("breaking", "id", "quote"), CASES, ids=lambda item: getattr(item, "__name__", ""))
def test_the_fault_is_named(examine: Examine, breaking: Callable[[Machine], None], id: str, quote: str) -> None:
    status, report = examine(breaking)
    first = report["findings"][0]
    assert (status, first["id"], first["hosts"]) == (11, id, [GUILTY])
    words = first["title"] + " ".join(proof["text"] for proof in first["evidence"])
    assert quote in words


def test_topology_of_all_hosts(lab: Lab, places: dict[str, Path]) -> None:
    done = lab.run(["nccl-doctor", "topo", "--hosts", str(lab.hostfile), "--format", "json"], timeout=120)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout)["hosts"]
    assert sorted(documents) == lab.hostnames
    assert all(len(one["gpus"]) == 8 and len(one["nics"]) == 8 and not one["truncated"] for one in documents.values())
