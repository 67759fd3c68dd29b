"""GPUs: hardware faults, drivers, visibility, memory, peer-to-peer, fabric."""

from __future__ import annotations

import re

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

# A monitor's line that says that there is none of it.
_NONE = re.compile(
    r"(?:count|total|totaling|errors?|failures?|violations?|lost|reset|reasons?)\s*[:=]?\s*(?:0(?:\.0+)?\b|none\b|no\b|false\b)|[ :]0 (?:row|GPUs?|errors?|uncorrect|thermal|gpu)",
    re.IGNORECASE,
)
_IMEX = re.compile(
    r"IMEX|memory reference|export ref\b|\b(?:un)?(?:im|ex)port (?:request|response)|\bnode id\b|\bto node \d"
)
_HOT = 88  # degrees Celsius from which data-centre GPUs slow down

# --- hardware, from the kernel log (NVRM Xid; catalogue: NVIDIA's Xid documentation)
_XID = (
    "Xid (PCI:{pci}): {xid:int},",
    "Xid (PCI:{pci}): {xid:int} ",
    "Xid: {xid:int}",
    "Xid {xid:int}",
    "XID {xid:int}",
    "xid={xid:int}",
    "xid: {xid:int}",
    "XID: {xid:int}",
    "XID error {xid:int}",
    "Xid error {xid:int}",
    "XidCriticalError: Xid={xid:int} on Device=",  # the device plugin of Kubernetes
    'DCGM_FI_DEV_XID_ERRORS{}"} {xid:int}',
)


says(
    "xid",
    *_XID,
    why="The driver's own fault number; what each proves is in the catalogue (see the diagnosis of the same name).",
    where=lambda groups, line: (
        re.search(r"\b(?:will|may|might|would|could)\b[^.:]{0,120}\bXid\b", line, re.IGNORECASE) is None
    ),
)
says(
    "sxid",
    "SXid (PCI:{pci}): {xid:int}",
    "SXid {xid:int}",
    "nvidia-nvswitch{}: SXid",
    why="The NVSwitch driver's fault number; what each proves is in the catalogue (see the diagnosis of the same name).",
)
says(
    "fell-off-bus",
    "GPU has fallen off the bus",
    "fallen off the bus and is not responding",
    "GPU is probably locked",
    "GSP-CrashCat",
    "GPU is lost",
    "GPU lost",
    "Unable to determine the device handle for GPU",
    "requires reset",
    "GPU requires reset",
    "The GPU likely needs to be reset",
    "waiting for RPC response from GPU",
    "NVML_ERROR_GPU_IS_LOST",
    "_kgspIsHeartbeatTimedOut: ",  # drivers from 590 on, before any Xid
    "_kgspLogRpcTimeout: ",
    "GSP_RM",
    cause="gpu.fell-off-bus",
    strength=0.95,
    title="a GPU is gone or needs a reset",
    why="The driver cannot talk to the GPU: it fell off the bus, or its firmware hangs.",
    where=lambda groups, line: not _NONE.search(line),
)
says(
    "adapter-not-initialised",
    "RmInitAdapter failed",
    "rm_init_adapter failed",
    "The NVIDIA probe routine failed",
    "nvidia: probe of {pci} failed with error",
    "amdgpu {pci}: Fatal error during GPU init",
    "amdgpu: Fatal error during GPU init",
    "amdgpu: probe of {pci} failed with error",
    "Booter failed with non-zero error code: ",
    why="The driver could not start a GPU: it does not answer, or the driver's own files do not fit (see the diagnosis of the same name).",
)
says(
    "amdgpu-firmware-silent",
    "SMU: I'm not done with your previous command",
    "failed to send message {number:word} ret is",
    "last message was failed ret is",
    role=Role.SYMPTOM,
    cause="gpu.fell-off-bus",
    strength=0.46,
    fold="an AMD GPU's firmware does not answer",
    title="an AMD GPU's power firmware (SMU) does not answer its driver",
    why="Now and then it is only late. If it goes on the GPU needs a reset, mostly of the whole host.",
)
says(
    "mig-refused",
    "Failed to display GPU instances: Insufficient Permissions",
    "Failed to display compute instances: Insufficient Permissions",
    "a GPU instance on GPU {gpu} using profile {profile}: Insufficient Permissions",
    cause="gpu.mig",
    strength=0.72,
    title="MIG instances may not be listed or made by this user",
    why="nvidia-smi mig needs root, or the capabilities below /proc/driver/nvidia/capabilities (mig/config, mig/monitor) in the container.",
)
says(
    "driver-waits",
    "] uvm_spin_loop+0x",
    cause="gpu.fell-off-bus",
    role=Role.SYMPTOM,
    strength=0.46,
    fold="a process waits in the GPU's driver",
    title="a process waits in the GPU's driver (nvidia_uvm) for an answer of the GPU",
    why="A stack of /proc/PID/stack or SysRq. If it stays there the GPU or its firmware does not answer, and only a reset ends the process.",
)
says(
    "driver-files-differ",
    "NVRM: API mismatch",
    "No firmware image found",
    "Direct firmware load for nvidia/{file} failed with error",
    'Failed to load {}firmware "amdgpu/{file}"',
    cause="gpu.driver",
    page="gpu.driver.mismatch",
    strength=0.93,
    title="the driver's kernel module and its other files are of different releases",
    why="The driver was updated or removed while the old module stayed loaded, or GSP's firmware of the module's release is not installed.",
)
says(
    "driver-refuses-gpu",
    "NVRM: installed in this system is not supported by",
    "NVRM: installed in this system requires use of",  # the open kernel modules, from Blackwell on
    "supported through the NVIDIA {release} Legacy drivers",
    cause="gpu.driver",
    strength=0.93,
    title="this release of the driver does not support the GPU, or only with the other kind of kernel module",
    why="The kernel log names what the GPU needs: a newer or a legacy driver, or the open kernel modules.",
)
says(
    "no-memory-region",
    "This PCI I/O region assigned to your NVIDIA device is invalid",
    "The system BIOS may have misconfigured your GPU",
    cause="gpu.not-visible",
    strength=0.93,
    title="a GPU got no memory region: the BIOS or the hypervisor does not map it (Above 4G decoding, size of BARs)",
    why="One of the GPU's BARs has the size or the address 0, so the driver refuses it.",
)
says(
    "ecc-error",
    "uncorrectable ECC error encountered",
    "Uncorrectable ECC",
    "double bit error",
    "Double Bit ECC",
    "row remapping failure",
    "Row remapping failure",
    "Row Remapping Failure",
    "Remapping Failure Occurred{}: Yes",
    "SRAM Threshold Exceeded{}: Yes",
    "Contained ECC error",
    "Uncontained ECC error",
    "row remapper: {}pending",
    cause="gpu.ecc",
    strength=0.95,
    title="uncorrectable memory error on a GPU",
    why="The GPU's memory had an error that ECC cannot correct: reset or replace.",
    where=lambda groups, line: (
        not re.search(
            r"(?:Uncorrectable ECC|Double Bit ECC)\D{0,40}(?::|=)?\s*(?:0|N/A)\s*$|DIMM|\bEDAC\b|Memory #0x", line
        )
        and not _NONE.search(line)
    ),
)
says(
    "nvlink-error",
    "uncorrectable NVLink error",
    "Uncorrectable NVLink error",
    "cudaErrorNvlinkUncorrectable",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_CONTAINED",
    "cudaErrorContained",
    "Invalid access of peer GPU memory over nvlink",
    "NVLink fatal error",
    "nvlink: Link {}down",
    "NVLink {}is inactive",
    "Link {:int}: <inactive>",
    "P2P is disabled between NVLINK connected GPUs {a} and {b}",
    "Nvlink Data Error",
    "LTSSM Fault",
    cause="gpu.nvlink",
    strength=0.92,
    title="NVLink is down or reports errors",
    why="An NVLink is inactive or failed; NCCL says so when the driver reports no P2P between NVLink-connected GPUs.",
)

