"""Probes of ``bench`` and of the collectives stage: what a host offers, its ranks from start to end, and their stop."""

import json
import os
import re
import socket
import sys
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent import probing
from nccl_doctor.agent.collective import launch, memory
from nccl_doctor.agent.gpu_holders import gpu_names
from nccl_doctor.agent.pci import DISPLAYS, nvidia_devices
from nccl_doctor.agent.probes.gpu import SMI_LIMIT_S
from nccl_doctor.agent.probes.infiniband import ports_of
from nccl_doctor.agent.probes.interfaces import kernel_addresses
from nccl_doctor.agent.probes.listening import bound
from nccl_doctor.agent.probing import probe, run_command

# Runs in the Python that the ranks will use. It does not import torch: that takes seconds, and may fail or hang.
_LOOK_FOR_TORCH = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib.util, json, os
found = {"torch": "", "cuda": ""}
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    names = {}
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as stream:
            for line in stream:
                name, _, value = line.partition("=")
                names[name.split(":")[0].strip()] = value.strip().strip("'\\"")
    except OSError:
        pass
    found["torch"] = names.get("__version__", "unknown")
    found["cuda"] = "" if names.get("cuda", "None") == "None" else names["cuda"]
print(json.dumps(found))
"""


@probe("bench-prepare")
def prepare(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """What this host offers to a benchmark: torch, GPUs and who uses them, memory, addresses, a free port.

    ``arguments``: ``python`` (default: this one, or the first of ``also`` that has torch where this one has none),
    ``port`` (0: choose a free one; else whether that one is free), ``visible`` (the ranks' CUDA_VISIBLE_DEVICES, where it
    is not that of this process).
    """
    python = str(arguments.get("python") or sys.executable)
    found = _torch(python)
    if not arguments.get("python"):
        for other in arguments.get("also") or []:
            if not found.get("torch") and os.access(str(other), os.X_OK):
                candidate = _torch(str(other))
                if candidate.get("torch"):
                    python, found = str(other), candidate
    port = int(arguments.get("port") or 0)
    visible = arguments.get("visible")
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # At once: where nothing keeps the driver up, each call starts all GPUs anew, and these share one start.
    (gpus, unknown), (busy, busy_unknown), (pcie, _), nvlinks = probing.in_parallel(
        [
            lambda: _query("--query-gpu=name", visible),
            lambda: _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", visible),
            lambda: _query("--query-gpu=pcie.link.gen.max,pcie.link.width.max", visible),
            _nvlinks,
        ],
        lambda ask: ask(),
        4,
    )
    return {
        "host": socket.gethostname(),
        "python": python,
        "torch": found,
        "gpus": gpus,
        "gpus_unknown": unknown,
        "busy": busy,
        "busy_unknown": busy_unknown,
        "hcas": _hcas(),
        **nvlinks,
        "pcie": pcie,
        "peermem": probing.is_loaded("nvidia_peermem") or probing.is_loaded("nv_peer_mem"),
        "memory": memory.available_memory(),
        "addresses": {item["address"]: item["name"] for item in kernel_addresses()},
        "name_addresses": _resolve(socket.gethostname()),
        "route_source": _route_source(),
        "port": port or launch.free_port(),
        "port_free": _is_free(port) if port else True,
    }


def _torch(python: str) -> Dict[str, Any]:
    result = run_command([python, "-c", _LOOK_FOR_TORCH], limit_s=20.0)
    if result.outcome != "ok":
        return {"torch": "", "error": "%s: %s" % (python, result.detail or result.outcome)}
    try:
        found: Dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"torch": "", "error": "%s: answered %r" % (python, result.stdout[:200])}
    return found


def _query(fields: str, visible: Optional[str]) -> Tuple[List[str], str]:
    """A line for each GPU that the ranks can have (or for each process there); or why that is not known of GPUs there are."""
    if visible is not None and visible.strip() in (
        "",
        "-1",
        "NoDevFiles",
    ):  # the last is Slurm's, of a job without GPUs
        return [], ""
    # A part of a GPU (MIG) is none that nvidia-smi could be asked about.
    chosen = ["-i", visible] if visible is not None and "MIG" not in visible else []
    asked = ["nvidia-smi", *chosen, fields, "--format=csv,noheader"]
    result = run_command(asked, SMI_LIMIT_S)
    if result.outcome == "ok":
        return [line.strip() for line in result.stdout.splitlines() if line.strip()], ""
    there = bool(gpu_names())
    if result.outcome != "tool-missing":  # without it, a card on the bus alone may have no driver at all
        there = there or bool(nvidia_devices(DISPLAYS))
    if not there:
        return [], ""
    return [], "%s: %s" % (" ".join(asked), result.detail or result.outcome)


def _nvlinks() -> Dict[str, Any]:
    """Active NVLinks of the GPU that has the fewest, and the slowest link's rate, from ``nvidia-smi nvlink -s``.

    None where it does not answer: that is no GPU without NVLinks.
    """
    result = run_command(["nvidia-smi", "nvlink", "-s"], SMI_LIMIT_S)
    if result.outcome != "ok":
        return {"nvlinks": None, "nvlink_gbs": 0.0}
    counts: List[int] = []
    rates: List[float] = []
    for line in result.stdout.splitlines():
        if line.startswith("GPU "):
            counts.append(0)
        match = re.match(r"\s+Link \d+: ([0-9.]+) GB/s", line)
        if match and counts:
            counts[-1] += 1
            rates.append(float(match.group(1)))
    return {"nvlinks": min(counts) if counts else 0, "nvlink_gbs": min(rates) if rates else 0.0}


def _hcas() -> List[Dict[str, Any]]:
    """RDMA ports with state and rate."""
    found = []
    for name in probing.listed("/sys/class/infiniband"):
        for port in ports_of(name):
            where = "/sys/class/infiniband/%s/ports/%s/" % (name, port)
            rate = re.match(r"([0-9.]+) Gb/sec", probing.first_line(where + "rate") or "")
            state = probing.first_line(where + "state") or ""
            rate_gbps = float(rate.group(1)) if rate else 0.0
            found.append({"name": name, "port": int(port), "state": state, "rate_gbps": rate_gbps})
    return found


def _resolve(name: str) -> List[str]:
    try:
        return sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)})
    except OSError:
        return []


def _route_source() -> str:
    """The address this host would send from by its default route (nothing is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))
            return str(probe_socket.getsockname()[0])
        except OSError:
            return ""


def _is_free(port: int) -> bool:
    """Whether the store could listen there; connections that are over and wait out their time are not in its way."""
    try:
        bound(socket.SOCK_STREAM, port).close()
    except OSError:
        return False
    return True


@probe("bench")
def bench(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Run this host's ranks of one world to their end; see :func:`nccl_doctor.agent.collective.launch.launch`."""
    return launch.launch(arguments, probing.emitter())


@probe("bench-stop")
def stop(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """End the ranks that run here, with their evidence: the ``bench`` probe then answers. ``why`` is kept with it."""
    return {"stopped": launch.stop_all(str(arguments.get("why") or "another host had failed"))}
