"""Made-up GPUs under the real torch of this machine: the rank program's CUDA and NCCL code runs without either.

What it shows: that this code runs to its end, calls only what this torch has, with arguments that it takes, on tensors of
the right device, in an order that CUDA allows. What it does not show: that CUDA or NCCL do what is asked, how fast, or in
which order on streams. No number measured on it means anything.

How: tensors claim to be on ``cuda:N`` and hold a CPU tensor; every operation on them is carried out there. A group of
backend ``nccl`` is one of gloo. Names of ``torch.cuda`` are replaced one by one: a name that the real one lacks, or a call
that its signature does not take, is an error. Beyond that, as on a device:

- tensors of CPU and GPU do not mix, and a CPU tensor cannot be sent over ``nccl``;
- a group of ``nccl`` has one GPU, which it chooses as PyTorch 2.15 does (``_nccl2_device``): by LOCAL_RANK, else by the rank;
- an event's time can be read only after the device was waited for;
- what is captured into a graph is not carried out, and the device cannot be waited for meanwhile.

Variables: STAND_IN_GPUS (default 2) GPUs; STAND_IN_BYTES: an allocation above so many bytes finds no memory;
STAND_IN_NCCL_OOM=RANK:BYTES: on that rank, a collective on more than so many bytes fails as NCCL does without memory.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

COUNT = int(os.environ.get("STAND_IN_GPUS", "2"))
LARGEST = int(os.environ.get("STAND_IN_BYTES", str(1 << 40)))
TOTAL = 80 << 30
NCCL_OOM = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.5
ncclUnhandledCudaError: Call to CUDA function failed.
Last error:
Cuda failure 2 'out of memory'"""
MAY_MIX = ("aten::copy_", "aten::_to_copy")


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnGpu:
        made: OnGpu = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device("cuda", State.device), requires_grad=False,
        )  # fmt: skip
        made.held = held
        return made

    held: torch.Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The C++ of these two asks for a real device before it comes to the operation.
        if func is torch.Tensor.__getitem__:
            return cls(args[0].held[args[1]])
        if func is torch.Tensor.copy_ and not kwargs:
            return torch.ops.aten.copy_(*args)
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carry_out(func, args, kwargs or {})


class State:
    """The devices of this process."""

    device = 0
    waited_at = 0  # until when all work is known to be done, ns
    graph: CUDAGraph | None = None  # that is being captured
    group_is_nccl = False
    of_group = 0  # the device of the group
    capturing_thread = 0

    @classmethod
    def not_while_capturing(cls) -> None:
        if cls.graph is not None and cls.capturing_thread == threading.get_ident():
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


def carry_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the tensors that those on the GPU hold."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, OnGpu)]
    name = func._schema.name
    target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    makes = target is not None and target.type == "cuda"
    check(name, tensors, on_gpu, target)
    if makes and not on_gpu:
        allocate(args, kwargs)
    if State.graph is not None and (on_gpu or makes):
        State.graph.steps.append((func, args, kwargs))
        if name.startswith("c10d::"):  # nothing is sent, and all of these wait for it
            work = torch._C._distributed_c10d.FakeWork().boxed()
            return work if len(func._schema.returns) == 1 else (args[0], work)
    if target is not None:
        kwargs = dict(kwargs, device=torch.device("cpu"))
    held_args, held_kwargs = tree_map(lambda value: value.held if isinstance(value, OnGpu) else value, (args, kwargs))
    found = func(*held_args, **held_kwargs)
    if not (makes or (on_gpu and target is None)):
        return found
    known = {id(tensor.held): tensor for tensor in on_gpu}

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else OnGpu(value)

    return tree_map(put, found)


def check(name: str, tensors: list[Any], on_gpu: list[OnGpu], target: torch.device | None) -> None:
    """What CUDA and NCCL's group refuse, and the lack of memory that was asked for."""
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnGpu)]
    if on_gpu and name not in MAY_MIX and any(tensor.dim() for tensor in elsewhere):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda and cpu in {name}")
    if target is not None and target.type == "cuda" and target.index not in (None, State.device):
        raise RuntimeError(f"this process set device {State.device}, and makes a tensor on {target}")
    if name == "aten::_local_scalar_dense" and on_gpu:
        State.not_while_capturing()
    if not name.startswith("c10d::"):
        return
    if State.group_is_nccl and not on_gpu and name != "c10d::barrier":
        raise RuntimeError("No backend type associated with device type cpu")
    if State.group_is_nccl and State.of_group != State.device:
        raise RuntimeError(f"Expected tensor on cuda:{State.of_group} but found tensor on cuda:{State.device}")
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("Tensors must be contiguous")
    rank, _, least = os.environ.get("STAND_IN_NCCL_OOM", "").partition(":")
    if rank and int(rank) == dist.get_rank() and any(t.numel() * t.element_size() > int(least) for t in tensors):
        raise dist.DistBackendError(NCCL_OOM)


