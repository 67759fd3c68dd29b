"""The answer to "who holds my job?" as an engineer reads it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import fold, ranges
from nccl_doctor.report import console as report_console
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import print_again, print_labelled
from nccl_doctor.rules.hang import Hang, JobRow, RankRow
from nccl_doctor.rules.units import duration

_HEAD = {
    "held": ("✗ HELD", "bold red"),
    "stands": ("? STANDS", "bold yellow"),
    "moves": ("? MOVES", "bold yellow"),
    "not-known": ("? NOT KNOWN", "bold yellow"),
    "no-job": ("? NO JOB", "bold yellow"),
    "several-jobs": ("? WHICH JOB", "bold yellow"),
}


_DOING = {
    "stopped": "stopped",
    "frozen": "frozen with its cgroup",
    "traced": "held by a debugger",
    "ended": "ended",
    "crashed": "crashed, its core dump is being written",
    "kernel": "stuck in the kernel",
    "collective": "in",
    "store": "wait for others in",
    "loader": "wait for a DataLoader worker",
    "saving": "write a checkpoint",
    "loading": "load a file",
    "importing": "import modules",
    "backward": "in backward",
    "gpu": "wait for the GPU",
    "own": "in own code",
    "asleep": "asleep",
    "running": "running",
    "unknown": "not known",
}


def render(
    answer: Hang, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int | None = None
) -> None:
    """Print the answer. Nothing in it can drive the terminal: all remote text goes through ``visible``."""
    word, style = _HEAD[answer.verdict]
    verdict = Text(word, style).append(f": {visible(answer.sentence)}.", "bold")
    console.print(verdict)
    if answer.verdict in ("several-jobs", "no-job"):
        if answer.verdict == "no-job":
            console.print(Text("  if it has ended, nccl-doctor explain reads its logs"))
            report_console.body(answer.report, console, verbose)
        for job in answer.jobs:
            console.print(Text(f"  --job {visible(job.id):<32} {_told(job)}"), soft_wrap=True)
    else:
        for job in answer.jobs[:1]:
            print_labelled(console, "job", "green", Text(f"{visible(job.id)}   {_told(job)}"))
        if answer.verdict == "moves":
            console.print(
                Text("  if it is only slow: nccl-doctor watch tells which host lags, nccl-doctor bench which link")
            )
        report_console.body(answer.report, console, verbose)
        for line in _groups(answer.ranks, verbose):
            print_labelled(console, "ranks", "cyan", line)
    for gap in () if answer.verdict == "several-jobs" else report_console.not_checked(answer.report, verbose):
        print_labelled(console, "not checked", "yellow", gap)
    report_console.tail(answer.report, console, saved, exit_code)
    print_again(console, verdict)


def _told(job: JobRow) -> str:
    found = f"{job.found} of {job.world} ranks" if job.world else f"{job.found} ranks"
    return visible(f"{job.script}, {found} on {fold(job.hosts)}, started {duration(job.age_s)} ago")


def _groups(rows: tuple[RankRow, ...], verbose: bool) -> list[Text]:
    """What the ranks do, those that do the same together."""
    grouped: dict[tuple[str, str, str], list[RankRow]] = {}
    for row in rows:
        grouped.setdefault((row.doing, row.where, row.state), []).append(row)
    lines = []
    for (doing, where, state), members in sorted(grouped.items(), key=lambda item: -len(item[1])):
        who = f"{ranges(row.rank for row in members)} on {fold(row.host for row in members)}"
        kind, _, name = doing.partition(" ")
        told = visible(f"{_DOING.get(kind, kind)} {name}".rstrip())
        place = f" at {visible(where)}" if where else ""
        line = Text(f"{visible(who)}: {told}{place} (state {state or 'gone'})")
        if verbose or len(members) == 1:
            line.append("   pid " + ", ".join(str(row.pid) for row in members), "dim")
        lines.append(line)
    return lines
