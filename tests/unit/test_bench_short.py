"""The collectives stage of check: never more than the deadline, never a pass for what was not run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from nccl_doctor.bench import run
from nccl_doctor.bench.run import Run, in_threads
from nccl_doctor.bench.short import SHORT_PLAN, run_short
from nccl_doctor.bench.world import Share, World
from nccl_doctor.facts.model import Outcome, ProbeResult

PREPARED: dict[str, Any] = {
    "host": "h", "python": "/opt/python", "torch": {"torch": "2.8.0"},
    "addresses": {"10.0.0.1": "eth0"}, "name_addresses": ["10.0.0.1"], "port": 29500,
}  # fmt: skip
RANK = {"rank": 0, "finished": True, "exit": 0, "output": "x" * 100000, "output_cut": 0}


class Session:
    """Answers as it was told to, and remembers what it was asked."""

    def __init__(self, prepared: Any = PREPARED, bench: Any = None, delay_s: float = 0.0) -> None:
        self.prepared, self.bench, self.delay_s = prepared, bench, delay_s
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def probe(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        limit_s: float = 10.0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> ProbeResult:
        self.asked.append((name, arguments or {}))
        if name == "bench-prepare":
            return self.prepared if isinstance(self.prepared, ProbeResult) else ProbeResult(Outcome.OK, self.prepared)
        time.sleep(self.delay_s)
        answer = self.bench or {"host": "h", "ranks": [RANK], "events": []}
        return answer if isinstance(answer, ProbeResult) else ProbeResult(Outcome.OK, answer)


def test_hosts_without_torch_are_left_out_and_said() -> None:
    absent = Session({**PREPARED, "torch": {"torch": ""}, "python": "/usr/bin/python3"})
    gone = Session(ProbeResult(Outcome.TIMED_OUT, None, "no answer"))
    one, two = Session(), Session()
    found = run_short({"a": one, "b": absent, "c": two, "d": gone})
    assert {name: item.outcome for name, item in found.items()} == {
        "a": Outcome.OK, "b": Outcome.TOOL_MISSING, "c": Outcome.OK, "d": Outcome.TIMED_OUT,
    }  # fmt: skip
    assert "/usr/bin/python3" in found["b"].detail and "--python" in found["b"].detail
    arguments = dict(two.asked)["bench"]
    assert (arguments["world"], arguments["first_rank"], arguments["master_addr"]) == (2, 1, "10.0.0.1")
    assert "bench" not in dict(absent.asked)


def test_where_nothing_can_run_every_host_says_so() -> None:
    broken = Session({**PREPARED, "name_addresses": [], "route_source": ""})
    found = run_short({"a": broken, "b": Session()})
    assert {item.outcome for item in found.values()} == {Outcome.NOT_RUN}
    assert "no address that other hosts could use" in found["a"].detail
    late = run_short({"a": Session(), "b": Session()}, deadline_s=3.0)
    assert "too few to start torch" in late["a"].detail


def test_one_host_runs_two_ranks_and_the_jobs_variables_reach_them() -> None:
    session = Session()
    run_short({"a": session}, env={"NCCL_IB_DISABLE": "1", "WANDB_API_KEY": "x"})
    arguments = dict(session.asked)["bench"]
    assert arguments["world"] == 2 and arguments["env"] == {"NCCL_IB_DISABLE": "1"}


def test_what_is_kept_of_a_good_run_is_small() -> None:
    found = run_short({"a": Session()})
    (rank,) = found["a"].data["ranks"]
    assert len(rank["output"]) == 16 << 10 and rank["output_cut"] == 100000 - (16 << 10)


def test_a_host_that_never_answers_is_not_waited_for_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"host": "h", "ranks": [RANK, dict(RANK, finished=False, exit=70)], "events": []}
    sessions = {"a": Session(bench=failed), "b": Session(delay_s=60.0)}
    world = World("gloo", "", (Share("a", 0, 1), Share("b", 1, 1)), "a", "10.0.0.1", 1)
    plan = msgspec.structs.replace(SHORT_PLAN, limit_s=0.1)
    monkeypatch.setattr(run, "LAST_CHANCE_S", 1.0)
    started = time.monotonic()
    found = Run(sessions, world, plan, 50.0, lambda host, event: None).run()
    assert time.monotonic() - started < 40.0
    assert found["b"].outcome is Outcome.TIMED_OUT and found["b"].detail.startswith("no answer")


def test_a_raising_session_loses_no_other_host() -> None:
    def call(name: str, session: Any) -> ProbeResult:
        if name == "a":
            raise OSError("broken")
        return ProbeResult(Outcome.OK, 1)

    found = in_threads({"a": Session(), "b": Session()}, call, 5.0)
    assert found["a"].outcome is Outcome.FAILED and "broken" in found["a"].detail and found["b"].data == 1
