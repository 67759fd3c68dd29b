"""Interfaces: which ones NCCL and Gloo would choose on each host, and whether peers can reach them there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

from nccl_doctor.env.interface_advice import IFNAME, Attempt, Trap, reachable, trap
from nccl_doctor.facts.fold import few, fold
from nccl_doctor.facts.interfaces import Address
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, SkipRule, fleet_rule
from nccl_doctor.rules.interface_duplicates import shared
from nccl_doctor.rules.interface_view import (
    ALONE,
    View,
    advice,
    attempts,
    choice_evidence,
    interface_list,
    quote,
    recommendation,
    remove,
    views,
)
from nccl_doctor.rules.localise import Blame, Pair, blame


def _setting_fixes(item: View) -> tuple[Fix, ...]:
    setting = item.settings.get(IFNAME)
    if setting is None or item.bootstrap.rule != IFNAME:
        return ()
    fixes = list(remove(setting, item.host))
    if setting.value.startswith("^"):
        usual = ("lo", "docker0", "virbr0") if setting.value.startswith("^=") else ("lo", "docker", "virbr")
        missing = [name for name in usual if name not in setting.value.lstrip("^=").split(",")]
        if missing:
            whole = ",".join([setting.value, *missing])
            text = f"or exclude {' and '.join(missing)} as well (the list replaces the built-in one): {IFNAME}={whole}"
            fixes.append(Fix(text))
    return tuple(fixes)


@fleet_rule(
    "interfaces",
    "net.wrong-interface.none",
    "net.wrong-interface.loopback",
    "net.wrong-interface.local",
    "net.wrong-interface.vpn",
    "net.wrong-interface.down",
)
def chosen_interface(fleet: Fleet) -> Iterator[Finding]:
    """The interface NCCL's bootstrap takes is one that peers can use: not lo, docker0, virbr0, a VPN, or down.

    NCCL takes the first interface in kernel order that passes its rules; every peer is given the address of that one.
    """
    fleet.need_several(ALONE)
    measured = reachable(attempts(fleet))
    for host, item in views(fleet).items():
        address = item.bootstrap.address
        if address is None:
            if IFNAME not in item.settings or "NCCL_COMM_ID" in item.settings:
                yield _nothing_usable(item)
            continue
        found = trap(address, item.facts)
        if measured.get((host, address.address)) and not (found and found.reach == "tunnel"):
            continue  # whatever it is called, peers got there
        if found is not None:
            yield _trapped(fleet, item, address, found)
        elif not address.running:
            yield _down(fleet, item, address)


def _nothing_usable(item: View) -> Finding:
    comm_id = item.settings.get("NCCL_COMM_ID")
    proof = (interface_list(item), *((quote(comm_id, item.host),) if comm_id else ()))
    return finding(
        "net.wrong-interface.none",
        Severity.FAIL,
        f"{item.nccl} finds no interface to use: {item.bootstrap.failure}",
        proof,
        hosts=(item.host,),
        fixes=remove(comm_id, item.host)
        if comm_id
        else (Fix("bring one up", "ip -br address; ip -br link", item.host),),
        explains=("collectives",),
    )


def _trapped(fleet: Fleet, item: View, address: Address, found: Trap) -> Finding:
    loopback = address.loopback or address.interface.ip.is_loopback
    tunnel = found.reach == "tunnel"
    id = "loopback" if loopback else "vpn" if tunnel else "local"
    consequence = "slow, and not what a cluster is wired for" if tunnel else "no peer can reach it"
    setting = item.settings.get(IFNAME)
    because = f" because of {IFNAME}={setting.value}" if setting and item.bootstrap.rule == IFNAME else ""
    return finding(
        f"net.wrong-interface.{id}",
        Severity.WARN if tunnel else Severity.FAIL,
        f"NCCL would hand out {address.address} of {address.name}, {found.what}{because}: {consequence}",
        (choice_evidence(item, address), interface_list(item)),
        places=(Place(item.host, nic=address.name),),
        confidence=1.0 if loopback else 0.95,
        fixes=_setting_fixes(item),
        env=advice(fleet),
        explains=("collectives",),
    )


def _down(fleet: Fleet, item: View, address: Address) -> Finding:
    look = f"ip -d link show {address.name}; sudo ethtool {address.name} | grep -i link"
    return finding(
        "net.wrong-interface.down",
        Severity.FAIL,
        f"{item.nccl} would choose {address.name}, which is down",
        (
            choice_evidence(item, address),
            Evidence(f"{address.name}: no IFF_RUNNING (no carrier)", "getifaddrs", host=item.host),
        ),
        places=(Place(item.host, nic=address.name),),
        fixes=(Fix("see why it has no carrier", look, item.host),),
        env=advice(fleet),
        explains=("collectives",),
    )


@fleet_rule("interfaces", "net.wrong-interface.unreachable", "net.wrong-interface.missing")
def unreachable(fleet: Fleet) -> Iterator[Finding]:
    """Peers reach every address that NCCL hands out, measured by connecting.

    An address is blamed here where peers reach the same host at another address, or the host was examined through
    another one. Where peers reach it at no address at all, that is the connectivity or ports stage's finding. A host
    that reaches none of those who reach each other in a network is cut off from it itself: its interface there is
    missing, down, without an address or plugged into something else.
    """
    fleet.need_several(ALONE)
    seen = views(fleet)
    tried = attempts(fleet, required=True)
    reach = {host.name: host.facts.reach.address for host in fleet.hosts}
    twice = shared(seen)
    by_peer: dict[str, list[Attempt]] = {}
    for attempt in tried:
        if attempt.source != attempt.peer:
            by_peer.setdefault(attempt.peer, []).append(attempt)
    told: set[tuple[str, str]] = set()  # host and the address that it does not reach, or does not reach others from
    for network, culprit in _cut_off(seen, tried, twice, reach):
        lost = [
            attempt for attempt in tried if not attempt.ok and (attempt.source, attempt.peer) in culprit.pairs
            and _lies_in(attempt.address, network)
        ]  # fmt: skip
        told |= {(attempt.source, attempt.address) for attempt in lost}
        found = _without_network(fleet, seen, culprit.host, network, lost)
        nic = found.places[0].nic
        told |= {(culprit.host, one.address) for one in seen[culprit.host].used if one.name == nic}
        yield found
    for host, item in seen.items():
        towards = by_peer.get(host, [])
        for address in item.used:
            if address.address in twice or (host, address.address) in told or _is_named_by_choice(item, address):
                continue  # the rule on duplicates names it, what cut the host off, or chosen_interface
            at_it = [attempt for attempt in towards if attempt.address == address.address]
            failed = [one for one in at_it if not one.ok and (one.source, one.address) not in told]
            elsewhere = [attempt for attempt in towards if attempt.address != address.address and attempt.ok]
            if failed and (elsewhere or reach[host] not in ("", address.address)):
                yield _unreachable(fleet, item, address, failed, elsewhere)


def _unreachable(
    fleet: Fleet, item: View, address: Address, failed: Sequence[Attempt], elsewhere: Sequence[Attempt]
) -> Finding:
    """``elsewhere``: connects to other addresses of the host that got there."""
    sources = sorted({attempt.source for attempt in failed})
    but = f"; {elsewhere[0].address} of the same host is reachable" if elsewhere else ""
    return finding(
        "net.wrong-interface.unreachable",
        Severity.FAIL,
        f"NCCL would hand out {address.address} ({address.name}), which {fold(sources)} cannot reach{but}",
        [choice_evidence(item, address), *map(_quoted, (*failed[:3], *elsewhere[:1]))],
        places=[Place(item.host, nic=address.name, peer=source) for source in sources[:8]],
        confidence=0.97 if elsewhere else 0.8,
        fixes=_setting_fixes(item),
        env=advice(fleet),
        explains=("collectives",),
    )


def _quoted(attempt: Attempt) -> Evidence:
    return Evidence(attempt.detail, f"from {attempt.source}", host=attempt.source)


def _is_named_by_choice(item: View, address: Address) -> bool:
    """Whether :func:`chosen_interface` fails this address where a peer does not reach it."""
    found = trap(address, item.facts)
    return address == item.bootstrap.address and (found.reach == "local" if found else not address.running)


def _lies_in(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def _cut_off(
    seen: Mapping[str, View], tried: Iterable[Attempt], twice: Mapping[str, object], reach: Mapping[str, str]
) -> Iterator[tuple[str, Blame]]:
    """Network -> a host that reaches none of its peers' addresses there, though it reaches them elsewhere."""
    networks = {
        address.address: str(address.network)
        for item in seen.values()
        for address in item.used
        if address.address not in twice and not address.loopback
    }
    measured: dict[str, dict[Pair, bool]] = {}
    other_way: set[Pair] = set()
    for attempt in tried:
        pair = (attempt.source, attempt.peer)
        if attempt.ok or reach.get(attempt.peer) not in ("", attempt.address):
            other_way.add(pair)
        if attempt.address in networks and attempt.source != attempt.peer:
            links = measured.setdefault(networks[attempt.address], {})
            links[pair] = links.get(pair, False) or not attempt.ok
    for network, links in sorted(measured.items()):
        for culprit in blame(links) if not all(links.values()) else ():
            if culprit.host and culprit.direction != "in" and other_way.intersection(culprit.pairs):
                yield network, culprit


