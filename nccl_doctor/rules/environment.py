"""The variables a job on these hosts would be started with: the same lint as ``nccl-doctor env lint``, per host."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nccl_doctor.env import hosts, lint, number, sources
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.findings.model import Evidence, Finding, Severity
from nccl_doctor.rules.engine import Fleet, Host, fleet_rule, host_rule
from nccl_doctor.rules.interface_view import release_of

# rules/interface_settings.py judges these with the interfaces at hand.
_JUDGED_THERE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

_IDS = tuple(
    f"{lint.AREA}.{name}"
    for name in (
        "algo-without-ring",
        "conf-syntax",
        "conf-too-late",
        "contradiction",
        "dangerous",
        "hca-names-interface",
        "ifname-blank",
        "ifname-ignored",
        "ifname-modifier",
        "ifname-no-match",
        "ifname-prefix",
        "invalid-value",
        "invalid-value.fatal",
        "leftover-debugging",
        "misspelled",
        "outdated-value",
        "pinned",
        "read-by-nobody",
        "removed",
        "renamed",
        "set-twice",
        "shared-log",
        "source-order",
        "timeout-does-nothing",
        "too-new",
        "unknown-name",
    )
)


def layers(host: Host, plan: Plan) -> list[tuple[str, tuple[Assignment, ...]]]:
    """What NCCL on this host would see, highest precedence first; ``MissingFact`` without the host's environment."""
    environment = host.need(Environment)
    interfaces, release = host.want(Interfaces), release_of(host, plan)
    return hosts.layers_of(host.name, environment.variables, interfaces, release, plan.env)


def _kept(finding: Finding, name: str) -> bool:
    """Whether `check` should tell this: what is only worth knowing, and what interface rules judge better, is not."""
    if finding.severity is Severity.INFO:
        return False
    short = finding.id.removeprefix(f"{lint.AREA}.")
    return not (name in _JUDGED_THERE and short.startswith(("ifname", "gloo")))


@host_rule("software", *_IDS)
def variables(host: Host, plan: Plan) -> Iterator[Finding]:
    """The NCCL and PyTorch variables set on the host (environment, nccl.conf) are read, valid, and help.

    Misspelled, dead and renamed names, values that are not understood, forgotten debugging settings, pins that fight
    NCCL's tuning, contradictions; lines of nccl.conf that set something else than they seem to. What has no effect at
    all is a warning here: it does not stop a job.
    NCCL_IB_DISABLE=1 on a host with an active InfiniBand or RoCE port fails: the job would run over TCP.
    """
    found = layers(host, plan)
    items = [item for _, layer in found for item in layer]
    devices = {host.name: hosts.devices_of(host.want(Interfaces), host.want(InfinibandFact))}
    remarks = lint.remarks(items, release_of(host, plan), hosts.torch_of(host.want(Software)), devices)
    for made in (*remarks, *sources.source_order(found)):
        if not _kept(made.finding, made.assignment.name):
            continue
        finding = made.finding
        if finding.id in lint.WITHOUT_EFFECT:
            finding = msgspec.structs.replace(finding, severity=Severity.WARN)
        yield _with_ports(finding, made.assignment, host)
    host.need(Interfaces)  # tells what stands in nccl.conf: without it only the environment was judged


def _with_ports(finding: Finding, item: Assignment, host: Host) -> Finding:
    """NCCL_IB_DISABLE=1 beside an active port: the proof is the port, and it cripples the job."""
    if item.name != "NCCL_IB_DISABLE" or number.as_read(item.value or "") != 1 or "leftover" not in finding.id:
        return finding
    fabric = host.want(InfinibandFact)
    active = [(device, port) for device in fabric.devices for port in device.ports if port.active] if fabric else []
    if not active:
        return finding
    device, port = active[0]
    proof = Evidence(
        f"{device.name} port {port.port}: {port.state}, {port.rate} ({len(active)} active ports)",
        f"/sys/class/infiniband/{device.name}/ports/{port.port}",
        host=host.name,
    )
    return msgspec.structs.replace(finding, severity=Severity.FAIL, evidence=(*finding.evidence, proof))


@fleet_rule("software", f"{lint.AREA}.disagreement")
def agreement(fleet: Fleet) -> Iterator[Finding]:
    """All hosts set the same variables to the same values (those that may differ, such as interface names, aside).

    NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE, NCCL_NET and NCCL_SOCKET_MAGIC must agree, or ranks wait for
    each other.
    """
    fleet.need_several("one host: there is nobody to disagree with")
    known = fleet.every(Environment)
    fleet.every(Interfaces)  # what stands in nccl.conf
    winners = {host.name: sources.effective(layers(host, fleet.plan)) for host in fleet.hosts if host.name in known}
    for made in hosts.disagreements(winners):
        yield made.finding
