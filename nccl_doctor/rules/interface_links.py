"""What the kernel does with the interfaces: loopback, reverse-path filters, links that go down and up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nccl_doctor.env.interface_advice import trap
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Carriers, Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.interface_view import view
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import days, of_uptime


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
    yield host.finding(
        "net.loopback-down",
        Severity.FAIL,
        f"the loopback interface of {host.name} is down: its ranks cannot connect to each other",
        (f"lo {found[0].address}: not up" if found else "lo has no address", "getifaddrs"),
        Fix("bring it up", "sudo ip link set lo up"),
        explains=("collectives",),
    )


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

    def value_of(name: str) -> int:
        numbers = system.sysctl_numbers(f"net.ipv4.conf.{name}.rp_filter")
        if not numbers:
            raise MissingFact(f"net.ipv4.conf.{name}.rp_filter", "not readable")
        return numbers[0]

    for network, names in sorted(groups.items()):
        if len(names) < 2:
            continue
        overall = value_of("all")
        own = {name: value_of(name) for name in sorted(names)} if overall < 2 else {}
        strict = [name for name, value in own.items() if max(overall, value) == 1]
        if strict:
            yield host.finding(
                "net.rp-filter.strict",
                Severity.WARN,
                f"{', '.join(sorted(names))} share {network}: strict rp_filter drops what arrives on the second",
                [
                    (f"rp_filter: {own[name]} of {name}, {overall} of all", "/proc/sys/net/ipv4/conf")
                    for name in strict[:4]
                ],
                Fix(
                    "loose mode, until the next boot: the larger of an interface's own value and all's counts",
                    "sudo sysctl -w net.ipv4.conf.all.rp_filter=2",
                ),
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
    all_up = msgspec.structs.replace(here, facts=msgspec.structs.replace(facts, addresses=up))
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
        elif total / days(facts.uptime_s) >= value("net.link-losses.total") and running.intersection(above):
            since = of_uptime(facts.uptime_s)
            yield _flapping(host.name, name, Severity.WARN, f"{link} went down {total} times{since}", f"{total}{since}")
    if untold:
        raise MissingFact(f"how often the link of {few(untold)} goes down", "not counted at both readings")


_EXPLAINED = (
    "net.packet-loss",
    "net.slow",
    "net.latency",
    "net.firewall",
    "net.master-unreachable",
    *(f"net.wrong-interface.{what}" for what in ("down", "none", "loopback", "local", "unreachable", "missing")),
    "collectives",
)


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
        explains=_EXPLAINED if now else (),
    )
