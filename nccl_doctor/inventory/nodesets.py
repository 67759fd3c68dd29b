"""Node sets: ``node[01-16,18]``, as in pdsh, ClusterShell and Slurm. ClusterShell's library expands them."""

from __future__ import annotations

import re
from typing import Any

from nccl_doctor.inventory.names import BadName

MOST = 20_000  # hosts of one set: more is a typing error, and would fill the memory
_SAFE = re.compile(r"[A-Za-z0-9_.,\[\]/-]+\Z")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/[1-9][0-9]{0,8})?)?\Z", re.ASCII)


def _size(text: str) -> int:
    """An upper bound of the number of names, found without expanding anything."""
    size = 1
    for inside in _BRACKETS.findall(text):
        count = 0
        for piece in inside.split(","):
            found = _RANGE.match(piece)
            if not found:
                raise BadName(f"expected a range such as [01-16,18] in the brackets, found {piece[:40]!a}")
            low, high = int(found[1]), int(found[2] or found[1])
            if high < low:
                raise BadName(f"the range {piece[:40]!a} runs backwards")
            count += high - low + 1
        size *= count
    return size


def expand(text: str) -> list[str]:
    """The names of a node set, in order; raises :class:`BadName`. Groups (``@rack1``) are not looked up."""
    if not _SAFE.match(text):
        raise BadName("expected a node set such as node[01-16,18] or a,b,c")
    pieces = split_commas(text)
    if not all(pieces):
        raise BadName("an empty name between commas")
    for piece in pieces:
        if _BRACKETS.sub("", piece).count("[") + _BRACKETS.sub("", piece).count("]"):
            raise BadName("the brackets of the node set do not match")
    if sum(_size(piece) for piece in pieces) > MOST:
        raise BadName(f"a node set of more than {MOST} hosts")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    names: list[str] = []
    for piece in pieces:
        try:
            node_set: Any = NodeSet(piece, resolver=RESOLVER_NOGROUP)
        except (NodeSetException, ValueError) as error:  # ValueError: a number that Python does not read
            raise BadName(f"expected a node set such as node[01-16,18]: {error}") from error
        names.extend(str(name) for name in node_set)
    return names


def split_commas(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for place, char in enumerate(text):
        if char in "[]":
            depth += 1 if char == "[" else -1
        elif char == "," and depth <= 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]
