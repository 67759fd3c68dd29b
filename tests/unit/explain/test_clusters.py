"""Messages of serving engines, schedulers and container runtimes, as they are pasted: what each alone leads to, and what not."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.model import Verdict
from tests.unit.explained import explain_text, pairs

FOUND = {
    "launch.world-size": (
        "| tensorrt_llm | 1 | UNAVAILABLE: Internal: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (/a/worldConfig.cpp:80) |",
        "[TensorRT-LLM][ERROR] Assertion failed: Number of GPUs per node 2 must be at least as large as TP (8) * PP (1)",
        "All provisioning attempts failed. This is likely due to cloud providers not having enough capacity. Check CLI and server logs.",
        "ValueError: Ray does not allocate any GPUs on the driver node. Consider adjusting the Ray placement group.",
        'Error creating: pods "t-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 56',
        "Warning  TopologyAffinityError  3s  kubelet  Resources cannot be allocated with Topology locality",
        "Warning  OutOfcpu  1s  kubelet  Node didn't have enough resource: cpu, requested: 64, used: 40, capacity: 96",
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x0000FF.",
        "srun: error: Task launch for StepId=9.4 failed on node n1: Unable to layout tasks on given cpus",
        "srun: error: Unable to satisfy cpu bind request",
        "botocore.exceptions.ClientError: An error occurred (VcpuLimitExceeded) when calling the RunInstances operation: no more",
        "googleapi: Error 403: Quota 'NVIDIA_H100_GPUS' exceeded. Limit: 8.0 in region us-central1., quotaExceeded",
        "UserError: Insufficient quota for the target cluster's VM family",
        "srun: error: Unable to allocate resources: Requested node configuration is not available",
    ),
    "sys.node-failure": (
        "salloc: Prolog failure on node gpu-07",
        "srun: error: Nodes n07 are still not ready",
        "[2024-05-01T10:00:00.000] update_node: node n05 reason set to: Kill task failed",
        "Low RealMemory (reported:515000 < 100.00% of configured:1031000) slurm 2024-05-01T10:00:00 n03",
        "   71_3 gpu  train.sh  PENDING  0:00  1 (launch failed requeued held)",
        "   JobState=PENDING Reason=launch_failed_requeued_held Dependency=(null)",
        "[2024-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has been marked as dead.",
    ),
    "sys.container": (
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "W0819 07:02:54.757556  1 rm.go:109] NVML not detected: could not load NVML library: libnvidia-ml.so.1: cannot open shared object",
        "E0819 07:02:54.757818  1 factory.go:112] Incompatible strategy detected auto",
        "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
        'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /data/models.',
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "Error: crun: error executing hook `/usr/bin/nvidia-container-toolkit` (exit code: 1): OCI runtime error",
        "FATAL:   While checking container encryption: could not open image /data/x.sif: failed to retrieve path for /data/x.sif",
        "Warning  FailedCreatePodSandBox  9m  kubelet, n1  Failed create pod sandbox: rpc error: code = Unknown desc = failed to set up "
        'sandbox container "ce6" network for pod "p": NetworkPlugin cni failed to set up pod "p" network: dial tcp 10.1.0.1:443: timeout',
        "Feb 12 10:02:01 n16 kubelet[14]: E0212 10:02:01.26  14 kubelet.go:2104] Container runtime network not ready: NetworkReady=false "
        "reason:NetworkPluginNotReady message:docker: network plugin is not ready: cni config uninitialized",
        "docker: Error response from daemon: error modifying OCI spec: failed to inject CDI devices: unresolvable CDI devices a/gpu=1",
        "ERROR  : Failed creating directory /var/singularity/mnt/final/.singularity.d/libs :No such file or directory",
        "slurmstepd: error: container_p_join: open failed /scratch/119383/.active: No such file or directory\n"
        "slurmstepd: error: container_g_join failed: 119383",
    ),
    "gpu.not-visible": (
        "INFO:    Could not find any nv files on this host!",
        "slurmstepd: error: common_gres_set_env: unable to set env vars, no device files configured",
        "Failed to initialize NVML: Insufficient Permissions",
        "Warning  FailedPrepareDynamicResources  4s  kubelet  Failed to prepare dynamic resources: NodePrepareResources failed: x",
        "rocBLAS error: Could not initialize Tensile host: No devices found",
        "gpu  0/1  requested number of GPUs unavailable. Requested: 4, Available: 0  0  36s",
    ),
    "gpu.driver": (
        "Could not unload NVIDIA driver kernel modules, driver is in use",
        'level=warning msg="Failed to unload kernel module nvidia_uvm: resource temporarily unavailable"',
        "ROCk module is NOT loaded, possibly no GPU devices",
        "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : gfx1031",
        ":0:rocdevice.cpp            :2303: 768423197593 us: Device::callbackQueue aborting with status: 0x100f",
    ),
    "ib.device-not-found": (
        'Error response from daemon: error gathering device information while adding custom device "/dev/infiniband/uverbs0": no such '
        "file or directory",
        "2025/03/08 17:43:19 Exiting.. can not change : incorrect RDMA subsystem network namespace",
        "Fail to configure sriov; error =  write /sys/class/net/ens5f0/device/sriov_numvfs: device or resource busy",
        "2025/03/08 17:43:20 Warning: no devices in device pool, creating empty resource server for rdma_shared_device_a",
    ),
    "sys.clock-or-dns-or-fs": (
        "[X] Disk lease period expired 2.510 seconds ago in cluster gpfs.cluster. Attempting to reacquire the lease.",
        "slurmstepd: error: couldn't chdir to `/data/ann/job': No such file or directory: going to /tmp instead",
        "Nov 24 09:54:59 n2 slurmd[27015]: error: _fetch_child: failed to fetch remote configs",
        "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)",
        "botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: too large.",
        "x509: certificate has expired or is not yet valid: current time 2019-01-01T00:01:10Z is before 2025-02-02T10:00:00Z",
    ),
    "net.wrong-interface": (
        "ERROR 10-16 17:22:56 [nixl_connector.py:815] RuntimeError: Remote NIXL agent engine ID mismatch. Expected 4,received 9.",
    ),
    "net.master-unreachable": (
        "kex_exchange_identification: Connection closed by remote host",
        'Exception: Failed to connect to etcd server with config ClientOptions { etcd_url: ["http://localhost:2379"] }',
        "nats.errors.NoServersError: nats: no servers available for connection",
    ),
    "net.hostname-resolution": (
        "Error: dial tcp: lookup ray-head.ml.svc on 10.96.0.10:53: read udp 10.1.0.2:39011->10.96.0.10:53: i/o timeout",
        ";; connection timed out; no servers could be reached",
    ),
    "net.port-in-use": (
        "docker: Error response from daemon: driver failed programming external connectivity on endpoint vllm (a1): Bind for "
        "0.0.0.0:8000 failed: port is already allocated.",
        "[ERROR] HCCL(27,python3):2025-07-23-03:47:57.070 [hccl_socket.cc:100] [27][HcclSocket][Listen] socket type[1], listen on "
        "ip[10.0.0.9] and specific port[16666] fail. Please check the port status and whether the port is been using by other process.",
    ),
    "gpu.illegal-access": (
        ":0:rocdevice.cpp :3586: 1183357978 us:  Callback: Queue 0x7f35e8100000 aborting with error : HSA_STATUS_ERROR_EXCEPTION: "
        "An HSAIL operation resulted in a hardware exception. code: 0x1016",
        ":0:rocdevice.cpp            :2672: 0696142325 us: Device::callbackQueue aborting with error : "
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29",
    ),
    "gpu.oom": (
        ":0:rocdevice.cpp            :2603: Device::callbackQueue aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime "
        "failed to allocate the necessary resources. Available Free mem : 0 MB",
        "RuntimeError: HIP error: out of memory",
        "NvMapMemAllocInternalTagged: 1075072515 error 12",
    ),
    "sw.no-nccl-backend": ("[TM][FATAL] comm/device_comm.cc(28): Check failed: 0 Unknown communication backend: nccl",),
    "sw.nccl-version-mismatch": ("RPC server version mismatch: 2.0.0",),
    "sys.threads": ("-bash: fork: retry: No child processes",),
    "sys.host-oom": (
        "slurmstepd: error: Exceeded step memory limit at some point.",
        "2024-10-01T07:43:22Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0",
        "[2025-01-01 10:00:00] Child process unexpectedly failed with exitcode=-9. pid=1234",
        "llama runner process has terminated: signal: killed",
    ),
    "sys.shm": (
        "2024-10-01T07:43:22Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 7 rank=1",
        "llama runner process has terminated: signal: bus error",
    ),
    "unrelated": (
        "srun: error: Unable to allocate resources: Invalid partition name specified",
        "qsub: Unauthorized Request  MSG=group ACL is not satisfied",
        "gpu: No such queue. Job not submitted.",
        "slurmstepd: error: Could not open stdout file /data/logs/job.out: No such file or directory",
        'docker: Error response from daemon: Conflict. The container name "/vllm" is already in use by container "8ab".',
        'Error from server (Forbidden): pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "ml"',
        "slurmd: error: Couldn't load specified plugin name for cgroup/v2: Plugin init() callback failed",
        "[2023-10-16T10:42:01.139] error: cannot create cgroup context for cgroup/v2",
        "[2018-05-16T20:40:39.100] chdir to /var/tmp\n[2018-05-16T20:40:39.100] fatal: mkdir(/var/spool): No such file",
    ),
}
GUESSED = {
    "sys.shm": ("Nov 24 09:56:20 n1 systemd[1]: frob.service: Main process exited, code=killed, status=7/BUS",),
    "net.peer-lost": (
        "[2025-05-29 23:23:23] Prefill transfer failed for request rank=0 req.bootstrap_room=358 with exception "
        "KVTransferError(bootstrap_room=358): Failed to send kv chunk of 358 to 10.0.0.9:44781",
        "/opt/llama.cpp/ggml/src/ggml-rpc/ggml-rpc.cpp:615: Remote RPC server crashed or returned malformed response",
    ),
    "net.master-unreachable": (
        "[2023-10-24 03:59:58,924 W 8 8] global_state_accessor.cc:401: Some processes that the driver needs to connect to have not "
        "registered with GCS, so retrying. Have you run 'ray start' on this node?",
        "llama_model_load: using device RPC[10.0.0.2:50052]\nFailed to connect to 10.0.0.2:50052",
    ),
    "sys.host-oom": (
        "ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
    ),
    "app.straggler-timeout": (
        'Traceback (most recent call last):\n  File "/venv/vllm/distributed/device_communicators/shm_broadcast.py", line 469, in '
        "acquire_read\n    raise TimeoutError\nTimeoutError",
        "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.",
        "[rank1]:[E909 08:45:30.126335825 ProcessGroupNCCL.cpp:2252] [PG ID 2 PG GUID 3 Rank 1]  failure detected by watchdog at work "
        "sequence id: 40231 PG status: last enqueued work: 40267, last completed work: 40230",
    ),
    "gpu.oom": (
        "CUDA error: the resource allocation failed\n  current device: 0, in function cublas_handle at ggml-cuda/common.cuh:526",
    ),
    "launch.rdzv": ("07-07-2021 19:38:56:375 60873 main: Error initializing RM connection. Exiting.",),
    "unrelated": (
        "error: creating server: Internal - failed to load all models",
        "[2022-06-10T09:46:22.044] error: _node_config_validate: gres/gpu: invalid GRES core specification (48-63,176-191) on node n1",
    ),
    "app.rank-exception": (
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n[rank: 1] Child process with PID 226 terminated with code 1. "
        "Forcefully terminating all other processes to avoid zombies",
    ),
}


@pytest.mark.parametrize(("wanted", "line"), pairs(FOUND))
def test_one_message_is_enough(wanted: str, line: str) -> None:
    got = explain_text(f"{line}\n")
    assert got.verdict in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED)
    assert got.causes[0].id == wanted


@pytest.mark.parametrize(("wanted", "lines"), pairs(GUESSED))
def test_one_message_is_a_guess(wanted: str, lines: str) -> None:
    got = explain_text(f"{lines}\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, wanted)


@pytest.mark.parametrize(
    ("line", "never"),
    [
        (
            "INFO 04-17 15:11:19 [ray_distributed_executor.py:127] Shutting down Ray distributed executor. If you see error log from "
            "logging.cc regarding SIGTERM received, please ignore because this is the expected termination process in Ray.",
            "launch.killed",
        ),
        (
            "Could not attach to process.  If your uid matches the uid of the target\nagain as the root user.  For more details, see "
            "/etc/sysctl.d/10-ptrace.conf\nptrace: Inappropriate ioctl for device.",
            "sys.container",
        ),
        (
            "| tensorrt_llm | 1 | UNAVAILABLE: Internal: unexpected error when creating modelInstanceState |",
            "net.master-unreachable",
        ),
        (
            "curl: (7) Failed to connect to mirror.example.org port 443 after 2 ms: Connection refused",
            "net.master-unreachable",
        ),
    ],
)
def test_words_of_something_else_decide_nothing(line: str, never: str) -> None:
    got = explain_text(f"{line}\n")
    assert got.verdict is Verdict.UNDECIDED
    assert all(cause.confidence < 0.4 for cause in got.causes if cause.id == never)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 8589934592 bytes available. This will "
        "harm performance! You may be able to free up space by deleting files in /dev/shm. If you are inside a Docker container, ...",
        "slurmstepd: error: Can't propagate RLIMIT_NPROC of 4096 from submit host: Operation not permitted",
        "[2018-01-08T07:25:06.072] error: Could not open node state file /var/spool/slurm/node_state: No such file or directory",
    ],
)
def test_a_start_with_less_is_no_guess(line: str) -> None:
    got = explain_text(f"{line}\n")
    assert not got.causes and got.sentence.endswith("known to be harmless")


def test_a_shard_that_crashed_is_no_host() -> None:
    line = "2024-10-01T07:43:22.392453Z ERROR text_generation_launcher: Shard 0 crashed\n"
    assert "sys.node-failure" not in [cause.id for cause in explain_text(line).causes]


def test_a_room_is_no_memory() -> None:
    assert (
        not explain_text("[2025-05-29 23:23:23] ERROR: bootstrap_room 7 failed to start\n")
        .causes[0]
        .id.startswith("sys.")
    )


def test_a_small_shared_memory_stays_a_guess() -> None:
    line = "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available.\n"
    assert explain_text(line).causes[0].id == "sys.shm"


def test_no_peer_access_in_turbomind_is_worth_knowing() -> None:
    got = explain_text("[TM][WARNING] Device 0 peer access Device 1 is not available.\n")
    assert [item.playbook for item in got.worth_knowing] == ["gpu.p2p"]


@pytest.mark.parametrize(
    "line",
    [
        "qsub: waiting for job 123.pbs to start",
        "qsub: job 123.pbs ready",
        "sent to the cluster by qsub: 123.pbs",
        "Mar  1 11:05:02 gpu1 sshd[812]: error: kex_exchange_identification: Connection closed by remote host",
        "[2024-05-01T10:00:00Z] fatal: upstream closed the stream, connecting again",
        "Insufficient quota for user ann on /scratch",
    ],
)
def test_what_sounds_like_a_refusal_of_the_job_and_is_none(line: str) -> None:
    assert not explain_text(f"{line}\n").causes


@pytest.mark.parametrize(
    "line",
    [
        "user ann exceeded quota: /home 101G of 100G",
        "Quota 'requests per minute' exceeded. Try again later.",
        "ERROR: Transport init failed, using the file transport",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "srun: error: Unable to allocate resources: Protocol authentication error",
        "srun: error: Unable to allocate resources: Job/step already completing or completed",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, but soft recovered",
    ],
)
def test_what_another_program_says_in_like_words_gives_no_verdict(line: str) -> None:
    assert explain_text(f"{line}\n").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "line",
    [
        "[1746690477.97] [n1:6:0] ucp_context.c:1268 UCX  WARN  transport 'cuda' is not available, please use one or more of: self, sm",
        "[LOG_CAT_ML] ml_discover_hierarchy exited with error",
        "No OpenFabrics connection schemes reported that they were able to be",
        "Open MPI failed an OFI Libfabric library call (fi_domain).  This is highly",
        "[2023-10-24 03:59:58,924 W 8 8] accessor.cc:401: Some processes that the driver needs to connect to have not registered with GCS",
        'error: unable to upgrade connection: container not found ("worker")',
        "[313.6] amdgpu 0000:0d:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12",
    ],
)
def test_a_job_goes_on_without_it(line: str) -> None:
    steps = "".join(f"step {step} loss {3 - step / 100}\n" for step in range(1, 9))
    assert explain_text(f"{line}\n").verdict is Verdict.UNDECIDED
    assert explain_text(f"{line}\n{steps}").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "nvidia-container-cli: initialization error: WSL environment detected but no adapters were found: unknown",
            "initialization error: WSL environment detected",
        ),
        (
            "slurmstepd: error: execve(): /tmp/slurmd/job71/slurm_script: No such file or directory",
            "the job's script is gone from the node's /tmp/slurmd/job71",
        ),
        (
            "Warning  FailedCreatePodSandBox  3s  kubelet  Failed to create pod sandbox: rpc error: code = Unknown desc = no VF",
            "the pod's sandbox or its network",
        ),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  [FT][ERROR] CUDA runtime error: invalid "
            "argument /opt/x/allocator.h:252\n\nAborted (core dumped)",
            "an uncaught C++ exception ended the process: [FT][ERROR] CUDA runtime error",
        ),
    ],
)
def test_the_title_says_what_failed(line: str, told: str) -> None:
    assert told in explain_text(f"{line}\n").sentence
