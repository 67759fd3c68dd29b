"""Hits as lines of logs: where they stand, and who said them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix

# File and line of a hit: what tells lines apart, and their order.
place: Callable[[Hit], tuple[str, int]] = operator.attrgetter("file", "line")


def just_below(one: Hit, other: Hit, lines: int) -> bool:
    """Whether ``one`` stands in the same file below ``other``, by so many lines at most."""
    return one.file == other.file and 0 < one.line - other.line <= lines


SAME_TIME = 2.0  # seconds: what is told so soon after may be older


def in_order(hits: Iterable[Hit]) -> list[Hit]:
    """Each line once, in the order of the log(s)."""
    return sorted({place(hit): hit for hit in hits}.values(), key=place)


def by_file(hits: Iterable[Hit]) -> dict[str, list[Hit]]:
    """The lines of each file, in their order."""
    found: dict[str, list[Hit]] = {}
    for hit in hits:
        found.setdefault(hit.file, []).append(hit)
    return found


def later(one: Hit, other: Hit) -> bool:
    """Whether ``one`` stands further down in the same file."""
    return one.file == other.file and one.line > other.line


def came_after(one: Hit, other: Hit) -> bool | None:
    """Whether ``one`` is later than ``other``, by their times or their place; None if that cannot be told."""
    if one.seconds is not None and other.seconds is not None and abs(one.seconds - other.seconds) > SAME_TIME:
        return one.seconds > other.seconds
    return one.line > other.line if one.file == other.file else None


def ranks_of(hits: Iterable[Hit]) -> set[int]:
    """The ranks that these lines are known to come from."""
    return {hit.rank for hit in hits if hit.rank is not None}


def hosts_of(hits: Iterable[Hit]) -> set[str]:
    """The hosts that these lines are known to come from."""
    return {hit.host for hit in hits if hit.host}


def ranks_told(hits: Iterable[Hit]) -> set[int]:
    """The ranks of which these lines speak, else those that speak."""
    hits = list(hits)
    named = (hit.groups.get("ranks") or hit.groups.get("task", "") for hit in hits)
    return {int(number) for text in named for number in re.findall(r"\d{1,7}", text)} or ranks_of(hits)


def hosts_told(hits: Iterable[Hit]) -> set[str]:
    """The hosts of which these lines speak, else those that speak."""
    hits = list(hits)
    return {hit.groups["node"].rstrip(",.:;") for hit in hits if "node" in hit.groups} or hosts_of(hits)


def speakers(hits: Sequence[Hit]) -> tuple[set[int], set[str]]:
    """The ranks and the hosts that these lines are known to come from."""
    return ranks_of(hits), hosts_of(hits)


def shortened(text: str, most: int) -> str:
    """The beginning of a text, cut between words, with an ellipsis where something was left out."""
    text = text.strip()
    return text if len(text) <= most else (text[:most].rsplit(None, 1)[0] + " …")


def ending(text: str, most: int) -> str:
    """The end of a line without the prefixes of those who passed it on, cut between words."""
    text = prefix.parse(text.strip()).body.strip() or text.strip()
    return text if len(text) <= most else "… " + text[-most:].split(None, 1)[-1]


def shape(text: str) -> bytes:
    """A line without its numbers: reports of the same kind look alike."""
    return text.encode(errors="replace").translate(None, b"0123456789.,:")
