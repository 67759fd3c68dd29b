"""``nccl-doctor hang`` on a real job of four ranks on three hosts, which is made to hang in one way after the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from . import machine
from .lab import Lab

PROGRAM = Path(__file__).parent / "programs" / "training.py"
PLACES = {0: "gpu01", 1: "gpu01", 2: "gpu02", 3: "gpu03"}


def runs(pid: int) -> bool:
    """Whether a thread of a rank, or of a worker of it, has a processor or waits for one: on a busy machine that takes long."""
    with contextlib.suppress(psutil.Error):
        rank = psutil.Process(pid)
        tasks = [
            task for process in (rank, *rank.children()) for task in Path(f"/proc/{process.pid}/task").glob("*/stat")
        ]
        with contextlib.suppress(OSError):  # one ended meanwhile: somebody runs
            return any(task.read_text().rpartition(")")[2].split()[0] == "R" for task in tasks)
        return True
    return False


class Training:
    """The job: four ranks that take a step each 20 ms or so."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.port = 29577 + lab.number  # beside another worker's job, which is seen here as well
        self.job = f"gpu01:{self.port}"
        self.place = Path(tempfile.mkdtemp(prefix="training-", dir=lab.shared))
        for name in ("checkpoint", "data"):
            os.mkfifo(self.place / name)
        self.pids = {rank: self._start(rank, host) for rank, host in PLACES.items()}
        machine.wait_for(lambda: all(self.steps(rank) > 2 for rank in PLACES), "steps of all ranks", 120)

    def _start(self, rank: int, host: str) -> int:
        local = [other for other, at in PLACES.items() if at == host]
        variables = {
            "RANK": rank, "WORLD_SIZE": len(PLACES), "LOCAL_RANK": local.index(rank), "LOCAL_WORLD_SIZE": len(local),
            "MASTER_ADDR": "gpu01", "MASTER_PORT": self.port, "OMP_NUM_THREADS": 1, "SECRET_TOKEN": "hunter2",
        }  # fmt: skip
        words = [f"{name}={value}" for name, value in variables.items()]
        return self.lab.spawn(host, ["env", *words, sys.executable, str(PROGRAM), str(self.place)])

    def steps(self, rank: int) -> int:
        """The steps that a rank has taken."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.place / f"steps-{rank}").read_text())
        return 0

    def order(self, rank: int, what: str) -> None:
        """Tell a rank what to do, and wait until the others wait for it."""
        file = self.place / f"rank-{rank}"
        file.write_text(what)
        machine.wait_for(lambda: not file.exists(), "the rank to take its order", 120)
        self.wait_until_it_stands()

    def wait_until_it_stands(self) -> None:
        """Until no rank has taken a step for two seconds, a hundred times as long as one takes, or waits for a processor."""

        def stands() -> bool:
            before = [self.steps(rank) for rank in PLACES]
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                if any(map(runs, self.pids.values())):
                    return False
                time.sleep(0.1)
            return before == [self.steps(rank) for rank in PLACES]

        machine.wait_for(stands, "the job to stand", 120)

    def goes_on(self) -> None:
        """All ranks take steps again."""
        before = {rank: self.steps(rank) for rank in PLACES}
        machine.wait_for(lambda: all(self.steps(rank) > before[rank] for rank in PLACES), "further steps", 120)

    def hang(self, *options: str, hosts: str = "gpu[01-03]") -> dict[str, Any]:
        """What ``hang`` says of it, as JSON."""
        done = self.told(*options, "--format", "json", hosts=hosts)
        assert done.stdout, done.stderr
        assert "hunter2" not in done.stdout
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["exit_code"] == done.returncode
        return answer

    def told(self, *options: str, hosts: str = "gpu[01-03]") -> subprocess.CompletedProcess[str]:
        """What ``hang`` prints. All hosts of a lab share /proc, so that jobs beside it are seen, too."""
        return self.lab.run(["nccl-doctor", "hang", "-H", hosts, "--interval", "0.5", "--job", self.job, *options])

    def bearing(self, rank: int) -> list[int]:
        """The processes, on whatever host, that bear this rank of the job."""
        words = {f"RANK={rank}".encode(), f"MASTER_PORT={self.port}".encode()}
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if place.name == str(self.pids[rank]) or words <= set((place / "environ").read_bytes().split(b"\0")):
                    found.append(int(place.name))
        return found

    def whole(self) -> bool:
        """Whether all its ranks live."""
        return all(Path(f"/proc/{pid}").exists() for pid in self.pids.values())

    def end(self) -> None:
        """Kill all ranks and what they started."""
        left = [process.pid for host in sorted(set(PLACES.values())) for process in self.lab.processes(host)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        machine.end(left)


@pytest.fixture(scope="module")
def jobs(whole_lab: Lab) -> Iterator[list[Training]]:
    """The job that is running, once a test has asked for one."""
    running: list[Training] = []
    yield running
    whole_lab.clear_faults()
    for job in running:
        job.end()


@pytest.fixture
def training(whole_lab: Lab, jobs: list[Training]) -> Training:
    """One job for the tests here: each brings it back to work, or what is left of it is replaced."""
    if jobs and not jobs[-1].whole():
        jobs.pop().end()
    if not jobs:
        jobs.append(Training(whole_lab))
    return jobs[-1]


def held(answer: dict[str, Any], id: str, host: str, rank: int) -> dict[str, Any]:
    """The first finding; it blames this rank on this host."""
    assert answer["verdict"] == "held", (answer["sentence"], answer["findings"])
    found: dict[str, Any] = answer["findings"][0]
    assert (found["id"], found["hosts"]) == (id, [host]), answer["findings"]
    assert [place.get("rank") for place in found["places"]] == [rank]
    assert not of_the_job(answer["findings"][1:]), answer["findings"]
    return found


def of_the_job(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is told of the job, but for consequences. This machine's memory and kernel log are its own: others have killed there."""
    return [item for item in findings if item["id"].startswith(("hang.", "app.")) and not item.get("folded_under")]