says(
    "ecc-counters",
    "Pending {}: Yes",
    "RAM Uncorrectable{}: {count:int}",
    cause="gpu.ecc",
    strength=0.64,
    title="a GPU counts uncorrectable memory errors, or a row waits to be remapped",
    why="nvidia-smi -q: uncorrectable errors are counted, or a remapping is pending until the GPU is reset. The aggregate counters also hold errors of long ago.",
    where=lambda groups, line: (
        re.search(r"(?:Pending|RAM Uncorrectable[ \w-]{0,20}?) *: (?:Yes|[1-9])", line) is not None
    ),
)

# --- fabric manager, NVLS, IMEX
says(
    "system-not-ready",
    "ystem not yet initialized",
    "Cuda failure 802",
    "CUDA error 802",
    "cudaErrorSystemNotReady",
    "error code 802",
    "CUDA_ERROR_SYSTEM_NOT_READY",
    "Error 802",
    cause="gpu.fabric-manager",
    strength=0.95,
    title="CUDA is not ready: the fabric manager is not running (error 802)",
    why="CUDA error 802 on NVSwitch machines: the fabric manager has not configured the switches.",
)
says(
    "fabric-manager",
    "nvidia-fabricmanager.service: Failed",
    "nvidia-fabricmanager.service: Control process exited",
    'fabricmanager.cfg" failed! Exit code',  # its own script of the start
    "Fabric Manager failed",
    "fabric manager failed",
    "fabricmanager.service: Main process exited",
    "failed to initialize NVSwitch",
    "fabric manager NVIDIA GPU driver interface version {a} don't match",
    "Fabric manager version{}mismatch",
    "fabric manager {}version mismatch",
    "Active: failed {}fabric",
    "Unit nvidia-fabricmanager.service {}not be found",
    "is different from the version of the fabric manager",
    "request to query NVSwitch device information from NVSwitch driver failed",
    "Fabric Manager {}not running",
    "fabricmanager{}inactive (dead)",
    "failed to start Fabric Manager",
    "fabric manager config file item: {item:word} has an invalid value",
    "Failed to start NVIDIA fabric manager",
    "doesn't match with driver version",
    "versions don't match",
    cause="gpu.fabric-manager",
    strength=0.95,
    title="the fabric manager does not run or does not match the driver",
    why="Without a matching fabric manager NVSwitch machines have no NVLink and CUDA returns 802.",
    where=lambda groups, line: (
        ("abric" in line or "NVSwitch" in line or "don't match" in line) and "NOTHING_TO_DO" not in line
    ),
)
says(
    "no-switch-to-manage",
    "NV_WARN_NOTHING_TO_DO",
    role=Role.HARMLESS,
    why="The fabric manager was started on a machine without NVSwitches and ends at once: it is not needed there.",
)
says(
    "fabric-state",
    ": In Progress",
    "NVML_GPU_FABRIC_STATE_IN_PROGRESS",
    "fabric state In Progress",
    cause="gpu.fabric-manager",
    strength=0.9,
    title="the GPU's fabric registration is not completed",
    why="nvidia-smi -q: fabric state In Progress: the fabric manager has not registered this GPU.",
    where=lambda groups, line: (
        re.search(r"(?:^|\s|FABRIC_|[Ff]abric )(?:STATE_IN_PROGRESS|[Ss]tate:?\s*:?\s*In Progress)", line) is not None
    ),
)
says(
    "nvls-bind",
    "Failed to bind NVLink SHARP (NVLS) Multicast memory",
    "usually caused by a system or configuration error in the Fabric Manager or NVSwitches",
    cause="gpu.fabric-manager",
    strength=0.86,
    title="NVLink SHARP multicast memory could not be bound",
    why="Usually the fabric manager's or the switches' state, or too many multicast users.",
    where=lambda groups, line: "Proceeding without" not in line,
)
says(
    "nvls-unsupported",
    "transport/nvls.cc:{}NCCL WARN Cuda failure {code:int} '{error}'",
    "cuMulticast{call:word}",
    "nvls.cc:{}Cuda failure {code:int}",
    why="A multicast call fails in the driver (see the diagnosis of the same name).",
    where=lambda groups, line: "fail" in line or "ERROR" in line or "WARN" in line,
)
says(
    "imex",
    "IMEX",
    "imex-channel",
    "nvidia-imex",
    "available but not working on this system",
    "Domain State: {state:word}",
    "Domain state: {state:word}",
    "- UNAVAILABLE {}- Version",
    "MNNVL is not supported on this system",
    "Cuda failure 800 'operation not permitted'",
    "CUDA_ERROR_NOT_PERMITTED",
    "cuMem{call:word} failed: 800",
    "cuMem{call}failed{}operation not permitted",
    "cuMem{call}Reason=operation not permitted",
    "(is nvidia-imex installed on this node?)",
    cause="gpu.imex",
    strength=0.93,
    title="multi-node NVLink: the IMEX channel is missing or the IMEX daemon does not work",
    why="MNNVL memory cannot be shared: no /dev/nvidia-caps-imex-channels in this container, or the IMEX domain is not ready. CUDA error 800 in cuMem calls says the same.",
    where=lambda groups, line: (
        "IMEX log" not in line
        and any(
            word in line
            for word in (
                "WARN",
                "rror",
                "ail",
                "not ",
                "DOWN",
                "UNAVAILABLE",
                "No such",
                "missing",
                "DEGRADED",
                "INVALID",
            )
        )
    ),
)

