"""Connectivity and ports: each fault names its host, on a fleet that is green otherwise; missing data is unknown."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import msgspec
import pytest
from facts_builder import NAMES, Builder, address

from nccl_doctor.agent.probes.listening import AGENT_MARK
from nccl_doctor.facts.model import Reach, ReachOutcome
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence, Finding, Severity, finding
from nccl_doctor.rules import gate, mesh_pairs
from nccl_doctor.rules.consequences import fold
from nccl_doctor.rules.judge import Report, judge
from nccl_doctor.transport.launch import shell_command


def state_of(report: Report) -> dict[str, str]:
    return {item.host: item.state for item in gate.decide_hosts(report)}


def only(report: Report) -> Finding:
    assert len(report.causes) == 1, [(item.id, item.hosts) for item in report.findings]
    return report.causes[0]


def test_a_green_fleet_is_healthy() -> None:
    report = judge(Builder().bundle())
    assert report.verdict == "healthy" and not report.findings and not report.unknown
    assert report.exit_code() is ExitCode.HEALTHY
    assert [(stage.name, stage.state, stage.passed) for stage in report.stages] == [
        ("connectivity", "pass", 4),
        ("ports", "pass", 4),
    ]


@pytest.mark.parametrize("probe", ["names", "links", "path-mtu", "throughput", "clock", "listening"])
@pytest.mark.parametrize("host", NAMES[:2])
def test_a_missing_fact_is_unknown_never_healthy(probe: str, host: str) -> None:
    builder = Builder()
    del builder.probes[host][probe]
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and report.exit_code() is ExitCode.INCOMPLETE
    assert any(host in gap.hosts for gap in report.unknown)


def test_inbound_drop_names_the_host_that_drops() -> None:
    builder = Builder().unanswered(*((source, "gpu03") for source in NAMES))
    found = only(judge(builder.bundle()))
    assert found.id == "net.firewall.dropped" and found.hosts == ("gpu03",)
    assert {item.host for item in found.evidence[:3]} == {*NAMES} - {"gpu03"}  # one of each before a second
    assert "gpu03 itself can connect out" in found.title
    assert len(found.evidence) == 6


def test_reject_is_told_from_drop() -> None:
    builder = Builder()
    for source in NAMES:
        for link in builder.links(source, "gpu02"):
            link.update(outcome="refused", detail="[Errno 111] Connection refused", messages=0)
    found = only(judge(builder.bundle()))
    assert found.id == "net.firewall.rejected" and found.hosts == ("gpu02",)


@pytest.mark.parametrize(("outward", "inward"), [("timed-out", "unreachable"), ("refused", "timed-out")])
def test_a_host_that_lets_nothing_out_hides_no_host_that_lets_nothing_in(outward: str, inward: str) -> None:
    """What gpu02 cannot send says nothing of gpu03: those who can ask it are all turned away, and are not to blame."""
    builder = Builder()
    for peer in ("gpu01", "gpu04", "gpu02"):
        for link in builder.links(peer, "gpu03"):
            link.update(outcome=inward, detail="no", messages=0, answered=0)
    for peer in NAMES:
        for link in builder.links("gpu02", peer):
            link.update(outcome=outward, detail="no", messages=0, answered=0)
    found = [item for item in judge(builder.bundle()).causes if item.id.startswith("net.firewall")]
    assert sorted(item.hosts for item in found) == [("gpu02",), ("gpu03",)]
    assert all(item.confidence == 1.0 for item in found)


def test_a_firewall_hides_no_interface_of_another_mtu() -> None:
    """What a host's own kernel says of its interface is nobody's consequence."""
    builder = Builder().unanswered(("gpu02", "gpu03"))
    for host, path in builder.each("path-mtu"):
        path.update(interface_mtu=9000 if host == "gpu03" else 1500)
    told = {item.id: item.folded_under for item in judge(builder.bundle()).findings}
    assert told["net.mtu.mismatch"] == "" and "net.firewall.dropped" in told


def test_only_the_master_port_blocked() -> None:
    builder = Builder().unanswered(*((source, "gpu01") for source in NAMES), purpose="master")
    found = only(judge(builder.bundle()))
    assert found.id == "net.master-unreachable" and found.hosts == ("gpu01",)


def test_master_port_blocked_for_one_client_only_blames_that_client() -> None:
    builder = Builder().unanswered(("gpu04", "gpu01"), purpose="master")
    found = only(judge(builder.bundle()))
    assert found.id == "net.master-unreachable" and found.hosts == ("gpu04",)


def test_two_hosts_cannot_tell_which_end_drops() -> None:
    names = ("gpu01", "gpu02")
    builder = Builder(names).unanswered(names)
    found = only(judge(builder.bundle()))
    assert found.hosts == names and found.confidence < 0.99


def test_one_way_between_two_of_many_says_which_way() -> None:
    builder = Builder().unanswered(("gpu04", "gpu02"))
    found = only(judge(builder.bundle()))
    assert found.hosts == ("gpu02", "gpu04")
    assert "from gpu04 to gpu02" in found.title and "gpu02 can connect to gpu04" in found.title
    assert "gpu02's on what comes in" in found.fixes[0].text


def test_what_hangs_is_folded_under_the_cause_on_its_own_hosts_and_what_works_under_none() -> None:
    def of(id: str, host: str, severity: Severity = Severity.FAIL, explains: tuple[str, ...] = ()) -> Finding:
        return finding(id, severity, id, Evidence("proof"), hosts=(host,), explains=explains)

    first = of("net.hostname-resolution.loopback", "gpu02", explains=("collectives",))
    second = of("net.firewall.dropped", "gpu03", explains=("collectives",))
    works = of("collectives.measured", "gpu03", Severity.INFO)
    folded = fold([first, second, of("collectives.stuck.measure", "gpu03"), works])
    assert [item.folded_under for item in folded] == ["", "", "net.firewall.dropped", ""]


@pytest.mark.parametrize(
    ("hosts", "confidence", "folded"),
    [
        (("gpu02",), 1.0, True),
        (("gpu02", "gpu03"), 0.9, True),  # one link: either end's fault is reason enough
        (("gpu02", "gpu03"), 1.0, False),  # both are cut off from all others
        (NAMES, 0.9, False),  # nobody reaches anybody
    ],
)
def test_one_host_s_fault_is_no_reason_why_others_do_not_reach_each_other(
    hosts: tuple[str, ...], confidence: float, folded: bool
) -> None:
    """With all links cut and one of them flapping, the hosts at the other ends passed for healthy."""
    flaps = finding(
        "net.link-flapping", Severity.FAIL, "flaps", Evidence("proof"), hosts=("gpu02",), explains=("net.firewall",)
    )
    cut = finding("net.firewall.dropped", Severity.FAIL, "cut", Evidence("proof"), hosts=hosts, confidence=confidence)
    assert [item.folded_under for item in fold([flaps, cut])] == ["", "net.link-flapping" * folded]
    both = msgspec.structs.replace(flaps, hosts=hosts)
    assert [item.folded_under for item in fold([both, cut])] == ["", "net.link-flapping"]


def test_slow_look_ups_name_the_host_and_its_name_servers() -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["lookup_s"] = None
    assert [gap.hosts for gap in judge(builder.bundle()).unknown if gap.what == "time of look-ups"] == [("gpu02",)]
    builder = Builder()
    builder.probes["gpu03"]["names"].update(lookup_s=6.0, resolver=["nameserver 10.9.9.9"])
    found = only(judge(builder.bundle()))
    assert found.id == "net.hostname-resolution.slow" and found.hosts == ("gpu03",)
    assert "6.0 s" in found.title and found.evidence[1].text == "nameserver 10.9.9.9"


def test_port_in_use_names_the_process() -> None:
    builder = Builder()
    holder = {"pid": 4242, "command": "python3", "user": "alice"}
    builder.probes["gpu01"]["listening"]["master"] = {
        "port": 29500,
        "outcome": "in-use",
        "detail": "[Errno 98] Address already in use",
        "holder": holder,
    }
    found = only(judge(builder.bundle()))
    assert found.id == "net.port-in-use" and "python3 (pid 4242, user alice)" in found.title
    for holder, who in (({"user": "alice"}, "a process of user alice"), (None, "a process that cannot be seen")):
        builder.probes["gpu01"]["listening"]["master"]["holder"] = holder
        assert only(judge(builder.bundle())).title == f"port 29500 on gpu01 is held by {who}"


def test_the_port_held_by_another_run_of_ours_is_unknown_and_no_fault() -> None:
    assert AGENT_MARK in shell_command()
    builder = Builder()
    builder.probes["gpu01"]["listening"]["master"] = {
        "port": 29500, "outcome": "in-use", "detail": "[Errno 98] Address already in use",
        "holder": {"pid": 7, "command": f"python3 -B -u -c import sys;{AGENT_MARK},sys.stdin).read(3305))", "user": "root"},
    }  # fmt: skip
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and not report.findings
    assert "another run of nccl-doctor holds it (pid 7)" in report.unknown[0].why


def test_master_port_that_may_not_be_bound_is_unknown() -> None:
    builder = Builder()
    builder.probes["gpu01"]["listening"]["master"] = {"port": 80, "outcome": "not-permitted", "detail": "denied"}
    assert judge(builder.bundle()).verdict == "incomplete"


def test_a_connect_that_failed_in_an_unheard_of_way_is_unknown() -> None:
    builder = Builder()
    builder.links("gpu01", "gpu02")[0].update(outcome="failed", detail="[Errno 999] what")
    assert judge(builder.bundle()).verdict == "incomplete"


def test_own_name_loopback() -> None:
    builder = Builder()
    builder.probes["gpu03"]["names"]["own"] = {"addresses": ["127.0.1.1"], "quoted": "127.0.1.1 gpu03", "line": 2}
    found = only(judge(builder.bundle()))
    assert found.id == "net.hostname-resolution.loopback" and found.hosts == ("gpu03",)
    assert found.evidence[0].source == "/etc/hosts" and found.evidence[0].line == 2


@pytest.mark.parametrize(
    ("line", "addresses", "after"),
    [
        ("127.0.1.1 gpu03.cluster gpu03", ["127.0.0.1", "10.0.0.3"], "10.0.0.3 gpu03.cluster gpu03"),
        ("127.0.0.1 localhost gpu03  # cloud-init", ["127.0.0.1", "10.0.0.3"], "127.0.0.1 localhost\n10.0.0.3 gpu03"),
        (
            "127.0.0.1 localhost gpu03",
            ["10.0.0.3", "10.1.0.3"],
            "127.0.0.1 localhost",
        ),  # which of the two, nobody knows
        ("127.0.1.1 gpu03", [], "#127.0.1.1 gpu03"),
        ("127.0.1.1 gpu03 x';reboot;'", ["10.0.0.3"], None),
    ],
)
def test_the_command_that_mends_the_own_name_keeps_localhost(
    line: str, addresses: list[str], after: str | None, tmp_path: Path
) -> None:
    builder = Builder()
    builder.probes["gpu03"]["names"] |= {
        "own": {"addresses": [line.split()[0]], "quoted": line, "line": 2}, "addresses": addresses
    }  # fmt: skip
    found = next(item for item in judge(builder.bundle()).findings if item.id == "net.hostname-resolution.loopback")
    command = found.fixes[0].command
    assert bool(command) == (after is not None)
    if command:
        (tmp_path / "hosts").write_text(f"::1 localhost\n{line}\n10.0.0.1 gpu01\n")
        subprocess.run(
            ["sh", "-c", command.removeprefix("sudo ").replace("/etc/hosts", str(tmp_path / "hosts"))], check=True
        )
        assert (tmp_path / "hosts").read_text() == f"::1 localhost\n{after}\n10.0.0.1 gpu01\n"


def test_own_name_of_another_host_is_wrong_and_the_fix_keeps_the_entry() -> None:
    builder = Builder()
    names = builder.probes["gpu03"]["names"]
    mine = next(address for address in names["addresses"] if "." in address and not address.startswith("127."))
    names["own"] = {"addresses": ["10.0.0.77"], "quoted": "10.0.0.77 gpu03", "line": 4}
    found = only(judge(builder.bundle()))
    assert found.id == "net.hostname-resolution.wrong-address" and found.hosts == ("gpu03",)
    assert found.fixes[0].command == f"sudo sed -i '4s/10.0.0.77/{mine}/' /etc/hosts"


@pytest.mark.parametrize("own", [["127.0.1.1"], [], ["10.9.9.9"]])
@pytest.mark.parametrize("where", ["interfaces", "environment", "plan", "nowhere", "x"])
def test_where_gloo_is_told_its_interface_the_own_name_is_a_warning(own: list[str], where: str) -> None:
    builder = Builder()
    told = {"GLOO_SOCKET_IFNAME": "e" if where == "x" else "eth0"}
    builder.probes["gpu03"]["names"]["own"] = {"addresses": own, "error": "" if own else "Name or service not known"}
    if where in ("interfaces", "x"):
        builder.probes["gpu03"]["interfaces"] = {"addresses": [], "devices": [], "environment": told}
    if where == "environment":
        builder.probes["gpu03"]["environment"] = {"variables": told}
    bundle = builder.bundle()
    if where == "plan":
        bundle = msgspec.structs.replace(bundle, plan=msgspec.structs.replace(bundle.plan, env=told))
    found = only(judge(bundle))
    known = where not in ("nowhere", "x")
    assert found.severity is (Severity.WARN if known else Severity.FAIL)
    assert any("GLOO_SOCKET_IFNAME=eth0" in proof.text for proof in found.evidence) == known


def test_where_all_hosts_disagree_nobody_is_singled_out() -> None:
    builder = Builder()
    builder.probes["gpu04"]["names"]["addresses"].append("10.9.0.4")
    for host in ("gpu01", "gpu02"):
        builder.probes[host]["names"]["resolved"]["gpu04"] = {"addresses": ["10.9.0.4"]}
    found = only(judge(builder.bundle()))
    assert (found.id, found.hosts) == ("net.hostname-resolution.disagree", ("gpu03",))
    del builder.probes["gpu02"]["names"]["resolved"]["gpu04"]
    builder.probes["gpu02"]["names"]["resolved"]["gpu04"] = {"addresses": ["10.9.0.5"]}
    builder.probes["gpu04"]["names"]["addresses"].append("10.9.0.5")
    assert only(judge(builder.bundle())).hosts == ("gpu01", "gpu02", "gpu03")


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "gpu01"])
def test_a_host_that_bears_a_name_of_others_is_renamed_not_its_hosts_file_edited(name: str) -> None:
    builder = Builder()
    address = "::1" if name == "localhost" else "10.0.0.1"
    own = {"addresses": [address], "quoted": f"{address} {name}", "line": 1}
    builder.probes["gpu03"]["names"].update(host_name=name, own=own)
    found = only(judge(builder.bundle()))
    assert found.hosts == ("gpu03",) and found.title.startswith(f"gpu03 calls itself {name}")
    assert [fix.command for fix in found.fixes] == ["sudo hostnamectl set-hostname gpu03"]


def test_between_two_alone_the_route_is_looked_at_as_well() -> None:
    builder = Builder().unanswered(("gpu04", "gpu02"), ("gpu02", "gpu04"))
    found = only(judge(builder.bundle()))
    assert found.hosts == ("gpu02", "gpu04") and found.fixes[1].command.startswith("ip route get 10.")


def test_stale_address_blames_the_host_that_believes_it_and_folds_what_follows() -> None:
    builder = Builder()
    builder.probes["gpu02"]["names"]["resolved"]["gpu01"] = {
        "addresses": ["10.0.0.99"],
        "quoted": "10.0.0.99 gpu01",
        "line": 7,
    }
    for link in builder.links("gpu02", "gpu01"):
        if link["purpose"] == "master":
            link.update(address="10.0.0.99", outcome="timed-out", detail="timed out")
    report = judge(builder.bundle())
    found = only(report)
    assert found.id == "net.hostname-resolution.wrong-address" and found.hosts == ("gpu02",)
    assert [item.folded_under for item in report.findings if item.id == "net.master-unreachable"] == [found.id]


def test_an_address_behind_nat_that_leads_to_the_peer_is_no_fault() -> None:
    builder = Builder()
    for host in NAMES:
        builder.probes[host]["names"]["resolved"]["gpu01"] = {"addresses": ["203.0.113.7"]}
        for link in builder.links(host, "gpu01"):
            link["address"] = "203.0.113.7"
    assert judge(builder.bundle()).verdict == "healthy"


@pytest.mark.parametrize("hosts", [("gpu01", "gpu02"), NAMES])
def test_names_that_only_their_own_host_knows_are_aliases(hosts: tuple[str, ...]) -> None:
    """Pods, and hosts behind an ssh config: each has its own name in its own /etc/hosts."""
    builder = Builder(hosts)
    unknown = {"addresses": [], "error": "Name or service not known"}
    for host in hosts:
        builder.probes[host]["names"]["resolved"].update({name: unknown for name in hosts if name != host})
    found = judge(builder.bundle()).findings
    assert {item.severity for item in found} == {Severity.WARN} and len(found) == len(hosts)
    assert all(item.title.startswith("no other host can resolve") for item in found)
    builder.probes["gpu02"]["names"]["resolved"]["gpu01"] = {"addresses": [address("gpu01")]}
    severities = {item.severity for item in judge(builder.bundle()).findings}
    assert severities == {Severity.FAIL}  # the resolvers differ


def test_unresolved_on_one_host_fails_and_on_all_warns() -> None:
    builder = Builder()
    builder.probes["gpu04"]["names"]["resolved"]["gpu02"] = {"error": "[Errno -2] Name or service not known"}
    found = only(judge(builder.bundle()))
    assert found.id == "net.hostname-resolution.unresolved" and found.hosts == ("gpu04",)
    for host in NAMES:
        builder.probes[host]["names"]["resolved"]["gpu02"] = {"error": "[Errno -2] Name or service not known"}
    report = judge(builder.bundle())
    assert report.verdict == "healthy" and only(report).severity.value == "warn"
    assert report.exit_code(strict=True) is ExitCode.WARNINGS


def test_black_hole_names_the_host_all_bad_paths_share() -> None:
    builder = Builder()
    for host, path in builder.each("path-mtu"):
        if "gpu02" in (host, path["peer"]):
            path.update(outcome="black-hole", largest_passed=1400, smallest_lost=1401)
    found = only(judge(builder.bundle()))
    assert found.id == "net.mtu.black-hole" and found.hosts == ("gpu02",) and "1400 B" in found.title
    assert found.fixes[0].command == "sudo ip link set dev INTERFACE mtu 1400"
    for link in builder.probes["gpu02"]["links"]["links"]:
        link["source"] = "10.0.0.2"
    names = {"lo": "127.0.0.1", "bond0": "10.0.0.2"}
    addresses = [{"name": name, "family": "inet", "address": names[name], "prefix": 24} for name in names]
    builder.probes["gpu02"]["interfaces"] = {"addresses": addresses}
    (fix,) = only(judge(builder.bundle())).fixes
    assert (fix.host, fix.command) == ("gpu02", "sudo ip link set dev bond0 mtu 1400")


def test_a_host_of_smaller_packets_does_not_speak_for_one_that_loses_larger_ones() -> None:
    builder = Builder()
    for host, path in builder.each("path-mtu"):
        small = "gpu02" in (host, path["peer"])
        path.update(interface_mtu=1400 if host == "gpu02" else 1500, largest_passed=1400 if small else 1500)
        if path["peer"] == "gpu04" and host != "gpu02":
            path.update(outcome="black-hole", largest_passed=1400, smallest_lost=1401)
    report = judge(builder.bundle())
    assert [(item.id, item.hosts) for item in report.causes] == [
        ("net.mtu.black-hole", ("gpu04",)), ("net.mtu.mismatch", ("gpu02",)),
    ]  # fmt: skip


def test_no_udp_is_unknown() -> None:
    builder = Builder()
    for path in builder.probes["gpu02"]["path-mtu"]["paths"]:
        path.update(outcome="blocked", largest_passed=0, interface_mtu=0)
    report = judge(builder.bundle())
    assert report.verdict == "incomplete" and report.unknown[0].hosts == ("gpu02",)


def test_mtu_mismatch_names_the_odd_one() -> None:
    builder = Builder()
    for host in NAMES:
        mtu = 1500 if host == "gpu04" else 9000
        for path in builder.probes[host]["path-mtu"]["paths"]:
            passes = min(mtu, 1500 if path["peer"] == "gpu04" else 9000)
            path.update(interface_mtu=mtu, largest_passed=passes)
            if passes < mtu:
                path.update(outcome="black-hole", smallest_lost=passes + 1)
    found = only(judge(builder.bundle()))
    assert found.id == "net.mtu.mismatch" and found.hosts == ("gpu04",)


def test_paths_over_another_interface_are_no_mismatch() -> None:
    """gpu04's data network of 9000 B is down: it and its peers talk over the management network of 1500 B."""
    builder = Builder()
    for host, path in builder.each("path-mtu"):
        mtu = 1500 if "gpu04" in (host, path["peer"]) else 9000
        path.update(interface_mtu=mtu, largest_passed=mtu)
    assert not judge(builder.bundle()).findings


