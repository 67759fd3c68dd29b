"""GPUs over time, while a job runs: throttled, hotter or slower than their peers, idle, full, with errors that rise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from nccl_doctor.facts.fold import ranges
from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.watch import GpuSeries, Level, Watch
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules import gpu as gpu_rules
from nccl_doctor.rules import xids
from nccl_doctor.rules.engine import WATCH, Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.nvidia import NO_GPU, THROTTLE_REASONS, need_fields
from nccl_doctor.rules.running_jobs import jobs_of
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration
from nccl_doctor.rules.watch_host import too_few

_LINK_COUNTERS = ("nvlink_recoveries", "nvlink_replays")
PEERS = 4  # fewer tell no outlier
_SAME_LOAD = 10  # points of utilisation
_CAP = 0x4
_THROTTLES = (
    (0x40, "gpu.thermal-power.hw-thermal", "is slowed down by heat (hardware)"),
    (0x80, "gpu.thermal-power.power-brake", "is slowed down by the power brake: the power supply asks for less"),
    (0x20, "gpu.thermal-power.sw-thermal", "is slowed down by heat (driver)"),
    (0x08, "gpu.thermal-power.hw-slowdown", "is slowed down by the hardware, which does not say why"),
)
_COOL = Fix(
    "check fans, air flow, inlet temperature and the liquid loop",
    "sudo ipmitool sdr type temperature; sudo ipmitool sdr type fan",
)
_SUPPLY = Fix(
    "check power supplies, their cables and the chassis power policy (BMC event log)",
    "sudo ipmitool sel list | tail -20; sudo ipmitool sdr type 'Power Supply'",
)
_CLOCKS = Fix("see its clocks and why they are low", "nvidia-smi -q -d CLOCK,PERFORMANCE")
_LOOK = Fix("see what they do, side by side", "nvidia-smi dmon -s pucvt -c 5")


class Gpu(NamedTuple):
    """One GPU of a host, and what it did."""

    host: Host
    series: GpuSeries
    device: GpuDevice | None

    @property
    def label(self) -> str:
        """How a finding names it."""
        return self.device.label if self.device else str(self.series.index)

    @property
    def place(self) -> Place:
        """Where a finding about it points."""
        return Place(host=self.host.name, gpu=self.label)

    def proof(self, text: str) -> Evidence:
        """What NVML said of it over the watch."""
        return Evidence(text, f"NVML, GPU {self.series.index}", host=self.host.name)


def sampled(host: Host) -> list[Gpu]:
    """The GPUs of a host that were seen often enough to judge them; ``MissingFact`` where none was, empty without GPUs.

    What is lacking of the others, and of times in between, is unknown by ``gpus_seen``.
    """
    watch, fact = host.need(Watch), host.need(GpuFact)
    if not fact.has_hardware:
        return []
    known = {device.index: device for device in fact.gpus}
    gpus = [Gpu(host, gpu, known.get(gpu.index)) for gpu in watch.gpus if gpu.samples >= value("watch.samples")]
    if not gpus:
        raise MissingFact("GPUs over time", watch.gpus_why or "too few samples: watch longer")
    return gpus


@host_rule(WATCH)
def gpus_seen(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU was sampled all the time (what the samples say is other rules' business)."""
    watch, fact = host.need(Watch), host.need(GpuFact)
    if not fact.has_hardware:
        raise SkipRule(NO_GPU)
    samples = {
        **dict.fromkeys((device.index for device in fact.gpus), 0),
        **{gpu.index: gpu.samples for gpu in watch.gpus},
    }
    if watch.gpus_why or not samples:
        raise MissingFact("GPUs over time", watch.gpus_why or "no sample")
    for index, count in sorted(samples.items()):
        if why := too_few(watch, count):
            raise MissingFact("GPUs over time", f"GPU {index}: {why}")
    yield from ()


@host_rule(WATCH, *gpu_rules.ALL_VISIBLE)
def all_there(host: Host, plan: Plan) -> Iterator[Finding]:
    """NVML sees every GPU of the host when it is first asked, as in stage gpu: who is lost before gives no sample."""
    yield from gpu_rules.all_visible(host, plan)


def _with_gpus(host: Host) -> list[Gpu]:
    gpus = sampled(host)
    if not gpus:
        raise SkipRule(NO_GPU)
    return gpus


def _need_told(gpus: Sequence[Gpu], what: str, *fields: str) -> None:
    """``MissingFact`` where a GPU did not always tell one of these levels or counters, although its driver knows them."""
    for gpu in gpus:
        for field in fields:
            told = getattr(gpu.series, field) if hasattr(gpu.series, field) else gpu.series.rises.get(field)
            why = gpu.series.refused.get(field) or ("not told" if told is None else "")
            if why and why != "not supported":
                raise MissingFact(what, f"GPU {gpu.series.index}: {why}")


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
        which = f"GPU{'s' if len(idle) > 1 else ''} {ranges(idle)}"
        raise MissingFact(what, f"{which}: fewer than {least:.0f} samples found work there: is the job running?")


