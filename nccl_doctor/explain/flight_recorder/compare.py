"""Compare the flight-recorder dumps of several ranks: what they prove about where the job hangs.

What cannot be seen from dumps is said as such. Backend gloo marks every finished *or failed* work alike, so the state
of its entries is unknown. One set of dumps cannot tell a slow rank from one that will never come, unless that rank
was seen to go on with other collectives.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from nccl_doctor.explain.flight_recorder.dump import Dump, Entry, State
from nccl_doctor.explain.model import Proof
from nccl_doctor.facts.fold import ranges
from nccl_doctor.findings.model import Evidence


class Kind(enum.Enum):
    """What a comparison of dumps found, in the order in which conclusions are listed."""

    OPERATION_MISMATCH = "operation-mismatch"
    DTYPE_MISMATCH = "dtype-mismatch"
    SIZE_MISMATCH = "size-mismatch"
    GROUP_ORDER = "group-order"
    P2P_CYCLE = "p2p-cycle"
    EXTRA_CALL = "extra-call"
    NEVER_CALLED = "never-called"
    P2P_UNMATCHED = "p2p-unmatched"
    NO_DUMP = "no-dump"
    PARTLY_DONE = "partly-done"
    ALL_WAITING = "all-waiting"


class Conclusion(Proof, frozen=True, kw_only=True):
    """One thing the dumps prove, or narrow down."""

    source: str = "flight-recorder"
    kind: Kind
    group: str = ""
    sequence: int | None = None


_MISMATCH = "app.collective-mismatch"
_STRAGGLER = "app.straggler-timeout"
_HARDWARE = ("ib.retry-exceeded", "net.firewall", "gpu.p2p", "gpu.fell-off-bus", "gpu.nvlink")
_SAME_CALLS = (
    "make every rank of the group issue the same collectives, in the same order, with the same shapes and dtypes"
)
_ORDER = {kind: position for position, kind in enumerate(Kind)}
_QUOTED = 4  # ranks quoted per side; the title names all of them


def compare(dumps: Mapping[int, Dump]) -> list[Conclusion]:
    """What the dumps of several ranks (global rank -> dump) prove about where the job hangs, strongest first.

    An empty list says that nothing recorded is unfinished or different, which is no proof of health: with a ring that
    was too short, or a rank that hangs outside collectives, it looks the same.
    """
    groups = _collate(dumps)
    found: list[Conclusion] = []
    for group in groups:
        mismatch = _first_mismatch(group)
        found.extend([mismatch] if mismatch else _stuck(group, dumps))
    crossed, told = _group_order(groups)  # such ranks "never called" the other's group: one story, told once
    found = [item for item in found if item.group not in told or item.kind not in (Kind.NEVER_CALLED, Kind.EXTRA_CALL)]
    found.extend(crossed)
    found.extend(_point_to_point(dumps))
    return sorted(found, key=lambda item: (_ORDER[item.kind], item.group, item.sequence or 0, item.ranks))


def folded(ranks: tuple[int, ...] | list[int]) -> str:
    """Ranks as text: ``rank 3``, ``ranks 0-2,7``."""
    return f"rank{'s' if len(set(ranks)) != 1 else ''} {ranges(ranks)}"


# One group over all ranks.

_DEFAULT_GROUP = "0"  # torch's name of the group that init_process_group makes; backend gloo records no members for it


class _Call(msgspec.Struct, frozen=True):
    """What must agree between the ranks of one collective: operation, dtypes, number of elements."""

    operation: str
    dtypes: tuple[str, ...] = ()
    elements: int = -1  # -1: not compared for this operation


class _Group:
    """One process group over all dumps: who recorded what under which sequence number."""

    def __init__(self, label: str, members: tuple[int, ...] | None) -> None:
        self.label = label
        self.members = members  # global ranks; None where the dumps do not say
        self.entries: dict[int, dict[int, list[Entry]]] = {}  # rank -> sequence number -> entries
        self.sources: dict[int, str] = {}

    @property
    def ranks(self) -> list[int]:
        """The members whose dumps are there."""
        return sorted(self.entries)

    def last(self, rank: int) -> int:
        """The newest sequence number the rank recorded; 0 if none."""
        return max(self.entries[rank], default=0)

    def call(self, rank: int, sequence: int) -> tuple[_Call, ...]:
        return tuple(_call(entry) for entry in self.entries[rank].get(sequence, ()))

    def has(self, rank: int, sequence: int) -> bool:
        return sequence in self.entries[rank]

    def state(self, rank: int, sequence: int) -> State:
        """Waiting if any part of the (perhaps coalesced) work waits; completed only if all of it is."""
        states = {entry.proven_state for entry in self.entries[rank][sequence]}
        return next((state for state in (State.WAITING, State.UNKNOWN) if state in states), State.COMPLETED)

    def quote(self, rank: int, sequence: int) -> Evidence:
        """One recorded work as one line, in the dump's own words."""
        entry = self.entries[rank][sequence][0]
        return _quote(entry, rank, self.sources[rank])


