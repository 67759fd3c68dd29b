"""What the ranks of a job that hangs wait for: each other, or one of them for something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from nccl_doctor.facts.job import Process
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.doing import Doing, frames_of, is_worker, looks
from nccl_doctor.rules.engine import Fleet, fleet_rule
from nccl_doctor.rules.job_reason import MAY_SERVE, reason
from nccl_doctor.rules.job_words import (
    QUOTED,
    WAITING,
    look,
    others,
    place_of,
    places,
    proof_of,
    ranks_of,
    silence,
)
from nccl_doctor.rules.ranks import SURELY, Rank, RunningJob, computes, moves_data
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration

_HALTED = ("stopped", "frozen", "traced")  # kinds of what hang.stopped is told of
LATE_S = 30.0  # of silence: a step may take as long


def _so_far(job: RunningJob) -> str:
    """Words for how long the job has been silent, while that is no longer than a step may take; else empty."""
    if job.silent_s is None or job.silent_s >= LATE_S:
        return ""
    return f", for {duration(job.silent_s)} so far"


def _again(job: RunningJob) -> list[Fix]:
    return [Fix("look again in a minute: it may only be late")] if _so_far(job) else []


def _stuck_workers(rank: Rank) -> list[Process]:
    """The DataLoader workers that the rank's main thread waits for: those that are not themselves waiting for work."""
    if rank.now.kind != "loader":
        return []
    return [child for child in rank.children if is_worker(child) and not _is_idle(child)]


def _is_idle(process: Process) -> bool:
    """Whether a worker waits for the next batch's indices, or where it is now could not be seen."""
    functions = [frame.function for frame in frames_of(process)]
    if "_worker_loop" not in functions:
        return True
    inner = functions[: functions.index("_worker_loop")]
    return "fetch" not in inner and any(name.rpartition(".")[2] in ("get", "poll", "recv_bytes") for name in inner)


def _elsewhere(job: RunningJob) -> list[Rank]:
    """Ranks that do something else, at both looks, while at least as many wait for them.

    Who is in the kernel (state D) at both is told by :func:`kernel_wait`; at one of them it reads or writes.
    """
    waiting = {rank.number for rank in job.waiting}
    reasons = {"own", "saving", "loading", "importing", "loader", "backward", "gpu", "asleep", "running"}
    away = []
    for rank in job.ranks.values():
        kinds = {look.kind for look in rank.looks}
        if (
            rank.number not in waiting
            and kinds & reasons
            and kinds <= {*reasons, "kernel"}
            and not _stuck_workers(rank)
        ):
            away.append(rank)
    return away if len(away) <= len(waiting) else []


@fleet_rule("job", "hang.kernel-wait")
def kernel_wait(fleet: Fleet) -> Iterator[Finding]:
    """No rank is stuck in the kernel (state D at both readings): a dead NFS or Lustre server, a failing disk, a driver.

    Such a process cannot even be killed; one that has read or written something between the looks is at work, and one that
    has computed something is a warning. Where it may be read, the kernel function and the file say what it waits for.
    """
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            stuck = [
                item for item in (rank.process, *rank.children) if all(look.kind == "kernel" for look in looks(item))
            ]
            if job.moved_bytes or not stuck or not (stuck[0] is rank.process or rank.now.kind == "loader"):
                continue
            process = stuck[0]
            if moves_data(process):  # one read or write after the other
                continue
            sure = 0.7 if _so_far(job) else 0.9
            if computes(process, job.interval_s):  # another thread, or the main one between what it waits for
                sure = 0.45
            reading = process.readings[-1]
            assert reading is not None and reading.main is not None
            kernel = " < ".join(reading.main.kernel_stack[:4])
            proof = proof_of(rank, process)
            if kernel:
                proof.append(rank.evidence(kernel, f"/proc/{process.pid}/stack"))
            what = reading.main.file or reading.main.waits_in or "something that may not be read"
            kind = f" ({reading.main.file_system})" if reading.main.file_system else ""
            yield finding(
                "hang.kernel-wait",
                Severity.WARN if sure < 0.5 else Severity.FAIL,
                f"{rank.label} is stuck in the kernel: it waits for {what}{kind}{others(job, rank)}{_so_far(job)}",
                [*proof, *silence(job)],
                confidence=sure,
                places=places([rank]),
                fixes=(
                    *_again(job),
                    Fix("what it waits for", f"sudo cat /proc/{process.pid}/stack; sudo dmesg -T | tail -30", rank.host),
                    Fix("do the host's mounts answer?", f"nccl-doctor check -H {rank.host} --stage system"),
                ),
                explains=(WAITING, "hang.behind"),
            )  # fmt: skip


