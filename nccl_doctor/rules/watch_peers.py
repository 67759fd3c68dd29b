"""GPUs over time beside their peers: hotter, slower, or the one that all others wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import msgspec

from nccl_doctor.facts.watch import GpuSeries, Level
from nccl_doctor.findings.model import Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import WATCH, Fleet, MissingFact, SkipRule, fleet_rule
from nccl_doctor.rules.nvidia import COOL
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.watch_gpu_view import Gpu, course, mean_of, need_told, sampled

PEERS = 4  # fewer tell no outlier
_SAME_LOAD = 10  # points of utilisation
_CLOCKS = Fix("see its clocks and why they are low", "nvidia-smi -q -d CLOCK,PERFORMANCE")
_LOOK = Fix("see what they do, side by side", "nvidia-smi dmon -s pucvt -c 5")


def _alike(fleet: Fleet) -> list[list[Gpu]]:
    """The busy GPUs of one model and job, together; ``SkipRule`` where none has enough peers."""
    found = [gpu for gpus in fleet.of_each(sampled).values() for gpu in gpus]
    if not found and not fleet.missing:
        raise SkipRule("no NVIDIA GPU on any host")
    jobs: dict[str, list[str]] = {}
    for job in jobs_of(fleet):
        for host in job.hosts:
            jobs.setdefault(host, []).append(job.id)
    groups: dict[tuple[str, tuple[str, ...]], list[Gpu]] = {}
    for gpu in found:
        if gpu.series.busy >= value("watch.samples"):
            model = (gpu.device.name if gpu.device else None) or ""
            groups.setdefault((model, tuple(jobs.get(gpu.host.name, ()))), []).append(gpu)
    alike = [group for group in groups.values() if len(group) >= PEERS]
    if not alike:
        raise SkipRule(f"fewer than {PEERS} busy GPUs of one model to compare")
    return alike


def _lack(fleet: Fleet, *fields: str) -> None:
    """What busy GPUs did not tell becomes unknown."""
    for group in _alike(fleet):
        for gpu in group:
            try:
                need_told([gpu], "what its GPUs do", *fields)
            except MissingFact as gap:
                fleet.lack(gap.what, gap.why, gpu.host.name)


def _outliers(
    fleet: Fleet, of: Callable[[GpuSeries], Level | None], stands_out: Callable[[GpuSeries, float, float], bool]
) -> Iterator[tuple[Gpu, list[Gpu], float]]:
    """A GPU, its peers at the same load, and their median: where ``stands_out(series, median, median power)`` says so."""
    for group in _alike(fleet):
        # Who does not tell its power may work harder than the others.
        told = [gpu for gpu in group if of(gpu.series) and gpu.series.utilization_percent and gpu.series.power_w]
        usual = median(_use(gpu) for gpu in told) if told else 0.0
        told = [gpu for gpu in told if abs(_use(gpu) - usual) <= _SAME_LOAD / 2]
        if len(told) < PEERS:
            continue
        middle = median(mean_of(of(gpu.series)) for gpu in told)
        power = median(mean_of(gpu.series.power_w) for gpu in told)
        for gpu in told:
            if stands_out(gpu.series, middle, power):
                yield gpu, [other for other in told if other is not gpu], middle


def _use(gpu: Gpu) -> float:
    return mean_of(gpu.series.utilization_percent)


@fleet_rule(WATCH, "gpu.thermal-power.hotter", "gpu.thermal-power.slow-clock")
def unlike_peers(fleet: Fleet) -> Iterator[Finding]:
    """No GPU is much hotter, or clocks much lower, than those of its model that are as busy and draw no less power."""

    def hotter(series: GpuSeries, middle: float, power: float) -> bool:
        return (
            mean_of(series.temperature_c) >= middle + value("watch.hotter") and mean_of(series.power_w) <= 1.1 * power
        )

    def slower(series: GpuSeries, middle: float, power: float) -> bool:
        return (
            mean_of(series.clock_sm_mhz) <= value("watch.slow-clock") * middle
            and mean_of(series.power_w) <= 1.2 * power
        )

    def heat(series: GpuSeries) -> Level | None:
        return series.temperature_c

    def clock(series: GpuSeries) -> Level | None:
        return series.clock_sm_mhz

    kinds = (
        ("gpu.thermal-power.hotter", heat, hotter, "is at", "C", COOL),
        ("gpu.thermal-power.slow-clock", clock, slower, "runs at", "MHz", _CLOCKS),
    )
    for id, of, stands_out, does, unit, fix in kinds:
        for gpu, peers, middle in _outliers(fleet, of, stands_out):
            own = mean_of(of(gpu.series))
            yield finding(
                id,
                Severity.WARN,
                f"GPU {gpu.label} of {gpu.host.name} {does} {own:.0f} {unit}, {len(peers)} others under the same load "
                f"at {middle:.0f} {unit}",
                [gpu.proof(course(gpu)), *(other.proof(course(other)) for other in peers[:2])],
                confidence=0.8,
                places=[gpu.place],
                fixes=(msgspec.structs.replace(fix, host=gpu.host.name),),
            )
    _lack(fleet, "utilization_percent", "temperature_c", "clock_sm_mhz", "power_w")


@fleet_rule(WATCH, "watch.straggler")
def straggler(fleet: Fleet) -> Iterator[Finding]:
    """No GPU works while all others wait for it, as far as utilisation and power tell.

    A NCCL kernel that waits keeps its GPU at 100 % utilisation and draws little power. So who draws much more than all
    others at 100 %, or is not at 100 % where all others are, may be the one they wait for. Where ranks do unlike work
    (pipeline stages, experts, a parameter server) that is as it should be: a warning, and never certain.
    """
    for group in _alike(fleet):
        full = [gpu for gpu in group if _use(gpu) >= 100 - _SAME_LOAD]
        if len(full) < max(PEERS - 1, 0.75 * len(group)):  # most are full, or nobody waits for one
            continue
        power = median(mean_of(gpu.series.power_w) for gpu in full)
        for gpu in group:
            others = [other for other in full if other is not gpu][:2]
            own, use = mean_of(gpu.series.power_w), _use(gpu)
            draws = use >= 100 - _SAME_LOAD and power > 0 and own >= value("watch.straggler.power") * power
            late = use <= 100 - value("watch.straggler.utilization")
            if not (draws or late):
                continue
            count = len(full) - draws
            what = f"draws {own:.0f} W" if draws else f"is busy for {use:.0f} % of the time"
            rest = f"{power:.0f} W" if draws else "100 %"
            why = "" if draws else ": its host side (data loading, Python) may keep it"
            yield finding(
                "watch.straggler",
                Severity.WARN,
                f"GPU {gpu.label} of {gpu.host.name} {what}, {count} others {rest} at full utilisation: "
                f"they may wait for it{why}",
                [
                    one.proof(f"utilisation {mean_of(one.series.utilization_percent):.0f} %, {course(one)}")
                    for one in (gpu, *others)
                ],
                confidence=0.5,
                places=[gpu.place],
                fixes=(Fix("see where each rank stands", "nccl-doctor hang --hosts HOSTFILE"), _LOOK),
            )
    _lack(fleet, "utilization_percent", "power_w")
