"""Benchmark inside a job that torchrun, srun or mpirun started: this process is one rank; rank 0 tells the results."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from nccl_doctor.agent.collective import launch, ranks
from nccl_doctor.agent.gpu_holders import gpu_nodes
from nccl_doctor.bench.model import BenchPlan, Collector, RankRecord
from nccl_doctor.bench.outcome import INTERRUPTED, Asked, Outcome, conclude
from nccl_doctor.bench.world import Prepared, Share, World
from nccl_doctor.facts.collectives import Collectives, RankEnd, RankError, Where
from nccl_doctor.findings.exit_codes import ExitCode

REQUIRED = "NCCL_DOCTOR_IN_JOB"
_KEPT: list[Any] = []  # files that must stay open
TOLD_TO_END_S = 10.0  # a rank that left before rank 0 has told would be a failure to tell of
LINGER_S = 10.0  # launchers end all ranks when the first one fails: rank 0, who tells the result, must be that one


def identity_or_stop(stop: Callable[[str], NoReturn]) -> ranks.Identity | None:
    """This process's rank, None outside any launcher; unclear or missing variables stop with their names.

    A shell inside ``srun --pty`` or ``mpirun -np 1`` is no job of ranks: ``nccl-doctor bench`` then runs as anywhere.
    """
    try:
        identity = ranks.detect(os.environ)
    except ranks.RankError as error:
        stop(f"{error} (no benchmark of one rank is run in silence)")
    if identity is None and os.environ.get(REQUIRED):
        stop(
            "python -m nccl_doctor.bench is for torchrun, srun and mpirun, and none of them started this process; "
            "use nccl-doctor bench"
        )
    return identity if identity is None or identity.world > 1 or os.environ.get(REQUIRED) else None


class _Watch:
    """Keeps what this rank reports; on rank 0 also the results of all."""

    def __init__(self, identity: ranks.Identity) -> None:
        self.identity = identity
        self.collector = Collector(identity.world)
        self.events: list[dict[str, Any]] = []
        self.logs: dict[int, dict[str, Any]] = {}
        self.where = Where()
        self.error: RankError | None = None
        self.finished = False
        self.on_stuck: Callable[[], None] = lambda: None

    def take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        with contextlib.suppress(ValueError, KeyError, TypeError, ZeroDivisionError):
            self.collector.take(event)
        kind = event.get("event")
        if kind in ("stage", "stuck", "error", "done"):
            self.where = msgspec.convert({k: v for k, v in event.items() if k in Where.__struct_fields__}, Where)
        if kind == "rank-log":
            self.logs[int(event["of"])] = event
        elif kind in ("error", "stuck"):
            self.error = msgspec.convert(
                {k: v for k, v in event.items() if k in RankError.__struct_fields__}, RankError
            )
            text = (self.error.text or f"no progress for {self.where.step_s:.0f} s").splitlines()[0]
            who = f"rank {self.identity.rank} on {socket.gethostname()}"
            print(f"nccl-doctor: {who}: {kind} in {self.where.words}: {text}", file=sys.stderr, flush=True)
            if kind == "stuck":
                self.on_stuck()
        elif kind == "done":
            self.finished = True
        elif kind == "size" and self.identity.rank == 0:
            print(f"nccl-doctor: {event['collective']} {event['size']} B done", file=sys.stderr, flush=True)


def run(identity: ranks.Identity, plan: BenchPlan, asked: Asked, tell: Callable[[Outcome], int]) -> NoReturn:
    """Run this rank to its end, and leave with its status. Rank 0 tells what was found, and leaves with ``tell``'s."""
    from nccl_doctor.agent.collective.worker import Worker

    started = time.monotonic()
    backend, why = _backend(plan.backend)
    plan = plan.settled(backend, why, gpu=backend == "nccl")
    log = _log_file()
    os.environ.update({**plan.env, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": log or launch.LOG_FILE})
    os.environ["NCCL_DEBUG_SUBSYS"] = launch.SUBSYSTEMS
    watch = _Watch(identity)

    def outcome(*notes: str) -> Outcome:
        return _conclude(watch, plan, (backend, why), asked, time.monotonic() - started, notes)

    end = _End(identity, outcome, tell)
    watch.on_stuck = end.at_once
    end.on_signals()
    own = {"log_file": log, "expect_per_host": plan.ranks_per_host}
    status = Worker({**plan.for_worker(backend, identity.world), **own}, identity, watch.take).run()
    end.leave(status)


class _End:
    """The end of a rank, whichever comes first: its work is done, it is stuck, or the job is told to end."""

    def __init__(
        self, identity: ranks.Identity, outcome: Callable[..., Outcome], tell: Callable[[Outcome], int]
    ) -> None:
        self.tells, self.outcome, self.tell = identity.rank == 0, outcome, tell
        self.begun = threading.Lock()  # who comes second waits for the process to end

    def leave(self, status: int, *notes: str) -> NoReturn:
        """Not as Python ends: torch's and NCCL's threads are not waited for, which may hang in what they do."""
        self.begun.acquire()
        if self.tells:
            status = self.tell(self.outcome(*notes))
        elif status:
            time.sleep(LINGER_S if not notes else TOLD_TO_END_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def at_once(self, *notes: str) -> None:
        """From another thread, as the main one hangs in a collective. The other ranks' watchdog ends their process."""
        if not self.tells and not notes:
            time.sleep(LINGER_S)
            return
        if not self.tells:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what breaks from here on is no news
        try:
            self.leave(ExitCode.INTERRUPTED, *notes)
        except Exception:  # noqa: BLE001 - nobody else would tell it
            traceback.print_exc()
            os._exit(ExitCode.INTERNAL_ERROR)

    def on_signals(self) -> None:
        """SIGTERM, as a scheduler sends it at its time limit, and Ctrl-C: what was measured is told.

        Python's own handlers run in the main thread, which may be deep in a collective: a thread waits for the signals.
        """
        arrived, arrives = os.pipe()
        os.set_blocking(arrives, False)
        signal.set_wakeup_fd(arrives)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

        def wait() -> None:
            name = signal.Signals(os.read(arrived, 1)[0]).name
            self.at_once(INTERRUPTED + ("Ctrl-C" if name == "SIGINT" else name))

        threading.Thread(target=wait, daemon=True, name="signals").start()


def _backend(wanted: str) -> tuple[str, str]:
    if wanted != "auto":
        return wanted, "asked for"
    gpu = Path("/proc/driver/nvidia/gpus").is_dir() or gpu_nodes()  # in a sandbox (gVisor) only the latter are there
    return ("nccl", "this host has GPUs") if gpu else ("gloo", "this host has no GPU")


def _log_file() -> str:
    """Where NCCL's log goes: a file without a name, which stays open and of which nothing is left however this ends.

    Empty where none can be made (a full disk): the log then goes to stderr.
    """
    with contextlib.suppress(OSError):
        found = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        _KEPT.append(found)
        found.write(b"\n" * 4096)
        found.flush()  # a full disk shows only here
        os.ftruncate(found.fileno(), 0)
        return f"/proc/self/fd/{found.fileno()}"
    return ""


def _conclude(
    watch: _Watch, plan: BenchPlan, chosen: tuple[str, str], asked: Asked, seconds: float, notes: tuple[str, ...]
) -> Outcome:
    """``chosen``: the backend, and why."""
    identity, (backend, why) = watch.identity, chosen
    results = watch.collector.results()
    shares = _shares(results.ranks) or [Share(socket.gethostname(), 0, identity.world)]
    world = World(
        backend, f"{why}; started by {identity.launcher}", tuple(shares), shares[0].name, identity.master_addr,
        identity.master_port,
    )  # fmt: skip
    own: dict[str, list[int]] = {}  # a host has several shares where ranks are dealt out in turns
    for share in shares:
        own.setdefault(share.name, []).extend(range(share.first_rank, share.first_rank + share.ranks))
    facts: dict[str, Collectives] = {}
    for host, its_ranks in own.items():
        # Of a run that was told to end, nobody can say that a rank failed.
        ends = () if notes else tuple(_end(watch, rank, rank == identity.rank) for rank in its_ranks)
        paths = [(rank, path) for rank in its_ranks if (path := watch.logs.get(rank, {}).get("path"))]
        events = [dict(path, event="path", rank=rank) for rank, path in paths]
        if not facts:
            events += [event for event in watch.events if event.get("event") in ("size", "link", "gemm")]
        facts[host] = Collectives(
            host, sys.executable, ranks=ends, events=tuple(events), backend=backend, world=identity.world,
            master=world.master, master_addr=world.master_addr, master_port=world.master_port,
        )  # fmt: skip
    return conclude(
        plan=plan,
        world=world,
        results=results,
        facts=facts,
        prepared=_prepared(shares),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        seconds=seconds,
        asked=asked,
        notes=notes,
    )


def _shares(records: Iterable[RankRecord]) -> list[Share]:
    """Runs of ranks on one host, in rank order: a host has several where a scheduler dealt the ranks out in turns."""
    shares = []
    for host, group in itertools.groupby(sorted(records, key=lambda record: record.rank), lambda record: record.host):
        own = list(group)
        shares.append(Share(host, own[0].rank, len(own)))
    return shares


def _end(watch: _Watch, rank: int, own: bool) -> RankEnd:
    """How a rank ended: of this process's own all is known, of another one what it sent before the end."""
    kept = watch.logs.get(rank, {})
    return RankEnd(
        rank,
        where=watch.where if own else Where(stage="end" if kept else "unknown"),
        finished=watch.finished if own else bool(kept) and watch.finished,
        error=watch.error if own else None,
        output=str(kept.get("output", "")),
        output_cut=int(kept.get("output_cut", 0)),
    )


def _prepared(shares: list[Share]) -> dict[str, Prepared]:
    """Hardware facts of this host; the other hosts' are not known here, so there is no ceiling over hosts."""
    from nccl_doctor.agent.probes.bench import prepare

    if len({share.name for share in shares}) > 1:
        return {}
    with contextlib.suppress(Exception):
        return {shares[0].name: msgspec.convert(prepare({"python": sys.executable}), Prepared)}
    return {}
