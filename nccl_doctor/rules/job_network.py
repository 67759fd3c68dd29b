"""The connections between the ranks of a running job: what gets through, and who has closed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.job import Job
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.engine import Fleet, facts_of, fleet_rule
from nccl_doctor.rules.job_words import EARLY_S, QUOTED, WAITING, place_of, places, quoted, ranks_of, silence
from nccl_doctor.rules.ranks import Link, Rank, RunningJob
from nccl_doctor.rules.running_jobs import LOOPBACK, STARTING, jobs_of, processes_of


@fleet_rule("job", "hang.network", "hang.network.connecting")
def network(fleet: Fleet) -> Iterator[Finding]:
    """What ranks send to each other is acknowledged: no send queue stays full while retransmissions go unanswered.

    A firewall that forgets or drops established connections, a route that went, a link that is down: the connection
    stands on both sides, and nothing gets through. A queue that is full because the peer does not read (it is stopped)
    is no fault of the network, and shows no unanswered retransmissions.
    """
    for job in jobs_of(fleet):
        lost = [link for link in job.links if _is_lost(link)]
        if lost:
            yield _cut("hang.network", "what {} sent is not acknowledged", lost, job)
        asking = [link for link in job.links if link.connection.state == "SYN_SENT" and link.connection.timeouts]
        if asking:
            yield _cut("hang.network.connecting", "{} connect{} in vain", asking, job)


def _cut(id: str, title: str, links: Sequence[Link], job: RunningJob) -> Finding:
    """Connections on which nothing gets through, and the host that all of them share, if one does.

    Where each leads to a host that does not answer us either, it is that one.
    """
    pairs = sorted({(link.rank.host, link.peer_host) for link in links})
    ends = sorted({host for pair in pairs for host in pair})
    silent = tuple(host for host in ends if host in job.silent_hosts)
    guilty = silent if all(peer in silent for _, peer in pairs) else _common_host(links, job)
    senders = list({link.rank.number: link.rank for link in links}.values())
    return finding(
        id,
        Severity.FAIL,
        title.format(ranks_of(senders), "s" * (len(senders) == 1))
        + f": {few([f'{source} -> {peer}' for source, peer in pairs])}",
        [*(quoted(link) for link in links[: QUOTED + 1]), *silence(job)],
        confidence=0.95 if guilty and len(pairs) > 1 else 0.85,
        hosts=guilty or tuple(host for host in ends if host in job.hosts),
        places=[Place(host=source, peer=peer) for source, peer in pairs],
        fixes=(
            Fix("does new traffic pass?", f"nccl-doctor check -H {','.join(ends)} --stage connectivity,ports --quick"),
            Fix("see what drops it", "sudo nft list ruleset | grep -E 'drop|reject'", next(iter(guilty), "")),
        ),
        explains=(WAITING, "hang.behind", "app.collective-mismatch"),
    )


def _is_lost(link: Link) -> bool:
    """Bytes in the send queue at both readings, and retransmissions that nothing has answered."""
    connection = link.connection
    stays = connection.before_unsent_bytes is None or connection.before_unsent_bytes > 0
    return bool(connection.state == "ESTABLISHED" and connection.unsent_bytes and stays and connection.timeouts)


def _common_host(links: Sequence[Link], job: RunningJob) -> tuple[str, ...]:
    """The one host at an end of every such connection; where two are at all, the one whose peers are several."""
    ends = [{link.rank.host, link.peer_host} for link in links]
    common = set.intersection(*ends)
    if len(common) > 1:  # one pair: who of the two talks to a third host without trouble is not to blame
        fine = {host for link in job.data_links if not _is_lost(link) and link.connection.moved_bytes
                for host in (link.rank.host, link.peer_host)}  # fmt: skip
        common -= fine
    return tuple(common) if len(common) == 1 else ()


@fleet_rule("job", "hang.store", "hang.store.no-listener", "hang.store.places")
def store(fleet: Fleet) -> Iterator[Finding]:
    """Whoever starts reaches the store: rank 0 listens on MASTER_PORT, and MASTER_ADDR leads there from every host.

    Where it leads elsewhere (the first host of another job, a node that the scheduler left out, a loopback address),
    each rank asks there again and again until its time-out, and prints nothing. So it does where nobody listens there at
    all: rank 0 was never started, or has ended. That is told of a host that was looked at. Otherwise only where rank 0
    itself serves the store, as without torchrun, and a variable tells the port. Ranks that start with different addresses or
    ports, and are one world together, are told as one job.
    """
    for job in jobs_of(fleet):
        told = _told_places(job)
        if len(told) > 1 and not all(map(_has_asked, job.ranks.values())):
            yield _different_places(job, told)
            continue
        first = job.ranks.get(0)
        port = next(iter(job.ranks.values())).process.environment.get("MASTER_PORT", "")
        if not port.isdecimal():
            continue
        outside = [
            rank
            for rank in job.ranks.values()
            if rank.stays and rank.now.name == STARTING and not _ends_at(rank, port, "ESTABLISHED")
        ]
        if first is None or not _ends_at(first, port, "LISTEN"):
            if outside and (first is None or first in outside):
                yield from _unserved(job, fleet, outside, port)
            continue
        if first not in outside:  # what is dropped on the way is told by the connections that nobody answers
            outside = [rank for rank in outside if not _ends_at(rank, port, "SYN_SENT")]
        if outside:
            yield _outside(job, first, outside)


def _told_places(job: RunningJob) -> dict[str, list[Rank]]:
    """Where the ranks that start were told to look for the store -> these ranks. A loopback address is each host's own."""
    found: dict[str, list[Rank]] = defaultdict(list)
    for rank in job.ranks.values():
        if rank.now.name == STARTING and (address := rank.process.environment.get("MASTER_ADDR", "")):
            own = f" (of {rank.host} itself)" if address.startswith(LOOPBACK) else ""
            found[f"{address}:{rank.process.environment.get('MASTER_PORT', '?')}{own}"].append(rank)
    return found


