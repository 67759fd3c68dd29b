"""Topology: do all GPUs have their NVLinks and a NIC beside them, can they reach each other, are hosts alike?"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from nccl_doctor.facts.fold import few, fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError
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
from nccl_doctor.facts.topology_tree import differences
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.drift import row
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.nvidia import NO_GPU, superchip
from nccl_doctor.rules.topology_view import SOURCE, matrix_of, printed_matrix, rebuilt, source_of


@host_rule("topology", "topology.witnesses-differ")
def two_witnesses(host: Host, plan: Plan) -> Iterator[Finding]:
    """The matrix of nvidia-smi agrees with the one rebuilt from the PCI tree in sysfs and from NVML's NVLinks.

    Distances over PCIe that are counted differently are information (a virtual machine may show one tree and mean
    another); NVLinks that one of them has and the other has not are a warning. NCCL itself reads sysfs and NVML.
    """
    host.need(TopologyFact)
    try:
        printed, own = printed_matrix(host), host.once(rebuilt)
    except (MissingFact, TopologyError) as error:
        raise SkipRule(f"nothing to compare with: {error}") from error
    found = differences(printed, own)
    if not found:
        return
    linked = [item for item in found if item.nvlink]
    told = linked or found
    yield host.finding(
        "topology.witnesses-differ",
        Severity.WARN if linked else Severity.INFO,
        f"nvidia-smi and sysfs disagree on {len(told)} pairs of devices"
        + (" about NVLinks" if linked else ", over PCIe alone"),
        [(str(item), f"{SOURCE}; /sys/bus/pci, NVML") for item in told[:4]],
        confidence=0.7,
    )


def _row_quoted(host: Host, matrix: Matrix, name: str) -> Evidence:
    """One row of the matrix, as evidence."""
    cells = " ".join(f"{link.b}={link.kind}" for link in matrix.links if link.a == name)
    return Evidence(f"{name}: {cells}", source_of(matrix), host=host.name)


@host_rule("topology", "gpu.nvlink.lost", "gpu.nvlink.narrow")
def nvlink_matrix(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU of an NVLink machine reaches the others over NVLink, with the same number of links.

    In the matrix a GPU that lost its links shows as a row of NODE and SYS among NV# rows; NCCL then sends its part of
    every collective over PCIe or through host memory, and the whole job runs at that speed. A GPU of another model than
    most (the display card of a DGX Station) may have none.
    """
    matrix = matrix_of(host)
    fact = host.want(GpuFact)
    models = {f"GPU{gpu.index}": gpu.name for gpu in fact.gpus if gpu.name} if fact else {}
    usual = Counter(models.values()).most_common(1)[0][0] if models else None
    for gpu in lost_nvlink(matrix):
        if models.get(gpu, usual) != usual:
            continue
        yield _nvlink_finding(host, matrix, gpu, "gpu.nvlink.lost", f"{gpu} has no NVLink, all other GPUs are linked")
    for gpu, width in fewer_nvlinks(matrix).items():
        title = f"{gpu} has only {width} NVLinks to its peers, fewer than the other GPUs"
        yield _nvlink_finding(host, matrix, gpu, "gpu.nvlink.narrow", title)


def _nvlink_finding(host: Host, matrix: Matrix, gpu: str, id: str, title: str) -> Finding:
    return host.finding(
        id,
        Severity.FAIL,
        title,
        _row_quoted(host, matrix, gpu),
        Fix("look at its links", f"nvidia-smi nvlink -s -i {gpu.removeprefix('GPU')}"),
        Fix(
            "drain the host and reset all GPUs with the fabric manager running",
            "sudo nvidia-smi --gpu-reset",
            risky=True,
        ),
        places=[Place(host=host.name, gpu=gpu)],
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
        yield host.finding(
            "topology.nic-far",
            Severity.INFO if linked or given else Severity.WARN,
            far.text + ("; NCCL can use a neighbour's NIC over NVLink (PXN)" if linked else ""),
            [_row_quoted(host, matrix, gpu) for gpu in far.names[:3]],
            places=[Place(host=host.name, gpu=gpu) for gpu in far.names],
            confidence=0.9 if some else 0.8,
        )
    if flat := topics.get("flat"):
        yield host.finding(
            "topology.flat",
            Severity.INFO,
            flat.text,
            _row_quoted(host, matrix, matrix.gpus[0].name),
            Fix("give NCCL the real tree, where the provider publishes one (NCCL_TOPO_FILE)"),
        )
    if share := topics.get("nic-share"):
        yield host.finding(
            "topology.uneven-nics",
            Severity.INFO,
            share.text,
            [_row_quoted(host, matrix, name) for name in share.names[:3]],
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
    fleet.need_several()
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
