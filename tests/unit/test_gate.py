"""Preflight's pure parts: policy, requirements, and the gate."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest
from facts_builder import NAMES, Builder, loopback

from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence, Severity, Unknown, finding
from nccl_doctor.rules import policy, requirements, thresholds
from nccl_doctor.rules.consequences import folded_and_sorted
from nccl_doctor.rules.gate import BAD, HEALTHY, SUSPECT, UNKNOWN, decide, decide_hosts, exit_code
from nccl_doctor.rules.judge import Report, StageResult, judge

TODAY = datetime.date(2026, 11, 21)


def states(report: Report, **options: object) -> dict[str, str]:
    return {item.host: item.state for item in decide(report, **options).decisions}  # type: ignore[arg-type]


def test_all_healthy_is_go() -> None:
    gate = decide(judge(Builder().bundle()))
    assert gate.go and gate.chosen == NAMES


def test_a_bad_host_is_no_go_unless_fewer_are_enough() -> None:
    report = judge(loopback("gpu02").bundle())
    assert states(report) == {"gpu01": HEALTHY, "gpu02": BAD, "gpu03": HEALTHY, "gpu04": HEALTHY}
    assert not decide(report).go
    gate = decide(report, min_hosts=3)
    assert gate.go and gate.chosen == ("gpu01", "gpu03", "gpu04")


def test_unmeasured_is_unknown_and_never_chosen() -> None:
    builder = Builder()
    del builder.probes["gpu03"]["clock"]
    report = judge(builder.bundle())
    assert states(report)["gpu03"] == UNKNOWN
    assert "gpu03" not in decide(report, min_hosts=3).chosen


def test_hosts_to_which_nothing_applies_are_unknown() -> None:
    skipped = (StageResult("gpu", "skipped", 0, 4, "no NVIDIA GPU on any host"),)
    report = msgspec.structs.replace(judge(Builder().bundle()), stages=skipped, verdict="incomplete")
    assert set(states(report).values()) == {UNKNOWN}
    gate = decide(report, min_hosts=1)
    assert not gate.go and exit_code(report, gate) is ExitCode.INCOMPLETE


def test_an_unreached_host_is_bad_and_a_vanished_one_is_not_good() -> None:
    builder = Builder()
    builder.reach["gpu04"] = Reach(ReachOutcome.NOT_TRIED, "the deadline passed")
    assert states(judge(builder.bundle()))["gpu04"] == UNKNOWN
    builder.reach["gpu04"] = Reach(ReachOutcome.REFUSED, "refused")
    assert states(judge(builder.bundle()))["gpu04"] == BAD


def test_two_ends_that_cannot_be_told_apart_are_suspect_and_not_chosen() -> None:
    names = ("gpu01", "gpu02")
    report = judge(Builder(names).unanswered(names).bundle())
    assert set(states(report).values()) == {SUSPECT}
    assert not decide(report, min_hosts=1).go


def test_warnings_make_suspects_that_run_unless_strict() -> None:
    builder = Builder()
    builder.probes["gpu02"]["clock"] = {"offset": 60.0, "uncertainty": 0.01}
    report = judge(builder.bundle())
    assert states(report)["gpu02"] == SUSPECT
    assert decide(report).go and not decide(report, strict=True).go


def test_one_end_of_a_link_that_failed_is_not_good_whatever_else_it_is_warned_of() -> None:
    slow = finding("net.latency", Severity.WARN, "slow", Evidence("a"), hosts=["gpu02"])
    broken = finding(
        "net.firewall.dropped", Severity.FAIL, "one of them", Evidence("b"), hosts=["gpu02", "gpu03"], confidence=0.5
    )
    report = msgspec.structs.replace(judge(Builder().bundle()), findings=folded_and_sorted([slow, broken]))
    assert states(report)["gpu02"] == SUSPECT
    assert decide(report, min_hosts=2).good == ("gpu01", "gpu04")


def test_spares_choose_alike_hosts_first() -> None:
    report = judge(Builder().bundle())
    groups = {"gpu01": "old", "gpu02": "new", "gpu03": "new", "gpu04": "new"}
    gate = decide(report, min_hosts=2, spares=1, groups=groups)
    assert gate.chosen == ("gpu02", "gpu03") and gate.spares == ("gpu04",)
    assert decide(report, min_hosts=2, spares=0, groups=groups).spares == ()
    gate = decide(report, min_hosts=2, spares=1, groups=groups, master="gpu04")  # where the master port was tried
    assert gate.chosen == ("gpu02", "gpu04") and gate.spares == ("gpu03",)
    assert decide(report, min_hosts=2, spares=1, groups=groups, master="gpu01").chosen == ("gpu02", "gpu03")


def write(tmp_path: Path, text: str, name: str = "nccl-doctor.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_policy_severity_ignore_and_expiry(tmp_path: Path) -> None:
    rules = policy.load(
        write(
            tmp_path,
            '[severity]\n"net.hostname-resolution" = "warn"\n'
            '[[ignore]]\nid = "host.clock-offset"\nhosts = "gpu[01-02]"\nuntil = 2026-12-31\nreason = "NTP ticket 12"\n'
            '[[ignore]]\nid = "net.mtu"\nuntil = 2026-01-01\nreason = "old"\n',
        )
    )
    builder = loopback("gpu02")
    builder.probes["gpu01"]["clock"] = {"offset": 60.0, "uncertainty": 0.01}
    report = policy.apply(judge(builder.bundle()), rules, TODAY)
    found = {item.id: item for item in report.findings}
    assert report.verdict == "healthy"
    assert found["net.hostname-resolution.loopback"].severity.value == "warn"
    assert found["host.clock-offset"].severity.value == "info" and "NTP ticket 12" in found["host.clock-offset"].title
    assert found["policy.ignore-expired"].severity.value == "info"
    assert states(report)["gpu03"] == HEALTHY  # whom no date makes suspect


@pytest.mark.parametrize(
    ("entry", "outcome", "verdict"),
    [
        ("what = 'kernel log'\nuntil = 2026-12-31", "not-permitted", "healthy"),
        ("what = 'kernel log'\nuntil = 2026-12-31", "timed-out", "incomplete"),
        ("what = 'kernel log'\nuntil = 2026-12-31\nhosts = 'gpu02'", "not-permitted", "incomplete"),
        ("what = 'kernel log'\nuntil = 2026-01-01", "not-permitted", "incomplete"),
        ("what = 'ACS'\nuntil = 2026-12-31", "not-permitted", "incomplete"),
    ],
)
def test_only_what_may_not_be_read_is_accepted(entry: str, outcome: str, verdict: str, tmp_path: Path) -> None:
    rules = policy.load(write(tmp_path, f"[[not-permitted]]\n{entry}\nreason = 'the CI user is no root'\n"))
    report = judge(Builder().bundle())
    gap = Unknown("kernel log", ("gpu01",), f"{outcome}: dmesg: read kernel buffer failed", stages=("gpu",))
    report = msgspec.structs.replace(report, unknown=(gap,), verdict="incomplete")
    seen = policy.apply(report, rules, TODAY)
    assert seen.verdict == verdict
    notes = [item.title for item in seen.findings if item.id == "policy.not-permitted"]
    assert bool(notes) == (verdict == "healthy") == (seen.unknown == ())
    assert all("the CI user is no root" in title for title in notes)
    assert [item.host for item in decide(seen).decisions if item.state == "unknown"] == ["gpu01"] * bool(seen.unknown)


def test_an_ignore_of_two_hosts_does_not_cover_a_third(tmp_path: Path) -> None:
    rules = policy.load(write(tmp_path, '[[ignore]]\nid = "host"\nhosts = "gpu01"\nuntil = 2026-12-31\nreason = "x"\n'))
    builder = Builder()
    builder.probes["gpu02"]["clock"] = {"offset": 60.0, "uncertainty": 0.01}
    report = policy.apply(judge(builder.bundle()), rules, TODAY)
    assert report.findings[0].severity.value == "warn"


def test_an_ignore_of_some_hosts_does_not_cover_what_names_none(tmp_path: Path) -> None:
    rule = "[[ignore]]\nid = 'require'\nuntil = 2026-12-31\nreason = 'x'\n"
    proof = Evidence("short", source="test")
    report = msgspec.structs.replace(
        judge(Builder().bundle()), findings=(finding("require.same", Severity.FAIL, "of nobody", proof),)
    )
    some = policy.load(write(tmp_path, f"{rule}hosts = 'gpu[01-04]'\n"))
    assert not decide(policy.apply(report, some, TODAY)).go
    everywhere = policy.load(write(tmp_path, rule))
    assert decide(policy.apply(report, everywhere, TODAY)).go


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sevrity]\n'a' = 'fail'\n", r":1: unknown key 'sevrity'; did you mean 'severity'"),
        ("strict = true\n\nmin-host = 3\n", r":3: unknown key 'min-host'; did you mean 'min-hosts'"),
        (
            "[severity]\n'net.mut' = 'warn'\n",
            r":2: unknown finding id 'net.mut'; did you mean 'net.mtu'",
        ),
        (
            "[[ignore]]\nid = 'gpu.qqqqq'\nuntil = 2026-12-31\nreason = 'y'\n",
            r":2: unknown finding id 'gpu.qqqqq'",
        ),
        (
            "[severity]\n'net.mtu' = 'fatal'\n",
            r":2: severity of 'net.mtu' is 'fatal'; expected one of fail, warn, info",
        ),
        (
            "[[ignore]]\nid = 'x'\nreason = 'y'\nuntill = 2026-12-31\n",
            r":4: unknown key 'untill'; did you mean 'until'",
        ),
        ("[[ignore]]\nid = 'x'\nuntil = 2026-12-31\n", r"missing key `reason`"),
        ("[[not-permitted]]\nwhat = 'x'\nid = 'y'\n", r":3: unknown key 'id'"),
        (
            "[thresholds]\n'disk.free.fial' = 3\n",
            r":2: unknown threshold 'disk.free.fial'; did you mean 'disk.free.fail'",
        ),
        ("[thresholds]\n'shm.fail' = nan\n", r":2: shm.fail: nan is no threshold; give a number from 0 on"),
        ("[thresholds]\n'shm.warn' = 1\n'shm.fail' = -1\n", r":3: shm.fail: -1 is no threshold"),
        (
            "[[ignore]]\nid = 'net.mtu'\nuntil = 2026-12-31\nreason = 'y'\nhosts = 'gpu[01-'\n",
            r":5: hosts: 'gpu\[01-': the brackets of the node set do not match",
        ),
        ("strict = \n", "not TOML"),
        ("min-hosts = " + "9" * 5000, "not TOML"),
        ("require = " + "[" * 5000, "not TOML"),
        ("strict = true\nmin-hosts = 0\n", r":2: min-hosts is 0; expected at least 1"),
    ],
)
def test_a_policy_with_a_mistake_names_line_and_key(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(policy.PolicyError, match=told):
        policy.load(write(tmp_path, text))


def test_a_policy_of_windows_is_read_and_what_is_no_text_is_named(tmp_path: Path) -> None:
    assert policy.load(write(tmp_path, "\ufeffstrict = true\r\n")).strict
    (tmp_path / "binary").write_bytes(b"ok\xff\xfe")
    for read, error in ((policy.load, policy.PolicyError), (thresholds.load, thresholds.ThresholdError)):
        with pytest.raises(error, match=r"binary: byte 2 is no UTF-8 text$"):
            read(tmp_path / "binary")
        with pytest.raises(error, match=r"/dev/zero: File too large$"):
            read(Path("/dev/zero"))


def test_policy_in_pyproject(tmp_path: Path) -> None:
    write(tmp_path, "[project]\nname = 'x'\n[tool.nccl-doctor]\nrequire = ['gpus=8']\n", "pyproject.toml")
    found = policy.find(tmp_path)
    assert found is not None and policy.load(found).require == ("gpus=8",)
    assert policy.find(tmp_path / "nowhere") is None
    for text in ("[tool]\nnccl-doctor.min-hosts = 0\n", "[tool]\nnccl-doctor = {min-hosts = 0}\n"):
        path = write(tmp_path, text, "pyproject.toml")
        assert policy.find(tmp_path) == path
        with pytest.raises(policy.PolicyError, match=r"toml:2: min-hosts is 0; expected at least 1"):
            policy.load(path)
    assert policy.find(tmp_path) == write(tmp_path, "[tool.nccl-doctor\n", "pyproject.toml")  # told to be no TOML
    for text in ("[project]\ndependencies = ['nccl-doctor']  # no [tool.nccl-doctor]\n", "tool = 1\n"):
        path = write(tmp_path, text, "pyproject.toml")
        assert policy.find(tmp_path) is None
        with pytest.raises(policy.PolicyError, match=r"there is no table \[tool\.nccl-doctor\] in it"):
            policy.load(path)  # asked for by --policy


def test_a_policy_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "nccl-doctor.toml"
    for make, unmake in ((Path.mkdir, Path.rmdir), (lambda path: path.symlink_to("gone"), Path.unlink)):
        make(own)
        assert policy.find(tmp_path) == own
        with pytest.raises(policy.PolicyError, match=r"directory"):
            policy.load(own)
        unmake(own)
    shared = write(tmp_path, "[tool.nccl-doctor]\nstrict = true\n", "pyproject.toml")
    monkeypatch.setattr(Path, "open", _refuse)
    assert policy.find(tmp_path) == shared
    with pytest.raises(policy.PolicyError, match="Permission denied"):
        policy.load(shared)


def _refuse(path: Path, *args: object, **options: object) -> str:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize(
    "text",
    [
        "gpus",
        "min-busbw=0",
        "min-busbw=40Gb/s",
        "same=+",
        "gpus=",
        "gpus=x",
        "gpus=²",
        "gpus=٣",
        "shm=12Q",
        "shm=16",
        "cats=3",
        "=3",
    ],
)
def test_a_bad_requirement_shows_what_was_expected(text: str) -> None:
    name = text.partition("=")[0]
    with pytest.raises(
        requirements.RequirementError, match=f"expected .*{name if name in requirements.FORMS else 'gpus'}=\\w"
    ):
        requirements.parse(text)


def test_requirements_split_and_sizes() -> None:
    assert requirements.split("gpus=8,shm=16G,same=torch,nccl,driver,disk=1T") == (
        "gpus=8",
        "shm=16G",
        "same=torch+nccl+driver",
        "disk=1T",
    )
    assert requirements.parse("shm=16G").amount == 16 * 2**30
    assert requirements.parse("disk=1073741824").amount == 2**30


@pytest.mark.parametrize("needs", ["gpus=8", "ib-ports=8", "shm=1G", "same=torch"])
def test_a_requirement_without_its_fact_is_unknown(needs: str) -> None:
    builder = Builder(stages=("connectivity", "ports", "system", "software", "gpu", "infiniband"))
    bundle = builder.bundle()
    plan = msgspec.structs.replace(bundle.plan, require=(needs,))
    report = judge(msgspec.structs.replace(bundle, plan=plan))
    assert report.verdict == "incomplete"
    assert not decide(report, min_hosts=1).go


@pytest.mark.parametrize("needs", ["gpus=8", "ib-ports=8", "shm=1G", "same=torch", "min-busbw=40"])
def test_a_requirement_whose_stage_was_left_out_is_unknown(needs: str) -> None:
    bundle = Builder().bundle()  # connectivity and ports only
    report = judge(msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=(needs,))))
    assert [gap.what for gap in report.unknown] == [needs] and "left out" in report.unknown[0].why
    assert not decide(report, min_hosts=1).go


def test_who_needs_gpus_where_nothing_is_of_nvidia_s_is_not_told_what_nvml_said() -> None:
    nothing = {"outcome": "not-run", "detail": "no NVIDIA device, driver or library on this host"}
    builder = Builder(("gpu01",), stages=("gpu",))
    builder.probes["gpu01"]["gpu"] = {"nvml": nothing, "smi": nothing, "gpus": [], "device_nodes": []}
    bundle = builder.bundle()
    report = judge(msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=("gpus=8",))))
    (found,) = [item for item in report.findings if item.id == "require.gpus"]
    assert found.title == "gpu01 does not meet gpus=8: it has 0 GPUs"
    assert [proof.text for proof in found.evidence] == ["no NVIDIA device, driver or library on this host"]


@pytest.mark.parametrize(
    ("version", "switches", "verdict"), [("550.54.15", 0, UNKNOWN), ("550.54.15", 4, HEALTHY), (None, 0, HEALTHY)]
)
def test_gpus_that_were_there_when_the_driver_was_loaded_are_missed(
    version: str | None, switches: int, verdict: str
) -> None:
    """Of a host without any GPU nothing is asked; one whose GPUs have all fallen off the bus is no such host."""
    builder = Builder(("gpu01", "gpu02"), stages=("connectivity", "gpu"))
    failed = {"outcome": "failed", "detail": "No devices were found"}
    for probes in builder.probes.values():
        probes["gpu"] = {"nvml": failed, "smi": failed, "module_version": version, "nvswitches": switches, "gpus": []}
        probes["kernel_log"] = {"source": "/dev/kmsg", "total": 0, "lines": []}
    report = judge(builder.bundle())
    assert {item.state for item in decide_hosts(report)} == {verdict}
    told = [gap.why for gap in report.unknown if gap.what == "GPUs"]
    assert bool(told) == (verdict == UNKNOWN)
    assert not told or "550.54.15 is loaded, which takes a GPU, and none is seen now (No devices were found)" in told[0]


def collectives_report(need: str, *, times_us: tuple[float, ...] = (100.0, 100.0), finished: bool = True) -> Report:
    """Two hosts whose largest all-reduce, 4 MiB, took that long on each rank; a smaller one was slow."""
    events = tuple(
        {"event": "size", "collective": name, "size": size, "rank_means_us": times, "wrong": [0] * len(times)}
        for name, size, times in (
            ("allreduce", 64 << 10, [9e6] * len(times_us)),
            ("allreduce", 4 << 20, list(times_us)),
            ("allgather", 256 << 20, [9e6] * len(times_us)),
        )
        if times
    )
    pair = {"event": "link", "first": 0, "second": 1, "size": 2 << 20, "seconds": 1e-3}
    names = ("gpu01", "gpu02")
    hosts = tuple(
        HostFacts(
            name,
            Reach(ReachOutcome.OK),
            {
                "collectives": ProbeResult(
                    Outcome.OK,
                    {
                        "host": name,
                        "backend": "gloo",
                        "world": 2,
                        "ranks": [{"rank": rank, "finished": finished or rank == 0, "where": {"stage": "measure"}}],
                        "events": (*events, pair) if rank == 0 else (),
                    },
                )
            },
        )
        for rank, name in enumerate(names)
    )
    plan = Plan(stages=("collectives",), require=(need,))
    return judge(Bundle(1, "test", "2026-01-01T00:00:00Z", plan, hosts))


def test_busbw_of_the_largest_all_reduce_is_compared_with_what_is_required() -> None:
    # 2 ranks: busbw = 2(n-1)/n * 4 MiB / 100 us = 41.9 GB/s
    assert decide(collectives_report("min-busbw=41.9")).go
    report = collectives_report("min-busbw=42GB/s")
    (short,) = [item for item in report.findings if item.id == "require.min-busbw"]
    assert "41.94 GB/s" in short.title and short.hosts == ("gpu01", "gpu02")
    assert set(states(report).values()) == {SUSPECT}  # which of them is slow is not known
    assert not decide(report, min_hosts=1).go


def test_busbw_that_was_not_measured_is_unknown() -> None:
    alone = collectives_report("min-busbw=1", times_us=(100.0,))
    assert any("min-busbw" in gap.what for gap in alone.unknown) and set(states(alone).values()) == {UNKNOWN}
    nothing = collectives_report("min-busbw=1", times_us=())
    assert any("min-busbw" in gap.what for gap in nothing.unknown) and not decide(nothing, min_hosts=1).go
    broken = collectives_report("min-busbw=1", finished=False)
    assert any("did not finish" in gap.why for gap in broken.unknown) and not decide(broken, min_hosts=1).go


def test_an_ignored_cause_hides_none_of_its_consequences(tmp_path: Path) -> None:
    cause = finding("net.mtu", Severity.FAIL, "cause", Evidence("a"), hosts=["gpu02"], explains=["collectives"])
    effect = finding("collectives.failed", Severity.FAIL, "effect", Evidence("b"), hosts=["gpu02"])
    effect = msgspec.structs.replace(effect, stage="collectives")
    report = msgspec.structs.replace(judge(Builder().bundle()), findings=folded_and_sorted([cause, effect]))
    assert [item.id for item in report.causes] == ["net.mtu"]
    rules = policy.load(write(tmp_path, "[[ignore]]\nid = 'net.mtu'\nuntil = 2026-12-31\nreason = 'known'\n"))
    after = policy.apply(report, rules, TODAY)
    assert [item.id for item in after.causes if item.severity is Severity.FAIL] == ["collectives.failed"]
    assert states(after)["gpu02"] == BAD


@pytest.mark.parametrize(
    ("hosts", "confidence", "folded"),
    [("ab", 0.5, True), ("ab", 1.0, False), ("abc", 0.5, False), ("a", 1.0, True), ("b", 0.5, False)],
)
def test_the_fault_of_one_host_explains_what_one_of_two_has_and_no_more(
    hosts: str, confidence: float, folded: bool
) -> None:
    cause = finding("net.mtu", Severity.FAIL, "cause", Evidence("x"), hosts=["a"], explains=["net.latency"])
    effect = finding("net.latency", Severity.WARN, "effect", Evidence("y"), hosts=hosts, confidence=confidence)
    (told,) = [item for item in folded_and_sorted([cause, effect]) if item.id == "net.latency"]
    assert bool(told.folded_under) is folded


def test_the_consequence_of_a_consequence_is_told_under_what_nothing_explains() -> None:
    first = finding("net.wrong-route", Severity.FAIL, "1", Evidence("x"), hosts=["a"], explains=["net.firewall"])
    second = finding("net.firewall", Severity.FAIL, "2", Evidence("y"), hosts=["a"], explains=["net.slow"])
    third = finding("net.slow", Severity.WARN, "3", Evidence("z"), hosts=["a"])
    told = {item.id: item.folded_under for item in folded_and_sorted([third, second, first])}
    assert told == {"net.wrong-route": "", "net.firewall": "net.wrong-route", "net.slow": "net.wrong-route"}


def test_what_is_sure_is_told_before_a_guess() -> None:
    guess = finding("hang.elsewhere", Severity.FAIL, "it sleeps", Evidence("x"), hosts=["a"], confidence=0.6)
    sure = finding("hang.stopped", Severity.FAIL, "it is stopped", Evidence("y"), hosts=["b"])
    warning = finding("hang.leftovers", Severity.WARN, "it is old", Evidence("z"), hosts=["b"])
    told = folded_and_sorted([warning, guess, sure])
    assert [item.id for item in told] == ["hang.stopped", "hang.elsewhere", "hang.leftovers"]


def test_an_entry_that_has_expired_ignores_nothing_any_more(tmp_path: Path) -> None:
    report = judge(loopback("gpu02").bundle())
    text = "[[ignore]]\nid = 'net.hostname-resolution'\nuntil = {}\nreason = 'known'\n"
    for until, state in (("2026-11-21", HEALTHY), ("2026-11-20", BAD)):
        after = policy.apply(report, policy.load(write(tmp_path, text.format(until))), TODAY)
        assert states(after)["gpu02"] == state


def test_a_good_host_that_is_not_needed_is_not_kept_away_from() -> None:
    report = judge(loopback("gpu02").bundle())
    gate = decide(report, min_hosts=1, spares=1)
    assert (gate.chosen, gate.spares, gate.not_good) == (("gpu01",), ("gpu03",), ("gpu02",))