def test_ways_out_and_back_over_different_interfaces_are_no_mismatch() -> None:
    """gpu02's data network lets nothing in: its peers come to it over the management network, and it goes out over data."""
    builder = Builder()
    for host in NAMES:
        for path in builder.probes[host]["path-mtu"]["paths"]:
            mtu, net = (1500, "0") if path["peer"] == "gpu02" else (9000, "9")
            path.update(interface_mtu=mtu, largest_passed=mtu, address=f"10.{net}.0.{path['peer'][-1]}")
        data = [link for link in builder.probes[host]["links"]["links"] if link["purpose"] == "ephemeral"]
        for net in "09":
            ends = [(f"10.{net}.0.{link['peer'][-1]}", f"10.{net}.0.{host[-1]}", link) for link in data]
            builder.probes[host]["links"]["links"] += [
                {**link, "address": to, "source": own, "purpose": "chosen-interface"} for to, own, link in ends
            ]
    assert "net.mtu.mismatch" not in [item.id for item in judge(builder.bundle()).findings]


def test_what_is_lowered_is_the_interface_that_the_packets_go_through() -> None:
    """Of two interfaces with connections the one whose paths lose large packets, to the size that passes on all."""
    builder = Builder()
    for host in NAMES:
        for path in builder.probes[host]["path-mtu"]["paths"]:
            path["address"] = f"10.9.0.{path['peer'][-1]}"
            lowest = 1400 if "gpu04" in (host, path["peer"]) else 1450
            if "gpu02" in (host, path["peer"]):
                path.update(outcome="black-hole", largest_passed=lowest, smallest_lost=lowest + 1)
        data = [link for link in builder.probes[host]["links"]["links"] if link["purpose"] == "ephemeral"]
        data = [{**link, "address": f"10.9.0.{link['peer'][-1]}", "source": f"10.9.0.{host[-1]}"} for link in data]
        builder.probes[host]["links"]["links"] += [{**link, "purpose": "chosen-interface"} for link in data]
        own = {"name": "ens5", "address": f"10.9.0.{host[-1]}", "family": "inet", "prefix": 24}
        other = {"name": "eth0", "address": address(host), "family": "inet", "prefix": 24}
        builder.probes[host]["interfaces"] = {"addresses": [other, own], "devices": []}
    found = next(item for item in judge(builder.bundle()).findings if item.id == "net.mtu.black-hole")
    assert found.hosts == ("gpu02",)
    assert found.fixes[0].command == "sudo ip link set dev ens5 mtu 1400"


