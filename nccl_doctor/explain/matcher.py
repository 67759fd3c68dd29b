"""Find, in a block of log, all occurrences of a fixed set of literals (the signatures' anchors).

Two engines give the same answer in linear time: Hyperscan (package ``hyperscan``), gigabytes a second on one core, and
plain ``bytes.find`` for each literal, a few megabytes a second, for platforms without it.

Hyperscan is asked twice: first for a few hundred *factors*, pieces of anchors that are rare in ordinary output (each anchor
holds at least one); then, only in the lines that hold a factor, for all anchors. The measurements that decided are in
docs/decisions/0020 and 0023.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

Found = tuple[int, int]  # where an occurrence ends, and which anchor it is

FACTORS = Path(__file__).with_name("readers") / "factors.json"
NEAR = 1024  # lines with factors that are nearer than this (bytes) are searched in one go
# Hyperscan steps through a block in strides that depend on the shortest literal. With none under five bytes it picks a
# stride that is four times slower here, so one that no log holds is put beside them (measured in docs/decisions/0023).
STRIDE = b"\x01\x02\x03"


class Engine(Protocol):
    """Looks for a fixed set of literals."""

    def first(self, block: bytes | memoryview) -> list[int]:
        """Where in ``block`` a closer look is needed; nowhere: it holds no literal of the set."""
        ...

    def find(self, block: bytes, places: list[int] | None = None) -> list[Found]:
        """Occurrences in ``block``, sorted. Of one anchor in one line, at least one is reported.

        ``places`` is what :meth:`first` said of the same block, where that is known.
        """
        ...

    def prepare(self) -> None:
        """Build now what would be built when first needed: processes that fork later share it."""
        ...


@functools.cache
def factors() -> dict[bytes, bytes]:
    """The factor that stands for each anchor, as far as they were chosen (``benchmarks/explain_factors.py``)."""
    try:
        document = json.loads(FACTORS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {
        anchor.encode("latin-1"): factor.encode("latin-1")
        for factor, anchors in document["factors"].items()
        for anchor in anchors
        if factor in anchor
    }


def _database(literals: tuple[bytes, ...]) -> Any:
    import hyperscan

    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    count = len(literals)
    database.compile(
        expressions=list(literals), ids=list(range(count)), elements=count, flags=[0] * count, literal=True
    )
    return database


class HyperscanEngine:
    """Hyperscan in literal mode, in two steps. ``ImportError`` where the package is not installed."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        import hyperscan  # noqa: F401 - asked for here, before any log is opened

        self._anchors = anchors
        self._first = _database((*sorted({factors().get(anchor, anchor) for anchor in anchors}), STRIDE))

    @functools.cached_property
    def _all(self) -> Any:
        return _database(self._anchors)

    def prepare(self) -> None:
        _ = self._all

    def first(self, block: bytes | memoryview) -> list[int]:
        places: list[int] = []
        self._first.scan(block, match_event_handler=lambda _id, _from, to, _flags, _context: places.append(to))
        return places

    def find(self, block: bytes, places: list[int] | None = None) -> list[Found]:
        found: list[Found] = []
        for start, end in _ranges(block, self.first(block) if places is None else places):
            self._all.scan(
                memoryview(block)[start:end],
                match_event_handler=lambda id, _from, to, _flags, base: found.append((base + to, id)),
                context=start,
            )
        found.sort()
        return found


def _ranges(block: bytes, places: list[int]) -> Iterator[tuple[int, int]]:
    """The stretches of whole lines that hold these places."""
    start = stop = -1
    for at in sorted(places):
        if at <= stop:
            continue
        if stop < 0 or at > stop + NEAR:
            if stop >= 0:
                yield start, stop
            start = block.rfind(b"\n", max(stop, 0), at) + 1 or max(stop, 0)
        stop = block.find(b"\n", at) + 1 or len(block)
    if stop >= 0:
        yield start, stop


class PlainEngine:
    """The standard library only: every anchor is looked for on its own."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._anchors = anchors

    def prepare(self) -> None:
        """Nothing to build."""

    def first(self, block: bytes | memoryview) -> list[int]:
        return [end for end, _ in self.find(bytes(block))]

    def find(self, block: bytes, places: list[int] | None = None) -> list[Found]:
        found: list[Found] = []
        for index, anchor in enumerate(self._anchors):
            at = block.find(anchor)
            while at >= 0:
                found.append((at + len(anchor), index))
                end = block.find(b"\n", at)  # one per line is enough
                at = block.find(anchor, end) if end >= 0 else -1
        found.sort()
        return found


@functools.lru_cache(maxsize=64)
def engine(anchors: tuple[bytes, ...], fast: bool) -> Engine:
    """The fastest engine that is installed; ``fast=False`` asks for the one that always works."""
    if fast:
        try:
            return HyperscanEngine(anchors)
        except ImportError:
            pass
    return PlainEngine(anchors)
