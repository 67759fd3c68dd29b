"""What networks and PCIe carry, by counters of hosts and by measured copies: packets sent again, full interfaces, few lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.speed import Lack, held_back, weighed
from nccl_doctor.explain.diagnoses.tables import SCALE, cells, far_below, number, tables
from nccl_doctor.explain.lines import by_file, hosts_of
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.links import DROPS, GARBLED, PAUSED, RESENT, SENT

_NEXT = 3  # lines from one line of a listing to another that belongs to it


_LOSS = 0.01  # of the segments: a local network loses one in a hundred thousand
_MANY = 10_000


def _counted(found: re.Match[str]) -> int:
    """The number in whichever of a pattern's groups matched."""
    return int(found[found.lastindex or 0])


def _by_counters(case: Case) -> Iterable[tuple[str, Hit]]:
    """nstat, netstat, ss: what TCP sent again, of what it sent by a line beside."""
    for hits in by_file(case.hits("tcp-counters")).values():
        sent = [(_counted(found), hit) for hit in hits if (found := SENT.search(hit.text))]
        for again, hit in [(_counted(found), hit) for hit in hits if (found := RESENT.search(hit.text))]:
            whole = max((number for number, one in sent if abs(one.line - hit.line) <= _NEXT), default=0)
            if again >= max(_MANY, _LOSS * whole) and whole:
                yield f"TCP sent {again} of {whole} segments again ({again / whole:.1%}): packets are lost", hit


_SEGMENT = 1448  # bytes: larger ones are fewer, and then the part that was lost is larger


def _by_iperf(case: Case) -> Iterable[tuple[str, Hit]]:
    for hit in case.hits("iperf-sender"):
        lost = int(hit.groups["again"]) * _SEGMENT / (float(hit.groups["amount"]) * SCALE[hit.groups["unit"]] or 1.0)
        if lost >= _LOSS:
            yield (
                f"iperf3 reaches {hit.groups['rate']}bit/s and sends {lost:.1%} of its segments again: packets are lost",
                hit,
            )


def _looks(hits: list[Hit], counter: re.Pattern[str]) -> Iterable[tuple[str, int, int, list[Hit]]]:
    """Each counter of an interface that ``ethtool -S`` tells, with its first and last count and their lines."""
    looks: dict[tuple[str, str, str], list[tuple[int, Hit]]] = {}
    for hit in hits:
        for name, count in counter.findall(hit.text):
            looks.setdefault((hit.file, hit.host, name), []).append((int(count), hit))
    for (*_, name), counts in looks.items():
        (least, first), (most, last) = counts[0], counts[-1]
        yield name, least, most, [last, first]


_GREW = 100  # frames between two looks
_OF_FRAMES = 1e-5  # a good cable garbles none in a billion


def _garbled(case: Case, alone: float) -> Iterator[Lack]:
    """What ``ethtool -S`` and ``ip -s link`` tell of frames that an interface received garbled."""
    for name, least, most, hits in _looks(case.hits("garbled-frames"), GARBLED):
        if most - least >= _GREW:
            more = f"{least} garbled frames and {most - least} more between two looks"
            yield Lack(f"an interface received {more} ({name}): a bad cable or transceiver", hits, 0.68, 0.68)
        elif most >= _MANY:
            title = f"an interface received {most} garbled frames ({name}): a bad cable or transceiver"
            yield Lack(title, hits, 0.6)
    for row in case.hits("interface-counts-rows"):
        counts = [int(cell) for cell in row.text.split() if cell.isdigit()][-6:]
        if len(counts) == 6 and counts[2] >= max(_MANY, _OF_FRAMES * counts[1]):
            yield Lack(f"an interface received {counts[2]} of {counts[1]} frames garbled", [row], 0.6, alone)


_NARROW = 10e9  # bit/s: what no job on several GPUs is limited to on purpose
_FULL = 90.0  # percent of its rate
_FAR_AWAY = 5.0  # ms: another building at least, or a queue


