"""The processes of a job that hangs: stopped, gone, or there twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from nccl_doctor.facts.fold import fold, numbered, ranges
from nccl_doctor.facts.job import Job, Process
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.doing import AT_THE_END, looks
from nccl_doctor.rules.engine import Fleet, facts_of, fleet_rule
from nccl_doctor.rules.host_memory import kills, was_it_killed
from nccl_doctor.rules.job_reason import reason
from nccl_doctor.rules.job_words import (
    LAST_WORDS,
    QUOTED,
    WAITING,
    others,
    places,
    proof_of,
    quoted,
    ranks_of,
    silence,
    started_s,
    state_of,
    who_is,
)
from nccl_doctor.rules.rank_variables import local_world, told_local_world, told_world
from nccl_doctor.rules.ranks import RunningJob
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.units import duration

_WHO_STOPS = Fix("who stops jobs here? a scheduler's suspension", "scontrol show job | grep -i susp")
YOUNG_S = 60.0  # a job that has just been started may still be coming up


@fleet_rule("job", "hang.stopped", "hang.stopped.traced")
def stopped(fleet: Fleet) -> Iterator[Finding]:
    """No rank is stopped by a signal (state T), frozen with its cgroup, or held by a debugger (state t).

    A stopped process keeps its connections, answers nothing and ends nothing: every other rank waits for it for ever.
    Who stops processes: Ctrl-Z, a scheduler that suspends jobs (``scontrol suspend``), a batch system's preemption, a
    debugger, a checkpointing tool, ``docker pause``.
    """
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            workers = rank.children if rank.now.kind == "loader" else ()
            for process in (rank.process, *workers):
                halted = _halted(process, rank.host)
                if halted is None:
                    continue
                id, how, go_on = halted
                who = rank.label if process is rank.process else f"the DataLoader worker {process.pid} of {rank.label}"
                yield finding(
                    id,
                    Severity.FAIL,
                    f"{who} is {how}{others(job, rank)}",
                    [*proof_of(rank, process), *silence(job)],
                    places=places([rank]),
                    fixes=(go_on, _WHO_STOPS),
                    explains=(WAITING, "hang.network", "hang.behind"),
                )


@fleet_rule("job", "hang.stopped.launcher")
def stopped_launcher(fleet: Fleet) -> Iterator[Finding]:
    """No torchrun is stopped: the first host's keeps the store, where ranks meet for a new group or a barrier."""
    for job in jobs_of(fleet):
        first = {(rank.host, rank.process.parent): rank for rank in reversed(job.ranks.values())}
        facts = facts_of(fleet.hosts, Job).items()
        for host, process in ((host, process) for host, fact in facts for process in fact.processes):
            rank, halted = first.get((host, process.pid)), _halted(process, host)
            if rank is None or halted is None:
                continue
            keeps = rank.process.environment.get("GROUP_RANK") == "0"
            asked = keeps and any(rank.now.kind == "store" for rank in job.waiting)
            what = "keeps the job's store" if keeps else "watches the ranks of its host"
            yield finding(
                "hang.stopped.launcher",
                Severity.FAIL if asked else Severity.WARN,
                f"torchrun (pid {process.pid}), which {what}, is {halted[1]}{others(job) if asked else ''}",
                [Evidence(state_of(process), f"/proc/{process.pid}", host=host), *silence(job)],
                hosts=(host,),
                fixes=(halted[2], _WHO_STOPS),
                explains=(WAITING,) if asked else (),
            )


def _halted(process: Process, host: str) -> tuple[str, str, Fix] | None:
    """Finding id, words and fix for a process that does not run."""
    pid, kind = process.pid, looks(process)[-1].kind
    if kind == "stopped":
        return "hang.stopped", "stopped by a signal", Fix("let it go on", f"kill -CONT {pid}", host, risky=True)
    if kind == "frozen":
        thaw = Fix("see which container or unit: `docker unpause`, `systemctl thaw`", f"cat /proc/{pid}/cgroup", host)
        return "hang.stopped", "frozen with its cgroup", thaw
    if kind == "traced" and (reading := process.readings[-1]):
        return "hang.stopped.traced", f"held by a debugger (pid {reading.tracer})", who_is(reading.tracer, host)
    return None


_GONE = (
    WAITING, "hang.network", "hang.store", "hang.rank-gone.peer-closed", "hang.behind", "app.collective-mismatch",
)  # fmt: skip


