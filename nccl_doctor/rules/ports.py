"""Ports: can the training job's processes really connect to each other, on the ports they will use?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from nccl_doctor.agent.probes.listening import AGENT_MARK
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.mesh import Link, Links, Listening
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, facts_of, fleet_rule
from nccl_doctor.rules.localise import Blame, Pair, blame, plausible
from nccl_doctor.rules.mesh_pairs import LATE_COUNT, in_doubt, late_hosts, untried

# outcome of a connect to a port on which our agent is known to listen -> finding id, verb
_BLOCKED = {
    "timed-out": ("net.firewall.dropped", "dropped"),
    "refused": ("net.firewall.rejected", "rejected"),
    "reset": ("net.firewall.rejected", "reset"),
    "not-permitted": ("net.firewall.rejected", "forbidden by a firewall"),  # EPERM: the sender's; EACCES may be ICMPv6
    "unreachable": ("net.firewall.unreachable", "answered with 'unreachable'"),
}


@fleet_rule("ports", "net.port-in-use")
def master_port_in_use(fleet: Fleet) -> Iterator[Finding]:
    """The master port is already taken on the master.

    The job's store would fail with EADDRINUSE, or worse, join the store of another job. The process that holds it is
    named where it may be seen.
    """
    for host, listening in fleet.every(Listening).items():
        master = listening.master
        if master is None and host == fleet.plan.master:
            what = f"master port {fleet.plan.master_port}"
            fleet.lack(what, "nobody tried to listen on it", host)
        if master is None or master.outcome == "ok":
            continue
        if master.outcome != "in-use":
            fleet.lack(f"master port {master.port}", master.detail or master.outcome, host)
            continue
        holder = master.holder
        if holder and AGENT_MARK in holder.command:
            why = f"another run of nccl-doctor holds it (pid {holder.pid}): run again when that has ended"
            fleet.lack(f"master port {master.port}", why, host)
            continue
        who = f"{holder.command} (pid {holder.pid}, user {holder.user})" if holder and holder.pid else ""
        owner = f"a process of user {holder.user}" if holder and holder.user else "a process that cannot be seen"
        yield finding(
            "net.port-in-use",
            Severity.FAIL,
            f"port {master.port} on {host} is held by {who or owner}",
            Evidence(f"bind: {master.detail}; held by {who or owner}", source=f"port {master.port}", host=host),
            places=[Place(host=host, port=master.port)],
            fixes=[
                Fix(
                    "end the stale process if it is one, or take another port (--master-port, MASTER_PORT)",
                    f"sudo ss -ltnp 'sport = :{master.port}'",
                    host,
                )
            ],
            explains=("net.master-unreachable", "collectives"),
        )


@fleet_rule(
    "ports", "net.firewall.dropped", "net.firewall.rejected", "net.firewall.unreachable", "net.master-unreachable"
)
def blocked_ports(fleet: Fleet) -> Iterator[Finding]:
    """Connections between hosts fail although the peer's agent listens on that very port.

    Dropped packets time out, rejected ones are refused at once; both are told apart, and so are a blocked master port
    and a blocked ephemeral range (which NCCL, Gloo and the store take their ports from).

    The ports tried lie at equal distances over that range, three of each host, and 13 more where there are up to 12
    hosts and the first ones answered. Where answers are late, those that never came are tried for again, one at a time:
    a limit on new connections is no closed port. So a closed part of the range is met for certain where it is a sixteenth
    (a third) as wide: 1,765 (9,411) ports of Linux' usual 28,232. The ports lie elsewhere in their parts on each host:
    what is closed on all N hosts alike is met at an Nth of that.
    """
    fleet.need_several()
    facts = fleet.every(Links)
    tried = [(host, link) for host, fact in facts.items() for link in fact.links]
    for host, link in tried:
        if link.outcome not in ("ok", "wrong-peer", *_BLOCKED):  # wrong-peer is a matter of names, and judged there
            fleet.lack(f"connect to {link.peer}", f"{link.outcome}: {link.detail}", host)
    untried(fleet, _pairs(tried, "ephemeral"), "connect to", "not tried")
    _master_untried(fleet, tried)
    doubtful = in_doubt(fleet, facts)
    for host in late_hosts(facts):
        if left := _ports_left(host, fleet, facts):
            fleet.lack(f"{left} of its ports", "not tried: new connections are limited, and time was up", host)
    tried = [one for one in tried if one not in doubtful]
    general = _pairs(tried, "ephemeral")
    explained: set[Pair] = set()
    connect_out = {pair[0] for pair, links in general.items() for link in links if link.outcome == "ok"}
    for id, outcomes in _by_outcome().items():
        # Where another host's fault answers first (it lets nothing out), nothing is known of this one: it speaks for nobody.
        told = {pair: links for pair, links in general.items() if _is_told(links, outcomes)}
        measured = {pair: all(link.outcome in outcomes for link in links) for pair, links in told.items()}
        for culprit in blame(measured):
            explained |= set(culprit.pairs)
            yield _blocked(id, culprit, general, connect_out)
    swept = {(host, peer): count for host, fact in facts.items() for peer, count in fact.swept.items()}
    yield from _partly_blocked(general, explained, swept)
    yield from _master_blocked(_pairs(tried, "master"), explained)


def _is_told(links: list[Link], outcomes: set[str]) -> bool:
    """Whether a pair's connects tell if it fails in this way: not where all of them fail, and some in another."""
    blocked = [link.outcome for link in links if link.outcome in _BLOCKED]
    return len(blocked) < len(links) or outcomes.issuperset(blocked)


