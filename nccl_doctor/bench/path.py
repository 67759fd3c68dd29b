"""Which path the data took, as far as it can be proved, and where it is worse than what the hosts offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from nccl_doctor.bench import nccl_log
from nccl_doctor.bench.nccl_log import NcclPath
from nccl_doctor.bench.world import Prepared, World
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.fold import counted
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding


class GlooPath(msgspec.Struct, frozen=True):
    """The TCP connections of the ranks, read from the kernel: interface -> hosts that used it, and address pairs."""

    interfaces: dict[str, tuple[str, ...]]
    connections: int
    speeds_mbps: dict[str, int | None]


class Path(msgspec.Struct, frozen=True, omit_defaults=True):
    """``words`` for people; ``proved`` only where every rank's part was seen; ``unproved`` says what was not."""

    backend: str
    words: str
    proved: bool
    unproved: tuple[str, ...] = ()
    nccl: NcclPath | None = None
    gloo: GlooPath | None = None


def find_path(world: World, facts: Mapping[str, Collectives]) -> Path:
    """The path of a run, from the ranks' logs (NCCL) or their connections (gloo)."""
    if world.backend == "nccl":
        return _nccl(world, facts)
    return _gloo(world, facts)


def _nccl(world: World, facts: Mapping[str, Collectives]) -> Path:
    logs = {end.rank: nccl_log.read(end.output) for fact in facts.values() for end in fact.ranks}
    cut = [end.rank for fact in facts.values() for end in fact.ranks if end.output_cut]
    host_of = {share.first_rank + rank: share.name for share in world.shares for rank in range(share.ranks)}
    path = nccl_log.combine(logs, host_of, world.size, cut)
    return Path("nccl", path.words, path.proved, path.incomplete, nccl=path)


def _gloo(world: World, facts: Mapping[str, Collectives]) -> Path:
    used: dict[str, set[str]] = {}
    speeds: dict[str, int | None] = {}
    told: dict[int, int] = {}
    nameless = 0
    for host, fact in facts.items():
        for event in fact.events:
            if event.get("event") != "path":
                continue
            told[event["rank"]] = _take(event, host, used, speeds)
            nameless += sum(1 for item in event["connections"] if not item["interface"])
    missing = [rank for rank in range(world.size) if not told.get(rank)]
    unproved = []
    if world.size > 1 and missing:
        unproved.append("no gloo connection was seen for rank " + ", ".join(map(str, missing[:8])))
    if nameless:
        unproved.append(f"{nameless} connections are bound to addresses of no interface")
    path = GlooPath(
        interfaces={name: tuple(sorted(hosts)) for name, hosts in sorted(used.items())},
        connections=sum(told.values()) // 2,
        speeds_mbps=dict(sorted(speeds.items())),
    )
    return Path("gloo", _gloo_words(path, world), not unproved, tuple(unproved), gloo=path)


def _take(event: dict[str, Any], host: str, used: dict[str, set[str]], speeds: dict[str, int | None]) -> int:
    for item in event["connections"]:
        if item["interface"]:
            used.setdefault(item["interface"], set()).add(host)
    for name, fact in event["interfaces"].items():
        speeds[name] = fact["speed_mbps"] if fact["physical"] else None
    return sum(int(item["count"]) for item in event["connections"])


def _gloo_words(path: GlooPath, world: World) -> str:
    if world.size == 1:
        return "one rank: nothing was sent"
    if not path.interfaces:
        return "gloo over TCP, interfaces unknown"
    parts = []
    for name, hosts in path.interfaces.items():
        speed = path.speeds_mbps.get(name)
        rate = f", {speed / 1000:g} Gb/s" if speed else ""
        some = "" if len(hosts) == len(world.per_host) else f" on {len(hosts)} of {len(world.per_host)} hosts"
        parts.append(f"{name}{rate}{some}" + (" (loopback)" if name == "lo" else ""))
    return f"gloo over TCP: {', '.join(parts)}; {counted(path.connections, 'connection')}"


