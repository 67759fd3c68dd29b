"""Logs that stand newest first, as log services list them and hand them out: turned round before they are read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import msgspec

from nccl_doctor.explain.readers import prefix, records
from nccl_doctor.explain.readers.steps import LINE_LIMIT

LOOKED_AT = 64 << 10  # bytes
FEWEST = 3  # different times
LARGEST = 16 << 20  # bytes: what is larger is read as it stands, and never healthy
_STAMP = re.compile(r"\W{0,3}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)")


class Order(msgspec.Struct):
    """What was found of a log's order: the ``numbers`` of its lines where it was turned, or that it is too ``large`` for it."""

    numbers: list[int] = []
    large: bool = False


def stands_newest_first(head: bytes) -> bool:
    """Whether the times of the lines that the text begins with fall; in a tenth of them they may rise, as clocks differ."""
    head = head[:LOOKED_AT].removesuffix(b"\n")
    first = _time(head.partition(b"\n")[0])
    if first is None:
        return False
    ends = (_time(line) for line in reversed(head[-2 * LINE_LIMIT :].split(b"\n")[-2:]))  # the last may be cut
    if first <= next((time for time in ends if time is not None), first):
        return False
    lines = head.split(b"\n")
    times = [time for line in lines if (time := _time(line)) is not None]
    rising = sum(later > earlier for earlier, later in itertools.pairwise(times))
    return len(set(times)) >= FEWEST and 10 * rising <= len(times)


def turned(content: bytes) -> tuple[bytes, list[int]]:
    """The same records, oldest first, and for each line the number that it has in the log. A record's own lines, which tell no
    time, stay behind the one that does."""
    lines = content.removesuffix(b"\n").split(b"\n")
    starts = [at for at, line in enumerate(lines) if at == 0 or _time(line) is not None]
    order = [at for start, end in reversed([*itertools.pairwise([*starts, len(lines)])]) for at in range(start, end)]
    return b"".join(lines[at] + b"\n" for at in order), [at + 1 for at in order]


def oldest_first(blocks: Iterable[bytes], order: Order) -> Iterator[bytes]:
    """The blocks of a log, each of whole lines, in the order of time, and in ``order`` how they stood."""
    stream = iter(blocks)
    first = next(stream, b"")
    if not stands_newest_first(first):
        return itertools.chain([first] if first else [], stream)
    held = bytearray()
    for block in itertools.chain([first], stream):
        held += block
        if len(held) > LARGEST:
            order.large = True
            return itertools.chain([bytes(held)], stream)
    content, order.numbers = turned(bytes(held))
    return iter([content])


def _time(line: bytes) -> float | None:
    """The time that stands in front, or that a record tells: the collector's, whatever the program's own line says."""
    text = records.plain(line[:LINE_LIMIT])
    found = _STAMP.match(text) or records.WHEN.search(text)
    return prefix.parse(f"{found[1]} host app[1]: x").seconds if found else None
