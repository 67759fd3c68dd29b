"""What changed between two bundles, or between hosts of one, in the order of how likely it matters. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from nccl_doctor.facts.files import read_yaml
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Names
from nccl_doctor.facts.model import Bundle, Outcome, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding, Severity, beneath
from nccl_doctor.rules import metrics
from nccl_doctor.rules.compare_facts import READERS, Values, values_of
from nccl_doctor.rules.engine import Host
from nccl_doctor.rules.judge import Report, judge

COMPARISON_SCHEMA = "nccl-doctor/comparison/1"
NOISE_FACTOR = 2.0  # round trips, rates and bandwidths differ by less from run to run without any cause
# Changes for the worse; what the first run did not look for (first-looked) may be older than it.
NEW = ("new", "worse", "first-looked")
_CHANGES = (*NEW, "not-measured", "milder", "gone")  # in the order in which they are told
# Pairs of hosts are partly drawn by chance: a pair that only one run measured is no change.
_IN_BOTH = ("link", "path-mtu")
_MEASURED = "measured"
_SEVERITY_RANK = {Severity.INFO: 0, Severity.WARN: 1, Severity.FAIL: 2}


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of compare.yaml. ``ids`` are the findings that care; ``only`` "fleet": not compared between hosts of one run."""

    label: str
    ids: tuple[str, ...]
    only: Literal["", "fleet"] = ""


class FindingChange(msgspec.Struct, frozen=True):
    """A finding that is ``new``, ``worse``, ``milder``, ``gone``, ``first-looked`` (the first run did not measure it:
    it may be old), or ``not-measured`` (there before, and not looked for again). ``where`` are its GPUs and NICs."""

    change: str
    id: str
    severity: Severity
    title: str
    hosts: tuple[str, ...]
    where: tuple[str, ...] = ()


class FactChange(msgspec.Struct, frozen=True):
    """One fact that differs, folded over items and hosts. An empty ``before`` or ``after``: it was not there.

    ``ids`` are the findings that care; ``found`` the one of them that is new on these hosts.
    """

    subject: str
    label: str
    items: tuple[str, ...]
    hosts: tuple[str, ...]
    before: str
    after: str
    ids: tuple[str, ...]
    found: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """All differences between ``a`` and ``b``: two files, or a host and the others."""

    schema: str
    a: str
    b: str
    created_a: str
    created_b: str
    compared: tuple[str, ...]  # hosts of b that were compared
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]
    changes: tuple[FactChange, ...]
    lost: tuple[str, ...]  # what a measured and b did not, as "probe: why"

    @property
    def exit_code(self) -> ExitCode:
        """11 if a failing finding is new; 3 if nothing was compared; 4 if b did not measure what a did; else 0."""
        if any(item.change in NEW and item.severity is Severity.FAIL for item in self.findings):
            return ExitCode.FINDINGS
        if not self.compared:
            return ExitCode.NOTHING_CHECKED
        gaps = self.lost or any(item.change == "not-measured" for item in self.findings)
        return ExitCode.INCOMPLETE if gaps else ExitCode.HEALTHY


class CompareError(ValueError):
    """What was asked to be compared is not there; the message names it."""


@functools.cache
def subjects() -> dict[str, Subject]:
    """The rows of compare.yaml, most important first."""
    return msgspec.convert(read_yaml(Path(__file__).parent / "compare.yaml"), dict[str, Subject])


Judge = Callable[[Bundle], Report]


def bundles(a: Bundle, b: Bundle, names: tuple[str, str] = ("A", "B"), judge: Judge = judge) -> Comparison:
    """Two runs: the same hosts, before and after, judged as the site judges."""
    hosts_a, hosts_b = ({facts.name: Host(facts) for facts in run.hosts} for run in (a, b))
    both = sorted(hosts_a.keys() & hosts_b.keys())
    report_a, report_b = judge(a), judge(b)
    found = _finding_changes(_placed(report_a), _placed(report_b), report_a, report_b)
    rows = [row for name in both for row in _host_rows(name, hosts_a[name], hosts_b[name], one_run=False)]
    rows += _run_rows(tuple(hosts_a.values()), tuple(hosts_b.values()), both)
    told = _comparison(names, (a.created, b.created), both, found, rows)
    only_a, only_b = sorted(hosts_a.keys() - hosts_b.keys()), sorted(hosts_b.keys() - hosts_a.keys())
    return msgspec.structs.replace(told, only_a=tuple(only_a), only_b=tuple(only_b))


def hosts(bundle: Bundle, names: Sequence[str], judge: Judge = judge) -> Comparison:
    """Hosts of one run: the first against each of the others. ``CompareError`` names a host that is not there."""
    known = {facts.name: Host(facts) for facts in bundle.hosts}
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in known:
            shown = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
            raise CompareError(f"host {name!r} is not in the bundle; it has: {shown or 'no host'}")
    if len(wanted) < 2:
        raise CompareError("two or more different hosts are needed to compare them")
    reference, *others = wanted
    report = judge(bundle)
    placed = _placed(report)
    found: list[_Changed] = []
    rows: list[_Row] = []
    for other in others:
        found += _finding_changes(_on(placed, reference, other), _on(placed, other, other), report, report, reference)
        rows += _host_rows(other, known[reference], known[other], one_run=True)
    times = (bundle.created, bundle.created)
    return _comparison((reference, ", ".join(others)), times, others, found, rows)


