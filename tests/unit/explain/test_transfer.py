"""Messages of NVSHMEM, of the engines that move KV caches, of EFA's codes and of new NCCL: what each alone leads to."""

from __future__ import annotations

import pytest

from nccl_doctor.explain import trouble
from nccl_doctor.explain.model import Verdict
from tests.unit.explained import explain_text, pairs

NVSHMEM = "/opt/nvshmem/src/modules/transport/"
W = "gb3:71:82 [2] transport/net_ib/p2p.cc:61 NCCL WARN "
EFA = "ip-10-7-0-4:51:99 [3] NCCL WARN NET/OFI Request 0x7a10 completed with error. RC: 107. Error: "

FOUND = {
    "sys.container": (
        "E0409 09:28:27.690053 29764 nvc.c:180] failed to change root directory: No such file or directory",
        "dcp_recv(165)...................: Internal MPI error!  Cannot read from remote process",
        "slurmstepd: error: container_p_join: open failed for /var/nvme/slurm/77/.ns: No such file or directory",
        f"{NVSHMEM}ibgda/ibgda.cpp:1385: NULL value cannot allocate mlx5dv_devx_uar",
    ),
    "ib.gdr": (
        "WARN: GPU cannot map UAR of device mlx5_4. Skipping...",
        f"{NVSHMEM}ibgda/ibgda.cpp:1242: cudaHostRegister with IoMemory failed with error=1. We may need to use a fallback path.",
        "E0812 11:02:31.201 88 rdma_context.cpp:1343] DMA BUF supported required for GPU RDMA without nvidia-peermem",
        "libfabric:ofi_rxm:cq:rxm_cq_read_write_error():819<warn> fi_cq_readerr: err: 5, prov_err: remote access error (10)",
        f"{NVSHMEM}ibrc/ibrc.cpp:1846: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
        "Couldn't allocate MR\nfailed to create mr\nERRNO: Bad address.",
        "n1:7:9 [0] NCCL WARN NET/OFI GDR disabled on GDR-supported instance type p5en.48xlarge",
    ),
    "ib.device-not-found": (
        "nvme_rdma.c: 697:nvme_rdma_qpair_connect: *ERROR*: rdma_create_event_channel() failed",
        "rdma_server: start\nrdma_getaddrinfo: No such device\nrdma_server: end -1",
        "$ ibv_devices\n    device          \t   node GUID\n    ------          \t----------------\n$ lsmod",
        "9086916adf67:rank1: PSM3 can't open nic unit: 0 (err=23)",
        f"{NVSHMEM}ibgda/ibgda.cpp:4834: no active IB device that supports GPU-initiated communication is found, exiting...",
        f"{NVSHMEM}ibrc/ibrc.cpp:1700: cound not find user specified HCA name: mlx5_9 port: 1, skipping",
        "E0812 11:02:31.201 88 rdma_transport.cpp:90] RdmaTransport: No available RNIC",
        '2025/06/02 20:29:31 "missing RDMA device spec for device 0000:16:00.0, RDMA device \\"umad\\" not found"',
        "2025/06/02 20:29:31 Warning: no Rdma Devices were found for resource hca_shared_devices_a",
    ),
    "sw.library-conflict": (
        "/opt/nvshmem/src/host/init/init.cu:1228: NVSHMEM device library version does not match with NVSHMEM host library version",
    ),
    "launch.world-size": (
        "ValueError: Total available GPUs 8.0 is less than total desired GPUs 16",
        "AssertionError: please set tensor_parallel_size (16) to less than max local gpu count (8)",
        "ValueError: Not enough GPUs available. Requested 16 GPUs, but only 8 are available in the cluster.",
        "ValueError: World size (16) is larger than the number of available GPUs (8) in this node.",
        "ValueError: placement group bundle index 3 is invalid. Valid placement group indexes: 0-2",
        "/opt/nvshmem/src/host/init/init.cu:331: NVSHMEM requires the same number of PEs on all nodes (7 PEs on n4)",
        "RuntimeError: Message from engine with unexpected data parallel rank: 9",
    ),
    "app.pg-misuse": (
        "Assertion error /ep/csrc/deep_ep.cpp:48 'num_ranks > NUM_MAX_NVL_PEERS or low_latency_mode'",
        f"{W}ncclCommGrow: new ranks must pass non-NULL uniqueId",
        f"{W}ncclWaitSignal: descriptor 0 has invalid sigIdx 4 (must be 0)",
        f"{W}Allocation failed. No suitable space found to accommodate size=0x2171600000 within limit=0x2d00000000",
        "/opt/nvshmem/src/device/init/init_device.cu:72: nvshmem API called before nvshmem_init",
        "RuntimeError: NIXL compatibility hash mismatch. Local: 8a1, Remote: 77c.",
        "RuntimeError: Page size mismatch: prefill server has page_size=64, but decode server has page_size=1.",
    ),
    "ib.qp-connect": (
        "Failed to exchange handshake description\nFailed to modity QP to RTR, check mtu, gid, peer qp num: Connection timed out [110]",
        "[1748048660.727] hn:rank7.python: Failed to modify UD QP to INIT on mlx5_2: Operation not permitted",
        "[ 91.90] mlx5_core 0000:04:00.0: mlx5_cmd_check:795:(pid 9): RTR2RTS_QP(0x504) op_mod(0x0) failed, "
        "status bad parameter(0x3), syndrome (0x4bb88f)",
    ),
    "ib.memlock": (
        "E0812 11:02:31.201 88 rdma_context.cpp:265] Failed to register memory 0x7e1ac0000000: Cannot allocate memory [12]",
    ),
    "gpu.oom": ("/opt/nvshmem/src/host/mem/mem_heap.cpp:612: Not enough space for allocating memory",),
    "ib.gid-index": (
        "E0812 11:02:31 88 rdma_context.cpp:90] GID is NULL, please check your GID index by specifying MC_GID_INDEX",
    ),
    "app.collective-mismatch": (
        f"{W}Elastic GIN: rank 3 has 2 segments but another rank has 1 segments; all ranks must have identical segment configurations",
    ),
    "gpu.driver": (
        "BUG: kernel NULL pointer dereference, address: 0000000000000000\nRIP: 0010:_raw_q_flush+0x87/0x110 [nvidia_uvm]",
        'time="2026-08-02T10:00:00Z" level=info msg="Error: error validating driver installation: error creating symlinks"',
        f"{W}One-sided RMA requires CUDA driver 12.5 or later (found 12.4).",
    ),
    "env.bad-nccl-var": (
        f'{W}NCCL_NVLS_ENABLE has been set to "1" and communicator has multiple ranks using the same NVML device. '
        "This is not compatible with NCCL_NVLS_ENABLE=1.",
        f"{W}VA represented by {{userPtr = 0x7a, size = 4096}} contains CPU-backed physical segments, "
        "but NCCL_ELASTIC_BUFFER_REGISTER is set to 0.",
        f"{W}TOPO/NET : Only matched 1 devices, 2 requested from mlx5_0,mlx5_9",
        f"{W}NET/IB: OOO RQ is force enabled but AR is not enabled, which is required for OOO RQ (device=mlx5_0)",
    ),
    "ib.retry-exceeded": (
        "gke1:71:82 [2] NCCL WARN NET/gIB : Got completion from peer 10.3.0.9<41733> with status=12 opcode=0 len=0 vendor err 129",
        "[15601.66] infiniband mlx5_0: mlx5_poll_one:527:(pid 0): Requestor error cqe on cqn 0x406:\n"
        "[15601.66] infiniband mlx5_0: mlx5_poll_one:530:(pid 0): syndrome 0x15, vendor syndrome 0x81",
        "number 0 got bad completion with status: 0xc, vendor syndrome: 0x81",
        f"{W}NET/IB: Could not find a functional device to post the probe for request 0x7f00 (id=8)",
    ),
    "sys.host-oom": (f"{W}Unrecoverable error detected: malloc(size=4096) returned null.",),
    "net.peer-lost": (
        "[2026-08-02 10:11:12] PEER_DEAD: Process 71 on node 10.3.0.9 managing GPU 2 ",
        f"{EFA}4127 (Operation aborted because the peer closed its memory registration or endpoint mid-transfer)",
    ),
    "net.plugin": (
        "|CCL_ERROR| atl_ofi_helper.cpp:12 init: fi_scalable_ep(d, info)\n fails with ret: -12, strerror: Cannot allocate memory",
        "Reason: OFI::LrtsInit::fi_endpoint error\nmake: *** [test] Error 1",
        "[0000] ERROR: transport_none.h:214: shmem_transport_atomic\n[0000]        No path to peer",
        "transport_ofi.c:336: \nep_bind mr2epfd failed\n[002] ERROR: Transport init failed",
        " [0] MPI startup(): dapl fabric is not available and fallback fabric is not enabled",
        "[0] MPI startup(): cannot open dynamic library libdat2.so.2",
        "E0421 11:56:59.775353  7091 nixl_agent.cpp:322] createBackend: unsupported backend 'UCX'",
        "internal_Init(48306): MPI_Init(argc=0x7f, argv=0x7f) failed\n"
        "create_vni_context(1049): OFI endpoint open failed (ofi_init.c:1049:create_vni_context:Cannot allocate memory)",
        "E0812 11:02:31 88 net_init.cc:90] Could not obtain NIC mappings from RxDM",
        "n1:7:9 [0] NCCL WARN NET/OFI EFA provider requires at least libfabric version 1.22.0.",
    ),
    "net.slow": ("gb3:71:83 [2] NCCL INFO NET/IB : mlx5_bond_0:1 speed change detected: 400000 -> 200000 Mbps",),
    "ib.port-down": (
        "gb3:71:83 [2] NCCL INFO NET/IB: ncclIbPortRecovery: Recovery for device 1 failed due to max attempts reached (send comm=0x7a)",
    ),
    "gpu.duplicate": (
        "RuntimeError: CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices from different ranks.",
    ),
    "gpu.imex": (
        "RuntimeError: call='cuMemCreate(&handle, size, &fabric_prop_, 0)' Reason=operation not permitted",
        "RuntimeError: CUDASymmetricMemory::rendezvous: ranks have mismatched NVLink clique_ids. All ranks using fabric handles must",
    ),
    "gpu.nvlink": (
        "    Fabric\n        State                             : Completed\n        Health\n"
        "            Bandwidth                     : Degraded\n            Route Unhealthy               : True",
    ),
    "launch.rdzv": (
        "slurmstepd: error:  mpi/pmix_v5: pmixp_coll_ring_reset_if_to: n3 [2]: pmixp_coll_ring.c:742: 0x15: collective timeout seq=0",
    ),
    "gpu.not-visible": (
        "slurmctld: error: Setting node n3 state to INVAL with reason:gres/gpu count reported lower than configured (7 < 8)",
    ),
    "net.firewall": (
        "srun: error: task 3 launch failed: Slurmd could not connect IO",
        f"{EFA}15 (Unreachable remote - never received a response)",
    ),
    "sys.node-failure": (
        "[  81.20] BUG: kernel NULL pointer dereference, address: 0000000000000000\nRIP: 0010:ext4_iget+0x87/0x110 [ext4]",
        "(raylet) Task train failed. Error: Task failed because the node it was running on is dead or unavailable. Node IP: 10.3.0.9, "
        "node ID: 26. This can happen if the node was preempted, had a hardware failure, or its raylet crashed unexpectedly.",
    ),
    "gpu.ecc": (
        "ERROR:megatron.core.rerun_state_machine:Rank 3, node gx5, device 3, iteration #18: Possible persistent error!!",
    ),
    "app.nan-or-data": (
        "RuntimeError: Rank 3, node gx5, device 3, iteration 17: Unexpected result nan (message='found Inf in local grad norm')",
    ),
    "net.master-unreachable": (
        "RuntimeError: status: Internal, message: 'Failed to connect to lighthouse. error: transport error', details: []",
    ),
    "net.wrong-interface": (
        "[2.3] [d1:5:0] rdmacm_iface.c:405  UCX  ERROR received event RDMA_CM_EVENT_UNREACHABLE. status = 2. Peer: 127.0.0.1:45601.",
        "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31_dp0,received 96b1c4ff_dp0.",
        "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.\n\n  Local host: pi02\n"
        "  Message:    connect() to 169.254.140.13:1026 failed\n  Error:      Connection timed out (110)",
        "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'].",
    ),
    "gpu.fell-off-bus": ("NVRM s_executeBooterUcode_TU102: Booter failed with non-zero error code: 0xa",),
    "gpu.mig": (
        "Failed to display compute instances: Insufficient Permissions",
        "Unable to create a GPU instance on GPU  0 using profile 19: Insufficient Permissions",
    ),
}

