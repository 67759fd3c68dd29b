"""Who measures whom: the same pairs for the same hosts, so that a rule can tell what was left unmeasured."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nccl_doctor.facts.mesh import Link, Links, Names, Resolver
from nccl_doctor.rules.engine import Fleet
from nccl_doctor.rules.localise import Pair

# Up to here every ordered pair is measured: 12 hosts are 132 pairs, a second's work.
FULL_UP_TO = 12
# Connects that were answered late, of one host: with fewer, a single burst of loss could be meant.
LATE_COUNT = 3
# Bytes per second: 10 Gb/s. What one TCP stream moves beyond it depends on where its ends run: on CPUs that are shared or
# far from the NIC one pair of sound hosts comes out at a fifth of another (measured: 4.6 and 7.5 of 22 and 33 Gb/s).
ONE_STREAM = 1.25e9


def pairs(hosts: Sequence[str], mesh: str) -> list[Pair]:
    """The ordered pairs to measure: all of them, or for a large fleet a ring both ways and two random rings more.

    The random rings are drawn from the host names, so that the same fleet is measured the same way each time.
    """
    return list(_pairs(tuple(sorted(hosts)), mesh))


@functools.lru_cache(maxsize=2)  # every rule about pairs asks for those of the same fleet
def _pairs(names: tuple[str, ...], mesh: str) -> tuple[Pair, ...]:
    if mesh == "full" or len(names) <= FULL_UP_TO:
        return tuple((one, other) for one in names for other in names if one != other)
    chosen: set[Pair] = set()
    order = list(names)
    for _ in range(3):
        for one, other in zip(order, order[1:] + order[:1], strict=True):
            chosen |= {(one, other), (other, one)}
        random.Random(",".join(order)).shuffle(order)
    return tuple(sorted(chosen))


def shifts(hosts: Sequence[str], count: int = 3) -> list[Pair]:
    """Ordered pairs for throughput: in each of ``count`` rounds every host sends to one peer and receives from one."""
    names = sorted(hosts)
    steps = range(1, min(count, len(names) - 1) + 1)
    return [(name, names[(index + step) % len(names)]) for step in steps for index, name in enumerate(names)]


def late_hosts(facts: Mapping[str, Links], least: int = LATE_COUNT) -> set[str]:
    """The hosts that answered so many connects, but not at the first try: something may limit new ones there."""
    late = Counter(
        link.peer for fact in facts.values() for link in fact.links if link.outcome == "ok" and link.attempts > 1
    )
    return {host for host, count in late.items() if count >= least}


def perhaps_limited(facts: Mapping[str, Links]) -> list[tuple[str, Link]]:
    """Host and connect, where a limit on new connections may have cost the answer: not yet tried again alone."""
    late = late_hosts(facts, least=1)
    return [
        (host, link)
        for host, fact in sorted(facts.items())
        for link in fact.links
        if link.peer in late and link.outcome == "timed-out" and link.attempts == 1
    ]


def in_doubt(fleet: Fleet, facts: Mapping[str, Links]) -> set[tuple[str, Link]]:
    """As :func:`perhaps_limited`, and noted: such a connect has neither failed nor passed."""
    found = perhaps_limited(facts)
    for host, link in found:
        why = "never answered, where others were late: new connections are limited, or that port is closed"
        fleet.lack(f"connects from {host}", why, link.peer)
    return set(found)


def untried(fleet: Fleet, tried: Iterable[Pair], what: str, why: str) -> None:
    """Note every pair that should have been measured and was not: what nobody looked at has not passed.

    Hosts whose fact is missing altogether are noted by ``Fleet.every`` already. A pair with such a host, or one that was
    lost, as its peer is that host's gap alone, as long as something was measured between this one and others.
    """
    seen = set(tried)
    known_gaps = {host for hosts in fleet.missing.values() for host in hosts}
    elsewhere = known_gaps | fleet.lost.keys()
    measured = {source for source, peer in seen if peer not in elsewhere}
    # Drawn as the run drew them: from all hosts that it had reached by then.
    for source, peer in pairs([*(host.name for host in fleet.hosts), *fleet.lost], fleet.plan.mesh):
        excused = peer in elsewhere and source in measured
        if (source, peer) not in seen and source not in elsewhere and not excused:
            fleet.lack(f"{what} {peer}", why, source)


def unasked(fleet: Fleet, seen: dict[str, Names]) -> None:
    """Note every host of which it is not known what it resolves another reached host's name to."""
    resolver = Resolver(seen, fleet.of_lost(Names))
    for reference, sharers in resolver.untold().items():
        fleet.lack(f"names told by {reference}", "not collected", *sharers)
    for name in sorted(host.name for host in fleet.hosts):
        for host in resolver.silent(name):
            fleet.lack(f"name {name}", "not asked", host)
