"""The short collectives of ``check``: an all-reduce and an all-gather over all hosts, within a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.bench.run import Run, Session, prepare
from nccl_doctor.bench.world import CannotRun, Prepared, place, read_prepared
from nccl_doctor.facts.model import Outcome, ProbeResult
from nccl_doctor.rules.collectives import SHORT_RUN

SHORT_PLAN = BenchPlan(
    collectives=SHORT_RUN,
    sizes=(64 << 10, 4 << 20),
    warmup=1,
    min_iters=2,
    budget_s=2.0,
    limit_s=15.0,
    links=2 << 20,
)
GPU_SIZES = (1 << 20, 256 << 20)
LEAST_S = 8.0  # torch's import alone takes some
KEPT_OUTPUT = 16 << 10  # characters


def run_short(
    sessions: Mapping[str, Session],
    deadline_s: float = 60.0,
    master: str = "",
    reached_at: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, ProbeResult]:
    """Run the short collectives over all sessions: host name -> result of probe ``collectives``.

    ``env`` is the job's: its NCCL, Gloo and torch variables are given to the ranks, so that the job's path is tried.
    ``deadline_s`` seconds are all there is. Hosts without torch are ``tool-missing`` and left out of the world; where
    no world can be made, every host is ``not-run`` with the reason. Never raises for what hosts do.
    """
    end = time.monotonic() + deadline_s
    own = {name: value for name, value in (env or {}).items() if name.startswith(("NCCL_", "GLOO_", "TORCH_"))}
    plan = msgspec.structs.replace(SHORT_PLAN, env=own)
    answers = prepare(sessions, plan, min(20.0, deadline_s))
    results: dict[str, ProbeResult] = {}
    ready: dict[str, Prepared] = {}
    for name, answer in answers.items():
        prepared = read_prepared(answer)
        if isinstance(prepared, str):
            outcome = answer.outcome if answer.outcome is not Outcome.OK else Outcome.FAILED
            results[name] = ProbeResult(outcome, None, prepared)
        elif prepared.torch_trouble:
            results[name] = ProbeResult(
                Outcome.FAILED if prepared.torch.error else Outcome.TOOL_MISSING, None, prepared.torch_trouble
            )
        else:
            ready[name] = prepared
    if not ready:
        return results
    left_s = end - time.monotonic()
    try:
        if left_s < LEAST_S:
            raise CannotRun(f"{left_s:.0f} s were left before the deadline, too few to start torch")
        if len(ready) == 1 and not next(iter(ready.values())).gpus:
            plan = msgspec.structs.replace(plan, ranks_per_host=2)  # one rank alone would prove nothing
        world = place(ready, plan, master, reached_at)
    except CannotRun as reason:
        return {**results, **{name: ProbeResult(Outcome.NOT_RUN, None, str(reason)) for name in ready}}
    if world.backend == "nccl":
        plan = msgspec.structs.replace(plan, sizes=GPU_SIZES)
    plan = msgspec.structs.replace(plan, limit_s=min(plan.limit_s, left_s / 2))
    done = Run(sessions, world, plan, left_s - 1.0, lambda host, event: None).run()
    return {**results, **{name: _trim(result) for name, result in done.items()}}


def _trim(result: ProbeResult) -> ProbeResult:
    """Bundles stay small: keep a rank's whole output where it failed, its beginning where it did not."""
    if result.outcome is not Outcome.OK:
        return result
    ranks: list[dict[str, Any]] = []
    for rank in result.data["ranks"]:
        output = rank["output"]
        if rank["finished"] and len(output) > KEPT_OUTPUT:
            rank = dict(rank, output=output[:KEPT_OUTPUT], output_cut=rank["output_cut"] + len(output) - KEPT_OUTPUT)
        ranks.append(rank)
    return msgspec.structs.replace(result, data=dict(result.data, ranks=ranks))
