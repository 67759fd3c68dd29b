"""The smallest set: nothing on a healthy cluster, one line with its fact where a fact calls for it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

import jsonschema
import msgspec
import pytest
import yaml

from nccl_doctor.env.extract import conf, shell
from nccl_doctor.env.gid import GidEntry
from nccl_doctor.env.interface_advice import Attempt
from nccl_doctor.env.recommend import recommend
from nccl_doctor.env.recommend_model import Advice, FabricPort, HostNeeds, Note, Purpose
from nccl_doctor.facts.interfaces import Address, ConfFile, ConfLine, Device, Interfaces
from nccl_doctor.report.env import advice as report

V4V2 = GidEntry(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", 2)
TABLE = (
    GidEntry(0, "fe80:0000:0000:0000:0000:0000:0000:0001", 1),
    GidEntry(1, "fe80:0000:0000:0000:0000:0000:0000:0001", 2),
    GidEntry(2, "0000:0000:0000:0000:0000:ffff:0a00:0001", 1),
    V4V2,
)


def interfaces(number: int, *extra: Address, before: bool = True) -> Interfaces:
    lo = Address("lo", "inet", "127.0.0.1", 8, loopback=True)
    eth0 = Address("eth0", "inet", f"10.0.0.{number}", 24)
    order = (lo, *extra, eth0) if before else (lo, eth0, *extra)
    return Interfaces(order, hostname=f"n{number}")


def host(number: int, **fields: object) -> HostNeeds:
    base: dict[str, object] = {
        "host": f"n{number}",
        "interfaces": interfaces(number),
        "own_addresses": (f"10.0.0.{number}",),
        "ports": (),
        "nccl_version": "2.28.9",
        "torch_version": "2.9.0",
    }
    return HostNeeds(**(base | fields))  # type: ignore[arg-type]


def rail(name: str, **fields: object) -> FabricPort:
    base: dict[str, object] = {"port": 1, "active": True, "ethernet": False, "rail": True, "gbps": 400.0}
    return FabricPort(name, **(base | fields))  # type: ignore[arg-type]


def names(advice: Advice) -> dict[str, str]:
    return {line.advice.name: line.advice.value for line in advice.lines}


def left(advice: Advice, name: str) -> str:
    return next(item.why for item in advice.left if name in item.name)


def test_a_healthy_cluster_needs_nothing() -> None:
    advice = recommend([host(1, ports=(rail("mlx5_0"),)), host(2, ports=(rail("mlx5_0"),))])
    assert not advice.lines and not advice.unknown and not advice.notes
    assert report.advice_text(advice).startswith("nothing needs setting on ")
    assert "eth0" in left(advice, "NCCL_SOCKET_IFNAME")
    assert "InfiniBand" in left(advice, "NCCL_IB_GID_INDEX")
    assert "all active RDMA ports are rails" in left(advice, "NCCL_IB_HCA")
    assert "NCCL tunes these itself" in left(advice, "NCCL_ALGO") and "nobody reads" in left(advice, "NCCL_TIMEOUT")


def test_an_interface_that_does_not_reach_its_peers() -> None:
    hosts = [host(n, interfaces=interfaces(n, Address("br-1", "inet", "192.168.9.1", 24))) for n in (1, 2)]
    tried = [Attempt("n1", "n2", "10.0.0.2", True), Attempt("n2", "n1", "10.0.0.1", True)]
    advice = recommend(hosts, tried)
    assert names(advice) == {"NCCL_SOCKET_IFNAME": "=eth0"}
    (line,) = advice.lines
    assert line.confidence > 0.9 and "br-1" in line.fact and line.advice.versions == ">=2.5.6"
    assert "\n  export NCCL_SOCKET_IFNAME='=eth0'\n" in report.advice_text(advice)


def test_without_measurement_it_is_less_sure() -> None:
    hosts = [host(n, interfaces=interfaces(n, Address("br-1", "inet", "192.168.9.1", 24))) for n in (1, 2)]
    (line,) = recommend(hosts).lines
    assert line.confidence < 0.9


def bridged(number: int) -> HostNeeds:
    return host(number, interfaces=interfaces(number, Address("br-1", "inet", "192.168.9.1", 24)))


def tries(*blocked: tuple[int, int]) -> list[Attempt]:
    """All of three hosts try the eth0 of all, themselves too; who is in ``blocked`` does not get through."""
    every = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3)]
    return [Attempt(f"n{a}", f"n{b}", f"10.0.0.{b}", (a, b) not in blocked) for a, b in every]


@pytest.mark.parametrize("blocked", [((1, 3), (2, 3)), ((1, 3),), ((1, 3), (2, 3), (1, 2), (3, 2), (2, 1), (3, 1))])
def test_a_firewall_on_one_host_hides_no_advice(blocked: tuple[tuple[int, int], ...]) -> None:
    """The network is common to all; that some connections were dropped there is said, and is no reason against it."""
    hosts = [bridged(n) for n in (1, 2, 3)]
    advice = recommend(hosts, tries(*blocked))
    assert names(advice) == {"NCCL_SOCKET_IFNAME": "=eth0"} and advice.lines[0].confidence < 0.9
    (unknown,) = advice.unknown
    assert "reach n" in unknown and all(f"n{b}" in unknown for _, b in blocked)
    fine = recommend([host(n) for n in (1, 2, 3)], tries(*blocked))
    assert not fine.lines and fine.unknown == advice.unknown and "not proved" in left(fine, "NCCL_SOCKET_IFNAME")


def test_of_a_host_s_addresses_those_that_more_peers_reach_are_taken() -> None:
    two = [host(n, interfaces=interfaces(n, Address("eth1", "inet", f"10.9.0.{n}", 24))) for n in (1, 2, 3)]
    second = [Attempt(f"n{a}", f"n{b}", f"10.9.0.{b}", b != 3) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]
    assert not recommend(two, [*second, *tries()]).unknown
    assert names(recommend(two, [*second, *tries()])) == {"NCCL_SOCKET_IFNAME": "=eth0"}
    half = recommend(two, [*second, *tries((1, 3))])
    assert names(half) == {"NCCL_SOCKET_IFNAME": "=eth0"} and "n3" in half.unknown[0]


def test_unknown_interfaces_are_said() -> None:
    advice = recommend([host(1), host(2, interfaces=None)])
    assert not advice.lines and any("n2" in item for item in advice.unknown)
    assert report.advice_text(advice).startswith("not known whether anything needs setting on n")
    assert report.advice_text(recommend([host(1), host(2)])).startswith("nothing needs setting on n")


def test_the_front_end_card_is_kept_out() -> None:
    front = rail("mlx5_bond_0", ethernet=True, rail=False, gbps=25.0, default_route=True)
    ports = (rail("mlx5_0"), rail("mlx5_1"), front)
    advice = recommend([host(1, ports=ports), host(2, ports=ports)])
    assert names(advice) == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}
    assert "mlx5_bond_0:1 (RoCE, 25 Gb/s)" in advice.lines[0].fact and "default route" in advice.lines[0].fact


def test_a_device_that_is_a_rail_only_on_some_hosts_is_not_guessed_at() -> None:
    one = (rail("mlx5_0"), rail("mlx5_1", rail=False, gbps=25.0))
    two = (rail("mlx5_1"), rail("mlx5_0", rail=False, gbps=25.0))
    advice = recommend([host(1, ports=one), host(2, ports=two)])
    assert "NCCL_IB_HCA" not in names(advice) and any("NCCL_IB_HCA" in item for item in advice.unknown)


def test_a_host_without_rails_is_named() -> None:
    advice = recommend([host(1, ports=(rail("mlx5_0"),)), host(2, ports=())])
    assert any("n2" in note.text and "TCP" in note.text for note in advice.notes)


@pytest.mark.parametrize(("version", "wanted"), [("2.20.5", "3"), ("2.21.5", None), ("2.28.9", None)])
def test_the_gid_index_only_where_nccl_s_own_choice_is_wrong(version: str, wanted: str | None) -> None:
    ports = (rail("mlx5_0", ethernet=True, gids=TABLE),)
    advice = recommend([host(n, ports=ports, nccl_version=version) for n in (1, 2)])
    assert names(advice).get("NCCL_IB_GID_INDEX") == wanted
    if wanted:
        (line,) = advice.lines
        assert line.advice.risky and "GID 0" in line.fact and line.advice.versions == "<2.21.5"
    else:
        assert "by itself" in left(advice, "NCCL_IB_GID_INDEX")


def test_gid_tables_that_differ_are_not_pinned() -> None:
    other = (*TABLE[:3], GidEntry(5, V4V2.gid, 2))
    hosts = [
        host(1, ports=(rail("mlx5_0", ethernet=True, gids=TABLE),), nccl_version="2.20.5"),
        host(2, ports=(rail("mlx5_0", ethernet=True, gids=other),), nccl_version="2.20.5"),
    ]
    advice = recommend(hosts)
    assert not advice.lines and any("NCCL_IB_GID_INDEX" in item for item in advice.unknown)


def test_ipv6_only_roce() -> None:
    table = (*TABLE[:2], GidEntry(2, "fd00:0000:0000:0000:0000:0000:0000:0001", 1), GidEntry(3, "fd00::1", 2))
    ports = (rail("mlx5_0", ethernet=True, gids=table),)
    advice = recommend([host(n, ports=ports) for n in (1, 2)])
    assert names(advice) == {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}


def test_mixed_families() -> None:
    four = Interfaces((Address("eth0", "inet", "10.0.0.1", 24), Address("eth0", "inet6", "fd00::1", 64)), hostname="n1")
    six = Interfaces((Address("eth0", "inet6", "fd00::2", 64),), hostname="n2")
    tried = [Attempt("n1", "n2", "fd00::2", True), Attempt("n2", "n1", "10.0.0.1", True)]
    second = host(2, interfaces=six, own_addresses=("fd00::2",))
    advice = recommend([host(1, interfaces=four), second], tried)
    assert names(advice) == {"NCCL_SOCKET_FAMILY": "AF_INET6"}
    four = Interfaces((Address("eth0", "inet", "10.0.0.1", 24),), hostname="n1")
    advice = recommend([host(1, interfaces=four), second], tried)
    assert not advice.lines and any("NCCL_SOCKET_FAMILY" in item for item in advice.unknown)


def test_gloo_on_hosts_whose_name_is_loopback() -> None:
    advice = recommend([host(1, own_addresses=("127.0.1.1",)), host(2)])
    (line,) = advice.lines
    assert (line.advice.name, line.advice.value, line.advice.hosts) == ("GLOO_SOCKET_IFNAME", "eth0", ("n1",))
    assert any("/etc/hosts" in note.command for note in advice.notes)


def test_containers_are_told_what_is_no_variable() -> None:
    small = host(1, shm_bytes=64 << 20, memlock_bytes=65536, container=True, ports=(rail("mlx5_0"),))
    advice = recommend([small, host(2, ports=(rail("mlx5_0"),))])
    commands = " ".join(note.command for note in advice.notes)
    assert "--shm-size" in commands and "memlock=-1" in commands and not advice.lines


def test_efa_needs_its_plugin_not_variables() -> None:
    ports = (rail("rdmap0s6", efa=True, ethernet=True),)
    bare = recommend([host(1, ports=ports), host(2, ports=ports)])
    assert any("aws-ofi-nccl" in note.text for note in bare.notes) and not bare.unknown  # of GIDs it needs none
    equipped = recommend([host(n, ports=ports, net_plugins=("libnccl-net.so",)) for n in (1, 2)])
    assert not equipped.notes and any("FI_PROVIDER" in item.name for item in equipped.left)


def test_google_machines_need_their_plugin() -> None:
    facts = Interfaces(
        interfaces(1).addresses, devices=tuple(Device(f"eth{number}", driver="gve") for number in range(5))
    )
    advice = recommend([host(1, interfaces=facts), host(2)])
    assert any("GPUDirect-TCPX" in note.text for note in advice.notes)


@pytest.mark.parametrize(
    ("torch", "has", "has_not"),
    [
        (
            "2.4.0",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"},
            set(),
        ),
        ("2.9.0", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}, {"TORCH_NCCL_DUMP_ON_TIMEOUT"}),
        ("2.13.0", {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DESYNC_DEBUG"}, {"TORCH_FR_BUFFER_SIZE"}),
        ("2.15.0", set(), {"TORCH_NCCL_DESYNC_DEBUG"}),
        ("2.0.1", set(), {"TORCH_NCCL_TRACE_BUFFER_SIZE"}),
    ],
)
def test_the_set_for_a_hung_job_follows_pytorch(torch: str, has: set[str], has_not: set[str]) -> None:
    advice = recommend([host(1, torch_version=torch)], purpose=Purpose.HANG)
    assert has <= set(names(advice)) and not has_not & set(names(advice))
    assert any("init_process_group" in note.command for note in advice.notes)


def test_every_line_carries_its_fact_and_lints_clean() -> None:
    from nccl_doctor.env.lint import lint
    from nccl_doctor.findings.model import Severity

    advice = recommend([host(1, torch_version="2.4.0")], purpose=Purpose.HANG)
    assert all(line.fact and line.advice.reason and 0 < line.confidence <= 1 for line in advice.lines)
    found = lint(shell.read(report.advice_shell(advice)), "2.28.9", "2.4.0")
    assert {item.title for item in found if item.severity is Severity.FAIL} == set()


def test_formats() -> None:
    advice = recommend([host(1, torch_version="2.4.0")], purpose=Purpose.HANG)
    wanted = names(advice)
    shown = {name: render(advice) for name, render in report.ADVICE_FORMATS.items()}
    assert {item.name: item.value for item in shell.read(shown["shell"])} == wanted
    assert {item.name: item.value for item in shell.read(shown["sbatch"])} == wanted
    assert {item.name: item.value for item in shell.read(shown["docker"])} == wanted
    assert {item["name"]: item["value"] for item in yaml.safe_load(shown["k8s"])["env"]} == wanted
    assert {item["name"] for item in json.loads(shown["json"])["set"]} == set(wanted)
    read = {item.name: item.value for item in conf.read(shown["nccl.conf"], "nccl.conf")}
    assert read == {name: value for name, value in wanted.items() if name.startswith("NCCL_")}
    assert "left alone" in shown["text"]


# io.k8s.api.core.v1.EnvVar, as the API server checks it.
K8S_ENV = {
    "type": "object",
    "required": ["env"],
    "additionalProperties": False,
    "properties": {
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"},
                    "value": {"type": "string"},
                },
            },
        }
    },
}


@pytest.mark.parametrize(
    "advice",
    [
        recommend([host(1, torch_version="2.4.0")], purpose=Purpose.HANG),
        recommend([host(n, interfaces=interfaces(n, Address("br-1", "inet", "192.168.9.1", 24))) for n in (1, 2)]),
        recommend([host(1, environment={"NCCL_P2P_DISABLE": "1"})]),
        recommend([host(1)]),
    ],
    ids=["hang", "interface", "removal", "nothing"],
)
def test_formats_are_what_their_readers_take(advice: Advice) -> None:
    """bash runs what it is given and has the variables afterwards; docker's words are pairs; Kubernetes' schema holds."""
    removed = {line.advice.name for line in advice.lines if line.advice.unset}
    wanted = {name: value for name, value in names(advice).items() if name not in removed}
    before = {"PATH": os.environ["PATH"], **dict.fromkeys(removed, "1")}
    for form in ("shell", "sbatch"):
        script = report.ADVICE_FORMATS[form](advice)
        done = subprocess.run(["bash", "-eu", "-c", f"{script}\nenv -0"], env=before, capture_output=True, check=True)
        after = dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)
        assert {name: after.get(name) for name in wanted} == wanted and not removed & set(after)
        assert not report.not_shown(advice, form) or advice.notes or advice.unknown
    words = shlex.split(report.advice_docker(advice).replace("\\\n", " "))
    assert words[:2] == ["docker", "run"] and set(words[2::2]) <= {"-e"}
    assert dict(word.split("=", 1) for word in words[3::2]) == wanted
    listed = yaml.safe_load(report.advice_k8s(advice))
    jsonschema.validate(listed, K8S_ENV)
    assert {item["name"]: item["value"] for item in listed["env"]} == wanted
    for form in ("docker", "k8s", "nccl.conf"):
        said = " ".join(report.not_shown(advice, form))
        assert all(f"take {name} away" in said for name in removed)
    hostile = msgspec.structs.replace(advice, notes=(Note("remove \x1b[31m", "rm \x1b"),), unknown=("\x9b",))
    told = "".join(report.not_shown(hostile, "shell"))
    assert not set("\x1b\x9b") & set(told) and "remove \\e[31m: rm \\e" in told


def test_nothing_to_set_is_valid_in_every_format() -> None:
    advice = recommend([host(1)])
    for name, render in report.ADVICE_FORMATS.items():
        assert isinstance(render(advice), str), name
    assert yaml.safe_load(report.advice_k8s(advice)) == {"env": []}


def with_bridge(number: int, **fields: object) -> HostNeeds:
    """A host with a bridge that leads nowhere, which NCCL by itself leaves alone."""
    return host(
        number, interfaces=interfaces(number, Address("docker0", "inet", "192.168.9.1", 24), before=False), **fields
    )


def test_a_list_that_leads_nowhere_is_taken_away_not_replaced() -> None:
    wrong = {"NCCL_SOCKET_IFNAME": "docker0"}
    advice = recommend([with_bridge(1, environment=wrong), with_bridge(2, environment=wrong), with_bridge(3)])
    (line,) = advice.lines
    assert line.advice.unset and line.advice.name == "NCCL_SOCKET_IFNAME" and line.advice.hosts == ("n1", "n2")
    assert "NCCL_SOCKET_IFNAME=docker0" in line.fact and "unset NCCL_SOCKET_IFNAME" in report.advice_text(advice)


def test_a_list_of_nccl_conf_is_a_line_to_remove() -> None:
    facts = with_bridge(1).interfaces
    assert facts is not None
    file = ConfFile("system", "/etc/nccl.conf", lines=(ConfLine(3, "NCCL_SOCKET_IFNAME=docker0"),))
    advice = recommend([with_bridge(2), host(1, interfaces=msgspec.structs.replace(facts, conf_files=(file,)))])
    assert not advice.lines, "no unset helps against a file"
    assert any("/etc/nccl.conf:3" in note.text and "n1" in note.text for note in advice.notes)


def test_a_list_that_is_needed_and_set_already_is_kept_as_it_is() -> None:
    before = interfaces(1, Address("br-1", "inet", "192.168.9.1", 24))
    hosts = [
        host(n, interfaces=Interfaces((*before.addresses[:2], *interfaces(n).addresses[1:]), hostname=f"n{n}"))
        for n in (1, 2)
    ]
    assert names(recommend(hosts)) == {"NCCL_SOCKET_IFNAME": "=eth0"}
    hosts = [msgspec.structs.replace(item, environment={"NCCL_SOCKET_IFNAME": "eth"}) for item in hosts]
    advice = recommend(hosts)
    assert names(advice) == {"NCCL_SOCKET_IFNAME": "eth"} and "already" in advice.lines[0].advice.reason


def test_with_an_rdma_device_only_the_bootstrap_interface_must_reach_its_peers() -> None:
    rails = tuple(Address(f"rail{number}", "inet", f"10.{number}.0.1", 30) for number in (1, 2))
    hosts = [host(n, interfaces=interfaces(n, *rails, before=False), rdma=True) for n in (1, 2)]
    assert not recommend(hosts).lines


def test_what_is_left_over_on_a_host_is_taken_away() -> None:
    advice = recommend([host(1, environment={"NCCL_P2P_DISABLE": "1"}), host(2, job_environment={"NCCL_ALGO": "Ring"})])
    assert {line.advice.name: line.advice.hosts for line in advice.lines if line.advice.unset} == {
        "NCCL_P2P_DISABLE": ("n1",),
        "NCCL_ALGO": ("n2",),
    }
    assert all(line.advice.name in line.fact for line in advice.lines)
    shown = report.advice_text(advice)
    assert "only on n1" in shown and "export" not in shown
