"""Tables of numbers: a heading says what the columns are, and one row differs from its neighbours."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Iterable

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import topics
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import complaints, too_slow
from nccl_doctor.explain.lines import hosts_of, in_order, place
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.signatures.heat import HOT

_CLOCK = re.compile(r"pclk|SMCLK|clocks\.(?:current\.)?(?:sm|gr(?:aphics)?)\b")
_LOAD = re.compile(r"sm\b|GPUTL|utilization\.gpu\b")
_POWER = re.compile(r"pwr|POWER|power\.draw\b")
_LIMIT = re.compile(r"(?:enforced\.)?power\.limit\b")
_DEFAULT_LIMIT = re.compile(r"power\.default_limit\b")
_HEAT = re.compile(r"tviol")
_TEMPERATURE = re.compile(r"temperature\.gpu\b|gtemp\b|TMPTR")
_FAN = re.compile(r"fan\.speed\b")
_REASONS = re.compile(r"clocks_(?:event|throttle)_reasons\.active\b")
_IDLE_REASON, _SET_REASON = 0x1, 0x2  # of the bit mask of clock event reasons: nothing to do; -lgc or -ac
_INDEX = re.compile(r"(?:.*\s)?(?:index|gpu|#Entity)$")  # behind what a collector put before the heading
_MASK = re.compile(r"0x[0-9A-Fa-f]{16}")
_RULE = re.compile(r"(?<!\S)-{8,}\s*$")  # dshbak puts a host's name between two of them
_QUERY = re.compile(r"--query-gpu=([\w.,]+).*noheader")
_BUSY = 50.0  # percent of time in which a GPU computes: below that it has reason to lower its clock
_ALWAYS_BUSY = 95.0
_FULL = 0.6  # of the power limit: no idle GPU draws that much
_SLOW = 0.6  # of the fastest busy neighbour's clock
_HEATED = 0.85  # the same for a GPU that says that heat slows it down
_HELD_BACK = 50.0  # percent of time in which heat slowed a GPU down


NAMELESS = "a GPU"


class GpuRow(msgspec.Struct):
    """One GPU at one moment."""

    hit: Hit
    load: float | None = (
        None  # percent of time in which it computes, or waits for other GPUs; None if the table does not say
    )
    busy: bool = True  # whether it has work to do
    cap: float = 0.0  # W that it may draw; 0 if the table does not say
    made_for: float = 0.0  # W that its board may draw unless somebody says otherwise; 0 if the table does not say
    clock: float = 0.0  # MHz; 0 if the table does not say
    heat: float = 0.0  # dmon's tviol: a percentage of time, or 1 for yes
    fixed: bool = False  # a setting holds the clock
    temperature: float = 0.0  # degrees Celsius; 0 if the table does not say
    power: float = 0.0  # W; 0 if the table does not say
    fan: float | None = None  # percent of its speed; None if there is none
    host: str = ""
    name: str = NAMELESS


def _cells(text: str, heading: str) -> list[str]:
    """Cells of a row, told apart as its heading's are: dmon's by blanks, others by commas or by several blanks.

    Of a command that prints no heading, the columns are those that it asks for.
    """
    if text == heading and (asked := _QUERY.search(text)):
        return asked.group(1).split(",")
    if "# gpu" in heading:
        return text.split()
    return [
        part.strip()
        for part in (text.split(",") if "," in heading and "#Entity" not in heading else re.split(r"\s{2,}", text))
    ]


def _number(cells: dict[str, str], wanted: re.Pattern[str]) -> float | None:
    for name, cell in cells.items():
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ?(?:W|MHz|%|C))?", cell) if wanted.match(name) else None
        if found:
            return float(found.group(1))
    return None


def _name(cells: dict[str, str]) -> str:
    """Which GPU it is, where the row tells; it may stand first, behind what a collector put before the row."""
    told = (cell.rsplit(None, 1)[-1] for name, cell in cells.items() if _INDEX.match(name) and cell)
    return next((f"GPU {index}" for index in told if index.isdecimal()), NAMELESS)


def _of_query(heading: Hit, rows: Iterable[Hit]) -> Iterable[GpuRow]:
    """The rows below this heading, each of a GPU."""
    names = _cells(heading.text, heading.text)
    lines, host = list(rows), ""
    for at, hit in enumerate(lines):
        if _RULE.search(hit.text):
            host = (
                prefix.parse(lines[at - 1].text).body.strip() if at > 1 and _RULE.search(lines[at - 2].text) else host
            )
            continue
        cells = _cells(hit.text, heading.text)
        by_name = dict(zip(reversed(names), reversed(cells), strict=False))
        clock, load = _number(by_name, _CLOCK), _number(by_name, _LOAD)
        power, limit = _number(by_name, _POWER) or 0.0, _number(by_name, _LIMIT)
        full = bool(limit and power >= _FULL * limit)
        reasons = next(
            (int(cell, 16) for name, cell in by_name.items() if _REASONS.match(name) and _MASK.fullmatch(cell)), 0
        )
        if load is None and not limit and reasons:
            full = not reasons & _IDLE_REASON
        if clock or load is not None or power:
            yield GpuRow(
                hit,
                load,
                full if load is None else load >= _BUSY,
                limit or 0.0,
                _number(by_name, _DEFAULT_LIMIT) or 0.0,
                clock or 0.0,
                _number(by_name, _HEAT) or 0.0,
                bool(reasons & _SET_REASON),
                _number(by_name, _TEMPERATURE) or 0.0,
                power,
                _number(by_name, _FAN),
                hit.host or host,
                _name(by_name),
            )


def below(heading: Hit, headings: list[Hit], rows: list[Hit]) -> list[Hit]:
    """The rows between this heading and the next one."""
    nexts = [other.line for other in headings if other.file == heading.file and other.line > heading.line]
    return [row for row in rows if row.file == heading.file and heading.line < row.line < min(nexts, default=1 << 62)]


def gpu_rows(case: Case) -> list[GpuRow]:
    """What all listings tell of GPUs: nvidia-smi's own table, dmon and queries, gpustat, rocm-smi, amd-smi."""
    headings, rows = case.hits("gpu-table"), case.hits("gpu-table-rows")
    asked = (row for head in headings for row in _of_query(head, below(head, headings, rows)))
    return [*_boxes(case), *asked, *_listed(case)]


