"""What benchmarks of collectives measure, beside what the adapters and the links of the hosts carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.speed import communication_complaints, complaints
from nccl_doctor.explain.diagnoses.steps import starving
from nccl_doctor.explain.diagnoses.tables import SCALE
from nccl_doctor.explain.hang import GAVE_UP
from nccl_doctor.explain.lines import hosts_of, later, shortened, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.infiniband import ADAPTERS_TOLD
from nccl_doctor.explain.slowdown import communication_share
from nccl_doctor.facts.gpu_models import find

_SERVER_GPU = re.compile(r"H100|H200|B200|B300|GB200|GB300|A100|H800|A800|H20\b")
# Bus bandwidth in GB/s: below the first no InfiniBand or RoCE link of any age is at work, below the second not even one
# 100 Gbit/s port.
_ANY_VERBS = 1.5
_MUCH_FASTER = 2.0  # times
_TWO_RUNS = 2  # one that is slow, and one beside it
_ONE_PORT = 11.0
_MEASURED = re.compile(r"busbw|all_?(?:reduce|gather)|reduce_scatter|all_?to_?all|collective")


def _servers_in_the_list(case: Case) -> bool:
    """Whether nccl-tests ran over several hosts, and its list of devices shows an eighth GPU of one of them."""
    return case.nodes > 1 and any(int(hit.groups["device"]) >= 7 for hit in case.hits("tests-device"))


def _over_verbs(case: Case) -> bool:
    """Whether nccl-tests ran over several hosts and its network was InfiniBand or RoCE."""
    verbs = case.has("net-ib-using") or any(hit.groups["network"].startswith("IB") for hit in case.hits("network-used"))
    several = case.between_hosts or not case.has("tests-device")
    return verbs and not case.sockets and several


def slow_rows(case: Case) -> list[Hit]:
    """nccl-tests rows of large messages (the last one, the largest, always among them)."""
    last = case.last("busbw-row")
    rows = case.hits("busbw-row")
    more = [last] if last is not None and last not in rows else []
    return [hit for hit in (*rows, *more) if int(hit.groups["size"]) >= 1 << 26]


def rows_of_run(case: Case, signs: list[Hit]) -> list[Hit]:
    """The same of the run in which these lines stand, where a log holds several with an average each; none where it is one of many
    and others are far faster: somebody compares settings."""
    rows = [row for row in slow_rows(case) if not signs or row.file == signs[0].file]
    ends = [hit for hit in case.hits("busbw-average") if signs and hit.file == signs[0].file]
    if len(ends) < 2:
        return rows or slow_rows(case)
    end = next((hit for hit in ends if later(hit, signs[0])), None)
    begin = next((hit for hit in ends[::-1] if later(signs[0], hit)), None)
    own = [row for row in rows if not (end and later(row, end)) and not (begin and not later(row, begin))]
    best = max(map(busbw, own), default=0.0)
    compared = len(ends) > _TWO_RUNS and any(busbw(row) > _MUCH_FASTER * best for row in rows)
    return [] if compared else own


def busbw(row: Hit) -> float:
    """The bus bandwidth of an nccl-tests row (out of place) in GB/s."""
    return float(row.groups["busbw"])


@diagnosis
def slow_network(case: Case) -> Iterable[Candidate]:
    """A multi-node run on server GPUs goes over TCP sockets (or is measured far below one NIC), and nothing failed.

    Sockets on machines built for hundreds of GB/s are a misconfiguration even when every value is right. On machines
    without RDMA (workstations, single-GPU cloud machines) they are not.
    """
    rows = slow_rows(case)
    best = max((busbw(hit) for hit in rows), default=0.0)
    complaint = complaints(case)
    if case.sockets and case.nodes > 1:
        own = rows_of_run(case, case.sockets)
        if own or not rows:
            yield from _over_sockets(case, own, max(map(busbw, own), default=0.0))
    elif rows and best < _ANY_VERBS and not case.has("network-used") and _servers_in_the_list(case):
        title = f"servers with eight GPUs each reach only {best:.1f} GB/s bus bandwidth together"
        yield Candidate("net.slow", 0.56, title, [*rows[-3:], *case.hits("tests-device")[:2]])
    elif (
        rows and best < _ONE_PORT and not case.has("network-used") and _server_gpus(case) and _servers_in_the_list(case)
    ):
        title = f"servers with eight GPUs each reach only {best:.1f} GB/s bus bandwidth together; over which network is not told"
        causes = ("net.slow", "ib.gdr", "ib.device-not-found", "env.bad-nccl-var")
        proof = [*rows[-3:], *case.hits("tests-device")[:2]]
        yield from rivals(falling(causes, 0.46, 0.02), title, proof, slows=True)
    elif rows and _over_verbs(case) and best < _least(case):
        yield Candidate(
            "net.slow",
            0.64 if best < _ANY_VERBS else 0.56,
            f"RDMA is used, but large messages reach only {best:.1f} GB/s bus bandwidth",
            [*rows[-3:], *case.hits("net-ib-using")[:2], *complaint[:2]],
            hosts=hosts_of(case.hits("net-ib-using")),
        )
    elif (
        complaint
        and (case.has("gdr-disabled") or case.between_hosts or rows or _MEASURED.search(complaint[0].text))
        and not starving(case)
    ):
        title = "the measured bandwidth is far below what is expected"
        few = [*case.env.get("NCCL_IB_HCA", ())[:2], *case.hits("net-ib-using")[:1]]  # fewer adapters than there are
        few += case.hits("no-net-plugin")[:1] if case.sockets else []  # without which NCCL does not use a cloud's
        proof = [*complaint[:3], *rows[-2:], *few]
        yield Candidate("net.slow", 0.6 if rows or case.between_hosts else 0.52, title, proof)


SOCKET_INTERFACE = re.compile(r"\[\d+\]([\w.-]+):")
_TUNNEL = re.compile(r"tailscale|wg\d|zt\w|tun\d|tap\d|utun|ppp\d|nebula|netmaker|vpn")


def _over_sockets(case: Case, rows: list[Hit], best: float) -> Iterable[Candidate]:
    complaint = communication_complaints(case)
    eight = gpus_per_host(case) >= 8
    proof = [*case.hits("net-socket-using")[:2], *case.sockets[:2], *rows[-2:], *complaint[:2]]
    proof += case.hits("no-net-plugin")[:1]  # without which NCCL does not use a cloud's adapters
    if rows and best < 60 and (eight or _server_gpus(case)):
        title = f"the nodes talk over TCP sockets: {best:.0f} GB/s bus bandwidth at large sizes"
        yield Candidate("net.slow", 0.8, title, proof, hosts=hosts_of(case.sockets))
    elif complaint or (eight and _server_gpus(case) and not rows and not case.has("mnnvl-used")):
        title = "the nodes talk over TCP sockets although these machines have faster networks"
        if tunnels := [name for hit in proof for name in SOCKET_INTERFACE.findall(hit.text) if _TUNNEL.match(name)]:
            title = f"the nodes' data goes over {tunnels[0]}, a tunnel"
        elif complaint:
            told = case.communicating
            share = communication_share(told[-1].text) if told else None
            far = f"{share * 100:.0f} % of a step is communication" if share else "it is far slower than it ought to be"
            title = f"the nodes talk over TCP sockets, and {far}"
        yield Candidate("net.slow", 0.66 if complaint else 0.56, title, proof, hosts=hosts_of(case.sockets))


def _least(case: Case) -> float:
    """The bus bandwidth in GB/s that RDMA between these hosts reaches even if it is set up badly."""
    return max(_ONE_PORT, _TINY * _carried(case)) if _server_gpus(case) else _ANY_VERBS


def _server_gpus(case: Case) -> bool:
    return any(_SERVER_GPU.search(hit.text) for hit in case.hits("gpu-model", "tests-device"))


def gpus_per_host(case: Case) -> int:
    """The most ranks that a host of the job has, by NCCL's count or by its lines."""
    hosts = {(hit.host, hit.groups["rank"]): hit.host for hit in case.hits("nccl-init-start", "nccl-init-complete")}
    told = [int(hit.groups["local"]) for hit in case.hits("nccl-nodes")]
    told += [int(hit.groups["device"]) + 1 for hit in case.hits("tests-device")]
    return max([*told, *Counter(hosts.values()).values()], default=0)


