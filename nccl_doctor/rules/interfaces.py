"""Interfaces: which ones NCCL and Gloo would choose on each host, and whether peers can reach them there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network

import msgspec

from nccl_doctor.env.hosts import version_of
from nccl_doctor.env.interface_advice import IFNAME, Attempt, Recommendation, Station, decide, reachable, trap
from nccl_doctor.env.knowledge import nccl_release
from nccl_doctor.env.nccl_conf import Setting, effective
from nccl_doctor.env.socket_interface import (
    Choice,
    Filter,
    gloo_interfaces,
    nccl_bootstrap,
    needs_resolver,
    parse_filter,
)
from nccl_doctor.env.versions import Version, show
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Address, Carriers, Interfaces
from nccl_doctor.facts.mesh import Links, Names
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.localise import Blame, Pair, blame
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration


class View(msgspec.Struct, frozen=True):
    """One host as NCCL would see it: its interfaces, the settings in force, and what is chosen.

    ``used`` are all addresses that peers would be given: with an RDMA device only the bootstrap's, otherwise every
    interface that NET/Socket opens. ``assumed``: the NCCL version is not known, the newest known one was taken.
    """

    host: str
    facts: Interfaces
    version: Version
    assumed: bool
    settings: dict[str, Setting]
    bootstrap: Choice
    used: tuple[Address, ...]
    rdma: bool = False
    gloo: Choice | None = None  # None: not known, because the host's own name was not resolved

    @property
    def nccl(self) -> str:
        """``NCCL 2.28.9``, or which version was assumed."""
        return f"NCCL {show(self.version)}" + (" (assumed)" if self.assumed else "")


def attempts(fleet: Fleet, required: bool = False) -> tuple[Attempt, ...]:
    """The connections between hosts that were really tried. With ``required`` hosts without them become unknown."""
    if required:
        fleet.every(Links)
    return fleet.once(_attempts)


def _attempts(hosts: tuple[Host, ...], plan: Plan) -> tuple[Attempt, ...]:
    every = {host.name: links for host in hosts if (links := host.want(Links)) is not None}
    return tuple(
        Attempt(
            source,
            link.peer,
            link.address,
            link.outcome == "ok",
            f"connect {link.address}:{link.port} ({link.peer}): {link.outcome}"
            + (f", {link.detail}" if link.detail else ""),
        )
        for source, links in sorted(every.items())
        for link in links.links
    )


def nccl_version(host: Host, plan: Plan) -> tuple[Version, bool]:
    """The NCCL version to judge by: the user's, else the one found on the host; else the newest known, assumed."""
    release = plan.nccl_version or version_of(host.want(Software))
    return nccl_release(release), not release


def view(host: Host, plan: Plan) -> View:
    """What NCCL would choose on this host. ``MissingFact`` where that hangs on a name that was not resolved here."""
    facts = host.need(Interfaces)
    version, assumed = nccl_version(host, plan)
    settings = effective(facts.environment, facts.conf_files, version, plan.env)
    values = {name: setting.value for name, setting in settings.items()}
    if needs_resolver(comm_id := values.get("NCCL_COMM_ID", "")):
        raise MissingFact("interface choice", f"NCCL_COMM_ID={comm_id}: the name was not resolved")
    bootstrap = nccl_bootstrap(facts.addresses, values, version)
    system = host.want(System)
    rdma = system is not None and bool(system.rdma_devices)
    used = Station(facts, version, settings, rdma).handed_out().addresses
    names = host.want(Names)
    gloo = gloo_interfaces(
        facts.addresses,
        plan.env.get("GLOO_SOCKET_IFNAME", facts.environment.get("GLOO_SOCKET_IFNAME")),
        names.own.addresses if names is not None else None,
    )
    return View(host.name, facts, version, assumed, settings, bootstrap, used, rdma, gloo)


def views(fleet: Fleet) -> dict[str, View]:
    """The view of every host; hosts without one become unknown."""
    return fleet.of_each(lambda host: host.once(view, fleet.plan))


