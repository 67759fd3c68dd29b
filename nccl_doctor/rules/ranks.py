"""The ranks of the jobs that run on the hosts now, what each does, and whether anything moves between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.explain import ras
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.job import Connection, Job, Process, RasAnswer
from nccl_doctor.facts.model import NO_WAY_OUT, Plan, Reach, ReachOutcome
from nccl_doctor.inventory import slurm
from nccl_doctor.inventory.names import BadName
from nccl_doctor.rules.doing import Doing, is_worker, looks
from nccl_doctor.rules.engine import Fleet, Host, facts_of

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_ADOPTERS = ("systemd", "slurmstepd")  # parents of processes whose own has ended, beside process 1
_LOOPBACK = ("localhost", "127.", "::1")
SURELY = ("collective", "store")
HEARTBEAT_BYTES_PER_S = 2048  # on one connection
CARRIED_BYTES = 64 << 20  # by all connections between ranks, ever: then data goes over them
BUSY_SHARE = 0.5  # of one CPU between two readings: it computes, it does not sleep


class Rank(msgspec.Struct, frozen=True):
    """One rank of a job: where it runs, and what it did at both looks."""

    number: int
    host: str
    process: Process
    looks: tuple[Doing, ...]
    children: tuple[Process, ...] = ()
    gpus: tuple[str, ...] = ()  # what NVML says of those that it uses

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

    @property
    def label(self) -> str:
        """``rank 3 (pid 4711)``."""
        return f"rank {self.number} (pid {self.process.pid})"


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
            first = {None if (local := local_rank(rank.process)) is None else rank.number - local for rank in here}
            wanted = {local_world(rank.process) for rank in here}
            (start, count) = (first.pop(), wanted.pop()) if len(first) == len(wanted) == 1 else (None, None)
            if start is not None and count:
                absent = sorted(set(range(start, start + count)) & set(self.missing))
                if absent:
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
        """The established connections between ranks that were found, but for those of the store.

        No variable tells its port where the program gives it (``init_method="tcp://..."``): what moves while one end only
        waits for the store, at both looks, is its asking, too.
        """
        return [
            link
            for link in self.links
            if link.peer and not link.store and link.connection.state == "ESTABLISHED"
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
        return "gpu" not in rank.process.devices and (rank.cpu_s or 0.0) > BUSY_SHARE * self.interval_s

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


def first_of(process: Process, names: Iterable[str]) -> int | None:
    """The first of these variables that is a number."""
    texts = (process.environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit() and len(text) < 8), None)


def local_rank(process: Process) -> int | None:
    """Its number on its host."""
    return first_of(process, _LOCAL)


def local_world(process: Process) -> int | None:
    """How many ranks its host has."""
    return first_of(process, _LOCAL_WORLD) or _slurm_tasks(process)


def _slurm_tasks(process: Process) -> int | None:
    """How many tasks Slurm has started on its host, where each is a rank: else a task has started the ranks itself."""
    task, number, node = (first_of(process, names) for names in (("SLURM_PROCID",), _RANK, ("SLURM_NODEID",)))
    try:
        counts = slurm.tasks_per_node(process.environment.get(_SLURM_TASKS, ""))
    except BadName:
        return None
    each_is_one = task == number and sum(counts) == first_of(process, _WORLD)
    return counts[node] if each_is_one and node is not None and node < len(counts) else None


def told_local_world(process: Process) -> str:
    """The variable that says how many ranks its host has, as it stands."""
    return _as_it_stands(process, (*_LOCAL_WORLD, _SLURM_TASKS))


def told_world(process: Process) -> str:
    """The variable that says how many ranks there are, as it stands."""
    return _as_it_stands(process, _WORLD)


def _as_it_stands(process: Process, names: Iterable[str]) -> str:
    return next((f"{name}={process.environment[name]}" for name in names if name in process.environment), "")


def processes_of(fleet: Fleet) -> tuple[tuple[str, Process], ...]:
    """Every process that was found, with its host, once."""
    return fleet.once(_processes)


def _processes(hosts: tuple[Host, ...], plan: Plan) -> tuple[tuple[str, Process], ...]:
    return tuple(_once(facts_of(hosts, Job)))


def jobs_of(fleet: Fleet) -> tuple[RunningJob, ...]:
    """Every job that runs on the fleet, or the one that the plan names; the largest first."""
    return fleet.once(_jobs)


def _jobs(hosts: tuple[Host, ...], plan: Plan) -> tuple[RunningJob, ...]:
    facts = facts_of(hosts, Job)
    grouped: dict[tuple[str, int], list[tuple[str, Process]]] = defaultdict(list)
    for host, process in _numbered(list(_once(facts))):
        if process.role == "rank" and first_of(process, _RANK) is not None and not _outlived_its_rank(process):
            grouped[_key(host, process), first_of(process, _WORLD) or 0].append((host, process))
    gpus = _gpus_in_use(hosts)
    gone = {name: facts.reach for name, facts in hosts[0].gone.items()} if hosts else {}
    built = [_build(id, world, members, facts, gpus, gone) for (id, world), members in grouped.items()]
    built = [job for job in built if job.world != 1] or built  # a lone process under a scheduler is no job of ranks
    ordered = sorted(built, key=lambda job: (-len(job.ranks), job.id))
    return tuple(job for job in ordered if plan.job in ("", job.id))


def _outlived_its_rank(process: Process) -> bool:
    """Whether a rank that has died left it behind, with the rank's number: a DataLoader worker; under torchrun also a
    program other than Python whose own parent has ended.
    """
    adopted = process.launcher in _ADOPTERS or (process.parent == 1 and bool(process.launcher))
    program = adopted and "TORCHELASTIC_RUN_ID" in process.environment and not process.program.startswith("python")
    return program or is_worker(process)


def _once(known: Mapping[str, Job]) -> Iterator[tuple[str, Process]]:
    """Each process once: two names of one machine, or containers that share its /proc, see the same ones.

    Who shares the process's network is its host, else the first to name it. No two machines have a process of one
    number, one start and one rank of one job.
    """
    seen: dict[tuple[int, int, tuple[tuple[str, str], ...]], tuple[bool, str, Process]] = {}
    for host, fact in sorted(known.items()):
        for process in fact.processes:
            key = (process.pid, process.start_ticks, tuple(sorted(process.environment.items())))
            at_home = bool(process.namespace) and process.namespace == fact.namespace
            if key not in seen or (at_home and not seen[key][0]):
                seen[key] = (at_home, host, process)
    return ((host, process) for _, host, process in seen.values())


def _numbered(found: list[tuple[str, Process]]) -> Iterator[tuple[str, Process]]:
    """The processes with their numbers in the whole job, where each has its number on its host alone.

    mp.spawn counts from 0 on every host: over several, ranks are numbered in the order of the hosts. Lightning tells the
    host's number as well, and its hosts have as many ranks as the highest number on any of them says.
    """
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    highest: dict[str, int] = defaultdict(int)
    for host, process in found:
        if process.spawned:
            counts[_key(host, process)][host] = local_world(process) or 0
        elif process.placed:
            highest[_key(host, process)] = max(highest[_key(host, process)], local_rank(process) or 0)
    for host, process in found:
        key, own = _key(host, process), dict(process.environment)
        if process.spawned and len(counts[key]) > 1:
            before = sum(count for name, count in counts[key].items() if name < host)
            own.update(RANK=str(before + (local_rank(process) or 0)), WORLD_SIZE=str(sum(counts[key].values())))
        elif process.placed:
            own["RANK"] = str(
                (first_of(process, ("NODE_RANK",)) or 0) * (highest[key] + 1) + (local_rank(process) or 0)
            )
        yield host, msgspec.structs.replace(process, environment=own)


def _key(host: str, process: Process) -> str:
    """What the processes of one job share. A loopback master is each host's own."""
    environment = process.environment
    master = environment.get("MASTER_ADDR", "")
    if master:
        at = f"{host}:" if master.startswith(_LOOPBACK) else ""
        return f"{at}{master}:{environment.get('MASTER_PORT', '?')}"
    if slurm := environment.get("SLURM_JOB_ID"):
        return f"slurm:{slurm}.{environment.get('SLURM_STEP_ID', '?')}"
    if namespace := environment.get("PMIX_NAMESPACE"):
        return f"mpi:{namespace}"
    if process.spawned:
        return f"{host}:pid:{process.parent}"
    return f"uid:{process.uid}:{process.script}"


