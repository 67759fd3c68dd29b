"""A host that limits new connections, as seen by the part of ``check`` that lets hosts connect: none of them is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from nccl_doctor.collect import mesh, mesh_plan
from nccl_doctor.collect.progress import Silent
from nccl_doctor.collect.run import CheckOptions, Run
from nccl_doctor.facts.mesh import Links, Listening
from nccl_doctor.facts.model import Outcome, Plan, ProbeResult
from nccl_doctor.rules.mesh_pairs import perhaps_limited
from nccl_doctor.transport.base import ConnectOptions

CLOSED = 40900
PORTS = (40000, 40500, CLOSED)


class Source:
    """A session of a host whose connects to ``limited`` are answered while they are the only ones there."""

    under_way = threading.Lock()

    def probe(self, name: str, arguments: Mapping[str, Any], limit_s: float = 0.0) -> ProbeResult:
        (target,) = arguments["targets"]
        assert name == "links" and self.under_way.acquire(blocking=False), "two connects at once"
        time.sleep(0.01)
        self.under_way.release()
        answer = {key: target[key] for key in ("peer", "address", "port", "purpose")}
        open_ = {"outcome": "ok", "attempts": 1, "connect_ms": 1.0, "messages": target.get("messages", 0)}
        answer.update({"outcome": "timed-out", "detail": "no answer"} if target["port"] == CLOSED else open_)
        return ProbeResult(Outcome.OK, {"links": [answer], "neighbours": []})


@pytest.fixture
def run() -> Run:
    """Three hosts have connected to ``limited``: each had one late answer, and none from two ports."""
    found = Run(CheckOptions(Plan(("ports",)), ConnectOptions()), Silent())
    for host in ("a", "b", "c", "limited"):
        found.sessions[host] = Source()  # type: ignore[assignment]
        links = [
            {"peer": "limited", "address": "10.0.0.9", "port": port, "purpose": "ephemeral", "outcome": "timed-out"}
            for port in PORTS
        ]
        links[1].update(outcome="ok", attempts=3)
        data = {"links": links if host != "limited" else [], "neighbours": []}
        found.results[host] = {"links": ProbeResult(Outcome.OK, data)}
    return found


def try_again(run: Run, ports: tuple[int, ...] = PORTS) -> None:
    measured = mesh.Mesh(run, {})
    measured.listeners = mesh_plan.Listeners({"limited": Listening(ports)}, {"limited": "10.0.0.9"})
    measured.connect_again()


def outcomes(run: Run, host: str) -> list[tuple[str, int, int]]:
    return [(link.outcome, link.attempts, link.messages) for link in run.facts(Links)[host].links]


def test_what_met_a_limit_is_answered_later_and_a_closed_port_is_not(run: Run) -> None:
    try_again(run)
    for host in ("a", "b", "c"):
        assert outcomes(run, host) == [("ok", 7, 100), ("ok", 3, 0), ("timed-out", 12, 0)]
    assert perhaps_limited(run.facts(Links)) == []  # all is known now: nothing is left in doubt


def test_whose_connects_were_cut_short_is_not_told_that_nobody_could_be_connected_to(run: Run) -> None:
    """By the run's deadline, say: then no peer is known to be open, and none to be closed."""
    run.results["b"]["links"] = ProbeResult(Outcome.TIMED_OUT, None, "stopped by the run's deadline")
    mesh.Mesh(run, {})._measure_throughput({"a": Links((), ())})
    assert [run.results[host]["throughput"].detail for host in ("a", "b")] == [
        "no peer could be connected to",
        "its connects were not measured",
    ]


def test_what_there_was_no_time_for_stays_in_doubt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "AGAIN_S", 0.0)
    try_again(run)
    assert len(perhaps_limited(run.facts(Links))) == 6


def test_where_no_answer_was_late_nothing_is_tried_again(run: Run) -> None:
    for host in ("a", "b", "c"):
        run.results[host]["links"].data["links"][1]["attempts"] = 1
        run.sessions[host] = None  # type: ignore[assignment]
    try_again(run)
    assert outcomes(run, "a") == [("timed-out", 1, 0), ("ok", 1, 0), ("timed-out", 1, 0)]


def test_further_ports_that_a_limit_kept_all_from_are_tried_one_by_one(run: Run) -> None:
    """Sixteen ports: three were tried by all at first. One source tries the others, and finds the one that is closed."""
    ports = tuple(sorted({*PORTS, *range(40001, 40006), *range(40501, 40505), *range(CLOSED - 4, CLOSED)}))
    first = mesh_plan._at_first(ports)
    for host in ("a", "b", "c"):
        for link, port in zip(run.results[host]["links"].data["links"], first, strict=True):
            link.update(port=port, outcome="ok", attempts=2)
    try_again(run, ports)
    found = run.facts(Links)
    assert found["a"].swept == {"limited": 12} and not found["b"].swept and not found["c"].swept
    assert [(link.port, link.outcome) for link in found["a"].links][3:] == [(CLOSED, "timed-out")]
    assert perhaps_limited(found) == []  # it failed alone
