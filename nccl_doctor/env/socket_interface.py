"""Which network interface NCCL and Gloo choose: a model of their own rules, checked against real libraries.

NCCL: source up to v2.30.7-1; recorded behaviour of 2.18.1, 2.21.5, 2.30.7, 2.31.2 and 2.32.3, and runs of 13 releases
from 2.16.5 to 2.32.3 in network namespaces (tests/tools/ask_nccl.py).
Gloo: as PyTorch 2.13.0 uses it (recorded), source of ProcessGroupGloo and gloo/transport/tcp/device.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

import msgspec

from nccl_doctor.env.versions import Version, at_least
from nccl_doctor.facts.interfaces import Address

MAX_INTERFACES = 16  # MAX_IFS
MAX_LIST = 16  # entries of one NCCL_SOCKET_IFNAME
RUNNING_ONLY_SINCE = "2.28.3"  # before, interfaces without a carrier counted
VIRBR_EXCLUDED_SINCE = "2.28.3"  # before, virbr* counted like any other
EXACT_MATCH_SINCE = "2.5.6"
INVALID_USAGE_SINCE = "2.24.3"  # "no socket interface found": result 5; before, 3

# In these releases the test for NCCL_COMM_ID's subnet is the wrong way round: the first interface *outside* it is taken.
SUBNET_INVERTED_SINCE, SUBNET_MENDED_IN = "2.29.2", "2.30.3"

NO_INTERFACE = "Bootstrap : no socket interface found"
NO_SUBNET = "NET/Socket : No usable listening interface found"
BAD_COMM_ID = "Invalid NCCL_COMM_ID"


class Filter(msgspec.Struct, frozen=True):
    """A parsed NCCL_SOCKET_IFNAME. ``^`` and ``=`` apply to the whole list; blanks are part of the names."""

    names: tuple[str, ...]
    exclude: bool = False
    exact: bool = False

    def hits(self, interface: str) -> bool:
        """Whether the list names this interface (before ``^`` turns it round). An empty list names all."""
        if not self.names:
            return True
        if self.exact:
            return interface in self.names
        return interface.startswith(self.names)

    def takes(self, interface: str) -> bool:
        """Whether NCCL would use this interface."""
        return self.hits(interface) != self.exclude


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was chosen. ``rule`` says why; ``failure`` is NCCL's (or Gloo's) message if nothing could be chosen.

    ``addresses`` are all that match (NET/Socket uses them all, the bootstrap the first); ``result`` is NCCL's result
    code on failure.
    """

    rule: str
    addresses: tuple[Address, ...] = ()
    failure: str = ""
    result: int = 0

    @property
    def address(self) -> Address | None:
        """The one the bootstrap listens on, and whose address every peer is given."""
        return self.addresses[0] if self.addresses else None


def parse_filter(value: str, version: Version) -> Filter | None:
    """NCCL_SOCKET_IFNAME as NCCL reads it; None if it is ignored (empty or one character)."""
    if len(value) <= 1:
        return None
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=") and at_least(version, EXACT_MATCH_SINCE)
    rest = rest[1:] if exact else rest
    names = tuple(entry.split(":")[0] for entry in rest.split(","))
    return Filter(tuple(name for name in names if name)[:MAX_LIST], exclude, exact)


def _candidates(addresses: Sequence[Address], family: str, version: Version) -> list[Address]:
    wanted = {"AF_INET": "inet", "AF_INET6": "inet6"}.get(family)
    return [
        address
        for address in addresses
        if (address.running or not at_least(version, RUNNING_ONLY_SINCE))
        and (wanted is None or address.family == wanted)
        and not (address.family == "inet6" and ip_address(address.address).is_loopback)
    ]


def _matching(candidates: Sequence[Address], takes: Callable[[str], bool]) -> tuple[Address, ...]:
    """The first address of each interface whose name is taken, in kernel order."""
    found: dict[str, Address] = {}
    for address in candidates:
        if takes(address.name):
            found.setdefault(address.name, address)
    return tuple(found.values())[:MAX_INTERFACES]


def _prefix(*prefixes: str) -> Callable[[str], bool]:
    return Filter(prefixes).takes


def _in_subnet(
    addresses: Sequence[Address], remote: IPv4Address | IPv6Address, version: Version
) -> tuple[Address, ...]:
    """The first interface in the same subnet as ``remote``, with a carrier or not."""
    inverted = at_least(version, SUBNET_INVERTED_SINCE) and not at_least(version, SUBNET_MENDED_IN)
    return tuple(address for address in addresses if (remote in address.network) != inverted)[:1]


def _comm_id_address(value: str) -> IPv4Address | IPv6Address | None:
    """The address in NCCL_COMM_ID (``ipv4:port``, ``[ipv6]:port``); None for a name (:func:`needs_resolver`) or nonsense."""
    host = value[1:].split("]")[0] if value.startswith("[") else value.split(":")[0]
    try:
        return ip_address(host)
    except ValueError:
        return None


