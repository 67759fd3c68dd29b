"""All hosts at once: connect within limits that spare the cluster, call every session, close everything."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from nccl_doctor.facts.model import OURS, Reach, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline, Transport
from nccl_doctor.transport.descriptors import make_room
from nccl_doctor.transport.launch import launch
from nccl_doctor.transport.session import Session, connect, cut_short

LOOK_AT_DEADLINE_S = 0.2  # an interruption moves it forward while it is waited for
LAST_WORDS_S = 0.5  # beyond it: who only waits for a turn (at a jump host, at the gate) wakes up then, and says so

OnProgress = Callable[[str, "Session | Reach"], None]


def make_transport(options: ConnectOptions) -> Transport:
    """The transport that the options name; ``ValueError`` says what is wrong with them."""
    kind, _, template = options.transport.partition("=")
    if kind == "local" and not template:
        from nccl_doctor.transport.local import LocalTransport

        return LocalTransport()
    if kind == "ssh" and not template:
        from nccl_doctor.transport.ssh import SshTransport

        return SshTransport(options)
    if kind == "command":
        from nccl_doctor.transport.command import CommandTransport

        return CommandTransport(template, options)
    raise ValueError(f"transport {options.transport!r}: expected ssh, local or command=TEMPLATE")


def connect_all(
    entries: Sequence[HostEntry],
    options: ConnectOptions,
    deadline: Deadline,
    on_progress: OnProgress | None = None,
) -> dict[str, Session | Reach]:
    """Start an agent on every host, at most ``options.fan_out`` at a time: name -> session, or why there is none.

    ``on_progress`` is called in this thread as each host is decided. Hosts undecided at the deadline are ``timed-out``,
    those not begun, or begun less than ``options.connect_s`` before it, ``not-tried``. When interrupted, every session
    that was opened is closed.
    """
    transport = make_transport(options)
    attempt = _Attempt(entries, transport, options, deadline)
    try:
        return attempt.run(on_progress or (lambda name, result: None))
    except BaseException:
        attempt.interrupt()
        raise
    finally:
        attempt.when_all_closed(transport.close)


class _Attempt:
    """One run of ``connect_all``: worker threads take entries, the calling thread takes results."""

    def __init__(
        self, entries: Sequence[HostEntry], transport: Transport, options: ConnectOptions, deadline: Deadline
    ) -> None:
        self._entries = list(entries)
        self._transport = transport
        self._options = options
        self._deadline = deadline
        self._todo: queue.SimpleQueue[HostEntry] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Session | Reach]] = queue.SimpleQueue()
        self._begun: dict[str, float] = {}  # name -> when
        self._lock = threading.Lock()
        self._abandoned = False
        self._results: dict[str, Session | Reach] = {}

    def run(self, on_progress: OnProgress) -> dict[str, Session | Reach]:
        make_room(len(self._entries))
        launch()  # packs the agent before 64 threads would all begin to
        for entry in self._entries:
            self._todo.put(entry)
        for number in range(min(self._options.fan_out, len(self._entries))):
            try:
                threading.Thread(target=self._work, daemon=True, name="connect").start()
            except RuntimeError:  # a limit on threads: those that there are do all the work
                if number == 0:
                    raise
                break
        while len(self._results) < len(self._entries):
            try:
                name, result = self._done.get(timeout=self._deadline.left(LOOK_AT_DEADLINE_S))
            except queue.Empty:
                if not self._deadline.passed:
                    continue
                break
            self._results[name] = result
            on_progress(name, result)
        if len(self._results) < len(self._entries):
            self._give_up(on_progress)
        return {entry.name: self._results[entry.name] for entry in self._entries}

    def _give_up(self, on_progress: OnProgress) -> None:
        end = time.monotonic() + LAST_WORDS_S
        while len(self._results) < len(self._entries) and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                name, result = self._done.get(timeout=max(0.0, end - time.monotonic()))
                self._results[name] = result
                on_progress(name, result)
        for name, late in self._abandon():
            on_progress(name, late)
        for entry in self._entries:
            if entry.name not in self._results:
                self._results[entry.name] = self._undecided(entry)
                on_progress(entry.name, self._results[entry.name])

    def _undecided(self, entry: HostEntry) -> Reach:
        if entry.name not in self._begun:
            return Reach(ReachOutcome.NOT_TRIED, "the run's deadline passed before its turn")
        seconds = round(time.monotonic() - self._begun[entry.name], 3)
        late = Reach(
            ReachOutcome.TIMED_OUT,
            "no agent when the run ended",
            (f"no agent after {seconds:.1f} s",),
            seconds=seconds,
            user=entry.user,
            by_ssh=self._transport.by_ssh,
        )
        return cut_short(late, self._options)

    def _abandon(self) -> list[tuple[str, Session | Reach]]:
        """Let the workers close what they open from now on; what they had done before, and nobody has taken yet."""
        with self._lock:
            self._abandoned = True
        late = []
        with contextlib.suppress(queue.Empty):
            while True:
                late.append(self._done.get_nowait())
        self._results.update(late)
        return late

    def interrupt(self) -> None:
        """Close what is open, now and later."""
        self._abandon()
        close_all(self._results.values())

    def when_all_closed(self, close_transport: Callable[[], None]) -> None:
        """Shared connections (jump hosts) are closed with the last session."""
        sessions = [item for item in self._results.values() if isinstance(item, Session)]
        if not sessions:
            close_transport()
            return
        left = len(sessions)
        lock = threading.Lock()

        def one_closed() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                close_transport()

        for session in sessions:
            session.on_close(one_closed)

    def _work(self) -> None:
        while True:
            try:
                entry = self._todo.get_nowait()
            except queue.Empty:
                return
            if self._abandoned or self._deadline.passed:
                return
            self._begun[entry.name] = time.monotonic()
            try:
                result = connect(self._transport, entry, self._options, self._deadline)
            except Exception as error:  # noqa: BLE001 - a defect of ours on one host must not lose the others
                result = Reach(ReachOutcome.TRANSPORT_FAILED, f"{OURS} failed: {type(error).__name__}: {error}")
            with self._lock:
                late = self._abandoned
                if not late:
                    self._done.put((entry.name, result))
            if late and isinstance(result, Session):
                result.close()


def close_all(items: Iterable[Session | Reach], limit_s: float = 5.0) -> None:
    """Close all sessions at once; those that take longer than the limit are left to their daemon threads.

    The limit (seconds) grows by 20 ms for each session: closing costs CPU, and 500 of them share it.
    """
    threads = []
    for session in [item for item in items if isinstance(item, Session)]:
        thread = threading.Thread(target=session.close, daemon=True, name="close")
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # a limit on threads
            session.close()
    end = time.monotonic() + limit_s + 0.02 * len(threads)
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