def test_loss_into_one_host() -> None:
    builder = Builder()
    for host in NAMES:
        for link in [link for peer in NAMES for link in builder.links(host, peer) if link["messages"]]:
            if link["peer"] == "gpu03":
                link["lost_forward"] = 5
            if host == "gpu03":
                link["lost_back"] = 6
    found = only(judge(builder.bundle()))
    assert found.id == "net.packet-loss" and found.hosts == ("gpu03",) and "to gpu03" in found.title


def test_a_port_range_that_a_filter_closes_is_the_hosts_whose_filter_it_is() -> None:
    """Without "established" in its rules it also throws away the answers to what the host opens from such a port."""
    builder = Builder()
    for host, link in builder.each("links"):
        if link["peer"] == "gpu02" and link["port"] == 40002:
            link.update(outcome="unreachable", detail="No route to host")
        if host == "gpu02" and link["port"] in (40002, 29500):
            link.update(outcome="timed-out", detail="no answer")
    found = only(judge(builder.bundle()))
    assert (found.id, found.hosts) == ("net.firewall.unreachable", ("gpu02",))
    assert "to and from gpu02" in found.title and "(40002)" in found.title


def test_a_port_range_that_is_closed_between_two_hosts_alone_is_told_of_their_connection() -> None:
    builder = Builder()
    for link in builder.links("gpu01", "gpu03")[:1]:
        link.update(outcome="timed-out", detail="no answer")
    found = only(judge(builder.bundle()))
    assert (found.id, found.hosts) == ("net.firewall.dropped", ("gpu03",))
    assert "from gpu01 to gpu03" in found.title and "1 of 2 ports" in found.title


