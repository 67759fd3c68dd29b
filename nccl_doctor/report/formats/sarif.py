"""SARIF 2.1.0 (OASIS, 2020-03): for code-scanning dashboards.

GitHub's refuses the whole file where one result has no file ("expected a physical location"), and hosts have none: the
host is named as one, as for GitLab. It shows no notifications, so what was not measured is a result as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from nccl_doctor import __version__
from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Severity
from nccl_doctor.findings.playbooks import for_finding, load
from nccl_doctor.report.formats._text import mark, marks, paragraph
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

UNKNOWN = "unknown"
# GitHub shows no more of a result, and refuses a file with 1,000 (GitHub docs, SARIF support, 2025).
LOCATIONS_SHOWN = 100
_LEVEL = {Severity.FAIL: "error", Severity.WARN: "warning", Severity.INFO: "note"}


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """One run: a rule per finding id (its playbook is the help), a result per finding and per gap."""
    gaps = [visible(f"{gap.what} on {fold(gap.hosts)}: {gap.why}") for gap in report.unknown]
    ids = sorted({item.id for item in report.causes} | ({UNKNOWN} if gaps else set()))
    results = [
        {"rank": round(100 * item.confidence, 1)}
        | _result(item.id, ids, _LEVEL[item.severity], paragraph(item), item.hosts, same)
        for item, same in zip(report.causes, marks(report.causes), strict=True)
    ]
    results += [
        _result(UNKNOWN, ids, "warning", text, gap.hosts, mark(UNKNOWN, text))
        for text, gap in zip(gaps, report.unknown, strict=True)
    ]
    invocation = {
        "executionSuccessful": not gaps,
        "toolExecutionNotifications": [{"level": "warning", "message": {"text": text}} for text in gaps],
    }
    driver = {"name": "nccl-doctor", "version": __version__, "rules": [_rule(id) for id in ids]}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _rule(id: str) -> dict[str, object]:
    book = for_finding(id)
    title = load(book).title if book else "Not measured" if id == UNKNOWN else id
    text = load(book).body if book else "What could not be measured is unknown, never healthy."
    return {"id": id, "shortDescription": {"text": title}, "help": {"text": text, "markdown": text}}


def _result(id: str, ids: list[str], level: str, text: str, hosts: Sequence[str], same: str) -> dict[str, object]:
    """``same``: what makes it the same alert in the next run."""
    places = [visible(host) for host in hosts or ("cluster",)]
    return {
        "ruleId": id,
        "ruleIndex": ids.index(id),
        "level": level,
        "message": {"text": text},
        "partialFingerprints": {"primaryLocationLineHash": same},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": f"hosts/{quote(place)}"},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [{"name": place, "kind": "resource"}],
            }
            for place in places[:LOCATIONS_SHOWN]
        ],
    }
