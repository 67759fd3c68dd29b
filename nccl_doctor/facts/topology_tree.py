"""The topology matrix rebuilt without nvidia-smi: distances from the PCI tree in sysfs, NVLinks from NVML.

The kinds are those of ``nvidia-smi topo -m`` and NVML (nvmlGpuTopologyLevel_t), which NCCL counts alike: PIX below one
PCIe switch, PXB below several without the host bridge, PHB through one host bridge, NODE between host bridges of one
NUMA node, SYS between NUMA nodes. A switch is two PCI bridges in sysfs (its upstream port and one downstream port): NCCL
climbs the tree in the same steps of two. What sysfs does not tell (a NUMA node of -1) is left out, and said.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container

import msgspec

from nccl_doctor.facts.gpu import GpuDevice, GpuFact, NvLink
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Gpu, Link, Matrix, Nic, TopologyError
from nccl_doctor.facts.topology_paths import per_matrix

SYSFS = "sysfs"
SWITCH = "switch"  # what NVML calls the other end of an NVLink to an NVSwitch


class Difference(msgspec.Struct, frozen=True):
    """A pair on which nvidia-smi's matrix and the rebuilt one disagree; NIC names are verbs names."""

    a: str
    b: str
    printed: str
    rebuilt: str

    @property
    def nvlink(self) -> bool:
        """They disagree on NVLinks, not just on the distance over PCIe."""
        return "NV" in self.printed[:2] + self.rebuilt[:2]

    def __str__(self) -> str:
        return f"{self.a}-{self.b}: nvidia-smi says {self.printed}, sysfs and NVML {self.rebuilt}"


class Node(msgspec.Struct, frozen=True):
    """One GPU or NIC with all that the matrix is rebuilt from, and nothing else: hosts built alike have equal ones.

    ``ends``: the other end of each active NVLink, a PCI address or ``switch``; None where NVML did not tell.
    """

    name: str
    bus_id: str
    path: tuple[str, ...]
    numa_node: int | None = None
    cpus: str | None = None
    verbs: str = ""
    ends: tuple[str, ...] | None = None


def node(
    name: str, device: PciDevice, gpu: GpuDevice | None = None, verbs: str = "", gpus: Container[str] = ()
) -> Node:
    """The node of a device, with the NVLinks that NVML told of it; ``gpus`` are the PCI addresses of all GPUs."""
    ends = None
    if gpu is not None and gpu.nvlinks is not None:
        ends = tuple([_end(one, gpus) for one in gpu.nvlinks if one.active])
    return Node(name, device.bus_id, device.path, device.numa_node, device.cpus, verbs, ends)


def _end(link: NvLink, gpus: Container[str]) -> str:
    """Where a link ends. What no PCI address here bears is a switch (in virtual machines, NVLink 5), as NCCL has it."""
    return link.remote if link.remote and (link.remote_type in ("gpu", "ibmnpu") or link.remote in gpus) else SWITCH


def kind_between(a: Node, b: Node) -> str | None:
    """PIX, PXB, PHB, NODE or SYS between two devices; None where the NUMA nodes are needed and not known."""
    common = 0
    for one, other in zip(a.path, b.path, strict=False):
        if one != other:
            break
        common += 1
    if common == 0:
        known = a.numa_node is not None and b.numa_node is not None and min(a.numa_node, b.numa_node) >= 0
        return ("NODE" if a.numa_node == b.numa_node else "SYS") if known else None
    if common == 1:
        return "PHB"
    # Up to two steps below the common bridge: the device and its switch's downstream port.
    return "PIX" if max(len(a.path), len(b.path)) - common <= 2 else "PXB"


def nvlinks_between(a: Node, b: Node) -> int:
    """Active NVLinks from one GPU to another: straight ones, and those that both have to NVSwitches."""
    if not a.ends:
        return 0
    return a.ends.count(b.bus_id) + min(a.ends.count(SWITCH), (b.ends or ()).count(SWITCH))


def rebuild(topology: TopologyFact, gpu: GpuFact | None) -> Matrix:
    """The matrix as far as sysfs and NVML tell it; ``TopologyError`` where sysfs lists no GPU that NVML has."""
    gpus = _gpus(topology, gpu)
    if not gpus:
        raise TopologyError("sysfs shows no PCI address of an NVIDIA GPU")
    return _matrix(gpus, _nics(topology))