# --- visibility and assignment
says(
    "invalid-ordinal",
    "invalid device ordinal",
    "cudaErrorInvalidDevice",
    "CUDA_ERROR_INVALID_DEVICE",
    "Invalid device id",
    "Invalid device {device:int} (totalnDev={total:int})",
    "Device index must be",
    "device >= 0 && device < num_gpus",
    cause="gpu.not-visible",
    strength=0.93,
    title="a process asks for a GPU that it cannot see (invalid device ordinal)",
    why="The device index is not smaller than the number of visible GPUs: more processes than GPUs, or CUDA_VISIBLE_DEVICES is narrower than thought.",
    where=lambda groups, line: "transport/p2p" not in line and "InvalidDeviceFunction" not in line,
)
says(
    "container-without-gpu",
    "The NVIDIA Driver was not detected.",  # NVIDIA's images, also where no GPU is needed
    cause="sys.container",
    strength=0.44,
    title="the container was started without GPUs",
    why="The image's entrypoint finds no driver: the container runtime's hook for GPUs did not run. Harmless in a launcher that computes nothing.",
)
says(
    "no-gpu",
    "No CUDA GPUs are available",
    "no CUDA-capable device is detected",
    "no GPUs found!",
    "Found no NVIDIA driver on your system",
    "No devices were found",
    "No CUDA runtime is found",
    "cudaErrorNoDevice",
    "Cuda failure 100 ",
    "CUDA_ERROR_NO_DEVICE",
    "No HIP GPUs are available",
    "torch.cuda.is_available() returned False",
    'could not select device driver "" with capabilities: [[gpu]]',
    "GPU Count: 0",
    "CUDA unknown error - this may be due to an incorrectly set up environment",
    "no GPU is visible",
    "NVRM: No NVIDIA GPU found",
    "Could not initialize Tensile host: No devices found",  # rocBLAS
    "Failed to initialize NVML: Insufficient Permissions",
    "libcuda.so.1: cannot open shared object file",
    cause="gpu.not-visible",
    strength=0.9,
    title="no GPU is visible to this process",
    why="CUDA finds no GPU: not passed into the container or job, hidden by CUDA_VISIBLE_DEVICES, or no driver.",
)
says(
    "duplicate-gpu",
    "Duplicate GPU detected : rank {rank:int} and rank {other:int} both on CUDA device {device}",
    "Duplicate GPU detected",
    "Multiple ranks detected using the same GPU on this node",
    "Multiple processes within communication group running on same CUDA device",  # XGBoost
    "Multiple Ranks are using the same GPU/Partition",
    cause="gpu.duplicate",
    strength=0.98,
    title="two ranks use the same GPU",
    why="NCCL compares host and PCI bus id (2.30.7+: UUID) of all ranks: the local rank was not used to choose the GPU, or two containers look like one host.",
)
says(
    "mig",
    "MIG-GPU-{}",
    "MIG-{uuid:hex}-",
    "MIG M.",
    "MIG mode",
    "MIG is enabled",
    "MIG instance",
    "Multi-Instance GPU",
    "MIG {:int}g.",
    "MIG devices",
    why="MIG is in use or configured.",
    where=lambda groups, line: not re.search(r"N/A|Disabled|MIG M\.\s*\|", line),
)

# --- memory
_ABSURD = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) ?([KMGTPE])iB")


