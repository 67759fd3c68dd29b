"""How processes ended where they do not say why: exit codes, signals, crashes; images without which none began."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.words import NO_DATA, gave_up, last_words
from nccl_doctor.explain.lines import came_after, ending, just_below, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.processes import failure_table, of_same_process
from nccl_doctor.explain.readers import prefix


@diagnosis
def no_image(case: Case) -> Iterable[Candidate]:
    """Nothing of the job runs before its container's image is there; its peers, if any were started, wait for it.

    Where a job speaks in the same logs, the image that cannot be pulled may be another pod's. That the registry does not have
    the image, or does not give it out, needs no further look.
    """
    absent, hits = case.hits("image-not-there"), case.hits("image-not-there", "image-not-pulled")
    others = not absent and (case.has("progress") or bool(case.exceptions.ordinary))
    if absent:
        title = "the registry does not have this image, or does not give it to this job"
    else:
        title = "the container's image cannot be pulled: its name, its tag, the access to its registry, or the network to it"
    if hits:
        strength, final = 0.84 if absent else 0.4 if others else 0.8, bool(absent) or not (others or case.distributed)
        yield Candidate("unrelated", strength, title, [*absent, *hits], *speakers(hits), final=final)


# The innermost frames of every crash: the handler, and what raised the signal.
_PLUMBING = re.compile(r"^(?:libc|libpthread|libucs|ld-|libopen-pal|libstdc\+\+|libgcc_s|linux-vdso)\b")
# What programs are built upon, by its directory or its name: that it crashed tells nothing of whose fault it is.
_FOUNDATION = re.compile(
    r"^/(?:usr/)?lib(?:32|64)?/|"
    r"(?:nccl|rccl|hccl|cuda|cudnn|cublas|libnv|libhip|libhsa|ascend|ibverbs|mlx|libuc[a-z]\b|fabric|efa|psm|mpi|mca_|open-rte|pmix|"
    r"hcoll|sharp|torch|c10|tensorflow|jax|python|omp|mkl|blas|arrow|alloc)[^/]*$",
    re.IGNORECASE,
)
_NATIVE_FRAME = re.compile(r"(?:\[ ?\d+\]|\b\d{1,3}) +(\.{0,2}/[^\s(\[]+)(?:\([^)]*\))? ?\[0x")


@diagnosis
def crash_in_own_code(case: Case) -> Iterable[Candidate]:
    """The innermost frame of a crash that is neither the system's nor of a library that such programs are built upon is the
    program's own. Memory that something else had corrupted is rare, and looks the same."""
    for row in case.hits("crash-stack-rows"):
        frame = _NATIVE_FRAME.search(row.text)
        path = frame.group(1) if frame else ""
        name = path.rpartition("/")[2]
        if not name or _PLUMBING.match(name):
            continue
        if not _FOUNDATION.search(path):
            title = f"a process crashed in {name}, the program's own code"
            yield Candidate("app.rank-exception", 0.56, title, [row, *case.hits("segfault", "crash-handler")[:3]])
        return


_PYTHON_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen ")


@diagnosis
def crash_below_own_line(case: Case) -> Iterable[Candidate]:
    """The innermost Python line of a crash is the program's own: what it called there crashed, an extension, or an operation
    of torch that stands in the program itself."""
    frames = [(hit, found) for hit in case.hits("crash-python-rows") if (found := _PYTHON_FRAME.search(hit.text))]
    for hit, found in frames if case.has("crash-handler") else ():
        path, line, function = found.groups()
        if not _INSTALLED.search(path):
            title = f"native code crashed that {function} had called ({shortened(path, 80)}:{line})"
            yield Candidate("app.rank-exception", 0.56, title, [hit, *case.hits("crash-handler", "segfault")[:3]])
            return


