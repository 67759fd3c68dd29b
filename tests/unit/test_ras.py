"""NCCL RAS reports: text and JSON say the same, and one snapshot of differing counts proves nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nccl_doctor.explain import ras
from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.kinds import kind
from nccl_doctor.explain.model import LogSource, Verdict
from nccl_doctor.explain.ras import Kind, Report

HEAD = """NCCL version 2.28.9 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
ROW = "    0         1         4         8        32        32   RUNNING      OK\n"
SOUND = HEAD + ROW + "\nErrors\n======\n\nWarnings\n========\n\n"


def mismatch(low: int, high: int) -> str:
    return (
        HEAD
        + f"""    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation {high}
  2 ranks have launched up to operation {low}
  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.213
  Rank 7 -- GPU 3 (NVML 7) managed by process 3487986 on node 172.16.64.213

"""
    )


DEAD = (
    HEAD
    + """    0         1         4       7-8        32        31   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 2 job processes
  Process 3487985 on node 172.16.64.212 managing GPU 6

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.213
  Rank 14 -- [process information not found]

#0-0 (27a079b828ff1a75) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 1 -- GPU 1 managed by process 11 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 12 on node 172.16.64.210
  Rank 3 reported System error -- GPU 3 managed by process 13 on node 172.16.64.210

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
)


def read(*texts: str) -> list[Report]:
    return ras.read("".join(texts).encode(), "ras.txt")


def kinds(*reports: Report) -> list[Kind]:
    return [item.kind for item in ras.conclude(reports)]


def test_a_sound_report_gives_no_conclusion() -> None:
    (report,) = read(SOUND)
    assert report.complete
    assert ras.conclude([report]) == []


def test_a_report_that_breaks_off_is_not_sound() -> None:
    cut = SOUND[: SOUND.index("Warnings")]
    assert kinds(*read(cut)) == [Kind.INCOMPLETE]
    whole, broken = (analyse([LogSource("ras.txt", text)]) for text in (SOUND, cut))
    assert whole.verdict is Verdict.HEALTHY
    assert broken.verdict is Verdict.UNDECIDED and broken.next[0].startswith("take the RAS report again")


@pytest.mark.parametrize(
    "section",
    [
        "DEAD",
        "INCOMPLETE",
        "#0-0 (38aae3b4d6b8c6f6) ERROR",
        "#0-0 (38aae3b4d6b8c6f6) MISMATCH",
        "#0-0 (38aae3b4d6b8c6f6) MISMATCH\n  Communicator ranks disagree on the buffers registered",
    ],
)
def test_a_report_that_accuses_in_unknown_words_is_not_sound(section: str) -> None:
    (report,) = read(
        SOUND.replace("Errors\n======\n", f"Errors\n======\n\n{section}\n  The worker of seat seven is gone\n")
    )
    assert not report.complete and ras.conclude([report])


def test_dead_silent_failed_and_timed_out() -> None:
    (report,) = read(DEAD)
    dead, error, silent, timeout = ras.conclude([report])
    assert dead.kind is Kind.DEAD and "on 172.16.64.213" in dead.title and dead.ranks == (5,) and dead.cause == ""
    assert dead.evidence[0].text == "Process 3487984 on node 172.16.64.213 managing GPU 5"
    assert dead.evidence[0].line == DEAD[: DEAD.index("  Process 3487984")].count("\n") + 1
    assert error.kind is Kind.ERROR and error.ranks == (3,)  # the remote errors are its consequences
    assert "System error" in error.title
    assert silent.kind is Kind.SILENT and "on 172.16.64.212" in silent.title
    assert timeout.kind is Kind.TIMEOUT and "2 communication timeouts" in timeout.evidence[0].text


def test_one_snapshot_of_differing_counts_is_no_proof() -> None:
    (found,) = ras.conclude(read(mismatch(6649, 6650)))
    assert found.kind is Kind.BEHIND and found.ranks == (5, 7) and found.confidence < 0.5 and found.cause == ""
    assert "second snapshot" in found.next and "6649" in found.evidence[0].text


def test_two_equal_snapshots_are_stuck_and_rising_counts_are_alive() -> None:
    stuck = read(mismatch(6649, 6650), mismatch(6649, 6650))
    (found,) = ras.conclude(stuck)
    assert found.kind is Kind.STUCK and found.ranks == (5, 7) and found.confidence > 0.5
    assert ras.conclude(read(mismatch(6649, 6650), mismatch(6660, 6661))) == []


def test_gpu_with_two_numbers_and_single_rank_lines() -> None:
    text = mismatch(6649, 6650).replace(
        "  2 ranks have launched up to operation 6649\n  Rank 5 -- GPU 5",
        "  Rank 5 has not launched any operations -- GPU 5",
    )
    (report,) = read(text)
    sides = report.mismatches[0].sides
    assert [(side.operation, side.count) for side in sides] == [(6650, 30), (0, 1)]
    assert sides[1].workers[0].rank == 5 and sides[1].workers[1].gpu == "3 (NVML 7)"


def test_older_wording_without_a_function() -> None:
    (report,) = read(mismatch(1, 2).replace("different AllReduce operation", "different collective operation"))
    assert report.mismatches[0].function == "collective"


def test_ranks_in_different_status() -> None:
    text = mismatch(1, 2).replace("different AllReduce operation counts", "different status")
    text = text.replace("30 ranks have launched up to operation 2", "30 ranks have status RUNNING")
    text = text.replace("2 ranks have launched up to operation 1", "2 ranks have status INIT")
    (found,) = ras.conclude(read(text))
    assert found.kind is Kind.STATUS and found.ranks == (5, 7) and "INIT" in found.title


# JSON.


def rank(number: int, **changed: Any) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 4, "Reduce": 0, "AllGather": 7, "ReduceScatter": 7, "AllReduce": 90}
    base = {"rank": number, "host": f"10.0.0.{number}", "pid": 100 + number, "cuda_dev": 0, "nvml_dev": 0}
    return {
        **base,
        "status": {**status, **changed.get("status", {})},
        "collective_counts": {**counts, **changed.get("counts", {})},
    }


def document(ranks: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None) -> str:
    communicator = {
        "hash": "0xabc",
        "secondary_hash": "0x1:0x2",
        "size": 4,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing or []),
        "ranks": ranks,
        "missing_ranks": missing or [],
    }
    top = {
        "nccl_version": "2.29.2",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-02-03 04:05:06",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }
    return json.dumps(top, indent=1) + "\n"


def test_json_sound() -> None:
    (report,) = read(document([rank(0), rank(1)]))
    assert ras.conclude([report]) == [] and report.timestamp == "2026-02-03 04:05:06"


def test_json_two_snapshots_of_a_stuck_rank() -> None:
    late = document([rank(0), rank(1), rank(2, counts={"AllReduce": 89})])
    assert kinds(*read(late)) == [Kind.BEHIND]
    (found,) = ras.conclude(read(late, late))
    assert found.kind is Kind.STUCK and found.ranks == (2,) and "on 10.0.0.2" in found.title


def test_behind_in_one_operation_and_ahead_in_another_is_another_call() -> None:
    other = document([rank(0), rank(1), rank(2, counts={"AllReduce": 89, "Broadcast": 5})])
    (found,) = ras.conclude(read(other, other))
    assert found.kind is Kind.DIFFERENT_CALLS and found.ranks == (2,) and found.cause == "app.collective-mismatch"
    (single,) = ras.conclude(read(other))
    assert single.cause == found.cause and single.confidence < found.confidence and "second snapshot" in single.next


def test_json_dead_silent_and_failed_ranks() -> None:
    gone = {"rank": 2, "host": "10.0.0.2", "pid": 102, "cuda_dev": 0, "nvml_dev": 0}
    dead = {**gone, "status": {"unresponsive": True, "considered_dead": True}}
    quiet = {
        **gone,
        "rank": 3,
        "pid": 103,
        "host": "10.0.0.3",
        "status": {"unresponsive": True, "considered_dead": False},
    }
    (report,) = read(document([rank(0), rank(1, status={"async_error": 2})], [dead, quiet]))
    found = {item.kind: item for item in ras.conclude([report])}
    assert found[Kind.DEAD].ranks == (2,) and found[Kind.SILENT].ranks == (3,)
    assert found[Kind.ERROR].ranks == (1,) and "System error" in found[Kind.ERROR].title


# Hostile and foreign input.


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": 1}', b"{" * 50_000, b"\xff\x00\x1b[31m", b"NCCL version", b'{"nccl_version": 1}']
)
def test_what_is_no_report_gives_none(data: bytes) -> None:
    assert ras.read(data) == []


def test_a_huge_number_of_ranks_on_a_line_is_cut_not_followed() -> None:
    (report,) = read(mismatch(1, 2) + "  Rank " + "9" * 100_000 + "\n")
    assert len(report.mismatches) == 1


def test_reports_are_recognised_by_their_first_bytes() -> None:
    assert kind(HEAD.encode()) == kind(document([rank(0)]).encode()) == "ras"
    assert kind(b"node1:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda12.8") == ""
