"""How paramiko's errors become outcomes with a sentence and quoted proof."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import paramiko
import paramiko.packet

from nccl_doctor.facts.model import ReachOutcome
from nccl_doctor.transport.base import Unreachable
from nccl_doctor.transport.known_hosts import KnownKey, Verdict, fingerprint
from nccl_doctor.transport.ssh_config import HostConfig


class NeedsProgram(Exception):
    """This host's config asks for what only the ssh program does; the text says what."""


class _Packets(paramiko.packet.Packetizer):
    """Without paramiko's own handshake clock, which is a thread per host: the limit is ours."""

    def start_handshake(self, timeout: float) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """A jump host that is gone first cannot be told: paramiko's thread would die of it, with a traceback."""
        with contextlib.suppress(OSError, EOFError):
            super().close()


class Connection(paramiko.Transport):
    """A connection that wakes up seldom, and keeps what the server said when it could not open a channel.

    paramiko logs the server's words ("Connection refused", "Name or service not known") and raises only a code, in
    whichever thread asks first. The hooks are private to it: without them the words are missing.
    """

    _active_check_timeout = 5.0  # paramiko's 0.1 s cost as much CPU as the handshake when 500 hosts are slow

    def __init__(self, line: Any) -> None:
        self._own = threading.local()
        self._words: dict[int, str] = {}
        super().__init__(line, packetizer_class=_Packets)

    def _log(self, level: int, message: str, *words: object) -> None:
        """What paramiko would log is told as outcomes; a handshake has 36 such lines."""

    def _parse_debug(self, message: paramiko.Message) -> None:
        """sshd's debug messages (which authorized_keys line matched) are only for a log."""

    def _next_channel(self) -> int:
        self._own.channel = super()._next_channel()  # type: ignore[misc]
        return int(self._own.channel)

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        channel, code, words = message.get_int(), message.get_int(), message.get_text()
        self._words[channel] = f"administratively prohibited: {words}" if code == 1 else words
        message.rewind()
        message.get_byte()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def close(self) -> None:
        """Close at once: a reading thread that polls would hold the socket open until its next look."""
        with contextlib.suppress(OSError, AttributeError, EOFError):
            if self.is_active() and isinstance(self.sock, socket.socket):
                self.sock.shutdown(socket.SHUT_RDWR)
        super().close()

    @property
    def refusal(self) -> str:
        """What the server said to this thread's last channel, told once; empty where it said nothing."""
        return self._words.pop(getattr(self._own, "channel", -1), "")


def text_of(error: BaseException | None) -> str:
    """An exception's words, or at least its kind."""
    return "" if error is None else (str(error).strip() or type(error).__name__)


def address_of(client: Connection) -> str:
    """The peer's address, where there is a socket; through a jump host there is none, and the channel has the jump host's."""
    if isinstance(client.sock, paramiko.Channel):
        return ""
    with contextlib.suppress(OSError, AttributeError, TypeError, IndexError):
        return str(client.sock.getpeername()[0])
    return ""


def trouble(client: Connection, config: HostConfig, outcome: ReachOutcome, detail: str, *evidence: str) -> Unreachable:
    """An :class:`Unreachable` that knows the place."""
    address = address_of(client) or config.hostname
    return Unreachable(outcome, detail, *evidence, address=address, port=config.port)


def login_command(config: HostConfig) -> str:
    """The command that shows the same by hand."""
    port = f"-p {config.port} " if config.port != 22 else ""
    return f"ssh {port}{config.user}@{config.destination} true"


def changed_key(client: Connection, config: HostConfig, name: str, shown: str, verdict: Verdict) -> Unreachable:
    """The key is known to be wrong."""
    if verdict.result == "revoked":
        detail = f"the host key of {name} is marked @revoked in known_hosts; nothing was sent to this host"
    else:
        detail = (
            f"the host key of {name} is not the one in known_hosts: reinstalled, or somebody in between; nothing was "
            "sent to this host"
        )
    expected = [_known_row(key) for key in verdict.expected[:4]]
    return trouble(client, config, ReachOutcome.HOST_KEY_CHANGED, detail, shown, *expected)


def _known_row(key: KnownKey) -> str:
    return f"{'revoked' if key.marker else 'known'}: {key.kind} {fingerprint(key.blob)} ({key.place})"


_CHANNEL_TABLE = (
    ("refused", ReachOutcome.REFUSED, "nothing listens there"),
    ("No route", ReachOutcome.NO_ROUTE, "the jump host has no route"),
    ("unreachable", ReachOutcome.NO_ROUTE, "the jump host has no route"),
    ("timed out", ReachOutcome.TIMED_OUT, "no answer"),
    ("not known", ReachOutcome.NAME_UNRESOLVED, "the jump host cannot resolve the name"),
    ("resol", ReachOutcome.NAME_UNRESOLVED, "the jump host cannot resolve the name"),
    ("No address", ReachOutcome.NAME_UNRESOLVED, "the jump host cannot resolve the name"),
    ("prohibited", ReachOutcome.TRANSPORT_FAILED, "the jump host forbids forwarding (AllowTcpForwarding, PermitOpen)"),
)


def channel_refused(said: str, target: str, config: HostConfig) -> Unreachable:
    """A jump host could not connect; its reason is mostly a text of its C library."""
    evidence = f"{target}: {said}"
    for phrase, outcome, detail in _CHANNEL_TABLE:
        if phrase in said:
            return Unreachable(outcome, detail, evidence, address=config.hostname, port=config.port)
    detail = "the jump host could not connect"
    return Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, evidence, address=config.hostname, port=config.port)


def at_jump(found: Unreachable, hop: str) -> Unreachable:
    """A jump host's own trouble, as the trouble of everything behind it."""
    reach = found.reach
    detail = f"jump host {hop}: {reach.detail}"
    return Unreachable(reach.outcome, detail, *reach.evidence, address=reach.address, port=reach.port)
