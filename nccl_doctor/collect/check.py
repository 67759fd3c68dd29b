"""`check`'s road from hosts to a bundle: connect, probe each host, let the hosts measure each other, collect."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import pkgutil
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import msgspec

import nccl_doctor.agent.probes
from nccl_doctor import __version__
from nccl_doctor.agent.probes.mesh import AT_ONCE, RETRY_S
from nccl_doctor.agent.probing import PROBES
from nccl_doctor.collect import job, mesh_plan
from nccl_doctor.collect.progress import Progress, Silent
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.interfaces import Carriers
from nccl_doctor.facts.job import Job
from nccl_doctor.facts.kernel_log import KernelLogFact
from nccl_doctor.facts.mesh import Links, Listening, Names, Resolver, Throughput
from nccl_doctor.facts.model import (
    BUNDLE_SCHEMA,
    Bundle,
    Fact,
    HostFacts,
    Outcome,
    Plan,
    ProbeResult,
    Reach,
    ReachOutcome,
    fact_of,
)
from nccl_doctor.inventory.model import HostEntry
from nccl_doctor.rules.engine import Host, MissingFact
from nccl_doctor.rules.interface_view import view
from nccl_doctor.rules.localise import Pair
from nccl_doctor.rules.mesh_pairs import late_hosts, pairs, perhaps_limited, shifts
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
from nccl_doctor.transport.session import Session

F = TypeVar("F", bound=Fact)

# Probes that are not asked of every host by itself: the mesh plan decides who measures whom.
MESH_PROBES = ("names", "time", "listening", "links", "path-mtu", "throughput")
# What the mesh needs to know first: which address NCCL would hand out depends on interfaces, NCCL version and RDMA.
PROBES_BEFORE_MESH = ("interfaces", "system", "software", "environment")
# What a stage's rules go by of another stage's: NCCL's version and the RDMA devices decide which interfaces it uses; the
# variables are judged with those that stand in nccl.conf.
ALSO_NEEDED = {"interfaces": ("system", "software"), "software": ("interfaces",)}
KERNEL_LOG_S = 15.0
COLLECTIVES_LIMIT_S = 90.0
CONNECT_TIMEOUT_S = 3.0  # the agent connects anew each half second: six chances and more within it
CONNECTS = int(CONNECT_TIMEOUT_S / RETRY_S)  # of a target that never answers
AGAIN_S = 12.0  # for each host whose unanswered connects are tried again, one at a time
PARALLEL_CALLS = 128
INTERRUPTED = "interrupted"


class CheckOptions(msgspec.Struct, frozen=True):
    """What the user asked of ``check``."""

    plan: Plan
    connect: ConnectOptions
    deadline_s: float = 180.0
    host_limit_s: float = 60.0
    job: job.JobOptions | None = None  # look at a running job instead, and measure nothing beside it


def local_probes(stages: Sequence[str]) -> dict[str, float]:
    """Probe name -> time limit in seconds, of the probes that these stages ask of each host by itself."""
    for module in pkgutil.iter_modules(nccl_doctor.agent.probes.__path__):
        importlib.import_module(f"{nccl_doctor.agent.probes.__name__}.{module.name}")
    also = {name for stage in stages for name in ALSO_NEEDED.get(stage, ())}
    return {
        name: declared.limit_s
        for name, declared in sorted(PROBES.items())
        if name not in MESH_PROBES and (declared.stage in stages or name in also)
    }


class _Run:
    """One run's state: the live sessions and what they have told so far."""

    def __init__(self, options: CheckOptions, progress: Progress):
        self.options = options
        self.deadline = Deadline(options.deadline_s)
        self.progress = progress
        self.sessions: dict[str, Session] = {}
        self.results: dict[str, dict[str, ProbeResult]] = {}
        self.lock = threading.Lock()
        self.interrupted = False

    def connect(self, entries: Sequence[HostEntry]) -> dict[str, Session | Reach]:
        """A session with every host, or why there is none."""

        def told(name: str, found: Session | Reach) -> None:
            self.progress.advance("connect", name, found.outcome.value if isinstance(found, Reach) else "")

        self.progress.begin("connect", len(entries))
        connected = connect_all(entries, self.options.connect, self.deadline, told)
        self.progress.end("connect")
        self.sessions = {name: found for name, found in connected.items() if isinstance(found, Session)}
        self.results = {name: {} for name in self.sessions}
        return connected

    def left(self, limit_s: float) -> float:
        """Seconds a call may take: its own limit, or what the run has left."""
        return max(0.1, self.deadline.left(limit_s))

    def interrupt(self) -> None:
        """End the run now: sessions are closed, so that every call that waits for one returns."""
        self.interrupted = True
        self.deadline.end()
        threading.Thread(target=close_all, args=(list(self.sessions.values()),), daemon=True).start()

    def keep(self, host: str, probe: str, result: ProbeResult) -> None:
        """Keep a result. What comes after an interruption saw us hang up (agents end their ranks and listeners)."""
        with self.lock:
            if self.interrupted:
                self.results[host].setdefault(probe, ProbeResult(Outcome.NOT_RUN, None, INTERRUPTED))
            else:
                self.results[host][probe] = result

    def facts(self, kind: type[F]) -> dict[str, F]:
        """The hosts' facts of this kind, as far as they were collected."""
        return {host: fact for host, results in self.results.items() if (fact := fact_of(results, kind)) is not None}

    def each(self, work: Callable[[str, Session], None], sessions: Mapping[str, Session]) -> None:
        """``work`` on these sessions, many at a time."""
        with ThreadPoolExecutor(min(PARALLEL_CALLS, max(1, len(sessions)))) as pool:
            for future in [pool.submit(work, name, session) for name, session in sessions.items()]:
                future.result()

    def stage(
        self, name: str, work: Callable[[str, Session], str | None], then: Callable[[], None] | None = None
    ) -> None:
        """``work`` on every session, then ``then``, shown as a stage; what ``work`` returns is the host's trouble."""

        def shown(host: str, session: Session) -> None:
            self.progress.advance(name, host, work(host, session) or "")

        self.progress.begin(name, len(self.sessions))
        self.each(shown, self.sessions)
        if then:
            then()
        self.progress.end(name)

    def ask_all(self, host: str, session: Session, probes: Mapping[str, float]) -> str:
        """Several probes at once, kept; the names of those that ended badly."""
        requests: dict[str, tuple[dict[str, Any], float]] = {
            name: ({}, self.left(min(limit, self.options.host_limit_s))) for name, limit in probes.items()
        }
        results = session.probes(requests)
        for name, result in results.items():
            self.keep(host, name, result)
        return ", ".join(
            name for name, result in results.items() if result.outcome in (Outcome.TIMED_OUT, Outcome.FAILED)
        )

    def ask(self, host: str, session: Session, probe: str, arguments: dict[str, Any], limit_s: float) -> None:
        """One probe on one host, kept; past the deadline it is not run, and said so."""
        if self.interrupted or self.deadline.passed:
            self.keep(host, probe, ProbeResult(Outcome.NOT_RUN, None, "the run's deadline had passed"))
            return
        self.keep(host, probe, session.probe(probe, arguments, self.left(limit_s)))


