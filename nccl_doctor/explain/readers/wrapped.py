"""Lines that a terminal broke at its width, and that were copied so: joined again, as what a message says may stand across the break."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nccl_doctor.explain.readers.steps import LINE_LIMIT

LOOKED_AT = 16 << 10  # bytes: what somebody copies is short
NARROWEST, WIDEST = 60, 400  # columns of a terminal
INSIDE_WORDS = (
    2  # different lines that break within a word, each with another rest: a table's rows are as long as each other, too
)
END = 16  # characters: what hosts say one after the other in the same words is as long, and ends alike
SHORTER = 8  # prose that is broken between words has as many lines that are up to a word shorter
COLUMNS = 3  # gaps within a line: more make it a table's row, which ends where its last column does
_GAP = re.compile(r"\S {2,}(?=\S)")
_OF_UCX = re.compile(r"\[\d{6,}\.\d+\] \[")  # it sets its words in columns, and a message behind them
_DIGITS = re.compile(r"\d+")


class Wrapping(NamedTuple):
    """The terminal's columns, and how lines begin that follow no full one."""

    width: int
    beginnings: frozenset[str]

    def goes_on(self, line: str, following: str) -> bool:
        """Whether ``following`` is the rest of ``line``."""
        begins = _beginning(following)
        known = begins in self.beginnings or begins == _beginning(line)
        return len(line) == self.width and bool(begins) and not known and not _is_row(line)


def _unpadded(line: str, width: int) -> str:
    """A line without the blanks that a terminal fills its rows with, but with the one at which it broke."""
    text = line.rstrip()
    return f"{text} " if len(text) == width - 1 and line[width - 1 : width] == " " else text


def _is_row(line: str) -> bool:
    return len(_GAP.findall(line)) >= COLUMNS and not _OF_UCX.match(line)


def _beginning(line: str) -> str:
    return _DIGITS.sub("0", line[:40])[:8]


def wrapping(head: bytes) -> Wrapping | None:
    """How the text that begins with these bytes was broken; None: it was not.

    No line is longer than the full ones, and few are nearly as long. Most of the full ones, but for rows of tables, are followed
    by what no other line begins with, and a quarter of these at least break inside a word; encoded data, which has no words,
    does not.
    """
    text = head[:LOOKED_AT].decode("utf-8", "replace").split("\n")
    lengths = list(map(len, map(str.rstrip, text)))  # in C: every log is asked
    width = max(lengths)
    if not NARROWEST <= width <= WIDEST or lengths.count(width) < INSIDE_WORDS:
        return None
    lines = [_unpadded(line, width) for line in text]
    nearly = sum(width - SHORTER <= len(line) < width for line in lines)
    if sum(len(line) == width for line in lines) <= max(1, nearly):
        return None
    pairs = list(itertools.pairwise(lines))
    if sum(len(line) == width and _inside_a_word(line, following) for line, following in pairs) < INSIDE_WORDS:
        return None  # as most logs' lines: asked before what costs more
    beginnings = {_beginning(line) for before, line in pairs if len(before) < width}
    found = Wrapping(width, frozenset({_beginning(lines[0]), *beginnings}))
    full = [(line, following) for line, following in pairs if len(line) == width and not _is_row(line)]
    broken = [(line, following) for line, following in full if found.goes_on(line, following)]
    inside = [(line, following) for line, following in broken if _inside_a_word(line, following)]
    lines_differ, rests_differ = ({_DIGITS.sub("0", pair[at]) for pair in inside} for at in (0, 1))
    several = min(len(lines_differ), len(rests_differ)) >= INSIDE_WORDS
    fits = several and 4 * len(inside) >= len(broken) and 5 * len(broken) >= 4 * len(full)
    return found if fits else None


def _inside_a_word(line: str, following: str) -> bool:
    within = line[-1:].isalnum() and following[:1].isalnum() and " " in line
    return within and _DIGITS.sub("0", line[-END:]) != _DIGITS.sub("0", following[-END:])


def joined(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks of a log, each of whole lines, with broken lines joined where it was copied from a terminal. Blank lines take
    the place of their parts: the numbers of lines stay what they are."""
    stream = iter(blocks)
    first = list(itertools.islice(stream, 1))
    found = wrapping(first[0]) if first else None
    together = itertools.chain(first, stream)
    return _joined(together, found) if found else together


def _joined(blocks: Iterable[bytes], wrapping: Wrapping) -> Iterator[bytes]:
    parts: list[bytes] = []  # of the line that is being joined
    last = ""
    for block in blocks:
        done = []
        for raw in block.removesuffix(b"\n").split(b"\n"):
            line = _unpadded(raw.decode("utf-8", "surrogateescape"), wrapping.width)
            if parts and (len(parts) * wrapping.width > LINE_LIMIT or not wrapping.goes_on(last, line)):
                done += [*parts, b"\n" * len(parts)]
                parts = []
            parts.append(line.encode("utf-8", "surrogateescape"))
            last = line
        yield b"".join(done)
    yield b"".join(parts) + b"\n" * len(parts)
