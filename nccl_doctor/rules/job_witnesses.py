"""What others say of a running job: NCCL, flight recorders, the kernels; and what could not be read."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nccl_doctor.explain import flight_recorder, ras
from nccl_doctor.explain.flight_recorder import Dump, FlightRecorderRefused
from nccl_doctor.explain.model import Proof
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.findings.model import Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, MissingFact, fleet_rule
from nccl_doctor.rules.host_memory import Counts, killed, kills, swapping
from nccl_doctor.rules.job_words import QUOTED, WAITING, logged, look, started_s
from nccl_doctor.rules.ranks import RunningJob
from nccl_doctor.rules.running_jobs import jobs_of, ras_reports
from nccl_doctor.rules.units import size

_XID = re.compile("Xid")


@fleet_rule("job")
def stacks(fleet: Fleet) -> Iterator[Finding]:
    """The Python stacks of all ranks could be taken, and NVML said what their GPUs do."""
    facts = fleet.every(Job)
    with_gpus = {name for name, fact in facts.items() if any("gpu" in process.devices for process in fact.processes)}
    for host in fleet.hosts:
        try:
            if host.name in with_gpus:
                host.need(GpuFact)
        except MissingFact as gap:
            fleet.lack("what the GPUs do", gap.why, host.name)
    for job in jobs_of(fleet):
        if len(job.hosts) > 1 and any(rank.process.spawned for rank in job.ranks.values()):
            fleet.lack("the ranks' own numbers", "mp.spawn counts on each host: here in the order of hosts", *job.hosts)
        for rank in job.ranks.values():
            taken = rank.process.stacks[-1]
            if taken and taken.outcome != "ok" and rank.now.kind != "ended":
                fleet.lack(f"the Python stack of {rank.label}", f"{taken.outcome}: {taken.detail}", rank.host)
    for name, fact in facts.items():
        if fact.no_stacks:
            fleet.lack("Python stacks", fact.no_stacks, name)
        if fact.refused.count:
            others = f"{fact.refused.count} Python processes of other users"
            fleet.lack(others, "not-permitted: only root may read their variables", name)
    yield from ()


@fleet_rule("job", "hang.behind", "app.collective-mismatch")
def behind(fleet: Fleet) -> Iterator[Finding]:
    """By NCCL's own counts (RAS) and by the flight-recorder dumps that lie there, no rank is behind the others.

    Only dumps are read that the ranks have written since they started; none is asked for.
    """
    known = fleet.every(Job)
    for job in jobs_of(fleet):
        if job.moved_bytes:
            continue
        facts = {host: known[host] for host in job.hosts if host in known}
        dumps, refused = _dumps(job, facts.values())
        for error in refused:
            fleet.lack("a flight-recorder dump", str(error), *job.hosts)
        for host, fact in facts.items():
            for problem in fact.dump_problems:
                fleet.lack("a flight-recorder dump", problem, host)
        reports = ras_reports(facts.values())
        if "gpu" in job.devices and not reports:
            asked = [answer for fact in facts.values() for answer in fact.ras]
            told = {f"{answer.address}: {answer.error or 'its answer is no report'}" for answer in asked}
            why = few(sorted(told)) or "no rank listens on its port: NCCL before 2.24, or NCCL_RAS_ENABLE=0"
            fleet.lack("NCCL's own counts (RAS)", why, *job.hosts)
        for proof, of_world in [*_behind_by_dumps(dumps), *_behind_by_ras(job, reports)]:
            if not proof.evidence:
                continue
            places = [_place(job, number) for number in proof.ranks] if of_world else []
            blamed = [job.ranks[number] for number in proof.ranks if of_world and number in job.ranks]
            sure = bool(proof.cause) or proof.confidence >= 0.6
            looking = [look(rank) for rank in blamed[:QUOTED]]
            yield finding(
                proof.cause or "hang.behind",
                Severity.FAIL if sure else Severity.WARN,
                proof.title,
                proof.evidence,
                confidence=max(proof.confidence, 0.1),
                hosts=[place.host for place in places if place.host] or job.hosts,
                places=places,
                fixes=(*looking, *([Fix(proof.next)] if proof.next else [])),
                explains=(WAITING,),
            )


def _place(job: RunningJob, number: int) -> Place:
    return Place(host=job.ranks[number].host if number in job.ranks else "", rank=number)


Told = list[tuple[Proof, bool]]  # what is proved, and whether its ranks count through the whole job


def _dumps(job: RunningJob, facts: Iterable[Job]) -> tuple[dict[int, Dump], list[FlightRecorderRefused]]:
    """The dumps of this job's ranks, and those that cannot be read."""
    pids = {rank.process.pid for rank in job.ranks.values()}
    return flight_recorder.collect(
        (dump.path, zlib.decompress(base64.b64decode(dump.data)))
        for fact in facts
        for dump in fact.dumps
        if dump.pid in pids
    )


