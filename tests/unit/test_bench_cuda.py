"""The worker's CUDA side against a device that is made up: what is called, in which order, and what comes of it.

test_bench_cuda_run.py runs all of it with the real torch; what torch and NCCL really do is tested on a GPU (tests/gpu).
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recorded_host import write_tree

from nccl_doctor.agent import probing
from nccl_doctor.agent.collective import group, measuring, memory, world
from nccl_doctor.agent.collective.channel import Progress
from nccl_doctor.agent.collective.errors import PlannedError, is_lack_of_memory, is_refusal, words_of_lack
from nccl_doctor.agent.collective.measuring import Measuring
from nccl_doctor.agent.collective.operations import OPERATIONS
from nccl_doctor.agent.collective.ranks import Identity
from nccl_doctor.agent.collective.timing import calls_per_sample, timed
from nccl_doctor.agent.collective.worker import Worker


class Device:
    """A stream with a clock: work takes 3 ms each, and is done when somebody synchronises (or ``finish`` is called)."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.log: list[str] = []
        self.clock_ms = 0.0
        self.finished_ms = 0.0
        self.free = 8 << 30
        self.cached = 0

    def work(self) -> None:
        self.log.append("work")
        self.clock_ms += 3.0

    def finish(self) -> None:
        self.finished_ms = self.clock_ms

    # ---- torch.cuda ----

    def Event(self, enable_timing: bool = False) -> Event:
        assert enable_timing
        return Event(self)

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.finish()

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def set_device(self, device: Any) -> None:
        self.log.append(f"set_device {device}")

    def empty_cache(self) -> None:
        self.free, self.cached = self.free + self.cached, 0

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.free, 80 << 30

    def CUDAGraph(self) -> Any:
        return types.SimpleNamespace(replay=self.work)

    def graph(self, graph: Any, capture_error_mode: str = "global") -> Device:
        self.log.append(f"capture {capture_error_mode}")
        return self

    def __enter__(self) -> None:
        self.log.append("capturing")

    def __exit__(self, *exc: object) -> None:
        self.log.append("captured")


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, -1.0

    def record(self) -> None:
        self.device.log.append("record")
        self.at_ms = self.device.clock_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.finished_ms  # one never recorded is "complete", as in CUDA

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


