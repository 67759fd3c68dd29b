"""The environment variables of a running process: as it was started with them, or as they are now.

/proc/PID/environ keeps what a process was given at its start. What a program sets itself (``os.environ["RANK"] = ...``:
mp.spawn, Ray, notebooks) lies in its C library's list, which is read from its memory as a debugger reads it, stopping
nothing.
"""

import functools
import os
import struct
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

from nccl_doctor.agent.probing import path, read_text

START_LIMIT = 1 << 20
COUNT = 8192  # variables of one process
TEXT = 4096  # bytes of one
_MAPS_LIMIT = 16 << 20
_PART_LIMIT = 64 << 20  # bytes of one part of an ELF file, which may be anybody's
_SYMBOLS = (b"environ", b"__environ")
_DYNSYM = 11
_FIXED = 2  # ET_EXEC: its addresses are those in the file


def at_start(pid: int) -> Optional[Dict[str, str]]:
    """Those that the process was started with; None where it is gone, or a kernel thread. A zombie's are gone, too."""
    text = read_text("/proc/%d/environ" % pid, START_LIMIT)
    return _pairs(text.split("\0")) if text else None


def now(pid: int) -> Optional[Dict[str, str]]:
    """Those that it has now; None where its memory may not be read, or holds no list that is found."""
    try:
        with open(path("/proc/%d/mem" % pid), "rb", 0) as memory:
            return _pairs(_texts(memory.fileno(), _list_at(pid)))
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return None


def _pairs(texts: Iterable[str]) -> Dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts) if name}


def _texts(memory: int, place: int) -> Iterator[str]:
    """The list is an array of addresses of texts, with a zero behind the last. It may change while it is read."""
    (start,) = struct.unpack("<Q", os.pread(memory, 8, place))
    for number in range(COUNT if start else 0):
        (at,) = struct.unpack("<Q", os.pread(memory, 8, start + 8 * number))
        if not at:
            return
        yield os.pread(memory, TEXT, at).split(b"\0", 1)[0].decode("utf-8", "replace")


def _list_at(pid: int) -> int:
    """Where the process keeps the address of the list: in its program, if that has a copy of the symbol, or in libc."""
    program = os.readlink(path("/proc/%d/exe" % pid))
    found: Dict[str, int] = {}
    for line in (read_text("/proc/%d/maps" % pid, _MAPS_LIMIT) or "").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and int(fields[2], 16) == 0 and _is_wanted(fields[5], program):
            found.setdefault(fields[5], int(fields[0].partition("-")[0], 16))
    for name in sorted(found, key=lambda name: name != program):
        kind, value = _symbol(path("/proc/%d/root%s" % (pid, name)))
        if value:
            return value if kind == _FIXED else found[name] + value
    raise ValueError("no list of variables")


def _is_wanted(name: str, program: str) -> bool:
    base = os.path.basename(name)
    return name == program or base.startswith(("libc.so", "libc-2.", "ld-musl"))


def _symbol(name: str) -> Tuple[int, int]:
    """The kind of an ELF file, and the address that it gives the list; 0 where it has none."""
    known = os.stat(name)
    return _symbol_of(name, (known.st_dev, known.st_ino, known.st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _symbol_of(name: str, _version: Tuple[int, int, int]) -> Tuple[int, int]:
    with open(name, "rb") as stream:
        head = stream.read(64)
        if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little end first
            return 0, 0
        kind = struct.unpack_from("<H", head, 16)[0]
        start, size, count = struct.unpack_from("<Q", head, 40)[0], *struct.unpack_from("<HH", head, 58)

        def part(at: int, length: int) -> bytes:
            stream.seek(at)
            return stream.read(min(length, _PART_LIMIT))

        table = part(start, size * count)
        sections: List[Tuple[int, ...]] = [struct.unpack_from("<IIQQQQII", table, size * at) for at in range(count)]
        for section in sections:
            if section[1] != _DYNSYM:
                continue
            names = part(*sections[section[6]][4:6])
            for at, _, _, where, value, _ in struct.iter_unpack("<IBBHQQ", part(*section[4:6])):
                if where and names[at : names.index(b"\0", at)] in _SYMBOLS:
                    return kind, value
    return kind, 0
