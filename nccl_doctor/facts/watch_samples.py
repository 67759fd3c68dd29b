"""One sample of a host that is watched, as its agent tells it; what does not fit is no sample (``collect.watch_series``)."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.infiniband import Port
from nccl_doctor.facts.job import Job, State
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.model import Amount, Bytes, Count, Outcome
from nccl_doctor.facts.watch import Named, Whereabouts


class NicSample(msgspec.Struct, frozen=True):
    """A network interface, which tells its ``speed_mbps``, or an RDMA port, which tells its ``rate`` in sysfs's words.

    None: not readable.
    """

    received_bytes: Amount | None
    sent_bytes: Amount | None
    errors: dict[str, Count | None]
    speed_mbps: Amount | None = None
    rate: str | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """What it can move in one direction; None where the driver does not tell."""
        gbps = Port(0, rate=self.rate).gbps if self.rate else (self.speed_mbps or 0) / 1000
        return gbps * 1e9 / 8 if gbps else None


class RankSample(msgspec.Struct, frozen=True):
    """A process that bears a rank. ``oom_file`` counts what is killed in its control group; empty: there is none."""

    state: State
    cpu_s: Amount
    resident_bytes: Bytes
    oom_file: str


class LogSample(msgspec.Struct, frozen=True):
    """The kernel log's new lines; without ``told``, ``outcome`` and ``detail`` say why there are none."""

    outcome: Outcome
    detail: str = ""
    told: KernelLogFact | None = None


class HostSample(msgspec.Struct, frozen=True):
    """A host, all but its GPUs. Times in seconds by its own clock, memory in bytes; counters since boot."""

    at_s: Amount
    cost_s: Amount  # CPU time of our own agent
    cpu: tuple[Amount, Amount] | None  # ticks: busy, all
    memory: dict[str, Bytes]
    kernel: dict[str, Count]
    waiting: dict[str, Amount]  # percent of the last 10 s in which some task waited for it (PSI)
    nics: dict[str, NicSample]
    gone: dict[str, Whereabouts]
    ranks: dict[int, RankSample]
    killed: dict[str, Count | None]  # by the files of the ranks' control groups
    log: LogSample
    job: Job | None = None  # where all of /proc was looked through
    named: Named | None = None  # when a look through all of /proc begins


class GpuSample(msgspec.Struct, frozen=True):
    """One GPU. ``refused``: what it did not tell, and why (``not supported``)."""

    index: Count
    bus_id: str | None
    refused: dict[str, str]
    utilization_percent: Amount | None = None
    temperature_c: Amount | None = None
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    clock_sm_mhz: Amount | None = None
    throttle_reasons: Count | None = None
    memory_used_bytes: Amount | None = None
    memory_total_bytes: Amount | None = None
    pcie_replays: Count | None = None
    ecc_uncorrected_volatile: Count | None = None
    nvlink_replays: Count | None = None
    nvlink_recoveries: Count | None = None
    nvlink_failed_recoveries: Count | None = None  # NVLink 5 has these two instead
    nvlink_integrity_errors: Count | None = None

    @property
    def memory_share(self) -> float | None:
        """How much of its memory is used; None where it does not tell."""
        used, total = self.memory_used_bytes, self.memory_total_bytes
        return used / total if used is not None and total else None


class GpusSample(msgspec.Struct, frozen=True):
    """All GPUs of a host at one moment."""

    at_s: Amount
    cost_s: Amount  # CPU time of our child that asks NVML
    samples: tuple[GpuSample, ...]
