"""``nccl-doctor preflight`` over what a lab run measured: the files and the decision that a run leaves behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

from typer.testing import CliRunner

from nccl_doctor import cli

GO, NOTHING_CHECKED, INCOMPLETE, WARNINGS, FAULTY = 0, 3, 4, 10, 11
FILES = ("good", "bad", "junit.xml", "report.json")


@dataclass(frozen=True)
class Run:
    """What a run of preflight left: its exit code and output, the lines of its host files, its JUnit file."""

    code: int
    out: str
    err: str
    good: list[str]
    bad: list[str]
    junit: ElementTree.Element
    report: dict[str, Any]

    def cases(self, kind: str) -> dict[str, str]:
        """Host -> finding id (``unknown``), of the JUnit cases with a ``failure`` or an ``error``; the decision's is none."""
        found = [
            (case.get("name", ""), case.find(kind)) for case in self.junit.findall("*[@name!='decision']/testcase")
        ]
        return {name: node.get("type", "") for name, node in found if node is not None}

    def warned(self) -> dict[str, str]:
        """Host -> the text of its warnings."""
        found = [(case.get("name", ""), case.findtext("system-out")) for case in self.junit.iter("testcase")]
        return {name: text for name, text in found if text}


def words(directory: Path) -> list[str]:
    """The options that make preflight write everything it can into this directory."""
    good, bad, junit, report = (str(directory / name) for name in FILES)
    return ["--good-hosts", good, "--bad-hosts", bad, "--report", f"junit={junit}", "--report", f"json={report}"]


def read(directory: Path, code: int, out: str, err: str) -> Run:
    """What a run with :func:`words` left."""
    good, bad, junit, report = (directory / name for name in FILES)
    assert junit.exists(), err
    return Run(
        code,
        out,
        err,
        good.read_text().split("\n")[:-1],
        bad.read_text().split("\n")[:-1],
        ElementTree.parse(junit).getroot(),
        json.loads(report.read_text()),
    )


def decide(bundle: Path, directory: Path, *options: str) -> Run:
    """Preflight from a saved bundle, in this process: starting another one takes longer than deciding. It decides by the stages
    that the run had, which leaves out what its test is not about: that a gate asks for all of them is a unit test's."""
    directory.mkdir(exist_ok=True)
    cli._load_commands()
    with mock.patch("nccl_doctor.rules.gate.asking_all", lambda report, *_: report):
        done = CliRunner().invoke(cli.app, ["preflight", "--from", str(bundle), *words(directory), *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return read(directory, done.exit_code, done.stdout, done.stderr)
