"""What the training job would run with: Python, torch, every libnccl and which one wins, plugins, driver, OFED.

Nothing is imported or loaded to find out: directory names, small text files and ELF headers are read. Importing torch
would take seconds on every host and touch the GPUs.
"""

import fnmatch
import mmap
import os
import platform
import re
import struct
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple

from nccl_doctor.agent.probing import ROOT, listed, path, probe, read_text
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
LIBRARY_PLACES = (
    "/usr/local/nccl/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/opt/nccl/build/lib",
    "/opt/amazon/openmpi/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
)
DEFAULT_PLACES = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
PLUGIN = re.compile(r"libnccl-(net|tuner|profiler|env|gin|rma)([-.].*)?$")
NCCL_STRING = re.compile(rb"NCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")
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


# --- ELF: what a shared object needs and where it looks -----------------------------------------------------------


UNREADABLE = (OSError, ValueError, OverflowError, struct.error)  # what a damaged file can raise


class Elf(object):
    """The few facts wanted of a 64-bit little-endian ELF file, read without loading it."""

    def __init__(self, absolute: str) -> None:
        with open(path(absolute), "rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if self._map[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (self._section_offset,) = struct.unpack_from("<Q", self._map, 40)
        self._entry_size, self._section_count, self._names = struct.unpack_from("<HHH", self._map, 58)
        self.sections = self._read_sections()

    def _read_sections(self) -> Dict[str, Tuple[int, int]]:
        raw = []
        for number in range(self._section_count):
            base = self._section_offset + number * self._entry_size
            name, _ = struct.unpack_from("<II", self._map, base)
            offset, size = struct.unpack_from("<QQ", self._map, base + 24)
            raw.append((name, offset, size))
        if self._names >= len(raw):
            return {}
        names = raw[self._names][1]
        return {self._string(names + name): (offset, size) for name, offset, size in raw}

    def _string(self, offset: int) -> str:
        end = self._map.find(b"\0", offset, offset + 4096)
        return self._map[offset : end if end >= 0 else offset].decode("utf-8", "replace")

    def dynamic(self) -> Dict[str, List[str]]:
        """``needed``, ``rpath`` and ``runpath`` of the dynamic section."""
        found = {"needed": [], "rpath": [], "runpath": []}  # type: Dict[str, List[str]]
        if ".dynamic" not in self.sections or ".dynstr" not in self.sections:
            return found
        offset, size = self.sections[".dynamic"]
        strings = self.sections[".dynstr"][0]
        for place in range(offset, offset + size - 15, 16):
            tag, value = struct.unpack_from("<qQ", self._map, place)
            if tag == 0:
                break
            key = {1: "needed", 15: "rpath", 29: "runpath"}.get(tag)
            if key == "needed":
                found[key].append(self._string(strings + value))
            elif key:
                found[key].extend(part for part in self._string(strings + value).split(":") if part)
        return found

    def search_constants(self, pattern: "re.Pattern[bytes]") -> Optional[Tuple[bytes, ...]]:
        """Groups of the first match in .rodata: strings lie there; the GPU code, hundreds of MB, does not."""
        if ".rodata" not in self.sections:
            return None
        offset, size = self.sections[".rodata"]
        match = pattern.search(self._map, offset, offset + size)
        return tuple(group or b"" for group in match.groups()) if match else None

    def close(self) -> None:
        """Give the mapping back."""
        self._map.close()


def elf_dynamic(absolute: str) -> Optional[Dict[str, List[str]]]:
    """What a shared object needs and where it looks; None if it is no readable ELF file."""
    try:
        elf = Elf(absolute)
    except UNREADABLE:
        return None
    try:
        return elf.dynamic()
    except UNREADABLE:
        return None
    finally:
        elf.close()


def nccl_version(absolute: str) -> Tuple[str, str]:
    """NCCL version and CUDA version it was built for, from the string NCCL prints; else from the file's name."""
    try:
        elf = Elf(absolute)
    except UNREADABLE:
        groups = _search_start(absolute)
    else:
        try:
            groups = elf.search_constants(NCCL_STRING)
        finally:
            elf.close()
    if groups is None:
        return _version_in_name(absolute), ""
    return groups[0].decode(), groups[1].decode()


def _search_start(absolute: str) -> Optional[Tuple[bytes, ...]]:
    """The version string in the first 4 MiB of a file that is no ordinary ELF file."""
    try:
        with open(path(absolute), "rb") as stream:
            match = NCCL_STRING.search(stream.read(4 << 20))
    except OSError:
        return None
    return tuple(group or b"" for group in match.groups()) if match else None


def _version_in_name(absolute: str) -> str:
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)", real(absolute))
    return match.group(1) if match else ""