# What one side sees of the other: the best guess is named, and nothing is decided.
GUESSED = {
    "net.peer-lost": (
        "[Replica ft_0] Quorum status: New quorum not ready, only have 1 participants, need min_replicas 2 [1/2 participants healthy]",
        'TimeoutError: status: DeadlineExceeded, message: "Timeout expired", details: [], metadata: MetadataMap { headers: {} }',
        "gb3:71:82 [2] NCCL INFO RAS keep-alive timeout error (20s) on socket connection with 10.3.0.9<41733>",
        "[rank3]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "[mpiexec@n1] control_cb (pmiserv_cb.c:202): assert (!closed) failed\n"
        "[mpiexec@n1] main (mpiexec.c:331): process manager error waiting for completion",
        "[15601.66] infiniband mlx5_0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9",
        "[2026-08-02 10:11:12 TP3] Losing connection with prefill instance (bootstrap_addr: 10.3.0.7:8998), 9 requests affected",
        "[2026-08-02 10:11:12 TP0] Prefill transfer failed for request rank=0 req.rid='r' with exception "
        "KVTransferError(bootstrap_room=4): Decode instance could be dead, remote mooncake session 10.3.0.9:16211 is not alive",
        "[n1:4242 :0] tcp_ep.c:1263 UCX  ERROR tcp_ep 0x55 (state=CONNECTED): send(54) failed: Connection reset by remote peer",
        "[n1:4242 :0] ucp_ep.c:1500 UCX  DIAG  ep 0x7f: error 'Endpoint timeout' on rc_mlx5/mlx5_0:1 will not be handled",
        f"{EFA}4126 (Unresponsive receiver (reachable by EFA device but handshake failed))",
        "E0812 11:02:31 88 transfer_metadata_plugin.cpp:955] SocketHandShakePlugin: connect()10.3.0.9: Connection refused [111]",
    ),
    "app.straggler-timeout": (
        "[WARNING] [RankMonitorServer:34] Did not get subsequent heartbeat. Waited 171.92 seconds.",
        "[11/02/2025-10:11:12] [TRT-LLM] [RANK 3] [E] Hang detected on rank 3 in PyExecutor.",
        "ERROR:torchft.process_group:aborting after 0:00:30!",
        "[2025-11-02 10:11:12] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        f"{W}AllReduce: communicator was revoked",
        "[rank3]: torch.distributed.DistBackendError: NCCL timeout when waiting for nonblocking call to become successful.",
        "[rank3]:[E811 10:11:12.1 ProcessGroupNCCL.cpp:1668] [PG ID 0 Rank 3] Could not acquire GIL within 300 ms on exit",
        "[W811 10:11:12.1 socket.cpp:490] [c10d] waitForInput: socket SocketImpl(fd=3, remote=[n1]:29500) timed out after 60000ms",
        "[2026-08-02 10:11:12 TP0] Prefill bootstrap failed for request rank=0 req.rid='r' with exception "
        "KVTransferError(bootstrap_room=4): Request 4 timed out after 300.1s in KVPoll.Bootstrapping",
        "[rank3] Aborting process due to timeout on rank 3 - timeout watchdog detected operation timeout",
        "RuntimeError: NCCLX operation timed out",
        "RuntimeError: Did not receive response from front-end process within 5 minutes",
    ),
    "net.master-unreachable": (
        "[16.7] [gpu12:3241] UCXPY  DEBUG Error callback for endpoint 0x2b4 called with status -6: Destination is unreachable",
        "[2026-08-02 10:11:12] Error fetching prefill server info from bootstrap: HTTPConnectionPool(host='10.3.0.4'): Read timed out.",
    ),
    "launch.world-size": ("DEBUG 08-02 10:11:12 [utils.py:833] Waiting for 0 local, 8 remote core engine proc(s) to connect.",),
    "ib.device-not-found": ("/opt/nvshmem/src/host/transport/transport.cpp:294: Unable to initialize any transports. returning error.",),
    "sw.nccl-bug": (f"{W}NET/IB: Attempting to free a non-existent failed request (slot=3).",),
    "ib.gdr": ("cat: /sys/kernel/mm/memory_peers/nv_mem/version: No such file or directory",),
    "gpu.imex": ("Warning  FailedPrepareDynamicResources  kubelet  prepare devices failed: error asserting ComputeDomain Ready: no",),
    "gpu.p2p": ('n1:7:9 [0] src/init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line which can',),
    "net.plugin": (
        "Open MPI failed an OFI Libfabric library call (fi_domain).  This is highly\n[n1:85] *** Process received signal ***",
        "No OpenFabrics connection schemes reported that they were able to be\n  CPCs attempted:       rdmacm",
        "Traceback (most recent call last):\n  File \"serve.py\", line 37, in <module>\n    agent.register_memory(descs)\n"
        "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND",
        "[1746690477.97] [n1:611 :0] ucp_context.c:1268 UCX  WARN  transports 'cuda_ipc','cuda_copy' are not available, "
        "please use one or more of: self, sm, tcp",
        "[LOG_CAT_ML] component ucx_p2p is not available but requested in hierarchy: ucx_p2p:p2p\n"
        "[LOG_CAT_ML] ml_discover_hierarchy exited with error",
        "[n3:831195] Error: coll_ucc_module.c:265 - mca_coll_ucc_init_ctx() UCC library doesn't support MPI_THREAD_MULTIPLE",
    ),
    "unrelated": (
        "[  731.073998] sof-audio-pci 0000:00:1f.3: error: status = 0x00000000 panic = 0x00000000",
        "kernel: [  731.073998] sof-audio-pci 0000:00:1f.3: error: status = 0x00000000 panic = 0x00000000",
        "[Tue Mar  4 02:11:08 2025] snd_hda_intel 0000:41:00.1: probe failed with error -71",
    ),
    "gpu.fell-off-bus": (
        "[313.6] amdgpu 0000:0d:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x12",
        "[442.4] amdgpu:\n failed to send message 200 ret is 0\n[442.9] amdgpu:\n last message was failed ret is 0",
        "[<ffffffffc33d41c2>] uvm_spin_loop+0xb2/0xe0 [nvidia_uvm]\n[<ffffffffc3418ab3>] wait_for_entry_with_spin+0x63/0x170 [nvidia_uvm]",
        "[  731.0] xhci_hcd 0000:41:00.0: AER: can't recover (no error_detected callback)\n"
        "[  731.1] pcieport 0000:40:01.1: AER: device recovery failed",
    ),
    "ib.memlock": (
        "[82047.69] mlx5_1:mr_umem_get:766:(pid 6): umem get failed (-95)",
        "W0302 10:03:01.2 7 rdma_transport.cpp:400] RdmaTransport: Failed to register memory: addr 0x733a96e00000 length 2896659072",
        "[ 91.90] mlx5_core 0000:04:00.0: mlx5_cmd_out_err:803:(pid 7): CREATE_MKEY(0x200) op_mod(0x0) failed, "
        "status bad resource(0x5), syndrome (0x5a), err(-22)",
        "infiniband mlx5_0: create_mkey_callback:131:(pid 0): async reg mr failed. status -12",
        "E0812 11:02:31.201 88 rdma_context.cpp:265] Failed to register memory 0x7e1ac0000000: Input/output error [5]",
        "E0812 11:02:31.201 88 rdma_context.cpp:265] Failed to register memory 0x7e1ac0000000: Numerical result out of range [34]",
    ),
    "ib.qp-connect": ('Port 1, Test Case 0 "PASSED"!\nMLX5 Error CQE: at [0x7f6a7d20c000], len=64',),
    "app.rank-exception": (
        "[2025-11-02 10:11:12] Received sigquit from a child process. It usually means the child failed.",
        "ray.exceptions.RayChannelError: System error: Channel closed.",
    ),
    "net.wrong-interface": (
        "w0:195:198 [0] proxy.cc:808 NCCL WARN Proxy Call to rank 1 failed (Connect)\nw0:195:198 [0] NCCL INFO transport/net.cc:319 -> 2",
        "INTERNAL: custom call 'xla.gpu.all_reduce' failed: NCCL operation ncclGroupEnd() failed: unhandled system error",
    ),
    "ib.retry-exceeded": (
        "E1120 11:10:27.1 7 transfer_task.cpp:305] Failed to complete transfers after 60 seconds for batch 2586731328",
        "client.cpp:444] Transfer failed for task0\nclient.cpp:460] transfer_incomplete max_attempts=3",
        "src/query_smp.c:199; umad (DR path slid 0; dlid 0; 0,1,10,19 Attr 0x11:0) bad status 110; Connection timed out",
    ),
}  # fmt: skip

