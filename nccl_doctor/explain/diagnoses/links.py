"""Links that carry less than others of their kind, or than they ought to: lanes, rates, bit errors, lost packets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import complaints
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import by_file, hosts_of, just_below, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.signatures.facts import BUSBW_ROW
from nccl_doctor.explain.signatures.infiniband import PORT_RATE
from nccl_doctor.explain.signatures.links import BIT_ERRORS, RECOVERED, SLOT
from nccl_doctor.facts.gpu_models import find

_HALF = 0.5  # of its kind's: no noise, and a kind of its own where it is on purpose
_QUARTER = 0.25
_PORT = 24  # lines that ibstat and ibstatus print of a port


def _above(hit: Hit, headings: list[Hit]) -> Hit | None:
    """The last of these lines before this one, of the same listing."""
    near = [head for head in headings if just_below(hit, head, _PORT)]
    return max(near, key=place, default=None)


@diagnosis
def port_of_lower_rate(case: Case) -> Iterable[Candidate]:
    """ibstat or ibstatus: an adapter's port came up with a lower rate than the same adapter of other hosts, or with one lane.

    Ports of Ethernet have as many lanes as their speed needs, and an adapter of another purpose is slower on each host.
    """
    ethernet = {place(port) for hit in case.hits("port-ethernet") if (port := _above(hit, case.hits("port-rate")))}
    down = {(hit.file, hit.line + below) for hit in case.hits("port-state-down") for below in (1, 2, 3)}
    ports: dict[str, list[tuple[int, int, Hit]]] = {}
    for hit in case.hits("port-rate"):
        found, head = PORT_RATE.search(hit.text), _above(hit, case.hits("port-listed"))
        if found and place(hit) not in ethernet | down:  # one that is down tells the lowest rate of all
            rate, lanes = int(found[1] or found[2]), int(found[3] or 0)
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
            yield Candidate("net.slow", 0.72, title, [*proof[:4], *heads[:4], *others], hosts=hosts_of(proof))


_SPEED = re.compile(r"(?<!\S)([\w.-]{1,80}):\s+Speed: (\d{1,7})Mb/s")  # with the host, as pdsh and clush put it before


@diagnosis
def interface_of_lower_speed(case: Case) -> Iterable[Candidate]:
    """ethtool on several hosts, of one interface each: one came up at half the speed of the others, or less."""
    told: dict[str, dict[float, Hit]] = {}
    for hit in case.hits("link-speed"):
        named = _SPEED.search(hit.text)
        if named:
            told.setdefault(named[1], {}).setdefault(float(named[2]), hit)
    speeds = [pair for listed in told.values() for pair in listed.items()]
    if len(told) > 2 and len(speeds) == len(told):
        usual = statistics.median(speed for speed, _ in speeds)
        slow = [(speed, hit) for speed, hit in speeds if 0 < speed <= _HALF * usual]
        if slow:
            title = f"the interface came up at {slow[0][0]:.0f} Mb/s, that of the other hosts at {usual:.0f} Mb/s"
            proof = [*(hit for _, hit in slow), *(hit for speed, hit in speeds if speed == usual)][:6]
            odd = {host for host, listed in told.items() if any(speed <= _HALF * usual for speed in listed)}
            yield Candidate("net.slow", 0.7, title, proof, hosts=odd)


def _slots(case: Case, name: str) -> list[tuple[float, Hit]]:
    """What the kernel tells of the PCIe bandwidth of network adapters, in Gb/s."""
    return [(float(found[1]), hit) for hit in case.hits(name) if (found := SLOT.search(hit.text))]


@diagnosis
def adapter_in_a_narrow_slot(case: Case) -> Iterable[Candidate]:
    """The kernel finds less PCIe bandwidth for an adapter than it could use, and its neighbours of the same kind have all of it."""
    for has, hit in _slots(case, "pcie-limited"):
        could, complaint = float(hit.groups["capable"]), complaints(case)
        others = [other for whole, other in _slots(case, "pcie-whole") if whole == could]
        if has <= _HALF * could and (others or complaint):
            title = f"an adapter has {has:.0f} Gb/s of PCIe ({hit.groups['speed']}), and could use {could:.0f} Gb/s"
            proof = [hit, *others[:1], *complaint[:2], *case.hits("busbw-row")[-1:]]
            yield Candidate("net.slow", 0.68, title, proof, hosts=hosts_of([hit]))


def _cells(heading: str, row: str) -> dict[str, str]:
    """A row of nvidia-smi's CSV by its columns' names, which the heading tells, or the command."""
    asked = heading.partition("--query-gpu=")[2].split()
    names = asked[0].split(",") if asked else heading.split(",")
    # What others put before a line stands before the first cell.
    return {name.strip(): cell.strip() for name, cell in zip(names[::-1], row.split(",")[::-1], strict=False)}


_BUSY = 50  # percent of time: an idle GPU may give up lanes


def _lanes(case: Case) -> Iterable[tuple[str, int, int, Hit]]:
    """GPU, the lanes of its PCIe link, the most that a neighbour has (or that itself could have, if it is busy), and the line."""
    headings = case.hits("pcie-table")
    for head in headings:
        rows = [(_cells(head.text, row.text), row) for row in below(head, headings, case.hits("pcie-table-rows"))]
        told = [
            (cells, int(lanes), row)
            for cells, row in rows
            if (lanes := cells.get("pcie.link.width.current", "")).isdecimal()
        ]
        most = max((now for _, now, _ in told), default=0)
        for cells, now, row in told:
            could, load = cells.get("pcie.link.width.max", ""), _USED.match(_load(cells))
            busy = could.isdecimal() and load and int(load[1]) >= _BUSY
            yield cells.get("index", "").rpartition(" ")[2], now, int(could) if busy else most, row
    for listed in by_file(case.hits("pcie-lanes")).values():
        most = max(int(hit.groups["lanes"]) for hit in listed)
        yield from (("", int(hit.groups["lanes"]), most, hit) for hit in listed)


_USED = re.compile(r"(\d{1,3})(?: ?%)?$")


def _load(cells: dict[str, str]) -> str:
    return next((cell for name, cell in cells.items() if name.startswith("utilization.gpu")), "")


@diagnosis
def gpu_on_few_lanes(case: Case) -> Iterable[Candidate]:
    """nvidia-smi: the PCIe link of a GPU has a fourth of the lanes of its neighbours, or fewer (a riser, a wrong slot, a bad
    contact). Half of them is usual on boards with several slots. Superchips reach their CPU by another way."""
    models = [find(found[1]) for hit in case.hits("gpu-model") if (found := _NVIDIA.search(hit.text))]
    few = [(gpu, now, could, hit) for gpu, now, could, hit in _lanes(case) if 0 < now <= _QUARTER * could]
    if few and not any(model and model.c2c for model in models):
        gpu, now, could, _ = few[0]
        title = f"{f'GPU {gpu}' if gpu else 'a GPU'} is on {now} PCIe lane{'s' * (now > 1)} where {could} could be: all that it exchanges goes over them"
        hits = [hit for *_, hit in few]
        yield Candidate("net.slow", 0.7, title, [*hits[:6], *case.hits("pcie-table")[:1]], hosts=hosts_of(hits))


_GENERATION = re.compile(r"pcie\.link\.gen\.(?:gpu)?current\b")
_FIRST, _LATER = 1, 3  # generations of PCIe: a quarter of the speed, or less


@diagnosis
def gpu_on_first_generation(case: Case) -> Iterable[Candidate]:
    """nvidia-smi: a GPU with work to do uses the first generation of PCIe, and could use a later one. Idle ones save power so."""
    headings = case.hits("pcie-table")
    for head in headings:
        for row in below(head, headings, case.hits("pcie-table-rows")):
            cells = _cells(head.text, row.text)
            now = next((cell for name, cell in cells.items() if _GENERATION.match(name)), "")
            could, load = cells.get("pcie.link.gen.max", ""), _USED.match(_load(cells))
            works = load and int(load[1]) >= _BUSY
            if works and now.isdecimal() and could.isdecimal() and int(now) == _FIRST and int(could) >= _LATER:
                title = f"a GPU at work is on PCIe of generation {now} where {could} could be: all that it exchanges goes over it"
                yield Candidate(
                    "net.slow", 0.66, title, [row, head, *complaints(case)[:1]], hosts=hosts_of([row]), slows=True
                )
                return


_NVIDIA = re.compile(r"NVIDIA ([A-Z].{1,40})")
_BER = 1e-12  # ib.ber of rules/thresholds.yaml
_RECOVERED = 5  # times a link had to be trained again: ib.link-downed.total there


@diagnosis
def link_with_bit_errors(case: Case) -> Iterable[Candidate]:
    """mlxlink: more bits are wrong after error correction than on any good link. What is lost is sent again, and the job waits.

    The counters of ibqueryerrors and perfquery may be old: beside such a rate, or a complaint, they tell which port it is.
    """
    rates = [(found[1], hit) for hit in case.hits("bit-errors") if (found := BIT_ERRORS.search(hit.text))]
    bad = [(rate, hit) for rate, hit in rates if float(rate) > _BER]
    counted = [
        hit
        for hit in case.hits("fabric-errors")
        if (found := RECOVERED.search(hit.text)) and int(found[1]) >= _RECOVERED
    ]
    told = bad or (counted and complaints(case))
    if told:
        what = f"has a bit error rate of {bad[0][0]}" if bad else "was recovered again and again"
        title = f"a link {what}: what it garbles is sent again"
        hits = [hit for _, hit in bad]
        yield Candidate("net.slow", 0.68, title, [*counted[:3], *hits[:3], *complaints(case)[:2]], hosts=hosts_of(hits))


_COLLAPSED = 3.0  # times lower than its best: larger messages are never slower by much on a sound fabric
_LARGE = 1 << 20


def _tables(rows: list[Hit]) -> Iterable[list[tuple[int, float, Hit]]]:
    """The tables of nccl-tests: each begins with a size that is not larger than the one before."""
    for hits in by_file(rows).values():
        table: list[tuple[int, float, Hit]] = []
        for hit in hits:
            found = BUSBW_ROW.search(hit.text)
            size = int(found["size"]) if found else 0
            if found and table and size <= table[-1][0]:
                yield table
                table = []
            if found:
                table.append((size, float(found["busbw"]), hit))
        yield table


@diagnosis
def collapse_at_large_sizes(case: Case) -> Iterable[Candidate]:
    """nccl-tests between hosts: large messages get a third of the bandwidth of smaller ones, or less. Packets are lost where
    several senders fill a switch's buffers: RoCE without PFC or ECN, or another set-up of the two ends."""
    if case.nodes == 1 or (
        not case.between_hosts and len({hit.groups["host"] for hit in case.hits("tests-device")}) == 1
    ):
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
_PERFTEST_ROW = re.compile(r"(?:^|\s)(\d+)\s+\d+\s+\d+\.\d+\s+(\d+\.\d+)(?!\S)")

