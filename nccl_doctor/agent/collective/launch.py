"""Start the ranks of one host, follow them, and leave none behind.

A rank is a child process in a group of its own, in any Python that has torch. Its code travels over its stdin, which is
also its lifeline: when this process goes, the rank ends. Nothing is written to disk: events, stderr and the NCCL log
come through pipes, so a full disk loses no evidence.
"""

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from nccl_doctor.agent import children
from nccl_doctor.agent.job import stacks
from nccl_doctor.agent.probing import run_command, stat_fields
from nccl_doctor.agent.redaction import redact_text

Emit = Callable[[Dict[str, Any]], None]

_PACKAGE = __package__ or "nccl_doctor.agent.collective"
_MODULES = (
    "",
    ".board",
    ".channel",
    ".errors",
    ".gemm",
    ".group",
    ".measuring",
    ".memory",
    ".operations",
    ".pairs",
    ".patterns",
    ".ranks",
    ".sockets",
    ".timing",
    ".worker",
    ".world",
)
_BESIDE = (".cgroups", ".children", ".filesystems", ".probing")  # what they need of the agent: how much memory there is

# Runs in the rank's Python: import the sources that come on the first line of stdin, then do the job.
BOOTSTRAP = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.abc, importlib.util, json
job = json.loads(sys.stdin.buffer.readline())
class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in job["sources"]:
            return importlib.util.spec_from_loader(name, self, is_package=name in job["packages"])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(job["sources"][name], "<" + name + ">", "exec"), module.__dict__)
    def get_source(self, name):
        return job["sources"][name]
sys.meta_path.insert(0, Sources())
importlib.import_module(job["module"]).main(job)
"""

# Variables of another launcher would contradict the identity that we give.
_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_FOREIGN_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")

# Not /dev/stderr, which udev makes: where it is missing (a bare /dev), NCCL would create a file of that name.
LOG_FILE = "/proc/self/fd/2"
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV"  # what NCCL logs by itself; said, or an nccl.conf that narrows it would hide the path
KEEP_BYTES = 96 << 10  # of each rank's output: this much of its beginning, and as much of its end
STACKS_S = 3.0
GRACE_S = 4.0  # after the first failure, for the other ranks to tell where they were
SILENT_S = 4.0  # without a beat (one a second) a rank is looked at


class Tail:
    """The beginning and the end of a stream, within a limit, as text."""

    def __init__(self, keep: int = KEEP_BYTES) -> None:
        self.keep = keep
        self.head = bytearray()
        self.tail = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Take in more of the stream."""
        room = self.keep - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 2 * self.keep:
            self.dropped += len(self.tail) - self.keep
            del self.tail[: -self.keep]

    def text(self) -> str:
        """What was kept; where something was left out, a line says how much."""
        cut = "\n[... %d bytes left out ...]\n" % self.dropped if self.dropped else ""
        return self.head.decode("utf-8", "replace") + cut + self.tail.decode("utf-8", "replace")


