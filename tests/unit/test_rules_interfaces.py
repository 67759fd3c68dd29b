"""Rules of the interfaces stage, over small fleets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fleets import carriers, ids, interfaces, links, only, run, software, system

from nccl_doctor.env.interface_advice import Attempt, Station, decide
from nccl_doctor.facts.interfaces import Carriers, Device, Interfaces
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Severity
from nccl_doctor.rules import engine

INTERFACE_RULES = [
    rule.name for rule in engine.all_rules() if rule.stage == "interfaces" and rule.name.startswith("interface")
]
BOND = {
    "a": interfaces("bond0/10.0.0.1/24"),
    "b": interfaces("bond0/10.0.0.2/24"),
    "c": interfaces("bond0/10.0.0.3/24"),
}


def fleet(hosts: dict[str, Interfaces], **more: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {"interfaces": facts, "system": system(), "carriers": carriers(), **more} for name, facts in hosts.items()
    }


def conf(path: str, *lines: tuple[int, str]) -> tuple[dict[str, Any], ...]:
    return ({"role": "system", "path": path, "lines": [{"line": number, "text": text} for number, text in lines]},)


@pytest.mark.parametrize("rule", INTERFACE_RULES)
def test_a_clean_fleet_has_nothing_but_notes(rule: str) -> None:
    hosts = fleet(
        {
            "a": interfaces(
                "eth0/10.0.0.1/24", "docker0/172.17.0.1/16", "virbr0/192.168.122.1/24/D", "eth0/fe80::1/64"
            ),
            "b": interfaces("eth0/10.0.0.2/24", "docker0/172.17.0.1/16", "eth0/fe80::2/64"),
        }
    )
    hosts["a"]["links"] = links(("b", "10.0.0.2", "ok"))
    hosts["b"]["links"] = links(("a", "10.0.0.1", "ok"))
    result = run(rule, hosts)
    notes = ("interfaces.choice", "interface_duplicates.unused_duplicates")
    assert [item.severity for item in result.findings] == ([Severity.INFO] if rule in notes else [])
    assert result.passed == ("a", "b") and not result.unknown


@pytest.mark.parametrize("rule", INTERFACE_RULES)
def test_without_facts_no_host_passes(rule: str) -> None:
    result = run(rule, {"a": {}, "b": {}})
    assert not result.passed and result.unknown


def test_choice_names_the_interface_and_leaves_what_needs_setting_to_the_report() -> None:
    note = only(run("interfaces.choice", fleet(BOND)))
    assert "bond0" in note.title and "set" not in note.title and not note.env


def test_wrong_name_in_nccl_conf_is_quoted_with_its_line() -> None:
    files = conf("/etc/nccl.conf", (1, "NCCL_DEBUG=WARN"), (3, "NCCL_SOCKET_IFNAME=bond1"))
    hosts = fleet({**BOND, "b": interfaces("bond0/10.0.0.2/24", conf_files=files)})
    found = only(run("interface_settings.interface_setting", hosts))
    assert (found.id, found.hosts) == ("net.wrong-interface.no-match", ("b",))
    first = found.evidence[0]
    assert (first.source, first.line, first.text) == ("/etc/nccl.conf", 3, "NCCL_SOCKET_IFNAME=bond1")
    assert found.fixes[0].command == "sudo sed -i '3s/^/#/' /etc/nccl.conf"


def test_a_wrong_setting_is_taken_away_rather_than_overridden() -> None:
    files = conf("/etc/nccl.conf", (3, "NCCL_SOCKET_IFNAME=bond1"))
    note = only(run("interfaces.choice", fleet({**BOND, "b": interfaces("bond0/10.0.0.2/24", conf_files=files)})))
    assert not note.env and "once NCCL_SOCKET_IFNAME is removed (/etc/nccl.conf:3 on b)" in note.title


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("eth9", "no such interface"),
        ("BOND0", "case"),
        ('"bond0"', "quotes"),
        ('"bond9"', "no such interface"),
        (" bond0", "blanks"),
        ("=bond", "whole name"),
        ("^=", "leaves nothing"),
        ("bond1", "is down"),
        ("ib0", "has no address"),
    ],
)
def test_why_a_name_matches_nothing(value: str, reason: str) -> None:
    facts = interfaces(
        "bond0/10.0.0.1/24",
        "bond1/10.1.0.1/24/D",
        environment={"NCCL_SOCKET_IFNAME": value},
        devices=(Device("bond0"), Device("ib0")),
    )
    found = only(run("interface_settings.interface_setting", fleet({"a": facts})))
    assert reason in found.title and found.env[0].unset


def test_with_an_address_to_meet_at_nccl_needs_no_name_that_matches() -> None:
    set_here = {"NCCL_SOCKET_IFNAME": "eth9", "NCCL_COMM_ID": "10.0.0.1:5000"}
    facts = interfaces("bond0/10.0.0.1/24", environment=set_here)
    assert not run("interface_settings.interface_setting", fleet({"a": facts})).findings


def test_the_job_environment_of_the_plan_wins() -> None:
    plan = Plan(env={"NCCL_SOCKET_IFNAME": "eth9"})
    found = only(run("interface_settings.interface_setting", fleet({"a": BOND["a"]}), plan))
    assert "eth9" in found.title and found.evidence[0].source == "job environment"


def test_exclude_list_that_selects_loopback() -> None:
    files = conf("/etc/nccl.conf", (2, "NCCL_SOCKET_IFNAME=^docker0"))
    hosts = fleet({**BOND, "c": interfaces("bond0/10.0.0.3/24", conf_files=files)})
    found = only(run("interfaces.chosen_interface", hosts))
    assert (found.id, found.hosts, found.severity) == ("net.wrong-interface.loopback", ("c",), Severity.FAIL)
    assert "/etc/nccl.conf:2" in found.evidence[0].text
    assert any("lo,docker,virbr" in fix.text for fix in found.fixes)
    set_here = {"NCCL_SOCKET_IFNAME": "^docker"}
    found = only(
        run("interfaces.chosen_interface", fleet({**BOND, "c": interfaces("bond0/10.0.0.3/24", environment=set_here)}))
    )
    assert any("exclude lo and virbr as well" in fix.text for fix in found.fixes)


def test_one_host_alone_may_use_loopback() -> None:
    result = run("interfaces.chosen_interface", fleet({"a": interfaces()}))
    assert not result.findings and "a" in result.skipped


def test_docker_bridge_is_blamed_only_where_it_is_chosen() -> None:
    hosts = fleet(
        {"a": interfaces("docker0/172.17.0.1/16"), "b": interfaces("docker0/172.17.0.1/16", "eth0/10.0.0.2/24")}
    )
    assert ids(run("interfaces.chosen_interface", hosts)) == [("net.wrong-interface.local", ("a",))]
    assert ids(run("interface_duplicates.duplicate_addresses", hosts)) == []
    both = fleet({"a": interfaces("docker0/172.17.0.1/16"), "b": interfaces("docker0/172.17.0.1/16")})
    assert ids(run("interfaces.chosen_interface", both)) == [("net.wrong-interface.local", (name,)) for name in "ab"]
    assert ids(run("interface_duplicates.duplicate_addresses", both)) == []


def test_bridge_of_any_name_with_one_address_everywhere() -> None:
    hosts = fleet(
        {name: interfaces(f"bond0/10.0.0.{number}/24", "br-lxd/172.17.0.1/16") for number, name in enumerate("ab", 1)}
    )
    for source, peer in (("a", "b"), ("b", "a")):
        hosts[source]["links"] = links(
            (peer, "172.17.0.1", "wrong-peer"), (peer, "10.0.0.2" if peer == "b" else "10.0.0.1", "ok")
        )
    found = only(run("interface_duplicates.duplicate_addresses", hosts))
    assert (found.hosts, found.severity) == (("a", "b"), Severity.FAIL) and found.env[0].value == "=bond0"
    assert ids(run("interfaces.unreachable", hosts)) == [] == ids(run("interfaces.subnets", hosts))


def test_a_host_that_carries_the_address_of_a_peer_is_named() -> None:
    hosts = fleet(BOND | {"b": interfaces("bond0/10.0.0.2/24", "bond1/10.0.0.3/24/D")})
    found = only(run("interface_duplicates.address_of_a_peer", hosts))
    assert found.id == "net.wrong-interface.duplicate-address" and found.hosts == ("b", "c")
    assert found.fixes[0].host == "b" and found.fixes[0].command == "sudo ip address del 10.0.0.3/24 dev bond1"
    assert "net.firewall" in found.explains


def test_of_two_hosts_with_one_address_the_one_reached_elsewhere_has_it_besides_its_own() -> None:
    """An IPv6 address that was added last is listed first: both would hand it out."""
    both = {"a": interfaces("eth0/fd00::1/64"), "b": interfaces("eth0/fd00::1/64", "eth0/fd00::2/64")}
    reached_at = {"a": "fd00::1", "b": "fd00::2"}
    found = only(run("interface_duplicates.duplicate_addresses", fleet(both), reached_at=reached_at))
    assert found.hosts == ("a", "b") and "net.firewall" in found.explains
    assert [(fix.host, fix.command) for fix in found.fixes] == [("b", "sudo ip address del fd00::1/64 dev eth0")]


@pytest.mark.parametrize(("network", "severity"), [("10.0.0", Severity.WARN), ("192.168.7", Severity.FAIL)])
def test_gloo_told_to_use_loopback(network: str, severity: Severity) -> None:
    facts = {name: interfaces(f"eth0/{network}.{number}/24") for number, name in enumerate("abc", 1)}
    facts["b"] = msgspec.structs.replace(facts["b"], environment={"GLOO_SOCKET_IFNAME": "lo"})
    hosts = fleet(facts)
    for number, name in enumerate("abc", 1):
        own = {"addresses": [f"{network}.{number}"]}
        hosts[name]["names"] = {"host_name": name, "own": own, "addresses": [f"{network}.{number}"]}
    found = only(run("interface_settings.gloo_told_loopback", hosts))
    assert found.hosts == ("b",) and found.severity is severity and found.env[0].shell == "unset GLOO_SOCKET_IFNAME"
    assert found.fixes[0].host == "b" and "grep -ns GLOO_SOCKET_IFNAME /etc/environment " in found.fixes[0].command
    everywhere = run("interface_settings.gloo_told_loopback", hosts, Plan(env={"GLOO_SOCKET_IFNAME": "lo"})).findings
    assert {item.fixes[0].text for item in everywhere} == {"take it out of the command line given to nccl-doctor"}


def test_a_loopback_that_is_down_breaks_the_ranks_of_one_host() -> None:
    up = interfaces("eth0/10.0.0.1/24")
    first, *rest = up.addresses
    down = msgspec.structs.replace(up, addresses=(msgspec.structs.replace(first, up=False), *rest))
    found = only(run("interface_links.loopback_down", fleet({"a": up, "b": down})))
    assert found.id == "net.loopback-down" and found.hosts == ("b",)


def test_docker_bridges_that_are_not_used_are_a_note() -> None:
    hosts = fleet(
        {name: interfaces(f"eth0/10.0.0.{number}/24", "docker0/172.17.0.1/16") for number, name in enumerate("ab", 1)}
    )
    note = only(run("interface_duplicates.unused_duplicates", hosts))
    assert (note.severity, note.hosts) == (Severity.INFO, ("a", "b")) and "docker0 has 172.17.0.1" in note.title


def test_vpn_is_a_warning_and_the_wire_is_recommended() -> None:
    hosts = fleet(
        {
            "a": interfaces("tailscale0/100.64.0.1/10", "enp1s0/10.0.0.1/24"),
            "b": interfaces("tailscale0/100.64.0.2/10", "enp1s0/10.0.0.2/24"),
        }
    )
    result = run("interfaces.chosen_interface", hosts)
    assert ids(result, Severity.WARN) == [("net.wrong-interface.vpn", ("a",)), ("net.wrong-interface.vpn", ("b",))]
    assert result.findings[0].env[0].value == "=enp1s0"


def test_old_nccl_takes_an_interface_that_is_down() -> None:
    hosts = fleet({**BOND, "a": interfaces("eth1/10.9.0.1/24/D", "bond0/10.0.0.1/24")})
    assert ids(run("interfaces.chosen_interface", hosts, Plan(nccl_version="2.27.3"))) == [
        ("net.wrong-interface.down", ("a",))
    ]
    assert ids(run("interfaces.chosen_interface", hosts, Plan(nccl_version="2.28.3"))) == []


def test_the_version_found_on_the_host_decides() -> None:
    hosts = fleet({**BOND, "a": interfaces("eth1/10.9.0.1/24/D", "bond0/10.0.0.1/24")}, software=software())
    assert ids(run("interfaces.chosen_interface", hosts)) == [("net.wrong-interface.down", ("a",))]


def test_an_installed_version_that_is_no_number_is_not_believed() -> None:
    strange = software(torch=None, nccl=(), distributions={"nvidia-nccl-cu12": "main"})
    assert "(assumed)" in only(run("interfaces.choice", fleet(BOND, software=strange))).title
    ours = software(torch=None, nccl=(), distributions={"nvidia-nccl-cu12": "2.27.3.post1"})
    assert "NCCL 2.27.3 would" in only(run("interfaces.choice", fleet(BOND, software=ours))).title


NODES = ("n1", "n2", "n3")


def test_measured_unreachable_address_is_blamed_and_the_reachable_one_recommended() -> None:
    hosts = fleet(
        {
            name: interfaces(f"eth1/192.168.5.{number}/24", f"eth0/10.0.0.{number}/24")
            for number, name in enumerate(NODES, 1)
        }
    )
    for source in NODES:
        hosts[source]["links"] = links(
            *((peer, f"192.168.5.{number}", "timed-out") for number, peer in enumerate(NODES, 1) if peer != source),
            *((peer, f"10.0.0.{number}", "ok") for number, peer in enumerate(NODES, 1) if peer != source),
        )
    result = run("interfaces.unreachable", hosts)
    assert [item.hosts for item in result.findings] == [("n1",), ("n2",), ("n3",)]
    first = result.findings[0]
    assert first.env[0].value == "=eth0" and "timed-out" in first.evidence[1].text and "10.0.0.1" in first.title
    assert "which n[2-3] cannot reach" in first.title


def test_a_host_that_nobody_reaches_anywhere_is_not_an_interface_problem() -> None:
    hosts = fleet(BOND)
    for source in "ab":
        hosts[source]["links"] = links(("c", "10.0.0.3", "timed-out"))
    hosts["c"]["links"] = links(("a", "10.0.0.1", "ok"))
    assert ids(run("interfaces.unreachable", hosts)) == []
    examined_elsewhere = run("interfaces.unreachable", hosts, reached_at={"c": "192.0.2.3"})
    assert ids(examined_elsewhere) == [("net.wrong-interface.unreachable", ("c",))]


def test_second_interface_that_peers_cannot_reach() -> None:
    hosts = fleet({**BOND, "b": interfaces("bond0/10.0.0.2/24", "eth7/192.168.77.2/24")})
    found = only(run("interfaces.subnets", hosts))
    assert (found.id, found.hosts) == ("net.wrong-interface.extra", ("b",))
    assert found.env[0].value == "=bond0"
    rdma = {name: {**probes, "system": system(rdma_devices=("mlx5_0",))} for name, probes in hosts.items()}
    assert ids(run("interfaces.subnets", rdma)) == []


def test_docker_network_bridge_is_an_extra_interface() -> None:
    hosts = fleet(
        {
            name: interfaces(f"bond0/10.0.0.{number}/24", "br-0a1b2c3d4e5f/172.18.0.1/16")
            for number, name in enumerate("ab", 1)
        }
    )
    assert ids(run("interfaces.subnets", hosts)) == [
        ("net.wrong-interface.extra", ("a",)),
        ("net.wrong-interface.extra", ("b",)),
    ]


def test_link_local_only_interface_is_a_note() -> None:
    hosts = fleet(
        {
            name: interfaces(f"bond0/10.0.0.{number}/24", f"eno2/fe80::{number}/64")
            for number, name in enumerate("ab", 1)
        }
    )
    assert ids(run("interfaces.subnets", hosts), Severity.WARN) == []
    assert len(run("interfaces.subnets", hosts).findings) == 2


def test_different_subnets_are_fine_once_measured() -> None:
    hosts = fleet({"a": interfaces("eth0/10.1.0.1/24"), "b": interfaces("eth0/10.2.0.1/24")})
    assert [item[0] for item in ids(run("interfaces.subnets", hosts))] == ["net.wrong-interface.different-subnet"] * 2
    hosts["a"]["links"] = links(("b", "10.2.0.1", "ok"))
    hosts["b"]["links"] = links(("a", "10.1.0.1", "ok"))
    assert ids(run("interfaces.subnets", hosts)) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eth1", "net.wrong-interface.prefix"),
        ("=eth1", None),
        ("eth", None),
        ("eth1, eth10", "net.wrong-interface.ifname-syntax"),
        ("eth1,^lo", "net.wrong-interface.ifname-syntax"),
        ("e", "net.wrong-interface.ifname-syntax"),
        ("", None),
        ("^lo,docker", None),
    ],
)
def test_syntax(value: str, expected: str | None) -> None:
    facts = interfaces("eth1/10.0.0.1/24", "eth10/10.1.0.1/24", environment={"NCCL_SOCKET_IFNAME": value})
    assert [item[0] for item in ids(run("interface_settings.interface_syntax", fleet({"a": facts})))] == (
        [expected] if expected else []
    )


def test_gloo_names_are_exact() -> None:
    facts = interfaces("eth0/10.0.0.1/24", environment={"GLOO_SOCKET_IFNAME": "eth"})
    assert ids(run("interface_settings.gloo_names", fleet({"a": facts}))) == [
        ("net.wrong-interface.gloo-no-match", ("a",))
    ]
    facts = interfaces("eth0/10.0.0.1/24", environment={"GLOO_SOCKET_IFNAME": "eth0,"})
    assert ids(run("interface_settings.gloo_names", fleet({"a": facts}))) == []


def test_a_configuration_file_that_may_not_be_read_is_a_gap() -> None:
    hidden = interfaces(
        "eth0/10.0.0.1/24", conf_files=({"role": "system", "path": "/etc/nccl.conf", "outcome": "not-permitted"},)
    )
    assert run("interface_settings.configuration_files", fleet({"a": hidden})).unknown


def test_comm_id_with_a_host_name_is_unknown_not_wrong() -> None:
    facts = interfaces("eth0/10.0.0.1/24", environment={"NCCL_COMM_ID": "gpu01:1234"})
    result = run("interfaces.chosen_interface", fleet({"a": facts, "b": BOND["b"]}))
    assert not result.findings and result.unknown[0].hosts == ("a",)


@pytest.mark.parametrize(
    ("overall", "own", "said"),
    [("1", "0", "strict"), ("0", "1", "strict"), ("0", "0", "pass"), ("2", "1", "pass"), ("1", "2", "pass"),
     ("2", None, "pass"), ("0", None, "unknown"), ("1", None, "unknown"), (None, "0", "unknown")],
)  # fmt: skip
def test_strict_reverse_path_filter_matters_with_two_addresses_in_one_network(
    overall: str | None, own: str | None, said: str
) -> None:
    values = {"all": overall, "eth0": own, "eth1": own}
    rest = {name: value for name, value in system().sysctls.items() if "rp_filter" not in name}
    sysctls = {**rest, **{f"net.ipv4.conf.{name}.rp_filter": value for name, value in values.items() if value}}

    def judged(*addresses: str) -> engine.RuleResult:
        facts = {"interfaces": interfaces(*addresses), "system": system(sysctls=sysctls)}
        return run("interface_links.reverse_path_filter", {"a": facts})

    result = judged("eth0/10.0.0.1/24", "eth1/10.0.0.2/24")
    assert ids(result) == ([("net.rp-filter.strict", ("a",))] if said == "strict" else [])
    assert bool(result.unknown) == (said == "unknown") and bool(result.passed) == (said == "pass")
    assert judged("eth0/10.0.0.1/24").passed


def recommend(hosts: dict[str, Interfaces], *tried: Attempt) -> Any:
    return decide({host: Station(facts, (2, 28, 9)) for host, facts in hosts.items()}, tried)


def test_recommendation_where_names_differ_lists_both_and_is_checked_on_every_host() -> None:
    hosts = {
        "a": interfaces("br-0a1b2c3d4e5f/172.18.0.1/16", "eth0/10.0.0.1/24"),
        "b": interfaces("ens3/10.0.0.2/24"),
    }
    assert recommend(hosts).advice.value == "=ens3,eth0"
    # the list would take b's own eth0, which peers cannot reach: no single setting works
    hosts["b"] = interfaces("eth0/192.168.9.2/24", "ens3/10.0.0.2/24")
    found = recommend(hosts)
    assert found.advice is None and not found.works


def test_recommendation_prefers_the_faster_of_two_working_networks() -> None:
    def host(number: int) -> Interfaces:
        devices = (Device("eno1", speed_mbps=1000), Device("ens5", speed_mbps=100000))
        return interfaces(
            "virbr0/192.168.122.1/24", f"eno1/10.0.0.{number}/24", f"ens5/10.5.0.{number}/24", devices=devices
        )

    found = decide({name: Station(host(number), (2, 27, 3)) for number, name in enumerate("ab", 1)})
    assert found.advice is not None and found.advice.value == "=ens5"


def test_recommendation_believes_measurements_over_subnets() -> None:
    hosts = {name: interfaces(f"eth1/192.168.5.{n}/24", f"eth0/10.0.0.{n}/24") for n, name in enumerate("ab", 1)}
    assert recommend(hosts).advice is None and recommend(hosts).works
    tried = [
        Attempt("a", "b", "192.168.5.2", False),
        Attempt("a", "b", "10.0.0.2", True),
        Attempt("b", "a", "10.0.0.1", True),
    ]
    assert recommend(hosts, *tried).advice.value == "=eth0"


def test_an_address_some_peers_reach_is_blamed_for_the_others_alone() -> None:
    """The proof is of the failed attempts at that address; what works elsewhere is named and quoted."""
    hosts = fleet(
        {name: interfaces(f"eth1/192.168.5.{n}/24", f"eth0/10.0.0.{n}/24") for n, name in enumerate("abc", 1)}
    )
    hosts["a"]["links"] = links(("c", "192.168.5.3", "timed-out"), ("c", "10.0.0.3", "refused"))
    hosts["b"]["links"] = links(("c", "192.168.5.3", "ok"), ("c", "10.0.0.3", "ok"))
    hosts["c"]["links"] = links(("a", "192.168.5.1", "ok"), ("b", "192.168.5.2", "ok"))
    every = run("interfaces.unreachable", hosts).findings
    (item,) = [finding for finding in every if "hand out 192.168.5.3" in finding.title]
    assert item.severity is Severity.FAIL and [place.peer for place in item.places] == ["a"]
    assert [proof.source for proof in item.evidence][1:] == ["from a", "from b"]
    assert "timed-out" in item.evidence[1].text and "10.0.0.3" in item.evidence[2].text and item.confidence > 0.9


def test_a_host_without_connection_tests_is_unknown_to_the_rule_on_them() -> None:
    hosts = fleet(BOND)
    hosts["a"]["links"] = links(("b", "10.0.0.2", "ok"))
    assert run("interfaces.unreachable", hosts).unknown


@pytest.mark.parametrize(
    ("first", "id"),
    [("cni0/10.244.{}.1/24", "local"), ("ens9/10.9.0.{}/24/D", "down"), ("ens9/10.9.0.{}/24", "unreachable")],
)
def test_an_interface_that_no_peer_can_use_is_told_by_one_rule(first: str, id: str) -> None:
    """NCCL before 2.28.3 takes one without a carrier as well."""
    told = fleet({name: interfaces(first.format(at), f"eth0/10.0.0.{at}/24") for at, name in enumerate("abc", 1)})
    for source in told:
        others = [(peer, at) for at, peer in enumerate("abc", 1) if peer != source]
        ends = [(peer, first.split("/")[1].format(at), "timed-out") for peer, at in others]
        told[source]["links"] = links(*ends, *((peer, f"10.0.0.{at}", "ok") for peer, at in others))
    plan = Plan(nccl_version="2.27.3")
    rules = ("interfaces.chosen_interface", "interfaces.unreachable", "interfaces.subnets")
    found = [item for rule in rules for item in run(rule, told, plan).findings]
    assert {item.id for item in found} == {f"net.wrong-interface.{id}"} and len(found) == 3


def limited(*outcomes: tuple[str, int]) -> engine.RuleResult:
    """a's connects to b's data0: outcome and attempts; b answered c late, and all reach b's eth0."""
    hosts = fleet({name: interfaces(*TWO_NETWORKS[name]) for name in "abc"})
    for name in "abc":
        others = [(peer, at) for at, peer in enumerate("abc", 1) if peer != name]
        hosts[name]["links"] = links(*((peer, f"10.{net}.0.{at}", "ok") for net in (0, 9) for peer, at in others))
    of_c = hosts["c"]["links"]["links"]
    of_c[0 if of_c[0]["peer"] == "b" else 1]["attempts"] = 2
    of_a = [link for link in hosts["a"]["links"]["links"] if link["address"] != "10.9.0.2"]
    data = {"peer": "b", "address": "10.9.0.2", "purpose": "chosen-interface"}
    of_a += [{**data, "port": 41000 + n, "outcome": o, "attempts": tries} for n, (o, tries) in enumerate(outcomes)]
    hosts["a"]["links"] = {"links": of_a}
    return run("interfaces.unreachable", hosts)


