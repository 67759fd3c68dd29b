"""How long and how costly it is to reach 10, 100 and 500 hosts, beside clush and pdsh on the same hosts in one run.

One sshd on the loopback serves every address 127.x.y.z, so server and client share this machine's cores: wall times say
how the tools compare here, not what a cluster would give. nccl-doctor starts a Python agent on every host and asks it
for one probe; clush and pdsh run ``echo``. Client CPU is user + system time of the tool and its children, of each host
beyond the first: the first bears the start-up.

Run as root: ``python benchmarks/fanout.py [--hosts 10,100,500] [--fan-out 64]``. Every host is an sshd and an agent of
its own here: 500 of them need some 12 GB. Exit status 1 where hosts did not answer nccl-doctor, 128 + N after signal N.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "lab"))


LIMIT_S = 400.0  # of one run of one tool; ours ends by itself after 300 s
HOST_BYTES = 25 << 20  # memory of one more host: its agent and two processes of sshd


class Run(NamedTuple):
    """One run of one tool: wall and client CPU in seconds, hosts that answered, and what it said if not all was well."""

    wall: float
    cpu: float
    answered: int
    trouble: str = ""


class Stopped(SystemExit):
    """A signal ended the benchmark: what it started is stopped, and what was measured is printed."""


def stop(number: int, frame: object) -> None:
    print(f"ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    raise Stopped(128 + number)


def addresses(count: int) -> list[str]:
    """127.1.1.1 and on: distinct addresses of the loopback."""
    return [f"127.1.{1 + number // 250}.{1 + number % 250}" for number in range(count)]


def measure(argv: list[str], environment: dict[str, str]) -> Run:
    """Run a tool and add up what it and its children used. It is ended, with its children, after ``LIMIT_S``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    tool = subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = ""
    try:
        output, errors = tool.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        late = f"ended after {LIMIT_S:.0f} s; "
        os.killpg(tool.pid, signal.SIGKILL)
        output, errors = tool.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        tool.wait()
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answered = sum(1 for line in output.splitlines() if line.strip())
    trouble = f"{late}status {tool.returncode}: {errors.strip()[-400:]}" if tool.returncode else ""
    return Run(wall, cpu, answered, trouble)


def client(config: str, port: int, count: int, fan_out: int) -> None:
    """What is measured of ours, in a process of its own: connect, one probe on each host, close."""
    from nccl_doctor.bench.run import in_threads
    from nccl_doctor.facts.model import Outcome, Reach, ReachOutcome
    from nccl_doctor.inventory import HostEntry
    from nccl_doctor.transport.base import ConnectOptions, Deadline
    from nccl_doctor.transport.fleet import close_all, connect_all
    from nccl_doctor.transport.session import Session

    entries = [HostEntry(address, "root", port) for address in addresses(count)]
    found = connect_all(entries, ConnectOptions(ssh_config=config, fan_out=fan_out), Deadline(300))
    sessions = {name: item for name, item in found.items() if isinstance(item, Session)}
    results = in_threads(sessions, lambda _, session: session.probe("environment", limit_s=30.0), 60.0)
    close_all(found.values())
    lost: dict[str, int] = {}
    for entry in entries:
        result = results.get(entry.name)
        if result is not None and result.outcome is Outcome.OK:
            print(entry.name)
            continue
        item = found[entry.name]
        told = result or (item if isinstance(item, Reach) else Reach(ReachOutcome.CUT_OFF))
        why = f"{told.outcome.value}: {told.detail}"
        lost[why] = lost.get(why, 0) + 1
    if lost:
        sys.exit("; ".join(f"{count} x {why}" for why, count in sorted(lost.items(), key=lambda one: -one[1])[:3]))


def tools(config: Path, port: int, fan_out: int, names: list[str]) -> dict[str, list[str]]:
    """Each tool's command line; a tool that is not installed is left out."""
    hosts = ",".join(names)
    ours = [sys.executable, __file__, "--client", f"{config}:{port}:{len(names)}:{fan_out}"]
    found = {"nccl-doctor": ours}
    if shutil.which("clush"):
        found["clush"] = ["clush", "-f", str(fan_out), "-o", f"-F {config}", "-w", hosts, "echo"]
    if shutil.which("pdsh"):
        found["pdsh"] = ["pdsh", "-R", "ssh", "-f", str(fan_out), "-w", hosts, "echo"]
    return found


