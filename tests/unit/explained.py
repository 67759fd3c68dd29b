"""Explain one log that is at hand as text."""

from __future__ import annotations

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource


def explain_text(text: str | bytes, name: str = "log") -> Explanation:
    """The explanation of this one log."""
    return analyse([LogSource(name, text)])