_OSU_ROW = re.compile(r"(?:^|\s)(\d{1,12})\s+(\d{1,9}\.\d\d)\s*$")


@diagnosis
def far_below_the_link(case: Case) -> Iterable[Candidate]:
    """perftest, or osu_bw, moves a fourth of what the link carries, or less, by the speed and the PCIe bandwidth that listings name."""
    headings = case.hits("perftest-table")
    tests = [
        (float(found[2]) * _GBIT.get(head.groups["unit"].partition("]")[0], 0.0), row)
        for head in headings
        for row in below(head, headings, case.hits("perftest-table-rows"))
        if (found := _PERFTEST_ROW.search(row.text)) and int(found[1]) >= 1 << 16
    ]
    osu = case.hits("osu-table")
    tests += [
        (float(found[2]) * _GBIT["MB/sec"], row)
        for head in osu
        for row in below(head, osu, case.hits("osu-table-rows"))
        if (found := _OSU_ROW.search(row.text)) and int(found[1]) >= 1 << 16
    ]
    speeds = [
        (float(hit.groups.get("speed") or 0) / 1000, hit) for hit in case.hits("link-speed") if "Mb/s" in hit.text
    ]
    speeds += [
        (float(found[1] or found[2]), hit) for hit in case.hits("port-rate") if (found := PORT_RATE.search(hit.text))
    ]
    slots = _slots(case, "pcie-whole") + _slots(case, "pcie-limited")
    links = [(speed, hit) for speed, hit in speeds if speed > 0]
    best, row = max(tests, key=lambda test: test[0], default=(0.0, None))
    speed, listed = min((*links, *slots), key=lambda link: link[0], default=(0.0, None))
    if row and listed and links and 0 < best < _QUARTER * speed:
        title = f"{'RDMA itself' if headings else 'MPI'} moves {best:.3g} of the {speed:.3g} Gb/s that the link carries"
        yield Candidate("net.slow", 0.66, title, [row, listed, *headings[:1], *osu[:1], *case.hits("busbw-row")[-1:]])


