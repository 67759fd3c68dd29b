"""From what the user names (files, directories, globs, ``-``) to log sources; nothing is followed for ever."""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from nccl_doctor.explain.model import InputProblem, LogSource

PIECE = 256 << 10  # stays in a core's cache between reading and searching
MAX_FILES = 200_000
MAX_DEPTH = 32
# A compressed file may grow this much, and to this size; beyond, it is a bomb and is read no further.
MAX_RATIO = 1000
MAX_INFLATED = 64 << 30
FREE_INFLATED = 256 << 20  # below this size no ratio is judged
_SKIP = re.compile(
    r"\.(?:pt|pth|bin|safetensors|ckpt|npy|npz|arrow|parquet|so|o|a|pyc|whl|zip|tar|tgz|png|jpe?g|mp4|model|onnx|engine|nsys-rep|qdrep|sqlite|db|tfevents.*|lock)$",
    re.IGNORECASE,
)
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"))


class LogFile(msgspec.Struct, frozen=True):
    """A file to be read: its path, the name to show, and the rank and host that its name says."""

    path: str
    name: str
    rank: int | None = None
    host: str = ""
    size: int = 0


class InputError(Exception):
    """An input cannot be read; the text says why."""


def find(names: Iterable[str]) -> tuple[list[LogFile], list[InputProblem]]:
    """The files behind names, in a stable order, each once; what cannot be used comes back as problems."""
    files: dict[tuple[int, int], LogFile] = {}
    problems: list[InputProblem] = []
    for name in names:
        matches = [name]
        if not os.path.lexists(name) and any(char in name for char in "*?["):
            matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            problems.append(InputProblem(name, "no file matches"))
        for match in matches:
            _add(match, match == name, files, problems, os.path.dirname(match) + "/")
    return list(files.values()), problems


def _add(
    name: str, named: bool, files: dict[tuple[int, int], LogFile], problems: list[InputProblem], top: str = ""
) -> None:
    try:
        status = os.stat(name)
    except OSError as error:
        problems.append(InputProblem(name, _why(error)))
        return
    if stat.S_ISDIR(status.st_mode):
        for path in sorted(_walk(name, problems)):
            _add(path, False, files, problems, name)
        return
    if not stat.S_ISREG(status.st_mode):
        kind = (
            "a named pipe"
            if stat.S_ISFIFO(status.st_mode)
            else "a socket"
            if stat.S_ISSOCK(status.st_mode)
            else "a device"
        )
        if named or not stat.S_ISCHR(status.st_mode):
            problems.append(InputProblem(name, f"is {kind}, not a file; pipe its content into: nccl-doctor explain -"))
        return
    if not named and _SKIP.search(name):
        return
    if name.endswith(".ndb"):
        problems.append(InputProblem(name, f"is a bundle, not a log: nccl-doctor check --from {name}"))
        return
    if len(files) >= MAX_FILES:
        if len(files) == MAX_FILES:
            problems.append(InputProblem(name, f"more than {MAX_FILES} files: the rest is left out"))
        return
    rank, host = identity(os.path.basename(name) if named else name[len(top) :])
    files.setdefault((status.st_dev, status.st_ino), LogFile(name, name, rank, host, status.st_size))


def _walk(top: str, problems: list[InputProblem]) -> Iterator[str]:
    """Regular-looking entries below a directory. Links to directories are not followed, so there are no loops."""
    base = top.rstrip("/").count("/")
    for root, directories, names in os.walk(
        top, onerror=lambda error: problems.append(InputProblem(str(error.filename), _why(error)))
    ):
        directories.sort()
        if root.count("/") - base >= MAX_DEPTH:
            problems.append(InputProblem(root, f"deeper than {MAX_DEPTH} directories: left out"))
            directories.clear()
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith("~"):
                yield f"{root}/{name}"


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


_FILE_RANK = (
    re.compile(r"(?:^|[/_.-])rank[_.-]?(\d{1,6})(?:[/_.-]|$)", re.IGNORECASE),
    re.compile(r"(?:^|/)(\d{1,6})/(?:stdout|stderr)(?:\.log)?$"),
    re.compile(
        r"(?:^|/)(?:stdout|stderr|output|error|log|out|err)[_.-](\d{1,6})(?:\.(?:log|txt|out|err))?$", re.IGNORECASE
    ),
    re.compile(r"(?:^|/)(\d{1,6})\.(?:log|out|err|txt)$"),
    re.compile(r"-(\d{1,5})\.(?:log|out|err)$"),
    re.compile(r"_t?(\d{1,5})\.(?:out|err)$"),
    re.compile(r"(?:nccl_trace_rank_|comm_lib_trace_rank_)(\d+)$"),
)
_FILE_HOST = re.compile(
    r"(?:^|[/_.-])((?:node|host|gpu|worker|nid|ip|hgx|dgx|compute)[-_]?[a-z]{0,6}-?\d[\w-]{0,40})(?=[./_]|$)",
    re.IGNORECASE,
)


def identity(name: str) -> tuple[int | None, str]:
    """Rank and host as a file's name says them (``rank17.err``, ``3/stderr.log``, ``job-17.log``, ``gpu03.log``)."""
    bare = re.sub(r"\.(?:gz|xz|zst|bz2)$", "", name)
    rank = None
    for pattern in _FILE_RANK:
        found = pattern.search(bare)
        if found:
            rank = int(found.group(1))
            break
    host = _FILE_HOST.search(bare)
    return rank, host.group(1) if host else ""


def pieces(path: str) -> Iterator[bytes]:
    """The content of a file in pieces, decompressed by its magic bytes; ``InputError`` when it cannot go on."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError(_why(error)) from error
    with os.fdopen(descriptor, "rb") as raw:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is not a regular file any more")
        head = raw.read(8)
        raw.seek(0)
        kind = next((name for magic, name in _MAGIC if head.startswith(magic)), "")
        try:
            if not kind:
                while piece := raw.read(PIECE):
                    # Pieces that end at a line's end are passed on without another copy.
                    yield piece if piece.endswith(b"\n") else piece + raw.readline(PIECE)
            else:
                yield from _inflate(raw, kind, os.fstat(descriptor).st_size)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise InputError(f"broken off: {error}") from error


def _inflate(raw: BinaryIO, kind: str, size: int) -> Iterator[bytes]:
    stream: Any  # the four readers share no base class
    if kind == "gzip":
        stream = gzip.GzipFile(fileobj=raw)
    elif kind == "xz":
        stream = lzma.LZMAFile(raw)
    elif kind == "bzip2":
        stream = bz2.BZ2File(raw)
    else:
        try:
            import zstandard
        except ImportError as error:
            raise InputError("is compressed with zstd: pip install zstandard, or decompress it first") from error
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw)
    total = 0
    while True:
        try:
            piece = stream.read(PIECE)
        except (EOFError, OSError):
            raise
        except Exception as error:
            raise InputError(f"its compressed data is damaged: {error}") from error
        if not piece:
            return
        total += len(piece)
        if total > MAX_INFLATED or (total > FREE_INFLATED and total > size * MAX_RATIO):
            raise InputError(
                f"grows more than {MAX_RATIO} times when decompressed: read only the first {total >> 20} MiB"
            )
        yield piece


def stdin_source() -> LogSource:
    """Standard input as a source."""

    def read() -> Iterator[bytes]:
        while piece := os.read(sys.stdin.fileno(), PIECE):
            yield piece

    return LogSource("stdin", read())


def open_source(file: LogFile) -> LogSource:
    """A file as a source (read lazily)."""
    return LogSource(file.name, pieces(file.path), file.rank, file.host)