def test_further_ports_that_answered_count_as_tried() -> None:
    builder = Builder()
    for host in ("gpu01", "gpu03", "gpu04"):
        closed = {
            **builder.links(host, "gpu02")[0],
            "port": 50000,
            "outcome": "timed-out",
            "messages": 0,
            "answered": 0,
        }
        builder.probes[host]["links"]["links"].append(closed)
        builder.probes[host]["links"]["swept"] = {"gpu02": 12}
    found = only(judge(builder.bundle()))
    assert (found.id, found.hosts) == ("net.firewall.dropped", ("gpu02",))
    assert "on 1 of 15 ports tried (50000)" in found.title


def test_a_count_of_lost_packets_that_the_peer_did_not_tell_is_no_zero() -> None:
    """Each host lost 2 of 100 messages to gpu02, which told none of its own counts: as zeros they would halve the share."""
    builder = Builder()
    for host in NAMES:
        for link in builder.links(host, "gpu02") if host != "gpu02" else ():
            link.update(lost_forward=2 if link["messages"] else 0)
        for link in builder.links("gpu02", host):
            link.update(lost_back=None)
    assert "2.0 % of packets to gpu02" in only(judge(builder.bundle())).title


@pytest.mark.parametrize(("lost", "found"), [(0, ["net.connect-delayed"]), (1, [])])
def test_a_limit_on_new_connections_is_told_from_lost_packets(lost: int, found: list[str]) -> None:
    builder = Builder()
    for host in NAMES:
        for link in builder.links(host, "gpu02") if host != "gpu02" else ():
            link.update(attempts=2, connect_ms=501.0, lost_forward=lost if link["messages"] else 0)
    causes = judge(builder.bundle()).causes
    assert [item.id for item in causes] == found and all(item.hosts == ("gpu02",) for item in causes)


