"""Matrix products, to find the rank that computes slowly: nothing is communicated."""

import os
import time
from typing import TYPE_CHECKING, Any, List

from . import memory
from .errors import PlannedError

if TYPE_CHECKING:
    from .worker import Worker


def measure(worker: "Worker") -> None:
    """Matrix products on every rank at once; TFLOP/s per rank, to find the slow one."""
    torch, device = worker.torch, worker.device
    edge = int(worker.plan["gemm"])
    worker.progress.stage("gemm", worker.limit_s, "%d x %d %s" % (edge, edge, worker.plan["dtype"]))
    needed = edge * edge * (3 * worker.item_bytes + 4)  # the random numbers are made in 32 bits
    lack = memory.lack(worker, needed)
    trouble = worker.board.decide(
        "gemm/memory", lack and "%s: %s" % (worker.label, lack), lambda values: next(filter(None, values), "")
    )
    if trouble:
        raise PlannedError("no-memory", "matrices of %d x %d: %s" % (edge, edge, trouble))
    if device.type == "cpu":
        torch.set_num_threads(max(1, _processors() // max(1, worker.identity.local_world)))
    generator = torch.Generator(device).manual_seed(worker.me.rank)
    left, right = (torch.rand((edge, edge), generator=generator, device=device).to(worker.dtype) for _ in range(2))
    out = torch.matmul(left, right)
    worker.wait()
    wrong = _wrong(worker, left, right, out) if worker.plan["check"] else None
    worker.board.decide("gemm/ready", True, lambda values: True)
    times: List[float] = []
    limit = time.monotonic() + float(worker.plan["budget_s"])
    iterations = int(worker.plan["iters"]) or 10**9
    while len(times) < iterations and (time.monotonic() < limit or len(times) < int(worker.plan["min_iters"])):
        started = time.perf_counter()
        torch.matmul(left, right, out=out)
        worker.wait()
        times.append(time.perf_counter() - started)
        worker.progress.step("matrix product %d" % len(times), worker.limit_s)
    times.sort()
    records = worker.board.gather("gemm", {"median_s": times[len(times) // 2], "n": len(times), "wrong": wrong})
    if device.type == "cpu":
        torch.set_num_threads(1)
    if not worker.me.rank:
        worker.progress.tell("gemm", edge=edge, flop=2 * edge**3, ranks=records)


def _wrong(worker: "Worker", left: Any, right: Any, out: Any) -> int:
    wide, rows, columns = worker.torch.float64, 4, 256  # a part: all of it in 64 bits could be more than fits
    want = left[:rows].to(wide) @ right[:, :columns].to(wide)
    got = out[:rows, :columns].to(wide)
    allowed = max(float(worker.torch.finfo(worker.dtype).eps), 2.0**-10) * 8  # TF32 products are allowed
    good = (got - want).abs() <= allowed * want.abs()  # never so for NaN
    return int(good.numel()) - int(good.sum().item())


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
