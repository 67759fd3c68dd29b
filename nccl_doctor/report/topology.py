"""A host's topology as text: the matrix in colour, what NCCL can use between the devices, and what is uneven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from nccl_doctor.facts.fold import counted
from nccl_doctor.facts.topology_matrix import P2P_KINDS, Matrix
from nccl_doctor.facts.topology_paths import NEAR, Uneven, between, near_nics, nvlinks, to_network, uneven
from nccl_doctor.report.safe_text import visible
from nccl_doctor.report.terminal import print_hanging

_P2P_WORDS = {
    "CNS": "CNS: the chipset does not support it",
    "GNS": "GNS: the GPU does not support it",
    "TNS": "TNS: not over this topology",
    "NS": "NS: not supported",
    "DR": "DR: disabled in the driver",
    "U": "U: unknown",
}
_LABEL = 13  # characters before a sentence
_STYLE = {"PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "SOC": "red", "OK": "green"}


def style(kind: str) -> str:
    """The colour of a cell: NVLink bright green, near PCIe green, through the CPU yellow, across sockets red."""
    if nvlinks(kind):
        return "bold green"
    if kind in P2P_KINDS and kind != "OK":
        return "bold red"
    return _STYLE.get(kind, "dim")


def to_json(matrix: Matrix) -> dict[str, Any]:
    """The matrix as plain data: gpus, nics, links (one per cell that was read) and truncated."""
    data: dict[str, Any] = {
        "gpus": [{"name": gpu.name, "cpus": gpu.cpus, "numa": gpu.numa} for gpu in matrix.gpus],
        "nics": [{"name": nic.name, "device": nic.device} for nic in matrix.nics],
        "links": [{"a": link.a, "b": link.b, "kind": link.kind} for link in matrix.links],
        "truncated": matrix.truncated,
        "source": matrix.source,
        "notes": list(matrix.notes),
        "uneven": [{"topic": item.topic, "text": item.text, "names": list(item.names)} for item in uneven(matrix)],
    }
    for entry, gpu in zip(data["gpus"], matrix.gpus, strict=True):
        if gpu.gpu_numa_id is not None:  # a column of newer drivers
            entry["gpu_numa_id"] = gpu.gpu_numa_id
    if matrix.p2p:
        data["p2p"] = [{"a": link.a, "b": link.b, "kind": link.kind} for link in matrix.p2p]
    return data


def render(matrix: Matrix, console: Console, *, title: str, facts: Sequence[tuple[str, str]] = ()) -> None:
    """Print one host's topology. ``facts`` are further (label, sentence) lines, such as why GPUDirect is off."""
    head = Text(visible(title), "bold")
    head.append(f"   {counted(len(matrix.gpus), 'GPU')}, {counted(len(matrix.nics), 'NIC')}", "not bold")
    console.print(head, soft_wrap=True)
    console.print()
    lines = _table(matrix)
    if console.is_terminal and matrix.nics and max(line.cell_len for line in lines) > console.width:
        lines = _table(matrix, nic_columns=False)
        facts = [
            *facts,
            ("not shown", "how far NICs are from each other: a wider terminal, a file or --format json has it"),
        ]
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()
    for line in _words(matrix, uneven(matrix), facts):
        print_hanging(console, line, 0, _LABEL)


def _table(matrix: Matrix, nic_columns: bool = True) -> list[Text]:
    """One line per GPU and NIC. Without the NICs' columns, what GPUs' rows say of NICs stands in the NICs' rows."""
    gpus = [gpu.name for gpu in matrix.gpus]
    names = gpus + [nic.name for nic in matrix.nics]
    columns = names if nic_columns else gpus
    devices = {nic.name: nic.device for nic in matrix.nics if nic.device and nic.device != nic.name}
    cells = {(link.a, link.b): link.kind for link in matrix.links}
    width = max([4, *(len(name) for name in names)])
    cpus = any(gpu.cpus for gpu in matrix.gpus)
    header = " ".join(f"{name:>{width}}" for name in columns) + ("   CPUs / NUMA node" if cpus else "")
    lines = [Text(" " * (width + 1)).append(header, "bold")]
    if not nic_columns:
        cells = {**{(b, a): kind for (a, b), kind in cells.items() if a in gpus}, **cells}
    read = {a for a, _ in cells}
    for name in names:
        if name not in read and len(names) > 1:
            continue  # its row is not in the text; the notes say so
        line = Text(f"{name:<{width}} ", "bold")
        for other in columns:
            kind = "·" if other == name else cells.get((name, other), "?")
            line.append(f"{kind:>{width}}", style(kind)).append(" ")
        gpu = next((gpu for gpu in matrix.gpus if gpu.name == name), None)
        if gpu and (gpu.cpus or gpu.numa):
            line.append(f"  {visible(gpu.cpus or '-')} / {visible(gpu.numa or '-')}", "dim")
        elif name in devices:
            line.append(f"  {visible(devices[name])}", "dim")
        lines.append(line)
    return lines


