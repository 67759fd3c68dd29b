"""Tables in logs: a heading says what the columns are, and the rows stand below it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import TypeVar

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Hit

_Who = TypeVar("_Who")


def tables(case: Case, name: str) -> Iterator[tuple[Hit, list[Hit]]]:
    """Each heading that this signature knows, with the rows kept below it."""
    headings, rows = case.hits(name), case.hits(f"{name}-rows")
    return ((head, below(head, headings, rows)) for head in headings)


def below(heading: Hit, headings: list[Hit], rows: list[Hit]) -> list[Hit]:
    """The rows between this heading and the next one."""
    nexts = [other.line for other in headings if other.file == heading.file and other.line > heading.line]
    return [row for row in rows if row.file == heading.file and heading.line < row.line < min(nexts, default=1 << 62)]


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
