"""The verdict: reach findings, folding, determinism, JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import msgspec
import pytest
from facts_builder import NAMES, Builder

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Reach, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import reach
from nccl_doctor.rules.engine import all_rules
from nccl_doctor.rules.judge import judge, to_json
from nccl_doctor.rules.localise import blame


@pytest.mark.parametrize("outcome", [item for item in ReachOutcome if item is not ReachOutcome.OK])
def test_every_way_not_to_reach_a_host_is_its_own_finding(outcome: ReachOutcome) -> None:
    builder = Builder()
    builder.reach["gpu02"] = Reach(outcome, "because", ("quoted",))
    for host in ("gpu01", "gpu03", "gpu04"):
        builder.probes[host]["names"]["resolved"].pop("gpu02")
    report = judge(builder.bundle())
    (found,) = [item for item in report.findings if item.stage == "connectivity"]
    assert found.hosts == ("gpu02",) and for_finding(found.id)
    assert [proof.text for proof in found.evidence] == ["because", "quoted"]
    assert report.verdict != "healthy"
    assert any(gap.hosts == ("gpu02",) for gap in report.unknown)


def test_nothing_reached_is_no_verdict_of_health() -> None:
    builder = Builder()
    for name in NAMES:
        builder.reach[name] = Reach(ReachOutcome.NOT_TRIED, "deadline")
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and report.exit_code() is ExitCode.NOTHING_CHECKED


def test_the_same_facts_in_any_order_give_the_same_bytes() -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    for flow in builder.probes["gpu04"]["throughput"]["flows"]:
        flow["seconds"] = 80.0
    first = to_json(judge(builder.bundle()))
    for seed in range(5):
        shuffled = list(builder.probes.items())
        random.Random(seed).shuffle(shuffled)
        builder.probes = dict(shuffled)
        for probes in builder.probes.values():
            random.Random(seed).shuffle(probes["links"]["links"])
            random.Random(seed).shuffle(probes["throughput"]["flows"])
        assert to_json(judge(builder.bundle())) == first


def test_json_has_the_promised_keys() -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    report = json.loads(to_json(judge(builder.bundle())))
    assert {"schema", "verdict", "findings", "unknown", "env", "stages"} <= set(report)
    assert {"id", "severity", "confidence", "hosts", "title", "evidence", "playbook", "env"} <= set(
        report["findings"][0]
    )
    assert report["verdict"] == "faulty" and report["findings"][0]["playbook"]


def test_what_is_only_informative_is_a_note_and_no_finding() -> None:
    from nccl_doctor.findings.model import Evidence, Severity, finding

    clean = judge(Builder().bundle())
    told = finding("net.interface-choice", Severity.INFO, "eth0", Evidence("eth0"), hosts=("gpu01",))
    report = json.loads(to_json(msgspec.structs.replace(clean, findings=(told,))))
    schema = json.loads((Path(__file__).resolve().parents[2] / "docs" / "report.schema.json").read_text())
    jsonschema.validate(report, schema)
    assert report["findings"] == [] and [item["id"] for item in report["notes"]] == ["net.interface-choice"]


def test_every_finding_id_has_a_playbook() -> None:
    ids = {id for rule in all_rules() for id in rule.ids} | set(reach.IDS) | {"internal-error"}
    assert not [id for id in sorted(ids) if not for_finding(id)]


def test_bundle_round_trip_gives_the_same_report_and_bytes() -> None:
    bundle = Builder().bundle()
    content = bundles.to_bytes(bundle)
    again = bundles.from_bytes(content, "b")
    assert bundles.to_bytes(again) == content
    assert to_json(judge(again)) == to_json(judge(bundle))


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"\x1f\x8b", b"\x1f\x8b\x08\x00garbage"],
)
def test_what_is_no_bundle_is_refused(content: bytes) -> None:
    with pytest.raises(bundles.BundleError, match=r"name\.ndb"):
        bundles.from_bytes(content, "name.ndb")


def test_a_cut_a_newer_and_a_foreign_bundle_are_refused() -> None:
    import gzip

    content = bundles.to_bytes(Builder().bundle())
    for bad in (
        content[:-20],
        gzip.compress(b'{"schema": 99}'),
        gzip.compress(b"[1, 2]"),
        gzip.compress(b'{"schema": 1}'),
    ):
        with pytest.raises(bundles.BundleError):
            bundles.from_bytes(bad, "name.ndb")


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.setattr(bundles, "LIMIT_BYTES", 1 << 20)
    with pytest.raises(bundles.BundleError, match="refused"):
        bundles.from_bytes(gzip.compress(b"0" * (4 << 20)), "name.ndb")


def mesh(*hosts: str) -> list[tuple[str, str]]:
    return [(one, other) for one in hosts for other in hosts if one != other]


def test_blame_one_direction() -> None:
    measured = {pair: pair[1] == "c" for pair in mesh("a", "b", "c", "d")}
    (found,) = blame(measured)
    assert found.hosts == ("c",) and found.direction == "in"


def test_blame_both_directions() -> None:
    measured = {pair: "c" in pair for pair in mesh("a", "b", "c", "d")}
    (found,) = blame(measured)
    assert found.hosts == ("c",) and found.direction == "both" and len(found.pairs) == 6


def test_blame_two_culprits() -> None:
    measured = {pair: pair[1] in ("a", "c") for pair in mesh("a", "b", "c", "d", "e")}
    assert [(item.hosts, item.direction) for item in blame(measured)] == [(("a",), "in"), (("c",), "in")]


def test_blame_a_single_bad_pair_accuses_no_single_host() -> None:
    measured = {pair: pair == ("a", "b") for pair in mesh("a", "b", "c")}
    (found,) = blame(measured)
    assert found.direction == "pair" and found.hosts == ("a", "b")


def test_judging_leaves_the_garbage_collector_as_it_was() -> None:
    import gc

    was = gc.isenabled()
    try:
        for running in (True, False):
            (gc.enable if running else gc.disable)()
            judge(Builder().bundle())
            assert gc.isenabled() is running
    finally:
        (gc.enable if was else gc.disable)()
