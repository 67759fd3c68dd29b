"""What lint found: verdict first, then file by file."""

from __future__ import annotations

import textwrap
from typing import Any

from nccl_doctor.env.examine import Examination
from nccl_doctor.env.lint import Remark
from nccl_doctor.facts.fold import counted
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Severity
from nccl_doctor.report.env import head_lines, wrapped
from nccl_doctor.report.safe_text import visible

QUOTE_WIDTH = 110  # characters of a quoted line
_MARK = {Severity.FAIL: "✗", Severity.WARN: "!", Severity.INFO: "·"}


def lint_json(result: Examination) -> dict[str, Any]:
    """The machine-readable result of a lint run."""
    return {
        "judged_for": result.judged_for,
        "looked_at": list(result.looked_at),
        "problems": [{"file": item.file, "why": item.why} for item in result.problems],
        "summary": {severity.value: result.count(severity) for severity in Severity},
        "findings": [
            {
                "id": item.finding.id,
                "severity": item.finding.severity.value,
                "confidence": item.finding.confidence,
                "name": item.assignment.name,
                "value": item.assignment.value,
                "file": item.assignment.file or None,
                "line": item.assignment.line,
                "hosts": list(item.finding.hosts),
                "title": item.finding.title,
                "evidence": [
                    {"text": proof.text, "source": proof.source, "line": proof.line, "host": proof.host}
                    for proof in item.finding.evidence
                ],
                "fix": [{"text": fix.text, "command": fix.command} for fix in item.finding.fixes],
                "playbook": playbooks.for_finding(item.finding.id) or None,
            }
            for item in result.remarks
        ],
    }


def lint_text(result: Examination, show_info: bool, width: int, rows: float) -> str:
    """The result of a lint run for a terminal: verdict first, then file by file. Where that is longer than so many ``rows``,
    the verdict once more."""
    head = (_verdict(result), f"judged for {result.judged_for}")
    lines = head_lines(head, width)
    place = None
    hidden = 0
    for item in result.remarks:
        if item.finding.severity is Severity.INFO and not show_info:
            hidden += 1
            continue
        proof = item.finding.evidence[0]
        here = proof.host or proof.source
        if here != place:
            lines += [visible(here)]
            place = here
        lines += _finding_lines(item, width)
    for problem in result.problems:
        lines += textwrap.wrap(f"? {visible(problem.file)} {visible(problem.why)}", width, subsequent_indent="    ")
    if result.problems:
        lines.append("")
    if hidden:
        lines += [f"{counted(hidden, 'remark')} hidden (--info shows them)", ""]
    if len(lines) >= rows - 1:
        lines += head_lines([_verdict(result)], width)
    return "\n".join(lines).rstrip("\n") + "\n"


def _verdict(result: Examination) -> str:
    fails, warns, infos = (result.count(severity) for severity in (Severity.FAIL, Severity.WARN, Severity.INFO))
    variables, sources = counted(len(result.assignments), "variable"), counted(len(result.looked_at), "source")
    read = f"{variables} set in {sources}"
    unread = f", {len(result.problems)} not readable" if result.problems else ""
    if fails:
        return f"✗ {fails} wrong, {warns} doubtful, {infos} worth knowing; {read}{unread}"
    if warns:
        return f"! nothing wrong, {warns} doubtful, {infos} worth knowing; {read}{unread}"
    if not result.looked_at:
        return f"? nothing could be read{unread}: no verdict"
    known = f", {infos} worth knowing" if infos else ""
    if result.problems:
        return f"? nothing wrong in what could be read{known}; {read}{unread}"
    return f"✓ nothing wrong{known}; {read}"


def _finding_lines(item: Remark, width: int) -> list[str]:
    found = item.finding
    where = f"{found.evidence[0].line}:" if found.evidence[0].line else ""
    head = f"  {where:<5}{_MARK[found.severity]} "
    lines = wrapped(visible(found.title), width, head)
    indent = " " * 9
    lines.append(f"{indent}{_quoted(found.evidence[0].text)}")
    for other in found.evidence[1:4]:
        place = f"{other.host or other.source}{f':{other.line}' if other.line else ''}"
        lines.append(f"{indent}{_quoted(other.text)}   ({visible(place)})")
    for fix in found.fixes:
        lines += wrapped(visible(fix.text), width, f"{indent}fix: ")
        if fix.command:
            lines.append(f"{indent}     {visible(fix.command)}")
    lines += [f"{indent}[{found.id}]", ""]
    return lines


def _quoted(text: str) -> str:
    told = visible(text)
    return told if len(told) <= QUOTE_WIDTH else f"{told[: QUOTE_WIDTH - 1]}…"
