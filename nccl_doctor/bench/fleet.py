"""Benchmark over hosts: connect, look, place, run, conclude. This machine is a fleet of one."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.bench.model import BenchPlan, Collector
from nccl_doctor.bench.outcome import INTERRUPTED, NOTHING_ASKED, Asked, Outcome, conclude
from nccl_doctor.bench.run import Run, prepare, read_collectives, time_needed
from nccl_doctor.bench.world import CannotRun, Prepared, World, place, read_prepared
from nccl_doctor.facts.machines import Reached, one_machine
from nccl_doctor.facts.model import Outcome as ProbeOutcome
from nccl_doctor.facts.model import ProbeResult, Reach
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.rules.collective_failures import lost_hosts
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
from nccl_doctor.transport.session import Session

LOCAL_RANKS = 2


class Refused(Exception):
    """Nothing was measured; the message says why, for the user. ``code`` is the exit code."""

    def __init__(self, text: str, code: ExitCode = ExitCode.NOTHING_CHECKED) -> None:
        super().__init__(text)
        self.code = code


class Fleet(msgspec.Struct, frozen=True):
    """The hosts to run on, how they are reached, and what may be done there."""

    entries: Sequence[HostEntry]
    connect: ConnectOptions
    master: str = ""  # host of rank 0; empty: the first
    local: bool = False  # this machine alone
    allow_busy: bool = False  # measure although other processes use the GPUs


class Watcher(Protocol):
    """Shows progress: a context manager that takes events."""

    def __enter__(self) -> Watcher:
        """Begin."""

    def __exit__(self, *exc: object) -> None:
        """End."""

    def event(self, host: str, event: dict[str, Any]) -> None:
        """An event came and has been collected."""


MakeWatcher = Callable[[World, Collector, int], Watcher]


def run_fleet(
    fleet: Fleet,
    plan: BenchPlan,
    *,
    asked: Asked = NOTHING_ASKED,
    progress: MakeWatcher | None = None,
    notice: Callable[[str], None] = lambda text: None,
    placed: Callable[[World], None] = lambda world: None,
) -> Outcome:
    """Run the plan over the hosts; raises :class:`Refused`. Ctrl-C gives what was measured until then.

    All of it or nothing: a host that cannot take part is an error, for the world would not be what was asked for. ``placed``
    hears of the world before any rank starts, and may end it by raising.
    """
    started = time.monotonic()
    deadline = Deadline(time_needed(plan) + fleet.connect.connect_s + 60.0)
    connected = connect_all(fleet.entries, fleet.connect, deadline)
    sessions = {name: item for name, item in connected.items() if isinstance(item, Session)}
    try:
        _all_reached(connected)
        prepared = _prepared(prepare(sessions, plan))
        _no_host_twice(prepared, sessions)
        plan, world = _plan_world(plan, prepared, sessions, fleet)
        if not fleet.allow_busy:
            _not_busy(prepared)
        placed(world)
        for text in _differences(prepared):
            notice(text)
        collector = Collector(world.size)
        answers, notes = _run(sessions, world, plan, deadline, collector, progress)
    finally:
        close_all(sessions.values())
    return conclude(
        plan=plan,
        world=world,
        results=collector.results(),
        facts=read_collectives(answers),
        prepared=prepared,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        asked=asked,
        notes=notes,
        lost=lost_hosts(answers),
    )


def _all_reached(connected: dict[str, Session | Reach]) -> None:
    bad = {name: item for name, item in connected.items() if isinstance(item, Reach)}
    if bad:
        lines = [f"{name}: {item.why}" for name, item in sorted(bad.items())]
        raise Refused(
            f"{len(bad)} of {len(connected)} hosts cannot take part:\n  " + "\n  ".join(lines)
            + "\nnccl-doctor check says what to do about each"
        )  # fmt: skip


def _prepared(answers: dict[str, ProbeResult]) -> dict[str, Prepared]:
    found: dict[str, Prepared] = {}
    bad: list[str] = []
    for name, answer in answers.items():
        prepared = read_prepared(answer)
        if isinstance(prepared, str):
            bad.append(f"{name}: {prepared}")
        elif prepared.torch_trouble:
            bad.append(f"{name}: {prepared.torch_trouble}")
        else:
            found[name] = prepared
    if bad:
        raise Refused("hosts that cannot take part:\n  " + "\n  ".join(bad))
    return found


def _no_host_twice(prepared: dict[str, Prepared], sessions: dict[str, Session]) -> None:
    """What one machine sends itself is no network, and its GPUs hold the ranks of one host."""
    at = {name: sessions[name].reach for name in prepared}
    seen = {
        name: Reached(host.host, at[name].address, at[name].port, frozenset(host.addresses))
        for name, host in prepared.items()
    }
    for names in one_machine(seen):
        raise Refused(
            f"{' and '.join(names)} are one machine, {prepared[names[0]].host}: keep one of the names", ExitCode.USAGE
        )


def _plan_world(
    plan: BenchPlan, prepared: dict[str, Prepared], sessions: dict[str, Session], fleet: Fleet
) -> tuple[BenchPlan, World]:
    master = fleet.master
    if master and master not in prepared:
        raise Refused(f"--master {master}: not among the hosts ({', '.join(list(prepared)[:8])})", ExitCode.USAGE)
    reached_at = {name: session.reach.address for name, session in sessions.items()}
    slots = {entry.name: entry.slots for entry in fleet.entries if entry.slots}
    try:
        world = place(prepared, plan, master, reached_at, slots)
        if fleet.local and not plan.ranks_per_host and world.backend == "gloo":
            plan = msgspec.structs.replace(plan, ranks_per_host=LOCAL_RANKS)
            world = msgspec.structs.replace(
                place(prepared, plan, master, reached_at), ranks_why="the default on one machine"
            )
    except CannotRun as reason:
        raise Refused(str(reason)) from reason
    gpu = all(host.gpus and host.torch.cuda for host in prepared.values())
    try:
        return plan.settled(world.backend, world.backend_why, gpu), world
    except ValueError as error:
        raise Refused(str(error), ExitCode.USAGE) from error


def _not_busy(prepared: dict[str, Prepared]) -> None:
    busy = [f"{name}: {line}" for name, host in prepared.items() for line in host.busy]
    if busy:
        raise Refused(
            "other processes use the GPUs; a benchmark would disturb them and measure nothing of worth "
            "(--allow-busy if you know better):\n  " + "\n  ".join(busy[:16])
        )
    unknown = [f"{name}: {host.busy_unknown}" for name, host in prepared.items() if host.gpus and host.busy_unknown]
    if unknown:
        raise Refused(
            "whether other processes use the GPUs is not known (--allow-busy measures all the same):\n  "
            + "\n  ".join(unknown[:16])
        )


def _differences(prepared: dict[str, Prepared]) -> list[str]:
    versions: dict[str, list[str]] = {}
    for name, host in prepared.items():
        versions.setdefault(host.torch.torch, []).append(name)
    if len(versions) < 2:
        return []
    return ["different torch on the hosts: " + "; ".join(f"{v} on {', '.join(n)}" for v, n in sorted(versions.items()))]


def _run(
    sessions: dict[str, Session],
    world: World,
    plan: BenchPlan,
    deadline: Deadline,
    collector: Collector,
    progress: MakeWatcher | None,
) -> tuple[dict[str, ProbeResult], tuple[str, ...]]:
    limit_s = deadline.left(time_needed(plan))
    total = sum(name in COLLECTIVES for name in plan.collectives) * len(plan.sizes) * max(1, len(plan.modes))
    paths: dict[str, list[dict[str, Any]]] = {share.name: [] for share in world.shares}
    with progress(world, collector, total) if progress else contextlib.nullcontext() as watcher:

        def take(host: str, event: dict[str, Any]) -> None:
            if event.get("event") == "path":
                paths[host].append(event)
            with contextlib.suppress(ValueError, KeyError, TypeError, ZeroDivisionError):  # a broken event is no result
                collector.take(event)
            if watcher:
                watcher.event(host, event)

        try:
            return Run(sessions, world, plan, limit_s, take).run(), ()
        except KeyboardInterrupt as interrupt:
            seen = {host: {"host": host, "events": events} for host, events in paths.items()}
            return {host: ProbeResult(ProbeOutcome.OK, data) for host, data in seen.items()}, (
                f"{INTERRUPTED}{str(interrupt) or 'Ctrl-C'}",
            )
