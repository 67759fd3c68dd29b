"""InfiniBand, RoCE and GPUDirect RDMA."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import Guard, says
from nccl_doctor.explain.status import COMPLETIONS

_COMPLETION = (
    "Got completion from peer {peer} with status={status}opcode={}vendor{vendor}",
    "Got completion from peer {peer} with error {status:int}, opcode {}, len {}, vendor err {vendor}",
    "Got completion with error {status:int}, opcode {}, len {}, vendor err {vendor}",
    "Got completion from peer {peer} with {status}opcode",
    "Failed status {status:int}: wr_id {peer}",  # perftest
    "a work item failed: status {status:int}",  # MSCCL++
    "CQ state error: {status:int}",  # UCCL
    "got bad completion with status: {status:word}, vendor syndrome: {vendor}",  # RDMA_RC_example.c, and what was made from it
)


# ibstat's and ibstatus' rate of a port: Gbit/s, and the number of its lanes where that is told ("50 Gb/sec (1X HDR)").
_RATE_ALONE = re.compile(r"(?<![a-z] )Rate: \d+\s*$")
_STATUS = {number: name for number, name, *_ in COMPLETIONS}


def _status(*numbers: int) -> Guard:
    """Whether a completion has one of these statuses, by number or by name."""

    def guard(groups: dict[str, str], line: str) -> bool:
        status = groups.get("status", "")
        number = re.search(r"0x[0-9a-f]+|\d+", status)
        told = number is not None and int(number.group(), 16 if number.group().startswith("0x") else 10) in numbers
        return told or any(_STATUS[wanted] in status for wanted in numbers)

    return guard


says(
    "port-of-nccl",
    "NET/IB: [{index:int}] {device:word}:{}:{port:int}/{layer:word} {}speed={speed:int} ",
    why="A port that NCCL found, and its speed in Mb/s.",
)
says(
    "ib-retry",
    *_COMPLETION,
    where=_status(12, 13, 20),
    cause="ib.retry-exceeded",
    strength=0.8,
    title="the fabric did not deliver: transport retries exceeded towards {peer}",
    why="Status 12 (vendor err 129): the peer's port did not acknowledge within NCCL_IB_TIMEOUT x NCCL_IB_RETRY_CNT. Cable, switch, wrong GID/VLAN/PFC, rails that are not connected, or a peer that died.",
)
says(
    "ib-retry-ucx",
    "Transport retry count exceeded",
    cause="ib.retry-exceeded",
    page="ib.retry-exceeded.beside-nccl",
    strength=0.81,
    title="the fabric did not deliver: transport retries exceeded",
    why="UCX's words, as MPI, NIXL and TensorRT-LLM's cache transfer print them: NCCL's variables do not reach it.",
)
says(
    "ib-retry-text",
    "transport retry counter exceeded",
    "RETRY_EXC_ERR",
    "IB_WC_RETRY_EXC",
    "RNR retry counter exceeded",
    "RNR retry count exceeded",
    cause="ib.retry-exceeded",
    strength=0.8,
    title="the fabric did not deliver: transport retries exceeded",
    why="The same, in words (perftest, verbs).",
)
says(
    "ib-local-protection",
    *_COMPLETION,
    where=_status(4, 8),
    why="Status 4 or 8: local protection error: the adapter could not access the local buffer (GPUDirect, ACS, registration).",
)
says(
    "ib-flush",
    *_COMPLETION,
    where=_status(5),
    role=Role.SYMPTOM,
    fold="flushed work requests (status 5)",
    why="Status 5: the queue pair was already in error: a consequence.",
)
says(
    "ib-flush-text",
    "Work Request Flushed Error",  # rdma-core's words for status 5, as UCX and others print them
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.4,
    fold="flushed work requests",
    title="a connection over RDMA was already broken: its requests are flushed",
    why="What broke it was told before, here or by the peer: its end, a retry that was exceeded, or a refused access.",
)
says(
    "ib-remote-error",
    *_COMPLETION,
    where=_status(9, 10, 11, 1, 2, 19, 21),
    cause="ib.retry-exceeded",
    strength=0.55,
    title="the remote side refused an RDMA request (status {status})",
    why="Status 9, 10, 11: the remote buffer, key or length did not fit: MTU or version differences, remote registration, or corruption.",
)
says(
    "verbs-local-text",
    "Local protection on {device}",
    "Local protection error on {device}",
    "local protection error",
    "local access error",
    "IBV_WC_LOC_PROT_ERR",
    "IBV_WC_LOC_ACCESS_ERR",
    cause="ib.gdr",
    strength=0.62,
    title="an adapter could not access the buffer it was told to use",
    why="Verbs' status 4 or 8 in words (UCX, libibverbs): GPUDirect through ACS or an IOMMU, or memory that was freed or not registered.",
    where=lambda groups, line: "Got completion" not in line,
)
says(
    "verbs-remote-text",
    "Remote access on {device}",
    "Remote access error on {device}",
    "Remote OP on {device}",
    "remote access error",
    "remote operation error",
    "IBV_WC_REM_ACCESS_ERR",
    "IBV_WC_REM_OP_ERR",
    cause="ib.gdr",
    strength=0.56,
    title="a peer's adapter refused access to its memory",
    why="Verbs' status 10 or 11 in words: the remote buffer is not (or no longer) registered, or the remote adapter cannot reach it.",
    where=lambda groups, line: "Got completion" not in line,
)
says(
    "verbs-invalid-text",
    "remote invalid request error",
    "Remote invalid request on {device}",
    "IBV_WC_REM_INV_REQ_ERR",
    "IBV_WC_LOC_LEN_ERR",
    cause="net.mtu",
    strength=0.52,
    title="a peer refused a request as invalid or too long",
    why="Verbs' status 9 or 1 in words: usually path MTUs that differ between the two ends.",
    where=lambda groups, line: "Got completion" not in line,
)
says(
    "ib-port-error",
    "async event : port error",
    "async event: port error",
    "async error event: port error",
    "port error(",
    "Device {device:int} marked as failed",
    "evice {device:int} as permanently failed",
    "NET/IB: {}Recovery for device {device:int} failed",
    "NET/IB: {}Port recovery failed for",
    "failed devices out of",
    "IBV_EVENT_PORT_ERR",
    "Received async event{}port error",
    cause="ib.port-down",
    strength=0.93,
    title="an InfiniBand/RoCE port failed while the job ran",
    why="The HCA reported a port error: its link went down (cable, switch, or the other end).",
)
says(
    "adapter-failed",
    "async fatal event: device fatal",
    "Got async event : device fatal",
    "local catastrophic error",  # what libibverbs calls IBV_EVENT_DEVICE_FATAL
    cause="ib.port-down",
    strength=0.93,
    title="a network adapter failed while the job ran",
    why="The adapter reported a fatal error of its own (firmware or hardware): all its ports are gone until it is reset. The kernel log says more.",
)
says(
    "ib-no-way-left",
    "NET/IB: Could not find a functional device to post the probe",
    "NET/IB: Could not find a replacement QP for the failed QP",
    "NET/IB: Maximum number of probing attempts ({attempts:int}) reached",
    "NET/IB: The error is fatal ({error}). Cannot continue",
    cause="ib.retry-exceeded",
    strength=0.72,
    title="NCCL's port failover finds no working way to a peer",
    why="NCCL 2.30 moves requests of a failed adapter to another one; here none was left, or the peer answered on none: a switch, several ports, or the peer itself.",
)
says(
    "verbs-device",
    "uverbs{number:int}",
    "CA 'mlx5_{number:int}'",
    "CA 'ibp{name}'",
    "hca_id: mlx5_{number:int}",
    "hca_id:\tmlx5_{number:int}",
    "Infiniband controller{address}: Mellanox",
    why="A listing shows that the host has an RDMA adapter, and that it can be seen there.",
    where=lambda groups, line: re.search(r"[Nn]o such|denied|ail|annot|rror|not found|missing|warn", line) is None,
)
says(
    "port-rate",
    "Rate: {rate:int}",
    "rate:{rate:int} Gb/sec ({lanes:int}X",
    why="The rate of an RDMA port (ibstat, ibstatus), in Gbit/s.",
    where=lambda groups, line: "lanes" in groups or _RATE_ALONE.search(line) is not None,
    every=True,  # of which adapter, the lines above tell
)
says(
    "port-listed",
    "Infiniband device '{device:word}' port",
    "CA '{device:word}'",
    why="ibstat and ibstatus: the adapter that the next lines are about.",
    every=True,
)
says(
    "port-ethernet",
    "link_layer:{}Ethernet",
    "Link layer: Ethernet",
    why="ibstat and ibstatus: an adapter's port is Ethernet's, whose lanes are as many as its speed needs.",
    every=True,
)
says(
    "port-active",
    "state ACTIVE physical_state LINK_UP",
    "State: Active",
    "state:{}4: ACTIVE",
    "PORT_ACTIVE (4)",
    why="A listing shows an RDMA port that is active.",
)
says(
    "adapter-up",
    " port {port:int} ==> {interface} (Up)",
    "Physical state: LinkUp",
    why="ibdev2netdev or ibstat: this RDMA adapter's port is up.",
)
# How many adapters of which rate in Gb/s a host has, as people write it.
ADAPTERS_TOLD = re.compile(
    r"(?<![\w.])(?P<count>\d{1,2}) ?[xX\u00d7] ?(?P<rate>\d{3}) ?G(?:b/?s?|bps|bits?/s)?\b(?! ?(?:memory|RAM|HBM))|"
    r"(?<![\w.])(?P<rate_before>\d{3}) ?G(?:b/?s?|bps|bits?/s)?(?: [A-Z]DR| IB| RoCE| InfiniBand)? ?[xX\u00d7] ?(?P<count_after>\d{1,2})\b"
)
_NAMED_ADAPTERS = re.compile(r"(?:\bmlx5_\d{1,2}\b.{1,4}?){2,16}.{0,24}?\b\d{3} ?Gb?(?:ps|/s|it/s)?\b")
says(
    "adapters-told",
    " HDR",
    " NDR",
    " XDR",
    "InfiniBand",
    "RoCE",
    "ConnectX",
    "CX-7",
    sampled=True,
    why="Somebody, or the program, tells which RDMA adapters each host has, and how fast they are.",
    where=lambda groups, line: (
        (ADAPTERS_TOLD.search(line) or _NAMED_ADAPTERS.search(line)) is not None
        and "NCCL " not in line
        and re.search(r"\b[Dd]own\b|\bno\b|without|broken", line) is None
    ),
)
says(
    "adapter-in-legend",
    "NIC{index:int}: mlx{adapter:word}",
    "NIC{index:int}: bnxt_re{adapter:word}",
    "NIC{index:int}: ibp{adapter:word}",
    "NIC{index:int}: rdmap{adapter:word}",
    sampled=True,
    every=True,
    why="nvidia-smi topo -m: the names of the host's RDMA adapters.",
)
says(
    "ib-port-counters",
    "LinkDownedCounter",
    "link_downed",
    why="The counter grows since it was last cleared; a port whose link goes down again and again loses its connections.",
    pattern=re.compile(r"(?:LinkDownedCounter|link_downed\w{0,20})\W{1,40}(?:[5-9]|\d\d)"),
)
says("adapter-full", "limits exceeded(0x8)", why="The adapter's firmware refuses to make another object of a kind.")
says(
    "ib-port-back",
    "async event : port active",
    "async event: port active",
    "async error event: port active",
    cause="ib.port-down",
    strength=0.45,
    title="an InfiniBand/RoCE port came up again",
    why="A port became active while the job ran: it had been down before.",
)
says(
    "rdma-cm-unreachable",
    "RDMA_CM_EVENT_UNREACHABLE",
    "RDMA_CM_EVENT_ROUTE_ERROR",
    "RDMA_CM_EVENT_ADDR_ERROR",
    cause="ib.retry-exceeded",
    strength=0.7,
    title="one adapter cannot reach the other (RDMA connection manager)",
    why="rping or another probe found no path between two adapters: a rail, a subnet or a VLAN does not lead there.",
    where=lambda groups, line: "Peer: 127." not in line,
)
says(
    "rdma-cm-call",
    "rdma_resolve_addr failed",
    "rdma_resolve_route failed",
    "rdma_bind_addr failed",
    "rdma_connect failed",
    "times ADDR_ERROR - aborting",
    cause="ib.qp-connect",
    strength=0.72,
    title="the RDMA connection manager makes no connection",
    why="perftest's -R, rping and their kin name an IP address: it has to be one of an adapter's own interface (in a pod its virtual function's), with a route over it to the peer.",
)
says(
    "rdma-cm-loopback",
    "RDMA_CM_EVENT_UNREACHABLE{}Peer: 127.",
    "RDMA_CM_EVENT_ROUTE_ERROR{}Peer: 127.",
    "RDMA_CM_EVENT_ADDR_ERROR{}Peer: 127.",
    cause="net.wrong-interface",
    strength=0.78,
    title="an adapter is asked for a connection to the loopback address, which no adapter has",
    why="The peer told 127.0.0.1 as its address: give it the interface of an adapter (Dask: interface=, --interface ib0).",
)
says(
    "kernel-link-down",
    ": Link down",
    "link becomes down",
    "NIC Link is Down",
    "Link DOWN",
    "Cable unplugged",
    "Cable is unplugged",
    "Lost carrier",
    "Link went down",
    "Cable error",
    "port_module_event",
    "link status definitely down",
    "now running without any active interface",
    "No 802.3ad response from the link partner for any adapters",
    cause="ib.port-down",
    strength=0.9,
    title="a network link went down (kernel log)",
    why="The adapter's driver reports that the link went down.",
    where=lambda groups, line: (
        re.search(r"mlx|bnxt|ib|eth|ens|enp|irdma|port|Link|bond|Cable", line) is not None
        and not re.search(r"veth|docker|cali|\bbr-", line)
    ),
)
says(
    "broadcast-group-refused",
    "multicast join failed for {group:word}, status {code:int}",
    cause="ib.port-down",
    strength=0.62,
    title="IPoIB cannot join its broadcast group ({group}): no IP traffic over InfiniBand (kernel log)",
    why="The subnet manager has no such group for this partition, or its rate and MTU do not fit the port. NCCL's own traffic over verbs does not need it; its bootstrap over ib0 does.",
    where=lambda groups, line: groups["code"] != "0" and "sendonly" not in line,
)
says(
    "port-state-down",
    "State: Down",
    "state: PORT_DOWN",
    "PORT_DOWN (1)",
    "Physical state: Polling",
    "Physical state: Disabled",
    "phys state:  2: Polling",
    "phys_state:{}POLLING",
    "phys state:{}Disabled",
    "phys_state:{}DISABLED (3)",
    "state:{}1: DOWN",
    "Port {port:int} Down",
    "Port number {port:int} state is Down",
    "Couldn't get local LID",
    "port state{}: Down",
    "state DOWN",
    "State: Initializing",
    "PORT_INIT (2)",
    cause="ib.port-down",
    strength=0.88,
    title="an InfiniBand/RoCE port is not active",
    why="The port listing shows a port that is down, polling (no cable partner), disabled, or waiting for a subnet manager (Initializing).",
    where=lambda groups, line: (
        re.search(r"\w State: ", line) is None  # of a program
        and not re.search(r"veth|docker|virbr|\blo\b|br-|NO-CARRIER.{0,200}(?:docker|virbr)|mtu \d+ .*state DOWN", line)
    ),
    every=True,  # of which port, the lines around tell
)
says(
    "roce-gid-missing",
    "Call to ibv_query_gid failed",
    "ibv_query_gid_ex failed",
    "Failed to query GID",
    "GID table change",
    "unknown event type (18)",  # IBV_EVENT_GID_CHANGE, to a NCCL that does not know it
    "No RoCE GID",
    "o suitable GID",
    "o usable GID",
    "GID not found",
    "Failed to find GID",
    "GID: 00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00",  # perftest
    "could not find a GID",
    "gid index {}is invalid",
    "Invalid GID index",
    "failed to get gid",
    "GID index {}not found",
    "no valid GID",
    "gid {:int} is not valid",
    "failed in ncclIbRoceGetVersionNum",
    cause="ib.gid-index",
    strength=0.9,
    title="the RoCE GID (index) that NCCL uses is missing or changed",
    why="The GID table has no (valid) entry at this index, or changed under the job.",
)
says(
    "nvshmem-gid-type",
    "failed in ib_roce_get_version_num: ",
    cause="ib.gid-index",
    strength=0.62,
    title="NVSHMEM cannot read the type of a GID: the container's GID table is not that of its namespace, or the entry is empty",
    why="Older NVSHMEM tries every index and warns of each empty one, too: it matters where the start fails after it.",
)
says(
    "modify-qp",
    "Call to ibv_modify_qp failed with {code:int} {error}, on dev {dev}",
    "Call to ibv_modify_qp failed with {code:int} {error}",
    "ibv_modify_qp failed with error {error}",
    "ibv_modify_qp failed",
    "Failed to modify QP",
    "Failed to modify UD QP to",
    "Failed to modity QP to RTR, check mtu",  # Mooncake, until 2025
    "Unable to modify QP",
    "failed to modify qp",
    cause="ib.qp-connect",
    strength=0.84,
    title="a queue pair could not be connected: {error}",
    why="ibv_modify_qp failed: 110 (timed out), 113/101 (no route) = the peer's GID is not reachable over this port (rails, VLAN, routing); 22 (invalid argument) = wrong GID index or subnet.",
    where=lambda groups, line: "retrying" not in line,
)
_SAYS_NO_REASON = re.compile(
    r"(?:ibv_(?:reg_mr\w{0,20}|reg_dmabuf_mr|create_qp|create_cq|alloc_pd) failed|Couldn't allocate (?:MR|PD))\W*$"
)
says(
    "create-qp",
    "Call to ibv_create_qp failed",
    "Call to ibv_create_cq failed",
    "Call to ibv_create_ah failed",
    "Failed to create QP",
    "Couldn't create QP",
    "Couldn't create CQ",  # perftest
    "Couldn't create SRQ",
    "Attempted to connect incompatible devices",
    "Can't connect net devices with different link_layer",
    "is incompatible with the local",
    "remote FLID configured as zero",
    "Attempted to merge incompatible devices",
    "Can't merge net devices with different link_layer",
    "Trying to merge multiple devices together with different link_layer",
    cause="ib.qp-connect",
    strength=0.78,
    title="a queue pair could not be created or connected",
    why="Verbs refuse a queue pair: limits (with 'Cannot allocate memory': locked memory), or ports of different link layers.",
    where=lambda groups, line: "Cannot allocate memory" not in line and not _SAYS_NO_REASON.search(line),
)
_REG = (
    "ibv_reg_mr",
    "Failed to register memory",
    "fi_mr_reg failed",
    "ibv_reg_dmabuf_mr",
    "mlx5dv_devx_umem_reg(",
    "Couldn't allocate MR with error={code:int}",  # perftest
)
says(
    "reg-mr-nomem",
    *_REG,
    "Unable to register MR",  # libfabric
    "ibv_create_qp failed",
    "ibv_create_cq failed",
    "ibv_alloc_pd failed",
    "ailed to create qp",  # of programs with verbs of their own
    "ailed to create cq",
    "ailed to create QP",
    "ailed to create CQ",
    cause="ib.memlock",
    strength=0.9,
    title="memory could not be registered with the adapter: the locked-memory limit is too small",
    why="Registration or queue creation fails with ENOMEM: RLIMIT_MEMLOCK of the process (not of your shell) is too small.",
    pattern=re.compile(r"Cannot allocate memory|errno 12|ENOMEM|error=12\b"),
)
says(
    "reg-mr-again",
    "ibv_reg_mr",
    "ibv_exp_reg_mr",
    "Failed to register memory",
    cause="ib.memlock",
    strength=0.74,
    title="the adapter has no memory keys left for a registration (EAGAIN)",
    why="EAGAIN, where the limit on locked memory gives ENOMEM: the adapter, or its share of a virtual function, has no more keys. Fewer or larger registrations "
    "help (a cache of them in each of many processes uses them up).",
    pattern=re.compile(r"Resource temporarily unavailable|EAGAIN|errno 11\b"),
)
says(
    "reg-mr-unsaid",
    "ibv_reg_mr failed",
    "ibv_reg_mr_iova2 failed",
    "ibv_create_qp failed",
    "ibv_create_cq failed",
    "ibv_alloc_pd failed",
    "Couldn't allocate MR",  # perftest
    "Couldn't allocate PD",
    why="Older NCCL does not say why verbs refused: mostly the locked-memory limit, else GPUDirect.",
    pattern=_SAYS_NO_REASON,
)
says(
    "perftest-gpu-buffer",
    "allocated GPU buffer ",
    "bytes of GPU buffer at ",
    "bytes of MLU buffer at ",
    "bytes of accelerator buffer at ",
    why="perftest: what it registers next is memory of a GPU.",
)
says(
    "perftest-usage",
    " Parser function exited with Error",
    cause="unrelated",
    strength=0.74,
    title="perftest refuses its own options",
    why="The line before says which option: it lacks another one, comes before the one it needs, or is not for this test.",
)
says(
    "memlock-text",
    "Check {}max locked memory",
    "max locked memory {}is too small",
    "locked memory limit",
    "The OpenFabrics (openib) BTL failed to initialize while trying to allocate some locked memory",
    "maximum of 64 KB of registered memory",
    "low memlock",
    "RLIMIT_MEMLOCK",
    "increase memlock",
    "ulimit -l",
    why="Something speaks of the locked-memory limit.",
)
says(
    "memlock-low",
    "memlock limits are set too low",
    "limits are set too low.{}memlock",
    "Please set max locked memory (ulimit -l) to 'unlimited' (current: {value:int} kbytes)",  # UCX
    "hfi_userinit: mmap of {what} failed: Resource temporarily unavailable",
    cause="ib.memlock",
    strength=0.86,
    title="the locked-memory limit is too small for RDMA",
    why="Open MPI's verbs code, UCX or PSM2 could not lock the memory it needs: RLIMIT_MEMLOCK of the daemon that starts the processes counts, not your shell's.",
)
says(
    "memlock-value",
    "max locked memory {}(kbytes, -l) {value:int}",
    "max locked memory {value:int} KB",
    "RLIMIT_MEMLOCK is {bytes:int} bytes",  # libibverbs' own warning, printed only where it is small
    ": 65536",
    "(kbytes, -l) 64",
    "memlock: 64",
    "locked-in-memory size{}65536",
    why="A small locked-memory limit in a listing.",
)
says(
    "peermem-for-other-modules",
    "disagrees about version of symbol ib_register_peer_memory_client",
    "Unknown symbol ib_register_peer_memory_client",
    cause="ib.gdr",
    strength=0.92,
    title="nvidia_peermem cannot be loaded: it was built against other InfiniBand modules than those that are loaded",
    why="The peer memory interface is MLNX_OFED's (DOCA-OFED's); the module fits the one that it was built against, and the kernel's own modules have none.",
)
says(
    "reg-mr-gpu",
    *_REG,
    "Failed to register{}cuMem",
    "gdr_pin_buffer(addr {}failed",
    "nvidia_p2p_get_pages",
    "nv_peer_mem{}failed",
    "nvidia_peermem{}failed",
    "could not insert 'nvidia_peermem'",
    "could not insert module nvidia{}peermem",
    "nvidia-peermem: Invalid argument",
    "FATAL: Module nvidia_peermem not found",
    "Module nvidia-peermem not found",
    "nvidia-peermem.ko: {}nvalid",
    "modprobe: ERROR: could not insert 'nv",
    "ERRNO: Bad address",  # perftest's next line, where it tells no number
    cause="ib.gdr",
    strength=0.88,
    title="GPU memory cannot be registered for GPUDirect RDMA",
    why="Registration of GPU memory fails (EFAULT, EINVAL): nvidia_peermem is not loaded or was built for other drivers, or DMA-BUF is not supported.",
    where=lambda groups, line: (
        re.search(
            r"Bad address|Invalid argument|Operation not supported|EFAULT|errno (?:14|22)|error=(?:14|22|93|95)|peer_?mem|"
            r"dmaBufSupported: 0|gdr_pin_buffer|p2p_get_pages",
            line,
        )
        is not None
        and "loaded: yes, dma" not in line
    ),
)
says(
    "peermem-missing",
    "nvidia_peermem is not loaded",
    "nv_peer_mem is not loaded",
    "nvidia-peermem not loaded",
    "no peer memory",
    "GPU Direct RDMA Disabled for HCA {hca} '{dev}' (no module)",
    "Peermem is not supported, nor DMA-BUF",
    "Unable to use GIN: Peermem",
    "without nvidia-peermem",
    "without nvidia_peermem",
    why="No GPUDirect RDMA on this host.",
)
says(
    "peermem-looked-for",
    "memory_peers/nv_mem{module}/version: No such file",
    cause="ib.gdr",
    strength=0.46,
    title="no peer memory module is registered with the adapters' driver",
    why="nvidia_peermem (nv_mem, or nv_mem_nc for pages that stay) is missing among the kernel's peers, even where lsmod lists it: built against other drivers. GPUDirect RDMA then needs DMA-BUF.",
)
says(
    "no-hca",
    "No IB devices found",
    "No InfiniBand devices",
    "ibv_get_device_list() failed",
    "ibv_open_device failed",
    "Unable to open device {dev}",
    "Failed to get IB devices list",
    "No IB HCA",
    "open /dev/infiniband/{dev}: ",
    "/dev/infiniband: No such file",
    "/dev/infiniband/{dev}: No such",
    "No such file or directory{}uverbs",
    "NET/IB : Unable to open device",
    "uverbs{}Permission denied",
    "'/dev/infiniband'",
    "ibv_devices: no",
    "no RDMA device",
    "Unable to get the list of IB devices",
    "IB device {dev} not found",
    "Unable to find the Infiniband/RoCE device",
    "main: stat of IB device '{dev}' failed: ",
    "sys files not found (/sys/class/infiniband",
    "NET/IB : Unable to query device",
    "NET/IB : Unable to query port",
    "has a different number of devices=",
    "librdmacm: Fatal: unable to get RDMA device list",
    "rdma_getaddrinfo: No such device",
    "rdma_create_event_channel: No such device",
    "rdma_create_id: No such device",
    "rdma_create_event_channel() failed",
    cause="ib.device-not-found",
    strength=0.72,
    title="no usable RDMA device in this process",
    why="Verbs find no device: not passed into the container, driver not loaded, or the wrong library.",
)
says(
    "no-verbs-warn",
    "NCCL WARN Failed to open libibverbs.so",
    role=Role.HARMLESS,
    why="No rdma-core (a WARN up to NCCL 2.10): harmless without InfiniBand.",
)

says(
    "gdrcopy",
    "Failed to initialize GDRCopy",
    "Failed to open gdr handle",
    "gdr_open{}fail",
    "Failed to open gdrdrv",
    "/dev/gdrdrv",
    cause="sys.container",
    strength=0.8,
    page="ib.gdr.gdrcopy",
    title="GDRCopy cannot be opened: /dev/gdrdrv is not here (module not loaded, or not let into this container)",
    why="The gdrdrv device is missing or not permitted here.",
    pattern=re.compile(r"ail|No such|denied|cannot"),
)
says(
    "gdrcopy-module",
    "gdr_open error: Is gdrdrv driver installed and loaded?",  # GDRCopy's own tests
    "Error: gdrcopy requires gdrdrv",
    cause="ib.gdr",
    page="ib.gdr.gdrcopy",
    strength=0.86,
    title="GDRCopy finds no gdrdrv: the module is not loaded, or its device not let into this container",
    why="GDRCopy opens /dev/gdrdrv, which its kernel module makes.",
)
says(
    "qp-mtu",
    "qpn {qpn:int} mtu {mtu:int}",
    why="The path MTU a queue pair was set up with (enum: 3 = 1024, 4 = 2048, 5 = 4096).",
)
says("ib-mtu-listing", "active_mtu:{mtu} (", why="A port's active MTU.")

says(
    "verbs-device-list",
    "device{}node GUID",
    rows=2,
    why="The heading of ibv_devices; below it a line of dashes, then a device in each line.",
    pattern=re.compile(r"\bdevice\s+node GUID\s*$"),
)
says(
    "umad-unanswered",
    "umad ({way}) bad status 110; Connection timed out",
    role=Role.SYMPTOM,
    cause="ib.retry-exceeded",
    strength=0.46,
    fold="management datagrams without an answer",
    title="a port of the fabric does not answer a management datagram ({way})",
    why="ibnetdiscover, ibqueryerrors and their kin ask each port in turn; 110 is a time-out. The numbers behind the last comma of the way are the ports that lead there: 'ibtracert' and 'smpquery -D' follow them.",
)
says(
    "adapter-driver-not-loaded",
    "Failed loading kernel module {module:word}:",  # openibd
    "Loading Mellanox {module:word} HCA driver{}FAILED",
    "could not insert '{module:word}'",  # modprobe
    "could not insert module {module:word}",  # insmod
    cause="ib.device-not-found",
    page="ib.device-not-found.no-driver",
    strength=0.86,
    title="the adapter's driver cannot be loaded ({module})",
    why="It was not built for this kernel, does not fit the other modules (a mix of MLNX_OFED and the kernel's own), Secure Boot refuses it, or another module holds the old one. dmesg says which.",
    where=lambda groups, line: (
        "File exists" not in line  # it is loaded already
        and re.match(
            r"(?:mlx[45]|ib_core|ib_uverbs|rdma_ucm|irdma|bnxt_re|efa\b|hns_roce)", groups["module"], re.IGNORECASE
        )
        is not None
    ),
)
says(
    "driver-container-stops",
    "Storage modules are loaded for current driver, terminating",
    "is used and will FAIL driver reload",
    "Drivers inventory folder unreachable",
    "awating DTK compilation",
    "Failed to determine RHEL version for OCP DTK driver build",
    "Failed to discover DKMS module from",
    cause="ib.device-not-found",
    page="ib.device-not-found.driver-failed",
    strength=0.84,
    title="the network operator's driver container (MOFED, DOCA-OFED) ends before it has loaded the adapters' driver",
    why="It replaces the kernel's driver by its own, and does not where other modules (storage: UNLOAD_STORAGE_MODULES) hold the old one or it cannot be built for this kernel.",
)
says(
    "verbs-abi",
    "Driver {driver:word} does not support the kernel ABI of {abi:int} (supports {supported}) for device",
    "query_device({driver}) returned {code:int}: Inappropriate ioctl for device",
    "query_device: invalid comp_mask",
    cause="ib.device-not-found",
    page="ib.device-not-found.driver-failed",
    strength=0.92,
    title="the verbs library here does not fit the kernel driver of the adapters: {driver}",
    why="rdma-core here (often the image's) knows another release of the adapter's kernel driver: it sees no device, whatever state "
    "the ports are in. The host's vendor package, or an rdma-core of its age, belongs into the image.",
)
says(
    "psm-unit",
    "Driver initialization failure on /dev/",  # the first PSM, of TrueScale
    "PSM2 can't open hfi unit",
    "PSM3 can't open nic unit",
    "PSM2 was unable to open an endpoint",
    "assign_context command failed: {error}",
    "PSM Could not find an OPA Unit",
    cause="ib.device-not-found",
    strength=0.66,
    title="PSM, the library of Omni-Path (PSM3: of Ethernet adapters, too), cannot open an adapter",
    why="No hfi1 device or link in this process, or more processes on the host than the adapter has contexts ('Device or resource busy': "
    "PSM2_RANKS_PER_CONTEXT lets them share).",
)

says(
    "mlx5-completion",
    "mlx5: {host}: got completion with error",
    role=Role.SYMPTOM,
    cause="ib.retry-exceeded",
    strength=0.5,
    title="the HCA's driver reports a failed RDMA operation",
    why="libmlx5 prints each completion that carries an error; its dump and NCCL's own line tell which error.",
)
says(
    "dpdk-completion",
    "MLX5 Error CQE: at [",
    "Unexpected CQE error syndrome",
    role=Role.SYMPTOM,
    cause="ib.qp-connect",
    strength=0.4,
    fold="failed requests of DPDK's mlx5 driver",
    title="the adapter refused requests of a DPDK program",
    why="DPDK's mlx5 driver prints each completion that carries an error; byte 55 of its dump is the syndrome.",
)

says(
    "nic-counts-differ",
    "Detected mixed local Net device counts across ranks (min {least:int}, max {most:int})",
    "Detected mixed local CollNet device counts across ranks (min {least:int}, max {most:int})",
    cause="ib.device-not-found",
    strength=0.78,
    title="the ranks see different numbers of adapters ({least} to {most})",
    why="An adapter is down, filtered or missing in the container on some node; NCCL 2.30+ compares the counts.",
    where=lambda groups, line: "Ignoring" not in line or "WARN" in line,
)
says(
    "link-could-be",
    "( Could be {what})",
    cause="net.slow",
    strength=0.62,
    title="a link runs slower than both of its ends can; it could be {what}",
    why="iblinkinfo compares the width and speed that a link came up with to what its ports support: a cable, a transceiver or a dirty end.",
)

# --- what NCCL_NET names
_BUILT_IN = re.compile(r"IB|Socket", re.IGNORECASE)  # what NCCL_NET can name without a plugin
# An interface, an adapter, a word for either: what people set NCCL_NET to, and no network is called.
NO_NETWORK = re.compile(
    r"(?:ib|eth|em|bond|team|br|vlan|hsn|rdma|efa)-?\d[\w.:-]*|(?:en[opsx]|ib[ps]|wl[op])\d\S*|(?:mlx[45]|bnxt_re|irdma)_?\w*|rocep\w+|"
    r"lo|docker\w*|infini-?band|ibv|(?:ib_?)?verbs|roce(?:v2)?|rdma|sockets|tcp|eth(?:ernet)?",
    re.IGNORECASE,
)
says(
    "network-not-found",
    "Error: network {network} not found",
    "network {network:word} not found",
    where=lambda groups, line: _BUILT_IN.fullmatch(groups["network"]) is not None,
    cause="ib.device-not-found",
    strength=0.75,
    title="the network named by NCCL_NET is not available: {network}",
    why="NCCL_NET names NCCL's own InfiniBand network, and there is no usable HCA.",
)
says(
    "plugin-network-not-found",
    "Error: network {network} not found",
    "network {network:word} not found",
    where=lambda groups, line: (
        _BUILT_IN.fullmatch(groups["network"]) is None and NO_NETWORK.fullmatch(groups["network"]) is None
    ),
    cause="net.plugin",
    strength=0.78,
    title="NCCL_NET names a network of a plugin that is not loaded: {network}",
    why="Only a plugin provides this network: it is missing, cannot be loaded, or found no device.",
)
says(
    "no-such-network",
    "Error: network {network} not found",
    "network {network:word} not found",
    where=lambda groups, line: (
        _BUILT_IN.fullmatch(groups["network"]) is None and NO_NETWORK.fullmatch(groups["network"]) is not None
    ),
    cause="env.bad-nccl-var",
    strength=0.93,
    title="NCCL has no network {network} (NCCL_NET): it has IB, Socket, and what a plugin calls its own",
    why="NCCL_NET chooses the transport. An interface is chosen by NCCL_SOCKET_IFNAME, an adapter by NCCL_IB_HCA.",
)
