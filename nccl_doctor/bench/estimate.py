"""What communication costs a step of training on so many GPUs: volumes, times, shares, efficiency. Pure.

Ranges reach from *hidden*, where all communication runs beside the computation as far as there is room, at the best rates
that are known, to *bare*, where nothing does, at the worst. How much is hidden is taken to be alike on any number of GPUs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from nccl_doctor.bench.parallelism import Model, Volume, Way, volumes
from nccl_doctor.bench.rates import Machines, NoRate, Rate, rate

SCHEMA = "nccl-doctor/estimate/1"
MOST_SHARE = 0.20  # of the step that waits for communication
LEAST_EFFICIENCY = 0.80

Met = Literal["met", "missed", "cannot-tell"]


class Range(msgspec.Struct, frozen=True):
    """From the lowest to the highest that it can be."""

    low: float
    high: float


class Step(msgspec.Struct, frozen=True):
    """A step that somebody measured."""

    seconds: float
    gpus: int


class Question(msgspec.Struct, frozen=True):
    """What is asked. From the first of ``steps`` the others are reckoned."""

    way: str
    model: Model
    gpus: tuple[int, ...]
    gpus_per_host: int
    steps: tuple[Step, ...] = ()
    strong: bool = False  # the work of a step is divided among the GPUs; else each GPU's work stays the same


class Cost(msgspec.Struct, frozen=True):
    """One collective in one step on so many GPUs: bytes that each GPU sends (in a ring), and seconds; ``window``: the share of
    the step's computation that it can run beside."""

    collective: str
    what: str
    calls: int
    call_bytes: float
    sent_bytes: float
    seconds: Range
    rate: Rate
    window: float


class Measured(msgspec.Struct, frozen=True):
    """A measured step beside the estimate. ``off`` is the relative distance to the estimate's nearer end
    (0: within it; 0.2: a fifth longer than its longest)."""

    seconds: float
    off: float


class Needs(msgspec.Struct, frozen=True):
    """The bus bandwidth (GB/s, of all collectives together) from which both targets are met, with everything hidden that
    can be and with nothing hidden; None where none is enough."""

    hidden: float | None
    bare: float | None


class Row(msgspec.Struct, frozen=True):
    """One number of GPUs. Shares and efficiencies are fractions; None: not known, and ``trouble`` says why. ``needs`` None:
    the targets are met, or nothing is known."""

    gpus: int
    hosts: int
    costs: tuple[Cost, ...] = ()
    communication: Range | None = None
    step: Range | None = None
    share: Range | None = None
    efficiency: Range | None = None
    share_met: Met = "cannot-tell"
    efficiency_met: Met = "cannot-tell"
    busbw: Range | None = None  # of all collectives together
    needs: Needs | None = None
    measured: Measured | None = None
    trouble: str = ""

    @property
    def met(self) -> Met:
        """Both targets together."""
        both = {self.share_met, self.efficiency_met}
        return "missed" if "missed" in both else "met" if both == {"met"} else "cannot-tell"


class Estimate(msgspec.Struct, frozen=True):
    """The document. Bytes, seconds, GB/s (1e9 bytes); latencies in microseconds."""

    schema: str
    tool: str
    question: Question
    source: str  # of what is said of this way of parallelism
    note: str  # what is to be known of it
    rows: tuple[Row, ...]
    trouble: str = ""  # why no share or efficiency could be told


@dataclasses.dataclass(frozen=True)
class _Part:
    """One collective's calls in a step: seconds of latency and of transfer, and the share of the computation beside which
    they may run."""

    latency_s: float
    transfer_s: float
    window: float

    def seconds(self, faster: float = 1.0) -> float:
        """With a bus bandwidth ``faster`` times as high."""
        return self.latency_s + self.transfer_s / faster


