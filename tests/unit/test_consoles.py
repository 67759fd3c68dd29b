"""What the console shows, word for word: tables are read by people, and nothing else notices a wrong cell."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from facts_builder import Builder
from rich.console import Console, Group
from test_bench_judge import measured, outcome, results
from test_history import failing, run
from typing_in import typed

from nccl_doctor.bench import verdict
from nccl_doctor.bench.ceiling import Ceiling
from nccl_doctor.bench.model import Collector
from nccl_doctor.bench.statistics import NOISY, Fit
from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import Cause, Consequence, Explanation, InputCount, InputProblem, Moment, Verdict
from nccl_doctor.facts import bundle
from nccl_doctor.facts.model import Outcome, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.topology_matrix import parse
from nccl_doctor.findings.model import Evidence, Fix, Severity, finding
from nccl_doctor.history.analyse import analyse
from nccl_doctor.report import (
    bench_console,
    bench_progress,
    comparison,
    explanation,
    history,
    html,
    progress,
    terminal,
    topology,
)
from nccl_doctor.report import console as consoles
from nccl_doctor.report.explanation_text import print_explanation
from nccl_doctor.rules import compare, gate
from nccl_doctor.rules.judge import StageResult, judge

BENCH = """\
nccl (asked for), 8 ranks on 1 host: a
torch ?; path: NCCL of unknown version  not proved

allreduce, float32, in place
  size     time     algbw     busbw  of best               p50      p99    cv  #wrong
    1M  26.2 us   40 GB/s   40 GB/s  █·········   9 %  26.2 us  28.8 us   1 %       0
    1G  2334 us  460 GB/s  460 GB/s  ██████████ 100 %  2334 us  2568 us  26 %       0
  slowest rank 1 (a), 0.4 % behind the average at 1G

alltoall, float32, out of place
  size    time     algbw     busbw  of best              p50      p99   cv  #wrong
    1M  3.5 us  300 GB/s  300 GB/s  ██████████ 100 %  3.5 us  3.84 us  1 %       2
  slowest rank 1 (a), 0.4 % behind the average at 1M
"""
TOPO = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\t X \t\t

NIC Legend:

  NIC0: mlx5_0
"""
TOPO_SHOWN = """\
gpu01   2 GPUs, 1 NIC

     GPU0 GPU1 NIC0   CPUs / NUMA node
GPU0    · NV18  PIX   0-31 / 0
GPU1 NV18    ·  SYS   32-63 / 1
NIC0  PIX  SYS    ·   mlx5_0

"""


def screen(width: int = 100, colours: bool = False) -> Console:
    return Console(
        width=width, file=io.StringIO(), force_terminal=colours, color_system="standard" if colours else None
    )


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(render: Callable[..., None], *found: object, width: int = 100, **options: object) -> str:
    """What a report's own function puts on a screen."""
    render(*found, console := screen(width), **options)
    return shown(console)


def test_a_check() -> None:
    kept = Path(__file__).parents[1] / "fixtures" / "bundles" / "schema-1.json.gz"
    lines = drawn(consoles.render, judge(bundle.read(kept)), saved="b.ndb", exit_code=11).splitlines()
    assert lines[0] == (
        "✗ FAULTY: 1 problem on 1 of 3 hosts would break this job. First to fix: net.mtu.black-hole on gpu02."
    )
    assert lines[2] == "  1  net.mtu.black-hole                  gpu02                     fail, certain"
    assert lines[-15:] == [
        "     fix now    until the path is mended, keep to what passes: MTU 1400 B",
        "                on gpu02: sudo ip link set dev eth0 mtu 1400",
        "     playbook   nccl-doctor playbook net.mtu.black-hole",
        "",
        "  passed       ports, software, topology, infiniband",
        "  left out     collectives: not looked at in this run",
        "  environment  no setting is known to help against the network's faults",
        "  note         NCCL 2.27.3 would use eth0, Gloo eth0",
        "  not checked  SRAM errors, carriers, limit on address space, limit on file size on gpu[01-03]: not",
        "               collected",
        "  not checked  mount options of /dev/shm, mount options of /tmp on gpu[01-03]: its mount is not",
        "               known",
        "  not checked  net.core.somaxconn on gpu[01-03]: not readable",
        "  not checked  time of look-ups on gpu[01-03]: not measured",
        "  3 hosts, 0.0 s   saved: b.ndb   exit 11",
    ]


