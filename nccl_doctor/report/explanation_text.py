"""How an explanation is told on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nccl_doctor.explain.model import Cause, Explanation, Moment, Verdict
from nccl_doctor.facts.fold import counted, few, numbered
from nccl_doctor.facts.fold import fold as fold_hosts
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Evidence, Fix
from nccl_doctor.report.explanation import verdict
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import confidence_word, print_again, print_hanging

QUOTES = 4  # evidence lines shown; --format json has them all
FIXES = 4  # of those that a saved run proposes
QUOTE_WIDTH = 300
LONG_NAME = 16  # columns
_LABEL = 21
_PROSE = 105  # columns: longer lines are hard to read, however wide the terminal
_MARK = {
    Verdict.CAUSE_FOUND: ("✗", "bold red"),
    Verdict.UNDECIDED: ("?", "bold yellow"),
    Verdict.HEALTHY: ("✓", "bold green"),
    Verdict.NOT_DISTRIBUTED: ("✗", "bold magenta"),
}


def print_explanation(explanation: Explanation, console: Console, seconds: float = 0.0) -> None:
    """Print it for a person. All text of the logs goes through :func:`visible` and is never read as markup."""
    read = explanation.read
    if read.files:
        files = counted(read.files, "file")
        console.print(Text(f"  {files}, {_size(read.bytes)}, {seconds:.1f} s", "dim"))
        console.print()
    mark, style = _MARK[verdict(explanation)]
    sentence = Text(f"{mark} ", style)
    if explanation.verdict is Verdict.NOT_DISTRIBUTED:
        sentence.append("not a failure of distributed communication: ", style)
    sentence.append(visible(explanation.sentence), "bold")
    console.print(sentence)
    console.print()
    _print_body(explanation, console)
    for problem in explanation.problems[:8]:
        label = "" if problem.problem.startswith(("not measured: ", "not judged: ")) else "not read: "
        console.print(Text(f"  {label}{visible(problem.name)}: {visible(problem.problem)}", "yellow"))
    if len(explanation.problems) > 8:
        console.print(Text(f"  and {len(explanation.problems) - 8} more (--format json)", "yellow"))
    print_again(console, sentence)


def _print_body(explanation: Explanation, console: Console) -> None:
    """What proves the verdict, and what to do."""
    undecided = explanation.verdict is Verdict.UNDECIDED
    if undecided and explanation.next:  # what would decide comes first; no repair of what may not be broken is shown
        _rows(console, "next", explanation.next[:4])
        console.print()
    best = explanation.causes[0].confidence if explanation.causes else 0.0
    # Guesses that are less than half as likely as the first help nobody.
    rivals = [item for item in explanation.causes if item.confidence >= best / 2]
    shown = rivals[:3] if undecided else rivals[:1]
    quoted: set[tuple[str, int | None, str]] = set()
    for cause in shown:
        _print_cause(cause, console, quoted, decided=not undecided)
    others = [item for item in explanation.causes[len(shown) :] if item.confidence >= 0.3][:3]
    for label, items in (
        # What a saved run measured can be surer than what this log tells.
        ("also found", [item for item in others if item.confidence >= best]),
        ("less likely", [item for item in others if item.confidence < best]),
    ):
        if items:
            _row(console, label, ", ".join(f"{item.id} ({item.confidence:.2f})" for item in items))
    if explanation.consequences:
        folded = ", ".join(_consequence(item.text, item.count, item.ranks) for item in explanation.consequences[:6])
        _row(console, "consequences", folded)
    if explanation.verdict is not Verdict.HEALTHY and len(explanation.timeline) > 1:
        _rows(console, "timeline", [_moment(moment) for moment in explanation.timeline[:6]])
    healthy = explanation.verdict is Verdict.HEALTHY
    for item in explanation.evidence[:3] if healthy else ():
        console.print(_quote(item))
    if not undecided and not healthy:
        _rows(console, "next", explanation.next[:4])
    for fault in explanation.overcome[:6]:
        _row(console, "overcome", fault)
    for remark in explanation.worth_knowing[:3]:
        _row(console, "worth knowing", f"{remark.text}\nnccl-doctor playbook {remark.playbook}")
        console.print(_quote(remark.evidence))
    for note in explanation.notes[:6] if healthy or (undecided and not explanation.causes) else ():
        _row(console, "harmless here", note)
    if healthy:
        _rows(console, "next", explanation.next[:4])
    if explanation.versions:
        _row(console, "versions", ", ".join(f"{name} {value}" for name, value in explanation.versions.items()))


def _print_cause(cause: Cause, console: Console, quoted: set[tuple[str, int | None, str]], decided: bool) -> None:
    where = []
    if cause.ranks:
        where.append(numbered("rank", cause.ranks))
    if cause.hosts:
        where.append(_hosts(cause.hosts))
    for widths in ((26, 34), (0, 0)):  # in columns where they fit
        head = Text("  ").append(f"{cause.id:<{widths[0]}}", "bold")
        head.append(f"  {visible(', '.join(where)):<{widths[1]}}" if where or widths[1] else "")
        head.append(f"  {cause.confidence:.2f}, {confidence_word(cause.confidence)}")
        if head.cell_len <= console.width:
            break
    console.print(head)
    new = [item for item in cause.evidence[:QUOTES] if (item.source, item.line, item.text) not in quoted]
    quoted.update((item.source, item.line, item.text) for item in new)
    for item, before in zip(new, [None, *new], strict=False):
        console.print(_quote(item, same=before is not None and item.source == before.source))
    if again := len(cause.evidence[:QUOTES]) - len(new):
        console.print(Text(f"     {counted(again, 'line')} quoted above", "dim"))
    if (more := len(cause.evidence) - QUOTES) > 0:
        console.print(Text(f"     and {counted(more, 'more line')} (--format json)", "dim"))
    meaning = playbooks.load(cause.playbook).title if cause.playbook else cause.title
    if not decided and meaning not in cause.title:
        _row(console, "would mean", meaning)
    for number, fix in enumerate(cause.fixes[:FIXES] if decided else ()):
        _print_fix("fix now" if number == 0 else "", fix, console)
    if decided and cause.for_good:
        _print_fix("fix for good", cause.for_good, console)
    for entry in cause.env[:4] if decided else ():
        text = f"unset {entry.name}" if entry.unset else f"{entry.name}={entry.value}"
        _row(console, "environment", f"{text}   ({entry.reason}; NCCL {entry.versions})")
    if cause.playbook:
        _row(console, "playbook", f"nccl-doctor playbook {cause.playbook}")
    console.print()


def _print_fix(label: str, fix: Fix, console: Console) -> None:
    """What to do, and beneath it the command, whole, however long: it is there to be copied."""
    _row(console, label, fix.told)
    if fix.command:
        where = f"on {visible(fix.host)}: " if fix.host else ""
        console.print(Text(" " * _LABEL + where).append(visible(fix.command), "bold"), soft_wrap=True)


def _hosts(names: tuple[str, ...]) -> str:
    """As a node set, unless that is longer than a few of them (names without numbers)."""
    folded, some = fold_hosts(names) if len(names) > 1 else "", few(names)
    return folded if "[" in folded and len(folded) < len(some) else some


def _quote(item: Evidence, same: bool = False) -> Padding:
    """The line and its place; of the ``same`` file as the line above only its number, where the name is long."""
    source = "…" if same and len(item.source) > LONG_NAME else visible(item.source)
    place = f"{source}:{item.line}" if item.line else visible(item.source)
    text = visible(item.text)
    if item.host and not item.line:  # what a saved run measured: no log names the host there
        place = f"{visible(item.host)}:{place}"
    if len(text) > QUOTE_WIDTH:
        text = text[: QUOTE_WIDTH - 1] + "…"
    quoted = Text(place, "cyan")
    quoted.append("  " + text, "default")
    return Padding(quoted, (0, 0, 0, 5), expand=False)


def _consequence(text: str, count: int, ranks: tuple[int, ...]) -> str:
    where = f" on {len(ranks)} ranks" if len(ranks) > 1 else f" on rank {ranks[0]}" if ranks else ""
    return f"{text} ({count}x{where})"


def _moment(moment: Moment) -> str:
    when = moment.when or (f"line {moment.line}" if moment.line else "")
    return f"{when:<10} {moment.who:<12} {moment.what}"


def _row(console: Console, label: str, text: str) -> None:
    """A label and its text, which wraps beneath itself; what is a command does not wrap."""
    _rows(console, label, text.split("\n"))


def _rows(console: Console, label: str, texts: Sequence[str]) -> None:
    """The same of several texts, each on a line of its own; the label stands before the first."""
    for number, text in enumerate(texts):
        head = Text(f"{label if number == 0 else '':<{_LABEL - 2}}", "dim")
        print_hanging(console, head.append(visible(text), "not dim"), 2, _LABEL - 2, most=_PROSE)


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
