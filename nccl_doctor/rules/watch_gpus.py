"""GPUs over time, while a job runs: throttled, idle, full, with errors that rise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nccl_doctor.facts.fold import numbered
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import Watch
from nccl_doctor.findings.model import Finding, Fix, Severity
from nccl_doctor.rules import xids
from nccl_doctor.rules.engine import WATCH, Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.nvidia import (
    NO_GPU,
    SLOWDOWN,
    THROTTLE_IDS,
    THROTTLE_REASONS,
    THROTTLES,
    default_power_limit,
    need_fields,
    throttle_fix,
    throttled_by,
)
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration
from nccl_doctor.rules.watch_gpu_view import Gpu, course, in_words, mean_of, need_told, sampled

# Counter, its name, and the threshold of its rise: the last two are NVLink 5's.
_LINK_COUNTERS = (
    ("nvlink_recoveries", "NVLink recoveries", "gpu.nvlink.recovery.warn"),
    ("nvlink_replays", "NVLink replays", "gpu.nvlink.replay.warn"),
    ("nvlink_failed_recoveries", "failed NVLink recoveries", "gpu.nvlink.recovery.warn"),
    ("nvlink_integrity_errors", "NVLink integrity errors", "gpu.nvlink.crc.warn"),
)
_CAP = 0x4


def _with_gpus(host: Host) -> list[Gpu]:
    gpus = sampled(host)
    if not gpus:
        raise SkipRule(NO_GPU)
    return gpus


def _need_reasons(gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        if gpu.series.throttle_known < gpu.series.busy:
            why = gpu.series.refused.get("throttle_reasons") or "not told by every sample"
            raise MissingFact("throttle reasons over time", why)


def _unused(gpu: Gpu) -> bool:
    """Whether it was never at work, and held next to nothing: no rank's."""
    share, total = gpu.series.memory_share, gpu.series.memory_total_bytes
    return bool(not gpu.series.busy and share and total and share.high * total < value("gpu.memory-used.idle"))


def _need_busy(gpus: Sequence[Gpu], what: str) -> None:
    """``MissingFact`` where a GPU was too rarely at work: what it does under load is not known.

    Beside others that were, one that nobody used is none of the job's.
    """
    least = value("watch.samples")
    for gpu in gpus:
        if gpu.series.utilization_percent is None and not gpu.series.busy:
            why = gpu.series.refused.get("utilization_percent", "not told")  # not supported: under MIG
            raise MissingFact(what, f"GPU {gpu.series.index} tells no utilisation: {why}")
    working = any(gpu.series.busy >= least for gpu in gpus)
    idle = [gpu.series.index for gpu in gpus if gpu.series.busy < least and not (working and _unused(gpu))]
    if idle:
        raise MissingFact(
            what, f"{numbered('GPU', idle)}: fewer than {least:.0f} samples found work there: is the job running?"
        )


