"""Compare the flight-recorder dumps of several ranks: what they prove about where the job hangs.

What cannot be seen from dumps is said as such. Backend gloo marks every finished *or failed* work alike, so the state
of its entries is unknown. One set of dumps cannot tell a slow rank from one that will never come, unless that rank
was seen to go on with other collectives.
"""

from __future__ import annotations

from collections.abc import Mapping

from nccl_doctor.explain.flight_recorder.conclusion import MISMATCH, QUOTED, STRAGGLER, Conclusion, Kind, folded, quote
from nccl_doctor.explain.flight_recorder.dump import Dump, State
from nccl_doctor.explain.flight_recorder.groups import Call, Group, collate
from nccl_doctor.explain.flight_recorder.point_to_point import point_to_point
from nccl_doctor.findings.model import Evidence

_HARDWARE = ("ib.retry-exceeded", "net.firewall", "gpu.p2p", "gpu.fell-off-bus", "gpu.nvlink")
_SAME_CALLS = (
    "make every rank of the group issue the same collectives, in the same order, with the same shapes and dtypes"
)
_ORDER = {kind: position for position, kind in enumerate(Kind)}


def compare(dumps: Mapping[int, Dump]) -> list[Conclusion]:
    """What the dumps of several ranks (global rank -> dump) prove about where the job hangs, strongest first.

    An empty list says that nothing recorded is unfinished or different, which is no proof of health: with a ring that
    was too short, or a rank that hangs outside collectives, it looks the same.
    """
    groups = collate(dumps)
    found: list[Conclusion] = []
    for group in groups:
        mismatch = _first_mismatch(group)
        found.extend([mismatch] if mismatch else _stuck(group, dumps))
    crossed, told = _group_order(groups)  # such ranks "never called" the other's group: one story, told once
    found = [item for item in found if item.group not in told or item.kind not in (Kind.NEVER_CALLED, Kind.EXTRA_CALL)]
    found.extend(crossed)
    found.extend(point_to_point(dumps))
    return sorted(found, key=lambda item: (_ORDER[item.kind], item.group, item.sequence or 0, item.ranks))


# Mismatches: two ranks recorded different things under one number.


def _first_mismatch(group: Group) -> Conclusion | None:
    for sequence in sorted({number for rank in group.ranks for number in group.entries[rank]}):
        sides: dict[tuple[Call, ...], list[int]] = {}
        for rank in group.ranks:
            if group.has(rank, sequence):
                sides.setdefault(group.call(rank, sequence), []).append(rank)
        if len(sides) > 1:
            return _mismatch(group, sequence, sides)
    return None


def _mismatch(group: Group, sequence: int, sides: dict[tuple[Call, ...], list[int]]) -> Conclusion:
    by_size = sorted(sides.items(), key=lambda item: (-len(item[1]), item[1]))
    majority = by_size[0][1]
    odd = sorted(rank for _, ranks in by_size[1:] for rank in ranks)
    nobody_is_odd = len(by_size[1][1]) == len(majority)
    kind = _difference(by_size[0][0], by_size[1][0])
    shown = "; ".join(f"{folded(ranks)} {_describe(call, kind)}" for call, ranks in by_size[:QUOTED])
    shift = "" if nobody_is_odd else _shift(group, sequence, majority[0], odd[0])
    quoted = [*odd[:QUOTED], majority[0]]
    return Conclusion(
        kind=kind,
        title=f"{group.label}, collective {sequence} differs: {shown}" + (f"; {shift}" if shift else ""),
        evidence=tuple(group.quote(rank, sequence) for rank in quoted),
        cause=MISMATCH,
        confidence=0.97,
        ranks=tuple(sorted([*odd, *majority])) if nobody_is_odd else tuple(odd),
        group=group.label,
        sequence=sequence,
        next=_SAME_CALLS,
    )


def _difference(first: tuple[Call, ...], second: tuple[Call, ...]) -> Kind:
    if [call.operation for call in first] != [call.operation for call in second]:
        return Kind.OPERATION_MISMATCH
    if [call.dtypes for call in first] != [call.dtypes for call in second]:
        return Kind.DTYPE_MISMATCH
    return Kind.SIZE_MISMATCH


