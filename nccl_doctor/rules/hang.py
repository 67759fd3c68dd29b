"""From a bundle of a running job to the answer: who holds it, or what is known instead."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.files import printed_json
from nccl_doctor.facts.fold import fold, ranges
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.model import Bundle, Plan
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding, Severity, Unknown
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import engine
from nccl_doctor.rules.job_launchers import waiting_launchers
from nccl_doctor.rules.job_words import WAITING, ranks_of, where
from nccl_doctor.rules.judge import Report, judge
from nccl_doctor.rules.rank_variables import local_rank
from nccl_doctor.rules.ranks import Rank, RunningJob
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.units import duration, size

_GONE_HOSTS = ("host.ssh-timeout", "host.no-route", "host.ssh-refused", "host.cut-off")
HANG_SCHEMA = "nccl-doctor/hang/1"


class RankRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank as it was found. ``doing`` is a word of :class:`nccl_doctor.rules.doing.Doing`, ``where`` a quoted frame."""

    rank: int
    host: str
    pid: int
    local_rank: int | None = None
    state: str = ""
    doing: str = ""
    where: str = ""
    waits: bool = False
    stays: bool = False  # both looks found it at the same place
    cpu_s: float | None = None  # between the looks
    gpus: tuple[str, ...] = ()


class JobRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job that runs on the hosts. ``world`` is 0 where no variable says it."""

    id: str
    world: int
    found: int
    hosts: tuple[str, ...]
    script: str = ""
    age_s: float = 0.0
    interval_s: float = 0.0
    moved_bytes: int | None = None  # on TCP connections between its ranks, from look to look
    silent_s: float | None = None  # for how long no byte has moved on them
    stands: bool = False  # proved: no byte moved, and who waits stayed where it was


class Hang(msgspec.Struct, frozen=True):
    """The answer. ``verdict``: ``held`` (somebody is to blame), ``stands`` (nobody stands out), ``moves``, ``not-known``,
    ``no-job``, ``several-jobs`` (one has to be chosen)."""

    verdict: str
    sentence: str
    jobs: tuple[JobRow, ...]
    ranks: tuple[RankRow, ...]
    report: Report

    @property
    def exit_code(self) -> ExitCode:
        """The published exit code: never 0, as nothing proves from outside that a job takes its steps."""
        if not self.report.reached:
            return ExitCode.NOTHING_CHECKED
        return {
            "held": ExitCode.FINDINGS,
            "stands": ExitCode.UNDECIDED,
            "moves": ExitCode.INCOMPLETE,
            "not-known": ExitCode.INCOMPLETE,
            "several-jobs": ExitCode.USAGE,
        }.get(self.verdict, ExitCode.NOTHING_CHECKED)


def examine(bundle: Bundle) -> Hang:
    """The answer of a bundle that ``hang`` collected; ``bundle.plan.job`` chooses among several jobs."""
    hosts = engine.reached(bundle)
    jobs = jobs_of(engine.Fleet(hosts, bundle.plan))
    if not jobs and bundle.plan.job:
        jobs = jobs_of(engine.Fleet(hosts, Plan(stages=bundle.plan.stages)))
    if jobs and bundle.plan.job not in ("", *(job.id for job in jobs)):
        return _answer(bundle, "several-jobs", f"no job {bundle.plan.job!r} runs on these hosts", jobs)
    if len(jobs) > 1:  # none was chosen
        return _answer(bundle, "several-jobs", f"{len(jobs)} jobs run on these hosts: choose one with --job ID", jobs)
    if not hosts:
        return _answer(bundle, "not-known", "no host was reached", jobs)
    waiting = waiting_launchers(engine.Fleet(hosts, bundle.plan))
    if not jobs and not waiting:
        unread = [host.name for host in hosts if not host.want(Job)]
        if unread:
            return _answer(
                bundle, "not-known", f"no rank was found, and the processes of {fold(unread)} were not read", jobs
            )
        return _answer(bundle, *_nothing_found(hosts), jobs)
    report = judge(bundle)
    report = msgspec.structs.replace(report, findings=tuple(sorted(report.findings, key=_is_of_a_host)))
    causes = [item for item in report.causes if item.severity is Severity.FAIL and _may_hold(item, jobs)]
    if causes:
        first = causes[0]
        more = f" ({len(causes) - 1} more below)" if len(causes) > 1 else ""
        at = fold(first.hosts)
        told = first.title if first.title.startswith(f"{at} ") else f"{at}: {first.title}"
        return _answer(bundle, "held", told + more, jobs, report)
    if not jobs:
        at = fold(launcher.host for launcher in waiting)
        return _answer(bundle, "stands", f"no rank has been started: torchrun on {at} waits for others", jobs, report)
    warned = [item for item in report.causes if item.severity is Severity.WARN and item.stage == engine.JOB]
    doubtful = next((item.title for item in warned if item.id != WAITING), "")
    idle = [host.name for host in hosts if host.want(Job) and host.name not in jobs[0].hosts]
    verdict, sentence = _without_cause(jobs[0], f"perhaps {doubtful}" if doubtful else "", idle)
    return _answer(bundle, verdict, sentence, jobs, report)


def _is_of_a_host(item: Finding) -> bool:
    return item.stage != engine.JOB


def _may_hold(item: Finding, jobs: tuple[RunningJob, ...]) -> bool:
    """Whether a job may stand for it.

    A host on which we could not look holds only a job that may have ranks there, and only where it seems to be gone.
    """
    complete = bool(jobs) and bool(jobs[0].world) and not jobs[0].missing
    return item.stage == engine.JOB or (item.id in _GONE_HOSTS and not complete)


def _nothing_found(hosts: tuple[engine.Host, ...]) -> tuple[str, str]:
    """Verdict and sentence where no rank was found: there is no job only where none can have been overlooked."""
    found = engine.facts_of(hosts, Job)
    refused = sum(fact.refused.count for fact in found.values())
    if refused:
        return (
            "not-known",
            f"no rank is visible to this user: {refused} Python processes of others may not be read "
            "(log in as the job's user, or as root)",
        )
    seen = "" if all(fact.uid == 0 for fact in found.values()) else " that this user may read"
    names = "RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK"
    spawned = sum(fact.unnumbered for fact in found.values())
    more = (
        f"; {spawned} that multiprocessing started may be ranks: py-spy could not read their numbers" if spawned else ""
    )
    started = [name for name, fact in found.items() if any(item.role == "launcher" for item in fact.processes)]
    if started:
        return "not-known", f"no rank was found, but torchrun runs on {fold(started)}: see what it says in its log"
    told = f"no process{seen} on {fold(host.name for host in hosts)} has {names} in its environment{more}"
    return "not-known" if spawned else "no-job", told


def _absent(job: RunningJob, idle: list[str]) -> str:
    """Which ranks of the world were not found; ``idle``: hosts that were looked at and have no rank of it."""
    ranks, were = ("ranks", "were") if len(job.missing) > 1 else ("rank", "was")
    have = f", and {fold(idle)} {'have' if len(idle) > 1 else 'has'} none" if idle else ""
    return f"{ranks} {ranges(job.missing)} of {job.world} {were} not found{have}"


def _without_cause(job: RunningJob, perhaps: str, idle: list[str]) -> tuple[str, str]:
    """Verdict and sentence where no finding is sure enough to blame anybody; ``perhaps`` says what the first one suspects."""
    interval = f"{job.interval_s:.1f} s"
    who = f"{len(job.waiting)} of {len(job.ranks)} ranks found wait"
    if len(common := {where(rank) for rank in job.waiting}) == 1:
        who += f" {common.pop()}"
    if job.over:
        return (
            "not-known",
            f"job {job.id} ended while it was looked at, with all its ranks: nothing hangs, its log says why",
        )
    if job.moves:
        moved = f"{size(job.moved_bytes)} moved between ranks in {interval}" if job.moved_bytes else "stacks changed"
        return "moves", f"job {job.id}: {moved}; no rank stands out (this is no proof that steps are taken)"
    waiting = {rank.number for rank in job.waiting}
    busy = [rank for rank in job.ranks.values() if rank.number not in waiting and rank.at_work(job.interval_s)]
    if busy:
        are = "are" if len(busy) > 1 else "is"
        return (
            "not-known",
            f"job {job.id}: {ranks_of(busy)} {are} at work, {who}; {perhaps or 'look again in a minute'}",
        )
    if job.stands:
        silent = f", and no byte has moved between them for {duration(job.silent_s)}" if job.silent_s else ""
        return "stands", f"job {job.id}: {who}{silent}; {perhaps or 'none of them stands out'}"
    absent = _absent(job, idle) if job.missing else ""
    if not job.waiting:
        known = "no rank found waits for others in a call that is known"
        return "not-known", f"job {job.id}: {known}; {perhaps or 'see what each does'}"
    return "not-known", f"job {job.id}: {who}; {perhaps or absent or 'what they wait for could not be seen'}"


def _answer(
    bundle: Bundle, verdict: str, sentence: str, jobs: tuple[RunningJob, ...], report: Report | None = None
) -> Hang:
    ranks = tuple(_row(rank, job) for job in jobs[:1] if report for rank in job.ranks.values())
    return Hang(verdict, sentence, tuple(map(_job_row, jobs)), ranks, report or judge(bundle))


def _job_row(job: RunningJob) -> JobRow:
    ranks = list(job.ranks.values())
    return JobRow(
        job.id, job.world, len(ranks), job.hosts,
        script=ranks[0].process.script,
        age_s=max(rank.process.age_s for rank in ranks) + job.interval_s,  # at the second look, as all that is told with it
        interval_s=job.interval_s,
        moved_bytes=job.moved_bytes,
        silent_s=job.silent_s,
        stands=job.stands,
    )  # fmt: skip


def _row(rank: Rank, job: RunningJob) -> RankRow:
    reading = rank.process.readings[-1]
    return RankRow(
        rank.number, rank.host, rank.process.pid, local_rank(rank.process),
        state=reading.state if reading else "",
        doing=rank.now.kind + (f" {rank.now.name}" if rank.now.name else ""),
        where=rank.now.user or rank.now.frame,
        waits=rank in job.waiting,
        stays=rank.stays,
        cpu_s=rank.cpu_s,
        gpus=tuple(map(str, rank.gpus)),
    )  # fmt: skip


class Document(msgspec.Struct, frozen=True):
    """What ``--format json`` prints. A finding that is folded under another one is its consequence."""

    schema: str
    tool: str
    created: str
    verdict: str
    sentence: str
    exit_code: int
    jobs: tuple[JobRow, ...]
    ranks: tuple[RankRow, ...]
    findings: tuple[Finding, ...]
    playbooks: dict[str, str]  # of each finding id
    unknown: tuple[Unknown, ...]
    hosts: tuple[str, ...]
    reached: tuple[str, ...]
    seconds: float


def to_json(answer: Hang) -> bytes:
    """The answer as JSON: sorted, reproducible."""
    report = answer.report
    document = Document(
        HANG_SCHEMA, report.tool, report.created, answer.verdict, answer.sentence, int(answer.exit_code), answer.jobs,
        answer.ranks, report.findings, {item.id: for_finding(item.id) for item in report.findings}, report.unknown,
        report.hosts, report.reached, report.seconds,
    )  # fmt: skip
    return printed_json(document)
