"""Run one world of ranks over sessions: look at the hosts, place the ranks, start them, follow them, stop them.

Nothing here depends on how a host is reached: a *session* is anything with the ``probe`` method of the transport room.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from nccl_doctor.agent.collective.memory import amount
from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.model import Outcome, ProbeResult

PREPARE_LIMIT_S = 40.0
IMPORT_LIMIT_S = 180.0  # a first import of torch over NFS is slow
# Of its own, that a rank takes before it does anything: 148 MB with torch 2.13 on a CPU, more with CUDA.
RANK_BYTES = 128 << 20
NO_ANSWER = "no answer"
LAST_CHANCE_S = 8.0  # after a failure elsewhere, beyond a step's own limit, for a host to answer at all
STOP_AFTER_S = 3.0  # the other hosts' chance to tell by themselves where they were

OnEvent = Callable[[str, dict[str, Any]], None]  # host name, event


class Session(Protocol):
    """What is needed of a transport's session."""

    def probe(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        limit_s: float = 10.0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> ProbeResult:
        """Run a probe on the host; never raises for what the host does."""


class Torch(msgspec.Struct, frozen=True):
    """The torch of a host's Python, found without importing it. ``cuda`` is empty for CPU builds."""

    torch: str = ""
    cuda: str = ""
    path: str = ""
    python: str = ""
    executable: str = ""
    error: str = ""


class HcaPort(msgspec.Struct, frozen=True):
    """A port of an RDMA device, from /sys/class/infiniband."""

    name: str
    port: int
    state: str = ""
    rate_gbps: float = 0.0
    link_layer: str = ""

    @property
    def active(self) -> bool:
        """Whether the port can carry data."""
        return "ACTIVE" in self.state


class Prepared(msgspec.Struct, frozen=True):
    """What a host offers (probe ``bench-prepare``)."""

    host: str
    python: str
    torch: Torch
    gpus: tuple[str, ...] = ()
    gpus_unknown: str = ""  # why it is not known which of the host's GPUs ranks could have
    busy: tuple[str, ...] = ()
    hcas: tuple[HcaPort, ...] = ()
    nvlinks: int = 0  # active links of the GPU that has the fewest
    nvlink_gbs: float = 0.0  # of one link and direction, GB/s, as the driver says
    pcie: tuple[str, ...] = ()  # "generation, width" per GPU, at their best
    peermem: bool = False
    memory: int | None = None  # bytes that are free; None: not known
    processors: int = 1
    addresses: dict[str, str] = {}
    name_addresses: tuple[str, ...] = ()
    route_source: str = ""
    port: int = 0
    port_free: bool = True

    @property
    def torch_trouble(self) -> str:
        """Why no rank can run here, or empty. Names the Python and how to choose another."""
        if self.torch.error:
            return f"{self.torch.error}; name the job's Python with --python"
        if not self.torch.torch:
            return f"no torch in {self.python}; name the Python of the training job with --python (or --env-setup)"
        return ""


class Share(msgspec.Struct, frozen=True):
    """Ranks of one host in a row: ``ranks`` of them, from ``first_rank`` on. A scheduler may give a host several."""

    name: str
    first_rank: int
    ranks: int
    python: str = ""


class World(msgspec.Struct, frozen=True):
    """Where every rank runs, over which backend and why that one, and where they meet."""

    backend: str
    backend_why: str
    shares: tuple[Share, ...]
    master: str
    master_addr: str
    master_port: int
    ranks_why: str = ""  # who said how many ranks a host gets

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(share.ranks for share in self.shares)

    @property
    def per_host(self) -> dict[str, int]:
        """Host -> number of its ranks, the host of rank 0 first."""
        found: dict[str, int] = {}
        for share in self.shares:
            found[share.name] = found.get(share.name, 0) + share.ranks
        return found


class CannotRun(Exception):
    """No world can be made of these hosts; the message says why and what to do. ``hosts`` are those to blame."""

    def __init__(self, text: str, hosts: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.hosts = hosts


def in_threads(
    sessions: Mapping[str, Session],
    call: Callable[[str, Session], ProbeResult],
    limit_s: float,
    hurry: Callable[[], float | None] = lambda: None,
) -> dict[str, ProbeResult]:
    """Call for all sessions at once; a call that does not return in time is ``timed-out``. Can be interrupted.

    ``hurry`` may bring the end forward: it gives a moment of the monotonic clock, or None.
    """
    answers: queue.SimpleQueue[tuple[str, ProbeResult]] = queue.SimpleQueue()

    def work(name: str, session: Session) -> None:
        try:
            answers.put((name, call(name, session)))
        except Exception as error:  # noqa: BLE001 - one host's trouble must not lose the others
            answers.put((name, ProbeResult(Outcome.FAILED, None, f"{type(error).__name__}: {error}")))

    for name, session in sessions.items():
        threading.Thread(target=work, args=(name, session), daemon=True, name=f"bench {name}").start()
    results: dict[str, ProbeResult] = {}
    started = time.monotonic()
    end = started + limit_s
    while len(results) < len(sessions) and time.monotonic() < min(end, hurry() or end):
        with contextlib.suppress(queue.Empty):
            name, result = answers.get(timeout=max(0.01, min(0.2, end - time.monotonic())))
            results[name] = result
    waited_s = time.monotonic() - started
    late = ProbeResult(Outcome.TIMED_OUT, None, f"{NO_ANSWER} within {waited_s:.0f} s", round(waited_s, 3))
    return {name: results.get(name, late) for name in sessions}


def prepare(
    sessions: Mapping[str, Session], plan: BenchPlan, limit_s: float = PREPARE_LIMIT_S
) -> dict[str, ProbeResult]:
    """Ask every host what it offers."""
    # Our own Python as well: this machine's, or the same environment on a shared file system. The answer names it.
    arguments = {
        "python": plan.python, "also": [sys.executable], "port": plan.master_port,
        "visible": plan.env.get("CUDA_VISIBLE_DEVICES"),
    }  # fmt: skip
    return in_threads(sessions, lambda _, session: session.probe("bench-prepare", arguments, limit_s), limit_s + 5.0)


def read_prepared(result: ProbeResult) -> Prepared | str:
    """The typed answer, or why there is none."""
    if result.outcome is not Outcome.OK:
        return result.why
    try:
        return msgspec.convert(result.data, Prepared)
    except msgspec.ValidationError as error:
        return f"unreadable answer: {error}"


def place(
    prepared: Mapping[str, Prepared],
    plan: BenchPlan,
    master: str = "",
    reached_at: Mapping[str, str] | None = None,
    slots: Mapping[str, int] | None = None,
) -> World:
    """Place the ranks; raises :class:`CannotRun`. Hosts keep their order, but the master comes first.

    ``reached_at`` is the address the controller reached each host at: the last resort for the master's address.
    ``slots`` are the ranks that a hostfile gives to some hosts; the plan's own number goes before them.
    """
    slots = {} if plan.ranks_per_host else slots or {}
    if not prepared:
        raise CannotRun("no host is left to run on")
    names = list(prepared)
    if master and master in prepared:
        names.remove(master)
        names.insert(0, master)
    master = names[0]
    backend, why = choose_backend(prepared, plan.backend)
    shares, first = [], 0
    for name in names:
        gpus = len(prepared[name].gpus)
        ranks = plan.ranks_per_host or slots.get(name) or (gpus if backend == "nccl" else 1)
        if backend == "nccl" and ranks > gpus and not plan.same_gpu:
            why = "; --gpus-per-host goes before the host list's slots" if name in slots else ""
            raise CannotRun(f"{name} has {gpus} GPU(s), {ranks} ranks were asked for{why}", (name,))
        free = prepared[name].memory
        if free is not None and free < ranks * RANK_BYTES:
            need = f"{ranks} ranks need {amount(ranks * RANK_BYTES)} or more, for torch alone"
            raise CannotRun(f"{need}, and {amount(free)} are free on {name}", (name,))
        shares.append(Share(name, first, ranks, prepared[name].python))
        first += ranks
    chosen = prepared[master]
    if not chosen.port_free:
        raise CannotRun(
            f"port {chosen.port} is already in use on {master}; choose another with --master-port", (master,)
        )
    address = "127.0.0.1" if len(names) == 1 else master_address(master, chosen, (reached_at or {}).get(master, ""))
    return World(backend, why, tuple(shares), master, address, chosen.port, _ranks_why(plan, backend, names, slots))


def _ranks_why(plan: BenchPlan, backend: str, names: list[str], slots: Mapping[str, int]) -> str:
    if plan.ranks_per_host:
        return "asked for"
    usual = "one per GPU" if backend == "nccl" else "one a host"
    given = sum(name in slots for name in names)
    if not given:
        return usual
    return "slots of the host list" + ("" if given == len(names) else f", else {usual}")


def choose_backend(prepared: Mapping[str, Prepared], wanted: str) -> tuple[str, str]:
    """The backend, and why: nccl where every host has GPUs and a CUDA torch, else gloo (unless one was asked for)."""
    without_gpu = [name for name, host in prepared.items() if not host.gpus]
    without_cuda = [name for name, host in prepared.items() if not host.torch.cuda]
    if wanted == "gloo":
        return "gloo", "asked for"
    if unknown := [name for name, host in prepared.items() if host.gpus_unknown]:
        why = prepared[unknown[0]].gpus_unknown
        raise CannotRun(
            f"which GPUs ranks could have is not known on {', '.join(unknown)}: {why}; --backend gloo does without them",
            tuple(unknown),
        )
    if wanted == "nccl":
        if without_gpu:
            raise CannotRun(f"nccl was asked for: no GPU on {', '.join(without_gpu)}", tuple(without_gpu))
        if without_cuda:
            raise CannotRun(
                f"nccl was asked for: a CPU build of torch on {', '.join(without_cuda)}", tuple(without_cuda)
            )
        return "nccl", "asked for"
    if len(without_gpu) == len(prepared):
        return "gloo", "no host has a GPU"
    if without_gpu:
        return "gloo", f"no GPU on {', '.join(without_gpu)}"
    if without_cuda:
        return "gloo", f"a CPU build of torch on {', '.join(without_cuda)}"
    return "nccl", "every host has GPUs"


def master_address(name: str, host: Prepared, reached_at: str) -> str:
    """The address at which the other hosts find the store: what the master's own name resolves to if that is an
    address it has and not a loopback one; else the address it sends from; else the one we reached it at."""
    for address in host.name_addresses:
        if address in host.addresses and not _is_loopback(address):
            return address
    for address in (host.route_source, reached_at):
        if address and not _is_loopback(address):
            return address
    raise CannotRun(f"{name} has no address that other hosts could use; its own: {sorted(host.addresses)}", (name,))


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


class Run:
    """One world from start to end. ``run`` may be interrupted; closing the sessions then ends everything."""

    def __init__(
        self, sessions: Mapping[str, Session], world: World, plan: BenchPlan, limit_s: float, on_event: OnEvent
    ) -> None:
        self.sessions = {share.name: sessions[share.name] for share in world.shares}
        self.world, self.plan, self.limit_s = world, plan, limit_s
        self._on_event = on_event
        self._lock = threading.Lock()
        self._failed_at: float | None = None

    def run(self) -> dict[str, ProbeResult]:
        """Start all ranks and wait for all hosts' answers. After a failure the other hosts are told to stop."""
        shares = {share.name: share for share in self.world.shares}
        results = in_threads(
            self.sessions, lambda name, session: self._one(shares[name], session), self.limit_s + 20.0, self._hurry
        )
        return {name: self._complete(result) for name, result in results.items()}

    def _one(self, share: Share, session: Session) -> ProbeResult:
        arguments = {
            "plan": self.plan.for_worker(self.world.backend, self.world.size),
            "world": self.world.size,
            "first_rank": share.first_rank,
            "local_world": share.ranks,
            "master_addr": self.world.master_addr,
            "master_port": self.world.master_port,
            "python": share.python,
            "env": self.plan.env,
            "env_per_rank": self.plan.env_per_rank,
            "limit_s": self.limit_s,
        }
        result = session.probe("bench", arguments, self.limit_s + 10.0, lambda event: self._tell(share.name, event))
        if self._failed(result):
            self._stop_others(share.name)
        return result

    def _tell(self, host: str, event: dict[str, Any]) -> None:
        with self._lock:
            self._on_event(host, event)

    @staticmethod
    def _failed(result: ProbeResult) -> bool:
        if result.outcome is not Outcome.OK:
            return True
        return not all(rank.get("finished") for rank in result.data["ranks"])

    def _stop_others(self, failed: str) -> None:
        with self._lock:
            if self._failed_at is not None:
                return
            self._failed_at = time.monotonic()

        def stop() -> None:
            time.sleep(STOP_AFTER_S)
            for name, session in self.sessions.items():
                if name != failed:
                    arguments = {"why": f"a rank on {failed} had failed"}
                    threading.Thread(
                        target=session.probe, args=("bench-stop", arguments, 5.0), daemon=True, name=f"stop {name}"
                    ).start()

        threading.Thread(target=stop, daemon=True, name="stop").start()

    def _hurry(self) -> float | None:
        """After a failure, a host that does not answer at all is not waited for until the end of the run."""
        failed_at = self._failed_at
        return None if failed_at is None else failed_at + self.plan.limit_s + LAST_CHANCE_S

    def _complete(self, result: ProbeResult) -> ProbeResult:
        """Add what the launcher on the host does not know: the world it was part of."""
        if result.outcome is not Outcome.OK:
            return result
        world = self.world
        data = dict(
            result.data,
            backend=world.backend,
            backend_why=world.backend_why,
            world=world.size,
            master=world.master,
            master_addr=world.master_addr,
            master_port=world.master_port,
        )
        return msgspec.structs.replace(result, data=data)


def read_collectives(results: Mapping[str, ProbeResult]) -> dict[str, Collectives]:
    """The typed facts of all hosts that answered."""
    found: dict[str, Collectives] = {}
    for name, result in results.items():
        if result.outcome is Outcome.OK:
            with contextlib.suppress(msgspec.ValidationError):
                found[name] = msgspec.convert(result.data, Collectives)
    return found


def time_needed(plan: BenchPlan) -> float:
    """Seconds that a run may take at most, with every stage at its limit."""
    return IMPORT_LIMIT_S + 5 * plan.limit_s + 4 * plan.budget_s
