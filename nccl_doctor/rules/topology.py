"""Topology: do all GPUs have their NVLinks and a NIC beside them, can they reach each other, are hosts alike?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from nccl_doctor.facts.fold import few, fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_paths import (
    NEAR,
    fewer_nvlinks,
    in_order,
    lost_nvlink,
    near_nics,
    nvlinks,
    signature,
    uneven,
)
from nccl_doctor.facts.topology_tree import SYSFS, differences, rebuild
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.drift import row
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.gpudirect import NOT_TRANSLATED, translating
from nccl_doctor.rules.nvidia import NO_GPU, superchip

SOURCE = "nvidia-smi topo -m"


def matrix_of(host: Host) -> Matrix:
    """The host's matrix: nvidia-smi's, else the one rebuilt from sysfs and NVML.

    ``SkipRule`` without a GPU, ``MissingFact`` where there is neither.
    """
    try:
        return printed_matrix(host)
    except MissingFact:
        try:
            return host.once(_rebuilt)
        except TopologyError:
            pass
        raise


def printed_matrix(host: Host) -> Matrix:
    """The matrix that nvidia-smi printed, parsed."""
    return host.once(_printed)


def _rebuilt(host: Host) -> Matrix:
    return rebuild(host.need(TopologyFact), host.want(GpuFact))


def _printed(host: Host) -> Matrix:
    fact = host.need(TopologyFact)
    if fact.matrix.outcome == "not-run":
        raise SkipRule(fact.matrix.detail or NO_GPU)
    if fact.matrix.outcome != "ok":
        raise MissingFact(SOURCE, fact.matrix.detail or fact.matrix.outcome)
    try:
        return parse(fact.matrix.text)
    except TopologyError as error:
        raise MissingFact(SOURCE, str(error)) from error


def source_of(matrix: Matrix) -> str:
    """Where a cell of this matrix was read, as evidence names it."""
    return SOURCE if matrix.source != SYSFS else "the PCI tree in sysfs and NVML"


@host_rule("topology", "topology.witnesses-differ")
def two_witnesses(host: Host, plan: Plan) -> Iterator[Finding]:
    """The matrix of nvidia-smi agrees with the one rebuilt from the PCI tree in sysfs and from NVML's NVLinks.

    Distances over PCIe that are counted differently are information (a virtual machine may show one tree and mean
    another); NVLinks that one of them has and the other has not are a warning. NCCL itself reads sysfs and NVML.
    """
    host.need(TopologyFact)
    try:
        printed, rebuilt = printed_matrix(host), host.once(_rebuilt)
    except (MissingFact, TopologyError) as error:
        raise SkipRule(f"nothing to compare with: {error}") from error
    found = differences(printed, rebuilt)
    if not found:
        return
    linked = [item for item in found if item.nvlink]
    told = linked or found
    yield finding(
        "topology.witnesses-differ",
        Severity.WARN if linked else Severity.INFO,
        f"nvidia-smi and sysfs disagree on {len(told)} pairs of devices"
        + (" about NVLinks" if linked else ", over PCIe alone"),
        [Evidence(str(item), f"{SOURCE}; /sys/bus/pci, NVML", host=host.name) for item in told[:4]],
        hosts=(host.name,),
        confidence=0.7,
    )


def witnesses(host: Host, matrix: Matrix) -> list[tuple[str, str]]:
    """(label, sentence) lines for a reader of the matrix: that it was rebuilt and why, or that sysfs disagrees with it."""
    if matrix.source == SYSFS:
        try:
            printed_matrix(host)
        except MissingFact as gap:
            return [("source", f"rebuilt from the PCI tree in sysfs and NVML; {gap.what}: {gap.why}")]
    try:
        found = differences(matrix, host.once(_rebuilt))
    except (MissingFact, TopologyError):
        return []
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return [("disagree", "; ".join(str(item) for item in found[:2]) + more)] if found else []


def _row_quoted(host: Host, matrix: Matrix, name: str) -> Evidence:
    """One row of the matrix, as evidence."""
    cells = " ".join(f"{link.b}={link.kind}" for link in matrix.links if link.a == name)
    return Evidence(f"{name}: {cells}", source_of(matrix), host=host.name)


@host_rule("topology", "gpu.nvlink.lost", "gpu.nvlink.narrow")
def nvlink_matrix(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU of an NVLink machine reaches the others over NVLink, with the same number of links.

    In the matrix a GPU that lost its links shows as a row of NODE and SYS among NV# rows; NCCL then sends its part of
    every collective over PCIe or through host memory, and the whole job runs at that speed.
    """
    matrix = matrix_of(host)
    for gpu in lost_nvlink(matrix):
        yield _nvlink_finding(host, matrix, gpu, "gpu.nvlink.lost", f"{gpu} has no NVLink, all other GPUs are linked")
    for gpu, width in fewer_nvlinks(matrix).items():
        title = f"{gpu} has only {width} NVLinks to its peers, fewer than the other GPUs"
        yield _nvlink_finding(host, matrix, gpu, "gpu.nvlink.narrow", title)


