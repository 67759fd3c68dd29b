"""Samples of one host as they come, folded into a fact that does not grow: levels, and series of at most 120 points."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_doctor.facts.infiniband import Port
from nccl_doctor.facts.watch import Event, Gap, GpuSeries, Level, NicSeries, Points, RankSeries, Watch
from nccl_doctor.rules.nvidia import reasons
from nccl_doctor.rules.units import duration

BUSY_PERCENT = 50  # of utilisation, in one sample
FULL_SHARE = 0.9  # of an interface's rate: headers and pauses take the rest
THROTTLES = 0x20 | 0x40 | 0x80 | 0x08  # a power cap is normal under load
AGAIN_S = 60.0  # a throttle that comes and goes within it is told once
POINTS = 120
DRIFT = 1e-4  # of two machines' clocks, at most
EVENTS = 500
LINES_TOLD = 5  # of the kernel log, at once: a flood has no more to say
LINES_KEPT = 500
RANKS_KEPT = 2048
NICS_KEPT = 256
_GPU_COUNTERS = ("pcie_replays", "ecc_uncorrected_volatile", "nvlink_replays", "nvlink_recoveries")
_PORT_DATA = {"rx_bytes": "port_rcv_data", "tx_bytes": "port_xmit_data"}


class Running:
    """Mean, least and most of all that was added."""

    def __init__(self) -> None:
        self.samples, self._total, self._low, self._high = 0, 0.0, 0.0, 0.0
        self.last: float | None = None

    def add(self, value: float | None) -> None:
        """One more; None is none."""
        if value is None:
            return
        self._low = min(self._low, value) if self.samples else value
        self._high = max(self._high, value) if self.samples else value
        self.samples, self._total, self.last = self.samples + 1, self._total + value, value

    def level(self) -> Level | None:
        """None where nothing was added."""
        if not self.samples:
            return None
        return Level(self.samples, round(self._total / self.samples, 6), round(self._low, 6), round(self._high, 6))


class Cost:
    """CPU time of a process of ours, in percent of one CPU."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self.percent = Running()

    def add(self, sample: Mapping[str, Any]) -> None:
        """``at_s`` and ``cost_s`` of a sample; less of the latter than before is another process."""
        at_s, cost_s = float(sample["at_s"]), float(sample["cost_s"])
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


class _Gpu:
    def __init__(self, index: int) -> None:
        self.index = index
        self.samples = self.busy = self.throttle_known = 0
        self.now: Mapping[str, Any] = {}  # the last sample; empty once no more come
        self.limits: dict[str, Any] = {}
        self.levels = {
            name: Running()
            for name in ("utilization_percent", "temperature_c", "power_w", "clock_sm_mhz", "memory_share")
        }
        self.throttled: dict[str, int] = {}
        self.rises = Rises()
        self.refused: dict[str, str] = {}
        self._throttled_s: dict[str, float] = {}

    def take(self, told: Mapping[str, Any], now_s: float, job_runs: bool) -> Iterator[tuple[str, str]]:
        """Kind and text of what begins with this sample. Idle times count while a job runs."""
        self.now, self.samples = told, self.samples + 1
        self.limits.update({name: told[name] for name in ("power_limit_w", "memory_total_bytes") if name in told})
        lacking = {name: why for name, why in self.refused.items() if why != "not supported"}
        self.refused = {**{str(name): str(why) for name, why in told["refused"].items()}, **lacking}
        use, used, total = (
            told.get(name) for name in ("utilization_percent", "memory_used_bytes", "memory_total_bytes")
        )
        self.levels["utilization_percent"].add(use if job_runs else None)
        self.levels["memory_share"].add(used / total if used is not None and total else None)
        for name in _GPU_COUNTERS:
            self.rises.add(name, told.get(name))
        if use is None or use < BUSY_PERCENT:
            return
        self.busy += 1
        for name in ("temperature_c", "power_w", "clock_sm_mhz"):
            self.levels[name].add(told.get(name))
        mask = told.get("throttle_reasons")
        self.throttle_known += mask is not None
        for bit in (1 << number for number in range(10) if (mask or 0) >> number & 1):
            self.throttled[str(bit)] = self.throttled.get(str(bit), 0) + 1
        words = ", ".join(reasons((mask or 0) & THROTTLES))
        if words:
            if now_s - self._throttled_s.get(words, -AGAIN_S) >= AGAIN_S:
                heat = "" if told.get("temperature_c") is None else f", {told['temperature_c']} C"
                clock = "" if told.get("clock_sm_mhz") is None else f", SM clock {told['clock_sm_mhz']} MHz"
                yield "throttle", f"GPU {self.index} is throttled: {words}{heat}{clock}"
            self._throttled_s[words] = now_s

    def series(self) -> GpuSeries:
        """All of it, folded."""
        return GpuSeries(
            self.index, self.samples, self.busy, **{name: level.level() for name, level in self.levels.items()},
            power_limit_w=self.limits.get("power_limit_w"), memory_total_bytes=self.limits.get("memory_total_bytes"),
            throttled=self.throttled, throttle_known=self.throttle_known, rises=self.rises.sums, refused=self.refused,
        )  # fmt: skip


