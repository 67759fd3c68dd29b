"""Read from NCCL_DEBUG=INFO logs which path the data took. Formats of NCCL 2.4 to 2.32."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from nccl_doctor.facts.fold import counted, few

LINE_LIMIT = 8 << 10


class Edge(msgspec.Struct, frozen=True, order=True):
    """One connection of a channel between two ranks, as its log line says. ``kind`` is P2P, SHM, NET or COLLNET.

    ``via`` is the transport's name without the suffixes: ``P2P/CUMEM``, ``SHM/direct``, ``NET/IB``, ``NET/AWS
    Libfabric``; ``device`` the network device's index; ``side`` send or receive for NET.
    """

    source: int
    target: int
    channel: int
    kind: str
    via: str
    side: str = ""
    device: int = -1
    gdr: bool = False
    pxn: bool = False


class RankLog(msgspec.Struct, frozen=True):
    """What one rank's log tells. Empty where the log does not say.

    ``sockets`` are the interfaces it opened, with their address (``eth0 10.0.0.1``), ``hcas`` the ports (``mlx5_0:1/IB``).
    """

    version: str = ""
    init_complete: bool = False
    network: str = ""
    sockets: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    rings: bool = False
    trees: bool = False
    coll_channels: int = 0
    nvls: bool = False
    net_plugin: str = ""
    tuner: str = ""
    env: tuple[tuple[str, str], ...] = ()


_INFO = re.compile(r"NCCL INFO (.*)\Z", re.DOTALL)
_BARE_VERSION = re.compile(r"NCCL version ([0-9][^\s+]{0,20})(?:\+cuda\S{0,10})?\s*\Z")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d{1,3})(?:/(\d{1,3}))? : "
    r"(\d{1,6})(?:\[[0-9a-fA-F]{1,12}\])? -> (\d{1,6})(?:\[[0-9a-fA-F]{1,12}\])?"
    r"(?: \[(send|receive)\])? via (.{1,200})\Z"
)
_OF_COMM = re.compile(r" comm 0x[0-9a-f]{1,16} nRanks \d{1,6}\s*\Z")  # printed by some 2.1x builds
_COLLNET = re.compile(r"CollNet (\d{1,3})(?:/\d{1,3})? : (\d{1,6}) \[(send|receive)\] via COLLNET/(.{1,200})\Z")
_NET = re.compile(r"NET/(.{1,80}?)/(\d{1,3})(\(\d{1,6}\))?((?:/[A-Za-z][A-Za-z0-9()=_-]{0,30})*)\Z")
_RING_ORDER = re.compile(r"(?:Channel|Ring) \d{1,3}(?:/\d{1,3})? :(?:\s+\d{1,6})+\s*\Z")
# Behind the port stand rail and plane, where they are known: mlx5_0:1:2:3, or mlx5_0:1::3 (2.30).
_HCA = re.compile(r"\[\d{1,3}\]([A-Za-z0-9_.+-]{1,64}):(\d{1,3})(?::[0-9-]{0,6}){0,2}/(IB|RoCE)")
_INTERFACE = re.compile(r"(?:\[\d{1,3}\])?([^\s:\[\]]{1,32}):([0-9A-Fa-f.:%\w]{2,64})<\d{1,5}>")
_CHANNELS = re.compile(
    r"(\d{1,4}) coll channels, (?:\d{1,4} collnet channels, )?(?:\d{1,4} nvls channels, )?\d{1,4} p2p channels"
)
# Not "- Abort COMPLETE" nor "- Destroy COMPLETE", which an initialisation that failed may end in (NCCL 2.14 and newer).
_COMPLETE = re.compile(r"comm 0x[0-9a-fA-F]{1,16} rank \d{1,6} nranks \d{1,6}\b.{0,200}?- Init COMPLETE")
_SET = re.compile(r"(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to (.{0,200}?)\.?\Z")
_NETWORK = re.compile(r"Using (?:internal N|n)etwork (.{1,80}?)\s*\Z")
_PLUGIN = re.compile(
    r"(?!.*internal)(?:NET/Plugin ?: (?:Loaded net plugin|Using) (.{1,80})"
    r"|Successfully loaded external net(?:work)? plugin (.{1,80}))\Z"
)
_TUNER = re.compile(
    r"(?!.*internal)(?:TUNER/Plugin: Using (?:tuner plugin )?(.{1,80}?)(?: \(v\d{1,2}\))?"
    r"|Using tuner plugin: '(.{1,80})'|Successfully loaded external tuner plugin (.{1,80}))\Z"
)
# Lines that name one thing: what to call it, and how it is found in the line.
_NAMED = (
    ("version", _BARE_VERSION.search),
    ("network", _NETWORK.match),
    ("net_plugin", _PLUGIN.match),
    ("tuner", _TUNER.match),
)


class _Reader:
    """Takes the lines of one rank's log one by one."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.edges: set[Edge] = set()
        self.env: dict[str, str] = {}

    def line(self, line: str) -> None:
        if "NCCL" not in line:
            return
        line = line[:LINE_LIMIT].rstrip()
        if info := _INFO.search(line):
            self._info(info.group(1))
        elif version := _BARE_VERSION.search(line):
            self.values["version"] = version.group(1)

    def _info(self, text: str) -> None:
        if text.startswith(("Channel ", "Ring ")):
            self._channel(text)
        elif text.startswith("CollNet "):
            if found := _COLLNET.match(text):
                channel, rank, side, via = found.groups()
                name, gdr = "COLLNET/" + via.split("/")[0], "/GDRDMA" in via
                self.edges.add(Edge(int(rank), -1, int(channel), "COLLNET", name, side, -1, gdr))
        elif text.startswith("NET/IB : Using"):
            devices = text.partition("; OOB")[0]
            self.values["hcas"] = tuple(f"{name}:{port}/{link}" for name, port, link in _HCA.findall(devices))
        elif text.startswith("NET/Socket : Using"):
            self.values["sockets"] = tuple(map(" ".join, _INTERFACE.findall(text)))
        elif text.startswith("Trees"):
            self.values["trees"] = True
        elif text.startswith(("Connected NVLS tree", "NVLS comm ")):
            self.values["nvls"] = True
        elif found := _SET.match(text):
            self.env[found.group(1)] = found.group(2)
        elif found := _CHANNELS.match(text):
            self.values["coll_channels"] = int(found.group(1))
        elif _COMPLETE.search(text):
            self.values["init_complete"] = True
        else:
            self.values.update((name, found[found.lastindex or 1]) for name, find in _NAMED if (found := find(text)))

    def _channel(self, text: str) -> None:
        found = _CHANNEL.match(text)
        if found is None:
            if _RING_ORDER.match(text):
                self.values["rings"] = True
            return
        channel, _, source, target, side, via = found.groups()
        edge = _edge(int(source), int(target), int(channel), side or "", _OF_COMM.sub("", via))
        if edge is not None:
            self.edges.add(edge)

    def done(self) -> RankLog:
        return RankLog(
            **self.values,  # type: ignore[arg-type]
            edges=tuple(sorted(self.edges)),
            env=tuple(sorted(self.env.items())),
        )


