"""Faults of name resolution, in the host's own /etc/hosts."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Fault


@dataclass
class HostsFileFault(Fault):
    """Common part: rewrite the lines of one name in the host's /etc/hosts."""

    def give(self, name: str, address: str | None) -> None:
        """Make ``name`` mean ``address`` on the host, or with None nothing."""
        path = self.host.etc / "hosts"
        lines = [line for line in path.read_text().splitlines() if name not in line.split()]
        if address is not None:
            lines.insert(1, f"{address} {name}")
        self.write(path, "\n".join(lines) + "\n")

    def other(self, name: str) -> str:
        """``name``, or where it is empty the host after this one."""
        names = self.lab.hostnames
        return name or names[(names.index(self.host.name) + 1) % len(names)]


@dataclass
class OwnNameLoopback(HostsFileFault):
    """The host's own name means 127.0.1.1 to itself, as Debian's installer writes it."""

    name = "own-name-loopback"
    address: str = "127.0.1.1"

    def apply(self) -> None:
        self.give(self.host.name, self.address)


@dataclass
class StaleAddress(HostsFileFault):
    """To the host, the name of one ``peer`` (default: the next host) means an address that nobody has any more."""

    name = "stale-address"
    peer: str = ""
    address: str = "10.77.0.99"

    def apply(self) -> None:
        self.give(self.other(self.peer), self.address)


@dataclass
class PeerUnresolvable(HostsFileFault):
    """The host cannot resolve the name of one ``peer`` (default: the next host)."""

    name = "peer-unresolvable"
    peer: str = ""

    def apply(self) -> None:
        self.give(self.other(self.peer), None)


@dataclass
class OwnNameUnresolvable(HostsFileFault):
    """The host cannot resolve its own name."""

    name = "own-name-unresolvable"

    def apply(self) -> None:
        self.give(self.host.name, None)