def test_a_connect_too_many_is_no_closed_port_and_not_passed_either() -> None:
    builder = Builder()
    for host in NAMES:
        for number, link in enumerate(builder.links(host, "gpu02") if host != "gpu02" else ()):
            unanswered = host == "gpu01" and number == 0
            link.update(
                **({"outcome": "timed-out", "messages": 0} if unanswered else {"attempts": 2, "connect_ms": 501.0})
            )
    report = judge(builder.bundle())
    assert [item.id for item in report.causes] == ["net.connect-delayed"]
    assert ("connects from gpu01", ("gpu02",)) in [(gap.what, gap.hosts) for gap in report.unknown]


def test_one_late_answer_is_no_limit() -> None:
    builder = Builder()
    for link in builder.links("gpu01", "gpu02"):
        link.update(attempts=2, connect_ms=501.0)
    assert not judge(builder.bundle()).findings


@pytest.mark.parametrize("seed", range(20))
def test_a_few_lost_packets_point_to_the_host_beside_another_fault_of_it(seed: int) -> None:
    """3 % at gpu02, to which nobody can connect, so that each pair exchanged 100 packets: on many, less than 3 are lost."""
    chance, builder = random.Random(seed), Builder()
    for host, link in builder.each("links"):
        if link["peer"] == "gpu02":
            link.update(outcome="timed-out", messages=0, answered=0, rtt_p50_ms=None)
        elif host == "gpu02" and link["messages"]:
            for way in ("lost_forward", "lost_back"):
                link[way] = sum(chance.random() < 0.03 for _ in range(100))
    found = [item for item in judge(builder.bundle()).findings if item.id == "net.packet-loss"]
    assert [item.hosts for item in found] == [("gpu02",)]


