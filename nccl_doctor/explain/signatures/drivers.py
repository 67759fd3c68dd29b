"""GPU drivers: releases that do not fit, modules that are not loaded, builds without code for the GPU."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

says(
    "driver-files-differ",
    "NVRM: API mismatch",
    "No firmware image found",
    "Direct firmware load for nvidia/{file} failed with error",
    'Failed to load {}firmware "amdgpu/{file}"',
    "river/library version mismatch",
    cause="gpu.driver",
    page="gpu.driver.mismatch",
    strength=0.95,
    title="the driver's kernel module and its other files are of different releases",
    why="The driver was updated or removed while the old module stayed loaded, or GSP's firmware of the module's release is not installed.",
)
says(
    "driver-refuses-gpu",
    "NVRM: {}installed in this system is not supported by",
    "NVRM: installed in this system requires use of",  # the open kernel modules, from Blackwell on
    "supported through the NVIDIA {release} Legacy drivers",
    cause="gpu.driver",
    strength=0.93,
    title="this release of the driver does not support the GPU, or only with the other kind of kernel module",
    why="The kernel log names what the GPU needs: a newer or a legacy driver, or the open kernel modules.",
)
says(
    "driver-mismatch",
    "driver version is insufficient for CUDA runtime version",
    "The NVIDIA driver on your system is too old",
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
    "system has unsupported display driver / cuda driver combination",
    "Cuda failure 803",
    "Cuda failure 804",
    "MPS client failed to connect to",
    "Error 803",
    "Error 804",
    "cudaErrorSystemDriverMismatch",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "HSA_STATUS_ERROR",
    "ROCk module is NOT loaded",
    "nvml error: driver",
    "driver rpc error",
    "this kernel module has the version",
    "kernel driver mismatch",
    "rocm version{}not match",
    "nvidia-smi{}has failed",
    "GPU access blocked by the operating system",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    cause="gpu.driver",
    strength=0.94,
    title="the GPU driver does not fit the libraries or the GPU",
    why="The driver is too old for the CUDA (or ROCm) runtime, does not match its own libraries, or its module is not loaded.",
    where=lambda groups, line: (
        line.count("cudaError") < 3  # a list of errors (NVSHMEM) reports none
        and not re.search("HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY|ILLEGAL|OUT_OF)", line)
    ),
)
# Keys and versions are also refused of other modules, and of mounts.
_OF_A_GPU = re.compile("nvidia|amdgpu|gdrdrv|habanalabs", re.IGNORECASE)
says(
    "driver-not-loaded",
    "Key was rejected by service",
    "Required key not available",
    "Unable to load the kernel module 'nvidia",
    "Please see the file '/var/log/nvidia-installer.log'",
    "nouveau, rivafb, nvidiafb",
    "The NVIDIA probe routine was not called",
    "version magic '",
    "modprobe: FATAL: Module nvidia not found",
    "nvidia: Process '/sbin/modprobe nvidia{module}' failed with exit code",  # udev
    "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files",  # nvidia-persistenced
    cause="gpu.driver",
    page="gpu.driver.not-loaded",
    strength=0.94,
    title="the GPU driver's kernel module is not loaded",
    why="It was not built for this kernel, Secure Boot refuses it (a key that was rejected), nouveau holds the GPU, or it found no GPU that answers.",
    pattern=_OF_A_GPU,
)
says(
    "no-code-for-the-gpu",
    "o kernel image",
    "cudaErrorNoKernelImageForDevice",
    "is not compatible with the current PyTorch installation",
    "HIP error: invalid device function",
    "hipErrorNoBinaryForGpu",
    "TensileLibrary{name}for GPU arch",  # rocBLAS
    "callbackQueue aborting with status: 0x100f",  # ROCm's HSA_STATUS_ERROR_INVALID_ISA
    "ptxas fatal{}: Value '{architecture}' is not defined for option 'gpu-name'",
    "nsupported gpu architecture",  # nvcc
    "nsupported GPU architecture",
    "nvrtc: error: invalid value for --gpu-architecture",
    "The current PyTorch install supports CUDA capabilities",
    "device kernel image is invalid",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "cannot execute binary compiled for",
    "built for sm_",
    "is not supported by this build",
    cause="gpu.driver",
    strength=0.94,
    title="the build (torch, an extension or the compiler's toolkit) has no code for this GPU",
    why="Kernels are compiled for the architectures that a build lists; this one is older than the GPU, or made for others. The driver is not to blame.",
    where=lambda groups, line: line.count("cudaError") < 3,  # a list of errors (NVSHMEM) reports none
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
