"""The verdict: reach findings, folding, determinism, JSON."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path
from unittest import mock

import fleets
import jsonschema
import msgspec
import pytest
from facts_builder import NAMES, Builder

from nccl_doctor.bench import outcome
from nccl_doctor.bench.outcome import BaselineError
from nccl_doctor.env.recommend import recommend
from nccl_doctor.explain import flight_recorder
from nccl_doctor.explain.flight_recorder import FlightRecorderRefused
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.model import (
    BUNDLE_SCHEMA,
    NO_ANSWER,
    NO_START,
    NO_WAY_OUT,
    UNSIGNED,
    Bundle,
    HostFacts,
    Outcome,
    Plan,
    ProbeResult,
    Reach,
    ReachOutcome,
)
from nccl_doctor.facts.software import Plugin
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import needs, reach
from nccl_doctor.rules.engine import STAGES, all_rules
from nccl_doctor.rules.judge import judge, to_json
from nccl_doctor.rules.localise import blame
from nccl_doctor.transport import dial
from nccl_doctor.transport.base import Unreachable


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


def test_the_environment_told_is_what_env_recommend_says() -> None:
    builder = Builder(stages=("connectivity", "ports", "interfaces", "software"))
    for number, name in enumerate(NAMES, start=1):
        builder.probes[name]["interfaces"] = msgspec.to_builtins(fleets.interfaces(f"eth0/10.0.0.{number}/24"))
        builder.probes[name]["environment"] = {"variables": {"NCCL_P2P_DISABLE": "1"} if number == 2 else {}}
    bundle = builder.bundle()
    report = judge(bundle)
    wanted = recommend(*needs.of_bundle(bundle))
    assert report.env == tuple(line.advice for line in wanted.lines) and report.env_unknown == wanted.unknown
    (line,) = report.env
    assert line.shell == "unset NCCL_P2P_DISABLE" and line.hosts == (NAMES[1],)


def test_a_recommendation_that_fails_hides_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("nccl_doctor.rules.judge.recommend", fails)
    builder = Builder()
    builder.reach["gpu02"] = Reach(ReachOutcome.TIMED_OUT, "because", ("quoted",))
    report = judge(builder.bundle())
    assert report.verdict == "faulty" and not report.env and report.env_unknown
    assert any(item.id == "internal-error" and "broken" in item.evidence[0].text for item in report.findings)
    green = judge(Builder().bundle())
    assert green.verdict == "incomplete" and [gap.what for gap in green.unknown] == ["recommended environment"]


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


@pytest.mark.parametrize(
    ("port", "user", "login"), [(22, "", "gpu02"), (0, "me", "me@gpu02"), (2222, "me", "-p 2222 me@gpu02")]
)
def test_the_ssh_command_goes_the_way_the_run_went(port: int, user: str, login: str) -> None:
    builder = Builder()
    builder.reach["gpu02"] = Reach(ReachOutcome.AUTH_FAILED, "refused", port=port, user=user)
    (found,) = reach.reach_findings(builder.bundle())
    assert found.fixes[0].command == f"ssh -v {login} true"
    builder.reach["gpu02"] = msgspec.structs.replace(builder.reach["gpu02"], outcome=ReachOutcome.HOST_KEY_CHANGED)
    (found,) = reach.reach_findings(builder.bundle())
    assert found.fixes[0].command == "ssh-keygen -R " + ("'[gpu02]:2222'" if port == 2222 else "gpu02")


def test_where_ssh_does_not_lead_to_a_host_no_ssh_is_proposed() -> None:
    """A pod behind kubectl, or this machine: the command is the host's own."""
    for ended, command in (
        (ReachOutcome.NO_PYTHON, "command -v python3; echo $PATH"),
        (ReachOutcome.TIMED_OUT, ""),
    ):
        builder = Builder()
        builder.reach["gpu02"] = Reach(ended, "it said why", by_ssh=False)
        (fix,) = reach.reach_findings(builder.bundle())[0].fixes
        assert (fix.command, fix.host) == (command, "gpu02")