class Place(NamedTuple):
    """A ``torch.device``."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


def fake_torch(device: Device) -> Any:
    return types.SimpleNamespace(
        __version__="2.8.0+cu128",
        cuda=device,
        device=lambda kind, index=0: Place(kind, index),
        float32="float32",
        empty=lambda *args, **kwargs: types.SimpleNamespace(element_size=lambda: 4),
        set_num_threads=lambda number: None,
        distributed=types.SimpleNamespace(
            is_available=lambda: True,
            is_nccl_available=lambda: True,
            is_gloo_available=lambda: True,
            barrier=lambda device_ids: device.log.append(f"barrier {device_ids}"),
        ),
    )


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """A worker on a made-up device, after its import stage."""

    def make(device: Device, local_rank: int = 0, **plan: Any) -> Worker:
        torch = fake_torch(device)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
        identity = Identity(local_rank, 8, local_rank, 8, "127.0.0.1", 1, "test")
        made = Worker({"backend": "nccl", "collectives": ["allreduce"], **plan}, identity, lambda event: None)
        made.progress.finish()  # no watchdog beside the test
        made.board = Board()  # type: ignore[assignment]
        made._import()
        device.log.clear()
        return made

    return make


def test_times_are_those_between_events_from_a_barrier_on(worker: Callable[..., Worker]) -> None:
    device = Device()
    times = timed(worker(device), device.work, 3, "x", 60.0)
    assert times == pytest.approx([0.003] * 3)
    assert device.log == ["barrier [0]", "synchronize", "record", *["work", "record"] * 3, "synchronize"]


def test_iterations_done_are_those_the_device_has_finished(worker: Callable[..., Worker]) -> None:
    device, seen = Device(), []
    made = worker(device)

    def call() -> None:
        device.work()
        if device.clock_ms == 6.0:
            device.finish()  # the second is done when it is queued, the later ones are not
        done = made.progress.done
        assert done is not None
        seen.append(done())

    timed(made, call, 4, "x", 60.0)
    assert seen == [0, 1, 2, 2]
    # The watchdog's thread asks: on the first GPU, where a new thread is, it would open a context for each rank.
    assert device.log.count("set_device cuda:0") == 4


def test_small_sizes_share_an_event_among_calls(worker: Callable[..., Worker]) -> None:
    device = Device()
    made = worker(device)
    assert calls_per_sample(made.device, 1000, 50e-6) == 10 and calls_per_sample(made.device, 1000, 1e-3) == 1
    assert calls_per_sample(made.device, 40, 1e-6) == 2  # a series needs samples
    assert calls_per_sample(worker(Device(), backend="gloo").device, 1000, 1e-6) == 1
    device.log.clear()
    assert timed(made, device.work, 6, "x", 60.0, 3) == pytest.approx([0.003] * 2)
    assert device.log[2:-1] == ["record", *["work", "work", "work", "record"] * 2]
    done = made.progress.done
    assert done is not None and done() == 6


def test_a_broken_device_does_not_silence_the_watchdog() -> None:
    progress = Progress(0, lambda event: None)
    progress.finish()

    def broken() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    progress.step("x", 1.0, broken)
    assert "iterations" not in progress.where() and progress.where()["detail"] == "x"


@pytest.mark.parametrize(
    ("count", "local_rank", "index"),
    [(8, 3, 3), (1, 3, 0)],  # each process may see its own GPU alone (srun --gpus-per-task=1)
)
def test_the_gpu_of_a_rank(worker: Callable[..., Worker], count: int, local_rank: int, index: int) -> None:
    made = worker(Device(count), local_rank)
    assert (made.device.type, made.device.index) == ("cuda", index)


def test_a_rank_without_a_gpu_of_its_own_is_an_error(
    worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    words = r"local rank 2, but torch sees 2 GPUs here \(CUDA_VISIBLE_DEVICES=0,1\): no more than 2 ranks fit"
    with pytest.raises(PlannedError, match=words):
        worker(Device(2), 2)
    with pytest.raises(PlannedError, match="sees no GPU"):
        worker(Device(0))
    assert worker(Device(2), 2, same_gpu=True).device.index == 0


def test_two_ranks_that_were_shown_the_same_gpu_are_refused() -> None:
    record = {"boot": "b", "host": "h", "world": 2, "device_id": "GPU-1", "backend": "nccl"}
    records = [{**record, "rank": rank, "pid": rank} for rank in range(2)]
    assert world.problem(records, 0, 0, False) == "ranks 0 and 1 both use GPU GPU-1 on h"
    assert world.problem(records, 2, 0, True) == ""
    assert world.problem([records[0], {**records[1], "device_id": "GPU-2"}], 2, 2, False) == ""
    assert world.problem(records, 3, 0, True) == "3 ranks were asked for, the launcher made 2"
    assert world.problem(records, 0, 4, True) == "4 ranks a host were asked for: h has 2"
    records[1]["backend"] = "gloo"  # its host has no GPU
    assert world.problem(records, 2, 0, True).startswith("ranks [1] chose another backend than rank 0, nccl")


def test_collectives_of_gloo_stay_on_the_cpu_and_gemm_alone_takes_the_gpu(worker: Callable[..., Worker]) -> None:
    assert worker(Device(2), backend="gloo").device.type == "cpu"
    assert worker(Device(2), backend="gloo", gemm=64).device.type == "cpu"
    alone = worker(Device(2), local_rank=1, backend="gloo", gemm=64, collectives=[])
    assert (alone.device.type, alone.device.index) == ("cuda", 1)


def test_memory_that_torch_keeps_for_reuse_counts_as_free(worker: Callable[..., Worker]) -> None:
    device = Device()
    device.free, device.cached = 1 << 30, 40 << 30
    made = worker(device)
    assert memory.lack(made, 8 << 30) == ""
    assert "GPU memory" in memory.lack(made, 80 << 30)


def test_memory_is_what_the_groups_of_a_step_leave_and_what_files_fill_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under Slurm: the limit is the step's, and the host's top group has none."""
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    step = "/sys/fs/cgroup/slurm/job_7/step_0"
    tree = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n",
        "/proc/self/mountinfo": "22 21 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/proc/self/cgroup": "0::/slurm/job_7/step_0\n",
        f"{step}/memory.max": "1000000\n",
        f"{step}/memory.current": "990000\n",
    }
    write_tree(tmp_path, tree)
    assert memory.available_memory() == 10_000
    write_tree(tmp_path, {f"{step}/memory.stat": "anon 90000\ninactive_file 600000\nactive_file 300000\n"})
    assert memory.available_memory() == 910_000
    write_tree(tmp_path, {f"{step}/memory.max": "max\n"})
    assert memory.available_memory() == 5000 * 1024


