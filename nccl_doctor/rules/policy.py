"""A site's own judgement: severities, ignores with an expiry date and a reason, thresholds, requirements.

Read from ``nccl-doctor.toml`` (top level) or from ``[tool.nccl-doctor]`` of a pyproject.toml. A typo is an error that
names the line and the key: a policy that is silently not applied is worse than none.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import re
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.facts.files import SETTINGS_BYTES, content
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import DENIED, Evidence, Finding, Severity, Unknown, beneath, finding
from nccl_doctor.inventory import InventoryError, from_list
from nccl_doctor.rules import engine, reach, requirements, thresholds
from nccl_doctor.rules.consequences import folded_and_sorted
from nccl_doctor.rules.judge import Report, anything, verdict_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = ("nccl-doctor.toml", "pyproject.toml")
PROFILES = ("quick", "standard", "full")


class PolicyError(ValueError):
    """A policy file that cannot be used; names the file, the line and the key."""


class Ignore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finding that is known and accepted until a day: ``id`` and all beneath it, on ``hosts`` (node set; all)."""

    id: str
    reason: str
    until: datetime.date
    hosts: str = ""


class NotPermitted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user who runs this may not read, accepted as unmeasured until a day: ``what`` as told under "not checked"."""

    what: str
    reason: str
    until: datetime.date
    hosts: str = ""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What a policy file says. Command-line options win over it. ``require`` holds one requirement each once it is loaded."""

    profile: str = ""
    budget: str = ""
    require: tuple[str, ...] = ()
    min_hosts: int | None = None
    strict: bool = False
    severity: dict[str, Severity] = {}
    ignore: tuple[Ignore, ...] = ()
    not_permitted: tuple[NotPermitted, ...] = ()
    thresholds: dict[str, float] = {}


def find(directory: Path) -> Path | None:
    """The policy file of a directory: nccl-doctor.toml, or a pyproject.toml with a [tool.nccl-doctor] table.

    One that stands there and cannot be read (a link to nothing, a mount that failed) is named as well: without its policy a
    gate would pass what that forbids. :func:`load` tells what is wrong with it.
    """
    own, shared = (directory / name for name in NAMES)
    if own.is_symlink() or own.exists():
        return own
    return shared if shared.is_file() and _has_table(shared) else None


def _has_table(pyproject: Path) -> bool:
    """Whether there is a [tool.nccl-doctor] in it; of a file that is no TOML but names it :func:`load` is to tell."""
    try:
        text = pyproject.read_text("utf-8-sig", "replace")
    except OSError:
        return True
    try:
        tool = tomllib.loads(text).get("tool") if "nccl-doctor" in text else None
    except (ValueError, RecursionError):
        return True
    return isinstance(tool, dict) and "nccl-doctor" in tool


def load(path: Path) -> Policy:
    """Read a policy; ``PolicyError`` for anything that is not understood completely."""
    try:
        text = content(path, SETTINGS_BYTES).decode("utf-8-sig")
        raw: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: byte {error.start} is no UTF-8 text") from error
    except (ValueError, RecursionError) as error:  # of its own kind, or a number of 5,000 digits
        raise PolicyError(f"{path}: not TOML: {error}") from error
    if path.name == "pyproject.toml":
        tool = raw.get("tool")
        table = tool.get("nccl-doctor") if isinstance(tool, dict) else None
        if not isinstance(table, dict):
            raise PolicyError(f"{path}: there is no table [tool.nccl-doctor] in it")
        raw = table
    _check_keys(raw, text, path)
    try:
        policy = msgspec.convert(raw, Policy)
    except msgspec.ValidationError as error:
        raise PolicyError(_placed(str(error), text, path)) from error
    if policy.profile not in ("", *PROFILES):
        wanted = f"expected one of {', '.join(PROFILES)}"
        raise PolicyError(f"{_place(path, text, 'profile')}: profile is {policy.profile!r}; {wanted}")
    if policy.min_hosts is not None and policy.min_hosts < 1:
        raise PolicyError(f"{_place(path, text, 'min-hosts')}: min-hosts is {policy.min_hosts}; expected at least 1")
    for id in (*policy.severity, *(rule.id for rule in policy.ignore)):
        if id not in _known_ids():
            raise PolicyError(_unknown(id, _known_ids(), "finding id", text, path, list_all=False))
    for name, number in policy.thresholds.items():
        if name not in thresholds.defaults():
            raise PolicyError(_unknown(name, thresholds.defaults(), "threshold", text, path))
        try:
            thresholds.with_values({name: number}, _place(path, text, name))
        except thresholds.ThresholdError as error:
            raise PolicyError(str(error)) from error
    entries: tuple[Ignore | NotPermitted, ...] = (*policy.ignore, *policy.not_permitted)
    for hosts in [entry.hosts for entry in entries if entry.hosts]:
        try:
            from_list(hosts, f"{_place(path, text, hosts)}: hosts")
        except InventoryError as error:
            raise PolicyError(str(error)) from error
    needs = tuple(need for row in policy.require for need in requirements.split(row))
    for need in needs:
        try:
            requirements.parse(need)
        except requirements.RequirementError as error:
            raise PolicyError(f"{_place(path, text, 'require')}: {error}") from error
    return msgspec.structs.replace(policy, require=needs)


@functools.cache
def _names(hosts: str) -> frozenset[str]:
    """The hosts of an entry, named as for ``-H``."""
    return frozenset(entry.name for entry in from_list(hosts).entries)


