"""Standard streams as a shell's user expects them: a reader that left ends nothing, a result not told is no success."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import Any

# What our own signs become where the locale's encoding lacks them (ASCII, Latin-1).
_PLAIN = {
    "✓": "+",
    "✗": "x",
    "└": "`",
    "├": "|",
    "│": "|",
    "─": "-",
    "█": "#",
    "·": ".",
    "…": "...",
    "→": "->",
    "×": "x",
}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """A codec error handler: a result is told in plainer signs rather than not at all."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error("nccl-doctor-plainly", _plainly)


class NotToldError(OSError):
    """Standard output takes nothing: closed, or its disk is full."""


class _Output(io.FileIO):
    """Standard output. A reader that went away (``| head``) has seen enough: what would follow is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
            raise NotToldError(error.errno, why) from error


class _Diagnostics(_Output):
    """Standard error. Where it takes nothing, nobody can be told so, and the result matters more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def open_all() -> None:
    """Put the streams above in the place of Python's; what was closed (``>&-``) is open afterwards, to nowhere.

    To nowhere is /dev/null for reading: whoever reads finds the end, whoever writes fails. Without it, the next file
    that is opened would become standard output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # takes the lowest free number: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a descriptor, for the process's life
    for name, kind in (("stdout", _Output), ("stderr", _Diagnostics)):
        old = getattr(sys, name)
        if old is getattr(sys, f"__{name}__"):  # else somebody replaced it and wants what is written
            setattr(sys, name, _text(kind, 1 if name == "stdout" else 2, old))


def _text(kind: type[_Output], number: int, old: io.TextIOWrapper | None) -> io.TextIOWrapper:
    binary = io.BufferedWriter(kind(number, "wb", closefd=False))
    if old is None:
        return io.TextIOWrapper(binary, "utf-8", "backslashreplace")
    errors = "nccl-doctor-plainly" if old.errors in ("strict", "surrogateescape") else old.errors
    return io.TextIOWrapper(
        binary, old.encoding, errors, line_buffering=old.line_buffering, write_through=old.write_through
    )
