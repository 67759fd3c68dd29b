"""Every case file under tests/cases/explain: the right cause first, and the telling line quoted."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource, Verdict
from nccl_doctor.explain.readers.inputs import identity

CASES = sorted((Path(__file__).parents[2] / "cases" / "explain").glob("*.md"))
_BLOCK = re.compile(r"^```log (\S+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def _explain(body: str) -> Explanation:
    sources = []
    for name, text in _BLOCK.findall(body):
        rank, host = identity(name)
        sources.append(LogSource(name, text + "\n", rank, host))
    return analyse(sources)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    head, body = path.read_text(encoding="utf-8")[4:].split("\n---\n", 1)
    wanted = yaml.safe_load(head)
    got = _explain(body)
    right = {wanted["cause"], *wanted["acceptable"]}
    named = [cause.id for cause in got.causes]
    if "healthy" in right and got.verdict is Verdict.HEALTHY:
        assert any(wanted["evidence"] in item.text for item in got.evidence)
        return
    if wanted["undecidable"] and got.verdict is Verdict.UNDECIDED:
        assert right & set(named), named
        return
    assert named and named[0] in right, (got.verdict, named)
    assert got.verdict in (Verdict.CAUSE_FOUND, Verdict.NOT_DISTRIBUTED)
    assert any(wanted["evidence"] in item.text for item in got.causes[0].evidence), got.causes[0].evidence


def _behind(wrap: Callable[[str], str], body: str) -> str:
    return _BLOCK.sub(
        lambda block: (
            f"```log {block.group(1)}\n" + "\n".join(wrap(line) for line in block.group(2).split("\n")) + "\n```"
        ),
        body,
    )


_WRAPS: dict[str, Callable[[str], str]] = {
    "cri": lambda line: "2026-01-02T03:04:05.123456789Z stderr F " + line,
    "kubectl": lambda line: "[pod/job-0/main] " + line,
    "syslog": lambda line: "Jan 02 03:04:05 hostx app[12]: " + line,
    "time": lambda line: "2026-01-02 03:04:05,123 " + line,
    "coloured host": lambda line: "\x1b[33mnode-9:\x1b[0m " + line,
    "logging": lambda line: "2026-01-02 03:04:05,123 - trainer - INFO - " + line,
    "loguru": lambda line: "2026-01-02 03:04:05.123 | INFO     | jobs.loop:run:88 - " + line,
    "unknown": lambda line: "acme/7 stream=err :: " + line,
    "ray": lambda line: "\x1b[36m(Trainer pid=7, ip=10.0.0.5)\x1b[0m " + line,
    "docker json": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-02T03:04:05Z"}),
    "structlog": lambda line: json.dumps({"event": line, "level": "info"}),
    "json logger": lambda line: json.dumps({"asctime": "2026-01-02 03:04:05,123", "name": "jobs", "message": line}),
    "mail": lambda line: "> " + line,
    "indented": lambda line: "    " + line,
    "crlf and colour": lambda line: f"\x1b[31m{line}\r\x1b[0m" if line else line,
}


@functools.cache
def _plain(path: Path) -> tuple[str, list[str]]:
    body = path.read_text(encoding="utf-8")[4:].split("\n---\n", 1)[1]
    return body, [cause.id for cause in _explain(body).causes[:1]]


@pytest.mark.parametrize("name", _WRAPS)
def test_a_collectors_prefix_changes_nothing(name: str) -> None:
    wrap = _WRAPS[name]
    changed = []
    for path in CASES:
        if path.stem.startswith(("incident-", "stacks-")):  # no collector has what a tool printed of stacks
            continue
        body, before = _plain(path)
        after = _explain(_behind(wrap, body))
        if before != [cause.id for cause in after.causes[:1]]:
            changed.append((path.stem, [cause.id for cause in after.causes[:2]]))
    # Times and hosts that a collector adds are believed; all lines then come from one host at one moment.
    assert len(changed) <= 3, changed


def test_there_are_cases() -> None:
    assert len(CASES) >= 60
