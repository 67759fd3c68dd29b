"""Connectivity between hosts: path MTU, loss, delay, throughput, clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Clock, Link, Links, PathMtu, PathSize, Throughput
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.engine import Fleet, Host, SkipRule, facts_of, fleet_rule
from nccl_doctor.rules.localise import Blame, Pair, blame, plausible
from nccl_doctor.rules.mesh_pairs import ONE_STREAM, untried

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


class _Trouble(NamedTuple):
    """What is wrong with links, and how it was measured.

    ``sure``: the confidence where it is known which end of the links is to blame, and where it is not.
    """

    id: str
    source: str
    severity: Severity = Severity.FAIL
    sure: tuple[float, float] = (1.0, 0.9)
    explains: tuple[str, ...] = ("collectives",)


_BLACK_HOLE = _Trouble(
    "net.mtu.black-hole", "UDP with don't-fragment", explains=("collectives", "net.slow", "net.packet-loss")
)
_LOSS = _Trouble("net.packet-loss", "TCP_INFO: total_retrans less dsack_dups", explains=("net.slow", "collectives"))
_LATENCY = _Trouble("net.latency", "TCP connect and echo", Severity.WARN, explains=())
_SLOW = _Trouble("net.slow.link", "timed transfer", sure=(0.95, 0.7))


def _laid_at(culprit: Blame, trouble: _Trouble, title: str, told: Callable[[Pair], str], fix: Fix) -> Finding:
    """A finding about the culprit's links, with what was told of each of them."""
    return finding(
        trouble.id,
        trouble.severity,
        title,
        [
            Evidence(f"{pair[0]} -> {pair[1]}: {told(pair)}", source=trouble.source, host=pair[0])
            for pair in culprit.pairs
        ],
        confidence=trouble.sure[0] if culprit.known_end else trouble.sure[1],
        places=[Place(host=host) for host in culprit.hosts],
        fixes=[fix],
        explains=trouble.explains,
    )


def _fix(fleet: Fleet, culprit: Blame, addresses: Mapping[Pair, str], text: str, command: str) -> Fix:
    """A fix on the host at fault; INTERFACE becomes the one that its links to these addresses go through."""
    host = next((host for host in fleet.hosts if host.name == culprit.host), None)
    links, interfaces = (host.want(Links), host.want(Interfaces)) if host else (None, None)
    ends = {addresses[pair] for pair in culprit.pairs}
    ends |= {link.source for link in links.links if link.address in ends} if links else set()
    used = {address.name for address in interfaces.addresses if address.address in ends} if interfaces else set()
    name = shell_word(used.pop()) if len(used) == 1 else "INTERFACE"
    return Fix(text, command.replace("INTERFACE", name), culprit.host)


# ------------------------------------------------------------------------------------------------------ MTU


def _cut(fleet: Fleet) -> frozenset[Pair]:
    """Pairs without any connection, where the ports stage says so: nothing more can be measured between them."""
    return fleet.once(_unconnected)


def _unconnected(hosts: tuple[Host, ...], plan: Plan) -> frozenset[Pair]:
    if "ports" not in plan.stages:
        return frozenset()
    connected: dict[Pair, bool] = {}
    for host, fact in facts_of(hosts, Links).items():
        for link in fact.links:
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
    fleet.need_several()
    paths = _paths(fleet)
    cut = _cut(fleet)
    untried(fleet, cut | set(paths), "path MTU to", "not measured")
    silent = _without_udp(paths)
    for host, gaps in silent.items():
        fleet.lack("path MTU", gaps, host)
    for (host, peer), path in paths.items():
        if path.outcome not in ("ok", "black-hole") and host not in silent and (host, peer) not in cut:
            why = f"{path.outcome}: {path.detail}" if path.detail else path.outcome
            fleet.lack(f"path MTU to {peer}", why, host)
        elif path.outcome != "blocked" and not path.interface_mtu:
            fleet.lack(f"path MTU to {peer}", "the interface's own MTU is not known", host)
    own: dict[str, int] = {}
    for (host, _), path in paths.items():
        if 0 < path.interface_mtu < LOOPBACK_MTU:  # from a machine to itself, which was named twice
            own[host] = max(own.get(host, 0), path.interface_mtu)
    yield from _different_mtu(fleet, paths)
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


