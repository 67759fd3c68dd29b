"""Faults of the network: packet filters, links, interfaces, ports in use."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import machine
from .base import Fault

if TYPE_CHECKING:
    from ..host import Host
    from ..lab import Lab

LISTENER = Path(__file__).parents[1] / "programs" / "listener.py"
NEW_TCP = "tcp flags & (syn|ack) == syn"


@dataclass
class PortDropped(Fault):
    """New TCP connections to the host vanish on every port but 22, or on ``ports``; with ``outward``, from it as well."""

    name = "port-dropped"
    outward: bool = False
    ports: str = "!= 22"

    def apply(self) -> None:
        self.filter("input", [f"iifname != lo {NEW_TCP} tcp dport {self.ports} drop"])
        if self.outward:
            self.filter("output", [f"oifname != lo {NEW_TCP} drop"])


@dataclass
class PortRejected(Fault):
    """New TCP connections to the host are rejected on every port but 22.

    ``reply`` is what the packet filter answers: ``icmp`` (host administratively prohibited, as firewalld does: the
    other side sees "No route to host") or ``reset`` (the other side sees "Connection refused").
    """

    name = "port-rejected"
    reply: str = "icmp"

    def apply(self) -> None:
        answer = {"icmp": "reject with icmpx type admin-prohibited", "reset": "reject with tcp reset"}[self.reply]
        self.filter("input", [f"iifname != lo {NEW_TCP} tcp dport != 22 {answer}"])


@dataclass
class MasterPortDropped(Fault):
    """New TCP connections to one ``port`` of the host vanish; all other ports are open."""

    name = "master-port-dropped"
    port: int = 29500

    def apply(self) -> None:
        self.filter("input", [f"iifname != lo tcp dport {self.port} drop"])


@dataclass
class OneWayDrop(Fault):
    """The host can be connected to, but its own connections to other hosts vanish."""

    name = "outbound-dropped"

    def apply(self) -> None:
        self.filter("output", [f"oifname != lo {NEW_TCP} drop"])


@dataclass
class PingDropped(Fault):
    """The host answers no ping, and is otherwise healthy: many sites filter ICMP echo. No cause of any failure."""

    name = "ping-dropped"

    def apply(self) -> None:
        self.filter("input", ["icmp type echo-request drop", "icmpv6 type echo-request drop"])


@dataclass
class PortTaken(Fault):
    """A process on the host listens on ``port`` (29500 is the usual master port) on all addresses."""

    name = "port-taken"
    port: int = 29500

    def apply(self) -> None:
        self.spawn([sys.executable, "-I", str(LISTENER), str(self.port)])
        needle = f":{self.port:04X}"
        machine.wait_for(lambda: needle in self.inside("cat /proc/net/tcp"), f"a listener on port {self.port}")


@dataclass
class ConnectLimit(Fault):
    """The host's packet filter drops new TCP connections beyond ``per_second``, on every port but 22."""

    name = "connect-limit"
    per_second: int = 3

    def apply(self) -> None:
        self.filter("input", [f"iifname != lo {NEW_TCP} tcp dport != 22 limit rate over {self.per_second}/second drop"])


@dataclass
class WrongNeighbour(Fault):
    """The host has a static neighbour entry for ``peer`` with a hardware address that nobody has."""

    name = "wrong-neighbour"
    peer: str = "gpu03"
    ipv6: bool = False

    def apply(self) -> None:
        address = _address(self.lab, self.peer, self.ipv6)
        self.inside(f"ip neighbour replace {address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent")

    def undo(self) -> None:
        self.inside(f"ip neighbour del {_address(self.lab, self.peer, self.ipv6)} dev eth0 || true")


@dataclass
class WrongRoute(Fault):
    """The host has a route of ``kind`` (unreachable, blackhole, or via a gateway that does not forward) to ``peer``."""

    name = "wrong-route"
    peer: str = "gpu03"
    kind: str = "unreachable"
    ipv6: bool = False

    def apply(self) -> None:
        gateway = _address(self.lab, "controller", self.ipv6)
        address = _address(self.lab, self.peer, self.ipv6)
        self.inside(
            f"ip route add {f'{address} via {gateway}' if self.kind == 'gateway' else f'{self.kind} {address}'}"
        )

    def undo(self) -> None:
        self.inside(f"ip {'-6' if self.ipv6 else '-4'} route flush {_address(self.lab, self.peer, self.ipv6)}")


def _address(lab: Lab, name: str, ipv6: bool) -> str:
    """A host's address, or the one that the fault ipv6-only gives it."""
    return f"fd77::{lab.address(name).rpartition('.')[2]}" if ipv6 else lab.address(name)


@dataclass
class Ipv6Only(Fault):
    """All hosts have an IPv6 address each and no IPv4 one but the loopback's. No cause of any failure."""

    name = "ipv6-only"

    def apply(self) -> None:
        for name in ("controller", *self.lab.hostnames):
            host = self.lab.host(name)
            lines = host.etc.joinpath("hosts").read_text().splitlines()
            names = [f"{_address(self.lab, one, True)} {one}" for one in ("controller", *self.lab.hostnames)]
            self.write(host.etc / "hosts", "\n".join([*lines[:2], *names]) + "\n")
            self._readdress(host, "add", "del")

    def undo(self) -> None:
        super().undo()
        for name in ("controller", *self.lab.hostnames):
            self._readdress(self.lab.host(name), "del", "add")

    def _readdress(self, host: Host, ipv6: str, ipv4: str) -> None:
        # Not in use by anybody else: without the kernel's second of asking for it. What was learned of an earlier lab is
        # forgotten: a host may have got a new interface since (CableFault).
        new, old = f"{_address(self.lab, host.name, True)}/64", f"{host.address}/{self.lab.prefix_length}"
        turn = f"ip address {ipv6} {new} dev eth0 nodad; ip address {ipv4} {old} dev eth0"
        host.run(["sh", "-c", f"{turn}; ip -6 neighbour flush dev eth0"])


