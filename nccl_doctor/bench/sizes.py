"""The grammar of ``--sizes``: what nccl-tests users know, and errors that show it."""

from __future__ import annotations

import re

from nccl_doctor.rules.units import BINARY

GRAMMAR = (
    "SIZE, SIZE,SIZE,... or FROM:TO[:xFACTOR|:+STEP]; SIZE is a whole number with K, M, G or T (1024-based), in bytes; "
    "without a step, sizes double. Examples: 64M   1K:1G   8M:128M:x4   1M:8M:+1M   1K,64K,1M"
)
MOST_SIZES = 1000
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)(?:I?B)?\Z", re.ASCII | re.IGNORECASE)


class SizeError(ValueError):
    """A size that does not parse; the message quotes it and shows the grammar."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"--sizes {text!r}: {why}\nexpected: {GRAMMAR}")


def parse_size(text: str, whole: str | None = None) -> int:
    """Bytes of one size; ``SizeError`` for anything that is not a positive number with a unit."""
    match = _SIZE.match(text.strip())
    if not match:
        raise SizeError(whole or text, f"{text!r} is not a size")
    value = int(match.group(1)) * BINARY[match.group(2).upper()]
    if value <= 0:
        raise SizeError(whole or text, "a size must be greater than zero")
    if value > 1 << 50:
        raise SizeError(whole or text, f"{text!r} is more than 1 PiB")
    return value


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of all sizes, ascending and without repetition; ``SizeError`` shows the grammar."""
    found: set[int] = set()
    for part in text.split(","):
        found.update(_range(part.strip(), text) if ":" in part else (parse_size(part, text),))
        if len(found) > MOST_SIZES:
            raise SizeError(text, f"more than {MOST_SIZES} sizes")
    return tuple(sorted(found))


def _range(part: str, whole: str) -> list[int]:
    fields = part.split(":")
    if len(fields) > 3:
        raise SizeError(whole, "too many colons")
    first, last = parse_size(fields[0], whole), parse_size(fields[1], whole)
    if first > last:
        raise SizeError(whole, f"{fields[0]} is larger than {fields[1]}")
    factor, step = _step(fields[2].strip(), whole) if len(fields) == 3 else (2, 0)
    sizes = [first]
    while len(sizes) <= MOST_SIZES:
        following = sizes[-1] * factor + step
        if following > last:
            return sizes
        sizes.append(following)
    raise SizeError(whole, f"more than {MOST_SIZES} sizes")


def _step(text: str, whole: str) -> tuple[int, int]:
    if text[:1] in ("x", "X", "*"):
        if not re.fullmatch(r"[0-9]{1,6}", text[1:], re.ASCII) or int(text[1:]) < 2:
            raise SizeError(whole, f"{text!r}: the factor must be a whole number of 2 or more")
        return int(text[1:]), 0
    if text[:1] == "+":
        return 1, parse_size(text[1:], whole)
    raise SizeError(whole, f"{text!r} is neither xFACTOR nor +STEP")


def format_size(size: int) -> str:
    """``64M`` where that is exact, else ``1,000 B``."""
    for unit in ("T", "G", "M", "K"):
        if size >= BINARY[unit] and size % BINARY[unit] == 0:
            return f"{size // BINARY[unit]}{unit}"
    return f"{size:,} B"
