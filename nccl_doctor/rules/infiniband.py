"""InfiniBand, RoCE and EFA on one host: are the rails up, at full rate, without errors, and usable by NCCL?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.env import gid as gids
from nccl_doctor.env import number
from nccl_doctor.env.nccl_conf import Setting, effective
from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact, Port
from nccl_doctor.facts.infiniband_tools import ToolTextError, parse_ibv_devinfo
from nccl_doctor.facts.infiniband_witness import SYSFS, all_told, disagreements
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.gpudirect import dmabuf_possible, modules_told, peermem
from nccl_doctor.rules.interface_view import nccl_version
from nccl_doctor.rules.rails import Rail, rails
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration, size

NO_DEVICE = "no RDMA device on this host"


def with_devices(host: Host) -> InfinibandFact:
    """The fact of a host that has RDMA devices; ``SkipRule`` where it has none (the fleet rule compares hosts)."""
    fact = host.need(InfinibandFact)
    if not fact.devices:
        raise SkipRule(NO_DEVICE)
    return fact


def own_rails(host: Host, plan: Plan) -> list[Rail]:
    """The host's rails by its own ports alone; use ``host.once(own_rails, plan)``: many rules look at them."""
    return rails(host.need(InfinibandFact), plan)


def sysfs(host: Host, rail: Rail, text: str, file: str = "") -> Evidence:
    """A quoted value of a port's sysfs directory, or of the tool that stands in for it."""
    if rail.device.source != SYSFS:
        return Evidence(text, f"{rail.device.source} {rail.label}", host=host.name)
    path = f"/sys/class/infiniband/{rail.device.name}/ports/{rail.port.port}"
    return Evidence(text, f"{path}/{file}" if file else path, host=host.name)


def card(host: Host, rail: Rail) -> Evidence:
    """Which card this is: PCI address, slot, board and GUID, to find it in the machine and its cable in the fabric."""
    device = rail.device
    words = [
        f"{device.name} is {device.bus_id or 'at an unknown PCI address'}",
        f"slot {device.slot}" if device.slot else "",
        " ".join(text for text in (device.hca_type, device.board_id) if text),
        f"node GUID {device.node_guid}" if device.node_guid else "",
    ]
    return Evidence(", ".join(word for word in words if word), f"/sys/class/infiniband/{device.name}", host=host.name)


def place(host: Host, rail: Rail) -> Place:
    """Where a finding about a port points."""
    return Place(host=host.name, nic=rail.label)


