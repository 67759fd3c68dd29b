"""How long a bundle of many hosts takes to read, to judge, to render and to compare, beside json.loads of the same text.

    python benchmarks/bundle_scale.py [--hosts 1000,3000] [--fleet clean,one-in-20,all-alike,each-own]

Every host carries all probes of an eight-GPU host, read by the real probes from the tests' stand-in machine, with
temperatures, powers and serial numbers of its own: no two hosts have equal facts. ``broken_fleets.py`` says what is
wrong with which. Prints CPU seconds and ratios, all from one run; the last lines compare the time per host of the sizes.
10,000 GPU hosts need 5 GB of memory here, half of it to make them up.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

import fleets
import page_fleet
from broken_fleets import FLEETS, Spoil
from facts_builder import green_probes

from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.history import store
from nccl_doctor.history.analyse import Analysis, analyse
from nccl_doctor.history.model import Run
from nccl_doctor.history.record import run_of
from nccl_doctor.report import formats
from nccl_doctor.report.console import render
from nccl_doctor.rules import compare
from nccl_doctor.rules.gate import decide
from nccl_doctor.rules.judge import Report, judge
from nccl_doctor.rules.mesh_pairs import pairs

T = TypeVar("T")


def fleet(count: int, machine: dict[str, Any], spoil: Spoil | None = None) -> Bundle:
    """A fleet of ``count`` hosts, measured as ``check`` does by default (ring and random pairs).

    ``machine`` are the probes of a GPU host; ``spoil`` breaks some of the hosts; one in fifty of those was not reached.
    """
    names = [f"node{index:05d}" for index in range(count)]
    address = {name: f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}" for index, name in enumerate(names)}
    peers: dict[str, list[str]] = {}
    for one, other in pairs(names, "sparse"):
        peers.setdefault(one, []).append(other)
    sample = green_probes("gpu02")
    hosts = []
    others = page_fleet.host_probes("gpu01", {})
    others.pop("interfaces")
    for number, name in enumerate(names):
        probes = {
            **sample,
            **others,
            **machine,
            "interfaces": msgspec.to_builtins(fleets.interfaces(f"eth0/{address[name]}/16")),
        }
        probes["names"] = {
            "host_name": name,
            "own": {"addresses": [address[name]]},
            "resolved": {other: {"addresses": [address[other]]} for other in names} if name == names[0] else {},
            "addresses": ["127.0.0.1", address[name]],
            "reference": "" if name == names[0] else names[0],
        }
        link = sample["links"]["links"][0]
        probes["links"] = {
            "links": [
                {**link, "peer": peer, "address": address[peer], "port": 40001 + index, "rtt_p50_ms": random.random()}
                for peer in peers[name]
                for index in range(3)
            ]
        }
        if spoil:
            spoil(probes, number)
        probes["gpu"] = individual(probes["gpu"], number)
        results = {probe: ProbeResult(Outcome.OK, data) for probe, data in probes.items()}
        lost = spoil is not None and number % 50 == 7
        reach = Reach(ReachOutcome.TIMED_OUT, "no answer", ("ssh: timed out",)) if lost else Reach(ReachOutcome.OK)
        hosts.append(HostFacts(name, reach, {} if lost else results))
    plan = Plan(page_fleet.STAGES, names[0])
    return Bundle(1, "benchmark", "2026-01-01T00:00:00+00:00", plan, tuple(hosts))


def individual(gpu: dict[str, Any], number: int) -> dict[str, Any]:
    """The GPUs of one host, with what differs on every machine: serial number, UUID, temperature, power."""
    gpus = [
        {
            **one,
            "uuid": f"GPU-{number:08x}-{index}",
            "serial": str(16500000000 + 8 * number + index),
            "temperature_c": 30 + (number + index) % 9,
            "power_w": 70 + (7 * number + index) % 50 + 0.5,
        }
        for index, one in enumerate(gpu["gpus"])
    ]
    return {**gpu, "gpus": gpus}


class Clock:
    """CPU seconds by what was timed, for one number of hosts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        started = time.process_time()
        result = function(*arguments)
        self.seconds[what] = time.process_time() - started
        print(f"  {what:<34}{self.seconds[what]:8.2f} s", flush=True)
        return result


def console(report: Report) -> str:
    """The report as a terminal shows it."""
    out = Console(file=io.StringIO(), width=160, highlight=False, markup=False, emoji=False)
    render(report, out)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def kept(run: Run) -> Analysis:
    """Three runs of the fleet appended to a history, read again and analysed."""
    with tempfile.TemporaryDirectory(prefix="bundle-scale-") as directory:
        for day in "123":
            store.append(Path(directory), msgspec.structs.replace(run, created=f"2026-01-0{day}T00:00:00+00:00"))
        return analyse(store.read(Path(directory)))


def measure(count: int, machine: dict[str, Any], spoil: Spoil | None) -> dict[str, float]:
    """Everything that is done with a bundle of so many hosts, timed; CPU seconds by what."""
    clock = Clock()
    content = bundles.to_bytes(fleet(count, machine, spoil))
    text = gzip.decompress(content)
    print(f"{count} hosts: {len(content) / 1e6:.1f} MB on disk, {len(text) / 1e6:.1f} MB of JSON")
    clock.timed("json.loads (standard library)", json.loads, text)
    bundle = clock.timed("read the bundle", bundles.from_bytes, content, "bundle")
    report = clock.timed("judge", judge, bundle)
    gate = clock.timed("decide (preflight)", decide, report)
    clock.timed("hosts to keep away from", lambda: gate.not_good)
    clock.timed("console", console, report)
    sizes = []
    for name in formats.names():
        text = clock.timed(name, formats.render, name, report, gate, bundle)
        sizes.append(f"{name} {len(text.encode()) / 1e6:.2f}")
    clock.timed("history", kept, clock.timed("history: what is kept", run_of, bundle, report, "check", gate))
    clock.timed("diff with itself (judged twice)", compare.bundles, bundle, bundle, ("a", "b"))
    print(f"  {report.verdict}, {len(report.findings)} findings, {len(report.unknown)} gaps; MB: {', '.join(sizes)}")
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="1000,3000", help="numbers of hosts, the smallest first")
    parser.add_argument("--fleet", default="clean,one-in-20", help=f"which of {', '.join(FLEETS)}")
    options = parser.parse_args()
    machine = page_fleet.hardware()
    sizes = [int(word) for word in options.hosts.split(",")]
    judge(fleet(20, machine))  # imports are not the rules' time
    for name in options.fleet.split(","):
        print(f"\nfleet: {name}")
        seconds = [measure(count, machine, FLEETS[name]) for count in sizes]
        print(f"ms a host, with {', '.join(f'{count:,}' for count in sizes)} hosts (equal: linear)")
        for what in seconds[0]:
            times = [1e3 * one[what] / count for one, count in zip(seconds, sizes, strict=True)]
            ratio = times[-1] / times[0] if times[0] else 1.0
            print(f"  {what:<34}{'  '.join(f'{time:6.2f}' for time in times)}   last / first = {ratio:.2f}")


if __name__ == "__main__":
    main()