GONE = [
    Reach(ReachOutcome.TIMED_OUT, "no answer", address="10.0.0.2"),
    Reach(ReachOutcome.NO_ROUTE, "no route", address="10.0.0.2"),
    Reach(ReachOutcome.CUT_OFF, "connection lost", address="10.0.0.2"),
]


SIXTEEN = tuple(f"gpu{number:02}" for number in range(1, 17))
DRAWN = mesh_pairs.pairs(SIXTEEN, "sparse")
PEERS_OF_9 = tuple(peer for name, peer in DRAWN if name == "gpu09")


@pytest.mark.parametrize("gone", GONE)
def test_what_peers_saw_of_a_host_that_goes_away_is_held_against_nobody(gone: Reach) -> None:
    """gpu01 lost the last packets that it sent there, gpu03 had not connected to all ports yet, gpu04 was to transfer."""
    builder = Builder().unanswered(("gpu03", "gpu02"))
    for link in builder.links("gpu01", "gpu02"):
        link["lost_forward"] = 5
    for flow in builder.probes["gpu04"]["throughput"]["flows"]:
        if flow["peer"] == "gpu02":
            flow.update(outcome="timed-out", detail="no answer", bytes=0, seconds=0.0)
    before = judge(builder.bundle())
    assert {item.id for item in before.causes} == {"net.packet-loss", "net.firewall.dropped"}
    assert [gap.hosts for gap in before.unknown] == [("gpu04",)]
    builder.reach["gpu02"] = gone
    report = judge(builder.bundle())
    assert only(report).hosts == ("gpu02",) and only(report).id.startswith("host.")
    states = state_of(report)
    assert states == {"gpu01": gate.HEALTHY, "gpu02": gate.BAD, "gpu03": gate.HEALTHY, "gpu04": gate.HEALTHY}


def test_names_that_others_share_with_a_host_are_known_when_it_is_lost() -> None:
    """gpu01 gave its whole table, the others what they resolve otherwise: none of them was good without it."""
    builder = Builder()
    for name in NAMES[1:]:
        builder.probes[name]["names"].update(resolved={}, reference="gpu01")
    builder.probes["gpu03"]["names"]["resolved"] = {"gpu04": {"addresses": ["10.0.0.99"]}}
    first, *others = builder.bundle().hosts
    hosts = (msgspec.structs.replace(first, reach=Reach(ReachOutcome.TIMED_OUT, "no answer")), *others)
    report = judge(msgspec.structs.replace(builder.bundle(), hosts=hosts))
    found = {item.id: item.hosts for item in report.causes}
    assert found == {"host.ssh-timeout": ("gpu01",), "net.hostname-resolution.wrong-address": ("gpu03",)}
    assert {host for gap in report.unknown for host in gap.hosts} == {"gpu01"}
    states = state_of(report)
    assert (states["gpu02"], states["gpu04"]) == (gate.HEALTHY, gate.HEALTHY)
    nothing = msgspec.structs.replace(hosts[0], probes={})
    untold = judge(msgspec.structs.replace(builder.bundle(), hosts=(nothing, *others)))
    assert {host for gap in untold.unknown for host in gap.hosts} == {*NAMES}