class Rank:
    """One child: its process, what it last told, and what it printed."""

    def __init__(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        self.rank = rank
        self.process = process
        self.output = Tail()
        self.pending = b""
        self.where: Dict[str, Any] = {"stage": "spawn", "detail": "", "step_s": 0.0}
        self.heard = time.monotonic()
        self.limit_s = 60.0
        self.error: Optional[Dict[str, Any]] = None
        self.finished = False
        self.killed = ""  # why we ended it
        self.state = ""
        self.stack = ""
        self.open_pipes = 2

    @property
    def ended(self) -> bool:
        """The process is gone and all that it wrote has been read."""
        return self.process.poll() is not None and self.open_pipes <= 0


def sources() -> Dict[str, str]:
    """The text of the worker's modules, from wherever this package was imported (files, a zip, memory)."""
    texts = {"nccl_doctor": "", "nccl_doctor.agent": ""}
    beside = _PACKAGE.rpartition(".")[0]
    for name in (*(_PACKAGE + suffix for suffix in _MODULES), *(beside + suffix for suffix in _BESIDE)):
        spec = importlib.util.find_spec(name)
        text = spec.loader.get_source(name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
        if text is None:
            raise RuntimeError("the source of %s is not at hand" % name)
        texts[name] = text
    return texts


def rank_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> Dict[str, str]:
    """A rank's environment: this one without other launchers' traces, with NCCL's log on stderr, plus ``extra``."""
    env = {
        name: value for name, value in base.items() if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }
    env.setdefault("NCCL_DEBUG", "INFO")
    if env["NCCL_DEBUG"].upper() not in ("INFO", "TRACE"):
        env["NCCL_DEBUG"] = "INFO"  # the path is read from this log
    env["NCCL_DEBUG_FILE"] = LOG_FILE
    env["NCCL_DEBUG_SUBSYS"] = SUBSYSTEMS
    env["PYTHONUNBUFFERED"] = "1"
    env.update(extra)
    return env


def process_state(pid: int) -> str:
    """The kernel's word for what a process does: ``R``, ``S``, ``D``, ``T`` (stopped), ``Z``; empty if it is gone."""
    return "".join(stat_fields(pid)[:1])


_ACTIVE: "Set[Launch]" = set()


def stop_all(why: str) -> int:
    """Ask every launch of this process to end with its evidence; how many there were."""
    active = list(_ACTIVE)
    for launch_ in active:
        launch_.stop_reason = why
    return len(active)


class Launch:
    """The ranks of one host from start to end."""

    def __init__(self, arguments: Mapping[str, Any], emit: Emit) -> None:
        self.emit = emit
        self.arguments = arguments
        self.ranks: List[Rank] = []
        self.events: List[Dict[str, Any]] = []  # what rank 0 found; kept for the answer
        self.deadline = time.monotonic() + float(arguments.get("limit_s", 600.0))
        self.give_up: Optional[float] = None
        self.selector = selectors.DefaultSelector()
        self.stop_reason = ""

    def run(self) -> Dict[str, Any]:
        """Start, follow until all have ended or the limit has passed, and tell how each one ended."""
        started = time.monotonic()
        _ACTIVE.add(self)
        try:
            self._start()
            self._follow()
        finally:
            _ACTIVE.discard(self)
            self._kill_all("the run ended")
            self.selector.close()
        return {
            "host": socket.gethostname(),
            "python": self._python(),
            "seconds": round(time.monotonic() - started, 3),
            "ranks": [self._describe(rank) for rank in self.ranks],
            "events": self.events,
        }

    def _python(self) -> str:
        return str(self.arguments.get("python") or sys.executable)

    def _start(self) -> None:
        texts = sources()
        env = rank_environment(os.environ, self.arguments.get("env") or {})
        first, local_world = int(self.arguments["first_rank"]), int(self.arguments["local_world"])
        for local_rank in range(local_world):
            own = dict(env)
            for name, value in (self.arguments.get("env_per_rank") or {}).items():
                own[name] = str(value).replace("{rank}", str(first + local_rank))
            # The thread that starts it follows it to its end, as children.spawn asks.
            child = children.spawn(
                [self._python(), "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=own,
            )
            rank = Rank(first + local_rank, child)
            self.ranks.append(rank)
            job = {
                "sources": texts,
                "packages": ["nccl_doctor", "nccl_doctor.agent", _PACKAGE],
                "module": _PACKAGE + ".worker",
                "plan": self.arguments["plan"],
                "identity": {
                    "rank": first + local_rank,
                    "world": int(self.arguments["world"]),
                    "local_rank": local_rank,
                    "local_world": local_world,
                    "master_addr": self.arguments["master_addr"],
                    "master_port": int(self.arguments["master_port"]),
                    "launcher": "nccl-doctor",
                },
            }
            assert child.stdin and child.stdout and child.stderr
            with contextlib.suppress(BrokenPipeError):  # it died at once: its stderr says why
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
            self.selector.register(child.stdout, selectors.EVENT_READ, (rank, "events"))
            self.selector.register(child.stderr, selectors.EVENT_READ, (rank, "stderr"))

    def _follow(self) -> None:
        while not all(rank.ended for rank in self.ranks):
            for key, _ in self.selector.select(0.2):
                self._read(key)
            self._look()
            now = time.monotonic()
            if self.stop_reason:
                why, self.stop_reason = self.stop_reason, ""
                self._end_with_evidence(why)
            elif now > self.deadline:
                self._end_with_evidence("the time limit of the run was reached")
            elif self.give_up is not None and now > self.give_up:
                self._end_with_evidence("another rank had failed")

    def _read(self, key: selectors.SelectorKey) -> None:
        rank, what = key.data
        data = os.read(key.fd, 65536)
        if not data:
            self.selector.unregister(key.fileobj)
            rank.open_pipes -= 1
            return
        if what == "stderr":
            rank.output.add(data)
            return
        *lines, rank.pending = (rank.pending + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._take(rank, json.loads(line.decode("utf-8", "replace")))

    def _take(self, rank: Rank, event: Dict[str, Any]) -> None:
        rank.heard = time.monotonic()
        kind = event.get("event")
        if "text" in event:
            event["text"] = redact_text(str(event["text"]))
        if kind in ("stage", "beat", "stuck", "error", "done"):
            names = ("stage", "detail", "step_s", "iterations")
            rank.where = {name: event[name] for name in names if name in event}
            rank.limit_s = float(event.get("limit_s") or rank.limit_s)
        if kind in ("error", "stuck"):
            rank.error = event
        if kind == "done":
            rank.finished = True
        if kind in ("world", "size", "skip", "link", "gemm", "path"):
            self.events.append(event)
        if kind != "beat" or not rank.rank:
            self.emit(event)

    def _look(self) -> None:
        """Notice ranks that died or fell silent; after the first failure the others get a short grace."""
        now = time.monotonic()
        for rank in self.ranks:
            code = rank.process.poll()
            if code is not None:
                if not rank.finished and self.give_up is None:
                    self.give_up = now + GRACE_S
                continue
            silent_s = now - rank.heard
            if silent_s > SILENT_S and rank.where["stage"] != "spawn":
                rank.state = process_state(rank.process.pid)
                if silent_s > rank.limit_s + SILENT_S and self.give_up is None:
                    # Not even its watchdog speaks: a call hangs with Python's lock held.
                    rank.where["step_s"] = round(silent_s, 1)
                    self.give_up = now
                if rank.state == "T" and self.give_up is None:
                    self.emit({"event": "stopped", "rank": rank.rank, **rank.where})
                    self.give_up = now + 1.0  # the others only wait: there is nothing more to hear from them

    def _end_with_evidence(self, why: str) -> None:
        """Take the state and the stacks of all that still run, then kill them."""
        alive = [rank for rank in self.ranks if rank.process.poll() is None]
        spied_until = time.monotonic() + STACKS_S  # of all together: who asks for this host's answer does not wait long
        for rank in alive:
            rank.state = process_state(rank.process.pid)
            if rank.state != "T" and time.monotonic() < spied_until:
                rank.stack = py_spy(rank.process.pid)
            if rank.where["stage"] != "spawn":  # before that, SIGUSR1 would kill it
                with contextlib.suppress(OSError):
                    os.kill(rank.process.pid, signal.SIGUSR1)
        # A busy host needs a moment to write a stack: wait for the first, then until half a second passes without more.
        until = time.monotonic() + STACKS_S
        while alive and time.monotonic() < until:
            ready = self.selector.select(0.1)
            for key, _ in ready:
                self._read(key)
            if ready:
                until = min(until, time.monotonic() + 0.5)
        self._kill_all(why)
        self.give_up = None
        self.deadline = max(self.deadline, time.monotonic() + 5.0)

    def _kill_all(self, why: str) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.killed = why
                with contextlib.suppress(OSError):
                    os.killpg(rank.process.pid, signal.SIGKILL)
        for rank in self.ranks:
            children.finish(rank.process, 2.0)
            with contextlib.suppress(OSError):
                if rank.process.stdin:
                    rank.process.stdin.close()

    def _describe(self, rank: Rank) -> Dict[str, Any]:
        code = rank.process.poll()
        return {
            "rank": rank.rank,
            "pid": rank.process.pid,
            "where": rank.where,
            "finished": rank.finished,
            "exit": code,
            "signal": signal_name(-code) if code is not None and code < 0 and not rank.killed else "",
            "killed": rank.killed,
            "state": rank.state,
            "error": rank.error,
            "stack": redact_text(rank.stack),
            "output": redact_text(rank.output.text()),
            "output_cut": rank.output.dropped,
        }


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def py_spy(pid: int) -> str:
    """The Python and native stack of a process by py-spy, where it is installed; else empty."""
    program = stacks.find()
    if not program:
        return ""
    dump = run_command([program, "dump", "--pid", str(pid)], limit_s=3.0, limit_bytes=64 << 10).stdout
    return dump[dump.find("\nThread ") + 1 :]  # the command line before it is our bootstrap, whole


def launch(arguments: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Run this host's ranks. ``arguments``: ``plan``, ``world``, ``first_rank``, ``local_world``, ``master_addr``,
    ``master_port``, and optionally ``python``, ``env``, ``env_per_rank`` (``{rank}`` is replaced), ``limit_s``."""
    return Launch(arguments, emit).run()


def free_port() -> int:
    """A TCP port that is free now. Another process may take it before it is used; the store then says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