def test_a_jump_host_is_named_where_it_is_the_trouble() -> None:
    builder = Builder()
    for name in ("gpu01", "gpu02"):
        said = "jump host outer: jump host me@bastion:2222: the answer comes too slowly"
        builder.reach[name] = Reach(ReachOutcome.TIMED_OUT, said, ("open, silent",), "10.0.0.9", 2222, user="root")
    builder.reach["gpu03"] = Reach(ReachOutcome.TIMED_OUT, "no answer", (), "10.0.0.3", 22)
    own, behind = sorted(reach.reach_findings(builder.bundle()), key=lambda item: -len(item.title))[::-1]
    assert (own.title, own.hosts) == ("the host did not answer in time", ("gpu03",))
    assert (behind.title, behind.hosts) == ("the jump host me@bastion:2222 did not answer in time", ("gpu01", "gpu02"))
    assert behind.fixes[0].command == "ping -c 3 10.0.0.9; ssh -v -o ConnectTimeout=10 -p 2222 me@bastion true"
    assert [item.host for item in behind.evidence] == ["gpu01", "gpu01"]
    said = f"jump host bastion: {NO_WAY_OUT} to 10.0.0.9"
    here = HostFacts("gpu01", Reach(ReachOutcome.NO_ROUTE, said, ("unreachable",), "10.0.0.9", 22))
    (found,) = reach.reach_findings(msgspec.structs.replace(builder.bundle(), hosts=(here,)))
    assert found.severity is Severity.WARN and found.title.startswith("this machine, not the jump host bastion, lets")


def test_a_host_that_would_take_a_password_is_told_how_to_take_a_key() -> None:
    builder = Builder()
    refused = Reach(
        ReachOutcome.AUTH_FAILED, "no", ("the server accepts: publickey, password",), "10.0.0.2", 22, user="a"
    )
    builder.reach["gpu02"] = refused
    (found,) = reach.reach_findings(builder.bundle())
    assert [fix.command for fix in found.fixes] == ["ssh -v a@gpu02 true", "ssh-copy-id a@gpu02"]
    builder.reach["gpu02"] = msgspec.structs.replace(refused, evidence=("the server accepts: publickey",))
    assert len(reach.reach_findings(builder.bundle())[0].fixes) == 1


def test_this_machine_needs_no_ssh() -> None:
    refused = HostFacts("localhost", Reach(ReachOutcome.REFUSED, "nothing listens"))
    (found,) = reach.reach_findings(Bundle(1, "test", "2026-01-01T00:00:00+00:00", Plan(()), (refused,)))
    assert found.hosts == ("localhost",) and "the same command without --hosts" in found.fixes[0].text


@pytest.mark.parametrize("outcome", [ReachOutcome.TIMED_OUT, ReachOutcome.NO_ROUTE])
def test_where_no_host_answers_it_may_be_this_machine(outcome: ReachOutcome) -> None:
    builder = Builder()
    for name in builder.reach:
        builder.reach[name] = Reach(outcome, "no answer", address="10.0.0.2", port=22)
    (found,) = reach.reach_findings(builder.bundle())
    assert "none of the 4 hosts answers" in found.title and found.confidence < 0.7
    assert "this machine's own" in found.fixes[0].text and "ip route get 10.0.0.2" in found.fixes[0].command
    for other in (Reach(ReachOutcome.TIMED_OUT, "silent"), Reach(ReachOutcome.NO_ROUTE, NO_WAY_OUT)):
        builder.reach["gpu04"] = other  # silence all the same
        failed = [item for item in reach.reach_findings(builder.bundle()) if item.severity is Severity.FAIL]
        assert {item.confidence for item in failed} == {0.6}
    builder.reach["gpu04"] = Reach(ReachOutcome.TIMED_OUT, NO_ANSWER)  # the login worked
    assert {item.confidence for item in reach.reach_findings(builder.bundle())} == {1.0}
    builder.reach["gpu04"] = Reach(ReachOutcome.TIMED_OUT, NO_START, by_ssh=False)  # kubectl, whose login nobody knows
    (of_it,) = (item for item in reach.reach_findings(builder.bundle()) if item.hosts == ("gpu04",))
    assert "login" not in f"{of_it.title} {of_it.fixes}" and "command" in of_it.title
    builder.reach["gpu04"] = Reach(ReachOutcome.OK, address="10.0.0.4", port=22)
    (found,) = reach.reach_findings(builder.bundle())
    assert "this machine" not in found.title and found.confidence == 1.0 and len(found.fixes) == 1


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.EACCES])
def test_what_this_machine_does_not_let_out_is_no_fault_of_the_host(number: int) -> None:
    """A router or firewall on the way answers TCP with the same error: only one's own routes fail a UDP socket."""
    trouble = OSError(number, os.strerror(number))
    builder = Builder()

    def seen(udp: OSError | None) -> Finding:
        made = mock.MagicMock(**{"return_value.__enter__.return_value.connect.side_effect": udp})
        made.return_value.connect.side_effect = trouble
        with mock.patch.object(dial.socket, "socket", made), pytest.raises(Unreachable) as told:
            dial.connect("10.0.0.2", 22, "any", 3.0)
        builder.reach["gpu02"] = told.value.reach
        (found,) = reach.reach_findings(builder.bundle())
        assert (found.id, found.hosts) == ("host.no-route", ("gpu02",))
        assert os.strerror(number) in found.evidence[1].text
        return found

    found = seen(trouble)
    assert found.severity is Severity.WARN and "this machine, not the host" in found.title
    assert judge(builder.bundle()).verdict == "incomplete"
    found = seen(None)
    assert found.severity is Severity.FAIL and "this machine" not in found.title


