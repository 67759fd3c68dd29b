"""Runs are kept whole, by several writers; what returns, what was only avoided, and trends are told, noise is not."""

from __future__ import annotations

import io
import json
import random
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import msgspec
import pytest
from facts_builder import NAMES, Builder
from rich.console import Console
from typing_in import typed

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Reach, ReachOutcome
from nccl_doctor.history import store
from nccl_doctor.history.analyse import analyse
from nccl_doctor.history.model import HostState, Run, Seen, Value
from nccl_doctor.history.record import run_of
from nccl_doctor.report.history import render
from nccl_doctor.rules.gate import decide
from nccl_doctor.rules.judge import judge


def run(
    day: float,
    hosts: str = "a b c",
    bad: tuple[Seen, ...] = (),
    values: tuple[Value, ...] = (),
    stages: tuple[str, ...] = ("gpu",),
    unmeasured: str = "",
) -> Run:
    failing = {item.host for item in bad if item.severity == "fail"}
    states = tuple(
        HostState(
            host, "bad" if host in failing else "unknown" if host in unmeasured else "healthy", host not in unmeasured
        )
        for host in hosts.split()
    )
    created = f"2026-11-{1 + int(day):02}T{int(day % 1 * 24):02}:00:00+00:00"
    verdict = "faulty" if failing else "incomplete" if unmeasured else "healthy"
    return Run(created, "test", "check", verdict, None, stages, states, bad, values)


def failing(host: str, gpu: str = "", id: str = "gpu.ecc.uncontained", stage: str = "gpu") -> Seen:
    return Seen(id, "fail", host, gpu, "", stage)


def test_a_run_is_kept_whole_and_read_back(tmp_path: Path) -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    report = judge(builder.bundle())
    kept = run_of(builder.bundle(), report, "preflight", decide(report, min_hosts=3))
    store.append(tmp_path, kept)
    store.append(tmp_path, msgspec.structs.replace(kept, created="2026-01-02T00:00:00+00:00"))
    first, second = store.read(tmp_path)
    assert first == kept and second.created > first.created
    assert first.go is True and first.passed and first.used == {"gpu01", "gpu03", "gpu04"}
    assert {item.host: item.state for item in first.hosts}["gpu02"] == "bad"
    assert [(item.id, item.host) for item in first.findings] == [("net.hostname-resolution.loopback", "gpu02")]
    rates = {item.host: item.value for item in first.values if item.name == "tcp"}
    assert rates == dict.fromkeys(NAMES, 1.0)


def test_a_host_that_was_not_reached_or_not_measured_whole_has_not_passed() -> None:
    builder = Builder()
    builder.reach["gpu03"] = Reach(ReachOutcome.REFUSED, "refused")
    del builder.probes["gpu04"]["clock"]
    kept = run_of(builder.bundle(), judge(builder.bundle()), "check")
    assert {item.host for item in kept.hosts if item.measured} == {"gpu01", "gpu02"}


def test_a_stage_that_applied_to_no_host_has_passed_nobody() -> None:
    """A GPU that failed and is gone since (no host has one any more) was not seen to be good again."""
    builder = Builder(stages=("connectivity", "ports", "gpu"))
    for probes in builder.probes.values():
        probes["gpu"] = {"nvml": {"outcome": "not-run"}, "smi": {"outcome": "not-run"}, "gpus": []}
        probes["kernel_log"] = {"source": "/dev/kmsg", "total": 0, "lines": []}
    report = judge(builder.bundle())
    assert report.verdict == "healthy"
    later = run_of(builder.bundle(), report, "check")
    earlier = run(0, "gpu01 gpu02", bad=(failing("gpu01", "0"),))
    (told,) = analyse([msgspec.structs.replace(earlier, created="2025-12-01T00:00:00+00:00"), later]).components
    assert told.marks == "F?"


@pytest.mark.parametrize(("kind", "mode"), [("ext4", "wal"), ("nfs4", "delete"), ("fuse.sshfs", "delete")])
def test_write_ahead_logging_only_on_local_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    mounts = f"/dev/sda1 / xfs rw 0 0\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\n"
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: mounts if str(path) == "/proc/self/mounts" else real(path, **how)
    )
    store.append(tmp_path, run(0))
    with sqlite3.connect(tmp_path / store.FILE_NAME) as base:
        assert base.execute("PRAGMA journal_mode").fetchone() == (mode,)


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.append(tmp_path, run(number)), range(24)))
    assert len(store.read(tmp_path)) == 24


