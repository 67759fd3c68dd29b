"""From every host's interfaces to the smallest setting of NCCL_SOCKET_IFNAME that works on all of them, or to none."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from nccl_doctor.env.nccl_version import Version
from nccl_doctor.env.socket_interface import Choice, nccl_interfaces
from nccl_doctor.facts.interfaces import Address, Interfaces
from nccl_doctor.findings.model import EnvAdvice


class Trap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of interface that a job should not use between hosts, known by the beginning of its name."""

    prefix: str
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
    """What to set. Without ``advice``, ``works`` tells "nothing needs setting" (True) from "nothing known works"."""

    works: bool
    reason: str
    advice: EnvAdvice | None = None


@functools.cache
def traps() -> tuple[Trap, ...]:
    """The known traps, longest prefix first."""
    import yaml

    raw: Any = yaml.safe_load((Path(__file__).parent / "interface_traps.yaml").read_text(encoding="utf-8"))
    return tuple(sorted(msgspec.convert(raw, tuple[Trap, ...]), key=lambda trap: -len(trap.prefix)))


def trap(address: Address, facts: Interfaces | None = None) -> Trap | None:
    """Why this interface is a trap, or None. sysfs decides where the name does not (a tun device named ``corp``)."""
    if address.loopback or address.interface.ip.is_loopback:
        return Trap(address.name, "local", "the loopback interface")
    named = next((item for item in traps() if address.name.startswith(item.prefix)), None)
    if named is not None:
        return named
    if address.link_local and address.family == "inet":
        return Trap(address.name, "local", "a link-local network, such as a management controller's USB network")
    device = facts.device(address.name) if facts else None
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


def good(
    host: str, address: Address, everyone: Mapping[str, Interfaces], reached: Mapping[tuple[str, str], bool]
) -> bool:
    """Whether peers can use this address: measured where it was measured, else a shared subnet and no trap."""
    found = trap(address, everyone[host])
    if not address.running or (found is not None and found.reach == "local"):
        return False
    measured = reached.get((host, address.address))
    if measured is not None:
        return measured
    return all(
        any(other.network == address.network and other.address != address.address for other in facts.addresses)
        for peer, facts in everyone.items()
        if peer != host
    )


def _works(
    choices: Mapping[str, Choice],
    everyone: Mapping[str, Interfaces],
    reached: Mapping[tuple[str, str], bool],
) -> bool:
    """Every interface that NCCL would use on every host is good, is no tunnel, and no address stands twice."""
    chosen = [(host, address) for host, choice in choices.items() for address in choice.addresses]
    if len({address.address for _, address in chosen}) < len(chosen):
        return False
    return all(choice.addresses for choice in choices.values()) and all(
        trap(address, everyone[host]) is None and good(host, address, everyone, reached) for host, address in chosen
    )


def _speed(facts: Interfaces, name: str) -> int:
    device = facts.device(name)
    return (device.speed_mbps or 0) if device else 0


def _default_route(facts: Interfaces, name: str) -> bool:
    return any(route.interface == name and route.prefix == 0 for route in facts.routes)


def _groups(
    everyone: Mapping[str, Interfaces], reached: Mapping[tuple[str, str], bool]
) -> list[dict[str, tuple[str, ...]]]:
    """Ways to pick one interface per host: one name for all where possible, else one subnet. Best first."""
    usable = {
        host: tuple(
            dict.fromkeys(
                address.name
                for address in facts.addresses
                if address.family == "inet" and good(host, address, everyone, reached)
            )
        )
        for host, facts in everyone.items()
    }
    first = next(iter(everyone))
    ways: list[dict[str, tuple[str, ...]]] = [
        dict.fromkeys(everyone, (name,)) for name in usable[first] if all(name in names for names in usable.values())
    ]
    for address in everyone[first].addresses:
        if address.name not in usable[first]:
            continue
        same = {
            host: tuple(
                other.name
                for other in facts.addresses
                if other.network == address.network and other.name in usable[host]
            )[:1]
            for host, facts in everyone.items()
        }
        if all(same.values()) and same not in ways:
            ways.append(same)

    def rank(way: Mapping[str, tuple[str, ...]]) -> tuple[bool, int, bool, int]:
        pairs = [(everyone[host], name) for host, names in way.items() for name in names]
        tunnelled = any(
            trap(address, facts) is not None
            for facts, name in pairs
            for address in facts.addresses
            if address.name == name
        )
        slowest = min(_speed(facts, name) for facts, name in pairs)
        routed = all(_default_route(facts, name) for facts, name in pairs)
        return tunnelled, -slowest, not routed, len({name for _, name in pairs})

    return sorted(ways, key=rank)


def recommend_interface(
    everyone: Mapping[str, Interfaces],
    choices: Mapping[str, Choice],
    versions: Mapping[str, Version],
    attempts: Sequence[Attempt] = (),
) -> Recommendation:
    """The smallest NCCL_SOCKET_IFNAME that works on all hosts; none if what NCCL would choose already works.

    ``choices``: what each host's NCCL would use now (:func:`nccl_interfaces`). A proposed value is run through the
    same model on every host before it is recommended.
    """
    reached = reachable(attempts)
    if len(everyone) < 2 or _works(choices, everyone, reached):
        names = sorted({address.name for choice in choices.values() for address in choice.addresses[:1]})
        return Recommendation(True, f"NCCL would choose {', '.join(names)}" if names else "one host needs no network")
    for way in _groups(everyone, reached):
        names = sorted({name for wanted in way.values() for name in wanted})
        value = "=" + ",".join(names)
        tried = {
            host: nccl_interfaces(facts.addresses, {"NCCL_SOCKET_IFNAME": value}, versions[host])
            for host, facts in everyone.items()
        }
        if all(
            tried[host].addresses and all(good(host, item, everyone, reached) for item in tried[host].addresses)
            for host in everyone
        ):
            return Recommendation(True, _reason(way, everyone, bool(reached)), _advice(value, way, everyone, reached))
    return Recommendation(False, "no interface was found whose address every peer can reach")


def _reason(way: Mapping[str, tuple[str, ...]], everyone: Mapping[str, Interfaces], measured: bool) -> str:
    networks = {
        str(address.network)
        for host, names in way.items()
        for address in everyone[host].addresses
        if address.name in names and address.family == "inet"
    }
    where = f"on all hosts it has an address in {', '.join(sorted(networks)[:3])}"
    return f"{where}, and every peer reached it" if measured else f"{where}; not yet proved by connections"


def _advice(
    value: str,
    way: Mapping[str, tuple[str, ...]],
    everyone: Mapping[str, Interfaces],
    reached: Mapping[tuple[str, str], bool],
) -> EnvAdvice:
    return EnvAdvice("NCCL_SOCKET_IFNAME", value, _reason(way, everyone, bool(reached)), versions=">=2.5.6")
