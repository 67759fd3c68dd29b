"""The host around the job: shared memory, limits, disks, memory, cgroups, sysctls, and who holds the GPUs."""

import glob
import os
import pwd
import re
import resource
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from nccl_doctor.agent.probing import path, probe, read_text, run_command, uptime

STUCK_READINGS, STUCK_INTERVAL_S = 5, 0.2  # of processes in state D
FILESYSTEM_LIMIT_S = 3.0  # a mount that does not answer in this time hangs: local ones answer in microseconds
MOUNTS_BYTES = 16 << 20  # of the table's text: a Kubernetes host has thousands of mounts
UNLIMITED = -1
SYSCTLS = (
    "fs.file-max",
    "kernel.numa_balancing",
    "kernel.pid_max",
    "kernel.threads-max",
    "kernel.yama.ptrace_scope",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.default.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syn_retries",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "vm.max_map_count",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
# Variables that only say in what kind of container this is.
CONTAINER_VARIABLES = (
    "KUBERNETES_SERVICE_HOST",
    "SINGULARITY_NAME",
    "APPTAINER_NAME",
    "ENROOT_ROOTFS",
    "container",
    "PODMAN_VERSION",
)
CACHE_VARIABLES = (
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "HF_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "TORCH_EXTENSIONS_DIR",
)


def _text(absolute: str, limit: int = 1 << 16) -> str:
    try:
        text = read_text(absolute, limit)
    except PermissionError:
        return ""
    return text.strip() if text else ""


def _int(text: str) -> Optional[int]:
    try:
        return int(text)
    except ValueError:
        return None


# --- file systems --------------------------------------------------------------------------------------------------


def mounts() -> List[Dict[str, str]]:
    """Mount points with type, source and options; later ones cover earlier ones. Octal escapes are undone."""
    found = []
    for line in _text("/proc/self/mountinfo", MOUNTS_BYTES).splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 6 or len(after) < 3:
            continue
        options = set(before[5].split(",")) | set(after[2].split(","))
        found.append(
            {
                "root": before[3],
                "point": re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), before[4]),
                "type": after[0],
                "source": after[1],
                "options": after[2],
                "read_only": "yes" if "ro" in options else "",
                "noexec": "yes" if "noexec" in options else "",
            }
        )
    return found


def mount_of(absolute: str, table: List[Dict[str, str]]) -> Optional[Dict[str, str]]:
    """The mount a path lies on, by its text alone: looking at the path itself could hang."""
    best = None
    for mount in table:
        point = mount["point"].rstrip("/")
        if (absolute == point or absolute.startswith(point + "/")) and (
            best is None or len(point) >= len(best["point"].rstrip("/"))
        ):
            best = mount
    return best


def _directories() -> List[Tuple[str, str]]:
    """(role, path) of the places a training job writes to, as this environment has them."""
    home = os.path.expanduser("~")  # stays as it is where this user has neither $HOME nor an entry in passwd
    found = [("/tmp", "/tmp"), ("home", home), ("cache", os.path.join(home, ".cache"))]
    found += [(name, os.environ.get(name, "")) for name in CACHE_VARIABLES]
    return [(role, place) for role, place in found if place.startswith("/")]


def _statfs(absolute: str, limit_s: float) -> Dict[str, Any]:
    """Sizes of the file system of a path or of its nearest existing parent; in a child, because it may hang.

    What hangs is asked a second time: a mount hangs again, and a host that was busy for a moment answers.
    """
    place = os.path.normpath(absolute)
    hung = 0
    while True:
        answer = run_command(["stat", "-f", "-c", "%S %b %a %c %d", path(place)], limit_s=limit_s)
        words = answer.stdout.split()
        if answer.outcome == "ok" and len(words) == 5 and all(word.isdigit() for word in words):
            block, blocks, free, files, files_free = map(int, words)
            return {
                "outcome": "ok",
                "looked_at": place,
                "size_bytes": block * blocks,
                "free_bytes": block * free,
                "inodes": files,
                "inodes_free": files_free,
            }
        if answer.outcome == "failed" and "No such file" in answer.stderr and place != "/":
            place = os.path.dirname(place)
            continue
        if answer.outcome == "timed-out":
            if _is_busy(limit_s):
                detail = "no answer within %.0f s, but this host is so busy that /proc is slow as well" % limit_s
                return {"outcome": "failed", "looked_at": place, "detail": detail}
            hung += 1
            if hung < 2:
                continue
        outcome = "not-permitted" if "Permission denied" in answer.stderr else answer.outcome
        return {"outcome": "failed" if outcome == "ok" else outcome, "looked_at": place, "detail": answer.detail}


