"""Several troubles in one log: of which attempt a line is, and whether the job's work went on after it."""

from __future__ import annotations

import pytest

from nccl_doctor.explain.model import Explanation, Verdict
from nccl_doctor.explain.readers import prefix
from tests.unit.explained import explain_text

_QUOTA = "[rank3]: OSError: [Errno 122] Disk quota exceeded: '/scratch/p7/step_400/__3_0.distcp'\n"
_OOM = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.34 GiB.\n"
_ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
_ENDED = "E0703 21:31:44.911000 3312 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 5 (pid: 95) of binary: python\n"
_RESTART = _ENDED + (
    "I0703 21:31:44.930000 3312 torch/distributed/elastic/agent/server/api.py:896] [default] Worker group FAILED. "
    "3/3 attempts left; will restart worker group\n"
)
_SRUN = "srun: error: n3: task 21: Exited with exit code 1\n"
_COMPLETE = "n1:71:71 [0] NCCL INFO comm 0x1 rank 3 nranks 16 cudaDev 3 busId 1b000 commId 0x61b - Init COMPLETE\n"
_NCCL = "n1:{pid}:{pid} [2] NCCL INFO Bootstrap : Using ib0:10.3.1.2<0>\n"


def _steps(first: int, count: int = 4, pace: str = "412 ms") -> str:
    return "".join(f"step {step} | loss 2.{step} | {pace}/step\n" for step in range(first, first + count))


def _causes(got: Explanation) -> dict[str, float]:
    return {cause.id: cause.confidence for cause in got.causes}


BETWEEN = {
    "torchrun": _RESTART,
    "heading": "===== run 2 (with another config) =====\n",
    "Slurm's file": "=== slurm-40211.out (requeue, restart count 1) ===\n",
    "the launcher": "Starting attempt 10\n",
    "resumed": _ENDED + "resumed from /ckpt/step_100\n",
    "launcher, then work": f"{_SRUN}NCCL version 2.23.4+cuda12.6\n{_COMPLETE}",
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("first", "then", "cause"), [(_QUOTA, _OOM, "gpu.oom"), (_OOM, _QUOTA, "sys.disk-full")])
def test_the_last_attempt_ended_the_job(between: str, first: str, then: str, cause: str) -> None:
    got = explain_text(_steps(1) + first + BETWEEN[between] + then)
    assert got.causes[0].id == cause
    assert sorted(value > 0.5 for value in _causes(got).values())[-2:] == [False, True]  # the other one is named


def test_another_process_on_the_same_gpu_is_another_attempt() -> None:
    def log(pid: int) -> str:
        return _NCCL.format(pid=71) + _steps(1) + _OOM + _NCCL.format(pid=pid) + _QUOTA

    assert explain_text(log(93)).causes[0].id == "sys.disk-full"
    assert explain_text(log(71)).causes[0].id == "gpu.oom"  # one attempt: the same process speaks again


def test_ranks_that_see_one_gpu_each_are_no_attempts() -> None:
    """NCCL gives the GPU of each of them the number 0."""
    start = "n1:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 busId 1b000 commId 0x6 - Init START\n"
    late = start.format(pid=72, rank=1) + _QUOTA
    assert explain_text(start.format(pid=71, rank=0) + _OOM + late).causes[0].id == "gpu.oom"
    assert explain_text(start.format(pid=71, rank=1) + _OOM + late).causes[0].id == "sys.disk-full"


@pytest.mark.parametrize(
    "between",
    [
        "--- retry 2 (other nodes): failed in step 3\n",
        "[rank1]: GET s3://corp/shards/2210.tar: ReadTimeoutError (attempt 2)\n",
        "  restart_count=0\n",
        "    run 2: 31.2 GB/s\n",
        "NCCL version 2.23.4+cuda12.6\n",
        f"{_SRUN}NCCL version 2.23.4+cuda12.6\n",
    ],
)
def test_what_is_no_other_attempt(between: str) -> None:
    log = _steps(1) + _OOM + between + "[rank3]: OSError: [Errno 28] No space left on device\n"
    assert explain_text(log).causes[0].id == "gpu.oom"


_HELD = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. GPU 2 has 1.02 GiB free. Process 4502 has 71.64 GiB memory in use.\n"


@pytest.mark.parametrize(
    "then",
    [
        "[rank2]: torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (n1, 29500).\n",
        "[W703 21:33:58.100912 socket.cpp:460] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in use).\n",
        _HELD,
    ],
    ids=["no store", "port held", "memory held"],
)
def test_what_the_attempt_before_left_behind_did_not_end_the_job(then: str) -> None:
    assert explain_text(_steps(1) + _QUOTA + _RESTART + then).causes[0].id == "sys.disk-full"


