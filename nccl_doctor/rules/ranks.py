"""The ranks of a job that runs now: what each does, and whether anything moves between them."""

from __future__ import annotations

from collections import Counter

import msgspec

from nccl_doctor.facts.job import Connection, Process
from nccl_doctor.findings.model import Evidence
from nccl_doctor.rules.doing import Doing, frames_of
from nccl_doctor.rules.rank_variables import local_rank, local_world

SURELY = ("collective", "store")
HEARTBEAT_BYTES_PER_S = 2048  # on one connection
CARRIED_BYTES = 64 << 20  # by all connections between ranks, ever: then data goes over them
WORK_BYTES = 1 << 20  # read, written, sent or received between the looks: more than heartbeats
# Whoever has crashed ends by itself, with its core dump; "kernel" is state D: as likely as not one long write or read.
_AT_WORK = ("saving", "loading", "importing", "crashed", "kernel")
_BUSY_SHARE = 0.1  # of one CPU between two readings: it computes, if on a crowded host; who waits takes a hundredth


class GpuUse(msgspec.Struct, frozen=True):
    """What NVML said of a GPU; None where it did not. 100 % busy at little power is a kernel that waits."""

    index: int
    busy_percent: float | None
    power_w: float | None
    limit_w: float | None

    def __str__(self) -> str:
        busy = "use not known" if self.busy_percent is None else f"{self.busy_percent} % busy"
        power = "" if self.power_w is None else f", {self.power_w:.0f} W"
        limit = f" of {self.limit_w:.0f} W" if power and self.limit_w is not None else ""
        return f"GPU {self.index}: {busy}{power}{limit}"

    def waits(self, share: float) -> bool:
        """Whether it is fully busy, and draws no more than this share of its limit."""
        return self.busy_percent == 100 and bool(self.power_w and self.limit_w and self.power_w <= share * self.limit_w)


class Rank(msgspec.Struct, frozen=True):
    """One rank of a job: where it runs, and what it did at both looks."""

    number: int
    host: str
    process: Process
    looks: tuple[Doing, ...]
    children: tuple[Process, ...] = ()
    gpus: tuple[GpuUse, ...] = ()

    @property
    def now(self) -> Doing:
        """What it did at the second look."""
        return self.looks[-1]

    @property
    def stays(self) -> bool:
        """Whether both looks found it at one and the same place."""
        return len(self.looks) > 1 and len(set(self.looks)) == 1 and self.now.kind != "unknown"

    @property
    def cpu_s(self) -> float | None:
        """CPU time between the readings."""
        return cpu_between(self.process)

    def at_work(self, interval_s: float) -> bool:
        """Whether it, or a child of it, computes, reads, writes, fetches or ends: it may come by itself."""
        processes = (self.process, *self.children)
        return self.now.kind in _AT_WORK or any(works(process, interval_s) for process in processes)

    @property
    def peer(self) -> int | None:
        """The rank that its call of torch.distributed names: whose message, or whose tensor."""
        return next((frame.peer for frame in frames_of(self.process) if frame.peer is not None), None)

    @property
    def in_default_group(self) -> bool:
        """Whether its call is known to name no group: then every rank of the job has to come to it."""
        return any(frame.default_group for frame in frames_of(self.process))

    @property
    def label(self) -> str:
        """``rank 3 (pid 4711)``."""
        return f"rank {self.number} (pid {self.process.pid})"

    def evidence(self, text: str, source: str) -> Evidence:
        """What was seen of it, or of one of its processes."""
        return Evidence(text, source, host=self.host, rank=self.number)


class Link(msgspec.Struct, frozen=True):
    """A TCP connection between two ranks, as ``rank`` sees it; ``peer`` None: the other end is none that was found."""

    rank: Rank
    peer: Rank | None
    connection: Connection
    store: bool  # of the rendezvous store, where heartbeats run
    peer_host: str  # as the inventory names it; the address where it is of no known host


