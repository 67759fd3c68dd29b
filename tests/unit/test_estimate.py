"""The cost of communication: volumes as torch really sends them, rates and their limits, targets that are never met by guess."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_in import typed

from nccl_doctor.bench import expected
from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.estimate import LEAST_EFFICIENCY, MOST_SHARE, Estimate, Question, Row, Step, estimate
from nccl_doctor.bench.model import BenchPlan, Measurement, Results
from nccl_doctor.bench.outcome import SCHEMA, Outcome, fits, write
from nccl_doctor.bench.parallelism import REFUSED, Model, volumes, ways
from nccl_doctor.bench.path import Path as NetworkPath
from nccl_doctor.bench.rates import Figures, Machines, Range, Rate, rate
from nccl_doctor.bench.statistics import spread
from nccl_doctor.bench.verdict import Verdict
from nccl_doctor.bench.world import Share, World
from nccl_doctor.facts.collectives import bus_factor

DOCS = Path(__file__).resolve().parents[2] / "docs"


# ---- volumes ----


@pytest.fixture
def counted(tmp_path: Path) -> dict[str, Any]:
    """Bytes that DDP and FSDP of the real torch handed to collectives, over gloo on two ranks."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch")
    store = tmp_path / "store"
    command = [sys.executable, str(Path(__file__).parent / "collective_calls.py")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank), "2", str(store)], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return json.loads(said[0])


def test_a_step_sends_what_torch_sends(counted: dict[str, Any]) -> None:
    """With and without gradient accumulation under no_sync; DDP's order of buckets, some bytes once, left out."""
    for way in ("ddp", "fsdp"):
        for micro_batches in (1, 3):
            model = Model(counted["params"], "float32", "float32", micro_batches, layers=counted["layers"])
            sent = {item.collective: item.calls * item.call_bytes for item in volumes(ways()[way], model)}
            real = {name: many for name, many in counted[f"{way} {micro_batches}"].items() if many > 100}
            assert sent == pytest.approx(real), (way, micro_batches)


@pytest.mark.parametrize(
    ("way", "micro_batches", "times"),
    [
        ("ddp", 1, 2),  # an all-reduce is 2 (n-1)/n of its size, the others (n-1)/n
        ("ddp", 4, 2),
        ("fsdp", 1, 3),
        ("fsdp", 4, 4 * 2 + 1),
        ("zero1", 1, 3),  # DeepSpeed's all-reduce and all-gather; the paper's 2 is no release's default
        ("zero1", 4, 3),
        ("zero2", 4, 4 * 2 + 1),
        ("zero3", 1, 3),
        ("zero3", 4, 12),
    ],
)
def test_what_each_gpu_sends(way: str, micro_batches: int, times: int) -> None:
    model = Model(7 * 10**9, "bfloat16", "bfloat16", micro_batches, layers=32)
    for ranks in (2, 8, 64):
        sent = sum(item.sent(ranks) for item in volumes(ways()[way], model))
        assert sent == pytest.approx(times * (ranks - 1) / ranks * 14e9)
    assert sum(item.sent(1) for item in volumes(ways()[way], model)) == 0


def test_gradients_may_have_a_type_of_their_own_and_calls_are_buckets_or_layers() -> None:
    gather, scatter = volumes(ways()["fsdp"], Model(10**9, "bfloat16", "float32", layers=10))
    assert (gather.calls, gather.call_bytes, scatter.calls, scatter.call_bytes) == (20, 2e8, 10, 4e8)
    (default,) = volumes(ways()["ddp"], Model(10**9, "float32", "float32"))
    assert default.calls == math.ceil(4e9 / (25 << 20)) and default.calls * default.call_bytes == pytest.approx(4e9)
    reduce, _ = volumes(ways()["zero1"], Model(10**9, "float32", "float32"))
    assert reduce.calls == 2  # 500 million elements, of whatever type
    gather, scatter = volumes(ways()["zero3"], Model(10**9, "bfloat16", "bfloat16", layers=10))
    assert (gather.calls, scatter.calls) == (20, 2)  # modules; the same buckets


def test_every_way_has_its_source_and_collectives_that_bench_measures() -> None:
    assert len(ways()) == 5 and not ways().keys() & REFUSED.keys()
    for way in ways().values():
        assert way.source and len(way.read) == 7
        assert {item.collective for item in way.sends} <= COLLECTIVES.keys()


# ---- rates ----


