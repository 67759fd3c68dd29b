"""HTML: one self-contained page; see :mod:`nccl_doctor.report.html`."""

from __future__ import annotations

from nccl_doctor.facts.model import Bundle
from nccl_doctor.report import html
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """The page with the gate's decision on top."""
    return html.render(report, bundle, gate)
