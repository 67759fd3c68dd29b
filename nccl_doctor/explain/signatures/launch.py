"""Launchers, rendezvous, schedulers."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "tensorrt-llm-world",
    "mpiSize == tp * pp",
    "Number of GPUs per node {gpus:int} must be at least as large as TP ({tp:int})",
    "Number of device IDs {ids:int} is greater than GPUs per node {gpus:int}",
    "With communicationMode kLEADER, MPI worldSize is expected to be equal to tp*pp",
    cause="launch.world-size",
    strength=0.88,
    title="TensorRT-LLM was started with other numbers of ranks or GPUs than its engine was built for",
    why="An engine is cut into tp x pp parts when it is built: mpirun must start as many ranks, and each node show the GPUs of its part.",
)
_OF_A_LAUNCHER = re.compile(
    r"\W*(?:\w*RANK|\w*WORLD_SIZE|MASTER_(?:ADDR|PORT)|(?:SLURM|OMPI|PALS|FLUX|LSB|PBS|MV2_COMM|TORCHELASTIC)_\w+|"
    r"PMI\w*|MPI_LOCALRANKID|NNODES|COORDINATOR_\w+|TF_CONFIG)\b"
)
says(
    "env-missing",
    "environment variable {name:word} expected, but not set",
    "Error initializing torch.distributed using env:// rendezvous",
    "environment variable {name:word} is not set",
    "KeyError: '{name:word}'",
    "MASTER_ADDR environment variable is not set",
    "RANK is not set",
    "is not running under torchrun",
    "rendezvous: rank parameter missing",
    "rendezvous: world size parameter missing",
    "rendezvous: port number missing",
    "LOCAL_RANK is not in the environment",
    "rank is absent in RendezvousParameters",
    "endpoint is absent in RendezvousParameters",
    "Port is absent in endpoint",
    "ndpoint is missing in endpoint",
    "port is missing in endpoint",
    "coordinator_address should be defined",  # of jax.distributed.initialize, as the next two
    "Number of processes must be defined",
    "The process id of the current process must be defined",
    cause="launch.env-missing",
    strength=0.97,
    title="the launcher's variables are missing (RANK, WORLD_SIZE, MASTER_ADDR...)",
    why="The script was started without torchrun (or the like), so nobody set them.",
    where=lambda groups, line: "name" not in groups or _OF_A_LAUNCHER.match(groups["name"]) is not None,
)
_OF_STREAMING = re.compile(r"\d{6}_[a-z_]+$")
says(
    "streaming-shared-memory-exists",
    "File exists: '/{name}'",
    "Reused local directory: {mine} vs {theirs}",
    cause="launch.env-missing",
    strength=0.62,
    title="each rank's StreamingDataset takes itself for its host's first (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE "
    "unset when it is made), or an earlier run left its shared memory (clean_stale_shared_memory())",
    why="MosaicML's streaming names its shared memory /000000_locals and so on; the first rank of a host alone makes it, "
    "and it learns which one that is from the launcher's variables.",
    where=lambda groups, line: "name" not in groups or _OF_STREAMING.match(groups["name"]) is not None,
)
says(
    "local-rank-argument",
    "unrecognized arguments: --local{}rank={rank:int}",
    "the following arguments are required: --local{}rank",
    cause="unrelated",
    page="launch.env-missing",
    strength=0.94,
    title="launcher and script disagree on --local-rank: torch.distributed.launch (since torch 2.0 with a hyphen) and deepspeed pass it, torchrun does not",
    why="torchrun sets LOCAL_RANK in the environment instead; launch --use_env and deepspeed --no_local_rank do so, too.",
)
# What torchrun, torch.distributed.launch, accelerate and scripts of that kind call the job's shape and place
_OF_THE_LAUNCHER = re.compile(
    r"(?:^|/)_*(?:node_|local_|machine_)?rank\b|world|n_?nodes|nproc|num_(?:machines|processes|nodes)|master_(?:addr|port)|main_process|rdzv"
)


def _of_the_launcher(groups: dict[str, str], line: str) -> bool:
    return _OF_THE_LAUNCHER.search(groups["argument"].replace("-", "_")) is not None


says(
    "launcher-argument-empty",
    "error: argument {argument}: invalid int value: ''",
    cause="launch.env-missing",
    strength=0.93,
    title="{argument} was given an empty value: the variable that should fill it is not set",
    why="A shell passes '' where a variable that is not set stands in quotes; argparse then finds nothing to read.",
    where=_of_the_launcher,
)
says(
    "launcher-argument-without-value",
    "error: argument {argument}: expected one argument",
    cause="launch.env-missing",
    strength=0.86,
    title="{argument} was given no value: the variable that should fill it is not set, or the command leaves it out",
    why="A shell leaves out a variable that is empty, and argparse cannot tell that from a value that nobody wrote: the command as it was typed tells.",
    where=_of_the_launcher,
)
says(
    "ps-lite-env-missing",
    'notnull: Environment::Get()->find("{name}")',
    cause="launch.env-missing",
    strength=0.95,
    title="{name} is not set: MXNet's tools/launch.py (or BytePS's bpslaunch) sets it, and the script was started without",
    why="ps-lite, the parameter server of MXNet and BytePS, reads roles, addresses and counts from DMLC_* variables.",
)
says(
    "csh-cannot-export",
    "export: Command not found.",
    cause="launch.env-missing",
    strength=0.86,
    title="the login shell of a host is csh, which has no export: what the launcher sets over ssh is not set there",
    why="Launchers write export NAME=value before the command that ssh runs, for a shell of Bourne's kind: bash -l as the user's shell there, or a launcher that passes the variables itself (mpirun, srun).",
)


def _more_than_the_world(line: str) -> bool:
    """Whether a store's barrier counted more processes than it waits for."""
    told = re.search(r"world_size=(\d+), (?:worker_count|num_workers_joined)=(\d+)", line)
    return told is not None and int(told[2]) > int(told[1])


