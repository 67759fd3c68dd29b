"""The lab itself: each fault does what it says, seen with plain tools, and is undone completely."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import faults, machine
from .lab import PLACE, PROJECT, Lab, standing
from .machine import NETNS

CONNECT = """
import errno, socket, sys
try:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))
    connection.settimeout(1)
    print("open", connection.getsockname()[0])
except socket.timeout:
    print("timeout")
except socket.gaierror:
    print("unresolved")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


DROPPED_S = 0.7  # what is dropped never comes; what is answered may come late on a busy machine


def connect(lab: Lab, source: str, target: str, port: int, seconds: float = 10.0) -> str:
    """How a TCP connection from one host to another goes: open, timeout, unresolved or the name of an errno."""
    done = lab.on(source, [sys.executable, "-I", "-S", "-c", CONNECT, target, str(port), str(seconds)], check=True)
    return done.stdout.split()[0]


def ssh(lab: Lab, host: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A command over ssh, as the controller, without questions."""
    words = ["ssh", "-o", "BatchMode=yes", *options, "-o", "ConnectTimeout=30", host, command]  # the first one holds
    return lab.run(words, timeout=60)


def ping(lab: Lab, source: str, target: str, size: int = 56, count: int = 1, seconds: float = 10.0) -> int:
    """How many of ``count`` pings with the don't-fragment bit came back, the last one within ``seconds``."""
    words = f"ping -n -q -M do -s {size} -c {count} -i 0.005 -W {seconds} {target}".split()
    printed = lab.on(source, words).stdout
    return int(printed.split(" received")[0].split()[-1])


# -- the clean lab


def test_hosts_are_hosts_of_their_own(lab: Lab) -> None:
    seen = {}
    for name in lab.hostnames:
        done = ssh(lab, name, "hostname; hostname -i; cat /proc/sys/kernel/random/boot_id /etc/machine-id; echo $HOME")
        assert done.returncode == 0, done.stderr
        seen[name] = done.stdout.split()
        assert seen[name][:2] == [name, lab.address(name)]
    for place in range(2, 5):
        assert len({values[place] for values in seen.values()}) == len(seen)  # boot id, machine id, home: all different


def test_every_pair_of_hosts_talks(lab: Lab) -> None:
    for source in lab.hostnames:
        for target in lab.hostnames:
            assert connect(lab, source, target, 22) == "open"
    assert ping(lab, "gpu01", "gpu02", size=1472) == 1


def test_python_on_a_host_is_the_one_asked_for(lab: Lab) -> None:
    done = ssh(lab, "gpu01", "python3 -c 'import sys; print(sys.executable)'")
    assert Path(done.stdout.strip()).samefile(sys.executable)


def test_hosts_have_their_own_files(lab: Lab) -> None:
    lab.on("gpu01", ["sh", "-c", "touch /tmp/mine /dev/shm/mine /etc/mine $HOME/mine"], check=True)
    for place in ("/tmp", "/dev/shm", "/etc", str(lab.host("gpu01").home)):
        assert lab.on("gpu02", ["test", "-e", f"{place}/mine"]).returncode == 1
        assert place.startswith(str(lab.directory)) or not Path(place, "mine").exists()
    lab.on("gpu01", ["sh", "-c", "rm /tmp/mine /dev/shm/mine /etc/mine $HOME/mine"], check=True)


def test_controller_sees_its_home_both_ways(lab: Lab) -> None:
    done = lab.run([sys.executable, "-c", "import os, pwd; print(os.path.expanduser('~'), pwd.getpwuid(0).pw_dir)"])
    assert done.stdout.split() == [str(lab.home)] * 2


def test_the_caller_s_environment_stays_outside(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    printed = lab.run(["env"], env={"WANTED": "yes"}).stdout
    assert "NCCL_DEBUG" not in printed and "SSH_AUTH_SOCK" not in printed and "WANTED=yes" in printed


def test_set_env_reaches_logins(lab: Lab) -> None:
    lab.set_env("gpu03", NCCL_DEBUG="INFO", NCCL_TOPO_FILE="/a path/with spaces")
    assert ssh(lab, "gpu03", "echo $NCCL_DEBUG:$NCCL_TOPO_FILE").stdout.strip() == "INFO:/a path/with spaces"
    assert ssh(lab, "gpu01", "echo $NCCL_DEBUG").stdout.strip() == ""
    lab.set_env("gpu03", NCCL_DEBUG=None, NCCL_TOPO_FILE=None)
    assert ssh(lab, "gpu03", "echo $NCCL_DEBUG").stdout.strip() == ""


def test_processes_shows_what_runs_on_a_host_only(lab: Lab) -> None:
    assert lab.processes("gpu01") == []
    pid = lab.spawn("gpu01", ["sleep", "4711"])
    assert [(process.pid, process.arguments) for process in lab.processes("gpu01")] == [(pid, ("sleep", "4711"))]
    assert lab.processes("gpu02") == []
    os.kill(pid, signal.SIGKILL)
    assert lab.settled_processes("gpu01") == []


def test_nccl_doctor_of_this_tree_runs_in_the_lab(lab: Lab) -> None:
    done = lab.run(["nccl-doctor", "--version"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nccl-doctor ")


# -- life and death


def test_a_killed_owner_leaves_nothing(lab: Lab) -> None:
    script = (
        "import os, sys\nfrom tests.lab.lab import Lab\n"
        "with Lab(hosts=1) as lab:\n    print(lab.prefix, flush=True)\n    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert owner.stdout is not None
    prefix = owner.stdout.readline().strip()
    assert prefix in standing() and prefix != lab.prefix
    owner.kill()
    owner.communicate()
    machine.wait_for(
        lambda: prefix not in standing() and not list(NETNS.glob(f"{prefix}-*")), "the reaper to remove the lab", 60
    )


def test_a_standing_lab_by_hand(lab: Lab) -> None:
    prefix = f"hand{os.getpid() % 10000}"

    def by_hand(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.lab", *words], cwd=PROJECT, capture_output=True, text=True, timeout=60
        )

    try:
        built = by_hand("up", "--prefix", prefix, "--hosts", "2")
        assert built.returncode == 0, built.stderr
        again = by_hand("up", "--prefix", prefix)
        assert again.returncode == 2 and "stands already" in again.stderr
        standing_lab = Lab.attach(prefix)
        assert str(standing_lab.hostfile) in built.stdout and f"down --prefix {prefix}" in built.stdout
        runner = str(standing_lab.directory / "lab-run")
        done = subprocess.run([runner, "ssh", "gpu02", "hostname"], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "gpu02", done.stderr
        assert by_hand("fault", "port-taken", "gpu01", "port=4242", "--prefix", prefix).returncode == 0
        assert connect(standing_lab, "gpu02", "gpu01", 4242) == "open"
        assert by_hand("clear", "--prefix", prefix).stdout.strip() == "undone: port-taken"
        assert connect(standing_lab, "gpu02", "gpu01", 4242) == "ECONNREFUSED"
        wrong = by_hand("fault", "no-such-thing", "gpu01", "--prefix", prefix)
        assert wrong.returncode == 2 and "port-taken" in wrong.stderr
    finally:
        by_hand("down", "--prefix", prefix)
    assert prefix not in standing() and not list(NETNS.glob(f"{prefix}-*"))


@pytest.mark.lab
@pytest.mark.parametrize("owner", [[1, 1], [2, 2]], ids=["the same", "another, which has taken the name since"])
def test_a_reaper_removes_what_its_own_owner_left(owner: list[int]) -> None:
    prefix = f"reap{os.getpid() % 10000}"
    directory = PLACE / f"nccl-doctor-lab-{prefix}"
    directory.mkdir(mode=0o700)
    try:
        (directory / "lab.json").write_text(json.dumps({"owner": [1, 1]}))
        words = [sys.executable, "-m", "tests.lab", "reap", "--prefix", prefix]
        with subprocess.Popen(words, cwd=PROJECT, stdin=subprocess.PIPE) as reaper:
            waits = Path(f"/proc/{reaper.pid}/wchan")
            machine.wait_for(lambda: "pipe_read" in waits.read_text(), "the reaper to wait", 60)
            (directory / "lab.json").write_text(json.dumps({"owner": owner}))
            reaper.communicate()
        assert directory.exists() == (owner != [1, 1])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.lab
def test_a_reader_of_the_faults_may_leave() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        words = [sys.executable, "-m", "tests.lab", "faults"]
        done = subprocess.run(words, cwd=PROJECT, stdout=closed, stderr=subprocess.PIPE, timeout=60)
    assert not done.stderr


# -- the way in


def test_sshd_down(lab: Lab) -> None:
    with lab.fault("sshd-down"):
        assert connect(lab, "controller", "gpu02", 22) == "ECONNREFUSED"
        assert connect(lab, "controller", "gpu03", 22) == "open"
    assert ssh(lab, "gpu02", "true").returncode == 0


def test_sshd_hung(lab: Lab) -> None:
    with lab.fault("sshd-hung"):
        assert connect(lab, "controller", "gpu02", 22) == "open"
        done = ssh(lab, "gpu02", "true", "-o", "ConnectTimeout=2")
        assert done.returncode == 255 and "timed out during banner exchange" in done.stderr
    assert ssh(lab, "gpu02", "true").returncode == 0


def test_host_key_changed(lab: Lab) -> None:
    with lab.fault("host-key-changed"):
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in ssh(lab, "gpu02", "true").stderr
    assert ssh(lab, "gpu02", "true").returncode == 0


def test_host_key_unknown(lab: Lab) -> None:
    with lab.fault("host-key-unknown"):
        done = ssh(lab, "gpu02", "true", "-o", "StrictHostKeyChecking=yes")
        assert "No ED25519 host key is known for gpu02" in done.stderr
    assert ssh(lab, "gpu02", "true").returncode == 0


def test_authentication_fails(lab: Lab) -> None:
    with lab.fault("authentication-fails"):
        assert "Permission denied (publickey)" in ssh(lab, "gpu02", "true").stderr
    assert ssh(lab, "gpu02", "true").returncode == 0


def test_ssh_filtered(lab: Lab) -> None:
    with lab.fault("ssh-filtered"):
        assert connect(lab, "controller", "gpu02", 22, DROPPED_S) == "timeout"
    assert connect(lab, "controller", "gpu02", 22) == "open"


def test_host_down(lab: Lab) -> None:
    with lab.fault("host-down"):
        assert connect(lab, "gpu01", "gpu02", 22, seconds=1) in ("EHOSTUNREACH", "timeout")
    assert connect(lab, "gpu01", "gpu02", 22) == "open"


def test_host_vanishes_in_the_middle(lab: Lab) -> None:
    carrier = ["cat", "/sys/class/net/eth0/carrier"]
    begun = time.monotonic()
    with lab.fault("host-vanishes", after_s=0.8):
        machine.wait_for(lambda: lab.on("gpu02", carrier).stdout == "0\n", "the cable to be pulled")
        assert time.monotonic() - begun > 0.8
        assert ping(lab, "gpu01", "gpu02", seconds=1) == 0
    assert ping(lab, "gpu01", "gpu02") == 1


def test_name_unknown(lab: Lab) -> None:
    with lab.fault("name-unknown"):
        assert "Could not resolve hostname gpu02" in ssh(lab, "gpu02", "true").stderr
        assert ssh(lab, "gpu03", "getent hosts gpu02").returncode == 0
    assert ssh(lab, "gpu02", "true").returncode == 0


# -- what answers


def test_no_python(lab: Lab) -> None:
    with lab.fault("no-python"):
        for command in ("python3 -V", "python -V", "/usr/bin/python3 -V", f"{sys.executable} -V"):
            done = ssh(lab, "gpu02", command)
            assert done.returncode == 127, (command, done)
        assert ssh(lab, "gpu02", "hostname; ls /tmp; grep root /etc/passwd").returncode == 0
    assert ssh(lab, "gpu02", "python3 -V").returncode == 0
    assert Path(sys.executable).exists()


def test_old_python(lab: Lab) -> None:
    with lab.fault("old-python"):
        assert ssh(lab, "gpu02", "python3 -V").stdout.strip() == "Python 3.6.8"
        program = "import sys, json; print(json.dumps(list(sys.version_info[:2])), sys.version_info >= (3, 8))"
        assert ssh(lab, "gpu02", f"python3 -u -c '{program}' x").stdout.strip() == "[3, 6] False"
        assert ssh(lab, "gpu02", "echo 'import sys; print(sys.version_info.minor)' | python3 -").stdout.strip() == "6"
        assert "SyntaxError" in ssh(lab, "gpu02", "python3 -c 'if (n := 3): print(n)'").stderr
    assert ssh(lab, "gpu02", "python3 -c 'if (n := 3): print(n)'").stdout.strip() == "3"


def test_login_noise(lab: Lab) -> None:
    with lab.fault("login-noise"):
        done = ssh(lab, "gpu02", "echo ready")
        assert done.stdout.splitlines()[-1] == "ready" and "Welcome to gpu02" in done.stdout
    assert ssh(lab, "gpu02", "echo ready").stdout == "ready\n"


def test_garbage_answer(lab: Lab) -> None:
    with lab.fault("garbage-answer"):
        done = ssh(lab, "gpu02", "python3 -c 'print(1)'")
        assert done.returncode == 0 and done.stdout.startswith("\x1b]0;owned") and len(done.stdout) > 50_000
    assert ssh(lab, "gpu02", "python3 -c 'print(1)'").stdout == "1\n"


def test_answer_cut(lab: Lab) -> None:
    with lab.fault("answer-cut", after_bytes=600):
        done = ssh(lab, "gpu02", "python3 -c 'for i in range(1000): print(i)'; echo not reached")
        assert done.returncode == 255 and len(done.stdout) == 600
        assert ssh(lab, "gpu02", "python3 -c 'print(1)'").stdout == "1\n"  # shorter answers come through whole
    assert ssh(lab, "gpu02", "python3 -c 'for i in range(1000): print(i)'").stdout.endswith("\n999\n")


def test_answer_drips(lab: Lab) -> None:
    with lab.fault("answer-drips", bytes_per_s=20):
        started = time.monotonic()
        assert ssh(lab, "gpu02", "python3 -c 'print(1234567890123456789)'").stdout == "1234567890123456789\n"
        assert time.monotonic() - started > 0.9


# -- the network


@pytest.fixture
def listening(lab: Lab) -> Lab:
    """A listener on port 4000 of gpu02 and gpu03, for the life of one test."""
    for name in ("gpu02", "gpu03"):
        lab.apply_fault("port-taken", name, port=4000)
    return lab


def test_port_dropped(listening: Lab) -> None:
    with listening.fault("port-dropped"):
        assert connect(listening, "gpu01", "gpu02", 4000, DROPPED_S) == "timeout"
        assert connect(listening, "gpu01", "gpu02", 22) == "open"
        assert connect(listening, "gpu02", "gpu03", 4000) == "open"
        assert connect(listening, "gpu02", "gpu02", 4000) == "open"
        assert ping(listening, "gpu01", "gpu02") == 1
    assert connect(listening, "gpu01", "gpu02", 4000) == "open"


def test_port_dropped_outward_too(listening: Lab) -> None:
    with listening.fault("port-dropped", outward=True):
        assert connect(listening, "gpu02", "gpu03", 4000, DROPPED_S) == "timeout"
        assert connect(listening, "gpu01", "gpu03", 4000) == "open"
        assert ssh(listening, "gpu02", "true").returncode == 0


def test_outbound_dropped(listening: Lab) -> None:
    with listening.fault("outbound-dropped"):
        assert connect(listening, "gpu02", "gpu03", 4000, DROPPED_S) == "timeout"
        assert connect(listening, "gpu01", "gpu02", 4000) == "open"
    assert connect(listening, "gpu02", "gpu03", 4000) == "open"


@pytest.mark.parametrize(("reply", "seen"), [("icmp", "EHOSTUNREACH"), ("reset", "ECONNREFUSED")])
def test_port_rejected(listening: Lab, reply: str, seen: str) -> None:
    with listening.fault("port-rejected", reply=reply):
        assert connect(listening, "gpu01", "gpu02", 4000) == seen
        assert connect(listening, "gpu01", "gpu02", 22) == "open"
    assert connect(listening, "gpu01", "gpu02", 4000) == "open"


def test_master_port_dropped(listening: Lab) -> None:
    with listening.fault("master-port-dropped"):
        assert connect(listening, "gpu01", "gpu02", 29500, DROPPED_S) == "timeout"
        assert connect(listening, "gpu01", "gpu02", 4000) == "open"
    assert connect(listening, "gpu01", "gpu02", 29500) == "ECONNREFUSED"


def test_port_taken(lab: Lab) -> None:
    with lab.fault("port-taken", "gpu01"):
        assert connect(lab, "gpu02", "gpu01", 29500) == "open"
        assert connect(lab, "gpu01", "gpu02", 29500) == "ECONNREFUSED"
    assert connect(lab, "gpu02", "gpu01", 29500) == "ECONNREFUSED"


def test_ping_dropped(lab: Lab) -> None:
    with lab.fault("ping-dropped"):
        assert ping(lab, "gpu01", "gpu02", seconds=1) == 0
        assert connect(lab, "gpu01", "gpu02", 22) == "open"
    assert ping(lab, "gpu01", "gpu02") == 1


def test_mtu_black_hole(lab: Lab) -> None:
    with lab.fault("mtu-black-hole", largest=1400):
        assert ping(lab, "gpu01", "gpu02", size=1372) == 1  # 1,400 bytes with the 28 bytes of IP and ICMP headers
        assert ping(lab, "gpu01", "gpu02", size=1373, seconds=1) == 0
        assert ping(lab, "gpu02", "gpu01", size=1373, seconds=1) == 0
        assert ping(lab, "gpu01", "gpu03", size=1472) == 1
        assert ping(lab, "controller", "gpu02", size=1472) == 1
        assert len(ssh(lab, "gpu02", "head -c 200000 /dev/zero | tr '\\0' x").stdout) == 200_000
    assert ping(lab, "gpu01", "gpu02", size=1472) == 1


def test_mtu_mismatch(lab: Lab) -> None:
    with lab.fault("mtu-mismatch"):
        assert lab.on("gpu02", ["cat", "/sys/class/net/eth0/mtu"]).stdout.strip() == "9000"
        assert lab.on("gpu01", ["cat", "/sys/class/net/eth0/mtu"]).stdout.strip() == "1500"
        assert ping(lab, "gpu02", "gpu01", size=2000, seconds=1) == 0
    assert lab.on("gpu02", ["cat", "/sys/class/net/eth0/mtu"]).stdout.strip() == "1500"


def _seconds_for(lab: Lab, host: str, size: int) -> float:
    started = time.monotonic()
    done = ssh(lab, host, f"head -c {size} /dev/zero | tr '\\0' x")
    assert len(done.stdout) == size
    return time.monotonic() - started


def test_slow_link(lab: Lab) -> None:
    with lab.fault("slow-link", mbit=20):
        assert _seconds_for(lab, "gpu02", 4_000_000) > 4_000_000 * 8 / 20e6 * 0.9  # no faster than the link
    assert lab.on("gpu02", ["tc", "qdisc", "show", "dev", "eth0"]).stdout.startswith("qdisc noqueue")


def test_connect_limit(lab: Lab) -> None:
    again = f"for _ in range(12):{CONNECT}".replace("\n", "\n    ")  # a Python for each could take as long as the limit
    with lab.fault("connect-limit", per_second=1):
        done = lab.on("gpu01", [sys.executable, "-I", "-S", "-c", again, "gpu02", "9", "0.1"], check=True)
    assert {"timeout", "ECONNREFUSED"} == set(done.stdout.split())


def test_wrong_neighbour_and_route(lab: Lab) -> None:
    for name, parameters in (("wrong-neighbour", {}), ("wrong-route", {}), ("wrong-route", {"kind": "gateway"})):
        with lab.fault(name, **parameters):
            assert connect(lab, "gpu02", "gpu03", 22, DROPPED_S) != "open"
            assert connect(lab, "gpu02", "gpu01", 22) == "open"
        assert connect(lab, "gpu02", "gpu03", 22) == "open"


def test_ipv6_only(lab: Lab) -> None:
    with lab.fault("ipv6-only"):
        assert connect(lab, "gpu01", "gpu02", 22) == "open" != connect(lab, "gpu01", lab.address("gpu02"), 22)
        for name in ("wrong-neighbour", "wrong-route"):
            with lab.fault(name, ipv6=True):
                assert connect(lab, "gpu02", "gpu03", 22, DROPPED_S) != "open"
                assert connect(lab, "gpu02", "gpu01", 22) == "open"
            assert connect(lab, "gpu02", "gpu03", 22) == "open"
    assert connect(lab, "gpu01", "gpu02", 22) == connect(lab, "gpu01", lab.address("gpu02"), 22) == "open"


def test_link_flaps(lab: Lab) -> None:
    def losses() -> int:
        return int(lab.on("gpu02", ["cat", "/sys/class/net/eth0/carrier_down_count"], check=True).stdout)

    before = losses()
    with lab.fault("link-flaps", every_s=0.2):
        machine.wait_for(lambda: losses() > before + 1, "the link to go down twice")
    assert losses() == before and ping(lab, "gpu01", "gpu02") == 1, "a new link, as at the start"


def test_lossy_link(lab: Lab) -> None:
    with lab.fault("lossy-link", percent=50):
        assert 0 < ping(lab, "gpu01", "gpu02", count=60) < 45  # both ways: a quarter comes back
        assert ping(lab, "gpu01", "gpu03", count=60) > 55
        assert ping(lab, "controller", "gpu02", count=60) > 55
    assert ping(lab, "gpu01", "gpu02", count=60) > 55


IFNAMES = "import socket; print([name for _, name in socket.if_nameindex()])"


def interfaces(lab: Lab, host: str) -> str:
    return lab.on(host, [sys.executable, "-I", "-S", "-c", IFNAMES]).stdout.strip()


def test_second_interface(lab: Lab) -> None:
    with lab.fault("second-interface"):
        assert interfaces(lab, "gpu02") == "['lo', 'aux0', 'eth0']"
        assert lab.on("gpu02", ["cat", "/sys/class/net/aux0/operstate"]).stdout.strip() == "up"
        assert interfaces(lab, "gpu01") == "['lo', 'eth0']"
        assert connect(lab, "gpu01", "192.168.50.2", 22) == "ENETUNREACH"
    assert interfaces(lab, "gpu02") == "['lo', 'eth0']"


def test_same_bridge_everywhere(lab: Lab) -> None:
    with lab.fault("same-bridge-everywhere"):
        for name in lab.hostnames:
            assert interfaces(lab, name).startswith("['lo', 'docker0', 'eth0'")
            shown = lab.on(name, ["ip", "-brief", "address", "show", "docker0"]).stdout
            assert "UP" in shown and "172.17.0.1/16" in shown
    assert interfaces(lab, "gpu03") == "['lo', 'eth0']"


# -- names


def resolve(lab: Lab, host: str, name: str) -> str:
    return " ".join(lab.on(host, ["getent", "ahostsv4", name]).stdout.split()[:1])


def test_own_name_loopback(lab: Lab) -> None:
    with lab.fault("own-name-loopback"):
        assert resolve(lab, "gpu02", "gpu02") == "127.0.1.1"
        assert resolve(lab, "gpu01", "gpu02") == lab.address("gpu02")
    assert resolve(lab, "gpu02", "gpu02") == lab.address("gpu02")


def test_stale_address(lab: Lab) -> None:
    with lab.fault("stale-address"):
        assert resolve(lab, "gpu02", "gpu03") == "10.77.0.99"
        assert resolve(lab, "gpu01", "gpu03") == lab.address("gpu03")
    assert resolve(lab, "gpu02", "gpu03") == lab.address("gpu03")


def test_peer_unresolvable(lab: Lab) -> None:
    with lab.fault("peer-unresolvable", peer="gpu04"):
        assert resolve(lab, "gpu02", "gpu04") == ""
        assert resolve(lab, "gpu02", "gpu03") == lab.address("gpu03")
    assert resolve(lab, "gpu02", "gpu04") == lab.address("gpu04")


def test_own_name_unresolvable(lab: Lab) -> None:
    with lab.fault("own-name-unresolvable"):
        assert resolve(lab, "gpu02", "gpu02") == ""
    assert resolve(lab, "gpu02", "gpu02") == lab.address("gpu02")


# -- the system


def test_small_shm(lab: Lab) -> None:
    show = "df --output=size -m /dev/shm | tail -n 1"
    with lab.fault("small-shm"):
        assert ssh(lab, "gpu02", show).stdout.strip() == "64"
    assert int(ssh(lab, "gpu02", show).stdout) > 1024


def test_no_shm(lab: Lab) -> None:
    with lab.fault("no-shm"):
        assert ssh(lab, "gpu02", "test -e /dev/shm").returncode == 1
    assert ssh(lab, "gpu02", "mountpoint /dev/shm && touch /dev/shm/x && rm /dev/shm/x").returncode == 0


@pytest.mark.parametrize(("fault", "flag", "limit"), [("low-memlock", "l", "64"), ("low-nofile", "n", "256")])
def test_limits(lab: Lab, fault: str, flag: str, limit: str) -> None:
    before = ssh(lab, "gpu02", f"ulimit -{flag}").stdout
    with lab.fault(fault):
        assert ssh(lab, "gpu02", f"ulimit -{flag}; ulimit -H{flag}").stdout.split() == [limit, limit]
    assert ssh(lab, "gpu02", f"ulimit -{flag}").stdout == before != f"{limit}\n"


def test_disk_full(lab: Lab) -> None:
    with lab.fault("disk-full"):
        assert "No space left" in ssh(lab, "gpu02", "echo x >/tmp/file; cat /tmp/file").stderr
    assert ssh(lab, "gpu02", "echo x >/tmp/file; cat /tmp/file; rm /tmp/file; ls /tmp | grep core").stdout == "x\n"


def test_read_only_root(lab: Lab) -> None:
    with lab.fault("read-only-root"):
        assert "Read-only" in ssh(lab, "gpu02", "touch /var/tmp/x").stderr
        assert "Read-only" in ssh(lab, "gpu02", "touch ~/x").stderr
        assert "Read-only" in ssh(lab, "gpu02", "touch /etc/x").stderr
        assert ssh(lab, "gpu02", "touch /tmp/x && rm /tmp/x && hostname").stdout == "gpu02\n"
    assert ssh(lab, "gpu02", "touch /var/tmp/x ~/x /etc/x && rm /var/tmp/x ~/x /etc/x").returncode == 0


def test_hanging_nvidia_smi(lab: Lab) -> None:
    with lab.fault("hanging-nvidia-smi"):
        assert ssh(lab, "gpu02", "timeout -k 1 0.5 nvidia-smi").returncode == 124
        load = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
        assert ssh(lab, "gpu02", f'timeout -k 1 2 python3 -I -S -c "{load}"').returncode == 124
        assert ssh(lab, "gpu02", "test -c /dev/nvidia0").returncode == 0
    assert ssh(lab, "gpu02", "command -v nvidia-smi").stdout != f"{lab.host('gpu02').bin}/nvidia-smi\n"
    assert ssh(lab, "gpu02", "ls /dev; echo $LD_LIBRARY_PATH").stdout == ssh(lab, "gpu01", "ls /dev; echo").stdout


def test_clock_offset(lab: Lab) -> None:
    show = "python3 -c 'import time; print(time.time(), time.monotonic())'"
    with lab.fault("clock-offset", seconds=300):
        wall, monotonic = map(float, ssh(lab, "gpu02", show).stdout.split())
        assert 200 < wall - time.time() <= 301  # it was asked a while ago
        assert abs(monotonic - time.monotonic()) < 100
    wall, _ = map(float, ssh(lab, "gpu02", show).stdout.split())
    assert abs(wall - time.time()) < 100


# -- software

VERSIONS = """
import importlib.metadata, json
wanted = {"torch", "nvidia-nccl-cu12"}
found = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
print(json.dumps({name: version for name, version in found.items() if name in wanted}))
"""


def versions(lab: Lab, host: str) -> dict[str, str]:
    """The versions of torch and NCCL's wheel that a host's Python has installed."""
    return dict(json.loads(lab.on(host, ["python3", "-c", VERSIONS], check=True).stdout))


def test_other_torch(lab: Lab) -> None:
    here = versions(lab, "gpu02")
    if "torch" not in here:
        pytest.skip("torch is not installed beside this Python")
    with lab.fault("other-torch", version="2.6.0"):
        assert versions(lab, "gpu02")["torch"].split("+")[0] == "2.6.0"
        assert versions(lab, "gpu01") == here
        read = "import importlib.util, runpy; place = importlib.util.find_spec('torch').submodule_search_locations[0]"
        read += "; print(runpy.run_path(place + '/version.py')['__version__'])"  # torch's import takes seconds
        found = lab.on("gpu02", ["python3", "-c", read]).stdout
        assert found.split("+")[0].strip() == "2.6.0"
    assert versions(lab, "gpu02") == here


def test_other_nccl(lab: Lab) -> None:
    here = versions(lab, "gpu02")
    with lab.fault("other-nccl"):
        assert versions(lab, "gpu02")["nvidia-nccl-cu12"] == "2.26.2"
        assert versions(lab, "gpu01")["nvidia-nccl-cu12"] == "2.28.9"
    assert versions(lab, "gpu02") == versions(lab, "gpu01") == here


def test_wrong_nccl_conf(lab: Lab) -> None:
    with lab.fault("wrong-nccl-conf"):
        assert "NCCL_SOCKET_IFNAME=eno1" in ssh(lab, "gpu02", "cat /etc/nccl.conf").stdout
        assert ssh(lab, "gpu01", "test -e /etc/nccl.conf").returncode == 1
    assert ssh(lab, "gpu02", "test -e /etc/nccl.conf").returncode == 1


def test_wrong_environment(lab: Lab) -> None:
    with lab.fault("wrong-environment"):
        assert ssh(lab, "gpu02", "echo $NCCL_SOCKET_IFNAME").stdout.strip() == "eno1"
    assert ssh(lab, "gpu02", "echo $NCCL_SOCKET_IFNAME").stdout.strip() == ""


def test_every_fault_is_proved_here() -> None:
    source = Path(__file__).read_text()
    unproved = [name for name in faults.all_faults() if f'"{name}"' not in source]
    assert not unproved
