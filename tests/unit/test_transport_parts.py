"""The parts of the transports that need no host: templates, ssh config classes, known_hosts, the gate."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import itertools
import json
import os
import pwd
import shutil
import socket
import subprocess
import threading
import time
import types
import warnings
import zlib
from pathlib import Path
from unittest import mock

import msgspec
import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.facts.model import NO_ANSWER, UNSIGNED, ReachOutcome
from nccl_doctor.inventory import HostEntry
from nccl_doctor.transport import dial, process, ssh, ssh_config, ssh_keys, ssh_login
from nccl_doctor.transport.auth_gate import AuthGate
from nccl_doctor.transport.base import ConnectOptions, Deadline, Unreachable
from nccl_doctor.transport.command import CommandTransport, TemplateError, explain, parse_template, start
from nccl_doctor.transport.fleet import make_transport
from nccl_doctor.transport.greeting import last_line
from nccl_doctor.transport.known_hosts import KnownHosts, fingerprint, judge
from nccl_doctor.transport.launch import launch, pack, shell_command
from nccl_doctor.transport.process import ProcessStream
from nccl_doctor.transport.ssh_config import ConfigReader, HostConfig
from nccl_doctor.transport.ssh_errors import Connection, NeedsProgram, channel_refused
from nccl_doctor.transport.ssh_login import LogIn


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
    assert argv("plink -P {port} {host}", HostEntry("h"))[:4] == ["plink", "-P", "22", "h"]


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
    assert not transport.by_ssh and CommandTransport("/usr/bin/ssh -q {host}", ConnectOptions()).by_ssh
    with pytest.raises(Unreachable, match=r"no \{user\}"):
        transport.open(HostEntry("pod", user="root"), "x", Deadline(5))


class Said:
    """A stream of which only the stderr matters."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error_text(self) -> str:
        return self.text


NO_SH = 'exec: "sh": executable file not found in $PATH'


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
        ("docker", 127, f"OCI runtime exec failed: exec failed: {NO_SH}: unknown", ReachOutcome.TRANSPORT_FAILED),
        (
            "kubectl",
            126,
            f"error: Internal error occurred: OCI runtime exec failed: {NO_SH}",
            ReachOutcome.TRANSPORT_FAILED,
        ),
        ("podman", 127, f"Error: {NO_SH}: OCI runtime attempted to invoke a command", ReachOutcome.TRANSPORT_FAILED),
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
def test_what_makes_hosts_differ_is_seen(tmp_path: Path) -> None:
    """Letters count, a comment is no pattern, and %C of a shared connection's path hides the name in a hash."""
    file = tmp_path / "config"
    file.write_text(
        "Host GPU*\n Port 2222\nHost gpu01 # and all of *\n Port 3333\nHost cm*\n ControlPath /tmp/%C\n"
        f"Include ~{ssh_config.login_name()}/{os.path.relpath(tmp_path / 'more', Path.home())}\n"
    )
    (tmp_path / "more").write_text("Host x1\n Port 4444\n")
    reader = ConfigReader(str(file))
    for name in ("GPU1", "gpu1", "gpu01", "gpu02", "cm1", "cm2", "x2", "x1"):
        found = reader.resolve(HostEntry(name))
        answer = subprocess.run(["ssh", "-F", file, "-G", name], capture_output=True, text=True, check=True).stdout
        assert f"port {found.port}\n" in answer, name
        assert f"controlpath {found.one('controlpath')}\n" in answer or not found.one("controlpath"), name


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
    monkeypatch.setenv("LOGNAME", "somebody-else")  # as su leaves it
    assert ConfigReader().resolve(HostEntry("h")).user == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(Unreachable, match="this machine has no name for its own user"):
        ConfigReader().resolve(HostEntry("h"))
    assert str(tmp_path / ".ssh/id_ed25519") in found.identity_files
    assert str(tmp_path / ".ssh/known_hosts") in found.known_hosts_files


def test_a_config_without_ssh_is_refused_not_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host x\n ProxyJump y\n")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unreachable, match=r"lacks the ssh program, without which .* cannot be obeyed"):
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
    both = known(tmp_path, line("h", one) + line("*", one, marker="@revoked"))
    assert judge(both, "h", 22, one).result == "revoked" and judge(both, "h", 2222, one).result != "ok"
    assert fingerprint(one).startswith("SHA256:") and "=" not in fingerprint(one)


