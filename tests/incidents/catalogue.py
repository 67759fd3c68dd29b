"""Every incident: how it is started, and which cause is right.

``cause`` is what happened; ``acceptable`` are other answers that the same output honestly allows. ``evidence`` must
occur in the quoted evidence of the first cause (or of the causes, where the output does not decide). ``undecidable``
says that the output does not decide: then "undecided" with the cause among the candidates is right as well.
"""

from __future__ import annotations

import dataclasses
import signal

Environment = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Incident:
    """One incident. ``how`` is a launcher of `launch.py`; ``worker`` names the worker's function."""

    name: str
    cause: str
    acceptable: tuple[str, ...] = ()
    evidence: str = ""
    undecidable: bool = False
    worker: str = ""
    how: str = "torchrun"
    ranks: int = 2
    env: Environment = dataclasses.field(default_factory=dict)
    setup: tuple[str, ...] = ()  # shell commands in a private network and mount namespace, before the launcher
    cgroup: Environment = dataclasses.field(default_factory=dict)  # "memory/memory.limit_in_bytes": "600M"
    send: signal.Signals | None = None  # to the launcher, once it trains
    restarts: int = 0  # torchrun's --max-restarts
    per_rank: bool = False  # one file per rank instead of one console
    quick: bool = False  # part of `make test`
    recorded: bool = True  # what it printed is kept in tests/cases/explain

    @property
    def needs_root(self) -> bool:
        return bool(self.setup or self.cgroup)


DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
MISMATCH, STRAGGLER, UNEVEN = "app.collective-mismatch", "app.straggler-timeout", "app.uneven-inputs"
LOOPBACK = "ip link set lo up"
ADDRESS = "ip addr add 10.83.0.1/32 dev lo"

