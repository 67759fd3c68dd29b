"""Sizes, names, statistics and the fit: what bench is asked, and how it counts."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import random
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bench_judge import host, outcome
from typing_in import typed

from nccl_doctor.bench import fleet
from nccl_doctor.bench.collectives import COLLECTIVES, UnknownCollective, parse_collectives
from nccl_doctor.bench.model import DTYPES, BenchPlan, full_dtype
from nccl_doctor.bench.sizes import SizeError, format_size, parse_size, parse_sizes
from nccl_doctor.bench.statistics import Spread, compare, fit, percentile, spread
from nccl_doctor.bench.verdict import change_words
from nccl_doctor.facts.collectives import bus_factor
from nccl_doctor.facts.model import Reach, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence, Severity, finding


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64M", (64 << 20,)),
        ("1K:8K", (1 << 10, 2 << 10, 4 << 10, 8 << 10)),
        ("8M:128M:x4", (8 << 20, 32 << 20, 128 << 20)),
        ("1M:3M:+1M", (1 << 20, 2 << 20, 3 << 20)),
        ("1K:3000", (1024, 2048)),
        ("4,1k,4", (4, 1024)),
        ("1KiB:2KB", (1024, 2048)),
        ("7:7", (7,)),
    ],
)
def test_sizes_parse(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1M", "1.5M", "1X", "1M:", ":1M", "2M:1M", "1M:2M:3M", "1M:2M:x1", "1M:2M:x0", "1M:2M:+0", "1M:2M:x2:x2",
     "1:1G:+1", "x2", "1M 2M", "１M", "99999P", "1M:2M:x", "1e6", "999999999999999T"],
)  # fmt: skip
def test_wrong_sizes_are_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(SizeError, match="FROM:TO") as caught:
        parse_sizes(text)
    assert repr(text) in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_sizes_or_a_size_error(text: str) -> None:
    with contextlib.suppress(SizeError):
        assert all(size > 0 for size in parse_sizes(text))


@given(st.integers(1, 1 << 45))
def test_sizes_survive_formatting(size: int) -> None:
    assert parse_size(format_size(size).replace(",", "").replace(" ", "")) == size


def test_collective_names() -> None:
    assert parse_collectives("all_reduce_perf,all-gather") == ("allreduce", "allgather")
    assert parse_collectives("all") == tuple(COLLECTIVES)
    with pytest.raises(UnknownCollective, match="did you mean allreduce"):
        parse_collectives("alreduce")


@pytest.mark.parametrize(
    ("name", "factor"),
    [("allreduce", 1.75), ("allgather", 0.875), ("reducescatter", 0.875), ("alltoall", 0.875), ("gather", 0.875),
     ("scatter", 0.875), ("broadcast", 1.0), ("reduce", 1.0), ("sendrecv", 1.0)],
)  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(name: str, factor: float) -> None:
    assert bus_factor(name, 8) == pytest.approx(factor)


def test_spread() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert (found.min_us, found.median_us, found.max_us, found.mean_us, found.n) == (1.0, 2.5, 4.0, 2.5, 4)
    assert found.cv == pytest.approx(math.sqrt(5 / 3) / 2.5)
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    with pytest.raises(ValueError, match="no iteration"):
        spread([])
    assert spread([4.0]).cv is None  # one time tells no noise


def test_the_fit_finds_latency_and_bandwidth() -> None:
    sizes = [1 << power for power in range(10, 28, 2)]
    times = [20.0 + size / 12.5 / 1e3 for size in sizes]  # 20 us, 12.5 GB/s
    found = fit(sizes, times)
    assert found is not None
    assert found.alpha_us == pytest.approx(20.0) and found.beta_gbs == pytest.approx(12.5)
    assert found.error == pytest.approx(0.0, abs=1e-6) and found.half_size == pytest.approx(250_000, rel=1e-3)


def test_the_fit_bears_noise_and_refuses_nonsense() -> None:
    noise = random.Random(1)
    sizes = [1 << power for power in range(10, 28)]
    found = fit(sizes, [(20.0 + size / 12.5e3) * noise.uniform(0.95, 1.05) for size in sizes])
    assert found is not None and found.alpha_us == pytest.approx(20.0, rel=0.05) and 0.01 < found.error < 0.05
    assert fit([1, 2], [1.0, 2.0]) is None
    assert fit([1024, 2048, 4096], [30.0, 20.0, 10.0]) is None


def series(median: float, cv: float, n: int = 50) -> Spread:
    return Spread(n, median * 0.9, median, median, median * 1.1, median * 1.2, median * 1.3, cv)


def test_a_change_beyond_the_noise_is_decided_and_within_it_is_not() -> None:
    slower = compare(series(112.0, 0.03), series(100.0, 0.03))
    assert slower.decided and slower.change == pytest.approx(-0.107, abs=0.001) and slower.margin < 0.03
    noisy = compare(series(112.0, 0.9), series(100.0, 0.3))
    assert not noisy.decided and noisy.noise == pytest.approx(0.9)
    few = compare(series(200.0, 0.01, n=2), series(100.0, 0.01))
    assert not few.decided and change_words(few) == "cannot tell: 2 times only"


def test_variables_that_change_nothing_or_hide_the_path_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    from nccl_doctor.cli.bench import _environment

    assert _environment(["NCCL_IB_HCA=mlx5", "NCCL_DEBUG=info"]) == {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "info"}
    assert not capsys.readouterr().err
    _environment(["NCCL_IBHCA=mlx5", "NCCL_DEBUG=WARN"])
    told = capsys.readouterr().err.splitlines()
    assert "did you mean NCCL_IB_HCA?" in told[0] and "NCCL_DEBUG=WARN the path cannot be proved" in told[1]


def test_the_command_of_a_run_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_doctor.cli import bench

    words = ["nccl-doctor", "bench", "gemm", "-H", "gpu[1-2]", "--env-setup", "source /a b/c"]
    monkeypatch.setattr("sys.argv", words)
    assert shlex.split(bench._command()) == words


def test_ranks_on_gpus_are_never_ranks_on_cpus() -> None:
    """Where the GPUs have gone (a driver that broke), a run of that many gloo ranks would be another one."""
    told = typed("bench allreduce --gpus-per-host 2 --sizes 1K")
    assert told.exit_code == ExitCode.NOTHING_CHECKED and "nccl was asked for: no GPU on" in told.output
    told = typed("bench allreduce --gpus-per-host 2 --backend gloo")
    assert told.exit_code == ExitCode.USAGE and "--ranks-per-host" in told.output


def test_data_types_as_nccl_tests_and_frameworks_name_them() -> None:
    names = [full_dtype(word) for word in ("bf16", "fp16", "half", "fp32", "float", "double", "bfloat16")]
    assert names == ["bfloat16", "float16", "float16", "float32", "float32", "float64", "bfloat16"]
    assert set(names) <= set(DTYPES)
    said = typed("bench gemm --dtype bf16 --plot a.svg").output
    assert "--plot draws bandwidth" in said  # the next error: the type is known
    assert "'fp8' is not one of" in typed("bench gemm --dtype fp8").output


def test_formats_without_words_have_the_judgement_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    from nccl_doctor.cli.bench import _Telling

    found = finding("collectives.rank-died", Severity.FAIL, "rank 1 on b was killed", Evidence("exit -9"), hosts=("b",))
    _Telling("csv", None, None, "never").tell(msgspec.structs.replace(outcome(), findings=(found,), verdicts=()))
    told = capsys.readouterr()
    assert told.out.startswith("collective,mode") and told.err.splitlines() == [
        "nccl-doctor: collectives.rank-died: rank 1 on b was killed", "nccl-doctor: ✗ FAULTY  rank 1 on b was killed",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "nccl-tests"])
def test_gemm_is_not_left_out_in_silence(form: str) -> None:
    told = typed("bench allreduce,gemm --format", form)
    assert told.exit_code == ExitCode.USAGE and f"--format {form} has no words for gemm" in told.output
    told = typed("bench allreduce --gemm-edge 1024")
    assert told.exit_code == ExitCode.USAGE and "--gemm-edge is for gemm" in told.output
    told = typed("bench gemm --plot out.svg")
    assert told.exit_code == ExitCode.USAGE and "gemm has neither" in told.output


@pytest.mark.parametrize("words", ["--min-busbw 40", "--baseline good.json"])
def test_a_gate_that_would_compare_nothing_is_refused(words: str) -> None:
    told = typed(f"bench gemm --fail-on slow {words}")
    assert told.exit_code == ExitCode.USAGE and "of gemm nothing would be compared" in told.output


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_what_is_no_bandwidth_is_no_gate(value: str) -> None:
    told = typed("bench allreduce --sizes 4K --fail-on slow --min-busbw", value)
    assert told.exit_code == ExitCode.USAGE and "expected GB/s, such as 45" in told.output


def test_a_product_that_is_no_number_is_wrong() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch in this Python")
    code = (
        "import torch, types; from nccl_doctor.agent.collective import gemm; one = torch.ones(8, 8)\n"
        "asked = types.SimpleNamespace(torch=torch, dtype=torch.float32); out = one @ one; out[0, 0] = float('nan')\n"
        "print(gemm._wrong(asked, one, one, one @ one), gemm._wrong(asked, one, one, out))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


def test_a_graph_is_of_nccl_alone() -> None:
    plan = BenchPlan(("allreduce",), (1 << 20,), cuda_graph=True)
    assert plan.settled("nccl", "", gpu=True).cuda_graph
    with pytest.raises(ValueError, match=r"this is gloo \(no GPU\)"):
        plan.settled("gloo", "no GPU", gpu=False)


def test_a_machine_that_is_named_twice_is_no_network() -> None:
    """It would send to itself, and that would pass for what two hosts send each other."""
    has = {"10.0.0.2": "eth0", "192.168.0.2": "ib0"}
    prepared = {name: host("gpu02", addresses=has) for name in ("gpu02", "gpu02-ib")}
    sessions: Any = {
        "gpu02": SimpleNamespace(reach=Reach(ReachOutcome.OK, address="10.0.0.2", port=22)),
        "gpu02-ib": SimpleNamespace(reach=Reach(ReachOutcome.OK, address="192.168.0.2", port=22)),
    }
    with pytest.raises(fleet.Refused, match="gpu02 and gpu02-ib are one machine, gpu02: keep one") as told:
        fleet._no_host_twice(prepared, sessions)
    assert told.value.code is ExitCode.USAGE
    for other in (Reach(ReachOutcome.OK, address="10.0.0.2", port=2222), Reach(ReachOutcome.OK)):  # containers, kubectl
        fleet._no_host_twice(prepared, sessions | {"gpu02-ib": SimpleNamespace(reach=other)})
