"""What nccl-doctor printed before, between and after the job's lines is no line of the job."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.model import Verdict
from nccl_doctor.explain.readers.own_words import ANCHORS, OwnWords
from nccl_doctor.report import hang
from tests.unit.explained import explain_text

PREFLIGHT = """\
[  0.5 s] connect 4/4
[  7.1 s] collectives 3/3
✓ GO: 3 of 4 hosts are good, 3 needed.
  run on       gpu[01-02,04]
  bad          gpu03   sys.shm.too-small

  1  sys.shm.too-small                   gpu03                     fail, certain
     /dev/shm has only 64 MiB: a job with several GPUs or DataLoader workers here dies of it
       gpu03:statvfs /dev/shm  /dev/shm: 64 MiB in all, 64 MiB free
     playbook   nccl-doctor playbook sys.shm

  skipped      infiniband (no RDMA device on any host)
  4 hosts, 7.2 s   exit 0
nccl-doctor: go: torchrun train.py
"""
JOB = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/train.py", line 9, in <module>
[rank1]:     raise KeyError("image_00931")
[rank1]: KeyError: 'image_00931'
"""
EXPLAINED = """\
nccl-doctor: exit 1: the job failed; its output says:
  1 file, 8.8 kB, 0.3 s

✗ rank 1: a rank was busy beyond the time-out: HELD: gpu04: rank 3 (pid 30092) sleeps in <module> (train.py:10); 3
other ranks wait in all_reduce

  gpu.oom                     rank 2, gpu04                       0.87, likely
     job-output:17  gpu04: [rank2]: torch.OutOfMemoryError: CUDA out of memory.
"""


def stamped(text: str) -> str:
    return "".join(f"2026-11-22T18:33:09.1234567Z {line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("form", [str, stamped, lambda text: text.replace("\n", "\r\n")])
def test_a_report_in_the_jobs_output_says_nothing_of_the_job(form: object) -> None:
    text = PREFLIGHT + JOB + EXPLAINED
    told = explain_text(form(text))  # type: ignore[operator]
    alone = explain_text(JOB)
    assert [(cause.id, cause.confidence) for cause in told.causes] == [
        (cause.id, cause.confidence) for cause in alone.causes
    ]
    first = 1 + PREFLIGHT.count("\n")
    lines = {proof.line for cause in told.causes for proof in cause.evidence}
    assert lines <= set(range(first, first + JOB.count("\n")))


@pytest.mark.parametrize("text", [PREFLIGHT, EXPLAINED])
def test_a_report_alone_is_no_verdict_on_a_job(text: str) -> None:
    told = explain_text(text)
    assert told.verdict is Verdict.UNDECIDED and not told.causes


def test_only_what_is_indented_below_belongs_to_it() -> None:
    own = OwnWords()
    lines = [
        b"step 1",
        b"nccl-doctor: go: srun train",
        b"step 2",
        "✗ HELD: gpu04: rank 3 (pid 30092) sleeps in <module> (train.py:10); 3".encode(),
        b"other ranks wait in all_reduce",
        b"",
        b"  proof",
        b"step 3",
        b"  File",
        b"they said FAULTY: no",
    ]
    assert [line for number, line in enumerate(lines, 1) if own.takes(line, number)] == [lines[1], *lines[3:7]]
    assert [number for number in range(1, 11) if own.had(number)] == [2, 4, 5, 6, 7]


@pytest.mark.parametrize("before", ["+ srun python train.py\n", ""])
@pytest.mark.parametrize("report", [PREFLIGHT, "✓ GO: 4 of 4 hosts are good, 4 needed.\n"])
def test_what_follows_a_report_at_once_is_the_jobs(report: str, before: str) -> None:
    """Under ``set -x`` the shell writes each command behind a plus; a short verdict is not wrapped."""
    told = explain_text(report + before + "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert told.causes and told.causes[0].id == "gpu.oom"


STEPS = "".join(f"step {number} loss {3 - number / 100:.2f}\n" for number in range(60))


@pytest.mark.parametrize(
    "end", ["exit 1: the job failed; its output says:", "the job hung: HELD: rank 3; ended, exit 75"]
)
def test_a_job_that_it_says_has_failed_is_not_healthy(end: str) -> None:
    assert explain_text(STEPS).verdict is Verdict.HEALTHY
    assert explain_text(f"{STEPS}nccl-doctor: {end}\n").verdict is Verdict.UNDECIDED
    again = "nccl-doctor: exit 1: looking at the hosts again, for attempt 2 of 3\n"
    assert explain_text(STEPS + again + STEPS).verdict is Verdict.HEALTHY


def test_every_verdict_that_is_printed_is_known() -> None:
    for head, _ in hang._HEAD.values():
        assert f" {head[2:]}: ".encode() in ANCHORS
