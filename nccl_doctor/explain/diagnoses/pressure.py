"""Slow runs: what a host lacks, by what its listings tell of its disks, its memory and its cores."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.speed import Lack, too_slow, weighed
from nccl_doctor.explain.diagnoses.steps import last_waited, starving
from nccl_doctor.explain.diagnoses.tables import SCALE, cells, number, tables
from nccl_doctor.explain.lines import came_after, hosts_of, just_below
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.signatures.pressure import SAVED, TOP_MEMORY, TOP_SWAP

_FILES, _CPUS, _CPU_PAGE = "sys.clock-or-dns-or-fs", "sys.container", "sys.cpu-limit"


def _held_up(case: Case) -> list[Hit]:
    """The lines that say that the job is too slow, or that its steps wait for data."""
    return [*too_slow(case), *(starving(case)[-1:] or last_waited(case))]


_PRESSURE_OF = re.compile(r"/proc/pressure/(\w+)|\b(\w+)\.pressure\b")
_NEAR = 3  # lines from the name of the file to its content


def _stalled(case: Case, resource: str, kind: str, least: float) -> Iterator[tuple[float, list[Hit]]]:
    """Linux's pressure stall information: for which percentage of the last minute all tasks of the host or the container stood
    still for want of a resource (``full``), or some did, if it is so much."""
    for hit in case.hits("pressure"):
        asked = [one for one in case.hits("pressure-of") if one.file == hit.file and 0 <= hit.line - one.line <= _NEAR]
        named = {one or other for one, other in _PRESSURE_OF.findall(asked[-1].text)} if asked else set()
        share = float(hit.groups["sixty"])
        if named == {resource} and kind in hit.text and share >= least:
            yield share, [hit, asked[-1]]


_NFS = re.compile(r"(?<!\d)(\d{1,9}\.\d+)\s+\d+\.\d+\s+\d+\.\d+\s+\d+ \(\d+\.\d+%\)\s+(\d+\.\d+)\s+(\d+\.\d+)")
_SLOW_NFS = 100.0  # ms: a server that keeps up answers in a few
_OFTEN = 10.0  # reads a second
_FULL = 95.0  # percent of the time
_SLOW_DISK = 50.0  # ms: a disk that has little to do needs ten, a flash memory less than one
_WAITING = 40.0  # percent of all cores' time
_SLOW_READ = 50e6  # bytes a second: less than a single disk gives


def _nfs(case: Case, what: str) -> Iterable[Hit]:
    """nfsiostat's rows of reads, or of writes."""
    return (row for head, rows in tables(case, "nfsiostat") if what in head.text for row in rows[:1])


def _storage(case: Case) -> Iterator[Lack]:
    for share, hits in _stalled(case, "io", "full", 50.0):
        yield Lack(f"all tasks wait for disks or file systems in {share:.0f} % of the time", hits, 0.66, 0.66)
    for hit in _nfs(case, "read:"):
        found = _NFS.search(hit.text)
        if found and float(found[1]) >= _OFTEN and float(found[3]) >= _SLOW_NFS:
            title = f"each read of the network file system takes {float(found[3]):.0f} ms (its server: {float(found[2]):.0f} ms)"
            yield Lack(title, [hit], 0.66, 0.66)
    for head, row in ((head, row) for head, rows in tables(case, "iostat") for row in rows):
        told = {name: number(cell) for name, cell in cells(head.text.split(), row.text.split()).items()}
        awaited, busy = told.get("r_await", told.get("await", 0.0)), told.get("%util", 0.0)
        if told.get("r/s", 0.0) >= 1 and busy >= _FULL and awaited >= _SLOW_DISK:
            title = f"a disk is busy in {busy:.0f} % of the time, and each read of it takes {awaited:.0f} ms"
            yield Lack(title, [row], 0.62, 0.62, [head])
    waits = [(float(hit.groups["waiting"]), hit) for hit in case.hits("iowait")]
    for hit in case.hits("avg-cpu-rows"):
        times = [number(cell) for cell in hit.text.split()]
        waits += [(times[3], hit)] if len(times) == len(("user", "nice", "system", "iowait", "steal", "idle")) else []
    for waiting, hit in waits:
        if waiting >= _WAITING:
            title = f"the cores wait for disks or file systems in {waiting:.0f} % of their time"
            yield Lack(title, [hit], 0.46, 0.46)
    for hit in case.hits("read-rate"):
        rate = _amount(hit.groups["rate"].replace(" ", "").upper())
        if 0 < rate < _SLOW_READ:
            yield Lack(f"the data is read at {rate / 1e6:.1f} MB/s", [hit], 0.6)
    if unstable := case.hits("tsc-unstable"):
        yield Lack("the kernel reads the time from a slow clock, as the CPU's counter is unstable", unstable[:2], 0.46)


