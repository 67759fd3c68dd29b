"""A history as an engineer reads it: what keeps returning first, then avoided failures, then trends."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.history.analyse import LEAST_VALUES, Analysis, Avoided, Component, Trend
from nccl_doctor.report.safe_text import moment, visible
from nccl_doctor.report.terminal import print_hanging

MARKS_SHOWN = 40
COMPONENTS_SHOWN = 12
AVOIDED_SHOWN = 5
TRENDS_SHOWN = 12


def render(found: Analysis, console: Console, *, host: str = "", verbose: bool = False) -> None:
    """Print the analysis; all text from hosts goes through ``visible``."""
    about = f" with {visible(host)}" if host else ""
    head = Text(f"{counted(found.runs, 'run')}{about}, {found.passed} passed", "bold")
    console.print(head.append(f"   {moment(found.first)} to {moment(found.last)}", "not bold dim"))
    returning = [item for item in found.components if item.returns]
    others = [item for item in found.components if not item.returns]
    for title, items in (("keeps returning: failed, passed, and failed again", returning), ("failed", others)):
        shown = items if verbose else items[:COMPONENTS_SHOWN]
        _section(console, title, [_component(item) for item in shown])
        if len(items) > len(shown):
            hosts = fold(item.host for item in items[len(shown) :])
            more = Text(f"  ... and {len(items) - len(shown)} more, on {visible(hosts)} (--verbose shows all)", "dim")
            print_hanging(console, more, 0, 4)
    latest = found.avoided if verbose else found.avoided[-AVOIDED_SHOWN:]
    _section(console, "passed because it avoided a host", [_avoided(item) for item in latest])
    if len(found.avoided) > len(latest):
        console.print(Text(f"  ... and {len(found.avoided) - len(latest)} earlier runs (--verbose shows all)", "dim"))
    _trends(console, found.trends, everything=verbose or bool(host))
    if not found.components and found.passed == found.runs:
        console.print(Text("\nnothing failed in these runs", "green"))
    elif not found.components:  # not measured, or either of two hosts
        told = f"\n{found.runs - found.passed} of {found.runs} runs did not pass; no failure is known to be of "
        print_hanging(console, Text(told + (visible(host) or "one host"), "yellow"), 0, 4)
    else:
        console.print(
            Text("\nper run, oldest first: F failed, p passed, ? not measured; runs without it are left out", "dim")
        )


def _trends(console: Console, trends: Sequence[Trend], everything: bool) -> None:
    told = trends if everything else [item for item in trends if item.answer != "cannot-tell"][:TRENDS_SHOWN]
    _section(console, "trends (95 % interval)", [_trend(item) for item in told])
    rest = len(trends) - len(told)
    if rest and not told:
        why = f"a trend takes {LEAST_VALUES} runs, and more change than noise"
        console.print(Text(f"\nno trend can be told: {why} (--verbose shows the {rest} values so far)", "dim"))
    elif rest:
        few = sum(item.answer == "cannot-tell" for item in trends)
        why = f", of {few} of them nothing can be told" if few else ""
        console.print(Text(f"  ... and {rest} more{why} (--verbose or --host)", "dim"))


def _section(console: Console, title: str, lines: list[Text]) -> None:
    if lines:
        console.print(Text(f"\n{title}", "bold"))
    for line in lines:
        print_hanging(console, line, 0, 4)


def _component(item: Component) -> Text:
    text = Text(f"  {visible(item.label):<30}", "bold red" if item.returns else "bold")
    text.append(f"  failed in {item.failed} of {item.runs} runs", "not bold")
    marks = item.marks if len(item.marks) <= MARKS_SHOWN else "..." + item.marks[-MARKS_SHOWN:]
    text.append(f"   {marks}", "cyan")
    return text.append(f"   {', '.join(item.ids)}   last {moment(item.last_failed)}", "not bold dim")


def _avoided(item: Avoided) -> Text:
    return Text(
        f"  {moment(item.created)}  this run passed because it avoided {visible(fold(item.hosts))}: not repaired",
        "yellow",
    )


def _trend(item: Trend) -> Text:
    text = Text(f"  {visible(item.host) or '(all hosts)':<20}  {visible(item.metric):<18}")
    text.append(f"{item.answer.replace('-', ' '):<12}", "bold red" if item.worse else "bold")
    text.append(f"  mean {item.mean:.3g} {item.unit}, noise {item.noise:.2g} {item.unit}, {item.n} runs")
    if item.slope is None or item.low is None or item.high is None:
        return text.append("   too few runs for a trend", "dim")
    return text.append(
        f"   {item.slope:+.2g} {item.unit} per day ({item.low:+.2g} to {item.high:+.2g}) over {item.days:.1f} days",
        "dim",
    )
