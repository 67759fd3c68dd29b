"""What a fault is: a switch of the lab that breaks one host in one way, and can put everything back."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import machine
from ..machine import LabError

if TYPE_CHECKING:
    from ..host import Host
    from ..lab import Lab

FAULTS: dict[str, type[Fault]] = {}


@dataclass
class Fault(abc.ABC):
    """One fault on one host. Fields that a subclass adds are its parameters.

    ``memory`` is what undoing needs, as plain JSON data: it outlives the process that applied the fault. Undoing is
    safe at any moment, also when applying failed half-way.
    """

    name: ClassVar[str] = ""
    programs: ClassVar[dict[str, str]] = {}  # file or program it needs -> Debian package
    summary: ClassVar[str] = ""

    lab: Lab
    host: Host
    key: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True)
    memory: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.summary = (inspect.getdoc(cls) or "").split("\n")[0]
        if cls.name:
            FAULTS[cls.name] = cls

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """The fault's own parameters with their defaults."""
        common = {item.name for item in dataclasses.fields(Fault)}
        return {item.name: item.default for item in dataclasses.fields(cls) if item.name not in common}

    @classmethod
    def missing(cls) -> list[str]:
        """What this machine lacks for this fault, one sentence each."""
        return [
            f"{cls.name}: no {program}: install the Debian package {package}"
            for program, package in cls.programs.items()
            if not (Path(program).exists() if program.startswith("/") else shutil.which(program))
        ]

    @abc.abstractmethod
    def apply(self) -> None:
        """Break it."""

    def undo(self) -> None:
        """Put back the files, end the processes and remove the packet filter; subclasses add what they did besides."""
        machine.end(self.memory.pop("pids", []))
        for path, text in self.memory.pop("files", {}).items():
            self._restore(Path(path), text)
        for namespace, family, table in self.memory.pop("tables", []):
            self.nft(f"delete table {family} {table}", namespace, check=False)

    def record(self) -> dict[str, Any]:
        """The applied fault as plain data."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {
            "key": self.key,
            "name": self.name,
            "host": self.host.name,
            "parameters": values,
            "memory": self.memory,
        }

    # -- the tools faults are made of

    def write(self, path: Path, text: str, mode: int | None = None) -> None:
        """Replace a file; undoing restores it as it was."""
        kept = self.memory.setdefault("files", {})
        kept.setdefault(str(path), path.read_text() if path.exists() else None)
        path.write_text(text)
        if mode is not None:
            path.chmod(mode)

    def _restore(self, path: Path, text: str | None) -> None:
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text)

    def spawn(self, argv: list[str], host: Host | None = None) -> int:
        """Start a process that ends when the fault is undone."""
        pid = (host or self.host).spawn(argv)
        self.memory.setdefault("pids", []).append(pid)
        return pid

    def nft(self, ruleset: str, namespace: str | None = None, check: bool = True) -> None:
        """Load rules in the host's (or another) network namespace."""
        where = machine.NETNS / (namespace or self.host.namespace)
        machine.command(["nsenter", f"--net={where}", "nft", "-f", "-"], stdin=ruleset, check=check)

    def filter(self, hook: str, rules: list[str], family: str = "inet", namespace: str | None = None) -> None:
        """Add a packet filter chain (``input``, ``output``, ``forward``) with these rules; undoing removes it."""
        table = f"{self.name.replace('-', '_')}_{hook}"
        self.memory.setdefault("tables", []).append([namespace, family, table])
        chain = "\n".join([f"type filter hook {hook} priority 0; policy accept;", *rules])
        self.nft(f"table {family} {table} {{\nchain {hook} {{\n{chain}\n}}\n}}\n", namespace)

    def inside(self, script: str) -> str:
        """Run a shell script on the host (in its namespaces); ``LabError`` if it fails."""
        done = self.host.run(["sh", "-euc", script])
        if done.returncode:
            raise LabError(f"{self.name} on {self.host.name}: {done.stderr.strip()}")
        return done.stdout

    def set_environment(self, **values: str | None) -> None:
        """Change the environment of logins on the host; undo it with :meth:`restore_settings`."""
        self._change("environment", values)

    def set_limits(self, **values: str) -> None:
        """Change the resource limits of logins on the host; undo it with :meth:`restore_settings`."""
        self._change("limits", values)

    def _change(self, section: str, values: dict[str, Any]) -> None:
        before = self.host.settings[section]
        self.memory["settings"] = {"section": section, "values": {name: before.get(name) for name in values}}
        self.host.change_settings(section, values)
        self.host.restart_sshd()

    def restore_settings(self) -> None:
        """Put back what :meth:`set_environment` or :meth:`set_limits` changed."""
        kept = self.memory.pop("settings", None)
        if kept:
            self.host.change_settings(kept["section"], kept["values"])
            self.host.restart_sshd()
