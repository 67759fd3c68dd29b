"""Links that carry less than others of their kind, or than they ought to: lanes, rates, bit errors, lost packets."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.gpu_listings import gpu_cells
from nccl_doctor.explain.diagnoses.speed import Lack, held_back, weighed
from nccl_doctor.explain.diagnoses.tables import FEWEST, far_below, number, tables
from nccl_doctor.explain.lines import by_file, hosts_of, just_below, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.links import RECOVERED
from nccl_doctor.facts.gpu_models import find

_HALF = 0.5  # of its kind's: no noise, and a kind of its own where it is on purpose
_QUARTER = 0.25
_PORT = 24  # lines that ibstat and ibstatus print of a port


def _above(hit: Hit, headings: list[Hit]) -> Hit | None:
    """The last of these lines before this one, of the same listing."""
    near = [head for head in headings if just_below(hit, head, _PORT)]
    return max(near, key=place, default=None)


def _ports(case: Case) -> Iterator[Lack]:
    """ibstat or ibstatus: an adapter's port came up with a lower rate than the same adapter of other hosts, or with one lane.

    Ports of Ethernet have as many lanes as their speed needs, and an adapter of another purpose is slower on each host.
    """
    ethernet = {place(port) for hit in case.hits("port-ethernet") if (port := _above(hit, case.hits("port-rate")))}
    down = {(hit.file, hit.line + below) for hit in case.hits("port-state-down") for below in (1, 2, 3)}
    ports: dict[str, list[tuple[int, int, Hit]]] = {}
    for hit in case.hits("port-rate"):
        head = _above(hit, case.hits("port-listed"))
        if place(hit) not in ethernet | down:  # one that is down tells the lowest rate of all
            rate, lanes = int(hit.groups["rate"]), int(hit.groups.get("lanes", 0))
            ports.setdefault(head.groups["device"] if head else "", []).append((rate, lanes, hit))
    fastest = max((rate for listed in ports.values() for rate, _, _ in listed), default=0)
    for device, listed in ports.items():
        usual = statistics.median(rate for rate, _, _ in listed) if device and len(listed) > 2 else 0
        alone = fastest if not usual else 0  # one host: a single lane is a fault where it makes a fourth of the others
        slow = [
            (rate, lanes, hit)
            for rate, lanes, hit in listed
            if rate <= _HALF * usual or (lanes == 1 and 4 * rate == alone)
        ]
        if slow:
            rate, lanes, _ = slow[0]
            with_lanes = f" with {lanes} lane{'s' * (lanes > 1)}" if lanes else ""
            title = f"a port of {device or 'an adapter'} came up{with_lanes} at {rate} Gb/s, others of its kind at {usual or fastest:g} Gb/s"
            proof = [hit for _, _, hit in slow]
            heads = [head for hit in proof if (head := _above(hit, case.hits("port-listed")))]
            others = [hit for rate, _, hit in listed if rate == usual][:1]
            yield Lack(title, proof[:4], 0.72, 0.72, [*heads[:4], *others])


_SPEED = re.compile(r"(?<!\S)([\w.-]{1,80}):\s+Speed: (\d{1,7})Mb/s")  # with the host, as pdsh and clush put it before


@diagnosis
def interface_of_lower_speed(case: Case) -> Iterable[Candidate]:
    """ethtool on several hosts, of one interface each: one came up at half the speed of the others, or less."""
    told: dict[str, list[tuple[float, Hit]]] = {}
    for hit in case.hits("link-speed"):
        if named := _SPEED.search(hit.text):
            told.setdefault(named[1], []).append((float(named[2]), hit))
    speeds = {host: listed[0] for host, listed in told.items()}
    slow, usual = far_below({host: speed for host, (speed, _) in speeds.items()}, _HALF, 3)
    if slow and all(len({speed for speed, _ in listed}) == 1 for listed in told.values()):
        title = f"the interface came up at {speeds[slow[0]][0]:.0f} Mb/s, that of the other hosts at {usual:.0f} Mb/s"
        proof = [speeds[host][1] for host in slow] + [hit for speed, hit in speeds.values() if speed == usual]
        yield Candidate("net.slow", 0.7, title, proof[:6], hosts=set(slow))


@diagnosis
def port_of_lower_speed(case: Case) -> Iterable[Candidate]:
    """NCCL found a port of half the speed, or less, that the same port of all other hosts has: each ring waits for its rail.

    A slower adapter for storage or management is one on every host.
    """
    ports: dict[str, dict[str, tuple[float, Hit]]] = {}
    for hit in case.hits("port-of-nccl"):
        if hit.host:
            name = f"{hit.groups['device']}:{hit.groups['port']}"
            ports.setdefault(name, {})[hit.host] = float(hit.groups["speed"]), hit
    for name, by_host in ports.items():
        slow, usual = far_below({host: speed for host, (speed, _) in by_host.items()}, _HALF, 3)
        fast = [hit for speed, hit in by_host.values() if speed == usual]
        if slow and len(slow) + len(fast) == len(by_host):
            title = f"port {name} came up at {by_host[slow[0]][0] / 1000:g} Gb/s, that of the other hosts at {usual / 1000:g} Gb/s"
            yield Candidate(
                "net.slow", 0.72, title, [*(by_host[host][1] for host in slow), *fast[:2]][:6], hosts=set(slow)
            )


def _slots(case: Case, name: str) -> list[tuple[float, Hit]]:
    """What the kernel tells of the PCIe bandwidth of network adapters, in Gb/s."""
    return [(float(hit.groups["gbits"]), hit) for hit in case.hits(name)]


def _narrow_slots(case: Case) -> Iterator[Lack]:
    """The kernel finds less PCIe bandwidth for an adapter than it could use, and its neighbours of the same kind have all of it."""
    for has, hit in _slots(case, "pcie-limited"):
        could = float(hit.groups["capable"])
        others = [other for whole, other in _slots(case, "pcie-whole") if whole == could]
        if has <= _HALF * could:
            title = f"an adapter has {has:.0f} Gb/s of PCIe ({hit.groups['speed']}), and could use {could:.0f} Gb/s"
            yield Lack(title, [hit], 0.68, 0.68 if others else 0.0, [*others[:1], *case.hits("busbw-row")[-1:]])


_BUSY = 50  # percent of time: an idle GPU may give up lanes, and power


def _of_gpus(case: Case) -> Iterable[list[tuple[dict[str, str], Hit]]]:
    """The tables in which nvidia-smi tells of PCIe links, each row by the names of its columns."""
    for head, rows in tables(case, "pcie-table"):
        yield [(gpu_cells(head.text, row.text), row) for row in rows]


def _works(told: dict[str, str]) -> bool:
    load = next((cell for name, cell in told.items() if name.startswith("utilization.gpu")), "")
    found = re.match(r"(\d{1,3})(?: ?%)?$", load)
    return found is not None and int(found[1]) >= _BUSY


def _lanes(case: Case) -> Iterable[tuple[str, int, int, Hit]]:
    """GPU, the lanes of its PCIe link, the most that a neighbour has (or that itself could have, if it is busy), and the line."""
    for listed in _of_gpus(case):
        width = "pcie.link.width.current"
        known = [(int(told[width]), told, row) for told, row in listed if told.get(width, "").isdecimal()]
        most = max((now for now, _, _ in known), default=0)
        for now, told, row in known:
            could = number(told.get("pcie.link.width.max", "")) if _works(told) else 0.0
            yield told.get("index", "").rpartition(" ")[2], now, int(could) or most, row
    for hits in by_file(case.hits("pcie-lanes")).values():
        lanes = [int(hit.groups["lanes"]) for hit in hits]
        yield from (("", now, max(lanes), hit) for now, hit in zip(lanes, hits, strict=True))


def _few_lanes(case: Case) -> Iterator[Lack]:
    """nvidia-smi: the PCIe link of a GPU has a fourth of the lanes of its neighbours, or fewer (a riser, a wrong slot, a bad
    contact). Half of them is usual on boards with several slots. Superchips reach their CPU by another way."""
    models = [find(found[1]) for hit in case.hits("gpu-model") if (found := _NVIDIA.search(hit.text))]
    few = [(gpu, now, could, hit) for gpu, now, could, hit in _lanes(case) if 0 < now <= _QUARTER * could]
    if few and not any(model and model.c2c for model in models):
        gpu, now, could, _ = few[0]
        title = f"{f'GPU {gpu}' if gpu else 'a GPU'} is on {now} PCIe lane{'s' * (now > 1)} where {could} could be: all that it exchanges goes over them"
        yield Lack(title, [hit for *_, hit in few][:6], 0.7, 0.7, case.hits("pcie-table")[:1])


_GENERATION = re.compile(r"pcie\.link\.gen\.(?:gpu)?current\b")
_FIRST, _LATER = 1, 3  # generations of PCIe: a quarter of the speed, or less


def _first_generation(case: Case) -> Iterator[Lack]:
    """nvidia-smi: a GPU with work to do uses the first generation of PCIe, and could use a later one. Idle ones save power so."""
    for told, row in (each for listed in _of_gpus(case) for each in listed):
        now = next((cell for name, cell in told.items() if _GENERATION.match(name)), "")
        could = told.get("pcie.link.gen.max", "")
        if _works(told) and now == str(_FIRST) and number(could) >= _LATER:
            title = f"a GPU at work is on PCIe of generation {now} where {could} could be: all that it exchanges goes over it"
            yield Lack(title, [row], 0.66, 0.66, case.hits("pcie-table")[:1])


def _width(case: Case) -> Iterator[Lack]:
    """What nvidia-smi, DCGM or the kernel say of a PCIe link that a GPU at rest may give up."""
    if narrow := case.hits("pcie-width"):
        yield Lack(f"a PCIe link runs with {narrow[0].groups['width']} lanes only", narrow[:3], 0.66)
    if lowest := case.hits("pcie-saves-power"):
        title = "a PCIe link is at the speed of its first generation, which is a GPU's at rest only"
        yield Lack(title, lowest[:3], 0.46)


_NVIDIA = re.compile(r"NVIDIA ([A-Z].{1,40})")
_BER = 1e-12  # ib.ber of rules/thresholds.yaml
_RECOVERED = 5  # times a link had to be trained again: ib.link-downed.total there


def _bit_errors(case: Case) -> Iterator[Lack]:
    """mlxlink: more bits are wrong after error correction than on any good link. The counters of ibqueryerrors and perfquery may be
    old: beside such a rate, or a complaint, they tell which port it is."""
    bad = [hit for hit in case.hits("bit-errors") if float(hit.groups["rate"]) > _BER]
    counted = [
        hit
        for hit in case.hits("fabric-errors")
        if (found := RECOVERED.search(hit.text)) and int(found[1]) >= _RECOVERED
    ]
    if bad:
        title = f"a link has a bit error rate of {bad[0].groups['rate']}: what it garbles is sent again"
        yield Lack(title, bad[:3], 0.68, 0.68, counted[:3])
    elif counted:
        yield Lack("a link was recovered again and again: what it garbles is sent again", counted[:3], 0.68)


_NEXT = 3  # lines from a port's lanes to its speed
_ONE_LANE = re.compile(r"Width\s+: 1x|active_width:\s+1X")
_FOUR = re.compile(r"active_width:\s+4X")


def _one_lane(case: Case) -> Iterator[Lack]:
    """mlxlink: a port of InfiniBand came up with one of its four lanes. ibv_devinfo: one lane, and other ports have four at the same
    rate of a lane; those of Ethernet have as many as their speed needs."""
    lanes, speeds = case.hits("port-lanes"), case.hits("port-speed")

    def speed_of(hit: Hit) -> Hit | None:
        near = [one for one in speeds if one.file == hit.file and abs(one.line - hit.line) <= _NEXT]
        return min(near, key=lambda one: abs(one.line - hit.line), default=None)

    four = {speed.text.strip() for hit in lanes if _FOUR.search(hit.text) and (speed := speed_of(hit))}
    for hit in lanes:
        speed = speed_of(hit) if _ONE_LANE.search(hit.text) else None
        if speed and ("IB-" in speed.text or speed.text.strip() in four):
            title = f"a port came up with one lane of four ({' '.join(speed.text.split())})"
            yield Lack(title, [hit, speed], 0.66, 0.66)


_TEST_ROW = re.compile(r"(?:^|\s)(\d{8,})\s+(\d+(?:\.\d+)?)\s*$")
_TWO_LANES = 2.0  # GB/s: what two lanes of PCIe 3.0 carry


def _slow_copies(case: Case) -> Iterator[Lack]:
    """bandwidthTest: large copies between a GPU and the host run at what one or two lanes of PCIe carry."""
    for row in case.hits("copy-test-rows"):
        found = _TEST_ROW.search(row.text)
        if found and 0 < float(found[2]) <= _TWO_LANES:
            title = f"copies between a GPU and the host run at {found[2]} GB/s: it has a lane of PCIe or two"
            yield Lack(title, [row], 0.66, 0.66)


_OF_LINKS = (_ports, _narrow_slots, _few_lanes, _first_generation, _width, _bit_errors, _one_lane, _slow_copies)


@diagnosis
def links_below_their_kind(case: Case) -> Iterable[Candidate]:
    """A link carries less than others of its kind, or than it could: a port of an adapter came up at a lower rate than that adapter's
    elsewhere, or with one lane of four; an adapter or a GPU has fewer lanes of PCIe, or an older generation, than its neighbours or
    than itself could have (a riser, a wrong slot, a bad contact); more bits are wrong than on any good link. What a GPU gives up at
    rest, and counters, which may be old, count beside a sign that the job is slow only."""
    lacks = itertools.chain.from_iterable(source(case) for source in _OF_LINKS)
    yield from weighed(case, "net.slow", lacks, held_back)


_COLLAPSED = 3.0  # times lower than its best: larger messages are never slower by much on a sound fabric
_LARGE = 1 << 20


def _tables(rows: list[Hit]) -> Iterable[list[tuple[int, float, Hit]]]:
    """The tables of nccl-tests: each begins with a size that is not larger than the one before."""
    for hits in by_file(rows).values():
        table: list[tuple[int, float, Hit]] = []
        for hit in hits:
            size = int(hit.groups["size"])
            if table and size <= table[-1][0]:
                yield table
                table = []
            table.append((size, float(hit.groups["busbw"]), hit))
        yield table


@diagnosis
def collapse_at_large_sizes(case: Case) -> Iterable[Candidate]:
    """nccl-tests between hosts: large messages get a third of the bandwidth of smaller ones, or less. Packets are lost where
    several senders fill a switch's buffers: RoCE without PFC or ECN, or another set-up of the two ends."""
    if case.nodes == 1:
        return
    lost = case.hits("packets-lost")
    for table in _tables(case.hits("busbw-row")):
        best = max(table, key=lambda row: row[1], default=None)
        after = [row for row in table if best and row[0] > best[0] and row[0] >= _LARGE]
        if best and best[1] > 1 and len(after) > 1 and all(_COLLAPSED * busbw < best[1] for _, busbw, _ in after[-2:]):
            title = f"the bandwidth collapses from {best[1]:g} to {after[-1][1]:g} GB/s at large messages"
            title += ": RoCE packets are lost" * bool(lost)
            proof = [best[2], *(hit for *_, hit in after[-2:]), *lost[:3], *case.hits("net-ib-using")[:1]]
            yield Candidate("net.slow", 0.74 if lost else 0.66, title, proof, hosts=hosts_of(lost))
            return


