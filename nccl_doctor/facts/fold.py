"""Host lists as people write them: ``gpu[01-04,07]``."""

from __future__ import annotations

from collections.abc import Iterable


def fold(hosts: Iterable[str]) -> str:
    """Node-set notation for host names; names that are no node-set material (addresses) are listed as they are."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    names = sorted(set(hosts))
    plain = [name for name in names if any(character in name for character in ":[]@,!&^%* ")]
    try:
        folded = str(NodeSet.fromlist([name for name in names if name not in plain]))
    except NodeSetException:
        return ", ".join(names)
    return ", ".join(part for part in (folded, *plain) if part)