def _describe(calls: tuple[Call, ...], kind: Kind) -> str:
    call = calls[0]
    if kind is Kind.OPERATION_MISMATCH:
        return "+".join(item.operation for item in calls[:4])
    if kind is Kind.DTYPE_MISMATCH:
        return f"{call.operation} of {', '.join(sorted(set(call.dtypes))) or 'no dtype'}"
    return f"{call.operation} of {sum(item.elements for item in calls)} elements"


_SHIFTS = range(1, 9)


def _shift(group: Group, sequence: int, common: int, odd: int) -> str:
    """Whether the odd rank's calls are the others' calls moved by some places: it left calls out, or added some.

    Two equal calls in a row are asked for, since training loops repeat themselves; otherwise nothing is said.
    """
    for places in _SHIFTS:
        if _moved(group, sequence, ahead=common, behind=odd, places=places):
            return f"{folded([odd])} seems to have left out {_calls(places)} before it"
        if _moved(group, sequence, ahead=odd, behind=common, places=places):
            return f"{folded([odd])} seems to have made {_calls(places)} too many before it"
    return ""


def _calls(number: int) -> str:
    return f"{number} call{'s' if number > 1 else ''}"


def _moved(group: Group, sequence: int, ahead: int, behind: int, places: int) -> bool:
    pairs = [
        (group.call(behind, number), group.call(ahead, number + places))
        for number in range(sequence, group.last(behind) + 1)
        if group.has(behind, number) and group.has(ahead, number + places)
    ]
    return (
        len(pairs) >= 2 and len({first for first, _ in pairs}) > 1 and all(first == second for first, second in pairs)
    )


# Equal calls, but not by all ranks, or not finished.


def _frontier(group: Group) -> int | None:
    """The first sequence number that a rank waits in; where states are unknown, the first that not all ranks have."""
    common = min(map(group.last, group.ranks), default=0)
    return min(
        (
            number
            for rank in group.ranks
            for number in group.entries[rank]
            if (state := group.state(rank, number)) is State.WAITING or (state is State.UNKNOWN and number > common)
        ),
        default=None,
    )


def _stuck(group: Group, dumps: Mapping[int, Dump]) -> list[Conclusion]:
    sequence = _frontier(group)
    if sequence is None:
        return []
    called = [rank for rank in group.ranks if group.has(rank, sequence)]
    behind = [rank for rank in group.ranks if group.last(rank) < sequence]
    absent = [rank for rank in group.members or () if rank not in dumps]
    finished = [rank for rank in called if group.state(rank, sequence) is State.COMPLETED]
    waiting = [rank for rank in called if rank not in finished]
    found = []
    if behind:
        found.append(_not_called(group, sequence, waiting, behind, dumps))
    if absent:
        found.append(_no_dump(group, sequence, waiting, absent, blamed=not behind))
    if not behind and not absent:
        found.append(_all_called(group, sequence, waiting, finished))
    return found


def _not_called(
    group: Group, sequence: int, waiting: list[int], behind: list[int], dumps: Mapping[int, Dump]
) -> Conclusion:
    """Some ranks wait in a collective that the others have not called. The fewer of the two are the odd ones."""
    entry = group.entries[waiting[0]][sequence][0]
    extra = len(waiting) < len(behind)
    went_on = [rank for rank in behind if _newest_time(dumps[rank]) > entry.time_created_ns > 0]
    call = f"{entry.operation} (collective {sequence} of {group.label})"
    if extra:
        title = f"only {folded(waiting)} called {call}; {folded(behind)} did not"
    else:
        title = f"{folded(behind)} never called {call}; {folded(waiting)} wait{'s' if len(waiting) == 1 else ''} for it"
    if went_on and not extra:
        title += f"; {folded(went_on)} went on with later collectives of other groups instead"
    decided = bool(extra or went_on)
    blamed = waiting if extra else behind
    quoted = [group.quote(rank, sequence) for rank in waiting[:QUOTED]]
    quoted += [_newest(group, rank, dumps[rank]) for rank in behind[:QUOTED]]
    return Conclusion(
        kind=Kind.EXTRA_CALL if extra else Kind.NEVER_CALLED,
        title=title,
        evidence=tuple(quoted),
        cause=MISMATCH if decided else "",
        candidates=(MISMATCH, "app.uneven-inputs") if decided else (STRAGGLER, MISMATCH, "app.uneven-inputs"),
        confidence=0.85 if decided else 0.5,
        ranks=tuple(blamed),
        group=group.label,
        sequence=sequence,
        next=_SAME_CALLS if decided else f"read the log and take the stack (py-spy dump --pid PID) of {folded(behind)}",
    )


