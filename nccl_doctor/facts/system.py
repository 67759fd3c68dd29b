"""The host itself: shared memory, limits, disks, memory, cgroups, sysctls, GPU users (probe ``system``)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import msgspec

from nccl_doctor.facts.model import Amount, Count, Fact

UNLIMITED = -1


class SharedMemory(msgspec.Struct, frozen=True):
    """/dev/shm, in bytes. ``leftovers``: what lies in it, by the beginning of the name (``nccl-``, ``torch_``)."""

    present: bool
    size_bytes: Count = 0
    free_bytes: Count = 0
    own_mount: bool = True
    leftovers: dict[str, dict[str, int]] = {}
    read_only: bool | None = None  # None: its mount is not known


class Limit(msgspec.Struct, frozen=True):
    """A resource limit of this login; -1 is unlimited."""

    soft: Annotated[int, msgspec.Meta(ge=UNLIMITED)]
    hard: Annotated[int, msgspec.Meta(ge=UNLIMITED)]


class Filesystem(msgspec.Struct, frozen=True):
    """A place the job writes to, or (``looked_at``) its nearest parent that exists; sizes only if ``outcome`` is ok."""

    role: str  # /tmp, home, cache or the variable that names it
    path: str
    outcome: str
    looked_at: str = ""
    size_bytes: Count = 0
    free_bytes: Count = 0
    inodes: Count = 0  # 0: the file system does not count them
    inodes_free: Count = 0
    mount: str = ""
    type: str = ""
    source: str = ""
    read_only: bool | None = None  # None, here and below: its mount is not known
    detail: str = ""
    noexec: bool | None = None  # programs and libraries on it may not be executed


class Cgroup(msgspec.Struct, frozen=True):
    """Of the limits from this process' group up to the top the ones that leave least; None is unlimited.

    ``oom_kills``: processes killed for want of memory in this process' own group, as long as that has been there.
    """

    version: Count = 2  # of cgroups; 0: none is mounted, and its limits are not known
    memory_limit_bytes: Count | None = None
    memory_used_bytes: Count | None = None
    memory_cache_bytes: Count = 0  # reclaimable page cache in memory_used_bytes
    memory_group: str = ""
    oom_kills: Count = 0
    pids_limit: Count | None = None
    pids_used: Count | None = None
    pids_group: str = ""
    cpu_limit: Amount | None = None  # in CPUs

    @property
    def memory_room_bytes(self) -> int | None:
        """What the memory limit leaves, as page cache gives way; None without a limit, or where the use is not known."""
        if self.memory_limit_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_limit_bytes - (self.memory_used_bytes - self.memory_cache_bytes)


IPC_LOCK = 14  # CAP_IPC_LOCK of linux/capability.h


class Container(msgspec.Struct, frozen=True):
    """Hints that this is a container; empty on a plain host. ``capabilities``: the effective ones, a hexadecimal mask.

    ``user_namespace``: its users are not the kernel's own, and its capabilities hold in it alone; None: not known.
    """

    hints: tuple[str, ...] = ()
    capabilities: str = ""
    user_namespace: bool | None = None

    @property
    def locks_freely(self) -> bool:
        """Whether the kernel holds no limit on locked memory against this login (CAP_IPC_LOCK in the first namespace)."""
        mask = int(self.capabilities, 16) if re.fullmatch(r"[0-9a-f]{1,32}", self.capabilities) else 0
        return self.user_namespace is False and bool(mask >> IPC_LOCK & 1)


class Processors(msgspec.Struct, frozen=True):
    """CPUs: how many there are, and how many this process may use."""

    count: Count | None = None
    allowed: Count = 0


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that holds a GPU device file open. ``state``: Z zombie, D stuck in the kernel."""

    pid: int
    command: str
    user: str = ""
    state: str = ""
    age_s: float | None = None
    devices: tuple[str, ...] = ()


class GpuProcesses(msgspec.Struct, frozen=True):
    """Who holds the GPUs, and how many processes did not let us see."""

    gpu_devices: Count = 0
    processes: tuple[GpuProcess, ...] = ()
    not_permitted: Count = 0
    processes_seen: Count = 0


class System(Fact, frozen=True):
    """Everything of the host itself that can stop or slow a job."""

    PROBE: ClassVar[str] = "system"
    shm: SharedMemory
    limits: dict[str, Limit]
    filesystems: tuple[Filesystem, ...]
    memory: dict[str, Count]
    cgroup: Cgroup
    gpu_processes: GpuProcesses
    user: int = 0
    container: Container = Container()
    processors: Processors = Processors()
    sysctls: dict[str, str] = msgspec.field(default_factory=dict)
    rdma_devices: tuple[str, ...] = ()

    @property
    def usable_cpus(self) -> float:
        """How many CPUs affinity and the cgroup's quota leave."""
        limit = self.cgroup.cpu_limit
        return float(self.processors.allowed) if limit is None else min(self.processors.allowed, limit)

    def sysctl_numbers(self, name: str) -> tuple[int, ...]:
        """A sysctl of one or more numbers; empty if this kernel does not have it."""
        words = self.sysctls.get(name, "").split()
        return tuple(int(word) for word in words) if all(word.lstrip("-").isdigit() for word in words) else ()
