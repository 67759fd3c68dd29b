"""Planning of the measurements between hosts."""

from __future__ import annotations

from typing import Any

from nccl_doctor.collect.mesh_plan import (
    Listeners,
    best_address,
    data_address,
    doubtful,
    faster,
    link_targets,
    merged,
    port_count,
    sweep,
)
from nccl_doctor.facts.mesh import Flow, Link, Links, Listening, Names, Resolution, Resolver, Throughput
from nccl_doctor.rules.mesh_pairs import shifts


def flow(peer: str, mbit: float, outcome: str = "ok") -> dict[str, Any]:
    return {"peer": peer, "address": "10.0.0.1", "outcome": outcome, "bytes": int(mbit * 1e6 / 8), "seconds": 1.0}


def fact(**rates: float) -> Throughput:
    return Throughput(tuple(Flow(peer, "10.0.0.1", "ok", int(rate * 1e6), 1.0) for peer, rate in rates.items()))


def test_what_looks_slow_is_timed_again() -> None:
    measured = {"a": fact(b=100, c=30), "b": fact(a=95, c=90), "c": fact(a=60, b=1)}
    assert doubtful(measured, 0.5) == [("a", "c"), ("c", "b")]
    assert doubtful(measured, 0.3) == [("c", "b")]
    assert doubtful({}, 0.5) == []
    fast = {"a": fact(b=4000, c=700), "b": fact(a=4000, c=600)}  # MB/s: half of 10 Gb/s is 625
    assert doubtful(fast, 0.5) == [("b", "c")]


def test_the_faster_of_two_transfers_counts_and_a_failed_one_never_does() -> None:
    before = [flow("b", 100), flow("c", 10), flow("d", 10), flow("e", 0, "timed-out")]
    again = [flow("c", 90), flow("d", 900, "timed-out"), flow("e", 50)]
    assert faster(before, again) == [flow("b", 100), flow("c", 90), flow("d", 10), flow("e", 50)]
    assert faster(before, ()) == before


def test_bulk_data_goes_where_nccl_would_send_it_if_that_can_be_reached() -> None:
    def links(purpose: str, outcome: str, peer: str = "b") -> dict[str, Links]:
        return {"a": Links((Link(peer, "10.9.0.2", 29500, purpose, outcome),))}

    tested = Listeners({}, {"b": "10.0.0.2"})
    assert best_address("a", "b", links("chosen-interface", "ok"), tested) == "10.9.0.2"
    for other in (links("name", "ok"), links("chosen-interface", "refused"), links("chosen-interface", "ok", "c"), {}):
        assert best_address("a", "b", other, tested) == "10.0.0.2"


PORTS = tuple(range(40000, 40000 + 100 * port_count(12), 100))
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
LISTENERS = Listeners({"b": Listening(PORTS), "c": Listening(PORTS)}, ADDRESSES)


def tried(*links: Link) -> dict[str, Links]:
    """What ``a`` found of ``b`` and ``c``, whose first ports answered unless one of these links says otherwise."""
    good = tuple(Link(peer, ADDRESSES[peer], port, "ephemeral", "ok") for peer in "bc" for port in PORTS[:1])
    return {"a": Links((*good, *links)), "d": Links(())}


def test_every_port_of_a_peer_is_tried_once_and_the_first_ones_lie_far_apart() -> None:
    first = [target["port"] for target in link_targets("a", ["b"], Resolver({}), LISTENERS, {}, master="")]
    further = [target["port"] for target in sweep("a", LISTENERS, tried()) if target["peer"] == "b"]
    assert sorted([*first, *further]) == list(PORTS) and first == [40000, 40500, 41000]
    three = Listeners({name: Listening(PORTS[: port_count(13)]) for name in "bc"}, ADDRESSES)
    assert sweep("a", three, tried()) == []


def test_a_name_that_leads_nowhere_is_not_connected_to() -> None:
    resolver = Resolver({"a": Names("a", Resolution(("10.0.0.1",)), {"b": Resolution(())})})
    targets = link_targets("a", ["b"], resolver, LISTENERS, {}, master="")
    assert {target["purpose"] for target in targets} == {"ephemeral"}


def test_the_address_that_most_hosts_resolve_a_name_to_is_tested_if_the_host_has_it() -> None:
    own = Names("b", Resolution(("127.0.1.1",)), {}, ("127.0.0.1", "127.0.1.1", "10.0.0.2", "10.9.0.2"))
    others = {
        name: Names(name, Resolution(()), {"b": Resolution((told,))})
        for name, told in (
            ("a", "10.0.0.2"),
            ("c", "10.0.0.2"),
            ("d", "10.9.0.2"),
            ("e", "10.8.0.2"),
            ("f", "10.8.0.2"),
            ("g", "10.8.0.2"),
        )
    }
    at = {"b": "192.168.0.2"}
    assert data_address("b", own, Resolver({**others, "b": own}), at) == "10.0.0.2"
    assert data_address("b", own, Resolver({"b": own}), at) == "192.168.0.2"  # its own word for itself is none
    assert data_address("b", None, Resolver(others), at) == "192.168.0.2"


def test_every_host_sends_as_often_as_it_receives_and_never_to_itself() -> None:
    assert shifts("a") == [] and shifts("ba") == [("a", "b"), ("b", "a")]
    pairs = shifts([f"h{number}" for number in range(8)])
    assert len(set(pairs)) == len(pairs) == 24 and all(one != other for one, other in pairs)
    assert {sum(host in pair[:1] for pair in pairs) for host, _ in pairs} == {3}


def test_further_ports_are_tried_only_where_the_first_ones_answered_and_no_limit_would_be_met() -> None:
    def swept_peers(facts: dict[str, Links]) -> set[str]:
        return {target["peer"] for target in sweep("a", LISTENERS, facts)}

    late = Link("b", "10.0.0.2", 40500, "ephemeral", "ok", attempts=2)
    assert swept_peers(tried()) == {"b", "c"}
    assert swept_peers(tried(Link("b", "10.0.0.2", 40500, "ephemeral", "timed-out"))) == {"c"}
    assert swept_peers(tried(late)) == {"c"}  # a lost packet, or a limit: the others find out
    assert swept_peers({**tried(), "d": Links((late, late))}) == {"b", "c"}
    assert swept_peers({**tried(), "d": Links((late, late, late))}) == {"c"}


def link(port: int, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    return {"peer": "b", "address": "10.0.0.2", "port": port, "purpose": "ephemeral", "outcome": outcome, **more}


def test_of_the_further_ports_those_that_answered_at_once_are_counted_and_the_others_told() -> None:
    first, late, closed = link(9, attempts=1), link(3, attempts=2), link(4, "refused")
    told = merged({"links": [first], "neighbours": []}, [link(1, attempts=1), link(2, attempts=1), late, closed], 6)
    assert told == {"links": [first, late, closed], "swept": {"b": 2}, "neighbours": []}
    assert merged(told, [link(5, attempts=1)], 6)["swept"] == {"b": 3}


def test_a_connect_that_was_tried_again_takes_the_place_of_the_first_one() -> None:
    before = {"links": [link(1), link(2, "timed-out"), link(3)], "swept": {"b": 2}}
    answered = merged(before, [link(2, attempts=2, connect_ms=501.0)], 6)
    assert answered == {"links": [link(1), link(2, attempts=8, connect_ms=3501.0), link(3)], "swept": {"b": 2}}
    closed = merged(before, [link(2, "timed-out", detail="no answer")], 6)
    assert closed["links"][1] == link(2, "timed-out", detail="no answer", attempts=12)
