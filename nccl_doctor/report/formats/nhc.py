"""LBNL Node Health Check: one line per host that is not good, in the words NHC itself writes."""

from __future__ import annotations

from nccl_doctor.facts.model import Bundle
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """``ERROR: nhc: Health check failed: nccl-doctor: HOST: ...``; nothing for a good host."""
    not_good = set(gate.not_good)
    lines = []
    for item in gate.decisions:
        if item.host in not_good:
            told = visible(f"{item.host}: {item.state}: {', '.join(item.because)}")
            lines.append(f"ERROR: nhc: Health check failed: nccl-doctor: {told}")
    return "".join(f"{line}\n" for line in lines)
