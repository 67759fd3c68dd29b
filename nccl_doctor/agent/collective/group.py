"""The process group of the backend under test: formed, left, and got out of where another rank has given up."""

import contextlib
import datetime
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from .board import is_set

if TYPE_CHECKING:
    from .worker import Worker

# Errors and hangs are this program's business: left to themselves, torch's threads end the process as soon as another rank
# aborts its communicator, when only a size was to end, and leave files behind.
OWN_WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def form(worker: "Worker") -> None:
    """Form the group of all ranks, under a name of its own: a size that lacks memory costs one."""
    worker.progress.stage("process-group", worker.limit_s, worker.plan["backend"])
    nccl = worker.plan["backend"] == "nccl"
    if nccl:
        # PyTorch 2.15 and later bind the group to the GPU that LOCAL_RANK names, whatever set_device said; without it, to
        # one by the rank in the whole world, which on hosts that use some of their GPUs is another.
        os.environ.update(OWN_WATCHDOG, LOCAL_RANK=str(worker.device.index))
    worker.dist.init_process_group(
        worker.plan["backend"],
        store=worker.dist.PrefixStore("group/%d" % worker.generation, worker.store),
        rank=worker.me.rank,
        world_size=worker.me.world,
        # The watchdog must speak first: it knows the stage.
        timeout=datetime.timedelta(seconds=worker.limit_s + 5.0),
    )
    if nccl:
        group = worker.dist.distributed_c10d._get_default_group()
        threading.Thread(target=_free_when_ended, args=(worker, worker.generation, group), daemon=True).start()


def leave(worker: "Worker") -> None:
    """Close this rank's connections: others that wait for it in a collective get an error for it."""
    abort_all = getattr(worker.dist.distributed_c10d, "_abort_process_group", None)
    if worker.plan["backend"] == "nccl" and abort_all is not None:
        abort_all()
    else:  # with NCCL, torch 2.5 and before: there, this is an abort; later ones wait for the others
        worker.dist.destroy_process_group()


def abort(worker: "Worker", group: Any) -> None:
    """End all that NCCL does for a group, whatever it waits for: ``abort``, or ``_shutdown`` of torch 2.5 and before."""
    backend = group._get_backend(worker.device)
    getattr(backend, "abort" if hasattr(backend, "abort") else "_shutdown")()


def _free_when_ended(worker: "Worker", generation: int, group: Any) -> None:
    """With NCCL, a rank that waits for one that gave up waits in a kernel: only an abort from here gets it out.

    Not the watchdog's business, as the store may block; and a connection of its own, as the main thread blocks its.
    """
    with contextlib.suppress(Exception):  # it can only help
        worker.take_device()
        store = worker.connect(datetime.timedelta(seconds=max(1.0, worker.limit_s - 1.0)))
        while worker.generation == generation:
            if is_set(store, "ended/%d" % generation):
                abort(worker, group)
                return
            time.sleep(1.0)
