"""Good, slow, or cannot judge: one answer per collective, against what, and how sure.

Order of authority: wrong results, the user's ``--min-busbw``, the user's baseline, the table of published numbers.
Never "good" without a proved path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from nccl_doctor.agent.collective.operations import OPERATIONS
from nccl_doctor.bench import expected
from nccl_doctor.bench.ceiling import Ceiling
from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.model import Measurement, Results
from nccl_doctor.bench.path import Path
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import Comparison, compare, percent
from nccl_doctor.bench.world import Prepared, World
from nccl_doctor.facts.fold import counted
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding

Kind = Literal["good", "slow", "cannot-judge", "wrong"]

ENOUGH = 0.90  # of the lowest number that others measured on such machines
SLOWER = 0.05  # relative change against a baseline below which nobody should be woken
SLOWER_SIZES = 0.25  # of the sizes: more than chance puts beyond their margins


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on one collective. ``against`` says what it was compared with, ``text`` is the whole sentence."""

    collective: str
    kind: Kind
    text: str
    against: str = ""
    peak_gbs: float = 0.0
    size: int = 0


class SizeChange(msgspec.Struct, frozen=True):
    """One size against the baseline."""

    collective: str
    mode: str
    size: int
    now_gbs: float
    before_gbs: float
    comparison: Comparison

    @property
    def words(self) -> str:
        """``slower by 12 % +- 3 %`` or ``cannot tell: cv 30 %``."""
        return change_words(self.comparison)


def change_words(comparison: Comparison) -> str:
    """A comparison in words; never a bare number where the noise does not allow one."""
    change, margin = abs(comparison.change) * 100, comparison.margin * 100
    if not comparison.decided:
        return f"cannot tell: {comparison.doubt or f'cv {percent(comparison.noise)}'}"
    if abs(comparison.change) <= comparison.margin:
        return f"same (within {margin:.0f} %)"
    return f"{'slower' if comparison.change < 0 else 'faster'} by {change:.0f} % +- {margin:.0f} %"


def peak(measurements: Iterable[Measurement]) -> Measurement | None:
    """The measurement that is judged: the largest size, in the way that torch does natively."""
    return max(measurements, key=_weight, default=None)


def _weight(item: Measurement | SizeChange) -> tuple[int, bool]:
    """Of the largest size the native way: "out of place" can be a copy and the in-place call, which takes longer."""
    return item.size, item.mode == OPERATIONS[item.collective].modes[0]


def changes(now: Iterable[Measurement], before: Iterable[Measurement]) -> tuple[SizeChange, ...]:
    """All sizes that both runs have."""
    old = {(item.collective, item.mode, item.size): item for item in before}
    found = []
    for item in now:
        past = old.get((item.collective, item.mode, item.size))
        if past is not None:
            comparison = compare(item.spread, past.spread)
            found.append(SizeChange(item.collective, item.mode, item.size, item.busbw_gbs, past.busbw_gbs, comparison))
    return tuple(found)


class Ground(msgspec.Struct, frozen=True):
    """Everything a verdict is made from."""

    results: Results
    world: World
    path: Path
    ceiling: Ceiling | None
    prepared: Mapping[str, Prepared]
    min_busbw: float = 0.0
    baseline: tuple[Measurement, ...] | None = None
    baseline_trouble: str = ""  # why the baseline is of another kind of run
    largest: int = 0  # bytes of the largest size that was asked for


def verdicts(ground: Ground, collectives: Iterable[str]) -> tuple[Verdict, ...]:
    """One verdict per collective, in order."""
    return tuple(_one(ground, name) for name in collectives if name in COLLECTIVES)


