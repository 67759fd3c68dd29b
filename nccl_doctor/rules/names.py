"""Names: what each host resolves its own and its peers' names to, and how long that takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from itertools import chain

import msgspec

from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.machines import Reached, one_machine
from nccl_doctor.facts.mesh import Links, Names, Resolution, Resolver, parsed
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.inventory.names import is_address
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, facts_of, fleet_rule, host_rule
from nccl_doctor.rules.mesh_pairs import unasked

# A look-up takes milliseconds; a name server that does not answer costs 5 s for each name (resolv.conf(5), timeout).
LOOKUP_SECONDS = 1.0
# A word of /etc/hosts that neither sed nor a shell reads as anything else.
_HOSTS_WORD = re.compile(r"[A-Za-z0-9._:-]+")


def _is_loopback(address: str) -> bool:
    return parsed(address).is_loopback


def _quote(host: str, name: str, answer: Resolution) -> Evidence:
    if answer.quoted:
        return Evidence(answer.quoted, source="/etc/hosts", line=answer.line, host=host)
    return Evidence(f"{name} -> {', '.join(answer.addresses)}", source=f"getaddrinfo({name})", host=host)


@fleet_rule("connectivity", "host.named-twice")
def named_twice(fleet: Fleet) -> Iterator[Finding]:
    """Two names in the host list lead to one machine: its GPUs would be given to two sets of ranks.

    Told by the port that ssh reached, the name the machine gives itself, and the address: the same one, or one that it has
    as well (a second network). Containers behind one address have ports of their own, and machines behind a transport
    without addresses are not compared.
    """
    fleet.need_several()
    yield from of_one_machine(fleet, {host: (it.host_name, it.addresses) for host, it in fleet.every(Names).items()})


def of_one_machine(fleet: Fleet, told: Mapping[str, tuple[str, Collection[str]]]) -> Iterator[Finding]:
    """A finding for each machine that has several names. ``told``: what a host calls itself, and the addresses it has."""
    at = {host.name: host.facts.reach for host in fleet.hosts}
    seen = {
        host: Reached(calls_itself, at[host].address, at[host].port, frozenset(addresses))
        for host, (calls_itself, addresses) in sorted(told.items())
    }
    for hosts in one_machine(seen):
        name, addresses = seen[hosts[0]].calls_itself, {at[host].address for host in hosts}
        yield finding(
            "host.named-twice",
            Severity.FAIL,
            f"{' and '.join(hosts) if len(hosts) < 4 else fold(hosts)} are one machine, {name}",
            [_reached(host, seen[host], addresses) for host in hosts],
            places=[Place(host=host) for host in hosts],
            fixes=[Fix("keep one of the names in the host list")],
            explains=("net.wrong-interface.duplicate-address", "net.port-in-use", "collectives"),
        )


def _reached(host: str, machine: Reached, addresses: Collection[str]) -> Evidence:
    """Where a host was reached, and which of the ``addresses`` that others were reached at it has as well."""
    also = sorted(machine.addresses.intersection(addresses) - {machine.address})
    has = f", and has {', '.join(also)} as well" if also else ""
    return Evidence(
        f"{machine.address} port {machine.port} calls itself {machine.calls_itself}{has}", source="ssh", host=host
    )


@fleet_rule(
    "connectivity",
    "net.hostname-resolution.loopback",
    "net.hostname-resolution.unresolved.own-name",
    "net.hostname-resolution.wrong-address",
)
def own_name_is_loopback(fleet: Fleet) -> Iterator[Finding]:
    """A host's own name resolves to a loopback address on that host, to one that it does not have, or to nothing.

    Gloo, the c10d rendezvous and MPI hand the address of the host's own name to their peers; a peer that is told
    127.0.1.1 connects to itself. Debian and Ubuntu installers write such a line into /etc/hosts. Where
    GLOO_SOCKET_IFNAME is set, Gloo does not ask for the name: a warning.
    """
    fleet.need_several()
    seen = fleet.every(Names)
    for host in fleet.hosts:
        if (names := seen.get(host.name)) is None:
            continue
        elsewhere = bool(names.addresses) and not set(names.own.addresses) & set(names.addresses)
        if _is_localhost(names) or (names.own.addresses and elsewhere and names.host_name in {*seen} - {host.name}):
            yield _name_of_another(host.name, names)
        elif not names.own.addresses or elsewhere or _is_loopback(names.own.addresses[0]):
            yield _as_gloo_is_told(_own_name(host.name, names), host, fleet.plan)


def _as_gloo_is_told(item: Finding, host: Host, plan: Plan) -> Finding:
    """A warning where GLOO_SOCKET_IFNAME names the interface: then Gloo does not ask for the host's own name."""
    interfaces, environment = host.want(Interfaces), host.want(Environment)
    known = (interfaces.environment if interfaces else {}, environment.variables if environment else {}, plan.env)
    told = next((of["GLOO_SOCKET_IFNAME"] for of in reversed(known) if "GLOO_SOCKET_IFNAME" in of), "")
    if len(told) < 2:  # Gloo ignores a single character
        return item
    proof = Evidence(f"GLOO_SOCKET_IFNAME={told}", source="environment", host=host.name)
    title = f"{item.title}; Gloo does not ask for it, as GLOO_SOCKET_IFNAME={told}"
    return msgspec.structs.replace(
        item, severity=Severity.WARN, title=title, evidence=(*item.evidence, proof), explains=()
    )


