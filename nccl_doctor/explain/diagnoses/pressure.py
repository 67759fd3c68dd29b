"""Slow runs: what a host lacks, by what its listings tell of its disks, its memory and its cores."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.held_up import last_waited, starving
from nccl_doctor.explain.diagnoses.speed import too_slow
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import hosts_of
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.signatures.pressure import CPU_TIMES, KSWAPD, READ_RATE, SAVED, TOP_MEMORY, TOP_SWAP

_FILES, _CPUS = "sys.clock-or-dns-or-fs", "sys.container"


def _held_up(case: Case) -> list[Hit]:
    """The lines that say that the job is too slow, or that its steps wait for data."""
    waits = starving(case)[-1:] or last_waited(case)
    return [*too_slow(case), *waits, *case.hits("data-share")[:1]]


# Resource -> "full" (all tasks wait, and nothing runs) or "some", from which percentage of a minute on, cause, what it says. Of
# cores some task waits for one on any busy host.
_PRESSURE = (
    ("io", "full", 50.0, _FILES, "all tasks wait for disks or file systems"),
    ("memory", "full", 20.0, "sys.host-oom", "all tasks wait for memory to be read back"),
    ("cpu", "some", 90.0, _CPUS, "tasks wait for a core"),
)
_PRESSURE_OF = re.compile(r"/proc/pressure/(\w+)|\b(\w+)\.pressure\b")
_NEAR = 3  # lines from the name of the file to its content


@diagnosis
def stalled_by_pressure(case: Case) -> Iterable[Candidate]:
    """Linux's pressure stall information: the host's, or the container's, tasks stand still for want of a resource for much of
    the last minute."""
    for hit in case.hits("pressure"):
        asked = [one for one in case.hits("pressure-of") if one.file == hit.file and 0 <= hit.line - one.line <= _NEAR]
        named = {one or other for one, other in _PRESSURE_OF.findall(asked[-1].text)} if asked else set()
        for resource, kind, least, cause, what in _PRESSURE:
            share = float(hit.groups["sixty"])
            if named != {resource} or kind not in hit.text or share < least:
                continue
            told = _held_up(case)
            strength = 0.66 if kind == "full" or told else 0.44
            title = f"{what} in {share:.0f} % of the time"
            yield Candidate(cause, strength, title, [hit, asked[-1], *told], hosts=hosts_of([hit]), slows=True)


_NFS = re.compile(r"(?<!\d)(\d{1,9}\.\d+)\s+\d+\.\d+\s+\d+\.\d+\s+\d+ \(\d+\.\d+%\)\s+(\d+\.\d+)\s+(\d+\.\d+)")
_SLOW_NFS = 100.0  # ms: a server that keeps up answers in a few
_OFTEN = 10.0  # reads a second


def _nfs(case: Case, what: str) -> Iterable[Hit]:
    """nfsiostat's rows of reads, or of writes."""
    headings, rows = case.hits("nfsiostat"), case.hits("nfsiostat-rows")
    return (row for head in headings if what in head.text for row in below(head, headings, rows)[:1])


@diagnosis
def slow_file_server(case: Case) -> Iterable[Candidate]:
    """nfsiostat: each read of a network file system takes a tenth of a second and more."""
    for hit in _nfs(case, "read:"):
        found = _NFS.search(hit.text)
        if found and float(found[1]) >= _OFTEN and float(found[3]) >= _SLOW_NFS:
            title = f"each read of the network file system takes {float(found[3]):.0f} ms (its server: {float(found[2]):.0f} ms)"
            yield Candidate(_FILES, 0.66, title, [hit, *_held_up(case)], hosts=hosts_of([hit]), slows=True)
            return


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


_FULL = 95.0  # percent of the time
_SLOW_DISK = 50.0  # ms: a disk that has little to do needs ten, a flash memory less than one


@diagnosis
def disk_at_its_limit(case: Case) -> Iterable[Candidate]:
    """iostat -x: a disk that is read from is busy all the time, and a read takes long: it cannot give more."""
    headings = case.hits("iostat")
    for head in headings:
        names = head.text.split()
        for row in below(head, headings, case.hits("iostat-rows")):
            cells = dict(zip(names[::-1], row.text.split()[::-1], strict=False))
            reads, awaited, busy = (
                _number(cells.get(name, "")) for name in ("r/s", "r_await" if "r_await" in cells else "await", "%util")
            )
            if reads >= 1 and busy >= _FULL and awaited >= _SLOW_DISK:
                title = f"a disk is busy in {busy:.0f} % of the time, and each read of it takes {awaited:.0f} ms"
                yield Candidate(_FILES, 0.62, title, [row, head, *_held_up(case)], hosts=hosts_of([row]), slows=True)
                return


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return 0.0


_WAITING = 40.0  # percent of all cores' time


@diagnosis
def cores_wait_for_disks(case: Case) -> Iterable[Candidate]:
    """top or iostat: much of the cores' time is waiting for disks or file systems. Which one, iostat -x, nfsiostat or the
    file system's own counters would tell."""
    told = [(float(hit.groups["waiting"]), hit) for hit in case.hits("iowait")]
    for hit in case.hits("avg-cpu-rows"):
        cells = [_number(cell) for cell in hit.text.split()]
        told += [(cells[3], hit)] if len(cells) == len(("user", "nice", "system", "iowait", "steal", "idle")) else []
    if told and max(told, key=lambda each: each[0])[0] >= _WAITING:
        waiting, hit = max(told, key=lambda each: each[0])
        title = f"the cores wait for disks or file systems in {waiting:.0f} % of their time"
        yield Candidate(_FILES, 0.46, title, [hit, *_held_up(case)], hosts=hosts_of([hit]), slows=True)


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?$")
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NOTHING_LEFT = 0.02  # of the host's memory
_SWAP_FULL = 0.9
_HARD_AT_WORK = 50.0  # percent of a core


