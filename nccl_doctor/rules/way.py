"""The way to a peer that cannot be connected to: a route or a hardware address that is wrong on the sending host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network

from nccl_doctor.facts.interfaces import Interfaces, Route
from nccl_doctor.facts.mesh import Link, Links
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, SkipRule, fleet_rule

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
    """Where a host cannot connect to a peer, its own routes and neighbour entries lead to that peer.

    A route of its own that rejects the peer's address, or sends what is for its own network to a gateway, and a hardware
    address that is not the peer's (a stale or static entry, or another host that answers for the address) look like a
    firewall from outside.
    """
    if len(fleet.hosts) < 2:
        raise SkipRule("only one host")
    tried = fleet.every(Links)
    facts = {host.name: found for host in fleet.hosts if (found := host.want(Interfaces)) is not None}
    owners = {
        address.address: (name, device.mac)
        for name, found in sorted(facts.items())
        for address in found.addresses
        if not address.loopback and (device := found.device(address.name)) is not None
    }
    for host, links in sorted(tried.items()):
        if host not in facts:
            continue  # the connection's own finding stands
        failed = {link.address: link for link in links.links if link.outcome in ("timed-out", "unreachable")}
        for link in failed.values():
            yield from _route(host, facts[host], link)
            yield from _neighbour(host, links, link, owners)


def _route(host: str, facts: Interfaces, link: Link) -> Iterator[Finding]:
    route = _taken(facts, link.address)
    if route is None:
        return
    target = ip_address(link.address)
    near = [one.network for one in facts.addresses if one.running and not one.loopback and target in one.network]
    if route.reject or route.interface == "*":
        what = "rejects it"
    elif route.gateway and near:
        what = f"sends it to {route.gateway}, though {near[0]} is {host}'s own network"
    else:
        return
    way = f"{route.destination}/{route.prefix}"
    yield finding(
        "net.wrong-route",
        Severity.FAIL,
        f"{host} cannot connect to {link.peer} ({link.address}): its own route {way} {what}",
        (
            Evidence(
                f"{way} {f'via {route.gateway} ' if route.gateway else ''}dev {route.interface}"
                + (" reject" if route.reject else ""),
                "/proc/net/route" if route.family == "inet" else "/proc/net/ipv6_route",
                host=host,
            ),
            _tried(host, link),
        ),
        places=(Place(host, peer=link.peer),),
        fixes=(
            Fix("see where it comes from", f"ip route get {link.address}; ip route show table all {way}", host),
            Fix("take it away, if nobody wants it", f"sudo ip route del {way}", host, risky=True),
        ),
        confidence=0.95,
        explains=_EXPLAINS,
    )


def _taken(facts: Interfaces, address: str) -> Route | None:
    """The route of the main table that the kernel takes to this address: the longest prefix, then the lowest metric."""
    target = ip_address(address)
    fitting = [route for route in facts.routes if target in ip_network(f"{route.destination}/{route.prefix}", False)]
    return min(fitting, key=lambda route: (-route.prefix, route.metric), default=None)


def _neighbour(host: str, links: Links, link: Link, owners: Mapping[str, tuple[str, str]]) -> Iterator[Finding]:
    owner, mac = owners.get(link.address, ("", ""))
    for entry in links.neighbours:
        if entry.address != link.address or not mac or entry.mac.lower() == mac.lower():
            continue
        other = next((name for name, theirs in owners.values() if theirs.lower() == entry.mac.lower()), "")
        yield finding(
            "net.wrong-neighbour",
            Severity.FAIL,
            f"{host} sends what is for {owner} ({link.address}) to the hardware address {entry.mac}"
            + (f", which is {other}'s" if other else f", which is not {owner}'s"),
            (
                Evidence(
                    f"{entry.address} {entry.mac} {entry.interface}" + (" permanent" if entry.permanent else ""),
                    "/proc/net/arp",
                    host=host,
                ),
                Evidence(f"{link.address} is on {mac}", "/sys/class/net", host=owner),
                _tried(host, link),
            ),
            places=(Place(host, nic=entry.interface, peer=owner),),
            fixes=(
                Fix(
                    "forget the entry",
                    f"sudo ip neigh del {entry.address} dev {entry.interface}",
                    host,
                ),
                Fix(
                    "who answers for the address? more than one hardware address: it is in use twice",
                    f"sudo arping -c 3 -I {entry.interface} {entry.address}",
                    host,
                ),
            ),
            confidence=0.97,
            explains=_EXPLAINS,
        )


def _tried(host: str, link: Link) -> Evidence:
    return Evidence(
        f"{host} -> {link.peer}: {link.outcome}: {link.detail}", f"connect {link.address}:{link.port}", host=host
    )
