"""`watch`'s road from hosts to a bundle: one session a host, over which samples come until the end."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from nccl_doctor import __version__
from nccl_doctor.collect.check import hang_up_on_interrupt
from nccl_doctor.collect.job import GPU_USE, GPU_USE_S
from nccl_doctor.collect.watch_series import HostSeries
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import (
    BUNDLE_SCHEMA,
    Bundle,
    HostFacts,
    Outcome,
    Plan,
    ProbeResult,
    Reach,
    ReachOutcome,
)
from nccl_doctor.facts.watch import Event
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
from nccl_doctor.transport.session import Session

LONGEST_S = 30 * 86400.0
SILENT_SAMPLES = 3  # so many in a row are missing, and
SILENT_S = 10.0  # for so long: a busy host may be late
STOOD_STILL_S = 5.0  # of the controller itself (SIGSTOP, a laptop's lid): no host's silence
RECONNECT_S = (2.0, 5.0, 15.0)  # pauses before the attempts; the last one again and again
GPUS_AGAIN_S = 60.0  # after NVML has not answered
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # what nonsense in a sample raises
END_S = 3.0  # for threads to see that it is over


class WatchOptions(msgspec.Struct, frozen=True):
    """What the user asked of ``watch``: a sample each ``every_s`` seconds, for ``for_s`` seconds (None: until Ctrl-C)."""

    connect: ConnectOptions
    every_s: float = 5.0
    for_s: float | None = None


class Listener(Protocol):
    """Who shows a watch while it goes on; called from several threads, one at a time."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def tick(self, now_s: float, hosts: Sequence[HostSeries]) -> None:
        """About a second has passed. ``hosts`` in the inventory's order, as they are now."""


