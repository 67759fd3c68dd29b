"""The subject of a line that sounds like trouble, by its technical words: the last resort, and a source of further quotes.

Signatures know messages; this knows only vocabulary (``gid``, ``libfabric``, ``rendezvous``). It never outweighs a signature:
what it finds alone stays below the threshold of a verdict unless several lines agree.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import records

# Cause id -> words. A line can belong to several; the special ones stand first only for readability.
TOPICS: dict[str, str] = {
    "gpu.nvlink": r"nvlink|nvswitch|sxid",
    "gpu.fabric-manager": r"fabric ?-?manager|fabricmanager|fabric state|nvls|multicast|\b802\b",
    "gpu.imex": r"imex|mnnvl|multi-node nvlink",
    "gpu.ecc": r"\becc\b|row.?remap|double.bit|retired page|page retirement",
    "gpu.fell-off-bus": r"fallen off|\bxid\b|\bgsp\b|gpu (?:is )?lost|pcieport|aer:|gpu.*not responding|^.*nvidia \S+: .*inaccessible|bad register read",
    "gpu.mig": r"\bmig\b",
    "gpu.thermal-power": r"therm|throttl|slowdown|temperature|power (?:brake|cap|limit|supply)|\bpsu\b|\bpdu\b|degrees c|capping",
    "gpu.p2p": r"\bp2p\b|peer.to.peer|peer access|\bipc\b|\bacs\b|iommu",
    "gpu.driver": r"nvidia driver|driver version|kernel image|\bptx\b|nvml|cuda version|firmware image|gsp_\w+\.bin|\bnvrm: (?:can't|rm)|\bsm_\d+|compute capability|\bhip\b|rocm",
    "gpu.oom": r"out of memory|cudamalloc",
    "gpu.illegal-access": r"illegal memory|device-side|launch failure",
    "gpu.not-visible": r"device ordinal|no cuda|visible devices|no gpu|cuda_visible",
    "gpu.duplicate": r"same gpu|duplicate gpu",
    "ib.gid-index": r"\bgids?\b|gid_index|gid table",
    "ib.memlock": r"memlock|locked memory|max locked|cannot allocate memory.*(?:ibv|qp|cq|mr)|(?:ibv|reg_mr).*cannot allocate",
    "ib.gdr": r"peermem|peer_mem|gpudirect|gpu direct|\bgdr|dma.?buf|reg_mr",
    "ib.port-down": r"port (?:error|down)|link (?:is )?down|port_down|physical.?state|state\W{1,4}polling|cable|link_?layer.*down|state:? *down|carrier|link went down|"
    r"\b(?:ice|irdma|bnxt_\w+|mlx5\w*|i40e|ixgbe|efa)\b.*(?:reset|time-?out|timed out|error state)",
    "ib.retry-exceeded": r"retry (?:counter )?exceeded|retry_exc|status=12|vendor err 129|transport retr",
    "ib.qp-connect": r"modify_qp|create_qp|queue pair|\bqp\b|pkey|subnet manager|\blid\b",
    "ib.device-not-found": r"no (?:ib|infiniband|rdma|hca)|uverbs|/dev/infiniband|ib_hca|ibv_get_device|hca|mlx5_core .*probe failed|device-specific driver",
    "net.plugin": r"libfabric|\bofi\b|aws-ofi|\befa\b|\bucx\b|\bucp_|sharp|libnccl-net|net plugin|\bcxi\b|fastrak|\bgib\b|tcpx|collnet|fi_\w+",
    "net.mtu": r"\bmtu\b|jumbo|frag",
    "net.hostname-resolution": r"resolv|hostname|host name|\bdns\b|getaddrinfo|127\.0\.1\.1|loopback|name or service|nxdomain|coredns",
    "net.wrong-interface": r"interface|ifname|docker0|virbr|172\.17\.",
    "net.firewall": r"firewall|iptables|nftables|security group|networkpolicy|no route to host|port \d+ .*(?:blocked|filtered)|connection timed out|policy denied",
    "net.port-in-use": r"in use|eaddrinuse|\bbind\b",
    "net.master-unreachable": r"master|rdzv_endpoint|coordinator|head node|gcs",
    "net.slow": r"gb/s|gbps|bandwidth|\bslow|throughput|negotiated|downgraded",
    "launch.rdzv": r"rendezvous|rdzv|etcd|run_id",
    "launch.world-size": r"world.?size|nnodes|node_rank|nproc|clients joined|ranks joined|num_workers_joined",
    "launch.env-missing": r"environment variable .*(?:not set|expected)",
    "launch.killed": r"sigterm|cancel|preempt|time limit|evict|walltime|sighup|signal 15|killed by user",
    "sys.shm": r"/dev/shm|shared memory|\bshm\b|bus error",
    "sys.nofile": r"open files|file descriptor|emfile|file-max",
    "sys.threads": r"pthread|new thread|thread creation|\bfork\b|nproc limit|pids limit",
    "sys.host-oom": r"oom|out of memory.*kill|killed process|exit code 137|memory limit|sigkill(?!_handler)",
    "sys.disk-full": r"no space|disk full|quota",
    "sys.container": r"container|docker|seccomp|capabilit|cgroup|namespace|/sys/|privileged",
    "sys.clock-or-dns-or-fs": r"\bnfs|lustre|gpfs|weka|stale|filelock|file lock|\block\b|clock|\bfs\b|blocked for more than|input/output|\bceph|beegfs|\bfuse\b|s3fs|\bvfs\b|sssd|read-only file",
    "sys.node-failure": r"node (?:failure|fail|lost|down)|notready|heartbeat|kernel panic|machine check|node_fail|host error|"
    r"node \S+ (?:is )?(?:marked )?(?:dead|down|lost)|chassis power|crashed|retirement|lost_host|underlying hardware",
    "sw.nccl-version-mismatch": r"version (?:mismatch|differ)|different .*version|mismatched nccl",
    "sw.library-conflict": r"symbol|shared object|libnccl\.so|glibc|ld_library_path|libcud",
    "sw.no-nccl-backend": r"built without|not built|not compiled|backend .*(?:not|un)available|nccl built",
    "app.bad-tensor": r"tensor|dtype|scalar type|shape|contiguous",
    "app.pg-misuse": r"process group|init_process_group|process_group|communicator",
    "app.collective-mismatch": r"mismatch.*collective|collective.*mismatch|fingerprint|desync|incorrect receive info|truncated",
    "app.ddp-unused-params": r"unused param|did not receive grad|find_unused",
    "app.dataloader-worker": r"dataloader|data loader worker",
    "app.nan-or-data": r"\bnan\b|\binf\b|overflow|loss scale|corrupt|truncated",
    "app.uneven-inputs": r"batches|uneven|exhausted|stopiteration",
    "env.bad-nccl-var": r"\bNCCL_(?!DEBUG)[A-Z_]+|TORCH_NCCL_\w+|environment variable",
}


@functools.cache
def _words(cause: str) -> re.Pattern[str]:
    """The words of a cause. Most logs ask for two or three causes of thirty."""
    return re.compile(TOPICS[cause], re.IGNORECASE)


# Subjects that a message names so clearly that they decide, before the program's part that prints it does.
_CLEAR = (
    "ib.memlock",
    "ib.retry-exceeded",
    "ib.gid-index",
    "ib.port-down",
    "sys.nofile",
    "sys.threads",
    "sys.shm",
    "net.port-in-use",
    "gpu.imex",
    "gpu.fabric-manager",
    "gpu.nvlink",
    "gpu.ecc",
    "gpu.duplicate",
    "gpu.oom",
    "gpu.not-visible",
    "sw.nccl-version-mismatch",
)


def subject(message: str) -> str:
    """The cause that a message's words name; empty if they name none of the clear ones."""
    return next((cause for cause in _CLEAR if _words(cause).search(message)), "")


