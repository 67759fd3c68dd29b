"""Which known name a misspelled one may stand for."""

from __future__ import annotations

import re
from collections.abc import Collection


def near(name: str, real: Collection[str], unread: Collection[str]) -> tuple[str, ...]:
    """The names that ``name`` may be a slip of the pen for, best first, at most three: at most a third of it mistyped.

    ``unread`` are names that people set and nobody reads: told only where no ``real`` one is near.
    """
    wanted = name.upper()
    allowed = max(1, min(3, len(wanted) // 6))
    found: list[tuple[int, str]] = []
    for candidate in (*real, *unread):
        if abs(len(candidate) - len(wanted)) > allowed or candidate == name:
            continue
        distance = edits(wanted, candidate, allowed)
        if distance <= allowed:
            found.append((distance, candidate))
    if not found and len(wanted) > 12:  # broken off within a word
        found = [(allowed, candidate) for candidate in real if candidate.startswith(wanted)]
    words = _words(wanted)
    if not found and len(words) > 2:  # the same words in another order, or one of them left out
        for candidate in real:
            if _words(candidate) == words or (len(words) > 3 and _words(candidate) >= words):
                found.append((allowed, candidate))
    best = [item for item in found if item[1] in real] or found
    return tuple(candidate for _, candidate in sorted(best)[:3])


def _words(name: str) -> frozenset[str]:
    return frozenset(part for part in re.split(r"_+", name) if part)


def edits(one: str, two: str, limit: int) -> int:
    """Damerau-Levenshtein distance (insert, delete, replace, swap neighbours), or ``limit + 1`` when it is above."""
    before: list[int] = []
    row = list(range(len(two) + 1))
    for place, letter in enumerate(one, start=1):
        current = [place]
        for column, other in enumerate(two, start=1):
            cost = min(row[column] + 1, current[column - 1] + 1, row[column - 1] + (letter != other))
            if place > 1 and column > 1 and letter == two[column - 2] and one[place - 2] == other:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        if min(current) > limit:
            return limit + 1
        before, row = row, current
    return row[-1]
