"""A small data-parallel training job that fails in the way it is told to.

    torchrun --standalone --nproc-per-node 2 worker.py --incident NAME

One function per incident; each runs after a few good steps, unless its name is in BEFORE_INIT. Backend gloo on CPU;
time-outs are short, so that every incident ends within seconds. Functions that have to wait for others use no more
than the job's own time-out.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import pathlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = datetime.timedelta(seconds=5)
INCIDENTS: dict[str, Callable[[], None]] = {}
BEFORE_INIT: set[str] = set()
WITHOUT_MODEL: set[str] = set()


def incident(function: Callable[[], None]) -> Callable[[], None]:
    """Runs after init and three training steps."""
    INCIDENTS[function.__name__.strip("_").replace("_", "-")] = function
    return function


def before_init(function: Callable[[], None]) -> Callable[[], None]:
    """Runs instead of init and training."""
    BEFORE_INIT.add(function.__name__.strip("_").replace("_", "-"))
    return incident(function)


def without_model(function: Callable[[], None]) -> Callable[[], None]:
    """Runs after init and a few plain collectives: torch 2.13 crashes when DDP meets TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    WITHOUT_MODEL.add(function.__name__.strip("_").replace("_", "-"))
    return incident(function)


def rank() -> int:
    return dist.get_rank()


def say(text: str) -> None:
    print(f"[rank {os.environ.get('RANK', '?')}] {text}", flush=True)


class Network(nn.Module):
    """Two layers; with `spare`, a third that the forward pass does not use."""

    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 1)
        self.spare = nn.Linear(32, 1) if spare else None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(batch)))


class Trainer:
    """The usual loop."""

    def __init__(self, **network: bool) -> None:
        self.model = DistributedDataParallel(Network(**network))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.number = 0

    def step(self, batch: torch.Tensor | None = None) -> float:
        batch = torch.randn(8, 16) if batch is None else batch
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.number += 1
        return loss.item()

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.step()
            if rank() == 0:
                say(f"step {self.number} loss {loss:.4f}")


trainer: Trainer


def meet() -> None:
    """Wait until every rank has imported torch, which takes a busy machine longer than the job's short time-out."""
    expected = int(os.environ.get("INCIDENT_RANKS", "0"))
    if expected:
        pathlib.Path(f".ready-{os.environ['RANK']}").touch()
    deadline = time.monotonic() + 40
    while len(list(pathlib.Path().glob(".ready-*"))) < expected and time.monotonic() < deadline:
        time.sleep(0.05)


def initialise() -> None:
    meet()
    dist.init_process_group("gloo", timeout=TIMEOUT)
    say(f"process group ready, world size {dist.get_world_size()}")


# One rank fails, the others suffer.


@incident
def rank_exception() -> None:
    labels = {"cat": 0, "dog": 1}
    for name in ("cat", "dog", "cat", "dgo" if rank() == 1 else "dog", "cat"):
        batch = torch.full((8, 16), float(labels[name]))
        trainer.step(batch)


@incident
def rank_exception_caught_late() -> None:
    """The guilty rank dies at once; the others notice only when their time-out ends."""
    if rank() == 2:
        raise FileNotFoundError(2, "No such file or directory", "/data/shards/train-00017.tar")
    trainer.steps(3)


@incident
def swallowed_exception() -> None:
    """`except: continue` jumps over the collective of one rank, which then is one step behind the others."""
    for number in range(4):
        try:
            sample = [1.0, 2.0] if (rank(), number) != (1, 2) else [1.0]
            trainer.step(torch.full((8, 16), sample[1]))
            say(f"batch {number} done")
        except IndexError as error:
            say(f"WARNING skipping bad batch {number}: {error!r}")
    dist.barrier()
    say("epoch done")


@incident
def segfault() -> None:
    if rank() == 1:
        ctypes.string_at(0)
    trainer.steps(2)


@incident
def segfault_below_own_line() -> None:
    """Rank 1 calls native code that writes where nothing is, with faulthandler at work."""
    if rank() == 1:
        ctypes.memmove(0x10, b"frame", 5)
    trainer.steps(2)


@incident
def nan_loss() -> None:
    for number in range(4):
        batch = torch.randn(8, 16) * (float("nan") if rank() == 1 and number == 2 else 1.0)
        loss = trainer.step(batch)
        if loss != loss:
            raise FloatingPointError(f"loss is NaN at step {trainer.number}")


# Ranks that call different things.


