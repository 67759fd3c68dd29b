"""What a host did while it was watched (``nccl-doctor watch``): series of samples, folded until they are small."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nccl_doctor.facts.model import Amount, Count, Fact

Points = tuple[tuple[float, float], ...]  # (seconds since the watch began, mean), evenly spread; see Series of collect


class Level(msgspec.Struct, frozen=True):
    """A quantity over all samples that told it."""

    samples: Count
    mean: float
    low: float
    high: float


class GpuSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU. ``busy`` of its ``samples`` found it at work (utilisation of at least half); power, clock and temperature
    are of those. ``throttled``: bit of NVML's clocks event reasons -> busy samples that had it. ``rises``: by how much an
    error counter rose. ``refused``: what it did not tell, and why.
    """

    index: Count
    samples: Count
    busy: Count = 0
    utilization_percent: Level | None = None
    temperature_c: Level | None = None
    power_w: Level | None = None
    clock_sm_mhz: Level | None = None
    power_limit_w: Amount | None = None
    memory_share: Level | None = None
    memory_total_bytes: Count | None = None
    throttled: dict[str, Count] = {}
    throttle_known: Count = 0  # busy samples that told the reasons
    rises: dict[str, Count] = {}
    refused: dict[str, str] = {}


class NicSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network interface or RDMA port (``mlx5_0/1``). ``full``: samples at which it moved nine tenths of its rate."""

    name: str
    rate_bytes_per_s: Amount | None = None  # None: the driver does not tell
    received_bytes_per_s: Level | None = None
    sent_bytes_per_s: Level | None = None
    full: Count = 0
    rises: dict[str, Count] = {}

    @property
    def rdma(self) -> bool:
        """Whether it is an RDMA port."""
        return "/" in self.name


class RankSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that bears a rank. ``ended_s``: when it was missing for the first time; None while it lives."""

    pid: Count
    first_s: Amount
    last_s: Amount
    cpu_percent: Level | None = None  # of one CPU
    resident_bytes: Points = ()
    ended_s: Amount | None = None


class Gap(msgspec.Struct, frozen=True):
    """A time without samples, in seconds since the watch began; ``open`` where it lasted until the end."""

    from_s: Amount
    to_s: Amount
    why: str
    open: bool = False


class Event(msgspec.Struct, frozen=True):
    """Something that happened, in seconds since the watch began.

    ``kind``: ``kernel`` (a line of its log), ``throttle``, ``silent``, ``back``, ``rank-ended``, ``killed`` (for want of
    memory), ``link`` (it went down), ``gpus`` (NVML stopped answering).
    """

    at_s: Amount
    host: str
    kind: str
    text: str


class Watch(Fact, frozen=True, omit_defaults=True):
    """One host over the whole watch. Memory in bytes; ``waiting``: percent of the time in which a task waited (PSI)."""

    PROBE: ClassVar[str] = "watch"

    seconds: Amount  # the watch, from the host's first connection to the end
    every_s: Amount
    samples: Count
    gaps: tuple[Gap, ...] = ()
    gpus: tuple[GpuSeries, ...] = ()
    gpus_why: str = ""  # why there are no samples of GPUs, or none to the end
    cpu_percent: Level | None = None  # of all CPUs
    memory_total_bytes: Count | None = None
    memory_available_bytes: Points = ()
    swapped_pages: Count | None = None
    killed: Count | None = None  # processes, by the kernel, for want of memory
    waiting: dict[str, Level] = msgspec.field(default_factory=dict)
    nics: tuple[NicSeries, ...] = ()
    ranks: tuple[RankSeries, ...] = ()
    events: tuple[Event, ...] = ()
    events_left_off: Count = 0
    cost_percent: Amount | None = None  # CPU time of the agent itself, of one CPU
