"""Single messages, cascades and ordinary logs: what each must (and must not) lead to."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.model import Verdict
from tests.unit.explained import explain_text, pairs


def _timeout(rank: int, sequence: int, operation: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E1103 04:10:11.{rank:03d}000001 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=1024, NumelOut=1024, "
        "Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
    )


PEER = "n1:1:9 [0] misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer n2<40123>"

MESSAGES = {
    "sw.nccl-version-mismatch": (
        "n1:1:9 [0] NCCL WARN Mismatched NCCL git versions detected: rank 0 fingerprint 0x12ab34cd, rank 3 fingerprint 0x99ab34cd",
    ),
    "net.mtu": (
        "ping -M do -s 8972 10.0.0.2\nping: local error: message too long, mtu=1500\nWatchdog caught collective operation timeout",
        "PING 10.0.0.2 (10.0.0.2) 8972(9000) bytes of data.\n--- 10.0.0.2 ping statistics ---\n3 packets transmitted, 0 received, 100% packet loss, time 2043ms\n$ ping -c 3 -M do -s 1400 10.0.0.2\n3 packets transmitted, 3 received, 0% packet loss",
    ),
    "ib.port-down": (
        "CA 'mlx5_2'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n\t\tRate: 10",
        "hca_id: mlx5_3\n\tport: 1\n\t\tstate: PORT_DOWN (1)\n\t\tmax_mtu: 4096 (5)",
    ),
    "gpu.thermal-power": (
        "    Clocks Throttle Reasons\n        SW Thermal Slowdown               : Active\n step time 2.3s",
        "dcgmi diag: Fail - GPU 3: Thermal violations totaling 12.3 seconds started at 4.5 seconds into the test",
    ),
    "gpu.ecc": (
        "        Remapping Failure Occurred                 : Yes\n        Pending : Yes",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered\n[rank1] Watchdog caught collective operation timeout",
    ),
    "gpu.nvlink": (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-3)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s",
    ),
    "gpu.fabric-manager": (
        "Nov 3 x nv-fabricmanager[991]: fabric manager NVIDIA GPU driver interface version 550.90.07 don't match with driver version 550.127.05. Please update with matching NVIDIA driver package.",
        "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n   Active: inactive (dead)\nRuntimeError: Unexpected error from cudaGetDeviceCount()",
    ),
    "gpu.imex": (
        "n1:1:2 [0] transport/nvls.cc:1 NCCL WARN Cuda failure 800 'operation not permitted'",
    ),
    "gpu.mig": (
        "nvidia-smi -L\nGPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa-bbbb)\n  MIG 3g.20gb     Device  1: (UUID: MIG-cccc-dddd)\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 7000",
    ),
    "gpu.not-visible": (
        "RuntimeError: No CUDA GPUs are available",
        "AssertionError: Torch is not able to use GPU; torch.cuda.is_available() returned False",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    ),
    "gpu.driver": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54",
        "CUDA error: no kernel image is available for execution on the device",
        "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    "gpu.p2p": (
        "[rank0]: RuntimeError: CUDA error: peer access is not supported between these two devices",
        'NotImplementedError: Using RTX 4000 series doesn\'t support faster communication broadband via P2P or IB. Please set `NCCL_P2P_DISABLE="1"` and `NCCL_IB_DISABLE="1"',
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x0015 address=0xf0000000 flags=0x0020]\nWatchdog caught collective operation timeout",
    ),
    "gpu.oom": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ),
    "sw.no-nccl-backend": (
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "AssertionError: Torch not compiled with CUDA enabled",
        'Traceback (most recent call last):\n  File "t.py", line 4, in <module>\n    dist.init_process_group("gloo")\nRuntimeError: No rendezvous handler for env://',
    ),
    "sw.library-conflict": (
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
        "OSError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by libnccl.so.2)",
        "AttributeError: /usr/lib/libnccl.so.2: undefined symbol: ncclCommRegister",
        "Open MPI detected a mismatch in versions between two processes.  This\ntypically means that you executed mpirun from one\n  Local host:             gpu01\n  Peer host:              gpu02",
    ),
    "sw.nccl-bug": (
        "[node11:265 :0:4597] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x52b00e)\n==== backtrace (tid: 4597) ====\n 1 0x000000000004f03d ncclLaunchPrepare()  /build/src/enqueue.cc:574",
        "[n1:1] *** Process received signal ***\n[n1:1] Signal: Segmentation fault (11)\n[n1:1] [ 1] /usr/lib/libnccl.so.2(+0x3533c)[0x7f8eab35933c]",
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV",
        "step 120 loss 2.31 it/s 1.2\nstep 121 loss 2.30 it/s 1.2\n[Tue Mar  4 10:00:01 2025] python3.11[4711]: segfault at 60 ip 00007f24b8cf2616 sp 00007ffc0f212680 error 4 in libc10_cuda.so[7f24b8cc8000+5c000]",
    ),
    "sys.nofile": (
        "OSError: [Errno 24] Too many open files: '/proc/cpuinfo'",
        "mpirun was unable to launch the specified application as it encountered an error:\n\nError: system limit exceeded on number of pipes that can be open\nNode: gpu01",
    ),
    "sys.threads": (
        "RuntimeError: can't start new thread",
        "bash: fork: retry: Resource temporarily unavailable",
        "Error: system limit exceeded on number of processes that can be started\nNode: gpu01",
    ),
    "sys.host-oom": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 68719476736 bytes.",
        "Last State: Terminated\n Reason: OOMKilled\n Exit Code: 137",
        'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "cudnn_cnn_infer64_8.dll" or one of its dependencies.',
    ),
    "sys.disk-full": (
        "RuntimeError: PytorchStreamWriter failed writing file data/12: file write failed",
        "OSError: [Errno 122] Disk quota exceeded",
    ),
    "sys.shm": (
        "RuntimeError: DataLoader worker (pid 88) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    "sys.clock-or-dns-or-fs": (
        "OSError: [Errno 116] Stale file handle: '/nfs/data/x'",
        "slurmd: error: Munge decode failed: Rewound credential",
    ),
    "sys.node-failure": (
        "Warning  NodeNotReady  3m  node-controller  Node is not ready",
        "ORTE has lost communication with a remote daemon.\n  HNP daemon   : [[1,0],0] on node n1\n  Remote daemon: [[1,0],3] on node n4",
        "(raylet) The node with node id: 3a and address: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats from it.",
    ),
    "app.nan-or-data": (
        "AssertionError: Rank 3: found NaN in local grad norm in backward pass before data-parallel communication collective.",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    "app.bad-tensor": (
        "ValueError: Tensors must be CUDA and dense",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!",
        "TypeError: Input tensor data type is not supported for NCCL process group: Short",
        "ValueError: DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU modules or CPU modules, but got device_ids [0], output_device 0, and module parameters {device(type='cpu')}.",
    ),
    "app.pg-misuse": (
        "RuntimeError: trying to initialize the default process group twice!",
        "ValueError: Invalid process group specified or has been destroyed.",
    ),
    "app.ddp-unused-params": (
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons",
    ),
    "app.dataloader-worker": (
        "RuntimeError: DataLoader worker (pid(s) 1234) exited unexpectedly",
    ),
    "app.collective-mismatch": (
        "n1:1:9 [0] NCCL WARN Window registration capabilities disagree between rank 0 and rank 3\nncclInvalidArgument: Invalid value for an argument.",
        "[n1] NET/IB : req 0/1 tag 7 peer 10.0.0.1<5> collective mismatch error, local size 4194304 remote size 1048576",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 4194304 vs 1048576",
    ),
    "app.uneven-inputs": (
        "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
    ),
    "launch.env-missing": (
        "Ubuntu 16.04.3 LTS\nexport: Command not found.\nexport: Command not found.",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable WORLD_SIZE expected, but not set",
    ),
    "launch.rdzv": (
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "etcd.EtcdConnectionFailed: Connection to etcd failed due to MaxRetryError",
    ),
    "launch.world-size": (
        "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [horovod/common/gloo/http_store.cc:53] [horovod/common/gloo/http_store.cc:53] Wait timeout for key(s): 0",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=4, num_workers_joined=2, timeout=0:30:00)",
        "At least one of the requested hosts is not included in the current allocation.\n\nMissing requested host: gpu09",
        "A request was made to bind to that would result in binding more\nprocesses than cpus on a resource:\n\n   Bind to:     CORE\n   Node:        gpu01",
    ),
    "launch.killed": (
        "Received SIGTERM: 15\nsaving and exiting",
        "=>> PBS: job killed: walltime 36012 exceeded limit 36000",
        "W torch/distributed/elastic/agent/server/api.py Received Signals.SIGHUP death signal, shutting down workers",
    ),
    "env.bad-nccl-var": (
        "NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>",
        "AssertionError: Using async gradient all reduce requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1",
    ),
    "net.port-in-use": (
        "OSError: [Errno 98] Address already in use",
        "OSError: [WinError 10013] An attempt was made to access a socket in a way forbidden by its access permissions",
    ),
    "net.hostname-resolution": (
        "socket.gaierror: [Errno -2] Name or service not known",
        "ssh: Could not resolve hostname worker-1: Name or service not known",
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  In initFromLoop at /src/tensorpipe/transport/uv/listener.cc:126 \"rv < 0: invalid argument\"",
    ),
    "net.master-unreachable": (
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [master]:29500 (errno: 111 - Connection refused).\n[E socket.cpp:610] The client socket has failed to connect to any network address of (master, 29500).",
        "prterun was unable to reliably start one or more daemons.\nThis usually is caused by:\n\n* the inability to resolve specified hostnames",
        'Traceback (most recent call last):\n  File "/Users/kim/train.py", line 4, in <module>\n    world = mx.distributed.init(backend="ring")\nRuntimeError: [ring] Couldn\'t connect (error: 60)',
    ),
    "net.firewall": (
        "NCCL WARN socketStartConnect: Connect to 10.0.0.3<43211> failed : No route to host",
        "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.",
        "ORTE is unable to establish a communication connection to the\nspecified daemon located on the indicated node:\n\n  my node:   gpu01\n  target node:  gpu02",
    ),
    "net.wrong-interface": (
        "/opt/dgl/src/rpc/network/tcp_socket.cc:69: Failed bind on 192.0.2.7:3026 ,errno=99\n\ndgl._ffi.base.DGLError: [11:33:22] /opt/dgl/src/rpc/network/socket_communicator.cc:197: Cannot bind to 192.0.2.7:3026",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth1",
        "MPI_INIT has failed because at least one MPI process is unreachable\nfrom another.  This *usually* means that an underlying communication",
        'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    kv = mx.kv.create("dist_sync")\nmxnet.base.MXNetError: [13:30:33] src/van.cc:63: Check failed: !ip.empty() failed to get ip',
    ),
    "net.plugin": (
        "NCCL WARN NET/OFI Couldn't open CQ. RC: -38, ERROR: Function not implemented",
        "libfabric:1:2::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list\nNCCL WARN NET/OFI No eligible providers were found",
        "[gpu01:771] [[5120,1],3] selected pml ob1, but peer [[5120,1],0] on gpu02 selected pml ucx\nMPI_INIT has failed because at least one MPI process is unreachable\nfrom another.",
    ),
    "ib.memlock": (
        "NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory",
    ),
    "ib.gid-index": (
        "NCCL WARN NET/IB : mlx5_0:1 GID table changed\nstatus=12 vendor err 129",
    ),
    "ib.qp-connect": (
        "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
    ),
    "ib.retry-exceeded": (
        "n1:1:9 [0] NCCL WARN NET/IB: WQE stall (no CQE): peer=10.0.0.2<41000> | local: qpn=91 dev=mlx5_3 port=1 lid=0 localGid=::ffff:10.0.0.1 "
        "| remote: qpn=77 port=1 lid=0 remoteGid=::ffff:10.0.0.2 | stall_thr=5000000000ns age=9000000123ns inflight=12",
        "[LOG_CAT] Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
    ),
    "ib.gdr": (
        "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\nNCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
    ),
    "ib.device-not-found": (
        "NCCL INFO NCCL_NET set by environment to IB\nNCCL INFO NET/IB : No device found.\nNCCL WARN Error: network IB not found.",
    ),
    "unrelated": (
        "train.py: error: unrecognized arguments: --foo",
        '  File "train.py", line 3\n    print "x"\nSyntaxError: Missing parentheses in call to \'print\'',
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo",
        "mpirun has detected an attempt to run as root.\n\nRunning as root is *strongly* discouraged",
        'The value of the MCA parameter "plm_rsh_agent" was set to a path\nthat could not be found:\n\n  plm_rsh_agent: ssh : rsh',
        "mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.\n\nNode:       gpu01\nExecutable: -bind_to",
        "PRTE was unable to open the hostfile:\n    hosts.txt\nCheck to make sure the path and filename are correct.",
    ),
    "healthy": (
        "Epoch 1/2 loss 0.5\nEpoch 2/2 loss 0.4\nSaved model to out.pt\nDone",
        "NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE\nstep 100 | loss 3.2 | tok/s 1000",
    ),
    "sys.container": (
        "set_mempolicy: Operation not permitted\nNCCL WARN Cuda failure 1 'invalid argument'",
    ),
    "gpu.fell-off-bus": (
        "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "3b:00.0 3D controller: NVIDIA Corporation GA100 (rev ff)",
    ),
    "gpu.duplicate": (
        "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 65000",
        "ml.dmlc.xgboost4j.java.XGBoostError: [10:11:12] device_helpers.cu:64: Check failed: n_uniques == world (1 vs. 2) : Multiple processes within communication group running on same CUDA device is not supported",
        "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, invalid usage, NCCL version 2.7.8",
    ),
    "gpu.illegal-access": (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [24,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
    ),
    "app.straggler-timeout": (
        "[rank0] Downloading dataset 12% 3h left\n[rank1]:[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BARRIER, Timeout(ms)=1800000) ran for 1800100 milliseconds",
    ),
    "net.peer-lost": (
        "An MPI communication peer process has unexpectedly disconnected.  This\nusually indicates a failure in the peer process\n  Local host: gpu01\n  Peer host:  gpu02",
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at gloo/transport/tcp/pair.cc:498] optval == 0. 111 vs 0. SO_ERROR: Connection refused",
        "[W tensorpipe_agent.cpp:641] RPC agent for ps encountered error when sending outgoing request #0 to w1: ECONNREFUSED: connection refused\nTraceback (most recent call last):\n  File \"rpc.py\", line 9, in <module>\n    rpc.rpc_sync('w1', f)\nRuntimeError: ECONNREFUSED: connection refused",
    ),
}  # fmt: skip

CASCADES: list[tuple[str, ...]] = [
    (
        "sys.host-oom",
        PEER,
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5",
        "E1103 api.py:874] failed (exitcode: -9) local_rank: 3 (pid: 91) of binary: /usr/bin/python3",
    ),
    (
        "gpu.illegal-access",
        "../aten/src/ATen/native/cuda/Indexing.cu:1290: operator(): block: [3,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        "[rank1]: RuntimeError: CUDA error: device-side assert triggered",
        _timeout(0, 50),
        _timeout(2, 50),
    ),
    (
        "app.dataloader-worker",
        "[rank3]: RuntimeError: DataLoader worker (pid 4411) is killed by signal: Segmentation fault.",
        _timeout(0, 50),
        _timeout(1, 50),
        _timeout(2, 50),
        PEER,
    ),
    (
        "launch.killed",
        "step 900 loss 1",
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/j/t.py", line 3, in <module>',
        "[rank0]: KeyboardInterrupt",
        PEER,
    ),
    (
        "sys.disk-full",
        "[rank0]: OSError: [Errno 28] No space left on device",
        _timeout(1, 9),
        _timeout(2, 9),
        _timeout(3, 9),
    ),
    (
        "gpu.oom",
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79 GiB",
        _timeout(0, 7),
        _timeout(1, 7),
        _timeout(3, 7),
        "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 1)",
    ),
    (
        "net.hostname-resolution",
        "[rank4]: socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 clients joined.",
    ),
    (
        "ib.memlock",
        "q:1:2 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        "q:1:2 [0] NCCL INFO transport/net_ib.cc:800 -> 2",
        PEER,
        "RuntimeError: NCCL communicator was aborted on rank 3",
    ),
    (
        "sys.node-failure",
        PEER,
        _timeout(0, 5),
        _timeout(1, 5),
        "srun: error: Node failure on n07",
        "slurmstepd: error: *** JOB 1 ON n01 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    (
        "gpu.driver",
        "n2: RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "n1: [rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "app.nan-or-data",
        "[rank1]: AssertionError: Rank 1: found NaN in local grad norm",
        "[rank1]: exiting",
        _timeout(0, 8),
        _timeout(2, 8),
    ),
    (
        "sys.shm",
        "c:1:2 [1] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
        "c:1:2 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes",
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: x, unhandled system error, NCCL version 2.19.3",
    ),
    (
        "launch.env-missing",
        "[rank0]: KeyError: 'LOCAL_RANK'",
    ),
    (
        "app.rank-exception",
        "[rank6]: Traceback (most recent call last):",
        '[rank6]:   File "/j/ev.py", line 9, in run',
        "[rank6]: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        *(_timeout(r, 31) for r in (0, 1, 2, 3, 4, 5, 7)),
    ),
    (
        "ib.port-down",
        "a:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_4",
        "n2 kernel: mlx5_core 0000:9a:00.0 ib4: Link down",
        PEER,
    ),
    (
        "gpu.fell-off-bus",
        _timeout(0, 4),
        _timeout(1, 4),
        "[Tue Nov  3 03:59:11 2026] NVRM: GPU at PCI:0000:b1:00: GPU-1",
        "[Tue Nov  3 03:59:11 2026] NVRM: GPU 0000:b1:00.0: GPU has fallen off the bus.",
    ),
    (
        "net.port-in-use",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: x",
    ),
    (
        "sw.nccl-version-mismatch",
        "a:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
        "b:1:1 [0] NCCL INFO NCCL version 2.26.2+cuda12.8",
        "b:1:9 [0] bootstrap.cc:1 NCCL WARN Message truncated : received 412 bytes instead of 404",
        PEER,
    ),
]

ORDINARY = {
    "hf": """The following values were not passed to `accelerate launch` and had defaults used instead:
	`--num_processes` was set to a value of `8`
	`--mixed_precision` was set to a value of `'no'`