@without_model
def conditional_collective() -> None:
    """Rank 0 alone reduces its validation loss; caught by DETAIL's fingerprints."""
    if rank() == 0:
        dist.all_reduce(torch.tensor([0.25, 8.0]))
    dist.barrier()


@without_model
def shape_mismatch() -> None:
    dist.all_reduce(torch.ones(149 if rank() == 1 else 150))


@without_model
def dtype_mismatch() -> None:
    dist.all_reduce(torch.ones(64, dtype=torch.float64 if rank() == 0 else torch.float32))


@without_model
def order_mismatch() -> None:
    first, second = torch.ones(4), torch.ones(4)
    if rank() == 0:
        dist.all_reduce(first)
        dist.broadcast(second, 0)
    else:
        dist.broadcast(second, 0)
        dist.all_reduce(first)


@incident
def detail_with_ddp() -> None:
    """Never reached: with TORCH_DISTRIBUTED_DEBUG=DETAIL torch 2.13.0 crashes (SIGSEGV) inside DDP's init."""


@incident
def size_mismatch_undetected() -> None:
    """Without DETAIL it is gloo that notices, and ends the process."""
    dist.all_reduce(torch.ones(64 if rank() == 0 else 63))


@incident
def skipped_with_dumps() -> None:
    """One rank leaves out a collective; every rank leaves a flight-recorder dump, as backend nccl does by itself."""
    import torch._C._distributed_c10d as c10d

    def dump() -> None:
        with open(os.path.join(os.environ["DUMP_DIRECTORY"], f"fr_trace_rank_{rank()}"), "wb") as file:
            file.write(c10d._dump_fr_trace())

    try:
        dist.all_reduce(torch.ones(8))
        if rank() != 1:
            dist.all_reduce(torch.ones(128))  # the gradient norm, which rank 1 believes to be unneeded
        dist.broadcast(torch.ones(16), 0)
    finally:
        dump()


@incident
def send_recv_cycle() -> None:
    """Every rank receives before it sends."""
    world = dist.get_world_size()
    incoming = torch.zeros(4)
    dist.recv(incoming, (rank() - 1) % world)
    dist.send(torch.ones(4), (rank() + 1) % world)


@incident
def barrier_missing() -> None:
    """monitored_barrier names who did not come; the missing rank is busy elsewhere."""
    if rank() == 1:
        for part in range(20):
            say(f"rendering validation picture {part}/20")
            time.sleep(0.5)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))
    say("validation done")


@incident
def monitored_barrier_after_exception() -> None:
    if rank() == 1:
        raise KeyError("image_00931")
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))


# Slow ranks, uneven data.


@incident
def straggler() -> None:
    if rank() == 0:
        say("saving checkpoint to shared storage")
        for percent in range(0, 100, 10):
            say(f"checkpoint {percent} % written")
            time.sleep(1.2)
        say("checkpoint saved")
    trainer.steps(2)


@incident
def uneven_inputs() -> None:
    batches = 3 if rank() == 1 else 5
    say(f"data loader has {batches} batches")
    for number in range(batches):
        trainer.step()
        say(f"batch {number + 1}/{batches}")
    say("epoch finished, waiting for the others")
    dist.barrier()


@incident
def uneven_join() -> None:
    batches = 3 if rank() == 1 else 5
    with trainer.model.join(throw_on_early_termination=True):
        for _ in range(batches):
            trainer.step()


@incident
def uneven_join_healthy() -> None:
    """Join makes uneven inputs legal."""
    with trainer.model.join():
        for _ in range(3 + rank()):
            trainer.step()
    say("epoch done")
    dist.destroy_process_group()


# DDP.


@incident
def unused_parameters() -> None:
    global trainer
    trainer = Trainer(spare=True)
    trainer.steps(3)


@incident
def parameter_used_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            once = checkpoint(self.layer, batch, use_reentrant=True)
            return checkpoint(self.layer, once, use_reentrant=True)  # type: ignore[no-any-return]

    model = DistributedDataParallel(Twice(), find_unused_parameters=True)
    model(torch.randn(4, 16, requires_grad=True)).sum().backward()


@incident
def different_models() -> None:
    """Rank 1 builds the model with another configuration."""
    global trainer
    trainer = Trainer(spare=rank() == 1)
    trainer.steps(1)


# FSDP, DTensor, torch.compile: collectives that the program does not write itself.


