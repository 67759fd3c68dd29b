"""The topology matrix rebuilt without nvidia-smi: distances from the PCI tree in sysfs, NVLinks from NVML.

The kinds are those of ``nvidia-smi topo -m`` and NVML (nvmlGpuTopologyLevel_t), which NCCL counts alike: PIX below one
PCIe switch, PXB below several without the host bridge, PHB through one host bridge, NODE between host bridges of one
NUMA node, SYS between NUMA nodes. A switch is two PCI bridges in sysfs (its upstream port and one downstream port): NCCL
climbs the tree in the same steps of two. What sysfs does not tell (a NUMA node of -1) is left out, and said.
"""

from __future__ import annotations

import re

import msgspec

from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Gpu, Link, Matrix, Nic, TopologyError

SYSFS = "sysfs"


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


def kind_between(a: PciDevice, b: PciDevice) -> str | None:
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


def nvlinks_between(a: GpuDevice, b: GpuDevice) -> int:
    """Active NVLinks from one GPU to another: straight ones, and those that both have to NVSwitches."""
    straight = sum(link.active and link.remote == b.bus_id for link in a.nvlinks or ())
    to_switch = [sum(link.active and link.remote_type == "switch" for link in gpu.nvlinks or ()) for gpu in (a, b)]
    return straight + min(to_switch)


def rebuild(topology: TopologyFact, gpu: GpuFact | None) -> Matrix:
    """The matrix as far as sysfs and NVML tell it; ``TopologyError`` where sysfs lists no GPU that NVML has."""
    gpus, told = _gpus(topology, gpu)
    if not gpus:
        raise TopologyError("sysfs shows no PCI address of an NVIDIA GPU")
    nics = _nics(topology)
    devices = [*gpus.items(), *nics.items()]
    links, unknown = [], []
    for a, one in devices:
        for b, other in devices:
            if a == b:
                continue
            count = nvlinks_between(told[a], told[b]) if a in told and b in told else 0
            kind = f"NV{count}" if count else kind_between(one, other)
            if kind is None:
                unknown.append(f"{a}-{b}")
            else:
                links.append(Link(a, b, kind))
    notes = []
    if unknown:
        notes.append(
            f"{len(unknown) // 2} pairs are left out: the NUMA node is not told (a virtual machine's PCI tree)"
        )
    if silent := [name for name in gpus if name not in told or told[name].nvlinks is None]:
        notes.append(f"NVLinks are not known for {', '.join(silent)}: NVML did not tell")
    return Matrix(
        gpus=tuple(Gpu(name, device.cpus, _numa(device)) for name, device in gpus.items()),
        nics=tuple(Nic(name, device.verbs[0]) for name, device in nics.items()),
        links=tuple(links),
        truncated=bool(notes),
        rows=tuple(name for name, _ in devices),
        notes=tuple(notes),
        source=SYSFS,
    )


def _numa(device: PciDevice) -> str:
    return str(device.numa_node) if device.numa_node is not None and device.numa_node >= 0 else "N/A"


def _gpus(topology: TopologyFact, fact: GpuFact | None) -> tuple[dict[str, PciDevice], dict[str, GpuDevice]]:
    """GPU name -> PCI device, and -> NVML's answers. Numbered as NVML does, else in the order of PCI addresses."""
    on_bus = {device.bus_id: device for device in topology.devices if device.kind == "gpu" and device.path}
    if fact is not None and fact.nvml.outcome == "ok":
        told = {f"GPU{gpu.index}": gpu for gpu in fact.gpus if gpu.bus_id in on_bus}
        return {name: on_bus[gpu.bus_id or ""] for name, gpu in told.items()}, told
    return {f"GPU{index}": on_bus[bus_id] for index, bus_id in enumerate(sorted(on_bus))}, {}


def _nics(topology: TopologyFact) -> dict[str, PciDevice]:
    """NIC name -> PCI device, one for each RDMA device, numbered in the order of their names."""
    found = [
        msgspec.structs.replace(device, verbs=(name,))
        for device in topology.devices
        if device.kind == "nic" and device.path
        for name in device.verbs
    ]
    found.sort(key=lambda device: [int(part) if part.isdecimal() else part for part in _DIGITS.split(device.verbs[0])])
    return {f"NIC{index}": device for index, device in enumerate(found)}


_DIGITS = re.compile(r"([0-9]{1,9})")


def differences(printed: Matrix, rebuilt: Matrix) -> list[Difference]:
    """Pairs of GPUs, and of GPU and NIC, on which both have a cell and the cells differ. NICs are matched by verbs name."""
    mine, theirs = _by_device(printed), _by_device(rebuilt)
    gpus = {gpu.name for gpu in printed.gpus}
    return [
        Difference(a, b, kind, theirs[a, b])
        for (a, b), kind in sorted(mine.items())
        if a in gpus
        and (b not in gpus or a < b)
        and (a, b) in theirs
        and theirs[a, b] != kind.replace("SOC", "SYS")
        and not (kind.startswith("NV") and rebuilt.truncated)  # NVML did not tell its NVLinks: no witness of them
    ]


def _by_device(matrix: Matrix) -> dict[tuple[str, str], str]:
    names = {nic.name: nic.device or nic.name for nic in matrix.nics}
    return {(names.get(link.a, link.a), names.get(link.b, link.b)): link.kind for link in matrix.links}
