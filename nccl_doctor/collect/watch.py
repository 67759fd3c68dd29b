"""`watch`'s road from hosts to a bundle: one session a host, over which samples come until the end."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from nccl_doctor import __version__
from nccl_doctor.agent.probes.watch import LONGEST_S
from nccl_doctor.agent.probing import PROBES
from nccl_doctor.collect.job import with_py_spy
from nccl_doctor.collect.run import hang_up_on_interrupt
from nccl_doctor.collect.watch_series import HostSeries
from nccl_doctor.facts.gpu import GpuFact, Witness
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

SILENT_SAMPLES = 3  # so many in a row are missing, and
SILENT_S = 10.0  # for so long: a busy host may be late
STOOD_STILL_S = 5.0  # of the controller itself (SIGSTOP, a laptop's lid): no host's silence
RECONNECT_S = (2.0, 5.0, 15.0)  # pauses before the attempts; the last one again and again
# What waiting does not mend: a host that was never reached is not tried again, and no account is locked for it.
HOPELESS = (
    ReachOutcome.HOST_KEY_CHANGED,
    ReachOutcome.HOST_KEY_UNKNOWN,
    ReachOutcome.AUTH_FAILED,
    ReachOutcome.NO_PYTHON,
    ReachOutcome.PYTHON_TOO_OLD,
)
GPUS_AGAIN_S = 60.0  # after NVML has not answered, then ever later: a call that hangs may leave a process behind
GPUS_AGAIN_MOST_S = 3600.0
LOOK_S = 1.0
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
        self.attempts = dict.fromkeys(self.entries, 0)  # to connect, since the last sample
        self.due_s: dict[str, float] = {}  # when a host that is lost is tried again
        self.gpus: dict[str, ProbeResult] = {}  # the first answer of each host's NVML; else why there is none
        self.nvml_answered: set[str] = set()
        self.threads: list[threading.Thread] = []

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.started

    def interrupt(self) -> None:
        """End it now, with what was seen."""
        self.interrupted = True
        self.over.set()

    def connect(self) -> None:
        """Reach all hosts, watch each from then on, and keep trying to reach those that are lost.

        All that are due are tried together, so that a jump host never gets more connections at once than at the start.
        """
        due = list(self.entries.values())
        try:
            connect_all(due, self.options.connect, self.deadline, self.connected)
        finally:
            self.decided.set()
        while not self.over.wait(LOOK_S):
            with self.lock:
                due = [self.entries[name] for name, due_s in self.due_s.items() if due_s <= self.now_s]
            if due:
                connect_all(due, self.options.connect, self.deadline, self.connected)

    def connected(self, name: str, found: Session | Reach) -> None:
        """Watch a host as soon as it is reached, without waiting for the others; or note why it was not reached."""
        with self.lock:
            if self.over.is_set():  # whoever ends it has closed all that it knew of
                close_all([found])
                return
            series, known = self.series[name], self.reached.get(name)
            self.due_s.pop(name, None)
            if series.began_s is None:
                series.began_s = self.now_s
            if isinstance(found, Reach) and isinstance(known, Session):
                self.again(name)  # it was reached before: what it told counts
                return
            self.reached[name] = found
            series.clock = None  # of what an earlier connection held back nothing comes any more
            if isinstance(found, Reach):
                self.tell(series.fall_silent(self.now_s, f"not reached: {found.why}"))
                if found.outcome not in HOPELESS:
                    self.again(name)
                return
        self.start(self._follow, name, found)
        self.start(self._follow_gpus, name, found)

    def again(self, name: str) -> None:
        """Have a host tried again soon; the lock is held."""
        pause_s = RECONNECT_S[min(self.attempts[name], len(RECONNECT_S) - 1)]
        self.attempts[name] += 1
        self.due_s[name] = self.now_s + pause_s

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="watch")
        thread.start()
        with self.lock:
            self.threads = [one for one in self.threads if one.is_alive()] + [thread]

    def tell(self, *events: Event | None) -> None:
        """Show events as they come."""
        for event in events:
            if event is not None:
                self.listener.event(event)

    def _follow(self, name: str, session: Session) -> None:
        """Take a host's samples until it is lost."""
        series = self.series[name]

        def take(sample: dict[str, Any]) -> None:
            with self.lock:
                self.tell(*series.take(sample, self.now_s))
                self.attempts[name] = 0

        def ask(lent: dict[str, str]) -> ProbeResult:
            with self.lock:
                arguments = {**series.asked(), **lent}
            return session.probe("watch", arguments, LONGEST_S, take)

        result = with_py_spy(ask)
        session.close()
        with self.lock:
            if not self.over.is_set():
                self.tell(series.fall_silent(self.now_s, result.detail or result.why))
                self.again(name)

    def _follow_gpus(self, name: str, session: Session) -> None:
        """Take the samples of a host's GPUs, apart: a driver that hangs keeps nothing else back."""
        series = self.series[name]
        pause_s = GPUS_AGAIN_S

        def take(step: dict[str, Any]) -> None:
            nonlocal pause_s
            with self.lock:
                self.tell(*series.take_gpus(step, self.now_s))
                pause_s = GPUS_AGAIN_S

        while session.alive and not self.over.is_set():  # else the host's next connection has a thread of its own
            try:
                ended = self._ask_gpus(name, session, take)
            except msgspec.DecodeError as error:
                ended = f"an answer that cannot be read: {error}", None
            if ended is None:
                return
            with self.lock:
                if not self.over.is_set():
                    self.tell(*series.lose_gpus(self.now_s, *ended))
            if session.alive:
                self.over.wait(pause_s)
            pause_s = min(2 * pause_s, GPUS_AGAIN_MOST_S)

    def _ask_gpus(
        self, name: str, session: Session, take: Callable[[dict[str, Any]], None]
    ) -> tuple[str, Witness | None] | None:
        """Why no sample of GPUs comes (any more), and what NVML said where that is the reason; None: the host has none.

        With the limits of ``check``: a driver without persistence mode starts slowly, and that is no hang.
        """
        result = session.probe(GpuFact.PROBE, {"use_only": True}, PROBES[GpuFact.PROBE].limit_s)
        with self.lock:
            if not (self.over.is_set() or name in self.nvml_answered):
                self.gpus[name] = result  # what comes after the end saw us hang up
        if result.outcome is not Outcome.OK:
            return result.why, None
        fact = result.fact(GpuFact)
        if not fact.has_hardware:
            return None
        if fact.nvml.outcome != "ok":
            return fact.nvml.detail or fact.nvml.outcome, fact.nvml
        self.nvml_answered.add(name)
        if not fact.gpus:
            return "NVML answers, and lists no GPU", None
        ended = session.probe("watch_gpus", {"every_s": self.options.every_s}, LONGEST_S, take)
        if not isinstance(ended.data, dict):
            return ended.why, None
        nvml = {**ended.data, "outcome": ended.outcome.value, "detail": ended.detail}
        return ended.why, msgspec.convert(nvml, Witness)

    def look_on(self) -> None:
        """Until the end: tell who has fallen silent, and let it be shown. The time runs from when all hosts are decided."""
        limit_s = max(SILENT_S, SILENT_SAMPLES * self.options.every_s)
        end_s = LONGEST_S
        looked_s = heard_s = self.now_s
        while not self.over.wait(max(0.0, min(LOOK_S, end_s - self.now_s))) and self.now_s < end_s:
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
            threads = list(self.threads)
        close_all(sessions)
        end = time.monotonic() + END_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def facts(self, entry: HostEntry, now_s: float) -> HostFacts:
        """All that is known of one host. One that was lost on the way was reached: what it told counts."""
        found = self.reached.get(entry.name, Reach(ReachOutcome.NOT_TRIED, "interrupted"))
        if isinstance(found, Reach):
            return HostFacts(entry.name, found, {}, entry.slots)
        none = ProbeResult(Outcome.NOT_RUN, None, "no sample")
        probes = {**self.series[entry.name].results(now_s), GpuFact.PROBE: self.gpus.get(entry.name, none)}
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
