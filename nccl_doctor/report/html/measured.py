"""What was measured, prepared for the page: heatmaps of host pairs, the drift table, topologies. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.verdict import rate, together
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.mesh import Links, PathMtu, Throughput
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.topology import PciDevice, TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_paths import to_network, uneven
from nccl_doctor.report.safe_text import moment
from nccl_doctor.rules.collective_rates import pair_rates
from nccl_doctor.rules.drift import DriftRow
from nccl_doctor.rules.engine import Host, facts_of, reached
from nccl_doctor.rules.hardware_table import hardware_table
from nccl_doctor.rules.localise import Pair
from nccl_doctor.rules.software_drift import drift_table

SQUARE_UP_TO = 48  # hosts: beyond this a square of cells is neither readable nor small; the worst pairs are listed
WORST_SHOWN = 40
VALUES_SHOWN = 20  # of one subject of the drift table
TOPOLOGIES_SHOWN = 16  # a drawing takes 11 kB
REDDER = "the redder, the worse than the median"
EVEN_BELOW = 0.1  # shade: all pairs within a factor of 1.26 of the median


class Heatmap(msgspec.Struct, frozen=True):
    """One quantity between hosts. ``cells`` (row by row: text, shade 0..1 of how bad) or, for many hosts, ``worst``.

    ``ways`` says what rows, columns and colours are.
    """

    title: str
    unit: str
    hosts: tuple[str, ...]
    cells: tuple[tuple[tuple[str, float] | None, ...], ...]
    worst: tuple[tuple[str, str, str], ...]
    summary: str
    even: bool  # nothing to look for
    ways: str


class DriftLine(msgspec.Struct, frozen=True):
    """One subject of the drift table: (value, hosts, is odd)."""

    subject: str
    values: tuple[tuple[str, str, bool], ...]


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


class Curves(msgspec.Struct, frozen=True):
    """One bench run in words: its name, what it was, and (kind, sentence) of its verdicts."""

    label: str
    run: str
    verdicts: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str, str, str], ...]  # (collective, size, now, baseline, words)


def heatmaps(bundle: Bundle, runs: Sequence[tuple[str, Outcome]] = ()) -> list[Heatmap]:
    """Round trip, TCP throughput, path MTU and the collectives' exchange between hosts, as far as they were measured."""
    trips: dict[Pair, float] = {}
    rates: dict[Pair, float] = {}
    sizes: dict[Pair, float] = {}
    short: set[Pair] = set()
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
                if path.outcome != "ok":
                    short.add((host.name, path.peer))
    # A path that takes less than its interface sends is broken, be it by a few bytes or on all pairs alike.
    broken = {pair: float(pair in short) for pair in sizes}
    ways = "Rows send, columns receive"
    plain = [
        _heatmap("Round trip of small messages, median", "ms", trips, _shades(trips, 1), f"{ways}; {REDDER}"),
        _heatmap("TCP throughput, one stream", "Gbit/s", rates, _shades(rates, -1), f"{ways}; {REDDER}"),
        _heatmap("Largest packet that passes", "B", sizes, broken, f"{ways}; red: less than the interface sends"),
    ]
    return [made for made in plain if made is not None] + _exchanges(bundle, runs)


def _exchanges(bundle: Bundle, runs: Sequence[tuple[str, Outcome]]) -> list[Heatmap]:
    """What pairs of hosts exchanged within the collectives: over NCCL's network where the ranks used NCCL, else Gloo's."""
    facts = facts_of(reached(bundle), Collectives)
    backend = next((fact.backend for fact in facts.values() if fact.backend), "")
    measured = [(f"Exchange of host pairs over {backend or 'the collectives'}", pair_rates(facts))]
    for label, run in runs:
        host_of = {rank.rank: rank.host for rank in run.results.ranks}
        known = [link for link in run.results.links if link.first in host_of and link.second in host_of]
        rates = {(host_of[link.first], host_of[link.second]): link.gbs for link in known}
        measured.append((f"Exchange of host pairs over {run.world.backend}, {label}", rates))
    ways = f"Both send and receive at the same time; the rate of one way; {REDDER}"
    made = [_heatmap(title, "GB/s", rates, _shades(rates, -1), ways, both_ways=True) for title, rates in measured]
    return [one for one in made if one is not None]


