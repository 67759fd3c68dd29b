"""The estimate as people read it: the answer, a line for each number of GPUs, and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.estimate import LEAST_EFFICIENCY, MOST_SHARE, Cost, Estimate, Measured, Met, Needs, Row
from nccl_doctor.bench.rates import Range
from nccl_doctor.bench.verdict import rate
from nccl_doctor.facts.collectives import BUS_FACTORS
from nccl_doctor.facts.fold import counted
from nccl_doctor.report.bench_console import microseconds
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import print_hanging, print_labelled

_HEAD: dict[Met, tuple[str, str]] = {
    "met": ("✓ MET", "green"),
    "missed": ("✗ MISSED", "red"),
    "cannot-tell": ("? CANNOT TELL", "yellow"),
}
_PARAMS = ((1e12, "trillion "), (1e9, "billion "), (1e6, "million "), (1, ""))
_TARGETS = f"at most {MOST_SHARE * 100:.0f} % of the step, at least {LEAST_EFFICIENCY * 100:.0f} % efficiency"


def render(found: Estimate, console: Console, exit_code: int) -> None:
    """Print the estimate."""
    for line in _verdicts(found):
        print_hanging(console, line)
    console.print(Text(_asked(found)))
    console.print(Padding(_table(found.rows), (0, 0, 0, 2), expand=False))
    for label, text in _notes(found):
        print_labelled(console, label, "cyan", Text(visible(text)))
    console.print(Text(f"  exit {exit_code}", "dim"))


def _verdicts(found: Estimate) -> Iterator[Text]:
    """Which numbers of GPUs meet the targets; what could not be told, and why."""
    known = [row for row in found.rows if row.share is not None]
    for met, (word, color) in _HEAD.items():
        if rows := [row for row in known if row.met == met]:
            yield _line(word, color, f"{_who(rows)}: {_answer(met, rows)}")
    if found.trouble:
        yield _line(*_HEAD["cannot-tell"], found.trouble)
    for why in dict.fromkeys(row.trouble for row in found.rows if row.trouble):
        rows = [row for row in found.rows if row.trouble == why]
        yield _line("? NOT ESTIMATED", "yellow", f"{_who(rows)}: {why}")


def _line(word: str, color: str, told: str) -> Text:
    return Text(word, f"bold {color}").append(f": {visible(told)}", "not bold default")


def _who(rows: list[Row]) -> str:
    return ", ".join(str(row.gpus) for row in rows) + (" GPU" if rows[-1].gpus == 1 else " GPUs")


def _answer(met: Met, rows: list[Row]) -> str:
    shares, efficiencies = [row.share for row in rows if row.share], [row.efficiency for row in rows if row.efficiency]
    if met == "met":
        if all(row.gpus == 1 for row in rows):
            return "one GPU sends nothing"
        worst = max(item.high for item in shares), min(item.low for item in efficiencies)
        return f"communication is {_percent(worst[0])} of the step at most, efficiency {_percent(worst[1])} at least"
    if met == "missed":
        best = min(item.low for item in shares), max(item.high for item in efficiencies)
        return (
            f"communication is {_percent(best[0])} of the step at least, efficiency {_percent(best[1])} at most, even with "
            "all of it hidden that can be"
        )
    ranges = any(row.busbw is not None and row.busbw.low < row.busbw.high for row in rows)
    rates = ", and on where in their ranges the rates lie" if ranges else ""
    return f"it depends on how much of the communication is hidden behind computation{rates}"


def _asked(found: Estimate) -> str:
    question, model = found.question, found.question.model
    types = model.dtype if model.dtype == model.grad_dtype else f"{model.dtype}, gradients {model.grad_dtype}"
    batches = f", {model.accumulate} micro-batches a step" if model.accumulate > 1 else ""
    scaling = "a step's work divided among the GPUs" if question.strong else "each GPU's work stays the same"
    count = next(f"{model.params / size:.4g} {unit}" for size, unit in _PARAMS if model.params >= size)
    return f"{question.way}, {count}parameters, {types}{batches}; {scaling}"


def _table(rows: tuple[Row, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns: dict[str, Callable[[Row], Text | str]] = {
        "GPUs": lambda row: str(row.gpus),
        "hosts": lambda row: str(row.hosts),
        "communication": lambda row: _times(row.communication),
        "step": lambda row: _times(row.step),
        "of the step": lambda row: _share(row.share, row.share_met),
        "efficiency": lambda row: _share(row.efficiency, row.efficiency_met),
    }
    if not any(row.step for row in rows):
        columns = {name: cell for name, cell in columns.items() if name not in ("step", "of the step", "efficiency")}
    for name in columns:
        grid.add_column(name, justify="right", no_wrap=name in ("GPUs", "hosts"), overflow="fold")
    for row in rows:
        grid.add_row(*(cell(row) for cell in columns.values()))
    return grid


def _times(seconds: Range | None) -> str:
    return "?" if seconds is None else _two(seconds, lambda value: microseconds(value * 1e6))


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if 0 < share < 0.00995 else f"{share * 100:.0f} %"


def _share(share: Range | None, met: Met) -> Text:
    if share is None:
        return Text("?")
    low, high = (f"{end * 100:.0f}" for end in (share.low, share.high))
    word, color = _HEAD[met]
    return Text(f"{low if low == high else f'{low} to {high}'} % {word[0]}", color)


def _notes(found: Estimate) -> Iterator[tuple[str, str]]:
    """What is sent, over which rates, what it takes, and what all of it assumes."""
    known = [row for row in found.rows if row.costs]
    for number, cost in enumerate(known[0].costs if known else ()):
        yield "each sends", _sent(cost, [row.costs[number] for row in known])
    yield from _rates(known)
    for row in known:
        if row.needs is not None:
            yield "it takes", _needs(row, row.needs)
    for row in found.rows:
        if row.measured is not None:
            yield "measured", _measured(row, row.measured)
    for command in dict.fromkeys(_command(found, row) for row in found.rows if row.trouble):
        yield "measure", command
    if known:
        yield "assumed", " ".join(_assumptions(found, known))


def _sent(cost: Cost, same: list[Cost]) -> str:
    """One collective of all rows, with its formula."""
    title, formula = COLLECTIVES[cost.collective].title, BUS_FACTORS[cost.collective]
    total = _gigabytes(cost.calls * cost.call_bytes)
    sent = ", ".join(_gigabytes(item.sent_bytes) for item in same)
    calls = f"{counted(cost.calls, 'call')} of {_gigabytes(cost.call_bytes)}"
    return f"{title} of the {cost.what}, {calls} a step: {formula} x {total} = {sent}"


def _gigabytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def _rates(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """What each collective's time is reckoned by; the rows that are told in the same words together."""
    told: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        for cost in row.costs:
            figures = cost.rate
            busbw = _two(figures.busbw, rate)
            latency = _two(figures.latency_us, microseconds)
            beyond = f" ({'; '.join(figures.beyond)})" if figures.beyond else ""
            words = f"{busbw}, {latency} a call, by {figures.source}{beyond}"
            told.setdefault(words, {}).setdefault(cost.collective, []).append(row.gpus)
    for words, by_name in told.items():
        gpus = sorted({one for many in by_name.values() for one in many})
        yield "rates", f"{', '.join(map(str, gpus))} GPUs: {', '.join(by_name)} at {words}"


