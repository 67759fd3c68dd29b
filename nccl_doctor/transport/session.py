"""The controller's end of one agent: starts it over a stream and asks it for probes. A host's troubles are results."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import itertools
import json
import queue
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.facts import files
from nccl_doctor.facts.model import Outcome, ProbeResult, Reach, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline, Stream, Transport, Unreachable
from nccl_doctor.transport.greeting import Greeting, last_line, quote
from nccl_doctor.transport.launch import launch

PING_S = 5.0  # the agent answers at once, whatever its probes do; it ends after 45 s without a word from us
IDLE_PING_S = 10.0  # while nobody waits for an answer: an exchange costs half a millisecond of CPU
# Pings unanswered in a row, the last one PING_S ago: the host is gone. A clock would count our own sleep as well.
SILENT_PINGS = 3
WRITE_S = 10.0
LOOK_S = 1.0  # how often it is looked whether an answer can still come
CARRY_LIMIT_S = 30.0
GRACE_S = 5.0  # beyond a probe's own limit, for the answer to travel
SILENCE_S = 20.0  # of an agent that is overdue with an answer: then nothing more is waited for
LATE_LIMIT = 2  # times that answers were overdue: each further question would wait in vain as well
DRIP_S = 5.0  # a line that comes for so long, without a pause of DRIP_PAUSE_S and
DRIP_BYTES_PER_S = 500  # slower than this, drips: 20 kB would take over 40 s. A network that loses packets pauses
DRIP_PAUSE_S = 2.0  # longer, or brings more at once.
LINE_LIMIT = 20 << 20  # bytes of one line; the agent cuts replies at 16 MiB
CARRIED = frozenset({"pynvml"})  # pure-Python modules that are sent along when a host's Python lacks them

OnEvent = Callable[[dict[str, Any]], None]


class _Reply(msgspec.Struct, frozen=True):
    """A reply or an event, as the agent sends it."""

    id: int
    result: ProbeResult | None = None
    event: dict[str, Any] | None = None


class _Lost(msgspec.Struct, frozen=True):
    """Put into every waiting queue when the stream ends."""

    why: str


def connect(transport: Transport, entry: HostEntry, options: ConnectOptions, deadline: Deadline) -> Session | Reach:
    """Start an agent on a host: a session, or the reason why there is none. Never raises for what a host does."""
    started = time.monotonic()
    try:
        plan = launch(options.python, options.env_setup)
        stream = transport.open(entry, plan.command, deadline)
        outcome = ReachOutcome.TRANSPORT_FAILED
        try:
            session = Session(transport, stream, plan.payload, plan.marker, options, deadline, started, entry.user)
            outcome = ReachOutcome.OK
            return session
        except BaseException as trouble:
            if isinstance(trouble, Unreachable):
                outcome = trouble.reach.outcome
            stream.close(grace_s=0.2)  # no agent answered: nothing is worth waiting for
            raise
        finally:
            transport.settled(stream, outcome)
    except Unreachable as trouble:
        seconds = round(trouble.reach.seconds or time.monotonic() - started, 3)
        reach = msgspec.structs.replace(trouble.reach, seconds=seconds, user=entry.user, by_ssh=transport.by_ssh)
        if reach.outcome is ReachOutcome.TIMED_OUT and deadline.passed:
            return cut_short(reach, options)
        return reach


def cut_short(reach: Reach, options: ConnectOptions) -> Reach:
    """What is known of a host that had not answered when the run's deadline passed: nothing, if it had little time."""
    if reach.seconds >= options.connect_s:
        return reach
    detail = f"the run's deadline passed {reach.seconds:.1f} s after the first word to the host: {reach.detail}"
    return msgspec.structs.replace(reach, outcome=ReachOutcome.NOT_TRIED, detail=detail)


class _Pace:
    """How fast one line comes in."""

    def __init__(self) -> None:
        self.bytes = 0
        self._since = self._last = 0.0

    def take(self, size: int, now: float) -> None:
        """So many bytes came; ``restart`` for the first ones of a line."""
        if now - self._last > DRIP_PAUSE_S:
            self.bytes, self._since = 0, now
        self.bytes += size
        self._last = now

    def restart(self) -> None:
        """What comes next belongs to another line."""
        self._last = 0.0

    @property
    def seconds(self) -> float:
        """For how long the line has been coming."""
        return self._last - self._since

    @property
    def drips(self) -> bool:
        """Whether it will not be whole in any useful time."""
        return self.seconds >= DRIP_S and self.bytes < DRIP_BYTES_PER_S * self.seconds


