"""``nccl-doctor check`` over four GPU machines that are not there: real sshd, agents, probes and rules from end to end.

Each lab host gets a tree of files, a stand-in NVML and a stub nvidia-smi of its own (see tests/hardware_kit); the fault
is in one of them. What is broken in how many ways is the unit tests' business; here the whole way is walked.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def equipped(lab: Lab, breaking: Callable[[Machine], None] | None = None) -> Iterator[None]:
    """The lab's hosts are healthy GPU machines while the block runs, but for what ``breaking`` does to one of them."""
    places = {name: lab.host(name).directory / "hardware" for name in lab.hostnames}  # all of /tmp that a host sees
    try:
        for name, place in places.items():
            machine = Machine(place)
            if breaking is not None and name == GUILTY:
                breaking(machine)
            machine.write()
            shutil.copytree(machines.library(), place / "library")
            lab.set_env(
                name,
                NCCL_DOCTOR_ROOT=str(place / "root"),
                NVML_STAND_IN=str(place / "nvml.conf"),
                LD_LIBRARY_PATH=str(place / "library"),
                PATH=f"{place / 'bin'}:{lab.host(name).environment()['PATH']}",
            )
        yield
    finally:
        for name, place in places.items():
            lab.set_env(name, **dict.fromkeys(VARIABLES))
            shutil.rmtree(place, ignore_errors=True)


def examine(lab: Lab, breaking: Callable[[Machine], None] | None = None) -> tuple[int, Any]:
    """Exit status and report of a check of such hosts."""
    with equipped(lab, breaking):
        words = ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--format", "json", *STAGES]
        done = lab.run(words, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_healthy_machines(lab: Lab) -> None:
    status, report = examine(lab)
    assert (status, report["verdict"], report["findings"], report["unknown"]) == (0, "healthy", [], [])
    assert [(stage["name"], stage["state"]) for stage in report["stages"]] == [
        ("gpu", "pass"),
        ("topology", "pass"),
        ("infiniband", "pass"),
    ]


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
def test_the_fault_is_named(lab: Lab, breaking: Callable[[Machine], None], id: str, quote: str) -> None:
    status, report = examine(lab, breaking)
    first = report["findings"][0]
    assert (status, first["id"], first["hosts"]) == (11, id, [GUILTY])
    words = first["title"] + " ".join(proof["text"] for proof in first["evidence"])
    assert quote in words


def test_topology_of_all_hosts(lab: Lab) -> None:
    with equipped(lab):
        done = lab.run(["nccl-doctor", "topo", "--hosts", str(lab.hostfile), "--format", "json"], timeout=120)
    assert done.returncode == 0, done.stderr
    documents = json.loads(done.stdout)["hosts"]
    assert sorted(documents) == lab.hostnames
    assert all(len(one["gpus"]) == 8 and len(one["nics"]) == 8 and not one["truncated"] for one in documents.values())
