"""The ssh and command transports against real sshds on the loopback: promises 1-4, 6-8 and 19."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nccl_doctor.facts.model import Outcome, Reach, ReachOutcome
from nccl_doctor.inventory import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import close_all, connect_all
from nccl_doctor.transport.session import Session
from nccl_doctor.transport.ssh_config import ConfigReader
from tests.lab.machine import soon_s, wait_for
from tests.ports import free_port

sys.path.insert(0, str(Path(__file__).parent))
from loopback_sshd import Sshd, make_key, why_not

pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


class Client:
    """The user's side: a key, a known_hosts file and an ssh config of our own."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place = place
        self.public = make_key(place / "id")
        self.known_hosts = place / "known_hosts"
        self.known_hosts.touch()
        self.config = place / "config"
        self.base = f"""
Host *
  IdentityFile {place}/id
  IdentityAgent none
  UserKnownHostsFile {self.known_hosts}
  GlobalKnownHostsFile none
"""
        self.write("")

    def write(self, text: str) -> None:
        self.config.write_text(text + self.base)

    def know(self, *sshds: Sshd) -> None:
        self.known_hosts.write_text("".join(sshd.known_line() + "\n" for sshd in sshds))

    def options(self, **changes: object) -> ConnectOptions:
        return ConnectOptions(ssh_config=str(self.config), **changes)  # type: ignore[arg-type]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "client")


@pytest.fixture
def start(tmp_path: Path, client: Client) -> Iterator[object]:
    """Starts sshds that end with the test."""
    running: list[Sshd] = []

    def begin(address: str = "127.0.0.1", known: bool = True, **options: str) -> Sshd:
        sshd = Sshd(tmp_path / f"sshd{len(running)}", client.public, address, **options)
        running.append(sshd)
        if known:
            client.know(*running)
        return sshd

    yield begin
    for sshd in running:
        sshd.stop()


def entry(sshd: Sshd, name: str = "") -> HostEntry:
    return HostEntry(name or sshd.address, "root", sshd.port, address=sshd.address if name else "")


def reach_all(entries: list[HostEntry], options: ConnectOptions, limit_s: float = 60) -> dict[str, Session | Reach]:
    return connect_all(entries, options, Deadline(limit_s))


@contextlib.contextmanager
def session_of(host: HostEntry, options: ConnectOptions) -> Iterator[Session]:
    (found,) = reach_all([host], options).values()
    assert isinstance(found, Session), found
    try:
        yield found
    finally:
        found.close()


def reach_of(host: HostEntry, options: ConnectOptions) -> Reach:
    (found,) = reach_all([host], options).values()
    if isinstance(found, Session):
        found.close()
        raise AssertionError("reached")
    return found


def test_an_ordinary_host(client: Client, start) -> None:
    sshd = start()
    with session_of(entry(sshd), client.options()) as session:
        assert session.reach.outcome is ReachOutcome.OK and session.reach.address == "127.0.0.1"
        assert session.reach.port == sshd.port and session.reach.seconds > 0
        result = session.probe("environment")
        assert result.outcome is Outcome.OK


def test_promise_1_a_changed_key_stops_that_host_only(client: Client, start) -> None:
    good, bad = start("127.0.0.1"), start("127.0.0.2")
    before = client.known_hosts.read_text()
    old = subprocess.run(["ssh-keygen", "-lf", bad.key], capture_output=True, text=True, check=True).stdout.split()[1]
    bad.swap_key()
    new = subprocess.run(["ssh-keygen", "-lf", bad.key], capture_output=True, text=True, check=True).stdout.split()[1]
    for options in (client.options(), client.options(transport=f"command=ssh -F {client.config} {{host}}")):
        found = reach_all([entry(good), entry(bad)], options)
        reached, refused = found["127.0.0.1"], found["127.0.0.2"]
        assert isinstance(reached, Session) and isinstance(refused, Reach)
        reached.close()
        assert refused.outcome is ReachOutcome.HOST_KEY_CHANGED
        quoted = "\n".join(refused.evidence)
        assert new in quoted and str(client.known_hosts) in quoted
        if options.transport == "ssh":
            assert old in quoted
    assert client.known_hosts.read_text() == before
    assert "Accepted publickey" not in bad.log.read_text()  # no login, so no command


