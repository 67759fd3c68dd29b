"""NCCL's own checks: what it finds wrong with arguments, topology, registration, its proxies and its plugins."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "bad-address-text",
    "No valid <IPv4_or_hostname>:<port> pair found",
    "No valid [IPv6]:port pair found",
    "Net : unsupported IP family",
    cause="env.bad-nccl-var",
    strength=0.9,
    title="an address given to NCCL cannot be read (NCCL_COMM_ID or NCCL_RAS_ADDR)",
    why="NCCL parses addresses only from these variables; their form is <ip or host>:<port>, [<ipv6>]:<port>.",
)
says(
    "topology-description",
    "XML Export Channel : rank {rank:int} not found",
    "XML Mismatch : ",
    "XML parser is limited to",
    "too many XML nodes",
    "too many XML subnodes",
    "could not find DEV for GPU",
    "Add PCI Link error : could not find PCI SW",
    "Could not find local GPU with rank",
    "unable to find GPU/CPU for rank",
    "No path computed to go from",
    "does not loop back to start",
    why="NCCL's picture of the machine does not hold together.",
)
says(
    "topology-attribute",
    "Attribute {attribute} of node {node} not found",
    why="The topology has no such attribute: a topology file that was written for another machine or NCCL, or a machine that NCCL does not recognise.",
)
says(
    "topology-given",
    "Loading topology file {file}",
    "NCCL_TOPO_FILE set by environment to {file}",
    "NCCL_GRAPH_FILE set by environment to {file}",
    "NCCL_TOPO_FILE set to {file}",
    why="NCCL reads the machine's topology from a file.",
)
says(
    "host-alloc",
    "Failed to malloc {size:int} bytes",
    "Failed to CUDA host alloc {size:int} bytes",
    "Unrecoverable error detected: malloc(size={size:int}) returned null",
    cause="sys.host-oom",
    strength=0.7,
    title="NCCL could not get {size} bytes of host memory",
    why="malloc or cudaHostAlloc failed: the host or the cgroup is out of memory.",
)
says(
    "window-space",
    "No suitable space found to accommodate size={size:word} within limit={limit:word}",
    cause="app.pg-misuse",
    strength=0.64,
    title="NCCL's address space for registered windows is full ({limit}; {size} more was asked for)",
    why="Each ncclCommWindowRegister takes its part, also of a buffer that is registered already: deregister windows, or register once. NCCL_WIN_STRIDE sets the space of a rank.",
)
says(
    "argument-check",
    ": invalid reduction operation {op:int}",
    ": reduction operation {op:int} unknown to this communicator",
    ": invalid root {root:int} (root should be",
    " : {argument} is not a valid pointer",
    " : invalid type {type:int}",
    cause="app.bad-tensor",
    strength=0.85,
    title="NCCL refuses an argument of a collective",
    why="The root, operation or data type does not exist for this communicator: the caller's error.",
    where=lambda groups, line: "0..-1 range" not in line,  # a communicator without ranks was never completed
)
says(
    "call-order",
    "improper usage of ncclCommInitRank",
    "Blocking and nonblocking communicators are not allowed in the same group",
    "must either be all uncaptured or all captured by the same graph",
    "Invalig config graphUsageMode",
    "ncclCommGrow: ",
    "ncclPutSignal",
    "ncclSignal: count must be 0",
    "ncclWaitSignal: ",
    "ncclRedOpDestroy : ",
    "graphUsageMode semantics can lead to hangs",
    cause="app.pg-misuse",
    strength=0.85,
    title="NCCL is called in a way that it does not allow",
    why="The caller's order of calls, group or configuration is wrong.",
    where=lambda groups, line: "NCCL WARN" in line or "improper usage" in line or "semantics" in line,
)
says(
    "device-api-build",
    "argument must be initialized via NCCL_",
    "GDRCopy >= 2.5 required",
    "gdr_pin_buffer_v2 not available",
    cause="sw.library-conflict",
    strength=0.85,
    title="the program was built against another NCCL (or GDRCopy) than the one it runs with",
    why="Structures of the device API carry their version since 2.29: one that lacks it comes from a program compiled with older headers.",
)
says(
    "windows-differ",
    "Elastic GIN: rank {rank:int} {what}all ranks must have identical segment configurations",
    "MemManager: Could not find matching handle info for ptr",
    "Window registration capabilities disagree between rank {rank:int} and rank {other:int}",
    cause="app.collective-mismatch",
    strength=0.72,
    title="the ranks register or resume memory that does not fit together",
    why="Windows and suspended memory are collective: every rank must register the same segments in the same order.",
)
says(
    "driver-below-needed",
    "CUDA Driver version found is {found:int}. Minimum requirement is {needed:int}",
    "ROCr Driver version found is {found:int}. Minimum requirement is {needed:int}",
    "One-sided RMA requires CUDA driver {needed:num} or later (found {found:num}",
    "if the installed CUDA driver < R{needed:int}",
    cause="gpu.driver",
    strength=0.8,
    title="the GPU driver is older than this NCCL needs",
    why="NCCL asks the driver for its version before it uses a feature.",
)
says(
    "forced-ordering",
    "NET/IB: OOO RQ is force enabled but",
    "NET/IB: NCCL_IB_SUBNET_PREFIX_LEN={value:int} is out of range",
    "NCCL_NET_MERGE_POLICY: unknown value '{value}'",
    cause="env.bad-nccl-var",
    strength=0.78,
    title="a variable asks the network for something that it cannot do",
    why="NCCL 2.30 refuses: out-of-order receive queues need adaptive routing on both ends (NCCL_IB_OOO_RQ), the prefix length is 1 to 32.",
)
says(
    "shared-gpu-without-nvls",
    "NCCL_NVLS_ENABLE=1.",
    "and communicator has multiple ranks using the same NVML device",
    cause="env.bad-nccl-var",
    strength=0.9,
    title="NVLink SHARP is demanded where ranks share a GPU",
    why="NCCL_NVLS_ENABLE=1 asks for what MIG slices or ranks of one GPU cannot do.",
    where=lambda groups, line: "not compatible with" in line,
)
says(
    "window-of-host-memory",
    "contains CPU-backed physical segments, but ",
    cause="env.bad-nccl-var",
    strength=0.78,
    title="a window holds host memory, which NCCL's settings exclude",
    why="A window of host and device memory needs NCCL_ELASTIC_BUFFER_REGISTER=1, and no multi-node NVLink.",
)
says(
    "link-speed-fell",
    "speed change detected: {before:int} -> {after:int} Mbps",
    cause="net.slow",
    strength=0.66,
    title="an adapter's link fell from {before} to {after} Mbps",
    why="A bond lost one of its ports, or a link was negotiated anew and lower (NCCL 2.30 tells it).",
    where=lambda groups, line: int(groups["after"]) < int(groups["before"]),
)
says(
    "symmetric-unsupported",
    "Communicator does not support symmetric memory",
    "symmetric registration is not supported in this communicator",
    "RMA proxy is not supported in this communicator",
    "GIN Proxy: RMA backend not found",
    "User requested GIN but not all ranks in the communicator support GIN",
    "but the communicator supports only NCCL_GIN_CONNECTION_RAIL",
    "No GIN-capable devices found",
    "No RMA-capable devices found",
    "GIN not supported.",
    "GIN is disabled.",
    "did not request GIN to be enabled",
    "GIN plugin does not support ",
    "RMA CE is not initialized",
    "RMA not supported.",
    "host RMA is not supported in this communicator",
    "Multicast support requested for team but none available",
    "Multimem pointer requested but system does not support multimem",
    why="Symmetric memory needs cuMem and peer-to-peer or GIN among all ranks.",
)
says(
    "nvls-registration",
    "failed to NVLS register",
    "failed to NET register userbuff",
    "COLLNET failed to register userbuff",
    "failed to IPC register userbuff",
    "Failed to multicast-bind user buffer",
    ". Trying a different method.",
    role=Role.HARMLESS,
    why="A user buffer could not be registered: NCCL copies through its own buffers instead, only slower.",
)
says(
    "proxy-device",
    "Failed to set CUDA device {device:int}",
    "Failed to set CUDA context on device",
    "[Proxy Service UDS] ",
    "[Proxy Service] Poll failed",
    "[Proxy Service] Get listenSock fd fails",
    "[Proxy service] Too many connections",
    "commDestroySync: comm",
    "destroys proxy resource error",
    "[Proxy thread error]",
    role=Role.SYMPTOM,
    fold="NCCL proxy errors",
    why="NCCL's helper threads meet the trouble of the device or of the peers.",
    where=lambda groups, line: "NCCL INFO" not in line,
)
says(
    "gdrcopy-failure",
    "GDRCOPY failure {code:int}",
    "gdr_map(handle {}failed",
    "gdr_copy_to_mapping(handle {}failed",
    "gdr_copy_from_mapping(handle {}failed",
    "gdr_get_info(handle {}failed",
    cause="ib.gdr",
    page="ib.gdr.gdrcopy",
    strength=0.6,
    title="GDRCopy fails: GPU memory cannot be mapped for the CPU",
    why="The gdrdrv module does not fit the driver or the library.",
)
says(
    "gdrcopy-pin",
    "(gdr_pin_buffer(",  # an assertion of GDRCopy's own tests
    "(gdr_map(",
    cause="ib.gdr",
    page="ib.gdr.gdrcopy",
    strength=0.94,  # the test's own CUDA errors follow from it
    title="GDRCopy cannot pin or map GPU memory: gdrdrv does not fit the library or the driver, or this GPU does not support it",
    why="The module is of an older release than libgdrapi, was built for another GPU driver, or the GPU is none of those (data center, workstation) whose memory other devices may reach.",
)
says(
    "gdrcopy-left-out",
    "gdrdrv might be too old",
    "gdrdrv is too old",
    "gdrdrv cannot fulfill the requested mapping type",
    "gdr_pin_buffer failed",
    cause="ib.gdr",
    page="ib.gdr.gdrcopy",
    strength=0.46,
    title="a library cannot use GDRCopy: gdrdrv does not fit it, the driver or this GPU",
    why="UCX, libfabric and NVSHMEM mostly go on without GDRCopy: what fails after it may have another cause.",
)
says(
    "plugin-limits",
    "plugin returned invalid value for max",
    "Invalid GIN proxy backend version",
    "RMA proxy backend type mismatch",
    cause="net.plugin",
    strength=0.85,
    title="the network plugin gives an answer that this NCCL does not accept",
    why="The plugin was written for another NCCL.",
)
says(
    "nvml-hides-gpu",
    "nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    "nvmlDeviceGetHandleByPciBusId failed: Not Found",
    cause="gpu.not-visible",
    strength=0.7,
    title="the driver does not show a process a GPU that NCCL found (hidden by a container or a job's cgroup)",
    why="NCCL knows a GPU of this host by its PCI address, and NVML has none there for this process: each rank was given only its own GPU device.",
)
says(
    "nvml-call",
    "nvml{call:word} failed: {error}",
    "NVML failure '{error}'",
    cause="gpu.driver",
    strength=0.66,
    title="NVML refuses a query: {error}",
    why="The driver's management library does not answer for a GPU: driver and library of different versions, a GPU that is gone, or devices hidden in a container.",
    where=lambda groups, line: (
        "WARN" in line and not re.search(r"P2PStatus|GetNvLink|Not Supported|PciBusId\S* failed: Not Found", line)
    ),
)

# --- NCCL_RUN_DIAGNOSTICS=1 and NCCL_RUN_RAS_DIAGNOSTICS=1, NCCL 2.31 and later
says(
    "diag-net-slow",
    "NCCL DIAG [INFO] net bw: {way} rank {who:int} ({node}): {rate:num} Gbit/s, >30% off median {median:num} Gbit/s",
    cause="net.slow",
    strength=0.84,
    title="rank {who} on {node} moves {rate} Gbit/s over its adapter, the median rank {median} Gbit/s",
    why="NCCL ran ib_write_bw between the ranks: this one is more than 30 % below the others.",
    page="ib.rate.degraded",
    where=lambda groups, line: float(groups["rate"]) < float(groups["median"]),
)
says(
    "diag-p2p-mismatch",
    "NCCL DIAG [INFO] p2p: write mismatch srcRank={source:int} {devices} dstRank={target:int} ",
    "NCCL DIAG [INFO] p2p: read mismatch srcRank={source:int} {devices} dstRank={target:int} ",
    cause="gpu.p2p",
    strength=0.95,
    title="what rank {source} writes to or reads from the GPU of rank {target} arrives wrong",
    why="NCCL wrote and read a pattern between all pairs of GPUs. IOMMU or ACS in the way corrupts or loses such accesses.",
)
says(
    "diag-p2p-refused",
    "NCCL DIAG [INFO] p2p: peer-memory import failed srcRank={source:int} {devices} dstRank={target:int} ",
    "p2p: only {passed:int}/{all:int} GPU-to-GPU peer accesses passed verification",
    cause="gpu.p2p",
    strength=0.8,
    title="not every pair of GPUs can reach each other's memory",
    why="NCCL tried each pair of GPUs of a host or NVLink domain, in both directions.",
)
says(
    "diag-rdma-topology",
    "NCCL DIAG [INFO] rdma_topo check: failed on rank(s) {list} across {of} ranks",
    cause="ib.gdr",
    strength=0.55,
    title="rdma_topo finds the PCIe topology of rank(s) {list} unfit for GPUDirect RDMA",
    why="NVIDIA's rdma_topo, run by NCCL, tells of ACS, switches and IOMMU between GPU and adapter.",
)
says(
    "work-request-stalls",
    "NET/IB: WQE stall (no CQE): peer={peer} | local: qpn={qp} dev={device} port={port} {ids} stall_thr={limit} age={age:int}ns",
    cause="ib.retry-exceeded",
    strength=0.66,
    title="what was sent to {peer} over {device} is not confirmed after {age} ns: the fabric does not deliver it",
    why="NCCL_IB_WQE_LATENCY_REPORT (2.32): the peer's adapter confirms, whatever its process does; a lossy, paused or broken path does not.",
)
says(
    "work-request-is-slow",
    "NET/IB: WQE slow: peer={peer} | local: qpn={qp} dev={device} port={port} {ids} thr={limit}ns delta={age:int}ns",
    cause="net.slow",
    strength=0.5,
    title="what was sent to {peer} over {device} was confirmed after {age} ns only",
    why="NCCL_IB_WQE_LATENCY_REPORT (2.32): single ones are nothing; many on one adapter or towards one peer mean a congested or lossy path.",
)
