"""What ``check`` promises of itself, seen from outside: nothing survives, nothing is written, nothing is weakened."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import machine
from .conftest import CleanRun
from .lab import Lab, Process, missing_requirements
from .machine import soon_s, wait_for
from .test_check import FAULTY, causes, check, text_of

CHECK = ["nccl-doctor", "check", "--format", "json", "--skip", "collectives", "--quick"]


def nothing_is_left(lab: Lab, *hosts: str) -> None:
    """Within 5 s (:func:`soon_s`) nothing runs on these hosts beyond the lab's own processes."""
    end = time.monotonic() + soon_s()
    left = {name: lab.settled_processes(name, end - time.monotonic()) for name in hosts}
    assert not any(left.values()), f"left running: {left}"


def agents(lab: Lab, host: str) -> list[Process]:
    """The agent's processes on a host: Pythons that were started over ssh."""
    return [process for process in lab.processes(host) if "python" in (process.arguments or ("",))[0]]


def all_have_agents(lab: Lab) -> bool:
    """Whether every host has an agent."""
    return all(agents(lab, name) for name in lab.hostnames)


@contextlib.contextmanager
def in_the_middle(lab: Lab, *program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A check in the middle of its work: every host has an agent, and connects to gpu04 wait for 3 s."""
    words = [*(program or CHECK[:1]), *CHECK[1:], "--hosts", str(lab.hostfile)]
    with lab.fault("port-dropped", "gpu04"):
        process = lab.popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: all_have_agents(lab), "agents on all hosts", 60)
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def running(lab: Lab) -> Iterator[subprocess.Popen[bytes]]:
    """Such a check of the program as it is."""
    with in_the_middle(lab) as process:
        yield process


# -- promises 6 and 7: nothing survives


@pytest.mark.alone
@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda how: how.name
)
def test_nothing_survives_the_end_of_the_controller(
    lab: Lab, running: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    running.send_signal(how)
    assert running.wait(30) != 0
    nothing_is_left(lab, *lab.hostnames, "controller")


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_no_rank_survives_the_end_of_the_controller(lab: Lab, how: signal.Signals) -> None:
    with lab.fault("port-dropped", "gpu03"):  # the ranks wait for each other
        process = lab.popen(
            ["nccl-doctor", "check", "--hosts", str(lab.hostfile), "--stage", "collectives", "--format", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: all(ranks(lab, name) for name in lab.hostnames), "ranks on all hosts", 60)
            process.send_signal(how)
            told, _ = process.communicate(timeout=90)
            assert process.returncode != 0
            if how is signal.SIGINT:  # it was us who ended the ranks: nobody is blamed
                assert json.loads(told)["findings"] == []
        finally:
            process.kill()
            process.wait()
        nothing_is_left(lab, *lab.hostnames)


def ranks(lab: Lab, host: str) -> list[Process]:
    """The processes on a host that have torch loaded."""
    found = []
    for process in agents(lab, host):
        with contextlib.suppress(OSError):
            if "libtorch" in Path(f"/proc/{process.pid}/maps").read_text():
                found.append(process)
    return found


@pytest.mark.alone
def test_a_stopped_session_takes_its_agent_along(lab: Lab, running: subprocess.Popen[bytes]) -> None:
    for process in lab.processes("gpu03"):
        if process.arguments and process.arguments[0].startswith("sshd"):
            os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not agents(lab, "gpu03"), "the agent to end with its session", soon_s())
    assert running.wait(30) != 0


# The 45 s that an agent bears silence (test_session.py knows them) made short, and the pings in time for them.
IMPATIENT = """
import json, sys, zlib
from nccl_doctor import cli
from nccl_doctor.transport import launch, session
sources = json.loads(zlib.decompress(launch.pack()))
before, after = "SILENCE_S = 45.0", "SILENCE_S = 8.0"
runtime = sources["nccl_doctor.agent.runtime"]
assert before in runtime[0]
runtime[0] = runtime[0].replace(before, after)
packed = zlib.compress(json.dumps(sources).encode())
launch.pack = lambda: packed
session.PING_S = session.IDLE_PING_S = 1.0
cli.main()
"""


def test_a_silent_cut_ends_the_agents(lab: Lab) -> None:
    with in_the_middle(lab, "python3", "-c", IMPATIENT) as process, lab.fault("host-down", "controller"):
        process.kill()
        wait_for(lambda: not any(agents(lab, name) for name in lab.hostnames), "the end of the agents", 40)
    for name in lab.hostnames:  # the sessions' sshds find out in their own time
        machine.end(found.pid for found in lab.processes(name))


@pytest.mark.alone
def test_a_run_that_ends_by_itself_leaves_nothing(clean_run: CleanRun) -> None:
    assert not any(clean_run.left.values()), clean_run.left


# -- promise 9: partial failure is reported completely


@pytest.fixture(scope="module")
def ten_hosts() -> Iterator[Lab]:
    """Ten hosts of which eight are out of order, each in its own way."""
    missing = missing_requirements()
    if missing:
        pytest.skip("no lab can stand here: " + "; ".join(missing))
    with Lab(hosts=10) as lab:
        for name, (fault, _) in OUTCOMES.items():
            if fault:
                lab.apply_fault(fault, name)
        yield lab


OUTCOMES = {
    "gpu01": ("", ""),
    "gpu02": ("sshd-down", "host.ssh-refused"),
    "gpu03": ("host-down", "host.no-route"),
    "gpu04": ("authentication-fails", "host.ssh-auth"),
    "gpu05": ("host-key-changed", "host.ssh-key-changed"),
    "gpu06": ("sshd-hung", "host.ssh-timeout"),
    "gpu07": ("answer-cut", "host.cut-off"),
    "gpu08": ("no-python", "host.no-python"),
    "gpu09": ("", ""),
    "gpu10": ("garbage-answer", "host.unexpected-output"),
}


@pytest.mark.lab
def test_ten_hosts_with_ten_outcomes(ten_hosts: Lab) -> None:
    code, report = check(ten_hosts, "--quick")
    assert code == FAULTY
    assert report["reached"] == ["gpu01", "gpu09"]
    told = {host: item["id"] for item in report["findings"] for host in item["hosts"] if item["id"].startswith("host.")}
    assert told == {name: id for name, (_, id) in OUTCOMES.items() if id}
    unknown = {host for gap in report["unknown"] if gap["what"] == "every stage" for host in gap["hosts"]}
    assert unknown == {name for name, (_, id) in OUTCOMES.items() if id}  # and none of them is called healthy


@pytest.mark.lab
@pytest.mark.alone
def test_the_deadline_holds_whatever_hangs(ten_hosts: Lab) -> None:
    started = time.monotonic()
    code, report = check(ten_hosts, "--connect-timeout", "100", "--deadline", "4", timeout=90)
    assert time.monotonic() - started < 60
    assert code == FAULTY and len(report["hosts"]) == 10


# -- promise 1: the host-key policy


def test_a_changed_key_stops_that_host_only_and_changes_nothing(lab: Lab) -> None:
    before = lab.known_hosts.read_text()
    host = lab.host("gpu02")
    old = _fingerprint(host.directory / "host_key.pub")
    with lab.fault("host-key-changed"):
        new = _fingerprint(host.directory / "host_key.pub")
        log = host.directory / "sshd.log"
        already = len(log.read_text())
        _, report = check(lab, "--quick")
        said = log.read_text()[already:]
    (found,) = causes(report, "fail")
    assert old in text_of(found) and new in text_of(found)
    assert report["reached"] == ["gpu01", "gpu03", "gpu04"]
    assert "Accepted" not in said and "session" not in said  # no login, and so no command
    assert lab.known_hosts.read_text() == before


def test_an_unknown_key_is_not_learnt(lab: Lab) -> None:
    with lab.fault("host-key-unknown"):
        before = lab.known_hosts.read_text()
        _, report = check(lab, "--quick")
        assert lab.known_hosts.read_text() == before
    assert "gpu02" not in report["reached"]


def _fingerprint(public_key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", str(public_key)], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


# -- promise 2: the user's ssh config


def test_proxy_jump_include_and_match_are_obeyed(lab: Lab) -> None:
    config = lab.ssh_config.read_text()
    part = lab.home / ".ssh" / "inner.conf"
    part.write_text(f"Host inner\n  HostName {lab.address('gpu03')}\n  HostKeyAlias gpu03\n  User root\n")
    try:
        lab.ssh_config.write_text(f"Include inner.conf\nMatch originalhost inner\n  ProxyJump gpu01\n{config}")
        assert lab.run(["ssh", "-o", "BatchMode=yes", "inner", "hostname"]).stdout == "gpu03\n"
        log = lab.host("gpu03").directory / "sshd.log"
        already = len(log.read_text())
        done = lab.run([*CHECK, "-H", "inner", "--skip", "connectivity"])
        report = json.loads(done.stdout)
        assert report["reached"] == ["inner"], report
        accepted = [line for line in log.read_text()[already:].splitlines() if "Accepted publickey" in line]
        assert accepted and all(f"from {lab.address('gpu01')} " in line for line in accepted)
    finally:
        lab.ssh_config.write_text(config)
        part.unlink()


# -- promise 3: nothing is forwarded


def test_no_agent_and_no_display_reach_the_hosts(lab: Lab) -> None:
    config = lab.ssh_config.read_text()
    socket_path = lab.home / "agent.sock"
    agent = lab.popen(["ssh-agent", "-D", "-a", str(socket_path)], stdout=subprocess.DEVNULL)
    try:
        wait_for(socket_path.exists, "ssh-agent", 60)
        lab.ssh_config.write_text(f"ForwardAgent yes\nForwardX11 yes\nForwardX11Trusted yes\n{config}")
        with lab.fault("port-dropped", "gpu04"):
            process = lab.popen(
                [*CHECK, "--hosts", str(lab.hostfile)],
                env={"SSH_AUTH_SOCK": str(socket_path), "DISPLAY": "localhost:10.0"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wait_for(lambda: all_have_agents(lab), "agents on all hosts", 60)
            seen = []
            for found in [found for name in lab.hostnames for found in agents(lab, name)]:
                with contextlib.suppress(OSError):  # what an agent has started ends while we look
                    seen.append(Path(f"/proc/{found.pid}/environ").read_bytes())
            process.wait(60)
    finally:
        agent.kill()
        agent.wait()
        socket_path.unlink(missing_ok=True)
        lab.ssh_config.write_text(config)
    assert len(seen) >= len(lab.hostnames)
    assert not [environment for environment in seen if b"SSH_AUTH_SOCK" in environment or b"DISPLAY" in environment]


# -- promise 4: a host name is never an option or a shell word


@pytest.mark.parametrize("name", ["-oProxyCommand=touch {marker}", "$(touch {marker})", "gpu01;touch${{IFS}}{marker}"])
def test_a_hostile_host_name_runs_nothing(lab: Lab, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    hostfile = tmp_path / "hostfile"
    hostfile.write_text(f"gpu01\n{name.format(marker=marker)}\n")
    done = lab.run([*CHECK, "--hosts", str(hostfile)])
    assert not marker.exists()
    assert done.returncode == 2 and "hostfile" in done.stderr and ":2" in done.stderr


# -- promise 5: reads only


@pytest.mark.alone
def test_nothing_is_written_on_the_hosts(clean_run: CleanRun) -> None:
    assert clean_run.files_after == clean_run.files_before


# -- promise 12: the same facts give the same report


def test_a_saved_bundle_gives_the_same_report(lab: Lab, tmp_path: Path) -> None:
    bundle = tmp_path / "facts.ndb"
    shuffled = tmp_path / "hostfile"
    shuffled.write_text("gpu03\ngpu01\n# again\ngpu04\ngpu02\n")
    with lab.fault("own-name-loopback"):
        live = lab.run([*CHECK, "--hosts", str(shuffled), "--master", "gpu01", "--save", str(bundle)])
    again = [
        lab.run(["nccl-doctor", "check", "--from", str(bundle), "--format", "json"], env=env)
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C", "TZ": "Asia/Tokyo"})
    ]
    assert live.returncode == FAULTY, live.stderr
    assert [(done.returncode, done.stdout) for done in again] == [(live.returncode, live.stdout)] * 2


# -- promise 17: secrets stay where they are


def test_planted_secrets_are_in_no_output(lab: Lab, tmp_path: Path) -> None:
    canary = "CANARY7f3a91"
    bundle = tmp_path / "facts.ndb"
    lab.set_env(
        "gpu02",
        AWS_SECRET_ACCESS_KEY=f"{canary}aws",
        WANDB_API_KEY=f"{canary}wandb",
        DATABASE_URL=f"postgres://me:{canary}@db/x",
        NCCL_NET_PLUGIN=f"--token={canary}plugin",
        GLOO_SOCKET_IFNAME=f"eth0 --token={canary}gloo",
        HF_TOKEN=f"hf_{canary}",
    )
    (lab.host("gpu02").etc / "nccl.conf").write_text(f"NCCL_NET_PLUGIN=x --password {canary}conf\n")
    holder = ["python3", "-c", "import socket, time\ns = socket.create_server(('', 29500))\ntime.sleep(600)"]
    pid = lab.spawn("gpu01", [*holder, "--api-key", f"{canary}argv", f"--password={canary}argv"])
    try:
        wait_for(lambda: ":733C " in lab.on("gpu01", ["cat", "/proc/net/tcp"]).stdout, "the port to be taken", 60)
        done = lab.run([*CHECK, "--hosts", str(lab.hostfile), "--save", str(bundle), "--verbose"])
        console = lab.run(["nccl-doctor", "check", "--from", str(bundle), "--verbose"])
    finally:
        os.kill(pid, signal.SIGKILL)
        names = (
            "AWS_SECRET_ACCESS_KEY",
            "WANDB_API_KEY",
            "DATABASE_URL",
            "NCCL_NET_PLUGIN",
            "GLOO_SOCKET_IFNAME",
            "HF_TOKEN",
        )
        lab.set_env("gpu02", **dict.fromkeys(names))
        (lab.host("gpu02").etc / "nccl.conf").unlink()
    assert done.returncode == FAULTY, done.stderr
    for output in (
        done.stdout,
        done.stderr,
        console.stdout,
        console.stderr,
        gzip.decompress(bundle.read_bytes()).decode(),
    ):
        assert canary not in output
