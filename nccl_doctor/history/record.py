"""From a bundle and its report to the run that is kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import SURE, Finding
from nccl_doctor.history.model import HostState, Run, Seen, Value
from nccl_doctor.rules import metrics
from nccl_doctor.rules.engine import reached
from nccl_doctor.rules.gate import Gate, decide_hosts
from nccl_doctor.rules.judge import Report


def run_of(bundle: Bundle, report: Report, command: str, gate: Gate | None = None) -> Run:
    """What is kept of this run."""
    used = set(report.hosts) if gate is None else set(gate.chosen) if gate.go else set()
    reached_hosts = set(report.reached)
    open_hosts = {host for gap in report.unknown for host in gap.hosts}
    states = tuple(
        HostState(item.host, item.state, item.host in reached_hosts and item.host not in open_hosts, item.host in used)
        for item in decide_hosts(report)
    )
    return Run(
        created=bundle.created,
        tool=bundle.tool,
        command=command,
        verdict=report.verdict,
        go=None if gate is None else gate.go,
        # One that applied to no host (its GPUs are gone) has passed nobody.
        stages=tuple(stage.name for stage in report.stages if stage.state != "skipped"),
        hosts=states,
        findings=tuple(sorted({row for item in report.causes for row in _rows(item)}, key=_key)),
        values=tuple(_values(bundle)),
    )


def _key(row: Seen) -> tuple[str, str, str, str]:
    return row.host, row.id, row.gpu, row.nic


def _rows(item: Finding) -> Iterator[Seen]:
    """One row per place; a finding's hosts without a place, and a finding without hosts, have one as well."""
    sure = item.confidence >= SURE or len(item.hosts) == 1
    named = set(item.hosts)
    placed = {(place.host, place.gpu, place.nic) for place in item.places if place.host in named}
    hosts = {host for host, _, _ in placed}
    for host, gpu, nic in placed | {(host, "", "") for host in named or {""} if host not in hosts}:
        yield Seen(item.id, item.severity.value, host, gpu, nic, item.stage, sure)


def _values(bundle: Bundle) -> Iterator[Value]:
    hosts = reached(bundle)
    for host in hosts:
        for metric in metrics.of_host(host):
            yield Value(host.name, metric.name, metric.value, metric.unit, metric.higher_is_better)
    for metric in metrics.of_run(hosts):
        yield Value("", metric.name, metric.value, metric.unit, metric.higher_is_better)
