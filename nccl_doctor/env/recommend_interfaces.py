"""Whether NCCL and Gloo have to be told which network interfaces to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nccl_doctor.env.interface_advice import IFNAME, Attempt, Recommendation, Station, decide, half_reached
from nccl_doctor.env.nccl_conf import Setting
from nccl_doctor.env.recommend_model import Draft, HostNeeds, some
from nccl_doctor.env.socket_interface import Choice, gloo_interfaces
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.findings.model import EnvAdvice


def interfaces(hosts: Sequence[HostNeeds], attempts: Sequence[Attempt], draft: Draft) -> dict[str, str]:
    """NCCL_SOCKET_IFNAME only where NCCL's own choice does not reach every peer; NCCL_SOCKET_FAMILY where mixed.

    Gives the interface that each host ends up with, as far as that is decided.
    """
    stations = {host.host: station for host in hosts if (station := host.station) is not None}
    missing = [host.host for host in hosts if host.host not in stations]
    if missing:
        draft.unknown.append(f"{IFNAME}: what NCCL would choose on {some(missing)} is not known")
    if len(stations) < 2:
        if not missing:
            draft.leave(IFNAME, "one host: nothing leaves it")
        return {}
    found = decide(stations, attempts)
    unproved = [host for host in half_reached(attempts) if host in stations]
    if unproved:
        draft.unknown.append(
            f"{IFNAME}: at no address do all peers reach {some(unproved)}; {'its' if len(unproved) == 1 else 'their'} "
            "interfaces are judged by their networks alone"
        )
    if not found.works:
        draft.unknown.append(f"{IFNAME}: {found.reason}")
        return {}
    choices = found.bare
    if found.harmful:
        _wrongly_set(stations, found, draft)
    elif found.advice is not None:
        taken = {f"{choice.address.name} on {host}" for host, choice in choices.items() if choice.address is not None}
        fact = f"without it NCCL takes {some(sorted(taken)) or 'nothing'}; {found.reason}"
        draft.add(found.advice, 0.95 if attempts and not unproved else 0.6, fact)
        value = Setting(IFNAME, found.advice.value, "recommended")
        choices = {
            host: msgspec.structs.replace(station, settings={**station.settings, IFNAME: value}).handed_out()
            for host, station in stations.items()
        }
    elif found.set_on:
        for place, names in _places(stations, found.set_on):
            draft.note(f"{place} on {some(names)} is not needed: NCCL chooses right by itself")
    if found.harmful or found.advice is None:
        draft.leave(IFNAME, found.reason)
        _family(choices, {host: station.facts for host, station in stations.items()}, draft)
    return {host: choice.address.name for host, choice in choices.items() if choice.address is not None}


def _places(stations: Mapping[str, Station], hosts: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(``place: NCCL_SOCKET_IFNAME=value``, the hosts where it stands so)."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        setting = stations[host].settings[IFNAME]
        found.setdefault(f"{setting.place}: {setting.quote}", []).append(host)
    return sorted(found.items())


def _wrongly_set(stations: Mapping[str, Station], found: Recommendation, draft: Draft) -> None:
    """A setting that keeps NCCL from working, where without it NCCL would."""
    broken = [host for host in found.set_on if not stations[host].handed_out().addresses]
    why = f"it matches no interface on {some(broken)}: NCCL cannot start" if broken else "peers do not reach it"
    said = "; ".join(f"{place} on {some(hosts)}" for place, hosts in _places(stations, found.set_on))
    if found.advice is not None:
        advice = msgspec.structs.replace(found.advice, reason=f"{why}; without it NCCL chooses right")
        draft.add(advice, 0.95, said)
    for place, hosts in _places(stations, [host for host in found.set_on if stations[host].settings[IFNAME].line]):
        draft.note(f"remove {place} on {some(hosts)}: {why}")


def _family(choices: Mapping[str, Choice], known: Mapping[str, Interfaces], draft: Draft) -> None:
    """All hosts must hand out addresses of one family, and one that every host has."""
    families = Counter(choice.address.family for choice in choices.values() if choice.address is not None)
    if set(families) == {"inet6"}:
        why = "the hosts have only IPv6 addresses there: NCCL takes them by itself"
        draft.leave("NCCL_SOCKET_FAMILY", why)
    if len(families) < 2:
        return
    rare = families.most_common()[-1][0]
    said = {"inet": "IPv4", "inet6": "IPv6"}
    fact = f"{families[rare]} of {sum(families.values())} hosts would hand out an {said[rare]} address, the others not"
    for family, value in (("inet", "AF_INET"), ("inet6", "AF_INET6")):
        if all(
            any(item.family == family and not item.loopback and not item.link_local for item in facts.addresses)
            for facts in known.values()
        ):
            reason = "hosts would hand out addresses of different families"
            draft.add(EnvAdvice("NCCL_SOCKET_FAMILY", value, reason), 0.7, fact)
            return
    draft.unknown.append(f"NCCL_SOCKET_FAMILY: {fact}, and no family is there on every host")


def gloo(hosts: Sequence[HostNeeds], taken: Mapping[str, str], draft: Draft) -> None:
    """GLOO_SOCKET_IFNAME where the host's own name resolves to loopback; /etc/hosts is the better place to mend it."""
    name = "GLOO_SOCKET_IFNAME"
    if len(hosts) < 2:
        return
    bad: list[str] = []
    for host in hosts:
        if host.interfaces is None or host.own_addresses is None:
            draft.unknown.append(f"{name}: what {host.host}'s own name resolves to is not known")
            return
        choice = gloo_interfaces(host.interfaces.addresses, None, host.own_addresses)
        if choice is not None and choice.address is not None and choice.address.loopback:
            bad.append(host.host)
    if not bad:
        draft.leave(name, "every host's own name resolves to an address its peers know")
        return
    found = {taken.get(host, "") for host in bad}
    if len(found) == 1 and "" not in found:
        only = tuple(bad) if len(bad) < len(hosts) else ()
        advice = EnvAdvice(name, found.pop(), "else Gloo hands loopback addresses to its peers", hosts=only)
        draft.add(advice, 0.85, f"the own name of {some(bad)} resolves to loopback")
    draft.note(
        f"better than {name}: mend the host's own name on {some(bad)}, so that no job needs it",
        "sudo sed -i 's/^127\\.0\\.1\\.1/#&/' /etc/hosts; getent ahosts $(hostname)",
    )
