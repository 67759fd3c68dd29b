"""Our knowledge against real NCCL libraries, without a GPU: how they read nccl.conf, numbers, words and interfaces.

Opt-in: NCCL_DOCTOR_LIBNCCL names libraries or folders of them (see tests/tools/ask_nccl.py).
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nccl_doctor.agent.probes import interfaces as probe
from nccl_doctor.env import knowledge, lint, number, recommend, versions
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.extract import conf
from nccl_doctor.env.extract import log as log_reader
from nccl_doctor.env.nccl_conf import CONF_FILE_VARIABLE_SINCE, effective, parse_line
from nccl_doctor.env.recommend_model import HostNeeds, Line, Purpose
from nccl_doctor.env.socket_interface import nccl_bootstrap
from nccl_doctor.facts.interfaces import Address, ConfFile, ConfLine
from nccl_doctor.findings.model import EnvAdvice
from nccl_doctor.report.env.advice import advice_conf

_SPEC = importlib.util.spec_from_file_location("ask_nccl", Path(__file__).parents[2] / "tools" / "ask_nccl.py")
assert _SPEC and _SPEC.loader
asker: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(asker)

LIBRARIES = {versions.show(asker.version_of(library)): library for library in asker.libraries()}

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="no libnccl here: NCCL_DOCTOR_LIBNCCL names libraries")

release = pytest.mark.parametrize("release", list(LIBRARIES) or ["none"])


def told(answer: Any, name: str) -> str | None:
    """The value the library says a variable was set to, verbatim."""
    found = re.search(rf"NCCL INFO {name} set by environment to ([^\n]*)", answer.log)
    return found[1] if found else None


@release
@pytest.mark.parametrize(
    "line",
    [
        b"NCCL_SOCKET_IFNAME=lo",
        b"NCCL_SOCKET_IFNAME==lo",
        b"NCCL_SOCKET_IFNAME=lo # comment",
        b"NCCL_SOCKET_IFNAME=lo ",
        b"NCCL_SOCKET_IFNAME=lo\r",
        b'NCCL_SOCKET_IFNAME="lo"',
        b"NCCL_SOCKET_IFNAME = lo",
        b"NCCL_SOCKET_IFNAME: lo",
        b" NCCL_SOCKET_IFNAME=lo",
        b"#NCCL_SOCKET_IFNAME=lo",
        b"export NCCL_SOCKET_IFNAME=lo",
        b"\xef\xbb\xbfNCCL_SOCKET_IFNAME=lo",
        b"NCCL_SOCKET_IFNAME=$NAME",
    ],
)
def test_lines_of_nccl_conf(release: str, line: bytes) -> None:
    version = asker.version_of(LIBRARIES[release])
    if not versions.at_least(version, CONF_FILE_VARIABLE_SINCE):
        pytest.skip("this release does not know NCCL_CONF_FILE")
    answer = asker.ask(LIBRARIES[release], {}, line + b"\n")
    parsed = parse_line(line.decode(), version)
    assignments = conf.read(line.decode(), "nccl.conf")
    wrong = [item.title for item in lint.lint(assignments, release) if item.id.endswith("conf-syntax")]
    assert bool(wrong) == (bool(assignments) and told(answer, "NCCL_SOCKET_IFNAME") not in ("lo", "=lo")), wrong
    assert told(answer, "NCCL_SOCKET_IFNAME") == (parsed[1] if parsed else None)
    assert (answer.result == 0) == (parsed is None or parsed[1] in ("lo", "=lo"))


@release
@pytest.mark.parametrize(
    "text", ["1", "0x10", "010", "08", "1k", "1.5", " 7", "-3", "true", "yes", "99999999999999999999"]
)
def test_numbers(release: str, text: str) -> None:
    """NCCL_GDRCOPY_ENABLE is read by every release as soon as it starts."""
    name = "NCCL_GDRCOPY_ENABLE"
    answer = asker.ask(LIBRARIES[release], {name: text})
    value = told(answer, name)
    refused = f"Invalid value {text} for {name}, using default 0." in answer.log
    digits = number.has_digits(text) or not versions.at_least(versions.parse(release), number.NO_DIGITS_REFUSED_SINCE)
    assert refused == (not number.fits(text) or not digits)
    assert value == (None if refused else f"{number.as_read(text)}.")
    remarks = lint.lint([Assignment(name, text, how=How.PROCESS)], release)
    said = " ".join(item.title for item in remarks if item.id.endswith("invalid-value"))
    assert ("refuses" in said) == refused, said
    read = log_reader.read(answer.log.splitlines())
    assert [item.value for item in read.refused] == ([text] if refused else [])
    assert [item.value for item in read.assignments if item.name == name] == ([] if refused else [value[:-1]])


@release
@pytest.mark.parametrize("word", ["WARN", "warn", "INFO ", "ATTN", "ERROR", "1", "WARN,INFO"])
def test_levels_that_print_nothing(release: str, word: str) -> None:
    answer = asker.ask(LIBRARIES[release], {"NCCL_DEBUG": word, "NCCL_SOCKET_IFNAME": "nowhere"})
    assert answer.result
    found = lint.lint([Assignment("NCCL_DEBUG", word, how=How.PROCESS)], release)
    assert any(item.id.endswith("invalid-value") for item in found) == ("NCCL WARN" not in answer.log)


@release
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "l"},
        {"NCCL_SOCKET_IFNAME": "lo"},
        {"NCCL_SOCKET_IFNAME": "=l"},
        {"NCCL_SOCKET_IFNAME": "LO"},
        {"NCCL_SOCKET_IFNAME": "^lo"},
        {"NCCL_SOCKET_IFNAME": "^=lo,docker0"},
        {"NCCL_SOCKET_IFNAME": "e"},
        {"NCCL_SOCKET_IFNAME": "nowhere,lo"},
        {"NCCL_SOCKET_IFNAME": "nowhere, lo"},
        {"NCCL_SOCKET_FAMILY": "AF_INET6"},
        {"NCCL_SOCKET_FAMILY": "ipv4"},
        {"NCCL_COMM_ID": "127.0.0.1:29876"},
        {"NCCL_COMM_ID": "192.0.2.250:29876", "NCCL_SOCKET_IFNAME": "lo"},
        {"NCCL_COMM_ID": "198.51.100.9:29876"},
    ],
    ids=str,
)
def test_interfaces(release: str, settings: dict[str, str]) -> None:
    """The interface that is taken on this machine, or the failure, is what our model says."""
    addresses = tuple(msgspec.convert(item, Address) for item in probe.kernel_addresses())
    choice = nccl_bootstrap(addresses, settings, asker.version_of(LIBRARIES[release]))
    answer = asker.ask(LIBRARIES[release], settings)
    taken = re.search(r"Bootstrap ?: Using ([^:\s]+):([0-9a-f.:]+)<", answer.log)
    assert (answer.result, taken and (taken[1], taken[2])) == (
        choice.result,
        (choice.address.name, choice.address.address) if choice.address else None,
    )


@release
@pytest.mark.parametrize(
    ("environment", "file", "works"),
    [
        ("lo", "NCCL_SOCKET_IFNAME=nowhere\n", True),
        ("nowhere", "NCCL_SOCKET_IFNAME=lo\n", False),
        ("", "NCCL_SOCKET_IFNAME=lo\nNCCL_SOCKET_IFNAME=nowhere\n", True),
        ("", "NCCL_SOCKET_IFNAME=nowhere\nNCCL_SOCKET_IFNAME=lo\n", False),
    ],
)
def test_the_environment_wins_and_in_a_file_the_first_line(
    release: str, environment: str, file: str, works: bool
) -> None:
    version = asker.version_of(LIBRARIES[release])
    if not versions.at_least(version, CONF_FILE_VARIABLE_SINCE):
        pytest.skip("this release does not know NCCL_CONF_FILE")
    settings = {"NCCL_SOCKET_IFNAME": environment} if environment else {}
    assert (asker.ask(LIBRARIES[release], settings, file.encode()).result == 0) == works
    lines = tuple(ConfLine(number, text) for number, text in enumerate(file.splitlines(), start=1))
    winner = effective(settings, (ConfFile("environment", "/job.conf", "ok", lines),), version)["NCCL_SOCKET_IFNAME"]
    assert (winner.value == "lo") == works


@release
def test_a_recommended_nccl_conf_is_taken(release: str, tmp_path: Path) -> None:
    if not versions.at_least(asker.version_of(LIBRARIES[release]), CONF_FILE_VARIABLE_SINCE):
        pytest.skip("this release does not know NCCL_CONF_FILE")
    hung = recommend.recommend([HostNeeds("a", nccl_version=release, torch_version="2.4.0")], (), Purpose.HANG)
    listed = Line(EnvAdvice("NCCL_SOCKET_IFNAME", "=lo", "the only one here"), 1.0, "a fact")
    conf = advice_conf(msgspec.structs.replace(hung, lines=(*hung.lines, listed))).replace("/tmp/", f"{tmp_path}/")
    answer = asker.ask(LIBRARIES[release], {}, conf.encode(), debug=False)
    (log,) = tmp_path.glob("nccl-*.log")
    said = log.read_text()
    assert answer.result == 0 and "NCCL INFO" in said and "NCCL INFO" not in answer.log
    assert told(answer._replace(log=said), "NCCL_SOCKET_IFNAME") == "=lo"


@release
def test_every_variable_it_says_it_read_is_known(release: str) -> None:
    answer = asker.ask(LIBRARIES[release], {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET"}, init=True)
    read = log_reader.read(answer.log.splitlines())
    assert {item.name for item in read.assignments} >= {"NCCL_SOCKET_IFNAME"}
    for item in read.assignments:
        assert knowledge.lookup(item.name, release).status is knowledge.Status.CURRENT