def _memory(case: Case) -> Iterator[tuple[float, float, float, float, list[Hit]]]:
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
    return float(found[1]) * _SCALE[found[2]] if found else 0.0


@diagnosis
def memory_is_used_up(case: Case) -> Iterable[Candidate]:
    """free or top: next to no memory can be had, and the swap is full as well; or the kernel's search for memory keeps a core
    busy. What a program touches next must be read back first."""
    for memory, available, swap, used, lines in _memory(case):
        if available <= _NOTHING_LEFT * memory and used >= _SWAP_FULL * swap > 0:
            title = f"the host's memory is used up ({available / memory:.1%} can be had), and so is its swap"
            yield Candidate("sys.host-oom", 0.66, title, [*lines, *_held_up(case)], hosts=hosts_of(lines), slows=True)
    for hit in case.hits("kswapd"):
        found = KSWAPD.search(hit.text)
        if found and float(found[1]) >= _HARD_AT_WORK:
            title = f"the kernel looks for memory to give away all the time (kswapd: {found[1]} % of a core)"
            yield Candidate("sys.host-oom", 0.6, title, [hit, *_held_up(case)], hosts=hosts_of([hit]), slows=True)
            return


_SLOW_READ = 50e6  # bytes a second: less than a single disk gives


@diagnosis
def slow_reads(case: Case) -> Iterable[Candidate]:
    """dd or fio reads the data at less than a single disk gives, and the job is too slow or waits for its data."""
    told = _held_up(case)
    for hit in case.hits("read-rate") if told else ():
        found = READ_RATE.search(hit.text)
        rate = _amount("".join(found.groups()).upper()) if found else 0.0
        if 0 < rate < _SLOW_READ:
            title = f"the data is read at {rate / 1e6:.1f} MB/s"
            yield Candidate(_FILES, 0.6, title, [hit, *told], hosts=hosts_of([hit]), slows=True)
            return


@diagnosis
def one_core_for_all(case: Case) -> Iterable[Candidate]:
    """A rank with its loader's workers has a single core (Slurm's --cpus-per-task, mpirun's binding, taskset, a container's CPU
    set), and the job is too slow or waits for its data."""
    cores, told = case.hits("one-core"), _held_up(case)
    if cores and (told or any("number of worker" in hit.text for hit in cores)):  # else its work may need no more
        title = f"each rank, with its loader's workers, has one core: {cores[-1].text.strip()[:100]}"
        proof = [*cores[::-1][:4], *told]
        yield Candidate(
            _CPUS, 0.62 if told else 0.44, title, proof, hosts=hosts_of(cores), page="sys.cpu-limit", slows=True
        )
        yield Candidate("app.dataloader-worker", 0.36, title, proof, slows=True)


@diagnosis
def slow_clock(case: Case) -> Iterable[Candidate]:
    """The kernel gave up the CPU's own counter and reads the time from a slower clock, and the job is too slow."""
    hits, told = case.hits("tsc-unstable"), _held_up(case)
    if hits and told:
        title = "the kernel reads the time from a slow clock, as the CPU's counter is unstable"
        yield Candidate(_FILES, 0.46, title, [*hits[:2], *told], hosts=hosts_of(hits), slows=True)


_STOLEN = 20.0  # percent of the cores' time
_NO_IDLE = 2.0


@diagnosis
def cores_are_taken(case: Case) -> Iterable[Candidate]:
    """top: the hypervisor gives much of the cores' time to other virtual machines, or no core is ever idle, and it is too slow."""
    for hit in case.hits("cpu-times"):
        found, told = CPU_TIMES.search(hit.text), _held_up(case)
        idle, stolen = (float(found[1]), float(found[2])) if found else (100.0, 0.0)
        if stolen >= _STOLEN:
            title = f"the hypervisor gives {stolen:.0f} % of the cores' time to others"
            yield Candidate(_CPUS, 0.64, title, [hit, *told], hosts=hosts_of([hit]), page="sys.cpu-limit", slows=True)
        elif idle <= _NO_IDLE and told:
            title = "no core of the host is ever idle: its programs wait for one another"
            yield Candidate(_CPUS, 0.46, title, [hit, *told], hosts=hosts_of([hit]), page="sys.cpu-limit", slows=True)


_FAR_AWAY = 5.0  # ms: another building at least, or a queue


@diagnosis
def hosts_are_far_apart(case: Case) -> Iterable[Candidate]:
    """ping: an answer takes milliseconds, the hosts talk over TCP sockets, and it is too slow: each step of a ring waits as long.
    Without a complaint it may be a host of another network."""
    told = _held_up(case)
    for hit in case.hits("round-trip") if case.sockets and told else ():
        usual = float(hit.groups["usual"])
        if usual >= _FAR_AWAY:
            title = f"an answer of the other host takes {usual:.1f} ms: each step of a ring waits as long"
            yield Candidate("net.slow", 0.6, title, [hit, *case.sockets[:1], *told], slows=True)
            return