_REDUCED = re.compile(r"\s(?:sum|prod|max|min|avg)\s")
# Parts of what the adapters carry: less than the first is explained by GPUDirect RDMA that is off, less than the second
# needs an explanation on any machine.
_LITTLE, _TINY = 0.4, 0.25
_ADAPTER = re.compile(r"\[\d+\]([\w-]+):\d+/")


def _carried(case: Case) -> float:
    """The bus bandwidth in GB/s that a host's adapters carry in a reduction over hosts, by the rate that a listing names.

    Each GPU uses one adapter at a time; 0 where the rate, or what was measured, is not known, and where the GPUs of a
    host have no NVLink: then PCIe is what they wait for.
    """
    rates = [float(hit.groups["rate"]) / 8 for hit in case.hits("port-rate")]
    rows = case.hits("busbw-row")
    if not rates or not rows or case.has("channel-shm", "tests-in-pairs"):
        return 0.0
    if any("PCIe" in hit.text for hit in case.hits("gpu-model")) or not all(_REDUCED.search(row.text) for row in rows):
        return 0.0
    return min(rates) * min(_adapters_used(case), gpus_per_host(case))


def _adapters_used(case: Case) -> int:
    """The most adapters that NCCL uses on a host."""
    return max((len(set(_ADAPTER.findall(hit.text))) for hit in case.hits("net-ib-using")), default=0)


