"""When no signature knows an NCCL WARN: which part of NCCL said it, and what its errno or CUDA text usually means."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import topics, trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.lines import ending, hosts_of, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.signatures.infiniband import NO_NETWORK

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
    r"\[Proxy Service|Socket recv failed|\[Service thread\]|commReclaim|abort|closed by remote peer",
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
    wrong = [hit for hit in (trouble.lines(case) if used else ()) if "NCCL INFO" not in hit.text or "rror" in hit.text]
    calm = (case.signatures["progress"], case.signatures["ended-well"])
    wrong = [hit for hit in wrong if all(signature.match(hit.text) is None for signature in calm)]
    wrong = [hit for hit in wrong if not case.course.outlived(hit)]
    if used and wrong and not case.has("ofi-error", "ofi-init", "fabric-domain", "plugin-missing"):
        title = f"the network plugin {used[0].groups['network']} is in use when it fails: {ending(wrong[0].text, 110)}"
        yield Candidate("net.plugin", 0.5, title, [*wrong[:8], *used[:2]])


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
    (
        r"FILE_NOT_FOUND|'file not found'|\b301\b",
        "unrelated",
        0.46,
        "CUDA was to load a file of GPU code that is not there: one of a cache of compiled kernels that ranks share, usually",
    ),
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


_GIVEN = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
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


# What NCCL's sockets return when their communicator is aborted: others failed before.
_OF_AN_ABORT = re.compile(r"misc/socket\.cc:\d+ -> 3\b")
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
    lasting = (
        hit
        for hit in case.hits("nccl-trail")
        if not (_went_on_to(went_on.get(_thread(hit)), hit) or _OF_AN_ABORT.search(hit.text))
    )
    for hit in itertools.islice(lasting, 1):
        phrase, causes = _TRAIL_CODES.get(hit.groups["code"], ("", ()))
        yield from rivals(falling(causes, 0.3, 0.02), phrase, [hit], ranks_of([hit]))
        for pattern, cause, _, _ in _PARTS:
            if re.search(pattern, hit.groups["place"]):
                title = f"an error came out of {hit.groups['place'].split(':')[0]}; the warning before it is not in these logs"
                yield Candidate(cause, 0.34, title, [hit], ranks_of([hit]))
                break
    hits = case.hits("proxy-failed", "nccl-error-text")
    given = [hit for name in _GIVEN for hit in case.env.get(name, ())[:1]]
    local = [hit for hit in hits if not re.search(r"remote|peer", hit.text, re.IGNORECASE)]
    if local and given and not case.has("nccl-init-complete"):  # by them the ways are chosen
        title = "a call of NCCL failed, and files that describe the machine were given to it: those of another kind of machine do this"
        yield Candidate("env.bad-nccl-var", 0.45, title, [*given, *local[:2]], ranks_of(local))
    for hit in hits:
        for text, phrase, causes in _CODES:
            if re.search(text, hit.text):
                yield from rivals(falling(causes, 0.38, 0.02), phrase, [hit, *hits])
                return