_GBIT = {"Gb/sec": 1.0, "MB/sec": 0.008, "MiB/sec": 0.00839}
_LARGE_MESSAGE = 1 << 16
# Heading, rows of bytes and rate, and who moved them.
_TESTS = (
    ("perftest-table", re.compile(r"(?:^|\s)(\d+)\s+\d+\s+\d+\.\d+\s+(\d+\.\d+)(?!\S)"), "RDMA itself"),
    ("osu-table", re.compile(r"(?:^|\s)(\d{1,12})\s+(\d{1,9}\.\d\d)\s*$"), "MPI"),
)


@diagnosis
def far_below_the_link(case: Case) -> Iterable[Candidate]:
    """perftest, or osu_bw, moves a fourth of what the link carries, or less, by the speed and the PCIe bandwidth that listings name."""
    tests = [
        (float(found[2]) * _GBIT.get(head.groups.get("unit", "MB/sec").partition("]")[0], 0.0), who, [row, head])
        for name, pattern, who in _TESTS
        for head, rows in tables(case, name)
        for row in rows
        if (found := pattern.search(row.text)) and int(found[1]) >= _LARGE_MESSAGE
    ]
    links = [(float(hit.groups.get("speed") or 0) / 1000, hit) for hit in case.hits("link-speed") if "Mb/s" in hit.text]
    links += [(float(hit.groups["rate"]), hit) for hit in case.hits("port-rate")]
    links = [(speed, hit) for speed, hit in links if speed > 0]
    slots = _slots(case, "pcie-whole") + _slots(case, "pcie-limited")
    if tests and links:
        best, who, measured = max(tests, key=lambda test: test[0])
        speed, listed = min((*links, *slots), key=lambda link: link[0])
        if 0 < best < _QUARTER * speed:
            title = f"{who} moves {best:.3g} of the {speed:.3g} Gb/s that the link carries"
            yield Candidate("net.slow", 0.66, title, [*measured, listed, *case.hits("busbw-row")[-1:]])