def _is_busy(limit_s: float) -> bool:
    """The control: /proc never hangs, so if asking it takes long too, a time-out says nothing of a mount."""
    control = run_command(["stat", "-f", "/proc"], limit_s=limit_s)
    return control.outcome == "timed-out" or control.seconds > limit_s / 6


def filesystems() -> List[Dict[str, Any]]:
    """Free space and inodes where a job writes. All are asked at once: hung mounts cost twice 3 s, not 3 s each.

    What has not answered within four times that is the host's slowness: a mount that hangs is told by then.
    """
    table = mounts()
    found = [{"role": role, "path": place} for role, place in _directories()]  # type: List[Dict[str, Any]]

    def fill(entry: Dict[str, Any]) -> None:
        entry.update(_statfs(entry["path"], FILESYSTEM_LIMIT_S))

    workers = [threading.Thread(target=fill, args=(entry,), daemon=True) for entry in found]
    for worker in workers:
        worker.start()
    until = time.monotonic() + 4 * FILESYSTEM_LIMIT_S + 3.0
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
    for entry in found:
        if "outcome" not in entry:
            entry.update(outcome="failed", detail="this host is too busy to tell")
        mount = mount_of(os.path.normpath(entry["path"]), table) or {}
        entry["mount"] = mount.get("point", "")
        entry["type"] = mount.get("type", "")
        entry["source"] = mount.get("source", "")
        for option in ("read_only", "noexec"):
            entry[option] = bool(mount[option]) if mount else None
    return found


def shared_memory() -> Dict[str, Any]:
    """/dev/shm: size, free bytes, and how much NCCL and torch left in it. It is a tmpfs: it does not hang."""
    try:
        stat = os.statvfs(path("/dev/shm"))
    except FileNotFoundError:
        return {"present": False}
    leftovers = {}  # type: Dict[str, Dict[str, int]]
    try:
        names = os.listdir(path("/dev/shm"))
    except OSError:
        names = []
    for name in names:
        prefix = next(
            (prefix for prefix in ("nccl-", "torch_", "__KMP", "sem.", "psm_") if name.startswith(prefix)), ""
        )
        try:
            size = os.lstat(path("/dev/shm/" + name)).st_size
        except OSError:
            continue
        group = leftovers.setdefault(prefix or "other", {"files": 0, "bytes": 0})
        group["files"] += 1
        group["bytes"] += size
    mount = mount_of("/dev/shm", mounts())
    return {
        "present": True,
        "size_bytes": stat.f_frsize * stat.f_blocks,
        "free_bytes": stat.f_frsize * stat.f_bavail,
        "own_mount": bool(mount and mount["point"] == "/dev/shm"),
        "type": mount["type"] if mount else "",
        "read_only": bool(mount["read_only"]) if mount else None,
        "leftovers": leftovers,
    }


# --- limits, memory, cgroups ---------------------------------------------------------------------------------------


def limits() -> Dict[str, Dict[str, int]]:
    """Soft and hard limits of this login (a job started otherwise may have others); -1 is unlimited."""
    found = {}
    for name in ("MEMLOCK", "NOFILE", "NPROC", "STACK", "CORE", "AS", "FSIZE"):
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
        found[name.lower()] = {
            "soft": UNLIMITED if soft == resource.RLIM_INFINITY else soft,
            "hard": UNLIMITED if hard == resource.RLIM_INFINITY else hard,
        }
    return found


def memory() -> Dict[str, int]:
    """The lines of /proc/meminfo that matter, in bytes."""
    wanted = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Shmem", "Hugetlb", "Mlocked")
    found = {}
    for line in _text("/proc/meminfo").splitlines():
        match = re.match(r"(\w+):\s+(\d+) kB", line)
        if match and match.group(1) in wanted:
            found[match.group(1)] = int(match.group(2)) * 1024
    return found


