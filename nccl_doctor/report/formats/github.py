"""GitHub Actions: workflow commands that become annotations. See :func:`summary` for the job summary."""

from __future__ import annotations

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.formats._text import paragraph, quote
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

_COMMAND = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "notice"}


def _data(text: str) -> str:
    """Escaped as a workflow command's message: a log line cannot start a command of its own."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One annotation per cause, one for what is unknown, and the decision."""
    lines = [_annotation(item) for item in report.causes]
    for gap in report.unknown:
        told = visible(f"{gap.what} on {fold(gap.hosts)}: {gap.why}")
        lines.append(f"::warning title={_property('not measured')}::{_data(told)}")
    word = "go" if gate.go else "no-go"
    lines.append(f"::notice title={_property(f'nccl-doctor: {word}')}::{_data(visible(gate.reason))}")
    return "\n".join(lines) + "\n"


def _annotation(item: Finding) -> str:
    title = f"{item.id} on {fold(item.hosts)}" if item.hosts else item.id
    return f"::{_COMMAND[item.severity]} title={_property(visible(title))}::{_data(paragraph(item))}"


def _cell(text: str) -> str:
    """Text inside a Markdown table or line: nothing in it is markup, link or mention."""
    safe = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_{}[]()#+-.!|~@" else character for character in safe)


def summary(report: Report, gate: Gate) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY."""
    word = "go" if gate.go else "no-go"
    lines = [f"### nccl-doctor: {word} ({_cell(gate.reason)})", ""]
    if report.causes:
        lines += ["| severity | finding | hosts | what | proof |", "|---|---|---|---|---|"]
        for item in report.causes:
            first = _cell(quote(item.evidence[0]))
            book = for_finding(item.id)
            name = _cell(item.id) + (f" (playbook {_cell(book)})" if book != item.id else "")
            cells = (item.severity.value, name, _cell(fold(item.hosts)), _cell(item.title), first)
            lines.append(f"| {' | '.join(cells)} |")
    for gap in report.unknown:
        lines.append(f"- not measured: {_cell(gap.what)} on {_cell(fold(gap.hosts))}: {_cell(gap.why)}")
    return "\n".join(lines) + "\n"