Choose = Callable[[Bundle], Collection[str]]


def collect(
    entries: Sequence[HostEntry], options: CheckOptions, progress: Progress | None = None, choose: Choose | None = None
) -> Bundle:
    """Run the planned stages over the hosts. Never raises for a host's trouble: that is what the bundle is for.

    ``choose`` says, from what is known before the collectives, which hosts these run on (default: all reached). A
    sick host would make them fail everywhere, and the others' result would then be unknown.
    """
    started = time.monotonic()
    run = _Run(options, progress or Silent())
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


class Interruptible(Protocol):
    """A run that can be ended before its end."""

    interrupted: bool

    def interrupt(self) -> None:
        """End it now; what was measured is kept."""


@contextlib.contextmanager
def hang_up_on_interrupt(run: Interruptible) -> Iterator[None]:
    """Ctrl-C, or a signal in its place, ends the run but keeps what was measured; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang_up(*_: object) -> None:
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupt()

    previous = signal.signal(signal.SIGINT, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _host_facts(entry: HostEntry, found: Session | Reach, run: _Run) -> HostFacts:
    reach = found.reach if isinstance(found, Session) else found
    if run.interrupted and reach.outcome is ReachOutcome.NOT_TRIED:
        reach = msgspec.structs.replace(reach, detail=INTERRUPTED, evidence=())
    return HostFacts(entry.name, reach, dict(sorted(run.results.get(entry.name, {}).items())), entry.slots)


def _examine(run: _Run) -> None:
    """All stages but the collectives. Each host's own probes run while the mesh is measured."""
    if run.options.job:
        run.stage("ranks", functools.partial(_look_at_job, run, run.options.job))
        return
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(_host_stages, run), pool.submit(_mesh_stages, run)]:
            future.result()
    _read_links_again(run)


