"""Real worlds of gloo ranks on this machine: right answers, wrong worlds, and ranks that die, stop or never come."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nccl_doctor.agent.collective import launch, patterns
from nccl_doctor.agent.collective.operations import OPERATIONS, Checker, Me, allocate
from nccl_doctor.bench.model import Collector, Results
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.rules.collective_failures import failures
from tests.ports import free_port

# Times and processes are watched: these run one after the other, not beside other tests.
pytestmark = pytest.mark.alone

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]

Events = Callable[[dict[str, Any]], None]


def run(ranks: int, on_event: Events = lambda event: None, **plan: Any) -> tuple[Collectives, Results]:
    """A world of local ranks from start to end."""
    collector = Collector(ranks)

    def take(event: dict[str, Any]) -> None:
        collector.take(event)
        on_event(event)

    names = ("master_port", "python", "limit_s_all", "env", "env_per_rank", "world")
    own = {name: plan.pop(name) for name in names if name in plan}
    arguments = {
        "plan": {"limit_s": 30.0, "budget_s": 1.0, "iters": 3, "min_iters": 2, "warmup": 1, **plan},
        "world": own.get("world", ranks),
        "first_rank": 0,
        "local_world": ranks,
        "master_addr": "127.0.0.1",
        "master_port": own.get("master_port") or free_port(),
        "python": own.get("python", sys.executable),
        "env": own.get("env", {}),
        "env_per_rank": own.get("env_per_rank", {}),
        "limit_s": own.get("limit_s_all", 120.0),
    }
    data = launch.launch(arguments, take)
    return msgspec.convert(data, Collectives), collector.results()


def finding_ids(fact: Collectives) -> list[str]:
    return [item.id for item in failures({"here": fact})]


@pytest.fixture(scope="module")
def everything() -> tuple[Collectives, Results]:
    """All collectives, both ways, at odd sizes, on three ranks: one world, because torch takes seconds to start."""
    return run(
        3,
        collectives=list(OPERATIONS),
        sizes=[2, 1000, 65536, 1 << 20, 1 << 46],
        modes=["in", "out"],
        budget_s=60.0,
        links=1 << 16,
    )


def test_every_collective_gives_right_answers(everything: tuple[Collectives, Results]) -> None:
    fact, results = everything
    assert all(end.finished and end.exit == 0 for end in fact.ranks), [end.output for end in fact.ranks]
    measured = {(item.collective, item.mode, item.asked) for item in results.measurements}
    for operation in OPERATIONS.values():
        for mode in operation.modes:
            assert {(operation.name, mode, size) for size in (1000, 65536, 1 << 20)} <= measured
    assert [item for item in results.measurements if item.wrong != 0] == []
    assert all(item.spread.n == 3 and item.time_us > 0 for item in results.measurements)


def test_sizes_are_rounded_down_to_whole_parts_and_too_small_ones_are_skipped(
    everything: tuple[Collectives, Results],
) -> None:
    _, results = everything
    gathered = next(item for item in results.measurements if item.collective == "allgather" and item.asked == 1000)
    assert (gathered.size, gathered.count) == (996, 83)  # 83 floats for each of three ranks
    reasons = {item.collective: item.reason for item in results.skips if item.size == 2}
    assert reasons["allreduce"] == "smaller than one float32"
    assert reasons["alltoall"] == "smaller than one float32 for each of 3 ranks"


def test_the_world_and_the_path_are_told(everything: tuple[Collectives, Results]) -> None:
    fact, results = everything
    assert [record.rank for record in results.ranks] == [0, 1, 2]
    assert {record.pid for record in results.ranks} == {end.pid for end in fact.ranks}
    assert all(record.torch == str(torch.__version__) for record in results.ranks)
    paths = [event for event in fact.events if event["event"] == "path"]
    assert len(paths) == 3 and all(event["connections"] for event in paths)
    assert all(item["interface"] for event in paths for item in event["connections"])


def test_other_types_and_operations_and_what_gloo_refuses() -> None:
    for dtype, op in (("bfloat16", "avg"), ("int8", "prod")):
        fact, results = run(2, collectives=["allreduce", "reducescatter"], sizes=[5000], dtype=dtype, op=op)
        assert all(end.finished for end in fact.ranks), fact.ranks[0].output
        assert [item.wrong for item in results.measurements] == [0, 0], (dtype, op)
    fact, results = run(
        2, collectives=["allreduce", "broadcast"], sizes=[5000, 10000], dtype="float8_e4m3fn", check=False
    )
    assert all(end.finished for end in fact.ranks), fact.ranks[0].output
    refused = [item for item in results.skips if item.collective == "allreduce"]
    assert [item.size for item in refused] == [5000, 10000]  # each size that was asked for is told
    assert all("gloo does not do this" in item.reason for item in refused)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_check_counts_a_wrong_element(name: str) -> None:
    operation, count = OPERATIONS[name], 70000
    for rank in range(3):
        me = Me(rank, 3, 0)
        checker = Checker(torch, operation, "float32", "sum", me, 7)
        buffers = allocate(torch.empty, operation, "out", count, me)
        checker.prepare("out", buffers)
        expected = checker._expected(count)
        untouched = checker.wrong(buffers, count)
        assert untouched == sum(length for _, length, _ in expected)  # poison: nothing arrived, all of it is wrong
        for start, length, tile in expected:
            patterns.fill(buffers.receive[start : start + length], tile)
        assert checker.wrong(buffers, count) == 0
        if expected:
            buffers.receive[expected[-1][0] + 69999] += 1
            assert checker.wrong(buffers, count) == 1


def test_in_place_what_a_broadcast_leaves_as_it_was_is_wrong_on_all_but_the_root() -> None:
    operation, count = OPERATIONS["broadcast"], 70000
    for rank, wrong in ((0, 0), (1, count)):
        me = Me(rank, 2, 0)
        buffers = allocate(torch.empty, operation, "in", count, me)
        checker = Checker(torch, operation, "float32", "sum", me, 7)
        checker.prepare("in", buffers)
        assert checker.wrong(buffers, count) == wrong


def test_matrices_beyond_the_memory_are_refused_and_calls_beyond_the_time_skipped() -> None:
    fact, _ = run(2, gemm=200_000)
    (found,) = failures({"here": fact})
    assert found.id == "collectives.failed"
    assert re.search(r"matrices of 200000 x 200000: rank 0 on \S+: needs 596 GiB, and", found.title)
    fact, results = run(2, collectives=["allreduce"], sizes=[4 << 20], iters=10_000, budget_s=0.2, warmup=10)
    assert all(end.finished for end in fact.ranks)
    assert not results.measurements and "twice the time budget" in results.skips[0].reason
    _, results = run(2, collectives=["allreduce"], sizes=[4 << 20], budget_s=0.001, iters=0)
    assert [item.spread.n for item in results.measurements] == [2]  # min_iters, however long they take


def test_more_than_memory_is_skipped_with_the_reason(everything: tuple[Collectives, Results]) -> None:
    _, results = everything
    large = {(item.collective, item.mode): item.reason for item in results.skips if item.size == 1 << 46}
    assert set(large) == {(operation.name, mode) for operation in OPERATIONS.values() for mode in operation.modes}
    assert "needs 85.3 TiB" in large["allgather", "out"]
    assert max(item.asked for item in results.measurements) == 1 << 20


def _at_first_size(victim: int, act: Callable[[int], None]) -> Events:
    """Do something to this rank, given its process id, once the first size has been measured."""
    pids: dict[int, int] = {}

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "world":
            pids.update((record["rank"], record["pid"]) for record in event["ranks"])
        if event["event"] == "size" and pids:
            act(pids[victim])
            pids.clear()

    return on_event


def _limit_memory(pid: int, extra: int) -> None:
    """From outside, as a cgroup would: to what the process has mapped, and ``extra`` bytes more."""
    mapped = int(Path(f"/proc/{pid}/status").read_text().split("VmSize:")[1].split()[0]) * 1024
    resource.prlimit(pid, resource.RLIMIT_AS, (mapped + extra, resource.RLIM_INFINITY))


@pytest.mark.parametrize(("collective", "victim"), [("reducescatter", 2), ("gather", 0)])
def test_out_of_memory_in_a_collective_ends_that_size_and_not_the_run(collective: str, victim: int) -> None:
    """Both buffers fit, the copy that gloo makes inside its call does not; the other ranks are inside it already."""
    large = 64 << 20
    fact, results = run(
        3,
        _at_first_size(victim, lambda pid: _limit_memory(pid, int(1.9 * large))),
        collectives=[collective, "allreduce"],
        sizes=[1024, 2048, 4096, large, 8192],
        budget_s=30.0,
    )
    assert all(end.finished and end.exit == 0 for end in fact.ranks), [end.output for end in fact.ranks]
    skip = results.skips[0]
    assert (skip.collective, skip.size) == (collective, large)
    assert re.search(rf"^rank {victim} on .*: out of memory while it ran: .*can't allocate memory", skip.reason)
    after = [item for item in results.measurements if item.collective == collective and item.asked == 8192]
    assert [item.wrong for item in after] == [0]  # with the new process group
    assert {item.asked for item in results.measurements if item.collective == "allreduce"} >= {1024, 8192}
    assert not [item for item in results.measurements if item.wrong]


def test_one_rank_runs_alone() -> None:
    fact, results = run(1, collectives=["allreduce", "sendrecv"], sizes=[1024])
    assert fact.ranks[0].finished, fact.ranks[0].output
    assert results.world == 1 and [item.wrong for item in results.measurements] == [0]
    assert [(item.collective, item.reason) for item in results.skips] == [
        ("sendrecv", "one rank has no neighbour to send to")
    ]


def test_a_killed_rank_is_named() -> None:
    fact, results = run(
        3,
        _at_first_size(1, lambda pid: os.kill(pid, signal.SIGKILL)),
        collectives=["allreduce"],
        sizes=[1024, 1 << 22],
        iters=200,
        budget_s=30.0,
    )
    (found,) = failures({"here": fact})
    assert found.id == "collectives.rank-died" and "SIGKILL" in found.title
    assert [place.rank for place in found.places] == [1] and found.hosts == ("here",)
    assert len(results.measurements) >= 1  # what was measured until then is kept


def test_a_stopped_rank_is_named_within_the_limit() -> None:
    started = time.monotonic()
    fact, _ = run(
        2,
        _at_first_size(1, lambda pid: os.kill(pid, signal.SIGSTOP)),
        collectives=["allreduce"],
        sizes=[1024, 1 << 22],
        iters=200,
        budget_s=30.0,
        limit_s_all=600.0,
    )
    (found,) = failures({"here": fact})
    assert found.id == "collectives.rank-stopped" and [place.rank for place in found.places] == [1]
    assert time.monotonic() - started < 300.0
    waiting = next(end for end in fact.ranks if end.rank == 0)
    assert "in _measure" in waiting.output  # the stack of the rank that waited


def test_a_rank_that_never_comes_is_named() -> None:
    fact, _ = run(1, collectives=["allreduce"], sizes=[1024], limit_s=3.0, import_limit_s=8.0, world=2)
    found, *_ = failures({"here": fact})
    assert found.id == "collectives.stuck.store"
    assert "1 of 2 ranks never reached the store: [1]" in found.evidence[0].text


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_late_is_waited_for(late: int, tmp_path: Path) -> None:
    """A first import of torch over NFS is slow, and has a limit of its own: a step's limit of 2 s is not the others'."""
    code = f"import os, time\ntime.sleep(4.0 if os.environ.get('OWN_RANK') == '{late}' else 0.0)\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    fact, results = run(
        2,
        collectives=["allreduce"],
        sizes=[1024],
        limit_s=2.0,
        env={"PYTHONPATH": str(tmp_path)},
        env_per_rank={"OWN_RANK": "{rank}"},
    )
    assert finding_ids(fact) == [] and len(results.measurements) == 1


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        fact, _ = run(1, collectives=["allreduce"], sizes=[1024], limit_s=10.0, master_port=taken.getsockname()[1])
    (found,) = failures({"here": fact})
    assert found.id == "net.port-in-use.store" and found.fixes


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for tests')\n")
    fact, _ = run(1, collectives=["allreduce"], sizes=[4], env={"PYTHONPATH": str(tmp_path)})
    (found,) = failures({"here": fact})
    assert found.id == "sw.torch-missing.import-fails" and "no torch for tests" in found.evidence[0].text


def test_a_world_of_another_size_is_an_error() -> None:
    fact, _ = run(2, collectives=["allreduce"], sizes=[4], expect_world=3)
    assert finding_ids(fact) == ["collectives.world"]


def test_nothing_survives_the_launcher() -> None:
    """kill -9 of the process that runs the launcher: its ranks are gone within seconds."""
    code = (
        "import sys; from nccl_doctor.agent.collective import launch\n"
        "launch.launch({'plan': {'collectives': ['allreduce'], 'sizes': [1024], 'iters': 1000000, 'limit_s': 100},"
        "'world': 2, 'first_rank': 0, 'local_world': 2, 'master_addr': '127.0.0.1',"
        f"'master_port': {free_port()}}},"
        "lambda e: e['event'] == 'world' and print(*[r['pid'] for r in e['ranks']], flush=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=str(ROOT))
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    end = time.monotonic() + 30.0
    while time.monotonic() < end and any(_alive(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    return launch.process_state(pid) not in ("", "Z", "X")


def torchrun(*arguments: str) -> Iterator[str]:
    """The output of a real torchrun job of two ranks."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous]
    command += ["-m", "nccl_doctor.bench", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=dict(os.environ, PYTHONPATH=str(ROOT))
    )
    assert done.returncode == 0, done.stderr
    return iter(done.stdout.splitlines())