def working(case: Case) -> list[GpuRow]:
    """The same of the GPUs that have work to do."""
    return [row for row in gpu_rows(case) if row.busy]


@diagnosis
def slower_clock(case: Case) -> Iterable[Candidate]:
    """nvidia-smi dmon, a query for clocks, or rocm-smi: a GPU with work to do runs at a far lower clock than its neighbours.

    Idle GPUs lower their clocks: only rows that show load, power near the limit, or a reason other than idleness, are compared.
    """
    rows = working(case)
    fastest = max((row.clock for row in rows), default=0.0)
    slow = [
        row
        for row in rows
        if 0 < row.clock < fastest * (_HEATED if row.heat or row.fixed else _SLOW) or row.heat >= _HELD_BACK
    ]
    if not slow:
        return
    others = [row.clock for row in rows if row not in slow and row.clock]
    hosts = {row.host for row in slow if row.host}
    if others and slow[0].clock:
        usual = statistics.median(others)
        where = f" of {hosts.pop()}" if len(hosts) == 1 and len(slow) > 1 else ""
        who = f"{len(slow)} GPUs{where} run" if len(slow) > 1 else "a GPU runs"
        why = " by a setting (nvidia-smi -lgc or -ac)" if all(row.fixed and not row.heat for row in slow) else ""
        title = f"{who} at {slow[0].clock:.0f} MHz under load{why}, {'others' if where else 'its neighbours'} at {usual:.0f} MHz"
    else:
        title = f"heat slows a GPU down in {slow[0].heat:.0f} % of the time"
    yield Candidate(
        "gpu.thermal-power",
        0.82,
        title,
        [*(row.hit for row in slow), *case.hits("gpu-table")[:1]],
        hosts={row.host for row in slow if row.host},
    )


