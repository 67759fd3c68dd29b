"""The parts of the transports that need no host: templates, ssh config classes, known_hosts, the gate."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import threading
import zlib
from pathlib import Path
from unittest import mock

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.facts.model import ReachOutcome
from nccl_doctor.inventory import HostEntry
from nccl_doctor.transport import dial, ssh, ssh_config
from nccl_doctor.transport.auth_gate import AuthGate
from nccl_doctor.transport.base import ConnectOptions, Deadline, Unreachable
from nccl_doctor.transport.command import CommandTransport, TemplateError, explain, parse_template
from nccl_doctor.transport.fleet import make_transport
from nccl_doctor.transport.known_hosts import KnownHosts, fingerprint, judge
from nccl_doctor.transport.launch import launch, pack, shell_command
from nccl_doctor.transport.session import last_line
from nccl_doctor.transport.ssh_config import ConfigReader
from nccl_doctor.transport.ssh_errors import Connection


def argv(template: str, entry: HostEntry, command: str = "exec sh -c 'x y'") -> list[str]:
    return parse_template(template).argv(entry, command, 10.0)


def test_templates_become_words_never_a_shell_line() -> None:
    assert argv("srun -N1 -w {host}", HostEntry("n1"), "a b") == ["srun", "-N1", "-w", "n1", "sh", "-c", "a b"]
    assert argv("kubectl exec -i {host} --", HostEntry("pod"), "a b")[-4:] == ["--", "sh", "-c", "a b"]
    assert argv("docker exec -i {host} bash -c {command}", HostEntry("c"), "a b")[-3:] == ["bash", "-c", "a b"]
    words = argv("ssh -q {host}", HostEntry("h", "ada", 2222), "a b")
    assert words[0] == "ssh" and words[-3:] == ["-q", "h", "a b"]
    assert words[words.index("-l") + 1] == "ada" and words[words.index("-p") + 1] == "2222"
    for option in ("ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "BatchMode=yes", "ControlMaster=no"):
        assert words[words.index(option) - 1] == "-o" and words.index(option) < words.index("-q")
    assert argv("sh -c 'x {host}'", HostEntry("h"))[:3] == ["sh", "-c", "x h"]


@given(st.text(max_size=30))
def test_a_host_stays_within_its_word(name: str) -> None:
    assert argv("kubectl exec -i {host} --", HostEntry(name), "c") == [
        "kubectl",
        "exec",
        "-i",
        name,
        "--",
        "sh",
        "-c",
        "c",
    ]


@pytest.mark.parametrize("text", ["", "ssh", "{host}", "ssh {hots}", "ssh '{host}", "ssh {host} {}"])
def test_bad_templates(text: str) -> None:
    with pytest.raises(TemplateError, match="command template"):
        parse_template(text)
    with pytest.raises(ValueError):
        make_transport(ConnectOptions(transport=f"command={text}"))


def test_transports_by_name() -> None:
    for text in ("telnet", "local=x", "ssh=x", ""):
        with pytest.raises(ValueError, match="expected ssh, local or command=TEMPLATE"):
            make_transport(ConnectOptions(transport=text))


def test_a_user_that_a_template_cannot_place_is_refused_not_dropped() -> None:
    transport = CommandTransport("kubectl exec -i {host} --", ConnectOptions())
    with pytest.raises(Unreachable, match=r"no \{user\}"):
        transport.open(HostEntry("pod", user="root"), "x", Deadline(5))


class Said:
    """A stream of which only the stderr matters."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error_text(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("program", "status", "text", "outcome"),
    [
        ("ssh", 255, "ssh: connect to host x port 22: Connection refused\n", ReachOutcome.REFUSED),
        ("ssh", 255, "ssh: connect to host x port 22: Connection timed out", ReachOutcome.TIMED_OUT),
        ("ssh", 255, "ssh: connect to host x port 22: No route to host", ReachOutcome.NO_ROUTE),
        ("ssh", 255, "ssh: Could not resolve hostname x: Name or service not known", ReachOutcome.NAME_UNRESOLVED),
        ("ssh", 255, "root@x: Permission denied (publickey).", ReachOutcome.AUTH_FAILED),
        (
            "ssh",
            255,
            "No ED25519 host key is known for x\nHost key verification failed.",
            ReachOutcome.HOST_KEY_UNKNOWN,
        ),
        ("ssh", 255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", ReachOutcome.HOST_KEY_CHANGED),
        ("ssh", 255, "kex_exchange_identification: Connection closed by remote host", ReachOutcome.CUT_OFF),
        ("ssh", 255, "something new", ReachOutcome.TRANSPORT_FAILED),
        ("ssh", 1, "Connection refused, said the remote command", None),
        ("srun", 1, "srun: error: Unable to create step: Invalid node name", ReachOutcome.TRANSPORT_FAILED),
        ("kubectl", 1, 'Error from server (NotFound): pods "x" not found', ReachOutcome.TRANSPORT_FAILED),
        ("kubectl", 127, "sh: python3: not found", None),
        ("srun", None, "srun: job 12 queued and waiting for resources", ReachOutcome.NOT_TRIED),
        ("srun", None, "", ReachOutcome.NOT_TRIED),
        ("kubectl", None, "", None),
    ],
)
def test_what_programs_say(program: str, status: int | None, text: str, outcome: ReachOutcome | None) -> None:
    found = explain(program, Said(text), status)  # type: ignore[arg-type]
    assert (found.reach.outcome if found else None) is outcome
    assert found is None or found.reach.evidence or found.reach.outcome is ReachOutcome.NOT_TRIED


