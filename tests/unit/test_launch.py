"""What ``preflight`` does with the output of a job that failed: explained within a limit, and not when told to end."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import typer

from nccl_doctor.cli import _launch, _output
from nccl_doctor.cli._guard import Following
from nccl_doctor.cli._output import Kept
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import EnvAdvice
from nccl_doctor.inventory import HostEntry, Inventory
from nccl_doctor.transport import descriptors

FOLLOWED = Following()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path)
    kept.write(b"RuntimeError: CUDA error: an illegal memory access was encountered\n")
    return kept


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Explaining takes for ever, in two processes; the file into which the second one's id is written."""
    told = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {tmp_path}/new; mv {tmp_path}/new {told}; wait"
    monkeypatch.setattr(_launch, "_explaining", lambda files: ["sh", "-c", script])
    return told


def gone(told: Path) -> bool:
    """Whether the process of this id has ended, or does soon: killed, it may take a moment to go."""
    state, until = Path(f"/proc/{told.read_text().strip()}/stat"), time.monotonic() + 60
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_the_job_has_the_limits_that_this_process_was_started_with(
    kept: Kept, capfd: pytest.CaptureFixture[str]
) -> None:
    """Many hosts need more descriptors here, and srun hands its limits on to the ranks."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        assert _launch._pass_through(["sh", "-c", "ulimit -n"], dict(os.environ), kept).status == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert capfd.readouterr().out.strip() == str(descriptors._AT_START)


def test_output_that_no_disk_took_is_not_told_as_if_it_were_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job-output").symlink_to("/dev/full")
    kept = Kept(tmp_path)
    kept.write(b"RuntimeError\n")
    _launch._explain(kept, _launch.Ended(1))
    told = f"printed nothing (as far as {tmp_path.parent} took it: No space left on device): there is nothing"
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("room", [40_000, 4_000], ids=["for-half", "for-little"])
def test_a_full_disk_loses_the_beginning_and_not_the_end(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last lines say why a job failed. The disk takes so many bytes, and the last write before it is full in part."""

    def write_all(sink: int, block: bytes) -> None:
        there = sum(path.stat().st_size for path in tmp_path.iterdir())
        taken = block[: max(0, room - there)]
        os.write(sink, taken)
        if len(taken) < len(block):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_output, "_write_all", write_all)
    monkeypatch.setattr(_output, "TAIL_BYTES", 1_000)
    kept = Kept(tmp_path)
    lines = [b"line %d\n" % number for number in range(20_000)]
    for number, line in enumerate(lines):
        kept.write(line)
        if number % 997 == 0 or number == len(lines) - 1:
            text = b"".join((tmp_path / name).read_bytes() for name in kept.files())
            least = min(900, sum(map(len, lines[: number + 1])))
            assert len(text) >= least and b"".join(lines[: number + 1]).endswith(text)
    assert kept.lost == "No space left on device" and len(text) > room // 3


def test_an_explanation_that_takes_too_long_is_ended(
    kept: Kept, endless: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_launch, "EXPLAIN_LIMIT_S", 0.3)
    _launch._explain(kept, _launch.Ended(1))
    assert "no end after 0.3 s: the job's output is not explained" in capfd.readouterr().err
    assert gone(endless)


def test_an_explanation_ends_at_once_when_told_to(kept: Kept, endless: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def tell() -> None:
        while not endless.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    _launch._explain(kept, _launch.Ended(1))
    assert "told to end: the job's output is not explained" in capfd.readouterr().err
    assert gone(endless) and signal.getsignal(signal.SIGTERM) is before


def test_what_is_exported_drives_no_terminal_and_reaches_the_job_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    advice = EnvAdvice("NCCL_SOCKET_IFNAME", "eth\x1b[2J", "\x1b]0;x\x07")
    command = ["sh", "-c", 'printf %s "$NCCL_SOCKET_IFNAME"']
    assert _launch.launch(command, (advice,), Inventory((HostEntry("a"),)), ("a",), FOLLOWED).status == 0
    told = capfd.readouterr()
    assert told.out == advice.value and "\x1b" not in told.err and "export NCCL_SOCKET_IFNAME='eth\\e[2J'" in told.err


def test_the_first_of_the_chosen_hosts_is_the_inputs_first(capfd: pytest.CaptureFixture[str]) -> None:
    """By name, node10 comes before node9: srun's first task is on node9, and the others asked node10 for the master."""
    inventory = Inventory(tuple(map(HostEntry, ("node9", "node10", "node8"))))
    script = 'echo "$1 $NCCL_DOCTOR_HOSTS"; cat "$2"'
    command = ["sh", "-c", script, "x", "{hosts}", "{hostfile}"]
    assert _launch.launch(command, (), inventory, ("node10", "node9"), FOLLOWED).status == 0
    assert capfd.readouterr().out == "node9,node10 node9,node10\nnode9\nnode10\n"


@pytest.mark.parametrize(("hosts", "value"), [(("a", "c"), "eth1"), (("c",), "mine"), ((), "eth1")])
def test_what_only_hosts_need_that_were_left_out_is_not_exported(
    hosts: tuple[str, ...], value: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    advice = EnvAdvice("GLOO_SOCKET_IFNAME", "eth1", "its own name is loopback", hosts=hosts)
    assert (
        _launch.launch(
            ["printenv", advice.name], (advice,), Inventory((HostEntry("a"), HostEntry("b"))), ("a", "b"), FOLLOWED
        ).status
        == 0
    )
    told = capfd.readouterr()
    assert told.out == f"{value}\n" and (advice.reason in told.err) == (value == "eth1")


def test_what_lies_in_the_working_directory_is_not_what_explains(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    _launch._explain(kept, _launch.Ended(1))
    told = capfd.readouterr().err
    assert (
        "\n     job-output:1  RuntimeError: CUDA error" in told and "✗ a kernel" in told
    )  # no rank out of a file's name
    assert "illegal" in told and "not this one" not in told and "not explained" not in told


def test_without_a_place_for_its_hostfile_no_job_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(typer.Exit) as stopped:
        _launch.launch(["touch", str(tmp_path / "ran")], (), Inventory((HostEntry("a"),)), ("a",), FOLLOWED)
    assert stopped.value.exit_code == ExitCode.INTERNAL_ERROR and not (tmp_path / "ran").exists()
    assert "No such file or directory; name a directory for them by TMPDIR" in capsys.readouterr().err
