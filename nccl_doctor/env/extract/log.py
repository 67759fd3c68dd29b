"""What NCCL itself says was set: ``NCCL_X set by environment to Y`` lines, its version, and refused values."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from nccl_doctor.env.assignments import Assignment, How

# Lines are cut here before matching: no line NCCL writes about a variable is longer.
LINE_LIMIT = 4096

_MARK = "NCCL INFO "
# What stands before the mark: "host:pid:tid [dev] ", with an optional time stamp in front. Before a device is chosen
# NCCL up to 2.22 prints what happens to be in memory there: [32765], [1835627630].
_HEAD = re.compile(r"([A-Za-z0-9_.-]+):\d{1,10}:\d{1,10} \[-?\d{1,10}\] \Z")
_HEAD_LIMIT = 300
_SET = re.compile(r"([A-Z][A-Z0-9_]{2,80}) set (?:by environment )?to (.{0,1024})")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_INVALID = re.compile(r"Invalid value (.{0,256}) for ([A-Z][A-Z0-9_]{2,80}), using default (-?\d{1,20})\.?\s*\Z")
_NO_INTERFACE = "no socket interface found"
_PROCESS = re.compile(r"([A-Za-z0-9_.-]{1,255}:\d{1,10}):\d{1,10} \[")


class LogReading(msgspec.Struct, frozen=True):
    """What a log says: assignments in order (one per host, name and value), the NCCL version, what failed."""

    assignments: tuple[Assignment, ...]
    nccl_version: str = ""
    refused: tuple[Assignment, ...] = ()
    matchless: tuple[Assignment, ...] = ()  # interface lists that, the log says, matched nothing
    speaks: bool = False  # NCCL says in it what it does: what is set would be there


def read(lines: Iterable[str], file: str = "") -> LogReading:
    """Read a log line by line, in bounded memory."""
    found: dict[tuple[str, str, str], Assignment] = {}
    refused: dict[tuple[str, str], Assignment] = {}
    lists: dict[str, Assignment] = {}  # process -> its NCCL_SOCKET_IFNAME
    matchless: dict[tuple[str, str | None], Assignment] = {}
    version, speaks = "", False
    for number, line in enumerate(lines, start=1):
        if "NCCL" not in line and "Invalid value" not in line:
            continue
        line = line[:LINE_LIMIT].rstrip()
        if not version and (match := _VERSION.search(line)):
            version = match[1]
        mark = line.find(_MARK)
        speaks = speaks or mark >= 0
        if mark >= 0 and (match := _SET.match(line, mark + len(_MARK))):
            head = _HEAD.search(line[max(0, mark - _HEAD_LIMIT) : mark])
            host, name, value = head[1] if head else "", match[1], match[2].strip()
            process = head[0].split(" ")[0].rsplit(":", 1)[0] if head else ""
            value = value[:-1] if re.fullmatch(r"-?\d+\.", value) else value
            if (host, name, value) not in found and len(found) < 10_000:
                item = Assignment(name, value, file, number, How.LOG, line, f"{file}#{host}", host=host)
                found[(host, name, value)] = item
            if name == "NCCL_SOCKET_IFNAME" and len(lists) < 10_000:
                lists[process] = found[(host, name, value)]
        elif "Invalid value" in line and (match := _INVALID.search(line)):
            key = (match[2], match[1])
            if key not in refused and len(refused) < 1000:
                refused[key] = Assignment(match[2], match[1], file, number, How.LOG, line, file)
        elif _NO_INTERFACE in line and (match := _PROCESS.search(line)) and (failed := lists.get(match[1])):
            matchless.setdefault((failed.host, failed.value), failed)
    return LogReading(tuple(found.values()), version, tuple(refused.values()), tuple(matchless.values()), speaks)
