"""Drift: which hosts differ from the others, in which subject. Pure; one table for the report and the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nccl_doctor.facts.fold import fold
from nccl_doctor.findings.model import Evidence

VALUES_SHOWN = 8  # in one line


class DriftRow(msgspec.Struct, frozen=True):
    """One subject (``NCCL``, ``driver``): each value with the hosts that have it, the largest group first.

    ``odd`` are the hosts that differ from a majority (more than half). Without a majority nobody is odd: ``tie`` is
    true, and all that is known is that the hosts differ.
    """

    subject: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    odd: tuple[str, ...] = ()
    tie: bool = False

    @property
    def equal(self) -> bool:
        """Whether all hosts have the same value."""
        return len(self.values) < 2

    @property
    def majority(self) -> str:
        """The value of more than half of the hosts; empty if there is none."""
        return "" if self.tie or not self.values else self.values[0][0]

    @property
    def usual_count(self) -> int:
        """Where the values are counts: the one that most hosts have, or without a majority the largest."""
        return int(self.majority) if self.majority else max(int(text) for text, _ in self.values)

    @property
    def differing(self) -> tuple[str, ...]:
        """The odd hosts, or all of them where it is not known who is right."""
        return self.odd or (tuple(sorted(host for _, hosts in self.values for host in hosts)) if self.tie else ())


def row(subject: str, values: Mapping[str, str]) -> DriftRow:
    """Fold host -> value. The order is by group size, then by value, so that equal facts give equal rows."""
    groups: dict[str, list[str]] = {}
    for host in sorted(values):
        groups.setdefault(values[host], []).append(host)
    ordered = sorted(
        ((value, tuple(hosts)) for value, hosts in groups.items()), key=lambda item: (-len(item[1]), item[0])
    )
    if len(ordered) < 2:
        return DriftRow(subject, tuple(ordered))
    if 2 * len(ordered[0][1]) <= len(values):
        return DriftRow(subject, tuple(ordered), tie=True)
    odd = sorted(host for _, hosts in ordered[1:] for host in hosts)
    return DriftRow(subject, tuple(ordered), tuple(odd))


def quoted(drift: DriftRow) -> Evidence:
    """A row in one line: ``driver: 550.90.07 on gpu[01-03]; 535.129.03 on gpu04``."""
    told = "; ".join(f"{text or '(none)'} on {fold(hosts)}" for text, hosts in drift.values[:VALUES_SHOWN])
    more = f"; and {len(drift.values) - VALUES_SHOWN} more values" if len(drift.values) > VALUES_SHOWN else ""
    return Evidence(f"{drift.subject}: {told}{more}", "compared between hosts")


def joined(texts: Sequence[str]) -> str:
    """One value of each part of a host: ``400 400 400 200``, or ``8 x 400`` where all are equal."""
    return f"{len(texts)} x {texts[0]}" if len(set(texts)) == 1 else " ".join(texts)


def table(rows: Mapping[str, Mapping[str, str]]) -> tuple[DriftRow, ...]:
    """Subject -> host -> value, as rows in the order given. Subjects that no host has are left out."""
    return tuple(row(subject, values) for subject, values in rows.items() if any(values.values()))
