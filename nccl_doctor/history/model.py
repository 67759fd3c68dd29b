"""What is kept of a run: enough to see what keeps returning, not the facts themselves (a bundle has those)."""

from __future__ import annotations

import datetime

import msgspec


class HostState(msgspec.Struct, frozen=True):
    """A host in a run. ``state``: healthy, suspect, bad or unknown; ``measured``: nothing of it was left open.

    ``used``: the job could run on it (preflight chose it; without a preflight, every host).
    """

    host: str
    state: str
    measured: bool = True
    used: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A finding at one place. ``sure`` is false where two ends could not be told apart; ``stage`` found it."""

    id: str
    severity: str
    host: str
    gpu: str = ""
    nic: str = ""
    stage: str = ""
    sure: bool = True


class Value(msgspec.Struct, frozen=True):
    """A measured number of one host (``host`` empty: of all hosts of the run together)."""

    host: str
    name: str
    value: float
    unit: str
    higher_is_better: bool = True


class Run(msgspec.Struct, frozen=True):
    """One run of ``check`` or ``preflight``. ``created`` is ISO 8601 UTC; ``go`` is None for a check."""

    created: str
    tool: str
    command: str
    verdict: str
    go: bool | None
    stages: tuple[str, ...]
    hosts: tuple[HostState, ...]
    findings: tuple[Seen, ...] = ()
    values: tuple[Value, ...] = ()

    @property
    def day(self) -> float:
        """When it began, in days; ``ValueError`` where ``created`` is no time."""
        return datetime.datetime.fromisoformat(self.created).timestamp() / 86400

    @property
    def passed(self) -> bool:
        """Preflight said go, or a check found nothing wrong and measured everything."""
        return self.verdict == "healthy" if self.go is None else self.go

    @property
    def used(self) -> frozenset[str]:
        """The hosts the job could run on."""
        return frozenset(item.host for item in self.hosts if item.used)

    @property
    def together(self) -> frozenset[str]:
        """All hosts of the run."""
        return frozenset(item.host for item in self.hosts)