HARMLESS = (
    "WARNING 11-02 10:11:12 [symm_mem.py:75] SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available.",
    f"{W}Unable to recognize NCCL_NETDEVS_POLICY=SOME, using NCCL_NETDEVS_POLICY_AUTO instead.",
    "gb3:71:82 [2] NCCL INFO GIN/Plugin: Failed to initialize any GIN plugin",
    "gb3:71:82 [2] NCCL INFO Profiler init failed with error '3': internal error. Continue without profiler.",
    "gb3:71:82 [2] NCCL INFO Failed to register memory with DMA-BUF, error=2. Trying a different method.",
    "gb3:71:82 [2] NCCL INFO RAS connInit hash mismatch (my peersHash 0x1, deadPeersHash 0x0); sending my (dead) peers",
    f"{W}Both NCCL_CTA_POLICY_ZERO and NCCL_CTA_POLICY_EFFICIENCY are set in CTAPolicy (3). Unsetting POLICY_EFFICIENCY.",
    f"{W}NET/IB: Resiliency is enabled on a send communicator (comm=0x7f00) with a single device. This does not make sense",
    "SymmetricMemory[IMPORT_HANDLE]: gracefully skipping multicast initialization, not every rank imported the handle",
    "WARNING 09-24 16:35:21 [nixl_connector.py:1048] Releasing expired KV blocks for request r-3 which were retrieved by 0 decode",
    "[16.2] [deb:8:0] rdmacm_cm.c:638  UCX  ERROR rdma_create_event_channel failed: No such device",
    "[16.3] [deb:8:0] ucp_worker.c:1432 UCX  ERROR failed to open CM on component rdmacm with status Input/output error",
    "_pmi2_kvs_get:key [-NONEXIST-KEY] was not found.",
    'level=error msg="Error getting the latest value for fields: Host engine connection invalid/disconnected"',
    "n1:7:9 [0] init.cc:190 NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance!",
)
STEPS = "step 10 loss 2.31\nstep 20 loss 2.20\nstep 30 loss 2.11\n"


