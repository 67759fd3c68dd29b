"""The host itself: memory, CPUs, who holds its GPUs, and whether it is a container."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import Cgroup, GpuProcess, System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.nvidia import NO_GPU
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
    """How many NVIDIA GPUs have a device file, or where none has one, are on the bus.

    A container has the device files of its own GPUs, and shows the bus of all that its host has.
    """
    software = host.want(Software)
    given = host.need(System).gpu_processes.gpu_devices
    return given or (len(software.driver.pci_gpus) if software else 0)


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
        raise SkipRule(NO_GPU)
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
            f"{counted(len(stuck), 'process')} that cannot be killed hold{'s' if len(stuck) == 1 else ''} GPUs",
            [_process(process) for process in stuck[:5]],
            Fix("see where it is stuck", f"sudo cat /proc/{stuck[0].pid}/stack; sudo dmesg -T | grep -i xid"),
            Fix("if it does not go away: drain the host and reboot it", "sudo reboot", risky=True),
        )
    if running:
        pids = [str(process.pid) for process in running[:20]]
        yield host.finding(
            "gpu.busy",
            Severity.WARN,
            f"{counted(len(running), 'process')} already hold{'s' if len(running) == 1 else ''} GPUs here",
            [_process(process) for process in running[:5]],
            Fix("look at them", f"ps -o pid,ppid,user,lstart,stat,args -p {','.join(pids)}"),
            Fix("if it is a leftover of yours", f"kill {' '.join(pids)}", risky=True),
        )
    if found.not_permitted and not foreign and host.need(System).user != 0:
        raise SkipRule(
            f"{found.not_permitted} of {found.processes_seen} processes belong to others: only root sees their files, "
            "and the gpu stage what NVML lists"
        )


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