class _Nic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.rate: float | None = None
        self.received, self.sent, self.rises = Running(), Running(), Rises()
        self.full = 0
        self._last: tuple[float, int, int] | None = None

    def take(self, counters: Mapping[str, Any], rate: float | None, at_s: float) -> Iterator[tuple[str, str]]:
        """Kind and text of what happened since the last sample; ``at_s``: by the host's own clock."""
        self.rate = rate
        received, sent = counters.get("rx_bytes"), counters.get("tx_bytes")
        if received is not None and sent is not None:
            if self._last and at_s > self._last[0] and received >= self._last[1] and sent >= self._last[2]:
                seconds = at_s - self._last[0]
                rates = (received - self._last[1]) / seconds, (sent - self._last[2]) / seconds
                self.received.add(rates[0])
                self.sent.add(rates[1])
                self.full += bool(rate) and max(rates) >= FULL_SHARE * (rate or 0)
            self._last = at_s, received, sent
        for name, value in counters.items():
            rise = 0 if name in ("rx_bytes", "tx_bytes") else self.rises.add(name, value)
            if rise and name in ("losses", "link_downed"):
                yield "link", f"the link of {self.name} went down ({rise} times)"

    def series(self) -> NicSeries:
        """All of it, folded."""
        return NicSeries(
            self.name, self.rate, self.received.level(), self.sent.level(), self.full, dict(self.rises.sums)
        )


class _Rank:
    def __init__(self, pid: int, now_s: float) -> None:
        self.pid, self.first_s, self.last_s = pid, round(now_s, 3), now_s
        self.samples = 0
        self.cpu, self.resident = Running(), Series()
        self.ended_s: float | None = None
        self.reading: tuple[float, float, str] | None = None  # by the host's clock: when, CPU time, state

    def take(self, told: Mapping[str, Any], at_s: float, now_s: float) -> None:
        """One sample."""
        if self.reading and at_s > self.reading[0]:
            self.cpu.add(100 * (told["cpu_s"] - self.reading[1]) / (at_s - self.reading[0]))
        self.reading = at_s, told["cpu_s"], told["state"]
        self.resident.add(now_s, told["resident_bytes"])
        self.last_s, self.samples = round(now_s, 3), self.samples + 1

    def series(self) -> RankSeries:
        """All of it, folded."""
        cpu, resident = self.cpu.level(), self.resident.points()
        return RankSeries(self.pid, self.samples, self.first_s, self.last_s, self.ended_s, cpu, resident)