def recommendation(seen: Mapping[str, View], tried: Iterable[Attempt]) -> Recommendation:
    """What to do about NCCL_SOCKET_IFNAME on these hosts: the same answer as ``env recommend`` gives."""
    stations = {host: Station(item.facts, item.version, item.settings, item.rdma) for host, item in seen.items()}
    return decide(stations, tuple(tried))


# --- one host: settings --------------------------------------------------------------------------------------------


@host_rule("interfaces", "net.loopback-down")
def loopback_down(host: Host, plan: Plan) -> Iterator[Finding]:
    """The loopback interface is up: through it go also packets to the host's own other addresses.

    Without it two ranks on one host cannot connect to each other, whatever interface they use.
    """
    facts = host.need(Interfaces)
    found = [address for address in facts.addresses if address.loopback]
    if any(address.up for address in found):
        return
    if not (found or facts.device("lo")):
        raise MissingFact("loopback interface", "getifaddrs shows none")
    yield finding(
        "net.loopback-down",
        Severity.FAIL,
        f"the loopback interface of {host.name} is down: its ranks cannot connect to each other",
        Evidence(f"lo {found[0].address}: not up" if found else "lo has no address", "getifaddrs", host=host.name),
        hosts=(host.name,),
        fixes=(Fix("bring it up", "sudo ip link set lo up", host.name),),
        explains=("collectives",),
    )


@host_rule("interfaces", "net.wrong-interface.no-match")
def interface_setting(host: Host, plan: Plan) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME matches an interface that has an address. If it does not, NCCL fails: there is no fallback.

    It is a list of prefixes, or with ``=`` of exact names; blanks and quotes are part of the names, case counts.
    """
    here = host.once(view, plan)
    setting = here.settings.get(IFNAME)
    if setting is None or "NCCL_COMM_ID" in here.settings or not here.bootstrap.failure:
        return
    wanted = parse_filter(setting.value, here.version)
    assert wanted is not None
    reason = _why_no_match(wanted, setting.value, here)
    yield finding(
        "net.wrong-interface.no-match",
        Severity.FAIL,
        f"{IFNAME}={setting.value} matches no usable interface: {reason}",
        (_quote(setting, host.name), _interface_list(here)),
        hosts=(host.name,),
        fixes=_remove(setting, host.name),
        env=_unset(setting, "it matches no interface"),
        explains=("collectives",),
    )


def _why_no_match(wanted: Filter, value: str, here: View) -> str:
    names = list(dict.fromkeys(address.name for address in here.facts.addresses))
    devices = {device.name for device in here.facts.devices}
    if wanted.exclude:
        return "the exclude list leaves nothing"
    for entry in wanted.names:
        cleaned = entry.strip().strip("\"'").split("#")[0].strip()
        if cleaned != entry and any(name.startswith(cleaned) for name in names):
            return f"blanks, quotes and comments are part of the name; {cleaned!r} exists"
        if entry.lower() in (name.lower() for name in names) and entry not in names:
            return "upper and lower case differ from the interface's name"
        down = [
            address.name
            for address in here.facts.addresses
            if not address.running and (address.name == entry or (not wanted.exact and address.name.startswith(entry)))
        ]
        if down:
            return f"{down[0]} is down (NCCL 2.28.3 and newer skip it)"
        if entry in devices and entry not in names:
            return f"{entry} has no address"
        if wanted.exact and any(name.startswith(entry) for name in names):
            return f"with '=' the whole name must match, and there is no {entry!r}"
    return "no such interface on this host"


def _interface_list(here: View) -> Evidence:
    entries = [
        f"{address.name} {address.address}/{address.prefix}" + ("" if address.running else " (down)")
        for address in here.facts.addresses
        if not address.loopback
    ]
    return Evidence("interfaces: " + (", ".join(entries[:12]) or "none but loopback"), "getifaddrs", host=here.host)


def _quote(setting: Setting, host: str) -> Evidence:
    return Evidence(setting.quote.rstrip("\r"), setting.source, setting.line or None, host)


def _remove(setting: Setting, host: str) -> tuple[Fix, ...]:
    if setting.line:
        return (Fix(f"remove line {setting.line}", f"sudo sed -i '{setting.line}s/^/#/' {setting.source}", host),)
    where = "the command line given to nccl-doctor" if setting.source == "job environment" else "the job's environment"
    return (Fix(f"take it out of {where}", f"unset {setting.name}"),)


def _unset(setting: Setting, reason: str) -> tuple[EnvAdvice, ...]:
    return () if setting.line else (EnvAdvice(setting.name, "", reason, unset=True),)


@host_rule("interfaces", "net.wrong-interface.gloo-no-match")
def gloo_setting(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every name in GLOO_SOCKET_IFNAME is exactly the name of an interface with an address; otherwise Gloo raises.

    Unlike NCCL_SOCKET_IFNAME it knows neither prefixes nor ``^`` nor ``=``.
    """
    facts = host.need(Interfaces)
    source = "job environment" if "GLOO_SOCKET_IFNAME" in plan.env else "environment"
    value = plan.env.get("GLOO_SOCKET_IFNAME", facts.environment.get("GLOO_SOCKET_IFNAME", ""))
    if len(value) < 2:
        return
    names = {address.name for address in facts.addresses}
    entries = value.removesuffix(",").split(",")
    if missing := [entry for entry in entries if entry not in names]:
        setting = Setting("GLOO_SOCKET_IFNAME", value, source)
        syntax = " ('^', '=' and prefixes work in NCCL_SOCKET_IFNAME only)" if missing[0][:1] in ("^", "=") else ""
        yield finding(
            "net.wrong-interface.gloo-no-match",
            Severity.FAIL,
            f"GLOO_SOCKET_IFNAME={value}: no interface is called {missing[0]!r}{syntax}",
            (
                _quote(setting, host.name),
                Evidence(f"interfaces with an address: {', '.join(sorted(names))}", "getifaddrs", host=host.name),
            ),
            hosts=(host.name,),
            fixes=_remove(setting, host.name),
            env=_unset(setting, "it names no interface"),
            explains=("collectives",),
        )