_BOX = re.compile(
    r"\|\s+(?:(?P<fan>\d+)%|N/A|ERR!)\s+(?P<temperature>\d+)C\s+P\d+\s+(?P<power>\d+)W / +(?P<cap>\d+)W .{16,86}?(?P<load>\d+)%\s+\S"
)
_BOX_NAME = re.compile(r"\|\s+(\d+)\s")
_FAN_RUNS = 80.0  # degrees Celsius: a fan that rests when there is little to do has long started, and water is cooler
_HOTTER = 15.0  # degrees Celsius above its neighbours: more than its place in the stream of air makes
_LITTLE_POWER = 0.6  # of what its neighbours draw at the same load


def _boxes(case: Case) -> Iterable[GpuRow]:
    """What nvidia-smi's own table says."""
    names = {(hit.file, hit.line): hit for hit in case.hits("gpu-in-table")}
    for hit in case.hits("power-and-cap"):
        found, named = _BOX.search(hit.text), names.get((hit.file, hit.line - 1))
        name = _BOX_NAME.search(named.text) if named else None
        if found:
            yield _told(hit, found, f"GPU {name.group(1)}" if name else NAMELESS)


_LISTED = (
    re.compile(  # gpustat
        r"\[(?P<index>\d+)\] .{1,60}?\| +(?P<temperature>\d+)\D?C, +(?:(?P<fan>\d+) %, +)?(?P<load>\d+) %"
        r"(?:[^|]{0,40}?, +(?P<power>\d+) / +(?P<cap>\d+) W)? \|"
    ),
    re.compile(  # rocm-smi, whose columns differ from version to version in number and order before the temperature
        r"(?:^|\s)(?P<index>\d{1,3}) .{0,40}? (?P<temperature>\d{1,3}\.\d)\W?[cC]\s+(?P<power>\d{1,5}\.\d)W .{0,40}?(?P<clock>\d{1,5})Mhz\s+\d+Mhz"
        r"\s.{0,40}? (?P<cap>\d{1,5}(?:\.\d)?)W\s+\d+%\s+(?P<load>\d+)%"
    ),
    re.compile(  # amd-smi monitor
        r"(?:^|\s)(?P<index>\d{1,3}) .{0,20}?(?P<power>\d{1,5}) W\s+(?:(?P<cap>\d+) W\s+)?(?P<temperature>\d+) \W?C\s+\d+ \W?C\s+(?P<clock>\d+) MHz"
        r"\s+(?P<load>\d+) ?%"
    ),
)


def _listed(case: Case) -> Iterable[GpuRow]:
    """What gpustat, rocm-smi and amd-smi say."""
    for hit in case.hits("gpu-listed"):
        found = next((found for pattern in _LISTED if (found := pattern.search(hit.text))), None)
        if found:
            yield _told(hit, found, f"GPU {found['index']}")


def _told(hit: Hit, found: re.Match[str], name: str) -> GpuRow:
    told = {key: float(value) for key, value in found.groupdict().items() if value}
    return GpuRow(
        hit,
        told["load"],
        told["load"] >= _BUSY,
        told.get("cap", 0.0),
        clock=told.get("clock", 0.0),
        temperature=told["temperature"],
        power=told.get("power", 0.0),
        fan=told.get("fan"),
        host=hit.host,
        name=name,
    )


