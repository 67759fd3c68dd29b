"""Transfers between the GPUs of a host: peer-to-peer, CUDA IPC, ACS and IOMMU."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

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
    "p2p-not-enabled",
    "P2P is disabled between connected GPUs {a} and {b}",
    "Could not enable P2P between dev {a} and dev {b}",
    "CANNOT Access Peer Device",
    "Device {a:int} peer access Device {b:int} is not available",  # TensorRT-LLM, turbomind
    why="No peer-to-peer between two GPUs: SHM is used, slower; fails only when SHM cannot be had either.",
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
    "custom-all-reduce",
    "custom_all_reduce.cu{}'invalid argument'",
    "custom_all_reduce.cu{}'invalid resource handle'",
    "custom_all_reduce.cu{}'resource already mapped'",
    "custom_all_reduce.cu{}'peer access is not supported",
    cause="gpu.p2p",
    page="gpu.p2p.beside-nccl",
    strength=0.88,
    title="vLLM's or SGLang's own all-reduce cannot open the memory of another GPU",
    why="cudaIpcGetMemHandle knows no memory of expandable segments; cudaIpcOpenMemHandle needs peers that see each other's GPU.",
)
says(
    "no-multicast",
    "Device does not support multicasting",
    ": requires multicast support.",  # torch's checks
    cause="sw.nccl-bug",
    strength=0.66,
    title="an all-reduce that needs NVLink multicast (NVLS) was chosen for GPUs that have none",
    why="Only GPUs behind an NVSwitch since Hopper have it. FlashInfer, TensorRT-LLM and torch's symmetric memory should fall back without: newer versions do, in older ones that kernel is switched off (vLLM: fuse_allreduce_rms in its pass_config).",
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
    "rccl-iommu",
    'Missing "iommu=pt" from kernel command line',
    cause="gpu.p2p",
    strength=0.46,
    title="the kernel runs without iommu=pt: RCCL warns that peer-to-peer transfers may hang",
    why="AMD GPUs need the IOMMU in pass-through mode (iommu=pt) for transfers between them; a job may still run. Proof is a run with NCCL_P2P_DISABLE=1.",
)
says(
    "topo-row",
    "\t X \t",
    " X      ",
    " X     N",
    " X    N",
    " X   N",
    why="A row of nvidia-smi topo -m.",
    pattern=re.compile(r"^\W*GPU\d+\s"),
)
says(
    "p2p-bandwidth",
    "directional P2P={state:word} Bandwidth ",
    why="A matrix of p2pBandwidthLatencyTest (CUDA's samples): what each GPU moves to each other one, with peer-to-peer or without.",
    rows=17,
)