def _told(name: str, level: Level | None, unit: str) -> list[str]:
    return [f"{name} {level.mean:.0f} {unit} ({level.low:.0f} to {level.high:.0f})"] if level else []


def _course(gpu: Gpu) -> str:
    """Clock, temperature and power while it was busy: mean and range."""
    series = gpu.series
    top = f" of {gpu.device.clock_sm_max_mhz}" if gpu.device and gpu.device.clock_sm_max_mhz else ""
    limit = f" of {series.power_limit_w:.0f}" if series.power_limit_w else ""
    return ", ".join(
        [
            *_told("SM clock", series.clock_sm_mhz, f"MHz{top}"),
            *_told("temperature", series.temperature_c, "C"),
            *_told("power", series.power_w, f"W{limit}"),
        ]
    )


@host_rule(WATCH, *(id for _, id, _ in _THROTTLES), "gpu.thermal-power.power-cap")
def throttled(host: Host, plan: Plan) -> Iterator[Finding]:
    """No GPU is slowed down by heat or by its power supply while it is busy, nor by a power limit far below its default.

    One throttled GPU slows the whole job: every collective waits for it. Less than the share of thresholds.yaml is a
    warning. The power cap at the default limit is normal under load.
    """
    gpus = _with_gpus(host)
    for bit, id, words in _THROTTLES:
        hit = [(gpu, count) for gpu in gpus if (count := gpu.series.throttled.get(str(bit)))]
        if bit == 0x08:  # the general bit: told only where no special one is
            hit = [(gpu, count) for gpu, count in hit if not {"64", "128"} & gpu.series.throttled.keys()]
        for gpu, count in hit:
            share = count / gpu.series.throttle_known
            often = share >= value("watch.throttled.share") and count > 1
            yield host.finding(
                id,
                Severity.FAIL if often and bit != 0x08 else Severity.WARN,
                f"GPU {gpu.label} {words} for {share:.0%} of the time that it is busy",
                gpu.proof(
                    f"{THROTTLE_REASONS[bit]} in {count} of {gpu.series.throttle_known} busy samples; {_course(gpu)}"
                ),
                _COOL if id.endswith("-thermal") else _SUPPLY,
                places=[gpu.place],
                explains=("gpu.thermal-power.slow-clock", "gpu.thermal-power.hotter", "watch.straggler"),
            )
    yield from _capped(host, gpus)
    _need_busy(gpus, "throttling under load")
    _need_reasons(gpus)
    _need_told(gpus, "power limit over time", "power_limit_w")
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
            gpu.proof(f"software power cap in {count} of {gpu.series.throttle_known} busy samples; {_course(gpu)}"),
            Fix(
                "if nobody wants it so, set the default again",
                f"sudo nvidia-smi -i {gpu.series.index} -pl {default:.0f}",
            ),
            places=[gpu.place],
        )


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


def _lack(fleet: Fleet, what: str, *fields: str) -> None:
    """What busy GPUs did not tell becomes unknown."""
    for group in _alike(fleet):
        for gpu in group:
            try:
                _need_told([gpu], what, *fields)
            except MissingFact as gap:
                fleet.lack(gap.what, gap.why, gpu.host.name)


def _mean(level: Level | None) -> float:
    return level.mean if level else 0.0


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
        middle = median(_mean(of(gpu.series)) for gpu in told)
        power = median(_mean(gpu.series.power_w) for gpu in told)
        for gpu in told:
            if stands_out(gpu.series, middle, power):
                yield gpu, [other for other in told if other is not gpu], middle


def _use(gpu: Gpu) -> float:
    return _mean(gpu.series.utilization_percent)


