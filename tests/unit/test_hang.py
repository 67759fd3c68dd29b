"""``hang``: who holds a job, from what was read of its processes."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from nccl_doctor import cli
from nccl_doctor.facts import bundle as bundles
from nccl_doctor.facts.job import Process
from nccl_doctor.facts.model import NO_WAY_OUT, Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome
from nccl_doctor.findings.model import Finding
from nccl_doctor.findings.playbooks import for_finding
from nccl_doctor.rules import rank_variables
from nccl_doctor.rules.engine import JOB, all_rules
from nccl_doctor.rules.hang import Hang, examine
from tests.hardware_kit import machines

cli._load_commands()

BARRIER = [
    ("barrier", "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 5356),
    ("train", "/job/train.py", 37),
]
REDUCE = [
    ("all_reduce", "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3),
    ("train", "/job/train.py", 20),
]
OWN = [("evaluate", "/job/train.py", 31), ("<module>", "/job/train.py", 40)]
STARTS = [("init_process_group", BARRIER[0][1], 1892), ("<module>", "/job/train.py", 16)]
LOADER = [
    ("_try_get_data", "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1),
    ("train", "/job/train.py", 9),
]
WORKER = [
    ("__getitem__", "/job/train.py", 14),
    ("fetch", "/opt/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 52),
    ("_worker_loop", "/opt/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 3),
]
IDLE_WORKER = [
    ("poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257),
    ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
    WORKER[2],
]

DECLARED = {id for rule in all_rules() if rule.stage == JOB for id in rule.ids}
Stack = list[tuple[Any, ...]]  # function, file, line, and what else of the frame was read


def reading(state: str = "S", cpu_s: float = 1.0, waits_in: str = "futex_do_wait", **more: Any) -> dict[str, Any]:
    main = {"id": 1, "state": state, "waits_in": waits_in, **more.pop("main", {})}
    return {"state": state, "cpu_s": cpu_s, "main": main, **more}


def frames_of(stack: Stack) -> list[dict[str, Any]]:
    return [
        {"function": name, "file": file, "line": line, **(more[0] if more else {})} for name, file, line, *more in stack
    ]


def stacks(stack: Stack | None) -> dict[str, Any] | None:
    if stack is None:
        return None
    return {"outcome": "ok", "threads": [{"id": 1, "name": "MainThread", "frames": frames_of(stack)}]}


def process(rank: int, stack: Stack | None = None, before: Stack | None = None, **more: Any) -> dict[str, Any]:
    """A rank of four, two on each host, that waits in the barrier unless told otherwise."""
    stack = BARRIER if stack is None else stack
    environment = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank % 2)}
    return {
        "pid": 100 + rank,
        "parent": 50,
        "role": "rank",
        "comm": "python",
        "script": "train.py",
        "start_ticks": rank,
        "age_s": 600.0,
        "rank_pid": 100 + rank,
        "environment": {"MASTER_ADDR": "gpu01", "MASTER_PORT": "29500", **environment},
        "readings": [reading(), reading()],
        "stacks": [stacks(before if before is not None else stack), stacks(stack)],
        "connections": [_connection(rank, peer) for peer in range(4) if peer != rank],
        **more,
    }


def _connection(rank: int, peer: int, **more: Any) -> dict[str, Any]:
    def end(one: int, other: int) -> str:
        return f"10.0.0.{1 + one // 2}:{40000 + 10 * one + other}"

    quiet = {"moved_bytes": 0, "sent_ago_ms": 90_000, "received_ago_ms": 90_000, "received_bytes": 5, "acked_bytes": 5}
    return {"local": end(rank, peer), "peer": end(peer, rank), "state": "ESTABLISHED", **quiet, **more}


def bundle(
    *processes: dict[str, Any], job: str = "", kernel: tuple[str, ...] = (), gpu: Any = None, **facts: Any
) -> Bundle:
    """The hosts gpu01 (ranks 0 and 1) and gpu02 (ranks 2 and 3) with these processes."""
    hosts = []
    for number, name in enumerate(("gpu01", "gpu02")):
        own = [item for item in processes if int(item["environment"].get("RANK", 0)) // 2 == number]
        data = {"interval_s": 3.0, "processes": own, **facts}
        reach = Reach(ReachOutcome.OK)
        lines = [{"text": line, "at_s": 9_500.0} for line in kernel]
        log = {"source": "/dev/kmsg", "uptime_s": 10_000.0, "lines": lines if name == "gpu02" else []}
        told = {
            "job": ProbeResult(Outcome.OK, json.loads(json.dumps(data))),
            "kernel_log": ProbeResult(Outcome.OK, log),
        }
        if gpu and name == "gpu02":
            told["gpu"] = ProbeResult(Outcome.OK, gpu)
        hosts.append(HostFacts(name, reach, told))
    return Bundle(1, "test", "2026-11-21T00:00:00+00:00", Plan(stages=(JOB,), job=job), tuple(hosts))


def four(**others: dict[str, Any]) -> list[dict[str, Any]]:
    """Four ranks in the barrier, with these (``r2=...``) in the place of some."""
    return [others.get(f"r{rank}") or process(rank) for rank in range(4)]


def first(answer: Hang) -> Finding:
    assert answer.verdict == "held" and int(answer.exit_code) == 11, answer.sentence
    assert {item.id for item in answer.report.findings if item.stage == JOB} <= DECLARED
    return answer.report.causes[0]


def blamed(found: Finding) -> list[tuple[str, int | None]]:
    return [(place.host, place.rank) for place in found.places]


def test_a_stopped_rank_holds_the_others() -> None:
    stopped = process(2, readings=[reading("T"), reading("T", waits_in="do_signal_stop")])
    answer = examine(bundle(*four(r2=stopped)))
    found = first(answer)
    assert found.id == "hang.stopped" and blamed(found) == [("gpu02", 2)]
    assert "rank 2 (pid 102)" in found.title and "3 other ranks wait in barrier" in found.title
    assert found.fixes[0].command == "kill -CONT 102" and found.fixes[0].host == "gpu02"
    folded = [item for item in answer.report.findings if item.id == "hang.waiting"]
    assert folded and all(item.folded_under == "hang.stopped" for item in folded)


@pytest.mark.parametrize(
    "damage",
    [{"readings": []}, {"readings": [reading()]}, {"stacks": []}, {"readings": [reading(resident_bytes=-1)] * 2}],
    ids=["no-look", "one-look", "no-stacks", "less-than-no-memory"],
)
def test_a_process_that_cannot_be_what_it_is_told_as_is_unknown(damage: dict[str, Any]) -> None:
    answer = examine(bundle(*four(r3=process(3, **damage))))
    assert "internal-error" not in {item.id for item in answer.report.findings}
    assert answer.exit_code != 0 and "gpu02" in {host for item in answer.report.unknown for host in item.hosts}


def test_a_debugger_that_holds_a_rank_is_named() -> None:
    found = first(examine(bundle(*four(r1=process(1, readings=[reading("t"), reading("t", tracer=77)])))))
    assert found.id == "hang.stopped.traced" and "pid 77" in found.title and blamed(found) == [("gpu01", 1)]


def test_a_rank_that_is_elsewhere_is_named_with_its_line() -> None:
    away = process(3, OWN, readings=[reading(waits_in="hrtimer_nanosleep")] * 2)
    found = first(examine(bundle(*four(r3=away))))
    assert found.id == "hang.elsewhere" and blamed(found) == [("gpu02", 3)]
    assert "sleeps in evaluate (train.py:31)" in found.title
    quoted = " ".join(item.text for item in found.evidence)
    assert "no byte moved on 12 connections between ranks for 90 s" in quoted and "barrier (torch/" in quoted


STDLIB = "/usr/lib/python3.11/"
POPEN = [("Popen._try_wait", STDLIB + "subprocess.py", 2004), *OWN]
BATON = [("wait", "/opt/env/lib/python3.11/site-packages/torch/utils/file_baton.py", 49), *OWN]
STORE = {"call": "poll", "file": "TCP 10.0.0.2:5 -> 10.0.0.1:29500"}
QUEUE = [("Condition.wait", STDLIB + "threading.py", 327), ("Queue.get", STDLIB + "queue.py", 171), *OWN]
JOIN = [("Thread.join", STDLIB + "threading.py", 1119), *OWN]
POOL = [
    ("Event.wait", STDLIB + "threading.py", 629),
    ("ApplyResult.wait", STDLIB + "multiprocessing/pool.py", 765),
    *OWN,
]
IMPORT = [("_ModuleLock.acquire", "<frozen importlib._bootstrap>", 120), *OWN]
LOOP = [("EpollSelector.select", STDLIB + "selectors.py", 468), ("run", STDLIB + "asyncio/base_events.py", 607), *OWN]
COMPILE = [("compile_fx", "/opt/env/lib/python3.11/site-packages/torch/_inductor/compile_fx.py", 9), *OWN]


@pytest.mark.parametrize(
    ("stack", "main", "words", "proof"),
    [
        (OWN, {"waits_in": "futex_do_wait"}, "waits for a lock or another thread in evaluate (train.py:31)", "thread saver: save"),
        (POPEN, {"waits_in": "do_wait"}, "waits for its child process in evaluate (train.py:31)", "in wait_for_partner"),
        ([("_shutdown", STDLIB + "threading.py", 1590)], {}, "has come to its program's end", "thread saver: save"),
        (OWN, {"call": "recvfrom", "file": "TCP 10.0.0.1:4 -> 10.9.9.9:443"}, "waits for an answer from 10.9.9.9:443 in", "443"),
        (OWN, STORE, "waits for the job's store (10.0.0.1:29500), perhaps for a key that nobody sets, in evaluate", "29500"),
        (OWN, {"call": "poll", "file": "pipe:[7]"}, "waits for a pipe in evaluate", "pipe:[7]"),
        (OWN, {"call": "poll", "file": "socket:[7]"}, "waits for another process in evaluate", "socket:[7]"),
        (QUEUE, {}, "waits for another thread to fill a queue in evaluate", "thread saver: save"),
        (JOIN, {}, "is in save (ckpt.py:7)", "thread MainThread: evaluate (train.py:31)"),
        (IMPORT, {}, "waits for another thread to import a module in evaluate", "thread saver: save"),
        (POOL, {}, "waits for a child process of its pool in evaluate", "in wait_for_partner"),
        (OWN, {"call": "read", "file": "/dev/pts/3"}, "waits for input from /dev/pts/3 in evaluate", "/dev/pts/3"),
        ([("interaction", STDLIB + "pdb.py", 9), *OWN], {}, "stands in a debugger (pdb) in evaluate", "pdb.py"),
        (BATON, {"waits_in": "hrtimer_nanosleep"}, "waits for the lock file of another process that builds", "file_baton"),
        (COMPILE, {"waits_in": "x"}, "compiles in evaluate", "torch/_inductor/compile_fx.py:9"),
    ],
    ids=["lock", "child", "end", "answer", "store", "pipe", "socket", "queue",
         "join", "import", "pool", "input", "pdb", "build", "compile"],
)  # fmt: skip
def test_what_a_rank_waits_for_is_told(stack: Stack, main: dict[str, Any], words: str, proof: str) -> None:
    away = process(1, stack, readings=[reading(main=main)] * 2)
    saver = {"function": "save", "file": "/job/ckpt.py", "line": 7}
    away["stacks"][-1]["threads"].append({"id": 2, "name": "saver", "frames": [saver]})
    shell = {"pid": 900, "start_ticks": 900, "parent": 101, "role": "child", "rank_pid": 101, "connections": []}
    child = {**process(1), **shell, "stacks": [None, None], "readings": [reading(waits_in="wait_for_partner")] * 2}
    found = first(examine(bundle(*four(r1=away), child)))
    assert found.id == "hang.elsewhere" and f"rank 1 (pid 101) {words}" in found.title
    assert proof in " ".join(item.text for item in found.evidence)


ACCEPT = [("socket.accept", STDLIB + "socket.py", 295), *OWN]
REQUESTS = [("BaseServer.serve_forever", STDLIB + "socketserver.py", 232), *OWN]


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        (LOOP, "waits in its event loop"),
        (ACCEPT, "waits for somebody to connect"),
        (REQUESTS, "waits for requests"),
    ],
    ids=["loop", "accept", "requests"],
)
def test_a_rank_that_may_serve_requests_is_suspected_and_not_accused(stack: Stack, words: str) -> None:
    """An idle inference server: the others wait for what rank 0 will be asked."""
    answer = examine(bundle(*four(r0=process(0, stack))))
    assert answer.verdict == "stands" and f"perhaps rank 0 (pid 100) {words} in evaluate" in answer.sentence


def test_who_sleeps_beside_a_thread_that_computes_a_little_does_not_compute() -> None:
    away = process(1, OWN, readings=[reading(), reading(cpu_s=1.6)])  # a fifth of a CPU
    assert "waits for a lock or another thread in evaluate" in first(examine(bundle(*four(r1=away)))).title
    awake = [reading(main={"state": "R"}), reading(cpu_s=1.6)]
    assert "computes in evaluate" in first(examine(bundle(*four(r1=process(1, OWN, readings=awake))))).title


def test_a_child_that_computes_is_told() -> None:
    shell = {"pid": 900, "start_ticks": 900, "parent": 100, "role": "child", "rank_pid": 100, "connections": []}
    busy = [reading(cpu_s=1.0), reading(cpu_s=3.0)]
    child = {**process(0), **shell, "stacks": [None, None], "readings": busy}
    away = process(0, POPEN, readings=[reading(waits_in="do_wait")] * 2)
    assert (
        "waits for its child process, which computes, in evaluate"
        in first(examine(bundle(*four(r0=away), child))).title
    )


def silent_for(milliseconds: int, *processes: dict[str, Any]) -> list[dict[str, Any]]:
    """The same, with connections that carried something so long ago."""
    ago = {"sent_ago_ms": milliseconds, "received_ago_ms": milliseconds}
    return [{**one, "connections": [{**link, **ago} for link in one.get("connections", ())]} for one in processes]


def test_the_age_of_a_job_is_of_the_second_look_as_its_silence_is() -> None:
    young = [{**item, "age_s": 6.0} for item in silent_for(7_000, *four(r3=process(3, OWN)))]
    (job,) = examine(bundle(*young)).jobs
    assert job.silent_s == 7.0 and job.age_s == 9.0 and job.interval_s == 3.0


def test_a_silence_that_a_step_may_take_is_told_in_the_first_sentence() -> None:
    away = process(3, OWN, readings=[reading(waits_in="hrtimer_nanosleep")] * 2)
    worker = {**process(1, WORKER), "pid": 901, "parent": 101, "role": "child", "rank_pid": 101, "connections": []}
    for ranks, id in ((four(r3=away), "hang.elsewhere"), ([*four(r1=process(1, LOADER)), worker], "hang.dataloader")):
        found = first(examine(bundle(*silent_for(7_000, *ranks))))
        assert found.id == id and found.title.endswith("; 3 other ranks wait in barrier, for 7 s so far")
        assert found.confidence == 0.7 and found.fixes[0].text.startswith("look again in a minute")
        long = first(examine(bundle(*silent_for(31_000, *ranks))))
        assert "so far" not in long.title and long.confidence == 0.9


CROWDED = [reading("S", cpu_s=1.0), reading("S", cpu_s=1.5)]  # a sixth of a CPU: four ranks on a host that is full


def test_ranks_that_all_compute_on_a_crowded_host_do_not_wait() -> None:
    for busy in (CROWDED, [reading("S"), reading("R")]):
        answer = examine(bundle(*(process(rank, OWN, readings=busy) for rank in range(4))))
        assert answer.verdict == "not-known" and "ranks 0-3 are at work, 0 of 4 ranks found wait" in answer.sentence
    sleeping = examine(bundle(*(process(rank, OWN) for rank in range(4))))
    assert sleeping.verdict == "stands" and "4 of 4 ranks found wait at evaluate" in sleeping.sentence


@pytest.mark.parametrize("last", ["saving", "computing", "ending"])
def test_ranks_that_are_gone_while_the_rest_waits_for_nobody_may_have_finished(last: str) -> None:
    save = [("save", "/opt/env/lib/python3.11/site-packages/torch/serialization.py", 966), *OWN]
    end = [("_shutdown", STDLIB + "threading.py", 1590)]
    stack, readings = {
        "saving": (save, None), "computing": (OWN, CROWDED), "ending": (end, None),
    }[last]  # fmt: skip
    more = {"readings": readings} if readings else {}
    answer = examine(bundle(process(0, stack, **more), process(2, stack, **more)))
    assert answer.verdict != "held" and "rank 1 has no process on gpu01" in answer.sentence
    gone = [item for item in answer.report.findings if item.id == "hang.rank-gone"]
    assert {item.severity.value for item in gone} == {"warn"} and "the job may be at its end" in gone[0].title
    held = examine(bundle(process(0, stack, **more), process(2))).report.findings
    assert {item.severity.value for item in held if item.id == "hang.rank-gone"} == {"fail"}, (
        "rank 2 waits in a barrier"
    )
    alone = examine(bundle(process(0, OWN), process(2, OWN)))
    assert first(alone).id == "hang.rank-gone", "who sleeps in a line of the program may wait for them"


def test_who_computes_with_a_gpu_open_may_wait_for_it_and_for_the_rank_that_is_gone() -> None:
    answer = examine(bundle(*(process(rank, OWN, readings=CROWDED, devices=["gpu"]) for rank in (0, 2))))
    gone = [item for item in answer.report.findings if item.id == "hang.rank-gone"]
    assert {item.severity.value for item in gone} == {"fail"} and "at its end" not in gone[0].title


def test_what_a_rank_says_to_itself_moves_no_job() -> None:
    away = process(3, OWN)
    own = {**_connection(3, 3), "local": "127.0.0.1:9", "peer": "127.0.0.1:8", "moved_bytes": 1 << 20}
    away["connections"] += [own, {**own, "local": own["peer"], "peer": own["local"]}]
    found = first(examine(bundle(*four(r3=away))))
    assert found.id == "hang.elsewhere" and blamed(found) == [("gpu02", 3)]


def test_a_thread_of_an_executor_that_the_main_one_waits_for_is_what_the_rank_does() -> None:
    """``async_save(...).result()``: on three ranks the thread waits in torch, on one it writes."""
    result = [
        ("Condition.wait", STDLIB + "threading.py", 327),
        ("Future.result", STDLIB + "concurrent/futures/_base.py", 451),
        *OWN,
    ]
    slow = [
        ("write_data", "/job/ckpt.py", 7),
        ("save", "/opt/env/lib/python3.11/site-packages/torch/distributed/checkpoint/state_dict_saver.py", 9),
    ]
    ranks = [process(rank, result) for rank in range(4)]
    for item in ranks:
        thread = slow if item["pid"] == 101 else BARRIER[:1]
        for told in item["stacks"]:
            told["threads"].append({"id": 2, "name": "saver", "frames": frames_of(thread)})
    found = first(examine(bundle(*ranks)))
    assert (
        found.id == "hang.elsewhere" and "rank 1 (pid 101) writes a checkpoint in write_data (ckpt.py:7)" in found.title
    )


def test_a_thread_that_is_stuck_in_the_kernel_is_what_its_rank_waits_for() -> None:
    """As a checkpoint that is written beside the training, to a server that does not answer."""
    writer = {"id": 7, "state": "D", "waits_in": "rpc_wait_bit_killable", "call": "fsync", "file": "/mnt/a.pt"}
    writer = {**writer, "file_system": "nfs4", "kernel_stack": ["rpc_wait_bit_killable", "nfs_wb_all"]}
    found = first(examine(bundle(*four(r1=process(1, QUEUE, readings=[reading(others=[writer])] * 2)))))
    assert (
        "rank 1 (pid 101) waits for a thread that is stuck in the kernel, on /mnt/a.pt (nfs4), in evaluate"
        in found.title
    )
    assert any("rpc_wait_bit_killable < nfs_wb_all" in item.text for item in found.evidence)
    for others in ([], [{**writer, "id": 8}]):  # another one then: one write after the other
        passing = [reading(others=others), reading(others=[writer])]
        told = first(examine(bundle(*four(r1=process(1, QUEUE, readings=passing)))))
        assert "waits for another thread to fill a queue" in told.title


RAY = [("main_loop", "/opt/env/lib/python3.11/site-packages/ray/_private/worker.py", 955)]


@pytest.mark.parametrize(
    ("main", "undecided"),
    [
        (RAY, "is in main_loop (ray/_private/worker.py:955)"),
        (JOIN, "waits for a thread to end in evaluate (train.py:31)"),
    ],
    ids=["a main thread that serves", "one that waits"],
)
def test_a_rank_that_trains_in_another_thread_is_told_by_that(main: Stack, undecided: str) -> None:
    def threads(*each: Stack) -> list[dict[str, Any]]:
        found = [{"id": at, "name": f"thread-{at}", "frames": frames_of(stack)} for at, stack in enumerate(each)]
        return [{"outcome": "ok", "threads": found}] * 2

    ranks = [process(rank, stacks=threads(main, OWN if rank == 3 else calls("all_reduce", 20))) for rank in range(4)]
    found = first(examine(bundle(*ranks)))
    assert found.id == "hang.elsewhere" and blamed(found) == [("gpu02", 3)]
    assert "rank 3 (pid 103) is in evaluate (train.py:31); 3 other ranks wait in all_reduce" in found.title
    ranks[3] = process(3, readings=[reading(waits_in="x")] * 2, stacks=threads(main, OWN, REDUCE))  # which of the two?
    assert undecided in first(examine(bundle(*ranks))).title


def test_who_holds_the_file_lock_is_named_be_it_a_rank_or_a_stranger() -> None:
    def told(holder: int) -> Finding:
        main = {"waits_in": "locks_lock_inode_wait", "call": "flock", "file": "/data/.lock", "holder": holder}
        away = process(1, OWN, readings=[reading(main={**main, "holder_name": "rsync"})] * 2)
        return first(examine(bundle(*four(r1=away))))

    assert "waits for the lock on /data/.lock, which pid 77 (rsync) holds," in told(77).title
    assert "which rank 0 (pid 100) holds" in told(100).title  # it waits in a collective, and will never let go
    assert any(item.text == "/data/.lock: held by rank 0 (pid 100)" for item in told(100).evidence)
    assert "which" not in told(0).title


def test_a_silence_of_seconds_may_be_a_rank_that_is_late() -> None:
    ranks = four(r3=process(3, OWN))
    for item in ranks:
        item["connections"] = [{**one, "received_ago_ms": 7_000, "sent_ago_ms": 7_000} for one in item["connections"]]
    late = first(examine(bundle(*ranks)))
    assert late.confidence == 0.7 and "may only be late" in late.fixes[0].text
    assert first(examine(bundle(*four(r3=process(3, OWN))))).confidence == 0.9


def test_a_stopped_torchrun_holds_who_asks_its_store() -> None:
    """It is the store of a job that torchrun started; who only computes does not ask it."""
    launcher = {**process(0), "pid": 50, "parent": 1, "start_ticks": 50, "role": "launcher", "script": "torchrun"}
    launcher.update(environment={}, readings=[reading("T")] * 2, connections=[])
    launcher["environment"]["SLURM_PROCID"] = "0"
    group = [("new_group", BARRIER[0][1], 5000), OWN[0]]
    asking = [process(rank, group) for rank in range(4)]
    for item in asking:
        item["environment"]["GROUP_RANK"] = str(int(item["environment"]["RANK"]) // 2)
    found = first(examine(bundle(*asking, launcher)))
    assert (
        found.id == "hang.stopped.launcher" and found.hosts == ("gpu01",) and found.fixes[0].command == "kill -CONT 50"
    )
    assert (
        "torchrun (pid 50), which keeps the job's store, is stopped by a signal; 4 other ranks wait in new_group"
        in found.title
    )
    for item in asking:
        item["environment"]["GROUP_RANK"] = str(1 - int(item["environment"]["GROUP_RANK"]))
    told = [item for item in examine(bundle(*asking, launcher)).report.findings if item.id == "hang.stopped.launcher"]
    assert [(item.severity.value, "watches the ranks of its host" in item.title) for item in told] == [("warn", True)]
    for item in asking:
        item["environment"]["GROUP_RANK"] = str(1 - int(item["environment"]["GROUP_RANK"]))
        item["stacks"] = [stacks(BARRIER)] * 2
    answer = examine(bundle(*asking, launcher))
    assert answer.verdict == "stands" and {item.id for item in answer.report.causes} == {
        "hang.stopped.launcher",
        "hang.waiting",
    }


def test_ranks_that_compute_at_one_place_do_not_wait_for_the_one_that_computes_elsewhere() -> None:
    """As in a long step of a healthy job without GPUs: seconds without a byte."""
    busy = {"readings": [reading("R", 1.0), reading("R", 3.9)]}
    ranks = [process(rank, OWN if rank == 3 else SYNC, **busy) for rank in range(4)]
    assert examine(bundle(*ranks)).verdict == "not-known"
    for item in ranks[:3]:
        item["readings"] = [reading()] * 2
    assert first(examine(bundle(*ranks))).id == "hang.elsewhere"


def test_ranks_that_know_their_place_alone_are_numbered_by_it() -> None:
    """As Lightning's: NODE_RANK and LOCAL_RANK, and no RANK. One of gpu01 has ended: its numbers still end at 1."""
    ranks = four(r3=process(3, OWN))
    for item in ranks:
        own = item["environment"]
        own.update(NODE_RANK=str(int(own["RANK"]) // 2), RANK=own["LOCAL_RANK"])
        del own["LOCAL_WORLD_SIZE"]
        item["placed"] = True
    whole = bundle(*four())
    hosts = []
    for number, host in enumerate(whole.hosts):
        data = {"interval_s": 3.0, "processes": [ranks[0]] if number == 0 else ranks[2:]}
        hosts.append(msgspec.structs.replace(host, probes={"job": ProbeResult(Outcome.OK, data)}))
    answer = examine(msgspec.structs.replace(whole, hosts=tuple(hosts)))
    assert [(row.rank, row.host) for row in answer.ranks] == [(0, "gpu01"), (2, "gpu02"), (3, "gpu02")]
    assert blamed(first(answer)) == [("gpu02", 3)]


def test_a_rank_in_a_frozen_cgroup_is_told() -> None:
    found = first(examine(bundle(*four(r2=process(2, readings=[reading("D", frozen=True)] * 2)))))
    assert found.id == "hang.stopped" and "is frozen with its cgroup" in found.title and blamed(found) == [("gpu02", 2)]


def test_one_collective_in_two_places_is_one_left_out() -> None:
    other = [REDUCE[0], ("finish", "/job/train.py", 60)]
    found = first(
        examine(bundle(*four(*(), **{f"r{rank}": process(rank, REDUCE) for rank in (0, 1, 3)}, r2=process(2, other))))
    )
    assert found.id == "app.collective-mismatch" and blamed(found) == [("gpu02", 2)] and found.confidence == 0.6
    assert (
        found.title
        == "rank 2 waits in all_reduce at finish (train.py:60), ranks 0-1,3 in all_reduce at train (train.py:20)"
    )


def test_where_one_rank_is_elsewhere_those_in_other_collectives_are_not_to_blame() -> None:
    """As with tensor, pipeline and data parallel groups: each waits for that rank in a collective of its own."""
    other = [("broadcast", *REDUCE[0][1:]), ("train", "/job/train.py", 21)]
    ranks = four(r0=process(0, REDUCE), r1=process(1, OWN), r2=process(2, other))
    answer = examine(bundle(*ranks))
    assert blamed(first(answer)) == [("gpu01", 1)]
    assert {item.id for item in answer.report.findings} == {"hang.elsewhere", "hang.waiting"}


def test_spawned_ranks_on_several_hosts_are_numbered_in_their_order() -> None:
    ranks = four(r2=process(2, OWN))
    for item in ranks:
        item["spawned"] = True
        item["environment"].update(RANK=item["environment"]["LOCAL_RANK"], WORLD_SIZE="2")
    whole = bundle(*four())
    hosts = []
    for number, host in enumerate(whole.hosts):
        data = {"interval_s": 3.0, "processes": ranks[2 * number : 2 * number + 2]}
        hosts.append(msgspec.structs.replace(host, probes={"job": ProbeResult(Outcome.OK, data)}))
    answer = examine(msgspec.structs.replace(whole, hosts=tuple(hosts)))
    assert blamed(first(answer)) == [("gpu02", 2)] and answer.jobs[0].world == 4
    assert "the ranks' own numbers" in {gap.what for gap in answer.report.unknown}


AGENT = "/opt/env/lib/python3.11/site-packages/torch/distributed/elastic/agent/server/api.py"
MEETS = [("_delay", "/x/rendezvous/utils.py", 181), ("SimpleElasticAgent._rendezvous", AGENT, 528)]


def torchruns(*options: str | None, **facts: Any) -> Bundle:
    """A fleet of gpu01, gpu02, ... on which torchrun waits with these options; None is a host without any."""
    hosts = []
    for number, text in enumerate(options, 1):
        words = dict(item.split("=") for item in (text or "").split())
        more = {
            "role": "launcher",
            "script": "torchrun",
            "environment": {},
            "connections": [],
            "options": words,
            **facts,
        }
        found = [{**process(0, MEETS), **more, "pid": 70 + number, "start_ticks": number}] if text is not None else []
        data = {"interval_s": 3.0, "processes": found}
        hosts.append(HostFacts(f"gpu{number:02}", Reach(ReachOutcome.OK), {"job": ProbeResult(Outcome.OK, data)}))
    return Bundle(1, "test", "", Plan(stages=(JOB,)), tuple(hosts))


HERE, THERE = "nnodes=3 rdzv-endpoint=gpu01:29400", "nnodes=3 rdzv-endpoint=gpu02:29400"


@pytest.mark.parametrize(
    ("options", "id", "hosts", "words"),
    [
        ((HERE, HERE, None), "hang.rendezvous", ("gpu03",), "waits at gpu01:29400 for 1 more host: no torchrun runs on gpu03"),
        ((HERE, THERE, HERE), "hang.rendezvous.endpoints", ("gpu01", "gpu02", "gpu03"), "gpu02 at gpu02:29400"),
        (("nnodes=2 node-rank=0 master-addr=a",) * 2, "hang.rendezvous.node-rank", ("gpu01", "gpu02"), "say that they are host 0"),
    ],
    ids=["a host without one", "two endpoints", "one number twice"],
)  # fmt: skip
def test_whom_torchruns_wait_for(options: tuple[str | None, ...], id: str, hosts: tuple[str, ...], words: str) -> None:
    found = first(examine(torchruns(*options)))
    assert (found.id, found.hosts) == (id, hosts) and words in found.title
    assert found.evidence[0].text.startswith("torchrun --")


def test_torchruns_without_stacks_wait_where_they_have_started_no_rank() -> None:
    found = first(examine(torchruns(HERE, HERE, None, stacks=[None, None])))
    assert (found.id, found.hosts, found.confidence) == ("hang.rendezvous", ("gpu03",), 0.6)
    assert found.evidence[1].text == "it has started no rank; its stack was not taken"
    answer = examine(torchruns("nnodes=1", stacks=[None, None]))  # it may be about to
    assert answer.verdict == "not-known" and "torchrun runs on gpu01" in answer.sentence and int(answer.exit_code) == 4


def test_torchruns_whose_others_were_not_looked_at_accuse_nobody() -> None:
    answer = examine(torchruns(HERE))
    assert answer.verdict == "stands" and "torchrun on gpu01 waits" in answer.sentence and int(answer.exit_code) == 12
    assert [(item.id, item.severity.value) for item in answer.report.causes] == [("hang.rendezvous", "warn")]
    every = examine(torchruns(HERE, HERE, HERE))
    assert every.verdict == "stands" and "all 3 torchruns" in every.report.causes[0].title
    away = torchruns(HERE, HERE, None)
    away.hosts[0].probes["job"].data["processes"][0]["stacks"][0] = stacks(OWN)  # it has only just come
    assert examine(away).report.causes[0].title.startswith("torchrun on gpu02 waits")


def test_without_stacks_the_kernel_function_tells_with_less_certainty() -> None:
    ranks = [process(rank, stacks=[None, None]) for rank in range(4)]
    ranks[1]["readings"] = [reading(waits_in="pipe_write", main={"call": "write", "file": "/ckpt/last.pt"})] * 2
    found = first(examine(bundle(*ranks, no_stacks="left out")))
    assert found.id == "hang.elsewhere" and blamed(found) == [("gpu01", 1)] and found.confidence <= 0.6
    refused = {"outcome": "not-permitted", "detail": "ptrace"}
    unread = [*four()[:3], process(3, stacks=[refused, refused])]
    gaps = {gap.what: gap.why for gap in examine(bundle(*unread)).report.unknown}
    assert gaps["the Python stack of rank 3 (pid 103)"] == "not-permitted: ptrace"
    assert "write /ckpt/last.pt" in found.evidence[0].text
    ranks[1]["readings"] = [reading("R", waits_in=""), reading("R", 1.1, waits_in="")]
    found = first(examine(bundle(*ranks, no_stacks="left out")))
    assert found.id == "hang.elsewhere" and "computes" in found.title and found.confidence <= 0.6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ranks: ranks[0]["connections"][0].update(moved_bytes=65536),
        lambda ranks: ranks[1].update(stacks=[stacks(REDUCE), stacks(BARRIER)]),
    ],
    ids=["bytes moved", "a waiting rank was elsewhere before"],
)
def test_where_something_moves_nobody_is_accused(spoil: Callable[[Any], None]) -> None:
    ranks = four(r3=process(3, OWN))
    spoil(ranks)
    answer = examine(bundle(*ranks))
    assert answer.verdict == "moves" and int(answer.exit_code) == 4 and not answer.report.causes, answer.sentence
    assert "no proof" in answer.sentence