def _without_network(
    fleet: Fleet, seen: Mapping[str, View], host: str, network: str, lost: Sequence[Attempt]
) -> Finding:
    item = seen[host]
    peers = sorted({name for attempt in lost for name in (attempt.source, attempt.peer)} - {host})
    named = sorted({one.name for peer in peers for one in seen[peer].used if str(one.network) == network})
    here = next((one for one in item.facts.addresses if str(one.network) == network), None)
    name = here.name if here else next((one for one in named if item.facts.device(one)), "")
    if here is not None:
        what = f"{host} reaches nobody in {network} through {here.name}" + ("" if here.running else ", which is down")
    elif name:
        others = [
            one.interface.with_prefixlen for one in item.facts.addresses if one.name == name and not one.link_local
        ]
        why = f"has {few(others)}" if others else "is down or has none"
        what = f"{host} has no address in {network}, as its {name} {why}"
    else:
        what = f"{host} has no interface in {network}"
    return finding(
        "net.wrong-interface.unreachable" if here is not None else "net.wrong-interface.missing",
        Severity.FAIL,
        f"{what}; NCCL would hand out addresses there on {few(peers)} ({few(named)})",
        (interface_list(item), *map(_quoted, lost[:3]), *_peer_networks(seen, host)[:1]),
        places=(Place(host, nic=name) if name else Place(host),),
        confidence=0.97,
        fixes=(
            Fix(
                "look at link, address, and the switch port's VLAN; compare with a good host",
                f"ip -br link show {name}; ip -br address show {name}" if name else "ip -br link; ip -br address",
                host,
            ),
        ),
        env=advice(fleet),
        explains=("collectives",),
    )


