"""JUnit XML: one test case per host and stage, so that a CI server shows which host failed which check."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Finding, Severity, Unknown
from nccl_doctor.report.formats._text import paragraph
from nccl_doctor.report.safe_text import lines
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

OTHER = "other"  # the suite of what belongs to no stage: a recommendation that failed, an unknown requirement

# XML 1.0 has no way to write these, not even escaped; ``visible`` leaves none of them, but lone surrogates and
# non-characters above the BMP remain.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    return _NOT_XML.sub("�", lines(text))


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """``<testsuites>``: a suite per stage, a case per host. Unknown is an error, a warning passes with its text.

    So does a consequence: the case of its cause fails, maybe another host's. What was asked of a stage that the run left
    out has a suite as well, and the decision is a case of its own.
    """
    top = ElementTree.Element("testsuites", name="nccl-doctor")
    told = {id(item): _text(paragraph(item)) for item in report.findings if item.severity is not Severity.INFO}
    skipped = {stage.name: stage.reason for stage in report.stages if stage.state == "skipped"}
    names = [stage.name for stage in report.stages]
    open_stages = {stage for gap in report.unknown for stage in gap.stages or (OTHER,)}
    open_stages |= {item.stage or OTHER for item in report.findings if item.severity is not Severity.INFO}
    for name in [*names, *sorted(open_stages.difference(names))]:
        suite = _suite(top, name, report)
        findings, gaps_of = _by_host(report, name)
        for host in report.hosts:
            case = _case(suite, name, host)
            mine, gaps = findings.get(host, []), gaps_of.get(host, [])
            failed = [item for item in mine if item.severity is Severity.FAIL and not item.folded_under]
            remarks = [
                f"{f'a consequence of {item.folded_under}' if item.folded_under else 'warning'}: {told[id(item)]}"
                for item in mine
                if item not in failed
            ]
            words = _text("not measured: " + "; ".join(f"{gap.what}: {gap.why}" for gap in gaps)) if gaps else ""
            if failed:
                node = ElementTree.SubElement(case, "failure", type=failed[0].id, message=_text(failed[0].title))
                node.text = "\n\n".join([*(told[id(item)] for item in failed), *([words] if words else [])])
            elif words:
                ElementTree.SubElement(case, "error", type="unknown", message=words)
            elif name in skipped:
                ElementTree.SubElement(case, "skipped", message=_text(skipped[name]))
            if remarks:
                ElementTree.SubElement(case, "system-out").text = "\n\n".join(remarks)
    case = _case(_suite(top, "decision", report), "decision", "go")
    if not gate.go:
        ElementTree.SubElement(case, "failure", type="no-go", message=_text(gate.reason))
    for suite in top:
        suite.set("tests", str(len(suite)))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _suite(top: ElementTree.Element, name: str, report: Report) -> ElementTree.Element:
    return ElementTree.SubElement(top, "testsuite", name=_text(name), timestamp=report.created)


def _case(suite: ElementTree.Element, stage: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"nccl-doctor.{_text(stage)}", name=_text(name))


def _by_host(report: Report, stage: str) -> tuple[dict[str, list[Finding]], dict[str, list[Unknown]]]:
    """Host -> its findings, and its gaps, of one stage; what names no host is everybody's."""
    findings: dict[str, list[Finding]] = {}
    for item in report.findings:
        if (item.stage or OTHER) == stage and item.severity is not Severity.INFO:
            for host in item.hosts or report.hosts:
                findings.setdefault(host, []).append(item)
    gaps: dict[str, list[Unknown]] = {}
    for gap in report.unknown:
        if stage in (gap.stages or (OTHER,)):
            for host in gap.hosts or report.hosts:
                gaps.setdefault(host, []).append(gap)
    return findings, gaps
