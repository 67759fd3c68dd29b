"""The local transport: the agent as a child process of ours. ``check`` without hosts uses it."""

from __future__ import annotations

from nccl_doctor.facts.model import ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.base import Deadline, Stream, Transport, Unreachable
from nccl_doctor.transport.process import ProcessStream


class LocalTransport(Transport):
    """Starts the agent on this machine, whatever the entry's name."""

    by_ssh = False

    def open(self, entry: HostEntry, command: str, deadline: Deadline) -> Stream:
        """A stream to a local shell that runs the command."""
        try:
            return ProcessStream(["sh", "-c", command])
        except OSError as error:
            raise Unreachable(ReachOutcome.TRANSPORT_FAILED, "no process could be started", str(error)) from error
