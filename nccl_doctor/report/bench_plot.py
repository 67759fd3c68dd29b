"""Plots of bus bandwidth and time over size: SVG, or HTML that needs nothing else. Several runs overlaid.

Written by hand rather than with a plotting library: two log-log panels for each collective are all there is to draw, and
the file must not bring in scripts, fonts or anything remote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from nccl_doctor.bench.ceiling import Ceiling
from nccl_doctor.bench.model import Measurement
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import percent
from nccl_doctor.bench.verdict import rate
from nccl_doctor.facts import files
from nccl_doctor.report.bench_console import MODES, head, microseconds, not_measured, notes, verdict_lines
from nccl_doctor.report.safe_text import moment, visible

# Okabe-Ito: told apart with every kind of colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 500, 300, 78, 12, 62, 34  # of one panel, and its margins
LETTER = 6.4  # pixels, about, of a letter in a legend

Run = tuple[str, Outcome]


class Series(msgspec.Struct, frozen=True):
    """One line of a plot: its label, points (size, value, low, high), fitted points (size, value), colour and dash."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    colour: str
    dash: str = ""
    fitted: tuple[tuple[float, float], ...] = ()


def write_plot(path: Path, runs: Sequence[Run]) -> None:
    """Write the plot that the file's ending asks for (.svg or .html); ``OSError`` passes through."""
    text = html(runs) if path.suffix.lower() == ".html" else svg(runs)
    files.write(path, text.encode())


def svg(runs: Sequence[Run], names: Sequence[str] = ()) -> str:
    """One picture: a row for each collective (of ``names``, else of all runs), bandwidth at the left, time at the right."""
    rows = [_row(name, runs) for name in names or _names(runs)]
    rows = rows or [(f'<text x="{LEFT}" y="20">nothing was measured</text>', "")]
    body = "".join(
        f'<g transform="translate({side * WIDTH} {number * HEIGHT})">{panel}</g>'
        for number, panels in enumerate(rows)
        for side, panel in enumerate(panels)
    )
    width, height = 2 * WIDTH, HEIGHT * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'
    )


def html(runs: Sequence[Run]) -> str:
    """What ran and what is to be said of it, then the picture and the numbers of each collective."""
    names = _names(runs)
    title = _text(", ".join(names) or "nothing was measured")
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>nccl-doctor bench: " + title + "</title>",
        "<style>body{font:14px sans-serif;margin:2em;max-width:64em}td,th{padding:.15em .8em;text-align:right;white-space:nowrap}"
        "caption{text-align:left;padding:.5em 0}.wide{overflow-x:auto;margin-bottom:1em}"
        "svg{max-width:100%;height:auto}</style></head><body>",
        f"<h1>{title}</h1>",
    ]
    for label, run in runs:
        parts.append(f"<h2>{_text(label)}: {_text(moment(run.created))}</h2>")
        parts += [f"<p>{_text(line.plain)}</p>" for line in head(run.world, run.results)]
        parts.append(f"<p>{_text(run.path.words)} ({'proved' if run.path.proved else 'not proved'})</p>")
        parts += [f"<p><b>{_text(item.id)}</b> {_text(item.title)}</p>" for item in run.findings]
        parts += [f"<p>{_text(line.plain)}</p>" for line in verdict_lines(run)]
        for name in run.plan.collectives:
            own = [item for item in run.results.skips if item.collective == name]
            parts += [f"<p>{_text(f'{name}: {told}')}</p>" for told in not_measured(own)]
        parts += [f"<p>{_text(note)}</p>" for note in notes(run)]
    for name in names:
        parts += [f"<h2>{_text(name)}</h2>", svg(runs, [name])]
        parts += [table for label, run in runs for table in _tables(name, label if len(runs) > 1 else "", run)]
    return "".join(parts) + "</body></html>\n"


def _tables(name: str, label: str, run: Outcome) -> Iterator[str]:
    for mode, own in _modes(name, run):
        caption = ", ".join(filter(None, (MODES.get(mode, mode), label)))
        heads = "".join(f"<th>{head}</th>" for head in ("size", "time", "algbw", "busbw", "p99", "cv", "#wrong"))
        rows = []
        for item in own:
            cells = (
                format_size(item.size), microseconds(item.time_us), rate(item.algbw_gbs), rate(item.busbw_gbs),
                microseconds(item.spread.p99_us), percent(item.spread.cv), "-" if item.wrong is None else str(item.wrong),
            )  # fmt: skip
            rows.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + "</tr>")
        yield f"<div class='wide'><table><caption>{_text(caption)}</caption><tr>{heads}</tr>{''.join(rows)}</table></div>"


