"""GPUs: hardware faults, visibility, memory, faults of kernels."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

# A monitor's line that says that there is none of it.
NONE = re.compile(
    r"(?:count|total|totaling|errors?|failures?|violations?|lost|reset|reasons?)\s*(?:[:=]\s*)?(?:0(?:\.0+)?\b|none\b|no\b|false\b)|[ :]0 (?:row|GPUs?|errors?|uncorrect|thermal|gpu)",
    re.IGNORECASE,
)

_OF_A_BUILD = re.compile(r"(?:^|\s)#\d{1,3} \d{1,5}\.\d{1,3}\s")  # BuildKit's: no image is built with a GPU at hand

# --- hardware, from the kernel log (NVRM Xid; catalogue: NVIDIA's Xid documentation)
_XID = (
    "Xid {xid:int} detected {times} on host {node}. For the recommended response",  # NCCL 2.31 and later, NCCL_RUN_RAS_DIAGNOSTICS=1
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
    '"xid": {xid:int}',
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
    "SXid {xid:int} detected {times} on host {node}. ",  # NCCL 2.31 and later
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
    "The GPU likely needs to be reset",
    "waiting for RPC response from GPU",
    "NVML_ERROR_GPU_IS_LOST",
    "_kgspIsHeartbeatTimedOut: ",  # drivers from 590 on, before any Xid
    "_kgspLogRpcTimeout: ",
    "GSP RM heartbeat timed out",
    "nvidia {pci}: Refused to change power state",
    "nvidia {pci}: {}change power state from D3{}inaccessible",
    "GSP_RM",
    cause="gpu.fell-off-bus",
    strength=0.95,
    title="a GPU is gone or needs a reset",
    why="The driver cannot talk to the GPU: it fell off the bus, or its firmware hangs.",
    where=lambda groups, line: not NONE.search(line),
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
    "device-silent-after-reset",
    "not ready {time:int}ms after {step}; giving up",  # the kernel's PCI code
    cause="gpu.fell-off-bus",
    strength=0.62,
    title="a PCIe device does not answer after it was reset ({step})",
    why="The kernel waited a minute for it. Mostly a GPU (or an NVMe disk) that only a power cycle brings back, or one that a VM's host resets wrongly.",
    where=lambda groups, line: not re.search(r"\b(?:nvme|mlx\d)\w* ", line),
)
says(
    "gaudi-silent",
    "habanalabs {device}: Failed to communicate with Device CPU",
    "habanalabs {device}: Device heartbeat failed",
    "habanalabs {device}: Failed to initialize {name}. Device is NOT usable",
    "habanalabs {device}: Failed to initialize {name}. Device {pci} is NOT usable",
    cause="gpu.fell-off-bus",
    strength=0.9,
    title="a Gaudi accelerator does not answer its driver",
    why="The device's own processor is silent, so that the driver does not use the device. Mostly a reset or a power cycle of the host brings it back; else it is to be replaced.",
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
    "mig-not-applied",
    "Error applying MIG configuration{}: {error}",  # nvidia-mig-parted
    "Error setting MIGConfig: {error}",
    "Unsupported MIG Device specified",
    "Unable to enable MIG Mode for GPU {gpu:word}: {error}",  # nvidia-smi
    "Unable to disable MIG Mode for GPU {gpu:word}: {error}",
    cause="gpu.mig",
    page="gpu.mig.pending",
    strength=0.8,
    title="the MIG layout that was asked for could not be set: {error}",
    why="Instances can only be changed, and a GPU reset, with no client left on it; and the names of the profiles differ by model and driver.",
    where=lambda groups, line: "Insufficient Permissions" not in line,
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
    "no-memory-region",
    "This PCI I/O region assigned to your NVIDIA device is invalid",
    "The system BIOS may have misconfigured your GPU",
    cause="gpu.not-visible",
    strength=0.93,
    title="a GPU got no memory region: the BIOS or the hypervisor does not map it (Above 4G decoding, size of BARs)",
    why="One of the GPU's BARs has the size or the address 0, so the driver refuses it.",
)
says(
    "bar-without-space",
    "BAR {bar:int}: no space for [mem size 0x{size:hex} 64bit pref]",
    "BAR {bar:int} [mem size 0x{size:hex} 64bit pref]: can't assign; no space",  # Linux 6.9 and later
    cause="gpu.not-visible",
    strength=0.6,
    title="the kernel finds no address space for a device's large memory region, as GPUs have it (Above 4G decoding, the hypervisor's window)",
    why="A region of 4 GiB or more must lie above 4 GiB: the BIOS, or the hypervisor's PCI window, leaves no room. Without it the driver refuses the GPU.",
    where=lambda groups, line: int(groups["size"], 16) >= 1 << 32,
)
says(
    "ecc-error",
    "uncorrectable ECC error encountered",
    "Uncorrectable ECC",
    "double bit error",
    "Double Bit ECC",
    "ow remapping failure",
    "Row Remapping Failure",
    "Remapping Failure Occurred{}: Yes",
    "SRAM Threshold Exceeded{}: Yes",
    "Contained ECC error",
    "Uncontained ECC error",
    "row remapper: {}pending",
    "uncorrectable hardware errors detected in",  # amdgpu
    "HW Exception by GPU {}reason :ECC",  # ROCm's runtime
    cause="gpu.ecc",
    strength=0.95,
    title="uncorrectable memory error on a GPU",
    why="The GPU's memory had an error that ECC cannot correct: reset or replace.",
    where=lambda groups, line: (
        not re.search(
            r"(?:Uncorrectable ECC|Double Bit ECC)\D{0,40}(?::|=)?\s*(?:0|N/A)\s*$|(?<!\d)0 (?:new )?uncorrectable|DIMM|\bEDAC\b|Memory #0x",
            line,
        )
        and not NONE.search(line)
    ),
)

says(
    "ecc-counters",
    "Pending {}: Yes",
    "RAM Uncorrectable{}: {count:int}",
    cause="gpu.ecc",
    strength=0.64,
    title="a GPU counts uncorrectable memory errors, or a row waits to be remapped",
    why="nvidia-smi -q: uncorrectable errors are counted, or a remapping is pending until the GPU is reset. The aggregate counters also hold errors of long ago.",
    pattern=re.compile(r"(?:Pending|RAM Uncorrectable[ \w-]{0,20}?) *: (?:Yes|[1-9])"),
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
    "nccl2 requires at least one CUDA device",
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
    where=lambda groups, line: _OF_A_BUILD.search(line) is None,
)
says(
    "duplicate-gpu",
    "Duplicate GPU detected",
    "Multiple ranks detected using the same GPU on this node",
    "Multiple processes within communication group running on same CUDA device",  # XGBoost
    "Attempting to use the same CUDA device",  # TRL
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
    "XPU out of memory",
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
    "CUDA driver error: out of memory",
    "CUresult error: 2 (out of memory)",  # torch_memory_saver
    "Triton Error [CUDA]: out of memory",
    "The memory capacity is unbalanced. Some GPUs may be occupied by other processes",
    "KV cache is needed, which is larger than the available KV cache memory",
    "larger than the maximum number of tokens that can be stored in KV cache",
    cause="gpu.oom",
    strength=0.93,
    title="a GPU ran out of memory",
    why="The allocation that failed names the GPU and the size. NCCL's own buffers need some hundred MB per GPU beside the framework's.",
    where=lambda groups, line: not _absurd(line),
)
says(
    "vgpu-limit",
    "]: Device {gpu:int} OOM {wanted:int} / {limit:int}",
    cause="gpu.oom",
    strength=0.9,
    title="the vGPU library (HAMi) gives this container {limit} bytes of a GPU's memory, and the job asked for more",
    why="Its limit is the pod's share (nvidia.com/gpumem), not what the GPU has; nvidia-smi in the container shows the share.",
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


_TEMPERATURE = re.compile(r"\b\d{1,3}C\b")


def _nothing_read(line: str) -> bool:
    """Of a GPU that is gone nvidia-smi's table has ERR! in several fields, and no temperature."""
    row = "|" in line and line.count("ERR!") > 1 and not _TEMPERATURE.search(line)
    return row or re.search(r"GPU.{0,80}: ERR!", line) is not None


