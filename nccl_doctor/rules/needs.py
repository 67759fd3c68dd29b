"""From a bundle to what ``env recommend`` needs to know of each host, and the connections that were tried."""

from __future__ import annotations

import msgspec

from nccl_doctor.agent.pci import AWS
from nccl_doctor.env import hosts
from nccl_doctor.env.interface_advice import Attempt
from nccl_doctor.env.recommend_model import FabricPort, HostNeeds
from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.infiniband import ETHERNET, InfinibandFact
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Names
from nccl_doctor.facts.model import Bundle, Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import UNLIMITED, System
from nccl_doctor.rules import engine, interface_view, rails
from nccl_doctor.rules.infiniband_gids import entries
from nccl_doctor.rules.thresholds import value


def of_bundle(bundle: Bundle) -> tuple[tuple[HostNeeds, ...], tuple[Attempt, ...]]:
    """(what is known of every reached host, the connections tried between them)."""
    return of_fleet(engine.Fleet(engine.reached(bundle), bundle.plan))


def of_fleet(fleet: engine.Fleet) -> tuple[tuple[HostNeeds, ...], tuple[Attempt, ...]]:
    """As :func:`of_bundle`, of hosts whose facts the rules have read already."""
    # Rails by what the boards are, not by an NCCL_IB_HCA that somebody has set: that is what is to be judged.
    plan = msgspec.structs.replace(fleet.plan, env={})
    kinds = rails.kinds_of_rails(engine.facts_of(fleet.hosts, InfinibandFact).values())
    needs = tuple(_needs(host, fleet.plan, plan, kinds) for host in fleet.hosts)
    return needs, interface_view.attempts(fleet)


def _needs(host: engine.Host, plan: Plan, bare: Plan, kinds: set[tuple[str, str]]) -> HostNeeds:
    fabric = host.want(InfinibandFact)
    software = host.want(Software)
    system = host.want(System)
    names = host.want(Names)
    network = host.want(Interfaces)
    environment = host.want(Environment)
    return HostNeeds(
        host=host.name,
        interfaces=network,
        own_addresses=names.own.addresses if names else None,
        ports=_ports(fabric, bare, kinds) if fabric else None,
        nccl_version=interface_view.release_of(host, plan),
        torch_version=hosts.torch_of(software),
        net_plugins=tuple(item.name for item in software.plugins if item.kind == "net") if software else (),
        container=bool(system and system.container.hints),
        shm_bytes=system.shm.size_bytes if system and system.shm.present else None,
        memlock_bytes=_small_memlock(system) if system else None,
        environment=environment.variables if environment else network.environment if network else {},
        job_environment=plan.env,
        rdma=bool(system and system.rdma_devices),
        devices=hosts.devices_of(network, fabric),
    )


def _small_memlock(system: System) -> int | None:
    """The limit on locked memory where it is too small for RDMA, as the rule on it has it; None where it is not."""
    limit = system.limits.get("memlock")
    if limit is None or limit.soft == UNLIMITED or limit.soft >= value("memlock.rdma"):
        return None
    return None if system.container.locks_freely else limit.soft


def _ports(fabric: InfinibandFact, plan: Plan, kinds: set[tuple[str, str]]) -> tuple[FabricPort, ...]:
    of_training = {rail.label for rail in rails.rails(fabric, plan, kinds)}
    return tuple(
        FabricPort(
            device=device.name,
            port=port.port,
            active=port.active,
            ethernet=port.link_layer == ETHERNET,
            rail=f"{device.name}:{port.port}" in of_training,
            gbps=port.gbps,
            efa=device.pci_vendor == AWS,
            default_route=fabric.carries_default_route(device),
            gids=tuple(entries(port)) if port.link_layer == ETHERNET else (),
        )
        for device in fabric.devices
        for port in device.ports
    )