def _ports_left(server: str, fleet: Fleet, facts: Mapping[str, Links]) -> int:
    """How many of the ports that a host listens on were tried by no other host."""
    listening = facts_of(fleet.hosts, Listening).get(server)
    tried = [
        fact.swept.get(server, 0)
        + len({link.port for link in fact.links if link.peer == server and link.purpose == "ephemeral"})
        for fact in facts.values()
    ]
    return len(listening.ephemeral) - max(tried) if listening else 0


def _master_untried(fleet: Fleet, tried: list[tuple[str, Link]]) -> None:
    """Note the hosts that did not try the master port although the master listened on it."""
    listening = facts_of(fleet.hosts, Listening).get(fleet.plan.master)
    if listening is None or listening.master is None or listening.master.outcome != "ok":
        return  # the rule of the master port says why nobody could try
    accounted = {host for host, link in tried if link.purpose == "master"} | {fleet.plan.master}
    accounted.update(host for hosts in fleet.missing.values() for host in hosts)
    for host in fleet.hosts:
        if host.name not in accounted:
            what = f"master port {fleet.plan.master_port} on {fleet.plan.master}"
            fleet.lack(what, "not tried", host.name)


def _by_outcome() -> dict[str, set[str]]:
    grouped: dict[str, set[str]] = {}
    for outcome, (id, _) in _BLOCKED.items():
        grouped.setdefault(id, set()).add(outcome)
    return grouped


def _pairs(tried: list[tuple[str, Link]], purpose: str) -> dict[Pair, list[Link]]:
    pairs: dict[Pair, list[Link]] = {}
    for host, link in tried:
        if link.purpose == purpose:
            pairs.setdefault((host, link.peer), []).append(link)
    return pairs


def _quotes(pairs: tuple[Pair, ...], links: dict[Pair, list[Link]]) -> list[Evidence]:
    """The connects that were blocked, one of each pair before the second of any: the first few lines are what is read."""
    blocked = ([(pair, link) for link in links[pair] if link.outcome in _BLOCKED] for pair in pairs)
    return [
        Evidence(
            f"{pair[0]} -> {pair[1]}: {link.outcome}: {link.detail}",
            source=f"connect {link.address}:{link.port}",
            host=pair[0],
        )
        for pair, link in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*blocked)))
    ]


def _blocked(id: str, culprit: Blame, links: dict[Pair, list[Link]], connect_out: set[str]) -> Finding:
    count = sum(len(links[pair]) for pair in culprit.pairs)
    verb = _BLOCKED[links[culprit.pairs[0]][0].outcome][1]
    client, server = culprit.pairs[0]
    can, look = "", "look for the rule that does it"
    if culprit.direction == "in" and connect_out.intersection(culprit.hosts):
        can = f"; {culprit.names} itself can connect out"
    elif not culprit.known_end and len(culprit.pairs) == 1:
        if any(link.outcome == "ok" for link in links.get((server, client), ())):
            can = f"; {server} can connect to {client}"
        look += f": {server}'s on what comes in from {client}, or {client}'s on what goes out"
    way = []
    if not culprit.known_end:  # between these alone: a wrong route or neighbour entry does that as well
        address = links[client, server][0].address
        way.append(Fix("see which way packets take", f"ip route get {address}; ip neigh show {address}", client))
    return finding(
        id,
        Severity.FAIL,
        f"TCP connections {culprit.where} are {verb} on the ephemeral ports tried ({count} of {count} connects{can})",
        _quotes(culprit.pairs, links),
        confidence=1.0 if culprit.known_end else 0.9,
        places=[Place(host=host) for host in culprit.hosts],
        fixes=[
            Fix(look, "sudo nft list ruleset; sudo iptables-save; sudo firewall-cmd --list-all", culprit.host),
            *way,
            Fix("allow all TCP ports between the training hosts, both ways: NCCL's ports cannot be pinned"),
        ],
        explains=(
            "net.master-unreachable",
            "net.mtu.black-hole",
            "net.slow",
            "collectives",
            "net.wrong-interface.unreachable",
            "net.wrong-interface.different-subnet",
            "net.wrong-interface.extra",
        ),
    )