def _different_mtu(fleet: Fleet, paths: Mapping[Pair, PathSize]) -> Iterator[Finding]:
    """Interfaces at the two ends of a path that differ; towards another peer, or back, another one may be used."""
    mtus = {pair: path.interface_mtu for pair, path in paths.items() if 0 < path.interface_mtu < LOOPBACK_MTU}
    every = facts_of(fleet.hosts, Links).items()
    sources = {(name, link.address): link.source for name, fact in every for link in fact.links if link.source}

    def is_way_back(pair: Pair) -> bool:
        back = paths[pair[::-1]].address
        return sources.get((pair[0], paths[pair].address), back) == back

    unequal = {
        pair: mtu
        for pair, mtu in mtus.items()
        if mtus.get(back := pair[::-1], mtu) != mtu and is_way_back(pair) and is_way_back(back)
    }
    if not unequal:
        return
    by_mtu: dict[int, set[str]] = {}
    for (host, _), mtu in unequal.items():
        by_mtu.setdefault(mtu, set()).add(host)
    most = max(map(len, by_mtu.values()))
    everyone = set().union(*by_mtu.values())
    odd = sorted(set().union(*(hosts for hosts in by_mtu.values() if len(hosts) < most)) or everyone)
    usual = max(by_mtu, key=lambda mtu: (len(by_mtu[mtu]), mtu))
    culprit = Blame(tuple(odd), "both", tuple(sorted(pair for pair in unequal if pair[0] in odd)))
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
            _fix(
                fleet,
                culprit,
                {pair: path.address for pair, path in paths.items()},
                f"give all hosts (and the switch ports between them) the same MTU, here {usual} B",
                f"ip -br link; sudo ip link set dev INTERFACE mtu {usual}",
            )
        ],
    )


