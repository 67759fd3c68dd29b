"""The kinds of hosts of a fleet, prepared for the page: what hangs where, and how GPUs and NICs reach each other. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_paths import to_network, uneven
from nccl_doctor.rules.engine import Host, reached

TOPOLOGIES_SHOWN = 16  # a drawing takes 11 kB


class Chip(msgspec.Struct, frozen=True):
    """One device: its kind (gpu, nic, nvswitch), the name it goes by, and in small print where it is and how wide."""

    kind: str
    name: str
    detail: str
    narrow: bool  # fewer PCIe lanes than device and slot could have


class Box(msgspec.Struct, frozen=True):
    """What hangs below one PCIe bridge (a switch or root port), and the way to it from the root complex down."""

    name: str
    devices: tuple[Chip, ...]


class Node(msgspec.Struct, frozen=True):
    """A NUMA node with its bridges."""

    name: str
    boxes: tuple[Box, ...]


class Topology(msgspec.Struct, frozen=True):
    """One kind of host: who looks like this, the drawing, the matrix (rows of (text, kind)), and words."""

    hosts: str
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    words: tuple[str, ...]
    nvlink: str  # one sentence on the GPUs' NVLinks, empty where the matrix was not read


def topologies(bundle: Bundle) -> tuple[list[Topology], str]:
    """The commonest topologies of the fleet, each with the hosts that have it, and the hosts of those left out."""
    groups: dict[tuple[str, tuple[PciDevice, ...]], list[Host]] = {}
    for host in reached(bundle):
        fact = host.want(TopologyFact)
        if fact is not None and (fact.matrix.text or fact.devices):
            groups.setdefault((fact.matrix.text, fact.devices), []).append(host)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].name))
    shown = [_topology(hosts, text, devices) for (text, devices), hosts in ordered[:TOPOLOGIES_SHOWN]]
    return shown, fold(host.name for _, hosts in ordered[TOPOLOGIES_SHOWN:] for host in hosts)


def _topology(hosts: list[Host], text: str, devices: tuple[PciDevice, ...]) -> Topology:
    try:
        matrix: Matrix | None = parse(text)
    except TopologyError:
        matrix = None
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    words: list[str] = []
    if matrix is not None:
        kinds = matrix.kinds()
        names = (*(gpu.name for gpu in matrix.gpus), *(nic.name for nic in matrix.nics))
        rows = tuple((a, tuple(_matrix_cell(a, b, kinds.get((a, b), "")) for b in names)) for a in names)
        words = [found.text for found in uneven(matrix)]
        words += [f"{gpu.name} to the network: {to_network(matrix, gpu.name)}" for gpu in matrix.gpus]
    told = fold(host.name for host in hosts)
    return Topology(told, _nodes(devices, _gpu_names(hosts[0])), names, rows, tuple(words), _nvlink(matrix, devices))


def _matrix_cell(a: str, b: str, kind: str) -> tuple[str, str]:
    if a == b:
        return "", "self"
    return kind or "?", "nv" if kind.startswith("NV") else kind.lower() or "cut"


def _gpu_names(host: Host) -> dict[str, str]:
    """PCI address -> the GPU's name as nvidia-smi counts."""
    fact = host.want(GpuFact)
    return {gpu.bus_id: f"GPU{gpu.index}" for gpu in fact.gpus if gpu.bus_id} if fact else {}


def _nvlink(matrix: Matrix | None, devices: tuple[PciDevice, ...]) -> str:
    """How the GPUs reach each other: pairs by kind, counted from the cells that were read."""
    if matrix is None or len(matrix.gpus) < 2:
        return ""
    kinds = matrix.kinds()
    pairs = [(a.name, b.name) for number, a in enumerate(matrix.gpus) for b in matrix.gpus[number + 1 :]]
    counts = Counter(kinds.get(pair) or "not read" for pair in pairs)
    switches = sum(device.kind == "nvswitch" for device in devices)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return f"GPU pairs by link: {told}" + (f"; {switches} NVSwitches" if switches else "")


def _nodes(devices: tuple[PciDevice, ...], gpus: Mapping[str, str]) -> tuple[Node, ...]:
    """NUMA node -> the bridge nearest to the devices -> the devices behind it."""
    tree: dict[int, dict[tuple[str, ...], list[Chip]]] = {}
    for device in devices:
        node = -1 if device.numa_node is None else device.numa_node
        tree.setdefault(node, {}).setdefault(device.path[:-1], []).append(_chip(device, gpus))
    return tuple(
        Node(
            f"NUMA node {node}" if node >= 0 else "NUMA node unknown",
            tuple(Box(" → ".join(way) or "path not read", tuple(found)) for way, found in boxes.items()),
        )
        for node, boxes in sorted(tree.items())
    )


def _chip(device: PciDevice, gpus: Mapping[str, str]) -> Chip:
    known = gpus.get(device.bus_id) or ", ".join((*device.verbs, *device.netdevs))
    kind = {"gpu": "GPU", "nic": "NIC", "nvswitch": "NVSwitch"}.get(device.kind, device.kind)
    name = known if known.startswith(kind) else f"{kind} {known}".strip()
    lanes, possible = device.link_width or "", device.link_width_max or ""
    narrow = lanes.isdecimal() and possible.isdecimal() and int(lanes) < int(possible)
    width = f"x{lanes} of x{possible}" if narrow else f"x{lanes}" if lanes.isdecimal() else ""
    detail = " ".join(part for part in (device.bus_id, width) if part)
    return Chip(device.kind, name, detail, narrow)
