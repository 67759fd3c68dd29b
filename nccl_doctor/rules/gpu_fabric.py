"""The NVSwitch fabric: does the fabric manager run, and is every GPU registered and healthy?"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.facts.gpu import Fabric, GpuDevice, GpuFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Finding, Fix, Severity
from nccl_doctor.rules.engine import Host, MissingFact, SkipRule, host_rule
from nccl_doctor.rules.nvidia import answered, devices, need_fields, place, proof, superchip

_WAITING = ("not-started", "in-progress")


def _unhealthy(fabric: Fabric) -> str:
    """What the fabric's health mask says is wrong, in words; empty where nothing is, or it does not tell."""
    words = (
        "degraded bandwidth" if fabric.degraded_bandwidth else "",
        "route recovery under way" if fabric.route_recovery else "",
        "unhealthy route" if fabric.route_unhealthy else "",
        "recovery of an access time-out under way" if fabric.access_timeout else "",
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

    From Hopper on each GPU tells its state; before, the fabric manager's process is the only witness: in a container,
    which does not see it, nothing is known. Without it CUDA fails with error 802, "system not yet initialized". In
    racks of superchips (GB200 NVL72) it runs on the NVLink switches, and the GPUs' word is the only one.
    """
    fact = answered(host)
    gpus = devices(fact)
    registered = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state == "completed"]
    waiting = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state in _WAITING]
    yield from _waiting(host, fact, waiting)
    for gpu in registered:
        if gpu.fabric and gpu.fabric.status:
            yield host.finding(
                "gpu.fabric-manager.failed",
                Severity.FAIL,
                f"registering GPU {gpu.label} with the NVLink fabric failed",
                proof(host, gpu, f"fabric status: NVML error {gpu.fabric.status}"),
                _manager_fix(fact),
                places=[place(host, gpu)],
            )
    yield from _manager(host, fact, registered or waiting)
    bad = [(gpu, words) for gpu in gpus if gpu.fabric and (words := _unhealthy(gpu.fabric))]
    if bad:
        yield host.finding(
            "gpu.fabric-manager.degraded",
            Severity.FAIL,
            f"the NVLink fabric is degraded for {len(bad)} of {len(gpus)} GPUs",
            [proof(host, gpu, f"fabric health: {words}") for gpu, words in bad[:4]],
            places=[place(host, gpu) for gpu, _ in bad],
        )
    if fact.nvswitches and not (registered or waiting or fact.fabric_manager.running):
        if fact.container:
            raise MissingFact("fabric manager", f"its process is not seen from a container ({fact.container})")
        if fact.fabric_manager.running is None:
            raise MissingFact("fabric manager", "other users' processes are hidden (/proc is mounted with hidepid)")
    need_fields(gpus, "state of the NVLink fabric", "fabric")
    if new := {gpu.fabric.state for gpu in gpus if gpu.fabric} - {"not-supported", "completed", *_WAITING}:
        raise MissingFact("state of the NVLink fabric", f"this release does not know {new.pop()!r}")


def _manager_fix(fact: GpuFact) -> Fix:
    if superchip(fact):  # GB200 NVL72
        text = "look at the fabric manager (NMX) on the rack's NVLink switches, and at this tray's link to them"
        return Fix(text, "nvidia-smi -q | grep -A8 Fabric")
    return Fix(
        "start it, in the driver's version; if it ran before, drain the host and reset all GPUs first",
        "sudo systemctl restart nvidia-fabricmanager; systemctl status nvidia-fabricmanager; "
        "sudo tail -30 /var/log/fabricmanager.log",
        risky=True,
    )


def _waiting(host: Host, fact: GpuFact, waiting: list[GpuDevice]) -> Iterator[Finding]:
    if not waiting:
        return
    process = f"process nv-fabricmanager: {'runs' if fact.fabric_manager.running else 'not found'}"
    known = fact.fabric_manager.running is False and not (fact.container or superchip(fact))
    yield host.finding(
        "gpu.fabric-manager.not-running" if known else "gpu.fabric-manager.not-completed",
        Severity.FAIL,
        "the fabric manager does not run: GPUs wait for the NVLink fabric"
        if known
        else f"{len(waiting)} GPUs are not registered with the NVLink fabric",
        [
            *(proof(host, gpu, f"fabric state: {gpu.fabric.state}") for gpu in waiting[:3] if gpu.fabric),
            (process, "/proc"),
        ],
        _manager_fix(fact),
        places=[place(host, gpu) for gpu in waiting],
        explains=("gpu.nvlink", "gpu.p2p", "topology", "collectives"),
    )


def _manager(host: Host, fact: GpuFact, in_fabric: list[GpuDevice]) -> Iterator[Finding]:
    manager = fact.fabric_manager
    if fact.nvswitches and manager.running is False and not (in_fabric or fact.container):
        yield host.finding(
            "gpu.fabric-manager.not-running",
            Severity.FAIL,
            "an NVSwitch machine without a fabric manager",
            [
                (f"NVSwitches on the PCI bus: {fact.nvswitches}", "/sys/bus/pci"),
                ("no process nv-fabricmanager", "/proc"),
            ],
            _manager_fix(fact),
            confidence=0.9,
            explains=("gpu.nvlink", "gpu.p2p", "topology", "collectives"),
        )
    # The NVSwitches of HGX B200 are no devices on the PCI bus; in a virtual machine neither they nor the manager are. The
    # manager that a container's image brings is not the one that runs.
    used = (fact.nvswitches and not fact.container) or ((fact.nvswitches or in_fabric) and manager.running)
    if manager.version and fact.system.driver and manager.version != fact.system.driver and used:
        yield host.finding(
            "gpu.fabric-manager.version-mismatch",
            Severity.FAIL,
            f"fabric manager {manager.version} does not fit driver {fact.system.driver}",
            [(manager.version, "nv-fabricmanager --version"), (f"driver {fact.system.driver}", "NVML")],
            Fix("install the fabric manager of exactly the driver's version"),
            confidence=0.9,
        )


@host_rule("topology", "gpu.imex.no-channel")
def imex(host: Host, plan: Plan) -> Iterator[Finding]:
    """On a multi-node NVLink machine (GB200, GB300 NVL) this host has an IMEX channel.

    Without one, CUDA cannot export memory to other nodes: error 800 in NCCL's MNNVL start-up.
    """
    fact = answered(host)
    joined = [gpu for gpu in fact.gpus if gpu.fabric and gpu.fabric.cluster.strip("0")]
    if not joined or not any((gpu.compute_capability or "").startswith("10.") for gpu in joined):
        raise SkipRule("no multi-node NVLink on this host")
    if fact.imex_channels:
        return
    assert joined[0].fabric is not None
    yield host.finding(
        "gpu.imex.no-channel",
        Severity.WARN,
        "multi-node NVLink without an IMEX channel on this host",
        [
            (f"fabric cluster {joined[0].fabric.cluster}", f"NVML, GPU {joined[0].index}"),
            ("no channel in /dev/nvidia-caps-imex-channels", "/dev"),
        ],
        Fix("start the IMEX service and create channel 0", "sudo systemctl status nvidia-imex; nvidia-imex-ctl -N"),
        confidence=0.8,
    )
