"""How far `estimate` lies from real steps of DDP on this machine: bench first, then steps with and without communication.

    python benchmarks/estimate_beside_ddp.py [--ranks 2] [--layers 24] [--width 1024] [--batches 16,64,256] [--seconds 40]

For each batch size `bench allreduce` is run over gloo on this machine and kept; `estimate` reads it. Then as many ranks train
a model of known size. Each round does, in an order drawn by lot: a step under no_sync (computation alone), a step of DDP,
all-reduces alone, of as many bytes in as many calls as the estimate counts, and one all-reduce of each of bench's sizes. Told
are medians over rounds: the all-reduces beside the estimated communication, and DDP's step beside the estimated range, which is
reckoned from the step under no_sync; once by bench's fit, and once by a fit of the same rounds, which has seen the same
machine. The bucket has DDP's default size, 25 MiB.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import paired  # noqa: E402

from nccl_doctor.agent.collective import launch  # noqa: E402
from nccl_doctor.bench.estimate import Question, Step, estimate  # noqa: E402
from nccl_doctor.bench.outcome import FitOf, Outcome, read  # noqa: E402
from nccl_doctor.bench.parallelism import Model, volumes, ways  # noqa: E402
from nccl_doctor.bench.rates import Machines, Range  # noqa: E402
from nccl_doctor.bench.sizes import parse_sizes  # noqa: E402
from nccl_doctor.bench.statistics import fit  # noqa: E402

SIZES = "256K:64M:x4"


def model_of(options: argparse.Namespace) -> Model:
    """The model of :func:`rank_main` as estimate is told of it."""
    return Model(options.layers * options.width * (options.width + 1), "float32", "float32")


def rank_main(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints the number of rounds and the median seconds without communication, with it, and of it alone."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{options.port}", rank=options.rank, world_size=options.ranks
    )
    wrapped = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(options.width, options.width) for _ in range(options.layers)))
    )
    (volume,) = volumes(ways()["ddp"], model_of(options))
    buffers = [torch.zeros(round(volume.call_bytes / 4)) for _ in range(volume.calls)]
    lot = random.Random(1)  # the same on all ranks

    def step(data: torch.Tensor) -> None:
        wrapped(data).sum().backward()

    def alone(data: torch.Tensor) -> None:
        with wrapped.no_sync():
            step(data)

    def reduce(data: torch.Tensor) -> None:
        for buffer in buffers:
            dist.all_reduce(buffer)

    data = torch.ones(options.batch, options.width)
    kinds: dict[str, Callable[[torch.Tensor], object]] = {"alone": alone, "step": step, "reduce": reduce}
    for size in parse_sizes(SIZES):
        kinds[str(size)] = functools.partial(lambda buffer, _: dist.all_reduce(buffer), torch.zeros(size // 4))
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(3):
        step(data)
    end = time.monotonic() + options.seconds
    more = torch.ones(1)
    while more:
        for name in lot.sample(sorted(kinds), len(kinds)):
            dist.barrier()
            started = time.perf_counter()
            kinds[name](data)
            times[name].append(time.perf_counter() - started)
        more.fill_(time.monotonic() < end)
        dist.broadcast(more, 0)
    if options.rank == 0:
        print(json.dumps([len(times["step"]), {name: statistics.median(of) for name, of in times.items()}]), flush=True)
    dist.destroy_process_group()


def bench(ranks: int) -> Outcome:
    """What `bench allreduce` measures here."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "run.json"
        command = [sys.executable, "-m", "nccl_doctor", "bench", "allreduce", "--backend", "gloo", "--ranks-per-host"]
        command += [str(ranks), "--sizes", SIZES, "--time-budget", "15", "--save", str(kept)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        return read(kept)


def _beside(value: float, estimated: Range) -> str:
    """The range, and where the measured value lies as to it."""
    nearest = min(max(value, estimated.low), estimated.high)
    off = "within" if value == nearest else f"{value / nearest - 1:+.0%}"
    return f"{f'{estimated.low * 1e3:.1f}-{estimated.high * 1e3:.1f}':>13} {off:>6}"


def main() -> int:
    """Bench, start the ranks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batches", default="16,64,256")
    parser.add_argument("--seconds", type=float, default=40.0, help="per batch")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options)
        return 0
    model, way = model_of(options), ways()["ddp"]
    print(
        f"{model.params / 1e6:.1f} million parameters, {options.ranks} ranks over gloo; milliseconds, medians over rounds"
    )
    head = ("batch", "rounds", "fit of", "all-reduces", "estimated", "", "no_sync", "DDP step", "estimated", "")
    print("{:>5} {:>6} {:>6}  {:>11} {:>13} {:>6}  {:>8} {:>8} {:>15} {:>6}".format(*head))
    for batch in options.batches.split(","):
        run = bench(options.ranks)
        more = ("--batch", batch)
        (told,) = paired.ranks(__file__, options.ranks, launch.free_port(), more)
        rounds, seconds = json.loads(told)
        line = fit(parse_sizes(SIZES), [seconds[str(size)] * 1e6 for size in parse_sizes(SIZES)])
        assert line is not None
        same = msgspec.structs.replace(run, fits=(FitOf("allreduce", "in", line),))
        steps = (Step(seconds["alone"], 1), Step(seconds["step"], options.ranks))
        question = Question("ddp", model, (options.ranks,), options.ranks, steps)
        for name, source in (("bench", run), ("rounds", same)):
            (row,) = estimate(question, way, Machines(options.ranks, ((name, source),)), "benchmark").rows
            assert row.communication is not None and row.step is not None
            print(
                f"{batch:>5} {rounds:>6} {name:>6}  {seconds['reduce'] * 1e3:>11.1f} "
                f"{_beside(seconds['reduce'], row.communication)}  {seconds['alone'] * 1e3:>8.1f} "
                f"{seconds['step'] * 1e3:>8.1f}   {_beside(seconds['step'], row.step)}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
