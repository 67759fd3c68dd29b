"""Every case file under tests/cases/explain: the right cause first, the telling line quoted, and who is to blame where the case tells."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import LogSource, Verdict
from nccl_doctor.explain.readers.inputs import identity

CASES = sorted((Path(__file__).parents[2] / "cases" / "explain").glob("*.md"))
_BLOCK = re.compile(r"^```log (\S+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def logs_of(body: str) -> list[LogSource]:
    """The logs that a case holds."""
    return [LogSource(name, text + "\n", *identity(name)) for name, text in _BLOCK.findall(body)]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    head, body = path.read_text(encoding="utf-8")[4:].split("\n---\n", 1)
    wanted = yaml.safe_load(head)
    got = analyse(logs_of(body))
    assert not got.problems
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
    for who in ("ranks", "hosts"):
        assert wanted.get(who, list(getattr(got.causes[0], who))) == list(getattr(got.causes[0], who))


def test_there_are_cases() -> None:
    assert len(CASES) >= 60
