"""Who measures whom, and at which address: pure planning, the same plan for the same hosts whatever their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nccl_doctor.agent.probes.mesh import RETRY_S
from nccl_doctor.facts.mesh import Link, Links, Listening, Names, Resolver, Throughput
from nccl_doctor.rules.localise import Pair
from nccl_doctor.rules.mesh_pairs import FULL_UP_TO, ONE_STREAM, late_hosts

# Ports of each host that every peer tries, at equal distances over its ephemeral range: three, and in a small fleet,
# once these answered, thirteen more. No closed part of the range as wide as that distance is missed.
PORTS, PORTS_OF_FEW = 3, 16
MESSAGES = 100  # small paced messages per pair: 0.2 s, and a loss of 5 % is missed once in 170 times per pair
# A transfer that looks slow is timed again, and the fastest one counts: a busy moment of either host looks like a slow
# link, but does not last. First those below half of what the best eighth of all transfers reach, each host with one at a
# time; then, while nothing else goes on (True), what the rule would blame, which is below a quarter, or nearly so.
DOUBT_SHARES = ((0.5, False), (0.3, True))
TIMES_AGAIN = 2  # for each transfer and share
FEW = 12  # one after the other, more transfers than these would take too long


class Listeners(msgspec.Struct, frozen=True):
    """The ports that each host listens on, and the address at which it is tested."""

    ports: Mapping[str, Listening]
    addresses: Mapping[str, str]


def doubtful(measured: Mapping[str, Throughput], share: float) -> list[Pair]:
    """The pairs whose transfer reached less than this share of the rate of the best eighth, in order.

    As in the rule, that rate counts as :data:`ONE_STREAM` at most.
    """
    rates = {(host, flow.peer): flow.rate for host, fact in measured.items() for flow in fact.flows if flow.seconds > 0}
    if not rates:
        return []
    best = sorted(rates.values(), reverse=True)[(len(rates) - 1) // 8]
    return sorted(pair for pair, rate in rates.items() if rate < share * min(best, ONE_STREAM))


def faster(before: Sequence[dict[str, Any]], again: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each peer's transfers the faster one, as the agent told them; one that failed is slower than any other."""

    def rate(flow: Mapping[str, Any]) -> float:
        return flow.get("bytes", 0) / flow["seconds"] if flow.get("outcome") == "ok" and flow.get("seconds") else 0.0

    second = {flow["peer"]: flow for flow in again}
    return [max((flow, second.get(flow["peer"], flow)), key=rate) for flow in before]