@pytest.mark.parametrize(("cause", "text"), pairs(FOUND))
def test_the_line_names_its_cause(cause: str, text: str) -> None:
    got = explain_text(text)
    assert (got.verdict, got.causes[0].id) == (Verdict.CAUSE_FOUND, cause)


@pytest.mark.parametrize(("cause", "text"), pairs(GUESSED))
def test_one_side_alone_decides_nothing(cause: str, text: str) -> None:
    got = explain_text(text)
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, cause)


@pytest.mark.parametrize("line", HARMLESS)
def test_notes_of_nccl_are_no_trouble(line: str) -> None:
    got = explain_text(f"{STEPS}{line}\n{STEPS}training done\n")
    assert got.verdict is Verdict.HEALTHY
    assert any(note.startswith(line[:60]) for note in got.notes)


def test_reset_by_a_peer_that_another_line_explains() -> None:
    reset = "[n1:4242 :0] tcp_ep.c:1263 UCX  ERROR tcp_ep 0x55 (state=CONNECTED): send(54) failed: Connection reset by remote peer"
    died = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed."
    assert explain_text(f"{reset}\n{died}").causes[0].id == "sys.host-oom"


def test_a_kernel_that_waited_in_vain_is_no_illegal_access() -> None:
    waited = "[FATAL] CUDASymmetricMemory::barrier: rank {} failed to receive signal from rank 2 on channel 0 after 60000 microseconds\n"
    trap = "[rank0]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    got = explain_text("".join(map(waited.format, (0, 1, 3))) + trap)
    assert (got.verdict, got.causes[0].id, got.causes[0].ranks) == (Verdict.UNDECIDED, "app.straggler-timeout", (2,))
    assert explain_text(trap).causes[0].id == "gpu.illegal-access"


