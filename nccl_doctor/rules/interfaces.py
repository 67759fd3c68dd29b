"""Interfaces: which ones NCCL and Gloo would choose on each host, and whether peers can reach them there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network

from nccl_doctor.env.interface_advice import IFNAME, Attempt, reachable, trap
from nccl_doctor.facts.fold import few, fold
from nccl_doctor.facts.interfaces import Address
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, SkipRule, fleet_rule
from nccl_doctor.rules.interface_view import (
    ALONE,
    View,
    attempts,
    interface_list,
    quote,
    recommendation,
    remove,
    views,
)
from nccl_doctor.rules.localise import Blame, Pair, blame

Advice = Callable[[], tuple[EnvAdvice, ...]]


def _advice(seen: Mapping[str, View], tried: Iterable[Attempt]) -> Advice:
    """What to set, computed for the first finding that asks."""

    @functools.cache
    def compute() -> tuple[EnvAdvice, ...]:
        found = recommendation(seen, tried).advice
        return (found,) if found else ()

    return compute


def _choice_evidence(item: View, address: Address) -> Evidence:
    setting = item.settings.get(IFNAME)
    rule = item.bootstrap.rule
    by = f"{setting.place}: {setting.quote}".rstrip("\r") if rule == IFNAME and setting else rule
    return Evidence(
        f"{item.nccl} takes {address.name} {address.address}/{address.prefix} ({by})",
        "getifaddrs, in this order",
        host=item.host,
    )


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
    seen, tried = views(fleet), attempts(fleet)
    env = _advice(seen, tried)
    measured = reachable(tried)
    for host, item in seen.items():
        address = item.bootstrap.address
        if address is None:
            if IFNAME not in item.settings or "NCCL_COMM_ID" in item.settings:
                yield _nothing_usable(item)
            continue
        found = trap(address, item.facts)
        if measured.get((host, address.address)) and not (found and found.reach == "tunnel"):
            continue  # whatever it is called, peers got there
        if found is not None:
            yield _trapped(item, address, found.what, found.reach, env)
        elif not address.running:
            yield finding(
                "net.wrong-interface.down",
                Severity.FAIL,
                f"{item.nccl} would choose {address.name}, which is down",
                (
                    _choice_evidence(item, address),
                    Evidence(f"{address.name}: no IFF_RUNNING (no carrier)", "getifaddrs", host=host),
                ),
                places=(Place(host, nic=address.name),),
                fixes=(
                    Fix(
                        "see why it has no carrier",
                        f"ip -d link show {address.name}; sudo ethtool {address.name} | grep -i link",
                        host,
                    ),
                ),
                env=env(),
                explains=("collectives",),
            )


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


def _trapped(item: View, address: Address, what: str, reach: str, env: Advice) -> Finding:
    loopback = address.loopback or address.interface.ip.is_loopback
    id = "loopback" if loopback else "vpn" if reach == "tunnel" else "local"
    consequence = "slow, and not what a cluster is wired for" if reach == "tunnel" else "no peer can reach it"
    setting = item.settings.get(IFNAME)
    because = f" because of {IFNAME}={setting.value}" if setting and item.bootstrap.rule == IFNAME else ""
    return finding(
        f"net.wrong-interface.{id}",
        Severity.WARN if reach == "tunnel" else Severity.FAIL,
        f"NCCL would hand out {address.address} of {address.name}, {what}{because}: {consequence}",
        (_choice_evidence(item, address), interface_list(item)),
        places=(Place(item.host, nic=address.name),),
        confidence=1.0 if loopback else 0.95,
        fixes=_setting_fixes(item),
        env=env(),
        explains=("collectives",),
    )


@fleet_rule("interfaces", "net.wrong-interface.duplicate-address")
def duplicate_addresses(fleet: Fleet) -> Iterator[Finding]:
    """No two hosts hand out the same address (docker0 is 172.17.0.1 everywhere; cloned machines)."""
    fleet.need_several(ALONE)
    seen = views(fleet)
    env = _advice(seen, attempts(fleet))
    reached = {host.name: host.facts.reach.address for host in fleet.hosts}
    for number, items in sorted(_shared(seen).items()):
        chosen = [next(address for address in item.used if address.address == number) for item in items]
        caught = [trap(address, item.facts) for item, address in zip(items, chosen, strict=True)]
        if all(
            found and item.bootstrap.address == address
            for found, item, address in zip(caught, items, chosen, strict=True)
        ):
            continue  # chosen_interface names it
        # Where one of them is reached at it, the others have it besides their own, and connects go astray, too.
        contested = number in {reached[item.host] for item in items}
        besides = [pair for pair in zip(items, chosen, strict=True) if contested and reached[pair[0].host] != number]
        yield finding(
            "net.wrong-interface.duplicate-address",
            Severity.FAIL,
            f"{len(items)} hosts would all hand out {number} ({few(sorted({address.name for address in chosen}))}): "
            "connections end on the wrong host",
            tuple(_choice_evidence(item, address) for item, address in list(zip(items, chosen, strict=True))[:4]),
            hosts=tuple(item.host for item in items),
            env=env(),
            fixes=[_take_away(item.host, address) for item, address in besides],
            explains=_EITHER_ANSWERS
            if contested
            else ("net.wrong-interface.unreachable", "net.wrong-neighbour", "collectives"),
        )


def _take_away(host: str, address: Address) -> Fix:
    command = f"sudo ip address del {address.address}/{address.prefix} dev {address.name}"
    return Fix(f"take the address from {host}, if it is another host's", command, host)


# What is sent to an address that two hosts have reaches one or the other.
_EITHER_ANSWERS = (
    "net.wrong-interface.unreachable",
    "net.hostname-resolution.wrong-address",
    "net.wrong-neighbour",
    "net.firewall",
    "net.master-unreachable",
    "net.packet-loss",
    "net.slow",
    "collectives",
)


def _shared(seen: Mapping[str, View]) -> dict[str, list[View]]:
    """Address -> the hosts that would hand it out, where they are several."""
    owners: dict[str, list[View]] = {}
    for item in seen.values():
        for address in item.used:
            if not address.loopback and not address.link_local:
                owners.setdefault(address.address, []).append(item)
    return {number: items for number, items in owners.items() if len(items) > 1}


@fleet_rule("interfaces", "net.wrong-interface.duplicate-address")
def address_of_a_peer(fleet: Fleet) -> Iterator[Finding]:
    """No host carries, as a further address, the one that another host hands out: packets go to whoever answers ARP."""
    fleet.need_several(ALONE)
    seen = views(fleet)
    owners = {address.address: (item, address) for item in seen.values() for address in item.used}
    for item in seen.values():
        own = {address.address for address in item.used}
        for address in item.facts.addresses:
            if address.loopback or address.address in own or address.address not in owners:
                continue
            owner, theirs = owners[address.address]
            if trap(address, item.facts) or trap(theirs, owner.facts):
                continue
            yield finding(
                "net.wrong-interface.duplicate-address",
                Severity.FAIL,
                f"{item.host} also has {address.address} ({address.name}), the address of {owner.host}: what is sent there "
                "reaches either",
                (
                    Evidence(f"{address.name} {address.address}/{address.prefix}", "getifaddrs", host=item.host),
                    _choice_evidence(owner, theirs),
                ),
                hosts=(item.host, owner.host),
                fixes=(_take_away(item.host, address),),
                explains=_EITHER_ANSWERS,
            )


@fleet_rule("interfaces", "net.wrong-interface.unused-duplicate")
def unused_duplicates(fleet: Fleet) -> Iterator[Finding]:
    """Container bridges that have the same address on several hosts: named, and harmless as long as NCCL skips them."""
    fleet.need_several(ALONE)
    groups: dict[tuple[str, str], list[View]] = {}
    for item in views(fleet).values():
        used = {address.name for address in item.used}
        for address in item.facts.addresses:
            found = trap(address, item.facts)
            if found and not address.loopback and not address.link_local and address.name not in used:
                groups.setdefault((address.name, address.address), []).append(item)
    for (name, number), items in sorted(groups.items()):
        if len(items) > 1:
            yield finding(
                "net.wrong-interface.unused-duplicate",
                Severity.INFO,
                f"{name} has {number} on {len(items)} hosts; harmless: NCCL does not use it there",
                tuple(interface_list(item) for item in items[:2]),
                hosts=tuple(item.host for item in items),
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
    env = _advice(seen, tried)
    reach = {host.name: host.facts.reach.address for host in fleet.hosts}
    shared = _shared(seen)
    by_peer: dict[str, list[Attempt]] = {}
    for attempt in tried:
        if attempt.source != attempt.peer:
            by_peer.setdefault(attempt.peer, []).append(attempt)
    told: set[tuple[str, str]] = set()  # host and the address that it does not reach, or does not reach others from
    for network, culprit in _cut_off(seen, tried, shared, reach):
        host = culprit.host
        lost = [
            attempt for attempt in tried if not attempt.ok and (attempt.source, attempt.peer) in culprit.pairs
            and _lies_in(attempt.address, network)
        ]  # fmt: skip
        told |= {(attempt.source, attempt.address) for attempt in lost}
        found = _without_network(seen, host, network, lost, env)
        told |= {(host, one.address) for one in seen[host].used if one.name == found.places[0].nic}
        yield found
    for host, item in seen.items():
        towards = by_peer.get(host, [])
        for address in item.used:
            if address.address in shared or (host, address.address) in told or _is_named_by_choice(item, address):
                continue  # duplicate_addresses names it, what cut the host off, or chosen_interface
            failed = [
                attempt
                for attempt in towards
                if attempt.address == address.address
                and not attempt.ok
                and (attempt.source, attempt.address) not in told
            ]
            elsewhere = [attempt for attempt in towards if attempt.address != address.address and attempt.ok]
            if not failed or not (elsewhere or reach[host] not in ("", address.address)):
                continue
            sources = sorted({attempt.source for attempt in failed})
            proof = [_choice_evidence(item, address)]
            proof += [Evidence(attempt.detail, f"from {attempt.source}", host=attempt.source) for attempt in failed[:3]]
            if elsewhere:
                proof.append(Evidence(elsewhere[0].detail, f"from {elsewhere[0].source}", host=elsewhere[0].source))
            yield finding(
                "net.wrong-interface.unreachable",
                Severity.FAIL,
                f"NCCL would hand out {address.address} ({address.name}), which {few(sources)} cannot reach"
                + (f"; {elsewhere[0].address} of the same host is reachable" if elsewhere else ""),
                proof,
                places=tuple(Place(host, nic=address.name, peer=source) for source in sources[:8]),
                confidence=0.97 if elsewhere else 0.8,
                fixes=_setting_fixes(item),
                env=env(),
                explains=("collectives",),
            )


def _is_named_by_choice(item: View, address: Address) -> bool:
    """Whether :func:`chosen_interface` fails this address where a peer does not reach it."""
    found = trap(address, item.facts)
    return address == item.bootstrap.address and (found.reach == "local" if found else not address.running)


def _lies_in(address: str, network: str) -> bool:
    return ip_address(address) in ip_network(network)


def _cut_off(
    seen: Mapping[str, View], tried: Iterable[Attempt], shared: Mapping[str, object], reach: Mapping[str, str]
) -> Iterator[tuple[str, Blame]]:
    """Network -> a host that reaches none of its peers' addresses there, though it reaches them elsewhere."""
    networks = {
        address.address: str(address.network)
        for item in seen.values()
        for address in item.used
        if address.address not in shared and not address.loopback
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


def _without_network(seen: Mapping[str, View], host: str, network: str, lost: list[Attempt], env: Advice) -> Finding:
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
        (
            interface_list(item),
            *(Evidence(attempt.detail, f"from {attempt.source}", host=attempt.source) for attempt in lost[:3]),
            *_peer_networks(seen, host)[:1],
        ),
        places=(Place(host, nic=name) if name else Place(host),),
        confidence=0.97,
        fixes=(
            Fix(
                "look at link, address, and the switch port's VLAN; compare with a good host",
                f"ip -br link show {name}; ip -br address show {name}" if name else "ip -br link; ip -br address",
                host,
            ),
        ),
        env=env(),
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
    tried = attempts(fleet)
    measured = reachable(tried)
    env = _advice(seen, tried)
    owners: dict[str, set[str]] = {}
    for host, item in seen.items():
        for address in item.facts.addresses:
            owners.setdefault(str(address.network), set()).add(host)
    for host, item in seen.items():
        for address in item.used:
            if address.loopback or measured.get((host, address.address)) is not None:
                continue  # measured: reached, or the finding of another rule
            first = address == item.bootstrap.address
            caught = trap(address, item.facts)
            alone = len(owners[str(address.network)]) < 2
            unrouted = address.link_local and address.family == "inet6"
            if (first and caught) or (caught is None and not alone and not unrouted):
                continue
            yield _odd_network(item, address, first, caught.what if caught else "", seen, env)


def _odd_network(
    item: View, address: Address, first: bool, trap_name: str, seen: Mapping[str, View], env: Advice
) -> Finding:
    unrouted = address.link_local and address.family == "inet6"
    if trap_name:
        why = trap_name
    elif unrouted:
        why = "a link-local address, which works only between hosts whose interfaces are numbered alike"
    else:
        why = f"and no peer has an address in {address.network}"
    return finding(
        f"net.wrong-interface.{'different-subnet' if first else 'extra'}",
        Severity.INFO if unrouted and not trap_name and not first else Severity.WARN,
        f"NCCL would {'hand out' if first else 'also use'} {address.address}/{address.prefix} of {address.name}, {why}",
        (_choice_evidence(item, address), *_peer_networks(seen, item.host)),
        places=(Place(item.host, nic=address.name),),
        confidence=0.8 if trap_name else 0.6,
        fixes=(
            Fix(
                "does a peer get there?",
                f"ping -c 3 {address.address}",
                next(peer for peer in seen if peer != item.host),
            ),
        ),
        env=env(),
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
    tried = attempts(fleet)
    advised = recommendation(seen, tried) if len(seen) > 1 else None
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
        tuple(_choice_evidence(item, item.bootstrap.address) for item in seen.values() if item.bootstrap.address)[:8]
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
