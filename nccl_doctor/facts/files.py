"""Files: how data files of nccl-doctor are read, how JSON for people is spelled, and results written: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

PIECE_BYTES = 1 << 20
SETTINGS_BYTES = 1 << 20  # of a file that a person wrote


def content(path: Path, most: int) -> bytes:
    """What a user's file holds; ``OSError``, too, where that is more than any such file has: a checkpoint, a device."""
    found = bytearray()
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):  # asked for ``most`` at once, Python takes the memory for it
            found += piece
            if len(found) > most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return bytes(found)


def from_json(text: bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON that others wrote, as this type; ``msgspec.DecodeError`` for whatever it is not.

    msgspec raises other errors where the bytes are no UTF-8, or nested too deep.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def read_yaml(path: Path) -> Any:
    """The content of a data file that comes with nccl-doctor."""
    import yaml

    return yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def printed_json(document: Any) -> bytes:
    """JSON for people to read: indented, and the same for the same document."""
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2)


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file beside ``path``, then rename it there; ``OSError`` passes through, and what was there stays.

    It keeps the permissions and the owner of the file that it replaces; ``private``: its owner alone may read it. A
    symbolic link stays one. What is there and is no file (a pipe, /dev/stdout) is written to, and so is a file in a
    directory that this user may not write in.
    """
    target = Path(os.path.realpath(path))  # resolve() fails where a link names itself
    before = path.stat() if path.exists() else None
    if before and not (stat.S_ISREG(before.st_mode) and os.access(target.parent, os.W_OK) and not _is_stream(path)):
        path.write_bytes(content)
        return
    beside = target.with_name(f".nccl-doctor-{os.urandom(8).hex()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if before and not private:
                with contextlib.suppress(OSError):  # only root gives files away
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _is_stream(path: Path) -> bool:
    """Whether this names what a process has open (/dev/stdout, /proc/self/fd/3), be it a file just now."""
    return str(path.absolute()).startswith(("/dev/", "/proc/"))
