"""Promises that hold over all of ``check``: what is missing never passes, exit codes, hostile text, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fields
import msgspec
import pytest
from facts_builder import NAMES, Builder
from rich.console import Console
from typing_in import typed

from nccl_doctor import cli
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import EnvAdvice, Evidence, Fix, Severity, Unknown, finding, shell_word
from nccl_doctor.report.console import headline, render
from nccl_doctor.report.progress import ConsoleProgress
from nccl_doctor.report.safe_text import json_text
from nccl_doctor.rules import engine
from nccl_doctor.rules.judge import Report, judge


def printed(report: Report, width: int, **more: Any) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=width, highlight=False, markup=False, emoji=False), **more)
    return out.getvalue()


# ------------------------------------------------------------------ 10: what was not measured never passes


def passes(bundle: Bundle) -> set[tuple[str, str]]:
    return {(result.rule, host) for result in engine.run(bundle) for host in result.passed}


def not_healthy(entries: Any, key: str, probe: str) -> None:
    """With these entries of gpu02's fact."""
    builder = Builder()
    builder.probes["gpu02"][probe][key] = entries
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and any("gpu02" in gap.hosts for gap in report.unknown), entries


# Of the links of a pair one may be left out: other ports of it were tried.
@pytest.mark.parametrize(("probe", "key"), [("names", "resolved"), ("path-mtu", "paths"), ("links", "links")])
def test_a_pair_that_nobody_measured_is_not_healthy(probe: str, key: str) -> None:
    entries = Builder().probes["gpu02"][probe][key]
    not_healthy(type(entries)(), key, probe)
    for left_out in entries if probe != "links" else ():
        kept = [entry for entry in entries if entry != left_out]
        not_healthy({name: entries[name] for name in kept} if isinstance(entries, dict) else kept, key, probe)


@pytest.mark.parametrize("peer", ["gpu01", "gpu03", "gpu04"])
def test_a_peer_that_was_never_connected_to_is_a_gap(peer: str) -> None:
    builder = Builder()
    facts = builder.probes["gpu02"]["links"]
    facts["links"] = [link for link in facts["links"] if link["peer"] != peer]
    report = judge(builder.bundle())
    assert report.verdict == "incomplete"
    assert {"connect to " + peer, "loss and delay to " + peer} <= {gap.what for gap in report.unknown}


def test_a_master_port_that_nobody_tried_is_a_gap() -> None:
    builder = Builder()
    facts = builder.probes["gpu03"]["links"]
    facts["links"] = [link for link in facts["links"] if link["purpose"] != "master"]
    (gap,) = judge(builder.bundle()).unknown
    assert gap.hosts == ("gpu03",) and "master port 29500" in gap.what


def test_a_master_that_did_not_listen_on_its_port_is_a_gap() -> None:
    builder = Builder()
    builder.probes["gpu01"]["listening"]["master"] = None
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and any(gap.hosts == ("gpu01",) for gap in report.unknown)


@pytest.mark.parametrize("change", [{"messages": 0}, {"answered": 0}, {"rtt_p50_ms": None}])
def test_messages_that_were_not_answered_are_a_gap(change: dict[str, Any]) -> None:
    builder = Builder()
    for link in builder.links("gpu02", "gpu03"):
        link.update(change)
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and any("gpu02" in gap.hosts for gap in report.unknown)


def test_a_blocked_pair_is_told_once_and_not_as_a_gap_too() -> None:
    report = judge(Builder().unanswered(("gpu02", "gpu03")).bundle())
    assert report.verdict == "faulty" and not report.unknown


def test_without_the_ports_stage_a_blocked_pair_is_a_gap() -> None:
    builder = Builder(stages=("connectivity",)).unanswered(("gpu02", "gpu03"))
    assert judge(builder.bundle()).verdict == "incomplete"


def test_one_unanswered_udp_path_is_a_gap() -> None:
    builder = Builder()
    builder.probes["gpu02"]["path-mtu"]["paths"][0].update(outcome="blocked", largest_passed=0)
    assert judge(builder.bundle()).verdict == "incomplete"


@pytest.mark.parametrize("spoiled", [{"outcome": "failed"}, {"seconds": 0.0}])
def test_a_transfer_that_was_not_timed_is_a_gap(spoiled: dict[str, Any]) -> None:
    builder = Builder()
    builder.probes["gpu02"]["throughput"]["flows"][0].update(spoiled)
    assert judge(builder.bundle()).verdict == "incomplete"


def test_two_hosts_have_nothing_to_compare_speed_with() -> None:
    results = {item.rule: item for item in engine.run(Builder(("gpu01", "gpu02")).bundle())}
    for rule in ("connectivity.latency", "connectivity.slow_link"):
        assert not results[rule].passed and set(results[rule].skipped) == {"gpu01", "gpu02"}


@pytest.mark.parametrize("change", [{"hosts": ()}, {"plan": Plan(stages=())}])
def test_a_bundle_in_which_nothing_was_looked_at_is_not_healthy(change: dict[str, Any]) -> None:
    report = judge(msgspec.structs.replace(Builder().bundle(), **change))
    assert report.verdict == "incomplete"
    assert report.exit_code() in (ExitCode.NOTHING_CHECKED, ExitCode.INCOMPLETE)


def test_stages_that_apply_to_no_host_make_nobody_healthy() -> None:
    """As ``check --stage gpu`` on machines without a GPU, or whose GPUs have all fallen off the bus."""
    absent = {"outcome": "missing", "detail": "no libnvidia-ml"}
    gpu = ProbeResult(Outcome.OK, {"nvml": absent, "smi": absent, "pci_gpus": []})
    hosts = tuple(HostFacts(name, Reach(ReachOutcome.OK), {"gpu": gpu}) for name in NAMES)
    report = judge(Bundle(1, "test", "2026-01-01T00:00:00+00:00", Plan(stages=("gpu",)), hosts))
    assert [stage.state for stage in report.stages] == ["skipped"] and not report.unknown, report.unknown
    assert report.verdict == "incomplete" and report.exit_code() is ExitCode.INCOMPLETE
    assert "nothing was checked" in headline(report)[1]