# The first barrier of a store (named 0 or 1, by release) is that of the job itself: all ranks have passed it before a later one.
_LATER_BARRIER = re.compile(r"store_based_barrier_key:(?:[2-9]|\d\d+)\b")
says(
    "joined-partly",
    "Timed out after {seconds:int} seconds waiting for clients. {joined:int}/{world:int} clients joined",
    "waiting for clients. {joined:int}/{world:int} clients joined",
    "(world_size={world:int}, worker_count={joined:int}",
    "(world_size={world:int}, num_workers_joined={joined:int}",
    "Waiting in store based barrier to initialize process group for rank",
    "Timed out initializing process group in store based barrier on rank",
    cause="launch.world-size",
    strength=0.76,
    title="not all ranks joined: {joined} of {world}",
    why="The others never reached init_process_group: not started, wrong node_rank or nnodes, or died before.",
    where=lambda groups, line: not (_more_than_the_world(line) or _LATER_BARRIER.search(line)),
)
says(
    "barrier-completed",
    "Completed store-based barrier for key",
    "All distributed processes registered. Starting with",
    why="All ranks have come to the store's barrier.",
)
says(
    "group-joined-partly",
    "store_based_barrier_key:{number:int} (world_size={world:int}, worker_count={joined:int}",
    "store_based_barrier_key:{number:int} (world_size={world:int}, num_workers_joined={joined:int}",
    role=Role.SYMPTOM,
    cause="app.collective-mismatch",
    strength=0.46,
    fold="a further process group is awaited",
    title="{joined} of {world} ranks came to make process group number {number}: new_group is for all of them, in one order",
    why="The job had formed before: the others are late, have died, or go another way; their own lines say which.",
    where=lambda groups, line: bool(_LATER_BARRIER.search(line)) and not _more_than_the_world(line),
)
says(
    "joined-too-many",
    "(world_size={world:int}, worker_count={joined:int}",
    "(world_size={world:int}, num_workers_joined={joined:int}",
    role=Role.SYMPTOM,
    fold="more processes than ranks",
    why="Processes that are started one by one, without a launcher, each with WORLD_SIZE=1; two jobs with one MASTER_PORT; or a store that outlived a restart.",
    where=lambda groups, line: _more_than_the_world(line),
)
# A heading over what the next attempt prints, or what a launcher says of it: the first one is none, and neither is what a
# program tries again, nor a line that is only indented.
_NTH = r"\W{0,2}(?:[2-9]|\d\d)\b"
_NEXT_ATTEMPT = re.compile(
    rf"^\s*(?=\S)\W{{2,}}(?!.*(?:fail|pass|exit|\brc\b|\bok\b))(?:.*\W)?(?:attempt|run|retry|try){_NTH}|"
    r"estart[_ ]count\W{0,2}[1-9]|will restart|WILL REQUEUE|"
    rf"\b(?:[Rr]e)?(?:[Ss]tart|[Ll]aunch)\w* .{{0,40}}\b[Aa]ttempt{_NTH}|\b[Aa]ttempt{_NTH}.{{0,40}}\b(?:start|launch)",
)
says(
    "attempt-begins",
    "attempts left; will restart worker group",
    "restart_count={attempt:int}",
    "estart count {attempt:int}",
    "estart count: {attempt:int}",
    "ttempt {attempt:int}",
    "attempt={attempt:int}",
    "attempt #{attempt:int}",
    "retry {attempt:int}",
    " run {attempt:int}",
    "WILL REQUEUE",
    why="The job's processes are started again: the attempt before had failed.",
    where=lambda groups, line: _NEXT_ATTEMPT.search(line) is not None,
)
says(
    "rdzv-timeout",
    "RendezvousTimeoutError",
    "endezvous timed out",
    cause="launch.world-size",
    strength=0.8,
    title="the rendezvous timed out: not all nodes joined",
    why="Fewer nodes than --nnodes came within the join time-out.",
    where=lambda groups, line: "has failed to " not in line,  # of an agent that had joined: its store went away
)
says(
    "ray-train-startup",
    "worker group startup timed out after {seconds} seconds waiting for {workers:int} workers",
    cause="launch.world-size",
    strength=0.86,
    title="Ray had no room for {workers} workers within {seconds} s",
    why="The cluster has fewer free CPUs or GPUs than the workers ask for, or nodes are still missing.",
)
says(
    "rank-twice",
    "ranks has already checked in",
    "mismatch in rank count from procs",
    "mismatch in info from procs",
    "Invalid rank requested",
    "rank {rank:int} is out of range",
    "node_rank {}must be",
    "Rank {rank:int} is already taken",
    "more than one node have assigned same rank",
    "localId {id:int} is out of range",
    cause="launch.world-size",
    strength=0.85,
    title="two processes claim the same rank, or were told different world sizes",
    why="The root saw a rank twice or different sizes: wrong node_rank, nproc_per_node or world size.",
)
says(
    "no-capacity",
    "InsufficientInstanceCapacity",
    "Unable to provision requested ML compute capacity",  # SageMaker
    "ZONE_RESOURCE_POOL_EXHAUSTED",  # Google
    "does not have enough resources available to fulfill the request",
    "likely due to cloud providers not having enough capacity",  # dstack
    "FAILED_TO_START_DUE_TO_NO_CAPACITY",
    "Failed to provision all possible launchable resources",  # SkyPilot
    "VcpuLimitExceeded",
    "ResourceLimitExceeded",  # SageMaker
    "Insufficient quota for {}VM",  # Azure
    "Quota '{quota}' exceeded. {}Limit: ",  # Google
    cause="launch.world-size",
    strength=0.9,
    title="the cloud starts no (more) instances of this kind: none is free, or the account's quota is used up",
    why="Ask for another zone or region, another kind of instance, a reservation or a larger quota; with an all-or-nothing launch no node comes.",
)
says(
    "slurm-wireup",
    "pmixp_coll_ring_reset_if_to: {what}collective timeout",
    "pmixp_coll_tree_reset_if_to: {what}collective timeout",
    "No process controlled by this slurmstepd is involved in this collective",
    "unexpected contrib from {}, expected is",
    "Unexpected collective type={} from node",
    "mpi/pmix{version:word} {}bad collective seq. #",
    "PMK_KVS_Barrier duplicate request from task {task:int}",
    cause="launch.rdzv",
    strength=0.62,
    title="Slurm's PMI could not bring the tasks of the step together",
    why="A task or its slurmstepd on another node did not come in time, or tasks use another PMI than srun offers (--mpi).",
)
says(
    "checkpoint-of-other-size",
    "checkpoint being loaded used a DP world size of {saved:int} but the current world size is {now:int}",
    cause="launch.world-size",
    strength=0.88,
    title="the checkpoint was written by {saved} data-parallel ranks, and {now} load it: DeepSpeed wants as many, or a universal checkpoint",
    why="ZeRO's optimizer states are cut by the number of ranks that wrote them.",
)
says(
    "jsrun-no-manager",
    "main: Error initializing RM connection",
    cause="launch.rdzv",
    strength=0.46,
    title="jsrun does not reach the resource manager of its allocation (jsmd)",
    why="IBM's jsrun asks jsmd on the launch node: it ended, has no file or thread left for so many runs, or jsrun was called outside of an allocation.",
)
says(
    "step-refused",
    "srun: error: Unable to create step for job {job:word}: {reason}",
    "srun: error: Unable to create step",
    "srun: error: CPU binding outside of job step allocation",
    "Unable to layout tasks on given cpus",
    "Unable to satisfy cpu bind request",
    cause="launch.world-size",
    page="launch.world-size.step",
    strength=0.7,
    title="Slurm did not create the job's step: {reason}",
    why="The step asks for more tasks, GPUs or memory than its job has, or for what other steps of it hold (--overlap, --exact).",
)
says(
    "world-size-check",
    "world size ({world}) is not",
    "world_size ({world}) is not",
    "not divisible by{}world",
    "Expected world size",
    "expected {} ranks but",
    "No such option: --nproc",
    "nproc_per_node{}exceeds",
    "A sequential map was requested, but not enough node entries",
    "More processors requested than permitted",
    cause="launch.world-size",
    strength=0.7,
    title="the number of processes does not fit",
    why="The launcher or the program refuses the number of ranks.",
)
says(
    "rdzv-trouble",
    "RendezvousClosedError",
    "Rendezvous for run_id={run} was observed to be closed",
    "RendezvousStateError",
    "RendezvousParameterError",
    "RendezvousError",
    "endezvous is closed",
    "The rendezvous {}is closed",
    "etcd.{}Exception",
    "EtcdException",
    "Run ID {}mismatch",
    "rdzv_id{}mismatch",
    "rdzv_endpoint{}invalid",
    "No module named 'etcd'",
    "Failed to create EtcdStore",
    "MaxRetryError{}2379",
    "key not found{}torch.rendezvous",
    "The rendezvous backend '{backend}' is not registered",
    cause="launch.rdzv",
    strength=0.86,
    title="the elastic rendezvous failed",
    why="The rendezvous backend is closed, misconfigured, of another version, or cannot be reached.",
)
says(
    "spare-node",
    "Rendezvous gracefully exited: {reason}",
    why="An agent was still waiting, as a spare one or for the next round, when the rendezvous was closed: the job had come to its end, or others had closed it.",
)
says(
    "agent-without-result",
    "AttributeError: 'NoneType' object has no attribute 'is_failed'",
    role=Role.SYMPTOM,
    fold="torchrun's agent had no result",
    why="torchrun asks the result of an agent that left the rendezvous without one: its own slip, and no failure of the job.",
)
says(
    "signal-exception",
    "got signal: {signal:int}",
    "Received {number} death signal",
    "Main process received SIG{name:word}, exiting",  # DeepSpeed's launcher, where no process of its own had ended
    cause="launch.killed",
    strength=0.74,
    title="the launcher was told to stop by a signal from outside",
    why="torchrun itself received SIGTERM, SIGINT or SIGHUP: a scheduler, a preemption, a person, or a closed terminal.",
)
# What may happen, or a list of what may have: "can be preempted", "has failed, got preempted, or crashed", "was preempted/died/restarted", "scheduler events (e.g. preemption, eviction)"
_ONE_OF_MANY = re.compile(
    r"(?:preempted|evicted)(?:,? or\b|/)|\bor (?:\w+ )?(?:preempted|evicted)\b|\be\.g\. |This can happen (?:if|when)\b|"
    r"\b(?:can|may|might|could) be (?:preempted|evicted)\b|\b[Hh]andlers?\b"
)
# A list of signals that a program handles (torchrun tells its own), and a daemon's reload
_NO_HANGUP = re.compile(r"SIG(?!HUP|NAL)[A-Z]{3}|\b(?:[Rr]e-?(?:load|open|configur|start)|[Rr]otat|[Ii]gnor)")
says(
    "hangup",
    "SIGHUP",
    "Hangup",
    "Received 1 death signal",
    cause="launch.killed",
    strength=0.91,
    title="the terminal or ssh session that the job belonged to was closed (SIGHUP)",
    why="torchrun takes SIGHUP itself and ends its workers, although nohup had it ignored.",
    where=lambda groups, line: (
        "dataloader" not in line.lower() and not _NO_HANGUP.search(line) and not _ONE_OF_MANY.search(line)
    ),
)
# timeout(1) in front of a command, and the status that it ends with
_WITH_LIMIT = re.compile(
    r"(?:^|[$+#;&|(]|\bdo|\bthen)\s*(?:\w{1,40}=\S{1,80} +){0,9}timeout (?:-\S{1,40} +){0,9}\d+(?:\.\d+)?[smhd]? +[\w./]"
)
says(
    "own-time-limit",
    "timeout {limit}",
    "rc 124",
    "rc=124",
    "xit code 124",
    "xit code: 124",
    "xit status 124",
    "xited with 124",
    wake=(
        "timeout -",
        *(f"timeout {digit}" for digit in range(1, 10)),
        "rc 124",
        "rc=124",
        "code 124",
        "code: 124",
        "status 124",
        "with 124",
    ),
    why="The command was given a time limit by whoever typed it (timeout(1)): that it was stopped says that it hung, or was slow.",
    where=lambda groups, line: "limit" not in groups or _WITH_LIMIT.search(line) is not None,
)
# gRPC's status of a call that took too long, by the names of Rust's, Go's and C++'s library
_OF_A_CALL = re.compile(r"(?:status: |code = |StatusCode\.)DeadlineExceeded")
says(
    "cancelled",
    "Caught signal {signal:word} on {node:word}: this job is",  # submitit
    "CANCELLED AT",
    "DUE TO TIME LIMIT",
    "DUE TO PREEMPTION",
    "due to time limit",
    "reempted",
    "PREEMPTED",
    "DeadlineExceeded",
    "STEPD TERMINATED ON",
    "spot/instance-action",
    "pot Instance interruption",
    '"EventType":"Preempt"',
    "Force Terminated",
    "TERM_RUNLIMIT",
    "TERM_OWNER",
    "TERM_ADMIN",
    "TERM_FORCE_ADMIN",
    "TERM_CPULIMIT",
    "TERM_PREEMPT",
    "walltime {} exceeded limit",
    "job killed: walltime",
    "Job exceeded its walltime limit",  # Torque
    "job exceeded wallclock limit",  # Moab
    "type=timeout severity=0 resource allocation expired",  # Flux
    "Job was aborted by",
    "eceived SIGTERM",
    "eceived SIGINT. Gracefully aborting the training run",  # Ray Train
    "SIGTERM received",
    "caught SIGTERM",
    "ignal 15 received",
    "eceived signal 15",
    "got signal 15",
    "victed",
    "Stopping container",
    "KeyboardInterrupt",
    "Terminated by user",
    "TaintManagerEviction",
    "Job was removed",
    "User requested cancel",
    "cancel requested",
    "maintenance event",
    "Exceeded walltime",
    "The operation was canceled",  # GitHub's runner
    "has exceeded the maximum execution time of ",
    "unner has received a shutdown signal",
    "Job failed: execution took longer than ",  # GitLab's
    "Cancelling nested steps due to timeout",  # Jenkins
    "JobState=TIMEOUT",
    "JobState=DEADLINE",
    " TIMEOUT ",
    " CANCELLED by {user:int}",
    "ime limit exhausted",
    "for node scale down",
    "imminent node shutdown",
    "graceful node shutdown",
    '"state":"shutting-down"',
    "terminated during maintenance",
    "liveness probe, will be restarted",
    "pot interruption",
    cause="launch.killed",
    strength=0.9,
    title="the job was stopped from outside",
    why="The scheduler (time limit, preemption, cancel), a person or the platform ended it.",
    where=lambda groups, line: (
        "node failure" not in line.lower()
        and (" TIMEOUT " not in line or re.search(r" TIMEOUT\s+\d+:\d+", line) is not None)
        and "dataloader" not in line.lower()
        # not of requests and blocks of a serving engine's or a loader's cache
        and not re.search(
            r"memory|no-evict|evict(?:ed|ion)?_(?:count|policy)|cache|Sequence group|PreemptionMode|\b[Rr]eq(?:uests?\b|[_ ]?id)|"
            r"please ignore",  # vLLM's farewell to Ray
            line,
        )
        and not _ONE_OF_MANY.search(line)
        and not _OF_A_CALL.search(line)
    ),
)

