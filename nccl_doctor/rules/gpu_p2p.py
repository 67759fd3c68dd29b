"""Peer-to-peer between the GPUs and NICs of a host: ACS, IOMMU, and what the driver allows."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_paths import NEAR, nvlinks
from nccl_doctor.findings.model import Finding, Fix, Place, Severity, shell_word
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.gpudirect import NOT_TRANSLATED, redirecting, translating
from nccl_doctor.rules.nvidia import NO_GPU, answered, superchip
from nccl_doctor.rules.topology_view import known_matrix


def _bare_metal(host: Host) -> TopologyFact:
    """The fact of a host with a GPU whose PCI tree is its own; ``SkipRule`` in a virtual machine."""
    fact = host.need(TopologyFact)
    if not any(device.kind == "gpu" for device in fact.devices):
        raise SkipRule(NO_GPU)
    if fact.hypervisor:
        raise SkipRule(f"a virtual machine ({fact.hypervisor}): ACS and IOMMU belong to its host")
    return fact


@host_rule("topology", "gpu.p2p.acs")
def acs(host: Host, plan: Plan) -> Iterator[Finding]:
    """No PCIe switch above a GPU or RDMA NIC redirects peer-to-peer traffic through the CPU.

    ACS redirect sends every transfer between the devices of a switch up to the root complex and back: GPUDirect is then
    slow or hangs. A root port's own redirect changes nothing: what passes it goes through the CPU anyway. In a virtual
    machine all that is the hypervisor's business and not judged. Reading ACS needs root.
    """
    fact = _bare_metal(host)
    if hit := redirecting(fact):
        yield host.finding(
            "gpu.p2p.acs",
            Severity.WARN,
            f"ACS redirects peer-to-peer traffic on {counted(len(hit), 'port')} of PCIe switches above GPUs or NICs",
            [(f"ACS control {bridge.control} (redirect)", f"config space of {bridge.bus_id}") for bridge in hit[:4]],
            Fix("see which bridges", "sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl' | grep -B1 ReqRedir+"),
            Fix(
                "turn ACS off in the BIOS (bare metal only), or on these ports until the next boot",
                f"for port in {' '.join(shell_word(port.bus_id) for port in hit)}; do sudo setpci -s $port ECAP_ACS+0x6.w=0000; done",
                risky=True,
            ),
        )
    if fact.acs.outcome != "ok":
        denied = "not permitted: reading extended PCI configuration needs root"
        raise MissingFact("ACS of the PCI bridges", denied if fact.acs.outcome == "not-permitted" else fact.acs.outcome)


@host_rule("topology", "gpu.p2p.iommu")
def iommu(host: Host, plan: Plan) -> Iterator[Finding]:
    """The IOMMU passes the DMA of GPUs and NICs through; translating it slows GPUDirect or breaks it.

    Superchips (GH200, GB200) are left out: their GPUs work with the CPU's page tables, through its SMMU (ATS).
    """
    fact = _bare_metal(host)
    gpus = host.want(GpuFact)
    if gpus and superchip(gpus):
        raise SkipRule("a superchip: its SMMU translates on purpose")
    mapped = translating(fact)
    if not mapped:
        if unread := [address for address, kind in sorted(fact.iommu.types.items()) if kind not in NOT_TRANSLATED]:
            raise MissingFact("IOMMU group type", f"{unread[0]}: {fact.iommu.types[unread[0]]}")
        return
    address, kind = sorted(mapped.items())[0]
    yield host.finding(
        "gpu.p2p.iommu",
        Severity.WARN,
        f"the IOMMU translates addresses of {len(mapped)} GPUs and NICs: GPUDirect may be slow or fail",
        [
            (f"IOMMU group type of {address}: {kind}", "/sys/kernel/iommu_groups"),
            (" ".join(fact.boot_options) or "(no IOMMU option)", "/proc/cmdline"),
        ],
        Fix("boot with pass-through: add iommu=pt to the kernel command line"),
        confidence=0.8,
    )


@host_rule("topology", "gpu.p2p.denied", "gpu.p2p.consumer")
def p2p_status(host: Host, plan: Plan) -> Iterator[Finding]:
    """The driver allows peer-to-peer where the topology offers it: over NVLink, and below one PCIe switch.

    NVLink in the matrix and a P2P status other than OK contradict each other: NCCL then fails with an unhandled CUDA
    error. Consumer cards have P2P switched off by the driver (GNS, CNS): NCCL uses host memory there by itself.
    """
    fact = answered(host)
    if len(fact.gpus) < 2:
        raise SkipRule("fewer than two GPUs")
    known = [pair for pair in fact.pairs if pair.read is not None]
    if not known:
        if failed := next((pair for pair in fact.pairs if pair.errors), None):
            raise MissingFact("P2P status", next(iter(failed.errors.values())))
        raise SkipRule("the driver tells no P2P status")
    linked = {gpu.index for gpu in fact.gpus if gpu.nvlinks and any(link.active for link in gpu.nvlinks)}
    matrix = known_matrix(host)
    kinds = matrix.kinds() if matrix else {}
    denied, switched = [], []
    for pair in known:
        if pair.read == "OK" and pair.write in ("OK", None):
            continue
        kind = kinds.get((f"GPU{pair.a}", f"GPU{pair.b}"), "")
        if nvlinks(kind) or (not kind and pair.nvlink == "OK" and {pair.a, pair.b} <= linked):
            denied.append(pair)
        elif (kind or pair.level) in NEAR:
            switched.append(pair)
    for id, severity, pairs, words in (
        ("gpu.p2p.denied", Severity.FAIL, denied, "joined by NVLink, but the driver denies P2P"),
        ("gpu.p2p.consumer", Severity.INFO, switched, "below one PCIe switch without P2P: NCCL uses host memory"),
    ):
        if pairs:
            yield host.finding(
                id,
                severity,
                f"{len(pairs)} GPU pairs are {words}",
                [
                    (f"P2P read {pair.read}, write {pair.write}", f"NVML, GPU {pair.a} and {pair.b}")
                    for pair in pairs[:4]
                ],
                Fix("see the driver's view", "nvidia-smi topo -p2p r; nvidia-smi topo -m"),
                places=[Place(host=host.name, gpu=f"{pair.a}-{pair.b}") for pair in pairs[:16]],
            )
    if untold := [pair for pair in fact.pairs if pair.read is None or pair.write is None]:
        raise MissingFact("P2P status", f"the driver does not tell it of GPU {untold[0].a} and {untold[0].b}")