def test_what_moves_while_a_rank_asks_the_store_is_no_movement() -> None:
    """The program gives the store's port (``init_method="tcp://..."``), and rank 3 has not come."""
    start = [("init_process_group", BARRIER[0][1], 1892), ("<module>", "/job/train.py", 16)]
    ranks = [process(rank, OWN if rank == 3 else start) for rank in range(4)]
    asking = _connection(1, 0, moved_bytes=9_000, received_ago_ms=3, sent_ago_ms=3)
    ranks[1]["connections"] = [asking]
    ranks[0]["connections"] = [{**asking, "local": asking["peer"], "peer": asking["local"]}]
    found = first(examine(bundle(*ranks)))
    assert found.id == "hang.elsewhere" and blamed(found) == [("gpu02", 3)]
    ranks[2]["stacks"] = [stacks([("_new_process_group_helper", BARRIER[0][1], 2400), *start])] * 2
    assert "3 other ranks wait in init_process_group" in first(examine(bundle(*ranks))).title
    ranks[1]["stacks"] = ranks[0]["stacks"] = [stacks(REDUCE)] * 2  # who is in a collective sends data
    assert examine(bundle(*ranks)).verdict == "moves"


@pytest.mark.parametrize(
    ("reached", "hosts", "words"),
    [((), ("gpu01", "gpu02"), "no rank reaches"), ((0, 1, 2), ("gpu02",), "rank 3 does not reach")],
)
def test_who_has_no_connection_to_the_store_of_rank_0_is_told(
    reached: tuple[int, ...], hosts: tuple[str, ...], words: str
) -> None:
    start = [("init_process_group", BARRIER[0][1], 1892), ("<module>", "/job/train.py", 16)]

    def asking(rank: int) -> dict[str, Any]:
        to_store = {"local": f"10.0.0.2:4{rank}000", "peer": "10.0.0.1:29500", "state": "ESTABLISHED"}
        in_vain = {"local": f"10.0.0.2:4{rank}000", "peer": "10.0.0.1:29500", "state": "SYN_SENT", "timeouts": 3}
        in_vain = {} if reached else in_vain  # refused: tried again and again, and never seen
        listens = {"local": ":::29500", "peer": ":::0", "state": "LISTEN"}
        return process(
            rank,
            start,
            connections=[
                one for one in (to_store if rank in reached else in_vain, listens if rank == 0 else {}) if one
            ],
        )

    ranks = [asking(rank) for rank in range(4)]
    answer = examine(bundle(*ranks))
    found = next(item for item in answer.report.causes if item.id == "hang.store")
    assert answer.verdict == "held" and found.hosts == hosts and words in found.title and "gpu01:29500" in found.title
    assert "MASTER_ADDR=gpu01" in found.evidence[0].text and found.confidence == 0.9
    if not reached:
        assert first(answer) is found and "hang.network.connecting" not in {item.id for item in answer.report.causes}
    if reached:  # dropped: the connections themselves tell it, with both hosts
        ranks[0]["connections"].append({"local": "10.0.0.1:29500", "peer": "10.0.0.1:5", "state": "ESTABLISHED"})
        ranks[3]["connections"] = [
            {"local": "10.0.0.2:41000", "peer": "10.0.0.1:29500", "state": "SYN_SENT", "timeouts": 3}
        ]
        (cut,) = [item for item in examine(bundle(*ranks)).report.causes if item.severity.value == "fail"]
        assert cut.id == "hang.network.connecting" and "gpu02 -> gpu01" in cut.title
        ranks[0]["connections"].pop()
    ranks[0]["connections"].pop()  # torchrun serves the store, or nobody does: not known
    assert "hang.store" not in {item.id for item in examine(bundle(*ranks)).report.findings}


