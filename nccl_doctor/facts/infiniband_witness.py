"""What ibstat, ibv_devinfo and show_gids say, in sysfs's words: to be compared with sysfs, or to stand in for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from nccl_doctor.facts.infiniband import Device, Gid, InfinibandFact, Port, Tool
from nccl_doctor.facts.infiniband_tools import (
    ToolGid,
    ToolOutput,
    ToolPort,
    ToolTextError,
    parse_ibstat,
    parse_ibv_devinfo,
    parse_show_gids,
)

SYSFS = "sysfs"
_STATES = {"down": "1: DOWN", "init": "2: INIT", "initializing": "2: INIT", "armed": "3: ARMED", "active": "4: ACTIVE"}
_PHYSICAL = {
    "sleep": "1: Sleep",
    "polling": "2: Polling",
    "disabled": "3: Disabled",
    "linkup": "5: LinkUp",
    "linkerrorrecovery": "6: LinkErrorRecovery",
}
_VERSIONS = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}


class Said(msgspec.Struct, frozen=True):
    """What one tool says of one port, in sysfs's words; None where the tool does not tell."""

    tool: str
    state: str | None = None
    phys_state: str | None = None
    rate: str | None = None
    link_layer: str | None = None
    fw_ver: str | None = None
    gids: tuple[Gid, ...] | None = None


class Disagreement(msgspec.Struct, frozen=True):
    """One value on which a tool and sysfs differ."""

    port: str
    tool: str
    what: str
    said: str
    sysfs: str

    def __str__(self) -> str:
        return f"{self.port}: {self.what} {self.said}; sysfs: {self.sysfs}"


Ports = dict[tuple[str, int], Said]


def told(name: str, tool: Tool | None) -> Ports:
    """(device, port) -> what this tool says; empty where it is not there, failed, or lists no device."""
    if tool is None or not tool.text:
        return {}
    try:
        return _READERS[name](tool.text)
    except ToolTextError:
        return {}


def all_told(witnesses: Mapping[str, Tool]) -> list[Ports]:
    """What every tool says, ibstat first: it tells most."""
    return [ports for name in _READERS if (ports := told(name, witnesses.get(name)))]


def _ibstat(text: str) -> Ports:
    return _ports("ibstat", parse_ibstat(text), "physical_state", "firmware_version")


def _devinfo(text: str) -> Ports:
    return _ports("ibv_devinfo", parse_ibv_devinfo(text), "phys_state", "fw_ver")


def _ports(tool: str, output: ToolOutput, physical: str, firmware: str) -> Ports:
    return {
        (device.name, port.number): Said(
            tool,
            state=_STATES.get(_word(port, "state").removeprefix("port_")),
            phys_state=_PHYSICAL.get(_word(port, physical).replace("_", "")),
            rate=f"{port.fields['rate']} Gb/sec" if port.fields.get("rate", "").isdecimal() else None,
            link_layer=port.fields.get("link_layer") or None,
            fw_ver=device.fields.get(firmware) or None,
        )
        for device in output.devices
        for port in device.ports
        if device.name
    }


def _word(port: ToolPort, field: str) -> str:
    """The first word of a value, small: ``PORT_ACTIVE (4)`` gives ``port_active``."""
    words = port.fields.get(field, "").lower().split()
    return words[0] if words else ""


def _show_gids(text: str) -> Ports:
    return {
        key: Said("show_gids", gids=tuple(_gid(entry) for entry in gids)) for key, gids in parse_show_gids(text).items()
    }


def _gid(entry: ToolGid) -> Gid:
    return Gid(entry.index, entry.gid, _VERSIONS.get(entry.version or ""))


_READERS: dict[str, Callable[[str], Ports]] = {"ibstat": _ibstat, "ibv_devinfo": _devinfo, "show_gids": _show_gids}


def disagreements(fact: InfinibandFact) -> list[Disagreement]:
    """Where a tool and sysfs differ about a port that both have, and ports that a tool has and sysfs has not."""
    ports = {(device.name, port.port): (device, port) for device in fact.devices for port in device.ports}
    found: list[Disagreement] = []
    for said_by_tool in all_told(fact.witnesses):
        for key, said in said_by_tool.items():
            name = f"{key[0]}:{key[1]}"
            if key in ports:
                found += _compare(name, said, *ports[key])
            else:
                found.append(Disagreement(name, said.tool, "is listed", "by the tool", "no such port"))
    return found


def _compare(name: str, said: Said, device: Device, port: Port) -> list[Disagreement]:
    pairs = [
        ("state", said.state, port.state),
        ("physical state", said.phys_state, port.phys_state),
        ("rate", said.rate, port.rate),
        ("link layer", said.link_layer, port.link_layer),
        ("firmware", said.fw_ver, device.fw_ver),
    ]
    found = [
        Disagreement(name, said.tool, what, theirs, ours)
        for what, theirs, ours in pairs
        if theirs and ours and _plain(theirs) != _plain(ours)
    ]
    ours_by_index = {gid.index: gid for gid in port.gids}
    for gid in said.gids or ():
        mine = ours_by_index.get(gid.index)
        if mine is None:
            found.append(Disagreement(name, said.tool, f"GID {gid.index}", gid.gid, "no such entry"))
        elif (mine.gid.lower(), mine.type or gid.type) != (gid.gid.lower(), gid.type or mine.type):
            texts = [f"{one.gid} {one.type or ''}".strip() for one in (gid, mine)]
            found.append(Disagreement(name, said.tool, f"GID {gid.index}", *texts))
    return found


def _plain(text: str) -> str:
    """A value without its number in front and its width behind: ``400 Gb/sec (4X NDR)`` and ``400 Gb/sec`` are one."""
    text = text.partition(":")[2] if text[:1].isdecimal() and ":" in text else text
    bare = text.partition("(")[0].strip().lower().replace("gb/sec", "").strip()
    return "unspecified" if bare == "unknown" else bare  # an EFA's link layer, in the kernel's word and in libibverbs'


def completed(fact: InfinibandFact) -> InfinibandFact:
    """A fact for which sysfs shows no device, with the tools' devices in their place."""
    names: dict[str, list[Said]] = {}
    by_port: dict[tuple[str, int], list[Said]] = {}
    for ports in all_told(fact.witnesses):
        for (device, number), said in ports.items():
            names.setdefault(device, []).append(said)
            by_port.setdefault((device, number), []).append(said)
    devices = tuple(
        Device(
            name=name,
            fw_ver=next((said.fw_ver for said in told_of if said.fw_ver), None),
            ports=tuple(_port(number, said) for (device, number), said in sorted(by_port.items()) if device == name),
            source=told_of[0].tool,
        )
        for name, told_of in sorted(names.items())
    )
    return msgspec.structs.replace(fact, devices=devices)


def _port(number: int, said: list[Said]) -> Port:
    def first(field: str) -> str | None:
        return next((value for one in said if (value := getattr(one, field))), None)

    return Port(
        number,
        state=first("state"),
        phys_state=first("phys_state"),
        rate=first("rate"),
        link_layer=first("link_layer"),
        gids=next((one.gids for one in said if one.gids), ()),
    )
