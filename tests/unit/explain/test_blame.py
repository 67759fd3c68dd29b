"""Who is to blame: the ranks and hosts of the first cause, where the logs tell more than the line that decides."""

from __future__ import annotations

import pytest

from tests.unit.explained import explain_text

TABLE = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-03-02_10:00:01
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : -6 (pid: 812)
"""
WATCHDOG = (
    "[rank{0}]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
)
RAISED = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File \"/app/t.py\", line 3, in f\n[rank{0}]: KeyError: 'x'\n"
INIT = "{host}:{pid}:{pid} [0] NCCL INFO comm 0x1 rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId {bus} commId 0x2 - Init COMPLETE\n"
STATUS_12 = "{host}:{pid}:9 [0] NCCL WARN NET/IB: Got completion from peer {peer}<4791> with status=12 opcode=0 len=0 vendor err 129\n"
FINGERPRINT = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[{1}], TensorDtypes=Float), but Rank {2} is running "
    "collective: CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[{3}], TensorDtypes=Float).\n"
)


def blamed(text: str) -> tuple[str, list[int], list[str]]:
    cause = explain_text(text).causes[0]
    return cause.id, list(cause.ranks), list(cause.hosts)


def started(hosts: int, each: int) -> str:
    """NCCL's initialisation on so many hosts of so many ranks."""
    return "".join(
        INIT.format(
            host=f"n{rank // each}", pid=100 + rank, rank=rank, world=hosts * each, bus=f"{rank % each + 1}a000"
        )
        for rank in range(hosts * each)
    )


def test_torchruns_table_tells_the_hosts_of_lower_local_ranks_too() -> None:
    text = WATCHDOG.format(0) + RAISED.format(9) + TABLE.format(host="gx1", rank=11, local=3)
    assert blamed(text) == ("app.rank-exception", [9], ["gx1"])
    beyond = WATCHDOG.format(0) + RAISED.format(7) + TABLE.format(host="gx1", rank=11, local=3)
    assert blamed(beyond)[2] == []


@pytest.mark.parametrize(
    "line",
    [
        "rank 3 of 4 on gx7, local rank 1",
        "INFO rank=3 local_rank=1 host=gx7 device=NVIDIA A100",
        "Horovod initialized. Hostname gx7, rank 3 / size 4",
        "(TrainController pid=5126) - (node_id=9c1, ip=gx7, pid=5130) world_rank=3, local_rank=1",
        "srun: error: gx7: task 3: Exited with exit code 1",
        "3: [pid 77] SLURM_PROCID=3 SLURM_LOCALID=1 SLURMD_NODENAME=gx7",
        "global_rank_mapping=defaultdict(<class 'list'>, {'gx6': [0, 1], 'gx7': [2, 3]})",
        " Data for node: gx6\tNum slots: 2\n Process OMPI jobid: [3,1] App: 0 Process rank: 1 Bound: UNBOUND\n"
        " Data for node: gx7\tNum slots: 2\n Process OMPI jobid: [3,1] App: 0 Process rank: 3 Bound: UNBOUND",
    ],
)
def test_programs_and_launchers_tell_where_a_rank_runs(line: str) -> None:
    assert blamed(f"{WATCHDOG.format(0)}{RAISED.format(3)}{line}\n") == ("app.rank-exception", [3], ["gx7"])


def test_a_rank_between_others_of_its_host_is_there_too() -> None:
    lines = started(2, 4).splitlines(keepends=True)
    text = "".join(line for line in lines if " rank 6 " not in line) + WATCHDOG.format(0) + RAISED.format(6)
    assert blamed(text) == ("app.rank-exception", [6], ["n1"])
    scattered = text.replace("n1:107", "n0:107").replace("n0:103", "n1:103")  # every other rank is elsewhere
    assert blamed(scattered)[2] == []


def test_of_a_host_whose_neighbour_is_silent_no_rank_is_guessed() -> None:
    text = "".join(line for line in started(3, 2).splitlines(keepends=True) if not line.startswith("n1:"))
    assert blamed(text + WATCHDOG.format(0) + RAISED.format(3))[2] == []  # two hosts of three ranks, or three of two


def test_a_guilty_gpu_has_the_rank_that_nccl_names_by_its_bus_id() -> None:
    xid = "n1 kernel: NVRM: Xid (PCI:0000:3a:00): 79, pid=77, GPU has fallen off the bus.\n"
    assert blamed(started(2, 4) + xid) == ("gpu.fell-off-bus", [6], ["n1"])
    assert blamed(started(2, 4) + xid.replace("pid=77", "pid=105")) == ("gpu.fell-off-bus", [5], ["n1"])
    assert blamed(started(2, 4) + xid.replace("3a:00", "7b:00"))[1] == []


