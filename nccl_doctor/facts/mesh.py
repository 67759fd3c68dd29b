"""What the hosts measured of each other: names, ports, paths, loss, throughput, clocks. All directed: host -> peer."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nccl_doctor.facts.model import Fact


class Resolution(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one name resolves to on a host: ``addresses`` in the resolver's order, or ``error`` (the resolver's text).

    ``quoted`` is the line of /etc/hosts that says so (with ``line``, counted from 1), where there is one.
    """

    addresses: tuple[str, ...] = ()
    error: str = ""
    quoted: str = ""
    line: int | None = None


class Names(Fact, frozen=True, omit_defaults=True):
    """Name resolution as this host sees it: its own host name, and the inventory name of every host."""

    PROBE: ClassVar[str] = "names"
    host_name: str
    own: Resolution
    resolved: dict[str, Resolution] = msgspec.field(default_factory=dict)
    addresses: tuple[str, ...] = ()  # the addresses that this host's own interfaces carry


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
    port_range: tuple[int, int] | None = None  # net.ipv4.ip_local_port_range


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """One TCP connect to a peer, and where ``messages`` were exchanged over it, what they showed.

    ``purpose``: master, ephemeral or chosen-interface. ``outcome``: ok, refused, timed-out, unreachable,
    reset, name-unresolved, wrong-peer, failed. Times are in milliseconds; ``lost_forward`` and ``lost_back`` count
    retransmitted segments in each direction out of ``messages`` small paced ones.
    """

    peer: str
    address: str
    port: int
    purpose: str
    outcome: str
    detail: str = ""
    source: str = ""  # the local address that the kernel chose
    connect_ms: float | None = None
    rtt_p50_ms: float | None = None
    rtt_p99_ms: float | None = None
    messages: int = 0
    answered: int = 0
    lost_forward: int = 0
    lost_back: int = 0


class Links(Fact, frozen=True, omit_defaults=True):
    """All connects that this host tried."""

    PROBE: ClassVar[str] = "links"
    links: tuple[Link, ...]


class PathSize(msgspec.Struct, frozen=True, omit_defaults=True):
    """The largest packet (bytes, IP headers included) that reached a peer with don't-fragment set.

    ``outcome``: ok (packets of ``interface_mtu`` pass), black-hole (larger ones vanish in silence), limited (the
    network reported a smaller path MTU, or the peer's interface is smaller: ``detail`` says), blocked (no UDP at all).
    """

    peer: str
    address: str
    outcome: str
    interface_mtu: int = 0
    largest_passed: int = 0
    smallest_lost: int = 0
    detail: str = ""


class PathMtu(Fact, frozen=True, omit_defaults=True):
    """Path MTU from this host to its tested peers."""

    PROBE: ClassVar[str] = "path-mtu"
    paths: tuple[PathSize, ...]


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One timed TCP transfer to a peer: ``bytes`` the peer received in ``seconds``; ``outcome`` as in :class:`Link`."""

    peer: str
    address: str
    outcome: str
    bytes: int = 0
    seconds: float = 0.0
    retransmitted: int = 0
    detail: str = ""

    @property
    def rate(self) -> float:
        """Bytes per second; 0 where nothing was measured."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Throughput(Fact, frozen=True, omit_defaults=True):
    """TCP throughput from this host to its tested peers, one transfer at a time per host."""

    PROBE: ClassVar[str] = "throughput"
    flows: tuple[Flow, ...]


class Clock(Fact, frozen=True, omit_defaults=True):
    """This host's clock against the controller's: offset in seconds (positive: ahead), known to +- ``uncertainty``."""

    PROBE: ClassVar[str] = "clock"
    offset: float
    uncertainty: float
