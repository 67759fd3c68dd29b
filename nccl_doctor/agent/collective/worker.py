"""The worker: one process per rank. The same module under nccl-doctor's own launcher, torchrun, srun and mpirun.

Stages, each with its own limit: import, store, process-group, first-collective, then one per measurement. Ranks agree
through the TCPStore, never through the backend that is being measured. Rank 0 reports the results of all.
"""

import contextlib
import datetime
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Dict, Optional

from . import gemm, group, pairs, sockets, world
from .board import Board
from .channel import Progress, Sink
from .errors import PlannedError
from .measuring import Measuring
from .operations import Me
from .ranks import Identity

PLAN_DEFAULTS: Dict[str, Any] = {
    "collectives": [],  # names of OPERATIONS, in order
    "sizes": [],  # bytes
    "dtype": "float32",
    "op": "sum",
    "root": 0,
    "backend": "gloo",
    "modes": [],  # in, out; empty: the native one of each collective
    "warmup": 3,
    "iters": 0,  # 0: as many as the budget allows
    "min_iters": 5,
    "max_iters": 1000,
    "budget_s": 30.0,  # for all measurements together
    "limit_s": 60.0,  # for any one step
    "import_limit_s": 180.0,  # a first import of torch over NFS is slow
    "check": True,
    "cuda_graph": False,
    "links": 0,  # bytes to exchange between host pairs; 0: not measured
    "gemm": 0,  # edge of the square matrices; 0: none
    "seed": 20,
    "expect_world": 0,  # 0: whatever the launcher says
    "expect_per_host": 0,  # ranks on each host; 0: whatever the launcher says
    "same_gpu": False,  # several ranks on one GPU were asked for
    "log_file": None,  # inside another launcher: the file with NCCL's log ("" if there is none) goes to rank 0
}