_PAIR = re.compile(
    r"(?:^|\s)([A-Za-z][\w.-]{0,80}?)\s{0,8}(?:,|<?-{1,3}>|\s)\s{0,8}([A-Za-z][\w.-]{0,80}?)[\s,:]{1,40}(\d{1,6}(?:\.\d{1,6})?)"
    r"(?:\s?G[Bb]\S{0,8})?(?:\s+#.*)?\s*$"
)
_LOWER = 0.7  # of what the others reach
_ALIKE = 0.85


@diagnosis
def host_slow_in_every_pair(case: Case) -> Iterable[Candidate]:
    """A table of what pairs of hosts reach: all pairs with one host are far slower than all without it, or some are, and no single
    host is in all of these. Which part is slow (an adapter, a cable, a switch, PCIe, settings) such a table does not tell."""
    for head, rows in tables(case, "pairs-table"):
        pairs = [({found[1], found[2]}, float(found[3]), row) for row in rows if (found := _PAIR.search(row.text))]
        hosts = sorted({host for ends, _, _ in pairs for host in ends})
        best = max((speed for _, speed, _ in pairs), default=0.0)
        slow = [row for _, speed, row in pairs if speed < _LOWER * best]
        alike = [speed for _, speed, _ in pairs if speed > _ALIKE * best]
        if min(len(slow), len(alike)) > 1 and len(slow) + len(alike) == len(pairs):
            title = f"{len(slow)} of {len(pairs)} pairs of hosts reach less than {_LOWER * best:.3g} GB/s, the others {statistics.median(alike):g}"
            causes = ("net.slow", "ib.gdr", "gpu.thermal-power")
            yield from rivals(falling(causes, 0.42, 0.02), title, [*slow[:4], head], slows=True)
        for host in hosts if len(hosts) >= FEWEST else ():
            its = [(speed, row) for ends, speed, row in pairs if host in ends]
            others = [speed for ends, speed, _ in pairs if host not in ends]
            most = max(speed for speed, _ in its)
            if len(its) > 1 and others and most < _LOWER * min(others):
                usual = statistics.median(others)
                title = f"each pair that it is of reaches {most:g} GB/s at most, the others {usual:g}"
                yield Candidate("net.slow", 0.7, title, [*(row for _, row in its[:5]), head], hosts={host})