def path_findings(path: Path, world: World, prepared: Mapping[str, Prepared]) -> Iterator[Finding]:
    """Where the path is worse than what the hosts' hardware offers."""
    if path.gloo is not None and len(world.per_host) > 1 and "lo" in path.gloo.interfaces:
        yield _loopback(path.gloo)
    if path.nccl is None:
        return
    nccl = path.nccl
    hosts = tuple(world.per_host)
    active = {name: [hca for hca in prepared[name].hcas if hca.active] for name in hosts if name in prepared}
    with_ib = tuple(name for name, found in active.items() if found)
    if nccl.networks == ("Socket",) and len(hosts) > 1 and len(with_ib) == len(hosts):
        yield _socket(nccl, active, hosts)
    if nccl.net_edges and "NET/IB" in nccl.transports and nccl.gdr_edges < nccl.net_edges:
        yield _no_gdr(nccl, prepared, hosts)
    for name in hosts:
        used, there = nccl.devices.get(name, 0), len(active.get(name, []))
        gpus = world.per_host[name]
        if len(hosts) > 1 and "NET/IB" in nccl.transports and 0 < used < min(there, gpus):
            yield _few_rails(name, used, there, nccl)
    if any(name.startswith("SHM") for name in nccl.transports) and any(
        prepared[n].nvlinks for n in hosts if n in prepared
    ):
        yield _shm(nccl, hosts)


def _loopback(gloo: GlooPath) -> Finding:
    hosts = gloo.interfaces["lo"]
    return finding(
        "net.wrong-interface.loopback-in-use",
        Severity.FAIL,
        "ranks on different hosts talk over the loopback interface: they are not on different hosts",
        Evidence(f"gloo connections over lo on {', '.join(hosts)}", source="/proc/self/net/tcp"),
        hosts=hosts,
        confidence=0.8,
    )


def _because(nccl: NcclPath, is_cause: Callable[[str], bool]) -> str:
    """``: NCCL_IB_DISABLE is set to 1``, of the variables that may be why; empty where none of them is set."""
    said = "; ".join(f"{name} is set to {value}" for name, value in sorted(nccl.env.items()) if is_cause(name))
    return f": {said}" if said else ""


def _socket(nccl: NcclPath, active: Mapping[str, list[Any]], hosts: tuple[str, ...]) -> Finding:
    first = hosts[0]
    ports = ", ".join(f"{hca.name}:{hca.port} {hca.rate_gbps:g} Gb/s" for hca in active[first][:8])
    return finding(
        "net.slow.socket-despite-ib",
        Severity.FAIL,
        "NCCL used TCP sockets although every host has an active InfiniBand or RoCE port"
        + _because(nccl, lambda name: name in ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA")),
        [
            Evidence("Using network Socket", source="NCCL_DEBUG=INFO"),
            Evidence(f"active on {first}: {ports}", source="/sys/class/infiniband", host=first),
        ],
        hosts=hosts,
        confidence=0.97,
        fixes=[Fix("see whether verbs are there", "ls /dev/infiniband; ldconfig -p | grep libibverbs", host=first)],
    )


def _no_gdr(nccl: NcclPath, prepared: Mapping[str, Prepared], hosts: tuple[str, ...]) -> Finding:
    without = [name for name in hosts if name in prepared and not prepared[name].peermem]
    hint = f"nvidia_peermem is not loaded on {', '.join(without)} (DMA-BUF may serve instead)" if without else ""
    return finding(
        "ib.gdr.not-used",
        Severity.WARN,
        f"GPUDirect RDMA on {nccl.gdr_edges} of {nccl.net_edges} network connections only",
        [
            Evidence("Channel lines via NET/IB without /GDRDMA", source="NCCL_DEBUG=INFO"),
            *([Evidence(hint, source="/sys/module/nvidia_peermem")] if hint else []),
        ],
        hosts=hosts,
    )


def _few_rails(host: str, used: int, there: int, nccl: NcclPath) -> Finding:
    return finding(
        "net.slow.few-rails",
        Severity.WARN,
        f"{host}: {used} of {there} active HCA ports were used",
        [
            Evidence(f"network devices in Channel lines: {used}", source="NCCL_DEBUG=INFO", host=host),
            Evidence("NET/IB : Using " + ", ".join(nccl.hcas.get(host, ())), source="NCCL_DEBUG=INFO", host=host),
        ],
        hosts=(host,),
        confidence=0.85,
    )


def _shm(nccl: NcclPath, hosts: tuple[str, ...]) -> Finding:
    names = ", ".join(name for name in nccl.transports if name.startswith("SHM"))
    return finding(
        "gpu.p2p.shm-despite-nvlink",
        Severity.WARN,
        "GPUs with NVLink exchange data through host memory" + _because(nccl, lambda name: name.startswith("NCCL_P2P")),
        Evidence(f"Channel lines via {names}", source="NCCL_DEBUG=INFO"),
        hosts=hosts,
        confidence=0.9,
    )