def _behind_by_dumps(dumps: Mapping[int, Dump]) -> Told:
    """What the dumps prove together; that some ranks have none proves nothing here."""
    found = flight_recorder.compare(dumps) if len(dumps) > 1 else []
    return [(item, True) for item in found if item.kind is not flight_recorder.Kind.NO_DUMP]


def _behind_by_ras(job: RunningJob, reports: Sequence[ras.Report]) -> Told:
    """What two answers of one RAS service prove together: counts that rise are a job that works."""
    counts = reports[-1].counts if reports else {}
    whole = {name for name, functions in counts.items() if any(len(own) == job.world for own in functions.values())}
    return [(item, item.communicator in whole) for item in ras.conclude(reports)]


@fleet_rule("job", "sys.host-oom.swapping", "sys.host-oom.killed-now")
def memory(fleet: Fleet) -> Iterator[Finding]:
    """No host of a job swaps, and the kernel killed nothing of the job for want of memory between the looks."""
    facts, jobs = fleet.every(Job), jobs_of(fleet)
    for host in fleet.hosts:
        fact = facts.get(host.name)
        ranks = [rank.process for job in jobs for rank in job.ranks.values() if rank.host == host.name]
        if not ranks or fact is None or len(fact.memory) < 2:
            continue
        before, after = fact.memory[0], fact.memory[-1]
        grown = {name: after.get(name, 0) - count for name, count in before.items()}
        groups = fact.killed_in_groups
        all_groups = bool(groups) and len(groups) == len(fact.killed[0]) and all(rank.readings[-1] for rank in ranks)
        counts = Counts(fact.interval_s, grown.get("oom_kill", 0), groups, all_groups)
        lines = kills(host, min(started_s(host, job) for job in jobs))
        yield from killed(host, counts, {rank.pid for rank in ranks}, lines)
        room = (
            f", {size(fact.total_memory.get('MemAvailable', 0))} of memory available; {fact.pressure.get('memory', '')}"
        )
        yield from swapping(host, grown.get("pswpin", 0) + grown.get("pswpout", 0), fact.interval_s, room)


@fleet_rule("job", "gpu.driver.xid.during-job", "sys.host-oom.killed")
def kernel_log(fleet: Fleet) -> Iterator[Finding]:
    """Since the job started, the kernels have logged no GPU error (Xid) and killed nothing for want of memory."""
    with_ranks = {host for job in jobs_of(fleet) for host in job.hosts}
    fleet.of_each(lambda host: host.need(KernelLogFact) if host.name in with_ranks else None)
    for job in jobs_of(fleet):
        for host in fleet.hosts:
            since_s = started_s(host, job)
            for id, lines, what in (
                ("gpu.driver.xid.during-job", [line for _, line in logged(host, since_s, _XID)], "GPU errors"),
                (
                    "sys.host-oom.killed",
                    [kill.line for kill in kills(host, since_s)],
                    "processes killed for want of memory",
                ),
            ):
                if lines:
                    yield finding(
                        id,
                        Severity.WARN,
                        f"since the job started the kernel has logged {what} ({len(lines)} lines)",
                        lines[-QUOTED:],
                        hosts=(host.name,),
                        fixes=(Fix("judge them", f"nccl-doctor check -H {host.name} --stage gpu,system"),),
                    )
