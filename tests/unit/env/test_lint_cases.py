"""Lint over a folder of launch scripts: every finding where it should be, and none where nothing is wrong.

tests/cases/env/expected.txt is the golden result; write it anew with ``python tests/unit/env/test_lint_cases.py`` and
read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.env import examine
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Severity

CASES = Path(__file__).resolve().parents[2] / "cases" / "env"
EXPECTED = CASES / "expected.txt"


def found() -> list[str]:
    result = examine.examine([str(CASES / "good"), str(CASES / "bad")], nccl_version="2.32.3", torch_version="2.15.0")
    assert not result.problems
    lines = []
    for item in result.remarks:
        place = Path(item.assignment.file).relative_to(CASES)
        name = item.finding.id.removeprefix("env.bad-nccl-var.")
        lines.append(f"{place}:{item.assignment.line} {item.finding.severity.value} {name} {item.assignment.name}")
    return lines


def test_golden() -> None:
    assert found() == EXPECTED.read_text().splitlines()


def test_there_are_enough_cases() -> None:
    assert len([path for path in CASES.rglob("*") if path.is_file()]) >= 50


def test_good_files_raise_no_alarm() -> None:
    result = examine.examine([str(CASES / "good")], nccl_version="2.32.3", torch_version="2.15.0")
    assert [item.finding.title for item in result.remarks if item.finding.severity is not Severity.INFO] == []
    assert result.exit_code(strict=True) == 0


@pytest.mark.parametrize("path", sorted((CASES / "bad").rglob("*")), ids=lambda path: path.name)
def test_every_bad_file_has_a_finding_with_proof_and_playbook(path: Path) -> None:
    result = examine.examine([str(path)], nccl_version="2.32.3", torch_version="2.15.0")
    bad = [item for item in result.remarks if item.finding.severity is not Severity.INFO]
    assert bad
    for item in bad:
        assert item.finding.evidence[0].line and item.assignment.name in item.finding.title
        assert item.assignment.text.strip() in path.read_text()
        assert playbooks.for_finding(item.finding.id), item.finding.id


if __name__ == "__main__":
    EXPECTED.write_text("\n".join(found()) + "\n")
