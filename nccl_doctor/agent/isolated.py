"""Calls into a driver that may never return, made in a child process that can be killed.

A thread that is stuck in a C call (a hung NVIDIA driver) blocks the process's exit and cannot be ended. A forked child
can: the parent reads what the child reports until the child is done or the limit is over, then kills its group and
leaves it. The child writes one JSON line per step, so that the call that hangs is known by name.
"""

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, List, NamedTuple, Optional

from nccl_doctor.agent import children
from nccl_doctor.agent.children import kill_group

Report = Callable[[Any], None]


class Isolated(NamedTuple):
    """What the child reported, in order, and how it ended: ok, timed-out, truncated or failed (with a sentence)."""

    outcome: str
    reports: List[Any]
    detail: str
    seconds: float


def call(
    function: Callable[[Report], None],
    limit_s: float,
    silence_s: Optional[float] = None,
    limit_bytes: int = 8 << 20,
    start_s: Optional[float] = None,
    on_report: Optional[Report] = None,
) -> Isolated:
    """Run ``function(report)`` in a forked child for at most ``limit_s`` seconds and return all it reported.

    It is given up earlier if it reports nothing for ``silence_s`` seconds (``start_s`` until its second report, where
    the first call takes longer): then one single call hangs. ``report`` takes plain JSON data. A child that cannot be
    killed (state D) is left behind; it holds none of this process's streams, and the kernel ends it as soon as the
    driver lets go of it. ``on_report`` takes what it reports as it comes, and then none of it is kept.
    """
    started = time.monotonic()
    reader, writer = os.pipe()
    end_with_us = children.die_with_parent(os.getpid())
    child = os.fork()
    if child == 0:
        _child(function, writer, limit_s, end_with_us)
    os.close(writer)
    reports: List[Any] = []
    rest, told, kept_bytes = b"", 0, 0
    timed_out = False
    waited = limit_s
    poll = select.poll()  # select() fails for descriptors above 1023
    poll.register(reader, select.POLLIN)
    try:
        while kept_bytes <= limit_bytes:
            if silence_s is not None:
                waited = min(start_s if start_s and told < 2 else silence_s, limit_s)
            left = min(waited, started + limit_s - time.monotonic())
            if left <= 0 or not poll.poll(left * 1000):
                timed_out = True
                break
            block = os.read(reader, 65536)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                (on_report or reports.append)(json.loads(line))
            told += len(lines)
            kept_bytes = len(rest) if on_report else kept_bytes + len(block)
    finally:
        os.close(reader)
        cut = kept_bytes > limit_bytes
        if timed_out or cut:
            _kill(child)
        status = _reap(child)
    seconds = time.monotonic() - started
    outcome, detail = "ok", ""
    if timed_out:
        outcome, detail = "timed-out", "did not answer within %.0f s" % min(waited, seconds)
    elif cut:
        outcome, detail = "truncated", "more than %d bytes" % limit_bytes
    elif status:
        outcome, detail = "failed", _how(status)
    return Isolated(outcome, reports, detail, seconds)


def _how(status: int) -> str:
    """How a child ended, by its wait status."""
    signalled = status & 0x7F
    return "killed by signal %d" % signalled if signalled else "exit status %d" % (status >> 8)


def _child(function: Callable[[Report], None], writer: int, limit_s: float, end_with_us: Callable[[], None]) -> None:
    """In the child: let go of the parent's streams, run, and leave without unwinding the parent's interpreter."""
    status = 1
    try:
        end_with_us()  # the kernel kills this child when the thread that forked it is gone
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(limit_s) + 2)  # and where the kernel does not, the alarm does
        os.dup2(writer, 3)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(4, max(256, _open_files_limit()))

        def report(data: Any) -> None:
            line = json.dumps(data).encode() + b"\n"
            while line:
                line = line[os.write(3, line) :]

        function(report)
        status = 0
    finally:
        os._exit(status)


def _open_files_limit() -> int:
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    except (OSError, ValueError):
        return 4096


def _kill(child: int) -> None:
    """Kill the child and whatever it started; by its own id too, for the instant before it leads its own group."""
    kill_group(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child, signal.SIGKILL)


def _reap(child: int) -> Optional[int]:
    """The child's wait status, or None where it does not end within a second (left behind, reaped by init)."""
    until = time.monotonic() + 1.0
    while True:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid:
            return status
        if time.monotonic() > until:
            _kill(child)
            return None
        time.sleep(0.01)