class RunningJob(msgspec.Struct, frozen=True):
    """One job: its ranks by number, as far as their processes were found. ``world`` is 0 where nobody says it."""

    id: str
    world: int
    ranks: dict[int, Rank]
    duplicates: tuple[Rank, ...]  # older processes that bear a number which another one bears
    links: tuple[Link, ...]
    interval_s: float
    silent_hosts: frozenset[str] = frozenset()  # that did not answer us either, whether it has ranks there or not
    counts_rose: bool | None = None  # of the collectives that NCCL's RAS threads have counted; None: it told none

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts with ranks of it."""
        return tuple(sorted({rank.host for rank in self.ranks.values()}))

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of the world of which no process was found."""
        return tuple(number for number in range(self.world) if number not in self.ranks)

    @property
    def over(self) -> bool:
        """Whether every rank of the world was found, and none was left at the last look."""
        return not self.missing and all(rank.process.readings[-1] is None for rank in self.ranks.values())

    @property
    def gone(self) -> dict[str, tuple[int, ...]]:
        """Host -> the ranks that it must have, by what its other ranks say, and of which it has no process."""
        found: dict[str, tuple[int, ...]] = {}
        for host in self.hosts:
            here = [rank for rank in self.ranks.values() if rank.host == host]
            # A host's ranks follow each other where all of them are as far from their local number.
            placed = {(rank.number - (local_rank(rank.process) or 0), local_world(rank.process)) for rank in here}
            if len(placed) > 1 or any(local_rank(rank.process) is None for rank in here):
                continue
            start, count = placed.pop()
            if absent := sorted(set(range(start, start + (count or 0))).intersection(self.missing)):
                found[host] = tuple(absent)
        return found

    @property
    def hosts_wanted(self) -> int:
        """How many hosts the job has, where every rank says the same of its own; else 0."""
        each = {local_world(rank.process) for rank in self.ranks.values()}
        count = each.pop() if len(each) == 1 else None
        return -(-self.world // count) if count else 0

    @property
    def data_links(self) -> list[Link]:
        """The established connections between ranks that were found, but for those of the store and of a rank with itself.

        No variable tells its port where the program gives it (``init_method="tcp://..."``): what moves while one end only
        waits for the store, at both looks, is its asking, too.
        """
        return [
            link
            for link in self.links
            if link.peer not in (None, link.rank) and not link.store and link.connection.state == "ESTABLISHED"
            and not (link.connection.moved_bytes and (_only_asks(link.rank) or _only_asks(link.peer)))
        ]  # fmt: skip

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that its ranks have open: ``gpu``, ``rdma``."""
        return frozenset(device for rank in self.ranks.values() for device in rank.process.devices)

    @property
    def moved_bytes(self) -> int | None:
        """Bytes that moved between ranks from the first reading to the second; None where the kernel tells none.

        Of a job with GPUs, what moves on a connection no faster than a heartbeat is not counted: NCCL's RAS threads have
        one each second.
        """
        told = [link.connection.moved_bytes for link in self.data_links if link.connection.moved_bytes is not None]
        idle = HEARTBEAT_BYTES_PER_S * self.interval_s if "gpu" in self.devices else 0
        return sum(moved for moved in told if moved > idle) if told else None

    @property
    def tcp_tells(self) -> bool:
        """Whether what ranks say to each other goes over TCP, so that silence there is silence.

        With a GPU or an RDMA device they may talk over NVLink, shared memory or InfiniBand, under MPI over shared memory;
        their connections then carry the start's few kilobytes, unless there is nothing better than sockets.
        """
        carried = sum(link.connection.received_bytes or 0 for link in self.data_links)
        torch = any("MASTER_ADDR" in rank.process.environment for rank in self.ranks.values())
        only_way = torch and not self.devices
        return bool(self.data_links) and "rdma" not in self.devices and (only_way or carried > CARRIED_BYTES)

    @property
    def silent_s(self) -> float | None:
        """For how long no byte has moved between ranks; None where the kernel does not tell, or TCP is not their way."""
        ago = [
            moment
            for link in self.data_links
            for moment in (link.connection.received_ago_ms, link.connection.sent_ago_ms)
            if moment is not None and (link.connection.acked_bytes or link.connection.received_bytes)
        ]
        return min(ago) / 1000 if ago and self.tcp_tells else None

    @property
    def waiting(self) -> list[Rank]:
        """The ranks that wait for others: in a collective or the store, or all at one place where most are."""
        ranks = list(self.ranks.values())
        surely = [rank for rank in ranks if rank.now.kind in SURELY]
        alike = ("own", "backward", "gpu", "asleep", "running")
        places = Counter(rank.now for rank in ranks if rank.now.kind in alike and not self._computes(rank))
        common = {place for place, count in places.items() if count > 1 and count * 2 > len(ranks)}
        return sorted([*surely, *(rank for rank in ranks if rank.now in common)], key=lambda rank: rank.number)

    def _computes(self, rank: Rank) -> bool:
        """Whether it spends the processor's time on its own work: who waits for a GPU may do so in a busy loop."""
        return "gpu" not in rank.process.devices and computes(rank.process, self.interval_s)

    @property
    def stays(self) -> bool:
        """Whether all who wait were in their places at both looks."""
        return bool(self.waiting) and all(rank.stays for rank in self.waiting)

    @property
    def stands(self) -> bool:
        """Whether it is proved that nothing went on between the looks: who waits stayed in its place, and no byte
        moved where all would have to, or NCCL's own counts did not rise."""
        silent = self.tcp_tells and self.moved_bytes == 0
        return self.stays and not self.moved_bytes and (silent or self.counts_rose is False)

    @property
    def moves(self) -> bool:
        """Whether bytes moved between ranks, NCCL's counts rose, or a rank that waits was elsewhere before."""
        arrived = any(len(rank.looks) > 1 and not rank.stays for rank in self.waiting)
        return bool(self.moved_bytes or self.counts_rose) or arrived


def _only_asks(rank: Rank) -> bool:
    return rank.stays and rank.now.kind == "store"


def cpu_between(process: Process) -> float | None:
    """CPU time of a process from the first reading to the second, in seconds; None where it has ended."""
    first, last = process.readings
    return round(last.cpu_s - first.cpu_s, 2) if first and last else None


def computes(process: Process, interval_s: float) -> bool:
    """Whether it took the processor's time between the readings, or waits for its turn."""
    last = process.readings[-1]
    return last is not None and (last.state == "R" or (cpu_between(process) or 0.0) > _BUSY_SHARE * interval_s)


def works(process: Process, interval_s: float) -> bool:
    """Whether it computes, or reads, writes, sends or receives."""
    return computes(process, interval_s) or moves_data(process)


def moves_data(process: Process) -> bool:
    """Whether it has read, written, sent or received more than heartbeats between the readings."""
    first, last = process.readings
    if first is None or last is None:
        return False
    moved = sum(
        after - before
        for before, after in ((first.read_bytes, last.read_bytes), (first.written_bytes, last.written_bytes))
        if before is not None and after is not None
    )
    return moved + sum(item.moved_bytes or 0 for item in process.connections) > WORK_BYTES