_SEVERAL = re.compile(
    r"\b(?:[2-9]|\d{2,4}|two|three|four|eight|sixteen) ?[xX]? ?(?:nodes|hosts|servers|machines)\b", re.I
)


@diagnosis
def far_below_the_adapters_told(case: Case) -> Iterable[Candidate]:
    """nccl-tests over several hosts reaches a small part of what the adapters carry that somebody says they have, and nothing
    tells which way the data went."""
    told = [(found, hit) for hit in case.hits("adapters-told") if (found := ADAPTERS_TOLD.search(hit.text))]
    rows = [row for row in slow_rows(case) if _REDUCED.search(row.text)]
    several = case.between_hosts or any(_SEVERAL.search(hit.text) for _, hit in told)
    if not told or not rows or not several or case.has("network-used", "tests-in-pairs", "channel-shm"):
        return
    found, hit = told[0]
    count, rate = found["count"] or found["count_after"], found["rate"] or found["rate_before"]
    carried, best = int(count) * int(rate) / 8, max(map(busbw, rows))
    if best < _TINY * carried:
        title = f"{count} adapters of {rate} Gb/s carry {carried:.0f} GB/s, and {best:.1f} GB/s bus bandwidth are reached; over which network is not told"
        causes = ("net.slow", "ib.gdr", "ib.device-not-found", "env.bad-nccl-var")
        yield from rivals(falling(causes, 0.46, 0.02), title, [hit, *rows[-3:]], slows=True)


_MODEL = re.compile(r"device +\d+ \[[\w:.]+\] (.{3,60})")


def _rails(case: Case) -> list[float]:
    """The rate in Gb/s of the adapter that is sold beside each GPU of these models."""
    models = [find(name[1]) for hit in case.hits("tests-device") if (name := _MODEL.search(hit.text))]
    return [model.rail_gbps for model in models if model and model.rail_gbps]


def _usual(case: Case) -> float:
    """The same by the adapters that these GPUs usually have, one for each; 0 where a host has fewer of them, or other GPUs."""
    used, rates = _adapters_used(case), _rails(case)
    return min(rates) / 8 * used if rates and used >= gpus_per_host(case) else 0.0


_EIGHT = 8  # GPUs of a host that is built for training, with an adapter beside each or each pair
_FEW = 2  # times as many adapters are up: a storage network's beside those of the GPUs are fewer
_UP = re.compile(r"(\S+) port \d+ ==>|NIC\d+: (\S+)")
_AS_ONE = 1.1  # times what the adapters that are used carry


