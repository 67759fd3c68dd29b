"""Connectivity between hosts: loss, delay, throughput, clocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from nccl_doctor.facts.mesh import Clock, Link, Links, Throughput
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, SkipRule, fleet_rule
from nccl_doctor.rules.link_view import Trouble, cut_pairs, fix_at, laid_at
from nccl_doctor.rules.localise import Pair, blame, plausible
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
_LOSS = Trouble("net.packet-loss", "TCP_INFO: total_retrans less dsack_dups", explains=("net.slow", "collectives"))
_LATENCY = Trouble("net.latency", "TCP connect and echo", Severity.WARN, explains=())
_SLOW = Trouble("net.slow.link", "timed transfer", sure=(0.95, 0.7))


def _measured(fleet: Fleet) -> list[tuple[str, Link]]:
    """The links over which messages went to and fro; pairs without any are noted as not measured."""
    links = [(host, link) for host, fact in fleet.every(Links).items() for link in fact.links]
    found = [(host, link) for host, link in links if link.messages and link.answered]
    heard = {(host, link.peer) for host, link in found}
    untried(fleet, heard | cut_pairs(fleet), "loss and delay to", "no message was answered")
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
        yield laid_at(
            culprit,
            _LOSS,
            f"{100.0 * total / out_of:.1f} % of packets {culprit.where} are lost",
            lambda pair: f"{lost[pair]} of {sent[pair]} small packets were lost and sent again",
            fix_at(
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
    untried(fleet, set(trips) | cut_pairs(fleet), "delay to", "no round trip was timed")
    if len(trips) < 3:
        raise SkipRule("too few pairs of hosts to compare")
    usual = _good(trips.values())
    bad = {pair: trip > DELAY_MS and trip > DELAY_FACTOR * usual for pair, trip in trips.items()}
    for culprit in plausible(bad):
        (client, server), slowest = culprit.pairs[0], max(trips[pair] for pair in culprit.pairs)
        yield laid_at(
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
        yield laid_at(
            culprit,
            _SLOW,
            f"TCP {culprit.where} runs at {_mbits(slowest)}; good pairs of hosts reach {_mbits(usual)}",
            lambda pair: f"{_mbits(rates[pair])} over one TCP stream",
            fix_at(
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
    A host whose answers took so long that its clock may be either is unknown.
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
            if abs(off) + clock.uncertainty > CLOCK_SECONDS:
                fleet.lack(Clock.PROBE, f"known to +- {clock.uncertainty:.1f} s: its answers took too long", host)
            continue
        way, than = ("ahead", "ahead of") if off > 0 else ("behind", "behind")
        told = way if known else f"{than} this machine's; nothing says which of the clocks is right"
        agree = f"; most others agree on {usual:+.3f} s" if known else ""
        proof = f"offset to this machine {clock.offset:+.3f} s +- {clock.uncertainty:.3f} s{agree}"
        yield finding(
            "host.clock-offset",
            Severity.WARN,
            f"{host}'s clock is {abs(off):.1f} s {told}",
            Evidence(proof, source="clock", host=host),
            places=[Place(host=host)],
            confidence=1.0 if known else 0.5,
            fixes=[Fix("let chrony or systemd-timesyncd set it", "chronyc tracking || timedatectl status", host)],
        )
