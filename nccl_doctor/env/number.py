"""How NCCL reads a number: strtoll with base 0, the rest of the text ignored; what has no digits is 0 or refused.

Source: NCCL src/misc/param.cc ncclLoadParam (2.18 to 2.30.7), and runs of 13 releases from 2.16.5 to 2.32.3
(tests/tools/ask_nccl.py). A refused value is as if not set: the default holds.
"""

from __future__ import annotations

import re

# Since this release a text without digits is refused; before, it is 0.
NO_DIGITS_REFUSED_SINCE = "2.32.3"

_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9A-Fa-f]+|0[0-7]*|[1-9][0-9]*)?")


def as_read(text: str) -> int:
    """The number NCCL makes of it: ``4M`` is 4, ``true`` is 0, ``0x10`` is 16, ``08`` is 0."""
    match = _NUMBER.match(text)
    if match is None or not match[2]:
        return 0
    digits = match[2]
    value = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits, 8 if digits[0] == "0" else 10)
    return -value if match[1] == "-" else value


def has_digits(text: str) -> bool:
    """Whether there is anything to read."""
    match = _NUMBER.match(text)
    return bool(match and match[2])


def is_number(text: str) -> bool:
    """Whether all of the text is read (blanks around it do no harm)."""
    match = _NUMBER.fullmatch(text.rstrip())
    return bool(match and match[2])


def fits(text: str) -> bool:
    """Whether the number fits into 64 bits: every release refuses one that does not."""
    return -(2**63) <= as_read(text) < 2**63
