"""When no signature knows an NCCL WARN: which part of NCCL said it, and what its errno or CUDA text usually means."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.diagnoses.words import gave_up
from nccl_doctor.explain.lines import ending, hosts_of, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.processes import failure_table
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.signatures.infiniband import NO_NETWORK
from nccl_doctor.explain.slowdown import slower_steps
from nccl_doctor.facts.fold import ranges

# What only NCCL's own code can have done wrong, whichever file says it.
_OWN_STATE = (
    r"pass NULL|with NULL re|attempting to (?:free|repost|initiate|dequeue)|unrecognized request|unknown desc type"
    r"|Invalid (?:wr_id|request index)|expected a '\w+' request|Unsupported type of|No format specified|base\.ready"
    r"|inside cache of|descriptor is not a|with unexpected NULL|no inflight credit"
)
# Pattern of file name or text -> cause, strength, phrase. First match wins; order from special to general.
_PARTS: tuple[tuple[str, str, float, str], ...] = (
    (_OWN_STATE, "sw.nccl-bug", 0.45, "NCCL's own bookkeeping is inconsistent"),
    (
        r"NET/OFI|nccl_ofi|libfabric|NET/FasTrak|NET/gIB|NET/TCPX|NET/UCX|plugin/net|NET/Plugin|collnet|SHARP",
        "net.plugin",
        0.6,
        "the network plugin reports an error",
    ),
    (r"ibv_reg_mr|reg_mr|dmabuf|peermem", "ib.gdr", 0.55, "memory registration with the adapter fails"),
    (r"\bgid", "ib.gid-index", 0.55, "the GID of a port is in trouble"),
    (r"p2p_resiliency", "ib.port-down", 0.58, "NCCL's InfiniBand code lost a device"),
    (r"net_ib\S* .*(?:CQE|completion|async)", "ib.retry-exceeded", 0.56, "an RDMA request failed"),
    (r"\bgin/|\brma/|\bGIN\b|\bRMA\b", "net.plugin", 0.5, "NCCL's one-sided transport (GIN, RMA) is refused"),
    (r"ibv_|net_ib|NET/IB|ibvwrap|mlx5", "ib.qp-connect", 0.55, "NCCL's InfiniBand code reports an error"),
    (r"shmutils|/dev/shm|shared memory|transport/shm", "sys.shm", 0.58, "shared memory fails"),
    (r"nvls|multicast", "gpu.fabric-manager", 0.56, "NVLink SHARP set-up fails"),
    (r"mnnvl|fabric handle|imex", "gpu.imex", 0.58, "multi-node NVLink fails"),
    (r"transport/p2p|p2p\.cc|ipc", "gpu.p2p", 0.55, "peer-to-peer set-up fails"),
    (r"nvmlwrap|nvml", "gpu.driver", 0.52, "NVML fails"),
    (
        r"XML (?:Parse|Mismatch|Topology|Graph|Import|Export)|XML \w+ file|FORCE_MERGE|fused NIC|graph/tuning",
        "env.bad-nccl-var",
        0.45,
        "NCCL cannot use the topology or tuning that it was given",
    ),
    # What is left of graph/ reads /sys and asks NVML.
    (r"graph/|topo|xml", "sys.container", 0.45, "NCCL cannot make out this machine as /sys shows it here"),
    # NCCL goes on without DMA-BUF and cuMem; before 2.18 it joined the value and "libcuda.so" without a slash.
    (r"NCCL_CUDA_PATH='?/", "env.bad-nccl-var", 0.45, "NCCL_CUDA_PATH does not lead to the driver's libcuda.so"),
    (r"cudawrap|CUDA driver|prior to CUDA", "gpu.driver", 0.56, "the driver lacks what NCCL asks of it"),
    (r"alloc\w* (?:failed|returned null)|alloc\([^)]*\) returned null", "sys.host-oom", 0.5, "NCCL got no host memory"),
    (r"IP family|valid .*pair|address info", "net.hostname-resolution", 0.5, "an address cannot be read or resolved"),
    (r"wrong (?:magic|type)", "sw.nccl-version-mismatch", 0.45, "a process of another job or version connected"),
    (r"socket|bootstrap", "net.firewall", 0.34, "NCCL's sockets fail"),
    (r"[Ii]nternal error|corrupt", "sw.nccl-bug", 0.52, "NCCL finds its own state inconsistent"),
    (r"sched_[gs]etaffinity", "sys.container", 0.55, "the process may not choose its CPUs"),
    (r"argcheck|invalid|group call", "app.pg-misuse", 0.5, "NCCL refuses an argument"),
    (r"proxy\.cc|scheduler/", "sw.nccl-bug", 0.45, "NCCL's own bookkeeping is inconsistent"),
    (
        r"dev_runtime|mem_manager|allocator\.cc|group\.cc|enqueue\.cc|strongstream|register/|init\.cc|ce_coll",
        "app.pg-misuse",
        0.45,
        "NCCL refuses a call",
    ),
)
_SECONDARY = re.compile(
    r"\[Proxy Service|Socket recv failed|\[Service thread\]|HINT:|commReclaim|abort|closed by remote peer",
    re.IGNORECASE,
)


# Facts that a diagnosis of their own weighs.
_JUDGED = frozenset(
    (
        "nvls-unsupported",
        "ib-local-protection",
        "ib-request-refused",
        "ofi-error",
        "topology-description",
        "topology-attribute",
        "symmetric-unsupported",
        "communicator-not-ready",
    )
)


@diagnosis
def unknown_nccl_warning(case: Case) -> Iterable[Candidate]:
    """An NCCL WARN that no signature knows points to the part of NCCL that printed it. Weak: any signature wins."""
    known = {
        place(hit)
        for signature in case.seen(*Role)
        if signature.role is not Role.FACT or signature.name in _JUDGED
        for hit in case.hits(signature.name)
    }
    unknown: list[Hit] = [
        hit for hit in case.hits("nccl-warn") if place(hit) not in known and not _SECONDARY.search(hit.text)
    ]
    for hit in unknown:
        subject = "" if re.search(_OWN_STATE, hit.text, re.IGNORECASE) else topics.subject(hit.groups["message"])
        if subject:
            title = f"NCCL warns: {shortened(hit.groups['message'], 120)}"
            yield Candidate(subject, 0.54, title, [hit], *speakers([hit]), vague=True)
            return
        for pattern, cause, strength, phrase in _PARTS:
            if re.search(pattern, hit.text, re.IGNORECASE):
                same = [item for item in unknown if re.search(pattern, item.text, re.IGNORECASE)]
                title = f"{phrase}: {shortened(hit.groups['message'], 120)}"
                yield Candidate(cause, strength, title, same[:6], *speakers(same), vague=True)
                return


_BUILT_IN = frozenset(("IB", "Socket", "IBext", "IBext_v8"))


@diagnosis
def wanted_plugin_not_loaded(case: Case) -> Iterable[Candidate]:
    """A plugin was named (NCCL_NET_PLUGIN) or found, NCCL could not use it, and the job goes over TCP sockets instead."""
    named = [hit for hit in case.env.get("NCCL_NET_PLUGIN", []) if hit.groups.get("value", "").strip(" .") != "none"]
    unfit = [hit for hit in case.hits("no-net-plugin") if "symbols v" in hit.text]  # a library without fitting symbols
    wanted = [*named, *unfit]
    refused = [
        hit for hit in case.hits("no-net-plugin") if "ncclNetPlugin_v" not in hit.text and "CollNet" not in hit.text
    ]
    if wanted and refused and case.sockets:
        told = named or case.between_hosts or case.has("busbw-average") or complaints(case)
        yield Candidate(
            "net.plugin",
            0.66 if told else 0.4,  # a library may lie there by chance
            "the network plugin was not loaded, and the job goes over TCP sockets",
            [refused[0], wanted[0], case.sockets[0]],
            hosts=hosts_of(case.sockets),
        )


@diagnosis
def ucx_of_another_release(case: Case) -> Iterable[Candidate]:
    """UCX says that its caller was built for a newer release than was loaded, and then UCX, or NIXL upon it, fails.

    Alone the difference is mostly without effect; where a failure follows, it is the first thing to set right.
    """
    hits = case.hits("ucx-of-another-version")
    failed = case.hits("ucx-error", "ucx-device-pointer", "nixl-backend")
    if hits and failed:
        title = "UCX is loaded in an older release than its caller was built for, and then it fails"
        yield Candidate("sw.library-conflict", 0.74, title, [*hits[:2], *failed[:2]], *speakers(hits))


@diagnosis
def no_network_of_that_name(case: Case) -> Iterable[Candidate]:
    """NCCL_NET names no network, and no plugin of that name could be initialised: since 2.27 NCCL does not repeat the name."""
    hits = [hit for hit in case.hits("plugin-missing") if "initialize any NET plugin" in hit.text]
    named = [hit for hit in case.env.get("NCCL_NET", []) if NO_NETWORK.fullmatch(hit.groups["value"].strip(" .'\""))]
    if hits and named:
        title = f"NCCL_NET={case.value('NCCL_NET')} names no network that NCCL has: it has IB, Socket, and what a plugin calls its own"
        yield Candidate("env.bad-nccl-var", 0.93, title, [*hits[:3], *named[:3]], *speakers(named), final=True)


@diagnosis
def trouble_on_a_plugin(case: Case) -> Iterable[Candidate]:
    """The network is an external plugin's, NCCL or the plugin complains, and no signature knows the text."""
    used = [hit for hit in case.hits("network-used") if hit.groups["network"] not in _BUILT_IN]
    wrong = [hit for hit in (topics.trouble(case) if used else ()) if "NCCL INFO" not in hit.text or "rror" in hit.text]
    calm = (case.signatures["progress"], case.signatures["ended-well"])
    wrong = [hit for hit in wrong if all(signature.match(hit.text) is None for signature in calm)]
    if used and wrong and not case.has("ofi-error", "ofi-init", "fabric-domain", "plugin-missing"):
        yield Candidate(
            "net.plugin",
            0.5,
            f"the network plugin {used[0].groups['network']} is in use when it fails: {ending(wrong[0].text, 110)}",
            [*wrong[:8], *used[:2]],
        )