def test_the_same_run_judged_again_counts_once(tmp_path: Path) -> None:
    first = run(1, bad=(failing("b"),))
    others = [run(2, bad=(failing("b"),)), run(1, "a b d"), run(1, stages=("ports",))]
    for one in (first, *others, msgspec.structs.replace(first, tool="newer")):
        store.append(tmp_path, one)
    kept = store.read(tmp_path)
    assert len(kept) == 4 and first not in kept and set(others) < set(kept)
    (told,) = analyse(kept).components
    assert told.marks.count("F") == 2


def test_a_run_judged_again_by_other_stages_counts_once_and_loses_nothing(tmp_path: Path) -> None:
    whole = run(1, bad=(failing("b"),), stages=("gpu", "ports"))
    for part in (("gpu",), ("gpu", "ports", "software")):  # of the stages alone; by a version that judges more
        again = msgspec.structs.replace(whole, stages=part, tool="newer")
        for order in ((whole, again), (again, whole)):
            place = tmp_path / f"{len(part)}-{order[0].tool}"
            for one in order:
                store.append(place, one)
            assert store.read(place) == (max(order, key=lambda one: len(one.stages)),)


def test_runs_of_less_than_a_second_are_each_kept_and_told_in_seconds(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    for _ in range(5):
        assert typed("check --stage system --history", kept).exit_code != 2
    told = typed("history", kept).output
    assert told.startswith("5 runs"), told
    assert re.search(r" \d\d:\d\d:\d\d UTC to \S+ \d\d:\d\d:\d\d UTC$", told.splitlines()[0]), told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE run SET created = 'yesterday'", "run 1 cannot be read: Invalid isoformat"),
        ("UPDATE run SET created = X'00ff'", "run 1 cannot be read: Expected `str`"),
        ("UPDATE run SET stages = '5'", "run 1 cannot be read: Expected `array`"),
        ("UPDATE run SET stages = X'00'", "run 1 cannot be read"),
        ("UPDATE value SET value = 'fast'", "run 1 cannot be read: Expected `float`"),
        ("UPDATE value SET value = 9e999", "run 1 cannot be read: a number that is not finite"),
        ("UPDATE host SET measured = 'perhaps'", "run 1 cannot be read: Expected `bool`"),
        ("DROP TABLE value", "no such table"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, change: str, message: str) -> None:
    store.append(tmp_path, run(0, values=(Value("a", "tcp", 1.0, "GB/s"),)))
    with sqlite3.connect(tmp_path / store.FILE_NAME) as base:
        base.execute(change)
    done = typed("history", tmp_path)
    assert done.exit_code == 2 and message in done.output


def test_what_failed_is_cut_with_a_word_on_the_rest(tmp_path: Path) -> None:
    hosts = [f"n{number:02}" for number in range(15)]
    store.append(tmp_path, run(0, " ".join(hosts), bad=tuple(map(failing, hosts))))
    short, whole = (typed("history", tmp_path, *more).output for more in ([], ["--verbose"]))
    assert "n11" in short and "... and 3 more, on n[12-14] (--verbose shows all)" in short
    assert "more, on" not in whole and "n14" in whole


def test_an_empty_file_as_a_full_disk_leaves_one_is_a_history_without_runs(tmp_path: Path) -> None:
    (tmp_path / store.FILE_NAME).touch()
    done = typed("history", tmp_path)
    assert done.exit_code == 3 and "no runs" in done.output


def test_of_one_host_only_its_runs_are_counted() -> None:
    found = analyse([run(0, "a b"), run(1, "a c", bad=(failing("c"),)), run(2, "a b")], "c")
    assert (found.runs, found.passed, found.first, found.last) == (1, 0, run(1).created, run(1).created)


def test_a_directory_that_another_run_makes_at_the_same_moment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as looked_before:
        looked_before.setattr(Path, "exists", lambda _: False)
        store.append(tmp_path, run(0))
    assert len(store.read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "file"), [("h", "h/history.sqlite"), ("h.sqlite", "h.sqlite"), ("x/y", "x/y/history.sqlite")]
)
def test_path_is_a_directory_or_a_file(tmp_path: Path, name: str, file: str) -> None:
    store.append(tmp_path / name, run(0))
    assert (tmp_path / file).is_file() and len(store.read(tmp_path / name)) == 1


