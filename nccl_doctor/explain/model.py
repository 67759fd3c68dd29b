"""What ``explain`` works with: log sources, hits of signatures, causes, and the explanation that comes out."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, finding

SCHEMA = 1


class LogSource(msgspec.Struct, frozen=True):
    """One log: its name and what it holds, as a whole or in pieces of any size.

    ``rank`` and ``host`` are used for lines that do not say their own.
    """

    name: str
    content: bytes | str | Iterable[bytes]
    rank: int | None = None
    host: str = ""


class Role(enum.Enum):
    """What a signature's hit means: a ``CAUSE`` by itself, a ``SYMPTOM`` of something else, a ``FACT`` that other
    rules combine, a ``HARMLESS`` line, a sign of ``PROGRESS``, or a good ``END``."""

    CAUSE = "cause"
    SYMPTOM = "symptom"
    FACT = "fact"
    HARMLESS = "harmless"
    PROGRESS = "progress"
    END = "end"


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that a signature recognised. ``seconds`` counts within the year (logs rarely say the year).

    ``labelled``: the rank is the number that srun or mpirun put in front, which may be a node's.
    """

    signature: str
    file: str
    line: int
    text: str
    groups: dict[str, str] = {}
    rank: int | None = None
    host: str = ""
    pid: str = ""
    seconds: float | None = None
    labelled: bool = False


class Traceback(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Python exception of one process. ``where`` is the deepest frame in the user's own code, ``file.py:88``.

    ``known`` names the signatures that recognised the exception line; an *ordinary* exception has none.
    ``more`` is the rest of a message of several lines.
    """

    type: str
    message: str
    hit: Hit
    first_line: int
    where: str = ""
    function: str = ""
    frames: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    more: tuple[Hit, ...] = ()  # the message's further lines; without a message the line of code that raised


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What state files (dumps of flight recorders, RAS reports) prove, or narrow down.

    ``cause`` is empty where they do not decide; ``candidates`` are then the causes that are left, likeliest first.
    ``ranks`` are to blame, as far as that is known. ``next`` says what would decide, or what to do.
    """

    source: str  # "flight-recorder" or "ras"
    title: str
    evidence: tuple[Evidence, ...]
    next: str
    cause: str = ""
    candidates: tuple[str, ...] = ()
    confidence: float = 0.5
    ranks: tuple[int, ...] = ()


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cause the logs point to. ``confidence`` in 0..1; below 0.5 it is only a candidate. ``fixes`` are for now."""

    id: str
    confidence: float
    title: str
    evidence: tuple[Evidence, ...]
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    for_good: Fix | None = None
    env: tuple[EnvAdvice, ...] = ()
    playbook: str = ""
    why: str = ""

    @property
    def all_fixes(self) -> tuple[Fix, ...]:
        """What to do now, then for good."""
        return (*self.fixes, self.for_good) if self.for_good else self.fixes

    def to_finding(self) -> Finding:
        """The same as a finding, for reports that mix it with others."""
        places = [Place(rank=rank) for rank in self.ranks]
        return finding(
            self.id,
            Severity.FAIL,
            self.title,
            self.evidence,
            hosts=self.hosts,
            confidence=self.confidence,
            places=places,
            fixes=self.all_fixes,
            env=self.env,
        )


class Consequence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines that only follow from the cause, folded: how many, on which ranks, and one quoted example."""

    text: str
    count: int
    example: Evidence
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


class Remark(msgspec.Struct, frozen=True):
    """Something that made the job slower than it could be, though it failed nothing: with a line that shows it, and the
    playbook that tells more."""

    text: str
    evidence: Evidence
    playbook: str


class Verdict(enum.Enum):
    """The answer in one word."""

    CAUSE_FOUND = "cause-found"
    UNDECIDED = "undecided"
    HEALTHY = "healthy"
    NOT_DISTRIBUTED = "not-a-distributed-failure"


class Moment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row of the timeline: when (as written in the log), who, what."""

    when: str
    who: str
    what: str
    file: str = ""
    line: int | None = None


class InputProblem(msgspec.Struct, frozen=True):
    """An input that could not be read (completely), and why; or a rule of ours that failed on it."""

    name: str
    problem: str


class InputCount(msgspec.Struct, frozen=True):
    """How much was read. ``lines`` is None where not all were counted (large logs, most of which say nothing)."""

    files: int = 0
    bytes: int = 0
    lines: int | None = 0


class Explanation(msgspec.Struct, frozen=True):
    """All that ``explain`` says about one set of logs."""

    verdict: Verdict
    sentence: str
    causes: tuple[Cause, ...] = ()
    consequences: tuple[Consequence, ...] = ()
    next: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    evidence: tuple[Evidence, ...] = ()  # what a verdict without a cause (healthy) rests on
    overcome: tuple[str, ...] = ()  # of a healthy log: faults that the work got over
    worth_knowing: tuple[Remark, ...] = ()  # what cost speed, whatever the verdict
    notes: tuple[str, ...] = ()  # known-harmless lines, and advice that is not about the cause
    timeline: tuple[Moment, ...] = ()
    problems: tuple[InputProblem, ...] = ()
    read: InputCount = InputCount()
    world: dict[str, int] = {}
    saved_runs: tuple[str, ...] = ()  # bundles among the inputs: whoever can judge them tells them (saved_runs.tell)
