"""--fix: a diff, a file beside the original, and never the original unless told."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
import yaml

from nccl_doctor.env import examine, fix

CASES = Path(__file__).resolve().parents[2] / "cases" / "env" / "bad"


def mend(tmp_path: Path, name: str, text: str) -> tuple[str, tuple[str, ...]]:
    path = tmp_path / name
    path.write_text(text)
    found = list(fix.changes(examine.examine([str(path)]).remarks))
    assert path.read_text() == text
    return (found[0].after, found[0].left) if found else (text, ())


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.sh", "export NCCL_SOCKET_IFNMAE=eth0\n", "export NCCL_SOCKET_IFNAME=eth0\n"),
        ("a.sh", "export NCCL_SOCKET_IFNAME=^docker0\n", "export NCCL_SOCKET_IFNAME=^lo,docker,docker0\n"),
        ("a.sh", 'export NCCL_SOCKET_IFNAME="eth0, eth2"\n', 'export NCCL_SOCKET_IFNAME="eth0,eth2"\n'),
        ("a.sh", "export NCCL_TIMEOUT=1800\n", "# taken out by nccl-doctor: export NCCL_TIMEOUT=1800\n"),
        (
            "a.sh",
            "if a; then\n  export NCCL_TIMEOUT=1800\nfi\n",
            "if a; then\n  : # taken out by nccl-doctor: export NCCL_TIMEOUT=1800\nfi\n",
        ),
        ("a.sh", "NCCL_TIMEOUT=1 NCCL_DEBUG=WARN ./a\n", "NCCL_DEBUG=WARN ./a\n"),
        ("a.sh", "export NCCL_TIMEOUT=1; ./a\n", ":; ./a\n"),
        ("a.sh", "export NCCL_TIMEOUT=1 A=b; ./a\n", "export A=b; ./a\n"),
        ("a.sh", 'export NCCL_TIMEOUT="1" A=b\n', "export A=b\n"),
        ("a.sh", "(export NCCL_TIMEOUT=1)\n", "(:)\n"),
        ("a.sh", "env NCCL_TIMEOUT=${A:-1 2} ./a\n", "env ./a\n"),
        ("a.sh", "env NCCL_TIMEOUT=`a b` ./a\n", "env NCCL_TIMEOUT=`a b` ./a\n"),
        ("a.sh", "env NCCL_TIMEOUT=$(a $(b (c))) ./a\n", "env NCCL_TIMEOUT=$(a $(b (c))) ./a\n"),  # left as it is
        ("a.sh", 'env NCCL_TIMEOUT=1"2 3" ./a\n', 'env NCCL_TIMEOUT=1"2 3" ./a\n'),
        ("a.sh", "env NCCL_TIMEOUT=1\\ 2 ./a\n", "env NCCL_TIMEOUT=1\\ 2 ./a\n"),
        ("a.sh", "env NCCL_TIMEOUT=$(nproc --all) ./a\n", "env ./a\n"),
        ("a.sh", "export NCCL_TIMEOUT=$(nproc)\n", "# taken out by nccl-doctor: export NCCL_TIMEOUT=$(nproc)\n"),
        ("a.yaml", 'command: bash -c "export NCCL_TIMEOUT=1; ./a"\n', 'command: bash -c ":; ./a"\n'),
        (  # an env file has no ':' of the shell
            "a.yaml",
            "data:\n  b.env: |\n    # of one job\n    NCCL_TIMEOUT=1\n    NCCL_NET=IB\n",
            "data:\n  b.env: |\n    # of one job\n    # taken out by nccl-doctor: NCCL_TIMEOUT=1\n    NCCL_NET=IB\n",
        ),
        ("a.sh", "mpirun -x NCCL_TIMEOUT=1 -x NCCL_DEBUG=WARN ./a\n", "mpirun -x NCCL_DEBUG=WARN ./a\n"),
        ("nccl.conf", 'NCCL_SOCKET_IFNAME="=eth0" # c\n', "NCCL_SOCKET_IFNAME==eth0\n"),
        ("nccl.conf", "export NCCL_DEBUG = WARN\n", "NCCL_DEBUG=WARN\n"),
        ("nccl.conf", "NCCL_TREE_THRESHOLD=0\n", "# NCCL_TREE_THRESHOLD=0\n"),
        ("Dockerfile", "FROM x\nENV NCCL_TIMEOUT=1\n", "FROM x\n# taken out by nccl-doctor: ENV NCCL_TIMEOUT=1\n"),
        (
            "a.yaml",
            "env:\n  - name: NCCL_TIMEOUT\n    value: '1'\n  - name: A\n    value: b\n",
            "env:\n# taken out by nccl-doctor: - name: NCCL_TIMEOUT\n# value: '1'\n  - name: A\n    value: b\n",
        ),
        ("a.yaml", "env:\n  - name: NCCL_DEBUGG\n    value: WARN\n", "env:\n  - name: NCCL_DEBUG\n    value: WARN\n"),
        (
            "a.yaml",
            "env:\n  - name: NCCL_CROSS_NIC\n    value: 1\n",
            'env:\n  - name: NCCL_CROSS_NIC\n    value: "1"\n',
        ),
        (
            "a.py",
            "import os\nos.environ['NCCL_TIMEOUT'] = '1'\n",
            "import os\npass  # taken out by nccl-doctor: os.environ['NCCL_TIMEOUT'] = '1'\n",
        ),
        ("a.py", "import os\nos.environ['NCCL_CROSS_NIC'] = 1\n", "import os\nos.environ['NCCL_CROSS_NIC'] = \"1\"\n"),
    ],
)
def test_mended(tmp_path: Path, name: str, before: str, after: str) -> None:
    assert mend(tmp_path, name, before)[0] == after


def test_what_is_not_certain_is_left_and_said(tmp_path: Path) -> None:
    after, left = mend(tmp_path, "a.sh", "srun --export=ALL,NCCL_TIMEOUT=1 ./a\nexport NCCL_DEBUG=ERROR\n")
    assert after == "srun --export=ALL,NCCL_TIMEOUT=1 ./a\nexport NCCL_DEBUG=ERROR\n"
    assert len(left) == 2


@pytest.mark.parametrize("path", sorted(CASES.rglob("*")), ids=lambda path: path.name)
def test_mended_files_still_parse_and_have_fewer_findings(path: Path, tmp_path: Path) -> None:
    before = examine.examine([str(path)])
    copy = tmp_path / path.name
    for change in fix.changes(before.remarks):
        copy.write_text(change.after)
        after = examine.examine([str(copy)])
        assert not after.problems
        assert len(after.remarks) <= len(before.remarks)
        if path.suffix == ".py":
            ast.parse(change.after)
        elif path.suffix in (".yaml", ".yml") and "{{" not in change.after:
            list(yaml.safe_load_all(change.after))
        elif path.suffix in (".sh", ".sbatch", ".pbs", ".job"):
            assert subprocess.run(["bash", "-n", str(copy)], check=False).returncode == 0


def test_the_diff_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export NCCL_TIMEOUT=1")
    (change,) = fix.changes(examine.examine([str(path)]).remarks)
    assert change.diff.startswith(f"--- {path}\n+++ {path}.fixed\n")
    assert "\\ No newline at end of file" in change.diff


def test_write_keeps_the_mode_and_does_not_follow_links(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("export NCCL_TIMEOUT=1\n")
    path.chmod(0o750)
    (change,) = fix.changes(examine.examine([str(path)]).remarks)
    written = tmp_path / "a.sh.fixed"
    fix.write(change, str(written))
    assert written.stat().st_mode & 0o777 == 0o750 and "taken out" in written.read_text()
    assert path.read_text() == "export NCCL_TIMEOUT=1\n"
    trap = tmp_path / "other"
    trap.write_text("mine")
    written.unlink()
    written.symlink_to(trap)
    with pytest.raises(FileExistsError):
        fix.write(change, f"{path}.fixed")
    assert trap.read_text() == "mine"


def test_a_file_that_is_not_all_utf_8_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_bytes(b"# caf\xe9\nexport NCCL_SOCKET_IFNMAE=eth0\n")
    (change,) = fix.changes(examine.examine([str(path)]).remarks)
    assert not change.diff and "UTF-8" in change.left[0]


@pytest.mark.parametrize(
    ("comment", "silenced"),
    [
        ("# nccl-doctor: ignore", True),
        ("# nccl-doctor: ignore[pinned, invalid-value]", True),
        ("# nccl-doctor: ignore[env.bad-nccl-var.invalid-value.fatal]", True),
        ("# nccl-doctor: ignore[l]", False),
        ("# nccl-doctor: ignore[]", False),
        ("# nccl-doctor: ignore[pinned]", False),
    ],
)
def test_a_line_is_ignored_by_the_whole_name_of_a_finding(tmp_path: Path, comment: str, silenced: bool) -> None:
    path = tmp_path / "a.sh"
    path.write_text(f"export NCCL_ALGO=Foo  {comment}\n")
    assert (not examine.examine([str(path)], nccl_version="2.24.3").remarks) is silenced


def test_what_a_correction_would_break_is_left(tmp_path: Path) -> None:
    text = "args:\n- mpirun\n  -x NCCL_TIMEOUT=1\n  python a.py\n"
    after, left = mend(tmp_path, "a.yaml", text)
    assert after == text and "NCCL_TIMEOUT does nothing" in left[0]
    text = "args:\n- set -e;\n  export NCCL_TIMEOUT=1;\n  python a.py\n"
    after, left = mend(tmp_path, "a.yaml", text)
    assert after == text and "is no valid YAML" in left[0] and "nothing is changed" in left[0]
