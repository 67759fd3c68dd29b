"""What can be wrong with the hosts of a large fleet, for measuring: facts of one host in, spoilt facts out.

``one-in-20``: every twentieth host has one of two dozen faults in turn. ``all-alike``: every host has the same six. ``each-own``:
every host has values of its own wherever hosts are compared, the worst case of folding.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hardware_kit.faults import FAULTS
from tests.hardware_kit.machines import Machine

Probes = dict[str, Any]
Spoil = Callable[[Probes, int], None]
HARDWARE = (
    *("uncorrectable ECC", "row remap failure", "Xid 79", "Xid 74", "thermal", "PCIe x8", "NVLinks lost", "MIG"),
    *("held by a process", "other driver", "ACS", "IB port down", "half rate", "one HCA fewer", "HCA firmware"),
)


@functools.cache
def machine(fault: str) -> Probes:
    """What the real probes read of a machine with this fault."""
    with tempfile.TemporaryDirectory(prefix="broken-machine-") as directory:
        broken = Machine(Path(directory))
        FAULTS[fault][0](broken)
        return {name: one["data"] for name, one in broken.facts().items()}


def hardware(fault: str) -> Spoil:
    def spoil(probes: Probes, number: int) -> None:
        probes.update(machine(fault))

    return spoil


def own(probes: Probes, probe: str) -> Any:
    """The probe's data, for this host alone to change."""
    probes[probe] = copy.deepcopy(probes[probe])
    return probes[probe]


def refused(probes: Probes, number: int) -> None:
    probes["links"] = {
        "links": [
            {**link, "outcome": "refused", "detail": "Connection refused", "answered": 0, "rtt_p50_ms": None}
            for link in probes["links"]["links"]
        ]
    }


def lossy(probes: Probes, number: int) -> None:
    probes["links"] = {"links": [{**link, "lost_forward": link["messages"] // 8} for link in probes["links"]["links"]]}


def wrong_name(probes: Probes, number: int) -> None:
    own(probes, "names")["own"] = {"addresses": ["127.0.1.1"]}


def clock(probes: Probes, number: int) -> None:
    own(probes, "clock")["offset"] = 30.0


def torch(probes: Probes, number: int) -> None:
    software = own(probes, "software")
    software["distributions"]["torch"] = "2.7.1+cu128"
    software["torch"]["version"] = "2.7.1+cu128"


def shm(probes: Probes, number: int) -> None:
    own(probes, "system")["shm"] = {"present": True, "size_bytes": 64 << 20, "free_bytes": 60 << 20}


def disk(probes: Probes, number: int) -> None:
    own(probes, "system")["filesystems"][0]["free_bytes"] = 1 << 20


def interface(probes: Probes, number: int) -> None:
    own(probes, "environment")["variables"]["NCCL_SOCKET_IFNAME"] = "=eth9"


def pinned(probes: Probes, number: int) -> None:
    own(probes, "environment")["variables"] |= {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Rign"}


SOFT: tuple[Spoil, ...] = (refused, lossy, wrong_name, clock, torch, shm, disk, interface, pinned)


def one_in_20(probes: Probes, number: int) -> None:
    faults = (*SOFT, *(hardware(fault) for fault in HARDWARE))
    if number % 20 == 3:
        faults[number // 20 % len(faults)](probes, number)


def all_alike(probes: Probes, number: int) -> None:
    for spoil in (hardware("NVLinks lost"), refused, wrong_name, shm, interface, pinned):
        spoil(probes, number)


def each_own(probes: Probes, number: int) -> None:
    """Values of its own: what is compared between hosts, what is quoted, and why something could not be measured."""
    for gpu in own(probes, "gpu")["gpus"]:
        gpu |= {"vbios": f"96.00.{number}", "power_limit_w": 300 + number / 100, "pcie_replays": number}
    for device in own(probes, "infiniband")["devices"]:
        device["fw_ver"] = f"28.{number}.1000"
    topology = own(probes, "topology")
    topology["kernel"] = f"5.15.0-{number}"
    topology["matrix"]["text"] = topology["matrix"]["text"].replace("\t0-55,112-167", f"\t0-{56 + number}")
    software = own(probes, "software")
    software["distributions"] |= {"numpy": f"2.1.{number}", "torch": f"2.8.{number}"}
    software["driver"]["version"] = f"570.86.{number}"
    own(probes, "environment")["variables"] |= {
        "NCCL_BUFFSIZE": str(4194304 + number),
        "NCCL_DEBUG_FILE": f"/x/{number}",
    }
    own(probes, "system")["sysctls"]["net.ipv4.tcp_rmem"] = f"4096 {number} 6291456"
    own(probes, "clock")["offset"] = number / 100
    links = [
        {**link, "outcome": "failed", "detail": f"errno {number}", "answered": 0, "rtt_p50_ms": None}
        if index % 3 == 1
        else link
        for index, link in enumerate(probes["links"]["links"])
    ]
    probes["links"] = {"links": links}


FLEETS: dict[str, Spoil | None] = {
    "clean": None,
    "one-in-20": one_in_20,
    "all-alike": all_alike,
    "each-own": each_own,
}
