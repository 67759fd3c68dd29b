"""Files of ``NAME=value`` lines: .env, --env-file, .deepspeed_env, /etc/environment, systemd's Environment=."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.env.assignments import Assignment, How, is_ours

_LINE = re.compile(r"\s*(?:export\s+)?[\"']?([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)\Z", re.DOTALL)
_SYSTEMD = re.compile(r"\s*Environment=(.*)\Z", re.DOTALL)
# What no shell reads: systemd and DeepSpeed (which opens it as text) take a Windows line end for a line end.
_WITHOUT_LINE_ENDS = (".service", ".deepspeed_env")
_WORD = re.compile(r"(?:\"[^\"]*\"|'[^']*'|[^\s\"'])+")


def read(text: str, file: str = "") -> list[Assignment]:
    """What the file sets. Quotes around a value and a comment after a blank are dropped, as most readers do."""
    found = []
    for number, line, pair in _pairs(text):
        match = _LINE.match(pair)
        if match is None or not is_ours(match[1]):
            continue
        value = match[2].strip()
        quoted = re.match(r"(['\"])(.*?)\1", value)
        value = quoted[2] if quoted else re.split(r"\s#", value)[0].rstrip("\"'").rstrip()
        dynamic = "$" in value and not (quoted and quoted[1] == "'")
        quoted_line = line.strip(" \t")
        if file.endswith(_WITHOUT_LINE_ENDS):
            quoted_line = quoted_line.rstrip("\r")
        found.append(Assignment(match[1], None if dynamic else value, file, number, How.ENV_FILE, quoted_line, file))
    return found


def _pairs(text: str) -> Iterator[tuple[int, str, str]]:
    """(number, line, ``NAME=value``): systemd's Environment= takes several on one line, each in quotes or without."""
    for number, line in enumerate(text.split("\n"), start=1):
        systemd = _SYSTEMD.match(line)
        if systemd:
            for word in _WORD.findall(systemd[1]):
                yield number, line, word
        elif not line.lstrip().startswith("#"):
            yield number, line, line
