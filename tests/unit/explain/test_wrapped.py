"""Logs that were copied out of a terminal: what it broke at its width is joined, what only looks so is left alone."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import LogSource
from nccl_doctor.explain.readers.scan import scan
from nccl_doctor.explain.readers.wrapped import joined, wrapping
from tests.unit.explain.test_cases import CASES, logs_of

LOG = """\
Traceback (most recent call last):
  File "/srv/app/lib/python3.11/site-packages/acme/trainer.py", line 88, in fit_loop_of_all_epochs
    self.model = DistributedDataParallel(self.model, device_ids=[self.local_rank], output_device=self.local_rank)
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384, \
unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-9Xq1Zs (size 33030528), error: No space left on device (28)
E1201 10:00:00.000000 4411 site-packages/torch/distributed/elastic/multiprocessing/api.py:874] \
failed (exitcode: 1) local_rank: 0 (pid: 4419) of binary: /usr/bin/python3
"""


def at(width: int, text: str) -> str:
    return "".join(
        line[start : start + width] + "\n" for line in text.splitlines() for start in range(0, max(1, len(line)), width)
    )


@pytest.mark.parametrize("width", [72, 80, 90, 100])
def test_a_message_that_the_terminal_broke_is_read_and_quoted_whole(width: int, tmp_path: Path) -> None:
    log = tmp_path / "pasted.log"
    log.write_text(at(width, LOG))
    answer = explain_paths([str(log)])
    assert answer.causes[0].id == "sys.shm"
    quoted = [quote for quote in answer.causes[0].evidence if "No space left on device (28)" in quote.text]
    assert quoted[0].text.startswith("Error while creating shared memory segment /dev/shm/nccl-9Xq1Zs (size 33030528)")
    assert quoted[0].line == at(width, LOG)[: at(width, LOG).index("Error while creating")].count("\n") + 1


def test_standard_input_is_joined_too() -> None:
    command = [sys.executable, "-m", "nccl_doctor", "explain", "-", "--format", "json"]
    told = subprocess.run(command, input=at(80, LOG), capture_output=True, text=True, timeout=120)
    assert "(size 33030528), error: No space left on device (28)" in told.stdout


NVIDIA_SMI = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   0  Tesla V100-SXM2-16GB           On  | 00000000:1A:00.0 Off |                    0 |
| N/A   41C    P0              44W / 300W |      3MiB / 16384MiB |      0%      Default |
+---------------------------------------------------------------------------------------+
"""
ROWS = """\
NAME                        READY   STATUS    RESTARTS      AGE
qwen-multinode-0-vllm-0-0   0/1     Running   0             54s
qwen-multinode-0-vllm-0-1   0/1     Error     3 (31s ago)   54s
$ kubectl logs  qwen-multinode-0-vllm-0-1
"""
FREE = """\
               total        used        free      shared  buff/cache   available
Mem:             503         499           1           0           2           1
Swap:             63          62           0
"""
COMMANDS = "".join(
    f"ops@inf-{host}:~/serve$ python3 bench_serving.py --model m --requests 512\nNCCL version 2.26.2+cuda12.8\n"
    for host in "ab"
)
PROSE = """\
At least one pair of processes are unable to reach each other, for
which there may be many reasons: this means that no device has yet
indicated that it can be used to communicate between all of these
processes, or that one of them was stopped before it could answer
"""
RECORDS = "".join(
    f"node-a:{pid}:{pid} [{gpu}] NCCL INFO Channel {gpu:02} : {gpu}[{gpu}] -> {gpu + 1}[{gpu + 1}] via P2P/IPC/read\n"
    for gpu, pid in enumerate(range(4100, 4108))
)


HOSTS = "".join(
    f"{host}: NVRM: Xid (PCI:0000:3b:00): 79, pid={pid}, GPU has fallen off the bus\n"
    for pid, host in enumerate(("alpha", "bravo", "delta", "hotel", "india"), 4100)
)
CONTAINERS = "".join(
    f"{name}:41:41 [0] NCCL INFO comm 0x55d0c{at}f0 rank {at} nranks 4 cudaDev 0 - Init COMPLETE\n"
    for at, name in enumerate(("a3f9c2b1e4d0", "bb71c2b1e4d0", "cc91f2b1e4d0", "da0ac2b1e4d0", "ee3caab1e4d0"))
)
BASE64 = "$ base64 id\n" + base64.encodebytes(bytes(range(256))[: 57 * 4]).decode() + "RuntimeError: NCCL error\n"