@fleet_rule("interfaces", "net.wrong-interface.different-subnet", "net.wrong-interface.extra")
def subnets(fleet: Fleet) -> Iterator[Finding]:
    """The interfaces NCCL uses lie in networks that the peers have too, or peers were seen to reach them.

    Without an RDMA device NCCL opens every interface that is not excluded and spreads its connections over them: one
    that only this host has (a second network, a container bridge) makes some connections hang.
    """
    fleet.need_several(ALONE)
    seen = views(fleet)
    if len(seen) < 2:
        raise SkipRule("one host only has interface facts: nothing to compare with")
    measured = reachable(attempts(fleet))
    owners: dict[str, set[str]] = {}
    for host, item in seen.items():
        for address in item.facts.addresses:
            owners.setdefault(str(address.network), set()).add(host)
    for host, item in seen.items():
        for address in item.used:
            if address.loopback or (host, address.address) in measured:
                continue  # measured: reached, or the finding of another rule
            caught = trap(address, item.facts)
            alone = len(owners[str(address.network)]) < 2
            if caught and address == item.bootstrap.address:
                continue  # chosen_interface names it
            if caught or alone or _unrouted(address):
                yield _odd_network(fleet, seen, item, address, caught)


def _unrouted(address: Address) -> bool:
    return address.link_local and address.family == "inet6"


