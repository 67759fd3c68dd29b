"""What a job of many ranks costs, in calls of functions: no clock, so no other load can change it.

Two rules that asked every line of 512 ranks for every subject once took three seconds, and one that asked each row of a log's end
what its numbers are called before it asked how long the step took, a tenth of one (docs/decisions/0026).
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccl_doctor.explain import lazy_re
from nccl_doctor.explain.api import explain
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.files import read_file, reasoning
from nccl_doctor.explain.model import Hit, LogSource
from nccl_doctor.explain.readers.inputs import LogFile
from nccl_doctor.explain.readers.scan import scan
from nccl_doctor.explain.summary import Summary

RANKS = (24, 48, 96)
MOST_PER_RANK = 600  # calls; 277 to 527 as this is written
MOST_SEARCHES = 60  # with patterns; 42 to 53 as this is written
MOST_PER_FILE = 5000  # calls; 4,800 as this is written


def _calls(function: Callable[[], object]) -> tuple[int, int]:
    """How many functions, ours and built-in ones, are called, and how many of them search a text with a pattern."""
    calls = searches = 0

    def seen(_frame: object, event: str, argument: object) -> None:
        nonlocal calls, searches
        calls += event in ("call", "c_call")
        searches += event == "c_call" and isinstance(getattr(argument, "__self__", None), re.Pattern)

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls, searches


def _step(rank: int, step: int) -> str:
    told = f"elapsed time per iteration (ms): {3100 + rank}.{step % 10} | lm loss: 1.{rank * 7919 + step:06d}E+00"
    return f"[2026-11-20 03:{step // 60:02d}:{step % 60:02d}] iteration {step:8d}/ 500000 | {told} |"


def _start(rank: int, ranks: int) -> list[str]:
    who = f"gpu{rank // 8:03d}:{4000 + rank}:{4000 + rank} [{rank % 8}] NCCL INFO"
    init = f"ncclCommInitRankConfig comm 0x55d{rank:05x} rank {rank} nranks {ranks} cudaDev {rank % 8} busId {rank % 8}b000"
    return [
        f"{who} Bootstrap: Using bond0:10.1.{rank // 8}.1<0>",
        f"{who} NCCL version 2.27.5+cuda12.9",
        f"{who} {init} commId 0x1f2e3d4c5b6a7988 - Init START",
        *(
            f"{who} Channel {channel:02d}/0 : {rank}[0] -> {(rank + 1) % ranks}[1] via P2P/CUMEM"
            for channel in range(8)
        ),
        f"{who} {init} commId 0x1f2e3d4c5b6a7988 - Init COMPLETE",
        *(_step(rank, step) for step in range(40)),
    ]


def _traceback(rank: int, error: str) -> list[str]:
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/job/train.py", line 88, in step',
        f"[rank{rank}]:     loss.backward()",
        f"[rank{rank}]: {error}",
    ]


def _waited(rank: int) -> list[str]:
    tag = f"[rank{rank}]:[E1120 03:32:42.123456789 ProcessGroupNCCL.cpp:632]"
    work = f"WorkNCCL(SeqNum=58213, OpType=ALLREDUCE, NumelIn={rank + 1}, NumelOut={rank + 1}, Timeout(ms)=600000)"
    return [
        f"{tag} [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {600000 + rank} milliseconds",
        f"{tag} [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 58213 "
        "PG status: last enqueued work: 58213, last completed work: 58212",
    ]


def _one_raises(rank: int) -> list[str]:
    return _traceback(rank, "KeyError: 'image_00931'") if rank == 17 else _waited(rank)


def _all_lose_a_peer(rank: int) -> list[str]:
    who = f"gpu{rank // 8:03d}:{4000 + rank}:{5000 + rank} [{rank % 8}]"
    return [
        f"{who} misc/socket.cc:492 NCCL WARN socketProgress: Connection closed by remote peer gpu003<{40000 + rank}>",
        f"{who} NCCL INFO transport/net_socket.cc:493 -> 6",
        *_traceback(
            rank, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited"
        ),
    ]


def _all_end_well(rank: int) -> list[str]:
    return [f"rank {rank}: Training complete after {1000 + rank} s"]


ENDS = {"one raises": _one_raises, "a peer is lost": _all_lose_a_peer, "all is well": _all_end_well}


def _read(ranks: int, end: Callable[[int], list[str]]) -> Summary:
    total = Summary()
    for rank in range(ranks):
        text = "\n".join([*_start(rank, ranks), *end(rank)]) + "\n"
        total.merge(scan(LogSource(f"node{rank // 8}/rank{rank}.log", text, rank, f"gpu{rank // 8:03d}")))
    return total


@pytest.mark.parametrize("end", ENDS)
def test_a_rank_more_costs_little_and_no_more_than_the_one_before(end: str) -> None:
    """A rank has some twenty lines; a rule may look at each, not at each for every cause, nor at all others' lines."""

    def explaining(ranks: int) -> tuple[int, int]:
        summary = _read(ranks, ENDS[end])
        return _calls(lambda: explain(summary))

    explaining(RANKS[0])  # what is imported, compiled or remembered once
    costs = [explaining(ranks) for ranks in RANKS]
    for most, (few, more, many) in zip((MOST_PER_RANK, MOST_SEARCHES), zip(*costs, strict=True), strict=True):
        assert (many - more) / (RANKS[2] - RANKS[1]) < most
        assert many - more < 1.15 * (RANKS[2] - RANKS[1]) / (RANKS[1] - RANKS[0]) * (more - few)