def _two(ends: Range, words: Callable[[float], str]) -> str:
    one, other = (words(end) if end else "0" for end in (ends.low, ends.high))
    return one if one == other else f"{one} to {other}"


def _needs(row: Row, needs: Needs) -> str:
    """The bandwidth that would do."""
    assert row.busbw is not None
    if needs.hidden is None:
        return f"{row.gpus} GPUs: no bus bandwidth is enough: it takes fewer calls, or more computation in a step"
    enough = [f"{rate(needs.hidden)} with all hidden that can be"] if row.met == "missed" else []
    enough += [f"{rate(needs.bare)} with nothing hidden"] if needs.bare else []
    never = "" if needs.bare else "; with nothing hidden none is enough, as the calls alone take too long"
    least = f"a bus bandwidth of {', '.join(enough)}" if enough else "that part of the communication is hidden"
    return f"{row.gpus} GPUs: {least}{never}; it is {_two(row.busbw, rate)}"


def _measured(row: Row, measured: Measured) -> str:
    told = f"{row.gpus} GPUs: {microseconds(measured.seconds * 1e6)}, efficiency {_percent(measured.efficiency)}"
    if not measured.off:
        return told if measured.off is None else f"{told}; within the estimate"
    if measured.off > 0:
        why = "slower links than these rates, or stragglers, input, uneven work; bench tells the first"
        return f"{told}; {measured.off * 100:.0f} % longer than estimated: {why}"
    why = "the rates are lower than what the job has, or the first step was measured otherwise"
    return f"{told}; {-measured.off * 100:.0f} % shorter than estimated: {why}"


def _command(found: Estimate, row: Row) -> str:
    """How the missing rate is measured."""
    from nccl_doctor.bench.parallelism import ways

    names = ",".join(dict.fromkeys(item.collective for item in ways()[found.question.way].sends))
    hosts = "" if row.hosts == 1 else " --hosts HOSTFILE"
    per_host = min(row.gpus, found.question.gpus_per_host)
    return f"nccl-doctor bench {names}{hosts} --gpus-per-host {per_host} --sizes 1M:1G:x4 --save run.json, then --from run.json"


def _assumptions(found: Estimate, rows: list[Row]) -> Iterator[str]:
    yield "Bytes are those of a ring; parameters alone are counted, no buffers, losses or norms."
    if any(row.step for row in rows):
        yield (
            "Ranges reach from all communication hidden behind computation, as far as it lasts, to none hidden"
            f" (targets: {_TARGETS}); as much is hidden on any number of GPUs, and what runs beside computation does not"
            " slow it."
        )
    if found.question.model.accumulate > 1 and any(cost.window not in (0.0, 1.0) for row in rows for cost in row.costs):
        yield "Gradients are sent once a step (DDP, FSDP: under no_sync), so only the last micro-batch can hide that."
    if any(cost.window == 0 for row in rows for cost in row.costs):
        yield "What is sent after the optimizer's step is never hidden."
    if found.note:
        yield found.note
    if any(item.startswith("measured on") for row in rows for cost in row.costs for item in cost.rate.beyond):
        yield (
            "On other numbers of ranks than measured each link is taken to be as fast as it was (no oversubscribed switches),"
            " with bandwidth and latency between what a ring and the best algorithm make of it."
        )
