"""The pace of a training loop, as its own log tells it: rows alike whose rate or time moved to another level for good.

Rows are lines of one shape: alike apart from their numbers, which stand behind names (``tok/s=11906``, ``"step_ms": 412``),
before units (``11.3 samples/s``) or below a table's heading.
"""

from __future__ import annotations

import functools
import itertools
import re
import statistics
from collections.abc import Iterator, Sequence

import msgspec

LEAST = 5  # rows on either side: fewer are a hiccup, or the loop's warm-up
FEWEST = 3  # where a paste holds fewer in all: what somebody chose to show
ENOUGH = 24  # rows: of more, every second, third, ... one tells as well whether there are two levels
SLOWER = 4 / 3  # times: a third more time for a step
LASTING = 1.2  # where no row of many is as slow before, or as fast afterwards, as any of the other level
FAR_SLOWER = 1.6  # where the lines between are not known, which may say why, or the rows are few
SIGNATURE = "pace-left"  # of the hits that are made of it
_OF_RATE, _OF_STEP, _OF_PART = range(3)  # kinds of columns
_CALM = 0.35  # of the change: more noise than this on either side, and there are no two levels
_MORE = 0.1  # of what a step has to do
_DIGITS = b"0123456789"
_BLANKS = b" \t\r\n\v\f"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?", re.ASCII)
_KEY = re.compile(r"(?:^|(?<=[^\w.]))([A-Za-z][\w/()%.-]*(?: [A-Za-z(][\w/()%.-]*)*)[\"']?\s*[=:|]?\s*[\"']?$")
_UNIT = re.compile(r"\s?([A-Za-z%][\w/%-]*)(?![\w/%-]|\s*[=:])")
_WORK = r"(?:tok(?:en)?s?|samples?|seq(?:uence)?s?|im(?:a)?ge?s?|it(?:er)?(?:ation)?s?|steps?|examples?|frames?|batch(?:es)?|words?)"
_RATE = re.compile(
    rf"(?<![a-z]){_WORK}(?:[/_ ]|_?per_?| per )+(?:gpu[/_ ]|device[/_ ]|gpu[_ ]per[_ ]|per[_ ])*s(?:ec(?:ond)?)?\b|"
    rf"(?<![a-z]){_WORK}_per_s|{_WORK}PerSec|t?flop/?s|\bmfu\b|through?put|(?<![a-z])(?:tps|tgs|wps|ups|fps)(?![a-z])",
    re.IGNORECASE,
)
_PER_STEP = re.compile(rf"(?:^|[^a-z])m?s(?:ec)?(?:/|_?per_?){_WORK}", re.IGNORECASE)
# "step_s", and "iter 3.02s"; of what comes by the thousand ("tokens_s") it is a rate.
_SECONDS_OF_ONE = re.compile(r"(?:^|[^a-z])(?:step|iter(?:ation)?|batch)[_ ]s(?:ec)?$", re.IGNORECASE)
_WHOLE = re.compile(
    rf"(?:^|[^a-z])(?:{_WORK}|train)[_ ]?(?:tim(?:e|ing)|ms|sec|duration)|m?s(?:ec)?/{_WORK}\b|time[_ ]per[_ ]|per iteration|"
    r"(?:finished|done|completed|took)(?: in)?(?: (?:m?s|sec))?$|"
    r"^(?:time|dt|took|elapsed|duration|seconds)(?:[ _]?\(?(?:m?s|sec)\)?)?$",
    re.IGNORECASE,
)
_PART = re.compile(
    r"data|load|fwd|forward|bwd|backward|comm|opt(?:im)?|sync|reduce|gather|all_?to_?all|h2d|wait|input|dispatch|combine",
    re.IGNORECASE,
)
TIME = re.compile(r"(?:[_/ (]|^)(?:m?s|sec|time)\)?$|_ms\b|_time\b|time[_/]", re.IGNORECASE)
_MAY_TELL = re.compile(r"tim|ms|sec|\ds\b|_s[=:]|took| in \d|per_?s|/|flop|\bdt\b|tps|tgs|throughput", re.IGNORECASE)
# What a job does at a time; told in the rows themselves, or in between.
_LOAD = re.compile(
    r"seq(?:uence|_?len)?s?\b(?!/)|\bctx|context|batch(?!\w*[/ _]?(?:time|ms|sec))|\b(?:mbs|gbs|bs|bsz)\b|resol|\bres\b|im(?:a)?ge?_?size|"
    r"world|gpus|nodes|\bdp\b|micro|accum|max_?len|length|num_?tokens|rollout|frames|crop|depth|layers",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"seq(?:uence)?[_ -]?len|context (?:length|window)|batch[_ -]?size|curriculum|resolution|\b(?:phase|stage)\b|un-?fr(?:ee|o)z|"
    r"profil|micro-?batch|max_?len|accumulat|re-?comput|(?:activation|gradient)[_ ]checkpoint|offload|world[_ -]?size|"
    r"resiz|scal(?:ed|ing) (?:down|up|in|out)|shr[iu]nk|num_workers|precision|\bfp(?:32|16|8)\b|\bbf16\b|quantiz|sparsity|prun|"
    r"power (?:limit|cap)|(?:fewer|remaining|of \d+) (?:nodes|gpus|ranks|workers)|new (?:data|model|config|mixture)|switch(?:ed|ing) to",
    re.IGNORECASE,
)
_SIZE = re.compile(r"\b(nranks|nnodes|nNodes|world[_ ]size|WORLD_SIZE)\W{1,3}(\d+)")
SERVES = re.compile(r"HTTP/|\breq|queue|prompt|generat|KV cache|decode|prefill|\beval|valid|test\b", re.IGNORECASE)


