"""How long a bundle of many hosts takes to read, to judge and to render, beside json.loads of the same text.

    python benchmarks/bundle_scale.py [--hosts 1000,3000,10000] [--faulty] [--mesh-only]

Every host carries all probes of an eight-GPU host, read by the real probes from the tests' stand-in machine, with
temperatures, powers and serial numbers of its own: no two hosts have equal facts. With ``--faulty`` one host in ten
has lost its NVLinks and one in fifty was not reached. Prints seconds and ratios, all from one run; the last lines
compare the time per host of the sizes. 10,000 GPU hosts need 5 GB of memory here, half of it to make them up.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

import fleets
import page_fleet
from facts_builder import green_probes

from nccl_doctor.collect.mesh_plan import pairs
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.report import html
from nccl_doctor.rules.judge import judge, to_json


def fleet(count: int, machine: dict[str, Any], sick: dict[str, Any]) -> Bundle:
    """A fleet of ``count`` hosts, measured as ``check`` does by default (ring and random pairs).

    ``machine`` are the probes of a GPU host (empty: the mesh's alone), ``sick`` those of every tenth (empty: none).
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
        own = sick if sick and number % 10 == 3 else machine
        probes = {**sample, **own}
        if own:
            probes |= {
                "gpu": individual(own["gpu"], number),
                "interfaces": msgspec.to_builtins(fleets.interfaces(f"eth0/{address[name]}/16")),
                **others,
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
        results = {probe: ProbeResult(Outcome.OK, data) for probe, data in probes.items()}
        lost = bool(sick) and number % 50 == 7
        reach = Reach(ReachOutcome.TIMED_OUT, "no answer", ("ssh: timed out",)) if lost else Reach(ReachOutcome.OK)
        hosts.append(HostFacts(name, reach, {} if lost else results))
    stages = page_fleet.STAGES if machine else ("connectivity", "ports")
    return Bundle(1, "benchmark", "2026-01-01T00:00:00+00:00", Plan(stages, names[0]), tuple(hosts))


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


def timed(what: str, function: object, *arguments: object) -> tuple[object, float]:
    started = time.process_time()
    result = function(*arguments)  # type: ignore[operator]
    seconds = time.process_time() - started
    print(f"  {what:<34}{seconds:8.2f} s")
    return result, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="1000,3000,10000", help="numbers of hosts, the smallest first")
    parser.add_argument("--faulty", action="store_true", help="break some hosts")
    parser.add_argument("--mesh-only", action="store_true", help="the probes of the mesh alone, as without GPUs")
    options = parser.parse_args()
    machine = {} if options.mesh_only else page_fleet.hardware()
    sick = page_fleet.hardware(nvlink_lost={3}) if options.faulty else {}
    per_host: dict[str, list[float]] = {}  # milliseconds, one for each number of hosts
    sizes = [int(word) for word in options.hosts.split(",")]
    judge(fleet(20, machine, sick))  # imports are not the rules' time
    for count in sizes:
        content = bundles.to_bytes(fleet(count, machine, sick))
        text = gzip.decompress(content)
        print(f"{count} hosts: {len(content) / 1e6:.1f} MB on disk, {len(text) / 1e6:.1f} MB of JSON")
        _, plain = timed("json.loads (standard library)", json.loads, text)
        bundle, ours = timed("read the bundle (gunzip, msgspec)", bundles.from_bytes, content, "bundle")
        report, judged = timed("judge", judge, bundle)
        timed("report as JSON", to_json, report)
        page, rendered = timed("report as HTML", html.render, report, bundle)
        for what, seconds in (("json.loads", plain), ("read", ours), ("judge", judged), ("HTML", rendered)):
            per_host.setdefault(what, []).append(1e3 * seconds / count)
        print(f"  {report.verdict}, {len(report.findings)} findings; HTML {len(page.encode()) / 1e6:.2f} MB")  # type: ignore[attr-defined]
        print(f"  read / json.loads = {ours / plain:.2f}, judge / json.loads = {judged / plain:.2f}")
        del content, text, bundle, report, page
    print(f"ms a host, with {', '.join(f'{count:,}' for count in sizes)} hosts (equal: linear)")
    for what, times in per_host.items():
        print(f"  {what:<34}{'  '.join(f'{time:6.2f}' for time in times)}   last / first = {times[-1] / times[0]:.2f}")


if __name__ == "__main__":
    main()