def saved(
    per_host: tuple[int, ...] = (8, 8),
    latency_us: float = 50.0,
    busbw: float = 40.0,
    collectives: tuple[str, ...] = ("allreduce", "allgather", "reducescatter"),
    sizes: tuple[int, ...] = (1 << 20, 16 << 20, 1 << 30),
    proved: bool = True,
    backend: str = "nccl",
    verdicts: tuple[Verdict, ...] = (),
) -> Outcome:
    """A run in which every call took latency + bytes / bandwidth, exactly."""
    ranks = sum(per_host)
    measurements = []
    for name in collectives:
        factor = bus_factor(name, ranks)
        for size in sizes:
            time_us = latency_us + size * factor / busbw / 1e3
            measurements.append(
                Measurement(name, {"allreduce": "in"}.get(name, "out"), size, size, size // 4, -1, time_us,
                            size / time_us / 1e3, 0.0, spread([time_us] * 5), 0, 0.0)
            )  # fmt: skip
    shares = tuple(Share(f"h{number}", 8 * number, count) for number, count in enumerate(per_host))
    results = Results(ranks, measurements=tuple(measurements))
    return Outcome(
        SCHEMA, "0", "2026-11-22T10:00:00+00:00", 1.0, "bench", True, BenchPlan(collectives, sizes),
        World(backend, "", shares, "h0", "10.0.0.1", 1), results, NetworkPath(backend, "", proved), None, fits(results),
        (), verdicts, (),
    )  # fmt: skip


def off_by(run: Outcome, error: float) -> Outcome:
    """The same run, with lines that miss their points by so much."""
    fits = [msgspec.structs.replace(item, fit=msgspec.structs.replace(item.fit, error=error)) for item in run.fits]
    return msgspec.structs.replace(run, fits=tuple(fits))


def rate_of(machines: Machines, gpus: int, collective: str = "allreduce", call_bytes: float = 64 << 20) -> Rate:
    found = rate(machines, collective, gpus, call_bytes)
    assert isinstance(found, Rate), found
    return found


def test_a_run_tells_the_rate_of_its_own_world() -> None:
    machines = Machines(8, (("two.json", saved()),))
    for name in ("allreduce", "allgather", "reducescatter"):
        found = rate_of(machines, 16, name)
        assert (found.busbw.low, found.busbw.high) == pytest.approx((40.0, 40.0))
        assert (found.latency_us.low, found.latency_us.high) == pytest.approx((50.0, 50.0))
        assert found.source == "two.json (nccl, 16 ranks on 2 hosts, 2026-11-22)" and not found.beyond


def test_beyond_what_was_measured_there_is_a_range_and_it_is_said() -> None:
    machines = Machines(8, (("two.json", saved()),))
    more = rate_of(machines, 64)
    ratio = (63 / 64 * 8 / 7) / (15 / 16 * 2)  # of what enters a host in a ring to what must
    assert (more.busbw.low, more.busbw.high) == pytest.approx((40 * ratio, 40.0))
    assert (more.latency_us.low, more.latency_us.high) == pytest.approx((50.0, 50 * 63 / 15))
    assert more.beyond == ("measured on 16 ranks",)
    alone = Machines(1, (("a.json", saved((1, 1))),))
    assert rate_of(alone, 32).busbw.low == pytest.approx(40.0)  # one GPU a host: every algorithm sends as much
    large = rate_of(machines, 16, call_bytes=2 << 30)
    assert large.beyond == ("measured with calls of 1M to 1G",) and large.latency_us.low == pytest.approx(50.0)
    small = rate_of(machines, 16, call_bytes=1 << 10)
    assert small.latency_us.low == 0 and small.latency_us.high > 50  # the line says nothing down there
    for other, why in (
        (saved(proved=False), "the path of that run is not proved"),
        (saved(backend="gloo"), "over gloo, and GPUs use NCCL"),
        (msgspec.structs.replace(saved(), complete=False), "that run did not complete"),
    ):
        assert rate_of(Machines(8, (("two.json", other),)), 16).beyond == (why,)


def test_the_range_holds_for_numbers_that_others_published() -> None:
    """From what two hosts reached, those of four and eight over the same kind of network."""
    (two,), (four,), (eight,) = (
        [item.value for item in expected.table()
         if (item.gpu, item.fabric, item.hosts) == ("H100", "ib", hosts)]
        for hosts in (2, 4, 8)
    )  # fmt: skip
    machines = Machines(8, (("two.json", saved(busbw=two)),))
    for gpus, value in ((32, four), (64, eight)):
        found = rate_of(machines, gpus)
        assert found.busbw.low < value < found.busbw.high


