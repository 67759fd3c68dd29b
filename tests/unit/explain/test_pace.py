"""A pace that was left for good: in any logger's style, and none where the work changed, the start was slow or the noise is large."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource, Verdict

Row = Callable[[int, float, random.Random], str]  # step, seconds of it, noise
TOKENS = 524288.0


def _rank(step: int) -> str:
    return f"[rank{step % 2}]"


STYLES: dict[str, Row] = {
    "key-value": lambda step, time, _: f"step={step} loss=2.{step} tok_per_s={TOKENS / time:.0f}",
    "bars": lambda step, time, _: f"step {step:6d} | loss 2.{step} | lr 3.0e-04 | {time * 1000:.0f} ms/step",
    "samples": lambda step, time, _: (
        f"[06:{step % 60:02d}:07] epoch 1 step {step:5d}/9000 | mse 0.4 | {64 / time:.2f} samples/s/gpu"
    ),
    "thousands": lambda step, time, _: f"INFO step: {step} loss: 2.1 tps: {TOKENS / time:,.0f} mfu: {20 / time:.2f}%",
    "json": lambda step, time, _: json.dumps({"step": step, "loss": 2.1, "tokens_per_sec": round(TOKENS / time, 1)}),
    "json-time": lambda step, time, _: json.dumps({"step": step, "train/loss": 2.1, "step_time_ms": round(time * 1e3)}),
    "dict": lambda step, time, _: f"{{'loss': 2.1, 'step': {step}, 'train_samples_per_second': {64 / time:.3f}}}",
    "megatron": lambda step, time, _: (
        f" iteration {step:8d}/  500000 | elapsed time per iteration (ms): {time * 1000:.1f} | lm loss: 2.1E+00 |"
    ),
    "seconds": lambda step, time, _: f"2026-01-02 03:{step % 60:02d}:00 [rank 0] step {step} loss=3.2 time={time:.2f}s",
    "nanogpt": lambda step, time, _: f"iter {step}: loss 3.1, time {time * 1000:.2f}ms, mfu {30 / time:.2f}%",
    "dt": lambda step, time, _: f"step {step} | loss: 3.1 | dt: {time * 1000:.2f}ms | tok/sec: {TOKENS / time:.2f}",
    "detectron": lambda step, time, _: (
        f"eta: 1:02:03  iter: {step}  total_loss: 1.2  time: {time:.4f}  data_time: 0.0030  lr: 0.02"
    ),
    "steps-per-second": lambda step, time, _: f"global step {step} loss = 2.1 ({1 / time:.3f} steps/sec)",
    "deepspeed": lambda step, time, _: (
        f"[INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=64.0, "
        f"CurrSamplesPerSec={64 / time:.2f}, MemAllocated=9.1GB"
    ),
    "maxtext": lambda step, time, _: (
        f"completed step: {step}, seconds: {time:.3f}, total_weights: {step * 65}, loss: 2.1"
    ),
    "nemo": lambda step, time, _: f"global_step: {step} | reduced_train_loss: 2.1 | train_step_timing in s: {time:.2f}",
    "keras": lambda step, time, _: f"{step}/9000 - 12s {time * 1000:.0f}ms/step - loss: 0.5",
    "mmengine": lambda step, time, _: (
        f"Iter(train) [ {step}/9000] lr: 1e-03 eta: 1:10:00 time: {time:.4f} data_time: 0.0100 loss: 0.2"
    ),
    "two-ranks": lambda step, time, _: f"{_rank(step)} step {step} loss 2.1 step_time {time:.3f}",
    "table": lambda step, time, _: f"| {step:6d} | 2.10 | {TOKENS / time:10.0f} |",
    "columns": lambda step, time, _: f"{step:8d}  2.10  {time * 1000:8.1f}  0.30",
}
HEADS = {"table": "|   step | loss | tokens/s   |", "columns": "    step  loss  step_time_ms  grad"}


def _log(style: str, times: list[float], between: dict[int, str] | None = None) -> str:
    noise = random.Random(7)
    lines = ["NCCL version 2.28.3+cuda12.9", "torchrun --nnodes 2", *([HEADS[style]] if style in HEADS else [])]
    for nth, time in enumerate(times):
        lines += [between[nth]] if between and nth in between else []
        lines.append(STYLES[style](100 + 10 * nth, time * noise.uniform(0.97, 1.03), noise))
    return "\n".join([*lines, ""])


def _explain(text: str) -> Explanation:
    return analyse([LogSource("job.log", text)])


@pytest.mark.parametrize("style", STYLES)
def test_a_level_left_for_good_is_not_healthy(style: str) -> None:
    end = "Training complete\njob exited with code 0\n" if len(style) % 2 else ""
    got = _explain(_log(style, [1.0] * 9 + [1.55] * 8) + end)
    assert got.verdict is Verdict.UNDECIDED
    assert {"net.slow", "gpu.thermal-power"} <= {cause.id for cause in got.causes}
    first = got.causes[0].evidence[0]
    assert first.line == 12 + (style in HEADS), first  # the first slow row


@pytest.mark.parametrize("style", ["bars", "json", "table"])
@pytest.mark.parametrize(
    "times",
    [
        [1.0] * 20,
        [9.0, 4.0, 2.0, 2.0, 1.5] + [1.0] * 15,  # warm-up
        [1.6] * 9 + [1.0] * 9,  # it became faster
        [1.0] * 9 + [1.7] * 6 + [1.0] * 8,  # and back
        [1.0] * 9 + [3.0] + [1.0] * 9,  # a checkpoint, an evaluation
        [1.0, 1.0, 1.0, 2.2] * 6,  # every fourth step
        [1.0 + 0.06 * nth for nth in range(20)],  # a growing curriculum
        [1.0] * 5 + [1.4] * 5 + [1.9] * 5 + [2.6] * 5,  # in stages
        [1.0] * 9 + [1.15] * 9,  # within what a machine varies
        [1.0] * 9 + [1.7] * 3,  # too few rows to tell
        [1.0] * 3 + [1.7] * 12,  # a start that was not the rule
    ],
)
def test_a_pace_that_varies_is_healthy(style: str, times: list[float]) -> None:
    assert _explain(_log(style, times) + "Training complete\n").verdict is Verdict.HEALTHY


@pytest.mark.parametrize("style", ["bars", "json", "table"])
@pytest.mark.parametrize(
    "times",
    [
        [1.0] * 12
        + [1.45, 1.3, 1.7, 1.4, 1.55, 1.35, 1.62, 1.42, 1.3, 1.66, 1.45],  # unsteady, and never as fast again
        [1.0] * 12 + [1.25] * 12,  # a smaller fall, of many rows, beyond all noise
    ],
)
def test_a_smaller_or_unsteady_fall_that_lasts_is_told(style: str, times: list[float]) -> None:
    assert _explain(_log(style, times)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("style", ["bars", "json", "table"])
@pytest.mark.parametrize(
    "times",
    [
        [1.0, 1.2] * 6 + [1.25, 1.1] * 6,  # rows of one level are found in the other
        [1.0] * 12 + [1.1, 1.9, 1.2, 2.4, 1.1, 1.8, 1.0, 2.2, 1.1, 1.9, 1.2],  # now and then as fast as before
        [1.0] * 9 + [1.25] * 9,  # few rows
    ],
)
def test_a_smaller_or_unsteady_fall_within_the_scatter_is_healthy(style: str, times: list[float]) -> None:
    assert _explain(_log(style, times) + "Training complete\n").verdict is Verdict.HEALTHY


@pytest.mark.parametrize("style", ["bars", "json", "table"])
def test_a_slower_level_of_many_rows_that_was_left_again_is_told(style: str) -> None:
    got = _explain(_log(style, [1.0] * 12 + [1.5] * 10 + [1.0] * 14))
    assert got.verdict is Verdict.UNDECIDED
    assert "fell for a while" in got.causes[0].title
    lines = [item.line for item in got.causes[0].evidence]
    assert {15 + (style in HEADS), 24 + (style in HEADS)} <= set(lines), lines


@pytest.mark.parametrize(
    "times",
    [
        [1.0] * 12 + [1.5] * 8 + [1.0] * 16,  # few rows
        [1.0] * 6 + [1.5] * 12 + [1.0] * 16,  # a start that was not the rule
        [1.0] * 12 + [1.15] * 12 + [1.0] * 14,  # within what a machine varies
        ([1.0] * 10 + [1.5] * 10) * 3 + [1.0] * 12,  # again and again: the program's own way
    ],
)
def test_a_slower_level_for_a_while_that_may_be_usual_is_healthy(times: list[float]) -> None:
    assert _explain(_log("bars", times) + "Training complete\n").verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("batch", "verdict"), [(512, Verdict.HEALTHY), (256, Verdict.UNDECIDED)])
def test_steps_that_take_longer_since_their_batch_grew_are_no_slower(batch: int, verdict: Verdict) -> None:
    rows = [(1.0 + 0.1 * nth, min(batch, 256 + 32 * nth)) for nth in range(9)] + [(1.9, batch)] * 40
    text = "".join(
        f" iteration {100 + nth * 10:8d}/ 9000 | elapsed time per iteration (ms): {time * 1000:.1f} | global batch size: {size:5d} |\n"
        for nth, (time, size) in enumerate(rows)
    )
    assert _explain(text).verdict is verdict


def _server(late: str) -> str:
    early = "generation throughput: {} tokens/s, Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 40.0%"
    rows = [early.format(2100 + 40 * nth) for nth in range(6)] + [late.format(900 + 20 * nth) for nth in range(4)]
    return "".join(
        f"INFO 02-03 04:0{nth}:00 Avg prompt throughput: 3000.0 tokens/s, Avg {row}\n" for nth, row in enumerate(rows)
    )


def test_a_server_that_generates_far_less_while_requests_wait_is_not_healthy() -> None:
    late = "generation throughput: {} tokens/s, Running: 64 reqs, Waiting: 30 reqs, GPU KV cache usage: 41.0%"
    got = _explain(_server(late))
    assert got.verdict is Verdict.UNDECIDED
    assert "generation throughput was 2,200, and is 930" in got.causes[0].title


@pytest.mark.parametrize(
    "late",
    [
        "generation throughput: {} tokens/s, Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 41.0%",  # nobody asks
        "generation throughput: {} tokens/s, Running: 20 reqs, Waiting: 3 reqs, GPU KV cache usage: 41.0%",  # fewer at a time
        "generation throughput: {} tokens/s, Running: 64 reqs, Waiting: 30 reqs, GPU KV cache usage: 97.0%",  # long contexts
    ],
)
def test_a_server_with_less_or_other_work_is_healthy(late: str) -> None:
    assert _explain(_server(late)).verdict is Verdict.HEALTHY


@pytest.mark.parametrize("style", ["bars", "json", "table"])
def test_in_a_paste_three_rows_on_either_side_tell_a_far_slower_level(style: str) -> None:
    assert _explain(_log(style, [1.0] * 3 + [1.9] * 3)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "times", [[1.0] * 3 + [1.4] * 3, [1.0] * 2 + [1.9] * 4, [1.0] * 4 + [1.9] * 2, [1.0, 1.2, 1.0, 1.5, 2.0, 2.6]]
)
def test_in_a_paste_less_is_healthy(times: list[float]) -> None:
    assert _explain(_log("bars", times)).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "said",
    [
        "[config] sequence length 4096 -> 8192",
        "INFO entering phase 2: seq_len=512",
        "switching to batch size 1024",
        "unfreezing the backbone",
        "torch.profiler started, tracing 100 steps",
        "curriculum: difficulty 3",
        "enabled activation checkpointing",
        "scaled down to 6 nodes",
        "image resolution now 448",
    ],
)
def test_more_work_for_a_step_is_no_slowdown(said: str) -> None:
    assert _explain(_log("bars", [1.0] * 9 + [1.6] * 9, {9: said})).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "said", ["checkpoint written, 38 s", "validation loss 2.31", "saving to /ckpt/100", "loaded shard 17 of 400"]
)
def test_other_lines_between_do_not_excuse_it(said: str) -> None:
    assert _explain(_log("bars", [1.0] * 9 + [1.6] * 9, {9: said})).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("column", ["seqlen", "global_batch_size", "bs", "world_size", "n_gpus", "img_size"])
def test_a_row_may_say_itself_that_its_work_grew(column: str) -> None:
    def log(last: int) -> str:
        rows = [(step, 1.0, 2048) for step in range(9)] + [(step, 1.9, last) for step in range(9, 18)]
        return "".join(f"step={step} loss=2.1 {column}={size} step_time={time}s\n" for step, time, size in rows)

    assert _explain(log(4096)).verdict is Verdict.HEALTHY
    assert _explain(log(2048)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("part", "first"),
    [("data", "app.straggler-timeout"), ("fwd", "gpu.thermal-power"), ("bwd", "net.slow"), ("comm", "net.slow")],
)
def test_the_part_that_grew_is_named(part: str, first: str) -> None:
    was = {"data": 30, "fwd": 400, "bwd": 800, "comm": 120}
    now = was | {part: was[part] + 700}
    rows = [was] * 8 + [now] * 8
    text = "".join(
        f"step {nth} loss 2.1 " + " ".join(f"{name}_ms={time}" for name, time in row.items()) + "\n"
        for nth, row in enumerate(rows)
    )
    got = _explain(text)
    assert got.verdict is Verdict.UNDECIDED
    assert got.causes[0].id == first
    assert f"longer takes {part}_ms, not" in got.causes[0].title


@pytest.mark.parametrize(
    "row",
    [
        "INFO: Running: {n} reqs, Waiting: 0 reqs, generation throughput: {rate} tokens/s",
        "Decode batch. #running-req: {n}, gen throughput (token/s): {rate}",
        "eval step {n} {rate} samples/s",
    ],
)
def test_a_servers_load_is_no_pace(row: str) -> None:
    text = "".join(row.format(n=nth, rate=900 if nth < 9 else 300) + "\n" for nth in range(18))
    assert _explain(text + "step 5 loss 2.1\n").verdict is Verdict.HEALTHY


def test_where_the_pace_fell_is_seen_in_a_log_of_a_days_work() -> None:
    text = _log("bars", [1.0] * 1000 + [1.4] * 1000)
    got = _explain(text)
    assert 64 << 10 < len(text) < 192 << 10
    assert (got.verdict, got.causes[0].evidence[0].line) == (Verdict.UNDECIDED, 1003)  # behind two lines of heading


def test_a_large_log_is_judged_by_its_ends() -> None:
    """What stands between is not read: only a far slower end is told."""

    def log(factor: float) -> str:
        return _log("bars", [1.0] * 2500 + [factor] * 2500)

    assert len(log(2.0)) > 192 << 10
    assert _explain(log(2.0)).verdict is Verdict.UNDECIDED
    assert _explain(log(1.4)).verdict is Verdict.HEALTHY


_INTERRUPT = "torch/distributed/elastic/agent/server/api.py:719] Received 2 death signal, shutting down workers\n"


@pytest.mark.parametrize(
    ("when", "cause"),
    [("10:02:20", "launch.killed"), ("10:05:40", "launch.killed"), ("10:41:12", "app.straggler-timeout")],
)
def test_who_interrupts_a_job_that_stands_still_is_no_cause(when: str, cause: str) -> None:
    steps = "".join(f"2026-02-04 10:0{nth // 2}:{30 * (nth % 2):02d} step {nth} loss 2.1\n" for nth in range(5))
    got = _explain(f"{steps}2026-02-04 {when} {_INTERRUPT}")
    assert got.causes[0].id == cause
    assert (got.verdict is Verdict.CAUSE_FOUND) == (cause == "launch.killed")


def test_seconds_of_a_step_are_no_rate_and_their_reporter_is_not_to_blame() -> None:
    """However unsteady the new level is: none of its steps is as fast as any before."""
    new = [7.5, 6.3, 4.6, 6.8, 7.0, 4.2, 7.5, 5.7, 5.3, 4.3, 7.8, 4.3, 5.4, 6.5, 4.1, 5.6, 4.4, 5.4, 4.1, 4.5]
    for row in ("[rank 0] step {n} loss 1.9 iter {t}s fwdbwd 2.7s", "[rank 0] step={n} loss=1.9 step_s={t}"):
        times = [3.02, 3.03] * 10 + new
        text = "".join(row.format(n=n, t=time) + "\n" for n, time in enumerate(times))
        told = _explain(text)
        assert told.verdict is Verdict.UNDECIDED and "the pace fell for good" in told.causes[0].title
        assert not told.causes[0].ranks
        assert _explain(text.replace(str(new[-2]), "3.0")).verdict is Verdict.HEALTHY