class _Watch:
    """One watch: the hosts' sessions, and what they have told so far."""

    def __init__(self, entries: Sequence[HostEntry], options: WatchOptions, listener: Listener) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.options = options
        self.listener = listener
        self.deadline = Deadline()
        self.interrupted = False
        self.over, self.decided = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self.series = {name: HostSeries(name, options.every_s) for name in self.entries}
        self.reached: dict[str, Session | Reach] = {}
        self.gpus: dict[str, ProbeResult] = {}
        self.threads: list[threading.Thread] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.started

    def interrupt(self) -> None:
        """End it now, with what was seen."""
        self.interrupted = True
        self.over.set()

    def connect(self) -> None:
        """Reach all hosts; each is watched from then on."""
        try:
            connect_all(list(self.entries.values()), self.options.connect, self.deadline, self.connected)
        finally:
            self.decided.set()

    def connected(self, name: str, found: Session | Reach) -> None:
        """A host was reached, or not: the first one does not wait for the last."""
        if self.over.is_set():
            close_all([found])
            return
        with self.lock:
            self.reached[name] = found
            self.series[name].began_s = self.now_s
            if isinstance(found, Reach):
                why = f"not reached: {found.detail or found.outcome.value}"
                self.tell(self.series[name].fall_silent(self.now_s, why))
                return
        self.start(self._follow, name, found)
        self.start(self._follow_gpus, name)

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="watch")
        thread.start()
        self.threads.append(thread)

    def tell(self, *events: Event | None) -> None:
        """Show events as they come."""
        for event in events:
            if event is not None:
                self.listener.event(event)

    def _follow(self, name: str, session: Session) -> None:
        """Take a host's samples; where it is lost, connect again and again."""
        series = self.series[name]

        def take(sample: dict[str, Any]) -> None:
            with self.lock:
                try:
                    events: list[Event | None] = [*series.take(sample, self.now_s)]
                except UNREADABLE as error:
                    events = [series.fall_silent(self.now_s, f"a sample that cannot be read: {error!r}")]
                self.tell(*events)

        while True:
            result = session.probe("watch", {"every_s": self.options.every_s}, LONGEST_S, take)
            if self.over.is_set():
                return
            with self.lock:
                self.tell(series.fall_silent(self.now_s, result.detail or result.why))
            session.close()
            for pause_s in _pauses():
                if self.over.wait(pause_s):
                    return
                again = connect_all([self.entries[name]], self.options.connect, self.deadline)[name]
                if isinstance(again, Session):
                    session = again
                    with self.lock:
                        self.reached[name] = again
                    break
            if self.over.is_set():
                session.close()
                return

    def _follow_gpus(self, name: str) -> None:
        """Take the samples of a host's GPUs, apart: a driver that hangs keeps nothing else back."""
        series = self.series[name]

        def take(step: dict[str, Any]) -> None:
            with self.lock:
                try:
                    self.tell(*series.take_gpus(step, self.now_s))
                except UNREADABLE as error:
                    series.gpus_why = f"a sample that cannot be read: {error!r}"

        while not self.over.is_set():
            session = self.reached[name]
            if isinstance(session, Session) and session.alive:
                why = self._ask_gpus(name, session, take)
                if self.over.is_set():
                    return
                with self.lock:
                    if series.lose_gpus(why) and session.alive:
                        self.tell(series.event(self.now_s, "gpus", f"no more samples of GPUs: {why}"))
                    told = self.gpus[name]
                if told.outcome is Outcome.OK and told.data["nvml"]["outcome"] == "not-run":
                    return  # the host has none
                if session.alive:
                    self.over.wait(GPUS_AGAIN_S)
            self.over.wait(1.0)

    def _ask_gpus(self, name: str, session: Session, take: Callable[[dict[str, Any]], None]) -> str:
        """Why no sample of GPUs comes (any more)."""
        result = session.probe(GpuFact.PROBE, GPU_USE, GPU_USE_S)
        if result.outcome is Outcome.OK or name not in self.gpus:
            with self.lock:
                self.gpus[name] = result
        if result.outcome is not Outcome.OK:
            return result.why
        if result.data["nvml"]["outcome"] != "ok":
            return str(result.data["nvml"].get("detail") or result.data["nvml"]["outcome"])
        if not result.data["gpus"]:
            return "NVML answers, and lists no GPU"
        return session.probe("watch_gpus", {"every_s": self.options.every_s}, LONGEST_S, take).why

    def look_on(self) -> None:
        """Until the end: tell who has fallen silent, and let it be shown. The time runs from when all hosts are decided."""
        limit_s = max(SILENT_S, SILENT_SAMPLES * self.options.every_s)
        end_s = LONGEST_S
        looked_s = heard_s = self.now_s
        while not self.over.wait(max(0.0, min(1.0, end_s - self.now_s))) and self.now_s < end_s:
            if self.decided.is_set() and end_s == LONGEST_S:
                end_s = LONGEST_S if self.options.for_s is None else self.now_s + self.options.for_s
                if not any(isinstance(found, Session) for found in self.reached.values()):
                    return
            with self.lock:
                now_s = self.now_s
                if now_s - looked_s > STOOD_STILL_S:
                    heard_s = now_s  # what came meanwhile is read only now
                looked_s = now_s
                for series in self.series.values():
                    seen_s = series.began_s if series.seen_s is None else series.seen_s
                    if seen_s is not None and now_s - max(seen_s, heard_s) > limit_s:
                        self.tell(series.fall_silent(now_s, f"no sample for {limit_s:.0f} s"))
                self.listener.tick(now_s, list(self.series.values()))

    def end(self) -> None:
        """Hang up on all hosts: their agents end what they started."""
        self.over.set()
        self.deadline.end()
        with self.lock:
            sessions = list(self.reached.values())
        close_all(sessions)
        end = time.monotonic() + END_S
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))

    def facts(self, entry: HostEntry, now_s: float) -> HostFacts:
        """All that is known of one host. One that was lost on the way was reached: what it told counts."""
        found = self.reached.get(entry.name, Reach(ReachOutcome.NOT_TRIED, "interrupted"))
        if isinstance(found, Reach):
            return HostFacts(entry.name, found, {}, entry.slots)
        told = self.series[entry.name].facts(now_s)
        log = told["kernel_log"]
        probes = {
            "watch": ProbeResult(Outcome.OK, msgspec.to_builtins(told["watch"])),
            "job": ProbeResult(Outcome.OK, told["job"])
            if "namespace" in told["job"]
            else ProbeResult(Outcome.NOT_RUN, None, "no sample"),
            "kernel_log": ProbeResult(Outcome.OK, {key: log[key] for key in log if key != "outcome"})
            if log["outcome"] == "ok"
            else ProbeResult(Outcome(log["outcome"]), None, log["detail"]),
            "gpu": self.gpus.get(entry.name, ProbeResult(Outcome.NOT_RUN, None, "no answer until the end")),
        }
        reach = msgspec.structs.replace(found.reach, outcome=ReachOutcome.OK)
        return HostFacts(entry.name, reach, dict(sorted(probes.items())), entry.slots)


def watch(entries: Sequence[HostEntry], options: WatchOptions, listener: Listener) -> Bundle:
    """Watch the hosts until the time is over or Ctrl-C. Never raises for a host's trouble: that is what the bundle is for."""
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    run = _Watch(entries, options, listener)
    try:
        with hang_up_on_interrupt(run):
            run.start(run.connect)
            run.look_on()
            now_s = run.now_s
    finally:
        run.end()
    with run.lock:
        hosts = tuple(run.facts(entry, now_s) for entry in sorted(entries, key=lambda one: one.name))
    return Bundle(
        BUNDLE_SCHEMA, __version__, created, Plan(stages=("watch",)), hosts, round(run.now_s, 3), run.interrupted
    )


def _pauses() -> Iterator[float]:
    yield from RECONNECT_S
    while True:
        yield RECONNECT_S[-1]
