"""How NCCL reads a number: strtoll with base 0, the rest of the text ignored, no digits at all meaning 0.

Source: NCCL src/misc/param.cc ncclLoadParam (2.18 to 2.30.7); glibc's strtoll was run for each kind of text.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9A-Fa-f]+|0[0-7]*|[1-9][0-9]*)?")


def as_read(text: str) -> int:
    """The number NCCL makes of it: ``4M`` is 4, ``true`` is 0, ``0x10`` is 16, ``08`` is 0."""
    match = _NUMBER.match(text)
    if match is None or not match[2]:
        return 0
    digits = match[2]
    value = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits, 8 if digits[0] == "0" else 10)
    return -value if match[1] == "-" else value


def is_number(text: str) -> bool:
    """Whether all of the text is read (blanks around it do no harm)."""
    match = _NUMBER.match(text)
    return bool(match and match[2] and not text[match.end() :].strip())
