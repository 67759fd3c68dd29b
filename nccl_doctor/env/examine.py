"""One lint run: gather assignments from files, logs, a bundle or this process, settle the versions, lint, judge."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from nccl_doctor.env import files, hosts, knowledge, number, sources, versions
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.env.extract import log as log_reader
from nccl_doctor.env.files import Problem
from nccl_doctor.env.lint import Devices, Remark, remark, remarks, wrong
from nccl_doctor.facts.model import Bundle
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Severity

# The wheels that bring libnccl, newest CUDA first.
_NCCL_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")

# Before, the default of NCCL_DEBUG_SUBSYS leaves ENV out (src/debug.cc, all tags from 2.3.5 to 2.30.7); numbers are told.
TEXTS_TOLD_SINCE = "2.16.5"


class Examination(msgspec.Struct, frozen=True):
    """The result of a lint run. ``judged_for`` says for which versions, and where they come from."""

    remarks: tuple[Remark, ...]
    assignments: tuple[Assignment, ...]
    looked_at: tuple[str, ...]  # what was read: files, logs, hosts, "environment"
    problems: tuple[Problem, ...]
    judged_for: str

    def count(self, severity: Severity) -> int:
        """How many findings of this severity."""
        return sum(item.finding.severity is severity for item in self.remarks)

    def exit_code(self, strict: bool) -> ExitCode:
        """The exit code of the published table."""
        if self.count(Severity.FAIL):
            return ExitCode.FINDINGS
        if not self.looked_at:
            return ExitCode.NOTHING_CHECKED
        if self.problems:
            return ExitCode.INCOMPLETE
        if strict and self.count(Severity.WARN):
            return ExitCode.WARNINGS
        return ExitCode.HEALTHY


def examine(
    paths: Sequence[str] = (),
    logs: Sequence[str] = (),
    bundle: Bundle | None = None,
    nccl_version: str = "",
    torch_version: str = "",
) -> Examination:
    """Lint what is named; this process's environment if nothing is. ``ValueError`` for a version that is none."""
    for version in (nccl_version, torch_version):
        if version:
            versions.parse(version)
    assignments: list[Assignment] = []
    looked_at: list[str] = []
    problems: list[Problem] = []
    extra: list[Remark] = []
    devices: dict[str, Devices] = {}
    said = "given" if nccl_version else ""
    if paths:
        reading = files.read(paths)
        assignments += reading.assignments
        looked_at += reading.looked_at
        problems += reading.problems
    for path in logs:
        found, refused, version = _log(path, problems)
        if not nccl_version:
            nccl_version, said = version, f"from {path}"
        assignments += found
        extra += refused
        if found or version or not problems or problems[-1].file != path:
            looked_at.append(path)
    if bundle is not None:
        fleet = hosts.of_facts(bundle)
        if not nccl_version:
            nccl_version, said = fleet.nccl_version, "found on the hosts"
        torch_version = torch_version or fleet.torch_version
        devices = fleet.devices
        assignments += fleet.assignments
        extra += fleet.remarks
        looked_at += fleet.hosts
        problems += fleet.problems
    else:  # what is linted here will most likely run with what is installed here
        torch_version = torch_version or _installed("torch")
        if not nccl_version:
            nccl_version, said = next(filter(None, map(_installed, _NCCL_WHEELS)), ""), "installed in this Python"
    if not paths and not logs and bundle is None:
        here = sources.of_this_process(nccl_version)
        assignments += here.all
        extra += sources.source_order(here.layers)
        looked_at += [name for name, _ in here.layers]
        problems += here.problems
    found_remarks = hosts.fold((*remarks(assignments, nccl_version, torch_version, devices), *extra))
    return Examination(
        tuple(sorted(found_remarks, key=_order)),
        tuple(assignments),
        tuple(looked_at),
        tuple(problems),
        _judged(nccl_version, said, torch_version),
    )


def _order(item: Remark) -> tuple[str, str, int, str]:
    return item.assignment.host, item.assignment.file, item.assignment.line or 0, item.finding.id


def _judged(nccl: str, said: str, torch: str) -> str:
    first = _release("NCCL", nccl, knowledge.NEWEST_NCCL, said, "no version named: the newest known")
    return f"{first}, {_release('PyTorch', torch, knowledge.NEWEST_TORCH, '', 'the newest known')}"


def _release(name: str, named: str, newest: str, source: str, unnamed: str) -> str:
    beyond = f"newer than all that is known here, {newest}" if knowledge.is_beyond(named, newest) else ""
    told = "; ".join(filter(None, (source, beyond))) if named else unnamed
    return f"{name} {named or newest}" + (f" ({told})" if told else "")


def _installed(name: str) -> str:
    """The version of a distribution in this Python, without importing it; empty if there is none."""
    try:
        found = importlib.metadata.version(name).split("+")[0]
        versions.parse(found)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return found


def _log(path: str, problems: list[Problem]) -> tuple[Iterable[Assignment], list[Remark], str]:
    """(assignments, remarks on what NCCL refused, NCCL version) of one log, read in bounded memory."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as stream:
            reading = log_reader.read(_lines(stream), path)
    except OSError as error:
        problems.append(Problem(path, f"cannot be read: {error.strerror}"))
        return (), [], ""
    if not reading.speaks and not reading.refused:
        problems.append(Problem(path, "has no line of NCCL that tells what is set: run with NCCL_DEBUG=INFO"))
    elif (
        reading.nccl_version
        and not versions.at_least(versions.parse(reading.nccl_version), TEXTS_TOLD_SINCE)
        and all(number.is_number(item.value or "") for item in reading.assignments)
    ):
        why = f"NCCL before {TEXTS_TOLD_SINCE} tells them only with NCCL_DEBUG_SUBSYS=INIT,ENV"
        problems.append(Problem(path, f"names no variable that is a text (an interface, an HCA): {why}"))
    failed = [
        remark(
            item,
            wrong(
                "invalid-value",
                f"NCCL refused {item.name}={item.value} and used its default",
                fix=f"Correct or remove it (nccl-doctor env show {item.name}).",
            ),
        )
        for item in reading.refused
    ]
    failed += [
        remark(
            item,
            wrong(
                "ifname-no-match",
                f"{item.name}={item.value} matched no interface of this host: NCCL could not start",
                fix="Remove it, or correct it; `nccl-doctor env recommend --hosts HOSTFILE` says whether any is needed.",
            ),
        )
        for item in reading.matchless
    ]
    return reading.assignments, failed, reading.nccl_version


def _lines(stream: TextIO) -> Iterator[str]:
    """The beginning of each line, so that a line of 100 MB needs no 100 MB."""
    started = False
    while piece := stream.readline(log_reader.LINE_LIMIT):
        if not started:
            yield piece
        started = not piece.endswith("\n")
