"""The attempts of a job whose processes were started again: its log holds all of them, and only the last one ended it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.lines import by_file, in_order, later
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit, Role
from nccl_doctor.explain.summary import HitGroup, Summary

NEXT = "attempt-begins"
# What a process says at its start only
_STARTS = (
    "nccl-version",
    "nccl-init-start",
    "bootstrap-using",
    "world-size",
    "engine-names-its-nccl",
    "deepspeed-init",
)
_GPU = re.compile(r":\d+:\d+ \[(\d+)\] NCCL")  # of the process, as NCCL names it
# How launchers tell that processes have ended
_ENDS = (
    "torchrun-exit",
    "torchrun-failed",
    "mpi-abort",
    "spawn-exit",
    "cancelled",
    "child-terminated",
    "ended-with-error",
)
_WORK = ("nccl-init-complete", "progress")  # no job comes to it while one of its processes has ended


def last_attempt(logs: Logs) -> Summary | None:
    """What is told of the last attempt, and at the start of the first one; None where the logs hold one attempt only."""
    firsts = _first_signs(logs)
    begins = {file: line for file, line in _begins(logs).items() if firsts.get(file, line) < line}
    if not begins:
        return None

    def of_it(hit: Hit) -> bool:
        return hit.line >= begins.get(hit.file, 0)

    def kept(name: str, group: HitGroup) -> HitGroup:
        if name == NEXT:
            return group
        signature = logs.signatures.get(name)
        stays = signature is not None and signature.role is Role.FACT
        hits = [hit for hit in group.hits if of_it(hit) or (stays and hit.line < firsts[hit.file])]
        lasts = {file: last for file, last in group.lasts.items() if of_it(last)}
        hits = in_order((*hits, *lasts.values()))  # of lines alike only the first is in hits
        return HitGroup(len(hits), hits, lasts)

    groups = {name: kept(name, group) for name, group in logs.summary.groups.items()}
    return _only(logs.summary, groups, of_it)


def before(logs: Logs, launch: Hit) -> Summary:
    """What is told above this line, in its file, and in the others."""

    def of_it(hit: Hit) -> bool:
        return hit.file != launch.file or hit.line < launch.line

    groups = {
        name: HitGroup(
            group.count,
            [hit for hit in group.hits if of_it(hit)],
            {file: last for file, last in group.lasts.items() if of_it(last)},
        )
        for name, group in logs.summary.groups.items()
    }
    return _only(logs.summary, groups, of_it)


def _only(whole: Summary, groups: dict[str, HitGroup], of_it: Callable[[Hit], bool]) -> Summary:
    """The summary with these groups, and of all else the lines that belong to it."""
    return msgspec.structs.replace(
        whole,
        groups={name: group for name, group in groups.items() if group.hits},
        tracebacks=[item for item in whole.tracebacks if of_it(item.hit)],
        before={file: list(filter(of_it, hits)) for file, hits in whole.before.items()},
        tails={file: list(filter(of_it, hits)) for file, hits in whole.tails.items()},
        failed=list(filter(of_it, whole.failed)),
        stepped={file: hit for file, hit in whole.stepped.items() if of_it(hit)},
        last_of_rank={rank: hit for rank, hit in whole.last_of_rank.items() if of_it(hit)},
    )


def _begins(logs: Logs) -> dict[str, int]:
    """The line at which the last attempt begins, in each file that tells of several: the first that says so below the end of
    the one before."""
    ends = by_file(logs.hits(*_ENDS))
    begins = {}
    for file, signs in by_file((*logs.hits(NEXT), *logs.lasts(NEXT), *_resumed(logs), *_started(logs, ends))).items():
        last = max(sign.line for sign in signs)
        end = max((one.line for one in ends.get(file, ()) if one.line < last), default=-1)
        begins[file] = min(sign.line for sign in signs if sign.line > end)
    return begins


def _resumed(logs: Logs) -> Iterator[Hit]:
    """Where a program that had worked before goes on from a checkpoint."""
    works = logs.hits("progress")
    return (hit for hit in logs.lasts("resumed") if any(later(hit, work) for work in works))


def _started(logs: Logs, ends: dict[str, list[Hit]]) -> Iterator[Hit]:
    """Where a process starts on a GPU on which another one ran, or starts and works after a launcher told of the end of some."""
    worked = {
        file: max(work.line for work in works)
        for file, works in by_file(work for name in _WORK for work in logs.lasts(name)).items()
    }
    starts = in_order(hit for name in _STARTS for hit in (*logs.lasts(name), *logs.hits(name)))  # hits know their ranks
    # The first line of each process. Where each sees one GPU only, NCCL gives all of them the number 0: ranks tell them apart.
    gpus: dict[tuple[str, str, str, int | None], dict[str, Hit]] = {}
    for hit in starts:
        if gpu := _GPU.search(hit.text):
            gpus.setdefault((hit.file, hit.host, gpu[1], hit.rank), {}).setdefault(hit.pid, hit)
        if hit.file in ends and ends[hit.file][0].line < hit.line < worked.get(hit.file, 0):
            yield hit
    for processes in gpus.values():
        yield from list(processes.values())[1:]


def _first_signs(logs: Logs) -> dict[str, int]:
    """The first line of each file that tells of work or of a trouble."""
    told = (hit for item in logs.seen(Role.CAUSE, Role.SYMPTOM, Role.PROGRESS) for hit in logs.hits(item.name))
    signs = by_file((*told, *(item.hit for item in logs.summary.tracebacks)))
    return {file: min(hit.line for hit in hits) for file, hits in signs.items()}
