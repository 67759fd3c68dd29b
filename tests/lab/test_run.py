"""``run`` and ``preflight -- COMMAND`` with real jobs: one that hangs, one that fails by itself, one whose host fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from . import machine
from .lab import Lab

PROGRAM = """
import sys, time
import torch, torch.distributed as dist

def evaluate():
    while True:
        time.sleep(3600)

dist.init_process_group("gloo")
rank, ones = dist.get_rank(), torch.ones(4)
dist.all_reduce(ones)
print("step 1", flush=True)
if rank == 1 and sys.argv[1] == "raise":
    raise KeyError("dgo")
if rank == 1:
    evaluate()
dist.all_reduce(ones)
"""
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Two ranks; the second one sleeps for ever, or raises."""
    path = tmp_path / "training.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_rank_that_holds_a_silent_job_is_named_and_the_job_ended(lab: Lab, tmp_path: Path, program: str) -> None:
    """Its start, which takes seconds without a word, is no hang."""
    words = ("--silence", "2", "--on-hang", "end", "--keep", str(tmp_path / "kept"))
    done = lab.run(["nccl-doctor", "run", *words, "--", *TORCHRUN, program, "sleep"], timeout=240)
    assert done.returncode == 11 and "step 1" in done.stdout, done.stderr
    assert "sleeps in evaluate (training.py:7)" in done.stderr and "1 other rank waits in all_reduce" in done.stderr
    assert "two looks say the same: the job is told to end" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("nccl-doctor: the job hung: ")
    (directory,) = (tmp_path / "kept").iterdir()
    looks = sorted(directory.glob("hang-*.txt"), key=lambda path: int(path.stem.partition("-")[2]))
    told = [path.read_text() for path in looks]
    assert len(told) >= 2 and all("evaluate (training.py:7)" in text for text in told[-2:])
    assert len(list(directory.glob("hang-*.ndb"))) >= 2 and "step 1" in (directory / "job-output").read_text()


def test_a_rank_that_raises_would_raise_again_and_is_not_started_again(lab: Lab, tmp_path: Path, program: str) -> None:
    words = ("-H", "gpu01", "--profile", "quick", "--retries", "2", "--keep", str(tmp_path / "kept"))
    done = lab.run(["nccl-doctor", "preflight", *words, "--", *TORCHRUN, program, "raise"], timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("nccl-doctor: go: ") == 1
    assert "not started again: " in done.stderr and "KeyError" in done.stderr and "app.rank-exception" in done.stderr
    (directory,) = (tmp_path / "kept").iterdir()
    assert json.loads((directory / "explanation.json").read_text())["causes"][0]["id"] == "app.rank-exception"


def test_a_job_whose_host_fails_is_started_again_on_the_spare(lab: Lab, tmp_path: Path) -> None:
    script = (
        'echo "on $1"; if [ -e "$2/first" ]; then exit 0; fi; touch "$2/first"; '
        'until [ -e "$2/broken" ]; do sleep 0.05; done; '
        "echo 'NCCL WARN NET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129' >&2; exit 1"
    )
    words = ("-H", "gpu[01-03]", "--profile", "quick", "--min-hosts", "2", "--spares", "1", "--retries", "1")
    job = lab.popen(
        ["nccl-doctor", "preflight", *words, "--", "sh", "-c", script, "x", "{hosts}", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        machine.wait_for(lambda: (tmp_path / "first").exists(), "the first attempt", 120)
        with lab.fault("small-shm", "gpu01"):
            (tmp_path / "broken").touch()
            out, err = job.communicate(timeout=240)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, err
    assert "\non gpu01,gpu02\n" in out and "\non gpu02,gpu03\n" in out
    assert "attempt 2 of 2 on gpu[02-03], without gpu01: sys.shm" in err and "not started again" not in err


def test_a_rank_that_plain_ssh_started_elsewhere_is_named_and_no_attempt_starts_beside_it(lab: Lab) -> None:
    rank = "env NCCL_DOCTOR_RUN=$NCCL_DOCTOR_RUN RANK=1 WORLD_SIZE=2 MASTER_ADDR=gpu01 MASTER_PORT=29500 sleep 600"
    script = f'ssh -o BatchMode=yes gpu02 "{rank} > /dev/null 2>&1 < /dev/null &"; exit 3'
    words = ("-H", "gpu[01-02]", "--profile", "quick", "--retries", "1")
    job = lab.popen(
        ["nccl-doctor", "preflight", *words, "--", "sh", "-c", script],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert job.stderr is not None
        told = ""
        while "waiting up to" not in told and (line := job.stderr.readline()):
            told += line
        os.kill(job.pid, signal.SIGINT)  # whoever looks on need not wait; the rank stays
        told += job.stderr.read()
        job.wait(120)
    finally:
        job.kill()
        job.wait()
    named = re.search(r"rank 1 still runs on gpu02; to end it, there: kill (\d+)\n", told)
    assert named, told
    lab.on("gpu02", ["kill", named.group(1)], check=True)
    assert job.returncode == 3 and told.count("nccl-doctor: go: ") == 1
    assert told.endswith("nccl-doctor: not started again: ranks of this attempt still run\n")
