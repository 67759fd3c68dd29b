"""The worker: one process per rank. The same module under nccl-doctor's own launcher, torchrun, srun and mpirun.

Stages, each with its own limit: import, store, process-group, first-collective, then one per measurement. Ranks agree
through the TCPStore, never through the backend that is being measured. Rank 0 reports the results of all.
"""

import base64
import contextlib
import datetime
import gc
import os
import signal
import socket
import sys
import threading
import time
from array import array
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import gemm, operations, pairs, sockets, world
from .board import Board, SizeEnded, is_set
from .channel import Progress, Sink
from .errors import amount, available_memory, is_lack_of_memory, is_refusal, words_of_lack
from .operations import OPERATIONS, Me, Operation
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
    "same_gpu": False,  # several ranks on one GPU were asked for
    "log_file": None,  # inside another launcher: the file with NCCL's log ("" if there is none) goes to rank 0
}

# Between two events of the device: recording one costs some microseconds, which would count at each call of a small size.
SAMPLE_S, LEAST_SAMPLES = 5e-4, 20
# Errors and hangs are this program's business: left to themselves, torch's threads end the process as soon as another rank
# aborts its communicator, when only a size was to end, and leave files behind.
OWN_WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class PlannedError(Exception):
    """A failure with a known kind: ``torch-missing``, ``backend-missing``, ``store``, ``world`` ..."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Worker:
    """One rank's run through the plan."""

    def __init__(self, plan: Dict[str, Any], me: Identity, sink: Sink) -> None:
        self.plan = dict(PLAN_DEFAULTS, **plan)
        self.identity = me
        self.me = Me(me.rank, me.world, int(self.plan["root"]))
        self.limit_s = float(self.plan["limit_s"])
        self.import_limit_s = float(self.plan["import_limit_s"])
        # Inside another launcher nobody ends a process whose interpreter hangs.
        backstop_s = 60.0 + 10 * float(self.plan["budget_s"]) if self.plan["log_file"] is not None else 0.0
        self.progress = Progress(me.rank, sink, backstop_s=backstop_s)
        self.used_s = 0.0
        self.begun = 0.0
        self.time_is_up = False
        self.generation = 0  # of the process group: a size that lacks memory costs one
        self.path: Optional[Dict[str, Any]] = None

    # ---- the road ----

    def run(self) -> int:
        """All stages; returns the exit status. Every failure is an ``error`` event that names its stage."""
        try:
            self._import()
            self._open_store()
            self._gather_world()
            if self.plan["gemm"]:
                gemm.measure(self)
            if self.plan["collectives"] or self.plan["links"]:
                self._open_group()
                self._first_collective()
                self._tell_path()
                if self.plan["links"]:
                    pairs.measure(self)
                for name in self.plan["collectives"]:
                    self._collective(OPERATIONS[name])
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
                "local rank %d, but torch sees %d GPUs here%s"
                % (local_rank, devices, "" if visible is None else " (CUDA_VISIBLE_DEVICES=%s)" % visible[:200]),
            )
        self.device = self.torch.device("cuda", local_rank % devices)
        cuda.set_device(self.device)

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
                store = self.dist.TCPStore(
                    me.master_addr, me.master_port, me.world, serves, timeout=limit, wait_for_workers=False
                )
                break
            except Exception as error:  # torch raises RuntimeError, DistNetworkError or DistStoreError, by version
                text = str(error)
                before, door = door, sockets.knock(me.master_addr, me.master_port)
                # One that is open now may have been opened just now; where that was so before, it is no store.
                if not serves and time.monotonic() < end and (door == "refused" or (door == "open" != before)):
                    continue
                taken = serves and ("EADDRINUSE" in text or "ddress already in use" in text)
                raise PlannedError("port-in-use" if taken else "store", text) from error
        self.store = self.dist.PrefixStore("nccl-doctor/%s" % me.attempt, store)
        self.board = Board(self.store, me, max(1.0, self.limit_s - 1.0))

    def _gather_world(self) -> None:
        record = world.describe(self)
        patience_s = self.import_limit_s + self.limit_s  # the last one may still import torch
        self.progress.stage("store", patience_s, "waiting for all ranks")
        self.board.limit(patience_s - 1.0)
        try:
            records = self.board.gather("world", record)
        except Exception as error:
            gone = self.board.missing("world")
            failure = PlannedError(
                "ranks-missing", "%d of %d ranks never reached the store: %s" % (len(gone), self.me.world, gone[:64])
            )
            failure.missing = gone  # type: ignore[attr-defined]
            raise failure from error
        if not self.me.rank:
            problem = world.problem(records, int(self.plan["expect_world"]), bool(self.plan["same_gpu"]))
            self.board.publish("world/verdict", problem)
            self.progress.tell("world", ranks=records, world=self.me.world, launcher=self.identity.launcher)
        problem = self.board.read("world/verdict")
        if problem:
            raise PlannedError("world", problem)
        self.board.limit(max(1.0, self.limit_s - 1.0))

    def _open_group(self) -> None:
        self.progress.stage("process-group", self.limit_s, self.plan["backend"])
        if self.plan["backend"] == "nccl":
            os.environ.update(OWN_WATCHDOG)
        self.dist.init_process_group(
            self.plan["backend"],
            store=self.dist.PrefixStore("group/%d" % self.generation, self.store),
            rank=self.me.rank,
            world_size=self.me.world,
            # The watchdog must speak first: it knows the stage.
            timeout=datetime.timedelta(seconds=self.limit_s + 5.0),
        )
        if self.plan["backend"] == "nccl":
            group = self.dist.distributed_c10d._get_default_group()
            threading.Thread(target=self._free_when_ended, args=(self.generation, group), daemon=True).start()

    def _free_when_ended(self, generation: int, group: Any) -> None:
        """With NCCL, a rank that waits for one that gave up waits in a kernel: only an abort from here gets it out.

        Not the watchdog's business, as the store may block; and a connection of its own, as the main thread blocks its.
        """
        me, limit = self.identity, datetime.timedelta(seconds=max(1.0, self.limit_s - 1.0))
        with contextlib.suppress(Exception):  # it can only help
            store = self.dist.TCPStore(me.master_addr, me.master_port, me.world, False, limit, wait_for_workers=False)
            store = self.dist.PrefixStore("nccl-doctor/%s" % me.attempt, store)
            while self.generation == generation:
                if is_set(store, "ended/%d" % generation):
                    group._get_backend(self.device).abort()
                    return
                time.sleep(1.0)

    def _leave_group(self) -> None:
        """Close this rank's connections: others that wait for it in a collective get an error for it."""
        c10d = self.dist.distributed_c10d
        abort = getattr(c10d, "_abort_process_group", None)
        if self.plan["backend"] == "nccl" and abort is not None:
            abort()
            return
        if self.plan["backend"] == "nccl":  # torch before 2.6; destroying alone would wait for the others
            c10d._get_default_group()._get_backend(self.device).abort()
        self.dist.destroy_process_group()

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
        self.path = self._connections()
        self.progress.tell("path", **self.path)

    def _connections(self) -> Dict[str, Any]:
        used = sockets.connections(self.identity.master_port)
        facts = sockets.interface_facts({item["interface"] for item in used if item["interface"]})
        return {"connections": used, "interfaces": facts, "host": socket.gethostname()}

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

    # ---- one collective over all sizes ----

    def _modes(self, operation: Operation) -> List[str]:
        wanted = self.plan["modes"]
        if not wanted:
            return [operation.modes[0]]
        names = {"in": ("in",), "out": ("out", "copy")}
        return [mode for want in wanted for mode in operation.modes if mode in names[want]]

    def _collective(self, operation: Operation) -> None:
        checker = None
        if self.plan["check"]:
            checker = operations.Checker(
                self.torch, operation, self.plan["dtype"], self.plan["op"], self.me, int(self.plan["seed"])
            )
        modes = self._modes(operation)
        if operation.name == "sendrecv" and self.me.world == 1:
            self._skip(operation, 0, "", "one rank has no neighbour to send to")
            return
        if not modes:
            self._skip(operation, 0, "", "torch.distributed has no such call for %s" % operation.name)
            return
        total = len(self.plan["collectives"]) * len(self.plan["sizes"])
        for index, size in enumerate(self.plan["sizes"]):
            for mode in modes:
                left = total - self.plan["collectives"].index(operation.name) * len(self.plan["sizes"]) - index
                if not self._measure(operation, size, mode, checker, max(1, left * len(modes))):
                    return

    def _skip(self, operation: Operation, size: int, mode: str, reason: str) -> None:
        if not self.me.rank:
            self.progress.tell("skip", collective=operation.name, size=size, mode=mode, reason=reason)

    def _measure(self, operation: Operation, asked: int, mode: str, checker: Any, left: int) -> bool:
        """One size; False where the collective cannot be measured at all."""
        count = operations.count_of(operation, asked, self.item_bytes, self.me.world)
        size = operations.size_of(operation, count, self.item_bytes, self.me.world)
        label = "%s %d B%s" % (operation.name, asked, {"in": " in place", "copy": " with copy"}.get(mode, ""))
        if not count:
            parts = " for each of %d ranks" % self.me.world if operation.split else ""
            self._skip(operation, asked, mode, "smaller than one %s%s" % (self.plan["dtype"], parts))
            return True
        if self.time_is_up:
            self._skip(operation, asked, mode, "the time budget of %g s is used up" % float(self.plan["budget_s"]))
            return True
        self.progress.stage("measure", self.limit_s, label)
        key = "%s/%d/%s" % (operation.name, asked, mode)
        self.begun = time.monotonic()
        reason = ""
        try:
            buffers = self._allocate(key, operation, asked, mode, count, checker)
            if buffers is None:
                return True
            call = operations.caller(self.dist, operation, mode, buffers, self.me, self.plan["op"])
            refused, wrong = self._first_call(key, call, checker, buffers, count)
            if refused:
                self._skip(operation, asked, mode, refused)
                return False
            if self.plan["cuda_graph"]:
                call = self._graph(call)
                if checker is not None:  # what is timed is what is checked
                    checker.prepare(mode, buffers)
                _, wrong = self._first_call(key + "/graph", call, checker, buffers, count)
            iterations, estimate_s = self._warm_up(key, call, label, left)
            calls = self._calls_per_sample(iterations, estimate_s)
            times = self._timed(call, iterations, label, self.limit_s + 3 * iterations * estimate_s, calls)
            self._report(key, operation, size, asked, count, mode, times, wrong, calls)
        except Exception as error:
            reason = self._no_memory(key, error)
            if not reason:
                raise
        finally:
            buffers = call = None  # type: ignore[assignment]
            self.used_s += time.monotonic() - self.begun
        if reason:  # out of the handler, whose traceback holds on to the memory
            self._end_size(key, operation, asked, mode, reason)
        return True

    def _no_memory(self, key: str, error: Exception) -> str:
        """Which rank had no memory, where that is what this error comes from; else empty."""
        reason = str(error) if isinstance(error, SizeEnded) else ""
        if is_lack_of_memory(error):
            host = socket.gethostname()
            reason = "rank %d on %s: %s" % (self.me.rank, host, words_of_lack(error, "while it ran"))
            self.board.publish("ended/%d" % self.generation, reason)
        elif not reason:
            # A connection that broke: it does so after the reason was published.
            with contextlib.suppress(Exception):
                if is_set(self.board.store, "ended/%d" % self.generation):
                    reason = self.board.read("ended/%d" % self.generation)
        if reason:
            points = ("/first", "/graph/first", "/iterations", "/times")
            self.board.give_up([key + point for point in points], reason)
        return reason

    def _end_size(self, key: str, operation: Operation, asked: int, mode: str, reason: str) -> None:
        """Leave the process group, whose state nobody knows any more, and form another for the sizes to come."""
        self.progress.step("ending this size: out of memory", self.limit_s)
        self._leave_group()
        gc.collect()
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        reason = self.board.decide(key + "/over", reason, lambda values: values[0])
        self._skip(operation, asked, mode, reason)
        self.generation += 1
        self._open_group()

    def _allocate(
        self, key: str, operation: Operation, asked: int, mode: str, count: int, checker: Any
    ) -> Optional[Any]:
        me = self.me
        needed = operations.buffer_bytes(operation, mode, count, self.item_bytes, me.world, me.rank, me.root)
        trouble = self._too_large(needed)
        buffers = None
        if not trouble:
            try:
                buffers = operations.allocate(self.torch, operation, mode, count, self.dtype, self.device, self.me)
                # Filled before the vote: memory that was promised may still not be there.
                if checker is not None:
                    checker.prepare(mode, buffers)
                else:
                    buffers.send.zero_()
                self.wait()
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_lack_of_memory(error):
                    raise
                trouble = words_of_lack(error)
        host = socket.gethostname()
        verdict = self.board.decide(
            key + "/memory",
            "rank %d on %s: %s" % (self.me.rank, host, trouble) if trouble else "",
            lambda values: next(filter(None, values), ""),
        )
        if verdict:
            self._skip(operation, asked, mode, verdict)
            return None
        return buffers

    def _too_large(self, needed: int) -> str:
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()  # or the last size's buffers, kept for reuse, would count as taken
            free = int(self.torch.cuda.mem_get_info(self.device)[0])
            room, what = free - (256 << 20), "GPU memory"
        else:
            ranks = max(1, self.identity.local_world)
            room = int(available_memory() * 0.8 / ranks)
            what = "memory (80 %% of what is free, for %d rank%s here)" % (ranks, "" if ranks == 1 else "s")
        if needed <= room:
            return ""
        return "needs %s, and %s of %s is available" % (amount(needed), amount(max(0, room)), what)

    def _first_call(
        self, key: str, call: Callable[[], None], checker: Any, buffers: Any, count: int
    ) -> Tuple[str, Optional[int]]:
        """Run once, checked; returns why the backend refuses it, and how many elements are wrong here."""
        refused, wrong = "", None
        try:
            call()
            self.wait()
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if is_lack_of_memory(error) or not is_refusal(error):
                raise
            refused = "%s does not do this: %s" % (self.plan["backend"], str(error).splitlines()[0][:300])
        if checker is not None and not refused:
            wrong = checker.wrong(buffers, count)
        refusal = self.board.decide(
            key + "/first", refused, lambda values: values[0] if all(values) else "",
        )  # fmt: skip
        if refused and not refusal:
            raise PlannedError("unsupported", refused + " (but other ranks did it)")
        return refusal, wrong

    def _graph(self, call: Callable[[], None]) -> Callable[[], None]:
        graph = self.torch.cuda.CUDAGraph()
        # Only this thread's calls are held against the capture: NCCL's and torch's own threads go on.
        with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
        replay: Callable[[], None] = graph.replay
        return replay

    def _warm_up(self, key: str, call: Callable[[], None], label: str, left: int) -> Tuple[int, float]:
        """Run warm-up calls, then agree on the number of timed ones from the slowest rank's seconds per call."""
        self.progress.step(label + ", warm-up", self.limit_s)
        rounds = max(1, int(self.plan["warmup"]))
        estimates = []
        for _ in range(rounds):
            started = time.perf_counter()
            call()
            self.wait()
            estimates.append(time.perf_counter() - started)
        share = max(0.0, float(self.plan["budget_s"]) - self.used_s) / left

        def choose(values: List[float]) -> List[float]:
            slowest = max(max(values), 1e-7)
            affordable = max(int(self.plan["min_iters"]), min(int(self.plan["max_iters"]), int(share * 0.8 / slowest)))
            return [int(self.plan["iters"]) or affordable, slowest]

        iterations, slowest_s = self.board.decide(key + "/iterations", min(estimates), choose)
        return int(iterations), float(slowest_s)

    def _calls_per_sample(self, iterations: int, estimate_s: float) -> int:
        """How many calls share one time. Reading a CPU's clock costs nothing; see ``SAMPLE_S`` for a device's."""
        if self.device.type != "cuda":
            return 1
        return max(1, min(int(SAMPLE_S / max(estimate_s, 1e-7)), iterations // LEAST_SAMPLES))

    def _timed(
        self, call: Callable[[], None], iterations: int, label: str, limit_s: float, calls: int = 1
    ) -> List[float]:
        """Seconds per call, back to back as nccl-tests does; all ranks start from a barrier. With a device, the mean of
        each ``calls`` calls."""
        if self.device.type == "cuda":
            return self._timed_cuda(call, iterations // calls, label, limit_s, calls)
        stamps: List[int] = []
        clock, keep = time.perf_counter_ns, stamps.append
        self.progress.step(label, limit_s, lambda: max(0, len(stamps) - 1))
        self.dist.barrier()  # nothing may stand between it and the first call, or the ranks start apart
        keep(clock())
        for _ in range(iterations):
            call()
            keep(clock())
        return [(after - before) * 1e-9 for before, after in zip(stamps, stamps[1:])]

    def _timed_cuda(
        self, call: Callable[[], None], samples: int, label: str, limit_s: float, calls: int
    ) -> List[float]:
        cuda = self.torch.cuda
        events = [cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        recorded: List[Any] = []

        def done() -> int:
            # One that was never recorded calls itself complete, so only recorded ones are asked, the latest first.
            number = len(recorded)
            while number and not recorded[number - 1].query():
                number -= 1
            return max(0, number - 1) * calls

        self.progress.step(label, limit_s, done)
        self.dist.barrier(device_ids=[self.device.index])
        cuda.synchronize()
        for number, event in enumerate(events):
            for _ in range(calls if number else 0):
                call()
            event.record()
            recorded.append(event)
        cuda.synchronize()
        return [before.elapsed_time(after) * 1e-3 / calls for before, after in zip(events, events[1:])]

    def _report(
        self,
        key: str,
        operation: Operation,
        size: int,
        asked: int,
        count: int,
        mode: str,
        times: List[float],
        wrong: Optional[int],
        calls: int,
    ) -> None:
        self.progress.step("gathering times", self.limit_s)
        packed = base64.b64encode(array("d", times).tobytes()).decode()
        records: List[Dict[str, Any]] = []

        def keep(values: List[Dict[str, Any]]) -> bool:
            records.extend(values)
            # A size's checks and fewest iterations may overrun its share, hence the factor of two.
            return self.used_s + time.monotonic() - self.begun > 2 * float(self.plan["budget_s"])

        # Decided, not only gathered: a rank that gave up in the loop must stop those that got through it. And rank 0
        # alone decides on time: clocks differ, and no rank may measure what another one skips.
        self.time_is_up = self.board.decide(key + "/times", {"times": packed, "wrong": wrong}, keep)
        if self.me.rank:
            return
        series = [array("d", base64.b64decode(record["times"])) for record in records]
        means = [sum(values) / len(values) for values in series]
        self.progress.tell(
            "size",
            collective=operation.name,
            mode=mode,
            size=size,
            asked=asked,
            count=count,
            root=self.me.root if operation.rooted else -1,
            iterations=len(times) * calls,
            calls_per_sample=calls,
            rank_means_us=[round(value * 1e6, 3) for value in means],
            # The slowest rank of each iteration: what a training step would have waited for.
            iteration_us=[round(max(column) * 1e6, 3) for column in zip(*series)],
            wrong=[record["wrong"] for record in records] if self.plan["check"] else None,
        )


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
