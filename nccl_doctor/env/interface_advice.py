"""From every host's interfaces to the smallest setting of NCCL_SOCKET_IFNAME that works on all of them, or to none."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from nccl_doctor.env.nccl_conf import Setting
from nccl_doctor.env.socket_interface import Choice, nccl_bootstrap, nccl_interfaces
from nccl_doctor.env.versions import Version
from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.interfaces import Address, Interfaces
from nccl_doctor.findings.model import EnvAdvice

IFNAME = "NCCL_SOCKET_IFNAME"


class Trap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of interface that a job should not use between hosts. ``name``: a regular expression for its name."""

    name: str
    reach: Literal["local", "tunnel"]
    what: str


class Attempt(msgspec.Struct, frozen=True):
    """One connection that was tried for real: from ``source`` to ``peer`` at ``address``."""

    source: str
    peer: str
    address: str
    ok: bool
    detail: str = ""  # what happened, as it is quoted: "connect 10.0.0.3:41233: timed out after 3.0 s"


class Recommendation(msgspec.Struct, frozen=True):
    """What to set, or to remove. Without ``advice``, ``works`` tells "nothing needs setting" from "nothing works".

    ``set_on`` are the hosts on which the variable is set and need not be; with ``harmful`` it must not be.
    """

    works: bool
    reason: str
    advice: EnvAdvice | None = None
    set_on: tuple[str, ...] = ()
    harmful: bool = False
    bare: Mapping[str, Choice] = {}  # what each host takes where NCCL_SOCKET_IFNAME is not set


class Station(msgspec.Struct, frozen=True):
    """One host of a fleet: its interfaces, and what NCCL there sees set. ``rdma``: it has an RDMA device.

    With an RDMA device NCCL hands out the bootstrap's address only, otherwise those of all interfaces it opens.
    """

    facts: Interfaces
    version: Version
    settings: Mapping[str, Setting] = {}
    rdma: bool = False

    def handed_out(self, *, without: str = "") -> Choice:
        """The addresses peers are given, the bootstrap's first; as if the variable ``without`` were not set."""
        values = {name: setting.value for name, setting in self.settings.items() if name != without}
        every = nccl_interfaces(self.facts.addresses, values, self.version)
        if "NCCL_COMM_ID" not in values:
            return msgspec.structs.replace(every, addresses=every.addresses[:1]) if self.rdma else every
        first = nccl_bootstrap(self.facts.addresses, values, self.version)
        rest = () if self.rdma else every.addresses
        return msgspec.structs.replace(first, addresses=tuple(dict.fromkeys((*first.addresses, *rest))))


@functools.cache
def traps() -> tuple[Trap, ...]:
    """The known traps."""
    return msgspec.convert(read_yaml(Path(__file__).parent / "interface_traps.yaml"), tuple[Trap, ...])


@functools.lru_cache(maxsize=4096)
def _named_trap(name: str) -> Trap | None:
    return next((item for item in traps() if re.fullmatch(item.name, name)), None)


def trap(address: Address, facts: Interfaces) -> Trap | None:
    """Why this interface is a trap, or None. sysfs decides where the name does not (a tun device named ``corp``)."""
    if address.loopback:
        return Trap(address.name, "local", "the loopback interface")
    named = _named_trap(address.name)
    if named is not None:
        return named
    if address.family == "inet" and address.link_local:
        return Trap(address.name, "local", "a link-local network, such as a management controller's USB network")
    device = facts.device(address.name)
    if device is not None and device.kind in ("tun", "wireguard"):
        return Trap(address.name, "tunnel", "a VPN tunnel")
    return None


def reachable(attempts: Iterable[Attempt]) -> dict[tuple[str, str], bool]:
    """(host, address) -> whether every peer that tried it got there. What nobody tried is not in it."""
    found: dict[tuple[str, str], bool] = {}
    for attempt in attempts:
        key = attempt.peer, attempt.address
        found[key] = found.get(key, True) and attempt.ok
    return found


