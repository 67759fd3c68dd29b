"""The model of NCCL's and Gloo's choice of interfaces, against what real libraries did."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.env.nccl_conf import effective, parse_line
from nccl_doctor.env.socket_interface import gloo_interfaces, nccl_bootstrap, nccl_interfaces, parse_filter
from nccl_doctor.env.versions import parse
from nccl_doctor.facts.interfaces import Address, ConfFile, ConfLine

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
NEW, OLD = (2, 30, 7), (2, 21, 5)


def address(text: str) -> Address:
    """``name/address/prefix[/D]``: D is down (not RUNNING)."""
    name, ip, prefix, *flags = text.split("/")
    running = flags != ["D"]
    family = "inet6" if ":" in ip else "inet"
    return Address(name, family, ip, int(prefix), running=running, loopback=name == "lo")


BASE = tuple(
    map(
        address,
        (
            "lo/127.0.0.1/8",
            "docker0/172.17.0.1/16",
            "eth1/10.1.0.2/24",
            "eth0/10.0.0.2/24",
            "eth10/10.10.0.2/24",
            "ib0/10.20.0.2/24",
            "virbr0/192.168.122.1/24",
            "lo/::1/128",
            "eth0/fd00:1::2/64",
        ),
    )
)
WITHOUT_IB = tuple(item for item in BASE if item.name != "ib0")


def outcome(addresses: tuple[Address, ...], settings: dict[str, str], version: tuple[int, int, int]) -> str:
    choice = nccl_bootstrap(addresses, settings, version)
    if choice.address is None:
        return f"failure {choice.result}"
    return f"{choice.address.name}:{choice.address.address}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eth", "eth1:10.1.0.2"),
        ("=eth", "failure 5"),
        ("=eth1", "eth1:10.1.0.2"),
        ("eth0,eth1", "eth1:10.1.0.2"),  # kernel order, not list order
        ("eth0, eth1", "eth0:10.0.0.2"),  # blanks are not trimmed
        ("eth0 ,eth1", "eth1:10.1.0.2"),
        (" eth0", "failure 5"),
        ("ETH0", "failure 5"),
        ("nope", "failure 5"),
        ("^eth", "lo:127.0.0.1"),  # an exclude list replaces the default exclusions
        ("^=eth0", "lo:127.0.0.1"),
        ("^ib,docker,lo", "eth1:10.1.0.2"),
        ("^eth0,^eth1", "lo:127.0.0.1"),
        ("^lo,docker,eth0,^eth1", "eth1:10.1.0.2"),
        ("eth0,=eth1", "eth0:10.0.0.2"),
        ("eth0:1", "eth0:10.0.0.2"),
        ("^=", "failure 5"),
        ("^", "ib0:10.20.0.2"),
        ("=", "ib0:10.20.0.2"),
        ("e", "ib0:10.20.0.2"),
        ("", "ib0:10.20.0.2"),
        ("eth10", "eth10:10.10.0.2"),
    ],
)
def test_ifname(value: str, expected: str) -> None:
    assert outcome(BASE, {"NCCL_SOCKET_IFNAME": value}, NEW) == expected


def test_versions_differ_on_virbr_and_on_interfaces_that_are_down() -> None:
    virtual = tuple(item for item in BASE if item.name in ("lo", "docker0", "virbr0") and item.family == "inet")
    assert outcome(virtual, {}, OLD) == "virbr0:192.168.122.1"
    assert outcome(virtual, {}, NEW) == "docker0:172.17.0.1"
    assert outcome(tuple(item for item in virtual if item.name != "docker0"), {}, NEW) == "lo:127.0.0.1"
    down = (address("eth1/10.1.0.2/24/D"), address("eth0/10.0.0.2/24"))
    assert outcome(down, {}, (2, 27, 7)) == "eth1:10.1.0.2"
    assert outcome(down, {}, (2, 28, 3)) == "eth0:10.0.0.2"
    assert outcome(down, {"NCCL_SOCKET_IFNAME": "eth1"}, NEW) == "failure 5"
    assert outcome(BASE, {"NCCL_SOCKET_IFNAME": "nope"}, OLD) == "failure 3"


def test_without_ib_all_but_the_default_exclusions_are_used_and_one_address_each() -> None:
    choice = nccl_interfaces(WITHOUT_IB, {}, NEW)
    assert [item.name for item in choice.addresses] == ["eth1", "eth0", "eth10"]
    assert [item.name for item in nccl_interfaces(WITHOUT_IB, {}, OLD).addresses][-1] == "virbr0"
    many = tuple(address(f"eth{number}/10.0.{number}.1/24") for number in range(20))
    assert len(nccl_interfaces(many, {}, NEW).addresses) == 16


def test_family_and_comm_id() -> None:
    assert outcome(BASE, {"NCCL_SOCKET_FAMILY": "AF_INET6"}, NEW) == "eth0:fd00:1::2"
    assert outcome(BASE, {"NCCL_SOCKET_FAMILY": "af_inet6"}, NEW) == "ib0:10.20.0.2"
    assert outcome(BASE, {"NCCL_COMM_ID": "10.10.0.99:1", "NCCL_SOCKET_IFNAME": "=eth0"}, NEW) == "eth10:10.10.0.2"
    assert outcome(BASE, {"NCCL_COMM_ID": "[fd00:1::9]:1"}, NEW) == "eth0:fd00:1::2"
    assert outcome(BASE, {"NCCL_COMM_ID": "203.0.113.5:1"}, NEW) == "failure 2"
    assert outcome(BASE, {"NCCL_COMM_ID": "x"}, NEW) == "failure 4"


def test_only_the_first_sixteen_names_of_a_list_count() -> None:
    names = parse_filter(",".join(f"n{number}" for number in range(20)), NEW)
    assert names is not None and len(names.names) == 16


# Recorded with torch 2.13.0 in a network namespace: interfaces, GLOO_SOCKET_IFNAME, what the host's own name resolves
# to, and the addresses it then listened on (or the message it raised).
GLOO_HOST = tuple(
    map(
        address,
        (
            "lo/127.0.0.1/8",
            "eth0/10.9.0.2/24",
            "eth10/10.9.1.2/24",
            "e/10.9.2.2/24",
            "dn/10.9.3.2/24/D",
            "lo/::1/128",
            "eth0/fd09::2/64",
            "six/fd19::2/64",
        ),
    )
)


@pytest.mark.parametrize(
    ("names", "own", "expected"),
    [
        (None, ["10.9.0.2"], "10.9.0.2"),
        ("eth0", ["10.9.0.2"], "10.9.0.2"),
        ("eth1", ["10.9.0.2"], "Unable to find address for: eth1"),
        ("eth", ["10.9.0.2"], "Unable to find address for: eth"),
        ("e", ["10.9.0.2"], "10.9.0.2"),
        ("eth10,eth0", ["10.9.0.2"], "10.9.1.2 10.9.0.2"),
        ("", ["10.9.0.2"], "10.9.0.2"),
        ("six", ["10.9.0.2"], "fd19::2"),
        ("dn", ["10.9.0.2"], "10.9.3.2"),
        ("=eth0", ["10.9.0.2"], "Unable to find address for: =eth0"),
        ("^lo", ["10.9.0.2"], "Unable to find address for: ^lo"),
        ("lo", ["10.9.0.2"], "127.0.0.1"),
        ("eth0,", ["10.9.0.2"], "10.9.0.2"),
        (None, ["127.0.1.1"], "127.0.1.1"),
        (None, [], "127.0.0.1"),
        (None, ["10.99.9.9", "10.9.1.2"], "10.9.1.2"),
        (None, ["10.99.9.9"], "127.0.0.1"),
        (None, ["fd09::2"], "fd09::2"),
        (None, ["fd09::2", "10.9.0.2"], "fd09::2"),
    ],
)
def test_gloo_as_recorded(names: str | None, own: list[str], expected: str) -> None:
    choice = gloo_interfaces(GLOO_HOST, names, own)
    assert choice is not None
    assert (choice.failure or " ".join(item.address for item in choice.addresses)) == expected


def test_gloo_is_not_guessed_when_the_own_name_was_not_resolved() -> None:
    assert gloo_interfaces(GLOO_HOST, None, None) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_SOCKET_IFNAME=eth0\r", ("NCCL_SOCKET_IFNAME", "eth0")),
        ("NCCL_SOCKET_IFNAME=eth0 # x", ("NCCL_SOCKET_IFNAME", "eth0 # x")),
        ('NCCL_SOCKET_IFNAME="eth0"', ("NCCL_SOCKET_IFNAME", '"eth0"')),
        ("NCCL_SOCKET_IFNAME==eth0", ("NCCL_SOCKET_IFNAME", "=eth0")),
        ("NCCL_SOCKET_IFNAME = eth0", None),
        (" NCCL_SOCKET_IFNAME=eth0", None),
        ("export NCCL_SOCKET_IFNAME=eth0", None),
    ],
)
def test_conf_lines(text: str, expected: tuple[str, str] | None) -> None:
    assert parse_line(text, (2, 30, 3)) == expected


def test_a_windows_line_end_is_part_of_the_value_before_2_30_3() -> None:
    assert parse_line("NCCL_SOCKET_IFNAME=eth0\r", (2, 29, 7)) == ("NCCL_SOCKET_IFNAME", "eth0\r")


def test_the_subnet_of_comm_id_needs_no_carrier_and_is_inverted_in_2_29() -> None:
    """As 2.28.9, 2.29.2, 2.29.7 and 2.32.3 did in a namespace with lo, ib0, eth0 and eth1 (the last without a peer)."""
    here = (
        Address("lo", "inet", "127.0.0.1", 8, loopback=True),
        Address("ib0", "inet", "10.20.0.2", 24),
        Address("eth1", "inet", "10.1.0.2", 24, running=False),
    )

    def taken(comm_id: str, version: tuple[int, int, int]) -> str:
        choice = nccl_bootstrap(here, {"NCCL_COMM_ID": comm_id}, version)
        return choice.address.name if choice.address else choice.failure

    assert [taken("10.1.0.9:2999", version) for version in ((2, 28, 9), (2, 32, 3))] == ["eth1", "eth1"]
    assert [taken("10.1.0.9:2999", version) for version in ((2, 29, 2), (2, 29, 7))] == ["lo", "lo"]
    assert taken("127.0.0.1:2999", (2, 29, 7)) == "ib0" and taken("127.0.0.1:2999", (2, 30, 3)) == "lo"
    assert taken("9.9.9.9:2999", (2, 28, 9)) == "NET/Socket : No usable listening interface found"


def test_precedence_of_files_and_environment() -> None:
    def file(role: Any, path: str, value: str) -> ConfFile:
        return ConfFile(role, path, "ok", (ConfLine(2, f"NCCL_SOCKET_IFNAME={value}"),))

    files = (
        file("system", "/etc/nccl.conf", "s"),
        file("home", "/h/.nccl.conf", "h"),
        file("passwd-home", "/p/.nccl.conf", "p"),
    )
    with_named = (*files, file("environment", "/job/nccl.conf", "n"))

    def value(version: tuple[int, int, int], files: tuple[ConfFile, ...], **kinds: dict[str, str]) -> str:
        found = effective(kinds.get("environment", {}), files, version, kinds.get("job"))["NCCL_SOCKET_IFNAME"]
        return f"{found.value} {found.place}"

    assert value((2, 30, 3), files) == "h /h/.nccl.conf:2"
    assert value((2, 29, 7), files) == "p /p/.nccl.conf:2"
    assert value((2, 23, 4), with_named) == "n /job/nccl.conf:2"
    assert value((2, 21, 5), with_named) == "p /p/.nccl.conf:2"
    assert value(NEW, files[:1]) == "s /etc/nccl.conf:2"
    own = {"NCCL_SOCKET_IFNAME": "e"}
    assert value(NEW, with_named, environment=own) == "e environment"
    assert value(NEW, with_named, environment=own, job={"NCCL_SOCKET_IFNAME": "j"}) == "j job environment"
    twice = ConfFile("system", "/etc/nccl.conf", "ok", (*files[0].lines, ConfLine(9, "NCCL_SOCKET_IFNAME=later")))
    assert value(NEW, (twice,)) == "s /etc/nccl.conf:2"


def recorded(name: str) -> Any:
    file = SHARED / "facts" / "vectors" / name
    if not file.exists():
        pytest.skip(f"{name} is not here: recorded behaviour of real NCCL libraries is kept beside the repository")
    return json.loads(file.read_text())


def test_recorded_choices_of_real_libraries() -> None:
    wrong = []
    cases = recorded("socket_if_experiment.json")
    for case in cases:
        addresses = tuple(map(address, (item.removesuffix("/R") for item in case["interfaces"])))
        for version, real in case["result"].items():
            expected = real["using"].removesuffix("<0>") if real["using"] else f"failure {real['ret']}"
            got = outcome(addresses, case["env"], parse(version))
            if got != expected:
                wrong.append((case["label"], case["env"], version, expected, got))
    assert not wrong and len(cases) >= 51


def test_recorded_configuration_files_of_real_libraries() -> None:
    wrong = []
    for case in recorded("conf_file_experiment.json"):
        files = []
        for role, key in (("home", "home_conf"), ("environment", "nccl_conf_file")):
            if case[key] is not None:
                lines = tuple(ConfLine(number, text) for number, text in enumerate(case[key].split("\n"), 1) if text)
                files.append(ConfFile(role, f"/{role}", "ok", lines))  # type: ignore[arg-type]
        for version, real in case["result"].items():
            settings = effective(case["env"], files, parse(version))
            got = outcome(BASE, {name: item.value for name, item in settings.items()}, parse(version))
            expected = real.split("<0>")[0] if "<0>" in real else f"failure {real.rsplit('/', 1)[1]}"
            if got != expected:
                wrong.append((case["case"], version, expected, got))
    assert not wrong
