"""Small fleets of hosts for tests of rules: facts in, rule results out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nccl_doctor.facts.interfaces import Address, Carriers, Device, Interfaces
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.facts.software import Driver, NcclCopy, Python, Software, Torch
from nccl_doctor.facts.system import Cgroup, Filesystem, GpuProcesses, Limit, Processors, SharedMemory, System
from nccl_doctor.findings.model import Finding, Severity
from nccl_doctor.rules import engine

GIB = 1 << 30


def address(text: str) -> Address:
    """``name/address/prefix[/D]``; D is down."""
    name, ip, prefix, *flags = text.split("/")
    family = "inet6" if ":" in ip else "inet"
    return Address(name, family, ip, int(prefix), running=flags != ["D"], loopback=name == "lo")


def interfaces(*addresses: str, **more: Any) -> Interfaces:
    found = tuple(map(address, ("lo/127.0.0.1/8", *addresses)))
    names = dict.fromkeys(a.name for a in found)
    devices = tuple(Device(name, kind="physical", speed_mbps=10000, losses=1) for name in names)
    return Interfaces(addresses=found, **{"devices": devices, **more})


def carriers(**losses: int) -> Carriers:
    """The second reading, 9 s after the first: these links went down so often by then, all others never again."""
    names = [f"{kind}{number}" for kind in ("eth", "ens", "ib", "data", "mgmt", "bond") for number in range(10)]
    return Carriers({**dict.fromkeys(("lo", "docker0", *names), 1), **losses}, 9.0)


def system(**changes: Any) -> System:
    """A healthy host's facts."""
    healthy = System(
        shm=SharedMemory(True, 64 * GIB, 63 * GIB, read_only=False),
        limits={
            "memlock": Limit(-1, -1),
            "nofile": Limit(65536, 1048576),
            "nproc": Limit(500000, 500000),
            "as": Limit(-1, -1),
            "fsize": Limit(-1, -1),
        },
        filesystems=tuple(
            msgspec.structs.replace(entry, noexec=False, read_only=False)
            for entry in (
                Filesystem(
                    "/tmp", "/tmp", "ok", "/tmp", 500 * GIB, 200 * GIB, 10**7, 9 * 10**6, "/", "ext4", "/dev/sda1"
                ),
                Filesystem(
                    "home",
                    "/home/u",
                    "ok",
                    "/home/u",
                    900 * GIB,
                    300 * GIB,
                    10**7,
                    9 * 10**6,
                    "/home",
                    "nfs4",
                    "nas:/home",
                ),
            )
        ),
        memory={"MemTotal": 512 * GIB, "MemAvailable": 500 * GIB},
        cgroup=Cgroup(),
        gpu_processes=GpuProcesses(gpu_devices=8),
        processors=Processors(count=64, allowed=64),
        sysctls={
            "net.ipv4.tcp_rmem": "4096 131072 6291456",
            "net.ipv4.tcp_wmem": "4096 16384 4194304",
            "net.ipv4.ip_local_port_range": "32768 60999",
            "net.ipv4.conf.all.rp_filter": "0",
            "net.core.somaxconn": "4096",
        },
    )
    return msgspec.structs.replace(healthy, **changes)


SITE = "/opt/train/lib/python3.11/site-packages"


def software(**changes: Any) -> Software:
    """A healthy 8-GPU host's facts."""
    own = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    healthy = Software(
        python=Python("3.11.9", "/opt/train/bin/python", "/opt/train"),
        distributions={"torch": "2.8.0+cu128", "nvidia-nccl-cu12": "2.27.3", "numpy": "2.1.0"},
        nccl=(NcclCopy(own, own, "2.27.3", "12.8", "RPATH of libtorch_cuda.so", True, True),),
        driver=Driver(
            "570.86.15",
            "NVRM version: ... 570.86.15 ...",
            gpus=8,
            pci_gpus=tuple(f"0000:{i:02x}:00.0" for i in range(8)),
        ),
        torch=Torch(f"{SITE}/torch", "2.8.0+cu128", "12.8", "", "shared"),
        torch_wants_nccl="2.27.3",
    )
    return msgspec.structs.replace(healthy, **changes)


def links(*attempts: tuple[str, str, str]) -> dict[str, Any]:
    """(peer, address, outcome) as the connection tests report them."""
    return {
        "links": [
            {"peer": peer, "address": number, "port": 41000, "purpose": "chosen-interface", "outcome": outcome}
            for peer, number, outcome in attempts
        ]
    }


def run(
    rule: str,
    hosts: Mapping[str, Mapping[str, Any]],
    plan: Plan | None = None,
    reached_at: Mapping[str, str] | None = None,
) -> engine.RuleResult:
    """Run one rule (``storage.disks``). A probe's value is a fact, plain data, or a ProbeResult."""
    (chosen,) = (item for item in engine.all_rules() if item.name == rule)
    facts = []
    for name, probes in sorted(hosts.items()):
        results = {
            probe: data if isinstance(data, ProbeResult) else ProbeResult(Outcome.OK, msgspec.to_builtins(data))
            for probe, data in probes.items()
        }
        facts.append(HostFacts(name, Reach(ReachOutcome.OK, address=(reached_at or {}).get(name, "")), results))
    plan = plan or Plan()
    plan = msgspec.structs.replace(plan, stages=plan.stages or engine.STAGES)
    bundle = Bundle(1, "test", "2026-01-01T00:00:00Z", plan, tuple(facts))
    (result,) = engine.run(bundle, (chosen,))
    for item in result.findings:
        assert item.id in chosen.ids, f"{rule} does not declare {item.id}"
    return result


def ids(result: engine.RuleResult, severity: Severity | None = None) -> list[tuple[str, tuple[str, ...]]]:
    return [(item.id, item.hosts) for item in result.findings if severity is None or item.severity is severity]


def only(result: engine.RuleResult) -> Finding:
    (found,) = result.findings
    return found