def _by_peer(attempts: Iterable[Attempt]) -> dict[str, dict[str, list[bool]]]:
    """Host -> its address -> how each other host's attempt ended."""
    found: dict[str, dict[str, list[bool]]] = {}
    for attempt in attempts:
        if attempt.source != attempt.peer:
            found.setdefault(attempt.peer, {}).setdefault(attempt.address, []).append(attempt.ok)
    return found


def half_reached(attempts: Iterable[Attempt]) -> tuple[str, ...]:
    """The hosts none of whose addresses every peer gets to, as behind a firewall: their interfaces are not proved."""
    return tuple(sorted(host for host, tried in _by_peer(attempts).items() if not any(map(all, tried.values()))))


def _measured(attempts: Iterable[Attempt]) -> dict[tuple[str, str], bool]:
    """As :func:`reachable`; where no address of a host is reached by all, those that some reach count.

    A host that nobody reaches at all is left out: that tells nothing of which interface is the right one.
    """
    found: dict[tuple[str, str], bool] = {}
    for host, tried in _by_peer(attempts).items():
        enough = next((test for test in (all, any) if any(map(test, tried.values()))), None)
        if enough:
            found.update({(host, address): enough(ended) for address, ended in tried.items()})
    return found


class Fleet(msgspec.Struct, frozen=True):
    """All hosts' interfaces, what was measured, and which hosts have an address in which network."""

    everyone: dict[str, Interfaces]
    reached: dict[tuple[str, str], bool]
    networks: dict[str, set[str]]

    def good(self, host: str, address: Address) -> bool:
        """Whether peers can use this address: measured where it was, else no trap and a network that all hosts have."""
        found = trap(address, self.everyone[host])
        if not address.running or (found is not None and found.reach == "local"):
            return False
        measured = self.reached.get((host, address.address))
        if measured is not None:
            return measured
        return len(self.networks[str(address.network)]) == len(self.everyone)

    def all_good(self, chosen: Mapping[str, Sequence[Address]]) -> bool:
        """Every host has something, all of it good, and no address stands twice."""
        numbers = [address.address for addresses in chosen.values() for address in addresses]
        return (
            all(chosen.values())
            and len(set(numbers)) == len(numbers)
            and all(self.good(host, address) for host, addresses in chosen.items() for address in addresses)
        )

    def tunnelled(self, chosen: Mapping[str, Sequence[Address]]) -> bool:
        """Whether any of these addresses is a tunnel's, or another trap."""
        return any(trap(address, self.everyone[host]) for host, addresses in chosen.items() for address in addresses)


def _fleet(everyone: Mapping[str, Interfaces], attempts: Iterable[Attempt]) -> Fleet:
    networks: dict[str, set[str]] = {}
    for host, facts in everyone.items():
        for address in facts.addresses:
            networks.setdefault(str(address.network), set()).add(host)
    return Fleet(dict(everyone), _measured(attempts), networks)


def _speed(facts: Interfaces, name: str) -> int:
    device = facts.device(name)
    return (device.speed_mbps or 0) if device else 0


def _default_route(facts: Interfaces, name: str) -> bool:
    return any(route.interface == name and route.prefix == 0 for route in facts.routes)


def _ways(fleet: Fleet) -> list[dict[str, str]]:
    """Ways to pick one interface per host: one name for all where possible, else one network. Best first."""
    usable = {
        host: {
            address.name: address
            for address in reversed(facts.addresses)
            if address.family == "inet" and fleet.good(host, address)
        }
        for host, facts in fleet.everyone.items()
    }
    first = next(iter(usable.values()))
    ways = [dict.fromkeys(usable, name) for name in first if all(name in names for names in usable.values())]
    for network in {str(address.network) for address in first.values()}:
        same = {
            host: next((name for name, address in sorted(names.items()) if str(address.network) == network), "")
            for host, names in usable.items()
        }
        if all(same.values()) and same not in ways:
            ways.append(same)

    def rank(way: Mapping[str, str]) -> tuple[bool, int, bool, int, list[str]]:
        tunnelled = any(trap(usable[host][name], fleet.everyone[host]) for host, name in way.items())
        slowest = min(_speed(fleet.everyone[host], name) for host, name in way.items())
        routed = all(_default_route(fleet.everyone[host], name) for host, name in way.items())
        names = sorted(set(way.values()))
        return tunnelled, -slowest, not routed, len(names), names

    return sorted(ways, key=rank)