def _cgroup_places() -> Dict[str, List[str]]:
    """Controller -> directories from this process' own group up to the top that is visible; ``unified`` for v2."""
    own = {}
    for line in _text("/proc/self/cgroup").splitlines():
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
                relative = relative[len(mount["root"]) :] or "/"
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
    """Of the limits on the way up the one that leaves least: limit, what is used of it, what of that is cache, and where.

    Not the smallest one: a larger limit further up is shared with others. Cache gives way, so what it takes is left. Where
    the use is not readable nothing may be left: None is told of it. None for all where every level is unlimited.
    """
    found = []
    for place in chain:
        number, used = _int(_text(place + "/" + limit)), _int(_text(place + "/" + usage))
        if number is not None and number < (1 << 60):  # "max", or version 1's largest number, is unlimited
            cache = _cache(place) if limit.startswith("memory.") else 0
            found.append((0 if used is None else number - used + cache, number, used, cache, place))
    return min(found, key=lambda one: one[0])[1:] if found else (None, None, 0, "")


def _cache(group: str) -> int:
    """Bytes of page cache of a group and those below it, which version 1 tells beside the group's own."""
    told = dict(re.findall(r"^(\w+) (\d+)$", _text(group + "/memory.stat"), re.M))
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
    found["oom_kills"] = _oom_kills(group[0], v2) if group else 0
    group = places.get("pids", unified)
    found["pids_limit"], used, _, where = _tightest(group, "pids.max", "pids.current")
    if where:
        found["pids_group"], found["pids_used"] = where, used
    found["cpu_limit"] = _cpu_limit(places.get("cpu", unified), "cpu" not in places)
    return found


def _oom_kills(group: str, v2: bool) -> int:
    """Processes killed in this group and below; those above it count whatever died in any job since boot."""
    text = _text(group + ("/memory.events" if v2 else "/memory.oom_control"))
    match = re.search(r"^oom_kill (\d+)", text, re.M)
    return int(match.group(1)) if match else 0


def _cpu_limit(chain: List[str], v2: bool) -> Optional[float]:
    """The tightest CPU quota on the way up, in CPUs; None for no quota."""
    quotas = []
    for place in chain:
        if v2:
            quota, _, period = _text(place + "/cpu.max").partition(" ")
        else:
            quota, period = _text(place + "/cpu.cfs_quota_us"), _text(place + "/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / float(period))
    return min(quotas) if quotas else None


# --- what kind of machine ------------------------------------------------------------------------------------------


def container() -> Dict[str, Any]:
    """Hints that this is a container, each with where it was seen, and what this process may do in it."""
    hints = [
        name for name in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container") if os.path.exists(path(name))
    ]
    hints += ["$" + name for name in CONTAINER_VARIABLES if os.environ.get(name)]
    group = re.search(r"(docker|kubepods|libpod|lxc|containerd)", _text("/proc/self/cgroup"))
    if group:
        hints.append("/proc/self/cgroup: " + group.group(1))
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _text("/proc/self/status"), re.M)
    return {
        "hints": hints,
        "capabilities": capabilities.group(1) if capabilities else "",
        "user_namespace": _is_mapped(_text("/proc/self/uid_map")),
    }


def _is_mapped(uid_map: str) -> Optional[bool]:
    """Whether users are mapped, as in a user namespace of one's own; None where the kernel does not tell."""
    return uid_map.split() != ["0", "0", "4294967295"] if uid_map else None


def processors() -> Dict[str, Any]:
    """How many CPUs there are, and how many of them this process may use."""
    return {"count": os.cpu_count(), "allowed": len(os.sched_getaffinity(0))}


def sysctls() -> Dict[str, str]:
    """The settings of :data:`SYSCTLS` that this kernel has, and rp_filter of every interface."""
    found = {}
    for name in SYSCTLS:
        value = _text("/proc/sys/" + name.replace(".", "/"))
        if value:
            found[name] = " ".join(value.split())
    for place in sorted(glob.glob(path("/proc/sys/net/ipv4/conf/*/rp_filter"))):
        interface = place.split("/")[-2]
        found["net.ipv4.conf.%s.rp_filter" % interface] = _text("/proc/sys/net/ipv4/conf/%s/rp_filter" % interface)
    return found


# --- who holds the GPUs --------------------------------------------------------------------------------------------


