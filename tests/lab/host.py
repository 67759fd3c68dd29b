"""One host of the lab: its namespaces, its files, its sshd. The controller is a host without an sshd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import machine
from .machine import NETNS, LabError, Process

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INTERFACE_INDEX = 10  # eth0's; a fault that adds an interface below it comes first in the kernel's order

SSHD_CONFIG = """\
Port 22
AddressFamily any
HostKey {directory}/host_key
PidFile {directory}/sshd.pid
AuthorizedKeysFile {directory}/authorized_keys /etc/authorized_keys.%u
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
PrintMotd no
PrintLastLog no
X11Forwarding yes
MaxStartups 200:30:400
MaxSessions 100
LogLevel VERBOSE
AcceptEnv LANG LC_*
SetEnv {environment}
Match User someone
SetEnv "PATH=/usr/local/bin:/usr/bin:/bin" "HOME=/tmp" "LANG=C.UTF-8"
"""


class Host:
    """A host that stands or is to be built. All its state lies in ``directory``; objects can be made again from it."""

    def __init__(self, name: str, address: str, directory: Path, namespace: str, python: str) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self.namespace = namespace
        self.python = python

    # -- what it is

    @property
    def keeper(self) -> int:
        """The pid of the process that holds the namespaces; 0 if the host does not stand."""
        path = self.directory / "keeper.pid"
        return int(path.read_text()) if path.exists() else 0

    @property
    def sshd(self) -> int:
        """The pid of the listening sshd; 0 if none runs."""
        path = self.directory / "sshd.pid"
        pid = int(path.read_text() or 0) if path.exists() else 0
        return pid if machine.start_time(pid) else 0

    @property
    def etc(self) -> Path:
        """The host's own /etc, as seen from outside."""
        return self.directory / "etc"

    @property
    def home(self) -> Path:
        """Root's home on this host (the same path inside and outside)."""
        return self.directory / "home"

    @property
    def bin(self) -> Path:
        """The first directory on this host's PATH: what a fault puts there is found before everything else."""
        return self.directory / "bin"

    @property
    def settings(self) -> dict[str, Any]:
        """What the sshd is started with: ``environment`` (name -> value) and ``limits`` (prlimit name -> value)."""
        path = self.directory / "settings.json"
        return json.loads(path.read_text()) if path.exists() else {"environment": {}, "limits": {}}  # type: ignore[no-any-return]

    def change_settings(self, section: str, values: Mapping[str, str | None]) -> None:
        """Set (or with None, unset) entries of one section of the settings; they hold from the next sshd start."""
        settings = self.settings
        for name, value in values.items():
            if value is None:
                settings[section].pop(name, None)
            else:
                settings[section][name] = value
        (self.directory / "settings.json").write_text(json.dumps(settings))

    def environment(self) -> dict[str, str]:
        """The environment of a login on this host."""
        basic = {
            "PATH": f"{self.bin}:{Path(self.python).parent}:{SYSTEM_PATH}",
            "HOME": str(self.home),
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }
        return basic | self.settings["environment"]

    # -- building it

    def build(
        self, *, switch: str, prefix_length: int, mtu: int, hosts_file: str, own_tmp: bool, keep: list[str]
    ) -> None:
        """Make the network namespace, plug it into the switch, write the files, start the keeper."""
        self._write_files(hosts_file)
        machine.command(["ip", "netns", "add", self.namespace])
        self.plug(switch, prefix_length, mtu)
        specification = {
            "name": self.name,
            "directory": str(self.directory),
            "own_tmp": own_tmp,
            "tmp_size": "32g",
            "shm_size": "16g",
            "keep": keep,
        }
        (self.directory / "init.json").write_text(json.dumps(specification))
        into_new = f"nsenter --net={NETNS / self.namespace} unshare --uts --mount --propagation private".split()
        init = [sys.executable, "-I", "-S", str(Path(__file__).with_name("programs") / "host_init.py")]
        printed = machine.command([*into_new, *init, str(self.directory / "init.json")])
        (self.directory / "keeper.pid").write_text(printed.strip())

    def plug(self, switch: str, prefix_length: int, mtu: int) -> None:
        """Give it eth0, new and never down, plugged into the switch."""
        links = f"link set lo up\nlink set eth0 mtu {mtu} up\naddress add {self.address}/{prefix_length} dev eth0\n"
        machine.command(
            f"ip -netns {self.namespace} link add eth0 index {INTERFACE_INDEX} type veth "
            f"peer name {self.name} netns {switch}".split()
        )
        machine.command(["ip", "-netns", self.namespace, "-batch", "-"], stdin=links)
        machine.command(["ip", "-netns", switch, "link", "set", self.name, "mtu", str(mtu), "master", "br0", "up"])

    def _write_files(self, hosts_file: str) -> None:
        for path in (self.home / ".ssh", self.bin):
            path.mkdir(parents=True, mode=0o700)
        machine.command(["cp", "-a", "/etc", str(self.etc)])
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.write_etc("hosts", hosts_file)
        self.write_etc("hostname", f"{self.name}\n")
        self.write_etc("machine-id", f"{uuid.uuid4().hex}\n")
        # No name server: what /etc/hosts does not know fails at once (port 53 of the loopback refuses).
        self.write_etc("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.write_etc("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
        self.write_etc("nccl.conf", None)
        # The ssh program reads the home of the password file, Python's expanduser reads $HOME: both say this one.
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        accounts = [f"root:x:0:0:root:{self.home}:/bin/bash", "someone:x:12345:12345::/tmp:/bin/bash"]
        self.write_etc("passwd", "\n".join([*accounts, *others]) + "\n")
        # Without PAM, sshd takes a password field that begins with ! for a locked account.
        others = [line for line in Path("/etc/shadow").read_text().splitlines() if not line.startswith("root:")]
        self.write_etc(
            "shadow", "\n".join([*(f"{name}:*:19000:0:99999:7:::" for name in ("root", "someone")), *others]) + "\n"
        )
        self.etc.joinpath("shadow").chmod(0o600)

    def write_etc(self, name: str, text: str | None) -> None:
        """Write a file of the host's own /etc, or with None remove it."""
        path = self.etc / name
        if path.is_symlink() or text is None:
            path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)

    # -- using it

    def entering(self, *, working_directory: str = "/") -> list[str]:
        """The command words that put a program into this host's namespaces (by exec: the pid stays)."""
        if not machine.start_time(self.keeper):
            raise LabError(f"host {self.name} does not stand")
        return [
            "nsenter",
            f"--target={self.keeper}",
            "--net",
            "--uts",
            "--mount",
            "env",
            f"--chdir={working_directory}",
        ]

    def run(
        self, argv: Sequence[str], *, stdin: str = "", timeout: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this host, without ssh, in the environment of a login."""
        done = subprocess.run(
            [*self.entering(), "--ignore-environment", *_assignments(self.environment()), *argv],
            input=stdin,
            text=True,
            errors="replace",
            capture_output=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise LabError(f"{self.name}: {' '.join(argv)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done

    def spawn(self, argv: Sequence[str]) -> int:
        """Start a process on this host that goes on by itself; its pid. It ends with the lab at the latest."""
        words = [*self.entering(), "--ignore-environment", *_assignments(self.environment()), *argv]
        pid = machine.detach(words, self.directory / f"spawned-{uuid.uuid4().hex}")
        machine.wait_for(lambda: self._runs(pid, argv), f"{argv[0]} to start on {self.name}")
        return pid

    @staticmethod
    def _runs(pid: int, argv: Sequence[str]) -> bool:
        """Whether the words that enter the namespaces have made room for the program, or it has ended already."""
        try:
            return len(machine.arguments(pid)) <= len(argv) + 2  # a script's interpreter stands before it
        except OSError:
            return True

    def processes(self) -> list[Process]:
        """Every process of this host, the lab's own (keeper, sshd) included."""
        return machine.processes_in(NETNS / self.namespace)

    # -- its sshd

    def make_host_key(self) -> None:
        """Give the host a new host key; the sshd shows it from its next start."""
        for suffix in ("", ".pub"):
            (self.directory / f"host_key{suffix}").unlink(missing_ok=True)
        machine.command(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", str(self.directory / "host_key")]
        )

    def start_sshd(self) -> None:
        """Start the sshd and return when it listens."""
        Path("/run/sshd").mkdir(exist_ok=True)  # it refuses to start without its empty directory
        config = self.directory / "sshd_config"
        environment = {
            key: value for key, value in self.environment().items() if key not in ("USER", "LOGNAME", "SHELL")
        }
        words = " ".join(f'"{name}={value}"' for name, value in environment.items())
        config.write_text(SSHD_CONFIG.format(directory=self.directory, environment=words))
        limits = [f"--{name}={value}" for name, value in self._limits().items()]
        program = str(shutil.which("sshd", path=machine.program_path()))
        sshd = [program, "-f", str(config), "-E", str(self.directory / "sshd.log")]
        machine.command([*self.entering(), "--ignore-environment", f"PATH={SYSTEM_PATH}", "prlimit", *limits, *sshd])
        machine.wait_for(self._listens, f"the sshd of {self.name} to listen")

    def _limits(self) -> dict[str, str]:
        """As much as this machine grants (a healthy cluster host grants plenty), unless a fault says otherwise."""
        import resource

        granted = {}
        for name, kind in (("memlock", resource.RLIMIT_MEMLOCK), ("nofile", resource.RLIMIT_NOFILE)):
            hard = resource.getrlimit(kind)[1]
            granted[name] = "unlimited:unlimited" if hard == resource.RLIM_INFINITY else f"{hard}:{hard}"
        return granted | self.settings["limits"]

    def _listens(self) -> bool:
        if not self.sshd:
            return False
        lines = Path(f"/proc/{self.sshd}/net/tcp").read_text().splitlines()[1:]
        return any(line.split()[1].endswith(":0016") and line.split()[3] == "0A" for line in lines)

    def stop_sshd(self) -> None:
        """End the listening sshd (open sessions go on)."""
        if self.sshd:
            machine.end([self.sshd])

    def restart_sshd(self) -> None:
        """Start the sshd anew, so that new settings hold."""
        self.stop_sshd()
        self.start_sshd()


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def is_root_owned(directory: Path) -> bool:
    """Whether a directory is a real one that only root could have made there."""
    found = os.lstat(directory)
    return found.st_uid == 0 and directory.is_dir() and not directory.is_symlink()
