"""Parsers of ibstat, ibv_devinfo and show_gids: further witnesses beside sysfs.

Every line is ``name: value`` under a device or port heading; indentation, tabs, prompts and missing lines do not
matter. Text without a single device is refused with :class:`ToolTextError`. All parsers are linear.
"""

from __future__ import annotations

import re

import msgspec

LINE_LIMIT = 1024
TEXT_LIMIT = 1 << 20

_PANIC = re.compile(r"ibpanic:.{0,80}?'([A-Za-z0-9_.\-]{1,64})'")
_IBSTAT_CA = re.compile(r"CA '([A-Za-z0-9_.\-]{1,64})'")
_GID_LINE = re.compile(r"GID\[ {0,4}([0-9]{1,4})\]:\s{0,16}([0-9a-fA-F:.]{2,45})(?:, (RoCE v[0-9.]{1,3}|IB))?")
_HEX_GID = re.compile(r"[0-9a-fA-F:]{39}")


class ToolTextError(ValueError):
    """The text holds no device of the kind that the tool prints."""


class ToolGid(msgspec.Struct, frozen=True):
    """A line of ``show_gids`` or of ``ibv_devinfo -v``; ``version`` is v1 or v2, ``ip`` the IPv4 address if any."""

    index: int
    gid: str
    version: str | None = None
    ip: str | None = None
    netdev: str | None = None


class ToolPort(msgspec.Struct, frozen=True):
    """A port: the tool's own words by lower-case field name with underscores (``link_layer``, ``base_lid``)."""

    number: int
    fields: dict[str, str] = {}
    gids: list[ToolGid] = []


class ToolDevice(msgspec.Struct, frozen=True):
    """A device with the tool's own fields and its ports."""

    name: str
    fields: dict[str, str] = {}
    ports: list[ToolPort] = []


class ToolOutput(msgspec.Struct, frozen=True):
    """All devices; ``errors`` are lines in which the tool gave up, ``failed`` the device it gave up on."""

    devices: list[ToolDevice]
    errors: list[str]
    failed: str | None = None


def _lines(text: str) -> list[str]:
    return [line[:LINE_LIMIT].strip() for line in text[:TEXT_LIMIT].splitlines()]


def _field(line: str) -> tuple[str, str] | None:
    name, separator, value = line.partition(":")
    key = name.strip().lower().replace(" ", "_")
    return (key, value.strip()) if separator and key and len(key) < 40 else None


def _put(devices: list[ToolDevice], key: str, value: str) -> None:
    """A field of the last port, or of the last device before its first port."""
    (devices[-1].ports[-1] if devices[-1].ports else devices[-1]).fields[key] = value


def _output(tool: str, devices: list[ToolDevice], errors: list[str], failed: str | None = None) -> ToolOutput:
    if not devices and not failed:
        raise ToolTextError(f"no device in this text: it is not the output of {tool}")
    return ToolOutput(devices, errors, failed)


def parse_ibstat(text: str) -> ToolOutput:
    """``ibstat``: devices with ``ca_type``, ``firmware_version``; ports with ``state``, ``rate``, ``link_layer`` ..."""
    devices: list[ToolDevice] = []
    errors: list[str] = []
    failed = None
    for line in _lines(text):
        if found := _IBSTAT_CA.match(line):
            devices.append(ToolDevice(found.group(1)))
        elif found := _PANIC.match(line):
            errors.append(line)
            failed = found.group(1)
        elif devices and re.match(r"Port [0-9]{1,3}:$", line):
            devices[-1].ports.append(ToolPort(int(line[5:-1])))
        elif devices and (pair := _field(line)):
            _put(devices, *pair)
    return _output("ibstat", devices, errors, failed)


def parse_ibv_devinfo(text: str) -> ToolOutput:
    """``ibv_devinfo`` (also ``-v``, and an excerpt of one port of it, which becomes a device without a name)."""
    devices: list[ToolDevice] = []
    for line in _lines(text):
        pair = _field(line)
        if pair and pair[0] == "hca_id":
            devices.append(ToolDevice(pair[1]))
        elif pair and pair[0] == "port" and pair[1].isdecimal() and len(pair[1]) < 4 and devices:
            devices[-1].ports.append(ToolPort(int(pair[1])))
        elif found := _GID_LINE.match(line):
            port = _port_of(devices)
            version = {"RoCE v1": "v1", "RoCE v2": "v2"}.get(found.group(3) or "")
            port.gids.append(ToolGid(int(found.group(1)), found.group(2), version))
        elif pair and pair[0] == "phys_state":
            _port_of(devices).fields[pair[0]] = pair[1]
        elif pair and devices:
            _put(devices, *pair)
    return _output("ibv_devinfo", devices, [])


def _port_of(devices: list[ToolDevice]) -> ToolPort:
    if not devices:
        devices.append(ToolDevice(""))
    if not devices[-1].ports:
        devices[-1].ports.append(ToolPort(1))
    return devices[-1].ports[-1]


def parse_show_gids(text: str) -> dict[tuple[str, int], tuple[ToolGid, ...]]:
    """``show_gids``: (device, port) -> its GIDs. ``ToolTextError`` if no line is one."""
    found: dict[tuple[str, int], list[ToolGid]] = {}
    for line in _lines(text):
        words = line.split()
        if len(words) < 5 or not (words[1].isdecimal() and words[2].isdecimal() and _HEX_GID.fullmatch(words[3])):
            continue
        if len(words[1]) > 3 or len(words[2]) > 4:
            continue
        rest = words[4:]
        ip = rest.pop(0) if rest and rest[0].count(".") == 3 else None
        version = rest.pop(0) if rest and rest[0] in ("v1", "v2") else None
        gid = ToolGid(int(words[2]), words[3].lower(), version, ip, rest[0] if rest else None)
        found.setdefault((words[0], int(words[1])), []).append(gid)
    if not found:
        raise ToolTextError("no GID in this text: it is not the output of show_gids")
    return {key: tuple(gids) for key, gids in found.items()}
