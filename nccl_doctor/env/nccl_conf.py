"""Which value of a variable NCCL sees: process environment, then configuration files, as NCCL itself reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from nccl_doctor.env.nccl_version import Version
from nccl_doctor.facts.interfaces import ConfFile, ConfLine

CONF_FILE_VARIABLE_SINCE: Version = (2, 23, 4)  # NCCL_CONF_FILE; then ~/.nccl.conf is not read
HOME_VARIABLE_SINCE: Version = (2, 30, 3)  # ~ is $HOME; before, the home directory of the password file


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variable with the value NCCL would see, and where it was set. ``line`` counts from 1; 0: not from a file."""

    name: str
    value: str
    source: str  # "environment", "job environment" (given on the command line) or the file's path
    line: int = 0
    text: str = ""  # the file's line, verbatim

    @property
    def place(self) -> str:
        """``/etc/nccl.conf:3``, or ``environment``."""
        return f"{self.source}:{self.line}" if self.line else self.source

    @property
    def quote(self) -> str:
        """What stands there, verbatim."""
        return self.text or f"{self.name}={self.value}"


class IgnoredLine(msgspec.Struct, frozen=True):
    """A line that was meant to set an NCCL variable and does not, with the reason."""

    source: str
    line: int
    text: str
    why: str


def parse_line(line: ConfLine) -> tuple[str, str] | str:
    """Name and value as NCCL takes them, or why the line has no effect.

    NCCL neither trims blanks nor removes quotes or comments; a carriage return at the end is harmless.
    """
    text = line.text.rstrip("\r")
    if text.startswith("#") or "=" not in text:
        return "a comment, or no '='"
    name, value = text.split("=", 1)
    if re.fullmatch(r"NCCL_\w*", name):
        return name, value
    if name.lstrip().startswith("export"):
        return "'export' becomes part of the name: NCCL reads plain NAME=VALUE lines"
    return "a blank before the name or before '=' becomes part of the name"


def files_read(files: Iterable[ConfFile], version: Version) -> tuple[ConfFile, ...]:
    """The configuration files this NCCL version reads, the one that wins first."""
    by_role = {file.role: file for file in files}
    user = by_role.get("home" if version >= HOME_VARIABLE_SINCE else "passwd-home")
    if version >= CONF_FILE_VARIABLE_SINCE and "environment" in by_role:
        user = by_role["environment"]
    return tuple(file for file in (user, by_role.get("system")) if file is not None)


def effective(
    environment: Mapping[str, str],
    files: Iterable[ConfFile],
    version: Version,
    job_environment: Mapping[str, str] | None = None,
) -> dict[str, Setting]:
    """Variable -> setting in force. ``job_environment`` (what the job will be started with) wins over all."""
    found: dict[str, Setting] = {}
    for name, value in (job_environment or {}).items():
        found.setdefault(name, Setting(name, value, "job environment"))
    for name, value in environment.items():
        found.setdefault(name, Setting(name, value, "environment"))
    for file in files_read(files, version):
        for line in file.lines:
            parsed = parse_line(line)
            if isinstance(parsed, tuple):
                name, value = parsed
                found.setdefault(name, Setting(name, value, file.path, line.line, line.text))
    return found


def ignored_lines(files: Iterable[ConfFile], version: Version) -> tuple[IgnoredLine, ...]:
    """Lines of the files in force that were meant to set an NCCL variable and do not."""
    found = []
    for file in files_read(files, version):
        for line in file.lines:
            parsed = parse_line(line)
            if isinstance(parsed, str):
                found.append(IgnoredLine(file.path, line.line, line.text, parsed))
    return tuple(found)