@pytest.mark.parametrize("policy", ["no", "accept-new"])
def test_a_changed_key_is_refused_whatever_the_config_says(client: Client, start, policy: str) -> None:
    sshd = start()
    sshd.swap_key()
    client.write(f"StrictHostKeyChecking {policy}\n")
    assert reach_of(entry(sshd), client.options()).outcome is ReachOutcome.HOST_KEY_CHANGED


def test_an_unknown_key_is_refused_and_accepted_only_where_the_config_says_so(client: Client, start) -> None:
    sshd = start(known=False)
    reach = reach_of(entry(sshd), client.options())
    assert reach.outcome is ReachOutcome.HOST_KEY_UNKNOWN
    assert f"ssh -p {sshd.port} root@127.0.0.1 true" in reach.detail and "SHA256:" in reach.evidence[0]
    client.write("StrictHostKeyChecking accept-new\n")
    with session_of(entry(sshd), client.options()) as session:
        assert "not recorded" in session.reach.detail
    assert client.known_hosts.read_text() == ""


def test_revoked_hashed_and_other_kinds_of_keys(client: Client, start) -> None:
    sshd = start()
    client.known_hosts.write_text("@revoked * " + " ".join(sshd.public.split()[:2]) + "\n" + sshd.known_line() + "\n")
    assert "revoked" in reach_of(entry(sshd), client.options()).detail
    client.know(sshd)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", client.known_hosts], check=True, capture_output=True)
    assert "|1|" in client.known_hosts.read_text()
    with session_of(entry(sshd), client.options()):
        pass
    other = make_key(client.place / "other", "ecdsa").split()
    client.known_hosts.write_text(f"[{sshd.address}]:{sshd.port} {other[0]} {other[1]}\n")
    assert reach_of(entry(sshd), client.options()).outcome is ReachOutcome.HOST_KEY_CHANGED


def test_a_host_certificate_is_left_to_the_ssh_program(client: Client, start) -> None:
    sshd = start()
    authority = make_key(client.place / "ca").split()
    command = [
        "ssh-keygen",
        "-q",
        "-s",
        str(client.place / "ca"),
        "-I",
        "host",
        "-h",
        "-n",
        "127.0.0.1",
        f"{sshd.key}.pub",
    ]
    subprocess.run(command, check=True)
    sshd.options["HostCertificate"] = f"{sshd.key}-cert.pub"
    sshd.stop()
    sshd.start()
    client.known_hosts.write_text(f"@cert-authority [127.0.0.1]:{sshd.port} {authority[0]} {authority[1]}\n")
    with session_of(entry(sshd), client.options()) as session:
        assert "by the ssh program" in session.reach.detail and "certificate" in session.reach.detail
        assert session.probe("environment").outcome is Outcome.OK


def test_promise_2_the_ssh_config_is_obeyed(client: Client, start) -> None:
    jump, target = start("127.0.0.1"), start("127.0.0.2")
    (client.place / "more").mkdir()
    (client.place / "more" / "hosts").write_text(
        f"""
Host gpu*
  HostName {target.address}
  ProxyJump gate
Host gate
  HostName {jump.address}
  Port {jump.port}
"""
    )
    client.write(
        f"""
Include {client.place}/more/*
Match originalhost gpu1,gpu2
  Port {target.port}
Match user nobody-of-that-name
  Port 1
Host gpu* gate
  User root
"""
    )
    host = HostEntry("gpu1")
    resolved = ConfigReader(str(client.config)).resolve(host)
    answer = subprocess.run(
        ["ssh", "-F", client.config, "-G", "gpu1"], capture_output=True, text=True, check=True
    ).stdout
    for keyword, value in (("hostname", resolved.hostname), ("port", str(resolved.port)), ("user", resolved.user)):
        assert f"{keyword} {value}\n" in answer
    found = reach_all([HostEntry("gpu1"), HostEntry("gpu2")], client.options())
    for session in found.values():
        assert isinstance(session, Session), session
        assert "through gate" in session.reach.detail
        assert session.reach.address == target.address  # not the jump host's, at which its peers would look for it
    close_all(found.values())
    assert target.log.read_text().count("Accepted publickey") == 2
    assert jump.log.read_text().count("Accepted publickey") == 1  # one shared connection
    assert "Connection from 127.0.0.1" in target.log.read_text()


