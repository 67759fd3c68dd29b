"""The pure heart of ``explain``: log sources in, an explanation out. No files, no clock, no terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from nccl_doctor.explain import advice, ranking, topics
from nccl_doctor.explain.case import LAUNCHER, Candidate, Case, hosts_of, ranks_of
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.model import (
    Cause,
    Consequence,
    Explanation,
    Hit,
    InputCount,
    LogSource,
    Moment,
    Role,
    Verdict,
)
from nccl_doctor.explain.readers.scan import scan
from nccl_doctor.explain.summary import LAST_LINES, Summary
from nccl_doctor.facts import redaction
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Evidence

MAX_CAUSES = 5
MAX_EVIDENCE = 20
DECIDED = 0.5  # a best candidate below this leaves the log undecided
# A best candidate below this is no proof: with another one this close behind, the log does not decide between them.
PROVEN, CLOSE = 0.7, 0.075
WORTH_NAMING = 0.12


def analyse(sources: Iterable[LogSource]) -> Explanation:
    """Explain these logs. Reads each source once; keeps only what the signatures recognised."""
    summary = Summary()
    for source in sources:
        found = scan(source)
        if "ras-report" in found.groups and isinstance(source.lines, (bytes, str)):
            from nccl_doctor.explain import snapshots  # few logs need it

            found.proofs += snapshots.of_log(source.name, source.lines)
        summary.merge(found)
    return explain(summary)


def explain(summary: Summary) -> Explanation:
    """Explain what the readers found."""
    case = Case(summary)
    candidates = [item for item in ranking.rank(case) if item.strength >= WORTH_NAMING]
    verdict, good = _verdict(case, candidates)
    causes: tuple[Cause, ...] = ()
    if verdict not in (Verdict.HEALTHY,):
        causes = tuple(_cause(case, item) for item in candidates[:MAX_CAUSES])
    consequences = _consequences(case, causes)
    explanation = Explanation(
        verdict=verdict,
        sentence=_sentence(case, verdict, causes),
        causes=causes,
        consequences=consequences if verdict is not Verdict.HEALTHY else (),
        next=advice.next_steps(case, verdict, causes),
        versions=case.versions,
        evidence=tuple(_quote(hit) for hit in good),
        notes=_notes(case),
        timeline=_timeline(case, causes),
        problems=tuple(summary.problems),
        read=InputCount(summary.files, summary.bytes, summary.lines),
        world={key: value for key, value in (("ranks", case.world), ("nodes", case.nodes)) if value},
    )
    return _redacted(explanation)


def _redacted(explanation: Explanation) -> Explanation:
    """The same without tokens, keys and passwords: logs quote command lines and environments."""
    plain = redaction.redact_tree(msgspec.to_builtins(explanation))
    return msgspec.convert(plain, Explanation)


# --- verdict ---------------------------------------------------------------------------------------------------------

_TALK = re.compile(r"NCCL (?:INFO|TRACE|CALL|DIAG \[(?:OK|INFO)\])")


def _verdict(case: Case, candidates: list[Candidate]) -> tuple[Verdict, list[Hit]]:
    good = _good_end(case)
    if candidates and candidates[0].strength >= DECIDED:
        if _rivalled(candidates):
            return Verdict.UNDECIDED, good
        return (Verdict.NOT_DISTRIBUTED if candidates[0].id == "unrelated" else Verdict.CAUSE_FOUND), good
    # Below that, a log without any sign of failure that moves on or ends is healthy.
    healthy = good and not _failure_seen(case) and not case.unfinished
    return (Verdict.HEALTHY if healthy else Verdict.UNDECIDED), good


def _rivalled(candidates: list[Candidate]) -> bool:
    """Whether another cause is about as likely as the first, and neither is proven."""
    best = candidates[0].strength
    return best < PROVEN and any(best - item.strength < CLOSE and not item.vague for item in candidates[1:])


def _failure_seen(case: Case) -> bool:
    """Whether anything failed that the work did not outlive (:meth:`Case.outlived`)."""
    if case.recovered:
        return False
    if case.ordinary or any(not item.type for item in case.summary.tracebacks):
        return True  # an exception, or a traceback that was cut before it
    if case.slower_steps or case.stands or any("baseline" not in hit.text for hit in complaints(case)):
        return True
    seen = [signature for name, signature in case.signatures.items() if case.has(name)]
    outlived = [signature for signature in seen if case.overcome(signature.name)]
    symptoms = [signature for signature in seen if signature.role is Role.SYMPTOM and signature not in outlived]
    if any((hit.file, hit.line) not in case.caught for signature in symptoms for hit in case.hits(signature.name)):
        return True
    calm = {
        (hit.file, hit.line)
        for signature in seen
        if signature.role in (Role.HARMLESS, Role.PROGRESS, Role.END)
        for hit in case.hits(signature.name)
    }
    ends = case.signatures["run-ended"]
    ended = {name for name, hits in case.summary.tails.items() if hits and ends.match(hits[-1].text) is not None}
    return any(
        topics.says_failure(hit.text) and not _TALK.search(hit.text) and not case.outlived(hit)
        for hit in case.tail[-LAST_LINES:]
        if (hit.file, hit.line) not in calm | case.caught | case.rows
        and hit.file not in ended
        and not any(signature.match(hit.text) is not None for signature in outlived)
    )


def _good_end(case: Case) -> list[Hit]:
    """Lines that say that the work came to its end, or still goes on: the proof of a healthy log."""
    found: list[Hit] = []
    for name in (
        "nccl-tests-ok",
        "busbw-average",
        "run-ended",
        "exit-zero",
        "ended-well",
        "nccl-init-complete",
        "not-destroyed",
        "progress",
        "busbw-row",
        "network-used",
        *(("status-good",) if _only_status(case) else ()),
    ):
        hits = case.hits(name)
        last = case.last(name)
        if last is not None:
            found.append(last)
        found.extend(hits[:4])
    proof = [hit for hit in found if hit.signature not in ("not-destroyed",)]
    if not proof:
        return []
    # What looks bad and is not is quoted as well: one line of each kind.
    calm = [
        name for name, signature in case.signatures.items() if signature.role is Role.HARMLESS or case.overcome(name)
    ]
    found += [hit for name in calm for hit in case.hits(name)[:1]]
    tails = case.summary.tails.values()
    ending = [hit for last in (slice(-3, None), slice(None, -3)) for hits in tails for hit in hits[last]]
    return _unique([*proof, *(hit for hit in found if hit not in proof), *ending])[: MAX_EVIDENCE + 6]


def _only_status(case: Case) -> bool:
    """Whether the logs are listings of tools (or a RAS report) without a job's own lines and without trouble."""
    if case.has("ras-report"):
        return not case.summary.proofs
    return not case.distributed and not topics.vote(case)