INCIDENTS: tuple[Incident, ...] = (
    # One rank fails, the others suffer.
    Incident("rank-exception", "app.rank-exception", evidence="KeyError: 'dgo'", quick=True),
    Incident("rank-exception-caught-late", "app.rank-exception", evidence="train-00017.tar", ranks=3, per_rank=True),
    Incident("swallowed-exception", MISMATCH, ("app.rank-exception", UNEVEN, STRAGGLER), "skipping bad batch 2"),
    Incident("segfault", "sw.nccl-bug", ("app.rank-exception",), "Signal 11 (SIGSEGV)", undecidable=True),
    Incident(
        "segfault-below-own-line",
        "app.rank-exception",
        evidence="in segfault_below_own_line",
        env={"PYTHONFAULTHANDLER": "1"},
    ),
    Incident("nan-loss", "app.nan-or-data", ("app.rank-exception",), "loss is NaN"),
    # Ranks that call different things.
    Incident(
        "conditional-collective",
        MISMATCH,
        evidence="Detected mismatch between collectives",
        env=DETAIL,
        ranks=3,
    ),
    Incident("shape-mismatch", MISMATCH, ("app.bad-tensor",), "TensorShape=[149]", env=DETAIL, ranks=3),
    Incident("dtype-mismatch", MISMATCH, ("app.bad-tensor",), "Double", env=DETAIL),
    Incident("order-mismatch", MISMATCH, evidence="BROADCAST", env=DETAIL),
    Incident(
        "detail-with-ddp",
        "sw.nccl-bug",
        ("app.rank-exception", "sw.library-conflict"),
        "Signal 11 (SIGSEGV)",
        env=DETAIL,
        undecidable=True,
    ),
    Incident("size-mismatch-undetected", MISMATCH, ("app.bad-tensor",), "distributed collective mismatch"),
    Incident(
        "skipped-with-dumps",
        MISMATCH,
        evidence="gloo:broadcast",
        ranks=3,
        env={"TORCH_FR_BUFFER_SIZE": "64"},
        recorded=False,  # dumps are binary: tests/fixtures/flight_recorder holds some
        quick=True,
    ),
    Incident("send-recv-cycle", MISMATCH, evidence="Timed out waiting", ranks=3),
    Incident("barrier-missing", STRAGGLER, (MISMATCH,), "monitoredBarrier", ranks=3),
    Incident("monitored-barrier-after-exception", "app.rank-exception", ("app.nan-or-data",), "image_00931", ranks=3),
    # Slow ranks, uneven data.
    Incident("straggler", STRAGGLER, (MISMATCH,), "Timed out waiting", undecidable=True),
    Incident("uneven-inputs", UNEVEN, (MISMATCH,), "data loader has 3 batches", undecidable=True),
    Incident("uneven-join", UNEVEN, evidence="exhausted", ranks=2),
    Incident("uneven-join-healthy", "healthy", ranks=2),
    # DDP.
    Incident("unused-parameters", "app.ddp-unused-params", evidence="Expected to have finished reduction", quick=True),
    Incident("parameter-used-twice", "app.ddp-unused-params", evidence="marked as ready twice"),
    Incident("different-models", MISMATCH, ("app.bad-tensor", "unrelated"), "params"),
    # FSDP, DTensor, torch.compile.
    Incident("fsdp-different-models", MISMATCH, ("app.bad-tensor",)),
    Incident("fsdp-skipped-forward", MISMATCH, (STRAGGLER, UNEVEN), undecidable=True),
    Incident("mixed-dtensor", "unrelated", ("app.bad-tensor",), "got mixed torch.Tensor and DTensor"),
    Incident("compiled-graphs-differ", MISMATCH, (STRAGGLER,), undecidable=True),
    # Ranks that end in ways of their own.
    Incident("exit-without-words", "app.rank-exception", ("unrelated",), "exitcode  : 3", undecidable=True),
    Incident("rank-done-early", UNEVEN, (MISMATCH,), "Connection closed by peer", ranks=3, undecidable=True),
    Incident("prefetch-thread-died", "app.rank-exception", evidence="sample 8123 has 0 tokens", ranks=3),
    Incident("gave-up-in-words", "app.rank-exception", evidence="32064 embedding rows"),
    Incident("hook-raises", "app.rank-exception", evidence="KeyError: 'norm'"),
    Incident("backward-raises", "app.rank-exception", evidence="scale of zero"),
    Incident("task-group-raises", "app.rank-exception", evidence="shard 2 is not in the manifest"),
    Incident("exhausted-restarts", "app.rank-exception", evidence="batch 17 has no labels", restarts=1),
    Incident("stacks-of-a-mismatch", MISMATCH, evidence="in all_gather"),
    Incident("worker-raises", "app.rank-exception", evidence="caption"),
    Incident("unpicklable-object", "app.rank-exception", evidence="pickle"),
    Incident("key-never-set", STRAGGLER, evidence="tokenizing shard"),
    Incident("pipeline-sizes-differ", MISMATCH, ("app.bad-tensor",), "op.preamble.length"),
    Incident(
        "distributed-checkpoint-incomplete",
        "unrelated",
        ("app.nan-or-data", "app.rank-exception"),
        ".metadata",
    ),
    # Data loading.
    Incident("dataloader-killed", "app.dataloader-worker", ("sys.host-oom",), "DataLoader worker (pid"),
    Incident("dataloader-timeout", "app.dataloader-worker", (STRAGGLER,), "DataLoader timed out"),
    Incident(
        "dataloader-shared-memory",
        "sys.shm",
        ("app.dataloader-worker",),
        "shared memory",
        setup=(LOOPBACK, "mount -t tmpfs -o size=1m tmpfs /dev/shm"),
    ),
    # Memory, files, threads, disk.
    Incident(
        "host-memory-cgroup",
        "sys.host-oom",
        evidence="Memory cgroup out of memory: Killed process",
        cgroup={"memory/memory.limit_in_bytes": "1800M"},
    ),
    Incident("host-memory-limit", "sys.host-oom", ("app.rank-exception",), "DefaultCPUAllocator"),
    Incident("open-files", "sys.nofile", evidence="Too many open files", quick=True),
    Incident("thread-limit", "sys.threads", evidence="can't start new thread", cgroup={"pids/pids.max": "220"}),
    Incident(
        "disk-full",
        "sys.disk-full",
        evidence="inline_container.cc",
        setup=(LOOPBACK, "mount -t tmpfs -o size=1m tmpfs {checkpoints}"),
    ),
    Incident(
        "checkpoint-truncated",
        "app.nan-or-data",
        ("unrelated", "app.rank-exception"),
        "PytorchStreamReader",
    ),
    Incident(
        "checkpoint-of-another-model",
        "unrelated",
        ("app.rank-exception", "app.bad-tensor", "app.nan-or-data"),
        "Error(s) in loading state_dict",
    ),
    # Killed from outside.
    Incident(
        "sigterm",
        "launch.killed",
        evidence="Received 15 death signal",
        worker="endless",
        send=signal.SIGTERM,
        quick=True,
    ),
    Incident("sighup", "launch.killed", evidence="got signal: 1", worker="endless", send=signal.SIGHUP),
    Incident("interrupt", "launch.killed", evidence="got signal: 2", worker="endless", send=signal.SIGINT),
    Incident("preempted", "launch.killed", evidence="SIGTERM", send=signal.SIGTERM),
    Incident(
        "kill-own-rank",
        "launch.killed",
        ("sys.host-oom",),
        "Signal 9 (SIGKILL)",
        undecidable=True,
    ),
    # Launching.
    Incident(
        "env-missing",
        "launch.env-missing",
        evidence="RANK expected, but not set",
        worker="healthy",
        how="bare",
        quick=True,
    ),
    Incident(
        "world-size-too-large",
        "launch.world-size",
        evidence="clients joined",
        worker="healthy",
        how="one-missing",
        ranks=3,
    ),
    Incident(
        "node-missing",
        "launch.world-size",
        ("launch.rdzv",),
        "RendezvousTimeoutError",
        worker="healthy",
        how="node-missing",
        ranks=1,
    ),
    Incident(
        "port-in-use",
        "net.port-in-use",
        evidence="EADDRINUSE",
        worker="healthy",
        how="port-in-use",
        ranks=1,
        quick=True,
    ),
    Incident(
        "port-in-use-torchrun",
        "net.port-in-use",
        evidence="already in use",
        worker="healthy",
        how="port-in-use-torchrun",
        ranks=1,
    ),
    # Network.
    Incident(
        "master-refused",
        "net.master-unreachable",
        ("launch.world-size",),
        "timed out",
        worker="healthy",
        how="worker-only",
    ),
    Incident(
        "master-dropped",
        "net.master-unreachable",
        ("net.firewall", "launch.world-size"),
        "timed out",
        worker="healthy",
        how="worker-only",
        env={"MASTER_ADDR": "10.83.0.1"},
        setup=(
            LOOPBACK,
            ADDRESS,
            "nft add table inet t",
            "nft add chain inet t i '{{ type filter hook input priority 0; }}'",
            "nft add rule inet t i ip daddr 10.83.0.1 drop",
        ),
    ),
    Incident(
        "master-no-route",
        "net.master-unreachable",
        ("net.wrong-interface", "net.firewall"),
        "10.83.7.7",
        worker="healthy",
        how="worker-only",
        env={"MASTER_ADDR": "10.83.7.7"},
        setup=(LOOPBACK,),
    ),
    Incident(
        "hostname-unknown",
        "net.hostname-resolution",
        evidence="gpu-node-07.invalid",
        worker="healthy",
        how="worker-only",
        env={"MASTER_ADDR": "gpu-node-07.invalid"},
    ),
    Incident(
        "firewall-behind-master-port",
        "net.firewall",
        ("net.wrong-interface", "net.hostname-resolution"),
        "connectFullMesh",
        worker="healthy",
        how="env",
        env={"MASTER_ADDR": "10.83.0.1", "GLOO_SOCKET_IFNAME": "eth0"},
        setup=(
            LOOPBACK,
            "ip link add eth0 type veth peer name eth1",
            "ip link set eth1 up",
            "ip link set eth0 up",
            "ip addr add 10.83.0.1/24 dev eth0",
            "nft add table inet t",
            "nft add chain inet t i '{{ type filter hook input priority 0; }}'",
            "nft add rule inet t i tcp dport != {port} tcp flags syn / fin,syn,rst,ack drop",
        ),
    ),
    Incident(
        "interface-missing",
        "net.wrong-interface",
        ("env.bad-nccl-var",),
        "eth9",
        worker="healthy",
        how="env",
        env={"GLOO_SOCKET_IFNAME": "eth9"},
        quick=True,
    ),
    # Process groups and tensors.
    Incident("collective-before-init", "app.pg-misuse", evidence="has not been initialized"),
    Incident("init-twice", "app.pg-misuse", evidence="default process group twice"),
    Incident("destroyed-group", "app.pg-misuse", evidence="has not been initialized"),
    Incident("wrong-group", "app.pg-misuse", ("app.rank-exception",), "is not part of"),
    Incident("nccl-without-gpu", "sw.no-nccl-backend", ("gpu.not-visible",), "NCCL"),
    Incident("unknown-backend", "unrelated", ("app.pg-misuse", "sw.no-nccl-backend"), "ncll"),
    Incident("unsupported-dtype", "app.bad-tensor", ("app.rank-exception",), "Invalid scalar type"),
    Incident("version-mismatch", "sw.nccl-version-mismatch", ("app.rank-exception", "unrelated"), "2.11.0+cpu"),
    # Nothing to do with distributed computing.
    Incident("import-error", "unrelated", ("app.rank-exception",), "No module named"),
    Incident("syntax-error", "unrelated", ("app.rank-exception",), "SyntaxError"),
    Incident("bad-argument", "unrelated", ("app.rank-exception",), "invalid float value"),
    # Healthy.
    Incident("healthy", "healthy", quick=True),
    Incident("healthy-with-warnings", "healthy"),
    Incident("healthy-after-logged-exception", "healthy"),
    Incident("healthy-after-restart", "healthy", restarts=1),
)

BY_NAME = {incident.name: incident for incident in INCIDENTS}
