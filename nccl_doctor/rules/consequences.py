"""Which findings are consequences of others, and the order in which findings are told."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nccl_doctor.findings.model import SURE, Finding, Severity
from nccl_doctor.rules import engine

_SEVERITIES = (Severity.FAIL, Severity.WARN, Severity.INFO)


def _order(item: Finding) -> tuple[bool, int, int, bool, str, tuple[str, ...], str]:
    """Who is told first, and is so the first to fix: of one stage, no guess before what is sure."""
    stage = engine.STAGES.index(item.stage) if item.stage in engine.STAGES else len(engine.STAGES)
    return (
        bool(item.folded_under),
        _SEVERITIES.index(item.severity),
        stage,
        item.confidence < SURE,
        item.id,
        item.hosts,
        item.title,
    )


class _Causes:
    """Who explains whom, by finding id and host: a large fleet has thousands of both."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._by_id: dict[str, set[int]] = {}
        self._by_host: dict[tuple[str, str], set[int]] = {}
        for number, cause in enumerate(findings):
            for id in cause.explains if cause.severity is Severity.FAIL else ():
                self._by_id.setdefault(id, set()).add(number)
                for host in cause.hosts:
                    self._by_host.setdefault((id, host), set()).add(number)

    def of(self, number: int) -> set[int]:
        """The numbers of the failing findings that explain this one: on all its hosts, or on every peer that it names.

        Of a pair of which nobody knows which end it is, one end's fault explains it.
        """
        effect = self._findings[number]
        parts = effect.id.split(".")
        parents = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        peers = {place.peer for place in effect.places if place.peer}
        # A collective or a job that hangs is everybody's; other consequences must touch the host at fault.
        if effect.stage in ("collectives", engine.JOB) or not (effect.hosts or peers):
            return set().union(*(self._by_id.get(parent, set()) for parent in parents)) - {number}
        known = [parent for parent in parents if parent in self._by_id]

        def at(host: str) -> set[int]:
            return set().union(*(self._by_host.get((parent, host), set()) for parent in known)) - {number}

        at_hosts, at_peers = list(map(at, effect.hosts)), list(map(at, peers))
        in_doubt = len(at_hosts) == 2 and effect.confidence < SURE
        if not (all(at_hosts) or in_doubt):
            at_hosts = []  # one host's fault is no reason why others do not reach each other
        if not all(at_peers):
            at_peers = []  # whom a healthy peer does not reach either has a fault of its own
        return set().union(*at_hosts, *at_peers)


def folded_and_sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Consequences marked anew, and the order in which findings are told."""
    return tuple(sorted(fold(list(findings)), key=_order))


def fold(findings: list[Finding]) -> list[Finding]:
    """Mark each finding that another one explains, with the one that nothing explains: what is folded under it is told there."""
    causes = _Causes(findings)
    explained = [causes.of(number) for number in range(len(findings))]
    order = [(_order(item), number) for number, item in enumerate(findings)]
    under: list[int | None] = []
    for number, item in enumerate(findings):
        # What is only told (that the collectives work, say) is nobody's consequence.
        told = item.severity is Severity.INFO
        above = set() if told else {other for other in explained[number] if number not in explained[other]}
        roots = {other for other in above if not explained[other]} or above
        near = {other for other in roots if not set(item.hosts).isdisjoint(findings[other].hosts)} or roots
        under.append(min(near, key=order.__getitem__) if near else None)
    return [
        msgspec.structs.replace(item, folded_under="" if (top := _top(number, under)) == number else findings[top].id)
        for number, item in enumerate(findings)
    ]


def _top(number: int, under: list[int | None]) -> int:
    """Where a chain of consequences begins; two that explain each other stay where they are."""
    seen = {number}
    while (above := under[number]) is not None and above not in seen:
        seen.add(above)
        number = above
    return number
