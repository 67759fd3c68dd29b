"""What a job prints: handed on as it comes, its end kept, and when the last of it came."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nccl_doctor.cli import _tell

KEPT_BYTES = 256 << 20  # of the job's output, at least its last half: a job may print for weeks
TAIL_BYTES = 1 << 20  # of it that stays where a full disk makes it begin anew


class Kept:
    """The end of the job's output, in two files of half the size (when one is full, the older one goes), and when the last
    of it came."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        names = ("job-output-before", "job-output")  # no number: it would be a rank
        self.older, self.newer = (directory / name for name in names)
        self.heard = time.monotonic()
        self.lost = ""  # why not all of it is there
        self._half = KEPT_BYTES // 2
        self._stream = self.newer.open("wb+", buffering=0)  # a kill -9 of this process loses nothing
        self._lock = threading.Lock()
        self._handing_on = 0

    def write(self, block: bytes) -> None:
        """Append. A full disk loses the beginning of the copy, never the job's own output."""
        with self._lock:
            try:
                if self._stream.tell() > self._half:
                    self._stream.close()
                    self.newer.replace(self.older)
                    self._stream = self.newer.open("wb+", buffering=0)
                self._append(block)
            except (OSError, ValueError) as error:
                self.lost = getattr(error, "strerror", "") or str(error)

    def _append(self, block: bytes) -> None:
        file, size = self._stream.fileno(), self._stream.tell()
        try:
            _write_all(file, block)
        except OSError:
            with contextlib.suppress(OSError):
                there = size + (self.older.stat().st_size if self.older.exists() else 0)
                self._half = max(there // 3, TAIL_BYTES)  # what it took has to do from now on, with some room
                tail = min(size, TAIL_BYTES)
                end = os.pread(file, tail, size - tail)
                self.older.unlink(missing_ok=True)
                self._stream.truncate(self._stream.seek(0))
                _write_all(file, end + block)
            raise

    @contextlib.contextmanager
    def handing_on(self) -> Iterator[None]:
        """While this lasts, it is our own reader that the job waits for."""
        with self._lock:
            self._handing_on += 1
        try:
            yield
        finally:
            with self._lock:
                self._handing_on -= 1
                self.heard = time.monotonic()

    def silent_s(self) -> float:
        """For how long the job has printed nothing, in seconds."""
        with self._lock:
            return 0.0 if self._handing_on else time.monotonic() - self.heard

    def files(self) -> list[str]:
        """The names of the files that hold something, older first."""
        return [path.name for path in (self.older, self.newer) if path.exists() and path.stat().st_size]


def hand_on(source: IO[bytes], sink: int, kept: Kept) -> None:
    """Hand on to a descriptor what comes; no buffer of ours is between, which could fail once more at our exit."""
    failed = False
    for block in iter(lambda: source.read1(65536), b""):  # type: ignore[attr-defined]
        kept.write(block)
        try:
            with kept.handing_on():
                _write_all(sink, block)
        except BrokenPipeError:
            pass  # our own reader went away: the job and its log go on
        except OSError as error:
            if not failed:
                _tell.say(f"output of the job cannot be handed on ({error.strerror}); the job goes on")
            failed = True


def _write_all(sink: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        try:
            left = left[os.write(sink, left) :]
        except BlockingIOError:  # who shares it has made it so: a terminal's other program, ssh
            select.select([], [sink], [])
