"""Faults on the way in: between the controller's ssh and the host's sshd."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from .. import machine
from .base import Fault


@dataclass
class SshdDown(Fault):
    """No sshd runs: connections to port 22 are refused."""

    name = "sshd-down"

    def apply(self) -> None:
        self.host.stop_sshd()

    def undo(self) -> None:
        if not self.host.sshd:
            self.host.start_sshd()


@dataclass
class SshdHung(Fault):
    """The sshd is stopped (SIGSTOP): the kernel accepts connections, and no banner ever comes."""

    name = "sshd-hung"

    def apply(self) -> None:
        os.kill(self.host.sshd, signal.SIGSTOP)

    def undo(self) -> None:
        # Connections wait in its backlog; a fresh sshd has none of them.
        if self.host.sshd:
            os.kill(self.host.sshd, signal.SIGCONT)
        self.host.restart_sshd()


@dataclass
class HostKeyChanged(Fault):
    """The host shows another key than the controller's known_hosts has for it."""

    name = "host-key-changed"

    def apply(self) -> None:
        for suffix in ("", ".pub"):
            path = self.host.directory / f"host_key{suffix}"
            self.write(path, path.read_text())  # remembers the file; the new key replaces it
        self.host.make_host_key()
        self.host.restart_sshd()

    def undo(self) -> None:
        super().undo()
        self.host.restart_sshd()


@dataclass
class HostKeyUnknown(Fault):
    """The controller's known_hosts has no key of the host."""

    name = "host-key-unknown"

    def apply(self) -> None:
        lines = self.lab.known_hosts.read_text().splitlines(keepends=True)
        self.write(self.lab.known_hosts, "".join(line for line in lines if not line.startswith(self.host.name + ",")))


@dataclass
class AuthenticationFails(Fault):
    """The host accepts none of the controller's keys."""

    name = "authentication-fails"

    def apply(self) -> None:
        self.write(self.host.directory / "authorized_keys", "")


@dataclass
class SshFiltered(Fault):
    """Packets to port 22 vanish: connecting times out."""

    name = "ssh-filtered"

    def apply(self) -> None:
        self.filter("input", ["tcp dport 22 drop"])


@dataclass
class CableFault(Fault):
    """Common part: the host's switch port goes down and comes up."""

    def undo(self) -> None:
        super().undo()
        machine.command(self.port("up"))
        # A new cable: the kernel counts how often the old one was down, and would tell of it in the next test.
        machine.command(f"ip -netns {self.host.namespace} link del eth0".split())
        self.host.plug(self.lab.switch, self.lab.prefix_length, self.lab.mtu)
        self.forget_neighbour()
        probe = ["ping", "-n", "-q", "-c", "1", "-W", "1", self.host.address]
        other = "gpu01" if self.host.name == "controller" else "controller"
        machine.wait_for(lambda: self.lab.on(other, probe).returncode == 0, f"{self.host.name} to answer again", 20)

    def port(self, state: str) -> list[str]:
        """The command that brings the port ``up`` or ``down``."""
        return f"ip -netns {self.lab.switch} link set {self.host.name} {state}".split()

    def forget_neighbour(self) -> None:
        """Nobody knows the host's hardware address any more (or still believes that there is none)."""
        for name in ("controller", *self.lab.hostnames):
            self.lab.on(name, ["ip", "neighbour", "flush", "to", self.host.address])


@dataclass
class HostDown(CableFault):
    """The host's cable is pulled (its switch port is down): no ARP answer, no route to host."""

    name = "host-down"

    def apply(self) -> None:
        machine.command(self.port("down"))
        # As with a host that has been down for a while: a fresh entry would make its absence look like packet loss.
        self.forget_neighbour()


@dataclass
class LinkFlaps(CableFault):
    """The host's link goes down for a tenth of a second, ``every_s`` seconds; what is sent meanwhile is lost."""

    name = "link-flaps"
    every_s: float = 1.0

    def apply(self) -> None:
        into_switch = ["nsenter", f"--net={machine.NETNS / self.lab.switch}"]
        port = f"ip link set {self.host.name}"
        script = f"while {port} down && sleep 0.1 && {port} up; do sleep {self.every_s}; done"
        self.memory["pids"] = [machine.detach([*into_switch, "sh", "-c", script], self.host.directory / "flap.pid")]


@dataclass
class HostVanishes(CableFault):
    """The host's cable is pulled in the middle of the work: ``after_s`` seconds after the fault is applied."""

    name = "host-vanishes"
    after_s: float = 1.0

    def apply(self) -> None:
        pull = f"sleep {self.after_s}; exec ip link set {self.host.name} down"
        into_switch = ["nsenter", f"--net={machine.NETNS / self.lab.switch}"]
        self.memory["pids"] = [machine.detach([*into_switch, "sh", "-c", pull], self.host.directory / "pull.pid")]


@dataclass
class ControllerCannotResolve(Fault):
    """The controller does not know the host's name."""

    name = "name-unknown"

    def apply(self) -> None:
        path = self.lab.controller.etc / "hosts"
        lines = path.read_text().splitlines(keepends=True)
        self.write(path, "".join(line for line in lines if self.host.name not in line.split()))
