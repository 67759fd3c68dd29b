"""What a process does: by its state, and by where its main thread's Python stack is."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.job import Frame, Process, PythonThread, Reading, Thread

_C10D = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/nn/",
)
_STORE = ("init_process_group", "_store_based_barrier", "new_group", "_new_process_group_helper", "split_group")
_WORKER = ("torch/utils/data/_utils/worker.py", "_worker_loop")
_OBJECTS = ("_object_to_tensor", "_tensor_to_object")  # who is in them pickles or unpickles, and waits for nobody
_INSIDE = ("wrapper", "inner", "wait", "_wait", "_exception_logger.<locals>.wrapper", "_time_logger.<locals>.wrapper")


# Python's functions in which a program that has come to its end waits for what it started.
AT_THE_END = {
    ("threading.py", "_shutdown"): "has come to its program's end, and waits for a thread",
    ("concurrent/futures/thread.py", "_python_exit"): "has come to its program's end, and waits for a thread",
    ("multiprocessing/util.py", "_exit_function"): "has come to its program's end, and waits for a child process",
}


# In which a main thread waits for another one, that works for it.
_FOR_A_THREAD = (("threading.py", "join"), ("concurrent/futures/_base.py", "result"))


class Doing(msgspec.Struct, frozen=True):
    """What a process does, by its state and its main thread's Python stack.

    ``kind``: ``stopped``, ``frozen``, ``traced``, ``ended``, ``crashed`` (the kernel writes its core dump), ``kernel`` (state D),
    ``collective``, ``store``, ``loader`` (waits for a DataLoader worker), ``saving``, ``loading``, ``importing``, ``backward``,
    ``gpu``, ``own`` (anything else) or, without a stack, ``asleep`` (in the kernel function ``frame``), ``running`` or
    ``unknown``. ``name`` is the collective's, ``frame`` quotes
    where, ``user`` is the innermost line of the user's own code.
    """

    kind: str
    name: str = ""
    frame: str = ""
    user: str = ""


def looks(process: Process) -> tuple[Doing, ...]:
    """What a process did at each look."""
    return tuple(_doing(reading, frames_of(process, at)) for at, reading in enumerate(process.readings))


def is_worker(process: Process) -> bool:
    """Whether it is a DataLoader's worker, as either look saw it."""
    looks = (frames_of(process, at) for at in range(len(process.stacks)))
    return any((frame.short, frame.function) == _WORKER for frames in looks for frame in frames)


def frames_of(process: Process, at: int = -1) -> tuple[Frame, ...]:
    """The Python frames of what it works on at a look, innermost first; none where they could not be taken."""
    thread = thread_of(process, at)
    return thread.frames if thread else ()


def thread_of(process: Process, at: int = -1) -> PythonThread | None:
    """The Python thread of a process that does its work: the main one, or the one that this waits for.

    Another thread where the main one waits for its end, or has no line of the user's own program, as in Ray's workers.
    """
    threads = _threads(process, at)
    own = [thread for thread in threads[1:] if not all(frame.installed for frame in thread.frames)]
    if len(own) == 1 and _leaves_it_to_another(threads[0].frames):
        return own[0]
    return threads[0] if threads else None


def main_works(process: Process) -> bool:
    """Whether it is the main thread that works, of which alone the kernel's word is kept; so, too, where none was seen."""
    return thread_of(process) in (None, *_threads(process, -1)[:1])


def _leaves_it_to_another(frames: tuple[Frame, ...]) -> bool:
    functions = {(frame.short, frame.function.rpartition(".")[2]) for frame in frames}
    if functions.intersection(_FOR_A_THREAD):
        return True
    own_end = functions.intersection((*AT_THE_END, _WORKER))
    return bool(frames) and all(frame.installed for frame in frames) and not own_end


