"""``nccl-doctor preflight`` in the lab: the bad host is kept out, whatever the fault, and only a go runs the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nccl_doctor import cli

from . import gate
from .gate import FAULTY, GO, INCOMPLETE, NOTHING_CHECKED
from .lab import Lab
from .test_check import while_a_host_vanishes

OTHERS = ["gpu01", "gpu03", "gpu04"]


def command(lab: Lab, directory: Path) -> list[str]:
    """The words of a quick preflight of all hosts."""
    return ["nccl-doctor", "preflight", "--hosts", str(lab.hostfile), "--profile", "quick", *gate.words(directory)]


def preflight(lab: Lab, directory: Path, *options: str, job: Sequence[str] = (), timeout: float = 60) -> gate.Run:
    """A run of it that writes everything it can."""
    done = lab.run([*command(lab, directory), *options, *job], timeout=timeout, cwd=directory)
    return gate.read(directory, done.returncode, done.stdout, done.stderr)


# One of each kind: the way in, between hosts, on a host. Every fault of the lab goes through preflight in test_check.py.
FAULTS = {
    "sshd-down": "host.ssh-refused",
    "port-dropped": "net.firewall.dropped",
    "small-shm": "sys.shm",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_no_go_and_its_host_is_kept_out(lab: Lab, tmp_path: Path, fault: str) -> None:
    ran = tmp_path / "ran"
    with lab.fault(fault, "gpu02"):
        run = preflight(lab, tmp_path, job=("--", "touch", str(ran)))
    assert (run.code, run.good, run.bad) == (FAULTY, OTHERS, ["gpu02"]), run.out
    assert not ran.exists() and "NO-GO" in run.out
    failed = run.cases("failure")
    assert list(failed) == ["gpu02"] and failed["gpu02"].startswith(FAULTS[fault]), failed
    assert run.report["decisions"]["gpu02"]["state"] == "bad" and run.report["go"] is False


@pytest.mark.alone
def test_a_clean_lab_runs_the_job_on_its_hosts_and_passes_on_its_exit_code(lab: Lab, tmp_path: Path) -> None:
    script = (
        'echo "hosts=$NCCL_DOCTOR_HOSTS n=$NCCL_DOCTOR_NNODES words=$0"; cat "$NCCL_DOCTOR_HOSTFILE"; '
        'echo "RuntimeError: NCCL error: unhandled system error, CUDA error: out of memory" >&2; exit 7'
    )
    run = preflight(lab, tmp_path, job=("--", "sh", "-c", script, "{nnodes}:{hosts}"))
    assert run.code == 7, run.err
    assert (run.good, run.bad, run.cases("failure"), run.cases("error")) == (lab.hostnames, [], {}, {})
    listed = ",".join(lab.hostnames)
    assert f"hosts={listed} n=4 words=4:{listed}\n" + "\n".join(lab.hostnames) + "\n" in run.out
    assert run.out.index("GO") < run.out.index("hosts=")
    assert "the job failed; its output says" in run.err and "unhandled system error" in run.err
    cases = [(case.get("classname"), case.get("name")) for case in run.junit.iter("testcase")]
    assert len(set(cases)) == len(cases) and {host for _, host in cases} == {*lab.hostnames, "go"}


def test_three_of_four_with_a_spare(lab: Lab, tmp_path: Path) -> None:
    """A bad host and enough good ones: go without it; one good one is kept as a spare."""
    job = ("--", "sh", "-c", "echo $NCCL_DOCTOR_HOSTS")
    with lab.fault("own-name-loopback", "gpu03"):
        run = preflight(lab, tmp_path, "--min-hosts", "2", "--spares", "1", job=job)
        short = preflight(lab, tmp_path, "--min-hosts", "4", "--spares", "1")
    assert (run.code, run.good, run.bad) == (GO, ["gpu01", "gpu02", "# spare: gpu04"], ["gpu03"])
    assert "\ngpu01,gpu02\n" in run.out
    assert (short.code, short.bad) == (FAULTY, ["gpu03"])


def test_a_host_that_vanishes_in_the_middle_is_never_good_and_keeps_no_other_out(lab: Lab, tmp_path: Path) -> None:
    words = [*command(lab, tmp_path), "--min-hosts", "3", "--budget", "100s"]
    done = while_a_host_vanishes(lab, words, "host facts", cwd=tmp_path)
    run = gate.read(tmp_path, done.returncode, done.stdout, done.stderr)
    assert (run.code, run.good, run.bad) == (GO, OTHERS, ["gpu02"]), run.out
    assert run.report["decisions"]["gpu02"]["state"] in ("bad", "unknown")
    assert set(run.cases("failure")) | set(run.cases("error")) == {"gpu02"}


def test_all_hosts_bad(lab: Lab, tmp_path: Path) -> None:
    for name in lab.hostnames:
        lab.apply_fault("sshd-down", name)
    run = preflight(lab, tmp_path, "--min-hosts", "1", job=("--", "echo", "ran"))
    lab.clear_faults()
    assert (run.code, run.good, run.bad) == (NOTHING_CHECKED, [], ["gpu[01-04]"])
    assert "ran\n" not in run.out


@pytest.mark.alone
def test_what_does_not_fit_the_budget_is_said_and_no_host_passes(lab: Lab, tmp_path: Path) -> None:
    """Collectives need 8 s: these hosts are reached and examined, and yet nobody is good."""
    run = preflight(lab, tmp_path, "--budget", "7s", "--profile", "standard", "--min-hosts", "1")
    assert run.code == INCOMPLETE and run.good == [], run.out
    assert any("deadline" in gap["why"] for gap in run.report["unknown"])
    assert set(run.cases("error")) == set(lab.hostnames) and "deadline" in run.out


@pytest.mark.alone
def test_a_budget_too_short_to_reach_anybody_makes_nobody_bad(lab: Lab, tmp_path: Path) -> None:
    for name in lab.hostnames:
        lab.apply_fault("sshd-hung", name)
    run = preflight(lab, tmp_path, "--budget", "1s", "--min-hosts", "1")
    lab.clear_faults()
    assert (run.code, run.good, run.bad) == (NOTHING_CHECKED, [], ["gpu[01-04]"]), run.out
    assert {made["state"] for made in run.report["decisions"].values()} == {"unknown"}
    assert set(run.cases("failure")) == set() and set(run.cases("error")) == set(lab.hostnames)


@pytest.mark.alone
def test_busbw_is_measured_in_the_standard_profile(lab: Lab, tmp_path: Path) -> None:
    run = preflight(lab, tmp_path, "--profile", "standard", "--require", "min-busbw=10000", "--min-hosts", "1")
    assert (run.code, run.good) == (FAULTY, []), run.out
    assert set(run.cases("failure").values()) == {"require.min-busbw"}
    assert "busbw is below 10000 GB/s" in run.out


def test_diff_and_history_of_a_week(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good, then a fault that a retry only avoids, then repaired: each command says so, and no more than that."""

    def run(name: str, *options: str) -> gate.Run:
        place = tmp_path / name
        place.mkdir()
        kept = ("--save", str(tmp_path / f"{name}.ndb"), "--history", str(tmp_path / "kept"))
        return preflight(lab, place, *kept, *options)

    def told(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli.app, list(words))
        return done.exit_code, " ".join(done.output.split())  # wherever the lines end

    monkeypatch.chdir(tmp_path)
    cli._load_commands()

    assert run("monday").code == GO
    with lab.fault("small-shm", "gpu02"):
        assert run("tuesday").code == FAULTY
        assert run("retry", "--min-hosts", "3").code == GO
    code, text = told("history", "kept")
    assert text.count("passed because it avoided gpu02: not repaired") == 1, text
    assert run("wednesday").code == GO
    code, text = told("diff", "monday.ndb", "tuesday.ndb")
    assert code == FAULTY and "NEW FAILURE: sys.shm.too-small on gpu02" in text and "16 GiB -> 64 MiB" in text
    code, text = told("diff", "tuesday.ndb", "wednesday.ndb")
    assert code == GO and "gone sys.shm.too-small" in text
    code, text = told("diff", "monday.ndb", "wednesday.ndb")
    assert code == GO and "NO CHANGE" in text, text
    code, text = told("diff", "tuesday.ndb", "--hosts", "gpu[01-04]")
    assert code == FAULTY and "sys.shm.too-small on gpu02" in text
    code, text = told("history", "kept", "--host", "gpu02")
    assert "4 runs with gpu02, 3 passed" in text and "pFFp" in text and "keeps returning" not in text
