"""One run over the hosts: its sessions, what they have told so far, and its end before its time."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

from nccl_doctor.collect.job import JobOptions
from nccl_doctor.collect.progress import Progress
from nccl_doctor.facts.model import Fact, Outcome, Plan, ProbeResult, Reach, fact_of
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
from nccl_doctor.transport.session import Session

F = TypeVar("F", bound=Fact)

PARALLEL_CALLS = 128
INTERRUPTED = "interrupted"
DEADLINE_PASSED = "the run's deadline had passed"


class CheckOptions(msgspec.Struct, frozen=True):
    """What the user asked of ``check``."""

    plan: Plan
    connect: ConnectOptions
    deadline_s: float = 180.0
    host_limit_s: float = 60.0
    job: JobOptions | None = None  # look at a running job instead, and measure nothing beside it


class Run:
    """One run's state: the live sessions and what they have told so far."""

    def __init__(self, options: CheckOptions, progress: Progress):
        self.options = options
        self.deadline = Deadline(options.deadline_s)
        self.progress = progress
        self.sessions: dict[str, Session] = {}
        self.results: dict[str, dict[str, ProbeResult]] = {}
        self.lock = threading.Lock()
        self.interrupted = False

    def connect(self, entries: Sequence[HostEntry]) -> dict[str, Session | Reach]:
        """A session with every host, or why there is none."""

        def told(name: str, found: Session | Reach) -> None:
            self.progress.advance("connect", name, found.outcome.value if isinstance(found, Reach) else "")

        self.progress.begin("connect", len(entries))
        connected = connect_all(entries, self.options.connect, self.deadline, told)
        self.progress.end("connect")
        self.sessions = {name: found for name, found in connected.items() if isinstance(found, Session)}
        self.results = {name: {} for name in self.sessions}
        return connected

    def left(self, limit_s: float) -> float:
        """Seconds a call may take: its own limit, or what the run has left."""
        return max(0.1, self.deadline.left(limit_s))

    @property
    def over(self) -> bool:
        """Whether nothing more is asked of any host."""
        return self.interrupted or self.deadline.passed

    def interrupt(self) -> None:
        """End the run now: sessions are closed, so that every call that waits for one returns."""
        self.interrupted = True
        self.deadline.end()
        threading.Thread(target=close_all, args=(list(self.sessions.values()),), daemon=True).start()

    def keep(self, host: str, probe: str, result: ProbeResult) -> None:
        """Keep a result. After an interruption it counts as not run: agents end ranks and listeners when we hang up."""
        with self.lock:
            if self.interrupted:
                self.results[host].setdefault(probe, ProbeResult(Outcome.NOT_RUN, None, INTERRUPTED))
            else:
                self.results[host][probe] = result

    def facts(self, kind: type[F]) -> dict[str, F]:
        """The hosts' facts of this kind, as far as they were collected."""
        return {host: fact for host, results in self.results.items() if (fact := fact_of(results, kind)) is not None}

    def each(self, work: Callable[[str, Session], None], sessions: Mapping[str, Session]) -> None:
        """``work`` on these sessions, many at a time."""
        with ThreadPoolExecutor(min(PARALLEL_CALLS, max(1, len(sessions)))) as pool:
            for future in [pool.submit(work, name, session) for name, session in sessions.items()]:
                future.result()

    def stage(
        self, name: str, work: Callable[[str, Session], str | None], then: Callable[[], None] | None = None
    ) -> None:
        """``work`` on every session, then ``then``, shown as a stage; what ``work`` returns is the host's trouble."""

        def shown(host: str, session: Session) -> None:
            self.progress.advance(name, host, work(host, session) or "")

        self.progress.begin(name, len(self.sessions))
        self.each(shown, self.sessions)
        if then:
            then()
        self.progress.end(name)

    def ask_all(self, host: str, session: Session, probes: Mapping[str, float]) -> str:
        """Several probes at once, kept; the names of those that ended badly."""
        requests: dict[str, tuple[dict[str, Any], float]] = {
            name: ({}, self.left(min(limit, self.options.host_limit_s))) for name, limit in probes.items()
        }
        results = session.probes(requests)
        for name, result in results.items():
            self.keep(host, name, result)
        return ", ".join(
            name for name, result in results.items() if result.outcome in (Outcome.TIMED_OUT, Outcome.FAILED)
        )

    def ask(self, host: str, session: Session, probe: str, arguments: dict[str, Any], limit_s: float) -> None:
        """One probe on one host, kept; past the deadline it is not run, and said so."""
        if self.over:
            self.keep(host, probe, ProbeResult(Outcome.NOT_RUN, None, DEADLINE_PASSED))
            return
        self.keep(host, probe, session.probe(probe, arguments, self.left(limit_s)))


class Interruptible(Protocol):
    """A run that can be ended before its end."""

    interrupted: bool

    def interrupt(self) -> None:
        """End it now; what was measured is kept."""


@contextlib.contextmanager
def hang_up_on_interrupt(run: Interruptible) -> Iterator[None]:
    """Ctrl-C, or a signal in its place, ends the run but keeps what was measured; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang_up(*_: object) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupt()

    previous = signal.signal(signal.SIGINT, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