_CUDA_TEXT: tuple[tuple[str, str, float, str], ...] = (
    (
        r"'operation not supported'|\b801\b",
        "sys.container",
        0.55,
        "a CUDA call is not supported here (virtualised GPU, missing device or namespace)",
    ),
    (
        r"'operation not permitted'|\b800\b",
        "gpu.imex",
        0.75,
        "a CUDA call is not permitted (IMEX channel, or container)",
    ),
    (r"'invalid argument'", "sw.nccl-bug", 0.52, "NCCL passed CUDA an invalid argument"),
    (
        r"'invalid device function'|'named symbol not found'|'invalid kernel image'",
        "gpu.driver",
        0.75,
        "the build has no code for this GPU",
    ),
    (
        r"API call is not supported in the installed",
        "gpu.driver",
        0.72,
        "the driver is older than this NCCL's CUDA calls",
    ),
    (r"'initialization error'|'driver shutting down'", "gpu.driver", 0.6, "CUDA could not initialise"),
    (
        r"'OS call failed|\b304\b",
        "sys.container",
        0.56,
        "the operating system refused what CUDA needs to share memory (namespaces, capabilities, memory limits)",
    ),
    (r"'launch timed out|'the launch timed out", "gpu.illegal-access", 0.7, "a kernel ran into the launch time-out"),
    (r"busy or unavailable", "gpu.not-visible", 0.62, "the GPU is busy (exclusive mode) or unavailable"),
)