def _line(key: str, text: str) -> int | None:
    wanted = re.compile(rf"""^\s*(\[+[\w.-]*)?["']?{re.escape(key)}["']?\s*(=|\])""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if wanted.search(line)), None)


def _place(path: Path, text: str, word: str) -> str:
    """``FILE:LINE`` of the line that sets this key, or else holds this word; only the file where there is none."""
    line = _line(word, text) or next((number for number, one in enumerate(text.splitlines(), 1) if word in one), None)
    return f"{path}:{line}" if line else str(path)


@functools.cache
def _known_ids() -> frozenset[str]:
    """Every finding id there is, and the ids above them."""
    ids = {*playbooks.names(), *reach.IDS, *(id for rule in engine.all_rules() for id in rule.ids)}
    return frozenset(".".join(id.split(".")[:depth]) for id in ids for depth in range(1, id.count(".") + 2))


def _unknown(
    key: str, known: Mapping[str, object] | Set[str], what: str, text: str, path: Path, list_all: bool = True
) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    others = f"; known: {', '.join(sorted(known))}" if list_all else "; `nccl-doctor playbook` lists them"
    return f"{_place(path, text, key)}: unknown {what} {key!r}" + (f"; did you mean {near[0]!r}?" if near else others)


def _check_keys(raw: Mapping[str, Any], text: str, path: Path) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(Policy)}
    for key in raw:
        if key not in known:
            raise PolicyError(_unknown(key, known, "key", text, path))
    severities = raw.get("severity")
    for id, word in severities.items() if isinstance(severities, dict) else ():
        if word not in [severity.value for severity in Severity]:
            known_words = ", ".join(severity.value for severity in Severity)
            raise PolicyError(
                f"{_place(path, text, id)}: severity of {id!r} is {word!r}; expected one of {known_words}"
            )
    for table, kind in (("ignore", Ignore), ("not-permitted", NotPermitted)):
        inner = {field.encode_name for field in msgspec.structs.fields(kind)}
        for entry in raw.get(table, ()) if isinstance(raw.get(table), list) else ():
            for key in entry if isinstance(entry, dict) else ():
                if key not in inner:
                    raise PolicyError(_unknown(key, inner, "key", text, path))


def _placed(message: str, text: str, path: Path) -> str:
    """msgspec says ``... - at `$.severity[...]` ``: the line of the key it names."""
    keys = re.findall(r"[A-Za-z][\w-]*", message.rsplit("`$", 1)[-1]) if "`$" in message else []
    line = next((number for key in reversed(keys) if (number := _line(key, text))), None)
    what = message.partition(" - at `")[0]
    for type_name, plain in _PLAIN.items():
        what = what.replace(type_name, plain)
    told = f"{keys[-1]}: {what}" if keys else what
    return f"{path}:{line}: {told}" if line else f"{path}: {told}"


# msgspec's names of types, as a TOML file has them.
_PLAIN = {
    "Object missing required field": "missing key",
    " | null`": "`",
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "text in quotes",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "a table",
    "`date`": "a day such as 2027-01-31",
}


def apply(report: Report, policy: Policy, today: datetime.date) -> Report:
    """The report as the policy sees it: severities replaced, ignored findings taken to INFO and marked as such.

    What may not be read and is accepted is no gap any more, but a note. An entry that has expired does nothing, and
    is told: a date makes no host suspect.
    """
    changed = tuple(_judged(item, policy, today) for item in report.findings)
    entries = [(rule.id, rule.until, rule.reason) for rule in policy.ignore]
    entries += [(rule.what, rule.until, rule.reason) for rule in policy.not_permitted]
    expired = tuple(
        finding(
            "policy.ignore-expired",
            Severity.INFO,
            f"the policy's entry on {what} expired on {until}: it no longer applies",
            Evidence(f"{what!r}, until = {until}, reason = {reason!r}", source="policy"),
        )
        for what, until, reason in entries
        if until < today
    )
    accepted = {gap: rule for gap in report.unknown if (rule := _accepted(gap, policy, today))}
    notes = tuple(
        finding(
            "policy.not-permitted",
            Severity.INFO,
            f"{gap.what} was not measured (accepted until {rule.until}: {rule.reason})",
            Evidence(f"{gap.what}: {gap.why}", source="policy"),
            hosts=gap.hosts,
        )
        for gap, rule in accepted.items()
    )
    # A cause that is no longer of severity fail explains nothing away: what it caused stands by itself again.
    findings = folded_and_sorted((*changed, *expired, *notes))
    unknown = tuple(gap for gap in report.unknown if gap not in accepted)
    measured = bool(report.reached) and anything(report.stages)
    verdict = verdict_of(findings, unknown, measured=measured)
    return msgspec.structs.replace(report, findings=findings, unknown=unknown, verdict=verdict)


def _accepted(gap: Unknown, policy: Policy, today: datetime.date) -> NotPermitted | None:
    """The entry that covers a gap. Lack of rights is all that can be accepted: what timed out may be the fault itself."""
    if not gap.why.startswith(DENIED):
        return None
    covering = (rule for rule in policy.not_permitted if rule.what == gap.what and _on(gap, rule.hosts))
    return next((rule for rule in covering if rule.until >= today), None)


def _judged(item: Finding, policy: Policy, today: datetime.date) -> Finding:
    for parent in sorted(policy.severity, key=len):
        if beneath(item.id, parent):
            item = msgspec.structs.replace(item, severity=policy.severity[parent])
    for rule in policy.ignore:
        if rule.until >= today and beneath(item.id, rule.id) and _on(item, rule.hosts):
            title = f"{item.title} (ignored until {rule.until}: {rule.reason})"
            item = msgspec.structs.replace(item, severity=Severity.INFO, title=title)
    return item


def _on(item: Finding | Unknown, hosts: str) -> bool:
    """Whether all hosts of a finding or gap are among those of the entry: one host more, and it is not covered.

    What names no host is held against all, and covered by an entry for all only.
    """
    return not hosts or (bool(item.hosts) and _names(hosts).issuperset(item.hosts))
