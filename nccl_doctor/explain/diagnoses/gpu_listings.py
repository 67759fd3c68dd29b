"""GPUs in listings (nvidia-smi, dcgmi, gpustat, rocm-smi, amd-smi): which is hot, slow, or held back beside its neighbours."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import Lack, too_slow, weighed
from nccl_doctor.explain.diagnoses.tables import cells, tables
from nccl_doctor.explain.lines import hosts_of, just_below, later
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.signatures.heat import HOT

BUSY = 50.0  # percent of time in which a GPU computes: below that it has reason to lower its clock
ALWAYS_BUSY = 95.0  # the same: a kernel of NCCL that waits counts as work
_FULL = 0.6  # of the power limit: no idle GPU draws that much
SLOW = 0.6  # of the fastest busy neighbour's clock
HEATED = 0.85  # the same for a GPU that says that heat slows it down
_HELD_BACK = 50.0  # percent of time in which heat slowed a GPU down
NAMELESS = "a GPU"


class GpuRow(msgspec.Struct):
    """One GPU at one moment. A number that the listing does not tell is 0, or None where 0 is one."""

    hit: Hit
    name: str = NAMELESS
    busy: bool = True  # whether it has work to do
    fixed: bool = False  # a setting holds the clock
    load: float | None = None  # percent of time in which it computes, or waits for other GPUs
    fan: float | None = None  # percent of its speed
    clock: float = 0.0  # MHz
    temperature: float = 0.0  # degrees Celsius
    power: float = 0.0  # W
    cap: float = 0.0  # W that it may draw
    made_for: float = 0.0  # W that its board may draw unless somebody says otherwise
    heat: float = 0.0  # dmon's tviol: a percentage of time, or 1 for yes

    @property
    def host(self) -> str:
        """Where it is, as far as its line or those around it tell."""
        return self.hit.host


# Field of a row -> names of its column, in dmon's, dcgmi's and nvidia-smi's headings.
_COLUMNS = {
    "load": re.compile(r"sm\b|GPUTL|utilization\.gpu\b"),
    "fan": re.compile(r"fan\.speed\b"),
    "clock": re.compile(r"pclk|SMCLK|clocks\.(?:current\.)?(?:sm|gr(?:aphics)?)\b"),
    "temperature": re.compile(r"temperature\.gpu\b|gtemp\b|TMPTR"),
    "power": re.compile(r"pwr|POWER|power\.draw\b"),
    "cap": re.compile(r"(?:enforced\.)?power\.limit\b"),
    "made_for": re.compile(r"power\.default_limit\b"),
    "heat": re.compile(r"tviol"),
}
_CELL = re.compile(r"(\d+(?:\.\d+)?)(?: ?(?:W|MHz|%|C))?")
_INDEX = re.compile(r"(?:.*\s)?(?:index|gpu|#Entity)$")  # behind what a collector put before the heading
_REASONS = re.compile(r"clocks_(?:event|throttle)_reasons\.active\b")
_MASK = re.compile(r"0x[0-9A-Fa-f]{16}")
_IDLE_REASON, _SET_REASON = 0x1, 0x2  # of the bit mask of clock event reasons: nothing to do; -lgc or -ac
_RULE = re.compile(r"(?<!\S)-{8,}\s*$")  # dshbak puts a host's name between two of them
_QUERY = re.compile(r"--query-gpu=([\w.,]+)")


def gpu_cells(heading: str, row: str) -> dict[str, str]:
    """A row's cells by the names of their columns. Of a command that prints no heading, these are those that it asks for."""
    asked = _QUERY.search(heading)
    return cells(asked[1].split(",") if asked else _split(heading, heading), _split(row, heading))


def _split(text: str, heading: str) -> list[str]:
    """The cells of a line, told apart as its heading's are: dmon's by blanks, others by commas or by several blanks."""
    if "# gpu" in heading:
        return text.split()
    return text.split(",") if "," in heading and "#Entity" not in heading else re.split(r"\s{2,}", text)


