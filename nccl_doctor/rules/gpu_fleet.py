"""GPUs compared between hosts: who has fewer, another model, another driver, other settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.gpu_models import GpuModel, find
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.drift import DriftRow, quoted, row
from nccl_doctor.rules.engine import Fleet, Host, fleet_rule, host_rule
from nccl_doctor.rules.nvidia import answered, answered_fleet, devices, fleet_facts, place, proof, untold
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import size


def _all(fact: GpuFact, tell: Callable[[GpuDevice], object]) -> str:
    """The values of a host's GPUs, folded: ``8 x NVIDIA H100 80GB HBM3``; empty where no GPU tells."""
    told = [str(item) for gpu in devices(fact) if (item := tell(gpu)) is not None]
    if len(set(told)) == 1:
        return told[0]  # all alike: nothing to count
    counts = Counter(told)
    return ", ".join(text if len(counts) == 1 else f"{count} x {text}" for text, count in sorted(counts.items()))


def _untold(fact: GpuFact, field: str) -> str:
    """Why the first of a host's GPUs that does not tell a value does not; empty where all tell."""
    return next((why for gpu in devices(fact) if (why := untold(gpu, field))), "")


def _with_gpus(fleet: Fleet) -> dict[str, GpuFact]:
    return {host: fact for host, fact in answered_fleet(fleet).items() if devices(fact)}


class Subject(msgspec.Struct, frozen=True):
    """In what hosts are compared: a value of the host, or one of each of its GPUs (``field``)."""

    id: str
    severity: Severity
    of_host: Callable[[GpuFact], str] | None = None
    field: str = ""
    shown: Callable[[GpuDevice], object] | None = None  # else the field as it is

    def tell(self, fact: GpuFact) -> str:
        """The value of a host; empty where it does not tell: it takes no part then."""
        return self.of_host(fact) if self.of_host else _all(fact, self.shown or (lambda gpu: getattr(gpu, self.field)))

    def untold(self, fact: GpuFact) -> str:
        """Why a host does not tell though it could."""
        if self.of_host:
            return "" if self.of_host(fact) else "not collected"
        return _untold(fact, self.field)


def _setting(field: str, shown: Callable[[GpuDevice], object] | None = None) -> Subject:
    return Subject("gpu.settings-differ", Severity.WARN, None, field, shown)


_SUBJECTS = {
    "driver": Subject("gpu.driver.differs", Severity.FAIL, lambda fact: fact.system.driver or ""),
    "kernel module flavour": Subject(
        "gpu.driver.flavour-differs", Severity.WARN, lambda fact: fact.module_flavor or ""
    ),
    "VBIOS": Subject("gpu.firmware-differs", Severity.WARN, None, "vbios"),
    "GSP firmware": Subject("gpu.firmware-differs", Severity.WARN, None, "gsp_firmware"),
    "ECC mode": _setting("ecc_mode", lambda gpu: _switch(gpu.ecc_mode)),
    "persistence mode": _setting("persistence_mode", lambda gpu: _switch(gpu.persistence_mode)),
    "power limit": _setting("power_limit_w", lambda gpu: f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else None),
    "compute mode": _setting("compute_mode"),
    "application clock": _setting(
        "clock_sm_application_mhz",
        lambda gpu: f"{gpu.clock_sm_application_mhz} MHz" if gpu.clock_sm_application_mhz else None,
    ),
    "PCIe": Subject(
        "gpu.pcie.differs",
        Severity.WARN,
        None,
        "pcie_gen_max",
        lambda gpu: f"Gen{gpu.pcie_gen_max} x{gpu.pcie_width_max}" if gpu.pcie_gen_max else None,
    ),
}


def _switch(on: bool | None) -> str | None:
    return None if on is None else "on" if on else "off"


def table(facts: Mapping[str, GpuFact]) -> tuple[DriftRow, ...]:
    """All subjects in which GPUs are compared, one row each: model and memory first."""
    return _counts(facts), _models(facts), _memories(facts), *(_settings(name, facts) for name in _SUBJECTS)


def _settings(name: str, facts: Mapping[str, GpuFact]) -> DriftRow:
    tell = _SUBJECTS[name].tell
    return row(name, {host: text for host, fact in facts.items() if (text := tell(fact))})


def _counts(facts: Mapping[str, GpuFact]) -> DriftRow:
    return row("GPUs", {host: str(len(devices(fact))) for host, fact in facts.items()})