def test_memory_that_runs_out_when_an_attempt_has_worked_is_its_own() -> None:
    assert explain_text(_steps(1) + _QUOTA + _RESTART + _steps(5) + _HELD).causes[0].id == "gpu.oom"


def test_an_attempt_begins_at_the_first_word_of_it() -> None:
    log = _steps(1) + _OOM + _RESTART + _QUOTA + "resumed from /ckpt/step_2\n"
    assert explain_text(log).causes[0].id == "sys.disk-full"


def test_what_the_head_of_a_log_says_holds_for_all_attempts() -> None:
    head = "n17:40112:40688 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 2.\n"
    assert explain_text(head + _steps(1) + _OOM + _RESTART + _LOST).causes[0].id == "env.bad-nccl-var"


def test_a_second_run_that_went_well_answers_why_the_first_did_not() -> None:
    """Whoever changed the library and pastes both asks for the cause of the first."""
    run = "### job {job} image nemo_{version}.sqsh\nn7:{pid}:{pid} [0] NCCL INFO NCCL version {version}+cuda12.8\n"
    failed = (
        "n7:74:74 [0] graph/topo.h:230 NCCL WARN Could not find NET with id 0\n"
        "ncclInternalError: Internal check failed.\n"
        "srun: error: n7: tasks 0-3: Exited with exit code 1\n"
    )
    log = run.format(job=1, version="2.25.1", pid=74) + failed + run.format(job=2, version="2.27.3", pid=91)
    assert explain_text(log + _COMPLETE + _steps(1)).causes[0].id == "sw.nccl-bug"


def test_a_job_that_works_after_its_restart_is_healthy_and_tells_of_it() -> None:
    got = explain_text(_steps(1) + _ECC + _RESTART + "resumed from /ckpt/step_2\n" + _steps(3))
    assert got.verdict is Verdict.HEALTHY
    assert any("uncorrectable ECC error" in line for line in got.overcome)
    assert explain_text(_steps(1) + _ECC + _RESTART).causes[0].id == "gpu.ecc"  # nothing is told of the next one


def test_a_pace_that_the_last_attempt_does_not_reach_is_told() -> None:
    lost = "n4 kernel: [71233.120221] NVRM: Xid (PCI:0000:b9:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    log = _steps(201, 8) + lost + _RESTART + "resumed from /ckpt/step_200\n"
    assert "the pace fell for good" in explain_text(log + _steps(201, 8, "2900 ms")).causes[0].title
    assert explain_text(log + _steps(201, 8)).verdict is Verdict.HEALTHY


_WATCHDOG = (
    "[rank{rank}]:[E829 10:16:29.138 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=22110, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600003 milliseconds before timing out.\n"
)
_RAISED = "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/w/train.py\", line 8, in <module>\n[rank2]: KeyError: 'lr'\n"


@pytest.mark.parametrize(("steps", "cause"), [(2, "app.rank-exception"), (1, "gpu.illegal-access")], ids=["two", "one"])
def test_two_steps_after_a_fault_show_that_it_ended_nobody(steps: int, cause: str) -> None:
    fault = "n3: CUDA error: an illegal memory access was encountered\n"
    assert explain_text(_steps(1) + fault + _steps(5, steps) + _RAISED).causes[0].id == cause


@pytest.mark.parametrize(
    "row", ["step {step}", "step {step} | time per step: 51{rank} ms", "rank {rank}/3 step {step}"]
)
def test_reports_of_several_ranks_are_of_one_step(row: str) -> None:
    def told(step: int, *ranks: int) -> str:
        return "".join(f"[rank{rank}]: {row.format(rank=rank, step=step)} | loss 2.1\n" for rank in ranks)

    steps = told(1, 0, 1, 2) + told(2, 0, 1, 2)
    assert explain_text(steps + _OOM + told(3, 1, 2) + _QUOTA).causes[0].id == "gpu.oom"
    assert explain_text(steps + _OOM + told(3, 1, 2) + told(4, 1, 2) + _QUOTA).causes[0].id == "sys.disk-full"