def test_jump_host_troubles_are_told_as_such(client: Client, start) -> None:
    jump, target = start("127.0.0.1"), start("127.0.0.2")
    gate = f"Host gate\n HostName {jump.address}\n Port {jump.port}\n User root\n"

    def through(text: str, host: HostEntry) -> Reach:
        client.write(f"{gate}Host 127.0.0.*\n ProxyJump gate\n{text}")
        return reach_of(host, client.options())

    closed = through("", HostEntry("127.0.0.9", "root", free_port("127.0.0.9")))
    assert closed.outcome is ReachOutcome.REFUSED and "jump host gate" in closed.evidence[0]
    client.write(f"{gate}Host nohost.invalid\n ProxyJump gate\n")
    unresolved = reach_of(HostEntry("nohost.invalid", "root"), client.options())
    assert unresolved.outcome is ReachOutcome.NAME_UNRESOLVED and "gate" in unresolved.evidence[0]
    jump.options["AllowTcpForwarding"] = "no"
    jump.stop()
    jump.start()
    forbidden = through("", entry(target))
    assert forbidden.outcome is ReachOutcome.TRANSPORT_FAILED and "forbids forwarding" in forbidden.detail
    jump.stop()
    down = through("", entry(target))
    assert down.outcome is ReachOutcome.REFUSED and down.detail.startswith("jump host gate:")
    client.write("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    assert "circle" in reach_of(HostEntry("a"), client.options()).detail


def children(word: str) -> list[int]:
    """The children of this process that have the word in their command line."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends while we look
            if word in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


def test_a_proxy_command_is_run_and_leaves_nothing(client: Client, start) -> None:
    sshd = start()
    connect = client.place / "connect.py"
    connect.write_text(
        "import socket, sys, threading, os\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    s.shutdown(1)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    client.write(f"Host 127.0.0.1\n ProxyCommand {sys.executable} {connect} %h %p\n")
    with session_of(entry(sshd), client.options()) as session:
        assert session.probe("environment").outcome is Outcome.OK
        assert children("connect.py")
    wait_for(lambda: not children("connect.py"), "the end of the command", soon_s())


def test_what_a_proxy_command_says_is_quoted_and_it_is_run_as_seldom_as_a_jump(client: Client, start) -> None:
    client.write("ProxyCommand sh -c 'echo cannot reach the bastion >&2; exit 7'\n")
    failed = reach_of(HostEntry("h1"), client.options())
    assert failed.outcome is ReachOutcome.TRANSPORT_FAILED and "ProxyCommand" in failed.detail
    assert "cannot reach the bastion" in failed.evidence and "exit status 7" in failed.evidence
    client.write("ProxyCommand no-such-program %h\n")
    assert "this machine cannot run the ProxyCommand" in reach_of(HostEntry("h1"), client.options()).detail
    bastion, target = start("127.0.0.1", MaxStartups="14:100:14"), start("0.0.0.0", MaxStartups="200:30:400")
    key = " ".join(target.public.split()[:2])
    client.known_hosts.write_text(f"{bastion.known_line()}\n[127.0.1.*]:{target.port} {key}\n")
    through = f"ssh -F {client.config} -p {bastion.port} -W %h:%p root@{bastion.address}"
    jump = f"ProxyJump root@{bastion.address}:{bastion.port}\n CertificateFile /none"  # left to the ssh program
    entries = [HostEntry(f"127.0.1.{number}", "root", target.port) for number in range(1, 25)]
    for way in (f"ProxyCommand {through}", jump):
        client.write(f"Host 127.0.1.*\n {way}\n")
        found = reach_all(entries, client.options(connect_s=30.0, start_s=60.0), 120)
        close_all(found.values())
        assert all(isinstance(item, Session) for item in found.values()), found
        assert 1 < concurrent_handshakes(bastion.log.read_text()) <= 8


@pytest.mark.parametrize("held", ["in a file", "by an agent"])
def test_certificates_of_the_user(client: Client, start, tmp_path: Path, held: str) -> None:
    """ssh offers the certificate beside a key, and then the key alone, where the certificate has run out or is unknown."""
    make_key(tmp_path / "ca")
    signing = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "ada", "-n", "root", str(client.place / "id.pub")]
    subprocess.run(signing, check=True)
    plain = start("127.0.0.1")
    trusting = start("127.0.0.2", AuthorizedKeysFile="none", TrustedUserCAKeys=str(tmp_path / "ca.pub"))
    with contextlib.ExitStack() as stack:
        if held == "by an agent":
            path = stack.enter_context(agent(client))
            (client.place / "id").unlink()
            client.base = client.base.replace("IdentityAgent none", f"IdentityAgent {path}")
            client.write("")
        for sshd in (plain, trusting):
            stack.enter_context(session_of(entry(sshd), client.options()))


def test_a_config_for_people_does_not_keep_the_ssh_program_from_its_command(client: Client, start) -> None:
    sshd = start()
    client.write("RemoteCommand tmux new\nRequestTTY force\nStdinNull yes\nCertificateFile /none\n")
    with session_of(entry(sshd), client.options()) as session:
        assert "by the ssh program" in session.reach.detail
        assert session.probe("environment").outcome is Outcome.OK


def test_promise_3_nothing_is_forwarded(client: Client, start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config asks for agent, X11 and port forwarding; the remote side sees none of it."""
    sshd = start()
    monkeypatch.setenv("DISPLAY", ":7")
    with agent(client) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        port = free_port()
        client.write(
            "ForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\n"
            f"RemoteForward {port} 127.0.0.1:9\nIdentityAgent {path}\n"
        )
        for transport in ("ssh", f"command=ssh -F {client.config} {{host}}"):
            # These names are not on the probe's allow-list: copy what the session got under ones that are.
            setup = "export NCCL_A=${SSH_AUTH_SOCK-none} NCCL_B=${DISPLAY-none} NCCL_C=${SSH_TTY-none}"
            with session_of(entry(sshd), client.options(transport=transport, env_setup=setup)) as session:
                seen = session.probe("environment").data["variables"]
                assert [seen[f"NCCL_{letter}"] for letter in "ABC"] == ["none"] * 3
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 1)
    log = sshd.log.read_text()
    assert "auth-agent-req" not in log and "x11-req" not in log and "tcpip-forward" not in log