def _absurd(line: str) -> bool:
    found = _ABSURD.search(line)
    if not found:
        return "more than 1EB memory" in line
    scale = {"K": -2, "M": -1, "G": 0, "T": 1, "P": 2, "E": 3}[found.group(2)]
    return float(found.group(1)) * 1024.0**scale > 4096


says(
    "cuda-oom",
    "CUDA out of memory",
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "CUDA error: out of memory",
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
    "Failed to CUDA calloc",
    "Failed to CUDA malloc",
    "HIP out of memory",
    "HIP error: out of memory",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES{}Available Free mem : 0 MB",
    "NPU out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "RESOURCE_EXHAUSTED: Out of memory",
    "OOM when allocating tensor with shape",
    "Out of memory error on GPU",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "No available memory for the cache blocks",
    "Not enough memory. Please try to increase --mem-fraction-static",
    "out of memory (code 2)",
    "CUDNN_STATUS_ALLOC_FAILED",
    "NvMapMemAllocInternalTagged: {bytes:int} error 12",  # Jetson
    "is less than desired GPU memory utilization",
    cause="gpu.oom",
    strength=0.93,
    title="a GPU ran out of memory",
    why="The allocation that failed names the GPU and the size. NCCL's own buffers need some hundred MB per GPU beside the framework's.",
    where=lambda groups, line: not _absurd(line),
)
says(
    "cuda-oom-absurd",
    "Tried to allocate {size}",
    "more than 1EB memory",
    role=Role.SYMPTOM,
    cause="app.collective-mismatch",
    strength=0.6,
    fold="absurd out-of-memory size",
    title="a rank read a size from a buffer that was never filled: the ranks are in different collectives",
    why="A size of terabytes comes from an unfilled receive buffer of an object collective: ranks ran different collectives, or the send failed.",
    where=lambda groups, line: _absurd(line),
)

# --- faults of kernels
says(
    "illegal-access",
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "cudaErrorIllegalAddress",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "misaligned address",
    "cudaErrorAssert",
    "unspecified launch failure",
    "an illegal instruction was encountered",
    "CUDA_EXCEPTION_",
    "hipErrorIllegalAddress",
    "HSA_STATUS_ERROR_EXCEPTION",  # ROCm's runtime, of a queue whose kernel failed
    "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    "HSA_STATUS_ERROR_MEMORY_FAULT",
    "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION",
    "Memory access fault by GPU node",
    "amdgpu{}hub{}page fault (src_id:",
    cause="gpu.illegal-access",
    strength=0.86,
    title="a kernel on a GPU accessed memory it must not (or hit an assertion)",
    why="Raised by a kernel launched earlier, usually the program's. NCCL's watchdog and proxy meet the same sticky error. Xid 79, 48, 94/95 in the kernel log would make it hardware.",
)
says(
    "rocm-gpu-hang",
    "HW Exception by GPU node-{}GPU Hang",
    cause="gpu.fell-off-bus",
    strength=0.62,
    title="an AMD GPU hangs, and its driver resets it",
    why="ROCm's runtime tells every process on the GPU. A kernel that never ends, the driver, power or the board: the kernel log (amdgpu) says what it saw first.",
)
says(
    "device-assert-line",
    "Assertion `{assertion}` failed",
    ": block: [{}thread: [{}] Assertion",
    cause="gpu.illegal-access",
    strength=0.88,
    title="a device-side assertion failed: {assertion}",
    why="The kernel's own assertion names the bad index or value.",
    where=lambda groups, line: "block:" in line and "thread:" in line,
)

says(
    "driver-still-in-use",
    "Could not unload NVIDIA driver kernel modules, driver is in use",
    "Failed to unload kernel module nvidia{module}: {error}",
    "failed to uninstall nvidia driver components",
    cause="gpu.driver",
    strength=0.74,
    title="the driver's pod cannot replace the driver that the node has loaded: something still uses it",
    why="Pods with GPUs, a display, nvidia-persistenced or a driver installed on the host hold its modules: drain the node, or reboot it.",
)
says(
    "library-not-initialised",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDA error: the resource allocation failed",  # CUBLAS_STATUS_ALLOC_FAILED in cuBLAS's own words (llama.cpp)
    "CUDNN_STATUS_NOT_INITIALIZED",
    cause="gpu.oom",
    strength=0.45,
    title="cuBLAS or cuDNN could not be initialised: usually no GPU memory is left for its handle, or the CUDA context is broken",
    why="The library allocates its workspace at the first call, and tells no reason.",
)
says(
    "library-kernel-failed",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    cause="gpu.illegal-access",
    strength=0.6,
    title="a kernel of cuBLAS or cuDNN failed: usually an earlier kernel broke the CUDA context, or memory was short",
    why="The library names no reason; CUDA_LAUNCH_BLOCKING=1 shows the kernel that failed first, the kernel log an Xid.",
)

