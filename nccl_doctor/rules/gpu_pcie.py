"""PCIe of a host's GPUs: width, generation, repeated transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nccl_doctor.facts.gpu import GpuDevice
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.findings.model import Finding, Fix, Severity, shell_word
from nccl_doctor.rules.engine import Host, host_rule
from nccl_doctor.rules.nvidia import answered, devices, need_fields, place, proof
from nccl_doctor.rules.thresholds import value

FULL_POWER = 2  # P0 to P2: a GPU that idles lower has lowered its PCIe generation, too


@host_rule("gpu", "gpu.pcie.width", "gpu.pcie.generation", "gpu.pcie.slot-limited", "gpu.pcie.replays")
def pcie(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU's PCIe link runs at the width and generation it can.

    Fewer lanes are a fault on a module (SXM), and on a card where most GPUs of its model here have more. A card without
    such neighbours may sit in a slot that is wired so: a warning; in a virtual machine, whose slots are the provider's
    (EC2 gives an A10G 8 of its 16 lanes), information. An idle GPU may lower its PCIe generation to save power, so the
    current one is judged where the GPU is not idle, or is in a full power state (P0 to P2) in which most GPUs of its
    model run faster. Superchips (GH200, GB200) reach their CPU over NVLink-C2C: of them only the replays are judged.
    """
    gpus = devices(answered(host))
    slots = []
    for gpu in gpus:
        model = find(gpu.name)
        if not (model and model.c2c):
            alike = [peer for peer in gpus if peer.name == gpu.name]
            module = model is not None and model.nvlinks != 0
            slots += [(gpu, quote) for quote in _limited(gpu, module, alike)]
            yield from _width(host, gpu, module, alike)
            yield from _generation(host, gpu, alike)
        replays = gpu.pcie_replays or 0
        if replays >= value("gpu.pcie.replays.warn"):
            title = f"PCIe of GPU {gpu.label} repeats transfers"
            quote = f"PCIe replay counter: {replays}"
            yield _link(host, "gpu.pcie.replays", Severity.WARN, title, [(gpu, quote)])
    if slots:
        topology = host.want(TopologyFact)
        virtual = topology is not None and topology.hypervisor is not None
        count = len({gpu.index for gpu, _ in slots})
        giver = "the virtual machine" if virtual else "slot or BIOS"
        title = f"{giver} gives {count} of {len(gpus)} GPUs less PCIe than they can use"
        yield _link(host, "gpu.pcie.slot-limited", Severity.INFO if virtual else Severity.WARN, title, slots)
    need_fields(gpus, "PCIe link state", "pcie_width", "pcie_width_max", "pcie_gen", "pcie_gen_max", "pcie_gen_gpu_max")
    need_fields(gpus, "PCIe replays", "pcie_replays")


def _most(alike: Sequence[GpuDevice], better: Callable[[GpuDevice], bool]) -> bool:
    """Whether more than half of the GPUs of a model are better off than the one that is judged."""
    return 2 * sum(map(better, alike)) > len(alike)


def _narrow(gpu: GpuDevice, module: bool, alike: Sequence[GpuDevice]) -> bool:
    """Whether lanes are missing that are there for certain."""
    now = gpu.pcie_width or 0
    return (module and now < (gpu.pcie_width_max or 0)) or _most(alike, lambda peer: (peer.pcie_width or 0) > now)


def _width(host: Host, gpu: GpuDevice, module: bool, alike: Sequence[GpuDevice]) -> Iterator[Finding]:
    now, most = gpu.pcie_width, gpu.pcie_width_max
    if now is None or most is None or not _narrow(gpu, module, alike):
        return
    widest = max(most, *(peer.pcie_width or 0 for peer in alike))
    others = f"; other GPUs here: x{widest}" if len(alike) > 1 else ""
    title = f"GPU {gpu.label} has only {now} of {widest} PCIe lanes"
    yield _link(
        host, "gpu.pcie.width", Severity.FAIL, title, [(gpu, f"PCIe link width: x{now}, maximum x{most}{others}")]
    )


def _generation(host: Host, gpu: GpuDevice, alike: Sequence[GpuDevice]) -> Iterator[Finding]:
    now, most = gpu.pcie_gen, gpu.pcie_gen_max
    if now is None or most is None:
        return
    power = gpu.performance_state
    saving = (power or 0) > FULL_POWER
    idle = saving or bool((gpu.throttle_reasons or 0) & 1)
    slot = _most(alike, lambda peer: (peer.pcie_gen_max or 0) > most)
    faster = _most(alike, lambda peer: (peer.pcie_gen or 0) > now and peer.performance_state == power)
    slow = now < most and (not idle or (faster and not saving))
    if slot or slow:
        best = max(peer.pcie_gen_max or 0 for peer in alike)
        title = f"PCIe of GPU {gpu.label} runs at generation {now if slow else most}, not {best}"
        quote = f"PCIe generation: {now}, maximum {most}; best of this host: {best}"
        yield _link(host, "gpu.pcie.generation", Severity.FAIL, title, [(gpu, quote)])


def _limited(gpu: GpuDevice, module: bool, alike: Sequence[GpuDevice]) -> Iterator[str]:
    """What a slot does not give this GPU, as far as nothing proves that it should."""
    now, gen = gpu.pcie_width, gpu.pcie_gen_max
    lanes = max(value("gpu.pcie.width") if module else 0, *(peer.pcie_width_max or 0 for peer in alike))
    if now and now < lanes and not _narrow(gpu, module, alike):
        yield f"PCIe link width: x{now}, maximum x{lanes:.0f}"
    own = max(gpu.pcie_gen_gpu_max or 0, *(peer.pcie_gen_max or 0 for peer in alike))
    if gen and gen < own and not _most(alike, lambda peer: (peer.pcie_gen_max or 0) > gen):
        yield f"PCIe generation: maximum with this slot {gen}, GPU alone {own}"


def _link(host: Host, id: str, severity: Severity, title: str, quotes: Sequence[tuple[GpuDevice, str]]) -> Finding:
    bus_id = quotes[0][0].bus_id
    where = f"-s {shell_word(bus_id)}" if bus_id else "-d 10de:"
    look = Fix(
        "look at the link and its upstream port; a reseat, riser or BIOS setting cures it",
        f"sudo lspci -vv {where} | grep -E 'LnkCap|LnkSta'; sudo dmesg -T | grep -i aer | tail",
    )
    return host.finding(
        id,
        severity,
        title,
        [proof(host, gpu, quote) for gpu, quote in quotes],
        *([look] if severity is not Severity.INFO else []),
        places=[place(host, gpu) for gpu, _ in quotes],
    )