@host_rule(
    "infiniband",
    "ib.port-down",
    "ib.port-down.no-subnet-manager",
    "ib.port-down.disabled",
    "ib.port-down.all",
)
def ports_up(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every rail's port is ACTIVE: NCCL leaves out a port that is not, without a word at the default log level.

    Down ports of another kind of card than the rails (Ethernet management NICs) are not called rails. INIT with a
    physical link means that no subnet manager has configured the port. Where every card with two ports has one of them
    up, the others may be spare ports without a cable: a warning, unless NCCL_IB_HCA of the job names them.
    """
    with_devices(host)
    ports = host.once(own_rails, plan)
    down = [rail for rail in ports if not rail.port.active]
    if ports and len(down) == len(ports):
        yield finding(
            "ib.port-down.all",
            Severity.FAIL if not all(rail.roce for rail in down) else Severity.WARN,
            f"none of the {len(ports)} RDMA ports is active: NCCL would use TCP",
            [sysfs(host, rail, f"state {rail.port.state}, phys_state {rail.port.phys_state}") for rail in down[:4]],
            places=[place(host, rail) for rail in down],
            fixes=_port_fixes(host, down[0]),
            confidence=0.9,
            explains=("ib.device-not-found", "ib.gid-index", "collectives"),
        )
        return
    spare = [] if plan.env.get("NCCL_IB_HCA") else _spare(ports)
    if spare:
        yield finding(
            "ib.port-down",
            Severity.WARN,
            f"{len(spare)} ports are down, each beside an active one of its card: spare ports, or a whole rail is missing",
            [sysfs(host, rail, f"state {rail.port.state}, phys_state {rail.port.phys_state}") for rail in spare[:4]],
            places=[place(host, rail) for rail in spare],
            fixes=[
                Fix("if they have no cable, name the rails for the job: NCCL_IB_HCA", "ibstat | grep -E 'CA |State'"),
                *_port_fixes(host, spare[0]),
            ],
            confidence=0.6,
        )
    for rail in (rail for rail in down if rail not in spare):
        state, physical = rail.port.state or "", rail.port.phys_state or ""
        if "INIT" in state and "LinkUp" in physical.replace("Link Up", "LinkUp"):
            id, words = "ib.port-down.no-subnet-manager", "waits for a subnet manager (INIT)"
        elif "Disabled" in physical:
            id, words = "ib.port-down.disabled", "is switched off or unplugged (Disabled)"
        else:
            id, words = "ib.port-down", f"is down ({physical.split(':')[-1].strip() or state})"
        yield finding(
            id,
            Severity.FAIL,
            f"rail {rail.label} {words}; {len(ports) - len(down)} of {len(ports)} rails are active",
            [
                sysfs(host, rail, f"state {state}", "state"),
                sysfs(host, rail, f"phys_state {physical}", "phys_state"),
                card(host, rail),
            ],
            places=[place(host, rail)],
            fixes=_port_fixes(host, rail),
            explains=("ib.rate", "ib.rails-differ", "ib.gid-index", "collectives"),
        )


def _spare(ports: list[Rail]) -> list[Rail]:
    """The ports that are down beside an active one, where that is so on every card with several ports."""
    cards: dict[str, list[Rail]] = {}
    for rail in ports:
        card = (rail.device.bus_id or "").rpartition(".")[0]  # its ports may be functions of one PCI device
        cards.setdefault(card or rail.device.name, []).append(rail)
    several = [card for card in cards.values() if len(card) > 1]
    even = all({rail.port.active for rail in card} == {True, False} for card in several)
    return [rail for card in several for rail in card if not rail.port.active] if even else []


def _far_end(host: Host, rail: Rail) -> list[Fix]:
    """How to find the switch port at the other end of a rail's cable."""
    if not rail.roce:
        command = f"sudo iblinkinfo --switches-only | grep {host.name}"
    elif rail.device.netdevs:
        command = f"sudo lldpcli show neighbors ports {rail.device.netdevs[0].name}"
    else:
        return []
    return [Fix("find the switch port at the other end of its cable", command, host.name)]


def _port_fixes(host: Host, rail: Rail) -> list[Fix]:
    name = rail.device.name
    fixes = [
        Fix("see the port's own view", f"ibstat {name} {rail.port.port}; sudo mlxlink -d {name} -c", host.name),
        Fix(
            "check cable, transceiver and the switch port at the other end; look for what took it down",
            f"sudo dmesg -T | grep -iE '{name}|mlx5' | tail -20",
            host.name,
        ),
    ]
    fixes[1:1] = _far_end(host, rail)
    if rail.roce and rail.device.netdevs:
        fixes.insert(0, Fix("bring the interface up", f"sudo ip link set {rail.device.netdevs[0].name} up", host.name))
    if "INIT" in (rail.port.state or ""):
        fixes.insert(0, Fix("see whether a subnet manager runs in the fabric", "sudo sminfo", host.name))
    return fixes


@host_rule("infiniband", "ib.rate.degraded")
def equal_rates(host: Host, plan: Plan) -> Iterator[Finding]:
    """All active rails run at the same rate: a link that trained at fewer lanes or a lower speed halves its rail."""
    with_devices(host)
    active = [rail for rail in host.once(own_rails, plan) if rail.port.active]
    if not active:
        raise SkipRule("no active rail")
    best = max(rail.port.gbps or 0.0 for rail in active)
    for rail in active:
        if rail.port.gbps is not None and rail.port.gbps < best:
            yield finding(
                "ib.rate.degraded",
                Severity.FAIL,
                f"rail {rail.label} runs at {rail.port.gbps:g} Gb/s, the others at {best:g} Gb/s",
                [
                    sysfs(host, rail, rail.port.rate or "", "rate"),
                    next(sysfs(host, o, o.port.rate or "", "rate") for o in active if o.port.gbps == best),
                    card(host, rail),
                ],
                places=[place(host, rail)],
                fixes=[
                    Fix(
                        "reseat or replace cable and transceiver; see speed and lanes at both ends",
                        f"sudo mlxlink -d {rail.device.name} -m -c",
                        host.name,
                    ),
                    *_far_end(host, rail),
                ],
                explains=("ib.rails-differ",),
            )
    unread = [rail for rail in active if rail.port.gbps is None]
    if unread:
        raise MissingFact("port rate", f"{unread[0].label}: {unread[0].port.rate or 'not told'}")


def entries(port: Port) -> list[gids.GidEntry]:
    """The port's GID table as NCCL sees it."""
    return [gids.GidEntry(entry.index, entry.gid, gids.roce_version(entry.type)) for entry in port.gids]


@host_rule("infiniband", "ib.gid-index.no-roce-v2", "ib.gid-index.link-local", "ib.gid-index.wrong", "ib.gid-index.set")
def gid_tables(host: Host, plan: Plan) -> Iterator[Finding]:
    """On RoCE, NCCL finds a routable RoCE v2 GID on every rail.

    The index is the one NCCL's own walk over the table ends on (2.21.5 and later). A NCCL_IB_GID_INDEX of the job is
    judged entry by entry: an empty or v1 entry fails, and the right index often differs from port to port. Where a job
    narrows the walk by NCCL_IB_ADDR_RANGE or NCCL_IB_ROCE_VERSION_NUM, what NCCL finds is unknown.
    """
    with_devices(host)
    ports = [rail for rail in host.once(own_rails, plan) if rail.roce and rail.port.active and not rail.efa]
    if not ports:
        raise SkipRule("no active RoCE port")
    version, _ = nccl_version(host, plan)
    given = _in_force(host, plan, "NCCL_IB_GID_INDEX")
    index = number.as_read(given.value) if given and number.has_digits(given.value) else -1
    for name, usual in (("NCCL_IB_ADDR_RANGE", ""), ("NCCL_IB_ROCE_VERSION_NUM", "2")):
        if index < 0 and (narrowed := _in_force(host, plan, name)) and narrowed.value not in ("", usual):
            raise MissingFact("GID that NCCL takes", f"{name}={narrowed.value} narrows its search")
    family = _in_force(host, plan, "NCCL_IB_ADDR_FAMILY")
    ipv6 = family is not None and family.value == "AF_INET6"
    untold: MissingFact | None = None
    for rail in ports:
        by_index = {entry.index: entry for entry in entries(rail.port)}
        if not by_index and rail.device.source != SYSFS:
            untold = MissingFact("GID table", f"{rail.label}: sysfs shows no RDMA device, and show_gids does not tell")
        elif any(entry.version is None for entry in by_index.values()):
            untold = MissingFact("RoCE version of the GIDs", f"{rail.label}: gid_attrs/types is not readable")
        else:
            table = by_index.values()
            chosen = gids.choose(table, ethernet=True, gid_index=index, nccl_version=version, ipv6=ipv6)
            automatic = gids.choose(table, ethernet=True, ipv6=ipv6)
            yield from _judge_gid(host, rail, by_index, chosen, automatic, given if index >= 0 else None)
    if untold:
        raise untold


def _in_force(host: Host, plan: Plan, name: str) -> Setting | None:
    """What a job on this host would see: the job's own setting, the host's environment, nccl.conf."""
    environment, network = host.want(Environment), host.want(Interfaces)
    variables = environment.variables if environment else {}
    files = network.conf_files if network else ()
    return effective(variables, files, nccl_version(host, plan)[0], plan.env).get(name)


def _judge_gid(
    host: Host, rail: Rail, table: dict[int, gids.GidEntry], chosen: int, automatic: int, given: Setting | None
) -> Iterator[Finding]:
    """``automatic`` is the index of a current NCCL's own choice; ``given``: the index that is set, None: NCCL chooses."""
    best = table.get(automatic)
    usable = best is not None and best.version == 2 and best.is_valid
    quoted = [
        sysfs(host, rail, f"GID {entry.index}: {entry.gid} RoCE v{entry.version}", "gids") for entry in table.values()
    ][:6] or [sysfs(host, rail, "GID table is empty", "gids")]
    entry = table.get(chosen)
    name = rail.device.name
    if given and (entry is None or entry.version != 2):
        remove = EnvAdvice("NCCL_IB_GID_INDEX", "", f"NCCL finds index {automatic} by itself", ">=2.21.5", unset=True)
        yield finding(
            "ib.gid-index.wrong",
            Severity.FAIL,
            f"NCCL_IB_GID_INDEX={chosen} is "
            + ("an empty entry" if entry is None else "a RoCE v1 entry")
            + f" on {rail.label}; NCCL itself would choose {automatic}",
            [Evidence(given.quote, given.source, given.line or None, host.name), *quoted],
            places=[place(host, rail)],
            fixes=[Fix(f"remove line {given.line} of {given.source}", host=host.name)] if given.line else [],
            env=[] if given.line else [remove],
            explains=("collectives",),
        )
    elif not any(item.version == 2 for item in table.values()):
        yield finding(
            "ib.gid-index.no-roce-v2",
            Severity.FAIL,
            f"rail {rail.label} has no RoCE v2 GID",
            quoted,
            places=[place(host, rail)],
            fixes=[
                Fix("give the interface an address: without one there is no routable GID", "ip -br address", host.name),
                Fix("see the driver's RoCE mode", f"sudo cma_roce_mode -d {name} -p {rail.port.port}", host.name),
            ],
            explains=("collectives",),
        )
    elif not usable:
        yield finding(
            "ib.gid-index.link-local",
            Severity.WARN,
            f"rail {rail.label} has only link-local GIDs: it reaches its own subnet alone",
            quoted,
            places=[place(host, rail)],
            fixes=[Fix("give the interface an IPv4 address", "ip -br address", host.name)],
            confidence=0.8,
        )
    elif given and chosen != automatic:
        yield finding(
            "ib.gid-index.set",
            Severity.INFO,
            f"NCCL_IB_GID_INDEX={chosen} on {rail.label}; NCCL itself would choose {automatic}",
            [Evidence(given.quote, given.source, given.line or None, host.name), *quoted[:2]],
            places=[place(host, rail)],
        )


@host_rule("infiniband", "ib.mtu.small")
def mtu(host: Host, plan: Plan) -> Iterator[Finding]:
    """RoCE rails have jumbo frames: with an Ethernet MTU of 1500 the RDMA MTU is 1024, which costs bandwidth."""
    fact = with_devices(host)
    ports = [rail for rail in host.once(own_rails, plan) if rail.roce and rail.port.active and not rail.efa]
    if not ports:
        raise SkipRule("no active RoCE port")
    active = _active_mtus(fact)
    for rail in ports:
        interface = next((item for item in rail.device.netdevs if item.mtu), None)
        if interface is None or interface.mtu is None or interface.mtu >= value("ib.roce.mtu"):
            continue
        told = active.get((rail.device.name, rail.port.port))
        yield finding(
            "ib.mtu.small",
            Severity.INFO,
            f"rail {rail.label} has an Ethernet MTU of {interface.mtu} bytes",
            [
                Evidence(f"mtu {interface.mtu}", f"/sys/class/net/{interface.name}/mtu", host=host.name),
                *([Evidence(f"active_mtu: {told}", "ibv_devinfo", host=host.name)] if told else []),
            ],
            places=[place(host, rail)],
            fixes=[
                Fix(
                    "raise it on hosts and switches together",
                    f"sudo ip link set {interface.name} mtu 9000",
                    host.name,
                    True,
                )
            ],
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


@host_rule("infiniband", "ib.link-flapping", "ib.link-flapping.past", "ib.errors.rising", "ib.errors")
def counters(host: Host, plan: Plan) -> Iterator[Finding]:
    """No rail's link flaps, and its error counters stand still.

    Counters are read twice: what rises between the readings is happening now. Totals are judged per day of uptime; they
    are never reset by themselves, so a bad day long ago is a warning, not a fault.
    """
    fact = with_devices(host)
    ports = host.once(own_rails, plan)
    if ports and all(rail.efa for rail in ports):
        raise SkipRule("EFA has no port counters")
    if not any(rail.port.counters for rail in ports):
        raise MissingFact("port counters", "the device has none in sysfs")
    for rail in ports:
        yield from _flapping(host, rail, fact)
        yield from _errors(host, rail, fact)
    judged = {name for rail in ports for name in rail.port.counters} & {"link_downed", *_COUNTED}
    for rail in (rail for rail in ports if not rail.efa):
        if lacking := judged - (rail.port.counters.keys() & rail.port.counters_before.keys()):
            raise MissingFact("port counters", f"{rail.label}: {', '.join(sorted(lacking))} not readable")


def _rise(port: Port, name: str) -> int:
    """How much a counter rose between the two readings; a reset in between is no rise."""
    return max(0, port.counters.get(name, 0) - port.counters_before.get(name, port.counters.get(name, 0)))


def _days(fact: InfinibandFact) -> float:
    return max((fact.uptime_s or 86400.0) / 86400.0, 1.0)


def _flapping(host: Host, rail: Rail, fact: InfinibandFact) -> Iterator[Finding]:
    total, rise = rail.port.counters.get("link_downed", 0), _rise(rail.port, "link_downed")
    if rise:
        now = f"link_downed {total - rise} -> {total} in {rail.port.counters_interval_s:.1f} s"
        yield finding(
            "ib.link-flapping",
            Severity.FAIL,
            f"rail {rail.label} goes down and up right now",
            [sysfs(host, rail, now, "counters/link_downed"), card(host, rail)],
            places=[place(host, rail)],
            fixes=_port_fixes(host, rail)[-2:],
            explains=("ib.errors", "ib.port-down", "ib.rate"),
        )
    elif total / _days(fact) >= value("ib.link-downed.total"):
        up = f" in {duration(fact.uptime_s)} of uptime" if fact.uptime_s else ""
        yield finding(
            "ib.link-flapping.past",
            Severity.WARN,
            f"the link of rail {rail.label} went down {total} times{up}",
            [sysfs(host, rail, f"link_downed {total}{up}", "counters/link_downed"), card(host, rail)],
            places=[place(host, rail)],
            fixes=_port_fixes(host, rail)[-2:],
            confidence=0.8,
        )


def _errors(host: Host, rail: Rail, fact: InfinibandFact) -> Iterator[Finding]:
    port = rail.port
    interval = port.counters_interval_s or 1.0
    rising = []
    limit = value("ib.errors.rate")
    told = {name: words for name, words in _COUNTED.items() if port.counters.get(name)}
    if not told:
        return  # not one error since boot
    for name, words in told.items():
        rise = _rise(port, name)
        if rise / interval >= limit:
            rising.append(sysfs(host, rail, f"{words}: +{rise} in {interval:.1f} s", f"counters/{name}"))
    if rising:
        yield finding(
            "ib.errors.rising",
            Severity.FAIL,
            f"errors on rail {rail.label} are rising right now",
            [*rising, card(host, rail)],
            places=[place(host, rail)],
            fixes=_port_fixes(host, rail)[-2:],
        )
        return
    days = _days(fact)
    # a bit error rate of 1e-12 gives this many errors a day at the port's rate
    allowed = max(value("ib.errors.total"), value("ib.ber") * (port.gbps or 100.0) * 1e9 * 86400)
    high = [(n, w, port.counters.get(n, 0)) for n, w in _ERRORS.items() if port.counters.get(n, 0) / days >= allowed]
    high += [
        (n, w, port.counters.get(n, 0))
        for n, w in _DISCARDS.items()
        if port.counters.get(n, 0) / days >= value("ib.discards.total")
    ]
    if high:
        up = f" in {duration(fact.uptime_s)} of uptime" if fact.uptime_s else ""
        yield finding(
            "ib.errors",
            Severity.WARN,
            f"rail {rail.label} has had many errors{up}",
            [
                *(sysfs(host, rail, f"{words}: {count}{up}", f"counters/{name}") for name, words, count in high),
                card(host, rail),
            ],
            places=[place(host, rail)],
            confidence=0.7,
        )


@host_rule(
    "infiniband", "ib.device-not-found.uverbs", "ib.device-not-found.no-driver", "ib.device-not-found.hca-filter"
)
def devices_usable(host: Host, plan: Plan) -> Iterator[Finding]:
    """RDMA cards have their driver and their device files (also in the container), and NCCL_IB_HCA matches some."""
    fact = host.need(InfinibandFact)
    if not fact.devices:
        capable = [nic for nic in fact.pci_rdma if nic.driver]
        if not capable:
            raise SkipRule(NO_DEVICE)
        yield finding(
            "ib.device-not-found.no-driver",
            Severity.WARN,
            f"{len(capable)} RDMA-capable NICs, but no RDMA device: the RDMA driver is not loaded",
            [
                Evidence(f"{nic.bus_id} {nic.vendor}:{nic.device} driver {nic.driver}", "/sys/bus/pci", host=host.name)
                for nic in capable[:4]
            ],
            hosts=(host.name,),
            confidence=0.7,
            fixes=[
                Fix(
                    "load it, if this host has an RDMA network",
                    "sudo modprobe -a mlx5_ib ib_uverbs && ls /sys/class/infiniband",
                    host.name,
                )
            ],
        )
        return
    absent = [name for name in fact.uverbs_expected if name not in fact.uverbs]
    if absent:
        yield finding(
            "ib.device-not-found.uverbs",
            Severity.FAIL,
            f"{len(absent)} of {len(fact.uverbs_expected)} verbs device files are missing",
            [Evidence(f"no /dev/infiniband/{name}", "/dev/infiniband", host=host.name) for name in absent[:3]],
            hosts=(host.name,),
            fixes=[
                Fix(
                    "give the container the devices (--device=/dev/infiniband), or load ib_uverbs",
                    "ls -l /dev/infiniband",
                    host.name,
                )
            ],
            explains=("collectives",),
        )
    text = plan.env.get("NCCL_IB_HCA")
    if text and not host.once(own_rails, plan):
        names = ", ".join(sorted(device.name for device in fact.devices))
        yield finding(
            "ib.device-not-found.hca-filter",
            Severity.FAIL,
            f"NCCL_IB_HCA={text} matches none of the RDMA devices: NCCL would use TCP",
            [
                Evidence(f"NCCL_IB_HCA={text}", "the job's environment"),
                Evidence(f"devices: {names}", "/sys/class/infiniband", host=host.name),
            ],
            hosts=(host.name,),
            env=[EnvAdvice("NCCL_IB_HCA", "", "it matches no device of this host", "any", unset=True)],
            explains=("collectives",),
        )


@host_rule("infiniband", "ib.memlock")
def locked_memory(host: Host, plan: Plan) -> Iterator[Finding]:
    """RDMA can lock the memory it registers (``ulimit -l``): with a small limit NCCL fails in ibv_reg_mr or ibv_create_cq.

    Where the stage "system" runs it tells this itself, with the limits of the whole login.
    """
    if "system" in plan.stages:
        raise SkipRule("locked memory is judged in stage system")
    soft, hard = with_devices(host).memlock_bytes.soft, with_devices(host).memlock_bytes.hard
    if soft is None or soft >= value("memlock.rdma"):
        return
    yield finding(
        "ib.memlock",
        Severity.FAIL,
        f"locked memory is limited to {size(soft)}: RDMA cannot register NCCL's buffers",
        Evidence(
            f"RLIMIT_MEMLOCK soft {size(soft)}, hard {'unlimited' if hard is None else size(hard)}",
            "ulimit -l",
            host=host.name,
        ),
        hosts=(host.name,),
        fixes=[
            *(
                [Fix("in the job's shell: the hard limit allows it", "ulimit -l unlimited", host.name)]
                if hard is None
                else []
            ),
            Fix("Slurm: LimitMEMLOCK=infinity in slurmd's unit; containers: --ulimit memlock=-1"),
        ],
        explains=("collectives",),
    )


@host_rule("infiniband", "ib.device-not-found.no-provider")
def verbs_library(host: Host, plan: Plan) -> Iterator[Finding]:
    """The verbs library opens the devices that sysfs lists: ibv_devinfo, where it is installed, is asked as a witness.

    NCCL goes through the same library. A device that the kernel has and ibv_devinfo does not list has no user-space
    driver here (libmlx5, libefa), or may not be opened.
    """
    fact = with_devices(host)
    tool = fact.witnesses.get("ibv_devinfo")
    if tool is None or tool.outcome == "tool-missing":
        raise SkipRule("ibv_devinfo is not installed")
    if tool.outcome not in ("ok", "failed"):
        raise MissingFact("ibv_devinfo", tool.detail or tool.outcome)
    active = {rail.device.name for rail in host.once(own_rails, plan) if rail.port.active}
    try:
        opened = {device.name for device in parse_ibv_devinfo(tool.text).devices}
    except ToolTextError:
        opened = set()
    absent = sorted(active - opened)
    if absent:
        yield finding(
            "ib.device-not-found.no-provider",
            Severity.FAIL,
            f"the verbs library does not open {len(absent)} of {len(active)} rails: {', '.join(absent[:8])}",
            [
                Evidence(
                    tool.detail or f"lists {', '.join(sorted(opened)) or 'no device'}", "ibv_devinfo", host=host.name
                ),
                Evidence(f"active: {', '.join(sorted(active))}", "/sys/class/infiniband", host=host.name),
            ],
            hosts=(host.name,),
            fixes=[
                Fix(
                    "install the user-space drivers (rdma-core: ibverbs-providers), also in the container",
                    "ibv_devices; ls /usr/lib/*/libibverbs /etc/libibverbs.d",
                    host.name,
                )
            ],
            explains=("collectives",),
            confidence=0.9,
        )


@host_rule("infiniband", "ib.witnesses-differ", "ib.sysfs-missing")
def further_witnesses(host: Host, plan: Plan) -> Iterator[Finding]:
    """What ibstat, ibv_devinfo and show_gids say of a port, where they are installed, is what sysfs says.

    State, physical state, rate, link layer, firmware and GIDs are compared. A tool that gives up on a device, or lists one
    that sysfs lacks, disagrees, too. Where sysfs shows no RDMA device at all (some containers), the tools stand in for it
    in all rules: what they do not tell (counters, MTU) stays unknown.
    """
    fact = with_devices(host)
    tools = {name: tool for name, tool in fact.witnesses.items() if tool.outcome != "tool-missing"}
    if not tools:
        raise SkipRule("ibstat, ibv_devinfo and show_gids are not installed")
    stuck = [name for name, tool in tools.items() if tool.outcome == "timed-out"]
    if stuck:
        raise MissingFact(stuck[0], tools[stuck[0]].detail or "does not answer")
    if fact.devices[0].source != SYSFS:
        names = ", ".join(device.name for device in fact.devices)
        yield finding(
            "ib.sysfs-missing",
            Severity.INFO,
            f"sysfs shows no RDMA device; {len(fact.devices)} are taken from the tools' word",
            [
                Evidence("no device", "/sys/class/infiniband", host=host.name),
                Evidence(f"lists {names}", fact.devices[0].source, host=host.name),
            ],
            hosts=(host.name,),
        )
        return
    proofs = [Evidence(str(item), item.tool, host=host.name) for item in disagreements(fact)]
    proofs += [
        Evidence(line, name, host=host.name)
        for name, tool in tools.items()
        for line in f"{tool.text}\n{tool.detail}".splitlines()
        if "ibpanic" in line
    ]
    if proofs:
        yield finding(
            "ib.witnesses-differ",
            Severity.WARN,
            f"{', '.join(sorted({proof.source for proof in proofs}))} and sysfs disagree about RDMA ports",
            proofs[:8],
            hosts=(host.name,),
            confidence=0.8,
            fixes=[Fix("look again: a port that changes between two readings flaps", "ibstat; ibv_devinfo", host.name)],
        )
    elif not all_told(fact.witnesses):
        raise MissingFact(", ".join(sorted(tools)), "what they print names no port")


@host_rule("infiniband", "ib.gdr.off", "ib.gdr.unknown")
def gpudirect(host: Host, plan: Plan) -> Iterator[Finding]:
    """GPUDirect RDMA can work: nvidia_peermem is loaded, or DMA-BUF is possible (Linux 5.12, open kernel modules).

    Without either, NCCL moves all network traffic through host memory: often half the bandwidth and less.
    """
    gpu = host.need(GpuFact)
    if not gpu.has_hardware:
        raise SkipRule("no NVIDIA GPU on this host")
    with_devices(host)
    ports = [rail for rail in host.once(own_rails, plan) if rail.port.active]
    if not ports or all(rail.efa for rail in ports):
        raise SkipRule("no active InfiniBand or RoCE rail")
    topology = host.need(TopologyFact)
    if peermem(topology) or any("GeForce" in (device.name or "") for device in gpu.gpus):
        return  # consumer cards cannot do GPUDirect RDMA at all: nothing to load
    if not modules_told(topology):
        raise MissingFact("nvidia_peermem", "kernel modules were not collected")
    possible = dmabuf_possible(topology, gpu)
    if possible:
        return
    why = {False: "and DMA-BUF is not possible", None: "and whether DMA-BUF works is not known"}[possible]
    yield finding(
        "ib.gdr.off" if possible is False else "ib.gdr.unknown",
        Severity.FAIL if possible is False else Severity.WARN,
        f"GPUDirect RDMA: nvidia_peermem is not loaded, {why}",
        [
            Evidence("no nvidia_peermem, no nv_peer_mem", "/sys/module", host=host.name),
            Evidence(
                f"kernel {topology.kernel or '(unknown)'}, {gpu.module_flavor or 'unknown'} kernel modules",
                "/proc/driver/nvidia/version",
                host=host.name,
            ),
        ],
        hosts=(host.name,),
        fixes=[
            Fix(
                "load it, and at every boot",
                "sudo modprobe nvidia-peermem && echo nvidia-peermem | "
                "sudo tee /etc/modules-load.d/nvidia-peermem.conf",
                host.name,
            ),
        ],
        confidence=0.9 if possible is False else 0.6,
        explains=("ib.gdr.differs", "net.slow"),
    )