def _partly_blocked(general: dict[Pair, list[Link]], explained: set[Pair], swept: dict[Pair, int]) -> Iterator[Finding]:
    """Some of a host's or a pair's ephemeral ports pass and others do not: a firewall that knows a port range.

    ``swept``: pair -> how many further ports answered.
    """
    bad = {
        pair: [link for link in links if link.outcome in _BLOCKED]
        for pair, links in general.items()
        if pair not in explained
    }
    for culprit in plausible({pair: bool(found) for pair, found in bad.items()}):
        one_way = not culprit.known_end and len(culprit.pairs) == 1
        client, server = culprit.pairs[0]
        # What comes in meets the host's own filter, and tells best what it does; what goes out may miss the answers.
        coming = [pair for pair in culprit.pairs if pair[1] in culprit.hosts]
        id, verb = _BLOCKED[next(link.outcome for pair in coming or culprit.pairs for link in bad[pair])]
        closed = {(link.peer, link.port) for pair in culprit.pairs for link in bad[pair]}
        of_peer: dict[str, int] = {}  # the peers' ports: all that a pair tried, once for all who tried them
        for pair in culprit.pairs:
            count = len({link.port for link in general[pair]}) + swept.get(pair, 0)
            of_peer[pair[1]] = max(of_peer.get(pair[1], 0), count)
        ports = few([str(port) for port in sorted({port for _, port in closed})])
        yield finding(
            id,
            Severity.FAIL,
            f"TCP connections {culprit.where} are {verb} on {len(closed)} of {sum(of_peer.values())} ports tried ({ports})",
            _quotes(culprit.pairs, general),
            confidence=0.9,
            places=[Place(host=server, peer=client)] if one_way else [Place(host=host) for host in culprit.hosts],
            fixes=[
                Fix(
                    "allow all TCP ports between the training hosts, both ways, and the answers to what goes out",
                    "sudo nft list ruleset",
                    server if one_way else culprit.host,
                )
            ],
            explains=("net.master-unreachable", "collectives"),
        )


def _master_blocked(master: dict[Pair, list[Link]], explained: set[Pair]) -> Iterator[Finding]:
    """The master port is blocked where other ports are not."""
    bad: dict[str, list[Pair]] = {}
    for pair, links in sorted(master.items()):
        if pair not in explained and all(link.outcome in _BLOCKED for link in links):
            bad.setdefault(links[0].outcome, []).append(pair)
    for outcome, pairs in sorted(bad.items()):
        port, server = master[pairs[0]][0].port, pairs[0][1]
        everyone = len(pairs) == len(master)
        clients = tuple(sorted(pair[0] for pair in pairs))
        yield finding(
            "net.master-unreachable",
            Severity.FAIL,
            f"the master port {port} on {server} is {_BLOCKED[outcome][1]} for {len(pairs)} of {len(master)} hosts"
            ", while other ports are open",
            _quotes(tuple(pairs), master),
            places=[Place(host=server, port=port)]
            if everyone
            else [Place(host=host, peer=server, port=port) for host in clients],
            fixes=[
                Fix(
                    f"allow TCP port {port} on {server}, or take a port that is open (--master-port, MASTER_PORT)",
                    "sudo nft list ruleset",
                    server if everyone else "",
                )
            ],
            explains=("collectives",),
        )


@fleet_rule("ports", "net.connect-delayed")
def connects_at_once(fleet: Fleet) -> Iterator[Finding]:
    """A new connection is answered at its first packet, where packets of open connections are not lost.

    If only the second or third try is answered, something limits new connections: a rate limit in a packet filter, or a
    queue of half-open connections without room (tcp_max_syn_backlog with SYN cookies off). A job opens thousands.
    """
    fleet.need_several()
    late: dict[Pair, list[Link]] = {}
    lossy: set[Pair] = set()
    for host, fact in fleet.every(Links).items():
        for link in fact.links:
            if link.outcome == "ok":
                late.setdefault((host, link.peer), []).extend([link] if link.attempts > 1 else ())
                if link.lost_forward or link.lost_back:
                    lossy |= {(host, link.peer), (link.peer, host)}
    for culprit in plausible({pair: bool(links) for pair, links in late.items() if pair not in lossy}):
        slow = [(pair[0], link) for pair in culprit.pairs for link in late[pair]]
        if len(slow) < LATE_COUNT:
            continue
        yield finding(
            "net.connect-delayed",
            Severity.WARN,
            f"{len(slow)} new TCP connections {culprit.where} were not answered at the first try, although "
            "open ones lose no packet: something limits new ones",
            [
                Evidence(
                    f"{host} -> {link.peer}: answered at attempt {link.attempts}, after {link.connect_ms or 0:.0f} ms",
                    f"connect {link.address}:{link.port}",
                    host=host,
                )
                for host, link in slow
            ],
            places=[Place(host=host) for host in culprit.hosts],
            confidence=0.9,
            fixes=[
                Fix(
                    "look for a limit on new connections, and for dropped ones",
                    "sudo nft list ruleset | grep -E 'limit|meter'; nstat -az TcpExtListenDrops TcpExtTCPReqQFullDrop; "
                    "sysctl net.ipv4.tcp_max_syn_backlog net.ipv4.tcp_syncookies net.core.somaxconn",
                    culprit.host,
                )
            ],
        )