@diagnosis
def cuda_error_text(case: Case) -> Iterable[Candidate]:
    """What CUDA's error number or text inside an NCCL warning usually means."""
    for hit in case.hits("cumem-refused", "cuda-call"):
        for pattern, cause, strength, phrase in _CUDA_TEXT:
            if re.search(pattern, hit.text):
                yield Candidate(cause, strength, phrase, [hit], *speakers([hit]))
                return


_CODES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "unhandled cuda error|ncclUnhandledCudaError",
        "a CUDA call inside NCCL failed",
        ("gpu.driver", "gpu.oom", "gpu.illegal-access", "gpu.p2p"),
    ),
    (
        "unhandled system error|ncclSystemError",
        "a system call inside NCCL failed",
        ("net.wrong-interface", "sys.shm", "ib.qp-connect"),
    ),
    (
        "remote process exited|ncclRemoteError",
        "a peer or the network to it went away",
        ("net.peer-lost", "ib.retry-exceeded"),
    ),
    (
        "invalid argument|ncclInvalidArgument",
        "NCCL refused an argument of a call: a buffer on another GPU than its communicator's, or a root or type that does not exist",
        ("app.bad-tensor", "app.pg-misuse"),
    ),
    (
        r"Proxy Call to rank \d+ failed \(Connect\)",
        "NCCL's proxy could not connect to a peer",
        ("net.wrong-interface", "net.firewall", "ib.qp-connect"),
    ),
)
# ncclResult_t on its way up -> what it means and what it points to
_TRAIL_CODES = {"1": _CODES[0][1:], "2": _CODES[1][1:], "4": _CODES[3][1:], "6": _CODES[2][1:]}


