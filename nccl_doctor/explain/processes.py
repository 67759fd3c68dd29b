"""Which rank a process is, and on which host: many name it in one line only, and all of their lines are that rank's."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.lines import place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
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
    """The host and the rank of torchrun's failure table, where the one stands just above the other: the host has that rank, and
    all before it of lower local ranks."""
    above: Hit | None = None
    for hit in rows:
        if hit.signature == "torchrun-host":
            above = hit
        elif above is not None and (above.file, above.line) == (hit.file, hit.line - 1):
            rank, local = int(hit.groups["rank"]), int(hit.groups["local"])
            yield from ((above.groups["host"], rank - nth) for nth in range(min(local, rank, _MOST_LOCAL) + 1))


_MOST_LOCAL = 64  # ranks of a host
_ENDED = re.compile(r"(?:\bpid[ :=]{1,2}|\bprocess |\bkill -(?:9|KILL) )(\d+)\b", re.IGNORECASE)


def of_same_process(hit: Hit, told: Iterable[Hit]) -> list[Hit]:
    """Of other lines those that name the process which this one names by its number, as who ended it and who saw it end do."""
    pids = set(_ENDED.findall(hit.text))
    return [one for one in told if pids and place(one) != place(hit) and pids & set(_ENDED.findall(one.text))]


_STARTED = ("tests-device", "rank-on-host", "rank-on-host-somehow")  # a rank names itself and its host
_SIZES = re.compile(r"--(nproc[-_]per[-_]node|num_processes|num_machines)[= ](\d{1,6})\b")
_TYPED_AT = ("host", "bracketed", "bare")  # what a shell's prompt calls the host
_OWN_RANK = re.compile(r"(?<![A-Z_])RANK=(\d{1,7})\b")
_MAPPED = re.compile(r"'([\w.-]{1,64})': \[([\d, ]{1,4000})\]")
_TASKS = re.compile(r"srun: error: ([\w.-]+): tasks? (\d[\d,-]{0,200}): ")


def _unfolded(numbers: str) -> Iterator[int]:
    """``16-18,22`` -> 16, 17, 18, 22."""
    for part in filter(None, numbers.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first), int(first) + 1024) + 1)


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

    def hosts(self) -> dict[int, str]:
        """Where each rank ran, as torchrun's table, NCCL's init lines, the program, srun or what stands before its own lines tell;
        without those for whom the most trustworthy of them names several hosts."""
        table = _hosts_in_table(sorted(self._hits("torchrun-host", "torchrun-rank"), key=place))
        started = ((host, rank) for (host, _), rank in self._by_process.items() if host)
        lines = self._hits(*_STARTED)
        said = (
            (name, int(hit.groups["rank"]))
            for hit in lines
            if prefix.is_host(name := hit.groups["host"].rstrip(",;:)]."))
        )
        itself = [
            (hit.host, int(hit.groups["rank"])) for hit in self._hits("rank-itself", "lightning-member") if hit.host
        ]
        spoke = ((hit.host, rank) for rank, hit in self._summary.last_of_rank.items() if hit.host)
        ends = (*self._hits("mpi-abort"), *(hit for hits in self._summary.tails.values() for hit in hits))
        found: dict[int, str] = {}
        for pairs in (
            table,
            started,
            said,
            self._mapped(),
            self._of_commands(),
            self.ended_by_srun(ends),
            itself,
            spoke,
        ):
            told: dict[int, set[str]] = {}
            for host, rank in pairs:
                told.setdefault(rank, set()).add(host)
            for rank, names in told.items():
                found.setdefault(rank, min(names) if len(names) == 1 else "")
        return {rank: host for rank, host in found.items() if host}

    def _mapped(self) -> Iterator[tuple[str, int]]:
        """The host of each rank, as launchers list them before they start."""
        for hit in self._hits("ranks-of-hosts"):
            for host, ranks in _MAPPED.findall(hit.groups["mapping"]):
                yield from ((host, int(rank)) for rank in re.findall(r"\d{1,7}", ranks))
        host = ""
        for hit in sorted(self._hits("map-of-node", "map-of-rank"), key=place):
            if hit.signature == "map-of-node":
                host = hit.groups["host"]
            elif host:
                yield host, int(hit.groups["rank"])

    def _of_commands(self) -> Iterator[tuple[str, int]]:
        """The host of each rank that a node's own command starts there (``--node_rank 1 --nproc_per_node 8``), or that its environment
        names (``RANK=2 WORLD_SIZE=4``): not where these are numbers of nodes, because there are more ranks than that."""
        typed = {
            place(hit): next(filter(None, map(hit.groups.get, _TYPED_AT)), "") for hit in self._hits("typed-launch")
        }
        for hit in self._hits("node-started"):
            sizes = {name.replace("-", "_"): int(number) for name, number in _SIZES.findall(hit.text)}
            each = sizes.get("nproc_per_node", sizes.get("num_processes", 0) // max(sizes.get("num_machines", 1), 1))
            host = hit.host or typed.get(place(hit), "")
            if host and each <= _MOST_LOCAL:
                first = int(hit.groups["node"]) * each
                yield from ((host, rank) for rank in range(first, first + each))
        for hit in self._hits("world-size"):
            rank = _OWN_RANK.search(hit.text)
            if hit.host and rank and self._highest < int(hit.groups["world"]):
                yield hit.host, int(rank[1])

    def with_pids(self, pids: Iterable[str], hosts: Collection[str]) -> set[int]:
        """The ranks of these processes of these hosts; of any, if the hosts are not known and no two hosts have such a process."""
        wanted = set(pids)
        found = {
            key: rank for key, rank in self._by_process.items() if key[1] in wanted and (not hosts or key[0] in hosts)
        }
        if not found:
            return {rank for pid, rank in self._by_pid.items() if pid in wanted}
        return set(found.values()) if hosts or len({host for host, _ in self._by_process}) < 2 else set()

    def ended_by_srun(self, said: Iterable[Hit]) -> Iterator[tuple[str, int]]:
        """The host and the number of each task of which srun says in these lines that it has ended, where tasks are ranks and not
        nodes."""
        found = (told for hit in said if "srun: error: " in hit.text and (told := _TASKS.search(hit.text)))
        pairs = [(told[1], task) for told in found for task in _unfolded(told[2])]
        if any(hit.labelled for hit in self._summary.last_of_rank.values()):  # srun -l: its tasks are the ranks
            return iter(pairs)
        behind = self._summary.ranks_of_task  # of tasks that are nodes
        ranks = [(host, rank) for host, task in pairs for rank in behind.get(task, ())]
        return iter(ranks or (pairs if self._are_ranks({task for _, task in pairs}) else ()))

    def _are_ranks(self, tasks: set[int]) -> bool:
        """Whether the tasks of a step are its ranks: none is higher, or all other ranks are heard of, and these do not come out
        even on so many nodes as a task of such a number needs."""
        last, world = max(tasks, default=0), self._highest + 1
        if last >= self._highest:
            return True
        all_heard = set(range(world)) - set(self._summary.ranks) <= tasks
        return all_heard and all(world % nodes for nodes in range(last + 1, world))

    @functools.cached_property
    def _highest(self) -> int:
        """The highest rank that a line names as its speaker."""
        return max([*self._summary.ranks, *(int(hit.groups["rank"]) for hit in self._hits("rank-itself"))], default=0)

    def _initialised(self) -> dict[tuple[str, str], int]:
        """The rank in NCCL's init lines (``rank 3 nranks 8``), by host and pid.

        The first (usually the world) communicator of a process names its global rank.
        """
        named: dict[tuple[str, str], int] = {}
        for hit in self._hits("nccl-init-start", "nccl-init-complete", "nccl-comm-rank"):
            rank = hit.groups.get("rank", "")
            if hit.pid and rank.isdecimal() and hit.groups.get("nranks", "").isdecimal():
                named.setdefault((hit.host, hit.pid), int(rank))
        for hit in self._hits(*_STARTED):
            pid = hit.groups.get("pid") or hit.pid
            if pid and prefix.is_host(hit.groups["host"]):
                named.setdefault((hit.groups["host"], pid), int(hit.groups["rank"]))
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