def test_a_connection_lost_in_the_run_is_told_apart_from_an_agent_that_never_began() -> None:
    builder = Builder()
    lost = Reach(ReachOutcome.CUT_OFF, "connection lost: the stream ended", ("the stream ended",), "10.0.0.2", 22)
    builder.reach["gpu02"] = lost
    builder.reach["gpu03"] = Reach(ReachOutcome.CUT_OFF, "status 1 before the agent answered", ("exec: restricted",))
    begun, never = sorted(reach.reach_findings(builder.bundle()), key=lambda item: item.hosts)
    assert begun.id == never.id == "host.cut-off"
    builder.reach["gpu02"] = Reach(ReachOutcome.TRANSPORT_FAILED, "--env-setup failed: source /no/activate")
    builder.reach["gpu01"] = Reach(
        ReachOutcome.TRANSPORT_FAILED, "jump host g: this machine lacks the ssh program, which is needed"
    )
    assert "this machine, not the jump host g" in [item.title for item in reach.reach_findings(builder.bundle())][-2]
    assert "--env-setup line failed" in [item.title for item in reach.reach_findings(builder.bundle())][-1]
    builder.reach["gpu01"] = Reach(ReachOutcome.AUTH_FAILED, f"login as ada refused: {UNSIGNED}; try: ssh gpu01 true")
    assert "this machine's ssh agent, not the host" in reach.reach_findings(builder.bundle())[0].title
    assert reach.reach_findings(builder.bundle())[0].severity is Severity.WARN
    assert "in the middle of the run" in begun.title and len(begun.evidence) == 1 and "reboot" in begun.fixes[0].text
    assert "before it had answered" in never.title and "restricted shell" in never.fixes[0].text


def test_the_worst_is_told_first_and_then_the_earliest_stage() -> None:
    builder = Builder()
    builder.probes["gpu01"]["clock"]["offset"] = 30.0
    for host in NAMES:
        for link in [link for link in builder.links(host, "gpu03") if link["purpose"] == "ephemeral"]:
            link.update(outcome="refused")
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    told = [(item.severity.value, item.stage) for item in judge(builder.bundle()).findings]
    assert told == [("fail", "connectivity"), ("fail", "ports"), ("warn", "connectivity")]


@pytest.mark.parametrize("schema", range(1, BUNDLE_SCHEMA + 1))
def test_bundles_of_every_schema_stay_readable(schema: int) -> None:
    """Kept from the days of each schema, never made anew: three GPU hosts in all stages, one behind an MTU hole."""
    report = judge(bundles.read(Path(__file__).parents[1] / "fixtures" / "bundles" / f"schema-{schema}.json.gz"))
    assert [(item.id, item.hosts) for item in report.findings if item.severity is not Severity.INFO] == [
        ("net.mtu.black-hole", ("gpu02",))
    ]
    # What was not asked in those days is not taken for well.
    assert {gap.what for gap in report.unknown} == {
        "mount options of /tmp", "mount options of /dev/shm", "time of look-ups", "carriers",
        "limit on address space", "limit on file size", "net.core.somaxconn", "SRAM errors",
    }  # fmt: skip
    states = dict.fromkeys(STAGES, "pass") | {"connectivity": "fail", "system": "unknown", "interfaces": "unknown"}
    states["gpu"] = "unknown"
    del states["collectives"]
    assert {stage.name: stage.state for stage in report.stages} == states


def test_a_newer_bundle_is_refused_by_its_schema() -> None:
    newer = msgspec.structs.replace(Builder().bundle(), schema=BUNDLE_SCHEMA + 1)
    with pytest.raises(bundles.BundleError, match="newer than this nccl-doctor knows"):
        bundles.from_bytes(bundles.to_bytes(newer), "name.ndb")


def test_a_cut_and_a_foreign_bundle_are_refused() -> None:
    content = bundles.to_bytes(Builder().bundle())
    for bad in (
        content[:-20],
        content[:-4],  # only the checksum is cut
        gzip.compress(b"[1, 2]"),
        gzip.compress(b'{"schema": 1}'),
        bundles.to_bytes(msgspec.structs.replace(Builder().bundle(), created="yesterday")),
    ):
        with pytest.raises(bundles.BundleError):
            bundles.from_bytes(bad, "name.ndb")


