"""GPU links: PCIe width and generation, NVLink, the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.facts.gpu import Fabric, GpuDevice, GpuFact
from nccl_doctor.facts.gpu_models import find
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding
from nccl_doctor.rules.engine import Host, MissingFact, host_rule
from nccl_doctor.rules.nvidia import answered, devices, need_fields, place, proof, superchip
from nccl_doctor.rules.thresholds import value


@host_rule("gpu", "gpu.pcie.width", "gpu.pcie.generation", "gpu.pcie.slot-limited", "gpu.pcie.replays")
def pcie(host: Host, plan: Plan) -> Iterator[Finding]:
    """Every GPU's PCIe link runs at the width and generation it can.

    An idle GPU may lower its PCIe generation to save power, so the current generation is judged only where the GPU is
    not idle, or where its idle neighbours of the same model run faster. The width never changes by itself. Superchips
    (GH200, GB200) reach their CPU over NVLink-C2C: of them only the replays are judged.
    """
    gpus = devices(answered(host))
    alike: dict[str | None, list[GpuDevice]] = {}
    for gpu in gpus:
        alike.setdefault(gpu.name, []).append(gpu)
    widest = {name: max(gpu.pcie_width_max or 0 for gpu in same) for name, same in alike.items()}
    newest = {name: max(gpu.pcie_gen_max or 0 for gpu in same) for name, same in alike.items()}
    for gpu in gpus:
        model = find(gpu.name)
        if not (model and model.c2c):
            yield from _width(host, gpu, widest[gpu.name])
            yield from _generation(host, gpu, newest[gpu.name], alike[gpu.name])
        replays = gpu.pcie_replays or 0
        if replays >= value("gpu.pcie.replays.warn"):
            yield _link(
                host,
                gpu,
                "gpu.pcie.replays",
                Severity.WARN,
                f"PCIe of GPU {gpu.label} repeats transfers",
                f"PCIe replay counter: {replays}",
            )
    need_fields(gpus, "PCIe link state", "pcie_width", "pcie_width_max", "pcie_gen", "pcie_gen_max", "pcie_gen_gpu_max")
    need_fields(gpus, "PCIe replays", "pcie_replays")


def _width(host: Host, gpu: GpuDevice, best: int) -> Iterator[Finding]:
    now, most = gpu.pcie_width, gpu.pcie_width_max
    if now is None or most is None:
        return
    if now < best:
        yield _link(
            host,
            gpu,
            "gpu.pcie.width",
            Severity.FAIL,
            f"GPU {gpu.label} has only {now} of {best} PCIe lanes",
            f"PCIe link width: x{now}, maximum x{most}; other GPUs here: x{best}",
        )
    elif now < value("gpu.pcie.width") and (model := find(gpu.name)) and model.nvlinks:
        yield _link(
            host,
            gpu,
            "gpu.pcie.slot-limited",
            Severity.WARN,
            f"GPU {gpu.label}: the slot has x{now} only",
            f"PCIe link width: x{now}, maximum x{most}",
        )


def _generation(host: Host, gpu: GpuDevice, best: int, alike: list[GpuDevice]) -> Iterator[Finding]:
    now, most, own = gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_gen_gpu_max
    if now is None or most is None:
        return
    idle = bool((gpu.throttle_reasons or 0) & 1) or (gpu.performance_state or 0) > 2
    if most < best or (now < most and (not idle or _faster(gpu, now, alike))):
        yield _link(
            host,
            gpu,
            "gpu.pcie.generation",
            Severity.FAIL,
            f"PCIe of GPU {gpu.label} runs at generation {min(now, most)}, not {best}",
            f"PCIe generation: {now}, maximum {most}; best of this host: {best}",
        )
    elif own is not None and most < own:
        yield _link(
            host,
            gpu,
            "gpu.pcie.slot-limited",
            Severity.WARN,
            f"slot or BIOS limits GPU {gpu.label} to PCIe generation {most}; it can do {own}",
            f"PCIe generation: maximum with this slot {most}, GPU alone {own}",
        )


def _faster(gpu: GpuDevice, now: int, alike: list[GpuDevice]) -> bool:
    """Whether another GPU of this model, as idle as this one, runs at a higher generation."""
    return any((peer.pcie_gen or 0) > now and peer.performance_state == gpu.performance_state for peer in alike)


def _link(host: Host, gpu: GpuDevice, id: str, severity: Severity, title: str, quote: str) -> Finding:
    return finding(
        id,
        severity,
        title,
        proof(host, gpu, quote),
        places=[place(host, gpu)],
        fixes=[
            Fix(
                "look at the link and its upstream port; a reseat, riser or BIOS setting cures it",
                f"sudo lspci -vvs {gpu.bus_id} | grep -E 'LnkCap|LnkSta'; sudo dmesg -T | grep -i aer | tail",
                host.name,
            )
        ],
    )


@host_rule("gpu", "gpu.nvlink.link-down", "gpu.nvlink.inactive", "gpu.nvlink.errors")
def nvlinks(host: Host, plan: Plan) -> Iterator[Finding]:
    """All NVLinks of a module (SXM, superchip) are up, and none has repeated errors.

    How many there should be comes from the catalogue of models; for cards with a bridge, from their neighbours: a card
    none of whose links is up has no bridge, which is no fault. One GPU
    alone (a virtual machine with one of eight) has no peer over NVLink: that its links are inactive is information.
    """
    gpus = devices(answered(host))
    if alone := _alone(gpus):
        yield _inactive(host, alone)
        return
    untold = None
    for gpu in gpus:
        model = find(gpu.name)
        if not gpu.nvlinks and model and model.nvlinks:
            untold = untold or gpu
            continue
        if gpu.nvlinks is None:
            continue
        active = sum(link.active for link in gpu.nvlinks)
        if model and model.nvlinks == 0 and not active:
            continue  # a card without a bridge
        expected = (model.nvlinks if model and model.nvlinks else 0) or _most_among(gpus, gpu.name)
        if active < expected:
            yield _links_down(host, gpu, active, expected)
        yield from _link_errors(host, gpu)
    if untold:
        why = "the driver knows no NVLink of it: they are switched off, or a sandbox hides them"
        raise MissingFact(f"NVLink state of GPU {untold.label}", untold.errors.get("nvlinks", why))
    need_fields(gpus, "NVLink state", "nvlinks")
    if why := next((gpu.errors["nvlink_counters"] for gpu in gpus if "nvlink_counters" in gpu.errors), ""):
        raise MissingFact("NVLink error counters", why)


def _alone(gpus: list[GpuDevice]) -> GpuDevice | None:
    """The only GPU of a host if it is a module, none of its NVLinks is up, and no multi-node NVLink joins it."""
    if len(gpus) != 1 or gpus[0].nvlinks is None or any(link.active for link in gpus[0].nvlinks):
        return None
    gpu, model = gpus[0], find(gpus[0].name)
    joined = gpu.fabric is not None and bool(gpu.fabric.cluster.strip("0"))
    return gpu if model and model.nvlinks and not joined else None


def _inactive(host: Host, gpu: GpuDevice) -> Finding:
    return finding(
        "gpu.nvlink.inactive",
        Severity.INFO,
        f"no NVLink of GPU {gpu.label} is up; it is the only GPU here, so NCCL has no use for one",
        proof(host, gpu, f"active NVLinks: 0 of {len(gpu.nvlinks or ())} that the driver tells; GPUs on this host: 1"),
        places=[place(host, gpu)],
    )


def _most_among(gpus: Iterable[GpuDevice], name: str | None) -> int:
    """The most active NVLinks of the GPUs of this name."""
    return max((sum(link.active for link in gpu.nvlinks or ()) for gpu in gpus if gpu.name == name), default=0)


def _links_down(host: Host, gpu: GpuDevice, active: int, expected: int) -> Finding:
    down = [str(link.link) for link in gpu.nvlinks or () if not link.active]
    which = f" (inactive: {', '.join(down)})" if down else ""
    return finding(
        "gpu.nvlink.link-down",
        Severity.FAIL,
        f"{expected - active} of {expected} NVLinks of GPU {gpu.label} are down",
        proof(host, gpu, f"active NVLinks: {active} of {expected}{which}"),
        places=[place(host, gpu)],
        fixes=[
            Fix(
                "see link state and errors",
                f"nvidia-smi nvlink -s -i {gpu.index}; nvidia-smi nvlink -e -i {gpu.index}",
                host.name,
            ),
            Fix(
                "drain the host and reset all GPUs, the fabric manager running; if it stays down: field diagnostic",
                "sudo nvidia-smi --gpu-reset",
                host.name,
                True,
            ),
        ],
        explains=("gpu.nvlink.lost", "gpu.nvlink.narrow", "topology", "gpu.p2p"),
    )


def _link_errors(host: Host, gpu: GpuDevice) -> Iterator[Finding]:
    proofs = []
    replays, recoveries = value("gpu.nvlink.replay.warn"), value("gpu.nvlink.recovery.warn")
    crc = value("gpu.nvlink.crc.warn")
    for link in gpu.nvlinks or ():
        if not (
            link.replay or link.recovery or link.crc_flit or link.crc_data or link.recovery_failed or link.integrity
        ):
            continue  # a host has 144 of them, and nearly all are without any error
        counts = (
            ("replays", link.replay, replays),
            ("recoveries", link.recovery, recoveries),
            ("CRC flit errors", link.crc_flit, crc),
            ("CRC data errors", link.crc_data, crc),
            ("failed recoveries", link.recovery_failed, recoveries),
            ("link integrity errors", link.integrity, crc),
        )
        high = [f"{count} {name}" for name, count, limit in counts if count and count >= limit]
        if high:
            proofs.append(proof(host, gpu, f"NVLink {link.link}: {', '.join(high)}"))
    if proofs:
        yield finding(
            "gpu.nvlink.errors",
            Severity.WARN,
            f"NVLink errors on GPU {gpu.label} since the driver was loaded",
            proofs,
            places=[place(host, gpu)],
            confidence=0.8,
        )


_WAITING = ("not-started", "in-progress")


def _unhealthy(fabric: Fabric) -> str:
    """What the fabric's health mask says is wrong, in words; empty where nothing is, or it does not tell."""
    words = (
        "degraded bandwidth" if fabric.degraded_bandwidth else "",
        "unhealthy route" if fabric.route_unhealthy else "",
        f"incorrect configuration ({fabric.mistake})" if fabric.mistake else "",
    )
    return ", ".join(word for word in words if word)