def asks_for_the_store(rank: int, **environment: str) -> dict[str, Any]:
    """A rank that knows its number and the world alone, and has no connection: each one was refused."""
    told = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "gpu01", "MASTER_PORT": "29500", **environment}
    return process(rank, STARTS, connections=[], environment=told)


def test_where_nobody_listens_for_the_ranks_that_start_the_host_and_the_port_are_told() -> None:
    ranks = [asks_for_the_store(rank) for rank in (1, 2, 3)]
    found = first(examine(bundle(*ranks, listening=[22, 111])))
    assert found.id == "hang.store.no-listener" and found.hosts == ("gpu01",) and blamed(found) == [("gpu01", 0)]
    assert found.title == (
        "nobody listens on port 29500 of gpu01, where ranks 1-3 look for the store; rank 0, which should, was not found"
    )
    assert found.evidence[0].text == "port 29500 is not among those that listen: 22, 111" and found.confidence == 0.9
    for there in (
        {},
        {"listening": [22, 29500]},
        {"listening": [22], "namespace": "net:[9]"},
    ):  # unknown, or a container
        answer = examine(bundle(*ranks, **there))
        assert answer.verdict == "not-known" and "rank 0 of 4 was not found" in answer.sentence, answer.sentence
    elsewhere = [asks_for_the_store(rank, MASTER_ADDR="gpu09") for rank in (1, 2, 3)]
    assert examine(bundle(*elsewhere, listening=[22])).verdict == "not-known"  # a host that was not looked at
    at_work = process(
        0, OWN, environment={"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu01", "MASTER_PORT": "29500"}
    )
    assert (
        first(examine(bundle(at_work, *ranks, listening=[22]))).id == "hang.elsewhere"
    )  # it will listen when it comes


