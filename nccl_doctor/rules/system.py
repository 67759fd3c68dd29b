"""The host itself: what is too small, too full, not permitted, or held by somebody else."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import UNLIMITED, Cgroup, Filesystem, GpuProcess, Limit, SharedMemory, System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules import drift
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration, size

# Programs that hold GPU device files as their job: monitoring and display, not somebody's leftover.
SERVICES = (
    "nvidia-persiste",  # the kernel cuts names at 15 characters
    "nv-hostengine",
    "dcgm-exporter",
    "nv-fabricmanage",
    "nvidia-imex",
    "nvidia-smi",
    "nvidia-device-p",
    "nvidia-powerd",
    "nvidia-cuda-mps",
    "nvtop",
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "systemd-logind",
)


@host_rule("system", "sys.shm.missing", "sys.shm.read-only", "sys.shm.too-small", "sys.shm.full")
def shared_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """/dev/shm is there, writable, large enough, and not full.

    NCCL's shared-memory transport and DataLoader workers put their buffers into /dev/shm. A container without
    ``--shm-size`` has 64 MiB of it: the job dies with a bus error or "Error while creating shared memory segment".
    """
    shm = host.need(System).shm
    fixes = _shm_fixes(host)
    if not shm.present:
        yield finding(
            "sys.shm.missing",
            Severity.FAIL,
            "There is no /dev/shm: NCCL's shared-memory transport and DataLoader workers cannot work",
            Evidence("/dev/shm: no such directory", "/dev/shm", host=host.name),
            hosts=(host.name,),
            fixes=fixes,
            explains=("collectives",),
        )
        return
    proof = Evidence(
        f"/dev/shm: {size(shm.size_bytes)} in all, {size(shm.free_bytes)} free", "statvfs /dev/shm", host=host.name
    )
    if shm.read_only:
        yield finding(
            "sys.shm.read-only",
            Severity.FAIL,
            "/dev/shm is read-only: NCCL's shared-memory transport and DataLoader workers cannot work",
            Evidence("/dev/shm is mounted ro", "/proc/self/mountinfo", host=host.name),
            hosts=(host.name,),
            fixes=(Fix("make it writable until the next boot", "sudo mount -o remount,rw /dev/shm", host.name),),
            explains=("collectives",),
        )
    elif shm.size_bytes < value("shm.warn"):
        tiny = shm.size_bytes <= value("shm.fail")
        yield finding(
            "sys.shm.too-small",
            Severity.FAIL if tiny else Severity.WARN,
            f"/dev/shm has only {size(shm.size_bytes)}: a job with several GPUs or DataLoader workers here dies of it",
            proof,
            hosts=(host.name,),
            fixes=fixes,
            explains=("collectives",),
        )
    elif shm.free_bytes < value("shm.free"):
        yield _shm_full(host.name, shm, proof)
    elif shm.read_only is None:
        raise MissingFact("mount options of /dev/shm", "its mount is not known")


def _shm_full(host: str, shm: SharedMemory, proof: Evidence) -> Finding:
    held = [
        f"{group['files']} files {prefix}*, {size(group['bytes'])}" for prefix, group in sorted(shm.leftovers.items())
    ]
    return finding(
        "sys.shm.full",
        Severity.FAIL,
        f"/dev/shm is full: {size(shm.free_bytes)} free of {size(shm.size_bytes)}",
        (proof, *(Evidence(line, "ls /dev/shm", host=host) for line in held)),
        hosts=(host,),
        fixes=(
            Fix("see who still uses the files", "sudo fuser -v /dev/shm/* 2>&1 | head", host),
            Fix(
                "remove what a dead job left, once nobody uses it",
                "rm -f /dev/shm/nccl-* /dev/shm/torch_*",
                host,
                True,
            ),
        ),
        explains=("collectives",),
    )


def _shm_fixes(host: Host) -> tuple[Fix, ...]:
    system = host.want(System)
    if system is not None and system.container.hints:
        return (
            Fix("start the container with --ipc=host or --shm-size=16g (Kubernetes: an emptyDir with medium: Memory)"),
        )
    if system is not None and not system.shm.present:
        command = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o size=50%,mode=1777,nosuid,nodev tmpfs /dev/shm"
        return (Fix("mount one until the next boot", command, host.name),)
    return (Fix("make it larger until the next boot", "sudo mount -o remount,size=50% /dev/shm", host.name),)


@host_rule("system", "ib.memlock")
def locked_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """The limit on locked memory (``ulimit -l``) lets RDMA register its buffers.

    Registering memory with an RDMA device pins it. With a small limit ibv_reg_mr or ibv_create_cq fails with "Cannot
    allocate memory". Without an RDMA device the limit does not matter to NCCL: a small one is told, not blamed.
    """
    system = host.need(System)
    limit = _limit(system, "memlock")
    proof = Evidence(f"RLIMIT_MEMLOCK soft {_show(limit.soft)}, hard {_show(limit.hard)}", "ulimit -l", host=host.name)
    own = Fix("in the job's shell: the hard limit allows it", "ulimit -l unlimited", host.name)
    fixes = (
        *((own,) if limit.hard == UNLIMITED else ()),
        Fix(
            "for logins",
            "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n'"
            " | sudo tee /etc/security/limits.d/99-rdma.conf",
            host.name,
        ),
        Fix("Slurm: LimitMEMLOCK=infinity in slurmd's unit; containers: --ulimit memlock=-1"),
    )
    if limit.soft == UNLIMITED:
        return
    if system.rdma_devices and limit.soft < value("memlock.rdma"):
        yield finding(
            "ib.memlock",
            Severity.FAIL,
            f"Locked memory is limited to {_show(limit.soft)}: RDMA ({', '.join(system.rdma_devices[:4])}) cannot "
            "register its buffers",
            proof,
            hosts=(host.name,),
            fixes=fixes,
            explains=("collectives",),
        )
    elif not system.rdma_devices and limit.soft <= value("memlock.plain"):
        yield finding(
            "ib.memlock",
            Severity.INFO,
            f"Locked memory is limited to {_show(limit.soft)}; harmless without an RDMA device, and none is here",
            proof,
            hosts=(host.name,),
            fixes=fixes,
        )


_COMPARED_LIMITS = {
    "memlock": "locked memory",
    "nofile": "open files",
    "nproc": "processes",
    "as": "address space",  # CUDA reserves more than there is memory
    "fsize": "file size",  # a checkpoint is cut off, and its writer killed by SIGXFSZ
}


@fleet_rule("system", "sys.limits-differ")
def limits_differ(fleet: Fleet) -> Iterator[Finding]:
    """Logins have the same resource limits on all hosts.

    Nodes of one cluster are set up alike. One node whose limits on locked memory, open files, processes,
    address space or file size are lower than everywhere else has missed a configuration step, and a job fails there only.
    """
    every = fleet.every(System)
    for name, label in _COMPARED_LIMITS.items():
        known = {host: system.limits[name].soft for host, system in every.items() if name in system.limits}
        if untold := set(every) - set(known):
            fleet.lack(f"limit on {label}", "not collected", *untold)
        row = drift.row(label, {host: _show(soft, name) for host, soft in known.items()})
        if not row.odd:
            continue
        usual = known[row.values[0][1][0]]
        lower = tuple(
            host
            for host in row.odd
            if known[host] != UNLIMITED
            and (usual == UNLIMITED or known[host] * 4 < usual)
            and not _has_own_finding(name, known[host], every[host])
        )
        if lower:
            yield finding(
                "sys.limits-differ",
                Severity.WARN,
                f"The limit on {label} is {_show(known[lower[0]], name)} here and {row.majority} on the other hosts",
                tuple(
                    Evidence(f"RLIMIT_{name.upper()} soft {_show(known[host], name)}", "ulimit", host=host)
                    for host in (*lower, row.values[0][1][0])
                ),
                hosts=lower,
                fixes=(
                    Fix(
                        "compare with a good host",
                        "cat /etc/security/limits.d/*.conf; systemctl show -p DefaultLimitMEMLOCK,DefaultLimitNOFILE",
                        lower[0],
                    ),
                ),
            )


def _has_own_finding(name: str, soft: int, system: System) -> bool:
    """Whether a rule of its own already names this limit on this host."""
    if name == "nofile":
        return soft < value("nofile.warn")
    return name == "memlock" and bool(system.rdma_devices) and soft < value("memlock.rdma")


def _limit(system: System, name: str) -> Limit:
    if name not in system.limits:
        raise MissingFact(f"limit {name}", "not collected")
    return system.limits[name]


def _show(count: int, name: str = "memlock") -> str:
    if count == UNLIMITED:
        return "unlimited"
    return str(count) if name in ("nofile", "nproc") else size(count)


@host_rule("system", "sys.nofile")
def open_files(host: Host, plan: Plan) -> Iterator[Finding]:
    """The limit on open files (``ulimit -n``) is high enough for sockets, shared memory and DataLoader workers."""
    limit = _limit(host.need(System), "nofile")
    if limit.soft == UNLIMITED or limit.soft >= value("nofile.warn"):
        return
    yield finding(
        "sys.nofile",
        Severity.FAIL if limit.soft < value("nofile.fail") else Severity.WARN,
        f"Only {limit.soft} files may be open: every connection, shared tensor and worker takes some",
        Evidence(f"RLIMIT_NOFILE soft {limit.soft}, hard {_show(limit.hard, 'nofile')}", "ulimit -n", host=host.name),
        hosts=(host.name,),
        fixes=_more_files(limit, host.name),
    )


def _more_files(limit: Limit, host: str) -> tuple[Fix, ...]:
    if limit.hard == UNLIMITED or limit.hard >= value("nofile.warn"):
        more = 65536 if limit.hard == UNLIMITED else limit.hard
        return (Fix("in the job's shell: the hard limit allows it", f"ulimit -n {more}", host),)
    return (
        Fix(
            "raise the hard limit, then log in again",
            "printf '* soft nofile 65536\\n* hard nofile 65536\\n' | sudo tee /etc/security/limits.d/99-nofile.conf",
            host,
        ),
        Fix("Slurm, systemd: LimitNOFILE=65536 in the unit; containers: --ulimit nofile=65536"),
    )


@host_rule("system", "sys.threads.pids-limit", "sys.threads.nproc")
def threads(host: Host, plan: Plan) -> Iterator[Finding]:
    """There is room for the threads and processes of a job (cgroup ``pids.max``, ``ulimit -u``).

    NCCL, torch, CUDA and DataLoader workers start hundreds of threads a rank; at the limit pthread_create fails with
    "Resource temporarily unavailable".
    """
    system = host.need(System)
    group = system.cgroup
    if group.pids_limit is not None:
        if group.pids_used is None:
            raise MissingFact("pids.current", f"not readable in {group.pids_group}")
        room = group.pids_limit - group.pids_used
        if room < value("pids.free.warn"):
            yield finding(
                "sys.threads.pids-limit",
                Severity.FAIL if room < value("pids.free.fail") else Severity.WARN,
                f"The cgroup has room for only {room} more threads",
                Evidence(
                    f"pids.max {group.pids_limit}, pids.current {group.pids_used}", group.pids_group, host=host.name
                ),
                hosts=(host.name,),
                fixes=(Fix("raise it: --pids-limit -1 (Docker, Podman), TasksMax= (systemd), podPidsLimit (kubelet)"),),
                explains=("collectives",),
            )
    limit = _limit(system, "nproc")
    if system.user != 0 and limit.soft != UNLIMITED and limit.soft < value("nproc.warn"):
        yield finding(
            "sys.threads.nproc",
            Severity.WARN,
            f"This user may run only {limit.soft} threads",
            Evidence(f"RLIMIT_NPROC soft {limit.soft}, hard {_show(limit.hard, 'nproc')}", "ulimit -u", host=host.name),
            hosts=(host.name,),
            fixes=(Fix("in the job's shell, up to the hard limit", "ulimit -u unlimited", host.name),),
        )


_WRITTEN = ("/tmp", "TMPDIR")
_EXECUTED = ("/tmp", "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")


@host_rule("system", "sys.noexec")
def executable_caches(host: Host, plan: Plan) -> Iterator[Finding]:
    """What torch.compile, Triton and torch's C++ extensions build lies where it may be executed.

    They write libraries into /tmp (TMPDIR) or a cache directory and load them; on a file system mounted noexec that
    ends in "failed to map segment from shared object".
    """
    for entry in _one_per_mount(tuple(item for item in host.need(System).filesystems if item.role in _EXECUTED)):
        if entry.noexec is None:
            raise MissingFact(f"mount options of {entry.path}", "its mount is not known")
        if entry.noexec:
            yield finding(
                "sys.noexec",
                Severity.WARN,
                f"{entry.path} is mounted noexec: torch.compile, Triton and C++ extensions that are built there cannot be loaded",
                Evidence(
                    f"{entry.mount} ({entry.type} {entry.source}) has noexec", "/proc/self/mountinfo", host=host.name
                ),
                hosts=(host.name,),
                fixes=(
                    Fix("allow it until the next boot", f"sudo mount -o remount,exec {entry.mount}", host.name),
                    Fix(
                        "or build elsewhere: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TMPDIR in a directory that allows it"
                    ),
                ),
            )


@host_rule("system", "sys.disk-full", "sys.disk-full.inodes", "sys.disk-full.low", "sys.disk-full.read-only")
def disks(host: Host, plan: Plan) -> Iterator[Finding]:
    """The places a job writes to (/tmp, home, caches) have free space and inodes, and can be written."""
    entries = host.need(System).filesystems
    found = [item for entry in _one_per_mount(entries) for item in _disk(host.name, entry, _paths(entries, entry))]
    yield from found
    unknown = [entry for entry in entries if entry.outcome not in ("ok", "timed-out")]
    if unknown and not found:
        raise MissingFact(f"free space of {unknown[0].path}", f"{unknown[0].outcome}: {unknown[0].detail}")
    for entry in entries:
        if entry.role in _WRITTEN and entry.read_only is None:
            raise MissingFact(f"mount options of {entry.path}", "its mount is not known")


def _one_per_mount(entries: tuple[Filesystem, ...]) -> list[Filesystem]:
    found: dict[tuple[str, int, int], Filesystem] = {}
    for entry in entries:
        if entry.outcome == "ok":
            found.setdefault((entry.mount, entry.size_bytes, entry.free_bytes), entry)
    return list(found.values())


def _paths(entries: tuple[Filesystem, ...], one: Filesystem) -> str:
    same = [entry for entry in entries if entry.outcome == "ok" and entry.mount == one.mount]
    return ", ".join(dict.fromkeys(entry.path for entry in same))


def _disk(host: str, entry: Filesystem, paths: str) -> Iterator[Finding]:
    where = f"{entry.mount} ({entry.type} {entry.source})" if entry.mount else entry.looked_at
    proof = Evidence(
        f"{where}: {size(entry.free_bytes)} free of {size(entry.size_bytes)}, "
        f"{entry.inodes_free} of {entry.inodes} inodes free; holds {paths}",
        f"stat -f {entry.looked_at}",
        host=host,
    )
    look = (Fix("see what fills it", f"sudo du -xsh {entry.looked_at}/* 2>/dev/null | sort -h | tail", host),)
    if entry.read_only and entry.role in _WRITTEN:
        yield finding(
            "sys.disk-full.read-only", Severity.FAIL, f"{entry.path} is read-only", proof, hosts=(host,),
            fixes=(
                Fix("see whether a disk error caused it", "dmesg | grep -iE 'remount|I/O error'", host),
                Fix("if not, make it writable", f"sudo mount -o remount,rw {entry.mount or entry.path}", host),
            ),
        )  # fmt: skip
    elif entry.free_bytes < value("disk.free.fail"):
        yield finding(
            "sys.disk-full", Severity.FAIL, f"{where} is full: {size(entry.free_bytes)} free ({paths})", proof,
            hosts=(host,), fixes=look,
        )  # fmt: skip
    elif entry.inodes and entry.inodes_free < value("disk.inodes.fail"):
        yield finding(
            "sys.disk-full.inodes", Severity.FAIL, f"{where} has no inodes left: {entry.inodes_free} free ({paths})",
            proof, hosts=(host,),
            fixes=(Fix("see where they are", f"sudo du --inodes -xs {entry.looked_at}/* | sort -n | tail", host),),
        )  # fmt: skip
    elif entry.free_bytes < min(value("disk.free.warn"), entry.size_bytes / 2):
        yield finding(
            "sys.disk-full.low", Severity.WARN, f"{where} is nearly full: {size(entry.free_bytes)} free ({paths})",
            proof, hosts=(host,), fixes=look,
        )  # fmt: skip


@host_rule("system", "sys.clock-or-dns-or-fs.hung-mount")
def hung_mounts(host: Host, plan: Plan) -> Iterator[Finding]:
    """No file system that the job uses hangs (a dead NFS server): a process that touches one cannot even be killed."""
    for entry in host.need(System).filesystems:
        if entry.outcome != "timed-out":
            continue
        where = f"{entry.mount} ({entry.type} from {entry.source})" if entry.mount else entry.path
        yield finding(
            "sys.clock-or-dns-or-fs.hung-mount",
            Severity.FAIL,
            f"{where} hangs: asked for its free space, it did not answer",
            Evidence(
                f"stat -f {entry.path}: {entry.detail or 'no answer within 3 s'}",
                f"stat -f {entry.path}",
                host=host.name,
            ),
            hosts=(host.name,),
            fixes=(
                Fix("see which processes are stuck on it", "ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'", host.name),
                Fix("does the server answer?", f"timeout 5 rpcinfo -t {entry.source.split(':')[0]} nfs", host.name)
                if entry.type.startswith("nfs") and ":" in entry.source
                else Fix("is it mounted as intended?", "cat /proc/mounts", host.name),
            ),
            explains=("collectives",),
        )


@host_rule("system", "sys.host-oom.low-memory", "sys.host-oom.cgroup-limit", "sys.host-oom.killed")
def memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """There is memory for the job: on the host, and under the cgroup's limit.

    At the limit the kernel kills a rank without a message (exit code -9, 137); the others then time out.
    """
    system = host.need(System)
    total, available = system.memory.get("MemTotal"), system.memory.get("MemAvailable")
    if total is None or available is None:
        raise MissingFact("/proc/meminfo", "has no MemTotal or MemAvailable")
    if (
        available < min(value("memory.available.warn"), total / 4)
        or available < value("memory.available.share") * total
    ):
        yield finding(
            "sys.host-oom.low-memory",
            Severity.WARN,
            f"Only {size(available)} of {size(total)} memory is available",
            Evidence(f"MemAvailable {size(available)}, MemTotal {size(total)}", "/proc/meminfo", host=host.name),
            hosts=(host.name,),
            fixes=(Fix("see who has it", "ps -eo pid,user,rss,comm --sort=-rss | head", host.name),),
        )
    yield from _cgroup_memory(host, system.cgroup)
    if system.cgroup.oom_kills:
        yield finding(
            "sys.host-oom.killed",
            Severity.WARN,
            f"The kernel has already killed {system.cgroup.oom_kills} processes in this cgroup for want of memory",
            Evidence(
                f"oom_kill {system.cgroup.oom_kills}", system.cgroup.memory_group or "memory.events", host=host.name
            ),
            hosts=(host.name,),
            fixes=(Fix("see which and when", "sudo dmesg -T | grep -i 'killed process'", host.name),),
        )


def gpu_count(host: Host) -> int:
    """How many NVIDIA GPUs are on the bus, or where that was not asked, have a device file."""
    software = host.want(Software)
    return len(software.driver.pci_gpus) if software else host.need(System).gpu_processes.gpu_devices


def _cgroup_memory(host: Host, group: Cgroup) -> Iterator[Finding]:
    limit, used = group.memory_limit_bytes, group.memory_used_bytes
    if limit is None:
        return
    if used is None:
        raise MissingFact("memory used", f"not readable in {group.memory_group}")
    gpus = gpu_count(host)
    room = limit - (used - group.memory_cache_bytes)
    needed = max(value("memory.available.warn"), gpus * value("memory.per-gpu.warn"))
    if room < needed:
        yield finding(
            "sys.host-oom.cgroup-limit",
            Severity.WARN,
            f"The cgroup leaves {size(room)} of memory" + (f" for {gpus} GPUs" if gpus else ""),
            Evidence(
                f"limit {size(limit)}, used {size(used)}, of that reclaimable cache {size(group.memory_cache_bytes)}",
                group.memory_group,
                host=host.name,
            ),
            hosts=(host.name,),
            fixes=(Fix("raise it: docker run --memory, Kubernetes resources.limits.memory, Slurm --mem"),),
        )


@host_rule("system", "sys.cpu-limit")
def cpus(host: Host, plan: Plan) -> Iterator[Finding]:
    """The job may use at least two CPUs per GPU: one for Python, one for NCCL's proxy thread."""
    system = host.need(System)
    gpus = gpu_count(host)
    if not gpus:
        raise SkipRule("no NVIDIA GPU on this host")
    usable = min(float(system.processors.allowed), system.cgroup.cpu_limit or float("inf"))
    if usable < gpus * value("cpu.per-gpu.warn"):
        yield finding(
            "sys.cpu-limit",
            Severity.WARN,
            f"Only {usable:g} CPUs may be used for {gpus} GPUs",
            Evidence(
                f"affinity allows {system.processors.allowed} of {system.processors.count} CPUs, "
                f"cgroup quota {system.cgroup.cpu_limit or 'none'}",
                "sched_getaffinity, cgroup cpu",
                host=host.name,
            ),
            hosts=(host.name,),
            fixes=(
                Fix("give the job more: docker run --cpus, Kubernetes resources.limits.cpu, Slurm --cpus-per-task"),
            ),
        )