def _gpus_in_use(hosts: tuple[Host, ...]) -> dict[tuple[str, int], tuple[str, ...]]:
    """Host and process -> its GPUs, in words: 100 % at little power is a kernel that waits."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for host in hosts:
        fact = host.want(GpuFact)
        for gpu in fact.gpus if fact else ():
            busy = "use not known" if gpu.utilization_percent is None else f"{gpu.utilization_percent} % busy"
            power = "" if gpu.power_w is None else f", {gpu.power_w:.0f} W"
            limit = "" if gpu.power_w is None or gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f} W"
            for process in gpu.processes or ():
                found[host.name, process.pid].append(f"GPU {gpu.index}: {busy}{power}{limit}")
    return {key: tuple(texts) for key, texts in found.items()}


def _build(
    id: str,
    world: int,
    members: list[tuple[str, Process]],
    known: Mapping[str, Job],
    gpus: Mapping[tuple[str, int], tuple[str, ...]],
    gone: Mapping[str, Reach],
) -> RunningJob:
    by_number: dict[int, list[Rank]] = defaultdict(list)
    for host, process in members:
        children = tuple(
            child for child in known[host].processes if child.role == "child" and child.rank_pid == process.pid
        )
        number = first_of(process, _RANK)
        assert number is not None
        by_number[number].append(
            Rank(number, host, process, looks(process), children, gpus.get((host, process.pid), ()))
        )
    ranks: dict[int, Rank] = {}
    duplicates: list[Rank] = []
    for number, claimants in by_number.items():
        ranks[number], *others = _without_helpers(claimants)
        duplicates += others
    facts = [known[host] for host in sorted({host for host, _ in members})]
    interval_s = max(fact.interval_s for fact in facts)
    ordered, links = dict(sorted(ranks.items())), _links(ranks.values(), gone)
    rose = _counts_rose(ras_reports(facts))
    silent = frozenset(name for name, reach in gone.items() if _is_silent(reach))
    return RunningJob(id, world, ordered, tuple(duplicates), links, interval_s, silent, rose)


def _is_silent(reach: Reach) -> bool:
    """Whether the host itself was silent: one that refuses our login is there, one that we have no way to may be."""
    silent = (ReachOutcome.TIMED_OUT, ReachOutcome.NO_ROUTE, ReachOutcome.CUT_OFF)
    return reach.outcome in silent and NO_WAY_OUT not in reach.detail


def _without_helpers(claimants: list[Rank]) -> list[Rank]:
    """The processes that may be this rank, youngest first.

    What a rank started and let go of (a logger's service) has its variables too: it is small beside the rank.
    """
    memory = {
        rank.process.pid: reading.resident_bytes if (reading := rank.process.readings[0]) else 0 for rank in claimants
    }
    large = [rank for rank in claimants if memory[rank.process.pid] * 4 >= max(memory.values())]
    return sorted(large, key=lambda rank: (rank.process.age_s, rank.host, rank.process.pid))


def ras_reports(facts: Iterable[Job]) -> list[ras.Report]:
    """What the RAS service of a job said, in order: any of its processes answers for all."""
    for fact in facts:
        answers = [answer for answer in fact.ras if answer.text]
        if answers:
            return [report for answer in answers for report in ras.read(_without_greeting(answer), answer.address)]
    return []


def _without_greeting(answer: RasAnswer) -> bytes:
    """The report without the replies to the commands before it."""
    lines = answer.text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if not line.startswith(("SERVER", "OK", "ERROR: Unk"))), 0)
    return "".join(lines[start:]).encode()


def _counts_rose(reports: list[ras.Report]) -> bool | None:
    counted = [report.counts for report in reports if report.counts]
    return counted[0] != counted[-1] if len(counted) > 1 else None


def _links(ranks: Iterable[Rank], gone: Mapping[str, Reach]) -> tuple[Link, ...]:
    """Every connection of these ranks, with the rank at its other end. One end's address is the other's peer."""
    ends: dict[tuple[str, str, str], Rank] = {}
    hosts: dict[str, set[str]] = defaultdict(set)  # of an address: several containers may have the same
    for host, reach in gone.items():
        hosts[reach.address].add(host)
    ranks = list(ranks)
    for rank in ranks:
        for connection in rank.process.connections:
            hosts[connection.local.rpartition(":")[0]].add(rank.host)
            loopback = rank.host if connection.local.startswith("127.") else ""
            ends[loopback, connection.local, connection.peer] = rank
    found = []
    for rank in ranks:
        port = rank.process.environment.get("MASTER_PORT", "")
        for connection in rank.process.connections:
            if connection.state == "LISTEN":
                continue
            loopback = rank.host if connection.local.startswith("127.") else ""
            store = bool(port) and port in (connection.local.rpartition(":")[2], connection.peer.rpartition(":")[2])
            peer = ends.get((loopback, connection.peer, connection.local))
            address = connection.peer.rpartition(":")[0]
            at = hosts.get(address, set())
            host = peer.host if peer else next(iter(at)) if len(at) == 1 else address
            found.append(Link(rank, peer, connection, store, host))
    return tuple(found)


def _only_asks(rank: Rank) -> bool:
    return rank.stays and rank.now.kind == "store"


def cpu_between(process: Process) -> float | None:
    """CPU time of a process from the first reading to the second, in seconds; None where it has ended."""
    first, last = process.readings[0], process.readings[-1]
    return round(last.cpu_s - first.cpu_s, 2) if first and last else None
