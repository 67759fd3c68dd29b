"""The subject of a line that sounds like trouble, by its technical words: the last resort, and a source of further quotes.

Signatures know messages; this knows only vocabulary: technical words (``gid``, ``libfabric``, ``rendezvous``) and, where a line
has none, what systems call a failure (``ECONNREFUSED``, ``exit code -9``). It never outweighs a signature: what it finds stays
below the threshold of a verdict (docs/decisions/0289, 0296).
"""

from __future__ import annotations

import functools

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import status

STATUS = status.words()
# Cause id -> words. A line can belong to several; of causes with as many lines the one that stands first here is named first.
TOPICS: dict[str, str] = {
    "gpu.nvlink": r"nvlink(?! (?:error|warning|fatal) *:)|nvswitch|sxid|xid\b.{0,30}\b(?:144|145|146|147|148|149|150)\b",
    "gpu.fabric-manager": r"fabric ?-?manager|fabricmanager|fabric state|nvls|(?<!broadcast,)multicast|\b802\b",
    "gpu.imex": r"imex|mnnvl|multi-node nvlink",
    "gpu.ecc": r"\becc\b|row.?remap|double.bit|retired page|page retirement",
    "gpu.fell-off-bus": r"fallen off|\bxid\b|\bgsp\b|gpu (?:is )?lost|device handle for gpu|(?:pcieport|aer:).*(?:uncorrect|fatal|dpc|failed)|gpu.*not responding|^.*nvidia \S+: .*inaccessible|bad register read",
    "gpu.mig": r"\bmig\b",
    "gpu.thermal-power": r"therm|throttl|slowdown|temperature|power (?:brake|cap|limit|supply)|\bpsu\b|\bpdu\b|degrees c|capping",
    "gpu.p2p": r"\bp2p\b|peer.to.peer|peer access|\bipc\b|\bacs\b|iommu",
    "gpu.driver": r"nvidia driver|driver version|kernel image|\bptx (?:jit|version|was)|unsupported ptx|nvml|cuda version|firmware image|gsp_\w+\.bin|\bnvrm\b|\bsm_\d+ (?:is|was)|compute capability|\bhip\b(?!,)|rocm|\[nvidia\w*\]|nvidia_uvm|amdgpu|\bkfd\b",
    "gpu.oom": r"out of memory|cudamalloc",
    "gpu.illegal-access": r"illegal memory|device-side|launch failure",
    "gpu.not-visible": r"device ordinal|no cuda|visible devices|no gpu|cuda_visible",
    "gpu.duplicate": r"same gpu|duplicate gpu",
    "ib.gid-index": r"\bgids?\b|gid_index|gid table",
    "ib.memlock": r"memlock|locked memory|max locked|cannot allocate memory.*(?:ibv|qp|cq|mr)|(?:ibv|reg_mr).*cannot allocate",
    "ib.gdr": r"peermem|peer_mem|gpudirect|gpu direct|\bgdr|dma.?buf|reg_mr|regist\w+ (?:\w+ )?(?:mr\b|memory)|memory regist|allocate mr\b|local protection",
    "ib.port-down": r"port (?:error|down)|link (?:is )?down|port_down|physical.?state|state\W{1,4}polling|cable|link_?layer.*down|state:? *down|carrier|link went down|"
    r"\b(?:ice|irdma|bnxt_\w+|mlx5\w*|i40e|ixgbe|efa)\b.*(?:reset|time-?out|timed out|error state)",
    "ib.retry-exceeded": r"retry (?:counter )?exceeded|retry_exc|status=12|vendor err 129|transport retr",
    "ib.qp-connect": r"modify_qp|create_qp|queue pair|\bqp\b|pkey|subnet manager|\blid\b|rdma_?cm|\bcqe\b|work completion|completion (?:error|status|with error)|\bwc\W|wr_id",
    "ib.device-not-found": r"no (?:ib|infiniband|rdma|hca)|uverbs|/dev/infiniband|ib_hca|ibv_get_device|hca|\b(?:ib|infiniband|rdma) (?:\w+ )?(?:device|adapter|port)|rdma_(?:create_event|getaddrinfo)|/sys/class/infiniband|\brxe\b|mlx5_core .*probe failed|device-specific driver",
    "net.plugin": r"libfabric|\bofi\b|aws-ofi|\befa\b|\bucx\b(?!\S*libucs)|\bucp_|sharp|libnccl-net|net plugin|\bcxi\b|fastrak|\bgib\b|tcpx|collnet|\bfi_\w+|ofi_|_ofi\b|\bpsm[23]?(?:_|\b)|\bhfi|\bnixl|mooncake|rdma_?transport|transfer_(?:engine|task)|\bhcoll|\bucc\b|\buct_|\bmtl\b|\bbtl",
    "net.mtu": r"\bmtu\b|jumbo|\bfrag",
    "net.hostname-resolution": r"resolv(?!e (?:this|the (?:issue|problem|error|conflict)|these|it)\b)|(?<!<)hostname(?![>'])|host name|\bdns\b|getaddrinfo|127\.0\.1\.1|loopback|name or service|nxdomain|coredns",
    "net.wrong-interface": r"interface|ifname|docker0|virbr|172\.17\.",
    "net.firewall": r"firewall|iptables|nftables|security group|networkpolicy|no route to host|port \d+ .*(?:blocked|filtered)|connection timed out|policy denied",
    "net.port-in-use": r"(?:address|port|socket)\b.*in use|eaddrinuse|\bbind\b(?! (?:source|mount|point|director))|listen\b.{0,60}\bfail|specified port",
    "net.master-unreachable": r"master|rdzv_endpoint|coordinator|head node|gcs(?!_\w+\.cc:)",
    "net.slow": r"gb/s|gbps|bandwidth|\bslow|throughput|negotiated|downgraded",
    "launch.rdzv": r"rendezvous|rdzv|etcd|run_id",
    "launch.world-size": r"(?-i:(?!WORLD_))world.?size|nnodes|node_rank|nproc|clients joined|ranks joined|num_workers_joined",
    "launch.env-missing": r"environment variable .*(?:not set|expected)|(?-i:\b(?:WORLD_SIZE|(?:LOCAL_|GROUP_|NODE_)RANK|MASTER_(?:ADDR|PORT))\b)",
    "launch.killed": r"sigterm|(?<!operation )cancel(?!\w*_)|preempt|time limit|evict|walltime|sighup|signal 15|killed by user",
    "sys.shm": r"/dev/shm|shared memory|\bshm\b|(?<!pcie )bus error",
    "sys.nofile": r"open files|file descriptor|emfile|file-max",
    "sys.threads": r"pthread|new thread|thread creation|(?<!start_method: )\bfork\b|nproc limit|pids limit",
    "sys.host-oom": r"(?<![a-z])oom|out of memory.*kill|killed process|exit code 137|memory limit|sigkill(?!_handler)",
    "sys.disk-full": r"no space|disk full|quota",
    "sys.container": r"container(?!\.\w)|docker|seccomp|capabilit|cgroup|namespace|(?<!/proc)/sys/(?!class)|privileged",
    "sys.clock-or-dns-or-fs": r"\bnfs|lustre|gpfs|weka|stale|filelock|file lock|\block\b|clock|(?<!/)\bfs\b(?!/)|blocked for more than|\bceph|beegfs|\bfuse\b|s3fs|\bvfs\b|sssd|read-only file",
    "sys.node-failure": r"node (?:failure|fail|lost|down)|notready|(?<!send )heartbeat(?!.?monitor)|kernel panic|machine check|node_fail|host error|"
    r"node \S+ (?:is )?(?:marked )?(?:dead|down|lost)|chassis power|(?:node|host|machine|server|kernel|system)\b.{0,30}\bcrashed|retirement|lost_host|underlying hardware",
    "sw.nccl-version-mismatch": r"version (?:mismatch|differ)|different .*version|mismatched nccl",
    "sw.library-conflict": r"symbol|undefined reference|glibcxx|cxxabi|elf class|dll load|(?:open|load|find|import)\w* (?:\S+ ){0,3}(?:lib\w+\.so|librar)|shared object|libnccl\.so|glibc|ld_library_path|libcud",
    "sw.no-nccl-backend": r"built without|not built|not compiled|backend .*(?:not|un)available|nccl built",
    "app.bad-tensor": r"tensor(?![ _-]?(?:parallel|board|rt|flow|core))|dtype|scalar type|shape|contiguous|split sizes|\bdim(?:ension)?s?\b",
    "app.pg-misuse": r"process group|init_process_group|process_group|communicator",
    "app.collective-mismatch": r"mismatch.*collective|collective.*mismatch|fingerprint|desync|incorrect receive info|truncated",
    "app.ddp-unused-params": r"unused param|did not receive grad|find_unused",
    "app.dataloader-worker": r"dataloader|data loader worker",
    "app.nan-or-data": r"\bnan\b|(?-i:\b[Ii]nf\b)|overflow|loss scale|(?<!memory )corrupt|truncated",
    "app.uneven-inputs": r"batches|uneven|exhausted|stopiteration",
    "env.bad-nccl-var": r"(?-i:\b(?:TORCH_)?NCCL_(?!DEBUG|ERROR)[A-Z_]+\b(?!\())",
}