def test_what_ails_a_host_ails_its_ranks_and_no_others() -> None:
    fabric = "n1 kernel: NVRM: API mismatch: the client has the version 580.1, but this kernel module has the version 570.1.\n"
    assert blamed(started(2, 2) + fabric) == ("gpu.driver", [2, 3], ["n1"])
    assert blamed(started(1, 2) + fabric.replace("n1", "n0"))[1] == []
    silent = "".join(line for line in started(3, 2).splitlines(keepends=True) if not line.startswith("n1:"))
    assert blamed(silent + fabric)[1] == [2, 3]


def test_whom_all_others_miss_is_to_blame_and_else_both_ends() -> None:
    using = "".join(f"n{n}:1{n}:1{n} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{n}<0>\n" for n in range(3))
    one = STATUS_12.format(host="n0", pid=10, peer="10.0.0.2")
    assert blamed(using + one) == ("ib.retry-exceeded", [], ["n0", "n2"])
    two = STATUS_12.format(host="n1", pid=11, peer="10.0.0.2")
    assert blamed(using + one + two) == ("ib.retry-exceeded", [], ["n2"])
    assert blamed(using + one + two + STATUS_12.format(host="n2", pid=12, peer="10.0.0.0"))[2] == [
        "n2"
    ]  # at one end of each


RESET = "n{0}:1{0}:9 [0] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.0.0.{1}<53412> failed : Connection reset by peer\n"


def test_of_a_lost_peer_those_who_miss_it_are_no_culprits() -> None:
    using = "".join(f"n{n}:1{n}:1{n} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{n}<0>\n" for n in range(3))
    assert blamed(using + RESET.format(0, 2)) == ("net.peer-lost", [], ["n2"])
    assert blamed(RESET.format(0, 2)) == ("net.peer-lost", [], ["10.0.0.2"])
    assert blamed(using + RESET.format(0, 2) + RESET.format(2, 0))[2] == ["n0", "n2"]


def test_the_rank_whose_call_differs_from_all_others_is_named() -> None:
    text = "".join(FINGERPRINT.format(rank, 150, 2, 149) for rank in (0, 1, 3)) + FINGERPRINT.format(2, 149, 0, 150)
    cause = explain_text(text).causes[0]
    assert (cause.id, list(cause.ranks)) == ("app.collective-mismatch", [2])
    assert "ALLREDUCE of [149]" in cause.title
    pair = FINGERPRINT.format(0, 150, 1, 149) + FINGERPRINT.format(
        1, 149, 0, 150
    )  # which of two is odd nobody can tell
    assert blamed(pair)[1] == [0, 1]


def test_ranks_that_never_joined_any_collective_are_named_by_the_desync_report() -> None:
    report = (
        "[rank0]:   - To our best knowledge, ranks [2, 3] are the lagging ranks that caused this timeout. "
        "They never joined any collectives\n"
    )
    text = "".join(map(WATCHDOG.format, (0, 1, 4))) + report
    assert explain_text(text).causes[0].ranks == (2, 3)


@pytest.mark.parametrize(
    ("typed", "host"),
    [
        ("[root@h100-n22 ~]# dmesg | grep NVRM", "h100-n22"),
        ("ops@rack7:~$ sudo dmesg -T | tail", "rack7"),
        ("$ ssh hx03 sudo dmesg -T", "hx03"),
        ("r12c04$ journalctl -k", "r12c04"),
        ("hop-32 $ sudo dmesg", "hop-32"),
        ("$ kubectl exec -it train-3 -- dmesg", "train-3"),
        ("$ dmesg", ""),
        ("ops@rack7:~$ python train.py", "rack7"),
        ("ops@rack7:~$ srun python train.py", ""),
    ],
)
def test_what_a_tool_prints_is_of_the_host_that_somebody_looked_at(typed: str, host: str) -> None:
    xid = "[88123.1] NVRM: Xid (PCI:0000:cb:00): 48, pid='<unknown>', DBE (double bit error)\n"
    assert blamed(f"{typed}\n{xid}") == ("gpu.ecc", [], [host] if host else [])


