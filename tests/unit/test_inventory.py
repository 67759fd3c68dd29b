"""Hostfiles of every format; and that no text whatever can become an option or a shell word."""

from __future__ import annotations

import io
import re
import string
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from nccl_doctor.cli import _hosts
from nccl_doctor.facts.fold import fold
from nccl_doctor.inventory import HostEntry, Inventory, InventoryError, ansible, load, nodesets, render, sources
from nccl_doctor.inventory.names import BadName


def parse(text: str | bytes) -> Inventory:
    return sources.parse(text.encode() if isinstance(text, str) else text, "hosts")


def named(text: str) -> list[str]:
    return [entry.name for entry in parse(text).entries]


def listed(text: str) -> Inventory:
    return load(None, text, False, {}, io.BytesIO())


def test_one_host_a_line_with_everything_editors_leave_behind() -> None:
    found = parse(b"\xef\xbb\xbf# rack 1\r\ngpu01\r\n\r\n  gpu02  # spare\r\n\t10.0.0.3\r\nfe80::1%eth0\r\n")
    assert [entry.name for entry in found.entries] == ["gpu01", "gpu02", "10.0.0.3", "fe80::1%eth0"]
    assert [entry.line for entry in found.entries] == [2, 4, 5, 6]
    assert (found.format, found.notices) == ("plain", ())


@pytest.mark.parametrize(
    ("line", "entry", "format"),
    [
        ("gpu01", HostEntry("gpu01"), "plain"),
        ("GPU01.Example.COM", HostEntry("GPU01.Example.COM"), "plain"),
        ("root@gpu01", HostEntry("gpu01", "root"), "plain"),
        ("root@gpu01:2222", HostEntry("gpu01", "root", 2222), "plain"),
        ("root@gpu01:8", HostEntry("gpu01", "root", 8), "plain"),
        ("me@corp.example@gpu01", HostEntry("gpu01", "me@corp.example"), "plain"),
        ("ssh://root@gpu01:8", HostEntry("gpu01", "root", 8), "plain"),
        ("ssh://gpu01:8", HostEntry("gpu01", "", 8), "plain"),
        ("gpu01:2222", HostEntry("gpu01", "", 2222), "plain"),
        ("gpu01:22", HostEntry("gpu01", "", 22), "plain"),
        ("gpu01:8", HostEntry("gpu01", slots=8), "mpich"),
        ("[gpu01]:8", HostEntry("gpu01", "", 8), "plain"),
        ("::1", HostEntry("::1"), "plain"),
        ("[::1]", HostEntry("::1"), "plain"),
        ("[::1]:2222", HostEntry("::1", "", 2222), "plain"),
        ("root@[fe80::1%ib0]:22", HostEntry("fe80::1%ib0", "root", 22), "plain"),
        ("gpu01 slots=8", HostEntry("gpu01", slots=8), "openmpi"),
        ("gpu01 slots = 8 max_slots=16", HostEntry("gpu01", slots=8), "openmpi"),
        ("gpu01 SLOTS=4 user=root port=2222", HostEntry("gpu01", "root", 2222, 4), "openmpi"),
        ("gpu01:8 binding=user:0,1", HostEntry("gpu01", slots=8), "mpich"),
    ],
)
def test_a_line(line: str, entry: HostEntry, format: str) -> None:
    found = parse(line)
    (only,) = found.entries
    assert (only.name, only.user, only.port, only.slots) == (entry.name, entry.user, entry.port, entry.slots)
    assert found.format == format


def test_node_sets() -> None:
    assert named("node[01-03,05]") == ["node01", "node02", "node03", "node05"]
    assert named("rack[1-2]n[1-2]") == ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]
    assert named("a,b,c\nnode[08-10]") == ["a", "b", "c", "node08", "node09", "node10"]
    found = parse("root@gpu[1-2] slots=8")
    assert [(entry.name, entry.user, entry.slots) for entry in found.entries] == [
        ("gpu1", "root", 8),
        ("gpu2", "root", 8),
    ]
    assert [entry.slots for entry in parse("gpu[1-2]:4").entries] == [4, 4]
    assert parse("gpu[1-2]").format == "nodeset"


def test_command_line_list() -> None:
    found = listed("node[01-02],gpu7,root@[::1]:2222,x:8")
    assert [entry.name for entry in found.entries] == ["node01", "node02", "gpu7", "::1", "x"]
    assert found.entries[3].port == 2222 and found.entries[4].slots == 8
    for between in (" ", "\n"):  # of a shell's loop, of `scontrol show hostnames`
        with pytest.raises(InventoryError, match=r"expected commas between hosts, such as gpu01,gpu02$"):
            listed(f"gpu01{between}gpu02")


