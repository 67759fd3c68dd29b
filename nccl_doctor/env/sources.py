"""Where the variables of a process come from, and which source wins: environment, user's nccl.conf, /etc/nccl.conf."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from nccl_doctor.env import knowledge, nccl_conf
from nccl_doctor.env.assignments import Assignment, How, is_ours
from nccl_doctor.env.extract import conf
from nccl_doctor.env.files import Problem, Unreadable, read_text
from nccl_doctor.env.lint import Remark, doubtful, remark
from nccl_doctor.facts.interfaces import ConfFile
from nccl_doctor.facts.redaction import is_secret_name

SYSTEM_CONF = "/etc/nccl.conf"


class Sources(msgspec.Struct, frozen=True):
    """Assignments by source, highest precedence first, and what could not be read."""

    layers: tuple[tuple[str, tuple[Assignment, ...]], ...]
    problems: tuple[Problem, ...] = ()

    @property
    def all(self) -> tuple[Assignment, ...]:
        """Every assignment of every source."""
        return tuple(item for _, layer in self.layers for item in layer)


def of_environment(variables: Mapping[str, str], host: str = "", name: str = "environment") -> tuple[Assignment, ...]:
    """The assignments a process environment stands for; those whose names say that they are secrets are left out."""
    return tuple(
        Assignment(key, value, name, None, How.PROCESS, f"{key}={value}", f"host {host}", host=host)
        for key, value in sorted(variables.items())
        if is_ours(key) and not is_secret_name(key)
    )


def _conf_files() -> Iterator[ConfFile]:
    """Where nccl.conf may stand on this machine."""
    with contextlib.suppress(KeyError):
        yield ConfFile("passwd-home", str(Path(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf")))
    if home := os.environ.get("HOME"):
        yield ConfFile("home", str(Path(home, ".nccl.conf")))
    if named := os.environ.get("NCCL_CONF_FILE"):
        yield ConfFile("environment", named)
    yield ConfFile("system", SYSTEM_CONF)


def of_this_process(nccl_version: str) -> Sources:
    """What a process started from here would see: its environment, then the configuration files of this machine."""
    layers = [("environment", of_environment(os.environ))]
    problems = []
    for file in nccl_conf.files_read(_conf_files(), knowledge.nccl_release(nccl_version)):
        if os.path.lexists(file.path):
            try:
                text = read_text(file.path)
            except Unreadable as error:
                problems.append(Problem(file.path, str(error)))
            else:
                layers.append((file.path, tuple(conf.read(text, file.path, "host "))))
    return Sources(tuple(layers), tuple(problems))


def effective(layers: Sequence[tuple[str, Sequence[Assignment]]]) -> dict[str, Assignment]:
    """Name -> the assignment that wins: the first source that has it, in a file its first line."""
    winners: dict[str, Assignment] = {}
    for _, layer in layers:
        for item in layer:
            if not item.lost:
                winners.setdefault(item.name, item)
    return winners


def source_order(layers: Sequence[tuple[str, Sequence[Assignment]]]) -> Iterator[Remark]:
    """A variable set in several sources with different values: which one won."""
    winners = effective(layers)
    for _, layer in layers[1:]:
        for item in layer:
            winner = winners.get(item.name)
            if item.lost or winner is None or winner is item or winner.file == item.file or winner.value == item.value:
                continue
            yield remark(
                item,
                doubtful(
                    "source-order",
                    f"{item.name}={item.value} of {item.file} loses against {winner.value} of {winner.file} "
                    "(environment, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf)",
                    fix="Remove the one that is not meant.",
                ),
                others=(winner,),
            )
