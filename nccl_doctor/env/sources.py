"""Where the variables of a process come from, and which source wins: environment, user's nccl.conf, /etc/nccl.conf."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from nccl_doctor.env import versions
from nccl_doctor.env.assignments import Assignment, How, is_ours
from nccl_doctor.env.extract import conf
from nccl_doctor.env.files import Problem, Unreadable, read_text
from nccl_doctor.env.lint import Edit, Remark, remark
from nccl_doctor.findings.model import Severity

SYSTEM_CONF = "/etc/nccl.conf"

# A value like this is a secret even in a variable of ours.
_NEVER = ("TOKEN", "SECRET", "PASSWORD", "KEY")


class Sources(msgspec.Struct, frozen=True):
    """Assignments by source, highest precedence first, and what could not be read."""

    layers: tuple[tuple[str, tuple[Assignment, ...]], ...]
    problems: tuple[Problem, ...] = ()

    @property
    def all(self) -> tuple[Assignment, ...]:
        """Every assignment of every source."""
        return tuple(item for _, layer in self.layers for item in layer)


def of_environment(variables: Mapping[str, str], host: str = "", name: str = "environment") -> tuple[Assignment, ...]:
    """The assignments a process environment stands for."""
    return tuple(
        Assignment(key, value, name, None, How.PROCESS, f"{key}={value}", f"host {host}", host=host)
        for key, value in sorted(variables.items())
        if is_ours(key) and not any(word in key for word in _NEVER)
    )


def conf_paths(variables: Mapping[str, str], home: str, nccl_version: str = "") -> tuple[str, ...]:
    """The configuration files NCCL reads, first one winning. NCCL_CONF_FILE (2.23+) replaces ~/.nccl.conf."""
    named = variables.get("NCCL_CONF_FILE", "")
    if named and (not nccl_version or versions.at_least(versions.parse(nccl_version), "2.23.4")):
        return named, SYSTEM_CONF
    return str(Path(home, ".nccl.conf")), SYSTEM_CONF


def of_this_process(nccl_version: str = "") -> Sources:
    """What a process started from here would see: its environment, then the configuration files of this machine."""
    layers = [("environment", of_environment(os.environ))]
    problems = []
    for path in conf_paths(os.environ, str(Path.home()), nccl_version):
        if os.path.lexists(path):
            try:
                text = read_text(path)
            except Unreadable as error:
                problems.append(Problem(path, str(error)))
            else:
                layers.append((path, tuple(conf.read(text, path, "host "))))
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
                "source-order",
                Severity.WARN,
                f"{item.name}={item.value} of {item.file} loses against {winner.value} of {winner.file} "
                "(environment, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf)",
                item,
                others=(winner,),
                fix="Remove the one that is not meant.",
                edit=Edit(),
            )