def test_an_alias_stands_in_known_hosts_without_a_port(tmp_path: Path) -> None:
    """Else its changed key would pass for one that nobody knows, which StrictHostKeyChecking=accept-new accepts."""
    config = HostConfig("h", "10.0.0.9", "u", 2222, {"hostkeyalias": ["pod"]}, known=True)
    hosts = known(tmp_path, line("pod", b"key one"))
    assert judge(hosts, *config.vouched, b"key one").result == "ok"
    assert judge(hosts, *config.vouched, b"another").result == "changed"
    assert msgspec.structs.replace(config, values={}).vouched == ("10.0.0.9", 2222)


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


NO_THREAD = RuntimeError("can't start new thread")  # a limit on processes, or on memory


def test_a_program_that_cannot_be_started_makes_room_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = AuthGate(1)
    with pytest.raises(Unreachable, match=r"this machine cannot start .*embedded null byte"):
        start(["ssh\0", "true"], HostEntry("h", "u"), gate, Deadline(10))
    with monkeypatch.context() as patched, pytest.raises(Unreachable, match=r"this machine cannot start ssh: .*thread"):
        patched.setattr(threading.Thread, "start", mock.Mock(side_effect=NO_THREAD))
        start(["ssh", "h", "true"], HostEntry("h", "u"), gate, Deadline(10))
    gate.enter("u", Deadline(0.1))


def test_a_login_for_which_there_is_no_thread_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = mock.Mock()
    transport = ssh.SshTransport(ConnectOptions())
    monkeypatch.setattr(transport, "_connect", lambda *_: (client, ""))
    monkeypatch.setattr(ssh, "_start", mock.Mock(side_effect=NO_THREAD))
    with pytest.raises(RuntimeError):
        transport.open(HostEntry("h", "u"), "true", Deadline(10))
    client.close.assert_called_once_with()


def test_what_an_sshd_behind_a_proxy_command_says_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "_RETRIES", 1)
    config = HostConfig("h", "h", "u", 22, {"proxycommand": ["echo Exceeded MaxStartups"]}, known=True)
    with pytest.raises(Unreachable, match="the ProxyCommand gave no connection") as caught:
        ssh.SshTransport(ConnectOptions())._connect_directly(config, Deadline(60))
    assert caught.value.reach.evidence == ("Exceeded MaxStartups", "exit status 0")


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


def test_a_link_local_address_that_does_not_answer_is_told_with_its_zone() -> None:
    refused = mock.patch.object(dial, "_connected", side_effect=ConnectionRefusedError(111, "Connection refused"))
    with refused, pytest.raises(Unreachable) as found:
        dial.connect("fe80::1%lo", 22, "any", 5.0)
    assert found.value.reach.address == "fe80::1%lo" and "connect fe80::1%lo port 22" in found.value.reach.evidence[0]


def test_an_address_of_another_family_and_no_descriptor_left_are_reasons_not_defects() -> None:
    with pytest.raises(Unreachable, match="does not resolve") as found:
        dial.connect("127.0.0.1", 22, "inet6", 5.0)
    assert found.value.reach.outcome is ReachOutcome.NAME_UNRESOLVED
    # A firewall that rejects with icmp-proto-unreachable makes a connect fail with the second.
    for number, ours in ((errno.EMFILE, True), (errno.ENOPROTOOPT, False)):
        full = mock.patch.object(dial.socket, "socket", side_effect=OSError(number, os.strerror(number)))
        with full, pytest.raises(Unreachable) as found:
            dial.connect("127.0.0.1", 22, "any", 5.0)
        assert os.strerror(number) in found.value.reach.evidence[0]
        assert found.value.reach.detail.startswith("this machine") == ours


def test_a_name_that_no_name_service_could_be_asked_for_does_not_resolve() -> None:
    with pytest.raises(Unreachable) as trouble:
        dial.resolve("a" * 64 + ".example", 22, "any", 5.0)
    assert trouble.value.reach.outcome is ReachOutcome.NAME_UNRESOLVED


