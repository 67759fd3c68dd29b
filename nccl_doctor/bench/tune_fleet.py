"""``env tune`` over hosts: what candidates are allowed, and one benchmark run per candidate and round."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from nccl_doctor.bench import tune as tuning
from nccl_doctor.bench.fleet import Fleet, run_fleet
from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.bench.outcome import INTERRUPTED, Outcome
from nccl_doctor.bench.tune import Candidate, Failed, Times, Tuning
from nccl_doctor.bench.world import World
from nccl_doctor.env import knowledge
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.lint import lint
from nccl_doctor.findings.model import Severity


class BadCandidate(ValueError):
    """A candidate that cannot be read, or that could not change anything; the message says why."""


def read_candidates(texts: Iterable[str]) -> tuple[Candidate, ...]:
    """``NAME=VALUE NAME2=VALUE2`` each; ``BadCandidate`` for what lint calls wrong: it would measure nothing."""
    found = []
    for text in texts:
        env: dict[str, str] = {}
        for pair in text.split():
            name, equals, value = pair.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
                raise BadCandidate(f"--set {text!r}: expected NAME=VALUE, several with blanks")
            env[name] = value
        if not env:
            raise BadCandidate("--set '': expected NAME=VALUE")
        items = [Assignment(name, value, how=How.PROCESS) for name, value in env.items()]
        for item in lint(items):
            if item.severity is Severity.FAIL or item.id.endswith(("read-by-nobody", "removed")):
                raise BadCandidate(f"--set {text!r}: {item.title}")
        found.append(Candidate(env))
    return tuple(found)


def times_of(outcome: Outcome) -> Times:
    """Median time per call of each collective and size; ``Failed`` if a rank died or a result was wrong."""
    if not outcome.complete:
        told = [item.title for item in outcome.findings if item.severity is Severity.FAIL]  # why, and not only where
        told += [f"rank {rank.rank} on {rank.host} stopped in {rank.where}" for rank in outcome.ranks]
        raise Failed(next(filter(None, (*told, *outcome.notes)), "not every rank finished"))
    wrong = [item for item in outcome.results.measurements if item.wrong]
    if wrong:
        raise Failed(f"wrong results: {wrong[0].wrong} elements of {wrong[0].collective} at {wrong[0].size} B")
    if not outcome.results.measurements:
        raise Failed("nothing was measured")
    return {(item.collective, item.size): item.spread.median_us for item in outcome.results.measurements}


def tune_over(
    fleet: Fleet, plan: BenchPlan, candidates: Sequence[Candidate], rounds: int, told: Callable[[str], None]
) -> Tuning:
    """Measure over these hosts; ``Refused`` where they cannot take part, ``Failed`` where the default fails,
    ``BadCandidate`` for a variable that the backend chosen never reads.
    """
    seen: dict[str, list[str]] = {}  # candidate -> the paths it took, and what its NCCL did not read

    def begin(world: World) -> None:
        _refuse_unread(candidates, world.backend)
        told("warming up: one run that does not count")

    def run(candidate: Candidate, placed: Callable[[World], None] = lambda world: None) -> Outcome:
        outcome = run_fleet(fleet, msgspec.structs.replace(plan, env={**plan.env, **candidate.env}), placed=placed)
        for note in outcome.notes:
            if note.startswith(INTERRUPTED):  # of its path too little was seen
                raise KeyboardInterrupt(note.removeprefix(INTERRUPTED))
        said = seen.setdefault(candidate.label, [])
        said += [text for text in (outcome.path.words, *_unread(candidate, outcome)) if text and text not in said]
        return outcome

    first = run(Candidate(), begin)
    times_of(first)
    if not candidates:
        network = first.path.nccl.networks[0] if first.path.nccl and first.path.nccl.networks else ""
        candidates = tuning.usual_candidates(first.world.backend, network)
    per_run = first.seconds
    runs = rounds * (len(candidates) + 2)
    many = f"{len(candidates)} candidate{'s' * (len(candidates) != 1)}"
    told(f"{runs} runs of about {per_run:.0f} s: {rounds} rounds of {many} and the default twice")
    result = tuning.tune(
        candidates,
        lambda candidate: times_of(run(candidate)),
        rounds,
        told=lambda number, candidate, text: told(f"  round {number}/{rounds}  {candidate.label}: {text}"),
    )
    usual = seen.pop(Candidate().label)
    notes = ["the default's path changed between runs: " + "; ".join(usual)] if len(usual) > 1 else []
    notes += [f"{label}: {text}" for label, said in seen.items() for text in said if text not in usual]
    return msgspec.structs.replace(result, path=usual[0] if usual else "", notes=tuple(notes))


def _refuse_unread(candidates: Iterable[Candidate], backend: str) -> None:
    if backend != "gloo":
        return
    known = knowledge.load().variables
    for item in candidates:
        for name in item.env:
            if name in known and known[name].of_nccl:
                raise BadCandidate(f"--set {item.label!r}: NCCL reads {name}, and here gloo is measured")


def _unread(candidate: Candidate, outcome: Outcome) -> list[str]:
    """The variables of a candidate that NCCL, which logs each one it reads, did not read: they changed nothing."""
    if outcome.path.nccl is None:
        return []
    read = outcome.path.nccl.env
    return [f"NCCL's log does not show that {name} was read" for name in candidate.env if name not in read]