@host_rule(WATCH, *THROTTLE_IDS, "gpu.thermal-power.power-cap")
def throttled(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU is slowed down by heat or by its power supply while it is busy, nor by a power limit far below its default.

    One throttled GPU slows the whole job: every collective waits for it. Less than the share of thresholds.yaml is a
    warning. The power cap at the default limit is normal under load.
    """
    gpus = _with_gpus(host)
    for bit, id, words in THROTTLES:
        for gpu in gpus:
            if not throttled_by(sum(map(int, gpu.series.throttled)), bit):
                continue
            count = gpu.series.throttled[str(bit)]
            share = count / gpu.series.throttle_known
            often = share >= value("watch.throttled.share") and count > 1
            yield host.finding(
                id,
                Severity.FAIL if often and bit != SLOWDOWN else Severity.WARN,
                f"GPU {gpu.label} {words} for {share * 100:.0f} % of the time that it is busy",
                gpu.proof(
                    f"{THROTTLE_REASONS[bit]} in {count} of {gpu.series.throttle_known} busy samples; {course(gpu)}"
                ),
                throttle_fix(id),
                places=[gpu.place],
                explains=("gpu.thermal-power.slow-clock", "gpu.thermal-power.hotter", "watch.straggler"),
            )
    yield from _capped(host, gpus)
    _need_busy(gpus, "throttling under load")
    _need_reasons(gpus)
    need_told(gpus, "power limit over time", "power_limit_w")
    need_fields([gpu.device for gpu in gpus if gpu.device], "power limit", "power_default_w")


def _capped(host: Host, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        count, limit = gpu.series.throttled.get(str(_CAP), 0), gpu.series.power_limit_w
        default = gpu.device.power_default_w if gpu.device else None
        if not (count and limit and default and limit < value("gpu.power-limit.share") * default):
            continue
        yield host.finding(
            "gpu.thermal-power.power-cap",
            Severity.WARN,
            f"GPU {gpu.label} is held down by a power limit of {limit:.0f} W, its default is {default:.0f} W",
            gpu.proof(f"software power cap in {count} of {gpu.series.throttle_known} busy samples; {course(gpu)}"),
            default_power_limit(gpu.series.index, default),
            places=[gpu.place],
        )


@host_rule(WATCH, "watch.gpu-idle", "watch.gpu-idle.unused")
def idle(host: Host, plan: Plan) -> Iterator[Finding]:
    """The GPUs that the job uses are busy for most of the time; what else the host did is told beside it."""
    gpus = _with_gpus(host)
    used = [gpu for gpu in gpus if gpu.series.busy]
    low = [gpu for gpu in used if mean_of(gpu.series.utilization_percent) < value("watch.idle")]
    if low:
        mean = sum(mean_of(gpu.series.utilization_percent) for gpu in low) / len(low)
        beside = _beside(host.need(Watch))
        yield host.finding(
            "watch.gpu-idle",
            Severity.WARN,
            f"{len(low)} of {len(gpus)} GPUs are busy for {mean:.0f} % of the time"
            + (f"; {beside[0]}" if beside else ""),
            [
                *(
                    gpu.proof(f"utilisation {', '.join(in_words('mean', gpu.series.utilization_percent, '%'))}")
                    for gpu in low[:3]
                ),
                *((text, "/proc, /sys") for text in beside),
            ],
            Fix("see in which line the ranks are", "nccl-doctor hang --hosts HOSTFILE"),
            places=[gpu.place for gpu in low],
            confidence=0.8,
        )
    unused = [gpu for gpu in gpus if used and _unused(gpu)]
    if unused:
        yield host.finding(
            "watch.gpu-idle.unused",
            Severity.INFO,
            f"nobody used {numbered('GPU', [gpu.series.index for gpu in unused])}",
            [gpu.proof("never at work, no memory held") for gpu in unused[:3]],
            places=[gpu.place for gpu in unused],
        )
    need_told(gpus, "utilisation over time", "utilization_percent")
    _need_busy(gpus, "utilisation under load")


def _beside(watch: Watch) -> list[str]:
    """What else may keep the GPUs waiting."""
    found = []
    if watch.cpu_percent and watch.cpu_percent.mean >= value("watch.cpu"):
        found.append(f"its CPUs are busy at {watch.cpu_percent.mean:.0f} %")
    for name in ("io", "memory"):
        if (waited := watch.waiting.get(name)) and waited.mean >= 10:
            found.append(f"tasks waited for {'disks' if name == 'io' else name} in {waited.mean:.0f} % of the time")
    for nic in watch.nics:
        if nic.received_bytes_per_s and nic.full >= value("watch.network.share") * nic.received_bytes_per_s.samples:
            found.append(f"{nic.name} is at its rate")
    return found


@host_rule(WATCH, "gpu.oom.near")
def memory_full(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU's memory was all but full: the next buffer, NCCL's own as well, would not fit."""
    gpus = _with_gpus(host)
    for gpu in gpus:
        share, total = gpu.series.memory_share, gpu.series.memory_total_bytes
        if share and total and share.high >= value("watch.gpu-memory"):
            left = (1 - share.high) * total / (1 << 20)
            yield host.finding(
                "gpu.oom.near",
                Severity.WARN,
                f"the memory of GPU {gpu.label} was {share.high * 100:.1f} % full: {left:.0f} MiB were left",
                gpu.proof(
                    f"memory used: mean {share.mean * 100:.1f} %, most {share.high * 100:.1f} % of {total / (1 << 30):.1f} GiB"
                ),
                Fix(
                    "smaller micro-batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
                ),
                places=[gpu.place],
            )
    need_told(gpus, "GPU memory over time", "memory_share", "memory_total_bytes")


@host_rule(WATCH, "gpu.ecc.uncorrectable", "gpu.nvlink.errors", "gpu.pcie.replays")
def gpu_errors(host: Host, plan: Plan) -> Iterator[Finding]:
    """No error counter of a GPU rises: memory, NVLink, PCIe."""
    gpus, seconds = _with_gpus(host), host.need(Watch).seconds
    for gpu in gpus:
        rises = gpu.series.rises
        told = (
            ("gpu.ecc.uncorrectable", "uncorrectable ECC errors", rises.get("ecc_uncorrected_volatile", 0), 1.0),
            *(("gpu.nvlink.errors", what, rises.get(name, 0), value(limit)) for name, what, limit in _LINK_COUNTERS),
            ("gpu.pcie.replays", "PCIe replays", rises.get("pcie_replays", 0), value("watch.pcie.replays") * seconds),
        )
        for id, what, rise, limit in told:
            if rise and rise >= limit:
                yield host.finding(
                    id,
                    Severity.FAIL if id == "gpu.ecc.uncorrectable" else Severity.WARN,
                    f"GPU {gpu.label}: {rise} {what} while it was watched",
                    gpu.proof(f"{what}: +{rise} in {duration(seconds)}"),
                    places=[gpu.place],
                )
    what, (*classic, failed, integrity) = "GPU error counters over time", [name for name, _, _ in _LINK_COUNTERS]
    need_told(gpus, what, "ecc_uncorrected_volatile", "pcie_replays", *classic)
    without = [gpu for gpu in gpus if all(gpu.series.refused.get(name) == "not supported" for name in classic)]
    need_told(
        [gpu for gpu in without if not any(name in gpu.series.rises for name in classic)], what, failed, integrity
    )


@host_rule(WATCH, *xids.IDS)
def xids_now(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel logs no Xid or SXid that asks for action while the host is watched (their meaning: stage gpu)."""
    host.need(Watch)
    yield from xids.told(host)
