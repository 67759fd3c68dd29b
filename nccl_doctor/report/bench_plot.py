"""Plots of bus bandwidth and time over size: SVG, or HTML that needs nothing else. Several runs overlaid.

Written by hand rather than with a plotting library: two log-log panels are all there is to draw, and the file must not
bring in scripts, fonts or anything remote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from nccl_doctor.bench.model import Measurement
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import percent
from nccl_doctor.bench.verdict import rate
from nccl_doctor.facts import files
from nccl_doctor.report.bench_console import microseconds
from nccl_doctor.report.safe_text import moment, visible

# Okabe-Ito: told apart with every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 340, 86, 24, 40, 48

Run = tuple[str, Outcome]


class Series(msgspec.Struct, frozen=True):
    """One line of a plot: label, points (size, value, low, high), colour and dash; ``fitted`` has no markers."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    colour: str
    dash: str = ""
    fitted: bool = False


def write_plot(path: Path, runs: Sequence[Run]) -> None:
    """Write the plot that the file's ending asks for (.svg or .html); ``OSError`` passes through."""
    text = html(runs) if path.suffix.lower() == ".html" else svg(runs)
    files.write(path, text.encode())


def svg(runs: Sequence[Run]) -> str:
    """Two panels in one picture."""
    panels = _panels(runs)
    body = "".join(f'<g transform="translate(0 {number * HEIGHT})">{panel}</g>' for number, panel in enumerate(panels))
    height = HEIGHT * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )


def html(runs: Sequence[Run]) -> str:
    """The picture with the verdicts and the numbers beneath it."""
    title = _text(" / ".join(dict.fromkeys(name for _, run in runs for name in run.plan.collectives)))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>nccl-doctor bench: " + title + "</title>",
        "<style>body{font:14px sans-serif;margin:2em;max-width:60em}td,th{padding:.15em .8em;text-align:right}"
        "caption{text-align:left;font-weight:bold;padding:.5em 0}</style></head><body>",
        f"<h1>{title}</h1>",
        svg(runs),
    ]
    for label, run in runs:
        parts.append(f"<h2>{_text(label)}: {_text(moment(run.created))}</h2>")
        parts.append(f"<p>{_text(run.path.words)} ({'proved' if run.path.proved else 'not proved'})</p>")
        parts += [f"<p>{_text(item.kind.upper())}: {_text(item.text)}</p>" for item in run.verdicts]
        parts += list(_html_table(run))
    return "".join(parts) + "</body></html>\n"


def _html_table(run: Outcome) -> Iterator[str]:
    for name, mode in dict.fromkeys((item.collective, item.mode) for item in run.results.measurements):
        yield f"<table><caption>{_text(name)} ({_text(mode)})</caption><tr>"
        yield (
            "".join(f"<th>{head}</th>" for head in ("size", "time", "algbw", "busbw", "p99", "cv", "#wrong")) + "</tr>"
        )
        for item in run.results.measurements:
            if (item.collective, item.mode) == (name, mode):
                cells = (
                    format_size(item.size), microseconds(item.time_us), rate(item.algbw_gbs), rate(item.busbw_gbs),
                    microseconds(item.spread.p99_us), percent(item.spread.cv),
                    "-" if item.wrong is None else str(item.wrong),
                )  # fmt: skip
                yield "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>"
        yield "</table>"


def _text(value: str) -> str:
    return escape(visible(value), quote=True)


def _panels(runs: Sequence[Run]) -> list[str]:
    ceiling = next((run.ceiling for _, run in runs if run.ceiling), None)
    times = _times(runs)
    return [
        _panel("bus bandwidth", _bandwidths(runs), rate, ceiling.gbs if ceiling else None),
        _panel("time per call (median; bars from minimum to p99; thin line: fit)", times, microseconds, None),
    ]


def _keys(runs: Sequence[Run]) -> Iterator[tuple[int, int, str, str, str, list[Measurement]]]:
    number = 0
    for run_number, (label, run) in enumerate(runs):
        for name, mode in dict.fromkeys((item.collective, item.mode) for item in run.results.measurements):
            own = [item for item in run.results.measurements if (item.collective, item.mode) == (name, mode)]
            yield number, run_number, label, name, mode, own
            number += 1


