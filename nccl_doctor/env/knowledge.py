"""What every environment variable of NCCL, PyTorch's distributed part and the network plugins really does.

The facts are data (``data/``): ``nccl.json``, ``torch.json`` and ``nobody.json`` come from every release's sources and
binaries (tests/tools/import_env_facts.py), ``plugins.yaml`` and ``curated.yaml`` are written by people and win.
"""

from __future__ import annotations

import enum
import functools
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.env import spelling, versions
from nccl_doctor.env.versions import Version
from nccl_doctor.facts.files import read_yaml

# The newest releases whose variables are known; assumed, and said so, where nothing names a version.
NEWEST_NCCL = "2.32.3"
NEWEST_TORCH = "2.15.0"


class Status(enum.Enum):
    """What becomes of a variable that is set, at one version of its reader."""

    CURRENT = "current"
    REMOVED = "removed"
    RENAMED = "renamed"
    READ_BY_NOBODY = "read-by-nobody"
    UNKNOWN = "unknown"


class Risk(enum.Enum):
    """What setting a variable can cost: nothing, speed while debugging, NCCL's own tuning, or the job."""

    SAFE = "safe"
    DEBUGGING = "debugging"
    PIN = "pin"
    DANGEROUS = "dangerous"


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which values are valid, and what the reader does with the others."""

    kind: str
    words: tuple[str, ...] = ()
    newer: dict[str, str] = {}  # words that came later: word -> first release
    older: dict[str, str] = {}  # words that are gone: word -> last release
    functions: tuple[str, ...] = ()  # what may stand before a colon: ``AllReduce:Ring``
    folds_case: bool = False
    trimmed_since: str = ""  # the release since which blanks around a word do no harm
    numbers: bool = False  # the old numbers are read besides the words
    least: int | None = None
    most: int | None = None
    also: tuple[int, ...] = ()  # integers outside the range, meaning "automatic"
    multiple: int = 1
    pattern: str = ""
    otherwise: str = ""
    fatal: bool = False
    fatal_since: str = ""  # the release since which a bad value ends the job

    def describe(self) -> str:
        """The valid values in one phrase; empty where anything goes."""
        if self.words:
            joint = ", ".join((*self.words, *(f"{word} (since {first})" for word, first in self.newer.items())))
            return f"{joint} ({'case does not matter' if self.folds_case else 'exactly so'})"
        if self.kind == "integer" and (self.least is not None or self.most is not None):
            span = f"{'' if self.least is None else self.least}..{'' if self.most is None else self.most}"
            return f"integer {span}" + "".join(f", {number} for automatic" for number in self.also)
        return {
            "integer": "an integer (suffixes such as K or M are not understood)",
            "boolean": "0 or 1",
            "interface-list": "name prefixes, comma-separated; leading = exact names, leading ^ exclude, ^= both",
            "gloo-interface-list": "one exact interface name, or several, comma-separated (no ^, =, or prefixes)",
            "path": "a path (no ~ expansion)",
            "pattern": self.pattern,
        }.get(self.kind, "")


_KINDS = {"bool": "boolean", "int": "integer", "size": "integer"}  # of the types in C++ sources


class Variable(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One variable that some program reads.

    ``first`` and ``last`` are the reader's releases (last empty: still read by the newest known); ``history`` lists
    (release, default from then on) where the default changed. ``meaning``, ``set_when`` and ``never`` are sentences.
    From ``legacy_since`` on, only the NCCL backend that ``TORCH_DIST_USE_NCCL2=0`` chooses reads it.
    """

    name: str
    reader: str
    meaning: str = ""
    source: str = ""
    first: str = ""
    last: str = ""
    legacy_since: str = ""
    type: str = "string"
    default: str = "unset"
    history: tuple[tuple[str, str], ...] = ()
    documented: bool = False
    category: str = ""
    harm: str = ""
    risk: Risk = Risk.SAFE
    values: Values | None = None
    replaced_by: str = ""
    replaced_in: str = ""
    renamed: bool = False  # the same thing under a new name
    set_when: str = ""
    never: str = ""
    leftover: dict[str, str] = {}
    neutral: tuple[str, ...] = ()
    pin: str = ""
    quiet: bool = False  # everywhere and harmless: lint says nothing about it
    family: str = ""
    vendor: str = ""  # a cloud's plugin whose profile prescribes other variables

    @property
    def kind(self) -> str:
        """What its values are: the kind that people wrote down for it, else the type in its reader's source."""
        return self.values.kind if self.values else _KINDS.get(self.type, self.type)

    @property
    def of_torch(self) -> bool:
        """Whether its versions are PyTorch's."""
        return self.reader == "PyTorch"

    @property
    def of_nccl(self) -> bool:
        """Whether its versions are NCCL's."""
        return "NCCL" in self.reader and not self.family

    def default_at(self, version: Version) -> str:
        """The default at one release of the reader."""
        known = [value for since, value in self.history if versions.at_least(version, since)]
        return known[-1] if known else (self.history[0][1] if self.history else self.default)

    def status_at(self, version: Version) -> Status:
        """What becomes of it at one release of the reader. Before its first release nobody reads it."""
        if not versions.at_most(version, self.last):
            return Status.RENAMED if self.renamed else Status.REMOVED
        if not versions.at_least(version, self.first):
            return Status.READ_BY_NOBODY
        if self.renamed and versions.at_least(version, self.replaced_in or self.first):
            return Status.RENAMED
        return Status.CURRENT


