"""What is sampled of a host, its GPUs, interfaces and ranks over time: each sample is folded in, and none is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Generic, TypeVar

import msgspec

from nccl_doctor.facts.job import Process, Reading
from nccl_doctor.facts.watch import NOT_ASKED, Gap, GpuSeries, Level, NicSeries, Points, RankSeries, Whereabouts
from nccl_doctor.facts.watch_samples import GpuSample, NicSample, RankSample
from nccl_doctor.rules.nvidia import LOST, THROTTLE_MASK, reasons
from nccl_doctor.rules.units import duration

G = TypeVar("G", bound=Gap)

BUSY_PERCENT = 50  # of utilisation, in one sample
FULL_SHARE = 0.9  # of an interface's rate: headers and pauses take the rest
AGAIN_S = 60.0  # a throttle that comes and goes within it is told once
POINTS = 120
STOPPED = ("T", "t")  # states: by a signal, by a debugger
GAPS = 500
_BUSY_LEVELS = ("temperature_c", "power_w", "clock_sm_mhz")
_GPU_COUNTERS = (
    "pcie_replays", "ecc_uncorrected_volatile", "nvlink_replays", "nvlink_recoveries", "nvlink_failed_recoveries",
    "nvlink_integrity_errors",
)  # fmt: skip


def whole(number: float | None) -> int | None:
    """The number without its fraction; None stays None."""
    return None if number is None else int(number)


class Running:
    """Mean, least and most of all that was added."""

    def __init__(self) -> None:
        self.samples, self._total, self._low, self._high = 0, 0.0, 0.0, 0.0
        self.last: float | None = None

    def add(self, value: float | None) -> None:
        """Count one more value; None is left out."""
        if value is None:
            return
        self._low = min(self._low, value) if self.samples else value
        self._high = max(self._high, value) if self.samples else value
        self.samples, self._total, self.last = self.samples + 1, self._total + value, value

    def level(self) -> Level | None:
        """Mean, least and most; None where nothing was added."""
        if not self.samples:
            return None
        return Level(self.samples, round(self._total / self.samples, 6), round(self._low, 6), round(self._high, 6))


class Cost:
    """CPU time of a process of ours, in percent of one CPU."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self.percent = Running()

    def add(self, at_s: float, cost_s: float) -> None:
        """Note the CPU time used until ``at_s``; less than before means that another process is counted now."""
        if self._last and at_s > self._last[0] and cost_s >= self._last[1]:
            self.percent.add(100 * (cost_s - self._last[1]) / (at_s - self._last[0]))
        self._last = at_s, cost_s


class Series:
    """A quantity over time in at most ``POINTS`` points: when they are full, each two become one."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float, float]] = []  # samples, sum of times, sum of values
        self._width = 1

    def add(self, at_s: float, value: float) -> None:
        """One more sample."""
        if self._points and self._points[-1][0] < self._width:
            count, times, values = self._points.pop()
            self._points.append((count + 1, times + at_s, values + value))
            return
        if len(self._points) >= POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
            self._width *= 2
        self._points.append((1, at_s, value))

    def points(self) -> Points:
        """The mean time and value of each point."""
        return tuple((round(times / count, 3), round(values / count, 3)) for count, times, values in self._points)


class Rises:
    """By how much counters rose; one that fell was reset, and counts on from there."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self.sums: dict[str, int] = {}

    def add(self, name: str, value: int | None) -> int:
        """The rise since the last reading."""
        if value is None:
            return 0
        rise = max(0, value - self._last.get(name, value))
        self._last[name] = value
        self.sums[name] = self.sums.get(name, 0) + rise
        return rise

    def forget(self, here: Container[str]) -> None:
        """Drop the counters that are not ``here`` any more and never rose."""
        for name in [name for name, rise in self.sums.items() if not rise and name not in here]:
            del self.sums[name], self._last[name]