@fleet_rule("interfaces", "net.wrong-interface.gloo-loopback")
def gloo_told_loopback(fleet: Fleet) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME does not name the loopback interface on one of several hosts.

    Of two peers the one with the greater address connects: 127.0.0.1 connects to a peer in 10.0.0.0/8, which works, but
    a peer above it (172.16/12, 192.168/16) is told to connect to 127.0.0.1, which is itself.
    """
    _several(fleet)
    seen = views(fleet)
    for item in seen.values():
        if item.gloo is None or item.gloo.rule != "GLOO_SOCKET_IFNAME" or not item.gloo.addresses:
            continue
        told = item.gloo.addresses[0]
        if not told.loopback:
            continue
        peers = [
            peer.gloo.addresses[0] for peer in seen.values() if peer is not item and peer.gloo and peer.gloo.addresses
        ]
        misled = any(peer.family != told.family or peer.interface.ip > told.interface.ip for peer in peers)  # type: ignore[operator]
        value = fleet.plan.env.get("GLOO_SOCKET_IFNAME") or item.facts.environment.get("GLOO_SOCKET_IFNAME", "")
        setting = Setting("GLOO_SOCKET_IFNAME", value, "environment")
        yield finding(
            "net.wrong-interface.gloo-loopback",
            Severity.FAIL if misled else Severity.WARN,
            f"GLOO_SOCKET_IFNAME={value} makes Gloo hand {told.address} to its peers"
            + (
                ""
                if misled
                else "; it works only because their addresses are lower, so that they need not connect to it"
            ),
            (_quote(setting, item.host), _interface_list(item)),
            hosts=(item.host,),
            fixes=_remove(setting, item.host),
            env=_unset(setting, "it names the loopback interface"),
            explains=("collectives",),
        )


@host_rule("interfaces")
def configuration_files(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every nccl.conf that NCCL would read can be read: what stands in it is judged with the other variables."""
    for file in host.need(Interfaces).conf_files:
        if file.outcome == "not-permitted":
            raise MissingFact(
                f"settings in {file.path}",
                "not permitted to read it (NCCL, run by this user, would not read it either)",
            )
    return iter(())


