"""Every rank waited until its time-out: then none of them was late."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis


@diagnosis
def everybody_waited(case: Case) -> Iterable[Candidate]:
    """All ranks of the job end in Gloo's time-out of a send or receive, and none of them raised anything of its own.

    A straggler does not time out itself, and a dead rank's peers see a closed connection. So the ranks wait for each
    other: other collectives or another order on some of them, or a ring of sends and receives. (What is left is a
    network that lets connections be made and then drops their traffic.)

    Where nothing tells how many ranks there are, one more may be late that has not said a word: that decides nothing, unless those
    that speak wait in different places of the program.
    """
    waited = {item.hit.rank: item for item in case.exceptions.waited_with_gloo if item.hit.rank is not None}
    if case.world < 2 or len(waited) < case.world or case.exceptions.ordinary:
        return
    places = sorted({item.where for item in waited.values() if item.where})
    where = (
        f"in different places ({', '.join(places[:3])})"
        if len(places) > 1
        else f"at {places[0]}"
        if places
        else "there"
    )
    title = f"all {case.world} ranks waited for each other {where} until their time-outs: none was late"
    strength = 0.7 if len(places) > 1 else 0.62
    if case.world_told < case.world:
        title = (
            f"the {case.world} ranks that speak waited for each other {where} until their time-outs; are there more?"
        )
        strength = 0.56 if len(places) > 1 else 0.45
    proof = [item.hit for _, item in sorted(waited.items())]
    yield Candidate("app.collective-mismatch", strength, title, proof, set(waited))
