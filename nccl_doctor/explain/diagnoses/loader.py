"""DataLoader workers that died while they handed over a batch, or used CUDA."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.lines import speakers

_LOST = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError")
_AFTER_FORK = re.compile(r"CUDA error: initialization error|Cannot re-initialize (?:CUDA|HIP) in forked subprocess")
_HANDING_OVER = re.compile(r"torch/multiprocessing/reductions\.py|multiprocessing/resource_sharer\.py")


@diagnosis
def died_handing_over(case: Case) -> Iterable[Candidate]:
    """The connection that broke led from the DataLoader to its own worker, not to another rank.

    Tensors come from a worker as file descriptors over a local socket (multiprocessing's resource sharer). A worker
    that is killed in that moment shows as a reset connection; "DataLoader worker is killed" is then never printed.
    """
    for item in case.summary.tracebacks:
        in_loader = any("torch/utils/data/" in frame for frame in item.frames)
        if item.type in _LOST and in_loader and any(_HANDING_OVER.search(frame) for frame in item.frames):
            title = f"a DataLoader worker died while it handed over a batch ({item.type})"
            yield Candidate("app.dataloader-worker", 0.88, title, [item.hit], *speakers([item.hit]), final=True)
            return


@diagnosis
def cuda_after_a_fork(case: Case) -> Iterable[Candidate]:
    """A DataLoader worker, forked from a process that uses CUDA, cannot use it too.

    torch says so where a worker calls it first; CUDA itself says no more than "initialization error", and neither GPU nor
    driver is to blame. Without a stack it may be either.
    """
    for item in case.summary.tracebacks:
        if _AFTER_FORK.search(item.message) and any("torch/utils/data/_utils/" in frame for frame in item.frames):
            title = "a DataLoader worker, forked from a process that uses CUDA, uses it too"
            yield Candidate("app.dataloader-worker", 0.88, title, [item.hit], *speakers([item.hit]), final=True)
            return
    for hit in case.hits("cuda-call"):
        if "initialization error" in hit.text:
            title = (
                "CUDA does not initialise, as in a process that was forked from one that uses it (a DataLoader worker)"
            )
            yield Candidate("app.dataloader-worker", 0.42, title, [hit], *speakers([hit]))
            return