[2026-01-01 10:00:00,001] [INFO] [real_accelerator.py:239:get_accelerator] Setting ds_accelerator to cuda (auto detect)
/opt/v/lib/python3.11/site-packages/transformers/utils/hub.py:123: FutureWarning: Using `TRANSFORMERS_CACHE` is deprecated
Loading checkpoint shards: 100%|##########| 4/4 [00:05<00:00,  1.31s/it]
Some weights of X were not initialized from the model checkpoint and are newly initialized: ['score.weight']
Using auto half precision backend
***** Running training *****
  Num examples = 52,002
  Total optimization steps = 1,218
{'loss': 1.2, 'grad_norm': 2.1, 'learning_rate': 1e-05, 'epoch': 0.01}
{'loss': 1.1, 'grad_norm': 1.9, 'learning_rate': 2e-05, 'epoch': 0.02}
Saving model checkpoint to ./out/checkpoint-500
Training completed. Do not forget to share your model on huggingface.co/models =)
{'train_runtime': 4501.2, 'train_loss': 0.9, 'epoch': 3.0}
wandb: Synced 5 W&B file(s), 0 media file(s), 0 artifact file(s) and 0 other file(s)
""",
    "megatron": """using world size: 16, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 2
WARNING: one_logger package is required to enable e2e metrics tracking.
> setting tensorboard ...
[rank3]:[W101 10:00:00.1 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 3]  using GPU 3 to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.
> done with compiling and loading fused kernels. Compilation time: 3.1 seconds
(min, max) time across ranks (ms):
    model-and-optimizer-setup ......................: (812.51, 830.22)
 [2026-01-01 10:01:00] iteration       10/  100 | elapsed time per iteration (ms): 900.1 | lm loss: 1.0E+01 | loss scale: 4096.0 | grad norm: 2.1 | number of skipped iterations:   1 | number of nan iterations:   0 |
 [2026-01-01 10:02:00] iteration       20/  100 | elapsed time per iteration (ms): 900.1 | lm loss: 9.0E+00 | loss scale: 4096.0 | grad norm: 1.9 | number of skipped iterations:   0 | number of nan iterations:   0 |
