"""NVLinks of a host's GPUs: are all up, and do they transfer without errors?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.facts.gpu import GpuDevice
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Finding, Fix, Severity
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.nvidia import answered, devices, need_fields, place, proof
from nccl_doctor.rules.thresholds import value


@host_rule("gpu", "gpu.nvlink.link-down", "gpu.nvlink.inactive", "gpu.nvlink.errors")
def nvlinks(host: Host, plan: Plan) -> Iterator[Finding]:
    """All NVLinks of a module (SXM, superchip) are up, and none has repeated errors.

    How many there should be comes from the catalogue of models. Cards with a bridge, and modules joined straight to each
    other (a virtual machine may have some of a board's) are judged by their neighbours: a card none of whose links is up
    has no bridge, which is no fault; where no module has a link that is up, nothing is known. One GPU alone (a virtual
    machine with one of eight) has no peer over NVLink: that its links are inactive is information.
    """
    gpus = devices(answered(host))
    if alone := _alone(gpus):
        yield _inactive(host, alone)
        return
    untold: MissingFact | None = None
    for gpu in gpus:
        if gpu.mig_mode:
            continue  # its NVLinks are off: that MIG is on is told
        model = find(gpu.name)
        what = f"NVLink state of GPU {gpu.label}"
        if not gpu.nvlinks and model and model.nvlinks:
            why = "the driver knows no NVLink of it: they are switched off, or a sandbox hides them"
            untold = untold or MissingFact(what, gpu.errors.get("nvlinks", why))
            continue
        if gpu.nvlinks is None:
            continue
        active = sum(link.active for link in gpu.nvlinks)
        if model and model.nvlinks == 0 and not active:
            continue  # a card without a bridge
        expected = (model.nvlinks if model and not _straight(gpus) else None) or _most_among(gpus, gpu.name)
        if not expected and model and model.nvlinks is None and len(gpus) > 1:
            untold = untold or MissingFact(
                what, "none is up on any GPU here, and how many should be depends on the board"
            )
        if active < expected and active == len(gpu.nvlinks) and "nvlinks" in gpu.errors:
            untold = untold or MissingFact(what, gpu.errors["nvlinks"])  # of the others nothing is known
        elif active < expected:
            yield _links_down(host, gpu, active, expected)
        yield from _link_errors(host, gpu)
    if untold:
        raise untold
    need_fields(gpus, "NVLink state", "nvlinks")
    if why := next((gpu.errors["nvlink_counters"] for gpu in gpus if "nvlink_counters" in gpu.errors), ""):
        raise MissingFact("NVLink error counters", why)


def _alone(gpus: list[GpuDevice]) -> GpuDevice | None:
    """The only GPU of a host if it is a module, none of its NVLinks is up, and no multi-node NVLink joins it."""
    if len(gpus) != 1 or gpus[0].nvlinks is None or any(link.active for link in gpus[0].nvlinks):
        return None
    gpu, model = gpus[0], find(gpus[0].name)
    joined = gpu.fabric is not None and bool(gpu.fabric.cluster.strip("0"))
    return gpu if model and model.nvlinks and not joined else None


def _inactive(host: Host, gpu: GpuDevice) -> Finding:
    return host.finding(
        "gpu.nvlink.inactive",
        Severity.INFO,
        f"no NVLink of GPU {gpu.label} is up; it is the only GPU here, so NCCL has no use for one",
        proof(host, gpu, f"active NVLinks: 0 of {len(gpu.nvlinks or ())} that the driver tells; GPUs on this host: 1"),
        places=[place(host, gpu)],
    )


def _straight(gpus: Iterable[GpuDevice]) -> bool:
    """Whether all NVLinks that are up lead to other GPUs, none to a switch."""
    ends = {link.remote_type for gpu in gpus for link in gpu.nvlinks or () if link.active}
    return ends == {"gpu"}


def _most_among(gpus: Iterable[GpuDevice], name: str | None) -> int:
    """The most active NVLinks of the GPUs of this name."""
    return max((sum(link.active for link in gpu.nvlinks or ()) for gpu in gpus if gpu.name == name), default=0)


def _links_down(host: Host, gpu: GpuDevice, active: int, expected: int) -> Finding:
    down = [str(link.link) for link in gpu.nvlinks or () if not link.active]
    which = f" (inactive: {', '.join(down)})" if down else ""
    return host.finding(
        "gpu.nvlink.link-down",
        Severity.FAIL,
        f"{expected - active} of {expected} NVLinks of GPU {gpu.label} are down",
        proof(host, gpu, f"active NVLinks: {active} of {expected}{which}"),
        Fix("see link state and errors", f"nvidia-smi nvlink -s -i {gpu.index}; nvidia-smi nvlink -e -i {gpu.index}"),
        Fix(
            "drain the host and reset all GPUs, the fabric manager running; if it stays down: field diagnostic",
            "sudo nvidia-smi --gpu-reset",
            risky=True,
        ),
        places=[place(host, gpu)],
        explains=("gpu.nvlink.lost", "gpu.nvlink.narrow", "topology", "gpu.p2p"),
    )


def _link_errors(host: Host, gpu: GpuDevice) -> Iterator[Finding]:
    proofs = []
    replays, recoveries = value("gpu.nvlink.replay.warn"), value("gpu.nvlink.recovery.warn")
    crc = value("gpu.nvlink.crc.warn")
    for link in gpu.nvlinks or ():
        if not (
            link.replay or link.recovery or link.crc_flit or link.crc_data or link.recovery_failed or link.integrity
        ):
            continue  # a host has 144 of them, and nearly all are without any error
        counts = (
            ("replays", link.replay, replays),
            ("recoveries", link.recovery, recoveries),
            ("CRC flit errors", link.crc_flit, crc),
            ("CRC data errors", link.crc_data, crc),
            ("failed recoveries", link.recovery_failed, recoveries),
            ("link integrity errors", link.integrity, crc),
        )
        high = [f"{count} {name}" for name, count, limit in counts if count and count >= limit]
        if high:
            proofs.append(proof(host, gpu, f"NVLink {link.link}: {', '.join(high)}"))
    if proofs:
        yield host.finding(
            "gpu.nvlink.errors",
            Severity.WARN,
            f"NVLink errors on GPU {gpu.label} since the driver was loaded",
            proofs,
            places=[place(host, gpu)],
            confidence=0.8,
        )
