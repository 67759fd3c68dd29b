"""Exceptions that the program caught and went on after: harmless alone, a desync where collectives follow."""

from __future__ import annotations

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.signatures import says

_EXCEPTION = re.compile(r"\b[A-Z]\w{2,60}(?:Error|Exception|Interrupt)\b")


def _names_an_exception(groups: dict[str, str], line: str) -> bool:
    """An exception's name after the word, and not a traceback's own line (which ends the process)."""
    return _EXCEPTION.search(line) is not None and "Traceback" not in line


says(
    "swallowed-exception",
    "kipping ",
    "kipped ",
    "gnoring ",
    "ontinuing after ",
    "will continue",
    "aught exception",
    where=_names_an_exception,
    wake=("Error", "Exception", "Interrupt"),
    why="The program met an exception and went on without this batch or step. On one rank only, it leaves out the "
    "collectives of that step, and every later collective meets another one of the other ranks.",
)