@pytest.mark.parametrize(
    "text", [NVIDIA_SMI, ROWS, FREE, COMMANDS, PROSE, RECORDS, HOSTS, CONTAINERS, BASE64, "", "\n", LOG]
)
def test_lines_that_are_as_long_as_each_other_by_chance_stay_apart(text: str) -> None:
    assert wrapping(text.encode()) is None
    assert b"".join(joined([text.encode()])) == text.encode()


STEPS = "".join(
    f"Train: data epoch: [0]  [{at:4}/2771]  eta: 0:25:12  lr: 0.000100  loss: 3.{at}  time: 0.9{at}  data: 0.0\n"
    for at in range(0, 2400, 400)
)


def test_rows_of_steps_do_not_hide_that_a_traceback_is_broken() -> None:
    whole = b"".join(joined([at(80, STEPS + LOG).encode()])).decode()
    assert all(line in whole for line in LOG.splitlines())


def test_no_labelled_log_is_taken_for_broken() -> None:
    logs = [log for path in CASES for log in logs_of(path.read_text(encoding="utf-8"))]
    assert not [log.name for log in logs if wrapping(str(log.content).encode("utf-8", "replace"))]


@given(st.integers(60, 120), st.integers(1, 5000))
def test_lines_keep_their_numbers_whatever_the_blocks(width: int, size: int) -> None:
    text = at(width, LOG).encode()
    lines = text.splitlines(keepends=True)
    blocks = [b"".join(lines[at : at + size]) for at in range(0, len(lines), size)]
    whole = b"".join(joined(blocks))
    assert whole.count(b"\n") == text.count(b"\n")
    assert whole.replace(b"\n", b"") == text.replace(b"\n", b"")


def test_a_line_that_is_cut_is_one_line() -> None:
    text = at(80, LOG) + "x" * (3 << 20) + "\ntorch.OutOfMemoryError: CUDA out of memory\n"
    found = scan(LogSource("x.log", text))
    assert found.lines == found.groups["cuda-oom"].hits[0].line == text.count("\n")


def test_a_line_without_end_is_joined_up_to_what_is_looked_at() -> None:
    """An encoded file of a hundred thousand broken lines: each stays a line of bounded length."""
    row = "".join(chr(97 + at % 26) for at in range(79)) + " "
    text = "".join(row[at % 26 :] + row[: at % 26] + "\n" for at in range(100_000))
    assert max(map(len, b"".join(joined([text.encode()])).split(b"\n"))) < 10_000
    assert scan(LogSource("x.log", text)).lines == 100_000


def test_what_ucx_says_in_columns_is_joined() -> None:
    rows = (
        "[1772537000.{n}05078] [decode-0:1313:1]     ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded on mlx5_6:1/RoCE "
        "(synd 0x15 vend 0x81 hw_synd 0/0)\n[1772537000.{n}26112] [decode-0:1313:0]          ucp_mm.c:81   UCX  ERROR failed to "
        "register address 0x7f724a{n}00000 (cuda) length 1073741824 on md[{n}]=mlx5_0: Input/output error (md supports: host)\n"
    )
    whole = "".join(rows.format(n=n) for n in range(1, 9))
    assert [
        line for line in b"".join(joined([at(80, whole).encode()])).decode().split("\n") if line
    ] == whole.splitlines()


@pytest.mark.parametrize(("within", "are_joined"), [(2, True), (1, False)])
def test_a_quarter_of_the_breaks_within_words_tells_a_terminal(within: int, are_joined: bool) -> None:
    """NCCL writes many brackets and colons: of its lines fewer break inside a word than of prose."""
    ends = ("peer", "distance")[:within]
    heads = [f"vm-h200-0{n}:105061:10532{n} [{n}] NCCL INFO NET/IB : ".ljust(79, ".") for n in range(8)]
    whole = "".join(
        f"{head[:-1]} {end[0]}{end[1:]} {n}\n" for n, (head, end) in enumerate(zip(heads, ends, strict=False))
    )
    whole += "".join(f"{head}]/{'abcdefgh'[n]}{n} [RO]\n" for n, head in enumerate(heads[within:], within))
    assert (b"".join(joined([at(80, whole).encode()])).decode().replace("\n\n", "\n") == whole) is are_joined
