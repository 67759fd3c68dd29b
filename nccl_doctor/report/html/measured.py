"""What was measured, prepared for the page: heatmaps of host pairs, the drift table, topologies. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from nccl_doctor.facts.mesh import Links, PathMtu, Throughput
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_paths import to_network, uneven
from nccl_doctor.report.fold import fold
from nccl_doctor.rules.engine import reached
from nccl_doctor.rules.localise import Pair
from nccl_doctor.rules.software import drift_table

SQUARE_UP_TO = 48  # hosts: beyond this a square of cells is neither readable nor small; the worst pairs are listed
WORST_SHOWN = 40


class Heatmap(msgspec.Struct, frozen=True):
    """One quantity between hosts. ``cells`` (row by row: text, shade 0..1 of how bad) or, for many hosts, ``worst``."""

    title: str
    unit: str
    hosts: tuple[str, ...]
    cells: tuple[tuple[tuple[str, float] | None, ...], ...]
    worst: tuple[tuple[str, str, str], ...]
    summary: str


class DriftLine(msgspec.Struct, frozen=True):
    """One subject of the drift table: (value, hosts, is odd)."""

    subject: str
    values: tuple[tuple[str, str, bool], ...]


class Box(msgspec.Struct, frozen=True):
    """A PCIe switch or root port and the devices behind it."""

    name: str
    devices: tuple[tuple[str, str], ...]  # (kind, name)


class Node(msgspec.Struct, frozen=True):
    """A NUMA node with its switches."""

    name: str
    boxes: tuple[Box, ...]


class Topology(msgspec.Struct, frozen=True):
    """One kind of host: who looks like this, the drawing, the matrix (rows of (text, kind)), and words."""

    hosts: str
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    words: tuple[str, ...]


def heatmaps(bundle: Bundle) -> list[Heatmap]:
    """Round trip, TCP throughput and path MTU between hosts, as far as they were measured."""
    trips: dict[Pair, float] = {}
    rates: dict[Pair, float] = {}
    sizes: dict[Pair, float] = {}
    for host in reached(bundle):
        links, flows, paths = host.want(Links), host.want(Throughput), host.want(PathMtu)
        for link in links.links if links else ():
            if link.rtt_p50_ms is not None:
                trips[(host.name, link.peer)] = link.rtt_p50_ms
        for flow in flows.flows if flows else ():
            if flow.outcome == "ok" and flow.rate > 0:
                rates[(host.name, flow.peer)] = flow.rate * 8 / 1e9
        for path in paths.paths if paths else ():
            if path.largest_passed:
                sizes[(host.name, path.peer)] = float(path.largest_passed)
    return [
        made
        for made in (
            _heatmap("Round trip of small messages, median", "ms", trips, lambda value, usual: value / usual),
            _heatmap("TCP throughput, one stream", "Gbit/s", rates, lambda value, usual: usual / value),
            _heatmap("Largest packet that passes", "B", sizes, lambda value, usual: usual / value),
        )
        if made is not None
    ]


def _heatmap(
    title: str, unit: str, values: Mapping[Pair, float], badness: Callable[[float, float], float]
) -> Heatmap | None:
    if not values:
        return None
    ordered = sorted(values.values())
    usual = ordered[len(ordered) // 2]
    # Equal to the median is 0; ten times as bad, and worse, is 1.
    shade = {pair: min(1.0, max(0.0, math.log10(max(badness(value, usual), 1e-9)))) for pair, value in values.items()}
    hosts = tuple(sorted({name for pair in values for name in pair}))
    spread = f"from {_number(ordered[0])} to {_number(ordered[-1])} {unit}, median {_number(usual)} {unit}"
    summary = f"{len(values)} directed pairs: {spread}"
    if len(hosts) <= SQUARE_UP_TO:
        cells = tuple(
            tuple(
                (_number(values[(one, other)]), round(shade[(one, other)], 2)) if (one, other) in values else None
                for other in hosts
            )
            for one in hosts
        )
        return Heatmap(title, unit, hosts, cells, (), summary)
    worst = sorted(values, key=lambda pair: (-shade[pair], pair))[:WORST_SHOWN]
    return Heatmap(
        title, unit, (), (), tuple((one, other, _number(values[(one, other)])) for one, other in worst), summary
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def drift(bundle: Bundle) -> list[DriftLine]:
    """The software table, folded: subjects that differ first."""
    every = {host.name: fact for host in reached(bundle) if (fact := host.want(Software)) is not None}
    rows = sorted(drift_table(every), key=lambda row: row.equal)
    return [
        DriftLine(
            row.subject,
            tuple(
                (value or "none", fold(hosts), bool(set(hosts) & set(row.odd)) or row.tie)
                for value, hosts in row.values
            ),
        )
        for row in rows
    ]


def topologies(bundle: Bundle) -> list[Topology]:
    """The different topologies of the fleet, each with the hosts that have it."""
    groups: dict[tuple[str, tuple[PciDevice, ...]], list[str]] = {}
    for host in reached(bundle):
        fact = host.want(TopologyFact)
        if fact is not None and (fact.matrix.text or fact.devices):
            groups.setdefault((fact.matrix.text, fact.devices), []).append(host.name)
    return [
        _topology(hosts, text, devices) for (text, devices), hosts in sorted(groups.items(), key=lambda item: item[1])
    ]


def _topology(hosts: list[str], text: str, devices: tuple[PciDevice, ...]) -> Topology:
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
    return Topology(fold(hosts), _nodes(devices), names, rows, tuple(words))


def _matrix_cell(a: str, b: str, kind: str) -> tuple[str, str]:
    if a == b:
        return "", "self"
    return kind or "?", "nv" if kind.startswith("NV") else kind.lower() or "cut"


def _nodes(devices: tuple[PciDevice, ...]) -> tuple[Node, ...]:
    """NUMA node -> first PCI bridge on the way down -> devices behind it."""
    tree: dict[int, dict[str, list[tuple[str, str]]]] = {}
    for device in devices:
        node = -1 if device.numa_node is None else device.numa_node
        root = device.path[0] if device.path else device.bus_id
        name = ", ".join((*device.verbs, *device.netdevs)) or device.bus_id
        tree.setdefault(node, {}).setdefault(root, []).append((device.kind, name))
    return tuple(
        Node(
            f"NUMA node {node}" if node >= 0 else "NUMA node unknown",
            tuple(Box(root, tuple(found)) for root, found in boxes.items()),
        )
        for node, boxes in sorted(tree.items())
    )
