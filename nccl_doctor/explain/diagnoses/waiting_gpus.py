"""GPUs side by side: which of them works, which waits, and which has the work of two programs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.gpu_listings import ALWAYS_BUSY, NAMELESS, GpuRow, gpu_rows
from nccl_doctor.explain.diagnoses.speed import too_slow
from nccl_doctor.explain.diagnoses.tables import FEWEST, tables
from nccl_doctor.explain.lines import hosts_of
from nccl_doctor.explain.model import Hit

_NEVER = 10.0
_WAITING = 0.25  # of its power limit: a kernel that only waits draws little more than an idle GPU
_COMPUTING = 0.75
_LITTLE = 0.6  # of what its neighbours draw


def _by_host(case: Case) -> Iterable[list[GpuRow]]:
    """The GPUs of each host that a listing shows with their load and power, by the last row of each."""
    hosts: dict[tuple[str, str], dict[object, GpuRow]] = defaultdict(dict)
    for row in gpu_rows(case):
        if row.load is not None and row.power:
            hosts[row.hit.file, row.host][row.name if row.name != NAMELESS else row.hit.line] = row
    return [list(rows.values()) for rows in hosts.values() if len(rows) >= FEWEST]


def _busy(rows: Iterable[GpuRow]) -> list[GpuRow]:
    return [row for row in rows if row.load is not None and row.load >= ALWAYS_BUSY]


@diagnosis
def all_gpus_wait(case: Case) -> Iterable[Candidate]:
    """All GPUs of a host are busy all the time and draw next to nothing: they wait in a collective, for a late rank, a slow
    link, or a GPU of another host. The stacks and timers of all ranks would tell for whom."""
    hosts = list(_by_host(case))
    waiting = [
        rows for rows in hosts if len(_busy(rows)) == len(rows) and all(row.power <= _WAITING * row.cap for row in rows)
    ]
    if hosts and len(waiting) == len(hosts):
        rows = waiting[0]
        usual = statistics.median(row.power for row in rows)
        title = f"all {len(rows)} GPUs are busy all the time and draw {usual:.0f} of {rows[0].cap:.0f} W: they wait in a collective"
        proof = [*(row.hit for row in rows[:4]), *too_slow(case)[:2]]
        causes = ("app.straggler-timeout", "net.slow", "sys.clock-or-dns-or-fs", "ib.gdr")
        yield from rivals(falling(causes, 0.42, 0.02), title, proof, slows=True)


# W: A100, H100 and their like in a kernel of NCCL that waits; a T4 or L4 never draws so much.
_LEAST_WATTS, _MOST_WATTS = 80.0, 145.0
_ALIKE = 1.3  # between the most and the least


@diagnosis
def busy_without_work(case: Case) -> Iterable[Candidate]:
    """nvidia-smi shows GPUs of servers busy all the time that all draw little: each waits in a kernel of NCCL, and no step was
    told. For whom, or for what link, the GPUs do not know."""
    hits = [] if case.has("progress") else case.hits("busy-and-watts")
    watts = [float(hit.groups["watts"]) for hit in hits]
    if len(watts) >= FEWEST and _LEAST_WATTS <= min(watts) <= max(watts) <= min(_MOST_WATTS, _ALIKE * min(watts)):
        title = f"all GPUs are busy at {min(watts):.0f} to {max(watts):.0f} W: they wait in a collective, for whom does not show"
        causes = ("app.straggler-timeout", "app.collective-mismatch", "ib.retry-exceeded", "sw.nccl-bug")
        yield from rivals(falling(causes, 0.38, 0.02), title, hits[:8], vague=True)


@diagnosis
def one_gpu_is_waited_for(case: Case) -> Iterable[Candidate]:
    """One GPU of a host has nothing to do, and all its neighbours are busy and draw little: they wait for the rank that has it,
    and that one works on the CPU (its data, a checkpoint, Python) or stands still. Without a complaint it may be a free one."""
    for rows in _by_host(case):
        idle = [row for row in rows if row.load is not None and row.load <= _NEVER]
        others, told = _busy(rows), too_slow(case)
        little = all(row.power <= 2 * _WAITING * row.cap if row.cap else told for row in others)
        if len(idle) == 1 and len(others) == len(rows) - 1 and little:
            usual = statistics.median(row.power for row in others)
            title = f"{idle[0].name} has nothing to do, and {len(others)} others are busy at {usual:.0f} W: they wait for its rank"
            proof = [idle[0].hit, *(row.hit for row in others[:3]), *told[:1]]
            causes = ("app.straggler-timeout", "app.dataloader-worker", "sys.clock-or-dns-or-fs")
            strengths = falling(causes, 0.56 if told else 0.46, 0.1)
            yield from rivals(strengths, title, proof, hosts=hosts_of([idle[0].hit]), slows=True)


@diagnosis
def gpu_that_draws_little(case: Case) -> Iterable[Candidate]:
    """A GPU is as busy as its neighbours and draws far less than they do, which compute near their power limit: it is held
    back (heat, power, its clock), or it waits for them, and has less to do. Its clock and the reasons for it would tell."""
    for rows in map(_busy, _by_host(case)):
        usual = statistics.median(row.power for row in rows) if len(rows) >= FEWEST else 0.0
        little = [row for row in rows if row.power <= _LITTLE * usual]
        others = [row for row in rows if row not in little]
        if little and all(row.power >= _COMPUTING * row.cap > 0 for row in others):
            title = f"{little[0].name} draws {little[0].power:.0f} W where its neighbours draw {usual:.0f} W at the same load"
            told = too_slow(case)
            proof = [*(row.hit for row in little), *(row.hit for row in others[:3]), *told[:1]]
            strengths = {"gpu.thermal-power": 0.56 if told else 0.46, "app.straggler-timeout": 0.4}
            yield from rivals(strengths, title, proof, hosts=hosts_of(row.hit for row in little), slows=True)


class _Process(msgspec.Struct, frozen=True):
    """A program that computes on a GPU."""

    gpu: str
    pid: str
    program: str
    hit: Hit


_IN_BOX = re.compile(r"\|\s+(\d+)\s+(?:N/A\s+N/A\s+)?(\d+)\s+C\s+(\S.{0,100}?)\s+(\d+)MiB \|")
_IN_PMON = re.compile(r"(?:^|\s)(\d+)\s+(\d+)\s+C\s+(\d+)\s+\d+\s.{0,60}?(\S{1,60})\s*$")
_IN_APPS = re.compile(r"(GPU-[0-9a-f-]{8,40}|[0-9A-F]{8}:[0-9A-F:.]{7,12}), (\d+), (\S.{0,200}?), (\d+) MiB")
_IN_APPS_LAST = re.compile(
    r"(GPU-[0-9a-f-]{8,40}), (\d+), (?=\d+ MiB, (\S.{0,200}))(\d+) MiB"
)  # the program's name last
_MUCH = 1024  # MiB: contexts of helpers are smaller
_WORKS = 20  # percent of the GPU's time


def _processes(case: Case) -> Iterable[_Process]:
    for hit in case.hits("gpu-process"):
        found = _IN_BOX.search(hit.text) or _IN_APPS.search(hit.text) or _IN_APPS_LAST.search(hit.text)
        if found and int(found[4]) >= _MUCH:
            yield _Process(found[1], found[2], found[3].rpartition("/")[2], hit)
    for hit in case.hits("gpu-process-table-rows"):
        found = _IN_PMON.search(hit.text)
        if found and int(found[3]) >= _WORKS:
            yield _Process(found[1], found[2], found[4], hit)


def _orphans(case: Case) -> dict[str, Hit]:
    """Of ps: the processes whose parent has ended, while others of the listing have one."""
    found = {}
    for head, rows in tables(case, "process-table"):
        names = head.text.split()
        if not {"PID", "PPID"}.issubset(names):
            continue  # words that begin so, or the end of a very long line
        at, of = names.index("PID"), names.index("PPID")
        listed = [(row.text.split(), row) for row in rows]
        found.update({cells[at]: row for cells, row in listed if len(cells) >= len(names) and cells[of] == "1"})
    return found


@diagnosis
def gpus_with_two_programs(case: Case) -> Iterable[Candidate]:
    """Two processes of the same program compute on each of several GPUs, and it is too slow, or one of them is an orphan of
    an earlier run: each gets a part of the GPU's time. Servers that share a GPU on purpose complain of nothing."""
    on: dict[str, dict[str, _Process]] = defaultdict(dict)
    for process in _processes(case):
        on[process.gpu][process.pid] = process
    shared = [list(its.values()) for its in on.values() if len(its) > len({one.program for one in its.values()})]
    orphans = {pid: row for pid, row in _orphans(case).items() if any(pid == one.pid for its in shared for one in its)}
    told = too_slow(case)
    yield from _stranger({gpu: list(its.values()) for gpu, its in on.items()}, told)
    if len(shared) > 1 and (told or orphans):
        title = f"{len(shared)} GPUs have the work of two processes of one program each"
        if orphans:
            title += f"; of an earlier run are {', '.join(list(orphans)[:8])}, whose parent has ended"
        proof = [*list(orphans.values())[:4], *(one.hit for its in shared[:2] for one in its), *told[:2]]
        strength = 0.76 if orphans else 0.6
        yield Candidate("gpu.duplicate", strength, title, proof, hosts=hosts_of(proof), page="gpu.busy", slows=True)


def _stranger(on: dict[str, list[_Process]], told: list[Hit]) -> Iterable[Candidate]:
    """A few GPUs have one program more than the others of the host, and it is too slow: all ranks wait for those that share."""
    usual = statistics.median(len(its) for its in on.values()) if len(on) >= FEWEST else 0
    crowded = {gpu: its for gpu, its in on.items() if len(its) > usual}
    if told and usual and 0 < len(crowded) <= len(on) / FEWEST:
        proof = [*(one.hit for its in crowded.values() for one in its), *told[:2]]
        title = f"GPU {', '.join(crowded)} has the work of another program as well: the others wait for it"
        yield Candidate("gpu.duplicate", 0.66, title, proof, hosts=hosts_of(proof), page="gpu.busy", slows=True)
