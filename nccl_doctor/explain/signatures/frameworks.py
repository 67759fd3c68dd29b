"""What torch and frameworks (Ray, vLLM, SGLang, Lightning, DeepSpeed, torchft, TensorFlow, MXNet) say of the job itself.

Texts of torch 1.8 to 2.13 (argument checks of the backends, deserialisation, data types), of Ray 2, vLLM 0.5 to 0.11,
SGLang 0.4 and 0.5, Lightning 1.6 to 2.5.
"""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "type-or-shape",
    "Input type ({a}) and weight type ({b}) should be the same",
    "Input type ({a}) and bias type ({b}) should be the same",
    "stack expects each tensor to be equal size",
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "FlashAttention only support{}head dim",
    "FlashAttention only support{}data type",
    "expected m1 and m2 to have the same dtype",
    "Sizes of tensors must match except in dimension",
    "shape mismatch: value tensor",
    "is invalid for input of size",
    cause="app.bad-tensor",
    strength=0.7,
    title="tensors of the wrong data type or shape",
    why="A computation of the program, not a collective, got tensors that do not fit.",
)
says(
    "group-refuses",
    "ProcessGroupGloo::{call:word} invalid root",
    "Invalid peer rank",
    "Invalid root rank",
    "Split ranks should not have duplicates",
    "Split ranks cannot be empty",
    "Could not resolve the process group registered under the name",
    "A process group is already registered under the name",
    "ProcessGroup name not set",
    "LocalRank must be non-negative",
    cause="app.pg-misuse",
    strength=0.87,
    title="a rank or group is named that does not exist",
    why="The backend's own check of ranks and groups.",
)
says(
    "ddp-undefined-gradient",
    "Encountered gradient which is undefined, but still allreduced by DDP reducer",
    "Detected at least one parameter gradient is not the expected DDP bucket view",
    cause="app.ddp-unused-params",
    strength=0.7,
    title="DDP: a parameter's gradient is missing or was replaced",
    why="The reducer found no gradient, or another tensor than its bucket's view: a hook or the optimizer replaced it.",
)
says(
    "zero3-out-of-step",
    "still have inflight params",
    "ZeroParamStatus.AVAILABLE, param.ds_summary()",
    cause="app.rank-exception",
    strength=0.76,
    title="DeepSpeed ZeRO-3 gathered other parameters than the step used (stage3_prefetch_bucket_size 0 avoids it)",
    why="ZeRO-3 fetches parameters ahead in the order that it recorded. Modules that run by the data (experts, a part left "
    "out, generation between steps) break that order; set_z3_leaf_modules takes such a part as one.",
)
says(
    "fewer-gpus-than-wanted",
    "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
    "Attempting to deserialize object on CUDA device {wanted:int} but torch.cuda.device_count() is {there:int}",
    "FSDP needs a non-CPU accelerator device",
    "ValueError: Cuda is not available",
    "You requested gpu: {wanted} But your machine only has: {there}",
    "No supported gpu backend found",
    cause="gpu.not-visible",
    strength=0.88,
    title="the program wants a GPU that this process cannot see",
    why="No GPU, or fewer than asked for, are visible in this process or on this node.",
)
says(
    "launch-timed-out",
    "the launch timed out and was terminated",
    cause="gpu.illegal-access",
    strength=0.7,
    title="a kernel ran into the time limit of a GPU that also drives a display",
    why="CUDA's run time limit for kernels, in force where a display runs on the GPU.",
)
says(
    "shared-object-gone",
    "unable to open shared memory object </torch_{name}> in read-write mode: No such file",
    "could not unlink the shared memory file",
    cause="sys.shm",
    strength=0.72,
    title="a shared-memory file of a DataLoader worker is gone",
    why="Another process, a restart or a cleaner removed it, or the containers do not share /dev/shm.",
)
says(
    "ray-too-small",
    "No available node types can fulfill resource request",
    "The number of required GPUs exceeds the total number of available GPUs",
    "Cannot provide a placement group of",
    "Placement group creation timed out",
    "Waiting for placement group{}timed out",
    "Ray placement group{}timeout",
    "Timed out waiting for placement groups to be ready",
    "Not enough resources to allocate {wanted} placement groups",
    "Not enough resources to allocate DP ranks",
    "placement group bundle index {index:int} is invalid",
    "Tensor parallel size ({wanted:int}) exceeds available GPUs",
    cause="launch.world-size",
    page="launch.world-size.ray",
    strength=0.82,
    title="Ray's cluster, or the placement group, has fewer free GPUs or nodes than the job asks for",
    why="Ray counts what its nodes registered and what others have not taken.",
)
says(
    "not-scheduled",
    "does not match{}--ntasks-per-node",
    "`--ntasks-per-node={tasks:int}` configured in SLURM{}does not match",
    "in Lightning, but the number of tasks per node configured in SLURM",
    "in Lightning, but the number of nodes configured in SLURM",
    "Unable to satisfy{}gang",
    "timed out waiting for all {members:int} members to join",
    cause="launch.world-size",
    strength=0.82,
    title="not all workers can be started: too few GPUs, nodes or tasks for what is asked",
    why="The scheduler or the framework counts fewer GPUs, nodes or tasks than the job needs.",
)
says(
    "ray-node-asked",
    "'node:{address:word}': ",
    why="A bundle of a placement group that must lie on the node of this address: vLLM's, for the process that drives.",
    where=lambda groups, line: "resource request" in line or "placement group" in line,
)
says("vllm-host-ip", "VLLM_HOST_IP={address:word}", why="The address by which vLLM knows this node.")
says(
    "ray-gpus-free",
    " 0.0/{gpus:num} GPU",
    why="`ray status` counts no GPU that is taken.",
)
says(
    "ray-not-on-the-driver",
    "Ray does not allocate any GPUs on the driver node",
    "Current node has no GPU available",
    "vLLM engine cannot start without GPU",
    cause="launch.world-size",
    page="launch.world-size.ray",
    strength=0.88,
    title="Ray has no GPU for vLLM on the node that drives it",
    why="vLLM compares its own address with those of the nodes of its placement group, and finds itself on none: others hold the GPUs, or VLLM_HOST_IP is not "
    "the address by which Ray knows the node.",
)
says(
    "ray-node-not-registered",
    "Some processes that the driver needs to connect to have not registered with GCS",
    "GCS has started but no raylets have registered yet",
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.44,
    fold="a node's raylet is not registered with Ray's head",
    title="this node's raylet has not registered with Ray's head",
    why="It ended at once, is slow to start, or the two do not reach each other: raylet.out and gcs_server.out of /tmp/ray/session_latest/logs say which.",
)
says(
    "waiting-for-placement",
    "Waiting for creating a placement group of specs for",
    "The following resource request cannot be scheduled right now",
    "Waiting for worker group to start",
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.52,
    fold="waiting for resources",
    title="the job waits for GPUs or nodes that are not free, or do not exist",
    why="Ray cannot place the workers (yet): too few free GPUs, or the driver's address is not one of its nodes.",
)
says(
    "ray-train-workers",
    "Attempting to start training worker group of size {workers:int} with the following resources: {resources}",
    "Started training worker group of size {workers:int}",
    why="Ray Train's controller asks the cluster for its workers, and tells when they run.",
)
says(
    "serving-watchdog",
    "Watchdog timeout (self.watchdog_timeout=",
    "Scheduler watchdog timeout",
    "No available shared memory broadcast block found in",
    "RPC call to {method} timed out",
    "RayChannelTimeoutError",
    "Engine iteration timed out. This should never happen",
    "Hang detected on rank {rank:int} in PyExecutor",  # TensorRT-LLM
    "Server couldn't get a response from detokenizer for last",  # SGLang
    "could finish the model loading, but there are other ranks that didn't finish loading",  # SGLang, after 8 minutes
    'shm_broadcast.py", line {line:int}, in acquire_read',  # vLLM raises a bare TimeoutError there
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.34,
    fold="the serving engine's own watchdog",
    title="a worker of the serving engine did not answer in time",
    why="A step takes too long: one worker is slow, hangs in a collective, or is dead.",
)
says(
    "torchft-goes-on",
    "got exception in future -- skipping remaining",
    "got exception in all reduce -- skipping remaining",
    "got exception in pg configure: ",
    "got exception in recovery: ",
    "should_commit failed {times:int} times (max_retries=",
    role=Role.SYMPTOM,
    fold="torchft leaves out a step",
    why="A collective of torchft failed: the step is left out, and the group is formed anew without the replica that failed.",
)
says(
    "torchft-waits",
    "New quorum not ready, only have {replicas:int} participants, need",
    "lighthouse quorum timeout. error: ",
    "lighthouse quorum failed after {tries:int} retries",
    'status: DeadlineExceeded, message: "Timeout expired"',
    'status: Cancelled, message: "Timeout expired"',
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.36,
    fold="torchft waits for replicas",
    title="torchft's replicas do not come together",
    why="The lighthouse has too few replicas, or does not answer: one is late, dead or cannot reach it.",
)
says(
    "torchft-no-lighthouse",
    "Failed to connect to lighthouse. error: {error}",
    cause="net.master-unreachable",
    page="net.master-unreachable.service",
    strength=0.78,
    title="torchft's lighthouse cannot be reached",
    why="The lighthouse (TORCHFT_LIGHTHOUSE) is not up, its address is wrong, or its port is blocked.",
)
says(
    "more-ranks-than-gpus",
    "World size ({size:int}) is larger than the number of available GPUs ({gpus:int})",  # vLLM
    "please set tensor_parallel_size ({size:int}) to less than max local gpu count ({gpus:int})",
    "please ensure that world_size ({size:int}) is less than than max local gpu count ({gpus:int})",
    "Total available GPUs {gpus:num} is less than total desired GPUs {size:num}",  # verl
    "Not enough GPUs available. Requested {size:int} GPUs, but only {gpus:int} are available",  # NeMo-RL
    cause="launch.world-size",
    strength=0.9,
    title="the program is to run on {size} GPUs and sees {gpus}",
    why="Hosts have not joined, or the parallel sizes are too large. Over several hosts vLLM needs Ray (--distributed-executor-backend ray) or --nnodes.",
)
says(
    "addresses-shared",
    "Every node should have a unique IP address. Got {nodes:int} nodes",
    cause="net.wrong-interface",
    strength=0.88,
    title="hosts of the Ray cluster give vLLM the same address, or several for one host",
    why="Each host must be known by one address of its own: VLLM_HOST_IP set alike everywhere, or interfaces that Ray and vLLM choose differently.",
)
says(
    "monitor-lost-heartbeat",
    "Did not get subsequent heartbeat. Waited {seconds:num} seconds",
    "Did not get initial heartbeat. Waited {seconds:num} seconds",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.34,
    fold="the launcher's monitor misses a rank's heartbeat",
    title="a rank reported no progress for {seconds} s",
    why="nvidia-resiliency-ext (ft_launcher) ends the job when a rank is silent: it hangs, is slow, or waits for another one.",
)
says(
    "megatron-wrong-gpu",
    "Rank {rank:int}, node {node}, device {device:int}, iteration #{step:int}: Possible persistent error!",
    "Rank {rank:int}, node {node}, device {device:int}, iteration #{step:int}: Possible transient error!",
    cause="gpu.ecc",
    strength=0.9,
    title="GPU {device} of {node} computes wrong values: the same step gives others when it is repeated",
    why="Megatron's rerun state machine repeated the step: on the same GPU (a transient error) or on another one (a persistent error) the result was another.",
)
says(
    "ray-pod-memory-hint",
    "The worker may have exceeded K8s pod memory limits",
    cause="sys.host-oom",
    strength=0.62,
    title="a Ray worker vanished without an exit code: usually the pod's memory limit",
    why="Ray's own guess, printed where a worker ended without telling how.",
)
says(
    "nccl-invalid-usage",
    "NCCL Error 5: invalid usage",
    "nccl{call:word} failed: invalid usage",  # Horovod
    "NCCL operation {call} failed: invalid usage",  # XLA
    "NCCL error({code:int}), invalid usage",  # Paddle
    "Nccl error, invalid usage",  # Paddle before 2.2
    "NCCL_ERROR: b'invalid usage'",  # RAPIDS
    "NCCL_ERROR_INVALID_USAGE: invalid usage",  # CuPy
    "invalid usage (run with NCCL_DEBUG",
    ", invalid usage, NCCL version",  # torch before 1.12
    "ncclInvalidUsage: This usually reflects invalid usage",
    role=Role.SYMPTOM,
    fold="NCCL error number",
    why="ncclInvalidUsage; NCCL_DEBUG=WARN says which use.",
)
says(
    "paddle-nccl-errno",
    "Increase shared memory by setting the -shm-size option when starting docker container",
    role=Role.SYMPTOM,
    cause="sys.shm",
    strength=0.42,
    fold="Paddle's advice on NCCL's error",
    title="a call of NCCL failed while the system's last error was a shortage: /dev/shm, usually",
    why="Paddle prints it below any error of NCCL where errno is ENOSPC or EAGAIN; that may be left from an earlier call.",
)
says(
    "ray-port",
    "Failed to start the grpc server. The specified port is {port:int}",
    cause="net.port-in-use",
    strength=0.74,
    title="Ray cannot listen on port {port}: mostly another process does",
    why="gRPC could not bind it; the line before says whether the address was in use.",
)
says(
    "etcd-not-ready",
    "Timed out waiting for etcd server to be ready",
    "Etcd server process exited with the code",
    "Timeout while waiting for keys in EtcdStore",
    "etcd.Etcd",
    cause="launch.rdzv",
    strength=0.88,
    title="the etcd server of the rendezvous does not answer",
    why="torchelastic's own etcd server or store did not start or lost its keys.",
)
says(
    "flight-recorder-verdict",
    "Not all ranks joining collective, sequence number: {sequence:int}",
    "Not all ranks joining collective {sequence:int}",
    "Collective sequence number: {sequence:int} has errors",
    "Input/output mismatch in the collective",
    "COLLECTIVE_TYPE_MISMATCH",
    "COLLECTIVE_DTYPE_MISMATCH",
    "SIZE_OR_SYNTAX_MISMATCH",
    "collective type mismatch",
    cause="app.collective-mismatch",
    strength=0.74,
    title="torch's flight-recorder analyzer: not all ranks joined the same collective",
    why="torch.distributed.flight_recorder compared the dumps of all ranks; the missing ranks stand in its next lines.",
)
says(
    "flight-recorder-missing",
    "missing ranks: {ranks}",
    why="The flight-recorder analyzer names the ranks that did not join.",
)