def sharded(width: int = 32) -> nn.Module:
    """FSDP2 over all ranks, on the CPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(network, mesh=mesh)  # type: ignore[no-any-return]


@without_model
def fsdp_different_models() -> None:
    """Rank 1 shards a wider layer: its all-gather has another size."""
    sharded(48 if rank() == 1 else 32)(torch.randn(8, 16)).sum().backward()


@without_model
def fsdp_skipped_forward() -> None:
    """Rank 1 finds nothing in its batch and leaves out the forward pass, with the all-gathers in it."""
    model = sharded()
    for number in range(3):
        if (rank(), number) == (1, 1):
            say("batch 1 is empty after filtering, skipped")
            continue
        model(torch.randn(8, 16)).sum().backward()
        say(f"batch {number} done")
    dist.barrier()


@without_model
def mixed_dtensor() -> None:
    """A layer that was left out of the sharding meets one that was not: the same error on all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.ones(4, 4) @ distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])


@without_model
def compiled_graphs_differ() -> None:
    """The compiled step of rank 0 holds one more all-reduce: a flag that only rank 0 has set."""
    import torch.distributed._functional_collectives as functional

    def step(gradient: torch.Tensor, log: bool) -> torch.Tensor:
        if log:
            gradient = functional.all_reduce(gradient.norm().reshape(1), "sum", dist.group.WORLD) * gradient
        return functional.all_reduce(gradient, "sum", dist.group.WORLD)  # type: ignore[no-any-return]

    compiled = torch.compile(step, backend="aot_eager")
    compiled(torch.ones(64), rank() == 0).sum().item()


# Ranks that end in ways of their own.


@incident
def exit_without_words() -> None:
    """Rank 1 ends with a code and says nothing."""
    if rank() == 1:
        os._exit(3)
    trainer.steps(2)


@incident
def rank_done_early() -> None:
    """Rank 2 leaves the loop without an error while the others still reduce gradients."""
    say(f"world size {dist.get_world_size()}")
    if rank() == 2:
        say("nothing is left in this shard, leaving")
        sys.exit(0)
    trainer.steps(3)


@incident
def gave_up_in_words() -> None:
    """Rank 1 says why it goes, in words that no library knows, and its exit handlers have no say."""
    if rank() == 1:
        say("FATAL: vocabulary of 32000 does not fit 32064 embedding rows, aborting")
        os._exit(4)
    trainer.steps(2)


@incident
def hook_raises() -> None:
    """A gradient hook of rank 1 raises in the autograd engine's thread."""
    if rank() == 1:
        weight = trainer.model.module.first.weight
        weight.register_hook(lambda grad: {"mean": grad.mean()}["norm"])
    trainer.steps(2)


@incident
def backward_raises() -> None:
    """The backward pass of an own autograd function raises on rank 1."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            if rank() == 1:
                raise ArithmeticError("scale of zero in the backward pass")
            return grad * 2

    Scale.apply(trainer.model(torch.randn(8, 16))).mean().backward()


@incident
def task_group_raises() -> None:
    """Rank 1 reads its shards in an asyncio task group, and one task fails."""
    import asyncio

    async def fetch(number: int) -> None:
        if (rank(), number) == (1, 2):
            raise LookupError("shard 2 is not in the manifest")

    async def fetch_all() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(fetch(number))

    asyncio.run(fetch_all())
    trainer.steps(2)


@incident
def stacks_of_a_mismatch() -> None:
    """The ranks hang in different calls, and faulthandler shows where each one stands before the time-outs come."""
    import faulthandler

    faulthandler.dump_traceback_later(2)
    if rank() == 1:
        dist.broadcast(torch.ones(4), 1)
        dist.broadcast(torch.ones(4), 0)
    dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))
    dist.barrier()


@incident
def prefetch_thread_died() -> None:
    """An exception in a thread ends that thread only; the main thread waits for its batches for ever."""
    import queue

    batches: queue.Queue[torch.Tensor] = queue.Queue()

    def prefetch() -> None:
        for number in range(4):
            if (rank(), number) == (1, 2):
                raise ValueError("sample 8123 has 0 tokens")
            batches.put(torch.randn(8, 16))

    threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
    for _ in range(4):
        trainer.step(batches.get(timeout=30))


@incident
def worker_raises() -> None:
    """The dataset of rank 1 raises inside a DataLoader worker."""
    load("raise" if rank() == 1 else "")


@incident
def unpicklable_object() -> None:
    """Rank 1 gathers an object that cannot be pickled, and never reaches the collective."""
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (lambda: 0) if rank() == 1 else {"bleu": 0.31})


@incident
def key_never_set() -> None:
    """Ranks wait in the store for what rank 0 publishes when its preparation ends: too late for them."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    store.set_timeout(datetime.timedelta(seconds=3))
    if rank() == 0:
        for part in range(8):
            say(f"tokenizing shard {part} of 8")
            time.sleep(0.8)
        store.set("vocabulary", "ready")
    else:
        store.get("vocabulary")
    dist.barrier()