def test_peers_that_leave_after_the_end_are_not_lost() -> None:
    dead = "gb3:71:82 [2] NCCL INFO RAS declaring peer 10.3.0.9<41733> as DEAD; rasDeadPeersHash 0x7a\n"
    assert explain_text(f"{STEPS}training done\n{dead}").verdict is Verdict.HEALTHY
    assert explain_text(f"{STEPS}{dead}").causes[0].id == "net.peer-lost"


def test_a_step_that_torchft_leaves_out_is_overcome() -> None:
    left_out = (
        "ERROR:torchft.manager:[ft_0/0 - step 12] got exception in future -- skipping remaining: connection refused\n"
    )
    assert explain_text(f"{STEPS}{left_out}{STEPS * 9}").verdict is Verdict.HEALTHY
    assert explain_text(f"{STEPS}{left_out}").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("net.plugin", "[n1:77] psm3_ep_connect: failed to agree on a protocol version with 3 peers"),
        ("net.plugin", "E0801 11:02:31.2 77 agent.cpp:88] nixl agent failed to hand over a descriptor list"),
        ("ib.qp-connect", "ERROR: poll loop: bad opcode in cqe, wr_id 77"),
        ("gpu.driver", "[ 81.200311] NVRM: kceTopLevelFrob_GB200: frobbing failed, status 0x40"),
        ("gpu.driver", "amdgpu: failed to evict a queue of process 77"),
        ("ib.gdr", "frobd: memory registration of 77 pages failed"),
        ("launch.env-missing", "frobrun: ERROR no WORLD_SIZE for this task"),
        # What the system calls it, where nothing says what it was about
        ("net.master-unreachable", "frobd: ERROR hello to n7: Connection refused"),
        ("sys.host-oom", "frobrun: error: task 3 of n7 is gone, status -9"),
        ("sys.container", "frobd: ERROR cannot write its pid: EACCES"),
        ("net.peer-lost", "nixl frob 77: ERROR ECONNRESET"),  # rather than who speaks
        ("gpu.nvlink", "frobd: ERROR nvlink agent says: Connection refused"),  # its subject comes before
        # Of words alone, and from NCCL at INFO, yet trouble
        ("ib.qp-connect", "Failed to frob the QP 77"),
        ("net.master-unreachable", "n1:77:78 [0] NCCL INFO frob says Connection refused"),
        ("launch.world-size", "frobrun: 3 tasks placed, insufficient room for 5"),
        # Numbers, of what their line says they are
        ("net.firewall", "frobd: hello to n7 failed, errno 113"),
        ("ib.memlock", "frobd: ibv_frob: QP not made, err -12, cannot allocate memory"),
        ("sys.disk-full", "frobd: writing the frob failed: -28"),
        ("sys.shm", "frobrun: ERROR task 3 of n7: exit code -7"),
        ("sw.library-conflict", "frobrun: ERROR task 3 of n7 is gone, WTERMSIG 11"),
        ("launch.killed", "frobrun: ERROR task 3 of n7 ended, ExitCode=0:15"),
        ("ib.retry-exceeded", "frobd: ERROR completion 77 has status 12, vendor 129"),
        ("ib.gdr", "frobd: ERROR completion says LOC_QP_OP_ERR"),
        ("net.master-unreachable", 'frobd: ERROR {"grpc_status":14}'),
        ("gpu.illegal-access", "frobd: cuFrobSynchronize failed: 716"),
        # A network's own EIO and ENOMEM are no disk's and no host's
        ("net.plugin", "nixl frob 77: ERROR Input/output error"),
        ("sys.clock-or-dns-or-fs", "frobd: ERROR reading the frob: EIO"),
        # Said by the last line in plain words
        ("sys.host-oom", "the frob of n7\nfrob exited with exit code 137"),
    ],
)
def test_a_message_that_nobody_knows_is_guessed_by_its_words(cause: str, line: str) -> None:
    got = explain_text(line)
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, cause)