def test_steps_that_are_parts_of_epochs_are_told_apart() -> None:
    """As transformers' Trainer logs; a checkpoint that one rank could not write was written at the second try."""
    rows = [f"{{'loss': 1.{9 - part}, 'grad_norm': 1.3, 'epoch': 0.{part}5}}\n" for part in range(1, 9)]
    full = "[rank1]: OSError: [Errno 28] No space left on device: '/mnt/out/checkpoint-450/optim_states.pt'\n"
    assert explain_text("".join([*rows[:4], full, *rows[4:]])).verdict is Verdict.HEALTHY
    assert explain_text("".join([*rows[:4], full, rows[4]])).causes[0].id == "sys.disk-full"


@pytest.mark.parametrize(("steps", "healthy"), [(2, True), (1, False)], ids=["two", "one"])
def test_a_log_that_goes_on_for_two_steps_after_a_fault_is_healthy(steps: int, healthy: bool) -> None:
    fault = "n3:71:75 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 69000\n"
    assert (explain_text(_steps(1) + fault + _steps(5, steps)).verdict is Verdict.HEALTHY) is healthy


def test_what_counts_up_without_being_a_step_is_none() -> None:
    fault = "n3:71:75 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 69000\n"
    shards = "".join(f"loading checkpoint shards: {number}/99\n" for number in (3, 4, 5))
    assert explain_text(_steps(1) + fault + shards).verdict is Verdict.CAUSE_FOUND


def test_steps_of_several_ranks_are_one_step() -> None:
    same = "[rank1] step 5 loss 2.1\n[rank2] step 5 loss 2.1\n[rank3] step 5 loss 2.1\n"
    fault = "n3: CUDA error: an illegal memory access was encountered\n"
    start = same.replace("5", "4")
    assert explain_text(start + fault + same + _RAISED).causes[0].id == "gpu.illegal-access"
    assert explain_text(start + fault + same + same.replace("5", "6") + _RAISED).causes[0].id == "app.rank-exception"


@pytest.mark.parametrize(
    ("when", "cause"),
    [
        ("", "gpu.fell-off-bus"),
        ("Jul 16 18:40:02 n7 ", "app.rank-exception"),
        ("Jul 16 18:41:02 n7 ", "gpu.fell-off-bus"),
    ],
    ids=["no time", "before", "after"],
)
def test_a_kernels_log_above_a_jobs_is_older_only_by_its_time(when: str, cause: str) -> None:
    """Somebody pastes dmesg first, and the job's log below it."""
    fault = f"{when}kernel: NVRM: Xid (PCI:0000:2a:00): 79, pid=7, name=python3, GPU has fallen off the bus.\n"
    steps = "".join(f"2026-07-16 18:40:{10 + n} step {n} loss 3.1\n" for n in range(4))
    assert explain_text(fault + steps + _RAISED).causes[0].id == cause


def test_what_lasts_is_not_outlived_by_two_steps() -> None:
    assert explain_text(_steps(1) + _QUOTA + _steps(5) + _RAISED).causes[0].id == "sys.disk-full"


def test_a_weak_line_does_not_prolong_a_trouble() -> None:
    """Ray lists what may have killed an actor: that says nothing of the memory monitor's kill long before."""
    oom = "(raylet) node_manager.cc:3193: 1 Workers (tasks / actors) killed due to memory pressure (OOM)\n"
    lost = "(raylet, ip=10.0.0.9) Error publishing node physical stats: pynvml.NVMLError_GpuIsLost: GPU is lost (index 5)\n"
    dead = (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly "
        "exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL "
        "by OOM killer due to high memory usage.\n"
    )
    assert explain_text(_steps(1) + oom + _steps(5) + lost + dead).causes[0].id == "gpu.fell-off-bus"


def test_a_signal_after_ranks_gave_up_is_not_why_they_did() -> None:
    waits = "".join(_WATCHDOG.format(rank=rank) for rank in (0, 1, 3))
    end = "W0829 10:16:44.230000 140213 torch/distributed/elastic/agent/server/api.py:688] Received Signals.SIGTERM death signal, shutting down workers\n"
    assert explain_text(_steps(1) + end).causes[0].id == "launch.killed"
    assert _causes(explain_text(_steps(1) + waits + end)).get("launch.killed", 0.0) <= 0.2


_CHANGE = "n17:40112:40688 [0] transport/net_ib.cc:207 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table change\n"
_LOST = "n17:40112:40688 [0] transport/net_ib.cc:1698 NCCL WARN NET/IB : Got completion from peer 10.66.2.9<40918> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"


def test_a_changed_table_of_gids_harms_through_a_connection_only() -> None:
    assert _causes(explain_text(_CHANGE + _OOM))["ib.gid-index"] < 0.5
    assert _causes(explain_text(_CHANGE + _LOST))["ib.gid-index"] > 0.5