def test_ordinary_output_wakes_nothing(tmp_path: Path) -> None:
    """Of 24,000 lines that report steps only the head, the tail and a few samples cost calls."""
    path = tmp_path / "rank3.log"
    path.write_text("\n".join([*_start(3, 8), *(_step(3, step) for step in range(24_000)), *_waited(3)]) + "\n")
    file = LogFile(str(path), path.name, 3, "gpu000", path.stat().st_size)
    read_file(file)
    assert _calls(lambda: read_file(file))[0] < MOST_PER_FILE


_USED = """
import gc, sys
from nccl_doctor.explain import files, lazy_re
files.explain_paths(sys.argv[1:])
patterns = [item for item in gc.get_objects() if type(item) is lazy_re._Lazy]
print(len(patterns), sum(len(vars(item)) > 1 for item in patterns))
"""


def test_a_small_log_needs_few_of_the_patterns(tmp_path: Path) -> None:
    """What compiles all of them as it is imported takes a quarter more time for a small log."""
    path = tmp_path / "rank3.log"
    path.write_text("\n".join([*_start(3, 8), *_one_raises(17)]) + "\n")
    told = subprocess.run([sys.executable, "-c", _USED, str(path)], capture_output=True, text=True, check=True)
    patterns, used = map(int, told.stdout.split())
    assert 0 < 2 * used < patterns  # 127 of 410 as this is written


def test_every_pattern_can_be_compiled() -> None:
    reasoning()
    for item in [item for item in gc.get_objects() if type(item) is lazy_re._Lazy]:
        assert item.groups >= 0


class _Counted(list[Hit]):
    """A list that counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[Hit]:
        self.times += 1
        return super().__iter__()


def test_the_rows_of_many_tables_are_gone_through_once() -> None:
    """Each heading once went through all headings and all rows: 1,600 logs with a table each took 1.3 seconds."""
    headings = [Hit("head", file, line, "") for file in ("a", "b", "c") for line in (1, 10)]
    rows = _Counted(Hit("row", file, line, "") for file in ("0", "a", "c") for line in (1, 2, 9, 10, 11))
    told = below(headings, rows)
    assert rows.times == 1
    assert {(head.file, head.line): [row.line for row in its] for head, its in told} == {
        ("a", 1): [2, 9],
        ("a", 10): [11],
        ("b", 1): [],
        ("b", 10): [],
        ("c", 1): [2, 9],
        ("c", 10): [11],
    }
