"""Cause before consequence: how candidates are weighed, and what is said when they do not decide."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from nccl_doctor import explain
from nccl_doctor.env import versions
from nccl_doctor.explain import blame, candidates, topics, trouble
from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate
from nccl_doctor.explain.lines import ending, shortened
from nccl_doctor.explain.model import Hit, LogSource, Role, Verdict
from nccl_doctor.explain.ranking import EXPLAINS, LATE
from nccl_doctor.explain.signatures import all_signatures
from nccl_doctor.explain.slowdown import communication_share
from nccl_doctor.explain.summary import Summary
from nccl_doctor.explain.topics import TOPICS
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.report import explanation
from nccl_doctor.report.explanation_text import print_explanation
from tests.unit.explained import explain_text

SHARED = Path(os.environ.get("NCCL_DOCTOR_SHARED", Path(__file__).parents[3].parent / "shared"))
STEPS = "".join(f"step {number} loss 2.1\n" for number in range(9))
# Reached on the visible corpus; a change that falls below is a loss.
FLOOR = {"top1": 0.98, "top3": 0.98, "evidence": 0.95}


def test_every_signature_says_what_it_proves() -> None:
    for signature in all_signatures().values():
        assert len(signature.why) > 20 or signature.role is Role.FACT, signature.name
        if signature.role is Role.CAUSE:
            assert signature.title, signature.name


_ASKED = re.compile(r"\b(?:case|self|course|_?logs)\.(?:hits|has|first|last|count|overcome)\(((?:\s*\"[^\"]+\",?)+)")


def test_rules_ask_for_signatures_that_exist() -> None:
    asked = {
        name
        for file in Path(explain.__file__).parent.rglob("*.py")
        for names in _ASKED.findall(file.read_text(encoding="utf-8"))
        for name in re.findall(r"[\w-]+", names)
    }
    known = {name + end for name, signature in all_signatures().items() for end in ("", "-rows" * bool(signature.rows))}
    assert len(asked) > 100
    assert asked - known == set()


def test_lists_of_signatures_name_only_signatures_that_exist() -> None:
    known = {name + end for name, signature in all_signatures().items() for end in ("", "-rows" * bool(signature.rows))}
    unknown = []
    for file in Path(explain.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple):
                names = {item.value for item in node.elts if isinstance(item, ast.Constant)}
                if len(names & known) > max(1, len(names - known)):
                    unknown += [(file.name, name) for name in names - known]
    assert unknown == []


def test_every_fact_is_asked_for() -> None:
    """A fact proves nothing alone: one that no rule asks for costs time in every log."""
    source = "".join(file.read_text(encoding="utf-8") for file in Path(explain.__file__).parent.rglob("*.py"))
    facts = [name for name, signature in all_signatures().items() if signature.role is Role.FACT]
    assert [name for name in facts if len(re.findall(rf'"{name}(?:-rows)?"', source)) < 2] == []


_FILLED = {"": "\x00 \x01", "int": "7", "num": "7", "hex": "7", "word": "7"}


def test_no_wording_is_held_by_another_one_of_its_signature() -> None:
    """It would recognise nothing more, and each is looked for in every line."""
    needless = []
    for signature in all_signatures().values():
        lines = [
            re.sub(r"\{[a-z_]*:?(\w*)\}", lambda hole: _FILLED[hole[1]], wording.text)
            for wording in signature.templates
        ]
        for index, (wording, line) in enumerate(zip(signature.templates, lines, strict=True)):
            told = wording.match(line)
            assert told is not None, wording.text
            others = [other for at, other in enumerate(signature.templates) if at != index]
            needless += [(signature.name, wording.text) for other in others if other.match(line) == told]
            earlier = signature.templates[:index] if signature.where is None else ()
            needless += [(signature.name, wording.text) for other in earlier if other.match(line) is not None]
    assert needless == []


_DESYNC = (
    "[rank0] - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
    "   - [3] finished collective #12, but didn't join collective #13 (count from 1)\n"
)


def test_a_return_trail_after_which_the_same_thread_goes_on_is_no_sign_of_a_failure() -> None:
    trail = "n1:81:90 [0] NCCL INFO NET/OFI No NIC info for dev 0\nn1:81:90 [0] NCCL INFO include/net.h:24 -> 2\n"
    goes_on = "n1:81:90 [0] NCCL INFO Channel 00 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0\n"
    assert "sys.shm" in [cause.id for cause in explain_text(trail).causes]
    assert "sys.shm" not in [cause.id for cause in explain_text(trail + goes_on).causes]
    assert "sys.shm" in [cause.id for cause in explain_text(trail + goes_on.replace(":90", ":91")).causes]


def test_a_cause_gives_the_reason_of_the_rule_that_found_it() -> None:
    found = explain_text(_DESYNC).causes
    assert [cause.id for cause in found[:2]] == ["app.collective-mismatch", "app.straggler-timeout"]
    assert all(cause.why.startswith("torch's desync report") for cause in found[:2])
    assert not any("\n" in cause.why or "  " in cause.why for cause in found)
    slingshot = (
        "NET/OFI Request 0x7f1472751317 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0\n"
    )
    assert not any("EFA" in cause.why for cause in explain_text(slingshot).causes)


def test_a_good_word_does_not_decide_between_two_likely_causes() -> None:
    assert explain_text(_DESYNC).verdict is Verdict.UNDECIDED  # "finished" is no end of the run


def test_paths_in_a_traceback_are_no_subject_behind_a_loggers_prefix_either() -> None:
    prefix = "(Core pid=71) ERROR 09-01 11:00:02 [core.py:700] "
    log = (
        f'{prefix}  File "/opt/v/distributed/device_communicators/base.py", line 88, in __init__\n'
        f'{prefix}  File "/opt/v/distributed/device_communicators/wrapper.py", line 271, in check\n'
        f"{prefix}RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
    )
    assert explain_text(log).causes[0].id.startswith("gpu.")


def test_a_line_has_to_match_a_signatures_pattern_as_well_which_gives_its_groups() -> None:
    signature = all_signatures()["kswapd"]
    top = "  211 root      20   0       0      0      0 {state}  98.7   0.0  12:41.02 kswapd1"
    assert signature.match(top.format(state="R")) == {"node": "1", "percent": "98.7"}
    assert signature.match(top.format(state="?")) is None


def test_a_title_shows_no_holes() -> None:
    log = "Ncat: Connected to 10.40.0.1:29400.\n$ curl m:29500\ncurl: (28) Failed to connect\nNo active IB port\n"
    titles = [cause.title for cause in explain_text(log).causes]
    assert titles and not any("{" in title for title in titles), titles


def test_every_cause_has_a_playbook() -> None:
    causes = {signature.cause for signature in all_signatures().values() if signature.cause} | set(TOPICS) | set(LATE)
    for other in EXPLAINS.items():
        causes |= {other[0], *other[1]}
    assert [cause for cause in sorted(causes) if not playbooks.for_finding(cause)] == []


def test_torchruns_root_cause_is_not_believed() -> None:
    got = explain_text(
        "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/j/d.py\", line 5, in load\n[rank2]: KeyError: 'k'\n"
        "[rank0]:[E1103 04:10:11.1 P.cpp:1] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 ms\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 4)\n"
    )
    assert got.causes[0].id == "app.rank-exception"
    assert got.causes[0].ranks == (2,)
    assert "/j/d.py:5" in got.causes[0].title
    assert {"watchdog time-out"} <= {item.text for item in got.consequences}


def test_a_cause_printed_after_its_effects_still_wins() -> None:
    got = explain_text(
        "n1:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n2<5>\n"
        "kernel: Out of memory: Killed process 77 (python) total-vm:1kB\n"
    )
    assert got.causes[0].id == "sys.host-oom"


def test_undecided_gives_candidates_and_a_next_step() -> None:
    got = explain_text("[rank1]:[E1103 04:10:11.1 P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: x\n")
    assert got.verdict is Verdict.UNDECIDED
    assert got.causes
    assert any("NCCL_DEBUG=INFO" in step or "TORCH_FR_BUFFER_SIZE" in step for step in got.next)


def test_a_first_collective_that_ends_nowhere_is_tried_without_the_suspect() -> None:
    work = "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 ms"
    waits = "".join(f"[Rank {rank}] Watchdog caught collective operation timeout: {work}\n" for rank in range(2))
    got = explain_text(waits)
    assert got.verdict is Verdict.UNDECIDED
    assert got.next[0] == "run once with NCCL_P2P_DISABLE=1: if that works, it is this"
    many = "".join(waits.replace("[Rank 1]", f"[Rank {rank}]") for rank in range(1, 18))
    assert explain_text(many).causes[0].id == "net.firewall"  # so many GPUs are those of several hosts
    later = explain_text(waits.replace("SeqNum=1,", "SeqNum=90,"))
    assert later.causes[0].id == "app.straggler-timeout"


def test_a_command_with_a_time_limit_of_its_own_was_stopped_because_it_hung() -> None:
    command = "$ timeout -k 5 300 torchrun --nproc_per_node 2 check.py\n"
    signal = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4401 got signal: 15\n"
    assert explain_text(command + signal).verdict is Verdict.UNDECIDED
    assert explain_text(signal + "run 3: rc 124\n").verdict is Verdict.UNDECIDED
    scheduler = "slurmstepd: error: *** JOB 81 ON n1 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    assert explain_text(command + scheduler).causes[0].id == "launch.killed"
    assert explain_text("store timeout 300 s\n" + signal).causes[0].id == "launch.killed"
    assert explain_text(command + STEPS + signal).causes[0].id == "launch.killed"


def test_who_came_too_late_is_told_where_the_order_is_known() -> None:
    gave_up = "torch.distributed.DistStoreError: Timed out after 46 seconds waiting for clients. 1/2 clients joined.\n"
    tried = "[c10d] The client socket has timed out after 45000ms while trying to connect to (127.0.0.1, 29500).\n"
    together = explain_text(gave_up + tried)
    assert together.causes[0].title.startswith("1 of 2 ranks had come when rank 0 gave up")
    apart = analyse([LogSource("rank0.log", gave_up), LogSource("rank1.log", "starting\n" * 9 + tried)])
    assert not any("came later" in item.title for item in apart.causes)


def test_lines_that_differ_in_a_number_that_words_ask_for_are_both_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = [Hit("words", "log", number, text) for number, text in enumerate(["it met signal 9", "it met signal 15"])]
    monkeypatch.setattr(trouble, "lines", lambda case: hits)
    assert dict(trouble.vote(Case(Summary()))) == {"sys.host-oom": [hits[0]], "launch.killed": [hits[1]]}


def test_who_speaks_is_named_after_what_is_wrong() -> None:
    got = explain_text("nixl frob 77: ERROR ECONNRESET\n")
    assert [cause.id for cause in got.causes][:2] == ["net.peer-lost", "net.plugin"]


def test_the_level_of_a_line_is_no_infinite_number() -> None:
    line = "{} frobd.2 failed, marked out"
    assert topics.named(line.format("[INF]")) == topics.named(line.format("[WRN]"))
    assert "app.nan-or-data" in topics.named("step 7 failed: the loss is inf")[0]


def test_a_disk_of_the_host_is_no_shared_file_system() -> None:
    lost = explain_text("[118.9] nvme nvme1: Removing after probe failure status: -19\n").causes[0]
    assert lost.playbook == "sys.clock-or-dns-or-fs.disk"
    served = explain_text("[118.9] nfs: server data1 not responding, still trying\n").causes[0]
    assert served.playbook == "sys.clock-or-dns-or-fs"
    assert not explain_text(
        "cluster [INF] Health check cleared: SLOW_OPS (was: 2 slow ops, oldest one blocked for 9 sec)\n"
    ).causes


def test_words_do_not_lift_a_cause_over_a_verdict() -> None:
    told = Candidate("net.plugin", 0.49, "told", [Hit("told", "log", 1, "it failed")])
    words = Candidate("net.plugin", 0.36, "words", [Hit("error-line", "log", 2, "ucx")], vague=True)
    assert [item.strength for item in candidates._join([told, words])] == [0.49]


def test_an_exception_about_what_is_beneath_the_program_is_not_called_unrelated() -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/job/t.py", line 8, in <module>\n    frob()\nRuntimeError: frob: '
    )
    got = explain_text(f"{raised}Resource temporarily unavailable\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "sys.threads")
    assert explain_text(f"{raised}no frob of that kind\n").verdict is Verdict.NOT_DISTRIBUTED
    asked = explain_text(f"{raised}couldn't connect to the hub: Connection refused\n")
    assert asked.verdict is Verdict.NOT_DISTRIBUTED  # the program's own, as it is known by its words


def test_ray_trains_list_of_workers_gives_the_ranks() -> None:
    lost = (
        "(RayTrainWorker pid=812) RuntimeError: [/src/gloo/gloo/transport/tcp/pair.cc:537] Connection reset by peer\n"
    )
    told = "(TrainController pid=1) - (ip=10.0.0.2, pid=812) world_rank=5, local_rank=1, node_rank=0\n"
    assert explain_text(told + lost).causes[0].ranks == (5,)
    twice = "(TrainController pid=1) - (ip=10.0.0.3, pid=812) world_rank=9, local_rank=1, node_rank=1\n"
    assert explain_text(told + twice + lost).causes[0].ranks == ()


def test_a_job_over_gloo_is_not_asked_for_lines_of_nccl() -> None:
    got = explain_text(
        "[rank0]: RuntimeError: [/src/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 45000ms for recv"
        " operation to complete\n"
    )
    assert got.verdict is Verdict.UNDECIDED
    assert got.next
    assert not any("NCCL_DEBUG" in step for step in got.next)


def test_the_device_named_by_the_proof_is_in_sentence_and_command() -> None:
    port = explain_text(
        "n7:12:90 [3] transport/net_ib.cc:107 NCCL WARN NET/IB : mlx5_4:1 Got async event : port error\n"
    )
    assert port.sentence.endswith("(mlx5_4)")
    assert port.causes[0].fixes[0].command == "sudo mlxlink -d mlx5_4 -m"
    gpu = explain_text("n7 kernel: NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.\n")
    assert "(0000:c1:00)" in gpu.sentence
    assert "--gpu-reset -i 0000:c1:00.0" in gpu.causes[0].fixes[0].text


def test_commands_name_the_host_to_blame() -> None:
    lost = explain_text("srun: error: Node failure on nid005431\nsrun: Job step aborted: Waiting up to 32 seconds\n")
    assert "`--exclude=nid005431`" in lost.causes[0].fixes[0].text
    assert lost.next == ("nccl-doctor check --stage system -H nid005431",)
    many = "".join(f"srun: error: Node failure on nid{at:06}\n" for at in range(6))
    assert explain_text(many).next == ("nccl-doctor check --stage system --hosts HOSTFILE",)


def test_no_log_writes_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "who", lambda *_: (set(), {"$(reboot)"}))
    lost = explain_text("srun: error: Node failure on nid005431\n")
    assert lost.causes[0].hosts == ("$(reboot)",)
    assert "reboot" not in " ".join((*lost.next, lost.causes[0].fixes[0].text))


def test_an_undecided_report_says_first_what_would_decide_and_repairs_nothing() -> None:
    found = explain_text(
        "w1:9:90 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer w4<4400>\n"
    )
    assert found.verdict is Verdict.UNDECIDED
    assert found.next[0].startswith("collect the log and the kernel log (dmesg -T) of w4:")
    out = io.StringIO()
    print_explanation(found, Console(file=out, width=160))
    text = out.getvalue()
    assert "fix now" not in text and "environment" not in text
    assert 0 < text.index("next ") < text.index("net.peer-lost   ")
    out = io.StringIO()  # nor does it leave a gap where nothing would
    print_explanation(msgspec.structs.replace(found, next=()), Console(file=out, width=160))
    assert "next " not in out.getvalue() and "\n\n\n" not in out.getvalue()


def test_an_empty_log_is_not_healthy() -> None:
    assert explain_text("").verdict is Verdict.UNDECIDED
    assert explain_text("hello\nworld\n").verdict is Verdict.UNDECIDED


def test_programs_that_only_exit_are_not_proved_healthy() -> None:
    said = "ProcessGroupNCCL.cpp:1476] Warning: WARNING: destroy_process_group() was not called before program exit"
    got = explain_text("\n".join(f"[rank{rank}]:[W204 10:11:12.000000000 {said}" for rank in range(2)))
    assert got.verdict is Verdict.UNDECIDED


def test_harmless_lines_come_with_their_condition() -> None:
    got = explain_text("NET/Plugin: Could not find: libnccl-net.so.\nstep 1 loss 2\nTraining finished\n")
    assert got.verdict is Verdict.HEALTHY
    assert any("libnccl-net.so" in note and "EFA" in note for note in got.notes) and got.overcome == ()


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("[W reducer.cpp:320] Warning: Grad strides do not match bucket view strides.", "layout in memory"),
        ("The current process just got forked, after parallelism has already been used.", "forked process"),
        (
            "WARNING: failed to open IMEX log file /var/log/nvidia-imex.log errno = No such file or directory",
            "standard",
        ),
        (
            "EDAC MC1: 1 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)",
            "announce its failure",
        ),
        ("nvidia 0000:18:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer", "nothing was lost"),
        ("ERROR [9596:9598] [[SysMon]] Couldn't open CPU Vendor info file file '/sys/devices/soc0/soc_id'", "sysmon"),
    ],
)
def test_a_paste_of_nothing_but_harmless_lines_is_told_what_they_mean(line: str, meaning: str) -> None:
    got = explain_text(f"{line}\n")
    assert got.verdict is Verdict.UNDECIDED and got.sentence.endswith("known to be harmless")
    told = io.StringIO()
    print_explanation(got, Console(file=told, width=200))
    assert meaning in told.getvalue()


def test_a_bar_that_is_drawn_but_stands_at_zero_is_no_step() -> None:
    bar = "r0 Training Epoch:   0%|          | 0/188 [00:00<?, ?it/s]"
    got = explain_text(f"{bar}\nnode1:3183:3183 [0] NCCL INFO Bootstrap : Using eno1:10.2.1.19<0>\n")
    assert got.verdict is Verdict.UNDECIDED and any("nccl-doctor hang" in step for step in got.next)
    assert (
        explain_text(f"{bar.replace('0/188 [00:00<?, ?it/s]', '1/188 [00:12<38:02, 12.2s/it]')}\n").verdict
        is Verdict.HEALTHY
    )


def test_slurm_tells_why_it_created_no_step() -> None:
    got = explain_text("srun: error: Unable to create step for job 29: Invalid generic resource (gres) specification\n")
    assert got.causes[0].title.endswith(": Invalid generic resource (gres) specification")


def test_links_of_gpus_that_dcgm_shows_down() -> None:
    table = "|  NvLink Link Status  |\nGPUs:\n    gpuId 0:\n        {}\nNvSwitches:\n    physicalId 8:\n        D X\n"
    assert explain_text(table.format("U D")).causes[0].title == "NVLinks of GPU 0 are down"
    assert (
        explain_text(table.format("U D")).causes[0].confidence > explain_text(table.format("D D")).causes[0].confidence
    )
    assert not explain_text(table.format("U X")).causes  # the ports of a switch are not all used


def test_a_connection_that_nccl_gave_up_does_not_hang() -> None:
    channel = "node1:919:1150 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0"
    failed = "node1:922:1158 [3] proxy.cc:1485 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=2"
    assert "gave up" in explain_text(f"{channel}\n{failed}, closing connection\n").causes[0].title


def test_several_ranks_are_asked_for_in_the_plural() -> None:
    table = "\n".join(f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: 49{rank})" for rank in (1, 2))
    got = explain_text(f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n{table}\n")
    assert any("logs of ranks 1-2" in step for step in got.next)


def test_a_closed_terminal_is_named() -> None:
    for line in ("Received 1 death signal, shutting down workers", "Sending process 411 closing signal SIGHUP"):
        assert "terminal" in explain_text(f"torch.distributed.elastic.agent.server.api: {line}\n").causes[0].title


def test_the_launchers_own_cut_traceback_is_no_workers() -> None:
    exited = "multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: python"
    launcher = ["Traceback (most recent call last):", '  File "/opt/venv/bin/torchrun", line 8, in <module>']
    worker = ["Traceback (most recent call last):", '  File "/srv/train.py", line 8, in <module>']
    titles = {}
    for name, lines in (("launcher", launcher), ("worker", worker)):
        got = explain_text("\n".join([exited, *lines, "    sys.exit(main())"]))
        titles[name] = got.causes[0].title
    assert titles["launcher"] == "a worker ended with exit code 1; what it said is not in these logs"
    assert "cut" in titles["worker"]


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        (
            "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.",
            "rank 1 ended with exit code 1; what it said is not in these logs",
        ),
        (
            "The replica workerpool1-1 exited with a non-zero status of 1. Termination reason: Error.",
            "a worker ended with exit code 1; what it said is not in these logs",
        ),
        ("ERROR:composer.cli.launcher:Rank 0 crashed with exit code -11.", "a process crashed in native code"),
        (
            "Failed to retrieve preemption notice from coordination service: UNAVAILABLE: Socket closed",
            "task 0 of the JAX job, which coordinates the others, has ended or is not reached",
        ),
    ],
)
def test_what_a_launcher_or_a_peer_reports_is_no_ranks_own_word(line: str, ending: str) -> None:
    got = explain_text(f"start to train\n{line}\n")
    assert got.verdict is Verdict.UNDECIDED and got.sentence.endswith(ending), got.sentence


def test_where_results_will_be_saved_is_no_work() -> None:
    timeout = "[E ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=BROADCAST"
    said = "[INFO] trainer: the checkpoints will be saved in /data/run-7\n"
    assert explain_text(said + timeout + "\n").verdict is Verdict.UNDECIDED
    assert (
        explain_text(said.replace("will be saved", "are being saved") + timeout + "\n").verdict is not Verdict.UNDECIDED
    )


def test_harmless_lines_are_cut_between_words() -> None:
    line = (
        "NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin symbols " + "unsupported " * 20
    )
    (note,) = explain_text(f"{line}\nstep 1 loss 2\nTraining finished\n").notes
    assert " unsupported … | No external network plugin" in note


def test_a_fault_that_the_work_got_over_is_not_called_harmless() -> None:
    steps = [f"step {number}/60 loss 2.{90 - number}" for number in range(1, 61)]
    fault = "node1:7:9 [0] NCCL WARN NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)"
    got = explain_text("\n".join([*steps[:20], fault, *steps[20:], "Training finished"]))
    assert got.verdict is Verdict.HEALTHY and got.notes == ()
    (told,) = got.overcome
    assert "mlx5_1:1" in told and "port failed while the job ran" in told


@pytest.mark.parametrize(
    ("wanted", "version", "holds"),
    [
        ("<2.23", (2, 22, 3), True),
        ("<2.23", (2, 23, 4), False),
        (">=2.21", (2, 21, 5), True),
        (">=2.18 <2.27", (2, 27, 5), False),
        ("any", (2, 4), True),
        (">=2.5", None, True),
    ],
)
def test_version_ranges(wanted: str, version: tuple[int, ...] | None, holds: bool) -> None:
    assert versions.in_range(wanted, version) is holds


def test_no_variable_is_advised_that_is_already_the_default() -> None:
    line = "a:1:2 [0] x.cc:1 NCCL WARN NET/IB : Got completion from peer 1.2.3.4<5> with error 12, opcode 0, len 0, vendor err 129\n"
    old = explain_text("NCCL version 2.21.5+cuda12.4\n" + line).causes[0]
    new = explain_text("NCCL version 2.27.5+cuda12.9\n" + line).causes[0]
    assert old.id == new.id == "ib.retry-exceeded"
    assert "NCCL_IB_TIMEOUT" in {entry.name for entry in old.env}
    assert "NCCL_IB_TIMEOUT" not in {entry.name for entry in new.env}


def test_no_variable_of_nccl_is_advised_for_what_another_library_sent() -> None:
    ucx = "[n1:7:0:7] ib_mlx5_log.c:171  Local protection on mlx5_3:1/IB (synd 0x4 vend 0x56 hw_synd 0/0)\n"
    alone = explain_text(ucx).causes[0]
    beside = explain_text("n1:7:8 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" + ucx).causes[0]
    assert alone.id == beside.id == "ib.gdr"
    assert not alone.env
    assert "NCCL_NET_GDR_LEVEL" in {entry.name for entry in beside.env}


def _run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "explain", *arguments],
        input=stdin,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_command_reads_standard_input_and_returns_the_published_codes(tmp_path: Path) -> None:
    done = _run("--format", "json", "-", stdin=b"[rank0]: KeyError: 'LOCAL_RANK'\n")
    document = json.loads(done.stdout)
    assert done.returncode == ExitCode.FINDINGS
    assert document["causes"][0]["id"] == "launch.env-missing"
    assert document["causes"][0]["evidence"][0] | {"file": "stdin", "line": 1} == document["causes"][0]["evidence"][0]
    (tmp_path / "x.log").write_text("Watchdog caught collective operation timeout\n")
    assert _run(str(tmp_path / "x.log")).returncode == ExitCode.UNDECIDED
    assert _run(str(tmp_path / "absent")).returncode == ExitCode.NOTHING_CHECKED


def test_corpus_floor() -> None:
    """The labelled corpus, where it is at hand: no fall below what was reached."""
    corpus = SHARED / "corpus" / "explain"
    if not corpus.is_dir():
        pytest.skip(f"no labelled corpus at {corpus}")
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    import explain_accuracy

    score = explain_accuracy.run(corpus)
    assert score.false_alarms == 0, score.wrong
    assert score.top1 >= FLOOR["top1"] * score.cases, score.wrong
    assert score.top3 >= FLOOR["top3"] * score.cases, score.wrong
    assert score.evidence >= FLOOR["evidence"] * score.cases, score.wrong


def test_a_command_missing_on_one_host_is_that_hosts_rendezvous() -> None:
    lines = [
        "n1: I0812 17:00:03.2 4003 torch/distributed/elastic/agent/server/api.py:677] [default] Rendezvous'ing worker group",
        "n2: bash: torchrun: command not found",
        "n1: torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ]
    best = explain_text("\n".join(lines)).causes[0]
    assert (best.id, best.hosts) == ("launch.world-size", ("n2",))
    assert "command not found" in best.evidence[0].text
    # On every host it is no matter of the job's hosts.
    everywhere = explain_text("\n".join(line.replace("n2", "n1") for line in lines))
    assert everywhere.causes[0].id == "unrelated"


_TABLE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-03_04:10:14
  host      : gpu-2-1
  rank      : 16 (local_rank: 0)
  exitcode  : -6 (pid: 90)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 90
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-03_04:10:12
  host      : gpu-2-1
  rank      : 17 (local_rank: 1)
  exitcode  : -9 (pid: 91)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 91
"""


