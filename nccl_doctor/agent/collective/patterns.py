"""Random test data whose right answer is known without communicating, and the count of elements that are wrong.

Every rank's data is a block of ``PERIOD`` random whole numbers, made from the seed and the rank alone and repeated over
the buffer. So any rank can make any other rank's block, reduce the blocks itself, and compare at memory speed. The
values are small enough that a sum over the world is exact in the data type wherever that is possible.
"""

from typing import Any, List, Tuple

PERIOD = 65521  # prime: no buffer or chunk size is a multiple of it, so misplaced data does not look right

# Largest whole number up to which every whole number is exact, less one for the poison of integers.
_EXACT = {"int8": 126, "uint8": 254, "float16": 2048, "bfloat16": 256, "float32": 1 << 20, "float64": 1 << 20}
_CHUNK = 64  # blocks compared at once: 64 x 65521 elements bound the memory of a comparison


def _highest(dtype: str, op: str, world: int) -> int:
    limit = _EXACT.get(dtype, 1 << 20)
    if op in ("sum", "avg"):
        return max(1, min(1023, limit // world))
    return min(1023, limit)


def block(torch: Any, rank: int, seed: int, dtype: str, op: str, world: int) -> Any:
    """The random block of one rank, a CPU tensor of ``PERIOD`` elements. ``op`` is empty where nothing is reduced."""
    generator = torch.Generator().manual_seed(seed * 1000003 + rank)
    if op == "prod":
        # Factors of 2 from the first seven ranks only: 128 is exact in every type, and for integers wraps to itself.
        values = torch.randint(1, 3 if rank < 6 else 2, (PERIOD,), generator=generator)
    else:
        values = torch.randint(0, _highest(dtype, op, world) + 1, (PERIOD,), generator=generator)
    return values.to(getattr(torch, dtype))


def reduced(torch: Any, world: int, seed: int, dtype: str, op: str) -> Any:
    """What reducing all ranks' blocks must give, computed here from the seeds in 64 bits."""
    wide = torch.float64 if getattr(torch, dtype).is_floating_point else torch.int64
    total: Any = block(torch, 0, seed, dtype, op, world).to(wide)
    for rank in range(1, world):
        values = block(torch, rank, seed, dtype, op, world).to(wide)
        if op in ("sum", "avg"):
            total = total + values
        elif op == "prod":
            total = total * values
        elif op == "min":
            total = torch.minimum(total, values)
        else:
            total = torch.maximum(total, values)
    if op == "avg":
        total = total / world if wide is torch.float64 else torch.div(total, world, rounding_mode="trunc")
    return total.to(getattr(torch, dtype))


def tolerance(torch: Any, dtype: str, op: str, world: int) -> float:
    """Relative error allowed: 0 where the data are exact, else what rounding in any order can give."""
    kind = getattr(torch, dtype)
    if not kind.is_floating_point or (op not in ("sum", "avg")):
        return 0.0
    if op == "sum" and world <= _EXACT.get(dtype, 1 << 20):
        return 0.0
    return float(torch.finfo(kind).eps) * max(2.0, world)


def shifted(torch: Any, values: Any, offset: int) -> Any:
    """The block as it continues at element ``offset`` of the repeated pattern."""
    start = offset % PERIOD
    return torch.cat((values[start:], values[:start])) if start else values


def fill(target: Any, tile: Any) -> None:
    """Repeat a block over a flat tensor."""
    whole = target.numel() // PERIOD
    tile = tile.to(target.device)
    if whole:
        target[: whole * PERIOD].view(whole, PERIOD).copy_(tile.expand(whole, PERIOD))
    rest = target.numel() - whole * PERIOD
    if rest:
        target[whole * PERIOD :].copy_(tile[:rest])


def poison(torch: Any, target: Any) -> None:
    """Fill with a value that no right answer has, so that an element nobody wrote is counted as wrong."""
    target.fill_(float("nan") if target.dtype.is_floating_point else torch.iinfo(target.dtype).max)


def _differ(torch: Any, got: Any, want: Any, allowed: float) -> int:
    if not allowed:
        return int((got != want).sum().item())
    near = (got.to(torch.float64) - want.to(torch.float64)).abs() <= allowed * want.to(torch.float64).abs().clamp(min=1)
    return int((~near).sum().item())


def wrong(torch: Any, target: Any, tile: Any, allowed: float = 0.0) -> int:
    """How many elements of a flat tensor differ from the repeated block."""
    tile = tile.to(target.device)
    whole = target.numel() // PERIOD
    count = 0
    for start in range(0, whole, _CHUNK):
        rows = min(_CHUNK, whole - start)
        part = target[start * PERIOD : (start + rows) * PERIOD].view(rows, PERIOD)
        count += _differ(torch, part, tile, allowed)
    rest = target.numel() - whole * PERIOD
    if rest:
        count += _differ(torch, target[whole * PERIOD :], tile[:rest], allowed)
    return count


Segments = List[Tuple[int, int, Any]]  # start, elements, the block expected there
