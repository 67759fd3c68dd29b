"""What bench's own machinery costs: its timed loop beside a bare torch.distributed loop, in turns within one world.

    python benchmarks/bench_overhead.py [--ranks 2] [--sizes 64K:16M:x4] [--seconds 0.01] [--limit 100] [--backend nccl]

Each round runs the worker's own timed loop (``timing.timed``: the code that bench runs) and a bare loop of
``dist.all_reduce`` calls with one clock reading before and one after, in an order drawn by lot, on the same buffers and
the same process group (see paired.py). Owed: within 3 % at 64 KiB and above. The last column says whether the whole
interval lies within. Exit status 1 if one lies beyond; an open one (a very busy machine) is no failure and no success.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import paired  # noqa: E402

from nccl_doctor.agent.collective import group, launch, operations, timing  # noqa: E402
from nccl_doctor.agent.collective.ranks import Identity  # noqa: E402
from nccl_doctor.agent.collective.worker import Worker  # noqa: E402
from nccl_doctor.bench.sizes import format_size, parse_sizes  # noqa: E402

BOUND = 0.03


def open_world(rank: int, world: int, port: int, backend: str) -> Worker:
    """A rank of ours with its process group, as bench opens it. Ranks that share a GPU claim a host each."""
    import torch

    same_gpu = backend == "nccl" and torch.cuda.device_count() < world
    if same_gpu:
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_MULTI_RANK_GPU_ENABLE="1")
    identity = Identity(rank, world, rank, world, "127.0.0.1", port, "benchmark")
    worker = Worker({"limit_s": 600.0, "backend": backend, "same_gpu": same_gpu}, identity, lambda event: None)
    worker._import()
    worker._open_store()
    worker._gather_world()
    group.form(worker)
    worker._first_collective()
    return worker


def ours(worker: Worker, call: Any, iterations: int, seconds: float) -> float:
    """Seconds per call as bench measures them in a loop of ``seconds``."""
    calls = timing.calls_per_sample(worker.device, iterations, seconds / iterations)
    times = timing.timed(worker, call, iterations, "benchmark", 600.0, calls)
    return sum(times) / len(times)


def bare(worker: Worker, tensor: Any, iterations: int) -> float:
    """Seconds per call of the plainest loop there is; with a GPU, until it has finished."""
    dist = worker.dist
    dist.barrier()
    worker.wait()
    started = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(tensor)
    worker.wait()
    return (time.perf_counter() - started) / iterations


def rank_main(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints one JSON object a size."""
    worker = open_world(options.rank, options.ranks, options.port, options.backend)
    operation = operations.OPERATIONS["allreduce"]
    for size in parse_sizes(options.sizes):
        empty = functools.partial(worker.torch.empty, dtype=worker.torch.float32, device=worker.device)
        buffers = operations.allocate(empty, operation, "in", size // 4, worker.me)
        buffers.send.zero_()
        call = operations.caller(worker.dist, operation, "in", buffers, worker.me, "sum")
        guess = min(bare(worker, buffers.send, 3) for _ in range(3))
        iterations = worker.board.decide(f"{size}", guess, lambda values: max(1, int(options.seconds / max(values))))
        found = paired.alternate(
            worker.board,
            f"rounds/{size}",
            lambda: bare(worker, buffers.send, iterations),  # noqa: B023 - called within this turn
            lambda: ours(worker, call, iterations, options.seconds),  # noqa: B023
            BOUND,
            options.limit,
        )
        if options.rank == 0:
            print(json.dumps([size, iterations, found]), flush=True)
    worker._close()
    os._exit(0)


def main() -> int:
    """Start the ranks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="64K:16M:x4")
    parser.add_argument("--seconds", type=float, default=0.01, help="per block")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds per size at most")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options)
    print(paired.HEAD.format("bare loop", "bench"))
    beyond = 0
    for line in paired.ranks(__file__, options.ranks, launch.free_port()):
        size, _, values = json.loads(line)
        found = paired.Paired(*values)
        beyond += found.within(BOUND) == "beyond"
        print(paired.row("allreduce", format_size(size), found, BOUND), flush=True)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