def test_the_host_of_a_rank_in_torchruns_table_is_named() -> None:
    told = explain_text(_TABLE)
    assert (told.causes[0].ranks, told.causes[0].hosts) == ((17,), ("gpu-2-1",))
    assert told.sentence.startswith("rank 17 (gpu-2-1): ")


def test_a_host_is_the_one_just_above_the_rank() -> None:
    other = _TABLE.replace("gpu-2-1\n  rank      : 16", "gpu-1-1\n  rank      : 16")
    assert explain_text(other).causes[0].hosts == ("gpu-2-1",)
    # Said of two hosts, as by agents before and after a restart: unknown. Without one: unknown.
    moved = _TABLE + _TABLE.replace("gpu-2-1", "gpu-3-1").replace("pid: 91", "pid: 95").replace("PID 91", "PID 95")
    assert explain_text(moved).causes[0].hosts == ()
    assert explain_text(_TABLE.replace("  host      : gpu-2-1\n", "")).causes[0].hosts == ()


def test_the_host_before_a_ranks_own_lines_is_named() -> None:
    lines = ["n7: [rank3]: step 12 loss 1.0"] + [f"n8: [rank{rank}]: step 12 loss 1.0" for rank in range(4, 8)]
    lines += [
        "n7: [rank3]: Traceback (most recent call last):",
        'n7: [rank3]:   File "/srv/train.py", line 40, in step',
        "n7: [rank3]:     raise ValueError(shard)",
        "n7: [rank3]: ValueError: shard 7 is empty",
    ]
    told = explain_text("\n".join(lines))
    assert told.causes[0].hosts == ("n7",)
    assert told.sentence.startswith("n7: rank 3 raised ValueError")


