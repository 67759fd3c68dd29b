"""The plot in the terminal: what was measured stands where it belongs, within 80 columns, in plain text."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.report.bench_terminal_plot import HEIGHT, MARGIN, MARKS, Line, lines_of, plot

ALLOWED = set(string.printable.replace("\x1b", "")) | set(MARKS) | set("┤│└─┬╌·")
POINTS = st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(1e-6, 2000.0)), min_size=3, max_size=40)


def test_the_largest_is_top_right_and_the_smallest_bottom_left() -> None:
    text = plot([Line("in", ((1 << 10, 0.01), (1 << 20, 1.0), (1 << 30, 100.0)))])
    rows = [line[MARGIN + 2 :] for line in text[1 : HEIGHT + 1]]
    assert rows[0].rstrip()[-1] == "●" and len(rows[0].rstrip()) == 80 - MARGIN - 2
    assert rows[-1][0] == "●" and rows[HEIGHT // 2][(80 - MARGIN - 2) // 2] in "●·"
    assert text[1].split("┤")[0].strip() == "100 GB/s" and text[HEIGHT].split("┤")[0].strip() == "10 MB/s"
    assert text[-1].split() == ["1K", "1M", "1G"]


def test_a_small_spread_is_no_mountain() -> None:
    text = plot([Line("in", ((1000, 1.0), (2000, 1.04), (4000, 1.0)))])
    assert sum("●" in line for line in text[1 : HEIGHT + 1]) <= 2  # 4 % are no more than one row


def test_the_ceiling_and_the_baseline_are_told_apart() -> None:
    now = [("in", size, 1.0 * size) for size in (1, 2, 4)]
    text = plot(lines_of(now, [("in", size, 0.5 * size) for size in (1, 2, 4)]), ceiling=8.0)
    assert text[0].split() == ["busbw", "●", "in", "○", "baseline", "in", "╌╌", "8", "GB/s"]
    assert "╌╌╌" in text[1] and sum(line.count("●") for line in text[1:]) == 3


def test_too_little_to_draw_is_not_drawn() -> None:
    assert plot(lines_of([("in", 1, 1.0), ("in", 2, 1.0)])) == []
    assert plot(lines_of([("in", 1, 0.0), ("in", 2, 0.0), ("in", 4, 0.0)])) == []
    assert plot([Line("in", ((1, 1.0), (2, 1.0), (4, 1.0)))], width=30) == []


@given(st.lists(POINTS, min_size=1, max_size=4), st.just(0.0) | st.floats(1e-6, 5000.0), st.integers(40, 300))
def test_any_numbers_give_plain_text_within_80_columns(
    series: list[list[tuple[int, float]]], ceiling: float, width: int
) -> None:
    lines = [Line(f"mode{number}", tuple(sorted(dict(points).items()))) for number, points in enumerate(series)]
    text = plot(lines, ceiling, width)
    assert len(text) == HEIGHT + 3
    for line in text:
        assert len(line) <= min(width, 80) and set(line) <= ALLOWED, line