def test_ranks_that_were_told_different_places_of_the_store_are_one_job() -> None:
    def at(*ports: str, address: str = "gpu01", **more: Any) -> Hang:
        ranks = [
            {**asks_for_the_store(rank, MASTER_PORT=port, MASTER_ADDR=address), **more}
            for rank, port in enumerate(ports)
        ]
        return examine(bundle(*ranks, listening=[22]))

    answer = at("29501", "29500", "29500", "29500")
    found = first(answer)
    assert found.id == "hang.store.places" and blamed(found) == [("gpu01", 0)] and len(answer.jobs) == 1
    assert found.title.endswith("different places: rank 0 at gpu01:29501, ranks 1-3 at gpu01:29500")
    assert {item.text for item in found.evidence} == {
        f"MASTER_ADDR=gpu01 MASTER_PORT={port}" for port in (29500, 29501)
    }
    alone = first(at(*["29500"] * 4, address="localhost"))
    assert alone.id == "hang.store.places" and len(blamed(alone)) == 4 and "(of gpu02 itself)" in alone.title
    # Two names of one store: all are connected, and something else is wrong.
    connected = [{"local": "10.0.0.1:5", "peer": f"10.0.0.1:2950{number}", "state": "ESTABLISHED"} for number in (0, 1)]
    same = at("29501", "29500", "29500", "29500", connections=connected)
    assert "hang.store.places" not in {item.id for item in same.report.findings}
    assert at("29501", "29500", "29500").verdict == "several-jobs"  # not a whole world


def test_one_store_under_two_names_is_one_job_where_its_ranks_are_connected() -> None:
    def ranks(**more: Any) -> list[dict[str, Any]]:
        found = four(r2=process(2, OWN, **more), r3=process(3, **more))
        for item in found[2:]:
            item["environment"]["MASTER_ADDR"] = "10.0.0.1"
        return found

    answer = examine(bundle(*ranks()))
    assert first(answer).id == "hang.elsewhere" and blamed(first(answer)) == [("gpu02", 2)]
    assert [(job.id, job.found) for job in answer.jobs] == [("gpu01:29500", 4)]
    assert examine(bundle(*ranks(connections=[]))).verdict == "several-jobs"


def test_a_rank_that_is_gone_is_why_nobody_listens() -> None:
    ranks = [process(rank, STARTS, connections=[]) for rank in (1, 2, 3)]
    found = first(examine(bundle(*ranks, listening=[22])))
    assert found.id == "hang.rank-gone" and blamed(found) == [("gpu01", 0)]


def test_a_host_that_has_no_rank_is_named_beside_the_ranks_that_were_not_found() -> None:
    answer = examine(bundle(*(asks_for_the_store(rank) for rank in (0, 1))))
    assert answer.verdict == "not-known" and answer.sentence.endswith(
        "ranks 2-3 of 4 were not found, and gpu02 has none"
    )


SYNC = [
    ("step", "/job/train.py", 22),
    ("<module>", "/job/train.py", 40),
]  # perhaps loss.item(), which waits for the GPU


@pytest.mark.parametrize(
    "way",
    [
        lambda item: item.update(connections=[]),
        lambda item: item.update(devices=["gpu"]),  # NVLink, shared memory: its connections are the start's
        lambda item: item.update(devices=["gpu", "rdma"]),
    ],
    ids=["no connection", "gpu", "rdma"],
)
def test_where_tcp_is_not_the_ranks_way_its_silence_proves_nothing(way: Callable[[Any], None]) -> None:
    ranks = [process(rank, OWN if rank == 3 else SYNC) for rank in range(4)]
    for item in ranks:
        way(item)
    answer = examine(bundle(*ranks))
    assert answer.verdict == "not-known" and int(answer.exit_code) == 4
    (found,) = [item for item in answer.report.causes if item.id == "hang.elsewhere"]
    assert found.severity.value == "warn" and blamed(found) == [("gpu02", 3)]
    assert "no byte moved" not in " ".join(item.text for item in found.evidence)
    for item in ranks[:3]:  # who is in a call of torch.distributed waits for others, whatever the way
        item["stacks"] = [stacks(BARRIER)] * 2
    assert first(examine(bundle(*ranks))).id == "hang.elsewhere"
    assert examine(bundle(*ranks[:3], process(3, connections=[], devices=["gpu"]))).verdict == "not-known"


def test_heartbeats_are_no_movement_and_sockets_that_carried_much_tell_of_gpus_too() -> None:
    ranks = four(r3=process(3, OWN))
    ranks[0]["connections"][0].update(moved_bytes=600)
    assert examine(bundle(*ranks)).verdict == "moves"  # without GPUs, small steps
    for item in ranks:  # NCCL's RAS threads, in 3 s
        item["devices"] = ["gpu"]
        item["connections"] = [{**one, "received_bytes": 1 << 30} for one in item["connections"]]
    assert first(examine(bundle(*ranks))).confidence == 0.9


def test_a_rank_without_a_process_is_gone_where_its_host_has_fewer_than_it_says() -> None:
    ranks = four()
    ranks[0]["connections"][2].update(state="CLOSE_WAIT")
    found = first(examine(bundle(*ranks[:3])))
    assert found.id == "hang.rank-gone" and found.hosts == ("gpu02",) and found.places[0].rank == 3
    quoted = " ".join(item.text for item in found.evidence)
    assert "LOCAL_WORLD_SIZE=2, and only rank 2 found" in quoted and "CLOSE_WAIT" in quoted