@host_rule("interfaces", "net.wrong-interface.ifname-syntax", "net.wrong-interface.prefix")
def interface_syntax(host: Host, plan: Plan) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME means what its author meant: no blanks, ``^`` and ``=`` only in front, no prefix too wide."""
    here = host.once(view, plan)
    setting = here.settings.get(IFNAME)
    if setting is None or here.bootstrap.failure:
        return
    wanted = parse_filter(setting.value, here.version)
    if wanted is None:
        if setting.value:
            yield _syntax(setting, host.name, "a single character is ignored: NCCL chooses by itself")
        return
    for entry in wanted.names:
        if entry != entry.strip() or entry[:1] in ("^", "=", '"', "'"):
            yield _syntax(
                setting, host.name, f"{entry!r} is taken literally ('^' and '=' count only in front of the list)"
            )
            return
    yield from _too_wide(wanted, setting, here)


def _syntax(setting: Setting, host: str, why: str) -> Finding:
    cleaned = ",".join(part.strip().strip("\"'").lstrip("^=") for part in setting.value.lstrip("^=").split(","))
    lead = setting.value[: len(setting.value) - len(setting.value.lstrip("^="))]
    return finding(
        "net.wrong-interface.ifname-syntax",
        Severity.WARN,
        f"{IFNAME}={setting.value!r}: {why}",
        _quote(setting, host),
        hosts=(host,),
        fixes=(Fix(f"write it as {IFNAME}={lead}{cleaned}", host=host),)
        if len(cleaned) > 1
        else _remove(setting, host),
    )


def _too_wide(wanted: Filter, setting: Setting, here: View) -> Iterator[Finding]:
    if wanted.exact or wanted.exclude:
        return
    names = [address.name for address in here.used]
    exact = [name for name in names if name in wanted.names]
    extra = [name for name in names if name not in wanted.names]
    if not exact or not extra:
        return  # "eth" or "ib" was meant as a prefix
    yield finding(
        "net.wrong-interface.prefix",
        Severity.WARN,
        f"{IFNAME}={setting.value} is a prefix: besides {exact[0]} it takes {', '.join(extra)}",
        (_quote(setting, here.host), _interface_list(here)),
        hosts=(here.host,),
        fixes=(Fix(f"for the exact name: {IFNAME}==" + ",".join(wanted.names)),),
        env=(EnvAdvice(IFNAME, "=" + ",".join(wanted.names), "an exact match, not a prefix", versions=">=2.5.6"),),
    )


# --- all hosts: the choice -----------------------------------------------------------------------------------------


def _several(fleet: Fleet) -> None:
    if len(fleet.hosts) < 2:
        raise SkipRule("one host: nothing leaves it")


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
    fixes = list(_remove(setting, item.host))
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
    _several(fleet)
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
    proof = (_interface_list(item), *((_quote(comm_id, item.host),) if comm_id else ()))
    return finding(
        "net.wrong-interface.none",
        Severity.FAIL,
        f"{item.nccl} finds no interface to use: {item.bootstrap.failure}",
        proof,
        hosts=(item.host,),
        fixes=_remove(comm_id, item.host)
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
        (_choice_evidence(item, address), _interface_list(item)),
        places=(Place(item.host, nic=address.name),),
        confidence=1.0 if loopback else 0.95,
        fixes=_setting_fixes(item),
        env=env(),
        explains=("collectives",),
    )


@fleet_rule("interfaces", "net.wrong-interface.duplicate-address")
def duplicate_addresses(fleet: Fleet) -> Iterator[Finding]:
    """No two hosts hand out the same address (docker0 is 172.17.0.1 everywhere; cloned machines)."""
    _several(fleet)
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
    _several(fleet)
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
    _several(fleet)
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
                tuple(_interface_list(item) for item in items[:2]),
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
    _several(fleet)
    seen = views(fleet)
    tried = attempts(fleet, required=True)
    env = _advice(seen, tried)
    reach = {host.name: host.facts.reach.address for host in fleet.hosts}
    shared = _shared(seen)
    by_peer: dict[str, list[Attempt]] = {}
    for attempt in tried:
        if attempt.source != attempt.peer:
            by_peer.setdefault(attempt.peer, []).append(attempt)
    told: set[tuple[str, str]] = set()
    for network, culprit in _cut_off(seen, tried, shared, reach):
        (host,) = culprit.hosts
        lost = [
            attempt for attempt in tried if not attempt.ok and (attempt.source, attempt.peer) in culprit.pairs
            and _lies_in(attempt.address, network)
        ]  # fmt: skip
        told |= {(attempt.source, attempt.address) for attempt in lost}
        yield _without_network(seen, host, network, lost, env)
    for host, item in seen.items():
        towards = by_peer.get(host, [])
        for address in item.used:
            if address.address in shared:
                continue  # duplicate_addresses names it
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
            if culprit.direction in ("out", "both") and other_way.intersection(culprit.pairs):
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
        what = f"{host} has no address in {network}, as its {name} is down or has none"
    else:
        what = f"{host} has no interface in {network}"
    return finding(
        "net.wrong-interface.unreachable" if here is not None else "net.wrong-interface.missing",
        Severity.FAIL,
        f"{what}; NCCL would hand out addresses there on {few(peers)} ({few(named)})",
        (
            _interface_list(item),
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
    _several(fleet)
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
    return tuple(_interface_list(item) for item in peers)


@host_rule("interfaces", "net.rp-filter.strict")
def reverse_path_filter(host: Host, plan: Plan) -> Iterator[Finding]:
    """Where a host has two addresses in one network, strict reverse-path filtering is off.

    With rp_filter = 1 the kernel drops what arrives on the interface it would not answer through.
    """
    facts, system = host.need(Interfaces), host.need(System)
    groups: dict[str, set[str]] = {}
    for address in facts.addresses:
        if address.family == "inet" and address.running and not trap(address, facts) and address.prefix < 32:
            groups.setdefault(str(address.network), set()).add(address.name)
    overall = system.sysctl_numbers("net.ipv4.conf.all.rp_filter")
    for network, names in sorted(groups.items()):
        if len(names) < 2:
            continue
        if not overall:
            raise MissingFact("net.ipv4.conf.all.rp_filter", "not readable")
        strict = [
            name
            for name in sorted(names)
            if max(overall + system.sysctl_numbers(f"net.ipv4.conf.{name}.rp_filter")) == 1
        ]
        if strict:
            yield finding(
                "net.rp-filter.strict",
                Severity.WARN,
                f"{', '.join(sorted(names))} share {network}: strict rp_filter drops what arrives on the second",
                [
                    Evidence(
                        f"net.ipv4.conf.{name}.rp_filter = 1 (own or all)", "/proc/sys/net/ipv4/conf", host=host.name
                    )
                    for name in strict[:4]
                ],
                hosts=(host.name,),
                fixes=[
                    Fix(
                        "loose mode, until the next boot",
                        f"sudo sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{strict[-1]}.rp_filter=2",
                        host.name,
                    )
                ],
            )


@host_rule("interfaces", "net.link-flapping", "net.link-flapping.past")
def links_stay_up(host: Host, plan: Plan) -> Iterator[Finding]:
    """The link under each interface that NCCL or Gloo would use stays up: a bond's ports and a VLAN's interface count, too.

    The kernel counts how often a link went down. Two readings, at the start and at the end of the run, tell what happens
    now; the total is judged per day of uptime, as it is never reset: a bad day long ago is a warning, not a fault.
    """
    facts, here = host.need(Interfaces), host.once(view, plan)
    # A flapping link may have been down when the interfaces were read: it is used whenever it is up.
    up = tuple(msgspec.structs.replace(address, running=True) for address in facts.addresses)
    all_up = Station(msgspec.structs.replace(facts, addresses=up), here.version, here.settings, here.rdma)
    gloo = here.gloo.addresses if here.gloo else ()
    carries: dict[str, list[str]] = {}  # device -> the interfaces that stand on it, or are it
    for name in sorted({address.name for address in (*all_up.handed_out().addresses, *gloo)}):
        for device in facts.standing_on(name):
            carries.setdefault(device.name, []).append(name)
    again = host.need(Carriers)
    counted = {device.name: device.losses for device in facts.devices if device.name in carries}
    if all(losses is None for losses in counted.values()):
        raise SkipRule("the kernel does not count how often links go down")
    seconds = again.read_at_s - facts.read_at_s
    days = max((facts.uptime_s or 86400.0) / 86400.0, 1.0)
    running = {address.name for address in facts.addresses if address.running}
    untold: list[str] = []
    for name, before in counted.items():
        total, above = again.losses.get(name), carries[name]
        if before is None or total is None:
            untold.append(name)
            continue
        link = f"the link of {name}" + ("" if name in above else f", which {few(above)} stands on,")
        if total > before:
            now = f"{before} -> {total} in {seconds:.1f} s"
            yield _flapping(host.name, name, Severity.FAIL, f"{link} goes down and up right now", now)
        elif total / days >= value("net.link-losses.total") and running.intersection(above):
            since = f" in {duration(facts.uptime_s)} of uptime" if facts.uptime_s else ""
            yield _flapping(host.name, name, Severity.WARN, f"{link} went down {total} times{since}", f"{total}{since}")
    if untold:
        raise MissingFact(f"how often the link of {few(untold)} goes down", "not counted at both readings")


def _flapping(host: str, name: str, severity: Severity, title: str, count: str) -> Finding:
    now = severity is Severity.FAIL
    return finding(
        "net.link-flapping" if now else "net.link-flapping.past",
        severity,
        title,
        Evidence(f"carrier_down_count {count}", f"/sys/class/net/{name}/carrier_down_count", host=host),
        places=(Place(host, nic=name),),
        confidence=1.0 if now else 0.8,
        fixes=(
            Fix(
                "see when, and what the driver says; then cable, transceiver and switch port",
                f"sudo journalctl -k | grep -i {name} | tail; sudo ethtool {name}; sudo ethtool -m {name}",
                host,
            ),
        ),
        explains=(
            "net.packet-loss",
            "net.slow",
            "net.latency",
            "net.firewall",
            "net.master-unreachable",
            *(
                f"net.wrong-interface.{what}"
                for what in ("down", "none", "loopback", "local", "unreachable", "missing")
            ),
            "collectives",
        )
        if now
        else (),
    )


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
        text + ("" if len(groups) == 1 else f" on {few([item.host for item in items])}")
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
        outcome = "; nothing needs setting"
    else:
        outcome = "; no NCCL_SOCKET_IFNAME is known to help: no network has an address of every host that peers reach"
    yield finding(
        "net.interface-choice",
        Severity.INFO,
        summary + outcome,
        tuple(_choice_evidence(item, item.bootstrap.address) for item in seen.values() if item.bootstrap.address)[:8]
        or tuple(_interface_list(item) for item in seen.values())[:8],
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


def handed_out(host: Host, plan: Plan) -> tuple[Address, ...]:
    """For the connection tests: the addresses NCCL would hand out on this host, the bootstrap's first."""
    return host.once(view, plan).used
