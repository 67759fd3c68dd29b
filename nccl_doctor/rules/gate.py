"""Go or no-go: every host is healthy, suspect, bad or unknown, and only what was measured can be healthy."""

from __future__ import annotations

from collections import Counter

import msgspec

from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import SURE, Severity, Unknown
from nccl_doctor.rules.judge import Report, anything

HEALTHY, SUSPECT, BAD, UNKNOWN = "healthy", "suspect", "bad", "unknown"


class Decision(msgspec.Struct, frozen=True):
    """One host's state, and the ids or gaps that decided it."""

    host: str
    state: str
    because: tuple[str, ...] = ()


class Gate(msgspec.Struct, frozen=True):
    """The decision for a job: ``go``, the ``chosen`` hosts to run on, and the ``spares``.

    ``good`` are all good hosts: some of them may be neither chosen nor spare. Without ``go`` they are the chosen ones.
    """

    go: bool
    decisions: tuple[Decision, ...]
    chosen: tuple[str, ...]
    spares: tuple[str, ...]
    reason: str
    good: tuple[str, ...] = ()

    @property
    def not_good(self) -> tuple[str, ...]:
        """The hosts to keep away from: whatever is not known to be good."""
        good = set(self.good)
        return tuple(item.host for item in self.decisions if item.host not in good)

    def hosts(self, *states: str) -> tuple[str, ...]:
        """The hosts in these states."""
        return tuple(item.host for item in self.decisions if item.state in states)


def asking_all(report: Report, plan: Plan, profile: str = "") -> Report:
    """The report of a saved run, as a gate takes it: a gate asks for every stage, and one that the run left out is unknown.

    A quick run may lack the collectives, unless the site's ``profile`` has them measured.
    """
    quick = plan.quick and profile in ("", "quick")
    missing = [name for name in report.left_out if not (quick and name == "collectives")]
    if not missing:
        return report
    gaps = tuple(Unknown(name, report.hosts, "the saved run left it out", stages=(name,)) for name in missing)
    verdict = "incomplete" if report.verdict == "healthy" else report.verdict
    return msgspec.structs.replace(report, unknown=report.unknown + gaps, verdict=verdict)


def decide_hosts(report: Report) -> tuple[Decision, ...]:
    """The state of every host.

    A cause of severity fail makes its hosts bad; where the measurement could not tell two ends apart, suspect. A host
    with anything unmeasured is unknown unless it is bad, and so are all where no stage applies. Consequences that are
    folded under another host's fault are not held against a host; but a failing cause that names nobody is held against
    everybody.
    """
    bad: dict[str, list[str]] = {host: [] for host in report.hosts}
    doubtful: dict[str, list[str]] = {host: [] for host in report.hosts}
    for item in report.causes:
        if item.severity is Severity.INFO:
            continue
        unsure = item.severity is Severity.WARN or (len(item.hosts) > 1 and item.confidence < SURE)
        for host in item.hosts or report.hosts:
            (doubtful if unsure else bad).setdefault(host, []).append(item.id)
    nothing = [] if anything(report.stages) else ["no stage that was asked for applies: nothing was checked"]
    gaps: dict[str, list[str]] = {host: list(nothing) for host in report.hosts}
    for gap in report.unknown:
        for host in gap.hosts:
            gaps.setdefault(host, []).append(f"{gap.what}: {gap.why}")
    return tuple(_decision(host, bad[host], gaps[host], doubtful[host]) for host in report.hosts)


def _decision(host: str, bad: list[str], gaps: list[str], doubtful: list[str]) -> Decision:
    if bad:
        return Decision(host, BAD, tuple(bad))
    if gaps:
        return Decision(host, UNKNOWN, tuple(gaps))
    if doubtful:
        return Decision(host, SUSPECT, tuple(doubtful))
    return Decision(host, HEALTHY)


def decide(
    report: Report,
    *,
    min_hosts: int | None = None,
    spares: int | None = None,
    strict: bool = False,
    groups: dict[str, str] | None = None,
    master: str = "",
) -> Gate:
    """Go if at least ``min_hosts`` (default: all) hosts are good.

    Good are healthy hosts, and unless ``strict`` those with warnings only. Without ``spares`` all good hosts are
    chosen; with it exactly ``min_hosts``, and up to ``spares`` more are kept ready. Where ``groups`` (host -> drift
    and rail group) differ, hosts of the largest group come first: a job runs best on hosts that are alike. Among equals the
    ``master`` does, on which the job's port was tried.
    """
    decisions = decide_hosts(report)
    failing = {(cause.id, host) for cause in report.causes if cause.severity is Severity.FAIL for host in cause.hosts}

    def is_good(item: Decision) -> bool:
        if item.state == SUSPECT and not strict:  # by warnings alone: not one end of a link that failed
            return not any((id, item.host) in failing for id in item.because)
        return item.state == HEALTHY

    ordered = _alike_first({item.host: item.state for item in decisions if is_good(item)}, groups or {}, master)
    wanted = len(report.hosts) if min_hosts is None else min_hosts
    go = bool(ordered) and len(ordered) >= wanted
    chosen = ordered[:wanted] if spares is not None else ordered
    return Gate(
        go,
        decisions,
        chosen=tuple(sorted(chosen)),
        spares=tuple(ordered[len(chosen) :][:spares]),
        reason=f"{len(ordered)} of {len(report.hosts)} hosts are good, {wanted} needed",
        good=tuple(sorted(ordered)),
    )


def _alike_first(good: dict[str, str], groups: dict[str, str], master: str) -> list[str]:
    """Good hosts (with their states), those of the largest group first. In a group the healthy ones come first, and of these
    the master."""
    of = {host: groups.get(host, "") for host in good}
    size = Counter(of.values())
    return sorted(good, key=lambda host: (-size[of[host]], of[host], good[host] != HEALTHY, host != master, host))


def exit_code(report: Report, gate: Gate) -> ExitCode:
    """What a preflight with this decision exits with."""
    if gate.go:
        return ExitCode.HEALTHY
    if not report.reached:
        return ExitCode.NOTHING_CHECKED
    code = report.exit_code(strict=True)
    return ExitCode.INCOMPLETE if code is ExitCode.HEALTHY else code