def _look_at_job(run: _Run, options: job.JobOptions, host: str, session: Session) -> str:
    result = job.ask(session, options, run.left(options.interval_s + job.PROBE_S))
    run.keep(host, Job.PROBE, result)
    if result.outcome is Outcome.OK and result.data["processes"]:
        run.ask(host, session, KernelLogFact.PROBE, {}, KERNEL_LOG_S)
        run.ask(host, session, GpuFact.PROBE, job.GPU_USE, job.GPU_USE_S)
    return "" if result.outcome is Outcome.OK else result.outcome.value


def _read_links_again(run: _Run) -> None:
    """The second reading of how often each link went down; a host that is silent now keeps the one it gave before."""
    if "interfaces" not in run.options.plan.stages:
        return

    def read(host: str, session: Session) -> None:
        before = run.results[host].get(Carriers.PROBE)
        run.ask(host, session, Carriers.PROBE, {}, 10.0)
        if before is not None and run.results[host][Carriers.PROBE].outcome is not Outcome.OK:
            run.keep(host, Carriers.PROBE, before)

    run.each(read, run.sessions)


def _host_stages(run: _Run) -> None:
    """What can hang in a driver (GPUs, InfiniBand): asked beside the mesh, so that it holds nobody up."""
    probes = {
        name: limit for name, limit in local_probes(run.options.plan.stages).items() if name not in PROBES_BEFORE_MESH
    }
    if probes:
        run.stage("hardware", lambda host, session: run.ask_all(host, session, probes))


def _mesh_stages(run: _Run) -> None:
    plan = run.options.plan
    token = secrets.token_hex(16)
    run.progress.begin("host facts", len(run.sessions))
    names = sorted(run.sessions)
    master = plan.master if plan.master in run.sessions else ""
    first = {name: limit for name, limit in local_probes(plan.stages).items() if name in PROBES_BEFORE_MESH}
    reference = master or names[0]
    run.ask(reference, run.sessions[reference], "names", {"names": names}, 20.0)
    told = run.facts(Names).get(reference)
    same_as = {name: answer.addresses for name, answer in told.resolved.items()} if told else {}

    def prepare(host: str, session: Session) -> None:
        _measure_clock(run, host, session)
        trouble = run.ask_all(host, session, first)
        if host != reference:
            run.ask(host, session, "names", {"names": names, "same_as": same_as, "reference": reference}, 20.0)
        arguments = {
            "token": token,
            "name": host,
            "master_port": plan.master_port if host == master else None,
            "ephemeral": mesh_plan.port_count(len(names)),
            "share": names.index(host) / len(names),
        }
        run.ask(host, session, "listening", arguments, 10.0)
        run.progress.advance("host facts", host, trouble)

    run.each(prepare, run.sessions)
    run.progress.end("host facts")
    if len(run.sessions) > 1 and {"connectivity", "ports", "interfaces"} & set(plan.stages):
        _measure_each_other(run, token, master)
    else:
        _release_master_port(run, master)


def _release_master_port(run: _Run, master: str) -> None:
    """Nobody connects to it any more, and another run beside this one waits for it."""
    if master:
        run.sessions[master].probe("release", {"port": run.options.plan.master_port}, run.left(5.0))