def _has_asked(rank: Rank) -> bool:
    """Whether it has a connection to where it was told, or has sent for one: two names may lead to one store."""
    port = rank.process.environment.get("MASTER_PORT", "")
    return _ends_at(rank, port, "ESTABLISHED") or _ends_at(rank, port, "SYN_SENT")


def _different_places(job: RunningJob, told: dict[str, list[Rank]]) -> Finding:
    """Those who are fewer than all others are blamed, else all: nothing tells which place is meant."""
    *odd, most = sorted(told.values(), key=len)
    few_ranks = [rank for ranks in odd for rank in ranks]
    blamed = few_ranks if len(few_ranks) < len(most) else [*few_ranks, *most]
    where = [f"{ranks_of(ranks)} at {place}" for place, ranks in told.items()]
    return finding(
        "hang.store.places",
        Severity.FAIL,
        f"the ranks look for the store in different places: {few(where, 4)}",
        [
            rank.evidence(
                " ".join(f"{name}={rank.process.environment.get(name, '')}" for name in ("MASTER_ADDR", "MASTER_PORT")),
                f"/proc/{rank.process.pid}/environ",
            )
            for rank in (ranks[0] for ranks in told.values())
        ],
        confidence=0.9 if min(rank.process.age_s for rank in blamed) > EARLY_S else 0.6,
        hosts=sorted({rank.host for rank in blamed}),
        places=places(sorted(blamed, key=lambda rank: rank.number)),
        fixes=(
            Fix(
                "give all ranks one MASTER_ADDR, an address of rank 0's host that is not loopback, and one MASTER_PORT"
            ),
        ),
        explains=(WAITING, "hang.network.connecting", "hang.rank-gone"),
    )


def _unserved(job: RunningJob, fleet: Fleet, outside: Sequence[Rank], port: str) -> Iterator[Finding]:
    """Nobody listens on ``MASTER_PORT`` of the host that ``MASTER_ADDR`` names."""
    asking = [rank for rank in outside if not _ends_at(rank, port, "SYN_SENT")]
    address = outside[0].process.environment.get("MASTER_ADDR", "")
    host = _named(address, outside[0].host, fleet)
    fact = facts_of(fleet.hosts, Job).get(host)
    if not asking or fact is None or fact.listening is None or int(port) in fact.listening:
        return
    if any(at == host and process.namespace != fact.namespace for at, process in processes_of(fleet)):
        return  # containers with a network of their own may be meant
    absent = "; rank 0, which should, was not found" if 0 not in job.ranks else ""
    who, verb = ranks_of(asking), "look" if len(asking) > 1 else "looks"
    ports = ", ".join(map(str, fact.listening[:8])) + (", ..." if len(fact.listening) > 8 else "")
    yield finding(
        "hang.store.no-listener",
        Severity.FAIL,
        f"nobody listens on port {port} of {host}, where {who} {verb} for the store{absent}",
        [
            Evidence(f"port {port} is not among those that listen: {ports or 'none does'}", "sock_diag", host=host),
            asking[0].evidence(f"MASTER_ADDR={address} MASTER_PORT={port}", f"/proc/{asking[0].process.pid}/environ"),
            place_of(asking[0]),
        ],
        confidence=0.9 if min(rank.process.age_s for rank in asking) > EARLY_S else 0.6,
        hosts=(host,),
        places=[Place(host=host, rank=0)] if 0 not in job.ranks else places(asking),
        fixes=(
            Fix("was rank 0 started there, and does it live? what its log says", "nccl-doctor explain logs/"),
            Fix("who listens there now?", "sudo ss -ltnp", host),
            Fix(f"or is another host, or port, meant by MASTER_ADDR={address} MASTER_PORT={port}?"),
        ),
        explains=(WAITING,),
    )