class Silence(Generic[G]):
    """The times in which nothing was told: the one that goes on, and those that are over."""

    def __init__(self) -> None:
        self.now: G | None = None
        self._over: deque[G] = deque(maxlen=GAPS)

    def begin(self, gap: G) -> bool:
        """Begin a silence, unless one goes on already; True if it is new."""
        if self.now is not None:
            return False
        self.now = gap
        return True

    def end(self, now_s: float) -> str:
        """End the silence that goes on, and say in words how long it lasted; empty where there was none."""
        if self.now is None:
            return ""
        gap, self.now = self.now, None
        self._over.append(msgspec.structs.replace(gap, to_s=round(now_s, 1), open=False))
        return duration(now_s - gap.from_s)

    def gaps(self, now_s: float) -> tuple[G, ...]:
        """All of them, at the end of the watch."""
        if self.now is None:
            return tuple(self._over)
        return (*self._over, msgspec.structs.replace(self.now, to_s=round(max(now_s, self.now.from_s), 1), open=True))


class GpuFold:
    def __init__(self, index: int, bus_id: str | None) -> None:
        self.index, self.bus_id = index, bus_id
        self.seen_s: float | None = None  # the last sample that told something
        self.silence = Silence[Gap]()
        self.samples = self.busy = self.throttle_known = 0
        self.now: GpuSample | None = None  # the last sample; None once no more come
        self.power_limit_w: float | None = None
        self.memory_total_bytes: float | None = None
        self.levels = {name: Running() for name in ("utilization_percent", "memory_share", *_BUSY_LEVELS)}
        self.throttled: dict[str, int] = {}
        self.rises = Rises()
        self.refused: dict[str, str] = {}
        self._throttled_s: dict[str, float] = {}

    def miss(self, why: str, now_s: float) -> Iterator[tuple[str, str]]:
        """NVML gave a sample that tells nothing of it."""
        self.now = None
        from_s = round(now_s if self.seen_s is None else self.seen_s, 1)
        if self.silence.begin(Gap(from_s, from_s, why)):
            yield "gpu-lost", f"GPU {self.index} does not answer the driver: {why}"

    def take(self, told: GpuSample, now_s: float, job_runs: bool) -> Iterator[tuple[str, str]]:
        """Kind and text of what begins with this sample. Idle times count while a job runs."""
        if why := _lost(told):
            yield from self.miss(why, now_s)
            return
        if lasted := self.silence.end(now_s):
            yield "gpus", f"GPU {self.index} answers again, after {lasted}"
        self.now, self.samples, self.seen_s = told, self.samples + 1, now_s
        self.power_limit_w = told.power_limit_w or self.power_limit_w
        self.memory_total_bytes = told.memory_total_bytes or self.memory_total_bytes
        lacking = {name: why for name, why in self.refused.items() if why != "not supported"}
        self.refused = {**told.refused, **lacking}
        use, mask = told.utilization_percent, told.throttle_reasons or 0
        self.levels["utilization_percent"].add(use if job_runs else None)
        self.levels["memory_share"].add(told.memory_share)
        for name in _GPU_COUNTERS:
            self.rises.add(name, getattr(told, name))
        if use is None or use < BUSY_PERCENT:
            return
        self.busy += 1
        for name in _BUSY_LEVELS:
            self.levels[name].add(getattr(told, name))
        self.throttle_known += told.throttle_reasons is not None
        for bit in (1 << number for number in range(10) if mask >> number & 1):
            self.throttled[str(bit)] = self.throttled.get(str(bit), 0) + 1
        words = ", ".join(reasons(mask & THROTTLE_MASK))
        if words:
            if now_s - self._throttled_s.get(words, -AGAIN_S) >= AGAIN_S:
                heat = "" if told.temperature_c is None else f", {told.temperature_c:.0f} C"
                clock = "" if told.clock_sm_mhz is None else f", SM clock {told.clock_sm_mhz:.0f} MHz"
                yield "throttle", f"GPU {self.index} is throttled: {words}{heat}{clock}"
            self._throttled_s[words] = now_s

    def series(self, now_s: float) -> GpuSeries:
        """All of it, folded."""
        return GpuSeries(
            self.index, self.bus_id, self.samples, self.busy, **{name: level.level() for name, level in self.levels.items()},
            power_limit_w=self.power_limit_w, memory_total_bytes=whole(self.memory_total_bytes),
            throttled=self.throttled, throttle_known=self.throttle_known, rises=self.rises.sums, refused=self.refused,
            gaps=self.silence.gaps(now_s),
        )  # fmt: skip


