"""GPUs: NVML's answers, and three witnesses beside it: nvidia-smi, the driver's /proc tree, and the PCI bus."""

import os
import stat
import sys
from typing import Any, Dict, List, Optional

from nccl_doctor.agent import isolated, nvml
from nccl_doctor.agent.containers import in_container
from nccl_doctor.agent.pci import BRIDGES, DISPLAYS, nvidia_devices
from nccl_doctor.agent.probing import ProbeTrouble, first_line, listed, owner, path, probe, read_text, run_command

# Without persistence mode the driver starts each of eight GPUs anew: on Azure's ND A100 v4 in more than 25 s (AgentBaker 2829).
NVML_LIMIT_S = 42.0
NVML_START_S = 36.0  # for nvmlInit
NVML_SILENCE_S = 10.0  # for any other single call
SMI_LIMIT_S = 15.0
_NEWEST_CALL = "nvmlDeviceGetMarginTemperature"  # of those we ask: nvidia-ml-py 12.570
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY")
_LIBRARY_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_QUERY = ("pci.bus_id", "uuid", "name", "driver_version")


@probe("gpu", "gpu", limit_s=58.0)
def gpu(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """All that four witnesses say of the GPUs.

    Arguments, in seconds: ``nvml_limit_s``, ``nvml_start_s`` (for nvmlInit), ``nvml_silence_s`` (for any other call) and
    ``smi_limit_s``; ``use_only``: just who uses each GPU and how much, by NVML alone. ``nvml.outcome`` says how NVML's
    part ended; a hang is ``timed-out`` with the call it hung in, never a hang of this probe.
    """
    data = _witnesses()
    if not _any_sign(data):
        not_run = {"outcome": "not-run", "detail": "no NVIDIA device, driver or library on this host"}
        return dict(data, nvml=not_run, smi=not_run)
    pynvml = find_pynvml()
    if pynvml is None:
        data["module"] = "pynvml"  # the controller sends its own copy and asks again
        raise ProbeTrouble("tool-missing", "python module pynvml: not found, or too old", data)
    silence_s = float(arguments.get("nvml_silence_s", NVML_SILENCE_S))
    start_s = float(arguments.get("nvml_start_s", NVML_START_S))
    use_only = bool(arguments.get("use_only"))
    data.update(_nvml(pynvml, float(arguments.get("nvml_limit_s", NVML_LIMIT_S)), silence_s, start_s, use_only))
    if use_only:
        return dict(data, smi={"outcome": "not-run", "detail": "not asked"})
    hung = data["nvml"]["outcome"] == "timed-out"
    limit_s = float(arguments.get("smi_limit_s", SMI_LIMIT_S))
    data["smi"] = _smi(min(limit_s, 5.0) if hung else limit_s)
    return data


def find_pynvml() -> Any:
    """pynvml; None where there is none, or an old one: R495's counts 12 of an H100's 18 NVLinks and knows no fabric."""
    try:
        import pynvml
    except ImportError:
        return None
    if hasattr(pynvml, _NEWEST_CALL):
        return pynvml
    del sys.modules["pynvml"]  # so that the copy that will be sent is imported
    return None


def _witnesses() -> Dict[str, Any]:
    """What can be read without asking the driver to do anything: this part cannot hang."""
    return {
        "pci_gpus": nvidia_devices(DISPLAYS),
        "nvswitches": len(nvidia_devices(BRIDGES)),
        "proc_gpus": _proc_gpus(),
        "module_version": first_line("/sys/module/nvidia/version"),
        "module_flavor": _module_flavor(),
        "device_nodes": _device_nodes(),
        "libraries": _libraries(),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "container": in_container(),
        "fabric_manager": _fabric_manager(),
        "imex_channels": listed("/dev/nvidia-caps-imex-channels"),
        "system": {},
        "gpus": [],
        "pairs": [],
    }


def _any_sign(data: Dict[str, Any]) -> bool:
    return bool(
        data["pci_gpus"] or data["proc_gpus"] or data["module_version"] or data["device_nodes"] or data["libraries"]
    )


def _proc_gpus() -> List[Dict[str, str]]:
    found = []
    for address in listed("/proc/driver/nvidia/gpus"):
        entry = {"bus_id": nvml.bus_id(address)}
        for line in (read_text("/proc/driver/nvidia/gpus/%s/information" % address, 8192) or "").splitlines():
            name, _, value = line.partition(":")
            entry[name.strip().lower().replace(" ", "_")] = value.strip()
        found.append(entry)
    return found


def _module_flavor() -> Optional[str]:
    """``open`` or ``proprietary``, from the driver's own version file; None without a loaded driver."""
    line = first_line("/proc/driver/nvidia/version")
    if line is None:
        return None
    return "open" if "Open Kernel Module" in line else "proprietary"


def _device_nodes() -> List[str]:
    """The names of /dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm ..., as far as they are there."""
    return [name for name in listed("/dev") if name.startswith("nvidia") and not _is_directory("/dev/" + name)]


def _is_directory(absolute: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path(absolute)).st_mode)
    except OSError:
        return False


