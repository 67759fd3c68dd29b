"""bench with real NCCL. On one GPU several ranks run with a NCCL_HOSTID each: NCCL then takes them for several hosts.

With NCCL_DOCTOR_RECORD=DIRECTORY the ranks' real output of success and of provoked failures is kept there, as cases for
explain (tests/cases/explain). ``tests/gpu/session.sh`` runs all of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from nccl_doctor.bench import nccl_log
from nccl_doctor.bench.model import Results
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.rules.collective_failures import failures

from . import worlds
from .worlds import BACKEND, ROOT, gpus, record, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(BACKEND == "nccl" and gpus() == 0, reason="no NVIDIA GPU here"),
]
needs_nccl = pytest.mark.skipif(BACKEND != "nccl", reason="a rehearsal with gloo")
SAME_GPU = ("--test-same-gpu", "--ranks-per-host", "2", "--backend", BACKEND, "--env", "NCCL_MULTI_RANK_GPU_ENABLE=1")


def bench(*options: str, code: int = 0) -> dict[str, Any]:
    """The command line on this machine; the outcome."""
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "bench", *options, "--format", "json", "--timeout", "60", "--allow-busy"],
        capture_output=True, text=True, timeout=300, env=dict(os.environ, PYTHONPATH=pythonpath()), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:] + done.stdout[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def pythonpath() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def ids(fact: Collectives) -> list[str]:
    return [item.id for item in failures({"here": fact})]


def outputs(fact: Collectives) -> str:
    return "\n".join(end.output for end in fact.ranks)


# ---- success ----


@pytest.fixture(scope="module")
def two_ranks() -> tuple[Collectives, Results]:
    """All collectives over two ranks of one GPU, by NCCL's network transport."""
    from nccl_doctor.agent.collective.operations import OPERATIONS

    fact, results = run(
        collectives=list(OPERATIONS), sizes=[1000, 65536, 4 << 20], modes=["in", "out"], iters=5, links=1 << 20,
        budget_s=120.0,
    )  # fmt: skip
    record("nccl-healthy", fact, "healthy", "Init COMPLETE")
    return fact, results


def test_every_collective_is_right(two_ranks: tuple[Collectives, Results]) -> None:
    fact, results = two_ranks
    assert all(end.finished and end.exit == 0 for end in fact.ranks), outputs(fact)[-4000:]
    assert len({item.collective for item in results.measurements}) == 9
    assert all(item.wrong == 0 for item in results.measurements)
    assert results.skips == () and len(results.links) in (0, 1)


@needs_nccl
def test_the_path_is_proved_from_the_real_logs(two_ranks: tuple[Collectives, Results]) -> None:
    fact, results = two_ranks
    logs = {end.rank: nccl_log.read(end.output) for end in fact.ranks}
    cut = [end.rank for end in fact.ranks if end.output_cut]
    path = nccl_log.combine(logs, {0: "a", 1: "b"}, 2, cut)
    assert path.proved, path.incomplete
    assert path.versions and path.versions[0] == results.ranks[0].nccl
    assert any(name.startswith("NET/") for name in path.transports) and path.net_edges > 0
    assert path.env.get("NCCL_HOSTID") is not None


def test_times_of_the_device_are_close_to_the_clocks(two_ranks: tuple[Collectives, Results]) -> None:
    """Events measure the same call as a bare loop around which the device is waited for."""
    _, results = two_ranks
    for item in results.measurements:
        assert 0 < item.spread.min_us <= item.spread.median_us <= item.spread.max_us < 10e6
    large = [item for item in results.measurements if item.asked == 4 << 20 and item.collective == "allreduce"]
    assert large and all(item.busbw_gbs > 0.01 for item in large)


def test_the_command_line_tells_the_same() -> None:
    found = bench("allreduce", "--sizes", "64K:4M:x4", "--iters", "5", *SAME_GPU)
    assert found["path"]["proved"] and found["complete"]
    assert [item["wrong"] for item in found["results"]["measurements"]] == [0] * 4
    assert found["verdicts"][0]["kind"] == "cannot-judge"  # nobody publishes numbers for such a set-up


@needs_nccl
def test_one_rank_alone_uses_the_gpu() -> None:
    found = bench("allreduce", "--sizes", "1M", "--gpus-per-host", "1", "--backend", "nccl", "--iters", "20")
    assert found["results"]["ranks"][0]["device_name"] and found["verdicts"][0]["kind"] == "cannot-judge"