@fleet_rule(WATCH, "gpu.thermal-power.hotter", "gpu.thermal-power.slow-clock")
def unlike_peers(fleet: Fleet) -> Iterator[Finding]:
    """No GPU is much hotter, or clocks much lower, than those of its model that are as busy and draw no less power."""

    def hotter(series: GpuSeries, middle: float, power: float) -> bool:
        return _mean(series.temperature_c) >= middle + value("watch.hotter") and _mean(series.power_w) <= 1.1 * power

    def slower(series: GpuSeries, middle: float, power: float) -> bool:
        return _mean(series.clock_sm_mhz) <= value("watch.slow-clock") * middle and _mean(series.power_w) <= 1.2 * power

    def heat(series: GpuSeries) -> Level | None:
        return series.temperature_c

    def clock(series: GpuSeries) -> Level | None:
        return series.clock_sm_mhz

    kinds = (
        ("gpu.thermal-power.hotter", heat, hotter, "is at", "C", _COOL),
        ("gpu.thermal-power.slow-clock", clock, slower, "runs at", "MHz", _CLOCKS),
    )
    for id, of, stands_out, does, unit, fix in kinds:
        for gpu, peers, middle in _outliers(fleet, of, stands_out):
            own = _mean(of(gpu.series))
            yield finding(
                id,
                Severity.WARN,
                f"GPU {gpu.label} of {gpu.host.name} {does} {own:.0f} {unit}, {len(peers)} others under the same load "
                f"at {middle:.0f} {unit}",
                [gpu.proof(_course(gpu)), *(other.proof(_course(other)) for other in peers[:2])],
                confidence=0.8,
                places=[gpu.place],
                fixes=(msgspec.structs.replace(fix, host=gpu.host.name),),
            )
    _lack(fleet, "what its GPUs do", "utilization_percent", "temperature_c", "clock_sm_mhz", "power_w")


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
        power = median(_mean(gpu.series.power_w) for gpu in full)
        for gpu in group:
            others = [other for other in full if other is not gpu][:2]
            own, use = _mean(gpu.series.power_w), _use(gpu)
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
                    one.proof(f"utilisation {_mean(one.series.utilization_percent):.0f} %, {_course(one)}")
                    for one in (gpu, *others)
                ],
                confidence=0.5,
                places=[gpu.place],
                fixes=(Fix("see where each rank stands", "nccl-doctor hang --hosts HOSTFILE"), _LOOK),
            )
    _lack(fleet, "what its GPUs do", "utilization_percent", "power_w")


@host_rule(WATCH, "watch.gpu-idle", "watch.gpu-idle.unused")
def idle(host: Host, plan: Plan) -> Iterator[Finding]:
    """The GPUs that the job uses are busy for most of the time; what else the host did is told beside it."""
    gpus = _with_gpus(host)
    used = [gpu for gpu in gpus if gpu.series.busy]
    low = [gpu for gpu in used if _mean(gpu.series.utilization_percent) < value("watch.idle")]
    if low:
        mean = sum(_mean(gpu.series.utilization_percent) for gpu in low) / len(low)
        beside = _beside(host.need(Watch))
        yield host.finding(
            "watch.gpu-idle",
            Severity.WARN,
            f"{len(low)} of {len(gpus)} GPUs are busy for {mean:.0f} % of the time"
            + (f"; {beside[0]}" if beside else ""),
            [
                *(
                    gpu.proof(f"utilisation {', '.join(_told('mean', gpu.series.utilization_percent, '%'))}")
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
            f"nobody used GPU{'s' if len(unused) > 1 else ''} {ranges(gpu.series.index for gpu in unused)}",
            [gpu.proof("never at work, no memory held") for gpu in unused[:3]],
            places=[gpu.place for gpu in unused],
        )
    _need_told(gpus, "utilisation over time", "utilization_percent")
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
                f"the memory of GPU {gpu.label} was {share.high:.1%} full: {left:.0f} MiB were left",
                gpu.proof(f"memory used: mean {share.mean:.1%}, most {share.high:.1%} of {total / (1 << 30):.1f} GiB"),
                Fix(
                    "smaller micro-batch, activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
                ),
                places=[gpu.place],
            )
    _need_told(gpus, "GPU memory over time", "memory_share", "memory_total_bytes")


@host_rule(WATCH, "gpu.ecc.uncorrectable", "gpu.nvlink.errors", "gpu.pcie.replays")
def gpu_errors(host: Host, plan: Plan) -> Iterator[Finding]:
    """No error counter of a GPU rises: memory, NVLink, PCIe."""
    gpus, seconds = _with_gpus(host), host.need(Watch).seconds
    for gpu in gpus:
        rises = gpu.series.rises
        recoveries, replays = (rises.get(name, 0) for name in _LINK_COUNTERS)
        told = (
            ("gpu.ecc.uncorrectable", "uncorrectable ECC errors", rises.get("ecc_uncorrected_volatile", 0), 1.0),
            ("gpu.nvlink.errors", "NVLink recoveries", recoveries, value("gpu.nvlink.recovery.warn")),
            ("gpu.nvlink.errors", "NVLink replays", replays, value("gpu.nvlink.replay.warn")),
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
    _need_told(gpus, "GPU error counters over time", "ecc_uncorrected_volatile", "pcie_replays", *_LINK_COUNTERS)


@host_rule(WATCH, *xids.IDS)
def xids_now(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel logs no Xid or SXid that asks for action while the host is watched (their meaning: stage gpu)."""
    host.need(Watch)
    yield from xids.told(host)
