"""What a case may be, before it is ranked: the causes that signatures, diagnoses and plain words point to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.explain import excuses, trouble
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, all_diagnoses
from nccl_doctor.explain.lines import ending, hosts_told, place, ranks_of, ranks_told, shortened
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.readers import bystanders
from nccl_doctor.findings import playbooks

PLAUSIBLE = 0.6  # from here on a candidate convinces
_EXTRA = 0.012  # each further signature that agrees
_LIKELIEST = (0.36, 0.32, 0.29, 0.26)
_FURTHER = (0.24, 0.22, 0.2)


def collect(case: Case) -> list[Candidate]:
    """All candidates: one per cause id, from signatures, diagnoses and, where these do not convince, from words."""
    found = list(_from_signatures(case))
    for rule in all_diagnoses():
        try:
            found.extend(rule(case))
        except Exception as error:  # noqa: BLE001 - a mistake of ours hides nothing that the others find
            case.broken_rules[rule.__name__] = f"{type(error).__name__}: {error}"
    if max((item.strength for item in found), default=0.0) < PLAUSIBLE:
        found.extend(_last_resort(case))
    elif len(known := {item.id for item in found}) < len(_FURTHER):  # words still tell what else it may be
        found.extend(item for item in _by_words(case, _FURTHER) if item.id not in known)
    return _join(found)


def _from_signatures(case: Case) -> Iterator[Candidate]:
    """What each signature proves alone, by the lines that nothing else accounts for."""
    more = case.exceptions.more
    effects = case.exceptions.caught | {
        place(hit) for item in case.exceptions.of_pipes for hit in (item.hit, *item.more)
    }
    accusers = {signature.name: signature for signature in case.seen(Role.CAUSE, Role.SYMPTOM) if signature.cause}
    for name in case.summary.groups:  # as the log told them: of equals the first one gives the title
        signature = accusers.get(name)
        if signature is None or case.course.overcome(name):
            continue
        hits = [hit for hit in case.hits(name) if place(hit) not in effects and excuses.accuses(case, hit)]
        if hits:
            yield Candidate(
                signature.cause,
                min(signature.strength, excuses.most(case, hits)),
                told(signature.title, hits),
                [*hits, *(line for hit in hits for line in more.get(place(hit), ()))],
                ranks_told(hits),
                hosts_told(hits),
                signature.why,
                signature.page,
            )


def _by_words(case: Case, strengths: tuple[float, ...]) -> list[Candidate]:
    """What the words of the lines that sound like trouble are about, the subject of most lines first."""
    own = {place(hit) for hit in case.hits("watchdog-timeout", "watchdog-status", "watchdog-down")}
    votes = [
        pair for pair in trouble.vote(case) if not all(place(hit) in own or case.hang.ended_by(hit) for hit in pair[1])
    ]
    return [
        Candidate(
            cause,
            strength,
            f"{playbooks.load(cause).title} (to judge by the words of some lines)",
            hits,
            ranks_of(hits),
            vague=True,
        )
        for strength, (cause, hits) in zip(strengths, votes, strict=False)
    ]


def _last_resort(case: Case) -> list[Candidate]:
    """What is left when no signature is convincing: words, else the log's last lines, else exceptions that only wrap others."""
    if found := _by_words(case, _LIKELIEST):
        return found
    calm = list(case.seen(Role.HARMLESS))
    last = [
        hit
        for hits in case.summary.tails.values()
        for hit in hits[-3:]
        if trouble.says_failure(hit.text)
        and not any(harmless.match(hit.text) is not None for harmless in calm)
        and not case.ignored(hit)
    ]
    said = last or [case.ranked(item.hit) for item in case.exceptions.uncaught]
    if not said:
        return []
    if last and all(bystanders.is_of_the_kernel(hit.text) for hit in last):
        title = f"the kernel's log ends with {ending(last[-1].text, 110)!r} and does not say what that did to a job"
        return [Candidate("unrelated", 0.25, title, last, vague=True)]
    title = f"{'the log' if last else 'a traceback'} ends with {ending(said[-1].text, 110)!r} and does not say why"
    return [Candidate("app.rank-exception", 0.25, title, said, ranks_of(said), vague=True)]


_HOLE = re.compile(r"\{(\w+)\}")
# What a title says of a hole, with the words that lead to it: left out where no line tells it.
_SAID = re.compile(r"(?:: | \(\w+ | (?:at|on|to|towards) )\{\w+\}(?:(?::| of )\{\w+\})?\)?")


def told(template: str, hits: list[Hit]) -> str:
    """The title with the words of the first hit that has them all; not every wording of a message says everything."""
    names = set(_HOLE.findall(template))
    groups = next((hit.groups for hit in hits if names <= hit.groups.keys()), None)
    if groups is None:
        return _SAID.sub("", template)
    return _HOLE.sub(lambda hole: shortened(groups[hole.group(1)], 80), template)


def _join(found: Iterable[Candidate]) -> list[Candidate]:
    by_id: dict[str, Candidate] = {}
    for item in sorted(found, key=lambda candidate: -candidate.strength):
        best = by_id.get(item.id)
        if best is None:
            by_id[item.id] = item
            continue
        if item.strength >= 0.3 and not item.vague:  # words alone lift nothing over the threshold of a verdict
            best.strength = min(0.99, best.strength + _EXTRA)
        if best.vague and not item.vague:  # whoever knows the message tells of it
            best.title, best.why, best.page = item.title, item.why, item.page
        best.hits = best.hits + item.hits
        best.final = best.final or item.final
        best.cured = best.cured or item.cured
        best.slows = best.slows or item.slows
        if not best.ranks and not best.hosts:  # of a host known only by name, no other ranks are to blame
            best.ranks = item.ranks
            best.hosts = item.hosts
        elif not best.hosts and item.ranks and item.ranks <= best.ranks:
            best.hosts = item.hosts
    return list(by_id.values())