@contextlib.contextmanager
def agent(client: Client) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as short:  # a socket's name has at most 107 bytes
        path = f"{short}/agent"
        process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
        try:
            add = ["ssh-add", "-q", str(client.place / "id")]
            there = {**os.environ, "SSH_AUTH_SOCK": path}
            # Its socket is there before it answers on it.
            wait_for(lambda: subprocess.run(add, env=there, capture_output=True).returncode == 0, "ssh-agent", 30)
            yield path
        finally:
            process.kill()
            process.wait()


def test_keys_come_from_an_agent_and_a_locked_key_is_explained(client: Client, start) -> None:
    sshd = start()
    private = client.place / "id"
    with agent(client) as path:
        private.rename(client.place / "elsewhere")
        client.base = client.base.replace("IdentityAgent none", f"IdentityAgent {path}\n  IdentitiesOnly yes")
        client.write("")
        found = reach_all([entry(sshd)], client.options())  # id.pub names the agent's key
        assert isinstance(found["127.0.0.1"], Session), found
        close_all(found.values())
    client.base = client.base.replace(f"IdentityAgent {path}", "IdentityAgent none")
    make_key(private, passphrase="secret")
    client.write("")
    reach = reach_of(entry(sshd), client.options())
    assert reach.outcome is ReachOutcome.AUTH_FAILED and any("ssh-add" in text for text in reach.evidence)


