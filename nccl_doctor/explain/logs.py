"""A set of logs: the lines in it that signatures recognised."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit, Role, Traceback
from nccl_doctor.explain.processes import Names
from nccl_doctor.explain.signatures import Signature, all_signatures
from nccl_doctor.explain.summary import Summary


class Logs:
    """What readers found in one set of logs, asked for by signature."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.signatures = all_signatures()
        self._names = Names(summary)
        self._known: dict[str, list[Hit]] = {}  # by signature, with ranks

    def hits(self, *names: str) -> list[Hit]:
        """The kept hits of these signatures, in the order of the log(s), with ranks filled in."""
        if len(names) == 1:
            return self._of(names[0])
        return sorted((hit for name in names for hit in self._of(name)), key=place)

    def _of(self, name: str) -> list[Hit]:
        found = self._known.get(name)
        if found is None:
            group = self.summary.groups.get(name)
            found = self._known[name] = [self.ranked(hit) for hit in group.hits] if group else []
        return found

    def ranked(self, hit: Hit) -> Hit:
        """The same line with its rank filled in, where another line names it."""
        return self._names.ranked(hit)

    def hosts_by_rank(self) -> dict[int, str]:
        """The host of each rank, where the logs name one."""
        return self._names.hosts()

    def ended_by_srun(self, said: Iterable[Hit]) -> set[int]:
        """The ranks of which srun says in these lines that they have ended."""
        return {rank for _, rank in self._names.ended_by_srun(said)}

    def ranks_with(self, pids: Iterable[str], hosts: Collection[str]) -> set[int]:
        """The ranks of these processes, on these hosts if any are given."""
        return self._names.with_pids(pids, hosts)

    def first(self, *names: str) -> Hit | None:
        """The first hit of any of these signatures."""
        found = self.hits(*names)
        return found[0] if found else None

    def last(self, name: str, file: str | None = None) -> Hit | None:
        """The last hit of this signature (in this file)."""
        group = self.summary.groups.get(name)
        if group is None:
            return None
        return group.last if file is None else group.lasts.get(file)

    def lasts(self, name: str) -> Iterable[Hit]:
        """The last hit of this signature in each file that has one."""
        group = self.summary.groups.get(name)
        return group.lasts.values() if group else ()

    def has(self, *names: str) -> bool:
        """Whether any of these signatures hit."""
        return not self.summary.groups.keys().isdisjoint(names)

    def count(self, *names: str) -> int:
        """How many lines these signatures recognised."""
        return sum(self.summary.groups[name].count for name in names if name in self.summary.groups)

    def seen(self, *roles: Role) -> list[Signature]:
        """The signatures of these roles that recognised a line, by name."""
        return [signature for signature in self._seen if signature.role in roles]

    @functools.cached_property
    def _seen(self) -> list[Signature]:
        return [self.signatures[name] for name in sorted(self.summary.groups) if name in self.signatures]

    def known_as(self, item: Traceback, *roles: Role) -> bool:
        """Whether a signature of one of these roles knows the exception's line: it then says what it means."""
        return any(self.signatures[name].role in roles for name in item.known)

    @functools.cached_property
    def tail(self) -> list[Hit]:
        """The last lines of all files."""
        return [hit for hits in self.summary.tails.values() for hit in hits]