def _about_own_name(
    host: str, id: str, title: str, evidence: Evidence | list[Evidence], fix: Fix, explains: tuple[str, ...] = ()
) -> Finding:
    return finding(
        f"net.hostname-resolution.{id}",
        Severity.FAIL,
        title,
        evidence,
        places=[Place(host=host)],
        fixes=[fix],
        explains=("collectives", *explains),
    )


def _own_name(host: str, names: Names) -> Finding:
    """The own name is nothing, loopback, or elsewhere: Gloo takes its first address that can be bound, else loopback."""
    name, told = names.host_name, names.own.addresses[:1]
    if not told:
        title = f"{host} cannot resolve its own name {name}"
        proof = Evidence(names.own.error or "no address", source=f"getaddrinfo({name})", host=host)
        fix = Fix("add the name with its address to /etc/hosts or DNS", "getent hosts $(hostname)", host)
        return _about_own_name(host, "unresolved.own-name", title, proof, fix)
    quoted = _quote(host, name, names.own)
    if _is_loopback(told[0]):
        title = f"{host}'s own name {name} is {told[0]} on {host}: that is the address its peers are given"
        return _about_own_name(host, "loopback", title, quoted, _own_line_fix(host, names), ("net.wrong-interface",))
    title = f"{host}'s own name {name} is {told[0]}, which {host} does not have"
    own = Evidence(f"{host} has {', '.join(names.addresses)}", source="getifaddrs", host=host)
    fix = _entry_fix(host, name, names.own, names)
    return _about_own_name(host, "wrong-address", title, [quoted, own], fix, ("net.wrong-interface",))


def _is_localhost(names: Names) -> bool:
    """Whether nobody ever named the host: it is ``localhost``, or RHEL's ``localhost.localdomain``."""
    return names.host_name.split(".")[0] == "localhost"


def _name_of_another(host: str, names: Names) -> Finding:
    """Mending /etc/hosts would hide it: the host's name itself is wrong."""
    reached = "themselves" if _is_localhost(names) else f"{names.host_name}, another host"
    return _about_own_name(
        host,
        "wrong-address",
        f"{host} calls itself {names.host_name}: peers that are told this name connect to {reached}",
        [Evidence(names.host_name, source="hostname", host=host), _quote(host, names.host_name, names.own)],
        Fix("give the host its own name", f"sudo hostnamectl set-hostname {shlex.quote(host)}", host),
        ("net.wrong-interface", "net.hostname-resolution.loopback"),
    )


def _own_line_fix(host: str, names: Names) -> Fix:
    """A fix that gives the name its host's address in the quoted line, if the host has just one. Other names there stay."""
    what = "make the name resolve to the address its peers reach"
    words = names.own.quoted.partition("#")[0].split()
    if not names.own.line or not words or not all(map(_HOSTS_WORD.fullmatch, words)):
        return Fix(what, "", host)
    own = [word for word in words[1:] if word.split(".")[0] == names.host_name.split(".")[0]]
    kept = [word for word in words[1:] if word not in own]
    lines = [[words[0], *kept]] * bool(kept) + [[address, *own] for address in _one_address(names)]
    mended = "\\n".join(map(" ".join, lines))
    change = f"s/.*/{mended}/" if lines else "s/^/#/"
    return Fix(what, f"sudo sed -i '{names.own.line}{change}' /etc/hosts", host)


