"""What a series of runs says: what keeps returning, which pass only avoided a bad host, where bandwidth goes. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from nccl_doctor.bench.statistics import t_quantile
from nccl_doctor.history.model import HostState, Run, Seen, Value

HISTORY_SCHEMA = "nccl-doctor/history/1"
LEAST_VALUES = 5  # below this many, no trend is told
STEADY_SHARE = 0.1  # a change that is certainly smaller than this share of the mean, over all the time, is none

FAILED, PASSED, UNKNOWN = "F", "p", "?"


class Component(msgspec.Struct, frozen=True):
    """A host, GPU or NIC that failed at least once. ``marks``: per run it was in, F failed, p passed, ? not measured.

    ``returns``: it failed, passed, and failed again.
    """

    host: str
    gpu: str
    nic: str
    ids: tuple[str, ...]
    failed: int
    runs: int  # runs in which it was measured
    marks: str
    returns: bool
    last_failed: str

    @property
    def label(self) -> str:
        """``gpu-17``, ``gpu-17 GPU 3 (0000:3b:00.0)``, ``gpu-17 NIC mlx5_0``."""
        return self.host + (f" GPU {self.gpu}" if self.gpu else f" NIC {self.nic}" if self.nic else "")


class Avoided(msgspec.Struct, frozen=True):
    """A run that passed without hosts that had failed before it, and had not passed since."""

    created: str
    hosts: tuple[str, ...]


class Trend(msgspec.Struct, frozen=True):
    """A host's measured number over time: slope per day with its 95 % interval, by least squares.

    ``answer``: rising, falling, steady, or cannot-tell, because there are too few values or the noise is larger.
    ``noise`` is the standard deviation about the line. ``host`` is empty for all hosts of a run together.
    """

    host: str
    metric: str
    unit: str
    answer: str
    n: int
    mean: float
    noise: float
    days: float
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    worse: bool = False


class Analysis(msgspec.Struct, frozen=True):
    """All of it, the worst of each kind first."""

    schema: str
    runs: int
    passed: int
    first: str
    last: str
    components: tuple[Component, ...]
    avoided: tuple[Avoided, ...]
    trends: tuple[Trend, ...]


def analyse(runs: Sequence[Run], host: str = "") -> Analysis:
    """What these runs (oldest first) say, of one host if ``host`` is given."""
    about = [run for run in runs if not host or host in run.together]
    return Analysis(
        schema=HISTORY_SCHEMA,
        runs=len(about),
        passed=sum(run.passed for run in about),
        first=about[0].created if about else "",
        last=about[-1].created if about else "",
        components=tuple(item for item in components(runs) if not host or item.host == host),
        avoided=tuple(item for item in avoided(runs) if not host or host in item.hosts),
        trends=tuple(item for item in trends(runs) if not host or item.host == host),
    )


_Key = tuple[str, str, str]


def _failing(run: Run) -> list[Seen]:
    """What failed and is known to be at this host: what could be either of two is held against neither."""
    return [item for item in run.findings if item.severity == "fail" and item.sure and item.host]


def _place(item: Seen) -> _Key:
    return item.host, item.gpu, item.nic


def components(runs: Sequence[Run]) -> list[Component]:
    """Everything that failed: what returned first, then the most often failing."""
    stages: dict[_Key, set[str]] = {}
    ids: dict[_Key, set[str]] = {}
    for run in runs:
        for item in _failing(run):
            ids.setdefault(_place(item), set()).add(item.id)
            stages.setdefault(_place(item), set()).add(item.stage)
    told: dict[_Key, list[tuple[Run, str]]] = {key: [] for key in ids}
    for run in runs:
        states = {item.host: item for item in run.hosts}
        failed = {_place(item) for item in _failing(run)}
        for key, marks in told.items():
            state = states.get(key[0])
            if state is not None:
                marks.append((run, FAILED if key in failed else _unfailed(run, state, stages[key])))
    found = [_component(key, tuple(sorted(ids[key])), told[key]) for key in ids if told[key]]
    return sorted(found, key=lambda item: (not item.returns, -item.failed, item.label))


def _unfailed(run: Run, state: HostState, stages: set[str]) -> str:
    """Passed only where the host was measured completely, in every stage in which the component has ever failed."""
    measured = state.measured and state.state != "unknown" and stages <= {"", *run.stages}
    return PASSED if measured else UNKNOWN


def _component(key: _Key, ids: tuple[str, ...], told: Sequence[tuple[Run, str]]) -> Component:
    marks = "".join(mark for _, mark in told)
    known = marks.replace(UNKNOWN, "")
    return Component(
        host=key[0],
        gpu=key[1],
        nic=key[2],
        ids=ids,
        failed=marks.count(FAILED),
        runs=len(known),
        marks=marks,
        returns=FAILED in known.lstrip(PASSED).lstrip(FAILED),
        last_failed=next(run.created for run, mark in reversed(told) if mark == FAILED),
    )


def avoided(runs: Sequence[Run]) -> list[Avoided]:
    """The passing runs that left out what had failed before: a retry that passed so has repaired nothing."""
    failing: dict[str, frozenset[str]] = {}  # host -> the hosts of the run it failed in
    found = []
    for run in runs:
        bad = {item.host for item in _failing(run)}
        together, used = run.together, run.used
        for item in run.hosts:
            if item.host in bad:
                failing[item.host] = together
            elif item.measured and item.state in ("healthy", "suspect"):
                failing.pop(item.host, None)
        if run.passed:
            # Only a run of the same hosts can have avoided one of them.
            around = tuple(sorted(host for host, with_it in failing.items() if host not in used and with_it & used))
            if around:
                found.append(Avoided(run.created, around))
    return found


def trends(runs: Sequence[Run]) -> list[Trend]:
    """The line through each host's numbers over time, with its noise; what gets worse first.

    Numbers of all hosts together are comparable over equal sets of hosts only: the last run's set is followed.
    """
    series: dict[tuple[str, str], list[tuple[float, Value]]] = {}
    last = next((run.together for run in reversed(runs) if any(not item.host for item in run.values)), None)
    for run in runs:
        day = run.day
        for value in run.values:
            if value.host or run.together == last:
                series.setdefault((value.host, value.name), []).append((day, value))
    found = [_trend(points) for _, points in sorted(series.items())]
    return sorted(found, key=lambda item: (not item.worse, item.answer in ("steady", "cannot-tell")))


def _trend(points: Sequence[tuple[float, Value]]) -> Trend:
    last = points[-1][1]
    xs, ys = [days for days, _ in points], [value.value for _, value in points]
    mean, span = statistics.fmean(ys), max(xs) - min(xs)
    spread = statistics.stdev(ys) if len(ys) > 1 else 0.0
    if len(points) < LEAST_VALUES or span <= 0:
        return Trend(last.host, last.name, last.unit, "cannot-tell", len(points), mean, spread, span)
    slope, error, noise = _line(xs, ys)
    half = t_quantile(0.975, len(xs) - 2) * error
    low, high = slope - half, slope + half
    if max(abs(low), abs(high)) * span <= STEADY_SHARE * abs(mean):
        answer = "steady"
    elif low <= 0 <= high:
        answer = "cannot-tell"
    else:
        answer = "rising" if slope > 0 else "falling"
    return Trend(
        last.host,
        last.name,
        last.unit,
        answer,
        len(points),
        mean,
        noise,
        span,
        slope,
        low,
        high,
        answer == ("falling" if last.higher_is_better else "rising"),
    )


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Least squares: slope, its standard error, and the standard deviation about the line."""
    centre, mean = statistics.fmean(xs), statistics.fmean(ys)
    squares = sum((x - centre) ** 2 for x in xs)
    slope = sum((x - centre) * (y - mean) for x, y in zip(xs, ys, strict=True)) / squares
    rest = sum((y - mean - slope * (x - centre)) ** 2 for x, y in zip(xs, ys, strict=True))
    noise = math.sqrt(rest / (len(xs) - 2))
    return slope, noise / math.sqrt(squares), noise
