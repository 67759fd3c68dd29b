"""The fast way of reading (factors, blocks passed over, lines numbered at the end) says what the slow way says."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.explain import matcher
from nccl_doctor.explain.api import explain
from nccl_doctor.explain.files import explain_paths, number_lines, read_file
from nccl_doctor.explain.model import Explanation, LogSource
from nccl_doctor.explain.readers import inputs, scan, steps
from nccl_doctor.explain.readers.plan import plan
from nccl_doctor.explain.readers.scan import Scanner, scan_descriptor

CASES = sorted((Path(__file__).parents[2] / "cases" / "explain").glob("*.md"))
_BLOCK = re.compile(r"^```log (\S+)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_STEP = "[2026-11-20 03:14:{:02d}] iteration {:8d}/ 500000 | lm loss: 1.{:06d}E+00 | grad norm: 0.712 |"


def _bulk(chance: random.Random, lines: int) -> list[str]:
    return [_STEP.format(number % 60, number, chance.randrange(999_999)) for number in range(lines)]


def _mixture(seed: int) -> bytes:
    """Stretches of real case logs between stretches of ordinary output, some lines repeated, cut or without an end."""
    chance = random.Random(seed)
    lines: list[str] = []
    for _ in range(chance.randrange(1, 5)):
        lines += _bulk(chance, chance.choice((0, 3, 200, 900)))
        blocks = _BLOCK.findall(chance.choice(CASES).read_text(encoding="utf-8"))
        piece = chance.choice(blocks)[1].split("\n")
        start = chance.randrange(len(piece))
        lines += piece[start : start + chance.randrange(1, 40)]
        if chance.random() < 0.2:
            lines.append("x" * chance.randrange(20_000) + " Error: late")
    lines += _bulk(chance, chance.choice((0, 1, 400)))
    data = "\n".join(lines).encode()
    return data if chance.random() < 0.3 else data + b"\n"


def _explained(path: Path) -> Explanation:
    with path.open("rb", buffering=0) as raw:
        summary = scan_descriptor(LogSource(str(path), b"", 3, "gpu007"), raw.fileno())
    return number_lines(explain(summary), summary.skipped)


def _lines(path: Path) -> int:
    data = path.read_bytes()
    return data.count(b"\n") + (not data.endswith(b"\n"))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (scan, "PIECE", 4 << 10),
        (scan, "SAMPLE_ALL", 8 << 10),
        (steps, "SAMPLE_ALL", 8 << 10),
        (steps, "SAMPLE_STEP", 8 << 10),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("seed", range(24))
def test_fast_and_slow_say_the_same(
    seed: int, tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(_mixture(seed))
    fast = _explained(path)
    monkeypatch.setattr(Scanner, "calm", lambda self: False)
    monkeypatch.setattr(matcher, "engine", matcher.PlainEngine)
    slow = _explained(path)  # every block, every anchor on its own, every line counted
    assert slow.read.lines == _lines(path)
    same = msgspec.structs.replace(slow, read=fast.read)
    assert json.loads(msgspec.json.encode(fast)) == json.loads(msgspec.json.encode(same))


def test_blocks_are_passed_over_and_lines_are_right(tmp_path: Path, small_pieces: None) -> None:
    text = "\n".join([*_bulk(random.Random(1), 5000), "[rank3]: KeyError: 'RANK'", *_bulk(random.Random(2), 1)])
    (tmp_path / "job.log").write_text(text + "\n")
    found, _ = inputs.find([str(tmp_path)])
    summary = read_file(found[0])
    assert sum(skip.size for skip in summary.skipped[found[0].name]) > len(text) * 0.9
    got = explain_paths([str(tmp_path)])
    assert got.read.lines is None
    assert (got.causes[0].evidence[0].line, got.causes[0].evidence[0].text) == (5001, "[rank3]: KeyError: 'RANK'")


def test_a_file_that_shrinks_loses_its_line_numbers_only(tmp_path: Path, small_pieces: None) -> None:
    path = tmp_path / "job.log"
    path.write_text("\n".join([*_bulk(random.Random(1), 2000), "[rank3]: KeyError: 'RANK'"]) + "\n")
    found, _ = inputs.find([str(path)])
    summary = read_file(found[0])
    os.truncate(path, 10)
    got = number_lines(explain(summary), summary.skipped)
    assert got.causes[0].evidence[0].line is None


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_two_steps_find_what_one_finds(data: st.DataObject) -> None:
    pytest.importorskip("hyperscan")
    anchors = tuple(anchor for anchor in plan().anchors if b"\n" not in anchor)
    chosen = data.draw(st.lists(st.sampled_from(anchors), max_size=12))
    fill = data.draw(st.lists(st.sampled_from([b" ", b"\n", b"\n\n", b"step 1", b"rror", b"x" * 1500]), max_size=12))
    order = data.draw(st.permutations([*chosen, *fill]))
    block = b"".join(order)
    two = set(matcher.engine(anchors).find(block))
    one: set[tuple[int, int]] = set()
    matcher._database(anchors).scan(block, match_event_handler=lambda index, _from, to, _flags, _: one.add((to, index)))
    assert two == one


def test_nearly_every_anchor_has_a_factor() -> None:
    anchors = plan().anchors
    without = [anchor for anchor in anchors if anchor not in matcher.factors()]
    assert len(without) < len(anchors) * 0.03, "run: python benchmarks/explain_factors.py"
