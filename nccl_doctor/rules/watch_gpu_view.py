"""GPUs that were watched, as the rules see them: their series, and what NVML said of them at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.watch import GpuSeries, Level, Watch
from nccl_doctor.findings.model import Evidence, Place
from nccl_doctor.rules.engine import Host, MissingFact
from nccl_doctor.rules.nvidia import proof
from nccl_doctor.rules.thresholds import value


class Gpu(NamedTuple):
    """One GPU of a host, and what it did. ``device``: what NVML said of it at the start."""

    host: Host
    series: GpuSeries
    device: GpuDevice | None

    @property
    def label(self) -> str:
        """How a finding names it."""
        return self._who.label

    @property
    def place(self) -> Place:
        """Where a finding about it points."""
        return Place(host=self.host.name, gpu=self.label)

    def proof(self, text: str) -> Evidence:
        """What NVML said of it over the watch."""
        return proof(self.host, self._who, text)

    @property
    def _who(self) -> GpuDevice:
        return self.device or GpuDevice(self.series.index, self.series.bus_id)


def gpus_of(host: Host) -> list[Gpu]:
    """The GPUs that NVML gave samples of. An index is another GPU's where NVML was started again without a lost one."""
    known = {device.bus_id or device.index: device for device in host.need(GpuFact).gpus}
    return [Gpu(host, series, known.get(series.bus_id or series.index)) for series in host.need(Watch).gpus]


def sampled(host: Host) -> list[Gpu]:
    """The GPUs of a host that were seen often enough to judge them; ``MissingFact`` where none was, empty without GPUs.

    What is lacking of the others, and of times in between, is unknown by ``gpus_seen``.
    """
    fact = host.need(GpuFact)
    if fact.gone:
        raise MissingFact("GPUs over time", fact.gone)
    if not fact.has_hardware:
        return []
    gpus = [gpu for gpu in gpus_of(host) if gpu.series.samples >= value("watch.samples")]
    if not gpus:
        gaps = host.need(Watch).gpu_gaps
        raise MissingFact("GPUs over time", gaps[-1].why if gaps else "too few samples: watch longer")
    return gpus


def mean_of(level: Level | None) -> float:
    """The mean of what was told; 0 where nothing was."""
    return level.mean if level else 0.0


def need_told(gpus: Sequence[Gpu], what: str, *fields: str) -> None:
    """``MissingFact`` where a GPU did not always tell one of these levels or counters, although its driver knows them."""
    for gpu in gpus:
        for field in fields:
            told = getattr(gpu.series, field) if hasattr(gpu.series, field) else gpu.series.rises.get(field)
            why = gpu.series.refused.get(field) or ("not told" if told is None else "")
            if why and why != "not supported":
                raise MissingFact(what, f"GPU {gpu.series.index}: {why}")


def in_words(name: str, level: Level | None, unit: str) -> list[str]:
    """A quantity's mean and range, in words; none where nothing was told."""
    return [f"{name} {level.mean:.0f} {unit} ({level.low:.0f} to {level.high:.0f})"] if level else []


def course(gpu: Gpu) -> str:
    """Clock, temperature and power while it was busy: mean and range."""
    series = gpu.series
    top = f" of {gpu.device.clock_sm_max_mhz}" if gpu.device and gpu.device.clock_sm_max_mhz else ""
    limit = f" of {series.power_limit_w:.0f}" if series.power_limit_w else ""
    return ", ".join(
        [
            *in_words("SM clock", series.clock_sm_mhz, f"MHz{top}"),
            *in_words("temperature", series.temperature_c, "C"),
            *in_words("power", series.power_w, f"W{limit}"),
        ]
    )
