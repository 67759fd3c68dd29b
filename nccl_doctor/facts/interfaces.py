"""What a host's network interfaces are, and what steers NCCL's and Gloo's choice among them (probe ``interfaces``)."""

from __future__ import annotations

import functools
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface
from typing import ClassVar, Literal

import msgspec

from nccl_doctor.facts.model import Fact


@functools.lru_cache(maxsize=65536)
def _interface(address: str, prefix: int) -> IPv4Interface | IPv6Interface:
    """Parsing is slow, and rules ask for the same addresses again and again."""
    return ip_interface(f"{address}/{prefix}")


class Address(msgspec.Struct, frozen=True):
    """One entry of getifaddrs: an interface's name, one of its addresses, and the interface's flags."""

    name: str
    family: Literal["inet", "inet6"]
    address: str
    prefix: int  # length of the network prefix in bits
    up: bool = True
    running: bool = True
    loopback: bool = False

    @property
    def interface(self) -> IPv4Interface | IPv6Interface:
        """Address and prefix as the standard library's type."""
        return _interface(self.address, self.prefix)

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """The subnet of this address."""
        return self.interface.network

    @property
    def link_local(self) -> bool:
        """169.254.0.0/16 or fe80::/10: not routed, and often the same on every host (a BMC's USB network)."""
        return self.interface.ip.is_link_local


class Device(msgspec.Struct, frozen=True):
    """One directory of /sys/class/net. ``kind``: physical, loopback, bridge, bond, vlan, tun, wireguard, virtual..."""

    name: str
    operstate: str = ""
    mtu: int | None = None  # bytes
    speed_mbps: int | None = None
    mac: str = ""
    kind: str = ""
    driver: str = ""
    pci: str = ""
    master: str = ""  # the bridge or bond it is a port of
    lower: tuple[str, ...] = ()  # what it stands on: a bond's or bridge's ports, a VLAN's interface
    losses: int | None = None  # how often its link went down since it was made


class Route(msgspec.Struct, frozen=True):
    """One line of the main routing table. ``gateway`` is empty for a directly connected network."""

    family: Literal["inet", "inet6"]
    interface: str
    destination: str
    prefix: int
    gateway: str = ""
    metric: int = 0
    reject: bool = False

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """Where it leads to."""
        return _interface(self.destination, self.prefix).network


class ConfLine(msgspec.Struct, frozen=True):
    """A line of a configuration file that sets, or was meant to set, an NCCL variable; verbatim."""

    line: int  # counted from 1
    text: str


class ConfFile(msgspec.Struct, frozen=True):
    """One of NCCL's configuration files. ``outcome``: ok, absent, not-permitted."""

    role: Literal["system", "home", "passwd-home", "environment"]
    path: str
    outcome: Literal["ok", "absent", "not-permitted"] = "ok"
    lines: tuple[ConfLine, ...] = ()


class Interfaces(Fact, frozen=True):
    """A host's interfaces. ``addresses`` are in kernel order, which decides NCCL's choice."""

    PROBE: ClassVar[str] = "interfaces"
    addresses: tuple[Address, ...]
    devices: tuple[Device, ...] = ()
    routes: tuple[Route, ...] = ()
    routes_cut: int = 0  # how many more there are that might lead to a peer
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    conf_files: tuple[ConfFile, ...] = ()
    hostname: str = ""
    uptime_s: float | None = None
    read_at_s: float = 0.0  # on the host's monotonic clock

    def completed(self) -> Interfaces:
        """The same; ``ValueError`` where what is told as an address or a network is none."""
        for address in self.addresses:
            _interface(address.address, address.prefix)
        for route in self.routes:
            _interface(route.destination, route.prefix)
        return self

    def device(self, name: str) -> Device | None:
        """The device of this name, if sysfs has it."""
        return next((device for device in self.devices if device.name == name), None)

    def standing_on(self, name: str) -> tuple[Device, ...]:
        """The device of this name and all that it stands on (a VLAN's bond, the bond's ports), each once."""
        names, found = [name], []
        for wanted in names:  # grows while it is walked
            device = self.device(wanted)
            if device is not None:
                found.append(device)
                names += [lower for lower in device.lower if lower not in names]
        return tuple(found)


class Carriers(Fact, frozen=True):
    """A later reading of how often each link went down, from the same run as :class:`Interfaces`."""

    PROBE: ClassVar[str] = "carriers"
    losses: dict[str, int]
    read_at_s: float