# --- causes ----------------------------------------------------------------------------------------------------------


def _unique(hits: Iterable[Hit]) -> list[Hit]:
    seen: set[tuple[str, int]] = set()
    kept = []
    for hit in hits:
        if (hit.file, hit.line) not in seen and hit.text.strip():
            seen.add((hit.file, hit.line))
            kept.append(hit)
    return kept


def _quote(hit: Hit) -> Evidence:
    return Evidence(hit.text.strip(), hit.file, hit.line or None, hit.host, hit.rank)


def _spread(hits: list[Hit]) -> list[Hit]:
    """The hits worth quoting: the first two as given, one of each other signature, other shapes, then the rest."""
    hits = _unique(hits)
    chosen = hits[:2]
    signatures = {hit.signature for hit in chosen}
    for hit in hits[2:]:
        if hit.signature not in signatures:
            signatures.add(hit.signature)
            chosen.append(hit)
    taken = {(hit.file, hit.line) for hit in chosen}
    texts = {_shape(hit.text) for hit in chosen}
    fresh: list[Hit] = []
    stale: list[Hit] = []
    for hit in hits:
        if (hit.file, hit.line) in taken:
            continue
        shape = _shape(hit.text)
        (stale if shape in texts else fresh).append(hit)
        texts.add(shape)
    return [*chosen, *fresh, *stale]


def _fresh(known: list[Hit], more: list[Hit]) -> list[Hit]:
    shapes = {_shape(hit.text) for hit in known}
    kept = []
    for hit in more:
        shape = _shape(hit.text)
        if shape not in shapes:
            shapes.add(shape)
            kept.append(hit)
    return kept


def _shape(text: str) -> str:
    return re.sub(r"[0-9a-fA-Fx]*\d[0-9a-fA-Fx]*", "#", text)[-160:]


def _latest(case: Case, quoted: list[Hit]) -> list[Hit]:
    """The last line of each message that was said more than once: of the others only the number is kept."""
    lasts = [case.last(name) for name in dict.fromkeys(hit.signature for hit in quoted)]
    return [hit for hit in lasts if hit is not None]


def _around(case: Case, quoted: list[Hit]) -> list[Hit]:
    """Lines that sound like trouble next to the quoted ones, the nearest first: the same event in other words."""
    places: dict[str, list[int]] = {}
    for hit in quoted:
        places.setdefault(hit.file, []).append(hit.line)
    apart = {
        (hit.file, hit.line): min(abs(hit.line - line) for line in places[hit.file])
        for hit in topics.trouble(case)
        if hit.file in places
    }
    effects = {(hit.file, hit.line) for name in case.summary.groups for hit in _folded(case, name)}
    near = [hit for hit in topics.trouble(case) if apart.get((hit.file, hit.line), _NEAR) < _NEAR]
    near = [hit for hit in near if (hit.file, hit.line) not in effects]
    return _fresh(quoted, sorted(near, key=lambda hit: (apart[hit.file, hit.line], hit.file, hit.line)))


_NEAR = 12  # lines