def test_promise_4_hostile_names_leave_no_marker(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory refuses such names; should one come from elsewhere, it is still no option and no shell word."""
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "marker"
    for name in (f"-oProxyCommand=touch {marker}", f"$(touch {marker})", f"`touch {marker}`", f"x;touch {marker}"):
        for transport in ("ssh", f"command=ssh -F {client.config} -- {{host}}", "command=echo {host}"):
            options = client.options(transport=transport, connect_s=2.0, start_s=2.0)
            (found,) = reach_all([HostEntry(name)], options).values()
            assert isinstance(found, Reach)
    assert not marker.exists()


@pytest.mark.alone
def test_ten_outcomes_in_one_run(client: Client, start, tmp_path: Path) -> None:
    """Promise 9's transport side: each host its own outcome, none disturbs another."""
    empty = tmp_path / "path"
    empty.mkdir()
    (empty / "sh").symlink_to("/bin/sh")
    old = tmp_path / "oldpath"
    old.mkdir()
    (old / "sh").symlink_to("/bin/sh")
    stub = old / "python3"
    stub.write_text(f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 6, 8)\nexec(sys.argv[-1])\n")
    stub.chmod(0o755)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "sh").symlink_to("/bin/sh")
    stub = cut / "python3"
    # speaks the protocol up to the middle of its first line
    stub.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "loader = int(sys.argv[-1].split('read(')[1].rstrip(')'))\n"
        "sys.stdin.buffer.read(loader)\n"
        "nonce = sys.stdin.buffer.readline().split()[1].decode()\n"
        "sys.stdout.write('NCCL-DOCTOR-' + nonce[::-1] + ' hello {\"proto')\n"
    )
    stub.chmod(0o755)
    hung = start("127.0.0.11")
    changed = start("127.0.0.12")
    hosts = {
        "ok": entry(start("127.0.0.13"), "ok"),
        "refused": HostEntry("refused", "root", free_port("127.0.0.14"), address="127.0.0.14"),
        "no-route": HostEntry("no-route", "root", 22, address="240.0.0.1"),
        "auth": entry(start("127.0.0.15", AuthorizedKeysFile="/nonexistent"), "auth"),
        "changed": entry(changed, "changed"),
        "time-out": entry(hung, "time-out"),
        "unresolved": HostEntry("unresolved", "root", 22, address="nohost.invalid"),
        "cut": entry(start("127.0.0.16", SetEnv=f"PATH={cut}"), "cut"),
        "no-python": entry(start("127.0.0.17", SetEnv=f"PATH={empty}"), "no-python"),
        "old-python": entry(start("127.0.0.18", SetEnv=f"PATH={old}"), "old-python"),
        "garbage": entry(start("127.0.0.19", ForceCommand="echo Maintenance until Monday; exit 1"), "garbage"),
    }
    changed.swap_key()
    assert hung.process is not None
    hung.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    try:
        found = reach_all(list(hosts.values()), client.options(connect_s=6.0, start_s=8.0), 40)
    finally:
        hung.process.send_signal(signal.SIGCONT)
    assert time.monotonic() - started < 60
    close_all(found.values())
    got = {name: (item.reach if isinstance(item, Session) else item) for name, item in found.items()}
    expected = {
        "ok": ReachOutcome.OK,
        "refused": ReachOutcome.REFUSED,
        "no-route": ReachOutcome.NO_ROUTE,
        "auth": ReachOutcome.AUTH_FAILED,
        "changed": ReachOutcome.HOST_KEY_CHANGED,
        "time-out": ReachOutcome.TIMED_OUT,
        "unresolved": ReachOutcome.NAME_UNRESOLVED,
        "cut": ReachOutcome.CUT_OFF,
        "no-python": ReachOutcome.NO_PYTHON,
        "old-python": ReachOutcome.PYTHON_TOO_OLD,
        "garbage": ReachOutcome.GARBAGE,
    }
    if got["no-route"].outcome is ReachOutcome.TIMED_OUT:
        del expected["no-route"]  # this machine drops what it cannot route
    assert {name: got[name].outcome for name in expected} == expected, got
    for name, reach in got.items():
        assert name == "ok" or (reach.detail and reach.evidence), (name, reach)
    assert "Maintenance until Monday" in got["garbage"].evidence[0]
    assert "3.6.8" in got["old-python"].detail


