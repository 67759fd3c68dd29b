"""GitHub Actions: workflow commands that become annotations. See :func:`summary` for the job summary."""

from __future__ import annotations

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.formats._text import paragraph, quote
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

# What the runner keeps: annotations of one kind in a step, and characters of a message (actions/runner, 2023-06); of
# the summary of a step 1 MiB, else none of it is shown (GitHub docs, workflow commands, 2025).
ANNOTATIONS_SHOWN = 10
TITLE_SHOWN = 255
TEXT_SHOWN = 4096
SUMMARY_BYTES = 1 << 20
CUT = " ... (cut)"
_COMMAND = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "notice"}


def _data(text: str) -> str:
    """Escaped as a workflow command's message: a log line cannot start a command of its own."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One annotation per cause, one for what is unknown, and the decision; what GitHub would drop is named in the last."""
    told: dict[str, list[tuple[str, str]]] = {"error": [], "warning": [], "notice": []}
    told["notice" if gate.go else "error"].append((f"nccl-doctor: {'go' if gate.go else 'no-go'}", gate.reason))
    for item in report.causes:
        title = f"{item.id} on {fold(item.hosts)}" if item.hosts else item.id
        told[_COMMAND[item.severity]].append((title, paragraph(item)))
    for gap in report.unknown:
        told["warning"].append((f"not measured: {gap.what}", visible(f"{gap.what} on {fold(gap.hosts)}: {gap.why}")))
    return "".join(
        f"::{command} title={_property(_cut(visible(title), TITLE_SHOWN))}::{_data(_cut(text, TEXT_SHOWN))}\n"
        for command, rows in told.items()
        for title, text in _fitting(rows)
    )


def _fitting(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """As many as GitHub shows of one kind: the last stands for all that it would drop."""
    if len(rows) <= ANNOTATIONS_SHOWN:
        return rows
    rest = rows[ANNOTATIONS_SHOWN - 1 :]
    return [*rows[: ANNOTATIONS_SHOWN - 1], (f"and {len(rest)} more", "\n".join(visible(title) for title, _ in rest))]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - len(CUT)]}{CUT}"


def _cell(text: str) -> str:
    """Text inside a Markdown table or line: nothing in it is markup, link or mention."""
    safe = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{character}" if character in "\\`*_{}[]()#+-.!|~@" else character for character in safe)


def summary(report: Report, gate: Gate, room: int = SUMMARY_BYTES) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY, in at most ``room`` bytes: what does not fit is counted."""
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
    text, left = "", room - 200
    for number, line in enumerate(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            return f"{text}\n... and {len(lines) - number} more lines: too long for GitHub\n"
        text += line + "\n"
    return text