@diagnosis
def hotter_gpu(case: Case) -> Iterable[Candidate]:
    """nvidia-smi: a GPU with work to do is as hot as GPUs that slow down, and its fan stands still, or it draws far less than
    its neighbours, or is far hotter than they are: the heat is its own, and holds it back."""
    rows = [row for row in working(case) if row.temperature]
    told = case.has(PACE_LEFT) or (rows and complaints(case))
    for row in rows:
        still = row.fan == 0 and row.temperature >= _FAN_RUNS
        if not still and row.temperature < HOT:
            continue
        others = [
            one
            for one in rows
            if (one.name, one.host) != (row.name, row.host) or row.name == NAMELESS
            if one.temperature <= row.temperature - _HOTTER
        ]
        usual = statistics.median(one.power for one in others) if others else 0.0
        little = 0 < row.power <= _LITTLE_POWER * usual
        if not (still or little or (others and told)):
            continue  # warm, and does its work all the same
        title = f"{row.name} is at {row.temperature:.0f} C" + (" with its fan at 0 %" if still else "")
        if little:
            title += f", and draws {row.power:.0f} W where its neighbours draw {usual:.0f} W"
        elif others:
            title += f", its neighbours at {statistics.median(one.temperature for one in others):.0f} C"
        strength = 0.84 if little else 0.78 if still else 0.6
        hits = [row.hit, *(one.hit for one in others[:3])]
        yield Candidate("gpu.thermal-power", strength, title, hits, hosts={row.host} - {""}, slows=True)
        return


_OF_A_GPU = 60  # lines that nvidia-smi -q prints of a GPU from its load to its clocks
_SLOW_CLOCK = 0.5  # of the highest: no power limit of a sound board makes it so low


@diagnosis
def clock_and_heat_in_full(case: Case) -> Iterable[Candidate]:
    """nvidia-smi -q: a GPU is as hot as GPUs that slow down (its own limit stands beside), or busy all the time at less than half
    of its highest clock."""
    hits = case.hits("asked-in-full")
    for hit, after in itertools.pairwise([*hits, *hits[-1:]]):
        told, below_it = hit.groups, after.groups
        if "now" in told:
            near = [one for one in hits if one.file == hit.file and 0 < one.line - hit.line <= _OF_A_GPU]
            limit = next((one for one in near if "slowdown" in one.groups), None)
            if limit and int(told["now"]) >= int(limit.groups["slowdown"]):
                title = f"a GPU is at {told['now']} C, and slows down from {limit.groups['slowdown']} C on"
                yield Candidate("gpu.thermal-power", 0.78, title, [hit, limit], hosts=hosts_of([hit]), slows=True)
        elif "margin" in told and int(told["margin"]) <= 0:
            title = f"a GPU is as hot as GPUs that slow down ({told['margin']} C are left)"
            yield Candidate("gpu.thermal-power", 0.7, title, [hit], hosts=hosts_of([hit]), slows=True)
        elif "mhz" in told and "mhz" in below_it and 0 < int(told["mhz"]) <= _SLOW_CLOCK * int(below_it["mhz"]):
            busy = [one for one in hits if "load" in one.groups and 0 < hit.line - one.line <= _OF_A_GPU]
            if busy and float(busy[-1].groups["load"]) >= _ALWAYS_BUSY:
                title = f"a GPU that is busy all the time runs at {told['mhz']} MHz, and could at {below_it['mhz']} MHz"
                proof = [hit, after, busy[-1]]
                yield Candidate("gpu.thermal-power", 0.66, title, proof, hosts=hosts_of([hit]), slows=True)


_DRAWN = re.compile(r"(\d+)W / +(\d+)W ")
_AT_ITS_CAP = 0.9  # of what it may draw
_LOWERED = 0.75  # of what its neighbours may draw: no difference between boards of one model


