"""From a report and its bundle to one HTML file. Jinja2 escapes everything; ``visible`` has made it printable before."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.facts.fold import few_reasons, fold
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import EnvAdvice, Finding, Fix, Severity
from nccl_doctor.findings.playbooks import for_finding, load
from nccl_doctor.report.bench_plot import svg
from nccl_doctor.report.console import alike, headline, merged_fixes, no_setting, setting_reason
from nccl_doctor.report.differences import drift
from nccl_doctor.report.formats._text import quote
from nccl_doctor.report.html import measured, topologies
from nccl_doctor.report.safe_text import moment, visible
from nccl_doctor.report.terminal import confidence_word
from nccl_doctor.rules.gate import Gate, decide_hosts
from nccl_doctor.rules.judge import Report

HERE = Path(__file__).parent
FIXES_SHOWN = 20
EVIDENCE_SHOWN = 200  # lines per finding; the rest is in the bundle
REASONS_SHOWN = 6  # of one cell of the matrix


class Row(msgspec.Struct, frozen=True):
    """Hosts that fared alike: their names folded, their decision, and one cell per stage."""

    hosts: str
    count: int
    state: str
    cells: tuple[tuple[str, str], ...]  # (state, what decided it)


class Entry(msgspec.Struct, frozen=True):
    """One problem of the page: alike findings together, with the consequences folded beneath."""

    anchor: str
    id: str
    severity: str
    confidence: str
    hosts: str
    titles: tuple[str, ...]
    evidence: tuple[str, ...]
    more: int
    fixes: tuple[Fix, ...]
    more_fixes: int
    env: tuple[EnvAdvice, ...]
    playbook: tuple[tuple[str, str], ...]
    consequences: tuple[str, ...]


def render(report: Report, bundle: Bundle, gate: Gate | None = None, runs: Sequence[tuple[str, Outcome]] = ()) -> str:
    """The page. ``runs`` are bench runs (label, outcome) whose curves are drawn, the newest first."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    script = (HERE / "filter.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    environment.filters |= {"fold": fold, "moment": moment, "reason": setting_reason}
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    kinds, others = topologies.topologies(bundle)
    text: str = environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        script_hash=f"'sha256-{digest}'",
        report=report,
        gate=gate,
        headline=_headline(report, gate),
        rows=matrix(report),
        entries=entries(report),
        heatmaps=measured.heatmaps(bundle, runs),
        drift=drift(bundle),
        topologies=kinds,
        other_topologies=others,
        plot=Markup(svg(runs)),
        curves=measured.curves(runs),
        no_setting=no_setting(report),
    )
    return text


def _printable(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _headline(report: Report, gate: Gate | None) -> tuple[str, str]:
    """(state, sentence): what the reader must know first."""
    if gate is not None:
        return ("good" if gate.go else "bad", f"{'GO' if gate.go else 'NO-GO'}: {gate.reason}.")
    state = {"faulty": "bad", "incomplete": "unknown"}.get(report.verdict, "good")
    return state, ": ".join(headline(report))


def matrix(report: Report) -> list[Row]:
    """Hosts x stages, hosts with equal rows folded into one; the worst rows first."""
    cells: dict[str, dict[str, tuple[str, set[str]]]] = {host: {} for host in report.hosts}
    order = ("fail", "warn", "unknown", "effect", "pass")

    def note(host: str, stage: str, state: str, why: str) -> None:
        row = cells.setdefault(host, {})  # a bundle made by hand may name hosts that it does not have
        current, reasons = row.get(stage, ("pass", set()))
        if order.index(state) < order.index(current):
            row[stage] = (state, {why})
        elif state == current and state != "pass":
            reasons.add(why)

    for gap in report.unknown:
        for host in gap.hosts:
            for stage in gap.stages:
                note(host, stage, "unknown", f"{gap.what}: {gap.why}")
    for item in report.findings:
        if item.severity is not Severity.INFO:
            under = item.folded_under
            state, why = ("effect", f"{item.id}, explained by {under}") if under else (item.severity.value, item.id)
            for host in item.hosts or report.hosts:
                note(host, item.stage, state, why)
    # What applies to no host that was reached may apply to one that was not: a gap of that host is told in its place.
    usual = {
        stage.name: ("skipped", {stage.reason}) if stage.state == "skipped" else ("pass", set())
        for stage in report.stages
    }
    states = {item.host: item.state for item in decide_hosts(report)}
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for host in report.hosts:
        row = tuple(_cell(*cells[host].get(name, usual[name])) for name in usual)
        groups.setdefault((states[host], row), []).append(host)
    rank = {"bad": 0, "unknown": 1, "suspect": 2, "healthy": 3}
    rows = [Row(fold(hosts), len(hosts), state, row) for (state, row), hosts in groups.items()]
    return sorted(rows, key=lambda row: (rank[row.state], row.hosts))


def _cell(state: str, reasons: set[str]) -> tuple[str, str]:
    return state, few_reasons(sorted(reasons), REASONS_SHOWN)


def entries(report: Report) -> list[Entry]:
    """The problems, alike findings together, in the report's order; informative ones last."""
    causes = sorted(report.causes, key=lambda item: item.severity is Severity.INFO)
    return [_entry(number, group, report) for number, group in enumerate(alike(causes), 1)]


def _entry(number: int, group: list[Finding], report: Report) -> Entry:
    first = group[0]
    proofs = [quote(proof) for item in group for proof in item.evidence]
    fixes = merged_fixes(group)
    book = for_finding(first.id)
    sections = ("What it means", "How to confirm", "Fix now", "Fix for good", "References")
    return Entry(
        anchor=f"finding-{number}",
        id=first.id,
        severity=first.severity.value,
        confidence=confidence_word(min(item.confidence for item in group)),
        hosts=fold(host for item in group for host in item.hosts),
        titles=tuple(item.title for item in group[:20]),
        evidence=tuple(proofs[:EVIDENCE_SHOWN]),
        more=max(0, len(proofs) - EVIDENCE_SHOWN),
        fixes=tuple(fixes[:FIXES_SHOWN]),
        more_fixes=max(0, len(fixes) - FIXES_SHOWN),
        env=first.env,
        playbook=tuple((heading, load(book).section(heading)) for heading in sections) if book else (),
        consequences=tuple(
            sorted({f"{other.title} ({other.id})" for other in report.findings if other.folded_under == first.id})
        ),
    )
