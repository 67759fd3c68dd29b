"""The host around the job: shared memory, limits, disks, memory, cgroups, sysctls, and who holds the GPUs."""

import os
import re
import resource
from typing import Any, Dict

from nccl_doctor.agent.cgroups import cgroup
from nccl_doctor.agent.containers import container
from nccl_doctor.agent.filesystems import filesystems, mount_of, mounts
from nccl_doctor.agent.gpu_holders import gpu_processes
from nccl_doctor.agent.probing import listed, path, probe, readable

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
    size, free = stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
    if not size:  # mounted with size=0: the memory is its limit
        size, free = memory().get("MemTotal", 0), memory().get("MemAvailable", 0)
    return {
        "present": True,
        "size_bytes": size,
        "free_bytes": free,
        "own_mount": bool(mount and mount["point"] == "/dev/shm"),
        "type": mount["type"] if mount else "",
        "read_only": bool(mount["read_only"]) if mount else None,
        "leftovers": leftovers,
    }


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
    for line in readable("/proc/meminfo").splitlines():
        match = re.match(r"(\w+):\s+(\d+) kB", line)
        if match and match.group(1) in wanted:
            found[match.group(1)] = int(match.group(2)) * 1024
    return found


def processors() -> Dict[str, Any]:
    """How many CPUs there are, and how many of them this process may use."""
    return {"count": os.cpu_count(), "allowed": len(os.sched_getaffinity(0))}


def sysctls() -> Dict[str, str]:
    """The settings of :data:`SYSCTLS` that this kernel has, and rp_filter of every interface."""
    found = {}
    for name in SYSCTLS:
        value = readable("/proc/sys/" + name.replace(".", "/"))
        if value:
            found[name] = " ".join(value.split())
    for interface in listed("/proc/sys/net/ipv4/conf"):
        value = readable("/proc/sys/net/ipv4/conf/%s/rp_filter" % interface)
        if value:
            found["net.ipv4.conf.%s.rp_filter" % interface] = value
    return found


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
        "rdma_devices": listed("/sys/class/infiniband"),
    }
