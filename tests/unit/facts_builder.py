"""A green fleet, as plain data, that tests then spoil: every probe of the mesh says what a healthy cluster says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import fleets
import msgspec

from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.rules.engine import STAGES

NAMES = ("gpu01", "gpu02", "gpu03", "gpu04")


def address(name: str) -> str:
    return f"10.0.0.{int(name[-2:])}"


def green_probes(host: str, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    peers = [name for name in names if name != host]
    return {
        "names": {
            "host_name": host,
            "own": {"addresses": [address(host)]},
            "resolved": {name: {"addresses": [address(name)]} for name in names},
            "addresses": ["127.0.0.1", address(host)],
            "lookup_s": 0.002,
        },
        "listening": {
            "ephemeral": [40001, 40002, 40003],
            "udp": 40004,
            "master": {"port": 29500, "outcome": "ok"} if host == names[0] else None,
            "port_range": [32768, 60999],
        },
        "links": {
            "links": [
                {
                    "peer": peer,
                    "address": address(peer),
                    "port": port,
                    "purpose": purpose,
                    "outcome": "ok",
                    "messages": 100 if port == 40001 else 0,
                    "answered": 100 if port == 40001 else 0,
                    "rtt_p50_ms": 0.1 if port == 40001 else None,
                }
                for peer in peers
                for port, purpose in [(40001, "ephemeral"), (40002, "ephemeral"), (29500, "master")]
                if purpose != "master" or peer == names[0]
            ]
        },
        "path-mtu": {
            "paths": [
                {
                    "peer": peer,
                    "address": address(peer),
                    "outcome": "ok",
                    "interface_mtu": 1500,
                    "largest_passed": 1500,
                }
                for peer in peers
            ]
        },
        "throughput": {
            "flows": [
                {"peer": peer, "address": address(peer), "outcome": "ok", "bytes": 10**9, "seconds": 1.0}
                for peer in peers
            ]
        },
        "clock": {"offset": 0.001, "uncertainty": 0.002},
    }


def host_probes(host: str) -> dict[str, Any]:
    """What a healthy host without GPUs says of itself."""
    nothing = {"outcome": "not-run", "detail": "no NVIDIA device, driver or library on this host"}
    return {
        "system": msgspec.to_builtins(fleets.system()),
        "software": msgspec.to_builtins(fleets.software()),
        "environment": {"variables": {}},
        "interfaces": msgspec.to_builtins(fleets.interfaces(f"eth0/{address(host)}/24")),
        "carriers": msgspec.to_builtins(fleets.carriers()),
        "gpu": {"nvml": nothing, "smi": nothing, "gpus": [], "pci_gpus": [], "proc_gpus": [], "device_nodes": []},
        "topology": {"matrix": {**nothing, "text": ""}, "devices": [], "acs": {"outcome": "ok", "redirecting": []}},
        "infiniband": {"devices": [], "pci_rdma": [], "uverbs": [], "uverbs_expected": [], "witnesses": {}},
        "kernel_log": {"lines": [], "source": "/dev/kmsg", "first_s": 0.0, "uptime_s": 9.0, "total": 9, "left_off": 0},
    }


class Builder:
    """``probes[host][probe]`` is plain data, to be changed at will; ``bundle()`` makes it a bundle."""

    def __init__(self, names: tuple[str, ...] = NAMES, stages: tuple[str, ...] = ("connectivity", "ports")) -> None:
        assert set(stages) <= set(STAGES)
        self.stages = stages
        self.probes: dict[str, dict[str, Any]] = {name: copy.deepcopy(green_probes(name, names)) for name in names}
        self.reach: dict[str, Reach] = {name: Reach(ReachOutcome.OK, address=address(name), port=22) for name in names}

    def links(self, source: str, peer: str) -> list[dict[str, Any]]:
        return [link for link in self.probes[source]["links"]["links"] if link["peer"] == peer]

    def each(self, probe: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Host and entry of all that the hosts tell of their peers: their links, path-mtu or throughput."""
        key = {"links": "links", "path-mtu": "paths", "throughput": "flows"}[probe]
        for host, probes in self.probes.items():
            for entry in probes[probe][key]:
                yield host, entry

    def unanswered(self, *pairs: tuple[str, str], purpose: str = "") -> Builder:
        """None of these connects is answered; with ``purpose`` only those for it."""
        for pair in pairs:
            for link in self.links(*pair):
                if purpose in ("", link["purpose"]):
                    link.update(outcome="timed-out", detail="timed out", messages=0, answered=0)
        return self

    def whole(self) -> Bundle:
        """The bundle of a quick run: all stages that a gate asks of one."""
        for name, probes in self.probes.items():
            probes.update(host_probes(name) | probes)
        self.stages = tuple(stage for stage in STAGES if stage != "collectives")
        bundle = self.bundle()
        return msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, quick=True))

    def bundle(self) -> Bundle:
        hosts = tuple(
            HostFacts(
                name,
                self.reach[name],
                {probe: ProbeResult(Outcome.OK, data) for probe, data in sorted(self.probes[name].items())}
                if self.reach[name].outcome is ReachOutcome.OK
                else {},
            )
            for name in sorted(self.probes)
        )
        return Bundle(1, "test", "2026-01-01T00:00:00+00:00", Plan(self.stages, master=min(self.probes)), hosts)


def loopback(host: str) -> Builder:
    """A fleet in which this host's own name is a loopback address."""
    builder = Builder()
    builder.probes[host]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": f"127.0.1.1 {host}", "line": 2}
    return builder