def test_a_line_is_of_the_host_whose_prompt_started_the_ranks_unless_other_hosts_speak_there() -> None:
    typed = "ml{0}$ torchrun --nnodes 2 --node_rank {0} --nproc_per_node 2 train.py\n"
    raised = "Traceback (most recent call last):\n  File \"/app/t.py\", line 3, in f\nKeyError: 'x'\n"
    text = typed.format(0) + WATCHDOG.format(0) + typed.format(1) + raised
    assert blamed(text)[2] == ["ml1"]
    other = "ml0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.6<0>\n"
    assert blamed(text + other)[2] == []


MARKED_DEAD = "(raylet) The node with node id: 8f2 and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead because the detector"
PREEMPTED = "submitit WARNING (2026-06-03) - Caught signal SIGUSR2 on learn0296: this job is preempted."
NOT_READY = "9m12s   Normal    NodeNotReady   node/pool-7f1c   Node pool-7f1c status is now: NodeNotReady"


@pytest.mark.parametrize(
    ("line", "who"),
    [
        (MARKED_DEAD, ("sys.node-failure", [], ["10.0.0.3"])),
        (PREEMPTED, ("launch.killed", [], ["learn0296"])),
        (NOT_READY, ("sys.node-failure", [], ["pool-7f1c"])),
        ("E0812 task:3 heartbeat timeout", ("net.peer-lost", [3], [])),
    ],
)
def test_lines_that_tell_of_others_blame_those(line: str, who: tuple[str, list[int], list[str]]) -> None:
    assert blamed(f"{line}\n") == who


def test_an_exception_without_a_rank_is_of_those_that_a_signal_did_not_end() -> None:
    rows = "".join(
        f"  host      : n0\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {800 + rank})\n"
        for rank, code in ((0, -6), (1, -6), (3, 1))
    )
    raised = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in f\nRuntimeError: Tensors must be contiguous\n'
    assert blamed(WATCHDOG.format(0) + WATCHDOG.format(1) + raised + rows)[1:] == ([3], ["n0"])


def test_what_stands_below_a_files_name_is_of_that_file() -> None:
    steps = "".join(f"2024-06-14 16:3{minute}:00 step {minute}00 loss 3.{minute}\n" for minute in range(6))
    raised = "Exception in thread Thread-3:\nTraceback (most recent call last):\n  File \"/srv/d.py\", line 8, in f\nKeyError: 'x'\n"
    log = "".join(f"==> logs/rank{rank}.log <==\n{steps}{raised if rank == 5 else ''}\n" for rank in (4, 5, 6))
    assert blamed(log) == ("app.rank-exception", [5], [])
    typed = (
        "[root@hpc-g22 ~]# dmesg\n[88123.1] NVRM: Xid (PCI:0000:cb:00): 48, pid='<unknown>', DBE (double bit error)\n"
    )
    assert blamed(f"==> logs/node3_hpc-g25.log <==\nstep 1 loss 3.1\n{typed}")[2] == ["hpc-g22"]
    assert blamed(f"==> kubectl logs pod-4 -c main <==\n{RAISED.replace('[rank{0}]: ', '')}")[2] == ["pod-4"]
    registered = "E0917 16:19:13.189584   2201 rdma_context.cpp:211] Failed to register memory 0x7fa4cc000000: Bad address [14]\n"
    assert blamed(f"==> prefill-0 (10.10.11.1) <==\n{registered}")[2] == ["prefill-0"]


def test_whose_release_is_the_rare_one_is_to_blame() -> None:
    told = "[1,{0}]<stdout>:NCCL version {1}+cuda12.4\n"
    truncated = "[1,8]<stdout>:lab3:31:32 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 2560 bytes instead of 3072\n"
    log = told.format(0, "2.21.5") + told.format(4, "2.18.3") + told.format(8, "2.21.5") + truncated
    assert blamed(log)[:2] == ("sw.nccl-version-mismatch", [4])
    assert blamed(told.format(1, "2.18.3") + log)[1] != [4]  # two and two


def test_what_is_wrong_for_all_hosts_alike_blames_none() -> None:
    warned = "n{0}:1{0}:9 [0] net.cc:371 NCCL WARN Error: network AWS Libfabric not found.\n"
    named = "n{0}:1{0}:9 [0] NCCL INFO NCCL_NET set by environment to AWS Libfabric.\n"
    both = "".join(named.format(n) + warned.format(n) for n in (0, 1))
    assert blamed(both)[1:] == ([], [])
    ranks = "".join(f"[rank{rank}]: ValueError: Default process group has not been initialized\n" for rank in (0, 1))
    assert blamed(f"{started(1, 2)}{ranks}")[1:] == ([], [])
    assert blamed(f"{started(1, 3)}{ranks}")[1] == [0, 1]
    assert blamed(both.replace("n1:11:9 [0] net.cc", "n0:10:9 [0] net.cc"))[2] == ["n0"]


