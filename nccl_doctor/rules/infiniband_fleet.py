"""InfiniBand compared between hosts: rails by position, firmware, link layer, and hosts that have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.drift import DriftRow, joined, quoted, row
from nccl_doctor.rules.engine import Fleet, Host, SkipRule, facts_of, fleet_rule
from nccl_doctor.rules.infiniband_view import NO_DEVICE
from nccl_doctor.rules.rails import Rail, apart, kinds_of_rails, rails


def fleet_rails(fleet: Fleet) -> dict[str, list[Rail]]:
    """Host -> rails, by the kind of card that is the fleet's rail; ``SkipRule`` if no host has an RDMA device."""
    facts = fleet.every(InfinibandFact)
    if not any(fact.devices for fact in facts.values()):
        raise SkipRule("no RDMA device on any host" if len(fleet.hosts) > 1 else NO_DEVICE)
    fleet.need_several()
    for host, fact in facts.items():
        for device in fact.devices:
            if not all(port.link_layer for port in device.ports):
                fleet.lack("link layer", f"{device.name}: not told", host)
    return fleet.once(_rails_of)


def _rails_of(hosts: tuple[Host, ...], plan: Plan) -> dict[str, list[Rail]]:
    facts = facts_of(hosts, InfinibandFact)
    kinds = kinds_of_rails(fact for fact in facts.values() if fact.devices)
    return {host: rails(fact, plan, kinds) for host, fact in facts.items()}


@fleet_rule("infiniband", "ib.device-not-found.fewer-than-peers", "ib.device-not-found.none-here")
def equal_rails(fleet: Fleet) -> Iterator[Finding]:
    """Every host has as many rails as most others. None on any host is no finding; none on one host among many is."""
    found = fleet_rails(fleet)
    counts = row("rails", {host: str(len(ports)) for host, ports in found.items()})
    if counts.equal:
        return
    usual = counts.usual_count
    for host, ports in sorted(found.items()):
        if len(ports) >= usual:
            continue
        here = {rail.device.bus_id for rail in ports}
        full = [rail for other in found.values() if len(other) == usual for rail in other]
        missing = sorted({f"{rail.label} ({rail.device.bus_id})" for rail in full if rail.device.bus_id not in here})
        where = f"; the others also have {', '.join(missing[:4])}" if ports and missing else ""
        yield finding(
            "ib.device-not-found.fewer-than-peers" if ports else "ib.device-not-found.none-here",
            Severity.FAIL,
            f"{host} has {len(ports) or 'none'} of {usual} rails{where}",
            [Evidence(f"rails: {len(ports)}; most hosts: {usual}", "/sys/class/infiniband", host=host), quoted(counts)],
            places=[Place(host=host)],
            fixes=[
                Fix(
                    "see whether the cards are on the bus and have their driver",
                    "lspci -nnk | grep -A3 -iE 'mellanox|infiniband'; ls /sys/class/infiniband",
                    host,
                )
            ],
            explains=("ib.rails-differ", "topology.differs", "collectives"),
        )


@fleet_rule("infiniband", "ib.rails-differ", "ib.link-layer-differs", "ib.firmware-differs", "ib.mtu.differs")
def alike(fleet: Fleet) -> Iterator[Finding]:
    """Rails are alike by position: rate, link layer, firmware. The odd hosts are named.

    A rail that is slower on one host slows the ring on all hosts; mixed link layers (InfiniBand here, Ethernet there)
    cannot talk to each other at all. Ports of other boards than a host's rails (storage) are not compared.
    """
    found = {host: ports for host, ports in fleet_rails(fleet).items() if ports}
    for host, ports in found.items():
        for what, untold in (
            ("port rate", [rail for rail in ports if rail.port.active and rail.port.gbps is None]),
            ("HCA firmware", [rail for rail in ports if not rail.device.fw_ver and not rail.efa]),
        ):
            if untold:
                fleet.lack(what, f"{untold[0].label}: not told", host)
    named = bool(fleet.plan.env.get("NCCL_IB_HCA"))
    active = {
        host: [rail for rail in ports if rail.port.active and (named or rail not in apart(ports))]
        for host, ports in found.items()
    }
    rates = row(
        "rail rates (Gb/s)", {host: _each([rail.port.gbps for rail in ports]) for host, ports in active.items()}
    )
    layers = row(
        "link layer",
        {host: ", ".join(sorted({r.port.link_layer or "" for r in ports})) for host, ports in found.items()},
    )
    firmware = row(
        "HCA firmware",
        {
            host: ", ".join(sorted({_firmware(rail) for rail in ports if rail.device.fw_ver}))
            for host, ports in found.items()
        },
    )
    usual = firmware.majority.split(", ")
    other = [
        Place(host=host, nic=rail.label)
        for host in firmware.odd
        for rail in found[host]
        if rail.device.fw_ver and _firmware(rail) not in usual
    ]
    yield from _differs(rates, "ib.rails-differ", Severity.FAIL, _slow_places(active, rates))
    yield from _differs(layers, "ib.link-layer-differs", Severity.FAIL, [])
    yield from _differs(firmware, "ib.firmware-differs", Severity.WARN, other)
    mtus = {host: _each([_mtu(rail) for rail in ports if rail.roce]) for host, ports in found.items()}
    for host in (host for host, text in mtus.items() if "?" in text):
        fleet.lack("rail MTU", "not told", host)
    told = {host: text for host, text in mtus.items() if text and "?" not in text}
    yield from _differs(row("rail MTU (bytes)", told), "ib.mtu.differs", Severity.WARN, [])


def _firmware(rail: Rail) -> str:
    return f"{rail.device.board_id or ''} {rail.device.fw_ver}"


def _mtu(rail: Rail) -> float | None:
    return next((float(interface.mtu) for interface in rail.device.netdevs if interface.mtu), None)


def _each(numbers: Iterable[float | None]) -> str:
    return joined([f"{number:g}" if number is not None else "?" for number in numbers])


def _slow_places(active: dict[str, list[Rail]], rates: DriftRow) -> list[Place]:
    """The rails of the odd hosts that are slower than the same position on a usual host."""
    usual = next((ports for host, ports in active.items() if host not in rates.differing), [])
    by_position = {rail.position: rail.port.gbps or 0.0 for rail in usual}
    return [
        Place(host=host, nic=rail.label)
        for host in rates.odd
        for rail in active.get(host, [])
        if (rail.port.gbps or 0.0) < by_position.get(rail.position, 0.0)
    ]


def _differs(drift: DriftRow, id: str, severity: Severity, places: list[Place]) -> Iterator[Finding]:
    if not drift.differing:
        return
    yield finding(
        id,
        severity,
        f"{drift.subject} differ{'' if drift.subject.endswith(')') else 's'} between hosts"
        + ("" if drift.tie else f": {fold(drift.differing)}"),
        quoted(drift),
        hosts=drift.differing,
        places=places,
        confidence=0.8 if drift.tie else 0.95,
    )