@incident
def pipeline_sizes_differ() -> None:
    """The next stage expects a shorter sequence than the previous one sends."""
    if rank() == 0:
        dist.send(torch.ones(2048), 1)
    else:
        dist.recv(torch.ones(1536), 0)
    dist.barrier()


@incident
def distributed_checkpoint_incomplete() -> None:
    """A checkpoint directory without its .metadata: the writer was ended before it finished."""
    import torch.distributed.checkpoint as checkpoint

    path = os.path.join(os.environ["CHECKPOINT_DIRECTORY"], "step-40")
    state = {"weights": torch.ones(64)}
    checkpoint.save(state, checkpoint_id=path)
    if rank() == 0:
        os.unlink(os.path.join(path, ".metadata"))
    dist.barrier()
    say(f"resuming from {path}")
    checkpoint.load(state, checkpoint_id=path)


# Data loading.


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that end their loader worker in the way asked for."""

    def __init__(self, fate: str, size: int = 16) -> None:
        self.fate = fate
        self.size = size

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 20 and self.fate == "kill":
            time.sleep(
                1.5
            )  # until the batches before it are handed over; killed earlier, it looks like dataloader-reset.md
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 20 and self.fate == "hang":
            time.sleep(60)
        if index == 20 and self.fate == "raise":
            raise KeyError("caption")
        return torch.ones(self.size)


def load(fate: str, size: int = 16, timeout: float = 0) -> None:
    loader = torch.utils.data.DataLoader(Samples(fate, size), batch_size=4, num_workers=1, timeout=timeout)
    for batch in loader:
        trainer.step(batch[:, :16])


@incident
def dataloader_killed() -> None:
    load("kill" if rank() == 1 else "")


@incident
def dataloader_timeout() -> None:
    load("hang" if rank() == 1 else "", timeout=3)


@incident
def dataloader_shared_memory() -> None:
    """Batches of 4 MiB in a /dev/shm of 1 MiB."""
    load("", size=1 << 18)


# Memory, files, threads, disk.


@incident
def host_memory_cgroup() -> None:
    """Rank 1 grows until the kernel kills it."""
    if rank() == 1:
        kept = []
        for gigabyte in range(40):
            kept.append(torch.ones(64 << 20, dtype=torch.uint8))
            if gigabyte % 8 == 0:
                say(f"cached {len(kept) * 64} MiB of samples")
    trainer.steps(2)


@incident
def host_memory_limit() -> None:
    if rank() == 1:
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
        cache = [torch.ones(64 << 20, dtype=torch.uint8) for _ in range(40)]
        say(f"cached {len(cache)} shards")
    trainer.steps(2)


@incident
def open_files() -> None:
    if rank() == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
    shards = [open(f"/proc/self/{name}") for _ in range(40) for name in ("stat", "status", "maps")]  # noqa: SIM115
    say(f"{len(shards)} shards open")
    trainer.steps(1)


@incident
def thread_limit() -> None:
    threads = [threading.Thread(target=time.sleep, args=(1,), daemon=True) for _ in range(400)]
    for thread in threads:
        thread.start()
    trainer.steps(1)


@incident
def disk_full() -> None:
    path = os.path.join(os.environ["CHECKPOINT_DIRECTORY"], "epoch1.pt")
    if rank() == 0:
        torch.save({"weights": torch.ones(1 << 20)}, path)
    dist.barrier()


@incident
def checkpoint_truncated() -> None:
    path = os.path.join(os.environ["CHECKPOINT_DIRECTORY"], "epoch1.pt")
    if rank() == 0:
        torch.save({"weights": torch.ones(1 << 21)}, path)
        os.truncate(path, os.path.getsize(path) // 2)
    dist.barrier()
    say(f"resuming from {path}")
    torch.load(path)


@incident
def checkpoint_of_another_model() -> None:
    path = os.path.join(os.environ["CHECKPOINT_DIRECTORY"], "epoch1.pt")
    if rank() == 0:
        torch.save(nn.Linear(16, 64).state_dict(), path)
    dist.barrier()
    trainer.model.module.first.load_state_dict(torch.load(path))


# Killed from outside.


@incident
def endless() -> None:
    """Trains until somebody ends it."""
    for _ in range(2000):
        trainer.steps(1)
        time.sleep(0.05)


@incident
def preempted() -> None:
    """Trains until SIGTERM comes; its own handler says so, and the rank goes of itself."""

    def leave(number: int, _: object) -> None:
        say(f"received SIGTERM (signal {number}): the allocation is withdrawn, leaving after this step")
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    endless()


@incident
def kill_own_rank() -> None:
    """SIGKILL without any other trace, as a scheduler or an unseen out-of-memory killer sends it."""
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    trainer.steps(2)


# Process groups.


@before_init
def collective_before_init() -> None:
    dist.all_reduce(torch.ones(1))


@incident
def init_twice() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)


@incident
def destroyed_group() -> None:
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(1))


@incident
def wrong_group() -> None:
    group = dist.new_group([0])
    dist.broadcast(torch.ones(1), src=1, group=group if rank() == 0 else None)


@before_init
def nccl_without_gpu() -> None:
    dist.init_process_group("nccl", timeout=TIMEOUT)
    dist.all_reduce(torch.ones(1, device="cuda"))


@before_init
def unknown_backend() -> None:
    dist.init_process_group("ncll", timeout=TIMEOUT)


@incident
def unsupported_dtype() -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.int16))


# Nothing to do with distributed computing.


@before_init
def import_error() -> None:
    import transformer_engine_of_ours  # type: ignore[import-not-found]  # noqa: F401


@before_init
def syntax_error() -> None:
    with open("model_config.py", "w") as file:
        file.write("layers = [1, 2, 3\nwidth = 64\n")
    import model_config  # type: ignore[import-not-found]  # noqa: F401


@before_init
def bad_argument() -> None:
    parser = argparse.ArgumentParser("train.py")
    parser.add_argument("--learning-rate", type=float)
    parser.parse_args(["--learning-rate", "fast"])


@before_init
def version_mismatch() -> None:
    """What programs check themselves at start: every rank's torch, through the store."""
    initialise()
    mine = torch.__version__ if rank() == 0 else "2.11.0+cpu"
    versions: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(versions, mine)
    if len(set(versions)) > 1:
        raise RuntimeError(f"version mismatch: ranks run different torch builds: {versions}")


