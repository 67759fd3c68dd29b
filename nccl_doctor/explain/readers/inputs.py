"""From what the user names (files, directories, globs, ``-``) to log sources; nothing is followed for ever."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import glob
import gzip
import itertools
import lzma
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from nccl_doctor.explain.model import InputProblem, LogSource

PIECE = 1 << 20
HEAD = 64 << 10  # enough of a file to know its kind
STDIN_KEPT = 8 << 20  # so much of standard input is held in memory; RAS reports are only found in what is held
MAX_FILES = 200_000
MAX_DEPTH = 32
# A compressed file may grow this much, and to this size; beyond, it is a bomb and is read no further.
MAX_RATIO = 1000
MAX_INFLATED = 64 << 30
FREE_INFLATED = 256 << 20  # below this size no ratio is judged
BUNDLE = ".ndb"  # a saved run of check or preflight
_SKIP = re.compile(
    r"\.(?:pt|pth|bin|safetensors|ckpt|npy|npz|arrow|parquet|so|o|a|pyc|whl|zip|tar|tgz|png|jpe?g|mp4|model|onnx|engine|nsys-rep|qdrep|sqlite|db|tfevents.*|lock|html?|sarif|prom)$",
    re.IGNORECASE,
)
_NO_FILES = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


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
    return _plausible(list(files.values())), problems


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
        kind = _NO_FILES.get(stat.S_IFMT(status.st_mode), "a device")
        if named or not stat.S_ISCHR(status.st_mode):
            problems.append(InputProblem(name, f"is {kind}, not a file; pipe its content into: nccl-doctor explain -"))
        return
    if not named and (_SKIP.search(name) or _is_ours(name)):
        return
    if len(files) >= MAX_FILES:
        if len(files) == MAX_FILES:
            problems.append(InputProblem(name, f"more than {MAX_FILES} files: the rest is left out"))
        return
    rank, host = identity(os.path.basename(name) if named else name[len(top) :])
    files.setdefault((status.st_dev, status.st_ino), LogFile(name, name, rank, host, status.st_size))


def _is_ours(name: str) -> bool:
    """Whether this is a report of preflight or a saved benchmark: what they quote is no job's log."""
    if not name.endswith((".json", ".xml")):
        return False
    with contextlib.suppress(InputError, OSError), opened(name) as raw:
        head = raw.read(HEAD)
        return head.startswith((b"<?xml", b"{\n", b"[\n")) and b"nccl-doctor" in head
    return False


def _walk(top: str, problems: list[InputProblem]) -> Iterator[str]:
    """Regular-looking entries below a directory. Links to directories are not followed, so there are no loops."""
    top = top.rstrip("/") or top
    base = top.count("/")
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
    re.compile(r"(?:nccl_trace_rank_|comm_lib_trace_rank_)(\d{1,7})$"),
)
_FILE_HOST = re.compile(
    r"(?:^|[/_.-])((?:node|host|gpu|worker|nid|ip|hgx|dgx|compute)[-_]?[a-z]{0,6}-?\d[\w-]{0,40})(?=[./_]|$)",
    re.IGNORECASE,
)


# What else a number at a name's end counts: with these words before it, it is no rank.
_NO_RANK = re.compile(
    r"(?:xid|job|jobid|slurm|pid|port|size|batch|seed|v|version|lr|step|iter|epoch|run|attempt|test)[_.-]?\d{1,6}\.\w+$",
    re.IGNORECASE,
)
_LOOSE = re.compile(r"[-_]t?(\d{1,5})\.(?:log|out|err)(?:\.(?:gz|xz|zst|bz2))?$")


def _plausible(files: list[LogFile]) -> list[LogFile]:
    """The same, without ranks that only a number at a name's end tells, where no files with other numbers stand beside it."""
    loose = [_LOOSE.search(file.name) if "rank" not in file.name.lower() else None for file in files]
    series: dict[str, set[int]] = {}
    for found in filter(None, loose):
        series.setdefault(found.string[: found.start()], set()).add(int(found.group(1)))
    alone = {stem for stem, ranks in series.items() if max(ranks) - min(ranks) >= 2 * len(ranks) or len(ranks) == 1}
    return [
        msgspec.structs.replace(file, rank=None) if found and file.name[: found.start()] in alone else file
        for file, found in zip(files, loose, strict=True)
    ]