def test_a_connect_in_doubt_has_neither_failed_nor_passed() -> None:
    found = limited(("timed-out", 1))
    assert not found.findings and "b" not in found.passed
    assert [(gap.what, gap.hosts) for gap in found.unknown] == [("connects from a", ("b",))]
    assert only(limited(("timed-out", 9))).id == "net.wrong-interface.unreachable"  # it was tried again, alone


def test_an_address_that_answers_on_one_port_is_reached() -> None:
    """What the other port lacks is the ports stage's finding."""
    assert not limited(("timed-out", 9), ("ok", 1)).findings
    assert not limited(("ok", 1), ("timed-out", 9)).findings


TWO_NETWORKS = {name: (f"data0/10.9.0.{i}/24", f"eth0/10.0.0.{i}/24") for i, name in enumerate("abcd", 1)}


def without_network(*own: str, reached: bool, **more: Any) -> engine.RuleResult:
    """a, b, c and d use data0 and eth0; "b" has only ``own``. All reach each other on eth0, and on data0 but for b."""
    hosts = {name: interfaces(*(own if name == "b" else both)) for name, both in TWO_NETWORKS.items()}
    if more:
        hosts["b"] = msgspec.structs.replace(hosts["b"], **more)
    told = fleet(hosts)
    for source in hosts:
        attempts = []
        for number, peer in enumerate("abcd", 1):
            if source != peer:
                cut = "b" in (source, peer) and not reached
                attempts.append((peer, f"10.0.0.{number}", "ok"))
                if peer != "b" or any(address.name == "data0" for address in hosts["b"].addresses):
                    attempts.append((peer, f"10.9.0.{number}", "timed-out" if cut else "ok"))
        told[source]["links"] = links(*attempts)
    return run("interfaces.unreachable", told)