def _measure_clock(run: _Run, host: str, session: Session) -> None:
    """Offset against this machine's clock, by the exchange with the shortest round trip of three."""
    best: tuple[float, float] | None = None
    for _ in range(3):
        before = time.time()
        result = session.probe("time", {}, run.left(5.0))
        after = time.time()
        if result.outcome is not Outcome.OK:
            run.keep(host, "clock", result)
            return
        trip = after - before
        if best is None or trip / 2 < best[1]:
            best = (float(result.data["time"]) - (before + after) / 2, trip / 2)
    assert best is not None
    data = {"offset": round(best[0], 6), "uncertainty": round(best[1], 6)}
    run.keep(host, "clock", ProbeResult(Outcome.OK, data))


def _measure_each_other(run: _Run, token: str, master: str) -> None:
    plan = run.options.plan
    names, listening = run.facts(Names), run.facts(Listening)
    resolver = Resolver(names)
    reached_at = {host: session.reach.address for host, session in run.sessions.items()}
    addresses = {host: mesh_plan.data_address(host, names.get(host), resolver, reached_at) for host in run.sessions}
    peers = mesh_plan.by_source(pairs(sorted(run.sessions), plan.mesh))
    chosen = _nccl_addresses(run)

    def connect(host: str, session: Session) -> None:
        targets = mesh_plan.link_targets(host, peers[host], resolver, listening, addresses, chosen, master)
        run.keep(host, Links.PROBE, _connect(run, session, token, targets))

    def connect_more() -> None:
        _sweep(run, token, listening, addresses)
        _connect_again(run, token, listening, addresses)
        _release_master_port(run, master)

    run.stage("ports", connect, connect_more)
    if "connectivity" not in plan.stages:
        return
    links = run.facts(Links)

    def measure_paths(host: str, session: Session) -> None:
        def target(peer: str, port: int) -> dict[str, Any]:
            return {"peer": peer, "address": mesh_plan.best_address(host, peer, links, addresses), "port": port}

        small = [target(peer, listening[peer].udp) for peer in peers[host] if peer in listening and listening[peer].udp]
        run.ask(host, session, "path-mtu", {"token": token, "targets": small}, 20.0)

    run.stage("paths", measure_paths)
    if not plan.quick:
        _measure_throughput(run, token, listening, links, addresses)