_NOISE = re.compile(
    r"NCCL INFO (?!.*(?:->|rror|ail|Disabled))|Traceback|closing signal|error_file|elastic/errors|(?:^|\s)File \"[^\"]+\", line \d|OMP_NUM_THREADS|no error|0 errors|without error|"
    r"errors?[:=] ?0\b|^\s*(?:[\w ./()-]{2,60}|# (?:HELP|TYPE) .*|\w+\{.{0,400}\} 0(?:\.0+)?|[\w ./()-]{2,60}[^:]:\s+(?:0|No|N/A|None|Disabled|Not Active))\s*$|CUDA kernel errors might|For debugging consider|Some NCCL operations have failed|taking the entire process down"
)


_FAILURE_WORDS = re.compile(
    r"Traceback \(most recent|\b(?:ERROR|FATAL|CRITICAL)\b|\bError executing\b|^Error: |NCCL WARN|[Ff]ailed\b|\bFAILED\b|core dumped|Aborted|"
    r"terminate called|\bdied\b|terminated with (?:exit )?(?:code|signal)|exited with (?:exit )?(?:code|status) -?[1-9]|"
    r"\b[Kk]illed\b|[Ss]egmentation fault|\bCANCELLED\b|\bTerminated\b|\b[Aa]borted\b|\bpanic\b|\bcrash(?:ed)?\b|"
    r"\b(?:vanished|disappeared)\b|\b(?:hangs|hanging|hung|stuck|stalled)\b|\bno (?:step|progress|update)s? for\b|"
    r"\bexceeded\b|\bunreachable\b|not responding|\b[Tt]imed out\b|(?:exit|return) (?:code|status):? -?[1-9]|\(exit -?[1-9]|"
    r"\baborting\b|TERM_[A-Z]+LIMIT|"
    r"^(?:\W?\S{1,60}\W?\s)?[\w.]{0,80}[a-z]Error: "
)
_COUNTED_NONE = re.compile(
    r"\b(?:nothing|none|no \w{3,12}) (?:has |have )?failed\b|\b0 (?:failed|failures|errors?|killed|aborted|timed out)\b|"
    r"\b(?:failed|errors?)\b[ \w]{0,12}: ?(?:none\b|null\b|\[\])|"
    r"\b\w*(?:failed|errors?|aborted|died|killed|timed out)\w*(?:(?:[ _][A-Za-z]\w*){0,2}['\"]?\s*[:=]\s*| )0(?:\.0+)?\b",
    re.IGNORECASE,
)


