"""What several formats share: one plain paragraph for a finding, and what makes it the same one in the next run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.findings.model import Evidence, Finding
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.report.console import setting_reason
from nccl_doctor.report.safe_text import visible


def quote(proof: Evidence) -> str:
    """One line of proof with its place, safe to print."""
    return visible(f"{proof.place}  {proof.text}" if proof.place else proof.text)


def paragraph(item: Finding, evidence: int = 10) -> str:
    """Title, hosts, evidence, fixes and playbook of a finding, a line each."""
    lines = [visible(item.title)]
    if item.hosts:
        lines.append(f"hosts: {visible(fold(item.hosts))}")
    lines += [f"  {quote(proof)}" for proof in item.evidence[:evidence]]
    if len(item.evidence) > evidence:
        lines.append(f"  ... and {counted(len(item.evidence) - evidence, 'more line')} of proof")
    for fix in item.fixes:
        lines.append(f"fix: {visible(fix.told)}")
        if fix.command:  # by itself at the end of its line: it is there to be copied
            lines.append(
                f"  on {visible(fix.host)}: {visible(fix.command)}" if fix.host else f"  {visible(fix.command)}"
            )
    lines += [f"set: {visible(advice.shell)}   {visible(setting_reason(advice))}" for advice in item.env]
    book = for_finding(item.id)
    if book:
        lines.append(f"playbook: nccl-doctor playbook {book}")
    return "\n".join(lines)


def mark(*parts: str) -> str:
    """The fingerprint of what these words name."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


def marks(findings: Sequence[Finding]) -> list[str]:
    """A fingerprint each, the same for the same problem in the next run: by id, hosts, and GPUs or NICs.

    No two are equal, as the services keep one of equal ones and drop the others.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for item in findings:
        devices = {f"{place.host} {place.gpu} {place.nic}" for place in item.places if place.gpu or place.nic}
        parts = (item.id, *item.hosts, *sorted(devices))
        seen[parts] += 1
        found.append(mark(*parts, *([str(seen[parts])] if seen[parts] > 1 else [])))
    return found
