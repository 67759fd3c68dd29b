"""Signatures: the messages that programs print, and what each proves. One module per area, found by being here.

A module declares *signatures* (one message, in the wordings of all versions) with :func:`says`; nothing has to be
registered elsewhere. A wording that is printed with a capital and with a small letter first stands there without its
first letter ("ddress already in use"). What several messages prove together is a diagnosis (:mod:`nccl_doctor.explain.diagnoses`).

How strong a proof is, on one scale for all areas:

- 0.97 and more: the line alone is the cause, whatever else the log says (duplicate GPU, Xid 79, address in use).
- 0.85 to 0.95: the cause, unless something earlier explains it.
- 0.6 to 0.8: the usual cause of this line; something more specific wins.
- below 0.5: a candidate; alone it leaves the log undecided.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable

import msgspec

from nccl_doctor.explain.model import Role
from nccl_doctor.explain.readers import bystanders, prefix
from nccl_doctor.explain.template import Template

Guard = Callable[[dict[str, str], str], bool]


class Signature(msgspec.Struct, frozen=True):
    """One message of one program.

    ``cause`` is the id it points to (for a symptom: the id it would point to if nothing better is found), ``why``
    says what it proves and its limits, ``where`` refuses lines that only look alike (pure, of groups and line), ``pattern`` is what
    the line has to hold besides, where a template is too coarse: its named groups are the hit's, too;
    ``title`` is the sentence shown for the cause, with ``{group}`` holes. ``page`` is the playbook that mends just this, where
    the cause's own is about more. A ``SYMPTOM``'s ``fold`` is the phrase under
    which its lines are counted. ``sampled`` signatures (progress) are not searched in every line, only in samples.
    Of a table's heading, ``rows`` lines below it are kept as hits of ``<name>-rows``: numbers alone have no anchor.
    Of lines alike one is kept, unless it is ``every`` one that says something by where it stands.
    """

    name: str
    role: Role
    templates: tuple[Template, ...]
    why: str
    cause: str = ""
    strength: float = 0.0
    title: str = ""
    page: str = ""
    fold: str = ""
    where: Guard | None = None
    sampled: bool = False
    wake: tuple[str, ...] = ()
    rows: int = 0
    every: bool = False
    pattern: re.Pattern[str] | None = None

    def match(self, line: str, templates: Iterable[Template] | None = None) -> dict[str, str] | None:
        """The contents of the holes if one of the wordings (or of these) is in ``line`` and the guard agrees."""
        if self.role in (Role.PROGRESS, Role.END) and bystanders.is_of_a_service(line):
            return None  # whatever it has finished, it is not the job
        if self.role is Role.END and "NCCL INFO" in line:
            return None  # NCCL tells of its threads' and adapters' ends, never of the job's
        if self.role in (Role.CAUSE, Role.SYMPTOM) and (bystanders.is_typed(line) or bystanders.is_passed_over(line)):
            return None
        if self.role is not Role.PROGRESS and bystanders.is_of_a_model(line):
            return None
        if self.role is not Role.HARMLESS and bystanders.is_a_hint(line):
            return None
        for template in self.templates if templates is None else templates:
            groups = template.match(line)
            if groups is None:
                continue
            body = prefix.parse(line).body if self.where or self.pattern else ""
            found = self.pattern.search(body) if self.pattern else None
            if (found or not self.pattern) and (self.where is None or self.where(groups, body)):
                return groups | found.groupdict("") if found else groups
        return None


_SIGNATURES: dict[str, Signature] = {}


def says(
    name: str,
    *texts: str,
    why: str,
    cause: str = "",
    strength: float = 0.0,
    role: Role | None = None,
    title: str = "",
    page: str = "",
    fold: str = "",
    where: Guard | None = None,
    sampled: bool = False,
    wake: tuple[str, ...] = (),
    rows: int = 0,
    every: bool = False,
    pattern: re.Pattern[str] | None = None,
) -> None:
    """Declare a signature. Without ``role`` it is a cause if it names one, else a fact.

    ``wake`` replaces the templates' own anchors where these are common words and the guard demands rarer ones.
    """
    if name in _SIGNATURES:
        raise ValueError(f"signature {name} is declared twice")
    chosen = role or (Role.CAUSE if cause else Role.FACT)
    if chosen is Role.CAUSE and not (cause and 0 < strength <= 1):
        raise ValueError(f"signature {name}: a cause needs an id and a strength in (0, 1]")
    if any(len(anchor) < 4 for anchor in wake):
        raise ValueError(f"signature {name}: what wakes it has fewer than four letters, too few to look for")
    templates = tuple(Template(text) for text in texts)
    _SIGNATURES[name] = Signature(
        name, chosen, templates, why, cause, strength, title, page, fold, where, sampled, wake, rows, every, pattern
    )


@functools.cache
def all_signatures() -> dict[str, Signature]:
    """Every signature of every module in this package, by name."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_SIGNATURES.items()))
