"""What ``explain`` takes besides plain logs, and what it says when there is nothing to judge."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from nccl_doctor.cli import _load_commands, app
from nccl_doctor.explain import saved_runs
from nccl_doctor.explain.files import explain_paths
from nccl_doctor.explain.model import Verdict
from nccl_doctor.facts import bundle
from nccl_doctor.findings.exit_codes import ExitCode
from nccl_doctor.findings.model import Evidence, Fix, Severity, finding
from nccl_doctor.report.explanation import to_json
from nccl_doctor.report.explanation_text import print_explanation
from nccl_doctor.report.terminal import text_console
from tests.unit.explained import explain_text
from tests.unit.facts_builder import Builder

_LINE = "a:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 7\r\n"
_load_commands()


def _run(*names: object) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(app, ["explain", "--format", "json", *map(str, names)])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16(tmp_path: Path, codec: str) -> None:
    (tmp_path / "job.log").write_bytes((_LINE * 3).encode(codec))
    got = explain_paths([str(tmp_path)])
    assert got.causes[0].id.startswith("gpu.duplicate")
    assert got.causes[0].evidence[0].text == _LINE.strip()
    assert got.read.lines == 3


def test_a_directory_with_a_slash_behind_it_is_quoted_as_one(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(_LINE)
    assert explain_paths([f"{tmp_path}/"]).causes[0].evidence[0].source == f"{tmp_path}/job.log"


def test_the_program_beside_its_logs_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('raise FloatingPointError(f"loss is NaN at step {number}")\n')
    (tmp_path / "job.log").write_text("step 1 loss 0.5\nstep 2 loss 0.4\n")
    assert explain_paths([str(tmp_path)]).read.files == 1
    assert explain_paths([str(tmp_path / "train.py")]).read.files == 1  # who names it means it


def test_a_job_that_reached_its_time_limit_needs_no_check_of_its_hosts(tmp_path: Path) -> None:
    (tmp_path / "slurm.out").write_text(
        "slurmstepd: error: *** STEP 4711.0 ON gpu01 CANCELLED AT 2026-11-22T18:50:02 DUE TO TIME LIMIT ***\n"
    )
    told = explain_paths([str(tmp_path)])
    assert told.causes[0].id == "launch.killed" and not any("check" in step for step in told.next)


def test_a_gloo_job_is_not_told_to_turn_on_nccls_lines(tmp_path: Path) -> None:
    wait = "gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"
    (tmp_path / "rank0.log").write_text(f"[rank0]: RuntimeError: [{wait}\n")
    (tmp_path / "rank1.log").write_text("[rank1] init done world 4\n")
    told = "\n".join(explain_paths([str(tmp_path)]).next)
    assert "NCCL_DEBUG" not in told and "check --stage connectivity,ports,interfaces" in told


def test_utf16_packed(tmp_path: Path) -> None:
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(_LINE.encode("utf-16")))
    assert explain_paths([str(tmp_path)]).causes[0].id.startswith("gpu.duplicate")


def test_a_hole_of_nuls_does_not_hide_the_log(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(b"\0" * (3 << 20) + _LINE.encode())
    assert explain_paths([str(tmp_path)]).causes[0].id.startswith("gpu.duplicate")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the input is empty"),
        (b"\n \n\0\0\0\n", "nothing could be read"),
        (bytes(range(256)) * 40, "nothing could be read"),
        (gzip.compress(bytes(range(256)) * 40), "nothing could be read"),
        (gzip.compress(b""), "the input is empty"),
    ],
    ids=["empty", "blank", "binary", "binary-packed", "empty-packed"],
)
def test_nothing_to_judge_is_not_healthy(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "job.log").write_bytes(content)
    code, document = _run(tmp_path / "job.log")
    assert code == ExitCode.NOTHING_CHECKED
    assert document["verdict"] == "undecided"
    assert document["sentence"] == f"{said}: there is no verdict"


def _compressed(kind: str, text: bytes) -> bytes:
    return {"gzip": gzip.compress, "xz": lzma.compress, "bzip2": bz2.compress}[kind](text)


@pytest.mark.parametrize("kind", ["gzip", "xz", "bzip2"])
def test_what_stands_before_the_break_of_a_compressed_log_is_read(tmp_path: Path, kind: str) -> None:
    before, after = (b"".join(os.urandom(30).hex().encode() + b"\n" for _ in range(20_000)) for _ in range(2))
    packed = _compressed(kind, before + _LINE.encode() + after)
    (tmp_path / "job.log").write_bytes(packed[: len(packed) * 3 // 4])
    code, document = _run(tmp_path / "job.log")
    assert code == ExitCode.FINDINGS and document["causes"][0]["id"].startswith("gpu.duplicate")  # type: ignore[index]
    assert "broken off" in document["problems"][0]["problem"]  # type: ignore[index]


def test_a_log_of_which_a_part_could_not_be_read_is_not_healthy(tmp_path: Path) -> None:
    steps = b"".join(b"step %d loss %d.5\n" % (number, number % 7) for number in range(5000))
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(steps + b"Training complete.\n"))
    code, document = _run(path)
    assert (code, document["verdict"]) == (ExitCode.HEALTHY, "healthy")
    path.write_bytes(path.read_bytes()[:-2000])
    code, document = _run(path)
    assert (code, document["verdict"]) == (ExitCode.INCOMPLETE, "undecided")
    told = CliRunner().invoke(app, ["explain", str(path)]).output
    assert "? nothing in what could be read of these logs failed" in told and "✓" not in told


@pytest.mark.parametrize("kind", ["gzip", "xz", "bzip2"])
@pytest.mark.parametrize("piped", [True, False])
def test_standard_input_may_be_compressed(tmp_path: Path, kind: str, piped: bool) -> None:
    command = [sys.executable, "-m", "nccl_doctor", "explain", "--format", "json", "-"]
    packed = _compressed(kind, _LINE.encode())
    if piped:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=300)
    else:
        (tmp_path / "job").write_bytes(packed)
        with (tmp_path / "job").open() as stream:
            done = subprocess.run(command, stdin=stream, capture_output=True, timeout=300)
    assert json.loads(done.stdout)["causes"][0]["id"].startswith("gpu.duplicate"), done.stderr


def test_standard_input_that_is_no_text_is_refused() -> None:
    command = [sys.executable, "-m", "nccl_doctor", "explain", "-"]
    done = subprocess.run(command, input=bytes(range(256)) * 40, capture_output=True, timeout=300)
    assert done.returncode == ExitCode.NOTHING_CHECKED and b"stdin: is no text" in done.stderr


def test_a_binary_beside_a_log_is_told_and_the_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "core.4711").write_bytes(os.urandom(5000))
    (tmp_path / "job.log").write_text(_LINE)
    got = explain_paths([str(tmp_path)])
    assert got.causes[0].id.startswith("gpu.duplicate")
    assert [Path(item.name).name for item in got.problems] == ["core.4711"]


def test_reports_and_benchmarks_beside_a_log_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\nTraining complete.\n")
    said = "NET/IB : No device found, KeyError: 'x', Connection refused"
    for name in ("preflight.xml", "preflight", "junit.txt"):
        (tmp_path / name).write_text(f'<?xml version="1.0"?>\n<testsuites name="nccl-doctor">{said}')
    (tmp_path / "bench.json").write_text('{\n "command": "nccl-doctor bench allreduce",\n "notes": ["' + said + '"]}')
    (tmp_path / "report.html").write_text(f"<!doctype html>{said}")
    found = explain_paths([str(tmp_path)])
    assert found.verdict is Verdict.HEALTHY and found.read.files == 1, found.sentence
    assert found.sentence == "nothing in these logs failed" and not found.problems
    assert explain_paths([str(tmp_path / "report.html")]).read.files == 1  # what is named is read


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_packed_flight_recorder_dumps(tmp_path: Path, pack: Callable[[bytes], bytes], ending: str) -> None:
    for rank in range(2):
        entry = {
            "collective_seq_id": 5,
            "profiling_name": "nccl:all_reduce" if rank else "nccl:broadcast",
            "process_group": ["0", "default_pg"],
            "input_sizes": [[4]],
            "output_sizes": [[4]],
            "state": "scheduled",
            "frames": [],
        }
        dump = {"version": "2.5", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}
        path = tmp_path / f"nccl_trace_rank_{rank}{ending}"
        path.write_bytes(pack(json.dumps({**dump, "entries": [entry]}).encode()))
    got = explain_paths([str(tmp_path)])
    assert not got.problems
    assert got.causes[0].id == "app.collective-mismatch"


def _saved(path: Path, broken: bool) -> Path:
    built = Builder()
    if broken:
        for link in built.links("gpu02", "gpu01"):
            link["outcome"] = "refused"
    bundle.write(built.bundle(), path)
    return path


def test_a_bundle_is_told(tmp_path: Path) -> None:
    code, document = _run(_saved(tmp_path / "bad.ndb", True))
    assert code == ExitCode.FINDINGS
    assert document["verdict"] == "cause-found"
    assert document["causes"][0]["id"] == "net.firewall.rejected"  # type: ignore[index]
    code, document = _run(_saved(tmp_path / "green.ndb", False))
    assert (code, document["verdict"]) == (ExitCode.HEALTHY, "healthy")
    assert document["evidence"]


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.ndb").write_text("half")
    code, document = _run(tmp_path / "x.ndb")
    assert code == ExitCode.NOTHING_CHECKED
    assert "not a bundle" in document["problems"][0]["problem"]  # type: ignore[index]


def test_a_bundle_beside_a_log_that_decides(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(_LINE)
    _saved(tmp_path / "bad.ndb", True)
    code, document = _run(tmp_path)
    ids = [cause["id"] for cause in document["causes"]]  # type: ignore[attr-defined]
    assert code == ExitCode.FINDINGS
    assert ids[0].startswith("gpu.duplicate")
    assert "net.firewall.rejected" in ids


def test_a_fault_that_both_show_comes_first() -> None:
    log = explain_text(
        "x:1:2 [0] NCCL WARN socketPollConnect: connect to 10.0.0.2<40001> returned Connection refused\n"
    )
    assert log.causes
    wanted = log.causes[-1].id
    proof = Evidence("connect 10.0.0.2:40001: refused", "connect", host="gpu02")
    fault = finding(wanted, Severity.FAIL, "the port is closed", proof, hosts=("gpu02",))
    told = saved_runs.tell(log, [saved_runs.SavedRun("a.ndb", (fault,), 2)], True)
    assert (told.verdict, told.causes[0].id) == (Verdict.CAUSE_FOUND, wanted)
    assert proof in told.causes[0].evidence
    assert len(told.causes) == len(log.causes)


def test_faults_that_a_run_proved_are_told_as_check_tells_them() -> None:
    """Each fix with its own command and host, each proof with its host; a second fault is no less likely than the first."""
    proof = Evidence("80 MiB not acknowledged", "tcp_info", host="gpu03")
    fixes = [Fix("does new traffic pass?", "nccl-doctor check -H gpu02"), Fix("see what drops it", "nft list", "gpu02")]
    faults = [finding(id, Severity.FAIL, "it is", proof, fixes=fixes) for id in ("net.mtu.black-hole", "sys.disk-full")]
    told = saved_runs.tell(explain_text(""), [saved_runs.SavedRun("a.ndb", tuple(faults), 2)], False)
    print_explanation(told, text_console(shown := io.StringIO()))
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert "gpu03:tcp_info  80 MiB not acknowledged" in lines and "also found         sys.disk-full (0.99)" in lines
    at = lines.index("fix now            does new traffic pass?")
    assert lines[at + 1 : at + 4] == ["nccl-doctor check -H gpu02", "see what drops it", "on gpu02: nft list"]
    assert json.loads(to_json(told))["causes"][0]["fixes"][1]["host"] == "gpu02"


@pytest.mark.parametrize("id", ["hang.elsewhere", "app.collective-mismatch"])
def test_a_job_that_was_seen_hanging_was_ended_because_it_hung(id: str) -> None:
    """What ``run --keep`` leaves of a job that it ended: two looks that say the same, and the launcher's last words."""
    log = explain_text(
        "W1122 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n"
    )
    assert log.causes[0].id == "launch.killed"
    proof = Evidence("evaluate (train.py:6)", "py-spy dump", host="gpu02")
    held = finding(id, Severity.FAIL, "rank 1 sleeps in evaluate", proof, hosts=("gpu02",))
    held = msgspec.structs.replace(held, stage="job")
    told = saved_runs.tell(log, [saved_runs.SavedRun(f"hang-{number}.ndb", (held,), 1) for number in (1, 2)], True)
    assert told.sentence == "gpu02: rank 1 sleeps in evaluate"
    assert [cause.id for cause in told.causes] == [id, "launch.killed"]


def test_what_a_run_left_open_is_not_healthy() -> None:
    run = saved_runs.SavedRun("a.ndb", (), 2, ("gpu: nvidia-smi is missing",), ("nccl-doctor check --stage gpu",))
    told = saved_runs.tell(explain_text(""), [run], False)
    assert told.verdict is Verdict.UNDECIDED
    assert "left 1 thing open" in told.sentence
    assert "nvidia-smi is missing" in told.evidence[0].text
    assert told.next == ("nccl-doctor check --stage gpu",)


def test_the_order_in_which_files_are_named_changes_nothing(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank_{rank}.log").write_text(
            f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]: KeyError: 'dgo'\n"
        )
    names = [str(tmp_path / f"rank_{rank}.log") for rank in (2, 0, 1)]
    assert to_json(explain_paths(names)) == to_json(explain_paths(sorted(names)))
