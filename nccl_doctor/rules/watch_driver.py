"""Do the NVIDIA driver and every GPU answer all the time, while a job runs?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import Gap, Watch
from nccl_doctor.findings.model import Evidence, Finding, Fix
from nccl_doctor.rules import gpu as gpu_rules
from nccl_doctor.rules.engine import WATCH, Host, MissingFact, host_rule
from nccl_doctor.rules.nvidia import LOST, with_hardware
from nccl_doctor.rules.watch_gpu_view import Gpu, gpus_of
from nccl_doctor.rules.watch_samples import silence, too_few

# What a job does whose GPU or driver is gone.
_EXPLAINED = ("hang.rank-gone", "watch.straggler", "watch.gpu-idle")


@host_rule(WATCH)
def gpus_seen(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU was sampled all the time (what the samples say is other rules' business)."""
    watch, fact, gpus = host.need(Watch), with_hardware(host), gpus_of(host)
    seen = {gpu.series.bus_id or gpu.series.index for gpu in gpus}
    gaps = [
        *(gap.why for gap in watch.gpu_gaps),
        *(f"GPU {device.label}: no sample" for device in fact.gpus if (device.bus_id or device.index) not in seen),
        *(f"GPU {gpu.label}: {gap.why}" for gpu in gpus for gap in gpu.series.gaps),
        *(f"GPU {gpu.label}: {why}" for gpu in gpus if (why := too_few(watch, gpu.series.samples))),
    ]
    if gaps or not gpus:
        raise MissingFact("GPUs over time", gaps[0] if gaps else "no sample")
    yield from ()


@host_rule(WATCH, *gpu_rules.ALL_VISIBLE)
def all_there(host: Host, plan: Plan) -> Iterator[Finding]:
    """NVML sees every GPU of the host when it is first asked, as in stage gpu: who is lost before gives no sample."""
    yield from gpu_rules.all_visible(host, plan)


@host_rule(WATCH, *gpu_rules.SILENT_DRIVER)
def driver_stays(host: Host, plan: Plan) -> Iterator[Finding]:
    """The NVIDIA driver answers all the time. One that is silent at the end is a fault, one that came back a warning.

    It is silent where a call of NVML's does not return, or NVML does not start. That our own process which asks it was
    ended says nothing of the driver: what its GPUs did then is unknown.
    """
    watch, fact = host.need(Watch), with_hardware(host)
    gaps = [gap for gap in watch.gpu_gaps if gap.nvml and (gap.nvml.outcome == "timed-out" or gap.nvml.code)]
    if gaps and gaps[-1].nvml:
        told = gpu_rules.silent_driver(host, fact, gaps[-1].nvml)
        severity, words, proof = silence(gaps)
        yield msgspec.structs.replace(
            told,
            severity=severity,
            title=f"{told.title}; no samples {words}",
            evidence=(*told.evidence, *(Evidence(text, "watch", host=host.name) for text in proof)),
            explains=(*told.explains, *_EXPLAINED),
        )


@host_rule(WATCH, "gpu.fell-off-bus.lost", "gpu.driver.failed")
def gpus_stay(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU is lost while it is watched. One that is lost at the end is a fault, one that came back a warning.

    It is lost where NVML says so, gives it no more, or answers no question about it and some about others. Where it
    answers none about any, and calls none lost, that is the driver.
    """
    with_hardware(host)
    gpus = gpus_of(host)
    silent = [gpu for gpu in gpus if gpu.series.gaps]
    lost = [gpu for gpu in silent if _is_lost(gpu, gpus)]
    for gpu in lost:
        severity, words, proof = silence(gpu.series.gaps)
        title = f"GPU {gpu.label} was lost {words}"
        told = gpu_rules.lost_gpu(host, severity, title, [gpu.proof(text) for text in proof], gpu.place)
        yield msgspec.structs.replace(told, explains=(*told.explains, *_EXPLAINED))
    if rest := [gpu for gpu in silent if gpu not in lost]:
        severity, words, proof = silence(rest[0].series.gaps)
        yield host.finding(
            "gpu.driver.failed",
            severity,
            f"the driver answered no question about any of its GPUs {words}",
            [rest[0].proof(text) for text in proof],
            Fix("read what the kernel module says", "nvidia-smi; sudo dmesg -T | grep -iE 'nvrm|xid' | tail -20"),
            places=[gpu.place for gpu in rest],
            explains=_EXPLAINED,
        )


def _is_lost(gpu: Gpu, all_gpus: list[Gpu]) -> bool:
    """Whether NVML says so, or answered for another GPU in that time."""
    last = gpu.series.gaps[-1]
    return LOST in last.why or not all(_silent_in(last, other) for other in all_gpus)


def _silent_in(gap: Gap, gpu: Gpu) -> bool:
    return any(own.from_s <= gap.to_s and gap.from_s <= own.to_s for own in gpu.series.gaps)
