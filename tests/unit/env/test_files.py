"""Bad input: a clear word for that file, and the rest goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nccl_doctor.env import examine, files, sources
from nccl_doctor.env.files import Kind

GOOD = "export NCCL_DEBUG=WARN\n"


def why(path: Path) -> str:
    (problem,) = files.read([str(path)]).problems
    return problem.why


def test_binary(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_bytes(b"\x7fELF\0\0NCCL_DEBUG=INFO")
    assert "binary" in why(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    with path.open("wb") as stream:
        stream.seek(200 << 20)
        stream.write(b"\n")
    assert "larger than 4 MiB" in why(path)


def test_one_enormous_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("NCCL_DEBUG: " + "x" * (2 << 20))
    assert "line of" in why(path)


def test_missing_and_loop_and_device(tmp_path: Path) -> None:
    assert "not there" in why(tmp_path / "absent.sh")
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    assert "leads back to itself" in why(tmp_path / "loop.sh")
    os.mkfifo(tmp_path / "pipe.sh")
    assert "regular file" in why(tmp_path / "pipe.sh")
    assert "regular file" in why(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(GOOD)
    path.chmod(0)
    assert "permission" in why(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", "NCCL_DEBUG = (", "no valid Python"),
        ("a.yaml", "NCCL_DEBUG: [", "no valid YAML"),
        ("a.json", '{"NCCL_DEBUG": ', "no valid YAML"),
        ("b.yaml", "NCCL_DEBUG: " + "[" * 100_000, "nested deeper"),
        ("b.py", "NCCL_DEBUG = " + "-" * 200_000 + "1", "no valid Python"),
    ],
)
def test_broken_formats(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert said in why(path)


def test_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("NCCL_DEBUG: [")
    (tmp_path / "b.sh").write_text("export NCCL_TIMEOUT=1\n")
    (tmp_path / "c.py").write_bytes(b"\0")
    (tmp_path / "loop").symlink_to(tmp_path)
    result = examine.examine([str(tmp_path)])
    assert [Path(problem.file).name for problem in result.problems] == ["a.yaml", "c.py"]
    assert [item.finding.id for item in result.remarks] == ["env.bad-nccl-var.timeout-does-nothing"]
    assert result.exit_code(strict=False) == 11


def test_exit_codes(tmp_path: Path) -> None:
    good, bad, warn = tmp_path / "good.sh", tmp_path / "bad.yaml", tmp_path / "warn.sh"
    good.write_text(GOOD)
    bad.write_text("NCCL_DEBUG: [")
    warn.write_text("export NCCL_IB_DISABLE=1\n")
    assert examine.examine([str(good)]).exit_code(strict=True) == 0
    assert examine.examine([str(good), str(bad)]).exit_code(strict=False) == 4
    assert examine.examine([str(bad)]).exit_code(strict=False) == 3
    assert examine.examine([str(warn)]).exit_code(strict=False) == 0
    assert examine.examine([str(warn)]).exit_code(strict=True) == 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/run.sh", Kind.SHELL),
        ("job.sbatch", Kind.SHELL),
        ("etc/nccl.conf", Kind.CONF),
        (".nccl.conf", Kind.CONF),
        ("Dockerfile", Kind.DOCKER),
        ("Dockerfile.gpu", Kind.DOCKER),
        ("train.dockerfile", Kind.DOCKER),
        ("x.yml", Kind.YAML),
        ("t.py", Kind.PYTHON),
        (".env.prod", Kind.ENV_FILE),
        (".deepspeed_env", Kind.ENV_FILE),
        ("README.md", None),
    ],
)
def test_kinds(name: str, kind: Kind | None) -> None:
    assert files.kind_of_name(name) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("#!/usr/bin/env python3\nimport os\n", Kind.PYTHON),
        ("#!/bin/sh\n", Kind.SHELL),
        ("apiVersion: v1\nkind: Pod\n", Kind.YAML),
        ("FROM x\nENV A=1\n", Kind.DOCKER),
        ("NCCL_DEBUG=INFO\nA=1\n", Kind.ENV_FILE),
        ("export A=1\n", Kind.SHELL),
    ],
)
def test_kinds_by_content(text: str, kind: Kind) -> None:
    assert files.kind_of_text(text) is kind


def test_globs_and_directories_name_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.sh").write_text(GOOD)
    (tmp_path / "sub" / "b.sh").write_text(GOOD)
    (tmp_path / "sub" / "notes.md").write_text(GOOD)
    (tmp_path / ".pytest_cache").mkdir()
    (tmp_path / ".pytest_cache" / "c.sh").write_text(GOOD)
    assert list(files.find(["-"])) == [("-", True)]
    found = [Path(path).name for path, _ in files.find([str(tmp_path), str(tmp_path / "**" / "*.sh")])]
    assert found == ["a.sh", "b.sh"]


def test_what_is_not_read_of_a_directory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.sh", "b.sh", "c.sh"):
        (tmp_path / name).write_text(GOOD)
    monkeypatch.setattr(files, "FILE_LIMIT", 2)
    reading = files.read([str(tmp_path)])
    assert len(reading.looked_at) == 2 and reading.problems[0].file.endswith("c.sh")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.sh").write_text(GOOD)
    listed = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("/d"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert [item.file for item in files.read([str(tmp_path / "d")]).problems] == [str(tmp_path / "d")]


def test_a_log_line_of_any_length_needs_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "job.log"
    with path.open("w") as stream:
        stream.write("a:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n")
        for _ in range(40):
            stream.write("NCCL " * 200_000)
        stream.write("\na:1:2 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
    tracemalloc.start()
    result = examine.examine(logs=[str(path)], nccl_version="2.28.9")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {item.name for item in result.assignments} == {"NCCL_ALGO", "NCCL_PROTO"}
    assert peak < 20 << 20


def test_in_a_directory_a_file_without_ending_must_look_like_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "nodeids").write_text('["NCCL_DEBUG=ERROR"]\nexport NCCL_DEBUG=ERROR\n')
    (tmp_path / "epilog").write_text("#!/bin/sh\nexport NCCL_DEBUG=ERROR\n")
    (tmp_path / "settings").write_text("NCCL_DEBUG=ERROR\n")
    found = {Path(item.assignment.file).name for item in examine.examine([str(tmp_path)]).remarks}
    assert found == {"epilog", "settings"}
    assert examine.examine([str(tmp_path / "nodeids")]).remarks


def test_what_a_benchmark_tries_is_its_purpose(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    line = "mpirun -x NCCL_ALGO=Tree -x NCCL_P2P_DISABLE=1 -x NCCL_DEBUG=ERROR "
    for command, severities in (
        ("./all_reduce_perf -g 1", {"algo-without-ring": "info", "leftover-debugging": "info", "pinned": "info"}),
        ("python train.py", {"algo-without-ring": "fail", "leftover-debugging": "warn", "pinned": "warn"}),
        ("./all_reduce_perf; torchrun train.py", {"algo-without-ring": "fail", "pinned": "warn"}),
        ("./train.sh  # all_reduce_perf was well", {"algo-without-ring": "fail", "pinned": "warn"}),
    ):
        path.write_text(line + command + "\n")
        found = {
            item.finding.id.split(".")[2]: item.finding.severity.value for item in examine.examine([str(path)]).remarks
        }
        assert found.items() >= severities.items(), command
        assert found["invalid-value"] == "fail"


def test_of_the_environment_secrets_are_left_out_and_a_partition_key_is_none() -> None:
    variables = {
        "NCCL_IB_PKEY": "1",
        "NCCL_API_KEY": "x",
        "NCCL_AUTH_TOKEN": "x",
        "HOME": "/root",
        "NCCL_DEBUG": "WARN",
    }
    assert [item.name for item in sources.of_environment(variables)] == ["NCCL_DEBUG", "NCCL_IB_PKEY"]