def _words(matrix: Matrix, found: Sequence[Uneven], facts: Sequence[tuple[str, str]]) -> list[Text]:
    lines: list[Text] = []

    def say(label: str, text: str, look: str = "") -> None:
        lines.append(Text(f"{label:<{_LABEL}}", look or "cyan").append(visible(text), "not bold default"))

    for index, text in enumerate(_transports(matrix)):
        say("GPU to GPU" if index == 0 else "", text)
    for index, text in enumerate(_networks(matrix)):
        say("to network" if index == 0 else "", text)
    for label, text in facts:
        say(label, text)
    for item in found:
        everyone = item.topic in ("nic", "flat") and len(item.names) == len(matrix.gpus)
        say("distance" if everyone else "uneven", item.text, "bold yellow")
    statuses_only = {link.kind for link in matrix.links} <= P2P_KINDS
    if not found and len(matrix.gpus) > 1 and not matrix.truncated and not statuses_only:
        equally = len({near.kind for near in near_nics(matrix).values()}) == 1
        say("even", "every GPU has the same links and an equally near NIC" if equally else "no GPU stands out")
    for note in matrix.notes:
        say("truncated" if matrix.source == "nvidia-smi" else "not known", note, "bold yellow")
    return lines


def _transports(matrix: Matrix) -> list[str]:
    kinds, statuses = matrix.kinds(), {(link.a, link.b): link.kind for link in matrix.p2p}
    names = [gpu.name for gpu in matrix.gpus]
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :] if (a, b) in kinds]
    if not pairs:
        return []
    if {kinds[pair] for pair in pairs} <= P2P_KINDS:
        good = sum(kinds[pair] == "OK" for pair in pairs)
        others = sorted({_P2P_WORDS[kinds[pair]] for pair in pairs if kinds[pair] != "OK"})
        return [
            f"P2P allowed by the driver for {good} of {len(pairs)} pairs"
            + (f" ({', '.join(others)})" if others else "")
        ]
    groups: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        status = statuses.get(pair, statuses.get((pair[1], pair[0])))
        groups.setdefault(between(kinds[pair], status), []).append(pair)
    told, whole = [], len(pairs) == len(names) * (len(names) - 1) // 2
    for way in ("NVLink", "PCIe P2P", "SHM"):
        if way not in groups:
            continue
        seen = sorted({kinds[pair] for pair in groups[way]})
        meaning = {"NVLink": "NVLink", "PCIe P2P": "P2P over PCIe", "SHM": "through host memory (SHM)"}[way]
        every = "all" if len(groups[way]) == len(pairs) else f"{len(groups[way])} of"
        read = "" if whole else " that can be read"
        told.append(f"{meaning}: {every} {counted(len(pairs), 'pair')}{read} ({', '.join(seen)})")
    if "NVLink" not in groups and matrix.source == "nvidia-smi":
        told[-1] += "; no NVLink is shown (`topo -mp` never shows one)"
    return told


def _networks(matrix: Matrix) -> list[str]:
    if not near_nics(matrix):
        return []
    groups: dict[str, list[str]] = {}
    beside = []
    for gpu in matrix.gpus:
        near = near_nics(matrix).get(gpu.name)
        if near is not None and near.kind in NEAR:
            beside.append(f"{gpu.name}-{'/'.join(near.nics[:2])}{'/..' if len(near.nics) > 2 else ''}")
        else:
            groups.setdefault(to_network(matrix, gpu.name), []).append(gpu.name)
    told = []
    if beside:
        told.append(f"GPUDirect RDMA possible, NIC beside the GPU: {' '.join(beside)}")
    return told + [f"{', '.join(gpus)}: {text}" for text, gpus in groups.items()]
