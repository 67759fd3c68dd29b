"""The pure heart of ``explain``: log sources in, an explanation out. No files, no clock, no terminal."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable

import msgspec

from nccl_doctor.explain import advice, attempts, blame, candidates, costs, quotes, ranking, verdict
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.hang import BEGINNINGS
from nccl_doctor.explain.lines import shortened
from nccl_doctor.explain.model import (
    Cause,
    Explanation,
    Hit,
    InputCount,
    InputProblem,
    LogSource,
    Moment,
    Role,
    Verdict,
)
from nccl_doctor.explain.numbering import numbered
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
        found = scan(source)
        if "ras-report" in found.groups and isinstance(source.content, (bytes, str)):
            from nccl_doctor.explain import snapshots  # few logs need it

            found.proofs += snapshots.of_log(source.name, source.content)
        summary.merge(found)
    return explain(summary)


def explain(summary: Summary) -> Explanation:
    """Explain what the readers found."""
    whole = Case(summary)
    case, ranked = _weighed(whole)
    ranked = [item for item in ranked if item.strength >= WORTH_NAMING]
    good = verdict.good_end(case)
    reached = verdict.reached(case, ranked, good)
    healthy = reached is Verdict.HEALTHY
    places = blame.Places(case)
    causes = () if healthy else tuple(_cause(case, item, places) for item in ranked[:MAX_CAUSES])
    decided = causes[0].evidence if causes else ()
    explanation = Explanation(
        verdict=reached,
        sentence=verdict.sentence(case, reached, causes),
        causes=causes,
        consequences=() if healthy else quotes.consequences(case, decided),
        next=advice.next_steps(case, reached, causes),
        versions=case.versions,
        evidence=tuple(quotes.quote(hit) for hit in good),
        overcome=_overcome(ranked) if healthy else (),
        worth_knowing=costs.remarks(case, causes),
        notes=_notes(whole),
        timeline=_timeline(whole),
        problems=(*summary.problems, *_broken(whole, case)),
        read=InputCount(summary.files, summary.bytes, summary.lines),
        world={key: value for key, value in (("ranks", case.world), ("nodes", case.nodes)) if value},
    )
    if summary.turned:
        explanation = numbered(explanation, summary.turned, lambda name, line: summary.turned[name][line - 1])
    return _redacted(explanation)


def _weighed(whole: Case) -> tuple[Case, list[Candidate]]:
    """The case with its candidates. Where somebody started the program again by hand, and that run is well, the ones before it are
    what is asked about: nothing recovered, he changed something."""
    case, ranked = _of_last_attempt(whole)
    launches = whole.hits("typed-launch")
    if launches and verdict.reached(case, ranked, verdict.good_end(case)) is Verdict.HEALTHY:
        before = Case(attempts.before(whole, launches[-1]))
        of_before = ranking.rank(before)
        failed = verdict.reached(before, of_before, []) is Verdict.CAUSE_FOUND
        # Slow runs may be compared on purpose: their own rules tell.
        if failed and not (ranking.costs_speed(before, of_before[0]) or _of_another_run(before, of_before[0])):
            of_before[0].title += "; a later run went well"
            return before, of_before
    return case, ranked


def _of_another_run(before: Case, item: Candidate) -> bool:
    """Whether a program's own fault (Xid 13 and the like) stands in a kernel log from before the first run: it harms no other."""
    return item.id == "gpu.illegal-access" and not (before.has(*BEGINNINGS, "progress") or before.exceptions.ordinary)


def _of_last_attempt(whole: Case) -> tuple[Case, list[Candidate]]:
    """The case with its candidates; of a job that was started again what tells of its last attempt, where that says by itself
    how the job ended. What ended the attempts before counts half then, as all that the work got over."""
    ranked = ranking.rank(whole)
    told = attempts.last_attempt(whole)
    if told is None or not ranked or ranked[0].cured:
        return whole, ranked
    last = Case(told)
    of_last = ranking.rank(last)
    healthy = verdict.reached(last, of_last, verdict.good_end(last)) is Verdict.HEALTHY
    if not ((last.has("progress") or last.course.recovered) if healthy else ranking.ends_it(of_last, ranked)):
        return whole, ranked
    most = verdict.DECIDED if healthy else of_last[0].strength
    before = [item for item in ranked if item.id not in {one.id for one in of_last}]
    for item in before:
        item.strength, item.slows = min(item.strength, most) / 2, False
    return last, sorted((*of_last, *before), key=lambda item: -item.strength)


