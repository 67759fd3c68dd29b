"""What saved runs of ``check``, ``preflight`` and ``bench`` found, told together with what the logs say."""

from __future__ import annotations

import msgspec

from nccl_doctor.explain.model import Cause, Consequence, Explanation, Verdict
from nccl_doctor.explain.quotes import MAX_EVIDENCE
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Evidence, Finding, Severity

MAX_NEXT = 6
_HANG = "job"  # the stage of what `hang` finds
_ENDS_OF_HANGS = (
    "launch.killed",
    "app.straggler-timeout",
    "net.peer-lost",
)  # what the logs of a job that hung end with


class SavedRun(msgspec.Struct, frozen=True):
    """One saved run, judged: its findings, what it left open (as sentences, and what would measure it)."""

    name: str
    findings: tuple[Finding, ...]
    hosts: int
    open: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


def tell(explanation: Explanation, runs: list[SavedRun], logs: bool) -> Explanation:
    """The explanation of these logs (if there are ``logs``) and these runs in one.

    A fault that a run proved is a cause; one that the logs point to as well comes first and takes the logs' lines. What a
    run could not measure is a problem of the input: it can make nothing healthy. A job that was seen hanging was ended, or
    timed out, because it hung.
    """
    found = {(item.id, item.title, item.hosts): _cause(item, run) for run, item in _findings(runs, Severity.FAIL)}
    faults = list(found.values())  # what several runs found, once
    told = list(explanation.causes)
    hung = any(item.stage == _HANG for _, item in _findings(runs, Severity.FAIL))
    decided = logs and explanation.verdict in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED)
    decided = decided and not (hung and told[0].id in _ENDS_OF_HANGS)
    both = []
    for fault in faults:
        same = next((cause for cause in told if _related(cause.id, fault.id)), None)
        if same is not None:
            told.remove(same)
            both.append(_joined(fault, same))
    alone = [fault for fault in faults if not any(_related(fault.id, cause.id) for cause in both)]
    causes = (*both, *told, *alone) if decided else (*both, *alone, *told)
    verdict = explanation.verdict if decided and not both else _verdict(explanation, runs, bool(faults), logs)
    steps = [*(step for run in runs for step in run.next), *(explanation.next if logs else ())]
    return msgspec.structs.replace(
        explanation,
        verdict=verdict,
        sentence=_sentence(explanation, runs, causes, bool(faults), decided),
        causes=causes,
        consequences=(
            *explanation.consequences,
            *(_folded(item) for _, item in _findings(runs, Severity.FAIL, folded=True)),
        ),
        next=tuple(dict.fromkeys(steps))[:MAX_NEXT],
        notes=(
            *explanation.notes,
            *(f"{run.name}: {item.title}" for run, item in _findings(runs, Severity.WARN)),
        ),
        evidence=explanation.evidence if logs else tuple(Evidence(_summary(run), run.name) for run in runs),
    )


def _findings(runs: list[SavedRun], severity: Severity, folded: bool = False) -> list[tuple[SavedRun, Finding]]:
    """The findings of this severity, with their runs; those that another finding explains are ``folded``."""
    told = [(run, item) for run in runs for item in run.findings if item.severity is severity]
    return [(run, item) for run, item in told if bool(item.folded_under) is folded]


def _related(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _cause(item: Finding, run: SavedRun) -> Cause:
    return Cause(
        id=item.id,
        confidence=round(min(item.confidence, 0.99), 2),
        title=item.title,
        evidence=item.evidence[:MAX_EVIDENCE],
        ranks=tuple(sorted({place.rank for place in item.places if place.rank is not None})),
        hosts=item.hosts,
        fixes=item.fixes,
        env=item.env,
        playbook=playbooks.for_finding(item.id),
        why=f"Measured by the run saved as {run.name}.",
    )


def _joined(fault: Cause, told: Cause) -> Cause:
    """A fault that both a run and the logs show."""
    return msgspec.structs.replace(
        told,
        id=max(fault.id, told.id, key=len),
        confidence=max(fault.confidence, told.confidence),
        hosts=tuple(sorted({*fault.hosts, *told.hosts})),
        evidence=(*told.evidence[: MAX_EVIDENCE // 2], *fault.evidence[: MAX_EVIDENCE // 2]),
        fixes=fault.fixes or told.fixes,
        env=fault.env or told.env,
        why=f"{told.why} {fault.why}".strip(),
    )


def _folded(item: Finding) -> Consequence:
    return Consequence(item.title, max(1, len(item.hosts)), item.evidence[0], (), item.hosts)


def _summary(run: SavedRun) -> str:
    left = f"; left open: {len(run.open)}, {run.open[0]}" if run.open else ""
    count = sum(item.severity is not Severity.INFO for item in run.findings)
    return f"{_hosts(run.hosts)} measured, {count or 'no'} finding{'s' * (count != 1)}{left}"


def _verdict(explanation: Explanation, runs: list[SavedRun], faults: bool, logs: bool) -> Verdict:
    if faults:
        return Verdict.CAUSE_FOUND
    if logs:
        return explanation.verdict
    return Verdict.HEALTHY if all(run.hosts and not run.open for run in runs) else Verdict.UNDECIDED


def _sentence(
    explanation: Explanation, runs: list[SavedRun], causes: tuple[Cause, ...], faults: bool, decided: bool
) -> str:
    if faults and not (decided and causes[0].title in explanation.sentence):
        hosts = f"{causes[0].hosts[0]}: " if len(causes[0].hosts) == 1 else ""
        return hosts + causes[0].title
    if faults or explanation.read.files > len(runs):
        return explanation.sentence
    left = [item for run in runs for item in run.open]
    if left:
        return f"the saved run found nothing wrong, but left {len(left)} thing{'s' * (len(left) != 1)} open"
    return "the saved run found nothing wrong on " + _hosts(sum(run.hosts for run in runs))


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"
