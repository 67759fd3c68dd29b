"""Planning of the measurements between hosts."""

from __future__ import annotations

from typing import Any

from nccl_doctor.collect.mesh_plan import best_address, doubtful, faster, link_targets, port_count, sweep
from nccl_doctor.facts.mesh import Flow, Link, Links, Listening, Resolver, Throughput


def flow(peer: str, mbit: float, outcome: str = "ok") -> dict[str, Any]:
    return {"peer": peer, "address": "10.0.0.1", "outcome": outcome, "bytes": int(mbit * 1e6 / 8), "seconds": 1.0}


def fact(**rates: float) -> Throughput:
    return Throughput(tuple(Flow(peer, "10.0.0.1", "ok", int(rate * 1e6), 1.0) for peer, rate in rates.items()))


def test_what_looks_slow_is_timed_again() -> None:
    measured = {"a": fact(b=100, c=30), "b": fact(a=95, c=90), "c": fact(a=60, b=1)}
    assert doubtful(measured, 0.5) == [("a", "c"), ("c", "b")]
    assert doubtful(measured, 0.3) == [("c", "b")]
    assert doubtful({}, 0.5) == []


def test_the_faster_of_two_transfers_counts_and_a_failed_one_never_does() -> None:
    before = [flow("b", 100), flow("c", 10), flow("d", 10), flow("e", 0, "timed-out")]
    again = [flow("c", 90), flow("d", 900, "timed-out"), flow("e", 50)]
    assert faster(before, again) == [flow("b", 100), flow("c", 90), flow("d", 10), flow("e", 50)]
    assert faster(before, ()) == before


def test_bulk_data_goes_where_nccl_would_send_it_if_that_can_be_reached() -> None:
    def links(purpose: str, outcome: str, peer: str = "b") -> dict[str, Links]:
        return {"a": Links((Link(peer, "10.9.0.2", 29500, purpose, outcome),))}

    tested = {"b": "10.0.0.2"}
    assert best_address("a", "b", links("chosen-interface", "ok"), tested) == "10.9.0.2"
    for other in (links("name", "ok"), links("chosen-interface", "refused"), links("chosen-interface", "ok", "c"), {}):
        assert best_address("a", "b", other, tested) == "10.0.0.2"


def test_every_port_of_a_peer_is_tried_once_and_the_first_ones_lie_far_apart() -> None:
    ports = tuple(range(40000, 40000 + 100 * port_count(12), 100))
    listening, addresses = {"b": Listening(ports)}, {"a": "10.0.0.1", "b": "10.0.0.2"}
    first = [target["port"] for target in link_targets("a", ["b"], Resolver({}), listening, addresses, {}, master="")]
    ((further),) = sweep(["b"], listening, addresses)
    assert sorted([*first, *further["ports"]]) == list(ports) and first == [40000, 40500, 41000]
    assert sweep(["b"], {"b": Listening(ports[: port_count(13)])}, addresses) == []
