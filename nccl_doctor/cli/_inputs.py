"""Inputs and files that commands share: those that are no good are refused before anything is done."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nccl_doctor.cli import _options, _tell

if TYPE_CHECKING:
    from nccl_doctor.bench.outcome import Outcome
    from nccl_doctor.facts.model import Bundle


@contextlib.contextmanager
def bad_input_stops() -> Iterator[None]:
    """Turn the typed errors of bad input into a usage error."""
    from nccl_doctor.facts.bundle import BundleError
    from nccl_doctor.inventory import InventoryError

    try:
        yield
    except (InventoryError, BundleError) as error:
        _tell.stop(str(error))


def _command_of(bundle: Bundle) -> str:
    """Which command kept it: what one looked at is nothing to another."""
    return {"job": "hang", "watch": "watch"}.get(bundle.plan.stages[0] if bundle.plan.stages else "", "check")


def read_bundle(path: Path, *, of: str = "check") -> Bundle:
    """A saved run of this command; stops where the file holds none: a look at a job says nothing of hosts."""
    from nccl_doctor.facts import bundle as bundles

    with bad_input_stops():
        bundle = bundles.read(path)
    kept_by = _command_of(bundle)
    if kept_by != of:
        reader = f"it is read by `nccl-doctor {kept_by} --from FILE`"
        wanted = f"{of} reads what `nccl-doctor {of} --save FILE` keeps"
        _tell.stop(f"{path}: a bundle of {kept_by}; {reader if of == 'check' else wanted}")
    return bundle


def read_saved(context: typer.Context, path: Path, *, of: str = "check") -> Bundle:
    """The run of ``--from``, in place of hosts."""
    _options.nothing_is_measured(context, "--from judges a saved bundle")
    return read_bundle(path, of=of)


def saved_run(path: Path, said: str = "") -> Outcome:
    """A run that ``bench --save`` kept; stops where the file holds none, with ``said`` before the reason."""
    from nccl_doctor.bench.outcome import BaselineError, read

    try:
        return read(path)
    except BaselineError as error:
        _tell.stop(f"{said}{error}")


def check_program(command: Sequence[str]) -> None:
    """Stop where a command cannot be run, before anything else is done."""
    if "{" in command[0] or shutil.which(command[0]):
        return
    if len(command) == 1 and len(command[0].split()) > 1:
        _tell.stop(f"{command[0]!r} is one word: leave out the quotes around the whole command")
    script = os.path.isfile(command[0])  # noqa: PTH113 - of a Path, a long command in quotes is no name but an error
    needs = (
        "a script, behind --, needs its interpreter before it" if script else "a command, behind --, must be in PATH"
    )
    _tell.stop(f"{command[0]!r} is no program: hosts are named by --hosts FILE or -H HOSTS; {needs}")


def check_kept(path: Path, option: str, inputs: Mapping[str, str | Path | None]) -> None:
    """Stop where a file that is to be written is one that this command reads (by the option that names it): it would be lost."""
    for source, read in inputs.items():
        if read and os.path.isfile(path) and os.path.isfile(read) and os.path.samefile(path, read):  # noqa: PTH113, PTH121
            _tell.stop(f"{option} {path}: would take the place of what {source} reads; name another file")


def check_writable(path: Path, option: str, inputs: Mapping[str, str | Path | None]) -> None:
    """Stop, before anything is done, where a file that is to be written at the end cannot be, or is one of the ``inputs``."""
    if str(path) == "-":
        _tell.stop(f"{option} -: writes a file, and standard output is none; name a file")
    if path.is_dir():
        _tell.stop(f"{option} {path}: is a directory; name a file")
    place = path.parent
    if not place.is_dir():
        _tell.stop(f"{option} {path}: there is no directory {place}")
    if not os.access(path if path.exists() else place, os.W_OK):
        _tell.stop(f"{option} {path}: may not be written by this user")
    check_kept(path, option, inputs)


def check_directory(path: Path, option: str) -> None:
    """Stop, before anything is done, where nothing could be written beneath a directory, which need not be there yet."""
    import tempfile

    try:
        place = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
        is_directory = place.is_dir()
    except OSError as error:
        _tell.stop(f"{option} {path}: {error.strerror or error}")
    if not is_directory:
        _tell.stop(f"{option} {path}: {place} is no directory")
    try:  # permissions do not tell all: a read-only file system, root on a network file system
        tempfile.TemporaryDirectory(prefix=".nccl-doctor-", dir=place).cleanup()
    except OSError as error:
        _tell.stop(f"{option} {path}: {place} cannot be written to: {error.strerror or error}")
