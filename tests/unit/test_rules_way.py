"""The way to a peer that cannot be connected to: routes and neighbour entries of the sending host."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fleets import interfaces, only, run

from nccl_doctor.facts.interfaces import Device, Route
from nccl_doctor.findings.model import Severity

MACS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b", "c": "02:00:00:00:00:0c"}
NETWORK = Route("inet", "eth0", "10.0.0.0", 24)


def fleet(*routes: Route, mac: str = MACS["b"], outcome: str = "timed-out") -> dict[str, dict[str, Any]]:
    """a cannot connect to b; these are its routes besides its network's, and what it takes for b's hardware address."""
    hosts = {}
    for number, (name, own) in enumerate(MACS.items(), 1):
        facts = interfaces(f"eth0/10.0.0.{number}/24", devices=(Device("eth0", mac=own),), routes=(NETWORK, *routes))
        hosts[name] = {"interfaces": msgspec.to_builtins(facts), "links": {"links": []}}
    link = {"peer": "b", "address": "10.0.0.2", "port": 41000, "purpose": "ephemeral", "outcome": outcome}
    arp = {"address": "10.0.0.2", "mac": mac, "interface": "eth0"}
    hosts["a"]["links"] = {"links": [link, link], "neighbours": [arp]}
    return hosts


def test_a_way_that_is_right_has_no_finding() -> None:
    result = run("way.way_to_peers", fleet(Route("inet", "eth0", "0.0.0.0", 0, "10.0.0.254")))
    assert not result.findings and result.passed == ("a", "b", "c")


def test_a_host_whose_routes_are_not_known_has_not_passed() -> None:
    hosts = fleet()
    del hosts["c"]["interfaces"]
    result = run("way.way_to_peers", hosts)
    assert result.passed == ("a", "b") and result.unknown[0].hosts == ("c",)


def test_routes_that_were_not_told_have_not_passed() -> None:
    hosts = fleet()
    hosts["c"]["interfaces"]["routes_cut"] = 3
    result = run("way.way_to_peers", hosts)
    assert result.passed == ("a", "b") and (result.unknown[0].what, result.unknown[0].hosts) == ("routes", ("c",))


@pytest.mark.parametrize(
    ("route", "told"),
    [
        (Route("inet", "*", "10.0.0.2", 32, reject=True), "10.0.0.2/32 rejects it"),
        (Route("inet", "*", "10.0.0.0", 25), "10.0.0.0/25 rejects it"),
        (Route("inet", "eth0", "10.0.0.2", 32, "10.0.0.254"), "sends it to 10.0.0.254, though 10.0.0.0/24"),
    ],
)
def test_a_route_that_leads_astray_is_the_senders(route: Route, told: str) -> None:
    found = only(run("way.way_to_peers", fleet(route)))
    assert (found.id, found.hosts) == ("net.wrong-route", ("a",)) and told in found.title


def test_a_detour_that_leads_there_all_the_same_is_a_warning() -> None:
    found = only(run("way.way_to_peers", fleet(Route("inet", "eth0", "10.0.0.2", 32, "10.0.0.254"), outcome="ok")))
    assert (found.severity, found.hosts) == (Severity.WARN, ("a",)) and found.explains == ()
    assert found.title.startswith("a takes a detour to b (10.0.0.2): ") and found.places[0].peer == "b"


def test_a_rejecting_route_that_a_longer_prefix_overrules_is_none() -> None:
    assert not run("way.way_to_peers", fleet(Route("inet", "*", "10.0.0.0", 8, reject=True))).findings


@pytest.mark.parametrize(("mac", "whose"), [(MACS["c"], "which is c's"), ("02:00:00:00:00:99", "which is not b's")])
def test_a_wrong_hardware_address_is_told_with_whose_it_is(mac: str, whose: str) -> None:
    found = only(run("way.way_to_peers", fleet(mac=mac)))
    assert (found.id, found.hosts) == ("net.wrong-neighbour", ("a",)) and whose in found.title


def test_a_gateway_that_passes_on_what_is_for_the_own_network_is_a_detour() -> None:
    route = Route("inet", "eth0", "10.0.0.2", 32, "10.0.0.254")
    found = only(run("way.way_to_peers", fleet(route, outcome="ok")))
    assert (found.severity, found.hosts) == (Severity.WARN, ("a",)) and "takes a detour to b" in found.title


def test_where_the_connection_works_what_would_reject_it_did_not() -> None:
    assert not run("way.way_to_peers", fleet(Route("inet", "*", "10.0.0.2", 32), mac="x", outcome="ok")).findings


def test_an_address_that_two_hosts_have_is_sought_at_the_peer() -> None:
    hosts = fleet(mac=MACS["c"])
    hosts["c"]["interfaces"]["addresses"] = [
        *hosts["c"]["interfaces"]["addresses"],
        *hosts["b"]["interfaces"]["addresses"],
    ]
    found = only(run("way.way_to_peers", hosts))
    assert "what is for b (10.0.0.2)" in found.title and "which is c's" in found.title