@dataclasses.dataclass(frozen=True)
class _Bound:
    """One way in which it may be: ``parts`` of a step by the number of GPUs, and the step measured on ``base`` GPUs."""

    parts: Mapping[int, tuple[_Part, ...]]
    base: int
    base_s: float
    smallest: int
    strong: bool

    def _split(self, gpus: int, faster: float) -> tuple[float, list[tuple[float, float]]]:
        """Seconds that nothing can hide, and [seconds, window] of what can be hidden."""
        all_parts = [(part.seconds(faster), part.window) for part in self.parts[gpus]]
        return sum(seconds for seconds, window in all_parts if not window), [item for item in all_parts if item[1]]

    def compute_s(self, gpus: int) -> float:
        """The computation in a step: the most that the measured one leaves. Below 0: it leaves none."""
        never, rest = self._split(self.base, 1.0)
        left = self.base_s - never
        if sum(seconds for seconds, _ in rest) > left * (1 + 1e-9):
            return -1.0
        # What runs beside a share of the computation makes a step of (1 - share) * computation + its own seconds.
        limits = [(left - seconds) / (1 - window) for seconds, window in rest if window < 1]
        return min([left, *limits]) * (self.base / gpus if self.strong else 1.0)

    def waits_s(self, gpus: int, faster: float = 1.0) -> float:
        """Seconds of a step in which the GPU waits for communication."""
        never, rest = self._split(gpus, faster)
        compute = self.compute_s(gpus)
        over = [seconds - window * compute for seconds, window in rest]
        return never + max(0.0, sum(seconds for seconds, _ in rest) - compute, *over)

    def step_s(self, gpus: int, faster: float = 1.0) -> float:
        """A whole step."""
        return self.compute_s(gpus) + self.waits_s(gpus, faster)

    def share(self, gpus: int, faster: float = 1.0) -> float:
        """The share of a step in which the GPU waits for communication."""
        return self.waits_s(gpus, faster) / self.step_s(gpus, faster)

    def efficiency(self, gpus: int, faster: float = 1.0) -> float:
        """Work per GPU and second against the smallest number of GPUs."""
        if gpus == self.smallest:
            return 1.0
        ratio = self.step_s(self.smallest) / self.step_s(gpus, faster)
        return ratio * (self.smallest / gpus if self.strong else 1.0)

    def needs(self, gpus: int) -> float | None:
        """How many times the bus bandwidth it takes to meet both targets; None where none is enough."""

        def enough(faster: float) -> bool:
            return self.share(gpus, faster) <= MOST_SHARE and self.efficiency(gpus, faster) >= LEAST_EFFICIENCY

        low, high = 1e-6, 1e6
        if not enough(high):
            return None
        for _ in range(60):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def _part(cost: Cost, best: bool, hidden: bool) -> _Part:
    figures = cost.rate
    latency_us = figures.latency_low_us if best else figures.latency_high_us
    busbw = figures.busbw_high if best else figures.busbw_low
    return _Part(cost.calls * latency_us / 1e6, cost.sent_bytes / (busbw * 1e9), cost.window if hidden else 0.0)


def estimate(question: Question, way: Way, machines: Machines, tool: str) -> Estimate:
    """The whole answer."""
    sends = volumes(way, question.model)
    costs: dict[int, tuple[Cost, ...]] = {}
    missing: dict[int, str] = {}
    for gpus in {*question.gpus, *(step.gpus for step in question.steps)}:
        found = _costs(sends, machines, gpus)
        if isinstance(found, str):
            missing[gpus] = found
        else:
            costs[gpus] = found
    smallest = min((gpus for gpus in question.gpus if gpus in costs), default=0)
    bounds, trouble = _bounds(question, costs, missing, smallest)
    rows = []
    for gpus in question.gpus:
        if gpus in missing:
            rows.append(Row(gpus, machines.hosts(gpus), trouble=missing[gpus]))
        else:
            row = _communication(machines, gpus, costs[gpus])
            rows.append(_judged(row, bounds, question) if bounds else row)
    return Estimate(SCHEMA, tool, question, way.source, way.note, tuple(rows), trouble)


def _costs(sends: Sequence[Volume], machines: Machines, gpus: int) -> tuple[Cost, ...] | str:
    """The collectives of a step; a string where one's rate is not known. One GPU sends nothing."""
    found: list[Cost] = []
    lacks: list[NoRate] = []
    for item in sends if gpus > 1 else ():
        figures = rate(machines, item.collective, gpus, item.call_bytes)
        if isinstance(figures, NoRate):
            lacks.append(figures)
            continue
        cost = Cost(
            item.collective, item.what, item.calls, item.call_bytes, item.sent(gpus), Range(0, 0), figures, item.window
        )
        seconds = Range(_part(cost, True, False).seconds(), _part(cost, False, False).seconds())
        found.append(msgspec.structs.replace(cost, seconds=seconds))
    if not lacks:
        return tuple(found)
    names = " and ".join(item.collective for item in lacks)
    told = f"nothing says how fast {names} {'are' if len(lacks) > 1 else 'is'} {lacks[0].where}"
    return "; ".join(dict.fromkeys([told, *(why for item in lacks for why in item.misfits)]))