""",
    "vllm": """INFO 01-01 10:00:00 [__init__.py:239] Automatically detected platform cuda.
(VllmWorker rank=1 pid=33) INFO 01-01 10:00:09 [utils.py:1055] Found nccl from library libnccl.so.2
(VllmWorker rank=1 pid=33) INFO 01-01 10:00:09 [pynccl.py:69] vLLM is using nccl==2.21.5
(VllmWorker rank=0 pid=32) WARNING 01-01 10:00:10 [custom_all_reduce.py:136] Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True explicitly.
INFO 01-01 10:01:00 [kv_cache_utils.py:634] GPU KV cache size: 300,000 tokens
INFO:     Application startup complete.
INFO:     127.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK
INFO 01-01 10:05:00 [loggers.py:111] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 3 reqs
""",
    "deepspeed": """[2026-01-01 10:00:00,100] [WARNING] [runner.py:215:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.
[2026-01-01 10:00:01,100] [INFO] [runner.py:605:main] cmd = /usr/bin/python -u -m deepspeed.launcher.launch --world_info=eyJ --master_addr=127.0.0.1 --master_port=29500 --enable_each_rank_log=None train.py
[2026-01-01 10:00:05,100] [INFO] [launch.py:256:main] process 100 spawned with command: ['/usr/bin/python']
[2026-01-01 10:01:05,100] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=1, lr=[1e-5], mom=[(0.9, 0.999)]
[2026-01-01 10:01:09,100] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768
steps: 10 loss: 2.1 iter time (s): 1.2 samples/sec: 26.1
[2026-01-01 10:09:05,100] [INFO] [launch.py:351:main] Process 100 exits successfully.
""",
    "slurm": """+ srun --label python train.py
0: CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
0: node1:1:1 [0] NCCL INFO NCCL_DEBUG set by environment to INFO
0: node1:1:9 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws
0: node1:1:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
0: node1:1:9 [0] NCCL INFO NET/OFI Setting FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES not supported.
0: libfabric:1:2::efa:ep_ctrl:efa_rdm_ep_set_shared_memory_permitted():1410<warn> FI_OPT_SHARED_MEMORY_PERMITTED set to false
0: node1:1:9 [0] NCCL INFO comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 53000 commId 0x9 - Init COMPLETE
0: epoch 1 step 100 loss 3.3 3.1 it/s
0: epoch 1 done, valid loss 3.2
0: Finished training
""",
}


def _first(text: str) -> str:
    got = explain_text(text + "\n")
    return got.causes[0].id if got.causes else got.verdict.value


@pytest.mark.parametrize(("wanted", "text"), pairs(MESSAGES))
def test_message(wanted: str, text: str) -> None:
    assert _first(text) == wanted


@pytest.mark.parametrize("cascade", CASCADES, ids=[cascade[0] for cascade in CASCADES])
def test_cause_before_its_cascade(cascade: tuple[str, ...]) -> None:
    wanted, *lines = cascade
    assert _first("\n".join(lines)) == wanted


@pytest.mark.parametrize("name", sorted(ORDINARY))
def test_ordinary_log_is_healthy(name: str) -> None:
    assert explain_text(ORDINARY[name]).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "line",
    [
        "Model loaded successfully",
        "Successfully opened dynamic library libcudart.so.10.1",
        "rank 0: successfully connected to the master",
        "<All keys matched successfully>",
        "and therefore be able to run successfully.",
        "Epoch 1/500",
        "Epoch: [0]",
        "  0%|          | 0/1000 [00:00<?, ?it/s]",
        "Sanity Checking: 0it [00:00, ?it/s]",
    ],
)
def test_what_is_told_before_the_first_step_is_no_progress(line: str) -> None:
    """A job that hangs in its first collective has printed it too."""
    assert explain_text(f"rank 0: train.py, world_size=8\n{line}\n").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "line",
    [
        "Training finished successfully",
        "Epoch 2/500",
        "  1%|          | 10/1000 [00:05<09:10,  1.80it/s]",
        "  0%|          | 0/1000 [00:00<?, ?it/s]  0%|          | 1/1000 [00:01<18:02,  1.08s/it]",
    ],
)
def test_what_is_told_of_work_is_progress(line: str) -> None:
    assert explain_text(f"rank 0: train.py, world_size=8\n{line}\n").verdict is Verdict.HEALTHY


def test_more_processes_than_ranks_are_not_missing_ones() -> None:
    text = "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size={}, worker_count={}, timeout=0:30:00)\n"
    [first, *_] = explain_text(text.format(1, 2)).causes
    assert first.title.startswith("more processes came to the store than")
    assert first.playbook == "launch.world-size.too-many"  # no node is missing
    assert explain_text(text.format(2, 1)).causes[0].title == "not all ranks joined: 1 of 2"


_EARLY = "02/21/2022 13:46:14 - INFO - torch.distributed.distributed_c10d -   Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=6, worker_count=4, timeout=0:30:00)\n"
_MEMBER = "initializing distributed: GLOBAL_RANK: 5, MEMBER: 6/6\n"


@pytest.mark.parametrize(
    ("end", "missing"),
    [
        ("", True),
        ("Rank 5: Completed store-based barrier for key:store_based_barrier_key:1 with 6 nodes.\n", False),
        ("All distributed processes registered. Starting with 6 processes\n", False),
    ],
)
def test_ranks_that_all_come_in_the_end_were_not_missing(end: str, missing: bool) -> None:
    assert (explain_text(_EARLY + _MEMBER + end).verdict is Verdict.CAUSE_FOUND) is missing
    titles = [cause.title for cause in explain_text(_MEMBER + end).causes]
    assert ("1 of 6 ranks were started" in titles) is missing


def test_memory_that_is_full_and_steps_behind_it_are_healthy() -> None:
    full = "[INFO] [utils.py:834:see_memory_usage] CPU Virtual Memory:  used = 502.63 GB, percent = 99.8%\n"
    steps = "".join(f"step {number} loss 2.1\n" for number in (10, 20, 30))
    assert explain_text(full + steps).verdict is Verdict.HEALTHY


TITLES = {
    "this ps-lite (MXNet, BytePS) was built without the transport that DMLC_ENABLE_RDMA or DMLC_PS_VAN_TYPE asks for: 1": (
        "[08:35:53] src/postoffice.cc:25: Creating Van: 1\n[08:35:53] 3rdparty/ps-lite/include/dmlc/logging.h:276: [08:35:53] src/van.cc:97: unsupported van type: 1",
    ),
    "the EFA plugin (aws-ofi-nccl) cannot register memory with the adapter": (
        "n1:694:2585 [0] register_mr_buffers:465 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 3. RC: -12, Error: Cannot allocate memory",
    ),
    "mpirun is asked for more processes than its hosts have slots or cores: 8": (
        "There are not enough slots available in the system to satisfy the 8\nslots that were requested by the application:\n\n  ./all_reduce_perf",
    ),
    "MPI is told to use a transport that does not open here": (
        "No components were able to be opened in the pml framework.\n\n  Host:      gpu04\n  Framework: pml\n[gpu04:815] PML ucx cannot be selected",
    ),
    "a GPU is gone or needs a reset": (
        "[31327.72] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=6, emitted seq=8",
    ),
    "a GPU does not start: it needs a reset": (
        "[ 5.11] [drm:amdgpu_device_init [amdgpu]] *ERROR* hw_init of IP block <gfx_v11_0> failed -110\n"
        "[ 5.13] amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init",
    ),
    "libibverbs has no driver library for the adapters: rdma-core's providers (ibverbs-providers) are missing here": (
        "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\nNo IB devices found",
    ),
    "the IOMMU blocks direct transfers between devices (page faults in the kernel log)": (
        "double free or corruption (!prev)\n[ 7460.483919] nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c]",
    ),
    "CUDA is not ready: the fabric manager is not running (error 802)": (
        "ERROR: The NVIDIA Driver is present, but CUDA failed to initialize.  GPU functionality will not be available.\n   [[ System not yet initialized (error 802) ]]",
    ),
    "the build (torch, an extension or the compiler's toolkit) has no code for this GPU": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    "a GPU has more peers than the driver maps (8): at most 9 GPUs in one process or job of this host": (
        "gpu31:4207:4207 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'",
    ),
    "a rank loaded its quantised model onto another GPU than its own (usually all onto GPU 0)": (
        "ValueError: You can't train a model that has been loaded in 8-bit precision on a different device than the one you're training on.",
    ),
    'an assertion of native code ended a process: dst.isAmpere() && "not on this GPU"': (
        "python: /project/lib/Analysis/Layout.cpp:43: unsigned int mlir::triton::order(mlir::Attribute): Assertion `dst.isAmpere() && "
        '"not on this GPU"\' failed.\nE0312 10:02:14.220000 130 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -6) local_rank: 1 (pid: 142) of binary: python',
    ),
    "a check of native code ended a process: slot != nullptr (0 vs. 0) no room": (
        "F0312 10:02:13.120000 1412 ring_ops.cc:55] Check failed: slot != nullptr (0 vs. 0) no room\n*** Check failure stack trace: ***\nAborted (core dumped)",
    ),
    "the compiler below Triton, XLA or Numba ended a process: LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl": (
        "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl\nAborted (core dumped)",
    ),
    "a process ended at an illegal instruction: a library built for a newer CPU, or native code that traps": (
        "subprocess.CalledProcessError: Command '['python', '-u', 'train.py']' died with <Signals.SIGILL: 4>.\n",
    ),
    "xFormers has no CUDA extensions for this torch: it was built for another torch, CUDA or Python, or for none": (
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n    PyTorch 2.1.0+cu121 with CUDA 1201 (you have 2.1.0+cu118)",
    ),
    "the driver's kernel module and its other files are of different releases": (
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    "NCCL chose docker0, which other hosts cannot reach": (
        "n1:1:1 [0] NCCL INFO Bootstrap : Using [0]docker0:172.17.0.1<0>\nn2:1:1 [0] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.2<0>\n"
        "n2:1:1 [0] misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to 172.17.0.1<40000> failed : No route to host",
    ),
    "a disk is busy in 100 % of the time, and each read of it takes 88 ms": (
        "Device:         r/s     w/s   rkB/s   wkB/s   await  svctm  %util\nsda           120.0     0.0  9000.0     0.0    88.0    8.3  99.9",
    ),
    "a GPU cannot open the memory of another one (Level Zero IPC)": (
        "RuntimeError: oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeMemOpenIpcHandle, code: ZE_RESULT_ERROR_INVALID_ARGUMENT",
    ),
    "an Intel GPU has no memory left": (
        "RuntimeError: oneCCL: ze_call.cpp:43 do_call: EXCEPTION: ze error at zeMemOpenIpcHandle, code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    ),
    "oneCCL (Intel's collectives) reports an error: can not open network providers": (
        "RuntimeError: oneCCL: atl_ofi_comm.cpp:88 init_transport: EXCEPTION: can not open network providers",
    ),
    "vLLM's or SGLang's own all-reduce cannot open the memory of another GPU": (
        "Failed: Cuda error /build/csrc/custom_all_reduce.cuh:512 'invalid argument'",
    ),
    "an all-reduce that needs NVLink multicast (NVLS) was chosen for GPUs that have none": (
        "[rank1]: RuntimeError: [McastDeviceMemory] Device does not support multicasting.",
    ),
    "a process crashed in libsim.so, the program's own code": (
        "[gpu7:8812:0:8812] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x7f2a40000000)\n"
        "==== backtrace (tid:   8812) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2e4) [0x7f2b77c0d1a4]\n"
        " 1  /opt/app/lib/libsim.so(flux+0x11) [0x7f2b77c0d1a8]",
    ),
    "Mooncake's TCP transport was given GPU memory, which its build does not know": (
        "E0203 08:00:01.120000  812 tcp_transport.cpp:136] Session::writeBody failed. Error: Bad address (value: 14), total_transferred_bytes_: 0",
    ),
    "an NPU's network port is down": (
        "[rank4]: EI0009: [PID: 812] Device 4 transport init error. Reason: The network port is down.",
    ),
    "HCCL could not allocate memory of an NPU": (
        "EI0007: [PID: 812] Failed to allocate resource DeviceMemory with info size:1073741824. Reason: Resources are exhausted.",
    ),
    "peer-to-peer between the NPUs of a host fails": (
        "EI0010: [PID: 812] P2P communication failed. Reason: no link between devices 0 and 4.",
    ),
    "HCCL cannot listen on its port: another process, mostly of an earlier job, holds it": (
        "EI0020: [PID: 812] Failed to enable listening for the NPU network adapter socket. Reason: the port is taken.",
    ),
    "DeepEP has no kernels for this number of ranks or hosts": (
        "RuntimeError: Failed: Assertion error /w/csrc/kernels/internode.cu:328 'false and \"Unsupported RDMA ranks\"'",
    ),
    "Ray has no GPU for vLLM on the node that drives it": (
        "ValueError: Current node has no GPU available. current_node_resource={'node:10.0.0.8': 1.0, 'CPU': 112.0}. vLLM engine cannot start without GPU.",
    ),
    "Ray's cluster, or the placement group, has fewer free GPUs or nodes than the job asks for": (
        "(LLMRayActor pid=14) ValueError: placement group bundle index 6 is invalid. Valid placement group indexes: 0-4",
        "TimeoutError: Timed out waiting for placement groups to be ready. The cluster may not have enough resources to satisfy the requested placement group.",
        "RuntimeError: Waiting for placement group PG_3 timed out after 1800 s",
    ),
    "CUDA could not initialise": (
        "(RayWorkerVllm pid=8) INFO 04-05 09:23:34 pynccl_utils.py:45] vLLM is using nccl==2.18.1\n"
        "(RayWorkerVllm pid=9) ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "(RayWorkerVllm pid=9) Last error:\n(RayWorkerVllm pid=9) Cuda failure 'initialization error'",
    ),
    "memory could not be registered with the adapter: the locked-memory limit is too small": (
        "UCX  ERROR mlx5_0: mlx5dv_devx_umem_reg(size=131072 access=0x0) failed: Cannot allocate memory",
    ),
    "the locked-memory limit is too small for RDMA": (
        "allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 8192 kbytes)",
    ),
    "a GPU ran out of memory": (
        "(SGLangHttpServer pid=25) [torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h func=cu_mem_create line=194",
    ),
    "HCCL refuses a variable, an argument or the rank table": (
        "EI0016: [PID: 812] Value 9 for config hcclBufferSize is invalid. Expected value: greater than 9.",
    ),
    "the master could not be reached": (
        '  File "/opt/torch/distributed/rendezvous.py", line 172, in _env_rendezvous_handler\n    store = TCPStore(addr, port, world_size, start_daemon, timeout)\nRuntimeError: connect() timed out.',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("title", "text"), pairs(TITLES))
def test_a_message_decides_with_its_own_title(title: str, text: str) -> None:
    got = explain_text(text + "\n")
    assert (got.verdict, got.causes[0].title) == (Verdict.CAUSE_FOUND, title)


OPEN = {
    "app.straggler-timeout": (
        "(RayTrainWorker pid=37) [W socket.cpp:432] [c10d] While waitForInput, poolFD failed with (errno: 0 - Success).",
        "(ApiServer_0 pid=8) TimeoutError: Timed out waiting for engines to sendinitial message on input socket.",
        "\n".join(
        f"|   {gpu}  NVIDIA H100 80GB HBM3          On  |   00000000:{gpu:02X}:00.0 Off |                    0 |\n"
        f"| N/A   50C    P0             {watts}W /  700W |   70000MiB /  81559MiB |    {load}%      Default |"
        for gpu, watts, load in [*((gpu, 300, 100) for gpu in range(7)), (7, 70, 0)]
        ),
    ),
    "gpu.illegal-access": (
        "Assertion failed: /mnt/fs/DeepEP/csrc/kernels/internode_ll.cu:259, condition: num_recv_tokens != 0",
    ),
    "net.peer-lost": (
        "/dgl/src/graph/network/tcp_socket.cc:180: recv error: Resource temporarily unavailable\nterminate called after throwing an instance of 'dmlc::Error'",
        'Additional GRPC error information from remote target /job:ps/replica:0/task:0/device:CPU:0:\n:{"created":"@1663638747.95","description":"Error received from peer ipv4:10.0.0.9:2222","grpc_message":"Socket closed","grpc_status":14}',
        "E0203 08:06:26.7    43 nixl_agent.cpp:866] createXferReq: metadata for remote agent 'a7' not found",
        "[178.8] [gpu7:537  :1]  srd_iface.c:221  UCX  ERROR send completion[0] with error on rdmap132s0/0x55: Work Request Flushed Error, vendor_err 0x1",
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Transport endpoint is not connected",  # of a socket, where no file is named
    ),
    "sys.host-oom": (
        "ERROR 01-29 08:37:48 [core_client.py:564] Engine core proc EngineCore_DP1 died unexpectedly, shutting down client.",
        "[2023-03-01 05:13:31,393] [INFO] [utils.py:834:see_memory_usage] CPU Virtual Memory:  used = 502.63 GB, percent = 99.8%",
    ),
    "launch.killed": (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: SYSTEM_ERROR "
        "Worker exit detail: Worker exits unexpectedly by a signal. SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM.",
    ),
    "ib.qp-connect": (
        "EI0009: [PID: 8] Transport init error. Reason: [Create][DestLink]Create Dest error! createLink para:rank[1], dst_rank[0]",
    ),
    "net.plugin": (
        'Traceback (most recent call last):\n  File "/j/train.py", line 8, in step\n    dist.all_reduce(total)\n'
        '  File "/v/torch/distributed/distributed_c10d.py", line 2806, in all_reduce\n    work = group.allreduce([tensor], opts)\n'
        "RuntimeError: FlagCX: link_table.cpp:88 connect: unknown argument 7",
        'Traceback (most recent call last):\n  File "/v/vllm/v1/worker/gpu_worker.py", line 8, in step\n    self.connector.wait()\n'
        '  File "/v/vllm/distributed/kv_transfer/kv_pipe/some_pipe.py", line 164, in transfer_sync\n    raise Exception("no bytes")\n'
        "Exception: no bytes",
        'Traceback (most recent call last):\n  File "/v/nixl/_api.py", line 512, in prep_xfer_dlist\n    handle = self.agent.prepXferDlist(name)\n'
        "nixl._bindings.nixlNotFoundError: NIXL_ERR_NOT_FOUND",
        "[gpu7:8812:0:8812] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x7f2a40000000)\n"
        "==== backtrace (tid:   8812) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x2e4) [0x7f2b77c0d1a4]",
    ),
    "net.master-unreachable": (
        "E20260203 11:16:11.129794 58058 master_client.cpp:146] RPC call failed: Connection timed out",
        "E0203 21:29:13.6 319 transfer_metadata_plugin.cpp:224] Error from http client, GET http://10.0.0.1:8080/metadata?key=a error: Failed initialization",
        "agent - ERROR - Failed to send heartbeat to server: timed out",
        "ConnectionError: The vLLM server can't be reached at http://n2:8000 after 240.0 seconds. Make sure the server is running by running `trl vllm-serve`.",
        "(Rollouts pid=4) retrying... (attempt 33/60, url=http://n2:3776/generate, response=No available workers (all circuits open or unhealthy))",
        'Traceback (most recent call last):\n  File "/srv/rollout.py", line 12, in ask\n    reply = await client.post(url)\nhttpx.ConnectError: All connection attempts failed',
        'Traceback (most recent call last):\n  File "/opt/torch/distributed/rendezvous.py", line 172, in _env_rendezvous_handler\n    store = TCPStore(addr, port, size, start_daemon, timeout)\nRuntimeError: Interrupted system call',
    ),
    "ib.retry-exceeded": (
        "(EngineCore pid=8) ERROR 07-23 11:54:45 [mooncake_backend.py:240] Failed to get 6722 keys out of 6722. error_codes=[-707].",
    ),
    "net.slow": (
        "NCCL INFO Using network Socket\nstep 400 | loss 1.02 | 0.5 s/step\n"
        "11:20:09 AM     IFACE   rxpck/s   txpck/s    rxkB/s    txkB/s   rxcmp/s   txcmp/s  rxmcst/s   %ifutil\n"
        "11:20:14 AM      eno1  81231.20  80123.10 119812.31 118812.12      0.00      0.00      0.00     98.15",
        "step 400 | loss 1.02 | 0.5 s/step\n     rx_discards_phy: 4481027\n\tenabled     0   0   0   0   0   0   0   0",
    ),
    "app.rank-exception": (
        "[ERROR] Command not found: our_profiler",
        'Traceback (most recent call last):\n  File "/app/vllm/v1/engine/core.py", line 450, in __init__\n    super().__init__(vllm_config, executor_class, log_stats,\n'
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
        "insmod: ERROR: could not insert module mlx5_ib.ko: File exists",
    ),
    "launch.world-size": (
        "[20:57:18] src/./zmq_van.h:122: there is no socket to node 9\n[20:57:18] src/van.cc:126: Check failed: (send_bytes) != (-1) \nterminate called after throwing an instance of 'dmlc::Error'",
        "[2026-03-25 23:12:26,485 I 11137 11137] gcs_placement_group_scheduler.cc:150: Failed to schedule placement group pg0, id: e51, because no nodes are available.",
    ),
    "unrelated": (
        "rank 1: build of kernel 4 begins\nCUDA_ERROR_FILE_NOT_FOUND: file not found",
    ),
    "sys.clock-or-dns-or-fs": (
        "[_get_plugin()] Lock file exists in build directory: '/root/.cache/ext/lock'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cause", "text"), pairs(OPEN))
def test_a_message_that_leaves_it_open_names_what_comes_first(cause: str, text: str) -> None:
    got = explain_text(text + "\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, cause)


@pytest.mark.parametrize(
    "line",
    [
        "n3:88:88 [1] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use\n"
        "n3:88:88 [1] NCCL INFO RAS failed to establish a client listening socket at localhost:28028",
        "[2026-02-03 10:14:35,261 I 72 72] global_state_accessor.cc:432: This node has an IP address of 10.6.0.55, but we cannot find a "
        "local Raylet with the same address. This can happen when you connect to the Ray cluster with a different IP address or when "
        "connecting to a container.",
        "[TensorRT-LLM][WARNING] cancellation_check_period_ms is not specified, will be set to 100 (ms)",
        "2026:02:03-08:00:01:(  71) |CCL_WARN| value of CCL_ATL_TRANSPORT changed to be ofi (default:mpi)",
        "2026:02:03-08:00:01:(  71) |CCL_DEBUG| ze_fd_manager.cpp:214 fill_device_fds: opened device: /dev/dri/by-path/pci-0000:3a:00.0-render",
        "mount error(126): Required key not available",
        "mlx5_ib: version magic '5.15.0-91-generic SMP mod_unload' should be '5.15.0-92-generic SMP mod_unload'",
        "[   12.345678] I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0\n"
        "[   12.345700] Buffer I/O error on dev sr0, logical block 0, async page read",
        "INFO: the container has a read-only file system at /usr",
        "INFO NVLS requires multicast support: the ring is used instead",
        "NCCL INFO Using network Socket\nstep 400 | loss 1.02 | 0.5 s/step\n$ ping -c 4 github.com\nrtt min/avg/max/mdev = 38.201/38.312/38.444/0.101 ms",
        "    health: HEALTH_WARN\n            1 osds down",
        "step 400 | loss 1.02 | 0.5 s/step\nBLEU of rank 3 = nan",
        "$ ping -c 2 -M do -s 8972 n2\n2 packets transmitted, 2 received, 0% packet loss\n"
        "$ ping -c 2 n3\n2 packets transmitted, 0 received, 100% packet loss",
        "$ cat /sys/fs/cgroup/user.slice/session-3.scope/memory.pressure\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
        "$ cat /sys/fs/cgroup/user.slice/session-3.scope/cpu.pressure\nfull avg10=50.00 avg60=60.00 avg300=40.00 total=1",
    ],
)
def test_what_a_library_does_without_is_no_cause(line: str) -> None:
    assert not explain_text(f"{line}\n").causes


def test_an_engine_that_failed_does_not_hang_at_its_nccl() -> None:
    named = "INFO 04-05 09:23:34 [pynccl.py:45] vLLM is using nccl==2.18.1\n"
    assert "hang in the first collective" in explain_text(named).causes[0].title
    failed = explain_text(
        f"RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n{named}"
    )
    assert not any("hang" in cause.title for cause in failed.causes)


def test_a_cluster_of_ray_that_grew_is_no_cause() -> None:
    waited = "(autoscaler +18s) Error: No available node types can fulfill resource request {'GPU': 1.0}.\n"
    assert explain_text(waited + "step 10 loss 2.9\nstep 20 loss 2.8\n").verdict is Verdict.HEALTHY


def test_an_older_ucx_is_a_cause_only_where_it_fails() -> None:
    older = "[17.4] [n1:30:0]  ucp_context.c:2257 UCX  WARN  UCP API version is incompatible: required >= 1.18, actual 1.16.0 (loaded from /lib/libucp.so.0)\n"
    assert explain_text(older).causes == ()
    assert (
        explain_text(older + "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n").causes[0].id
        == "sw.library-conflict"
    )


def test_the_reason_of_ucx_comes_before_nixls_refusal() -> None:
    refused = "[17.4] [n1:28:0]  sock.c:334  UCX  ERROR   connect(fd=143, dest_addr=10.0.0.8:43833) failed: Connection refused\n"
    got = explain_text(refused + "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n")
    assert got.causes[0].id == "net.peer-lost"


def test_a_watchdogs_own_lines_are_not_judged_by_their_words() -> None:
    status = (
        "[rank1]:[E1103 04:10:11.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) "
        "detected by watchdog at work: 131, last enqueued NCCL work: 131, last completed NCCL work: 130.\n"
    )
    for text in (status, f"{_timeout(1, 131)}\n{status}"):
        got = explain_text(text)
        assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "app.straggler-timeout")
        assert "a rank did not arrive, or the data did not" in got.causes[0].title


def test_a_folder_named_fs_is_no_file_system_that_hangs() -> None:
    assert explain_text("ERROR: step failed, see /mnt/fs/run7/out.txt\n").causes == ()
    assert explain_text("ERROR: step failed, the fs hangs\n").causes[0].id == "sys.clock-or-dns-or-fs"


def test_the_drivers_wish_for_a_reset_weighs_less_than_the_fault() -> None:
    got = explain_text("    Remapped Rows\n        Pending  : Yes\n    GPU Recovery Action  : Reset\n")
    assert [cause.id for cause in got.causes[:2]] == ["gpu.ecc", "gpu.fell-off-bus"]


@pytest.mark.parametrize(
    "line",
    [
        "created security group sg-0abc12 for the cluster",
        "trn01: docker active, firewalld inactive, ufw inactive",
        "trn01: docker active, firewalld is not active",
        "applying NetworkPolicy allow-all",
        "cgroup: memory.max=549755813888",
        "halving the batch when out of memory (OOM) is enabled",
        "gradients are not synchronized in this step (no_sync)",
        "Uneven sharding: the last shard is padded",
        "using rendezvous backend c10d, port=2379",
        "stop this job with scancel or qdel",
        "running on a spot VM outside of the MAINTENANCE window",
        "column 3 has an invalid type 7, read as text",
        "GPFS mounted at /gpfs/data, WekaFS client 4.2 at /weka",
        "libceph: mon0 session established",
        "GPFS release 5.1.9 is available, its configuration is unchanged",
        "sunrpc: module loaded",
        "flock: LOCK_SH ok",
        "different collectives are overlapped",
        "custom_all_reduce is not used",
        "the version of the NVIDIA driver is 550.54.15",
        "INFO destroyed process group",
        "INFO the process group has been destroyed, bye",
        "torch.distributed: process group is already initialized, skipping",
        "        ephemeral-storage:  100Gi",
        "  DiskPressure     False   Mon, 02 Mar 2026   KubeletHasNoDiskPressure   kubelet has no disk pressure",
        '            "OOMKilled": false,',
        "jobs of this partition can be preempted",
        "SIGTERM and SIGHUP handlers installed: Received SIGTERM means save and leave",
        "Trainer State: Initializing",
        "the conflict between numpy 1.26 and 2.1 cannot be resolved",
        "dashboard: port 8265 is already in use, using 8266",
        "nan check: contains NaN: False",
        "WARNING: environment variable CUDA_HOME is not set",
        "Trial 3 was marked as failed",
        "Unable to shutdown process 81 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        "slurmstepd: will send SIGKILL in 30 s",
        "To end it at once, you can send a different signal, such as SIGKILL.",
        "mount.nfs: trying text-based options 'vers=4.2,addr=10.0.0.9'",
        "throttle reasons: 0x0000000000000001 (gpu_idle)",
    ],
)
def test_what_is_only_spoken_of_is_no_cause(line: str) -> None:
    timed_out = "[rank0]:[E1103 04:10:11.0 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
    got = explain_text(f"{timed_out}{line}\n")
    assert [cause.id for cause in got.causes if cause.confidence > 0.5] in ([], ["app.straggler-timeout"])


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("sys.disk-full", "Pod ephemeral local storage usage exceeds the total limit of containers 200Gi."),
        ("net.hostname-resolution", "ERROR: the hostname gpu-worker-3.train could not be resolved"),
        ("net.hostname-resolution", "ERROR gpu-worker-3: the name could not be resolved"),
        ("app.pg-misuse", "RuntimeError: transport: process group has been destroyed"),
        ("launch.env-missing", "ValueError: environment variable LOCAL_RANK is not set"),
        ("sys.host-oom", "worker 3 of n7 exited due to SIGKILL"),
        ("net.port-in-use", "store: while trying to listen, using port 29500: Address already in use"),
        ("net.firewall", "trn03: docker active, firewalld active, ufw inactive"),
        ("sys.clock-or-dns-or-fs", "mmfs: [E] Disk lease period expired in cluster c1"),
        (
            "launch.rdzv",
            "ValueError: The rendezvous backend 'etdc' is not registered. Did you forget to call `register`?",
        ),
        ("app.bad-tensor", "n1:8:9 [0] enqueue.cc:2101 NCCL WARN AllReduce : invalid type 17"),
        (
            "app.bad-tensor",
            "n1:8:9 [0] misc/argcheck.cc:39 NCCL WARN AllReduce : sendbuff 0x7f1 is not a valid pointer",
        ),
    ],
)
def test_what_is_said_of_it_is_one(wanted: str, line: str) -> None:
    cause = explain_text(f"{line}\n").causes[0]
    assert cause.id == wanted and "to judge by the words" not in cause.title


def test_a_line_is_counted_once_among_the_consequences() -> None:
    got = explain_text(
        "[launch.py:315:sigkill_handler] Killing subprocess 301\n"
        "[launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py'] exits with return code = 1\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert [item.count for item in got.consequences if item.text == "the launcher reports a failed process"] == [2]


def test_a_tracker_that_asks_where_nobody_answers() -> None:
    got = explain_text(
        "wandb: Enter your choice: [2024-09-14 11:10:18,321] [INFO] [launch.py:316] Killing subprocess 7\n"
    )
    assert got.causes[0].title.startswith("Weights & Biases asks for a login")
    assert not explain_text("wandb: Enter your choice: 3\n").causes


@pytest.mark.parametrize("said", ["munmap_chunk(): invalid pointer", "double free or corruption (out)"])
def test_a_heap_that_is_overwritten_does_not_tell_by_whom(said: str) -> None:
    got = explain_text(f"{said}\nAborted (core dumped)\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "sw.library-conflict")


def test_the_torch_that_something_was_built_for_is_not_the_one_that_runs() -> None:
    said = "    PyTorch {} with CUDA 1201 (you have 2.1.0+cu118)\nfused_ops was compiled with PyTorch {}\nPyTorch version: 2.3.1\n"
    got = explain_text(said.format("2.1.0+cu121", "1.9.0"))
    assert got.versions["torch"] == "2.3.1"


@pytest.mark.parametrize("of", ["!ip.empty() failed to connect", "ncclCommInitRank(comm) : unhandled system error"])
def test_a_check_of_what_a_connection_or_nccl_says_blames_no_code(of: str) -> None:
    got = explain_text(f"F0312 10:02:13.120000 1412 manager.cc:55] Check failed: {of}\n")
    assert not any("check of native code" in cause.title for cause in got.causes)


def test_a_full_disk_is_not_the_assertion_that_found_it() -> None:
    got = explain_text(
        "/nvme/optimizer/rank0/0_param.tensor.swp: buffer nbytes != file bytes 288 != 0\n"
        "python: /ops/aio/deepspeed_py_aio_handle.cpp:223: int pread(): Assertion `nbytes() == num_file_bytes' failed.\n"
    )
    assert got.causes[0].id == "sys.disk-full"


@pytest.mark.parametrize(
    "text",
    [
        "horovod.common.exceptions.HorovodInternalError: ncclAllReduce failed: invalid argument",
        "OSError: (External) NCCL error(4), invalid argument. ",
        "RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:911, invalid argument, NCCL version 2.10.3",
        "torch.distributed.DistBackendError: NCCL error in: ../x.cpp:1275\nncclInvalidArgument: Invalid value for an argument.",
        ", NCCL error encountered at: file=/raft/std_comms.hpp line=334: call='ncclBroadcast(buff, count, stream)', Reason=4:invalid argument",
    ],
)
def test_an_argument_that_nccl_refuses_is_told_as_that(text: str) -> None:
    got = explain_text(text + "\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "app.bad-tensor")
    assert got.causes[0].title.startswith("NCCL refused an argument of a call")


def test_a_gpu_too_old_for_a_kernel_is_no_tensor_of_the_wrong_type() -> None:
    got = explain_text("[rank1]: RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n")
    assert got.causes[0].title == "rank 1 raised RuntimeError: FlashAttention only supports Ampere GPUs or newer."


def test_windows_refusing_an_address_is_told_as_a_first_try() -> None:
    log = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [TRAINBOX]:29500 (system error: {}).\n"
    got = explain_text(log.format("10049 - The requested address is not valid in its context.") + "prepare tokenizer\n")
    assert got.causes[0].title.startswith("Windows cannot use an address of TRAINBOX (10049)")
    assert "does not accept" in explain_text(log.format("10061 - refused")).causes[0].title
    assert "does not accept" in explain_text(log.replace("29500", "10049").format("10061 - refused")).causes[0].title


def test_the_coordination_service_is_also_tensorflows() -> None:
    said = "E tensorflow/core/common_runtime/base_collective_executor.cc:249] BaseCollectiveExecutor::StartAbort {}\n"
    [first, *_] = explain_text(said.format("DEADLINE_EXCEEDED: Deadline Exceeded")).causes
    assert first.title == "a task of the JAX or TensorFlow job died or stopped answering"


@pytest.mark.parametrize(
    ("title", "text"),
    [
        (
            "a process crashed in native code",
            "[n07:04211] Signal code: Address not mapped (1)\n[n07:04211] Failing at address: (nil)\n[n07:04211] [ 0] /lib/libpthread.so.0(+0x12980)[0x7f12aa0b1980]\n[n07:04211] *** End of error message ***",
        ),
        (
            "a watchdog ended a rank; what it waited for is not in these logs",
            "n12:31224:32696 [0] NCCL INFO misc/socket.cc:829 -> 3\nn12:31224:31940 [0] NCCL INFO misc/socket.cc:881 -> 3\nn12:31226:32696 [2] NCCL INFO comm 0x12464df00 rank 6 nranks 8 cudaDev 2 busId b000 - Abort COMPLETE",
        ),
        (
            "a worker ended with exit code 2; what it said is not in these logs",
            'Traceback (most recent call last):\n  File "run.py", line 175, in launch\n    raise RuntimeError(text)\nRuntimeError: Step 1 exited with non-zero status 2\n\nLaunch command: bash run_1.sh',
        ),
        (
            "these ranks came to the barrier, and rank 0 did not answer there: its log names who was missing, or why it ended itself",
            "[rank3]:[E421 04:13:43.4 ProcessGroupGloo.cpp:143] Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n[2025-04-21 04:13:43] Received sigquit from a child process. It usually means the child failed.",
        ),
        (
            "a traceback is cut before its exception, in library code",
            '    total_loss.backward(train_dataloader, master=rank)\n  File "/opt/torch/autograd/__init__.py", line 100, in backward\n    allow_unreachable=True)  # allow_unreachable flag\nRuntimeError: NCCL communicator was aborted.\nTraceback (most recent call last):\n  File "/usr/lib/python3.6/runpy.py", line 193, in _run_module_as_main\n    "__main__", mod_spec)',
        ),
    ],
)
def test_what_is_left_of_a_report_is_the_first_guess(title: str, text: str) -> None:
    got = explain_text(text + "\n")
    assert (got.verdict, got.causes[0].title) == (Verdict.UNDECIDED, title)


def test_a_programs_own_check_for_nan_is_believed() -> None:
    said = "(Rollout pid=381) [DEBUG] bad probabilities in step 4: NaN: {} Neg: False Inf: False min: 0 max: 1\n"
    assert explain_text(said.format(True)).causes[0].id == "app.nan-or-data"
    assert not explain_text(said.format(False)).causes


@pytest.mark.parametrize(
    "waited",
    [
        "16:41:43 WARNING Inference server was not reached after 10 seconds (Error: All connection attempts failed) on http://n2:8000",
        "Lock file exists in build directory: '/root/.cache/ext/lock'",
    ],
)
def test_a_wait_that_the_training_outlived_is_no_trouble(waited: str) -> None:
    steps = "".join(f"step {step} | loss 0.{9 - step}\n" for step in range(1, 8))
    assert explain_text(f"{waited}\n{steps}").verdict is Verdict.HEALTHY


def test_an_engine_that_loaded_its_model_is_known_as_a_job() -> None:
    lines = "".join(
        f"(Worker_TP{rank} pid={100 + rank}) INFO 03-14 10:11:12 Model loading took 51.3 GiB and 146.7 seconds\n"
        for rank in range(6)
    )
    found = explain_text(lines)
    assert found.verdict is not Verdict.HEALTHY
    assert not any("known to come from a distributed job" in step for step in found.next)