def _network(case: Case) -> Iterator[Lack]:
    sockets = case.sockets[:1] or case.hits("net-socket-using")[:1]
    alone = 0.6 if case.sockets else 0.46  # of TCP's own counters: another network's, where NCCL uses none of it
    off = [hit for hit in case.hits("flow-control") if not re.search(r"\s1\b", hit.text)]
    if lost := case.hits("packets-lost"):
        counted = max(DROPS.findall(" ".join(hit.text for hit in lost)), key=lambda pair: int(pair[1]))
        title = f"RoCE packets are lost ({counted[0]} {counted[1]})" + ", and flow control (PFC) is off" * bool(off)
        yield Lack(title, lost[:4], 0.6, 0.46 if off else 0.0, off[:1])
    for title, hit in (*_by_iperf(case), *_by_counters(case)):
        yield Lack(title, [hit], 0.6, alone, case.sockets[:1])
    yield from _garbled(case, alone)
    for hit in case.hits("rate-limit"):
        rate, unit = hit.groups["rate"], hit.groups["unit"]
        if float(rate) * SCALE[unit] <= _NARROW:
            title = f"tc limits {hit.groups.get('interface') or 'an interface'} to {rate} {unit}bit/s"
            yield Lack(title, [hit], 0.68, 0.68 if sockets else 0.0, sockets)
    for head, row in ((head, row) for head, rows in tables(case, "interface-load") for row in rows):
        told = cells(head.text.split(), row.text.split())
        load = number(told.get("%ifutil", ""))
        if load >= _FULL:
            title = (
                f"the interface {told.get('IFACE')} is at {load:.0f} % of its rate ({told.get('rxkB/s')} kB/s received)"
            )
            yield Lack(title, [row], 0.62, 0.46, [head, *case.sockets[:1]])
    for hit in case.hits("round-trip") if case.sockets else ():
        usual = float(hit.groups["usual"])
        if usual >= _FAR_AWAY:
            title = f"an answer of the other host takes {usual:.1f} ms: each step of a ring waits as long"
            yield Lack(title, [hit], 0.6, more=sockets)


@diagnosis
def network_lacks(case: Case) -> Iterable[Candidate]:
    """What hosts count of their network: packets of RoCE that are lost while flow control is off, TCP segments of which one in a
    hundred is sent again, garbled frames, an interface that tc limits or that is at its rate, answers that take milliseconds. What
    is lost is sent again after a time-out. A count alone may be old, another network's, or little enough: beside a sign that the job
    is slow, or one that NCCL's data goes that way, it decides."""
    yield from weighed(case, "net.slow", _network(case), held_back)


_PAUSES = 100_000  # frames between two looks


@diagnosis
def paused_by_the_other_end(case: Case) -> Iterable[Candidate]:
    """ethtool -S: an interface is told to pause all the time: a switch, or a host behind it, takes packets too slowly. Which, the
    counters of the switch's ports tell. Some pauses are how RoCE works; counts alone may be old."""
    for name, least, most, hits in _looks(case.hits("paused"), PAUSED):
        if most - least >= _PAUSES:
            title = f"an interface was told to pause {most - least} times between two looks ({name}): packets are taken too slowly"
            strengths = {"net.slow": 0.46, "ib.retry-exceeded": 0.4}
            yield from rivals(strengths, title, [*hits, *held_back(case)], hosts=hosts_of(hits), slows=True)
            return


_ROW = re.compile(r"(?:^|\s)(\d+)((?:\s+(?:\d+\.\d+|N/A))+)\s*$")
_HALF = 0.5


@diagnosis
def gpu_copies_slowly(case: Case) -> Iterable[Candidate]:
    """nvbandwidth: what one GPU exchanges with the host, or with all other GPUs, is less than half of what the others do."""
    for head, rows in tables(case, "copy-matrix"):
        to_host, best = "CPU(row)" in head.text, dict[int, float]()
        measured = [(found, row) for row in rows if (found := _ROW.search(row.text))]
        for found, _ in measured:
            for column, cell in enumerate(found[2].split()):
                for gpu in {column} if to_host else {column, int(found[1])}:
                    best[gpu] = max(best.get(gpu, 0.0), number(cell))
        slow, usual = far_below(best, _HALF)
        if slow:
            peers = "the host" if to_host else "other GPUs"
            title = f"GPU {slow[0]} exchanges {best[slow[0]]:g} GB/s with {peers}, the others {usual:g}"
            proof = [head, *(row for _, row in measured)]
            yield Candidate("net.slow" if to_host else "gpu.nvlink", 0.68, title, proof[:6], hosts=hosts_of(proof))
            return
