"""What a file or standard input holds, as text: unpacked and decoded by its first bytes, within limits."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import lzma
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

PIECE = 1 << 20
HEAD = 64 << 10  # enough of a file to know its kind
# A compressed file may grow this much, and to this size; beyond, it is a bomb and is read no further.
MAX_RATIO = 1000
MAX_INFLATED = 64 << 30
FREE_INFLATED = 256 << 20  # below this size no ratio is judged


HARD_BLANK = "\xa0".encode()  # what web pages, mails and chats put in the place of blanks


def has_hard_blanks(text: bytes) -> bool:
    """Whether it may have been copied from a web page. To look for two bytes costs twenty times what it costs to see that
    none is beyond ASCII."""
    return not text.isascii() and HARD_BLANK in text


class InputError(Exception):
    """An input cannot be read; the text says why."""


def why(error: OSError) -> str:
    """What the system says is wrong, without the file's name."""
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.FileIO]:
    """A regular file, open for reading; a pipe that took its place is refused, not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError(why(error)) from error
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
        yield from _decompressed(io.BufferedReader(raw), os.fstat(raw.fileno()).st_size)


def _decompressed(stream: io.BufferedReader, size: int) -> Iterator[bytes]:
    """A stream of ``size`` bytes in pieces; it need not seek."""
    try:
        unpack = unpacker(stream.peek(8))
        if unpack:
            yield from _inflate(unpack(stream), size)
        else:
            while piece := stream.read1(PIECE):
                yield piece
    except (OSError, EOFError) as error:
        raise InputError(f"broken off: {error}") from error


def beginning(path: str, limit: int) -> bytes:
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
            piece = stream.read1(PIECE)  # what stands before a break is given first
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


def stdin_pieces() -> Iterator[bytes]:
    """Standard input in pieces, decompressed as a file is; ``InputError`` where it is no text."""
    with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        status = os.fstat(stream.fileno())
        pieces = _decompressed(stream, status.st_size if stat.S_ISREG(status.st_mode) else MAX_INFLATED)
        first = next(pieces, b"")
        require_text(first)
        yield first
        yield from pieces