class Session:
    """One live agent. Methods may be called from several threads; waits are limited by their own limit and the run's.

    ``hello`` says who answered; ``reach`` becomes ``cut-off`` when the connection is lost before :meth:`close`, and
    ``timed-out`` while the agent, which answers for its probes' limits itself, has fallen silent (a hung host, a line
    whose answers come too late): nothing more is asked of it then, or each probe would wait for its own limit in vain.
    """

    def __init__(
        self,
        transport: Transport,
        stream: Stream,
        payload: bytes,
        marker: str,
        options: ConnectOptions,
        deadline: Deadline,
        started: float,
        user: str,
    ) -> None:
        """Send the agent and wait for its first line; raises :class:`Unreachable`."""
        self._stream = stream
        self._deadline = deadline
        self._held = bytearray()
        self._pace = _Pace()
        self._ids = itertools.count(1)
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[_Reply | _Lost]] = {}
        self._lost = ""
        self._silent = False
        self._late = 0
        self._heard = time.monotonic()
        self._closed = False
        self._carry_lock = threading.Lock()
        self._carried: dict[str, bool] = {}
        self._on_close: list[Callable[[], None]] = []
        greeting = Greeting(transport, stream, marker, options, deadline)
        self.hello = greeting.exchange(payload)
        self._held += greeting.rest
        self.reach = Reach(
            ReachOutcome.OK,
            address=getattr(stream, "address", ""),
            port=getattr(stream, "port", 0),
            detail=getattr(stream, "note", ""),
            user=user,
            by_ssh=transport.by_ssh,
            seconds=round(time.monotonic() - started, 3),
        )
        threading.Thread(target=self._read_loop, daemon=True, name="session").start()

    # Asking

    def probe(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        limit_s: float = 10.0,
        on_event: OnEvent | None = None,
    ) -> ProbeResult:
        """Run one probe. ``on_event`` gets its progress, in this thread. A lost connection is outcome ``failed``."""
        return self.probes(
            {name: (arguments, limit_s)}, on_event=lambda _, event: on_event(event) if on_event else None
        )[name]

    def probes(
        self,
        wanted: Mapping[str, tuple[Mapping[str, Any] | None, float]],
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> dict[str, ProbeResult]:
        """Run several probes at once: ``{name: (arguments, limit in seconds)}``; the results as they came.

        ``on_event`` gets their progress, in this thread.
        """
        requests = {name: self._probe_request(name, *wanted[name]) for name in wanted}
        results = self._ask(requests, on_event or _ignore)
        lacking = {name: module for name in results if (module := _missing_module(results[name])) in CARRIED}
        have = {module: self._carry_local(module) for module in sorted(set(lacking.values()))}
        again = {name: self._probe_request(name, *wanted[name]) for name, module in lacking.items() if have[module]}
        results.update(self._ask(again, on_event or _ignore))
        return results

    def carry(self, module: str, source: str) -> ProbeResult:
        """Hand a pure-Python module's source to the agent, for probes to import. Outcome ``ok`` when it has it."""
        packed = base64.b64encode(zlib.compress(source.encode("utf-8"), 6)).decode("ascii")
        request = ({"op": "module", "name": module, "source": packed}, CARRY_LIMIT_S)
        return self._ask({module: request}, _ignore)[module]

    def close(self) -> None:
        """End the agent (it kills all it started) and the stream."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            callbacks = list(self._on_close)
        self._stream.close()
        for callback in callbacks:
            callback()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once this session is closed (at once, if it is)."""
        with self._lock:
            if not self._closed:
                self._on_close.append(callback)
                return
        callback()

    @property
    def alive(self) -> bool:
        """Whether the agent still answers, as far as is known."""
        return not self._lost and not self._silent and not self._closed

    def _probe_request(
        self, name: str, arguments: Mapping[str, Any] | None, limit_s: float
    ) -> tuple[dict[str, Any], float]:
        limit_s = self._deadline.left(limit_s)
        return {"op": "probe", "name": name, "arguments": dict(arguments or {}), "limit_s": limit_s}, limit_s

    def _carry_local(self, module: str) -> bool:
        """Send this Python's own copy of a module, once; False if it has none or the agent did not take it."""
        with self._carry_lock:
            if module not in self._carried:
                found = importlib.util.find_spec(module)
                if found is None or not found.origin or not found.origin.endswith(".py"):
                    return False
                source = Path(found.origin).read_text(encoding="utf-8")
                self._carried[module] = self.carry(module, source).outcome is Outcome.OK
            return self._carried[module]

    def _ask(
        self,
        requests: dict[str, tuple[dict[str, Any], float]],
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> dict[str, ProbeResult]:
        """Send requests and collect their results, each within its own limit."""
        if self._silent:
            return dict.fromkeys(requests, ProbeResult(Outcome.TIMED_OUT, None, self._overdue_detail()))
        answers: queue.SimpleQueue[_Reply | _Lost] = queue.SimpleQueue()
        started = time.monotonic()
        ends: dict[int, tuple[str, float]] = {}
        for name, (body, limit_s) in requests.items():
            number = next(self._ids)
            ends[number] = (name, started + self._deadline.left(limit_s + GRACE_S))
            with self._lock:
                self._waiting[number] = answers
            self._send({"id": number, **body})
        if self._lost:
            answers.put(_Lost(self._lost))
        results: dict[str, ProbeResult] = {}
        try:
            while ends:
                self._next_answer(answers, ends, results, started, on_event)
        finally:
            with self._lock:
                for number in ends:
                    self._waiting.pop(number, None)
        return results

    def _next_answer(
        self,
        answers: queue.SimpleQueue[_Reply | _Lost],
        ends: dict[int, tuple[str, float]],
        results: dict[str, ProbeResult],
        started: float,
        on_event: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """Take one message, or find out which requests are overdue; what is answered leaves ``ends``."""
        wait_s = max(0.0, min(LOOK_S, GRACE_S, min(end for _, end in ends.values()) - time.monotonic()))
        done: dict[int, ProbeResult] = {}
        try:
            message = answers.get(timeout=wait_s)
        except queue.Empty:
            now = time.monotonic()
            overdue = ProbeResult(Outcome.TIMED_OUT, None, self._overdue_detail(), round(now - started, 3))
            given_up = self._late >= LATE_LIMIT or (self._silent and now - self._heard > SILENCE_S)
            done = {number: overdue for number, (_, end) in ends.items() if end <= now or given_up}
            # Not where the run's deadline may have cut the wait short.
            if done and self._deadline.left(GRACE_S) >= GRACE_S:
                self._late += 1
                if self._heard < started or self._late >= LATE_LIMIT:
                    self._fall_silent(now)
        else:
            if isinstance(message, _Lost):
                lost = ProbeResult(Outcome.FAILED, None, message.why, round(time.monotonic() - started, 3))
                done = dict.fromkeys(ends, lost)
            elif message.id in ends and message.event is not None:
                on_event(ends[message.id][0], message.event)
            elif message.id in ends and message.result is not None:
                done = {message.id: message.result}
        for number, result in done.items():
            name, _ = ends.pop(number)
            with self._lock:
                self._waiting.pop(number, None)
            results[name] = result

    def _overdue_detail(self) -> str:
        if self._deadline.passed:
            return "stopped by the run's deadline"
        return "no answer: the agent has fallen silent" if self._silent else "the agent did not answer in time"

    def _fall_silent(self, now: float) -> None:
        """Not a word since pings, or since a request whose time and grace for travelling are over; or late too often."""
        with self._lock:
            if self._silent or self._lost:
                return
            self._silent = True
            quiet = f"the agent answered at first, and then not a word for {now - self._heard:.0f} s"
            late = f"answers come too slowly: {self._late} times some were overdue by {GRACE_S:.0f} s"
            detail = late if self._late >= LATE_LIMIT else quiet
            self.reach = msgspec.structs.replace(
                self.reach, outcome=ReachOutcome.TIMED_OUT, detail=detail, evidence=(detail,)
            )

    def _hear(self) -> None:
        """The agent said something: one that had fallen silent is back."""
        self._heard = time.monotonic()
        if self._silent and self._late < LATE_LIMIT:
            with self._lock:
                self._silent = False
                if self.reach.outcome is ReachOutcome.TIMED_OUT:
                    self.reach = msgspec.structs.replace(
                        self.reach, outcome=ReachOutcome.OK, detail="the agent had been silent", evidence=()
                    )

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n"
        limit_s = max(1.0, self._deadline.left(WRITE_S))
        try:
            with self._send_lock:
                self._stream.write(line, limit_s)
        except TimeoutError:
            self._lose(f"the agent took nothing of a request for {limit_s:.0f} s", ReachOutcome.TIMED_OUT)
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            self._lose(f"cannot write: {error}" if str(error) else "cannot write")

    # Listening

    def _read_loop(self) -> None:
        """Take lines off the stream until it ends; ping in the pauses, so that each side knows the other is there."""
        pinged, unanswered = time.monotonic(), 0
        try:
            while True:
                self._take_lines()
                if self._pace.drips and b'{"id"' in self._held:  # not what a login shell's job prints
                    pace = f"{self._pace.bytes} bytes in {self._pace.seconds:.0f} s"
                    self._lose(f"the answer comes too slowly: {pace}", ReachOutcome.TIMED_OUT)
                    return
                if time.monotonic() - pinged >= (PING_S if self._waiting else IDLE_PING_S):
                    if unanswered >= SILENT_PINGS:
                        self._fall_silent(time.monotonic())
                    self._send({"op": "ping"})
                    pinged, unanswered = time.monotonic(), unanswered + 1
                with contextlib.suppress(TimeoutError):
                    block = self._stream.read(PING_S)
                    if not block:
                        break
                    self._held += block
                    self._pace.take(len(block), time.monotonic())
                    unanswered = 0
            self._lose("the stream ended" + (" in the middle of an answer" if self._held.strip() else ""))
        except (OSError, ValueError, EOFError) as error:
            self._lose(str(error) or type(error).__name__)

    def _take_lines(self) -> None:
        while (end := self._held.find(b"\n")) >= 0:
            line = bytes(self._held[:end])
            del self._held[: end + 1]
            self._pace.restart()
            self._take(line)
        if len(self._held) > LINE_LIMIT:
            raise OSError(f"a line of more than {LINE_LIMIT} bytes")

    def _take(self, line: bytes) -> None:
        start = line.find(b'{"id"')
        if start < 0:
            return  # a background job of the login shell that prints into the stream
        try:
            message = files.from_json(line[start:], _Reply)  # it may have left half a line before ours
        except msgspec.DecodeError as error:
            if start == 0:
                raise OSError(f"an answer that is not of the protocol: {quote(line)} ({error})") from error
            return
        self._hear()
        with self._lock:
            waiting = self._waiting.get(message.id)
        if waiting is not None:
            waiting.put(message)

    def _lose(self, why: str, outcome: ReachOutcome = ReachOutcome.CUT_OFF) -> None:
        """The connection is gone or good for nothing: every waiting request is answered, and the reach says why."""
        tail = ""
        for _ in range(5):  # what the agent said last travels on a stream of its own, and may come a moment later
            tail = last_line(self._stream.error_text())
            if tail or self._closed:
                break
            time.sleep(0.1)
        with self._lock:
            if self._lost:
                return
            cut = outcome is ReachOutcome.CUT_OFF
            self._lost = ("connection lost: " if cut else "") + why + (f" (stderr: {tail})" if tail else "")
            waiting = set(self._waiting.values())
            if not self._closed:
                evidence = tuple(text for text in (why, quote(bytes(self._held)) if cut else "", tail) if text)
                self.reach = msgspec.structs.replace(self.reach, outcome=outcome, detail=self._lost, evidence=evidence)
        for answers in waiting:
            answers.put(_Lost(self._lost))


def _ignore(*_: Any) -> None:
    """A callback for those who want none."""


def _missing_module(result: ProbeResult) -> str:
    if result.outcome is Outcome.TOOL_MISSING and isinstance(result.data, dict):
        return str(result.data.get("module", ""))
    return ""
