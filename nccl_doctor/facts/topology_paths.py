"""What a topology matrix means for NCCL: which path it can take between two GPUs and from a GPU to the network.

Rules of NCCL 2.6 to 2.30 (its path types and default levels): P2P up to PXB by default, otherwise shared memory;
GPUDirect RDMA up to PXB by default (P2C on C2C machines), otherwise through host memory; PXN through an NVLink peer
beside the NIC.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import msgspec

from nccl_doctor.facts.topology_matrix import Matrix

NEAR = ("PIX", "PXB")  # within NCCL's default level for P2P and for GPUDirect RDMA
_ORDER = {kind: index for index, kind in enumerate(("PIX", "PXB", "PHB", "NODE", "SYS", "SOC"))}


T = TypeVar("T")


def per_matrix(function: Callable[[Matrix], T]) -> Callable[[Matrix], T]:
    """Computed once per parsed matrix: the hosts of a fleet share theirs (see ``parse``). Results are not changed."""

    @functools.wraps(function)
    def told(matrix: Matrix) -> T:
        derived: dict[str, T] = matrix.derived
        if function.__name__ not in derived:
            derived[function.__name__] = function(matrix)
        return derived[function.__name__]

    return told


class NearNic(msgspec.Struct, frozen=True):
    """The NICs nearest to a GPU and how far they are."""

    kind: str
    nics: tuple[str, ...]


class Uneven(msgspec.Struct, frozen=True):
    """One sentence on what is uneven, and the GPUs or NICs it is about. ``topic`` is a short key."""

    topic: str
    text: str
    names: tuple[str, ...]


def nvlinks(kind: str) -> int:
    """Number of NVLinks of a cell: 18 for NV18, 0 for any other."""
    return int(kind[2:]) if kind.startswith("NV") and kind[2:].isdecimal() else 0


@per_matrix
def near_nics(matrix: Matrix) -> dict[str, NearNic]:
    """GPU -> its nearest NICs, for every GPU of which a cell to a NIC was read."""
    kinds = matrix.kinds()
    found: dict[str, NearNic] = {}
    for gpu in matrix.gpus:
        read = [(kinds[gpu.name, nic.name], nic.name) for nic in matrix.nics if (gpu.name, nic.name) in kinds]
        ranked = [(_ORDER[kind], kind, nic) for kind, nic in read if kind in _ORDER]
        if ranked:
            best = min(rank for rank, _, _ in ranked)
            found[gpu.name] = NearNic(
                next(kind for rank, kind, _ in ranked if rank == best),
                tuple(nic for rank, _, nic in ranked if rank == best),
            )
    return found


@per_matrix
def lost_nvlink(matrix: Matrix) -> tuple[str, ...]:
    """GPUs without any NVLink on a machine where all other GPUs (two or more) reach each other over NVLink."""
    kinds = matrix.kinds()
    names = [gpu.name for gpu in matrix.gpus if any((gpu.name, other.name) in kinds for other in matrix.gpus)]
    without = [name for name in names if not any(nvlinks(kinds.get((name, other), "")) for other in names)]
    rest = [name for name in names if name not in without]
    meshed = all(nvlinks(kinds.get((a, b), "NV1")) for a in rest for b in rest if a != b)
    return tuple(without) if len(rest) >= 3 and meshed and len(without) < len(rest) else ()


def _without_nvlink(matrix: Matrix) -> tuple[str, ...]:
    """GPUs without any NVLink where others have some (cards with a bridge), unless they have lost it."""
    kinds, names = matrix.kinds(), [gpu.name for gpu in matrix.gpus]
    read = [[kinds[name, other] for other in names if (name, other) in kinds] for name in names]
    if lost_nvlink(matrix) or not any(nvlinks(kind) for row in read for kind in row):
        return ()
    return tuple(
        name for name, row in zip(names, read, strict=True) if len(row) == len(names) - 1 and not any(map(nvlinks, row))
    )


@per_matrix
def fewer_nvlinks(matrix: Matrix) -> dict[str, int]:
    """On an all-NVLink machine with one usual width: GPUs all of whose pairs are narrower -> their width."""
    kinds = matrix.kinds()
    names = [gpu.name for gpu in matrix.gpus]
    widths = {a: {nvlinks(kinds[a, b]) for b in names if a != b and nvlinks(kinds.get((a, b), ""))} for a in names}
    everything = [width for seen in widths.values() for width in seen]
    if len(names) < 3 or not everything:
        return {}
    usual = max(set(everything), key=lambda width: (everything.count(width), width))
    narrow = {name: max(seen) for name, seen in widths.items() if seen and max(seen) < usual}
    wide = [name for name, seen in widths.items() if usual in seen]
    return narrow if len(wide) + len(narrow) == sum(1 for seen in widths.values() if seen) else {}


def between(kind: str, p2p: str | None = None) -> str:
    """What NCCL uses by default between two GPUs of one host: ``NVLink``, ``PCIe P2P`` or ``SHM`` (host memory).

    ``p2p`` is the driver's P2P status of the pair (``OK``, ``NS``, ``CNS`` ...) where it is known.
    """
    if p2p is not None and p2p != "OK":
        return "SHM"
    if nvlinks(kind):
        return "NVLink"
    return "PCIe P2P" if kind in NEAR else "SHM"


def to_network(matrix: Matrix, gpu: str) -> str:
    """How NCCL brings this GPU's data to the network by default, by distance alone."""
    near = near_nics(matrix)
    if gpu not in near:
        return "no NIC in the matrix" if not matrix.nics else "cells to the NICs are not in the text"
    own = near[gpu]
    names = "/".join(own.nics[:4]) + ("/..." if len(own.nics) > 4 else "")
    if own.kind in NEAR:
        return f"GPUDirect RDMA possible with {names} ({own.kind})"
    if coherent(matrix):
        return "GPUDirect RDMA over C2C (P2C) with NCCL 2.27.3 or later; before, through host memory"
    kinds = matrix.kinds()
    for peer, theirs in near.items():
        if peer != gpu and theirs.kind in NEAR and nvlinks(kinds.get((gpu, peer), "")):
            return f"no NIC beside it; over NVLink to {peer} and its {theirs.nics[0]} (PXN)"
    return f"no GPUDirect RDMA: nearest NIC {names} is {own.kind}, beyond NCCL's default PXB; through host memory"


