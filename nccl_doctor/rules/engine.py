"""How rules are declared and run: a missing fact becomes an unknown, a raising rule one finding, never a pass."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

import nccl_doctor.rules
from nccl_doctor.facts.model import Bundle, Fact, HostFacts, Outcome, Plan, ReachOutcome
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, Unknown, finding

F = TypeVar("F", bound=Fact)
T = TypeVar("T")

Quote = Evidence | tuple[str, str]

# The order in which stages run and in which the first failing one decides what is to be fixed first.
STAGES = ("connectivity", "ports", "interfaces", "system", "software", "gpu", "topology", "infiniband", "collectives")
JOB = "job"  # the stage of `hang` alone: what the ranks of a running job do
WATCH = "watch"  # of `watch` alone: what hosts do while a job runs
ALL_STAGES = (*STAGES, JOB, WATCH)


class MissingFact(Exception):
    """Raised inside a rule when a fact it needs was not collected: the rule's result is then unknown."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why


class SkipRule(Exception):
    """Raised inside a rule that has no ground on this host ("no GPU"): the result is skipped, not passed."""


class Host:
    """One reached host, as rules see it.

    ``gone``: the hosts that were not reached or were lost, by name. What this host says of the way to them is not heard:
    whether a connect to a host that goes away fails depends on the moment. ``alone``: no other host was asked for.
    """

    def __init__(self, facts: HostFacts, gone: Mapping[str, HostFacts] | None = None, alone: bool = False) -> None:
        self.facts = facts
        self.name = facts.name
        self.gone = gone or {}
        self.alone = alone
        self._decoded: dict[type[Fact], Fact] = {}
        self._derived: dict[Callable[..., Any], Any] = {}

    def need(self, kind: type[F]) -> F:
        """The fact of this kind; ``MissingFact`` if its probe did not end with complete, readable data."""
        known = self._decoded.get(kind)
        if known is None:
            known = self._decoded[kind] = self._decode(kind)
        return cast(F, known)

    def _decode(self, kind: type[F]) -> F:
        result = self.facts.probes.get(kind.PROBE)
        if result is None:
            raise MissingFact(kind.PROBE, "not collected")
        if result.outcome is not Outcome.OK:
            raise MissingFact(kind.PROBE, result.why)
        try:
            fact = result.fact(kind)
        except msgspec.DecodeError as error:
            raise MissingFact(kind.PROBE, f"unreadable: {error}") from error
        return fact.without(self.gone) if self.gone else fact

    def want(self, kind: type[F]) -> F | None:
        """The fact of this kind, or None. For context only: a verdict must come from :meth:`need`."""
        try:
            return self.need(kind)
        except MissingFact:
            return None

    def finding(
        self,
        id: str,
        severity: Severity,
        title: str,
        proof: Quote | Sequence[Quote],
        *fixes: Fix,
        places: list[Place] | tuple[Place, ...] = (),
        confidence: float = 1.0,
        env: tuple[EnvAdvice, ...] | list[EnvAdvice] = (),
        explains: tuple[str, ...] = (),
    ) -> Finding:
        """A finding about this host alone. A quote is a text and its source; the commands of the fixes are for this host."""
        quotes = [cast(Quote, proof)] if isinstance(proof, Evidence | tuple) else proof
        evidence = [quote if isinstance(quote, Evidence) else Evidence(*quote, host=self.name) for quote in quotes]
        here = [msgspec.structs.replace(fix, host=self.name) if fix.command else fix for fix in fixes]
        return finding(
            id,
            severity,
            title,
            evidence,
            hosts=(self.name,),
            places=places,
            confidence=confidence,
            fixes=here,
            env=env,
            explains=explains,
        )

    def once(self, derive: Callable[..., T], *plan: Plan) -> T:
        """``derive(host, plan)`` or ``derive(host)``, computed once for all rules of a run: its plan never changes."""
        if derive not in self._derived:
            self._derived[derive] = derive(self, *plan)
        return cast(T, self._derived[derive])


def facts_of(hosts: Iterable[Host], kind: type[F]) -> dict[str, F]:
    """Host name -> fact, for the hosts that have it. For context only, as :meth:`Host.want`."""
    return {host.name: fact for host in hosts if (fact := host.want(kind)) is not None}


