"""JUnit XML: one test case per host and stage, so that a CI server shows which host failed which check."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import Finding, Severity, Unknown
from nccl_doctor.report.formats._text import paragraph
from nccl_doctor.report.safe_text import visible
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report

# XML 1.0 has no way to write these, not even escaped; ``visible`` leaves none of them, but lone surrogates and
# non-characters above the BMP remain.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    return _NOT_XML.sub("�", "\n".join(visible(line) for line in text.split("\n")))


def render(report: Report, gate: Gate, bundle: Bundle) -> str:
    """``<testsuites>``: a suite per stage, a case per host. Unknown is an error, a warning passes with its text.

    So does a consequence: the case of its cause fails, maybe another host's.
    """
    top = ElementTree.Element("testsuites", name="nccl-doctor")
    told = {id(item): _text(paragraph(item)) for item in report.findings if item.severity is not Severity.INFO}
    for stage in report.stages:
        suite = ElementTree.SubElement(top, "testsuite", name=stage.name, timestamp=report.created)
        counts = {"failures": 0, "errors": 0, "skipped": 0}
        findings, gaps_of = _by_host(report, stage.name)
        for host in report.hosts:
            case = ElementTree.SubElement(suite, "testcase", classname=f"nccl-doctor.{stage.name}", name=_text(host))
            mine, gaps = findings.get(host, []), gaps_of.get(host, [])
            failed = [item for item in mine if item.severity is Severity.FAIL and not item.folded_under]
            if failed:
                counts["failures"] += 1
                node = ElementTree.SubElement(case, "failure", type=failed[0].id, message=_text(failed[0].title))
                node.text = "\n\n".join(told[id(item)] for item in failed)
            elif gaps:
                counts["errors"] += 1
                words = "; ".join(f"{gap.what}: {gap.why}" for gap in gaps)
                ElementTree.SubElement(case, "error", type="unknown", message=_text(f"not measured: {words}"))
            elif stage.state == "skipped":
                counts["skipped"] += 1
                ElementTree.SubElement(case, "skipped", message=_text(stage.reason))
            others = [item for item in mine if item.folded_under or item.severity is Severity.WARN]
            if others:
                text = "\n\n".join(
                    f"{f'a consequence of {item.folded_under}' if item.folded_under else 'warning'}: {told[id(item)]}"
                    for item in others
                )
                ElementTree.SubElement(case, "system-out").text = text
        suite.set("tests", str(len(report.hosts)))
        for name, count in counts.items():
            suite.set(name, str(count))
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _by_host(report: Report, stage: str) -> tuple[dict[str, list[Finding]], dict[str, list[Unknown]]]:
    """Host -> its findings, and its gaps, of one stage."""
    findings: dict[str, list[Finding]] = {}
    for item in report.findings:
        if item.stage == stage:
            for host in item.hosts or report.hosts:  # a finding that names no host is everybody's
                findings.setdefault(host, []).append(item)
    gaps: dict[str, list[Unknown]] = {}
    for gap in report.unknown:
        if stage in gap.stages:
            for host in gap.hosts:
                gaps.setdefault(host, []).append(gap)
    return findings, gaps