def test_no_way_to_one_of_two_addresses_is_not_what_ails_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an IPv6 address too, seen from a machine that has none."""
    both = [(family, 1, 6, "", (address, 22)) for family, address in ((2, "192.0.2.1"), (10, "2001:db8::1"))]
    monkeypatch.setattr(dial, "resolve", lambda *_: both)
    monkeypatch.setattr(dial, "_has_way", lambda family, _: family == 2)

    def connected(made: socket.socket, target: tuple[str, int], _: float) -> None:
        made.close()
        raise TimeoutError if target[0] == "192.0.2.1" else OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(dial, "_connected", connected)
    with pytest.raises(Unreachable) as found:
        dial.connect("h", 22, "any", 5.0)
    assert (found.value.reach.outcome, found.value.reach.address) == (ReachOutcome.TIMED_OUT, "192.0.2.1")
    assert len(found.value.reach.evidence) == 2


def test_what_a_jump_host_said_of_one_host_is_not_told_of_the_next() -> None:
    connection = Connection(socket.socketpair()[0])
    connection._own.channel, connection._words = 5, {5: "Connection refused"}
    assert connection.refusal == "Connection refused"
    assert connection.refusal == ""  # the jump host is gone since: no further channel was asked for


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("Temporary failure in name resolution", ReachOutcome.NAME_UNRESOLVED),
        ("Connection refused", ReachOutcome.REFUSED),
        ("Permission denied", ReachOutcome.TRANSPORT_FAILED),  # by its own firewall: nothing is known of the host
    ],
)
def test_what_a_jump_host_says(said: str, outcome: ReachOutcome) -> None:
    assert channel_refused(said, "h port 22", HostConfig("h", "h", "u", 22)).reach.outcome is outcome


def test_the_time_in_a_queue_is_not_the_hosts() -> None:
    slots, late = threading.BoundedSemaphore(1), Unreachable(ReachOutcome.TIMED_OUT, "no answer")
    with pytest.raises(Unreachable) as found, ssh._turn(slots, Deadline(), "jump host x"):
        time.sleep(0.05)
        raise late
    assert found.value.reach.seconds >= 0.05
    with ssh._turn(slots, Deadline(), "x"), pytest.raises(Unreachable, match="before its turn at x"):
        ssh._turn(slots, Deadline(0.01), "x").__enter__()


def test_a_program_that_cannot_even_be_named_is_no_endless_wait() -> None:
    ended: list[Exception] = []

    def begin() -> None:
        try:
            ProcessStream(["a\0b"])
        except ValueError as error:
            ended.append(error)

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    thread.join(30)
    assert ended


def test_a_slow_line_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes for a pod behind a slow VPN: as long as they go, they are not given up."""
    stream = ProcessStream(["sh", "-c", "cat >/dev/null"])
    clock = itertools.count(0.0, 31.0)
    monkeypatch.setattr(process, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    try:
        stream.write(bytes(4 << 20), 60.0)
    finally:
        stream.close()


# Logging in


class Server(paramiko.ServerInterface):
    """An sshd that accepts nobody, unless told."""

    def __init__(self, methods: str = "publickey", none: int = paramiko.AUTH_FAILED) -> None:
        self.methods, self.none = methods, none

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_none(self, username: str) -> int:
        return self.none

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED


def config_of(place: Path, keys: int = 1, **values: str) -> HostConfig:
    files = [str(place / f"key{number}") for number in range(keys)]
    for name in files:
        paramiko.ECDSAKey.generate().write_private_key_file(name)
    said = {"stricthostkeychecking": "no", "identityagent": "none", "userknownhostsfile": "none", **values}
    answers = {name: [value] for name, value in (*said.items(), ("globalknownhostsfile", "none"))}
    return HostConfig("h", "h", "u", 22, {**answers, "identityfile": files}, known=True)


def log_in(server: Server, config: HostConfig) -> bool:
    ours, theirs = socket.socketpair()
    transport = paramiko.Transport(theirs)
    try:
        transport.add_server_key(paramiko.ECDSAKey.generate())
        transport.start_server(event=threading.Event(), server=server)
        client, _ = LogIn(AuthGate(3)).connect(ours, config, 30.0, Deadline(60))
        client.close()
        return True
    finally:
        transport.close()


def test_a_server_that_asks_for_no_proof_is_reached(tmp_path: Path) -> None:
    assert log_in(Server(none=paramiko.AUTH_SUCCESSFUL), config_of(tmp_path))


def test_host_based_logins_are_left_to_the_ssh_program(tmp_path: Path) -> None:
    """As clusters have them: no key anywhere, and the compute nodes trust the login node."""
    with pytest.raises(NeedsProgram, match="host-based"):
        log_in(Server("publickey,hostbased"), config_of(tmp_path, 0, hostbasedauthentication="yes"))
    with pytest.raises(Unreachable, match="no usable key"):
        log_in(Server("publickey,hostbased"), config_of(tmp_path, 0))


@pytest.mark.parametrize("ticket", [True, False])
def test_kerberos_is_left_to_the_ssh_program_where_there_is_a_ticket_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticket: bool
) -> None:
    klist = tmp_path / "klist"
    klist.write_text(f'#!/bin/sh\n[ "$1" = -s ] && exit {int(not ticket)}\n')
    klist.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    ssh_login._has_ticket.cache_clear()
    try:
        with pytest.raises(NeedsProgram if ticket else Unreachable, match="Kerberos" if ticket else "refused"):
            log_in(Server("publickey,gssapi-with-mic"), config_of(tmp_path, 1, gssapiauthentication="yes"))
    finally:
        ssh_login._has_ticket.cache_clear()


