"""What a rank that is elsewhere does there, in words: by its frames, its kernel function, its threads and children."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.job import Process, Thread
from nccl_doctor.findings.model import Evidence, Fix
from nccl_doctor.rules.doing import AT_THE_END, frames_of, main_works, other_threads
from nccl_doctor.rules.job_words import QUOTED, proof_of, who_is
from nccl_doctor.rules.ranks import Rank, RunningJob, computes, cpu_between


class Reason(msgspec.Struct, frozen=True):
    """What it does, the proof beside its own state and stack, and what helps against just this."""

    words: str
    proof: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()


_BY_KIND = {
    "loader": "waits for data",
    "saving": "writes a checkpoint",
    "loading": "loads a file",
    "importing": "still imports modules",
}
# Python's and packages' functions that say what is waited for; the innermost counts. An empty name is any of the file.
_BY_FRAME = {
    ("pdb.py", ""): "stands in a debugger (pdb)",
    ("cmd.py", ""): "stands in a debugger (pdb)",
    ("torch/utils/file_baton.py", "wait"): "waits for the lock file of another process that builds an extension",
    ("filelock/_api.py", "acquire"): "waits for a lock file",
    ("<frozen importlib._bootstrap>", "acquire"): "waits for another thread to import a module",
    ("asyncio/base_events.py", ""): "waits in its event loop",
    ("socket.py", "accept"): "waits for somebody to connect",
    ("socketserver.py", "serve_forever"): "waits for requests",
    ("threading.py", "join"): "waits for a thread to end",
    ("queue.py", "get"): "waits for another thread to fill a queue",
    ("queue.py", "put"): "waits for another thread to empty a queue",
    ("multiprocessing/queues.py", "get"): "waits for another process to fill a queue",
    ("multiprocessing/pool.py", ""): "waits for a child process of its pool",
    ("concurrent/futures/_base.py", "result"): "waits for a thread or child process of its executor",
    **AT_THE_END,
    ("torch/_dynamo/eval_frame.py", ""): "compiles",
    ("torch/_inductor/compile_fx.py", ""): "compiles",
    ("socket.py", ""): "waits for an answer from the network",
    ("ssl.py", ""): "waits for an answer from the network",
    ("http/client.py", ""): "waits for an answer from the network",
}
# A server whose users are silent does so, and its other ranks wait for what it will be asked.
MAY_SERVE = ("waits in its event loop", "waits for somebody to connect", "waits for requests")
_LOCK = "waits for a lock or another thread"
_FIXES = {
    "stands in a debugger (pdb)": "leave it with `continue`; PYTHONBREAKPOINT=0 makes breakpoint() do nothing",
    "waits for the lock file of another process that builds an extension": (
        "nobody builds? a killed build left it: delete `lock` beneath ~/.cache/torch_extensions, or TORCH_EXTENSIONS_DIR"
    ),
    "waits for a lock file": "is its owner dead? then delete the lock file that the frame's object names",
    "has come to its program's end, and waits for a thread": (
        "read this rank's log: an exception there is why it came to its end before the others"
    ),
    _LOCK: "two locks taken in two orders? compare the lines of its threads",
}
# What the main thread sleeps in, in the kernel: the first that is part of the function's name, or of the file that is polled.
_BY_KERNEL = (
    ("nanosleep", "sleeps"),
    ("wait_for_partner", "waits for the other end of a FIFO"),
    ("pipe", "waits for a pipe"),
    ("unix_stream", "waits for another process"),
    ("socket:[", "waits for another process"),
    ("futex", _LOCK),
    ("do_wait", "waits for its child process"),
    ("tty", "waits for input from a terminal"),
)


def reason(rank: Rank, job: RunningJob, worker: Process | None = None) -> Reason:
    """What a rank, or a worker of it, does where it is."""
    process = worker or rank.process
    if computes(process, job.interval_s) and not _sleeps(process, job.interval_s):
        return Reason("compiles" if _by_frame(process) == "compiles" else "computes")
    main = _main(process)
    lock = _file_lock(rank, job, main) if main else None
    if lock:
        return lock
    by_kind = "" if worker else _BY_KIND.get(rank.now.kind, "")
    words = (
        by_kind
        or _answer(main, rank.process.environment.get("MASTER_PORT", ""))
        or _by_frame(process)
        or _by_kernel(main)
    )
    proof: tuple[Evidence, ...] = ()
    if "thread" in words or not main_works(process):
        if stuck := _stuck_thread(process):
            return _in_the_kernel(rank, process, stuck)
        proof = tuple(rank.evidence(text, "py-spy dump") for text in other_threads(process))
    elif "child process" in words:
        children = _last_children(rank)
        proof = tuple(item for child in children[:QUOTED] for item in proof_of(rank, child))
        if any(computes(child, job.interval_s) for child in children):
            words += ", which computes,"
    fix = _FIXES.get(words)
    return Reason(words, proof, (Fix(fix),) if fix else ())


def _sleeps(process: Process, interval_s: float) -> bool:
    """Whether its main thread, which does its work, slept at both looks: what little it computes is another thread's."""
    mains = [reading.main if reading else None for reading in process.readings]
    asleep = main_works(process) and all(main and main.state == "S" for main in mains)
    return asleep and (cpu_between(process) or 0.0) < interval_s / 2