_LOOKED_UP = (
    "[W s.cpp:9] [c10d] The IPv6 network addresses of ({name}, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
    "[W s.cpp:9] [c10d] The IPv4 network addresses of ({name}, 29500) cannot be retrieved (gai error: -2 - Name or service not known).\n"
    "[E socket.cpp:1011] [c10d] The client socket has timed out after 300000ms while trying to connect to ({name}, 29500).\n"
)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trainer-head", "the host name trainer-head does not resolve"),
        ("root@10.0.0.4", "'root@10.0.0.4' is not a host name"),
        ("http://head", "'http://head' is not a host name"),
        ("10.0.0.4:29500", "'10.0.0.4:29500' is not a host name"),
        ("head.example.org.", "the host name head.example.org. does not resolve"),
    ],
)
def test_the_name_that_does_not_resolve_is_named(name: str, told: str) -> None:
    best = explain_text(_LOOKED_UP.format(name=name)).causes[0]
    assert best.id == "net.hostname-resolution"
    assert told in best.title
    assert "IPv4" in best.evidence[0].text


def test_only_ipv6_looked_up_in_vain_proves_less() -> None:
    """The rest may have been cut away; that some address was tried says that there was one."""
    lines = _LOOKED_UP.format(name="head").splitlines()
    assert explain_text(f"{lines[0]}\n{lines[2]}\n").causes[0].id == "net.hostname-resolution"
    tried = "[W socket.cpp:752] [c10d] The client socket has failed to connect to [10.0.0.9]:29500 (errno: 110 - Connection timed out)."
    assert explain_text(f"{lines[0]}\n{tried}\n{lines[2]}\n").causes[0].id == "net.master-unreachable"


def test_both_lookups_can_be_told_in_one_line() -> None:
    of = "network addresses of (head, 23456) cannot be retrieved (gai error: -2 - Name or service not known)."
    line = f"RuntimeError: The client socket has failed to connect to any network address of (head, 23456). The IPv6 {of} The IPv4 {of}\n"
    best = explain_text(line).causes[0]
    assert best.id == "net.hostname-resolution" and best.confidence > 0.9


def test_an_error_by_its_level_is_quoted_before_lines_chosen_by_words() -> None:
    got = explain_text(
        "W0312 18:21:07.705002       1 nic_scan.cc:140] could not read the libfabric version file, not found\n"
        "E0312 18:21:07.709226       1 nic_main.cc:88] libfabric provider rejected by policy\n"
    )
    assert got.causes[0].evidence[0].text.startswith("E0312")


def test_a_message_that_begins_below_the_name_of_its_exception_is_told() -> None:
    frames = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n    main()\n'
    assert (
        "raised RuntimeError: 4 is not 8" in explain_text(f"{frames}RuntimeError: \n    4 is not 8\n").causes[0].title
    )
    assert "raised AssertionError at" in explain_text(f"{frames}AssertionError\n").causes[0].title


def test_who_raised_is_told_as_torchrun_tells_it() -> None:
    """Its number is that on the node, which no rank is; where more than one raised alike, it is the program."""
    raised = "[default{0}]:Traceback (most recent call last):\n[default{0}]:KeyError: 'dgo'\n"
    lost = "[default0]:RuntimeError: Connection closed by peer [10.0.0.3]:20384\n"
    assert explain_text(raised.format(3) + lost).causes[0].title.startswith("local rank 3 raised KeyError")
    assert explain_text(raised.format(3) + raised.format(1) + lost).causes[0].title.startswith("the program raised")


def test_titles_are_cut_between_words_and_begin_with_the_message() -> None:
    text = "libfabric:17770:1732779731::core:core:some_function_init():189<warn> the endpoint cannot be enabled as its queue is missing"
    assert ending(text, 110).startswith("… the endpoint")
    assert ending("2024-05-01 10:00:00 [rank3]: all went wrong", 110) == "all went wrong"
    assert shortened("one two three", 9) == "one two …"


_OVER_IB = "\n".join(
    [
        "n1:5:9 [0] NCCL INFO NCCL_SHM_DISABLE set by environment to 1.",
        "n1:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>",
        "n1:5:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "n1:5:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
        "n1:5:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init COMPLETE",
        *(f"step {number}/40 loss 2.{90 - number}" for number in range(1, 41)),
        "Training finished",
    ]
)


def test_what_cost_speed_is_worth_knowing_and_no_failure() -> None:
    got = explain_text(_OVER_IB)
    assert got.verdict is Verdict.HEALTHY
    off, variable = got.worth_knowing
    assert off.playbook == "ib.gdr" and "Disabled for HCA 0" in off.evidence.text
    assert variable.text.startswith("NCCL_SHM_DISABLE=1: ") and variable.evidence.line == 1
    assert playbooks.load(variable.playbook).title
    stream = io.StringIO()
    print_explanation(got, Console(file=stream, width=300))
    assert "worth knowing" in stream.getvalue() and "nccl-doctor playbook ib.gdr" in stream.getvalue()
    assert f"{off.evidence.source}:3  {off.evidence.text}" in stream.getvalue()
    told = json.loads(explanation.to_json(got))["worth_knowing"]
    assert [item["playbook"] for item in told] == [off.playbook, variable.playbook] and told[0]["evidence"]["line"] == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[send] via NET/IB/0", "[send] via NET/IB/0/GDRDMA"),  # another adapter has it
        ("[send] via NET/IB/0", "[send] via P2P/CUMEM"),  # nothing goes between hosts
    ],
)
def test_gpudirect_costs_nothing_where_it_is_used_or_not_needed(old: str, new: str) -> None:
    assert all(item.playbook != "ib.gdr" for item in explain_text(_OVER_IB.replace(old, new)).worth_knowing)


def test_a_cause_is_not_told_again_as_worth_knowing() -> None:
    slow = _OVER_IB + "\nWARNING: all_reduce is far slower than expected: 2.1 GB/s, expected 45 GB/s\n"
    got = explain_text(slow)
    assert got.causes[0].id == "ib.gdr" and [item.playbook for item in got.worth_knowing] == [
        "env.bad-nccl-var.leftover-debugging"
    ]
    assert not got.causes[0].env  # switching off what is off is no advice


_STALL = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks "
    "and are waiting for remainder of ranks"
)


def test_horovods_missing_ranks_are_named() -> None:
    got = explain_text(
        f"{_STALL} for more than 60 seconds.\nMissing ranks:\n"
        + "".join(f"{rank}: [grads_14_0, grads_15_0 ...]\n" for rank in range(5, 20))
        + "0: waits\n3: [2024-03-03 10:11:12] INFO waits\n"  # as srun --label prints it
    )
    assert got.causes[0].ranks == tuple(range(5, 20)) and "rank 5-19 did not submit" in got.causes[0].title


def test_what_a_cut_list_of_horovod_hides_proves_less() -> None:
    """The tensor that rank 1 lacks may be among those of rank 2's that are not shown: both may be late."""
    stall = f"{_STALL} for more than 60 seconds.\nMissing ranks:\n1: [head_b_0]\n2: [head_a_0{{}}]\n"
    whole, cut = (explain_text(stall.format(more)).causes[0] for more in ("", " ..."))
    assert whole.id == cut.id == "app.collective-mismatch" and cut.confidence < whole.confidence - 0.1


def test_the_rate_of_a_port_is_told_from_other_rates() -> None:
    rate = all_signatures()["port-rate"]
    assert rate.match("\t\tRate: 400") and rate.match("\trate:\t\t 400 Gb/sec (4X NDR)") is not None
    assert rate.match("Learning Rate: 1") is None and rate.match("dropped at rate: 3 packets") is None


def test_a_listing_that_fails_shows_no_adapter() -> None:
    listed = all_signatures()["verbs-device"]
    assert listed.match("rdma_cm  umad0  uverbs0  uverbs1") is not None
    assert listed.match("ls: cannot access '/dev/infiniband/uverbs0': No such file or directory") is None


def test_no_device_is_named_where_lines_alike_name_several() -> None:
    text = _OVER_IB + "\nWARNING: all_reduce is far slower than expected: 2.1 GB/s, expected 45 GB/s\n"
    line = "n1:5:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA {0} 'mlx5_{0}'"
    assert "(mlx5_0)" in explain_text(text).sentence
    assert "mlx5_" not in explain_text(text.replace(line.format(0), f"{line.format(0)}\n{line.format(1)}")).sentence


_ENGINE = (
    "INFO 06-02 09:14:31 pynccl.py:65] vLLM is using nccl==2.20.5\n"
    "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
)
_REPORT = (
    "INFO 06-02 09:{minute}:12 metrics.py:345] Avg prompt throughput: {read} tokens/s, "
    "Avg generation throughput: {written} tokens/s, Running: {running} reqs, Swapped: 0 reqs, Pending: 0 reqs\n"
)


def test_an_engine_that_reads_long_prompts_is_at_work() -> None:
    served = _REPORT.format(minute=15, read="9.1", written="34.2", running=3)
    last = "".join(_REPORT.format(minute=16 + n, read="812.5", written="0.0", running=3) for n in range(4))
    assert explain_text(_ENGINE + served + last).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("running", "verdict"), [(3, Verdict.UNDECIDED), (0, Verdict.HEALTHY)])
def test_workers_ended_amid_requests_are_no_shutdown(running: int, verdict: Verdict) -> None:
    reports = "".join(_REPORT.format(minute=15 + n, read="9.1", written="34.2", running=running) for n in range(4))
    ended = (
        "ERROR 06-02 09:30:30 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 4410 died, exit code: -15\n"
    )
    assert explain_text(_ENGINE + reports + ended).verdict is verdict


def test_a_daemons_error_is_told_by_its_level() -> None:
    line = "{level}0902 11:40:01.020011       1 fastrak_gpumem_manager_startup.cc:40] {text}\n"
    flags = line.format(level="I", text="flags: NCCL_FASTRAK_NUM_FLOWS=2 errors=0")
    assert explain_text(flags + STEPS).verdict is Verdict.HEALTHY
    assert explain_text(line.format(level="F", text="out of receive buffers")).causes[0].id == "net.plugin"