@per_matrix
def uneven(matrix: Matrix) -> list[Uneven]:
    """What is uneven about this machine, in words; empty if nothing is."""
    found: list[Uneven] = []
    for gpu in lost_nvlink(matrix):
        found.append(Uneven("nvlink", f"{gpu} has no NVLink, while all other GPUs are linked", (gpu,)))
    for gpu, width in fewer_nvlinks(matrix).items():
        found.append(Uneven("nvlink-width", f"{gpu} has only NV{width} to its peers, less than the others", (gpu,)))
    if unbridged := _without_nvlink(matrix):
        found.append(Uneven("nvlink-part", f"no NVLink on {', '.join(unbridged)}, though others have some", unbridged))
    near = near_nics(matrix)
    beside = [gpu for gpu, nic in near.items() if nic.kind in NEAR]
    far = [gpu for gpu, nic in near.items() if nic.kind not in NEAR]
    if far and beside:
        found.append(Uneven("nic", f"no NIC beside {', '.join(far)}, though other GPUs have one", tuple(far)))
    elif far and coherent(matrix):
        pass  # NCCL 2.27.3 and later go over C2C (P2C): SYS to the NICs is what such machines show
    elif far and not (_flat(matrix) and len(near) == len(matrix.gpus)):
        who = "no GPU has a NIC beside it" if len(far) > 1 else "the GPU does not have a NIC beside it"
        if len(near) < len(matrix.gpus):  # of the others no cell to a NIC was read
            who = f"no NIC beside {', '.join(far)}"
        text = f"{who} (nearest: {', '.join(sorted({near[gpu].kind for gpu in far}))})"
        found.append(Uneven("nic", text, tuple(far)))
    elif far:
        text = "every GPU is equally far from every NIC (a virtual machine's flat PCIe tree): NCCL cannot tell rails"
        found.append(Uneven("flat", text, tuple(far)))
    users: dict[tuple[str, ...], list[str]] = {}
    for gpu in beside:
        users.setdefault(near[gpu].nics, []).append(gpu)
    loads = {nics: len(gpus) / len(nics) for nics, gpus in users.items()}
    if loads and max(loads.values()) > 1 and min(loads.values()) < max(loads.values()):
        most = max(loads, key=lambda nics: (loads[nics], nics))
        text = f"NICs are shared unevenly: {', '.join(most)} serves {', '.join(users[most])}"
        found.append(Uneven("nic-share", text, most))
    far_pairs = cross_socket(matrix)
    names = matrix.gpus
    if far_pairs and len(far_pairs) < len(names) * (len(names) - 1) // 2:
        listed = ", ".join(f"{a}-{b}" for a, b in far_pairs[:4]) + (", ..." if len(far_pairs) > 4 else "")
        text = f"{len(far_pairs)} GPU pairs cross sockets or NUMA nodes without NVLink: {listed}"
        found.append(Uneven("cross-socket", text, tuple(sorted({name for pair in far_pairs for name in pair}))))
    return found