@fleet_rule("job", "hang.rank-gone", "hang.rank-gone.ended", "hang.rank-gone.core-dump", "hang.rank-gone.host")
def gone(fleet: Fleet) -> Iterator[Finding]:
    """Every rank of the world (``WORLD_SIZE``) has a process.

    A rank that died without its launcher's notice (killed for want of memory, a segmentation fault under ``srun
    --no-kill``, a container that ended) leaves the others in a collective until their time-out. It is gone where other
    ranks of its host were found and say how many there are (``LOCAL_WORLD_SIZE``, or what Open MPI or Slurm says). While
    the kernel writes the core dump of one that has crashed, it still has a process, and nobody is told of its end. A host
    without any rank is told where the job is known to need one more. All others that were not found are unknown: they
    have ended or were never started, or their hosts were not named or not read.
    """
    fleet.every(Job)
    for job in jobs_of(fleet):
        if job.over:  # who was the first, and why, nothing here shows
            fleet.lack(f"what job {job.id} did", "all its ranks ended between the two looks", *job.hosts)
            continue
        for rank in job.ranks.values():
            if rank.now.kind == "ended":
                yield finding(
                    "hang.rank-gone.ended", Severity.FAIL, f"{rank.label} has ended{others(job, rank)}", proof_of(rank),
                    places=places([rank]),
                    fixes=(LAST_WORDS,),
                    explains=_GONE,
                )  # fmt: skip
            elif rank.now.kind == "crashed":
                where = f" in {rank.now.user}" if rank.now.user else ""
                yield finding(
                    "hang.rank-gone.core-dump", Severity.FAIL,
                    f"{rank.label} has crashed{where}, and the kernel writes its core dump{others(job, rank)}",
                    [*proof_of(rank), rank.evidence("CoreDumping: 1", f"/proc/{rank.process.pid}/status")],
                    places=places([rank]),
                    fixes=(
                        Fix("let it end: the dump says where; then that rank's log", "nccl-doctor explain logs/"),
                        Fix("where does it go?", "cat /proc/sys/kernel/core_pattern", rank.host),
                    ),
                    explains=_GONE,
                )  # fmt: skip
        at = job.gone
        for host, numbers in at.items():
            yield _unless_at_its_end(job, missing(job, host, numbers, fleet))
        rest = sorted(set(job.missing).difference(*at.values()))
        if not rest:
            continue
        idle = [host for host in facts_of(fleet.hosts, Job) if host not in job.hosts]
        if job.hosts_wanted > len(job.hosts) and idle and len(idle) <= job.hosts_wanted - len(job.hosts):
            yield _empty_hosts(job, idle, rest)
        else:
            why = "not found: ended, never started, or on hosts that were not named or not (all) read"
            fleet.lack(f"ranks {ranges(rest)} of job {job.id}", why, *job.hosts)


def _unless_at_its_end(job: RunningJob, told: Finding) -> Finding:
    """A warning where all ranks that are left are at work, and none waits for others: those that are missing may have finished."""
    waiting = {rank.number for rank in job.waiting}
    for rank in job.ranks.values():
        spins = "gpu" in rank.process.devices and rank.now.kind != "saving"  # as who waits for a GPU may do
        busy = rank.at_work(job.interval_s) and not spins and rank.number not in waiting
        if not busy and reason(rank, job).words not in AT_THE_END.values():
            return told
    title = f"{told.title}; who is left is at work and waits for nobody: the job may be at its end"
    return msgspec.structs.replace(told, title=title, severity=Severity.WARN, confidence=0.4)


def missing(job: RunningJob, host: str, numbers: Collection[int], fleet: Fleet) -> Finding:
    """These ranks have no process on this host, where its other ranks say that they must."""
    here = [rank for rank in job.ranks.values() if rank.host == host]
    found = f"{told_local_world(here[0].process)}, and only {ranks_of(here)} found"
    killed = [kill.line for known in fleet.hosts if known.name == host for kill in kills(known, started_s(known, job))]
    closed = [link for link in job.links if link.peer is None and link.connection.state == "CLOSE_WAIT"]
    proof = [Evidence(found, "/proc/*/environ", host=host), *killed[-QUOTED:], *map(quoted, closed[:QUOTED])]
    young = min(rank.process.age_s for rank in here) < YOUNG_S
    what = f"{numbered('rank', numbers)} {'have' if len(numbers) > 1 else 'has'} no process"
    told = "; the kernel has killed for want of memory" if killed else ""
    return finding(
        "hang.rank-gone",
        Severity.FAIL,
        f"{what} on {host}{told}{others(job)}",
        [*proof, *silence(job)],
        confidence=0.6 if young else 0.95,
        hosts=(host,),
        places=[Place(host=host, rank=number) for number in numbers],
        fixes=(
            was_it_killed(host),
            LAST_WORDS,
        ),
        explains=_GONE,
    )


def _empty_hosts(job: RunningJob, idle: list[str], rest: list[int]) -> Finding:
    """Hosts without a rank, in a job that needs as many hosts more."""
    one = next(iter(job.ranks.values())).process
    text = (
        f"no process bears a rank; {told_world(one)} at {local_world(one)} a host ({told_local_world(one)}) "
        f"needs {job.hosts_wanted} hosts"
    )
    return finding(
        "hang.rank-gone.host",
        Severity.FAIL,
        f"{fold(idle)} {'have' if len(idle) > 1 else 'has'} no rank of job {job.id}, which lacks "
        f"{numbered('rank', rest)}{others(job)}",
        [*(Evidence(text, "/proc/*/environ", host=host) for host in idle[:QUOTED]), *silence(job)],
        confidence=0.8,
        hosts=idle,
        places=[Place(host=idle[0] if len(idle) == 1 else "", rank=number) for number in rest],
        fixes=(
            Fix("did they end, or never start?", "last -x | head -3; sudo dmesg -T | tail -20", idle[0]),
            Fix("their last words: those ranks' logs", "nccl-doctor explain logs/"),
        ),
        explains=_GONE,
    )


@fleet_rule("job", "hang.leftover")
def leftovers(fleet: Fleet) -> Iterator[Finding]:
    """No two processes are the same rank of a job: the older one is left over, and may hold its port and its GPU."""
    for job in jobs_of(fleet):
        for old in job.duplicates:
            new = job.ranks[old.number]
            yield finding(
                "hang.leftover",
                Severity.WARN,
                f"{old.label} is {duration(old.process.age_s)} old, and pid {new.process.pid} on {new.host}, "
                f"{duration(new.process.age_s)} old, is the same rank",
                [*proof_of(old), *proof_of(new)[:1]],
                places=places([old]),
                fixes=(
                    Fix("if it is left over from an earlier start", f"kill {old.process.pid}", old.host, risky=True),
                ),
            )
