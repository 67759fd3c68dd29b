"""Benchmarks for programs: the table that nccl-tests prints, and CSV. JSON is ``bench.outcome.encode``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.model import Measurement
from nccl_doctor.bench.outcome import Outcome
from nccl_doctor.report.safe_text import visible

# The names nccl-tests prints.
_DTYPE = {"float32": "float", "float64": "double", "float16": "half"}

CSV_COLUMNS = (
    "collective", "mode", "size_bytes", "asked_bytes", "count", "dtype", "op", "root", "ranks", "hosts", "backend",
    "iterations", "time_us", "min_us", "median_us", "p95_us", "p99_us", "cv", "algbw_gbs", "busbw_gbs",
    "slowest_rank", "slowest_behind", "wrong", "path_proved", "skipped",
)  # fmt: skip


def fixed(value: float, width: int) -> str:
    """A number in at most ``width`` characters: two decimals, else one, else none, else an exponent."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}"


def nccl_tests(outcome: Outcome) -> str:
    """The text of nccl-tests: 13 columns, out of place first, and its footer. A block that was not measured is N/A."""
    return "".join(f"{line}\n" for name in _names(outcome) for line in _nccl_tests_one(outcome, name))


def _names(outcome: Outcome) -> list[str]:
    return [name for name in outcome.plan.collectives if name in COLLECTIVES]


def _nccl_tests_one(outcome: Outcome, name: str) -> Iterator[str]:
    plan, own = outcome.plan, [item for item in outcome.results.measurements if item.collective == name]
    yield f"# nccl-doctor version {outcome.tool} backend: {outcome.world.backend}"
    yield f"# Collective test starting: {COLLECTIVES[name].nccl_tests}"
    first, last = (min(plan.sizes), max(plan.sizes)) if plan.sizes else (0, 0)
    yield (
        f"# nThread 1 nGpus 1 minBytes {first} maxBytes {last} warmup iters: {plan.warmup} "
        f"iters: {plan.iters or 'adaptive'} agg iters: 1 validation: {int(plan.check)} graph: {int(plan.cuda_graph)}"
    )
    if any(item.mode == "copy" for item in own):
        yield "# out-of-place: torch.distributed has no such call; the time is that of a copy and the in-place call"
    yield "#"
    yield "# Using devices"
    for record in outcome.results.ranks:
        device = record.device.partition(":")[2] or "0"
        yield (
            f"#  Rank {record.rank:2d} Group  0 Pid {record.pid:6d} on {visible(record.host):>10} device "
            f"{int(device):2d} [{visible(record.device_id or record.device)}] {visible(record.device_name or 'CPU')}"
        )
    yield "#"
    yield f"#{'':52}{'out-of-place':>28}{'in-place':>31}"
    block = "  ".join(("   time", " algbw", " busbw", "#wrong"))
    yield f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {block}  {block}"
    units = "  ".join(("   (us)", "(GB/s)", "(GB/s)", "      "))
    yield f"#{'(B)':>11}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}  {units}  {units}"
    for size in sorted({item.size for item in own}):
        yield _row(outcome, [item for item in own if item.size == size])
    wrong = sum(item.wrong or 0 for item in own)
    average = sum(item.busbw_gbs for item in own) / len(own) if own else 0.0
    checked = bool(own) and all(item.wrong is not None for item in own)
    yield f"# Out of bounds values : {f'{wrong} FAILED' if wrong else '0 OK' if checked else 'N/A'}"
    yield f"# Avg bus bandwidth    : {average:g}" if own else "# Avg bus bandwidth    : N/A"
    yield "#"
    yield f"# Collective test concluded: {COLLECTIVES[name].nccl_tests}"


def _row(outcome: Outcome, own: list[Measurement]) -> str:
    first, plan = own[0], outcome.plan
    reduces = first.collective in ("allreduce", "reducescatter", "reduce")
    head = (
        f"{first.size:12d}  {first.count:12d}  {_DTYPE.get(plan.dtype, plan.dtype):>8}  "
        f"{plan.op if reduces else 'none':>6}  {first.root:6d}"
    )
    out = next((item for item in own if item.mode in ("out", "copy")), None)
    inside = next((item for item in own if item.mode == "in"), None)
    return head + _block(out) + _block(inside)


def _block(item: Measurement | None) -> str:
    if item is None:
        return f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
    wrong = "N/A" if item.wrong is None else f"{item.wrong:g}"
    time, algbw, busbw = fixed(item.time_us, 7), fixed(item.algbw_gbs, 6), fixed(item.busbw_gbs, 6)
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}"


def csv_text(outcome: Outcome) -> str:
    """One line per measurement and per skipped size, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_csv_rows(outcome))
    return text.getvalue()


def _csv_rows(outcome: Outcome) -> Iterator[Iterable[object]]:
    plan, world = outcome.plan, outcome.world
    for item in outcome.results.measurements:
        spread = item.spread
        yield (
            item.collective, item.mode, item.size, item.asked, item.count, plan.dtype, plan.op, item.root, world.size,
            len(world.per_host), world.backend, spread.n, f"{item.time_us:.3f}", f"{spread.min_us:.3f}",
            f"{spread.median_us:.3f}", f"{spread.p95_us:.3f}", f"{spread.p99_us:.3f}", "" if spread.cv is None else f"{spread.cv:.4f}",
            f"{item.algbw_gbs:.6g}", f"{item.busbw_gbs:.6g}", item.slowest_rank, f"{item.slowest_behind:.4f}",
            "" if item.wrong is None else item.wrong, int(outcome.path.proved), "",
        )  # fmt: skip
    for skip in outcome.results.skips:
        row: list[object] = [""] * len(CSV_COLUMNS)
        row[0], row[1], row[3], row[-1] = skip.collective, skip.mode, skip.size, visible(skip.reason)
        yield row
