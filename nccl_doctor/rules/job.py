"""A job that hangs: which rank holds the others, and what shows it."""

from __future__ import annotations

import base64
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from nccl_doctor.explain import flight_recorder, ras
from nccl_doctor.explain.model import Proof
from nccl_doctor.facts.fold import few, ranges
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.job import Job, Process, Reading
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, fleet_rule
from nccl_doctor.rules.ranks import (
    BUSY_SHARE,
    SURELY,
    Doing,
    Link,
    Rank,
    RunningJob,
    jobs_of,
    local_world,
    looks,
    ras_reports,
)
from nccl_doctor.rules.units import duration, size

WAITING = "hang.waiting"
QUOTED = 3
_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
SWAPPED_PAGES = 1000  # of 4 KiB, in and out between the looks
_YOUNG_S = 60.0  # a job that has just been started may still be coming up
_STACK = "py-spy dump --nonblocking --pid"


def _ranks(ranks: Sequence[Rank]) -> str:
    numbers = [rank.number for rank in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def _places(ranks: Iterable[Rank]) -> list[Place]:
    return [Place(host=rank.host, rank=rank.number) for rank in ranks]


def _others(job: RunningJob, *ranks: Rank) -> str:
    """Who is held by these ranks."""
    own = {rank.number for rank in ranks}
    held = Counter(rank.now.name or rank.now.user or rank.now.frame for rank in job.waiting if rank.number not in own)
    if not held:
        return ""
    name, count = held.most_common(1)[0]
    total = sum(held.values())
    rest = f" and {total - count} elsewhere" if total > count else ""
    return f"; {count} other rank{'s wait' if count > 1 else ' waits'} in {name}{rest}"


def state_of(process: Process) -> str:
    """The readings of a process in one line: state, kernel function, file, CPU time."""
    reading = process.readings[-1]
    if reading is None:
        return f"pid {process.pid} ended between the readings"
    words = [f"pid {process.pid} ({process.script or process.comm}) state {reading.state}"]
    if main := reading.main:
        if main.waits_in:
            words.append(f"in {main.waits_in}")
        if main.call:
            kind = f" on {main.file_system}" if main.file_system else ""
            words.append(f"{main.call} {main.file}{kind}")
    first = process.readings[0]
    if first:
        words.append(f"{reading.cpu_s - first.cpu_s:.2f} s of CPU between the readings")
        moved = [
            f"{size(after - before)} {word}"
            for word, before, after in (
                ("read", first.read_bytes, reading.read_bytes),
                ("written", first.written_bytes, reading.written_bytes),
            )
            if before is not None and after is not None and after > before
        ]
        words += moved
    return ", ".join(words)


def _proof(rank: Rank, process: Process | None = None) -> list[Evidence]:
    """What was read of a rank (or of one of its children): its state, then its stack."""
    process = process or rank.process
    proof = [Evidence(state_of(process), f"/proc/{process.pid}", host=rank.host, rank=rank.number)]
    stack = process.stacks[-1] if process.stacks else None
    if stack and stack.threads and stack.threads[0].frames:
        frames = stack.threads[0].frames
        told = " < ".join(str(frame) for frame in frames[:4]) + (" < ..." if len(frames) > 4 else "")
        proof.append(Evidence(told, "py-spy dump", host=rank.host, rank=rank.number))
    if rank.gpus and process is rank.process:
        proof.append(Evidence("; ".join(rank.gpus), "NVML", host=rank.host, rank=rank.number))
    return proof


def _silence(job: RunningJob) -> list[Evidence]:
    """What the connections between the ranks say of how long nothing has moved."""
    if job.silent_s is None or job.silent_s < job.interval_s:
        return []
    text = f"no byte moved on {len(job.data_links)} connections between ranks for {duration(job.silent_s)}"
    return [Evidence(text, "tcp_info", host=job.data_links[0].rank.host)]


def _look(rank: Rank, pid: int = 0) -> Fix:
    return Fix("see where it stands", f"sudo {_STACK} {pid or rank.process.pid}", rank.host)


def _state(reading: Reading | None) -> str:
    return reading.state if reading else ""


# --- one reason for each rank, the strongest


def _stuck_workers(rank: Rank) -> list[Process]:
    """DataLoader workers that are not waiting for work: what the rank's main thread waits for is theirs to give."""
    if rank.now.kind != "loader":
        return []
    return [child for child in rank.children if _is_worker(child) and not _is_idle(child)]


def _is_worker(process: Process) -> bool:
    stack = process.stacks[-1] if process.stacks else None
    frames = stack.threads[0].frames if stack and stack.threads else ()
    return any(frame.function == "_worker_loop" for frame in frames)


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
                kind = {"T": "stopped", "t": "traced"}.get(_state(reading), "")
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
                    f"{who} is {how}{_others(job, rank)}",
                    [*_proof(rank, process), *_silence(job)],
                    places=_places([rank]),
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
                    "hang.rank-gone.ended", Severity.FAIL, f"{rank.label} has ended{_others(job, rank)}", _proof(rank),
                    places=_places([rank]),
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
    found = f"LOCAL_WORLD_SIZE={local_world(here[0].process)}, and only {_ranks(here)} found"
    killed = [line for known in fleet.hosts if known.name == host for line in _logged(known, job, _KILLED)]
    closed = [link for link in job.links if link.peer is None and link.connection.state == "CLOSE_WAIT"]
    proof = [Evidence(found, "/proc/*/environ", host=host), *killed[-QUOTED:], *map(_quoted, closed[:QUOTED])]
    young = min(rank.process.age_s for rank in here) < _YOUNG_S
    what = f"rank{'s' if len(numbers) > 1 else ''} {ranges(numbers)} {'have' if len(numbers) > 1 else 'has'} no process"
    told = "; the kernel has killed for want of memory" if killed else ""
    return finding(
        "hang.rank-gone",
        Severity.FAIL,
        f"{what} on {host}{told}{_others(job)}",
        [*proof, *_silence(job)],
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
        f"{few(idle)} {'have' if len(idle) > 1 else 'has'} no rank of job {job.id}, which lacks {ranges(rest)}{_others(job)}",
        [*(Evidence(text, "/proc/*/environ", host=host) for host in idle[:QUOTED]), *_silence(job)],
        confidence=0.8,
        hosts=idle,
        places=[Place(host=idle[0] if len(idle) == 1 else "", rank=number) for number in rest],
        fixes=(
            Fix("did they end, or never start?", "last -x | head -3; sudo dmesg -T | tail -20", idle[0]),
            Fix("their last words: those ranks' logs", "nccl-doctor explain logs/"),
        ),
        explains=_GONE,
    )


_KILLED = ("Out of memory", "oom-kill", "Killed process")


def _logged(host: Host, job: RunningJob, words: Sequence[str]) -> list[Evidence]:
    """The lines of the host's kernel log with one of these words, since the job's ranks there were started."""
    log = host.want(KernelLogFact)
    ages = [rank.process.age_s for rank in job.ranks.values() if rank.host == host.name]
    if log is None or log.uptime_s is None or not ages:
        return []
    since = log.uptime_s - max(ages)
    lines = [line for line in log.lines if line.at_s is not None and line.at_s >= since]
    return [
        Evidence(line.text, f"{log.source}, {duration(log.uptime_s - (line.at_s or 0.0))} ago", host=host.name)
        for line in lines
        if any(word in line.text for word in words)
    ]


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
                [*_proof(old), *_proof(new)[:1]],
                places=_places([old]),
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
            proof = _proof(rank, process)
            if kernel:
                proof.append(Evidence(kernel, f"/proc/{process.pid}/stack", host=rank.host, rank=rank.number))
            what = reading.main.file or reading.main.waits_in or "something that may not be read"
            kind = f" ({reading.main.file_system})" if reading.main.file_system else ""
            yield finding(
                "hang.kernel-wait",
                Severity.FAIL,
                f"{rank.label} is stuck in the kernel: it waits for {what}{kind}{_others(job, rank)}",
                [*proof, *_silence(job)],
                confidence=0.9,
                places=_places([rank]),
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
            workers = [child for child in _stuck_workers(rank) if _state(child.readings[-1]) not in ("T", "t")]
            if not workers or job.moved_bytes or not rank.stays:
                continue
            doing = looks(workers[0])[-1]
            where = doing.user or doing.frame
            yield finding(
                "hang.dataloader",
                Severity.FAIL,
                f"{rank.label} waits for its DataLoader worker {workers[0].pid}, which is in {where}{_others(job, rank)}",
                [*_proof(rank, workers[0]), *_proof(rank), *_silence(job)],
                confidence=0.9,
                places=_places([rank]),
                fixes=(_look(rank, workers[0].pid),),
                explains=(WAITING, "hang.behind"),
            )


@fleet_rule("job")
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
            busy = (rank.cpu_s or 0.0) > BUSY_SHARE * job.interval_s or _state(rank.process.readings[-1]) == "R"
            idle = "computes" if busy else _idle_word(rank)
            still = "" if rank.stays else ", and elsewhere before, but in no collective"
            yield finding(
                "hang.elsewhere",
                Severity.WARN if sure < 0.5 else Severity.FAIL,
                f"{rank.label} {idle} in {where}{still}{_others(job, rank)}",
                [*_proof(rank), *_of_the_waiting(job), *_silence(job)],
                confidence=min(sure, 0.6) if rank.now.kind in ("asleep", "running") else sure,
                places=_places([rank]),
                fixes=(
                    _look(rank),
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
    return [_place_of(first)]


def _place_of(rank: Rank) -> Evidence:
    """Where a rank is, and how that is known."""
    source = f"/proc/{rank.process.pid}" if rank.now.kind in ("asleep", "running") else "py-spy dump"
    gpus = f" [{'; '.join(rank.gpus)}]" if rank.gpus else ""
    return Evidence(rank.now.frame + gpus, source, host=rank.host, rank=rank.number)


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
            f"{_ranks(few_ranks)} wait{'s' * (len(few_ranks) == 1)} in {names}, {_ranks(most)} in {common}",
            [
                *(Evidence(rank.now.frame + (f" < {rank.now.user}" if rank.now.user else ""), "py-spy dump",
                           host=rank.host, rank=rank.number) for ranks in called.values() for rank in ranks[:QUOTED]),
                *_silence(job),
            ],
            confidence=0.8 if job.stands else 0.6,
            places=_places([*few_ranks, *most] if even else few_ranks),
            fixes=(Fix("make every rank issue the same collectives in the same order: look for a branch on the rank"),),
            explains=(WAITING, "hang.behind"),
        )  # fmt: skip


@fleet_rule("job", "hang.network", "hang.network.connecting")
def network(fleet: Fleet) -> Iterator[Finding]:
    """What ranks send to each other is acknowledged: no send queue stays full while retransmissions go unanswered.

    A firewall that forgets or drops established connections, a route that went, a link that is down: the connection
    stands on both sides, and nothing gets through. A queue that is full because the peer does not read (it is stopped)
    is no fault of the network, and shows no unanswered retransmissions.
    """
    for job in jobs_of(fleet):
        lost = [link for link in job.links if _is_lost(link)]
        if lost:
            yield _cut("hang.network", "what {} sent is not acknowledged", lost, job)
        asking = [link for link in job.links if link.connection.state == "SYN_SENT" and link.connection.timeouts]
        if asking:
            yield _cut("hang.network.connecting", "nobody answers {} that connects", asking, job)


def _cut(id: str, title: str, links: Sequence[Link], job: RunningJob) -> Finding:
    """Connections on which nothing gets through, and the host that all of them share, if one does."""
    guilty = _common_host(links, job)
    pairs = sorted({(link.rank.host, _peer_name(link)) for link in links})
    ends = sorted({host for pair in pairs for host in pair})
    senders = list({link.rank.number: link.rank for link in links}.values())
    return finding(
        id,
        Severity.FAIL,
        title.format(_ranks(senders)) + f": {few([f'{source} -> {peer}' for source, peer in pairs])}",
        [*(_quoted(link) for link in links[: QUOTED + 1]), *_silence(job)],
        confidence=0.95 if guilty and len(pairs) > 1 else 0.85,
        hosts=(guilty,) if guilty else tuple(host for host in ends if host in job.hosts),
        places=[Place(host=source, peer=peer) for source, peer in pairs],
        fixes=(
            Fix(
                "does new traffic pass?",
                f"nccl-doctor check -H {','.join(ends)} --stage connectivity,ports --quick",
            ),
            Fix("see what drops it", "sudo nft list ruleset | grep -E 'drop|reject'", guilty),
        ),
        explains=(WAITING, "hang.behind"),
    )


def _is_lost(link: Link) -> bool:
    """Bytes in the send queue at both readings, and retransmissions that nothing has answered."""
    connection = link.connection
    stays = connection.before_unsent_bytes is None or connection.before_unsent_bytes > 0
    return bool(connection.state == "ESTABLISHED" and connection.unsent_bytes and stays and connection.timeouts)


def _peer_name(link: Link) -> str:
    return link.peer.host if link.peer else link.connection.peer.rpartition(":")[0]


def _common_host(links: Sequence[Link], job: RunningJob) -> str:
    """The one host at an end of every such connection; where two are at all, the one whose peers are several."""
    ends = [{link.rank.host, _peer_name(link)} for link in links]
    common = set.intersection(*ends)
    if len(common) > 1:  # one pair: who of the two talks to a third host without trouble is not to blame
        fine = {host for link in job.data_links if not _is_lost(link) and link.connection.moved_bytes
                for host in (link.rank.host, _peer_name(link))}  # fmt: skip
        common -= fine
    return next(iter(common)) if len(common) == 1 else ""


def _quoted(link: Link) -> Evidence:
    connection = link.connection
    words = [f"{connection.local} -> {connection.peer} {connection.state}"]
    if connection.unsent_bytes:
        words.append(f"{size(connection.unsent_bytes)} not acknowledged")
    if connection.timeouts:
        words.append(f"{connection.timeouts} retransmissions unanswered")
    if connection.unread_bytes:
        words.append(f"{size(connection.unread_bytes)} not read")
    if connection.received_ago_ms is not None and connection.received_bytes:
        words.append(f"last heard {duration(connection.received_ago_ms / 1000)} ago")
    return Evidence(", ".join(words), "tcp_info", host=link.rank.host, rank=link.rank.number)


@fleet_rule("job", "hang.rank-gone.peer-closed")
def peer_closed(fleet: Fleet) -> Iterator[Finding]:
    """No rank holds a connection that the other end has closed (``CLOSE_WAIT``): that end has died or given up."""
    for job in jobs_of(fleet):
        closed = [link for link in job.links if link.connection.state == "CLOSE_WAIT" and not link.store]
        if closed and not job.moved_bytes:
            peers = sorted({_peer_name(link) for link in closed})
            yield finding(
                "hang.rank-gone.peer-closed",
                Severity.WARN,
                f"the other end has closed connections of {_ranks([link.rank for link in closed])}: {few(peers)}",
                [_quoted(link) for link in closed[:QUOTED]],
                confidence=0.6,
                hosts=tuple(sorted({link.rank.host for link in closed})),
                places=[Place(host=link.rank.host, rank=link.rank.number, peer=_peer_name(link)) for link in closed[:QUOTED]],
                fixes=(Fix("read the log of the rank at that end: it ended, or closed its process group"),),
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
                    f"{_ranks(ranks)} {verb} {'in ' if doing.name else ''}{what}{place}",
                    [*map(_place_of, ranks[:QUOTED]),
                     *_silence(job)],
                    places=_places(ranks),
                    fixes=(
                        Fix("look again in a minute: a rank that is late will have come"),
                        Fix("are hosts and network sound?", f"nccl-doctor check -H {','.join(job.hosts)} --quick"),
                    ),
                )  # fmt: skip
        fleet.lack(f"whether job {job.id} takes its steps", "nothing outside of the program shows it", *job.hosts)


@fleet_rule("job")
def stacks(fleet: Fleet) -> Iterator[Finding]:
    """The Python stacks of all ranks could be taken, and NVML said what their GPUs do."""
    facts = fleet.every(Job)
    with_gpus = {name for name, fact in facts.items() if any("gpu" in process.devices for process in fact.processes)}
    for known in fleet.hosts:
        if known.name in with_gpus and not known.want(GpuFact):
            fleet.lack("what the GPUs do", _why_not(known), known.name)
    for host, fact in facts.items():
        ranks = [process for process in fact.processes if process.role == "rank"]
        if fact.no_stacks:
            fleet.lack("Python stacks", fact.no_stacks, host)
        for process in ranks:
            taken = process.stacks[-1] if process.stacks else None
            if taken and taken.outcome != "ok":
                fleet.lack("Python stacks", f"{taken.outcome}: {taken.detail}", host)
        if fact.refused.count:
            fleet.lack(
                f"{fact.refused.count} Python processes of other users",
                "not-permitted: only root may read their variables",
                host,
            )
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
        facts = [known[host] for host in job.hosts if host in known]
        for proof, of_world in [*_dumps(job, facts), *_ras(job, facts)]:
            if not proof.evidence:
                continue
            places = [_place(job, number) for number in proof.ranks] if of_world else []
            blamed = [job.ranks[number] for number in proof.ranks if of_world and number in job.ranks]
            sure = bool(proof.cause) or proof.confidence >= 0.6
            looking = [_look(rank) for rank in blamed[:QUOTED]]
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


def _dumps(job: RunningJob, facts: Sequence[Job]) -> Told:
    """What the dumps of this job's ranks prove; that some have none proves nothing here."""
    pids = {rank.process.pid for rank in job.ranks.values()}
    files = [
        (dump.path, zlib.decompress(base64.b64decode(dump.data)))
        for fact in facts
        for dump in fact.dumps
        if dump.pid in pids
    ]
    dumps, _ = flight_recorder.collect(files)
    found = flight_recorder.compare(dumps) if len(dumps) > 1 else []
    return [(item, True) for item in found if item.kind is not flight_recorder.Kind.NO_DUMP]


def _ras(job: RunningJob, facts: Sequence[Job]) -> Told:
    """What two answers of one RAS service prove together: counts that rise are a job that works."""
    reports = ras_reports(facts)
    counts = reports[-1].counts if reports else {}
    whole = {name for name, functions in counts.items() if any(len(own) == job.world for own in functions.values())}
    return [(item, item.communicator in whole) for item in ras.conclude(reports)]


@fleet_rule("job", "sys.host-oom.swapping", "sys.host-oom.killed-now")
def memory(fleet: Fleet) -> Iterator[Finding]:
    """No host of a job swaps, and the kernel killed nothing for want of memory between the looks."""
    jobs = jobs_of(fleet)
    for host, fact in fleet.every(Job).items():
        if not any(host in job.hosts for job in jobs) or len(fact.memory) < 2:
            continue
        before, after = fact.memory[0], fact.memory[-1]
        grown = {name: after.get(name, 0) - before.get(name, 0) for name in before}
        swapped = grown.get("pswpin", 0) + grown.get("pswpout", 0)
        where = f"{size(fact.total_memory.get('MemAvailable', 0))} of memory available"
        if grown.get("oom_kill"):
            yield finding(
                "sys.host-oom.killed-now",
                Severity.FAIL,
                f"the kernel killed {grown['oom_kill']} processes for want of memory in these {fact.interval_s:.0f} s",
                Evidence(f"oom_kill {before['oom_kill']} -> {after['oom_kill']}, {where}", "/proc/vmstat", host=host),
                hosts=(host,),
                fixes=(Fix("see which", "sudo dmesg -T | grep -i 'killed process'", host),),
                explains=(WAITING, "hang.rank-gone"),
            )
        elif swapped > SWAPPED_PAGES:
            pressure = fact.pressure.get("memory", "")
            yield finding(
                "sys.host-oom.swapping",
                Severity.WARN,
                f"the host swaps: {swapped} pages in {fact.interval_s:.0f} s",
                Evidence(f"pswpin, pswpout +{swapped} pages, {where}; {pressure}", "/proc/vmstat", host=host),
                hosts=(host,),
                fixes=(Fix("see who has the memory", "ps -eo pid,user,rss,comm --sort=-rss | head", host),),
            )


@fleet_rule("job", "gpu.driver.xid.during-job", "sys.host-oom.killed")
def kernel_log(fleet: Fleet) -> Iterator[Finding]:
    """Since the job started, the kernels have logged no GPU error (Xid) and killed nothing for want of memory."""
    fleet.every(KernelLogFact)
    for job in jobs_of(fleet):
        for host in fleet.hosts:
            for id, words, what in (
                ("gpu.driver.xid.during-job", ("Xid",), "GPU errors"),
                ("sys.host-oom.killed", _KILLED, "processes killed for want of memory"),
            ):
                lines = _logged(host, job, words)
                if lines:
                    yield finding(
                        id,
                        Severity.WARN,
                        f"since the job started the kernel has logged {what} ({len(lines)} lines)",
                        lines[-QUOTED:],
                        hosts=(host.name,),
                        fixes=(Fix("judge them", f"nccl-doctor check -H {host.name} --stage gpu,system"),),
                    )


def _why_not(host: Host) -> str:
    try:
        host.need(GpuFact)
    except MissingFact as gap:
        return gap.why
    return ""