def test_a_host_without_the_others_network_is_the_one_to_blame() -> None:
    found = only(without_network("eth0/10.0.0.2/24", reached=False))
    assert (found.id, found.hosts) == ("net.wrong-interface.missing", ("b",))
    assert "b has no interface in 10.9.0.0/24" in found.title and "a, c, d (data0)" in found.title
    bare = only(without_network("eth0/10.0.0.2/24", reached=False, devices=(Device("data0"), Device("eth0"))))
    assert "its data0 is down or has none" in bare.title and bare.places[0].nic == "data0"


def test_a_host_whose_interface_has_another_network_is_told_once() -> None:
    """b's data0 is up, in 10.8.0.0/24: nobody reaches it there, and it reaches nobody in 10.9.0.0/24."""
    hosts = {name: interfaces(*both) for name, both in TWO_NETWORKS.items()}
    hosts["b"] = interfaces("data0/10.8.0.2/24", "eth0/10.0.0.2/24")
    told = fleet(hosts)
    for source in "abcd":
        others = [(peer, at) for at, peer in enumerate("abcd", 1) if peer != source]
        reached = [(peer, f"10.0.0.{at}", "ok") for peer, at in others]
        nets = [(peer, at, 8 if peer == "b" else 9) for peer, at in others]
        data = [(p, f"10.{n}.0.{at}", "timed-out" if "b" in (source, p) else "ok") for p, at, n in nets]
        told[source]["links"] = links(*reached, *data)
    found = only(run("interfaces.unreachable", told))
    assert (found.id, found.hosts) == ("net.wrong-interface.missing", ("b",))
    assert "b has no address in 10.9.0.0/24, as its data0 has 10.8.0.2/24" in found.title


