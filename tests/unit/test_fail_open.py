"""What was not measured is never "pass": each field of each fact is taken away, and what it decided must not pass.

What a field decides is found out, not listed: the rules that accuse somebody where the field says something else. All
places of a field are tried with NCCL_DOCTOR_ALL_FIELDS=1.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fields
import fleets
import msgspec
import page_fleet
import pytest
import test_hang
from machines import Machine
from recorded_host import probe

from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Driver, Software

INSTANCES = 8 if os.environ.get("NCCL_DOCTOR_ALL_FIELDS") else 1

# (field, rule that passes without it) -> the rule that then does not.
ELSEWHERE = {
    ("gpu: gpus", "gpu_fleet.equal_counts"): "gpu.all_visible",
    ("gpu: gpus.*.bus_id", "gpu.driver_answers"): "gpu.all_visible",
    ("gpu: gpus.*.nvlinks", "topology.two_witnesses"): "gpu_links.nvlinks",
    ("gpu: gpus.*.nvlinks.*.active", "topology.two_witnesses"): "gpu_links.nvlinks",
    ("gpu: gpus.*.pcie_width_max", "gpu_fleet.equal_settings"): "gpu_links.pcie",
    ("infiniband: devices.*.ports.*.state", "infiniband_fleet.alike"): "infiniband.ports_up",
    ("job: processes.*.environment.RANK", "job.leftovers"): "job.gone",
    ("software: nccl.*.version", "software.drift"): "software.nccl_library",
    ("software: nccl.*.version", "environment.variables"): "software.nccl_library",
}
# (field, rule) -> why the rule may pass without it.
NOTHING = {
    ("environment: variables.NCCL_DEBUG", "environment.agreement"): "a variable that is not there is not set",
    ("environment: variables.NCCL_DEBUG", "environment.variables"): "a variable that is not there is not set",
    ("gpu: gpus.*.fabric.degraded_bandwidth", "gpu_links.fabric"): "older drivers have no health mask",
    ("gpu: gpus.*.fabric.route_unhealthy", "gpu_links.fabric"): "older drivers have no health mask",
    ("gpu: gpus.*.nvlinks.*.crc_data", "gpu_links.nvlinks"): "NVLink 5 has other counters; failures are filed",
    ("gpu: gpus.*.nvlinks.*.crc_flit", "gpu_links.nvlinks"): "NVLink 5 has other counters; failures are filed",
    ("gpu: gpus.*.nvlinks.*.recovery", "gpu_links.nvlinks"): "NVLink 5 has other counters; failures are filed",
    ("gpu: gpus.*.nvlinks.*.replay", "gpu_links.nvlinks"): "NVLink 5 has other counters; failures are filed",
    ("gpu: gpus.*.temperature_memory_max_c", "gpu_health.throttling"): "the limit of thresholds.yaml stands in",
    ("gpu: gpus.*.temperature_slowdown_c", "gpu_health.throttling"): "the limit of thresholds.yaml stands in",
    ("gpu: module_flavor", "gpu_fleet.equal_settings"): "what no host tells (WSL) is not compared",
    ("gpu: system.driver", "gpu_fleet.equal_settings"): "what no host tells is not compared",
    ("infiniband: devices.*.board_id", "infiniband_fleet.alike"): "it only tells whose firmware is compared",
    ("infiniband: devices.*.hca_type", "infiniband_fleet.alike"): "only some devices have one; alike on all hosts",
    (
        "infiniband: devices.*.hca_type",
        "infiniband_fleet.equal_rails",
    ): "only some devices have one; alike on all hosts",
    ("software: torch.cuda", "software.drift"): "empty is a CPU build: said by its own rule where there are GPUs",
    ("software: torch.cuda", "software.nccl_library"): "empty is a CPU build, which loads no NCCL",
    ("software: torch_wants_nccl", "software.nccl_library"): "a torch that was built by hand asks for none",
    ("topology: iommu.types.*", "topology.iommu"): "a device in no group is translated by nothing",
}
# Fields that stand for "none" where they are not there, and that every agent sends: shown by asking the real probes.
ALWAYS_SENT = {
    ("gpu: gpus.*.fabric.status", "gpu_links.fabric"),
    ("infiniband: devices.*.ports", "infiniband_fleet.alike"),
    ("infiniband: devices.*.ports", "infiniband_fleet.equal_rails"),
    ("interfaces: addresses.*.up", "interface_links.loopback_down"),
    ("system: cgroup.oom_kills", "system.memory"),
    ("system: gpu_processes.processes", "system.gpu_holders"),
    ("topology: modules", "infiniband_fleet.same_gpudirect"),
    ("topology: modules.nvidia_peermem", "infiniband_fleet.same_gpudirect"),
}
NEEDS = ("gpus=8", "ib-ports=8", "shm=1G", "disk=1G", "memory=1G", "cpus=4", "same=torch+numpy")


def _gpu_fleet(
    make: Callable[[Path], Machine], needs: tuple[str, ...] = (), software: Software | None = None
) -> Bundle:
    with tempfile.TemporaryDirectory(prefix="fields-") as directory:
        read = {name: one["data"] for name, one in make(Path(directory)).facts().items()}
    made = page_fleet.builder(read)
    for probes in made.probes.values() if software else ():
        probes["software"] = msgspec.to_builtins(software)
    bundle = made.bundle()
    return msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=needs))


def _running_job() -> Bundle:
    ranks = test_hang.four()
    for rank in ranks:
        rank["stacks"] = [test_hang.stacks(test_hang.REDUCE), test_hang.stacks(test_hang.BARRIER)]
        rank["connections"][0]["moved_bytes"] = 4096
    return test_hang.bundle(*ranks)


@functools.cache
def healthy() -> tuple[fields.Fleet, ...]:
    """GPU hosts with InfiniBand; what differs where they have RoCE, and where they have no GPU; a running job."""
    return (
        fields.Fleet(_gpu_fleet(Machine, NEEDS)),
        fields.Fleet(_gpu_fleet(lambda place: Machine(place).roce()), ("infiniband",)),
        fields.Fleet(
            _gpu_fleet(lambda place: Machine(place, gpus=0, nics=0), ("cpus=4",), fleets.software(driver=Driver())),
            ("system", "software", "gpu", "infiniband", "topology"),
        ),
        fields.Fleet(_running_job()),
    )


def holes() -> Iterator[fields.Hole]:
    for fleet in healthy():
        yield from fleet.holes(INSTANCES)


pytestmark = pytest.mark.skipif(page_fleet.compiler_missing(), reason="no gcc for the stand-in NVML")


def test_no_rule_passes_without_the_field_that_decides_it() -> None:
    used, open_ones = set(), set()
    for hole in holes():
        known = (hole.field, hole.rule)
        other = ELSEWHERE.get(known)
        told = other is not None and not fields.passes(hole.results[other], hole.host)
        if told or known in NOTHING or (known in ALWAYS_SENT and hole.missing):
            used.add(known)
        else:
            open_ones.add((*known, "missing" if hole.missing else "null"))
    assert not sorted(open_ones)
    listed = {*ELSEWHERE, *NOTHING, *ALWAYS_SENT}
    assert not sorted(listed - used), "no longer needed"
    assert len(listed) == len(ELSEWHERE) + len(NOTHING) + len(ALWAYS_SENT)


@pytest.mark.parametrize("field", sorted({field for field, _ in ALWAYS_SENT}))
def test_the_agent_sends_what_stands_for_none(field: str) -> None:
    name, _, path = field.partition(": ")
    hardware = name in ("gpu", "infiniband", "topology")  # of these the fleet's data is what the real probes read
    data = healthy()[0].hosts["gpu01"].probes[name].data if hardware else probe(name, None)
    *above, last = path.split(".")
    parents = [at for at, pattern in [((), ()), *fields.walk(data)] if pattern == tuple(above)]
    assert parents and all(last in fields.at(data, parent) for parent in parents)