@diagnosis
def lower_power_cap(case: Case) -> Iterable[Candidate]:
    """nvidia-smi's table: a GPU draws all that it may, and may draw far less than its neighbours of the same model."""
    drawn = [
        (int(found.group(1)), int(found.group(2)), hit)
        for hit in case.hits("power-and-cap")
        if (found := _DRAWN.search(hit.text))
    ]
    most = max((cap for _, cap, _ in drawn), default=0)
    capped = [hit for power, cap, hit in drawn if cap < _LOWERED * most and power >= _AT_ITS_CAP * cap]
    models = {hit.groups["model"].partition(" ")[0] for hit in case.hits("gpu-model")}
    if capped and len(models) == 1:
        cap = capped[0].groups["cap"]
        title = f"a GPU is held at {cap} W by its power cap, its neighbours may draw {most} W"
        others = [hit for _, other, hit in drawn if other == most]
        yield Candidate("gpu.thermal-power", 0.72, title, [*capped[:4], *others[:2]], hosts=hosts_of(capped))


@diagnosis
def lowered_power_limit(case: Case) -> Iterable[Candidate]:
    """nvidia-smi: a GPU is held back by its power limit, which somebody set far below its board's own, and the job is too
    slow. Without a complaint a low limit is a choice."""
    for row in working(case):
        if (
            row.made_for
            and row.cap < _LOWERED * row.made_for
            and row.power >= _AT_ITS_CAP * row.cap
            and complaints(case)
        ):
            title = f"a GPU is held at {row.cap:.0f} W by a power limit, its board is made for {row.made_for:.0f} W"
            yield Candidate("gpu.thermal-power", 0.72, title, [row.hit, *complaints(case)[:2]], hosts={row.host} - {""})
            return
    capped = case.hits("power-capped")
    limits: dict[bool, list[Hit]] = {True: [], False: []}
    for hit in case.hits("power-limits"):
        limits["Default" in hit.text].append(hit)
    low = [
        (now, default)
        for now, default in zip(limits[False], limits[True], strict=False)
        if float(now.groups["watts"]) < _LOWERED * float(default.groups["watts"])
    ]
    slow = too_slow(case)
    if capped and low and slow:
        now, default = low[0]
        title = f"a GPU is held at {now.groups['watts']} W by a power limit, its board is made for {default.groups['watts']} W"
        yield Candidate("gpu.thermal-power", 0.72, title, [now, default, *capped[:1], *slow[:1]])


_RATE = re.compile(r"(?:GPU|gpu|cuda|device)[ :#_]{0,2}(\d{1,3})\b(\D{1,60})(\d+(?:\.\d+)?) ?([TG]?FLOP|GB/s|MHz)")
_FEWEST = 4  # devices: of fewer, which one is odd cannot be told


@diagnosis
def one_device_behind(case: Case) -> Iterable[Candidate]:
    """A program measured each GPU in the same way, and one reached far less than the others."""
    table: dict[tuple[str, str], dict[str, tuple[float, Hit]]] = {}
    for hit in case.hits("device-rate"):
        found = _RATE.search(hit.text)
        if found:
            device, words, number, unit = found.groups()
            table.setdefault((words, unit), {})[f"{hit.host}/{device}"] = float(number), hit
    for (_, unit), devices in table.items():
        usual = statistics.median(rate for rate, _ in devices.values())
        slow = [(rate, hit) for rate, hit in devices.values() if rate < _SLOW * usual]
        if slow and len(devices) >= _FEWEST:
            yield Candidate(
                "net.slow" if unit == "GB/s" else "gpu.thermal-power",
                0.7,
                f"one GPU reaches {slow[0][0]:g} {unit}, the others {usual:g}",
                [*(hit for _, hit in slow), *(hit for _, hit in devices.values())][:8],
                hosts=hosts_of(hit for _, hit in slow),
            )


_DAYS = re.compile(r"(\d+) days?")
_MINUTES = re.compile(r"(\d+) min|\b(0?\d):(\d\d),")