def _broken(*cases: Case) -> list[InputProblem]:
    """Rules of ours that raised, once each: what they would have told is missing."""
    rules = {name: error for case in cases for name, error in case.broken_rules.items()}
    return [InputProblem("nccl-doctor", f"its rule {name} failed: {error}") for name, error in rules.items()]


def _redacted(explanation: Explanation) -> Explanation:
    """The same without tokens, keys and passwords: logs quote command lines and environments."""
    plain = redaction.redact_tree(msgspec.to_builtins(explanation))
    return msgspec.convert(plain, Explanation)


def _cause(case: Case, item: Candidate, places: blame.Places) -> Cause:
    page = playbooks.load(item.page or playbooks.for_finding(item.id))
    evidence = quotes.of_cause(case, item)
    ranks, hosts = blame.who(case, item, places)
    return Cause(
        id=item.id,
        confidence=round(min(item.strength, 0.99), 2),
        title=item.title,
        evidence=evidence,
        ranks=tuple(sorted(ranks)),
        hosts=tuple(sorted(hosts)),
        fixes=(advice.fix(case, page, "Fix now", evidence, hosts),),
        for_good=advice.fix(case, page, "Fix for good", evidence, hosts),
        env=advice.variables(case, item.id, page, evidence),
        playbook=page.id,
        why=item.why,
    )


def _overcome(ranked: list[Candidate]) -> tuple[str, ...]:
    """What would have been causes, had the work not gone on: whoever runs the job wants to know of it."""
    told = [item for item in ranked if item.strength >= _TOLD and not item.vague]
    return tuple(f"{shortened(item.hits[0].text, 160)} | {item.title}; the work went on" for item in told)


def _notes(case: Case) -> tuple[str, ...]:
    """Known-harmless lines that were seen, with the condition under which they do matter."""
    turned = [f"{name} | stands newest first: it was read from its end" for name in case.summary.turned]
    return (
        *turned,
        *(
            f"{shortened(case.hits(harmless.name)[0].text, 160)} | {harmless.why}"
            for harmless in case.seen(Role.HARMLESS)
        ),
    )


def _timeline(case: Case) -> tuple[Moment, ...]:
    """The first sign of each kind of event, in order of time."""
    order = _order(case)
    events = []
    for signature in case.seen(Role.CAUSE, Role.SYMPTOM):
        if kind := signature.fold or signature.cause:
            hit = min(case.hits(signature.name), key=order)
            events.append((hit, kind, signature.fold or candidates.told(signature.title, [hit])))
    for item in case.exceptions.ordinary[:3]:
        told = f"{item.type}: {item.message}"
        events.append((item.hit, told, told))
    firsts: dict[str, tuple[Hit, str]] = {}
    for hit, kind, told in sorted(events, key=lambda event: order(event[0])):
        firsts.setdefault(kind, (hit, told))
    return tuple(
        Moment(_clock(hit), _who(hit), shortened(told, 90), hit.file, hit.line)
        for hit, told in list(firsts.values())[:MAX_MOMENTS]
    )


def _order(case: Case) -> Callable[[Hit], tuple[float, str, int]]:
    """When a line was written: as it says, or as the next one in its file does that says it, or else the last one.

    A process that fails is told of at once: the lines behind its traceback are nearer than those of its start. Files that tell
    no time come last.
    """
    groups = case.summary.groups.values()
    clock = sorted(
        [(hit.file, hit.line, hit.seconds) for group in groups for hit in group.hits if hit.seconds is not None]
    )

    def order(hit: Hit) -> tuple[float, str, int]:
        if hit.seconds is not None:
            return hit.seconds, hit.file, hit.line
        behind = bisect.bisect(clock, (hit.file, hit.line, 0.0))
        near = (*clock[behind : behind + 1], *clock[max(0, behind - 1) : behind])
        return next((seconds for file, _, seconds in near if file == hit.file), math.inf), hit.file, hit.line

    return order


def _who(hit: Hit) -> str:
    return f"rank {hit.rank}" if hit.rank is not None else hit.host or "-"


def _clock(hit: Hit) -> str:
    if hit.seconds is None:
        return ""
    day = hit.seconds % 86400
    return f"{int(day // 3600):02d}:{int(day % 3600 // 60):02d}:{int(day % 60):02d}"
