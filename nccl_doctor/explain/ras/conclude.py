"""What RAS snapshots prove. One snapshot of differing counts proves nothing: a running job looks like that too."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from nccl_doctor.explain.model import Proof
from nccl_doctor.explain.ras.report import Mismatch, Report, Side, Worker
from nccl_doctor.findings.model import Evidence


class Kind(enum.Enum):
    """What was found, in the order in which conclusions are listed."""

    DEAD = "dead"
    ERROR = "error"
    DIFFERENT_CALLS = "different-calls"
    STUCK = "stuck"
    SILENT = "silent"
    STATUS = "status"
    BEHIND = "behind"
    TIMEOUT = "timeout"
    INCOMPLETE = "incomplete"


class Conclusion(Proof, frozen=True, kw_only=True):
    """One thing the snapshots prove, or narrow down.

    ``ranks`` are ranks of the communicator (of the world only if it is the world's).
    """

    source: str = "ras"
    kind: Kind
    communicator: str = ""


_LATE = ("app.straggler-timeout", "app.collective-mismatch", "app.rank-exception")
_GONE = ("app.rank-exception", "sys.host-oom", "sys.node-failure", "net.peer-lost")
_BY_ERROR = {
    "Unhandled CUDA error": ("gpu.illegal-access", "gpu.fell-off-bus", "gpu.ecc", "gpu.nvlink"),
    "System error": ("ib.retry-exceeded", "net.peer-lost", "net.firewall"),
    "Remote process error": ("net.peer-lost", "app.rank-exception"),
}
_QUOTED = 6
_ORDER = {kind: position for position, kind in enumerate(Kind)}


def conclude(reports: Sequence[Report]) -> list[Conclusion]:
    """Conclusions from the newest snapshot, judged against the one before it, most telling first.

    ``reports`` are snapshots of one job, oldest first. An empty list says only that RAS saw nothing wrong.
    """
    if not reports:
        return []
    newest, before = reports[-1], reports[-2] if len(reports) > 1 else None
    found = [*_dead(newest), *_errors(newest), *_silent(newest)]
    found += [_status(newest, mismatch) for mismatch in newest.mismatches if mismatch.function == "status"]
    found += _counts(newest, before)
    if newest.timeouts:
        found.append(_timeouts(newest))
    if not found and not newest.complete:
        found.append(_breaks_off())
    return sorted(found, key=lambda item: (_ORDER[item.kind], item.communicator, item.title))


def _quote(report: Report, item: Worker | Side) -> Evidence:
    rank = item.rank if isinstance(item, Worker) else None
    return Evidence(item.text, source=report.source, line=item.line or None, rank=rank)


def _ranks(workers: Sequence[Worker]) -> tuple[int, ...]:
    return tuple(sorted({worker.rank for worker in workers if worker.rank is not None}))


def _who(workers: Sequence[Worker]) -> str:
    if not workers:
        return "ranks that RAS does not name"
    named = ", ".join(_name(worker) for worker in workers[:_QUOTED])
    return named + (f" and {len(workers) - _QUOTED} more" if len(workers) > _QUOTED else "")


def _name(worker: Worker) -> str:
    if worker.rank is None:
        return f"process {worker.pid}" + (f" on {worker.node} (GPU {worker.gpu})" if worker.node else "")
    where = f" (GPU {worker.gpu}, process {worker.pid} on {worker.node})" if worker.node else ""
    return f"rank {worker.rank}{where}"


def _dead(report: Report) -> list[Conclusion]:
    if not report.dead:
        return []
    pids = {worker.pid for worker in report.dead}
    lost = [worker for workers in report.missing_ranks.values() for worker in workers if worker.pid in pids]
    return [
        Conclusion(
            kind=Kind.DEAD,
            title=f"RAS considers dead: {_who(report.dead)}; every collective with it hangs",
            evidence=tuple(_quote(report, worker) for worker in [*report.dead, *lost][:_QUOTED]),
            candidates=_GONE,
            confidence=0.8,
            ranks=_ranks([*report.dead, *lost]),
            next="read that process's log and the node's kernel log: sudo dmesg -T | grep -iE 'oom|killed|xid'",
        )
    ]


def _errors(report: Report) -> list[Conclusion]:
    """Ranks that reported an error; those with only a remote error are victims if others reported another one."""
    found = []
    for communicator, workers in sorted(report.errors.items()):
        own = [worker for worker in workers if worker.error != "Remote process error"] or list(workers)
        said = sorted({worker.error or "an error" for worker in own})
        found.append(
            Conclusion(
                kind=Kind.ERROR,
                title=f"communicator {communicator}: {', '.join(said)} on {_who(own)}",
                evidence=tuple(_quote(report, worker) for worker in own[:_QUOTED]),
                candidates=_BY_ERROR.get(own[0].error, ()),
                confidence=0.6,
                ranks=_ranks(own),
                communicator=communicator,
                next="read the NCCL WARN lines of these ranks (NCCL_DEBUG=WARN): RAS keeps only the class of the error",
            )
        )
    return found


def _silent(report: Report) -> list[Conclusion]:
    dead = {worker.pid for worker in report.dead}
    silent = [worker for worker in report.silent if worker.pid not in dead]
    if not silent:
        return []
    return [
        Conclusion(
            kind=Kind.SILENT,
            title=f"no answer from the RAS thread of {_who(silent)}: the process is stopped, gone, or cut off",
            evidence=tuple(_quote(report, worker) for worker in silent[:_QUOTED]),
            candidates=_GONE,
            confidence=0.5,
            ranks=_ranks(silent),
            next="on that node: ps -o pid,stat,wchan:30,cmd -p PID (T: stopped, D: stuck in the kernel); "
            "after 60 s RAS knows whether it is dead",
        )
    ]


def _status(report: Report, mismatch: Mismatch) -> Conclusion:
    """Ranks of one communicator in different states: still initialising, finalising, or aborted."""
    odd = sorted(mismatch.sides, key=lambda side: side.count)[: max(1, len(mismatch.sides) - 1)]
    workers = [worker for side in odd for worker in side.workers]
    states = "; ".join(side.text for side in mismatch.sides)
    return Conclusion(
        kind=Kind.STATUS,
        title=f"communicator {mismatch.communicator}: ranks differ in status ({states})",
        evidence=tuple(_quote(report, side) for side in mismatch.sides[:_QUOTED]),
        candidates=("app.rank-exception", "app.pg-misuse", "app.straggler-timeout"),
        confidence=0.5,
        ranks=_ranks(workers),
        communicator=mismatch.communicator,
        next="read the logs of the ranks that are not RUNNING",
    )


def _counts(report: Report, before: Report | None) -> list[Conclusion]:
    """Ranks that launched fewer operations than the others, in the newest snapshot and the one before it."""
    found = []
    for communicator in sorted({mismatch.communicator for mismatch in report.mismatches}):
        differing = [
            mismatch
            for mismatch in report.mismatches
            if mismatch.communicator == communicator and mismatch.function != "status" and len(mismatch.sides) > 1
        ]
        if not differing:
            continue
        crossed = _crossed(differing)
        if before is not None and not _unchanged(report, before, communicator):
            continue  # the counts rose: this communicator is alive
        if crossed:
            found.append(_different_calls(report, differing, crossed, stuck=before is not None))
        else:
            found.extend(_behind(report, mismatch, stuck=before is not None) for mismatch in differing)
    return found


def _unchanged(report: Report, before: Report, communicator: str) -> bool:
    if communicator in report.counts and communicator in before.counts:
        return report.counts[communicator] == before.counts[communicator]

    def seen(snapshot: Report) -> list[tuple[str, list[tuple[int | None, int]]]]:
        return sorted(
            (mismatch.function, sorted((side.operation, side.count) for side in mismatch.sides))
            for mismatch in snapshot.mismatches
            if mismatch.communicator == communicator
        )

    return seen(report) == seen(before)


def _lowest(mismatch: Mismatch) -> Side:
    return min(mismatch.sides, key=lambda side: (side.operation or 0, side.count))


def _highest(mismatch: Mismatch) -> Side:
    return max(mismatch.sides, key=lambda side: (side.operation or 0, -side.count))


def _crossed(differing: list[Mismatch]) -> list[Worker]:
    """Ranks that are behind the others in one operation and ahead in another: they called something else.

    Both sides of such a difference are crossed; the smaller one is the odd one.
    """
    behind = {
        worker.rank: worker for item in differing for worker in _lowest(item).workers if _is_odd(_lowest(item), item)
    }
    ahead = {worker.rank for item in differing for worker in _highest(item).workers}
    return [worker for rank, worker in sorted(behind.items(), key=lambda item: item[0] or 0) if rank in ahead]


def _is_odd(side: Side, mismatch: Mismatch) -> bool:
    """Whether other ranks are as many at least: with two against two nobody is more suspect than the other."""
    return side.count <= max(other.count for other in mismatch.sides if other is not side)


def _different_calls(report: Report, differing: list[Mismatch], ranks: list[Worker], *, stuck: bool) -> Conclusion:
    """Of ranks that make the same calls, one that is ahead in one operation is behind in none, whenever each was asked: one
    snapshot proves the difference; only whether the job stands still takes two."""
    functions = " and ".join(mismatch.function for mismatch in differing)
    return Conclusion(
        kind=Kind.DIFFERENT_CALLS,
        title=f"communicator {differing[0].communicator}: {_who(ranks)} made other calls than the rest ({functions})",
        evidence=tuple(_quote(report, side) for mismatch in differing for side in mismatch.sides)[:_QUOTED],
        cause="app.collective-mismatch",
        candidates=("app.collective-mismatch",),
        confidence=0.9 if stuck else 0.75,
        ranks=_ranks(ranks),
        communicator=differing[0].communicator,
        next="make every rank issue the same collectives in the same order"
        if stuck
        else "take a second snapshot in 30 s (ncclras -v): equal counts mean that the job is stuck",
    )


def _behind(report: Report, mismatch: Mismatch, *, stuck: bool) -> Conclusion:
    low, high = _lowest(mismatch), _highest(mismatch)
    suspects = _who(low.workers) if low.workers else f"the {low.count} ranks"
    state = "has not moved between two snapshots" if stuck else "one snapshot alone: it may only be late"
    return Conclusion(
        kind=Kind.STUCK if stuck else Kind.BEHIND,
        title=f"communicator {mismatch.communicator}: {suspects} began operation {low.operation} of {mismatch.function}, "
        f"the others {high.operation} ({state})",
        evidence=(
            _quote(report, low),
            *(_quote(report, worker) for worker in low.workers[:_QUOTED]),
            _quote(report, high),
        ),
        candidates=_LATE,
        confidence=0.7 if stuck else 0.3,
        ranks=_ranks(low.workers),
        communicator=mismatch.communicator,
        next="take the stack of the rank with the lowest count (py-spy dump --pid PID)"
        if stuck
        else "take a second snapshot in 30 s (ncclras -v): equal counts mean stuck, the lowest is the suspect",
    )


def _timeouts(report: Report) -> Conclusion:
    return Conclusion(
        kind=Kind.TIMEOUT,
        title=f"{report.timeouts} RAS connections timed out while the snapshot was taken: it is not complete",
        evidence=(Evidence(report.timeouts_text, source=report.source),),
        candidates=("net.firewall", "net.peer-lost", "sys.node-failure"),
        confidence=0.3,
        next="nccl-doctor check --hosts HOSTFILE --stage connectivity, then ncclras -v -t 20",
    )


def _breaks_off() -> Conclusion:
    return Conclusion(
        kind=Kind.INCOMPLETE,
        title="the RAS report breaks off, or accuses processes in words that are not known: it does not say that nothing is wrong",
        evidence=(),
        confidence=0.0,
        next="take the RAS report again, to its end: ncclras -v",
    )