_THREAD = re.compile(r"\S+:\d+:\d+ \[\d+\]")


def _thread(hit: Hit) -> str:
    """The thread that NCCL names before a message, or nothing."""
    found = _THREAD.search(hit.text)
    return f"{hit.file} {found[0]}" if found else ""


def _went_on_to(other: Hit | None, hit: Hit) -> bool:
    """Whether the same thread went on after this line: what it told there ended nothing (a network plugin without PCI paths)."""
    return other is not None and bool(_thread(hit)) and other.line > hit.line


@diagnosis
def only_the_code(case: Case) -> Iterable[Candidate]:
    """NCCL's result code is all that is left: it names a family of causes, and NCCL's own lines would tell which."""
    warned = case.hits("nccl-warn")
    told = [hit for hit in warned if not _SECONDARY.search(hit.text)]
    if case.summary.proofs or (told and not all("Proxy Call to rank" in hit.text for hit in warned)):
        return
    went_on = {
        _thread(hit): hit for hit in case.hits("channel-net", "channel-p2p", "channel-shm", "nccl-init-complete")
    }
    lasting = (hit for hit in case.hits("nccl-trail") if not _went_on_to(went_on.get(_thread(hit)), hit))
    for hit in itertools.islice(lasting, 1):
        phrase, causes = _TRAIL_CODES.get(hit.groups["code"], ("", ()))
        for at, cause in enumerate(causes):
            yield Candidate(cause, 0.3 - 0.02 * at, phrase, [hit], ranks_of([hit]))
        for pattern, cause, _, _ in _PARTS:
            if re.search(pattern, hit.groups["place"]):
                title = f"an error came out of {hit.groups['place'].split(':')[0]}; the warning before it is not in these logs"
                yield Candidate(cause, 0.34, title, [hit], ranks_of([hit]))
                break
    hits = case.hits("proxy-failed", "nccl-error-text")
    for hit in hits:
        for text, phrase, causes in _CODES:
            if re.search(text, hit.text):
                for nth, cause in enumerate(causes):
                    yield Candidate(cause, 0.38 - 0.02 * nth, phrase, [hit, *hits])
                return


