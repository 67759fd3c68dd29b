"""What keeps GPUDirect RDMA and P2P from working on a host, out of its facts: for `topo` and for the rules."""

from __future__ import annotations

from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.topology import AcsBridge, TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix
from nccl_doctor.rules.engine import Host

PEERMEM = ("nvidia_peermem", "nv_peer_mem")
NOT_TRANSLATED = ("identity", "unmanaged", "blocked")  # types of IOMMU groups without the kernel's own mappings
DMABUF_KERNEL = (5, 12)  # the first kernel with DMA-BUF in the RDMA core (ib_umem_dmabuf_get)


def kernel_version(text: str) -> tuple[int, int] | None:
    """(5, 15) of ``5.15.0-105-generic``; None if it is no such text."""
    parts = text.split(".", 2)
    try:
        return int(parts[0]), int(parts[1].split("-")[0])
    except (IndexError, ValueError):
        return None


def peermem(topology: TopologyFact) -> str | None:
    """The loaded peer-memory module, or None."""
    return next((name for name in PEERMEM if topology.modules.get(name)), None)


def modules_told(topology: TopologyFact) -> bool:
    """Whether it is known of each of these modules if it is loaded."""
    return all(name in topology.modules for name in PEERMEM)


def dmabuf_possible(topology: TopologyFact, gpu: GpuFact | None) -> bool | None:
    """Whether DMA-BUF can stand in for a peer-memory module: it needs Linux 5.12 and the open kernel modules.

    None where that is not known. The version of an older Enterprise Linux kernel does not tell it: Red Hat builds the RDMA
    core of later kernels into it.
    """
    version = kernel_version(topology.kernel)
    if version is None or gpu is None or gpu.module_flavor is None:
        return None
    if gpu.module_flavor != "open" or version >= DMABUF_KERNEL:
        return gpu.module_flavor == "open"
    return None if ".el8" in topology.kernel else False


def translating(topology: TopologyFact) -> dict[str, str]:
    """PCI address -> IOMMU group type, of the GPUs and NICs whose DMA addresses the IOMMU translates."""
    return {address: kind for address, kind in topology.iommu.types.items() if kind.startswith("DMA")}


def redirecting(topology: TopologyFact) -> list[AcsBridge]:
    """The ports of PCIe switches above GPUs and NICs whose ACS redirects; a path begins with root bus and root port."""
    switches = {port for device in topology.devices if device.kind in ("gpu", "nic") for port in device.path[2:-1]}
    return [bridge for bridge in topology.acs.redirecting if bridge.bus_id in switches]


def sentences(host: Host, matrix: Matrix) -> list[tuple[str, str]]:
    """(label, sentence) lines on GPUDirect RDMA, ACS and the IOMMU for a reader of the matrix."""
    topology = host.want(TopologyFact)
    if topology is None:
        return []
    gpu = host.want(GpuFact)
    told: list[tuple[str, str]] = []
    if matrix.nics:
        module = peermem(topology)
        possible = dmabuf_possible(topology, gpu)
        if module:
            told.append(("GPUDirect", f"{module} is loaded"))
        elif not modules_told(topology):
            told.append(("GPUDirect", "not known: kernel modules were not collected"))
        elif possible:
            told.append(("GPUDirect", "no peer-memory module; DMA-BUF is possible (open kernel modules)"))
        elif possible is None:
            told.append(("GPUDirect", "no peer-memory module; whether DMA-BUF works is not known"))
        else:
            told.append(("GPUDirect", "off: neither nvidia_peermem nor DMA-BUF (it needs Linux 5.12 and open modules)"))
    if ports := redirecting(topology):
        told.append(("ACS", f"redirects P2P through the CPU on {counted(len(ports), 'port')} of PCIe switches"))
    elif topology.acs.outcome == "not-permitted":
        told.append(("ACS", "not known: reading it needs root"))
    if translating(topology):
        told.append(("IOMMU", f"translates for {len(translating(topology))} GPUs and NICs (not pass-through)"))
    return told