says(
    "gpu-unreachable",
    "(rev ff)",
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
    "[amdgpu]] *ERROR* {}ring {ring:word} test failed",
    "VRAM is lost",
    "qcm fence wait loop timeout expired",
    "cp might be in an unrecoverable state",
    "nvidia {pci}: AER: can't recover",
    "amdgpu {pci}: AER: can't recover",
    "Failed to detect {}GPUs",
    "ERR!",
    "GPU Reset Required",
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
    "symmetric-same-device",
    "detected allocations from overlapping devices from different ranks",
    cause="gpu.duplicate",
    strength=0.8,
    title="ranks of one host report the same GPU number to torch's symmetric memory",
    why="Two ranks use one GPU, or each sees its own as number 0: CUDA_VISIBLE_DEVICES is set per rank, or set_device was not called. All GPUs visible to all ranks, each with its own number, is what it needs.",
)

says(
    "gpu-process",
    " C {}MiB |",
    "GPU-{}, {pid:int}, {program}, {used:int} MiB",
    "GPU-{}, {pid:int}, {used:int} MiB, {program}",
    sampled=True,
    every=True,
    why="nvidia-smi: a process that computes on a GPU, and the memory that it has there.",
)
says(
    "gpu-process-table",
    "# gpu {}pid {}type",
    rows=64,
    why="The heading of nvidia-smi pmon: what part of a GPU's time each process has.",
)
says(
    "process-table",
    " PID {}PPID ",
    rows=48,
    why="The heading of ps, with the parent of each process.",
)
# Results of Level Zero (ze_api.h) and of SYCL's adapters above it (ur_api.h, before that pi.h), by their common names
for _cause, _title, _names in (
    ("gpu.oom", "an Intel GPU has no memory left", ("OUT_OF_DEVICE_MEMORY", "OUT_OF_RESOURCES")),
    ("sys.host-oom", "the host has no memory left for an Intel GPU's driver", ("OUT_OF_HOST_MEMORY",)),
    ("gpu.fell-off-bus", "an Intel GPU hung and was reset, or is lost", ("DEVICE_LOST", "DEVICE_REQUIRES_RESET")),
    ("gpu.not-visible", "no Intel GPU is visible", ("DEVICE_NOT_FOUND",)),
    ("gpu.driver", "the driver of the Intel GPU does not start", ("UNINITIALIZED", "DEPENDENCY_UNAVAILABLE")),
    ("sys.container", "the process may not use the Intel GPU", ("INSUFFICIENT_PERMISSIONS",)),
):
    says(
        f"level-zero-{_cause}",
        *(f"{api}_ERROR_{name}" for name in _names for api in ("ZE_RESULT", "UR_RESULT", "PI")),
        cause=_cause,
        strength=0.86,
        title=_title,
        why="The driver's own result, which SYCL, oneCCL and torch repeat.",
    )
