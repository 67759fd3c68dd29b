"""Hostfiles of one host (or node set) a line: plain, OpenMPI and DeepSpeed, MPICH, pdsh.

``host:8`` is the one ambiguity. MPICH means 8 slots, ssh means port 8. Without a user, a number below 1024 other than
22 is read as slots and any other as a port; a notice says which. ``user@host:N``, ``[host]:N`` and ``ssh://host:N`` are
always ports. A file that would need both readings is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from nccl_doctor.inventory import names, nodesets
from nccl_doctor.inventory.model import HostEntry, InventoryError, quoted
from nccl_doctor.inventory.names import BadName

# Words of OpenMPI, DeepSpeed, MPICH and Intel hostfiles that say nothing about who is examined.
_TOLERATED = frozenset(
    ["max_slots", "max-slots", "slots_max", "boards", "sockets", "cores", "binding", "ifhn", "maxslots", "weight"]
)
_SLOTS = frozenset(("slots", "slot", "cpu", "cpus", "count"))
_USERS = frozenset(("user", "username", "user_name"))
_SPEC_EXPECTED = "expected one host a line: host, user@host:port, host slots=8, host:8 or node[01-16]"


class Parsed(msgspec.Struct, frozen=True):
    """What one line gave. ``colon`` is how a bare ``host:N`` was read: slots, port, or empty if there was none."""

    entries: tuple[HostEntry, ...]
    format: str
    colon: str = ""


def strip_comment(line: str) -> str:
    """The line without a comment: ``#`` at its start or after a blank."""
    return re.split(r"(?:^|(?<=\s))#", line, maxsplit=1)[0].strip()


def _bare_number(text: str) -> tuple[str, int]:
    """How the N of a bare ``host:N`` is read: slots or port."""
    number = names.port(text)
    return ("port", number) if number == 22 or number >= 1024 else ("slots", number)


def _split_spec(text: str) -> tuple[str, str, str, bool]:
    """``user@host:N`` -> user, host part, N, and whether N can only be a port."""
    uri = text.startswith("ssh://")
    rest = text[6:].rstrip("/") if uri else text
    login, at, place = rest.rpartition("@")
    if at and not login:
        raise BadName("expected a login name before '@'; a group of hosts is expanded first: nodeset -f @GROUP")
    if at:
        names.user(login)
    if names.is_ipv6(place):
        return login, place, "", True
    bracketed = re.match(r"\[([^\[\]]*)\](?::(.*))?\Z", place)
    if bracketed and (":" in bracketed[1] or bracketed[2] is not None):
        if bracketed[2] == "":
            raise BadName("expected a port after the colon")
        return login, bracketed[1], bracketed[2] or "", True
    host_part, colon, number = place.partition(":")
    if colon and not number:
        raise BadName("expected a number after the colon")
    return login, host_part, number, uri or bool(at)


def parse_spec(text: str) -> Parsed:
    """One host or node set with what hangs on it, without its ``key=value`` words; raises :class:`BadName`."""
    login, place, number, only_port = _split_spec(text)
    is_set = not names.is_ipv6(place) and bool(set(place) & set("[],"))
    hosts = nodesets.expand(place) if is_set else [place]
    port = slots = None
    colon = ""
    if number and only_port:
        port = names.port(number)
    elif number:
        colon, value = _bare_number(number)
        port, slots = (value, None) if colon == "port" else (None, value)
    entries = tuple(HostEntry(names.host(host), login, port, slots) for host in hosts)
    return Parsed(entries, "mpich" if slots else "nodeset" if is_set else "plain", colon)


def _words(parsed: Parsed, words: list[str]) -> Parsed:
    """Apply the ``key=value`` words after the host."""
    changes: dict[str, str | int] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise BadName(f"{_SPEC_EXPECTED}; found another word {quoted(word, 40)} on the line")
        key = key.lower()
        if key in _SLOTS:
            changes["slots"] = names.slots(value)
        elif key in _USERS:
            changes["user"] = names.user(value)
        elif key == "port":
            changes["port"] = names.port(value)
        elif key not in _TOLERATED:
            raise BadName(f"{_SPEC_EXPECTED}; {quoted(key, 40)} is no word of such a file")
    if not changes:
        return parsed
    entries = tuple(msgspec.structs.replace(entry, **changes) for entry in parsed.entries)
    return Parsed(entries, "openmpi" if "slots" in changes else parsed.format, parsed.colon)


def parse_line(text: str) -> Parsed:
    """One line without its comment; raises :class:`BadName`."""
    text = re.sub(r"\s*=\s*", "=", text)  # OpenMPI allows "slots = 8"
    first, *words = text.split()
    return _words(parse_spec(first), words)


def parse(lines: list[str], source: str) -> tuple[list[HostEntry], str, list[str]]:
    """All lines of a file: entries, format, notices; raises :class:`InventoryError`."""
    entries: list[HostEntry] = []
    formats: set[str] = set()
    colon = ""
    for number, line, text in _meaningful(lines):
        try:
            parsed = parse_line(text)
            if colon and parsed.colon and parsed.colon != colon:
                raise BadName(
                    f"here host:N reads as a {parsed.colon}, above it read as {colon}; write ports as [host]:N"
                )
        except BadName as error:
            raise InventoryError(source, number, line, str(error)) from error
        colon = colon or parsed.colon
        formats.add(parsed.format)
        entries += [msgspec.structs.replace(entry, line=number) for entry in parsed.entries]
        if len(entries) > nodesets.MOST:
            raise InventoryError(source, number, line, f"more than {nodesets.MOST} hosts")
    return entries, choose(formats), colon_notice(colon)


def choose(formats: set[str]) -> str:
    """The one format that can say everything the lines said."""
    return next((name for name in ("openmpi", "mpich", "nodeset") if name in formats), "plain")


def colon_notice(colon: str) -> list[str]:
    """How an ambiguous ``host:N`` was read."""
    if colon == "slots":
        return ["host:N was read as N slots (MPICH); for an ssh port write [host]:N or user@host:N"]
    if colon == "port":
        return ["host:N was read as ssh port N; for slots write host slots=N"]
    return []


def _meaningful(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(lines, 1):
        text = strip_comment(line)
        if text:
            yield number, line.strip(), text