@needs_nccl
def test_cuda_graphs_give_the_same_answers() -> None:
    fact, results = run(collectives=["allreduce", "allgather"], cuda_graph=True, iters=20)
    assert all(end.finished for end in fact.ranks), outputs(fact)[-4000:]
    assert [item.wrong for item in results.measurements] == [0, 0]  # of the replay


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float64"])
def test_types(dtype: str) -> None:
    fact, results = run(collectives=["allreduce", "reducescatter"], sizes=[1 << 20], dtype=dtype, iters=3)
    assert [item.wrong for item in results.measurements] == [0, 0], outputs(fact)[-4000:]


@needs_nccl
def test_gemm_on_the_gpu() -> None:
    found = bench("gemm", "--dtype", "bfloat16", "--time-budget", "3", "--gemm-edge", "4096")
    ranks = found["results"]["gemm"]
    assert ranks and all(item["tflops"] > 1 and item["wrong"] == 0 for item in ranks)


def test_under_torchrun() -> None:
    """The logs of both ranks reach rank 0 through the store."""
    inner = f'NCCL_HOSTID=rank$RANK exec {sys.executable} -m nccl_doctor.bench "$@"'
    options = [
        "allreduce",
        "--sizes",
        "1M",
        "--iters",
        "5",
        "--backend",
        BACKEND,
        "--test-same-gpu",
        "--format",
        "json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node",
         "2", "--no-python", "sh", "-c", inner, "bench", *options],
        capture_output=True, text=True, timeout=200,
        env={**os.environ, **worlds.ON_ONE_GPU, "PYTHONPATH": pythonpath()}, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["complete"] and found["path"]["proved"], found["path"]
    assert [item["wrong"] for item in found["results"]["measurements"]] == [0]


# ---- memory ----


def test_larger_than_memory_is_skipped() -> None:
    fact, results = run(sizes=[1024, 1 << 45, 2048])
    assert [item.asked for item in results.measurements] == [1024, 2048], outputs(fact)[-4000:]
    assert "memory" in results.skips[0].reason


