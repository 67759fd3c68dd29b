"""The collectives of all dumps by process group: who recorded what under which sequence number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from nccl_doctor.explain.flight_recorder.conclusion import quote
from nccl_doctor.explain.flight_recorder.dump import Dump, Entry, State
from nccl_doctor.findings.model import Evidence

_DEFAULT_GROUP = "0"  # torch's name of the group that init_process_group makes; backend gloo records no members for it


class Call(msgspec.Struct, frozen=True):
    """What must agree between the ranks of one collective: operation, dtypes, number of elements."""

    operation: str
    dtypes: tuple[str, ...] = ()
    elements: int = -1  # -1: not compared for this operation


class Group:
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

    def call(self, rank: int, sequence: int) -> tuple[Call, ...]:
        return tuple(_call(entry) for entry in self.entries[rank].get(sequence, ()))

    def has(self, rank: int, sequence: int) -> bool:
        return sequence in self.entries[rank]

    def state(self, rank: int, sequence: int) -> State:
        """Waiting if any part of the (perhaps coalesced) work waits; completed only if all of it is."""
        states = {entry.proven_state for entry in self.entries[rank][sequence]}
        return next((state for state in (State.WAITING, State.UNKNOWN) if state in states), State.COMPLETED)

    def quote(self, rank: int, sequence: int) -> Evidence:
        """What a rank recorded under this number, as one line."""
        return quote(self.entries[rank][sequence][0], rank, self.sources[rank])


def collate(dumps: Mapping[int, Dump]) -> list[Group]:
    """Sort the collectives of all dumps into groups. Two groups may bear one name: then the members tell them apart."""
    groups: dict[tuple[str, tuple[int, ...] | None], Group] = {}
    for rank in sorted(dumps):
        members = {group.name: group.ranks for group in dumps[rank].groups}
        for entry in dumps[rank].entries:
            if not entry.is_collective:
                continue
            name, description = entry.process_group
            key = (name, members.get(name))
            if key not in groups:
                groups[key] = Group(_label(name, description), members.get(name))
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


def _call(entry: Entry) -> Call:
    if entry.operation in _COUNT_INPUT:
        return Call(entry.operation, entry.input_dtypes, sum(map(math.prod, entry.input_sizes)))
    if entry.operation in _COUNT_OUTPUT:
        return Call(entry.operation, entry.output_dtypes, sum(map(math.prod, entry.output_sizes)))
    return Call(entry.operation)