def _one_address(names: Names) -> list[str]:
    """The IPv4 address by which a host is known, if it has but one."""
    found = [address for address in names.addresses if ":" not in address and not _is_loopback(address)]
    return found if len(found) == 1 else []


def _entry_fix(host: str, name: str, answer: Resolution, owner: Names) -> Fix:
    """Put the owner's address into the line of /etc/hosts, where the line is known and the owner has but one."""
    right = _one_address(owner)
    what = f"correct the entry of {name} on {host}"
    if not answer.line:
        return Fix(what, f"getent ahosts {name}", host)
    if not right:
        return Fix(what, f"sudo sed -i '{answer.line}s/^/#/' /etc/hosts", host)
    wrong = answer.quoted.split()[0]
    return Fix(f"{what}: it is {right[0]}", f"sudo sed -i '{answer.line}s/{wrong}/{right[0]}/' /etc/hosts", host)


@fleet_rule("connectivity", "net.hostname-resolution.unresolved")
def peer_name_unresolved(fleet: Fleet) -> Iterator[Finding]:
    """A host cannot resolve the name of another.

    Where some hosts can and others cannot, the resolvers differ (a stale /etc/hosts, a missing DNS server). Where no
    host can, or none knows any other, the hostfile names are aliases that only this machine's ssh config knows: that
    breaks nothing as long as MASTER_ADDR is given in another form, so it is a warning.
    """
    fleet.need_several()
    seen = fleet.every(Names)
    unasked(fleet, seen)
    resolver = Resolver(seen, fleet.of_lost(Names))
    # A host knows its own name (from its /etc/hosts, as containers do); where none knows another's, they are aliases.
    names = [name for name in resolver.names() if not is_address(name)]
    aliases = all({*resolver.answers(name).get((), ()), name} >= {*seen} for name in names)
    for name in resolver.names():
        without = resolver.answers(name).get((), [])
        if not without or is_address(name):
            continue
        everywhere = aliases or len(without) == len(seen)
        told = f"{name} does not resolve on {len(without)} of {len(seen)} hosts"
        yield finding(
            "net.hostname-resolution.unresolved",
            Severity.WARN if everywhere else Severity.FAIL,
            f"no {'other ' if name in seen and name not in without else ''}host can resolve {name}"
            if everywhere
            else told,
            [
                Evidence(f"{name}: {_error(resolver, host, name)}", source=f"getaddrinfo({name})", host=host)
                for host in without
            ],
            places=[Place(host=host, peer=name) for host in without],
            fixes=[Fix(f"add {name} to DNS, or to /etc/hosts of the hosts named", f"getent hosts {name}")],
            explains=(
                "net.hostname-resolution.unresolved.own-name",
                *(("net.master-unreachable", "collectives") if name == fleet.plan.master else ()),
            ),
        )


def _error(resolver: Resolver, host: str, name: str) -> str:
    answer = resolver.answer(host, name)
    return (answer.error if answer else "") or "no address"


@fleet_rule("connectivity", "net.hostname-resolution.wrong-address")
def peer_name_wrong(fleet: Fleet) -> Iterator[Finding]:
    """A host resolves another's name to an address that the other does not have.

    The address is none of the peer's own, and connecting to it did not reach the peer: a stale /etc/hosts or DNS
    entry. (An address that is not the peer's own but does lead to it, through NAT, is no fault.)
    """
    fleet.need_several()
    seen = fleet.every(Names)
    resolver = Resolver(seen, fleet.of_lost(Names))
    links = facts_of(fleet.hosts, Links)
    strangers = {
        (link.peer, link.address, host)
        for host, fact in links.items()
        for link in fact.links
        if link.outcome == "wrong-peer"
    }
    for name in resolver.names():
        if name not in seen or is_address(name):
            continue
        for addresses, hosts in resolver.answers(name).items():
            if not addresses:
                continue
            if addresses[0] in seen[name].addresses and not _is_loopback(addresses[0]):
                # The peer has this address; only another host that answers there as well could make it wrong.
                hosts = [host for host in hosts if (name, addresses[0], host) in strangers] if strangers else []
            for host in hosts:
                if host != name:
                    yield from _wrong_address(host, name, addresses, resolver, seen, links.get(host))