says(
    "mpi-start",
    "was unable to reliably start one or more daemons",
    "process starter (lsb_launch) failed to start the daemons",  # under LSF
    "lsberrno : ({code:int}) {error}",
    "unable to start any processes",
    "Host key verification failed",
    "Permission denied (publickey",
    "ssh exited with exit code 255",
    "An ORTE daemon has unexpectedly failed",
    "An PRTE daemon has unexpectedly failed",
    "does not know how to route a message to the specified daemon",
    "could not resolve hostname{}ssh",
    "ssh_exchange_identification: ",
    "kex_exchange_identification: ",
    cause="net.master-unreachable",
    strength=0.62,
    title="the launcher could not start its processes on a host",
    why="ssh to a host (LSF: blaunch) failed: not reachable, not permitted, the user not known there, turned away (MaxStartups of sshd), or its daemon could not call back.",
    where=lambda groups, line: "error: kex_exchange" not in line,  # sshd's own, of anybody who hangs up
)
says(
    "mlx-connect",
    "] Couldn't connect (error: {errno:int})",
    cause="net.master-unreachable",
    strength=0.74,
    title="MLX did not reach the next rank of its ring (errno {errno}): that rank was not up yet, or its address in the hostfile is not one that leads there",
    why="mx.distributed tries the address of the hostfile several times and gives up. errno 60 or 110 is a time-out, 61 or 111 a refusal, 65 or 113 no route.",
)
says(
    "ray-connect",
    "Failed to connect to GCS",
    "Unable to connect to GCS",
    "Could not find any running Ray instance",
    "ray.init {}timed out",
    "Failed to connect to Ray cluster",
    "The node {}joined{}but",
    "no cluster found at",
    "Timed out waiting for {} nodes",
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.66,
    title="the Ray head cannot be reached",
    why="The GCS at the head's address does not answer.",
)
says(
    "resources-missing",
    "Insufficient nvidia.com/gpu",
    "0/{count:int} nodes are available",
    "Cannot schedule{}GPU",
    "Requested node configuration is not available",
    "insufficient GPUs",
    "Not enough GPUs available",
    "tasks in gang unschedulable",
    "pod group is not ready",
    "queue resource quota insufficient",
    "insufficient unused quota",
    "exceeded quota: {quota}, requested: ",
    "TopologyAffinityError",
    "Node didn't have enough resource: ",
    cause="launch.world-size",
    strength=0.7,
    title="the scheduler finds no place for the job: too few free GPUs or nodes, none that admit it, or a quota",
    why="The scheduler cannot place the job.",
)
says(
    "paddle-peers-awaited",
    " Waiting peer start...",  # paddle/distributed/launch/controllers: master.py
    " peer not ready Job: ",  # collective.py
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.48,
    fold="Paddle's launcher waits for the other nodes",
    title="Paddle's launcher waits for the launchers of the other nodes: fewer of them were started than --nnodes says, or they do not reach --master",
    why="It starts no worker before as many launchers as there are nodes have written their address to the master.",
)
says(
    "ray-cluster-incomplete",
    "Ray cluster status: {alive:int}/{wanted:int} nodes alive",  # vLLM's production stack
    cause="launch.world-size",
    strength=0.5,
    title="{alive} of {wanted} nodes joined the Ray cluster",
    why="A pod waits until all nodes of its Ray cluster are alive: the others were not created, not scheduled, or do not reach the head.",
    where=lambda groups, line: int(groups["alive"]) < int(groups["wanted"]),
)

says(
    "rdzv-id",
    "--rdzv_id={id:word}",
    "--rdzv-id={id:word}",
    "--rdzv_id {id:word}",
    "--rdzv-id {id:word}",
    "the rendezvous '{id}'",
    "Rendezvous '{id}'",
    "run_id: {id:word}",
    "run_id           : {id:word}",
    why="The id under which nodes meet: it must be the same on all.",
)
says(
    "pod-row",
    "Running {restarts:int} ",
    " Running  {restarts:int} ",
    " CrashLoopBackOff {restarts:int} ",
    " Completed {restarts:int} ",
    "Running   {restarts}",
    "Error {restarts}",
    "Pending {restarts}",
    "ContainerCreating {restarts}",
    "Terminating {restarts}",
    why="A row of kubectl get pods.",
    where=lambda groups, line: re.search(r"^\S+\s+\d+/\d+\s+\w+\s+\d+", line.strip()) is not None,
)