def test_a_host_of_several_names_is_one() -> None:
    table = (
        WATCHDOG.format(0)
        + RAISED.format(3)
        + TABLE.format(host="gx1.lan", rank=3, local=1)
        + TABLE.format(host="gx0.lan", rank=1, local=1)
    )
    xid = "Mar 2 10:00:00 gx1 kernel: NVRM: API mismatch: the client has the version 580.1, but this kernel module has the version 570.1.\n"
    assert blamed(table + xid) == ("gpu.driver", [2, 3], ["gx1"])
    using = "".join(
        f"(W pid={n}, ip=10.0.0.{n}) n{n}:{n}:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{n}<0>\n" for n in (1, 2)
    )
    dead = "(raylet) The node with node id: 8f2 and address: 10.0.0.2 and node name: 10.0.0.2 has been marked dead because the detector\n"
    assert blamed(using + dead)[2] == ["n2"]


def test_who_was_killed_is_known_by_mpiruns_last_words() -> None:
    killed = "[Sat Nov  2 21:00:11 2024] Out of memory: Killed process 40518 (python) total-vm:1kB, anon-rss:1kB\n"
    told = "mpirun noticed that process rank 10 with PID 40518 on node gn13 exited on signal 9 (Killed).\n"
    assert blamed(killed + told)[:2] == ("sys.host-oom", [10])


def test_a_command_typed_nowhere_in_particular_is_not_of_the_host_before() -> None:
    xid = "[88123.1] NVRM: Xid (PCI:0000:cb:00): 48, pid='<unknown>', DBE (double bit error)\n"
    assert blamed(f"$ ssh hx03 nvidia-smi\nok\n$ dmesg\n{xid}")[2] == []


def test_an_address_or_a_name_that_two_hosts_have_is_neither() -> None:
    using = "".join(f"n{n}:1{n}:1{n} [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>\n" for n in range(2))
    dead = f"{MARKED_DEAD}\n".replace("10.0.0.3", "172.17.0.2")
    assert blamed(using + dead)[2] == ["172.17.0.2"]
    xid = "Mar 2 10:00:00 gx1.{} kernel: NVRM: Xid (PCI:0000:cb:00): 48, pid=7, DBE (double bit error)\n"
    assert blamed(xid.format("east") + xid.format("west"))[2] == ["gx1.east", "gx1.west"]


def test_an_exit_of_pythons_does_not_name_who_was_late() -> None:
    rows = "".join(
        f"  host      : n0\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {800 + rank})\n"
        for rank, code in ((0, 2), (3, 1))
    )
    raised = 'Traceback (most recent call last):\n  File "/app/t.py", line 3, in f\nRuntimeError: Tensors must be contiguous\n'
    assert blamed(WATCHDOG.format(0) + WATCHDOG.format(1) + raised + rows)[1] != [3]  # another one ended itself, too


@pytest.mark.parametrize(
    "line",
    [
        "gx7: + torchrun --nnodes=2 --node_rank=1 --nproc_per_node=2 train.py",
        "ops@gx7:~$ torchrun --nproc-per-node 2 --nnodes 2 --node-rank 1 train.py",
        "gx7$ torchrun --nproc-per-node 2 --nnodes 2 --node-rank 1 train.py",
        "gx7: accelerate launch --num_processes 4 --num_machines 2 --machine_rank 1 train.py",
        "gx7: RANK=3 WORLD_SIZE=4 MASTER_ADDR=gx6",
        "gx7: | distributed init (rank 3): env://",
        "gx7: Process rank: 3, device: cuda:1, n_gpu: 1, distributed training: True",
    ],
)
def test_what_a_node_says_of_itself_when_it_starts_tells_its_ranks(line: str) -> None:
    other = "gx6:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.6<0>\n"
    assert blamed(f"{WATCHDOG.format(0)}{RAISED.format(3)}{other}{line}\n") == ("app.rank-exception", [3], ["gx7"])


def test_a_pods_number_of_ranks_is_no_rank() -> None:
    nodes = "gx6: RANK=0 WORLD_SIZE=2 MASTER_ADDR=gx6\ngx7: RANK=1 WORLD_SIZE=2 MASTER_ADDR=gx6\n"  # of PyTorchJob, which counts pods
    assert blamed(WATCHDOG.format(0) + RAISED.format(1) + WATCHDOG.format(3) + nodes)[2] == []


