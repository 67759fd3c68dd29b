"""Which lines are quoted: those that decided it first, then others on the subject, each said once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_doctor.explain import related, trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.exceptions import LAUNCHER
from nccl_doctor.explain.lines import by_file, hosts_of, in_order, place, ranks_of
from nccl_doctor.explain.model import Consequence, Hit, Role
from nccl_doctor.explain.signatures import Signature
from nccl_doctor.findings.model import Evidence

MAX_EVIDENCE = 20
_NEAR = 12  # lines


def quote(hit: Hit) -> Evidence:
    """A line as evidence."""
    return Evidence(hit.text.strip(), hit.file, hit.line or None, hit.host, hit.rank)


def unique(hits: Iterable[Hit]) -> list[Hit]:
    """Each line once, blank ones not at all."""
    kept: dict[tuple[str, int], Hit] = {}
    for hit in hits:
        if hit.text.strip():
            kept.setdefault(place(hit), hit)
    return list(kept.values())


def of_cause(case: Case, item: Candidate) -> tuple[Evidence, ...]:
    """The lines to quote for a cause, the most telling first."""
    own = _spread(item.hits)
    # Half of the room goes to the lines that decided it; the rest to others on the same subject.
    half = MAX_EVIDENCE // 2
    more = _fresh(own[:half], _spread(related.lines(case, item.id)))
    hits = unique([*own[:half], *more[:half], *own[half:], *more[half:]])
    if len(hits) < MAX_EVIDENCE:
        exceptions = reversed(case.summary.tracebacks)
        ended = next(([one.hit] for one in exceptions if one.type and not LAUNCHER.search(one.type)), [])
        hits = unique([*hits, *_latest(case, own), *_around(case, hits), *ended])
    return tuple(quote(hit) for hit in hits[:MAX_EVIDENCE])


def _spread(hits: list[Hit]) -> list[Hit]:
    """The hits worth quoting: the first two as given, one of each other signature, other shapes, then the rest."""
    hits = unique(hits)
    chosen = hits[:2]
    signatures = {hit.signature for hit in chosen}
    for hit in hits[2:]:
        if hit.signature not in signatures:
            signatures.add(hit.signature)
            chosen.append(hit)
    taken = {place(hit) for hit in chosen}
    texts = {_shape(hit.text) for hit in chosen}
    fresh: list[Hit] = []
    stale: list[Hit] = []
    for hit in hits:
        if place(hit) in taken:
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
    return re.sub(r"(?<![0-9a-fA-Fx])[0-9a-fA-Fx]*\d[0-9a-fA-Fx]*", "#", text)[-160:]


def _latest(case: Case, quoted: list[Hit]) -> list[Hit]:
    """The last line of each message that was said more than once: of the others only the number is kept."""
    lasts = [case.last(name) for name in dict.fromkeys(hit.signature for hit in quoted)]
    return [hit for hit in lasts if hit is not None]


def _around(case: Case, quoted: list[Hit]) -> list[Hit]:
    """Lines that sound like trouble next to the quoted ones, the nearest first: the same event in other words."""
    beside = by_file(quoted)
    effects = {place(hit) for symptom in _folded(case) for hit in case.hits(symptom.name)}

    def apart(hit: Hit) -> int:
        return min(abs(hit.line - other.line) for other in beside[hit.file])

    others = [hit for hit in trouble.lines(case) if hit.file in beside and place(hit) not in effects]
    near = [hit for hit in others if apart(hit) < _NEAR]
    return _fresh(quoted, sorted(near, key=lambda hit: (apart(hit), place(hit))))


def _folded(case: Case) -> list[Signature]:
    """The signatures whose lines are only counted, as consequences."""
    return [signature for signature in case.seen(Role.SYMPTOM) if signature.fold]


def consequences(case: Case, quoted: Iterable[Evidence]) -> tuple[Consequence, ...]:
    """What only follows from the cause, counted, without the lines that are quoted for it."""
    told = {(item.source, item.line) for item in quoted}
    folded: dict[str, tuple[int, list[Hit]]] = {}
    for symptom in _folded(case):
        seen = case.hits(symptom.name)
        hits = [hit for hit in seen if place(hit) not in told]
        if hits:
            count, before = folded.get(symptom.fold, (0, []))
            folded[symptom.fold] = (count + case.count(symptom.name) - (len(seen) - len(hits)), before + hits)
    found = [
        Consequence(
            phrase, count, quote(in_order(hits)[0]), tuple(sorted(ranks_of(hits))), tuple(sorted(hosts_of(hits)))
        )
        for phrase, (count, hits) in folded.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.count, item.text)))
