"""The jobs that run on the hosts now, put together from their processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.explain import ras
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.job import Job, Process, RasAnswer
from nccl_doctor.facts.model import NO_WAY_OUT, Plan, Reach, ReachOutcome
from nccl_doctor.rules import rank_variables as variables
from nccl_doctor.rules.doing import is_worker, looks
from nccl_doctor.rules.engine import Fleet, Host, facts_of
from nccl_doctor.rules.ranks import GpuUse, Link, Rank, RunningJob

_ADOPTERS = ("systemd", "slurmstepd")  # parents of processes whose own has ended, beside process 1
LOOPBACK = ("localhost", "127.", "::1")
STARTING = "init_process_group"


def processes_of(fleet: Fleet) -> tuple[tuple[str, Process], ...]:
    """Every process that was found, with its host, once."""
    return fleet.once(_processes)


def _processes(hosts: tuple[Host, ...], plan: Plan) -> tuple[tuple[str, Process], ...]:
    return tuple(_once(facts_of(hosts, Job)))


def jobs_of(fleet: Fleet) -> tuple[RunningJob, ...]:
    """Every job that runs on the fleet, or the one that the plan names; the largest first."""
    return fleet.once(_jobs)


def _jobs(hosts: tuple[Host, ...], plan: Plan) -> tuple[RunningJob, ...]:
    facts, gpus = facts_of(hosts, Job), _gpus_in_use(hosts)
    grouped: dict[tuple[str, int], list[Rank]] = defaultdict(list)
    for host, process in _numbered(list(_once(facts))):
        number = variables.number(process)
        if process.role == "rank" and number is not None and not _outlived_its_rank(process):
            children = tuple(
                child for child in facts[host].processes if child.role == "child" and child.rank_pid == process.pid
            )
            rank = Rank(number, host, process, looks(process), children, gpus.get((host, process.pid), ()))
            grouped[_key(host, process), variables.world(process) or 0].append(rank)
    _join(grouped)
    gone = {name: facts.reach for name, facts in hosts[0].gone.items()} if hosts else {}
    built = [_build(id, world, members, facts, gone) for (id, world), members in grouped.items()]
    built = [job for job in built if job.world != 1] or built  # a lone process under a scheduler is no job of ranks
    ordered = sorted(built, key=lambda job: (-len(job.ranks), job.id))
    return tuple(job for job in ordered if plan.job in ("", job.id))


def _join(grouped: dict[tuple[str, int], list[Rank]]) -> None:
    """Make one job of ranks that were told different places of the store, or one by different names, in that with the first rank.

    They are of one script, user and size of world, and no number is there twice. Either they are connected, or together
    they are the whole world, and all start.
    """
    alike: dict[tuple[int, str, int], list[str]] = defaultdict(list)
    for (id, world), members in grouped.items():
        alike[world, members[0].process.script, members[0].process.uid].append(id)
    for (world, _, _), ids in alike.items():
        if len(ids) < 2:
            continue
        every = sorted((rank.number, id) for id in ids for rank in grouped[id, world])
        starts = all(rank.now.name == STARTING for id in ids for rank in grouped[id, world])
        whole = starts and len(every) == world and [number for number, _ in every] == list(range(world))
        home = every[0][1]
        for id in sorted(set(ids) - {home}):
            numbers = {rank.number for rank in grouped[id, world]}
            twice = any(rank.number in numbers for rank in grouped[home, world])
            if whole or (not twice and _connected(grouped[home, world], grouped[id, world])):
                grouped[home, world] += grouped.pop((id, world))


def _connected(some: Iterable[Rank], others: Iterable[Rank]) -> bool:
    """Whether a connection leads from one of these ranks to one of the others."""
    ends = {(one.local, one.peer) for rank in some for one in rank.process.connections}
    return any(
        (one.peer, one.local) in ends and not one.local.startswith("127.")
        for rank in others
        for one in rank.process.connections
    )


def _outlived_its_rank(process: Process) -> bool:
    """Whether a rank that has died left it behind, with the rank's number: a DataLoader worker; under torchrun also a
    program other than Python whose own parent has ended.
    """
    adopted = process.launcher in _ADOPTERS or (process.parent == 1 and bool(process.launcher))
    program = adopted and "TORCHELASTIC_RUN_ID" in process.environment and not process.program.startswith("python")
    return program or is_worker(process)


def _once(known: Mapping[str, Job]) -> Iterator[tuple[str, Process]]:
    """Each process once: two names of one machine, or containers that share its /proc, see the same ones.

    It is put down to the host that shares its network namespace, else to the first that names it. Two machines never have
    a process with the same id, start and rank of one job.
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
        key = _key(host, process)
        if process.spawned:
            counts[key][host] = variables.local_world(process) or 0
        elif process.placed:
            highest[key] = max(highest[key], variables.local_rank(process) or 0)
    for host, process in found:
        key, own = _key(host, process), dict(process.environment)
        local = variables.local_rank(process) or 0
        if process.spawned and len(counts[key]) > 1:
            before = sum(count for name, count in counts[key].items() if name < host)
            own.update(RANK=str(before + local), WORLD_SIZE=str(sum(counts[key].values())))
        elif process.placed:
            own["RANK"] = str((variables.node_rank(process) or 0) * (highest[key] + 1) + local)
        yield host, msgspec.structs.replace(process, environment=own)


def _key(host: str, process: Process) -> str:
    """What the processes of one job share. A loopback master is each host's own."""
    environment = process.environment
    master = environment.get("MASTER_ADDR", "")
    if master:
        at = f"{host}:" if master.startswith(LOOPBACK) else ""
        return f"{at}{master}:{environment.get('MASTER_PORT', '?')}"
    if slurm := environment.get("SLURM_JOB_ID"):
        return f"slurm:{slurm}.{environment.get('SLURM_STEP_ID', '?')}"
    if namespace := environment.get("PMIX_NAMESPACE"):
        return f"mpi:{namespace}"
    if process.spawned:
        return f"{host}:pid:{process.parent}"
    return f"uid:{process.uid}:{process.script}"


def _gpus_in_use(hosts: tuple[Host, ...]) -> dict[tuple[str, int], tuple[GpuUse, ...]]:
    """Host and process -> what its GPUs do."""
    found: dict[tuple[str, int], list[GpuUse]] = defaultdict(list)
    for host in hosts:
        fact = host.want(GpuFact)
        for gpu in fact.gpus if fact else ():
            use = GpuUse(gpu.index, gpu.utilization_percent, gpu.power_w, gpu.power_limit_w)
            for process in gpu.processes or ():
                found[host.name, process.pid].append(use)
    return {key: tuple(uses) for key, uses in found.items()}


def _build(id: str, world: int, members: list[Rank], known: Mapping[str, Job], gone: Mapping[str, Reach]) -> RunningJob:
    """``gone``: how the hosts were reached on which no agent ran to the end."""
    by_number: dict[int, list[Rank]] = defaultdict(list)
    for rank in members:
        by_number[rank.number].append(rank)
    ranks: dict[int, Rank] = {}
    duplicates: list[Rank] = []
    for number, claimants in sorted(by_number.items()):
        ranks[number], *others = _without_helpers(claimants)
        duplicates += others
    facts = [known[host] for host in sorted({rank.host for rank in members})]
    return RunningJob(
        id,
        world,
        ranks,
        tuple(duplicates),
        _links(ranks.values(), gone),
        interval_s=max(fact.interval_s for fact in facts),
        silent_hosts=frozenset(name for name, reach in gone.items() if _is_silent(reach)),
        counts_rose=_counts_rose(ras_reports(facts)),
    )


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
