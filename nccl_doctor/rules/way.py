"""The way to a peer that cannot be connected to: a route or a hardware address that is wrong on the sending host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Interfaces, Route
from nccl_doctor.facts.mesh import Link, Links, parsed
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, SkipRule, facts_of, fleet_rule

_FAILED = ("timed-out", "unreachable")
_EXPLAINS = (
    "net.firewall",
    "net.master-unreachable",
    "net.wrong-interface.unreachable",
    "net.mtu",
    "net.slow",
    "net.packet-loss",
    "collectives",
)


@fleet_rule("ports", "net.wrong-route", "net.wrong-neighbour")
def way_to_peers(fleet: Fleet) -> Iterator[Finding]:
    """A host's own routes and, where it cannot connect, its neighbour entries lead to its peers.

    A route of its own that rejects the peer's address, or sends what is for its own network to a gateway, and a hardware
    address that is not the peer's (a stale or static entry, or another host that answers for the address) look like a
    firewall from outside. Where the gateway does pass it on, it is a detour, and a warning.
    """
    fleet.need_several()
    tried = fleet.every(Links)
    if "interfaces" not in fleet.plan.stages and not facts_of(fleet.hosts, Interfaces):
        raise SkipRule("routes are asked for in the interfaces stage, which was left out")
    facts = fleet.every(Interfaces)
    macs = {
        (name, address.address): device.mac.lower()
        for name, found in sorted(facts.items())
        for address in found.addresses
        if not address.loopback and (device := found.device(address.name)) is not None
    }
    for host, links in sorted(tried.items()):
        if host not in facts:
            continue  # the connection's own finding stands
        if cut := facts[host].routes_cut:
            fleet.lack("routes", f"{cut} of them were too many to be told: one may lead astray", host)
        yield from _routes(host, facts[host], links)
        for link in {link.address: link for link in links.links if link.outcome in _FAILED}.values():
            yield from _neighbour(host, links, link, macs)


def _routes(host: str, facts: Interfaces, links: Links) -> Iterator[Finding]:
    """One finding for each route that leads astray, with all peers beyond it."""
    astray: dict[Route, list[Link]] = {}
    # Kubernetes hosts have hundreds of routes, and none of them leads to a peer: they are looked at where one might.
    detours = any(route.gateway and route.prefix and _own_network(facts, route.destination) for route in facts.routes)
    asked = links.links if detours else [link for link in links.links if link.outcome in _FAILED]
    for link in {(link.address, link.outcome): link for link in asked}.values():
        route = _taken(facts, link.address)
        if route is not None and (
            link.outcome in _FAILED if _rejects(route) else route.gateway and _own_network(facts, link.address)
        ):
            astray.setdefault(route, []).append(link)
    for route, led in astray.items():
        failed = [link for link in led if link.outcome in _FAILED]
        peers = few(sorted({link.peer for link in failed or led}))
        way = f"{route.destination}/{route.prefix}"
        network = _own_network(facts, led[0].address)
        what = (
            "rejects it"
            if _rejects(route)
            else f"sends it to {route.gateway}, though {network} is {host}'s own network"
        )
        yield finding(
            "net.wrong-route",
            Severity.FAIL if failed else Severity.WARN,
            f"{host} {'cannot connect to' if failed else 'takes a detour to'} {peers} ({(failed or led)[0].address}): "
            f"its own route {way} {what}",
            (
                Evidence(
                    f"{way} {f'via {route.gateway} ' if route.gateway else ''}dev {route.interface}"
                    + (" reject" if route.reject else ""),
                    "/proc/net/route" if route.family == "inet" else "/proc/net/ipv6_route",
                    host=host,
                ),
                *(_tried(host, link) for link in (failed or led)[:3]),
            ),
            places=[Place(host, peer=peer) for peer in sorted({link.peer for link in failed or led})],
            fixes=(
                Fix("see where it comes from", f"ip route get {led[0].address}; ip route show table all {way}", host),
                Fix("take it away, if nobody wants it", f"sudo ip route del {way}", host, risky=True),
            ),
            confidence=0.95,
            explains=_EXPLAINS if failed else (),
        )


def _rejects(route: Route) -> bool:
    return route.reject or route.interface == "*"


def _own_network(facts: Interfaces, address: str) -> str:
    """The network of one of the host's own addresses in which this one lies; empty if there is none."""
    target = parsed(address)
    return next((str(o.network) for o in facts.addresses if o.running and not o.loopback and target in o.network), "")


def _taken(facts: Interfaces, address: str) -> Route | None:
    """The route of the main table that the kernel takes to this address: the longest prefix, then the lowest metric."""
    target = parsed(address)
    fitting = [route for route in facts.routes if target in route.network]
    return min(fitting, key=lambda route: (-route.prefix, route.metric), default=None)


def _neighbour(host: str, links: Links, link: Link, macs: Mapping[tuple[str, str], str]) -> Iterator[Finding]:
    owner, mac = link.peer, macs.get((link.peer, link.address))
    for entry in links.neighbours:
        if entry.address != link.address or not mac or entry.mac.lower() == mac:
            continue
        other = next((name for (name, _), theirs in macs.items() if theirs == entry.mac.lower()), "")
        yield finding(
            "net.wrong-neighbour",
            Severity.FAIL,
            f"{host} sends what is for {owner} ({link.address}) to the hardware address {entry.mac}"
            + (f", which is {other}'s" if other else f", which is not {owner}'s"),
            (
                Evidence(
                    f"{entry.address} {entry.mac} {entry.interface}" + (" permanent" if entry.permanent else ""),
                    "ip neighbour",
                    host=host,
                ),
                Evidence(f"{link.address} is on {mac}", "/sys/class/net", host=owner),
                _tried(host, link),
            ),
            places=(Place(host, nic=entry.interface, peer=owner),),
            fixes=(
                Fix("forget the entry", f"sudo ip neigh del {entry.address} dev {entry.interface}", host),
                Fix(
                    "who answers for the address? more than one hardware address: it is in use twice",
                    f"sudo ndisc6 -m {entry.address} {entry.interface}"
                    if ":" in entry.address
                    else f"sudo arping -c 3 -I {entry.interface} {entry.address}",
                    host,
                ),
            ),
            confidence=0.97,
            explains=_EXPLAINS,
        )


def _tried(host: str, link: Link) -> Evidence:
    told = f"{host} -> {link.peer}: {link.outcome}" + (f": {link.detail}" if link.detail else "")
    return Evidence(told, f"connect {link.address}:{link.port}", host=host)
