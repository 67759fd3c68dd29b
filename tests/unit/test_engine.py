"""The rule engine: missing is never a pass, a raising rule hides no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Bundle, Fact, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Evidence, Finding, Place, Severity, finding
from nccl_doctor.rules import engine


class Disk(Fact, frozen=True):
    PROBE: ClassVar[str] = "disk"
    free_bytes: int


def bundle(**probes: ProbeResult) -> Bundle:
    hosts = tuple(HostFacts(name, Reach(ReachOutcome.OK), {"disk": result}) for name, result in sorted(probes.items()))
    return Bundle(1, "test", "2026-01-01T00:00:00Z", Plan(stages=engine.STAGES), hosts)


def low_disk(host: engine.Host, plan: Plan) -> Iterator[Finding]:
    """Low disk."""
    disk = host.need(Disk)
    if disk.free_bytes < 10:
        yield finding("sys.disk-full", Severity.FAIL, "full", Evidence(f"{disk.free_bytes} B"), hosts=(host.name,))


RULE = engine.Rule("test.low_disk", "system", ("sys.disk-full",), "Low disk.", judge=low_disk)


def ok(free: int) -> ProbeResult:
    return ProbeResult(Outcome.OK, {"free_bytes": free})


def test_fail_pass_and_unknown_are_three_results() -> None:
    facts = bundle(a=ok(5), b=ok(50), c=ProbeResult(Outcome.TIMED_OUT, None, "df hung"), d=ProbeResult(Outcome.OK, {}))
    (result,) = engine.run(facts, (RULE,))
    assert [item.hosts for item in result.findings] == [("a",)]
    assert result.passed == ("b",)
    assert {host for gap in result.unknown for host in gap.hosts} == {"c", "d"}


@pytest.mark.parametrize("outcome", [item for item in Outcome if item is not Outcome.OK])
def test_data_of_a_probe_that_did_not_end_well_is_no_ground_for_a_verdict(outcome: Outcome) -> None:
    (result,) = engine.run(bundle(a=ProbeResult(outcome, {"free_bytes": 50})), (RULE,))
    assert not result.passed and result.unknown[0].hosts == ("a",)


def test_a_value_that_nobody_reads_makes_no_fact_unreadable() -> None:
    gpus = [{"index": 0, "bar1_total_bytes": -1, "board_part": 7}]
    told = ProbeResult(Outcome.OK, {"gpus": gpus, "nvml": {"outcome": "ok"}, "smi": {"outcome": "ok"}})
    assert engine.Host(HostFacts("a", Reach(ReachOutcome.OK), {"gpu": told})).need(GpuFact).gpus[0].index == 0


def test_a_fleet_rule_that_lacks_a_fact_passes_nobody() -> None:
    def lacking(fleet: engine.Fleet) -> Iterator[Finding]:
        raise engine.MissingFact("links", "not collected")
        yield

    rule = engine.Rule("test.lacking", "ports", (), "Lacking.", judge=lacking, compares=True)
    (result,) = engine.run(bundle(a=ok(5), b=ok(5)), (rule,))
    assert not result.passed and [(gap.what, gap.hosts) for gap in result.unknown] == [("links", ("a", "b"))]


def test_a_raising_rule_is_a_finding_and_unknown_not_a_pass() -> None:
    def broken(host: engine.Host, plan: Plan) -> Iterator[Finding]:
        raise ZeroDivisionError("oops")
        yield

    rule = engine.Rule("test.broken", "system", (), "Broken.", judge=broken)
    first, second = engine.run(bundle(a=ok(5)), (rule, RULE))
    assert first.findings[0].id == "internal-error" and not first.passed and first.unknown
    assert second.findings[0].id == "sys.disk-full"


@pytest.mark.parametrize("stop", [engine.MissingFact("links", "not collected"), ZeroDivisionError("oops")])
def test_what_a_rule_told_before_it_met_a_gap_is_kept(stop: Exception) -> None:
    def per_host(host: engine.Host, plan: Plan) -> Iterator[Finding]:
        yield from low_disk(host, plan)
        raise stop

    def per_fleet(fleet: engine.Fleet) -> Iterator[Finding]:
        yield from low_disk(fleet.hosts[0], fleet.plan)
        raise stop

    for rule in (
        engine.Rule("test.host", "system", (), "One.", judge=per_host),
        engine.Rule("test.fleet", "system", (), "All.", judge=per_fleet, compares=True),
    ):
        (result,) = engine.run(bundle(a=ok(5), b=ok(50)), (rule,))
        assert [item.hosts for item in result.findings if item.id == "sys.disk-full"] == [("a",)]
        assert not result.passed and {host for gap in result.unknown for host in gap.hosts} == {"a", "b"}


def test_a_finding_without_evidence_is_refused() -> None:
    with pytest.raises(ValueError, match="no evidence"):
        finding("x", Severity.FAIL, "t", [])
    with pytest.raises(ValueError, match="no evidence"):
        finding("x", Severity.FAIL, "t", Evidence("  "))


def test_a_place_without_a_host_makes_no_nameless_one() -> None:
    assert finding("x", Severity.FAIL, "t", Evidence("e"), places=[Place(rank=3), Place(host="a")]).hosts == ("a",)


@pytest.mark.parametrize("confidence", [0.0, 1.1])
def test_a_finding_that_is_sure_of_nothing_or_of_more_than_all_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        finding("x", Severity.FAIL, "t", Evidence("e"), confidence=confidence)