def test_the_command_line_suits_every_login_shell() -> None:
    for shell in ("sh", "bash", "dash", "zsh", "csh", "tcsh", "fish"):
        if not shutil.which(shell):
            continue
        for setup in ("", "A='it is'; export A;  # ends as it likes"):
            plan = launch("", setup)
            done = subprocess.run(
                [shell, "-c", plan.command], input=plan.payload, capture_output=True, timeout=30, check=False
            )
            assert plan.marker.encode() + b" hello" in done.stdout, (shell, done)
    assert "\n" not in shell_command("", "A=1")  # csh takes none within quotes
    assert len(shell_command()) < 400


def test_the_agent_is_small() -> None:
    assert len(pack()) < 300_000
    assert "nccl_doctor.agent.runtime" in json.loads(zlib.decompress(pack()))


# ssh config

needs_ssh = pytest.mark.skipif(not shutil.which("ssh"), reason="needs the ssh program")

CONFIG = """
Host gpu* !gpu99
  User ada
  Port 2222
Host *.example login
  HostName %h.internal
  IdentityFile ~/.ssh/%n-key
Host = "alias"
  HostName 10.0.0.9
"""


@needs_ssh
def test_classes_give_the_answers_of_ssh_and_ask_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(CONFIG)
    asked: list[str] = []
    ask = ConfigReader._ask
    monkeypatch.setattr(ConfigReader, "_ask", lambda self, name, entry: asked.append(name) or ask(self, name, entry))
    reader = ConfigReader(str(file))
    names = [f"gpu{number}" for number in range(95, 102)] + [
        "a.example",
        "b.example",
        "login",
        "alias",
        "plain",
        "other",
    ]
    for name in names:
        found = reader.resolve(HostEntry(name))
        answer = subprocess.run(["ssh", "-F", file, "-G", name], capture_output=True, text=True, check=True).stdout
        assert f"hostname {found.hostname}\nport {found.port}\n" in answer and f"user {found.user}\n" in answer, name
    assert [name for name in asked if name.startswith("gpu")] == ["gpu95", "gpu99"]
    assert {"a.example", "b.example"} <= set(asked)  # their answer depends on the name
    assert reader.resolve(HostEntry("gpu1", "root", 22)).user == "root"


@needs_ssh
def test_an_include_and_a_match_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more").write_text("Host x\n Port 4\nMatch host y\n Port 5\n")
    file = tmp_path / "config"
    file.write_text(f"Include {tmp_path}/mo*\n")
    reader = ConfigReader(str(file))
    assert reader.resolve(HostEntry("x")).port == 4 and reader.resolve(HostEntry("y")).port == 5
    assert reader._patterns.each
    file.write_text("NoSuchKeyword yes\n")
    with pytest.raises(Unreachable, match="cannot read its config") as caught:
        ConfigReader(str(file)).resolve(HostEntry("x"))
    assert "NoSuchKeyword" in caught.value.reach.evidence[0] or "nosuchkeyword" in caught.value.reach.evidence[0]


def test_without_a_config_ssh_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ssh_config, "SYSTEM_CONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(ssh_config, "home", lambda: tmp_path)
    monkeypatch.setattr(ConfigReader, "_ask", lambda *_: pytest.fail("asked"))
    found = ConfigReader().resolve(HostEntry("h", "u", 5))
    assert (found.hostname, found.user, found.port, found.strict_host_keys) == ("h", "u", 5, "ask")
    assert str(tmp_path / ".ssh/id_ed25519") in found.identity_files
    assert str(tmp_path / ".ssh/known_hosts") in found.known_hosts_files


def test_a_config_without_ssh_is_refused_not_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host x\n ProxyJump y\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unreachable, match="only be obeyed with the ssh program"):
        ConfigReader(str(file)).resolve(HostEntry("x"))


# known_hosts


def line(hosts: str, blob: bytes, kind: str = "ssh-ed25519", marker: str = "") -> str:
    return f"{marker} {hosts} {kind} {base64.b64encode(blob).decode()}\n".lstrip()


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def known(tmp_path: Path, text: str) -> KnownHosts:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return KnownHosts([str(file), str(tmp_path / "absent")])