def test_a_bundle_that_has_a_host_twice_is_refused() -> None:
    """It was put together by hand: a gate would count that host twice."""
    one = Builder(("gpu01",)).bundle()
    with pytest.raises(bundles.BundleError, match="it has gpu01 more than once"):
        bundles.from_bytes(bundles.to_bytes(msgspec.structs.replace(one, hosts=one.hosts * 2)), "name.ndb")


def test_a_saved_bundle_is_private_and_half_a_one_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    kept = tmp_path / "b"
    before = os.umask(0)
    try:
        bundles.write(Builder().bundle(), kept)
    finally:
        os.umask(before)
    assert kept.stat().st_mode & 0o777 == 0o600

    def no_room(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(OSError, match="No space"):
        bundles.write(Builder().bundle(), tmp_path / "c")
    assert list(tmp_path.iterdir()) == [kept]


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.setattr(bundles, "SMALL_BYTES", 1 << 20)
    with pytest.raises(bundles.BundleError, match="larger than 1 MiB unpacked: refused"):
        bundles.from_bytes(gzip.compress(b"0" * (4 << 20)), "name.ndb")


def test_a_large_file_may_unpack_to_more_than_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bundles.to_bytes(Builder().bundle())
    unpacked = 4 * len(content)
    monkeypatch.setattr(bundles, "SMALL_BYTES", 16)
    assert bundles.from_bytes(content, "b").hosts
    monkeypatch.setattr(bundles, "LIMIT_RATIO", 1)
    with pytest.raises(bundles.BundleError, match="refused"):
        bundles.from_bytes(content, "b")
    monkeypatch.setattr(bundles, "LIMIT_RATIO", 40)
    monkeypatch.setattr(bundles, "LIMIT_BYTES", unpacked // 4)
    with pytest.raises(bundles.BundleError, match="refused"):
        bundles.from_bytes(content, "b")


def test_a_small_bundle_is_read_in_little_memory(tmp_path: Path) -> None:
    """With an `ulimit -v`, as login nodes have it, the room for the largest one was not to be had."""
    bundles.write(Builder().bundle(), tmp_path / "b.ndb")
    tracemalloc.start()
    try:
        assert bundles.read(tmp_path / "b.ndb").hosts
        with pytest.raises(
            bundles.BundleError,
            match=r"/dev/zero: not a bundle .* check, preflight, hang or watch writes",
        ):
            bundles.read(Path("/dev/zero"))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_probe_data_that_does_not_fit_leaves_the_bundle_readable() -> None:
    made = Builder()
    made.probes["gpu02"]["listening"] = {"sockets": "none"}
    bundle = bundles.from_bytes(bundles.to_bytes(made.bundle()), "b")
    again = judge(bundle)
    assert to_json(again) == to_json(judge(made.bundle()))
    assert any("unreadable" in gap.why and "gpu02" in gap.hosts for gap in again.unknown)


def test_who_explains_whom_over_ids_hosts_and_peers() -> None:
    """Against the definition, told pair by pair: a failing cause, an id beneath, and all hosts or all peers bad.

    Of two hosts one is enough, where the finding does not know which of them it is.
    The cause is one on the effect's own hosts where there is one; what is only told is nobody's consequence.
    """
    import random

    from nccl_doctor.findings.model import Evidence, Place, Severity, finding
    from nccl_doctor.rules.consequences import fold

    def fits(cause: Finding, effect: Finding) -> bool:
        beneath = any(effect.id == id or effect.id.startswith(id + ".") for id in cause.explains)
        return cause.severity is Severity.FAIL and cause is not effect and beneath

    def explains(cause: Finding, effect: Finding, among: list[Finding]) -> bool:
        peers = {place.peer for place in effect.places if place.peer}
        at_fault = {host for one in among if fits(one, effect) for host in one.hosts}
        in_doubt = len(effect.hosts) == 2 and effect.confidence < 0.99
        hosts = effect.hosts if in_doubt or at_fault.issuperset(effect.hosts) else ()
        touched = {*hosts, *(peers if peers <= at_fault else ())}
        everybody = effect.stage == "collectives" or not (effect.hosts or peers)
        return fits(cause, effect) and (everybody or bool(touched & set(cause.hosts)))

    draw = random.Random(7)
    ids = ("net", "net.mtu", "net.mtu.black-hole", "gpu.lost", "collectives.stuck", "network")
    for _ in range(300):
        found = [
            msgspec.structs.replace(
                finding(
                    draw.choice(ids), draw.choice(list(Severity)), str(number), Evidence("proof"),
                    hosts=draw.sample(("a", "b", "c"), draw.randint(0, 2)),
                    places=[Place(host="a", peer=draw.choice(("b", "c", ""))) for _ in range(draw.randint(0, 2))],
                    explains=tuple(draw.sample(ids, draw.randint(0, 3))), confidence=draw.choice((0.9, 1.0)),
                ),
                stage=draw.choice(("connectivity", "collectives")),
            )
            for number in range(draw.randint(1, 7))
        ]  # fmt: skip
        told = {item.title: item for item in fold(found)}
        for item in told.values():
            effect = next(one for one in found if one.title == item.title)
            causes = [one for one in found if explains(one, effect, found) and not explains(effect, one, found)]
            roots = [one for one in causes if not any(explains(other, one, found) for other in found)] or causes
            roots = [one for one in roots if {*one.hosts} & {*effect.hosts}] or roots
            roots = roots if effect.severity is not Severity.INFO else []
            assert bool(item.folded_under) == bool(roots)
            above = {one.id for one in roots} | {told[one.title].folded_under for one in roots}
            assert not roots or item.folded_under in above


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


@pytest.mark.parametrize("broken", [b'"\xa6"', b"[" * 5000 + b"]" * 5000], ids=["no-utf-8", "too-deep"])
def test_json_that_msgspec_fails_on_otherwise_is_no_bundle_no_fact_and_no_dump(broken: bytes, tmp_path: Path) -> None:
    text = bundles.to_bytes(Builder().bundle())
    text = gzip.decompress(text).replace(b'"created":"2026', b'"other":%b,"created":"2026' % broken)
    text = text.replace(b'"name":"gpu01"', b'"name":%b' % broken)
    with pytest.raises(bundles.BundleError, match="not a bundle"):
        bundles.from_bytes(gzip.compress(text), "b.ndb")
    with pytest.raises(msgspec.DecodeError):
        ProbeResult(Outcome.OK, msgspec.Raw(b'{"processes":[],"no_stacks":%b}' % broken)).fact(Job)
    with pytest.raises(FlightRecorderRefused):
        flight_recorder.read(b'{"entries":%b}' % broken, "dump_0")
    (tmp_path / "run.json").write_bytes(b'{"schema":%b}' % broken)
    with pytest.raises(BaselineError):
        outcome.read(tmp_path / "run.json")


def test_what_is_too_large_for_a_saved_run_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "checkpoint.pt").open("wb") as stream:
        stream.truncate(outcome.MOST_BYTES + 1)
    with pytest.raises(BaselineError, match=r"checkpoint\.pt: File too large$"):
        outcome.read(tmp_path / "checkpoint.pt")


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


def test_what_env_recommend_knows_of_a_host() -> None:
    """The NCCL that the plan names goes before the one found; of the plugins only the network's count."""
    builder = Builder(stages=("connectivity", "ports", "software"))
    plugins = (
        Plugin("aws-ofi", "net", "/a/libnccl-net.so", "/a/libnccl-net.so"),
        Plugin("t", "tuner", "/a/libnccl-tuner.so", "/a/libnccl-tuner.so"),
    )
    builder.probes[NAMES[0]]["software"] = msgspec.to_builtins(fleets.software(plugins=plugins))
    bundle = builder.bundle()
    known, _ = needs.of_bundle(bundle)
    assert [host.nccl_version for host in known] == ["2.27.3", "", "", ""]
    assert known[0].net_plugins == ("aws-ofi",) and known[1].net_plugins == ()
    plan = msgspec.structs.replace(bundle.plan, nccl_version="2.18.5")
    asked, _ = needs.of_bundle(msgspec.structs.replace(bundle, plan=plan))
    assert {host.nccl_version for host in asked} == {"2.18.5"}


def test_what_one_host_lacks_to_and_from_the_others_says_nothing_of_the_pairs_between_those() -> None:
    def open_pairs(*cut: str) -> set[tuple[str, tuple[str, ...]]]:
        built = Builder()
        for name in NAMES:
            paths = built.probes[name]["path-mtu"]["paths"]
            paths[:] = [path for path in paths if not {name, path["peer"]} & set(cut)]
        return {(gap.what, gap.hosts) for gap in judge(built.bundle()).unknown}

    rest = tuple(sorted(set(NAMES) - {"gpu02"}))
    assert open_pairs("gpu02") == {("path MTU to gpu02", rest), ("path MTU to gpu[01,03-04]", ("gpu02",))}
    assert open_pairs(*NAMES) == {("path MTU to gpu[01-04]", NAMES)}  # a thousand hosts have thousands
