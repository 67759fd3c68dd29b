"""How findings about a running job name its ranks, and quote what was read of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from nccl_doctor.facts.fold import numbered
from nccl_doctor.facts.job import Process
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.findings.model import Evidence, Fix, Place
from nccl_doctor.rules.doing import frames_of
from nccl_doctor.rules.engine import Host
from nccl_doctor.rules.ranks import Link, Rank, RunningJob
from nccl_doctor.rules.units import duration, size

WAITING = "hang.waiting"
QUOTED = 3
EARLY_S = 30.0  # hosts do not start in one moment: who is younger than this may only be early
ANSWERED_BY = {"send": "recv", "recv": "send"}
_TOWARDS = {"send": "to", "recv": "from", "broadcast": "from", "scatter": "from", "reduce": "to", "gather": "to"}
STACK = "py-spy dump --nonblocking --pid"
LAST_WORDS = Fix("its last words: that rank's log", "nccl-doctor explain logs/")


def who_is(pid: int, host: str) -> Fix:
    """How to see who the process is that holds another."""
    return Fix("see who holds it", f"ps -o pid,user,lstart,args -p {pid}", host)


def ranks_of(ranks: Sequence[Rank]) -> str:
    """``rank 3``, ``ranks 0-2,7``."""
    return numbered("rank", [rank.number for rank in ranks])


def places(ranks: Iterable[Rank]) -> list[Place]:
    """Where these ranks are, for a finding."""
    return [Place(host=rank.host, rank=rank.number) for rank in ranks]


def others(job: RunningJob, *ranks: Rank) -> str:
    """Who is held by these ranks."""
    own = {rank.number for rank in ranks}
    held = Counter(rank.now.name or rank.now.user or rank.now.frame for rank in job.waiting if rank.number not in own)
    if not held:
        return ""
    name, count = held.most_common(1)[0]
    total = sum(held.values())
    rest = f", and {total - count} in other calls" if total > count else ""
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


def proof_of(rank: Rank, process: Process | None = None) -> list[Evidence]:
    """What was read of a rank (or of one of its children): its state, then its stack."""
    process = process or rank.process
    proof = [rank.evidence(state_of(process), f"/proc/{process.pid}")]
    if frames := frames_of(process):
        told = " < ".join(map(str, frames[:4])) + (" < ..." if len(frames) > 4 else "")
        proof.append(rank.evidence(told, "py-spy dump"))
    if rank.gpus and process is rank.process:
        proof.append(rank.evidence("; ".join(map(str, rank.gpus)), "NVML"))
    return proof


def silence(job: RunningJob) -> list[Evidence]:
    """What the connections between the ranks say of how long nothing has moved."""
    if job.silent_s is None or job.silent_s < job.interval_s:
        return []
    text = f"no byte moved on {len(job.data_links)} connections between ranks for {duration(job.silent_s)}"
    return [Evidence(text, "tcp_info", host=job.data_links[0].rank.host)]


def look(rank: Rank, process: Process | None = None) -> Fix:
    """The command that shows where a rank, or one of its children, stands: anew, where the answer quotes its stack."""
    process = process or rank.process
    text = "see its whole stack, as it is now" if frames_of(process) else "see where it stands"
    return Fix(text, f"sudo {STACK} {process.pid}", rank.host)


def called(rank: Rank) -> str:
    """The name of the call that a rank waits in, with the rank that it names; empty where it is none that is known."""
    name = "backward" if rank.now.kind == "backward" else rank.now.name
    return f"{name} {_TOWARDS[name]} {rank.peer}" if name in _TOWARDS and rank.peer is not None else name


def where(rank: Rank, line: str = "") -> str:
    """``in barrier at train (train.py:37)``; ``line`` of its stack, or else the innermost of the user's own code."""
    name, at = called(rank), line or rank.now.user or rank.now.frame
    return f"in {name} at {at}" if name else f"at {at}"


def place_of(rank: Rank) -> Evidence:
    """Where a rank is, and how that is known."""
    source = f"/proc/{rank.process.pid}" if rank.now.kind in ("asleep", "running") else "py-spy dump"
    user = f" < {rank.now.user}" if rank.now.user not in ("", rank.now.frame) else ""
    gpus = f" [{'; '.join(map(str, rank.gpus))}]" if rank.gpus else ""
    return rank.evidence(rank.now.frame + user + gpus, source)


def quoted(link: Link) -> Evidence:
    """What the kernel says of a connection."""
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
    return link.rank.evidence(", ".join(words), "tcp_info")


def logged(host: Host, since_s: float, pattern: re.Pattern[str]) -> list[tuple[re.Match[str], Evidence]]:
    """The lines of the host's kernel log in which this is found, written since that second after the boot."""
    log = host.want(KernelLogFact)
    found = []
    for line in log.lines if log else ():
        match = pattern.search(line.text)
        if log and match and (line.at_s or 0.0) >= since_s:
            ago = "" if log.uptime_s is None or line.at_s is None else f", {duration(log.uptime_s - line.at_s)} ago"
            found.append((match, Evidence(line.text, log.source + ago, host=host.name)))
    return found


def started_s(host: Host, job: RunningJob) -> float:
    """The second after the host's boot at which the job's first rank there was started; infinite where that is not known."""
    log = host.want(KernelLogFact)
    ages = [rank.process.age_s for rank in job.ranks.values() if rank.host == host.name]
    return log.uptime_s - max(ages) if log and log.uptime_s is not None and ages else float("inf")
