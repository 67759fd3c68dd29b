"""What ``preflight`` prints for people, in plain text."""

from __future__ import annotations

import io

from nccl_doctor.facts.model import Bundle
from nccl_doctor.report.console import render_gate
from nccl_doctor.report.terminal import text_console
from nccl_doctor.rules.gate import Gate, exit_code
from nccl_doctor.rules.judge import Report


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """Decision, causes with their proof, what passed and what is unknown."""
    text = io.StringIO()
    render_gate(report, gate, text_console(text), exit_code=exit_code(report, gate))
    return text.getvalue()
