"""A whole lab: hosts joined by a switch, a controller from which nccl-doctor is run, faults, and complete removal."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import machine
from .host import SYSTEM_PATH, Host, is_root_owned
from .machine import NETNS, LabError, Process, missing_requirements

__all__ = ["Lab", "LabError", "Process", "abandoned", "missing_requirements", "standing"]

PROJECT = Path(__file__).resolve().parents[2]
PLACE = Path("/tmp")  # whatever TMPDIR says: all labs of a machine have to know of each other
AUTOMATIC_PREFIXES = [f"ndl{number}" for number in range(64)]


class Lab:
    """``hosts`` real hosts ``gpu01``, ``gpu02``, ... and a controller, on a network of their own.

    A context manager: entering builds it, leaving removes every trace. Should this process die in whatever way, a
    reaper that holds the other end of a pipe removes it. ``prefix`` names the lab (network namespaces, directory);
    without one, a free one is taken, so that several test processes can each have a lab. Each lab has its own switch
    in a namespace of its own: equal subnets do not meet. ``python`` is the interpreter that ``python3`` means on every
    host. ``mtu`` is that of all interfaces, in bytes.
    """

    def __init__(
        self,
        hosts: int = 4,
        prefix: str | None = None,
        subnet: str = "10.77.0.0/24",
        python: str = sys.executable,
        mtu: int = 1500,
    ) -> None:
        network = ipaddress.ip_network(subnet)
        if not 1 <= hosts <= min(99, network.num_addresses - 3):
            raise ValueError(f"{hosts} hosts do not fit: 1 to 99, and no more than {subnet} has room for")
        if prefix is not None and not (prefix.isalnum() and prefix.isascii() and len(prefix) <= 8):
            raise ValueError(f"prefix {prefix!r}: letters and digits, at most 8")
        self.prefix = prefix or ""
        self.subnet = subnet
        self.python = str(Path(python).absolute())
        self.mtu = mtu
        self.count = hosts
        self._network = network
        self.prefix_length = network.prefixlen
        self._reaper: subprocess.Popen[bytes] | None = None

    # -- names and places

    @property
    def directory(self) -> Path:
        """Everything the lab writes lies here (mode 0700)."""
        return _directory(self.prefix)

    @property
    def shared(self) -> Path:
        """A directory that every host sees at this same path, as over NFS."""
        return self.directory / "shared"

    @property
    def number(self) -> int:
        """Its own among the labs with a prefix that was free: they share /proc, and would take each other's jobs for theirs."""
        return AUTOMATIC_PREFIXES.index(self.prefix)

    @property
    def hostnames(self) -> list[str]:
        """The hosts' names, ``gpu01`` first; the controller is not among them."""
        return [f"gpu{number:02d}" for number in range(1, self.count + 1)]

    @property
    def hostfile(self) -> Path:
        """A hostfile with every host's name, one a line."""
        return self.directory / "hostfile"

    @property
    def home(self) -> Path:
        """The controller's home: .ssh with key, config and known_hosts."""
        return self.controller.home

    @property
    def known_hosts(self) -> Path:
        """The controller's known_hosts."""
        return self.home / ".ssh" / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """The controller's ssh config."""
        return self.home / ".ssh" / "config"

    @property
    def controller(self) -> Host:
        """Where nccl-doctor runs; it has the last address of the subnet and no sshd."""
        return self._host("controller", self._network[-2])

    @property
    def switch(self) -> str:
        """The network namespace with the bridge; its ports bear the names of the hosts."""
        return f"{self.prefix}-switch"

    def host(self, name: str) -> Host:
        """The host of that name (``controller`` too); ``KeyError`` if the lab has none."""
        if name == "controller":
            return self.controller
        if name not in self.hostnames:
            raise KeyError(f"no host {name!r}: the lab has {', '.join(self.hostnames)}")
        return self._host(name, self._network[self.hostnames.index(name) + 1])

    def address(self, name: str) -> str:
        """A host's IPv4 address."""
        return self.host(name).address

    def _host(self, name: str, address: Any) -> Host:
        return Host(name, str(address), self.directory / name, f"{self.prefix}-{name}", self.python)

    def _everyone(self) -> list[Host]:
        return [self.controller, *(self.host(name) for name in self.hostnames)]

    # -- life and death

    def __enter__(self) -> Lab:
        self.up(reaped=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self, *, reaped: bool = False) -> None:
        """Build the lab. ``reaped``: it ends with this process; otherwise it stands until :meth:`down`."""
        missing = missing_requirements()
        if missing:
            raise LabError("no lab can stand here: " + "; ".join(missing))
        self._claim(owner=os.getpid() if reaped else 0)
        try:
            if reaped:
                self._start_reaper()
            self._build()
        except BaseException:
            self.down()
            raise

    def _claim(self, owner: int) -> None:
        """Take the prefix (or a free one), clearing away what a dead lab of that name left."""
        with _alone():
            self.prefix = self.prefix or next((name for name in AUTOMATIC_PREFIXES if not _in_use(name)), "")
            if not self.prefix:
                raise LabError(f"all {len(AUTOMATIC_PREFIXES)} labs are in use; `python -m tests.lab list` shows them")
            if _in_use(self.prefix):
                raise LabError(f"lab {self.prefix} stands already; `python -m tests.lab down --prefix {self.prefix}`")
            _remove(self.prefix)
            self.directory.mkdir(mode=0o700)
            description = {
                "hosts": self.count,
                "subnet": self.subnet,
                "python": self.python,
                "mtu": self.mtu,
                "owner": [owner, machine.start_time(owner)] if owner else None,
            }
            (self.directory / "lab.json").write_text(json.dumps(description))

    def _start_reaper(self) -> None:
        """A process that reads a pipe held open by this one, and removes the lab when the pipe ends."""
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "tests.lab", "reap", "--prefix", self.prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd=PROJECT,
        )

    def _build(self) -> None:
        machine.command(["ip", "netns", "add", self.switch])
        bridge = f"link add br0 mtu {self.mtu} type bridge stp_state 0 forward_delay 0\nlink set br0 up\n"
        machine.command(["ip", "-netns", self.switch, "-batch", "-"], stdin=bridge)
        hosts_file = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
        hosts_file += "".join(f"{host.address} {host.name}\n" for host in self._everyone())
        self.shared.mkdir()
        for host in self._everyone():
            host.directory.mkdir(mode=0o700)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda host: self._build_host(host, hosts_file), self._everyone()))
        self._write_controller()
        (self.controller.directory / "tmp").mkdir()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Host.start_sshd, map(self.host, self.hostnames)))

    def _build_host(self, host: Host, hosts_file: str) -> None:
        is_controller = host.name == "controller"
        places = [self.directory / host.name, self.shared, PROJECT, Path(self.python).parents[1], Path(sys.base_prefix)]
        host.build(
            switch=self.switch,
            prefix_length=self.prefix_length,
            mtu=self.mtu,
            hosts_file=hosts_file,
            own_tmp=not is_controller,
            keep=sorted({str(place) for place in places if place.is_relative_to("/tmp")}),
        )
        if not is_controller:
            host.make_host_key()

    def _write_controller(self) -> None:
        """The controller's key, known_hosts and config; the hosts' authorized_keys; the hostfile; lab-run."""
        ssh = self.home / ".ssh"
        machine.command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(ssh / "id_ed25519")])
        public = (ssh / "id_ed25519.pub").read_text()
        known = []
        for name in self.hostnames:
            (self.host(name).directory / "authorized_keys").write_text(public)
            self.host(name).write_etc("authorized_keys.someone", public)
            kind, key = (self.host(name).directory / "host_key.pub").read_text().split()[:2]
            known.append(f"{name},{self.address(name)} {kind} {key}\n")
        self.known_hosts.write_text("".join(known))
        self.ssh_config.write_text("Host gpu* 10.*\n  User root\n  IdentitiesOnly yes\n")
        self.hostfile.write_text("".join(f"{name}\n" for name in self.hostnames))
        # The program of this very tree, whatever is installed beside it.
        doctor = self.controller.bin / "nccl-doctor"
        doctor.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nccl_doctor "$@"\n')
        doctor.chmod(0o755)
        runner = self.directory / "lab-run"
        entering = shlex.join(["nsenter", f"--target={self.controller.keeper}", "--net", "--uts", "--mount", "env"])
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in self._controller_environment().items())
        runner.write_text(
            "#!/bin/sh\n"
            f"# Runs a command (without one: a shell) as the controller of lab {self.prefix}, in this directory.\n"
            '[ "$(id -u)" = 0 ] || exec sudo "$0" "$@"\n'
            "[ $# -gt 0 ] || set -- bash --norc\n"
            f'exec {entering} --chdir="$PWD" {variables} "$@"\n'
        )
        runner.chmod(0o755)

    def _controller_environment(self) -> dict[str, str]:
        environment = self.controller.environment()
        environment["PATH"] = f"{self.controller.bin}:{Path(sys.executable).parent}:{SYSTEM_PATH}"
        environment["PYTHONPATH"] = str(PROJECT)
        environment["TMPDIR"] = str(self.controller.directory / "tmp")  # it shares the machine's /tmp, and is killed
        return environment

    def down(self) -> None:
        """Remove the lab: its processes (by pid), namespaces and files. Does nothing if it does not stand."""
        if self.prefix:
            with _alone():  # half removed it would look free to whoever seeks a name
                _remove(self.prefix)
        if self._reaper is not None:
            assert self._reaper.stdin is not None
            self._reaper.stdin.close()
            self._reaper.wait(30)
            self._reaper = None

    @staticmethod
    def attach(prefix: str) -> Lab:
        """The lab of that prefix that stands already; ``LabError`` if none does."""
        path = _directory(prefix) / "lab.json"
        if not path.exists():
            raise LabError(f"no lab {prefix} stands")
        found = json.loads(path.read_text())
        return Lab(found["hosts"], prefix, found["subnet"], found["python"], found["mtu"])

    # -- using it

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        stdin: str | None = None,
        cwd: Path | str = PROJECT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the controller (``["nccl-doctor", "check", ...]`` runs this tree's program).

        Only the controller's own environment and ``env`` reach it, nothing of the caller's. After ``timeout`` seconds
        its process group is killed and ``subprocess.TimeoutExpired`` raised, with what it had printed.
        """
        process = self.popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | str = PROJECT, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command as the controller, in a session of its own; ``pid`` is the command's. For kill tests."""
        variables = [f"{name}={value}" for name, value in (self._controller_environment() | dict(env or {})).items()]
        words = [*self.controller.entering(working_directory=str(cwd)), "--ignore-environment", *variables, *argv]
        return subprocess.Popen(words, start_new_session=True, **options)

    def on(
        self, host: str, argv: Sequence[str], *, stdin: str = "", timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, without ssh: for assertions."""
        return self.host(host).run(argv, stdin=stdin, timeout=timeout, check=check)

    def spawn(self, host: str, argv: Sequence[str]) -> int:
        """Start a process on a host that goes on by itself; its pid."""
        return self.host(host).spawn(argv)

    def processes(self, host: str) -> list[Process]:
        """What runs on a host beyond the lab's own keeper, listening sshd and fault processes."""
        own = {self.host(host).keeper, self.host(host).sshd}
        own |= {pid for record in self.fault_records() for pid in record["memory"].get("pids", [])}
        return [process for process in self.host(host).processes() if process.pid not in own]

    def settled_processes(self, host: str, seconds: float = 5.0) -> list[Process]:
        """What still runs on a host after up to ``seconds`` for it to end: what a session left behind."""
        with contextlib.suppress(LabError):
            machine.wait_for(lambda: not self.processes(host), f"the end of everything on {host}", seconds)
        return self.processes(host)

    def set_env(self, host: str, **values: str | None) -> None:
        """Set (or with None, unset) variables of every login on a host from now on; its sshd starts anew."""
        self.host(host).change_settings("environment", values)
        self.host(host).restart_sshd()

    # -- faults

    @contextlib.contextmanager
    def fault(self, name: str, host: str = "gpu02", **parameters: Any) -> Iterator[Any]:
        """Apply a fault (see ``python -m tests.lab faults``) while the block runs; yields it."""
        fault = self.apply_fault(name, host, **parameters)
        try:
            yield fault
        finally:
            self._undo(fault)

    def apply_fault(self, name: str, host: str = "gpu02", **parameters: Any) -> Any:
        """Apply a fault that stays until :meth:`clear_faults`; also across processes. Returns it."""
        from . import faults

        fault = faults.make(self, name, host, parameters)
        try:
            fault.apply()
        except BaseException:
            fault.undo()
            raise
        self._write_records([*self.fault_records(), fault.record()])
        return fault

    def clear_faults(self) -> list[str]:
        """Undo all faults, the latest first; returns their names."""
        from . import faults

        records = self.fault_records()
        for record in reversed(records):
            self._undo(faults.from_record(self, record))
        return [record["name"] for record in records]

    def fault_records(self) -> list[dict[str, Any]]:
        """The faults that are applied now, as plain data, in the order in which they came."""
        path = self.directory / "faults.json"
        return json.loads(path.read_text()) if path.exists() else []

    def _undo(self, fault: Any) -> None:
        fault.undo()
        self._write_records([record for record in self.fault_records() if record["key"] != fault.key])

    def _write_records(self, records: list[dict[str, Any]]) -> None:
        (self.directory / "faults.json").write_text(json.dumps(records))


def standing() -> list[str]:
    """The prefixes of all labs that stand or have left something behind."""
    found = PLACE.glob("nccl-doctor-lab-*")
    return sorted(path.name.removeprefix("nccl-doctor-lab-") for path in found if is_root_owned(path))


def abandoned() -> list[str]:
    """The prefixes of labs whose owner is gone and of which something is left, were it one namespace."""
    kinds = ("*-switch", "*-controller", "*-gpu*")
    found = {path.name.rpartition("-")[0] for kind in kinds for path in NETNS.glob(kind)}
    return sorted(prefix for prefix in found.union(standing()) if not _in_use(prefix))


def _directory(prefix: str) -> Path:
    return PLACE / f"nccl-doctor-lab-{prefix}"


def _in_use(prefix: str) -> bool:
    """Whether a lab of that name stands and its owner lives (one without owner stands until it is taken down)."""
    try:
        owner = json.loads((_directory(prefix) / "lab.json").read_text())["owner"]
    except (OSError, ValueError):
        return False
    return owner is None or machine.start_time(owner[0]) == owner[1]


def owner_of(prefix: str) -> list[int] | None:
    """Process id and start of whoever built the lab of that name; None where nobody did, or it stands by itself."""
    try:
        found: list[int] | None = json.loads((_directory(prefix) / "lab.json").read_text())["owner"]
    except (OSError, ValueError):
        return None
    return found


def reap(prefix: str, owner: list[int] | None) -> None:
    """Remove what this owner has left; whoever has taken the name since then keeps it."""
    with _alone():
        if owner_of(prefix) == owner or not (_directory(prefix) / "lab.json").exists():
            _remove(prefix)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process of this machine at a time takes or gives up a name."""
    lock = os.open(PLACE / "nccl-doctor-lab.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove(prefix: str) -> None:
    """End every process in the lab's namespaces, then remove the namespaces and the directory."""
    namespaces = sorted(NETNS.glob(f"{prefix}-*")) if NETNS.is_dir() else []
    pids = {process.pid for namespace in namespaces for process in machine.processes_in(namespace)}
    machine.end(pids - {os.getpid()})
    with ThreadPoolExecutor(8) as pool:  # each waits for the kernel
        list(pool.map(lambda namespace: machine.command(["ip", "netns", "delete", namespace.name]), namespaces))
    directory = _directory(prefix)
    if directory.exists():
        if not is_root_owned(directory):
            raise LabError(f"{directory} is not the lab's: remove it yourself")
        shutil.rmtree(directory)