def test_all_keys_of_a_host_have_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def offer(client: Connection, user: str, key: object) -> list[str]:
        limits.append(client.auth_timeout)
        time.sleep(0.1)
        raise paramiko.AuthenticationException

    monkeypatch.setattr(ssh_login, "_offer", offer)
    with pytest.raises(Unreachable, match="none of 6 keys"):
        log_in(Server(), config_of(tmp_path, 6))
    assert limits[0] <= 30.0 and limits[5] <= limits[0] - 0.5


def test_an_agent_that_does_not_sign_is_not_the_hosts_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists a key whose card is gone, or waits for a touch: ssh goes on to the next key, and so do we."""
    card = paramiko.ECDSAKey.generate()
    trouble = paramiko.SSHException("key cannot be used for signing")
    monkeypatch.setattr(card, "sign_ssh_data", mock.Mock(side_effect=trouble))
    held = ssh_keys.Candidate(card, "from the agent (card)")
    monkeypatch.setattr(ssh_keys.KeyRing, "_from_agent", lambda *_: [held])
    with pytest.raises(Unreachable, match=UNSIGNED) as found:
        log_in(Server(), config_of(tmp_path, 0))
    assert found.value.reach.outcome is ReachOutcome.AUTH_FAILED
    assert "key cannot be used for signing" in found.value.reach.evidence[0]
    with pytest.raises(Unreachable, match="none of 2 keys is accepted"):
        log_in(Server(), config_of(tmp_path, 1))


@pytest.mark.filterwarnings("error")
def test_an_old_key_in_the_users_directory_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh looks for ~/.ssh/id_dsa up to release 9.7, and a directory may be another user's."""
    config = config_of(tmp_path)
    old = dsa.generate_private_key(1024).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (tmp_path / "id_dsa").write_bytes(old)
    config.values["identityfile"].insert(0, str(tmp_path / "id_dsa"))
    candidates, notes = ssh_keys.KeyRing().candidates(config)
    assert [item.name for item in candidates] == [f"from {tmp_path}/key0"]
    assert notes == [f"{tmp_path}/id_dsa is of a kind that only the ssh program knows"]
    monkeypatch.setattr(paramiko.PKey, "from_path", lambda name: warnings.warn("out of date", stacklevel=1))
    assert isinstance(ssh_keys._load(str(tmp_path / "id_dsa")), ssh_keys.Candidate)  # and not a word on our stderr
    monkeypatch.setattr(Path, "is_file", mock.Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    assert "Permission denied" in str(ssh_keys._load("/root/.ssh/id"))


def test_after_an_agents_silence_its_late_answer_is_not_taken_for_the_next(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "a"))
    listener.listen()
    blob = paramiko.ECDSAKey.generate().asbytes()

    def answer() -> None:
        line, _ = listener.accept()
        line.recv(100)
        told = paramiko.Message()
        told.add_byte(b"\x0c")
        told.add_int(1)
        told.add_string(blob)
        told.add_string("a comment")
        line.sendall(len(told.asbytes()).to_bytes(4, "big") + told.asbytes())
        silent.append(line)

    silent: list[socket.socket] = []
    threading.Thread(target=answer, daemon=True).start()
    agent = ssh_keys._Agent(str(tmp_path / "a"))
    agent._conn.settimeout(0.2)  # type: ignore[attr-defined]
    (key,) = agent.get_keys()
    for _ in range(2):
        signer = ssh_keys.Signer(key)
        assert signer.sign_ssh_data(b"x") == b"" and ssh_keys.NOT_SIGNED in signer.trouble
    assert "ad file descriptor" in signer.trouble
    listener.close()
    silent[0].close()


def test_an_sshd_that_never_says_whether_it_started_the_command_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        transport = ssh.SshTransport(ConnectOptions(start_s=0.5))
        monkeypatch.setattr(transport, "_connect", lambda *_: (client, ""))
        with pytest.raises(Unreachable, match="sshd started no command") as found:
            transport.open(HostEntry("h"), "true", Deadline())
        assert found.value.reach.outcome is ReachOutcome.TIMED_OUT and found.value.reach.detail.startswith(NO_ANSWER)
    finally:
        silence.set()
        client.close()
        server.close()
