"""One table of the hardware of all hosts: what they have alike, and which hosts are the odd ones out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact, Port
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology_matrix import Matrix
from nccl_doctor.facts.topology_paths import near_nics, nvlinks, signature
from nccl_doctor.rules import gpu_fleet
from nccl_doctor.rules.drift import DriftRow, joined, row
from nccl_doctor.rules.engine import Host, facts_of
from nccl_doctor.rules.rails import Rail, kinds_of_rails, rails
from nccl_doctor.rules.topology_view import known_matrix


def hardware_table(hosts: Sequence[Host], plan: Plan) -> tuple[DriftRow, ...]:
    """GPUs, models, driver, firmware, settings, topology, rails: one row each. A host that does not tell is left out."""
    gpus = {host: fact for host, fact in facts_of(hosts, GpuFact).items() if fact.nvml.outcome == "ok"}
    rows = list(gpu_fleet.table(gpus)) if gpus else []
    matrices = {host.name: matrix for host in hosts if (matrix := known_matrix(host))}
    if matrices:
        rows.append(_named(row("topology", {host: signature(matrix) for host, matrix in matrices.items()}), matrices))
    fabrics = facts_of(hosts, InfinibandFact)
    kinds = kinds_of_rails(fact for fact in fabrics.values() if fact.devices)
    found = {host: rails(fact, plan, kinds) for host, fact in fabrics.items()}
    if any(found.values()):
        rows += [row(subject, {host: tell(ports) for host, ports in found.items()}) for subject, tell in _RAILS.items()]
    return tuple(one for one in rows if one.values)


def _named(drift: DriftRow, matrices: dict[str, Matrix]) -> DriftRow:
    """The row with a few words in place of each signature; different topologies with equal words get a letter."""
    words = [_topology(matrices[hosts[0]]) for _, hosts in drift.values]
    several = {word for word in words if words.count(word) > 1}
    values = tuple(
        (f"{word} ({chr(65 + index)})" if word in several else word, hosts)
        for index, (word, (_, hosts)) in enumerate(zip(words, drift.values, strict=True))
    )
    return DriftRow(drift.subject, values, drift.odd, drift.tie)


def _topology(matrix: Matrix) -> str:
    """``8 GPUs NV18, 8 NICs PIX``: the widest links between GPUs, and the nearest distances of NICs."""
    kinds = matrix.kinds()
    names = [gpu.name for gpu in matrix.gpus]
    between = {kinds.get((a, b), "?") for a in names for b in names if a != b}
    widest = max(between, key=lambda kind: (nvlinks(kind), kind), default="")
    near = sorted({nic.kind for nic in near_nics(matrix).values()})
    words = [f"{len(names)} GPUs {widest}".rstrip(), f"{len(matrix.nics)} NICs {'/'.join(near)}".rstrip()]
    return ", ".join(words)


def _rate(port: Port) -> str:
    return "down" if not port.active else f"{port.gbps:g}" if port.gbps else "?"


_RAILS: dict[str, Callable[[list[Rail]], str]] = {
    "rails": lambda ports: str(len(ports)),
    "rail rates (Gb/s)": lambda ports: joined([_rate(rail.port) for rail in ports]) or "none",
    "HCA firmware": lambda ports: ", ".join(sorted({rail.device.fw_ver for rail in ports if rail.device.fw_ver})),
}
