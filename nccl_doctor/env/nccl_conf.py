"""Which value of a variable NCCL sees: process environment, then configuration files, as NCCL itself reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from nccl_doctor.env.versions import Version, at_least
from nccl_doctor.facts.interfaces import ConfFile

CONF_FILE_VARIABLE_SINCE = "2.23.4"  # NCCL_CONF_FILE; then ~/.nccl.conf is not read
CARRIAGE_RETURN_CUT_SINCE = "2.30.3"
HOME_VARIABLE_SINCE = "2.30.3"  # ~ is $HOME; before, the home directory of the password file


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


def parse_line(text: str, version: Version) -> tuple[str, str] | None:
    """Name and value as NCCL takes them; None where the line sets no NCCL variable.

    NCCL trims no blanks and removes no quotes or comments. Before 2.30.3 even the carriage return of a Windows line
    end is part of the value (run with 13 libraries, 2.16.5 to 2.32.3).
    """
    if at_least(version, CARRIAGE_RETURN_CUT_SINCE):
        text = text.removesuffix("\r")
    name, equals, value = text.partition("=")
    return (name, value) if equals and re.fullmatch(r"NCCL_\w*", name) else None


def files_read(files: Iterable[ConfFile], version: Version) -> tuple[ConfFile, ...]:
    """The configuration files this NCCL version reads, the one that wins first."""
    by_role = {file.role: file for file in files}
    user = by_role.get("home" if at_least(version, HOME_VARIABLE_SINCE) else "passwd-home")
    if at_least(version, CONF_FILE_VARIABLE_SINCE) and "environment" in by_role:
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
            parsed = parse_line(line.text, version)
            if parsed is not None:
                name, value = parsed
                found.setdefault(name, Setting(name, value, file.path, line.line, line.text))
    return found
