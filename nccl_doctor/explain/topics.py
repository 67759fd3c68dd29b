"""The subject of a line that sounds like trouble, by its technical words: the last resort, and a source of further quotes.

Signatures know messages; this knows only vocabulary: technical words (``gid``, ``libfabric``, ``rendezvous``) and, where a line
has none, what systems call a failure (``ECONNREFUSED``, ``exit code -9``). It never outweighs a signature: what it finds stays
below the threshold of a verdict (docs/decisions/0289, 0296).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from nccl_doctor.explain import status
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import bystanders, prefix

STATUS = status.words()
_T = TypeVar("_T")
# Cause id -> words. A line can belong to several; of causes with as many lines the one that stands first here is named first.
TOPICS: dict[str, str] = {
    "gpu.nvlink": r"nvlink(?! (?:error|warning|fatal) *:)|nvswitch|sxid|xid\b.{0,30}\b(?:144|145|146|147|148|149|150)\b",
    "gpu.fabric-manager": r"fabric ?-?manager|fabricmanager|fabric state|nvls|multicast|\b802\b",
    "gpu.imex": r"imex|mnnvl|multi-node nvlink",
    "gpu.ecc": r"\becc\b|row.?remap|double.bit|retired page|page retirement",
    "gpu.fell-off-bus": r"fallen off|\bxid\b|\bgsp\b|gpu (?:is )?lost|device handle for gpu|(?:pcieport|aer:).*(?:uncorrect|fatal|dpc|failed)|gpu.*not responding|^.*nvidia \S+: .*inaccessible|bad register read",
    "gpu.mig": r"\bmig\b",
    "gpu.thermal-power": r"therm|throttl|slowdown|temperature|power (?:brake|cap|limit|supply)|\bpsu\b|\bpdu\b|degrees c|capping",
    "gpu.p2p": r"\bp2p\b|peer.to.peer|peer access|\bipc\b|\bacs\b|iommu",
    "gpu.driver": r"nvidia driver|driver version|kernel image|\bptx (?:jit|version|was)|unsupported ptx|nvml|cuda version|firmware image|gsp_\w+\.bin|\bnvrm\b|\bsm_\d+ (?:is|was)|compute capability|\bhip\b|rocm|\[nvidia\w*\]|nvidia_uvm|amdgpu|\bkfd\b",
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
    "net.master-unreachable": r"master|rdzv_endpoint|coordinator|head node|gcs",
    "net.slow": r"gb/s|gbps|bandwidth|\bslow|throughput|negotiated|downgraded",
    "launch.rdzv": r"rendezvous|rdzv|etcd|run_id",
    "launch.world-size": r"(?-i:(?!WORLD_))world.?size|nnodes|node_rank|nproc|clients joined|ranks joined|num_workers_joined",
    "launch.env-missing": r"environment variable .*(?:not set|expected)|(?-i:\b(?:WORLD_SIZE|(?:LOCAL_|GROUP_|NODE_)RANK|MASTER_(?:ADDR|PORT))\b)",
    "launch.killed": r"sigterm|(?<!operation )cancel|preempt|time limit|evict|walltime|sighup|signal 15|killed by user",
    "sys.shm": r"/dev/shm|shared memory|\bshm\b|(?<!pcie )bus error",
    "sys.nofile": r"open files|file descriptor|emfile|file-max",
    "sys.threads": r"pthread|new thread|thread creation|(?<!start_method: )\bfork\b|nproc limit|pids limit",
    "sys.host-oom": r"(?<![a-z])oom|out of memory.*kill|killed process|exit code 137|memory limit|sigkill(?!_handler)",
    "sys.disk-full": r"no space|disk full|quota",
    "sys.container": r"container(?!\.\w)|docker|seccomp|capabilit|cgroup|namespace|(?<!/proc)/sys/(?!class)|privileged",
    "sys.clock-or-dns-or-fs": r"\bnfs|lustre|gpfs|weka|stale|filelock|file lock|\block\b|clock|\bfs\b|blocked for more than|\bceph|beegfs|\bfuse\b|s3fs|\bvfs\b|sssd|read-only file",
    "sys.node-failure": r"node (?:failure|fail|lost|down)|notready|heartbeat(?!.?monitor)|kernel panic|machine check|node_fail|host error|"
    r"node \S+ (?:is )?(?:marked )?(?:dead|down|lost)|chassis power|(?:node|host|machine|server|kernel|system)\b.{0,30}\bcrashed|retirement|lost_host|underlying hardware",
    "sw.nccl-version-mismatch": r"version (?:mismatch|differ)|different .*version|mismatched nccl",
    "sw.library-conflict": r"symbol|undefined reference|glibcxx|cxxabi|elf class|dll load|(?:open|load|find|import)\w* (?:\S+ ){0,3}(?:lib\w+\.so|librar)|shared object|libnccl\.so|glibc|ld_library_path|libcud",
    "sw.no-nccl-backend": r"built without|not built|not compiled|backend .*(?:not|un)available|nccl built",
    "app.bad-tensor": r"tensor(?![ _-]?(?:parallel|board|rt|flow|core))|dtype|scalar type|shape|contiguous|split sizes|\bdim(?:ension)?s?\b",
    "app.pg-misuse": r"process group|init_process_group|process_group|communicator",
    "app.collective-mismatch": r"mismatch.*collective|collective.*mismatch|fingerprint|desync|incorrect receive info|truncated",
    "app.ddp-unused-params": r"unused param|did not receive grad|find_unused",
    "app.dataloader-worker": r"dataloader|data loader worker",
    "app.nan-or-data": r"\bnan\b|\binf\b|overflow|loss scale|(?<!memory )corrupt|truncated",
    "app.uneven-inputs": r"batches|uneven|exhausted|stopiteration",
    "env.bad-nccl-var": r"(?-i:\b(?:TORCH_)?NCCL_(?!DEBUG|ERROR)[A-Z_]+\b(?!\())",
}

# Who speaks, and what the program is at, rather than what is wrong.
_SPEAKERS = frozenset(("net.plugin", "sys.container", "app.pg-misuse", "app.bad-tensor", "env.bad-nccl-var"))


@functools.cache
def _status_words(cause: str) -> re.Pattern[str]:
    return re.compile(STATUS[cause], re.IGNORECASE)


def _statuses(text: str) -> list[str]:
    """The causes that a line's status words name."""
    return [cause for cause in STATUS if _status_words(cause).search(text)]