_Place = tuple[str, str, str]  # finding id, host, GPU or NIC


def _placed(report: Report) -> dict[_Place, Finding]:
    """Every finding by what it says and where, so that a second GPU of the same host is a second problem."""
    found: dict[_Place, Finding] = {}
    for item in report.findings:
        hosts = set(item.hosts)
        parts = {(place.host, place.gpu or place.nic) for place in item.places if place.host and place.host in hosts}
        named = {host for host, _ in parts}
        for host, part in parts | {(host, "") for host in item.hosts or ("",) if host not in named}:
            key = (item.id, host, part)
            if key not in found or _SEVERITY_RANK[item.severity] > _SEVERITY_RANK[found[key].severity]:
                found[key] = item
    return found


def _on(placed: Mapping[_Place, Finding], host: str, called: str) -> dict[_Place, Finding]:
    """The findings on one host, with the host called otherwise."""
    return {(id, called, part): item for (id, name, part), item in placed.items() if name == host}


_Changed = tuple[str, Finding, _Place]  # how it changed, the finding (the later one where both sides have it), where


def _finding_changes(
    before: Mapping[_Place, Finding],
    after: Mapping[_Place, Finding],
    report_a: Report,
    report_b: Report,
    reference: str = "",
) -> Iterator[_Changed]:
    """``reference``: the host that ``before`` is of, where that is another one."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        word = _change(old, new, (report_a, reference or key[1]), (report_b, key[1]))
        item = new or old
        if word and item is not None:
            yield word, item, key


def _folded_findings(found: Iterable[_Changed]) -> list[FindingChange]:
    """Equal changes as one, with all their places; the most important ones first."""
    places: dict[tuple[str, str, Severity], list[_Place]] = {}
    titles: dict[tuple[str, str, Severity], str] = {}
    for word, item, place in found:
        kind = (word, item.id, item.severity)
        places.setdefault(kind, []).append(place)
        titles.setdefault(kind, item.title)
    ordered = sorted(places, key=lambda kind: (_CHANGES.index(kind[0]), -_SEVERITY_RANK[kind[2]], kind[1]))
    return [
        FindingChange(
            *kind,
            title=titles[kind],
            hosts=tuple(sorted({host for _, host, _ in places[kind] if host})),
            where=tuple(sorted({part for _, _, part in places[kind] if part})),
        )
        for kind in ordered
    ]


_Side = tuple[Report, str]  # a run, and the host in it that is compared (empty: all)


def _change(old: Finding | None, new: Finding | None, before: _Side, after: _Side) -> str:
    if old is None:
        return "new" if new is None or _looked_for(new, before, after) else "first-looked"
    if new is None:
        return "gone" if _looked_for(old, after, before) else "not-measured"
    ranks = _SEVERITY_RANK[new.severity] - _SEVERITY_RANK[old.severity]
    return "worse" if ranks > 0 else "milder" if ranks < 0 else ""


def _looked_for(item: Finding, side: _Side, other: _Side) -> bool:
    """Whether one side looked where the other found something: the host reached, the stage run, and in that stage
    nothing left open that the other has measured (a gap that both have cannot hide the difference)."""
    report, host = side
    if item.id.startswith("host."):  # how a host is reached is looked at in every run it is part of
        return not host or host in report.hosts
    stages = {stage.name for stage in report.stages}
    if (host and host not in report.reached) or (item.stage and item.stage not in stages):
        return False
    return not _gaps(*side, item.stage) - _gaps(*other, item.stage)


def _gaps(report: Report, host: str, stage: str) -> set[str]:
    """What was not measured of a stage on a host (empty: on any)."""
    return {
        gap.what
        for gap in report.unknown
        if (not host or host in gap.hosts) and (not gap.stages or not stage or stage in gap.stages)
    }


class _Row(msgspec.Struct, frozen=True):
    """One difference on one host, before it is folded."""

    subject: str
    item: str
    host: str
    before: str
    after: str


def _host_rows(name: str, a: Host, b: Host, *, one_run: bool) -> Iterator[_Row]:
    """What differs between two hosts, told as the second one's; ``one_run``: they are of the same run."""
    for subject, item, before, after in _differences(a, b, one_run):
        if not (one_run and subjects()[subject].only == "fleet"):
            yield _Row(subject, item, name, before, after)