_PORT = "n17:40112:40688 [0] transport/net_ib.cc:207 NCCL WARN NET/IB : mlx5_0:1 Got async {kind}: port {what}\n"


@pytest.mark.parametrize("kind", ["event ", "error event"])  # NCCL has written both
def test_a_port_that_came_back_took_no_connection_along_unless_one_is_lost(kind: str) -> None:
    flap = "".join(
        f"[2026-07-16 18:40:0{second}] " + _PORT.format(kind=kind, what=what)
        for second, what in ((1, "error"), (3, "active"))
    )
    assert _causes(explain_text(flap + _OOM))["ib.port-down"] < 0.6
    assert _causes(explain_text(flap + _LOST))["ib.port-down"] > 0.6


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "[rank3]: [c10d] The client socket has timed out after 10000ms while trying to connect to (svc-1, 29501), retrying.\n",
            "net.master-unreachable",
        ),
        (
            "[2026-01-20 06:15:20 TP0] Failed to CUDA calloc async 608 bytes, falling back to sync allocation\n",
            "gpu.oom",
        ),
    ],
    ids=["tries again", "goes on without"],
)
def test_who_says_that_it_goes_on_and_does_is_not_why_the_job_ended(line: str, cause: str) -> None:
    assert _causes(explain_text(line))[cause] > 0.5
    worked = _COMPLETE + "[2026-01-20 06:15:29 TP0] Capture cuda graph begin.\n"
    assert _causes(explain_text(line + worked)).get(cause, 0.0) < 0.5


def test_a_pod_of_another_job_is_nobodys_cause() -> None:
    said = "maxt-1905-{n}:140220:141107 [0] NCCL INFO misc/socket.cc:64 -> 6\n"
    event = "14m   Warning   Preempted   pod/{pod}   Preempted by pod in namespace serving on node gke-0d04\n"
    listed = "12m   Warning   Unhealthy   pod/maxt-1905-3   Liveness probe failed: timed out\n"
    own, other = (
        said.format(n=0) + said.format(n=1) + event.format(pod=pod) + listed for pod in ("maxt-1905-2", "eval-7c-0")
    )
    assert _causes(explain_text(own))["launch.killed"] > 0.9
    assert _causes(explain_text(other)).get("launch.killed", 0.0) < 0.7


def test_pods_that_speak_under_their_hosts_names_are_no_other_jobs() -> None:
    said = "gke-20fe-1:140220:141107 [0] NCCL INFO misc/socket.cc:64 -> 6\n"
    event = "14m   Warning   Preempted   pod/maxt-1905-2   Preempted by pod in namespace serving on node gke-0d04\n"
    assert _causes(explain_text(said + event))["launch.killed"] > 0.9


_HEAD = (
    "hgx-1:71:71 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.\n"
    "hgx-1:71:91 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB eno1:192.168.77.11<0>\n"
    "hgx-2:71:91 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB eno1:192.168.77.12<0>\n"
    "hgx-1:71:91 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 19000 commId 0x7b - Init COMPLETE\n"
    "hgx-2:71:91 [0] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 0 busId 19000 commId 0x7b - Init COMPLETE\n"
)


@pytest.mark.parametrize(
    ("size", "cause"),
    [(0, "ib.gid-index"), (512, "net.mtu"), (8388608, "ib.retry-exceeded")],
    ids=["none", "small", "large"],
)
def test_what_passed_before_the_first_loss_tells_what_the_path_carries(size: int, cause: str) -> None:
    row = f"{size:12}   {size // 4:10}     float     sum      -1    17.88    0.03    0.03      0    17.61    0.03    0.03      0\n"
    assert explain_text(_HEAD + (row if size else "") + _LOST).causes[0].id == cause


def test_connections_that_nobody_answers_show_that_the_networks_are_apart() -> None:
    log = (
        "la:3310:3310 [0] NCCL INFO Bootstrap: Using tailscale0:100.88.14.3<0>\n"
        "lb:2905:2905 [0] NCCL INFO Bootstrap: Using eno1:172.26.133.91<0>\n"
        "lb:2905:3390 [0] NCCL INFO socketPollConnect: connect to 100.88.14.3<43219> returned {why}, retrying (1/34) after sleep for 100 msec\n"
    )
    assert explain_text(log.format(why="Connection timed out")).causes[0].id == "net.wrong-interface"
    assert "net.wrong-interface" not in _causes(explain_text(log.format(why="Connection refused")))


def test_horovods_prefix_names_the_rank() -> None:
    assert prefix.parse("[4]<stderr>:step 5 loss 2.1").rank == 4


