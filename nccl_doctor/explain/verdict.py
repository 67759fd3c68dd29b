"""The answer in one word, and in one sentence: a cause, an open question, or a job that is well."""

from __future__ import annotations

from nccl_doctor.explain import advice, quotes, trouble
from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.course import LINES_AFTER
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.diagnoses.initialisation import IF_IT_HANGS
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.lines import place, shape
from nccl_doctor.explain.model import Cause, Hit, Proof, Role, Verdict
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.slowdown import slowed, slower_steps
from nccl_doctor.explain.summary import LAST_LINES
from nccl_doctor.facts.fold import ranges

DECIDED = 0.5  # a best candidate below this leaves the log undecided
# A best candidate below this is no proof: with another one this close behind, the log does not decide between them.
PROVEN, CLOSE = 0.7, 0.075
_GOOD_EVIDENCE = quotes.MAX_EVIDENCE + 6
_TALK = re.compile(r"NCCL (?:INFO|TRACE|CALL|DIAG \[(?:OK|INFO)\])")


def reached(case: Case, candidates: list[Candidate], good: list[Hit]) -> Verdict:
    """The verdict; ``good`` are the lines of :func:`good_end`."""
    if candidates and candidates[0].strength >= DECIDED:
        if _rivalled(candidates):
            return Verdict.UNDECIDED
        return Verdict.NOT_DISTRIBUTED if candidates[0].id == "unrelated" else Verdict.CAUSE_FOUND
    # Below that, a log without any sign of failure that moves on or ends is healthy.
    accused = any(item.slows for item in candidates) or any(
        not _worked_after(case, proof) for proof in case.summary.proofs
    )
    unclear = case.broken_rules or case.hang.unfinished or case.hang.only_began or _failure_seen(case)
    healthy = good and not (accused or unclear)
    return Verdict.HEALTHY if healthy else Verdict.UNDECIDED


def _worked_after(case: Case, proof: Proof) -> bool:
    """Whether steps follow all lines of what a state file shows: a count that was behind was in progress only."""
    steps = list(case.lasts("progress"))
    return bool(proof.evidence) and all(
        item.line and any(step.file == item.source and step.line > item.line for step in steps)
        for item in proof.evidence
    )


def _rivalled(candidates: list[Candidate]) -> bool:
    """Whether another cause is about as likely as the first, and neither is proven."""
    best = candidates[0].strength
    return best < PROVEN and any(best - item.strength < CLOSE and not item.vague for item in candidates[1:])


def _failure_seen(case: Case) -> bool:
    """Whether anything failed that the work did not outlive (:meth:`Course.outlived`)."""
    if case.has(PACE_LEFT):
        return True  # whatever its end: it paid for something
    if case.summary.backwards:
        return True  # what came after what is not known
    if any(not case.course.outlived(hit) for hit in case.summary.failed):
        return True
    if case.course.recovered:
        return False
    if _work_stopped(case):
        return True
    outlived = [signature for signature in case.seen(*Role) if case.course.overcome(signature.name)]
    symptoms = [signature for signature in case.seen(Role.SYMPTOM) if signature not in outlived]
    caught = case.exceptions.caught
    if any(place(hit) not in caught for symptom in symptoms for hit in case.hits(symptom.name)):
        return True
    causes = [signature for signature in case.seen(Role.CAUSE) if signature not in outlived]  # too weak for a verdict
    lasts = [hit for cause in causes for hit in case.lasts(cause.name) if place(hit) not in caught]
    failures = [hit for hit in lasts if trouble.says_failure(hit.text)]
    if (failures and slowed(case)) or any(not case.course.outlived(hit) for hit in failures):
        return True
    calm = {
        place(hit)
        for signature in case.seen(Role.HARMLESS, Role.PROGRESS, Role.END)
        for hit in case.hits(signature.name)
    }
    known = calm | caught
    return any(
        place(hit) not in known and not any(signature.match(hit.text) is not None for signature in outlived)
        for hit in _bad_last_words(case)
    )


def _work_stopped(case: Case) -> bool:
    """Whether the program raised an exception, or the job hung, crawled, or was ended at its work."""
    hang = case.hang
    return bool(
        hang.interrupted
        or hang.stopped_tables
        or case.exceptions.uncaught
        or slower_steps(case)
        or case.communicating
        or case.has("straggler-report")
        or hang.stacks
        or hang.idle_engine
        or hang.ended_engine
        or any("baseline" not in hit.text for hit in complaints(case))
    )