def test_the_colon_is_read_in_one_way_and_said() -> None:
    assert "read as N slots" in parse("a:8\nb:4").notices[0]
    assert "read as ssh port" in parse("a:2222\nb:22").notices[0]
    assert parse("root@a:2222").notices == ()
    with pytest.raises(InventoryError, match=r"hosts:2: 'b:2222': .*reads as a port.*\[host\]:N"):
        parse("a:8\nb:2222")
    with pytest.raises(InventoryError):
        listed("a:8,b:2222")


def test_duplicates_are_merged_with_a_notice() -> None:
    found = parse("a\nb\na slots=8\na\nb")
    assert [(entry.name, entry.slots) for entry in found.entries] == [("a", 8), ("b", None)]
    assert found.notices == ("named more than once, counted once: a,b (3 lines merged)",)
    with pytest.raises(InventoryError, match="hosts:2: 'root@a': the same host as in line 1, with another user"):
        parse("me@a\nroot@a")
    with pytest.raises(InventoryError, match="Host blocks"):
        parse("[a]:2201\n[a]:2202")


ANSIBLE = """
lonely ansible_host=10.0.0.9 ansible_port=2200

[gpu]
gpu[01:02] ansible_user=ada   ; not a comment
gpu03 ansible_host="10.0.0.3" ansible_connection=ssh

[login]
login1

[cluster:children]
gpu
login

[cluster:vars]
ansible_user=slurm
ansible_port=2222
some_secret=x

[gpu:vars]
ansible_port=22
"""


def test_ansible() -> None:
    found = parse(ANSIBLE.replace("   ; not a comment", ""))
    assert found.format == "ansible"
    assert {entry.name: (entry.user, entry.port, entry.address) for entry in found.entries} == {
        "lonely": ("", 2200, "10.0.0.9"),
        "gpu01": ("ada", 22, ""),
        "gpu02": ("ada", 22, ""),
        "gpu03": ("slurm", 22, "10.0.0.3"),
        "login1": ("slurm", 2222, ""),
    }
    assert named("[all]\nx[a:c]") == ["xa", "xb", "xc"]
    assert named("[g]\nhost:2222") == ["host"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[g]\na ansible_port={{ port }}", "hosts:2: .*key=value|hosts:2: .*templates"),
        ("[g]\na ansible_host='$(id)'", "hosts:2: .*expected a host name"),
        ("[g]\na ansible_user=-oProxyCommand=x", "hosts:2: .*expected a login name"),
        ("[g]\na ansible_port=99999", "hosts:2: .*port from 1 to 65535"),
        ("[a:children]\nb\n[b:children]\na\n[b]\nx", "contains itself"),
        ("[c]\ny\n[a:children]\nb\n[b:children]\na\n[b]\nx", "contains itself"),
        ("[g]\nx[1:99999999]", "hosts:2: .*more than 20000 hosts"),
        ("[g]\nx[9:1]", "hosts:2: .*backwards"),
        ("[g]\n'x", "hosts:2: .*"),
    ],
)
def test_ansible_mistakes(text: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message):
        parse(text)


def test_ansible_groups_of_any_depth_and_shape() -> None:
    """Each group of a level has both of the next: 2^60 ways down. And a chain is longer than Python's stack."""
    pairs = [f"[g{n}{side}:children]\ng{n + 1}a\ng{n + 1}b" for n in range(60) for side in "ab"]
    deep = "\n".join([*pairs, "[g0a:vars]\nansible_user=far\nansible_port=22", "[g59b:vars]\nansible_user=near"])
    (found,) = parse(f"{deep}\n[g60a]\nhost").entries
    assert (found.user, found.port) == ("near", 22)
    chain = "\n".join(f"[g{n}:children]\ng{n + 1}" for n in range(1500))
    (found,) = parse(f"{chain}\n[g1500]\nhost\n[g0:vars]\nansible_user=top").entries
    assert found.user == "top"


