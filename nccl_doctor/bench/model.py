"""What a benchmark is asked and what it found: the plan, the measurements, and the saved form of a run."""

from __future__ import annotations

from typing import Any

import msgspec

from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.statistics import Spread, spread
from nccl_doctor.facts.collectives import bus_factor

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
_SHORT = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32",
    "fp16": "float16", "half": "float16", "bf16": "bfloat16",
}  # fmt: skip
OPS = ("sum", "prod", "min", "max", "avg")
GEMM_CPU, GEMM_GPU = 1024, 8192  # edges of matrices that keep a device busy for a while


def full_dtype(word: str) -> str:
    """A data type's name in torch, for the one that nccl-tests or a framework has for it (half, bf16); others as they are."""
    return _SHORT.get(word, word)


class BenchPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The question: what to measure, with what, within which limits. Sizes in bytes, times in seconds."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    dtype: str = "float32"
    op: str = "sum"
    backend: str = "auto"  # auto, nccl, gloo
    modes: tuple[str, ...] = ()  # in, out; empty: each collective's native way
    ranks_per_host: int = 0  # 0: the GPUs of a host, or one rank for gloo
    warmup: int = 3
    iters: int = 0  # 0: as many as the budget allows
    min_iters: int = 5
    budget_s: float = 60.0
    limit_s: float = 60.0
    check: bool = True
    cuda_graph: bool = False
    links: int = 8 << 20  # bytes for host pairs; 0: not measured
    gemm: int = 0  # edge of the square matrices; 0: not measured, -1: by the device
    python: str = ""
    env: dict[str, str] = {}
    env_per_rank: dict[str, str] = {}
    master_port: int = 0  # 0: a free one of the master's
    same_gpu: bool = False
    seed: int = 20

    def settled(self, backend: str, why: str, gpu: bool) -> BenchPlan:
        """The plan for this backend, chosen because of ``why``; ``gpu``: the ranks compute on GPUs. ``ValueError`` where it
        cannot be run so."""
        if self.cuda_graph and backend != "nccl":
            raise ValueError(f"--cuda-graph is for nccl, and this is {backend} ({why})")
        return self if self.gemm >= 0 else msgspec.structs.replace(self, gemm=GEMM_GPU if gpu else GEMM_CPU)

    def for_worker(self, backend: str, world: int) -> dict[str, Any]:
        """The part that every rank gets, as plain JSON."""
        names = ("dtype", "op", "warmup", "iters", "min_iters", "budget_s", "limit_s", "check", "cuda_graph")
        plan: dict[str, Any] = {name: getattr(self, name) for name in names}
        plan["collectives"] = [name for name in self.collectives if name in COLLECTIVES]
        plan["sizes"] = list(self.sizes)
        plan["modes"] = list(self.modes)
        plan["links"], plan["gemm"], plan["seed"] = self.links, self.gemm, self.seed
        plan["same_gpu"], plan["backend"], plan["expect_world"] = self.same_gpu, backend, world
        return plan


class RankRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank of the world, as it described itself. ``device_id`` is the GPU's UUID, ``nccl`` its version."""

    rank: int
    host: str
    local_rank: int = 0
    pid: int = 0
    python: str = ""
    torch: str = ""
    device: str = ""
    device_name: str = ""
    device_id: str = ""
    nccl: str = ""


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One collective at one size. ``time_us`` is the average over ranks of each rank's mean time per call, as in
    nccl-tests; ``spread`` is over iterations (on a GPU over samples of ``calls_per_sample`` of them), each counted as its
    slowest rank. Bandwidths in GB/s (1e9 bytes)."""

    collective: str
    mode: str  # in, out, copy (out of place by copy and in-place call)
    size: int
    asked: int
    count: int
    root: int
    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    spread: Spread
    slowest_rank: int
    slowest_behind: float  # relative to the average of all ranks
    wrong: int | None = None  # elements, over all ranks; None: not checked
    wrong_ranks: tuple[int, ...] = ()
    rank_means_us: tuple[float, ...] = ()
    calls_per_sample: int = 1


class Skip(msgspec.Struct, frozen=True, omit_defaults=True):
    """A size, or with size 0 a whole collective, that was not measured, and why."""

    collective: str
    size: int
    reason: str
    mode: str = ""


class Link(msgspec.Struct, frozen=True):
    """A pair of hosts that exchanged ``size`` bytes both ways at once; ``gbs`` is the rate of one direction in GB/s."""

    first: int  # ranks
    second: int
    size: int
    gbs: float


class GemmRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """Compute speed of one rank in TFLOP/s (median), over ``n`` products."""

    rank: int
    tflops: float
    n: int
    wrong: int | None = None


def measurement(event: dict[str, Any], world: int) -> Measurement:
    """Compute a measurement from rank 0's ``size`` event; raises ``ValueError``, ``KeyError`` on a broken event."""
    means = [float(value) for value in event["rank_means_us"]]
    time_us = sum(means) / len(means)
    algbw = event["size"] / time_us / 1e3
    slowest = max(range(len(means)), key=means.__getitem__)
    wrong = event.get("wrong")
    return Measurement(
        collective=event["collective"],
        mode=event["mode"],
        size=event["size"],
        asked=event["asked"],
        count=event["count"],
        root=event["root"],
        time_us=time_us,
        algbw_gbs=algbw,
        busbw_gbs=algbw * bus_factor(event["collective"], world),
        spread=spread([float(value) for value in event["iteration_us"]]),
        slowest_rank=slowest,
        slowest_behind=means[slowest] / time_us - 1.0,
        wrong=None if wrong is None else sum(wrong),
        wrong_ranks=() if wrong is None else tuple(rank for rank, bad in enumerate(wrong) if bad),
        rank_means_us=tuple(means),
        calls_per_sample=event.get("calls_per_sample", 1),
    )


class Results(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that rank 0 reported, in order; complete or as far as it came."""

    world: int
    launcher: str = ""
    ranks: tuple[RankRecord, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    skips: tuple[Skip, ...] = ()
    links: tuple[Link, ...] = ()
    gemm: tuple[GemmRank, ...] = ()
    gemm_edge: int = 0

    def host_of(self, rank: int) -> str:
        """The host name of a rank, as it called itself; ``?`` if it never did."""
        return next((record.host for record in self.ranks if record.rank == rank), "?")


class Collector:
    """Builds :class:`Results` from events as they come."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.launcher = ""
        self.ranks: tuple[RankRecord, ...] = ()
        self.measurements: list[Measurement] = []
        self.skips: list[Skip] = []
        self.links: list[Link] = []
        self.gemm: tuple[GemmRank, ...] = ()
        self.gemm_edge = 0

    def take(self, event: dict[str, Any]) -> None:
        """Take one event; those that carry no result are ignored."""
        kind = event.get("event")
        if kind == "world":
            self.ranks = msgspec.convert(event["ranks"], tuple[RankRecord, ...])
            self.world, self.launcher = int(event["world"]), str(event.get("launcher", ""))
        elif kind == "size":
            self.measurements.append(measurement(event, self.world))
        elif kind == "skip":
            self.skips.append(Skip(event["collective"], event["size"], event["reason"], event.get("mode", "")))
        elif kind == "link":
            gbs = event["size"] / event["seconds"] / 1e9
            self.links.append(Link(event["first"], event["second"], event["size"], gbs))
        elif kind == "gemm":
            self.gemm_edge = event["edge"]
            self.gemm = tuple(
                GemmRank(rank, event["flop"] / record["median_s"] / 1e12, record["n"], record["wrong"])
                for rank, record in enumerate(event["ranks"])
            )

    def results(self) -> Results:
        """What has been reported so far."""
        return Results(
            world=self.world,
            launcher=self.launcher,
            ranks=self.ranks,
            measurements=tuple(self.measurements),
            skips=tuple(self.skips),
            links=tuple(self.links),
            gemm=self.gemm,
            gemm_edge=self.gemm_edge,
        )