def _one(ground: Ground, name: str) -> Verdict:
    own = [item for item in ground.results.measurements if item.collective == name]
    best = peak(own)
    if best is None:
        return Verdict(name, "cannot-judge", "nothing was measured")
    wrong = sum(item.wrong or 0 for item in own)
    if wrong:
        return Verdict(name, "wrong", f"{wrong} wrong elements: the numbers mean nothing", size=best.size)
    said = f"{rate(best.busbw_gbs)} at {format_size(best.size)}"

    def verdict(kind: Kind, text: str, against: str = "") -> Verdict:
        return Verdict(name, kind, text, against, best.busbw_gbs, best.size)

    if ground.world.size < 2:
        return verdict("cannot-judge", f"{said}; one rank alone communicates with nobody")
    share = ""
    if ground.ceiling:
        share = (
            f", {percent(best.busbw_gbs / ground.ceiling.gbs)} of {rate(ground.ceiling.gbs)}{_binds(ground.ceiling)}"
        )
    if ground.min_busbw and best.busbw_gbs < ground.min_busbw:
        if best.asked < ground.largest:
            less = f"less than the {rate(ground.min_busbw)} of --min-busbw"
            return verdict("cannot-judge", f"{said}{share}; {less}, but {format_size(ground.largest)} was not measured")
        return verdict("slow", f"{said}{share}; --min-busbw asks for {rate(ground.min_busbw)}", "--min-busbw")
    if not ground.path.proved:
        return verdict("cannot-judge", f"{said}; the path is not proved: {'; '.join(ground.path.unproved)}")
    if ground.baseline is not None:
        return _by_baseline(ground, name, own, said, share, verdict)
    if ground.min_busbw:
        return verdict("good", f"{said}{share}; at least the {rate(ground.min_busbw)} asked for", "--min-busbw")
    return _by_table(ground, best, said, share, verdict)


def _by_baseline(
    ground: Ground, name: str, own: list[Measurement], said: str, share: str, verdict: Callable[..., Verdict]
) -> Verdict:
    if ground.baseline_trouble:
        return verdict("cannot-judge", f"{said}{share}; the baseline does not fit: {ground.baseline_trouble}")
    found = changes(own, ground.baseline or ())
    if not found:
        there = sorted({item.collective for item in ground.baseline or ()})
        lacks = (
            f"none of these sizes of {name}"
            if name in there
            else f"no {name}" + (f", only {', '.join(there)}" if there else "")
        )
        return verdict("cannot-judge", f"{said}{share}; the baseline has {lacks}")
    largest = max(found, key=_weight)
    slower = [item for item in found if _is_slower(item.comparison)]
    # Of many equal sizes chance puts one beyond its own margin: alone it counts as the largest, or beyond the wider one.
    sure = [item for item in slower if item is largest or _is_slower(item.comparison, len(found))]
    undecided = [item for item in found if not item.comparison.decided]
    at = f"{largest.words} at {format_size(largest.size)}"
    if sure or len(slower) > SLOWER_SIZES * len(found):
        worst = min(slower, key=lambda item: item.comparison.change)
        text = f"{said}{share}; {worst.words} than the baseline at {format_size(worst.size)}"
        return verdict("slow", f"{text} ({len(slower)} of {len(found)} sizes slower)", "baseline")
    if len(undecided) * 2 > len(found) or not largest.comparison.decided:
        many = f"; cannot tell at {len(undecided)} of {counted(len(found), 'size')}" if len(undecided) > 1 else ""
        return verdict("cannot-judge", f"{said}{share}; against the baseline: {at}{many}", "baseline")
    return verdict("good", f"{said}{share}; against the baseline: {at}", "baseline")


def _is_slower(comparison: Comparison, tried: int = 1) -> bool:
    return comparison.decided and comparison.change < -max(SLOWER, comparison.margin_of(tried))


