"""Strict host, user and port syntax: what passes here can be neither an option nor a word of a shell."""

from __future__ import annotations

import ipaddress
import re

from nccl_doctor.inventory.model import HostEntry

# RFC 1123 host names, with the underscore that real clusters have. A label neither begins nor ends with a hyphen.
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\Z")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,32}\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,127})?\Z")
_NUMBERS = re.compile(r"[0-9.]+\Z")
_NUMBER = re.compile(r"[0-9]{1,9}\Z", re.ASCII)


class BadName(ValueError):
    """Text that is no host, user or port; the message says what was expected."""


def is_address(text: str) -> bool:
    """Whether the text is an address, with or without brackets or a zone, and so no name to look up."""
    try:
        ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def is_ipv6(text: str) -> bool:
    """Whether the text is an IPv6 address, with or without a zone (``fe80::1%eth0``)."""
    address, percent, zone = text.partition("%")
    if percent and not _ZONE.match(zone):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def host(text: str) -> str:
    """A host name or address, unchanged; raises :class:`BadName`."""
    if is_ipv6(text):
        return text
    if not text:
        raise BadName("expected a host name")
    if len(text) > 253:
        raise BadName("a host name has at most 253 characters")
    if not _NAME.match(text):
        raise BadName(
            "expected a host name or address (letters, digits, '.', '-', '_'; labels of at most 63 characters that "
            "neither begin nor end with '-')"
        )
    if _NUMBERS.match(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            raise BadName("only digits and dots, but no IPv4 address") from None
    return text


def user(text: str) -> str:
    """A login name, unchanged; raises :class:`BadName`."""
    if not _USER.match(text):
        raise BadName("expected a login name (letters, digits, '.', '_', '+', '-'; not beginning with '-') before '@'")
    return text


def port(text: str) -> int:
    """A TCP port, 1 to 65535; raises :class:`BadName`."""
    if not _NUMBER.match(text) or not 1 <= int(text) <= 65535:
        raise BadName(f"expected a port from 1 to 65535, found {text[:20]!a}")
    return int(text)


def slots(text: str) -> int:
    """A number of slots, 1 to 4096; raises :class:`BadName`."""
    if not _NUMBER.match(text) or not 1 <= int(text) <= 4096:
        raise BadName(f"expected a number of slots from 1 to 4096, found {text[:20]!a}")
    return int(text)


def spell(entry: HostEntry) -> str:
    """``user@host:port`` as this program reads it back; IPv6 in brackets where a port follows."""
    text = entry.name
    if entry.port is not None:
        bare_is_slots = not entry.user or is_ipv6(text)
        text = f"[{text}]:{entry.port}" if bare_is_slots else f"{text}:{entry.port}"
    return f"{entry.user}@{text}" if entry.user else text
