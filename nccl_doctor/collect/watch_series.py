"""Samples of one host as they come, folded into a fact that does not grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nccl_doctor.collect.watch_folds import Cost, GpuFold, NicFold, RankFold, Rises, Running, Series, Silence, whole
from nccl_doctor.facts.fold import counted, ranges
from nccl_doctor.facts.gpu import Witness
from nccl_doctor.facts.job import Job, Process
from nccl_doctor.facts.kernel_log import KernelLogFact, LogLine
from nccl_doctor.facts.model import Fact, Outcome, ProbeResult
from nccl_doctor.facts.watch import DriverGap, Event, Gap, Named, Watch
from nccl_doctor.facts.watch_samples import GpusSample, HostSample, LogSample

DRIFT = 1e-4  # of two machines' clocks, at most
EVENTS = 500
LINES_TOLD = 5  # of the kernel log, at once: a flood has no more to say
LINES_KEPT = 500
RANKS_KEPT = 2048
GONE_NICS_KEPT = 256  # the first ones: the host's own were there from the start
UNREADABLE = "a sample that cannot be read"


class HostSeries:
    """What one host told so far. Times are seconds since the watch began; called from one thread at a time."""

    def __init__(self, name: str, every_s: float) -> None:
        self.name, self.every_s = name, every_s
        self.samples = 0
        self.named: Named | None = None
        self.unread, self.unread_why = 0, ""  # samples that could not be read, and why the first of them
        self.began_s: float | None = None
        self.seen_s: float | None = None  # the last sample
        self.silence = Silence[Gap]()
        self.gpus: dict[str, GpuFold] = {}  # by PCI address
        self.gpus_seen_s: float | None = None
        self.gpus_silence = Silence[DriverGap]()
        self.nics: dict[str, NicFold] = {}
        self.ranks: dict[int, RankFold] = {}
        self.job: Job | None = None  # of the last look for ranks
        self.cpu = Running()
        self.waiting: dict[str, Running] = {}
        self.memory: dict[str, float] = {}
        self.available = Series()
        self.kernel = Rises()
        self.killed = Rises()  # by the files of the ranks' control groups
        self._others_killed = 0
        self.log = LogSample(Outcome.NOT_RUN, "no sample")
        # Each with its number; apart, so that the flood that follows an Xid does not push it out.
        self.xids: deque[tuple[int, LogLine]] = deque(maxlen=LINES_KEPT)
        self.lines: deque[tuple[int, LogLine]] = deque(maxlen=LINES_KEPT)
        self.lines_seen = 0
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.events_seen = 0
        self._ticks: tuple[float, float] | None = None
        self.clock: tuple[float, float] | None = (
            None  # of this connection: the host's, and how far it is behind the watch's
        )
        self.costs = Cost(), Cost()  # of the agent, and of its child that asks NVML

    def event(self, now_s: float, kind: str, text: str) -> Event:
        """Note that something happened."""
        event = Event(round(now_s, 1), self.name, kind, text)
        self.events.append(event)
        self.events_seen += 1
        return event

    def take_gpus(self, told: Any, now_s: float) -> list[Event]:
        """A sample of all GPUs, as it came. One that cannot be read is none."""
        try:
            sample = msgspec.convert(told, GpusSample)
        except msgspec.ValidationError as error:
            return self.lose_gpus(now_s, f"{UNREADABLE}: {error}", None)
        happened: list[tuple[str, str]] = []
        self.costs[1].add(sample.at_s, sample.cost_s)
        job_runs = not self.ranks or any(rank.ended_s is None for rank in self.ranks.values())
        gpus = {gpu.bus_id or f"GPU {gpu.index}": gpu for gpu in sample.samples}
        for name, gpu in gpus.items():
            fold = self.gpus.setdefault(name, GpuFold(gpu.index, gpu.bus_id))
            happened += fold.take(gpu, now_s, job_runs)
        for name, fold in self.gpus.items():
            if name not in gpus:
                happened += fold.miss("NVML gives it no more", now_s)
        gap = self.gpus_silence.now
        lasted = self.gpus_silence.end(now_s)
        if gap and gap.nvml:
            happened.insert(0, ("gpus", f"NVML answers, after {lasted}"))
        self.gpus_seen_s = now_s
        return [self.event(now_s, *what) for what in happened]

    def lose_gpus(self, now_s: float, why: str, nvml: Witness | None) -> list[Event]:
        """Note that no sample of GPUs comes (any more). What NVML said of it, where it was asked, is told once."""
        for gpu in self.gpus.values():
            gpu.now = None
        from_s = round(self._since_s(self.gpus_seen_s), 1)
        gap = self.gpus_silence.now
        if gap and not gap.nvml and nvml:  # until now it was not asked: the host was silent
            self.gpus_silence.end(now_s)
            from_s = round(now_s, 1)
        new = self.gpus_silence.begin(DriverGap(from_s, from_s, why, nvml=nvml))
        return [self.event(now_s, "gpus", f"no samples of GPUs: {why}")] if new and nvml else []

    def take(self, told: Any, now_s: float) -> list[Event]:
        """Take a sample of the rest of the host, as it came. One that cannot be read proves only that the host answers."""
        try:
            happened = list(self._taken(msgspec.convert(told, HostSample, str_keys=True), now_s))
            self.samples += 1
        except msgspec.ValidationError as error:
            happened = [] if self.unread else [("unreadable", f"{UNREADABLE}: {error}")]
            self.unread, self.unread_why = self.unread + 1, self.unread_why or str(error)
        if lasted := self.silence.end(now_s):
            again = "" if self.seen_s is None else " again"
            happened.insert(0, ("back", f"answers{again}, after {lasted}"))
        self.seen_s = now_s
        return [self.event(now_s, *what) for what in happened]

    def _since_s(self, seen_s: float | None) -> float:
        """Since when nothing was told."""
        return (self.began_s or 0.0) if seen_s is None else seen_s

    def _watch_time(self, at_s: float, now_s: float) -> float:
        """When a sample was taken. After a broken line, samples of long before come all at once."""
        behind_s = now_s - at_s
        if self.clock:
            behind_s = min(behind_s, self.clock[1] + DRIFT * (at_s - self.clock[0]))
        self.clock = at_s, behind_s
        return at_s + behind_s

    def _taken(self, sample: HostSample, now_s: float) -> Iterator[tuple[str, str]]:
        now_s = self._watch_time(sample.at_s, now_s)
        self.named = sample.named or self.named
        yield from self._host(sample, now_s)
        for name, told in sample.nics.items():
            yield from self.nics.setdefault(name, NicFold(name)).take(told, sample.at_s, now_s)
        gone = [name for name in self.nics if name not in sample.nics]
        for name in gone:
            yield from self.nics[name].miss(sample.gone.get(name), now_s)
        for name in gone[GONE_NICS_KEPT:]:  # those of containers come and go
            del self.nics[name]
        yield from self._ranks(sample, now_s)
        yield from self._log(sample.log)

    def _host(self, sample: HostSample, now_s: float) -> Iterator[tuple[str, str]]:
        if sample.cpu:
            busy, total = sample.cpu
            if self._ticks and total > self._ticks[1] and busy >= self._ticks[0]:
                self.cpu.add(100 * (busy - self._ticks[0]) / (total - self._ticks[1]))
            self._ticks = busy, total
        self.memory = sample.memory
        if "MemAvailable" in self.memory:
            self.available.add(now_s, self.memory["MemAvailable"])
        for name, percent in sample.waiting.items():
            self.waiting.setdefault(name, Running()).add(percent)
        for name, value in sample.kernel.items():
            self.kernel.add(name, value)
        for file, count in sample.killed.items():
            if rise := self.killed.add(file, count):
                yield "killed", f"the kernel killed {counted(rise, 'process')} of the job for want of memory ({file})"
        self.killed.forget(sample.killed)
        others = self.kernel.sums.get("oom_kill", 0) - sum(self.killed.sums.values())
        if others > self._others_killed:
            yield "killed", f"the kernel killed {counted(others - self._others_killed, 'process')} for want of memory"
            self._others_killed = others
        self.costs[0].add(sample.at_s, sample.cost_s)

    def _ranks(self, sample: HostSample, now_s: float) -> Iterator[tuple[str, str]]:
        self.job = sample.job or self.job
        known = {pid: rank.process for pid, rank in self.ranks.items()}
        known.update({process.pid: process for process in (sample.job.processes if sample.job else ())})
        ended = [rank for pid, rank in self.ranks.items() if rank.ended_s is None and pid not in sample.ranks]
        for rank in ended:
            rank.ended_s = round(now_s, 3)
        if ended:
            yield "rank-ended", _told([rank.process for rank in ended], "has ended", "have ended")
        stood = {pid for pid, rank in self.ranks.items() if rank.stopped_s is not None}
        for pid, told in sample.ranks.items():
            if pid in known:
                if pid not in self.ranks or self.ranks[pid].ended_s is not None:
                    self.ranks[pid] = RankFold(known[pid], told, sample.at_s, now_s)
                self.ranks[pid].take(known[pid], told, sample.at_s, now_s)
        stands = {pid for pid in sample.ranks if pid in self.ranks and self.ranks[pid].stopped_s is not None}
        for pids, what in ((stands - stood, "stopped"), ((stood - stands) & sample.ranks.keys(), "running again")):
            if pids:
                yield (
                    "rank-stopped",
                    _told([self.ranks[pid].process for pid in sorted(pids)], f"is {what}", f"are {what}"),
                )
        for pid in list(self.ranks)[:-RANKS_KEPT]:  # of a job that is started over and over the last ones
            del self.ranks[pid]

    def _log(self, log: LogSample) -> Iterator[tuple[str, str]]:
        self.log = log
        if log.told is None:
            return
        lines = log.told.lines
        for number, line in enumerate(lines, self.lines_seen):
            (self.xids if "Xid" in line.text else self.lines).append((number, line))
        self.lines_seen += len(lines) + log.told.left_off
        yield from (("kernel", line.text) for line in lines[:LINES_TOLD])
        if len(lines) > LINES_TOLD:
            yield "kernel", f"and {len(lines) - LINES_TOLD} more lines of the kernel log"

    def fall_silent(self, now_s: float, why: str) -> Event | None:
        """Note that no sample comes any more; None where that was noted before."""
        from_s = round(self._since_s(self.seen_s), 1)
        return self.event(now_s, "silent", why) if self.silence.begin(Gap(from_s, from_s, why)) else None

    def asked(self) -> dict[str, Any]:
        """Arguments of the probe: where the host is asked again, who was watched, and what of the kernel log was read."""
        alive = {str(pid): rank.process.start_ticks for pid, rank in self.ranks.items() if rank.ended_s is None}
        log_s = {"log_after_s": self.log.told.uptime_s} if self.log.told and self.log.told.uptime_s else {}
        return {"every_s": self.every_s, "ranks": alive, **log_s}

    def results(self, now_s: float) -> dict[str, ProbeResult]:
        """Probe -> its result, as a bundle keeps them, at the end of the watch."""
        none = ProbeResult(Outcome.NOT_RUN, None, "no sample")
        heard = self.seen_s is not None or self.silence.now
        return {
            Watch.PROBE: _result(self.watch(now_s)) if heard else none,
            Job.PROBE: _result(self._ranks_told(self.job)) if self.job else none,
            KernelLogFact.PROBE: _result(self._lines_told(self.log.told))
            if self.log.told
            else ProbeResult(self.log.outcome, None, self.log.detail),
        }

    def watch(self, now_s: float) -> Watch:
        """All of it, folded, at the end of the watch."""
        began_s = now_s if self.began_s is None else self.began_s
        sums = self.kernel.sums
        swapped = [sums[name] for name in ("pswpin", "pswpout") if name in sums]
        costs = [level.mean for cost in self.costs if (level := cost.percent.level())]
        return Watch(
            round(now_s - began_s, 1), self.every_s, self.samples, self.silence.gaps(now_s),
            tuple(gpu.series(now_s) for gpu in sorted(self.gpus.values(), key=lambda gpu: gpu.index)), self.gpus_silence.gaps(now_s),
            self.cpu.level(), whole(self.memory.get("MemTotal")), self.available.points(),
            sum(swapped) if swapped else None, sums.get("oom_kill"), self.killed.sums,
            {name: level for name, own in self.waiting.items() if (level := own.level())},
            tuple(nic.series(now_s) for _, nic in sorted(self.nics.items())),
            tuple(rank.series() for rank in self.ranks.values()),
            tuple(self.events), self.events_seen - len(self.events), round(sum(costs), 3) if costs else None,
            self.unread, self.unread_why, self.named,
        )  # fmt: skip

    def _ranks_told(self, job: Job) -> Job:
        """The ranks as ``hang`` would tell them, for the rules that number them."""
        return msgspec.structs.replace(job, processes=tuple(rank.told() for rank in self.ranks.values()))

    def _lines_told(self, log: KernelLogFact) -> KernelLogFact:
        """The lines that were written while it was watched."""
        lines = tuple(line for _, line in sorted([*self.xids, *self.lines], key=lambda item: item[0]))
        return msgspec.structs.replace(log, lines=lines, left_off=self.lines_seen - len(lines))


def _result(fact: Fact) -> ProbeResult:
    return ProbeResult(Outcome.OK, msgspec.to_builtins(fact))


def _told(ranks: Sequence[Process], one_is: str, they_are: str) -> str:
    """In one line, what became of these ranks of the host: when a job ends, all of them do."""
    numbers = [rank.environment.get("RANK", "") for rank in ranks]
    which = f"{ranges(map(int, numbers))} " if all(map(str.isdecimal, numbers)) else ""
    if len(ranks) == 1:
        return f"{f'rank {which}' if which else 'a rank '}(pid {ranks[0].pid}, {ranks[0].script}) {one_is}"
    return f"{f'ranks {which}' if which else f'{len(ranks)} ranks '}({ranks[0].script}) {they_are}"
