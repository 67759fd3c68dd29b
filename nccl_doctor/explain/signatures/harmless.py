"""Lines that look bad and are not, each with the condition under which they do matter."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.explain.signatures import says

H = Role.HARMLESS
says(
    "no-peer-access-noted",
    "peer access Device {other:int} is not available",
    "Custom allreduce is disabled because ",
    "SymmMemCommunicator: {reason}not supported",
    role=H,
    why="TensorRT-LLM and vLLM note which GPUs do not reach each other's memory: data goes another way there.",
)
says(
    "compatibility-as-the-image-found-it",
    "[[Forward compatibility was attempted on non supported HW",
    "_CUDA_COMPAT_STATUS=",
    role=H,
    why="NVIDIA's images look at the driver when they start. Of a driver that is too old for the program itself the program tells.",
)
says(
    "notifier-deleted-at-the-end",
    "Preemption notifier is being deleted",
    role=H,
    why="JAX's preemption notifier ends with its process. It matters only where the process was not to end yet.",
)
says(
    "models-not-importable",
    "Ignore import error when loading {module:word}",
    role=H,
    why="SGLang and vLLM try to load all models that they know; of those that cannot be loaded only the one asked for would matter.",
)
says(
    "gradient-on-another-stream",
    "The AccumulateGrad node's stream does not match the stream of the node that produced the incoming gradient",
    role=H,
    why="torch warns of a synchronisation that may cost time, and that CUDA graphs do not bear.",
)
says(
    "autotune-cache-on-nfs",
    "The cache directory for DeepSpeed Triton autotune, {path}, appears to be on an NFS system",
    role=H,
    why="DeepSpeed says so at every start with a home on NFS. It matters where its processes hang when they end.",
)
says(
    "hub-cache-not-written",
    "Could not cache non-existence of file. Will ignore error",
    role=H,
    why="The client of the Hugging Face hub notes in its cache which files there are not; without the note it only asks again.",
)
says(
    "coordination-agent-at-its-end",
    "Polling for errors failed: CANCELLED: Coordination service agent is shutting down",
    role=H,
    why="JAX's agent ends its own question to the coordinator when its process shuts down.",
)
says(
    "service-thread-at-its-end",
    "[Service thread] Accept failed Resource temporarily unavailable",
    role=H,
    why="NCCL's thread that accepts connections was told to end while it waited: errno is that of a socket without a caller.",
)
says(
    "limit-left-as-it-is",
    "Found ulimit of {limit:int} and failed to automatically increase",
    role=H,
    why="vLLM tries to raise the number of open files when it starts. Where files do run out, an error of their own tells it.",
)
says(
    "limit-not-propagated",
    "Can't propagate RLIMIT_{limit:word} of {value} from submit host",
    role=H,
    why="Slurm could not raise a limit on the node to what the shell of srun had, and goes on with the node's own.",
    where=lambda groups, line: groups["limit"] != "MEMLOCK",
)
says(
    "engine-ends-its-workers",
    "WorkerProcess pid {pid:int} died, exit code: -15",
    role=H,
    why="vLLM ends its workers with SIGTERM when it ends itself, and reports each as an error: why it ended, other lines say.",
)
says(
    "long-mount-lines",
    "Unexpected end of /proc/mounts line",
    role=H,
    why="hwloc (of Open MPI) cuts the long lines of container layers in /proc/mounts, and needs only those of cgroup and cpuset.",
)
says(
    "old-verbs-library",
    "NCCL INFO dlvsym failed on ",
    role=H,
    why="NCCL asks libibverbs or libmlx5 for functions of later releases, and goes without them (ECE, Data Direct).",
)
says(
    "pcie-corrected",
    "severity=Corrected",
    "severity=Correctable",
    "Corrected error received",
    "Corrected error message received",
    "Correctable error message received",
    role=H,
    why="PCIe sent a damaged packet again: nothing was lost. Many in a minute from a GPU's or adapter's port mean a riser, slot or cable, and cost speed.",
)
says(
    "memory-corrected",
    " CE memory {action:word} error on ",
    role=H,
    why="The host's memory corrected an error by itself: nothing was lost. Many from one DIMM announce its failure.",
)
says(
    "imex-log-file",
    "failed to open IMEX log file",
    "failed to chmod IMEX log file",
    role=H,
    why="In a container the IMEX daemon has no /var/log to write in, and logs to standard error instead.",
)
says(
    "dcgm-without-cpus",
    "Couldn't open CPU Vendor info file",
    "Incompatible hardware vendor for sysmon",
    "Failed to load module 9 [",
    role=H,
    why="DCGM's module for CPUs (sysmon) works on NVIDIA's own CPUs only; on others it says so and is left out.",
)
says(
    "ucx-without-rdma",
    "UCX  ERROR rdma_create_event_channel failed: No such device",
    "UCX  ERROR failed to open CM on component rdmacm",
    role=H,
    why="UCX was built with RDMA's connection manager, and this host has no RDMA device: MPI takes another way (--mca pml ^ucx says nothing).",
)
says(
    "pmi2-asks-nothing",
    "PMI2_KVS_Get:_pmi2_kvs_get failed",
    "key [-NONEXIST-KEY] was not found",
    role=H,
    why="MPICH over PMI-2 asks for a key that does not exist, to make a barrier; Cray's server tells of it.",
)
says(
    "dcgm-without-daemon",
    "Host engine connection invalid/disconnected",
    role=H,
    why="DCGM's exporter or dcgmi does not reach nv-hostengine (restarted, or without a GPU's driver): monitoring has no values. Jobs do not need it.",
)
says(
    "dcgm-without-profiling",
    "Profiling is not supported for this group of GPUs",
    "[[Profiling]] ",
    "Failed to load module 8 [",
    "DCGM_PROFILING_SR_{call:word} failed with",
    "Skipping loading of module 8 in status",
    role=H,
    why="DCGM's metrics for profiling (DCGM_FI_PROF_*): not for this GPU, or a profiler or second exporter holds them (`dcgmi profile --pause`). Jobs do not need them.",
)
says(
    "dcgm-without-switches",
    "[[NvSwitch]] ReadNvSwitchStatusAllSwitches() returned",
    "[[NvSwitch]] Not attached to NvSwitches",
    role=H,
    why="DCGM's module for NVSwitches cannot read them: there are none, or libnvidia-nscq of the driver's release is missing. Jobs do not need it.",
)
says(
    "no-net-plugin",
    "NET/Plugin: Could not find:",
    "NET/Plugin : No plugin found",
    "NET/Plugin: No plugin found",
    "NET/Plugin : dlerror=",
    "NET/Plugin : Plugin load returned",
    "NET/Plugin: Plugin load returned",
    "No plugin found (libnccl-net.so)",
    "Failed to find ncclNetPlugin",
    "Failed to find ncclCollNetPlugin",
    "Failed to find ncclNet{}symbol",
    "NET/Plugin: Failed to find",
    role=H,
    why="No external network plugin: NCCL uses its own. It matters only where one is required (EFA, TCPX, gIB).",
)
says(
    "no-other-plugin",
    "PROFILER/Plugin: Could not find",
    "TUNER/Plugin: Could not find",
    "TUNER/Plugin: Failed to find",
    "PROFILER/Plugin: failed to find",
    "TUNER/Plugin: Plugin load returned",
    "ENV/Plugin: Could not find",
    "Could not find: libnccl-env.so",
    "NCCL INFO GIN/Plugin: ",
    "NCCL INFO RMA/Plugin: ",
    "Profiler init failed with error",
    role=H,
    why="No tuner, profiler, GIN or RMA plugin: optional.",
)
says(
    "nccl-corrects-a-setting",
    "Both NCCL_CTA_POLICY_ZERO and NCCL_CTA_POLICY_EFFICIENCY are set",
    "falling back to graphStreamOrdering=1",
    "Ignoring SHM locality, must be 1",
    "PARAM: Duplicate registration for key",
    "NCCL_SOCKET_NTHREADS is greater than the maximum allowed",
    "the total number of sockets is greater than the maximum allowed",
    "NCCL_CGA_CLUSTER_SIZE value {value:int} is too big. Limiting",
    "Unable to recognize NCCL_NETDEVS_POLICY=",
    "failed to decode NCCL_PROXY_CPUSET=",
    "NCCL_SOCKET_MAGIC invalid value",
    "NCCL_MIN_NCHANNELS set by environment is ignored",
    "User asked for a m{}imum of {channels:int} channels, ",
    "is invalid for family {family}, ignoring",
    role=H,
    why="NCCL (2.27 to 2.30) or RCCL takes another value than the one that was set, says so, and goes on with it.",
)
says(
    "kv-blocks-expired",
    "Releasing expired KV blocks for request",
    role=H,
    why="A decode instance did not fetch a request's cache in time: the request was cancelled, or the decode side is overloaded. Every request of a time means that it is gone.",
)
says(
    "torch-skips-multicast",
    "gracefully skipping multicast initialization",
    "Only a subset of ranks in the group has multicast support",
    role=H,
    why="torch's symmetric memory (2.9 and later) goes without multicast: slower, not wrong. It matters where all GPUs of the group should have NVLink SHARP.",
)
says(
    "nccl-resilience-notes",
    "Resiliency is enabled on a {side} communicator{}with a single device",
    "Resiliency context is NULL. Nothing to destroy",
    "Encountered a stale CQE with error for slot",
    "It might be a CTS message for which the request was already completed. Continue",
    role=H,
    why="Bookkeeping of NCCL's port failover (2.30): it goes on.",
)
says(
    "rccl-advice",
    "NUMA auto balancing enabled which can lead to variability",
    'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment',
    "MSCCL++: Cannot enable MSCCL++",
    "MSCCL++: Feature not enabled",
    "MSCCL Internal Scheduler: ",
    "NET: GDR Flush only supported on x86_64",
    "Unable to open {file:word}, not dumping",
    role=H,
    why="RCCL's advice on speed and on parts it goes without.",
)
says(
    "image-warning",
    "Corrupt JPEG data: ",
    "Premature end of JPEG file",
    "libpng warning: ",
    role=H,
    why="The image library decodes what there is and goes on. It matters where a decoder that is strict reads the same file.",
)
says(
    "tensorflow-teardown",
    "Error occurred when finalizing GeneratorDataset iterator",
    "Unable to destroy remote tensor handles",
    "we cannot find appropriate reader dataset op(s) to shard",
    role=H,
    why="TensorFlow takes down an iterator or handle whose graph is gone, or shards by data instead of by file: nothing is lost.",
)
says(
    "other-makers-memory",
    "Failed to initialize hmem iface FI_HMEM_ROCR",
    "Failed to initialize hmem iface FI_HMEM_ZE",
    "Failed to initialize hmem iface FI_HMEM_NEURON",
    "Failed to initialize hmem iface FI_HMEM_SYNAPSEAI",
    role=H,
    why="libfabric looks for the memory of other makers' devices, too. Of FI_HMEM_CUDA it would matter.",
)
says(
    "no-gdrcopy",
    "gdrcopy initialization failed! gdrcopy will not be used",
    "gdr_open failed! gdrcopy will not be used",
    "GDRCopy is not available",
    role=H,
    why="libfabric copies small messages to GPU memory by other means: a little slower. Large ones never go through GDRCopy.",
)
says(
    "mpi-goes-without",
    "By default, for Open MPI 4.0 and later, infiniband ports",
    "There was an error initializing an OpenFabrics device",
    "mca_base_component_repository_open: unable to open {component}(ignored)",
    "default subnet GID prefix was detected on more than one",
    "was unable to find any relevant network interfaces",
    "Another transport will be used instead",
    "WARNING: No preset parameters were found for the device that Open MPI",
    'Set MCA parameter "{name:word}" to 0 to see all help',
    role=H,
    why="Open MPI tells which transport or component it goes without; UCX, TCP or shared memory carry its messages. NCCL uses neither.",
)
says(
    "ucx-of-another-version",
    "version is incompatible: required >= {required:num}, actual {actual:num}",
    "version is incompatible, required: {required:num}, actual: {actual:num}",
    role=H,
    why="UCX runs with an older libucp than its caller was built with: not supported, and mostly without effect.",
)
says(
    "pmix-lock",
    "PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c",
    role=H,
    why="PMIx complains while it gives back a lock of its own; with PMIX_MCA_gds=^ds12 it is silent.",
)
says(
    "client-left",
    "Aborted request",
    "Abort request",
    "lient disconnected",
    role=H,
    why="A client of a serving engine gave up or got its answer cut. Many at once mean that the engine answers too slowly.",
)
_FOR_NCCL = 1 << 30  # bytes: more than the segments of a host's ranks take (9.6 MB for a channel and peer)
says(
    "ray-store-on-disk",
    "The object store is using /tmp instead of /dev/shm because /dev/shm has only {bytes:int} bytes available",
    role=H,
    why="Ray keeps its objects in files as /dev/shm is smaller than its store: slower (--shm-size, or emptyDir with medium Memory), no failure.",
    where=lambda groups, line: int(groups["bytes"]) > _FOR_NCCL,
)
says(
    "ray-watchers",
    "Failed to query Ray Train Controller actor state",
    "has constructor arguments in the object store and max_restarts > 0",
    role=H,
    why="Ray Train's own helpers. They matter only where the controller itself is gone.",
)
says(
    "raylet-not-found-yet",
    "but we cannot find a local Raylet with the same address",
    role=H,
    why="Ray asks for its raylet while that one starts, and asks again. It matters only where an error about the node's start follows.",
)
says(
    "oneccl-falls-back",
    "|CCL_WARN| did not find MPI-launcher specific variables",
    "|CCL_WARN| could not get local_idx/count from environment variables",
    "|CCL_WARN| value of CCL_{name:word} changed to be",
    "|CCL_WARN| comm_dev_uuids is not sub-vector of node_dev_uuids",
    "|CCL_WARN| number of result device uuids does not match number of ranks per host",
    "|CCL_WARN| topology recognition shows PCIe connection between devices",
    "|CCL_WARN| device_family is unknown",
    "|CCL_WARN| pidfd is not supported, fallbacks to drmfd exchange mode",
    role=H,
    why="oneCCL tells what it was given and what it found: no mpirun (it uses libfabric), a mask that shows each rank its own GPU, PCIe between them.",
)
says(
    "port-settings-changed",
    # The words of rdma-core's ibv_event_type_str().
    "sync event{}client reregistration",
    "sync event{}LID change",
    "sync event{}SM change",
    "sync event{}P_Key change",
    "sync event{}GID table change",
    "sync event{}communication established",
    "sync event{}send queue drained",
    "sync event{}last WQE reached",
    "sync event for bogus resource 0x",  # the kernel, of a process that has ended
    "sync event{}path migrated",
    "ACCESS_REG(0x805) op_mod({mode:hex}) failed, status bad parameter",
    role=H,
    why="The subnet manager or the host changed a setting of the port, or a tool asked the adapter for a register it lacks: connections live on, unless queue pairs fail after it.",
)
says(
    "nccl-hint",
    "HINT: ",
    role=H,
    why="NCCL's own guess, which follows every error of its kind (2.30.7 and later). It proves nothing, and sets no variable.",
    where=lambda groups, line: bystanders.is_a_hint(line),
)
says(
    "omp-threads",
    "Setting OMP_NUM_THREADS environment variable for each process to be 1",
    role=H,
    why="torchrun's default; a matter of CPU speed.",
)
says(
    "not-destroyed",
    "destroy_process_group() was not called before program exit",
    "process group has NOT been destroyed",
    "NCCL communicator hasn't been destroyed",
    "was not finalized before destruction",  # nccl2, the backend of PyTorch 2.15
    role=H,
    why="The program ended without destroy_process_group(). Harmless at the end of a run; after an error it only means that the error ended it.",
)
says(
    "barrier-device",
    "as devices used by this process are currently unknown",
    "as device used by this process is currently unknown",
    "Guessing device ID based on global rank",
    "No device id is provided via `init_process_group`",
    role=H,
    why="barrier() without a known device picks rank modulo GPUs. It matters when that guess is wrong for some rank: duplicate GPU or a hang in the first barrier.",
)
says(
    "ipv6-socket",
    "errno: 97 - Address family not supported by protocol",
    role=H,
    why="c10d tries IPv6 first; it falls back to IPv4.",
)
says(
    "store-loop-left",
    "[c10d] uv_loop_close failed with:{code:int} errn:EBUSY",
    role=H,
    why="c10d's store closes its loop of libuv while clients are still connected, which is so at the end of every job.",
)
says(
    "fastsocket-queues",
    "NCCL WARN Cannot get incoming CPU",
    "NCCL WARN Maximum retry reached for accept",
    "NCCL WARN Maximum retry reached for connect",
    role=H,
    why="The FastSocket plugin reconnects to spread its sockets over receive queues; it keeps the last connection when it stops trying.",
)
says(
    "no-reverse-dns",
    "hostname of the client socket cannot be retrieved. err=-3",
    role=H,
    why="No reverse DNS entry for the peer: only slow.",
)
says(
    "agent-store-bind",
    "TORCHELASTIC_USE_AGENT_STORE is enabled so ignoring the error",
    role=H,
    why="Another agent of the job holds the store's port, as intended.",
)
says(
    "unused-flag",
    "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters",
    role=H,
    why="It costs speed only: DDP searches the graph for nothing.",
)
says(
    "cumem-host-fallback",
    "cuMem host allocations do not appear to be working; falling back",
    role=H,
    why="NCCL falls back to /dev/shm; matters if that is small.",
)
says(
    "slurm-first-start",
    "Could not open {what:word} state file {path:word}: No such file or directory",
    "Trying backup state save file. ",
    "Incomplete {what:word} data checkpoint file",
    role=H,
    why="slurmctld's first start: there is no state of an earlier one yet. Later it means that StateSaveLocation was lost, and with it the queue.",
)
says(
    "collnet-fallback",
    "Cannot initialize CollNet, using point-to-point network instead",
    role=H,
    why="NCCL goes on without SHARP: slower for large jobs, no failure. The plugin's own lines before it say why.",
)
says(
    "libibverbs-driver",
    "libibverbs: Warning: couldn't load driver",
    "libibverbs: Warning: couldn't open config directory",
    "no userspace device-specific driver found for",
    role=H,
    why="A provider library for hardware that this machine (mostly) does not have.",
)
says(
    "torch-advice",
    "An unbatched P2P op (send/recv) was called on this ProcessGroup",
    "TORCH_NCCL_AVOID_RECORD_STREAMS is the default now",
    "is deprecated; use TORCH_NCCL",
    role=H,
    why="Advice of torch, not an error.",
)
says(
    "no-flight-recorder",
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled",
    role=H,
    why="The flight recorder is off: less is known about the time-out.",
)
says(
    "exception-ignored",
    "Exception ignored in",
    "Error in atexit._run_exitfuncs",
    role=H,
    why="Raised while an object or the interpreter was being taken down: Python goes on.",
)
says(
    "tracker-trouble",
    "wandb: ERROR",
    "wandb: WARNING",
    "wandb: Network error",
    "wandb.sdk.lib.sock_client.SockClientClosedError",
    "wandb.sdk.interface.router.MessageRouterClosedError",
    "Error while calling W&B API",
    "mlflow.{}: retrying",
    "comet_ml{}WARNING",
    role=H,
    why="The experiment tracker has trouble and retries; the training does not wait for it.",
)
says(
    "trial-failed",
    "failed with value None",
    "failed with parameters: ",
    "rrored after {count:int} iterations",
    role=H,
    why="A trial of a search (Optuna, Ray Tune) failed. The search goes on with the next one, unless it is told to stop.",
)
says(
    "ddp-copies-gradients",
    "Grad strides do not match bucket view strides",
    role=H,
    why="DDP copies gradients whose layout in memory is not that of their bucket: a little time, no failure.",
)
says(
    "cuda-library-not-found",
    "NCCL WARN Failed to find CUDA library",
    role=H,
    where=lambda groups, line: "NCCL_CUDA_PATH=/" not in line,  # where somebody sent it
    why="NCCL goes on without CUDA's driver interface (no cuMem, no DMA-BUF). Releases up to 2.20 look for libcuda.so, which many containers and WSL2 lack, not for libcuda.so.1.",
)
says(
    "kernel-called-old",
    "which is below the recommended minimum of {wanted}; this can cause the process to hang",
    role=H,
    why="Accelerate says so on every kernel before 5.5, those of enterprise distributions too. It has seen nothing hang.",
)
says(
    "tokenizers-forked",
    "The current process just got forked, after parallelism has already been used",
    role=H,
    why="The tokenizers turn their threads off in a forked process (DataLoader worker). TOKENIZERS_PARALLELISM=false quiets them.",
)
says(
    "bad-magic",
    "socketFinalizeAccept: didn't receive a valid magic",
    "socket magic mismatch",
    role=H,
    why="Something that is not NCCL connected (a port scanner): NCCL drops it since 2.27.",
)
says(
    "topology-fallback",
    "falling back to simple order",
    role=H,
    why="The graph search found no better order: speed only.",
)
says(
    "ras-line",
    "RAS client listening socket",
    "RAS failed to establish a client listening socket",
    "ras/client_support.cc:{line:int} NCCL WARN Call to bind failed",
    "RAS thread",
    "RAS current socket",
    "RAS connInit hash mismatch",
    "RAS keepAlive hash mismatch",
    role=H,
    why="NCCL's RAS service started: on by default since 2.24. Where another process of the host holds its port, that one answers ncclras for this host.",
)
_HELPER = re.compile(
    r"line \d+:\s+\d+ (?:Terminated|Killed|Hangup|Interrupt)\s+\(?(?:nohup |sudo )?\S*"
    r"(?:tensorboard|nvidia-smi|dcgmi|nvtop|gpustat|tail|watch|sleep|top|iostat|vmstat|sar|ssh|rsync|tee|wandb|mlflow)\b"
)
says(
    "helper-ended",
    " Terminated ",
    " Killed ",
    role=H,
    why="A shell script ended a helper that it had started (a monitor, a viewer), as it does when the work is over.",
    pattern=_HELPER,
)
says(
    "pcie-saves-power",
    "LnkSta:{}Speed 2.5GT/s (downgraded), Width x{width:int}",
    role=H,
    every=True,
    why="lspci: a PCIe link is at its lowest speed, with all its lanes: a GPU with nothing to do saves power so, and an adapter does not.",
    where=lambda groups, line: line.count("(downgraded)") == 1,
)
says(
    "tensorflow-data-ended",
    "Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
    role=H,
    why="TensorFlow says so whenever an iterator over data comes to its end, at the end of an epoch too.",
)
