"""Faults behind the login: what answers in place of a working Python."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from .base import Fault

PROGRAMS = Path(__file__).parents[1] / "programs"


def _stub(script: str) -> str:
    return f"#!/bin/sh\n{script}\n"


@dataclass
class NoPython(Fault):
    """No python3 (nor python) anywhere on the host: the directories that have one are shown without it."""

    name = "no-python"

    def apply(self) -> None:
        directories = {str(Path(self.host.python).parent), "/usr/bin", "/usr/local/bin"}
        directories.add(str(Path(os.path.realpath(self.host.python)).parent))
        mounted = self.memory.setdefault("mounts", [])
        for number, directory in enumerate(sorted(directories)):
            if any(Path(directory).glob("python*")):
                mounted.append(directory)
                self._hide(directory, self.host.directory / f"hidden-{number}")

    def _hide(self, directory: str, stage: Path) -> None:
        """Mount over a directory links to all it holds, but for the Pythons."""
        real = shlex.quote(str(stage / "real"))
        shown = shlex.quote(str(stage / "shown"))
        self.inside(
            f"mkdir -p {real} {shown}\n"
            f"mount --bind {shlex.quote(directory)} {real}\n"
            f"ln -sf {real}/* {shown}/\n"
            f"rm -f {shown}/python* {shown}/pypy*\n"
            f"mount --bind {shown} {shlex.quote(directory)}\n"
        )

    def undo(self) -> None:
        for directory in reversed(self.memory.pop("mounts", [])):
            self.inside(f"umount {shlex.quote(directory)} || true")
        self.inside(
            f"for stage in {shlex.quote(str(self.host.directory))}/hidden-*; do\n"
            '[ -d "$stage" ] || continue\numount "$stage/real" || true\nrmdir "$stage/real"; rm -r "$stage/shown"\n'
            'rmdir "$stage"\ndone'
        )


@dataclass
class OldPython(Fault):
    """The first python3 on PATH says it is 3.6 and refuses the syntax that 3.6 refuses."""

    name = "old-python"
    version: str = "3.6.8"

    def apply(self) -> None:
        run = f'exec {shlex.quote(self.host.python)} {shlex.quote(str(PROGRAMS / "old_python.py"))} {self.version} "$@"'
        for name in ("python3", "python"):
            self.write(self.host.bin / name, _stub(run), 0o755)


@dataclass
class LoginNoise(Fault):
    """The shell profile prints a banner on stdout at every login, also without a terminal. Work can go on."""

    name = "login-noise"

    def apply(self) -> None:
        banner = f'echo "********** Welcome to {self.host.name} **********"\necho "Quota: 93 % of 100 GB used"\n'
        self.write(self.host.home / ".bashrc", banner)


@dataclass
class GarbageAnswer(Fault):
    """What answers in place of Python prints 64 KiB of bytes that are no protocol, and ends with status 0."""

    name = "garbage-answer"

    def apply(self) -> None:
        pattern = r"printf '\033]0;owned\007\377\376\000{\"half\": \n'"
        script = f"i=0\nwhile [ $i -lt 2600 ]; do {pattern}; i=$((i+1)); done"
        for name in ("python3", "python"):
            self.write(self.host.bin / name, _stub(script), 0o755)


@dataclass
class AnswerCut(Fault):
    """The connection breaks in the middle: the session's sshd is killed after ``after_bytes`` bytes of the answer."""

    name = "answer-cut"
    after_bytes: int = 600

    def apply(self) -> None:
        # The stub's ancestors are the login shell and the session's sshd; the first sshd upwards is killed.
        script = (
            "up=$$\n"
            'while [ "$up" -gt 1 ] && [ "$(cat /proc/$up/comm)" != sshd ]; do\n'
            "  up=$(cut -d ' ' -f 4 /proc/$up/stat)\n"
            "done\n"
            # dd passes every byte on at once (head would keep them back). The pause lets the sshd send what it has;
            # then, if there is more to come, it dies.
            f'{shlex.quote(self.host.python)} "$@" | {{ dd bs=1 count={self.after_bytes} status=none; '
            'sleep 1; read -r _ && kill -9 "$up"; }'
        )
        for name in ("python3", "python"):
            self.write(self.host.bin / name, _stub(script), 0o755)


@dataclass
class AnswerDrips(Fault):
    """The answer comes so slowly that it never ends: ``bytes_per_s`` bytes a second, and always one more."""

    name = "answer-drips"
    bytes_per_s: int = 10

    def apply(self) -> None:
        real, drip = shlex.quote(self.host.python), shlex.quote(str(PROGRAMS / "drip.py"))
        for name in ("python3", "python"):
            self.write(self.host.bin / name, _stub(f'{real} "$@" | {real} -I -S {drip} {self.bytes_per_s}'), 0o755)