def _nvlink_finding(host: Host, matrix: Matrix, gpu: str, id: str, title: str) -> Finding:
    return finding(
        id,
        Severity.FAIL,
        title,
        _row_quoted(host, matrix, gpu),
        places=[Place(host=host.name, gpu=gpu)],
        fixes=[
            Fix(
                "look at its links; then drain the host and reset all GPUs with the fabric manager running",
                f"nvidia-smi nvlink -s -i {gpu.removeprefix('GPU')}; sudo nvidia-smi --gpu-reset",
                host.name,
                True,
            )
        ],
        explains=("topology", "gpu.p2p"),
    )


@host_rule("topology", "topology.nic-far", "topology.flat", "topology.uneven-nics")
def nic_distance(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU has a NIC beside it (PIX or PXB), so that GPUDirect RDMA need not cross the CPU.

    With NVLink a far GPU can borrow a neighbour's NIC (PXN), which helps; without, its traffic goes through host
    memory. A matrix in which every distance is equal comes from a virtual machine that hides its PCIe tree; there, and
    on superchips (GH200, GB200, DGX Spark), where no GPU shares a switch with a NIC, distance is information.
    """
    matrix = matrix_of(host)
    if not matrix.nics:
        raise SkipRule("no RDMA NIC in the matrix")
    if matrix.truncated:
        raise MissingFact(SOURCE, "truncated: " + "; ".join(matrix.notes))
    topics = {item.topic: item for item in uneven(matrix)}
    near = near_nics(matrix)
    if far := topics.get("nic"):
        some = any(nic.kind in NEAR for nic in near.values())
        kinds = matrix.kinds()
        linked = all(
            any(nvlinks(kinds.get((gpu, peer), "")) and nic.kind in NEAR for peer, nic in near.items())
            for gpu in far.names
        )
        gpus = host.want(GpuFact)
        given = not some and ((gpus and superchip(gpus)) or host.need(TopologyFact).hypervisor)
        yield finding(
            "topology.nic-far",
            Severity.INFO if linked or given else Severity.WARN,
            far.text + ("; NCCL can use a neighbour's NIC over NVLink (PXN)" if linked else ""),
            [_row_quoted(host, matrix, gpu) for gpu in far.names[:3]],
            places=[Place(host=host.name, gpu=gpu) for gpu in far.names],
            confidence=0.9 if some else 0.8,
        )
    if flat := topics.get("flat"):
        yield finding(
            "topology.flat",
            Severity.INFO,
            flat.text,
            _row_quoted(host, matrix, matrix.gpus[0].name),
            hosts=(host.name,),
            fixes=[Fix("give NCCL the real tree, where the provider publishes one (NCCL_TOPO_FILE)")],
        )
    if share := topics.get("nic-share"):
        yield finding(
            "topology.uneven-nics",
            Severity.INFO,
            share.text,
            [_row_quoted(host, matrix, name) for name in share.names[:3]],
            hosts=(host.name,),
        )


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
    """No PCI bridge above a GPU or RDMA NIC redirects peer-to-peer traffic through the CPU.

    ACS redirect sends every transfer between GPU and GPU, or GPU and NIC, up to the root complex and back: GPUDirect is
    then slow or hangs. In a virtual machine that is the hypervisor's business and not judged. Reading ACS needs root.
    """
    fact = _bare_metal(host)
    if fact.acs.outcome != "ok":
        denied = "not permitted: reading extended PCI configuration needs root"
        raise MissingFact("ACS of the PCI bridges", denied if fact.acs.outcome == "not-permitted" else fact.acs.outcome)
    above = {address for device in fact.devices if device.kind in ("gpu", "nic") for address in device.path[:-1]}
    hit = [bridge for bridge in fact.acs.redirecting if bridge.bus_id in above]
    if not hit:
        return
    yield finding(
        "gpu.p2p.acs",
        Severity.WARN,
        f"ACS redirects peer-to-peer traffic on {len(hit)} PCI bridges above GPUs or NICs",
        [
            Evidence(f"ACS control {bridge.control} (redirect)", f"config space of {bridge.bus_id}", host=host.name)
            for bridge in hit[:4]
        ],
        hosts=(host.name,),
        fixes=[
            Fix("see which bridges", "sudo lspci -vvv | grep -E '^[0-9a-f]|ACSCtl' | grep -B1 ReqRedir+", host.name),
            Fix(
                "turn ACS off in the BIOS (bare metal only), or on each bridge until the next boot",
                f"sudo setpci -s {hit[0].bus_id} ECAP_ACS+0x6.w=0000",
                host.name,
                True,
            ),
        ],
    )


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
    yield finding(
        "gpu.p2p.iommu",
        Severity.WARN,
        f"the IOMMU translates addresses of {len(mapped)} GPUs and NICs: GPUDirect may be slow or fail",
        [
            Evidence(f"IOMMU group type of {address}: {kind}", "/sys/kernel/iommu_groups", host=host.name),
            Evidence(" ".join(fact.boot_options) or "(no IOMMU option)", "/proc/cmdline", host=host.name),
        ],
        hosts=(host.name,),
        fixes=[Fix("boot with pass-through: add iommu=pt to the kernel command line", "", host.name)],
        confidence=0.8,
    )


@host_rule("topology", "gpu.p2p.denied", "gpu.p2p.consumer")
def p2p_status(host: Host, plan: Plan) -> Iterator[Finding]:
    """The driver allows peer-to-peer where the topology offers it: over NVLink, and below one PCIe switch.

    NVLink in the matrix and a P2P status other than OK contradict each other: NCCL then fails with an unhandled CUDA
    error. Consumer cards have P2P switched off by the driver (GNS, CNS): NCCL uses host memory there by itself.
    """
    fact = host.need(GpuFact)
    if not fact.has_hardware:
        raise SkipRule(NO_GPU)
    if fact.nvml.outcome != "ok":
        raise MissingFact("NVML", fact.nvml.detail or fact.nvml.outcome)
    if len(fact.gpus) < 2:
        raise SkipRule("fewer than two GPUs")
    known = [pair for pair in fact.pairs if pair.read is not None]
    if not known:
        raise SkipRule("the driver tells no P2P status")
    linked = {gpu.index for gpu in fact.gpus if gpu.nvlinks and any(link.active for link in gpu.nvlinks)}
    kinds = _kinds(host)
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
            yield finding(
                id,
                severity,
                f"{len(pairs)} GPU pairs are {words}",
                [
                    Evidence(
                        f"P2P read {pair.read}, write {pair.write}", f"NVML, GPU {pair.a} and {pair.b}", host=host.name
                    )
                    for pair in pairs[:4]
                ],
                places=[Place(host=host.name, gpu=f"{pair.a}-{pair.b}") for pair in pairs[:16]],
                fixes=[Fix("see the driver's view", "nvidia-smi topo -p2p r; nvidia-smi topo -m", host.name)],
            )
    if untold := [pair for pair in fact.pairs if pair.read is None or pair.write is None]:
        raise MissingFact("P2P status", f"the driver does not tell it of GPU {untold[0].a} and {untold[0].b}")


def _kinds(host: Host) -> Mapping[tuple[str, str], str]:
    try:
        return matrix_of(host).kinds()
    except (MissingFact, SkipRule):
        return {}


@host_rule("topology", "gpu.imex.no-channel")
def imex(host: Host, plan: Plan) -> Iterator[Finding]:
    """On a multi-node NVLink machine (GB200, GB300 NVL) this host has an IMEX channel.

    Without one, CUDA cannot export memory to other nodes: error 800 in NCCL's MNNVL start-up.
    """
    fact = host.need(GpuFact)
    if not fact.has_hardware:
        raise SkipRule(NO_GPU)
    joined = [gpu for gpu in fact.gpus if gpu.fabric and gpu.fabric.cluster.strip("0")]
    if not joined or not any((gpu.compute_capability or "").startswith("10.") for gpu in joined):
        raise SkipRule("no multi-node NVLink on this host")
    if fact.imex_channels:
        return
    assert joined[0].fabric is not None
    yield finding(
        "gpu.imex.no-channel",
        Severity.WARN,
        "multi-node NVLink without an IMEX channel on this host",
        [
            Evidence(f"fabric cluster {joined[0].fabric.cluster}", f"NVML, GPU {joined[0].index}", host=host.name),
            Evidence("no channel in /dev/nvidia-caps-imex-channels", "/dev", host=host.name),
        ],
        hosts=(host.name,),
        confidence=0.8,
        fixes=[
            Fix(
                "start the IMEX service and create channel 0",
                "sudo systemctl status nvidia-imex; nvidia-imex-ctl -N",
                host.name,
            )
        ],
    )


@fleet_rule("topology", "topology.differs")
def same_topology(fleet: Fleet) -> Iterator[Finding]:
    """All hosts have the same topology: the same links and distances by position, whatever the NICs are called.

    Hosts with another GPU model are left out: they differ by nature.
    """
    matrices: dict[str, Matrix] = {}
    skipped = 0
    for host in fleet.hosts:
        try:
            matrix = matrix_of(host)
        except SkipRule:
            skipped += 1
            continue
        except MissingFact as gap:
            fleet.lack(gap.what, gap.why, host.name)
            continue
        if matrix.truncated:
            fleet.lack(SOURCE, "truncated", host.name)
            continue
        matrices[host.name] = matrix
    if skipped == len(fleet.hosts):
        raise SkipRule("no NVIDIA GPU on any host" if skipped > 1 else NO_GPU)
    if len(fleet.hosts) < 2:
        raise SkipRule("only one host")
    models = row("model", {host.name: _models(host) for host in fleet.hosts if host.name in matrices})
    others = set(models.differing)
    signatures = {
        host: signature(matrix)
        for host, matrix in matrices.items()
        if host not in others  # another GPU model has another topology: its own finding says so
    }
    drift = row("topology", signatures)
    if not drift.differing:
        return
    usual = next((matrices[host] for host, text in sorted(signatures.items()) if text == drift.majority), None)
    yield finding(
        "topology.differs",
        Severity.WARN,
        "the hosts have different topologies"
        if drift.tie
        else f"the topology of {fold(drift.odd)} differs from the other hosts",
        [
            Evidence(_difference(matrices[host], usual), source_of(matrices[host]), host=host)
            for host in drift.differing[:6]
        ],
        hosts=drift.differing,
        confidence=0.8 if drift.tie else 0.9,
    )


def _models(host: Host) -> str:
    """The GPU models of a host, or nothing where they are not known."""
    fact = host.want(GpuFact)
    return ", ".join(sorted({gpu.name or "" for gpu in fact.gpus})) if fact else ""


def _difference(matrix: Matrix, usual: Matrix | None) -> str:
    """What is different, in one line: counts first, else the first cells."""
    counts = f"{len(matrix.gpus)} GPUs, {len(matrix.nics)} NICs"
    if usual is None:
        return counts
    other = f"{len(usual.gpus)} GPUs, {len(usual.nics)} NICs"
    if counts != other:
        return f"{counts}; most hosts: {other}"
    names, mine = in_order(usual), in_order(matrix)
    kinds, theirs = matrix.kinds(), usual.kinds()
    cells = []
    for i, j in itertools.combinations(range(len(names)), 2):
        if i >= len(usual.gpus):
            continue  # between NICs: not compared
        own, other_kind = kinds.get((mine[i], mine[j]), "?"), theirs.get((names[i], names[j]), "?")
        if own != other_kind:
            cells.append(f"{mine[i]}-{mine[j]} {own} (most hosts: {other_kind})")
    return few(cells)