def cross_socket(matrix: Matrix) -> list[tuple[str, str]]:
    """GPU pairs whose only path crosses the link between sockets (or NUMA nodes).

    SYS alone does not prove it: on machines where each root port is its own PCI domain, GPUs of one NUMA node are SYS
    to each other; where both NUMA nodes are known and equal, the pair does not count.
    """
    kinds = matrix.kinds()
    pairs = []
    for position, a in enumerate(matrix.gpus):
        for b in matrix.gpus[position + 1 :]:
            known = a.numa not in (None, "", "N/A") and b.numa not in (None, "", "N/A")
            if kinds.get((a.name, b.name)) in ("SYS", "SOC") and not (known and a.numa == b.numa):
                pairs.append((a.name, b.name))
    return pairs


def coherent(matrix: Matrix) -> bool:
    """A machine whose GPU memory is a NUMA node of the CPU (Grace): NICs are reached over C2C."""
    return any((gpu.gpu_numa_id or "").isdecimal() for gpu in matrix.gpus)


def _flat(matrix: Matrix) -> bool:
    """Every GPU-NIC and NIC-NIC cell is the same kind: a virtual PCIe tree, or one too small to tell."""
    nics = {nic.name for nic in matrix.nics}
    seen = {link.kind for link in matrix.links if link.a in nics or link.b in nics}
    return seen in ({"PHB"}, {"SYS"}) and len(nics) > 1 and len(matrix.gpus) > 1


def in_order(matrix: Matrix) -> list[str]:
    """GPU names, then NIC names by their distances to the GPUs: the same order on alike hosts, however NICs are numbered."""
    kinds = matrix.kinds()
    gpus = [gpu.name for gpu in matrix.gpus]
    nics = sorted(
        (nic.name for nic in matrix.nics),
        key=lambda nic: [_ORDER.get(kinds.get((nic, gpu), ""), len(_ORDER)) for gpu in gpus],
    )
    return gpus + nics


@per_matrix
def signature(matrix: Matrix) -> str:
    """A text that is equal for hosts with equal topology: kinds between GPUs, and from each NIC to the GPUs.

    NIC names, their numbering, distances between NICs and CPU lists do not count.
    """
    kinds = matrix.kinds()
    names, count = in_order(matrix), len(matrix.gpus)
    cells = [kinds.get((a, b), "-") for i, a in enumerate(names) for j, b in enumerate(names) if i < j and i < count]
    return f"{count} GPUs {len(matrix.nics)} NICs " + " ".join(cells)
