"""bench with real NCCL. On one GPU several ranks run with a NCCL_HOSTID each: NCCL then takes them for several hosts.

With NCCL_DOCTOR_RECORD=DIRECTORY the ranks' real output of success and of provoked failures is kept there, as material
for explain's tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return done.stdout.count("GPU ") if done.returncode == 0 else 0


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpus() == 0, reason="no NVIDIA GPU here")]


def bench(*options: str, code: int = 0) -> dict[str, Any]:
    """Run on this machine; the outcome."""
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "bench", *options, "--format", "json", "--timeout", "60"],
        capture_output=True, text=True, timeout=400, env=dict(os.environ, PYTHONPATH=str(ROOT)), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:] + done.stdout[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def record(name: str, found: dict[str, Any]) -> None:
    """Keep what the ranks of a failed run printed."""
    directory = os.environ.get("NCCL_DOCTOR_RECORD")
    if directory:
        for rank in found.get("ranks", []):
            Path(directory, f"{name}.rank{rank['rank']}.log").write_text(rank["output"])


SAME_GPU = ("--test-same-gpu", "--gpus-per-host", "2", "--backend", "nccl", "--env", "NCCL_MULTI_RANK_GPU_ENABLE=1")


@pytest.fixture(scope="module")
def two_ranks() -> dict[str, Any]:
    """All collectives over two ranks of one GPU, by NCCL's network transport."""
    return bench("all", "--sizes", "1000,64K,4M", "--both", "--iters", "5", "--time-budget", "60", *SAME_GPU)


def test_every_collective_is_right(two_ranks: dict[str, Any]) -> None:
    measured = two_ranks["results"]["measurements"]
    assert len({item["collective"] for item in measured}) == 9
    assert all(item["wrong"] == 0 for item in measured)


def test_the_path_is_proved_from_the_real_log(two_ranks: dict[str, Any]) -> None:
    path = two_ranks["path"]
    assert path["proved"], path
    nccl = path["nccl"]
    assert nccl["versions"] and nccl["versions"][0] == two_ranks["results"]["ranks"][0]["nccl"]
    assert any(name.startswith("NET/") for name in nccl["transports"]) and nccl["net_edges"] > 0
    assert nccl["env"].get("NCCL_HOSTID") is not None


def test_one_rank_alone_uses_the_gpu() -> None:
    found = bench("allreduce", "--sizes", "1M", "--gpus-per-host", "1", "--backend", "nccl", "--iters", "20")
    assert found["results"]["ranks"][0]["device_name"] and found["verdicts"][0]["kind"] == "cannot-judge"


def test_cuda_graphs_give_the_same_answers() -> None:
    found = bench("allreduce", "--sizes", "1M", "--cuda-graph", "--iters", "20", *SAME_GPU)
    assert [item["wrong"] for item in found["results"]["measurements"]] == [0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float64"])
def test_types(dtype: str) -> None:
    found = bench("allreduce", "--sizes", "1M", "--dtype", dtype, "--iters", "5", *SAME_GPU)
    assert [item["wrong"] for item in found["results"]["measurements"]] == [0]


def test_larger_than_the_gpu_is_skipped() -> None:
    found = bench("allreduce", "--sizes", "1K,1T", "--iters", "5", *SAME_GPU)
    (skip,) = found["results"]["skips"]
    assert skip["size"] == 1 << 40 and "GPU memory" in skip["reason"]


def test_a_wrong_interface_is_named() -> None:
    found = bench("allreduce", "--sizes", "1M", "--env", "NCCL_SOCKET_IFNAME=nosuch0", *SAME_GPU, code=11)
    record("wrong-interface", found)
    assert found["findings"][0]["id"].startswith("collectives.")
    assert any("nosuch0" in rank["output"] or "no socket interface" in rank["output"] for rank in found["ranks"])


def test_two_ranks_on_one_gpu_are_refused_when_nobody_asked_for_it() -> None:
    if _gpus() > 1:
        pytest.skip("more than one GPU here")
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "bench", "allreduce", "--gpus-per-host", "2", "--backend", "nccl"],
        capture_output=True, text=True, timeout=200, env=dict(os.environ, PYTHONPATH=str(ROOT)), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 3 and "1 GPU" in done.stderr


def test_gemm_on_the_gpu() -> None:
    found = bench("gemm", "--dtype", "bfloat16", "--time-budget", "3", "--gemm-edge", "4096")
    ranks = found["results"]["gemm"]
    assert ranks and all(item["tflops"] > 1 and item["wrong"] == 0 for item in ranks)