def _cause(case: Case, item: Candidate) -> Cause:
    own = _spread(item.hits)
    # Half of the room goes to the lines that decided it; the rest to others on the same subject.
    half = MAX_EVIDENCE // 2
    more = _fresh(own[:half], _spread(topics.supporting(case, item.id)))
    hits = _unique([*own[:half], *more[:half], *own[half:], *more[half:]])
    ended = [one.hit for one in case.summary.tracebacks if one.type and not LAUNCHER.search(one.type)][-1:]
    hits = _unique([*hits, *_latest(case, own), *_around(case, hits), *ended])[:MAX_EVIDENCE]
    playbook = playbooks.for_finding(item.id)
    evidence = tuple(_quote(hit) for hit in hits)
    fixes, env = advice.for_cause(case, item.id, playbook, evidence)
    return Cause(
        id=item.id,
        confidence=round(min(item.strength, 0.99), 2),
        title=item.title,
        evidence=evidence,
        ranks=tuple(sorted(item.ranks)),
        hosts=tuple(sorted(item.hosts)),
        fixes=fixes,
        env=env,
        playbook=playbook,
        why=item.why,
    )


def _sentence(case: Case, verdict: Verdict, causes: tuple[Cause, ...]) -> str:
    if verdict is Verdict.HEALTHY:
        if case.recovered and case.troubles:
            return "the work came to its end; what failed on the way was overcome"
        return "nothing in these logs failed; lines that look bad are known to be harmless"
    if not causes:
        return "the logs show no cause" if verdict is Verdict.UNDECIDED else ""
    best = causes[0]
    if verdict is Verdict.UNDECIDED:
        if len(causes) > 1 and best.confidence >= DECIDED:
            return f"these logs do not decide between two: {best.title}; or {causes[1].title}"
        return f"these logs do not decide it; best guess: {best.title}"
    where = ""
    if best.ranks and len(best.ranks) <= 4 and len(best.ranks) < max(case.world, 2):
        where = ("rank " if len(best.ranks) == 1 else "ranks ") + ",".join(str(rank) for rank in best.ranks)
        if len(best.hosts) == 1:
            where += f" ({best.hosts[0]})"
    elif len(best.hosts) == 1:
        where = best.hosts[0]
    named = advice.device(best)
    title = f"{best.title} ({named})" if named and named not in best.title else best.title
    return f"{where}: {title}" if where and not title.startswith("rank") else title


def _folded(case: Case, name: str) -> list[Hit]:
    """The hits of a signature whose lines are only counted, as consequences."""
    signature = case.signatures.get(name)
    return case.hits(name) if signature is not None and signature.role is Role.SYMPTOM and signature.fold else []


def _consequences(case: Case, causes: tuple[Cause, ...]) -> tuple[Consequence, ...]:
    quoted = {(item.source, item.line) for cause in causes[:1] for item in cause.evidence}
    folded: dict[str, tuple[int, list[Hit]]] = {}
    for name in case.summary.groups:
        hits = [hit for hit in _folded(case, name) if (hit.file, hit.line) not in quoted]
        if not hits:
            continue
        fold = case.signature(name).fold
        count, before = folded.get(fold, (0, []))
        folded[fold] = (count + case.count(name), before + hits)
    found = []
    for phrase, (count, hits) in folded.items():
        ranks = tuple(sorted(ranks_of(hits)))
        hosts = tuple(sorted(hosts_of(hits)))
        found.append(Consequence(phrase, count, _quote(hits[0]), ranks, hosts))
    return tuple(sorted(found, key=lambda item: (-item.count, item.text)))


def _notes(case: Case) -> tuple[str, ...]:
    """Known-harmless lines that were seen, with the condition under which they do matter."""
    notes = []
    for name in sorted(case.summary.groups):
        signature = case.signatures.get(name)
        if signature is not None and signature.role is Role.HARMLESS and case.count(name):
            hit = case.hits(name)[0]
            notes.append(f"{hit.text.strip()[:160]} | {signature.why}")
    return tuple(notes)


def _timeline(case: Case, causes: tuple[Cause, ...]) -> tuple[Moment, ...]:
    """The first sign of each kind of event, in time (or line) order."""
    firsts: list[tuple[Hit, str]] = []
    for name in case.summary.groups:
        signature = case.signatures.get(name)
        if signature is None or signature.role not in (Role.CAUSE, Role.SYMPTOM):
            continue
        hits = case.hits(name)
        if hits:
            firsts.append((hits[0], signature.fold or signature.cause))
    for item in case.ordinary[:3]:
        firsts.append((item.hit, f"{item.type}: {item.message}"[:90]))
    timed = all(hit.seconds is not None for hit, _ in firsts)
    firsts.sort(key=lambda pair: ((pair[0].seconds or 0.0) if timed else 0.0, pair[0].file, pair[0].line))
    rows = []
    seen: set[str] = set()
    for hit, what in firsts:
        if what in seen:
            continue
        seen.add(what)
        who = f"rank {hit.rank}" if hit.rank is not None else hit.host or "-"
        rows.append(Moment(_clock(hit), who, what, hit.file, hit.line))
    return tuple(rows[:10])


def _clock(hit: Hit) -> str:
    if hit.seconds is None:
        return ""
    day = hit.seconds % 86400
    return f"{int(day // 3600):02d}:{int(day % 3600 // 60):02d}:{int(day % 60):02d}"
