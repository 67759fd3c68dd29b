"""Bus bandwidth over size as plain text: at most 80 columns, no colour, one mark per measured size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.verdict import rate

WIDTH, HEIGHT, MARGIN = 80, 9, 12
LEAST = 3  # points, below which the table says it all
MARKS = "●○◆◇"
_BETWEEN, _CEILING = "·", "╌"

Point = tuple[int, float]  # bytes, GB/s
Measured = tuple[str, int, float]  # mode, bytes, GB/s


class Line(msgspec.Struct, frozen=True):
    """One line of the plot: what it is, and its points in order of size."""

    label: str
    points: tuple[Point, ...]


def lines_of(now: Iterable[Measured], before: Iterable[Measured] = ()) -> list[Line]:
    """A line for each mode of one collective; those of a baseline after them, each with three sizes or more."""
    found = []
    for label, own in (("", list(now)), ("baseline", list(before))):
        for mode in dict.fromkeys(mode for mode, _, _ in own):
            points = sorted((size, gbs) for own_mode, size, gbs in own if own_mode == mode and gbs > 0)
            if len(points) >= LEAST:
                found.append(Line(" ".join(filter(None, (label, mode))), tuple(points)))
    return found


def plot(lines: Sequence[Line], ceiling: float = 0.0, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """The lines of text; none where there is nothing to draw. Both axes are logarithmic. ``ceiling`` in GB/s."""
    columns = min(width, WIDTH) - MARGIN - 2
    if not lines or columns < 20:
        return []
    sizes = [size for line in lines for size, _ in line.points]
    values = [value for line in lines for _, value in line.points] + ([ceiling] if ceiling > 0 else [])
    across, up = _Scale(sizes, columns), _Scale(values, height, least=2.0)
    grid = [[" "] * columns for _ in range(height)]
    if ceiling > 0:
        grid[up.at(ceiling)] = [_CEILING] * columns
    for number, line in reversed(list(enumerate(lines))):  # the first on top
        _draw(grid, [(across.at(size), up.at(value)) for size, value in line.points], MARKS[number % len(MARKS)])
    text = [_legend(lines, ceiling)[: columns + MARGIN + 2]]
    for row in reversed(range(height)):
        label = rate(up.value(row)) if row % 4 == 0 or row == height - 1 else ""
        text.append(f"{label:>{MARGIN}} {'┤' if label else '│'}{''.join(grid[row])}".rstrip())
    return [*text, *_axis(sorted(set(sizes)), across, columns)]


class _Scale:
    """A logarithmic scale on ``cells`` cells, from the smallest value to the largest; ``least`` is their least ratio:
    noise shall not look like mountains."""

    def __init__(self, values: Sequence[float], cells: int, least: float = 1.01) -> None:
        low, high, self.cells = math.log(min(values)), math.log(max(values)), cells
        self.span = max(high - low, math.log(least))
        self.low = (low + high - self.span) / 2

    def at(self, value: float) -> int:
        return min(self.cells - 1, max(0, round((math.log(value) - self.low) / self.span * (self.cells - 1))))

    def value(self, cell: int) -> float:
        return math.exp(self.low + self.span * cell / (self.cells - 1))


def _draw(grid: list[list[str]], places: Sequence[tuple[int, int]], mark: str) -> None:
    for (left, low), (right, high) in pairwise(places):
        for column in range(left + 1, right):
            row = round(low + (high - low) * (column - left) / (right - left))
            if grid[row][column] in (" ", _CEILING):
                grid[row][column] = _BETWEEN
    for column, row in places:
        grid[row][column] = mark


def _legend(lines: Sequence[Line], ceiling: float) -> str:
    marks = [f"{mark} {line.label}".rstrip() for mark, line in zip(MARKS, lines, strict=False)]
    if ceiling > 0:
        marks.append(f"{_CEILING * 2} {rate(ceiling)}")
    return f"{'busbw':>{MARGIN}}  " + ("   ".join(marks) if len(marks) > 1 else "over size, both logarithmic")


def _axis(sizes: Sequence[int], across: _Scale, columns: int) -> Iterator[str]:
    """The line beneath, with as many sizes as have room; the largest always."""
    ticks, labels, free = ["─"] * columns, [" "] * columns, columns + 1
    for size in reversed(sizes):
        name, place = format_size(size), across.at(size)
        start = min(max(0, place - len(name) // 2), columns - len(name))
        if start + len(name) < free:
            ticks[place] = "┬"
            labels[start : start + len(name)] = name
            free = start - 1
    yield f"{'':>{MARGIN}} └{''.join(ticks)}"
    yield f"{'':>{MARGIN}}  {''.join(labels)}".rstrip()