@pytest.mark.parametrize(("names", "told"), [(("gpu01",), True), (("gpu01", "gpu02"), False)])
def test_that_nothing_lies_between_one_host_is_said(names: tuple[str, ...], told: bool) -> None:
    for verbose in (False, True):
        lines = drawn(consoles.render, judge(Builder(names).bundle()), verbose=verbose)
        assert ("nothing between hosts was tried" in lines) == told


def test_a_go_by_a_run_of_few_stages_says_what_it_did_not_look_at() -> None:
    report = judge(Builder(stages=("connectivity",)).bundle())
    told = drawn(consoles.render_gate, report, gate.decide(report))
    page = html.render(report, Builder(stages=("connectivity",)).bundle())
    assert "<p>Not looked at in this run: ports, interfaces, system, software, gpu, topology, infiniband, coll" in page
    assert "GO: 4 of 4" in told and "  left out     ports, interfaces, system, software, gpu, topology, infin" in told


def test_of_one_fix_for_many_hosts_the_words_stand_once_and_what_is_cut_is_counted() -> None:
    names = tuple(f"gpu{number:02}" for number in range(30))
    builder = Builder(names)
    for name in names:
        builder.probes[name]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": f"127.0.1.1 {name}", "line": 2}
    report = judge(builder.bundle())
    short, whole = drawn(consoles.render, report), drawn(consoles.render, report, verbose=True)
    words = "make the name resolve to the address its peers reach"
    assert (short.count(words), short.count(": sudo sed ")) == (1, 4)
    assert "... and 26 more (--verbose shows all)" in short
    assert (whole.count(words), whole.count(": sudo sed ")) == (1, 30)
    page = html.render(report, builder.bundle())
    assert page.count("2s/.*/") == 20 and "... and 10 more: check --from BUNDLE --verbose" in page


def test_as_many_warnings_are_counted_as_are_listed() -> None:
    builder = Builder()
    for host in ("gpu02", "gpu03"):
        builder.probes[host]["clock"] = {"offset": 60.0, "uncertainty": 0.01}
    report = judge(builder.bundle())
    assert len(report.causes) == 2
    told = drawn(consoles.render, report)
    assert "asked for. 1 warning.\n" in told and "\n  1  host.clock-offset " in told and "\n  2  " not in told


def test_on_a_narrow_screen_labels_stand_free_and_commands_stay_whole() -> None:
    fix = Fix("allow all TCP ports between the training hosts, both ways", "sudo nft list ruleset; " * 4 + "true", "a")
    item = finding("net.firewall.dropped", Severity.FAIL, "dropped", [LINE], hosts=["a"], fixes=[fix])
    report = judge(Builder().bundle())
    none = [StageResult(name, "skipped", 0, 1, "no GPU on any host") for name in ("gpu", "topology")]
    report = msgspec.structs.replace(
        report, findings=(item,), stages=(*none, StageResult("ports", "skipped", 0, 1, "alone"))
    )
    told = drawn(consoles.render, report, width=60)
    assert "\n     fix now    allow all TCP ports between the training\n                hosts, both ways\n" in told
    assert f"\n                on a: {fix.command}\n" in told
    assert "\n  skipped      gpu, topology (no GPU on any host)\n  skipped      ports (alone)\n" in told


def test_progress_on_a_narrow_screen_is_one_line_for_what_runs_and_one_for_what_is_over() -> None:
    drawn = progress.ConsoleProgress(screen(60, colours=True))
    for stage, hosts in (("connect", 4), ("host facts", 4), ("collectives", 1)):
        drawn.begin(stage, 4)
        for host in range(hosts):
            drawn.advance(stage, f"gpu{host}", "timed-out" if stage == "connect" and not host else "")
    assert drawn._live is not None
    lines = str(drawn._live.get_renderable()).splitlines()
    assert lines[0].startswith("  collectives ██░░░░ 1/4   ") and lines[1:] == [
        "  done: connect, host facts",
        "  connect: timed-out on gpu0",
    ]