_P2P_ROW = re.compile(r"(?:^|\s)\d+((?:\s+\d+\.\d+)+)\s*$")


def _matrix(rows: list[Hit]) -> list[tuple[Hit, list[float]]]:
    return [(row, [float(cell) for cell in found[1].split()]) for row in rows if (found := _P2P_ROW.search(row.text))]


@diagnosis
def peer_to_peer_is_slower(case: Case) -> Iterable[Candidate]:
    """p2pBandwidthLatencyTest moves less with peer-to-peer than without: it is redirected (ACS, IOMMU, a virtual machine)."""
    for (off, without), (on, with_p2p) in itertools.pairwise(tables(case, "p2p-bandwidth")):
        if (off.groups["state"], on.groups["state"]) != ("Disabled", "Enabled") or off.file != on.file:
            continue
        proof = []
        for gpu, ((row, speeds), (other, by_host)) in enumerate(zip(_matrix(with_p2p), _matrix(without), strict=False)):
            pairs = [pair for at, pair in enumerate(zip(speeds, by_host, strict=False)) if at != gpu]
            if any(speed < _HALF * host for speed, host in pairs):
                proof += [row, other]
        if proof:
            title = "with peer-to-peer these GPUs move less than half of what they move through host memory: it is redirected"
            yield Candidate("gpu.p2p", 0.88, title, [*proof, on, off], hosts=hosts_of(proof))
            return
