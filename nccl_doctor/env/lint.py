"""Lint: what is wrong with the variables that are set. Pure: assignments in, findings out.

FAIL: what is written is not what happens, or it breaks the job. WARN: it has no effect or may cost speed or safety.
INFO: harmless. Every finding quotes the line and has a playbook.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.env import knowledge, versions
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.knowledge import Answer
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Severity, finding

AREA = "env.bad-nccl-var"

# Findings that say "this has no effect": on a running cluster they are worth a warning, not a verdict.
_DEAD = ("misspelled", "timeout-does-nothing", "read-by-nobody", "removed", "renamed", "too-new", "unknown-name")
_LOST = ("not-exported", "conf-syntax", "invalid-value")
WITHOUT_EFFECT = frozenset(f"{AREA}.{name}" for name in (*_DEAD, *_LOST))


# What a benchmark may try on purpose.
_TRIED = frozenset(f"{AREA}.{name}" for name in ("pinned", "leftover-debugging", "algo-without-ring"))

# In a comment on a line: the findings there are known and accepted.
IGNORE = "nccl-doctor: ignore"


class Edit(msgspec.Struct, frozen=True):
    """How a line can be mended: another name, another value, or without this assignment (both empty)."""

    name: str = ""
    value: str | None = None

    @property
    def removes(self) -> bool:
        """Whether the assignment goes."""
        return not self.name and self.value is None


class Said(msgspec.Struct, frozen=True):
    """What a rule says of an assignment; ``name`` is the last part of the finding's id, ``code`` can be pasted."""

    name: str
    title: str
    severity: Severity
    fix: str = ""
    code: str = ""
    edit: Edit | None = None
    confidence: float = 1.0
    advice: EnvAdvice | None = None


# As users are told them: what is written is not what happens; no effect, or it costs speed or safety; harmless.
wrong = functools.partial(Said, severity=Severity.FAIL)
doubtful = functools.partial(Said, severity=Severity.WARN)
worth_knowing = functools.partial(Said, severity=Severity.INFO)


class Remark(msgspec.Struct, frozen=True):
    """A finding, the assignment it is about, and the edit that would mend it."""

    finding: Finding
    assignment: Assignment
    edit: Edit | None = None


class Devices(msgspec.Struct, frozen=True):
    """Names that exist on a host, in kernel (or verbs) order. Empty: not known."""

    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()


class Context(msgspec.Struct, frozen=True):
    """What the rules may know besides the assignments. Empty versions: the newest known release is assumed."""

    nccl_version: str = ""
    torch_version: str = ""
    devices: Mapping[str, Devices] = {}  # host -> devices; "" stands for every host
    vendors: Mapping[str, str] = {}  # scope -> the cloud plugin whose profile prescribes variables there
    legacy: frozenset[str] = frozenset()  # scopes in which PyTorch's legacy NCCL backend is chosen

    def answer(self, name: str) -> Answer:
        """What is known of a name at these versions."""
        return knowledge.lookup(name, self.nccl_version, self.torch_version)

    def devices_of(self, item: Assignment) -> Devices | None:
        """The devices of the host an assignment holds on, if they are known."""
        return self.devices.get(item.host) or self.devices.get("")

    def nccl_at_least(self, first: str) -> bool:
        """Whether the judged NCCL is this release or later."""
        return versions.at_least(knowledge.nccl_release(self.nccl_version), first)

    def nccl_at_most(self, last: str) -> bool:
        """Whether the judged NCCL is this release or earlier."""
        return versions.at_most(knowledge.nccl_release(self.nccl_version), last)


SingleRule = Callable[[Assignment, Answer, Context], Iterator[Said]]


def lint(
    assignments: Iterable[Assignment],
    nccl_version: str = "",
    torch_version: str = "",
    devices: Mapping[str, Devices] | None = None,
) -> list[Finding]:
    """The findings on these assignments, in file and line order. ``ValueError`` for a version that is none."""
    return [remark.finding for remark in remarks(assignments, nccl_version, torch_version, devices)]


