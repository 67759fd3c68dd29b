"""From a bundle of watched hosts to the answer: the report, and what happened in the order of time."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.files import printed_json
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.watch import Event, Watch
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding, Unknown
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import engine, thresholds
from nccl_doctor.rules.judge import Report, judge

WATCH_SCHEMA = "nccl-doctor/watch/1"


class Answer(msgspec.Struct, frozen=True):
    """What is told at the end: the report, each reached host's series, all events by time."""

    report: Report
    hosts: dict[str, Watch]
    events: tuple[Event, ...]


def examine(bundle: Bundle, rows: thresholds.Overrides | None = None) -> Answer:
    """The answer of a bundle that ``watch`` collected."""
    hosts = engine.facts_of(engine.reached(bundle), Watch)
    events = sorted(
        (event for watch in hosts.values() for event in watch.events), key=lambda event: (event.at_s, event.host)
    )
    return Answer(judge(bundle, rows), hosts, tuple(events))


class Document(msgspec.Struct, frozen=True):
    """What ``--format json`` prints. Times are seconds since the watch began, at ``created``.

    A finding that is folded under another one is its consequence.
    """

    schema: str
    tool: str
    created: str
    verdict: str  # healthy (nothing was seen), faulty, incomplete
    exit_code: int
    seconds: float
    hosts: tuple[str, ...]
    reached: tuple[str, ...]
    findings: tuple[Finding, ...]
    playbooks: dict[str, str]  # of each finding id
    unknown: tuple[Unknown, ...]
    events: tuple[Event, ...]
    series: dict[str, Watch]  # of each reached host


def to_json(answer: Answer, exit_code: ExitCode) -> bytes:
    """The answer as JSON: sorted, reproducible."""
    report = answer.report
    without = {name: msgspec.structs.replace(watch, events=()) for name, watch in answer.hosts.items()}
    document = Document(
        WATCH_SCHEMA, report.tool, report.created, report.verdict, int(exit_code), report.seconds, report.hosts,
        report.reached, report.findings, {item.id: for_finding(item.id) for item in report.findings}, report.unknown,
        answer.events, without,
    )  # fmt: skip
    return printed_json(document)
