"""Which hosts are alike: same software, same GPUs, same rails. A job runs best on one group."""

from __future__ import annotations

from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.model import Bundle
from nccl_doctor.facts.software import Software
from nccl_doctor.rules.engine import facts_of, reached
from nccl_doctor.rules.software_drift import drift_table


def groups(bundle: Bundle) -> dict[str, str]:
    """Host -> a text. Hosts whose facts are alike have the same one."""
    hosts = reached(bundle)
    parts: dict[str, list[str]] = {host.name: [] for host in hosts}
    for row in drift_table(facts_of(hosts, Software)):
        for value, names in row.values:
            for name in names:
                parts[name].append(f"{row.subject}={value}")
    for host in hosts:
        gpu, ib = host.want(GpuFact), host.want(InfinibandFact)
        if gpu is not None:
            parts[host.name].append("gpus=" + ",".join(sorted(device.name or "?" for device in gpu.gpus)))
        if ib is not None:
            rails = sorted(f"{port.rate}" for device in ib.devices for port in device.ports if port.active)
            parts[host.name].append("rails=" + ",".join(rails))
    return {name: ";".join(sorted(part)) for name, part in parts.items()}