@needs_nccl
@pytest.mark.skipif(gpus() != 1, reason="two ranks must share one GPU's memory")
def test_the_rank_that_finds_no_memory_ends_the_size_only() -> None:
    """Each rank alone would have room for it; both together have not: one of the two allocations fails."""
    import torch

    free = torch.cuda.mem_get_info(0)[0]
    fact, results = run(sizes=[1 << 20, int(free * 0.6) // 4096 * 4096, 2 << 20], iters=3)
    assert all(end.finished for end in fact.ranks), outputs(fact)[-4000:]
    assert [item.asked for item in results.measurements] == [1 << 20, 2 << 20]
    assert "memory" in results.skips[0].reason


@needs_nccl
@pytest.mark.skipif(gpus() != 1, reason="two ranks must share one GPU's memory")
def test_out_of_memory_inside_nccl_ends_the_size_only() -> None:
    """While the ranks run, this process takes what is left of the GPU: NCCL finds no room for new connections."""
    import torch

    hog: list[Any] = [torch.empty(1, device="cuda")]  # the context is there before the ranks start

    def take_the_rest(event: dict[str, Any]) -> None:
        if event["event"] != "size":
            return
        if event["collective"] == "allreduce" and len(hog) == 1:
            left = torch.cuda.mem_get_info(0)[0]
            hog.append(torch.empty(max(0, left - (264 << 20)), dtype=torch.uint8, device="cuda"))

    # Several small sizes in between, of a second or more each however fast the ranks take turns on the GPU: time for the
    # event to come here. All-to-all needs connections of its own.
    sizes = [1 << 10, 2 << 10, 4 << 10, 8 << 10]
    fact, results = run(
        on_event=take_the_rest_guarded(take_the_rest), collectives=["allreduce", "alltoall"], sizes=sizes, iters=0,
        budget_s=16.0, max_iters=100_000,
    )  # fmt: skip
    hog.clear()
    torch.cuda.empty_cache()
    if "out of memory" in outputs(fact) + str(results.skips):
        record("nccl-out-of-memory", fact, "gpu.oom", "out of memory")
    else:
        print("NCCL found room for its connections: nothing was provoked")
    assert all(end.finished for end in fact.ranks), [
        (end.where.words, end.error, end.output[-2000:]) for end in fact.ranks
    ]
    assert {item.collective for item in results.measurements} >= {"allreduce"}


def take_the_rest_guarded(take: worlds.Events) -> worlds.Events:
    """What goes wrong in here must not end the ranks' launcher."""

    def guarded(event: dict[str, Any]) -> None:
        try:
            take(event)
        except RuntimeError as error:
            print(error)

    return guarded


# ---- failures, provoked and recorded ----


@needs_nccl
def test_a_wrong_interface_is_named() -> None:
    fact, _ = run(env={"NCCL_SOCKET_IFNAME": "nosuch0"})
    record("nccl-wrong-interface", fact, "net.wrong-interface", "no socket interface found")
    found = ids(fact)
    assert found and found[0].startswith("collectives."), outputs(fact)[-4000:]
    assert any(id.startswith("net.wrong-interface") for id in found), (found, outputs(fact)[-4000:])


def _signal_in_second_size(number: signal.Signals, victim: int) -> worlds.Events:
    """A moment after the first size is told: in the middle of the second one's timed loop."""
    pids: dict[int, int] = {}

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "world":
            pids.update((item["rank"], item["pid"]) for item in event["ranks"])
        if event["event"] == "size" and pids:
            threading.Timer(2.0, os.kill, (pids[victim], number)).start()
            pids.clear()

    return on_event


# Two ranks that take turns on one GPU need a tenth of a second for 64 MiB: with a smaller budget the size would be skipped.
LONG: dict[str, Any] = {"sizes": [1024, 64 << 20], "iters": 1000, "limit_s": 20.0, "budget_s": 1000.0}


def test_a_killed_peer_is_named() -> None:
    fact, results = run(on_event=_signal_in_second_size(signal.SIGKILL, 1), **LONG)
    record("nccl-peer-killed", fact, "net.peer-lost", "Connection closed by remote peer")
    (found,) = failures({"here": fact})
    assert found.id == "collectives.rank-died" and "SIGKILL" in found.title, outputs(fact)[-4000:]
    assert [place.rank for place in found.places] == [1] and results.measurements


def test_a_stopped_peer_is_named() -> None:
    fact, _ = run(on_event=_signal_in_second_size(signal.SIGSTOP, 1), **LONG)
    record("nccl-peer-stopped", fact, "app.straggler-timeout", "")
    (found,) = failures({"here": fact})
    assert found.id == "collectives.rank-stopped" and [place.rank for place in found.places] == [1]


def test_blocked_ports_are_found_as_a_hang_at_the_start() -> None:
    """In a network namespace of its own, where all ports but the store's drop what comes."""
    missing = [
        name for name in ("unshare", "ip", "nft") if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None
    ]
    if missing or os.geteuid():
        pytest.skip(f"needs root, unshare, ip and nft; missing here: {', '.join(missing) or 'root'}")
    done = subprocess.run(
        ["unshare", "--net", "--", sys.executable, "-m", "tests.gpu.blocked"],
        capture_output=True, timeout=200, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": pythonpath(), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
    )  # fmt: skip
    if done.returncode and re.search(rb"Operation not permitted|not supported|RTNETLINK", done.stderr):
        pytest.skip(f"no private network can be made here: {done.stderr[-300:]!r}")
    assert done.returncode == 0, done.stderr[-3000:]
    fact = msgspec.json.decode(done.stdout, type=Collectives)
    record("nccl-blocked-ports", fact, "net.firewall", "")
    first = ids(fact)[0]
    assert first in (
        "collectives.stuck.process-group", "collectives.stuck.first-collective", "collectives.failed",
    ), (first, outputs(fact)[-4000:])  # fmt: skip


@needs_nccl
def test_two_ranks_on_one_gpu_are_refused_by_nccl_and_by_us() -> None:
    if gpus() > 1:
        pytest.skip("more than one GPU here")
    fact, _ = run(distinct=False, env={"NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    record("nccl-duplicate-gpu", fact, "gpu.duplicate", "GPU")
    assert any(id.startswith("gpu.duplicate") for id in ids(fact)), (ids(fact), outputs(fact)[-4000:])
    ours, _ = run(same_gpu=False)
    assert ids(ours) == ["collectives.world"], outputs(ours)[-4000:]
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "bench", "allreduce", "--gpus-per-host", "2", "--backend", "nccl", "--allow-busy"],
        capture_output=True, text=True, timeout=200, env=dict(os.environ, PYTHONPATH=pythonpath()), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 3 and "1 GPU" in done.stderr