def _row(hit: Hit, told: dict[str, float], name: str) -> GpuRow:
    load = told.get("load")
    return GpuRow(
        hit,
        name,
        load is None or load >= BUSY,
        load=load,
        fan=told.get("fan"),
        clock=told.get("clock", 0.0),
        temperature=told.get("temperature", 0.0),
        power=told.get("power", 0.0),
        cap=told.get("cap", 0.0),
        made_for=told.get("made_for", 0.0),
        heat=told.get("heat", 0.0),
    )


def _asked(heading: Hit, lines: list[Hit]) -> Iterable[GpuRow]:
    """The rows below this heading of dmon or of a query, each of a GPU."""
    host = ""
    for at, hit in enumerate(lines):
        if _RULE.search(hit.text):
            if at > 1 and _RULE.search(lines[at - 2].text):
                host = prefix.parse(lines[at - 1].text).body.strip()
            continue
        by_name = gpu_cells(heading.text, hit.text)
        told: dict[str, float] = {}
        for (name, cell), (field, column) in itertools.product(by_name.items(), _COLUMNS.items()):
            if column.match(name) and (found := _CELL.fullmatch(cell)):
                told.setdefault(field, float(found[1]))
        row = _row(hit if hit.host else msgspec.structs.replace(hit, host=host), told, _name(by_name))
        masks = [int(cell, 16) for name, cell in by_name.items() if _REASONS.match(name) and _MASK.fullmatch(cell)]
        row.fixed = bool(masks and masks[0] & _SET_REASON)
        if row.load is None:
            row.busy = (
                row.power >= _FULL * row.cap if row.cap else bool(masks and masks[0] and not masks[0] & _IDLE_REASON)
            )
        if row.clock or row.load is not None or row.power:
            yield row


def _name(by_name: dict[str, str]) -> str:
    """Which GPU it is, where the row tells; it may stand first, behind what a collector put before the row."""
    told = (cell.rsplit(None, 1)[-1] for name, cell in by_name.items() if _INDEX.match(name) and cell)
    return next((f"GPU {index}" for index in told if index.isdecimal()), NAMELESS)


_BOX = re.compile(
    r"\|\s+(?:(?P<fan>\d+)%|N/A|ERR!)\s+(?P<temperature>\d+)C\s+P\d+\s+(?P<power>\d+)W / +(?P<cap>\d+)W .{16,86}?(?P<load>\d+)%\s+\S"
)
_BOX_NAME = re.compile(r"\|\s+(\d+)\s")
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
    """What nvidia-smi's own table, gpustat, rocm-smi and amd-smi say, a line for each GPU."""
    names = {(hit.file, hit.line + 1): _BOX_NAME.search(hit.text) for hit in case.hits("gpu-in-table")}
    for hit in case.hits("power-and-cap", "gpu-listed"):
        found = next((found for pattern in (_BOX, *_LISTED) if (found := pattern.search(hit.text))), None)
        if found:
            told = {key: float(value) for key, value in found.groupdict().items() if value}
            above = names.get((hit.file, hit.line))
            index = found["index"] if "index" in told else above and above[1]
            yield _row(hit, told, f"GPU {index}" if index else NAMELESS)


def gpu_rows(case: Case) -> list[GpuRow]:
    """What all listings tell of GPUs."""
    return [*_listed(case), *(row for head, lines in tables(case, "gpu-table") for row in _asked(head, lines))]


def _working(case: Case) -> list[GpuRow]:
    """The same of the GPUs that have work to do."""
    return [row for row in gpu_rows(case) if row.busy]


