"""What the hosts measured of each other: names, ports, paths, loss, throughput, clocks. All directed: host -> peer."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import ClassVar

import msgspec

from nccl_doctor.facts.model import Amount, Count, Fact


@functools.lru_cache(65536)  # parsing is slow, and the hosts of a fleet tell of the same addresses
def parsed(address: str) -> IPv4Address | IPv6Address:
    """The address without its zone; ``ValueError`` where this is none."""
    return ip_address(address.partition("%")[0])


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one name resolves to on a host: ``addresses`` in the resolver's order, or ``error`` (the resolver's text).

    ``quoted`` is the line of /etc/hosts that says so (with ``line``, counted from 1), where there is one.
    """

    addresses: tuple[str, ...] = ()
    error: str = ""
    quoted: str = ""
    line: int | None = None


class Names(Fact, frozen=True, omit_defaults=True):
    """Name resolution as this host sees it: its own host name, and the inventory name of every host.

    In a fleet of N hosts that would be N x N answers, nearly all alike. So one host (``reference``) gives its whole
    table, and every other host only what it resolves otherwise.
    """

    PROBE: ClassVar[str] = "names"
    host_name: str
    own: Resolution
    resolved: dict[str, Resolution] = msgspec.field(default_factory=dict)
    addresses: tuple[str, ...] = ()  # the addresses that this host's own interfaces carry
    reference: str = ""  # the host whose table holds for every name not in ``resolved``; empty: this host's own
    lookup_s: Amount | None = None  # seconds that the median of these look-ups took
    resolver: tuple[str, ...] = ()  # name servers of /etc/resolv.conf

    def completed(self) -> Names:
        """The same; ``ValueError`` where what is told as an address is none."""
        for told in (self.own.addresses, self.addresses, *(one.addresses for one in self.resolved.values())):
            for address in told:
                parsed(address)
        return self


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The process that holds a port: empty fields where it belongs to another user and cannot be seen."""

    pid: int | None = None
    command: str = ""
    user: str = ""


class MasterPort(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether the master port could be bound on the master. ``outcome``: ok, in-use, not-permitted, failed."""

    port: int
    outcome: str
    detail: str = ""
    holder: Holder | None = None


class Listening(Fact, frozen=True, omit_defaults=True):
    """The ports this host's agent listens on. ``master`` is set on the master only; ``udp`` is 0 where none opened."""

    PROBE: ClassVar[str] = "listening"
    ephemeral: tuple[int, ...]
    udp: int = 0
    master: MasterPort | None = None


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """One TCP connect to a peer, and where ``messages`` were exchanged over it, what they showed.

    ``purpose``: ephemeral, name (the address that the host's own resolver gives), chosen-interface or master.
    ``outcome``: ok, refused, timed-out, unreachable, reset, not-permitted, wrong-peer, failed. Times are in milliseconds;
    ``lost_forward`` and ``lost_back`` count retransmitted segments in each direction out of ``messages`` small paced
    ones; None: the peer did not tell.
    """

    peer: str
    address: str
    port: Count
    purpose: str
    outcome: str
    detail: str = ""
    source: str = ""  # the local address that the kernel chose
    connect_ms: Amount | None = None
    attempts: Count = 1  # connects it took, one each half second; of a failed one: more if tried again
    rtt_min_ms: Amount | None = None  # older bundles lack it
    rtt_p50_ms: Amount | None = None
    messages: Count = 0
    answered: Count = 0
    lost_forward: Count = 0
    lost_back: Count | None = 0  # left out where none was lost


class Neighbour(msgspec.Struct, frozen=True):
    """A resolved entry of the kernel's neighbour tables (ARP, NDP); ``permanent``: set by hand, and never asked for again."""

    address: str
    mac: str
    interface: str
    permanent: bool = False


class Links(Fact, frozen=True, omit_defaults=True):
    """All connects that this host tried, and what it takes for the hardware addresses of those that failed.

    ``swept``: peer -> how many further ephemeral ports of it answered at once; the others stand among ``links``.
    """

    PROBE: ClassVar[str] = "links"
    links: tuple[Link, ...]
    swept: dict[str, Count] = msgspec.field(default_factory=dict)
    neighbours: tuple[Neighbour, ...] = ()

    def completed(self) -> Links:
        """The same; ``ValueError`` where what is told as an address is none."""
        for link in self.links:
            parsed(link.address)
        return self

    def without(self, peers: Collection[str]) -> Links:
        """The same without the connections to these hosts."""
        links = tuple(link for link in self.links if link.peer not in peers)
        swept = {peer: count for peer, count in self.swept.items() if peer not in peers}
        return msgspec.structs.replace(self, links=links, swept=swept)