def _newest(group: Group, rank: int, dump: Dump) -> Evidence:
    """Where a rank that is behind was last seen: its newest work in this group, or in any, or nowhere."""
    if group.entries[rank]:
        return group.quote(rank, group.last(rank))
    if dump.entries:
        return quote(max(dump.entries, key=lambda entry: entry.record_id), rank, dump.source)
    return Evidence(f"rank {rank}: no entries recorded", source=dump.source, rank=rank)


def _newest_time(dump: Dump) -> int:
    return max((entry.time_created_ns for entry in dump.entries), default=0)


def _no_dump(group: Group, sequence: int, waiting: list[int], absent: list[int], *, blamed: bool) -> Conclusion:
    operation = group.entries[waiting[0]][sequence][0].operation
    title = (
        f"no dump of {folded(absent)}; {folded(waiting)} hang in {operation} (collective {sequence} of {group.label})"
    )
    return Conclusion(
        kind=Kind.NO_DUMP,
        title=title,
        evidence=tuple(group.quote(rank, sequence) for rank in waiting[:QUOTED]),
        candidates=("app.rank-exception", "net.peer-lost", STRAGGLER, MISMATCH),
        confidence=0.6 if blamed else 0.3,
        ranks=tuple(absent),
        group=group.label,
        sequence=sequence,
        next=f"read the log of {folded(absent)}: a rank that died or lost its host leaves no dump",
    )


def _all_called(group: Group, sequence: int, waiting: list[int], finished: list[int]) -> Conclusion:
    operation = group.entries[waiting[0]][sequence][0].operation
    call = f"{operation} (collective {sequence} of {group.label})"
    if finished:
        title = f"{folded(waiting)} did not finish {call} although {folded(finished)} did"
    else:
        title = (
            f"{folded(waiting)} are in {call} with equal arguments, and none finishes: network or GPU, not the program"
        )
    if group.members is None:
        title += " (the dumps do not say which ranks belong to this group)"
    return Conclusion(
        kind=Kind.PARTLY_DONE if finished else Kind.ALL_WAITING,
        title=title,
        evidence=tuple(group.quote(rank, sequence) for rank in [*waiting[:QUOTED], *finished[:1]]),
        candidates=_HARDWARE,
        confidence=0.7 if group.members else 0.5,
        ranks=tuple(waiting) if finished else (),
        group=group.label,
        sequence=sequence,
        next="nccl-doctor check --hosts HOSTFILE (links, ports, Xid lines, NVLink), then nccl-doctor bench allreduce",
    )


# Two groups entered in different order: rank 0 waits in A for rank 1, which waits in B for rank 0.


def _group_order(groups: list[Group]) -> tuple[list[Conclusion], set[str]]:
    """The pairs of groups whose ranks wait for each other, and the labels of those groups."""
    stuck = [(group, sequence) for group in groups if (sequence := _frontier(group)) is not None]
    found: list[Conclusion] = []
    told: set[str] = set()
    for position, (first, number) in enumerate(stuck):
        for second, other in stuck[position + 1 :]:
            here = {rank for rank in first.ranks if first.has(rank, number)}
            there = {rank for rank in second.ranks if second.has(rank, other)}
            awaited_here = {rank for rank in first.ranks if first.last(rank) < number}
            awaited_there = {rank for rank in second.ranks if second.last(rank) < other}
            if here & awaited_there and there & awaited_here:
                found.append(_crossed(first, number, second, other, here & awaited_there, there & awaited_here))
                told |= {first.label, second.label}
    return found, told


def _crossed(first: Group, number: int, second: Group, other: int, here: set[int], there: set[int]) -> Conclusion:
    title = (
        f"groups entered in different order: {folded(sorted(here))} in collective {number} of {first.label}, "
        f"{folded(sorted(there))} in collective {other} of {second.label}; each waits for the other"
    )
    evidence = [first.quote(rank, number) for rank in sorted(here)[:QUOTED]]
    evidence += [second.quote(rank, other) for rank in sorted(there)[:QUOTED]]
    return Conclusion(
        kind=Kind.GROUP_ORDER,
        title=title,
        evidence=tuple(evidence),
        cause=MISMATCH,
        confidence=0.9,
        ranks=tuple(sorted(here | there)),
        group=first.label,
        sequence=number,
        next="enter the groups in the same order on every rank",
    )
