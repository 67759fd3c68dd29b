"""How fast a collective is on so many GPUs: from saved runs of bench, or the user's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nccl_doctor.agent.collective.operations import OPERATIONS
from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import Fit

POOR_FIT = 0.5  # a line that misses the points by more than half says nothing of them


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """``time = calls * latency + bytes sent / busbw``, each as a range. Bandwidths GB/s (1e9), latency microseconds.

    ``beyond`` says, in words, in what the figures are used for another case than they were measured in.
    """

    busbw_low: float
    busbw_high: float
    latency_low_us: float
    latency_high_us: float
    source: str
    beyond: tuple[str, ...] = ()


class NoRate(msgspec.Struct, frozen=True):
    """Nothing says how fast a collective is: on what, and why the runs that there are do not."""

    collective: str
    where: str
    misfits: tuple[str, ...] = ()


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


def rate(machines: Machines, collective: str, gpus: int, call_bytes: float) -> Rate | NoRate:
    """The best figures there are for calls of ``call_bytes`` on ``gpus`` GPUs (two or more)."""
    hosts = machines.hosts(gpus)
    found, misfits = _of_runs(machines, collective, gpus, hosts, call_bytes)
    if found is not None:
        return found
    busbw = machines.figures.in_host if hosts == 1 else machines.figures.across
    if busbw is not None:
        latency = machines.figures.latency_us
        return Rate(busbw, busbw, latency, latency, "--busbw" if hosts > 1 else "--busbw-in-host")
    where = "on one host" if hosts == 1 else f"across hosts with {machines.gpus_per_host} GPUs each"
    return NoRate(collective, where, tuple(misfits))


def _of_runs(
    machines: Machines, collective: str, gpus: int, hosts: int, call_bytes: float
) -> tuple[Rate | None, list[str]]:
    """The rate by the run whose number of ranks is nearest, and why other runs do not fit."""
    misfits, found = [], []
    for name, run in machines.runs:
        line = _line(run, collective)
        shape = set(run.world.per_host.values())
        if (len(run.world.per_host) == 1) != (hosts == 1) or (hosts > 1 and shape != {machines.gpus_per_host}):
            misfits.append(f"{name} was measured with {_world(run)}")
        elif line is None:
            misfits.append(f"{name} has no fit of {collective} (three sizes are needed)")
        elif line.error > POOR_FIT:
            misfits.append(f"{name}: latency + size / bandwidth is {line.error * 100:.0f} % off for {collective}")
        else:
            found.append((abs(math.log(run.world.size / gpus)), name, run, line))
    if not found:
        return None, misfits
    _, name, run, line = min(found, key=lambda item: item[:2])
    return _scaled(name, run, line, collective, gpus, hosts, call_bytes), misfits


def _world(run: Outcome) -> str:
    hosts = len(run.world.per_host)
    return f"{run.world.backend}, {run.world.size} ranks on {hosts} host{'s' if hosts > 1 else ''}"


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
    busbw = line.beta_gbs * COLLECTIVES[collective].bus_factor(ranks)
    ratio = _crossing(gpus, hosts) / _crossing(ranks, len(run.world.per_host))
    hops = (gpus - 1) / (ranks - 1)
    off = 1.0 + line.error
    sizes = [item.size for item in run.results.measurements if item.collective == collective]
    beyond = []
    if gpus != ranks:
        beyond.append(f"measured on {ranks} ranks")
    if not min(sizes) <= call_bytes <= max(sizes):
        beyond.append(f"measured with calls of {format_size(min(sizes))} to {format_size(max(sizes))}")
    if run.world.backend != "nccl":
        beyond.append(f"over {run.world.backend}, and GPUs use NCCL")
    if not run.path.proved:
        beyond.append("the path of that run is not proved")
    if not run.complete:
        beyond.append("that run did not complete")
    low_us, high_us = _latency(line, call_bytes, min(sizes))
    return Rate(
        busbw * min(1.0, ratio) / off,
        busbw * max(1.0, ratio) * off,
        low_us * min(1.0, hops) / off,
        high_us * max(1.0, hops) * off,
        f"{name} ({_world(run)}, {run.created[:10]})",
        tuple(beyond),
    )


def _latency(line: Fit, call_bytes: float, smallest: int) -> tuple[float, float]:
    """What a call costs beside its bytes, microseconds. Below the smallest size measured the fit's constant is no proof:
    a call takes no less than its bytes, and no more than one of that size."""
    if call_bytes >= smallest:
        return line.alpha_us, line.alpha_us
    return 0.0, line.alpha_us + (smallest - call_bytes) / line.beta_gbs / 1e3


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
