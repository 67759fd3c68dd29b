"""The rank program's CUDA and NCCL code from start to end, over made-up GPUs (tests/cuda_stand_in) under the real torch.

They show that the code runs and calls what torch has, not that CUDA and NCCL do what is asked, nor any time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nccl_doctor.agent import probing
from nccl_doctor.agent.collective import launch
from nccl_doctor.agent.collective.operations import OPERATIONS
from nccl_doctor.agent.probes import bench
from nccl_doctor.bench import in_job
from nccl_doctor.bench.model import Collector, Results
from nccl_doctor.bench.world import CannotRun, Prepared, choose_backend
from tests.ports import free_port

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
STAND_IN = str(ROOT / "tests" / "cuda_stand_in")
NVIDIA_SMI = """#!/bin/sh
case "$*" in *--query-gpu=name*) echo "Stand-in GPU"; echo "Stand-in GPU";; *) exit 1;; esac
"""


@pytest.fixture(scope="module")
def stand_in() -> Any:
    """The module, not installed: this process's torch stays as it is."""
    sys.path.append(STAND_IN)
    try:
        import stand_in  # type: ignore[import-not-found]
    finally:
        sys.path.remove(STAND_IN)
    return stand_in


def run(env: dict[str, str], **plan: Any) -> tuple[list[dict[str, Any]], Results]:
    """Two ranks of one host with a made-up GPU each; the launcher's answer of each, and what rank 0 reported."""
    return run_on([0], 2, env, **plan)


def run_on(
    first: list[int], local_world: int, env: dict[str, str], **plan: Any
) -> tuple[list[dict[str, Any]], Results]:
    """Two ranks, over as many hosts as there are first ranks."""
    collector, port = Collector(2), free_port()

    def launched(first_rank: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = launch.launch(
            {
                "plan": {"backend": "nccl", "iters": 3, "warmup": 1, "limit_s": 30.0, **plan},
                "world": 2, "first_rank": first_rank, "local_world": local_world, "master_addr": "127.0.0.1",
                "master_port": port, "python": sys.executable, "limit_s": 90.0,
                "env": {"PYTHONPATH": STAND_IN, **env},
            },
            collector.take,
        )["ranks"]  # fmt: skip
        return found

    with ThreadPoolExecutor() as pool:
        ranks = [rank for host in pool.map(launched, first) for rank in host]
    assert all(rank["finished"] for rank in ranks), [rank["output"][-3000:] for rank in ranks]
    return ranks, collector.results()


def test_the_command_line_measures_over_two_gpus(tmp_path: Path) -> None:
    """Backend and ranks chosen by what the host offers; every collective, every way, compute; no proof, no verdict."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(NVIDIA_SMI)
    smi.chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"  # this python3 has torch
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "bench", "all,gemm", "--gemm-edge", "32", "--sizes", "1000,300000", "--both",
         "--iters", "2", "--warmup", "1", "--format", "json"],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{STAND_IN}:{ROOT}", "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    found = json.loads(done.stdout)
    assert (found["world"]["backend"], found["world"]["backend_why"]) == ("nccl", "every host has GPUs")
    ranks = found["results"]["ranks"]
    assert [(rank["device"], rank["nccl"]) for rank in ranks] == [("cuda:0", "2.27.5"), ("cuda:1", "2.27.5")]
    assert len({rank["device_id"] for rank in ranks}) == 2
    measured = found["results"]["measurements"]
    assert {item["collective"] for item in measured} == set(OPERATIONS) and len(measured) == 2 * 14
    assert all(item["wrong"] == 0 for item in measured)
    assert [item["wrong"] for item in found["results"]["gemm"]] == [0, 0]
    assert not found["path"]["proved"] and {item["kind"] for item in found["verdicts"]} == {"cannot-judge"}


@pytest.mark.parametrize(
    ("own", "visible", "gpus"),
    [
        (None, None, 8),
        ("4,5", None, 2),  # of the login's environment
        ("4,5", "GPU-3f2a", 1),  # --env goes before
        (None, "1", 1),
        (None, "-1", 0),
        (None, "", 0),
        ("NoDevFiles", None, 0),  # Slurm's, of a job without GPUs
        ("MIG-1", None, 8),
    ],
)
def test_gpus_that_the_ranks_cannot_see_are_not_counted(
    own: str | None, visible: str | None, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        """#!/bin/sh
[ "$1" = -i ] || { seq 8; exit; }
echo "$2" | tr , '\\n'
"""
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if own is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    assert len(bench.prepare({"python": sys.executable, "visible": visible})["gpus"]) == gpus


@pytest.mark.parametrize(("there", "gpus"), [("proc/driver/nvidia/gpus/0000:1b:00.0", None), ("proc", 0)])
def test_gpus_that_nvidia_smi_does_not_tell_are_unknown_where_there_are_some(
    there: str, gpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung or refused nvidia-smi is no host without GPUs: nothing is measured over gloo in their place unasked."""
    (tmp_path / there).mkdir(parents=True)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'No devices were found' >&2; exit 6\n")
    smi.chmod(0o755)
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = bench.prepare({"python": sys.executable, "visible": "9"})
    assert found["gpus"] == []
    host = msgspec.convert(found, Prepared)
    if gpus is None:
        with pytest.raises(
            CannotRun, match=r"not known on gpu01: nvidia-smi -i 9 .*exit status 6: No devices.*--backend gloo"
        ):
            choose_backend({"gpu01": host}, "auto")
    else:
        assert choose_backend({"gpu01": host}, "auto") == ("gloo", "no host has a GPU")
    assert choose_backend({"gpu01": host}, "gloo") == ("gloo", "asked for")


def test_nvidia_smi_is_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode each call starts all GPUs anew, which takes seconds: none waits for the one before."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"""#!/bin/sh
touch {tmp_path}/asked.$$
for turn in $(seq 200); do
  [ "$(ls {tmp_path} | grep -c asked)" = 4 ] && break
  sleep 0.05
done
[ "$turn" -lt 200 ] || exit 1
case "$*" in
  *compute-apps*) ;;
  *gpu=name*) echo "NVIDIA H100 80GB HBM3" ;;
  *pcie*) echo "5, 16" ;;
  *nvlink*) printf 'GPU 0: NVIDIA H100\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: <inactive>\\n' ;;
