"""Diagnoses: what several lines prove together. One module per area, found by being here.

A module declares *diagnoses*, functions of a case with :func:`diagnosis`; nothing has to be registered elsewhere. What a
single message proves is a signature (:mod:`nccl_doctor.explain.signatures`), on the same scale of strength.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.model import Hit


class Candidate(msgspec.Struct):
    """A cause that one signature or diagnosis points to, before ranking."""

    id: str
    strength: float
    title: str
    hits: list[Hit]
    ranks: set[int] = msgspec.field(default_factory=set)
    hosts: set[str] = msgspec.field(default_factory=set)
    why: str = ""
    page: str = ""  # the playbook, where it is not the cause's own
    final: bool = False  # a diagnosis has already weighed it against the rest: it is not demoted
    cured: bool = False  # it was gone once something was changed: what went well afterwards speaks for it
    slows: bool = False  # what it costs is speed: a job that goes on is neither healthy nor over it
    vague: bool = False  # read from a line's words or place only: no rival of a cause that somebody described


def rivals(
    strengths: Mapping[str, float],
    title: str,
    hits: list[Hit],
    ranks: Iterable[int] = (),
    hosts: Iterable[str] = (),
    *,
    slows: bool = False,
    vague: bool = False,
) -> Iterator[Candidate]:
    """A candidate for each of these causes: the same lines, if there are any, may mean the one or the other."""
    for cause, strength in strengths.items() if hits else ():
        yield Candidate(cause, strength, title, hits, set(ranks), set(hosts), slows=slows, vague=vague)


def falling(causes: Iterable[str], strength: float, step: float) -> dict[str, float]:
    """The likeliest cause with this strength, each further one a step weaker."""
    return {cause: strength - step * nth for nth, cause in enumerate(causes)}


Diagnosis = Callable[[Case], Iterable[Candidate]]
_DIAGNOSES: dict[str, Diagnosis] = {}


def diagnosis(function: Diagnosis) -> Diagnosis:
    """Declare a function that weighs several facts of a case. Its docstring is its candidates' ``why``."""
    why = function.__doc__ or ""
    if not why and sys.flags.optimize < 2:  # PYTHONOPTIMIZE=2 takes all docstrings away
        raise ValueError(f"diagnosis {function.__name__} has no docstring")
    if function.__name__ in _DIAGNOSES:
        raise ValueError(f"diagnosis {function.__name__} is declared twice")

    @functools.wraps(function)
    def weighed(case: Case) -> Iterator[Candidate]:
        for candidate in function(case):
            candidate.why = " ".join((candidate.why or why).split())
            yield candidate

    _DIAGNOSES[function.__name__] = weighed
    return weighed


@functools.cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every diagnosis of every module in this package, by name: in which module one stands changes no answer."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(rule for _, rule in sorted(_DIAGNOSES.items()))
