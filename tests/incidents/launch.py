"""Start an incident, wait for its end, and leave no process behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.incidents.catalogue import Incident
from tests.ports import free_port

WORKER = Path(__file__).with_name("worker.py")
LIMIT = 150.0  # seconds for one incident; all end within 25 on an idle machine
_MARK = "INCIDENT_RUN"
_CGROUPS = Path("/sys/fs/cgroup")


class Unable(Exception):
    """This machine cannot provoke the incident; says why."""


def run(incident: Incident, directory: Path) -> Path:
    """Provoke the incident. Everything printed lies afterwards under the directory that is returned."""
    if incident.needs_root and os.geteuid() != 0:
        raise Unable("needs root (namespaces, cgroups)")
    place = _Place(incident, directory)
    log = place.log_directory / "console.log"
    since = time.monotonic()
    try:
        with _cgroup(incident, place.mark) as join, _occupied(incident, place.port), open(log, "wb") as output:
            processes = [
                subprocess.Popen(
                    command,
                    env={**place.environment, **extra},
                    cwd=place.work,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                for command, extra in place.started(join)
            ]
            _wait(processes, incident, log)
    finally:
        _end_all(place.mark)
    if incident.cgroup:
        _kernel_log(place.log_directory / "kernel.log", time.monotonic() - since)
    return place.log_directory


class _Place:
    """Where one incident runs: its directories, its port, its environment."""

    def __init__(self, incident: Incident, directory: Path) -> None:
        self.incident = incident
        self.mark = f"{incident.name}-{uuid.uuid4().hex[:12]}"
        self.work = directory / "train"
        self.log_directory = directory / "logs"
        self.checkpoints = directory / "checkpoints"
        for path in (self.work, self.log_directory, self.checkpoints):
            path.mkdir(parents=True)
        shutil.copy(WORKER, self.work / "train.py")
        self.port = free_port()
        self.arguments = ["train.py", "--incident", incident.worker or incident.name]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "RANK", "WORLD_"))}
        self.environment = {
            **clean,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "CHECKPOINT_DIRECTORY": str(self.checkpoints),
            "DUMP_DIRECTORY": str(self.log_directory),
            _MARK: self.mark,
            **incident.env,
        }
        if incident.how in ("torchrun", "env"):  # all ranks come: they start their clocks together
            self.environment["INCIDENT_RANKS"] = str(incident.ranks)

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """The launchers to start, each with what its environment has beside the common one."""
        python = [sys.executable, *self.arguments]
        if self.incident.how == "bare":
            return [(python, {})]
        if self.incident.how in ("env", "one-missing", "worker-only", "port-in-use"):
            present = {
                "env": range(self.incident.ranks),
                "one-missing": range(self.incident.ranks - 1),
                "worker-only": [1],
                "port-in-use": [0],
            }[self.incident.how]
            return [(python, self._rank_environment(rank)) for rank in present]
        return [(self._torchrun(), {})]

    def _rank_environment(self, rank: int) -> dict[str, str]:
        master = self.incident.env.get("MASTER_ADDR", "127.0.0.1")
        size = str(self.incident.ranks)
        return {"RANK": str(rank), "WORLD_SIZE": size, "MASTER_ADDR": master, "MASTER_PORT": str(self.port)}

    def _torchrun(self) -> list[str]:
        how = ["--standalone"]
        if self.incident.how == "node-missing":
            endpoint = f"--rdzv-endpoint=127.0.0.1:{self.port}"
            how = ["--nnodes=2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=job", "--rdzv-conf=join_timeout=8"]
        elif self.incident.how == "port-in-use-torchrun":
            how = ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={self.port}"]
        if self.incident.restarts:
            how.append(f"--max-restarts={self.incident.restarts}")
        if self.incident.per_rank:
            how += ["--redirects=3", f"--log-dir={self.log_directory}"]
        program = [sys.executable, "-m", "torch.distributed.run", *how, f"--nproc-per-node={self.incident.ranks}"]
        return [*program, *self.arguments]

    def started(self, join: list[str]) -> list[tuple[list[str], dict[str, str]]]:
        """What is really started: the launchers in their cgroups, and all in one namespace where one is asked for."""
        commands = [([*join, *command], extra) for command, extra in self.commands()]
        if not self.incident.setup:
            return commands
        values = {"port": str(self.port), "checkpoints": shlex.quote(str(self.checkpoints))}
        setup = " && ".join(line.format(**values) for line in self.incident.setup)
        programs = [
            shlex.join(["env", *(f"{name}={value}" for name, value in extra.items()), *command])
            for command, extra in commands
        ]
        script = f"{setup} || exit 97; {' & '.join(programs)} & wait"
        return [(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script], {})]


@contextlib.contextmanager
def _occupied(incident: Incident, port: int) -> Iterator[None]:
    """A program that has the master port already, where the incident is about that."""
    if not incident.how.startswith("port-in-use"):
        yield
        return
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", port))
        other.listen()
        yield


@contextlib.contextmanager
def _cgroup(incident: Incident, name: str) -> Iterator[list[str]]:
    """A cgroup (version 1) with the incident's limits; yields the words that make a command join it."""
    made: list[Path] = []
    try:
        for setting, value in incident.cgroup.items():
            controller, _, file = setting.partition("/")
            group = _CGROUPS / controller / name
            try:
                group.mkdir()
                made.append(group)
                (group / file).write_text(value)
            except OSError as error:
                raise Unable(f"no {controller} cgroup can be made: {error}") from error
        entered = " && ".join(f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))}" for group in made)
        yield ["sh", "-c", f'{entered} && exec "$@"', "sh"] if made else []
    finally:
        _end_all(name)
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    """A cgroup can be removed once its last process has been reaped, which takes a moment."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def _wait(processes: list[subprocess.Popen[bytes]], incident: Incident, log: Path) -> None:
    deadline = time.monotonic() + LIMIT
    waiting_to_signal = incident.send is not None
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
        if waiting_to_signal and b"step 5 " in log.read_bytes():
            assert incident.send is not None
            processes[0].send_signal(incident.send)
            waiting_to_signal = False
    if any(process.poll() == 97 for process in processes):
        raise Unable("the namespace could not be set up: " + log.read_text(errors="replace")[-300:].strip())
    late = [process for process in processes if process.poll() is None]
    if late:
        raise TimeoutError(f"{incident.name} did not end within {LIMIT:.0f} s")


def processes_of(mark: str) -> list[int]:
    """The processes of one incident: its mark is in their environment. torchrun gives every worker its own session."""
    found = []
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _end_all(mark: str) -> None:
    for _ in range(20):
        left = processes_of(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    raise RuntimeError(f"processes {processes_of(mark)} outlived SIGKILL")


def _kernel_log(path: Path, seconds: float) -> None:
    """What the kernel said while the incident ran: the second file an engineer would collect."""
    listed = subprocess.run(["dmesg"], capture_output=True, text=True, check=False)
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    lines = []
    for line in listed.stdout.splitlines():
        stamp = line.partition("]")[0].lstrip("[ ")
        if stamp.replace(".", "").isdigit() and float(stamp) >= uptime - seconds - 1:
            lines.append(line)
    path.write_text("\n".join(lines) + "\n")
