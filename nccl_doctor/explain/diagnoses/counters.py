"""What networks and PCIe carry, by counters of hosts and by measured copies: packets sent again, full interfaces, few lanes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import too_slow
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import by_file, hosts_of
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.links import DROPS, GARBLED, LIMITED, PAUSED, RESENT, SENDER, SENT

_NEXT = 3  # lines from one line of a listing to another that belongs to it


def _held_back(case: Case) -> list[Hit]:
    """The lines that say that the job is too slow, or that its steps consist of communication."""
    return [*too_slow(case), *case.communicating[-1:]]


@diagnosis
def packets_discarded(case: Case) -> Iterable[Candidate]:
    """An adapter counts lost packets of RoCE, and flow control is off for all priorities, or the job is too slow. What is lost
    is sent again after a time-out. Without a complaint the counters may be old."""
    lost, told = case.hits("packets-lost"), _held_back(case)
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
                told = [*case.sockets[:1], *_held_back(case)]
                title = f"TCP sent {again} of {whole} segments again ({again / whole:.1%}): packets are lost"
                strength = 0.6 if told else 0.46
                yield Candidate("net.slow", strength, title, [hit, *told], hosts=hosts_of([hit]), slows=True)
                return


_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SEGMENT = 1448  # bytes: larger ones are fewer, and then the part that was lost is larger


@diagnosis
def iperf_sends_again(case: Case) -> Iterable[Candidate]:
    """iperf3: one segment of a hundred, or more, was sent again: packets are lost between these hosts."""
    for hit in case.hits("iperf-sender"):
        amount, unit, rate, of_rate, again = SENDER.findall(hit.text)[0]
        lost = int(again) * _SEGMENT / (float(amount) * _SCALE[unit] or 1.0)
        if lost >= _LOSS:
            told = [*case.sockets[:1], *_held_back(case)]
            title = f"iperf3 reaches {rate} {of_rate}bit/s and sends {lost:.1%} of its segments again: packets are lost"
            strength = 0.6 if told else 0.46
            yield Candidate("net.slow", strength, title, [hit, *told], hosts=hosts_of([hit]), slows=True)
            return


_GREW = 100  # frames between two looks
_OF_FRAMES = 1e-5  # a good cable garbles none in a billion


@diagnosis
def frames_are_garbled(case: Case) -> Iterable[Candidate]:
    """ethtool -S or ip -s link: an interface receives garbled frames: the count grows from one look to the next, is more than a few
    of a million frames, or is high and the job too slow. A count alone may be old."""
    told, looks = [*case.sockets[:1], *_held_back(case)], dict[tuple[str, str, str], list[tuple[int, Hit]]]()
    for hit in case.hits("garbled-frames"):
        for name, count in GARBLED.findall(hit.text):
            looks.setdefault((hit.file, hit.host, name), []).append((int(count), hit))
    for (*_, name), counts in looks.items():
        (least, first), (most, last) = counts[0], counts[-1]
        grew = most - least
        if grew >= _GREW or (most >= _MANY and _held_back(case)):
            more = f"and {grew} more between two looks" if grew >= _GREW else "frames"
            title = f"an interface received {least} garbled {'frames ' * (grew >= _GREW)}{more} ({name}): a bad cable or transceiver"
            strength = 0.68 if grew >= _GREW else 0.6
            yield Candidate("net.slow", strength, title, [last, first, *told], hosts=hosts_of([last]), slows=True)
            return
    for row in case.hits("interface-counts-rows"):
        cells = [int(cell) for cell in row.text.split() if cell.isdigit()][-6:]
        if len(cells) == 6 and cells[2] >= max(_MANY, _OF_FRAMES * cells[1]):
            title = f"an interface received {cells[2]} of {cells[1]} frames garbled"
            strength = 0.6 if told else 0.46
            yield Candidate("net.slow", strength, title, [row, *told], hosts=hosts_of([row]), slows=True)
            return


_PAUSES = 100_000  # frames between two looks


@diagnosis
def paused_by_the_other_end(case: Case) -> Iterable[Candidate]:
    """ethtool -S: an interface is told to pause all the time: a switch, or a host behind it, takes packets too slowly. Which, the
    counters of the switch's ports tell. Some pauses are how RoCE works; counts alone may be old."""
    looks: dict[tuple[str, str, str], list[tuple[int, Hit]]] = {}
    for hit in case.hits("paused"):
        for name, count in PAUSED.findall(hit.text):
            looks.setdefault((hit.file, hit.host, name), []).append((int(count), hit))
    for (*_, name), counts in looks.items():
        (least, first), (most, last) = counts[0], counts[-1]
        if most - least >= _PAUSES:
            title = f"an interface was told to pause {most - least} times between two looks ({name}): packets are taken too slowly"
            proof = [last, first, *_held_back(case)]
            yield Candidate("net.slow", 0.46, title, proof, hosts=hosts_of([last]), slows=True)
            yield Candidate("ib.retry-exceeded", 0.4, title, proof, slows=True)
            return


_GBIT = {"K": 1e-6, "M": 1e-3, "G": 1.0}
_NARROW = 10.0  # Gbit/s: what no job on several GPUs is limited to on purpose


@diagnosis
def rate_is_limited(case: Case) -> Iterable[Candidate]:
    """tc: a token bucket limits an interface, and the hosts talk over TCP sockets, or it is too slow."""
    told = [*case.sockets[:1], *case.hits("net-socket-using")[:1], *_held_back(case)]
    for hit in case.hits("rate-limit") if told else ():
        found = LIMITED.search(hit.text)
        if found and float(found[1]) * _GBIT[found[2]] <= _NARROW:
            title = f"tc limits {hit.groups.get('interface') or 'an interface'} to {found[1]} {found[2]}bit/s"
            yield Candidate("net.slow", 0.68, title, [hit, *told], hosts=hosts_of([hit]), slows=True)
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
                slow = _held_back(case)
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
            yield Candidate("net.slow", 0.66, title, [hit, speed, *_held_back(case)], hosts=hosts_of([hit]), slows=True)
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
            yield Candidate("net.slow", 0.66, title, [row, *_held_back(case)], hosts=hosts_of([row]), slows=True)
            return
