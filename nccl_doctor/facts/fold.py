"""Lists as people write them: ``gpu[01-04,07]``, ``0-2,5``, ``eth0, eth1 and 3 more``, ``3 hosts``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence

_PLAIN_CHARACTERS = frozenset(":[]@,!&^%* ")  # of addresses, or with a meaning in a node set


def fold(hosts: Iterable[str]) -> str:
    """Node-set notation for host names; names that are no node-set material (addresses) are listed as they are."""
    return _folded(tuple(sorted(set(hosts))))


def few(items: Sequence[object], shown: int = 4) -> str:
    """The first ``shown`` of them, and how many more there are."""
    return ", ".join(map(str, items[:shown])) + (f" and {len(items) - shown} more" if len(items) > shown else "")


def few_reasons(texts: Sequence[str], shown: int) -> str:
    """The same of sentences, which may have commas: ``no route, no name; no key; and 3 more``."""
    return "; ".join(texts[:shown]) + (f"; and {len(texts) - shown} more" if len(texts) > shown else "")


def counted(number: int, noun: str) -> str:
    """``1 host``, ``3 hosts``, ``3 processes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def numbered(noun: str, numbers: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-2,7``."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2,5``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


@functools.lru_cache(64)  # the same thousand hosts are told in many places, and folding them takes 45 ms
def _folded(names: tuple[str, ...]) -> str:
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    plain = [name for name in names if not _PLAIN_CHARACTERS.isdisjoint(name)]
    try:
        folded = str(NodeSet.fromlist([name for name in names if _PLAIN_CHARACTERS.isdisjoint(name)]))
    except NodeSetException:
        return ", ".join(names)
    return ", ".join(part for part in (folded, *plain) if part)