# --- drivers
says(
    "driver-too-old",
    "driver version is insufficient for CUDA runtime version",
    "The NVIDIA driver on your system is too old",
    "Driver/library version mismatch",
    "unsupported toolchain",
    "forward compatibility was attempted on non supported HW",
    "the provided PTX was compiled with an unsupported",
    "API mismatch: the client has version",
    "CUDA driver version is insufficient",
    "cudaErrorInsufficientDriver",
    "cudaErrorCompatNotSupportedOnDevice",
    "cudaErrorUnsupportedPtxVersion",
    "unsatisfied condition: cuda>=",
    "Failed to initialize NVML: Driver",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
    "does not support the feature level of the NVIDIA driver",
    "requires a newer driver",
    "compatibility mode is UNAVAILABLE",
    "CUDA initialization: The NVIDIA driver",
    cause="gpu.driver",
    strength=0.94,
    title="the NVIDIA driver does not fit the CUDA libraries or the GPU",
    why="The driver is too old for the CUDA runtime, or does not match its libraries.",
    where=lambda groups, line: line.count("cudaError") < 3,  # a list of errors (NVSHMEM) reports none
)
says(
    "no-code-for-the-gpu",
    "no kernel image is available for execution on the device",
    "No kernel image",
    "cudaErrorNoKernelImageForDevice",
    "is not compatible with the current PyTorch installation",
    "HIP error: invalid device function",
    "hipErrorNoBinaryForGpu",
    "TensileLibrary{name}for GPU arch",  # rocBLAS
    "callbackQueue aborting with status: 0x100f",  # ROCm's HSA_STATUS_ERROR_INVALID_ISA
    "ptxas fatal{}: Value '{architecture}' is not defined for option 'gpu-name'",
    "Unsupported gpu architecture '{architecture}'",  # nvcc
    "nvrtc: error: invalid value for --gpu-architecture",
    cause="gpu.driver",
    strength=0.94,
    title="the build (torch, an extension or the compiler's toolkit) has no code for this GPU",
    why="Kernels are compiled for the architectures that a build lists; this one is older than the GPU, or made for others. The driver is not to blame.",
    where=lambda groups, line: line.count("cudaError") < 3,  # a list of errors (NVSHMEM) reports none
)

# --- peer to peer
says(
    "p2p-broken",
    "failed to peer with device {device}",
    "peer access is not supported between these two devices",
    "simpleP2P{}FAILED",
    "Verification error @ element",
    "cudaIpcOpenMemHandle failed",
    "failed to open CUDA IPC handle",
    "cudaErrorPeerAccessUnsupported",
    "doesn't support faster communication broadband via P2P or IB",
    "peer-to-peer {}not supported",
    "P2P access {}failed",
    "Test FAILED{}p2p",
    "Invalid value when checking the pattern at <{address}>",  # nvbandwidth
    "NCCL WARN cudaIpcGetMemHandle failed",
    cause="gpu.p2p",
    strength=0.87,
    title="GPU peer-to-peer does not work",
    why="Peer access or IPC between GPUs fails or copies wrong data: ACS or IOMMU redirection, a VM, consumer cards, or a container without shared IPC.",
)
says(
    "too-many-peers",
    "peer mapping resources exhausted",
    "cudaErrorTooManyPeers",
    cause="gpu.p2p",
    strength=0.87,
    title="a GPU has more peers than the driver maps (8): at most 9 GPUs in one process or job of this host",
    why="CUDA error 711: where no NVSwitch joins the GPUs, each takes eight peer connections in the whole system.",
)
says(
    "hip-ipc",
    "hipIpcGetMemHandle failed",
    "hipIpcGetMemHandle -> {code:int}",
    "hipIpcOpenMemHandle failed",
    cause="gpu.p2p",
    strength=0.87,
    title="HIP cannot share a GPU's memory with another process: peer-to-peer does not work",
    why="Seen with the distribution's own amdgpu module instead of ROCm's, and in containers without --ipc=host.",
)
says(
    "p2p-import-refused",
    "transport/p2p.cc:{line:int} NCCL WARN Cuda failure 101 '{error}'",
    "transport/p2p.cc:{line:int} NCCL WARN Cuda failure '{error}'",
    cause="gpu.p2p",
    strength=0.7,
    title="memory of another GPU could not be opened: that GPU is not visible to this process",
    why="Peer-to-peer opens a handle of a GPU by its number; a container or CUDA_VISIBLE_DEVICES that hides the peer's GPU makes that fail.",
    where=lambda groups, line: "invalid device ordinal" in line,
)
says(
    "acs-redirect",
    "ReqRedir+",
    why="ACS redirects peer requests to the root complex.",
    cause="gpu.p2p",
    strength=0.8,
    title="PCIe ACS redirection is on: peer-to-peer traffic is sent through the root complex",
)
says(
    "acs-on",
    "ACSCtl:{}SrcValid+",
    why="ACS is on for a bridge; only request redirection sends peer-to-peer traffic through the root complex.",
    cause="gpu.p2p",
    strength=0.42,
    title="PCIe ACS is on for some bridges",
    where=lambda groups, line: "ReqRedir-" in line,
)
says(
    "iommu",
    "IO_PAGE_FAULT",
    "DMAR: [DMA {}fault",
    "DMAR:{}DMA Read NO_PASID",
    "DMAR: DRHD: handling fault",
    cause="gpu.p2p",
    strength=0.85,
    title="the IOMMU blocks direct transfers between devices (page faults in the kernel log)",
    why="The IOMMU refuses DMA to an address: peer-to-peer or GPUDirect is blocked by its translation.",
)
says(
    "p2p-disable-cures",
    "NCCL_P2P_DISABLE=1 {}works",
    "works with NCCL_P2P_DISABLE=1",
    "NCCL_P2P_DISABLE=1 helps",
    "with NCCL_P2P_DISABLE=1{}ok",
    cause="gpu.p2p",
    strength=0.8,
    title="it works without peer-to-peer",
    why="Somebody tried without P2P and it worked.",
)