def _bounds(
    question: Question, costs: Mapping[int, tuple[Cost, ...]], missing: Mapping[int, str], smallest: int
) -> tuple[tuple[_Bound, ...], str]:
    """The bounds: hidden at the best rates; bare at the worst; and bare with the best where the comparison starts. None,
    with the reason, where steps cannot be reckoned."""
    if not question.steps:
        return (), ""
    first = question.steps[0]
    told = f"the step of {first.seconds:g} s on {first.gpus} GPUs"
    if first.gpus in missing:
        return (), f"what part of {told} is communication is not known: {missing[first.gpus]}"

    def bound(hidden: bool, best_on: Iterable[int]) -> _Bound:
        parts = {gpus: tuple(_part(cost, gpus in best_on, hidden) for cost in of) for gpus, of in costs.items()}
        if not hidden:  # what takes longer than the measured step cannot be so
            own = sum(part.seconds() for part in parts[first.gpus])
            least = min(1.0, first.seconds / own) if own else 1.0
            parts[first.gpus] = tuple(
                _Part(part.latency_s * least, part.transfer_s * least, 0.0) for part in parts[first.gpus]
            )
        return _Bound(parts, first.gpus, first.seconds, smallest, question.strong)

    best = bound(True, costs)
    if best.compute_s(first.gpus) <= 0:
        least = sum(cost.seconds.low for cost in costs[first.gpus])
        takes = f"{least:.3g}" if least < 999.5 else f"{least:.0f}"
        return (), f"{told} is too short for its communication, which takes {takes} s at least by these rates"
    return (best, bound(False, ()), bound(False, {first.gpus, smallest})), ""


def _communication(machines: Machines, gpus: int, costs: tuple[Cost, ...]) -> Row:
    row = Row(gpus, machines.hosts(gpus), costs, Range(0.0, 0.0))
    if not costs:
        return row
    sent = sum(cost.sent_bytes for cost in costs)
    return msgspec.structs.replace(
        row,
        communication=Range(sum(cost.seconds.low for cost in costs), sum(cost.seconds.high for cost in costs)),
        busbw=Range(
            sent / sum(cost.sent_bytes / cost.rate.busbw_low for cost in costs),
            sent / sum(cost.sent_bytes / cost.rate.busbw_high for cost in costs),
        ),
    )


def _judged(row: Row, bounds: Sequence[_Bound], question: Question) -> Row:
    """The row with its steps, shares and targets."""
    hidden, *bare = bounds
    gpus = row.gpus
    step = _range(bound.step_s(gpus) for bound in bounds)
    share = _range(bound.share(gpus) for bound in bounds)
    efficiency = _range(bound.efficiency(gpus) for bound in bounds)
    row = msgspec.structs.replace(
        row,
        step=step,
        share=share,
        efficiency=efficiency,
        share_met=_met(share.high <= MOST_SHARE, share.low > MOST_SHARE),
        efficiency_met=_met(efficiency.low >= LEAST_EFFICIENCY, efficiency.high < LEAST_EFFICIENCY),
        measured=next((_measured(step, item.seconds) for item in question.steps[1:] if item.gpus == gpus), None),
    )
    if row.met == "met" or row.busbw is None:
        return row
    times_hidden, times_bare = hidden.needs(gpus), [bound.needs(gpus) for bound in bare]
    needs = Needs(
        None if times_hidden is None else times_hidden * row.busbw.high,
        None if None in times_bare else max(times or 0.0 for times in times_bare) * row.busbw.low,
    )
    return msgspec.structs.replace(row, needs=needs)


def _range(values: Iterable[float]) -> Range:
    known = list(values)
    return Range(min(known), max(known))


def _met(surely: bool, surely_not: bool) -> Met:
    return "missed" if surely_not else "met" if surely else "cannot-tell"


def _measured(step: Range, seconds: float) -> Measured:
    nearest = min(max(seconds, step.low), step.high)
    off = seconds / nearest - 1
    return Measured(seconds, off if abs(off) > 1e-6 else 0.0)
