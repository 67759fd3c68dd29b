"""Probe ``environment``: the variables that decide how a training job communicates, and no others."""

import os
import re
from typing import Any, Dict

from nccl_doctor.agent.probing import probe
from nccl_doctor.agent.redaction import redact_environment

# What is not named here is not read. SLURM_* holds names, counts and node lists; SLURM_JWT and the like fall to the
# redaction of secret names.
_PREFIX_WORDS = """
    NCCL_ TORCH_ TORCHELASTIC_ PYTORCH_ CUDA_ CUDNN_ CUBLAS_ NVIDIA_ NVSHMEM_ GLOO_ UCX_ UCC_ FI_ RDMAV_ IBV_ MLX5_
    MLX4_ OMPI_ PMI_ PMIX_ MPI_ MPICH_ HYDRA_ I_MPI_ SLURM_ OMP_ MKL_ KMP_ GOMP_ DEEPSPEED_ ACCELERATE_ TP_
"""
_NAME_WORDS = """
    MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK ROLE_RANK
    LD_LIBRARY_PATH LD_PRELOAD PATH PYTHONPATH PYTHONHOME PYTHONNOUSERSITE VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV
    HOSTNAME LANG LC_ALL TZ TMPDIR XDG_CACHE_HOME TRITON_CACHE_DIR HF_HOME KUBERNETES_SERVICE_HOST container
    TOKENIZERS_PARALLELISM MALLOC_CONF
"""
_PREFIXES = tuple(_PREFIX_WORDS.split())
_NAMES = frozenset(_NAME_WORDS.split())
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_VALUE_LIMIT = 8192  # characters


def allowed(name: str) -> bool:
    """Whether a variable is on the allow-list."""
    return bool(_NAME.match(name)) and (name in _NAMES or name.startswith(_PREFIXES))


@probe("environment", stage="software")
def environment(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The allow-listed variables of the agent's own environment (after ``--env-setup``), redacted: name -> value."""
    found = {name: value[:_VALUE_LIMIT] for name, value in os.environ.items() if allowed(name)}
    return {"variables": redact_environment(found)}
