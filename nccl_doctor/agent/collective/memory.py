"""How much memory there is, and whether something fits into it."""

import re
from typing import TYPE_CHECKING

from nccl_doctor.agent.cgroups import cgroup
from nccl_doctor.agent.probing import readable

if TYPE_CHECKING:
    from .worker import Worker


def lack(worker: "Worker", needed: int) -> str:
    """Why this rank cannot have so many bytes on its device, or empty."""
    if worker.device.type == "cuda":
        worker.torch.cuda.empty_cache()  # or the last size's buffers, kept for reuse, would count as taken
        free = int(worker.torch.cuda.mem_get_info(worker.device)[0])
        room, what = free - (256 << 20), "GPU memory"
    else:
        ranks = max(1, worker.identity.local_world)
        room = int(available_memory() * 0.8 / ranks)
        what = "memory (80 %% of what is free, for %d rank%s here)" % (ranks, "" if ranks == 1 else "s")
    if needed <= room:
        return ""
    return "needs %s, and %s of %s is available" % (amount(needed), amount(max(0, room)), what)


def available_memory() -> int:
    """Bytes a new allocation may take: MemAvailable, or what is left under the tightest limit of the process' control groups
    (of a container, a Slurm step or a slice) if that is less.

    What files were read fills a cgroup up to its limit, and is given up when memory is asked for: it counts as free.
    """
    found = [int(size) * 1024 for size in re.findall(r"^MemAvailable:\s*(\d+) kB", readable("/proc/meminfo"), re.M)]
    group = cgroup()
    limit = group["memory_limit_bytes"]
    if limit is not None:
        used = group["memory_used_bytes"]
        found.append(0 if used is None else limit - used + group["memory_cache_bytes"])
    return max(0, min(found)) if found else 1 << 62


def amount(size: float) -> str:
    """``1.5 GiB``: bytes in the largest binary unit of which there is one."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while size >= 1024 and len(units) > 1:
        size /= 1024.0
        units.pop()
    return ("%.3g %s" if size < 100 else "%.0f %s") % (size, units[-1])
