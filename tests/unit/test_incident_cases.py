"""What real incidents printed (tests/incidents records it), and the cause that ``explain`` names for each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nccl_doctor.explain.files import explain_paths
from nccl_doctor.report import explanation as report
from tests.incidents import record
from tests.incidents.catalogue import BY_NAME, INCIDENTS
from tests.incidents.run import wrong

CASES = sorted(record.CASES.glob("incident-*.md"))
_BLOCK = re.compile(r"^```log (\S+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def logs(case: Path, directory: Path) -> Path:
    """The case's log files, written out."""
    for name, text in _BLOCK.findall(case.read_text()):
        (directory / name).write_text(text + "\n")
    return directory


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem.removeprefix("incident-"))
def test_explain_names_the_cause(case: Path, tmp_path: Path) -> None:
    incident = BY_NAME[case.stem.removeprefix("incident-")]
    answer = json.loads(report.to_json(explain_paths([str(logs(case, tmp_path))])))
    assert not (reason := wrong(incident, answer)), reason


def test_every_incident_is_recorded_and_small() -> None:
    assert {case.stem.removeprefix("incident-") for case in CASES} == {item.name for item in INCIDENTS if item.recorded}
    assert len(CASES) >= 25
    assert max(case.stat().st_size for case in CASES) < record.LIMIT + 2_000


def test_nothing_of_the_recording_machine_is_in_the_cases() -> None:
    for case in CASES:
        paths = set(re.findall(r"(?<![\w.])/(?:home|root|tmp|Users|mnt|work)/[\w./-]+", case.read_text()))
        assert not paths, (case.name, sorted(paths))


def test_a_wrong_answer_is_seen() -> None:
    incident = BY_NAME["rank-exception"]
    cause = {"id": "net.firewall", "evidence": [{"text": "KeyError: 'dgo'"}]}
    assert "expected app.rank-exception" in wrong(incident, {"verdict": "cause-found", "causes": [cause]})
    right = {"id": "app.rank-exception", "evidence": [{"text": "something else"}]}
    assert "is not quoted" in wrong(incident, {"verdict": "cause-found", "causes": [right]})
    assert wrong(incident, {"verdict": "undecided", "causes": [cause]})
    assert wrong(BY_NAME["healthy"], {"verdict": "undecided", "causes": []})
    assert not wrong(
        BY_NAME["straggler"], {"verdict": "undecided", "causes": [{"id": "app.straggler-timeout", "evidence": []}]}
    )
