"""NVSHMEM, what stands on it (DeepEP), and what stands beside it (MSCCL++, Sandia OpenSHMEM).

Texts of NVSHMEM 3.4 (October 2025), read in its sources. What DeepEP's own kernels print of waiting is among the symptoms.
"""

from __future__ import annotations

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "nvshmem-doorbell-refused",
    "cannot allocate mlx5dv_devx_uar",
    cause="sys.container",
    strength=0.76,
    title="NVSHMEM gets no doorbell page of the adapter: the container (or virtual machine) may not make one",
    why="libmlx5 refuses mlx5dv_devx_alloc_uar: DEVX objects need privileges (CAP_NET_RAW, CAP_SYS_RAWIO, /dev/infiniband) or a virtual function that offers them. If it works with privileges only sometimes: the adapter's pages are used up (each UCX thread of NIXL takes some).",
)
says(
    "nvshmem-doorbell-unmapped",
    "GPU cannot map UAR of device {device:word}",
    "cudaHostRegister with IoMemory failed with error={code:int}",
    cause="ib.gdr",
    strength=0.74,
    title="NVSHMEM's IBGDA cannot map the adapter's doorbell into the GPU",
    why="The GPU may not write to the adapter's registers: the driver was loaded without PeerMappingOverride=1, or the page could not be made. NVSHMEM_IBGDA_NIC_HANDLER=cpu or the IBRC transport go without.",
)
says(
    "nvshmem-no-peermem",
    "neither nv_peer_mem, or nvidia_peermem detected",
    cause="ib.gdr",
    strength=0.88,
    title="NVSHMEM finds no peer memory module and no DMA-BUF: it cannot use the adapters",
    why="NVSHMEM asks for nvidia_peermem (or nv_peer_mem) where the GPU's driver offers no DMA-BUF or NVSHMEM_IB_DISABLE_DMABUF is set, and drops the transport without it.",
)
says(
    "nvshmem-no-device",
    "no active IB device that supports GPU-initiated communication is found",
    "no active IB device found, exiting",
    "cound not find user specified HCA name: {device:word}",  # sic
    "No NICs were assigned to our PE",
    cause="ib.device-not-found",
    strength=0.78,
    title="NVSHMEM finds no adapter that it can use",
    why="No active mlx5 port is visible to this process, or NVSHMEM_HCA_LIST and NVSHMEM_HCA_PE_MAPPING name none that exists.",
)
says(
    "nvshmem-connect",
    "Error in mlx5dv_devx_obj_modify for",
    "Error in mlx5dv_devx_obj_create for",
    "NULL value Unable to create ah",
    "NULL value Unable to create QP",
    cause="ib.qp-connect",
    strength=0.78,
    title="NVSHMEM cannot connect the adapter's queue pairs",
    why="The adapter refused the step that needs the peer's address (INIT2RTR) or the handle of an address: its GID index (NVSHMEM_IB_GID_INDEX on RoCE), a port that reaches no such peer, or a fabric without a route between these rails.",
)
says(
    "nvshmem-versions",
    "UID Bootstrap versions not compatible between PEs",
    "is not compatible with NVSHMEM version (",
    "The selected bootstrap returned an incompatible version",
    "NVSHMEM provided an incompatible version of the transport interface",
    "NVSHMEM device library version does not match with NVSHMEM host library version",
    "in CUmodule or CUlibrary does not match with NVSHMEM host library",
    "GDRCopy library version is not compatible with gdrapi.h",
    cause="sw.library-conflict",
    strength=0.9,
    title="parts of NVSHMEM are of different versions",
    why="The host library, its plugins, the device code or the other ranks' library are of another version.",
)
says(
    "nvshmem-uneven",
    "NVSHMEM requires the same number of PEs on all nodes",
    "Number of PEs found doesn't match the PE node count",
    cause="launch.world-size",
    strength=0.88,
    title="NVSHMEM needs the same number of processes on every node",
    why="A node runs fewer or more processes than the others.",
)
says(
    "nvshmem-call-order",
    "nvshmem API called before nvshmem_init",
    "NVSHMEM is not initialized. Unable to",
    "No more teams available (max = {most:int})",
    "non-zero status: {status:int} symmetry check for size failed",
    cause="app.pg-misuse",
    strength=0.74,
    title="NVSHMEM is called in a way that it does not allow",
    why="Symmetric calls must be made by all ranks, in the same order, with the same sizes, after nvshmem_init.",
)
says(
    "nvshmem-heap-full",
    "Out of memory in nvshmem_allocate",
    "Not enough space for allocating memory",
    "nvshmem_malloc{}out of memory",
    cause="gpu.oom",
    strength=0.72,
    title="NVSHMEM's symmetric heap is full",
    why="The heap cannot grow: too little free GPU memory, or NVSHMEM_SYMMETRIC_SIZE (NVSHMEM_MAX_MEMORY_PER_GPU) is too small.",
    where=lambda groups, line: "nvshmem" in line.lower() or "mem_heap" in line,
)
says(
    "nvshmem-no-start",
    "Unable to initialize any transports. returning error",
    "nvshmem initialization failed, exiting",
    "init failed for transport: ",
    "nvshmem detect topo failed",
    "connect EPS failed",
    "nvshmem setup connections failed",
    "building transport map failed",
    "Peer GPU {peer:int} is not accessible, exiting",
    role=Role.SYMPTOM,
    cause="ib.device-not-found",
    strength=0.44,
    fold="NVSHMEM does not start",
    title="NVSHMEM finds no transport to its peers",
    why="NVSHMEM gave up after all its transports had refused; their own lines, just before, say why.",
)
says(
    "mscclpp-adapters",
    "IB transport out of range: {wanted:int} >= {present:int}",
    cause="ib.device-not-found",
    strength=0.86,
    title="MSCCL++ wants an adapter for each GPU of the host and finds {present}",
    why="Rank n of a host takes the n-th RDMA device (MSCCLPP_HCA_DEVICES names others); this process sees fewer than it has ranks.",
)
says(
    "nvshmem-does-without",
    "is not enumerated as an mlx5 device. Skipping",
    "cannot allocate buffer on the specified memory type. Skipping",
    "GDRCopy library not found. disabling GDRCopy",
    "falling back to not using GDRCopy",
    "ibv_dealloc_pd failed",
    role=Role.HARMLESS,
    why="NVSHMEM passes over a device, does without GDRCopy, or leaves the rest of its clean-up to the kernel. It matters where it then finds no device at all, or is slow.",
)
says(
    "deepep-few-ranks",
    "'num_ranks > NUM_MAX_NVL_PEERS or low_latency_mode'",
    cause="app.pg-misuse",
    strength=0.78,
    title="DeepEP's kernels between hosts need more ranks than one NVLink domain holds (8), or its low-latency mode",
    why="Its normal mode counts on 8 GPUs in each host: a buffer for RDMA with 8 or fewer ranks is refused.",
)
says(
    "deepep-ranks",
    "'false and \"Unsupported ranks\"'",
    "'false and \"Unsupported RDMA ranks\"'",
    "Unsupported number of EP ranks: {ranks:int}",
    cause="launch.world-size",
    strength=0.88,
    title="DeepEP has no kernels for this number of ranks or hosts",
    why="They are compiled for fixed numbers: 2, 4 or 8 ranks in one host, and 2, 3, 4, 6, 8, 12, 16, 18 or 20 hosts of 8 ranks (July 2026; older releases know fewer).",
)
says(
    "deepep-device-assert",
    "Assertion failed: {place}, condition: {condition}",
    role=Role.SYMPTOM,
    cause="gpu.illegal-access",
    strength=0.44,
    fold="assertions of a kernel of DeepEP or DeepGEMM",
    title="a kernel's own assertion failed on the GPU: {condition}",
    why="It says what the kernel found, not who brought it there: a rank that failed or was left out, other arguments on another rank, or data that arrived in another order than the kernel counts on (adaptive routing).",
)
says(
    "openshmem-transport",
    "] ERROR: Transport init failed",
    "] ERROR: transport_none.h:{line:int}: shmem_transport",
    "] ERROR: transport_ofi.{place}: ",
    "]        No path to peer",
    cause="net.plugin",
    strength=0.66,
    title="Sandia OpenSHMEM has no transport to its peers",
    why="Built without one (transport_none: --with-ofi names libfabric), or libfabric's provider refuses a call.",
)
