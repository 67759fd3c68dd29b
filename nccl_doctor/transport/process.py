"""A local child process as a stream: for the local transport and for commands such as ssh, srun, kubectl."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

from nccl_doctor.agent import children
from nccl_doctor.agent.children import die_with_parent
from nccl_doctor.transport.descriptors import as_started

STDERR_TAIL = 8 << 10  # bytes kept of a command's stderr


class ProcessStream:
    """The stdin and stdout of a local command.

    The command gets a session of its own (Ctrl-C is ours to handle; no terminal to ask a password on), and the kernel
    kills it when this process dies. A thread of its own starts it, keeps the end of its stderr and waits for it: the
    kernel's promise is tied to the starting thread, so that thread must live as long as the command. (A local agent
    takes itself out of the promise once it runs: the end of its input ends it, and it takes its children along.)
    """

    may_block = True  # a pipe holds 64 KiB

    def __init__(self, argv: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start it; raises ``OSError`` where that fails."""
        self._tail = bytearray()
        self._ended = threading.Event()
        started = threading.Event()
        trouble: list[Exception] = []
        end_with_us = die_with_parent(os.getpid())

        def between_fork_and_exec() -> None:
            end_with_us()
            as_started()

        def own() -> None:
            try:
                self._child = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=between_fork_and_exec,
                )
            except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
                trouble.append(error)
                started.set()
                return
            started.set()
            self._keep_stderr()
            self._child.wait()
            self._ended.set()

        threading.Thread(target=own, daemon=True, name="child").start()
        started.wait()
        if trouble:
            raise trouble[0]
        assert self._child.stdin is not None and self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        # A closed descriptor's number is given to the next file at once: nobody may read or write one unawares.
        self._lock = threading.Lock()
        self._in_closed = self._out_closed = False

    def _keep_stderr(self) -> None:
        assert self._child.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(self._child.stderr.fileno(), 4096):
                self._tail += block
                del self._tail[:-STDERR_TAIL]

    def write(self, data: bytes, limit_s: float) -> None:
        """Write all of it. ``TimeoutError`` when none of it went for so long, ``OSError`` when the other side is gone."""
        end = time.monotonic() + limit_s
        view = memoryview(data)
        while view:
            with self._lock:
                if self._in_closed:
                    raise BrokenPipeError("the stream is closed")
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._in, view) :]
                    end = time.monotonic() + limit_s
                    continue
            if not _ready(self._in, select.POLLOUT, end - time.monotonic()):
                raise TimeoutError(f"the command did not read its input within {limit_s:.0f} s")

    def read(self, limit_s: float) -> bytes:
        """What has come, at least one byte; empty at the end. ``TimeoutError`` when nothing came in time."""
        end = time.monotonic() + limit_s
        while _ready(self._out, select.POLLIN, end - time.monotonic()):
            with self._lock:
                if self._out_closed:
                    return b""
                with contextlib.suppress(BlockingIOError):
                    return os.read(self._out, 1 << 16)
        raise TimeoutError

    def error_text(self) -> str:
        """The last few kilobytes of the command's stderr."""
        return bytes(self._tail).decode("utf-8", "replace")

    def status(self, limit_s: float) -> int | None:
        """The command's exit status, or None where it did not come in time. Negative: killed by that signal."""
        self._ended.wait(limit_s)
        return self._child.returncode

    def close(self, grace_s: float = 1.5) -> None:
        """Close its input, give it a moment to end by itself, then kill it with all its descendants."""
        with self._lock, contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._in_closed = True
            self._child.stdin.close()
        if not self._ended.wait(grace_s):
            _kill_tree(self._child.pid)
            self._ended.wait(1.0)
        with self._lock, contextlib.suppress(OSError):
            assert self._child.stdout is not None
            self._out_closed = True
            self._child.stdout.close()


class ProxyProcess:
    """A ProxyCommand: a local command whose stdin and stdout are one end of a socket pair; the other end is ours.

    Has the few methods of a socket that paramiko uses.
    """

    def __init__(self, command: str) -> None:
        """Start the user's own command line with the user's shell, as ssh does."""
        self._ours, theirs = socket.socketpair()
        memory = os.memfd_create("stderr") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
        self._errors = os.fdopen(memory, "rb", 0)  # no file: a full disk is no reason not to connect
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            self._child = children.start(
                [shell, "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors
            )
        except BaseException:
            self._ours.close()
            self._errors.close()
            raise
        finally:
            theirs.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    def ending(self) -> tuple[str, ...]:
        """How the command ended, if it has, and the last of what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
        size = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), STDERR_TAIL, max(0, size - STDERR_TAIL)).decode("utf-8", "replace")
        status = self._child.returncode
        return ("it still runs" if status is None else f"exit status {status}", *said.splitlines()[-3:])

    def close(self) -> None:
        """Close our end; a command that does not end by itself is killed with its descendants."""
        self._ours.close()
        self._errors.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
            return
        _kill_tree(self._child.pid)


def _ready(descriptor: int, event: int, limit_s: float) -> bool:
    poll = select.poll()  # select() fails for descriptors above 1023: 500 hosts reach that
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, limit_s) * 1000))


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.Error):
                process.kill()
