"""What communication costs a step of training on so many GPUs: volumes, times, shares, efficiency. Pure.

Ranges reach from *hidden*, where all communication runs beside the computation as far as there is room, at the best rates
that are known, to *bare*, where nothing does, at the worst. How much is hidden is taken to be alike on any number of GPUs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from nccl_doctor.bench.parallelism import Model, Volume, Way, volumes
from nccl_doctor.bench.rates import Machines, Range, Rate, rate
from nccl_doctor.bench.statistics import turn

SCHEMA = "nccl-doctor/estimate/1"
MOST_SHARE = 0.20  # of the step that waits for communication
LEAST_EFFICIENCY = 0.80

Met = Literal["met", "missed", "cannot-tell"]


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


class Cost(Volume, frozen=True):
    """One collective in one step on so many GPUs: bytes that each GPU sends (in a ring), and seconds."""

    sent_bytes: float
    seconds: Range
    rate: Rate


class Measured(msgspec.Struct, frozen=True):
    """A further measured step. ``efficiency``: the work per GPU and second against the first step's. ``off``: its relative
    distance to the estimate's nearer end (0: within it; 0.2: a fifth longer than its longest; None: nothing is estimated)."""

    seconds: float
    efficiency: float
    off: float | None = None


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
class _Case:
    """One end of the ranges: communication is ``hidden`` as far as it can be, or not at all; its rates are the best that they
    may be on the numbers of GPUs in ``best_on``, and the worst on all others."""

    costs: Mapping[int, tuple[Cost, ...]]
    first: Step
    smallest: int
    strong: bool
    hidden: bool
    best_on: Collection[int]

    def _step_of(self, compute_s: float, gpus: int, faster: float) -> float:
        """Seconds of a step of so much computation, at a bus bandwidth ``faster`` times as high."""
        best = gpus in self.best_on
        parts = [
            (cost.rate.seconds(cost.calls, cost.sent_bytes, best, faster), cost.window if self.hidden else 0.0)
            for cost in self.costs[gpus]
        ]
        never = sum(seconds for seconds, window in parts if not window)
        beside = sum(seconds for seconds, window in parts if window)
        over = [seconds - window * compute_s for seconds, window in parts if window]
        return compute_s + never + max(0.0, beside - compute_s, *over)

    @functools.cached_property
    def compute_s(self) -> float:
        """Seconds of computation in the measured step: what its communication leaves of it. 0: nothing."""
        gpus, most_s = self.first.gpus, self.first.seconds * (1 + 1e-9)
        return turn(lambda seconds: self._step_of(seconds, gpus, 1.0) > most_s, 0.0, self.first.seconds)

    def _computation(self, gpus: int) -> float:
        return self.compute_s * (self.first.gpus / gpus if self.strong else 1.0)

    def step_s(self, gpus: int, faster: float = 1.0) -> float:
        """Seconds of a step. The one that was measured is known, also where it would be longer by these rates."""
        known = gpus == self.first.gpus and faster == 1.0
        return self.first.seconds if known else self._step_of(self._computation(gpus), gpus, faster)

    def share(self, gpus: int, faster: float = 1.0) -> float:
        """The share of a step in which the GPU waits for communication. One GPU waits for none, also where nothing is left."""
        return 1.0 - self._computation(gpus) / self.step_s(gpus, faster) if gpus > 1 else 0.0

    def efficiency(self, gpus: int, faster: float = 1.0) -> float:
        """Work per GPU and second against the smallest number of GPUs."""
        if gpus == self.smallest:
            return 1.0
        return _efficiency(self.step_s(self.smallest), self.smallest, self.step_s(gpus, faster), gpus, self.strong)

    def needs(self, gpus: int) -> float:
        """How many times the bus bandwidth it takes to meet both targets; infinite where none is enough."""

        def enough(exponent: float) -> bool:
            faster = 10**exponent
            return self.share(gpus, faster) <= MOST_SHARE and self.efficiency(gpus, faster) >= LEAST_EFFICIENCY

        return 10 ** turn(enough, -6.0, 6.0) if enough(6.0) else math.inf


def _efficiency(seconds: float, gpus: int, other_s: float, others: int, strong: bool) -> float:
    return seconds / other_s * (gpus / others if strong else 1.0)


def estimate(question: Question, way: Way, machines: Machines, tool: str) -> Estimate:
    """The whole answer."""
    sends = volumes(way, question.model)
    found = {gpus: _costs(sends, machines, gpus) for gpus in {*question.gpus, *(step.gpus for step in question.steps)}}
    costs = {gpus: item for gpus, item in found.items() if not isinstance(item, str)}
    missing = {gpus: item for gpus, item in found.items() if isinstance(item, str)}
    smallest = min((gpus for gpus in question.gpus if gpus in costs), default=0)
    cases, trouble = _cases(question, costs, missing, smallest)
    rows = []
    for gpus in question.gpus:
        row = Row(gpus, machines.hosts(gpus), trouble=missing.get(gpus, ""))
        if not row.trouble:
            row = _communication(row, costs[gpus])
            row = _judged(row, cases) if cases else row
        rows.append(msgspec.structs.replace(row, measured=_measured(row, question)))
    return Estimate(SCHEMA, tool, question, way.source, way.note, tuple(rows), trouble)


