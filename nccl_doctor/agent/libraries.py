"""The dynamic loader's rules: every libnccl and which one torch would get, NCCL's plugins, and other libraries by name."""

import os
import re
import struct
import sys
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.elf import UNREADABLE, Elf, elf_dynamic
from nccl_doctor.agent.probing import listed, path, real

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


def find_library(name: str, cache: Dict[str, str]) -> str:
    """The library of this name that the dynamic loader would find; empty if there is none."""
    before, behind = ([place + "/" + name for place in places] for places in (_library_path(), DEFAULT_PLACES))
    candidates = [*before, *([cache[name]] if name in cache else []), *behind]
    return next((place for place in candidates if os.path.exists(path(place))), "")


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
    preloaded = re.split(r"[: ]+", os.environ.get("LD_PRELOAD", ""))
    ordered = [("LD_PRELOAD", entry) for entry in preloaded if "libnccl.so" in entry]
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
    winner = next((copy for copy in found if copy["loadable"]), None)
    if winner:
        winner["wins"] = True
    return found


def nccl_version(absolute: str) -> Tuple[str, str]:
    """NCCL version and CUDA version it was built for, from the string NCCL prints; else from the file's name."""
    try:
        with Elf(absolute) as elf:
            groups = elf.search_constants(NCCL_STRING)
    except UNREADABLE:
        groups = _search_start(absolute)
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


def plugins(cache: Dict[str, str]) -> List[Dict[str, Any]]:
    """NCCL's plugins that dlopen would find: libnccl-net*.so, libnccl-tuner*.so and the like."""
    places = [("LD_LIBRARY_PATH", place) for place in _library_path()]
    places += [("default directory", place) for place in DEFAULT_PLACES]
    entries = [(why, name, place.rstrip("/") + "/" + name) for why, place in places for name in listed(place)]
    entries += [("ld.so.cache", name, place) for name, place in sorted(cache.items())]
    found = {}  # type: Dict[str, Dict[str, Any]]
    for why, name, place in entries:
        match = PLUGIN.match(name)
        if match is None:
            continue
        target = real(place)
        key = name if name.endswith(".so") else target
        if key not in found and os.path.isfile(path(target)):
            found[key] = {"name": name, "kind": match.group(1), "path": place, "real_path": target, "found_by": why}
    return [found[key] for key in sorted(found)][:40]
