"""From a bundle to a verdict: run the rules, fold consequences under their causes, say what is not known."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.env.recommend import recommend
from nccl_doctor.env.recommend_model import Advice
from nccl_doctor.facts.files import printed_json
from nccl_doctor.facts.fold import few_reasons
from nccl_doctor.facts.fold import fold as fold_names
from nccl_doctor.facts.model import Bundle, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import EnvAdvice, Finding, Severity, Unknown
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import engine, needs, requirements, thresholds
from nccl_doctor.rules.consequences import folded_and_sorted
from nccl_doctor.rules.reach import reach_findings

# So many new objects (some 400 GPU hosts make them) are kept from the garbage collector for good: it would free none.
MANY_OBJECTS = 200_000
GAPS_TOLD = 20  # in the reason of a stage; the report has all of them
REPORT_SCHEMA = "nccl-doctor/report/1"


class StageResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stage: its state (fail, warn, unknown, skipped, pass), and how many hosts passed all its rules.

    A host to which none of them applies counts as passed where they apply to others.
    """

    name: str
    state: str
    passed: int
    hosts: int
    reason: str = ""


class Report(msgspec.Struct, frozen=True):
    """What is told: pure data, the same for the same bundle, whatever renders it."""

    schema: str
    tool: str
    created: str
    verdict: str  # healthy, faulty, incomplete
    hosts: tuple[str, ...]
    reached: tuple[str, ...]  # the hosts on which an agent ran to the end
    findings: tuple[Finding, ...]  # not folded ones first: severity, first failing stage, how sure
    unknown: tuple[Unknown, ...]
    env: tuple[EnvAdvice, ...]  # what `env recommend` says of these hosts
    stages: tuple[StageResult, ...]
    seconds: float
    env_unknown: tuple[str, ...] = ()  # the variables env recommend could not decide on, each with the reason

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The findings that are nobody's consequence."""
        return tuple(item for item in self.findings if not item.folded_under)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The stages that this run did not look at."""
        looked_at = {stage.name for stage in self.stages}
        return tuple(name for name in engine.STAGES if name not in looked_at)

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """The published exit code; with ``strict`` warnings count."""
        if not self.reached:
            return ExitCode.NOTHING_CHECKED
        if self.verdict == "faulty":
            return ExitCode.FINDINGS
        if self.verdict == "incomplete":
            return ExitCode.INCOMPLETE
        if strict and any(item.severity is Severity.WARN for item in self.findings):
            return ExitCode.WARNINGS
        return ExitCode.HEALTHY


def judge(bundle: Bundle, rows: thresholds.Overrides | None = None) -> Report:
    """The report of a bundle, by the given thresholds or the default ones."""
    with thresholds.using(rows), _no_collector():
        return _judge(bundle)


def _judge(bundle: Bundle) -> Report:
    hosts = engine.reached(bundle)
    fleet = engine.Fleet(hosts, bundle.plan, {})
    results = tuple(engine.run(bundle, hosts=hosts, derived=fleet.derived))
    advice, broken, gap = _advice(fleet)
    found = [msgspec.structs.replace(item, stage="connectivity") for item in reach_findings(bundle)]
    found += [item for result in results for item in result.findings] + broken
    findings = folded_and_sorted(found)
    unknown = _unknown(bundle, results) + gap
    stages = tuple(_stage(name, bundle, results, findings, unknown) for name in bundle.plan.stages)
    return Report(
        schema=REPORT_SCHEMA,
        tool=bundle.tool,
        created=bundle.created,
        verdict=verdict_of(findings, unknown, measured=bool(results and hosts and anything(stages))),
        hosts=tuple(facts.name for facts in bundle.hosts),
        reached=tuple(host.name for host in hosts),
        findings=findings,
        unknown=unknown,
        env=tuple(line.advice for line in advice.lines) if advice else (),
        env_unknown=advice.unknown if advice else ("the environment",),
        stages=stages,
        seconds=bundle.seconds,
    )


def _advice(fleet: engine.Fleet) -> tuple[Advice | None, list[Finding], tuple[Unknown, ...]]:
    """What ``env recommend`` says of these hosts; where that fails, a finding and a gap, as of a rule that fails."""
    try:
        return recommend(*needs.of_fleet(fleet)), [], ()
    except Exception as error:  # noqa: BLE001 - it must hide no finding
        names = tuple(sorted(host.name for host in fleet.hosts))
        gap = Unknown("recommended environment", names, "internal error")
        return None, [engine.internal_error("env recommend", error, names)], (gap,)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Without the cyclic garbage collector: facts hold no cycles, and looking for some takes longer than the rules do.

    A bundle of 1,000 GPU hosts is millions of objects, which it would walk again and again. What the rules left of a
    large one is out of its sight afterwards, too: reference counting frees it.
    """
    running = gc.isenabled()
    before = gc.get_count()[0]
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] - before > MANY_OBJECTS:
            gc.freeze()
        if running:
            gc.enable()


def anything(stages: tuple[StageResult, ...]) -> bool:
    """Whether any stage applies to these hosts. Where all were skipped, nothing is known of their health."""
    return any(stage.state != "skipped" for stage in stages)


def verdict_of(findings: tuple[Finding, ...], unknown: tuple[Unknown, ...], *, measured: bool) -> str:
    """``faulty`` with any failing finding, else ``incomplete`` with any gap or where no rule looked at anything, else ``healthy``."""
    if any(item.severity is Severity.FAIL for item in findings):
        return "faulty"
    return "healthy" if measured and not unknown else "incomplete"


