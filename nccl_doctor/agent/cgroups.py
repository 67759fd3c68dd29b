"""Limits that a container, a Slurm step or a systemd slice sets on this process, by its control groups (v1 and v2)."""

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.filesystems import mounts
from nccl_doctor.agent.probing import path, readable, whole_number


def _cgroup_places(process: str = "self") -> Dict[str, List[str]]:
    """Controller -> directories from the process' own group up to the top that is visible; ``unified`` for v2."""
    own = {}
    for line in readable("/proc/%s/cgroup" % process).splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(",") if parts[1] else ["unified"]:
                own[controller] = parts[2]
    places = {}
    for mount in mounts():
        if mount["type"] == "cgroup2":
            names = ["unified"]
        elif mount["type"] == "cgroup":
            names = [name for name in mount["options"].split(",") if name in own]
        else:
            continue
        for name in names:
            relative = own.get(name, "/")
            if mount["root"] != "/" and relative.startswith(mount["root"]):
                relative = relative[len(mount["root"]) :]
            place = os.path.normpath(mount["point"] + "/" + relative)
            if not os.path.isdir(path(place)):
                place = mount["point"]  # the path is the outer host's; what is mounted is the container's own
            chain = [place]
            while place != mount["point"] and len(chain) < 32:
                place = os.path.dirname(place)
                chain.append(place)
            places[name] = chain
    return places


def _tightest(chain: List[str], limit: str, usage: str) -> Tuple[Optional[int], Optional[int], int, str]:
    """The limit that leaves least room, of this group and those above it: limit, use, cache within the use, and directory.

    It need not be the smallest: a larger limit further up is shared with others. Cache counts as free: the kernel gives it
    up. A use that is not readable is None, and then nothing may be left. Without any limit, limit and use are None.
    """
    found = []
    for place in chain:
        number, used = whole_number(readable(place + "/" + limit)), whole_number(readable(place + "/" + usage))
        if number is not None and number < (1 << 60):  # "max", or version 1's largest number, is unlimited
            cache = _cache(place) if limit.startswith("memory.") else 0
            found.append((0 if used is None else number - used + cache, number, used, cache, place))
    return min(found, key=lambda one: one[0])[1:] if found else (None, None, 0, "")


def _cache(group: str) -> int:
    """Bytes of page cache of a group and those below it, which version 1 tells beside the group's own."""
    told = dict(re.findall(r"^(\w+) (\d+)$", readable(group + "/memory.stat"), re.M))
    own, all_below = (
        sum(int(told.get(prefix + name, 0)) for name in ("inactive_file", "active_file")) for prefix in ("", "total_")
    )
    return max(own, all_below)


def cgroup() -> Dict[str, Any]:
    """Limits that a container, a Slurm step or a systemd slice sets on this process. None: unlimited.

    ``version`` is 0 where no cgroup file system is mounted: what limits there are is not known.
    """
    places = _cgroup_places()
    unified = places.get("unified", [])
    v2 = "memory" not in places
    found = {"version": 1 if not v2 else 2 if unified else 0}  # type: Dict[str, Any]
    group = places.get("memory", unified)
    files = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    found["memory_limit_bytes"], used, cache, where = _tightest(group, *files)
    if where:
        found["memory_group"], found["memory_used_bytes"], found["memory_cache_bytes"] = where, used, cache
    found["oom_kills"] = (oom_kills(_oom_file(group[0], v2)) or 0) if group else 0
    group = places.get("pids", unified)
    found["pids_limit"], used, _, where = _tightest(group, "pids.max", "pids.current")
    if where:
        found["pids_group"], found["pids_used"] = where, used
    found["cpu_limit"] = _cpu_limit(places.get("cpu", unified), "cpu" not in places)
    return found


def oom_file_of(pid: int) -> str:
    """The file in which the kernel counts what it kills in this process' group for want of memory; empty: there is none."""
    places = _cgroup_places(str(pid))
    group = places.get("memory") or places.get("unified")
    return _oom_file(group[0], "memory" not in places) if group else ""


def _oom_file(group: str, v2: bool) -> str:
    """The file of the group itself, which counts kills in it and below; a group above counts those of any job since boot."""
    return group + ("/memory.events" if v2 else "/memory.oom_control")


def oom_kills(file: str) -> Optional[int]:
    """How many processes were killed by such a file; None where it does not tell."""
    match = re.search(r"^oom_kill (\d+)", readable(file), re.M)
    return int(match.group(1)) if match else None


def _cpu_limit(chain: List[str], v2: bool) -> Optional[float]:
    """The tightest CPU quota on the way up, in CPUs; None for no quota."""
    quotas = []
    for place in chain:
        if v2:
            quota, _, period = readable(place + "/cpu.max").partition(" ")
        else:
            quota, period = readable(place + "/cpu.cfs_quota_us"), readable(place + "/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / float(period))
    return min(quotas) if quotas else None