@diagnosis
def storage_is_slow(case: Case) -> Iterable[Candidate]:
    """A host's reads take long: all its tasks, or its cores, wait for disks and file systems (PSI, top, iostat), a read of a network
    file system takes a tenth of a second and more (nfsiostat), a disk is busy all the time. Which one, iostat -x, nfsiostat and the
    server's own counters tell. Reads that are slow (dd, fio), or a slow clock of the kernel, count beside a sign that the job is
    slow only."""
    yield from weighed(case, _FILES, _storage(case), _held_up)


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?$")
_NOTHING_LEFT = 0.02  # of the host's memory
_SWAP_FULL = 0.9
_PERCENT = re.compile(r"CPU Virtual Memory:.*?(\d+(?:\.\d+)?) ?%")
_USED_UP = 98.0  # percent
_HARD_AT_WORK = 50.0  # percent of a core
_SWAPPED = 10_000  # KiB/s both ways, as vmstat counts: what is written is needed again
_VMSTAT = re.compile(r"(?<!\S)(?:\d+ +){6}(\d+) +(\d+)(?: +\d+){8,10}\s*$")  # r b swpd free buff cache si so ...
_SIZE = re.compile(r"(?:Mem|Swap):\s")


def _sizes(case: Case) -> Iterator[tuple[float, float, float, float, list[Hit]]]:
    """Memory and what is available of it, swap and what is used of it, with the lines that tell."""
    rows = case.hits("free-rows")
    for memory, swap in zip(rows[::2], rows[1::2], strict=False):
        of_memory, of_swap = (
            [_amount(cell) for cell in row.text.rpartition(": ")[2].split()] for row in (memory, swap)
        )
        if "Mem:" in memory.text and "Swap:" in swap.text and len(of_memory) >= 6 and len(of_swap) >= 3:
            yield of_memory[0], of_memory[5], of_swap[0], of_swap[1], [memory, swap]
    for whole, rest in itertools.pairwise(case.hits("top-memory")):
        total, swapped = TOP_MEMORY.search(whole.text), TOP_SWAP.search(rest.text)
        if total and swapped:
            yield float(total[1]), float(swapped[3]), float(swapped[1]), float(swapped[2]), [whole, rest]


def _amount(cell: str) -> float:
    found = _AMOUNT.match(cell)
    return float(found[1]) * SCALE[found[2]] if found else 0.0


def _memory(case: Case) -> Iterator[Lack]:
    for share, hits in _stalled(case, "memory", "full", 20.0):
        yield Lack(f"all tasks wait for memory to be read back in {share:.0f} % of the time", hits, 0.66, 0.66)
    for memory, available, swap, used, lines in _sizes(case):
        if available <= _NOTHING_LEFT * memory and used >= _SWAP_FULL * swap > 0:
            title = f"the host's memory is used up ({available / memory:.1%} can be had), and so is its swap"
            yield Lack(title, lines, 0.66, 0.66)
    for hit in case.lasts("host-memory-used"):
        percent = _PERCENT.search(hit.text)
        goes_on = any(came_after(step, hit) for step in case.lasts("progress"))
        if percent and float(percent[1]) >= _USED_UP and not goes_on:
            yield Lack(f"the host's memory is used up: {percent[1]} % of it", [hit], 0.46, 0.46)
    for hit in case.hits("kswapd"):
        if float(hit.groups["percent"]) >= _HARD_AT_WORK:
            core = f"{hit.groups['percent']} % of a core"
            yield Lack(f"the kernel looks for memory to give away all the time (kswapd: {core})", [hit], 0.6, 0.6)
    rates = [(found, hit) for hit in case.hits("vmstat-rows") if (found := _VMSTAT.search(hit.text))]
    busy = [(int(found[1]), hit) for found, hit in rates if min(int(found[1]), int(found[2])) >= _SWAPPED]
    if len(busy) > 1:  # one may be the mean since the host was started
        sizes = [hit for hit in case.hits("free-rows") if _SIZE.search(hit.text)]
        most = max(read for read, _ in busy)
        title = f"the host swaps: {most // 1000} MB/s are read back from swap while as much is written to it"
        yield Lack(title, [hit for _, hit in busy], 0.76, 0.76, sizes)


@diagnosis
def memory_is_short(case: Case) -> Iterable[Candidate]:
    """A host's memory is used up: all its tasks wait for it (PSI), next to nothing can be had and the swap is full as well (free,
    top), the kernel's search for memory keeps a core busy, or what is read back from swap is as much as what is written to it
    (vmstat). What a program touches next must be read back first."""
    yield from weighed(case, "sys.host-oom", _memory(case), _held_up)


_STOLEN = 20.0  # percent of the cores' time
_NO_IDLE = 2.0
_THROTTLED = 0.5  # of its periods: a quota that only cuts peaks throttles few
_PERIODS = 100