_PAIR = re.compile(
    r"(?:^|\s)([A-Za-z][\w.-]{0,80}?)\s{0,8}(?:,|<?-{1,3}>|\s)\s{0,8}([A-Za-z][\w.-]{0,80}?)[\s,:]{1,40}(\d{1,6}(?:\.\d{1,6})?)"
    r"(?:\s?G[Bb]\S{0,8})?(?:\s+#.*)?\s*$"
)
_FEWEST = 4  # hosts: of fewer, which one is odd cannot be told
_LOWER = 0.7  # of what the others reach
_ALIKE = 0.85


@diagnosis
def host_slow_in_every_pair(case: Case) -> Iterable[Candidate]:
    """A table of what pairs of hosts reach: all pairs with one host are far slower than all without it, or some are, and no single
    host is in all of these. Which part is slow (an adapter, a cable, a switch, PCIe, settings) such a table does not tell."""
    headings = case.hits("pairs-table")
    for head in headings:
        rows = below(head, headings, case.hits("pairs-table-rows"))
        pairs = [(found[1], found[2], float(found[3]), row) for row in rows if (found := _PAIR.search(row.text))]
        hosts = {host for one, other, _, _ in pairs for host in (one, other)}
        best = max((speed for _, _, speed, _ in pairs), default=0.0)
        slow = [row for _, _, speed, row in pairs if speed < _LOWER * best]
        alike = [speed for _, _, speed, _ in pairs if speed > _ALIKE * best]
        if min(len(slow), len(alike)) > 1 and len(slow) + len(alike) == len(pairs):
            title = f"{len(slow)} of {len(pairs)} pairs of hosts reach less than {_LOWER * best:.3g} GB/s, the others {statistics.median(alike):g}"
            for nth, cause in enumerate(("net.slow", "ib.gdr", "gpu.thermal-power")):
                yield Candidate(cause, 0.42 - 0.02 * nth, title, [*slow[:4], head], slows=True)
        for host in sorted(hosts) if len(hosts) >= _FEWEST else ():
            its = [(speed, row) for one, other, speed, row in pairs if host in (one, other)]
            others = [speed for one, other, speed, _ in pairs if host not in (one, other)]
            if len(its) > 1 and others and max(speed for speed, _ in its) < _LOWER * min(others):
                usual = statistics.median(others)
                title = f"each pair that it is of reaches {max(speed for speed, _ in its):g} GB/s at most, the others {usual:g}"
                yield Candidate("net.slow", 0.7, title, [*(row for _, row in its[:5]), head], hosts={host})