@host_rule(
    "gpu",
    "gpu.fabric-manager.not-running",
    "gpu.fabric-manager.not-completed",
    "gpu.fabric-manager.failed",
    "gpu.fabric-manager.version-mismatch",
    "gpu.fabric-manager.degraded",
)
def fabric(host: Host, plan: Plan) -> Iterator[Finding]:
    """On NVSwitch machines, the fabric manager runs, and every GPU is registered with the fabric.

    From Hopper on each GPU tells its state; before, the fabric manager's process is the only witness, and it cannot be
    seen from a container. Without it CUDA fails with error 802, "system not yet initialized". In racks of superchips
    (GB200 NVL72) it runs on the NVLink switches, and the GPUs' word is the only one.
    """
    fact = answered(host)
    gpus = devices(fact)
    registered = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state == "completed"]
    waiting = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state in _WAITING]
    yield from _waiting(host, fact, waiting)
    for gpu in registered:
        if gpu.fabric and gpu.fabric.status:
            yield finding(
                "gpu.fabric-manager.failed",
                Severity.FAIL,
                f"registering GPU {gpu.label} with the NVLink fabric failed",
                proof(host, gpu, f"fabric status: NVML error {gpu.fabric.status}"),
                places=[place(host, gpu)],
                fixes=[_manager_fix(host, fact)],
            )
    yield from _manager(host, fact, registered or waiting)
    bad = [(gpu, words) for gpu in gpus if gpu.fabric and (words := _unhealthy(gpu.fabric))]
    if bad:
        yield finding(
            "gpu.fabric-manager.degraded",
            Severity.FAIL,
            f"the NVLink fabric is degraded for {len(bad)} of {len(gpus)} GPUs",
            [proof(host, gpu, f"fabric health: {words}") for gpu, words in bad[:4]],
            places=[place(host, gpu) for gpu, _ in bad],
        )
    need_fields(gpus, "state of the NVLink fabric", "fabric")
    if new := {gpu.fabric.state for gpu in gpus if gpu.fabric} - {"not-supported", "completed", *_WAITING}:
        raise MissingFact("state of the NVLink fabric", f"this release does not know {new.pop()!r}")