# --- heat and power
says(
    "throttle",
    "Slowdown{}: Active",
    "clocks_throttle_reasons.hw_slowdown{}Active",
    "thermal_slowdown Active",
    "hw_slowdown Active",
    "power_brake_slowdown Active",
    "HW Slowdown{} Active",
    "thermal slowdown",
    "Power Supply AC lost",
    "power brake",
    "Package temperature above threshold",
    "thermal violation",
    "Thermal violation",
    "throttle reason",
    "event_reasons: {reason}_slowdown",
    "throttle_reasons: {reason}_slowdown",
    cause="gpu.thermal-power",
    strength=0.9,
    title="GPUs are throttled by heat or power",
    why="A slowdown reason is active: heat, power brake (the board's or rack's power supply) or a thermal limit.",
    where=lambda groups, line: "Not Active" not in line and not _NONE.search(line),
)
says(
    "throttle-column",
    ", Active",
    why="A cell of nvidia-smi's CSV output that says Active; the heading tells of what.",
)
says(
    "busy-and-watts",
    "100 %, {watts:num} W",
    why="nvidia-smi was asked for load and power: what a GPU that is busy all the time draws.",
)
says(
    "power-and-cap",
    "W / {cap:int}W ",
    "W /  {cap:int}W ",
    why="nvidia-smi's table: what a GPU draws, and the most that it may draw.",
)
says(
    "dcgm-throttle",
    "clocks_throttle_reason",
    "clocks_event_reasons",
    why="Throttle reasons asked of nvidia-smi or DCGM.",
)

says(
    "driver-mismatch-more",
    "driver/library version mismatch",
    "system has unsupported display driver / cuda driver combination",
    "Cuda failure 803",
    "Cuda failure 804",
    "MPS client failed to connect to",
    "Error 803",
    "Error 804",
    "device kernel image is invalid",
    "cudaErrorSystemDriverMismatch",
    "no kernel image is available",
    "cannot execute binary compiled for",
    "built for sm_",
    "is not supported by this build",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "HSA_STATUS_ERROR",
    "ROCk module is NOT loaded",
    "nvml error: driver",
    "driver rpc error",
    "this kernel module has the version",
    "The current PyTorch install supports CUDA capabilities",
    "with CUDA capability sm_",
    "kernel driver mismatch",
    "Key was rejected by service",
    "Unable to load the kernel module 'nvidia",
    "Please see the file '/var/log/nvidia-installer.log'",
    "nouveau, rivafb, nvidiafb",
    "The NVIDIA probe routine was not called",
    "version magic '",
    "rocm version{}not match",
    "nvidia-smi{}has failed",
    "modprobe: FATAL: Module nvidia not found",
    "GPU access blocked by the operating system",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "unsupported GPU architecture",
    "version of the NVIDIA driver",
    "Unsupported gpu architecture",
    cause="gpu.driver",
    strength=0.93,
    title="the GPU driver does not fit the libraries or the GPU",
    why="Driver, libraries and GPU are of different releases.",
    where=lambda groups, line: (
        not ("with CUDA capability sm_" in line and "not compatible" not in line and "no longer" not in line)
        and not re.search("HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL|OUT_OF)", line)
    ),
)
says(
    "throttle-mask",
    "0x00000000000000{mask:hex}, Active",
    "0x00000000000000{mask:hex}, {}Active",
    " 0x00000000000000{mask:hex}",
    "0x00000000000000{mask:hex}",
    cause="gpu.thermal-power",
    strength=0.9,
    title="GPUs are throttled by heat or power (reasons 0x{mask})",
    why="nvidia-smi's bit mask of clock event reasons: 0x8 hardware slowdown, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake.",
    where=lambda groups, line: (
        re.fullmatch(r"[0-9A-Fa-f]{2}", groups["mask"]) is not None
        and int(groups["mask"], 16) & 0xE8 != 0
        # or a row of a table: clocks, temperature, power
        and re.search(r"MHz| W\b|Active|throttle|clocks|NVIDIA|Tesla|(?:\s+\d+){5,}\s+0x", line) is not None
    ),
)
says(
    "thermal-more",
    "clocks are being throttled",
    "GPU clocks throttled",
    "thermal throttling",
    "Thermal throttling",
    "temperature above",
    "Temperature above",
    "Shutdown Temp",
    "over temperature",
    "overtemperature",
    "Clocks throttled",
    "power cap",
    "PSU{}ailure",
    "Power supply{}ailure",
    "PWR_BRAKE",
    "power excursion",
    "GPU temperature {temp:int}",
    "cooling failure",
    "fan failure",
    "Upper Critical going high",
    "power limit was reduced",
    "PSU{} failed",
    cause="gpu.thermal-power",
    strength=0.72,
    title="GPUs are throttled by heat or power",
    why="A monitor or the kernel speaks of throttling.",
    where=lambda groups, line: (
        not re.search(r"Not Active|N/A|no throttl|GPU (?:Shutdown|Slowdown|Max)|Core temperature above", line)
        and not _NONE.search(line)
        and int(groups.get("temp", "").lstrip("+") or _HOT) >= _HOT
        and ("power cap" not in line or re.search(r"reach|exceed|limited|thrott|slow|\bhit\b", line) is not None)
    ),
)
says(
    "cpu-hot",
    "CPU clock throttled",
    "cpu clock throttled",
    "Core temperature above threshold",
    cause="gpu.thermal-power",
    strength=0.45,
    title="a host's CPU is throttled by heat",
    why="The kernel counts throttled moments of a core: common and short under load, telling only where many cores do so for long.",
)
_TEMPERATURE = re.compile(r"\b\d{1,3}C\b")


def _nothing_read(line: str) -> bool:
    """Of a GPU that is gone nvidia-smi's table has ERR! in several fields, and no temperature."""
    row = "|" in line and line.count("ERR!") > 1 and not _TEMPERATURE.search(line)
    return row or re.search(r"GPU.{0,80}: ERR!", line) is not None


