"""Logs that a service lists newest first are read in the order of time, and quoted by the numbers that their lines have."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import Verdict
from nccl_doctor.explain.readers import newest_first
from nccl_doctor.explain.readers.newest_first import Order, oldest_first, stands_newest_first, turned
from tests.unit.explain.test_cases import CASES, logs_of

LINES = [
    "2026-01-02T03:00:00.1Z step 10 | loss 2.1",
    "2026-01-02T03:00:01.2Z step 20 | loss 2.0",
    "2026-01-02T03:00:02.4Z [rank1]: Traceback (most recent call last):",
    '2026-01-02T03:00:02.5Z [rank1]:   File "/job/train.py", line 88, in step',
    "2026-01-02T03:00:02.6Z [rank1]:     loss = table[name]",
    "2026-01-02T03:00:02.7Z [rank1]: KeyError: 'dgo'",
    "2026-01-02T03:00:09.8Z srun: error: node2: task 1: Exited with exit code 1",
]


def text(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_answer_is_that_of_the_log_in_order(pack: object, tmp_path: Path) -> None:
    for name, lines in (("in order", LINES), ("newest first", LINES[::-1])):
        (tmp_path / name).write_bytes(pack(text(lines)))  # type: ignore[operator]
    right, found = (explain_paths([str(tmp_path / name)]) for name in ("in order", "newest first"))
    assert (found.verdict, [cause.id for cause in found.causes]) == (
        right.verdict,
        [cause.id for cause in right.causes],
    )
    quoted = {quote.line: quote.text for cause in found.causes for quote in cause.evidence}
    assert quoted[2] == LINES[5]
    assert all(LINES[::-1][line - 1] == told for line, told in quoted.items() if line)
    assert any("newest first" in note for note in found.notes)


def test_a_record_keeps_its_lines_together() -> None:
    log = [LINES[6], LINES[2], '  File "/job/train.py", line 88, in step', "KeyError: 'dgo'", LINES[1], LINES[0]]
    content, numbers = turned(text(log))
    assert content == text([log[5], log[4], *log[1:4], log[0]])
    assert numbers == [6, 5, 2, 3, 4, 1]


@pytest.mark.parametrize(
    "lines",
    [
        LINES,
        [LINES[1], LINES[0]],
        ["no time", *LINES[::-1]],
        [line[24:] for line in LINES[::-1]],
        [*LINES[3:], *LINES[:3]],  # a second copy, or two hosts, one after the other
        [],
    ],
)
def test_what_does_not_clearly_stand_so_is_left_as_it_is(lines: list[str]) -> None:
    order = Order()
    assert b"".join(oldest_first([text(lines)] if lines else [], order)) == text(lines)
    assert order == Order()


def test_clocks_that_differ_a_little_do_not_hide_the_order() -> None:
    times = [*range(59, 30, -1), 31, *range(29, 0, -1)]
    assert stands_newest_first(text([f"2026-01-02 03:00:{time:02} host1 says {time}" for time in times]))


def test_a_log_that_is_too_large_to_turn_is_never_healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = [f"2026-01-02T03:00:{at:02}.0Z step {at} | loss 2.{at}" for at in range(50)]
    log = tmp_path / "steps.log"
    log.write_bytes(text(steps[::-1]))
    assert explain_paths([str(log)]).verdict is Verdict.HEALTHY
    monkeypatch.setattr(newest_first, "LARGEST", 100)
    found = explain_paths([str(log)])
    assert found.verdict is Verdict.UNDECIDED
    assert "newest first" in found.problems[0].problem


def test_no_labelled_log_is_taken_for_turned() -> None:
    logs = [log for path in CASES for log in logs_of(path.read_text(encoding="utf-8"))]
    assert not [log.name for log in logs if stands_newest_first(str(log.content).encode("utf-8", "replace"))]
