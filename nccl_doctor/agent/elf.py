"""Shared objects: what a 64-bit ELF file needs and where it looks, read from its headers without loading it."""

import mmap
import re
import struct
from typing import Dict, List, Optional, Tuple

from nccl_doctor.agent.probing import path

UNREADABLE = (OSError, ValueError, OverflowError, struct.error)  # what a damaged file can raise


class Elf(object):
    """The few facts wanted of a 64-bit little-endian ELF file, read without loading it."""

    def __init__(self, absolute: str) -> None:
        with open(path(absolute), "rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (self._section_offset,) = struct.unpack_from("<Q", self._map, 40)
        self._entry_size, self._section_count, self._names = struct.unpack_from("<HHH", self._map, 58)
        self.sections = self._read_sections()

    def _read_sections(self) -> Dict[str, Tuple[int, int]]:
        raw = []
        for number in range(self._section_count):
            base = self._section_offset + number * self._entry_size
            name, _ = struct.unpack_from("<II", self._map, base)
            offset, size = struct.unpack_from("<QQ", self._map, base + 24)
            raw.append((name, offset, size))
        if self._names >= len(raw):
            return {}
        names = raw[self._names][1]
        return {self._string(names + name): (offset, size) for name, offset, size in raw}

    def _string(self, offset: int) -> str:
        end = self._map.find(b"\0", offset, offset + 4096)
        return self._map[offset : end if end >= 0 else offset].decode("utf-8", "replace")

    def dynamic(self) -> Dict[str, List[str]]:
        """``needed``, ``rpath`` and ``runpath`` of the dynamic section."""
        found = {"needed": [], "rpath": [], "runpath": []}  # type: Dict[str, List[str]]
        if ".dynamic" not in self.sections or ".dynstr" not in self.sections:
            return found
        offset, size = self.sections[".dynamic"]
        strings = self.sections[".dynstr"][0]
        for place in range(offset, offset + size - 15, 16):
            tag, value = struct.unpack_from("<qQ", self._map, place)
            if tag == 0:
                break
            key = {1: "needed", 15: "rpath", 29: "runpath"}.get(tag)
            if key == "needed":
                found[key].append(self._string(strings + value))
            elif key:
                found[key].extend(part for part in self._string(strings + value).split(":") if part)
        return found

    def search_constants(self, pattern: "re.Pattern[bytes]") -> Optional[Tuple[bytes, ...]]:
        """Groups of the first match in .rodata: strings lie there; the GPU code, hundreds of MB, does not."""
        if ".rodata" not in self.sections:
            return None
        offset, size = self.sections[".rodata"]
        match = pattern.search(self._map, offset, offset + size)
        return tuple(group or b"" for group in match.groups()) if match else None

    def __enter__(self) -> "Elf":
        return self

    def __exit__(self, *error: object) -> None:
        self._map.close()


def elf_dynamic(absolute: str) -> Optional[Dict[str, List[str]]]:
    """What a shared object needs and where it looks; None if it is no readable ELF file."""
    try:
        with Elf(absolute) as elf:
            return elf.dynamic()
    except UNREADABLE:
        return None
