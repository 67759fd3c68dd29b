"""The pure heart of ``explain``: log sources in, an explanation out. No files, no clock, no terminal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nccl_doctor.explain import advice, costs, quotes, ranking, verdict
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.lines import shortened
from nccl_doctor.explain.model import Cause, Explanation, Hit, InputCount, LogSource, Moment, Role, Verdict
from nccl_doctor.explain.readers.scan import scan
from nccl_doctor.explain.summary import Summary
from nccl_doctor.facts import redaction
from nccl_doctor.findings import playbooks

MAX_CAUSES = 5
MAX_MOMENTS = 10
WORTH_NAMING = 0.12
_TOLD = 0.2  # half (the work went on) of the weakest record of a kernel or scheduler, 0.4


def analyse(sources: Iterable[LogSource]) -> Explanation:
    """Explain these logs. Reads each source once; keeps only what the signatures recognised."""
    summary = Summary()
    for source in sources:
        summary.merge(read(source))
    return explain(summary)


def read(source: LogSource) -> Summary:
    """What a source holds, and what the RAS reports in it prove, if all of it is at hand."""
    found = scan(source)
    if "ras-report" in found.groups and isinstance(source.content, (bytes, str)):
        from nccl_doctor.explain import snapshots  # few logs need it

        found.proofs += snapshots.of_log(source.name, source.content)
    return found


def explain(summary: Summary) -> Explanation:
    """Explain what the readers found."""
    case = Case(summary)
    candidates = [item for item in ranking.rank(case) if item.strength >= WORTH_NAMING]
    good = verdict.good_end(case)
    reached = verdict.reached(case, candidates, good)
    healthy = reached is Verdict.HEALTHY
    causes = () if healthy else tuple(_cause(case, item) for item in candidates[:MAX_CAUSES])
    decided = causes[0].evidence if causes else ()
    explanation = Explanation(
        verdict=reached,
        sentence=verdict.sentence(case, reached, causes),
        causes=causes,
        consequences=() if healthy else quotes.consequences(case, decided),
        next=advice.next_steps(case, reached, causes),
        versions=case.versions,
        evidence=tuple(quotes.quote(hit) for hit in good),
        overcome=_overcome(candidates) if healthy else (),
        worth_knowing=costs.remarks(case, causes),
        notes=_notes(case),
        timeline=_timeline(case),
        problems=tuple(summary.problems),
        read=InputCount(summary.files, summary.bytes, summary.lines),
        world={key: value for key, value in (("ranks", case.world), ("nodes", case.nodes)) if value},
    )
    return _redacted(explanation)


def _redacted(explanation: Explanation) -> Explanation:
    """The same without tokens, keys and passwords: logs quote command lines and environments."""
    plain = redaction.redact_tree(msgspec.to_builtins(explanation))
    return msgspec.convert(plain, Explanation)


def _cause(case: Case, item: Candidate) -> Cause:
    page = playbooks.load(playbooks.for_finding(item.id))
    evidence = quotes.of_cause(case, item)
    return Cause(
        id=item.id,
        confidence=round(min(item.strength, 0.99), 2),
        title=item.title,
        evidence=evidence,
        ranks=tuple(sorted(item.ranks)),
        hosts=tuple(sorted(item.hosts or _hosts_of_ranks(case, item))),
        fixes=advice.fixes(page, evidence),
        env=advice.variables(case, item.id, page, evidence),
        playbook=page.id,
        why=item.why,
    )


def _hosts_of_ranks(case: Case, item: Candidate) -> set[str]:
    """Where the ranks to blame ran; that all ranks ran somewhere blames no host."""
    return case.hosts_with(item.ranks) if len(item.ranks) < max(case.world, 2) else set()


def _overcome(candidates: list[Candidate]) -> tuple[str, ...]:
    """What would have been causes, had the work not gone on: whoever runs the job wants to know of it."""
    told = [item for item in candidates if item.strength >= _TOLD and not item.vague]
    return tuple(f"{shortened(item.hits[0].text, 160)} | {item.title}; the work went on" for item in told)


def _notes(case: Case) -> tuple[str, ...]:
    """Known-harmless lines that were seen, with the condition under which they do matter."""
    return tuple(
        f"{shortened(case.hits(harmless.name)[0].text, 160)} | {harmless.why}" for harmless in case.seen(Role.HARMLESS)
    )


def _timeline(case: Case) -> tuple[Moment, ...]:
    """The first sign of each kind of event, in time (or line) order."""
    events = [
        (case.hits(signature.name)[0], signature.fold or signature.cause)
        for signature in case.seen(Role.CAUSE, Role.SYMPTOM)
    ]
    events += [(item.hit, f"{item.type}: {item.message}"[:90]) for item in case.exceptions.ordinary[:3]]
    timed = all(hit.seconds is not None for hit, _ in events)
    events.sort(key=lambda event: ((event[0].seconds or 0.0) if timed else 0.0, event[0].file, event[0].line))
    firsts: dict[str, Hit] = {}
    for hit, what in events:
        firsts.setdefault(what, hit)
    return tuple(
        Moment(_clock(hit), _who(hit), what, hit.file, hit.line) for what, hit in list(firsts.items())[:MAX_MOMENTS]
    )


def _who(hit: Hit) -> str:
    return f"rank {hit.rank}" if hit.rank is not None else hit.host or "-"


def _clock(hit: Hit) -> str:
    if hit.seconds is None:
        return ""
    day = hit.seconds % 86400
    return f"{int(day // 3600):02d}:{int(day % 3600 // 60):02d}:{int(day % 60):02d}"