esac
""")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = bench.prepare({"python": sys.executable})
    assert (found["gpus"], found["busy"], found["pcie"]) == (["NVIDIA H100 80GB HBM3"], [], ["5, 16"])
    assert (found["nvlinks"], found["nvlink_gbs"], found["gpus_unknown"]) == (1, 26.562, "")


@pytest.mark.parametrize("smi", [None, "#!/bin/sh\nexit 9\n"], ids=["no nvidia-smi", "a failing one"])
def test_a_device_file_of_a_gpu_is_a_gpu(smi: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod has its GPU under the number that it has on the host; a sandbox shows neither /proc/driver nor the bus."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia5").touch()
    (tmp_path / "bin").mkdir()
    if smi:
        (tmp_path / "bin/nvidia-smi").write_text(smi)
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setattr(probing, "ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + (":/usr/bin:/bin" if smi else ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert in_job._backend("auto") == ("nccl", "this host has GPUs")
    found = bench.prepare({"python": sys.executable})
    assert found["gpus"] == [] and found["gpus_unknown"].startswith("nvidia-smi --query-gpu=name")
    assert found["busy_unknown"].startswith("nvidia-smi --query-compute-apps") and found["nvlinks"] is None
    (tmp_path / "dev/nvidia5").rename(tmp_path / "dev/nvidiactl")
    assert in_job._backend("auto") == ("gloo", "this host has no GPU")
    assert bench.prepare({"python": sys.executable})["gpus_unknown"] == ""


def test_graphs_and_both_lacks_of_memory() -> None:
    """Replays give right answers; a size that finds no memory, before or inside NCCL, ends alone and on all ranks."""
    env = {"STAND_IN_BYTES": "1000000", "STAND_IN_NCCL_OOM": "1:200000", "NCCL_HOSTID": "one"}
    ranks, results = run(
        env, collectives=["allreduce", "sendrecv"], sizes=[1000, 300_000, 2_000_000, 2000], cuda_graph=True, links=1000
    )
    assert [item.asked for item in results.measurements] == [1000, 2000, 1000, 2000]
    assert all(item.wrong == 0 for item in results.measurements)
    reasons = [(item.size, item.reason) for item in results.skips]
    assert [size for size, _ in reasons] == [300_000, 2_000_000] * 2
    assert "Cuda failure 2 'out of memory'" in reasons[0][1] and "CUDA out of memory" in reasons[1][1]
    assert all("rank 1 on" in reason for _, reason in reasons[::2])
    assert not any("Traceback" in rank["output"] for rank in ranks)


def test_the_backend_takes_the_gpu_that_the_rank_measures_on() -> None:
    """Both hosts use their first GPU only: PyTorch 2.15 would take cuda:1 for rank 1, as no launcher set LOCAL_RANK."""
    _, results = run_on([0, 1], 1, {}, collectives=["allreduce"], sizes=[1000], same_gpu=True)
    assert [item.wrong for item in results.measurements] == [0]


# ---- what the made-up GPUs refuse ----


def test_names_and_calls_that_the_real_one_does_not_know_are_errors(stand_in: Any) -> None:
    real = types.SimpleNamespace(Event=torch.cuda.Event, synchronize=torch.cuda.synchronize)
    with pytest.raises(AttributeError):
        stand_in.replace(real, "synchronise", lambda: None)
    stand_in.replace(real, "synchronize", lambda: None)
    real.synchronize(0)
    with pytest.raises(TypeError):
        real.synchronize(timeout=3)
    stand_in.replace_class(real, "Event", stand_in.Event)
    with pytest.raises(TypeError):
        real.Event(timing=True)
    with pytest.raises(AttributeError):
        real.Event(enable_timing=True).elapsed()


def test_times_are_read_after_waiting_only(stand_in: Any) -> None:
    first, last = stand_in.Event(enable_timing=True), stand_in.Event(enable_timing=True)
    first.record()
    with pytest.raises(RuntimeError, match="recorded"):
        first.elapsed_time(last)
    last.record()
    with pytest.raises(RuntimeError, match="not ready"):
        first.elapsed_time(last)
    stand_in.synchronize()
    assert first.elapsed_time(last) >= 0


def test_tensors_of_two_devices_do_not_mix(stand_in: Any) -> None:
    on_gpu = stand_in.OnGpu(torch.ones(3))
    assert on_gpu.device.type == "cuda" and torch.equal((on_gpu + on_gpu).held, torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="same device"):
        on_gpu + torch.ones(3)


def test_nobody_waits_while_a_graph_is_captured(stand_in: Any) -> None:
    graph = stand_in.CUDAGraph()
    graph.capture_begin()
    try:
        with pytest.raises(RuntimeError, match="capturing"):
            stand_in.synchronize()
    finally:
        graph.capture_end()
