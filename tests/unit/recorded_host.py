"""A recorded tree of a host's files, and probes run over it in a process of their own (NCCL_DOCTOR_ROOT)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


class Link(str):
    """The content of a symbolic link."""


def write_tree(root: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Absolute path -> content; None is an empty directory, a :class:`Link` a symbolic link."""
    for name, content in files.items():
        place = root / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir(exist_ok=True)
        elif isinstance(content, Link):
            place.symlink_to(content)
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())


def probe(
    name: str, root: Path | None, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> Any:
    """The data of one probe, as the agent would send it."""
    code = (
        f"import json, sys\nimport nccl_doctor.agent.probes.{name} as module\nprint(json.dumps(module.{name}({{}})))\n"
    )
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "HOME": "/root", **(environment or {})}
    if root is not None:
        given["NCCL_DOCTOR_ROOT"] = str(root)
    done = subprocess.run([python, "-c", code], env=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def elf(needed: tuple[str, ...] = (), rpath: str = "", runpath: str = "", constants: bytes = b"\0") -> bytes:
    """A 64-bit ELF file with a dynamic section and a .rodata: as much as a reader of its headers needs."""
    strings = b"\0"
    entries = b""
    for tag, text in [*((1, name) for name in needed), (15, rpath), (29, runpath)]:
        if text:
            entries += struct.pack("<qQ", tag, len(strings))
            strings += text.encode() + b"\0"
    entries += struct.pack("<qQ", 0, 0)
    names = b"\0.dynamic\0.dynstr\0.rodata\0.shstrtab\0"
    bodies = [(b".dynamic", entries), (b".dynstr", strings), (b".rodata", constants), (b".shstrtab", names)]
    offset, content, headers = 64, b"", bytes(64)
    for name, body in bodies:
        headers += struct.pack("<IIQQQQIIQQ", names.find(name + b"\0"), 1, 0, 0, offset, len(body), 0, 0, 1, 0)
        content += body
        offset += len(body)
    head = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, offset, 0, 64, 0, 0, 64, 5, 4)
    )
    return head + content + headers


def loader_cache(*libraries: tuple[str, str]) -> bytes:
    """An /etc/ld.so.cache in the new format with these (name, path) entries."""
    start, table, strings = b"glibc-ld.so.cache1.1", b"", b""
    base = 48 + 24 * len(libraries)
    for name, place in libraries:
        key = base + len(strings)
        strings += name.encode() + b"\0"
        table += struct.pack("<iIIIQ", 0x0303, key, base + len(strings), 0, 0)
        strings += place.encode() + b"\0"
    return start + struct.pack("<II", len(libraries), len(strings)) + bytes(20) + table + strings