def _named(address: str, asked_on: str, fleet: Fleet) -> str:
    """The host that was looked at and that this address is known to name; empty where none is."""
    if address.startswith(LOOPBACK):
        return asked_on
    known = {host.name for host in fleet.hosts if address in (host.name, host.facts.reach.address)}
    return known.pop() if len(known) == 1 else ""


def _ends_at(rank: Rank, port: str, state: str) -> bool:
    """Whether it has a socket in this state, one end of which is the port."""
    ends = (
        (one.local.rpartition(":")[2], one.peer.rpartition(":")[2])
        for one in rank.process.connections
        if one.state == state
    )
    return any(port in pair for pair in ends)


def _outside(job: RunningJob, first: Rank, outside: Sequence[Rank]) -> Finding:
    """These ranks have no connection to the store; if rank 0 is one of them, nobody has, and the address is wrong."""
    names = ("MASTER_ADDR", "MASTER_PORT")
    address, port = (first.process.environment[name] for name in names)
    hosts = sorted({rank.host for rank in outside})
    wrong = first in outside
    who = "no rank reaches" if wrong else f"{ranks_of(outside)} do{'es' * (len(outside) == 1)} not reach"
    told = f"{names[0]}={address} {names[1]}={port}"
    fixes = [Fix("whom does the address name there?", f"getent ahosts {shell_word(address)}", hosts[0])]
    if wrong:
        fixes.append(Fix(f"give all ranks an address of {first.host}, where rank 0 runs, as {names[0]}"))
    else:
        fixes.append(Fix("does that port answer?", f"nccl-doctor check -H {','.join(job.hosts)} --stage ports"))
    return finding(
        "hang.store",
        Severity.FAIL,
        f"{who} the store at {address}:{port}; rank 0 serves it on {first.host}",
        [
            *(rank.evidence(told, f"/proc/{rank.process.pid}/environ") for rank in outside[:QUOTED]),
            first.evidence(f"port {port} LISTEN, without a connection of {ranks_of(outside)}", "tcp_info"),
            place_of(outside[0]),
        ],
        confidence=0.9 if min(rank.process.age_s for rank in outside) > EARLY_S else 0.6,
        hosts=hosts,
        places=places(outside),
        fixes=fixes,
        explains=(WAITING, "hang.network.connecting") if wrong else (WAITING,),
    )  # fmt: skip


@fleet_rule("job", "hang.rank-gone.peer-closed")
def peer_closed(fleet: Fleet) -> Iterator[Finding]:
    """No rank holds a connection that the other end has closed (``CLOSE_WAIT``): that end has died or given up."""
    for job in jobs_of(fleet):
        closed = [link for link in job.links if link.connection.state == "CLOSE_WAIT" and not link.store]
        if closed and not job.moved_bytes:
            peers = sorted({link.peer_host for link in closed})
            yield finding(
                "hang.rank-gone.peer-closed",
                Severity.WARN,
                f"the other end has closed connections of {ranks_of([link.rank for link in closed])}: {few(peers)}",
                [quoted(link) for link in closed[:QUOTED]],
                confidence=0.6,
                hosts=tuple(sorted({link.rank.host for link in closed})),
                places=[Place(host=link.rank.host, rank=link.rank.number, peer=link.peer_host) for link in closed[:QUOTED]],
                fixes=(Fix("read the log of the rank at that end: it ended, or closed its process group"),),
            )  # fmt: skip