def _bandwidths(runs: Sequence[Run]) -> list[Series]:
    return [
        Series(
            f"{name} ({mode}), {label}",
            tuple((float(item.size), item.busbw_gbs, 0.0, 0.0) for item in own),
            COLOURS[number % len(COLOURS)],
            DASHES[run_number % len(DASHES)],
        )
        for number, run_number, label, name, mode, own in _keys(runs)
    ]


def _times(runs: Sequence[Run]) -> list[Series]:
    found = []
    for number, run_number, label, name, mode, own in _keys(runs):
        points = tuple((float(i.size), i.spread.median_us, i.spread.min_us, i.spread.p99_us) for i in own)
        colour = COLOURS[number % len(COLOURS)]
        found.append(Series(f"{name} ({mode}), {label}", points, colour, DASHES[run_number % len(DASHES)]))
        run = runs[run_number][1]
        line = next((item.fit for item in run.fits if (item.collective, item.mode) == (name, mode)), None)
        if line is not None:
            curve = tuple((p[0], line.alpha_us + p[0] / line.beta_gbs / 1e3, 0.0, 0.0) for p in points)
            found.append(Series("", curve, colour, fitted=True))
    return found


class _Axis:
    """A logarithmic axis from data to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        self.low, self.high = math.log10(min(positive)), math.log10(max(positive))
        pad = max(0.05, (self.high - self.low) * 0.06)
        self.low, self.high = self.low - pad, self.high + pad
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        place = (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, place)) * (self.end - self.start)

    def decades(self) -> list[float]:
        found = [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        if len(found) >= 2:
            return found
        steps = (1, 2, 5)
        spread = range(math.floor(self.low) - 1, math.ceil(self.high) + 1)
        return [s * 10.0**p for p in spread for s in steps if self.low <= math.log10(s * 10.0**p) <= self.high]


def _panel(title: str, series: list[Series], unit: Callable[[float], str], ceiling: float | None) -> str:
    points = [point for item in series for point in item.points]
    if not points:
        return f'<text x="{LEFT}" y="{TOP}">{_text(title)}: nothing was measured</text>'
    horizontal = _Axis([point[0] for point in points], LEFT, WIDTH - RIGHT)
    values = [value for point in points for value in point[1:] if value > 0] + ([ceiling] if ceiling else [])
    vertical = _Axis(values, HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{_text(title)}</text>']
    parts += _grid(horizontal, vertical, sorted({point[0] for point in points}), unit)
    if ceiling:
        y = vertical.at(ceiling)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999" stroke-dasharray="4 4"/>'
        )
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end" fill="#666">ceiling {unit(ceiling)}</text>'
        )
    for item in series:
        parts.append(_line(item, horizontal, vertical))
    labelled = [item for item in series if item.label][:8]
    for number, item in enumerate(reversed(labelled)):  # at the lower right: bandwidth and time rise with size
        x, y = WIDTH - RIGHT - 10, HEIGHT - BOTTOM - 10 - 16 * number
        parts.append(
            f'<line x1="{x - 24}" x2="{x}" y1="{y - 4}" y2="{y - 4}" stroke="{item.colour}" stroke-width="2" '
            f'stroke-dasharray="{item.dash}"/><text x="{x - 30}" y="{y}" text-anchor="end">{_text(item.label)}</text>'
        )
    return "".join(parts)


def _grid(horizontal: _Axis, vertical: _Axis, sizes: list[float], unit: Callable[[float], str]) -> Iterator[str]:
    step = max(1, math.ceil(len(sizes) / 11))
    for size in sizes[::step]:
        x = horizontal.at(size)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{format_size(int(size))}</text>'
    for value in vertical.decades():
        y = vertical.at(value)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{unit(value)}</text>'


def _line(item: Series, horizontal: _Axis, vertical: _Axis) -> str:
    places = [(horizontal.at(size), vertical.at(value)) for size, value, _, _ in item.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    width, opacity = ("1", "0.6") if item.fitted else ("2", "1")
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{item.colour}" stroke-width="{width}" opacity="{opacity}" '
        f'stroke-dasharray="{item.dash}"/>'
    ]
    if not item.fitted:
        for (x, y), (_, _, low, high) in zip(places, item.points, strict=True):
            if low > 0 and high > 0:
                ends = f'y1="{vertical.at(low):.1f}" y2="{vertical.at(high):.1f}"'
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{item.colour}" opacity="0.4"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{item.colour}"/>')
    return "".join(parts)