def test_files_that_are_no_history_are_refused_and_not_touched(tmp_path: Path) -> None:
    foreign, text, newer = tmp_path / "foreign.sqlite", tmp_path / "text", tmp_path / "newer.sqlite"
    with sqlite3.connect(foreign) as base:
        base.execute("CREATE TABLE run (x)")
    text.write_text("not a database at all, but long enough to be looked at " * 40)
    store.append(newer, run(0))
    with sqlite3.connect(newer) as base:
        base.execute("PRAGMA user_version = 99")
    before = foreign.read_bytes()
    for file, message in ((foreign, "another program"), (text, "is no history"), (newer, "schema 99")):
        with pytest.raises(store.HistoryError, match=message):
            store.append(file, run(0))
        with pytest.raises(store.HistoryError, match=message):
            store.read(file)
    assert foreign.read_bytes() == before
    with pytest.raises(store.HistoryError, match="there is no history yet"):
        store.read(tmp_path / "nowhere")
    for place, message in (
        (Path("/dev/null"), "neither a file nor a directory"),
        (tmp_path / "a" / "b.db", "no directory"),
    ):
        with pytest.raises(store.HistoryError, match=message):
            store.append(place, run(0))
    for name in ("x" * 300, f"{'x' * 300}.sqlite"):
        with pytest.raises(store.HistoryError, match=r"too long|unable to open"):
            store.append(tmp_path / name, run(0))
        with pytest.raises(store.HistoryError, match="there is no history yet"):
            store.read(tmp_path / name)


def test_what_failed_passed_and_failed_again_is_named_before_what_failed_once() -> None:
    bad = failing("b", "3")
    found = analyse([run(0), run(1, bad=(bad,)), run(2, bad=(failing("c"),)), run(3, bad=(bad,)), run(4)]).components
    assert [(item.label, item.marks, item.returns) for item in found] == [
        ("b GPU 3", "pFpFp", True),
        ("c", "ppFpp", False),
    ]
    (of_nic,) = analyse([run(0, bad=(Seen("ib.errors", "fail", "b", "", "mlx5_0", "infiniband"),))]).components
    assert of_nic.label == "b NIC mlx5_0"
    assert (found[0].failed, found[0].runs) == (2, 5)
    assert found[0].last_failed == run(3).created


def test_a_run_that_did_not_measure_it_is_no_pass() -> None:
    bad = failing("b", "3")
    runs = [run(0, bad=(bad,)), run(1, stages=("ports",)), run(2, unmeasured="b"), run(3, "a c"), run(4, bad=(bad,))]
    (found,) = analyse(runs).components
    assert (found.marks, found.returns, found.runs) == ("F??F", False, 2)


def test_what_could_be_either_host_is_held_against_neither() -> None:
    doubtful = msgspec.structs.replace(failing("b"), sure=False)
    assert analyse([run(0, bad=(doubtful,))]).components == ()


def test_a_pass_that_avoided_a_bad_host_is_told_until_the_host_passed() -> None:
    runs = [run(0, bad=(failing("b"),)), run(1, "a c"), run(2, "x y"), run(3, "a c"), run(4), run(5, "a c")]
    assert [(item.created, item.hosts) for item in analyse(runs).avoided] == [
        (runs[1].created, ("b",)),
        (runs[3].created, ("b",)),
    ]


def test_a_preflight_that_went_without_a_bad_host_avoided_it() -> None:
    bad = run(0, bad=(failing("b"),))
    states = tuple(msgspec.structs.replace(item, used=item.host != "b") for item in bad.hosts)
    went = msgspec.structs.replace(bad, go=True, hosts=states)
    assert [item.hosts for item in analyse([went]).avoided] == [("b",)]
    assert analyse([went], "a").avoided == ()


def rates(values: list[float], host: str = "a", name: str = "tcp", higher: bool = True) -> list[Run]:
    return [run(day, values=(Value(host, name, value, "GB/s", higher),)) for day, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "answer", "worse"),
    [
        ([10 - day * 0.5 for day in range(12)], "falling", True),
        ([10 + day * 0.5 for day in range(12)], "rising", False),
        ([10.0] * 12, "steady", False),
        ([10, 2, 18, 4, 16, 3, 17, 5, 15, 9], "cannot-tell", False),
        ([10, 5, 1], "cannot-tell", False),
    ],
)
def test_trend(values: list[float], answer: str, worse: bool) -> None:
    (found,) = analyse(rates(values)).trends
    assert (found.answer, found.worse, found.n) == (answer, worse, len(values))


@pytest.mark.parametrize("verbose", [False, True])
def test_trends_of_which_nothing_can_be_told_are_counted_unless_asked_for(verbose: bool) -> None:
    falls, noise = rates([10 - day * 0.5 for day in range(10)]), rates([10, 2, 18, 4, 16, 3, 17, 5, 15, 9], "b")
    both = [
        msgspec.structs.replace(one, values=one.values + other.values) for one, other in zip(falls, noise, strict=True)
    ]
    for runs, told in (
        (both, "... and 1 more, of 1 of them nothing can be told"),
        (noise, "no trend can be told: a trend"),
    ):
        render(analyse(runs), console := Console(file=io.StringIO(), width=200), verbose=verbose)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert (told in shown, "cannot tell" in shown) == (not verbose, verbose)
        assert ("falling" in shown) == (runs is both)