class Worker:
    """One rank's run through the plan."""

    def __init__(self, plan: Dict[str, Any], me: Identity, sink: Sink) -> None:
        self.plan = dict(PLAN_DEFAULTS, **plan)
        self.identity = me
        self.me = Me(me.rank, me.world, int(self.plan["root"]))
        self.label = "rank %d on %s" % (me.rank, socket.gethostname())
        self.limit_s = float(self.plan["limit_s"])
        self.import_limit_s = float(self.plan["import_limit_s"])
        # Inside another launcher nobody ends a process whose interpreter hangs.
        backstop_s = 60.0 + 10 * float(self.plan["budget_s"]) if self.plan["log_file"] is not None else 0.0
        self.progress = Progress(me.rank, sink, backstop_s=backstop_s)
        self.generation = 0  # of the process group: a size that lacks memory costs one
        self.path: Optional[Dict[str, Any]] = None

    def run(self) -> int:
        """All stages; returns the exit status. Every failure is an ``error`` event that names its stage."""
        try:
            self._import()
            self._open_store()
            self._gather_world()
            if self.plan["gemm"]:
                gemm.measure(self)
            if self.plan["collectives"] or self.plan["links"]:
                group.form(self)
                self._first_collective()
                self._tell_path()
                if self.plan["links"]:
                    pairs.measure(self)
                Measuring(self).run()
            self._close()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be told with its stage
            self._tell_error(error)
            return 1
        return 0

    def _tell_error(self, error: Exception) -> None:
        kind = getattr(error, "kind", "") or type(error).__name__
        where = self.progress.where()
        missing = getattr(error, "missing", None)
        self.progress.tell("error", kind=kind, text=str(error)[:4000], missing=missing, **where)
        if not isinstance(error, PlannedError) or error.__cause__ is not None:  # else its text says it all
            with contextlib.suppress(Exception):
                import traceback

                traceback.print_exc()
        self.progress.finish()

    def _import(self) -> None:
        self.progress.stage("import", self.import_limit_s)
        try:
            import torch
            import torch.distributed
        except ImportError as error:
            raise PlannedError("torch-missing", "%s (Python %s)" % (error, sys.executable)) from error
        dist: Any = torch.distributed
        if not dist.is_available():
            raise PlannedError("backend-missing", "this torch (%s) was built without distributed" % torch.__version__)
        self.torch, self.dist = torch, dist
        backend = self.plan["backend"]
        if backend == "nccl":
            if not dist.is_nccl_available():
                raise PlannedError("backend-missing", "this torch (%s) was built without NCCL" % torch.__version__)
            if not torch.cuda.is_available():
                raise PlannedError("no-gpu", "torch %s sees no GPU here, and NCCL needs one" % torch.__version__)
            self._take_gpu()
        else:
            if not dist.is_gloo_available():
                raise PlannedError("backend-missing", "this torch (%s) was built without gloo" % torch.__version__)
            self.device = torch.device("cpu")
            if self.plan["gemm"] and not self.plan["collectives"] and torch.cuda.is_available():
                self._take_gpu()
            # As torchrun does: copies inside gloo's calls must not wait for each other's threads on a busy host.
            torch.set_num_threads(1)
        dtype = getattr(torch, self.plan["dtype"], None)
        if dtype is None:
            raise PlannedError("dtype", "torch %s has no dtype %s" % (torch.__version__, self.plan["dtype"]))
        self.dtype = dtype
        self.item_bytes = torch.empty(0, dtype=dtype).element_size()

    def _take_gpu(self) -> None:
        cuda, local_rank = self.torch.cuda, self.identity.local_rank
        devices = cuda.device_count()
        # Launchers may show each process one GPU alone (srun --gpus-per-task=1). If all were shown the same one, the
        # ranks' GPU ids tell.
        if local_rank >= devices and devices != 1 and not self.plan["same_gpu"]:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise PlannedError(
                "no-gpu",
                "local rank %d, but torch sees %d GPUs here%s: no more than %d ranks fit on this host"
                % (
                    local_rank,
                    devices,
                    "" if visible is None else " (CUDA_VISIBLE_DEVICES=%s)" % visible[:200],
                    devices,
                ),
            )
        self.device = self.torch.device("cuda", local_rank % devices)
        self.take_device()

    def take_device(self) -> None:
        """Make this rank's GPU the calling thread's. A new thread has the first GPU, and its first call to CUDA, be it
        only a question about an event, opens half a gigabyte there: on one GPU for all ranks of a host."""
        self.torch.cuda.set_device(self.device)

    def _open_store(self) -> None:
        """Rank 0 opens the store and the others connect; while rank 0 may still import torch, they try again."""
        me = self.identity
        serves = me.rank == 0 and not me.store_is_hosted
        limit = datetime.timedelta(seconds=max(1.0, self.limit_s - 1.0))
        detail, end = "%s port %d" % (me.master_addr, me.master_port), time.monotonic() + self.import_limit_s
        door = ""
        while True:
            self.progress.stage("store", self.limit_s + 5.0, detail)  # torch speaks first: then it may be tried again
            try:
                self.store = self.connect(limit, serves)
                break
            except Exception as error:  # torch raises RuntimeError, DistNetworkError or DistStoreError, by version
                text = str(error)
                before, door = door, sockets.knock(me.master_addr, me.master_port)
                # One that is open now may have been opened just now; where that was so before, it is no store.
                if not serves and time.monotonic() < end and (door == "refused" or (door == "open" != before)):
                    continue
                taken = serves and ("EADDRINUSE" in text or "ddress already in use" in text)
                raise PlannedError("port-in-use" if taken else "store", text) from error
        self.board = Board(self.store, me, max(1.0, self.limit_s - 1.0))

    def connect(self, limit: datetime.timedelta, serves: bool = False) -> Any:
        """A connection to the store, whose every wait has the limit."""
        me = self.identity
        store = self.dist.TCPStore(
            me.master_addr, me.master_port, me.world, serves, timeout=limit, wait_for_workers=False
        )
        return self.dist.PrefixStore("nccl-doctor/%s" % me.attempt, store)

    def _gather_world(self) -> None:
        record = world.describe(self)
        patience_s = self.import_limit_s + self.limit_s  # the last one may still import torch
        self.progress.stage("store", patience_s, "waiting for all ranks")
        self.board.limit(patience_s - 1.0)
        try:
            records = self.board.gather("world", record)
        except Exception as error:
            gone = self.board.missing("world")
            text = "%d of %d ranks never reached the store: %s" % (len(gone), self.me.world, gone[:64])
            raise PlannedError("ranks-missing", text, gone) from error
        if not self.me.rank:
            expected = int(self.plan["expect_world"]), int(self.plan["expect_per_host"])
            problem = world.problem(records, *expected, same_gpu=bool(self.plan["same_gpu"]))
            self.board.publish("world/verdict", problem)
            self.progress.tell("world", ranks=records, world=self.me.world, launcher=self.identity.launcher)
        problem = self.board.read("world/verdict")
        if problem:
            raise PlannedError("world", problem)
        self.board.limit(max(1.0, self.limit_s - 1.0))

    def _first_collective(self) -> None:
        self.progress.stage("first-collective", self.limit_s, "all-reduce of one element")
        value = self.torch.full((1,), float(self.me.rank + 1), device=self.device)
        self.dist.all_reduce(value)
        self.wait()
        want = self.me.world * (self.me.world + 1) / 2
        if float(value.item()) != want:
            raise PlannedError("wrong-result", "the sum of 1..%d came out as %r" % (self.me.world, float(value.item())))
        self.board.gather("first", True)

    def _tell_path(self) -> None:
        if self.plan["backend"] != "gloo":
            return
        used = sockets.connections(self.identity.master_port)
        facts = sockets.interface_facts({item["interface"] for item in used if item["interface"]})
        self.path = {"connections": used, "interfaces": facts, "host": socket.gethostname()}
        self.progress.tell("path", **self.path)

    def _gather_logs(self) -> None:
        """Give rank 0 what it cannot see when no launcher of ours collects it: each rank's path and NCCL log."""
        text = ""
        if self.plan["log_file"]:
            with contextlib.suppress(OSError), open(self.plan["log_file"], errors="replace") as stream:
                text = stream.read()
        record = {"path": self.path, "output": text[:200000], "output_cut": max(0, len(text) - 200000)}
        for rank, value in enumerate(self.board.gather("logs", record)):
            self.progress.tell("rank-log", of=rank, **value)

    def _close(self) -> None:
        self.progress.stage("end", self.limit_s)
        if self.plan["log_file"] is not None:
            self._gather_logs()
        self.board.gather("end", True)
        if not self.me.rank:
            self.board.publish("end/decision", True)
        self.board.read("end/decision")
        # Not destroy_process_group(): with NCCL it can hang where everything else worked; the process ends anyway.
        self.progress.tell("done", stage="end")
        self.progress.finish()
        if not self.me.rank and not self.identity.store_is_hosted:
            # The store dies with rank 0: let the others read the last key first.
            limit = time.monotonic() + 5.0
            self.store.set("left/0", "1")
            while time.monotonic() < limit and self.board.missing("left"):
                time.sleep(0.01)
        else:
            self.store.set("left/%d" % self.me.rank, "1")

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()


def die_with_parent() -> None:
    """End when the launcher ends: at EOF on stdin, or when the kernel says that the parent died."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

    def wait_for_end() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os._exit(75)

    threading.Thread(target=wait_for_end, daemon=True, name="nccl-doctor-lifeline").start()


def main(job: Dict[str, Any]) -> None:
    """Entry of a worker that nccl-doctor's launcher started; never returns."""
    from .channel import pipe_sink

    die_with_parent()
    import faulthandler

    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    sink = pipe_sink()
    status = Worker(job["plan"], Identity(**job["identity"]), sink).run()
    sys.stderr.flush()
    # Not a normal exit: threads of gloo, NCCL and the watchdog must not be waited for.
    os._exit(status)
