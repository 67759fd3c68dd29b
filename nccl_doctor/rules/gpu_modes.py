"""GPU modes and use: MIG, compute mode, persistence, and who is on the GPUs already."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.gpu import GpuDevice, GpuProcess
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import Finding, Fix, Severity
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.nvidia import answered, devices, need_fields, place, proof
from nccl_doctor.rules.system import SERVICES
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size


@host_rule("gpu", "gpu.mig", "gpu.mig.pending")
def mig(host: Host, plan: Plan) -> Iterator[Finding]:
    """MIG is off: NCCL has no NVLink and no P2P between MIG instances, and one rank sees one instance."""
    gpus = devices(answered(host))
    on = [gpu for gpu in gpus if gpu.mig_mode]
    pending = [gpu for gpu in gpus if gpu.mig_mode_pending is not None and gpu.mig_mode_pending != gpu.mig_mode]
    if on:
        yield host.finding(
            "gpu.mig",
            Severity.FAIL,
            f"MIG is on for {len(on)} of {len(gpus)} GPUs",
            [proof(host, gpu, "MIG mode: enabled") for gpu in on[:4]],
            Fix("turn it off while the GPU is idle", f"sudo nvidia-smi -i {on[0].index} -mig 0", risky=True),
            places=[place(host, gpu) for gpu in on],
            explains=("gpu.p2p", "gpu.nvlink.lost", "topology"),
        )
    if pending:
        yield host.finding(
            "gpu.mig.pending",
            Severity.WARN,
            f"a change of MIG mode waits for a reset of {len(pending)} GPUs",
            [
                proof(host, gpu, f"MIG mode: current {gpu.mig_mode}, pending {gpu.mig_mode_pending}")
                for gpu in pending[:4]
            ],
            places=[place(host, gpu) for gpu in pending],
        )
    need_fields(gpus, "MIG mode", "mig_mode", "mig_mode_pending")


_EXCLUSIVE = ("exclusive-process", "exclusive-thread")


@host_rule("gpu", "gpu.compute-mode.prohibited", "gpu.compute-mode.exclusive", "gpu.persistence-off")
def modes(host: Host, plan: Plan) -> Iterator[Finding]:
    """Compute mode lets processes in, and persistence mode keeps the driver loaded.

    Exclusive mode is fine for one rank per GPU and breaks everything else. Without persistence the driver forgets its
    state when the last process leaves: slow first calls, ECC counters at zero, power limits gone.
    """
    gpus = devices(answered(host))
    shut = [gpu for gpu in gpus if gpu.compute_mode == "prohibited"]
    exclusive = [gpu for gpu in gpus if gpu.compute_mode in _EXCLUSIVE]
    if shut:
        yield host.finding(
            "gpu.compute-mode.prohibited",
            Severity.FAIL,
            f"{len(shut)} of {len(gpus)} GPUs in compute mode 'prohibited': no process may use {'it' if len(shut) == 1 else 'them'}",
            [proof(host, gpu, "compute mode: prohibited") for gpu in shut[:4]],
            Fix("set the default mode", "sudo nvidia-smi -c DEFAULT"),
            places=[place(host, gpu) for gpu in shut],
        )
    if exclusive:
        held = [gpu for gpu in exclusive if gpu.processes]
        yield host.finding(
            "gpu.compute-mode.exclusive",
            Severity.FAIL if held else Severity.INFO,
            f"{len(held)} of {len(exclusive)} GPUs in exclusive mode are already taken"
            if held
            else f"{len(exclusive)} of {len(gpus)} GPUs are in exclusive mode: one process each",
            [proof(host, gpu, f"compute mode: {gpu.compute_mode}") for gpu in (held or exclusive)[:4]],
            places=[place(host, gpu) for gpu in held or exclusive],
        )
    off = [gpu for gpu in gpus if gpu.persistence_mode is False]
    if off:
        yield host.finding(
            "gpu.persistence-off",
            Severity.INFO,
            f"persistence mode is off on {len(off)} of {len(gpus)} GPUs",
            ("persistence mode: disabled", f"NVML, GPU {off[0].index}"),
            Fix("run the persistence daemon", "sudo systemctl enable --now nvidia-persistenced"),
        )
    need_fields(gpus, "compute mode", "compute_mode")
    if new := {gpu.compute_mode for gpu in gpus} - {None, "default", "prohibited", *_EXCLUSIVE}:
        raise MissingFact("compute mode", f"this release does not know {new.pop()!r}")


def _host_memory(gpu: GpuDevice) -> bool:
    """The host's kernel uses this GPU's memory, too. Drivers before R560 do not tell: then the model does."""
    if gpu.memory_numa_node is not None:
        return gpu.memory_numa_node >= 0
    return (model := find(gpu.name)) is not None and model.c2c


@host_rule("gpu", "gpu.busy.nvml", "gpu.busy.memory-without-process")
def in_use(host: Host, plan: Plan) -> Iterator[Finding]:
    """No process is on the GPUs, and no memory is in use without one.

    What the system stage already named (it reads /proc) is not told twice. Memory that no listed process holds belongs
    to a process out of sight (another container) or was leaked by one that died badly. Where the GPU's memory is a NUMA
    node of the host (GH200, GB200), the kernel keeps its page cache there, too: nothing is concluded.
    """
    gpus = devices(answered(host))
    named: set[int] = set()
    if "system" in plan.stages and (system := host.want(System)):
        named = {process.pid for process in system.gpu_processes.processes}
    holders = [
        (gpu, process)
        for gpu in gpus
        for process in gpu.processes or ()
        if process.pid not in named and process.kind == "compute" and process.name not in SERVICES
    ]
    if holders:
        yield _held(host, holders)
    limit = value("gpu.memory-used.idle")
    leaked = [
        gpu
        for gpu in gpus
        if gpu.processes == () and (gpu.memory_used_bytes or 0) > limit and not gpu.mig_mode and not _host_memory(gpu)
    ]
    if leaked and not named:
        yield host.finding(
            "gpu.busy.memory-without-process",
            Severity.WARN,
            f"memory of {len(leaked)} GPUs is in use, and no process that holds it is visible",
            [proof(host, gpu, f"{size(gpu.memory_used_bytes or 0)} used, no process listed") for gpu in leaked[:4]],
            Fix("find who holds the device files, in all containers", "sudo fuser -v /dev/nvidia*"),
            places=[place(host, gpu) for gpu in leaked],
            confidence=0.8,
        )
    need_fields(gpus, "who uses the GPU", "processes", "memory_used_bytes")


def _held(host: Host, holders: list[tuple[GpuDevice, GpuProcess]]) -> Finding:
    pids = sorted({process.pid for _, process in holders})
    evidence = []
    for gpu, process in holders[:6]:
        memory = f", {size(process.memory_bytes)}" if process.memory_bytes else ""
        owner = f", uid {process.uid}" if process.uid is not None else ""
        evidence.append(proof(host, gpu, f"pid {process.pid} {process.name or '(name not visible)'}{memory}{owner}"))
    look = f"ps -o pid,user,lstart,args -p {','.join(map(str, pids[:20]))}"
    return host.finding(
        "gpu.busy.nvml",
        Severity.WARN,
        f"{len(pids)} processes are already on the GPUs",
        evidence,
        Fix("look whose they are; end them if they are leftovers", look),
        places=[place(host, gpu) for gpu, _ in holders],
    )
