"""What the hardware allows: the largest bus bandwidth that the binding link permits, and which link that is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nccl_doctor.bench.model import Results
from nccl_doctor.bench.path import Path
from nccl_doctor.bench.world import Prepared, World

# GB/s per lane and direction of PCIe after its coding, generations 1 to 6 (PCI-SIG); index is the generation.
PCIE_LANE_GBS = (0.0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563)


class Ceiling(msgspec.Struct, frozen=True):
    """Bus bandwidth in GB/s that a ring can reach, in words which link binds, and from where that is known.

    A measured one is no hard limit: collectives can be luckier than the moment in which the pairs were measured.
    """

    gbs: float
    words: str
    measured: bool  # by this run, not claimed by a driver

    @property
    def name(self) -> str:
        """What it is, in two words."""
        return "pair rate" if self.measured else "ceiling"


def find_ceiling(world: World, path: Path, results: Results, prepared: Mapping[str, Prepared]) -> Ceiling | None:
    """The ceiling, or None where no fact gives one."""
    if world.size < 2:
        return None
    if world.backend == "gloo":
        return _pairs(results)
    return _nvidia(world, path, prepared)


def _pairs(results: Results) -> Ceiling | None:
    if not results.links:
        return None
    slowest = min(results.links, key=lambda link: link.gbs)
    hosts = f"{results.host_of(slowest.first)} <-> {results.host_of(slowest.second)}"
    return Ceiling(
        slowest.gbs,
        f"what {hosts} moved" + (f", the slowest of {len(results.links)} host pairs" if len(results.links) > 1 else ""),
        True,
    )


def _nvidia(world: World, path: Path, prepared: Mapping[str, Prepared]) -> Ceiling | None:
    hosts = [prepared[name] for name in world.per_host if name in prepared]
    if not hosts or len(hosts) != len(world.per_host):
        return None
    within = any(ranks > 1 for ranks in world.per_host.values())
    intra = _intra(hosts) if within else None
    inter = _inter(hosts, path) if len(hosts) > 1 else None
    known = [item for item in (intra, inter) if item is not None]
    if (len(hosts) > 1 and inter is None) or (within and intra is None):
        return None  # the one that is not known may be the one that binds
    return min(known, key=lambda item: item.gbs) if known else None


def _intra(hosts: list[Prepared]) -> Ceiling | None:
    if any(host.nvlinks is None for host in hosts):
        return None  # whether these bind, or PCIe, is not known
    least = min(hosts, key=lambda host: (host.nvlinks or 0) * host.nvlink_gbs)
    if least.nvlinks and least.nvlink_gbs:
        gbs = least.nvlinks * least.nvlink_gbs
        return Ceiling(
            gbs, f"in a host: {least.nvlinks} NVLinks x {least.nvlink_gbs:g} GB/s = {gbs:.0f} GB/s per GPU", False
        )
    slots = [slot for host in hosts for slot in host.pcie]
    rates = [(rate, slot) for slot in slots if (rate := _pcie(slot)) > 0]
    if not rates:
        return None
    gbs, slot = min(rates)
    generation, width = slot.replace(" ", "").split(",")
    return Ceiling(gbs, f"in a host: PCIe {generation}.0 x{width} = {gbs:.1f} GB/s per GPU", False)


def _pcie(slot: str) -> float:
    fields = slot.replace(" ", "").split(",")
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[0]) >= len(PCIE_LANE_GBS):
        return 0.0
    return PCIE_LANE_GBS[int(fields[0])] * int(fields[1])


def _inter(hosts: list[Prepared], path: Path) -> Ceiling | None:
    if path.nccl is None or "NET/IB" not in path.nccl.transports:
        return None  # the rate of TCP or of a plugin is not known from facts
    sums = [(sum(port.rate_gbps for port in host.hcas if port.active) / 8, host) for host in hosts]
    gbs, host = min(sums, key=lambda item: item[0])
    active = [port for port in host.hcas if port.active]
    if not gbs:
        return None
    rates = sorted({port.rate_gbps for port in active})
    ports = f"{len(active)} x {rates[0]:g} Gb/s" if len(rates) == 1 else f"{len(active)} ports"
    return Ceiling(gbs, f"inter-host: {ports} = {gbs:.0f} GB/s per host", False)