@diagnosis
def image_not_pulled(case: Case) -> Iterable[Candidate]:
    """Nothing of the job runs before its container's image is there; its peers, if any were started, wait for it.

    Where a job speaks in the same logs, the image may be another pod's.
    """
    hits = case.hits("image-not-pulled")
    if hits:
        others = case.has("progress") or bool(case.exceptions.ordinary)
        title = "the container's image cannot be pulled: its name, its tag, the access to its registry, or the network to it"
        yield Candidate(
            "unrelated", 0.4 if others else 0.8, title, hits, *speakers(hits), final=not (others or case.distributed)
        )


@diagnosis
def wrong_values_over_p2p(case: Case) -> Iterable[Candidate]:
    """nccl-tests found wrong values, and all data went from GPU to GPU of one machine: peer-to-peer delivers wrong bytes."""
    wrong = case.hits("nccl-corruption")
    direct = case.hits("channel-p2p")
    if wrong and direct and not case.has("channel-net"):
        title = "data that is copied directly between GPUs arrives wrong"
        yield Candidate("gpu.p2p", 0.72, title, [*wrong[:2], *direct[:2]])


@diagnosis
def image_not_there(case: Case) -> Iterable[Candidate]:
    """The registry does not have the image that the job names, or does not give it out: nothing of the job ever ran.

    That a registry cannot be reached is another matter.
    """
    hits = case.hits("image-not-there")
    if hits:
        title = "the registry does not have this image, or does not give it to this job"
        yield Candidate("unrelated", 0.84, title, hits, *speakers(hits), final=True)


@diagnosis
def no_peer_access(case: Case) -> Iterable[Candidate]:
    """GPUs of one machine have no access to each other's memory, and somebody says that it is slow."""
    without, complaint = case.hits("p2p-not-enabled"), complaints(case)
    if without and complaint and not case.has("channel-net"):
        title = "GPUs have no peer-to-peer access: their data goes through host memory"
        yield Candidate("gpu.p2p", 0.62, title, [*without[:3], *complaint[:2]])


# The innermost frames of every crash: the handler, and what raised the signal.
_PLUMBING = re.compile(r"^(?:libc|libpthread|libucs|ld-|libopen-pal|libstdc\+\+|libgcc_s|linux-vdso)\b")
# What programs are built upon, by its directory or its name: that it crashed tells nothing of whose fault it is.
_FOUNDATION = re.compile(
    r"^/(?:usr/)?lib(?:32|64)?/|"
    r"(?:nccl|rccl|hccl|cuda|cudnn|cublas|libnv|libhip|libhsa|ascend|ibverbs|mlx|libuc[a-z]\b|fabric|efa|psm|mpi|open-rte|pmix|"
    r"hcoll|sharp|torch|c10|tensorflow|jax|python|omp|mkl|blas|arrow|alloc)[^/]*$",
    re.IGNORECASE,
)
_NATIVE_FRAME = re.compile(r"(?:\[ ?\d+\]|\b\d{1,3}) +(/[^\s(]+)\([^)]*\) ?\[0x")


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


@diagnosis
def crash_inside_nccl(case: Case) -> Iterable[Candidate]:
    """A segmentation fault whose native stack names NCCL's functions, with no other cause in sight: a bug of this release."""
    frames = case.hits("nccl-frame", "nccl-segfault")
    if frames and case.has("segfault", "crash-handler"):
        yield Candidate(
            "sw.nccl-bug",
            0.78,
            "a process crashed inside NCCL",
            [*frames, *case.hits("segfault", "crash-handler")[:3]],
            *speakers(frames),
        )


