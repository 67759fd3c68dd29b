"""What was not measured is never "pass": each field of each fact is taken away, and what it decided must not pass.

What a field decides is found out, not listed: the rules that accuse somebody where the field says something else. All
places of a field are tried with NCCL_DOCTOR_ALL_FIELDS=1.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fields
import fleets
import msgspec
import page_fleet
import pytest
import test_hang
import watched
from facts_builder import Builder, address
from machines import Machine
from recorded_host import probe

from nccl_doctor.agent.job import processes, readings
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Driver, Software
from nccl_doctor.rules.collectives import SHORT_RUN

INSTANCES = 8 if os.environ.get("NCCL_DOCTOR_ALL_FIELDS") else 1

# (field, rule that passes without it) -> the rule that then does not.
ELSEWHERE = {
    ("gpu: gpus.*", "topology.two_witnesses"): "gpu.all_visible",
    ("gpu: gpus.*.nvlinks.*", "topology.two_witnesses"): "gpu_nvlink.nvlinks",
    ("job: processes.*", "job_processes.leftovers"): "job_processes.gone",
    ("job: processes.*.environment", "job_processes.leftovers"): "job_processes.gone",
    ("job: processes.*.readings.*", "job_processes.stopped"): "job_processes.gone",
    ("software: nccl.*", "environment.variables"): "software.nccl_library",
    ("gpu: gpus", "gpu_fleet.equal_counts"): "gpu.all_visible",
    ("gpu: gpus.*.bus_id", "gpu.driver_answers"): "gpu.all_visible",
    ("gpu: gpus.*.nvlinks", "topology.two_witnesses"): "gpu_nvlink.nvlinks",
    ("gpu: gpus.*.nvlinks.*.active", "topology.two_witnesses"): "gpu_nvlink.nvlinks",
    ("gpu: gpus.*.pcie_width_max", "gpu_fleet.equal_settings"): "gpu_pcie.pcie",
    ("infiniband: devices.*.ports.*.state", "infiniband_fleet.alike"): "infiniband_ports.ports_up",
    ("job: processes.*.environment.RANK", "job_processes.leftovers"): "job_processes.gone",
    ("job: processes.*.placed", "job_processes.leftovers"): "job_processes.gone",
    ("job: processes.*.readings.*.frozen", "job_processes.stopped"): "job_processes.gone",
    ("job: processes.*.readings.*.state", "job_processes.stopped"): "job_processes.gone",
    ("software: nccl.*.version", "software_drift.drift"): "software.nccl_library",
    ("software: nccl.*.version", "environment.variables"): "software.nccl_library",
}
# (field, rule) -> why the rule may pass without it.
NOTHING = {
    ("gpu: system", "gpu_fleet.equal_settings"): "what no host tells is not compared",
    ("interfaces: environment", "interface_settings.gloo_names"): "nothing is set then",
    ("interfaces: environment", "interface_settings.interface_setting"): "nothing is set then",
    ("interfaces: environment", "interface_settings.interface_syntax"): "nothing is set then",
    ("software: torch", "software.cuda_build"): "no torch is skipped, and told",
    ("software: torch", "software.nccl_library"): "no torch is skipped, and told",
    ("software: torch", "software_drift.drift"): "what no host has is no difference",
    (f"watch: killed_in.{watched.OOM_FILE}", "watch_memory.memory_lasts"): "nothing was killed on the host",
    ("environment: variables.NCCL_DEBUG", "environment.agreement"): "a variable that is not there is not set",
    ("environment: variables.NCCL_DEBUG", "environment.variables"): "a variable that is not there is not set",
    **{
        (f"gpu: {field}", "gpu_fabric.fabric"): "each GPU's registration tells whether the manager fits the driver"
        for field in ("fabric_manager", "fabric_manager.version", "system", "system.driver")
    },
    **{
        (f"gpu: gpus.*.fabric.{field}", "gpu_fabric.fabric"): "older drivers have no health mask"
        for field in ("degraded_bandwidth", "route_recovery", "access_timeout", "route_unhealthy")
    },
    **{
        (f"gpu: gpus.*.nvlinks.*.{field}", "gpu_nvlink.nvlinks"): "NVLink 5 has others than before; failures are filed"
        for field in ("crc_data", "crc_flit", "recovery", "replay", "integrity", "recovery_failed")
    },
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
    ("interfaces: devices.*.losses", "interface_links.links_stay_up"): "kernels before 4.16 do not count them",
    ("interfaces: environment.GLOO_SOCKET_IFNAME", "interface_settings.gloo_names"): "it is not set then",
    ("interfaces: environment.NCCL_SOCKET_IFNAME", "interface_settings.interface_setting"): "it is not set then",
    ("interfaces: environment.NCCL_SOCKET_IFNAME", "interface_settings.interface_syntax"): "it is not set then",
    ("links: links.*.lost_back", "connectivity.packet_loss"): "the peer's own messages tell of this direction",
    ("links: links.*.lost_forward", "connectivity.packet_loss"): "left out where none was lost",
    ("software: ofed", "software_drift.drift"): "what no host has is no difference",
    ("software: ofed.release", "software_drift.drift"): "what no host has is no difference",
    ("software: plugins", "software_drift.drift"): "what no host has is no difference",
    ("software: system", "software_drift.drift"): "what no host has is no difference",
    ("software: system.architecture", "software_drift.drift"): "what no host has is no difference",
    ("system: cgroup.cpu_limit", "requirements.room"): "none is unlimited",
    ("system: cgroup.cpu_limit", "system.cpus"): "none is unlimited",
    ("system: cgroup.memory_limit_bytes", "requirements.room"): "none is unlimited",
    ("system: cgroup.memory_limit_bytes", "system.memory"): "none is unlimited",
    ("system: cgroup.pids_limit", "limits.threads"): "none is unlimited",
    ("software: torch.cuda", "software_drift.drift"): "empty is a CPU build: said by its own rule where there are GPUs",
    ("software: torch.cuda", "software.nccl_library"): "empty is a CPU build, which loads no NCCL",
    ("software: torch_wants_nccl", "software.nccl_library"): "a torch that was built by hand asks for none",
    ("topology: iommu.types.*", "gpu_p2p.iommu"): "a device in no group is translated by nothing",
}
# Fields that stand for "none" where they are not there, and that every agent sends: shown by asking the real probes.
ALWAYS_SENT = {
    ("gpu: gpus.*.fabric.status", "gpu_fabric.fabric"),
    ("infiniband: devices.*.ports", "infiniband_fleet.alike"),
    ("infiniband: devices.*.ports", "infiniband_fleet.equal_rails"),
    ("interfaces: addresses.*.up", "interface_links.loopback_down"),
    ("job: processes.*.placed", "job_processes.gone"),
    ("job: processes.*.placed", "job_processes.leftovers"),
    ("job: processes.*.placed", "watch_host.ranks_live"),
    ("job: processes.*.readings.*.dumps_core", "job_processes.gone"),
    ("job: processes.*.readings.*.frozen", "job_processes.stopped"),
    ("system: cgroup.oom_kills", "system.memory"),
    ("system: gpu_processes.gpu_devices", "network_limits.listening_queue"),  # the bus then tells how many there are
    ("system: gpu_processes.gpu_devices", "system.cpus"),
    ("system: gpu_processes.gpu_devices", "system.memory"),
    ("system: gpu_processes.processes", "system.gpu_holders"),
    ("topology: iommu", "gpu_p2p.iommu"),
    ("topology: iommu.types", "gpu_p2p.iommu"),
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
    for name, probes in made.probes.items():
        _tell_more(name, probes)
    bundle = made.bundle()
    return msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=needs))


def _tell_more(name: str, probes: dict[str, Any]) -> None:
    """What healthy hosts tell beyond the fleets of other tests: limits, routes, plugins, names, delays."""
    group = {"memory_group": "/sys/fs/cgroup/job", "pids_group": "/sys/fs/cgroup/job"}
    limits = {"memory_limit_bytes": 900 << 30, "memory_used_bytes": 4 << 30, "pids_limit": 90_000, "pids_used": 50}
    probes["system"]["cgroup"] = {**group, **limits, "cpu_limit": 60.0, "memory_cache_bytes": 1 << 30, "oom_kills": 0}
    probes["system"]["user"] = 1000
    probes["system"]["rdma_devices"] = [device["name"] for device in probes["infiniband"]["devices"]]
    plugin = {"name": "libnccl-net.so", "kind": "net", "path": "/opt/ofi/lib/libnccl-net.so", "found_by": "cache"}
    probes["software"] |= {
        "plugins": [{**plugin, "real_path": plugin["path"]}],
        "system": {"kernel": "5.15.0-105", "glibc": "2.35", "distribution": "Ubuntu 22.04", "architecture": "x86_64"},
        "cudnn": "9.1.0",
        "ofed": {"release": "24.10"},
    }
    if libraries := probes["software"]["driver"].get("version"):
        place = {"path": f"/usr/lib/libcuda.so.{libraries}", "version": libraries}
        probes["software"]["driver"]["libraries"] = {"libcuda.so.1": place}
    route = {"family": "inet", "interface": "eth0", "destination": "10.0.0.0", "prefix": 24}
    everywhere = {**route, "destination": "0.0.0.0", "prefix": 0, "gateway": "10.0.0.254", "metric": 100}
    probes["interfaces"] |= {"routes": [route, everywhere], "uptime_s": 9e5, "read_at_s": 100.0, "hostname": name}
    probes["interfaces"]["environment"] = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    for device in probes["interfaces"]["devices"]:
        device |= {"carrier": True, "mtu": 1500, "operstate": "up"}
        device["arp_type"] = 1
    lines = [{"line": 1, "text": "NCCL_DEBUG=WARN"}]
    probes["interfaces"]["conf_files"] = [{"role": "system", "path": "/etc/nccl.conf", "outcome": "ok", "lines": lines}]
    probes["names"]["own"] |= {"quoted": f"{address(name)} {name}", "line": 4}
    probes["links"]["swept"] = {link["peer"]: 13 for link in probes["links"]["links"]}
    probes["software"]["environment"] = {"LD_LIBRARY_PATH": "/opt/ofi/lib"}
    probes["system"]["container"] = {"capabilities": "0", "user_namespace": False}
    _tell_more_of_hardware(probes)
    for link in probes["links"]["links"]:
        link |= {"connect_ms": 0.2, "rtt_min_ms": 0.1, "rtt_p99_ms": 0.3, "attempts": 1, "source": address(name)}
        link |= {"lost_forward": 0, "lost_back": 0} if link["messages"] else {}


def _tell_more_of_hardware(probes: dict[str, Any]) -> None:
    for gpu in probes["gpu"]["gpus"]:
        gpu |= {"memory_numa_node": 0, "retired_pages_pending": False, "temperature_margin_c": 40}
        gpu["not_supported"] = [name for name in gpu["not_supported"] if name not in gpu]
        for link in gpu["nvlinks"] or ():
            link |= {"recovery_failed": 0, "integrity": 0}
    for pci in probes["gpu"]["pci_gpus"]:
        pci["slot"] = "12"
    probes["gpu"]["fabric_manager"]["version"] = probes["gpu"]["system"].get("driver")
    for nic in probes["infiniband"]["pci_rdma"]:
        nic["driver"] = "mlx5_core"
    for device in probes["infiniband"]["devices"]:
        device["slot"] = "3"


def _running_job() -> Bundle:
    ranks = test_hang.four()
    for rank in ranks:
        rank["stacks"] = [
            test_hang.stacks(stack) for stack in (test_hang.REDUCE, test_hang.calls("broadcast", 1, peer=1))
        ]
        rank["connections"][0] |= {"moved_bytes": 4096, "before_unsent_bytes": 0, "before_unread_bytes": 0}
        rank["connections"][0]["retransmitted"] = 0
        for reading in rank["readings"]:
            reading |= {"switches": 9, "read_bytes": 4096, "written_bytes": 0}
    return test_hang.bundle(*ranks, listening=[22, 29500])


def _collectives() -> Bundle:
    """Two hosts whose short run went well, as real ranks tell it, and fast enough for what is required."""
    made = Builder(("gpu01", "gpu02"), ("collectives",))
    ran = {"launcher": "nccl-doctor", "backend": "gloo", "backend_why": "no host has a GPU", "python": "/opt/python"}
    at = {"master": "gpu01", "master_addr": "10.0.0.1", "master_port": 45961}
    for rank, name in enumerate(made.probes):
        peer = f"10.0.0.{2 - rank}"
        connection = {"count": 1, "interface": "eth0", "local": f"10.0.0.{rank + 1}", "remote": peer}
        cards = {"eth0": {"physical": True, "speed_mbps": 10000}}
        events = [{"event": "path", "rank": rank, "host": name, "connections": [connection], "interfaces": cards}]
        if rank == 0:
            measured = {"event": "size", "rank": 0, "rank_means_us": [2000.0, 2001.0], "wrong": [0, 0]}
            events += [
                {"event": "link", "rank": 0, "first": 0, "second": 1, "seconds": 0.002, "size": 2097152},
                *({**measured, "collective": collective, "size": 4194304} for collective in SHORT_RUN),
                {"event": "gemm", "rank": 0, "edge": 512, "ranks": [{"median_s": 0.1, "n": 5, "wrong": 0}] * 2},
            ]
        ended = {"stage": "end", "step_s": 0.5, "detail": "", "iterations": 100}
        ok = {"exit": 0, "finished": True, "killed": "", "signal": "", "state": "", "error": None, "stack": ""}
        own = {"rank": rank, "pid": 100 + rank, "where": ended, "output": "", "output_cut": 0, **ok}
        told = {"host": name, "seconds": 3.2, "world": 2, "ranks": [own], "events": events}
        made.probes[name]["collectives"] = {**ran, **at, **told}
        made.probes[name]["gpu"] = {"gpus": [], "nvml": {"outcome": "tool-missing"}}
    bundle = made.bundle()
    return msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, require=("min-busbw=0.1",)))


@functools.cache
def healthy() -> tuple[fields.Fleet, ...]:
    """GPU hosts with InfiniBand; what differs where they have RoCE, and where they have no GPU; a running job."""
    return (
        fields.Fleet(_gpu_fleet(Machine, NEEDS)),
        fields.Fleet(_gpu_fleet(lambda place: Machine(place).roce()), ("infiniband",)),
        fields.Fleet(
            _gpu_fleet(lambda place: Machine(place, gpus=0, nics=0), ("cpus=4",), fleets.software(driver=Driver())),
            ("gpu", "infiniband", "topology"),
        ),
        fields.Fleet(_running_job()),
        fields.Fleet(_collectives()),
        fields.Fleet(watched.bundle()),
    )


# What no healthy host tells: structs and fields.
NOT_TOLD = {
    "collectives.RankEnd.error": "of ranks that failed",
    "collectives.RankError": "of ranks that failed",
    "gpu.Fabric.mistake": "of a fault",
    "gpu.GpuFact.container": "of a container",
    "gpu.GpuProcess": "of GPUs in use",
    "gpu.Witness.code": "of a call that failed",
    "infiniband.Memlock": "of a limit",
    "infiniband.NetDevice.master": "of a bond",
    "job.DumpFile": "of a job that wrote dumps",
    "job.Job.pressure": "quoted beside what swaps",
    "job.Job.total_memory": "quoted beside what swaps",
    "job.RasAnswer": "of NCCL with its RAS service",
    "kernel_log.LogLine": "of a fault",
    "mesh.Holder": "of a port that is taken",
    "mesh.MasterPort.holder": "of a port that is taken",
    "mesh.Neighbour": "of a peer that did not answer",
    "system.GpuProcess": "of GPUs in use",
    "topology.AcsBridge": "of bridges that redirect",
    "topology.TopologyFact.hypervisor": "of a virtual machine",
    "watch.DriverGap": "of a driver that did not answer",
    "watch.Event": "of what happens",
    "watch.Gap": "of a host that fell silent",
    "watch.RankSeries.ended_s": "of a rank that ended",
    "watch.RankSeries.stopped_s": "of a rank that is stopped",
}


def test_every_field_of_the_facts_is_told_by_some_fleet() -> None:
    """Else a new field would be taken away from nothing, and nobody would know what passes without it."""
    told = set().union(*(fields.told(fleet.bundle) for fleet in healthy()))
    silent = {field for field in fields.declared() - told if not {field, field.rpartition(".")[0]} & set(NOT_TOLD)}
    assert not sorted(silent)
    assert not {
        one
        for one in NOT_TOLD
        if not any(field == one or field.startswith(one + ".") for field in fields.declared() - told)
    }


def holes() -> Iterator[fields.Hole]:
    for fleet in healthy():
        yield from fleet.holes(INSTANCES)


pytestmark = pytest.mark.skipif(page_fleet.compiler_missing(), reason="no gcc for the stand-in NVML")


def test_no_rule_passes_without_the_field_that_decides_it() -> None:
    used, open_ones = set(), set()
    for hole in holes():
        known = (hole.field, hole.rule)
        if known in ELSEWHERE and not fields.passes(hole.results[ELSEWHERE[known]], hole.host):
            used.add((known, "ELSEWHERE"))
        elif known in NOTHING:
            used.add((known, "NOTHING"))
        elif known in ALWAYS_SENT and hole.missing:
            used.add((known, "ALWAYS_SENT"))
        else:
            open_ones.add((*known, "missing" if hole.missing else "null"))
    assert not sorted(open_ones)
    tables = {"ELSEWHERE": ELSEWHERE, "NOTHING": NOTHING, "ALWAYS_SENT": ALWAYS_SENT}
    assert not sorted({(known, name) for name, table in tables.items() for known in table} - used), "no longer needed"


# What is no word of this field, or of another kind: beside those of ELSEWHERE, (field, rule that passes all the same) ->
# the rule that does not.
NONSENSE = {
    (
        "interfaces: environment.NCCL_SOCKET_IFNAME",
        "interface_settings.interface_syntax",
    ): "interface_settings.interface_setting",
    ("software: torch.cuda", "software.cuda_build"): "software.driver",
    ("system: filesystems.*.outcome", "storage.hung_mounts"): "storage.disks",
}


# A line of a configuration file that sets nothing is one: nonsense in its place is, too.
NO_SETTING = {("interfaces: conf_files.*.lines.*.text", "environment.variables")}


def test_nonsense_breaks_no_rule_and_passes_none_that_it_decides() -> None:
    used, open_ones = set(), set()
    for fleet in healthy():
        for hole in fleet.absurd():
            known = (hole.field, hole.rule)
            if known in NO_SETTING:
                continue
            broken = any(item.id == fields.BROKEN for item in hole.results[hole.rule].findings)
            other = (ELSEWHERE | NONSENSE).get(known)
            told = other is not None and not fields.passes(hole.results[other], hole.host)
            (used if told and not broken else open_ones).add(known)
    assert not sorted(open_ones)
    assert not sorted(set(NONSENSE) - used), "no longer needed"


def _job() -> dict[str, Any]:
    """What the agent sends of a rank."""
    with subprocess.Popen(["sleep", "60"], env={"RANK": "0", "PATH": os.environ["PATH"]}) as rank:
        while "RANK=0" not in Path(f"/proc/{rank.pid}/environ").read_text("utf-8", "replace"):  # not yet started
            time.sleep(0.01)
        try:
            found = processes._candidate(rank.pid)
            return {"processes": [{**(found or {}), "readings": [readings.reading(rank.pid)]}]}
        finally:
            rank.kill()


@pytest.mark.parametrize("field", sorted({field for field, _ in ALWAYS_SENT}))
def test_the_agent_sends_what_stands_for_none(field: str) -> None:
    name, _, path = field.partition(": ")
    hardware = name in ("gpu", "infiniband", "topology")  # of these the fleet's data is what the real probes read
    data = healthy()[0].sent["gpu01"].probes[name].data if hardware else _job() if name == "job" else probe(name, None)
    *above, last = path.split(".")
    parents = [at for at, pattern in [((), ()), *fields.walk(data)] if pattern == tuple(above)]
    assert parents and all(last in fields.at(data, parent) for parent in parents)