def by_source(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Host -> the peers that it is to measure."""
    found: dict[str, list[str]] = {}
    for source, peer in pairs:
        found.setdefault(source, []).append(peer)
    return found


def data_address(host: str, own: Names | None, resolver: Resolver, reached_at: Mapping[str, str]) -> str:
    """The address at which ``host`` is tested: the one most hosts resolve its name to and that it has; else ssh's."""
    votes: dict[str, int] = {}
    for addresses, resolvers in resolver.answers(host).items():
        if addresses and own and addresses[0] in own.addresses and resolvers != [host]:
            votes[addresses[0]] = votes.get(addresses[0], 0) + len(resolvers)
    if votes:
        return max(sorted(votes), key=lambda address: votes[address])
    return reached_at.get(host, "")


def port_count(hosts: int) -> int:
    """How many ephemeral ports each host listens on."""
    return PORTS_OF_FEW if hosts <= FULL_UP_TO else PORTS


def _at_first(ports: Sequence[int]) -> Sequence[int]:
    """The ports that are tried first, spread over all that a host listens on."""
    return ports[:: max(1, len(ports) // PORTS)][:PORTS]


def sweep(host: str, listeners: Listeners, links: Mapping[str, Links]) -> list[dict[str, Any]]:
    """The further ports of the peers whose first ones (``links``) answered ``host`` at once.

    A port that is closed is proof enough, and more connects where new ones are limited would only meet the limit again.
    """
    tried = links[host].links
    passed_over = {link.peer for link in tried if link.outcome != "ok" or link.attempts > 1} | late_hosts(links)
    peers = sorted({link.peer for link in tried if link.purpose == "ephemeral"} - passed_over)
    return [target for peer in peers for target in further(peer, listeners)]


def further(peer: str, listeners: Listeners) -> list[dict[str, Any]]:
    """The further ports of a peer, as targets."""
    ports = listeners.ports[peer].ephemeral
    return [
        {"peer": peer, "address": listeners.addresses[peer], "port": port, "purpose": "ephemeral"}
        for port in ports
        if port not in _at_first(ports)
    ]


def again(link: Link, listeners: Listeners) -> dict[str, Any]:
    """The target of this connect, to be tried again."""
    first = link.purpose == "ephemeral" and link.port == listeners.ports[link.peer].ephemeral[0]
    place = {"peer": link.peer, "address": link.address, "port": link.port, "purpose": link.purpose}
    return {**place, "messages": MESSAGES if first else 0}


def merged(before: dict[str, Any], more: Sequence[dict[str, Any]], vain: int) -> dict[str, Any]:
    """A host's links with more of them: one that was tried again, after ``vain`` connects, takes the old one's place.

    Of the others those that were answered at once are only counted.
    """
    links = {_place(link): link for link in before["links"]}
    swept = Counter(before.get("swept", {}))
    for link in more:
        if _place(link) in links:
            told = {**link, "attempts": link.get("attempts", vain) + vain}
            if "connect_ms" in link:
                told["connect_ms"] = link["connect_ms"] + vain * RETRY_S * 1e3
            links[_place(link)] = told
        elif link["outcome"] == "ok" and link["attempts"] == 1:
            swept[link["peer"]] += 1
        else:
            links[_place(link)] = link
    return {**before, "links": list(links.values()), "swept": dict(swept)}


def _place(link: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(link[key] for key in ("peer", "address", "port", "purpose"))


def link_targets(
    host: str,
    peers: Sequence[str],
    resolver: Resolver,
    listeners: Listeners,
    chosen: Mapping[str, Sequence[str]],
    master: str,
) -> list[dict[str, Any]]:
    """What ``host`` connects to: its peers' ephemeral ports, the address its own resolver gives for them where that is
    another, the addresses of the interfaces NCCL would choose where those are others, and the master port."""
    targets: list[dict[str, Any]] = []
    listening, addresses = listeners.ports, listeners.addresses

    def add(peer: str, address: str, port: int, purpose: str, messages: int = 0) -> None:
        if address and port:
            entry = {"peer": peer, "address": address, "port": port, "purpose": purpose, "messages": messages}
            targets.append(entry)

    for peer in peers:
        if peer not in listening:
            continue
        ports = listening[peer].ephemeral
        for index, port in enumerate(_at_first(ports)):
            add(peer, addresses[peer], port, "ephemeral", MESSAGES if index == 0 else 0)
        by_name = _resolved(resolver, host, peer)
        if by_name and by_name != addresses[peer]:
            add(peer, by_name, ports[0], "name")
        for address in chosen.get(peer, ()):
            if address != addresses[peer]:
                add(peer, address, ports[0], "chosen-interface")
    if host != master and master in listening:
        opened = listening[master].master
        if opened is not None and opened.outcome == "ok":
            add(master, _resolved(resolver, host, master) or addresses[master], opened.port, "master")
    return targets


def _resolved(resolver: Resolver, host: str, peer: str) -> str:
    answer = resolver.answer(host, peer)
    return answer.addresses[0] if answer and answer.addresses else ""


def best_address(host: str, peer: str, links: Mapping[str, Links], listeners: Listeners) -> str:
    """Where bulk data to ``peer`` is measured: NCCL's interface if a connect to it worked, else the tested address."""
    for link in links[host].links if host in links else ():
        if link.peer == peer and link.purpose == "chosen-interface" and link.outcome == "ok":
            return link.address
    return listeners.addresses[peer]
