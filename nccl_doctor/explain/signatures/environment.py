"""Environment variables of NCCL, Gloo and torch that the programs themselves complain about."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

_OF_TORCH = re.compile(r"(?:PY)?TORCH_[A-Z0-9_]+")

says(
    "no-algorithm",
    "algorithm/protocol {}available",
    "NCCL_ALGO was set to {value}",
    "NCCL_PROTO was set to {value}",
    why="NCCL has no algorithm for a collective; since 2.24 it says whether a variable forced one.",
    where=lambda groups, line: "o algorithm/protocol" in line or "WARN" in line or "rror" in line,
)
says(
    "bad-token",
    "Unrecognized element token",
    "Unrecognized prefix token",
    "All entries except the first must have a prefix",
    cause="env.bad-nccl-var",
    strength=0.96,
    title="NCCL_ALGO or NCCL_PROTO has a syntax error",
    why="NCCL 2.24+ refuses unknown words.",
)
says(
    "bad-comm-id",
    "Invalid NCCL_COMM_ID, please use format",
    "Net : string is null",
    cause="env.bad-nccl-var",
    strength=0.95,
    title="NCCL_COMM_ID cannot be read",
    why="Its form is <ip or host>:<port>.",
)
says(
    "bad-nccl-word",
    "NCCL WARN Invalid {what} valid values",
    cause="env.bad-nccl-var",
    strength=0.95,
    title="NCCL refuses the value of a variable: {what}",
    why="NCCL names the values that it would take.",
)
says(
    "bad-torch-value",
    "Invalid value for environment variable: {name:word}",
    cause="env.bad-nccl-var",
    strength=0.96,
    title="{name} has a value that torch cannot read",
    why="torch parses these as booleans or integers.",
)
says(
    "bad-torch-word",
    "The value of {name:word} must be {words}",
    cause="env.bad-nccl-var",
    strength=0.96,
    title="{name} has a value that torch does not know",
    why="torch reads it while it is imported, and raises. It knows few words: NCCL's levels of NCCL_DEBUG are none of TORCH_DISTRIBUTED_DEBUG's.",
    where=lambda groups, line: _OF_TORCH.fullmatch(groups["name"]) is not None,
)
says(
    "bad-allocator-setting",
    "Unrecognized CachingAllocator option: {option}",
    "Unrecognized key '{option}' in {which} allocator config",
    "CachingAllocator option {option} must be",
    "Unknown allocator backend, options are native and cudaMallocAsync",
    cause="env.bad-nccl-var",
    strength=0.93,
    title="PYTORCH_CUDA_ALLOC_CONF has a setting that torch refuses",
    why="The CUDA allocator reads the variable (PYTORCH_ALLOC_CONF since 2.9) at its first allocation, and raises.",
)
says(
    "bad-torch-logs",
    "Invalid log settings: {words}, must be a comma separated list of",
    cause="env.bad-nccl-var",
    strength=0.93,
    title="TORCH_LOGS names a log that torch does not have",
    why="torch reads TORCH_LOGS while it is imported, and raises.",
)
says(
    "bad-nccl-value",
    "Invalid value {value} for {name:word}, using default",
    cause="env.bad-nccl-var",
    strength=0.5,
    title="{name} has a value that NCCL cannot read",
    why="NCCL ignores it and uses the default: it does not do what was meant.",
)
says(
    "oob-interface",
    "verify NCCL_OOB_NET_IFNAME",
    "no device found matching {value}, verify",
    cause="env.bad-nccl-var",
    strength=0.93,
    title="NCCL_OOB_NET_IFNAME matches no device",
    why="The named device does not exist on this host.",
)
says(
    "no-transport",
    "No transport found for rank {a:int}",
    "No transport found !",
    cause="env.bad-nccl-var",
    strength=0.78,
    title="no transport connects two ranks",
    why="P2P, SHM and the network are all disabled or unavailable between two ranks: usually NCCL_P2P_DISABLE and NCCL_SHM_DISABLE together without a network.",
)
says(
    "topology-file",
    "Could not open XML topology file {file} : {error}",
    "XML Topology has wrong version",
    "XML Parse error",
    "XML Import Channel : dev {dev} not found",
    "Could not open XML graph file",
    "XML Parse : ",
    "Could not find any local path from gpu",
    "ncclTopoGetSystemFromXml: system node not found",
    "XML Graph has wrong version",
    "Add NVLink error : could not find GPU",
    cause="env.bad-nccl-var",
    strength=0.74,
    title="the topology or graph file given to NCCL is wrong or cannot be read",
    why="NCCL_TOPO_FILE or NCCL_GRAPH_FILE does not describe this machine.",
)
says(
    "force-merge",
    "Could not force merge NICs",
    "Specified fused NIC",
    "TOPO/NET : Only matched {devices:int} devices, ",
    "Invalid NCCL_NET_FORCE_MERGE specified",
    "has been ignored because it is not a power of 2",
    "is being ignored because it is not a power of 2",
    cause="env.bad-nccl-var",
    strength=0.7,
    title="an NCCL variable names something that does not exist here",
    why="NCCL says which value it cannot use.",
)
