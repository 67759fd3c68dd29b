"""In what the hosts differ, as a folded table for the terminal: each value with the hosts that have it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.model import Bundle
from nccl_doctor.report.html.measured import drift
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import print_hanging
from nccl_doctor.rules.engine import reached


def render(bundle: Bundle, console: Console) -> None:
    """Print every subject in which hosts differ, then how many are equal everywhere. Nothing where nothing is known of
    two hosts."""
    known = len(reached(bundle))
    rows = drift(bundle) if known > 1 else []
    odd = [row for row in rows if len(row.values) > 1]
    if not rows:
        return
    console.print()
    none = f"  nothing that is known of the {known} hosts reached differs"
    console.print(Text("  what differs between hosts" if odd else none, "bold"))
    width = max((len(row.subject) for row in odd), default=0)
    for row in odd:
        for index, (value, hosts, is_odd) in enumerate(row.values):
            line = Text(f"{visible(row.subject) if index == 0 else '':<{width}}  ", "cyan")
            line.append(visible(value), "bold yellow" if is_odd else "not bold default").append(
                f"  on {visible(hosts)}", "dim"
            )
            print_hanging(console, line, 4, width + 2)
    equal = [row.subject for row in rows if len(row.values) == 1]
    if equal:
        words = Text("equal  ", "cyan").append(", ".join(map(visible, equal)), "not bold dim")
        print_hanging(console, words, 4, 7)