def test_an_empty_host_passes_no_rule_of_any_stage() -> None:
    """Reached, and nothing collected: whatever a rule then says, it is not that the host passed."""
    hosts = tuple(HostFacts(name, Reach(ReachOutcome.OK)) for name in NAMES)
    bundle = Bundle(1, "test", "2026-01-01T00:00:00+00:00", Plan(engine.STAGES, master="gpu01"), hosts)
    assert passes(bundle) == set()
    report = judge(bundle)
    assert report.verdict == "incomplete"
    assert not [stage.name for stage in report.stages if stage.state == "pass"]


@pytest.fixture(scope="module")
def this_machine() -> Bundle:
    """What ``check`` collects here, all stages but the collectives (which have tests of their own)."""
    from nccl_doctor.collect.check import collect
    from nccl_doctor.collect.run import CheckOptions
    from nccl_doctor.inventory.model import HostEntry
    from nccl_doctor.transport.base import ConnectOptions

    stages = tuple(stage for stage in engine.STAGES if stage != "collectives")
    options = CheckOptions(plan=Plan(stages, master="here"), connect=ConnectOptions(transport="local"))
    return collect([HostEntry("here")], options)


def test_all_stages_no_rule_passes_more_with_a_fact_less(this_machine: Bundle) -> None:
    (host,) = this_machine.hosts
    before = {result.rule for result in engine.run(this_machine) if result.passed}
    lost_something = False
    for probe in host.probes:
        for left in (
            {name: result for name, result in host.probes.items() if name != probe},
            {**host.probes, probe: ProbeResult(Outcome.TIMED_OUT, None, "no answer")},
            {**host.probes, probe: ProbeResult(Outcome.OK, {"garbage": []})},
        ):
            spoiled = msgspec.structs.replace(this_machine, hosts=(msgspec.structs.replace(host, probes=left),))
            results = list(engine.run(spoiled))
            after = {result.rule for result in results if result.passed}
            assert not [item for result in results for item in result.findings if item.id == "internal-error"]
            lost_something |= before - after != set()
            asked = {gap.what for result in results for gap in result.unknown}
            assert after <= before, f"{probe}: passes only without it"
            if before - after:
                assert probe in asked, f"{probe}: rules stopped passing and do not say why"
    assert lost_something


def test_all_stages_no_field_less_makes_an_internal_error(this_machine: Bundle) -> None:
    (host,) = this_machine.hosts
    for probe, result in host.probes.items():
        for path, _ in fields.walk(result.data):
            if len(path) > 2 or not isinstance(path[-1], str):
                continue
            left = {**host.probes, probe: ProbeResult(Outcome.OK, fields.changed(result.data, path, ...))}
            spoiled = msgspec.structs.replace(this_machine, hosts=(msgspec.structs.replace(host, probes=left),))
            found = [item for told in engine.run(spoiled) for item in told.findings]
            assert not [item for item in found if item.id == "internal-error"], (probe, path)


# -------------------------------------------------------------------------------- collectives without torch


def torchless(
    outcome: Outcome = Outcome.TOOL_MISSING, gpus: int = 0, hosts: int = 1, told_gpu: bool = True
) -> engine.RuleResult:
    probes = {"collectives": ProbeResult(outcome, None, "no torch in /usr/bin/python3")}
    if told_gpu:
        absent = {"outcome": "missing", "detail": "no libnvidia-ml"}
        pci = [{"bus_id": f"0000:0{number}:00.0"} for number in range(gpus)]
        probes["gpu"] = ProbeResult(Outcome.OK, {"nvml": absent, "smi": absent, "pci_gpus": pci})
    bundle = Bundle(
        1, "test", "2026-01-01T00:00:00+00:00", Plan(("collectives",)),
        tuple(HostFacts(f"h{number}", Reach(ReachOutcome.OK), probes) for number in range(hosts)),
    )  # fmt: skip
    (result,) = [item for item in engine.run(bundle) if item.rule == "collectives.short_run"]
    assert not result.passed
    return result


def test_one_machine_without_torch_and_gpu_skips_the_collectives() -> None:
    assert "no torch" in torchless().skipped["h0"]


@pytest.mark.parametrize(
    "case", [{"gpus": 1}, {"hosts": 2}, {"told_gpu": False}, {"outcome": Outcome.FAILED}, {"outcome": Outcome.NOT_RUN}]
)
def test_otherwise_missing_collectives_are_unknown(case: dict[str, Any]) -> None:
    result = torchless(**case)
    assert not result.skipped and result.unknown and not result.findings


# ------------------------------------------------------------------------------------------- 11: exit codes


def faulty() -> Builder:
    builder = Builder()
    builder.probes["gpu02"]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    return builder


def warned() -> Builder:
    builder = Builder()
    builder.probes["gpu02"]["clock"] = {"offset": 30.0, "uncertainty": 0.01}
    return builder


def unmeasured() -> Builder:
    builder = Builder()
    del builder.probes["gpu02"]["clock"]
    return builder


def unreached() -> Builder:
    builder = Builder()
    builder.reach = {name: Reach(ReachOutcome.TIMED_OUT, "silent") for name in NAMES}
    return builder