class Nobody(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A name that is widely set and that no known program reads: the truth about it."""

    name: str
    truth: str = ""
    instead: str = ""
    timeout: bool = False  # set in the hope of a longer time-out
    quiet: bool = False
    source: str = ""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names that belong to one other program by their prefix. ``complete``: all of its names are known."""

    prefix: str
    reader: str
    source: str
    complete: bool = False
    vendor: str = ""


class Knowledge(msgspec.Struct, frozen=True):
    """Everything known, by name."""

    variables: dict[str, Variable]
    nobody: dict[str, Nobody]
    families: tuple[Family, ...]
    must_agree: frozenset[str]  # on all hosts of a job, or its ranks do not fit each other
    may_differ: frozenset[str]  # between hosts, and often has to


def _read(name: str) -> Any:
    path = Path(__file__).parent / "data" / name
    return msgspec.json.decode(path.read_bytes()) if name.endswith(".json") else read_yaml(path)


def _risk(row: dict[str, Any], system: frozenset[str]) -> str:
    """The risk where curated.yaml names none, from the user guide's two sections and the reference facts."""
    harm = str(row.get("harm", ""))
    if harm.startswith(("unsafe", "breaks")):
        return "dangerous"
    if row["reader"] != "NCCL" or row["name"] in system or row.get("category") in ("plugin", "inspector"):
        return "debugging" if harm.startswith("perf") else "safe"
    if row.get("documented") or harm == "debug" or row.get("category") in ("debug", "topology"):
        return "debugging"
    return "pin"


@functools.cache
def load() -> Knowledge:
    """The whole knowledge base (read once, about 30 ms)."""
    curated, plugins = _read("curated.yaml"), _read("plugins.yaml")
    system = frozenset(curated["system_configuration"])
    # A name both read keeps NCCL's row, except the old PyTorch names that begin with NCCL_.
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in [*_read("torch.json"), *_read("nccl.json")]}
    for name, more in curated["variables"].items():
        rows[name] = {"name": name, **rows.get(name, {}), **more}
    for name, row in plugins["variables"].items():
        family = plugins["families"][row["family"]]
        inherited = {"reader": family["reader"], "source": family["source"], "vendor": family.get("vendor", "")}
        rows[name] = {"name": name, **inherited, **row}
    for name in curated["legacy_backend"]["names"]:
        rows[name]["legacy_since"] = curated["legacy_backend"]["since"]
    for row in rows.values():
        row.setdefault("risk", _risk(row, system))
    silent = {row["name"]: row for row in _read("nobody.json")}
    for name, extra in curated["nobody"].items():
        row = silent.pop(name, {"name": name}) | extra
        if not row.get("drop"):
            silent[name] = row
    return Knowledge(
        variables={name: msgspec.convert(row, Variable) for name, row in sorted(rows.items())},
        nobody={name: msgspec.convert(row, Nobody) for name, row in sorted(silent.items())},
        families=tuple(msgspec.convert(row, Family) for row in plugins["families"].values()),
        must_agree=frozenset(curated["must_agree"]),
        may_differ=frozenset(curated["may_differ"]),
    )


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one name at one version: exactly one of variable, nobody and family is set, or none."""

    name: str
    status: Status
    version: str = ""  # the reader's release this holds for; empty where versions do not matter
    assumed: bool = False  # no version was given: the newest known one
    variable: Variable | None = None
    nobody: Nobody | None = None
    family: Family | None = None
    near: tuple[str, ...] = ()  # did you mean

    @property
    def default(self) -> str:
        """The default at that version; empty where there is none to speak of."""
        if self.variable is None:
            return ""
        return self.variable.default_at(versions.parse(self.version)) if self.version else self.variable.default

    @property
    def beyond(self) -> str:
        """The newest release that is known, where a later one was asked for: what holds there is not known."""
        newest = NEWEST_TORCH if self.variable is not None and self.variable.of_torch else NEWEST_NCCL
        return newest if is_beyond(self.version, newest) else ""

    @property
    def only_legacy(self) -> bool:
        """Whether at that version only PyTorch's legacy NCCL backend reads it, which is not the default."""
        since = self.variable.legacy_since if self.variable and self.status is Status.CURRENT else ""
        return bool(since) and versions.at_least(versions.parse(self.version), since)

    @property
    def replaced_by(self) -> str:
        """The name to use instead; empty if none."""
        if self.variable is not None:
            return self.variable.replaced_by
        return self.nobody.instead if self.nobody else ""


