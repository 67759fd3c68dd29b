"""What carries data beside NCCL's own networks: plugins (libfabric, TCPX, SHARP), UCX, and MPI's transports over them."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

says(
    "plugin-broken",
    "Plugin load returned {code:int} : {library}: undefined symbol: {symbol}",
    "Plugin load ({library}) returned {code:int} : {text}undefined symbol",
    "Plugin load returned {code:int} : {library}: version `{version}' not found",
    "NET/Plugin{}undefined symbol",
    "NET/Plugin{}wrong ELF class",
    "dlopen {library}libnccl-net{}failed",
    cause="net.plugin",
    strength=0.74,
    title="the network plugin is there but cannot be loaded",
    why="The plugin's library was built against other libraries than those it meets here; NCCL goes on with its own networks, usually sockets.",
    where=lambda groups, line: "No such file" not in line,
)
_LACKS = re.compile(r"(?:: |dlerror=)(?P<library>(?!lib[nr]ccl)[\w.+-]+\.so[\w.]*): cannot open shared object file")
says(
    "plugin-lacks",
    "NET/Plugin{}: cannot open shared object file",
    why="The network plugin itself is there; a library that it was linked with is not, and the loader refuses it.",
    pattern=_LACKS,
)
says(
    "plugin-misfit",
    "NET/Plugin: {reason} (required by {library})",
    why="The loader's reason not to load a network plugin.",
)
says(
    "plugin-missing",
    "libfabric.so.1: cannot open shared object file",
    "Failed to initialize any NET plugin",
    "libnccl-net{name:word}: cannot open",
    "Failed to initialize NET plugin {plugin}",
    "External network plugin {plugin} is unsupported",
    "NCCL_NET_PLUGIN={plugin}: not found",
    "libnccl_ofi",
    "NET/FasTrak{}fail",
    "NET/FasTrak{}rror",
    "NET/TCPX{}fail",
    "NET/TCPX{}rror",
    "tcpgpudmarxd",
    "fastrak{}unimplemented",
    "RxDM{}fail",
    "guest config checker",
    "Guest Config Checker",
    "gIB Guest Config",
    "NET/gIB",
    "shim plugin",
    "ncclNet{}incompatible",
    cause="net.plugin",
    strength=0.84,
    title="the network plugin is missing, incompatible or misconfigured",
    why="An external network plugin did not load or did not accept its environment.",
    where=lambda groups, line: (
        bool(
            re.search(
                r"WARN|rror|ail|cannot open|unsupported|mismatch|isn't set|not set|not found|must be|unimplemented",
                line,
            )
        )
        and "Got completion" not in line  # an RDMA request failed: the plugin is there
        and "libnccl-net.so:" not in line
        and not re.search(r"INFO .*NET plugin (?:IB|Socket)\b", line)  # NCCL's own: no adapter here
    ),
)
says(
    "ofi-init",
    "NET/OFI {}No eligible providers",
    "NET/OFI Couldn't find any optimal provider",
    "NET/OFI No NIC info",
    "NET/OFI Unable to",
    "NET/OFI Could not",
    "NET/OFI {}No provider",
    "NET/OFI Error",
    "NET/OFI Failed",
    "fi_getinfo failed",
    "fi_getinfo() failed",
    "NET/OFI Only EFA provider is supported",
    "NET/OFI {}not found",
    "NET/OFI Call to fi_",
    "NET/OFI Invalid",
    "nccl_net_ofi_{}failed",
    cause="net.plugin",
    strength=0.85,
    title="the EFA plugin (aws-ofi-nccl) found no provider, or a call of libfabric failed in it",
    why="The libfabric plugin found no usable provider, failed in its set-up, or was refused a call.",
    where=lambda groups, line: ("WARN" in line or "rror" in line) and "register memory" not in line,
)
says(
    "ofi-memory",
    "NET/OFI {}nable to register memory",
    "NET/OFI {}ould not register memory",
    "NET/OFI {}ouldn't register memory",
    cause="ib.memlock",
    strength=0.6,
    title="the EFA plugin (aws-ofi-nccl) cannot register memory with the adapter",
    why="The limit on locked memory; for a GPU's memory also a driver that does not give it to the adapter, and over many peers the adapter's own limit on regions. The code behind RC says more.",
    where=lambda groups, line: "WARN" in line or "rror" in line,
)
says(
    "ofi-error",
    "NET/OFI Request {request} completed with error. RC: {code}. Error: {error}",
    "NET/OFI {}completed with error",
    "prov_err: {error}",
    "Unresponsive receiver (",
    "Unresponsive remote (was previously responsive",
    "Unreachable remote (never received a response",
    "fi_cq_readerr{}Unresponsive",
    "rxr_cq_write_tx_error",
    "efa_rdm_{}error",
    "FI_EFA_ERR",
    why="An EFA request failed.",
    where=lambda groups, line: re.search(r":(?:ofi_rxm|verbs|psm\w*|opx|tcp|sockets):", line) is None,
)
says(
    "ofi-too-old",
    "EFA provider requires at least libfabric version {version:num}",
    "requires GDRCopy 2.5+ for forced PCIe copy support",
    cause="net.plugin",
    strength=0.86,
    title="the EFA plugin needs a newer libfabric (or GDRCopy)",
    why="aws-ofi-nccl asks for the version before it starts; the EFA installer brings fitting ones together.",
)
says(
    "ofi-gdr-off",
    "GDR disabled on GDR-supported instance type",
    "GDR support reported to NCCL but then couldn't be configured on an endpoint",
    cause="ib.gdr",
    strength=0.66,
    title="GPUDirect RDMA is off on an instance that has it",
    why="The plugin could register no GPU memory with EFA: no DMA-BUF in the kernel or the driver, or FI_EFA_USE_DEVICE_RDMA=0.",
)
says(
    "ofi-adapters",
    "elected provider is efa",
    "elected Provider is efa",
    why="The plugin for libfabric found adapters of its own (EFA).",
)
says(
    "ofi-over-tcp",
    "elected provider is tcp",
    "elected Provider is tcp",
    "elected provider is sockets",
    "elected Provider is sockets",
    why="aws-ofi-nccl found no adapter that does RDMA, and took libfabric's provider of TCP sockets.",
)
says(
    "efa-instance",
    "Running on {instance:word} platform",
    why="aws-ofi-nccl: on which instance it runs; those for training have EFA.",
    pattern=re.compile(r"NET/OFI Running on (?:p[4-9]|trn|hpc)"),
)
says(
    "ofi-without-gdr",
    "Could not disable CUDA API usage for HMEM, disabling GDR",
    "Need to force simple protocol: GDR not supported",
    why="aws-ofi-nccl found no GPUDirect RDMA: this instance type has none, or libfabric and driver do not give it.",
)
says(
    "efa-internal",
    "Unable to write to EQ: {} err: {error} prov_errno",
    "Libfabric EFA provider has encountered an internal error",
    cause="net.plugin",
    strength=0.74,
    title="libfabric's EFA provider met an error that it cannot report, and ends the process: {error}",
    why="The provider aborts where the program gave it no event queue for such errors; the numbers beside it, "
    "and what libfabric warned of before, say what failed.",
)
says(
    "efa-fork",
    "ibfabric EFA provider is operating in",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.9,
    title="libfabric's EFA provider ends the process: it made a child process (fork) after memory was registered",
    why="Before kernel 5.13 a child takes pages from its parent that the adapter reads. Its own text names the variable (FI_EFA_FORK_SAFE, formerly RDMAV_FORK_SAFE); rdma-core has to be 31.1 or later.",
)
says(
    "efa-memory",
    "nable to set memops for ",
    "Failed to perform cuPointerSetAttribute: ",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.8,
    title="libfabric's EFA provider asks CUDA for what memory from cuMemCreate does not have (synchronous memops)",
    why="NCCL allocates with cuMemCreate since 2.19. EFA's installer 1.29.1 and later ask for it no more, earlier ones do unless FI_EFA_SET_CUDA_SYNC_MEMOPS=0.",
    where=lambda groups, line: "libfabric:" in line,
)
says(
    "libfabric-warn",
    "<warn> {message}",
    "libfabric:{message}",
    why="A warning of libfabric.",
    where=lambda groups, line: ("libfabric" in line and "<warn>" in line) or "cxi" in line,
)
says(
    "fabric-domain",
    "Couldn't open a fabric access domain",
    "Failed to find valid default rgroup and vni",
    "no valid VNI",
    "cxip_nic_{}rgroup",
    "fi_domain failed",
    "fi_domain: ",
    "fi_endpoint failed",
    "fi_enable failed",
    "fi_av_insert",
    "Couldn't allocate endpoint",
    "Couldn't {}NET/OFI",
    "NET/OFI Couldn't",
    "NET/OFI {}RC: -",
    "OFI{}fi_getinfo",
    "No provider found",
    "provider {}not available",
    "SLINGSHOT_VNIS",
    "cxil_{}failed",
    "FI_CXI_",
    "efa{}not supported",
    "EFA{}not found",
    "Failed to initialize rdma protocol",
    "RDMA protocol initialization failed",
    cause="net.plugin",
    strength=0.83,
    title="the libfabric plugin could not open the fabric",
    why="Opening the fabric's domain or endpoint failed: no VNI or service for the job (Slingshot), no EFA device, or a provider that does not fit.",
    pattern=re.compile(r"rror|ail|WARN|warn|not |no |No |Couldn't|RC: -"),
)
says(
    "tcpxo-no-start",
    "Could not obtain NIC mappings from RxDM",
    "Failed to initialize DXS: {error}",
    "Failed to initialize LLCM: {error}",
    "Agent is expected to be run with {wanted:int} GPU NICs, but got {found:int}",
    cause="net.plugin",
    strength=0.84,
    title="FasTrak (GPUDirect-TCPXO) cannot start on this host",
    why="The plugin asks the receive-datapath manager (RxDM) of its host: not running, not the same pod or release, or too few of its NICs are in the pod.",
)
says(
    "tcpxo-daemon-gpus",
    "Number of GPUs detected in the PCI tree ({pci:int}) does not match number of CUDA devices ({cuda:int})",
    cause="net.plugin",
    strength=0.9,
    title="GPUDirect-TCPXO's daemon sees {pci} GPUs in the PCI tree and CUDA {cuda}: it stops",
    why="The receive daemon (RxDM) needs all of the host's PCI devices: without hostNetwork, or with devices left out of the pod, one is missing. The plugin then waits for the daemon.",
)
says(
    "tcpxo-daemon",
    *(
        f"{level}{{day:int}} {{}} {program}{{}}] {{error}}"  # glog's levels: error, fatal
        for level in "EF"
        for program in ("fastrak_gpumem_manager", "tcpgpudmarxd", "buffer_mgmt_daemon")
    ),
    cause="net.plugin",
    strength=0.72,
    title="the daemon of GPUDirect-TCPX(O) fails: {error}",
    why="The receive daemon of its host does for the plugin what the NICs need; its own errors stand before what the workers tell.",
)
says(
    "tcpxo-waits",
    "waiting for rxdm",
    "waiting for RxDM",
    role=Role.SYMPTOM,
    fold="the plugin waits for its daemon",
    why="NCCL's plugin starts only when the receive daemon of its host answers; the daemon's own log says why it does not.",
)
says(
    "tcpx-waits",
    "ctrl timeout cnt {count:int}, nanos {nanos:int}",
    role=Role.SYMPTOM,
    cause="app.straggler-timeout",
    strength=0.42,
    fold="GPUDirect-TCPX waits for its peers",
    title="GPUDirect-TCPX waits for a peer that has sent nothing yet",
    why="The plugin says every ten seconds that it waits: for a rank that is late (it compiles, loads or starts), or one whose packets are lost.",
)
says(
    "tcpx",
    "tcpxCommProgress",
    "tcpxResult_t",
    "NET/FastSocket",
    "net_fastsocket",
    cause="net.plugin",
    strength=0.68,
    title="the cloud's network plugin reports trouble",
    why="The TCPX or FastSocket plugin waits for or loses its peers.",
    where=lambda groups, line: (
        "WARN" in line and not re.search("incoming CPU|Maximum retry reached|ctrl timeout", line)  # see there
    ),
)
says(
    "sharp-error",
    "SHARP{}rror",
    "sharp_coll_init failed",
    "sharp_init_session failed",
    "SHArP{}failed",
    "ERROR no AM service record found",
    "sharp_alloc_groups",
    "sharp_coll_comm_init",
    "COLLNET/SHARP{}fail",
    "SHARP coll{}fail",
    "failed to create group{}SHARP",
    "sharpd{}rror",
    "sharp_am[{pid:int}]: {error}",
    "SHARP job",
    "ERROR sharp_",
    "ERROR SHArP Job",
    "ERROR Job error in sharp_",
    "ERROR Failed to lock SAT tree",
    cause="net.plugin",
    strength=0.72,
    title="SHARP (CollNet) could not be used",
    why="The SHARP plugin or its aggregation manager failed; NCCL falls back unless CollNet is required.",
    where=lambda groups, line: "NVLS" not in line and bool(re.search(r"rror|ail|no AM|Cannot|ERROR", line)),
)
_PEER_GONE = re.compile(
    r"reset by (?:remote )?peer|onnection refused|ndpoint (?:timeout|is not connected)|Remote disconnect|"
    r"tcp_ep \S{1,80} .{0,200}(?:send|recv)\S* failed",
    re.IGNORECASE,
)
says(
    "ucx-error",
    "UCX  ERROR {error}",
    "UCX ERROR {error}",
    "UCC  ERROR {error}",
    "CL_{layer:word} ERROR {error}",
    "TL_{layer:word} ERROR {error}",
    "ucp_{call:word} failed: {error}",
    "ucp_{call:word} failed",
    "NET/UCX{}fail",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.68,
    title="UCX or UCC reports an error: {error}",
    why="UCX (plugin or MPI transport), or UCC (the collectives upon it, beside NCCL; its layers are called CL and TL), failed.",
    where=lambda groups, line: (
        re.search(r"UC[XC]|ucp_|\b[CT]L_", line) is not None  # no NCCL_DEBUG
        and not re.search(
            r"ibv_|mlx5dv_|Transport retry count|wqe\[\d+\]: |Message truncated|rdma_create_event_channel failed|open CM on component rdmacm|"
            r"Request Flushed|WR flushed",
            line,
        )
        and not _PEER_GONE.search(line)
    ),
)
says(
    "ucx-lacks",
    "transport {names} is not available, please use one or more of",
    "transports {names} are not available, please use one or more of",
    "device {names} is not available, please use one or more of",
    "devices {names} are not available, please use one or more of",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.46,
    fold="UCX goes without what it was asked for",
    title="UCX is asked for transports or devices that it does not have here: {names}",
    why="UCX_TLS or UCX_NET_DEVICES names a transport or device that this build or host lacks; UCX goes on with the others. Without its cuda ones it takes no GPU memory.",
)
_ADAPTERS = re.compile(r"'(?:mlx\d|rocep|rdma|ibp|bnxt|efa|irdma|hns|erdma)\w*[\d_]")
says(
    "ucx-no-adapter",
    "devices {names} are not available, please use one or more of: {there}",
    "device {names} is not available, please use one or more of: {there}",
    cause="ib.device-not-found",
    strength=0.74,
    title="UCX does not find the adapters that it is asked for: {names}",
    why="UCX_NET_DEVICES names RDMA devices that are not on this host, or not in its container; what is there stands behind it.",
    where=lambda groups, line: _ADAPTERS.search(groups["names"]) is not None and not _ADAPTERS.search(groups["there"]),
)
says(
    "ucx-peer-gone",
    "UCX  {level:word} {error}",
    "UCX {level:word} {error}",
    role=Role.SYMPTOM,
    cause="net.peer-lost",
    strength=0.42,
    fold="UCX lost a peer",
    title="a peer does not answer UCX (any more): {error}",
    why="The other process died, aborted or is not there yet; or the way to it broke. Its own log says which.",
    where=lambda groups, line: groups["level"] in ("ERROR", "DIAG", "WARN") and _PEER_GONE.search(line) is not None,
    wake=(
        "by remote peer",
        "Connection refused",
        "ndpoint timeout",
        "ndpoint is not connected",
        "by peer",
        "tcp_ep 0x",
    ),
)
_FABTESTS = "(): {file}:{line:int}, ret=-{code:int} ({error})"  # fi_pingpong's, too
_FABRIC_CALL = re.compile(r"\bfi_\w+\(\): ")
says(
    "fabric-call",
    _FABTESTS,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.66,
    title="a call of libfabric fails: {error}",
    why="libfabric's own tests name the call that its provider refused. fi_getinfo with 'No data available': no provider fits what was asked for; `fi_info -p PROVIDER` shows what is there.",
    where=lambda groups, line: groups["code"] != "12" and _FABRIC_CALL.search(line) is not None,
)
says(
    "fabric-call-nomem",
    _FABTESTS,
    cause="ib.memlock",
    strength=0.8,
    title="libfabric's provider cannot allocate what an endpoint needs: locked memory, or huge pages",
    why="ENOMEM of an endpoint or a registration is a limit of the adapter's memory (ulimit -l, vm.nr_hugepages; EFA takes huge pages), not of the host's.",
    where=lambda groups, line: groups["code"] == "12" and _FABRIC_CALL.search(line) is not None,
)
# Ethernet has no LIDs: 0, or what UCX makes a UDP port of; on InfiniBand every GID begins like that.
_LINK_LOCAL = re.compile(r"\bdlid=(?:0|49[1-9]\d\d|[5-6]\d{4})\b.*\bdgid=fe80:.*\bsgid_index=\d")
says(
    "ucx-link-local",
    "ibv_create_ah({what}) failed",
    "ibv_create_ah({what}) for {way} failed",
    cause="ib.gid-index",
    strength=0.82,
    title="UCX takes the link-local GID of a RoCE port, which does not lead to the peer",
    why="An address handle towards fe80:: on Ethernet: index 0 or 1 of the GID table. UCX_IB_GID_INDEX, or the choice of UCX without it, has to be the RoCE v2 entry with the IPv4 address.",
    where=lambda groups, line: _LINK_LOCAL.search(line) is not None,
)
says(
    "ucx-verbs",
    "ibv_modify_qp({what}) failed",
    "ibv_create_ah({what}) failed",
    "ibv_create_ah({what}) for {way} failed",
    "ibv_create_cq({what}) failed",
    "mlx5dv_devx_obj_create({what}) failed",
    "mlx5dv_devx_obj_modify({what}) failed",
    "mlx5dv_devx_alloc_uar() failed",
    cause="ib.qp-connect",
    page="net.plugin.transport",
    strength=0.76,
    title="UCX cannot set up a queue pair of the adapter",
    why="Verbs or the adapter's firmware refused a queue pair, what belongs to it or an address handle: the port's state, its GID, the fabric's route, the partition key, or DEVX that the adapter, its driver or a container does not admit.",
    where=lambda groups, line: "Cannot allocate memory" not in line and not _LINK_LOCAL.search(line),
)
says(
    "ucx-cuda-ipc",
    "cuda_ipc{}UCX  ERROR {error}",
    "cuda_ipc{}UCX ERROR {error}",
    cause="gpu.p2p",
    strength=0.78,
    title="UCX cannot share GPU memory between processes (CUDA IPC): {error}",
    why="UCX's transport between GPUs of one host failed; UCX_TLS without cuda_ipc is the test. An invalid context means that UCX was called before the process, or that thread, had chosen its GPU.",
)
says(
    "ucx-py-unreachable",
    "called with status -6: Destination is unreachable",
    role=Role.SYMPTOM,
    cause="net.master-unreachable",
    strength=0.46,
    fold="UCX-Py reaches no peer",
    title="UCX reaches the other end over none of its transports",
    why="Nobody listens there, an address of a network that this host lacks, or UCX_TLS and UCX_NET_DEVICES leave out what both ends have.",
)
says(
    "mpich-ofi",
    "OFI {call} failed (",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.64,
    title="MPI's transport over libfabric fails ({call})",
    why="MPICH (Cray MPICH, Intel MPI) hands a request to libfabric, and its provider (cxi, efa, psm) answers with an error: the words behind it are the provider's. What NCCL does over its own plugin does not depend on it.",
    where=lambda groups, line: "NET/OFI" not in line,  # that is NCCL's own plugin
)
says(
    "open-mpi-ofi",
    "Open MPI failed an OFI Libfabric library call ({call}).",
    role=Role.SYMPTOM,
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.48,
    fold="Open MPI does not start on libfabric",
    title="Open MPI's transport over libfabric does not start ({call})",
    why="libfabric's provider refuses the call: 'Function not implemented' is a provider that wants more than this Open MPI asks for (Slingshot's cxi: a newer Open MPI), or one without an adapter. '--mca mtl ^ofi' goes without it.",
)
says(
    "charm-ofi",
    "Reason: OFI::{call} error",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.62,
    title="Charm++'s transport over libfabric fails ({call})",
    why="The provider that Charm++ prints at its start (Charm++>ofi> provider) refused a call.",
)
says(
    "ucx-device-pointer",
    "Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.48,
    title="a process touched memory that its CPU may not: often GPU memory that UCX, or the MPI above it, took for the host's",
    why="UCX's handler tells any crash of the process; frames of UCX or MPI below it make it likely: a GPU buffer given to a UCX or MPI without CUDA or ROCm (ucx_info -d lists cuda_copy where it is there), or UCX_TLS that leaves cuda_copy out.",
)
says(
    "oneccl-variable",
    "set CCL_{setting:word} explicitly",
    "CCL_{name:word}: unexpected value: {value}, expected values:",
    cause="env.bad-nccl-var",
    strength=0.88,
    title="oneCCL refuses a variable's value, or lacks one that this launcher makes necessary",
    why="oneCCL names the variable itself; without mpirun it knows neither the processes of the host nor how they share memory.",
)
says(
    "oneccl-devices",
    "ze_fd_manager.cpp:{line:int} {step:word}: ",
    cause="sys.container",
    strength=0.84,
    title="oneCCL cannot open the GPUs' files in /dev/dri, or hand them to its neighbours ({step})",
    why="Each process opens what is in /dev/dri/by-path and shares it with the others of its host: a container lacks some of it (--device /dev/dri "
    "-v /dev/dri/by-path:/dev/dri/by-path), the user is not in the group render, or CCL_ZE_IPC_EXCHANGE=pidfd has no CAP_SYS_PTRACE.",
    where=lambda groups, line: "CCL_ERROR" in line or "EXCEPTION" in line,
)
says(
    "oneccl-error",
    "|CCL_ERROR| {error}",
    "oneCCL: {place}EXCEPTION: {error}",
    cause="net.plugin",
    page="net.plugin.transport",
    strength=0.6,
    title="oneCCL (Intel's collectives) reports an error: {error}",
    why="oneCCL stands in NCCL's place on Intel's GPUs and CPUs; its first error line names the step. pthread_create returns 22 where CCL_WORKER_AFFINITY, or the launcher's pinning, names CPUs that the process may not use.",
)
says(
    "level-zero-ipc",
    "ze error at zeMemOpenIpcHandle",
    "ze error at zeMemGetIpcHandle",
    "ze error at zeMemPutIpcHandle",
    cause="gpu.p2p",
    page="gpu.p2p.beside-nccl",
    strength=0.84,
    title="a GPU cannot open the memory of another one (Level Zero IPC)",
    why="Intel's driver refuses the handle: kernel and compute runtime do not support it for these GPUs, the peer's GPU is hidden by ZE_AFFINITY_MASK, or the ranks share neither /dev/dri nor a PID namespace.",
    where=lambda groups, line: "OUT_OF_" not in line,
)
