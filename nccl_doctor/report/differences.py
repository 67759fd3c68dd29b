"""In what the hosts differ, as a folded table: each value with the hosts that have it."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Software
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import print_hanging
from nccl_doctor.rules.drift import DriftRow
from nccl_doctor.rules.engine import facts_of, reached
from nccl_doctor.rules.hardware_table import hardware_table
from nccl_doctor.rules.software_drift import drift_table

VALUES_SHOWN = 20  # of one subject


class DriftLine(msgspec.Struct, frozen=True):
    """One subject of the drift table: (value, hosts, is odd)."""

    subject: str
    values: tuple[tuple[str, str, bool], ...]


def drift(bundle: Bundle) -> list[DriftLine]:
    """The tables of hardware and software, folded: subjects that differ first, of each its commonest values."""
    hosts = reached(bundle)
    every = facts_of(hosts, Software)
    rows = [*hardware_table(hosts, bundle.plan), *drift_table(every)]
    rows = sorted(rows, key=lambda row: row.equal)
    return [_drift_line(row) for row in rows]


def _drift_line(row: DriftRow) -> DriftLine:
    values = [
        (value or "none", fold(hosts), row.tie or value != row.majority) for value, hosts in row.values[:VALUES_SHOWN]
    ]
    if rest := row.values[VALUES_SHOWN:]:
        values.append((f"{len(rest)} more values", fold(host for _, hosts in rest for host in hosts), True))
    return DriftLine(row.subject, tuple(values))


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