def other_threads(process: Process, *, own: bool = False) -> list[str]:
    """Its other Python threads: each with its innermost line in the user's own code, or (unless ``own``) anywhere."""
    told, at_work = [], thread_of(process)
    for thread in _threads(process, -1):
        lines = [frame for frame in thread.frames if not frame.installed] or ([] if own else list(thread.frames))
        if lines and thread != at_work:
            told.append(f"thread {thread.name or thread.id}: {lines[0]}")
    return told


def _threads(process: Process, at: int) -> tuple[PythonThread, ...]:
    stacks = process.stacks[at]
    return stacks.threads if stacks else ()


def _doing(reading: Reading | None, frames: tuple[Frame, ...]) -> Doing:
    if reading is None or reading.state in "ZX":
        return Doing("ended")
    user = next((str(frame) for frame in frames if not frame.installed), "")
    kernel = {"T": "stopped", "t": "traced"}.get(reading.state, "")
    if reading.dumps_core:
        kernel = "crashed"
    elif reading.frozen:
        kernel = "frozen"
    elif reading.main and reading.main.state == "D":
        kernel = "kernel"
    kind, name, frame = _in_python(frames)
    if not frames and not kernel and reading.main:
        return _without_stack(reading.main)
    if kernel:
        place = reading.main.waits_in if reading.main and kernel == "kernel" else ""
        return Doing(kernel, place, str(frame) if frame else "", user)
    return Doing(kind, name, str(frame) if frame else "", user)


def _without_stack(main: Thread) -> Doing:
    if main.state == "R":
        return Doing("running", "", "the processor")
    return Doing("asleep", "", f"the kernel's {main.waits_in}") if main.waits_in else Doing("unknown")


def _in_python(frames: tuple[Frame, ...]) -> tuple[str, str, Frame | None]:
    """Kind, the collective's name, and the frame that says so."""
    calls = [frame for frame in frames if frame.short.startswith(_C10D) and frame.function not in _INSIDE]
    if calls and calls[0].function in _OBJECTS:
        return "own", "", calls[0]
    if calls:
        starts = [frame for frame in calls if frame.function in _STORE]
        if starts:  # told as the call that the user knows, and placed in the innermost
            return "store", starts[-1].function, starts[0]
        return "collective", calls[0].function, calls[0]
    if not frames:
        return "unknown", "", None
    for frame in frames:
        kind = _KINDS.get((_file(frame), frame.function.rpartition(".")[2]))
        if kind:
            return kind, frame.function.rpartition(".")[2] if kind in ("collective", "store") else "", frame
    waits = frames[0].function.endswith("_ModuleLock.acquire")  # for another thread that imports the same
    if any(frame.file.startswith("<frozen importlib") for frame in frames) and not waits:
        return "importing", "", frames[0]
    return "own", "", frames[0]


def _file(frame: Frame) -> str:
    return "torch/distributed/checkpoint" if frame.short.startswith("torch/distributed/checkpoint") else frame.short


_KINDS = {
    # DistributedDataParallel's, at its construction and of buffers (batch norm) at each step: they call C++ themselves
    ("torch/distributed/utils.py", "_verify_param_shape_across_processes"): "collective",
    ("torch/distributed/utils.py", "_sync_params_and_buffers"): "collective",
    ("torch/nn/parallel/distributed.py", "_distributed_broadcast_coalesced"): "collective",
    ("torch/distributed/pipelining/schedules.py", "_wait_batch_p2p"): "collective",
    ("torch/distributed/rendezvous.py", "_create_c10d_store"): "store",
    ("torch/utils/data/dataloader.py", "_try_get_data"): "loader",
    ("torch/serialization.py", "save"): "saving",
    ("torch/serialization.py", "load"): "loading",
    ("torch/distributed/checkpoint", "save"): "saving",
    ("torch/distributed/checkpoint", "load"): "loading",
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("torch/cuda/__init__.py", "synchronize"): "gpu",
    ("torch/cuda/streams.py", "synchronize"): "gpu",
}