@diagnosis
def own_timer_ran_out(case: Case) -> Iterable[Candidate]:
    """faulthandler's timer (dump_traceback_later) showed where processes stood, and the work did not go on: one that stood in
    a line of the program itself is rather the one that others wait for than one that waits."""
    frames = [(hit, found) for hit in case.hits("stack-timer-rows") if (found := _PYTHON_FRAME.search(hit.text))]
    own = [(hit, found) for hit, found in frames if not _INSTALLED.search(found[1])]
    if frames and case.hang.stacks:
        path, line, function = (own or frames)[0][1].groups()
        title = f"the program's own timer ran out: a process stood in {function} ({shortened(path, 80)}:{line})"
        proof = [hit for hit, _ in own] + [hit for hit, _ in frames] + case.hits("stack-timer")[:1]
        yield from rivals({"app.straggler-timeout": 0.46, "app.collective-mismatch": 0.4}, title, proof)


@diagnosis
def crash_inside_nccl(case: Case) -> Iterable[Candidate]:
    """A segmentation fault whose native stack names NCCL's functions, with no other cause in sight: a bug of this release."""
    frames = case.hits("nccl-frame", "nccl-segfault")
    if frames and case.has("segfault", "crash-handler"):
        title = "a process crashed inside NCCL"
        proof = [*frames, *case.hits("segfault", "crash-handler")[:3]]
        yield Candidate("sw.nccl-bug", 0.78, title, proof, *speakers(frames))


_OF_NCCL = (
    "nccl-version",
    "nccl-init-start",
    "nccl-warn",
    "nccl-error-text",
    "nccl-trail",
    "nccl-frame",
    "watchdog-timeout",
)


@diagnosis
def crash_of_one_rank(case: Case) -> Iterable[Candidate]:
    """One rank of a job that speaks of Gloo and never of NCCL ended by a segmentation fault, once all were connected: native code that
    it calls is likelier at fault than a library that all ranks use alike."""
    crashed = {rank for rank, code in case.exits.items() if code in (-11, 139)}
    over_gloo = case.has("gloo-closed", "gloo-connected") and not case.has(*_OF_NCCL)
    if len(crashed) == 1 and over_gloo and not case.has("crash-stack"):
        title = f"rank {min(crashed)} alone crashed in native code; which, these lines do not say"
        yield Candidate("app.rank-exception", 0.48, title, case.hits("segfault"), crashed)


@diagnosis
def crash_inside_ucx(case: Case) -> Iterable[Candidate]:
    """UCX's crash handler showed a stack, and a function of UCX is in it: mostly it copied as the host's what is memory of a GPU,
    for want of its CUDA or ROCm transports (UCX_TLS without cuda_copy, a build without them), or the program freed a buffer."""
    frames = case.hits("ucx-frame")
    ended_itself = any(re.search(r"_err(?:or)?\b|_failure\b", hit.text) for hit in frames)  # the lines before say why
    if frames and not ended_itself and any("==== backtrace" in hit.text for hit in case.hits("crash-stack")):
        called = re.search(r"\buc[tp]_\w+(?=\(\)|\+0x)", frames[0].text)
        title = f"a process crashed inside UCX{f', in {called.group()}' if called else ''}"
        yield Candidate("net.plugin", 0.56, title, frames[:4], *speakers(frames), page="net.plugin.transport")
        yield Candidate("app.rank-exception", 0.44, title, frames[:1])


_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
_MPI_EXIT = re.compile(r"Exit code: +(\d+)")
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+)")
_RANK = re.compile(r"\b[Rr]ank[ :=]{1,2}(\d+)\b")
_KILLED = frozenset((-15, -9, -7, -2, 130, 135, 137, 143))  # by signals that other diagnoses weigh


