"""Find, in a block of log, all occurrences of a fixed set of literals (the signatures' anchors).

Two engines give the same answer in linear time: Hyperscan (package ``hyperscan``), several hundred megabytes a second
on one core, and plain ``bytes.find`` for each literal, a few megabytes a second, for platforms without it.
The measurement that decided is in docs/decisions/0020.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

Found = tuple[int, int]  # where an occurrence ends, and which anchor it is


class Engine(Protocol):
    """Looks for a fixed set of literals."""

    def find(self, block: bytes) -> list[Found]:
        """Occurrences in ``block``, sorted. Of one anchor in one line, at least one is reported."""
        ...


class HyperscanEngine:
    """Hyperscan in literal mode. ``ImportError`` where the package is not installed."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        import hyperscan

        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=list(anchors),
            ids=list(range(len(anchors))),
            elements=len(anchors),
            flags=[0] * len(anchors),
            literal=True,
        )

    def find(self, block: bytes) -> list[Found]:
        found: list[Found] = []
        self._database.scan(block, match_event_handler=lambda id, _from, to, _flags, _context: found.append((to, id)))
        found.sort()
        return found


class PlainEngine:
    """The standard library only: every anchor is looked for on its own."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._anchors = anchors

    def find(self, block: bytes) -> list[Found]:
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
def engine(anchors: tuple[bytes, ...], fast: bool = True) -> Engine:
    """The fastest engine that is installed; ``fast=False`` asks for the one that always works."""
    if fast:
        try:
            return HyperscanEngine(anchors)
        except ImportError:
            pass
    return PlainEngine(anchors)
