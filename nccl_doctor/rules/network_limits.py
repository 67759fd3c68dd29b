"""Limits of the kernel on a job's connections: buffers, tracked connections, ephemeral ports, listening queues."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import few
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.system import gpu_count
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size


@host_rule("system", "net.slow.tcp-buffers")
def tcp_buffers(host: Host, plan: Plan) -> Iterator[Finding]:
    """The kernel may grow TCP buffers to at least 1 MiB (third number of tcp_rmem and tcp_wmem)."""
    system = host.need(System)
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        numbers = system.sysctl_numbers(name)
        if len(numbers) != 3:
            raise MissingFact(name, "not readable")
        if numbers[2] < value("tcp.buffer.warn"):
            crippled = numbers[2] < value("tcp.buffer.fail")
            yield host.finding(
                "net.slow.tcp-buffers",
                Severity.FAIL if crippled else Severity.WARN,
                f"{name} lets a TCP buffer grow to {size(numbers[2])} only: one stream cannot fill a fast link",
                (f"{name} = {system.sysctls[name]}", f"/proc/sys/{name.replace('.', '/')}"),
                Fix("until the next boot", f"sudo sysctl -w {name}='4096 131072 16777216'"),
                explains=("net.slow.link", "collectives") if crippled else (),
            )


@host_rule("system", "net.conntrack-full")
def connection_tracking(host: Host, plan: Plan) -> Iterator[Finding]:
    """Where the kernel tracks connections (a stateful firewall, NAT, Kubernetes), its table has room for a job's.

    A full table drops the first packet of every new connection, and no rule of the firewall shows it.
    """
    system = host.need(System)
    used, room = (system.sysctl_numbers(f"net.netfilter.nf_conntrack_{what}") for what in ("count", "max"))
    if not (used and room and room[0]):
        raise SkipRule("no connection tracking in this kernel, or not collected")
    share = used[0] / room[0]
    if share >= value("conntrack.used.warn"):
        full = share >= value("conntrack.used.fail")
        yield host.finding(
            "net.conntrack-full",
            Severity.FAIL if full else Severity.WARN,
            f"The connection tracking table is {'full' if full else 'nearly full'} ({used[0]} of {room[0]} entries): "
            "new connections are dropped" + ("" if full else " when it is"),
            (f"nf_conntrack_count = {used[0]}, nf_conntrack_max = {room[0]}", "/proc/sys/net/netfilter"),
            Fix("more room, until the next boot", f"sudo sysctl -w net.netfilter.nf_conntrack_max={room[0] * 4}"),
            Fix(
                "see who fills it",
                "sudo conntrack -L -o extended 2>/dev/null | awk '{print $7}' | sort | uniq -c | sort -n | tail",
            ),
            explains=("net.firewall", "net.master-unreachable", "net.packet-loss", "collectives") if full else (),
        )


@host_rule("system", "net.ephemeral-ports.few", "net.port-in-use.ephemeral-range")
def ephemeral_ports(host: Host, plan: Plan) -> Iterator[Finding]:
    """There are enough ephemeral ports, and the master port is not one of them.

    NCCL and Gloo listen on ephemeral ports; a master port inside the range can be taken by any outgoing connection.
    """
    system = host.need(System)
    numbers = system.sysctl_numbers("net.ipv4.ip_local_port_range")
    if len(numbers) != 2:
        raise MissingFact("net.ipv4.ip_local_port_range", "not readable")
    low, high = numbers
    proof = (f"net.ipv4.ip_local_port_range = {low} {high}", "/proc/sys/net/ipv4/ip_local_port_range")
    count = high - low + 1
    if count < value("ports.ephemeral.warn"):
        severity = Severity.FAIL if count < value("ports.ephemeral.fail") else Severity.WARN
        fix = Fix("the kernel's default", "sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'")
        title = f"Only {count} ephemeral ports"
        yield host.finding("net.ephemeral-ports.few", severity, title, proof, fix, explains=("collectives",))
    if plan.master == host.name and low <= plan.master_port <= high:
        yield host.finding(
            "net.port-in-use.ephemeral-range",
            Severity.INFO,
            f"The master port {plan.master_port} is an ephemeral port: an outgoing connection may take it first",
            proof,
            Fix(
                f"choose a port below {low}, or reserve it",
                f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={plan.master_port}",
            ),
        )


@fleet_rule("system", "net.listen-backlog")
def listening_queue(fleet: Fleet) -> Iterator[Finding]:
    """As many connections may wait to be accepted (net.core.somaxconn) as the job has ranks.

    torch's store and NCCL's bootstrap ask for a longer queue than the kernel grants, and all ranks connect to them at
    once. Where the queue is full the kernel drops the connect, and the rank tries again a second later, then after two.
    The ranks are the slots of the host list, or a GPU each, or one on each host. The default is 4096 (128 before Linux 5.4).
    """
    known = fleet.every(System)
    ranks = sum(host.facts.slots or gpu_count(host) or 1 for host in fleet.hosts if host.name in known)
    short: dict[int, list[str]] = {}
    for host, system in known.items():
        numbers = system.sysctl_numbers("net.core.somaxconn")
        if len(numbers) != 1:
            fleet.lack("net.core.somaxconn", "not readable", host)
        elif numbers[0] < ranks:
            short.setdefault(numbers[0], []).append(host)
    for length, hosts in sorted(short.items()):
        yield finding(
            "net.listen-backlog",
            Severity.WARN,
            f"only {length} connections may wait for a process of {few(hosts)}: of {ranks} ranks that connect to the store "
            "or to NCCL's bootstrap there, some start seconds late",
            [Evidence(f"net.core.somaxconn = {length}", "/proc/sys/net/core/somaxconn", host=host) for host in hosts],
            hosts=hosts,
            confidence=0.75,
            fixes=[Fix("until the next boot", "sudo sysctl -w net.core.somaxconn=65535", host) for host in hosts],
        )