def _collate(dumps: Mapping[int, Dump]) -> list[_Group]:
    """Sort the collectives of all dumps into groups. Two groups may bear one name: then the members tell them apart."""
    groups: dict[tuple[str, tuple[int, ...] | None], _Group] = {}
    for rank in sorted(dumps):
        members = {group.name: group.ranks for group in dumps[rank].groups}
        for entry in dumps[rank].entries:
            if not entry.is_collective:
                continue
            name, description = entry.process_group
            key = (name, members.get(name))
            if key not in groups:
                groups[key] = _Group(_label(name, description), members.get(name))
            group = groups[key]
            group.sources[rank] = dumps[rank].source
            group.entries.setdefault(rank, {}).setdefault(entry.collective_seq_id, []).append(entry)
    for (name, members_of), group in groups.items():
        everyone = name == _DEFAULT_GROUP and members_of is None
        for rank in dumps if everyone else members_of or ():
            if rank in dumps:
                group.entries.setdefault(rank, {})
                group.sources.setdefault(rank, dumps[rank].source)
    return [groups[key] for key in sorted(groups, key=str)]


def _label(name: str, description: str) -> str:
    return f"process group {name}" + (f" ({description})" if description not in ("", "undefined") else "")


# Where the number of elements must be equal on all ranks, and on which side to count it. all_to_all may be uneven,
# gather and scatter have tensors on the root only, and all_gather of a list may be uneven as long as its whole output
# agrees.
_COUNT_INPUT = ("all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base")
_COUNT_OUTPUT = ("all_gather", "allgather", "_all_gather_base", "all_gather_into_tensor_coalesced")


def _call(entry: Entry) -> _Call:
    if entry.operation in _COUNT_INPUT:
        return _Call(entry.operation, entry.input_dtypes, sum(map(_count, entry.input_sizes)))
    if entry.operation in _COUNT_OUTPUT:
        return _Call(entry.operation, entry.output_dtypes, sum(map(_count, entry.output_sizes)))
    return _Call(entry.operation)


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _quote(entry: Entry, rank: int, source: str) -> Evidence:
    number = f"collective_seq_id={entry.collective_seq_id}" if entry.is_collective else f"p2p_seq_id={entry.p2p_seq_id}"
    sizes = ", ".join(str(list(size)) for size in entry.input_sizes[:4]) + (
        ", ..." if len(entry.input_sizes) > 4 else ""
    )
    text = f"rank {rank}: {entry.profiling_name} {number} input_sizes=[{sizes}]"
    if entry.input_dtypes:
        text += f" input_dtypes=[{', '.join(sorted(set(entry.input_dtypes)))}]"
    text += f" state={entry.state}"
    if entry.caller:
        text += f" at {entry.caller}"
    return Evidence(text, source=source, rank=rank)


# Mismatches: two ranks recorded different things under one number.


def _first_mismatch(group: _Group) -> Conclusion | None:
    for sequence in sorted({number for rank in group.ranks for number in group.entries[rank]}):
        sides: dict[tuple[_Call, ...], list[int]] = {}
        for rank in group.ranks:
            if group.has(rank, sequence):
                sides.setdefault(group.call(rank, sequence), []).append(rank)
        if len(sides) > 1:
            return _mismatch(group, sequence, sides)
    return None