def test_a_run_of_other_machines_tells_nothing() -> None:
    one, two, single = saved((8,)), saved((8, 8)), saved((1, 1))
    for run, gpus in ((one, 16), (two, 8), (single, 16)):
        found = rate(Machines(8, (("r.json", run),)), "allreduce", gpus, 1 << 20)
        assert isinstance(found, tuple) and found[0].startswith("r.json was measured with")
    few = rate(Machines(8, (("r.json", saved(sizes=(1 << 20, 1 << 30))),)), "allreduce", 16, 1 << 20)
    assert isinstance(few, tuple) and "three sizes" in few[0]
    other = rate(Machines(8, (("r.json", saved(collectives=("allgather",))),)), "allreduce", 16, 1 << 20)
    assert isinstance(other, tuple)
    both = Machines(8, (("one.json", one), ("two.json", two), ("four.json", saved((8,) * 4, busbw=30.0))))
    assert [rate_of(both, gpus).source.split()[0] for gpus in (8, 16, 64)] == ["one.json", "two.json", "four.json"]


def test_a_line_that_misses_its_points_is_no_rate_and_one_that_nearly_does_is_a_wider_range() -> None:
    for error, known in ((0.6, False), (0.25, True)):
        found = rate(Machines(8, (("r.json", off_by(saved(), error)),)), "allreduce", 16, 1 << 24)
        assert isinstance(found, Rate) == known
        if isinstance(found, Rate):
            assert (found.busbw.low, found.busbw.high) == pytest.approx((32.0, 50.0))


def test_figures_come_after_runs() -> None:
    figures = Figures(in_host=200.0, across=20.0, latency_us=30.0)
    machines = Machines(8, (("two.json", saved()),), figures)
    assert rate_of(machines, 16).busbw.high == pytest.approx(40.0)
    assert rate_of(machines, 8) == Rate(Range(200.0, 200.0), Range(30.0, 30.0), "--busbw-in-host")


# ---- steps ----

FAST = Figures(in_host=200.0, across=20.0, latency_us=0.0)


def asked(
    way: str = "ddp", gpus: tuple[int, ...] = (8, 16), steps: tuple[Step, ...] = (Step(1.0, 8),), strong: bool = False,
    figures: Figures = FAST, params: int = 10**9, runs: tuple[tuple[str, Outcome], ...] = (), accumulate: int = 1,
) -> Estimate:  # fmt: skip
    model = Model(params, "float32", "float32", accumulate, layers=20)
    return estimate(Question(way, model, gpus, 8, steps, strong), ways()[way], Machines(8, runs, figures), "0")


def test_a_step_by_hand() -> None:
    """4 GB: 35 ms at 200 GB/s in a host (7 GB), 375 ms at 20 GB/s over two (7.5 GB)."""
    small, large = asked().rows
    assert small.communication is not None and small.communication.high == pytest.approx(0.035)
    assert small.step is not None and (small.step.low, small.step.high) == pytest.approx((1.0, 1.0))
    assert small.share is not None and (small.share.low, small.share.high) == pytest.approx((0.0, 0.035))
    assert large.step is not None and (large.step.low, large.step.high) == pytest.approx((1.0, 0.965 + 0.375))
    assert large.share is not None and large.share.high == pytest.approx(0.375 / 1.34)
    assert large.efficiency is not None and large.efficiency.low == pytest.approx(1 / 1.34)
    assert (small.met, large.met) == ("met", "cannot-tell")
    (_, unsure) = asked(runs=(("r.json", off_by(saved(), 0.25)),)).rows
    assert unsure.communication is not None
    assert unsure.communication.high / unsure.communication.low == pytest.approx(50 / 32, rel=0.01)


def test_errors_of_two_runs_do_not_cancel_out() -> None:
    """Both are up to a quarter off: that within a host may be the best case while that over hosts is the worst."""
    one, two = off_by(saved((8,), 0.0, 40.0), 0.25), off_by(saved((8, 8), 0.0, 20.0), 0.25)
    small, large = asked(runs=(("one.json", one), ("two.json", two)), figures=Figures()).rows
    assert small.step is not None and (small.step.low, small.step.high) == pytest.approx((1.0, 1.0))
    assert large.step is not None and large.step.high == pytest.approx(1 - 0.175 / 1.25 + 0.375 * 1.25)
    assert large.share is not None and large.share.high == pytest.approx(0.46875 / (1 - 0.175 * 1.25 + 0.46875))