@pytest.mark.parametrize(
    ("builder", "options", "code"),
    [
        (Builder(), [], ExitCode.HEALTHY),
        (Builder(), ["--save", "/dev/null/impossible"], ExitCode.USAGE),
        (Builder(), ["--save", "/"], ExitCode.USAGE),
        (Builder(), ["--nccl-version", "banana"], ExitCode.USAGE),
        (Builder(), ["--format", "yaml"], ExitCode.USAGE),
        (unreached(), [], ExitCode.NOTHING_CHECKED),
        (unmeasured(), [], ExitCode.INCOMPLETE),
        (warned(), [], ExitCode.HEALTHY),
        (warned(), ["--strict"], ExitCode.WARNINGS),
        (faulty(), [], ExitCode.FINDINGS),
    ],
)
def test_each_exit_code(builder: Builder, options: list[str], code: ExitCode, tmp_path: Path) -> None:
    bundles.write(builder.bundle(), tmp_path / "b.ndb")
    result = typed("check --from", tmp_path / "b.ndb", *options)
    assert result.exit_code == code, result.output


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ("check --from x.ndb --mesh full --quick", "--quick, --mesh"),
        ("check --from x.ndb -H a", "-H"),
        ("preflight --from x.ndb --budget 9s --profile full", "--budget, --profile"),
        ("preflight --from x.ndb --hosts a", "--hosts"),
        ("hang --from x.ndb --no-stacks --interval 1", "--interval, --stacks"),
        ("topo x.ndb --transport local", "--transport"),
        ("topo --from x.ndb --slurm", "--slurm"),
        ("env recommend --from x.ndb --python p", "--python"),
        ("env lint x.sh --deadline 9", "--deadline"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(words: str, idle: str) -> None:
    done = typed(words)
    assert done.exit_code == ExitCode.USAGE and f"nothing is measured: {idle} would change nothing" in done.output


@pytest.mark.parametrize(
    "words",
    [
        "check --save -",
        "hang --save -",
        "watch --save -",
        "bench allreduce --save -",
        "preflight --good-hosts -",
        "report x.ndb --format json --output -",
    ],
)
def test_no_file_is_called_as_standard_output_is(words: str) -> None:
    done = typed(words)
    assert done.exit_code == ExitCode.USAGE and "standard output is none; name a file" in done.output


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("check --hosts FILE --save FILE", "--hosts"),
        ("check --from FILE --stage ports --save LINK", "--from"),
        ("hang --hosts FILE --save FILE", "--hosts"),
        ("watch --hosts FILE --save FILE", "--hosts"),
        ("bench allreduce --hosts FILE --save FILE", "--hosts"),
        ("preflight --hosts FILE --good-hosts FILE", "--hosts"),
        ("preflight --from FILE --report json=FILE", "--from"),
        ("report FILE --format html --output FILE", "BUNDLE"),
        ("report other.ndb --bench FILE --format html --output FILE", "--bench FILE"),
    ],
)
def test_what_is_read_is_not_written_over(words: str, source: str, tmp_path: Path) -> None:
    file, link = tmp_path / "FILE", tmp_path / "LINK"
    file.write_text("gpu01\n")
    link.symlink_to(file)
    done = typed(words.replace("FILE", str(file)).replace("LINK", str(link)))
    assert done.exit_code == ExitCode.USAGE and file.read_text() == "gpu01\n"
    assert f"would take the place of what {source.replace('FILE', str(file))} reads; name another file" in done.output


@pytest.mark.parametrize("command", ["check", "preflight", "watch", "hang", "topo", "bench allreduce", "env recommend"])
@pytest.mark.parametrize(
    "way", [["--transport", "command=sh {host}"], ["--transport", "ssh"], ["--ssh-config", os.devnull]]
)
def test_a_way_to_hosts_without_hosts_does_not_examine_this_machine(command: str, way: list[str]) -> None:
    done = typed(command, *way)
    assert done.exit_code == ExitCode.USAGE and f"{way[0]} is for reaching hosts, and none is named" in done.output


@pytest.mark.parametrize(
    "command", ["check", "preflight", "watch", "hang", "topo", "bench allreduce", "env recommend", "env lint"]
)
def test_this_machine_is_not_examined_under_the_names_of_hosts(command: str) -> None:
    done = typed(command, "-H", "gpu01", "--transport", "local")
    assert done.exit_code == ExitCode.USAGE and "examines this machine, not the hosts that are named" in done.output


@pytest.mark.parametrize(
    "words", ["check --from", "preflight --from", "report", "diff", "topo", "env recommend --from"]
)
@pytest.mark.parametrize(("stage", "command"), [("job", "hang"), ("watch", "watch")])
def test_a_look_at_a_job_is_no_look_at_hosts(words: str, stage: str, command: str, tmp_path: Path) -> None:
    bundle = msgspec.structs.replace(Builder().bundle(), plan=Plan(stages=(stage,)))
    bundles.write(bundle, tmp_path / "job.ndb")
    twice = [str(tmp_path / "job.ndb")] * (1 + (words == "diff"))
    done = typed(words, *twice)
    told = f"a bundle of {command}; it is read by `nccl-doctor {command}"
    assert done.exit_code == ExitCode.USAGE and told in done.output
    bundles.write(Builder().bundle(), tmp_path / "check.ndb")
    done = typed(command, "--from", tmp_path / "check.ndb")
    assert done.exit_code == ExitCode.USAGE and f"a bundle of check; {command} reads" in done.output


@pytest.mark.parametrize("stages", [("job",), ("watch",), ()])
def test_explain_takes_a_run_that_looked_at_no_host_for_no_proof_of_health(
    stages: tuple[str, ...], tmp_path: Path
) -> None:
    bundle = msgspec.structs.replace(Builder().bundle(), plan=Plan(stages=stages))
    bundles.write(bundle, tmp_path / "run.ndb")
    done = typed("explain", tmp_path / "run.ndb", "--format", "json")
    assert done.exit_code == ExitCode.INCOMPLETE and json.loads(done.stdout)["verdict"] == "undecided"


def test_a_saved_run_is_judged_by_the_nccl_version_that_is_named(tmp_path: Path) -> None:
    before, after = str(tmp_path / "b.ndb"), tmp_path / "c.ndb"
    bundles.write(Builder().bundle(), Path(before))
    for more in ([], ["--stage", "ports"]):
        words = ["check", "--from", before, "--nccl-version", "2.4.8", "--save", str(after), *more]
        assert typed("", *words).exit_code == ExitCode.HEALTHY
        assert bundles.read(after).plan.nccl_version == "2.4.8"


@pytest.mark.parametrize(
    ("command", "code", "verdict"),
    [
        ("check", ExitCode.INTERNAL_ERROR, "HEALTHY"),
        ("preflight", ExitCode.HEALTHY, "GO"),
        ("preflight -- sh -c", 7, "GO"),
    ],
)
def test_what_cannot_be_kept_is_no_success_and_no_no_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, verdict: str
) -> None:
    """The disk fills up while the run lasts. The result is told; ``check`` has failed in half of what it was asked for,
    the decision of ``preflight`` holds and its job runs."""
    import errno

    bundles.write(Builder().whole(), tmp_path / "b.ndb")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundles, "write", full)
    word, *job = command.split()
    options = ["--from", str(tmp_path / "b.ndb"), "--save", str(tmp_path / "c.ndb")]
    told = typed("", word, *options, *job, *(["exit 7"] if job else []))
    assert told.exit_code == code and "No space left" in told.output and verdict in told.output


def test_a_report_that_cannot_be_written_is_no_success() -> None:
    for place, code, told in (("/nowhere/r", 2, "--output /nowhere/r: there is no"), ("/dev/full", 1, "No space left")):
        done = program("report", FAULTY, "-o", place)
        assert done.returncode == code and told in done.stderr and not done.stdout