def _wrong_address(
    host: str, name: str, addresses: tuple[str, ...], resolver: Resolver, seen: dict[str, Names], links: Links | None
) -> Iterator[Finding]:
    first = addresses[0]
    tried = [link for link in (links.links if links else ()) if (link.peer, link.address) == (name, first)]
    other = any(link.outcome == "wrong-peer" for link in tried)
    if not other and not _is_loopback(first) and any(link.outcome == "ok" for link in tried):
        return  # not the peer's own address, but it leads there: address translation
    answer = resolver.answer(host, name)
    assert answer is not None
    evidence = [
        _quote(host, name, answer),
        Evidence(f"{name} has {', '.join(seen[name].addresses)}", source="getifaddrs", host=name),
        *(
            Evidence(f"{link.outcome}: {link.detail}", source=f"connect {first}:{link.port}", host=host)
            for link in tried[:1]
        ),
    ]
    what = "where another host answers" if other else f"which {name} does not have"
    yield finding(
        "net.hostname-resolution.wrong-address",
        Severity.FAIL,
        f"{host} takes {name} for {first}, {what}",
        evidence,
        places=[Place(host=host, peer=name)],
        fixes=[_entry_fix(host, name, answer, seen[name])],
        explains=("net.master-unreachable", "net.firewall", "collectives"),
    )


@host_rule("connectivity", "net.hostname-resolution.slow")
def names_are_slow(host: Host, plan: Plan) -> Iterator[Finding]:
    """Half of the names looked up on a host took more than a second: a name server that does not answer is asked first.

    Every rank looks up the master's name and Gloo its own: the job starts late on all hosts, and looks as if it hung.
    """
    names = host.need(Names)
    if names.lookup_s is None:
        raise MissingFact("time of look-ups", "not measured")
    if names.lookup_s < LOOKUP_SECONDS:
        return
    yield host.finding(
        "net.hostname-resolution.slow",
        Severity.WARN,
        f"looking up a name takes {names.lookup_s:.1f} s on {host.name}: all ranks of the job wait for it",
        [
            (f"median of the names looked up: {names.lookup_s:.1f} s", "getaddrinfo"),
            *((line, "/etc/resolv.conf") for line in names.resolver),
        ],
        Fix(
            "remove the name server that does not answer, or let /etc/hosts be asked first (files before dns)",
            f"time getent ahosts {shlex.quote(names.host_name)}; grep hosts: /etc/nsswitch.conf; cat /etc/resolv.conf",
        ),
        places=[Place(host=host.name)],
    )


@fleet_rule("connectivity", "net.hostname-resolution.disagree")
def names_disagree(fleet: Fleet) -> Iterator[Finding]:
    """Hosts resolve one name to different addresses, all of which the named host has.

    Part of the traffic then takes another network than the rest (management instead of data, say). It works, and is
    slow or half encrypted; it is worth a warning.
    """
    fleet.need_several()
    seen = fleet.every(Names)
    resolver = Resolver(seen, fleet.of_lost(Names))
    for name in sorted(seen):
        answers: dict[str, list[str]] = {}
        told = resolver.answers(name)
        for addresses, hosts in told.items() if len(told) > 1 else ():
            others = [host for host in hosts if host != name]
            if others and addresses and addresses[0] in seen[name].addresses:
                answers.setdefault(addresses[0], []).extend(others)
        if len(answers) < 2:
            continue
        most = max(map(len, answers.values()))
        odd = [host for hosts in answers.values() if len(hosts) < most for host in hosts]
        yield finding(
            "net.hostname-resolution.disagree",
            Severity.WARN,
            f"{name} has {len(answers)} different addresses, depending on which host asks",
            [
                Evidence(f"{name} -> {address}", source=f"getaddrinfo({name})", host=", ".join(sorted(hosts)))
                for address, hosts in sorted(answers.items())
            ],
            places=[Place(host=host, peer=name) for host in odd or chain(*answers.values())],
            fixes=[Fix(f"make {name} resolve alike on all hosts", f"getent ahosts {name}")],
        )
