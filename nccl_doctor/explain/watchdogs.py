"""What the watchdogs of torch say: where each rank of each process group stood in its sequence of collectives."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.model import Hit

# Operations whose ranks do different things.
ASYMMETRIC = frozenset(("SEND", "RECV", "GATHER", "SCATTER", "COALESCED", "UNKNOWN"))


class Work(msgspec.Struct):
    """Where one rank of one process group stood when its watchdog spoke. Works are numbered; -1 is none, or not told."""

    rank: int  # in the job
    group: str
    member: int = -1  # the rank's number in the group, where the line tells both
    sequence: int = -1  # the work that timed out
    operation: str = ""
    elements: str = ""
    timeout_ms: int = 0
    enqueued: int = -1  # the last one
    completed: int = -1
    hit: Hit | None = None  # of the time-out
    status_hit: Hit | None = None

    @property
    def hits(self) -> list[Hit]:
        """The lines that tell of it."""
        return [hit for hit in (self.hit, self.status_hit) if hit]


_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+), "
    r"(?P<shape>(?:NumelIn=\d+, NumelOut=\d+|TensorShape=\[[^\]]{0,80}\]))?"
    r"(?:, Timeout\(ms\)=(?P<timeout>\d+))?"
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\w+)(?: PG GUID (?P<name>[^\s\]]+))?")
_TAG = "[rank"
_RANK = re.compile(r"Rank (\d{1,9})\]")
_FEWEST = 3  # members, of which the spacing in the job can be told


def works(statuses: Iterable[Hit], timeouts: Iterable[Hit]) -> list[Work]:
    """The last work of each rank of each process group, by group and rank."""
    table: dict[tuple[str, int], Work] = {}
    groups: dict[int, str] = {}
    for hit in statuses:
        rank, member = _who(hit)
        if rank is None:
            continue
        group = _group_of(hit.text)
        groups.setdefault(rank, group)
        entry = table.setdefault((group, rank), Work(rank, group, member))
        entry.enqueued = int(hit.groups["enqueued"])
        entry.completed = int(hit.groups["completed"])
        entry.status_hit = entry.status_hit or hit
        if entry.sequence < 0 and "sequence" in hit.groups:
            entry.sequence = int(hit.groups["sequence"])
    for hit in timeouts:
        rank, member = _who(hit)
        if rank is None:
            continue
        group = groups.get(rank) or _group_of(hit.text)
        entry = table.setdefault((group, rank), Work(rank, group, member))
        if entry.hit is None:
            _describe(entry, hit)
    return sorted(table.values(), key=lambda item: (item.group, item.rank))


def _describe(entry: Work, hit: Hit) -> None:
    """Take over what a time-out says of the work that timed out."""
    entry.hit = hit
    described = _WORK.search(hit.text)
    if described:
        entry.sequence = int(described.group("seq")) if described.group("seq") else entry.sequence
        entry.operation = described.group("op")
        entry.elements = described.group("shape") or ""
        entry.timeout_ms = int(described.group("timeout") or 0)


def _group_of(text: str) -> str:
    found = _GROUP.search(text)
    return (found.group("name") or found.group("id")) if found else ""


def _who(hit: Hit) -> tuple[int | None, int]:
    """The rank in the job, which torch tells in front of its lines, and the number in the group, which stands in the brackets; -1
    where that is all that is told."""
    found = _RANK.search(hit.text)
    number = int(found[1]) if found else -1
    if hit.rank is not None and _TAG in hit.text:
        return hit.rank, number
    return (number if found else hit.rank), -1


def absent(members: Iterable[Work]) -> set[int]:
    """The ranks in the job of a group's members that said nothing, where those that spoke are evenly spaced in it: all but a few of
    the members below the highest that is known."""
    known = {item.member: item.rank for item in members if item.member >= 0}
    first, last = min(known, default=0), max(known, default=0)
    missing = set(range(last)) - set(known)
    if len(known) < _FEWEST or not 0 < len(missing) <= max(1, len(known) // 4):
        return set()
    step, left = divmod(known[last] - known[first], last - first)
    start = known[first] - first * step
    if left or step < 1 or start < 0 or known != {member: start + step * member for member in known}:
        return set()
    return {start + step * member for member in missing}
