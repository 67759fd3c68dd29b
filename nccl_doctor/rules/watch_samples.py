"""What the rules of ``watch`` share: whether there were enough samples, and how times without any are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nccl_doctor.facts.watch import Gap, RankSeries, Watch
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules.ranks import Rank
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration

QUOTED = 3


def too_few(watch: Watch, samples: int) -> str:
    """Why so many samples do not tell what happened in the time that was watched; empty where they do."""
    if samples < value("watch.samples"):
        return f"only {samples} sample{'' if samples == 1 else 's'}: watch longer"
    due = watch.seconds / watch.every_s
    return "" if samples >= value("watch.samples.share") * due else f"{samples} of {due:.0f} samples came"


class Silence(NamedTuple):
    """Times without a sample, as they are told."""

    severity: Severity
    words: str  # for how long or how often, and how it ended
    proof: list[str]


def silence(gaps: Sequence[Gap]) -> Silence:
    """One silence that lasts to the end is a fault; those that are over are a warning."""
    lasted = duration(sum(gap.to_s - gap.from_s for gap in gaps))
    often = f"for {lasted}" if len(gaps) == 1 else f"{len(gaps)} times, for {lasted} in all"
    end = gaps[-1].open
    proof = [f"no sample from {gap.from_s:.0f} s to {gap.to_s:.0f} s of the watch: {gap.why}" for gap in gaps[-QUOTED:]]
    return Silence(
        Severity.FAIL if end else Severity.WARN,
        often + (", and did not come back" if end else ", and came back"),
        proof,
    )


def series_of(watches: Mapping[str, Watch], rank: Rank) -> RankSeries | None:
    """What a rank did; None where it was not watched."""
    known = watches.get(rank.host)
    return next((one for one in known.ranks if one.pid == rank.process.pid), None) if known else None
