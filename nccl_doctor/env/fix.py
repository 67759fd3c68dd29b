"""Mend files: rename, correct or take out the assignments that lint found wrong, one line at a time, as a diff.

Only what one line says for certain is changed; everything else is left, and said so.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.files import Unreadable, extract, kind_of_name, kind_of_text, read_text
from nccl_doctor.env.lint import Edit, Remark
from nccl_doctor.findings.model import Severity


class Change(msgspec.Struct, frozen=True):
    """What would become of one file. ``left`` names findings that only a person can mend."""

    file: str
    before: str
    after: str
    left: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The unified diff; empty if nothing changes."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.file, f"{self.file}.fixed"
        )
        return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def changes(remarks: Iterable[Remark]) -> Iterator[Change]:
    """One change per file that has something to mend, in order. Remarks that are only worth knowing change nothing."""
    by_file: dict[str, list[Remark]] = {}
    for item in remarks:
        if item.finding.severity is not Severity.INFO and item.assignment.file and item.assignment.line:
            by_file.setdefault(item.assignment.file, []).append(item)
    for file, found in sorted(by_file.items()):
        try:
            before = read_text(file)
        except Unreadable:
            continue
        if "\ufffd" in before:  # what was read so is not what stands there, and would be written so
            yield Change(file, before, before, (f"{file}: not all of it is UTF-8 text: nothing is changed",))
        else:
            yield _change(file, before, found)


def _change(file: str, before: str, found: list[Remark]) -> Change:
    lines = before.split("\n")
    left: list[str] = []
    done: dict[tuple[int, str], Edit] = {}
    for item in sorted(found, key=_weight):
        number = item.assignment.line or 0
        key = (number, item.assignment.name)
        if key in done and (done[key].removes or done[key] == item.edit):
            continue  # gone already
        mended = None if item.edit is None or number > len(lines) else _apply(lines, number, item.assignment, item.edit)
        if mended is None:
            left.append(f"{file}:{number}: {item.finding.title}")
        else:
            for place, line in mended.items():
                lines[place - 1] = line
            done[key] = item.edit or Edit()
    after = "\n".join(lines)
    try:
        extract(after, file, kind_of_name(file) or kind_of_text(before))
    except Unreadable as error:
        return Change(
            file, before, before, (f"{file}: with what would be changed it {error}: nothing is changed", *left)
        )
    return Change(file, before, after, tuple(left))


def _weight(item: Remark) -> tuple[int, int]:
    """Line order, and on one line the removals first: what goes needs no other mending."""
    return item.assignment.line or 0, 0 if item.edit and item.edit.removes else 1


def _apply(lines: list[str], number: int, item: Assignment, edit: Edit) -> dict[int, str] | None:
    """The lines that change, or None if this cannot be done safely."""
    line = lines[number - 1]
    name = re.escape(item.written.strip() if item.written and item.how is not How.CONF else item.name)
    if edit.removes:
        return _remove(lines, number, item)
    if item.how is How.CONF:
        mended = f"{edit.name or item.name}={edit.value if edit.value is not None else item.value}"
        return {number: _conf_indent(line, item) + mended} if _is_conf_line(line, item) else None
    if edit.name:
        renamed, count = re.subn(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", edit.name, line)
        return {number: renamed} if count == 1 else _rename_above(lines, number, name, edit.name)
    return _new_value(line, number, item, edit.value or "")


def _is_conf_line(line: str, item: Assignment) -> bool:
    """Whether the line is one of nccl.conf itself, and not an echo that writes one."""
    return line.lstrip().startswith((item.name, item.written.strip() or item.name))


def _conf_indent(line: str, item: Assignment) -> str:
    """Inside YAML the indentation belongs to YAML; anywhere else a leading blank is part of the name."""
    return line[: len(line) - len(line.lstrip())] if item.file.endswith((".yaml", ".yml")) else ""


def _rename_above(lines: list[str], number: int, name: str, new: str) -> dict[int, str] | None:
    """The name of a Kubernetes pair stands on the line before its value."""
    for place in (number - 1, number - 2):
        if place >= 1 and re.search(rf"name:\s*[\"']?{name}\b", lines[place - 1]):
            return {place: re.sub(name, new, lines[place - 1])}
    return None


def _new_value(line: str, number: int, item: Assignment, value: str) -> dict[int, str] | None:
    if item.value is None or not item.value:
        return None
    found = list(re.finditer(re.escape(item.value), line))
    # The value stands after the name where both are on one line.
    after = line.find(item.name) + len(item.name) if item.name in line else 0
    found = [match for match in found if match.start() >= after]
    if len(found) != 1:
        return None
    return {number: line[: found[0].start()] + value + line[found[0].end() :]}


def _remove(lines: list[str], number: int, item: Assignment) -> dict[int, str] | None:
    """Take one assignment out: comment the line if there is nothing else on it, else cut the word."""
    line = lines[number - 1]
    indent = line[: len(line) - len(line.lstrip())]
    plain = r"""(?!["'])(?:\$\([^()]*\)|\$\{[^{}]*\}|(?!\$[({])[^\s;&|"'`()\\])*"""
    end = r"""(?=[\s;&|)"']|\Z)"""  # else there is more of the value: nothing is cut out of its middle
    word = rf"{re.escape(item.name)}=(?:\"[^\"]*\"|'[^']*'|{plain}){end}"
    note = "# taken out by nccl-doctor: "
    if item.how is How.CONF:
        return {number: f"{_conf_indent(line, item)}# {line.strip()}"} if _is_conf_line(line, item) else None
    if item.how is How.YAML:
        return _remove_yaml(lines, number, item, note)
    if item.how is How.PYTHON:
        alone = re.fullmatch(r"\s*os\.(?:environ(?:\[[^\]]*\]\s*=|\.setdefault\()|putenv\().*\)?\s*", line)
        balanced = line.count("(") == line.count(")") and line.count("[") == line.count("]")
        return {number: f"{indent}pass  {note}{line.strip()}"} if alone and balanced else None
    if item.how is How.DOCKERFILE:
        return {number: f"{note}{line}"} if re.fullmatch(rf"\s*(?:ENV|ARG)\s+{word}\s*", line) else None
    if line.rstrip().endswith("\\"):
        return None
    if re.fullmatch(rf"\s*(?:export\s+)?{word}\s*;?\s*(?:#.*)?", line):
        # An arm of an if must not become empty: ':' does nothing and keeps the shell content.
        nothing = ": " if indent and item.how is not How.ENV_FILE else ""
        return {number: f"{indent}{nothing}{note}{line.strip()}"}
    quoted = re.search(rf"{word}([\"'])", line)
    if quoted and line.count(quoted[1], 0, quoted.start()) % 2 == 0:
        return None  # the quote opens here, and is a part of the value
    # An export of nothing else becomes ':': without any name it would print all variables.
    cut, count = re.subn(rf"(?<![A-Za-z0-9_])export\s+{word}(?=\s*(?:[;&|)\"']|\Z))", ":", line)
    if not count:
        cut, count = re.subn(rf"(?:(?<=\s)-x\s+|(?<=\s)-e\s+|(?<=\s)--env\s+)?(?<![A-Za-z0-9_]){word}\s?", "", line)
    # An empty line in the middle of a command over several lines of YAML would end it.
    whole = count == 1 and cut.strip() and not re.search(r"--(?:export|env)=", line)
    return {number: cut} if whole and item.how in (How.EXPORT, How.PREFIX, How.OPTION) else None


def _remove_yaml(lines: list[str], number: int, item: Assignment, note: str) -> dict[int, str] | None:
    line = lines[number - 1]
    if re.match(rf"\s*-\s+[\"']?{re.escape(item.name)}=\S*\s*$", line) or re.match(
        rf"\s*[\"']?{re.escape(item.name)}[\"']?\s*:\s*\S+\s*$", line
    ):
        return {number: f"{note}{line.strip()}"}
    above = lines[number - 2] if number > 1 else ""
    if re.match(rf"\s*-\s+name:\s*[\"']?{re.escape(item.name)}[\"']?\s*$", above) and re.match(r"\s+value:", line):
        return {number - 1: f"{note}{above.strip()}", number: f"# {line.strip()}"}
    return None


def write(change: Change, path: str) -> None:
    """Write the mended text to ``path``, never half, with the original's permissions; ``OSError`` where that fails."""
    target = Path(path)
    if target.is_symlink() and path != change.file:
        raise FileExistsError(f"{path} is a symbolic link: not written through it")
    if path == change.file:
        target = target.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(change.after)
        with contextlib.suppress(OSError):
            Path(name).chmod(Path(change.file).stat().st_mode & 0o777)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
