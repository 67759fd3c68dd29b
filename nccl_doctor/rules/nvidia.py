"""What the GPU rules share: which hosts they have ground on, and how they name a GPU."""

from __future__ import annotations

import msgspec

from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.findings.model import Evidence, Fix, Place
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule

NO_GPU = "no NVIDIA GPU on this host"
LOST = "GPU is lost"  # NVML's words for one that fell off the bus

THROTTLE_REASONS = {  # NVML clocks event reasons (nvml.h, nvmlClocksEventReason*)
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}
SLOWDOWN = 0x08  # alone it "may be also reported during PState or clock change" (nvml.h): a reading proves no fault
_SPECIAL = 0x40 | 0x80  # the reasons of the hardware that come with the general bit
# Bit, finding id and words of the reasons that are a fault. A power cap is normal under load.
THROTTLES = (
    (0x40, "gpu.thermal-power.hw-thermal", "is slowed down by heat (hardware)"),
    (0x80, "gpu.thermal-power.power-brake", "is slowed down by the power brake: the power supply asks for less"),
    (0x20, "gpu.thermal-power.sw-thermal", "is slowed down by heat (driver)"),
    (SLOWDOWN, "gpu.thermal-power.hw-slowdown", "is slowed down by the hardware, which does not say why"),
)
THROTTLE_MASK = sum(bit for bit, _, _ in THROTTLES)
THROTTLE_IDS = tuple(id for _, id, _ in THROTTLES)
COOL = Fix(
    "check fans, air flow, inlet temperature and the liquid loop",
    "sudo ipmitool sdr type temperature; sudo ipmitool sdr type fan",
)
_SUPPLY = Fix(
    "check power supplies, their cables and the chassis power policy (BMC event log)",
    "sudo ipmitool sel list | tail -20; sudo ipmitool sdr type 'Power Supply'",
)


def throttled_by(mask: int, bit: int) -> bool:
    """Whether a mask of reasons has this one; the general bit counts only where no special one is told."""
    return bool(mask & bit) and not (bit == SLOWDOWN and mask & _SPECIAL)


def throttle_fix(id: str) -> Fix:
    """What to do about a GPU that is throttled so."""
    return COOL if id.endswith("-thermal") else _SUPPLY


def default_power_limit(index: int, watts: float) -> Fix:
    """How to take back a lower power limit."""
    return Fix("if nobody wants it so, set the default again", f"sudo nvidia-smi -i {index} -pl {watts:.0f}")


def with_hardware(host: Host) -> GpuFact:
    """The GPU fact of a host that has a GPU; ``SkipRule`` where there is none and no sign of one.

    ``MissingFact`` where there is a sign of one that is gone: without it the host is not known to be healthy.
    """
    fact = host.need(GpuFact)
    if fact.gone:
        raise MissingFact("GPUs", fact.gone)
    if not fact.has_hardware:
        raise SkipRule(NO_GPU)
    return fact


def answered(host: Host) -> GpuFact:
    """The GPU fact of a host whose NVML answered; ``MissingFact`` where it did not: nothing is known then."""
    fact = with_hardware(host)
    if fact.nvml.outcome != "ok":
        raise MissingFact("NVML", fact.nvml.detail or fact.nvml.outcome)
    return fact


def devices(fact: GpuFact) -> list[GpuDevice]:
    """The GPUs that answered NVML (one without a handle is lost or not ours to see: another rule's business)."""
    return list(fact.answering)


def superchip(fact: GpuFact) -> bool:
    """Its GPUs are joined to their CPU by NVLink-C2C (GH200, GB200, DGX Spark)."""
    return any((model := find(gpu.name)) and model.c2c for gpu in fact.gpus)


def place(host: Host, gpu: GpuDevice) -> Place:
    """Where a finding about one GPU points."""
    return Place(host=host.name, gpu=gpu.label)


def proof(host: Host, gpu: GpuDevice, text: str) -> Evidence:
    """What NVML said of one GPU, as evidence. The source says which card it is, by slot and serial number."""
    fact = host.want(GpuFact)
    card = card_words(fact, gpu.bus_id, gpu.serial) if fact else ""
    return Evidence(text, f"NVML, GPU {gpu.index}" + (f" ({card})" if card else ""), host=host.name)


def card_words(fact: GpuFact, bus_id: str | None, serial: str | None) -> str:
    """``slot 12, serial 1653223041002``: how to find a GPU in the machine and on a return form; what is known of it."""
    slot = next((one.slot for one in fact.pci_gpus if one.bus_id == bus_id), None)
    return ", ".join(word for word in (f"slot {slot}" if slot else "", f"serial {serial}" if serial else "") if word)


def untold(gpu: GpuDevice, field: str) -> str:
    """Why a GPU did not tell ``field``; empty where it did, and where the driver has no such thing to tell."""
    if getattr(gpu, field) is not None or field in gpu.not_supported:
        return ""
    return gpu.errors.get(field) or ("not permitted" if field in gpu.not_permitted else "not collected")


def need_fields(gpus: list[GpuDevice], what: str, *fields: str) -> None:
    """``MissingFact`` if a GPU did not tell one of ``fields`` although the driver supports it; for the end of a rule."""
    for field in fields:
        for gpu in gpus:
            if why := untold(gpu, field):
                raise MissingFact(what, why)


def fleet_facts(fleet: Fleet) -> dict[str, GpuFact]:
    """Host -> GPU fact of all hosts that told; ``SkipRule`` if no host has a GPU, or there is only one."""
    facts = fleet.every(GpuFact)
    if not any(fact.has_hardware for fact in facts.values()):
        for host, fact in facts.items():
            if fact.gone:
                fleet.lack("GPUs", fact.gone, host)
        raise SkipRule("no NVIDIA GPU on any host" if len(fleet.hosts) > 1 else NO_GPU)
    fleet.need_several()
    return facts


def answered_fleet(fleet: Fleet) -> dict[str, GpuFact]:
    """Host -> GPU fact of the hosts whose NVML answered; the others with a GPU become unknown in the rule's result."""
    told: dict[str, GpuFact] = {}
    for host, fact in fleet_facts(fleet).items():
        if fact.nvml.outcome == "ok":
            told[host] = fact
        elif fact.has_hardware:
            fleet.lack("NVML", fact.nvml.detail or fact.nvml.outcome, host)
    return told


def reasons(mask: int) -> list[str]:
    """The words for a mask of throttle reasons."""
    return [text for bit, text in THROTTLE_REASONS.items() if mask & bit]


class Slot(msgspec.Struct, frozen=True):
    """A PCI address and the slot's name where the platform has one."""

    bus_id: str
    slot: str | None

    def __str__(self) -> str:
        return f"{self.bus_id} (slot {self.slot})" if self.slot else self.bus_id