def test_a_host_plugged_into_another_network_is_the_one_to_blame() -> None:
    found = only(without_network("data0/10.9.0.2/24", "eth0/10.0.0.2/24", reached=False))
    assert (found.id, found.hosts) == ("net.wrong-interface.unreachable", ("b",))
    assert "b reaches nobody in 10.9.0.0/24 through data0" in found.title
    assert not without_network("data0/10.9.0.2/24", "eth0/10.0.0.2/24", reached=True).findings


def flaps(losses: dict[str, int], later: dict[str, int], **more: Any) -> engine.RuleResult:
    """bond0 over eth0 and eth1 carries the job; eth7 does not."""
    ports = ("eth0", "eth1")
    before = {"bond0": 0, "eth0": 0, "eth1": 0, "eth7": 0, **losses}
    devices = (
        Device("bond0", kind="bond", lower=ports, losses=before["bond0"]),
        *(Device(name, kind="physical", master="bond0", losses=before[name]) for name in ports),
        Device("eth7", kind="physical", losses=before["eth7"]),
    )
    facts = interfaces("bond0/10.0.0.1/24", "eth7/10.9.0.1/24/D", devices=devices, uptime_s=2 * 86400.0, **more)
    return run("interface_links.links_stay_up", fleet({"a": facts}, carriers=carriers(**{**before, **later})))


