"""How a job ended is not why it failed: interrupts, limits, traps and kills that only follow, and those that are the cause."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.model import Explanation, LogSource, Verdict
from nccl_doctor.explain.signatures import all_signatures
from tests.unit.explained import explain_text


def _first(explanation: Explanation) -> str:
    return explanation.causes[0].id if explanation.causes else ""


_SET_UP = (
    "NCCL version 2.22.3+cuda12.5\n"
    "box:70:90 [0] NCCL INFO Using network Socket\n"
    "box:70:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
    "box:70:90 [0] NCCL INFO comm 0xa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x7 - Init COMPLETE\n"
    "box:71:91 [1] NCCL INFO comm 0xb rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x7 - Init COMPLETE\n"
)
_STEPS = "".join(f"step {n} loss 2.{n} 310 ms/step\n" for n in range(100, 140))
_SIGINT = (
    "^CW0501 10:20:30.400000 60 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGINT death signal, "
    "shutting down workers\n"
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/src/net.py", line 9, in main\n'
    "[rank1]:     model(batch)\n"
    "[rank1]: KeyboardInterrupt\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 60 got signal: 2\n"
)
_IOMMU = "[  77.100000] nvidia 0000:21:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0014 address=0xe0000000 flags=0x0020]\n"
_XID = "[ 8100.2] NVRM: Xid (PCI:0000:21:00): 79, pid=70, GPU has fallen off the bus.\n"
_WITHOUT_P2P = (
    "$ NCCL_P2P_DISABLE=1 torchrun --nproc_per_node=2 net.py\nepoch 0 loss 1.5\nepoch 1 loss 1.2\nepoch 2 loss 1.0\n"
)


def test_a_log_that_ends_where_nccl_is_initialised_proves_nothing() -> None:
    got = explain_text(_SET_UP)
    assert got.verdict is Verdict.UNDECIDED and "logs end there" in got.sentence
    assert "hang" in got.next[0] and all(item.confidence < 0.3 for item in got.causes)
    assert explain_text(_SET_UP + "Training complete.\n").verdict is Verdict.HEALTHY
    before = "Downloading shards: 100%|####| 30/30 [00:10<00:00, 2.9it/s]\n"
    assert explain_text(before + _SET_UP).verdict is Verdict.UNDECIDED
    assert explain_text(_SET_UP + before).verdict is Verdict.UNDECIDED
    assert explain_text(_SET_UP + before.replace("Downloading shards", "Epoch 0")).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "exception",
    [
        "BrokenPipeError: [Errno 32] Broken pipe",
        "SystemExit: 1",
        "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.",
        "paddle.base.core.EnforceNotMet: (External) Something",
        "RuntimeError: worker failed to start",
    ],
)
def test_an_exception_that_ended_the_work_is_not_healthy_whatever_is_printed_behind_it(exception: str) -> None:
    raised = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.10/multiprocessing/connection.py", line 368, in _send\n'
        "    n = write(self._handle, buf)\n"
        f"{exception}\n"
    )
    chatter = "".join(f"run history {letter}\n" for letter in "abcdefghijklmnopqrstuvwxyz")
    got = explain_text(_STEPS + raised + chatter)
    assert (got.verdict, _first(got)) == (Verdict.UNDECIDED, "app.rank-exception")
    assert explain_text(_STEPS + raised + _STEPS).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "code",
    [
        "        self.global_step += 1",
        "    if step % 10 == 0:",
        "  for epoch in range(3):",
        "    epoch, loss = self.fit(epoch 1)",
    ],
)
def test_a_line_of_code_is_no_step(code: str) -> None:
    progress = all_signatures()["progress"]
    assert progress.match(code) is None
    assert progress.match("=== Epoch 3 === loss: 0.1 lr = 2e-4") is not None


@pytest.mark.parametrize(
    ("kinds", "bandwidth", "alone"),
    [(("float", "float"), "50.12", True), (("float", "float"), "0.00", False), (("float", "half"), "50.12", False)],
)
def test_the_same_row_twice_without_bandwidth_on_the_bus_is_of_two_jobs(
    kinds: tuple[str, str], bandwidth: str, alone: bool
) -> None:
    half = f"20.10    {bandwidth}    0.00      0"
    rows = "".join(f"           8             2     {kind}     sum      -1    {half}    {half}\n" for kind in kinds)
    assert (_first(explain_text(rows)) == "launch.world-size") is alone


def test_ranks_that_were_started_anew_on_a_gpu_do_not_share_it() -> None:
    aborted = "box:{pid}:9 [0] NCCL INFO comm 0x5 rank {rank} nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE\n"
    twice = aborted.format(pid=70, rank=0) + aborted.format(pid=90, rank=1)
    assert _first(explain_text(twice)) == "gpu.duplicate"
    assert _first(explain_text(_SET_UP + twice)) != "gpu.duplicate"
    assert _first(explain_text(twice.replace("box:", "localhost:"))) != "gpu.duplicate"


@pytest.mark.parametrize(
    ("library", "own"),
    [
        ("/opt/app/lib/libfold.so", True),
        ("/opt/rocm/lib/librccl.so.1", False),
        ("/opt/conda/lib/libmkl_core.so.2", False),
        ("/usr/lib/x86_64-linux-gnu/libhwloc.so.15", False),
    ],
)
def test_a_library_that_programs_are_built_upon_is_not_their_own_code(library: str, own: bool) -> None:
    crash = f"==== backtrace ====\n 0 /lib64/libucs.so.0(+0x174b0) [0x2acbb246d4b0]\n 1 {library}(go+0xff3) [0x2acba2269ba3]\n"
    got = explain_text(crash)
    assert any("own code" in cause.title for cause in got.causes) is own


_STORE_GONE = (
    "[2024-03-04 02:37:{second}] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'srv_9_0' has failed "
    "to send a keep-alive heartbeat to the rendezvous '7' due to an error of type RendezvousConnectionError.\n"
)


@pytest.mark.parametrize(("second", "same_job"), [("11,100", False), ("02,100", True)])
def test_an_end_that_is_older_than_the_trouble_above_it_is_another_jobs(second: str, same_job: bool) -> None:
    log = _STEPS + _STORE_GONE.format(second=second) * 2 + "2024-03-04 02:37:02,021 INFO Training finished\n"
    assert (explain_text(log).verdict is Verdict.HEALTHY) is same_job


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("container ended with exit code 137", "sys.host-oom"),
        ("ORTE has lost communication with a remote daemon.", "sys.node-failure"),
    ],
)
def test_a_failure_with_many_causes_is_not_healthy_whatever_is_printed_behind_it(said: str, cause: str) -> None:
    chatter = "".join(f"run history {letter}\n" for letter in "abcdefghijklmnopqrstuvwxyz")
    got = explain_text(f"{_STEPS}{said}\n{chatter}")
    assert (got.verdict, _first(got)) == (Verdict.UNDECIDED, cause)
    assert explain_text(f"{_STEPS}{said}\n{_STEPS}").verdict is Verdict.HEALTHY


def test_an_mpi_that_could_not_start_is_a_consequence_where_the_cause_is_told() -> None:
    said = "It looks like MPI_INIT failed for some reason; your parallel process is\n"
    why = (
        "[n1:7] UCX ERROR ibv_reg_mr(address=0x7f, length=3774, access=0xf) failed: Cannot allocate memory : Please set "
        "max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n"
    )
    assert explain_text(said).verdict is Verdict.UNDECIDED
    assert "MPI could not start" in {item.text for item in explain_text(said + why).consequences}


def test_an_mpi_that_could_not_start_and_was_started_anew_is_healthy() -> None:
    got = explain_text("It looks like MPI_INIT failed for some reason; your parallel process is\n" + _STEPS)
    assert got.verdict is Verdict.HEALTHY


def test_a_peer_of_rpc_that_leaves_after_the_end_is_the_shutdown() -> None:
    left = (
        "[W tensorpipe_agent.cpp:725] RPC agent for w2 encountered error when reading incoming request from w1: EOF\n"
    )
    assert explain_text(f"{_STEPS}Training finished\n{left}").verdict is Verdict.HEALTHY
    assert explain_text(f"{_STEPS}{left}").verdict is Verdict.UNDECIDED


def test_a_traceback_below_the_end_is_trouble_though_it_is_cut() -> None:
    cut = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    run(x)\n'
    assert explain_text(_STEPS + "Training finished\n" + cut).verdict is Verdict.UNDECIDED
    assert explain_text(_STEPS + cut + "Training finished\n").verdict is Verdict.HEALTHY


def test_work_between_an_end_and_a_trouble_is_seen_in_the_file_of_both() -> None:
    went_on = "Training finished\n" + _STEPS + _STORE_GONE.format(second="02,100") + "bye\n" * 30
    sources = [LogSource("0.log", went_on), LogSource("1.log", _STEPS)]
    assert explain_text(went_on).verdict is Verdict.UNDECIDED
    assert analyse(sources).verdict is Verdict.UNDECIDED


def test_steps_without_an_end_are_healthy_as_far_as_the_log_goes() -> None:
    got = explain_text(_SET_UP + _STEPS)
    assert got.verdict is Verdict.HEALTHY and got.sentence.endswith("they tell of steps and of no end")
    assert got.next == ("if the job stands still now: nccl-doctor hang --hosts HOSTFILE",)
    ended = explain_text(_SET_UP + _STEPS + "Training complete.\n")
    assert ended.sentence == "nothing in these logs failed" and not ended.next


@pytest.mark.parametrize(
    ("proof", "cause"),
    [(_IOMMU + _WITHOUT_P2P, "gpu.p2p"), (_WITHOUT_P2P, "gpu.p2p"), (_IOMMU, "gpu.p2p"), (_XID, "gpu.fell-off-bus")],
)
def test_who_interrupts_a_hang_is_not_its_cause(proof: str, cause: str) -> None:
    told = explain_text(_SET_UP + _SIGINT + proof)
    assert (told.verdict, _first(told)) == (Verdict.CAUSE_FOUND, cause)


def test_an_interrupt_of_work_is_explained_by_what_stopped_the_work_only() -> None:
    assert _first(explain_text(_SET_UP + _STEPS + _XID + _SIGINT)) == "gpu.fell-off-bus"
    assert _first(explain_text(_SET_UP + _STEPS + _SIGINT)) == "launch.killed"
    waited = (
        "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600080 milliseconds before timing out.\n"
    )
    assert explain_text(_SET_UP + _STEPS + waited + _SIGINT).verdict is Verdict.UNDECIDED
    assert _first(explain_text(_SET_UP + waited + _STEPS + _SIGINT)) == "launch.killed"
    peers = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.1.1.2]:4000\n"
    assert _first(explain_text(_SET_UP + _STEPS + _SIGINT + peers)) == "launch.killed"


_LIMIT = "slurmstepd: error: *** STEP 40.0 ON n1 CANCELLED AT 2026-04-03T02:01:00 DUE TO TIME LIMIT ***\n"
_ABORTED = (
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: n2: task 1: Terminated\n"
)
_SIGTERM = (
    "W0403 02:01:01.400000 60 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGTERM death signal, "
    "shutting down workers\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 60 got signal: 15\n"
)
_STARTS = "".join(
    f"n{rank}:70:9{rank} [0] NCCL INFO Bootstrap : Using eth0:10.1.1.{rank}<0>\n"
    f"n{rank}:70:9{rank} [0] NCCL INFO comm 0x{rank}a rank {rank} nranks 2 cudaDev 0 busId 1000 commId 0x7 - Init START\n"
    for rank in range(2)
)


@pytest.mark.parametrize(
    "end",
    [_LIMIT, _LIMIT + _ABORTED, _LIMIT + _SIGTERM, "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n"],
)
def test_a_time_limit_ends_a_start_that_hangs_and_is_the_cause_where_work_was_done(end: str) -> None:
    hung = explain_text(_STARTS + end)
    assert hung.verdict is Verdict.UNDECIDED
    assert [cause.id for cause in hung.causes][:2] == ["net.firewall", "net.wrong-interface"]
    worked = explain_text(_STARTS + _STARTS.replace("START", "COMPLETE") + _STEPS + end)
    assert (worked.verdict, _first(worked)) == (Verdict.CAUSE_FOUND, "launch.killed")


def test_sigterm_without_a_limit_says_who_ended_the_job() -> None:
    assert _first(explain_text(_STARTS + _SIGTERM)) == "launch.killed"


_SERVES = "[2026-04-03 02:00:00 TP0] Decode batch. #running-req: 4, #token: 900, gen throughput (token/s): 800.10\n"
_WATCHDOG = "".join(f"[2026-04-03 02:06:0{n} TP{n}] Watchdog timeout (self.watchdog_timeout=300)\n" for n in range(4))
_CHILD = "[2026-04-03 02:06:09] Received sigquit from a child process. It usually means the child failed.\n"
_SHELL = "/run.sh: line 4:    31 Killed                  python3 -m sglang.launch_server --tp 4\n"


@pytest.mark.parametrize("end", [_SHELL, "Killed\n", _CHILD, _CHILD + _SHELL])
def test_a_kill_after_the_engines_watchdog_is_its_consequence(end: str) -> None:
    told = explain_text(_SERVES * 3 + _WATCHDOG + end)
    assert told.verdict is Verdict.UNDECIDED
    assert _first(told) == "app.straggler-timeout"
    assert {"sw.nccl-bug", "gpu.fell-off-bus"} <= {cause.id for cause in told.causes}


def test_a_kill_of_its_own_is_still_the_memory_limits() -> None:
    assert _first(explain_text(_SERVES * 3 + _SHELL)) == "sys.host-oom"
    kernel = "[ 99.1] Memory cgroup out of memory: Killed process 31 (python3) total-vm:900kB, anon-rss:800kB\n"
    assert _first(explain_text(_SERVES * 3 + _WATCHDOG + kernel + _SHELL)) == "sys.host-oom"
    assert _first(explain_text(_SERVES * 3 + _SHELL + _WATCHDOG)) == "sys.host-oom"


_BLOCKED = (
    "(EngineCore pid=9) INFO 04-03 02:0{n}:05 [shm_broadcast.py:466] "
    "No available shared memory broadcast block found in 60 seconds.\n"
)
_ENGINE = "(EngineCore pid=9) ERROR 04-03 02:09:05 [core.py:700] "


@pytest.mark.parametrize("link", ["TimeoutError", "queue.Empty", "asyncio.exceptions.TimeoutError"])
def test_an_engine_whose_workers_hang_does_not_tell_the_cause(link: str) -> None:
    log = "".join(_BLOCKED.replace("{n}", str(n)) for n in range(4)) + "".join(
        f"{_ENGINE}{line}\n"
        for line in (
            "EngineCore encountered a fatal error.",
            "Traceback (most recent call last):",
            '  File "/vllm/v1/executor/multiproc_executor.py", line 300, in get_response',
            "    status, result = queue.dequeue(",
            link,
            "The above exception was the direct cause of the following exception:",
            "Traceback (most recent call last):",
            '  File "/vllm/v1/executor/multiproc_executor.py", line 310, in collective_rpc',
            "    result = get_response(w)",
            "TimeoutError: RPC call to execute_model timed out.",
        )
    )
    told = explain_text(log)
    assert told.verdict is Verdict.UNDECIDED
    assert "unrelated" not in {cause.id for cause in told.causes}


def test_an_engine_whose_worker_raises_tells_it() -> None:
    log = (
        "Traceback (most recent call last):\n"
        + '  File "/srv/model.py", line 3, in forward\n    raise KeyError(name)\n'
    )
    told = explain_text(_BLOCKED.replace("{n}", "1") + log + "KeyError: 'lm_head'\n")
    assert told.verdict is not Verdict.UNDECIDED
    assert _first(told) in ("unrelated", "app.rank-exception")


_EXPERTS = (
    "DeepEP dispatch NVL receiver timeout, channel: 3, RDMA: 0, nvl: 1, src RDMA: 1, src nvl: 2, start: 0, end: 0\n"
)
_TRAP = "[rank2]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"


def test_deepeps_trap_follows_its_timeout() -> None:
    cpu = "[rank6]: RuntimeError: DeepEP error: timeout (combine CPU)\n"
    for log in (_EXPERTS + _TRAP, _EXPERTS * 3 + cpu + _TRAP):
        told = explain_text(log)
        assert told.verdict is Verdict.UNDECIDED
        assert _first(told) == "app.straggler-timeout"
    illegal = "[rank2]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    for log in (_TRAP, _TRAP + _EXPERTS, _EXPERTS + illegal):
        assert _first(explain_text(log)) == "gpu.illegal-access"


_NOTICES = (
    "WARN: device rxe0 is not enumerated as an mlx5 device. Skipping...\n"
    "WARN: device mlx5_9 cannot allocate buffer on the specified memory type. Skipping...\n"
    "/nvshmem/transport_gdr_common.cpp 26 GDRCopy library not found. disabling GDRCopy.\n"
)
_TESTED = (
    "[testing] Running with BF16, with top-k (async=False, previous=False) ... passed\n"
    "[tuning] Best dispatch (BF16): SMs 24, NVL chunk 20, RDMA chunk 16: 44.00 GB/s (RDMA), 143.00 GB/s (NVL)\n"
)
_CLEAN_UP = "/nvshmem/ibgda.cpp:4100: ibv_dealloc_pd failed\n"


def test_nvshmems_notices_are_harmless_where_the_tests_pass() -> None:
    assert explain_text(_NOTICES + _TESTED + _CLEAN_UP + "rc=0\n").verdict is Verdict.HEALTHY
    assert explain_text(_NOTICES + _TESTED + "rc=0\n").verdict is Verdict.HEALTHY
    assert explain_text(_NOTICES + _TESTED + _EXPERTS + "rc=1\n").verdict is not Verdict.HEALTHY
    none = "no active IB device that supports GPU-initiated communication is found\n"
    assert _first(explain_text(none)) == "ib.device-not-found"
    assert _first(explain_text(_NOTICES + none)) == "ib.gdr"  # which refuse the GPU's memory
    ends = explain_text(_NOTICES)
    assert (ends.verdict, _first(ends)) == (Verdict.UNDECIDED, "ib.gdr")


_SNAPSHOT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:577] [Rank 0]\n"
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
    "\t   - [3] joined but didn't finish collective #12 (count from 1)\n"
    "\t - Snapshot of ranks' latest states:\n"
    "\t   #12 started ranks:\n"
    "\t     [0, 1, 2] started ALLREDUCE\n"
)


def test_different_operations_under_one_number_are_a_mismatch() -> None:
    told = explain_text(_SNAPSHOT + "\t     [3] started BROADCAST\n")
    assert (_first(told), told.causes[0].ranks) == ("app.collective-mismatch", (3,))
    assert any("[3] started BROADCAST" in item.text for item in told.causes[0].evidence)
    other_number = explain_text(_SNAPSHOT + "\t   #11 started ranks:\n\t     [3] started BROADCAST\n")
    assert all(cause.confidence < 0.8 for cause in other_number.causes if cause.id == "app.collective-mismatch")


_TABLE = (
    "train.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n"
    "  host      : h1\n  rank      : 5 (local_rank: 1)\n  exitcode  : {code} (pid: 40)\n  error_file: <N/A>\n"
)


def test_what_the_launchers_table_says_of_a_silent_rank_is_quoted() -> None:
    told = explain_text(_TABLE.replace("{code}", "1"))
    assert told.causes[0].ranks == (5,)
    assert any("rank      : 5" in item.text for item in told.causes[0].evidence)


def test_options_that_a_program_does_not_know_are_its_own_affair() -> None:
    told = explain_text("│ Unrecognized options: --trainer.stepps │\n" + _TABLE.replace("{code}", "2"))
    assert (told.verdict, _first(told)) == (Verdict.NOT_DISTRIBUTED, "unrelated")


@pytest.mark.parametrize(
    ("line", "before", "cause"),
    [
        (
            "n1:7:7 [0] NCCL INFO NET/Plugin: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /opt/libnccl-net.so)",
            "n1:7:7 [0] net.cc:625 NCCL WARN Error: network gIB not found.",
            "net.plugin",
        ),
        (
            "tcmalloc: large alloc 3221225472 bytes == 0x55d0a000",
            "/run.sh: line 4:    31 Killed    python3 t.py",
            "sys.host-oom",
        ),
    ],
)
def test_the_reason_that_a_library_gave_is_quoted(line: str, before: str, cause: str) -> None:
    told = explain_text(f"{line}\n{before}\n")
    assert _first(told) == cause
    assert any(line in item.text for item in told.causes[0].evidence)


@pytest.mark.parametrize(
    "line",
    [
        "[W1201 10:00:00.1 socket.cpp:462] [c10d] The server socket on [node1]:29500 has timed out, will retry.",
        "E1201 10:00:00.000000 88 client_service.cpp:120] Failed to connect to master service at 10.0.0.7:50051",
        "it is slow only in the first epoch, which is normal",
    ],
)
def test_what_the_work_went_on_after_is_no_trouble(line: str) -> None:
    assert explain_text(_SET_UP + line + "\n" + _STEPS).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "other", ["vit    Failed      4h32m", "vit    Running     4h32m", "8811  RUNNING  0:0", "8811  FAILED  1:0"]
)
def test_that_another_job_of_a_listing_succeeded_makes_nothing_healthy(other: str) -> None:
    fault = "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    steps = "".join(f"[rank0] step {number} loss 2.1\n" for number in range(3))
    good = "8812  COMPLETED  0:0" if ":0" in other else "bert   Succeeded   3h2m"
    assert explain_text(f"{steps}{fault}{good}\n").verdict is Verdict.HEALTHY
    assert explain_text(f"{steps}{fault}{other}\n{good}\n").causes[0].id == "gpu.illegal-access"


def test_of_one_rank_that_crashed_over_gloo_its_own_native_code_is_suspected_first() -> None:
    closed = "[rank2]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4410\n"
    crash = (
        "E1123 07:25:47.514000 32379 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 3 "
        "(pid: 32391) of binary: /usr/bin/python3\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -11 (pid: 32391)\n  traceback : Signal 11 (SIGSEGV) received by PID 32391\n"
    )
    got = explain_text(closed + crash)
    assert (got.verdict, got.causes[0].id, got.causes[0].ranks) == (Verdict.UNDECIDED, "app.rank-exception", (3,))
    with_nccl = "n1:1:9 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n" + closed + crash
    assert explain_text(with_nccl).causes[0].id == "sw.nccl-bug"


def test_who_ends_a_process_that_hangs_does_not_tell_why_it_hung() -> None:
    ended = (
        "E1123 07:39:41.897000 88 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 "
        "(pid: 18160) of binary: /usr/bin/python3\n"
    )
    purpose = explain_text(_STEPS + "epilog: job 7 done, process 18160 left, sending SIGKILL\n" + ended)
    assert (purpose.verdict, _first(purpose)) == (Verdict.CAUSE_FOUND, "launch.killed")
    hung = explain_text(_STEPS + "[watch] no output for 600 s, sending SIGKILL to process 18160\n" + ended)
    assert (hung.verdict, _first(hung)) == (Verdict.UNDECIDED, "launch.killed")
    another = explain_text(_STEPS + "epilog: job 7 done, process 4711 left, sending SIGKILL\n" + ended)
    assert _first(another) == "sys.host-oom"


def test_a_status_of_0_that_a_pipe_may_hide_is_no_good_end_and_that_of_each_rank_is() -> None:
    failed = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert _first(explain_text(failed + "all parts done, exit status 0\n")) == "gpu.oom"
    assert _first(explain_text(failed + "ranks exited with 0 and 1\n")) == "gpu.oom"
    assert explain_text(failed + "ranks exited with 0 and 0\n").verdict == Verdict.HEALTHY


def test_a_tool_that_is_missing_stops_a_script_and_no_job_that_began_after_it() -> None:
    missing = "run.sh: line 3: jq: command not found\n"
    assert (explain_text(missing).verdict, _first(explain_text(missing))) == (Verdict.UNDECIDED, "unrelated")
    assert _first(explain_text(missing + _SET_UP + _STEPS + "training finished\n")) == ""
    wrapper = explain_text("run.sh: line 3: numactl: command not found\n")
    assert (wrapper.verdict, _first(wrapper)) == (Verdict.NOT_DISTRIBUTED, "unrelated")


def test_where_ranks_told_their_gpus_when_they_began_the_lines_of_an_abort_accuse_none_of_sharing_one() -> None:
    began = "".join(
        f"n1:{70 + rank}:9 [{rank}] NCCL INFO ncclCommInitRank comm 0xa{rank} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} "
        f"busId {rank + 1}8000 commId 0x7 - Init START\n"
        for rank in range(2)
    )
    aborted = "".join(
        f"n1:{70 + rank}:9 [{rank}] NCCL INFO comm 0xa{rank} rank {rank} nranks 2 cudaDev {rank} busId 18000 - Abort COMPLETE\n"
        for rank in range(2)
    )
    assert _first(explain_text(aborted)) == "gpu.duplicate"
    assert _first(explain_text(began + aborted)) != "gpu.duplicate"
