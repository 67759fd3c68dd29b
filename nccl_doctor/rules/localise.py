"""Who is to blame for bad links: the smallest set of host ends that explains them and contradicts no good link."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from nccl_doctor.facts.fold import fold

Pair = tuple[str, str]  # directed: (from, to)


class Blame(msgspec.Struct, frozen=True):
    """One culprit, or hosts that are cut off together, and the bad links they explain.

    ``direction``: ``in`` (what others send it), ``out`` (what it sends), ``both``, or ``pair`` and ``between`` where the
    measurements cannot tell the ends apart: then ``hosts`` has both ends, or all hosts, and ``sides`` the groups of them
    that reach each other.
    """

    hosts: tuple[str, ...]
    direction: str
    pairs: tuple[Pair, ...]
    sides: tuple[tuple[str, ...], ...] = ()

    @property
    def known_end(self) -> bool:
        """Whether the measurements tell which end of the links it is."""
        return self.direction in DIRECTIONS

    @property
    def names(self) -> str:
        """``gpu01``, ``gpu01 and gpu02``, ``gpu[01-02] and gpu[03-04]``; hosts each of which is alone: ``gpu[01-04]``."""
        if self.direction == "pair":
            return " and ".join(self.hosts)
        together = any(len(side) > 1 for side in self.sides)
        return " and ".join(map(fold, self.sides)) if together else fold(self.hosts)

    @property
    def where(self) -> str:
        """``to gpu01``, ``from gpu01``, ``to and from gpu01``, ``between ...``, and of links that all lead one way ``from ... to ...``."""
        sources, targets = ({pair[end] for pair in self.pairs} for end in (0, 1))
        if not self.known_end and not sources & targets:
            return f"from {fold(sources)} to {fold(targets)}"
        word = {"in": "to", "out": "from", "both": "to and from"}.get(self.direction, "between")
        return f"{word} {self.names}"

    @property
    def host(self) -> str:
        """The one host that is to blame; empty where there are several."""
        return self.hosts[0] if len(self.hosts) == 1 else ""


End = tuple[str, str]  # (host, "in" | "out" | "both")
# Of its links that must be bad for it to be a plausible culprit: more of a whole host's, as two bad hosts of four spoil
# two thirds of the links of the sound ones.
LEAST_OF_HOST, LEAST_OF_END, LEAST_IN_COMMON = 3 / 4, 2 / 3, 1 / 2
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


def blame(measured: Mapping[Pair, bool], known: Collection[str] = ()) -> list[Blame]:
    """Explain the bad links (value True) among all measured ones.

    A host end is a culprit if every measured link through it in that direction is bad, and it has at least two, from
    different peers. What no culprit explains is told of the hosts that do not reach each other: two groups with nothing
    but bad links between them, one way at least, or, where all links are bad, all hosts, as nobody can say how many of
    them it is. The rest stays with its pair: with two hosts nobody can say which end it is.
    ``known``: hosts that are culprits anyway: a bad link between one of them and another host is theirs.
    """
    bad = {pair for pair, is_bad in measured.items() if is_bad}
    if not bad:
        return []
    index = _through(measured)
    suspects = {end for pair in bad for end in _ends(pair) if _is_culprit(end, index[end], bad)}
    # Of hosts that have bad links only, and only to hosts of that kind, none is known to be guilty.
    closed = {host for host, direction in suspects if direction == "both"}
    unsure = {host for host in closed if closed.issuperset(itertools.chain(*index[host, "both"]))}
    left = set(bad)
    found: list[Blame] = []
    queue = _Worst(
        {end: len(index[end]) for end in suspects if end[0] not in unsure},
        lambda end: (DIRECTIONS.index(end[1]), end[0]),
    )
    while (worst := queue.pop()) is not None:
        host, direction = worst
        explained = tuple(sorted(pair for pair in index[worst] if pair in left))
        found.append(Blame((host,), direction, explained))
        left.difference_update(explained)
        # What is explained speaks against nobody else.
        for end, count in Counter(end for pair in explained for end in _ends(pair)).items():
            if (score := queue.scores.get(end)) is not None:
                queue.put(end, score - count)
    for pair in sorted(left):
        owners = [host for host in pair if host in known and host not in unsure]
        if len(owners) == 1:
            found.append(Blame((owners[0],), "out" if pair[0] == owners[0] else "in", (pair,)))
            left.discard(pair)
    found += _divided(left, set(measured) - bad)
    return sorted(found, key=lambda item: (not item.known_end, item.hosts))


def _divided(left: set[Pair], good: set[Pair]) -> Iterator[Blame]:
    """Hosts between whose groups no link is good both ways, and bad links inside of a group, pair by pair."""
    side_of = _groups({pair for pair in good if pair[::-1] not in left})
    for members in sorted(set(_groups(left).values())):
        pairs = tuple(sorted(pair for pair in left if pair[0] in members))
        couples = sorted({tuple(sorted(pair)) for pair in pairs})
        sides = tuple(sorted({side_of.get(host, (host,)) for host in members}))
        if len(couples) == 1 or any(side_of.get(one, (one,)) == side_of.get(other, (other,)) for one, other in pairs):
            for couple in couples:
                yield Blame(couple, "pair", tuple(pair for pair in pairs if set(pair) == set(couple)))
            continue
        everyone = tuple(sorted(itertools.chain(*sides)))
        largest = max(sides, key=len)
        # Less than half of the hosts are cut off, if more than one of the others found it so.
        if 2 * len(largest) > len(everyone) and len(set(largest).intersection(members)) > 1:
            ways = {"in" if source in largest else "out" for source, _ in pairs}
            cut_off = tuple(host for host in everyone if host not in largest)
            yield Blame(cut_off, ways.pop() if len(ways) == 1 else "both", pairs)
        else:
            yield Blame(everyone, "between", pairs, sides)


def _groups(pairs: Iterable[Pair]) -> dict[str, tuple[str, ...]]:
    """Host -> all hosts that these links join it with, itself among them."""
    group: dict[str, set[str]] = {}
    for source, target in pairs:
        one, other = (group.setdefault(host, {host}) for host in (source, target))
        if one is not other:
            small, large = sorted((one, other), key=len)
            large |= small
            group.update(dict.fromkeys(small, large))
    told = {id(members): tuple(sorted(members)) for members in group.values()}
    return {host: told[id(members)] for host, members in group.items()}


def plausible(measured: Mapping[Pair, bool]) -> list[Blame]:
    """:func:`blame`, for a fault that shows only on most links of the culprit (loss, slowness): two thirds suffice.

    The worst end comes first, and its links speak against nobody else: where two of four hosts lose packets, two
    thirds of the links of the sound ones are bad as well. Two groups that reach each other badly are no host's fault.
    """
    if not any(measured.values()):
        return []
    if len(exact := blame(measured)) == 1 and len(exact[0].hosts) > 1:
        return exact
    culprits = _likeliest(measured)
    adjusted = {**measured, **{pair: True for links in culprits.values() for pair in links}}
    found = blame(adjusted, {host for host, _ in culprits})
    return [item for item in found if any(measured[pair] for pair in item.pairs)]


def _likeliest(measured: Mapping[Pair, bool]) -> dict[End, list[Pair]]:
    """The likely culprits, each judged by the links that the former leave open, and the worst first.

    Whole hosts, then single ends; last a host that all of what is left has in common, half of whose links got through.
    """
    index = _through(measured)
    closed: set[Pair] = set()
    found: dict[End, list[Pair]] = {}

    def share(end: End) -> float:
        links = [pair for pair in index[end] if pair not in closed]
        bad = [pair for pair in links if measured[pair]]
        peers = {host for pair in bad for host in pair} - {end[0]}
        return len(bad) / len(links) if len(peers) >= 2 else 0.0

    for least, whole in ((LEAST_OF_HOST, True), (LEAST_OF_END, False), (LEAST_IN_COMMON, True)):
        open_ends = [end for end in index if (end[1] == "both") == whole and len(index[end]) >= 3 and end not in found]
        queue = _Worst({end: share(end) for end in open_ends}, lambda end: end)
        while (worst := queue.pop(least)) is not None:
            found[worst] = index[worst]
            closed.update(index[worst])
            touched = {host for pair in index[worst] for host in pair}
            for end in itertools.product(touched, DIRECTIONS):
                if end in queue.scores:
                    queue.put(end, share(end))
    return found


class _Worst:
    """Host ends by how much speaks against them, the worst first, equal ones by ``order``; scores may change meanwhile."""

    def __init__(self, scores: dict[End, float], order: Callable[[End], tuple[Any, ...]]) -> None:
        self.scores = scores
        self._order = order
        self._heap = [(-score, order(end), end) for end, score in scores.items()]
        heapq.heapify(self._heap)

    def put(self, end: End, score: float) -> None:
        """Change the score of an end that is still there."""
        if score != self.scores[end]:
            self.scores[end] = score
            heapq.heappush(self._heap, (-score, self._order(end), end))

    def pop(self, least: float = 0.0) -> End | None:
        """Take out the worst end; None where no score is above 0, and at least ``least``."""
        while self._heap:
            score, _, end = self._heap[0]
            if self.scores.get(end) == -score:  # else it has changed since, or is out
                if not score or -score < least:
                    return None
                del self.scores[end]
                heapq.heappop(self._heap)
                return end
            heapq.heappop(self._heap)
        return None
