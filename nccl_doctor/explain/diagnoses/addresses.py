"""Addresses as lines write them, and how many hosts they speak of."""

from __future__ import annotations

import ipaddress
import re

from nccl_doctor.explain.case import Case


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in NCCL's ``10.0.0.1<4711>``, Gloo's ``[::ffff:10.0.0.1]:4711`` and the like; None if there is none."""
    bare = re.sub(r"<\d+>.*$|%\w+$", "", text.strip().strip("[]"))
    bare = re.sub(r"^(?:::ffff:)?(\d+\.\d+\.\d+\.\d+):\d+$", r"\1", bare)
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return None


def is_unroutable(text: str) -> bool:
    """Whether this is an address that is valid on its own host or link only."""
    address = address_of(text)
    return address is not None and (address.is_loopback or address.is_link_local)


def network_of(text: str) -> str | None:
    """The first two bytes of an IPv4 address: hosts whose addresses differ in them are in different networks."""
    address = address_of(text)
    if address is None or address.version != 4:
        return None
    return ".".join(str(address).split(".")[:2])


def is_local_only(text: str) -> bool:
    """Whether a line's first IPv4 address exists only inside its host: loopback, link-local, Docker's and libvirt's bridges."""
    found = re.search(r"\d+\.\d+\.\d+\.\d+", text)
    if not found:
        return False
    address = address_of(found.group())
    return address is not None and (
        address.is_loopback or address.is_link_local or str(address).startswith(("172.17.", "192.168.122."))
    )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is that of every host for itself."""
    return host.startswith("127.") or host in ("localhost", "::1")


def several_hosts(case: Case) -> bool:
    """Whether the lines speak of more than one host, by name or by address."""
    found = set()
    for hit in case.hits("gloo-endpoint", "master-refused", "torchrun-host", "world-size"):
        for text in re.findall(r"\d+\.\d+\.\d+\.\d+", hit.text):
            if not text.startswith("127."):
                found.add(text)
    return len(found) > 1 or len(case.summary.hosts) > 1
