"""GPUDirect RDMA: can the NICs reach the GPUs' memory, and the same way on all hosts?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.drift import quoted, row
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, facts_of, fleet_rule, host_rule
from nccl_doctor.rules.gpudirect import dmabuf_possible, modules_told, peermem
from nccl_doctor.rules.infiniband_fleet import fleet_rails
from nccl_doctor.rules.infiniband_view import own_rails, sysfs, with_devices
from nccl_doctor.rules.nvidia import with_hardware
from nccl_doctor.rules.thresholds import value


@host_rule("infiniband", "ib.gdr.off", "ib.gdr.unknown")
def gpudirect(host: Host, plan: Plan) -> Iterator[Finding]:
    """GPUDirect RDMA can work: nvidia_peermem is loaded, or DMA-BUF is possible (Linux 5.12, open kernel modules).

    Without either, NCCL moves all network traffic through host memory: often half the bandwidth and less. Where no rail
    is fast enough for that to matter, it is information.
    """
    gpu = with_hardware(host)
    with_devices(host)
    ports = [rail for rail in host.once(own_rails, plan) if rail.port.active]
    if not ports or all(rail.efa for rail in ports):
        raise SkipRule("no active InfiniBand or RoCE rail")
    topology = host.need(TopologyFact)
    if peermem(topology) or any("GeForce" in (device.name or "") for device in gpu.gpus):
        return  # consumer cards cannot do GPUDirect RDMA at all: nothing to load
    if not modules_told(topology):
        raise MissingFact("nvidia_peermem", "kernel modules were not collected")
    possible = dmabuf_possible(topology, gpu)
    if possible:
        return
    off = possible is False
    slow = all(rail.port.gbps is not None and rail.port.gbps < value("ib.gdr.rate") for rail in ports)
    why = "and DMA-BUF is not possible" if off else "and whether DMA-BUF works is not known"
    yield host.finding(
        "ib.gdr.off" if off else "ib.gdr.unknown",
        Severity.INFO if slow else Severity.FAIL if off else Severity.WARN,
        f"GPUDirect RDMA: nvidia_peermem is not loaded, {why}",
        [
            sysfs(host, ports[0], ports[0].port.rate or "(rate not told)", "rate"),
            ("no nvidia_peermem, no nv_peer_mem", "/sys/module"),
            (
                f"kernel {topology.kernel or '(unknown)'}, {gpu.module_flavor or 'unknown'} kernel modules",
                "/proc/driver/nvidia/version",
            ),
        ],
        Fix(
            "load it, and at every boot",
            "sudo modprobe nvidia-peermem && echo nvidia-peermem | sudo tee /etc/modules-load.d/nvidia-peermem.conf",
        ),
        confidence=0.9 if off else 0.6,
        explains=("ib.gdr.differs", "net.slow"),
    )


_DMABUF = {True: "DMA-BUF", False: "none", None: "not known"}


@fleet_rule("infiniband", "ib.gdr.differs")
def same_gpudirect(fleet: Fleet) -> Iterator[Finding]:
    """GPUDirect RDMA works the same way everywhere: nvidia_peermem on all hosts or on none."""
    found = {host: ports for host, ports in fleet_rails(fleet).items() if ports}
    topology = fleet.every(TopologyFact)
    gpus = {host: fact for host, fact in facts_of(fleet.hosts, GpuFact).items() if fact.has_hardware}
    asked = [host for host in found if host in topology and host in gpus]
    for host in asked:
        if not modules_told(topology[host]):
            fleet.lack("nvidia_peermem", "kernel modules were not collected", host)
    told = {
        host: peermem(topology[host]) or _DMABUF[dmabuf_possible(topology[host], gpus[host])]
        for host in asked
        if modules_told(topology[host])
    }
    if not asked:
        raise SkipRule("no host with GPUs and RDMA")
    drift = row("GPUDirect RDMA through", told)
    without = [host for host in drift.odd if told[host] in ("none", "DMA-BUF")]
    if not without:
        return
    yield finding(
        "ib.gdr.differs",
        Severity.FAIL if any(told[host] == "none" for host in without) else Severity.WARN,
        f"{drift.majority} is loaded on most hosts, not on {fold(without)}",
        [quoted(drift), *(Evidence("no peer-memory module", "/sys/module", host=host) for host in without[:4])],
        hosts=without,
        fixes=[Fix("load it, and at every boot", "sudo modprobe nvidia-peermem", host) for host in without[:4]],
    )
