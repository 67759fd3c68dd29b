"""``nccl-doctor bench`` over real hosts, with gloo: right answers, and every trouble named with its host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .lab import Lab, Process

# Links are measured here, and torch starts on every host.
pytestmark = pytest.mark.alone

BENCH = ["nccl-doctor", "bench"]
HEALTHY, FINDINGS, INTERRUPTED = 0, 11, 130


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON that a bench printed."""
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bench(lab: Lab, *options: str, code: int = HEALTHY) -> dict[str, Any]:
    """Run over all of the lab's hosts; the outcome."""
    done = lab.run([*BENCH, *options, "--hosts", str(lab.hostfile), "--format", "json"], timeout=180)
    assert done.returncode == code, done.stderr + done.stdout[-3000:]
    return document(done)


def ids(found: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Findings as (id, hosts)."""
    return [(item["id"], tuple(item["hosts"])) for item in found["findings"]]


def ranks(lab: Lab, host: str) -> list[Process]:
    """The ranks' processes on a host: the Pythons that run the bootstrap."""
    return [process for process in lab.processes(host) if "importlib" in " ".join(process.arguments or ())]


def test_every_collective_over_four_hosts(lab: Lab) -> None:
    found = bench(lab, "all", "--sizes", "1000,256K", "--both", "--iters", "2", "--warmup", "1", "--time-budget", "100")
    measured = found["results"]["measurements"]
    assert {item["collective"] for item in measured} == {
        "allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "sendrecv", "gather", "scatter",
    }  # fmt: skip
    assert all(item["wrong"] == 0 for item in measured) and len(measured) == 28
    assert [share["name"] for share in found["world"]["shares"]] == lab.hostnames
    assert [record["host"] for record in found["results"]["ranks"]] == lab.hostnames
    assert found["path"]["proved"] and set(found["path"]["gloo"]["interfaces"]) == {"eth0"}
    assert len(found["results"]["links"]) == 6 and found["ceiling"]["measured"]
    assert ids(found) == []


def test_the_slow_host_is_named(lab: Lab) -> None:
    with lab.fault("slow-link", "gpu03"):
        found = bench(lab, "allreduce", "--sizes", "64K", "--time-budget", "1", "--min-busbw", "0.1", code=FINDINGS)
    assert ("collectives.slow-host", ("gpu03",)) in ids(found)
    assert found["verdicts"][0]["kind"] == "slow"


def test_of_two_hosts_the_pair_is_named_and_slots_are_ranks(lab: Lab, tmp_path: Path) -> None:
    two = tmp_path / "hosts"
    two.write_text("gpu01 slots=2\ngpu03\n")
    with lab.fault("slow-link", "gpu03"):
        done = lab.run([*BENCH, "allreduce", "--sizes", "64K", "--iters", "2", "--hosts", str(two), "--format", "json"])
    assert done.returncode == HEALTHY, done.stderr
    found = document(done)
    assert ids(found) == [("collectives.slow-pair", ("gpu01", "gpu03"))]
    assert "two hosts cannot tell which" in found["findings"][0]["title"]
    assert [(share["name"], share["ranks"]) for share in found["world"]["shares"]] == [("gpu01", 2), ("gpu03", 1)]
    assert found["world"]["ranks_why"] == "slots of the host list, else one a host"


@contextlib.contextmanager
def in_the_middle(lab: Lab, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A bench that would run for long, with all ranks in the middle of their measurements."""
    argv = [*BENCH, "allreduce", "--sizes", "1K,256K", "--iters", "100000", "--timeout", "5", "--time-budget", "1000"]
    process = lab.popen(
        [*argv, *options, "--hosts", str(lab.hostfile), "--format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("first-collective"):
                break
        assert seen and seen[-1].startswith("first-collective"), "".join(seen)
        time.sleep(1.5)
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess([], process.returncode, out, err)


@pytest.mark.parametrize(
    ("how", "id"), [(signal.SIGKILL, "collectives.rank-died"), (signal.SIGSTOP, "collectives.rank-stopped")]
)
def test_a_rank_that_dies_or_stops_is_named(lab: Lab, how: signal.Signals, id: str) -> None:
    with in_the_middle(lab) as process:
        (victim,) = ranks(lab, "gpu03")
        os.kill(victim.pid, how)
        done = ended(process)
    assert done.returncode == FINDINGS
    assert ids(document(done)) == [(id, ("gpu03",))]


def test_a_host_that_vanishes_is_named(lab: Lab) -> None:
    with in_the_middle(lab) as process, lab.fault("host-vanishes", "gpu03"):
        done = ended(process, 60.0)  # it waited for over 100 s before hosts had to answer pings
    assert done.returncode == FINDINGS
    assert ids(document(done)) == [("collectives.host-lost", ("gpu03",))]


def test_a_host_that_answers_no_connection_is_named_and_not_those_that_ask(lab: Lab) -> None:
    with lab.fault("port-dropped", "gpu02"):
        found = bench(lab, "allreduce", "--sizes", "64K", "--timeout", "6", code=FINDINGS)
    assert ids(found) == [("collectives.stuck.process-group", ("gpu02",))]


def test_ctrl_c_prints_what_was_measured(lab: Lab) -> None:
    with in_the_middle(lab, "--sizes", "1K,4K,8M", "--iters", "500") as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("allreduce       1K"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        done = ended(process, 20.0)
    assert done.returncode == INTERRUPTED
    found = document(done)
    assert found["results"]["measurements"][0]["size"] == 1024
    assert found["path"]["proved"] and not found["complete"]


def test_a_killed_controller_leaves_no_rank(lab: Lab) -> None:
    with in_the_middle(lab) as process:
        assert all(ranks(lab, host) for host in lab.hostnames)
        process.kill()
        process.wait()
    limit = time.monotonic() + 25.0
    while time.monotonic() < limit and any(ranks(lab, host) for host in lab.hostnames):
        time.sleep(0.1)
    assert not any(ranks(lab, host) for host in lab.hostnames)


def test_a_host_that_cannot_take_part_stops_everything(lab: Lab) -> None:
    with lab.fault("sshd-down", "gpu02"):
        done = lab.run([*BENCH, "allreduce", "--hosts", str(lab.hostfile)])
    assert done.returncode == 3 and "gpu02: nothing listens on port 22" in done.stderr and not done.stdout


@pytest.mark.parametrize("options", [("--sizes", "1X"), ("--dtype", "float31"), ("--backend", "mpi")])
def test_bad_options_are_usage_errors(lab: Lab, options: Sequence[str]) -> None:
    done = lab.run([*BENCH, "allreduce", *options, "--hosts", str(lab.hostfile)])
    assert done.returncode == 2 and options[1] in done.stderr