def needs_resolver(comm_id: str) -> bool:
    """Whether NCCL_COMM_ID holds a host name: what is chosen then depends on what it resolves to."""
    return len(comm_id) > 1 and ":" in comm_id and comm_id[0] != "[" and _comm_id_address(comm_id) is None


def nccl_interfaces(addresses: Sequence[Address], settings: Mapping[str, str], version: Version) -> Choice:
    """All interfaces that NET/Socket would use, in NCCL's order of attempts; the bootstrap takes the first.

    ``settings`` are the values NCCL sees (see :mod:`nccl_doctor.env.nccl_conf`); ``addresses`` in kernel order.
    """
    candidates = _candidates(addresses, settings.get("NCCL_SOCKET_FAMILY", ""), version)
    wanted = parse_filter(settings.get("NCCL_SOCKET_IFNAME", ""), version)
    if wanted is not None:
        found = _matching(candidates, wanted.takes)
        return Choice("NCCL_SOCKET_IFNAME", found) if found else _nothing("NCCL_SOCKET_IFNAME", version)
    if found := _matching(candidates, _prefix("ib")):
        return Choice("first names that begin with ib", found)
    comm_id = settings.get("NCCL_COMM_ID", "")
    if len(comm_id) > 1:
        remote = _comm_id_address(comm_id)
        if remote is not None and (found := _in_subnet(addresses, remote, version)):
            return Choice("subnet of NCCL_COMM_ID", found)
    shunned = ("docker", "lo", "virbr") if at_least(version, VIRBR_EXCLUDED_SINCE) else ("docker", "lo")
    if found := _matching(candidates, Filter(shunned, exclude=True).takes):
        return Choice(f"first that is not {', '.join(shunned)}", found)
    for last_resort in ("docker", "lo", "virbr"):
        if found := _matching(candidates, _prefix(last_resort)):
            return Choice(f"nothing better than {last_resort}*", found)
    return _nothing("no interface at all", version)


def _nothing(rule: str, version: Version) -> Choice:
    return Choice(rule, (), NO_INTERFACE, 5 if at_least(version, INVALID_USAGE_SINCE) else 3)


def nccl_bootstrap(addresses: Sequence[Address], settings: Mapping[str, str], version: Version) -> Choice:
    """The one interface the bootstrap uses. With NCCL_COMM_ID it is the one in its subnet, whatever IFNAME says."""
    comm_id = settings.get("NCCL_COMM_ID")
    if comm_id is None:
        choice = nccl_interfaces(addresses, settings, version)
        return msgspec.structs.replace(choice, addresses=choice.addresses[:1])
    remote = _comm_id_address(comm_id) if len(comm_id) > 1 else None
    if remote is None:
        return Choice("NCCL_COMM_ID", (), BAD_COMM_ID, 4)
    found = _in_subnet(addresses, remote, version)
    return Choice("subnet of NCCL_COMM_ID", found) if found else Choice("NCCL_COMM_ID", (), NO_SUBNET, 2)


def gloo_interfaces(
    addresses: Sequence[Address], interface_names: str | None, own_addresses: Sequence[str] | None
) -> Choice | None:
    """The addresses Gloo listens on and hands to its peers (recorded with torch 2.13.0).

    ``interface_names`` is GLOO_SOCKET_IFNAME: a comma list of exact names, each must have an address, up or not; one
    character or none is as if unset. Otherwise the first of ``own_addresses`` (what the host's own name resolves to,
    in the resolver's order; empty: it does not resolve) that is an address of this host; otherwise 127.0.0.1. None if
    ``own_addresses`` would be needed and is not known.
    """
    if interface_names and len(interface_names) > 1:
        return _gloo_named(addresses, interface_names)
    if own_addresses is None:
        return None
    for own in own_addresses:
        if (found := _local(addresses, own)) is not None:
            return Choice("address of the host's own name", (found,))
    loopback = Address("lo", "inet", "127.0.0.1", 8, loopback=True)
    return Choice("loopback: the host's own name has no local address", (loopback,))


def _gloo_named(addresses: Sequence[Address], interface_names: str) -> Choice:
    entries = interface_names.split(",")
    if entries[-1] == "":
        entries.pop()  # one trailing comma is harmless
    found = []
    for entry in entries:
        first = next((address for address in addresses if address.name == entry), None)
        if first is None:
            return Choice("GLOO_SOCKET_IFNAME", (), f"Unable to find address for: {entry}")
        found.append(first)
    return Choice("GLOO_SOCKET_IFNAME", tuple(found))


def _local(addresses: Sequence[Address], own: str) -> Address | None:
    """The entry that ``own`` belongs to; any 127.x.x.x belongs to the loopback interface."""
    wanted = ip_address(own.split("%")[0])
    for address in addresses:
        if ip_address(address.address) == wanted:
            return address
    if wanted.is_loopback and wanted.version == 4:
        return Address("lo", "inet", str(wanted), 8, loopback=True)
    return None