def _models(facts: Mapping[str, GpuFact]) -> DriftRow:
    return row("model", {host: _all(fact, lambda gpu: gpu.name) for host, fact in facts.items()})


def _memories(facts: Mapping[str, GpuFact]) -> DriftRow:
    return row("memory", {host: _all(fact, _memory) for host, fact in facts.items()})


def _memory(gpu: GpuDevice) -> str | None:
    return size(gpu.memory_total_bytes) if gpu.memory_total_bytes else None


@fleet_rule("gpu", "gpu.not-visible.fewer-than-peers", "gpu.not-visible.no-gpu-here")
def equal_counts(fleet: Fleet) -> Iterator[Finding]:
    """Every host has as many GPUs as most others; the missing ones are named by the slot that the others fill.

    A host without any GPU among hosts that have some is a finding; hosts without GPUs alone are not.
    """
    facts = {host: fact for host, fact in fleet_facts(fleet).items() if fact.nvml.outcome in ("ok", "not-run")}
    counts = _counts(facts)
    if counts.equal:
        return
    usual = counts.usual_count
    slots = Counter(gpu.bus_id for fact in facts.values() for gpu in devices(fact) if len(devices(fact)) == usual)
    for host, fact in sorted(facts.items()):
        have = devices(fact)
        if len(have) >= usual:
            continue
        full = sum(len(devices(other)) == usual for other in facts.values())
        missing = [
            bus_id
            for bus_id, times in sorted(slots.items(), key=lambda item: item[0] or "")
            if times == full and bus_id and bus_id not in {gpu.bus_id for gpu in have}
        ]
        where = f": missing {', '.join(missing)}" if missing and have else ""
        inside = " (in a container)" if fact.container else ""
        yield finding(
            "gpu.not-visible.fewer-than-peers" if have or fact.has_hardware else "gpu.not-visible.no-gpu-here",
            Severity.FAIL,
            f"{host} has {len(have) or 'none'} of {usual} GPUs{inside}{where}",
            [
                Evidence(f"GPUs: {len(have)}; on most hosts {usual}", "NVML", host=host),
                quoted(counts),
                *([Evidence(f"no {', '.join(missing)} here", "PCI addresses that the others have")] if where else []),
            ],
            places=[Place(host=host, gpu=bus_id) for bus_id in missing] if where else [Place(host=host)],
            fixes=[Fix("see whether it is on the bus", "lspci -d 10de: ; sudo dmesg -T | grep -iE 'xid|nvrm'", host)],
            explains=("topology.differs", "collectives"),
        )


@fleet_rule(
    "gpu",
    "gpu.driver.differs",
    "gpu.driver.flavour-differs",
    "gpu.firmware-differs",
    "gpu.settings-differ",
    "gpu.pcie.differs",
)
def equal_settings(fleet: Fleet) -> Iterator[Finding]:
    """Driver, firmware and settings of the GPUs are the same on all hosts; the odd ones out are named.

    A row that no host tells, or that only hosts with another GPU model differ in, is left to the model's finding. Drivers
    of one branch (550.54 and 550.90) are a warning: a cluster is updated host by host.
    """
    facts = _with_gpus(fleet)
    models = _models(facts)
    other_model = set() if models.equal else set(models.differing)
    found: dict[tuple[str, Severity], list[DriftRow]] = {}
    for name, subject in _SUBJECTS.items():
        drift = _settings(name, facts)
        for host in facts if drift.values or not subject.of_host else ():
            if why := subject.untold(facts[host]):
                fleet.lack(name, why, host)
        same_model = name != "driver" and drift.differing and set(drift.differing) <= other_model
        if drift.differing and not same_model:
            severity = Severity.WARN if name == "driver" and _one_branch(drift) else subject.severity
            found.setdefault((subject.id, severity), []).append(drift)
    for (id, severity), rows in found.items():
        hosts = sorted({host for drift in rows for host in drift.differing})
        subjects = ", ".join(drift.subject for drift in rows)
        tie = all(drift.tie for drift in rows)
        yield finding(
            id,
            severity,
            f"{subjects} differ{'s' if len(rows) == 1 else ''} between hosts" + ("" if tie else f": {fold(hosts)}"),
            [quoted(drift) for drift in rows],
            hosts=hosts,
            confidence=0.8 if tie else 0.95,
            fixes=[Fix(f"bring {fold(hosts)} to what most hosts have")] if not tie else [],
        )


