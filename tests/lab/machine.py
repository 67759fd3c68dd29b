"""What the lab does to this machine, in small pieces: run a command, find and end processes, say what is missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NETNS = Path("/run/netns")

# Program -> Debian package. `make test` installs the packages (requirements-debian.txt); a test skips without them.
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "prlimit": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "ping": "iputils-ping",
}


class LabError(RuntimeError):
    """Something the lab could not do; says what, and what the failing command printed."""


def command(argv: Sequence[str], *, stdin: str = "", check: bool = True, timeout: float = 60) -> str:
    """Run a command of this machine and return what it printed; ``LabError`` with its error output if it fails."""
    done = subprocess.run(
        argv, input=stdin, text=True, capture_output=True, timeout=timeout, env=dict(os.environ, PATH=program_path())
    )
    if check and done.returncode:
        raise LabError(f"{' '.join(argv)}: exit status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def program_path() -> str:
    """PATH with the directories of system programs, which an ordinary shell's PATH may lack."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_requirements() -> list[str]:
    """Why no lab can stand here, one sentence each; empty if one can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return ["the lab needs root (network namespaces, mounts)"]
    packages: dict[str, list[str]] = {}
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=program_path()) is None:
            packages.setdefault(package, []).append(program)
    missing = [
        f"no {', '.join(programs)}: install the Debian package {name}" for name, programs in sorted(packages.items())
    ]
    if not missing:
        tried = subprocess.run(
            ["unshare", "--net", "--uts", "--mount", "--propagation", "private", "true"],
            capture_output=True,
            text=True,
            env=dict(os.environ, PATH=program_path()),
        )
        if tried.returncode:
            missing.append(f"no namespaces may be made here: {tried.stderr.strip()}")
    return missing


@dataclass(frozen=True)
class Process:
    """A process of this machine: ``arguments`` as in /proc/PID/cmdline (empty for kernel threads and zombies)."""

    pid: int
    parent: int
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pid} {' '.join(self.arguments)}"


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is no such process or it is a zombie.

    A pid and its start time together name a process for good; a pid alone may be used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def arguments(pid: int) -> tuple[str, ...]:
    """A process's command line, empty for a zombie; ``OSError`` if there is none of this pid."""
    return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1])


def processes_in(namespace: Path) -> list[Process]:
    """The live processes whose network namespace is the one bound at ``namespace``, sorted by pid."""
    try:
        wanted = namespace.stat().st_ino
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}/ns/net").st_ino != wanted:
                continue
            parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            found.append(Process(int(entry), parent, arguments(int(entry))))
    return sorted(found, key=lambda process: process.pid)


def end(pids: Iterable[int], seconds: float = 60.0) -> None:
    """Kill processes by pid and wait until they are gone; ``LabError`` for one that stays."""
    waiting = set(pids)
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while waiting:
        waiting = {pid for pid in waiting if start_time(pid)}
        for pid in waiting:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(waiting)} do not end")
        if waiting:
            time.sleep(0.005)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Call ``condition`` until it is true, ever less often; ``LabError`` naming ``what`` after ``seconds``."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.25)  # what is waited for needs the CPU


def soon_s() -> float:
    """The 5 s within which nothing may be left on hosts (promise 6); longer only where more wants to run than CPUs can.

    Never as long as the 45 s that an agent stays which was not told the end.
    """
    return min(20.0, 5.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def detach(argv: Sequence[str], pid_file: Path) -> int:
    """Start a process that goes on by itself; its pid (that of ``argv``'s program, if everything before it execs).

    ``argv`` may begin with words that enter namespaces; ``pid_file`` is a scratch path that both sides see.
    """
    shell = 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec "$@"'
    subprocess.run(
        ["setsid", "--fork", "sh", "-c", shell, str(pid_file), *argv],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PATH=program_path()),
    )
    wait_for(pid_file.exists, f"{argv[0]} to start")
    pid = int(pid_file.read_text())
    pid_file.unlink()
    return pid