def text(found: dict[str, Any]) -> str:
    return found["title"] + " " + " ".join(item["text"] for item in found["evidence"])


def test_a_job_that_works_is_not_accused(training: Training) -> None:
    answers: list[dict[str, Any]] = []

    def moves() -> bool:
        answers.append(training.hang("--interval", "2"))
        return bool(answers[-1]["verdict"] == "moves")

    machine.wait_for(moves, "a step while it is looked at", 120)  # it may be slow beside other tests
    answer = answers[-1]
    assert answer["exit_code"] == 4 and not of_the_job(answer["findings"]), answer
    assert [(row["rank"], row["host"], row["pid"]) for row in answer["ranks"]] == [
        (rank, PLACES[rank], training.pids[rank]) for rank in PLACES
    ]
    assert answer["jobs"][0]["moved_bytes"] > 10_000
    training.goes_on()


def test_a_stopped_rank_live_and_from_what_was_saved(training: Training, tmp_path: Path) -> None:
    saved = tmp_path / "hang.ndb"
    os.kill(training.pids[2], signal.SIGSTOP)
    try:
        training.wait_until_it_stands()
        console = training.told("--save", str(saved))
    finally:
        os.kill(training.pids[2], signal.SIGCONT)
    again = training.lab.run(["nccl-doctor", "hang", "--from", str(saved), "--job", training.job, "--format", "json"])
    found = held(json.loads(again.stdout), "hang.stopped", "gpu02", 2)
    assert "3 other ranks wait in all_reduce" in found["title"] and "state T" in text(found)
    assert console.returncode == 11 and f"on gpu02: kill -CONT {training.pids[2]}" in console.stdout
    training.goes_on()


def test_a_rank_that_sleeps_while_the_others_wait(training: Training) -> None:
    training.order(3, "sleep")
    found = held(training.hang(), "hang.elsewhere", "gpu03", 3)
    assert "sleeps in evaluate_alone (training.py:" in found["title"] and "no byte moved" in text(found)
    without = held(training.hang("--no-stacks"), "hang.elsewhere", "gpu03", 3)
    assert "nanosleep" in without["title"] and without["confidence"] <= 0.6
    os.kill(training.pids[3], signal.SIGUSR1)
    training.goes_on()


def test_a_checkpoint_to_a_pipe_that_nobody_reads_and_a_py_spy_that_is_lent(training: Training) -> None:
    training.order(2, "checkpoint")
    bare = ("--python", "/usr/bin/python3", "--env-setup", "export PATH=/usr/bin:/bin")  # a host without py-spy
    found = held(training.hang(*bare), "hang.elsewhere", "gpu02", 2)
    assert "FIFO" in found["title"] and "save_checkpoint (training.py:" in found["title"]
    (training.place / "checkpoint").read_bytes()
    training.goes_on()


def test_a_loader_worker_that_hangs(training: Training) -> None:
    (training.place / "data-1").touch()
    training.wait_until_it_stands()
    found = held(training.hang(), "hang.dataloader", "gpu01", 1)
    assert "read_sample (training.py:" in found["title"]
    (training.place / "data-1").unlink()
    (training.place / "data").write_bytes(b"")
    training.goes_on()


def test_a_network_that_drops_what_was_established(training: Training) -> None:
    with training.lab.fault("lossy-link", "gpu02", percent=99):
        training.wait_until_it_stands()
        answer = training.hang("--interval", "1")
    assert answer["verdict"] == "held", answer
    found = answer["findings"][0]
    # Where the ranks of one other host alone had sent to gpu02, nothing tells which end it is: both are named.
    assert found["id"] == "hang.network" and "gpu02" in found["hosts"] and len(found["hosts"]) <= 2, answer["findings"]
    assert "retransmissions unanswered" in text(found) and "not acknowledged" in text(found)
    training.goes_on()


def test_another_user_is_told_that_it_may_not_look(training: Training) -> None:
    place = "command=env HOST={host} setpriv --reuid=65534 --regid=65534 --clear-groups"
    answer = training.hang("--transport", place, "--python", "/usr/bin/python3", hosts="gpu01")
    assert answer["verdict"] == "not-known" and answer["exit_code"] == 4 and "may not be read" in answer["sentence"]


def test_a_rank_that_was_killed(training: Training) -> None:
    (training.place / "last-wait").touch()
    training.wait_until_it_stands()
    os.kill(training.pids[1], signal.SIGKILL)
    machine.wait_for(lambda: not training.bearing(1), "the end of the rank and of what it had started")
    found = held(training.hang(), "hang.rank-gone", "gpu01", 1)
    assert "LOCAL_WORLD_SIZE=2, and only rank 0 found" in text(found)


def test_a_rank_that_waits_for_a_message_which_nobody_sends(training: Training) -> None:
    training.order(2, "message")
    try:
        answer = training.hang()
    finally:
        training.end()  # nothing brings it back to work
    assert answer["verdict"] == "held", (answer["sentence"], answer["findings"])
    found = answer["findings"][0]
    assert found["id"] == "app.collective-mismatch" and found["confidence"] == 0.85, answer["findings"]
    assert [(place["host"], place["rank"]) for place in found["places"]] == [("gpu02", 2), ("gpu03", 3)]
    assert "rank 2 waits in recv from 3 at receive (training.py:" in found["title"]
    assert "rank 3 in all_reduce at leave (training.py:" in found["title"]
    assert not of_the_job(answer["findings"][1:]), answer["findings"]