def _one_branch(drivers: DriftRow) -> bool:
    return len({version.partition(".")[0] for version, _ in drivers.values}) == 1


@fleet_rule("gpu", "gpu.mixed-models")
def one_model(fleet: Fleet) -> Iterator[Finding]:
    """All hosts have the same GPU model and memory: a step takes as long as the slowest GPU needs.

    The finding says what the mixture costs: the slowest speed, the smallest memory, the number formats all have, and a
    batch split in proportion to catalogue speed.
    """
    facts = _with_gpus(fleet)
    for host, fact in facts.items():
        for field, what in (("name", "GPU model"), ("memory_total_bytes", "GPU memory")):
            if why := _untold(fact, field):
                fleet.lack(what, why, host)
    models, memory = _models(facts), _memories(facts)
    drift = models if not models.equal else memory
    if drift.equal:
        return
    gpus = [gpu for fact in facts.values() for gpu in devices(fact)]
    yield _mixture(gpus, [quoted(models), quoted(memory)], [Place(host=host) for host in drift.differing])


@host_rule("gpu", "gpu.mixed-models")
def one_model_here(host: Host, plan: Plan) -> Iterator[Finding]:
    """All GPUs of a host are of one model, with equal memory."""
    gpus = devices(answered(host))
    kinds = Counter((gpu.name, _memory(gpu)) for gpu in gpus)
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        odd = [gpu for gpu in gpus if (gpu.name, _memory(gpu)) != usual]
        evidence = [proof(host, gpu, f"{gpu.name}, {_memory(gpu)}") for gpu in (odd + gpus)[:4]]
        yield _mixture(gpus, evidence, [place(host, gpu) for gpu in odd])


def _mixture(gpus: list[GpuDevice], evidence: list[Evidence], places: list[Place]) -> Finding:
    names = sorted({gpu.name or "unknown" for gpu in gpus})
    known = {name: model for name in names if (model := find(name))}
    advice = _advice(gpus, names, known)
    ratio = _speed_ratio(known) if len(known) == len(names) else None
    cost = f"; the slowest has {ratio * 100:.0f} % of the fastest's speed" if ratio is not None and ratio < 1 else ""
    slow = ratio is None or ratio < value("gpu.speed-ratio.warn")
    return finding(
        "gpu.mixed-models",
        Severity.WARN,
        f"different GPUs in one job: {', '.join(names) if len(names) > 1 else 'memory sizes differ'}{cost}",
        [evidence[0], *(Evidence(line, "GPU model catalogue") for line in advice), *evidence[1:]],
        places=places,
        confidence=0.99 if slow else 0.9,
        fixes=[Fix("run on one model only, or split the batch in proportion to speed (see the shares above)")],
    )


def _speed_ratio(known: Mapping[str, GpuModel]) -> float | None:
    speeds = [model.tflops for model in known.values() if model.tflops]
    return min(speeds) / max(speeds) if known and len(speeds) == len(known) else None


def _advice(gpus: list[GpuDevice], names: list[str], known: Mapping[str, GpuModel]) -> list[str]:
    """Common number formats, smallest memory, and the batch share per GPU in proportion to catalogue speed."""
    lines: list[str] = []
    sizes = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes]
    if sizes and min(sizes) < 0.98 * max(sizes):  # two GPUs of 80 GB differ by what firmware reserves
        lines.append(f"every GPU can hold only what fits the smallest: {size(min(sizes))} (largest {size(max(sizes))})")
    if len(known) < len(names):
        return lines
    lacking = sorted(name for name, model in known.items() if not model.bf16)
    if lacking:
        common = f"FP16 (no BF16 on {', '.join(lacking)})"
    else:
        common = "BF16, FP8" if all(model.fp8 for model in known.values()) else "BF16"
    lines.append(f"common precision: {common}")
    capability = {name: model.capability for name, model in known.items()}
    if len(set(capability.values())) > 1:
        lines.append("compute capability: " + ", ".join(f"{name} {text}" for name, text in capability.items()))
    speeds = {name: model.tflops for name, model in known.items()}
    if all(speeds.values()) and len(speeds) > 1:
        total = sum(speeds[gpu.name or ""] or 0.0 for gpu in gpus)
        shares = ", ".join(
            f"{name} {(speed or 0) / total * 100:.1f} % each ({speed:g} TFLOPS)" for name, speed in speeds.items()
        )
        lines.insert(0, f"share of the global batch per GPU: {shares}")
    return lines