says(
    "level-zero-unknown",
    "Unknown PI error",
    *(f"{api}_ERROR_UNKNOWN" for api in ("ZE_RESULT", "UR_RESULT", "PI")),
    cause="gpu.driver",
    strength=0.52,
    title="the driver of an Intel GPU gave SYCL an error without a name",
    why="Mostly a driver (compute runtime, kernel) that does not fit this oneAPI, or a GPU whose engine hung: the kernel log (i915, xe) of the host says which.",
)
says(
    "userbuffers-refused",
    "userbuffers-host.cpp:{line:int} in function {function:word}: CUDA Error: operation not supported",
    cause="gpu.driver",
    strength=0.82,
    title="CUDA refuses the multicast memory of Transformer Engine's Userbuffers (overlap of tensor-parallel communication)",
    why="CUDA has multicast from driver 535 on, between GPUs of one NVLink switch; UB_SKIPMC=1 goes without it, over CUDA IPC.",
)
says(
    "userbuffers-without-peers",
    "communication required for multi-GPU userbuffers",
    "Failed, {what} error {path}userbuffers-host.cpp:",
    cause="gpu.p2p",
    strength=0.6,
    title="Transformer Engine's Userbuffers (overlap of tensor-parallel communication) cannot share memory between the GPUs",
    why="They need peer-to-peer access between all GPUs of the group, and Unix sockets between its processes (one network namespace). "
    "Groups smaller than the host's ranks need a recent Transformer Engine.",
)