@pytest.mark.parametrize(("lost", "unmeasured"), [(("gpu02",), ()), (("gpu02", *PEERS_OF_9), ("gpu09",))])
def test_of_a_large_fleet_the_pairs_were_drawn_while_the_lost_host_was_there(
    lost: tuple[str, ...], unmeasured: tuple[str, ...]
) -> None:
    """Drawn anew without it they were others, which nobody had measured: no host was good. One without any was not."""
    builder = Builder(SIXTEEN)
    for probe, told in (("links", "links"), ("path-mtu", "paths"), ("throughput", "flows")):
        for name in SIXTEEN:
            data = builder.probes[name][probe]
            data[told] = [one for one in data[told] if (name, one["peer"]) in DRAWN or one.get("purpose") == "master"]
    whole = builder.bundle()
    hosts = (msgspec.structs.replace(host, reach=GONE[0]) if host.name in lost else host for host in whole.hosts)
    report = judge(msgspec.structs.replace(whole, hosts=tuple(hosts)))
    assert {host for item in report.causes for host in item.hosts} == {*lost}
    assert {host for gap in report.unknown for host in gap.hosts} == {*lost, *unmeasured}
    good = {item.host for item in gate.decide_hosts(report) if item.state == gate.HEALTHY}
    assert good == {*SIXTEEN} - {*lost, *unmeasured}


CUT_OFF = [("gpu01", "gpu03"), ("gpu01", "gpu04"), ("gpu03", "gpu01"), ("gpu04", "gpu01")]
LIVING = [*CUT_OFF, ("gpu03", "gpu04"), ("gpu04", "gpu03")]


@pytest.mark.parametrize(
    ("pairs", "blamed", "state"),
    [
        ([("gpu04", "gpu03")], ("gpu03", "gpu04"), gate.SUSPECT),
        (CUT_OFF, ("gpu01",), gate.BAD),
        (LIVING, ("gpu01", "gpu03", "gpu04"), gate.SUSPECT),
    ],
)
def test_a_host_that_goes_away_takes_no_fault_of_the_others_along(
    pairs: list[tuple[str, str]], blamed: tuple[str, ...], state: str
) -> None:
    """With what they saw of it among the links, the others' fault was its consequence, and some of them called healthy."""
    builder = Builder().unanswered(*pairs, *((name, "gpu02") for name in NAMES if name != "gpu02"))
    builder.reach["gpu02"] = GONE[0]
    report = judge(builder.bundle())
    assert {item.id: item.hosts for item in report.causes} == {
        "host.ssh-timeout": ("gpu02",),
        "net.firewall.dropped": blamed,
    }
    states = state_of(report)
    assert states == {**dict.fromkeys(NAMES, gate.HEALTHY), **dict.fromkeys(blamed, state), "gpu02": gate.BAD}


def test_one_lost_packet_is_no_finding() -> None:
    builder = Builder()
    builder.links("gpu01", "gpu02")[0]["lost_forward"] = 1
    assert judge(builder.bundle()).verdict == "healthy"


def test_a_detour_is_told_from_a_busy_host() -> None:
    def far(fastest: float) -> Report:
        builder = Builder()
        for host, link in builder.each("links"):
            if "gpu03" in (host, link["peer"]) and link.get("rtt_p50_ms") is not None:
                link.update(rtt_min_ms=fastest, rtt_p50_ms=50.0)
        return judge(builder.bundle())

    assert only(far(40.0)).id == "net.latency" and only(far(40.0)).hosts == ("gpu03",)
    assert not far(0.1).findings


def test_one_slow_host_of_three_is_found() -> None:
    builder = Builder(NAMES[:3])
    for host, flow in builder.each("throughput"):
        if "gpu02" in (host, flow["peer"]):
            flow["seconds"] = 80.0
    found = only(judge(builder.bundle()))
    assert found.id == "net.slow.link" and found.hosts == ("gpu02",)


@pytest.mark.parametrize(("gbit", "slow"), [(7.5, False), (2.4, True)])
def test_beyond_ten_gigabits_one_stream_measures_cpus_and_no_link(gbit: float, slow: bool) -> None:
    """Two busy sound hosts came out at 7.5 Gb/s where others had reached 16 to 33 (and 4.6 of 22)."""
    builder = Builder()
    for name, flow in builder.each("throughput"):
        rate = gbit if (name, flow["peer"]) == ("gpu01", "gpu02") else 33.0
        flow.update(bytes=int(rate * 1e9 / 8), seconds=1.0)
    found = judge(builder.bundle()).causes
    assert [(item.id, item.hosts) for item in found] == [("net.slow.link", ("gpu01", "gpu02"))] * slow


def stopped(builder: Builder, source: str, peer: str) -> None:
    for flow in builder.probes[source]["throughput"]["flows"]:
        if flow["peer"] == peer:
            flow.update(outcome="timed-out", detail="the transfer stopped in the middle", bytes=0, seconds=0.0)


def test_transfers_that_none_got_through_one_host_are_a_gap_of_that_host() -> None:
    """Behind a hole in the path: who sends to it measured all that a job without it needs."""
    builder = Builder()
    for peer in ("gpu01", "gpu03", "gpu04"):
        stopped(builder, "gpu02", peer)
        stopped(builder, peer, "gpu02")
    report = judge(builder.bundle())
    assert {(gap.what, gap.hosts) for gap in report.unknown} == {
        ("throughput to gpu[01,03-04]", ("gpu02",)),
        ("throughput from gpu[01,03-04]", ("gpu02",)),
    }
    states = state_of(report)
    assert states == {"gpu01": gate.HEALTHY, "gpu02": gate.UNKNOWN, "gpu03": gate.HEALTHY, "gpu04": gate.HEALTHY}


@pytest.mark.parametrize("names", [NAMES, NAMES[:2]])
def test_a_transfer_of_which_no_end_is_known_is_a_gap_of_the_sender(names: tuple[str, ...]) -> None:
    builder = Builder(names)
    stopped(builder, "gpu01", "gpu02")
    assert [(gap.what, gap.hosts) for gap in judge(builder.bundle()).unknown] == [("throughput to gpu02", ("gpu01",))]


