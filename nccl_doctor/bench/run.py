"""Run one world of ranks over sessions: ask the hosts what they offer, start the ranks, follow them, stop them.

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

from nccl_doctor.bench.model import BenchPlan
from nccl_doctor.bench.world import Share, World
from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.model import Outcome, ProbeResult

PREPARE_LIMIT_S = 40.0
IMPORT_LIMIT_S = 180.0  # a first import of torch over NFS is slow
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
    late = ProbeResult(Outcome.TIMED_OUT, None, f"no answer within {waited_s:.0f} s", round(waited_s, 3))
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
