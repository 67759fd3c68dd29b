"""A rank that swallowed an exception, and the time-outs after it."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.hang import GAVE_UP
from nccl_doctor.explain.lines import came_after, ranks_of


@diagnosis
def swallowed_exception(case: Case) -> Iterable[Candidate]:
    """Some ranks, not all, caught an exception and skipped their work; later the ranks wait for each other in vain.

    A collective that one rank leaves out is paired with the next one of the others: order or shapes differ from there.
    If every rank skipped, all left out the same, and nothing is wrong.
    """
    hits = [hit for hit in case.hits("swallowed-exception") if hit.rank is not None]
    ranks = ranks_of(hits)
    waits = case.hits(*GAVE_UP, "fingerprint-mismatch")
    if not ranks or not waits or case.world < 2 or len(ranks) >= case.world:
        return
    if any(came_after(hit, waits[0]) for hit in hits[:1]):
        return
    title = f"rank {min(ranks)} swallowed an exception and left out the collectives of that step"
    yield Candidate("app.collective-mismatch", 0.72, title, [*hits[:6], *waits[:3]], ranks, final=True)
