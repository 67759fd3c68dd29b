"""The processes this agent started: each in a group of its own, all of them killed when the agent ends.

Two nets: the kernel kills a child when the agent dies (``PR_SET_PDEATHSIG``), and the agent itself, before it ends,
kills every group it started and then whatever else descends from it: as a *child subreaper* it inherits the orphans
of double-forking daemons, so /proc shows them as its descendants.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_lock = threading.Lock()
_running: Dict[int, "subprocess.Popen[bytes]"] = {}


def _find_prctl() -> Optional[Callable[..., int]]:
    """The C library's prctl; None where ctypes or prctl is missing (then the second net alone holds)."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        function: Callable[..., int] = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return function


_prctl = _find_prctl()  # looked up once: nothing may be imported between fork and exec


def adopt_orphans() -> bool:
    """Make this process the one that inherits orphans among its descendants; False where the kernel cannot."""
    return _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def outlive_parent() -> None:
    """Take back a ``PR_SET_PDEATHSIG`` that this process was started with: an agent ends when its input ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """What a child does between fork and exec, so that this signal ends it when the thread that forked it dies."""

    def between_fork_and_exec() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the line above took effect

    return between_fork_and_exec


def spawn(argv: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a command in its own session and register it. The *calling thread* must outlive it.

    The kernel ties ``PR_SET_PDEATHSIG`` to the thread that forked, so a command that is to run longer than the caller
    is started with :func:`start`. Raises what ``subprocess.Popen`` raises.
    """
    options.setdefault("stdin", subprocess.DEVNULL)
    child: subprocess.Popen[bytes] = subprocess.Popen(
        list(argv), start_new_session=True, preexec_fn=die_with_parent(os.getpid()), **options
    )
    with _lock:
        _running[child.pid] = child
    return child


def start(argv: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a long-running command from a thread of its own, which lives as long as the command.

    Options are those of ``subprocess.Popen``; stdin is /dev/null unless given. The command is killed with its group
    when the agent ends. ``wait()`` and ``poll()`` work as usual. Raises what ``subprocess.Popen`` raises.
    """
    answer: List[Any] = []
    started = threading.Event()

    def own() -> None:
        try:
            child = spawn(argv, **options)
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
            answer.append(error)
            started.set()
            return
        answer.append(child)
        started.set()
        wait_unreaped(child, None)
        finish(child)

    threading.Thread(target=own, daemon=True, name="child").start()
    started.wait()
    if isinstance(answer[0], Exception):
        raise answer[0]
    child: subprocess.Popen[bytes] = answer[0]
    return child


def wait_unreaped(child: "subprocess.Popen[bytes]", limit_s: Optional[float]) -> bool:
    """Wait until a child has ended, without reaping it, so that its group can still be killed safely.

    A reaped process id may already be another process's. False if the limit (seconds; None: no limit) passed first.
    """
    end = None if limit_s is None else time.monotonic() + limit_s
    pause = 0.001
    while child.returncode is None:
        try:
            flags = os.WEXITED | os.WNOWAIT | (0 if end is None else os.WNOHANG)
            if os.waitid(os.P_PID, child.pid, flags) is not None:
                return True
        except ChildProcessError:
            return True  # somebody else reaped it
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def kill_group(pid: int) -> None:
    """Kill a process group that this agent started; silent if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def finish(child: "subprocess.Popen[bytes]", limit_s: float = 1.0) -> None:
    """Kill what is left of a child's group, reap the child and forget it.

    A process that cannot be killed (state D, stuck in a driver) is left behind after ``limit_s`` seconds.
    """
    if child.returncode is None:
        kill_group(child.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(limit_s)
    with _lock:
        _running.pop(child.pid, None)


def _parents() -> Dict[int, int]:
    """Process id -> parent's, for every process that is not a zombie."""
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as stream:
                fields = stream.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 1 and fields[0] != b"Z":
            parents[int(name)] = int(fields[1])
    return parents


def descendants(ancestor: int) -> Set[int]:
    """The process ids of all living descendants of a process."""
    below: Dict[int, List[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)

    def walk(pid: int) -> Iterator[int]:
        for child in below.get(pid, []):
            yield child
            yield from walk(child)

    return set(walk(ancestor))


def kill_all(limit_s: float = 0.8) -> None:
    """Kill every group this agent started, then every other descendant, until none is left or the limit passes."""
    end = time.monotonic() + limit_s
    with _lock:
        groups = [pid for pid, child in _running.items() if child.returncode is None]
    for pid in groups:
        kill_group(pid)
    while os.path.isdir("/proc/self"):
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > end:
            return
        time.sleep(0.02)
