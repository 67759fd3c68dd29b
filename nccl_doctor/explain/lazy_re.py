"""Python's ``re``, but for :func:`compile`: a pattern is compiled when it is first used.

Signatures and diagnoses have more than 300 patterns and a log needs few of them: to compile all took a quarter of a small log's time.
"""

from __future__ import annotations

import re
from re import *  # noqa: F403 - its constants, types and functions
from typing import Any, AnyStr, cast


class _Lazy:
    """A pattern; once it was used, with the methods of the compiled one that were called."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._arguments), name)
        setattr(self, name, found)
        return found


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:  # type: ignore[no-redef]
    """The pattern; what is wrong with it is raised when it is first used."""
    return cast("re.Pattern[AnyStr]", _Lazy(pattern, flags))
