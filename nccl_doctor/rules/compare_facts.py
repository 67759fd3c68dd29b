"""One host's facts as (subject, item) -> value, for comparing them with another run or another host. Pure.

Left out is what always changes: times, process ids, free bytes, load, temperatures, and counters that only tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from nccl_doctor.facts.environment import Environment
from nccl_doctor.facts.gpu import GpuDevice, GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.kernel_log import KernelLogFact, xid_events
from nccl_doctor.facts.mesh import Links, Names, PathMtu
from nccl_doctor.facts.model import Fact
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import UNLIMITED, System
from nccl_doctor.facts.topology import TopologyFact
from nccl_doctor.facts.topology_matrix import TopologyError, parse
from nccl_doctor.rules.engine import Host
from nccl_doctor.rules.software_drift import subjects, versions
from nccl_doctor.rules.units import size

Key = tuple[str, str]  # (subject of compare.yaml, item: "GPU 3 (0000:3b:00.0)", "eth0", "to gpu02"; or empty)
Values = dict[Key, str]
Row = tuple[str, str, str]


def _limit(count: int | float | None, told: Callable[[float], str] = "{:g}".format) -> str:
    return "unlimited" if count is None or count == UNLIMITED else told(count)


def _gpu(fact: GpuFact) -> Iterator[Row]:
    count, _ = fact.count()
    if count is not None:
        yield "gpu.count", "", str(count)
    for gpu in fact.gpus:
        for subject, value in _device(gpu):
            yield subject, f"GPU {gpu.label}", value


def _device(gpu: GpuDevice) -> Iterator[tuple[str, str]]:
    known: dict[str, object] = {
        "gpu.model": gpu.name,
        "gpu.vbios": gpu.vbios,
        "gpu.identity": gpu.serial or gpu.uuid,
        "gpu.recovery": gpu.recovery_action,
        "gpu.ecc-errors": gpu.ecc_uncorrected_aggregate,
    }
    yield from ((subject, str(value)) for subject, value in known.items() if value is not None)
    if gpu.remap_pending is not None or gpu.remap_failure is not None:
        words = [name for name, on in (("pending", gpu.remap_pending), ("failed", gpu.remap_failure)) if on]
        yield "gpu.remap", " and ".join(words) or "nothing pending"
    if gpu.nvlinks is not None:
        yield "gpu.nvlink", f"{sum(link.active for link in gpu.nvlinks)} of {len(gpu.nvlinks)}"
    if gpu.fabric is not None:
        yield "gpu.fabric", gpu.fabric.state
    if gpu.pcie_gen_max is not None and gpu.pcie_width_max is not None:
        yield "gpu.pcie", f"generation {gpu.pcie_gen_max}, {gpu.pcie_width_max} lanes"
    if gpu.mig_mode is not None:
        yield "gpu.mig", "on" if gpu.mig_mode else "off"
    if gpu.power_limit_w is not None:
        yield "gpu.power", f"{gpu.power_limit_w:.0f} W"
    settings = {"ECC": gpu.ecc_mode, "persistence": gpu.persistence_mode}
    told = [f"{name} {'on' if value else 'off'}" for name, value in settings.items() if value is not None]
    if gpu.compute_mode is not None:
        told.append(f"compute mode {gpu.compute_mode}")
    if told:
        yield "gpu.settings", ", ".join(told)


def _log(fact: KernelLogFact) -> Iterator[Row]:
    events = Counter(
        (f"{'SXid' if event.switch else 'Xid'} {event.number}", event.bus_id) for event in xid_events(fact.lines)
    )
    for (name, bus_id), _ in sorted(events.items()):
        yield "xid", f"{name} at {bus_id}", "in the log"


def _links(fact: Links) -> Iterator[Row]:
    worst: dict[str, str] = {}
    for link in fact.links:
        item = f"to {link.peer}" + (f" port {link.port}" if link.purpose == "master" else f", {link.purpose}")
        if worst.get(item, "ok") == "ok":
            worst[item] = link.outcome
    yield from (("link", item, outcome) for item, outcome in worst.items())


def _path_mtu(fact: PathMtu) -> Iterator[Row]:
    for path in fact.paths:
        yield "path-mtu", f"to {path.peer}", f"{path.largest_passed} bytes ({path.outcome})"


def _infiniband(fact: InfinibandFact) -> Iterator[Row]:
    for device in fact.devices:
        if device.fw_ver:
            yield "ib.firmware", device.name, device.fw_ver
        for port in device.ports:
            item = f"{device.name} port {port.port}"
            if port.state:
                yield "ib.state", item, f"{port.state} / {port.phys_state}" if port.phys_state else port.state
            if port.rate:
                yield "ib.rate", item, port.rate


def _names(fact: Names) -> Iterator[Row]:
    yield "resolution", "", ", ".join(fact.own.addresses) or fact.own.error or "nothing"


def _interfaces(fact: Interfaces) -> Iterator[Row]:
    addresses: dict[str, list[str]] = {}
    for address in fact.addresses:
        if not address.loopback and not (address.family == "inet6" and address.link_local):
            addresses.setdefault(address.name, []).append(f"{address.address}/{address.prefix}")
    for device in fact.devices:
        if device.kind == "loopback" or device.name == "lo" or device.name.startswith("veth"):
            continue  # one veth per container: they come and go
        yield "nic.address", device.name, ", ".join(sorted(addresses.get(device.name, []))) or "no address"
        if device.operstate:
            yield "nic.state", device.name, device.operstate
        if device.mtu is not None:
            yield "nic.mtu", device.name, f"{device.mtu} bytes"
        if device.speed_mbps is not None and device.speed_mbps > 0:
            yield "nic.speed", device.name, f"{device.speed_mbps} Mb/s"


_OWN = {"NCCL": "software.NCCL", "torch": "software.torch", "driver": "software.driver", "kernel": "kernel"}


def _software(fact: Software) -> Iterator[Row]:
    found = versions(fact)
    for subject in subjects():
        yield _OWN.get(subject, "software"), "" if subject in _OWN else subject, found[subject] or "none"


def _system(fact: System) -> Iterator[Row]:
    yield "shm", "", size(fact.shm.size_bytes) if fact.shm.present else "no /dev/shm"
    for name, limit in fact.limits.items():
        told = size if name in ("memlock", "stack", "as") else "{:g}".format
        yield "limit", name, f"{_limit(limit.soft, told)} (hard {_limit(limit.hard, told)})"
    yield "cgroup", "memory", _limit(fact.cgroup.memory_limit_bytes, size)
    yield "cgroup", "processes", _limit(fact.cgroup.pids_limit)
    yield "cgroup", "CPUs", _limit(fact.cgroup.cpu_limit)
    for place in fact.filesystems:
        room = size(place.size_bytes) if place.outcome == "ok" else place.outcome
        yield "filesystem", place.role, room + (", read-only" if place.read_only else "")
    if "MemTotal" in fact.memory:
        yield "memory", "memory", size(fact.memory["MemTotal"])
    if fact.processors.allowed:
        yield "memory", "CPUs allowed", str(fact.processors.allowed)


def _topology(fact: TopologyFact) -> Iterator[Row]:
    try:
        matrix = parse(fact.matrix.text)
    except TopologyError:
        return
    for (a, b), kind in sorted(matrix.kinds().items()):
        if a < b:
            yield "topology", f"{a}-{b}", kind


def _environment(fact: Environment) -> Iterator[Row]:
    yield from (("environment", name, value) for name, value in fact.variables.items())


_Reader = tuple[type[Fact], Callable[..., Iterator[Row]]]
READERS: tuple[_Reader, ...] = (
    (GpuFact, _gpu),
    (KernelLogFact, _log),
    (Links, _links),
    (PathMtu, _path_mtu),
    (InfinibandFact, _infiniband),
    (Names, _names),
    (Interfaces, _interfaces),
    (Software, _software),
    (System, _system),
    (TopologyFact, _topology),
    (Environment, _environment),
)


def values_of(host: Host) -> dict[str, Values]:
    """Probe -> its values. A probe whose data is not complete has no entry: nothing is claimed of it."""
    found: dict[str, Values] = {}
    for kind, read in READERS:
        fact = host.want(kind)
        if fact is not None:
            found[kind.PROBE] = {(subject, item): value for subject, item, value in read(fact)}
    return found