# Healthy.


@incident
def healthy() -> None:
    trainer.steps(5)
    dist.barrier()
    dist.destroy_process_group()
    say("training finished")
    # On a busy machine torch 2.13 aborts one in 20 ends of the interpreter ("terminate called without an active exception").
    os._exit(0)


@incident
def healthy_with_warnings() -> None:
    """Ends well, although it forgets destroy_process_group, uses old names and prints frightening words."""
    import warnings

    dist.all_gather_into_tensor(torch.zeros(2 * dist.get_world_size()), torch.ones(2))
    warnings.warn("checkpoint directory already exists: old files may be overwritten", stacklevel=1)
    say("retry 1/3: connection to the metrics server timed out; metrics are kept locally")
    trainer.steps(3)
    say("validation error 0.131, best so far; training finished")


@incident
def healthy_after_logged_exception() -> None:
    """An exception of something unimportant is logged with its traceback, and the training goes on to its end."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    try:
        {}["axes"]
    except KeyError:
        logging.exception("plotting failed, no figure for this epoch")
    healthy()


@before_init
def healthy_after_restart() -> None:
    """Rank 1 raises in the first attempt; torchrun starts the workers again, and they come to the end."""
    if (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]) == ("0", "1"):
        raise RuntimeError("the licence server did not answer")
    time.sleep(1)
    warm_up(with_model=True)
    healthy()


@incident
def exhausted_restarts() -> None:
    """Rank 1 raises in every attempt."""
    trainer.steps(1)
    if rank() == 1:
        raise RuntimeError("batch 17 has no labels")
    trainer.steps(2)


def warm_up(*, with_model: bool) -> None:
    """Some good steps, so that the failure comes in the middle of a run."""
    global trainer
    initialise()
    if with_model:
        trainer = Trainer()
        trainer.steps(3)
        return
    for number in range(3):
        dist.all_reduce(torch.ones(8))
        say(f"step {number + 1} done")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--incident", required=True, choices=sorted(INCIDENTS))
    name = parser.parse_args().incident
    torch.manual_seed(1)
    if name not in BEFORE_INIT:
        warm_up(with_model=name not in WITHOUT_MODEL)
    INCIDENTS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