class Fleet:
    """All reached hosts, as fleet rules see them."""

    def __init__(self, hosts: tuple[Host, ...], plan: Plan, derived: dict[Any, Any] | None = None) -> None:
        self.hosts = hosts
        self.plan = plan
        self.missing: dict[tuple[str, str], list[str]] = {}
        self.derived = {} if derived is None else derived

    def once(self, derive: Callable[[tuple[Host, ...], Plan], T]) -> T:
        """``derive(hosts, plan)``, computed once for all rules of a run.

        It leaves out the hosts that lack a fact; a rule that has to say which these are asks :meth:`every` as well.
        """
        if derive not in self.derived:
            self.derived[derive] = derive(self.hosts, self.plan)
        return cast(T, self.derived[derive])

    def every(self, kind: type[F]) -> dict[str, F]:
        """Host name -> fact, for all hosts that have it; the others become unknown in this rule's result."""
        return self.of_each(lambda host: host.need(kind))

    def of_each(self, ask: Callable[[Host], T]) -> dict[str, T]:
        """Host name -> answer; hosts of which it raises ``MissingFact`` become unknown in this rule's result."""
        found: dict[str, T] = {}
        for host in self.hosts:
            try:
                found[host.name] = ask(host)
            except MissingFact as gap:
                self.lack(gap.what, gap.why, host.name)
        return found

    def need_several(self, why: str = "only one host") -> None:
        """``SkipRule`` where there is one host only."""
        if len(self.hosts) < 2:
            raise SkipRule(why)

    @property
    def lost(self) -> dict[str, HostFacts]:
        """The hosts on which an agent ran, but not to the end. The others were told to measure the way to them as well."""
        gone = self.hosts[0].gone if self.hosts else {}
        return {name: facts for name, facts in gone.items() if facts.probes}

    def of_lost(self, kind: type[F]) -> dict[str, F]:
        """Host name -> fact, for the hosts that were lost after they had sent it. Other hosts' facts may refer to it."""
        return facts_of(map(Host, self.lost.values()), kind)

    def lack(self, what: str, why: str, *hosts: str) -> None:
        """Note what was not measured on these hosts: it becomes unknown in this rule's result."""
        self.missing.setdefault((what, why), []).extend(hosts)


class Rule(msgspec.Struct, frozen=True):
    """A declared rule. ``ids`` are all finding ids it can give.

    ``judge`` takes a host and the plan or, of a rule that ``compares`` hosts, the fleet.
    """

    name: str
    stage: str
    ids: tuple[str, ...]
    doc: str
    judge: Callable[..., Iterable[Finding]]
    compares: bool = False


class RuleResult(msgspec.Struct, frozen=True):
    """What one rule gave over all hosts. ``passed`` are the hosts on which it measured and found nothing."""

    rule: str
    stage: str
    findings: tuple[Finding, ...]
    passed: tuple[str, ...]
    unknown: tuple[Unknown, ...]
    skipped: dict[str, str]  # host -> reason


_RULES: dict[str, Rule] = {}

HostFunction = TypeVar("HostFunction", bound=Callable[[Host, Plan], Iterable[Finding]])
FleetFunction = TypeVar("FleetFunction", bound=Callable[[Fleet], Iterable[Finding]])


def _register(stage: str, ids: tuple[str, ...], function: Callable[..., Any], *, compares: bool) -> None:
    name = f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}"
    doc = (function.__doc__ or "").strip()
    if stage not in ALL_STAGES:
        raise ValueError(f"rule {name}: no stage {stage!r}")
    if not doc and sys.flags.optimize < 2:  # PYTHONOPTIMIZE=2 takes all docstrings away
        raise ValueError(f"rule {name} has no docstring: it is the rule's published page")
    _RULES[name] = Rule(name, stage, ids, doc, function, compares)


def host_rule(stage: str, *ids: str) -> Callable[[HostFunction], HostFunction]:
    """Declare a rule that looks at one host at a time: ``(host, plan) -> findings``."""

    def declare(function: HostFunction) -> HostFunction:
        _register(stage, ids, function, compares=False)
        return function

    return declare


