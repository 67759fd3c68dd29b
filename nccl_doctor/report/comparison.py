"""What changed, as an engineer reads it: new failures first, then the facts behind them, then what else differs."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import counted, few, fold
from nccl_doctor.findings.model import Severity
from nccl_doctor.report.safe_text import moment, visible
from nccl_doctor.report.terminal import print_again, print_hanging
from nccl_doctor.rules.compare import NEW, Comparison, FactChange, FindingChange

CHANGES_SHOWN = 40
_STYLE = {
    "new": "bold red",
    "worse": "bold red",
    "first-looked": "bold red",
    "not-measured": "bold yellow",
    "milder": "cyan",
    "gone": "green",
}
_WORD = {"not-measured": "unmeasured", "first-looked": "first seen"}  # of what only one of the runs looked at


def render(found: Comparison, console: Console, *, verbose: bool = False) -> None:
    """Print the comparison; all text from hosts goes through ``visible``."""
    console.print(_verdict(found))
    before = f"  before: {visible(found.a)} ({moment(found.created_a)})"
    after = f"after: {visible(found.b)} ({moment(found.created_b)})"
    fits = len(before) + 3 + len(after) <= console.width
    console.print(Text(f"{before}   {after}" if fits else f"{before}\n  {after}", "dim"))
    for names, which in ((found.only_a, "before"), (found.only_b, "after")):
        if names:
            print_hanging(console, Text(f"  only {which}: {visible(fold(names))}", "yellow"), 0, 4)
    told = [item for item in found.findings if verbose or not _is_note_of_one(item)]
    if found.findings:
        console.print(Text("\nfindings", "bold"))
    for item in told:
        _finding(item, console)
    if notes := len(found.findings) - len(told):
        rest = f"... and {counted(notes, 'note')} on what only one run looked at"
        print_hanging(console, Text(f"  {rest} (--verbose shows all)", "dim"), 0, 4)
    if found.changes:
        console.print(Text("\nfacts, the likeliest to matter first", "bold"))
    shown = found.changes if verbose else found.changes[:CHANGES_SHOWN]
    for change in shown:
        print_hanging(console, _change(change), 0, 24)
    if len(found.changes) > len(shown):
        console.print(Text(f"  ... and {len(found.changes) - len(shown)} more (--verbose shows all)", "dim"))
    console.print(Text(f"\n  {counted(len(found.compared), 'host')} compared   exit {found.exit_code.value}", "dim"))
    print_again(console, _verdict(found))


def _is_note_of_one(item: FindingChange) -> bool:
    """Whether it is a note (severity info) on what only one of the runs looked at."""
    return item.severity is Severity.INFO and item.change in _WORD


def _verdict(found: Comparison) -> Text:
    failing = [item for item in found.findings if item.change in NEW and item.severity is Severity.FAIL]
    if failing:
        first, *others = failing
        where = f" on {visible(fold(first.hosts))}" if first.hosts else ""
        more = f", and {len(others)} more below" if others else ""
        return Text("✗ NEW FAILURE", "bold red").append(f": {first.id}{where}{more}.", "bold")
    if not found.compared:
        return Text("? NOTHING COMPARED", "bold yellow").append(": no host is in both.", "bold")
    if found.exit_code:
        return Text("? INCOMPLETE", "bold yellow").append(
            ": nothing new fails, but not all that was measured before was measured again.", "bold"
        )
    if not found.findings and not found.changes:
        return Text("✓ NO CHANGE", "bold green").append(": nothing that is compared differs.", "bold")
    count = counted(len(found.changes), "difference")
    return Text("✓ NOTHING NEW FAILS", "bold green").append(f": {count} in facts.", "bold")


def _finding(item: FindingChange, console: Console) -> None:
    id_width, hosts_width = (34, 20) if console.width >= 90 else (0, 0)  # in columns where they fit
    text = Text(f"  {_WORD.get(item.change, item.change):<11}", _STYLE[item.change])
    text.append(f"{item.id:<{id_width}}", "bold").append(f"  {visible(fold(item.hosts)):<{hosts_width}}")
    text.append(f"  {item.severity.value}", "dim")
    if item.where:
        text.append(f"  {visible(few(item.where))}")
    if item.change == "first-looked":
        text.append("  the run before did not look for it: it may be older", "dim")
    print_hanging(console, text, 0, 13)
    print_hanging(console, Text(visible(item.title)), 13)


def _change(item: FactChange) -> Text:
    items = f" {visible(few(item.items))}" if item.items else ""
    text = Text(f"  {visible(fold(item.hosts)):<20}  ", "bold").append(f"{item.label}{items}: ", "not bold")
    text.append(visible(item.before) or "(not there)", "cyan").append(" -> ")
    text.append(visible(item.after) or "(not there)", "bold cyan")
    if item.found:
        return text.append(f"   see {item.found}", "bold red")
    return text.append(f"   {', '.join(item.ids)}", "dim") if item.ids else text