@diagnosis
def rebooted_host(case: Case) -> Iterable[Candidate]:
    """uptime on several hosts: one has been up for minutes, the others for days. It was rebooted under the job."""
    hits = case.hits("uptime")
    long = [hit for hit in hits if _DAYS.search(hit.groups["told"])]
    fresh = [hit for hit in hits if hit not in long and _MINUTES.search(hit.groups["told"])]
    if long and fresh and len(fresh) < len(hits) / 2:
        hosts = hosts_of(fresh)
        title = f"{', '.join(sorted(hosts)) or 'a host'} was rebooted, the others were not"
        yield Candidate("sys.node-failure", 0.72, title, [*fresh, *long[:2]], hosts=hosts)


_HARD_SLOWDOWN = 0xE8  # of the bit mask of clock event reasons: hardware, heat, power brake; a power cap is none
# A DCGM metric (begin of its name, without DCGM_FI_DEV_) other than 0 -> cause, strength, what it says.
_METRICS: tuple[tuple[str, str, float, str], ...] = (
    ("ROW_REMAP_FAILURE", "gpu.ecc", 0.92, "a GPU's row remapping failed"),
    ("ROW_REMAP_PENDING", "gpu.ecc", 0.64, "a GPU has rows to remap and waits for a reset"),
    ("ECC_DBE_VOL", "gpu.ecc", 0.84, "a GPU counts memory errors that ECC cannot correct"),
    ("CLOCK_THROTTLE_REASONS", "gpu.thermal-power", 0.84, "a GPU is slowed down by heat or power"),
    ("CLOCKS_EVENT_REASONS", "gpu.thermal-power", 0.84, "a GPU is slowed down by heat or power"),
)


@diagnosis
def dcgm_metrics(case: Case) -> Iterable[Candidate]:
    """A DCGM exporter's page: counters of faults that are not 0, or a throttle mask with a bit for heat or power brake."""
    for name, cause, strength, title in _METRICS:
        hits = [hit for hit in case.hits("dcgm-metric") if hit.groups["name"].startswith(name)]
        if cause == "gpu.thermal-power":
            hits = [hit for hit in hits if int(float(hit.groups["value"])) & _HARD_SLOWDOWN]
        if hits:
            yield Candidate(cause, strength, title, hits)


_SPREAD = re.compile(r"(M[nx])(Rtt|Tmp|Utl|Clk|DRtt)/Rnk: (\d+(?:\.\d+)?)[a-zA-Z%]*/(\d{1,7})")
_FEW_REPORTS = 3
_WAITS_FOR_DATA = 0.3  # of a rank's time in a report: a loader that keeps up costs milliseconds


@diagnosis
def straggler_lines(case: Case) -> Iterable[Candidate]:
    """Megatron's straggler detector tells the least and the most of all ranks' clocks, heat, load and times, and who has it.

    Where all ranks are loaded, a GPU at half of another's clock holds all of them up, and so does a rank that waits for its data.
    """
    hits = in_order((*case.hits("megatron-straggler"), *case.lasts("megatron-straggler")))
    reports = [(dict(_spread(hit)), hit) for hit in hits]
    slow, hungry = [], []
    for told, hit in reports:
        (least, who), (most, _), (_, hottest) = (told.get(key, (0.0, "")) for key in ("MnClk", "MxClk", "MxTmp"))
        busy = told.get("MnUtl", (0.0, ""))[0] >= _BUSY
        if busy and 0 < least < most * (_HEATED if hottest == who and told["MxTmp"][0] >= HOT else _SLOW):
            slow.append((who, told, hit))
        if told.get("MxDRtt", (0.0, ""))[0] > _WAITS_FOR_DATA * told.get("MxRtt", (1e18, ""))[0]:
            hungry.append((told["MxDRtt"][1], told, hit))
    if slow and slow[-1][2] is hits[-1]:  # and is so still
        who, told, hit = slow[-1]
        heat = f" and {told['MxTmp'][0]:.0f} C" if told.get("MxTmp", (0.0, ""))[1] == who else ""
        title = f"rank {who}'s GPU runs at {told['MnClk'][0]:.0f} MHz{heat} under load, the fastest at {told['MxClk'][0]:.0f} MHz"
        proof = [hit, *(one for _, _, one in slow)]
        yield Candidate("gpu.thermal-power", 0.82, title, proof, {int(who)}, slows=True)
    elif len(hungry) >= _FEW_REPORTS and len({who for who, _, _ in hungry}) == 1:
        who, told, hit = hungry[-1]
        title = f"rank {who} waits {told['MxDRtt'][0]:.0f} ms for its data, of {told['MxRtt'][0]:.0f} ms"
        proof = [hit, *(one for _, _, one in hungry)]
        yield Candidate("app.straggler-timeout", 0.6, title, proof, {int(who)}, slows=True)