@diagnosis
def connect_never_succeeds(case: Case) -> Iterable[Candidate]:
    """Connection retries that go on until the end, without any communicator completed: unreachable, not merely late."""
    retries = case.hits("connect-retry")
    if not retries or case.has("nccl-init-complete", "channel-net", "progress"):
        return
    timed_out = [hit for hit in retries if "timed out" in hit.text or "No route" in hit.text]
    if timed_out:
        yield Candidate(
            "net.firewall",
            0.58,
            "connections to peers time out again and again: dropped by a firewall, or the wrong interface",
            timed_out[:6],
            *speakers(timed_out),
        )
    elif case.count("connect-retry") > 8:
        yield Candidate(
            "net.peer-lost",
            0.45,
            "a peer refuses connections again and again: it is gone or listens on another address",
            retries[:6],
        )
        yield Candidate(
            "net.wrong-interface", 0.4, "a peer advertises an address where it does not listen", retries[:4]
        )


_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
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
    codes = {*case.exit_codes, *children, *map(int, tasks), *([1] if aborted else [])}
    if case.exceptions.ordinary or codes & {-9, -7, 137, 135} or not codes - _KILLED:
        return
    hits = case.hits("torchrun-exit", "torchrun-exitcode", "child-terminated", "mpi-abort", "signal-end")
    hits += case.hits("torchrun-rank", "torchrun-failed")  # whom the launcher's table names first
    own = codes - _KILLED
    ranks = {*aborted, *(rank for rank, code in case.exits.items() if code in own)}
    ranks |= {int(number) for hit in case.hits("child-terminated") for number in _RANK.findall(hit.text)}
    spoke = {item.hit.rank for item in case.summary.tracebacks if not case.exceptions.is_of_launcher(item)}
    silent = ranks - spoke if None not in spoke else set()
    # An abort is what torch's watchdog does to ranks that waited; a code of its own is the program's, unless NCCL's is told.
    aborts = max(own) < 0 or max(own) == 134
    explained = case.has("nccl-error-text") or (spoke and not silent) or topics.said_beneath(case, hits)
    strength = 0.3 if aborts or explained else 0.44
    ranks = silent or ranks
    ends = failure_table(case.hits("torchrun-rank", "torchrun-exitcode"))
    hits = [*(hit for rank, hit in ends if rank in ranks), *hits]
    of_launcher = set(map(place, hits))
    own_words, words = ([hit for hit in gave_up(case, of) if place(hit) not in of_launcher] for of in (ranks, None))
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
    yield Candidate("app.rank-exception", strength, title, hits, ranks)
    yield Candidate("unrelated", other, title, hits, ranks)


_OF_WATCHDOGS = ("watchdog-status", "watchdog-down", "dump-signal", "comm-aborted", "nccl-abort", "timeout-frame")
_WRAPPERS = ("ray-wrapper", "worker-failed", "sigabrt-exit", "sigterm-workers", "uncaught-exception", *_OF_WATCHDOGS)


@diagnosis
def only_consequences(case: Case) -> Iterable[Candidate]:
    """All that is left is what follows from a failure elsewhere: an engine, actor or watchdog reports that a worker failed.

    That worker's own log would say why; an exception of the program is the likeliest.
    """
    signs = _WRAPPERS if case.exit_codes else (*_WRAPPERS, "torchrun-failed")  # a table cut before its exit codes
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


@diagnosis
def experts_wait(case: Case) -> Iterable[Candidate]:
    """DeepEP's ranks wait for each other's tokens: a rank is late (compilation) or dead, or RDMA between hosts (NVSHMEM,
    IBGDA) delivers nothing. The logs of the rank that does not speak, and NVSHMEM_DEBUG=INFO, would tell."""
    hits = case.hits("deepep-timeout")
    between = any("RDMA" in hit.text for hit in hits)
    causes = ("app.straggler-timeout", "app.rank-exception", *(("ib.qp-connect", "ib.gdr") if between else ()))
    for at, cause in enumerate(causes if hits else ()):
        yield Candidate(cause, 0.4 - 0.02 * at, "DeepEP's ranks wait for each other in vain", hits, ranks_of(hits))


