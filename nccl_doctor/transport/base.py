"""What a transport is: something that opens a duplex byte stream to a command on a host, or says why it cannot."""

from __future__ import annotations

import abc
import time
from typing import Protocol

import msgspec

from nccl_doctor.facts.model import Reach, ReachOutcome
from nccl_doctor.facts.redaction import redact_text
from nccl_doctor.inventory.model import HostEntry


class Unreachable(Exception):
    """No stream to the host; ``reach`` says why, with the quoted proof.

    Secrets are redacted from both: the user's own ``--env-setup`` may hold some, and so may what a login prints.
    """

    def __init__(self, outcome: ReachOutcome, detail: str, *evidence: str, address: str = "", port: int = 0) -> None:
        super().__init__(detail)
        proof = tuple(redact_text(item) for item in evidence if item.strip())
        self.reach = Reach(outcome, redact_text(detail), proof, address, port)


class Deadline:
    """A moment after which nothing is waited for any more. ``seconds`` from now; None: never."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self, cap_s: float) -> float:
        """Seconds that a wait may take: at most ``cap_s``, never negative."""
        if self._end is None:
            return cap_s
        return max(0.0, min(cap_s, self._end - time.monotonic()))

    def end(self) -> None:
        """Let the moment be now."""
        self._end = time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self._end is not None and time.monotonic() >= self._end


class Stream(Protocol):
    """A duplex byte stream to a command that runs on a host. One thread reads, one at a time writes.

    ``may_block``: even the first 100 kB may have to wait for the command to read them.
    """

    may_block: bool

    def write(self, data: bytes, limit_s: float) -> None:
        """Write all of it. ``TimeoutError`` when none of it went for so long, ``OSError`` when the other side is gone."""

    def read(self, limit_s: float) -> bytes:
        """What has come, at least one byte; empty at the end. ``TimeoutError`` when nothing came in time."""

    def error_text(self) -> str:
        """The last few kilobytes of the command's stderr."""

    def status(self, limit_s: float) -> int | None:
        """The command's exit status, or None where it did not come in time. Negative: killed by that signal."""

    def close(self, grace_s: float = 1.5) -> None:
        """End the stream and, after ``grace_s`` for the command to see it, everything local that belongs to it."""


class Transport(abc.ABC):
    """Opens streams. One object serves all hosts of a run, from many threads. ``by_ssh``: a person would go there by ssh."""

    by_ssh = True

    @abc.abstractmethod
    def open(self, entry: HostEntry, command: str, deadline: Deadline) -> Stream:
        """A stream to ``command`` (a line for a POSIX shell) on the host. Raises :class:`Unreachable`."""

    def explain(self, stream: Stream, status: int | None) -> Unreachable | None:
        """Why the transport itself ended the stream before the agent answered, or (status None) has not opened it yet;
        None: it was not the transport."""
        return None

    def settled(self, stream: Stream, outcome: ReachOutcome) -> None:
        """Called once for every opened stream, when it is known whether an agent runs at its other end."""
        return

    def close(self) -> None:
        """Close what is shared between hosts."""
        return


class ConnectOptions(msgspec.Struct, frozen=True):
    """How hosts are reached. Times in seconds.

    ``transport`` is ``ssh``, ``local`` or ``command=TEMPLATE``. ``python`` is the remote interpreter (empty: python3,
    then python); ``env_setup`` a shell line that is run before it (``source /opt/train/bin/activate``).
    """

    transport: str = "ssh"
    python: str = ""
    env_setup: str = ""
    connect_s: float = 10.0  # TCP connect, key exchange and authentication of one host
    start_s: float = 20.0  # from there to the agent's first line
    fan_out: int = 64  # concurrent connection attempts
    jump_fan_out: int = 8  # of these, through one jump host (sshd's MaxStartups drops from 10 on)
    ssh_config: str = ""  # file for -F; empty: the user's and the system's
    auth_failures: int = 3  # stop after so many hosts refused the user and none accepted