def remarks(
    assignments: Iterable[Assignment],
    nccl_version: str = "",
    torch_version: str = "",
    devices: Mapping[str, Devices] | None = None,
) -> list[Remark]:
    """As :func:`lint`, with the assignment and the edit behind each finding."""
    from nccl_doctor.env import lint_devices, lint_names, lint_syntax, lint_together, lint_values

    items = list(assignments)
    legacy = frozenset(item.scope for item in items if (item.name, item.value) == ("TORCH_DIST_USE_NCCL2", "0"))
    context = Context(nccl_version, torch_version, devices or {}, _vendors(items), legacy)
    found: list[Remark] = []
    syntax: tuple[SingleRule, ...] = (*lint_syntax.RULES, *lint_devices.RULES)
    meaning: tuple[SingleRule, ...] = lint_values.RULES
    for item in items:
        answer = context.answer(item.name)
        unread = list(lint_names.of_the_legacy_backend(item, answer, context))
        told = [*lint_names.judge(item, answer), *unread]
        if all(said.severity is Severity.INFO for said in told) and not item.lost:
            # Of a variable nobody reads the value does not matter, and of a value nobody reads the meaning.
            told += [said for rule in syntax for said in rule(item, answer, context)]
            if not unread and not any(said.name.startswith("invalid-value") for said in told):
                told += [said for rule in meaning for said in rule(item, answer, context)]
        found += [remark(item, said) for said in told]
    scopes: dict[str, list[Assignment]] = {}
    for item in items:
        if not item.lost:
            scopes.setdefault(item.scope, []).append(item)
    for members in scopes.values():
        for together in lint_together.RULES:
            found += together(members)
    found = [_in_a_benchmark(made) for made in found if not ignored(made)]
    order = {id(item): place for place, item in enumerate(items)}
    found.sort(key=lambda remark: (order.get(id(remark.assignment), len(order)), remark.finding.id))
    return found


def _in_a_benchmark(made: Remark) -> Remark:
    """What a file that only runs nccl-tests tries is its purpose."""
    if not (made.assignment.benchmark and made.finding.id in _TRIED):
        return made
    return msgspec.structs.replace(made, finding=msgspec.structs.replace(made.finding, severity=Severity.INFO))


def ignored(made: Remark) -> bool:
    """Whether the line says so: ``# nccl-doctor: ignore`` or ``# nccl-doctor: ignore[pinned, contradiction]``."""
    text = made.assignment.text
    if IGNORE not in text:
        return False
    rest = text.split(IGNORE, 1)[1]
    if not rest.startswith("["):
        return True
    names = (name.strip().removeprefix(f"{AREA}.") for name in rest[1:].split("]", 1)[0].split(","))
    return any(f"{made.finding.id}.".startswith(f"{AREA}.{name}.") for name in names)


def _vendors(items: Iterable[Assignment]) -> dict[str, str]:
    """Scopes in which a cloud's plugin is configured: its maker prescribes what would else be a pin."""
    vendors: dict[str, str] = {}
    for item in items:
        variable = knowledge.load().variables.get(item.name)
        family = knowledge.family_of(item.name)
        vendor = (variable.vendor if variable else "") or (family.vendor if family else "")
        if item.name == "NCCL_NET" and (item.value or "").casefold() == "gib":
            vendor = "Google gIB"
        if vendor:
            vendors.setdefault(item.scope, vendor)
    return vendors


def remark(item: Assignment, said: Said, others: Iterable[Assignment] = ()) -> Remark:
    """The finding on an assignment; the ``others`` it is about are quoted with it."""
    fixes = (Fix(said.fix, command=said.code),) if said.fix or said.code else ()
    evidence = [quote(item), *(quote(other) for other in others)]
    hosts = sorted({one.host for one in (item, *others) if one.host})
    advice = said.advice
    # Against a line of nccl.conf no unset helps.
    if advice is None and said.edit is not None and said.edit.removes and item.how is not How.CONF:
        why = said.title.removeprefix(f"{item.name}={item.value}").removeprefix(item.name).lstrip(": ")
        short = why.split(":")[0]
        advice = EnvAdvice(item.name, item.value or "", short, unset=True)
    made = finding(
        f"{AREA}.{said.name}",
        said.severity,
        said.title,
        evidence,
        hosts=hosts,
        confidence=said.confidence,
        fixes=fixes,
        env=(advice,) if advice else (),
    )
    return Remark(made, item, said.edit)


def quote(item: Assignment) -> Evidence:
    """The line an assignment stands on."""
    text = item.text or f"{item.written or item.name}={'' if item.value is None else item.value}"
    return Evidence(text.removesuffix("\r"), source=item.file or item.how.value, line=item.line, host=item.host)