@pytest.mark.parametrize(
    "line",
    [
        "frobd: ERROR 2019-12-28 at 04:09:15",  # no errno
        "frobd: ERROR in 137 of 143 frobs, 9 of them old, 110 of them new",
        "frobd: frob 12 of 13 failed after 700 tries",
        "frobd: Unreachable in file frob.c at line 77: error",  # a code of PMIx
        "frobd: error: task 3 of n7: exit code 1",
        "the frob of n7 is lost\nfrob ended: Terminated (signal 15)",  # by its launcher
        "frobd: ERROR no axis_fragmentations",
        "nvlink error   : a frob is not in frob.o",  # CUDA's linker
        "frobd: error: the launch timed out",
        "the frob of n7 has received 9 messages and 15 more",
    ],
)
def test_a_number_or_a_word_alone_says_nothing(line: str) -> None:
    assert [
        cause.id for cause in explain_text(line).causes if cause.id not in ("app.rank-exception", "unrelated")
    ] == []


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("gpu.illegal-access", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("gpu.illegal-access", "cudaErrorHardwareStackError"),
        ("gpu.driver", "cudaErrorInvalidDeviceFunction"),  # it begins like cudaErrorInvalidDevice
        ("gpu.not-visible", "cudaErrorInvalidDevice"),
        ("gpu.ecc", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("gpu.illegal-access", "CUDA error: operation not supported on global/shared address space"),
    ],
)
def test_cudas_errors_are_known_by_their_names_and_texts(cause: str, error: str) -> None:
    got = explain_text(f"[frobd] error: the frob kernel returned {error}\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.CAUSE_FOUND, cause)


def test_a_list_of_cudas_errors_is_no_error() -> None:
    listed = (
        "n7:77:77 [0] FROB INFO cudaErrorInvalidValue 1 cudaErrorECCUncorrectable 214 cudaErrorMisalignedAddress 716\n"
    )
    assert explain_text(listed).verdict is Verdict.UNDECIDED
    assert explain_text("the frob kernel returned cudaErrorNotReady\n").verdict is Verdict.UNDECIDED
    unknown = explain_text("----- the frob kernel returned CUDA_ERROR_UNKNOWN -----\n")
    assert [cause.id for cause in unknown.causes] == ["gpu.driver"] and "NotSupported" not in unknown.causes[0].title
    busy = "the frob kernel returned cudaErrorDevicesUnavailable\n"  # by another process, or lost
    assert (explain_text(busy).verdict, explain_text(busy).causes[0].id) == (Verdict.UNDECIDED, "gpu.not-visible")


def test_what_was_said_beneath_the_program_comes_before_how_it_ended() -> None:
    ended = "srun: error: n7: task 3: Exited with exit code 5\n"
    said = "frobd: unable to connect to n1: Connection refused\n"
    assert explain_text(ended).causes[0].id == "app.rank-exception"
    assert [cause.id for cause in explain_text(said + ended).causes][:2] == [
        "net.master-unreachable",
        "app.rank-exception",
    ]


def test_an_exception_about_what_is_beneath_the_program_does_not_blame_a_rank() -> None:
    start = "n7:77:78 [0] NCCL INFO comm 0x7 rank 1 nranks 4 cudaDev 1 busId 1a000 commId 0x7 - Init START\n"
    raised = (
        'Traceback (most recent call last):\n  File "/job/frob.py", line 7, in <module>\n    frob()\nRuntimeError: {}\n'
    )
    about = explain_text(start + raised.format("ECONNREFUSED: the frob of n7 does not listen"))
    assert (about.verdict, about.causes[0].id) == (Verdict.UNDECIDED, "net.master-unreachable")
    own = explain_text(start + raised.format("the frob of row 7 is empty"))
    assert (own.verdict, own.causes[0].id) == (Verdict.CAUSE_FOUND, "app.rank-exception")


def test_the_number_that_stands_for_others_is_asked_for_by_no_words() -> None:
    assert trouble._ANY not in trouble._TOLD


def test_a_device_that_is_listed_is_there() -> None:
    listed = "    device          \t   node GUID\n    ------          \t----------------\n    mlx5_0          \tb8cef603001bc59e\n"
    assert not explain_text(listed).causes
    assert not explain_text(listed.partition("\n")[0]).causes  # a log that ends here
    assert not explain_text("opened device mlx5_0, node GUID unknown\nstep 1\nstep 2\n").causes


def test_the_ways_that_open_mpi_tried_are_quoted() -> None:
    told = "At least one pair of MPI processes are unable to reach each other for\n  BTLs attempted: self\n"
    assert "BTLs attempted: self" in {each.text.strip() for each in explain_text(told).causes[0].evidence}
