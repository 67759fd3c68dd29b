"""How long a bundle of many hosts takes to read and to judge, beside json.loads of the same text.

    python benchmarks/bundle_scale.py [--hosts 100,1000]

Prints seconds and ratios, all from one run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from facts_builder import green_probes

from nccl_doctor.collect.mesh_plan import pairs
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.rules.judge import judge, to_json


def fleet(count: int) -> Bundle:
    """A green fleet of ``count`` hosts, measured as ``check`` does by default (ring and random pairs)."""
    names = [f"node{index:05d}" for index in range(count)]
    address = {name: f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}" for index, name in enumerate(names)}
    peers: dict[str, list[str]] = {}
    for one, other in pairs(names, "sparse"):
        peers.setdefault(one, []).append(other)
    sample = green_probes("gpu02")
    hosts = []
    for name in names:
        probes = dict(sample)
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
        hosts.append(HostFacts(name, Reach(ReachOutcome.OK), results))
    return Bundle(1, "benchmark", "2026-01-01T00:00:00+00:00", Plan(("connectivity", "ports"), names[0]), tuple(hosts))


def timed(what: str, function: object, *arguments: object) -> tuple[object, float]:
    started = time.perf_counter()
    result = function(*arguments)  # type: ignore[operator]
    seconds = time.perf_counter() - started
    print(f"  {what:<34}{seconds:8.2f} s")
    return result, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="100,1000,10000")
    for count in [int(word) for word in parser.parse_args().hosts.split(",")]:
        content = bundles.to_bytes(fleet(count))
        text = gzip.decompress(content)
        print(f"{count} hosts: {len(content) / 1e6:.1f} MB on disk, {len(text) / 1e6:.1f} MB of JSON")
        _, plain = timed("json.loads (standard library)", json.loads, text)
        bundle, ours = timed("read the bundle (gunzip, msgspec)", bundles.from_bytes, content, "bundle")
        report, judged = timed("judge", judge, bundle)
        timed("report as JSON", to_json, report)
        print(f"  read / json.loads = {ours / plain:.2f}, judge / json.loads = {judged / plain:.2f}")


if __name__ == "__main__":
    main()
