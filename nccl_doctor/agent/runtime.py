"""The agent's main loop: requests in, replies and events out, one JSON document a line.

Requests: ``{"id", "op": "probe", "name", "arguments", "limit_s"}``, ``{"id", "op": "module", "name", "source"}``
(base64 of zlib-packed text) and ``{"op": "ping"}``. Replies: ``{"id", "result": {"outcome", "data", "detail",
"seconds"}}``, to a ping ``{"id": 0}``; events from inside a probe: ``{"id", "event": {...}}``.

The agent ends, and kills all it started, at the end of its input, on SIGTERM, SIGHUP and SIGINT, when it cannot write,
and when nothing has come for ``SILENCE_S`` seconds: then the link was cut without a word.
"""

import base64
import errno
import importlib
import json
import os
import pkgutil
import queue
import select
import signal
import sys
import threading
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import nccl_doctor.agent.probes
from nccl_doctor.agent import children, probing

SILENCE_S = 45.0  # the controller pings every 5 s
REPLY_LIMIT = 16 << 20  # bytes of one reply
REQUEST_LIMIT = 64 << 20  # bytes of one request: more is no controller of ours
DEFAULT_LIMIT_S = 10.0


class _End(Exception):
    """Time to go; the text says why (for stderr)."""


def probe_modules() -> List[str]:
    """The names of all probe modules, from memory on a host, from the file system in tests."""
    package = nccl_doctor.agent.probes
    loader: Any = getattr(package.__spec__, "loader", None)
    if hasattr(loader, "children"):
        names: List[str] = loader.children(package.__name__)
        return names
    return ["%s.%s" % (package.__name__, found.name) for found in pkgutil.iter_modules(package.__path__)]


def import_probes() -> Dict[str, str]:
    """Import every probe module; returns module -> error for those that could not be, so that they hide no other."""
    broken: Dict[str, str] = {}
    for name in probe_modules():
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - one broken module must hide no other
            broken[name] = "%s: %s" % (type(error).__name__, error)
    return broken


def run_probe(name: str, arguments: Dict[str, Any], broken: Dict[str, str]) -> Dict[str, Any]:
    """Run one probe to its end; every way it can end is a result."""
    declared = probing.PROBES.get(name)
    if declared is None:
        reason = "; ".join("%s: %s" % item for item in sorted(broken.items()))
        return _result("failed", "this agent has no probe %r%s" % (name, " (%s)" % reason if reason else ""))
    try:
        return _result("ok", "", declared.function(arguments))
    except probing.ProbeTrouble as trouble:
        return _result(trouble.outcome, trouble.detail, trouble.data)
    except ModuleNotFoundError as error:
        return _result("tool-missing", "no module %s" % error.name, {"module": error.name})
    except PermissionError as error:
        return _result("not-permitted", "%s: %s" % (error.filename or name, error.strerror or error))
    except Exception as error:  # noqa: BLE001 - a defect of one probe is that probe's result
        return _result("failed", "%s: %s (%s)" % (type(error).__name__, error, _last_place(error)))


def _last_place(error: BaseException) -> str:
    """Where an exception was raised, as module:line."""
    trace = error.__traceback__
    place = "?"
    while trace is not None:
        place = "%s:%d" % (trace.tb_frame.f_globals.get("__name__", "?"), trace.tb_lineno)
        trace = trace.tb_next
    return place


def _result(outcome: str, detail: str, data: Any = None) -> Dict[str, Any]:
    return {"outcome": outcome, "detail": detail, "data": data}


def encode(message: Dict[str, Any], limit: int = REPLY_LIMIT) -> bytes:
    """One line of the protocol. An answer that is too large or no JSON becomes a result that says so."""
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        return _instead(message, "failed", "the answer is not plain JSON: %s" % error)
    line = text.encode("utf-8", "replace") + b"\n"  # lone surrogates (odd file names) become "?"
    if len(line) > limit:
        return _instead(
            message, "truncated", "the answer of %d bytes is over the limit of %d bytes" % (len(line), limit)
        )
    return line


def _instead(message: Dict[str, Any], outcome: str, detail: str) -> bytes:
    if "result" not in message:
        return b""  # an event that cannot be told is dropped; the result still comes
    seconds = message["result"].get("seconds", 0.0)
    result = dict(_result(outcome, detail), seconds=seconds)
    return json.dumps({"id": message.get("id"), "result": result}).encode("ascii") + b"\n"


