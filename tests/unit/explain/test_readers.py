"""Templates, prefixes, the scan of lines, and the files that hold them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import signal
from pathlib import Path

import pytest

from nccl_doctor.explain import files, matcher
from nccl_doctor.explain.api import analyse
from nccl_doctor.explain.files import explain_paths, read_all
from nccl_doctor.explain.model import LogSource
from nccl_doctor.explain.readers import content, inputs, kept, prefix, records, scan
from nccl_doctor.explain.template import Template


def test_template_takes_holes_in_order() -> None:
    template = Template("connect to {address} failed : {error}")
    assert template.match("x connect to 10.0.0.1<5> failed : No route to host ") == {
        "address": "10.0.0.1<5>",
        "error": "No route to host",
    }
    assert template.match("connect to 10.0.0.1<5> works") is None


def test_template_types_are_checked_and_the_next_occurrence_tried() -> None:
    template = Template("rank {rank:int} and rank {other:int} both")
    assert template.match("rank a and rank b both; rank 3 and rank 5 both") == {"rank": "3", "other": "5"}


@pytest.mark.parametrize("text", ["{a}{b} words", "abc", "{x} at the start of it"])
def test_template_refuses_what_cannot_be_looked_for(text: str) -> None:
    with pytest.raises(ValueError, match="template"):
        Template(text)


@pytest.mark.parametrize(
    ("text", "rank", "host", "body"),
    [
        ("[rank3]: ValueError: x", 3, "", "ValueError: x"),
        ("[default0]:[rank3]: ValueError: x", 3, "", "ValueError: x"),
        ("[1,5]<stderr>:hello", 5, "", "hello"),
        ("node-17: [rank2]: text", 2, "node-17", "text"),
        ("[pod/train-0/main] text", None, "train-0", "text"),
        ("(RayWorkerWrapper pid=7, ip=10.0.0.2) text", None, "10.0.0.2", "text"),
        ("2026-11-03T04:00:01.123456789Z stderr F [rank1]: text", 1, "", "text"),
        ("Nov  3 04:00:01 n4 kernel: NVRM: x", None, "n4", "kernel: NVRM: x"),
        ("\x1b[33mml2:\x1b[0m text", None, "ml2", "text"),
        ("RuntimeError: text", None, "", "RuntimeError: text"),
        ("[rank 4] step 3", 4, "", "step 3"),
        ("srun: error: node7: task 5: Killed", None, "node7", "srun: error: node7: task 5: Killed"),
        ("slurmstepd-gn02: error: Detected 1 oom_kill event", None, "gn02", "error: Detected 1 oom_kill event"),
    ],
)
def test_prefixes(text: str, rank: int | None, host: str, body: str) -> None:
    line = prefix.parse(text)
    assert (line.rank, line.host, line.body) == (rank, host, body)


def test_nccl_line_names_host_and_process() -> None:
    line = prefix.parse("hgx-1:77:99 [3] misc/socket.cc:50 NCCL WARN x")
    assert (line.host, line.pid) == ("hgx-1", "77")


@pytest.mark.parametrize(
    ("text", "host", "pid", "rank"),
    [
        ("[r2-g041:41182:0:41182] ib_mlx5_log.c:171  Transport retry count exceeded", "r2-g041", "41182", None),
        ("[hopper:41182:0:41182] Caught signal 11 (Segmentation fault)", "hopper", "41182", None),
        ("[1772537000.305078] [gpu07:1313 :0]    sock.c:344  UCX  ERROR recv(fd=3) failed", "gpu07", "1313", None),
        ("[gpu07:12345] *** Process received signal ***", "gpu07", "12345", None),
        ("[1,5]<stderr>:[gpu07:12345] *** An error occurred in MPI_Init", "gpu07", "12345", 5),
        ("[gpu07][[31251,1],3][btl_tcp_endpoint.c:625:mca_btl] unexpected", "gpu07", "", 3),
        ("[proxy:0:1@gpu08] HYD_pmcd_pmip_control_cmd_cb", "gpu08", "", None),
        ("nid01:rank3.python3: Reading from remote process' memory failed", "nid01", "", 3),
        ("[1,mpirank:13,algo-2]<stderr>:torch.OutOfMemoryError: CUDA out of memory", "algo-2", "", 13),
        ("(PolicyWorker[rank=2] pid=44120, ip=172.21.8.31) done", "172.21.8.31", "44120", 2),
        (
            "ray.exceptions.RayTaskError(OutOfDiskError): ray::Runner.run() (pid=11204, ip=172.23.1.8, actor_id=1f)",
            "172.23.1.8",
            "11204",
            None,
        ),
        ("[prolog a100-24] Unable to determine the device handle", "a100-24", "", None),
        ("slurmd-dgx-14: error: Munge decode failed: Rewound credential", "dgx-14", "", None),
        ("n014 kernel: NVRM: Xid", "n014", "", None),
        ("[core.py:96] Initializing an engine", "", "", None),
        ("[train.py:96] *** epoch 3 ***", "", "", None),
        ("[trainer:96] *** epoch 3 ***", "", "", None),
        ("metrics:rank3.loss: 2.1", "", "", None),
    ],
)
def test_mpi_and_the_libraries_below_it_name_host_and_process(text: str, host: str, pid: str, rank: int | None) -> None:
    line = prefix.parse(text)
    assert (line.host, line.pid, line.rank) == (host, pid, rank)


FULL = "OSError: [Errno 28] No space left on device: '/scratch/a'"
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"


@pytest.mark.parametrize(
    ("label", "host"),
    [
        ("[hgx-{}] ", "hgx-2"),
        ("(rack3-n{}) 07/01/2026 12:19:24 AM  ", "rack3-n2"),
        ("{{spr-host{}}} ", "spr-host2"),
        ("26/11/02 13:47:42 gpu-job-{} | ", "gpu-job-2"),
        ("asr-{} \u25b8 ", "asr-2"),
        ("[gpu0{}] ", "gpu02"),
        ("[gpu{}] ", ""),
        ("[rank-{}] ", ""),
        ("[Worker_TP{}] ", ""),
        ("[stage-{}] ", ""),
    ],
)
def test_a_label_that_differs_by_a_number_between_lines_is_a_host(label: str, host: str) -> None:
    waiting = [f"{label.format(node)}[rank{node}]: {WATCHDOG}" for node in (0, 1, 3)]
    got = analyse([LogSource("job.log", "\n".join([*waiting, f"{label.format(2)}[rank2]: {FULL}"]))])
    assert got.causes[0].id == "sys.disk-full"
    assert got.causes[0].hosts == ((host,) if host else ())


def test_a_label_of_one_kind_only_is_a_host_that_other_lines_name() -> None:
    lustre = "[Wed Nov  6 01:31:44 2024] [jwb0422] Lustre: work-OST0012-osc-ff: Connection to work-OST0012 (at 10.1.1.1@o2ib) was lost"
    told = "INFO rank=8 local_rank=0 host=jwb0422 device=NVIDIA A100"
    assert analyse([LogSource("job.log", f"{told}\n{lustre}\n")]).causes[0].hosts == ("jwb0422",)
    assert analyse([LogSource("job.log", f"{lustre}\n")]).causes[0].hosts == ()


def test_a_label_stands_for_the_host_that_nccl_names_behind_it() -> None:
    nccl = [
        f"[node-{node}] hopper{node}a:41:42 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{node}<0>" for node in (1, 2)
    ]
    xid = "[node-{}] [Mon Mar  2 11:05:53 2026] NVRM: Xid (PCI:0000:9a:00): 79, pid=7, GPU has fallen off the bus."
    other = [f"[node-1] [rank{rank}]: {WATCHDOG}" for rank in (0, 1, 2)]
    got = analyse([LogSource("job.log", "\n".join([*nccl, *other, xid.format(2)]))])
    assert got.causes[0].hosts == ("hopper2a",)


def test_times_of_different_loggers_compare() -> None:
    one = prefix.parse("[rank1]:[E1103 04:10:11.5 ProcessGroupNCCL.cpp:1] x").seconds
    two = prefix.parse("2026-11-03 04:10:11,500 x").seconds
    three = prefix.parse("[Tue Nov  3 04:10:11 2026] x").seconds
    titan = prefix.parse("[rank0]:[titan] 2026-11-03 04:10:11,500 - root - INFO - x").seconds
    assert one == two == titan == (three or 0) + 0.5


@pytest.mark.parametrize(("lead", "host"), [("", ""), ("gpu01: ", "gpu01")])
def test_an_interface_is_no_host_and_its_number_no_task(lead: str, host: str) -> None:
    line = prefix.parse(f"{lead}2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500")
    assert (line.task, line.host, line.body[:2]) == (None, host, "2:")
    assert prefix.parse(f"{lead}eth0: flags=4163<UP,BROADCAST>  mtu 1500").host == host


def test_srun_label_is_a_task() -> None:
    line = prefix.parse("17:   File x")
    assert (line.task, line.rank, line.body) == (17, None, "  File x")


def _scan(text: bytes | str) -> scan.Summary:
    return scan.scan(LogSource("log", text))


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        ('"hostx","NCCL WARN Call to ""connect"" failed"', ['NCCL WARN Call to "connect" failed']),
        ('2026-11-22 18:33:09.123,"CUDA out of memory","job/1"', ["CUDA out of memory", "job/1"]),
        ('expected one of a, b, "c"', []),
    ],
)
def test_a_row_of_csv_is_what_its_fields_say(row: str, lines: list[str]) -> None:
    """A query may hand the message out before the name of its stream."""
    assert [text.removeprefix("2026-11-22 18:33:09.123 ") for text in records.unwrap(row)] == (lines or [row])


def test_interleaved_tracebacks_are_put_together() -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n[rank0]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/a.py", line 3, in f\n[rank0]:   File "/job/b.py", line 4, in g\n'
        "[rank0]: KeyError: 'zero'\n[rank1]: ValueError: one\n"
    )
    found = {(item.hit.rank, item.type, item.where) for item in _scan(text).tracebacks}
    assert found == {(0, "KeyError", "/job/b.py:4"), (1, "ValueError", "/job/a.py:3")}


def test_the_name_of_an_exception_that_several_ranks_tell_at_once() -> None:
    (told,) = _scan("RuntimeErrorRuntimeError: : NCCL error in: a.cpp:1, internal error\n").tracebacks
    assert told.type == "RuntimeError"


def test_line_numbers_across_blocks() -> None:
    filler = "x" * 99 + "\n"
    text = (
        filler * 30_000
        + "a:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 7\n"
    )
    hit = _scan(text).groups["duplicate-gpu"].hits[0]
    assert hit.line == 30_001


def test_a_line_of_any_length_costs_no_memory() -> None:
    def pieces() -> object:
        yield b"step 1 loss 2\n" + b"EADDRINUSE "
        for _ in range(64):
            yield b"y" * (1 << 20)
        yield b"\nCUDA out of memory. Tried to allocate 2.00 GiB.\n"

    summary = scan.scan(LogSource("log", pieces()))  # type: ignore[arg-type]
    assert summary.lines == 3
    assert summary.groups["cuda-oom"].hits[0].line == 3
    assert max(len(hit.text) for group in summary.groups.values() for hit in group.hits) <= kept.QUOTE_LIMIT


def test_progress_bars_with_carriage_returns() -> None:
    text = b"\r".join(b"%d/9000 [00:01<00:02]" % n for n in range(2000)) + b"\rRuntimeError: CUDA out of memory\n"
    hit = _scan(text).groups["cuda-oom"].hits[0]
    assert hit.text == "RuntimeError: CUDA out of memory"


def test_both_engines_find_the_same() -> None:
    pytest.importorskip("hyperscan")
    anchors = (b"Xid", b"Xid (PCI", b"error", b"rror: 5")
    block = b"Xid (PCI:1): 79\nnothing\nerror: 5 and error\nXid\n" * 50
    ends = [
        {(block.count(b"\n", 0, end - 1), index) for end, index in kind(anchors).find(block)}
        for kind in (matcher.HyperscanEngine, matcher.PlainEngine)
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_logs(pack: object, tmp_path: Path) -> None:
    (tmp_path / "job.log.z").write_bytes(pack(b"[rank0]: KeyError: 'LOCAL_RANK'\n"))  # type: ignore[operator]
    assert explain_paths([str(tmp_path)]).causes[0].id == "launch.env-missing"


def test_zstd_log(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "job.log.zst").write_bytes(zstandard.ZstdCompressor().compress(b"EADDRINUSE\n"))
    assert explain_paths([str(tmp_path / "job.log.zst")]).causes[0].id == "net.port-in-use"


def test_gzip_bomb_is_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "FREE_INFLATED", 1 << 20)
    monkeypatch.setattr(content, "MAX_RATIO", 100)
    (tmp_path / "bomb.log.gz").write_bytes(gzip.compress(b"EADDRINUSE\n" + b"\0" * (8 << 20)))
    (tmp_path / "fine.log").write_text("[rank0]: KeyError: 'RANK'\n")
    got = explain_paths([str(tmp_path)])
    assert any("grows more than" in problem.problem for problem in got.problems)
    assert "launch.env-missing" in {cause.id for cause in got.causes}


def test_damaged_gzip_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    whole = gzip.compress(b"step\n" * 9000)
    (tmp_path / "a.log.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.log").write_text("[rank0]: KeyError: 'RANK'\n")
    got = explain_paths([str(tmp_path)])
    assert [problem.name for problem in got.problems] == [str(tmp_path / "a.log.gz")]
    assert got.causes[0].id == "launch.env-missing"


def test_pipes_loops_and_missing_files_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "x.log").write_text("[rank0]: KeyError: 'RANK'\n")
    got = explain_paths([str(tmp_path), str(tmp_path / "absent.log"), str(tmp_path / "*.nothing")])
    assert got.read.files == 1
    said = {Path(problem.name).name: problem.problem for problem in got.problems}
    assert "named pipe" in said["pipe"]
    assert said["absent.log"] == "no such file or directory"
    assert said["*.nothing"] == "no file matches"
    assert "dangling" in said


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("a\n")
    files, problems = inputs.find([str(tmp_path), str(tmp_path / "x.log"), str(tmp_path / "*.log")])
    assert len(files) == 1
    assert not problems


def test_what_run_kept_beside_the_jobs_output_is_left_out_here_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").write_text('{\n  "tool": "nccl-doctor"\n}\n')
    for name in ("explanation.txt", "rank0.txt"):
        (tmp_path / name).write_text("a\n")
    monkeypatch.chdir(tmp_path)
    for named in (".", "*.txt", f"{tmp_path}/*.txt"):
        assert [Path(file.name).name for file in inputs.find([named])[0]] == ["rank0.txt"]


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("rank17.err", 17, ""),
        ("attempt_0/3/stderr.log", 3, ""),
        ("job-4711.gpu03.log", None, "gpu03"),
        ("node007/rank_12.log.gz", 12, "node007"),
        ("train.log", None, ""),
        ("nccl_trace_rank_5", 5, ""),
    ],
)
def test_names_that_say_rank_and_host(name: str, rank: int | None, host: str) -> None:
    assert inputs.identity(name) == (rank, host)


def test_what_a_process_says_of_many_channels_is_counted_and_the_last_is_known() -> None:
    lines = [
        f"n{process}:{process}:9 [0] NCCL INFO Channel {channel:02d}/0 : 0[0] -> 8[0] [send] via NET/IB/{channel % 2}"
        for channel in range(600)
        for process in (1, 2)
    ]
    summary = scan.scan(LogSource("log", "\n".join(["n1:1:9 [0] NCCL INFO NCCL version 2.27.5", *lines, "bye"]), 3))
    group = summary.groups["channel-net"]
    assert group.count == len(lines)
    assert [(hit.host, hit.groups["device"]) for hit in group.hits] == [
        ("n1", "0"),
        ("n2", "0"),
        ("n1", "1"),
        ("n2", "1"),
    ]
    assert group.last is not None and group.last.line == len(lines) + 1 and group.last.text == lines[-1]
    assert summary.last_of_rank[3].text == "bye"


def test_a_thousand_lines_of_talk_hide_neither_settings_nor_the_trail_of_an_error() -> None:
    talk = [f"n1:7:7 [0] NCCL INFO Ring {number:02d} : 0 -> 1 -> 2" for number in range(scan.BUSY + 200)]
    end = [
        "n1:7:9 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_1.",
        "n1:7:9 [0] NCCL INFO include/net.h:9 -> 2",
    ]
    groups = scan.scan(LogSource("log", "\n".join([*talk, *end]))).groups
    assert [hit.line for hit in groups["env-echo"].hits] == [len(talk) + 1]
    assert groups["nccl-trail"].hits[0].groups == {"place": "include/net.h:9", "code": "2"}


def test_processes_give_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_doctor.explain import files as explain_files

    for rank in range(6):
        text = f"[rank{rank}]: KeyError: 'x'\n" if rank == 4 else f"[rank{rank}]: step 1 loss 2\n\xff"
        (tmp_path / f"rank{rank}.log").write_bytes(text.encode("latin-1"))
    (tmp_path / "cut.json").write_text('{"message": "step 2 loss 1 of a cut emoji \\ud83d"}\n')
    found, _ = inputs.find([str(tmp_path)])
    one = read_all(found, workers=1)
    monkeypatch.setattr(explain_files, "SMALL", 0)
    many = read_all(found, workers=2)
    assert one.ranks == many.ranks
    assert [item.type for item in one.tracebacks] == [item.type for item in many.tracebacks]


def test_a_killed_process_costs_time_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(8):
        (tmp_path / f"rank{rank}.log").write_text(f"[rank{rank}]: KeyError: 'LOCAL_RANK'\n")
    monkeypatch.setattr(files, "SMALL", 0)
    here, read_file = os.getpid(), files.read_file

    def dies_elsewhere(file: inputs.LogFile) -> object:
        if os.getpid() != here and file.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_file(file)

    monkeypatch.setattr(files, "read_file", dies_elsewhere)
    found = explain_paths([str(tmp_path)], workers=2)
    assert (found.read.files, found.causes[0].ranks) == (8, tuple(range(8)))


@pytest.mark.parametrize("first", ["", "    main()\n"])
@pytest.mark.parametrize("lead", ["", "[rank3]: ", "    ", "ERROR 01-11 13:09:40 engine.py:366] "])
def test_a_paste_that_begins_inside_a_traceback_keeps_its_frames(first: str, lead: str) -> None:
    lines = [*first.splitlines(), '  File "/w/train.py", line 120, in main', "    loss = step(batch)"]
    lines += ['  File "/w/train.py", line 88, in step', "    x = table[key]", "KeyError: 'dog'"]
    [item] = _scan("".join(f"{lead}{line}\n" for line in lines)).tracebacks
    assert (item.type, item.where, item.frames) == ("KeyError", "/w/train.py:88", ("/w/train.py:120", "/w/train.py:88"))


@pytest.mark.parametrize("first", ["hello", 'WARN at File "a.py", line 3, in f'])
def test_a_frame_in_the_middle_of_a_log_begins_no_traceback(first: str) -> None:
    log = f"{first}\nworld\n" + '  File "/w/train.py", line 120, in main\n    main()\n' + "KeyError: 'dog'\n"
    assert all(not item.frames for item in _scan(log).tracebacks)


def test_another_tables_heading_ends_a_table_and_what_clush_puts_between_its_parts_does_not() -> None:
    queried = "index, clocks.current.sm [MHz], temperature.gpu\n0, 1980 MHz, 40\n"
    drained = "REASON               USER      TIMESTAMP           NODELIST\nbad gpu              root      2026-01-01T00:00:00 n7\n"
    groups = _scan(queried + drained).groups
    assert [hit.text.split()[0] for hit in groups["sinfo-reasons-rows"].hits] == ["bad"]
    parts = _scan(f"{queried}---------------\nn7\n---------------\n0, 345 MHz, 41\n").groups
    assert parts["gpu-table-rows"].hits[-1].text == "0, 345 MHz, 41"