def test_a_link_that_goes_down_during_the_run_is_named() -> None:
    found = only(flaps({"eth1": 3}, {"bond0": 0, "eth0": 0, "eth1": 5}))
    assert (found.id, found.severity, found.places[0].nic) == ("net.link-flapping", Severity.FAIL, "eth1")
    assert "eth1" in found.title and "bond0" in found.title and "3 -> 5 in 9.0 s" in found.evidence[0].text


def test_link_losses_of_the_past_are_judged_per_day_of_uptime() -> None:
    assert not flaps({"eth1": 9}, {"eth1": 9}).findings
    found = only(flaps({"eth1": 10}, {"eth1": 10}))
    assert (found.id, found.severity) == ("net.link-flapping.past", Severity.WARN)
    assert "eth1, which bond0 stands on, went down 10 times in 2 d" in found.title


def test_links_that_the_job_does_not_use_may_flap() -> None:
    result = flaps({"eth7": 400}, {"eth7": 900}, environment={"NCCL_SOCKET_IFNAME": "=bond0"})
    assert not result.findings and result.passed == ("a",)


def test_a_link_that_was_down_when_the_interfaces_were_read_is_used_whenever_it_is_up() -> None:
    assert only(flaps({"eth7": 4}, {"eth7": 5})).places[0].nic == "eth7"
    assert not flaps({"eth7": 400}, {"eth7": 400}).findings, "down all the time, and not used"


def test_a_link_made_anew_between_the_readings_has_not_flapped() -> None:
    assert not flaps({"eth0": 4}, {"eth0": 0}).findings


def test_a_link_that_only_one_reading_counts_is_unknown() -> None:
    facts = interfaces("eth0/10.0.0.1/24", "eth1/10.0.1.1/24")
    result = run(
        "interface_links.links_stay_up",
        {"a": {"interfaces": facts, "system": system(), "carriers": Carriers({"eth0": 1}, 9.0)}},
    )
    assert not result.passed and [gap.what for gap in result.unknown] == ["how often the link of eth1 goes down"]


def test_without_a_second_reading_it_is_not_known_whether_links_flap() -> None:
    result = run(
        "interface_links.links_stay_up", {"a": {"interfaces": interfaces("eth0/10.0.0.1/24"), "system": system()}}
    )
    assert not result.passed and [gap.what for gap in result.unknown] == ["carriers"]


def test_a_kernel_that_does_not_count_is_told_as_such() -> None:
    bare = interfaces("eth0/10.0.0.1/24", devices=(Device("eth0"),))
    result = run("interface_links.links_stay_up", fleet({"a": bare}))
    assert "does not count" in result.skipped["a"]
