"""What a host did while it was watched (``nccl-doctor watch``): series of samples, folded until they are small."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from nccl_doctor.facts.gpu import Witness
from nccl_doctor.facts.model import Amount, Bytes, Count, Fact

Bit = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,19}$")]  # of a mask of 64: a power of two, in decimal digits
Points = tuple[tuple[Amount, Bytes], ...]  # (seconds since the watch began, mean), evenly spread; see Series of collect


class Level(msgspec.Struct, frozen=True):
    """A quantity over all samples that told it."""

    samples: Count
    mean: Amount
    low: Amount
    high: Amount


class Gap(msgspec.Struct, frozen=True):
    """A time in which nothing was told, in seconds since the watch began; ``open`` where it lasted until the end.

    ``from_s``: of the last sample before it, or when the watch of this host began.
    """

    from_s: Amount
    to_s: Amount
    why: str
    open: bool = False


class DriverGap(Gap, frozen=True):
    """A time without samples of any GPU. ``nvml``: how NVML failed; None where it was not asked (the host was silent)."""

    nvml: Witness | None = None


class GpuSeries(msgspec.Struct, frozen=True):
    """One GPU. ``busy`` of its ``samples`` found it at work (utilisation of at least half); power, clock and temperature
    are of those, and so is ``throttled``: bit of NVML's clocks event reasons -> samples that had it.

    ``rises``: by how much an error counter rose. ``refused``: what it did not tell in some sample, and why (``not supported``).
    ``gaps``: the times in which NVML gave samples, and told nothing of this GPU. ``samples`` are the others.
    """

    index: Count  # at the first sample; it changes where NVML is started again without a lost GPU
    bus_id: str | None
    samples: Count
    busy: Count
    utilization_percent: Level | None
    temperature_c: Level | None
    power_w: Level | None
    clock_sm_mhz: Level | None
    memory_share: Level | None
    power_limit_w: Amount | None
    memory_total_bytes: Count | None
    throttled: dict[Bit, Count]
    throttle_known: Count  # busy samples that told the reasons
    rises: dict[str, Count]
    refused: dict[str, str]
    gaps: tuple[Gap, ...]


class Whereabouts(msgspec.Struct, frozen=True):
    """What became of an interface or port that is gone, and how that is known.

    It is ``moved`` to another network namespace, ``lost`` with its device or driver, or that is ``unknown``.
    """

    state: Literal["moved", "lost", "unknown"]
    proof: str


NOT_ASKED = Whereabouts("unknown", "not in /sys")


class NicSeries(msgspec.Struct, frozen=True):
    """A network interface or RDMA port (``mlx5_0/1``). ``full``: samples at which it moved nine tenths of its rate.

    ``gaps``: the times in which it was not there. ``gone``: what became of it, the last time that this was asked.
    """

    name: str
    rate_bytes_per_s: Amount | None  # None: the driver does not tell
    received_bytes_per_s: Level | None
    sent_bytes_per_s: Level | None
    full: Count
    rises: dict[str, Count]
    gaps: tuple[Gap, ...]
    gone: Whereabouts = NOT_ASKED

    @property
    def rdma(self) -> bool:
        """Whether it is an RDMA port."""
        return "/" in self.name


class RankSeries(msgspec.Struct, frozen=True):
    """A process that bears a rank. ``ended_s``: when it was missing for the first time; None while it lives.

    ``stopped_s``: since when it is stopped by a signal or held by a debugger; None where it is not at the end.
    """

    pid: Count
    samples: Count
    first_s: Amount
    last_s: Amount
    ended_s: Amount | None
    cpu_percent: Level | None  # of one CPU
    resident_bytes: Points
    oom_file: str  # that counts what is killed in its control group; empty: there is none
    stopped_s: Amount | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that happened, in seconds since the watch began.

    ``kind``: ``kernel`` (a line of its log), ``throttle``, ``silent``, ``back``, ``unreadable`` (the first such sample),
    ``rank-ended``, ``rank-stopped`` (or it runs again), ``killed`` (for want of memory), ``link`` (it went down, is gone or
    back), ``gpu-lost``, ``gpus`` (NVML stopped answering, or is back).
    """

    at_s: Amount
    host: str
    kind: str
    text: str


class Named(msgspec.Struct, frozen=True):
    """What a host calls itself, and the addresses that its interfaces carry."""

    calls_itself: str
    addresses: tuple[str, ...]


class Watch(Fact, frozen=True):
    """One host over the whole watch. Memory in bytes; ``waiting``: percent of the time in which a task waited (PSI).

    ``unread``: samples that came and could not be read, none of ``samples``; ``unread_why``: the first of them.
    """

    PROBE: ClassVar[str] = "watch"

    seconds: Amount  # the watch, from the host's first connection to the end
    every_s: Amount
    samples: Count
    gaps: tuple[Gap, ...]
    gpus: tuple[GpuSeries, ...]
    gpu_gaps: tuple[DriverGap, ...]
    cpu_percent: Level | None  # of all CPUs
    memory_total_bytes: Count | None
    memory_available_bytes: Points
    swapped_pages: Count | None
    killed: Count | None  # processes on the host, by the kernel, for want of memory
    killed_in: dict[str, Count]  # by the files that count it in the ranks' control groups
    waiting: dict[str, Level]
    nics: tuple[NicSeries, ...]
    ranks: tuple[RankSeries, ...]
    events: tuple[Event, ...]
    events_left_off: Count
    cost_percent: Amount | None  # CPU time of our own agent, of one CPU
    unread: Count = 0
    unread_why: str = ""
    named: Named | None = None  # unknown in bundles of older versions