def test_other_services_and_closing_doors(client: Client) -> None:
    def serve(answer: bytes | None) -> HostEntry:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                if answer is None:
                    time.sleep(30)
                elif answer:
                    line.sendall(answer)
                    time.sleep(0.2)
                line.close()

        threading.Thread(target=run, daemon=True).start()
        return HostEntry("127.0.0.1", "root", listener.getsockname()[1])

    ftp = reach_of(serve(b"220 ftp ready\r\n"), client.options(connect_s=20.0))
    assert ftp.outcome is ReachOutcome.GARBAGE and "220 ftp ready" in ftp.evidence[0]
    silent = reach_of(serve(None), client.options(connect_s=1.0))
    assert silent.outcome is ReachOutcome.TIMED_OUT and "no SSH banner" in silent.detail
    closing = reach_of(serve(b""), client.options(connect_s=20.0))
    assert closing.outcome is ReachOutcome.CUT_OFF and "3 times" in closing.detail
    full = reach_of(serve(b"Exceeded MaxStartups\r\n"), client.options(connect_s=20.0))
    assert full.outcome is ReachOutcome.CUT_OFF and "MaxStartups" in full.evidence[0]


@pytest.mark.alone
def test_a_hung_sshd_after_login_is_cut_by_the_limits(client: Client, start) -> None:
    """Promise 8: the connection stands, then nothing answers any more."""
    sshd = start()
    (found,) = reach_all([entry(sshd)], client.options()).values()
    assert isinstance(found, Session)
    assert sshd.process is not None
    family = [psutil.Process(sshd.process.pid), *psutil.Process(sshd.process.pid).children(recursive=True)]
    for process in family:
        process.suspend()
    started = time.monotonic()
    try:
        result = found.probe("environment", limit_s=1.0)
        assert result.outcome is Outcome.TIMED_OUT and time.monotonic() - started < 60
        found.close()
        assert time.monotonic() - started < 90
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


CONTROLLER = """
import sys, time
from nccl_doctor.inventory import HostEntry
from nccl_doctor.transport.base import ConnectOptions, Deadline
from nccl_doctor.transport.fleet import connect_all
entries = [HostEntry(f"127.0.0.{{n + 1}}", "root", {port}) for n in range({hosts})]
found = connect_all(entries, ConnectOptions(transport={transport!r}, ssh_config={config!r}), Deadline(120))
print(*[session.hello.pid for session in found.values()], flush=True)
time.sleep(600)
"""