def says_failure(text: str) -> bool:
    """Whether a line says that something failed, and does not merely count that nothing did."""
    return _FAILURE_WORDS.search(_COUNTED_NONE.sub("", text)) is not None and not records.lists_settings(text)


@functools.lru_cache(maxsize=1)
def trouble(case: Case) -> list[Hit]:
    """The lines that sound like trouble and are not known to be harmless or mere consequences."""
    quiet = {
        (hit.file, hit.line)
        for name, signature in case.signatures.items()
        if signature.role is Role.HARMLESS
        for hit in case.hits(name)
    }
    return [hit for hit in case.hits("error-line") if (hit.file, hit.line) not in quiet and not _NOISE.search(hit.text)]


_ADVICE = re.compile(r"\(run with NCCL_DEBUG=\w+ for details\)")


def vote(case: Case) -> dict[str, list[Hit]]:
    """Cause id -> lines whose words belong to it. Lines that differ only in numbers no words ask for are asked once."""
    table: dict[str, list[Hit]] = defaultdict(list)
    effects = {
        (hit.file, hit.line)
        for name, signature in case.signatures.items()
        if signature.role is Role.SYMPTOM and signature.cause
        for hit in case.hits(name)
    }
    known: dict[str, tuple[str, ...]] = {}
    for hit in (hit for hit in trouble(case) if (hit.file, hit.line) not in effects):
        text = _ADVICE.sub("", hit.text[-_ASKED:])
        shape = _NUMBER.sub(lambda number: number.group() if number.group() in _TOLD else "", text)
        if shape not in known and len(known) < _SHAPES:
            known[shape] = tuple(cause for cause in TOPICS if _words(cause).search(text))
        for cause in known.get(shape, ()):
            table[cause].append(hit)
    return table


_NUMBER = re.compile(r"\d+")
_TOLD = frozenset(number for words in TOPICS.values() for number in re.findall(r"(?<![\d{,])\d+", words))
_ASKED = 600  # characters of a line: its end, behind the prefixes
_SHAPES = 150  # so many different lines tell what a log is about


def supporting(case: Case, cause: str) -> list[Hit]:
    """Further lines on the subject of a cause: settings, then trouble. Used as additional quotes."""
    settings = [hit for name, hits in case.env.items() if cause in _SETTINGS.get(name, ()) for hit in hits[:3]]
    facts = [
        hit for name in _FACTS.get(cause, ()) for hit in (*case.hits(name)[:6], case.last(name)) if hit is not None
    ]
    words = [hit for hit in trouble(case) if _words(cause).search(hit.text)] if cause in TOPICS else []
    return settings + facts + words