def _lost(told: GpuSample) -> str:
    """What NVML says of a GPU that is lost (some answers may still come from what it has kept), or of which each call failed.

    Empty where it is there.
    """
    errors = [why for why in told.refused.values() if why not in ("not supported", "not permitted")]
    silent = told == GpuSample(told.index, told.bus_id, told.refused)
    return next((why for why in errors if LOST in why or silent), "")


class NicFold:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rate: float | None = None
        self.received, self.sent, self.rises = Running(), Running(), Rises()
        self.full = 0
        self.seen_s: float | None = None
        self.silence = Silence[Gap]()
        self.gone = NOT_ASKED
        self._last: tuple[float, float, float] | None = None

    def miss(self, gone: Whereabouts | None, now_s: float) -> Iterator[tuple[str, str]]:
        """Note that it is not there (any more); ``gone`` says what became of it, where that is known."""
        self.gone = gone or self.gone
        from_s = round(now_s if self.seen_s is None else self.seen_s, 1)
        if self.silence.begin(Gap(from_s, from_s, "not in /sys")):
            yield "link", f"{self.name} is gone" + (f": {gone.proof}" if gone else "")

    def take(self, told: NicSample, at_s: float, now_s: float) -> Iterator[tuple[str, str]]:
        """Kind and text of what happened since the last sample; ``at_s``: by the host's own clock."""
        if lasted := self.silence.end(now_s):
            yield "link", f"{self.name} is back, after {lasted}"
        self.rate, self.seen_s = told.bytes_per_s, now_s
        received, sent = told.received_bytes, told.sent_bytes
        if received is not None and sent is not None:
            if self._last and at_s > self._last[0] and received >= self._last[1] and sent >= self._last[2]:
                seconds = at_s - self._last[0]
                rates = (received - self._last[1]) / seconds, (sent - self._last[2]) / seconds
                self.received.add(rates[0])
                self.sent.add(rates[1])
                self.full += self.rate is not None and max(rates) >= FULL_SHARE * self.rate
            self._last = at_s, received, sent
        for name, value in told.errors.items():
            rise = self.rises.add(name, value)
            if rise and name in ("losses", "link_downed"):
                yield "link", f"the link of {self.name} went down ({rise} times)"

    def series(self, now_s: float) -> NicSeries:
        """All of it, folded."""
        received, sent, gaps = self.received.level(), self.sent.level(), self.silence.gaps(now_s)
        return NicSeries(self.name, self.rate, received, sent, self.full, self.rises.sums, gaps, self.gone)


class RankFold:
    def __init__(self, process: Process, told: RankSample, at_s: float, now_s: float) -> None:
        self.process, self.first_s, self.last_s = process, round(now_s, 3), now_s
        self.samples = 0
        self.cpu, self.resident = Running(), Series()
        self.ended_s: float | None = None
        self.stopped_s: float | None = None
        self._last = at_s, told  # by the host's clock

    def take(self, process: Process, told: RankSample, at_s: float, now_s: float) -> None:
        """One sample."""
        before_s, before = self._last
        if at_s > before_s:
            self.cpu.add(100 * (told.cpu_s - before.cpu_s) / (at_s - before_s))
        self.process, self._last = process, (at_s, told)
        self.resident.add(now_s, told.resident_bytes)
        self.last_s, self.samples = round(now_s, 3), self.samples + 1
        if told.state not in STOPPED:
            self.stopped_s = None
        elif self.stopped_s is None:
            self.stopped_s = self.last_s

    def told(self) -> Process:
        """The process at the end of the watch, as ``hang`` would tell it."""
        _, told = self._last
        reading = Reading(told.state, told.cpu_s)
        last = None if self.ended_s is not None else reading
        return msgspec.structs.replace(self.process, readings=(reading, last), stacks=(None, None))

    def series(self) -> RankSeries:
        """All of it, folded."""
        return RankSeries(
            self.process.pid, self.samples, self.first_s, self.last_s, self.ended_s, self.cpu.level(),
            self.resident.points(), self._last[1].oom_file, None if self.ended_s is not None else self.stopped_s,
        )  # fmt: skip
