"""nccl-doctor env, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from typing_in import typed

from nccl_doctor.env.knowledge import NEWEST_NCCL, NEWEST_TORCH
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Plan, Reach, ReachOutcome

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "tests" / "cases" / "env"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*words: str, **variables: str) -> Done:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT), **variables}
    with mock.patch.dict(os.environ, environment, clear=True):
        result = typed("env", *words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def test_as_a_program_of_its_own() -> None:
    words = [sys.executable, "-m", "nccl_doctor", "env", "show", "NCCL_TIMEOUT"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0 and "read by nobody" in done.stdout


def test_lint_tells_each_file_once_with_its_lines_and_fixes(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("export NCCL_SOCKET_IFNAME=^eth0\nexport NCCL_TIMEOUT=1800\n")
    shown = run("lint", str(script)).stdout
    assert shown.splitlines().count(str(script)) == 1 and 'init_process_group("nccl", timeout=' in shown
    found = json.loads(run("lint", str(script), "--format", "json").stdout)["findings"]
    assert [(item["file"], item["line"], item["name"], item["value"]) for item in found] == [
        (str(script), 1, "NCCL_SOCKET_IFNAME", "^eth0"),
        (str(script), 2, "NCCL_TIMEOUT", "1800"),
    ]


def test_show_tells_the_default_and_what_never_to_do() -> None:
    shown = " ".join(run("show", "NCCL_IB_TIMEOUT", "--nccl-version", "2.21.5").stdout.split())
    assert "default 18 (14 since 2.3.5, 18 since 2.14.3, 20 since 2.23.4)" in shown
    assert "never To raise PyTorch's collective time-out" in shown
    assert "not with 0 no time-out" in shown


def test_show_json() -> None:
    done = run("show", "NCCL_IB_TIMEOUT", "--format", "json", "--nccl-version", "2.21.5")
    page = json.loads(done.stdout)
    assert done.returncode == 0 and page["never"].startswith("To raise") and page["set_when"] and page["source"]
    assert (page["name"], page["status"], page["first"], page["last"], page["default"], page["replaced_by"]) == (
        "NCCL_IB_TIMEOUT",
        "current",
        "2.3.5",
        None,
        "18",
        None,
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NCCL_TIMEOUT", ["read by nobody", "init_process_group", "timeout="]),
        ("NCCL_ASYNC_ERROR_HANDLING", ["renamed TORCH_NCCL_ASYNC_ERROR_HANDLING", "2.2", "torchrun"]),
        ("NCCL_TREE_THRESHOLD", ["removed", "2.4.8", "NCCL_ALGO"]),
        ("NCCL_MIN_NRINGS", ["read by NCCL", "NCCL_MIN_NCHANNELS", "alias"]),
        ("NCCL_DEBUG", ["ERROR", "prints nothing"]),
        ("NCCL_SOCKET_IFNAME", ["prefix", "order", "lo", "^docker0"]),
        ("NCCL_P2P_LEVEL", ["PIX is the best PCIe path"]),
        ("NCCL_IB_TIMEOUT", ["20", "2.23"]),
        ("NCCL_IB_GID_INDEX", ["ignored", "InfiniBand", "2.22"]),
        ("NCCL_ALGO", ["performance pin"]),
        ("GLOO_SOCKET_IFNAME", ["exact", "no ^"]),
        ("CUDA_LAUNCH_BLOCKING", ["debugging only"]),
    ],
)
def test_the_source_material_s_errors_are_answered_rightly(name: str, words: list[str]) -> None:
    text = " ".join(run("show", name).stdout.split())
    for word in words:
        assert word in text, (word, text)


def test_show_did_you_mean() -> None:
    done = run("show", "NCCL_SOKET_IFNAME")
    assert done.returncode == 2 and "NCCL_SOCKET_IFNAME?" in done.stdout
    assert json.loads(run("show", "NCCL_SOKET_IFNAME", "--format", "json").stdout)["did_you_mean"] == [
        "NCCL_SOCKET_IFNAME"
    ]


@pytest.mark.parametrize("said", ["NCCL_DEBUG=INFO", "export NCCL_DEBUG=INFO", "$NCCL_DEBUG", "${NCCL_DEBUG}"])
def test_show_takes_a_variable_as_it_was_copied(said: str) -> None:
    assert run("show", said).stdout.startswith("NCCL_DEBUG\n  status        read by NCCL")


def test_show_tells_the_names_that_begin_so() -> None:
    done = run("show", "NCCL_SOCKET_*")
    assert "NCCL_SOCKET_FAMILY, NCCL_SOCKET_IFNAME" in done.stdout and done.returncode == 2


def test_of_a_release_newer_than_all_that_are_known_that_is_said() -> None:
    done = run("show", "NCCL_DEBUG", "--nccl-version", "3.1.0")
    assert f"as far as {NEWEST_NCCL}" in " ".join(done.stdout.split())
    assert json.loads(run("show", "NCCL_DEBUG", "--nccl-version", "3.1", "--format", "json").stdout)["newer_than"]
    assert "newer than all that is known" in run("lint", "--nccl-version", "3.1.0").stdout
    assert "PyTorch 9.0 (newer than all that" in run("lint", "--torch-version", "9.0").stdout
    assert "newer" not in run("lint", "--nccl-version", NEWEST_NCCL, "--torch-version", NEWEST_TORCH).stdout


def test_lint_of_standard_input() -> None:
    result = typed("env lint -", input="export NCCL_SOCKET_IFNMAE=eth0\n")
    assert result.exit_code == 11 and "did you mean NCCL_SOCKET_IFNAME" in result.stdout
    nothing = typed("env lint -", input="\n")
    assert nothing.exit_code == 3 and "- is empty" in nothing.stdout


def test_a_pattern_is_no_variable(tmp_path: Path) -> None:
    assert "is not there" in run("lint", "NCCL_*.sh").stdout
    assert "env show NCCL_DEBUG" in run("lint", "NCCL_DEBUG").stderr


def test_a_directory_without_scripts_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"")
    done = run("lint", str(tmp_path))
    assert done.returncode == 3 and "holds no file that looks like a script" in " ".join(done.stdout.split())


def test_lint_of_this_environment() -> None:
    done = run("lint", NCCL_SOCKET_IFNAME="^docker0", NCCL_DEBUG="WARN")
    assert done.returncode == 11 and "ifname-admits-loopback" in done.stdout
    assert run("lint", NCCL_DEBUG="WARN").returncode == 0
    assert run("lint", NCCL_IB_DISABLE="1").returncode == 0
    assert run("lint", "--strict", NCCL_IB_DISABLE="1").returncode == 10


def test_lint_says_which_source_won(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_CROSS_NIC=1\nNCCL_DEBUG=INFO\n")
    done = run("lint", "--format", "json", NCCL_CROSS_NIC="0", HOME=str(tmp_path))
    (found,) = [item for item in json.loads(done.stdout)["findings"] if item["id"].endswith("source-order")]
    assert found["line"] == 1 and "NCCL_CROSS_NIC=1" in found["title"] and "loses against 0" in found["title"]
    other = tmp_path / "job.conf"
    other.write_text("NCCL_CROSS_NIC=0\n")
    done = run("lint", "--format", "json", NCCL_CONF_FILE=str(other), HOME=str(tmp_path))
    assert str(tmp_path / ".nccl.conf") not in json.loads(done.stdout)["looked_at"]
    assert str(other) in json.loads(done.stdout)["looked_at"]


def test_lint_file_json() -> None:
    done = run("lint", "--file", str(CASES / "bad" / "folklore.sh"), "--format", "json", "--nccl-version", "2.21.5")
    result = json.loads(done.stdout)
    assert done.returncode == 11
    assert result["summary"]["fail"] == 2
    assert {item["line"] for item in result["findings"]} >= {4, 5, 6, 7, 8, 9}
    assert all(item["playbook"] and item["evidence"] for item in result["findings"])


def test_lint_log_takes_the_version_from_it(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "gpu01:1:1 [0] NCCL INFO NCCL version 2.18.5+cuda12.2\n"
        "gpu01:1:2 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.\n"
        "gpu01:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"
    )
    done = run("lint", "--log", str(log), "--format", "json")
    result = json.loads(done.stdout)
    assert result["judged_for"].startswith("NCCL 2.18.5 (from ")
    assert [(item["name"], item["severity"]) for item in result["findings"]] == [
        ("NCCL_IB_GID_INDEX", "info"),
        ("NCCL_P2P_DISABLE", "warn"),
    ]


@pytest.mark.parametrize(
    ("release", "line", "status"),
    [
        ("2.7.8", "NCCL_IB_TIMEOUT set by environment to 22.", 4),
        ("2.7.8", "NCCL_SOCKET_IFNAME set by environment to eth0", 0),
        ("2.7.8", "NCCL_IB_TIMEOUT set by environment to 22.\nNCCL INFO NCCL_IB_HCA set by environment to mlx5", 0),
        ("2.16.5", "NCCL_IB_TIMEOUT set by environment to 22.", 0),
    ],
)
def test_a_log_in_which_texts_are_not_told_is_no_pass(tmp_path: Path, release: str, line: str, status: int) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"NCCL version {release}+cuda11.0\ngpu01:1:2 [0] NCCL INFO {line}\n")
    done = run("lint", "--log", str(log))
    assert done.returncode == status and ("NCCL_DEBUG_SUBSYS=INIT,ENV" in done.stdout) == (status == 4)
    assert done.stdout.startswith("? nothing wrong in what could be read" if status else "✓ nothing wrong;")


def test_fix_shows_a_diff_and_writes_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export NCCL_TIMEOUT=1800\npython a.py\n")
    done = run("lint", "--file", str(path), "--fix")
    assert "-export NCCL_TIMEOUT=1800" in done.stdout and not (tmp_path / "a.sh.fixed").exists()
    run("lint", "--file", str(path), "--fix", "--write")
    assert "taken out" in (tmp_path / "a.sh.fixed").read_text()
    assert path.read_text() == "export NCCL_TIMEOUT=1800\npython a.py\n"
    done = run("lint", "--file", str(path), "--fix", "--in-place")
    assert "taken out" in path.read_text() and f"wrote {path}" in done.stderr


def test_fix_says_what_it_could_not_read_and_where_nothing_is_to_correct(tmp_path: Path) -> None:
    right, wrong = tmp_path / "a.sh", tmp_path / "b.sh"
    right.write_text("export NCCL_DEBUG=INFO\n")
    done = run("lint", str(right), str(wrong), "--fix", "--in-place")
    assert done.returncode == 4 and not done.stdout
    assert f"{wrong} is not there" in done.stderr and "nothing that --fix corrects" in done.stderr
    done = run("lint", str(wrong), "--fix")
    assert done.returncode == 3 and "nothing that" not in done.stderr
    right.write_bytes(b"export NCCL_TIMEOUT=1 # \xff\n")
    done = run("lint", str(right), "--fix", "--in-place")
    assert "left for you" in done.stderr and "wrote" not in done.stderr


def test_remote_text_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export NCCL_SOCKET_IFNAME='\x1b]0;owned\x07^docker0\x9b2J' NCCL_TIMEOUT=\x1b[31m1\n")
    done = run("lint", "--file", str(path))
    assert "\x1b" not in done.stdout and "\x9b" not in done.stdout and "\x07" not in done.stdout
    path.write_text("export NCCL_ALGO='a\x9bb'\n")
    done = run("lint", "--file", str(path), "--fix")
    assert "left for you" in done.stderr and "\x9b" not in done.stderr


def test_a_corrected_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export NCCL_TIMEOUT=1800\n")
    (tmp_path / "a.sh.fixed").symlink_to("/dev/null")
    done = run("lint", "--file", str(path), "--fix", "--write")
    assert done.returncode == 1 and "symbolic link" in done.stderr and "wrote" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["show", "NCCL_DEBUG", "--nccl-version", "latest"],
        ["lint", "--nccl-version", "x"],
        ["lint", "--write"],
        ["lint", "--fix"],
        ["lint", "-", "--fix"],
        ["lint", "a.sh", "--fix", "--write", "--in-place"],
        ["lint", "NCCL_DEBUG=INFO"],
        ["show", ""],
        ["lint", "--from", "/nonexistent.ndb"],
        ["recommend", "--from", "/nonexistent.ndb"],
        ["recommend", "--nccl-version", "x"],
        ["tune", "gemm"],
    ],
)
def test_bad_options_are_said(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2 and done.stderr and "Traceback" not in done.stderr


def test_recommend_for_this_machine() -> None:
    done = run("recommend", "--format", "json")
    page = json.loads(done.stdout)
    assert done.returncode in (0, 4) and page["left_alone"] and "NCCL_ALGO" not in str(page["set"])


@pytest.mark.parametrize("hosts", [["--hosts", "hostfile"], ["-H", "a,b"], ["--slurm"]])
@pytest.mark.parametrize("command", ["lint", "recommend"])
def test_a_bundle_and_hosts_together_are_refused(command: str, hosts: list[str]) -> None:
    done = run(command, "--from", "/nonexistent.ndb", *hosts)
    assert done.returncode == 2 and f"{hosts[0]} would change nothing" in done.stderr


def test_a_bundle_in_which_no_host_was_reached_has_nothing_to_recommend_from(tmp_path: Path) -> None:
    file = tmp_path / "none.ndb"
    bundles.write(Bundle(BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(stages=("interfaces",)), ()), file)
    done = run("recommend", "--from", str(file))
    assert "no host could be reached" in done.stderr and done.returncode == 3


@pytest.mark.parametrize("format", ["json", "text", "shell"])
def test_recommend_tells_of_a_host_that_was_lost(tmp_path: Path, format: str) -> None:
    """One that fell silent in the middle was left out without a word, and nothing was said to need setting."""
    silent = "the agent answered at first, and then not a word for 20 s"
    hosts = HostFacts("gpu01", Reach(ReachOutcome.OK)), HostFacts("gpu02", Reach(ReachOutcome.TIMED_OUT, silent))
    file = tmp_path / "lost.ndb"
    bundles.write(Bundle(BUNDLE_SCHEMA, "test", "2026-11-21T00:00:00+00:00", Plan(), hosts), file)
    done = run("recommend", "--from", str(file), "--format", format, "--nccl-version", "2.17.1")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 4 and f"gpu02 was not reached: {silent}" in said, said
    assert format == "shell" or "NCCL 2.17.1" in said, said


def test_a_quoted_line_that_is_cut_says_so(tmp_path: Path) -> None:
    for name, filling in (("whole.sh", 10), ("cut.sh", 200)):
        file = tmp_path / name
        file.write_text(f"export NCCL_TIMEOUT={'9' * filling}\n")
        quotes = [line for line in run("lint", str(file)).stdout.splitlines() if "export NCCL_TIMEOUT=" in line]
        assert quotes and all(line.endswith("…") == (name == "cut.sh") for line in quotes)


def test_what_was_not_read_is_not_said_to_be_right(tmp_path: Path) -> None:
    good = tmp_path / "good.sh"
    good.write_text("export NCCL_DEBUG=WARN\n")
    alone, beside = (run("lint", "--file", str(good), *more) for more in ((), ("--file", str(tmp_path / "absent.sh"))))
    assert alone.returncode == 0 and alone.stdout.startswith("✓ nothing wrong;")
    assert beside.returncode == 4 and beside.stdout.startswith("? nothing wrong in what could be read;")
