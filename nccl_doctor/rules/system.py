"""The host itself: what is too small, too full, not permitted, or held by somebody else."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import UNLIMITED, Cgroup, Filesystem, GpuProcess, Limit, SharedMemory, System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding, shell_word
from nccl_doctor.rules import drift
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration, size

_COLLECTIVES = ("collectives",)  # what a fault of the host explains
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
    system = host.need(System)
    shm = system.shm
    useless = "NCCL's shared-memory transport and DataLoader workers cannot work"
    if not shm.present:
        title, proof = f"There is no /dev/shm: {useless}", ("/dev/shm: no such directory", "/dev/shm")
        yield host.finding("sys.shm.missing", Severity.FAIL, title, proof, _more_shm(system), explains=_COLLECTIVES)
        return
    proof = (f"/dev/shm: {size(shm.size_bytes)} in all, {size(shm.free_bytes)} free", "statvfs /dev/shm")
    if shm.read_only:
        yield host.finding(
            "sys.shm.read-only",
            Severity.FAIL,
            f"/dev/shm is read-only: {useless}",
            ("/dev/shm is mounted ro", "/proc/self/mountinfo"),
            Fix("make it writable until the next boot", "sudo mount -o remount,rw /dev/shm"),
            explains=_COLLECTIVES,
        )
    elif shm.size_bytes < value("shm.warn"):
        yield host.finding(
            "sys.shm.too-small",
            Severity.FAIL if shm.size_bytes <= value("shm.fail") else Severity.WARN,
            f"/dev/shm has only {size(shm.size_bytes)}: a job with several GPUs or DataLoader workers here dies of it",
            proof,
            _more_shm(system),
            explains=_COLLECTIVES,
        )
    elif shm.free_bytes < value("shm.free"):
        yield _shm_full(host, shm, proof)
    elif shm.read_only is None:
        raise MissingFact("mount options of /dev/shm", "its mount is not known")


def _shm_full(host: Host, shm: SharedMemory, proof: tuple[str, str]) -> Finding:
    held = [
        (f"{group['files']} files {prefix}*, {size(group['bytes'])}", "ls /dev/shm")
        for prefix, group in sorted(shm.leftovers.items())
    ]
    return host.finding(
        "sys.shm.full",
        Severity.FAIL,
        f"/dev/shm is full: {size(shm.free_bytes)} free of {size(shm.size_bytes)}",
        [proof, *held],
        Fix("see who still uses the files", "sudo fuser -v /dev/shm/* 2>&1 | head"),
        Fix("remove what a dead job left, once nobody uses it", "rm -f /dev/shm/nccl-* /dev/shm/torch_*", risky=True),
        explains=_COLLECTIVES,
    )


def _more_shm(system: System) -> Fix:
    if system.container.hints:
        return Fix(
            "start the container with --ipc=host or --shm-size=16g (Kubernetes: an emptyDir with medium: Memory)"
        )
    if not system.shm.present:
        command = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o size=50%,mode=1777,nosuid,nodev tmpfs /dev/shm"
        return Fix("mount one until the next boot", command)
    return Fix("make it larger until the next boot", "sudo mount -o remount,size=50% /dev/shm")


@host_rule("system", "ib.memlock")
def locked_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """The limit on locked memory (``ulimit -l``) lets RDMA register its buffers.

    Registering memory with an RDMA device pins it. With a small limit ibv_reg_mr or ibv_create_cq fails with "Cannot
    allocate memory". A login with CAP_IPC_LOCK is not bound by it: root, and containers that are given it; on a host, other
    users are. Without an RDMA device the limit does not matter to NCCL: a small one is told, not blamed.
    """
    system = host.need(System)
    limit = _limit(system, "memlock")
    rdma = system.rdma_devices
    if limit.soft == UNLIMITED or (limit.soft > value("memlock.plain") and not rdma):
        return
    if rdma and limit.soft >= value("memlock.rdma"):
        return
    free = system.container.locks_freely
    shown = f"Locked memory is limited to {_show(limit.soft)}"
    if not rdma:
        severity, title = Severity.INFO, f"{shown}; harmless without an RDMA device, and none is here"
    elif free:
        severity = Severity.INFO if system.container.hints else Severity.WARN
        title = f"{shown}; this login is not bound by it (CAP_IPC_LOCK), other users are"
    else:
        severity, title = Severity.FAIL, f"{shown}: RDMA ({few(rdma)}) cannot register its buffers"
    capability = f", CapEff {system.container.capabilities}" if rdma and free else ""
    own = Fix("in the job's shell: the hard limit allows it", "ulimit -l unlimited")
    yield host.finding(
        "ib.memlock",
        severity,
        title,
        (f"RLIMIT_MEMLOCK soft {_show(limit.soft)}, hard {_show(limit.hard)}{capability}", "ulimit -l"),
        *((own,) if limit.hard == UNLIMITED else ()),
        _raised("memlock", "unlimited", "rdma"),
        Fix("Slurm: LimitMEMLOCK=infinity in slurmd's unit; containers: --ulimit memlock=-1, or --cap-add IPC_LOCK"),
        explains=_COLLECTIVES if severity is Severity.FAIL else (),
    )


def _raised(limit: str, amount: str, file: str) -> Fix:
    lines = f"* soft {limit} {amount}\\n* hard {limit} {amount}\\n"
    command = f"printf '{lines}' | sudo tee /etc/security/limits.d/99-{file}.conf"
    return Fix("for logins: log in again afterwards", command)


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
    yield host.finding(
        "sys.nofile",
        Severity.FAIL if limit.soft < value("nofile.fail") else Severity.WARN,
        f"Only {limit.soft} files may be open: every connection, shared tensor and worker takes some",
        (f"RLIMIT_NOFILE soft {limit.soft}, hard {_show(limit.hard, 'nofile')}", "ulimit -n"),
        *_more(limit, "nofile", "n", 65536),
    )


def _more(limit: Limit, name: str, letter: str, amount: int) -> tuple[Fix, ...]:
    """How to raise a limit: up to the hard one, if that is enough, anybody may."""
    if limit.hard == UNLIMITED or limit.hard >= value(f"{name}.warn"):
        own = amount if limit.hard == UNLIMITED else limit.hard
        return (Fix("in the job's shell: the hard limit allows it", f"ulimit -{letter} {own}"),)
    word = f"{name}={amount}"
    return (
        _raised(name, str(amount), name),
        Fix(f"Slurm, systemd: Limit{word.upper()} in the unit; containers: --ulimit {word}"),
    )


@host_rule("system", "sys.threads.pids-limit", "sys.threads.nproc")
def threads(host: Host, plan: Plan) -> Iterator[Finding]:
    """There is room for the threads and processes of a job (cgroup ``pids.max``, ``ulimit -u``).

    NCCL, torch, CUDA and DataLoader workers start hundreds of threads a rank; at the limit pthread_create fails with
    "Resource temporarily unavailable".
    """
    system = host.need(System)
    group = system.cgroup
    if group.pids_limit is not None and group.pids_used is not None:
        room = group.pids_limit - group.pids_used
        if room < value("pids.free.warn"):
            yield host.finding(
                "sys.threads.pids-limit",
                Severity.FAIL if room < value("pids.free.fail") else Severity.WARN,
                f"The cgroup has room for only {room} more threads",
                (f"pids.max {group.pids_limit}, pids.current {group.pids_used}", group.pids_group),
                Fix("raise it: --pids-limit -1 (Docker, Podman), TasksMax= (systemd), podPidsLimit (kubelet)"),
                explains=_COLLECTIVES,
            )
    limit = _limit(system, "nproc")
    if system.user != 0 and limit.soft != UNLIMITED and limit.soft < value("nproc.warn"):
        yield host.finding(
            "sys.threads.nproc",
            Severity.WARN,
            f"This user may run only {limit.soft} threads",
            (f"RLIMIT_NPROC soft {limit.soft}, hard {_show(limit.hard, 'nproc')}", "ulimit -u"),
            *_more(limit, "nproc", "u", 65536),
        )
    if limits_of_cgroup(system).pids_limit is not None and group.pids_used is None:
        raise MissingFact("pids.current", f"not readable in {group.pids_group}")


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
            yield host.finding(
                "sys.noexec",
                Severity.WARN,
                f"{entry.path} is mounted noexec: torch.compile, Triton and C++ extensions that are built there cannot be loaded",
                (f"{entry.mount} ({entry.type} {entry.source}) has noexec", "/proc/self/mountinfo"),
                Fix("allow it until the next boot", f"sudo mount -o remount,exec {shell_word(entry.mount)}"),
                Fix(
                    "or build elsewhere: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR and TMPDIR in a directory that allows it"
                ),
            )


@host_rule("system", "sys.disk-full", "sys.disk-full.inodes", "sys.disk-full.low", "sys.disk-full.read-only")
def disks(host: Host, plan: Plan) -> Iterator[Finding]:
    """The places a job writes to (/tmp, home, caches) have free space and inodes, and can be written."""
    entries = host.need(System).filesystems
    found = [item for entry in _one_per_mount(entries) for item in _disk(host, entry, _paths(entries, entry))]
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


def _disk(host: Host, entry: Filesystem, paths: str) -> Iterator[Finding]:
    kind = " ".join(dict.fromkeys((entry.type, entry.source)))  # a tmpfs is its own source
    where = f"{entry.mount} ({kind})" if entry.mount else entry.looked_at
    free, place = size(entry.free_bytes), shell_word(entry.looked_at)
    proof = (
        f"{where}: {free} free of {size(entry.size_bytes)}, {entry.inodes_free} of {entry.inodes} inodes free; holds {paths}",
        f"stat -f {entry.looked_at}",
    )
    look = Fix("see what fills it", f"sudo du -xsh {place}/* 2>/dev/null | sort -h | tail")
    if entry.read_only:
        # An image (squashfs) is full by nature, and nobody writes to a read-only home by mistake.
        if entry.role in _WRITTEN:
            yield host.finding(
                "sys.disk-full.read-only",
                Severity.FAIL,
                f"{entry.path} is read-only",
                proof,
                Fix("see whether a disk error caused it", "sudo dmesg | grep -iE 'remount|I/O error'"),
                Fix("if not, make it writable", f"sudo mount -o remount,rw {shell_word(entry.mount or entry.path)}"),
            )
    elif entry.free_bytes < value("disk.free.fail"):
        title = f"{where} is full: {free} free ({paths})"
        yield host.finding("sys.disk-full", Severity.FAIL, title, proof, look)
    elif entry.inodes and entry.inodes_free < value("disk.inodes.fail"):
        title = f"{where} has no inodes left: {entry.inodes_free} free ({paths})"
        fix = Fix("see where they are", f"sudo du --inodes -xs {place}/* | sort -n | tail")
        yield host.finding("sys.disk-full.inodes", Severity.FAIL, title, proof, fix)
    elif entry.free_bytes < min(value("disk.free.warn"), entry.size_bytes / 2):
        title = f"{where} is nearly full: {free} free ({paths})"
        yield host.finding("sys.disk-full.low", Severity.WARN, title, proof, look)


@host_rule("system", "sys.clock-or-dns-or-fs.hung-mount")
def hung_mounts(host: Host, plan: Plan) -> Iterator[Finding]:
    """No file system that the job uses hangs (a dead NFS server): a process that touches one cannot even be killed."""
    for entry in host.need(System).filesystems:
        if entry.outcome != "timed-out":
            continue
        where = f"{entry.mount} ({entry.type} from {entry.source})" if entry.mount else entry.path
        server = shell_word(entry.source.split(":/")[0].strip("[]"))
        asked = f"stat -f {entry.path}"
        yield host.finding(
            "sys.clock-or-dns-or-fs.hung-mount",
            Severity.FAIL,
            f"{where} hangs: asked for its free space, it did not answer",
            (f"{asked}: {entry.detail or 'no answer within 3 s'}", asked),
            Fix("see which processes are stuck on it", "ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'"),
            Fix("does the server answer?", f"timeout 5 rpcinfo -t {server} nfs")
            if entry.type.startswith("nfs") and ":" in entry.source
            else Fix("is it mounted as intended?", "cat /proc/mounts"),
            explains=_COLLECTIVES,
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
        yield host.finding(
            "sys.host-oom.low-memory",
            Severity.WARN,
            f"Only {size(available)} of {size(total)} memory is available",
            (f"MemAvailable {size(available)}, MemTotal {size(total)}", "/proc/meminfo"),
            Fix("see who has it", "ps -eo pid,user,rss,comm --sort=-rss | head"),
        )
    if kills := system.cgroup.oom_kills:
        yield host.finding(
            "sys.host-oom.killed",
            Severity.WARN,
            f"The kernel has already killed {kills} processes in this cgroup for want of memory",
            (f"oom_kill {kills}", system.cgroup.memory_group or "memory.events"),
            Fix("see which and when", "sudo dmesg -T | grep -i 'killed process'"),
        )
    yield from _cgroup_memory(host, limits_of_cgroup(system))


def limits_of_cgroup(system: System) -> Cgroup:
    """The host's cgroup, whose limits hold; ``MissingFact`` where none is mounted, and they are not known."""
    if not system.cgroup.version:
        raise MissingFact("cgroup limits", "no cgroup file system is mounted here")
    return system.cgroup