@diagnosis
def worker_exit_without_words(case: Case) -> Iterable[Candidate]:
    """A launcher saw a worker end with an exit code, and nothing that worker said is in these logs.

    Code 1 is what Python ends with after an exception. Only a candidate: the worker's own log would decide.
    """
    if case.course.overcome("child-terminated") or case.course.overcome("torchrun-exit"):
        return
    children = [int(hit.groups["code"]) for hit in case.hits("child-terminated") if "code" in hit.groups]
    tasks = [found for hit in case.hits("mpi-abort") for found in _EXIT_CODE.findall(hit.text)]
    aborted = [int(rank) for hit in case.hits("mpi-abort") for rank in _MPI_ABORT.findall(hit.text)]
    first = [int(hit.groups["rank"]) for hit in case.hits("mpi-first-to-exit")]
    ended = [int(found[1]) for hit in case.hits("mpi-first-to-exit-rows") if (found := _MPI_EXIT.search(hit.text))]
    codes = {*case.exit_codes, *children, *map(int, tasks), *ended, *([1] if aborted else [])}
    if case.exceptions.ordinary or codes & {-9, -7, 137, 135} or not codes - _KILLED:
        return
    hits = case.hits("torchrun-exit", "torchrun-exitcode", "child-terminated", "mpi-abort", "signal-end")
    hits += case.hits("mpi-first-to-exit", "mpi-first-to-exit-rows")
    hits += case.hits("torchrun-rank", "torchrun-failed")  # whom the launcher's table names first
    own = codes - _KILLED
    ranks = {*aborted, *first, *(rank for rank, code in case.exits.items() if code in own)}
    ranks |= {int(number) for hit in case.hits("child-terminated") for number in _RANK.findall(hit.text)}
    spoke = {item.hit.rank for item in case.summary.tracebacks if not case.exceptions.is_of_launcher(item)}
    silent = ranks - spoke if None not in spoke else set()
    # An abort is what torch's watchdog does to ranks that waited; a code of its own is the program's, unless NCCL's is told.
    aborts = max(own) < 0 or max(own) == 134
    explained = case.has("nccl-error-text") or (spoke and not silent) or trouble.said_beneath(case, hits)
    strength = 0.3 if aborts or explained else 0.44
    ranks = silent or ranks
    ends = failure_table(case.hits("torchrun-rank", "torchrun-exitcode"))
    hits = [*(hit for rank, hit in ends if rank in ranks), *hits]
    of_launcher = set(map(place, hits))
    own_words, words = ([hit for hit in gave_up(case, of) if place(hit) not in of_launcher] for of in (ranks, None))
    own_words = own_words or [hit for hit in last_words(case, ranks) if NO_DATA.search(hit.text)]
    said = own_words or words
    if said:
        title = f"a rank gave up: {ending(said[-1].text, 110)}"
        yield Candidate("app.rank-exception", 0.6 if own_words else 0.46, title, [*said, *hits], ranks)
        return
    who, code = "a worker", max(own)
    if len(ranks) == 1:
        who, code = f"rank {min(ranks)}", case.exits.get(min(ranks), code)
    title = f"{who} ended with exit code {code}; what it said is not in these logs"
    # Python ends with 2 when its arguments are wrong: the program's own, or a script that is not there; a shell with 126 and
    # 127 where it may not run a command, or finds none.
    other = 0.46 if own <= {2, 126, 127} else 0.25
    yield from rivals({"app.rank-exception": strength, "unrelated": other}, title, hits, ranks)


_OF_WATCHDOGS = ("watchdog-status", "watchdog-down", "dump-signal", "comm-aborted", "nccl-abort", "timeout-frame")
_WRAPPERS = ("ray-wrapper", "worker-failed", "sigabrt-exit", "sigterm-workers", "uncaught-exception", *_OF_WATCHDOGS)


@diagnosis
def only_consequences(case: Case) -> Iterable[Candidate]:
    """All that is left is what follows from a failure elsewhere: an engine, actor or watchdog reports that a worker failed.

    That worker's own log would say why; an exception of the program is the likeliest.
    """
    # A table cut before its exit codes; launchers that tell none.
    signs = _WRAPPERS if case.exit_codes else (*_WRAPPERS, "torchrun-failed", "mpi-abort")
    if case.has(*signs) and not case.exceptions.ordinary and not case.has("nccl-warn", "watchdog-timeout"):
        hits = case.hits(*signs)[:4]
        said = [hit.groups["what"] for hit in case.hits("uncaught-exception") if "what" in hit.groups]
        title = "a worker failed elsewhere; what it said is not in these logs"
        if said:
            title = f"an uncaught C++ exception ended the process: {said[0]}"
        yield Candidate("app.rank-exception", 0.27, title, hits, vague=True)
        if case.has(*_OF_WATCHDOGS):
            title = "a watchdog ended a rank; what it waited for is not in these logs"
            yield Candidate("app.straggler-timeout", 0.28, title, hits, vague=True)