def named(text: str) -> tuple[list[str], list[str]]:
    """The causes that a line's words name: its subjects, else what its status words say, else who speaks; and the others."""
    words = [cause for cause in TOPICS if _words(cause).search(text)]
    subjects = [cause for cause in words if cause not in _SPEAKERS]
    speakers = [cause for cause in words if cause in _SPEAKERS]
    told = [cause for cause in _statuses(text) if cause not in subjects]
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
    r"NCCL INFO (?!.*(?:->|rror|ail|Disabled|refused|timed out|nreachable))|Traceback|closing signal|error_file|elastic/errors|(?:^|\s)File \"[^\"]+\", line \d|OMP_NUM_THREADS|NOERROR|no error|0 errors|without error|"
    r"errors?[:=] ?0\b|^(?!.*(?:ailed|nable to|annot|denied|refused|No such|No space))\s*[\w ./()-]{2,60}\s*$|^\s*(?:# (?:HELP|TYPE) .*|\w+\{.{0,400}\} 0(?:\.0+)?|[\w ./()-]{2,60}[^:]:\s+(?:0|No|N/A|None|Disabled|Not Active))\s*$|CUDA kernel errors might|For debugging consider|Some NCCL operations have failed|taking the entire process down"
)


_FAILURE_WORDS = re.compile(
    r"Traceback \(most recent|\b(?:ERROR|FATAL|CRITICAL)\b|\bError executing\b|^Error: |NCCL WARN|[Ff]ailed\b|\bFAILED\b|core dumped|Aborted|"
    r"terminate called|\bdied\b|terminated with (?:exit )?(?:code|signal)|exited with (?:exit )?(?:code|status) -?[1-9]|"
    r"\b[Kk]illed\b|[Ss]egmentation fault|\bCANCELLED\b|\bTerminated\b|\b[Aa]borted\b|\bpanic\b|\bcrash(?:ed)?\b|"
    r"\b(?:vanished|disappeared|lost (?:communication|connection))\b|\b(?:hangs|hanging|hung|stuck|stalled)\b|\bno (?:step|progress|update)s? for\b|\bstill no\b|^\^C\s*$|"
    r"\bexceeded\b|\bunreachable\b|not responding|\b[Tt]imed out\b|(?:exit|return) (?:code|status):? -?[1-9]|\(exit -?[1-9]|"
    r"\baborting\b|TERM_[A-Z]+LIMIT|"
    r"^(?:\W?\S{1,60}\W?\s)?[\w.]{0,80}[a-z]Error: ",
    re.MULTILINE,
)
_COUNTED_NONE = re.compile(
    r"\b(?:nothing|none|no \w{3,12}) (?:has |have )?failed\b|\b0 (?:failed|failures|errors?|killed|aborted|timed out)\b|"
    r"\b(?:failed|errors?)\b[ \w]{0,12}: ?(?:none\b|null\b|\[\])|"
    r"\b\w*(?:failed|errors?|aborted|died|killed|timed out)\w*(?:(?:[ _][A-Za-z]\w*){0,2}['\"]?\s*[:=]\s*| )0(?:\.0+)?\b",
    re.IGNORECASE,
)


def may_say_failure(texts: Iterable[str]) -> bool:
    """Whether one of these lines may (:func:`says_failure`); asked of all at once, which is seldom so."""
    return _FAILURE_WORDS.search("\n".join(texts)) is not None


def says_failure(text: str) -> bool:
    """Whether a line says that something failed, and does not merely count that nothing did."""
    told = _FAILURE_WORDS.search(_COUNTED_NONE.sub("", text)) is not None
    return told and not bystanders.lists_settings(text) and not bystanders.is_of_a_model(text)


