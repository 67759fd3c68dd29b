"""The report as an engineer reads it: verdict first, then causes with their proof and fix, then what is not known."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nccl_doctor.findings.model import Evidence, Finding, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.fold import fold
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.judge import Report

EVIDENCE_SHOWN = 4
_STYLE = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "bold cyan"}


def confidence_word(confidence: float) -> str:
    """``certain``, ``likely`` or ``possible``: what a reader needs; the number is in the JSON."""
    return "certain" if confidence >= 0.99 else "likely" if confidence >= 0.75 else "possible"


def render(report: Report, console: Console, *, verbose: bool = False, saved: str = "", exit_code: int = 0) -> None:
    """Print the report. Nothing in it can drive the terminal: all remote text goes through ``visible``."""
    console.print(_verdict(report))
    causes = [item for item in report.causes if verbose or item.severity is not Severity.INFO]
    for number, item in enumerate(causes, 1):
        console.print()
        _finding(number, item, report, console, verbose)
    console.print()
    for line in _closing(report, saved, exit_code, verbose):
        console.print(Padding(line, (0, 0, 0, 2)))


def _verdict(report: Report) -> Text:
    failing = [item for item in report.causes if item.severity is Severity.FAIL]
    warnings = sum(item.severity is Severity.WARN for item in report.causes)
    count = len(report.hosts)
    if report.verdict == "faulty":
        guilty = {host for item in failing for host in item.hosts}
        first = failing[0]
        text = Text("✗ FAULTY", style="bold red")
        problems = f"{len(failing)} problem{'s' if len(failing) > 1 else ''}"
        text.append(
            f": {problems} on {len(guilty)} of {count} host{'s' if count > 1 else ''} would break this job. ", "bold"
        )
        return text.append(
            f"First to fix: {first.id}" + (f" on {visible(fold(first.hosts))}." if first.hosts else "."), "bold"
        )
    if report.verdict == "incomplete":
        text = Text("? INCOMPLETE", style="bold yellow")
        text.append(": nothing wrong was found, but not everything could be measured (see below).", "bold")
    else:
        text = Text("✓ HEALTHY", style="bold green")
        text.append(f": {count} host{'s' if count > 1 else ''} passed every check that was asked for.", "bold")
    if warnings:
        text.append(f" {warnings} warning{'s' if warnings > 1 else ''}.", "bold yellow")
    return text


def _finding(number: int, item: Finding, report: Report, console: Console, verbose: bool) -> None:
    head = Text(f"{number:3}  ")
    head.append(f"{item.id:<32}", _STYLE[item.severity])
    head.append(f"  {visible(fold(item.hosts)):<28}", "bold")
    head.append(f"  {item.severity.value}, {confidence_word(item.confidence)}", "dim")
    console.print(head)

    def line(text: Text, indent: int = 5) -> None:
        console.print(Padding(text, (0, 0, 0, indent)))

    line(Text(visible(item.title)))
    shown = item.evidence if verbose else item.evidence[:EVIDENCE_SHOWN]
    for proof in shown:
        line(_evidence(proof), 7)
    if len(item.evidence) > len(shown):
        line(Text(f"... and {len(item.evidence) - len(shown)} more like these (--verbose shows all)", "dim"), 7)
    for index, fix in enumerate(item.fixes):
        text = Text("fix now    " if index == 0 else "           ", "green")
        text.append(visible(fix.text) + (" (can interrupt running work)" if fix.risky else ""))
        line(text)
        if fix.command:
            where = f"on {visible(fix.host)}: " if fix.host else ""
            line(Text(f"           {where}").append(visible(fix.command), "bold"))
    for advice in item.env:
        setting = f"unset {advice.name}" if advice.unset else f"{advice.name}={advice.value}"
        line(
            Text("set        ", "green").append(visible(setting), "bold").append(f"   {visible(advice.reason)}", "dim")
        )
    book = for_finding(item.id)
    if book:
        line(Text(f"playbook   nccl-doctor playbook {book}", "dim"))
    effects = [other for other in report.findings if other.folded_under == item.id]
    if effects:
        told = sorted(
            {f"{visible(other.id)}{' on ' + visible(fold(other.hosts)) if other.hosts else ''}" for other in effects}
        )
        line(Text(f"└ explains {len(effects)} more: {'; '.join(told)}", "dim"))


def _evidence(proof: Evidence) -> Text:
    place = ":".join(part for part in (proof.host, proof.source, str(proof.line or "")) if part)
    text = Text()
    if place:
        text.append(f"{visible(place)}  ", "cyan")
    if proof.rank is not None:
        text.append(f"rank {proof.rank}  ", "cyan")
    return text.append(visible(proof.text))


def _closing(report: Report, saved: str, exit_code: int, verbose: bool) -> Iterator[Text]:
    passed = [stage.name for stage in report.stages if stage.state in ("pass", "warn")]
    if passed:
        yield Text("passed       ", "green").append(", ".join(passed))
    for stage in report.stages:
        if stage.state == "skipped":
            yield Text("skipped      ", "dim").append(f"{stage.name} ({visible(stage.reason)})", "dim")
    if report.env:
        for advice in report.env:
            setting = f"unset {advice.name}" if advice.unset else f"export {advice.name}={advice.value}"
            yield (
                Text("environment  ", "green")
                .append(visible(setting), "bold")
                .append(f"   {visible(advice.reason)}", "dim")
            )
    else:
        yield Text("environment  ", "green").append("nothing needs setting")
    infos = [item for item in report.causes if item.severity is Severity.INFO]
    if not verbose:
        for item in infos:
            yield Text("note         ", "cyan").append(visible(item.title))
    for gap in report.unknown:
        text = Text("not checked  ", "yellow").append(
            f"{visible(gap.what)} on {visible(fold(gap.hosts))}: {visible(gap.why)}"
        )
        yield text.append(f" (try: {visible(gap.next)})" if gap.next else "")
    tail = f"{len(report.hosts)} host{'s' if len(report.hosts) != 1 else ''}, {report.seconds:.1f} s"
    yield Text(f"{tail}" + (f"   saved: {visible(saved)}" if saved else "") + f"   exit {exit_code}", "dim")