def concerns(name: str, cause: str) -> bool:
    """Whether a variable that is set bears on a cause."""
    return cause in _SETTINGS.get(name, ())


# Signatures whose lines belong to the proof of a cause, though they prove nothing alone.
_FACTS: dict[str, tuple[str, ...]] = {
    "ib.device-not-found": (
        "no-ib-device",
        "net-socket-using",
        "network-used",
        "net-ib-using",
        "no-verbs-library",
        "rdma-plugin",
    ),
    "sw.nccl-version-mismatch": ("bootstrap-truncated", "nccl-version", "torch-version", "nccl-error-version"),
    "net.wrong-interface": (
        "bootstrap-using",
        "gloo-endpoint",
        "net-socket-using",
        "connect-refused",
        "connect-noroute",
        "connect-retry",
        "gloo-connect-failed",
    ),
    "net.firewall": (
        "connect-timeout",
        "connect-noroute",
        "connect-retry",
        "bootstrap-using",
        "gloo-endpoint",
        "gloo-closed",
        "rdzv-timeout",
        "open-ports",
    ),
    "net.hostname-resolution": (
        "name-unresolved",
        "hostname-loopback",
        "gloo-endpoint",
        "master-unreachable",
        "connect-noroute",
    ),
    "net.master-unreachable": (
        "master-flag",
        "master-timeout",
        "master-unreachable",
        "master-refused",
        "rdzv-connection",
        "grpc-unavailable",
    ),
    "launch.rdzv": (
        "random-run-id",
        "rdzv-trouble",
        "rdzv-connection",
        "rdzv-timeout",
        "rdzv-consequence",
        "store-closed",
        "socket-timeout",
    ),
    "launch.world-size": (
        "joined-partly",
        "rdzv-timeout",
        "rdzv-connection",
        "nnodes",
        "world-size",
        "socket-timeout",
        "rank-twice",
        "rank-by-hand",
        "random-run-id",
    ),
    "env.bad-nccl-var": ("env-echo", "env-set", "bad-nccl-value"),
    "app.collective-mismatch": (
        "fingerprint-mismatch",
        "desync-lagging",
        "size-mismatch",
        "watchdog-timeout",
        "watchdog-status",
        "horovod-missing",
        "flight-recorder-missing",
    ),
    "app.straggler-timeout": (
        "desync-never-joined",
        "desync-lagging",
        "monitored-barrier",
        "watchdog-status",
        "straggler-words",
    ),
    "app.uneven-inputs": ("batch-count", "desync-lagging", "watchdog-timeout"),
    "app.pg-misuse": ("nccl-init-start", "barrier-device"),
    "gpu.p2p": ("acs-redirect", "p2p-not-enabled", "watchdog-status", "smi-busy", "channel-p2p", "iommu"),
    "gpu.duplicate": ("nccl-init-start", "barrier-device"),
    "gpu.driver": ("driver-version", "cumem-refused", "cuda-call"),
    "gpu.fabric-manager": ("nvls-bind", "cumem-refused", "fabric-state"),
    "gpu.nvlink": ("nvlink-link", "topo-row", "cumem-refused"),
    "gpu.thermal-power": ("throttle-mask", "throttle", "thermal-more"),
    "net.slow": (
        "busbw-average",
        "network-used",
        "net-socket-using",
        "busbw-row",
        "measured-rate",
        "slow-complaint",
        "expectation",
        "gdr-disabled",
        "link-speed",
    ),
    "net.peer-lost": ("peer-closed", "gloo-closed", "store-closed", "unique-id", "connect-refused"),
    "net.plugin": ("ofi-error", "ofi-any", "libfabric-warn", "no-net-plugin", "network-used"),
    "net.mtu": ("qp-mtu", "ip-link-mtu", "ib-mtu-listing", "ping-loss"),
    "ib.gid-index": ("modify-qp", "ib-retry", "net-ib-using"),
    "ib.gdr": ("ib-local-protection", "peermem-missing", "gdr-disabled", "reg-mr-gpu", "acs-redirect"),
    "ib.memlock": ("memlock-value", "memlock-text", "reg-mr-nomem"),
    "ib.port-down": ("ib-port-error", "kernel-link-down", "port-state-down", "ib-async"),
    "ib.qp-connect": ("modify-qp", "create-qp", "net-ib-using"),
    "ib.retry-exceeded": ("ib-retry", "ib-retry-text", "ib-async"),
    "sw.nccl-bug": (
        "nccl-frame",
        "nccl-segfault",
        "crash-in-libnccl",
        "nccl-warn",
        "segfault",
        "crash-handler",
        "nccl-internal",
        "proxy-failed",
    ),
    "sys.container": (
        "socket-family",
        "cumem-refused",
        "cuda-unknown-error",
        "cumem-host-fallback",
        "wsl",
        "p2p-not-enabled",
    ),
    "sys.host-oom": ("oom-killer", "oom-more", "sigkill", "host-memory-used"),
    "sys.shm": ("shm-full",),
    "launch.env-missing": ("rank-by-hand",),
    "sys.disk-full": ("disk-full-listing", "disk-nearly-full"),
    "launch.killed": ("cancelled", "signal-exception", "step-cancelled"),
}


