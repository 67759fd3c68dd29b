"""Real sshds on 127.0.0.x, each with its own key and directory; and the client side: keys, known_hosts, ssh config."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.ports import free_port

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def why_not() -> str:
    """Why no sshd can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root (sshd)"
    if not Path(SSHD).exists():
        return "needs openssh-server"
    return ""


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """Create a key pair; returns the public line."""
    path.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_name(path.name + ".pub").read_text().strip()


class Sshd:
    """One sshd in the foreground, child of the test."""

    def __init__(self, place: Path, authorized: str, address: str = "127.0.0.1", **options: str) -> None:
        place.mkdir(parents=True)
        self.place = place
        self.address = address
        self.port = free_port(address)
        self.options = options
        self.key = place / "host_key"
        self.public = make_key(self.key)
        (place / "authorized_keys").write_text(authorized + "\n")
        self.log = place / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        settings = {
            "ListenAddress": f"{self.address}:{self.port}",
            "HostKey": str(self.key),
            "AuthorizedKeysFile": str(self.place / "authorized_keys"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes",
            "PermitUserEnvironment": "no",
            "AllowAgentForwarding": "yes",
            "X11Forwarding": "yes",
            "LogLevel": "VERBOSE",
            **self.options,
        }
        # Another home: what the tester's own .bashrc does (pyenv, conda) is no part of the test.
        settings["SetEnv"] = f"HOME={self.place} {self.options.get('SetEnv', '')}"
        config = self.place / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        command = [SSHD, "-D", "-E", str(self.log), "-f", str(config)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                socket.create_connection((self.address, self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"sshd did not start: {self.log.read_text()}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def swap_key(self) -> str:
        """Give it another key of the same kind; returns the new public line."""
        self.stop()
        self.public = make_key(self.key)
        self.start()
        return self.public

    def known_line(self) -> str:
        """This host as known_hosts writes it."""
        kind, blob, *_ = self.public.split()
        return f"[{self.address}]:{self.port} {kind} {blob}"