def test_hosts_that_are_counted_up_tell_the_ranks_of_the_one_between() -> None:
    host_of = {0: "w-0", 7: "w-0", 16: "w-2", 24: "w-3", 31: "w-3"}
    lines = "".join(f"INFO rank={rank} local_rank=0 host={host}\n" for rank, host in host_of.items())
    driver = "{} kernel: NVRM: API mismatch: the client has the version 580.1, but this kernel module has the version 570.1.\n"
    world = "world_size=32\nlaunched with --nnodes=4\n"
    assert blamed(world + lines + driver.format("w-1"))[1:] == (list(range(8, 16)), ["w-1"])
    moved = lines.replace("w-2", "w-9")
    assert blamed(world + moved + driver.format("w-1"))[1:] == (
        [8, 9, 10, 11, 12, 13, 14, 15],
        ["w-1"],
    )  # the block left
    assert blamed(world + moved.replace("w-3", "w-1") + driver.format("w-2"))[1:] == (
        [8, 9, 10, 11, 12, 13, 14, 15],
        ["w-2"],
    )


def test_a_node_that_failed_is_named_and_not_its_pod() -> None:
    listed = (
        "NAME     READY   STATUS        RESTARTS      AGE   IP            NODE\n"
        "w-0      0/1     Error         0             31h   10.42.11.4    bm-03\n"
        "w-1      1/1     Terminating   1 (3h ago)    31h   10.42.18.7    bm-10\n"
    )
    event = "9m12s       Warning   NodeNotReady            pod/w-1    Node is not ready\n"
    ranks = "".join(f"INFO rank={rank} local_rank={rank % 2} host=w-{rank // 2}\n" for rank in range(4))
    assert blamed(ranks + listed + event) == ("sys.node-failure", [2, 3], ["bm-10"])
    assert blamed(ranks + event)[2] == ["w-1"]
    assigned = "Normal  Scheduled  pod/w-1  Successfully assigned ml/w-1 to bm-10\n"
    assert blamed(ranks + assigned + event)[2] == ["bm-10"]
    assert blamed(ranks + assigned + assigned.replace("bm-10", "bm-11") + event)[2] == ["w-1"]


def test_a_small_job_is_on_the_one_host_that_names_itself_unless_another_is_heard_of() -> None:
    table = TABLE.format(host="gx1", rank=1, local=1)
    text = WATCHDOG.format(0) + WATCHDOG.format(4) + RAISED.format(5) + table
    assert blamed(text) == ("app.rank-exception", [5], ["gx1"])
    assert blamed("world_size=16\n" + text)[2] == []
    lost = "gx1:9:9 [0] misc/socket.cc:57 NCCL WARN Connection closed by remote peer gx2<33190>\n"
    assert blamed(text + lost)[2] == []


def test_what_the_kernel_says_of_an_interface_names_no_host() -> None:
    text = "[Tue Jun  3 06:49:55 2025] IPv6: ADDRCONF(NETDEV_CHANGE): veth4a27ff3: link becomes ready\n[   12.000001] eth0: renamed\n"
    xid = "[Tue Jun  3 06:50:55 2025] NVRM: Xid (PCI:0000:cb:00): 48, pid='<unknown>', DBE (double bit error)\n"
    assert blamed(text + xid) == ("gpu.ecc", [], [])
    assert blamed(f"avg-cpu:  %user   %nice\n{text}{xid}")[2] == []


NV_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
OF_A_GROUP = "---------------\n{0}\n---------------\n" + NV_MISMATCH


@pytest.mark.parametrize(
    ("heading", "host"),
    [
        (OF_A_GROUP.format("nv05"), "nv05"),
        (OF_A_GROUP.format("nv[05-06] (2)"), ""),
        (OF_A_GROUP.format("nv05").replace("-" * 15, "-" * 60), "nv02"),  # a rule of some other table
        (f"nv05 | CHANGED | rc=0 >>\n{NV_MISMATCH}nv06 | CHANGED | rc=0 >>\nok\n", "nv05"),
        (f"10.0.0.5 | CHANGED | rc=0 >>\n{NV_MISMATCH}nv06 | CHANGED | rc=0 >>\nok\n", "10.0.0.5"),
        (f"[nv05] $ nvidia-smi\n{NV_MISMATCH}", "nv05"),
        (f"== nvidia-smi of nv05 ==\n{NV_MISMATCH}", "nv05"),
        (f"$ kubectl describe pod nv05-x\nName:         nv05-x\nNamespace:    ml\n{NV_MISMATCH}", "nv05-x"),
        (f"Name:         nv05-x\nNode:         bm-03/10.0.0.3\n{NV_MISMATCH}", "bm-03"),
    ],
)
def test_what_stands_below_a_heading_is_of_its_host(heading: str, host: str) -> None:
    assert blamed(f"nv01 | CHANGED | rc=0 >>\nok\nnv02 | CHANGED | rc=0 >>\nok\n{heading}") == (
        "gpu.driver",
        [],
        [host] if host else [],
    )


