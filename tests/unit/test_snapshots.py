"""Dumps and RAS reports beside the logs end in the same explanation as the logs."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from nccl_doctor.explain import files, snapshots
from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import Verdict
from tests.unit.explained import explain_text

RECORDED = Path(__file__).parents[1] / "fixtures" / "flight_recorder"
RAS = """NCCL version 2.28.9 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 71
  Rank 2 has launched up to operation 70 -- GPU 2 managed by process 483072 on node 10.1.0.3

"""


def test_a_mismatch_in_dumps_is_the_cause() -> None:
    found = explain_paths([str(RECORDED / "operation")])
    assert found.verdict is Verdict.CAUSE_FOUND
    best = found.causes[0]
    assert best.id == "app.collective-mismatch" and best.ranks == (1,)
    assert any("train.py:32" in item.text for item in best.evidence)
    assert all(item.line is None for item in best.evidence)  # a dump has no lines


def test_a_rank_that_never_called_leaves_the_verdict_open_until_its_log_speaks(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "skipped", tmp_path / "dumps", ignore=shutil.ignore_patterns("*.json"))
    alone = explain_paths([str(tmp_path)])
    assert alone.verdict is Verdict.UNDECIDED and alone.causes[0].ranks == (2,)
    assert "app.collective-mismatch" in [cause.id for cause in alone.causes]
    assert any("rank 2" in step for step in alone.next)
    (tmp_path / "rank2.err").write_text(
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/srv/train/train.py", line 88, in <module>\n'
        "[rank2]:     batch = next(loader)\n"
        "[rank2]: KeyError: 'image_00931'\n"
    )
    (tmp_path / "rank0.err").write_text(
        "[rank0]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete\n"
    )
    both = explain_paths([str(tmp_path)])
    assert both.causes[0].id == "app.rank-exception" and both.causes[0].ranks == (2,)


def test_equal_dumps_are_no_proof_of_health() -> None:
    found = explain_paths([str(RECORDED / "healthy")])
    assert found.verdict is Verdict.UNDECIDED and not found.causes


def test_ras_reports_one_is_open_and_two_name_the_rank(tmp_path: Path) -> None:
    (tmp_path / "ras1.txt").write_text(RAS)
    one = explain_paths([str(tmp_path)])
    assert one.verdict is Verdict.UNDECIDED and any("second snapshot" in step for step in one.next)
    (tmp_path / "ras2.txt").write_text(RAS)
    two = explain_paths([str(tmp_path)])
    assert two.causes[0].ranks == (2,) and "has not moved" in two.causes[0].title
    assert two.causes[0].evidence[0].line is not None


def test_steps_before_a_report_that_accuses_do_not_make_it_healthy() -> None:
    """Pasted behind the job's steps: whom it names is told, and a report that is cut off leaves the answer open."""
    steps = "".join(f"[2026-01-08 22:4{n}:11] step 4181{n} loss 1.9{n} lr 2.1e-04 tok/s 5.6M\n" for n in range(4))
    apart = "  1 rank has launched up to operation 70\n  Rank 2 -- GPU 2 managed"
    told = explain_text(steps + RAS.replace("  Rank 2 has launched up to operation 70 -- GPU 2 managed", apart))
    assert told.verdict is Verdict.UNDECIDED and told.causes[0].ranks == (2,)
    assert explain_text(RAS + steps).verdict is Verdict.HEALTHY  # they went on: it was in progress
    cut = RAS.index("  3 ranks have launched")
    assert explain_text(steps + RAS[:cut]).verdict is Verdict.UNDECIDED


def test_a_pickle_that_is_no_dump_is_named_and_not_run(tmp_path: Path) -> None:
    class Exploit:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": [Exploit()]}))
    found = explain_paths([str(tmp_path)])
    assert not (tmp_path / "executed").exists()
    assert [Path(problem.name).name for problem in found.problems] == ["trace_0"]
    assert "not allowed" in found.problems[0].problem


def test_dumps_of_two_jobs_are_kept_apart() -> None:
    paths = [str(path) for name in ("healthy", "operation") for path in sorted((RECORDED / name).glob("rank_?"))]
    proofs, problems = snapshots.read(paths)
    assert not problems and len(proofs) == 1 and proofs[0].ranks == (1,)


def test_a_report_from_standard_input_says_what_it_says_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stdin"
    path.write_text(RAS + RAS)
    monkeypatch.chdir(tmp_path)
    told = explain_paths(["stdin"])
    with path.open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        heard = explain_paths(["-"])
        monkeypatch.setattr(files, "STDIN_HELD", 10)
        piped.seek(0)
        cut = explain_paths(["-"])
    assert (told.causes, told.next) == (heard.causes, heard.next)
    assert heard.causes[0].ranks == (2,) and not cut.causes
