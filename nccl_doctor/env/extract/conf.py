"""nccl.conf, read as NCCL reads it: no quotes, no trailing comments, no blanks around the equals sign, no export.

Source: NCCL, src/misc/param.cc setEnvFile, releases 2.18 to 2.30.7, and runs of 13 releases from 2.16.5 to 2.32.3.
"""

from __future__ import annotations

import re

from nccl_doctor.env.assignments import Assignment, How, is_ours

_NAME = re.compile(r"\ufeff?\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*\Z")
_WITHOUT_EQUALS = re.compile(r"\ufeff?\s*(?:export\s+)?([A-Z][A-Z0-9]*_[A-Z0-9_]+)[:\s]\s*(\S*)\s*\Z")


def read(text: str, conf: str, scope: str = "", file: str = "", first_line: int = 1) -> list[Assignment]:
    """What the file sets. ``conf`` is its name; where it stands inside another file, ``file`` is that one.

    A line whose name NCCL would not recognise (blanks, export) is reported with ``written`` and ``lost``. A Windows
    line end stays in ``text`` alone: whether it is part of the value depends on the release.
    """
    found = []
    for number, line in enumerate(text.split("\n"), start=first_line):
        name, equals, value = line.partition("=")
        if line.startswith("#"):
            continue
        match = _NAME.match(name) if equals else _WITHOUT_EQUALS.match(line)
        if match is None or not is_ours(match[1]):
            continue
        other = name if name != match[1] else ""
        value = value.removesuffix("\r") if equals else match[2]
        found.append(
            Assignment(
                match[1],
                value,
                file or conf,
                number,
                How.CONF,
                line,
                scope or conf,
                written=other,
                lost="NCCL takes everything before = as the name" if other else "",
            )
        )
    return found
