"""A job that hangs: which rank holds the others, and what shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from nccl_doctor.facts.fold import few, ranges
from nccl_doctor.facts.job import Job, Process
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, fleet_rule
from nccl_doctor.rules.job_words import (
    KILLED,
    QUOTED,
    WAITING,
    logged,
    look,
    others,
    place_of,
    places,
    proof_of,
    quoted,
    ranks_of,
    silence,
    state,
)
from nccl_doctor.rules.ranks import (
    BUSY_SHARE,
    SURELY,
    Doing,
    Rank,
    RunningJob,
    is_worker,
    jobs_of,
    local_world,
    looks,
)
from nccl_doctor.rules.units import duration

_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_YOUNG_S = 60.0  # a job that has just been started may still be coming up


# --- one reason for each rank, the strongest


def _stuck_workers(rank: Rank) -> list[Process]:
    """DataLoader workers that are not waiting for work: what the rank's main thread waits for is theirs to give."""
    if rank.now.kind != "loader":
        return []
    return [child for child in rank.children if is_worker(child) and not _is_idle(child)]


def _is_idle(process: Process) -> bool:
    """Whether a worker waits for the next batch's indices."""
    stack = process.stacks[-1]
    frames = stack.threads[0].frames if stack and stack.threads else ()
    inner = [frame.function for frame in frames[: [frame.function for frame in frames].index("_worker_loop")]]
    return "fetch" not in inner and any(name.rpartition(".")[2] in ("get", "poll", "recv_bytes") for name in inner)


def _elsewhere(job: RunningJob) -> list[Rank]:
    """Ranks that do something else, at both looks, while at least as many wait for them."""
    waiting = {rank.number for rank in job.waiting}
    reasons = ("own", "saving", "loading", "importing", "loader", "backward", "gpu", "asleep", "running")
    away = [
        rank
        for rank in job.ranks.values()
        if rank.number not in waiting
        and rank.looks
        and all(look.kind in reasons for look in rank.looks)
        and not _stuck_workers(rank)
    ]
    return away if len(away) <= len(waiting) else []


@fleet_rule("job", "hang.stopped", "hang.stopped.traced")
def stopped(fleet: Fleet) -> Iterator[Finding]:
    """No rank is stopped by a signal (state T), and none is held by a debugger (state t).

    A stopped process keeps its connections, answers nothing and ends nothing: every other rank waits for it for ever.
    Who stops processes: Ctrl-Z, a scheduler that suspends jobs (``scontrol suspend``), a batch system's preemption, a
    debugger, a checkpointing tool.
    """
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            for process in (rank.process, *rank.children):
                reading = process.readings[-1]
                kind = {"T": "stopped", "t": "traced"}.get(state(reading), "")
                if not kind or reading is None or (process is not rank.process and rank.now.kind != "loader"):
                    continue
                who = rank.label if process is rank.process else f"the DataLoader worker {process.pid} of {rank.label}"
                how = "stopped by a signal" if kind == "stopped" else f"held by a debugger (pid {reading.tracer})"
                go_on = (
                    Fix("let it go on", f"kill -CONT {process.pid}", rank.host, risky=True)
                    if kind == "stopped"
                    else Fix("see who holds it", f"ps -o pid,user,lstart,args -p {reading.tracer}", rank.host)
                )
                yield finding(
                    "hang.stopped" if kind == "stopped" else "hang.stopped.traced",
                    Severity.FAIL,
                    f"{who} is {how}{others(job, rank)}",
                    [*proof_of(rank, process), *silence(job)],
                    places=places([rank]),
                    fixes=(
                        go_on,
                        Fix("who stops jobs here? a scheduler's suspension", "scontrol show job | grep -i susp"),
                    ),
                    explains=(WAITING, "hang.network", "hang.behind"),
                )


_GONE = (WAITING, "hang.network", "hang.rank-gone.peer-closed", "hang.behind")


@fleet_rule("job", "hang.rank-gone", "hang.rank-gone.ended", "hang.rank-gone.host")
def gone(fleet: Fleet) -> Iterator[Finding]:
    """Every rank of the world (``WORLD_SIZE``) has a process.

    A rank that died without its launcher's notice (killed for want of memory, a segmentation fault under ``srun
    --no-kill``, a container that ended) leaves the others in a collective until their time-out. It is gone where other
    ranks of its host were found and say how many there are (``LOCAL_WORLD_SIZE``). A host without any rank is told where
    the job is known to need one more. All others that were not found are unknown: their hosts were not named, or not read.
    """
    fleet.every(Job)
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            if rank.now.kind == "ended":
                yield finding(
                    "hang.rank-gone.ended", Severity.FAIL, f"{rank.label} has ended{others(job, rank)}", proof_of(rank),
                    places=places([rank]),
                    fixes=(Fix("its last words: that rank's log", "nccl-doctor explain logs/"),),
                    explains=_GONE,
                )  # fmt: skip
        at = job.gone
        for host, numbers in at.items():
            yield _missing(job, host, numbers, fleet)
        rest = sorted(set(job.missing).difference(*at.values()))
        if not rest:
            continue
        idle = [host.name for host in fleet.hosts if host.want(Job) and host.name not in job.hosts]
        if job.hosts_wanted > len(job.hosts) and idle and len(idle) <= job.hosts_wanted - len(job.hosts):
            yield _empty_hosts(job, idle, rest)
        else:
            fleet.lack(
                f"ranks {ranges(rest)} of job {job.id}", "on hosts that were not named, or not (all) read", *job.hosts
            )