def _connect(run: _Run, session: Session, token: str, targets: Sequence[dict[str, Any]]) -> ProbeResult:
    if run.interrupted or run.deadline.passed:
        return ProbeResult(Outcome.NOT_RUN, None, "the run's deadline had passed")
    limit_s = 15.0 + CONNECT_TIMEOUT_S * (3 + len(targets) // AT_ONCE)
    arguments = {"token": token, "timeout_s": CONNECT_TIMEOUT_S, "targets": targets}
    return session.probe(Links.PROBE, arguments, run.left(limit_s))


def _sweep(run: _Run, token: str, listening: Mapping[str, Listening], addresses: Mapping[str, str]) -> None:
    """The further ports: only now, when no host's first connects can meet these at a limit on new connections."""
    first = run.facts(Links)
    targets = {host: mesh_plan.sweep(host, listening, addresses, first) for host in first}

    def sweep(host: str, session: Session) -> None:
        _keep_more(run, host, _connect(run, session, token, targets[host]))

    run.each(sweep, {host: run.sessions[host] for host in first if targets[host]})


def _keep_more(run: _Run, host: str, more: ProbeResult) -> None:
    """Add to a host's links. Where they could not be measured, nothing of it has passed."""
    if more.outcome is Outcome.OK:
        before = run.results[host][Links.PROBE].data
        more = msgspec.structs.replace(more, data=mesh_plan.merged(before, more.data["links"], CONNECTS))
    run.keep(host, Links.PROBE, more)


def _connect_again(run: _Run, token: str, listening: Mapping[str, Listening], addresses: Mapping[str, str]) -> None:
    """What was never answered by a host that answered others late is tried again, one at a time for each such host.

    A limit on new connections lets them pass then, and a closed port stays closed. Where a limit kept all from the
    further ports, one host tries these in the same way.
    """
    facts = run.facts(Links)
    todo: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for source, link in perhaps_limited(facts):
        todo.setdefault(link.peer, []).append((source, mesh_plan.again(link, listening)))
    for host in late_hosts(facts):
        peers = sorted(source for source, fact in facts.items() if any(link.peer == host for link in fact.links))
        if not any(facts[source].swept.get(host) for source in peers):
            targets = mesh_plan.further(host, listening, addresses)
            todo.setdefault(host, []).extend((peers[0], target) for target in targets)
    answers: list[tuple[str, ProbeResult]] = []

    def again(host: str, _: Session) -> None:
        until = time.monotonic() + AGAIN_S
        for source, target in todo[host]:
            if time.monotonic() < until:
                answers.append((source, _connect(run, run.sessions[source], token, [target])))

    run.each(again, {host: run.sessions[host] for host in todo})
    for source, answer in answers:
        if answer.outcome is Outcome.OK:
            answer.data["links"][0].setdefault("attempts", CONNECTS)  # where it failed, it did so alone
            _keep_more(run, source, answer)


def _nccl_addresses(run: _Run) -> dict[str, tuple[str, ...]]:
    """The addresses that NCCL on each host would hand to its peers; hosts where that cannot be told are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for name, session in run.sessions.items():
        host = Host(HostFacts(name, session.reach, dict(run.results[name])))
        try:
            used = view(host, run.options.plan).used
        except MissingFact:
            continue  # the interface rules will say so
        found[name] = tuple(address.address for address in used if not address.link_local)
    return found


def _measure_throughput(
    run: _Run,
    token: str,
    listening: Mapping[str, Listening],
    links: Mapping[str, Links],
    addresses: Mapping[str, str],
) -> None:
    open_pairs = {(host, link.peer) for host, fact in links.items() for link in fact.links if link.outcome == "ok"}
    flows = mesh_plan.by_source(pair for pair in shifts(sorted(run.sessions)) if pair in open_pairs)

    def measure(host: str, peers: Sequence[str]) -> bool:
        targets = [
            {
                "peer": peer,
                "address": mesh_plan.best_address(host, peer, links, addresses),
                "port": listening[peer].ephemeral[0],
            }
            for peer in peers
            if peer in listening
        ]
        if targets:
            arguments = {"token": token, "targets": targets, "seconds": 0.3, "limit_bytes": 64 << 20}
            run.ask(host, run.sessions[host], "throughput", arguments, 10.0 * (1 + len(targets)))
        return bool(targets)

    def transfer(host: str, session: Session) -> None:
        if not measure(host, flows.get(host, ())):
            run.keep(host, "throughput", ProbeResult(Outcome.NOT_RUN, None, "no peer could be connected to"))

    run.stage("throughput", transfer, lambda: _time_again(run, measure))


Measure = Callable[[str, Sequence[str]], bool]  # host, peers -> whether any of them could be asked for


def _time_again(run: _Run, measure: Measure) -> None:
    """A second and third time for the transfers that look slow (see :data:`mesh_plan.DOUBT_SHARES`)."""
    for share, alone in mesh_plan.DOUBT_SHARES:
        tried: Counter[Pair] = Counter()
        # Asked anew each time: where one comes out faster, others look slow beside it.
        while slow := [
            pair for pair in mesh_plan.doubtful(run.facts(Throughput), share) if tried[pair] < mesh_plan.TIMES_AGAIN
        ]:
            tried.update(slow)
            for batch in [[pair] for pair in slow] if alone and len(slow) <= mesh_plan.FEW else [slow]:
                wanted = mesh_plan.by_source(batch)

                def again(host: str, _: Session, wanted: Mapping[str, Sequence[str]] = wanted) -> None:
                    _transfer_again(run, host, measure, wanted[host])

                run.each(again, {host: run.sessions[host] for host in wanted})


def _transfer_again(run: _Run, host: str, measure: Measure, slow: Sequence[str]) -> None:
    """Time these transfers of a host again and keep the faster ones; a host that is silent now is not measured."""
    before = run.results[host]["throughput"]
    if before.outcome is not Outcome.OK or not measure(host, slow):
        return
    after = run.results[host]["throughput"]
    if after.outcome in (Outcome.OK, Outcome.NOT_RUN):
        flows = mesh_plan.faster(before.data["flows"], after.data["flows"] if after.data else ())
        run.keep(host, "throughput", msgspec.structs.replace(before, data={**before.data, "flows": flows}))


def _collectives(run: _Run, chosen: Collection[str]) -> None:
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
