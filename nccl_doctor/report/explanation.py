"""An explanation as JSON, and its exit code. Nothing here needs more than a moment to import."""

from __future__ import annotations

from typing import Any

import msgspec

from nccl_doctor.explain.model import SCHEMA, Cause, Explanation, Verdict
from nccl_doctor.explain.printable import printable
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence


def verdict(explanation: Explanation) -> Verdict:
    """The answer in one word: what could not be read may have failed, so that only the whole of the input is healthy."""
    healthy = explanation.verdict is Verdict.HEALTHY
    return Verdict.UNDECIDED if healthy and explanation.problems else explanation.verdict


def exit_code(explanation: Explanation) -> ExitCode:
    """The published exit code for an explanation."""
    if explanation.read.files == 0 or explanation.read.bytes == 0:
        return ExitCode.NOTHING_CHECKED
    if explanation.verdict in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED):
        return ExitCode.FINDINGS
    if explanation.verdict is Verdict.UNDECIDED:
        return ExitCode.UNDECIDED
    return ExitCode.INCOMPLETE if explanation.problems else ExitCode.HEALTHY


def to_json(explanation: Explanation) -> str:
    """The explanation as JSON: sorted keys, causes best first, evidence as ``{file, line, text, rank, host}``."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": verdict(explanation).value,
        "sentence": explanation.sentence,
        "causes": [_cause(cause) for cause in explanation.causes],
        "consequences": [
            {
                "text": item.text,
                "count": item.count,
                "ranks": list(item.ranks),
                "hosts": list(item.hosts),
                "example": _evidence(item.example),
            }
            for item in explanation.consequences
        ],
        "evidence": [_evidence(item) for item in explanation.evidence],
        "next": list(explanation.next),
        "overcome": list(explanation.overcome),
        "worth_knowing": [
            {"text": item.text, "playbook": item.playbook, "evidence": _evidence(item.evidence)}
            for item in explanation.worth_knowing
        ],
        "notes": list(explanation.notes),
        "timeline": [msgspec.to_builtins(item) for item in explanation.timeline],
        "versions": explanation.versions,
        "problems": [{"file": item.name, "problem": item.problem} for item in explanation.problems],
        "read": msgspec.to_builtins(explanation.read),
        "world": explanation.world,
    }
    return msgspec.json.format(msgspec.json.encode(printable(document), order="sorted"), indent=2).decode()


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.id,
        "confidence": cause.confidence,
        "title": cause.title,
        "why": cause.why,
        "ranks": list(cause.ranks),
        "hosts": list(cause.hosts),
        "evidence": [_evidence(item) for item in cause.evidence],
        "fixes": [
            {"text": fix.text, "command": fix.command, "host": fix.host, "risky": fix.risky} for fix in cause.all_fixes
        ],
        "env": [msgspec.to_builtins(entry) for entry in cause.env],
        "playbook": cause.playbook,
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    found: dict[str, Any] = {"file": item.source, "line": item.line, "text": item.text}
    if item.rank is not None:
        found["rank"] = item.rank
    if item.host:
        found["host"] = item.host
    return found
