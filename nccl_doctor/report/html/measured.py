"""What was measured between hosts, prepared for the page: heatmaps of host pairs, and what bench runs amount to. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.verdict import SizeChange, rate, together
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.mesh import Links, PathMtu, Throughput
from nccl_doctor.facts.model import Bundle
from nccl_doctor.report.safe_text import moment
from nccl_doctor.rules.collective_rates import pair_rates
from nccl_doctor.rules.engine import facts_of, reached
from nccl_doctor.rules.localise import Pair

SQUARE_UP_TO = 48  # hosts: beyond this a square of cells is neither readable nor small; the worst pairs are listed
WORST_SHOWN = 40
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


def curves(runs: Sequence[tuple[str, Outcome]]) -> list[Curves]:
    """What the runs amount to, beneath their plot."""
    return [
        Curves(label, _told(run), tuple(together(run.verdicts, run.ceiling)), tuple(map(_change, run.changes)))
        for label, run in runs
    ]


def _told(run: Outcome) -> str:
    ceiling = (
        f"{run.ceiling.name} {rate(run.ceiling.gbs)}: {run.ceiling.words}" if run.ceiling else "no ceiling is known"
    )
    return f"{moment(run.created)}, {run.world.size} ranks, {run.world.backend}, {run.path.words}; {ceiling}"


def _change(item: SizeChange) -> tuple[str, str, str, str, str]:
    return item.collective, format_size(item.size), rate(item.now_gbs), rate(item.before_gbs), item.words