def _recommend(
    stations: Mapping[str, Station], choices: Mapping[str, Choice], attempts: Sequence[Attempt]
) -> Recommendation:
    """The smallest NCCL_SOCKET_IFNAME that works on all hosts; none if what NCCL would choose already works.

    ``choices``: what each host's NCCL would use now (:func:`nccl_interfaces`). A proposed value is run through the
    same model on every host before it is recommended.
    """
    if len(stations) < 2:
        return Recommendation(True, "one host needs no network")
    fleet = _fleet({host: station.facts for host, station in stations.items()}, attempts)
    chosen = {host: choice.addresses for host, choice in choices.items()}
    works = fleet.all_good(chosen)
    for way in _ways(fleet) if not works or fleet.tunnelled(chosen) else ():
        value = "=" + ",".join(sorted(set(way.values())))
        tried = {
            host: nccl_interfaces(station.facts.addresses, {IFNAME: value}, station.version).addresses
            for host, station in stations.items()
        }
        if not fleet.all_good(tried):
            continue
        if works and fleet.tunnelled(tried):
            break  # nothing but tunnels: what NCCL takes by itself is as good
        reason = f"on all hosts it is an interface of one network, {_proof(attempts)}"
        return Recommendation(True, reason, EnvAdvice(IFNAME, value, reason, versions=">=2.5.6"))
    if works:
        names = sorted({address.name for addresses in chosen.values() for address in addresses})
        return Recommendation(True, f"NCCL uses {', '.join(names)} by itself, {_proof(attempts)}")
    return Recommendation(False, f"no setting of {IFNAME} is known to work: no network is common to all hosts")


def decide(stations: Mapping[str, Station], attempts: Sequence[Attempt] = ()) -> Recommendation:
    """What to do about NCCL_SOCKET_IFNAME on these hosts, as they are set now; removing it comes before setting it."""
    set_on = tuple(host for host, item in stations.items() if IFNAME in item.settings)
    bare = {host: item.handed_out(without=IFNAME) for host, item in stations.items()}
    chosen = {**bare, **{host: stations[host].handed_out() for host in set_on}}
    now = _recommend(stations, chosen, attempts)
    if not set_on or len(stations) < 2:
        return msgspec.structs.replace(now, bare=bare)
    fine = now.works and now.advice is None
    without = _recommend(stations, bare, attempts)
    if without.works and without.advice is None:
        if fine:
            return msgspec.structs.replace(without, bare=bare, set_on=set_on)
        places = ", ".join(f"{stations[host].settings[IFNAME].place} on {host}" for host in set_on[:3])
        reason = f"nothing needs setting once {IFNAME} is removed ({places})"
        removable = tuple(host for host in set_on if not stations[host].settings[IFNAME].line)  # no line of a file
        hosts = () if len(removable) == len(stations) else removable
        advice = EnvAdvice(IFNAME, "", reason, unset=True, hosts=hosts) if removable else None
        return Recommendation(True, reason, advice, set_on, harmful=True, bare=bare)
    values = {stations[host].settings[IFNAME].value for host in set_on}
    if fine and len(values) == 1 and len(set_on) == len(stations):
        reason = "set already on every host, and it works"
        advice = EnvAdvice(IFNAME, values.pop(), reason, versions=">=2.5.6")
        return Recommendation(True, reason, advice, bare=bare)
    return msgspec.structs.replace(now, bare=bare)


def _proof(attempts: Sequence[Attempt]) -> str:
    if unproved := half_reached(attempts):
        return f"not proved by connections to {', '.join(unproved[:4])}{' and others' if len(unproved) > 4 else ''}"
    return "and peers reached it" if attempts else "not yet proved by connections"