def test_a_ranks_number_in_a_group_is_not_its_rank() -> None:
    told = "[E812 05:04:45.721114830 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout"
    assert prefix.parse(f"3: [rank3]:{told}").rank == prefix.parse(f"[rank3]:{told}").rank == 3
    assert prefix.parse(told).rank == 0
    # behind what nobody knows
    assert prefix.parse(f"node 1: [rank10]:{told}").rank == prefix.parse(f"pod-1 [default2]:[rank10]:{told}").rank == 10


@pytest.mark.parametrize(
    ("label", "host"), [("[n14]", "n14"), ("(n14)", "n14"), ("[worker-1]", "job-worker-1"), ("gpu-b", "gpu-b")]
)
def test_a_label_stands_for_the_host_that_nccl_names_behind_it(label: str, host: str) -> None:
    log = (
        "x1:17:19 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.9<0>\n"
        f"{label} {host}:2101:2130 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>\n"
        f"{label} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert explain_text(log).causes[0].hosts == (host,)
    assert (
        explain_text(log.replace(f"{label} torch", f"rank 3 on {label}: torch")).causes[0].hosts == ()
    )  # of another one
    apart = explain_text(log.replace(f"{label} {host}", f"[INFO] {host}")).causes[0].hosts
    assert apart == ((host,) if label[1:-1] == host else ())  # a name that other lines tell, set apart from the text


def test_skypilots_prefix_names_the_node_and_not_the_rank() -> None:
    line = prefix.parse("(worker1, rank=1, pid=31003, ip=10.20.0.12) [rank11]: RuntimeError: x")
    assert (line.host, line.rank, line.pid, line.body) == ("worker1", 11, "31003", "RuntimeError: x")
    assert prefix.parse("(worker1, rank=1, pid=31003, ip=10.20.0.12) loading").rank is None


@pytest.mark.parametrize(
    "text",
    [
        " [2026-05-22 18:40:04] iteration       27/    2000 | consumed samples: 6912",
        "node 1: [rank11]:[E0522 18:40:04.228635539 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught",
        "[ws-a] [rank6]:[E522 18:40:04.213580366 ProcessGroupNCCL.cpp:629] [Rank 6] Watchdog caught",
        "I20260522 18:40:04 task=4 levanter.distributed: initialized",
        "DLL 2026-05-22 18:40:04.180093 - Training Epoch: 0 Training Iteration: 100",
        "[05/22 18:40:04 d2.utils.env]: Using a generated random seed",
        "LAUNCH INFO 2026-05-22 18:40:04,551 devices: 0,1,2,3",
        "n07: [05/22/2026 18:40:04] epoch 2 | iter 8200",
        "26/05/22 18:40:04 INFO SparkContext: Running Spark version 3.5.1",
        "[NeMo I 2026-05-22 18:40:04.600000 nemo_logging:393] ",
        "0: submitit INFO (2026-05-22 18:40:04,734) - Starting with JobEnvironment",
        "EJ0003: [PID: 48213] 2026-05-22-18:40:04.816.428 Failed to bind the IP port.",
        "2026:05:22-18:40:04: 263:[1] |CCL_WARN| topology recognition shows PCIe connection",
        "[Fri May 22 18:40:04  2026] nvidia 0000:24:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT",
    ],
    ids=lambda text: text[:20].strip(),
)
def test_a_time_is_read_behind_whatever_stands_in_front_of_it(text: str) -> None:
    seconds = prefix.parse("2026-05-22T18:40:04Z x").seconds
    assert prefix.parse(text).seconds == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize(
    "text",
    [
        "Job 7 was submitted at 2026-05-22 18:40:04 by ops",
        "10%|#         | 1000/9407 [1:41:40<14:14:42,  6.14s/it]",
        "iteration: 8400/250000   3% | elapsed time: 11:00:24 | loss: 2.6",
        "the checkpoint of yesterday, 2026-05-22 18:40:04, is broken",
        "[13/45 18:40:04] no date",
    ],
)
def test_a_time_that_a_sentence_speaks_of_is_not_the_lines(text: str) -> None:
    assert prefix.parse(text).seconds is None


def test_a_unit_of_systemd_and_a_driver_are_no_hosts() -> None:
    assert prefix.parse("Mar 14 23:01:24 rigel systemd[1]: apt-daily-upgrade.service: Succeeded.").host == "rigel"
    assert prefix.parse("nvidia-uvm: Loaded the UVM driver, major device number 508.").host == ""
    assert prefix.parse("node-a: Loaded the UVM driver").host == "node-a"
