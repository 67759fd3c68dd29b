"""RDMA ports of one host: are the rails up, at full rate, with jumbo frames?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.infiniband_tools import ToolTextError, parse_ibv_devinfo
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.infiniband_view import (
    cable_fixes,
    card,
    far_end,
    linked_up,
    own_view,
    place,
    rails_of,
    roce_rails,
    sysfs,
    with_devices,
)
from nccl_doctor.rules.rails import Rail, apart
from nccl_doctor.rules.thresholds import value


@host_rule("infiniband", "ib.port-down", "ib.port-down.no-subnet-manager", "ib.port-down.disabled", "ib.port-down.all")
def ports_up(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every rail's port is ACTIVE: NCCL leaves out a port that is not, without a word at the default log level.

    Down ports of another kind of card than the rails (Ethernet management NICs) are not called rails. INIT with a
    physical link means that no subnet manager has configured the port. A warning, unless NCCL_IB_HCA of the job names
    them: where every card with two ports has one of them up, the others, which may have no cable; several ports of
    another board than the rails', which may be storage's. Where no port has had a link since boot, the network is
    perhaps not used at all: a warning, too.
    """
    ports = rails_of(host, plan)
    down = [rail for rail in ports if not rail.port.active]
    if len(down) == len(ports):
        yield _all_down(host, down)
        return
    named = bool(plan.env.get("NCCL_IB_HCA"))
    others = [] if named else apart(ports)
    storage = [rail for rail in others if rail in down]
    spare = [] if named else _spare([rail for rail in ports if rail not in others])
    naming = _naming([rail for rail in ports if rail not in spare and rail not in others])
    if spare:
        words = "are down, each beside an active one of its card: spare ports, or a whole rail is missing"
        yield _perhaps_down(host, spare, words, naming)
    if storage:
        words = "of another board than the rails' are down: storage's, or whole rails are missing"
        yield _perhaps_down(host, storage, words, naming)
    for rail in down:
        if rail not in spare and rail not in storage:
            yield _down(host, rail, f"{len(ports) - len(down)} of {len(ports)} rails are active")


def _all_down(host: Host, down: list[Rail]) -> Finding:
    unused = all(rail.port.linked is False and not linked_up(rail) for rail in down)
    never = ", nor has had a link since boot" if unused else ""
    return host.finding(
        "ib.port-down.all",
        Severity.WARN if unused or all(rail.roce for rail in down) else Severity.FAIL,
        f"none of the {len(down)} RDMA ports is active{never}: NCCL would use TCP",
        [_state(host, rail) for rail in down[:4]],
        *_port_fixes(host, down[0]),
        places=[place(host, rail) for rail in down],
        confidence=0.9,
        explains=("ib.device-not-found", "ib.gid-index", "collectives"),
    )


def _perhaps_down(host: Host, ports: list[Rail], words: str, naming: Fix) -> Finding:
    return host.finding(
        "ib.port-down",
        Severity.WARN,
        f"{len(ports)} ports {words}",
        [_state(host, rail) for rail in ports[:4]],
        naming,
        *_port_fixes(host, ports[0]),
        places=[place(host, rail) for rail in ports],
        confidence=0.6,
    )


def _down(host: Host, rail: Rail, others: str) -> Finding:
    state, physical = rail.port.state or "", rail.port.phys_state or ""
    if "INIT" in state and linked_up(rail):
        id, words = "ib.port-down.no-subnet-manager", "waits for a subnet manager (INIT)"
    elif "Disabled" in physical:
        id, words = "ib.port-down.disabled", "is switched off or unplugged (Disabled)"
    else:
        id, words = "ib.port-down", f"is down ({physical.split(':')[-1].strip() or state})"
    return host.finding(
        id,
        Severity.FAIL,
        f"rail {rail.label} {words}; {others}",
        [
            sysfs(host, rail, f"state {state}", "state"),
            sysfs(host, rail, f"phys_state {physical}", "phys_state"),
            card(host, rail),
        ],
        *_port_fixes(host, rail),
        places=[place(host, rail)],
        explains=("ib.rate", "ib.rails-differ", "ib.gid-index", "collectives"),
    )


def _state(host: Host, rail: Rail) -> Evidence:
    return sysfs(host, rail, f"state {rail.port.state}, phys_state {rail.port.phys_state}")


def _naming(usual: list[Rail]) -> Fix:
    names = ",".join(rail.label for rail in usual)
    return Fix("if they are no rails, name the rails for the job", f"export NCCL_IB_HCA={shell_word('=' + names)}")


def _port_fixes(host: Host, rail: Rail) -> list[Fix]:
    """What to do about a port that is not active."""
    waits = "INIT" in (rail.port.state or "")  # its cable is good
    fixes = [own_view(rail), *(far_end(host, rail) if waits and linked_up(rail) else cable_fixes(host, rail))]
    if rail.roce and rail.device.netdevs:
        fixes.insert(0, Fix("bring the interface up", f"sudo ip link set {shell_word(rail.device.netdevs[0].name)} up"))
    if waits:
        asked = f"sudo sminfo -C {shell_word(rail.device.name)} -P {rail.port.port}"
        fixes.insert(0, Fix("see whether a subnet manager answers on this port", asked))
    return fixes


