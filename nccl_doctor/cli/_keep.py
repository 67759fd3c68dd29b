"""``--keep``: all that is needed to escalate a job that failed or hangs, in a directory of its own."""

from __future__ import annotations

import contextlib
import datetime
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_doctor import __version__
from nccl_doctor.agent.probes.environment import allowed
from nccl_doctor.cli import _tell
from nccl_doctor.explain.printable import printable
from nccl_doctor.facts import files
from nccl_doctor.facts.redaction import redact_argv, redact_environment
from nccl_doctor.rules.units import size

SCHEMA = "nccl-doctor/job/1"


class Keep:
    """Copies what lies in the job's temporary directory to a new one beneath ``parent``; without a parent, nowhere.

    The directory is made when there is first something to keep, and no earlier one is ever written to. What the disk does
    not take is told and left out.
    """

    def __init__(
        self,
        parent: Path | None,
        place: Path,
        argv: Sequence[str],
        environment: Mapping[str, str],
        hosts: Sequence[str],
    ) -> None:
        self._parent = parent
        self._place = place
        self.target: Path | None = None  # where it is kept, as soon as anything is
        self._added: dict[str, Callable[[], bytes]] = {}
        self._told: set[str] = set()
        self._job: dict[str, Any] = {
            "schema": SCHEMA,
            "tool": f"nccl-doctor {__version__}",
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "started": _now(),
            "command": redact_argv(list(argv)),
            "directory": _directory(),
            "hosts": list(hosts),
            "environment": redact_environment({name: environment[name] for name in environment if allowed(name)}),
        }

    def add(self, name: str, content: Callable[[], bytes]) -> None:
        """A file to be kept beside those of the temporary directory, if the job fails."""
        self._added[name] = content

    def save(self, state: str) -> None:
        """Keep what there is now; ``state`` says how the job stands."""
        if self._parent is None:
            return
        job = printable({**self._job, "state": state, "kept": _now()})
        self.add("job.json", lambda: files.printed_json(job))
        missed: dict[str, str] = {}
        try:
            self.target = target = self.target or _new(self._parent, self._name())
            for name, content in self._added.items():
                with _missing(missed, name):
                    files.write(target / name, content(), private=True)
            for source in sorted(self._place.iterdir(), key=_bytes):  # the large ones last
                with _missing(missed, source.name):
                    _copy(source, target / source.name)
            kept = {path.name: size(_bytes(path)) for path in sorted(target.iterdir())}
        except OSError as error:
            _tell.say(f"--keep {self._parent}: {error.strerror or error}: nothing is kept")
            return
        new = [f"{name} ({kept[name]})" for name in kept if name not in self._told or name.startswith("job-output")]
        self._told |= kept.keys()
        without = "".join(f"; without {name}: {why}" for name, why in missed.items())
        _tell.say(f"kept in {target}: {', '.join(new) or 'nothing'}{without}")

    def _name(self) -> str:
        program = re.sub(r"[^\w.-]", "_", Path(self._job["command"][0]).name)[:40]
        return f"{str(self._job['started']).replace(':', '')}-{program}"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _directory() -> str:
    with contextlib.suppress(OSError):  # it may have been removed
        return str(Path.cwd())
    return ""


@contextlib.contextmanager
def _missing(missed: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        missed[name] = error.strerror or str(error)


def _bytes(path: Path) -> int:
    """0 where it has gone: the job may print, and its output be moved, while it is copied."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _new(parent: Path, name: str) -> Path:
    """A directory that was not there: its owner's alone, as a job's output may hold what is nobody else's."""
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        target = parent / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir(mode=0o700)
            return target
        except FileExistsError:
            number += 1


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all."""
    beside = target.with_name(f".{target.name}")
    try:
        shutil.copyfile(source, beside)
        beside.replace(target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