def _by_table(ground: Ground, best: Measurement, said: str, share: str, verdict: Callable[..., Verdict]) -> Verdict:
    fabric = fabric_of(ground.world, ground.path)
    if fabric == "nvlink" and not (ground.prepared and all(host.nvlinks for host in ground.prepared.values())):
        fabric = ""  # peer access over PCIe looks the same in NCCL's log
    names = {record.device_name for record in ground.results.ranks if record.device_name}
    per_host = set(ground.world.per_host.values())
    if ground.world.backend != "nccl":
        return verdict(
            "cannot-judge",
            f"{said}{share}; nobody publishes numbers for gloo on such hosts; compare runs kept with --save "
            "by --baseline, or give --min-busbw",
        )
    found: tuple[expected.Expected, ...] = ()
    if len(names) == 1 and len(per_host) == 1 and fabric:
        hosts = len(ground.world.per_host)
        found = expected.find(next(iter(names)), fabric, hosts, next(iter(per_host)), best.collective, best.size)
    if not found:
        kind = (
            f"{len(ground.world.per_host)} host(s) x {'/'.join(map(str, sorted(per_host)))} {', '.join(sorted(names))}"
        )
        kind += f" over {fabric}" if fabric else ""
        return verdict(
            "cannot-judge",
            f"{said}{share}; no published number for {best.collective} on {kind} at this size: "
            "use --baseline or --min-busbw",
        )
    low, high = min(item.value for item in found), max(item.value for item in found)
    range_ = f"{low:g}" if low == high else f"{low:g}-{high:g}"
    sources = f"{len({item.source for item in found})} source(s): {'; '.join(sorted({item.source for item in found}))}"
    against = f"expected {range_} GB/s ({sources})"
    if best.spread.doubt:
        return verdict("cannot-judge", f"{said}; cannot tell: {best.spread.doubt}; {against}", "table")
    if best.busbw_gbs >= ENOUGH * low:
        return verdict("good", f"{said}{share}; {against}", "table")
    below = (1 - best.busbw_gbs / low) * 100
    return verdict("slow", f"{said}, {below:.0f} % below what others measured{share}; {against}", "table")


def fabric_of(world: World, path: Path) -> str:
    """The fabric class of the expectation table, from the proved path; empty if it is none of the table's."""
    if path.nccl is None:
        return ""
    names = path.nccl.transports
    if len(world.per_host) == 1:
        return "nvlink" if names and all(name.startswith("P2P") for name in names) else ""
    if any(name == "P2P/MNNVL" for name in names):
        return "mnnvl"
    nets = [name for name in names if name.startswith("NET/")]
    if nets == ["NET/IB"]:
        links = {hca.rsplit("/", 1)[-1] for hcas in path.nccl.hcas.values() for hca in hcas}
        return {"IB": "ib", "RoCE": "roce"}.get(next(iter(links), ""), "") if len(links) == 1 else ""
    if len(nets) == 1 and "Libfabric" in nets[0]:
        return "efa"
    if len(nets) == 1 and "FasTrak" in nets[0]:
        return "tcpxo"
    return ""


def rate(gbs: float) -> str:
    """A bandwidth with three digits and its unit."""
    if gbs >= 0.09995:
        return f"{gbs:.3g} GB/s" if gbs < 999.5 else f"{gbs:.0f} GB/s"
    return f"{gbs * 1e3:.3g} MB/s"


_THIRD = Fix("two hosts cannot tell which of them is slow: run again with a third")


def _binds(ceiling: Ceiling) -> str:
    return f" ({ceiling.words})"


def together(verdicts: Iterable[Verdict], ceiling: Ceiling | None) -> Iterator[tuple[Kind, str]]:
    """What the verdicts say; what is said of several collectives in the same words is said once, behind them, and the
    link that binds them with the first."""
    groups: dict[tuple[Kind, str], dict[str, list[str]]] = {}
    for item in verdicts:
        said, _, why = item.text.partition("; ")
        each = groups.setdefault((item.kind, why), {})
        each.setdefault(said.replace(_binds(ceiling), "") if each and ceiling else said, []).append(item.collective)
    for (kind, why), each in groups.items():
        yield kind, "; ".join([*(f"{', '.join(names)}: {said}" for said, names in each.items()), *filter(None, [why])])


def verdict_findings(found: Iterable[Verdict], hosts: tuple[str, ...]) -> tuple[Finding, ...]:
    """Slow collectives as findings."""
    return tuple(
        finding(
            "bench.slow",
            Severity.WARN,
            f"{item.collective} is slow",
            Evidence(item.text, source="measurement"),
            hosts=hosts,
            fixes=[_THIRD] if len(hosts) == 2 else [],
            confidence=0.9,
        )
        for item in found
        if item.kind == "slow"
    )