# Who speaks, and what the program is at, rather than what is wrong.
_SPEAKERS = frozenset(("net.plugin", "sys.container", "app.pg-misuse", "app.bad-tensor", "env.bad-nccl-var"))


@functools.cache
def _status_words(cause: str) -> re.Pattern[str]:
    return re.compile(STATUS[cause], re.IGNORECASE)


def statuses(text: str) -> list[str]:
    """The causes that a line's status words name."""
    return [cause for cause in STATUS if _status_words(cause).search(text)]


def named(text: str) -> tuple[list[str], list[str]]:
    """The causes that a line's words name: its subjects, else what its status words say, else who speaks; and the others."""
    words = [cause for cause in TOPICS if words_of(cause).search(text)]
    subjects = [cause for cause in words if cause not in _SPEAKERS]
    speakers = [cause for cause in words if cause in _SPEAKERS]
    told = [cause for cause in statuses(text) if cause not in subjects]
    if "net.plugin" in speakers:  # its EIO and ENOMEM are an adapter's, no disk's and no host's
        told = [cause for cause in told if not cause.startswith("sys.")]
    first, *others = [some for some in (subjects, told, speakers) if some] or [[]]
    return first, [cause for some in others for cause in some]


def beneath(message: str) -> str:
    """The cause beneath the program (GPU, network, system, launcher) that a message is about, or that its status words name;
    empty if there is none."""
    first, _ = named(message)
    return next((cause for cause in first if cause not in _SPEAKERS and not cause.startswith("app.")), "")


@functools.cache
def words_of(cause: str) -> re.Pattern[str]:
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
    return next((cause for cause in _CLEAR if words_of(cause).search(message)), "")