def allocate(args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what is larger than STAND_IN_BYTES."""
    shape = args[0] if args and isinstance(args[0], (list, tuple, torch.Size)) else ()
    count = functools.reduce(lambda a, b: a * b, shape, 1)
    size = count * torch.empty(0, dtype=kwargs.get("dtype") or torch.float32, device="cpu").element_size()
    if size > LARGEST:
        raise torch.cuda.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has ..."
        )


class OnDevices(TorchDispatchMode):
    """Sees every operation of the thread that imported torch, those that make tensors included."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # importing the compiler only to switch it off takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carry_out(func, args, kwargs or {})


class Event:
    """On a device that does all work at once; but who does not wait for it may not read the time."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.timed, self.at = enable_timing, 0

    def record(self, stream: Any = None) -> None:
        State.not_while_capturing()
        self.at = time.perf_counter_ns()

    def query(self) -> bool:
        State.not_while_capturing()
        return True

    def elapsed_time(self, end_event: Event) -> float:
        if not (self.timed and end_event.timed and self.at and end_event.at):
            raise RuntimeError("Both events must be created with timing and recorded before calculating elapsed time.")
        if end_event.at > State.waited_at:
            raise RuntimeError("CUDA error: device not ready")
        return (end_event.at - self.at) / 1e6


class CUDAGraph:
    """Keeps operations, and carries them out when it is replayed."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.steps: list[tuple[Any, Any, Any]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
        State.graph, State.capturing_thread = self, threading.get_ident()

    def capture_end(self) -> None:
        State.graph = None

    def replay(self) -> None:
        works = []
        for func, args, kwargs in self.steps:
            found = func(*args, **kwargs)
            if func._schema.name.startswith("c10d::"):
                works.append(dist.Work.unbox(found[-1] if isinstance(found, tuple) else found))
        for work in works:  # not one by one: a send waits for the receive that was captured beside it
            work.wait()


class Stream:
    """A stream in name only."""


def synchronize() -> None:
    State.not_while_capturing()
    State.waited_at = time.perf_counter_ns()


def set_device(device: Any) -> None:
    index = torch.device(device).index if not isinstance(device, int) else device
    if not 0 <= (index or 0) < COUNT:
        raise RuntimeError("CUDA error: invalid device ordinal")
    State.device = index or 0


def properties() -> Any:
    class Properties:
        uuid = f"00000000-0000-0000-0000-{State.device:012d}"
        name, major, minor = "Stand-in GPU", 9, 0

    return Properties()


def replace(owner: Any, name: str, function: Callable[..., Any], takes_arguments: bool = False) -> None:
    """Replace what the real torch has under this name; calls must be such as that takes."""
    real = getattr(owner, name)
    signature = inspect.signature(real)

    def checked(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs) if takes_arguments else function()

    setattr(owner, name, functools.wraps(real)(checked) if inspect.isfunction(real) else checked)


def replace_class(owner: Any, name: str, made: type) -> None:
    """Replace a class by one that can only do what the real one can, and is called as that."""
    real = getattr(owner, name)
    for method, function in vars(made).items():
        if method.startswith("__") or not callable(function):
            continue
        theirs = getattr(real, method)
        try:
            signature = inspect.signature(theirs)
        except (TypeError, ValueError):  # a method of C
            continue
        setattr(made, method, _as_real(function, signature))
    made.__init__ = _as_real(made.__init__, inspect.signature(real.__new__))  # type: ignore[misc]
    setattr(owner, name, made)


def _as_real(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    return checked


def install() -> None:
    """Once, in the thread that will use the GPUs."""
    cuda = torch.cuda
    for name, function in (
        ("_lazy_init", lambda: None),
        ("is_available", lambda: COUNT > 0),
        ("device_count", lambda: COUNT),
        ("current_device", lambda: State.device),
        ("synchronize", synchronize),
        ("empty_cache", State.not_while_capturing),
        ("mem_get_info", lambda: (TOTAL // 2, TOTAL)),
        ("get_device_name", lambda: "Stand-in GPU"),
        ("get_device_properties", properties),
    ):
        replace(cuda, name, function)
    replace(cuda, "set_device", set_device, takes_arguments=True)
    replace(cuda.nccl, "version", lambda: (2, 27, 5))
    replace_class(cuda, "Event", Event)
    replace_class(cuda, "CUDAGraph", CUDAGraph)
    cuda.Stream = Stream
    cuda.stream = lambda stream: contextlib.nullcontext()
    torch._C._host_emptyCache = lambda: None
    real_generator = torch.Generator

    class Generator:
        def __new__(cls, device: Any = "cpu") -> Any:
            return real_generator()

    torch.Generator = Generator
    replace(dist, "is_nccl_available", lambda: True)

    real_init = dist.init_process_group

    def init(*args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(real_init).bind(*args, **kwargs)
        State.group_is_nccl = bound.arguments.get("backend") == "nccl"
        if State.group_is_nccl:
            bound.arguments["backend"] = "cpu:gloo,cuda:gloo"
        real_init(*bound.args, **bound.kwargs)
        State.of_group = int(os.environ.get("LOCAL_RANK", dist.get_rank())) % COUNT

    dist.init_process_group = init
    c10d = dist.distributed_c10d
    real_abort = c10d._abort_process_group

    def abort(*args: Any) -> None:
        if os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") != "0":
            os.abort()  # it is the other ranks' watchdogs that would end their processes, upon this one's abort
        real_abort(*args)

    c10d._abort_process_group = abort
    OnDevices().__enter__()
