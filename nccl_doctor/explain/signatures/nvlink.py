"""NVLink, NVSwitches and what manages them: fabric manager, NVLink SHARP (NVLS), IMEX."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.signatures import says

_IMEX = re.compile(
    r"IMEX|memory reference|export ref\b|\b(?:un)?(?:im|ex)port (?:request|response)|\bnode id\b|\bto node \d"
)
says(
    "nvlink-error",
    "ncorrectable NVLink error",
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
    "all links are inactive",
    "all links are inActive",
    "Unable to retrieve NVLink information",
    "NVLink is not active",
    "nvlink is down",
    "NVLink down",
    "NVLink link down",
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
    strength=0.92,
    title="NVLink is down or reports errors",
    why="An NVLink is inactive, failed or counts errors; NCCL says so when the driver reports no P2P between NVLink-connected GPUs.",
    where=lambda groups, line: (
        not ("Error" in line and line.rstrip().endswith(": 0")) and not re.search(r"\bfatal[ :=]+0\b", line)
    ),
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
    "fabric-manager-log",
    "] [ERROR] [tid {tid:int}] {message}",
    "] [FATAL] [tid {tid:int}] {message}",
    "failed to add multicast team",
    "fabric manager error handler is called for",
    "local fabric manager instances finished their configuration",
    "failed to configure all the available GPUs or NVSwitches",
    "match with any supported system topology",
    "fabricmanager{}[ERROR]",
    cause="gpu.fabric-manager",
    strength=0.9,
    title="the fabric manager reports an error: {message}",
    why="An error in the fabric manager's own log.",
    where=lambda groups, line: (
        re.search(r"NVSwitch (?:non-)?fatal error|NVLink .{0,200}(?:down|fatal)", line) is None
        and not _IMEX.search(line)
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
    pattern=re.compile(r"(?:^|\s|FABRIC_|[Ff]abric )(?:STATE_IN_PROGRESS|[Ss]tate:?\s*(?::\s*)?In Progress)"),
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
    cause="gpu.imex",
    strength=0.93,
    title="multi-node NVLink: the IMEX channel is missing or the IMEX daemon does not work",
    why="MNNVL memory cannot be shared: no /dev/nvidia-caps-imex-channels in this container, or the IMEX domain is not ready. CUDA error 800 in cuMem calls says the same.",
    where=lambda groups, line: (
        "IMEX log" not in line
        and re.search(r"WARN|rror|ail|not |DOWN|UNAVAILABLE|No such|missing|DEGRADED|INVALID", line) is not None
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
    pattern=_IMEX,
)
says(
    "imex-memory",
    "ailed to get export ref for UUID",
    "import response from node id {peer:int} with failure status",
    "ailed to get new memory reference with rc",
    cause="gpu.imex",
    strength=0.9,
    title="the IMEX daemon cannot hand memory of this node to another one",
    why="A process on another node asked for memory that is exported here, and the daemon could not look it up: the exporter has ended, or a daemon "
    "was restarted under the job.",
)
says(
    "nvbandwidth-between-nodes",
    "] {error} in expression {call} in MultinodeMemoryAllocation",
    cause="gpu.imex",
    strength=0.72,
    title="nvbandwidth cannot share GPU memory between the nodes: they have no common NVLink domain, or IMEX gives it no channel",
    why="Its multinode tests go over multi-node NVLink alone (GB200 NVL72 and the like): nodes that are connected by InfiniBand or Ethernet only fail them.",
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
    "symmetric-two-domains",
    "ranks have mismatched NVLink clique_ids",
    cause="gpu.imex",
    strength=0.8,
    title="ranks of one symmetric-memory group stand in different NVLink domains",
    why="Memory is shared by fabric handles only within one clique; the line names each rank's. The scheduler placed the group over two racks, or a GPU did not join its clique (fabric manager, IMEX).",
)