def real(absolute: str) -> str:
    """The file behind symbolic links, as a path on the host."""
    found = os.path.realpath(path(absolute))
    return found[len(os.path.realpath(ROOT)) :] if ROOT else found


# --- the dynamic loader's rules -----------------------------------------------------------------------------------


def loader_cache() -> Dict[str, str]:
    """Name -> first path of /etc/ld.so.cache (new format, 64-bit entries of this machine's own architecture)."""
    try:
        with open(path("/etc/ld.so.cache"), "rb") as stream:
            data = stream.read(16 << 20)
    except OSError:
        return {}
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0 or len(data) < start + 48:
        return {}
    (count,) = struct.unpack_from("<I", data, start + 20)
    found = {}  # type: Dict[str, str]
    for number in range(min(count, 200000)):
        base = start + 48 + 24 * number
        if base + 24 > len(data):
            break
        flags, key, value = struct.unpack_from("<iII", data, base)
        if (flags >> 8) & 0xFF not in (3, 10):  # x86-64, aarch64
            continue
        name, place = _c_string(data, start + key), _c_string(data, start + value)
        found.setdefault(name, place)
    return found


def _c_string(data: bytes, offset: int) -> str:
    return data[offset : data.find(b"\0", offset)].decode("utf-8", "replace")


def _library_path() -> List[str]:
    return [entry for entry in re.split(r"[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if entry]


def _expand(entry: str, absolute: str) -> str:
    origin = os.path.dirname(real(absolute))
    return os.path.normpath(entry.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))


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


def loader_search(directory: str) -> List[Tuple[str, str]]:
    """Where the dynamic loader looks for libnccl.so.2 on torch's behalf, in its order: (why, directory)."""
    found = []  # type: List[Tuple[str, str]]
    library = directory + "/lib/libtorch_cuda.so"
    own = elf_dynamic(library) if directory else None
    if own and not own["runpath"]:
        for user in (library, directory + "/lib/libtorch.so", directory + "/lib/libtorch_python.so"):
            dynamic = elf_dynamic(user)
            if dynamic and not dynamic["runpath"]:
                found += [("RPATH of %s" % os.path.basename(user), _expand(entry, user)) for entry in dynamic["rpath"]]
    found += [("LD_LIBRARY_PATH", entry) for entry in _library_path()]
    if own:
        found += [("RUNPATH of libtorch_cuda.so", _expand(entry, library)) for entry in own["runpath"]]
    return found


def _libraries_in(directory: str) -> List[str]:
    return [directory.rstrip("/") + "/" + name for name in listed(directory) if re.match(r"libnccl\.so(\.\d+)*$", name)]


def nccl_copies(places: List[str], directory: str, cache: Dict[str, str]) -> List[Dict[str, Any]]:
    """Every libnccl that is found, in the loader's order; the first that the loader would take has ``wins``."""
    wanted = [
        ("LD_PRELOAD", entry) for entry in re.split(r"[: ]+", os.environ.get("LD_PRELOAD", "")) if "libnccl.so" in entry
    ]
    ordered = list(wanted)
    for why, place in loader_search(directory):
        ordered += [(why, entry) for entry in _libraries_in(place)]
    if "libnccl.so.2" in cache:
        ordered.append(("ld.so.cache", cache["libnccl.so.2"]))
    for place in DEFAULT_PLACES:
        ordered += [("default directory", entry) for entry in _libraries_in(place)]
    loadable = len(ordered)
    others = [place + "/nvidia/nccl/lib" for place in places] + [os.path.join(sys.prefix, "lib")] + list(LIBRARY_PLACES)
    for place in others:
        ordered += [("found on disk", entry) for entry in _libraries_in(place)]
    copies = {}  # type: Dict[str, Dict[str, Any]]
    for position, (why, entry) in enumerate(ordered):
        target = real(entry)
        if target in copies or not os.path.isfile(path(target)):
            continue
        # the loader asks for libnccl.so.2: a directory that has only libnccl.so is passed over
        has_name = why == "LD_PRELOAD" or os.path.exists(path(os.path.dirname(entry) + "/libnccl.so.2"))
        version, cuda = nccl_version(target)
        copies[target] = {
            "path": entry,
            "real_path": target,
            "version": version,
            "cuda": cuda,
            "found_by": why,
            "loadable": position < loadable and has_name,
            "wins": False,
        }
    found = list(copies.values())[:40]
    for copy in found:
        if copy["loadable"]:
            copy["wins"] = True
            break
    return found


def plugins(cache: Dict[str, str]) -> List[Dict[str, Any]]:
    """NCCL's plugins that dlopen would find: libnccl-net*.so, libnccl-tuner*.so and the like."""
    found = {}  # type: Dict[str, Dict[str, Any]]
    places = [("LD_LIBRARY_PATH", place) for place in _library_path()]
    places += [("default directory", place) for place in DEFAULT_PLACES]
    entries = []  # type: List[Tuple[str, str, str]]
    for why, place in places:
        entries += [(why, name, place.rstrip("/") + "/" + name) for name in listed(place) if PLUGIN.match(name)]
    entries += [("ld.so.cache", name, place) for name, place in sorted(cache.items()) if PLUGIN.match(name)]
    for why, name, place in entries:
        match = PLUGIN.match(name)
        target = real(place)
        key = name if name.endswith(".so") else target
        if match and key not in found and os.path.isfile(path(target)):
            found[key] = {"name": name, "kind": match.group(1), "path": place, "real_path": target, "found_by": why}
    return [found[key] for key in sorted(found)][:40]


# --- driver, CUDA, OFED, system -----------------------------------------------------------------------------------


def driver(cache: Dict[str, str]) -> Dict[str, Any]:
    """The NVIDIA kernel driver, and the user-space libraries that must be of the same version."""
    text = read_text("/proc/driver/nvidia/version") or ""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version")), "")
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    version = match.group(1) if match else (read_text("/sys/module/nvidia/version") or "").strip()
    libraries = {}
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        place = _find_library(name, cache)
        if place:
            number = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real(place))
            libraries[name] = {"path": place, "version": number.group(1) if number else ""}
    return {
        "version": version,
        "line": line,
        "open": "Open Kernel Module" in line,
        "libraries": libraries,
        "gpus": len(listed("/proc/driver/nvidia/gpus")),
        "pci_gpus": pci_gpus(),
    }


def _find_library(name: str, cache: Dict[str, str]) -> str:
    for place in _library_path():
        if os.path.exists(path(place + "/" + name)):
            return place + "/" + name
    if name in cache and os.path.exists(path(cache[name])):
        return cache[name]
    for place in DEFAULT_PLACES:
        if os.path.exists(path(place + "/" + name)):
            return place + "/" + name
    return ""


def pci_gpus() -> List[str]:
    """PCI addresses of NVIDIA display and 3D controllers, whether or not a driver serves them."""
    found = []
    for device in listed("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + device
        if (read_text(base + "/vendor") or "").strip() != "0x10de":
            continue
        if (read_text(base + "/class") or "").strip()[:6] in ("0x0300", "0x0302"):
            found.append(device)
    return found


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
        place = _find_library(name, cache)
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
        loaded = os.path.isdir(path("/sys/module/" + module))
        version = (read_text("/sys/module/%s/version" % module) or "").strip()
        if loaded:
            facts[module] = version or "in kernel"
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