def test_a_release_whose_run_told_nothing_good_is_not_said_to_work() -> None:
    failed = "### nccl 2.26.5\nattempt 1: rc 124\n"
    best = explain_text("### nccl 2.25.1\nattempt 1: rc 0\n" + failed).causes[0]
    assert best.title == "of the releases compared it fails only with 2.26.5"
    assert "sw.nccl-bug" not in {cause.id for cause in explain_text("### nccl 2.25.1\nbuilding\n" + failed).causes}


_TIMED_OUT = (
    "n1: [rank1]: torch.distributed.DistNetworkError: The client socket has timed out after 300000ms "
    "while trying to connect to (n0, 29400).\n"
)


@pytest.mark.parametrize(
    ("answers", "differ"),
    [
        ("$ pdsh -w n[0-1] getent hosts n0\nn0: 192.0.2.19  n0\nn1: 192.0.2.91  n0\n", True),
        (
            "$ clush -bw n[0-2] getent hosts n0\n---\nn[0,2] (2)\n---\n192.0.2.19 n0\n---\nn1\n---\n192.0.2.91 n0\n",
            True,
        ),
        ("$ ssh n0 getent hosts n0\n192.0.2.19 n0\n$ ssh n1 getent hosts n0\n192.0.2.91 n0\n", True),
        ("$ getent hosts n0\n192.0.2.19 n0\n198.51.100.9 n0\n", False),  # one host, a name with two addresses
        ("$ pdsh -w n[0-1] getent hosts n0\nn0: 127.0.1.1  n0\nn1: 192.0.2.19  n0\n", False),  # as Debian installs it
    ],
)
def test_hosts_disagree_where_their_answers_have_nothing_in_common(answers: str, differ: bool) -> None:
    titles = [cause.title for cause in explain_text(answers + _TIMED_OUT).causes]
    assert any(title.startswith("hosts do not agree") for title in titles) is differ


_CALLED = (
    "g{host}:7:7 [0] NCCL INFO {what}: opCount {number} sendbuff 0x7f0 recvbuff 0x7f1 count 64 datatype 7 op 0 root 0 "
    "comm 0x5aa{host} [nranks=2] stream 0x55d0\n"
)


@pytest.mark.parametrize(("before", "seen"), [("", False), ("AllReduce", True), ("world_size=2", True)])
def test_processes_are_of_one_communicator_where_they_agreed_or_are_the_whole_job(before: str, seen: bool) -> None:
    """Two groups of two ranks each, with one rank's lines of each, look the same."""
    agreed = "".join(_CALLED.format(host=host, what=before, number=4) for host in (1, 2))
    lines = (agreed if before == "AllReduce" else before + "\n") + _CALLED.format(host=1, what="AllReduce", number=5)
    told = explain_text("[rank3]: starts\n" * (not seen) + lines + _CALLED.format(host=2, what="AllGather", number=5))
    assert told.causes[0].id == "app.collective-mismatch"
    assert (told.verdict is Verdict.CAUSE_FOUND) is seen
    assert ("if all are of one communicator" in told.causes[0].title) is not seen


@pytest.mark.parametrize(("again", "likely"), [("[rank0]: ", True), ("[rank5]: ", False)])
def test_only_the_busy_rank_itself_shows_that_it_went_on(again: str, likely: bool) -> None:
    gave_up = "torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /barrier/3\n"
    lines = "[rank0]: tokenizing shard 3 of 9\n[rank1]: " + gave_up + again + "tokenizing shard 4 of 9\n"
    best = explain_text(lines).causes[0]
    assert best.id == "app.straggler-timeout" and (best.confidence > 0.75) is likely


def test_a_name_of_the_internet_and_a_programs_own_setting_are_no_causes() -> None:
    for line in (
        "** server can't find huggingface.co: NXDOMAIN",
        "ssh: Could not resolve hostname github.com: Try again",
    ):
        assert "net.hostname-resolution" not in {cause.id for cause in explain_text(f"{line}\n{STEPS}").causes}
    wrong = explain_text("Traceback (most recent call last):\nValueError: The value of MAX_LEN must be positive\n")
    assert wrong.causes[0].id != "env.bad-nccl-var"


def test_a_worker_that_somebody_ended_is_no_engines_shutdown() -> None:
    assert explain_text(STEPS + "trainer: worker died, exit code: -15\n").verdict is Verdict.UNDECIDED


_SPARE = (
    "Rendezvous gracefully exited: The node 'gpu7_922_0' is in the redundancy list of a closed rendezvous\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 300, in launch_agent\n'
    "    if result.is_failed():\n"
    "AttributeError: 'NoneType' object has no attribute 'is_failed'\n"
)


@pytest.mark.parametrize(
    "elsewhere",
    [
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 3, in f\n[rank3]: KeyError: 0\n',
        "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n",
    ],
)
def test_what_failed_on_the_other_nodes_is_the_cause_and_not_the_spare_one(elsewhere: str) -> None:
    got = explain_text(_SPARE + elsewhere)
    assert got.causes[0].id != "launch.rdzv"


def test_horovod_without_names_blames_no_rank() -> None:
    bar = "Generating:  38%|###8      | 38/100 [00:35<00:57,  1.07it/s]"
    assert [cause.id for cause in explain_text(f"{_STALL}\n{bar}\n").causes] == ["app.collective-mismatch"]


def test_one_hosts_log_of_a_bigger_job_does_not_show_that_its_gpus_fail() -> None:
    done = "n0:7:8 [0] NCCL INFO comm 0xa0 rank 0 nranks {ranks} cudaDev 0 busId 0000 commId 0x7 - Init COMPLETE\n"
    work = "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 ms"
    waits = "".join(f"[Rank {rank}] Watchdog caught collective operation timeout: {work}\n" for rank in range(2))
    alone, part = (explain_text(done.format(ranks=ranks) + waits) for ranks in (2, 4))
    assert "net.firewall" not in {cause.id for cause in alone.causes}
    assert "net.firewall" in {cause.id for cause in part.causes}


@pytest.mark.parametrize("error", ["unhandled cuda error", "internal error"])
def test_an_error_that_xla_got_from_nccl_is_no_healthy_end(error: str) -> None:
    end = f"E nccl_clique.cc:141] Terminating process due to async NCCL error: {error}\n"
    assert explain_text(STEPS + end).verdict is Verdict.UNDECIDED


def test_sockets_that_were_asked_for_are_no_missing_adapter() -> None:
    text = (
        "n1:3:9 [0] NCCL INFO NCCL_NET set by environment to Socket.\nuverbs0 uverbs1\n"
        "n1:3:9 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
        "n1:3:9 [0] NCCL INFO Using network Socket\nn1:3:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    )
    assert "ib.device-not-found" not in {cause.id for cause in explain_text(text).causes}
    unasked = text.partition("\n")[2]
    assert "ib.device-not-found" in {cause.id for cause in explain_text(unasked).causes}


def test_several_torchruns_on_a_host_are_not_tasks_without_a_rank() -> None:
    line = "{task}: RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
    text = "+ srun -n 4 torchrun --nproc_per_node 4 fit.py\n" + "".join(line.format(task=task) for task in (1, 2))
    assert explain_text(text).causes[0].id == "net.port-in-use"


def test_a_run_of_nccl_tests_that_failed_does_not_hang() -> None:
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1\n"
    row = "           8             2     float     sum      -1    31.20    0.00    0.00      0    30.90    0.00    0.00      0\n"
    for failed in (
        "gx5: Test NCCL failure common.cu:431 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n",
        "gx5: Test CUDA failure common.cu:431 'out of memory'\n",
    ):
        assert "gpu.p2p" not in {cause.id for cause in explain_text(head + row + failed).causes}
    assert explain_text(head + row).verdict is Verdict.UNDECIDED


def test_a_table_of_unsigned_numbers_has_rows() -> None:
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1\n"
    row = "        1024          1024   uint8     sum      -1    31.20    0.03    0.06      0    30.90    0.03    0.06      0\n"
    assert "1024 bytes" in explain_text(head + row).causes[0].title


_KERNEL = "[{when}] NVRM: Xid (PCI:0000:2a:00): {xid}, pid={pid}, name=python3, Ch 00000010\n"


def test_of_xids_alike_the_last_one_tells_whose_they_are() -> None:
    old = "".join(_KERNEL.format(when=f"Mon Jul 13 09:12:{10 + n} 2026", xid=31, pid=900 + n) for n in range(8))
    new = _KERNEL.format(when="Thu Jul 16 18:40:02 2026", xid=31, pid=999)
    steps = "".join(f"2026-07-16 18:40:{10 + n} [rank0] step {100 + n} loss 3.1\n" for n in range(9))
    assert explain_text(old + steps).verdict is Verdict.HEALTHY
    assert explain_text(old + new + steps).verdict is Verdict.HEALTHY  # eight steps: it was no process of this job
    assert explain_text(old + new + steps[: steps.index("\n") + 1]).causes[0].id == "gpu.illegal-access"


def test_what_happened_after_new_year_is_not_a_year_old() -> None:
    fault = _KERNEL.format(when="Fri Jan  1 00:10:00 2027", xid=79, pid=7)
    steps = "".join(f"2026-12-31 23:40:{10 + n} [rank0] step {100 + n} loss 3.1\n" for n in range(30))
    assert explain_text(steps + fault).causes[0].id == "gpu.fell-off-bus"


def test_a_rendezvous_at_the_first_hosts_own_localhost_is_one_that_others_may_reach() -> None:
    flags = "{task}:   min_nodes          : 2\n{task}:   rdzv_endpoint      : {host}:29511\n"
    late = "1: torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    for other, blamed in (("localhost", True), ("gx5", False)):
        text = flags.format(task=0, host="localhost") + flags.format(task=1, host=other) + late
        assert ("localhost" in explain_text(text).causes[0].title) is blamed


def test_a_row_of_sinfo_with_another_date_is_still_a_failed_check() -> None:
    head = "REASON                             USER      TIMESTAMP           NODELIST\n"
    row = "NHC: check_nvlink:  3 links  root      07/13-09:00:00      gx5\n"
    assert explain_text(head + row).causes[0].id == "gpu.nvlink"


def test_a_warning_of_the_one_sided_transport_is_no_note() -> None:
    line = "gb3:71:82 [2] NCCL WARN GIN/Plugin: Failed to initialize any GIN plugin\n"
    assert explain_text(line).causes[0].id == "net.plugin"


@pytest.mark.parametrize(
    ("line", "slow"),
    [
        ("throughput 1,200 tokens/s, expected 12,000 tokens/s", True),
        ("throughput 11,800 tokens/s, expected 12,000", False),
        ("throughput 11,800 tokens/s (expected 11,000-12,000 tokens/s)", False),
    ],
)
def test_thousands_are_read_on_both_sides_of_what_is_expected(line: str, slow: bool) -> None:
    assert (explain_text(f"{STEPS}{line}\n{STEPS}").verdict is not Verdict.HEALTHY) is slow


def test_the_exit_that_a_best_guess_names_is_quoted_first() -> None:
    """Of a rank that said nothing, whatever the others, who did, ended with."""
    rows = "\n".join(
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 70{rank})"
        for rank, code in enumerate((1, 7, 3))
    )
    said = "".join(f"[rank{rank}]: RuntimeError: Connection closed by peer [10.0.0.4]:29097\n" for rank in (0, 1))
    log = f"{said}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n{rows}\n"
    got = explain_text(log)
    assert got.sentence.endswith("rank 2 ended with exit code 3; what it said is not in these logs")
    assert got.causes[0].evidence[0].text == "exitcode  : 3 (pid: 702)"
    assert any("collect the logs of rank 2: these hold nothing" in step for step in got.next)


def test_the_rank_that_the_others_waited_for_stands_in_the_first_sentence() -> None:
    late = (
        "[rank{0}]: Traceback (most recent call last):\n"
        '[rank{0}]:   File "/job/train.py", line 12, in <module>\n'
        "[rank{0}]:     dist.all_reduce(t)\n"
        "[rank{0}]: RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete\n"
    )
    got = explain_text("".join(late.format(rank) for rank in (0, 2, 3)))
    assert got.verdict is Verdict.UNDECIDED
    assert got.sentence.endswith("another one that did not come in time; nothing is heard of rank 1")
    assert (
        "nothing is heard" not in explain_text("".join(late.format(rank) for rank in (0, 5))).sentence
    )  # most are silent


def test_the_timeline_is_in_order_of_time_whatever_the_files_are_called() -> None:
    """A traceback has no time: it stands where its launcher's next line does."""

    def console(second: int, said: str) -> str:
        stamp = f"1122 08:55:{second}.608000 29638 torch/distributed/elastic/multiprocessing/api.py"
        start = "W1122 08:50:00.100000 29638 torch/distributed/run.py:766] Setting OMP_NUM_THREADS\n"
        exited = f"E{stamp}:1002] failed (exitcode: 1) local_rank: 0 (pid: 29852) of binary: /usr/bin/python\n"
        return f"{start}{said}\n{exited}"

    lost = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.3]:26542"
    late, early = console(30, lost), console(28, "[rank1]: KeyError: 'sample'")
    told = analyse([LogSource("a.log", late), LogSource("b.log", early)]).timeline
    assert [(item.who, item.file) for item in told if not item.when] == [("rank 1", "b.log"), ("rank 0", "a.log")]
    assert next(item.when for item in told if item.when) == "08:55:28"