@pytest.mark.alone
@pytest.mark.parametrize("transport", ["ssh", "command"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_promises_6_and_7_nothing_survives(client: Client, start, how: signal.Signals, transport: str) -> None:
    """Connections through real sshds, 64 of them cut by SIGKILL; no agent and no child is left within 5 s."""
    sshd = start("0.0.0.0", MaxStartups="200:30:400")
    key = " ".join(sshd.public.split()[:2])
    client.known_hosts.write_text(f"[127.0.0.*]:{sshd.port} {key}\n")
    hosts = 64 if (transport, how) == ("ssh", signal.SIGKILL) else 16
    template = f"command=ssh -F {client.config} {{host}}" if transport == "command" else "ssh"
    code = CONTROLLER.format(port=sshd.port, hosts=hosts, transport=template, config=str(client.config))
    controller = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert controller.stdout is not None
    pids = [int(word) for word in controller.stdout.readline().split()]
    assert len(pids) == hosts
    local = [child.pid for child in psutil.Process(controller.pid).children(recursive=True)]
    assert bool(local) == (transport == "command")
    controller.send_signal(how)
    controller.wait(90)
    controller.stdout.close()
    end = time.monotonic() + soon_s()
    left = pids + local
    while left and time.monotonic() < end:
        left = [pid for pid in left if psutil.pid_exists(pid)]
        time.sleep(0.05)
    assert left == []


def concurrent_handshakes(log: str) -> int:
    """The most connections that were open and not yet logged in at one time, from an sshd's log."""
    waiting: set[str] = set()
    most = 0
    for line in log.splitlines():
        opened = re.search(r"Connection from \S+ port (\d+)", line)
        decided = re.search(r"Accepted publickey .* port (\d+)|Connection (?:closed|reset) .* port (\d+)", line)
        if opened:
            waiting.add(opened[1])
        elif decided:
            waiting.discard(decided[1] or decided[2])
        most = max(most, len(waiting))
    return most


def test_promise_19_fan_out_is_capped(client: Client, start) -> None:
    jump, target = start("127.0.0.1"), start("0.0.0.0", MaxStartups="200:30:400")
    key = " ".join(target.public.split()[:2])
    client.known_hosts.write_text(f"{jump.known_line()}\n[127.0.1.*]:{target.port} {key}\n")
    entries = [HostEntry(f"127.0.1.{number}", "root", target.port) for number in range(1, 41)]
    found = reach_all(entries, client.options(fan_out=6))
    assert all(isinstance(item, Session) for item in found.values()), found
    close_all(found.values())
    assert 1 < concurrent_handshakes(target.log.read_text()) <= 6
    size = len(target.log.read_text())
    client.write(f"Host gate\n HostName 127.0.0.1\n Port {jump.port}\n User root\nHost 127.0.1.*\n ProxyJump gate\n")
    found = reach_all(entries, client.options(fan_out=64))
    assert all(isinstance(item, Session) for item in found.values()), found
    close_all(found.values())
    assert 1 < concurrent_handshakes(target.log.read_text()[size:]) <= 8
    assert jump.log.read_text().count("Accepted publickey") == 1


@pytest.mark.parametrize("transport", ["ssh", "command"])
def test_promise_19_stops_after_repeated_authentication_failures(client: Client, start, transport: str) -> None:
    sshd = start("0.0.0.0", AuthorizedKeysFile="/nonexistent", MaxStartups="200:30:400")
    client.known_hosts.write_text(f"[127.0.0.*]:{sshd.port} {' '.join(sshd.public.split()[:2])}\n")
    entries = [HostEntry(f"127.0.0.{number}", "root", sshd.port) for number in range(1, 31)]
    template = f"command=ssh -F {client.config} {{host}}" if transport == "command" else "ssh"
    found = reach_all(entries, client.options(transport=template))
    outcomes = [item.outcome for item in found.values() if isinstance(item, Reach)]
    assert len(outcomes) == 30
    assert outcomes.count(ReachOutcome.AUTH_FAILED) == 3 and outcomes.count(ReachOutcome.NOT_TRIED) == 27
    refused = sshd.log.read_text().count("[preauth]")
    assert refused > 0
    asked = set(re.findall(r"Failed publickey .* port (\d+)", sshd.log.read_text()))
    assert len(asked) <= 3


def test_a_connection_that_breaks_in_the_middle_is_cut_off(client: Client, start) -> None:
    sshd = start()
    (found,) = reach_all([entry(sshd)], client.options()).values()
    assert isinstance(found, Session) and sshd.process is not None
    children = psutil.Process(sshd.process.pid).children(recursive=True)
    for process in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    result = found.probe("environment")
    assert result.outcome is Outcome.FAILED and "connection lost" in result.detail
    assert found.reach.outcome is ReachOutcome.CUT_OFF and found.reach.evidence
    found.close()


def test_missing_program_and_failing_program(client: Client) -> None:
    missing = reach_of(HostEntry("x"), client.options(transport="command=no-such-program {host}"))
    assert missing.outcome is ReachOutcome.TRANSPORT_FAILED and "no-such-program" in missing.detail
    failing = reach_of(
        HostEntry("x"),
        client.options(transport="command=sh -c 'echo no such node {host} >&2; exit 4' {host} {command}"),
    )
    assert failing.outcome is ReachOutcome.TRANSPORT_FAILED and "no such node x" in failing.evidence[-1]


def test_promise_5_a_host_that_cannot_be_written_is_no_obstacle(client: Client) -> None:
    """The agent runs with every file system read-only, and its probe answers."""
    remount = "mount --make-rprivate / && mount -o remount,bind,ro / && ! touch /tmp/x /root/x 2>/dev/null"
    template = f"command=unshare --mount sh -c '{remount} && exec sh -c \"$1\"' {{host}} {{command}}"
    if subprocess.run(["unshare", "--mount", "sh", "-c", remount], check=False, capture_output=True).returncode:
        pytest.skip("this machine has more than one writable file system, or lends no mount namespaces")
    with session_of(HostEntry("readonly"), client.options(transport=template)) as session:
        assert session.probe("environment").outcome is Outcome.OK