def _unknown(bundle: Bundle, results: tuple[engine.RuleResult, ...]) -> tuple[Unknown, ...]:
    gaps: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    def note(what: str, why: str, hosts: Iterable[str], stages: Iterable[str]) -> None:
        known_hosts, known_stages = gaps.setdefault((what, why), (set(), set()))
        known_hosts.update(hosts)
        known_stages.update(stages)

    for facts in bundle.hosts:
        if facts.reach.outcome is not ReachOutcome.OK:
            note("every stage", f"no agent: {facts.reach.outcome.value}", [facts.name], bundle.plan.stages)
    for result in results:
        for gap in result.unknown:
            note(gap.what, gap.why, gap.hosts, [result.stage])
    looked_at = {result.stage for result in results}
    for stage in bundle.plan.stages:
        if stage not in looked_at:
            note(stage, "no rule looks at this stage", [facts.name for facts in bundle.hosts], [stage])
    for need in bundle.plan.require:
        stage = requirements.stage_of(need)
        if stage not in bundle.plan.stages:
            why = f"it needs the stage {stage}, which this run left out" if stage else "no rule knows this requirement"
            note(need, why, [facts.name for facts in bundle.hosts], [stage] if stage else ())
    return _by_peer(gaps, {facts.name for facts in bundle.hosts})


def _by_peer(gaps: Mapping[tuple[str, str], tuple[set[str], set[str]]], names: set[str]) -> tuple[Unknown, ...]:
    """Gaps that differ only in the peer they end in ("connect to gpu07") as one: a thousand hosts have thousands.

    What one host lacks to and from all others stays two gaps; of more than two only which hosts and which peers is told.
    """
    grouped: dict[tuple[str, str], dict[tuple[str, ...], tuple[set[str], set[str]]]] = {}
    for (what, why), (hosts, stages) in gaps.items():
        head, _, last = what.rpartition(" ")
        peer = last if head and last in names else ""
        groups = grouped.setdefault((head if peer else what, why), {})
        found = groups.setdefault(tuple(sorted(hosts)), (set(), set()))
        found[0].update(stages)
        found[1].update([peer] if peer else ())
    told = []
    for (what, why), groups in sorted(grouped.items()):
        if len(groups) > 2:
            stages, peers = (set().union(*sets) for sets in zip(*groups.values(), strict=True))
            groups = {tuple(sorted(set().union(*groups))): (stages, peers)}
        for where, (stages, peers) in sorted(groups.items()):
            text = f"{what} {fold_names(peers)}" if peers else what
            told.append(Unknown(text, where, why, stages=tuple(sorted(stages))))
    return tuple(told)


def _stage(
    name: str,
    bundle: Bundle,
    results: tuple[engine.RuleResult, ...],
    findings: tuple[Finding, ...],
    unknown: tuple[Unknown, ...],
) -> StageResult:
    hosts = tuple(facts.name for facts in bundle.hosts if facts.reach.outcome is ReachOutcome.OK)
    mine = [result for result in results if result.stage == name]
    worst = {item.severity for item in findings if item.stage == name}
    skipped = [dict(result.skipped) for result in mine]
    through = [set(result.passed) | set(result.skipped) for result in mine]
    passed = set(hosts).intersection(*through) if mine else set()
    all_skipped = all(set(item) == set(hosts) for item in skipped)
    if Severity.FAIL in worst:
        state, reason = "fail", ""
    elif not mine or not hosts:
        state, reason = "unknown", "no host reached" if mine else "no rule looks at this stage"
    elif any(result.unknown for result in mine):
        state, reason = "unknown", few_reasons(sorted({gap.what for gap in unknown if name in gap.stages}), GAPS_TOLD)
    elif len(hosts) < len(bundle.hosts) and not all_skipped:
        state, reason = "unknown", f"{len(bundle.hosts) - len(hosts)} of {len(bundle.hosts)} hosts not reached"
    elif Severity.WARN in worst:
        state, reason = "warn", ""
    elif all_skipped:
        state, reason = "skipped", _why_skipped({text for item in skipped for text in item.values() if text})
        passed = set()  # what applies to no host has passed on none
    else:
        state, reason = "pass", ""
    return StageResult(name, state, len(passed), len(bundle.hosts), reason)


def _why_skipped(reasons: set[str]) -> str:
    """Why a stage was skipped: where one reason is about all hosts, the rules' own ones add nothing."""
    wide = [{text for text in reasons if text.endswith(where)} for where in ("on any host", "on this host")]
    return "; ".join(sorted(wide[0] or wide[1] or reasons))


def to_json(report: Report) -> bytes:
    """The report as JSON: sorted, reproducible. ``findings`` are what fails or warns, ``notes`` what is only informative."""
    data = msgspec.to_builtins(report)
    for item in data["findings"]:
        item.setdefault("hosts", [])
        item.setdefault("env", [])
        item["playbook"] = for_finding(item["id"])
    # What is only worth knowing is no finding: a clean fleet has none.
    data["notes"] = [item for item in data["findings"] if item["severity"] == Severity.INFO.value]
    data["findings"] = [item for item in data["findings"] if item["severity"] != Severity.INFO.value]
    return printed_json(data)