def _mismatch(group: _Group, sequence: int, sides: dict[tuple[_Call, ...], list[int]]) -> Conclusion:
    by_size = sorted(sides.items(), key=lambda item: (-len(item[1]), item[1]))
    majority = by_size[0][1]
    odd = sorted(rank for _, ranks in by_size[1:] for rank in ranks)
    nobody_is_odd = len(by_size[1][1]) == len(majority)
    kind = _difference(by_size[0][0], by_size[1][0])
    shown = "; ".join(f"{folded(ranks)} {_describe(call, kind)}" for call, ranks in by_size[:_QUOTED])
    shift = "" if nobody_is_odd else _shift(group, sequence, majority[0], odd[0])
    quoted = [*odd[:_QUOTED], majority[0]]
    return Conclusion(
        kind=kind,
        title=f"{group.label}, collective {sequence} differs: {shown}" + (f"; {shift}" if shift else ""),
        evidence=tuple(group.quote(rank, sequence) for rank in quoted),
        cause=_MISMATCH,
        confidence=0.97,
        ranks=tuple(sorted([*odd, *majority])) if nobody_is_odd else tuple(odd),
        group=group.label,
        sequence=sequence,
        next=_SAME_CALLS,
    )


def _difference(first: tuple[_Call, ...], second: tuple[_Call, ...]) -> Kind:
    if [call.operation for call in first] != [call.operation for call in second]:
        return Kind.OPERATION_MISMATCH
    if [call.dtypes for call in first] != [call.dtypes for call in second]:
        return Kind.DTYPE_MISMATCH
    return Kind.SIZE_MISMATCH


def _describe(calls: tuple[_Call, ...], kind: Kind) -> str:
    call = calls[0]
    if kind is Kind.OPERATION_MISMATCH:
        return "+".join(item.operation for item in calls[:4])
    if kind is Kind.DTYPE_MISMATCH:
        return f"{call.operation} of {', '.join(sorted(set(call.dtypes))) or 'no dtype'}"
    return f"{call.operation} of {sum(item.elements for item in calls)} elements"


_SHIFTS = range(1, 9)


def _shift(group: _Group, sequence: int, common: int, odd: int) -> str:
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


def _moved(group: _Group, sequence: int, ahead: int, behind: int, places: int) -> bool:
    pairs = [
        (group.call(behind, number), group.call(ahead, number + places))
        for number in range(sequence, group.last(behind) + 1)
        if group.has(behind, number) and group.has(ahead, number + places)
    ]
    return (
        len(pairs) >= 2 and len({first for first, _ in pairs}) > 1 and all(first == second for first, second in pairs)
    )


# Equal calls, but not by all ranks, or not finished.


def _frontier(group: _Group) -> int | None:
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


def _stuck(group: _Group, dumps: Mapping[int, Dump]) -> list[Conclusion]:
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
    group: _Group, sequence: int, waiting: list[int], behind: list[int], dumps: Mapping[int, Dump]
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
    quoted = [group.quote(rank, sequence) for rank in waiting[:_QUOTED]]
    quoted += [_newest(group, rank, dumps[rank]) for rank in behind[:_QUOTED]]
    return Conclusion(
        kind=Kind.EXTRA_CALL if extra else Kind.NEVER_CALLED,
        title=title,
        evidence=tuple(quoted),
        cause=_MISMATCH if decided else "",
        candidates=(_MISMATCH, "app.uneven-inputs") if decided else (_STRAGGLER, _MISMATCH, "app.uneven-inputs"),
        confidence=0.85 if decided else 0.5,
        ranks=tuple(blamed),
        group=group.label,
        sequence=sequence,
        next=_SAME_CALLS if decided else f"read the log and take the stack (py-spy dump --pid PID) of {folded(behind)}",
    )


def _newest(group: _Group, rank: int, dump: Dump) -> Evidence:
    """Where a rank that is behind was last seen: its newest work in this group, or in any, or nowhere."""
    if group.entries[rank]:
        return group.quote(rank, group.last(rank))
    if dump.entries:
        return _quote(max(dump.entries, key=lambda entry: entry.record_id), rank, dump.source)
    return Evidence(f"rank {rank}: no entries recorded", source=dump.source, rank=rank)


def _newest_time(dump: Dump) -> int:
    return max((entry.time_created_ns for entry in dump.entries), default=0)


def _no_dump(group: _Group, sequence: int, waiting: list[int], absent: list[int], *, blamed: bool) -> Conclusion:
    operation = group.entries[waiting[0]][sequence][0].operation
    title = (
        f"no dump of {folded(absent)}; {folded(waiting)} hang in {operation} (collective {sequence} of {group.label})"
    )
    return Conclusion(
        kind=Kind.NO_DUMP,
        title=title,
        evidence=tuple(group.quote(rank, sequence) for rank in waiting[:_QUOTED]),
        candidates=("app.rank-exception", "net.peer-lost", _STRAGGLER, _MISMATCH),
        confidence=0.6 if blamed else 0.3,
        ranks=tuple(absent),
        group=group.label,
        sequence=sequence,
        next=f"read the log of {folded(absent)}: a rank that died or lost its host leaves no dump",
    )