class HostSeries:
    """What one host told so far. Times are seconds since the watch began; called from one thread at a time."""

    def __init__(self, name: str, every_s: float) -> None:
        self.name, self.every_s = name, every_s
        self.samples = 0
        self.seen_s: float | None = None  # the last sample
        self.silent = ""  # why, while it is
        self.began_s: float | None = None
        self.gaps: deque[Gap] = deque(maxlen=EVENTS)
        self.gpus: dict[int, _Gpu] = {}
        self.gpus_why = "not collected"
        self.nics: dict[str, _Nic] = {}
        self.ranks: dict[int, _Rank] = {}
        self.processes: dict[int, dict[str, Any]] = {}
        self.job: dict[str, Any] = {}
        self.cpu = Running()
        self.waiting: dict[str, Running] = {}
        self.memory: dict[str, int] = {}
        self.available = Series()
        self.kernel = Rises()
        self.log: dict[str, Any] = {"outcome": "failed", "detail": "no sample"}
        # Each with its number; apart, so that the flood that follows an Xid does not push it out.
        self.xids: deque[tuple[int, dict[str, Any]]] = deque(maxlen=LINES_KEPT)
        self.lines: deque[tuple[int, dict[str, Any]]] = deque(maxlen=LINES_KEPT)
        self.lines_seen = 0
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.events_seen = 0
        self._ticks: tuple[int, int] | None = None
        self._clock: tuple[float, float] | None = None  # the host's, and how far it is behind the watch's
        self.costs = Cost(), Cost()  # of the agent, and of its child that asks NVML

    def event(self, now_s: float, kind: str, text: str) -> Event:
        """Note that something happened."""
        event = Event(round(now_s, 1), self.name, kind, text)
        self.events.append(event)
        self.events_seen += 1
        return event

    def take_gpus(self, step: Mapping[str, Any], now_s: float) -> list[Event]:
        """A sample of all GPUs."""
        if not self.gpus:
            self.gpus_why = ""  # and where they fell silent later on, that stays
        self.costs[1].add(step)
        job_runs = not self.ranks or any(rank.ended_s is None for rank in self.ranks.values())
        return [
            self.event(now_s, *begun)
            for told in step["samples"]
            for begun in self.gpus.setdefault(told["index"], _Gpu(told["index"])).take(told, now_s, job_runs)
        ]

    def lose_gpus(self, why: str) -> bool:
        """No sample of GPUs comes any more. Whether some did until now."""
        began = any(gpu.now for gpu in self.gpus.values())
        self.gpus_why = why
        for gpu in self.gpus.values():
            gpu.now = {}
        return began

    def take(self, sample: Mapping[str, Any], now_s: float) -> list[Event]:
        """A sample of the rest of the host. One that is nonsense raises, and was none."""
        happened = list(self._taken(sample, now_s))
        if self.silent:
            since_s = self.seen_s if self.seen_s is not None else self.began_s or 0.0
            self.gaps.append(Gap(round(since_s, 1), round(now_s, 1), self.silent))
            happened.insert(0, ("back", f"answers again, after {duration(now_s - since_s)}"))
        self.silent, self.seen_s, self.samples = "", now_s, self.samples + 1
        return [self.event(now_s, *what) for what in happened]

    def _watch_time(self, at_s: float, now_s: float) -> float:
        """When a sample was taken: what a broken line held back comes all at once, and was taken long before."""
        behind_s = now_s - at_s
        if self._clock and at_s >= self._clock[0]:  # else it was booted anew
            behind_s = min(behind_s, self._clock[1] + DRIFT * (at_s - self._clock[0]))
        self._clock = at_s, behind_s
        return at_s + behind_s

    def _taken(self, sample: Mapping[str, Any], now_s: float) -> Iterator[tuple[str, str]]:
        at_s = float(sample["at_s"])
        now_s = self._watch_time(at_s, now_s)
        yield from self._host(sample, now_s)
        for name, nic in sample["interfaces"].items():
            rate = nic["speed_mbps"] * 1e6 / 8 if nic["speed_mbps"] else None
            yield from self.nics.setdefault(name, _Nic(name)).take(nic["counters"], rate, at_s)
        for name, port in sample["ports"].items():
            counters = dict(port["counters"])
            for own, theirs in _PORT_DATA.items():  # in units of four bytes
                words = counters.pop(theirs, None)
                counters[own] = None if words is None else 4 * words
            gbps = Port(0, rate=port["rate"]).gbps
            rate = gbps * 1e9 / 8 if gbps else None
            yield from self.nics.setdefault(name, _Nic(name)).take(counters, rate, at_s)
        if len(self.nics) > NICS_KEPT:  # those of containers come and go
            here = {*sample["interfaces"], *sample["ports"]}
            self.nics = {name: nic for name, nic in self.nics.items() if name in here}
        yield from self._ranks(sample, at_s, now_s)
        yield from self._log(sample["log"])

    def _host(self, sample: Mapping[str, Any], now_s: float) -> Iterator[tuple[str, str]]:
        if sample["cpu"]:
            busy, total = sample["cpu"]
            if self._ticks and total > self._ticks[1] and busy >= self._ticks[0]:
                self.cpu.add(100 * (busy - self._ticks[0]) / (total - self._ticks[1]))
            self._ticks = busy, total
        self.memory = sample["memory"]
        if "MemAvailable" in self.memory:
            self.available.add(now_s, self.memory["MemAvailable"])
        for name, percent in sample["waiting"].items():
            self.waiting.setdefault(name, Running()).add(percent)
        for name, value in sample["kernel"].items():
            rise = self.kernel.add(name, value)
            if rise and name == "oom_kill":
                yield "killed", f"the kernel killed {rise} process{'' if rise == 1 else 'es'} for want of memory"
        self.costs[0].add(sample)

    def _ranks(self, sample: Mapping[str, Any], at_s: float, now_s: float) -> Iterator[tuple[str, str]]:
        if "processes" in sample:
            self.processes.update({process["pid"]: process for process in sample["processes"]})
            self.job = {name: sample[name] for name in ("namespace", "uid", "refused", "unnumbered")}
        alive = {int(pid): told for pid, told in sample["ranks"].items()}
        for pid, rank in self.ranks.items():
            if rank.ended_s is None and pid not in alive:
                rank.ended_s = round(now_s, 3)
                told = self.processes.get(pid, {})
                number = told.get("environment", {}).get("RANK", "")
                yield (
                    "rank-ended",
                    f"{f'rank {number}' if number else 'a rank'} (pid {pid}, {told.get('script')}) has ended",
                )
        for pid, told in alive.items():
            if pid not in self.ranks or self.ranks[pid].ended_s is not None:
                self.ranks[pid] = _Rank(pid, now_s)
            self.ranks[pid].take(told, at_s, now_s)
        for pid in list(self.ranks)[:-RANKS_KEPT]:  # of a job that is started over and over the last ones
            del self.ranks[pid]
        self.processes = {pid: told for pid, told in self.processes.items() if pid in self.ranks}

    def _log(self, log: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        self.log = {name: value for name, value in log.items() if name != "lines"}
        lines = log.get("lines", ())
        for number, line in enumerate(lines, self.lines_seen):
            (self.xids if "Xid" in line["text"] else self.lines).append((number, line))
        self.lines_seen += len(lines) + log.get("left_off", 0)
        yield from (("kernel", line["text"]) for line in lines[:LINES_TOLD])
        if len(lines) > LINES_TOLD:
            yield "kernel", f"and {len(lines) - LINES_TOLD} more lines of the kernel log"

    def fall_silent(self, now_s: float, why: str) -> Event | None:
        """No sample comes any more; None where that is known."""
        if self.silent:
            return None
        self.silent = why
        return self.event(now_s, "silent", why)

    def facts(self, now_s: float) -> dict[str, Any]:
        """Probe -> its data, as a bundle keeps them, at the end of the watch."""
        began_s = now_s if self.began_s is None else self.began_s
        gaps = tuple(self.gaps)
        if self.silent:
            seen_s = began_s if self.seen_s is None else self.seen_s
            gaps += (Gap(round(seen_s, 1), round(max(now_s, seen_s), 1), self.silent, open=True),)
        sums = self.kernel.sums
        swapped = [sums[name] for name in ("pswpin", "pswpout") if name in sums]
        costs = [level.mean for cost in self.costs if (level := cost.percent.level())]
        watch = Watch(
            round(now_s - began_s, 1), self.every_s, self.samples, gaps,
            tuple(gpu.series() for _, gpu in sorted(self.gpus.items())), self.gpus_why,
            self.cpu.level(), self.memory.get("MemTotal"), self.available.points(),
            sum(swapped) if swapped else None, sums.get("oom_kill"),
            {name: level for name, own in self.waiting.items() if (level := own.level())},
            tuple(nic.series() for _, nic in sorted(self.nics.items())),
            tuple(rank.series() for rank in self.ranks.values()),
            tuple(self.events), self.events_seen - len(self.events), round(sum(costs), 3) if costs else None,
        )  # fmt: skip
        return {"watch": watch, "job": self._job(), "kernel_log": self._kernel_log()}

    def _job(self) -> dict[str, Any]:
        """The ranks as ``hang`` would tell them, for the rules that number them."""
        found = []
        for pid, process in self.processes.items():
            rank = self.ranks[pid]
            reading = {
                "state": rank.reading[2] if rank.reading else "",
                "cpu_s": rank.reading[1] if rank.reading else 0.0,
            }
            last = None if rank.ended_s is not None else reading
            found.append({**process, "readings": [reading, last], "stacks": [None, None]})
        return {**self.job, "processes": found}

    def _kernel_log(self) -> dict[str, Any]:
        """The lines that were written while it was watched."""
        lines = [line for _, line in sorted([*self.xids, *self.lines], key=lambda item: item[0])]
        return {**self.log, "lines": lines, "left_off": self.lines_seen - len(lines)}