def _text(value: str) -> str:
    return escape(visible(value), quote=True)


def _names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(item.collective for _, run in runs for item in run.results.measurements))


def _modes(name: str, run: Outcome) -> list[tuple[str, list[Measurement]]]:
    own = [item for item in run.results.measurements if item.collective == name]
    return [(mode, [item for item in own if item.mode == mode]) for mode in dict.fromkeys(item.mode for item in own)]


def _row(name: str, runs: Sequence[Run]) -> tuple[str, str]:
    """The two panels of one collective; each mode of each run is a line in both."""
    bandwidths: list[Series] = []
    times: list[Series] = []
    for number, (label, run) in enumerate(runs):
        for mode, own in _modes(name, run):
            colour, dash = COLOURS[len(times) % len(COLOURS)], DASHES[number % len(DASHES)]
            said = ", ".join(filter(None, (MODES.get(mode, mode), label if len(runs) > 1 else "")))
            line = next((item.fit for item in run.fits if (item.collective, item.mode) == (name, mode)), None)
            fitted = tuple((float(i.size), line.alpha_us + i.size / line.beta_gbs / 1e3) for i in own) if line else ()
            bandwidths.append(Series(said, tuple((float(i.size), i.busbw_gbs, 0.0, 0.0) for i in own), colour, dash))
            spans = tuple((float(i.size), i.spread.median_us, i.spread.min_us, i.spread.p99_us) for i in own)
            times.append(Series(said, spans, colour, dash, fitted))
    return (
        _panel(f"{name}: bus bandwidth", bandwidths, rate, runs[0][1].ceiling),  # another run's hosts may have others
        _panel("time per call (median, minimum to p99; thin: fit)", times, microseconds, None),
    )


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


def _panel(title: str, series: list[Series], unit: Callable[[float], str], ceiling: Ceiling | None) -> str:
    points = [point for item in series for point in item.points]
    horizontal = _Axis([point[0] for point in points], LEFT, WIDTH - RIGHT)
    values = [value for point in points for value in point[1:] if value > 0] + ([ceiling.gbs] if ceiling else [])
    vertical = _Axis(values, HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{_text(title)}</text>']
    parts += _legend(series)
    parts += _grid(horizontal, vertical, sorted({point[0] for point in points}), unit)
    if ceiling:
        y = vertical.at(ceiling.gbs)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999" stroke-dasharray="4 4"/>'
        )
        parts.append(
            f'<text x="{LEFT + 6}" y="{y + 14:.1f}" fill="#666">{ceiling.name} {_text(rate(ceiling.gbs))}</text>'
        )
    parts += [_line(item, horizontal, vertical) for item in series]
    return "".join(parts)


def _legend(series: list[Series]) -> Iterator[str]:
    """Between the title and the plot, where it covers no point; on a second line what has no room on the first."""
    x, y = float(LEFT), 38.0
    for item in series:
        width = 40 + LETTER * len(item.label)
        if x > LEFT and x + width > WIDTH - RIGHT:
            x, y = float(LEFT), y + 16
        yield (
            f'<line x1="{x:.0f}" x2="{x + 24:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{item.colour}" '
            f'stroke-width="2" stroke-dasharray="{item.dash}"/><text x="{x + 28:.0f}" y="{y:.0f}">{_text(item.label)}</text>'
        )
        x += width


def _grid(horizontal: _Axis, vertical: _Axis, sizes: list[float], unit: Callable[[float], str]) -> Iterator[str]:
    step = max(1, math.ceil(len(sizes) / 8))
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
    parts = [_path(places, f'stroke="{item.colour}" stroke-width="2" stroke-dasharray="{item.dash}"')]
    if item.fitted:
        curve = [(horizontal.at(size), vertical.at(value)) for size, value in item.fitted]
        parts.append(_path(curve, f'stroke="{item.colour}" stroke-width="1" opacity="0.6"'))
    for (x, y), (_, _, low, high) in zip(places, item.points, strict=True):
        if low > 0 and high > 0:
            ends = f'y1="{vertical.at(low):.1f}" y2="{vertical.at(high):.1f}"'
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{item.colour}" opacity="0.4"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{item.colour}"/>')
    return "".join(parts)


def _path(places: Iterable[tuple[float, float]], style: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" fill="none" {style}/>'