@host_rule("system", "gpu.busy", "gpu.busy.stuck-process")
def gpu_holders(host: Host, plan: Plan) -> Iterator[Finding]:
    """No process of an earlier or foreign job holds the GPUs.

    A leftover rank keeps GPU memory and ports. A zombie or a process stuck in the driver (state D) cannot be killed.
    Known monitoring and display services are not counted. In a container, processes outside it cannot be seen.
    """
    found = host.need(System).gpu_processes
    if not found.gpu_devices:
        raise SkipRule("no GPU device file on this host")
    foreign = [process for process in found.processes if process.command not in SERVICES]
    stuck = [process for process in foreign if process.state in ("Z", "D", "X")]
    running = [process for process in foreign if process not in stuck]
    if stuck:
        yield finding(
            "gpu.busy.stuck-process",
            Severity.FAIL,
            f"{_count(stuck)} that cannot be killed hold{'s' if len(stuck) == 1 else ''} GPUs",
            tuple(_process(process, host.name) for process in stuck[:5]),
            hosts=(host.name,),
            fixes=(
                Fix(
                    "see where it is stuck",
                    f"sudo cat /proc/{stuck[0].pid}/stack; sudo dmesg -T | grep -i xid",
                    host.name,
                ),
                Fix("if it does not go away: drain the host and reboot it", "sudo reboot", host.name, True),
            ),
        )
    if running:
        pids = " ".join(str(process.pid) for process in running[:20])
        yield finding(
            "gpu.busy",
            Severity.WARN,
            f"{_count(running)} already hold{'s' if len(running) == 1 else ''} GPUs here",
            tuple(_process(process, host.name) for process in running[:5]),
            hosts=(host.name,),
            fixes=(
                Fix("look at them", f"ps -o pid,ppid,user,lstart,stat,args -p {pids.replace(' ', ',')}", host.name),
                Fix("if it is a leftover of yours", f"kill {pids}", host.name, True),
            ),
        )
    if found.not_permitted and not foreign and host.need(System).user != 0:
        raise SkipRule(
            f"{found.not_permitted} of {found.processes_seen} processes belong to others: only root sees their files, "
            "and the gpu stage what NVML lists"
        )


def _count(processes: list[GpuProcess]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


def _process(process: GpuProcess, host: str) -> Evidence:
    age = f", started {duration(process.age_s)} ago" if process.age_s is not None else ""
    devices = ", ".join(process.devices[:8])
    return Evidence(
        f"pid {process.pid} {process.command} of {process.user}, state {process.state}{age}: {devices}",
        f"/proc/{process.pid}/fd",
        host=host,
    )


@fleet_rule("system", "sys.container")
def containers(fleet: Fleet) -> Iterator[Finding]:
    """Which hosts are containers: their limits, interfaces and processes are the container's, not the machine's."""
    known = fleet.every(System)
    inside = {host: system.container.hints for host, system in known.items() if system.container.hints}
    if inside and len(inside) < len(known):
        hosts = tuple(sorted(inside))
        yield finding(
            "sys.container",
            Severity.INFO,
            f"{len(hosts)} of {len(known)} hosts are containers, the others are not",
            tuple(Evidence(", ".join(inside[host]), "container hints", host=host) for host in hosts[:3]),
            hosts=hosts,
        )