def test_a_graph_is_captured_beside_other_threads_and_replayed(worker: Callable[..., Worker]) -> None:
    device = Device()
    replay = Measuring(worker(device))._graph(device.work)
    assert device.log == ["capture thread_local", "capturing", "work", "captured"]
    replay()
    assert device.log[-1] == "work"


class Board:
    """Agreements of a world of one."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def decide(self, key: str, value: Any, choose: Callable[[list[Any]], Any]) -> Any:
        self.told[key] = value
        return choose([value])


def test_what_a_graph_gives_is_what_is_checked(worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    device, events = Device(), []
    made = worker(device, cuda_graph=True, iters=2, warmup=1)
    made.progress.tell = lambda event, **fields: events.append(dict(fields, event=event))  # type: ignore[method-assign]
    checked = iter([0, 7])  # right when called, wrong when replayed
    checker = types.SimpleNamespace(
        prepare=lambda mode, buffers: device.log.append("prepare"), wrong=lambda buffers, count: next(checked)
    )
    monkeypatch.setattr(measuring.operations, "allocate", lambda *args: ("send", "receive"))
    monkeypatch.setattr(measuring.operations, "caller", lambda *args: device.work)
    made.me = made.me._replace(rank=0, world=1)
    assert Measuring(made)._measure(OPERATIONS["allreduce"], 1024, "in", checker) == ""
    (size,) = [event for event in events if event["event"] == "size"]
    assert size["wrong"] == [7] and len(size["iteration_us"]) == 2
    assert device.log[:3] == ["prepare", "synchronize", "work"] and device.log.count("prepare") == 2


@pytest.mark.parametrize(
    ("has", "called"),
    [
        (("abort", "shutdown"), "abort"),  # torch 2.7 to 2.13
        (("abort", "_shutdown"), "abort"),  # 2.6
        (("_shutdown",), "_shutdown"),  # 2.4, 2.5
    ],
)
def test_a_communicator_is_aborted_by_the_name_its_torch_has(
    worker: Callable[..., Worker], has: tuple[str, ...], called: str
) -> None:
    told: list[str] = []
    backend = types.SimpleNamespace(**{name: functools.partial(told.append, name) for name in has})
    group.abort(worker(Device()), types.SimpleNamespace(_get_backend=lambda device: backend))
    assert told == [called]


def test_a_rank_that_another_one_left_is_freed_from_a_thread_on_its_own_gpu(worker: Callable[..., Worker]) -> None:
    device = Device(8)
    made = worker(device, local_rank=3)
    made.connect = lambda limit: types.SimpleNamespace(compare_set=lambda *_: b"reason")  # type: ignore[assignment]
    backend = types.SimpleNamespace(abort=lambda: device.log.append("abort"))
    group._free_when_ended(made, 0, types.SimpleNamespace(_get_backend=lambda device: backend))
    assert device.log == ["set_device cuda:3", "abort"]


NCCL_OOM = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(NCCL_OOM), "out of memory: Cuda failure 2 'out of memory'"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), "out of memory: CUDA out of memory. Tried"),
        (MemoryError(), "out of memory"),
        (MemoryError("std::bad_alloc"), "out of memory: std::bad_alloc"),
    ],
)
def test_lack_of_memory_in_its_own_words(error: Exception, words: str) -> None:
    assert is_lack_of_memory(error) and words_of_lack(error).startswith(words)


def test_other_errors_are_no_lack_of_memory() -> None:
    assert not is_lack_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    locked = "NCCL error in: ...\nLast error:\nCall to ibv_create_cq failed with error Cannot allocate memory"
    assert not is_lack_of_memory(RuntimeError(locked))  # the limit on locked memory


def test_what_torch_refuses_is_told_from_what_fails() -> None:
    assert is_refusal(ValueError("AVG requires NCCL 2.10+. The current version is 2.8"))
    assert is_refusal(TypeError("Input tensor data type is not supported for NCCL process group: ComplexFloat"))
    failure = NCCL_OOM.replace("2 'out of memory'", "801 'operation not supported'")
    assert not is_refusal(RuntimeError(failure)) and not is_refusal(RuntimeError("CUDA error: not supported"))