def test_strong_scaling_divides_the_computation() -> None:
    _, large = asked(steps=(Step(1.0, 1),), strong=True).rows
    assert large.step is not None and (large.step.low, large.step.high) == pytest.approx((0.375, 1 / 16 + 0.375))
    assert large.efficiency is not None
    assert large.efficiency.low == pytest.approx(1 / 8 * 8 / (0.375 * 16))  # hidden: 8 GPUs gain more by it
    assert large.efficiency.high == pytest.approx((1 / 8 + 0.035) * 8 / ((1 / 16 + 0.375) * 16))


def test_what_is_sent_once_a_step_hides_behind_the_last_micro_batch_only() -> None:
    """375 ms of gradients beside a quarter of 1 s; what follows the optimizer beside nothing."""
    _, ddp = asked(accumulate=4, steps=(Step(1.0, 1),)).rows
    assert ddp.step is not None and ddp.step.low == pytest.approx(1.0 + 0.375 - 0.25)
    _, zero = asked("zero1", accumulate=4, steps=(Step(1.0, 1),)).rows
    assert zero.step is not None and zero.step.low == pytest.approx(1.0 + 0.375 - 0.25 + 0.1875)
    _, fsdp = asked("fsdp", accumulate=4, steps=(Step(1.0, 1),)).rows
    assert fsdp.step is not None and fsdp.step.low == pytest.approx(max(1.0, 9 * 0.1875))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(ways())),
    st.floats(0.3, 20.0),
    st.sampled_from([1, 8, 16, 32]),
    st.floats(5.0, 400.0),
    st.floats(0.0, 500.0),
    st.integers(1, 8),
    st.booleans(),
)
def test_bounds_hold_together(
    way: str, seconds: float, base: int, busbw: float, latency_us: float, accumulate: int, strong: bool
) -> None:
    figures = Figures(2 * busbw, busbw, latency_us)
    found = asked(way, (8, 16, 64), (Step(seconds, base),), strong, figures, accumulate=accumulate)
    for row in found.rows:
        if row.share is None or row.step is None or row.efficiency is None or row.communication is None:
            assert "too short" in found.trouble
            continue
        assert 0 <= row.share.low <= row.share.high <= 1 + 1e-9
        assert row.step.low >= row.communication.low * (1 - 1e-9)
        assert row.efficiency.low <= 1 + 1e-9 or strong
        if row.gpus == base:
            assert (row.step.low, row.step.high) == pytest.approx((seconds, seconds))


def test_the_bandwidth_that_is_named_meets_the_targets() -> None:
    def over(busbw: float, latency_us: float = 5.0) -> Row:
        return asked(figures=Figures(200.0, busbw, latency_us)).rows[1]

    for busbw, before in ((2.0, "missed"), (9.0, "cannot-tell")):
        row = over(busbw)
        assert row.met == before and row.needs is not None and row.needs.hidden and row.needs.bare
        assert row.needs.hidden < row.needs.bare and (busbw < row.needs.hidden) == (before == "missed")
        for factor, hidden, bare in ((1.001, "cannot-tell", "met"), (0.999, "missed", "cannot-tell")):
            assert (over(row.needs.hidden * factor).met, over(row.needs.bare * factor).met) == (hidden, bare)
    slow = over(9.0, 5000.0)
    assert slow.needs is not None and slow.needs.bare is None  # 153 calls of 5 ms each
    assert over(200.0).needs is None


def test_without_a_rate_there_is_no_number() -> None:
    small, large = asked(figures=Figures(in_host=200.0, latency_us=1.0)).rows
    assert small.share is not None and large.share is None and large.communication is None
    assert large.met == "cannot-tell" and "across hosts with 8 GPUs each" in large.trouble
    other = asked(figures=Figures(across=20.0, latency_us=1.0))
    assert "is not known" in other.trouble and other.rows[1].share is None and other.rows[1].communication is not None


def test_a_step_that_is_too_short_for_its_communication_is_contradicted() -> None:
    assert "takes 35000 s at least" in asked(steps=(Step(30.0, 8),), params=10**15).trouble
    found = asked(steps=(Step(0.03, 8),))
    assert "too short" in found.trouble and all(row.share is None and row.met == "cannot-tell" for row in found.rows)