_SETTINGS: dict[str, tuple[str, ...]] = {
    "NCCL_IB_GID_INDEX": ("ib.gid-index", "ib.qp-connect", "ib.retry-exceeded", "env.bad-nccl-var"),
    "NCCL_SOCKET_IFNAME": ("net.wrong-interface", "env.bad-nccl-var", "net.firewall"),
    "GLOO_SOCKET_IFNAME": ("net.wrong-interface", "env.bad-nccl-var", "net.hostname-resolution"),
    "NCCL_IB_HCA": ("ib.device-not-found", "env.bad-nccl-var", "ib.qp-connect"),
    "NCCL_COMM_ID": ("env.bad-nccl-var", "net.wrong-interface"),
    "NCCL_NET": ("ib.device-not-found", "net.plugin", "env.bad-nccl-var", "net.slow"),
    "NCCL_NET_PLUGIN": ("net.plugin", "env.bad-nccl-var"),
    "NCCL_ALGO": ("env.bad-nccl-var",),
    "NCCL_PROTO": ("env.bad-nccl-var", "app.collective-mismatch"),
    "NCCL_P2P_DISABLE": ("env.bad-nccl-var", "gpu.p2p", "net.slow"),
    "NCCL_P2P_LEVEL": ("env.bad-nccl-var", "gpu.p2p", "net.slow"),
    "NCCL_SHM_DISABLE": ("env.bad-nccl-var", "sys.shm"),
    "NCCL_TOPO_FILE": ("env.bad-nccl-var",),
    "NCCL_GRAPH_FILE": ("env.bad-nccl-var",),
    "NCCL_IB_DISABLE": ("net.slow", "ib.device-not-found", "env.bad-nccl-var"),
    "NCCL_NET_GDR_LEVEL": ("ib.gdr", "env.bad-nccl-var"),
    "NCCL_BUFFSIZE": ("env.bad-nccl-var", "gpu.oom"),
    "NCCL_HOSTID": ("env.bad-nccl-var", "gpu.duplicate"),
    "NCCL_NTHREADS": ("env.bad-nccl-var",),
    "NCCL_MAX_NCHANNELS": ("env.bad-nccl-var", "net.slow"),
    "NCCL_MIN_NCHANNELS": ("env.bad-nccl-var", "net.slow"),
    "NCCL_CROSS_NIC": ("ib.qp-connect", "ib.retry-exceeded"),
    "NCCL_SOCKET_FAMILY": ("env.bad-nccl-var", "net.wrong-interface"),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": ("env.bad-nccl-var", "app.straggler-timeout"),
    "NCCL_NVLS_ENABLE": ("env.bad-nccl-var", "gpu.fabric-manager"),
    "NCCL_MNNVL_ENABLE": ("env.bad-nccl-var", "gpu.imex"),
    "CUDA_VISIBLE_DEVICES": ("gpu.not-visible", "gpu.duplicate"),
    "MASTER_ADDR": ("net.master-unreachable", "launch.env-missing"),
    "MASTER_PORT": ("net.master-unreachable", "net.port-in-use"),
}