class Agent:
    """One agent on one stream. Probes run in threads; one thread writes, so that a slow reader blocks no probe."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in = in_fd
        self._out = out_fd
        self._lines: "queue.SimpleQueue[Optional[bytes]]" = queue.SimpleQueue()
        self._imported = threading.Event()
        self._broken: Dict[str, str] = {}
        self._wake_read, self._wake_write = os.pipe()

    def serve(self) -> None:
        """Serve until there is reason to end; raises ``_End``."""
        threading.Thread(target=self._write_lines, daemon=True, name="writer").start()
        threading.Thread(target=self._import, daemon=True, name="importer").start()
        for line in self._requests():
            self._handle(line)

    def _import(self) -> None:
        self._broken = import_probes()
        self._imported.set()

    def _requests(self) -> Iterator[bytes]:
        held = bytearray()
        while True:
            ready = select.select([self._in, self._wake_read], [], [], SILENCE_S)[0]
            if not ready:
                raise _End("nothing heard for %.0f s" % SILENCE_S)
            if self._wake_read in ready:
                raise _End("nobody reads the answers")
            block = os.read(self._in, 1 << 16)
            if not block:
                raise _End("")
            held += block
            *lines, rest = held.split(b"\n")
            if len(rest) > REQUEST_LIMIT:
                raise _End("request over %d bytes" % REQUEST_LIMIT)
            held = bytearray(rest)
            for line in lines:
                yield bytes(line)

    def _handle(self, line: bytes) -> None:
        try:
            request = json.loads(line.decode("utf-8"))
            operation = request["op"]
        except (ValueError, KeyError, TypeError):
            raise _End("a request that is not of the protocol") from None
        if operation == "ping":
            self._lines.put(encode({"id": 0}))
            return
        target = {"probe": self._probe, "module": self._module}.get(operation, self._unknown)
        try:
            threading.Thread(target=self._answer, args=(target, request), daemon=True, name="request").start()
        except RuntimeError as error:  # a limit on processes, or no memory: other requests may still be answered
            self._reply(request, _result("failed", str(error)), 0.0)

    def _answer(self, target: Callable[[Dict[str, Any]], None], request: Dict[str, Any]) -> None:
        try:
            target(request)
        except Exception as error:  # noqa: BLE001 - no request stays without an answer
            self._reply(request, _result("failed", "%s: %s" % (type(error).__name__, error)), 0.0)

    def _unknown(self, request: Dict[str, Any]) -> None:
        self._reply(request, _result("failed", "this agent has no operation %r" % request["op"]), 0.0)

    def _module(self, request: Dict[str, Any]) -> None:
        name = str(request["name"])
        finder: Any = getattr(nccl_doctor.agent.probes.__spec__, "loader", None)
        if not hasattr(finder, "sources"):
            self._reply(request, _result("not-supported", "this agent was not started from a stream"), 0.0)
            return
        finder.sources[name] = [zlib.decompress(base64.b64decode(request["source"])).decode("utf-8"), False]
        importlib.invalidate_caches()
        self._reply(request, _result("ok", ""), 0.0)

    def _probe(self, request: Dict[str, Any]) -> None:
        """Run one probe in a second thread, and answer for it when its time is over."""
        started = time.monotonic()
        limit_s = float(request.get("limit_s") or DEFAULT_LIMIT_S)
        answer: List[Dict[str, Any]] = []
        done = threading.Event()
        overdue = threading.Event()

        def send_event(event: Dict[str, Any]) -> None:
            if not overdue.is_set():
                self._lines.put(encode({"id": request["id"], "event": event}))

        def work() -> None:
            try:
                if self._imported.wait(limit_s):
                    probing.set_emitter(send_event)
                    answer.append(run_probe(str(request["name"]), dict(request.get("arguments") or {}), self._broken))
            except BaseException as error:  # noqa: BLE001 - SystemExit from a library ends a probe, not the agent
                answer.append(_result("failed", "%s: %s" % (type(error).__name__, error)))
            done.set()

        threading.Thread(target=work, daemon=True, name="probe").start()
        done.wait(limit_s)
        overdue.set()
        seconds = time.monotonic() - started
        self._reply(request, answer[0] if answer else _result("timed-out", "no answer within %g s" % limit_s), seconds)

    def _reply(self, request: Dict[str, Any], result: Dict[str, Any], seconds: float) -> None:
        self._lines.put(encode({"id": request["id"], "result": dict(result, seconds=round(seconds, 4))}))

    def _write_lines(self) -> None:
        try:
            while True:
                line = self._lines.get()
                if line:
                    write_all(self._out, line)
        except OSError:
            os.write(self._wake_write, b"x")


def write_all(fd: int, data: bytes) -> None:
    """Write all of it; waits where the other side set the descriptor to non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            select.select([], [fd], [])


def hello() -> Dict[str, Any]:
    """Who answers: for the session's first look."""
    return {"python": "%d.%d.%d" % sys.version_info[:3], "pid": os.getpid()}


def _take_stdio(stream: Any) -> Tuple[int, int]:
    """Keep stdin and stdout for the protocol alone: what anything else prints goes to stderr."""
    in_fd, out_fd = os.dup(stream.fileno()), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return in_fd, out_fd


def _end_on_signal(number: int, frame: Any) -> None:
    raise _End("signal %d" % number)


def serve(stream: Any, marker: str) -> None:
    """Serve the controller at the other end of ``stream``; does not return. ``marker`` introduces the hello line."""
    in_fd, out_fd = _take_stdio(stream)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is written on the host, by no Python we start either
    children.outlive_parent()
    children.adopt_orphans()
    reason = ""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, _end_on_signal)
        write_all(out_fd, b"\n" + marker.encode("ascii") + b" hello " + encode(hello()))
        Agent(in_fd, out_fd).serve()
    except _End as end:
        reason = str(end)
    except Exception as error:  # noqa: BLE001 - whatever ends the agent is told
        reason = "%s: %s" % (type(error).__name__, error)
    finally:
        _ignore_signals()
        children.kill_all()
        if reason:
            _last_words(reason)
        os._exit(0)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _last_words(reason: str) -> None:
    """Say on stderr why the agent ends. The reader may be gone or stuck, so never wait for it."""
    try:
        os.set_blocking(2, False)
        os.write(2, ("nccl-doctor agent ends: %s\n" % reason).encode("utf-8", "replace"))
    except OSError:
        pass  # nobody is there to hear it