def _all_called(group: _Group, sequence: int, waiting: list[int], finished: list[int]) -> Conclusion:
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
        evidence=tuple(group.quote(rank, sequence) for rank in [*waiting[:_QUOTED], *finished[:1]]),
        candidates=_HARDWARE,
        confidence=0.7 if group.members else 0.5,
        ranks=tuple(waiting) if finished else (),
        group=group.label,
        sequence=sequence,
        next="nccl-doctor check --hosts HOSTFILE (links, ports, Xid lines, NVLink), then nccl-doctor bench allreduce",
    )


# Two groups entered in different order: rank 0 waits in A for rank 1, which waits in B for rank 0.


def _group_order(groups: list[_Group]) -> tuple[list[Conclusion], set[str]]:
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


def _crossed(first: _Group, number: int, second: _Group, other: int, here: set[int], there: set[int]) -> Conclusion:
    title = (
        f"groups entered in different order: {folded(sorted(here))} in collective {number} of {first.label}, "
        f"{folded(sorted(there))} in collective {other} of {second.label}; each waits for the other"
    )
    evidence = [first.quote(rank, number) for rank in sorted(here)[:_QUOTED]]
    evidence += [second.quote(rank, other) for rank in sorted(there)[:_QUOTED]]
    return Conclusion(
        kind=Kind.GROUP_ORDER,
        title=title,
        evidence=tuple(evidence),
        cause=_MISMATCH,
        confidence=0.9,
        ranks=tuple(sorted(here | there)),
        group=first.label,
        sequence=number,
        next="enter the groups in the same order on every rank",
    )


# Send and receive.

_SEND_OR_RECEIVE = re.compile(r"(send|recv) \d+(?:->|<-)(?P<peer>\d+)")


class _Waiting(msgspec.Struct, frozen=True):
    """A send or receive that does not end. ``peer`` is a global rank, like ``rank``."""

    rank: int
    peer: int
    sends: bool
    entry: Entry


def _point_to_point(dumps: Mapping[int, Dump]) -> list[Conclusion]:
    """Sends without their receive, receives without their send; a ring of them is a deadlock."""
    waiting = [item for rank in sorted(dumps) for item in _unfinished(rank, dumps[rank])]
    posted = {(item.rank, item.peer, item.sends) for item in waiting}
    alone = [item for item in waiting if (item.peer, item.rank, not item.sends) not in posted and item.peer in dumps]
    ring = _cycle({item.rank: item.peer for item in alone})
    if ring:
        return [_deadlock([item for item in alone if item.rank in ring], dumps)]
    return [_unmatched(item, dumps) for item in alone[:_QUOTED]]


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


def _cycle(waits_for: Mapping[int, int]) -> set[int]:
    for start in sorted(waits_for):
        path: list[int] = []
        rank = start
        while rank in waits_for and rank not in path:
            path.append(rank)
            rank = waits_for[rank]
        if rank in path:
            return set(path[path.index(rank) :])
    return set()


_IN_TURN = "post both halves together (batch_isend_irecv), or let even ranks send first and odd ranks receive first"


def _deadlock(ring: list[_Waiting], dumps: Mapping[int, Dump]) -> Conclusion:
    chain = ", ".join(map(_say, ring[:_QUOTED]))
    return Conclusion(
        kind=Kind.P2P_CYCLE,
        title=f"send/recv deadlock: {chain}; every one waits for the next, and none posts the other half",
        evidence=tuple(_quote(item.entry, item.rank, dumps[item.rank].source) for item in ring[:_QUOTED]),
        cause=_MISMATCH,
        confidence=0.9,
        ranks=tuple(sorted({item.rank for item in ring})),
        next=_IN_TURN,
    )


def _unmatched(item: _Waiting, dumps: Mapping[int, Dump]) -> Conclusion:
    missing = "recv" if item.sends else "send"
    return Conclusion(
        kind=Kind.P2P_UNMATCHED,
        title=f"{_say(item)}, but rank {item.peer} has no matching {missing} pending",
        evidence=(_quote(item.entry, item.rank, dumps[item.rank].source),),
        candidates=(_MISMATCH, _STRAGGLER),
        ranks=(item.peer,),
        next=_IN_TURN,
    )


def _say(item: _Waiting) -> str:
    return f"rank {item.rank} {'sends to' if item.sends else 'receives from'} {item.peer}"