@fleet_rule("job", "hang.dataloader")
def dataloader(fleet: Fleet) -> Iterator[Finding]:
    """No rank waits for a DataLoader worker that hangs.

    The worker's own stack says in which line of the data set; a worker that waits for work is not to blame.
    """
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            workers = [child for child in _stuck_workers(rank) if looks(child)[-1].kind not in _HALTED]
            if not workers or job.moved_bytes or not rank.stays:
                continue
            doing = looks(workers[0])[-1]
            where = doing.user or doing.frame
            why = reason(rank, job, workers[0])
            yield finding(
                "hang.dataloader",
                Severity.FAIL,
                f"{rank.label} waits for its DataLoader worker {workers[0].pid}, which {why.words} in {where}"
                f"{others(job, rank)}{_so_far(job)}",
                [*proof_of(rank, workers[0]), *why.proof, *proof_of(rank), *silence(job)],
                confidence=0.7 if _so_far(job) else 0.9,
                places=places([rank]),
                fixes=(*_again(job), *why.fixes, look(rank, workers[0])),
                explains=(WAITING, "hang.behind"),
            )


@fleet_rule("job", "hang.elsewhere")
def elsewhere(fleet: Fleet) -> Iterator[Finding]:
    """No rank does something else while the others wait in a collective for it.

    By the Python stacks of all ranks at two moments: the few that are not in torch.distributed are who the others wait
    for: a checkpoint, an evaluation on rank 0 alone, a slow disk, an exception that was swallowed, a branch that only
    some ranks take. Without stacks, the kernel function that each main thread sleeps in has to do. Where something moves
    nobody is accused. Where the others are only at one place together, which may be a call that waits for the GPU, and
    nothing proves that the job stands, it is a warning; unless their GPUs are all busy at little power, as with a NCCL
    kernel that waits, and its own is idle.
    """
    for job in jobs_of(fleet):
        if job.moves:
            continue
        explicit = job.stays and all(rank.now.kind in SURELY for rank in job.waiting)
        late = bool(_so_far(job))
        for rank in _elsewhere(job):
            proved = rank.stays and (explicit or _gpus_tell(rank, job))
            sure = (0.9 if rank.stays and not late else 0.7) if job.stands else 0.75 if proved else 0.45
            why = reason(rank, job)
            if why.words in MAY_SERVE:
                sure = min(sure, 0.45)
            still = "" if rank.stays else ", and elsewhere before, but in no collective"
            yield finding(
                "hang.elsewhere",
                Severity.WARN if sure < 0.5 else Severity.FAIL,
                f"{rank.label} {why.words} in {rank.now.user or rank.now.frame or 'the kernel'}{still}{others(job, rank)}{_so_far(job)}",
                [*proof_of(rank), *why.proof, *_of_the_waiting(job), *silence(job)],
                confidence=min(sure, 0.6) if rank.now.kind in ("asleep", "running") else sure,
                places=places([rank]),
                fixes=(
                    *_again(job),
                    *why.fixes,
                    look(rank),
                    Fix("then read why only this rank comes here: a branch on the rank, a checkpoint, uneven data"),
                ),
                explains=(WAITING, "hang.behind"),
            )


def _gpus_tell(rank: Rank, job: RunningJob) -> bool:
    """Whether its own GPUs have nothing to do, while those of all who wait run a kernel that waits, as NCCL's does."""
    share = value("hang.waiting-kernel.power")
    waits = all(other.gpus and all(gpu.waits(share) for gpu in other.gpus) for other in job.waiting)
    return bool(job.waiting) and waits and bool(rank.gpus) and all(gpu.busy_percent == 0 for gpu in rank.gpus)


def _of_the_waiting(job: RunningJob) -> list[Evidence]:
    return [place_of(rank) for rank in job.waiting if rank.now.frame][:1]


@fleet_rule("job", WAITING)
def waiting(fleet: Fleet) -> Iterator[Finding]:
    """Who waits for whom, as far as the ranks' stacks and connections tell; a consequence wherever a cause is found.

    Nothing proves from outside that a job takes its steps: that no rank stands out is no proof of health.
    """
    for job in jobs_of(fleet):
        grouped: dict[Doing, list[Rank]] = defaultdict(list)
        for rank in job.waiting:
            grouped[rank.now].append(rank)
        if not job.moves:
            for doing, ranks in grouped.items():
                place = f" ({doing.user})" if doing.user and doing.user != doing.frame else ""
                verb = "wait" if len(ranks) > 1 else "waits"
                what = f"in {doing.name}" if doing.kind in SURELY else f"at {doing.frame}"
                yield finding(
                    WAITING,
                    Severity.WARN,
                    f"{ranks_of(ranks)} {verb} {what}{place}",
                    [*map(place_of, ranks[:QUOTED]),
                     *silence(job)],
                    places=places(ranks),
                    fixes=(
                        Fix("look again in a minute: a rank that is late will have come"),
                        Fix("are hosts and network sound?", f"nccl-doctor check -H {','.join(job.hosts)} --quick"),
                    ),
                )  # fmt: skip
        if not job.stands:
            fleet.lack(f"whether job {job.id} takes its steps", "nothing outside of the program shows it", *job.hosts)
