"""Ranks and hosts that report the same numbers: which one of them is far from all others.

Rows are lines of one shape (see :mod:`nccl_doctor.explain.readers.pace`) that ranks print each for itself, or that stand in a
table with a host's name first.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

import msgspec

from nccl_doctor.explain.readers import prefix, records
from nccl_doctor.explain.readers.pace import NUMBER, SERVES, TIME, by_shape, name_of, short, value_of

SIGNATURE = "speaker-apart"  # of the hits that are made of it
_FEWEST = 4  # speakers: of fewer, which one is odd cannot be told
_MOST_ROWS = 256  # the last ones: the first steps are slow anywhere
_ROWS = 3  # of a log's last lines: one alone may be a hiccup
_FEW = 0.25  # of the speakers
_LONGER = 1.5  # times as long as the others
_LOWER = 0.7  # of the others' rate
_ALIKE = 0.15  # so far the others differ from their middle one
_NOTHING = 0.05  # of the longest time that a row tells
_OF_A_STEP = 0.2  # less of the longest time that a row tells costs the step little
_RANK = re.compile(r"\brank[ =:#]{0,2}(\d{1,6})\b", re.IGNORECASE)
_HOST = re.compile(r"\W{0,4}([A-Za-z][A-Za-z_-]*\d[\w.-]*)[ :,|\t]")
_RATE = re.compile(r"\s?(TFLOPS?|GFLOPS?|TFLOP/s|[GM]i?[Bb]/s(?:ec)?|(?:tokens?|samples|img|images)/s(?:ec)?)\b")
# Who waits for others waits the less the later it comes itself; of a whole step all need the same.
# Done once, at the start.
_ONCE = re.compile(
    r"\b(?:re)?(?:load|read|initiali|import|compil|warm|buil[dt]|cach|download|tokeni|start|set ?up)", re.IGNORECASE
)
_WAITING = re.compile(
    r"wait|comm|reduce|gather|sync|barrier|broadcast|total|step|iter|elapsed|epoch|eta", re.IGNORECASE
)


class Apart(msgspec.Struct, frozen=True):
    """A rank or a host that is far from all others: its last row and one of another.

    ``groups`` tell ``who`` it is, the ``name`` of the number, and what it is there (``its``) and with the ``others``.
    """

    rows: tuple[tuple[int, bytes], ...]
    groups: dict[str, str]


def odd_ones(lines: Sequence[tuple[int, bytes]], shapes: dict[bytes, list[int]]) -> Iterator[Apart]:
    """The speakers among these numbered lines that are far from the others of their shape, one for each shape."""
    for found in shapes.values():
        if len(found) < _FEWEST or len({_speaker(_text(lines[index][1])) for index in found[:2]}) < 2:
            continue
        rows: dict[str, list[tuple[int, bytes]]] = {}
        for index in found[-_MOST_ROWS:]:
            rows.setdefault(_speaker(_text(lines[index][1])), []).append(lines[index])
        counts = [len(its) for its in rows.values()]
        once = max(counts) == 1 and _ONCE.search(_text(lines[found[0]][1]))
        if "" not in rows and len(rows) >= _FEWEST and max(counts) <= min(counts) + 1 and not once:
            yield from _odd_one(rows)


def odd_files(tails: Sequence[Sequence[str]]) -> Iterator[Apart]:
    """The same of logs that hold what one rank, or one host, says, by their last lines: ``who`` and the rows' numbers are those
    of the log in ``tails``."""
    telling: set[bytes] = set()
    for texts in tails[:_FEWEST]:
        lines = [(at, text.encode(errors="replace")) for at, text in enumerate(texts)]
        telling |= {shape for shape, its in by_shape(lines).items() if len(its) >= _ROWS and _tells(lines[its[0]][1])}
    shapes: dict[bytes, dict[str, list[tuple[int, bytes]]]] = {}
    for at, texts in enumerate(tails if telling else ()):
        lines = [(at, text.encode(errors="replace")) for text in texts]
        for shape, found in by_shape(lines).items():
            if shape in telling and len(found) >= _ROWS:
                shapes.setdefault(shape, {})[str(at)] = [lines[index] for index in found]
    for rows in shapes.values():
        if len(rows) >= _FEWEST:
            yield from _odd_one(rows)


def _tells(raw: bytes) -> bool:
    """Whether a row has a number that is the rank's own: a part of its step, or a rate."""
    text = raw.decode("utf-8", "replace")
    names = [(name_of(text, found), _RATE.match(text, found.end())) for found in NUMBER.finditer(text)]
    return any(unit or (TIME.search(name) and not _WAITING.search(name)) for name, unit in names)


def _text(raw: bytes) -> str:
    return records.texts(raw)[-1]


def _speaker(text: str) -> str:
    said = prefix.parse(text)
    if said.rank is None and (told := _RANK.search(said.body)):
        return f"rank {told[1]}"
    if said.rank is not None:
        return f"rank {said.rank}"
    named = _HOST.match(said.body)
    return named[1] if named else said.host


def _odd_one(rows: dict[str, list[tuple[int, bytes]]]) -> Iterator[Apart]:
    texts = {who: [prefix.parse(_text(raw)).body for _, raw in its] for who, its in rows.items()}
    first = next(iter(texts.values()))[0]
    names = [(name_of(first, found), _RATE.match(first, found.end())) for found in NUMBER.finditer(first)]
    if " NCCL " in first or SERVES.search(first):
        return
    told: list[tuple[float, str, float, float, str]] = []  # how far, who, its and the others' number, what
    times = {at: _middles(texts, at, len(names)) for at, (name, _) in enumerate(names) if TIME.search(name)}
    longest = max((max(each.values()) for each in times.values() if each), default=0.0)
    for at, (name, unit) in enumerate(names):
        middles = times.get(at) or (_middles(texts, at, len(names)) if unit else {})
        usual = statistics.median(middles.values()) if middles else 0.0
        if usual <= 0 or (not unit and _WAITING.search(name)):
            continue
        least = max(_LONGER * usual, usual + _OF_A_STEP * longest)
        far = {who: its for who, its in middles.items() if (its <= _LOWER * usual if unit else its >= least)}
        others = [its for who, its in middles.items() if who not in far]
        noise = max(_ALIKE * usual, 0.0 if unit else _NOTHING * longest)
        alike = all(abs(its - usual) <= noise for its in others)
        if not 0 < len(far) <= _FEW * len(middles) or not alike:
            continue
        who, its = (min if unit else max)(far.items(), key=lambda pair: pair[1])
        told.append((usual / max(its, 1e-9) if unit else its / usual, who, its, usual, unit[1] if unit else name))
    if told:
        _, who, its, usual, name = max(told)
        other = next(rows[one][-1] for one in rows if one != who)
        yield Apart((rows[who][-1], other), {"who": who, "name": name, "its": short(its), "others": short(usual)})


def _middles(texts: dict[str, list[str]], at: int, count: int) -> dict[str, float]:
    """Of each speaker the middle one of this column's numbers."""
    columns = {who: [NUMBER.findall(text) for text in its] for who, its in texts.items()}
    told = {who: [value_of(cells[at]) for cells in its if len(cells) == count] for who, its in columns.items()}
    return {who: statistics.median(its) for who, its in told.items() if its}
