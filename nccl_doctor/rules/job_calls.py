"""Ranks that wait in calls of torch.distributed which do not belong together: who is in which, at which line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from nccl_doctor.explain.flight_recorder.point_to_point import IN_TURN, cycle
from nccl_doctor.findings.model import Finding, Fix, Severity, finding
from nccl_doctor.rules.doing import Doing, frames_of, other_threads
from nccl_doctor.rules.engine import Fleet, fleet_rule
from nccl_doctor.rules.job_reason import sleeps_on_a_lock
from nccl_doctor.rules.job_words import ANSWERED_BY, QUOTED, WAITING, called, place_of, places, ranks_of, silence, where
from nccl_doctor.rules.ranks import SURELY, Rank, RunningJob
from nccl_doctor.rules.running_jobs import jobs_of

_MESSAGES = (
    *ANSWERED_BY, "isend", "irecv", "batch_isend_irecv", "_wait_batch_p2p", "send_object_list", "recv_object_list",
)  # fmt: skip
_OF_ANY = ("wait_tensor",)  # waits for a collective that it does not name
_SAME_ORDER = Fix("make every rank issue the same collectives in the same order: look for a branch on the rank")
_TOLD = 4  # calls in one sentence


@fleet_rule("job", "app.collective-mismatch")
def different_calls(fleet: Fleet) -> Iterator[Finding]:
    """All ranks that wait do so in the same call: in different ones each waits for the others for ever.

    Ranks that receive from each other in a ring (or send), where nobody posts the other half. A rank that waits for the
    message of one that is in a collective. Different collectives, or one collective in two places of the program: a rank
    has left one out. Where some rank is in no such call at all, that one is looked at instead: ranks of different process
    groups wait for it in different ones. That two calls exclude each other is proved where every rank of the world was
    found waiting, and one names no group, or has one rank alone in it. Where ranks were not seen, one of them may
    be behind, and who has done its part of a collective goes on to the next: a warning. So it is where a rank has
    another thread of the program's own, which may post the other half of a message, or come to a collective.
    """
    for job in jobs_of(fleet):
        if job.moves or not job.stays:
            continue
        ring = _ring(job)
        if ring:
            yield _deadlock(job, ring)
        elif len(job.waiting) == len(job.ranks):
            messages = [rank for rank in job.waiting if rank.now.name in _MESSAGES]
            told = _unanswered(job) if messages else _sides(job)
            if told:
                yield told


def _awaited(job: RunningJob) -> dict[int, Rank]:
    """Who waits in a send or receive -> the rank at its other end, but for those whose other halves are posted."""
    found = {}
    for rank in job.waiting:
        peer = None if rank.peer is None else job.ranks.get(rank.peer)
        if peer is None or rank.now.name not in ANSWERED_BY:
            continue
        answered = peer.now.name == ANSWERED_BY[rank.now.name] and peer.peer == rank.number
        if not answered:
            found[rank.number] = peer
    return found


def _ring(job: RunningJob) -> list[Rank]:
    ring = cycle({number: peer.number for number, peer in _awaited(job).items()})
    return [job.ranks[number] for number in ring]


def _deadlock(job: RunningJob, ring: list[Rank]) -> Finding:
    chain = [str(rank.number) for rank in (*ring, ring[0])]
    if len(chain) > 2 * _TOLD:
        chain[_TOLD:-_TOLD] = ["..."]
    calls = sorted({f"{rank.now.name} at {rank.now.user}" for rank in ring})
    in_order = sorted(ring, key=lambda rank: rank.number)
    return _mismatch(
        job,
        in_order,
        f"{ranks_of(in_order)} wait for each other in a ring, {' -> '.join(chain)}, in {', '.join(calls[:_TOLD])}",
        ring,
        0.4 if _has_threads(ring) else 0.9 if job.stands else 0.6,
        Fix(IN_TURN),
    )


def _unanswered(job: RunningJob) -> Finding | None:
    """Who waits for the message of a rank that waits itself, in a collective or in the store."""
    pairs = {
        number: peer
        for number, peer in _awaited(job).items()
        if peer.now.kind in SURELY and peer.now.name not in _MESSAGES
    }
    if not pairs:
        return None
    receivers = [job.ranks[number] for number in pairs]
    senders = list({peer.number: peer for peer in pairs.values()}.values())
    sure = _whole(job) and not _has_threads(senders)
    who = sorted([*receivers, *senders], key=lambda rank: rank.number)
    return _mismatch(
        job,
        who,
        _sentence([*_calls(receivers), *_calls(senders)]),
        who,
        0.4 if not sure else 0.85 if job.stands else 0.6,
        Fix("one has a message too few, or the other one too many: compare what both lines come after"),
    )


def _sides(job: RunningJob) -> Finding | None:
    """Different collectives, or one in different places; those who are fewer than all others are blamed, else all."""
    sides: dict[str, list[Rank]] = defaultdict(list)
    # Roots are compared where all were read: one may be lacking, and those of two groups differ rightly.
    unread = {rank.now.name for rank in job.waiting if rank.peer is None or not rank.in_default_group}
    for rank in job.waiting:
        sides[rank.now.name if rank.now.name in unread else called(rank)].append(rank)
    by_name = len(sides) > 1
    if not by_name:
        sides = defaultdict(list)
        for rank in job.waiting:
            sides["\n".join(_lines(rank))].append(rank)
    kinds = {rank.now.kind for rank in job.waiting}
    surely = kinds.issubset(SURELY)
    if len(sides) < 2 or not kinds.intersection(SURELY) or kinds.intersection(("asleep", "running")):
        return None  # who has no stack may be in the same call
    *odd, most = sorted(sides.values(), key=len)
    few = sorted((rank for side in odd for rank in side), key=lambda rank: rank.number)
    certain = by_name and surely and _exclude_each_other(job, list(sides.values())) and not _has_threads(job.waiting)
    if job.stands and certain:
        sure = 0.9
    elif (
        len(odd) > 1
        or not _whole(job)
        or _has_threads(job.waiting)
        or not (surely or (job.silent_s and _may_be_in_one(job)))
    ):
        sure = 0.4
    else:
        sure = 0.6 if not job.stands or not by_name else 0.8 if surely else 0.7
    ordered = [rank for side in (*odd, most) for rank in side]
    blamed = job.waiting if len(few) >= len(most) else few
    return _mismatch(job, blamed, _sentence(_calls(ordered)), ordered, sure, _SAME_ORDER)


def _exclude_each_other(job: RunningJob, sides: list[list[Rank]]) -> bool:
    """Whether no rank is left that could complete one of these calls, whatever their groups are."""
    if not _whole(job) or any(rank.now.name in _OF_ANY for side in sides for rank in side):
        return False
    return any(len(side) == 1 or any(rank.in_default_group for rank in side) for side in sides)


def _may_be_in_one(job: RunningJob) -> bool:
    """Whether those who are in no call that is known may wait in a collective that no Python frame shows."""
    return all(rank.now.kind in SURELY or sleeps_on_a_lock(rank, job) for rank in job.waiting)


def _has_threads(ranks: Iterable[Rank]) -> bool:
    return any(other_threads(rank.process, own=True) for rank in ranks)


def _whole(job: RunningJob) -> bool:
    return bool(job.world) and not job.missing


def _mismatch(
    job: RunningJob, blamed: list[Rank], title: str, quoted: list[Rank], confidence: float, fix: Fix
) -> Finding:
    alike: dict[Doing, list[Rank]] = defaultdict(list)
    for rank in quoted:
        alike[rank.now].append(rank)
    return finding(
        "app.collective-mismatch",
        Severity.FAIL if confidence > 0.5 else Severity.WARN,
        title,
        [*(place_of(rank) for ranks in alike.values() for rank in ranks[:QUOTED]), *silence(job)],
        confidence=confidence,
        places=places(blamed),
        fixes=(fix,),
        explains=(WAITING, "hang.behind"),
    )


def _lines(rank: Rank) -> list[str]:
    """The lines of the user's own code that led there, innermost first."""
    return [str(frame) for frame in frames_of(rank.process) if not frame.installed]


def _calls(ranks: Iterable[Rank]) -> list[tuple[str, list[Rank]]]:
    """What these ranks wait in and at which line, with who: the innermost line that not all of them have."""
    ranks = list(ranks)
    shared = set.intersection(*(set(_lines(rank)) for rank in ranks))
    grouped: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        lines = _lines(rank)
        line = next((line for line in lines if line not in shared), "")
        grouped[where(rank, line)].append(rank)
    return list(grouped.items())


def _sentence(calls: list[tuple[str, list[Rank]]]) -> str:
    told = [f"{ranks_of(ranks)} {call}" for call, ranks in calls[:_TOLD]]
    told[0] = f"{ranks_of(calls[0][1])} wait{'s' * (len(calls[0][1]) == 1)} {calls[0][0]}"
    return ", ".join(told) + (f", and {len(calls) - _TOLD} more calls" if len(calls) > _TOLD else "")