@diagnosis
def signals_wait(case: Case) -> Iterable[Candidate]:
    """Ranks wait in a kernel of torch's symmetric memory for a signal of a peer. Who is waited for and does not wait itself
    is late, dead, or in another call; its own log would tell which."""
    hits = case.hits("symmetric-signal-timeout")
    waiting = {int(hit.groups["waiting"]) for hit in hits}
    late = {int(hit.groups["peer"]) for hit in hits} - waiting
    who = f"rank {ranges(sorted(late))} sends none" if late else "they wait for each other"
    for at, cause in enumerate(
        ("app.straggler-timeout", "app.rank-exception", "app.collective-mismatch") if hits else ()
    ):
        yield Candidate(cause, 0.42 - 0.02 * at, f"ranks wait for a signal in symmetric memory, and {who}", hits, late)


@diagnosis
def engine_waits(case: Case) -> Iterable[Candidate]:
    """A serving engine's workers stop answering: one is slow or dead, or they hang in a collective or a kernel.

    Neither the engine's watchdog nor its reports of requests without tokens tell which. The workers' stacks, NCCL's own
    lines and the kernel's log would.
    """
    told = [] if case.course.overcome("serving-watchdog") else case.hits("serving-watchdog")
    hits = told or case.hang.idle_engine
    causes = ("app.straggler-timeout", "app.collective-mismatch", "sw.nccl-bug", "gpu.fell-off-bus")
    if told:
        title = "workers of the serving engine do not answer, and do not say why"
    else:
        title = "the serving engine has requests and writes nothing: a worker is slow or hangs"
    for at, cause in enumerate(causes if hits else ()):
        yield Candidate(cause, 0.34 - 0.02 * at, title, hits, ranks_of(hits))


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
        if told and not case.course.overcome(hit.signature):
            found.setdefault(told, []).append(hit)
    for (cause, strength, phrase), hits in found.items():
        yield Candidate(cause, strength, f"a worker ended by {phrase}", hits, ranks_of(hits))


@diagnosis
def killed_with_memory_full(case: Case) -> Iterable[Candidate]:
    """The program told that the host's memory was nearly full (90 %), and then a process was ended by SIGKILL."""
    full, killed = case.last("host-memory-used"), case.first("sigkill")
    if full is not None and killed is not None and case.after(killed, full):
        title = "SIGKILL when the host's memory was nearly full"
        yield Candidate("sys.host-oom", 0.78, title, [full, killed])


_WAITS = re.compile(
    r"\b(?:hang(?:s|ing)?|hung|stuck|stalled)\b|\bno (?:step|progress|update)s? for\b|\bwait(?:s|ing|ed)?\b.{0,60}\b(?:barrier|collective|all_?reduce|ranks?|peers?|workers|sync)\b",
    re.IGNORECASE,
)


@diagnosis
def last_line_waits(case: Case) -> Iterable[Candidate]:
    """The log ends while the program says that it waits for other ranks: who does not come, only their logs can say."""
    calm = {place(hit) for harmless in case.seen(Role.HARMLESS) for hit in case.lasts(harmless.name)}
    last = [hits[-1] for hits in case.summary.tails.values() if hits]
    ends = [hit for hit in last if _WAITS.search(hit.text) and place(hit) not in calm]
    if ends and not case.course.recovered:
        for nth, cause in enumerate(("app.straggler-timeout", "app.collective-mismatch", "app.rank-exception")):
            title = f"the log ends while a rank waits for others: {ending(ends[0].text, 110)}"
            yield Candidate(cause, 0.3 - 0.02 * nth, title, ends, ranks_of(ends))


