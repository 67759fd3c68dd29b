"""Find, in a block of log, all occurrences of a fixed set of literals (the signatures' anchors).

Two engines give the same answer in linear time: Hyperscan (package ``hyperscan``), gigabytes a second on one core, and
plain ``bytes.find`` for each literal, a few megabytes a second, for platforms without it.

Hyperscan looks for a few hundred *factors*, pieces of anchors that are rare in ordinary output (each anchor holds one);
where a factor is, the anchors that hold it are compared. The measurements that decided are in docs/decisions/0020, 0023
and 0026.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

Found = tuple[int, int]  # where an occurrence ends, and which literal it is

FACTORS = Path(__file__).with_name("readers") / "factors.json"
# Hyperscan steps through a block in strides that depend on the shortest literal. With none under five bytes it picks a
# stride that is four times slower here, so one that no log holds is put beside them (measured in docs/decisions/0023).
STRIDE = b"\x01\x02\x03\x04"


class Engine(Protocol):
    """Looks for a fixed set of literals."""

    def first(self, block: bytes | memoryview) -> list[Found]:
        """Where in ``block`` a closer look is needed, in order; nowhere: it holds no literal of the set."""
        ...

    def find(self, block: bytes, places: list[Found] | None = None) -> list[Found]:
        """Occurrences in ``block``, in order. Of one literal in one line, at least one is reported.

        ``places`` is what :meth:`first` said of the same block, where that is known.
        """
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
    """Hyperscan in literal mode. ``ImportError`` where the package is not installed."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        import hyperscan  # noqa: F401 - asked for here, before any log is opened

        # factor -> where it ends in its anchors -> these anchors, and which they are
        held: dict[bytes, dict[int, tuple[list[bytes], list[int]]]] = defaultdict(dict)
        whole: dict[bytes, int] = {}  # anchors that are their own factor: there is nothing to compare
        for index, anchor in enumerate(anchors):
            factor = factors().get(anchor, anchor)
            if factor == anchor:
                whole[anchor] = index
                held[factor]
                continue
            texts, indices = held[factor].setdefault(anchor.find(factor) + len(factor), ([], []))
            texts.append(anchor)
            indices.append(index)
        self._held = [
            [(end, tuple(texts), indices) for end, (texts, indices) in held[factor].items()] for factor in sorted(held)
        ]
        self._whole = [whole.get(factor) for factor in sorted(held)]
        self._database = _database((*sorted(held), STRIDE))
        self._held.append([])  # the stride's
        self._whole.append(None)

    def first(self, block: bytes | memoryview) -> list[Found]:
        places: list[Found] = []
        self._database.scan(block, match_event_handler=lambda id, _from, to, _flags, _context: places.append((to, id)))
        places.sort()
        return places

    def find(self, block: bytes, places: list[Found] | None = None) -> list[Found]:
        found: list[Found] = []
        for at, factor in self.first(block) if places is None else places:
            whole = self._whole[factor]
            if whole is not None:
                found.append((at, whole))
            for end, texts, indices in self._held[factor]:
                start = at - end
                if start < 0 or not block.startswith(texts, start):  # any of them: seldom
                    continue
                for text, index in zip(texts, indices, strict=True):
                    if block.startswith(text, start):
                        found.append((start + len(text), index))
        found.sort()
        return found


class PlainEngine:
    """The standard library only: every anchor is looked for on its own."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._anchors = anchors

    def first(self, block: bytes | memoryview) -> list[Found]:
        return self.find(bytes(block))

    def find(self, block: bytes, places: list[Found] | None = None) -> list[Found]:
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
def engine(anchors: tuple[bytes, ...]) -> Engine:
    """The fastest engine that is installed."""
    try:
        return HyperscanEngine(anchors)
    except ImportError:
        return PlainEngine(anchors)
