"""Ask a real libnccl what it makes of a setting. No GPU is needed: ``ncclGetUniqueId`` reads configuration and
environment, chooses the interface and listens; ``ncclCommInitRank`` then fails with CUDA's own error.

    python tests/tools/ask_nccl.py LIBRARY... [--set NAME=VALUE ...] [--conf FILE]

prints what each library said. LIBRARY is a libnccl.so.2 (from the nvidia-nccl-cu12 wheels, say) or a folder that holds
some. tests/unit/env/test_real_nccl.py asks all that NCCL_DOCTOR_LIBNCCL names (separated by colons).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

# What a child runs: the library keeps what it read for the life of a process.
_CHILD = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
version, unique = ctypes.c_int(), ctypes.create_string_buffer(128)
library.ncclGetVersion(ctypes.byref(version))
result = library.ncclGetUniqueId(unique)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
if "init" in sys.argv:
    communicator = ctypes.c_void_p()
    library.ncclCommInitRank(ctypes.byref(communicator), 1, Id.from_buffer_copy(unique.raw), 0)
ctypes.CDLL(None).fflush(None)
os.write(2, b"\\nASKED %d %d\\n" % (version.value, result))
os._exit(0)
"""


class Answer(NamedTuple):
    """What one library said. ``result`` is that of ncclGetUniqueId: 0 is success."""

    version: str
    result: int
    log: str


def libraries() -> list[Path]:
    """The libraries NCCL_DOCTOR_LIBNCCL names, else the one of a wheel in this Python; none if there is none."""
    named = [Path(word) for word in os.environ.get("NCCL_DOCTOR_LIBNCCL", "").split(os.pathsep) if word]
    if not named:
        try:
            found = importlib.util.find_spec("nvidia.nccl")
        except ModuleNotFoundError:
            found = None
        named = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    files = [file for place in named for file in (sorted(place.rglob("libnccl.so*")) if place.is_dir() else [place])]
    return [file for file in files if file.is_file()]


def version_of(library: Path) -> tuple[int, int, int]:
    """The release of a library, by ncclGetVersion."""
    number = ctypes.c_int()
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number))
    return number.value // 10000, number.value % 10000 // 100, number.value % 100


def ask(
    library: Path, settings: dict[str, str], conf: bytes | None = None, init: bool = False, debug: bool = True
) -> Answer:
    """Run it with these variables (and, with ``debug``, NCCL_DEBUG=INFO) and, by NCCL_CONF_FILE, this file."""
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            **({"NCCL_DEBUG": "INFO"} if debug else {}),
            **settings,
        }
        if conf is not None:
            file = Path(home, "conf")
            file.write_bytes(conf)
            environment["NCCL_CONF_FILE"] = str(file)
        argv = [sys.executable, "-I", "-c", _CHILD, str(library), *(["init"] if init else [])]
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=60)
    said = (done.stdout + done.stderr).decode("utf-8", "backslashreplace")
    log, _, tail = said.rpartition("\nASKED ")
    if not tail:
        raise RuntimeError(f"{library}: it ended with {done.returncode}: {said[-500:]}")
    number, result = map(int, tail.split())
    return Answer(f"{number // 10000}.{number % 10000 // 100}.{number % 100}", result, log)


def main() -> None:
    """Print what each library says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="*", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--conf", type=Path, help="an nccl.conf")
    options = parser.parse_args()
    if options.library:
        os.environ["NCCL_DOCTOR_LIBNCCL"] = os.pathsep.join(map(str, options.library))
    found = libraries()
    if not found:
        parser.error("no libnccl: name one, or set NCCL_DOCTOR_LIBNCCL")
    settings = dict(word.split("=", 1) for word in options.set)
    for library in found:
        answer = ask(library, settings, options.conf.read_bytes() if options.conf else None, init=True)
        print(f"=== NCCL {answer.version}, ncclGetUniqueId gave {answer.result}\n{answer.log}")


if __name__ == "__main__":
    main()