def _slower_clock(case: Case) -> Iterator[Lack]:
    """nvidia-smi dmon, a query for clocks, or rocm-smi: a GPU with work to do runs at a far lower clock than its neighbours.

    Idle GPUs lower their clocks: only rows that show load, power near the limit, or a reason other than idleness, are compared.
    """
    rows = _working(case)
    fastest = max((row.clock for row in rows), default=0.0)
    slow = [
        row
        for row in rows
        if 0 < row.clock < fastest * (HEATED if row.heat or row.fixed else SLOW) or row.heat >= _HELD_BACK
    ]
    if not slow:
        return
    others = [row.clock for row in rows if row not in slow and row.clock]
    hosts = hosts_of(row.hit for row in slow)
    if others and slow[0].clock:
        usual = statistics.median(others)
        where = f" of {min(hosts)}" if len(hosts) == 1 and len(slow) > 1 else ""
        who = f"{len(slow)} GPUs{where} run" if len(slow) > 1 else "a GPU runs"
        why = " by a setting (nvidia-smi -lgc or -ac)" if all(row.fixed and not row.heat for row in slow) else ""
        title = f"{who} at {slow[0].clock:.0f} MHz under load{why}, {'others' if where else 'its neighbours'} at {usual:.0f} MHz"
    else:
        title = f"heat slows a GPU down in {slow[0].heat:.0f} % of the time"
    yield Lack(title, [row.hit for row in slow], 0.82, 0.82, case.hits("gpu-table")[:1])


_FAN_RUNS = 80.0  # degrees Celsius: a fan that rests when there is little to do has long started, and water is cooler
_HOTTER = 15.0  # degrees Celsius above its neighbours: more than its place in the stream of air makes
_LITTLE_POWER = 0.6  # of what its neighbours draw at the same load


def _hotter(case: Case) -> Iterator[Lack]:
    """nvidia-smi: a GPU with work to do is as hot as GPUs that slow down, and its fan stands still, or it draws far less than
    its neighbours, or is far hotter than they are: the heat is its own, and holds it back."""
    rows = [row for row in _working(case) if row.temperature]
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
        if not (still or little or others):
            continue
        title = f"{row.name} is at {row.temperature:.0f} C" + " with its fan at 0 %" * still
        if little:
            title += f", and draws {row.power:.0f} W where its neighbours draw {usual:.0f} W"
        elif others:
            title += f", its neighbours at {statistics.median(one.temperature for one in others):.0f} C"
        alone = 0.84 if little else 0.78 if still else 0.0  # warm, it may do its work all the same
        yield Lack(title, [row.hit], alone or 0.6, alone, [one.hit for one in others[:3]])


_OF_A_GPU = 60  # lines that nvidia-smi -q prints of a GPU from its load to its clocks
_SLOW_CLOCK = 0.5  # of the highest: no power limit of a sound board makes it so low


def _in_full(case: Case) -> Iterator[Lack]:
    """nvidia-smi -q: a GPU is as hot as GPUs that slow down (its own limit stands beside), or busy all the time at less than half
    of its highest clock."""
    hits = case.hits("asked-in-full")
    for hit, after in itertools.pairwise([*hits, *hits[-1:]]):
        told, below_it = hit.groups, after.groups
        if "now" in told:
            near = [one for one in hits if just_below(one, hit, _OF_A_GPU)]
            limit = next((one for one in near if "slowdown" in one.groups), None)
            if limit and int(told["now"]) >= int(limit.groups["slowdown"]):
                title = f"a GPU is at {told['now']} C, and slows down from {limit.groups['slowdown']} C on"
                yield Lack(title, [hit, limit], 0.78, 0.78)
        elif "margin" in told and int(told["margin"]) <= 0:
            title = f"a GPU is as hot as GPUs that slow down ({told['margin']} C are left)"
            yield Lack(title, [hit], 0.7, 0.7)
        elif "mhz" not in told or "mhz" not in below_it or not just_below(after, hit, _OF_A_GPU):
            continue
        elif 0 < int(told["mhz"]) <= _SLOW_CLOCK * int(below_it["mhz"]):
            busy = [one for one in hits if "load" in one.groups and just_below(hit, one, _OF_A_GPU)]
            if busy and float(busy[-1].groups["load"]) >= ALWAYS_BUSY:
                title = f"a GPU that is busy all the time runs at {told['mhz']} MHz, and could at {below_it['mhz']} MHz"
                yield Lack(title, [hit, after, busy[-1]], 0.66, 0.66)