def _cores(case: Case) -> Iterator[Lack]:
    for share, hits in _stalled(case, "cpu", "some", 90.0):  # on any busy host some task waits for a core
        yield Lack(f"tasks wait for a core in {share:.0f} % of the time", hits, 0.66, 0.44)
    for hit in case.hits("cpu-times"):
        idle, stolen = (float(hit.groups[share]) for share in ("idle", "stolen"))
        if stolen >= _STOLEN:
            yield Lack(f"the hypervisor gives {stolen:.0f} % of the cores' time to others", [hit], 0.64, 0.64)
        elif idle <= _NO_IDLE:
            yield Lack("no core of the host is ever idle: its programs wait for one another", [hit], 0.46)
    for hit in case.hits("cpu-throttled"):
        periods = [one for one in case.hits("cpu-periods") if just_below(hit, one, 2)][-1:]
        total, held = (int(periods[0].groups["periods"]) if periods else 0), int(hit.groups["throttled"])
        if total >= _PERIODS and held >= _THROTTLED * total:
            title = f"the container's CPU quota was used up in {held} of {total} periods: its processes are throttled"
            yield Lack(title, [hit], 0.76, 0.76, periods)


@diagnosis
def cores_are_short(case: Case) -> Iterable[Candidate]:
    """A host's or a container's processes wait for cores: in most periods their quota was used up and they stood still for the rest
    (cpu.stat), the hypervisor gives the time to other virtual machines (top), some task always waits for a core (PSI). That no core
    is ever idle counts beside a sign that the job is slow only."""
    yield from weighed(case, _CPUS, _cores(case), _held_up, page=_CPU_PAGE)


@diagnosis
def one_core_for_all(case: Case) -> Iterable[Candidate]:
    """A rank with its loader's workers has a single core (Slurm's --cpus-per-task, mpirun's binding, taskset, a container's CPU
    set), and the job is too slow or waits for its data."""
    cores, told = case.hits("one-core"), _held_up(case)
    if cores and (told or any("number of worker" in hit.text for hit in cores)):  # else its work may need no more
        title = f"each rank, with its loader's workers, has one core: {cores[-1].text.strip()[:100]}"
        proof = [*cores[::-1][:4], *told]
        yield Candidate(_CPUS, 0.62 if told else 0.44, title, proof, hosts=hosts_of(cores), page=_CPU_PAGE, slows=True)
        yield Candidate("app.dataloader-worker", 0.36, title, proof, slows=True)


_LONG_SAVE = 60.0  # seconds
_SAVES = 3
_GREW = 3.0  # times


_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:")


def _when(hit: Hit) -> float | None:
    """The time of a line, behind whatever a collector put before it."""
    found = _DATE.search(hit.text) if hit.seconds is None else None
    return prefix.parse(hit.text[found.start() :]).seconds if found else hit.seconds


@diagnosis
def saving_checkpoints(case: Case) -> Iterable[Candidate]:
    """Half of the job's time and more is saving checkpoints, each a minute at least, or they take three times as long as at first.
    If writes to a network file system take long meanwhile, it is that; else its server, the disks, or the rank that writes."""
    by_speaker: dict[tuple[str, int | None], list[tuple[float, Hit]]] = {}
    for hit in case.hits("checkpoint-saved"):
        if found := SAVED.search(hit.text):
            seconds = float(found[1] or found[2] or 0.0) or float(found[3] or 0.0) / 1000
            by_speaker.setdefault((hit.file, hit.rank), []).append((seconds, hit))
    saves = max(by_speaker.values(), key=len, default=[])
    if len(saves) < _SAVES:
        return
    (first, begin), (last, end) = saves[0], saves[-1]
    began, ended = _when(begin), _when(end)
    whole = ended - began if began is not None and ended is not None else 0.0
    most = sum(seconds for seconds, _ in saves[1:])  # the first ended where this time begins
    if min(seconds for seconds, _ in saves) >= _LONG_SAVE and 2 * most >= whole > 0:
        title = f"{min(most / whole, 1):.0%} of the time is saving checkpoints ({last:.0f} s each)"
    elif len(saves) > _SAVES and min(seconds for seconds, _ in saves[-2:]) >= max(
        _LONG_SAVE, _GREW * max(saves[1][0], first)
    ):
        title = f"saving a checkpoint takes {last:.0f} s, and took {first:.0f} s at first"
    else:
        return
    writes = [hit for hit in _nfs(case, "write:") if (found := _NFS.search(hit.text)) and float(found[3]) >= _SLOW_NFS]
    proof = [*writes[-1:], *(hit for _, hit in saves[-3:]), begin]
    yield Candidate(_FILES, 0.7 if writes else 0.46, title, proof, slows=True)
    if not writes:
        yield Candidate("app.straggler-timeout", 0.42, title, proof, slows=True)