def gpu_processes() -> Dict[str, Any]:
    """Processes with an open GPU device, but for this agent and its own children, which ask NVML at the same time.

    ``not_permitted`` counts those that hid their files.

    Command lines are not read: they carry secrets. A zombie whose threads live on still holds its devices.
    """
    found, hidden, seen = [], 0, 0
    if not glob.glob(path("/dev/nvidia[0-9]*")):
        return {"gpu_devices": 0, "processes": [], "not_permitted": 0, "processes_seen": 0}
    own = {os.getpid(), os.getppid()}
    up_s = uptime()
    for name in os.listdir(path("/proc")):
        if not name.isdigit() or int(name) in own:
            continue
        seen += 1
        try:
            devices = _gpu_devices("/proc/%s/fd" % name)
            if not devices and _is_zombie(name):  # its leader is gone, but a thread of it may live on
                for thread in os.listdir(path("/proc/%s/task" % name)):
                    devices |= _gpu_devices("/proc/%s/task/%s/fd" % (name, thread))
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # it ended while we looked
        if devices:
            found.append(_process(name, sorted(devices), up_s))
    _read_again([process for process in found if process["state"] == "D"])
    found = [process for process in found if process["state"] and process["parent"] != os.getpid()]
    return {
        "gpu_devices": len(glob.glob(path("/dev/nvidia[0-9]*"))),
        "processes": sorted(found, key=lambda process: process["pid"])[:200],
        "not_permitted": hidden,
        "processes_seen": seen,
    }


def _read_again(waiting: List[Dict[str, Any]]) -> None:
    """Whoever reads a disk is in state D for a moment: only who is in it all the time, and spends no CPU time, is stuck."""
    before = {process["pid"]: _state_and_ticks(process["pid"]) for process in waiting}
    for _ in range(STUCK_READINGS if waiting else 0):
        time.sleep(STUCK_INTERVAL_S)
        for process in waiting:
            state, ticks = _state_and_ticks(process["pid"])
            if process["state"] == "D" and (state != "D" or ticks != before[process["pid"]][1]):
                process["state"] = state if state != "D" else "R"  # it ran in between


def _state_and_ticks(pid: int) -> Tuple[str, List[str]]:
    """State, and CPU time in user and kernel mode; empty where it has ended."""
    words = _text("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return (words[0], words[11:13]) if words else ("", [])


def _gpu_devices(directory: str) -> Set[str]:
    found = set()
    for entry in os.listdir(path(directory)):
        try:
            target = os.readlink(path(directory + "/" + entry))
        except OSError:
            continue
        if re.match(r"/dev/nvidia\d+$", target):
            found.add(target)
    return found


def _is_zombie(name: str) -> bool:
    stat = _text("/proc/%s/stat" % name)
    return stat[stat.rfind(")") + 2 : stat.rfind(")") + 3] == "Z"


def _process(name: str, devices: List[str], uptime_s: Optional[float]) -> Dict[str, Any]:
    stat = _text("/proc/%s/stat" % name)
    command = stat[stat.find("(") + 1 : stat.rfind(")")]
    words = stat[stat.rfind(")") + 2 :].split()
    owner = re.search(r"^Uid:\s+(\d+)", _text("/proc/%s/status" % name), re.M)
    uid = int(owner.group(1)) if owner else None
    try:
        user = pwd.getpwuid(uid).pw_name if uid is not None else ""
    except KeyError:
        user = str(uid)
    age = None
    if uptime_s is not None and len(words) > 19:
        age = max(0.0, uptime_s - int(words[19]) / float(os.sysconf("SC_CLK_TCK")))
    return {
        "pid": int(name),
        "command": command,
        "user": user,
        "state": words[0] if words else "",
        "parent": int(words[1]) if len(words) > 1 else None,
        "age_s": age,
        "devices": devices,
    }


@probe("system", stage="system", limit_s=20.0)
def system(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Everything of the host itself that can stop or slow a job."""
    return {
        "shm": shared_memory(),
        "limits": limits(),
        "user": os.getuid(),
        "filesystems": filesystems(),
        "memory": memory(),
        "cgroup": cgroup(),
        "container": container(),
        "processors": processors(),
        "sysctls": sysctls(),
        "gpu_processes": gpu_processes(),
        "rdma_devices": sorted(os.path.basename(name) for name in glob.glob(path("/sys/class/infiniband/*"))),
    }