@diagnosis
def few_of_the_adapters(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_HCA names one adapter of a host with several GPUs, or a few, and a listing shows many more that are up; the
    tests between hosts were measured like that."""
    named = case.env.get("NCCL_IB_HCA", [])
    used = {adapter for hit in case.hits("net-ib-using") for adapter in _ADAPTER.findall(hit.text)}
    listed = case.hits("adapter-up") or case.hits("adapter-in-legend")
    up = {found.group(1) or found.group(2) for hit in listed if (found := _UP.search(hit.text))}
    gpus = gpus_per_host(case)
    rows = slow_rows(case)
    if named and rows and case.between_hosts and used < up and len(up) > _FEW * len(used) > 0 and gpus > len(used):
        told = sorted(named, key=lambda hit: hit.signature != "env-echo")
        title = f"NCCL_IB_HCA leaves NCCL {len(used)} of {len(up)} adapters, for {gpus} GPUs of a host"
        proof = [*told[:2], *case.hits("net-ib-using")[:1], *listed[:4], *rows[-2:]]
        yield Candidate("net.slow", 0.62, title, proof)
    elif named and rows and case.between_hosts and gpus >= _EIGHT and 0 < len(used) * _FEW < gpus:
        rate = min(_rails(case), default=0.0) / 8 * len(used)
        if max(map(busbw, rows)) <= _AS_ONE * rate:
            title = f"NCCL_IB_HCA names {len(used)} adapter{'s' * (len(used) > 1)} for {gpus} GPUs of a host, and no more than {rate:.0f} GB/s are reached"
            proof = [*named[:2], *case.hits("net-ib-using")[:1], *rows[-2:]]
            yield Candidate("env.bad-nccl-var", 0.46, title, proof, slows=True)
            yield Candidate("net.slow", 0.44, title, proof, slows=True)


@diagnosis
def peermem(case: Case) -> Iterable[Candidate]:
    """GPUDirect RDMA is off on all HCAs (no peermem, no DMA-BUF, too far from the GPUs), and the program complains of it or of
    speed, or nccl-tests measures a small part of what the adapters used carry: by the rate that a listing names, or by that
    of the adapters that such GPUs are sold with."""
    hits = case.gpudirect_off
    rows = rows_of_run(case, hits)
    best, listed, usual = max(map(busbw, rows), default=0.0), _carried(case), _usual(case)
    carried = listed or usual
    low = rows and best < max(_ONE_PORT, _LITTLE * carried)
    complaint = complaints(case) or case.hits("peermem-looked-for")
    verbs = case.has("net-ib-using") or any("NET/IB" in hit.text for hit in hits)
    if hits and verbs and (low or complaint):
        told = "all traffic goes through host memory"
        if low and carried:
            told = (
                f"{best:.0f} of the {carried:.0f} GB/s that {'the' if listed else 'such servers have'} adapters carry"
            )
        title = f"GPUDirect RDMA is disabled: {told}"
        yield Candidate("ib.gdr", 0.66, title, [*hits, *rows[-2:], *complaint[:2]])


@diagnosis
def gpudirect_on_some_hosts(case: Case) -> Iterable[Candidate]:
    """NCCL uses GPUDirect RDMA on some hosts of the job and does not on others, which slow all of it down: it finds it disabled
    there, or all that they receive goes without. What it sends may go without by the path from the GPU: several others have to
    send with it."""
    used, lacking = hosts_of(case.hits("channel-gdr")), case.hits("gdr-disabled")
    over = [hit for hit in case.hits("channel-net") if "via NET/IB" in hit.text]
    without: list[Hit] = []
    for way, least in (("[receive]", 1), ("[send]", 2)):
        channels = [hit for hit in over if way in hit.text]
        with_it = hosts_of(hit for hit in channels if "/GDRDMA" in hit.text)
        if len(with_it) >= least:
            without += [hit for hit in channels if hit.host not in with_it]
    odd = (hosts_of(lacking) & hosts_of(case.hits("channel-net")) | hosts_of(without)) - used
    if used and odd:
        proof = [hit for hit in (*lacking, *without) if hit.host in odd]
        complaint = complaints(case)
        # Of one host the sentence begins with its name.
        where = f" on {shortened(', '.join(sorted(odd)), 60)}" if len(odd) > 1 else ""
        title = f"GPUDirect RDMA is not used{where}, and on others it is"
        strength = 0.7 if complaint or slow_rows(case) else 0.56
        yield Candidate("ib.gdr", strength, title, [*proof, *case.hits("channel-gdr")[:1], *complaint[:2]], hosts=odd)


_TOO_FAR = re.compile(r"distance \d+ > \d+")


def _same_tests(case: Case) -> list[Hit]:
    """What several runs of a test reached, slowest first: their averages, or the rows of a size, whichever are further apart. A row
    may be of a run on one host: one beside another counts where it is a small part of what the adapters carry."""
    by_size: dict[str, list[Hit]] = {"": case.hits("busbw-average")}
    rows = slow_rows(case)
    if min(map(busbw, rows), default=0.0) < max(_ONE_PORT, _LITTLE * (_carried(case) or _usual(case))):
        for row in rows:
            by_size.setdefault(row.groups["size"], []).append(row)
    told = [sorted(hits, key=busbw) for hits in by_size.values() if hits and min(map(busbw, hits)) > 0]
    return max(told, key=lambda hits: busbw(hits[-1]) / busbw(hits[0]), default=[])


@diagnosis
def faster_with_gpudirect(case: Case) -> Iterable[Candidate]:
    """NCCL leaves GPUDirect RDMA out because GPU and adapter are far apart, or a topology file is not there to say that they are
    near, and a second run of the same test is much faster."""
    far = [hit for hit in case.hits("gdr-disabled") if _TOO_FAR.search(hit.text)]
    runs = _same_tests(case)
    if far and runs and busbw(runs[-1]) > _MUCH_FASTER * busbw(runs[0]):
        unread = case.hits("topology-file")[:2]
        why = "GPU and adapter are on different sockets"
        if unread:
            why = "the topology file that NCCL was given cannot be read"
        title = f"without GPUDirect RDMA {busbw(runs[0]):g} GB/s, in another run {busbw(runs[-1]):g} GB/s: {why}"
        proof = [*unread, *far[:3], runs[0], runs[-1]]
        if unread:
            yield Candidate("env.bad-nccl-var", 0.76, title, proof, *speakers(unread), slows=True)
        yield Candidate("net.slow", 0.68, title, proof, *speakers(far))
        yield Candidate("ib.gdr", 0.5, title, far)


_RATE = re.compile(r"(?<!\d)(\d+(?:\.\d+)?)\s?([KMG])i?(B/s|Bps|bit/s)")
_TIMED = re.compile(r"(\d{7,12}) bytes\D{1,20}?(\d+(?:\.\d+)?) ?ms")
_TOOK = re.compile(r"(\d+(?:\.\d+)?) ?([MG])i?B in (\d+(?:\.\d+)?) ?(m?s)\b")
_BY_ALL = re.compile(r"all.?(?:reduce|gather|to.?all)|reduce.?scatter|broadcast|collective", re.I)
_COLLECTIVE = re.compile(r"all.?reduce|all.?gather|broadcast|bus|algbw|bandwidth|collective|rank|reduce", re.I)
_TRANSFER = re.compile(
    r"load|writ|wrote|\bread|\bcop(?:y|ied)|\bsav|checkpoint|\bs3\b|disk|fetch|stag(?:e|ing)|dataset", re.I
)
_GIGABIT_ETHERNET, _LESS = 130.0, 50.0  # MB/s: what it carries, and what proves as much in a single line


def _rates(hit: Hit) -> list[float]:
    """The rates in MB/s that a line tells, or by its bytes and the time they took; small messages take as long as large ones."""
    if timed := [float(size) / 1000 / float(time) for size, time in _TIMED.findall(hit.text) if float(time)]:
        return timed
    if _TRANSFER.search(hit.text) or not _COLLECTIVE.search(hit.text):
        return []
    took = [
        (float(size) * SCALE[prefix] / 1e6, float(time) / (1000 if unit == "ms" else 1))
        for size, prefix, time, unit in _TOOK.findall(hit.text)
    ]
    if took and _BY_ALL.search(hit.text):
        return [size / seconds for size, seconds in took if seconds and size >= 1]
    told = _RATE.findall(hit.text)
    return [float(number) * SCALE[prefix] / (8e6 if unit == "bit/s" else 1e6) for number, prefix, unit in told]


@diagnosis
def slow_measured_collectives(case: Case) -> Iterable[Candidate]:
    """A program measures less of its collectives than gigabit Ethernet gives, and nothing failed.

    The rate of an upload, a copy or a file is none of collectives.
    """
    told = [(rate, hit) for hit in case.hits("measured-rate", "timed-collective") for rate in _rates(hit)]
    several = len(told) > 1 or (told and case.count("measured-rate") > 1)  # lines of one shape are kept once
    best = max((rate for rate, _ in told), default=0.0)
    failed = case.summary.tracebacks or case.has(*GAVE_UP)
    if told and best < (_GIGABIT_ETHERNET if several else _LESS) and not failed:
        title = f"collectives run at {best:.3g} MB/s: a slow link"
        yield Candidate("net.slow", 0.64, title, [hit for _, hit in told][:8])