def test_the_timeline_says_what_happened_and_not_the_name_of_a_cause() -> None:
    told = explain_text(
        "got bad completion with status: 0xc, vendor syndrome: 0x81\nstatus: 5\nRETRY_EXC_ERR\n"
    ).timeline
    assert [item.what for item in told] == ["the fabric did not deliver: transport retries exceeded"]


def test_debug_lines_of_nccl_are_asked_of_jobs_that_have_nccl() -> None:
    """A driver's, MPI's or scheduler's log is not told better by NCCL_DEBUG."""
    said = "warp17> MLX5 Error CQE: at [0x7f6a7d20c000], len=64"
    ask = "NCCL_DEBUG=INFO"
    assert not any(ask in step for step in explain_text(f"{said}\n").next)
    assert any(ask in step for step in explain_text(f"backend: nccl\n{said}\n").next)
    ranks = "[rank1]: MPIDI_OFI_handle_cq_error(1062): OFI poll failed (Input/output error - UNDELIVERABLE)\n"
    assert not any(ask in step for step in explain_text(ranks).next)
    refused = "[rank1]: *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n"
    assert explain_text(refused).causes[0].id == "app.pg-misuse"
    assert not any(ask in step for step in explain_text(refused).next)


def test_who_was_interrupted_by_hand_is_not_told_to_submit_again() -> None:
    waits = 'File "/opt/torch/multiprocessing/spawn.py", line 171, in spawn\n    while not spawn_context.join():\nKeyboardInterrupt\n'
    by_hand = explain_text(f"Traceback (most recent call last):\n  {waits}").causes[0]
    cancelled = explain_text("slurmstepd: error: *** STEP 12.0 ON n7 CANCELLED AT 2026-03-02T10:00:00 ***\n").causes[0]
    assert (by_hand.id, by_hand.playbook) == ("launch.killed", "launch.killed.by-hand")
    assert (cancelled.id, cancelled.playbook) == ("launch.killed", "launch.killed")


def test_a_model_that_differs_is_mended_where_it_is_built() -> None:
    got = explain_text(
        "RuntimeError: params[12] in this process with sizes [25, 25, 1, 1] appears not to match strides of the same param in process 0.\n"
    ).causes[0]
    assert (got.id, got.playbook) == ("app.collective-mismatch", "app.collective-mismatch.model")


def test_a_known_message_gives_the_title_where_words_weigh_more() -> None:
    got = explain_text(
        "[rank1]:[E1101 17:03:05.823 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=395,"
        " OpType=ALLREDUCE, NumelIn=3362, NumelOut=3362, Timeout(ms)=600000) ran for 600083 milliseconds before timing out.\n"
        "[rank1]:[E1101 17:03:05.825 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 1] Exception (either an error or timeout) detected by watchdog"
        " at work: 395, last enqueued NCCL work: 395, last completed NCCL work: 394.\n"
    )
    assert got.verdict is Verdict.UNDECIDED and "to judge by the words" not in got.causes[0].title


def test_a_store_on_loopback_is_not_missing_for_want_of_a_network() -> None:
    text = "TimeoutError: The client socket has timed out after 1800s while trying to connect to ({}, 57388).\n"
    own, other = (explain_text(text.format(host)).causes[0] for host in ("127.0.0.1", "10.1.2.3"))
    assert (own.id, own.playbook) == ("net.master-unreachable", "net.master-unreachable.own-host")
    assert "127.0.0.1:57388, on this same host" in own.title
    assert (other.id, other.playbook) == ("net.master-unreachable", "net.master-unreachable")


def test_attempts_that_nobody_answers_speak_of_a_firewall() -> None:
    lost = "[W416 15:37:25.363094293 socket.cpp:933] [c10d] The server socket on [10.1.2.3]:40613 has timed out, will retry.\n"
    got = explain_text(lost)
    assert got.causes[0].id == "net.firewall" and "nothing comes back from [10.1.2.3]:40613" in got.causes[0].title


def test_the_name_of_a_start_method_is_no_fork_that_failed() -> None:
    line = "E1106 17:14:53.310000 213 torch/multiprocessing/api.py:732] failed (exitcode: 1) rank: 0 of fn: train (start_method: fork)\n"
    assert "sys.threads" not in [cause.id for cause in explain_text(line).causes]


def test_who_only_handles_a_crash_is_not_suspected_of_it() -> None:
    got = explain_text(
        "[n7:27:0:27] Caught signal 11 (Segmentation fault: invalid address)\n"
        " 0 /opt/ucx/lib/libucs.so.0(ucs_handle_error+0x2cc) [0x4000f1ce278c]\n"
    )
    assert "net.plugin" not in [cause.id for cause in got.causes]


def test_lines_of_torchs_sockets_are_lines_of_a_distributed_job() -> None:
    got = explain_text(
        "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:9999 (errno: 97 - Address family not"
        " supported by protocol).\n"
    )
    assert got.verdict is Verdict.UNDECIDED and not any("none of these lines" in step for step in got.next)


def test_who_failed_is_asked_to_say_more() -> None:
    said = "frob.c:77  UCX  ERROR no frob for n7\n"
    assert any("UCX_LOG_LEVEL=info" in step for step in explain_text(said).next)
    loud = "UCX_LOG_LEVEL=info\n"
    assert not any("UCX_LOG_LEVEL" in step for step in explain_text(loud + said).next)
    crash = "*** SIGSEGV (@0x0) received by PID 77\n"
    assert any("PYTHONFAULTHANDLER=1" in step for step in explain_text(crash).next)
    shown = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x77 (most recent call first):\n"
    assert not any("PYTHONFAULTHANDLER" in step for step in explain_text(crash + shown).next)
    partly = "GLOBAL_RANK: 2, MEMBER: 3/8\n"
    assert any("what the launcher printed on every node" in step for step in explain_text(partly).next)


@pytest.mark.parametrize(
    "said",
    ["python: frob.cc:77: void frob(): Assertion `x > 0' failed.", "LLVM ERROR: cannot frob this"],
)
def test_native_code_that_ended_itself_has_its_own_page(said: str) -> None:
    cause = explain_text(f"{said}\n").causes[0]
    assert (cause.id, cause.playbook) == ("app.rank-exception", "app.rank-exception.native")


def test_a_job_that_no_rank_can_join_is_ended_because_of_that() -> None:
    """Each node counted itself as the first; somebody cancelled what stood still."""
    cancelled = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-03-01T10:00:00 ***\n"
    member = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/96\n"
    assert explain_text(member * 2 + cancelled).causes[0].id == "launch.world-size"
    assert explain_text(member + cancelled).causes[0].id == "launch.killed"


def test_an_adapter_that_cannot_be_opened_is_passed_over_where_all_use_the_same() -> None:
    refused = "h1:5:5 [0] transport/net_ib.cc:149 NCCL WARN NET/IB : Unable to open device mlx5_4\n"
    uses = "h{}:5:5 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE {}; OOB eth0:10.0.0.{}<0>\n"
    same = explain_text(refused + uses.format(1, "", 1) + uses.format(2, "", 2))
    assert "ib.device-not-found" not in {cause.id for cause in same.causes}
    more = explain_text(refused + uses.format(1, "", 1) + uses.format(2, "[1]mlx5_4:1/RoCE ", 2))
    assert more.causes[0].id == "ib.device-not-found"
    assert explain_text(refused).causes[0].id == "ib.device-not-found"


def test_no_title_shows_a_hole() -> None:
    """Not every wording of a message says everything: what no line tells is left out with the words that lead to it."""
    dangling = re.compile(r"[{?]|\s[,:)]|[:,(] ?$|\b(?:to|at|towards)$")
    for signature in all_signatures().values():
        for template in signature.templates if signature.title else ():
            told = dict.fromkeys(re.findall(r"\{(\w+)[:}]", template.text), "X")
            title = candidates.told(signature.title, [Hit(signature.name, "a.log", 1, "", told)])
            assert not dangling.search(title), (template.text, title)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            'docker: Error response from daemon: OCI runtime create failed: running prestart hook 1 caused \\"exit status 1, '
            'stderr: nvidia-container-cli: initialization error: cuda error: unknown error\\n\\"": unknown.',
            "initialization error: cuda error: unknown error",
        ),
        (
            "slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: Permission denied",
            "failed to create user namespace: Permission denied",
        ),
    ],
)
def test_a_container_that_was_not_started_is_told_with_its_reason(line: str, reason: str) -> None:
    assert explain_text(line + "\n").causes[0].title == f"the container could not be started: {reason}"


def test_what_two_answers_leave_open_is_said_in_different_words() -> None:
    got = explain_text(
        "h1:39:40 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : "
        "Software caused connection abort\n"
    )
    assert got.verdict is Verdict.UNDECIDED
    assert {cause.id for cause in got.causes[:2]} == {"net.firewall", "net.peer-lost"}
    assert got.causes[0].title != got.causes[1].title


def test_a_fabric_manager_without_switches_is_no_worker_that_failed() -> None:
    query = "request to query NVSwitch device information from NVSwitch driver failed with error"
    ended = '"/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg" failed! Exit code: 1'
    unit = "nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE"
    said = f"{query}:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]", ended
    script = "".join(f"Sep 18 03:19:01 n1 nvidia-fabricmanager-start.sh[47]: {line}\n" for line in said)
    got = explain_text(f"{script}Sep 18 03:19:01 n1 systemd[1]: {unit}\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "gpu.fabric-manager")


def test_horovods_older_table_names_the_rank_too() -> None:
    got = explain_text(f"{_STALL} for more than 60 seconds.\nStalled ranks:\n6: [grads_1, grads_2 ...]\n")
    assert got.causes[0].ranks == (6,) and got.sentence.startswith("rank 6 did not submit")


@pytest.mark.parametrize(
    "line",
    [
        "[login3:29852] mca_base_component_repository_open: unable to open mca_pml_pami: libpami.so.3: cannot open shared "
        "object file: No such file or directory (ignored)",
        "n1:205:772 [1] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - /lib/libmlx5.so.1: undefined symbol: "
        "mlx5dv_reg_dmabuf_mr, version MLX5_1.25 version MLX5_1.25",
        "kernel: pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)",
        "kernel: pcieport 0000:00:1c.5:   device [8086:9d15] error status/mask=00000001/00002000",
        "WARNING: There was an error initializing an OpenFabrics device.",
        "2024-02-01 14:12:01.205 ERROR [9596:9598] [[SysMon]] Couldn't open CPU Vendor info file file '/sys/devices/soc0/soc_id'",
        "[1748.11] [n1:3019:0]     ucp_context.c:2257 UCX  WARN  UCP API version is incompatible: required >= 1.20, actual 1.18.0",
        "n1:10:11 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : SM change",
        "n1:10:11 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: P_Key change(12)",
        "n1:10:11 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : last WQE reached",
    ],
)
def test_what_a_library_goes_without_is_no_guess(line: str) -> None:
    assert not explain_text(f"{line}\n").causes


def test_a_fatal_adapter_is_no_failed_port() -> None:
    got = explain_text(
        "n1:815:864 [0] transport/net_ib.cc:80 NCCL WARN NET/IB : Got async event : local catastrophic error\n"
    )
    assert got.causes[0].title == "a network adapter failed while the job ran"


def test_an_adapter_whose_firmware_hangs_has_lost_no_link() -> None:
    got = explain_text(
        "[198542.85] mlx5_core 0000:5e:00.0: device's health compromised - reached miss count\n"
        "[198542.86] mlx5_core 0000:5e:00.0: assert_var[0] 0x00000001\n"
        "[198542.91] mlx5_core 0000:5e:00.0: synd 0x7: irisc not responding\n"
    )
    assert got.causes[0].id == "ib.port-down" and "firmware" in got.causes[0].title


def test_a_local_protection_error_is_no_question_of_the_mtu() -> None:
    got = explain_text(
        "n1:238:1219 [0] transport/net_ib.cc:180 NCCL WARN NET/IB : mlx5_0:1 async fatal event on QP (0x7f69f): local access "
        "violation work queue error\n"
        "n1:238:1313 [0] transport/net_ib.cc:2451 NCCL WARN NET/IB: Got completion from peer 172.16.1.3<38081> with status=4 "
        "opcode=0 len=0 vendor err 83 (Send) hca mlx5_0\n"
    )
    assert got.causes[0].id == "ib.gdr" and "net.mtu" not in {cause.id for cause in got.causes}


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        ("local work queue catastrophic error", "ib.retry-exceeded"),
        ("local access violation work queue error", "net.mtu"),
    ],
)
def test_an_event_of_a_queue_pair_is_no_failed_connection(event: str, cause: str) -> None:
    got = explain_text(f"n1:10:11 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : {event}\n")
    assert got.causes[0].id == cause and "ib.qp-connect" not in {found.id for found in got.causes}