def test_a_full_disk_leaves_the_old_report(tmp_path: Path) -> None:
    """Of the new one there is nothing, not even a beginning; and another name is not another format."""
    page = tmp_path / "report.html"
    page.write_text("yesterday's")
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    command = [sys.executable, "-c", limit + "runpy.run_module('nccl_doctor', run_name='__main__')", "report"]
    done = subprocess.run([*command, FAULTY, "-o", page], capture_output=True, text=True)
    assert done.returncode == 1 and f"{page}: File too large" in done.stderr
    assert page.read_text() == "yesterday's" and list(tmp_path.iterdir()) == [page]
    page.chmod(0o640)
    link = tmp_path / "latest.html"
    link.symlink_to(page)
    assert program("report", FAULTY, "-o", str(link)).returncode == 0
    assert link.is_symlink() and page.read_text().startswith("<!doctype html>") and page.stat().st_mode & 0o777 == 0o640


def test_an_ending_that_names_no_format_is_a_mistake(tmp_path: Path) -> None:
    told = program("report", FAULTY, "-o", str(tmp_path / "r.xyz"))
    assert told.returncode == 2 and "r.xyz: no format has this ending" in told.stderr and ".sarif" in told.stderr
    assert not list(tmp_path.iterdir())
    named = program("report", FAULTY, "-o", str(tmp_path / "r.xyz"), "--format", "json")
    assert named.returncode == 0 and (tmp_path / "r.xyz").read_text().startswith("{")
    assert program("report", FAULTY, "-o", str(tmp_path / "r.XML")).returncode == 0
    assert (tmp_path / "r.XML").read_text().startswith("<?xml")


def test_a_bundle_never_takes_the_place_of_a_device(tmp_path: Path) -> None:
    """Root saves to /dev/stdout or /dev/null: the device stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        bundles.write(Builder().bundle(), pipe)
        assert os.read(reader, 100_000)[:2] == b"\x1f\x8b" and pipe.is_fifo()
    finally:
        os.close(reader)
    with (tmp_path / "out").open("wb") as stream:  # a redirected standard output is a file, under a device's name
        code = "import pathlib; from nccl_doctor.facts import files; files.write(pathlib.Path('/dev/stdout'), b'x')"
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
        assert os.fstat(stream.fileno()).st_size == 1 and os.fstat(stream.fileno()).st_nlink == 1


def program(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nccl_doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


MANY = ",".join(f"node{number}" for number in range(100))  # no file may have so long a name
MISTAKES = [
    (["chek"], 2, "check"),
    (["check", "--hosts", "/dev/null"], 2, "names no host"),
    (["check", "--hosts", "/"], 2, "directory"),
    (["check", "-H", "a b"], 2, "-H"),
    (["check", "-H", "a", "--master", "b"], 2, "--master b"),
    (["check", "--from", __file__], 2, "not a bundle"),
    (["check", "--stage", "prots"], 2, "ports"),
    (["check", "hostfile"], 2, "'hostfile': hosts are named by --hosts FILE or -H HOSTS"),
    (["bench", "allreduce", "hostfile"], 2, "'hostfile': hosts are named by --hosts FILE or -H HOSTS"),
    (["env", "recommend", "hostfile"], 2, "'hostfile': hosts are named by --hosts FILE or -H HOSTS"),
    (["preflight", __file__], 2, "is no program: hosts are named by --hosts FILE"),
    (["env", "lint", "/nowhere"], 3, "/nowhere is not there"),
    (["playbook", "net.mtuu"], 2, "did you mean: net.mtu?"),
    (["check", "-H", "a", "--ssh-config", "/nowhere"], 2, "--ssh-config /nowhere"),
    (["bench", "allreduc"], 2, "did you mean allreduce"),
    (["bench", "gemm", "--sizes", "1K"], 2, "--gemm-edge"),
    (["explain", "/nowhere"], 3, "no such file"),
    (["env", "show", "NCCL_DBUG"], 2, "NCCL_DEBUG"),
    (["report", __file__], 2, "not a bundle"),
    (["check", "-H", MANY, "--master", "b"], 2, "--master b"),
    (["check", "-H", __file__], 2, f"a file here, too: --hosts {__file__}?"),
    (["check", "--save", MANY], 2, "File name too long"),
    (["env", "lint", MANY], 2, "File name too long"),
    (["run", "--", f"torchrun {MANY}"], 2, "is one word: leave out the quotes"),
    (["run", "--", MANY], 2, "is no program"),
    (["check", "--deadline", "5x"], 2, "or a time such as 30s or 1m"),
    (["check", "--deadline", "5m", "--from", "x.ndb"], 2, "--deadline would change nothing"),
    (["check", "--deadline", "nan"], 2, "or a time such as 30s or 1m"),
    (["hang", "--interval", "2m"], 2, "0.5 to 60"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "told"), MISTAKES)
def test_a_mistake_is_told_without_a_traceback(arguments: list[str], code: int, told: str) -> None:
    done = program(*arguments)
    assert done.returncode == code and told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check --hosts -", "explain -"])
def test_closed_standard_input_is_no_traceback(command: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m nccl_doctor {command} <&-', sys.executable],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (2, 3) and "Traceback" not in done.stderr


FAULTY = str(Path(__file__).parents[1] / "fixtures" / "bundles" / "schema-1.json.gz")


def with_streams(command: str, streams: str) -> tuple[int, str, str]:
    """The program's exit code, what the shell's streams let out, and its standard error."""
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m nccl_doctor {command} {streams}; exit ${{PIPESTATUS[0]}}', sys.executable],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("streams", ["| true", "2>&1 | head -n 1", "2> /dev/full", "2>&-"])
def test_a_reader_that_goes_away_changes_no_exit_code(streams: str) -> None:
    assert with_streams(f"check --from {FAULTY}", streams)[::2] == (ExitCode.FINDINGS, "")
    assert with_streams("playbook", streams)[::2] == (ExitCode.HEALTHY, "")


@pytest.mark.parametrize("command", [f"check --from {FAULTY}", f"report {FAULTY}", "env show NCCL_DEBUG", "--version"])
@pytest.mark.parametrize(
    ("streams", "why"), [("> /dev/full", "No space left on device"), (">&-", "standard output is closed")]
)
def test_a_result_that_cannot_be_told_is_no_success_and_no_defect_of_ours(command: str, streams: str, why: str) -> None:
    told = f"nccl-doctor: the output cannot be written: {why}\n"
    assert with_streams(command, streams) == (ExitCode.INTERNAL_ERROR, "", told)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_our_signs_gets_plainer_ones(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    code, told, trouble = with_streams(f"check --from {FAULTY}", "")
    assert (code, told[:8], trouble) == (ExitCode.FINDINGS, "x FAULTY", "")


def test_without_any_stream_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert with_streams(f"report {FAULTY} -o {page}", "<&- >&- 2>&-") == (ExitCode.HEALTHY, "", "")
    assert page.read_text().endswith("</html>\n")


def test_a_defect_of_ours_is_one_message_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("bad\x1b[31m luck")

    monkeypatch.setattr(cli, "_load_commands", lambda _: None)
    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.delenv(cli.DEBUG, raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr().err
    assert stopped.value.code == ExitCode.INTERNAL_ERROR
    assert "internal error (test_promises.py:" in told and "report it" in told
    assert "\x1b" not in told and "Traceback" not in told
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(RuntimeError):
        cli.main()


# The agent of "silent" starts and then says no more, that of "mute" never starts; any other host is this machine.
REACH = """\
#!/bin/sh
echo "begun with $1" >> "$0.log"
[ "$1" != mute ] || exec sleep 300
[ "$1" = silent ] || { sh -c "$4" | tee -a "$0.log"; exit; }
sh -c "$4" | { for _ in 1 2 3 4; do read -r line; echo "$line"; done; exec sleep 300; }
"""


def interrupted(
    tmp_path: Path, *words: str, by: Sequence[signal.Signals], hosts: str = "quick,silent", after: str = '"shm":'
) -> tuple[int, str, str]:
    """Exit code, output and messages of a run that these signals end, ``after`` a host said so; nothing is left of it."""
    reach, log, messages = tmp_path / "reach", tmp_path / "reach.log", tmp_path / "messages"
    log.touch()
    reach.write_text(REACH)
    reach.chmod(0o755)
    over = ("-H", hosts, "--transport", f"command={reach} {{host}}")
    with messages.open("w") as stderr:
        process = subprocess.Popen(
            ["bash", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-m", "nccl_doctor", *words, *over],
            stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + 90
    while after not in log.read_text():
        assert process.poll() is None and time.monotonic() < until, messages.read_text()
        time.sleep(0.05)
    time.sleep(1.0)  # for the answer to be read
    for number in by:
        os.kill(process.pid, number)
    told, _ = process.communicate(timeout=90)
    assert "Traceback" not in messages.read_text()
    for _ in range(50):
        if subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True, check=False).returncode:
            return process.returncode, " ".join(told.split()), messages.read_text()
        time.sleep(0.1)
    pytest.fail("something of it still runs")


@pytest.mark.parametrize("by", [["SIGINT"], ["SIGTERM", "SIGTERM"]], ids=lambda by: by[0])
def test_ctrl_c_or_a_time_limit_tells_what_was_measured_and_leaves_nothing(by: list[str], tmp_path: Path) -> None:
    """SIGTERM twice, as `timeout` sends it; Ctrl-C is ignored at the start, as in a script's background job."""
    save = tmp_path / "run.ndb"
    numbers = [signal.Signals[name] for name in by]
    code, told, trouble = interrupted(tmp_path, "check", "--stage", "system", "--save", str(save), by=numbers)
    assert code == ExitCode.INTERRUPTED
    assert f"interrupted by {by[0] if by[0] != 'SIGINT' else 'Ctrl-C'}: this is what was measured" in trouble
    assert "INCOMPLETE" in told and "system on silent: interrupted" in told
    bundle = bundles.read(save)
    assert bundle.interrupted
    assert [host.probes["system"].outcome for host in bundle.hosts] == [Outcome.OK, Outcome.NOT_RUN]