# As with the printed ones: the hosts of a fleet have few different matrices between them.
@functools.lru_cache(maxsize=64)
def _matrix(gpus: tuple[Node, ...], nics: tuple[Node, ...]) -> Matrix:
    links, unknown = [], 0
    for a, b in itertools.permutations(gpus + nics, 2):
        count = nvlinks_between(a, b)
        kind = f"NV{count}" if count else kind_between(a, b)
        if kind is None:
            unknown += 1
        else:
            links.append(Link(a.name, b.name, kind))
    notes = []
    if unknown:
        notes.append(f"{unknown // 2} pairs are left out: the NUMA node is not told (a virtual machine's PCI tree)")
    if silent := [gpu.name for gpu in gpus if gpu.ends is None]:
        notes.append(f"NVLinks are not known for {', '.join(silent)}: NVML did not tell")
    return Matrix(
        gpus=tuple(Gpu(gpu.name, gpu.cpus, _numa(gpu)) for gpu in gpus),
        nics=tuple(Nic(nic.name, nic.verbs) for nic in nics),
        links=tuple(links),
        truncated=bool(notes),
        rows=tuple(one.name for one in gpus + nics),
        notes=tuple(notes),
        source=SYSFS,
    )


def _numa(node: Node) -> str:
    return str(node.numa_node) if node.numa_node is not None and node.numa_node >= 0 else "N/A"


def _gpus(topology: TopologyFact, fact: GpuFact | None) -> tuple[Node, ...]:
    """The GPUs, with NVML's answers. Numbered as NVML does, else in the order of PCI addresses."""
    on_bus = {device.bus_id: device for device in topology.devices if device.kind == "gpu" and device.path}
    if fact is not None and fact.nvml.outcome == "ok":
        told = {f"GPU{gpu.index}": gpu for gpu in fact.gpus if gpu.bus_id in on_bus}
        return tuple(node(name, on_bus[gpu.bus_id or ""], gpu, gpus=on_bus) for name, gpu in told.items())
    return tuple(node(f"GPU{index}", on_bus[bus_id]) for index, bus_id in enumerate(sorted(on_bus)))


def _nics(topology: TopologyFact) -> tuple[Node, ...]:
    """One NIC for each RDMA device, numbered in the order of their names."""
    found = [
        (name, device) for device in topology.devices if device.kind == "nic" and device.path for name in device.verbs
    ]
    found.sort(key=lambda one: [int(part) if part.isdecimal() else part for part in _DIGITS.split(one[0])])
    return tuple(node(f"NIC{index}", device, verbs=name) for index, (name, device) in enumerate(found))


_DIGITS = re.compile(r"([0-9]{1,9})")


def differences(printed: Matrix, rebuilt: Matrix) -> list[Difference]:
    """Pairs of GPUs, and of GPU and NIC, on which both have a cell and the cells differ. NICs are matched by verbs name."""
    last: tuple[Matrix, list[Difference]] | None = printed.derived.get("differences")
    if last is None or last[0] is not rebuilt:  # hosts built alike share both
        last = printed.derived["differences"] = (rebuilt, _differences(printed, rebuilt))
    return last[1]


def _differences(printed: Matrix, rebuilt: Matrix) -> list[Difference]:
    mine, theirs = _by_device(printed), _by_device(rebuilt)
    gpus = {gpu.name for gpu in printed.gpus}
    found = [
        Difference(a, b, kind, theirs[a, b])
        for (a, b), kind in mine.items()
        if a in gpus
        and (b not in gpus or a < b)
        and (a, b) in theirs
        and theirs[a, b] != kind.replace("SOC", "SYS")
        and not (kind.startswith("NV") and rebuilt.truncated)  # NVML did not tell its NVLinks: no witness of them
    ]
    return sorted(found, key=lambda one: (one.a, one.b))


@per_matrix
def _by_device(matrix: Matrix) -> dict[tuple[str, str], str]:
    names = {nic.name: nic.device or nic.name for nic in matrix.nics}
    return {(names.get(link.a, link.a), names.get(link.b, link.b)): link.kind for link in matrix.links}
