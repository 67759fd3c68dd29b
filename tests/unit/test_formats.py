"""Every report format: what it says, to whom, and that no remote text acts in it."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from facts_builder import NAMES, Builder, loopback

from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.model import EnvAdvice, Evidence, Finding, Fix, Place, Severity, Unknown, finding
from nccl_doctor.report import formats
from nccl_doctor.report.formats.github import summary
from nccl_doctor.rules.gate import decide
from nccl_doctor.rules.judge import StageResult, judge

# What can drive a terminal, a CI runner, XML or HTML.
HOSTILE = (
    "\x1b]52;c;aGk=\x07\x1b[2J\x9b1m\r\n::error::owned<script>alert(1)</script>[bold]x[/]\u202e\u200b\x00&#27;]]>%0A"
)


def hostile_bundle() -> Bundle:
    builder = loopback("gpu02")
    names = builder.probes["gpu02"]["names"]
    names["host_name"] = HOSTILE
    names["own"]["quoted"] = HOSTILE
    return builder.bundle()


@pytest.mark.parametrize("name", formats.names())
def test_no_format_lets_remote_text_act(name: str) -> None:
    bundle = hostile_bundle()
    report = judge(bundle)
    text = formats.render(name, report, decide(report), bundle)
    assert (
        "\x1b" not in text and "\x9b" not in text and "\u202e" not in text and "\x00" not in text and "\r" not in text
    )
    assert not any(line.startswith("::error::owned") for line in text.splitlines())
    if name in ("html", "junit"):
        assert "<script>alert" not in text


def test_junit_parses_back_with_one_case_per_host_and_stage() -> None:
    bundle = hostile_bundle()
    report = judge(bundle)
    tree = ElementTree.fromstring(formats.render("junit", report, decide(report), bundle))
    cases = [(case.get("classname"), case.get("name")) for case in tree.iter("testcase")]
    assert len(cases) == len(set(cases)) == len(NAMES) * len(report.stages) + 1
    failed = [
        (case.get("classname"), case.get("name")) for case in tree.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == [("nccl-doctor.connectivity", "gpu02"), ("nccl-doctor.decision", "go")]


def test_junit_fails_the_cause_and_not_who_suffers_from_it() -> None:
    bundle = Builder().bundle()
    cause = finding("net.wrong-route", Severity.FAIL, "astray", Evidence("x"), hosts=("gpu02",))
    effect = finding("net.firewall.dropped", Severity.FAIL, "cut", Evidence("x"), hosts=("gpu02", "gpu03"))
    found = [msgspec.structs.replace(item, stage="ports") for item in (cause, effect)]
    found[1] = msgspec.structs.replace(found[1], folded_under=cause.id)
    report = msgspec.structs.replace(judge(bundle), findings=tuple(found))
    tree = ElementTree.fromstring(formats.render("junit", report, decide(report), bundle))
    failed = {
        case.get("name"): case.find("failure").get("type")
        for case in tree.iter("testcase")
        if case.find("failure") is not None
    }
    assert failed == {"gpu02": "net.wrong-route", "go": "no-go"}
    assert [
        case.get("name")
        for case in tree.iter("testcase")
        if "a consequence of net.wrong-route" in (case.findtext("system-out") or "")
    ] == ["gpu02", "gpu03"]


def test_junit_shows_what_was_not_measured_as_an_error_and_never_as_passed() -> None:
    builder = Builder()
    del builder.probes["gpu03"]["clock"]
    bundle = builder.bundle()
    report = judge(bundle)
    tree = ElementTree.fromstring(formats.render("junit", report, decide(report), bundle))
    assert [case.get("name") for case in tree.iter("testcase") if case.find("error") is not None] == ["gpu03"]


def test_junit_shows_a_stage_that_does_not_apply_as_skipped_and_never_as_passed() -> None:
    report = judge(Builder().bundle())
    none = StageResult("gpu", "skipped", 0, 4, "no NVIDIA GPU on any host")
    report = msgspec.structs.replace(report, stages=(*report.stages, none))
    tree = ElementTree.fromstring(formats.render("junit", report, decide(report), Builder().bundle()))
    cases = [case for case in tree.iter("testcase") if case.get("classname") == "nccl-doctor.gpu"]
    told = [skipped.get("message") for case in cases if (skipped := case.find("skipped")) is not None]
    assert told == ["no NVIDIA GPU on any host"] * len(cases) == [none.reason] * 4


@pytest.mark.parametrize("change", [{"stages": ("collectives",)}, {"stages": ()}, {"hosts": ()}])
def test_junit_shows_a_gap_of_a_stage_that_did_not_run_and_one_of_nobody(change: dict[str, Any]) -> None:
    bundle = Builder().bundle()
    bundle = msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=("min-busbw=40",)))
    report = judge(bundle)
    (gap,) = report.unknown
    assert gap.stages == ("collectives",) and "collectives" not in bundle.plan.stages
    report = msgspec.structs.replace(report, unknown=(msgspec.structs.replace(gap, **change),))
    tree = ElementTree.fromstring(formats.render("junit", report, decide(report), bundle))
    open_cases = [case.get("name") for case in tree.iter("testcase") if case.find("error") is not None]
    assert open_cases == list(NAMES)
    assert sum(int(suite.get("errors", "")) for suite in tree) == len(NAMES)


def test_junit_shows_a_finding_of_no_stage_and_what_was_not_measured_beside_a_failure() -> None:
    builder = loopback("gpu02")
    del builder.probes["gpu02"]["clock"]
    bundle = builder.bundle()
    report = judge(bundle)
    stray = finding("internal-error", Severity.WARN, "a rule failed", Evidence("x"), hosts=("gpu03",))
    report = msgspec.structs.replace(report, findings=(*report.findings, stray))
    text = formats.render("junit", report, decide(report), bundle)
    tree = ElementTree.fromstring(text)
    assert [
        case.get("name") for case in tree.iter("testcase") if "a rule failed" in (case.findtext("system-out") or "")
    ]
    (failure,) = (case.find("failure") for case in tree.iter("testcase") if case.get("name") == "gpu02" and len(case))
    assert failure is not None and "not measured: " in (failure.text or "")


def test_junit_tells_a_no_go_that_only_warnings_made() -> None:
    report = judge(Builder().bundle())
    warning = finding("net.mtu", Severity.WARN, "odd", Evidence("x"), hosts=("gpu02",))
    report = msgspec.structs.replace(
        report, findings=(msgspec.structs.replace(warning, stage="connectivity"),), unknown=()
    )
    for strict, failures in ((True, ["decision"]), (False, [])):
        tree = ElementTree.fromstring(
            formats.render("junit", report, decide(report, strict=strict), Builder().bundle())
        )
        assert [suite.get("name") for suite in tree if suite.get("failures") != "0"] == failures


def test_no_two_entries_have_the_same_fingerprint_as_services_keep_one_of_them() -> None:
    bundle = Builder().bundle()
    report = judge(bundle)

    def on(*nics: str) -> list[Finding]:
        return [
            finding("ib.port-down", Severity.FAIL, nic, Evidence("x"), places=(Place(host="gpu01", nic=nic),))
            for nic in nics
        ]

    def marks(name: str, *items: Finding) -> list[str]:
        told = msgspec.structs.replace(report, findings=items)
        entries = json.loads(formats.render(name, told, decide(told), bundle))
        if name == "gitlab":
            return [entry["fingerprint"] for entry in entries]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in entries["runs"][0]["results"]]

    for name in ("gitlab", "sarif"):
        both = marks(name, *on("mlx5_0", "mlx5_1", "", ""))
        assert len(set(both)) == 4
        assert marks(name, *on("mlx5_1")) == both[1:2], "the same when the other is mended"


def test_json_formats_parse_and_name_the_bad_host() -> None:
    bundle = hostile_bundle()
    report = judge(bundle)
    gate = decide(report)
    document = json.loads(formats.render("json", report, gate, bundle))
    assert document["decisions"]["gpu02"]["state"] == "bad" and document["go"] is False
    sarif = json.loads(formats.render("sarif", report, gate, bundle))
    assert sarif["runs"][0]["results"][0]["ruleId"] == "net.hostname-resolution.loopback"
    results = sarif["runs"][0]["results"]
    assert [item["ruleId"] for item in results[len(report.causes) :]] == ["unknown"] * len(report.unknown)
    for item in results:  # GitHub refuses the file otherwise
        assert all(
            place["physicalLocation"]["artifactLocation"]["uri"].startswith("hosts/") for place in item["locations"]
        )
        assert len(item["partialFingerprints"]["primaryLocationLineHash"]) == 64 and item["message"]["text"]
    quality = json.loads(formats.render("gitlab", report, gate, bundle))
    assert quality[0]["severity"] == "blocker" and quality[0]["location"]["path"] == "hosts/gpu02"


def test_prometheus_and_nhc_lines() -> None:
    bundle = loopback("gpu02").bundle()
    report = judge(bundle)
    gate = decide(report)
    metrics = formats.render("prometheus", report, gate, bundle)
    assert 'nccl_doctor_host_state{host="gpu02",state="bad"} 1' in metrics and "nccl_doctor_go 0" in metrics
    cause = report.causes[0]
    assert f'nccl_doctor_finding{{host="gpu02",id="{cause.id}",severity="fail"}} 1' in metrics
    of_all = msgspec.structs.replace(report, findings=(msgspec.structs.replace(cause, hosts=()),))
    assert '_finding{host="cluster",' in formats.render("prometheus", of_all, gate, bundle)
    for line in metrics.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
    assert formats.render("nhc", report, gate, bundle).startswith(
        "ERROR: nhc: Health check failed: nccl-doctor: gpu02: bad:"
    )


@pytest.mark.parametrize("name", ["junit", "github", "gitlab", "sarif", "text", "html", "json"])
def test_every_format_says_what_a_fix_may_cost_and_what_to_set(name: str) -> None:
    bundle = Builder().bundle()
    fix = Fix("reset it", "sudo nvidia-smi --gpu-reset", "gpu02", risky=True)
    advice = EnvAdvice("NCCL_SOCKET_IFNAME", "eth7", "it needs it", hosts=("gpu02",))
    found = finding("gpu.fell-off-bus", Severity.FAIL, "t", Evidence("x"), hosts=("gpu02",), fixes=[fix], env=[advice])
    report = msgspec.structs.replace(
        judge(bundle), findings=(msgspec.structs.replace(found, stage="ports"),), verdict="faulty"
    )
    text = formats.render(name, report, decide(report), bundle)
    assert "can interrupt running work" in text or '"risky": true' in text
    assert "NCCL_SOCKET_IFNAME" in text and "eth7" in text
    if name in ("text", "html"):
        assert "it needs it; only on gpu02" in text
    if name == "junit":
        assert "\n  on gpu02: sudo nvidia-smi --gpu-reset\n" in text


def test_sarif_names_a_large_fleet_without_more_places_than_github_takes() -> None:
    names = tuple(f"gpu{number:04}" for number in range(2000))
    bundle = Builder().bundle()
    found = finding("net.mtu", Severity.FAIL, "odd", Evidence("x"), hosts=names)
    gap = Unknown("clock", names, "silent")
    report = msgspec.structs.replace(judge(bundle), findings=(found,), unknown=(gap,))
    for result in json.loads(formats.render("sarif", report, decide(report), bundle))["runs"][0]["results"]:
        assert len(result["locations"]) == 100 and "gpu[0000-1999]" in result["message"]["text"]


def test_nhc_tells_of_no_host_that_the_job_may_run_on() -> None:
    bundle = Builder().bundle()
    warning = finding("net.mtu", Severity.WARN, "odd", Evidence("x"), hosts=("gpu02",))
    report = msgspec.structs.replace(judge(bundle), findings=(warning,), unknown=())
    assert formats.render("nhc", report, decide(report), bundle) == ""
    assert "gpu02: suspect: net.mtu" in formats.render("nhc", report, decide(report, strict=True), bundle)


def test_github_gets_no_more_than_it_shows_and_the_rest_is_named() -> None:
    bundle = Builder().bundle()
    severities = [severity for severity in Severity for _ in range(12)]
    found = tuple(
        finding(f"net.{severity.value}-{number}", severity, "t" * 9000, Evidence("x"), hosts=("gpu01",))
        for number, severity in enumerate(severities)
    )
    report = msgspec.structs.replace(judge(bundle), findings=found, unknown=())
    lines = formats.render("github", report, decide(report), bundle).splitlines()
    for kind, rest in (("error", 4), ("warning", 3), ("notice", 3)):
        mine = [line for line in lines if line.startswith(f"::{kind} ")]
        assert len(mine) == 10 and f"title=and {rest} more" in mine[-1]
        assert all(len(line) < 4500 and ("(cut)" in line or "net." in line or "no-go" in line) for line in mine)
    assert lines[0].startswith("::error title=nccl-doctor%3A no-go"), "the decision is never crowded out"
    assert "::notice title=nccl-doctor%3A go::" in formats.render("github", report, decide(judge(bundle)), bundle)
    assert all(item.id in "".join(lines) for item in found)


def test_github_summary_is_no_longer_than_github_takes() -> None:
    bundle = Builder().bundle()
    found = tuple(
        finding(f"net.{number}", Severity.FAIL, "t" * 900, Evidence("é" * 900), hosts=("gpu01",))
        for number in range(99)
    )
    report = msgspec.structs.replace(judge(bundle), findings=found)
    text = summary(report, decide(report), 20_000)
    assert len(text.encode()) <= 20_000 and text.rstrip().endswith("too long for GitHub")
    assert "too long" not in summary(report, decide(report))


def test_github_summary_escapes_markdown() -> None:
    bundle = hostile_bundle()
    report = judge(bundle)
    text = summary(report, decide(report))
    assert "<script>" not in text and "no-go" in text and "\x1b" not in text
    gate = msgspec.structs.replace(decide(report), reason="[a](b) | @all of 4")
    assert "no-go (\\[a\\]\\(b\\) \\| \\@all of 4)" in summary(report, gate)


def test_github_annotations_name_the_hosts_where_there_are_any() -> None:
    report = judge(loopback("gpu02").bundle())
    (cause, *_) = report.causes
    everywhere = msgspec.structs.replace(cause, hosts=())
    for item, title in ((cause, f"{cause.id} on gpu02"), (everywhere, cause.id)):
        told = formats.render(
            "github", msgspec.structs.replace(report, findings=(item,)), decide(report), loopback("gpu02").bundle()
        )
        assert told.splitlines()[1].startswith(f"::error title={title}::"), told