def test_a_time_limit_while_connecting_tells_who_was_waited_for(tmp_path: Path) -> None:
    words = ("check", "--stage", "system", "--connect-timeout", "60")
    code, told, _ = interrupted(tmp_path, *words, by=[signal.SIGTERM], hosts="quick,mute", after="begun with mute")
    assert code == ExitCode.INTERRUPTED and "host.not-tried mute" in told


def test_a_recommendation_from_half_a_run_is_none(tmp_path: Path) -> None:
    code, told, trouble = interrupted(tmp_path, "env", "recommend", by=[signal.SIGINT])
    assert (code, told) == (ExitCode.INTERRUPTED, "") and "interrupted by Ctrl-C" in trouble


def test_a_time_limit_in_preflight_is_no_go_with_whole_reports(tmp_path: Path) -> None:
    report, good = tmp_path / "report.json", tmp_path / "good"
    words = ("preflight", "--profile", "quick", "--report", f"json={report}", "--good-hosts", str(good))
    code, told, _ = interrupted(tmp_path, *words, by=[signal.SIGTERM])
    assert code == ExitCode.INTERRUPTED and "NO-GO" in told
    assert json.loads(report.read_text())["decisions"]["silent"]["state"] == "unknown"
    assert good.read_text() == ""


def test_an_interrupted_run_keeps_what_it_knows() -> None:
    from nccl_doctor.collect.progress import Silent
    from nccl_doctor.collect.run import INTERRUPTED, CheckOptions, Run
    from nccl_doctor.transport.base import ConnectOptions

    run = Run(CheckOptions(Plan(("system",)), ConnectOptions()), Silent())
    run.results["h"] = {}
    run.keep("h", "gpu", ProbeResult(Outcome.OK, {}))
    run.interrupt()
    ended_by_us = {"ranks": [{"rank": 0, "signal": "SIGKILL", "finished": False}]}
    run.keep("h", "system", ProbeResult(Outcome.FAILED, None, "connection lost"))
    run.keep("h", "collectives", ProbeResult(Outcome.OK, ended_by_us))
    run.keep("h", "gpu", ProbeResult(Outcome.FAILED, None, "connection lost"))
    for probe in ("system", "collectives"):
        assert run.results["h"][probe] == ProbeResult(Outcome.NOT_RUN, None, INTERRUPTED)
    assert run.results["h"]["gpu"].outcome is Outcome.OK


def test_a_run_interrupted_while_it_connects_passes_nothing_and_says_why() -> None:
    builder = Builder()
    builder.reach = dict.fromkeys(builder.reach, Reach(ReachOutcome.NOT_TRIED, "interrupted"))
    report = judge(builder.bundle())
    assert {stage.state for stage in report.stages} == {"unknown"}
    told = printed(report, 120)
    assert "interrupted" in told and "passed" not in told