def test_a_quoted_speaker_is_not_asked_for_again() -> None:
    """The rank of a line is known from its process's init line, though the line itself names none."""
    got = explain_text(
        "n2:159:168 [0] NCCL INFO comm 0x55c6 rank 0 nranks 2 cudaDev 0 nvmlDev 2 busId 4c000 commId 0xbe1 - Init COMPLETE\n"
        "n2:159:172 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.1.3<42211> with error 4, "
        "opcode 0, len 0, vendor err 81 (Send) localGid ::ffff:10.1.2.161 remoteGid ::ffff:10.1.2.163\n"
    )
    assert got.causes[0].ranks == (0,) and not any("logs of rank 0" in step for step in got.next)


def test_lines_of_no_job_ask_for_the_jobs_own() -> None:
    got = explain_text("kernel: DMAR: No ATSR found\nkernel: DMAR: IOMMU feature fl1gp_support inconsistent\n")
    assert got.verdict is Verdict.UNDECIDED and "what the job itself printed" in got.next[0]


def test_a_program_before_its_message_is_no_host() -> None:
    got = explain_text(
        "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.\n"
    )
    assert got.causes[0].id == "gpu.driver" and not got.causes[0].hosts


def test_dcgm_without_switches_is_no_fault_of_nvlink() -> None:
    got = explain_text(
        "2024-05-24 10:22:29.245 ERROR [5231:5273] [[NvSwitch]] ReadNvSwitchStatusAllSwitches() returned Object is in an "
        "undefined state [DcgmModuleNvSwitch.cpp:388] [DcgmNs::DcgmModuleNvSwitch::RunOnce]\n" * 3
    )
    assert not got.causes


def test_an_efa_adapter_that_refuses_is_no_firewall() -> None:
    got = explain_text(
        "libfabric:7:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Remote memory registration is invalid, "
        "has insufficient access flags or does not match IOVA My EFA addr: fi_addr_efa://[fe80::1]:0:1 (7)\n"
    )
    assert got.verdict is Verdict.UNDECIDED and "net.firewall" not in {cause.id for cause in got.causes[:2]}


def test_a_file_of_xla_is_no_variable_of_nccl() -> None:
    text = "INTERNAL: xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, n, id, rank) failed: unhandled cuda error\n"
    named = [cause.id for cause in explain_text(text).causes]
    assert named[0] == "gpu.driver"
    assert "env.bad-nccl-var" not in named


def test_a_worker_whose_log_repeats_nccls_code_did_not_end_without_words() -> None:
    ended = "srun: error: n018: task 1: Exited with exit code 1\n"
    assert explain_text(ended).causes[0].id == "app.rank-exception"
    told = "UnknownError behind a prefix:: ncclCommInitRank failed: unhandled system error\n"
    assert explain_text(told + ended).causes[0].id == "net.wrong-interface"


def test_paddle_names_the_error_in_its_summary() -> None:
    wrapper = "Traceback (most recent call last):\n  File 'train.py', line 6, in <module>\n    main()\n"
    wrapper += "paddle.fluid.core_avx.EnforceNotMet:\n\n"
    told = (
        "Error Message Summary:\n----------------------\nInvalidArgumentError: The last dim of Input(X) should be 4.\n"
    )
    assert "InvalidArgumentError" in explain_text(wrapper + told).causes[0].title


def test_a_node_that_the_scheduler_names_is_blamed_and_not_the_schedulers_host() -> None:
    told = "setting node {node} state to INVAL with reason:gres/gpu count reported lower than configured (3 < 4)"
    line = f"May 23 12:49:52 mgmt1 slurmctld[80]: error: {told.format(node='gpu1')}\n"
    assert explain_text(line).causes[0].hosts == ("gpu1",)
    assert explain_text("salloc: error: Node failure on worker-1, cancelling\n").causes[0].hosts == ("worker-1",)


def test_what_open_mpi_goes_without_is_no_guess() -> None:
    notes = (
        "was unable to find any relevant network interfaces:\n"
        "Another transport will be used instead, although this may result in\n"
        '[gpu5:36] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages\n'
    )
    assert explain_text(notes).causes == ()


def test_one_gpu_of_two_hosts_of_the_same_name_is_none_for_two_ranks() -> None:
    line = "{host}:{pid}:9 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x{comm} - Init {what}\n"

    def named(host: str, comms: str = "aa", what: str = "START") -> bool:
        text = "".join(
            line.format(host=host, pid=7 + rank, rank=rank, comm=comm, what="START") for rank, comm in enumerate(comms)
        )
        text += line.format(host=host, pid=7, rank=0, comm="a", what=what)
        return "gpu.duplicate" in [cause.id for cause in explain_text(text).causes]

    assert named("gpu1")
    assert not named("localhost")  # what every machine calls itself
    assert not named("gpu1", comms="ab")  # two jobs
    assert not named("gpu1", what="COMPLETE")  # NCCL was told to allow it


@pytest.mark.parametrize(("magic", "named"), [("74656d2f20544547", True), ("83d1a0f27700b9c4", False)])
def test_what_a_foreign_program_said_is_read(magic: str, named: bool) -> None:
    told = (
        f"n9:166:1226 [0] misc/socket.cc:484 NCCL WARN socketFinalizeAccept: wrong magic {magic} != 7970663b906d70b9\n"
    )
    titles = [cause.title for cause in explain_text(told).causes]
    assert any("'GET /met'" in title for title in titles) is named


def test_a_file_that_a_shell_misses_is_no_program() -> None:
    started = "the program could not be started"
    for missing, named in (("/usr/sbin/sshd", True), ("/data/list.txt", False)):
        told = explain_text(f"/bin/bash: line 1: {missing}: No such file or directory\n")
        assert any(started in cause.title for cause in told.causes) is named


@pytest.mark.parametrize(("pid", "first"), [(4711, "app.straggler-timeout"), (4712, "sys.host-oom")])
def test_a_ray_worker_that_its_own_watchdog_ended_did_not_run_out_of_memory(pid: int, first: str) -> None:
    """Ray may tell of a worker's end before it passes the worker's last words on."""
    told = f"(raylet) A worker died or was killed. Worker IP address: 10.0.0.9 Worker port: 34011 Worker PID: {pid} "
    told += "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
    told += "(RayWorker pid=4711) [E ProcessGroupNCCL.cpp:474] [Rank 0] Watchdog caught collective operation timeout: "
    told += (
        "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800305 milliseconds before timing out.\n"
    )
    assert explain_text(told).causes[0].id == first


def test_a_store_that_was_slow_to_listen_is_no_cause_of_a_later_time_out() -> None:
    told = "2023-10-05T23:40:07Z ERROR shard-manager: text_generation_launcher: Shard complete standard error output:\n"
    told += "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 "
    told += "(errno: 99 - Cannot assign requested address).\n"
    waited = "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: "
    waited += "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=60000) ran for 69027 milliseconds before timing out.\n"
    names = [cause.id for cause in explain_text(told + waited).causes]
    assert names[0] == "app.straggler-timeout"
    assert "net.master-unreachable" not in names
    assert "busy" not in explain_text(told + waited).causes[0].title


def test_a_whole_ray_cluster_lacks_no_node() -> None:
    assert explain_text("Ray cluster status: 2/2 nodes alive.\n").causes == ()


@pytest.mark.parametrize(
    ("told", "uneven"), [("batches {}", True), ("shard written in {}.2 s", False), ("shard took {} s", False)]
)
def test_a_time_is_no_number_of_batches(told: str, uneven: bool) -> None:
    said = "".join(f"rank {rank} {told.format(40 + rank)}\n" for rank in range(4))
    log = said + "w1:9:90 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer w4<4400>\n"
    assert any(cause.id == "app.uneven-inputs" for cause in explain_text(log).causes) is uneven


def test_workers_that_found_their_place_later_were_placed() -> None:
    lacking = (
        "WARNING 01-20 05:40:30 [ray_utils.py:338] Tensor parallel size (8) exceeds available GPUs (4). "
        "This may result in Ray placement group allocation failures.\n"
    )
    served = 'INFO:     10.2.0.9:52214 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert explain_text(lacking).causes[0].id == "launch.world-size"
    assert explain_text(lacking + served).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("I1120 09:00:00.000 run.py:600]   signals_to_handle  : SIGTERM,SIGINT,SIGHUP,SIGQUIT", "launch.killed"),
        ("prometheus: Received SIGHUP, reloading configuration", "launch.killed"),
        ("the job may have been preempted, or got a SIGHUP", "launch.killed"),
        ("/root/.bashrc: line 12: /opt/conda/bin/conda: No such file or directory", "unrelated"),
        ("/etc/profile.d/terminal.sh: line 3: tput: command not found", "unrelated"),
        ("cowsay installed in this system is not supported by this terminal", "gpu.driver"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "sys.clock-or-dns-or-fs"),
        ("pkg/client: Failed to watch *v1.Foo: the server could not find the requested resource", "unrelated"),
        ("grpc: call failed: invalid usage of this option", "gpu.duplicate"),
        ("train.py: error: argument --lora-rank: expected one argument", "launch.env-missing"),
        ("printing NCCL_DEBUG ERROR lines only", "net.plugin"),
    ],
)
def test_what_other_programs_say_is_no_cause(line: str, cause: str) -> None:
    hang = "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
    assert cause not in {found.id for found in explain_text(f"{line}\n{hang}").causes}


def test_the_list_of_nccl_tests_tells_how_many_nodes_there_are() -> None:
    row = "#  Rank {rank} Group  0 Pid {pid} on {host} device 0 [0000:1b:00] NVIDIA H100 80GB HBM3\n"
    two = "".join(row.format(rank=rank, pid=11 + rank, host=f"node{rank}") for rank in range(2))
    assert explain_text(two).world["nodes"] == 2


def test_nodes_that_sinfo_lists_are_no_proof_against_what_the_program_says() -> None:
    listed = "gpu07  1  main  down*  64  Not responding\n"
    said = "Traceback (most recent call last):\n  File 'train.py', line 6, in <module>\n    main()\n"
    said += "RuntimeError: shape '[3, 4]' is invalid for input of size 13\n"
    assert explain_text(listed).causes[0].id == "sys.node-failure"
    assert explain_text(listed + said).causes[0].id == "app.bad-tensor"


@pytest.mark.parametrize(
    "line",
    [
        "Open MPI detected an inbound MPI TCP connection request from a peer",
        "[n1:7] 1 more process has sent help message help-mpi-btl-tcp.txt / dropped inbound connection",
        "WARNING: Open MPI accepted a TCP connection from what appears to be a",
    ],
)
def test_open_mpis_help_text_is_known_by_its_own_lines(line: str) -> None:
    assert explain_text(f"{line}\n").causes[0].id == "net.wrong-interface"


def test_an_exception_that_another_rank_passes_on_is_of_the_rank_that_raised_it() -> None:
    """torch's distributed checkpoint raises on every rank what some raised, and tells their tracebacks behind it."""
    told = explain_text(
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/srv/train.py", line 9, in <module>\n'
        "[rank3]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])\n"
        "[rank3]: Traceback (most recent call last): (RANK 5)\n"
        '[rank3]:   File "/srv/save.py", line 7, in write\n'
        "[rank3]: KeyError: 'bias'\n"
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/srv/train.py", line 30, in <module>\n'
        "[rank3]: ZeroDivisionError: of its own\n"
    )
    assert told.causes[0].title.startswith("rank 5 raised KeyError: 'bias'")
    assert told.causes[0].ranks == (5,)


def test_what_a_message_announces_with_a_colon_belongs_to_it() -> None:
    told = explain_text(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/srv/train.py", line 9, in <module>\n'
        "[rank1]: torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
        "[rank1]: RuntimeError: Cannot find a working triton installation.\n"
    )
    assert "raised: RuntimeError: Cannot find a working triton installation." in told.causes[0].title


def test_a_warning_of_what_could_hang_is_no_wait() -> None:
    told = explain_text(
        "[INFO|trainer.py:756] 2026-08-04 10:11:01,204 >> Using auto half precision backend\n"
        "Detected kernel version 5.4.250, which is below the recommended minimum of 5.5.0; this can cause the process to "
        "hang. It is recommended to upgrade the kernel to the minimum version or higher.\n"
    )
    assert not told.causes


def test_a_cut_traceback_behind_a_time_out_is_what_the_watchdog_aborted() -> None:
    timed_out = (
        "[E ProcessGroupNCCL.cpp:719] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7559, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1806456 milliseconds before timing out.\n"
    )
    cut = 'Traceback (most recent call last):\n  File "/srv/train.py", line 242, in <module>\n    main()\n'
    assert explain_text(cut).causes[0].id == "app.rank-exception"
    assert explain_text(timed_out + cut).causes[0].id == "app.straggler-timeout"


