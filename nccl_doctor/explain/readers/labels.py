"""The names of hosts that a collector wrote in front of lines in a form of its own: ``[hgx-03] ``, ``(rack3-n1) ``, ``{spr-host2} ``,
``asr-0 > ``. One line does not tell that such a word is a host; the lines of a log do, when several names of one kind stand at the
same place of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from nccl_doctor.explain.readers import prefix

LABEL_LIMIT = 100  # letters, within which a line's label stands
_PLACES = 4  # words: a date, a time and its zone may stand before it, and nothing else
_OF_A_TIME = re.compile(r"\W*(?:\d[\w:.,/+-]*|[A-Z][a-z]{2}|[AP]M|[A-Z]{3,4})\W*")
_DMESG = re.compile(r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ")
_LINES = 3  # of a log at least
_MOST = 0.8  # of the lines, where nothing sets the name apart from the text
_WORD = re.compile(
    r"(?P<open>[\[({<]?)(?P<name>[A-Za-z][A-Za-z0-9.-]{0,62}\d[A-Za-z0-9.-]{0,62}?)(?P<close>[\])}>]?)[:|]?"
)
_PAIRS = ("", "[]", "()", "{}", "<>")
_NUMBER = re.compile(r"\d+")
# What is numbered in a job and is no host; "E0312" is how Google's programs write the day, "cu128" a release.
_NO_HOST = re.compile(
    r"(?!gpu-?0\d)(?:global|local|node)?[-_]?(?:rank|gpu|npu|xpu|dcu|hpu|cuda|cpu|device|default|thread|proc|process|worker|trainer|task|group|"
    r"replica|actor|rollout|stage|step|epoch|iter|iteration|layer|batch|attempt|shard|part|chunk|[tdpec]p|pg|pid|r|rk|p|v|x|cu|sm|line|"
    r"run|exp|test|try|phase|job|seed|fold|trial|env|engine|client|server)[-_:.]?\d+|(?-i:[IWEFD]\d{3,4})",
    re.IGNORECASE,
)


def words(text: str) -> list[str]:
    """What may be the label of a line: its first words, behind the time of the kernel's log."""
    time = _DMESG.match(text)
    return text[time.end() if time else 0 :][:LABEL_LIMIT].split()


def hosts(texts: Iterable[str], known: Collection[str] = ()) -> dict[tuple[int, str], str]:
    """By the place of a word and the word: the host that it names, for the lines of one log. ``known``: hosts that other lines of it
    name; one that is set apart needs no others beside it."""
    told: dict[tuple[int, str], dict[str, str]] = {}  # by place and kind of a word: the words, and their names
    lines: dict[tuple[int, str], int] = {}
    total = 0
    for text in texts:
        total += 1
        first = words(text)[:_PLACES]
        for place, word in enumerate(first):
            if place and not _OF_A_TIME.fullmatch(first[place - 1]):
                break
            found = _WORD.fullmatch(word)
            if (
                found
                and found["open"] + found["close"] in _PAIRS
                and prefix.is_host(found["name"])
                and not _NO_HOST.fullmatch(found["name"])
            ):
                kind = place, _NUMBER.sub("#", word)
                told.setdefault(kind, {})[word] = found["name"]
                lines[kind] = lines.get(kind, 0) + 1
    return {
        (place, word): name
        for (place, shape), labels in told.items()
        for word, name in labels.items()
        if (shape[0] in "[({<" and name in known)
        or (len(labels) > 1 and lines[place, shape] >= max(_LINES, 0 if shape[0] in "[({<" else _MOST * total))
    }