# ------------------------------------------------------------------------------- 13: hostile text, consoles

HOSTILE = [
    "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J\x1b[H", "\x9b31m", "\rall is well", "\u202egnp.exe", "\u2066x", "a\x00b",
    "line\nHEALTHY", "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "\u200bhidden", "[red]markup[/red]",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("verbose", [False, True])
def test_remote_text_cannot_drive_the_console(text: str, verbose: bool) -> None:
    host = f"gpu{text}"
    advice = EnvAdvice(f"NCCL_{text}", text, text)
    items = tuple(
        finding("net.slow.link", severity, text, Evidence(text, source=text, host=host, rank=1), hosts=(host,),
                fixes=[Fix(text, text, host)], env=[advice])
        for severity in Severity
    )  # fmt: skip
    report = judge(Builder().bundle())
    report = Report(
        report.schema, report.tool, text, "faulty", (host,), (host,), items, (Unknown(text, (host,), text, text),),
        (advice,), report.stages, 1.0,
    )  # fmt: skip
    told = printed(report, 100, verbose=verbose, saved=text)
    assert not [char for char in told if (ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0]
    assert not {"\u202e", "\u2066", "\u200b"} & set(told)
    assert not [line for line in told.splitlines() if line.startswith(("HEALTHY", "all is well"))]


def hostile_run(tmp_path: Path) -> str:
    """A saved run whose hosts and one stage have hostile names: the peers that its hosts name are not in it."""
    builder = Builder()
    bundle = builder.bundle()
    odd = "gpu\x1b]0;owned\x07\x9b2J\u202e\x7fé"
    facts = tuple(msgspec.structs.replace(facts, name=f"{odd}{number}") for number, facts in enumerate(bundle.hosts))
    plan = msgspec.structs.replace(bundle.plan, stages=(*bundle.plan.stages, odd))
    path = tmp_path / "hostile.ndb"
    bundles.write(msgspec.structs.replace(bundle, hosts=facts, plan=plan), path)
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        "diff FILE -H gpu01,gpu02", "diff FILE FILE --format json", "check --from FILE --stage gpu",
        "check --from FILE --format json", "check --from FILE --history HISTORY", "history HISTORY --format json",
        "preflight --from FILE --format json", "hang --from FILE", "topo FILE", "topo FILE --format json",
        "env recommend --from FILE", "env recommend --from FILE --format json", "env lint --from FILE --format json",
        "report FILE", "report FILE --format junit", "explain FILE", "explain FILE --format json",
    ],
)  # fmt: skip
def test_a_hostile_run_drives_no_terminal_whatever_it_is_asked(tmp_path: Path, words: str) -> None:
    names = {"FILE": hostile_run(tmp_path), "HISTORY": str(tmp_path / "history")}
    if words.startswith("history"):
        typed("check --from", names["FILE"], "--history", names["HISTORY"])
    done = typed("", *[names.get(word, word) for word in words.split()])
    assert done.exit_code != ExitCode.INTERNAL_ERROR, done.exception
    assert done.output and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.output)
    if words.endswith("json"):
        assert done.stdout.isascii() and json.loads(done.stdout), "it fits every locale"


