"""What tests of explain share: one log that is at hand as text, tables of messages."""

from __future__ import annotations

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource


def explain_text(text: str | bytes, name: str = "log") -> Explanation:
    """The explanation of this one log."""
    return analyse([LogSource(name, text)])


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Each text of a table with what it stands under: for tests that are told a table of messages by their causes."""
    return [(wanted, text) for wanted, texts in table.items() for text in texts]