@dataclass
class MtuBlackHole(Fault):
    """IP packets of more than ``largest`` bytes between the host and its peers vanish in the switch, silently.

    The interfaces keep their MTU, and the controller's packets pass: logins work, jobs hang.
    """

    name = "mtu-black-hole"
    largest: int = 1400

    def apply(self) -> None:
        spared = f"ip saddr != {self.lab.controller.address} ip daddr != {self.lab.controller.address}"
        drop = f"ether type ip {spared} ip length > {self.largest} drop"
        rules = [f'{side} "{self.host.name}" {drop}' for side in ("iifname", "oifname")]
        self.filter("forward", rules, family="bridge", namespace=self.lab.switch)


@dataclass
class MtuMismatch(Fault):
    """The host's interface has another MTU (bytes) than its peers' and the switch's."""

    name = "mtu-mismatch"
    mtu: int = 9000

    def apply(self) -> None:
        self.inside(f"ip link set eth0 mtu {self.mtu}")

    def undo(self) -> None:
        self.inside(f"ip link set eth0 mtu {self.lab.mtu}")


@dataclass
class SlowLink(Fault):
    """The host's link carries no more than ``mbit`` Mbit/s in each direction (token bucket)."""

    name = "slow-link"
    mbit: int = 100

    def apply(self) -> None:
        for namespace, device in self._ends():
            shape = (
                f"tc -netns {namespace} qdisc add dev {device} root tbf rate {self.mbit}mbit burst 64kb latency 50ms"
            )
            machine.command(shape.split())

    def undo(self) -> None:
        for namespace, device in self._ends():
            machine.command(f"tc -netns {namespace} qdisc del dev {device} root".split(), check=False)

    def _ends(self) -> list[tuple[str, str]]:
        return [(self.host.namespace, "eth0"), (self.lab.switch, self.host.name)]


@dataclass
class LossyLink(Fault):
    """The host's link loses ``percent`` % of the packets to and from its peers, at random. The controller's pass."""

    name = "lossy-link"
    percent: int = 5

    def apply(self) -> None:
        spared = f"ip saddr != {self.lab.controller.address} ip daddr != {self.lab.controller.address}"
        lose = f"ether type ip {spared} numgen random mod 100 < {self.percent} drop"
        rules = [f'{side} "{self.host.name}" {lose}' for side in ("iifname", "oifname")]
        self.filter("forward", rules, family="bridge", namespace=self.lab.switch)


@dataclass
class SecondInterface(Fault):
    """The host has a second interface, first in the kernel's order, with an address that no peer can reach."""

    name = "second-interface"
    interface: str = "aux0"
    address: str = "192.168.50.2/24"

    def apply(self) -> None:
        # The far end lies in the switch, up but not plugged into the bridge.
        _plug(self.host, self.interface, f"far-{self.host.name}", self.lab.switch, index=5)
        self.inside(f"ip address add {self.address} dev {self.interface}")

    def undo(self) -> None:
        self.inside(f"ip link del {self.interface} 2>/dev/null || true")


@dataclass
class SameBridgeEverywhere(Fault):
    """Every host has a container bridge with the same address, first in the kernel's order.

    ``docker0`` and ``virbr0`` are what NCCL leaves out by itself: they break nothing, unless an exclude list replaces
    its own (``socket_ifname=^lo``: NCCL_SOCKET_IFNAME in every host's /etc/nccl.conf). Another name it takes.
    """

    name = "same-bridge-everywhere"
    interface: str = "docker0"
    address: str = "172.17.0.1/16"
    socket_ifname: str = ""

    def apply(self) -> None:
        for host in map(self.lab.host, self.lab.hostnames):
            # A bridge runs only with a live port: as with one container started.
            _plug(host, "vcontainer", f"con-{host.name}", self.lab.switch, index=20)
            script = (
                "echo 1 >/proc/sys/net/ipv6/conf/vcontainer/disable_ipv6\n"
                f"ip link add {self.interface} index 5 type bridge\n"
                f"ip link set vcontainer master {self.interface}\nip link set {self.interface} up\n"
                f"ip address add {self.address} dev {self.interface}\n"
            )
            host.run(["sh", "-euc", script], check=True)
            if self.socket_ifname:
                self.write(host.etc / "nccl.conf", f"NCCL_SOCKET_IFNAME={self.socket_ifname}\n")

    def undo(self) -> None:
        super().undo()
        for host in map(self.lab.host, self.lab.hostnames):
            host.run(["sh", "-c", f"ip link del vcontainer; ip link del {self.interface}"])


def _plug(host: Host, interface: str, far_end: str, switch: str, index: int) -> None:
    """Give a host another interface with this index (its place in the kernel's order), up at both ends."""
    add = f"ip -netns {host.namespace} link add {interface} index {index} type veth peer name {far_end} netns {switch}"
    machine.command(add.split())
    machine.command(f"ip -netns {host.namespace} link set {interface} up".split())
    machine.command(f"ip -netns {switch} link set {far_end} up".split())