def sleeps_on_a_lock(rank: Rank, job: RunningJob) -> bool:
    """Whether a rank sleeps on a lock that no frame explains: so does who waits for a collective in C++."""
    return reason(rank, job).words == _LOCK


def _main(process: Process) -> Thread | None:
    """Its main thread as the kernel sees it; None where another one does the work."""
    reading = process.readings[-1]
    return reading.main if reading and main_works(process) else None


def _stuck_thread(process: Process) -> Thread | None:
    """A thread beside the main one that both looks found in state D."""
    looks = [reading.others if reading else () for reading in process.readings]
    before = {thread.id for thread in looks[0] if thread.state == "D"}
    return next((thread for thread in looks[-1] if thread.state == "D" and thread.id in before), None)


def _in_the_kernel(rank: Rank, process: Process, thread: Thread) -> Reason:
    place = f"/proc/{process.pid}/task/{thread.id}"
    kind = f" ({thread.file_system})" if thread.file_system else ""
    told = f"{thread.call} {thread.file}{kind}, in {thread.waits_in}".strip(", ")
    kernel = " < ".join(thread.kernel_stack[:4])
    proof = [rank.evidence(f"thread {thread.id} state D, {told}", place)]
    proof += [rank.evidence(kernel, f"{place}/stack")] if kernel else []
    words = f"waits for a thread that is stuck in the kernel, on {thread.file or thread.waits_in}{kind},"
    return Reason(words, tuple(proof), (Fix("what it waits for", f"sudo cat {place}/stack", rank.host),))


def _by_frame(process: Process) -> str:
    for frame in frames_of(process):
        if not frame.installed:
            return ""  # the user's own code called nothing that tells
        words = _BY_FRAME.get((frame.short, frame.function.rpartition(".")[2])) or _BY_FRAME.get((frame.short, ""))
        if words:
            return words
    return ""


def _answer(main: Thread | None, store_port: str) -> str:
    """Who has to answer what it waits for, where its system call tells; ``store_port`` is the port of the job's store."""
    if main is None or main.call not in ("recvfrom", "read", "poll"):
        return ""
    if main.file.startswith("TCP"):
        peer = main.file.rpartition(" ")[2]
        if store_port and peer.rpartition(":")[2] == store_port:
            return f"waits for the job's store ({peer}), perhaps for a key that nobody sets,"
        return f"waits for an answer from {peer}"
    if main.file.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return f"waits for input from {main.file}"
    return ""


def _by_kernel(main: Thread | None) -> str:
    place = "" if main is None else main.file if main.call == "poll" else main.waits_in
    return next((words for part, words in _BY_KERNEL if part in place), "is")


def _file_lock(rank: Rank, job: RunningJob, main: Thread) -> Reason | None:
    """Who has the file lock that it waits for: another rank, one of its own, or a stranger."""
    if main.call not in ("flock", "fcntl") or "lock" not in main.waits_in:
        return None
    if main.holder <= 0:
        return Reason(f"waits for the lock on {main.file}")
    owner = next(
        (other for other in job.ranks.values() if (other.host, other.process.pid) == (rank.host, main.holder)), None
    )
    name = owner.label if owner else f"pid {main.holder} ({main.holder_name or 'gone'})"
    proof = rank.evidence(f"{main.file}: held by {name}", "/proc/locks")
    where = proof_of(owner)[1:2] if owner else []
    fix = who_is(main.holder, rank.host)
    return Reason(f"waits for the lock on {main.file}, which {name} holds,", (proof, *where), (fix,))


def _last_children(rank: Rank) -> list[Process]:
    """The processes it started that have started none themselves: a shell in between only waits for them."""
    parents = {child.parent for child in rank.children}
    return [child for child in rank.children if child.pid not in parents]
