"""Lint of whole hosts from a bundle: each host's environment and nccl.conf files, and where hosts disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.env import knowledge, nccl_conf, sources, versions
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.env.extract import conf
from nccl_doctor.env.files import Problem
from nccl_doctor.env.lint import Devices, Remark, Said, remark
from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.model import Bundle, HostFacts, ReachOutcome, fact_of
from nccl_doctor.facts.software import Software
from nccl_doctor.findings.model import Severity

VALUES_SHOWN = 8  # of a variable: a fleet can have one for each of its hosts


class FleetReading(msgspec.Struct, frozen=True):
    """What a bundle says of its hosts' variables."""

    assignments: tuple[Assignment, ...]
    remarks: tuple[Remark, ...]
    hosts: tuple[str, ...]
    problems: tuple[Problem, ...]
    devices: dict[str, Devices]
    nccl_version: str = ""
    torch_version: str = ""


def not_reached(host: HostFacts) -> str:
    """Why nothing is known of a host on which no agent ran, or on which it was lost; empty of any other."""
    reach = host.reach
    return "" if reach.outcome is ReachOutcome.OK else f"was not reached: {reach.why}"


def of_facts(bundle: Bundle) -> FleetReading:
    """The variables of every reached host of a bundle, which source wins on each, and where hosts disagree."""
    assignments: list[Assignment] = []
    remarks: list[Remark] = []
    problems: list[Problem] = []
    devices: dict[str, Devices] = {}
    winners: dict[str, dict[str, Assignment]] = {}
    softwares = {host.name: fact_of(host.probes, Software) for host in bundle.hosts}
    for host in bundle.hosts:
        if why := not_reached(host):
            problems.append(Problem(host.name, why))
            continue
        environment = fact_of(host.probes, Environment)
        if environment is None:
            result = host.probes.get(Environment.PROBE)
            why = result.why if result else "not collected"
            problems.append(Problem(host.name, f"its environment is not known ({why})"))
            continue
        interfaces = fact_of(host.probes, Interfaces)
        layers = layers_of(host.name, environment.variables, interfaces, version_of(softwares[host.name]))
        assignments += [item for _, layer in layers for item in layer]
        remarks += sources.source_order(layers)
        winners[host.name] = sources.effective(layers)
        devices[host.name] = devices_of(interfaces, fact_of(host.probes, InfinibandFact))
    remarks += disagreements(winners)
    releases = {version_of(software) for software in softwares.values()} - {""}
    torches = {torch_of(software) for software in softwares.values()} - {""}
    return FleetReading(
        tuple(assignments),
        tuple(remarks),
        tuple(sorted(winners)),
        tuple(problems),
        devices,
        bundle.plan.nccl_version or _oldest(releases),
        _oldest(torches),
    )


def _oldest(releases: Iterable[str]) -> str:
    """The lowest of several releases: what it does not know has no effect somewhere. Empty if there is none."""
    found = sorted(releases, key=versions.parse)
    return found[0] if found else ""


def version_of(software: Software | None) -> str:
    """The NCCL release a job on this host would load; empty if not known."""
    return _release(software.installed_nccl if software else "")


def torch_of(software: Software | None) -> str:
    """The PyTorch release of this host; empty if there is none or it is not known."""
    return _release(software.torch.version.split("+")[0] if software and software.torch else "")


def _release(text: str) -> str:
    try:
        versions.parse(text)
    except ValueError:  # a build of somebody's own naming
        return ""
    return text


def devices_of(interfaces: Interfaces | None, fabric: InfinibandFact | None) -> Devices:
    """The names NCCL's filters are matched against, in kernel order; empty where they were not collected."""
    names = dict.fromkeys(address.name for address in interfaces.addresses) if interfaces else {}
    return Devices(tuple(names), tuple(device.name for device in fabric.devices) if fabric else ())


def layers_of(
    host: str,
    environment: Mapping[str, str],
    interfaces: Interfaces | None,
    nccl_version: str,
    job_environment: Mapping[str, str] | None = None,
) -> list[tuple[str, tuple[Assignment, ...]]]:
    """The host's sources, highest precedence first; what the job will be started with comes before all."""
    layers = [("environment", sources.of_environment(environment, host))]
    if job_environment:
        layers.insert(0, ("job environment", sources.of_environment(job_environment, host, "job environment")))
    release = knowledge.nccl_release(nccl_version)
    for file in nccl_conf.files_read(interfaces.conf_files if interfaces else (), release):
        found: list[Assignment] = []
        for line in file.lines:
            for item in conf.read(line.text, file.path, f"host {host}", file.path, line.line):
                found.append(msgspec.structs.replace(item, host=host))
        layers.append((file.path, tuple(found)))
    return layers


def disagreements(winners: Mapping[str, Mapping[str, Assignment]]) -> Iterator[Remark]:
    """Variables that hosts set differently, or that only some set: {host: {name: the assignment that wins}}."""
    names = sorted({name for found in winners.values() for name in found})
    for name in names:
        by_value: dict[str | None, list[str]] = {}
        for host in sorted(winners):
            item = winners[host].get(name)
            by_value.setdefault(item.value if item else None, []).append(host)
        if len(by_value) < 2 or name in knowledge.load().may_differ:
            continue
        groups = sorted(by_value.items(), key=lambda group: (-len(group[1]), str(group[0])))
        told = [f"{'not set' if value is None else repr(value)} on {few(hosts, 3)}" for value, hosts in groups]
        more = [f"and {len(told) - VALUES_SHOWN} more values"] if len(told) > VALUES_SHOWN else []
        said = "; ".join(told[:VALUES_SHOWN] + more)
        shown = [winners[hosts[0]][name] for value, hosts in groups if value is not None]
        severity = Severity.FAIL if name in knowledge.load().must_agree and len(shown) > 1 else Severity.WARN
        made = remark(
            shown[0],
            Said(
                "disagreement",
                f"{name} differs between hosts: {said}",
                severity=severity,
                fix=f"Set {name} to one value on all hosts, or nowhere.",
                confidence=0.9,
            ),
            others=shown[1:4],
        )
        odd = tuple(host for _, hosts in groups[1:] for host in hosts)
        yield msgspec.structs.replace(made, finding=msgspec.structs.replace(made.finding, hosts=tuple(sorted(odd))))


def fold(remarks: Iterable[Remark]) -> list[Remark]:
    """The same remark on many hosts as one, with all hosts in it and at most three of them quoted."""
    folded: dict[tuple[str, str, int], list[Remark]] = {}
    for place, item in enumerate(remarks):
        # Only remarks on hosts fold; each line of a file stands for itself.
        key = item.finding.id, item.finding.title, 0 if item.assignment.host else place + 1
        folded.setdefault(key, []).append(item)
    return [_as_one(alike) for alike in folded.values()]


def _as_one(alike: list[Remark]) -> Remark:
    first = alike[0]
    if len(alike) == 1:
        return first
    hosts = tuple(sorted({host for item in alike for host in item.finding.hosts}))
    evidence = tuple(proof for item in alike[:3] for proof in item.finding.evidence)[:3]
    return msgspec.structs.replace(
        first, finding=msgspec.structs.replace(first.finding, hosts=hosts, evidence=evidence)
    )
