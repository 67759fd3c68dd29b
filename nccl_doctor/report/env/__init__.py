"""How `nccl-doctor env` tells its answers, a module for each: a variable's page, lint, a recommendation, a tuning run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 100  # columns at most


def head_lines(sentences: Iterable[str], width: int) -> list[str]:
    """What stands first, a line each where the width allows it, and an empty line."""
    return [*(row for said in sentences for row in textwrap.wrap(said, width, subsequent_indent="  ")), ""]


def wrapped(text: str, width: int, first: str, indent: int = 9) -> list[str]:
    """Lines of that width, the first behind ``first``, the others indented by so many columns."""
    beneath = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=beneath, break_long_words=False, break_on_hyphens=False
    )
