"""Large fleets cost in proportion to their hosts, whatever is wrong with them: calls and bytes are counted, not seconds."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import page_fleet
import pytest

from nccl_doctor.history.analyse import analyse
from nccl_doctor.history.record import run_of
from nccl_doctor.report import formats
from nccl_doctor.rules import compare
from nccl_doctor.rules.gate import decide
from nccl_doctor.rules.judge import judge

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FEW, MANY = 70, 140  # more than what is kept at hand (64 parsed matrices, 64 folded lists)
MOST = 1.15  # times what a host costs in the small fleet; the counts are the same in every run

pytestmark = pytest.mark.skipif(page_fleet.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")


@pytest.fixture(scope="module")
def benchmark() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import bundle_scale
    finally:
        sys.path.remove(str(BENCHMARKS))
    judge(bundle_scale.fleet(4, page_fleet.hardware()))  # what is imported and read once is not counted
    return bundle_scale


def calls(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    profile = cProfile.Profile()
    result = profile.runcall(function, *arguments)
    return result, pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def costs(bundle: Any, console: Callable[[Any], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    report, found["judge"] = calls(judge, bundle)
    gate, found["decide"] = calls(decide, report)
    _, found["hosts to keep away from"] = calls(lambda: gate.not_good)
    run, found["history"] = calls(run_of, bundle, report, "check", gate)
    _, found["analyse"] = calls(analyse, (run, run))
    _, found["diff"] = calls(compare.bundles, bundle, bundle)
    text, found["console"] = calls(console, report)
    found["console, bytes"] = len(text)
    for name in formats.names():
        text, found[name] = calls(formats.render, name, report, gate, bundle)
        found[f"{name}, bytes"] = len(text)
    return found


# Of one-in-20 the larger fleet has more kinds of faults.
@pytest.mark.parametrize("name", ["clean", "all-alike", "each-own"])
def test_cost_per_host_does_not_grow(name: str, benchmark: Any) -> None:
    machine, spoil = page_fleet.hardware(), benchmark.FLEETS[name]
    few, many = (costs(benchmark.fleet(count, machine, spoil), benchmark.console) for count in (FEW, MANY))
    growth = {what: many[what] / few[what] / (MANY / FEW) for what in few}
    assert {what: round(ratio, 2) for what, ratio in growth.items() if ratio > MOST} == {}
