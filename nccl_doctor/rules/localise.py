"""Who is to blame for bad links: the smallest set of host ends that explains them and contradicts no good link."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Pair = tuple[str, str]  # directed: (from, to)


class Blame(msgspec.Struct, frozen=True):
    """One culprit and the bad links it explains.

    ``direction``: ``in`` (what others send it), ``out`` (what it sends), ``both``, or ``pair`` where the measurements
    cannot tell the two ends apart: then ``hosts`` has both.
    """

    hosts: tuple[str, ...]
    direction: str
    pairs: tuple[Pair, ...]


End = tuple[str, str]  # (host, "in" | "out" | "both")
DIRECTIONS = ("in", "out", "both")  # narrower answers first: at equal explanation they win


def _ends(pair: Pair) -> tuple[End, ...]:
    """The host ends that a link runs through."""
    source, target = pair
    return ((source, "out"), (source, "both"), (target, "in"), (target, "both"))


def _through(measured: Mapping[Pair, bool]) -> dict[End, list[Pair]]:
    index: dict[End, list[Pair]] = {}
    for pair in measured:
        for end in _ends(pair):
            index.setdefault(end, []).append(pair)
    return index


def _is_culprit(end: End, links: list[Pair], bad: set[Pair]) -> bool:
    host, direction = end
    if not all(pair in bad for pair in links):
        return False
    peers = {name for pair in links for name in pair if name != host}
    # "both" must really be bad both ways, or the narrower answer is the true one.
    ways = {pair[0] == host for pair in links}
    return len(peers) >= 2 and (direction != "both" or len(ways) == 2)


def blame(measured: Mapping[Pair, bool]) -> list[Blame]:
    """Explain the bad links (value True) among all measured ones.

    A host end is a culprit if every measured link through it in that direction is bad, and it has at least two, from
    different peers. What no culprit explains stays with its pair: with two hosts nobody can say which end it is.
    """
    bad = {pair for pair, is_bad in measured.items() if is_bad}
    if not bad:
        return []
    index = _through(measured)
    suspects = {end for pair in bad for end in _ends(pair) if _is_culprit(end, index[end], bad)}
    left = set(bad)
    found: list[Blame] = []
    while suspects:
        score = {end: sum(pair in left for pair in index[end]) for end in suspects}
        host, direction = min(suspects, key=lambda end: (-score[end], DIRECTIONS.index(end[1]), end[0]))
        if not score[(host, direction)]:
            break
        explained = tuple(sorted(pair for pair in index[(host, direction)] if pair in left))
        found.append(Blame((host,), direction, explained))
        left -= set(explained)
        suspects.discard((host, direction))
    couples: dict[tuple[str, ...], list[Pair]] = {}
    for pair in sorted(left):
        couples.setdefault(tuple(sorted(pair)), []).append(pair)
    found.extend(Blame(hosts, "pair", tuple(pairs)) for hosts, pairs in sorted(couples.items()))
    return sorted(found, key=lambda item: (item.direction == "pair", item.hosts))


def plausible(measured: Mapping[Pair, bool]) -> list[Blame]:
    """:func:`blame`, for a fault that shows only on most links of the culprit (loss, slowness): two thirds suffice."""
    if not any(measured.values()):
        return []
    adjusted = dict(measured)
    for (_, direction), links in sorted(_through(measured).items()):
        bad = sum(measured[pair] for pair in links)
        if direction != "both" and len(links) >= 3 and bad * 3 >= len(links) * 2:
            adjusted.update(dict.fromkeys(links, True))
    return [item for item in blame(adjusted) if any(measured[pair] for pair in item.pairs)]
