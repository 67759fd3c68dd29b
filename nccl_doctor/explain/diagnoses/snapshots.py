"""Flight-recorder dumps and RAS reports as causes."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.model import Hit, Proof

_OPEN = 0.46  # below "decided": the files name who is missing, and the logs have to say why


@diagnosis
def state_files(case: Case) -> Iterable[Candidate]:
    """The collectives that every rank recorded, compared by sequence number; the counts of NCCL's RAS threads.

    A different operation under one number is a mismatch, whatever the logs say. A rank that did not call may be slow,
    dead or past the call: then the causes that are left are candidates, and the ranks' own logs decide.
    """
    for proof in case.summary.proofs:
        hits = [_hit(proof, index) for index in range(len(proof.evidence))]
        if proof.cause:
            yield Candidate(
                proof.cause,
                proof.confidence,
                proof.title,
                hits,
                set(proof.ranks),
                final=True,
            )
            continue
        strengths = falling(proof.candidates[:3], min(proof.confidence, _OPEN), 0.04)
        yield from rivals(strengths, proof.title, hits, proof.ranks)


def _hit(proof: Proof, index: int) -> Hit:
    item = proof.evidence[index]
    return Hit(proof.source, item.source, item.line or 0, item.text, rank=item.rank)