def _costs(sends: Sequence[Volume], machines: Machines, gpus: int) -> tuple[Cost, ...] | str:
    """The collectives of a step; a string where one's rate is not known. One GPU sends nothing."""
    found: list[Cost] = []
    lacks: dict[str, tuple[str, ...]] = {}
    for item in sends if gpus > 1 else ():
        known = rate(machines, item.collective, gpus, item.call_bytes)
        if isinstance(known, Rate):
            sent = item.sent(gpus)
            seconds = Range(known.seconds(item.calls, sent, True), known.seconds(item.calls, sent, False))
            found.append(Cost(**msgspec.structs.asdict(item), sent_bytes=sent, seconds=seconds, rate=known))
        else:
            lacks[item.collective] = known
    if not lacks:
        return tuple(found)
    where = "on one host" if machines.hosts(gpus) == 1 else f"across hosts with {machines.gpus_per_host} GPUs each"
    told = f"nothing says how fast {' and '.join(lacks)} {'are' if len(lacks) > 1 else 'is'} {where}"
    return "; ".join(dict.fromkeys([told, *(why for misfits in lacks.values() for why in misfits)]))


def _cases(
    question: Question, costs: Mapping[int, tuple[Cost, ...]], missing: Mapping[int, str], smallest: int
) -> tuple[tuple[_Case, ...], str]:
    """The ends of the ranges: all hidden that can be, at the best rates; nothing hidden, at the worst; and the same, but at
    the best where the comparison starts, as the errors of two runs need not cancel out. None, and why, where steps cannot
    be reckoned."""
    if not question.steps:
        return (), ""
    first = question.steps[0]
    told = f"the step of {first.seconds:g} s on {first.gpus} GPUs"
    if first.gpus in missing:
        return (), f"what part of {told} is communication is not known: {missing[first.gpus]}"
    case = functools.partial(_Case, costs, first, smallest, question.strong)
    best = case(hidden=True, best_on=costs)
    if not best.compute_s:
        least = sum(cost.seconds.low for cost in costs[first.gpus])
        takes = f"{least:.3g}" if least < 999.5 else f"{least:.0f}"
        return (), f"{told} is too short for its communication, which takes {takes} s at least by these rates"
    return (best, case(hidden=False, best_on=()), case(hidden=False, best_on=(first.gpus, smallest))), ""


def _communication(row: Row, costs: tuple[Cost, ...]) -> Row:
    sent = sum(cost.sent_bytes for cost in costs)
    seconds = Range(sum(cost.seconds.low for cost in costs), sum(cost.seconds.high for cost in costs))
    busbw = Range(
        sent / (sum(cost.sent_bytes / cost.rate.busbw.low for cost in costs) or math.inf),
        sent / (sum(cost.sent_bytes / cost.rate.busbw.high for cost in costs) or math.inf),
    )
    return msgspec.structs.replace(row, costs=costs, communication=seconds, busbw=busbw if costs else None)


def _judged(row: Row, cases: Sequence[_Case]) -> Row:
    """The row with its step, share, efficiency and targets."""
    gpus = row.gpus
    share = _range(case.share(gpus) for case in cases)
    efficiency = _range(case.efficiency(gpus) for case in cases)
    row = msgspec.structs.replace(
        row,
        step=_range(case.step_s(gpus) for case in cases),
        share=share,
        efficiency=efficiency,
        share_met=_met(share.high <= MOST_SHARE, share.low > MOST_SHARE),
        efficiency_met=_met(efficiency.low >= LEAST_EFFICIENCY, efficiency.high < LEAST_EFFICIENCY),
    )
    if row.met == "met" or row.busbw is None:
        return row
    hidden, *bare = (case.needs(gpus) for case in cases)
    ends = (hidden * row.busbw.high, max(bare) * row.busbw.low)
    return msgspec.structs.replace(row, needs=Needs(*(None if math.isinf(end) else end for end in ends)))


def _range(values: Iterable[float]) -> Range:
    known = list(values)
    return Range(min(known), max(known))


def _met(surely: bool, surely_not: bool) -> Met:
    return "missed" if surely_not else "met" if surely else "cannot-tell"


def _measured(row: Row, question: Question) -> Measured | None:
    """What the first step and a further one say of this number of GPUs, whether it could be estimated or not."""
    other = next((step for step in question.steps[1:] if step.gpus == row.gpus), None)
    if other is None:
        return None
    first = question.steps[0]
    found = Measured(other.seconds, _efficiency(first.seconds, first.gpus, other.seconds, other.gpus, question.strong))
    if row.step is None:
        return found
    off = other.seconds / min(max(other.seconds, row.step.low), row.step.high) - 1
    return msgspec.structs.replace(found, off=off if abs(off) > 1e-6 else 0.0)  # what lies on an end lies within
