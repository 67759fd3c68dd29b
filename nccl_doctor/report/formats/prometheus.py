"""Prometheus text exposition, for node_exporter's textfile collector."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from nccl_doctor.facts.model import Bundle
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import BAD, HEALTHY, SUSPECT, UNKNOWN, Gate
from nccl_doctor.rules.judge import Report


def _label(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, help: str, samples: Sequence[tuple[str, float]]) -> list[str]:
    lines = [f"# HELP nccl_doctor_{name} {help}", f"# TYPE nccl_doctor_{name} gauge"]
    for labels, value in samples:
        lines.append(f"nccl_doctor_{name}" + (f"{{{labels}}}" if labels else "") + f" {value}")
    return lines


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """Gauges: go, host state (one of four is 1), findings per host and id, gaps, and when it was measured."""
    when = datetime.datetime.fromisoformat(report.created).timestamp()
    lines = _gauge("go", "Whether the preflight said go (1) or no-go (0).", [("", int(gate.go))])
    states = [
        (f'host="{_label(item.host)}",state="{state}"', int(item.state == state))
        for item in gate.decisions
        for state in (HEALTHY, SUSPECT, BAD, UNKNOWN)
    ]
    lines += _gauge("host_state", "State of a host: the state that holds is 1.", states)
    found = sorted(
        {(host, item.id, item.severity.value) for item in report.causes for host in item.hosts or ("cluster",)}
    )
    labels = [(f'host="{_label(host)}",id="{_label(id)}",severity="{severity}"', 1) for host, id, severity in found]
    lines += _gauge("finding", "A finding on a host.", labels)
    lines += _gauge("unknown", "Number of things that could not be measured.", [("", len(report.unknown))])
    lines += _gauge("run_timestamp_seconds", "When it was measured.", [("", round(when))])
    lines += _gauge("run_seconds", "How long it took.", [("", report.seconds)])
    return "\n".join(lines) + "\n"