class Shift(msgspec.Struct, frozen=True):
    """A level that was left: the last row of the old one, the first and the last of the new one, and the next one if it returned.

    ``groups`` tell the ``name`` of the pace, what it was ``before`` and ``after``, which parts of a step ``grew`` and which ``stayed``.
    """

    rows: tuple[tuple[int, bytes], ...]
    groups: dict[str, str]


def shifts(
    lines: Sequence[tuple[int, bytes]], shapes: dict[bytes, list[int]], slower: float = SLOWER
) -> Iterator[Shift]:
    """Where the rows among these numbered lines slowed down, so many times, for good or for many rows, unless what they have to
    do changed."""
    for shape, found in shapes.items():
        if len(found) < 2 * FEWEST:
            continue
        if _SERVED.search(text_of(lines[found[0]][1])):
            yield from _of_server([lines[index] for index in found])
            continue
        names = _names(lines, found[0], bare=not any(letter.isalpha() for letter in shape.decode("latin-1")))
        if not names:
            continue
        some = [lines[index] for index in found[:: max(1, len(found) // ENOUGH)]]
        if next(_of_rows(names, some, lines, slower), None):  # then which row it is, the others tell
            yield from _of_rows(names, [lines[index] for index in found], lines, slower)


def by_shape(lines: Sequence[tuple[int, bytes]]) -> dict[bytes, list[int]]:
    """The indices of lines that are alike apart from their numbers."""
    shapes: dict[bytes, list[int]] = {}
    for index, (_, raw) in enumerate(lines):
        shapes.setdefault(raw.translate(None, _DIGITS + _BLANKS), []).append(index)
    return shapes


def _names(lines: Sequence[tuple[int, bytes]], first: int, *, bare: bool) -> list[str]:
    """What the numbers of these rows are called, if one of them tells a pace; else nothing."""
    text = text_of(lines[first][1])
    if bare:
        names = _columns(lines, first, len(NUMBER.findall(text)))
    elif len(text) > 1000 or " NCCL " in text or not _MAY_TELL.search(text):
        return []
    else:
        unit = " ms" if "time (ms)" in text else ""
        names = [name_of(text, found) + unit for found in NUMBER.finditer(text)]
    return names if any(any(_kinds(name)) for name in names) and not SERVES.search(text) else []


def _columns(lines: Sequence[tuple[int, bytes]], first: int, count: int) -> list[str]:
    """The headings above a table's first row, one for each number."""
    for _, raw in reversed(lines[max(0, first - 2) : first]):
        text = text_of(raw)
        cells = re.split(r"\s*[|,\t]\s*|\s{2,}", text.strip(" |#\t"))
        if len(cells) != count:
            cells = text.strip(" |#").split()
        if len(cells) == count and re.search("[A-Za-z]", text):
            return cells
    return []


def name_of(text: str, number: re.Match[str]) -> str:
    """Key and unit of one number of a row."""
    key = _KEY.search(text, max(0, number.start() - 48), number.start())
    unit = _UNIT.match(text, number.end())
    behind = unit.group(1) if unit and ("/" in unit.group(1) or unit.group(1) in ("ms", "s", "sec")) else ""
    before = key.group(1) if key else ""
    return f"{before} {behind}".strip() if not _RATE.search(behind) else behind


@functools.lru_cache(4096)  # the ranks of a job have their rows' names in common
def _kinds(name: str) -> tuple[bool, bool, bool]:
    """Whether it names a rate, the time of a whole step, or that of a part of it."""
    of_one = bool(_SECONDS_OF_ONE.search(name))
    rate = bool(_RATE.search(name)) and not (of_one or _PER_STEP.search(name))
    return rate, not rate and (of_one or bool(_WHOLE.search(name))), bool(_PART.search(name) and TIME.search(name))


def is_time(name: str) -> bool:
    """Whether a number of this name is the time of a step, or of a part of it."""
    return any(_kinds(name)[_OF_STEP:])


def _of_rows(
    names: list[str], rows: list[tuple[int, bytes]], lines: Sequence[tuple[int, bytes]], slower: float
) -> Iterator[Shift]:
    values = [NUMBER.findall(text_of(raw)) for _, raw in rows]
    rows = [row for row, found in zip(rows, values, strict=True) if len(found) == len(names)]
    values = [found for found in values if len(found) == len(names)]
    if len(values) < 2 * FEWEST:
        return
    least = LEAST
    if len(values) < 2 * LEAST:
        least, slower = FEWEST, max(slower, FAR_SLOWER)

    def columns(kind: int) -> list[tuple[str, list[float]]]:
        wanted = [at for at, name in enumerate(names) if _kinds(name)[kind]]
        return [(names[at], [value_of(found[at]) for found in values]) for at in wanted]

    paces = [(name, [1 / cell if cell > 0 else 0.0 for cell in cells]) for name, cells in columns(_OF_RATE)]
    paces += columns(_OF_STEP)
    parts = columns(_OF_PART)
    if len(parts) > 1:
        together = [sum(cells) for cells in zip(*(each for _, each in parts), strict=True)]
        paces.append(("the sum of a step's parts", together))
    for name, cells in paces:
        at, end = _level_left(cells, slower, least), len(cells)
        if at is None:
            at, end = _left_for_a_while(cells, slower)
        if not at:
            continue
        others = [(told, [value_of(found[place]) for found in values]) for place, told in enumerate(names)]
        if _more_to_do(others, at, rows, lines):
            continue
        parts = [(told, times[:end]) for told, times in parts]
        before, after = _medians(cells[:end], at)
        if _kinds(name)[_OF_RATE]:
            before, after = 1 / before, 1 / after
        told = {"name": name, "before": short(before), "after": short(after), "returned": str(end < len(cells))}
        yield Shift((rows[at - 1], rows[at], rows[end - 1], *rows[end : end + 1]), told | _blamed(parts, at))
        return


# What a server (vLLM, SGLang, LMDeploy) tells of itself every few seconds.
_SERVED = re.compile(r"gen(?:eration)? throughput[^:]{0,16}: (\d+(?:\.\d+)?)")
_RUNNING = re.compile(r"[Rr]unning(?:-req)?: (\d+)")
_WAITING = re.compile(r"(?:Waiting|Pending|queue-req): (\d+)")
# What takes from its time, if it grows: prompts to read, and the contexts that each token looks at.
_TAKES = (re.compile(r"prompt throughput: (\d+(?:\.\d+)?)"), re.compile(r"(?:cache|token) usage: (\d+(?:\.\d+)?)"))
_AS_MUCH = 1.25  # times: no more work for a server than before


def _of_server(rows: list[tuple[int, bytes]]) -> Iterator[Shift]:
    """Where a server began to generate far less although it works at as many requests as before: others wait for it, or many
    rows tell of the same number."""

    def told(what: re.Pattern[str]) -> list[float]:
        return [float(found[1]) if (found := what.search(text_of(raw))) else 0.0 for _, raw in rows]

    running, waiting, rates = told(_RUNNING), told(_WAITING), told(_SERVED)
    at = _level_left([1 / rate for rate in rates], FAR_SLOWER, FEWEST) if all(rates) else None
    if not at:
        return
    as_many = max(running[:at]) <= min(running[at:]) and max(running[at:]) <= _AS_MUCH * min(running[:at])
    if not (all(waiting[at:]) or (as_many and len(running[at:]) > LEAST)):
        return
    more = any(after > _AS_MUCH * before for before, after in (_medians(told(what), at) for what in _TAKES))
    before, after = _medians(running, at)
    if after >= before > 0 and not more:
        was, now = _medians(rates, at)
        groups = {"name": "generation throughput", "before": short(was), "after": short(now), "returned": str(False)}
        yield Shift((rows[at - 1], rows[at], rows[-1]), groups | {"grew": "", "stayed": ""})


def _blamed(parts: list[tuple[str, list[float]]], at: int) -> dict[str, str]:
    """Which parts of a step take longer on the new level, the most important first, and which do not."""
    gains = sorted(
        ((after - before, before, name) for name, cells in parts for before, after in [_medians(cells, at)]),
        reverse=True,
    )
    most = gains[0][0] if gains else 0.0
    grew = [name for gain, before, name in gains if gain > 0.2 * max(most, before)]
    stayed = [name for gain, before, name in gains if abs(gain) <= 0.05 * max(before, most)]
    return {"grew": ", ".join(grew), "stayed": ", ".join(stayed)}


def _medians(cells: list[float], at: int) -> tuple[float, float]:
    return statistics.median(cells[:at]), statistics.median(cells[at:])


def _level_left(times: list[float], slower: float, least: int) -> int | None:
    """The index of the first row of a new, slower level that lasts to the end; None if there are no two levels."""
    if min(times) <= 0:
        return None
    total, left, best, where = sum(times), 0.0, 0.0, 0
    for at, time in enumerate(times[:-least], 1):
        left += time
        if at < least:
            continue
        mean = (total - left) / (len(times) - at) - left / at
        weighed = mean * mean * at * (len(times) - at) if mean > 0 else 0.0
        if weighed > best:
            best, where = weighed, at
    if not where:
        return None
    old, new = times[:where], times[where:]
    before, after = statistics.median(old), statistics.median(new)
    calm = _CALM * (after - before)
    old_calm, new_calm = (
        sum(abs(time - middle) <= calm for time in part) >= 0.85 * len(part)
        for part, middle in ((old, before), (new, after))
    )
    # What is held up now and then is unsteady: yet none of its rows is as fast as the old ones, and it does not go on growing.
    half = len(new) // 2
    grows = statistics.median(new[half:]) - statistics.median(new[:half]) > calm
    apart = len(new) >= 2 * LEAST and min(new) >= max(*old, (before + after) / 2) and not grows
    last = statistics.median(times[-3:])
    if slower == SLOWER and min(len(old), len(new)) >= 2 * LEAST and max(old) < min(new):
        slower = LASTING
    lasts = (new_calm or apart) and last >= after - calm
    # However unsteady: each of many rows is slower by more than noise than any before.
    all_slower = len(new) >= 2 * LEAST and min(new) >= LASTING * max(old) and not grows
    return where if after >= slower * before and old_calm and (lasts or all_slower) else None


def _left_for_a_while(times: list[float], slower: float) -> tuple[int, int]:
    """The first row of a slower level of many rows, and the first one after it; zeros where none was left and came back."""
    usual, at, longest = sorted(times)[len(times) // 4], 0, range(0)
    for slow, run in itertools.groupby(times, lambda time: time >= slower * usual):
        length = len(list(run))
        if slow and length > len(longest):
            longest = range(at, at + length)
        at += length
    first, end = longest.start, longest.stop
    if min(first, len(longest), len(times) - end) < 2 * LEAST:
        return 0, 0
    calm = _CALM * (statistics.median(times[first:end]) - usual)
    rest = times[:first] + times[end:]
    return (first, end) if sum(abs(time - usual) <= calm for time in rest) >= 0.85 * len(rest) else (0, 0)


_BATCH = re.compile(r"batch[_ -]?size|seq(?:uence)?[_ -]?len", re.IGNORECASE)


def did_more(first: str, last: str) -> bool:
    """Whether the second of two rows alike tells of more work for a step, or of a rate that is no lower than before."""
    names = [name_of(first, found) for found in NUMBER.finditer(first)]
    cells = zip(names, NUMBER.findall(first), NUMBER.findall(last), strict=False)
    told = [(name, value_of(old), value_of(new)) for name, old, new in cells]
    return any(
        new >= old > 0 if _kinds(name)[_OF_RATE] else _BATCH.search(name) and new > (1 + _MORE) * old > 0
        for name, old, new in told
    )


def _more_to_do(
    columns: list[tuple[str, list[float]]], at: int, rows: list[tuple[int, bytes]], lines: Sequence[tuple[int, bytes]]
) -> bool:
    """Whether the rows, or the lines around the first slow one, say that a step's work changed."""
    for name, cells in columns:
        old, new = _medians(cells, at)
        is_load = _LOAD.search(name) and not any(_kinds(name)[:_OF_PART])
        if is_load and abs(new - old) > _MORE * abs(old) and not _counts_up(cells):
            return True
    first, last = rows[max(0, at - 2)][0], rows[at][0]
    shape = rows[at][1].translate(None, _DIGITS)
    between = [
        text_of(raw) for number, raw in lines if first <= number <= last and raw.translate(None, _DIGITS) != shape
    ]
    if any(_CHANGED.search(text) for text in between):
        return True
    sizes: dict[str, set[str]] = {}
    for _, raw in lines:
        for name, size in _SIZE.findall(text_of(raw)):
            sizes.setdefault(name.lower(), set()).add(size)
    return any(len(told) > 1 for told in sizes.values())


def _counts_up(cells: list[float]) -> bool:
    """Whether it only grows: what was done since the start, not at a time."""
    return all(later > earlier for earlier, later in itertools.pairwise(cells))


def value_of(cell: str) -> float:
    """A number as programs print it: "11,906" has thousands."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return 0.0  # a date or version: it tells no pace


def short(number: float) -> str:
    """A number as titles tell it."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def text_of(raw: bytes) -> str:
    """A line as text."""
    return raw.decode("utf-8", "replace").rstrip().replace('\\"', '"')  # inside of a record of JSON
