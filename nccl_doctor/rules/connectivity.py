"""Connectivity between hosts: path MTU, loss, delay, throughput, clocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Clock, Link, Links, PathMtu, PathSize, Throughput
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.localise import Blame, Pair, blame, plausible
from nccl_doctor.rules.mesh_pairs import alone, untried

# A lossy link: at least this share and this number of small paced messages had to be sent again. In the clean lab
# (4 hosts, 2 busy cores) none is ever lost; 1 % is where one TCP stream over 100 us of RTT falls under 1 Gbit/s
# (Mathis et al. 1997), and three of them are no accident.
LOSS_SHARE = 0.01
LOSS_COUNT = 3
# A slow link: under a quarter of what the best eighth of all pairs reaches. Hosts of one fleet differ by less (half, behind a bond of two).
SLOW_SHARE = 0.25
# Delay: ten times that of the best eighth, and above 5 ms. Hosts of one data centre are within 1 ms of each other.
DELAY_FACTOR, DELAY_MS = 10.0, 5.0
# Beyond this, logs of several hosts can no longer be put in order by their time stamps.
CLOCK_SECONDS = 1.0
# What IP_MTU says of Linux's loopback interface (65536, capped); the largest of real interfaces is IPoIB's 65520.
LOOPBACK_MTU = 65535


# ------------------------------------------------------------------------------------------------------ MTU


def _cut(fleet: Fleet) -> frozenset[Pair]:
    """Pairs without any connection, where the ports stage says so: nothing more can be measured between them."""
    return fleet.once(_unconnected)


def _unconnected(hosts: tuple[Host, ...], plan: Plan) -> frozenset[Pair]:
    if "ports" not in plan.stages:
        return frozenset()
    facts = {host.name: host.want(Links) for host in hosts}
    connected: dict[Pair, bool] = {}
    for host, fact in facts.items():
        for link in fact.links if fact is not None else ():
            pair = (host, link.peer)
            connected[pair] = connected.get(pair, False) or link.outcome == "ok"
    return frozenset(pair for pair, through in connected.items() if not through)


def _paths(fleet: Fleet) -> dict[Pair, PathSize]:
    return {(host, path.peer): path for host, fact in fleet.every(PathMtu).items() for path in fact.paths}


@fleet_rule("connectivity", "net.mtu.mismatch", "net.mtu.black-hole")
def path_mtu(fleet: Fleet) -> Iterator[Finding]:
    """Large packets vanish, or the hosts' interfaces have different MTUs.

    Every pair was tried with don't-fragment set. A black hole is a size below the sender's interface MTU from which
    on nothing arrives and no ICMP says why. Where the receiver's interface is exactly that small, the MTUs just differ.
    """
    alone(fleet)
    paths = _paths(fleet)
    cut = _cut(fleet)
    untried(fleet, cut | set(paths), "path MTU to", "not measured")
    silent = _without_udp(paths)
    for host, gaps in silent.items():
        fleet.lack("path MTU", gaps, host)
    for (host, peer), path in paths.items():
        if path.outcome not in ("ok", "black-hole", "limited") and host not in silent and (host, peer) not in cut:
            why = f"{path.outcome}: {path.detail}" if path.detail else path.outcome
            fleet.lack(f"path MTU to {peer}", why, host)
        elif path.outcome != "blocked" and not path.interface_mtu:
            fleet.lack(f"path MTU to {peer}", "the interface's own MTU is not known", host)
    own: dict[str, int] = {}
    for (host, _), path in paths.items():
        if 0 < path.interface_mtu < LOOPBACK_MTU:  # from a machine to itself, which was named twice
            own[host] = max(own.get(host, 0), path.interface_mtu)
    yield from _different_mtu(own)
    holes = {pair: path for pair, path in paths.items() if path.outcome in ("ok", "black-hole")}
    bad = {
        pair: path.outcome == "black-hole" and path.largest_passed < min(own.get(pair[0], 0), own.get(pair[1], 1 << 30))
        for pair, path in holes.items()
    }
    lost: dict[str, int] = {}  # host -> the smallest packet that vanished on any of its paths, in bytes
    for pair in (pair for pair, is_bad in bad.items() if is_bad):
        for host in pair:
            lost[host] = min(lost.get(host, 1 << 30), holes[pair].smallest_lost)
    # A path that carries no packet of the sizes that vanish elsewhere speaks for nobody.
    tried = {
        pair: is_bad
        for pair, is_bad in bad.items()
        if is_bad or holes[pair].interface_mtu >= min((lost[host] for host in pair if host in lost), default=0)
    }
    for culprit in blame(tried):
        yield _black_hole(fleet, culprit, paths)


def _without_udp(paths: dict[Pair, PathSize]) -> dict[str, str]:
    """Hosts that got no UDP answer from any peer: their path MTU is not known."""
    answered: dict[str, bool] = {}
    for (source, _), path in paths.items():
        answered[source] = answered.get(source, False) or path.outcome != "blocked"
    return {
        host: "no UDP datagram was answered by any peer"
        for host, any_answer in sorted(answered.items())
        if not any_answer
    }


def _different_mtu(own: dict[str, int]) -> Iterator[Finding]:
    by_mtu: dict[int, list[str]] = {}
    for host, mtu in own.items():
        by_mtu.setdefault(mtu, []).append(host)
    if len(by_mtu) < 2:
        return
    most = max(len(hosts) for hosts in by_mtu.values())
    odd = sorted(host for hosts in by_mtu.values() if len(hosts) < most for host in hosts) or sorted(own)
    usual = max(by_mtu, key=lambda mtu: (len(by_mtu[mtu]), mtu))
    yield finding(
        "net.mtu.mismatch",
        Severity.WARN,
        "interfaces towards the peers have different MTUs: " + ", ".join(f"{mtu} B" for mtu in sorted(by_mtu)),
        [
            Evidence(f"MTU {mtu} B on {fold(hosts)}", source="IP_MTU towards the peers")
            for mtu, hosts in sorted(by_mtu.items())
        ],
        hosts=odd,
        fixes=[
            Fix(
                f"give all hosts (and the switch ports between them) the same MTU, here {usual} B",
                f"ip -br link; sudo ip link set dev IFACE mtu {usual}",
                odd[0] if len(odd) == 1 else "",
            )
        ],
    )


def _fix(fleet: Fleet, culprit: Blame, text: str, command: str) -> Fix:
    """A fix on the host at fault; INTERFACE becomes the one through which that host talks to its peers."""
    if len(culprit.hosts) != 1:
        return Fix(text, command)
    (name,) = culprit.hosts
    host = next((host for host in fleet.hosts if host.name == name), None)
    links, interfaces = (host.want(Links), host.want(Interfaces)) if host else (None, None)
    sources = {link.source for link in links.links} if links else set()
    used = {address.name for address in interfaces.addresses if address.address in sources} if interfaces else set()
    return Fix(text, command.replace("INTERFACE", used.pop()) if len(used) == 1 else command, name)


def _black_hole(fleet: Fleet, culprit: Blame, paths: dict[Pair, PathSize]) -> Finding:
    first = paths[culprit.pairs[0]]
    names = " and ".join(culprit.hosts)
    where = {"in": f"towards {names}", "out": f"from {names}", "both": f"to and from {names}"}.get(
        culprit.direction, f"between {names}"
    )
    return finding(
        "net.mtu.black-hole",
        Severity.FAIL,
        f"packets above {first.largest_passed} B vanish {where} (interface MTU {first.interface_mtu} B)",
        [
            Evidence(
                f"{pair[0]} -> {pair[1]}: {paths[pair].largest_passed} B arrive, {paths[pair].smallest_lost} B do not, "
                f"interface MTU {paths[pair].interface_mtu} B",
                source=f"UDP with don't-fragment to {paths[pair].address}",
                host=pair[0],
            )
            for pair in culprit.pairs
        ],
        confidence=1.0 if culprit.direction != "pair" else 0.9,
        places=[Place(host=host) for host in culprit.hosts],
        fixes=[
            _fix(
                fleet,
                culprit,
                f"until the path is mended, keep to what passes: MTU {first.largest_passed} B",
                f"sudo ip link set dev INTERFACE mtu {first.largest_passed}",
            )
        ],
        explains=("collectives", "net.slow", "net.packet-loss"),
    )


# -------------------------------------------------------------------------------------- loss, delay, speed


def _measured(fleet: Fleet) -> list[tuple[str, Link]]:
    """The links over which messages went to and fro; pairs without any are noted as not measured."""
    links = [(host, link) for host, fact in fleet.every(Links).items() for link in fact.links]
    found = [(host, link) for host, link in links if link.messages and link.answered]
    heard = {(host, link.peer) for host, link in found}
    untried(fleet, heard | _cut(fleet), "loss and delay to", "no message was answered")
    return found


@fleet_rule("connectivity", "net.packet-loss")
def packet_loss(fleet: Fleet) -> Iterator[Finding]:
    """Small, paced messages to or from a host had to be sent again: packets are lost where no queue was full."""
    alone(fleet)
    sent: dict[Pair, int] = {}
    lost: dict[Pair, int] = {}
    for host, link in _measured(fleet):
        for pair, count in (((host, link.peer), link.lost_forward), ((link.peer, host), link.lost_back)):
            if count is None:
                continue  # the peer's own messages tell of this direction
            sent[pair] = sent.get(pair, 0) + link.messages + count
            lost[pair] = lost.get(pair, 0) + count
    for peer, host in {(peer, host) for host, peer in sent if (peer, host) not in sent}:
        fleet.lack(f"packets lost from {peer}", "it does not tell", host)
    # A single lost packet points to the host that loses 2 of 100 on each of its links; how many there are decides.
    for culprit in plausible({pair: count > 0 for pair, count in lost.items()}):
        total, out_of = (sum(of[pair] for pair in culprit.pairs) for of in (lost, sent))
        counts = [(total, out_of), *((lost[pair], sent[pair]) for pair in culprit.pairs)]
        if not any(count >= LOSS_COUNT and count >= LOSS_SHARE * of for count, of in counts):
            continue
        share = 100.0 * total / out_of
        names = " and ".join(culprit.hosts)
        where = {"in": f"towards {names}", "out": f"from {names}", "both": f"at {names}", "pair": f"between {names}"}
        if culprit.direction == "pair" and len(culprit.pairs) == 1:
            where["pair"] = f"from {culprit.pairs[0][0]} to {culprit.pairs[0][1]}"
        yield finding(
            "net.packet-loss",
            Severity.FAIL,
            f"{share:.1f} % of packets {where[culprit.direction]} are lost",
            [
                Evidence(
                    f"{pair[0]} -> {pair[1]}: {lost[pair]} of {sent[pair]} small packets were lost and sent again",
                    source="TCP_INFO: total_retrans less dsack_dups",
                    host=pair[0],
                )
                for pair in culprit.pairs
            ],
            confidence=1.0 if culprit.direction != "pair" else 0.9,
            places=[Place(host=host) for host in culprit.hosts],
            fixes=[
                _fix(
                    fleet,
                    culprit,
                    "look at the link's error counters; change cable or port",
                    "ip -s link show INTERFACE; ethtool -S INTERFACE | grep -iE 'err|drop|crc'",
                )
            ],
            explains=("net.slow", "collectives"),
        )


def _good(values: Iterable[float], most: bool = False) -> float:
    """What the best eighth of the pairs reaches (``most``: more is better).

    Not the median: two bad hosts of four leave one pair, of six, that is good both ways.
    """
    ordered = sorted(values, reverse=most)
    return ordered[(len(ordered) - 1) // 8]


@fleet_rule("connectivity", "net.latency")
def latency(fleet: Fleet) -> Iterator[Finding]:
    """Even the fastest round trip to a host takes ten times as long as between good pairs of hosts: a detour.

    The fastest of all messages and connects is judged: a busy CPU delays some of them, and a lost packet all behind it
    on its connection, but a long way delays each.
    """
    alone(fleet)
    trips: dict[Pair, float] = {}
    for host, link in _measured(fleet):
        fastest = link.rtt_p50_ms if link.rtt_min_ms is None else link.rtt_min_ms
        if fastest is not None:
            trips[(host, link.peer)] = fastest
    for host, fact in fleet.every(Links).items():
        for link in fact.links:
            pair = (host, link.peer)
            if pair in trips and link.outcome == "ok" and link.connect_ms is not None:
                trips[pair] = min(trips[pair], link.connect_ms)
    untried(fleet, set(trips) | _cut(fleet), "delay to", "no round trip was timed")
    if len(trips) < 3:
        raise SkipRule("too few pairs of hosts to compare")
    usual = _good(trips.values())
    bad = {pair: trip > DELAY_MS and trip > DELAY_FACTOR * usual for pair, trip in trips.items()}
    for culprit in plausible(bad):
        yield finding(
            "net.latency",
            Severity.WARN,
            f"round trips with {' and '.join(culprit.hosts)} take {max(trips[pair] for pair in culprit.pairs):.1f} ms "
            f"at best; good pairs of hosts take {usual:.2f} ms",
            [
                Evidence(
                    f"{pair[0]} -> {pair[1]}: fastest {trips[pair]:.2f} ms", source="TCP connect and echo", host=pair[0]
                )
                for pair in culprit.pairs
            ],
            places=[Place(host=host) for host in culprit.hosts],
            fixes=[Fix("compare the routes and the load of the hosts", "ip route get PEER; uptime")],
        )


@fleet_rule("connectivity", "net.slow.link")
def slow_link(fleet: Fleet) -> Iterator[Finding]:
    """TCP to or from a host runs at under a quarter of the rate that good pairs of hosts reach."""
    alone(fleet)
    if fleet.plan.quick:
        raise SkipRule("--quick")
    rates: dict[Pair, float] = {}
    for host, fact in fleet.every(Throughput).items():
        for flow in fact.flows:
            if flow.outcome == "ok" and flow.rate > 0:
                rates[(host, flow.peer)] = flow.rate
            else:
                why = f"{flow.outcome}: {flow.detail}" if flow.detail else flow.outcome
                fleet.lack(f"throughput to {flow.peer}", why, host)
        if not fact.flows:
            fleet.lack("throughput", "no flow was measured", host)
    if len(rates) < 3:
        raise SkipRule("too few pairs of hosts to compare")
    usual = _good(rates.values(), most=True)
    bad = {pair: rate < SLOW_SHARE * usual for pair, rate in rates.items()}
    for culprit in plausible(bad):
        slowest = min(rates[pair] for pair in culprit.pairs)
        names = " and ".join(culprit.hosts)
        side = {"in": "towards", "out": "from", "both": "to and from"}.get(culprit.direction, "between")
        yield finding(
            "net.slow.link",
            Severity.FAIL,
            f"TCP {side} {names} runs at {slowest * 8 / 1e6:.0f} Mbit/s; good pairs of hosts "
            f"reach {usual * 8 / 1e6:.0f} Mbit/s",
            [
                Evidence(
                    f"{pair[0]} -> {pair[1]}: {rates[pair] * 8 / 1e6:.0f} Mbit/s over one TCP stream",
                    source="timed transfer",
                    host=pair[0],
                )
                for pair in culprit.pairs
            ],
            confidence=0.95 if culprit.direction != "pair" else 0.7,
            places=[Place(host=host) for host in culprit.hosts],
            fixes=[
                _fix(
                    fleet,
                    culprit,
                    "look at the negotiated speed and at shaping on the host",
                    "ethtool INTERFACE | grep Speed; tc qdisc show dev INTERFACE",
                )
            ],
            explains=("collectives",),
        )


@host_rule("connectivity", "host.clock-offset")
def clock_offset(host: Host, plan: Plan) -> Iterator[Finding]:
    """The host's clock differs by more than a second from this machine's: logs cannot be put in order by time."""
    clock = host.need(Clock)
    if abs(clock.offset) - clock.uncertainty > CLOCK_SECONDS:
        yield finding(
            "host.clock-offset",
            Severity.WARN,
            f"{host.name}'s clock is {abs(clock.offset):.1f} s {'ahead' if clock.offset > 0 else 'behind'}",
            Evidence(f"offset {clock.offset:+.3f} s +- {clock.uncertainty:.3f} s", source="clock", host=host.name),
            places=[Place(host=host.name)],
            fixes=[Fix("let chrony or systemd-timesyncd set it", "chronyc tracking || timedatectl status", host.name)],
        )