def test_a_picture_of_the_progress_is_made_when_it_is_shown_and_not_at_each_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    monkeypatch.setattr(progress, "fold", lambda hosts: made.append("hosts") or "")
    monkeypatch.setattr(bench_progress, "live", lambda *_: made.append("table") or Group())
    hosts = progress.ConsoleProgress(screen(60, colours=True))
    hosts.begin("connect", 1000)
    table = bench_progress.BenchProgress(screen(60, colours=True), outcome().world, Collector(2), 1)
    made.clear()
    for number in range(1000):
        hosts.advance("connect", f"gpu{number}", "timed-out")
        table.event("gpu1", {"event": "stage", "rank": number, "stage": "import"})
    assert not made
    assert "1000/1000" not in str(hosts._picture()) and table._picture() and made == ["hosts", "table"]


def test_a_benchmark() -> None:
    found = results(
        measured(40.0, 1 << 20), measured(460.0, 1 << 30, cv=0.26), measured(300.0, 1 << 20, "alltoall", "out", wrong=2)
    )
    told = drawn(bench_console.render, outcome(results=found), exit_code=4)
    assert told.startswith(BENCH)
    assert told.endswith("✗ WRONG  alltoall: 2 wrong elements: the numbers mean nothing\n1.0 s; exit 4\n")


def test_the_lines_of_the_plot_are_called_as_in_the_tables() -> None:
    sizes = [measured(10.0 * number, 1 << 19 + number, mode=mode) for mode in ("copy", "in") for number in (1, 2, 3)]
    assert "busbw  ● copy + in place   ○ in place" in drawn(bench_console.render, outcome(results=results(*sizes)))


def test_each_mode_of_a_collective_has_a_table_of_its_own() -> None:
    found = results(*(measured(gbs, 1 << 20, "allreduce", mode) for gbs, mode in ((40.0, "in"), (50.0, "out"))))
    told = drawn(bench_console.render, outcome(results=found))
    inside, out = told.split("out of place")
    assert [(part.count("1M  "), "50 GB/s" in part) for part in (inside, out)] == [(1, False), (1, True)]


@pytest.mark.parametrize("saved", ["", "b.ndb"])
def test_the_last_line_says_where_it_was_saved_if_it_was(saved: str) -> None:
    report = judge(Builder().bundle())
    last = drawn(consoles.tail, report, saved=saved, exit_code=None).splitlines()[-1]
    assert last == "  4 hosts, 0.0 s" + (f"   saved: {saved}" if saved else "")


def test_findings_of_a_benchmark_are_told_as_those_of_a_check() -> None:
    stack = Evidence("main (train.py:1)\nwait (c10d.py:2)", source="py-spy dump", host="a", rank=3)
    fix = Fix("look", "journalctl -k", host="a")
    found = finding("collectives.rank-died", Severity.FAIL, "rank 3 on a died", stack, hosts=("a",), fixes=[fix])
    console = screen()
    bench_console.render(msgspec.structs.replace(outcome(), findings=(found,)), console)
    assert """
  1  collectives.rank-died               a                         fail, certain
     rank 3 on a died
       a:py-spy dump  rank 3  main (train.py:1)
         wait (c10d.py:2)
     fix now    look
                on a: journalctl -k
     playbook   nccl-doctor playbook collectives.rank-died
""" in shown(console)


@pytest.mark.parametrize("width", [60, 80, 100, 130])
@pytest.mark.parametrize("compared", [False, True])
def test_a_narrow_screen_gets_fewer_columns_and_no_cut_cell(width: int, compared: bool) -> None:
    found = outcome()
    changes = verdict.changes(found.results.measurements, found.results.measurements) if compared else ()
    console = screen(width)
    console.print(bench_console.table(found.results.measurements, None, changes, width - 2))
    assert "…" not in shown(console) and "460 GB/s" in shown(console)