class PathSize(msgspec.Struct, frozen=True, omit_defaults=True):
    """The largest packet (bytes, IP headers included) that reached a peer with don't-fragment set.

    ``outcome``: ok (packets of ``interface_mtu`` pass), black-hole (larger ones vanish), blocked (too few or no UDP
    datagrams were answered: ``detail`` says).
    """

    peer: str
    address: str
    outcome: str
    interface_mtu: Count = 0
    largest_passed: Count = 0
    smallest_lost: Count = 0
    detail: str = ""


class PathMtu(Fact, frozen=True, omit_defaults=True):
    """Path MTU from this host to its tested peers."""

    PROBE: ClassVar[str] = "path-mtu"
    paths: tuple[PathSize, ...]

    def without(self, peers: Collection[str]) -> PathMtu:
        """The same without the paths to these hosts."""
        return PathMtu(tuple(path for path in self.paths if path.peer not in peers))


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One timed TCP transfer to a peer: ``bytes`` the peer received in ``seconds``; ``outcome`` as in :class:`Link`."""

    peer: str
    address: str
    outcome: str
    bytes: Count = 0
    seconds: Amount = 0.0
    detail: str = ""

    @property
    def rate(self) -> float:
        """Bytes per second; 0 where nothing was measured."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Throughput(Fact, frozen=True, omit_defaults=True):
    """TCP throughput from this host to its tested peers, one transfer at a time per host."""

    PROBE: ClassVar[str] = "throughput"
    flows: tuple[Flow, ...]

    def without(self, peers: Collection[str]) -> Throughput:
        """The same without the transfers to these hosts."""
        return Throughput(tuple(flow for flow in self.flows if flow.peer not in peers))


class Clock(Fact, frozen=True, omit_defaults=True):
    """This host's clock against the controller's: offset in seconds (positive: ahead), known to +- ``uncertainty``."""

    PROBE: ClassVar[str] = "clock"
    offset: float
    uncertainty: Amount


class Resolver:
    """All hosts' name tables put together again. ``lost``: those of hosts that nobody asks for, though others share them."""

    def __init__(self, seen: dict[str, Names], lost: Mapping[str, Names] | None = None) -> None:
        self._seen = seen
        self._tables = {**(lost or {}), **seen}
        self._own: dict[str, dict[str, Resolution]] = {}  # name -> the hosts that told their own answer
        self._sharers: dict[str, list[str]] = {}  # reference -> the hosts that share its table
        for host, names in sorted(seen.items()):
            self._sharers.setdefault(names.reference or host, []).append(host)
        for host, names in sorted(self._tables.items()):
            for name, found in names.resolved.items() if host in seen or host in self._sharers else ():
                self._own.setdefault(name, {})[host] = found

    def answer(self, host: str, name: str) -> Resolution | None:
        """What ``name`` resolves to on ``host``; None where that is not known."""
        names = self._seen.get(host)
        if names is None:
            return None
        found = names.resolved.get(name)
        if found is None and names.reference:
            reference = self._tables.get(names.reference)
            found = reference.resolved.get(name) if reference else None
        return found

    def names(self) -> list[str]:
        """Every name that any host was asked for, sorted."""
        return sorted(self._own)

    def untold(self) -> dict[str, list[str]]:
        """Reference hosts whose table is missing -> the hosts that share it, and of which nothing is known therefore."""
        return {reference: hosts for reference, hosts in self._sharers.items() if reference not in self._tables}

    def silent(self, name: str) -> list[str]:
        """The hosts that were not asked for this name, those of :meth:`untold` aside."""
        own = self._own.get(name, {})
        asked = (reference for reference in self._sharers if reference in self._tables and reference not in own)
        return [host for reference in asked for host in self._sharers[reference] if host not in own]

    def answers(self, name: str) -> dict[tuple[str, ...], list[str]]:
        """The different address lists of a name (empty: it does not resolve) -> the hosts that give them, sorted."""
        own = self._own.get(name, {})
        table: dict[tuple[str, ...], list[str]] = {}
        for reference, sharers in self._sharers.items():
            shared = own.get(reference)
            if shared is None:
                continue
            # Of thousands of names only a few are told by more than the reference: those lists need no filtering.
            agree = sharers if len(own) == 1 else [host for host in sharers if host == reference or host not in own]
            table[shared.addresses] = table[shared.addresses] + agree if shared.addresses in table else agree
        for host, found in own.items():
            if host not in self._sharers:
                table[found.addresses] = [*table.get(found.addresses, []), host]
        # Built in sorted order; only where overrides were mixed in does it need sorting again.
        return {addresses: sorted(hosts) if len(own) > 1 else hosts for addresses, hosts in sorted(table.items())}
