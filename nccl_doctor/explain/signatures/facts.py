"""Lines that prove nothing by themselves but say where, who, which version, which path: other rules combine them."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

_BUSBW_ROW = re.compile(
    r"(?<![\w.])(?P<test>(?P<size>\d{1,14})\s+\d{1,13}\s+(?:float|double|half|bfloat16|bf16|u?int\d+|fp8\w*|f8\w*)\s+(?:\w+\s+)?(?:-?\d+\s+)?)"
    r"\d+(?:\.\d+)?\s+(?P<algbw>\d+\.\d+)\s+(?P<busbw>\d+\.\d+)"
)
_TESTS_LARGEST = re.compile(r"_perf\b.{0,200}? (?:-e|--maxbytes)[ =]?(?P<number>\d{1,14})(?P<unit>[KMGkmg]?)\b")
# Somebody's words of a job: a library that speaks of slowness advises, or warns of what may be.
_TIMES = re.compile(
    r"\b(?:time|latency|duration)\b.{0,30}?(?<![\d.])(?:[2-9]|\d\d+)(?:\.\d+)?x (?:the )?(?:reference|baseline)",
    re.IGNORECASE,
)
_SLOW_WORDS = re.compile(
    r"\b(?:so|too|very|really|extremely|super|way|much|terribly|(?:\d+(?:\.\d+)? ?(?:x|times))|twice as|half as) slow(?:er)?\b|"
    r"\b(?:training|job|run|everything|steps?|it) (?:is|are|was|got|gets|became|runs?) (?:now )?(?:slow(?:er)?|crawling)\b|"
    r"\bhalf (?:of )?the (?:speed|pace|throughput)\b|\b(?:speed|pace|throughput) is (?:only |about ){0,2}half\b|\b(?:only|just) as fast as\b",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"warning|\bWARN|\bINFO\b|DEBUG|\.py[:\"]|https?://|\b(?:if|consider|recommend\w*|may|might|could|will|use|using)\b|"
    r"\b(?:is|as) (?:normal|expected)|\bonly (?:at|during|for|in) the first|\bwarm-?up",
    re.I,
)
# A library's general advice: "the speed can be slower than", "may be very slow"; nothing was measured.
_MAY_BE = re.compile(
    r"\b(?:can|could|may|might|would|will likely) (?:\w+ ){0,2}(?:be(?:come)?|run|perform|lead to|result in|cause) (?:\w+ ){0,3}slow|\bPossible Cause:"
)

says(
    "nccl-init-start",
    "comm {pointer:hex} rank {rank:int} nranks {nranks:int} cudaDev {device} commId {comm:hex} - Init START",
    " rank {rank:int} nranks {nranks:int} cudaDev {device} commId {comm:hex} - Init START",
    " rank {rank:int} nranks {nranks:int} cudaDev {device}- Init START",
    why="A communicator's initialisation began on this rank. Without Init COMPLETE it hung or died in there.",
)
says(
    "nccl-init-complete",
    "comm {pointer:hex} rank {rank:int} nranks {nranks:int} cudaDev {device} commId {comm:hex} - Init COMPLETE",
    " rank {rank:int} nranks {nranks:int} cudaDev {device} commId {comm:hex} - Init COMPLETE",
    " rank {rank:int} nranks {nranks:int} cudaDev {device} - Init COMPLETE",
    " rank {rank:int} nranks {nranks:int} - COMPLETE",
    role=Role.PROGRESS,
    why="A communicator is complete on this rank: bootstrap, topology and transports worked.",
)
says(
    "nccl-comm-rank",
    "NCCL INFO comm {comm:hex} rank {rank:int} nRanks {nranks:int} nNodes",
    why="Rank and size of a communicator.",
)
says(
    "mnnvl-used",
    " MNNVL {used:int}",
    why="Whether this communicator uses NVLink between nodes (MNNVL).",
    where=lambda groups, line: groups["used"] == "1",
)
says("nccl-nodes", " nNodes {nodes:int} localRanks {local:int}", why="How many nodes NCCL sees.")
says(
    "nnodes",
    "--nnodes={nodes:int}",
    "--nnodes {nodes:int}",
    "--num_nodes {nodes:int}",
    "--num_nodes={nodes:int}",
    "min_nodes          : {nodes:int}",  # torchrun's launch configs
    why="How many nodes the launcher was asked for.",
)
says(
    "one-node",
    "torchrun --standalone",
    "torch.distributed.run --standalone",
    "Started a local Ray instance",
    why="The launcher keeps to this host.",
)
says(
    "world-size",
    "world_size={world:int}",
    "orld size: {world:int}",
    "WORLD_SIZE={world:int}",
    "world_size: {world:int}",
    "world size {world:int}",
    "world_size {world:int}",
    "MEMBER: {}/{world:int}",
    why="The number of ranks the program says it has.",
)
says("accelerate-alone", "Distributed environment: DistributedType.NO", why="Accelerate runs this process by itself.")
says("accelerate-processes", "Num processes: {world:int}", why="How many processes Accelerate knows of.")
says(
    "lightning-member",
    "GLOBAL_RANK: {rank:int}, MEMBER: {member:int}/{world:int}",
    why="Lightning's process of this global rank comes to init_process_group. Each rank says it once.",
)
says(
    "bootstrap-using",
    "Bootstrap : Using [0]{interface}:{address}<",  # before NCCL 2.10; read first, else [0] is part of the name
    "Bootstrap : Using {interface}:{address}<",
    "Bootstrap: Using {interface}:{address}<",
    why="The interface and address NCCL's bootstrap chose on this host.",
)
says(
    "net-ib-using",
    "NET/IB : Using {devices}; OOB {oob}",
    why="The HCAs NCCL uses.",
)
says("kernel-link-up", ": Link up", "NIC Link is Up", "link becomes ready", why="A network link is up (kernel log).")
says("net-socket-using", "NET/Socket : Using {interfaces}", why="The interfaces NET/Socket could use.")
says(
    "network-used",
    "Using network {network:word}",
    "Assigned NET plugin {network:word} to comm",
    "Using internal Network {network:word}",
    why="The network this process really uses.",
)
says(
    "no-ib-device",
    "NET/IB : No device found.",
    "NET/IB: No device found.",
    why="No usable HCA: no active port, NCCL_IB_HCA matches nothing, or no /dev/infiniband. Harmless where there is none or on a single node.",
)
says(
    "no-verbs-library",
    "Failed to open libibverbs.so",
    "Count not open libibverbs",
    why="No rdma-core in the image: harmless without InfiniBand.",
)
says("channel-net", "via NET/{network}/{device:int}", why="A channel goes over the network.")
says(
    "nvls-available",
    "NVLS multicast support is available on dev {device:int}",
    why="The GPU stands on NVSwitches: its peers on this host are reached at the full rate of its NVLinks.",
)
says("channel-gdr", "/GDRDMA", why="A channel uses GPUDirect RDMA.")
says("channel-p2p", "via P2P/{kind:word}", why="A channel uses peer-to-peer.")
says(
    "channel-shm",
    "via SHM/{kind:word}",
    "via direct shared memory",
    why="A channel uses shared memory, so these GPUs have no P2P.",
)
says("gdr-disabled", "GPU Direct RDMA Disabled for {what}", why="No GPUDirect RDMA between this GPU and HCA.")
says("nccl-version", "NCCL version {version:word}", why="NCCL's version.")
says("nccl-error-version", ", NCCL version {version:word}", why="NCCL's version, in torch's error text.")
_OTHER_TORCH = re.compile(  # the one that something was built for, or wants
    r"\(you have |\b(?:(?:built|compiled) (?:for|with|against)|requires?|needs?)(?: at least)? (?:py)?torch\b",
    re.IGNORECASE,
)
says(
    "torch-version",
    "torch=={version:word}",
    "torch {version:word}+cu",
    "PyTorch version: {version:word}",
    "torch version: {version:word}",
    "torch.__version__ {version:word}",
    "torch: {version:word}",
    "PyTorch {version:word}",
    "torch version {version:word}",
    why="torch's version.",
    where=lambda groups, line: groups["version"][:1].isdigit() and _OTHER_TORCH.search(line) is None,
)
says(
    "driver-version",
    "Driver Version: {version:num}",
    "Driver Version                            : {version:num}",
    "NVIDIA driver version: {version:num}",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version:num}",
    why="The NVIDIA driver's version.",
)
says("plugin-ofi-version", "aws-ofi-nccl {version:word}", why="The version of the EFA plugin.")
says(
    "env-echo",
    "NCCL INFO {name:word} set by environment to {value}",
    "NCCL INFO {name:word} set to {value}",
    why="NCCL read this variable in this process.",
    where=lambda groups, line: groups["name"].startswith("NCCL_"),
    wake=(" set to ", " set by environment to "),
)
says(
    "random-run-id",
    "config has no run_id, generated a random run_id",
    why="torchrun draws a rendezvous id of its own where it was given none.",
)
says(
    "keep-alive-failed",
    "failed to send a keep-alive heartbeat to the rendezvous",
    why="Only an agent that has joined a rendezvous sends these.",
)
says(
    "env-set",
    *(
        f"{name}={{value:word}}"
        for name in (
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "NCCL_IB_GID_INDEX",
            "NCCL_IB_HCA",
            "NCCL_COMM_ID",
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
            "NCCL_NET",
            "NCCL_IB_DISABLE",
            "NCCL_P2P_LEVEL",
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NCCL_NET_GDR_LEVEL",
            "NCCL_TOPO_FILE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "NCCL_NET_PLUGIN",
            "CUDA_VISIBLE_DEVICES",
            "NCCL_CROSS_NIC",
            "NCCL_TIMEOUT",
            "NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_BUFFSIZE",
            "NCCL_SOCKET_FAMILY",
            "NCCL_DEBUG",
            "NCCL_NVLS_ENABLE",
            "NCCL_MNNVL_ENABLE",
            "NCCL_IB_TIMEOUT",
            "NCCL_MAX_NCHANNELS",
            "NCCL_MIN_NCHANNELS",
            "NCCL_CUMEM_ENABLE",
            "NCCL_HOSTID",
            "NCCL_IB_TC",
            "NCCL_IB_SL",
            "TORCH_NCCL_BLOCKING_WAIT",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
            "NCCL_NTHREADS",
            "NCCL_OOB_NET_IFNAME",
        )
    ),
    *(
        f"{name}: {{value:word}}"
        for name in (
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
            "NCCL_IB_HCA",
            "NCCL_IB_GID_INDEX",
            "CUDA_VISIBLE_DEVICES",
            "MASTER_ADDR",
            "NCCL_P2P_DISABLE",
            "NCCL_IB_DISABLE",
        )
    ),
    why="A variable set on a command line or in a printed environment; the name is what stands before the sign.",
)
says(
    "master-flag",
    "--master_addr={address:word}",
    "--master_addr {address:word}",
    "--master-addr={address:word}",
    "--master-addr {address:word}",
    "--rdzv_endpoint={address:word}",
    "--rdzv_endpoint {address:word}",
    "--rdzv-endpoint={address:word}",
    "--rdzv-endpoint {address:word}",
    "rdzv_endpoint      : {address:word}",  # torchrun's launch configs
    why="The master's address on a launcher's command line, or as torchrun has read it.",
)
says("torchrun-host", "host      : {host:word}", every=True, why="A host in torchrun's failure table.")
says(
    "torchrun-rank",
    "rank      : {rank:int} (local_rank: {local:int})",
    every=True,
    why="A rank in torchrun's failure table.",
)
says("torchrun-exitcode", "exitcode  : {code:int} (pid: {pid:int})", why="Its exit code; negative is a signal.")
says(
    "remote-error",
    "remote process exited or there was a network error",
    "ncclRemoteError",
    why="NCCL lost the other end of a connection: this rank is the victim of another one, or of the network.",
)
says(
    "collective-call",
    "INFO {operation:word}: opCount {number:hex} sendbuff {} recvbuff {} count {count:int} datatype {type:int} op {op:int} root {root:int} "
    "comm {comm:hex} [nranks={nranks:int}]",
    why="NCCL_DEBUG_SUBSYS=COLL: a rank calls a collective. The number counts the launches of the communicator, in hexadecimal.",
)
says(
    "busbw-row",
    " float ",
    " bfloat16 ",
    " half ",
    " double ",
    " bf16 ",
    " fp8",
    "int8 ",
    "int32 ",
    "int64 ",
    why="A result row of nccl-tests: size, count, type, operation, root, then time, algbw and busbw.",
    pattern=_BUSBW_ROW,
    every=True,  # sizes and bandwidths differ in digits alone
)
says(
    "container-image",
    "pyxis: import{}docker image: {image:word}",
    'Pulling image "{image}"',
    'Successfully pulled image "{image}"',
    'Container image "{image}" already present on machine',
    "Status: Downloaded newer image for {image:word}",
    "Status: Image is up to date for {image:word}",
    "Unable to find image '{image}' locally",
    "enroot start {image}",
    ".sqsh",
    ".sif",
    every=True,  # tags differ in numbers alone
    why="Which container image a host runs: pyxis and enroot (Slurm), the kubelet, docker, Apptainer.",
)
says(
    "tests-range",
    " minBytes {smallest:int} maxBytes {largest:int} step: ",
    "Reducing maxBytes to {largest:int} due to memory limitation",
    why="nccl-tests says which sizes it will run.",
)
says(
    "tests-command",
    "_perf {options}",
    why="The command line of an nccl-test, with its largest size.",
    pattern=_TESTS_LARGEST,
)
says(
    "rank-on-host",  # as programs tell it when they start
    "ostname {host}, rank {rank:int}",
    "ip={host:word}, pid={pid:int}) world_rank={rank:int},",  # Ray Train
    "process rank {rank:int} with PID {pid:int} on node {host:word} exited",  # mpirun, when it is too late
    "SLURM_PROCID={rank:int} {}SLURMD_NODENAME={host:word}",
    "Rank={rank:int} Node={host:word} ",  # NVIDIA's resiliency extension
    "Rank {rank:int}, node {host:word}, device {device:int}",  # Megatron
    why="Which host a rank runs on.",
)
says(
    "ranks-of-hosts",
    "global_rank_mapping={mapping}",
    why="DeepSpeed's launcher: the ranks of each host.",
)
says(
    "map-of-node", "Data for node: {host:word}", every=True, why="mpirun --display-map: a host; its ranks stand below."
)
says(
    "map-of-rank",
    "App: {app:int} Process rank: {rank:int} Bound",
    every=True,
    why="mpirun --display-map: a rank of the host above.",
)
says(
    "rank-on-host-somehow",
    "local_rank",
    "local rank",
    " host ",
    " host=",
    pattern=re.compile(
        r"rank[ =:]{1,2}(?P<rank>\d{1,7})\b.{0,60}?\b(?:on|host|hostname|node)[ =:]{1,2}(?P<host>[A-Za-z0-9][\w.-]{1,63})"
    ),
    where=lambda groups, line: line.find("rank") < 60,
    sampled=True,
    why="The same, in words of the program's own.",
)
says(
    "rank-itself",
    "distributed init (rank {rank:int})",  # the reference scripts of DeiT, DINO, MAE and torchvision
    "Process rank: {rank:int}, device: ",  # Transformers' examples
    why="Which rank a process is; what stands before it tells where it runs.",
)
says(
    "node-started",
    "--node_rank",
    "--node-rank",
    "--machine_rank",
    pattern=re.compile(r"--(?:node|machine)[-_]rank[= ](?P<node>\d{1,5})\b"),
    why="The command that starts the ranks of a node: which of the job's nodes it is.",
)
says(
    "pod-on-node",
    "uccessfully assigned {}/{pod:word} to {node:word}",
    "uccessfully assigned {pod:word} to {node:word}",
    why="The scheduler's event: which node a pod runs on.",
)
says(
    "tests-device",
    "Rank {rank:int} Group {}Pid {pid:int} on {host:word} device {device:int} [",
    "Rank {rank:int} Pid {pid:int} on {host:word} device {device:int} [",
    why="nccl-tests' list of devices: which rank runs on which host.",
    where=lambda groups, line: "Rank" in line,
)
says(
    "tests-in-pairs",
    "sendrecv_perf",
    "hypercube_perf",
    why="A test of nccl-tests in which each rank sends to one other: an adapter serves one pair, whatever the others carry.",
)
says(
    "busbw-average",
    "Avg bus bandwidth    : {busbw:num}",
    role=Role.END,
    why="nccl-tests ran to its end.",
)
says(
    "gpu-model",
    "NVIDIA {model} ",
    "Tesla {model:word}",
    sampled=True,
    why="A GPU's model.",
    pattern=re.compile(r"H100|H20|A10|B[23]00|V100|[AH]800|L4|RTX|A40|GB10|T4"),
)
says("gloo-connected", "init.cc {}gloo", "Gloo connectFullMesh", "ProcessGroupGloo", why="Gloo takes part.")
says(
    "deepspeed-no-launcher",
    "Not using the DeepSpeed or dist launchers, attempting to detect MPI environment",
    why="None or not all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK are set: DeepSpeed asks MPI instead.",
)
says(
    "under-mpi",
    "mpirun ",
    "mpiexec ",
    "srun --mpi",
    "OMPI_COMM_WORLD_",
    why="MPI starts the processes.",
)
says(
    "deepspeed-init",
    "Initializing TorchBackend in DeepSpeed with backend",
    why="DeepSpeed initialises torch.distributed.",
)
says(
    "store-barrier",
    "store_based_barrier_key",
    "init_process_group",
    "torch/distributed/run.py",
    "torch.distributed.run",
    "torch.distributed.launch",
    "distributed_c10d.py",
    "ProcessGroupWrapper.cpp",
    why="torch.distributed takes part.",
)
says("wsl", "WSL2", "/usr/lib/wsl/", why="The Windows Subsystem for Linux.")
says(
    "smi-busy",
    "%      Default |",
    why="GPU utilisation in an nvidia-smi table.",
    where=lambda groups, line: "100%" in line,
)
says(
    "shm-full",
    "% /dev/shm",
    why="df: how full /dev/shm is.",
    pattern=re.compile(r"\b(?:9[5-9]|100)% /dev/shm"),
)
says(
    "disk-full-listing",
    "100% /",
    why="df: a file system is full.",
    where=lambda groups, line: "/dev/shm" not in line and re.search(r"\s100% /\S*\s*$", line) is not None,
)
says(
    "host-memory-used",
    "CPU Virtual Memory:",
    why="How full the host's memory was.",
    where=lambda groups, line: re.search(r"\b(?:9\d|100)(?:\.\d+)? ?%", line) is not None and "GPU" not in line,
)
says(
    "rdma-plugin",
    "NCCL RDMA Plugin",
    "P2P plugin IBext",
    "nccl_rdma_sharp_plugin",
    "IBext_v",
    why="The HPC-X RDMA plugin is loaded: an InfiniBand installation.",
)
says(
    "cannot-assign",
    "Cannot assign requested address",
    "bind: Cannot assign",
    why="An address is not on any interface of this host.",
)
says(
    "ib-async",
    "Got async event : {event}",
    "Got async error event: {event}",
    "Got non-fatal async event: {event}",
    "async fatal event{event}",
    why="An asynchronous event of an HCA.",
)
says(
    "ib-request-refused",
    "local access violation work queue error",
    "invalid request local work queue error",
    why="An adapter refused a request of its peer, and tells its own host so (IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR).",
)
says(
    "batch-count",
    "dataset size on rank {rank:int}: {count:int}",
    " batches",
    "num_batches",
    "len(loader)",
    "len(dataloader)",
    "len(train_loader)",
    " samples",
    "dataset size",
    sampled=True,
    why="A number of batches or samples.",
    where=lambda groups, line: "rank" in line.lower(),
)
says("ras-report", "Communicators... (", why="The table of an NCCL RAS report; its reader reads the whole report.")
EXPECTATION = (
    "expected",
    "expecting",
    "reference",
    "baseline",
    "nominal",
    "should be",
    "should reach",
    "normally",
    "usually",
    "single node",
    "single-node",
    "one node",
)
says(
    "expectation",
    *EXPECTATION,
    sampled=True,
    why="Somebody writes beside a measured rate or time what it ought to be.",
    pattern=re.compile(r"\d.{0,20}(?:/s|ps|s/it|/step|/iter)"),
)
EARLIER_RUN = (
    "last week",
    "last month",
    "last time",
    "last run",
    "yesterday",
    "previous run",
    "previously",
    "same config",
    "reference run",
    "used to be",
    "used to take",
    "should be about",
    "should take",
    "should be around",
    "normally",
    "usually",
    "instead of",
    "before the",
    "before this",
    "days ago",
    "this morning",
    "other node",
    "other partition",
    "other cluster",
    "other machine",
    "with the old",
    "on the old",
    "1 node",
    "one node",
    "single node",
    "on the same",
    "without it",
    "without the",
)
says(
    "earlier-run",
    *EARLIER_RUN,
    sampled=True,
    why="Somebody writes what an earlier run reached, or how long its steps took.",
    pattern=re.compile(r"\d"),
)
_COMMAND = re.compile(r"(?:^|\s)[\w.-]{1,32}@(?P<host>[\w.-]{1,64})[:\s][^$#]{0,80}[$#] (?P<command>\S.{3,600})$")
says(
    "command-on-host",
    "bench",
    "torchrun ",
    "mpirun ",
    "_perf ",
    "python",
    sampled=True,
    every=True,
    why="A shell's prompt that names its host, and the command that was typed there.",
    pattern=_COMMAND,
)
_RESULT = re.compile(r"(?P<name>[A-Z][A-Za-z ]{3,60}(?: \([\w/ ]{2,40}\))?):\s+(?P<rate>\d{1,15}(?:\.\d{1,9})?)\W*$")
says(
    "result-told",
    "hroughput (",
    "hroughput: ",
    sampled=True,
    every=True,
    why="A benchmark's summary: what it reached in a second.",
    pattern=_RESULT,
)
# "# two nodes, same batch": what somebody writes above a part of what he shows.
_NODES_HEADING = re.compile(
    r"(?:^|\s|\W\")[#=*>-]{1,12}\s+(?:[^\d:]{0,40}\b)?(?P<nodes>single|one|two|three|four|eight|\d{1,4})[ -](?:node|host|machine|server)s?\b.{0,80}$",
    re.IGNORECASE,
)
says(
    "nodes-heading",
    " node",
    "-node",
    " host",
    " machine",
    " server",
    sampled=True,
    every=True,
    why="A heading that somebody put above the steps of one of several runs: over how many nodes it went.",
    pattern=_NODES_HEADING,
)
says(
    "container-command",
    "docker run ",
    "podman run ",
    "nerdctl run ",
    "apptainer exec ",
    "singularity exec ",
    every=True,
    why="The command that started a container, with what it was given.",
)
says(
    "section",
    *(f"==> {{path}}{end} <==" for end in (".log", ".out", ".err", ".txt", "stderr", "stdout", ")")),
    "==> kubectl logs {path} <==",
    "==> docker logs {path} <==",
    every=True,
    why="head or tail over several files: what stands below is of that one.",
    where=lambda groups, line: line.startswith("==> ") and line.rstrip().endswith(" <=="),
)
says(
    "section-of-host",
    " | CHANGED",
    " | SUCCESS",
    " | FAILED",
    " | UNREACHABLE",
    pattern=re.compile(
        r"^(?:(?P<host>[A-Za-z0-9][\w.-]{0,63}) \| )?(?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?) (?:\| rc=\d+ >>|=> ?\{)"
    ),
    every=True,
    why="ansible: what stands below is of that host.",
)
says(
    "group-heading",
    "---------------",
    pattern=re.compile(r"^-{15,16}\s*$"),
    rows=1,
    every=True,
    why="clush -b and dshbak -c put the names of hosts between two such lines; what stands below is of these.",
)
says(
    "described",
    "Name:  ",
    pattern=re.compile(r"^Name:\s{2,40}(?P<host>[a-z0-9][a-z0-9.-]{0,252})\s*$"),
    every=True,
    why="kubectl describe: what stands below is of this pod or node.",
)
says(
    "described-node",
    "Node:  ",
    pattern=re.compile(r"^Node:\s{2,40}(?P<node>[a-z0-9][a-z0-9.-]{0,252})/"),
    every=True,
    why="kubectl describe: the node on which the pod runs.",
)
_TOOL = (
    r"(?:sudo )?(?:nvidia-smi|rocm-smi|dcgmi|dmesg|journalctl|ibstat|ibstatus|ibv_devinfo|show_gids|perfquery|ethtool|lspci|ipmitool|rdma|"
    r"systemctl|docker logs|cat /|df|free|ip |ulimit|ls )"
)
says(
    "typed-look",
    "nvidia-smi",
    "rocm-smi",
    "dcgmi ",
    "dmesg",
    "journalctl",
    "ibstat",
    "ibv_devinfo",
    "show_gids",
    "perfquery",
    "ethtool ",
    "lspci",
    "ipmitool",
    "docker logs",
    "# cat /",
    "$ cat /",
    "systemctl ",
    pattern=re.compile(
        r"[$#] (?:sudo )?(?:ssh|kubectl exec) (?:-\S+ )*(?:\w+@)?(?P<remote>[A-Za-z0-9][\w.-]{1,63}) (?:\S+ ){0,4}?['\"]?"
        + _TOOL
        + r"|[\w.-]{1,32}@(?P<host>[A-Za-z][\w.-]{1,63})[ :\])][^$#]{0,80}[$#] "
        + _TOOL
        + r"|^\W?(?P<bare>[A-Za-z][\w-]{0,40}\d[\w-]{0,20}) ?[$#] "
        + _TOOL
        + r"|^\[(?P<bracketed>[A-Za-z][\w-]{0,40}\d[\w-]{0,20})\] ?[$#] "
        + _TOOL
        + r"|^[=#-]{1,6} (?:\S+ ){1,3}?(?:of|from|on) (?P<titled>[A-Za-z][\w-]{0,40}\d[\w.-]{0,40})(?: [=#-]{1,6})?$"
        + r"|(?:^|\s)[$#] "  # at a host that is not told: no longer at the one before
        + _TOOL
    ),
    every=True,
    why="Somebody looks at a host: what a tool prints below is of that one.",
)
says(
    "typed-launch",
    "torchrun ",
    "mpirun ",
    "mpiexec ",
    "srun ",
    "python ",
    "python3 ",
    "deepspeed ",
    "accelerate ",
    "docker run ",
    "vllm serve",
    "_perf ",
    every=True,
    why="A command behind a shell's prompt that starts a program: what stands below it is another run than what stands above.",
    pattern=re.compile(
        r"(?:^|(?<=\s))(?:[\w.-]{1,32}@(?P<host>[A-Za-z][\w.-]{1,63})[ :\])][^$#]{0,60}|\[[\w.-]{1,32}@(?P<bracketed>[A-Za-z][\w.-]{1,63})"
        r"[ :][^$#]{0,60}|(?P<bare>[A-Za-z][\w-]{0,40}\d[\w-]{0,20}) ?|[\w.@:~/\[\]()-]{0,60})[$#] (?:\w+=\S+ )*(?:sudo |time |exec )?"
        r"(?:(?P<here>torchrun|python3?|accelerate launch|docker run|vllm serve)|mpirun|mpiexec|srun|deepspeed|\S{0,80}_perf) "
    ),
)
says(
    "nodes-in-command",
    "NNODES=",
    "--nnodes",
    "--num_nodes",
    "--num-nodes",
    "--num_machines",
    every=True,
    why="A command that starts a job, with the number of its nodes.",
    pattern=re.compile(r"(?:\bNNODES=|--nnodes[= ]|--num[_-](?:nodes|machines)[= ])(?P<nodes>[1-9]\d{0,3})(?![\d:])"),
)
says(
    "slow-complaint",
    "expected {}GB/s",
    "expected busbw",
    "below threshold",
    "below the gate",
    "slower than",
    "very slow",
    "super slow",
    "extremely slow",
    "too slow",
    "bandwidth is {}low",
    "below expected",
    "BELOW",
    "is below",
    "poor bandwidth",
    "under the threshold",
    "minimum bandwidth",
    "min_busbw",
    "busbw {measured:num} < {least:num}",
    "MIN_BW",
    "[FAILED]",
    "degraded",
    "baseline",
    sampled=True,
    why="A program or a person says that the bandwidth is too low.",
    where=lambda groups, line: (
        re.search("G[Bb]/s|busbw|andwidth|slow|BW", line) is not None
        and not _MAY_BE.search(line)
        and float(groups.get("measured", 0)) < float(groups.get("least", 1))
    ),
)

says(
    "slow-in-words",
    "slow",
    "only as fast",
    "just as fast",
    "half",
    "crawling",
    "x reference",
    "x the reference",
    "x baseline",
    "x the baseline",
    sampled=True,
    why="A person says of the job that it is slow.",
    where=lambda groups, line: (
        (_SLOW_WORDS.search(line) or _TIMES.search(line)) is not None and _ADVICE.search(line) is None
    ),
)
says(
    "nccl-warn",
    "NCCL WARN {message}",
    why="Any NCCL WARN: its source file and words tell which part of NCCL is in trouble.",
)
says(
    "gpu-table",
    "# gpu {}",
    "clocks.sm",
    "clocks.gr",
    "clocks.current.sm",
    "clocks.current.gr",
    "temperature.gpu",
    "#Entity {}SMCLK",
    "#Entity {}GPUTL",
    why="The heading of a table of GPUs with their clocks or heat: nvidia-smi dmon, dcgmi dmon, or a query (of `noheader` the command itself).",
    where=lambda groups, line: " pclk" in line or " tviol" in line if "# gpu" in line else "," in line or "  " in line,
    rows=96,  # of a few hosts with eight GPUs each
)
says(
    "device-rate",
    *(f"{who}{{told}}{unit}" for who in ("GPU ", "gpu ", "cuda:", "device ") for unit in ("FLOP", "GB/s", " MHz")),
    sampled=True,
    why="What one GPU reached, by a program that measures each.",
)
says(
    "step-timers",
    "time (ms) | ",
    every=True,
    why="DeepSpeed's wall_clock_breakdown: what the parts of a step took.",
    where=lambda groups, line: "allreduce" in line or "reduce" in line,
)
# Time (%), total time, instances, ... and the name at the end.
OF_NSYS = re.compile(r"(?:^|\s)(\d{1,3}\.\d{1,2})%?\s+\d[\d,]{0,24}\s+\d[\d,]{0,24}\s.{0,160}\bnccl(?:Dev)?Kernel_")
says(
    "kernel-shares",
    "nccl:{}%",
    "ncclDevKernel{}%",
    "ncclKernel{}%",
    ".{} ncclDevKernel_",
    ".{} ncclKernel_",
    why="A profile (torch.profiler, nsys stats): what share of the GPU's time a kernel of NCCL took.",
    where=lambda groups, line: re.search(r"nccl.{1,240}\d ?%", line) is not None or OF_NSYS.search(line) is not None,
)
says(
    "uptime",
    " up {told} load average: ",
    why="How long a host has been up.",
)
says(
    "sinfo-reasons",
    "REASON {}USER {}TIMESTAMP",
    why="The heading of sinfo -R: the nodes that Slurm does not use, and why.",
    rows=40,
)
says("ofi-any", "NET/OFI", why="The libfabric plugin speaks.", where=lambda groups, line: "WARN" in line)
says(
    "error-line",
    "error",
    "Error",
    "ERROR",
    "ailed",
    "FAILED",
    "ailure",
    "WARN",
    "<warn>",
    "fatal",
    "Fatal",
    "FATAL",
    "nable to",
    "annot ",
    "not found",
    "denied",
    "refused",
    "timed out",
    "imeout",
    "ismatch",
    "not match",
    "nvalid",
    "nactive",
    "own)",
    "DOWN",
    " down",
    "nexpected",
    "rejected",
    "xception",
    "ould not",
    "ouldn't",
    "not support",
    "orrupt",
    "issing",
    "not set",
    "bort",
    "died",
    "lost",
    "rror:",
    "xceeded",
    "unreachable",
    "not permitted",
    "is not ",
    "empty list",
    "hang",
    "crash",
    " dead",
    " reset",
    "inaccessible",
    "ffline",
    "ritical",
    " stale",
    "retirement",
    "negotiated",
    "downgraded",
    "not responding",
    "blocked for more than",
    "nsufficient",
    "not enough",
    "navailable",
    "uplicate",
    why="A line that sounds like trouble; its words tell the subject.",
)

says(
    "engine-names-its-nccl",
    "vLLM is using nccl=={version}",
    why="vLLM is about to form its first communicator.",
)
says(
    "engine-went-on",
    "Starting to load model",
    "Loading model weights took",
    "Loading weights took",
    "Model loading took",
    "custom_all_reduce.py:",
    "init engine (",
    why="vLLM got beyond its first communicator.",
)
says(
    "measured-rate",
    " MB/s",
    " GB/s",
    "Mbit/s",
    "Gbit/s",
    " MiB/s",
    " GiB/s",
    "MBps",
    "GBps",
    sampled=True,
    why="A measured rate.",
    where=lambda groups, line: any(char.isdigit() for char in line),
)

says(
    "service-state",
    "Active: inactive (dead)",
    "Active: failed (Result",
    "Loaded: not-found",
    "could not be found.",
    "is not running",
    "is not active",
    why="systemctl's answer on a service.",
)
says(
    "service-name",
    "nvidia-fabricmanager",
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-persistenced",
    why="A service of the NVIDIA driver is spoken of.",
)
says(
    "watchdog-frame",
    "ProcessGroupNCCL::ncclCommWatchdog()",
    "ProcessGroupNCCL::Watchdog::run()",
    "ProcessGroupNCCL::heartbeatMonitor()",
    "ProcessGroupNCCL::HeartbeatMonitor::runLoop()",
    why="A frame of torch's watchdog: it ended its process on purpose, for a timeout or an error of NCCL.",
)