@pytest.mark.parametrize(
    ("frame", "call"),
    [
        (
            "    frame #3: 0x00007f1350a1d001 libnccl.so.2`ncclAllReduce(comm=0x55b0c0) at collectives.cc:90:3",
            "ncclAllReduce",
        ),
        ("  * frame #2: 0x00007f1350a1b2c2 libmpi.so.40`PMPI_Barrier(comm=0x55b0) at barrier.c:76", "PMPI_Barrier"),
        ("#2  0x00007f04da9e8885 in ncclGroupEnd () from /usr/lib/libnccl.so.2", "ncclGroupEnd"),
    ],
)
def test_a_debuggers_stack_names_the_call_in_which_a_process_waits(frame: str, call: str) -> None:
    stopped = "(lldb) bt all\n* thread #1, name = 'python3', stop reason = signal SIGSTOP\n"
    top = "    frame #0: 0x00007f13a2c91117 libc.so.6`__futex_abstimed_wait_common + 200\n"
    assert f"waits in {call};" in explain_text(f"{stopped}{top}{frame}\n").causes[0].title


def test_one_field_that_nvidia_smi_cannot_read_is_no_gpu_that_is_gone() -> None:
    row = "| N/A   31C    P0   ERR! / 300W |    412MiB / 32510MiB |      0%      Default |\n"
    assert explain_text(row).verdict is Verdict.UNDECIDED
    assert explain_text("|ERR!  ERR! ERR!    ERR! / ERR! |    412MiB / 32510MiB |\n").verdict is Verdict.CAUSE_FOUND
    assert all(item.id != "gpu.fell-off-bus" for item in explain_text("npm ERR! code ELIFECYCLE\n").causes)


def test_an_argument_without_a_value_may_have_been_left_out() -> None:
    empty = explain_text("torchrun: error: argument --nnodes: invalid int value: ''\n").causes[0]
    absent = explain_text("torchrun: error: argument --nnodes: expected one argument\n").causes[0]
    assert empty.id == absent.id == "launch.env-missing"
    assert "leaves it out" in absent.title and "leaves it out" not in empty.title
    assert absent.confidence < empty.confidence
    own = explain_text("train.py: error: argument --master-weights: invalid int value: ''\n")
    assert own.verdict is Verdict.NOT_DISTRIBUTED  # no launcher's
    launchers = explain_text("train.py: error: argument --master-port: invalid int value: ''\n")
    assert launchers.causes[0].id == "launch.env-missing"


@pytest.mark.parametrize(
    ("said", "busy"),
    [
        ("prometheus: Received SIGHUP, reloading configuration", False),
        ("[INFO] caught the signal, reloading the configuration", False),
        ('ts=2026-03-01T11:05:01Z caller=main.go:1100 level=info msg="Loading configuration file"', False),
        ("Mar  1 11:05:02 gpu1 logrotate[99]: compressing and copying old files", False),
        ("reloading the checkpoint of step 400", True),
        ("rank 0: writing the index", True),
    ],
)
def test_what_a_daemon_does_before_a_time_out_keeps_no_rank_busy(said: str, busy: bool) -> None:
    late = (
        "[rank3]:[E301 11:15:25.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds\n"
    )
    assert any("busy beyond" in cause.title for cause in explain_text(f"{said}\n{late}").causes) is busy


def test_a_fix_says_what_of_it_was_done_already() -> None:
    failed = "gpu31:4:4 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'\n"
    done = "(NCCL_P2P_DISABLE=1 is set already.)"
    assert explain_text(f"NCCL_P2P_DISABLE=1 ./all_reduce_perf -g 10\n{failed}").causes[0].fixes[0].text.endswith(done)
    assert "already" not in explain_text(failed).causes[0].fixes[0].text


def test_what_a_program_advises_is_not_set() -> None:
    advice = (
        "OSError: (External) Nccl error, unhandled system error, detail: No space left\n1. export NCCL_SHM_DISABLE=1;\n"
    )
    assert not explain_text(advice).worth_knowing
    assert explain_text(advice.replace("1. export", "export")).worth_knowing
    warned = (
        "t1:5:5 [1] mnnvl.cc:67 NCCL WARN MNNVL (cliqueSize 72) is available but not working on this system. Check the IMEX "
        "channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.\n"
    )
    assert "already" not in explain_text(warned).causes[0].fixes[0].text
    assert "already" in explain_text(f"NCCL_MNNVL_ENABLE=0 srun ./train\n{warned}").causes[0].fixes[0].text


@pytest.mark.parametrize(
    ("number", "operation", "when", "differ"),
    [
        (56, "BROADCAST", "11:15:26.5", True),
        (55, "BROADCAST", "11:15:26.5", True),
        (56, "ALLREDUCE", "11:15:26.5", False),  # the same call of a loop: one lags
        (56, "BROADCAST", "11:25:26.5", False),  # the other had waited and was gone
    ],
)
def test_time_outs_in_other_calls_at_the_same_time_are_a_mismatch(
    number: int, operation: str, when: str, differ: bool
) -> None:
    line = (
        "[rank{0}]:[E301 {3} ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 "
        "milliseconds before timing out.\n"
    )
    got = explain_text(line.format(0, 55, "ALLREDUCE", "11:15:25.1") + line.format(1, number, operation, when))
    assert (got.causes[0].id == "app.collective-mismatch" and got.verdict is Verdict.CAUSE_FOUND) is differ


def test_a_port_that_is_switched_off_beside_an_active_one_is_no_cause() -> None:
    off = "link mlx5_0/2 state DOWN physical_state DISABLED netdev ib1\n"
    up = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0\n"
    assert explain_text(off).causes[0].confidence > 0.8
    assert explain_text(up + off).verdict is Verdict.UNDECIDED
    assert explain_text(up + off.replace("DISABLED", "POLLING")).causes[0].confidence > 0.8
    devinfo = "\tport:\t2\n\t\tstate:\t\t\tPORT_DOWN (1)\n\t\tphys_state:\t\tDISABLED (3)\n"
    assert explain_text(devinfo).causes[0].confidence > 0.8
    assert all(cause.confidence < 0.5 for cause in explain_text("\t\tstate:\t\t\tPORT_ACTIVE (4)\n" + devinfo).causes)


def test_the_advice_for_what_is_no_failure_of_communication_says_where_to_look() -> None:
    (fix,) = explain_text("Traceback (most recent call last):\nKeyError: 'dog'\n").causes[0].fixes
    assert "last frame in your own files" in fix.text and not fix.text.endswith(":")


def test_who_completed_what_another_waits_in_is_not_behind_by_its_status_alone() -> None:
    line = (
        "[rank{0}]:[E301 11:15:25.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Exception (either an "
        "error or timeout) detected by watchdog at work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: {3}.\n"
    )
    got = explain_text(line.format(0, 55, 60, 54) + line.format(1, 57, 58, 56))
    assert (got.causes[0].id, got.causes[0].ranks) == ("app.collective-mismatch", (0,))
    assert "rank 0 waits in work 55, which rank 1 has completed" in got.causes[0].title


def test_a_message_is_mended_by_the_page_that_is_about_it() -> None:
    """A cause's own page is about more: the container that lost its GPUs needs no shared memory."""
    for signature in all_signatures().values():
        assert not signature.page or (signature.cause and signature.page in playbooks.names()), signature.name
    lost = explain_text("Failed to initialize NVML: Unknown Error\n" * 2).causes[0]
    assert (lost.id, lost.playbook) == ("sys.container", "gpu.driver.failed")
    assert "restart it" in lost.fixes[0].text
    refused = explain_text("error: Munge decode failed: Invalid credential\n").causes[0]
    assert refused.playbook == "sys.clock-or-dns-or-fs.credentials" and "munge.key" in refused.fixes[0].text
    step = "slurmstepd: error: unable to add pids to '/sys/fs/cgroup/cpuset/slurm/job_7/step_0'\n"
    assert explain_text(step).causes[0].playbook == "sys.container.cgroup"
    abi = "libibverbs: Warning: Driver rxe does not support the kernel ABI of 1 (supports 2 to 2) for device rxe0\n"
    assert explain_text(abi).causes[0].playbook == "ib.device-not-found.driver-failed"
    unreachable = "At least one pair of MPI processes are unable to reach each other for\n  BTLs attempted: self\n"
    assert (
        explain_text(unreachable).causes[0].playbook == "net.plugin.transport"
    )  # NCCL_SOCKET_IFNAME is nothing to MPI


@pytest.mark.parametrize(("own", "empty"), [("::", True), ("::ffff:10.9.0.9", False)])
def test_an_empty_gid_is_told_as_one(own: str, empty: bool) -> None:
    refused = "NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state RTR"
    first = explain_text(
        f"k9:8:9 [0] {refused}, local GID index 3, local GID {own}, remote GID ::ffff:10.9.1.4\n"
    ).causes[0]
    assert first.id == "ib.gid-index" and ("GID entry 3 is empty" in first.title) is empty


@pytest.mark.parametrize(
    ("share", "step"),
    [
        (0.8, "step 10 iter_time: 9.3s exposed_comm: 80.0%"),
        (0.85, "step 10 total 6.00s (compute 0.7s allreduce 5.10s)"),
        (0.8, "loss 2.1 time 1500 ms comm 1.2s"),
        (None, "loss 2.1 backward: 100 ms, allreduce: 90 ms"),  # of how much, nobody told
        (0.5, "forward: 1300 ms, comm: 1200 ms, step_time: 2.4 s"),
        (None, "gpu util 80%, comm efficiency 95%, allreduce bandwidth 92%"),
    ],
)
def test_what_part_of_a_step_was_communication(share: float | None, step: str) -> None:
    assert communication_share(step) == (share if share is None else pytest.approx(share))


def test_a_pod_of_another_job_is_not_missing() -> None:
    listed = (
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
        "fit-master-0   1/1     Running   0          21m\n{}   0/1     Pending   0          21m\n"
    )
    assert "fit-worker-0 is Pending" in explain_text(listed.format("fit-worker-0")).sentence
    assert "Pending" not in explain_text(listed.format("notebook-0")).sentence


@pytest.mark.parametrize(
    ("setting", "blamed"),
    [("NCCL_P2P_DISABLE set by environment to 1", True), ("NCCL_PROTO set by environment to LL", False)],
)
def test_a_matrix_of_nvlinks_is_held_against_what_forbids_peers(setting: str, blamed: bool) -> None:
    got = explain_text(
        f"tr-c:8:8 [0] NCCL INFO {setting}\n"
        "tr-c:8:8 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
        "step 10 | loss 2.9\nstep 20 | loss 2.8\n"
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV6\t0-15\t0\nGPU1\tNV6\t X \t0-15\t0\n"
    )
    assert any("from their NVLinks" in cause.title for cause in got.causes) is blamed


def test_a_firewall_that_is_on_is_no_proof() -> None:
    got = explain_text("trn03: docker active, firewalld active, ufw inactive\n")
    assert (got.verdict, got.causes[0].id) == (Verdict.UNDECIDED, "net.firewall")


