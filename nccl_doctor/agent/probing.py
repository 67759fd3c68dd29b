"""What probes are made of: the declaration, the ways a probe can end, and commands with a time and an output limit."""

import os
import re
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from nccl_doctor.agent import children

Probe = Callable[[Dict[str, Any]], Dict[str, Any]]


class Declared(NamedTuple):
    """A declared probe: its function, the stage of ``check`` that needs it, and its time limit in seconds."""

    function: Probe
    stage: str
    limit_s: float


PROBES: Dict[str, Declared] = {}

# Prefix for every absolute path a probe reads. Tests point it at a recorded tree; on hosts it is empty.
ROOT = os.environ.get("NCCL_DOCTOR_ROOT", "")


class ProbeTrouble(Exception):
    """A probe that could not do its work. ``outcome`` is one of facts.model.Outcome's values, ``detail`` a sentence.

    ``data`` may carry what was read before the trouble (with outcome ``truncated``).
    """

    def __init__(self, outcome: str, detail: str, data: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
        self.data = data


def probe(name: str, stage: str = "", limit_s: float = 10.0) -> Callable[[Probe], Probe]:
    """Declare a probe: ``(arguments) -> data``. ``data`` is plain JSON: dict, list, str, int, float, bool, None."""

    def declare(function: Probe) -> Probe:
        PROBES[name] = Declared(function, stage, limit_s)
        return function

    return declare


def path(absolute: str) -> str:
    """The path to read for ``absolute``: itself, or its place under the recorded tree."""
    return ROOT + absolute if ROOT else absolute


def whole_number(text: Optional[str]) -> Optional[int]:
    """A whole number in sysfs's ways to write one (``-1``, ``0x1f``); None for anything else, or beyond 64 bits."""
    try:
        value = int(text or "", 0)
    except ValueError:
        return None
    return value if -(1 << 63) <= value < 1 << 64 else None


def read_text(absolute: str, limit: int = 1 << 20) -> Optional[str]:
    """The text of a small file, or None if it is not there. ``PermissionError`` passes through (not-permitted)."""
    try:
        with open(path(absolute), "rb") as stream:
            return stream.read(limit).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return None  # sysfs files of absent hardware answer EINVAL, ENODEV, EIO: nothing to read


def readable(absolute: str, limit: int = 1 << 16) -> str:
    """The text of a small file without blanks around it; empty if it is empty, not there or not ours to read."""
    try:
        return (read_text(absolute, limit) or "").strip()
    except PermissionError:
        return ""


def first_line(absolute: str) -> Optional[str]:
    """The first line of a small file without blanks around it; None if it is empty, not there or not ours to read."""
    try:
        lines = (read_text(absolute, 4096) or "").splitlines()
    except PermissionError:
        return None
    return lines[0].strip() if lines else None


def real(absolute: str) -> str:
    """The file behind symbolic links, as a path on the host."""
    found = os.path.realpath(path(absolute))
    return found[len(os.path.realpath(ROOT)) :] if ROOT else found


def uptime() -> Optional[float]:
    """Seconds since the boot; None where /proc does not tell."""
    try:
        seconds = float((first_line("/proc/uptime") or "").split()[0])
    except (ValueError, IndexError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def listed(absolute: str) -> List[str]:
    """The names in a directory, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(path(absolute)))
    except OSError:
        return []


def link(absolute: str) -> str:
    """Where a link leads; empty where it is gone or not ours to read."""
    try:
        return os.readlink(path(absolute))
    except OSError:
        return ""


def link_name(absolute: str) -> str:
    """The last part of where a link leads, as sysfs names drivers and devices; empty where there is none."""
    return os.path.basename(link(absolute))


def is_loaded(module: str) -> bool:
    """Whether a kernel module is there, loaded or built in."""
    return os.path.isdir(path("/sys/module/" + module))


def owner(pid: int) -> Optional[int]:
    """The user id of a process; None where it has ended."""
    found = re.search(r"^Uid:\s+(\d+)", readable("/proc/%d/status" % pid), re.M)
    return int(found.group(1)) if found else None


def stat_fields(pid: int, task: str = "") -> List[str]:
    """/proc/PID/stat behind the name, from the state on; empty where the process has ended. ``task``: ``task/TID/``."""
    return (read_text("/proc/%d/%sstat" % (pid, task), 4096) or "").rpartition(")")[2].split()


class CommandResult(NamedTuple):
    """What a command gave. ``outcome`` is ok, tool-missing, not-permitted, failed, timed-out or truncated.

    ``returncode`` is None where it never ended by itself; times are in seconds.
    """

    outcome: str
    returncode: Optional[int]
    stdout: str
    stderr: str
    seconds: float

    @property
    def detail(self) -> str:
        """One sentence on how it ended, with the first line of its error output."""
        first = next((line.strip() for line in self.stderr.splitlines() if line.strip()), "")
        if self.outcome == "timed-out":
            return "did not answer within %.0f s" % self.seconds
        if self.returncode:
            return "exit status %d%s" % (self.returncode, ": " + first[:300] if first else "")
        return first[:300]


Emitter = Callable[[Dict[str, Any]], None]

_thread = threading.local()


def set_emitter(emitter: Emitter) -> None:
    """Set what :func:`emitter` gives in this thread (the runtime does so in the thread of each probe)."""
    _thread.emitter = emitter


def emitter() -> Emitter:
    """The function that sends an event of the running probe to the controller; usable from any thread.

    Call it in the probe's own thread and hand the result to the threads that the probe starts.
    """
    found: Emitter = getattr(_thread, "emitter", lambda event: None)
    return found


def run_command(argv: Sequence[str], limit_s: float = 10.0, limit_bytes: int = 4 << 20) -> CommandResult:
    """Run a command in its own process group, without a shell, within a time and an output limit.

    What outlives the limit is killed with its children. A process that cannot be killed (stuck in the driver, state D)
    is left behind after 1 s and reported as timed out: the caller never hangs.
    """
    started = time.monotonic()
    env = dict(os.environ, LC_ALL="C", LANG="C")
    try:
        child = children.spawn(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    except FileNotFoundError:
        return CommandResult("tool-missing", None, "", "%s: not found" % argv[0], 0.0)
    except PermissionError as error:
        return CommandResult("not-permitted", None, "", str(error), 0.0)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return CommandResult("failed", None, "", str(error), 0.0)
    kept: Dict[str, List[bytes]] = {"stdout": [], "stderr": []}
    cut = threading.Event()
    readers = [
        threading.Thread(target=_drain, args=(stream, kept[name], limit_bytes, cut), daemon=True)
        for name, stream in (("stdout", child.stdout), ("stderr", child.stderr))
    ]
    for reader in readers:
        reader.start()
    timed_out = not _wait(child, started + limit_s, cut)
    children.kill_group(child.pid)  # not reaped yet, so the group is still ours; a grandchild may hold the pipe
    for reader in readers:
        reader.join(1.0)
    children.finish(child)
    stdout = b"".join(kept["stdout"]).decode("utf-8", "replace")
    stderr = b"".join(kept["stderr"]).decode("utf-8", "replace")
    seconds = time.monotonic() - started
    if timed_out:
        outcome = "timed-out"
    elif cut.is_set():
        outcome = "truncated"
    else:
        outcome = "ok" if child.returncode == 0 else "failed"
    return CommandResult(outcome, child.returncode, stdout, stderr, seconds)


def _drain(stream: Any, kept: List[bytes], room: int, cut: threading.Event) -> None:
    """Keep up to ``room`` bytes; more output than anyone will read stops the command rather than being drained."""
    for block in iter(lambda: stream.read1(65536), b""):
        kept.append(block[:room])
        room -= len(block)
        if room < 0:
            cut.set()
            return


def _wait(child: "subprocess.Popen[bytes]", end: float, cut: threading.Event) -> bool:
    """Wait for the command's end or for too much output; False if the time ran out first."""
    while True:
        left = end - time.monotonic()
        if children.wait_unreaped(child, max(0.0, min(left, 0.1))) or cut.is_set():
            return True
        if left <= 0:
            return False


def in_parallel(items: List[Any], work: Any, width: int) -> List[Any]:
    """``work`` applied to all items by at most ``width`` threads; results in the items' order."""
    results = [None] * len(items)  # type: List[Any]
    todo = list(range(len(items)))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not todo:
                    return
                index = todo.pop(0)
            results[index] = work(items[index])

    workers = [threading.Thread(target=run, daemon=True) for _ in range(min(width, len(items)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results