_BY_SIGNAL = {
    -7: ("sys.shm", 0.6, "a bus error: /dev/shm ran full under it, usually"),
    -9: ("sys.host-oom", 0.48, "SIGKILL: the memory limit, usually"),
    -11: ("sw.library-conflict", 0.3, "a segmentation fault"),
}


@diagnosis
def ended_by_signal(case: Case) -> Iterable[Candidate]:
    """A launcher's exit code names the signal that ended a worker: negative, or 128 above it."""
    found: dict[tuple[str, float, str], list[Hit]] = {}  # said of many ranks, it proves no more
    for hit in case.hits("child-terminated", "torchrun-exit"):
        code = int(hit.groups.get("code", 0))
        told = _BY_SIGNAL.get(code if code < 0 else 128 - code)
        on_purpose = code == -9 and of_same_process(hit, case.hits("sends-sigkill"))
        if told and not on_purpose and not case.course.overcome(hit.signature):
            found.setdefault(told, []).append(hit)
    for (cause, strength, phrase), hits in found.items():
        yield Candidate(cause, strength, f"a worker ended by {phrase}", hits, ranks_of(hits))


@diagnosis
def killed_with_memory_full(case: Case) -> Iterable[Candidate]:
    """The program told that the host's memory was nearly full (90 %), and then a process was ended by SIGKILL."""
    full, killed = case.last("host-memory-used"), case.first("sigkill")
    if full is not None and killed is not None and came_after(killed, full):
        title = "SIGKILL when the host's memory was nearly full"
        yield Candidate("sys.host-oom", 0.78, title, [full, killed])


_HUNG = re.compile(
    r"hang|hung|stuck|stall|no (?:output|progress)|idle|unresponsive|time-?out|timed out|heartbeat", re.IGNORECASE
)


@diagnosis
def killed_by_whoever_says_so(case: Case) -> Iterable[Candidate]:
    """Somebody's script tells which process it ends by SIGKILL, and a launcher saw just that one end so: memory was not why. Who ends
    what hangs tells nothing of why it hung."""
    for sender in case.hits("sends-sigkill"):
        ended = of_same_process(sender, case.hits("sigkill"))
        if ended:
            title = f"the process was ended on purpose: {shortened(prefix.parse(sender.text).body.strip(), 120)}"
            strength = 0.4 if _HUNG.search(sender.text) else 0.86
            yield Candidate("launch.killed", strength, title, [sender, *ended], *speakers([sender, *ended]))


_STACK = 12  # lines of a stack, at most, from the error down to the thread's own frame


@diagnosis
def only_the_watchdogs_frames(case: Case) -> Iterable[Candidate]:
    """torch's watchdog ended its process (its frames are in the log), and the line that says why is not: a collective ran
    out of time, ranks called different ones, or a peer was lost. The lines in front, and those of the other ranks, would tell."""
    stores = case.hits("store-closed")  # which the watchdog's thread asks, and whose end it tells with its own stack
    hits = [hit for hit in case.hits("watchdog-frame") if not any(just_below(hit, store, _STACK) for store in stores)]
    strengths = {"app.straggler-timeout": 0.4, "app.collective-mismatch": 0.37, "net.peer-lost": 0.34}
    title = "torch's watchdog ended a rank; why, these lines do not say"
    waited = ranks_of(hits)
    silent = set(range(case.world)) - waited - case.summary.ranks if waited else set()
    yield from rivals(strengths, title, hits[:2], silent if 0 < len(silent) < len(waited) else waited)


@diagnosis
def ended_without_words(case: Case) -> Iterable[Candidate]:
    """A scheduler says that the program ended with an error, and nothing that it said is in these logs."""
    hits = [] if case.exceptions.ordinary or case.course.overcome("ended-with-error") else case.hits("ended-with-error")
    title = "the program ended with an error; what it said is not in these logs"
    yield from rivals({"app.rank-exception": 0.36, "unrelated": 0.25}, title, hits)