WAITED = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/srv/train.py", line 15, in <module>
[rank{0}]:     dist.all_reduce(t)
[rank{0}]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete
"""


@pytest.mark.parametrize(("told", "verdict"), [("", Verdict.UNDECIDED), ("world size 3\n", Verdict.CAUSE_FOUND)])
def test_that_none_was_late_needs_the_number_of_ranks(told: str, verdict: Verdict) -> None:
    """The last rank of all may sleep and have said nothing: the others then look like all."""
    found = explain_text(told + "".join(map(WAITED.format, range(3))))
    assert (found.verdict, found.causes[0].id) == (verdict, "app.collective-mismatch")
    assert ("are there more?" in found.causes[0].title) == (not told)
    late = explain_text("world size 4\n" + "".join(map(WAITED.format, range(3))))
    assert late.verdict is Verdict.UNDECIDED and late.causes[0].id == "app.straggler-timeout"


_CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.4.0.7]:34206\n"
_LISTED = "train.py FAILED\n" + "".join(
    f"  rank      : {n} (local_rank: {n})\n  exitcode  : 1 (pid: 4{n})\n" for n in (0, 1)
)


def _lost(rank: int) -> str:
    return f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]: {_CLOSED}"


def test_a_rank_that_no_table_lists_was_done() -> None:
    done = "had ended without an error"
    assert f"rank 2 {done}" in explain_text(f"[rank2]: leaving\n{_lost(0)}{_lost(1)}{_LISTED}").sentence
    # It lost a connection itself: the table of its node is not in the log. Of a rank that said nothing, nothing is known.
    assert done not in explain_text(f"{_lost(2)}{_lost(0)}{_lost(1)}{_LISTED}").sentence
    assert done not in explain_text(f"world size 3\n{_lost(0)}{_lost(1)}{_LISTED}").sentence


def test_a_rank_that_only_the_table_lists_is_one_of_the_job() -> None:
    """It waited for nobody until its time-out: the others may have waited for it."""
    waited = "".join(
        _lost(n).replace(
            "Connection closed by peer [10.4.0.7]:34206", "Timed out waiting 9000ms for recv operation to complete"
        )
        for n in (0, 1)
    )
    assert "waited for each other" in explain_text(waited).sentence
    killed = "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 42)\n"
    told = "Sending process 42 closing signal SIGTERM\n"
    assert "waited for another one" in explain_text(waited + told + _LISTED + killed).sentence


@pytest.mark.parametrize(("code", "told"), [(-15, "launch.killed"), (1, "net.firewall")])
def test_a_launcher_is_stopped_because_a_rank_failed_unless_that_was_stopped_too(code: int, told: str) -> None:
    error = "timed out connecting: SO_ERROR: Connection refused, remote=[10.4.0.7]:41373"
    assert (
        explain_text(
            f"[gloo/transport/tcp/debug_logger.cc:9] ERROR failed to connect, willRetry=0, retry=4, rank=1, size=2, "
            f"local=[10.4.0.8]:31435, remote=[10.4.0.7]:41373, error={error}\n"
            f"[rank1]: RuntimeError: Gloo connectFullMesh failed with [pair.cc:152] {error}\n"
            f"failed (exitcode: {code}) local_rank: 0 (pid: 5423) of binary: /opt/venv/bin/python\n"
            "Received 15 death signal, shutting down workers\n"
        )
        .causes[0]
        .id
        == told
    )


def _waited(*ranks: int) -> str:
    return "".join(
        f"[rank{rank}]:[E1102 11:31:47.1 ProcessGroupNCCL.cpp:684] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=181, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600033 milliseconds\n"
        for rank in ranks
    )


def _port_event(time: str, port: str, what: str) -> str:
    return f"[2025-11-02 {time}] a21:55:58 [3] NCCL WARN NET/IB : {port} Got non-fatal async event: port {what}\n"


_PORT_ERROR = _port_event("11:17:10", "mlx5_5:1", "error(10)")
_PORT_ACTIVE = _port_event("11:17:13", "mlx5_5:1", "active(9)")


@pytest.mark.parametrize(
    ("log", "blamed"),
    [
        (_PORT_ERROR + _PORT_ACTIVE, False),
        (_PORT_ERROR + _PORT_ACTIVE + _PORT_ERROR.replace("11:17", "11:21"), True),
        (_PORT_ERROR + _PORT_ACTIVE + _PORT_ERROR.replace("mlx5_5", "mlx5_6"), True),
        ((_PORT_ERROR + _PORT_ACTIVE).replace("mlx5_5", "rocep5s0"), False),
        (_PORT_ERROR + _PORT_ACTIVE.replace("mlx5_5", "mlx5_55"), True),
        (_PORT_ERROR.replace("mlx5_5", "rocep5s0") + _PORT_ACTIVE.replace("mlx5_5", "rocep6s0"), True),
        (_PORT_ERROR + _PORT_ACTIVE.replace("11:17", "11:19"), True),
        (re.sub(r"\[2025.*?\] ", "", _PORT_ERROR + _PORT_ACTIVE), True),
    ],
    ids=["back", "failed again", "another failed", "back, RoCE", "a longer name", "another is back", "late", "no time"],
)
def test_a_port_error_is_excused_only_if_all_that_failed_were_soon_back(log: str, blamed: bool) -> None:
    found = explain_text(log + _waited(1, 2, 3))
    assert (found.verdict is Verdict.CAUSE_FOUND and found.causes[0].id == "ib.port-down") is blamed


_FAILED = "[2026-10-11 05:38:17] b3:90:91 [2] NCCL WARN NET/IB : mlx5_7:1 Got async event : port error\n"
_AGAIN = _FAILED.replace("05:38", "07:39")
_WORKED = _FAILED + "".join(f"2026-10-11 0{hour}:30:00 step {hour}00 loss 2.1\n" for hour in (6, 7))
_QUOTA = "2026-10-11 07:40:41 rank 18: writer gives up: [Errno 122] Disk quota exceeded: '/lustre/p9/step_20896'\n"


@pytest.mark.parametrize(
    ("logs", "cause"),
    [
        ({"b": _WORKED + _QUOTA}, "sys.disk-full"),
        ({"b": _WORKED + _AGAIN + _QUOTA}, "ib.port-down"),
        ({"a": _AGAIN, "b": _WORKED + _QUOTA}, "ib.port-down"),
        ({"b": _WORKED + _QUOTA, "c": _AGAIN}, "ib.port-down"),
    ],
    ids=["once", "again", "again in the file before", "again in the file behind"],
)
def test_a_fault_gives_way_only_to_what_came_long_after_its_last_line(logs: dict[str, str], cause: str) -> None:
    assert analyse([LogSource(*log) for log in logs.items()]).causes[0].id == cause


_REMAPPED = (
    "n7: [Sun Nov  2 10:51:02 2025] NVRM: Xid (PCI:0000:47:00): 63, pid='<unknown>', name=<unknown>, "
    "Row Remapper: New row (0xa1c8) marked for remapping\n"
)


@pytest.mark.parametrize(("again", "blamed"), [("", False), (_REMAPPED.replace("10:51", "11:21"), True)])
def test_remapped_rows_are_outlived_only_if_the_last_are(again: str, blamed: bool) -> None:
    log = "2025-11-02 11:20:31,110 step=544 loss=1.43\n" + _REMAPPED + again + _waited(1)
    found = {cause.id: cause.confidence for cause in explain_text(log).causes}
    assert (found["gpu.ecc"] > 0.5) is blamed


def test_a_rule_that_raises_hides_nothing_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case) -> list[Candidate]:
        raise KeyError("x")

    monkeypatch.setattr(candidates, "all_diagnoses", lambda: (broken,))
    found = analyse(
        [LogSource("job.log", b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")]
    )
    assert [cause.id for cause in found.causes][:1] == ["gpu.oom"]
    assert [item.problem for item in found.problems] == ["its rule broken failed: KeyError: 'x'"]
    assert analyse([LogSource("job.log", (STEPS + "training complete\n").encode())]).verdict is Verdict.UNDECIDED


def test_who_came_to_the_monitored_barrier_was_not_busy() -> None:
    """As torch 2.13 with gloo printed it: rank 0, which waits for a fourth rank, was ended before it could say for whom."""
    said = "Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    log = (
        f"[rank3]:[E1123 01:36:13.422849066 ProcessGroupGloo.cpp:67] {said} Please check rank 0 logs for faulty rank.\n"
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/w/mb.py", line 6, in <module>\n[rank3]:     dist.monitored_barrier()\n'
        f"[rank3]: RuntimeError: {said} Please check rank 0 logs for faulty rank.\n[rank3]:  Original exception: \n"
        "[rank3]: [/pytorch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete\n"
    )
    found = analyse([LogSource("job.log", log.encode())])
    assert found.verdict is Verdict.UNDECIDED
    assert "busy" not in found.sentence


def _listed(host: str, pid: int) -> str:
    return "".join(
        f"#  Rank  {n} Group  0 Pid {pid:>6} on {host:>10} device  {n} [0x1f] NVIDIA H800\n" for n in range(2)
    )


_ROW = "  1073741824     268435456     float     sum      -1   11046.7   97.20   97.20      0   11046.7   97.20   97.20      0\n"
_PART = "FileNotFoundError: [Errno 2] No such file or directory: '/w/.eval_hook/part_3.pkl'\n"


@pytest.mark.parametrize(
    ("command", "sure"), [("", False), ("$ mpirun -np 2 -H hw14,hw15 all_reduce_perf -g 2\n", True)]
)
def test_tests_of_two_hosts_may_be_meant_to_be_two(command: str, sure: bool) -> None:
    ends = 2 * f"{_ROW}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 97.2\n"
    found = explain_text(command + _listed("hw14", 798) + _listed("hw15", 791) + ends)
    assert (found.verdict is Verdict.CAUSE_FOUND) is sure
    assert found.causes[0].id == "launch.world-size"


@pytest.mark.parametrize(
    ("command", "sure"), [("", True), ("$ torchrun --standalone --nproc_per_node=4 train.py\n", False)]
)
def test_ranks_of_one_host_share_its_directories(command: str, sure: bool) -> None:
    found = explain_text(
        f'{command}Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n{_PART}'
    )
    assert (found.verdict is Verdict.CAUSE_FOUND) is sure


_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.10 GiB\n"
)
_TOLD_BY_TORCHRUN = "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: {} (pid: 4711) of binary: py\n"


@pytest.mark.parametrize(
    ("beside", "ranks"),
    [
        ("0: rank 0: host n0 ready\n0: rank 5: host n1 ready\n", (5,)),  # rank 0 lists all
        ("3: [E ProcessGroupNCCL.cpp:629] [PG ID 2 PG GUID 9 Rank 1] Process group watchdog thread terminated\n", (5,)),
        ("5: E0416 21:26:47.341200 112 " + _TOLD_BY_TORCHRUN.format(0), (5,)),
        ("5: E0416 21:26:47.341200 112 " + _TOLD_BY_TORCHRUN.format(3), ()),  # the node is the sixth
        ("5: [rank40]: step 3\n", ()),
        ("5: [2025-02-22 08:19:49 TP40] Scheduler hit an exception: Traceback (most recent call last):\n", ()),
        ("".join(f"{n // 2}: [E ProcessGroupNCCL.cpp:4] [Rank {n}] Timeout at NCCL work\n" for n in range(12)), ()),
    ],
)
def test_labels_of_srun_are_ranks_unless_a_rank_or_torchrun_tells_otherwise(
    beside: str, ranks: tuple[int, ...]
) -> None:
    log = "0: [rank0]: step 3\n" + beside + "5: " + _OOM + "srun: error: n5: task 5: Exited with exit code 1\n"
    assert explain_text(log).causes[0].ranks == ranks


@pytest.mark.parametrize(("pod", "ranks"), [(0, (0,)), (2, ())])
def test_who_speaks_without_a_number_on_a_later_host_is_not_rank_0(pod: int, ranks: tuple[int, ...]) -> None:
    waited = "".join(f"[pod/job-worker-{rank}/pytorch] {_waited(rank)}" for rank in (1, 2, 3))
    found = explain_text(f"[pod/job-worker-{pod}/pytorch] Saving checkpoint to /ckpt/step_1000\n{waited}")
    assert next(cause.ranks for cause in found.causes if cause.id == "app.straggler-timeout") == ranks


def test_a_description_of_the_machine_makes_no_peer_leave() -> None:
    given = "az3:61840:61932 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml\n"
    remote = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    assert "env.bad-nccl-var" not in [cause.id for cause in explain_text(given + remote).causes]


def test_who_has_saved_is_not_told_to_save() -> None:
    found = explain_text("Saving checkpoint to /ckpt/1000\nSaved checkpoint in 12.1 s\n" + _waited(1, 2, 3))
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("more", "sure"), [("", True), ("Killed\n", False)])
def test_a_name_that_ipv6_does_not_know_may_be_found_later(more: str, sure: bool) -> None:
    told = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (train-0, 23456) cannot be retrieved (gai error: -2 - Unknown).\n"
    assert (explain_text(told + more).verdict is Verdict.CAUSE_FOUND) is sure


def test_a_cache_whose_client_passes_over_that_it_cannot_be_written_is_no_trouble() -> None:
    began = "[2026-06-07 18:55:57] Init torch distributed ends. elapsed=0.23 s, mem usage=0.04 GB\n"
    refused = "[Errno 30] Read-only file system: '/models/hub/.no_exist/989a/model.safetensors'\n"
    passed = f"Could not cache non-existence of file. Will ignore error and continue. Error: {refused}"
    assert explain_text(began + f"OSError: {refused}").causes[0].id == "sys.clock-or-dns-or-fs"
    assert explain_text(began + passed).causes == ()


_LEFT_UNDESTROYED = (
    "[rank{0}]:[W528 08:35:35.294007930 ProcessGroupNCCL.cpp:1569] Warning: WARNING: destroy_process_group() was not called "
    "before program exit, which can leak resources. (function operator())\n"
)


def test_what_is_harmless_is_so_however_many_ranks_say_it() -> None:
    """Not all lines of 56 ranks are kept by their signature."""
    assert explain_text("".join(_LEFT_UNDESTROYED.format(rank) for rank in range(56))).causes == ()


def test_a_batch_script_that_misses_a_command_before_the_ranks_of_srun_began() -> None:
    missed = "/var/spool/slurmd/job7/slurm_script: line 374: python: command not found\n"
    assert explain_text(missed).causes[0].id == "unrelated"
    stopped = "srun: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
    ranks = "".join(_LEFT_UNDESTROYED.format(rank) for rank in (3, 9))
    assert explain_text(missed + ranks + stopped).causes[0].id == "launch.killed"


def test_a_warning_that_speaks_of_an_iteration_is_no_step() -> None:
    warned = "schedules.py:211: UserWarning: an AccumulateGrad node created prior to the current iteration 1 is kept\n"
    assert explain_text(warned * 3).verdict is Verdict.UNDECIDED
    bar = " 31%|###1      | 31/100 [00:31<01:09,  1.02s/it]"
    assert explain_text(f"{bar}/opt/app/{warned}" * 3).verdict is Verdict.HEALTHY