def _manager_fix(host: Host, fact: GpuFact) -> Fix:
    if superchip(fact):  # GB200 NVL72
        text = "look at the fabric manager (NMX) on the rack's NVLink switches, and at this tray's link to them"
        return Fix(text, "nvidia-smi -q | grep -A8 Fabric", host.name)
    return Fix(
        "start it, in the driver's version; if it ran before, drain the host and reset all GPUs first",
        "sudo systemctl restart nvidia-fabricmanager; systemctl status nvidia-fabricmanager; "
        "sudo tail -30 /var/log/fabricmanager.log",
        host.name,
        True,
    )


def _waiting(host: Host, fact: GpuFact, waiting: list[GpuDevice]) -> Iterator[Finding]:
    if not waiting:
        return
    process = f"process nv-fabricmanager: {'runs' if fact.fabric_manager.running else 'not found'}"
    known = not (fact.fabric_manager.running or fact.container or superchip(fact))
    yield finding(
        "gpu.fabric-manager.not-running" if known else "gpu.fabric-manager.not-completed",
        Severity.FAIL,
        "the fabric manager does not run: GPUs wait for the NVLink fabric"
        if known
        else f"{len(waiting)} GPUs are not registered with the NVLink fabric",
        [
            *(proof(host, gpu, f"fabric state: {gpu.fabric.state}") for gpu in waiting[:3] if gpu.fabric),
            Evidence(process, "/proc", host=host.name),
        ],
        places=[place(host, gpu) for gpu in waiting],
        fixes=[_manager_fix(host, fact)],
        explains=("gpu.nvlink", "gpu.p2p", "topology", "collectives"),
    )