def test_a_measured_step_bounds_its_own_communication() -> None:
    """0.47 to 1.05 s by the run's rate, in a step of 0.9 s: it takes no more than that."""
    run = off_by(saved((8,), 0.0, 10.0), 0.5)
    for seconds in (0.9, 0.62, 0.73):  # what is left may be a rounding error below 0
        (row,) = asked(gpus=(8,), steps=(Step(seconds, 8),), runs=(("one.json", run),), figures=Figures()).rows
        assert row.step is not None and (row.step.low, row.step.high) == pytest.approx((seconds, seconds))
        assert row.share is not None and row.share.high == pytest.approx(1.0)
    one, eight = asked(gpus=(1, 8), steps=(Step(0.9, 8),), runs=(("one.json", run),), figures=Figures()).rows
    assert one.step is not None and one.step.low == 0  # at the worst rate all of the step is communication
    assert one.share == Range(0.0, 0.0) and eight.efficiency is not None and eight.efficiency.low == 0


def test_other_measured_steps_are_compared() -> None:
    def off(seconds: float) -> float:
        measured = asked(steps=(Step(1.0, 8), Step(seconds, 16))).rows[1].measured
        assert measured is not None
        return measured.off

    assert (
        off(1.2) == off(1.34 * (1 + 1e-8)) == 0
        and off(1.34 * 1.5) == pytest.approx(0.5)
        and off(0.8) == pytest.approx(-0.2)
    )


# ---- the command ----

WORDS = ["estimate", "ddp", "--params", "1B", "--dtype", "float32", "--gpus", "8,16", "--gpus-per-host", "8"]
RATES = ["--busbw", "20", "--busbw-in-host", "200", "--latency", "10us"]


def told(*words: str, columns: int = 80) -> Any:
    return typed("", *words, env={"COLUMNS": str(columns)})


def test_it_is_told_in_eighty_columns() -> None:
    done = told(*WORDS, *RATES, "--step", "1s@8", "--step", "2s@16")
    assert done.exit_code == 0 and max(map(len, done.output.splitlines())) <= 80
    text = " ".join(done.output.split())
    for words in (
        "✓ MET: 8 GPUs", "? CANNOT TELL: 16 GPUs", "2(n-1)/n x 4 GB = 7 GB, 7.5 GB", "by --busbw-in-host",
        "16 GPUs: a bus bandwidth of", "it is 20 GB/s", "16 GPUs: 2 s, efficiency 50 %; 49 % longer than estimated",
    ):  # fmt: skip
        assert words in text, text
    assert "unless overlap_comm is on" in " ".join(told("estimate", "zero1", *WORDS[2:], *RATES).output.split())
    assert "✗ MISSED: 16 GPUs" in told(*WORDS, "--busbw", "2", *RATES[2:], "--step", "1s@8").output


def test_a_narrow_terminal_cuts_no_number_off() -> None:
    steps = ("--step", "850ms@8", "--step", "2s@16")
    told_at = [told(*WORDS, *RATES, *steps, columns=columns).output.partition("each sends")[0] for columns in (80, 56)]
    assert "…" not in told_at[1] and max(map(len, told_at[1].splitlines())) <= 56
    assert sorted("".join(told_at[0].split())) == sorted("".join(told_at[1].split()))


def test_words_and_numbers_as_people_write_them() -> None:
    def same(*words: str) -> bool:
        return told(*WORDS, *RATES, *words).output == told(*WORDS, *RATES).output

    assert same("--dtype", "fp32") and same("--dtype", "float") and same("--params", "1e9")
    assert not same("--dtype", "bf16") and "bfloat16" in told(*WORDS, *RATES, "--dtype", "bf16").output


def test_a_measured_step_on_a_number_that_was_not_asked_for_has_its_row() -> None:
    done = told(*WORDS, *RATES, "--step", "1s@8", "--step", "9s@32")
    assert "32 GPUs: 9 s, " in done.output


def test_saved_runs_say_what_is_known_and_how_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no name so long that it is broken
    write(saved(), tmp_path / "two\x1b[31m.json")
    done = told(*WORDS[:-2], "--from", "two\x1b[31m.json", "--step", "1s@16", columns=200)
    assert done.exit_code == 4 and "\x1b" not in done.output
    assert "two\\e[31m.json (nccl, 16 ranks on 2 hosts, 2026-11-22)" in " ".join(done.output.split())
    assert "nccl-doctor bench allreduce --gpus-per-host 8 " in done.output and "? NOT ESTIMATED: 8 GPUs" in done.output
    wide = told(*WORDS[:6], "--gpus", "32", "--gpus-per-host", "8", "--from", "two\x1b[31m.json", "--step", "1s@32")
    assert "and on where in their ranges the rates lie" in " ".join(wide.output.split()), wide.output
    none = told(*WORDS)
    assert none.exit_code == 3 and "bench allreduce --hosts HOSTFILE --gpus-per-host 8" in " ".join(none.output.split())


