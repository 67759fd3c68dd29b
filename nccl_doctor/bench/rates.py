"""How fast a collective is on so many GPUs: from saved runs of bench, or the user's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nccl_doctor.agent.collective.operations import OPERATIONS
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import Fit
from nccl_doctor.facts.collectives import bus_factor
from nccl_doctor.facts.fold import counted


class Range(msgspec.Struct, frozen=True):
    """From the lowest to the highest that it can be."""

    low: float
    high: float


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """``time = calls * latency + bytes sent / busbw``. Bandwidth GB/s (1e9), latency microseconds.

    ``beyond`` says, in words, in what the figures are used for another case than they were measured in.
    """

    busbw: Range
    latency_us: Range
    source: str
    beyond: tuple[str, ...] = ()

    def seconds(self, calls: int, sent_bytes: float, best: bool, faster: float = 1.0) -> float:
        """Of so many calls; with a bus bandwidth ``faster`` times as high."""
        latency_us, busbw = (self.latency_us.low, self.busbw.high) if best else (self.latency_us.high, self.busbw.low)
        return calls * latency_us / 1e6 + sent_bytes / (busbw * 1e9 * faster)


class Figures(msgspec.Struct, frozen=True):
    """What the user gives: GB/s within a host and across hosts (None: not given), and microseconds a call."""

    in_host: float | None = None
    across: float | None = None
    latency_us: float = 0.0


class Machines(msgspec.Struct, frozen=True):
    """All that is known of the machines."""

    gpus_per_host: int
    runs: tuple[tuple[str, Outcome], ...] = ()  # name, run
    figures: Figures = Figures()

    def hosts(self, gpus: int) -> int:
        """How many hosts so many GPUs are."""
        return math.ceil(gpus / self.gpus_per_host)


def rate(machines: Machines, collective: str, gpus: int, call_bytes: float) -> Rate | tuple[str, ...]:
    """The best figures there are for calls of ``call_bytes`` on ``gpus`` GPUs (two or more): those of the run whose number of
    ranks is nearest, else the user's. Where there are none: why the runs that there are do not fit."""
    hosts = machines.hosts(gpus)
    misfits, found = [], []
    for name, run in machines.runs:
        line = _line(run, collective)
        shape = set(run.world.per_host.values())
        if (len(run.world.per_host) == 1) != (hosts == 1) or (hosts > 1 and shape != {machines.gpus_per_host}):
            misfits.append(f"{name} was measured with {_world(run)}")
        elif line is None:
            misfits.append(f"{name} has no fit of {collective} (three sizes are needed)")
        elif line.poor:
            misfits.append(f"{name}: latency + size / bandwidth is {line.error * 100:.0f} % off for {collective}")
        else:
            found.append((abs(math.log(run.world.size / gpus)), name, run, line))
    if found:
        _, name, run, line = min(found, key=lambda item: item[:2])
        return _scaled(name, run, line, collective, gpus, hosts, call_bytes)
    figures = machines.figures
    busbw = figures.in_host if hosts == 1 else figures.across
    if busbw is None:
        return tuple(misfits)
    latency = Range(figures.latency_us, figures.latency_us)
    return Rate(Range(busbw, busbw), latency, "--busbw" if hosts > 1 else "--busbw-in-host")


def _world(run: Outcome) -> str:
    return f"{run.world.backend}, {run.world.size} ranks on {counted(len(run.world.per_host), 'host')}"


def _line(run: Outcome, collective: str) -> Fit | None:
    """The fit in the way that torch does it natively, else in any."""
    own = {item.mode: item.fit for item in run.fits if item.collective == collective}
    return own.get(OPERATIONS[collective].modes[0]) or next(iter(own.values()), None)


def _scaled(name: str, run: Outcome, line: Fit, collective: str, gpus: int, hosts: int, call_bytes: float) -> Rate:
    """A run's rate for another number of ranks.

    The bus bandwidth stays as it is in a ring. An algorithm that sends each byte into a host only once (a tree, NVLS)
    has the more of it the fewer hosts there are: by the bytes that cross into a host, (n-1)/n of the size in a ring and
    (H-1)/H at least, which bounds what it can become on H hosts. A call's latency stays at best (it grows with the
    logarithm in a tree) and grows with the n-1 hops of a ring at worst.
    """
    ranks = run.world.size
    busbw = line.beta_gbs * bus_factor(collective, ranks)
    ratio = _crossing(gpus, hosts) / _crossing(ranks, len(run.world.per_host))
    hops = (gpus - 1) / (ranks - 1)
    off = 1.0 + line.error
    sizes = [item.size for item in run.results.measurements if item.collective == collective]
    spans = f"{format_size(min(sizes))} to {format_size(max(sizes))}"
    unlike = {
        f"measured on {ranks} ranks": gpus != ranks,
        f"measured with calls of {spans}": not min(sizes) <= call_bytes <= max(sizes),
        f"over {run.world.backend}, and GPUs use NCCL": run.world.backend != "nccl",
        "the path of that run is not proved": not run.path.proved,
        "that run did not complete": not run.complete,
    }
    low_us = high_us = line.alpha_us
    if call_bytes < min(sizes):  # not measured: it takes no less than its bytes, and no more than one of that size
        low_us, high_us = 0.0, line.alpha_us + (min(sizes) - call_bytes) / line.beta_gbs / 1e3
    return Rate(
        Range(busbw * min(1.0, ratio) / off, busbw * max(1.0, ratio) * off),
        Range(low_us * min(1.0, hops) / off, high_us * max(1.0, hops) * off),
        f"{name} ({_world(run)}, {run.created[:10]})",
        tuple(words for words, holds in unlike.items() if holds),
    )


def _crossing(ranks: int, hosts: int) -> float:
    """Bytes that cross into a host in a ring over those that must; 1 where there is one host, or one rank a host."""
    return 1.0 if hosts == 1 else (ranks - 1) / ranks * hosts / (hosts - 1)


def trouble(run: Outcome) -> str:
    """Why a run says nothing of rates, or empty."""
    if run.world.size < 2:
        return "one rank alone communicates with nobody"
    if any(item.kind == "wrong" for item in run.verdicts):
        return "its collectives gave wrong results"
    if {item.collective for item in run.fits} - {item.collective for item in run.results.measurements}:
        return "it has fits without the measurements that they are of"
    return ""


def common_gpus_per_host(runs: Sequence[tuple[str, Outcome]]) -> int:
    """The ranks a host that all runs have; 0 where they differ, or there is none."""
    shapes = {ranks for _, run in runs for ranks in run.world.per_host.values()}
    return shapes.pop() if len(shapes) == 1 else 0
