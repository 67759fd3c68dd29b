"""What networks and PCIe carry, by counters of hosts and by measured copies: packets sent again, full interfaces, few lanes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import by_file, hosts_of
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.signatures.links import DROPS, RESENT, SENT

_NEXT = 3  # lines from one line of a listing to another that belongs to it


def _too_slow(case: Case) -> list[Hit]:
    return [*complaints(case)[:2], *case.hits(PACE_LEFT)[1:2], *case.communicating[-1:]]


@diagnosis
def packets_discarded(case: Case) -> Iterable[Candidate]:
    """An adapter counts lost packets of RoCE, and flow control is off for all priorities, or the job is too slow. What is lost
    is sent again after a time-out. Without a complaint the counters may be old."""
    lost, told = case.hits("packets-lost"), _too_slow(case)
    off = [hit for hit in case.hits("flow-control") if not re.search(r"\s1\b", hit.text)]
    if lost and (off or told):
        counted = max(DROPS.findall(" ".join(hit.text for hit in lost)), key=lambda pair: int(pair[1]))
        title = f"RoCE packets are lost ({counted[0]} {counted[1]})" + ", and flow control (PFC) is off" * bool(off)
        strength = 0.6 if told else 0.46
        yield Candidate("net.slow", strength, title, [*lost[:4], *off[:1], *told], hosts=hosts_of(lost), slows=True)


_LOSS = 0.01  # of the segments: a local network loses one in a hundred thousand
_MANY = 10_000


@diagnosis
def tcp_sends_again(case: Case) -> Iterable[Candidate]:
    """TCP sent one segment of a hundred, or more, again, and the hosts talk over TCP sockets: packets are lost, or come late."""
    for hits in by_file(case.hits("tcp-counters")).values():
        sent = [(int(found[found.lastindex or 0]), hit) for hit in hits if (found := SENT.search(hit.text))]
        for again, hit in (
            (int(found[found.lastindex or 0]), hit) for hit in hits if (found := RESENT.search(hit.text))
        ):
            whole = max((number for number, one in sent if abs(one.line - hit.line) <= _NEXT), default=0)
            if again >= max(_MANY, _LOSS * whole) and whole:
                told = [*case.sockets[:1], *_too_slow(case)]
                title = f"TCP sent {again} of {whole} segments again ({again / whole:.1%}): packets are lost"
                strength = 0.6 if told else 0.46
                yield Candidate("net.slow", strength, title, [hit, *told], hosts=hosts_of([hit]), slows=True)
                return


_FULL = 90.0  # percent of its rate


@diagnosis
def interface_is_full(case: Case) -> Iterable[Candidate]:
    """sar -n DEV: an interface is at its rate. It may be that of the data, and not that of the gradients; without a complaint it
    may be enough."""
    headings = case.hits("interface-load")
    for head in headings:
        names = head.text.split()
        for row in below(head, headings, case.hits("interface-load-rows")):
            cells = dict(zip(names[::-1], row.text.split()[::-1], strict=False))
            load, name = cells.get("%ifutil", ""), cells.get("IFACE", "")
            if re.fullmatch(r"\d+\.\d+", load) and float(load) >= _FULL:
                slow = _too_slow(case)
                title = (
                    f"the interface {name} is at {float(load):.0f} % of its rate ({cells.get('rxkB/s')} kB/s received)"
                )
                strength = 0.62 if slow else 0.46
                proof = [row, head, *case.sockets[:1], *slow]
                yield Candidate("net.slow", strength, title, proof, hosts=hosts_of([row]), slows=True)
                return


_ONE_LANE = re.compile(r"Width\s+: 1x|active_width:\s+1X")
_FOUR = re.compile(r"active_width:\s+4X")


@diagnosis
def port_with_one_lane(case: Case) -> Iterable[Candidate]:
    """mlxlink: a port of InfiniBand came up with one of its four lanes. ibv_devinfo: one lane, and other ports have four at the
    same rate of a lane; those of Ethernet have as many as their speed needs."""
    lanes, speeds = case.hits("port-lanes"), case.hits("port-speed")

    def speed_of(hit: Hit) -> Hit | None:
        near = [one for one in speeds if one.file == hit.file and abs(one.line - hit.line) <= _NEXT]
        return min(near, key=lambda one: abs(one.line - hit.line), default=None)

    four = {speed.text.strip() for hit in lanes if _FOUR.search(hit.text) and (speed := speed_of(hit))}
    for hit in lanes:
        speed = speed_of(hit) if _ONE_LANE.search(hit.text) else None
        if speed and ("IB-" in speed.text or speed.text.strip() in four):
            title = f"a port came up with one lane of four ({' '.join(speed.text.split())})"
            yield Candidate("net.slow", 0.66, title, [hit, speed, *_too_slow(case)], hosts=hosts_of([hit]), slows=True)
            return


_ROW = re.compile(r"(?:^|\s)(\d+)((?:\s+(?:\d+\.\d+|N/A))+)\s*$")
_HALF = 0.5
_FEWEST = 4  # GPUs: of fewer, which one is odd cannot be told


@diagnosis
def gpu_copies_slowly(case: Case) -> Iterable[Candidate]:
    """nvbandwidth: what one GPU exchanges with the host, or with all other GPUs, is less than half of what the others do."""
    headings = case.hits("copy-matrix")
    for head in headings:
        to_host, of_gpu = "CPU(row)" in head.text, dict[int, list[float]]()
        rows = below(head, headings, case.hits("copy-matrix-rows"))
        for found in filter(None, (_ROW.search(row.text) for row in rows)):
            for column, cell in enumerate(found[2].split()):
                ends = {column} if to_host else {column, int(found[1])}
                for gpu in ends if cell != "N/A" else ():
                    of_gpu.setdefault(gpu, []).append(float(cell))
        best = {gpu: max(speeds) for gpu, speeds in of_gpu.items()}
        usual = statistics.median(best.values()) if len(best) >= _FEWEST else 0.0
        slow = [gpu for gpu, speed in best.items() if speed < _HALF * usual]
        if slow:
            peers = "the host" if to_host else "other GPUs"
            title = f"GPU {slow[0]} exchanges {best[slow[0]]:g} GB/s with {peers}, the others {usual:g}"
            proof = [head, *(row for row in rows if _ROW.search(row.text))]
            yield Candidate("net.slow" if to_host else "gpu.nvlink", 0.68, title, proof[:6], hosts=hosts_of(proof))
            return


_TEST_ROW = re.compile(r"(?:^|\s)(\d{8,})\s+(\d+(?:\.\d+)?)\s*$")
_TWO_LANES = 2.0  # GB/s: what two lanes of PCIe 3.0 carry


@diagnosis
def gpu_has_little_pcie(case: Case) -> Iterable[Candidate]:
    """bandwidthTest: large copies between a GPU and the host run at what one or two lanes of PCIe carry."""
    for row in case.hits("copy-test-rows"):
        found = _TEST_ROW.search(row.text)
        if found and 0 < float(found[2]) <= _TWO_LANES:
            title = f"copies between a GPU and the host run at {found[2]} GB/s: it has a lane of PCIe or two"
            yield Candidate("net.slow", 0.66, title, [row, *_too_slow(case)], hosts=hosts_of([row]), slows=True)
            return