def test_the_json_has_the_published_schema(tmp_path: Path) -> None:
    write(saved(), tmp_path / "two.json")
    schema = json.loads((DOCS / "estimate.schema.json").read_text())
    for words in (RATES, ["--from", str(tmp_path / "two.json")], []):
        for step in ([], ["--step", "900ms@8", "--step", "1s@16"]):
            document = json.loads(told(*WORDS, *words, *step, "--format", "json").stdout)
            jsonschema.validate(document, schema)
            assert [row["gpus"] for row in document["rows"]] == [8, 16]
            met = [row[name] for row in document["rows"] for name in ("share_met", "efficiency_met")]
            assert all(met)  # also where it cannot be told
    assert document["schema"] == "nccl-doctor/estimate/1" and MOST_SHARE == 0.2 and LEAST_EFFICIENCY == 0.8


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--params 7Q", "expected a number of parameters"),
        ("--params 0", "expected a number of parameters"),
        ("--dtype fp8", "expected one of float64"),
        ("--grad-dtype fp8", "--grad-dtype 'fp8'"),
        ("--gpus 8,x", "expected numbers with commas"),
        ("--gpus 0", "expected numbers with commas"),
        ("--gpus 12", "12 GPUs are not whole hosts of 8"),
        ("--step 850ms", "--step '850ms': expected TIME@GPUS"),
        ("--step 850@8", "with its unit"),
        ("--step 0ms@8", "more than no time"),
        ("--step 1s@12", "not whole hosts"),
        ("--step 1s@8 --step 2s@8", "two steps of the same number of GPUs"),
        ("--busbw 20 --latency 40", "with its unit"),
        ("--busbw nan --latency 40us", "expected GB/s"),
        ("--busbw 0 --latency 40us", "expected GB/s"),
        ("--busbw-in-host 1e9 --latency 40us", "expected GB/s"),
        ("--busbw 20", "go together"),
        ("--latency 40us", "go together"),
        ("--layers 3", "--layers would change nothing"),
        ("--from /nowhere.json", "No such file"),
    ],
)
def test_bad_input_is_an_error(words: str, why: str) -> None:
    done = told(*WORDS, *words.split())
    assert done.exit_code == 2 and why in done.output


@pytest.mark.parametrize(
    ("way", "words", "why"),
    [
        ("tp", "", "sends activations"),
        ("hsdp", "", "two groups"),
        ("dpp", "", "there are ddp, fsdp"),
        ("fsdp", "", "estimate needs --layers N"),
        ("fsdp", "--layers 99999 --params 1K", "more than there are parameters"),
    ],
)
def test_what_cannot_be_estimated_is_refused(way: str, words: str, why: str) -> None:
    done = told("estimate", way, *WORDS[2:], *words.split())
    assert done.exit_code == 2 and why in done.output


def test_runs_that_tell_no_rate_are_refused(tmp_path: Path) -> None:
    wrong = saved(verdicts=(Verdict("allreduce", "wrong", "3 wrong elements"),))
    for number, run in enumerate((saved((1,)), wrong, msgspec.structs.replace(saved(), results=Results(16)))):
        write(run, tmp_path / f"{number}.json")
        done = told(*WORDS, "--from", str(tmp_path / f"{number}.json"))
        assert done.exit_code == 2 and "says nothing of rates" in done.output


def test_all_that_is_needed_is_told_at_once() -> None:
    assert "needs WAY (ddp, fsdp, " in told("estimate").output
    done = told("estimate", "fsdp", "--dtype", "bf16", columns=200)
    needed = "--params N, --gpus N,N,..., --gpus-per-host N (it decides which link they use), --layers N ("
    assert done.exit_code == 2 and f"estimate needs {needed}" in done.output


def test_two_measured_steps_tell_their_efficiency_whatever_is_known_of_rates() -> None:
    steps = ["--step", "1s@8", "--step", "1.25s@16"]
    for words, rates, efficiency in (([], [], 80), (["--strong"], [], 40), ([], RATES, 80)):
        done = told(*WORDS, *rates, *steps, *words)
        assert done.exit_code == (0 if rates else 3)
        assert f"measured 16 GPUs: 1.25 s, efficiency {efficiency} %" in " ".join(done.output.split()), done.output