def test_a_transfer_without_its_numbers_is_a_gap_of_the_host_that_told_it() -> None:
    builder = Builder()
    for peer in ("gpu01", "gpu03", "gpu04"):
        for flow in builder.probes[peer]["throughput"]["flows"]:
            if flow["peer"] == "gpu02":
                flow["bytes"] = 0
    why = "how many bytes in which time is not told"
    gaps = {(gap.what, gap.hosts, gap.why) for gap in judge(builder.bundle()).unknown}
    assert gaps == {("throughput to gpu02", ("gpu01", "gpu03", "gpu04"), why)}


def test_slow_sender() -> None:
    builder = Builder()
    for flow in builder.probes["gpu04"]["throughput"]["flows"]:
        flow["seconds"] = 80.0
    found = only(judge(builder.bundle()))
    assert found.id == "net.slow.link" and found.hosts == ("gpu04",) and "from gpu04 runs at 100 Mbit/s" in found.title


def test_two_names_of_one_machine_are_named_and_what_follows_is_folded() -> None:
    builder = Builder()
    for host in ("gpu02", "gpu03"):
        builder.reach[host] = Reach(ReachOutcome.OK, address="10.0.0.2", port=22)
        builder.probes[host]["names"]["host_name"] = "gpu02"
    found = [item for item in judge(builder.bundle()).findings if item.id == "host.named-twice"]
    assert [item.hosts for item in found] == [("gpu02", "gpu03")]
    builder.reach["gpu03"] = Reach(ReachOutcome.OK, address="10.0.0.2", port=2222)  # a container behind that address
    assert not any(item.id == "host.named-twice" for item in judge(builder.bundle()).findings)
    builder.reach["gpu03"] = Reach(ReachOutcome.OK, address="10.0.0.2", port=22)
    builder.probes["gpu03"]["names"]["host_name"] = "gpu03"  # a gate that spreads logins over machines
    assert not any(item.id == "host.named-twice" for item in judge(builder.bundle()).findings)


def test_a_machine_that_is_named_by_two_of_its_addresses_is_one() -> None:
    """It was told to take "the other host's" address from its interface."""
    builder = Builder()
    for host, at in (("gpu02", "10.0.0.2"), ("gpu03", "192.168.0.2")):
        builder.reach[host] = Reach(ReachOutcome.OK, address=at, port=22)
        builder.probes[host]["names"].update(host_name="gpu02", addresses=["10.0.0.2", "192.168.0.2"])
    (found,) = (item for item in judge(builder.bundle()).findings if item.id == "host.named-twice")
    assert found.hosts == ("gpu02", "gpu03") and "net.wrong-interface.duplicate-address" in found.explains
    assert found.evidence[1].text == "192.168.0.2 port 22 calls itself gpu02, and has 10.0.0.2 as well"
    builder.reach["gpu03"] = Reach(ReachOutcome.OK, address="10.9.0.3", port=22)  # equal containers on two machines
    assert not any(item.id == "host.named-twice" for item in judge(builder.bundle()).findings)


@pytest.mark.parametrize(
    ("offset", "uncertainty", "wrong", "known"),
    [(0.9, 0.01, False, True), (1.5, 0.4, True, True), (1.5, 1.0, False, False), (0.0, 1.1, False, False)],
)
def test_a_clock_that_answered_late_neither_is_wrong_nor_passes(
    offset: float, uncertainty: float, wrong: bool, known: bool
) -> None:
    builder = Builder(stages=("connectivity",))
    builder.probes["gpu02"]["clock"] = {"offset": offset, "uncertainty": uncertainty}
    report = judge(builder.bundle())
    assert [item.hosts for item in report.findings] == [("gpu02",)] * wrong
    assert [(gap.what, gap.hosts) for gap in report.unknown] == [("clock", ("gpu02",))] * (not known)


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ((0, 0, 0, 60), "4"),
        ((60, 60, 60, 60), ""),  # it is this machine's clock
        ((60, 60, 60, 0), "4"),
        ((60, 60, 0, 0), "12"),
        ((60, 60, 0), "3"),
        ((-60, -60, 0), "3"),
        ((-60, 0, 0, 0), "1"),
        ((60, 0), "1"),
        ((60, 60), ""),
        ((60,), "1"),
        ((-60,), "1"),
        ((0.9,), ""),
        ((60, -60), "12"),  # three clocks, three times
        ((60, 0, -60), "13"),
    ],
)
def test_a_clock_is_wrong_where_most_agree_on_another_time(offsets: tuple[float, ...], wrong: str) -> None:
    builder = Builder(tuple(f"gpu0{number}" for number in range(1, len(offsets) + 1)), ("connectivity",))
    for host, offset in zip(sorted(builder.probes), offsets, strict=True):
        builder.probes[host]["clock"]["offset"] = offset
    found = judge(builder.bundle()).findings
    assert [item.hosts for item in found] == [(f"gpu0{number}",) for number in wrong]
    for item, number in zip(found, wrong, strict=True):
        offset = offsets[int(number) - 1]
        behind = offset < 0 or (offset == 0 and max(offsets) > 0)
        assert item.id == "host.clock-offset" and f"60.0 s {'behind' if behind else 'ahead'}" in item.title
        assert "behind of" not in item.title
    undecided = len(offsets) == 1 or (-60 in offsets and 60 in offsets)
    assert all((item.confidence < 0.6) == undecided == ("nothing says" in item.title) for item in found)
    assert all(("most others agree" in item.evidence[0].text) != undecided for item in found)
