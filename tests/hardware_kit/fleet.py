"""What machines told, as the rest of the program has it: hosts, bundles, reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Finding
from nccl_doctor.rules.judge import Report, judge

STAGES = ("gpu", "topology", "infiniband")
Facts = dict[str, Any]  # what `Machine.facts` gives: probe -> its result


def bundle(machines: Mapping[str, Facts], stages: tuple[str, ...] = STAGES, **plan: Any) -> Bundle:
    """The bundle of a check of these hosts: name -> facts."""
    hosts = tuple(
        HostFacts(name, Reach(ReachOutcome.OK), msgspec.convert(facts, dict[str, ProbeResult]))
        for name, facts in sorted(machines.items())
    )
    return Bundle(BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(stages=stages, **plan), hosts)


def report(machines: Mapping[str, Facts], stages: tuple[str, ...] = STAGES, **plan: Any) -> Report:
    """What is judged from them."""
    return judge(bundle(machines, stages, **plan))


def report_on(*hosts: Facts, **plan: Any) -> Report:
    """The same of hosts named gpu01, gpu02, ..."""
    return report({f"gpu{number:02d}": one for number, one in enumerate(hosts, 1)}, **plan)


def found(*hosts: Facts, **plan: Any) -> dict[str, Finding]:
    """What is found on them, by id."""
    return {item.id: item for item in report_on(*hosts, **plan).findings}


def grades(findings: Mapping[str, Finding]) -> dict[str, str]:
    """How bad each is."""
    return {id: item.severity.value for id, item in findings.items()}


def words(item: Finding) -> str:
    """All that a finding says: its title and its evidence."""
    return " ".join([item.title, *(proof.text for proof in item.evidence)])