def _differences(a: Host, b: Host, one_run: bool) -> Iterator[tuple[str, str, str, str]]:
    if a.facts.reach.outcome is not b.facts.reach.outcome:
        yield "reach", "", a.facts.reach.outcome.value, b.facts.reach.outcome.value
    if ReachOutcome.OK not in (a.facts.reach.outcome, b.facts.reach.outcome):
        return
    for probe in sorted(a.facts.probes.keys() | b.facts.probes.keys()):
        before, after = _state(a, probe), _state(b, probe)
        if before != after:
            yield _MEASURED, probe, before, after
    old_probes, new_probes = values_of(a), values_of(b)
    for probe in sorted(old_probes.keys() & new_probes.keys()):
        old, new = old_probes[probe], new_probes[probe]
        if one_run:
            old, new = _without_own(old, a), _without_own(new, b)
        for key in sorted(old.keys() | new.keys()):
            missing = key not in old or key not in new
            if old.get(key, "") != new.get(key, "") and not (missing and key[0] in _IN_BOTH):
                yield *key, old.get(key, ""), new.get(key, "")
    yield from _noisy(metrics.of_host(a), metrics.of_host(b))


_KINDS = {kind.PROBE: kind for kind, _ in READERS}


def _state(host: Host, probe: str) -> str:
    """``measured``, or how the probe ended."""
    result = host.facts.probes.get(probe)
    if result is None:
        return "not collected"
    if result.outcome is not Outcome.OK:
        return str(result.outcome.value)
    return "measured" if probe not in _KINDS or host.want(_KINDS[probe]) is not None else "unreadable"


def _without_own(values: Values, host: Host) -> Values:
    """The values, with placeholders for the host's own addresses and name, which always differ between two hosts."""
    interfaces, names = host.want(Interfaces), host.want(Names)
    own = {entry.address for entry in interfaces.addresses if not entry.loopback} if interfaces else set()
    own |= {text for text in names.addresses if not text.startswith("127.") and text != "::1"} if names else set()
    words = dict.fromkeys(own, "(own address)") | {host.name: "(own name)"}
    pattern = re.compile("|".join(rf"(?<![\w.:-]){re.escape(word)}(?![\w.:-])" for word in words))
    return {key: pattern.sub(lambda match: words[match.group()], value) for key, value in values.items()}


def _noisy(before: Iterable[metrics.Metric], after: Iterable[metrics.Metric]) -> Iterator[tuple[str, str, str, str]]:
    """Measurements that differ by more than noise alone explains."""
    old = {metric.name: metric for metric in before}
    for new in after:
        was = old.get(new.name)
        factor = 1.0 if new.exact else NOISE_FACTOR
        if was is not None and max(was.value, new.value) > factor * min(was.value, new.value):
            kind, _, item = new.name.partition(" ")
            yield f"metric.{kind}", item, _told(was), _told(new)


def _told(metric: metrics.Metric) -> str:
    return f"{metric.value:.3g} {metric.unit}"


def _run_rows(a: tuple[Host, ...], b: tuple[Host, ...], both: Sequence[str]) -> Iterator[_Row]:
    """Collective bandwidth belongs to all hosts together, and is comparable only over the same hosts."""
    if {host.name for host in a} == {host.name for host in b}:
        for subject, item, before, after in _noisy(metrics.of_run(a), metrics.of_run(b)):
            yield from (_Row(subject, item, name, before, after) for name in both)


def _folded(rows: Iterable[_Row], found: Sequence[FindingChange]) -> list[FactChange]:
    """Equal changes over hosts are one, then equal ones over items (eight GPUs with one new VBIOS)."""
    by_host: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        by_host.setdefault((row.subject, row.item, row.before, row.after), []).append(row.host)
    by_item: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (subject, item, before, after), hosts_of in by_host.items():
        by_item.setdefault((subject, before, after, tuple(sorted(hosts_of))), []).append(item)
    changes = []
    for (subject, before, after, names), items in by_item.items():
        about = subjects()[subject]
        changes.append(
            FactChange(
                subject=subject,
                label=about.label,
                items=tuple(sorted(item for item in items if item)),
                hosts=names,
                before=before,
                after=after,
                ids=about.ids,
                found=_new_finding(about, names, found),
            )
        )
    order = list(subjects())
    failing = {item.id for item in found if item.severity is Severity.FAIL}
    return sorted(
        changes, key=lambda item: (item.found not in failing, order.index(item.subject), item.items, item.hosts)
    )


def _new_finding(about: Subject, names: tuple[str, ...], found: Sequence[FindingChange]) -> str:
    """The id of a new failure or warning, on one of these hosts, that this subject is about."""
    for item in found:
        told = item.change in NEW and item.severity is not Severity.INFO and not set(names).isdisjoint(item.hosts)
        if told and any(beneath(item.id, id) for id in about.ids):
            return item.id
    return ""


def _comparison(
    names: tuple[str, str],
    times: tuple[str, str],
    compared: Sequence[str],
    found: Iterable[_Changed],
    rows: Sequence[_Row],
) -> Comparison:
    findings = _folded_findings(found)
    lost = sorted({f"{row.item}: {row.after}" for row in rows if row.subject == _MEASURED and row.before == "measured"})
    return Comparison(
        schema=COMPARISON_SCHEMA,
        a=names[0],
        b=names[1],
        created_a=times[0],
        created_b=times[1],
        compared=tuple(sorted(compared)),
        only_a=(),
        only_b=(),
        findings=tuple(findings),
        changes=tuple(_folded(rows, findings)),
        lost=tuple(lost),
    )