def _spare(ports: list[Rail]) -> list[Rail]:
    """The ports that are down beside an active one, where that is so on every card with several ports."""
    cards: dict[str, list[Rail]] = {}
    for rail in ports:
        card = (rail.device.bus_id or "").rpartition(".")[0]  # its ports may be functions of one PCI device
        cards.setdefault(card or rail.device.name, []).append(rail)
    several = [card for card in cards.values() if len(card) > 1]
    even = all({rail.port.active for rail in card} == {True, False} for card in several)
    return [rail for card in several for rail in card if not rail.port.active] if even else []


@host_rule("infiniband", "ib.rate.degraded")
def equal_rates(host: Host, plan: Plan) -> Iterator[Finding]:
    """All active rails run at the same rate: a link that trained at fewer lanes or a lower speed halves its rail.

    Where the slower ones are the majority, or several ports of another board (storage cards), who is odd is not known: a
    warning.
    """
    ports = rails_of(host, plan)
    active = [rail for rail in ports if rail.port.active]
    if not active:
        raise SkipRule("no active rail")
    best = max(rail.port.gbps or 0.0 for rail in active)
    slow = [rail for rail in active if rail.port.gbps is not None and rail.port.gbps < best]
    fast = [rail for rail in active if rail.port.gbps == best]
    other = [] if plan.env.get("NCCL_IB_HCA") else [rail for rail in apart(ports) if rail in slow]
    rails = [rail for rail in slow if rail not in other]
    if len(rails) > len(fast):
        other, rails = slow, []
    if other:
        rates = ", ".join(sorted({f"{rail.port.gbps:g}" for rail in other}))
        yield host.finding(
            "ib.rate.degraded",
            Severity.WARN,
            f"{len(other)} of {len(active)} RDMA ports run at {rates} Gb/s, the others at {best:g} Gb/s: are all of them rails?",
            [
                *(sysfs(host, rail, rail.port.rate or "", "rate") for rail in (*other[:3], fast[0])),
                card(host, other[0]),
            ],
            _naming([rail for rail in active if rail not in other]),
            own_view(other[0]),
            places=[place(host, rail) for rail in other],
            confidence=0.6,
        )
    for rail in rails:
        yield host.finding(
            "ib.rate.degraded",
            Severity.FAIL,
            f"rail {rail.label} runs at {rail.port.gbps:g} Gb/s, the others at {best:g} Gb/s",
            [
                sysfs(host, rail, rail.port.rate or "", "rate"),
                sysfs(host, fast[0], fast[0].port.rate or "", "rate"),
                card(host, rail),
            ],
            own_view(rail),
            Fix("reseat or replace cable and transceiver at both ends"),
            *far_end(host, rail),
            places=[place(host, rail)],
            explains=("ib.rails-differ",),
        )
    unread = [rail for rail in active if rail.port.gbps is None]
    if unread:
        raise MissingFact("port rate", f"{unread[0].label}: {unread[0].port.rate or 'not told'}")


@host_rule("infiniband", "ib.mtu.small")
def mtu(host: Host, plan: Plan) -> Iterator[Finding]:
    """RoCE rails have jumbo frames: with an Ethernet MTU of 1500 the RDMA MTU is 1024, which costs bandwidth."""
    ports = roce_rails(host, plan)
    active = _active_mtus(with_devices(host))
    for rail in ports:
        interface = next((item for item in rail.device.netdevs if item.mtu), None)
        if interface is None or interface.mtu is None or interface.mtu >= value("ib.roce.mtu"):
            continue
        told = active.get((rail.device.name, rail.port.port))
        yield host.finding(
            "ib.mtu.small",
            Severity.INFO,
            f"rail {rail.label} has an Ethernet MTU of {interface.mtu} bytes",
            [
                (f"mtu {interface.mtu}", f"/sys/class/net/{interface.name}/mtu"),
                *([(f"active_mtu: {told}", "ibv_devinfo")] if told else []),
            ],
            Fix(
                "raise it on hosts and switches together",
                f"sudo ip link set {shell_word(interface.name)} mtu 9000",
                risky=True,
            ),
            places=[place(host, rail)],
        )


def _active_mtus(fact: InfinibandFact) -> dict[tuple[str, int], str]:
    """(device, port) -> active MTU as ibv_devinfo prints it; empty where the tool is not there."""
    tool = fact.witnesses.get("ibv_devinfo")
    if tool is None or tool.outcome != "ok":
        return {}
    try:
        output = parse_ibv_devinfo(tool.text)
    except ToolTextError:
        return {}
    return {
        (device.name, port.number): port.fields["active_mtu"]
        for device in output.devices
        for port in device.ports
        if "active_mtu" in port.fields
    }