def usable_memory(system: System) -> int:
    """Bytes that a job here may still take, by the host and by the cgroup; ``MissingFact`` where either is not known."""
    available = system.memory.get("MemAvailable")
    if available is None:
        raise MissingFact("/proc/meminfo", "has no MemAvailable")
    group = limits_of_cgroup(system)
    if group.memory_limit_bytes is None:
        return available
    if group.memory_room_bytes is None:
        raise MissingFact("memory used", f"not readable in {group.memory_group}")
    return min(available, group.memory_room_bytes)


def gpu_count(host: Host) -> int:
    """How many NVIDIA GPUs are on the bus, or where that was not asked, have a device file."""
    software = host.want(Software)
    return len(software.driver.pci_gpus) if software else host.need(System).gpu_processes.gpu_devices


def _cgroup_memory(host: Host, group: Cgroup) -> Iterator[Finding]:
    if group.memory_limit_bytes is None:
        return
    room = group.memory_room_bytes
    if room is None or group.memory_used_bytes is None:
        raise MissingFact("memory used", f"not readable in {group.memory_group}")
    gpus = gpu_count(host)
    if room < max(value("memory.available.warn"), gpus * value("memory.per-gpu.warn")):
        limit, used, cache = map(size, (group.memory_limit_bytes, group.memory_used_bytes, group.memory_cache_bytes))
        yield host.finding(
            "sys.host-oom.cgroup-limit",
            Severity.WARN,
            f"The cgroup leaves {size(room)} of memory" + (f" for {gpus} GPUs" if gpus else ""),
            (f"limit {limit}, used {used}, of that reclaimable cache {cache}", group.memory_group),
            Fix("raise it: docker run --memory, Kubernetes resources.limits.memory, Slurm --mem"),
        )