def test_known_hosts_in_all_their_forms(tmp_path: Path) -> None:
    one, two = b"key one", b"key two"
    text = (
        "# comment\n\nbroken line\nbad ssh-ed25519 ***\n"
        + line("plain,10.0.0.1", one)
        + line("[port]:2222", one)
        + line(hashed("secret"), one)
        + line("*.example,!bad.example", one)
        + line("revoked", one)
        + line("*", two, marker="@revoked")
        + line("*.ca", two, marker="@cert-authority")
    )
    hosts = known(tmp_path, text)
    for name, port in (
        ("plain", 22),
        ("PLAIN", 22),
        ("10.0.0.1", 22),
        ("port", 2222),
        ("secret", 22),
        ("a.example", 22),
    ):
        assert judge(hosts, name, port, one).result == "ok", name
        changed = judge(hosts, name, port, b"another")
        assert changed.result == "changed" and changed.expected[0].place.startswith(str(tmp_path))
    for name, port in (("bad.example", 22), ("port", 22), ("nobody", 22), ("x.ca", 22)):
        assert judge(hosts, name, port, one).result == "unknown", name
    assert judge(hosts, "plain", 2222, one).result == "ok"  # ssh's own fallback: known without the port
    assert judge(hosts, "plain", 2222, b"another").result == "unknown"
    assert judge(hosts, "revoked", 22, two).result == "revoked"
    assert fingerprint(one).startswith("SHA256:") and "=" not in fingerprint(one)


@given(st.text(max_size=80))
def test_no_line_of_known_hosts_breaks_the_reader(text: str) -> None:
    hosts = KnownHosts([])
    hosts._add(text, "f", 1)
    assert judge(hosts, "h", 22, b"k").result in ("unknown", "changed", "ok", "revoked")


# The gate


def test_the_gate_closes_after_three_refusals_and_opens_with_one_success() -> None:
    gate, deadline = AuthGate(3), Deadline(10)
    for host in "abc":
        gate.enter("u", deadline)
        gate.leave("u", host, ReachOutcome.AUTH_FAILED)
    with pytest.raises(Unreachable, match="not tried") as caught:
        gate.enter("u", deadline)
    assert caught.value.reach.outcome is ReachOutcome.NOT_TRIED and "a, b, c" in caught.value.reach.evidence[0]
    gate.enter("another", deadline)  # counted per user
    gate.leave("another", "a", ReachOutcome.OK)
    for host in "bcdef":
        gate.enter("another", deadline)
        gate.leave("another", host, ReachOutcome.AUTH_FAILED)


def test_the_gate_lets_three_in_at_a_time_until_one_is_accepted() -> None:
    gate = AuthGate(3)
    for _ in range(3):
        gate.enter("u", Deadline(10))
    waiting = threading.Thread(target=gate.enter, args=("u", Deadline(10)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    gate.leave("u", "a", ReachOutcome.TIMED_OUT)  # proves nothing, makes room
    waiting.join(5)
    assert not waiting.is_alive()
    with pytest.raises(Unreachable, match="deadline"):
        gate.enter("u", Deadline(0.1))


def test_a_connection_whose_jump_host_is_gone_closes_in_silence() -> None:
    """paramiko tells the jump host that a channel ends, and in its thread the error would be printed."""

    class Gone:
        closed = False

        def settimeout(self, seconds: float) -> None:
            """As a channel has it."""

        def close(self) -> None:
            self.closed = True
            raise EOFError

    line = Gone()
    connection = Connection(line)
    connection.packetizer.close()
    assert line.closed


def test_of_a_fatal_error_the_line_that_says_why_is_quoted() -> None:
    told = "Fatal Python error: init_fs_encoding: failed\nModuleNotFoundError: No module named 'encodings'\n\n<no Python frame>\n"
    assert last_line(told) == "ModuleNotFoundError: No module named 'encodings'"
    assert last_line("one\ntwo\n") == "two"


def test_an_address_of_another_family_and_no_descriptor_left_are_reasons_not_defects() -> None:
    with pytest.raises(Unreachable, match="does not resolve") as found:
        dial.connect("127.0.0.1", 22, "inet6", 5.0)
    assert found.value.reach.outcome is ReachOutcome.NAME_UNRESOLVED
    full = mock.patch.object(dial.socket, "socket", side_effect=OSError(errno.EMFILE, "Too many open files"))
    with full, pytest.raises(Unreachable) as found:
        dial.connect("127.0.0.1", 22, "any", 5.0)
    assert "Too many open files" in found.value.reach.evidence[0]


def test_an_sshd_that_never_says_whether_it_started_the_command_is_not_waited_for() -> None:
    silence, ours, theirs = threading.Event(), *socket.socketpair()

    class Silent(paramiko.ServerInterface):
        def check_auth_none(self, username: str) -> int:
            return paramiko.AUTH_SUCCESSFUL

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return paramiko.OPEN_SUCCEEDED

        def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
            return silence.wait(60)

    server, client = paramiko.Transport(theirs), Connection(ours)
    try:
        server.add_server_key(paramiko.ECDSAKey.generate())
        server.start_server(event=threading.Event(), server=Silent())
        client.start_client(timeout=30)
        client.auth_none("somebody")
        with pytest.raises((paramiko.SSHException, EOFError)):
            ssh._start(client, "true", 0.5)
    finally:
        silence.set()
        client.close()
        server.close()