def test_a_noisy_size_stands_out_and_one_at_the_limit_does_not() -> None:
    console = screen(colours=True)
    for cv in (NOISY, NOISY + 0.01):
        bench_console.render(outcome(results=results(measured(40.0, cv=cv))), console)
    assert "\x1b[33m26 %" in shown(console) and "\x1b[33m25 %" not in shown(console)


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.5, "3.5 us"), (999.4, "999 us"), (1000.0, "1000 us"), (9994.0, "9994 us"), (9995.0, "9.99 ms"),
     (999.4e3, "999 ms"), (2e6, "2 s"), (5.6e9, "5600 s")],
)  # fmt: skip
def test_times(value: float, text: str) -> None:
    assert bench_console.microseconds(value) == text


@pytest.mark.parametrize(
    ("gbs", "text"),
    [(0.0231, "23.1 MB/s"), (0.0996, "99.6 MB/s"), (0.1004, "0.1 GB/s"), (0.354, "0.354 GB/s"), (1234.0, "1234 GB/s")],
)
def test_bandwidths(gbs: float, text: str) -> None:
    assert verdict.rate(gbs) == text


def test_a_topology() -> None:
    assert drawn(topology.render, parse(TOPO), title="gpu01").startswith(TOPO_SHOWN)
    bare = drawn(topology.render, parse("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"), title="")
    assert "     GPU0 GPU1\nGPU0    ·  NV4\nGPU1  NV4    ·\n" in bare.replace(" \n", "\n")


def test_the_gate_tells_each_state_with_its_own_reasons() -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    del builder.probes["gpu03"]["clock"]
    report = judge(builder.bundle())
    lines = drawn(consoles.render_gate, report, gate.decide(report), width=140).splitlines()
    (bad,) = [line for line in lines if line.startswith("  bad ")]
    (unknown,) = [line for line in lines if line.startswith("  unknown ")]
    assert "gpu02" in bad and "loopback" in bad and "clock" not in bad
    assert "gpu03" in unknown and "clock" in unknown and "loopback" not in unknown


def test_reasons_of_a_gate_are_told_once_and_what_is_cut_is_said() -> None:
    late = "the run's deadline had passed"
    assert consoles._reasons({f"clock: {late}", f"names: {late}", "net.mtu"}) == f"net.mtu; clock, names: {late}"
    assert consoles._reasons(set("abcdef")) == "a; b; c; d; and 2 more"


def test_several_verdicts_of_one_reason_are_one_line_and_a_line_that_misses_the_points_is_no_fit() -> None:
    same = [verdict.Verdict(name, "cannot-judge", f"{name} GB/s; nobody knows") for name in ("gather", "scatter")]
    found = outcome(results=results())
    good = verdict.Verdict("reduce", "good", "fast")
    judged = msgspec.structs.replace(found, verdicts=(*same, good), findings=())
    assert [line.plain for line in bench_console.verdict_lines(judged)] == [
        "? CANNOT JUDGE  gather: gather GB/s; scatter: scatter GB/s; nobody knows",
        "✓ GOOD  reduce: fast",
    ]
    died = finding("collectives.rank-died", Severity.FAIL, "rank 1 on b was killed", Evidence("exit -9"), hosts=("b",))
    broken = msgspec.structs.replace(judged, complete=False, findings=(died,))
    assert next(bench_console.verdict_lines(broken)).plain == "✗ FAILED  rank 1 on b was killed"
    binds = Ceiling(1.0, "what a <-> b moved", True)
    shares = [verdict.Verdict(n, "good", "9 GB/s, 90 % of 10 GB/s (what a <-> b moved); fine") for n in ("x", "y")]
    assert list(verdict.together(shares, binds)) == [
        ("good", "x: 9 GB/s, 90 % of 10 GB/s (what a <-> b moved); y: 9 GB/s, 90 % of 10 GB/s; fine")
    ]
    none = [verdict.Verdict(name, "cannot-judge", "nothing was measured") for name in ("gather", "scatter")]
    assert list(verdict.together(none, None)) == [("cannot-judge", "gather, scatter: nothing was measured")]
    empty = drawn(bench_console.render, msgspec.structs.replace(found, verdicts=tuple(none)))
    assert empty.count("nothing was measured") == 1
    line = Fit(alpha_us=0.0, beta_gbs=0.3, error=0.76, half_size=0, points=4)
    assert bench_console._fit(line) == "fit: none: latency + size / bandwidth is 76 % off"


