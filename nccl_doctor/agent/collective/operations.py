"""The collectives: buffer sizes, how torch.distributed is called, and what each rank must hold afterwards.

Sizes are those of nccl-tests: ``size`` is the buffer that the bandwidth is computed from; for all-gather,
reduce-scatter, all-to-all, gather and scatter it is the whole of all ranks' parts, and a rank's part is ``size / n``.
"""

from typing import Any, Callable, Dict, NamedTuple, Tuple

from . import patterns


class Operation(NamedTuple):
    """One collective. ``modes`` are the ways it can be measured, the native one of torch.distributed first.

    ``in`` in place, ``out`` out of place, ``copy`` out of place by a copy followed by the in-place call, because torch
    has no other call for it (the copy is part of the time, and is named where the result is shown).
    """

    name: str
    split: bool  # the size is the sum of all ranks' parts
    reduces: bool
    rooted: bool
    modes: Tuple[str, ...]


OPERATIONS: Dict[str, Operation] = {
    item.name: item
    for item in (
        Operation("allreduce", False, True, False, ("in", "copy")),
        Operation("allgather", True, False, False, ("out", "in")),
        Operation("reducescatter", True, True, False, ("out", "in")),
        Operation("broadcast", False, False, True, ("in", "copy")),
        Operation("reduce", False, True, True, ("in", "copy")),
        Operation("alltoall", True, False, False, ("out",)),
        Operation("sendrecv", False, False, False, ("out",)),
        Operation("gather", True, False, True, ("out",)),
        Operation("scatter", True, False, True, ("out",)),
    )
}


def count_of(operation: Operation, size: int, item_bytes: int, world: int) -> int:
    """Elements per rank's part for a size in bytes, rounded down; 0 if the size is too small to give each rank one."""
    return size // item_bytes // (world if operation.split else 1)


def size_of(operation: Operation, count: int, item_bytes: int, world: int) -> int:
    """The size in bytes that a count stands for: what is really moved, and what is shown."""
    return count * item_bytes * (world if operation.split else 1)


class Me(NamedTuple):
    """This rank in its world."""

    rank: int
    world: int
    root: int


def elements(operation: Operation, count: int, me: Me) -> Tuple[int, int]:
    """Elements of this rank's send and receive buffers."""
    whole = count * me.world
    of_root = whole if me.rank == me.root else 0
    return {
        "allgather": (count, whole),
        "reducescatter": (whole, count),
        "alltoall": (whole, whole),
        "gather": (count, of_root),
        "scatter": (of_root, count),
    }.get(operation.name, (count, count))


def buffer_bytes(operation: Operation, mode: str, count: int, item_bytes: int, me: Me) -> int:
    """Bytes this rank must allocate."""
    send, receive = elements(operation, count, me)
    return item_bytes * (max(send, receive) if mode == "in" else send + receive)


class Buffers(NamedTuple):
    """Send and receive tensors of one rank; in place, one is a view of the other."""

    send: Any
    receive: Any


def allocate(empty: Callable[[int], Any], operation: Operation, mode: str, count: int, me: Me) -> Buffers:
    """The buffers of one measurement; raises whatever the allocator (``empty(elements)``) raises."""
    send_n, receive_n = elements(operation, count, me)
    if mode != "in":
        return Buffers(empty(send_n), empty(receive_n))
    whole = empty(max(send_n, receive_n))
    mine = slice(me.rank * count, (me.rank + 1) * count)
    if operation.name == "allgather":
        return Buffers(whole[mine], whole)
    if operation.name == "reducescatter":
        return Buffers(whole, whole[mine])
    return Buffers(whole, whole)


