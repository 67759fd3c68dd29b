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


def _touched(host: str, direction: str, pair: Pair) -> bool:
    return (direction in ("out", "both") and pair[0] == host) or (direction in ("in", "both") and pair[1] == host)


def blame(measured: Mapping[Pair, bool]) -> list[Blame]:
    """Explain the bad links (value True) among all measured ones.

    A host end is a culprit if every measured link through it in that direction is bad, and it has at least two, from
    different peers. What no culprit explains stays with its pair: with two hosts nobody can say which end it is.
    """
    bad = {pair for pair, is_bad in measured.items() if is_bad}
    left = set(bad)
    found: list[Blame] = []
    while left:
        best: tuple[int, int, str, str] | None = None
        for host in sorted({name for pair in left for name in pair}):
            for preference, direction in enumerate(("in", "out", "both")):
                links = {pair for pair in measured if _touched(host, direction, pair)}
                peers = {name for pair in links for name in pair if name != host}
                explained = links & left
                ends = {
                    side for pair in explained for side in (("out",) if pair[0] == host else ("in",))
                }  # "both" must really be bad both ways, or the narrower answer is the true one
                if links <= bad and len(peers) >= 2 and explained and (direction != "both" or len(ends) == 2):
                    candidate = (len(explained), -preference, host, direction)
                    if best is None or candidate[:2] > best[:2]:
                        best = candidate
        if best is None:
            break
        _, _, host, direction = best
        explained_pairs = tuple(sorted(pair for pair in left if _touched(host, direction, pair)))
        found.append(Blame((host,), direction, explained_pairs))
        left -= set(explained_pairs)
    couples: dict[tuple[str, ...], list[Pair]] = {}
    for pair in sorted(left):
        couples.setdefault(tuple(sorted(pair)), []).append(pair)
    found.extend(Blame(hosts, "pair", tuple(pairs)) for hosts, pairs in sorted(couples.items()))
    return sorted(found, key=lambda item: (item.direction == "pair", item.hosts))


def plausible(measured: Mapping[Pair, bool]) -> list[Blame]:
    """:func:`blame`, for a fault that shows only on most links of the culprit (loss, slowness): a majority suffices."""
    adjusted = dict(measured)
    for host in sorted({name for pair in measured for name in pair}):
        for direction in ("in", "out"):
            links = [pair for pair in measured if _touched(host, direction, pair)]
            bad = [pair for pair in links if measured[pair]]
            if len(links) >= 3 and len(bad) * 3 >= len(links) * 2:
                adjusted.update(dict.fromkeys(links, True))
    return [item for item in blame(adjusted) if any(measured[pair] for pair in item.pairs)]