def _odd_network(fleet: Fleet, seen: Mapping[str, View], item: View, address: Address, caught: Trap | None) -> Finding:
    first = address == item.bootstrap.address
    unrouted = _unrouted(address)
    if caught:
        why = caught.what
    elif unrouted:
        why = "a link-local address, which works only between hosts whose interfaces are numbered alike"
    else:
        why = f"and no peer has an address in {address.network}"
    peer = next(host for host in seen if host != item.host)
    return finding(
        f"net.wrong-interface.{'different-subnet' if first else 'extra'}",
        Severity.INFO if unrouted and not caught and not first else Severity.WARN,
        f"NCCL would {'hand out' if first else 'also use'} {address.address}/{address.prefix} of {address.name}, {why}",
        (choice_evidence(item, address), *_peer_networks(seen, item.host)),
        places=(Place(item.host, nic=address.name),),
        confidence=0.8 if caught else 0.6,
        fixes=(Fix("does a peer get there?", f"ping -c 3 {address.address}", peer),),
        env=advice(fleet),
    )


def _peer_networks(seen: Mapping[str, View], host: str) -> tuple[Evidence, ...]:
    peers = [item for name, item in seen.items() if name != host][:2]
    return tuple(interface_list(item) for item in peers)


@fleet_rule("interfaces", "net.interface-choice")
def choice(fleet: Fleet) -> Iterator[Finding]:
    """Which interface NCCL takes on each host, and what would have to be set: usually nothing."""
    seen = views(fleet)
    if not seen:
        return
    advised = recommendation(fleet) if len(seen) > 1 else None
    groups: dict[str, list[View]] = {}
    for item in seen.values():
        groups.setdefault(_choice_text(item), []).append(item)
    summary = "; ".join(
        text + ("" if len(groups) == 1 else f" on {fold(item.host for item in items)}")
        for text, items in sorted(groups.items())
    )
    if advised is None:
        outcome = ""
    elif advised.advice is not None and not advised.advice.unset:
        outcome = f"; set {advised.advice.name}='{advised.advice.value}'"
    elif advised.harmful:
        outcome = f"; {advised.reason}"
    elif advised.works and any(one.loopback for item in seen.values() if item.gloo for one in item.gloo.addresses):
        outcome = "; NCCL needs nothing set"  # Gloo does: a finding of its own says so
    elif advised.works:
        outcome = ""  # the report says what needs setting, of all findings together
    else:
        outcome = "; no NCCL_SOCKET_IFNAME is known to help: no network has an address of every host that peers reach"
    yield finding(
        "net.interface-choice",
        Severity.INFO,
        summary + outcome,
        tuple(choice_evidence(item, item.bootstrap.address) for item in seen.values() if item.bootstrap.address)[:8]
        or tuple(interface_list(item) for item in seen.values())[:8],
        hosts=tuple(seen),
        env=(advised.advice,) if advised and advised.advice else (),
    )


def _choice_text(item: View) -> str:
    nccl = f"{item.nccl} would use {', '.join(address.name for address in item.used) or 'nothing'}"
    if item.gloo is None:
        return nccl
    gloo = ", ".join(_gloo_name(address) for address in item.gloo.addresses) or "nothing"
    return f"{nccl}, Gloo {gloo}"


def _gloo_name(address: Address) -> str:
    return f"{address.name} ({address.address})" if address.loopback else address.name
