"""A look at a command's hosts: which of the jobs there is its own, may it be ended, and what of it runs on when it has ended?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nccl_doctor.agent.job.processes import MARK
from nccl_doctor.facts.fold import counted, few, numbered
from nccl_doctor.facts.job import Job, Process
from nccl_doctor.facts.model import Bundle
from nccl_doctor.rules import engine, rank_variables
from nccl_doctor.rules.hang import Hang, examine
from nccl_doctor.rules.ranks import RunningJob
from nccl_doctor.rules.running_jobs import jobs_of, processes_of

AGE_SLACK_S = 5.0  # between our clock and the hosts' ticks: no process is older than the command that started it


class Command(msgspec.Struct, frozen=True):
    """What tells a command's ranks from others': the value of ``MARK`` in its environment, for how long it has run, and the
    process ids, with their start in ticks, of it and of what descends from it on this machine."""

    mark: str
    since_s: float
    here: frozenset[tuple[int, int]] = frozenset()

    def started(self, process: Process) -> bool | None:
        """Whether it started a process; None where that cannot be told: the process is not older, and bears no mark.

        No process of another machine has one's number and its start.
        """
        mark = process.environment.get(MARK, "")
        if mark == self.mark or (process.pid, process.start_ticks) in self.here:
            return True
        return False if mark or process.age_s > self.since_s + AGE_SLACK_S else None


class Look(msgspec.Struct, frozen=True):
    """What a look says. ``key`` is equal where two looks say the same; empty: it names neither a rank nor a stand-still.

    ``keep_on`` says why the job is not to be ended, whatever the answer; empty: it may be, if another look says the same.
    """

    answer: Hang
    key: tuple[object, ...] = ()
    keep_on: str = ""


def look(bundle: Bundle, command: Command) -> Look:
    """The answer about a command's own job: another one on its hosts is neither told as this one's state nor a reason to
    end this one."""
    seen = jobs_of(engine.Fleet(engine.reached(bundle), bundle.plan))
    started = [[command.started(rank.process) for rank in job.ranks.values()] for job in seen]
    surely = [job for job, known in zip(seen, started, strict=True) if True in known]
    own = surely or [job for job, known in zip(seen, started, strict=True) if False not in known]
    if len(own) == 1:
        bundle = msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, job=own[0].id))
    answer = examine(bundle if own else _without_others(bundle, command))
    if seen and answer.verdict == "no-job":
        told = f"no rank of this command was found, only of others: {_ids(seen)}"
        return Look(msgspec.structs.replace(answer, verdict="not-known", sentence=told))
    if len(own) > 1:
        told = f"{len(own)} jobs may be this command's: `nccl-doctor hang --job ID` looks at one ({_ids(own)})"
        return Look(msgspec.structs.replace(answer, sentence=told))
    if answer.verdict not in ("held", "stands"):
        return Look(answer)
    first = answer.report.causes[0] if answer.verdict == "held" else None
    ranks = sorted(place.rank for place in first.places if place.rank is not None) if first else []
    key = (answer.verdict, *(job.id for job in own), first and (first.id, first.hosts), *ranks)
    return Look(answer, key, _keep_on(surely, ranks))


def _without_others(bundle: Bundle, command: Command) -> Bundle:
    """What was seen, without the processes that the command surely did not start: what is left is a torchrun that waits."""
    hosts = []
    for host in bundle.hosts:
        probes = dict(host.probes)
        if (result := probes.get(Job.PROBE)) and result.data:
            processes = [
                item
                for item in result.data["processes"]
                if command.started(msgspec.convert(item, Process)) is not False
            ]
            probes[Job.PROBE] = msgspec.structs.replace(result, data={**result.data, "processes": processes})
        hosts.append(msgspec.structs.replace(host, probes=probes))
    return msgspec.structs.replace(bundle, hosts=tuple(hosts))


class Left(msgspec.Struct, frozen=True):
    """What runs on when a command has ended. ``told``: in words, folded by host; ``unseen``: hosts of which nothing is known."""

    told: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def left(bundle: Bundle, command: Command, *, doubtful: bool) -> Left:
    """The ranks, and torchruns, that a command has started and that have not ended; if ``doubtful``, also those that it may
    have started: but in the host's own network, as a container beside it is somebody else's.
    """
    fleet = engine.Fleet(engine.reached(bundle), bundle.plan)
    seen = engine.facts_of(fleet.hosts, Job)
    found: dict[tuple[str, bool], list[Process]] = {}
    for host, process in processes_of(fleet):
        started = command.started(process)
        may_be = doubtful and started is None and process.namespace == seen[host].namespace
        if (started or may_be) and process.role in ("rank", "launcher") and any(process.readings[-1:]):
            found.setdefault((host, bool(started)), []).append(process)
    return Left(tuple(_left(found)), tuple(facts.name for facts in bundle.hosts if facts.name not in seen))


def _left(found: dict[tuple[str, bool], list[Process]]) -> Iterator[str]:
    for (host, surely), processes in found.items():
        ranks = [rank_variables.number(process) for process in processes if process.role == "rank"]
        numbers = sorted(number for number in ranks if number is not None)
        who = [numbered("rank", numbers)] if ranks else []
        if len(numbers) < len(ranks):  # of mp.spawn, Lightning: in no variable
            who = [counted(len(ranks), "rank")]
        who += ["torchrun"] * (len(processes) > len(ranks))
        runs, them = ("run", "them") if len(processes) > 1 else ("runs", "it")
        doubt = "" if surely else f", and may be this command's (without {MARK} in its environment nobody can tell)"
        pids = " ".join(str(process.pid) for process in processes)
        yield f"{' and '.join(who)} still {runs} on {host}{doubt}; to end {them}, there: kill {pids}"


def _ids(jobs: Iterable[RunningJob]) -> str:
    return few([job.id for job in jobs])


def _keep_on(own: list[RunningJob], ranks: list[int]) -> str:
    """Why the job is not to be ended: a rank that still works may come, and so may one that was not seen; a job that is not
    known by its mark or descent may not be this command's."""
    if len(own) != 1:
        return "no rank was found that is surely this command's"
    if not own[0].world:
        return "how many ranks it has is not known: one that was not seen may be at work"
    if unseen := set(own[0].missing).difference(ranks):  # those of a finding are known to have no process
        return f"{numbered('rank', unseen)} {'were' if len(unseen) > 1 else 'was'} not seen, and may be at work"
    waiting = {rank.number for rank in own[0].waiting}
    if not ranks and (away := set(own[0].ranks) - waiting):
        return f"{numbered('rank', away)} {'are' if len(away) > 1 else 'is'} elsewhere, and may come"
    for number in ranks:
        rank = own[0].ranks.get(number)
        if rank is None:
            continue
        if rank.at_work(own[0].interval_s):
            return f"{rank.label} works (it computes, reads or writes), and may come by itself"
    return ""