def identity(name: str) -> tuple[int | None, str]:
    """Rank and host as a file's name says them (``rank17.err``, ``3/stderr.log``, ``job-17.log``, ``gpu03.log``)."""
    bare = re.sub(r"\.(?:gz|xz|zst|bz2)$", "", name)
    rank = None
    for pattern in _FILE_RANK:
        found = pattern.search(bare)
        if found and not (_LOOSE.search(bare) and _NO_RANK.search(bare)):
            rank = int(found.group(1))
            break
    host = _FILE_HOST.search(bare)
    return rank, host.group(1) if host else ""


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A regular file, open for reading; a pipe that took its place is refused, not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError(_why(error)) from error
    with os.fdopen(descriptor, "rb", buffering=0) as raw:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is not a regular file any more")
        yield raw


def _zstandard(raw: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise InputError("is compressed with zstd: pip install zstandard, or decompress it first") from error
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw)


# How a file is unpacked, by its first bytes. The four readers share no base class.
_UNPACKERS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstandard,
    b"BZh": bz2.BZ2File,
}


def unpacker(head: bytes) -> Callable[[BinaryIO], Any] | None:
    """What unpacks a file that begins with these bytes; None: it is not packed."""
    return next((unpack for magic, unpack in _UNPACKERS.items() if head.startswith(magic)), None)


def pieces(path: str) -> Iterator[bytes]:
    """The content of a file in pieces, decompressed by its magic bytes; ``InputError`` when it cannot go on."""
    with opened(path) as raw:
        unpack = unpacker(raw.read(8))
        raw.seek(0)
        try:
            if unpack:
                yield from _inflate(unpack(raw), os.fstat(raw.fileno()).st_size)
            else:
                while piece := raw.read(PIECE):
                    yield piece
        except (OSError, EOFError) as error:
            raise InputError(f"broken off: {error}") from error


def content(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file, decompressed."""
    found = b""
    for piece in pieces(path):
        found += piece
        if len(found) >= limit:
            break
    return found[:limit]


def utf16(head: bytes) -> str:
    """The codec of a text in UTF-16, which Windows' tools write; empty: it is none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if b"\x00" not in head[:HEAD]:
        return ""
    even, odd = head[:HEAD:2].count(0), head[1:HEAD:2].count(0)
    half = min(len(head), HEAD) // 2
    if half >= 8 and max(even, odd) > half * 0.7 and min(even, odd) < half * 0.05:
        return "utf-16-le" if odd > even else "utf-16-be"
    return ""


def require_text(head: bytes) -> None:
    """``InputError`` if what begins with these bytes is no text. NULs do not count: a log that was cut while it was written
    begins with a hole."""
    if utf16(head):
        return
    text = head[:HEAD].replace(b"\x00", b"")
    strange = len(text.translate(None, _TEXT_BYTES))
    invalid = text.decode("utf-8", "replace").count("\ufffd")
    if len(text) >= 64 and strange + invalid > len(text) * 0.2:
        raise InputError("is no text: not read as a log")


_TEXT_BYTES = bytes({7, 8, 9, 10, 12, 13, 27, *range(32, 127), *range(128, 256)})


def as_utf8(pieces: Iterable[bytes], codec: str) -> Iterator[bytes]:
    """A text of another encoding as UTF-8; what cannot be decoded becomes a replacement character."""
    decoder = codecs.getincrementaldecoder(codec)(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def text_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of a log as they are, unless the first says that it is UTF-16."""
    stream = iter(pieces)
    first = next(stream, b"")
    codec = utf16(first)
    together = itertools.chain([first], stream)
    return as_utf8(together, codec) if codec else together


def _inflate(stream: Any, size: int) -> Iterator[bytes]:
    """The content of a packed file of this size."""
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
    """Standard input as a source; what is short is read as a whole. ``InputError`` if it is packed, or no text."""

    def read() -> Iterator[bytes]:
        while piece := os.read(sys.stdin.fileno(), PIECE):
            yield piece

    stream = read()
    head = b""
    for piece in stream:
        head += piece
        if len(head) > STDIN_KEPT:
            break
    if unpacker(head):
        raise InputError("is packed: unpack it first, as in: zcat LOG.gz | nccl-doctor explain -")
    require_text(head)
    rest = text_pieces(itertools.chain([head], stream))
    return LogSource("stdin", rest if len(head) > STDIN_KEPT else b"".join(rest))