@host_rule("system", "sys.cpu-limit")
def cpus(host: Host, plan: Plan) -> Iterator[Finding]:
    """The job may use at least two CPUs per GPU: one for Python, one for NCCL's proxy thread."""
    system = host.need(System)
    gpus = gpu_count(host)
    if not gpus:
        raise SkipRule("no NVIDIA GPU on this host")
    if system.usable_cpus < gpus * value("cpu.per-gpu.warn"):
        allowed = f"affinity allows {system.processors.allowed} of {system.processors.count} CPUs"
        yield host.finding(
            "sys.cpu-limit",
            Severity.WARN,
            f"Only {system.usable_cpus:g} CPUs may be used for {gpus} GPUs",
            (f"{allowed}, cgroup quota {system.cgroup.cpu_limit or 'none'}", "sched_getaffinity, cgroup cpu"),
            Fix("give the job more: docker run --cpus, Kubernetes resources.limits.cpu, Slurm --cpus-per-task"),
        )
    limits_of_cgroup(system)


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
        yield host.finding(
            "gpu.busy.stuck-process",
            Severity.FAIL,
            f"{_count(stuck)} that cannot be killed hold{'s' if len(stuck) == 1 else ''} GPUs",
            [_process(process) for process in stuck[:5]],
            Fix("see where it is stuck", f"sudo cat /proc/{stuck[0].pid}/stack; sudo dmesg -T | grep -i xid"),
            Fix("if it does not go away: drain the host and reboot it", "sudo reboot", risky=True),
        )
    if running:
        pids = [str(process.pid) for process in running[:20]]
        yield host.finding(
            "gpu.busy",
            Severity.WARN,
            f"{_count(running)} already hold{'s' if len(running) == 1 else ''} GPUs here",
            [_process(process) for process in running[:5]],
            Fix("look at them", f"ps -o pid,ppid,user,lstart,stat,args -p {','.join(pids)}"),
            Fix("if it is a leftover of yours", f"kill {' '.join(pids)}", risky=True),
        )
    if found.not_permitted and not foreign and host.need(System).user != 0:
        raise SkipRule(
            f"{found.not_permitted} of {found.processes_seen} processes belong to others: only root sees their files, "
            "and the gpu stage what NVML lists"
        )


def _count(processes: list[GpuProcess]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


def _process(process: GpuProcess) -> tuple[str, str]:
    age = f", started {duration(process.age_s)} ago" if process.age_s is not None else ""
    devices = ", ".join(process.devices[:8])
    told = f"pid {process.pid} {process.command} of {process.user}, state {process.state}{age}: {devices}"
    return told, f"/proc/{process.pid}/fd"


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
