"""Collectives, size by size: buffers, one checked call, warm-up, the timed loop, and the report of all ranks."""

import base64
import contextlib
import functools
import gc
import time
from array import array
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import group, memory, operations, timing
from .board import SizeEnded, is_set
from .errors import PlannedError, is_lack_of_memory, is_refusal, words_of_lack
from .operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from .worker import Worker


class Case(NamedTuple):
    """One size of a collective, measured in one way."""

    operation: Operation
    mode: str
    asked: int  # bytes
    size: int  # bytes that are really moved
    part: int  # elements of each rank

    @property
    def key(self) -> str:
        """What begins its keys on the board."""
        return "%s/%d/%s" % (self.operation.name, self.asked, self.mode)

    @property
    def label(self) -> str:
        """What it is called."""
        way = {"in": " in place", "copy": " with copy"}.get(self.mode, "")
        return "%s %d B%s" % (self.operation.name, self.asked, way)


class Measuring:
    """All collectives of the plan, on this rank. Every rank takes the same decisions, by the board."""

    def __init__(self, worker: "Worker") -> None:
        self.worker, self.plan, self.me, self.board = worker, worker.plan, worker.me, worker.board
        self.torch, self.device, self.progress = worker.torch, worker.device, worker.progress
        self.left = 0  # measurements to come
        self.used_s = 0.0
        self.begun = 0.0
        self.time_is_up = False

    def run(self) -> None:
        """Measure what the plan names; tell what cannot be measured, and why."""
        wanted = [(OPERATIONS[name], self._modes(OPERATIONS[name])) for name in self.plan["collectives"]]
        self.left = sum(len(modes) for _, modes in wanted) * len(self.plan["sizes"])
        for operation, modes in wanted:
            self._collective(operation, modes)

    def _modes(self, operation: Operation) -> List[str]:
        wanted = self.plan["modes"]
        if not wanted:
            return [operation.modes[0]]
        names = {"in": ("in",), "out": ("out", "copy")}
        return [mode for want in wanted for mode in operation.modes if mode in names[want]]

    def _collective(self, operation: Operation, modes: List[str]) -> None:
        if not modes:
            self._skip(operation, 0, "", "torch.distributed has no such call for %s" % operation.name)
            return
        checker = None
        if self.plan["check"]:
            checker = operations.Checker(
                self.torch, operation, self.plan["dtype"], self.plan["op"], self.me, int(self.plan["seed"])
            )
        refused = ""
        if operation.name == "sendrecv" and self.me.world == 1:
            refused = "one rank has no neighbour to send to"
        for size in self.plan["sizes"]:
            for mode in modes:
                refused = refused or self._measure(operation, size, mode, checker)
                if refused:  # so it is for all sizes
                    self._skip(operation, size, mode, refused)
                self.left -= 1

    def _skip(self, operation: Operation, size: int, mode: str, reason: str) -> None:
        if not self.me.rank:
            self.progress.tell("skip", collective=operation.name, size=size, mode=mode, reason=reason)

    def _measure(self, operation: Operation, asked: int, mode: str, checker: Any) -> str:
        """Measure one size; why the backend cannot do the collective at all, else empty."""
        count = operations.count_of(operation, asked, self.worker.item_bytes, self.me.world)
        size = operations.size_of(operation, count, self.worker.item_bytes, self.me.world)
        if not count:
            parts = " for each of %d ranks" % self.me.world if operation.split else ""
            self._skip(operation, asked, mode, "smaller than one %s%s" % (self.plan["dtype"], parts))
            return ""
        if self.time_is_up:
            self._skip(operation, asked, mode, "the time budget of %g s is used up" % float(self.plan["budget_s"]))
            return ""
        case = Case(operation, mode, asked, size, count)
        key, label = case.key, case.label
        self.progress.stage("measure", self.worker.limit_s, label)
        self.begun = time.monotonic()
        reason = ""
        try:
            buffers = self._allocate(case, checker)
            if buffers is None:
                return ""
            call = operations.caller(self.worker.dist, operation, mode, buffers, self.me, self.plan["op"])
            refused, wrong = self._first_call(key, call, checker, buffers, count)
            if refused:
                return refused
            if self.plan["cuda_graph"]:
                call = self._graph(call)
                if checker is not None:  # what is timed is what is checked
                    checker.prepare(mode, buffers)
                _, wrong = self._first_call(key + "/graph", call, checker, buffers, count)
            iterations, estimate_s = self._warm_up(key, call, label)
            budget_s = float(self.plan["budget_s"])
            if iterations > int(self.plan["min_iters"]) and iterations * estimate_s > 2 * budget_s:
                # More than the budget allows was asked for: it would be ended as stuck.
                words = "%d calls of %.3g s take over twice the time budget of %g s" % (
                    iterations,
                    estimate_s,
                    budget_s,
                )
                self._skip(operation, asked, mode, words)
                return ""
            calls = timing.calls_per_sample(self.device, iterations, estimate_s)
            limit_s = self.worker.limit_s + 3 * iterations * estimate_s
            times = timing.timed(self.worker, call, iterations, label, limit_s, calls)
            self._report(case, times, wrong, calls)
        except Exception as error:
            reason = self._no_memory(key, error)
            if not reason:
                raise
        finally:
            buffers = call = None  # type: ignore[assignment]
            self.used_s += time.monotonic() - self.begun
        if reason:  # out of the handler, whose traceback holds on to the memory
            self._end_size(case, reason)
        return ""

    def _no_memory(self, key: str, error: Exception) -> str:
        """Which rank had no memory, where that is what this error comes from; else empty."""
        reason = str(error) if isinstance(error, SizeEnded) else ""
        if is_lack_of_memory(error):
            reason = "%s: %s" % (self.worker.label, words_of_lack(error, "while it ran"))
            self.board.publish("ended/%d" % self.worker.generation, reason)
        elif not reason:
            # A connection that broke: it does so after the reason was published.
            with contextlib.suppress(Exception):
                if is_set(self.board.store, "ended/%d" % self.worker.generation):
                    reason = self.board.read("ended/%d" % self.worker.generation)
        if reason:
            points = ("/first", "/graph/first", "/iterations", "/times")
            self.board.give_up([key + point for point in points], reason)
        return reason

    def _end_size(self, case: Case, reason: str) -> None:
        """Leave the process group, whose state nobody knows any more, and form another for the sizes to come."""
        self.progress.step("ending this size: out of memory", self.worker.limit_s)
        group.leave(self.worker)
        gc.collect()
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        reason = self.board.decide(case.key + "/over", reason, lambda values: values[0])
        self._skip(case.operation, case.asked, case.mode, reason)
        self.worker.generation += 1
        group.form(self.worker)

    def _allocate(self, case: Case, checker: Any) -> Optional[Any]:
        operation, mode = case.operation, case.mode
        needed = operations.buffer_bytes(operation, mode, case.part, self.worker.item_bytes, self.me)
        trouble = memory.lack(self.worker, needed)
        buffers = None
        if not trouble:
            try:
                empty = functools.partial(self.torch.empty, dtype=self.worker.dtype, device=self.device)
                buffers = operations.allocate(empty, operation, mode, case.part, self.me)
                # Filled before the vote: memory that was promised may still not be there.
                if checker is not None:
                    checker.prepare(mode, buffers)
                else:
                    buffers.send.zero_()
                self.worker.wait()
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_lack_of_memory(error):
                    raise
                trouble = words_of_lack(error)
        verdict = self.board.decide(
            case.key + "/memory",
            "%s: %s" % (self.worker.label, trouble) if trouble else "",
            lambda values: next(filter(None, values), ""),
        )
        if verdict:
            self._skip(operation, case.asked, mode, verdict)
            return None
        return buffers

    def _first_call(
        self, key: str, call: Callable[[], None], checker: Any, buffers: Any, count: int
    ) -> Tuple[str, Optional[int]]:
        """Run once, checked; returns why the backend refuses it, and how many elements are wrong here."""
        refused, wrong = "", None
        try:
            call()
            self.worker.wait()
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

    def _warm_up(self, key: str, call: Callable[[], None], label: str) -> Tuple[int, float]:
        """Run warm-up calls, then agree on the number of timed ones from the slowest rank's seconds per call."""
        estimates = []
        for _ in range(max(1, int(self.plan["warmup"]))):
            self.progress.step(label + ", warm-up", self.worker.limit_s)
            started = time.perf_counter()
            call()
            self.worker.wait()
            estimates.append(time.perf_counter() - started)
        share = max(0.0, float(self.plan["budget_s"]) - self.used_s) / max(1, self.left)

        def choose(values: List[float]) -> List[float]:
            slowest = max(max(values), 1e-7)
            affordable = max(int(self.plan["min_iters"]), min(int(self.plan["max_iters"]), int(share * 0.8 / slowest)))
            return [int(self.plan["iters"]) or affordable, slowest]

        iterations, slowest_s = self.board.decide(key + "/iterations", min(estimates), choose)
        return int(iterations), float(slowest_s)

    def _report(self, case: Case, times: List[float], wrong: Optional[int], calls: int) -> None:
        self.progress.step("gathering times", self.worker.limit_s)
        packed = base64.b64encode(array("d", times).tobytes()).decode()
        records: List[Dict[str, Any]] = []

        def keep(values: List[Dict[str, Any]]) -> bool:
            records.extend(values)
            # A size's checks and fewest iterations may overrun its share, hence the factor of two.
            return self.used_s + time.monotonic() - self.begun > 2 * float(self.plan["budget_s"])

        # Decided, not only gathered: a rank that gave up in the loop must stop those that got through it. And rank 0
        # alone decides on time: clocks differ, and no rank may measure what another one skips.
        self.time_is_up = self.board.decide(case.key + "/times", {"times": packed, "wrong": wrong}, keep)
        if self.me.rank:
            return
        series = [array("d", base64.b64decode(record["times"])) for record in records]
        means = [sum(values) / len(values) for values in series]
        self.progress.tell(
            "size",
            collective=case.operation.name,
            mode=case.mode,
            size=case.size,
            asked=case.asked,
            count=case.part,
            root=self.me.root if case.operation.rooted else -1,
            iterations=len(times) * calls,
            calls_per_sample=calls,
            rank_means_us=[round(value * 1e6, 3) for value in means],
            # The slowest rank of each iteration: what a training step would have waited for.
            iteration_us=[round(max(column) * 1e6, 3) for column in zip(*series)],
            wrong=[record["wrong"] for record in records] if self.plan["check"] else None,
        )
