"""How much memory there is, and whether something fits into it."""

import contextlib
from typing import TYPE_CHECKING

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
    """Bytes a new allocation may take: MemAvailable, or what is left under the cgroup's limit if that is less."""
    found = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    pairs = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    )
    for limit, usage in pairs:
        with contextlib.suppress(OSError, ValueError), open(limit) as one, open(usage) as two:
            found.append(int(one.read()) - int(two.read()))
    return min(found) if found else 1 << 62


def amount(size: float) -> str:
    """``1.5 GiB``: bytes in the largest binary unit of which there is one."""
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while size >= 1024 and len(units) > 1:
        size /= 1024.0
        units.pop()
    return ("%.3g %s" if size < 100 else "%.0f %s") % (size, units[-1])