def test_under_torchrun_there_is_one_world_and_one_table() -> None:
    lines = list(torchrun("allreduce", "--sizes", "4K,1M", "--iters", "3", "--format", "nccl-tests"))
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [4096, 1 << 20]
    assert all(len(row) == 13 and row[8] == "0" and row[12] == "0" for row in rows)
    assert sum(line.startswith("#  Rank") for line in lines) == 2
    assert sum(line.startswith("# Avg bus bandwidth") for line in lines) == 1


def test_two_names_of_one_machine_are_told_as_that() -> None:
    """Over hosts the ranks are placed by us: their number on a machine is no trouble of the launcher's."""
    reached = ["-H", "a,b", "--transport", "command=env NAME={host}", "--ranks-per-host", "2"]
    command = [sys.executable, "-m", "nccl_doctor", "bench", "allreduce", "--sizes", "4K", "--iters", "3", *reached]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 11 and "net.wrong-interface.loopback-in-use" in done.stdout, done.stdout


def mpirun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A real Open MPI job on this machine, without an address or a port."""
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed (openmpi-bin)")
    command = ["mpirun", "--oversubscribe", "-np", str(ranks), sys.executable, "-m", "nccl_doctor.bench", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_under_mpirun_there_is_one_world_and_plain_text() -> None:
    done = mpirun(2, "allreduce", "--sizes", "4K,8K,64K", "--iters", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("2 ranks on 1 host" in line and "mpirun (Open MPI)" in line for line in lines) == 1
    assert [line.split()[0] for line in lines if line.endswith(" 0") and "%" in line] == ["4K", "8K", "64K"]
    assert "\x1b" not in done.stdout  # mpirun gives its ranks a terminal, and writes to a file


def test_a_failed_rank_fails_the_mpirun_job_with_its_reason() -> None:
    done = mpirun(2, "allreduce", "--sizes", "4K", "--dtype", "bfloat16", "--backend", "nccl")
    assert done.returncode == 11, done.stderr  # rank 0's: the others wait for it to tell
    assert "sw.no-nccl-backend" in done.stdout and "error in import" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "none of them started this process"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "MASTER_ADDR"),
        ({"PMIX_RANK": "0"}, "how many ranks"),
    ],
)
def test_no_silent_world_of_one(env: dict[str, str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor.bench", "allreduce"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and words in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--ranks-per-host", "3"), "3 ranks a host were asked for"), (("--master-port", "29501"), "is for mpirun")],
)
def test_what_the_launcher_decides_is_not_asked_for_in_vain(options: tuple[str, str], words: str) -> None:
    done = mpirun(2, "allreduce", "--sizes", "4K", "--iters", "3", *options)
    assert done.returncode and words in done.stdout + done.stderr


def test_a_full_disk_costs_no_result(tmp_path: Path) -> None:
    """No file can be written: under torchrun's variables NCCL's log then goes to stderr, and the run goes on."""
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "sys.argv = ['bench', 'allreduce', '--sizes', '4K', '--iters', '3', '--format', 'csv']\n"
        "runpy.run_module('nccl_doctor.bench', run_name='__main__', alter_sys=True)"
    )
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("allreduce,in,4096")
    assert list(tmp_path.iterdir()) == []


def test_a_job_told_to_end_tells_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """SIGTERM to all ranks, as at Slurm's time limit; the main thread is in a collective then."""
    saved = tmp_path / "run.json"
    command = [sys.executable, "-m", "nccl_doctor.bench", "allreduce", "--sizes", "4K,64M", "--iters", "900"]
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    other = subprocess.Popen(command, env={**env, "RANK": "1"}, stderr=subprocess.DEVNULL)
    try:
        first = subprocess.Popen(
            [*command, "--save", str(saved), "--format", "json"],
            env={**env, "RANK": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert first.stderr is not None
        for line in first.stderr:
            if "4096 B done" in line:
                break
        for process in (other, first):
            process.terminate()
        told, _ = first.communicate(timeout=60)
    finally:
        other.kill()
        other.wait()
    assert first.returncode == 130
    found = json.loads(told)
    assert found["notes"] == ["interrupted by SIGTERM"] and not found["complete"] and not found["findings"]
    assert [item["size"] for item in found["results"]["measurements"]] == [4096]
    assert saved.read_text() == told and list(tmp_path.iterdir()) == [saved]


def test_a_rank_that_hangs_with_pythons_lock_is_named(tmp_path: Path) -> None:
    """Its own watchdog cannot speak then: the launcher notices the silence, takes the stack by a signal, and ends it."""
    # A mutex that is locked twice: unlike sleep(), no signal ends the wait.
    code = "import ctypes; mutex = ctypes.create_string_buffer(64); lock = ctypes.PyDLL(None).pthread_mutex_lock"
    (tmp_path / "torch.py").write_text(f"{code}\nlock(mutex), lock(mutex)\n")
    started = time.monotonic()
    fact, _ = run(
        1,
        collectives=["allreduce"],
        sizes=[4],
        env={"PYTHONPATH": str(tmp_path)},
        import_limit_s=2.0,
        limit_s_all=600.0,
    )
    found, *_ = failures({"here": fact})
    assert found.id == "collectives.stuck.import" and time.monotonic() - started < 300.0
    assert any("torch.py:2" in item.text for item in found.evidence)


def test_secrets_in_a_ranks_output_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no access with password=kanarienvogel42')\n")
    fact, _ = run(1, collectives=["allreduce"], sizes=[4], env={"PYTHONPATH": str(tmp_path)})
    assert b"kanarienvogel42" not in msgspec.json.encode(fact)
    assert "no access with" in fact.ranks[0].output