def caller(dist: Any, operation: Operation, mode: str, buffers: Buffers, me: Me, op: str) -> Callable[[], None]:
    """A function that runs the collective once. Built once, so that the timed loop holds nothing but the call."""
    send, receive = buffers
    reduce_op = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
    name = operation.name
    if name == "allreduce":
        return _after_copy(mode, buffers, True, lambda: dist.all_reduce(receive, op=reduce_op))
    if name == "broadcast":
        return _after_copy(mode, buffers, me.rank == me.root, lambda: dist.broadcast(receive, me.root))
    if name == "reduce":
        return _after_copy(mode, buffers, True, lambda: dist.reduce(receive, me.root, op=reduce_op))
    if name == "allgather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(receive, send)
    if name == "reducescatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(receive, send, op=reduce_op)
    if name == "alltoall":
        return lambda: dist.all_to_all_single(receive, send)
    if name == "gather":
        parts = list(receive.chunk(me.world)) if me.rank == me.root else None
        return lambda: dist.gather(send, parts, dst=me.root)
    if name == "scatter":
        parts = list(send.chunk(me.world)) if me.rank == me.root else None
        return lambda: dist.scatter(receive, parts, src=me.root)
    return _sendrecv(dist, buffers, me)


def _after_copy(mode: str, buffers: Buffers, copies: bool, call: Callable[[], Any]) -> Callable[[], None]:
    if mode != "copy" or not copies:
        return call
    send, receive = buffers

    def copy_and_call() -> None:
        receive.copy_(send)
        call()

    return copy_and_call


def _sendrecv(dist: Any, buffers: Buffers, me: Me) -> Callable[[], None]:
    after, before = (me.rank + 1) % me.world, (me.rank - 1) % me.world

    def exchange() -> None:
        # P2POp makes one group of both directions, which NCCL needs; the order does not matter then.
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, buffers.send, after), dist.P2POp(dist.irecv, buffers.receive, before)]
        )
        for work in works:
            work.wait()

    return exchange


class Checker:
    """Fills the buffers with known random data, and counts what is wrong after one call."""

    def __init__(self, torch: Any, operation: Operation, dtype: str, op: str, me: Me, seed: int) -> None:
        self.torch, self.operation, self.dtype, self.op, self.me, self.seed = torch, operation, dtype, op, me, seed
        self.allowed = patterns.tolerance(torch, dtype, op, me.world) if operation.reduces else 0.0
        self.sum = patterns.reduced(torch, me.world, seed, dtype, op) if operation.reduces else None

    def _block(self, rank: int) -> Any:
        op = self.op if self.operation.reduces else ""
        return patterns.block(self.torch, rank, self.seed, self.dtype, op, self.me.world)

    def prepare(self, mode: str, buffers: Buffers) -> None:
        """Put this rank's data into the send buffer and poison all that the call must write."""
        patterns.poison(self.torch, buffers.receive)
        if mode == "in" and self.operation.name == "broadcast" and self.me.rank != self.me.root:
            return  # what it sends is what it receives, and must stay poisoned
        patterns.fill(buffers.send, self._block(self.me.rank))

    def wrong(self, buffers: Buffers, count: int) -> int:
        """Elements of this rank's result that are not what they must be."""
        bad = 0
        for start, length, tile in self._expected(count):
            part = buffers.receive[start : start + length]
            bad += patterns.wrong(self.torch, part, tile, self.allowed)
        return bad

    def _expected(self, count: int) -> patterns.Segments:
        me, name = self.me, self.operation.name
        if name == "allreduce" or (name == "reduce" and me.rank == me.root):
            return [(0, count, self.sum)]
        if name == "reduce":
            return []  # only the root's buffer is defined
        if name == "reducescatter":
            return [(0, count, patterns.shifted(self.torch, self.sum, me.rank * count))]
        if name == "broadcast":
            return [(0, count, self._block(me.root))]
        if name == "sendrecv":
            return [(0, count, self._block((me.rank - 1) % me.world))]
        if name == "scatter":
            return [(0, count, patterns.shifted(self.torch, self._block(me.root), me.rank * count))]
        if name == "gather" and me.rank != me.root:
            return []
        offset = me.rank * count if name == "alltoall" else 0
        return [
            (peer * count, count, patterns.shifted(self.torch, self._block(peer), offset)) for peer in range(me.world)
        ]
