"""What the rules on RDMA ports share: a host's rails, and how evidence and advice name them."""

from __future__ import annotations

from nccl_doctor.agent.pci import MELLANOX
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.infiniband_witness import SYSFS
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Fix, Place, shell_word
from nccl_doctor.rules.engine import Host, SkipRule
from nccl_doctor.rules.rails import Rail, rails

NO_DEVICE = "no RDMA device on this host"


def with_devices(host: Host) -> InfinibandFact:
    """The fact of a host that has RDMA devices; ``SkipRule`` where it has none (the fleet rule compares hosts)."""
    fact = host.need(InfinibandFact)
    if not fact.devices:
        raise SkipRule(NO_DEVICE)
    return fact


def needs_no_rdma(host: Host) -> bool:
    """Whether it is a container of one GPU that was given none of its host's RDMA devices, and no other host was asked for.

    What is started so is rarely for a job over several hosts (which ``--require ib-ports=1`` tells); one GPU alone talks to nobody.
    """
    fact, gpu = host.want(InfinibandFact), host.want(GpuFact)
    if not (host.alone and fact and fact.devices and gpu and gpu.surely_contained):
        return False
    return len(gpu.gpus) == 1 and bool(fact.uverbs_expected) and not fact.uverbs


def own_rails(host: Host, plan: Plan) -> list[Rail]:
    """The host's rails by its own ports alone; use ``host.once(own_rails, plan)``: many rules look at them."""
    return rails(host.need(InfinibandFact), plan)


def rails_of(host: Host, plan: Plan) -> list[Rail]:
    """The rails of a host that has some; ``SkipRule`` where it has none (its RDMA ports are the front end's)."""
    with_devices(host)
    ports = host.once(own_rails, plan)
    if not ports:
        raise SkipRule("none of the RDMA ports is a rail")
    return ports


def roce_rails(host: Host, plan: Plan) -> list[Rail]:
    """The active rails over Ethernet, EFAs left out; ``SkipRule`` where there is none."""
    with_devices(host)
    ports = [rail for rail in host.once(own_rails, plan) if rail.roce and rail.port.active and not rail.efa]
    if not ports:
        raise SkipRule("no active RoCE port")
    return ports


def linked_up(rail: Rail) -> bool:
    """The cable is in and both ends agree (``LinkUp``), whatever the port's state."""
    return "LinkUp" in (rail.port.phys_state or "").replace(" ", "")


def sysfs(host: Host, rail: Rail, text: str, file: str = "") -> Evidence:
    """A quoted value of a port's sysfs directory, or of the tool that stands in for it."""
    if rail.device.source != SYSFS:
        return Evidence(text, f"{rail.device.source} {rail.label}", host=host.name)
    path = f"/sys/class/infiniband/{rail.device.name}/ports/{rail.port.port}"
    return Evidence(text, f"{path}/{file}" if file else path, host=host.name)


def card(host: Host, rail: Rail) -> Evidence:
    """Which card this is: PCI address, slot, board and GUID, to find it in the machine and its cable in the fabric."""
    device = rail.device
    words = [
        f"{device.name} is {device.bus_id or 'at an unknown PCI address'}",
        f"slot {device.slot}" if device.slot else "",
        " ".join(text for text in (device.hca_type, device.board_id) if text),
        f"node GUID {device.node_guid}" if device.node_guid else "",
    ]
    return Evidence(", ".join(word for word in words if word), f"/sys/class/infiniband/{device.name}", host=host.name)


def place(host: Host, rail: Rail) -> Place:
    """Where a finding about a port points."""
    return Place(host=host.name, nic=rail.label)


def own_view(rail: Rail) -> Fix:
    """How to see what a port says of its own link: mlxlink knows NVIDIA's cards alone."""
    name, number = shell_word(rail.device.name), rail.port.port
    if rail.device.pci_vendor == MELLANOX or name.startswith("mlx"):
        command = f"ibstat {name} {number}; sudo mlxlink -d {name} -m -c"
    else:
        netdevs = "".join(f"; sudo ethtool {shell_word(interface.name)}" for interface in rail.device.netdevs[:1])
        command = f"rdma -d link show {name}/{number}{netdevs}"
    return Fix("see the port's own view: speed, lanes, cable, errors", command)


def far_end(host: Host, rail: Rail) -> list[Fix]:
    """How to find the switch port at the other end of a rail's cable: while there is a link, the fabric knows it."""
    if rail.efa or not (rail.port.active or linked_up(rail)):
        return []
    if not rail.roce:
        command = f"sudo iblinkinfo --switches-only | grep {host.name}"
    elif rail.device.netdevs:
        command = f"sudo lldpcli show neighbors ports {shell_word(rail.device.netdevs[0].name)}"
    else:
        return []
    return [Fix("find the switch port at the other end of its cable", command)]


def cable_fixes(host: Host, rail: Rail) -> list[Fix]:
    """What to do about a link that is down, flaps or errs."""
    words = "|".join(word for word in (rail.device.name, rail.device.bus_id) if word)
    return [
        *far_end(host, rail),
        Fix(
            "check cable, transceiver and the switch port at the other end; look for what took it down",
            f"sudo dmesg -T | grep -iE {shell_word(words)} | tail -20",
        ),
    ]
