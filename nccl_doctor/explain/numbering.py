"""The numbers of the lines that an explanation quotes, where they were read under other ones."""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from nccl_doctor.explain.model import Explanation


def numbered(explanation: Explanation, names: Container[str], number: Callable[[str, int], int | None]) -> Explanation:
    """The same with ``number(file, line)`` in the place of each line's number, for these files; None: it cannot be told."""

    def walk(value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        new = {key: walk(item) for key, item in value.items()}
        name = str(new.get("source") or new.get("file"))
        if new.get("line") and name in names:
            new["line"] = number(name, int(str(new["line"])))
        return new

    return msgspec.convert(walk(msgspec.to_builtins(explanation)), Explanation)