def fleet_rule(stage: str, *ids: str) -> Callable[[FleetFunction], FleetFunction]:
    """Declare a rule that compares hosts: ``(fleet) -> findings``."""

    def declare(function: FleetFunction) -> FleetFunction:
        _register(stage, ids, function, compares=True)
        return function

    return declare


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of every module in this package, in stage order, then by name."""
    for module in pkgutil.iter_modules(nccl_doctor.rules.__path__):
        importlib.import_module(f"nccl_doctor.rules.{module.name}")
    return tuple(sorted(_RULES.values(), key=lambda rule: (ALL_STAGES.index(rule.stage), rule.name)))


def reached(bundle: Bundle) -> tuple[Host, ...]:
    """The hosts on which an agent ran to the end. What they say of hosts that were lost in the middle is not heard."""
    gone = {facts.name: facts for facts in bundle.hosts if facts.reach.outcome is not ReachOutcome.OK}
    alone = len(bundle.hosts) == 1
    return tuple(Host(facts, gone, alone) for facts in bundle.hosts if facts.name not in gone)


def internal_error(rule: str, error: Exception, hosts: tuple[str, ...]) -> Finding:
    """The finding about a rule that raised an exception."""
    return finding(
        "internal-error",
        Severity.WARN,
        f"rule {rule} failed: what it checks is not known",
        Evidence(f"{type(error).__name__}: {error}", source=f"rule {rule}"),
        hosts=hosts,
    )


class _Told(NamedTuple):
    """What a rule told before it ended, and how it ended: with a gap (what, why), by being skipped, or well."""

    findings: list[Finding]
    gap: tuple[str, str] | None = None
    skipped: str | None = None


def _told(rule: Rule, hosts: tuple[str, ...], judge: Callable[[], Iterable[Finding]]) -> _Told:
    findings: list[Finding] = []  # what a rule told before it met a gap holds all the same
    try:
        for item in judge():
            findings.append(item)
    except MissingFact as gap:
        return _Told(findings, gap=(gap.what, gap.why))
    except SkipRule as reason:
        return _Told(findings, skipped=str(reason))
    except Exception as error:  # noqa: BLE001 - one broken rule must hide no other
        return _Told([*findings, internal_error(rule.name, error, hosts)], gap=(rule.name, "internal error"))
    return _Told(findings)


def _run_per_host(rule: Rule, hosts: tuple[Host, ...], plan: Plan) -> RuleResult:
    findings: list[Finding] = []
    passed: list[str] = []
    gaps: dict[tuple[str, str], list[str]] = {}
    skipped: dict[str, str] = {}
    for host in hosts:
        told = _told(rule, (host.name,), functools.partial(rule.judge, host, plan))
        findings += told.findings
        if told.gap:
            gaps.setdefault(told.gap, []).append(host.name)
        elif told.skipped is not None:
            skipped[host.name] = told.skipped
        elif all(item.severity is Severity.INFO for item in told.findings):
            passed.append(host.name)
    return RuleResult(rule.name, rule.stage, tuple(findings), tuple(passed), _unknowns(gaps), skipped)


def _run_per_fleet(rule: Rule, fleet: Fleet) -> RuleResult:
    names = tuple(host.name for host in fleet.hosts)
    told = _told(rule, names, functools.partial(rule.judge, fleet))
    if told.gap:
        fleet.lack(*told.gap, *names)
    blamed = {host for item in told.findings if item.severity is not Severity.INFO for host in item.hosts}
    absent = {host for hosts in fleet.missing.values() for host in hosts}
    asked = [name for name in names if name not in absent]
    skipped = {} if told.skipped is None else dict.fromkeys(asked, told.skipped)
    passed = tuple(name for name in asked if name not in blamed | skipped.keys())
    return RuleResult(rule.name, rule.stage, tuple(told.findings), passed, _unknowns(fleet.missing), skipped)


def _unknowns(gaps: dict[tuple[str, str], list[str]]) -> tuple[Unknown, ...]:
    """The gaps of a rule. One without hosts is left out: then no host was reached, which is told elsewhere."""
    return tuple(Unknown(what, tuple(sorted(set(hosts))), why) for (what, why), hosts in sorted(gaps.items()) if hosts)


def run(
    bundle: Bundle,
    rules: Iterable[Rule] | None = None,
    hosts: tuple[Host, ...] | None = None,
    derived: dict[Any, Any] | None = None,
) -> Iterator[RuleResult]:
    """Run the rules of the bundle's planned stages over its reached hosts (``hosts``), in stage order.

    ``derived`` is filled with what rules compute of the whole fleet (:meth:`Fleet.once`), so that the caller can use it.
    """
    hosts = reached(bundle) if hosts is None else hosts
    derived = {} if derived is None else derived
    for rule in all_rules() if rules is None else rules:
        if rule.stage not in bundle.plan.stages:
            continue
        if rule.compares:
            result = _run_per_fleet(rule, Fleet(hosts, bundle.plan, derived))
        else:
            result = _run_per_host(rule, hosts, bundle.plan)
        staged = tuple(msgspec.structs.replace(item, stage=rule.stage) for item in result.findings)
        yield msgspec.structs.replace(result, findings=staged)