def test_what_one_reason_kept_from_being_measured_is_one_line() -> None:
    builder = Builder()
    for probe in ("clock", "path-mtu", "throughput"):
        del builder.probes["gpu03"][probe]
    told = drawn(consoles.render, judge(builder.bundle()), width=160)
    (line,) = [line for line in told.splitlines() if "not checked" in line]
    assert "clock, path-mtu, throughput on gpu03: " in line


def test_of_hosts_that_were_not_reached_nothing_is_said() -> None:
    whole = Builder().bundle()
    lost = msgspec.structs.replace(whole.hosts[0], reach=Reach(ReachOutcome.TIMED_OUT), probes={})
    bundle_ = msgspec.structs.replace(whole, hosts=(lost, *whole.hosts[1:]))
    told = {}
    for name, one in (("all", whole), ("some", bundle_)):
        told[name] = drawn(consoles.render, judge(one), width=160)
    assert "  passed       " in told["all"] and "4 hosts: " not in told["all"]
    assert "  passed       3 of 4 hosts: " in told["some"] and "every stage on " in told["some"]


def test_long_lists_of_changes_are_cut_and_say_so() -> None:
    found = compare.bundles(Builder().bundle(), Builder().bundle())
    items = tuple(f"GPU {number}" for number in range(6))
    change = compare.FactChange("gpu", "driver", items, ("gpu01",), "570.1", "575.2", ())
    for count, cut in ((comparison.CHANGES_SHOWN, False), (comparison.CHANGES_SHOWN + 3, True)):
        told = drawn(comparison.render, msgspec.structs.replace(found, changes=(change,) * count), width=200)
        assert ("... and 3 more (--verbose shows all)" in told) is cut
        assert "GPU 3 and 2 more: 570.1 -> 575.2" in told


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the program writes to a terminal (standard output and standard error)."""
    controller, screen = os.openpty()
    words = [sys.executable, "-m", "nccl_doctor", *arguments]
    variables = {**os.environ, "TERM": "xterm", **environment}
    with subprocess.Popen(words, stdin=screen, stdout=screen, stderr=screen, env=variables) as process:
        os.close(screen)
        told = b""
        with contextlib.suppress(OSError), open(controller, "rb", buffering=0) as shown:  # EIO: nobody writes any more
            while block := shown.read(4096):
                told += block
        process.wait(timeout=60)
    return told.decode()


FAULTY = str(Path(__file__).parents[1] / "fixtures" / "bundles" / "schema-1.json.gz")


def test_colours_are_for_terminals_that_have_them_and_users_who_want_them() -> None:
    assert "\x1b[" in on_a_terminal("check", "--from", FAULTY, NO_COLOR="")
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        told = on_a_terminal("check", "--from", FAULTY, **environment)
        assert "FAULTY" in told and "\x1b" not in told


def test_a_verdict_that_scrolled_away_is_told_again_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'dgo'\n")
    script = tmp_path / "train.sh"
    script.write_text("export NCCL_DEBUG=ERROR\n" * 2)
    for lines, times in (("60", 1), ("8", 2)):
        for words, first in (
            (("check", "--from", FAULTY), "✗ FAULTY"),
            (("explain", str(log)), "✗ rank 1 raised"),
            (("diff", "--hosts", "gpu01,gpu02", FAULTY), "✗ NEW FAILURE"),
            (("env", "lint", str(script)), "✗ 2 wrong"),
        ):
            told = on_a_terminal(*words, NO_COLOR="1", LINES=lines, COLUMNS="80")
            assert told.count(first) == times, (words, lines)
            assert (first in told.splitlines()[-2] + told.splitlines()[-1]) == (times == 2)


def test_a_dumb_terminal_gets_lines_of_progress() -> None:
    for term, live in (("dumb", False), ("xterm", True)):
        told = on_a_terminal("check", "--stage", "system", NO_COLOR="1", TERM=term)
        assert (" s] connect 1/1" in told, "\x1b[" in told) == (not live, live), term


@pytest.mark.parametrize("width", ["0", "1"])
def test_a_width_in_which_nothing_could_be_told_is_none(width: str) -> None:
    """Consoles without a size set it to 0: the report was left out, and the exit code said that all was well."""
    command = [sys.executable, "-m", "nccl_doctor", "check", "--from", FAULTY]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": width}).stdout
    assert "FAULTY" in told.splitlines()[0]
    assert "FAULTY" in on_a_terminal("check", "--from", FAULTY, NO_COLOR="1", COLUMNS=width)


@pytest.mark.parametrize("width", ["", "60"])
def test_without_a_terminal_lines_have_no_blanks_at_their_ends_and_a_width(width: str, tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'dgo'\n")
    script = tmp_path / "train.sh"
    script.write_text("export NCCL_SOCKET_IFNAME=^eth0 NCCL_TIMEOUT=1\n")
    for line, *words in (
        ("explain", log),
        ("check --from", FAULTY, "--history", tmp_path),
        ("history", tmp_path),
        ("diff --hosts gpu01,gpu02", FAULTY),
        ("report --format text", FAULTY),
        ("env lint --file", script),
        ("env recommend --from", FAULTY),
        ("env show NCCL_IB_HCA",),
    ):
        told = typed(line, *words, env={"COLUMNS": width}).stdout.splitlines()
        assert len(told) > 2 and all(row == row.rstrip() for row in told)
        limit = 60 if width else terminal.PIPE_WIDTH
        whole = (str(tmp_path), "init_process_group(")  # paths and commands are there to be copied
        assert not [row for row in told if len(row) > limit and not any(part in row for part in whole)], words


def test_the_head_of_a_cause_does_not_wrap(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'dgo'\n")
    told = {}
    for width in (60, 100):
        found = drawn(print_explanation, explain_paths([str(tmp_path / "log")], 1), width=width)
        told[width] = next(line for line in found.splitlines() if "app.rank-exception " in line)
    assert told[60].split("  ")[1:3] == ["app.rank-exception", "rank 1"] and len(told[60]) < 60
    assert told[100].index("rank 1") == 30  # in a column


@pytest.mark.parametrize(
    ("outcome", "detail", "why"),
    [
        (Outcome.FAILED, "no such file", "failed: no such file"),
        (Outcome.FAILED, "", "failed"),
        (Outcome.TIMED_OUT, "timed-out: stopped by the run's deadline", "timed-out: stopped by the run's deadline"),
        (Outcome.NOT_RUN, "left out: --skip", "left out: --skip"),
    ],
)
def test_how_a_probe_ended_is_said_once(outcome: Outcome, detail: str, why: str) -> None:
    assert ProbeResult(outcome, None, detail).why == why


def test_blanks_at_the_ends_of_lines_are_not_written_and_others_are() -> None:
    stream = io.StringIO()
    terminal._Trimmed(stream).write("a  b   \n  \x1b[1mc  \x1b[0m  \n\n d ")
    assert stream.getvalue() == "a  b\n  \x1b[1mc\x1b[0m\n\n d "


LINE = Evidence("KeyError: 'dgo'", source="console.log", line=15, rank=1)
FOUND = Explanation(
    Verdict.CAUSE_FOUND,
    "rank 1 raised KeyError",
    causes=(
        Cause(
            "app.rank-exception", 0.87, "a rank raised", (LINE,) * 6, (1,), ("a", "b", "c", "d", "e"),
            (Fix("guard the line", "vi train.py", "a"), Fix("look", "cat x")), Fix("validate data"), playbook="app.rank-exception",
        ),
        Cause("app.desync", 0.95, "ranks differ", (LINE,), (0, 1, 2)),
        Cause("app.straggler-timeout", 0.31, "a slow rank", (LINE,)),
        Cause("net.mtu", 0.29, "too unlikely to be shown", (LINE,)),
    ),
    consequences=(Consequence("time-out", 3, LINE, (0, 2)), Consequence("reset", 1, LINE, (0,)), Consequence("x", 2, LINE)),
    next=("py-spy dump",),
    versions={"nccl": "2.28.9"},
    evidence=(LINE,),
    notes=("harmless",),
    timeline=(Moment("03:02:11", "rank 1", "KeyError"), Moment("", "rank 0", "reset", line=33)),
    problems=(InputProblem("b.gz", "truncated"), InputProblem("run.ndb", "not measured: gpu")),
    read=InputCount(2, 1_500),
)  # fmt: skip


def test_the_json_of_an_explanation_keeps_its_names() -> None:
    page = json.loads(explanation.to_json(FOUND))
    assert page.keys() == {
        "schema", "verdict", "sentence", "causes", "consequences", "evidence", "next", "overcome", "worth_knowing", "notes",
        "timeline", "versions", "problems", "read", "world",
    }  # fmt: skip
    (cause, *_), (effect, *_) = page["causes"], page["consequences"]
    assert cause.keys() == {
        "id", "confidence", "title", "why", "ranks", "hosts", "evidence", "fixes", "env", "playbook",
    }  # fmt: skip
    assert cause["fixes"][0] == {"text": "guard the line", "command": "vi train.py", "host": "a", "risky": False}
    line = {"file": "console.log", "line": 15, "text": "KeyError: 'dgo'", "rank": 1}
    assert cause["evidence"][0] == line
    assert effect == {"text": "time-out", "count": 3, "ranks": [0, 2], "hosts": [], "example": line}
    assert page["problems"][0] == {"file": "b.gz", "problem": "truncated"}


FOUND_SHOWN = """\
  2 files, 1.5 kB, 1.2 s

