"""Which rank a process is, and on which host: many name it in one line only, and all of their lines are that rank's."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.summary import Summary


def failure_table(rows: Iterable[Hit]) -> Iterator[tuple[int, Hit]]:
    """The rows of torchrun's failure table: a rank (``rank : 2``) and the line of its end (``exitcode : -9 (pid: 812)``)."""
    rank: int | None = None
    for hit in rows:
        if hit.signature == "torchrun-rank":
            rank = int(hit.groups["rank"])
        elif rank is not None:
            yield rank, hit
            rank = None


def _hosts_in_table(rows: Iterable[Hit]) -> Iterator[tuple[str, int]]:
    """The host and the rank of torchrun's failure table, where the one stands just above the other."""
    above: Hit | None = None
    for hit in rows:
        if hit.signature == "torchrun-host":
            above = hit
        elif above is not None and (above.file, above.line) == (hit.file, hit.line - 1):
            yield above.groups["host"], int(hit.groups["rank"])


_ENDED = re.compile(r"(?:\bpid[ :=]{1,2}|\bprocess |\bkill -(?:9|KILL) )(\d+)\b", re.IGNORECASE)


def of_same_process(hit: Hit, told: Iterable[Hit]) -> list[Hit]:
    """Of other lines those that name the process which this one names by its number, as who ended it and who saw it end do."""
    pids = set(_ENDED.findall(hit.text))
    return [one for one in told if pids and place(one) != place(hit) and pids & set(_ENDED.findall(one.text))]


_PID = re.compile(r"(?:\(pid: |by PID |process |\(RayTrainWorker pid=)(\d+)")


class Names:
    """The ranks of processes, as one line of each names them, and of all lines that name or come from such a process."""

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._by_process = self._initialised()
        rows = sorted(self._hits("torchrun-rank", "torchrun-exitcode"), key=place)
        self._by_pid = {hit.groups["pid"]: rank for rank, hit in failure_table(rows)} | self._ray_workers()

    def _hits(self, *names: str) -> list[Hit]:
        groups = self._summary.groups
        return [hit for name in names if name in groups for hit in groups[name].hits]

    def host(self, rank: int) -> str:
        """Where this rank ran, as torchrun's table, NCCL's init lines or what stands before its own lines tell; empty where
        they do not, or name several hosts."""
        names = next((told[rank] for told in self._hosts if rank in told), set())
        return min(names) if len(names) == 1 else ""

    @functools.cached_property
    def _hosts(self) -> tuple[dict[int, set[str]], ...]:
        """The hosts that each kind of line names for a rank, the most trustworthy kind first."""
        table = _hosts_in_table(sorted(self._hits("torchrun-host", "torchrun-rank"), key=place))
        started = ((host, rank) for (host, _), rank in self._by_process.items() if host)
        spoke = ((hit.host, rank) for rank, hit in self._summary.last_of_rank.items() if hit.host)
        found: tuple[dict[int, set[str]], ...] = ({}, {}, {})
        for told, pairs in zip(found, (table, started, spoke), strict=True):
            for host, rank in pairs:
                told.setdefault(rank, set()).add(host)
        return found

    def _initialised(self) -> dict[tuple[str, str], int]:
        """The rank in NCCL's init lines (``rank 3 nranks 8``), by host and pid.

        The first (usually the world) communicator of a process names its global rank.
        """
        named: dict[tuple[str, str], int] = {}
        for hit in self._hits("nccl-init-start", "nccl-init-complete", "nccl-comm-rank"):
            rank = hit.groups.get("rank", "")
            if hit.pid and rank.isdecimal() and hit.groups.get("nranks", "").isdecimal():
                named.setdefault((hit.host, hit.pid), int(rank))
        return named

    def _ray_workers(self) -> dict[str, int]:
        """The rank of each pid in Ray Train's list of workers; a pid of two ranks (on two hosts) tells nothing."""
        ranks: dict[str, set[int]] = {}
        for hit in self._hits("ray-worker-rank"):
            ranks.setdefault(hit.groups["pid"], set()).add(int(hit.groups["rank"]))
        return {pid: min(found) for pid, found in ranks.items() if len(found) == 1}

    def ranked(self, hit: Hit) -> Hit:
        """The same line with its rank filled in, if its process or the pid in its text is known."""
        rank = self._by_process.get((hit.host, hit.pid)) if hit.pid and hit.host else None
        if rank is None and hit.rank is None and self._by_pid:
            told = _PID.search(hit.text)
            rank = self._by_pid.get(told.group(1)) if told else None
        return hit if rank is None or rank == hit.rank else msgspec.structs.replace(hit, rank=rank)
