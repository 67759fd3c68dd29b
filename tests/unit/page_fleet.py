"""Fleets that fill every section of the HTML page: GPU hosts with all probes, healthy, and broken in several ways."""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import fleets
import msgspec
from facts_builder import NAMES, Builder, address

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hardware_kit"))

from machines import Machine, compiler_missing

from nccl_doctor.bench.ceiling import Ceiling
from nccl_doctor.bench.model import BenchPlan, RankRecord, Results, measurement
from nccl_doctor.bench.outcome import Asked, Outcome, conclude
from nccl_doctor.bench.world import Share, World
from nccl_doctor.facts.collectives import Collectives, RankEnd, Where
from nccl_doctor.facts.model import Reach, ReachOutcome

__all__ = ["NAMES", "broken", "builder", "compiler_missing", "hardware", "runs"]
STAGES = ("connectivity", "ports", "interfaces", "system", "software", "gpu", "topology", "infiniband")


def hardware(**changes: Any) -> dict[str, Any]:
    """What the real probes read of a (changed) eight-GPU machine: probe -> plain data."""
    with tempfile.TemporaryDirectory(prefix="page-machine-") as directory:
        machine = Machine(Path(directory))
        for name, value in changes.items():
            setattr(machine, name, value)
        return {name: one["data"] for name, one in machine.facts().items()}


def host_probes(name: str, machine: dict[str, Any]) -> dict[str, Any]:
    """Everything but the mesh's probes, as plain data."""
    return {
        **copy.deepcopy(machine),
        "system": msgspec.to_builtins(fleets.system()),
        "software": msgspec.to_builtins(fleets.software()),
        "environment": {"variables": {"NCCL_DEBUG": "WARN"}},
        "interfaces": msgspec.to_builtins(fleets.interfaces(f"eth0/{address(name)}/24")),
        "carriers": msgspec.to_builtins(fleets.carriers()),
    }


def builder(machine: dict[str, Any], names: tuple[str, ...] = NAMES) -> Builder:
    made = Builder(names)
    made.stages = STAGES
    for name in names:
        made.probes[name].update(host_probes(name, machine))
    return made


def broken(machine: dict[str, Any], sick: dict[str, Any]) -> Builder:
    """Eight hosts: one sick machine, one with other software, a slow pair, one unreached."""
    names = tuple(f"gpu{n:02d}" for n in range(1, 9))
    made = builder(machine, names)
    made.probes["gpu03"].update(copy.deepcopy(sick))
    odd = fleets.software()
    changed = msgspec.structs.replace(odd, distributions={**odd.distributions, "numpy": "2.1.9"})
    made.probes["gpu05"]["software"] = msgspec.to_builtins(changed)
    for link in made.links("gpu02", "gpu06"):
        if link["rtt_p50_ms"] is not None:
            link["rtt_p50_ms"] = 4.2
    made.reach["gpu07"] = Reach(
        ReachOutcome.TIMED_OUT, "no answer within 5 s", ("ssh: connect to host gpu07 port 22: Connection timed out",)
    )
    made.probes["gpu08"].pop("system")
    return made


def runs() -> list[tuple[str, Outcome]]:
    """Two bench runs of one eight-GPU host: today's, slower for large messages, and the one before, its baseline."""
    before = _run(1.0, None)
    return [("today", _run(0.55, before)), ("yesterday", before)]


def _run(factor: float, baseline: Outcome | None) -> Outcome:
    sizes = []
    for power in range(13, 34, 2):
        size = 1 << power
        time_us = 25.0 + size * 1.75 / (470e3 * (factor if power > 25 else 1.0))
        spread = [time_us * (0.995 + 0.001 * (n % 10)) for n in range(40)]
        event = {"collective": "allreduce", "mode": "in", "size": size, "asked": size, "count": size // 4, "root": -1,
                 "rank_means_us": [time_us] * 8, "iteration_us": spread, "wrong": [0] * 8}  # fmt: skip
        sizes.append(measurement(event, 8))
    ranks = tuple(RankRecord(rank, "gpu01", device_name="NVIDIA H100 80GB HBM3", pid=100 + rank) for rank in range(8))
    ends = tuple(RankEnd(rank, finished=True, exit=0, where=Where("end")) for rank in range(8))
    found = conclude(
        plan=BenchPlan(("allreduce",), (1 << 13, 1 << 33)),
        world=World("nccl", "asked for", (Share("gpu01", 0, 8),), "gpu01", "127.0.0.1", 1),
        results=Results(8, ranks=ranks, measurements=tuple(sizes)),
        facts={"gpu01": Collectives("gpu01", ranks=ends)},
        prepared={},
        created="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        asked=Asked(baseline=baseline),
    )
    return msgspec.structs.replace(found, ceiling=Ceiling(477.0, "18 NVLinks of 26.5 GB/s per GPU", False))
