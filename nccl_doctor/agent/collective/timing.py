"""The timed loop: seconds per call of a collective, on a CPU by the clock, on a GPU between events."""

import time
from typing import TYPE_CHECKING, Any, Callable, List

if TYPE_CHECKING:
    from .worker import Worker

# Between two events of the device: recording one costs some microseconds, which would count at each call of a small size.
SAMPLE_S, LEAST_SAMPLES = 5e-4, 20


def calls_per_sample(device: Any, iterations: int, estimate_s: float) -> int:
    """How many calls share one time. Reading a CPU's clock costs nothing; see ``SAMPLE_S`` for a device's."""
    if device.type != "cuda":
        return 1
    return max(1, min(int(SAMPLE_S / max(estimate_s, 1e-7)), iterations // LEAST_SAMPLES))


def timed(
    worker: "Worker", call: Callable[[], None], iterations: int, label: str, limit_s: float, calls: int = 1
) -> List[float]:
    """Seconds per call, back to back as nccl-tests does; all ranks start from a barrier. With a device, the mean of
    each ``calls`` calls."""
    if worker.device.type == "cuda":
        return _timed_cuda(worker, call, iterations // calls, label, limit_s, calls)
    stamps: List[int] = []
    clock, keep = time.perf_counter_ns, stamps.append
    worker.progress.step(label, limit_s, lambda: max(0, len(stamps) - 1))
    worker.dist.barrier()  # nothing may stand between it and the first call, or the ranks start apart
    keep(clock())
    for _ in range(iterations):
        call()
        keep(clock())
    return [(after - before) * 1e-9 for before, after in zip(stamps, stamps[1:])]


def _timed_cuda(
    worker: "Worker", call: Callable[[], None], samples: int, label: str, limit_s: float, calls: int
) -> List[float]:
    cuda = worker.torch.cuda
    events = [cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    recorded: List[Any] = []

    def done() -> int:
        worker.take_device()  # this is the watchdog's thread
        # One that was never recorded calls itself complete, so only recorded ones are asked, the latest first.
        number = len(recorded)
        while number and not recorded[number - 1].query():
            number -= 1
        return max(0, number - 1) * calls

    worker.progress.step(label, limit_s, done)
    worker.dist.barrier(device_ids=[worker.device.index])
    cuda.synchronize()
    for number, event in enumerate(events):
        for _ in range(calls if number else 0):
            call()
        event.record()
        recorded.append(event)
    cuda.synchronize()
    return [before.elapsed_time(after) * 1e-3 / calls for before, after in zip(events, events[1:])]