def _libraries() -> List[str]:
    """Where the dynamic linker would find libnvidia-ml, as far as files tell (the loader's own search decides)."""
    found = [place for place in _LIBRARY_PLACES if "libnvidia-ml.so.1" in listed(place)]
    for place in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if place and os.path.exists(os.path.join(place, "libnvidia-ml.so.1")):
            found.append(place)
    return found


def _fabric_manager() -> Dict[str, Any]:
    """Whether a fabric manager process runs (a container does not see the host's), and its version where it is told.

    None where the processes of other users are hidden (hidepid).
    """
    names = (first_line("/proc/%s/comm" % pid) or "" for pid in listed("/proc") if pid.isdecimal())
    running: Optional[bool] = any(name.startswith("nv-fabricmanage") for name in names)
    if not running and first_line("/proc/1/comm") is None:
        running = None
    version = run_command(["nv-fabricmanager", "--version"], limit_s=3.0)
    text = version.stdout.strip() if version.outcome == "ok" else ""
    return {
        "running": running,
        "installed": version.outcome != "tool-missing",
        "version": text.split()[-1] if text else None,
    }


def _nvml(pynvml: Any, limit_s: float, silence_s: float, start_s: float, use_only: bool) -> Dict[str, Any]:
    """Ask NVML in a child process; the answer's ``nvml`` part says how that ended."""
    answer = isolated.call(lambda report: nvml.collect(pynvml, report, use_only), limit_s, silence_s, start_s=start_s)
    data: Dict[str, Any] = {"system": {}, "gpus": [], "pairs": []}
    state: Dict[str, Any] = {"outcome": answer.outcome, "detail": answer.detail, "seconds": round(answer.seconds, 3)}
    last: Dict[str, Any] = {}
    done = False
    for step in answer.reports:
        if "at" in step:
            last = step
        elif "failed" in step:
            state.update(outcome="failed", code=step["failed"]["code"], call=step["failed"]["call"])
            state["detail"] = "%s: %s" % (step["failed"]["call"], step["failed"]["text"])
            done = True
        elif "gpu" in step:
            data["gpus"].append(step["gpu"])
        else:
            done = done or "done" in step
            data.update({name: value for name, value in step.items() if name in data})
    if not done and answer.outcome != "ok":
        state["call"] = nvml.call_of(last)
        state["detail"] = "NVML call %s %s" % (state["call"], answer.detail)
    elif not done:
        state.update(outcome="failed", detail="NVML's answers ended early")
    _name_processes(data["gpus"])
    data["nvml"] = state
    return data


def _name_processes(gpus: List[Dict[str, Any]]) -> None:
    for one in gpus:
        for process in one.get("processes") or ():
            process["name"] = first_line("/proc/%d/comm" % process["pid"])
            process["uid"] = owner(process["pid"])


def _smi(limit_s: float) -> Dict[str, Any]:
    """What nvidia-smi lists: one entry per GPU, and every line that is not one (its complaints)."""
    result = run_command(
        ["nvidia-smi", "--query-gpu=" + ",".join(_QUERY), "--format=csv,noheader"], limit_s, limit_bytes=1 << 20
    )
    gpus, other = [], []
    for line in result.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_QUERY) and (cells[0].count(":") == 2 or cells[1].startswith("GPU-")):
            entry = dict(zip(("bus_id", "uuid", "name", "driver"), cells))
            entry["bus_id"] = nvml.bus_id(cells[0])
            gpus.append(entry)
        elif line.strip():
            other.append(line.strip()[:500])
    other += [line.strip()[:500] for line in result.stderr.splitlines() if line.strip()]
    return {
        "outcome": result.outcome,
        "detail": result.detail,
        "seconds": round(result.seconds, 3),
        "gpus": gpus,
        "lines": other[:40],
    }