def _shades(values: Mapping[Pair, float], sign: int) -> dict[Pair, float]:
    """How bad each value is: as the median is 0; ten times as bad, and worse, is 1. ``sign``: 1 where more is worse, else -1."""
    if not values:
        return {}
    usual = max(_usual(values), 1e-9)
    return {pair: min(1.0, max(0.0, sign * math.log10(max(value, 1e-9) / usual))) for pair, value in values.items()}


def _usual(values: Mapping[Pair, float]) -> float:
    return sorted(values.values())[len(values) // 2]


def _heatmap(
    title: str,
    unit: str,
    values: Mapping[Pair, float],
    shade: Mapping[Pair, float],
    ways: str,
    both_ways: bool = False,
) -> Heatmap | None:
    if not values:
        return None
    count = counted(len(values), "pair" if both_ways else "directed pair")
    hosts = tuple(sorted({name for pair in values for name in pair}))
    least, most = _number(min(values.values())), _number(max(values.values()))
    summary = f"{count}: from {least} to {most} {unit}, median {_number(_usual(values))} {unit}"
    even = max(shade.values()) < EVEN_BELOW
    if len(hosts) <= SQUARE_UP_TO:
        if both_ways:
            values = {**values, **{(other, one): value for (one, other), value in values.items()}}
            shade = {**shade, **{(other, one): bad for (one, other), bad in shade.items()}}
        cells = tuple(
            tuple(
                (_number(values[(one, other)]), round(shade[(one, other)], 2)) if (one, other) in values else None
                for other in hosts
            )
            for one in hosts
        )
        return Heatmap(title, unit, hosts, cells, (), summary, even, ways)
    worst = sorted(values, key=lambda pair: (-shade[pair], pair))[:WORST_SHOWN]
    listed = tuple((one, other, _number(values[(one, other)])) for one, other in worst)
    return Heatmap(title, unit, (), (), listed, summary, even, ways)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def drift(bundle: Bundle) -> list[DriftLine]:
    """The tables of hardware and software, folded: subjects that differ first, of each its commonest values."""
    hosts = reached(bundle)
    every = facts_of(hosts, Software)
    rows = [*hardware_table(hosts, bundle.plan), *drift_table(every)]
    rows = sorted(rows, key=lambda row: row.equal)
    return [_drift_line(row) for row in rows]


def _drift_line(row: DriftRow) -> DriftLine:
    values = [
        (value or "none", fold(hosts), not row.equal and (row.tie or value != row.majority))
        for value, hosts in row.values[:VALUES_SHOWN]
    ]
    if rest := row.values[VALUES_SHOWN:]:
        values.append((f"{len(rest)} more values", fold(host for _, hosts in rest for host in hosts), True))
    return DriftLine(row.subject, tuple(values))


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


def curves(runs: Sequence[tuple[str, Outcome]]) -> list[Curves]:
    """What the runs amount to, beneath their plot."""
    return [_curves(label, run) for label, run in runs]


def _curves(label: str, run: Outcome) -> Curves:
    ceiling = (
        f"; {run.ceiling.name} {rate(run.ceiling.gbs)}: {run.ceiling.words}" if run.ceiling else "; no ceiling is known"
    )
    told = f"{moment(run.created)}, {run.world.size} ranks, {run.world.backend}, {run.path.words}{ceiling}"
    changes = tuple(
        (item.collective, format_size(item.size), rate(item.now_gbs), rate(item.before_gbs), item.words)
        for item in run.changes
    )
    return Curves(label, told, tuple(together(run.verdicts, run.ceiling)), changes)
