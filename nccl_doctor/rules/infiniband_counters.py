"""Counters of RDMA ports: does a link flap, do errors rise?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.infiniband import InfinibandFact, Port
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.infiniband_view import cable_fixes, card, place, rails_of, sysfs, with_devices
from nccl_doctor.rules.rails import Rail
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import days, of_uptime

# counter -> words. Errors of the link; congestion and retransmission counters are no fault of this port.
_ERRORS = {
    "symbol_error": "symbol errors",
    "port_rcv_errors": "receive errors",
    "local_link_integrity_errors": "link integrity errors",
    "excessive_buffer_overrun_errors": "buffer overruns",
    "link_error_recovery": "link recoveries",
}
_DISCARDS = {"port_xmit_discards": "discarded packets"}
_COUNTED = {**_ERRORS, **_DISCARDS}
# Where a counter stops: the widths of PortCounters (InfiniBand Architecture, 16.1.3.5; drivers/infiniband/core/sysfs.c).
_FULL = {
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "link_error_recovery": 0xFF,
    "link_downed": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}


@host_rule("infiniband", "ib.link-flapping", "ib.link-flapping.past", "ib.errors.rising", "ib.errors")
def counters(host: Host, plan: Plan) -> Iterator[Finding]:
    """No rail's link flaps, and its error counters stand still.

    Packets that a port discards were sent faster than the network took them (or while it was down): a warning. Counters
    are read twice: what rises between the readings is happening now. Totals are judged per day of uptime; they are never
    reset by themselves, so a bad day long ago is a warning, not a fault. A counter that has reached its largest value counts
    no further: what happens now is unknown.
    """
    fact, ports = with_devices(host), rails_of(host, plan)
    if all(rail.efa for rail in ports):
        raise SkipRule("EFA has no port counters")
    if not any(rail.port.counters for rail in ports):
        raise MissingFact("port counters", "the device has none in sysfs")
    judged = {name for rail in ports for name in rail.port.counters} & {"link_downed", *_COUNTED}
    if not judged:
        raise SkipRule("the driver counts no link errors")  # as Broadcom's: what it has stands in hw_counters
    for rail in ports:
        yield from _flapping(host, rail, fact)
        yield from _errors(host, rail, fact)
    for rail in (rail for rail in ports if not rail.efa):
        if lacking := judged - (rail.port.counters.keys() & rail.port.counters_before.keys()):
            raise MissingFact("port counters", f"{rail.label}: {', '.join(sorted(lacking))} not readable")
        if full := [name for name, largest in _FULL.items() if rail.port.counters_before.get(name) == largest]:
            raise MissingFact("port counters", f"{rail.label}: full until perfquery -R resets them: {', '.join(full)}")


def _rise(port: Port, name: str) -> int:
    """How much a counter rose between the two readings; a reset in between is no rise."""
    return max(0, port.counters.get(name, 0) - port.counters_before.get(name, port.counters.get(name, 0)))


def _flapping(host: Host, rail: Rail, fact: InfinibandFact) -> Iterator[Finding]:
    total, rise = rail.port.counters.get("link_downed", 0), _rise(rail.port, "link_downed")
    if rise:
        now = f"link_downed {total - rise} -> {total} in {rail.port.counters_interval_s:.1f} s"
        yield host.finding(
            "ib.link-flapping",
            Severity.FAIL,
            f"rail {rail.label} goes down and up right now",
            [sysfs(host, rail, now, "counters/link_downed"), card(host, rail)],
            *cable_fixes(host, rail),
            places=[place(host, rail)],
            explains=("ib.errors", "ib.port-down", "ib.rate"),
        )
    elif total / days(fact.uptime_s) >= value("ib.link-downed.total"):
        up = of_uptime(fact.uptime_s)
        yield host.finding(
            "ib.link-flapping.past",
            Severity.WARN,
            f"the link of rail {rail.label} went down {total} times{up}",
            [sysfs(host, rail, f"link_downed {total}{up}", "counters/link_downed"), card(host, rail)],
            *cable_fixes(host, rail),
            places=[place(host, rail)],
            confidence=0.8,
        )


def _errors(host: Host, rail: Rail, fact: InfinibandFact) -> Iterator[Finding]:
    port = rail.port
    interval = port.counters_interval_s or 1.0
    rises = {name: rise for name in _COUNTED if (rise := _rise(port, name)) / interval >= value("ib.errors.rate")}
    if rises:
        lost = rises.keys() <= _DISCARDS.keys()
        yield host.finding(
            "ib.errors.rising",
            Severity.WARN if lost else Severity.FAIL,
            f"rail {rail.label} discards packets right now"
            if lost
            else f"errors on rail {rail.label} are rising right now",
            [
                *(
                    sysfs(host, rail, f"{_COUNTED[name]}: +{rise} in {interval:.1f} s", f"counters/{name}")
                    for name, rise in rises.items()
                ),
                card(host, rail),
            ],
            *cable_fixes(host, rail),
            places=[place(host, rail)],
        )
        return
    # A bit error rate of 1e-12 gives this many errors a day at the port's rate
    allowed = max(value("ib.errors.total"), value("ib.ber") * (port.gbps or 100.0) * 1e9 * 86400)
    limits = {**dict.fromkeys(_ERRORS, allowed), **dict.fromkeys(_DISCARDS, value("ib.discards.total"))}
    high = [
        (name, count)
        for name, limit in limits.items()
        if (count := port.counters.get(name, 0)) and count / days(fact.uptime_s) >= limit
    ]
    if high:
        up = of_uptime(fact.uptime_s)
        yield host.finding(
            "ib.errors",
            Severity.WARN,
            f"rail {rail.label} has had many errors{up}",
            [
                *(sysfs(host, rail, f"{_COUNTED[name]}: {count}{up}", f"counters/{name}") for name, count in high),
                card(host, rail),
            ],
            places=[place(host, rail)],
            confidence=0.7,
        )
