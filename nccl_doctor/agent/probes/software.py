"""What the training job would run with: Python, torch, every libnccl and which one wins, plugins, driver, OFED.

Nothing is imported or loaded to find out: directory names, small text files and ELF headers are read. Importing torch
would take seconds on every host and touch the GPUs.
"""

import fnmatch
import os
import platform
import re
import sys
from typing import Any, Dict, Iterable, List

from nccl_doctor.agent.elf import elf_dynamic
from nccl_doctor.agent.gpu_holders import gpu_names
from nccl_doctor.agent.libraries import find_library, loader_cache, nccl_copies, plugins
from nccl_doctor.agent.pci import DISPLAYS, nvidia_devices
from nccl_doctor.agent.probing import ROOT, is_loaded, listed, path, probe, read_text, real
from nccl_doctor.agent.redaction import redact_environment

# Distributions worth comparing between hosts; * matches any ending (nvidia-nccl-cu12, nvidia-nccl-cu13).
DISTRIBUTIONS = (
    "torch",
    "torchvision",
    "torchaudio",
    "nvidia-nccl-cu*",
    "nvidia-cudnn-cu*",
    "nvidia-cublas*",
    "nvidia-cuda-runtime*",
    "nvidia-nvshmem-cu*",
    "nvidia-ml-py",
    "pytorch-triton*",
    "triton",
    "numpy",
    "deepspeed",
    "megatron-core",
    "transformer-engine*",
    "flash-attn*",
    "xformers",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch-lightning",
    "datasets",
    "apex",
    "vllm",
    "ray",
    "mpi4py",
    "cupy-cuda*",
    "jax",
    "jaxlib",
)
VARIABLES = (
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_NET",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_HOME",
    "CUDA_PATH",
)


def search_path() -> List[str]:
    """The directories this Python imports from. Under a recorded tree: the tree's own site-packages."""
    if ROOT:
        return ["/" + os.path.relpath(found, ROOT) for found in _site_packages(ROOT)]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [entry for entry in dict.fromkeys(given + sys.path) if os.path.isdir(entry)]


def _site_packages(root: str) -> List[str]:
    return sorted(base for base, _, _ in os.walk(root) if os.path.basename(base) in ("site-packages", "dist-packages"))


def distributions(places: Iterable[str]) -> Dict[str, str]:
    """Name -> version of the interesting distributions; of two with the same name the first on the path counts."""
    found = {}  # type: Dict[str, str]
    for place in places:
        for entry in listed(place):
            match = re.match(r"(.+?)-([^-]+)(?:-py\d.*)?\.(?:dist-info|egg-info)$", entry)
            if not match:
                continue
            name = re.sub(r"[-_.]+", "-", match.group(1)).lower()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in DISTRIBUTIONS):
                found.setdefault(name, match.group(2))
    return found


def torch_directory(places: Iterable[str]) -> str:
    """The torch package that ``import torch`` would take; empty if there is none."""
    for place in places:
        if os.path.isfile(path(place + "/torch/version.py")):
            return place + "/torch"
    return ""


def torch_facts(directory: str) -> Dict[str, Any]:
    """Version, CUDA and HIP of a torch package, and how it gets NCCL: shared, built in or none, or unknown."""
    text = read_text(directory + "/version.py") or ""

    def value(name: str) -> str:
        match = re.search(r"^%s\b[^=\n]*=\s*['\"]([^'\"]*)['\"]" % name, text, re.M)
        return match.group(1) if match else ""

    library = directory + "/lib/libtorch_cuda.so"
    dynamic = elf_dynamic(library) if os.path.exists(path(library)) else None
    if dynamic is None:
        link = "unknown" if os.path.exists(path(library)) else "none"
    else:
        link = "shared" if any(name.startswith("libnccl.so") for name in dynamic["needed"]) else "built-in"
    return {
        "path": directory,
        "version": value("__version__"),
        "cuda": value("cuda"),
        "hip": value("hip"),
        "nccl_link": link,
    }


def wanted_nccl(places: Iterable[str]) -> str:
    """The NCCL version torch's own metadata asks for (``nvidia-nccl-cu12==2.27.5``); empty if it names none."""
    for place in places:
        for entry in listed(place):
            if re.match(r"torch-[^-]+\.dist-info$", entry):
                text = read_text("%s/%s/METADATA" % (place, entry), 1 << 18) or ""
                match = re.search(r"^Requires-Dist:\s*nvidia-nccl-cu\d+\s*\(?==\s*([\d.]+)", text, re.M)
                return match.group(1) if match else ""
    return ""