def _missing(job: RunningJob, host: str, numbers: Collection[int], fleet: Fleet) -> Finding:
    here = [rank for rank in job.ranks.values() if rank.host == host]
    found = f"LOCAL_WORLD_SIZE={local_world(here[0].process)}, and only {ranks_of(here)} found"
    killed = [line for known in fleet.hosts if known.name == host for line in logged(known, job, KILLED)]
    closed = [link for link in job.links if link.peer is None and link.connection.state == "CLOSE_WAIT"]
    proof = [Evidence(found, "/proc/*/environ", host=host), *killed[-QUOTED:], *map(quoted, closed[:QUOTED])]
    young = min(rank.process.age_s for rank in here) < _YOUNG_S
    what = f"rank{'s' if len(numbers) > 1 else ''} {ranges(numbers)} {'have' if len(numbers) > 1 else 'has'} no process"
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
            Fix("was it killed?", "sudo dmesg -T | grep -iE 'killed process|oom|segfault'", host),
            Fix("its last words: that rank's log", "nccl-doctor explain logs/"),
        ),
        explains=_GONE,
    )


def _empty_hosts(job: RunningJob, idle: list[str], rest: list[int]) -> Finding:
    """Hosts without a rank, in a job that needs as many hosts more."""
    each = local_world(next(iter(job.ranks.values())).process)
    text = f"no process bears a rank; WORLD_SIZE={job.world} at {each} a host needs {job.hosts_wanted} hosts"
    return finding(
        "hang.rank-gone.host",
        Severity.FAIL,
        f"{few(idle)} {'have' if len(idle) > 1 else 'has'} no rank of job {job.id}, which lacks {ranges(rest)}{others(job)}",
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


@fleet_rule("job", "hang.kernel-wait")
def kernel_wait(fleet: Fleet) -> Iterator[Finding]:
    """No rank is stuck in the kernel (state D at both readings): a dead NFS or Lustre server, a failing disk, a driver.

    Such a process cannot even be killed. Where it may be read, the kernel function and the file say what it waits for.
    """
    for job in jobs_of(fleet):
        for rank in job.ranks.values():
            stuck = [
                item for item in (rank.process, *rank.children) if all(look.kind == "kernel" for look in looks(item))
            ]
            if job.moved_bytes or not stuck or not (stuck[0] is rank.process or rank.now.kind == "loader"):
                continue
            process = stuck[0]
            reading = process.readings[-1]
            assert reading is not None and reading.main is not None
            kernel = " < ".join(reading.main.kernel_stack[:4])
            proof = proof_of(rank, process)
            if kernel:
                proof.append(Evidence(kernel, f"/proc/{process.pid}/stack", host=rank.host, rank=rank.number))
            what = reading.main.file or reading.main.waits_in or "something that may not be read"
            kind = f" ({reading.main.file_system})" if reading.main.file_system else ""
            yield finding(
                "hang.kernel-wait",
                Severity.FAIL,
                f"{rank.label} is stuck in the kernel: it waits for {what}{kind}{others(job, rank)}",
                [*proof, *silence(job)],
                confidence=0.9,
                places=places([rank]),
                fixes=(
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
            workers = [child for child in _stuck_workers(rank) if state(child.readings[-1]) not in ("T", "t")]
            if not workers or job.moved_bytes or not rank.stays:
                continue
            doing = looks(workers[0])[-1]
            where = doing.user or doing.frame
            yield finding(
                "hang.dataloader",
                Severity.FAIL,
                f"{rank.label} waits for its DataLoader worker {workers[0].pid}, which is in {where}{others(job, rank)}",
                [*proof_of(rank, workers[0]), *proof_of(rank), *silence(job)],
                confidence=0.9,
                places=places([rank]),
                fixes=(look(rank, workers[0].pid),),
                explains=(WAITING, "hang.behind"),
            )


@fleet_rule("job", "hang.elsewhere")
def elsewhere(fleet: Fleet) -> Iterator[Finding]:
    """No rank does something else while the others wait in a collective for it.

    By the Python stacks of all ranks at two moments: the few that are not in torch.distributed are who the others wait
    for: a checkpoint, an evaluation on rank 0 alone, a slow disk, an exception that was swallowed, a branch that only
    some ranks take. Without stacks, the kernel function that each main thread sleeps in has to do. Where something moves
    nobody is accused. Where the others are only at one place together, which may be a call that waits for the GPU, and
    nothing proves that the job stands, it is a warning.
    """
    for job in jobs_of(fleet):
        if job.moves:
            continue
        explicit = job.stays and all(rank.now.kind in SURELY for rank in job.waiting)
        for rank in _elsewhere(job):
            sure = (0.9 if rank.stays else 0.7) if job.stands else 0.75 if explicit and rank.stays else 0.45
            where = rank.now.user or rank.now.frame
            busy = (rank.cpu_s or 0.0) > BUSY_SHARE * job.interval_s or state(rank.process.readings[-1]) == "R"
            idle = "computes" if busy else _idle_word(rank)
            still = "" if rank.stays else ", and elsewhere before, but in no collective"
            yield finding(
                "hang.elsewhere",
                Severity.WARN if sure < 0.5 else Severity.FAIL,
                f"{rank.label} {idle} in {where}{still}{others(job, rank)}",
                [*proof_of(rank), *_of_the_waiting(job), *silence(job)],
                confidence=min(sure, 0.6) if rank.now.kind in ("asleep", "running") else sure,
                places=places([rank]),
                fixes=(
                    look(rank),
                    Fix("then read why only this rank comes here: a branch on the rank, a checkpoint, uneven data"),
                ),
                explains=(WAITING, "hang.behind"),
            )


def _idle_word(rank: Rank) -> str:
    """What the kernel says that the main thread sleeps for."""
    reading = rank.process.readings[-1]
    main = reading.main if reading else None
    if rank.now.kind == "loader":
        return "waits for data"
    told = {"saving": "writes a checkpoint", "loading": "loads a file", "importing": "still imports modules"}
    if rank.now.kind in told:
        return told[rank.now.kind]
    for part, word in (
        ("nanosleep", "sleeps"),
        ("wait_for_partner", "waits for the other end of a FIFO"),
        ("pipe", "waits for a pipe"),
        ("unix_stream", "waits for another process"),
        ("do_wait", "waits for another process"),
    ):
        if main and part in main.waits_in:
            return word
    return "is"


def _of_the_waiting(job: RunningJob) -> list[Evidence]:
    first = next((rank for rank in job.waiting if rank.now.frame), None)
    if first is None:
        return []
    return [place_of(first)]


@fleet_rule("job", "app.collective-mismatch")
def different_collectives(fleet: Fleet) -> Iterator[Finding]:
    """All ranks that wait do so in the same collective: in different ones each waits for the others for ever."""
    for job in jobs_of(fleet):
        called: dict[str, list[Rank]] = defaultdict(list)
        for rank in job.waiting:
            if rank.now.kind == "collective" and rank.stays and rank.now.name not in _MESSAGES:
                called[rank.now.name].append(rank)
        if len(called) < 2 or job.moves:
            continue
        *odd, (common, most) = sorted(called.items(), key=lambda item: len(item[1]))
        few_ranks = sorted((rank for _, ranks in odd for rank in ranks), key=lambda rank: rank.number)
        names = ", ".join(name for name, _ in odd)
        even = len(few_ranks) == len(most)
        yield finding(
            "app.collective-mismatch",
            Severity.FAIL,
            f"{ranks_of(few_ranks)} wait{'s' * (len(few_ranks) == 1)} in {names}, {ranks_of(most)} in {common}",
            [
                *(Evidence(rank.now.frame + (f" < {rank.now.user}" if rank.now.user else ""), "py-spy dump",
                           host=rank.host, rank=rank.number) for ranks in called.values() for rank in ranks[:QUOTED]),
                *silence(job),
            ],
            confidence=0.8 if job.stands else 0.6,
            places=places([*few_ranks, *most] if even else few_ranks),
            fixes=(Fix("make every rank issue the same collectives in the same order: look for a branch on the rank"),),
            explains=(WAITING, "hang.behind"),
        )  # fmt: skip


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
                what = doing.name if doing.kind in SURELY else f"at {doing.frame}"
                yield finding(
                    WAITING,
                    Severity.WARN,
                    f"{ranks_of(ranks)} {verb} {'in ' if doing.name else ''}{what}{place}",
                    [*map(place_of, ranks[:QUOTED]),
                     *silence(job)],
                    places=places(ranks),
                    fixes=(
                        Fix("look again in a minute: a rank that is late will have come"),
                        Fix("are hosts and network sound?", f"nccl-doctor check -H {','.join(job.hosts)} --quick"),
                    ),
                )  # fmt: skip
        fleet.lack(f"whether job {job.id} takes its steps", "nothing outside of the program shows it", *job.hosts)
