"""Sends and receives that wait for each other, or for a half that nobody posts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from nccl_doctor.explain.flight_recorder.conclusion import MISMATCH, QUOTED, STRAGGLER, Conclusion, Kind, quote
from nccl_doctor.explain.flight_recorder.dump import Dump, Entry, State

_SEND_OR_RECEIVE = re.compile(r"(send|recv) \d+(?:->|<-)(?P<peer>\d+)")


class _Waiting(msgspec.Struct, frozen=True):
    """A send or receive that does not end. ``peer`` is a global rank, like ``rank``."""

    rank: int
    peer: int
    sends: bool
    entry: Entry


def point_to_point(dumps: Mapping[int, Dump]) -> list[Conclusion]:
    """Sends without their receive, receives without their send; a ring of them is a deadlock."""
    waiting = [item for rank in sorted(dumps) for item in _unfinished(rank, dumps[rank])]
    posted = {(item.rank, item.peer, item.sends) for item in waiting}
    alone = [item for item in waiting if (item.peer, item.rank, not item.sends) not in posted and item.peer in dumps]
    ring = cycle({item.rank: item.peer for item in alone})
    if ring:
        return [_deadlock([item for item in alone if item.rank in ring], dumps)]
    return [_unmatched(item, dumps) for item in alone[:QUOTED]]


def _unfinished(rank: int, dump: Dump) -> list[_Waiting]:
    members = {group.name: group.ranks for group in dump.groups}
    waiting = []
    for entry in dump.entries:
        found = _SEND_OR_RECEIVE.fullmatch(entry.operation)
        if found is None or entry.proven_state is not State.WAITING:
            continue
        peer = int(found["peer"])
        ranks = members.get(entry.process_group[0])
        if ranks is not None and peer < len(ranks):  # the name holds ranks of the group
            peer = ranks[peer]
        waiting.append(_Waiting(rank, peer, found[1] == "send", entry))
    return waiting


def cycle(waits_for: Mapping[int, int]) -> list[int]:
    """The first ranks each of which waits for the next, and the last for the first; empty where there are none."""
    for start in sorted(waits_for):
        path: list[int] = []
        rank = start
        while rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            return path[path.index(rank) :]
    return []


IN_TURN = "post both halves together (batch_isend_irecv), or let even ranks send first and odd ranks receive first"


def _deadlock(ring: list[_Waiting], dumps: Mapping[int, Dump]) -> Conclusion:
    chain = ", ".join(map(_say, ring[:QUOTED]))
    return Conclusion(
        kind=Kind.P2P_CYCLE,
        title=f"send/recv deadlock: {chain}; every one waits for the next, and none posts the other half",
        evidence=tuple(quote(item.entry, item.rank, dumps[item.rank].source) for item in ring[:QUOTED]),
        cause=MISMATCH,
        confidence=0.9,
        ranks=tuple(sorted({item.rank for item in ring})),
        next=IN_TURN,
    )


def _unmatched(item: _Waiting, dumps: Mapping[int, Dump]) -> Conclusion:
    missing = "recv" if item.sends else "send"
    return Conclusion(
        kind=Kind.P2P_UNMATCHED,
        title=f"{_say(item)}, but rank {item.peer} has no matching {missing} pending",
        evidence=(quote(item.entry, item.rank, dumps[item.rank].source),),
        candidates=(MISMATCH, STRAGGLER),
        ranks=(item.peer,),
        next=IN_TURN,
    )


def _say(item: _Waiting) -> str:
    return f"rank {item.rank} {'sends to' if item.sends else 'receives from'} {item.peer}"