def _spread(hit: Hit) -> Iterable[tuple[str, tuple[float, str]]]:
    return ((end + what, (float(number), rank)) for end, what, number, rank in _SPREAD.findall(hit.text))


# Words of a node's drain reason (Slurm's own, LBNL NHC, the clouds' checks, administrators) -> cause.
REASONS: tuple[tuple[str, str], ...] = (
    (
        r"not responding|unexpectedly rebooted|node.?fail|low realmemory|\bdimm\b|\bmce\b|machine check",
        "sys.node-failure",
    ),
    (r"check_hw_ib|check_ib|ib_link|link_flap|\bIB\b.*(?:port|link|down)|infiniband|\bhca\b|mlx5", "ib.port-down"),
    (r"ecc|row.?remap|page.?retire|\bdbe\b", "gpu.ecc"),
    (r"nvlink|nvswitch|sxid", "gpu.nvlink"),
    (r"throttl|thermal|temperature|power|\bpsu\b", "gpu.thermal-power"),
    (r"gres/gpu count", "gpu.not-visible"),
    (
        r"gpu_count|gpu count|missing gpu|\bxid\b|gpu.*(?:lost|fell|fall|not found|hung|dead|reset)|off the bus",
        "gpu.fell-off-bus",
    ),
    (r"fabric.?manager", "gpu.fabric-manager"),
    (r"check_fs|mount|\bnfs|lustre|gpfs|weka|beegfs|stale", "sys.clock-or-dns-or-fs"),
    (r"no space|disk full|% full|\bquota", "sys.disk-full"),
    (r"check_hw_physmem|memory|\bmem\b", "sys.host-oom"),
)


def cause_of(reason: str, table: tuple[tuple[str, str], ...] = REASONS) -> str:
    """The cause that a drain reason or a check's name speaks of; empty if its words are not known."""
    return next((cause for words, cause in table if re.search(words, reason, re.IGNORECASE)), "")


_SINFO = re.compile(
    r"^\W*(?P<reason>\S.{0,160}?)\s{1,80}\S{1,32}\s{1,80}(?P<since>\d{4}-\d\d-\d\dT\S+|Unknown)\s{1,80}(?P<nodes>\S+)"
)
_BEFORE_THE_JOB = 0.4  # Slurm starts no job on a drained node


def _ours(case: Case, nodes: str) -> bool:
    """Whether a list of nodes names one of the job; yes where NCCL's lines name none."""
    from nccl_doctor.inventory import names, nodesets  # few logs hold such a table

    try:
        named = set(nodesets.expand(nodes))
    except names.BadName:
        named = {nodes}
    known = {host.partition(".")[0] for host in case.nccl_hosts}
    return not known or bool(known & named)


@diagnosis
def drained_node(case: Case) -> Iterable[Candidate]:
    """sinfo -R: Slurm drained a node of this job, and the reason tells what is wrong with it.

    A node that was drained before the job began got no part of it.
    """
    for hit in case.hits("sinfo-reasons-rows"):
        row = _SINFO.match(hit.text)
        cause = cause_of(row.group("reason")) if row else ""
        if row and cause and _ours(case, row.group("nodes")):
            before = case.course.began_after(prefix.parse(row.group("since")).seconds)
            title = f"Slurm drained {row.group('nodes')}: {' '.join(row.group('reason').split())}"
            yield Candidate(cause, _BEFORE_THE_JOB if before else 0.84, title, [hit], hosts={row.group("nodes")})