def test_that_a_look_at_another_host_ended_well_excuses_no_fault() -> None:
    cause = explain_text(f"nv05 | CHANGED | rc=0 >>\n{NV_MISMATCH}nv06 | CHANGED | rc=0 >>\nok\n").causes[0]
    assert (cause.id, cause.hosts) == ("gpu.driver", ("nv05",))
    assert cause.confidence > 0.9


def test_the_host_of_a_connection_that_is_at_an_end_of_each_is_to_blame() -> None:
    using = "".join(f"n{n}:1{n}:1{n} [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{n}<0>\n" for n in range(4))
    from_it = STATUS_12.format(host="n3", pid=13, peer="10.0.0.0") + STATUS_12.format(
        host="n3", pid=13, peer="10.0.0.1"
    )
    assert blamed(using + from_it)[2] != ["n3"]  # whose log alone is here
    assert blamed(using + from_it + STATUS_12.format(host="n2", pid=12, peer="10.0.0.3"))[2] == ["n3"]


def test_the_ranks_of_the_rare_version_are_to_blame() -> None:
    line = "n{2}:9:9 [0] init.cc:889 NCCL WARN Mismatched NCCL version detected : rank 2 version 22703 rank {0} version {1}\n"
    log = "".join(line.format(rank, 22605, rank) for rank in (0, 1, 4, 5)) + line.format(3, 22703, 3)
    assert blamed(log)[:2] == ("sw.nccl-version-mismatch", [2, 3])
    assert blamed(line.format(3, 22605, 3))[1] == []  # one against one


def test_who_did_not_come_is_to_blame_where_as_many_speak_as_came() -> None:
    came = "[rank{0}]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 2/4 clients joined.\n"
    assert blamed(came.format(0) + came.format(1)) == ("launch.world-size", [2, 3], [])
    assert blamed(came.format(0))[1] != [1, 2, 3]


def test_that_the_jobs_time_was_over_blames_nobody() -> None:
    ended = "0: slurmstepd: error: *** STEP 1.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    assert blamed(ended) == ("launch.killed", [], [])


def test_srun_tells_the_host_of_each_task() -> None:
    raised = RAISED.replace("[rank{0}]: ", "3: ")
    ranks = "0: step 1 loss 2.0\n" + raised
    assert blamed(ranks + "srun: error: gx7: tasks 2-3: Exited with exit code 1\n") == (
        "app.rank-exception",
        [3],
        ["gx7"],
    )
    nodes = "".join(f"{node}: [rank{2 * node + local}]: step 1 loss 2.0\n" for node in (0, 1) for local in (0, 1))
    behind = RAISED.format(3).replace("[rank3]", "1: [rank3]")
    assert blamed(nodes + WATCHDOG.format(0) + behind + "srun: error: gx7: task 1: Exited with exit code 1\n")[1:] == (
        [3],
        ["gx7"],
    )


@pytest.mark.parametrize(
    ("log", "who"),
    [
        ("(raylet, ip=10.8.0.13) node_manager.cc:3219: 1 Workers killed due to memory pressure (OOM)\n", ([], ["10.8.0.13"])),
        (
            "node_manager.cc:3219: 1 Workers killed due to memory pressure (OOM) at node (ID: 44a, IP: 10.8.0.13) over\n",
            ([], ["10.8.0.13"]),
        ),
        ("[prterun-gx1-71744@1,5]<stdout>: CUDA error: an illegal memory access was encountered\n", ([5], [])),
        ("RuntimeError: Rank 43, node r2-06, device 3, iteration 4: Unexpected result nan (NaN in grad norm)\n", ([43], ["r2-06"])),
    ],
)  # fmt: skip
def test_ray_open_mpi_and_megatron_tell_who_it_was(log: str, who: tuple[list[int], list[str]]) -> None:
    assert blamed(log)[1:] == who
