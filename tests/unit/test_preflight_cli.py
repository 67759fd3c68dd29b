"""``nccl-doctor preflight`` as a process, deciding from saved bundles: files, options, exit codes, the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from facts_builder import NAMES, Builder

from nccl_doctor.cli._judging import load_policy, load_thresholds
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, Reach, ReachOutcome
from nccl_doctor.rules.policy import Policy


def saved(directory: Path, *bad: str, slots: int = 0) -> str:
    """A bundle of four hosts; the bad ones resolve their own name to loopback."""
    builder = Builder()
    for host in bad:
        builder.probes[host]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": f"127.0.1.1 {host}", "line": 2}
    return write(directory, builder.whole(), slots)


def write(directory: Path, bundle: Bundle, slots: int = 0) -> str:
    if slots:
        hosts = tuple(msgspec.structs.replace(facts, slots=slots) for facts in bundle.hosts)
        bundle = msgspec.structs.replace(bundle, hosts=hosts)
    bundles.write(bundle, directory / "bundle")
    return str(directory / "bundle")


def preflight(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "nccl_doctor", "preflight", *options]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def test_a_bad_host_is_no_go_and_no_job_runs(tmp_path: Path) -> None:
    files = ("--good-hosts", "good", "--bad-hosts", "bad", "--report", "junit=out.xml")
    files += ("--report", "json=/dev/null", "--report", "nhc=/dev/null")  # which takes all of them
    done = preflight(tmp_path, "--from", saved(tmp_path, "gpu02", slots=8), *files, "--", "touch", "ran")
    assert done.returncode == 11 and "NO-GO" in done.stdout
    assert (tmp_path / "good").read_text() == "gpu01 slots=8\ngpu03 slots=8\ngpu04 slots=8\n"
    assert (tmp_path / "bad").read_text() == "gpu02\n"
    assert ElementTree.parse(tmp_path / "out.xml").find(".//failure") is not None
    assert not (tmp_path / "ran").exists()


def test_go_runs_the_job_and_passes_on_what_it_returned(tmp_path: Path) -> None:
    script = 'echo "$NCCL_DOCTOR_NNODES $NCCL_DOCTOR_HOSTS"; exit 9'
    options = ("--min-hosts", "2", "--spares", "1", "--bad-hosts", "bad")
    done = preflight(tmp_path, "--from", saved(tmp_path, "gpu02"), *options, "--", "sh", "-c", script)
    assert done.returncode == 9 and "2 gpu01,gpu03\n" in done.stdout
    assert "the job failed" in done.stderr
    assert (tmp_path / "bad").read_text() == "gpu02\n"  # gpu04 is the spare, and good


def test_the_master_of_a_saved_run_is_the_jobs_first_host(tmp_path: Path) -> None:
    bundle = Builder(("gpu03", "gpu01", "gpu02")).whole()
    hosts = tuple(sorted(bundle.hosts, key=lambda facts: facts.name))
    bundle = msgspec.structs.replace(bundle, hosts=hosts, plan=msgspec.structs.replace(bundle.plan, master="gpu03"))
    done = preflight(tmp_path, "--from", write(tmp_path, bundle), "--", "echo", "{hosts}")
    assert done.stdout.endswith("\ngpu03,gpu01,gpu02\n"), done.stdout


@pytest.mark.parametrize(("bad", "told"), [("gpu01", True), ("gpu02", False)])
def test_that_no_chosen_host_s_master_port_was_tried_is_said(tmp_path: Path, bad: str, told: bool) -> None:
    done = preflight(tmp_path, "--from", saved(tmp_path, bad), "--min-hosts", "3")
    said = "port 29500 was tried on the master gpu01, which is not chosen; whether it is free and reachable on a chosen host is not known"
    assert done.returncode == 0 and (said in done.stderr) == told


def test_a_job_that_cannot_be_run_is_127(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("#!/no/such/interpreter\n")
    (tmp_path / "job").chmod(0o755)
    done = preflight(tmp_path, "--from", saved(tmp_path), "--keep", "out", "--", "./job")
    assert done.returncode == 127 and not (tmp_path / "out").exists()
    assert "./job: No such file or directory (it, or what its first line names)" in done.stderr


def test_a_job_killed_by_a_signal_is_128_and_the_signal(tmp_path: Path) -> None:
    done = preflight(tmp_path, "--from", saved(tmp_path), "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 137 and "printed nothing" in done.stderr


STOPPABLE = "trap 'echo told to end; kill $!; exit 5' TERM INT HUP; echo $$ > pid; sleep 60 & wait"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_reaches_the_job_and_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    with job(tmp_path, STOPPABLE) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out.endswith("told to end\n")) == (5, True), err
    assert "the job failed" not in err  # it was told to
    assert not running(process.pid)


def test_killed_itself_it_leaves_no_job_behind(tmp_path: Path) -> None:
    with job(tmp_path, "echo $$ > pid; exec sleep 600") as process:
        assert len(running(process.pid)) == 2
        process.kill()
        process.wait(timeout=30)
        until = time.monotonic() + 50
        while running(process.pid):
            assert time.monotonic() < until
            time.sleep(0.02)


def _as_in_a_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which is passed on


@contextlib.contextmanager
def job(directory: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """A preflight that said go, in a session of its own, once its job runs (and has written ``pid``)."""
    words = [
        sys.executable,
        "-m",
        "nccl_doctor",
        "preflight",
        "--from",
        saved(directory),
        "--",
        "bash",
        "-c",
        script,
    ]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "TMPDIR": str(directory)}  # killed, it cannot remove its files
    with subprocess.Popen(
        words, cwd=directory, env=environment, text=True, start_new_session=True, preexec_fn=_as_in_a_terminal, **pipes
    ) as process:
        try:
            until = time.monotonic() + 60
            while not (directory / "pid").exists() or not (directory / "pid").read_text():
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            for left in running(process.pid):
                os.kill(left, signal.SIGKILL)


def running(session: int) -> list[int]:
    """The processes of a session that still run."""
    return [int(place.name) for place in Path("/proc").glob("[0-9]*") if session_of(place) == session]


def session_of(process: Path) -> int:
    """The session of a process that still runs; 0 for a zombie."""
    try:
        state, _, _, session = (process / "stat").read_text().rsplit(")", 1)[1].split()[:4]
    except OSError:
        return 0
    return int(session) if state != "Z" else 0


def test_a_report_that_cannot_be_written_is_said_first_and_the_result_stands(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    bundle = saved(tmp_path)
    done = preflight(tmp_path, "--from", bundle, "--report", "junit=nowhere/out.xml", "--report", "json=here")
    assert done.returncode == 0 and "GO: 4 of 4" in done.stdout
    assert "--report junit=nowhere/out.xml: cannot be written (nowhere does not exist)" in done.stderr
    assert "here: cannot be written (here is a directory)" in done.stderr
    first = done.stderr.index("cannot be written")
    assert first < done.stderr.index("nowhere/out.xml: No such file")


@pytest.mark.parametrize("option", ["--good-hosts", "--bad-hosts"])
def test_without_the_file_of_hosts_no_job_runs(tmp_path: Path, option: str) -> None:
    job = ("--from", saved(tmp_path, "gpu02"), "--min-hosts", "3", "--", "touch", "ran")
    before = preflight(tmp_path, option, "nowhere/hosts", *job)
    assert before.returncode == 2 and f"{option} nowhere/hosts: there is no directory nowhere" in before.stderr
    after = preflight(tmp_path, option, "/dev/full", *job)
    assert after.returncode == 1 and "/dev/full: No space left on device" in after.stderr and "GO: 3 of" in after.stdout
    assert after.stdout.endswith("exit 1\n")
    assert not (tmp_path / "ran").exists()


def test_a_policy_with_a_typo_stops_with_line_and_key(tmp_path: Path) -> None:
    (tmp_path / "nccl-doctor.toml").write_text("strict = true\nrequires = ['gpus=8']\n")
    done = preflight(tmp_path, "--from", saved(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert "nccl-doctor.toml:2: unknown key 'requires'; did you mean 'require'?" in done.stderr


def test_a_report_of_a_saved_run_decides_as_preflight_does_under_the_policy(tmp_path: Path) -> None:
    bundle = saved(tmp_path, "gpu02")
    for policy, reason in (
        ("min-hosts = 3", "3 of 4 hosts are good, 3 needed"),
        ("min-hosts = 3\nrequire = ['gpus=8,shm=1G']", "0 of 4 hosts are good, 3 needed"),
        ("strict = true\nseverity = {'net.hostname-resolution' = 'warn'}", "3 of 4 hosts are good, 4 needed"),
    ):
        (tmp_path / "nccl-doctor.toml").write_text(policy)
        words = [sys.executable, "-m", "nccl_doctor", "report", bundle, "--format", "json"]
        told = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
        gate = preflight(tmp_path, "--from", bundle)
        assert told["reason"] == reason and told["go"] == (gate.returncode == 0)
        assert reason in gate.stdout


@pytest.mark.parametrize(
    ("stages", "quick", "policy", "lacks"),
    [
        (("connectivity",), False, "", "ports, interfaces, system, software, gpu, topology, infiniband, collectives"),
        ((), True, "", ""),  # as `preflight --profile quick` decided
        ((), False, "", "collectives"),  # check --skip collectives
        ((), True, "profile = 'standard'", "collectives"),
    ],
)
def test_a_saved_run_that_left_a_stage_out_is_no_go(
    tmp_path: Path, stages: tuple[str, ...], quick: bool, policy: str, lacks: str
) -> None:
    bundle = Builder().whole()
    plan = msgspec.structs.replace(bundle.plan, stages=stages or bundle.plan.stages, quick=quick)
    path = write(tmp_path, msgspec.structs.replace(bundle, plan=plan))
    (tmp_path / "nccl-doctor.toml").write_text(policy)
    done = preflight(tmp_path, "--from", path, "--report", "junit=out.xml", "--", "touch", "ran")
    said = f"not checked  {lacks} on gpu[01-04]: the saved run left it out"
    assert (done.returncode, (tmp_path / "ran").exists()) == ((4, False) if lacks else (0, True)), done.stdout
    assert (" ".join(said.split()) in " ".join(done.stdout.split())) == bool(lacks), done.stdout
    assert ("left out     collectives" in done.stdout) != bool(lacks)
    suites = {suite.get("name"): suite.get("errors") for suite in ElementTree.parse(tmp_path / "out.xml").getroot()}
    assert {name for name, errors in suites.items() if errors != "0"} == set(filter(None, lacks.split(", ")))
    words = [sys.executable, "-m", "nccl_doctor", "report", path, "--format", "json"]
    told = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert told["go"] == (not lacks) and told["verdict"] == ("incomplete" if lacks else "healthy")


def test_a_directory_that_is_gone_has_no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load_policy(None) == Policy()


def test_thresholds_of_a_file_leave_those_of_the_policy(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("nofile.fail: 0\n")
    rows = load_thresholds(tmp_path / "limits.yaml", {"nofile.fail": 1.0, "shm.fail": 2.0})
    assert rows is not None and (rows["nofile.fail"].value, rows["shm.fail"].value) == (0.0, 2.0)


@pytest.mark.parametrize(("until", "code", "word"), [("2020-01-01", 11, "NO-GO"), ("2999-01-01", 0, "GO")])
def test_an_ignore_counts_until_its_day(tmp_path: Path, until: str, code: int, word: str) -> None:
    (tmp_path / "nccl-doctor.toml").write_text(
        f"[[ignore]]\nid = 'net.hostname-resolution'\nuntil = {until}\nreason = 'ticket 12'\n"
    )
    done = preflight(tmp_path, "--from", saved(tmp_path, "gpu02"))
    assert done.returncode == code and done.stdout.split(" ")[1].startswith(word)
    assert ("expired on 2020-01-01" in " ".join(done.stdout.split())) == (code != 0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--hosts", "empty"), "empty"),
        (("--hosts", "missing"), "missing"),
        (("--budget", "soon"), "--budget 'soon': expected a time such as 90s"),
        (("--budget", "0s"), "--budget '0s'"),
        (("--profile", "slow"), "expected one of quick, standard, full"),
        (("--require", "gpus=many"), "--require 'gpus=many': expected gpus=N"),
        (("--require", "gpu=8"), "--require 'gpu=8': no such requirement; did you mean gpus=N?"),
        (("--require", "shm"), "--require 'shm': expected shm=SIZE (a number with K, M, G or T, binary)"),
        (("--require", "same=torch,ncl"), "--require 'same=torch,ncl': nothing is called 'ncl'; did you mean 'nccl'?"),
        (("--min-hosts", "2"), "--min-hosts 2: there is only 1 host"),
        (("--report", "junit"), "expected FORMAT=FILE"),
        (("--report", "pdf=x"), "expected FORMAT=FILE"),
        (("--report", "junit=-"), "writes a file; on standard output: --format junit"),
        (("--report", "json=a", "--report", "json=b"), "json goes to a already"),
        (("--bad-hosts", "./good"), "--bad-hosts good: --good-hosts goes there, and only one of them would be kept"),
        (("--report", "junit=out", "--save", "out"), "--report junit out: --save goes there"),
        (("--format", "pdf"), "'pdf' is not one of github, gitlab"),
        (("--spares", "1"), "--spares needs --min-hosts"),
        (("--master", "gpu9"), "--master gpu9: not among the hosts"),
        (("--no-such-option",), "No such option"),
        (("--require", "gpus=8,", "same=torch"), "'same=torch' is no program: hosts are named by --hosts"),
        (("--", "./no-such-program"), "'./no-such-program' is no program"),
        (("--require", ""), "an empty value after --require: is a variable unset?"),
        (("--format=",), "an empty value after --format="),
        (("--transport", "command=kubect1 exec -i {host} --"), "there is no program kubect1 on this machine"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_a_clear_error_and_nothing_is_done(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    (tmp_path / "empty").write_text("# nobody\n\n")
    done = preflight(tmp_path, "--good-hosts", "good", *options)
    assert done.returncode == 2 and done.stdout == "", done.stdout
    assert told in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert not (tmp_path / "good").exists()


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("budget = '2 minutes'", "budget in the policy file '2 minutes': expected a time"),
        ("require = ['gpu=8']", "nccl-doctor.toml:1: require 'gpu=8': no such requirement; did you mean gpus=N?"),
        ("profile = 'slow'", ":1: profile is 'slow'; expected one of quick, standard, full"),
        ("min-hosts = 9", "min-hosts in the policy file 9: there is only 1 host"),
        ("min-hosts = '9'", ":1: min-hosts: Expected a whole number, got text in quotes"),
        ("[[ignore]]\nid = 'net.mtu'\nreason = 'x'", ":1: ignore: missing key `until`"),
    ],
)
def test_a_mistake_in_the_policy_is_told_as_the_policys(tmp_path: Path, policy: str, told: str) -> None:
    (tmp_path / "nccl-doctor.toml").write_text(policy)
    for saved_run in ((), () if "min-hosts = 9" in policy else ("--from", saved(tmp_path))):
        done = preflight(tmp_path, *saved_run)
        assert (done.returncode, done.stdout) == (2, "") and told in " ".join(done.stderr.split()), done.stderr


def test_more_hosts_needed_than_there_are(tmp_path: Path) -> None:
    done = preflight(tmp_path, "--from", saved(tmp_path), "--min-hosts", "5")
    assert done.returncode == 2 and "there are only 4 hosts" in done.stderr


def test_nobody_reached_is_no_verdict_and_all_are_kept_away_from(tmp_path: Path) -> None:
    builder = Builder()
    for name in NAMES:
        builder.reach[name] = Reach(ReachOutcome.REFUSED, "connection refused")
    options = ("--min-hosts", "1", "--good-hosts", "good", "--bad-hosts", "bad")
    done = preflight(tmp_path, "--from", write(tmp_path, builder.whole()), *options, "--", "touch", "ran")
    assert done.returncode == 3
    assert ((tmp_path / "good").read_text(), (tmp_path / "bad").read_text()) == ("", "gpu[01-04]\n")
    assert not (tmp_path / "ran").exists()


def test_a_requirement_that_the_bundle_cannot_answer_is_no_go(tmp_path: Path) -> None:
    done = preflight(tmp_path, "--from", saved(tmp_path), "--require", "min-busbw=40", "--min-hosts", "1")
    assert done.returncode == 4 and "which this run left out" in " ".join(done.stdout.split())