def first_host(name: str, config: Path, port: int, fan_out: int, environment: dict[str, str]) -> float:
    """CPU seconds of a tool for one host, start-up included: the least of three."""
    argv = tools(config, port, fan_out, addresses(1))[name]
    return min(measure(argv, environment).cpu for _ in range(3))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="10,100,500")
    parser.add_argument("--fan-out", type=int, default=64)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        config, port, count, fan_out = arguments.client.rsplit(":", 3)
        client(config, int(port), int(count), int(fan_out))
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    counts = [int(word) for word in arguments.hosts.split(",")]
    if min(counts) < 2:
        parser.error("--hosts: at least 2, as the first host bears the start-up")
    from loopback_sshd import Sshd, make_key, why_not

    if why_not():
        sys.exit(f"cannot run: {why_not()}")
    place = Path(tempfile.mkdtemp(prefix="nccl-doctor-fanout-"))
    sshd = None
    good = False
    try:
        public = make_key(place / "id")
        sshd = Sshd(place / "sshd", public, "0.0.0.0", MaxStartups="2000:30:4000", LogLevel="ERROR")
        (place / "known_hosts").write_text(f"[127.1.*]:{sshd.port} {' '.join(sshd.public.split()[:2])}\n")
        config = place / "config"
        config.write_text(
            f"Host *\n Port {sshd.port}\n User root\n IdentityFile {place}/id\n IdentityAgent none\n"
            f" UserKnownHostsFile {place}/known_hosts\n GlobalKnownHostsFile none\n BatchMode yes\n"
        )
        environment = dict(os.environ, PDSH_SSH_ARGS_APPEND=f"-F {config}")
        good = report(config, sshd.port, arguments.fan_out, counts, environment)
    finally:
        if sshd is not None:
            sshd.stop()
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(0 if good else 1)


def room() -> int:
    """How many hosts fit into the memory that is free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return available // HOST_BYTES


def report(config: Path, port: int, fan_out: int, counts: list[int], environment: dict[str, str]) -> bool:
    """Run all tools on all numbers of hosts, one after the other; whether all hosts answered ours."""
    good = True
    first = {name: first_host(name, config, port, fan_out, environment) for name in tools(config, port, fan_out, ["x"])}
    print(f"fan-out {fan_out}, {os.cpu_count()} cores shared by client and server, load {os.getloadavg()[0]:.1f}")
    print("client CPU for the first host: " + ", ".join(f"{name} {cpu * 1000:.0f} ms" for name, cpu in first.items()))
    heads = f"{'hosts':>6} {'tool':<12} {'answered':>8} {'wall s':>8} {'CPU ms/host':>12}"
    print(f"\n{heads} {'wall x ours':>12} {'CPU x ours':>11}", flush=True)
    for count in counts:
        if count > room():
            print(f"{count:>6} left out: free memory is enough for {room()} hosts", flush=True)
            good = False
            continue
        ours: Run | None = None
        for name, argv in tools(config, port, fan_out, addresses(count)).items():
            runs = [measure(argv, environment) for _ in range(3 if count <= 20 else 1)]
            run = min(runs, key=lambda one: one.cpu)
            ours = ours or run
            per_host = (run.cpu - first[name]) / (count - 1) * 1000
            own = (ours.cpu - first["nccl-doctor"]) / (count - 1) * 1000
            print(
                f"{count:>6} {name:<12} {run.answered:>8} {run.wall:>8.2f} {per_host:>12.1f} "
                f"{run.wall / ours.wall:>12.2f} {per_host / own:>11.2f}",
                flush=True,
            )
            if run.answered < count:
                print(f"{'':>6} {count - run.answered} hosts did not answer {name}: {run.trouble}", flush=True)
                good = good and name != "nccl-doctor"
    return good


if __name__ == "__main__":
    main()