def sounds_bad(text: str) -> bool:
    """Whether a line with a word of trouble is more than noise, or than a system service's note."""
    return not _NOISE.search(text) and (not bystanders.is_of_a_service(text) or says_failure(text))


def _quiet(case: Case, loud: set[tuple[str, int]]) -> list[Hit]:
    """The last lines that sound like no trouble and say in plain words that something failed."""
    ends = (hit for hits in case.summary.tails.values() for hit in _failing(hits) if place(hit) not in loud)
    return [hit for hit in ends if "NCCL INFO" not in hit.text and not bystanders.is_of_a_service(hit.text)]


def _failing(hits: list[Hit]) -> list[Hit]:
    """Those of these lines that say that something failed."""
    joined = "\n".join(hit.text.replace("\n", " ") for hit in hits)  # few logs have one: asked of all at once
    lines = {joined.count("\n", 0, found.start()) for found in _FAILURE_WORDS.finditer(joined)}
    return [hits[line] for line in sorted(lines) if says_failure(hits[line].text)]


@functools.lru_cache(maxsize=1)
def trouble(case: Case) -> list[Hit]:
    """The lines that sound like trouble and are not known to be harmless or mere consequences."""
    quiet = {place(hit) for harmless in case.seen(Role.HARMLESS) for hit in case.hits(harmless.name)}
    found = [hit for hit in case.hits("error-line") if place(hit) not in quiet and sounds_bad(hit.text)]
    return sorted(found, key=lambda hit: not prefix.is_glog_error(hit.text))  # its level says so, not only a word


_ADVICE = re.compile(r"\(run with NCCL_DEBUG=\w+ for details\)")
_NUMBER = re.compile(r"\d+")
_TOLD = frozenset(
    number for words in (*TOPICS.values(), *STATUS.values()) for number in re.findall(r"(?<![\d{,])\d+", words)
)
_ANY = "77"  # stands for all numbers that no words ask for
_ASKED = 600  # characters of a line: its end, behind the prefixes
_SHAPES = 150  # so many different lines tell what a log is about


def vote(case: Case) -> list[tuple[str, list[Hit]]]:
    """The causes that words of trouble name, each with its lines: of most lines first, of equals in the order of the tables.

    What a line names beside its subject comes last, and so does what quiet lines tell by status words.
    """
    tables: tuple[dict[str, list[Hit]], ...] = tuple({cause: [] for cause in (*TOPICS, *STATUS)} for _ in range(2))
    effects = _effects(case)
    loud = [hit for hit in trouble(case) if place(hit) not in effects]
    for hit, named_by in _asked(loud, named):
        for table, causes in zip(tables, named_by, strict=True):
            for cause in causes:
                table[cause].append(hit)
    calm = case.seen(Role.HARMLESS, Role.PROGRESS, Role.END)
    for hit, causes in _asked(_quiet(case, {*effects, *map(place, loud)}), _statuses):
        if causes and not any(signature.match(hit.text) is not None for signature in calm):
            for cause in causes:
                if cause != "launch.killed":  # what launchers do to those that are left
                    tables[1][cause].append(hit)
    chosen, beside = (sorted(table.items(), key=lambda pair: -len(pair[1])) for table in tables)
    told = {cause for cause, hits in chosen if hits}
    return [pair for pair in (*chosen, *(pair for pair in beside if pair[0] not in told)) if pair[1]]


def _effects(case: Case) -> set[tuple[str, int]]:
    """Where the lines of symptoms stand."""
    return {place(hit) for symptom in case.seen(Role.SYMPTOM) if symptom.cause for hit in case.hits(symptom.name)}


def _asked(hits: Iterable[Hit], ask: Callable[[str], _T]) -> Iterator[tuple[Hit, _T]]:
    """The lines with what ``ask`` says of each; those that differ only in numbers that no words ask for are asked once."""
    known: dict[str, _T] = {}
    for hit in hits:
        shape = _NUMBER.sub(lambda number: number.group() if number.group() in _TOLD else _ANY, hit.text[-_ASKED:])
        if shape not in known and len(known) < _SHAPES:
            known[shape] = ask(_ADVICE.sub("", shape))
        if shape in known:
            yield hit, known[shape]


def said_beneath(case: Case, ends: Iterable[Hit]) -> bool:
    """Whether a line of trouble other than these, which tell how processes ended, is about something beneath the program.

    That somebody was killed is what launchers do to those that are left.
    """
    known = _effects(case) | set(map(place, ends))
    others = [hit for hit in trouble(case) if place(hit) not in known]
    return any(cause not in ("", "launch.killed") for _, cause in _asked(others, beneath))


def about(case: Case, cause: str) -> list[Hit]:
    """The lines that sound like trouble and whose words belong to this cause."""
    return [hit for hit in trouble(case) if _words(cause).search(hit.text)] if cause in TOPICS else []
