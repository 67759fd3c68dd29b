"""What the tests leave behind fails them: the command that runs them all sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(place: Path, script: str, patience_s: float = 0.3) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(place), "LEFTOVERS_PATIENCE_S": str(patience_s)}
    words = [sys.executable, "-m", "tests.leftovers", "sh", "-c", script]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_status_is_the_command_s(tmp_path: Path, code: int) -> None:
    done = run(tmp_path, f'touch "$TMPDIR/torchelastic_x"; (sleep 0.1 &); exit {code}', patience_s=30.0)
    assert (done.returncode, "left behind" in done.stderr) == (code, False), done.stderr
    assert bool(list(tmp_path.iterdir())) == bool(code)  # of failed tests the files are kept, and only of those


def test_a_process_that_goes_on_is_named_and_ended(tmp_path: Path) -> None:
    done = run(tmp_path, 'setsid sh -c "sleep 4711 & wait" >/dev/null 2>&1 & echo $! >"$TMPDIR/pid"')
    assert done.returncode == 1 and "sleep 4711" in done.stderr
    (pid,) = tmp_path.glob("*/pid")
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_file_of_the_program_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, 'touch "$TMPDIR/nccl-doctor-1.log"')
    assert done.returncode == 1 and "nccl-doctor-1.log" in done.stderr
