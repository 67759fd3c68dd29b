"""Which libnccl wins, told by the software probe from ELF headers and by the dynamic loader itself: they must agree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_host import PROJECT

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler to build small shared libraries")

LOAD = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
print(next(line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line))
"""
TELL = """
import json
from nccl_doctor.agent.probes.software import software
print(next((copy["real_path"] for copy in software({})["nccl"] if copy["wins"]), "none"))
"""


def compile_library(target: Path, source: str, *options: str) -> None:
    assert COMPILER
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(target), *options]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)


@pytest.mark.parametrize("tag", ["--disable-new-dtags", "--enable-new-dtags"])
@pytest.mark.parametrize("variable", ["", "LD_LIBRARY_PATH", "LD_PRELOAD"])
def test_probe_and_loader_agree(tmp_path: Path, tag: str, variable: str) -> None:
    site = tmp_path / "site-packages"
    own, other = site / "nvidia/nccl/lib/libnccl.so.2", tmp_path / "other/libnccl.so.2"
    for place, version in ((own, "2.27.3"), (other, "2.18.3")):
        text = (
            f'const char *banner = "NCCL version {version}+cuda12.8"; int ncclGetVersion(int *v) {{ return !banner; }}'
        )
        compile_library(place, text, "-Wl,-soname,libnccl.so.2")
    torch = site / "torch/lib/libtorch_cuda.so"
    compile_library(
        torch,
        "int ncclGetVersion(int *); int call(void) { return ncclGetVersion(0); }",
        "-Wl,--no-as-needed",
        str(own),
        f"-Wl,{tag},-rpath,$ORIGIN/../../nvidia/nccl/lib",
    )
    (site / "torch/version.py").write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    value = {"LD_LIBRARY_PATH": str(other.parent), "LD_PRELOAD": str(other)}.get(variable)
    environment = {"PATH": os.environ["PATH"], **({variable: value} if value else {})}

    def ask(code: str, *words: str, path: str) -> str:
        given = {**environment, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=given, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    loaded = ask(LOAD, str(torch), path="")
    told = ask(TELL, path=f"{site}:{PROJECT}")
    assert told == loaded
    expected = other if variable == "LD_PRELOAD" or (variable and tag == "--enable-new-dtags") else own
    assert loaded == str(expected)