_AT_ITS_CAP = 0.9  # of what it may draw
_LOWERED = 0.75  # of what others may draw, or the board is made for: no difference between boards of one model


def _lowered_limit(case: Case) -> Iterator[Lack]:
    """nvidia-smi: a GPU draws all that it may, and its power limit is far below that of its neighbours of the same model; or far
    below its board's own. Without a complaint a low limit of all GPUs is a choice."""
    rows = _working(case)
    full = [row for row in rows if row.power >= _AT_ITS_CAP * row.cap > 0]
    models = {hit.groups["model"].partition(" ")[0] for hit in case.hits("gpu-model")}
    most = max((row.cap for row in rows), default=0.0) if len(models) == 1 else 0.0
    neighbours = [row.hit for row in rows if row.cap == most][:2]
    title = "a GPU is held at {:.0f} W by its power limit, {} {:.0f} W"
    for row in full:
        if row.cap < _LOWERED * most:
            yield Lack(title.format(row.cap, "its neighbours may draw", most), [row.hit], 0.72, 0.72, neighbours)
        if row.cap < _LOWERED * row.made_for:
            yield Lack(title.format(row.cap, "its board is made for", row.made_for), [row.hit], 0.72)
    limits = case.hits("power-limits") if case.has("power-capped") else []
    defaults = [hit for hit in limits if "Default" in hit.text]
    for now, default in zip([hit for hit in limits if hit not in defaults], defaults, strict=False):
        held, usual = (float(hit.groups["watts"]) for hit in (now, default))
        if held < _LOWERED * usual:
            told = title.format(held, "its board is made for", usual)
            yield Lack(told, [now, default], 0.72, more=case.hits("power-capped")[:1])


_HARD_REASON = re.compile(r"(?:throttle|event)_reasons\.(?:hw_|sw_thermal)")
_NAMES = re.compile(r"[\w.]+(?:,\s?[\w.]+(?: \[\w+\])?)+")


def _slowed(head: Hit, row: Hit) -> bool:
    """Whether a row below this heading says Active in a column of a slowdown (a power cap is none)."""
    names, values = max(_NAMES.findall(head.text), key=len, default="").split(","), row.text.split(", ")
    if len(names) <= len(values):  # the last ones belong together, whatever stands before the first
        return any(_HARD_REASON.search(name) and cell == "Active" for name, cell in cells(names, values).items())
    return later(row, head)


def _throttled(case: Case) -> Iterator[Lack]:
    """nvidia-smi was asked for hardware or thermal slowdown in CSV, and a row says Active."""
    headings = [hit for hit in case.hits("dcgm-throttle") if _HARD_REASON.search(hit.text)]
    rows = [row for row in case.hits("throttle-column") if any(_slowed(head, row) for head in headings)]
    if rows:
        yield Lack("a GPU is slowed down by heat or power", rows[:6], 0.74, 0.74, headings[:2])


_HELD_BACK_BY = (_slower_clock, _hotter, _in_full, _lowered_limit, _throttled)


@diagnosis
def gpu_is_held_back(case: Case) -> Iterable[Candidate]:
    """A GPU with work to do runs at a far lower clock than its neighbours, or than it could; it is as hot as GPUs that slow down, by
    itself (its fan stands still, it draws little, or its neighbours are cooler); or it draws all that a power limit far below the
    others', or its board's own, leaves it. A GPU that is merely warm, and a limit that all have, count beside a sign that the job is
    slow only."""
    lacks = itertools.chain.from_iterable(source(case) for source in _HELD_BACK_BY)
    yield from weighed(case, "gpu.thermal-power", lacks, too_slow)


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