# --- driver, CUDA, OFED, system -----------------------------------------------------------------------------------


def driver(cache: Dict[str, str]) -> Dict[str, Any]:
    """The NVIDIA kernel driver, and the user-space libraries that must be of the same version."""
    text = read_text("/proc/driver/nvidia/version") or ""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version")), "")
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    version = match.group(1) if match else (read_text("/sys/module/nvidia/version") or "").strip()
    libraries = {}
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        place = find_library(name, cache)
        if place:
            number = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real(place))
            libraries[name] = {"path": place, "version": number.group(1) if number else ""}
    return {
        "version": version,
        "line": line,
        "open": "Open Kernel Module" in line,
        "libraries": libraries,
        "gpus": len(gpu_names()),
        "pci_gpus": [found["bus_id"] for found in nvidia_devices(DISPLAYS)],
    }


def cuda_toolkit() -> str:
    """Version of the CUDA toolkit in /usr/local/cuda (or CUDA_HOME); empty if there is none."""
    for place in (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"):
        if not place.startswith("/"):
            continue
        match = re.search(r'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([\d.]+)"', read_text(place + "/version.json") or "")
        match = match or re.search(r"CUDA Version ([\d.]+)", read_text(place + "/version.txt") or "")
        if match:
            return match.group(1)
    return ""


def cudnn(found: Dict[str, str], cache: Dict[str, str]) -> str:
    """cuDNN: the distribution's version, or the one in the name of the system's library."""
    for name, version in sorted(found.items()):
        if name.startswith("nvidia-cudnn-cu"):
            return version
    for name in ("libcudnn.so.9", "libcudnn.so.8"):
        place = find_library(name, cache)
        match = re.search(r"\.so\.([\d.]+)$", real(place)) if place else None
        if match:
            return match.group(1)
    return ""


def ofed() -> Dict[str, str]:
    """The RDMA driver stack: MLNX_OFED/DOCA release where installed, versions of the kernel modules, libibverbs."""
    release = (read_text("/usr/share/mlnx_ofed/release") or read_text("/etc/mlnx-ofed-release") or "").strip()
    if not release:
        script = read_text("/usr/bin/ofed_info", 1 << 16) or ""
        match = re.search(r"((?:MLNX_OFED_LINUX|OFED-internal|DOCA-OFED)-[\w.\-]+)", script)
        release = match.group(1) if match else ""
    facts = {"release": release.splitlines()[0][:100] if release else ""}
    for module in ("mlx5_core", "mlx5_ib", "nvidia_peermem", "efa", "bnxt_re", "irdma"):
        if is_loaded(module):
            facts[module] = (read_text("/sys/module/%s/version" % module) or "").strip() or "in kernel"
    return facts


def operating_system() -> Dict[str, str]:
    """Kernel release, C library and distribution."""
    text = read_text("/etc/os-release") or read_text("/usr/lib/os-release") or ""
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.M)
    return {
        "kernel": (read_text("/proc/sys/kernel/osrelease") or platform.release()).strip(),
        "glibc": "" if ROOT else "-".join(platform.libc_ver()),
        "distribution": name.group(1) if name else "",
        "architecture": platform.machine(),
    }


@probe("software", stage="software", limit_s=20.0)
def software(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Versions of everything between Python and the wire, read without importing or loading any of it."""
    places = search_path()
    cache = loader_cache()
    found = distributions(places)
    directory = torch_directory(places)
    torch = torch_facts(directory) if directory else None
    return {
        "python": {"version": platform.python_version(), "executable": sys.executable, "prefix": sys.prefix},
        "distributions": found,
        "torch": torch,
        "torch_wants_nccl": wanted_nccl(places),
        "nccl": nccl_copies(places, directory, cache),
        "plugins": plugins(cache),
        "environment": redact_environment({name: os.environ[name] for name in VARIABLES if name in os.environ}),
        "driver": driver(cache),
        "cuda_toolkit": cuda_toolkit(),
        "cudnn": cudnn(found, cache),
        "ofed": ofed(),
        "system": operating_system(),
    }
