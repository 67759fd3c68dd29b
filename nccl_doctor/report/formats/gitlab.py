"""GitLab Code Quality: a JSON list that merge requests show. Source: GitLab docs, Code Quality report format (2025)."""

from __future__ import annotations

import json

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Severity
from nccl_doctor.report.formats._text import mark, marks, paragraph
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

_SEVERITY = {Severity.FAIL: "blocker", Severity.WARN: "minor"}


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One entry per cause to act on and one per gap; the fingerprint is the same for the same problem in the next run."""
    causes = [item for item in report.causes if item.severity in _SEVERITY]
    entries = [
        _entry(item.id, paragraph(item, 3), _SEVERITY[item.severity], fold(item.hosts), same)
        for item, same in zip(causes, marks(causes), strict=True)
    ]
    for gap in report.unknown:
        text, place = visible(f"{gap.what}: {gap.why}"), fold(gap.hosts)
        entries.append(_entry("unknown", text, "major", place, mark("unknown", text, place)))
    return json.dumps(entries, indent=2, sort_keys=True) + "\n"


def _entry(id: str, text: str, severity: str, place: str, same: str) -> dict[str, object]:
    return {
        "check_name": id,
        "description": text,
        "fingerprint": same,
        "severity": severity,
        # GitLab wants a file; hosts have none, so the place is named as one.
        "location": {"path": f"hosts/{visible(place or 'cluster')}", "lines": {"begin": 1}},
    }