def test_slurm() -> None:
    job = {"SLURM_JOB_NODELIST": "node[01-03],gpu7", "SLURM_TASKS_PER_NODE": "8(x3),4"}
    found = load(None, None, True, job, io.BytesIO())
    assert [(entry.name, entry.slots) for entry in found.entries] == [
        ("node01", 8),
        ("node02", 8),
        ("node03", 8),
        ("gpu7", 4),
    ]
    assert found.format == "slurm"
    job["SLURM_TASKS_PER_NODE"] = "1(x3),2"  # one torchrun a node is not one rank a node
    assert [entry.slots for entry in load(None, None, True, job, io.BytesIO()).entries] == [None, None, None, 2]
    for bad in ({}, {"SLURM_JOB_NODELIST": "a b"}, {"SLURM_JOB_NODELIST": "a", "SLURM_TASKS_PER_NODE": "many"}):
        with pytest.raises(InventoryError, match="SLURM_JOB_NODELIST"):
            load(None, None, True, bad, io.BytesIO())


def test_sources(tmp_path: Path) -> None:
    assert load("-", None, False, {}, io.BytesIO(b"a\nb")).entries[1:] == (HostEntry("b", line=2),)
    file = tmp_path / "hosts"
    file.write_text("a\n")
    assert load(str(file), None, False, {}, io.BytesIO()).entries == (HostEntry("a", line=1),)
    local = load(None, None, False, {}, io.BytesIO())
    assert local.format == "local" and len(local.entries) == 1
    with pytest.raises(InventoryError, match="cannot be read: No such file"):
        load(str(tmp_path / "none"), None, False, {}, io.BytesIO())
    with pytest.raises(InventoryError, match="cannot be read"):
        load(str(tmp_path), None, False, {}, io.BytesIO())
    with pytest.raises(InventoryError, match="only one of"):
        load("-", "a", False, {}, io.BytesIO())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("# nothing\n\n", "names no host"),
        ("a\n-oProxyCommand=touch marker\n", r"hosts:2: '-oProxyCommand=touch marker': "),
        ("a\nb c\n", "hosts:2: 'b c': .*'c'"),
        ("$(touch marker)", "hosts:1"),
        ("`id`", "hosts:1"),
        ("a;b", "hosts:1"),
        ("a|b", "hosts:1"),
        ("a&&b", "hosts:1"),
        ("{host}", "hosts:1"),
        ("a slot_s=8", "hosts:1: .*'slot_s'"),
        ("a slots=0", "hosts:1: .*slots from 1 to 4096"),
        ("a slots=eight", "hosts:1: .*'eight'"),
        ("a:", "hosts:1: .*number after the colon"),
        ("a:x", "hosts:1: .*port"),
        ("u@a:70000", "hosts:1: .*65535"),
        ("@a", "hosts:1: '@a': .*login name.*nodeset -f @GROUP"),
        ("all:\n  hosts:\n    a:\n", "hosts:1: 'all:': YAML or JSON"),
        ("all:  # ours\n  hosts:\n", "hosts:1: 'all:': YAML or JSON"),
        ("# made by hand\n---\nall:\n  hosts:\n", "hosts:2: '---': YAML or JSON"),
        ('{"all": {"hosts": ["a"]}}', "hosts:1: .*YAML or JSON.*ansible all -i FILE --list-hosts"),
        ("-u@a", "hosts:1: .*login name"),
        ("u@-a", "hosts:1: .*host name"),
        ("u@", "hosts:1: .*host name"),
        ("1.2.3", "hosts:1: .*no IPv4"),
        ("12345", "hosts:1: .*no IPv4"),
        ("300.1.1.1", "hosts:1: .*no IPv4"),
        ("fe80::1%$(id)", "hosts:1"),
        ("gpü", "hosts:1"),
        ("a" * 64, "hosts:1"),
        ("a.." + "b", "hosts:1"),
        ("node[1-3", "hosts:1"),
        ("node[3-1]", "hosts:1: .*backwards"),
        ("node1,node" + "9" * 5000, "hosts:1: .*expected a node set"),
        ("node[1-999999999]", "hosts:1: .*more than 20000"),
        ("n[1-999]m[1-999]", "hosts:1: .*more than 20000"),
        ("node[a-c]", "hosts:1: .*range"),
        ("@rack1", "hosts:1"),
        ("a,,b", "hosts:1: .*empty name"),
        ("a\x1b]0;owned\x07", "hosts:1: .*control character"),
        ("a\x00b", "hosts:1: .*control character"),
        ("a\rb", "hosts:1: .*control character"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message) as caught:
        parse(text)
    assert str(caught.value).isprintable() and str(caught.value).isascii()


def test_undecodable_files() -> None:
    with pytest.raises(InventoryError, match="hosts:2: byte 2 is no UTF-8"):
        parse(b"a\n\xff\n")
    with pytest.raises(InventoryError, match="UTF-16"):
        parse("a\n".encode("utf-16"))


SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\Z")
SAFE_USER = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+@-]*)?\Z")
HOSTILE = st.text(
    alphabet=string.ascii_letters + "0123-_.:@[]{}(),$`;|&<>\\'\"!*?~#%=/ \t\r\n\x00\x1bé\u202e", max_size=60
)


@given(st.one_of(HOSTILE, st.text(max_size=40), st.binary(max_size=60)))
@example("-oProxyCommand=touch marker")
@example("a -oProxyCommand=x")
@example("$(touch marker)")
@example("[g]\n$(x) ansible_host=-oProxyCommand=x")
@example("u@-o")
@example("[-o]:22")
@example("ssh://-o")
@example("n[1-2],-x")
def test_no_text_becomes_an_option_or_a_shell_word(text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for read in (lambda: sources.parse(data, "f"), lambda: listed(data.decode("utf-8", "replace"))):
        try:
            found = read()
        except InventoryError as error:
            assert str(error).isprintable()
            continue
        for entry in found.entries:
            for word in (entry.name, entry.address or entry.name):
                assert SAFE_NAME.match(word) and not word.startswith("-") and len(word) <= 300
            assert SAFE_USER.match(entry.user)
            assert entry.port is None or 1 <= entry.port <= 65535
            assert entry.slots is None or 1 <= entry.slots <= 4096


@st.composite
def entries(draw: st.DrawFn) -> list[HostEntry]:
    hosts = draw(st.lists(st.from_regex(r"\A[a-z][a-z0-9-]{0,8}[a-z0-9]\Z"), min_size=1, max_size=8, unique=True))
    users = st.sampled_from(["", "root", "me"])
    ports = st.one_of(st.none(), st.integers(1, 65535))
    slots = draw(st.one_of(st.none(), st.integers(1, 4096)))
    return [HostEntry(host, draw(users), draw(ports), slots) for host in hosts]


@given(entries(), st.sampled_from(["plain", "openmpi", "mpich", "nodeset", "slurm", "ansible"]))
def test_what_is_rendered_is_read_back(hosts: list[HostEntry], format: str) -> None:
    found = parse(render(hosts, format))

    def key(entry: HostEntry) -> tuple[object, ...]:
        slots = entry.slots if format in ("openmpi", "mpich") else None
        return (entry.name, entry.user, entry.port, slots)

    assert sorted(map(key, found.entries), key=str) == sorted(map(key, hosts), key=str)


def test_good_hosts_keep_the_format_they_came_in() -> None:
    for text in ("a slots=8\nb slots=4\n", "a:8\nb:4\n", "node[01-03]\n", "a\nb\n", "root@a:2222\n[b]:2222\n"):
        found = parse(text)
        assert render(found.entries, found.format) == text
    found = parse("[g]\na ansible_host=10.0.0.1 ansible_user=x ansible_port=2\n")
    assert render(found.entries, "ansible") == "[hosts]\na ansible_host=10.0.0.1 ansible_user=x ansible_port=2\n"
    assert fold(["gpu03", "gpu04", "fe80::1"]) == "gpu[03-04], fe80::1"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("n[3:3]", ["n3"]),
        ("n[01:10:4]", ["n01", "n05", "n09"]),
        ("n[a:c]", ["na", "nb", "nc"]),
        ("r[1:2]n[1:2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_ranges_of_ansible(pattern: str, names: list[str]) -> None:
    assert ansible.expand(pattern) == names


@pytest.mark.parametrize("pattern", ["n[a:5]", "n[5:a]", "n[1:4:0]", "n[4:1]"])
def test_a_range_that_is_none(pattern: str) -> None:
    with pytest.raises(BadName, match="range"):
        ansible.expand(pattern)


def test_ranges_stay_within_what_a_set_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodesets, "MOST", 6)
    assert len(ansible.expand("n[1:6]")) == len(ansible.expand("r[1:2]n[1:3]")) == 6
    assert ansible.expand("n[1:1000000:500000]") == ["n1", "n500001"]
    for pattern in ("n[1:7]", "r[1:2]n[1:4]", "n[1:99999999]"):
        with pytest.raises(BadName, match="more than 6"):
            ansible.expand(pattern)


def test_hosts_and_files_that_changed_places_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("gpu01\n")
    with pytest.raises(typer.Exit):
        _hosts.load_inventory("gpu[01-02]", None, False)
    assert _hosts.load_inventory(None, "hostfile", False).entries[0].name == "hostfile"  # there may be such a host
    told = capsys.readouterr().err.splitlines()
    assert "hosts themselves are given with -H" in told[0] and told[1].endswith("--hosts hostfile?")
