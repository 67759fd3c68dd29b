"""SARIF 2.1.0 (OASIS, 2020-03): for code-scanning dashboards."""

from __future__ import annotations

import json

from nccl_doctor import __version__
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.findings.playbooks import for_finding, load
from nccl_doctor.report.formats._text import paragraph
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

_LEVEL = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "note"}


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One run: a rule per finding id (its playbook is the help), a result per finding; a notification per gap."""
    ids = sorted({item.id for item in report.causes})
    driver = {"name": "nccl-doctor", "version": __version__, "rules": [_rule(id) for id in ids]}
    invocation = {
        "executionSuccessful": not report.unknown,
        "toolExecutionNotifications": [
            {"level": "warning", "message": {"text": visible(f"{gap.what} on {', '.join(gap.hosts)}: {gap.why}")}}
            for gap in report.unknown
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_result(item, ids) for item in report.causes],
    }
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _rule(id: str) -> dict[str, object]:
    book = for_finding(id)
    title = load(book).title if book else id
    return {"id": id, "shortDescription": {"text": title}, "help": {"text": load(book).body if book else id}}


def _result(item: Finding, ids: list[str]) -> dict[str, object]:
    return {
        "ruleId": item.id,
        "ruleIndex": ids.index(item.id),
        "level": _LEVEL[item.severity],
        "message": {"text": paragraph(item)},
        "rank": round(100 * item.confidence, 1),
        "locations": [
            {"logicalLocations": [{"name": visible(host), "kind": "resource"}]} for host in item.hosts or ("cluster",)
        ],
    }