_NO_PART_KNOWN = ("gpu.thermal-power", "net.slow", "app.straggler-timeout")
# What may have slowed down, by the part of a step that grew; the first that fits.
_BY_PART = (
    (r"data|load|input|h2d", ("app.straggler-timeout", "sys.clock-or-dns-or-fs", "app.dataloader-worker")),
    (r"fwd|forward", _NO_PART_KNOWN),
    (r"", ("net.slow", "gpu.thermal-power", "gpu.nvlink", "ib.retry-exceeded")),  # communication, or what hides it
)


@diagnosis
def steps_slowed_down(case: Case) -> Iterable[Candidate]:
    """The steps take far longer at the end of the log than at its beginning, and nothing says why: a GPU, a link or a
    file may have slowed. Clocks, link counters and the times of each rank would tell."""
    if shifted := case.hits(PACE_LEFT):
        yield from _left_its_pace(shifted)
        return
    hits = slower_steps(case)
    for nth, cause in enumerate(_NO_PART_KNOWN if hits else ()):
        title = f"the steps have slowed down for good: {shortened(hits[-1].text, 110)}"
        yield Candidate(cause, 0.34 - 0.02 * nth, title, hits, ranks_of(hits))


# "[13]", or "{StragglerId(rank=13, node='gpu02'), ...}"
_STRAGGLERS = re.compile(r"(?:rank=|[\[ ])(\d+)(?=[,\]])")


@diagnosis
def gpus_told_slow(case: Case) -> Iterable[Candidate]:
    """The straggler detection of NVIDIA's resiliency extension names ranks whose kernels take longer. It times the GPU's own
    work, without the waiting for others; heat, power, memory errors or a second process there are what it does not tell."""
    hits = case.hits("straggler-report")
    ranks = {int(rank) for hit in hits for rank in _STRAGGLERS.findall(hit.groups["ranks"])}
    title = f"GPU work takes longer on rank {ranges(sorted(ranks))} than on others, or than before"
    for nth, cause in enumerate(("gpu.thermal-power", "gpu.ecc", "app.straggler-timeout") if ranks else ()):
        yield Candidate(cause, 0.44 - 0.02 * nth, title, hits, ranks)


def _left_its_pace(hits: list[Hit]) -> Iterable[Candidate]:
    told = hits[0].groups
    title = f"the pace fell for good: {told['name']} was {told['before']}, and is {told['after']}"
    if told["grew"]:
        rest = f", not {told['stayed']}" if told["stayed"] else ""
        title += f" (longer takes {told['grew']}{rest})"
    parts = (causes for words, causes in _BY_PART if re.search(words, told["grew"], re.IGNORECASE))
    for nth, cause in enumerate(next(parts) if told["grew"] else _NO_PART_KNOWN):
        yield Candidate(cause, 0.42 - 0.02 * nth, title, [hits[1], hits[0], *hits[2:]], ranks_of(hits))


@diagnosis
def only_the_watchdogs_frames(case: Case) -> Iterable[Candidate]:
    """torch's watchdog ended its process (its frames are in the log), and the line that says why is not: a collective ran
    out of time, ranks called different ones, or a peer was lost. The lines in front, and those of the other ranks, would tell."""
    hits = case.hits("watchdog-frame")
    for nth, cause in enumerate(("app.straggler-timeout", "app.collective-mismatch", "net.peer-lost") if hits else ()):
        yield Candidate(
            cause,
            0.4 - 0.03 * nth,
            "torch's watchdog ended a rank; why, these lines do not say",
            hits[:2],
            ranks_of(hits),
        )


@diagnosis
def ended_without_words(case: Case) -> Iterable[Candidate]:
    """A scheduler says that the program ended with an error, and nothing that it said is in these logs."""
    hits = [] if case.exceptions.ordinary or case.course.overcome("ended-with-error") else case.hits("ended-with-error")
    for cause, strength in (("app.rank-exception", 0.36), ("unrelated", 0.25)) if hits else ():
        title = "the program ended with an error; what it said is not in these logs"
        yield Candidate(cause, strength, title, hits)