✗ rank 1 raised KeyError

  app.rank-exception          rank 1, a, b, c, d and 1 more       0.87, likely
     console.log:15  KeyError: 'dgo'
     console.log:15  KeyError: 'dgo'
     console.log:15  KeyError: 'dgo'
     console.log:15  KeyError: 'dgo'
     and 2 more lines (--format json)
  fix now            guard the line
                     on a: vi train.py
                     look
                     cat x
  fix for good       validate data
  playbook           nccl-doctor playbook app.rank-exception

  also found         app.desync (0.95)
  less likely        app.straggler-timeout (0.31)
  consequences       time-out (3x on 2 ranks), reset (1x on rank 0), x (2x)
  timeline           03:02:11   rank 1       KeyError
                     line 33    rank 0       reset
  next               py-spy dump
  versions           nccl 2.28.9
  not read: b.gz: truncated
  run.ndb: not measured: gpu
"""


def test_commands_of_an_explanation_stay_whole_on_a_narrow_screen() -> None:
    fix = Fix(
        "drain it, then `sudo nvidia-smi --gpu-reset -i 3` and look again",
        "sudo systemctl status nvidia-dcgm --no-pager",
    )
    step = "nccl-doctor check --stage connectivity,ports,interfaces --hosts HOSTFILE"
    found = msgspec.structs.replace(FOUND, causes=(Cause("gpu.ecc", 0.9, "x", (LINE,), fixes=(fix,)),), next=(step,))
    told = drawn(print_explanation, found, width=58)
    assert step in told and "  sudo systemctl status nvidia-dcgm --no-pager\n" in told
    assert "  fix now            drain it, then\n                     `sudo nvidia-smi --gpu-reset -i 3`\n" in told
    assert (
        max(map(len, told.replace(step, "").replace("sudo systemctl status nvidia-dcgm --no-pager", "").splitlines()))
        <= 58
    )


def test_of_a_file_with_a_long_name_further_lines_tell_the_number_only() -> None:
    name = "/checkpoints/job-1/console.log"
    lines = (Evidence("line 7", name, 7), Evidence("line 9", name, 9), Evidence("other", "b.log", 3))
    hosts = tuple(f"worker-{number}" for number in range(6))
    told = explained(msgspec.structs.replace(FOUND, causes=(Cause("net.peer-lost", 0.9, "x", lines, hosts=hosts),)))
    assert f"     {name}:7  line 7\n     …:9  line 9\n     b.log:3  other\n" in told
    assert "  net.peer-lost               worker-[0-5]  " in told


def explained(found: Explanation) -> str:
    print_explanation(found, console := screen(), 1.23)
    return "".join(f"{line.rstrip()}\n" for line in shown(console).splitlines())


def test_a_cause() -> None:
    assert explained(FOUND) == FOUND_SHOWN
    one_more = msgspec.structs.replace(FOUND, causes=(Cause("net.mtu", 0.9, "x", (LINE,) * 5),))
    assert "     and 1 more line (--format json)\n" in explained(one_more)


def test_an_open_verdict_says_first_what_would_decide_and_offers_no_repair() -> None:
    told = explained(msgspec.structs.replace(FOUND, verdict=Verdict.UNDECIDED, sentence="it hangs", consequences=()))
    assert told.split("\n\n")[1:3] == ["? it hangs", "  next               py-spy dump"]
    assert told.count("py-spy dump") == 1 and "  app.desync                  ranks 0-2 " in told
    assert "would mean         One rank failed with an exception of its own" in told
    assert "fix now" not in told and "consequences" not in told and "less likely        net.mtu" not in told
    best, second, weak = (
        Cause("net.mtu", strength, "The path's MTU differs", (LINE,)) for strength in (0.42, 0.21, 0.2)
    )
    guesses = msgspec.structs.replace(FOUND, verdict=Verdict.UNDECIDED, causes=(best, second, weak))
    assert explained(guesses).count("net.mtu") == 2  # what is less than half as likely as the first helps nobody
    assert "would mean" not in explained(guesses)  # the sentence has said it


def test_a_log_of_a_healthy_job_shows_what_that_rests_on() -> None:
    told = explained(msgspec.structs.replace(FOUND, verdict=Verdict.HEALTHY, causes=(), read=InputCount(1, 20)))
    assert "  1 file, 20 B, 1.2 s\n" in told and "timeline" not in told
    assert "     console.log:15  KeyError: 'dgo'\n  harmless here      harmless\n" in told
    for kind in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED):
        other = explained(msgspec.structs.replace(FOUND, verdict=kind, causes=()))
        assert "harmless" not in other and "console.log" not in other and "timeline" in other


def test_many_problems_of_the_input_are_cut_and_say_so() -> None:
    problems = tuple(InputProblem(f"{number}.gz", "truncated") for number in range(10))
    assert "7.gz: truncated\n  and 2 more (--format json)\n" in explained(
        msgspec.structs.replace(FOUND, problems=problems)
    )
    assert "more" not in explained(msgspec.structs.replace(FOUND, problems=problems[:8], causes=()))


def test_a_history() -> None:
    bad = failing("b", "3")
    runs = [run(0, bad=(bad,)), run(1, "a c"), run(2), run(3, bad=(bad, failing("c"))), run(4, bad=(failing("a"),))]
    assert drawn(history.render, analyse(runs), width=160) == HISTORY
    told = drawn(history.render, analyse([run(0), run(1)]))
    assert "\nnothing failed in these runs\n" in told and "avoided" not in told


HISTORY = """\
5 runs, 2 passed   2026-11-01 00:00:00 UTC to 2026-11-05 00:00:00 UTC

keeps returning: failed, passed, and failed again
  b GPU 3                         failed in 2 of 4 runs   FpFp   gpu.ecc.uncontained   last 2026-11-04 00:00:00 UTC

failed
  a                               failed in 1 of 5 runs   ppppF   gpu.ecc.uncontained   last 2026-11-05 00:00:00 UTC
  c                               failed in 1 of 5 runs   pppFp   gpu.ecc.uncontained   last 2026-11-04 00:00:00 UTC

passed because it avoided a host
  2026-11-02 00:00:00 UTC  this run passed because it avoided b: not repaired

per run, oldest first: F failed, p passed, ? not measured; runs without it are left out
"""