def nccl_release(text: str = "") -> Version:
    """This NCCL release as a number; the newest known if none is named."""
    return versions.parse(text or NEWEST_NCCL)


def lookup(name: str, nccl_version: str = "", torch_version: str = "") -> Answer:
    """What is known of ``name`` at these releases of NCCL and PyTorch (empty: the newest known).

    ``ValueError`` for a version that is none.
    """
    known = load()
    variable = known.variables.get(name)
    if variable is not None:
        given = torch_version if variable.of_torch else nccl_version if variable.of_nccl else ""
        if not (variable.of_torch or variable.of_nccl):
            status = Status.CURRENT if not variable.last else Status.REMOVED
            return Answer(name, status, variable=variable)
        version = versions.parse(given or (NEWEST_TORCH if variable.of_torch else NEWEST_NCCL))
        return Answer(name, variable.status_at(version), versions.show(version), not given, variable)
    if name in known.nobody:
        return Answer(name, Status.READ_BY_NOBODY, nobody=known.nobody[name])
    family = family_of(name)
    if family is not None and not family.complete:
        return Answer(name, Status.CURRENT, family=family)
    return Answer(name, Status.UNKNOWN, family=family, near=near(name))


def is_beyond(release: str, newest: str) -> bool:
    """Whether a release (empty: none named) is of a later series than the newest one known: its third number adds no names."""
    return bool(release) and versions.parse(release)[:2] > versions.parse(newest)[:2]


def beginning(part: str) -> tuple[str, ...]:
    """The variables whose names begin with ``NCCL_IB_`` or ``NCCL_IB_*``; none where that says no more than ``NCCL_``."""
    wanted = part.upper().removesuffix("*")
    return tuple(name for name in load().variables if len(wanted) > len("NCCL_") and name.startswith(wanted))


def family_of(name: str) -> Family | None:
    """The plugin family a name belongs to by its prefix."""
    return next((family for family in load().families if name.startswith(family.prefix)), None)


@functools.lru_cache(maxsize=4096)
def near(name: str) -> tuple[str, ...]:
    """Known names that ``name`` may be a slip of the pen for, best first, at most three."""
    known = load()
    return spelling.near(name, known.variables, known.nobody)