def _manager(host: Host, fact: GpuFact, in_fabric: list[GpuDevice]) -> Iterator[Finding]:
    manager = fact.fabric_manager
    if fact.nvswitches and not (in_fabric or manager.running or fact.container):
        yield finding(
            "gpu.fabric-manager.not-running",
            Severity.FAIL,
            "an NVSwitch machine without a fabric manager",
            [
                Evidence(f"NVSwitches on the PCI bus: {fact.nvswitches}", "/sys/bus/pci", host=host.name),
                Evidence("no process nv-fabricmanager", "/proc", host=host.name),
            ],
            hosts=(host.name,),
            fixes=[_manager_fix(host, fact)],
            confidence=0.9,
            explains=("gpu.nvlink", "gpu.p2p", "topology", "collectives"),
        )
    # The NVSwitches of HGX B200 are no devices on the PCI bus; in a virtual machine neither they nor the manager are.
    used = fact.nvswitches or (in_fabric and manager.running)
    if manager.version and fact.system.driver and manager.version != fact.system.driver and used:
        yield finding(
            "gpu.fabric-manager.version-mismatch",
            Severity.FAIL,
            f"fabric manager {manager.version} does not fit driver {fact.system.driver}",
            [
                Evidence(manager.version, "nv-fabricmanager --version", host=host.name),
                Evidence(f"driver {fact.system.driver}", "NVML", host=host.name),
            ],
            hosts=(host.name,),
            fixes=[Fix("install the fabric manager of exactly the driver's version", "", host.name)],
            confidence=0.9,
        )
