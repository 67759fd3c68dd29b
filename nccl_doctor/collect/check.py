"""`check`'s road from hosts to a bundle: connect, probe each host, let the hosts measure each other, collect."""

from __future__ import annotations

import datetime
import functools
import importlib
import pkgutil
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

import nccl_doctor.agent.probes
from nccl_doctor import __version__
from nccl_doctor.agent.probing import PROBES
from nccl_doctor.collect import job, mesh
from nccl_doctor.collect.progress import Progress, Silent
from nccl_doctor.collect.run import INTERRUPTED, CheckOptions, Run, hang_up_on_interrupt
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.interfaces import Carriers
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.model import BUNDLE_SCHEMA, Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.transport.fleet import close_all
from nccl_doctor.transport.session import Session

# What the mesh needs to know first: which address NCCL would hand out depends on interfaces, NCCL version and RDMA.
PROBES_BEFORE_MESH = ("interfaces", "system", "software", "environment")
# What a stage's rules go by of another stage's: NCCL's version and the RDMA devices decide which interfaces it uses; the
# variables are judged with those that stand in nccl.conf; whether there are GPUs, and on which path they reach the HCAs,
# is asked of each host that is judged by them.
ALSO_NEEDED = {
    "interfaces": ("system", "software"),
    "software": ("interfaces",),
    "topology": ("gpu",),
    "infiniband": ("gpu", "topology"),
}
KERNEL_LOG_S = 15.0
COLLECTIVES_LIMIT_S = 90.0


def local_probes(stages: Sequence[str]) -> dict[str, float]:
    """Probe name -> time limit in seconds, of the probes that these stages ask of each host by itself."""
    for module in pkgutil.iter_modules(nccl_doctor.agent.probes.__path__):
        importlib.import_module(f"{nccl_doctor.agent.probes.__name__}.{module.name}")
    also = {name for stage in stages for name in ALSO_NEEDED.get(stage, ())}
    return {
        name: declared.limit_s
        for name, declared in sorted(PROBES.items())
        if name not in mesh.PROBES and (declared.stage in stages or name in also)
    }


Choose = Callable[[Bundle], Collection[str]]


def collect(
    entries: Sequence[HostEntry], options: CheckOptions, progress: Progress | None = None, choose: Choose | None = None
) -> Bundle:
    """Run the planned stages over the hosts. Never raises for a host's trouble: that is what the bundle is for.

    ``choose`` says, from what is known before the collectives, which hosts these run on (default: all reached). A
    sick host would make them fail everywhere, and the others' result would then be unknown.
    """
    started = time.monotonic()
    run = Run(options, progress or Silent())
    connected: dict[str, Session | Reach] = {}

    def bundle(plan: Plan) -> Bundle:
        hosts = tuple(
            _host_facts(entry, connected[entry.name], run) for entry in sorted(entries, key=lambda one: one.name)
        )
        # To the millisecond: a history tells two runs of the same hosts by it, and small ones take less than a second.
        created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return Bundle(
            BUNDLE_SCHEMA, __version__, created, plan, hosts, round(time.monotonic() - started, 3), run.interrupted
        )

    try:
        with hang_up_on_interrupt(run):
            connected = run.connect(entries)
            if run.sessions and not run.interrupted:
                _examine(run)
            if run.sessions and "collectives" in options.plan.stages and not run.interrupted:
                before = tuple(stage for stage in options.plan.stages if stage != "collectives")
                partial = bundle(msgspec.structs.replace(options.plan, stages=before))
                _collectives(run, choose(partial) if choose else run.sessions)
                _read_links_again(run)
    finally:
        close_all(run.sessions.values())
    return bundle(options.plan)


def _host_facts(entry: HostEntry, found: Session | Reach, run: Run) -> HostFacts:
    reach = found.reach if isinstance(found, Session) else found
    if run.interrupted and reach.outcome is ReachOutcome.NOT_TRIED:
        reach = msgspec.structs.replace(reach, detail=INTERRUPTED, evidence=())
    return HostFacts(entry.name, reach, dict(sorted(run.results.get(entry.name, {}).items())), entry.slots)


def _examine(run: Run) -> None:
    """All stages but the collectives. Each host's own probes run while the mesh is measured."""
    if run.options.job:
        run.stage("ranks", functools.partial(_look_at_job, run, run.options.job))
        return
    before: dict[str, float] = {}
    beside: dict[str, float] = {}  # what can hang in a driver (GPUs, InfiniBand) holds nobody up
    for name, limit in local_probes(run.options.plan.stages).items():
        (before if name in PROBES_BEFORE_MESH else beside)[name] = limit

    def hardware() -> None:
        if beside:
            run.stage("hardware", lambda host, session: run.ask_all(host, session, beside))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(hardware), pool.submit(mesh.Mesh(run, before).measure)]:
            future.result()
    _read_links_again(run)


def _look_at_job(run: Run, options: job.JobOptions, host: str, session: Session) -> str:
    result = job.ask(session, options, run.left(options.interval_s + job.PROBE_S))
    run.keep(host, Job.PROBE, result)
    if result.outcome is Outcome.OK and result.data["processes"]:
        run.ask(host, session, KernelLogFact.PROBE, {}, KERNEL_LOG_S)
        run.ask(host, session, GpuFact.PROBE, job.GPU_USE, job.GPU_USE_S)
    return "" if result.outcome is Outcome.OK else result.outcome.value


def _read_links_again(run: Run) -> None:
    """Read a second time how often each link went down; a host that is silent now keeps its first reading."""
    if "interfaces" not in run.options.plan.stages:
        return

    def read(host: str, session: Session) -> None:
        before = run.results[host].get(Carriers.PROBE)
        run.ask(host, session, Carriers.PROBE, {}, 10.0)
        if before is not None and run.results[host][Carriers.PROBE].outcome is not Outcome.OK:
            run.keep(host, Carriers.PROBE, before)

    run.each(read, run.sessions)


def _collectives(run: Run, chosen: Collection[str]) -> None:
    """The short all-reduce and all-gather; the bench room knows how."""
    from nccl_doctor.bench.short import run_short

    for host in run.sessions:
        if host not in chosen:
            left_out = "left out: not known to be fit"
            run.keep(host, Collectives.PROBE, ProbeResult(Outcome.NOT_RUN, None, left_out))
    sessions = {host: session for host, session in run.sessions.items() if host in chosen}
    if not sessions:
        return
    plan = run.options.plan
    run.progress.begin("collectives", len(sessions))
    for host, result in run_short(
        sessions,
        deadline_s=run.left(COLLECTIVES_LIMIT_S),
        master=plan.master if plan.master in sessions else "",
        reached_at={host: session.reach.address for host, session in sessions.items()},
        env=plan.env,
    ).items():
        run.keep(host, Collectives.PROBE, result)
        run.progress.advance("collectives", host, "" if result.outcome is Outcome.OK else result.outcome.value)
    run.progress.end("collectives")