def _edge(source: int, target: int, channel: int, side: str, via: str) -> Edge | None:
    if via.startswith("P2P/"):
        name = via.split("/")[1]
        return Edge(source, target, channel, "P2P", "P2P/" + name)
    if via == "direct shared memory":
        return Edge(source, target, channel, "SHM", "SHM/direct")
    if via.startswith("SHM/"):
        return Edge(source, target, channel, "SHM", via[:40])
    net = _NET.match(via)
    if net is None:
        return None
    name, device, proxy, suffixes = net.groups()
    return Edge(source, target, channel, "NET", "NET/" + name, side, int(device), "/GDRDMA" in suffixes, bool(proxy))


def read(text: str) -> RankLog:
    """Read one rank's output. Lines that are not NCCL's are ignored, whatever they are."""
    reader = _Reader()
    for line in text.splitlines():
        reader.line(line)
    return reader.done()


class NcclPath(msgspec.Struct, frozen=True):
    """The path of all ranks together. ``incomplete`` says what is not proved, and why; empty: all of it is.

    ``net_edges``, ``gdr_edges`` count network connections and those with GPUDirect RDMA; ``transports`` the connections
    by transport; ``devices`` the network devices used by host.
    """

    versions: tuple[str, ...]
    networks: tuple[str, ...]
    transports: dict[str, int]
    net_edges: int
    gdr_edges: int
    pxn_edges: int
    channels: int
    algorithms: tuple[str, ...]
    hcas: dict[str, tuple[str, ...]]
    devices: dict[str, int]
    interfaces: dict[str, tuple[str, ...]]
    plugins: tuple[str, ...]
    env: dict[str, str]
    incomplete: tuple[str, ...]

    @property
    def proved(self) -> bool:
        """Every rank's log was complete, and shows how the rank is connected."""
        return not self.incomplete

    @property
    def words(self) -> str:
        """What was used, for people."""
        parts = [f"NCCL {' and '.join(self.versions) or 'of unknown version'}"]
        for name, count in sorted(self.transports.items(), key=lambda item: -item[1]):
            parts.append(f"{name} ({count} connections)")
        if self.net_edges:
            parts.append(f"GPUDirect on {self.gdr_edges} of {self.net_edges} network connections")
        if self.devices:
            parts.append(f"{counted(max(self.devices.values()), 'network device')} per host")
        if self.algorithms:
            parts.append("+".join(self.algorithms) + " set up")
        if self.channels:
            parts.append(f"{self.channels} channels")
        return ", ".join(parts)