def _bad_last_words(case: Case) -> list[Hit]:
    """The last lines that speak of a failure, of the files that do not close with the run's end."""
    ends = case.signatures["run-ended"]
    tails = [hits for hits in case.summary.tails.values() if hits and ends.match(hits[-1].text) is None]
    return [
        hit
        for hits in tails
        if trouble.may_say_failure(hit.text for hit in hits)
        for hit in _without_rows(case, hits[-LAST_LINES:])
        if trouble.says_failure(hit.text)
        and not _TALK.search(hit.text)
        and not case.course.outlived(hit)
        and not case.ignored(hit)
    ]


def _without_rows(case: Case, last: list[Hit]) -> list[Hit]:
    """A file's last lines without those that report a step as several of their neighbours do, in the same words."""
    steps = case.signatures["progress"]
    alike: dict[bytes, list[Hit]] = {}
    for hit in last:
        alike.setdefault(shape(hit.text), []).append(hit)
    few = [hits for hits in alike.values() if len(hits) <= LINES_AFTER or steps.match(hits[0].text) is None]
    return [hit for hits in few for hit in hits]


_GOOD = (
    "nccl-tests-ok",
    "busbw-average",
    "run-ended",
    "exit-zero",
    "ended-well",
    "nccl-init-complete",
    "progress",
    "busbw-row",
    "network-used",
)


def good_end(case: Case) -> list[Hit]:
    """Lines that say that the work came to its end, or still goes on: the proof of a healthy log."""

    def told(name: str) -> list[Hit]:
        last = case.last(name)
        return ([last] if last is not None else []) + case.hits(name)[:4]

    names = (*_GOOD, "status-good") if _only_status(case) else _GOOD
    proof = [hit for name in names for hit in told(name)]
    if not proof and case.has("omp-threads"):  # torchrun writes here: it would have told of a rank that failed
        proof = told("not-destroyed")
    if not proof:
        return []
    # What looks bad and is not is quoted as well: one line of each kind.
    calm = [item.name for item in case.seen(*Role) if item.role is Role.HARMLESS or case.course.overcome(item.name)]
    harmless = [hit for name in calm for hit in case.hits(name)[:1]]
    tails = case.summary.tails.values()
    ending = [hit for last in (slice(-3, None), slice(None, -3)) for hits in tails for hit in hits[last]]
    return quotes.unique([*proof, *told("not-destroyed"), *harmless, *ending])[:_GOOD_EVIDENCE]


def _only_status(case: Case) -> bool:
    """Whether the logs are listings of tools (or a RAS report) without a job's own lines and without trouble."""
    if case.has("ras-report"):
        return not case.summary.proofs
    return not case.distributed and not trouble.vote(case)


def sentence(case: Case, verdict: Verdict, causes: tuple[Cause, ...]) -> str:
    """What a reader is told first."""
    calm = "; lines that look bad are known to be harmless" if case.seen(Role.HARMLESS) else ""
    if verdict is Verdict.HEALTHY:
        if case.course.recovered and case.course.troubles:
            return "the work came to its end; what failed on the way was overcome"
        steps = "; they tell of steps and of no end" if case.course.no_end_told else ""
        read = "what could be read of these logs" if case.summary.problems else "these logs"
        return f"nothing in {read} failed{calm}{steps}"
    if case.hang.only_began and (not causes or causes[0].confidence <= IF_IT_HANGS):
        far = "was initialised" if case.has("nccl-init-complete") else "began to initialise"
        return f"NCCL {far} and the logs end there: whether any work followed they do not say"
    if not causes:
        return f"the logs show no cause{calm}" if verdict is Verdict.UNDECIDED else ""
    best = causes[0]
    if verdict is Verdict.UNDECIDED:
        if len(causes) > 1 and best.confidence >= DECIDED:
            return f"these logs do not decide between two: {best.title}; or {causes[1].title}"
        silent = advice.missing_ranks(case) if best.id == "app.straggler-timeout" else ""
        waited_for = f"; nothing is heard of {advice.named(silent)}" if silent else ""
        return f"these logs do not decide it; best guess: {best.title}{waited_for}"
    where, named = _where(case, best), advice.device(best)
    title = f"{best.title} ({named})" if named and named not in best.title else best.title
    if title.startswith("rank"):  # which ones it says itself
        where = best.hosts[0] if len(best.ranks) == 1 and len(best.hosts) == 1 and best.hosts[0] not in title else ""
    return f"{where}: {title}" if where else title


_MOST_LETTERS = 12  # of ranks in a sentence: "8-15", "0,3,12-15"


def _where(case: Case, best: Cause) -> str:
    """The ranks and the host to blame; empty where they are many."""
    host = best.hosts[0] if len(best.hosts) == 1 else ""
    folded = ranges(best.ranks)
    if not folded or len(folded) > _MOST_LETTERS or len(best.ranks) >= max(case.world, 2):
        return host
    ranks = advice.named(folded)
    return f"{ranks} ({host})" if host else ranks
