"""Addresses that several hosts have: handed out by all of them, by one beside its own, or by none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nccl_doctor.env.interface_advice import trap
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Address
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import Fleet, fleet_rule
from nccl_doctor.rules.interface_view import ALONE, View, advice, choice_evidence, interface_list, views

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


def shared(seen: Mapping[str, View]) -> dict[str, list[tuple[View, Address]]]:
    """Address -> the hosts that would hand it out, where they are several."""
    owners: dict[str, list[tuple[View, Address]]] = {}
    for item in seen.values():
        for address in item.used:
            if not address.loopback and not address.link_local:
                owners.setdefault(address.address, []).append((item, address))
    return {number: its for number, its in owners.items() if len(its) > 1}


@fleet_rule("interfaces", "net.wrong-interface.duplicate-address")
def duplicate_addresses(fleet: Fleet) -> Iterator[Finding]:
    """No two hosts hand out the same address (docker0 is 172.17.0.1 everywhere; cloned machines)."""
    fleet.need_several(ALONE)
    reached = {host.name: host.facts.reach.address for host in fleet.hosts}
    for number, owners in sorted(shared(views(fleet)).items()):
        if all(trap(address, item.facts) and item.bootstrap.address == address for item, address in owners):
            continue  # the rule on the chosen interface names it
        # Where one of them is reached at it, the others have it besides their own, and connects go astray, too.
        contested = any(reached[item.host] == number for item, _ in owners)
        besides = [(item, address) for item, address in owners if contested and reached[item.host] != number]
        names = sorted({address.name for _, address in owners})
        yield finding(
            "net.wrong-interface.duplicate-address",
            Severity.FAIL,
            f"{len(owners)} hosts would all hand out {number} ({few(names)}): connections end on the wrong host",
            [choice_evidence(item, address) for item, address in owners[:4]],
            hosts=[item.host for item, _ in owners],
            env=advice(fleet),
            fixes=[_take_away(item.host, address) for item, address in besides],
            explains=_EITHER_ANSWERS
            if contested
            else ("net.wrong-interface.unreachable", "net.wrong-neighbour", "collectives"),
        )


def _take_away(host: str, address: Address) -> Fix:
    command = f"sudo ip address del {address.address}/{address.prefix} dev {address.name}"
    return Fix(f"take the address from {host}, if it is another host's", command, host)


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
                    choice_evidence(owner, theirs),
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