def test_ranks_of_hosts_that_were_not_named_are_unknown_and_not_gone() -> None:
    """As of whoever types ``nccl-doctor hang`` on one host of many."""
    whole = bundle(*four()[:2])
    answer = examine(msgspec.structs.replace(whole, hosts=whole.hosts[:1]))
    assert answer.verdict == "stands" and "ranks 2-3 of job gpu01:29500" in {gap.what for gap in answer.report.unknown}
    slurm = [process(rank) for rank in range(2)]
    for item in slurm:  # nobody says how many ranks a host has
        item["environment"] = {"SLURM_PROCID": item["environment"]["RANK"], "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    answer = examine(bundle(*[{**item, "environment": {**item["environment"], "RANK": "0"}} for item in slurm[:1]]))
    assert answer.verdict != "held" and any("of job slurm:7" in gap.what for gap in answer.report.unknown)


def test_a_host_without_any_rank_where_the_job_needs_one_more() -> None:
    answer = examine(bundle(*four()[:2]))
    found = first(answer)
    assert found.id == "hang.rank-gone.host" and found.hosts == ("gpu02",) and answer.sentence.startswith("gpu02 has ")
    assert [place.rank for place in found.places] == [2, 3]
    assert "WORLD_SIZE=4 at 2 a host (LOCAL_WORLD_SIZE=2)" in found.evidence[0].text
    ranks = four()[:2]
    for item in ranks:
        item["environment"]["WORLD_SIZE"] = "6"
    seen = bundle(*ranks)
    more = msgspec.structs.replace(seen.hosts[1], name="gpu03")
    told = examine(msgspec.structs.replace(seen, hosts=(*seen.hosts, more))).sentence
    assert told.startswith("gpu[02-03] have no rank of job gpu01:29500, which lacks ranks 2-5")


@pytest.mark.parametrize(
    ("tasks", "ranks", "id"),
    [
        ("2(x2)", (0, 1, 3), "hang.rank-gone"),
        ("2(x2)", (0, 1), "hang.rank-gone.host"),
        ("1(x2)", (0, 1, 3), ""),  # each task has started ranks of its own
        ("", (0, 1, 3), ""),
        ("2(x2", (0, 1, 3), ""),
    ],
)
def test_slurm_says_how_many_ranks_a_host_has_where_each_task_is_one(
    tasks: str, ranks: tuple[int, ...], id: str
) -> None:
    found = [process(rank) for rank in ranks]
    for item in found:
        rank = int(item["environment"]["RANK"])
        item["environment"] = {
            "RANK": str(rank), "SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank % 2),
            "SLURM_JOB_ID": "7", "SLURM_NODEID": str(rank // 2), "SLURM_STEP_TASKS_PER_NODE": tasks,
        }  # fmt: skip
    answer = examine(bundle(*found))
    if not id:
        assert not [item for item in answer.report.findings if item.id.startswith("hang.rank-gone")]
        assert any("of job slurm:7" in gap.what for gap in answer.report.unknown)
        return
    gone = first(answer)
    assert gone.id == id and gone.hosts == ("gpu02",) and "SLURM_STEP_TASKS_PER_NODE=2(x2)" in gone.evidence[0].text


def test_processes_of_others_that_may_not_be_read_do_not_hide_a_rank_of_ours() -> None:
    answer = examine(bundle(*four()[:3], refused={"count": 2, "pids": [7, 8]}))
    assert first(answer).id == "hang.rank-gone" and blamed(first(answer)) == [("gpu02", 3)]
    assert any(gap.why.startswith("not-permitted") for gap in answer.report.unknown)


def test_ranks_on_a_host_that_was_not_reached_are_unknown_and_not_gone() -> None:
    whole = bundle(*four()[:2])
    lost = HostFacts("gpu02", Reach(ReachOutcome.TIMED_OUT, "the host did not answer in time"))
    answer = examine(msgspec.structs.replace(whole, hosts=(whole.hosts[0], lost)))
    assert [item.id for item in answer.report.causes if item.severity.value == "fail"] == ["host.ssh-timeout"]
    assert "ranks 2-3 of job gpu01:29500" in {gap.what for gap in answer.report.unknown}


def test_what_is_sent_to_a_host_that_was_lost_accuses_that_host_and_not_who_sent_it() -> None:
    """It went away between the looks: of the connections to it only the other ends were read."""
    lost = HostFacts("gpu02", Reach(ReachOutcome.TIMED_OUT, "not a word for 20 s", address="10.0.0.2"))
    unheard = {"unsent_bytes": 96, "before_unsent_bytes": 96, "timeouts": 4}
    ranks = four(
        **{
            f"r{rank}": process(
                rank,
                connections=[
                    _connection(rank, peer, **(unheard if peer > 1 else {})) for peer in range(4) if peer != rank
                ],
            )
            for rank in (0, 1)
        }
    )
    whole = bundle(*ranks)
    found = first(examine(msgspec.structs.replace(whole, hosts=(whole.hosts[0], lost))))
    assert (found.id, found.hosts) == ("hang.network", ("gpu02",)) and "gpu01 -> gpu02" in found.title
    for outcome, detail in ((ReachOutcome.AUTH_FAILED, "login refused"), (ReachOutcome.NO_ROUTE, NO_WAY_OUT)):
        other = msgspec.structs.replace(lost, reach=Reach(outcome, detail, address="10.0.0.2"))
        found = first(examine(msgspec.structs.replace(whole, hosts=(whole.hosts[0], other))))
        assert found.id == "hang.network" and found.hosts != ("gpu02",)  # it was not silent: either end may be it
    elsewhere = msgspec.structs.replace(lost, reach=Reach(ReachOutcome.TIMED_OUT, address="10.0.0.9"))
    found = first(examine(msgspec.structs.replace(whole, hosts=(whole.hosts[0], elsewhere))))
    assert (found.id, found.hosts) == ("hang.network", ("gpu01",)) and "gpu01 -> 10.0.0.2" in found.title


@pytest.mark.parametrize(
    ("ranks", "outcome", "held"),
    [
        (4, ReachOutcome.TIMED_OUT, False),  # all ranks are elsewhere: that host is none of this job's
        (3, ReachOutcome.TIMED_OUT, True),  # the fourth may have been there
        (3, ReachOutcome.NO_PYTHON, False),  # we cannot look there: that stops no job
    ],
)
def test_a_host_without_an_agent_holds_a_job_only_where_it_may_be_gone_with_ranks(
    ranks: int, outcome: ReachOutcome, held: bool
) -> None:
    whole = bundle(*four()[:ranks])
    for item in whole.hosts:
        item.probes["job"].data["processes"] = [
            {**one, "environment": {k: v for k, v in one["environment"].items() if "LOCAL" not in k}}
            for one in item.probes["job"].data["processes"]
        ]
    lost = HostFacts("gpu03", Reach(outcome, "no answer"))
    answer = examine(msgspec.structs.replace(whole, hosts=(*whole.hosts, lost)))
    assert (answer.verdict == "held") == held, answer.sentence
    away = four(r3=process(3, OWN))
    found = first(examine(msgspec.structs.replace(bundle(*away), hosts=(*bundle(*away).hosts, lost))))
    assert found.id == "hang.elsewhere"  # before the host that was not reached


def test_a_rank_that_ended_between_the_looks() -> None:
    found = first(examine(bundle(*four(r0=process(0, readings=[reading("Z"), reading("Z")])))))
    assert found.id == "hang.rank-gone.ended" and blamed(found) == [("gpu01", 0)]


def test_a_job_that_ended_between_the_looks_is_held_by_nobody() -> None:
    gone = [process(rank, readings=[reading(), None]) for rank in range(4)]
    answer = examine(bundle(*gone))
    assert answer.verdict == "not-known" and "ended while it was looked at" in answer.sentence
    assert not answer.report.causes and int(answer.exit_code) == 4
    assert any("between the two looks" in gap.why for gap in answer.report.unknown)
    held = [process(rank, readings=[reading(), None]) for rank in range(3)]
    assert first(examine(bundle(*held, process(3)))).id == "hang.rank-gone.ended"


def test_a_rank_in_the_kernel_names_what_it_waits_for() -> None:
    stuck = {"call": "fsync", "file": "/mnt/ckpt/a.pt", "file_system": "nfs4", "kernel_stack": ["rpc_wait_bit", "nfs_"]}
    ranks = four(r2=process(2, OWN, readings=[reading("D", main=stuck)] * 2))
    found = first(examine(bundle(*ranks)))
    assert found.id == "hang.kernel-wait" and "/mnt/ckpt/a.pt (nfs4)" in found.title and blamed(found) == [("gpu02", 2)]
    assert first(examine(bundle(*silent_for(5_000, *ranks)))).title.endswith(
        "3 other ranks wait in barrier, for 5 s so far"
    )
    beside = [reading("D", main=stuck, cpu_s=seconds) for seconds in (1.0, 4.0)]  # NCCL's proxy thread polls, say
    answer = examine(bundle(*four(r2=process(2, OWN, readings=beside))))
    assert answer.verdict == "not-known" and "perhaps rank 2 (pid 102) is stuck in the kernel" in answer.sentence
    writes = [reading("D", main=stuck, written_bytes=size) for size in (0, 64 << 20)]
    answer = examine(bundle(*four(r2=process(2, OWN, readings=writes))))
    assert answer.verdict == "not-known" and "rank 2 is at work, 3 of 4 ranks found wait in barrier" in answer.sentence
    assert any("rpc_wait_bit < nfs_" in item.text for item in found.evidence)
    for at in range(2):  # once is no proof: it reads or writes, and the others wait for that
        ranks[2]["readings"] = [reading("D" if look == at else "S", main=stuck) for look in range(2)]
        found = first(examine(bundle(*ranks)))
        assert found.id == "hang.elsewhere" and blamed(found) == [("gpu02", 2)] and found.confidence == 0.7


def test_a_loader_worker_that_hangs_is_named_and_one_without_work_is_not() -> None:
    def worker(pid: int, frames: Stack) -> dict[str, Any]:
        more = {"role": "child", "rank_pid": 101, "pid": pid, "start_ticks": pid, "connections": []}
        return {**process(1, frames), **more}

    ranks = four(r1=process(1, LOADER))
    found = first(examine(bundle(*ranks, worker(900, IDLE_WORKER), worker(901, WORKER))))
    assert found.id == "hang.dataloader" and "worker 901" in found.title and "__getitem__ (train.py:14)" in found.title
    unseen = worker(900, WORKER)
    unseen["stacks"][-1] = {"outcome": "timed-out", "detail": "no answer"}
    answer = examine(bundle(*ranks, unseen))
    assert not {"hang.dataloader", "internal-error"} & {item.id for item in answer.report.findings}
    answer = examine(bundle(*ranks, worker(900, IDLE_WORKER)))
    assert first(answer).id == "hang.elsewhere" and "waits for data" in first(answer).title
    for held in (reading("T"), reading("t"), reading("S", frozen=True)):  # where it stands is then no fault of its line
        found = examine(bundle(*ranks, {**worker(901, WORKER), "readings": [held] * 2})).report.findings
        assert {"hang.stopped", "hang.stopped.traced", "hang.dataloader"} & {item.id for item in found} == {found[0].id}


def test_ranks_in_different_collectives_are_a_mismatch() -> None:
    found = first(examine(bundle(*four(r1=process(1, REDUCE)))))
    assert found.id == "app.collective-mismatch" and blamed(found) == [("gpu01", 1)] and found.confidence == 0.9
    assert (
        found.title
        == "rank 1 waits in all_reduce at train (train.py:20), ranks 0,2-3 in barrier at train (train.py:37)"
    )


def calls(name: str, line: int, **read: Any) -> Stack:
    """A call of torch.distributed at this line of the program, and what of its variables was read."""
    return [(name, REDUCE[0][1], 1, read), ("train", "/job/train.py", line)]


def mismatch(answer: Hang) -> Finding:
    found = first(answer)
    assert found.id == "app.collective-mismatch"
    return found


def mismatches(answer: Hang) -> list[Finding]:
    return [item for item in answer.report.findings if item.id == "app.collective-mismatch"]


def test_in_three_collectives_nobody_can_come_where_every_rank_was_found() -> None:
    ranks = [process(rank, calls(name, rank)) for rank, name in enumerate(("all_gather", "barrier", "reduce"))]
    answer = examine(bundle(*ranks, process(3, REDUCE)))
    assert mismatch(answer).confidence == 0.9 and len(blamed(mismatch(answer))) == 4
    assert (
        "rank 0 waits in all_gather at train (train.py:0), rank 1 in barrier at train (train.py:1)" in answer.sentence
    )
    of_all = [process(rank, calls(f"call_{rank}", rank, default_group=True)) for rank in range(2)]
    for pair in (ranks[:2], of_all):  # ranks 2 and 3 may be who both wait for, or be behind
        part = bundle(*pair)
        seen = examine(msgspec.structs.replace(part, hosts=part.hosts[:1]))
        assert seen.verdict == "stands" and "; perhaps rank 0 waits in" in seen.sentence


def test_ranks_in_different_collectives_are_no_proof_where_a_thread_of_one_may_come_to_them() -> None:
    """Provoked: rank 0's thread computes, and then joins the barrier of another group that the others wait in."""
    ranks = [process(rank, BARRIER) for rank in range(1, 4)]
    busy = process(0, REDUCE)
    for told in busy["stacks"]:
        told["threads"].append({"id": 2, "name": "later", "frames": frames_of(OWN)})
    answer = examine(bundle(busy, *ranks))
    assert answer.verdict == "stands" and "perhaps rank 0 waits in all_reduce" in answer.sentence
    assert mismatch(examine(bundle(process(0, REDUCE), *ranks))).confidence == 0.9


def test_who_pickles_for_a_collective_is_at_work_and_in_no_other_call() -> None:
    """As in ``all_gather_object`` of results, of which rank 0 has none."""
    pickles = [("_object_to_tensor", REDUCE[0][1], 3405), *calls("all_gather_object", 9)]
    busy = [reading("R", cpu_s=1.0, waits_in=""), reading("R", cpu_s=4.0, waits_in="")]
    own = [process(rank, pickles, readings=busy) for rank in range(1, 4)]
    answer = examine(bundle(process(0, calls("all_gather", 9)), *own))
    assert answer.verdict == "not-known" and not mismatches(answer), answer.sentence
    assert "ranks 1-3 are at work, 1 of 4 ranks found wait in all_gather at train (train.py:9)" in answer.sentence
    late = first(examine(bundle(*four(r1=own[0]))))
    assert late.id == "hang.elsewhere" and "rank 1 (pid 101) computes in train (train.py:9)" in late.title


def test_two_groups_of_ranks_in_two_collectives_may_stand_for_another_reason() -> None:
    pairs = [process(rank, calls("all_reduce" if rank < 2 else "all_gather", rank // 2)) for rank in range(4)]
    found = mismatch(examine(bundle(*pairs)))
    assert found.confidence == 0.8 and len(blamed(found)) == 4  # none of two halves is the odd one
    for item in pairs[:2]:  # both pairs' groups are whole, but in this one all four have to come
        item["stacks"] = [stacks(calls("all_reduce", 0, default_group=True))] * 2
    assert mismatch(examine(bundle(*pairs))).confidence == 0.9


def test_two_collectives_are_less_certain_where_less_was_seen() -> None:
    def sure(*ranks: dict[str, Any]) -> float:
        return mismatch(examine(bundle(*ranks))).confidence

    assert sure(*four(r1=process(1, calls("wait_tensor", 5)))) == 0.8  # which names no collective
    over_nvlink = four(r1=process(1, REDUCE))
    for item in over_nvlink:
        item.update(devices=["gpu"], connections=[])
    assert sure(*over_nvlink) == 0.6
    once = four(r1=process(1, REDUCE))
    for item in once:
        item.update(readings=item["readings"][:1], stacks=item["stacks"][:1])
    assert not mismatches(examine(bundle(*once)))


def test_two_collectives_are_a_consequence_where_a_rank_is_gone() -> None:
    answer = examine(bundle(*(process(rank, calls(("barrier", "reduce")[rank == 1], 5)) for rank in range(3))))
    assert first(answer).id == "hang.rank-gone" and [one.folded_under for one in mismatches(answer)] == [
        "hang.rank-gone"
    ]


def test_two_collectives_are_a_consequence_where_the_network_lost_what_a_rank_sent() -> None:
    lost = {"unsent_bytes": 96, "before_unsent_bytes": 96, "timeouts": 5}
    answer = examine(bundle(*four(r1=process(1, REDUCE, connections=[_connection(1, 3, **lost)]))))
    assert first(answer).id == "hang.network" and [one.folded_under for one in mismatches(answer)] == ["hang.network"]


def test_ranks_that_receive_from_each_other_in_a_ring_are_named_in_its_order() -> None:
    ring = [process(rank, calls("recv", 5, peer=(rank + 1) % 4)) for rank in range(4)]
    found = mismatch(examine(bundle(*ring)))
    assert (
        found.title == "ranks 0-3 wait for each other in a ring, 0 -> 1 -> 2 -> 3 -> 0, in recv at train (train.py:5)"
    )
    assert found.confidence == 0.9 and "batch_isend_irecv" in found.fixes[0].text
    two = [process(rank, calls("recv", 5, peer=1 - rank)) for rank in range(2)]
    found = mismatch(examine(bundle(*two, process(2), process(3))))
    assert blamed(found) == [("gpu01", 0), ("gpu01", 1)] and "0 -> 1 -> 0" in found.title
    two[1]["stacks"][1]["threads"].append({"id": 2, "frames": frames_of(OWN)})  # which may send, later
    answer = examine(bundle(*two, process(2), process(3)))
    assert answer.verdict == "stands" and mismatches(answer)[0].confidence == 0.4
    posted = [process(rank, calls("send" if rank % 2 else "recv", 5, peer=rank ^ 1)) for rank in range(4)]
    unread = [process(rank, calls("recv", 5)) for rank in range(4)]
    for ranks in (posted, unread):
        answer = examine(bundle(*ranks))
        assert answer.verdict == "stands" and not mismatches(answer)
    assert "4 of 4 ranks found wait in recv at train (train.py:5)" in answer.sentence


def test_who_waits_for_the_message_of_a_rank_in_a_collective_is_told_with_it() -> None:
    away = calls("all_reduce", 9)
    ranks = [process(rank, calls("recv", 5, peer=2) if rank == 3 else away) for rank in range(4)]
    found = mismatch(examine(bundle(*ranks)))
    assert (
        found.title == "rank 3 waits in recv from 2 at train (train.py:5), rank 2 in all_reduce at train (train.py:9)"
    )
    assert blamed(found) == [("gpu02", 2), ("gpu02", 3)] and found.confidence == 0.85
    ranks[2]["stacks"][1]["threads"].append({"id": 2, "frames": frames_of(OWN)})  # which may send, later
    assert mismatches(examine(bundle(*ranks)))[0].confidence == 0.4
    chain = [process(rank, calls("recv", 5, peer=rank + 1) if rank < 3 else away) for rank in range(4)]
    assert blamed(mismatch(examine(bundle(*chain)))) == [("gpu02", 2), ("gpu02", 3)]  # 0 and 1 wait for those
    whole = bundle(*ranks[2:])
    part = msgspec.structs.replace(whole, hosts=whole.hosts[1:])  # rank 2 may wait for one that was not seen
    assert examine(part).verdict == "stands" and mismatches(examine(part))[0].confidence == 0.4
    ranks[2] = process(2, OWN)
    assert blamed(first(examine(bundle(*ranks)))) == [("gpu02", 2)] and not mismatches(examine(bundle(*ranks)))


def test_a_new_group_that_the_others_do_not_come_to_is_a_mismatch() -> None:
    found = mismatch(examine(bundle(*four(r1=process(1, [("new_group", BARRIER[0][1], 5000), OWN[0]])))))
    assert blamed(found) == [("gpu01", 1)] and "rank 1 waits in new_group at evaluate (train.py:31)" in found.title


def test_roots_that_differ_are_a_mismatch_where_all_were_read() -> None:
    def roots(*peers: int | None, default_group: bool = True) -> Hang:
        each = (calls("broadcast", 5, peer=peer, default_group=default_group) for peer in peers)
        return examine(bundle(*(process(rank, stack) for rank, stack in enumerate(each))))

    assert (
        "rank 1 waits in broadcast from 1 at train (train.py:5), ranks 0,2-3 in broadcast from 0"
        in roots(0, 1, 0, 0).sentence
    )
    for answer in (roots(0, None, 0, 0), roots(0, 0, 0, 0), roots(0, 0, 2, 2, default_group=False)):
        assert answer.verdict == "stands" and not mismatches(answer)


BACKWARD = [("_engine_run_backward", "/opt/env/lib/python3.11/site-packages/torch/autograd/graph.py", 979), OWN[1]]


def test_who_has_left_the_loop_while_the_others_stand_in_backward_is_named() -> None:
    """As of uneven data under DDP, whose all_reduce no Python frame shows."""
    ranks = [process(rank, BARRIER if rank == 2 else BACKWARD) for rank in range(4)]
    ranks[2]["readings"] = [reading(waits_in="ep_poll")] * 2
    found = mismatch(examine(bundle(*ranks)))
    assert (
        found.title
        == "rank 2 waits in barrier at train (train.py:37), ranks 0-1,3 in backward at <module> (train.py:40)"
    )
    assert blamed(found) == [("gpu02", 2)] and found.confidence == 0.7
    for item in ranks:  # at one line, and none of them waits for another one
        item["readings"] = [reading(waits_in="wait_woken", main={"call": "recvfrom", "file": "TCP to 10.0.0.9:80"})] * 2
    answer = examine(bundle(*ranks))
    assert answer.verdict == "stands" and "; perhaps rank 2 waits in barrier" in answer.sentence
    for item in ranks:
        item.update(devices=["gpu"], connections=[])  # long steps of a healthy job look so, too
    answer = examine(bundle(*ranks))
    assert answer.verdict == "not-known" and "; perhaps rank 2 waits in barrier" in answer.sentence
    unseen = [process(rank, BARRIER if rank == 2 else []) for rank in range(4)]  # they may be in the same barrier
    assert not mismatches(examine(bundle(*unseen)))


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("_verify_param_shape_across_processes", "torch/distributed/utils.py"),
        ("_sync_params_and_buffers", "torch/distributed/utils.py"),
        ("DistributedDataParallel._distributed_broadcast_coalesced", "torch/nn/parallel/distributed.py"),
    ],
)
def test_the_collectives_that_ddp_calls_by_itself_are_known(function: str, file: str) -> None:
    """Only rank 0, whose values are sent, waits yet: the others have them, and went on."""
    inside = [(function, f"/opt/env/lib/python3.11/site-packages/{file}", 326), ("train", "/job/train.py", 18)]
    ranks = four(r0=process(0, inside), r2=process(2, OWN, readings=[reading(waits_in="hrtimer_nanosleep")] * 2))
    assert blamed(first(examine(bundle(*ranks)))) == [("gpu02", 2)]
    found = mismatch(examine(bundle(*four(r0=process(0, inside)))))
    assert (
        f"rank 0 waits in {function.rpartition('.')[2]} at train (train.py:18)" in found.title
        and found.confidence == 0.9
    )


def test_a_stage_that_waits_for_its_neighbours_messages_waits_and_accuses_none_that_waits() -> None:
    schedules = "/opt/env/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py"
    stage = [("_wait_batch_p2p", schedules, 683), ("train", "/job/train.py", 18)]
    answer = examine(bundle(*four(r0=process(0, stage), r1=process(1, stage))))
    assert answer.verdict == "stands" and not mismatches(answer)  # whose messages, nothing says
    found = first(examine(bundle(*(process(rank, OWN if rank == 3 else stage) for rank in range(4)))))
    assert found.id == "hang.elsewhere" and "3 other ranks wait in _wait_batch_p2p" in found.title


def test_a_crashed_rank_whose_core_dump_is_being_written_does_not_compute() -> None:
    dumping = process(2, OWN, readings=[reading("R", dumps_core=True), reading("R", 3.9, dumps_core=True)])
    found = first(examine(bundle(*four(r2=dumping))))
    assert found.id == "hang.rank-gone.core-dump" and blamed(found) == [("gpu02", 2)]
    assert "rank 2 (pid 102) has crashed in evaluate (train.py:31), and the kernel writes its core dump" in found.title


@pytest.mark.parametrize(("idle", "watts", "severity"), [(0, 120, "fail"), (0, 600, "warn"), (40, 120, "warn")])
def test_gpus_that_wait_for_an_idle_one_prove_who_is_elsewhere(idle: int, watts: int, severity: str) -> None:
    def gpu(rank: int) -> dict[str, Any]:
        use = {"utilization_percent": idle if rank == 3 else 100, "power_w": watts, "power_limit_w": 700}
        return {"index": rank % 2, **use, "processes": [{"pid": 100 + rank, "kind": "compute"}]}

    ranks = [process(rank, OWN if rank == 3 else SYNC, devices=["gpu"], connections=[]) for rank in range(4)]
    whole = bundle(*ranks)
    for number, host in enumerate(whole.hosts):
        found = {"nvml": {"outcome": "ok"}, "smi": {"outcome": "ok"}, "gpus": [gpu(2 * number), gpu(2 * number + 1)]}
        host.probes["gpu"] = ProbeResult(Outcome.OK, found)
    answer = examine(whole)
    (told,) = [item for item in answer.report.causes if item.id == "hang.elsewhere"]
    assert told.severity.value == severity and blamed(told) == [("gpu02", 3)]
    assert ("perhaps rank 3 (pid 103)" in answer.sentence) == (severity == "warn")


def test_data_that_nobody_acknowledges_is_the_network_and_a_reader_that_stopped_is_not() -> None:
    ranks = four()
    full = {"unsent_bytes": 70_000, "before_unsent_bytes": 70_000}
    for rank, peer in ((0, 2), (1, 3)):
        ranks[rank]["connections"] = [_connection(rank, peer, timeouts=5, **full)]
    found = first(examine(bundle(*ranks)))
    assert found.id == "hang.network" and found.hosts == ("gpu01", "gpu02")
    assert "5 retransmissions unanswered" in found.evidence[0].text and "68.4 KiB not ack" in found.evidence[0].text
    for rank in (0, 1):
        ranks[rank]["connections"][0]["timeouts"] = 0
    assert examine(bundle(*ranks)).verdict == "stands"


def test_the_host_that_all_connections_share_on_which_nothing_gets_through_is_named() -> None:
    """Rank 2 on gpu02 gets nothing from gpu01, and rank 3, here on a third host, nothing from it."""
    unheard = {"unsent_bytes": 96, "before_unsent_bytes": 96, "timeouts": 5}

    def sends(host: int, to: int, **more: Any) -> list[dict[str, Any]]:
        return [{**_connection(0, 2), "local": f"10.0.0.{host}:4000{to}", "peer": f"10.0.0.{to}:4000{host}", **more}]

    ranks = four(r0=process(0, connections=sends(1, 2, **unheard)), r2=process(2, connections=sends(2, 3, **unheard)))
    ranks[3]["connections"] = sends(3, 2)
    whole = bundle(*ranks[:3])
    third = {"job": ProbeResult(Outcome.OK, {"interval_s": 3.0, "processes": [ranks[3]]})}
    hosts = (*whole.hosts, HostFacts("gpu03", Reach(ReachOutcome.OK), third))
    found = first(examine(msgspec.structs.replace(whole, hosts=hosts)))
    assert (found.id, found.hosts, found.confidence) == ("hang.network", ("gpu02",), 0.95)


def test_two_ras_reports_name_who_is_behind() -> None:
    def report(counts: list[int]) -> dict[str, str]:
        status = {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        }
        ranks = [
            {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": 0, "nvml_dev": 0, "status": status,
             "collective_counts": {"AllReduce": count}}
            for rank, count in enumerate(counts)
        ]  # fmt: skip
        world = {"hash": "0xa", "secondary_hash": "0x1:0x2", "size": 4, "ranks_count": 4, "missing_ranks_count": 0}
        told = {"nccl_version": "2.29.2", "timestamp": "2026-02-03 04:05:06", "communicators_count": 1,
                "communicators": [{**world, "ranks": ranks, "missing_ranks": []}],
                "ras": {"collection_time_sec": 0.01, "timeouts_count": 0}}  # fmt: skip
        return {"address": "127.0.0.1:28028", "text": "SERVER PROTOCOL 2\nOK\nOK\n" + json.dumps(told) + "\n"}

    stuck = report([90, 90, 89, 90])
    found = first(examine(bundle(*four(), ras=[stuck, stuck])))
    assert found.id == "hang.behind" and blamed(found) == [("gpu02", 2)] and "89" in found.evidence[0].text
    assert found.fixes[0].command.endswith("--pid 102") and found.fixes[0].host == "gpu02"
    with_gpus = [process(rank, devices=["gpu"]) for rank in range(4)]
    assert not any("RAS" in gap.what for gap in examine(bundle(*with_gpus, ras=[stuck, stuck])).report.unknown)
    talking = four()
    for item in talking:
        item["connections"] = []
    even = report([90] * 4)
    assert examine(bundle(*talking, ras=[even, even])).verdict == "stands"
    assert examine(bundle(*talking, ras=[even])).verdict == "not-known"  # one count cannot stand still
    alive = examine(bundle(*four(), ras=[stuck, report([95, 95, 94, 95])]))
    assert alive.verdict == "moves" and not alive.report.causes


def test_what_nccl_and_its_recorder_did_not_tell_is_missed_in_a_job_with_gpus() -> None:
    def missed(*ranks: dict[str, Any], **facts: Any) -> dict[str, str]:
        return {gap.what: gap.why for gap in examine(bundle(*ranks, **facts)).report.unknown}

    counts, dump = "NCCL's own counts (RAS)", "a flight-recorder dump"
    with_gpus = [process(rank, devices=["gpu"]) for rank in range(4)]
    assert counts not in missed(*four()) and "no rank listens on its port" in missed(*with_gpus)[counts]
    refused = {"address": "127.0.0.1:28028", "error": "Connection refused"}
    assert missed(*with_gpus, ras=[refused, refused])[counts] == "127.0.0.1:28028: Connection refused"
    odd = {"address": "127.0.0.1:28028", "text": "SERVER PROTOCOL 2\n"}
    assert missed(*with_gpus, ras=[odd])[counts] == "127.0.0.1:28028: its answer is no report"
    assert missed(*four(), dump_problems=["/tmp/trace_0: larger than 4 MiB"])[dump] == "/tmp/trace_0: larger than 4 MiB"
    broken = base64.b64encode(zlib.compress(b"no dump")).decode()
    broken_dump = {"rank": 0, "pid": 100, "path": "/tmp/trace_rank_0", "data": broken}
    assert missed(*four(), dumps=[broken_dump])[dump].startswith("/tmp/trace_rank_0: ")


@pytest.mark.parametrize(
    ("scenario", "id", "rank"), [("operation", "app.collective-mismatch", 1), ("skipped", "hang.behind", 2)]
)
def test_dumps_that_the_ranks_have_written_are_compared(scenario: str, id: str, rank: int) -> None:
    recorded = Path(__file__).parents[1] / "fixtures" / "flight_recorder" / scenario

    def dump(number: int, pid: int) -> dict[str, Any]:
        packed = base64.b64encode(zlib.compress((recorded / f"rank_{number}").read_bytes())).decode()
        return {"rank": number, "pid": pid, "path": f"/tmp/nccl_trace_rank_{number}", "data": packed}

    answer = examine(bundle(*four(), dumps=[dump(number, 100 + number) for number in range(3)]))
    told = [item for item in answer.report.causes if item.id == id]
    assert told and [place.rank for place in told[0].places] == [rank], answer.report.causes
    others = examine(bundle(*four(), dumps=[dump(number, 900 + number) for number in range(3)]))
    assert [item.id for item in others.report.causes] == ["hang.waiting"]  # dumps of another job's processes


def test_a_host_that_swaps_or_kills_is_told() -> None:
    before, swapping = ({"pswpin": count, "pswpout": 0, "oom_kill": 1} for count in (10, 90_000))
    answer = examine(bundle(*four(), memory=[before, swapping]))
    assert {item.id for item in answer.report.causes if item.id.startswith("sys")} == {"sys.host-oom.swapping"}


GROUP = "/sys/fs/cgroup/job/memory.events"


@pytest.mark.parametrize(
    ("counts", "severity", "whose"),
    [
        (({GROUP: 5}, {GROUP: 6}), "fail", "killed 1 process of the job for want of memory in 3 s"),
        (({GROUP: 5}, {GROUP: 5}), "info", "killed 1 process outside the job's control groups"),
        (({GROUP: 5, "": None},) * 2, "warn", "killed 1 process, it is not known whose,"),
        (({GROUP: 5, "": None}, {GROUP: 6, "": None}), "fail", "killed 1 process of the job for want of memory in 3 s"),
        ((), "warn", "it is not known whose"),
    ],
)
def test_what_the_kernel_kills_between_the_looks_is_held_against_the_job_where_it_is_the_jobs(
    counts: tuple[Any, ...], severity: str, whose: str
) -> None:
    """As in ``watch``: other containers of the host are killed at limits of their own."""
    totals = [{"pswpin": 0, "pswpout": 0, "oom_kill": count} for count in (1, 2)]
    answer = examine(bundle(*four(), memory=totals, killed=counts))
    told = [item for item in answer.report.findings if item.id == "sys.host-oom.killed-now"]
    assert {item.severity.value for item in told} == {severity} and whose in told[0].title
    assert (answer.verdict == "held") == (severity == "fail")
    assert ("perhaps the kernel killed" in answer.sentence) == (severity == "warn")


def test_what_the_kernel_has_logged_since_the_job_started_is_quoted() -> None:
    oom, xid = (
        "Out of memory: Killed process 103 (python)",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    )
    found = first(examine(bundle(*four()[:3], kernel=(oom, xid))))
    assert found.id == "hang.rank-gone" and "the kernel has killed for want of memory" in found.title
    assert any(item.text == oom and item.source == "/dev/kmsg, 8 min ago" for item in found.evidence)
    answer = examine(bundle(*four(), kernel=(oom, xid)))
    assert {item.id for item in answer.report.causes} >= {"gpu.driver.xid.during-job", "sys.host-oom.killed"}
    young = [{**item, "age_s": 400.0} for item in four()]
    assert [item.id for item in examine(bundle(*young, kernel=(oom, xid))).report.causes] == ["hang.waiting"]


def test_an_older_process_of_the_same_rank_is_left_over_and_a_small_one_is_a_helper() -> None:
    def second(pid: int, age_s: float, resident_bytes: int) -> dict[str, Any]:
        more = {"pid": pid, "start_ticks": pid, "age_s": age_s, "connections": []}
        return {**process(1, OWN), **more, "readings": [reading(resident_bytes=resident_bytes)] * 2}

    ranks = four(r1=process(1, readings=[reading(resident_bytes=4 << 30)] * 2))
    answer = examine(bundle(*ranks, second(77, 9000.0, 3 << 30), second(78, 20.0, 50 << 20)))
    assert {item.id for item in answer.report.causes} == {"hang.waiting", "hang.leftover"}
    found = next(item for item in answer.report.causes if item.id == "hang.leftover")
    assert "rank 1 (pid 77)" in found.title and "pid 101 on gpu01" in found.title
    assert [row.pid for row in answer.ranks] == [100, 101, 102, 103]


@pytest.mark.skipif(machines.compiler_missing(), reason="no gcc: the stand-in NVML cannot be compiled")
def test_what_the_gpus_do_is_quoted_and_missed_where_it_is_not_known(tmp_path: Path) -> None:
    machine = machines.Machine(tmp_path, gpus=2, nics=0)
    for index, busy in enumerate((100, 0)):  # those of ranks 2 and 3: NCCL's kernel waits, and nothing runs
        machine.gpus[index].update({"utilization": str(busy), "processes": f"{102 + index}:1073741824"})
    asked = machine.facts(limits={"use_only": True})["gpu"]
    assert asked["outcome"] == "ok" and asked["data"]["smi"]["outcome"] == "not-run", asked
    ranks = [process(rank, OWN if rank == 3 else BARRIER, devices=["gpu"]) for rank in range(4)]
    answer = examine(bundle(*ranks, gpu=asked["data"]))
    quoted = {item.text for item in first(answer).evidence if item.source == "NVML"}
    assert len(quoted) == 1 and "GPU 1: 0 % busy, " in quoted.pop()
    assert "GPU 0: 100 % busy" in answer.ranks[2].gpus[0] and "GPU 0: 100 %" in str(
        [item.evidence for item in answer.report.findings if item.id == "hang.waiting"]
    )
    assert [gap.hosts for gap in answer.report.unknown if gap.what == "what the GPUs do"] == [("gpu01",)]


def test_all_wait_and_nobody_stands_out() -> None:
    answer = examine(bundle(*four()))
    assert answer.verdict == "stands" and int(answer.exit_code) == 12 and "4 of 4 ranks" in answer.sentence
    assert [item.id for item in answer.report.causes] == ["hang.waiting"]
    assert answer.sentence.startswith("job gpu01:29500: 4 of 4 ranks")


def test_whether_it_takes_its_steps_is_open_only_where_it_is_not_proved_that_it_stands() -> None:
    still, moving = four(r3=process(3, OWN)), four()
    moving[0]["connections"][0]["moved_bytes"] = 1 << 20
    for ranks, verdict, gaps in (
        (still, "held", set()),
        (moving, "moves", {"whether job gpu01:29500 takes its steps"}),
    ):
        answer = examine(bundle(*ranks))
        assert (answer.verdict, {gap.what for gap in answer.report.unknown}) == (verdict, gaps)


def test_where_a_stack_is_quoted_one_looks_anew_and_at_all_of_it() -> None:
    for stack, text in ((OWN, "see its whole stack, as it is now"), ([], "see where it stands")):
        away = process(3, stack, readings=[reading(waits_in="hrtimer_nanosleep")] * 2)
        fixes = first(examine(bundle(*four(r3=away)))).fixes
        assert [fix.text for fix in fixes if "py-spy dump" in fix.command] == [text]


def test_two_jobs_have_to_be_told_apart() -> None:
    other = [process(rank) for rank in range(2)]
    for item in other:
        item["environment"] = {**item["environment"], "MASTER_PORT": "29600", "WORLD_SIZE": "2"}
        item["pid"] += 100
    stopped = four(r3=process(3, readings=[reading("T")] * 2))
    answer = examine(bundle(*stopped, *other))
    assert answer.verdict == "several-jobs" and [job.id for job in answer.jobs] == ["gpu01:29500", "gpu01:29600"]
    assert first(examine(bundle(*stopped, *other, job="gpu01:29500"))).id == "hang.stopped"
    assert examine(bundle(*stopped, *other, job="gpu01:29600")).verdict == "stands"
    wrong = examine(bundle(*stopped, job="nobody:1"))
    assert wrong.verdict == "several-jobs" and "nobody:1" in wrong.sentence and len(wrong.jobs) == 1


def test_a_lone_process_under_a_scheduler_is_no_second_job() -> None:
    lone = process(0)
    lone.update(pid=7, start_ticks=7, environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "9"})
    lone["environment"]["RANK"] = "0"
    answer = examine(bundle(*four(), {**lone, "environment": {**lone["environment"], "WORLD_SIZE": "1"}}))
    assert answer.verdict == "stands" and len(answer.jobs) == 1


def test_a_worker_that_outlives_its_rank_is_not_the_rank() -> None:
    left = process(1, stack=WORKER, parent=1)
    idle = process(1, stack=IDLE_WORKER, parent=1)
    for look in idle["stacks"]:  # its data set has a thread of its own
        look["threads"].append({"id": 2, "name": "reader", "frames": frames_of(OWN)})
    for item in (left, idle):
        found = first(examine(bundle(*four(r1=item))))
        assert found.id == "hang.rank-gone" and blamed(found) == [("gpu01", 1)]


def _program(**more: Any) -> dict[str, Any]:
    """A program that is no Python, beneath torchrun."""
    found = process(0, stack=[], program="wandb-core", script="wandb-core", stacks=[None, None], **more)
    found["environment"]["TORCHELASTIC_RUN_ID"] = "none"
    return found


@pytest.mark.parametrize(("parent", "launcher"), [(1, "systemd"), (1, "tini"), (800, "systemd"), (900, "slurmstepd")])
def test_a_program_that_outlives_its_rank_is_no_job(parent: int, launcher: str) -> None:
    assert examine(bundle(_program(parent=parent, launcher=launcher))).verdict == "no-job"


@pytest.mark.parametrize(("parent", "launcher"), [(50, "torchrun"), (50, "accelerate"), (50, ""), (1, "")])
def test_a_rank_that_is_no_python_is_a_rank_where_its_starter_lives(parent: int, launcher: str) -> None:
    """Without a launcher: its parent bears a rank itself, or is the torchrun that was found, as process 1 of a container."""
    assert examine(bundle(_program(parent=parent, launcher=launcher))).jobs


def test_no_job_says_whether_it_may_only_not_be_seen() -> None:
    assert "RANK" in examine(bundle()).sentence
    assert "may read" in examine(bundle(uid=1000)).sentence
    assert examine(bundle()).verdict == "no-job" and int(examine(bundle()).exit_code) == 3
    spawned = examine(bundle(unnumbered=2))
    assert spawned.verdict == "not-known" and "4 that multiprocessing started may be ranks" in spawned.sentence
    unseen = examine(bundle(refused={"count": 8}))
    assert unseen.verdict == "not-known" and int(unseen.exit_code) == 4 and "may not be read" in unseen.sentence


def test_where_the_processes_were_not_read_that_is_said() -> None:
    told = bundle()
    unread = {"job": ProbeResult(Outcome.TIMED_OUT, None, "did not answer")}
    hosts = (told.hosts[0], msgspec.structs.replace(told.hosts[1], probes=unread))
    answer = examine(msgspec.structs.replace(told, hosts=hosts))
    assert answer.verdict == "not-known" and int(answer.exit_code) == 4
    assert answer.sentence == "no rank was found, and the processes of gpu02 were not read"


def test_only_hosts_with_ranks_are_asked_for_their_kernel_log() -> None:
    told = bundle()
    told = msgspec.structs.replace(
        told, hosts=tuple(msgspec.structs.replace(host, probes={"job": host.probes["job"]}) for host in told.hosts)
    )
    assert not examine(told).report.unknown


def test_one_machine_under_two_names_is_counted_once() -> None:
    ranks = four(r3=process(3, readings=[reading("T")] * 2))
    data = {"interval_s": 3.0, "processes": ranks}
    here = {"job": ProbeResult(Outcome.OK, {**data, "namespace": "net:[1]"})}
    for item in ranks:
        item["namespace"] = "net:[1]"
    hosts = tuple(HostFacts(name, Reach(ReachOutcome.OK), here) for name in ("alias", "real"))
    answer = examine(Bundle(1, "test", "", Plan(stages=(JOB,)), hosts))
    assert answer.jobs[0].found == 4 and first(answer).hosts == ("alias",)


def test_every_id_has_a_playbook() -> None:
    assert len(DECLARED) > 15 and all(for_finding(id) for id in DECLARED)


def test_a_saved_bundle_is_judged_again_on_the_console_and_as_json(tmp_path: Path) -> None:
    saved = tmp_path / "hang.ndb"
    bundles.write(bundle(*four(r2=process(2, readings=[reading("T")] * 2))), saved)
    told = CliRunner().invoke(cli.app, ["hang", "--from", str(saved)])
    assert told.exit_code == 11 and told.output.startswith("✗ HELD: gpu02: rank 2 (pid 102) is stopped")
    assert "kill -CONT 102" in told.output and "└ explains 1 more: hang.waiting" in told.output
    document = json.loads(CliRunner().invoke(cli.app, ["hang", "--from", str(saved), "--format", "json"]).stdout)
    assert document["verdict"] == "held" and document["exit_code"] == 11
    assert document["ranks"][2] == {
        "rank": 2, "host": "gpu02", "pid": 102, "local_rank": 0, "state": "T", "doing": "stopped",
        "where": "train (train.py:37)", "stays": True, "cpu_s": 0.0,
    }  # fmt: skip


def test_of_a_job_that_moves_it_is_told_what_to_ask_next(tmp_path: Path) -> None:
    ranks = four()
    ranks[0]["connections"][0].update(moved_bytes=4 << 20)
    bundles.write(bundle(*ranks), tmp_path / "hang.ndb")
    told = CliRunner().invoke(cli.app, ["hang", "--from", str(tmp_path / "hang.ndb")])
    assert told.exit_code == 4 and "if it is only slow: nccl-doctor watch tells which host lags" in told.output


def test_a_digit_that_is_no_decimal_number_numbers_no_rank() -> None:
    process = Process(7, 1, "rank", environment={"LOCAL_RANK": "\u00b2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert rank_variables.local_rank(process) == 1
