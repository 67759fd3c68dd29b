"""What to do: fixes and variables from the playbooks, keyed to the versions seen; the next command if undecided."""

from __future__ import annotations

import re

from nccl_doctor.env import knowledge
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Cause, Verdict
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import EnvAdvice, Fix


def for_cause(case: Case, id: str, playbook: str) -> tuple[tuple[Fix, ...], tuple[EnvAdvice, ...]]:
    """Fixes (now, then for good) and environment variables for a cause."""
    if not playbook:
        return (), ()
    page = playbooks.load(playbook)
    fixes = tuple(
        Fix(_first_paragraph(page.section(heading)), _first_command(page.section(heading)))
        for heading in ("Fix now", "Fix for good")
    )
    nccl = _version(case.versions.get("nccl", ""))
    env = tuple(
        EnvAdvice(entry.name, entry.value, entry.when, entry.versions)
        for entry in page.env
        if holds(entry.versions, nccl)
        and case.value(entry.name) != entry.value
        and _live(case, entry.name, entry.value)
    )
    return fixes, env


def _live(case: Case, name: str, value: str) -> bool:
    """Whether the versions seen read this variable and default to another value: else the advice would do nothing."""
    nccl = case.versions.get("nccl", "").split(",")[0].strip()
    answer = knowledge.lookup(name, nccl)
    return answer.status is knowledge.Status.CURRENT and (not nccl or answer.default != value)


def _first_paragraph(text: str) -> str:
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("```") or (not line.strip() and kept):
            break
        if line.strip():
            kept.append(line.strip())
    return " ".join(kept)


def _first_command(text: str) -> str:
    block = re.search(r"```\w*\n(.*?)```", text, re.DOTALL)
    if not block:
        return ""
    lines = [line.split("  #")[0].strip() for line in block.group(1).splitlines()]
    return next((line for line in lines if line and not line.startswith("#")), "")


def _version(text: str) -> tuple[int, ...] | None:
    """The oldest of the versions seen; None if none was."""
    found = [tuple(int(part) for part in item.split(".")) for item in re.findall(r"\d+(?:\.\d+)+", text)]
    return min(found) if found else None


def holds(range_text: str, version: tuple[int, ...] | None) -> bool:
    """Whether a version lies in a range such as ``>=2.24``, ``<2.23`` or ``>=2.18 <2.27``; ``any`` always holds.

    An unknown version holds for every range: the advice then says for which versions it is meant.
    """
    if range_text.strip() in ("", "any") or version is None:
        return True
    for operator, wanted in re.findall(r"(>=|<=|<|>|==)\s*(\d+(?:\.\d+)*)", range_text):
        other = tuple(int(part) for part in wanted.split("."))
        mine = version[: len(other)] if operator in ("<=", "==") else version
        if not {
            ">=": mine >= other,
            "<=": mine <= other,
            "<": mine < other,
            ">": mine > other,
            "==": mine == other,
        }[operator]:
            return False
    return True


_NEXT = {
    "net.": "nccl-doctor check --stage ports --hosts HOSTFILE",
    "ib.": "nccl-doctor check --stage infiniband --hosts HOSTFILE",
    "gpu.": "nccl-doctor check --stage gpu --hosts HOSTFILE",
    "sys.": "nccl-doctor check --stage system --hosts HOSTFILE",
    "sw.": "nccl-doctor check --stage software --hosts HOSTFILE",
    "env.": "nccl-doctor env lint",
    "launch.": "nccl-doctor check --stage connectivity --hosts HOSTFILE",
}


def next_steps(case: Case, verdict: Verdict, causes: tuple[Cause, ...]) -> tuple[str, ...]:
    """The commands or inputs that would decide (or confirm); the most telling first."""
    if verdict is Verdict.HEALTHY:
        return ()
    steps: list[str] = []
    steps.extend(proof.next for proof in case.summary.proofs[:2] if proof.next)
    missing = _missing_ranks(case)
    if verdict is Verdict.UNDECIDED or (causes and causes[0].confidence < 0.8):
        if missing:
            steps.append(f"collect the logs of rank {missing}: they are not among these, and the others only waited")
        if not case.has("nccl-init-start", "bootstrap-using", "nccl-version") and not (
            causes and causes[0].id.startswith(("app.", "launch.", "unrelated"))
        ):
            steps.append("run again with NCCL_DEBUG=INFO: these logs hold no line of NCCL")
        if case.has("watchdog-timeout") and not case.has("desync-lagging", "fingerprint-mismatch"):
            steps.append(
                "run again with TORCH_FR_BUFFER_SIZE=2000 (before torch 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE=2000) and "
                "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the dumps to explain"
            )
    if causes:
        best = causes[0]
        for start, command in _NEXT.items():
            if best.id.startswith(start):
                steps.append(command)
        if best.id == "sys.host-oom":
            where = best.hosts[0] if best.hosts else "the host of the killed rank"
            steps.append(f"on {where}: dmesg -T | grep -i -E 'oom|killed process'")
        if best.playbook:
            steps.append(f"nccl-doctor playbook {best.playbook}")
    return tuple(dict.fromkeys(steps))


def _missing_ranks(case: Case) -> str:
    """The ranks that no line comes from, folded, if most others have lines."""
    seen = set(case.summary.ranks)
    if case.world < 2 or len(seen) < case.world / 2 or len(seen) >= case.world:
        return ""
    absent = [rank for rank in range(case.world) if rank not in seen]
    return fold(absent)


def fold(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2,5``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
