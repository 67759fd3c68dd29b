"""A look at a job that prints nothing: which of the jobs that were seen is the command's own, and may it be ended?"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from nccl_doctor.facts.fold import few, ranges
from nccl_doctor.facts.job import Process
from nccl_doctor.facts.model import Bundle
from nccl_doctor.rules import engine
from nccl_doctor.rules.hang import Hang, examine
from nccl_doctor.rules.ranks import BUSY_SHARE, RunningJob, cpu_between
from nccl_doctor.rules.running_jobs import jobs_of

AGE_SLACK_S = 5.0  # between our clock and the hosts' ticks: no process is older than the command that started it
WORK_BYTES = 1 << 20  # read, written, sent or received between the looks: more than heartbeats
# Whoever has crashed ends by itself, with its core dump; "kernel" is state D: as likely as not one long write or read.
_AT_WORK = ("saving", "loading", "importing", "crashed", "kernel")


class Look(msgspec.Struct, frozen=True):
    """What a look says. ``key`` is equal where two looks say the same; empty: it names neither a rank nor a stand-still.

    ``keep_on`` says why the job is not to be ended, whatever the answer; empty: it may be, if another look says the same.
    """

    answer: Hang
    key: tuple[object, ...] = ()
    keep_on: str = ""


def look(bundle: Bundle, since_s: float, pids: Collection[int] = ()) -> Look:
    """The answer about the job of a command that was started ``since_s`` ago; ``pids``: the command and what descends
    from it, where the job is looked for on this machine alone.

    Another job on the hosts is neither told as this one's state nor a reason to end this one.
    """
    seen = jobs_of(engine.Fleet(engine.reached(bundle), bundle.plan))
    descend = [job for job in seen if any(rank.process.pid in pids for rank in job.ranks.values())]
    own = descend or [job for job in seen if _age_s(job) <= since_s + AGE_SLACK_S]
    if seen and not own:
        told = f"no rank of this command was found, only of what ran before it: {_ids(seen)}"
        return Look(msgspec.structs.replace(examine(bundle), verdict="not-known", sentence=told, jobs=(), ranks=()))
    if len(own) == 1:
        bundle = msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, job=own[0].id))
    answer = examine(bundle)
    if len(own) > 1:
        told = f"{len(own)} jobs may be this command's: `nccl-doctor hang --job ID` looks at one ({_ids(own)})"
        return Look(msgspec.structs.replace(answer, sentence=told))
    if answer.verdict not in ("held", "stands"):
        return Look(answer)
    first = answer.report.causes[0] if answer.verdict == "held" else None
    ranks = sorted(place.rank for place in first.places if place.rank is not None) if first else []
    key = (answer.verdict, *(job.id for job in own), first and (first.id, first.hosts), *ranks)
    return Look(answer, key, _keep_on(own if descend or not pids else [], ranks))


def _ids(jobs: Iterable[RunningJob]) -> str:
    return few([job.id for job in jobs])


def _age_s(job: RunningJob) -> float:
    return max(rank.process.age_s for rank in job.ranks.values())


def _keep_on(own: list[RunningJob], ranks: list[int]) -> str:
    """Why the job is not to be ended: a rank that still works may come, and so may one that was not seen; a job without
    ranks may not be this command's."""
    if len(own) != 1:
        return "no rank was found that is surely this command's"
    if not own[0].world:
        return "how many ranks it has is not known: one that was not seen may be at work"
    if unseen := set(own[0].missing).difference(ranks):  # those of a finding are known to have no process
        many = len(unseen) > 1
        return f"rank{'s' if many else ''} {ranges(unseen)} {'were' if many else 'was'} not seen, and may be at work"
    for number in ranks:
        rank = own[0].ranks.get(number)
        if rank is None:
            continue
        if rank.now.kind in _AT_WORK or any(
            _works(process, own[0].interval_s) for process in (rank.process, *rank.children)
        ):
            return f"{rank.label} works (it computes, reads or writes), and may come by itself"
    return ""


def _works(process: Process, interval_s: float) -> bool:
    first, last = (process.readings[0], process.readings[-1]) if process.readings else (None, None)
    if first is None or last is None:
        return False
    moved = sum(
        after - before
        for before, after in ((first.read_bytes, last.read_bytes), (first.written_bytes, last.written_bytes))
        if before is not None and after is not None
    )
    moved += sum(item.moved_bytes or 0 for item in process.connections)
    return (cpu_between(process) or 0.0) > BUSY_SHARE * interval_s or moved > WORK_BYTES