@pytest.mark.parametrize("words", ["check --from", "explain"])
def test_a_python_that_takes_docstrings_away_judges_the_same(words: str, tmp_path: Path) -> None:
    """PYTHONOPTIMIZE=2, of an environment made for training, was an internal error."""
    file = Path(__file__).parents[1] / "fixtures" / "bundles" / "schema-1.json.gz"
    if words == "explain":
        (file := tmp_path / "log").write_text("[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'dgo'\n")
    command = [sys.executable, "-m", "nccl_doctor", *words.split(), str(file)]
    environment = {**os.environ, "PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.FINDINGS and "internal error" not in done.stderr, done.stderr


def test_a_json_document_in_ascii_reads_back_as_it_was() -> None:
    data = {"é\x9b": ["\u202e", "\U0001f600", 'a\n\t\x1b\\"', "\x7f"], "plain": 1.5}
    told = json_text(msgspec.json.format(msgspec.json.encode(data), indent=2))
    assert json.loads(told) == data and told.isascii() and told.endswith("}\n") and "\x7f" not in told


@pytest.mark.parametrize("value", ["=eth0", "^docker0", "a b", "it's", "$(id)", "", "eth0,eth1", "~x", "a;b"])
def test_a_setting_can_be_pasted_into_a_shell(value: str) -> None:
    line = EnvAdvice("NAME", value, "why").shell
    done = subprocess.run(["sh", "-c", f'{line}; printf %s "$NAME"'], capture_output=True, text=True, check=True)
    assert done.stdout == value
    assert shell_word(value) == value or shell_word(value).startswith("'")


def test_zsh_would_expand_a_leading_equals_sign() -> None:
    assert EnvAdvice("NCCL_SOCKET_IFNAME", "=eth0", "why").shell == "export NCCL_SOCKET_IFNAME='=eth0'"
    assert EnvAdvice("NCCL_DEBUG", "INFO", "why").shell == "export NCCL_DEBUG=INFO"
    assert EnvAdvice("NCCL_DEBUG", "", "why", unset=True).shell == "unset NCCL_DEBUG"


# ------------------------------------------------------------------------------------- the console's lines


def test_remote_text_cannot_drive_the_progress_lines() -> None:
    shown = io.StringIO()
    with ConsoleProgress(Console(file=shown)) as progress:
        progress.begin("connect", 1)
        progress.advance("connect", "gpu01", "bad \x1b[2J\x9b luck")
        progress.end("connect")
    assert "connect: bad" in shown.getvalue() and "gpu01" in shown.getvalue()
    assert not {"\x1b", "\x9b"} & set(shown.getvalue())


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_head_of_a_finding_does_not_wrap(width: int) -> None:
    builder = faulty()
    for name in ("gpu01", "gpu03"):
        builder.probes[name]["names"]["own"] = {"addresses": ["127.0.1.1"]}
    lines = printed(judge(builder.bundle()), width).splitlines()
    (head,) = [line for line in lines if line.startswith("  1  ")]
    assert "net.hostname-resolution.loopback" in head and head.rstrip().endswith("fail, certain")
    assert any("gpu[01-03]" in line for line in lines)


def test_nothing_needs_setting_only_where_that_was_looked_at() -> None:
    assert "environment  not known: no host was reached" in printed(judge(unreached().bundle()), 120)
    assert "the interfaces stage was left out" in printed(judge(Builder().bundle()), 120)


def test_an_unreachable_fleet_has_no_gap_without_a_host() -> None:
    builder = unreached()
    builder.stages = engine.STAGES
    report = judge(builder.bundle())
    assert report.exit_code() is ExitCode.NOTHING_CHECKED and report.unknown
    assert all(gap.hosts for gap in report.unknown)


def test_the_ssh_config_option_reaches_the_transport(tmp_path: Path) -> None:
    from nccl_doctor.cli import _hosts

    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  Port 2222\n")
    made = _hosts.connect_options("ssh", "", "", 10.0, 64, False, config)
    assert made.ssh_config == str(config)


@pytest.mark.parametrize("command", ["check", "preflight", "watch", "topo", "bench", "env lint", "env recommend"])
def test_every_command_with_hosts_takes_an_ssh_config(command: str) -> None:
    done = program(
        *command.split(), *(["allreduce"] if command == "bench" else []), "-H", "a", "--ssh-config", "/nowhere"
    )
    assert done.returncode == 2 and "--ssh-config /nowhere: No such file" in done.stderr


@pytest.mark.parametrize(
    "command", ["check", "preflight", "topo", "diff", "history", "explain", "watch", "hang", "bench", "env show"]
)
def test_text_is_what_people_read_in_every_command_whatever_it_was_called(command: str) -> None:
    """``console`` and ``table`` are its older names."""
    import typer

    group: Any = typer.main.get_command(cli.app)
    for word in command.split():
        group = group.commands[word]
    (option,) = [option for option in group.params if option.name == "format"]
    assert option.default == "text"
    assert {option.type.convert(name, option, None) for name in ("text", "console", "table")} == {"text"}
    told = typed(command, "--format", "nosuch")
    assert told.exit_code == ExitCode.USAGE and "'nosuch' is not one of" in told.output


def test_a_saved_run_is_told_as_preflight_prints_it(tmp_path: Path) -> None:
    bundles.write(faulty().bundle(), tmp_path / "b.ndb")
    saved = str(tmp_path / "b.ndb")
    printed = typed("preflight --from", saved, env={"COLUMNS": None})
    told = typed("report --format text", saved, env={"COLUMNS": None})
    assert told.output == printed.stdout and "NO-GO" in told.output and f"exit {printed.exit_code}" in told.output
    assert typed("report", saved, "-o", tmp_path / "out.txt", env={"COLUMNS": None}).exit_code == 0
    assert (tmp_path / "out.txt").read_text() == told.output


# ---------------------------------------------------------------------------- 12, 14, 16, 18: what the machine decides not


def test_the_same_facts_give_the_same_json_whatever_seed_language_and_time_zone() -> None:
    told = {
        program(*f"check --from {FAULTY} --format json".split(), env={**os.environ, **more}).stdout
        for more in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C", "TZ": "Asia/Tokyo"})
    }
    assert [json.loads(one)["verdict"] for one in told] == ["faulty"]


PEAK = """
import resource, sys
from nccl_doctor.explain.files import explain_paths
read = explain_paths(sys.argv[1:]).read
own = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
print(read.lines, max(int(own), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


def test_the_memory_of_explain_does_not_grow_with_the_log(tmp_path: Path) -> None:
    log, peaks = tmp_path / "console.log", []
    symptom = "node{0:02d}:4000:5000 [0] NCCL WARN Connection closed by remote peer node{0:02d}<{1}>\n"
    for steps in (10_000, 100_000):  # 2 MB, 16 MB
        with log.open("w") as stream:
            for step in range(steps):
                stream.write(
                    f"[rank{step % 16}]: step {step // 16} loss {3 - step * 1e-6:.6f} tokens/s {9000 + step % 64}\n"
                )
                stream.write(symptom.format(step % 64, 40_000 + step % 20_000))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, log], capture_output=True, text=True, check=True, timeout=120
        )
        lines, peak = map(int, done.stdout.split())
        assert lines == 2 * steps
        peaks.append(peak / 1024)
    assert peaks[1] < 300 and peaks[1] - peaks[0] < 10, peaks  # MiB


def test_an_archive_is_no_bundle_and_nothing_of_it_is_unpacked(tmp_path: Path) -> None:
    archive, way = tmp_path / "b.ndb", tarfile.TarInfo("way")
    way.type, way.linkname = tarfile.SYMTYPE, str(tmp_path)
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(way)
        for name in ("way/escaped", "../escaped", str(tmp_path / "escaped")):
            tar.addfile(tarfile.TarInfo(name))
    for words in ("check --from", "report", "diff", "explain"):
        done = program(*words.split(), *[str(archive)] * (1 + (words == "diff")), cwd=tmp_path)
        assert done.returncode in (ExitCode.USAGE, ExitCode.NOTHING_CHECKED), done
        assert [path.name for path in tmp_path.iterdir()] == ["b.ndb"]


def test_a_jobs_directory_is_its_owners_alone_and_gone_afterwards(tmp_path: Path) -> None:
    look = 'stat -c %a "$(dirname "$NCCL_DOCTOR_HOSTFILE")"; ls "$TMPDIR"'
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = program("run", "--", "sh", "-c", look, env=environment, umask=0)
    mode, name = done.stdout.split()
    assert mode == "700" and name.startswith("nccl-doctor-") and not list(tmp_path.iterdir())


# What is promised, and the tests that hold it (docs/decisions say why).
PROMISES = {
    "the host-key policy is never weakened, a changed key stops that host only": [
        "lab/test_promises.py::test_a_changed_key_stops_that_host_only_and_changes_nothing",
        "lab/test_transport.py::test_promise_1_a_changed_key_stops_that_host_only",
    ],
    "the user's ssh config is obeyed": [
        "lab/test_promises.py::test_proxy_jump_include_and_match_are_obeyed",
        "lab/test_transport.py::test_promise_2_the_ssh_config_is_obeyed",
        "unit/test_transport_parts.py::test_classes_give_the_answers_of_ssh_and_ask_it_once",
    ],
    "no agent, display or port is forwarded": [
        "lab/test_promises.py::test_no_agent_and_no_display_reach_the_hosts",
        "lab/test_transport.py::test_promise_3_nothing_is_forwarded",
    ],
    "no host name becomes an option or a word of a shell": [
        "lab/test_promises.py::test_a_hostile_host_name_runs_nothing",
        "lab/test_transport.py::test_promise_4_hostile_names_leave_no_marker",
        "unit/test_inventory.py::test_no_text_becomes_an_option_or_a_shell_word",
        "unit/test_transport_parts.py::test_templates_become_words_never_a_shell_line",
    ],
    "nothing is written on a host": [
        "lab/test_promises.py::test_nothing_is_written_on_the_hosts",
        "lab/test_transport.py::test_promise_5_a_host_that_cannot_be_written_is_no_obstacle",
        "unit/test_session.py::test_nothing_is_written_on_the_host",
    ],
    "nothing survives on a host": [
        "lab/test_promises.py::test_nothing_survives_the_end_of_the_controller",
        "lab/test_promises.py::test_no_rank_survives_the_end_of_the_controller",
        "lab/test_promises.py::test_a_silent_cut_ends_the_agents",
        "unit/test_session.py::test_nothing_survives_the_controller",
    ],
    "nothing survives here": [
        "lab/test_transport.py::test_promises_6_and_7_nothing_survives",
        "unit/test_promises.py::test_ctrl_c_or_a_time_limit_tells_what_was_measured_and_leaves_nothing",
    ],
    "every wait has a limit, and the run ends by its deadline": [
        "lab/test_promises.py::test_the_deadline_holds_whatever_hangs",
        "lab/test_transport.py::test_a_hung_sshd_after_login_is_cut_by_the_limits",
        "unit/test_session.py::test_a_hung_probe_is_timed_out_and_hangs_nothing_else",
        "unit/test_session.py::test_an_answer_that_drips_ends_the_session",
        "unit/test_session.py::test_the_run_ends_by_its_deadline",
    ],
    "a partial failure is told completely": [
        "lab/test_promises.py::test_ten_hosts_with_ten_outcomes",
        "lab/test_transport.py::test_ten_outcomes_in_one_run",
    ],
    "what is missing never passes": [
        "unit/test_promises.py::test_all_stages_no_rule_passes_more_with_a_fact_less",
        "unit/test_fail_open.py::test_no_rule_passes_without_the_field_that_decides_it",
    ],
    "exit codes are a published table": [
        "unit/test_promises.py::test_each_exit_code",
        "unit/test_promises.py::test_a_defect_of_ours_is_one_message_and_exit_code_1",
        "unit/test_promises.py::test_ctrl_c_or_a_time_limit_tells_what_was_measured_and_leaves_nothing",
        "unit/test_docs.py::test_generated_pages_are_fresh",
        "unit/explain/test_reasoning.py::test_command_reads_standard_input_and_returns_the_published_codes",
    ],
    "the same facts give the same report": [
        "lab/test_promises.py::test_a_saved_bundle_gives_the_same_report",
        "unit/test_judge.py::test_the_same_facts_in_any_order_give_the_same_bytes",
        "unit/test_promises.py::test_the_same_facts_give_the_same_json_whatever_seed_language_and_time_zone",
    ],
    "text of hosts and logs drives no terminal, JUnit or HTML": [
        "unit/test_formats.py::test_no_format_lets_remote_text_act",
        "unit/test_formats.py::test_junit_parses_back_with_one_case_per_host_and_stage",
        "unit/test_html.py::test_hostile_names_and_lines_stay_text",
        "unit/test_promises.py::test_a_hostile_run_drives_no_terminal_whatever_it_is_asked",
        "unit/test_promises.py::test_remote_text_cannot_drive_the_console",
        "unit/test_watch.py::test_no_text_of_a_host_drives_the_terminal",
    ],
    "any log takes linear time and bounded memory": [
        "unit/explain/test_hostile.py::test_no_pattern_is_worse_than_linear",
        "unit/explain/test_hostile.py::test_prefixes_are_linear",
        "unit/test_promises.py::test_the_memory_of_explain_does_not_grow_with_the_log",
    ],
    "what was collected is never unpickled or evaluated": [
        "unit/test_flight_recorder.py::test_a_rank_list_that_is_code_is_not_evaluated",
        "unit/test_flight_recorder.py::test_real_dumps_name_the_guilty_rank_and_its_line",
        "unit/test_plain_pickle.py::test_claimed_sizes_beyond_the_file_are_refused",
        "unit/test_plain_pickle.py::test_code_is_never_run",
    ],
    "a bundle is never extracted": [
        "unit/test_judge.py::test_a_bomb_is_refused",
        "unit/test_judge.py::test_a_bundle_that_has_a_host_twice_is_refused",
        "unit/test_judge.py::test_a_cut_and_a_foreign_bundle_are_refused",
        "unit/test_promises.py::test_an_archive_is_no_bundle_and_nothing_of_it_is_unpacked",
    ],
    "secrets are not collected, and none is told": [
        "lab/test_promises.py::test_planted_secrets_are_in_no_output",
        "unit/explain/test_hostile.py::test_secrets_in_logs_are_not_passed_on",
        "unit/test_redaction.py::test_no_canary_survives",
        "unit/test_session.py::test_environment_is_an_allow_list",
    ],
    "files are their owner's, and none is left": [
        "unit/test_judge.py::test_a_saved_bundle_is_private_and_half_a_one_is_not_left",
        "unit/test_promises.py::test_a_jobs_directory_is_its_owners_alone_and_gone_afterwards",
        "unit/env/test_fix.py::test_write_keeps_the_mode_and_does_not_follow_links",
        "unit/test_run.py::test_a_failure_is_kept_with_its_explanation_and_without_secrets",
    ],
    "the load on the cluster is bounded": [
        "lab/test_transport.py::test_promise_19_fan_out_is_capped",
        "lab/test_transport.py::test_promise_19_stops_after_repeated_authentication_failures",
        "unit/test_bench_judge.py::test_busy_gpus_are_not_disturbed",
    ],
    "old bundles stay readable, and one broken rule hides nothing": [
        "unit/test_engine.py::test_a_raising_rule_is_a_finding_and_unknown_not_a_pass",
        "unit/test_judge.py::test_bundles_of_every_schema_stay_readable",
    ],
}


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_of_a_promise_are_there(promise: str) -> None:
    for file, _, name in (test.partition("::") for test in PROMISES[promise]):
        assert f"\ndef {name}(" in (Path(__file__).parents[1] / file).read_text(), name
