"""The GPUs' device files, and the processes that hold one open: by /dev and /proc alone."""

import os
import pwd
import re
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from nccl_doctor.agent.probing import first_line, link, listed, owner, path, stat_fields, uptime

STUCK_READINGS, STUCK_INTERVAL_S = 5, 0.2  # of processes in state D


def gpu_nodes() -> List[str]:
    """``nvidia0`` and the like, one for each GPU: in a container those it was given, by their numbers on the host."""
    return [name for name in listed("/dev") if name.startswith("nvidia") and name[6:].isdecimal()]


def gpu_names() -> List[str]:
    """A name for each GPU that the driver lists, or that has a device file: a sandbox (gVisor) has the latter alone."""
    return listed("/proc/driver/nvidia/gpus") or gpu_nodes()


def gpu_processes() -> Dict[str, Any]:
    """Processes with an open GPU device, but for this agent and its own children, which ask NVML at the same time.

    ``not_permitted`` counts those that hid their files.

    Command lines are not read: they carry secrets. A zombie whose threads live on still holds its devices.
    """
    found = []
    hidden = seen = 0 if os.path.isdir(path("/proc/1")) else 1  # hidepid: others' processes are not even listed
    nodes = gpu_nodes()
    if not nodes:
        return {"gpu_devices": 0, "processes": [], "not_permitted": 0, "processes_seen": 0}
    own = {os.getpid(), os.getppid()}
    up_s = uptime()
    for name in os.listdir(path("/proc")):
        if not name.isdigit() or int(name) in own:
            continue
        seen += 1
        try:
            devices = _gpu_devices("/proc/%s/fd" % name)
            # Where its leader is gone, a thread of it may live on.
            if not devices and stat_fields(int(name))[:1] == ["Z"]:
                for thread in os.listdir(path("/proc/%s/task" % name)):
                    devices |= _gpu_devices("/proc/%s/task/%s/fd" % (name, thread))
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # it ended while we looked
        if devices:
            found.append(_process(int(name), sorted(devices), up_s))
    _read_again([process for process in found if process["state"] == "D"])
    found = [process for process in found if process["state"] and process["parent"] != os.getpid()]
    return {
        "gpu_devices": len(nodes),
        "processes": sorted(found, key=lambda process: process["pid"])[:200],
        "not_permitted": hidden,
        "processes_seen": seen,
    }


def _read_again(waiting: List[Dict[str, Any]]) -> None:
    """Look again: a process that reads a disk is in state D for a moment; one that stays in it and uses no CPU is stuck."""
    before = {process["pid"]: _state_and_ticks(process["pid"]) for process in waiting}
    for _ in range(STUCK_READINGS if waiting else 0):
        time.sleep(STUCK_INTERVAL_S)
        for process in waiting:
            state, ticks = _state_and_ticks(process["pid"])
            if process["state"] == "D" and (state != "D" or ticks != before[process["pid"]][1]):
                process["state"] = state if state != "D" else "R"  # it ran in between


def _state_and_ticks(pid: int) -> Tuple[str, List[str]]:
    """State, and CPU time in user and kernel mode; empty where it has ended."""
    words = stat_fields(pid)
    return (words[0], words[11:13]) if words else ("", [])


def _gpu_devices(directory: str) -> Set[str]:
    targets = {link("%s/%s" % (directory, entry)) for entry in os.listdir(path(directory))}
    return {target for target in targets if re.match(r"/dev/nvidia\d+$", target)}


def _process(pid: int, devices: List[str], uptime_s: Optional[float]) -> Dict[str, Any]:
    words, uid = stat_fields(pid), owner(pid)
    try:
        user = pwd.getpwuid(uid).pw_name if uid is not None else ""
    except KeyError:
        user = str(uid)
    age = None
    if uptime_s is not None and len(words) > 19:
        age = max(0.0, uptime_s - int(words[19]) / float(os.sysconf("SC_CLK_TCK")))
    return {
        "pid": pid,
        "command": first_line("/proc/%d/comm" % pid) or "",
        "user": user,
        "state": words[0] if words else "",
        "parent": int(words[1]) if len(words) > 1 else None,
        "age_s": age,
        "devices": devices,
    }