def _black_hole(fleet: Fleet, culprit: Blame, paths: Mapping[Pair, PathSize]) -> Finding:
    """``paths`` are those of all pairs. The MTU to keep to is what passes on every path of the culprit."""
    of_culprit = [paths[pair] for pair in culprit.pairs]
    passes = min(path.largest_passed for path in of_culprit)

    def told(pair: Pair) -> str:
        path = paths[pair]
        sizes = f"{path.largest_passed} B arrive, {path.smallest_lost} B do not, interface MTU {path.interface_mtu} B"
        return f"{sizes} (to {path.address})"

    return _laid_at(
        culprit,
        _BLACK_HOLE,
        f"packets above {passes} B vanish {culprit.where} (interface MTU {of_culprit[0].interface_mtu} B)",
        told,
        _fix(
            fleet,
            culprit,
            {pair: path.address for pair, path in paths.items()},
            f"until the path is mended, keep to what passes: MTU {passes} B"
            + (" (below 1280 B the kernel takes IPv6 off the interface)" if passes < 1280 else ""),
            f"sudo ip link set dev INTERFACE mtu {passes}",
        ),
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
    fleet.need_several()
    sent: dict[Pair, int] = {}
    lost: dict[Pair, int] = {}
    addresses: dict[Pair, str] = {}
    for host, link in _measured(fleet):
        addresses[host, link.peer] = link.address
        addresses.setdefault((link.peer, host), link.address)  # which never asked itself: its end of this connection
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
        yield _laid_at(
            culprit,
            _LOSS,
            f"{100.0 * total / out_of:.1f} % of packets {culprit.where} are lost",
            lambda pair: f"{lost[pair]} of {sent[pair]} small packets were lost and sent again",
            _fix(
                fleet,
                culprit,
                addresses,
                "look at the link's error counters; change cable or port",
                "ip -s link show INTERFACE; ethtool -S INTERFACE | grep -iE 'err|drop|crc'",
            ),
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
    fleet.need_several()
    trips: dict[Pair, float] = {}
    addresses: dict[Pair, str] = {}
    for host, link in _measured(fleet):
        addresses[host, link.peer] = link.address
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
        (client, server), slowest = culprit.pairs[0], max(trips[pair] for pair in culprit.pairs)
        yield _laid_at(
            culprit,
            _LATENCY,
            f"round trips {culprit.where} take {slowest:.1f} ms at best; good pairs of hosts take {usual:.2f} ms",
            lambda pair: f"fastest {trips[pair]:.2f} ms",
            Fix(
                "compare the routes and the load of the hosts",
                f"ip route get {addresses[client, server]}; uptime",
                client,
            ),
        )


@fleet_rule("connectivity", "net.slow.link")
def slow_link(fleet: Fleet) -> Iterator[Finding]:
    """TCP to or from a host runs at under a quarter of the rate that good pairs of hosts reach.

    Where these reach more than 10 Gb/s, under a quarter of that: beyond it one stream measures the hosts' CPUs.
    """
    fleet.need_several()
    if fleet.plan.quick:
        raise SkipRule("--quick")
    rates: dict[Pair, float] = {}
    failed: dict[Pair, str] = {}
    addresses: dict[Pair, str] = {}
    for host, fact in fleet.every(Throughput).items():
        for flow in fact.flows:
            addresses[host, flow.peer] = flow.address
            if flow.outcome != "ok":
                failed[host, flow.peer] = f"{flow.outcome}: {flow.detail}" if flow.detail else flow.outcome
            elif flow.rate > 0:
                rates[host, flow.peer] = flow.rate
            else:  # what it did not tell is its own gap
                fleet.lack(f"throughput to {flow.peer}", "how many bytes in which time is not told", host)
        if not fact.flows:
            fleet.lack("throughput", "no flow was measured", host)
    _lay_gaps(fleet, failed, rates)
    if len(rates) < 3:
        raise SkipRule("too few pairs of hosts to compare")
    usual = _good(rates.values(), most=True)
    bad = {pair: rate < SLOW_SHARE * min(usual, ONE_STREAM) for pair, rate in rates.items()}
    for culprit in plausible(bad):
        slowest = min(rates[pair] for pair in culprit.pairs)
        yield _laid_at(
            culprit,
            _SLOW,
            f"TCP {culprit.where} runs at {_mbits(slowest)}; good pairs of hosts reach {_mbits(usual)}",
            lambda pair: f"{_mbits(rates[pair])} over one TCP stream",
            _fix(
                fleet,
                culprit,
                addresses,
                "look at the negotiated speed and at shaping on the host",
                "ethtool INTERFACE | grep Speed; tc qdisc show dev INTERFACE",
            ),
        )


def _lay_gaps(fleet: Fleet, failed: Mapping[Pair, str], rates: Collection[Pair]) -> None:
    """Note each transfer that was not measured at the host through whose end none was, else at the one that sent.

    Whoever sends to a host behind a hole measured all that it could: a job without that host needs no more of it.
    """
    ends = {
        pair: culprit.hosts
        for culprit in blame({**dict.fromkeys(rates, False), **dict.fromkeys(failed, True)})
        if culprit.known_end
        for pair in culprit.pairs
    }
    for (source, peer), why in failed.items():
        if peer in ends.get((source, peer), ()):
            fleet.lack(f"throughput from {source}", why, peer)
        else:
            fleet.lack(f"throughput to {peer}", why, source)


def _mbits(rate: float) -> str:
    return f"{rate * 8 / 1e6:.0f} Mbit/s"


@fleet_rule("connectivity", "host.clock-offset")
def clock_offset(fleet: Fleet) -> Iterator[Finding]:
    """No host's clock differs by more than a second from the others': logs cannot be put in order by time.

    The clocks of all hosts and of the machine that runs the check are compared: a host is wrong where most agree on
    another time. Where that machine is the odd one, no host is. Where no time has a majority, nobody knows which is right.
    """
    clocks = fleet.every(Clock)
    # Half of the hosts against the other half: this machine, at 0, decides.
    offsets = sorted([clock.offset for clock in clocks.values()] + [0.0] * (len(clocks) % 2 == 0))
    usual = offsets[len(offsets) // 2]
    known = len(offsets) > 1 and 2 * sum(abs(one - usual) <= CLOCK_SECONDS for one in offsets) > len(offsets)
    usual = usual if known else 0.0
    for host, clock in clocks.items():
        off = clock.offset - usual
        if abs(off) - clock.uncertainty <= CLOCK_SECONDS:
            continue
        agree = f"; most others agree on {usual:+.3f} s" if known else ""
        proof = f"offset to this machine {clock.offset:+.3f} s +- {clock.uncertainty:.3f} s{agree}"
        yield finding(
            "host.clock-offset",
            Severity.WARN,
            f"{host}'s clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
            + ("" if known else " of this machine's; nothing says which of the clocks is right"),
            Evidence(proof, source="clock", host=host),
            places=[Place(host=host)],
            confidence=1.0 if known else 0.5,
            fixes=[Fix("let chrony or systemd-timesyncd set it", "chronyc tracking || timedatectl status", host)],
        )