says(
    "gpu-gone-more",
    "(rev ff)",
    "GPU-{uuid}: ERR!",
    "Unknown Error{}nvidia-smi",
    "nvidia-smi: {}Unknown Error",
    "severity=Uncorrected (Fatal)",
    "device lost",
    "NVRM: GPU {pci} is lost",
    "GPU is inaccessible",
    "Reset required",
    "needs to be reset",
    "pcieport {pci}: DPC: containment event",
    "pciehp: Slot({slot}): Link Down",
    "pciehp: Slot({slot}): Card not present",
    "GPU not found",
    "has been removed from the bus",
    "does not have the necessary power cables",
    "amdgpu: GPU reset begin",
    "amdgpu{}ring {}timeout",
    "amdgpu: GPU reset({count}) failed",
    "nvidia {pci}: AER: can't recover",
    "amdgpu {pci}: AER: can't recover",
    "Failed to detect {}GPUs",
    "ERR!",
    "GPU Reset Required",
    "GPU Recovery Action{}: Reset",
    "GPU Recovery Action{}: Node Reboot",
    "GPU Recovery Action{}: Drain and Reset",
    cause="gpu.fell-off-bus",
    strength=0.82,
    title="a GPU is gone or needs a reset",
    why="The PCIe device answers no more, or its link went down.",
    # Xid 154 follows another fault, and is weighed as an Xid
    where=lambda groups, line: (
        re.search(r"mlx5|bnxt|\bice\b|irdma|nvme|Xid.*: 154,|soft recovered", line) is None
        and ("ERR!" not in line or _nothing_read(line))
    ),
)
says(
    "smi-field-unread",
    "ERR!",
    cause="gpu.fell-off-bus",
    strength=0.42,
    title="nvidia-smi could not read a field of a GPU (fan, power, ECC); it read the others, so the GPU answers",
    why="A sensor that cannot be read is no GPU that is gone, and may be its forerunner: the kernel's log (Xid) and nvidia-smi -q tell.",
    where=lambda groups, line: "|" in line and not _nothing_read(line),
)
says(
    "pcie-port-not-recovered",
    "AER: device recovery failed",
    cause="gpu.fell-off-bus",
    strength=0.44,
    title="a PCIe device did not recover from an error: the kernel names its port, not the device",
    why="Printed for the port of any device without an error handler (sound, USB, Thunderbolt, and NVIDIA's driver too): lspci -t tells what is behind it.",
)
says(
    "recovery-action",
    "Recovery Action {}: Reset",
    "Recovery Action {}: Node Reboot",
    "Recovery Action {}: Drain",
    cause="gpu.fell-off-bus",
    strength=0.58,
    title="the driver asks for a reset of a GPU",
    why="nvidia-smi -q: what the driver wants done after a fault. The fault itself (ECC, NVLink, an Xid) stands elsewhere and weighs more.",
)
says(
    "compute-mode", "Exclusive_Process", "Exclusive Process", "Prohibited", why="A compute mode that refuses processes."
)
says(
    "compute-domain-waits",
    "error asserting ComputeDomain Ready",
    "IMEX daemon not ready: {answer}",
    "current node not ready in ComputeDomain",
    role=Role.SYMPTOM,
    cause="gpu.imex",
    strength=0.46,
    fold="a node is not ready in its ComputeDomain",
    title="a node does not become ready in its ComputeDomain: its IMEX daemon has not joined the others",
    why="NVIDIA's driver of resource claims (2026) asks again and again while pods start. If it goes on: not all pods of the job are placed, or the IMEX daemons do not reach each other.",
)
says(
    "symmetric-same-device",
    "detected allocations from overlapping devices from different ranks",
    cause="gpu.duplicate",
    strength=0.8,
    title="ranks of one host report the same GPU number to torch's symmetric memory",
    why="Two ranks use one GPU, or each sees its own as number 0: CUDA_VISIBLE_DEVICES is set per rank, or set_device was not called. All GPUs visible to all ranks, each with its own number, is what it needs.",
)
says(
    "symmetric-two-domains",
    "ranks have mismatched NVLink clique_ids",
    cause="gpu.imex",
    strength=0.8,
    title="ranks of one symmetric-memory group stand in different NVLink domains",
    why="Memory is shared by fabric handles only within one clique; the line names each rank's. The scheduler placed the group over two racks, or a GPU did not join its clique (fabric manager, IMEX).",
)
says(
    "fabric-health",
    "Route Unhealthy {}: True",
    "Access Timeout Recovery {}: True",
    "Route Recovery in progress {}: True",
    "Incorrect Configuration {}: True",
    "Bandwidth {}: Degraded",
    cause="gpu.nvlink",
    strength=0.82,
    title="a GPU's NVLink fabric is not healthy",
    why="nvidia-smi -q prints the fabric's health since driver 570: degraded bandwidth or a route that is lost or rebuilt.",
    where=lambda groups, line: re.match(r"\s*(?:Route|Access|Incorrect|Bandwidth)[\w ]*:", line) is not None,
)
says(
    "rccl-iommu",
    'Missing "iommu=pt" from kernel command line',
    cause="gpu.p2p",
    strength=0.46,
    title="the kernel runs without iommu=pt: RCCL warns that peer-to-peer transfers may hang",
    why="AMD GPUs need the IOMMU in pass-through mode (iommu=pt) for transfers between them; a job may still run. Proof is a run with NCCL_P2P_DISABLE=1.",
)
# CUDA's error 400 is about a handle that another process has exported only where these files or calls are named
_BETWEEN_PROCESSES = re.compile(
    r"[Ii]pc|IPC|p2p\.cc|shm\.cc|ShareableHandle|custom_all_reduce|symmetric_memory|SymmetricMemory"
)
says(
    "p2p-more",
    "peer access{}not supported",
    "p2pBandwidthLatencyTest{}hang",
    "IPC handle",
    "cuIpcOpenMemHandle",
    "cudaIpcGetMemHandle",
    "could not open IPC",
    "Cuda failure 217",
    "Cuda failure 704",
    "Cuda failure 208",
    "cudaErrorPeerAccess",
    "cuMemImportFromShareableHandle",
    "cuMemExportToShareableHandle",
    "invalid resource handle",
    "topology unsupported{}P2P",
    "custom_all_reduce",
    "P2P capability",
    "GPU P2P",
    cause="gpu.p2p",
    strength=0.7,
    title="GPU peer-to-peer or memory sharing between processes fails",
    why="Handles of GPU memory cannot be exchanged or opened: peer-to-peer, IPC namespaces, cuMem or expandable segments.",
    where=lambda groups, line: (
        bool(re.search(r"rror|ail|WARN|not ", line))
        and not re.search(r"INFO .*Could not|Custom allreduce is disabled", line)
        and ("invalid resource handle" not in line or bool(_BETWEEN_PROCESSES.search(line)))
    ),
)
says(
    "invalid-resource-handle",
    "invalid resource handle",
    cause="app.bad-tensor",
    strength=0.56,
    title="CUDA was given a stream, an event or memory of another device than the current one, or one that is gone",
    why="CUDA's error 400: usually work for one GPU while another is the current device (no torch.cuda.set_device), or a handle that a fork or a reset left behind.",
    where=lambda groups, line: bool(re.search(r"rror|ail|WARN", line)) and not _BETWEEN_PROCESSES.search(line),
)