def combine(logs: Mapping[int, RankLog], host_of: Mapping[int, str], world: int, cut: Iterable[int] = ()) -> NcclPath:
    """Put the ranks' logs together. ``cut`` are ranks whose log was not kept whole."""
    edges = {edge for log in logs.values() for edge in log.edges}
    incomplete = []
    silent = [rank for rank in range(world) if rank not in logs or not logs[rank].init_complete]
    if silent:
        incomplete.append(f"no complete init in the NCCL log of rank {few(silent, 8)}")
    cut_ranks = sorted(set(cut))
    if cut_ranks:
        incomplete.append(f"the log of rank {few(cut_ranks, 8)} was cut")
    ends = {edge.source for edge in edges} | {edge.target for edge in edges}
    unconnected = [rank for rank in range(world) if rank not in ends] if world > 1 else []
    if unconnected:
        incomplete.append(f"no connection of rank {few(unconnected, 8)} in any log")
    transports: dict[str, int] = {}
    for edge in edges:
        if edge.side != "receive":  # both sides of a network connection print a line
            transports[edge.via] = transports.get(edge.via, 0) + 1
    sends = [edge for edge in edges if edge.kind == "NET" and edge.side != "receive"]
    devices: dict[str, set[int]] = {}
    for edge in edges:
        if edge.kind == "NET":
            rank = edge.target if edge.side == "receive" else edge.source
            devices.setdefault(host_of.get(rank, "?"), set()).add(edge.device)
    return NcclPath(
        versions=tuple(sorted({log.version for log in logs.values() if log.version})),
        networks=tuple(sorted({log.network for log in logs.values() if log.network})),
        transports=dict(sorted(transports.items())),
        net_edges=len(sends),
        gdr_edges=sum(edge.gdr for edge in sends),
        pxn_edges=sum(edge.pxn for edge in sends),
        channels=max((log.coll_channels for log in logs.values()), default=0),
        algorithms=_algorithms(logs),
        hcas=_by_host(logs, host_of, lambda log: log.hcas),
        devices={host: len(found) for host, found in sorted(devices.items())},
        interfaces=_by_host(logs, host_of, lambda log: log.sockets),
        plugins=tuple(sorted({name for log in logs.values() for name in (log.net_plugin, log.tuner) if name})),
        env={name: value for log in logs.values() for name, value in log.env},
        incomplete=tuple(incomplete),
    )


def _algorithms(logs: Mapping[int, RankLog]) -> tuple[str, ...]:
    seen = {
        "Ring": any(log.rings or log.coll_channels for log in logs.values()),
        "Tree": any(log.trees for log in logs.values()),
        "NVLS": any(log.nvls for log in logs.values()),
        "CollNet": any(edge.kind == "COLLNET" for log in logs.values() for edge in log.edges),
    }
    return tuple(name for name, is_there in seen.items() if is_there)


def _by_host(
    logs: Mapping[int, RankLog], host_of: Mapping[int, str], values: Callable[[RankLog], Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for rank, log in logs.items():
        found.setdefault(host_of.get(rank, "?"), set()).update(values(log))
    return {host: tuple(sorted(names)) for host, names in sorted(found.items()) if names}