# --- TensorFlow's collectives and sessions, parameter servers
says(
    "tensorflow-group-differs",
    "found no source for broadcast. {} BcastRecvs but no BcastSend",
    "Shape mismatch in the collective instance",
    cause="app.collective-mismatch",
    strength=0.87,
    title="the workers of TensorFlow issued different collectives: another source, shape or order",
    why="TensorFlow matches collectives by their instance key: what one worker builds or calls, all must, in the same order.",
)
says(
    "tensorflow-group-size",
    "is joining a group with size",
    "is joining a group that is already full",
    "is joining a group with incompatible device type",
    cause="launch.world-size",
    strength=0.85,
    title="a worker of TensorFlow joins a group of another size or another kind of device than its own",
    why="TF_CONFIG differs between the workers, one was started twice, or one of them sees no GPU.",
)
says(
    "tensorflow-session-lost",
    "This may be due to a preemption {} a connected worker or parameter server",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.48,
    fold="TensorFlow begins a new session",
    title="a session of TensorFlow lost a worker or parameter server, or did not reach it",
    why="TensorFlow tries again without end. While a session is created it is one that is not reached: its address in TF_CONFIG, or a process that is not there.",
)
says(
    "tensorflow-worker-restarted",
    "current incarnation doesn't match with one in the group",
    "expects a different device incarnation",
    "Possibly this worker {} just restarted",
    "Possibly this worker just restarted",
    "Possibly, this master has restarted",
    "Perhaps the worker was restarted",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.48,
    fold="a worker of TensorFlow was started anew",
    title="a worker of TensorFlow was started anew, and the others still know the old one",
    why="Why the old one ended stands in its own log.",
)
says(
    "server-awaited",
    "CreateSession still waiting for response from worker: {peer}",  # TensorFlow
    "not ready endpoints:{peer}",  # Paddle
    "Retry to connect to {peer} while the server is not yet listening",
    "ep:[{peer}] grpc error:Connect Failed",
    "Cannot connect to remove server {peer}. Wait to retry",  # DGL's own spelling
    "zmq_van.h:{number:int}: there is no socket to {peer}",  # ps-lite, of MXNet and BytePS
    '"syscall":"connect","target_address":"{peer}"',  # gRPC before 1.30
    "Connecting to {peer} failed, waiting for {milliseconds:int} milliseconds",  # LightGBM
    role=Role.SYMPTOM,
    cause="launch.world-size",
    strength=0.47,
    fold="a server or worker is awaited",
    title="{peer} does not answer (yet): it was not started, has ended, or cannot be reached at this address",
    why="Usual for the first seconds of a start. When it lasts: that process's own log tells whether it runs; then its address, a proxy, and its port.",
)
says(
    "oneflow-machine-lost",
    "CallMethod<CtrlMethod::{call}>{} Machine {machine:int} lost",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.48,
    fold="OneFlow lost a machine",
    title="machine {machine} of the OneFlow job is gone",
    why="Its process ended, or the network between broke; that machine's own log says which.",
)
says(
    "tensorflow-without-nccl",
    "No OpKernel was registered to support Op 'Nccl{operation:word}'",
    cause="sw.no-nccl-backend",
    strength=0.93,
    title="this TensorFlow was built without NCCL, as all builds for Windows are",
    why="NCCL's kernels are in the builds for Linux with CUDA only. MirroredStrategy(cross_device_ops=tf.distribute.HierarchicalCopyAllReduce()) does without.",
)
says(
    "mxnet-built-without",
    "compile with USE_{option}=1 to use {kvstore}",
    cause="sw.no-nccl-backend",
    strength=0.86,
    title="this MXNet was built without {kvstore} (USE_{option}=1)",
    why="Which kinds of kvstore exist is chosen when MXNet is built.",
)
says(
    "ps-lite-built-without",
    "nsupported van type: {van}",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.86,
    title="this ps-lite (MXNet, BytePS) was built without the transport that DMLC_ENABLE_RDMA or DMLC_PS_VAN_TYPE asks for: {van}",
    why="Which vans (zmq, ibverbs, ucx) exist is chosen when it is built. Without the variable it uses TCP.",
)
