"""Find, in a block of log, the lines that contain at least one anchor, and say which anchors a line contains.

An anchor is a literal byte string that a signature needs. Two engines do the same: RE2 (package ``google-re2``), linear
and fast, and Python's own ``re`` where RE2 is not installed (slower, and linear too: an alternation of literals has
nothing to backtrack into). See docs/decisions/0020.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any, Protocol


class Engine(Protocol):
    """Looks for any of a fixed set of literals."""

    def search(self, block: bytes, at: int) -> int:
        """Where the next occurrence of any anchor at or after ``at`` begins, or -1."""
        ...

    def contained(self, line: bytes) -> list[int]:
        """The indices of all anchors in ``line``."""
        ...


class Re2Engine:
    """RE2: one automaton to skip to the next interesting line, one set to tell which anchors it holds."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        import re2

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = 256 << 20
        options.never_capture = True
        self._one = re2.compile(b"|".join(re2.escape(item) for item in anchors), options)
        self._set: Any = re2.Set.SearchSet(options)
        for item in anchors:
            self._set.Add(re2.escape(item))
        self._set.Compile()

    def search(self, block: bytes, at: int) -> int:
        found = self._one.search(block, at)
        return int(found.start()) if found else -1

    def contained(self, line: bytes) -> list[int]:
        return list(self._set.Match(line) or ())


class ReEngine:
    """Python's ``re``, anchors joined; ``contained`` is a plain substring test for each."""

    def __init__(self, anchors: tuple[bytes, ...]) -> None:
        self._anchors = anchors
        self._one = re.compile(b"|".join(re.escape(item) for item in _shortest(anchors)))

    def search(self, block: bytes, at: int) -> int:
        found = self._one.search(block, at)
        return found.start() if found else -1

    def contained(self, line: bytes) -> list[int]:
        return [index for index, item in enumerate(self._anchors) if item in line]


def _shortest(anchors: Iterable[bytes]) -> list[bytes]:
    """The anchors of which no other anchor is a part: enough to find every line."""
    kept: list[bytes] = []
    for item in sorted(set(anchors), key=len):
        if not any(short in item for short in kept):
            kept.append(item)
    return kept


@functools.lru_cache(maxsize=32)
def engine(anchors: tuple[bytes, ...], fast: bool = True) -> Engine:
    """The fastest engine that is installed; ``fast=False`` asks for the one that always works."""
    if fast:
        try:
            return Re2Engine(anchors)
        except ImportError:
            pass
    return ReEngine(anchors)
