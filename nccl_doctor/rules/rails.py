"""Which RDMA ports of a host are rails (the training network) and which belong to the front end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from nccl_doctor.agent.pci import AWS
from nccl_doctor.env import hca
from nccl_doctor.facts.infiniband import ETHERNET, Device, InfinibandFact, Port
from nccl_doctor.facts.model import Plan


class Rail(msgspec.Struct, frozen=True):
    """One port of the training network; ``position`` counts from 0 in PCI order, the order NCCL lists devices in."""

    position: int
    device: Device
    port: Port

    @property
    def label(self) -> str:
        """The name NCCL_IB_HCA takes: ``mlx5_0:1``."""
        return f"{self.device.name}:{self.port.port}"

    @property
    def roce(self) -> bool:
        """The link layer is Ethernet."""
        return self.port.link_layer == ETHERNET

    @property
    def efa(self) -> bool:
        """An AWS Elastic Fabric Adapter: no GIDs to choose, no peer-memory module, its own plugin."""
        return self.device.pci_vendor == AWS


Kind = tuple[str, str]


def _kind(device: Device, port: Port) -> Kind:
    """Board and link layer: rails of one machine are alike in both."""
    return (device.hca_type or device.pci_device or "", port.link_layer or "")


def kinds_of_rails(facts: Iterable[InfinibandFact]) -> set[Kind]:
    """The kinds that are rails: those with a port at the best active rate; of several, the most frequent."""
    return _kinds_of([pair for fact in facts for pair in fact.ports_but_front_end])


def _kinds_of(ports: Sequence[tuple[Device, Port]]) -> set[Kind]:
    active = [(rate, device, port) for device, port in ports if port.active and (rate := port.gbps)]
    if not active:
        counts = Counter(_kind(device, port) for device, port in ports)
        most = max(counts.values(), default=0)
        return {kind for kind, count in counts.items() if count == most}
    best = max(rate for rate, _, _ in active)
    fastest = Counter(_kind(device, port) for rate, device, port in active if rate == best)
    return {fastest.most_common(1)[0][0]}


def rails(fact: InfinibandFact, plan: Plan, kinds: set[Kind] | None = None) -> list[Rail]:
    """The host's rails: by NCCL_IB_HCA of the job where it is set, else by the kind of board (``kinds``: the fleet's).

    A port of the rails' kind that is down is a rail: it is missed. A down port of another kind (a management card) is
    not.
    """
    wanted = hca.parse(plan.env["NCCL_IB_HCA"]) if plan.env.get("NCCL_IB_HCA") else None
    if wanted is not None:
        chosen = [(d, p) for d in fact.devices for p in d.ports if wanted.matches(d.name, p.port)]
        chosen.sort(key=lambda pair: (pair[0].path, pair[0].name, pair[1].port))
    else:
        ports = fact.ports_but_front_end
        of = kinds if kinds is not None else _kinds_of(ports)
        chosen = [(device, port) for device, port in ports if _kind(device, port) in of]
    return [Rail(position, device, port) for position, (device, port) in enumerate(chosen)]


def apart(ports: Sequence[Rail]) -> list[Rail]:
    """The ports of boards (PSIDs) of which there are several, none of them at the best active rate.

    Storage cards have the chip of the rails (DGX H100: MT4129) and another board; a single one may be a replaced card.
    """
    boards: dict[str, list[Rail]] = {}
    for rail in ports:
        boards.setdefault(rail.device.board_id or "", []).append(rail)
    active = [rail for rail in ports if rail.port.active and rail.port.gbps]
    best = max((rail.port.gbps or 0.0 for rail in active), default=0.0)
    fast = {rail.device.board_id or "" for rail in active if rail.port.gbps == best}
    if not fast or "" in boards:
        return []
    return [rail for board, its in boards.items() if board not in fast and len(its) > 1 for rail in its]