# Words of the tests of dcgmi diag -> cause.
_TESTS: tuple[tuple[str, str], ...] = (
    (r"memory|memtest|page retirement|row remap", "gpu.ecc"),
    (r"nvlink|nvswitch|nvbandwidth", "gpu.nvlink"),
    (r"power|pulse|thermal", "gpu.thermal-power"),
    (r"pcie", "net.slow"),
)


def _cells_below(case: Case, hit: Hit) -> list[tuple[Hit, str]]:
    """The lines below a row of dcgmi diag that say what failed in the same test, and their words."""
    rows = [row for row in case.hits("dcgm-row-rows") if row.file == hit.file and row.line > hit.line]
    # From the right: what a collector puts before a line may have such strokes too.
    cells = [(row, row.text.rstrip().rsplit("|", 3)[1:]) for row in rows]
    below = itertools.takewhile(
        lambda cell: len(cell[1]) == 3 and cell[1][0].strip() in {"", "Warning", "Error"}, cells
    )
    return [(row, said[1:-1]) for row, (_, said, _) in below]


@diagnosis
def node_check(case: Case) -> Iterable[Candidate]:
    """A node health check failed and took the node away: the check's name and words tell what is wrong with the node.

    What dcgmi diag says below a test counts more than the test's name: any test fails where CUDA does not start.
    """
    # Judged with the date that stands beside.
    listed = {place(row) for row in case.hits("sinfo-reasons-rows") if _SINFO.match(row.text)}
    for hit in case.hits("node-check", "dcgm-row"):
        if place(hit) in listed:
            continue
        dcgm = hit.signature == "dcgm-row"
        text = hit.groups.get("check") or hit.text.strip(" |")
        detail = _cells_below(case, hit) if dcgm else []
        said = "".join(words for _, words in detail)  # cut in mid-word
        cause = topics.beneath(said) or cause_of(text, _TESTS if dcgm else REASONS)
        if cause:
            title = f"a node health check failed: {textwrap.shorten(f'{text} {said}', 120, placeholder=' ...')}"
            proof = [hit, *(row for row, _ in detail)]
            yield Candidate(cause, 0.64 if "| Warning" in hit.text else 0.84, title, proof, hosts=hosts_of([hit]))
            return


_P2P_ROW = re.compile(r"(?:^|\s)\d+((?:\s+\d+\.\d+)+)\s*$")
_P2P_SLOWER = 0.5  # of the way through host memory: what peer-to-peer is for is to be faster than that


@diagnosis
def peer_to_peer_is_slower(case: Case) -> Iterable[Candidate]:
    """p2pBandwidthLatencyTest moves less with peer-to-peer than without: it is redirected (ACS, IOMMU, a virtual machine)."""
    headings, rows = case.hits("p2p-bandwidth"), case.hits("p2p-bandwidth-rows")
    for off, on in itertools.pairwise(headings):
        if (off.groups["state"], on.groups["state"]) != ("Disabled", "Enabled") or off.file != on.file:
            continue
        without, with_p2p = (
            [
                (hit, [float(cell) for cell in found.group(1).split()])
                for hit in below(heading, headings, rows)
                if (found := _P2P_ROW.search(hit.text))
            ]
            for heading in (off, on)
        )
        slower = [
            (hit, other[0])
            for number, ((hit, speeds), other) in enumerate(zip(with_p2p, without, strict=False))
            if any(
                at != number and speed < _P2P_SLOWER * host
                for at, (speed, host) in enumerate(zip(speeds, other[1], strict=False))
            )
        ]
        if slower:
            title = "with peer-to-peer these GPUs move less than half of what they move through host memory: it is redirected"
            proof = [hit for pair in slower for hit in pair]
            yield Candidate("gpu.p2p", 0.88, title, [*proof, on, off], hosts=hosts_of(proof))
            return