says(
    "fabric-manager-log",
    "] [ERROR] [tid {tid:int}] {message}",
    "] [FATAL] [tid {tid:int}] {message}",
    "failed to add multicast team",
    "fabricmanager{}[ERROR]",
    cause="gpu.fabric-manager",
    strength=0.9,
    title="the fabric manager reports an error: {message}",
    why="An error in the fabric manager's own log.",
    where=lambda groups, line: (
        re.search(r"NVSwitch (?:non-)?fatal error|NVLink .*(?:down|fatal)", line) is None and not _IMEX.search(line)
    ),
)
says(
    "imex-log",
    "] [ERROR] [tid {tid:int}] {message}",
    "] [FATAL] [tid {tid:int}] {message}",
    cause="gpu.imex",
    strength=0.93,
    title="the IMEX daemon reports: {message}",
    why="The daemon that hands out memory between nodes writes its log in the fabric manager's form; it speaks of nodes and of exported and imported memory.",
    where=lambda groups, line: _IMEX.search(line) is not None,
)

says(
    "nvlink-all-inactive",
    "all links are inActive",
    "all links are inactive",
    "Unable to retrieve NVLink information",
    "NVLink is not active",
    "nvlink is down",
    "NVLINK is down",
    "NVLink down",
    "NVLink link down",
    "nvlink link {}down",
    "Inactive NVLink",
    "nvlink {}inactive",
    "NVLinks are inactive",
    "NVLink {}not {}trained",
    "NVSwitch fatal error",
    "detected NVSwitch {kind:word} error",
    "nvswitch {}fatal",
    "NVSwitch non-fatal",
    "Fatal NVSwitch",
    "NVLink Recovery Error",
    "NVLink Replay Error",
    "nvlink{}DOWN",
    "postRxDetLinkMask failed",  # before the links are trained, from Hopper on
    cause="gpu.nvlink",
    strength=0.9,
    title="NVLink is inactive or in error",
    why="A tool reports NVLinks that are down or counts their errors.",
    where=lambda groups, line: (
        not ("Error" in line and line.rstrip().endswith(": 0")) and not re.search(r"\bfatal[ :=]+0\b", line)
    ),
)
says(
    "nvlink-counters",
    "Link {link:int}: Recovery Errors: {count:int}",
    "Link {link:int}: CRC Errors: {count:int}",
    "Link {link:int}: Effective Errors: {count:int}",
    cause="gpu.nvlink",
    strength=0.64,
    title="NVLink {link} counts {count} errors",
    why="nvidia-smi nvlink -e: a link that had to be recovered, or CRC errors, point to the link or its connector.",
    where=lambda groups, line: groups["count"] != "0",
)
says(
    "nvlink-link",
    "Link {link:int}: {speed:num} GB/s",
    "Link {link:int}: <inactive>",
    why="One NVLink's state in nvidia-smi nvlink --status.",
)
says(
    "nvlink-gpu",
    "GPU {gpu:int}: NVIDIA {model}",
    "GPU {gpu:int}: Tesla {model}",
    why="The GPU that the following links belong to.",
    rows=24,
)
says(
    "dcgm-link-states",
    "|  NvLink Link Status  |",
    why="The heading of dcgmi nvlink --link-status; below it a letter for each link: U up, D down, X disabled, _ none.",
    rows=64,
)
says(
    "topo-row",
    "\t X \t",
    " X      ",
    " X     N",
    " X    N",
    " X   N",
    why="A row of nvidia-smi topo -m.",
    where=lambda groups, line: re.search(r"^\W*GPU\d+\s", line) is not None,
)
says(
    "p2p-bandwidth",
    "directional P2P={state:word} Bandwidth ",
    why="A matrix of p2pBandwidthLatencyTest (CUDA's samples): what each GPU moves to each other one, with peer-to-peer or without.",
    rows=17,
)
