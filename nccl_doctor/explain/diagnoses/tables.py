"""Tables in logs: a heading says what the columns are, and the rows stand below it."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Mapping
from typing import TypeVar

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit

_Who = TypeVar("_Who")


def tables(case: Case, name: str) -> list[tuple[Hit, list[Hit]]]:
    """Each heading that this signature knows, with the rows kept below it."""
    return below(case.hits(name), case.hits(f"{name}-rows"))


def below(headings: list[Hit], rows: list[Hit]) -> list[tuple[Hit, list[Hit]]]:
    """Each heading with the rows between it and the next one."""
    places = sorted(map(place, headings))
    found: dict[tuple[str, int], list[Hit]] = {at: [] for at in places}
    for row in rows:
        nearest = bisect.bisect(places, place(row)) - 1
        if nearest >= 0 and places[nearest][0] == row.file and places[nearest][1] < row.line:
            found[places[nearest]].append(row)
    return [(head, found[place(head)]) for head in headings]


def cells(names: list[str], row: list[str]) -> dict[str, str]:
    """A row's cells by the names of their columns, from the right: what a collector puts before a row is no cell of it."""
    return {name.strip(): cell.strip() for name, cell in zip(names[::-1], row[::-1], strict=False)}


def number(cell: str) -> float:
    """A cell as a number; 0 if it is none."""
    try:
        return float(cell)
    except ValueError:
        return 0.0


SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # of the prefixes of units
FEWEST = 4  # of fewer, which one is odd cannot be told


def far_below(reached: Mapping[_Who, float], part: float, fewest: int = FEWEST) -> tuple[list[_Who], float]:
    """Who reached no more than this part of the middle value, and that value; of fewer than ``fewest`` nobody."""
    usual = statistics.median(reached.values()) if len(reached) >= fewest else 0.0
    return [who for who, value in reached.items() if 0 < value <= part * usual], usual
