"""The matrix of a host as the rules see it: nvidia-smi's, or the one rebuilt from sysfs and NVML."""

from __future__ import annotations

from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_matrix import Matrix, TopologyError, parse
from nccl_doctor.facts.topology_tree import SYSFS, differences, rebuild
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule
from nccl_doctor.rules.nvidia import NO_GPU

SOURCE = "nvidia-smi topo -m"


def matrix_of(host: Host) -> Matrix:
    """The host's matrix: nvidia-smi's, else the one rebuilt from sysfs and NVML.

    ``SkipRule`` without a GPU, ``MissingFact`` where there is neither.
    """
    try:
        return printed_matrix(host)
    except MissingFact:
        try:
            return host.once(rebuilt)
        except TopologyError:
            pass
        raise


def known_matrix(host: Host) -> Matrix | None:
    """As :func:`matrix_of`, or None: for context only."""
    try:
        return matrix_of(host)
    except (MissingFact, SkipRule):
        return None


def printed_matrix(host: Host) -> Matrix:
    """The matrix that nvidia-smi printed, parsed."""
    return host.once(_printed)


def rebuilt(host: Host) -> Matrix:
    """The matrix from the PCI tree in sysfs and from NVML; use ``host.once``."""
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


def witnesses(host: Host, matrix: Matrix) -> list[tuple[str, str]]:
    """(label, sentence) lines for a reader of the matrix: that it was rebuilt and why, or that sysfs disagrees with it."""
    if matrix.source == SYSFS:
        try:
            printed_matrix(host)
        except MissingFact as gap:
            return [("source", f"rebuilt from the PCI tree in sysfs and NVML; {gap.what}: {gap.why}")]
    try:
        found = differences(matrix, host.once(rebuilt))
    except (MissingFact, TopologyError):
        return []
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return [("disagree", "; ".join(str(item) for item in found[:2]) + more)] if found else []