def test_the_interval_holds_the_true_slope_about_95_times_of_100() -> None:
    chance = random.Random(7)
    inside = 0
    for _ in range(400):
        (found,) = analyse(rates([10 - 0.1 * day + chance.gauss(0, 1) for day in range(12)])).trends
        assert found.low is not None and found.high is not None
        inside += found.low <= -0.1 <= found.high
    assert 365 <= inside <= 395


def test_runs_at_one_moment_have_no_trend() -> None:
    (found,) = analyse([rates([value])[0] for value in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]).trends
    assert found.answer == "cannot-tell" and found.slope is None


@pytest.mark.parametrize(
    ("runs", "host", "told"),
    [
        ([run(0), run(1)], "", "nothing failed in these runs"),
        ([run(0), run(1, unmeasured="b")], "", "1 of 2 runs did not pass; no failure is known to be of one host"),
        ([run(0), run(1, bad=(failing("b"),))], "a", "1 of 2 runs did not pass; no failure is known to be of a"),
    ],
)
def test_runs_that_did_not_pass_are_not_told_as_nothing_failed(
    tmp_path: Path, runs: list[Run], host: str, told: str
) -> None:
    for one in runs:
        store.append(tmp_path, one)
    done = typed("history", tmp_path, "--host", host)
    assert done.output.splitlines()[-1] == told


def test_bandwidth_of_all_hosts_is_followed_over_equal_hosts_only() -> None:
    runs = [*rates([10.0] * 6, host=""), run(7, "a b", values=(Value("", "tcp", 3.0, "GB/s"),))]
    (found,) = analyse(runs).trends
    assert found.n == 1


def saved(tmp_path: Path, bad: bool, names: tuple[str, ...] = NAMES, day: int = 1) -> str:
    builder = Builder(names)
    if bad:
        builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    path = tmp_path / f"{day}.ndb"
    bundles.write(msgspec.structs.replace(builder.whole(), created=f"2026-01-{day:02}T00:00:00+00:00"), path)
    return str(path)


def test_check_and_preflight_append_and_history_tells(tmp_path: Path) -> None:
    keep = ["--history", str(tmp_path / "kept")]
    assert typed("check", "--from", saved(tmp_path, True, day=1), *keep).exit_code == 11
    without = ("gpu01", "gpu03", "gpu04")
    assert typed("preflight", "--from", saved(tmp_path, False, without, day=2), *keep).exit_code == 0
    assert typed("check", "--from", saved(tmp_path, False, day=3), *keep).exit_code == 0
    assert typed("preflight", "--from", saved(tmp_path, True, day=4), *keep).exit_code == 11
    shown = typed("history", tmp_path / "kept")
    assert shown.exit_code == 0
    assert "4 runs, 2 passed" in shown.output
    assert "this run passed because it avoided gpu02" in shown.output
    assert "gpu02" in shown.output.split("keeps returning")[1] and "failed in 2 of 3 runs   FpF" in shown.output
    document = json.loads(typed("history", tmp_path / "kept", "--format", "json", "--host", "gpu02").output)
    jsonschema.validate(
        document, json.loads((Path(__file__).resolve().parents[2] / "docs" / "history.schema.json").read_text())
    )
    assert [item["host"] for item in document["components"]] == ["gpu02"]
    assert {item["host"] for item in document["trends"]} == {"gpu02"}


def test_a_history_that_cannot_be_written_is_told_and_the_result_printed(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where a directory is needed")
    for command, code in (("check", 1), ("preflight", 0)):  # a decision holds without its record
        done = typed(command, "--from", saved(tmp_path, False), "--history", blocked / "h")
        assert done.exit_code == code and "--history" in done.output
        assert "HEALTHY" in done.output or "GO" in done.output


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[2Jgpu\u202e"
    store.append(tmp_path, run(0, "a", bad=(failing("a", hostile),)))
    shown = typed("history", tmp_path)
    assert "\x1b" not in shown.output and "\u202e" not in shown.output and "\\e[2Jgpu" in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no history yet"),
        ([".", "--host", "zzz"], "host 'zzz' is in no run"),
        ([".", "--format", "xml"], "is not one of text, json"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    store.append(tmp_path, run(0))
    done = typed("history", tmp_path / arguments[0], *arguments[1:])
    assert done.exit_code == 2 and message in done.output
