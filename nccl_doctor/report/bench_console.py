"""The benchmark as people read it: what ran and over which path, one line per size, the fit, the verdict, the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nccl_doctor.bench.ceiling import Ceiling
from nccl_doctor.bench.model import GemmRank, Measurement, Results, Skip
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.statistics import Fit, percent
from nccl_doctor.bench.verdict import SizeChange, rate, together
from nccl_doctor.bench.world import World
from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.findings.model import Severity
from nccl_doctor.report.bench_terminal_plot import HEIGHT, WIDTH, lines_of, plot
from nccl_doctor.report.console import entries
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.units import size

_MARK = {"good": ("✓ GOOD", "bold green"), "slow": ("✗ SLOW", "bold red"), "wrong": ("✗ WRONG", "bold red"),
         "cannot-judge": ("? CANNOT JUDGE", "bold yellow")}  # fmt: skip
MODES = {"in": "in place", "out": "out of place", "copy": "copy + in place"}
_BAR = 10


def microseconds(value: float) -> str:
    """A time with its unit: us below 10 ms, then ms, then s."""
    if value < 9995:
        return f"{value:.3g} us" if value < 999.5 else f"{value:.0f} us"
    if value < 999.5e3:
        return f"{value / 1e3:.3g} ms"
    return f"{value / 1e6:.3g} s" if value < 999.5e6 else f"{value / 1e6:.0f} s"


def bar(share: float) -> str:
    """``███     `` for 0.3 of ten."""
    full = min(_BAR, max(0, round(share * _BAR)))
    return "█" * full + "·" * (_BAR - full)


def table(
    measurements: Iterable[Measurement],
    ceiling: Ceiling | None,
    changes: Iterable[SizeChange] = (),
    width: int = 120,
) -> Table:
    """One line per size. Without a ceiling the bar compares with the best size. Narrow terminals get fewer columns."""
    rows, changed = list(measurements), {(c.collective, c.mode, c.size): c for c in changes}
    top = ceiling.gbs if ceiling else max((item.busbw_gbs for item in rows), default=0.0)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    share = f"of {ceiling.name if ceiling else 'best'}"
    names = ("size", "time", "algbw", "busbw", share, "p50", "p99", "cv", "#wrong")
    dropped = {"algbw", "p50"} if width < 98 + (28 if changed else 0) else set()
    dropped |= {share} if width < (100 if changed else 80) else set()
    dropped |= {"p99"} if changed and width < 100 else set()
    for name in names:
        if name not in dropped:
            grid.add_column(name, justify="left" if name.startswith("of") else "right", no_wrap=True)
    if changed:
        grid.add_column("against baseline")
    for item in rows:
        cells = [cell for name, cell in zip(names, _cells(item, top), strict=True) if name not in dropped]
        if changed:
            change = changed.get((item.collective, item.mode, item.size))
            cells.append(Text(change.words if change else "-"))
        grid.add_row(*cells)
    return grid


def _cells(item: Measurement, top: float) -> list[RenderableType]:
    share = item.busbw_gbs / top if top else 0.0
    wrong = "-" if item.wrong is None else f"{item.wrong}"
    return [
        format_size(item.size),
        microseconds(item.time_us),
        rate(item.algbw_gbs),
        rate(item.busbw_gbs),
        Text(f"{bar(share)} {share * 100:3.0f} %"),
        microseconds(item.spread.median_us),
        microseconds(item.spread.p99_us),
        Text(percent(item.spread.cv), style="yellow" if item.spread.doubt else ""),
        Text(wrong, style="bold red" if item.wrong else ""),
    ]


def head(world: World, results: Results) -> Iterator[Text]:
    """Who takes part."""
    hosts = fold(world.per_host)
    ranks, many = counted(world.size, "rank"), counted(len(world.per_host), "host")
    each = sorted(set(world.per_host.values()))
    per = f"{each[0]}" if len(each) == 1 else f"{each[0]} to {each[-1]}"
    alone = world.size == len(world.per_host)  # "4 ranks on 4 hosts" says it already
    spread = f" ({per} a host: {world.ranks_why})" if world.ranks_why and not alone else ""
    yield Text(f"{world.backend} ({world.backend_why}), {ranks} on {many}{spread}: {visible(hosts)}", "bold")
    for names, field in (
        (sorted({record.device_name for record in results.ranks if record.device_name}), "GPU"),
        (sorted({record.torch for record in results.ranks}), "torch"),
        (sorted({record.nccl for record in results.ranks if record.nccl}), "NCCL"),
    ):
        if len(names) > 1:
            yield Text(f"different {field} on the ranks: {visible(', '.join(names))}", "yellow")


def render(outcome: Outcome, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int = 0) -> None:
    """Print the outcome."""
    for line in head(outcome.world, outcome.results):
        console.print(line)
    versions = sorted({record.torch for record in outcome.results.ranks})
    mark = Text("  proved", "green") if outcome.path.proved else Text("  not proved", "yellow")
    torch = f"torch {visible(', '.join(versions)) or '?'}"
    if outcome.plan.sizes:
        console.print(Text(f"{torch}; path: {visible(outcome.path.words)}") + mark)
    else:
        console.print(Text(torch))
    told = {item.collective for item in outcome.results.measurements}
    told |= {item.collective for item in outcome.results.skips}
    for name in outcome.plan.collectives:
        if name in told:  # of the others the verdict says it
            console.print()
            _collective(outcome, name, console)
            for line in _plot(outcome.results, name, outcome.changes, outcome.ceiling, console.width):
                console.print(line)
    if outcome.results.gemm:
        console.print()
        _gemm(outcome, console)
    entries(outcome.findings, console, verbose)
    console.print()
    for line in verdict_lines(outcome):
        console.print(line)
    tail = "; ".join(notes(outcome) + ([f"saved: {saved}"] if saved else []) + [f"exit {exit_code}"])
    console.print(Text(f"{outcome.seconds:.1f} s; {visible(tail)}", "dim"))


def notes(outcome: Outcome) -> list[str]:
    """What else is to be known of a run, and that it did not complete."""
    cut = "the run did not complete: what was measured until then is shown"
    return [*outcome.notes, *([] if outcome.complete else [cut])]


def _collective(outcome: Outcome, name: str, console: Console) -> None:
    own = [item for item in outcome.results.measurements if item.collective == name]
    skips = [item for item in outcome.results.skips if item.collective == name]
    modes = list(dict.fromkeys([item.mode for item in own] + [item.mode for item in skips if item.mode]))
    for mode in modes or [""]:
        title = f"{name}, {outcome.plan.dtype}" + (f", {MODES.get(mode, mode)}" if mode else "")
        console.print(Text(title, "bold"))
        rows = [item for item in own if item.mode == mode]
        left_out = [item for item in skips if item.mode in (mode, "")]
        change = [item for item in outcome.changes if item.mode == mode and item.collective == name]
        if rows:
            console.print(Padding(table(rows, outcome.ceiling, change, console.width), (0, 0, 0, 2), expand=False))
        for told in not_measured(left_out):
            console.print(Text(f"  {told}", "yellow"))
        for item in outcome.fits:
            if (item.collective, item.mode) == (name, mode):
                console.print(Text(f"  {_fit(item.fit)}", "dim"))
        if rows:
            last = max(rows, key=lambda item: item.size)
            if len(last.rank_means_us) > 1:
                where = outcome.results.host_of(last.slowest_rank)
                console.print(
                    Text(
                        f"  slowest rank {last.slowest_rank} ({visible(where)}), {last.slowest_behind * 100:.1f} % "
                        f"behind the average at {format_size(last.size)}",
                        "dim",
                    )
                )


def _fit(line: Fit) -> str:
    if line.poor:
        return f"fit: none: latency + size / bandwidth is {line.error * 100:.0f} % off"
    return (
        f"fit: {microseconds(line.alpha_us)} + size / {rate(line.beta_gbs)} (algbw), error {line.error * 100:.0f} %, "
        f"half bandwidth at {size(line.half_size)}"
    )


def _plot(
    results: Results, name: str, changes: Iterable[SizeChange], ceiling: Ceiling | None, width: int
) -> list[Text]:
    now = [
        (MODES.get(item.mode, item.mode), item.size, item.busbw_gbs)
        for item in results.measurements
        if item.collective == name
    ]
    before = [
        (MODES.get(item.mode, item.mode), item.size, item.before_gbs) for item in changes if item.collective == name
    ]
    drawn = plot(lines_of(now, before), ceiling.gbs if ceiling else 0.0, min(width, WIDTH) - 2)
    return [Text("  " + line, "dim") for line in drawn]


def not_measured(skips: Iterable[Skip]) -> Iterator[str]:
    """The sizes that were left out, a line for each reason."""
    groups: dict[str, dict[int, None]] = {}
    for item in skips:
        groups.setdefault(item.reason, {})[item.size] = None
    for reason, sizes in groups.items():
        told = ", ".join(format_size(size) if size else "all sizes" for size in sizes)
        yield f"not measured: {told}: {visible(reason)}"


def _gemm(outcome: Outcome, console: Console) -> None:
    ranks: list[GemmRank] = sorted(outcome.results.gemm, key=lambda item: item.tflops)
    edge = outcome.results.gemm_edge
    console.print(Text(f"gemm, {edge} x {edge} x {edge} {outcome.plan.dtype}, all ranks at once", "bold"))
    fastest = ranks[-1].tflops
    for item in ranks if len(ranks) <= 16 else [*ranks[:8], *ranks[-2:]]:
        host = visible(outcome.results.host_of(item.rank))
        wrong = "" if not item.wrong else f"   {item.wrong} WRONG elements"
        console.print(
            Text(f"  rank {item.rank:<4} {host:<16} {_flops(item.tflops):>13}  {bar(item.tflops / fastest)}{wrong}")
        )
    slowest = ranks[0]
    where = visible(outcome.results.host_of(slowest.rank))
    console.print(
        Text(
            f"  slowest / fastest: {slowest.tflops / fastest:.2f} (slowest: rank {slowest.rank} on {where}); "
            "with equal batches every rank waits for the slowest"
        )
    )


def _flops(tflops: float) -> str:
    return f"{tflops:.3g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.3g} GFLOP/s"


def verdict_lines(outcome: Outcome) -> Iterator[Text]:
    """The judgement, a line for each: what broke the run, then what can be said of the collectives."""
    broken = next((item for item in outcome.findings if item.severity is Severity.FAIL), None)
    if broken is not None and not any(item.kind == "wrong" for item in outcome.verdicts):
        mark = "✗ FAULTY" if outcome.complete else "✗ FAILED"
        yield Text(mark, "bold red") + Text(f"  {visible(broken.title)}")
    for kind, told in together(outcome.verdicts, outcome.ceiling):
        mark, style = _MARK[kind]
        yield Text(mark, style) + Text(f"  {visible(told)}")


def live(world: World, results: Results, now: str, width: int = 120, height: int = 24) -> Group:
    """What is shown while it runs: the last sizes, and where the terminal is high enough the plot beneath them."""
    parts: list[RenderableType] = list(head(world, results))
    last = ""
    for last in dict.fromkeys(item.collective for item in results.measurements[-12:]):
        own = [item for item in results.measurements if item.collective == last][-12:]
        parts.append(Text(last, "bold"))
        parts.append(Padding(table(own, None, width=width), (0, 0, 0, 2), expand=False))
    if last and height > HEIGHT + 24:
        parts += _plot(results, last, (), None, width)
    parts.append(Text(now, "dim"))
    return Group(*parts)
