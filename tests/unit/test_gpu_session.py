"""The one command for a GPU machine, with nothing of what it needs: every step is tried, told, and kept without names."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UUID = "GPU-5b1c7e2a-9d3f-4c6e-8a70-000000000001"
SECRETS = (UUID, "1653223041001", "hf_" + "abcdefghijklmnopqrstuvwxyz", "192.168.77.12")
# Instead of a Python with torch: prints what must not be kept, fails where it is told to, is itself for the blackout.
STUB = f"""#!/bin/sh
at() {{ [ -z "${{CLOCK:-}}" ] || echo "$1" >"$CLOCK"; }}
case "$*" in
  *tests.gpu.hide*) exec {sys.executable} "$@";;
  *"bench gemm"*) at 565;;
  *test_bench_nccl*) at 567; echo "Serial Number : {SECRETS[1]}"; exec sleep 600;;
  *test_hardware_here*) echo "{UUID} HF_TOKEN={SECRETS[2]}"; echo recorded > "$NCCL_DOCTOR_RECORD/machine.txt"; exit 1;;
  *) echo "NET/Socket : Using [0]eth0:{SECRETS[3]}<0>";;
esac
"""
# The time of day as the test has it: however long a step takes here, five seconds are left to the one that hangs.
DATE = """#!/bin/sh
[ "$1" = +%s ] || exec /usr/bin/date "$@"
cat "$CLOCK"
"""


def session(tmp_path: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    stub = program(tmp_path / "python", STUB)
    (tmp_path / "tmp").mkdir()
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHON": str(stub), "TMPDIR": str(tmp_path / "tmp"), **variables}
    done = subprocess.run(
        ["sh", str(ROOT / "tests/gpu/session.sh"), str(out), *arguments],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    return done, out


def program(place: Path, text: str) -> Path:
    place.write_text(text)
    place.chmod(0o755)
    return place


def test_no_failure_stops_the_next_step_and_nothing_that_names_the_machine_is_kept(tmp_path: Path) -> None:
    source, programs, clock = (tmp_path / name for name in ("nccl-tests", "programs", "clock"))
    source.mkdir()
    programs.mkdir()
    program(programs / "date", DATE)
    clock.write_text("0")
    done, out = session(tmp_path, str(source), CLOCK=str(clock), PATH=f"{programs}:/usr/bin:/bin")
    assert done.returncode == 1
    failed = done.stdout.splitlines()[-1].partition("failed:")[2].split()
    assert {"hardware", "nccl", "build", "overhead"} <= set(failed) and "needs" not in failed
    for name in ("needs", "machine", "hardware", "look", "nccl", "build"):
        assert (out / f"{name}.txt").is_file(), done.stdout
    assert any(words in (out / "build.txt").read_text() for words in ("no nvcc", "No such file"))
    assert "no time left" in done.stdout and "1 recordings" in done.stdout
    kept = done.stdout + "".join(path.read_text() for path in out.rglob("*.txt"))
    assert not [secret for secret in SECRETS if secret in kept]
    with tarfile.open(out / "session.tgz") as archive:
        assert {"./hardware.txt", "./record/machine.txt"} <= set(archive.getnames())
    assert list((tmp_path / "tmp").iterdir()) == []


def test_single_steps_can_be_run(tmp_path: Path) -> None:
    done, out = session(tmp_path, STEPS="needs overhead")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in out.glob("*.txt")) == ["needs.txt", "overhead.txt"]


def test_what_cannot_be_blacked_out_is_not_kept(tmp_path: Path) -> None:
    broken = program(tmp_path / "broken", f"#!/bin/sh\necho {UUID}\nexit 1\n")
    done, out = session(tmp_path, STEPS="needs", PYTHON=str(broken))
    assert done.returncode == 1
    assert "not kept" in (out / "needs.txt").read_text() and UUID not in (out / "needs.txt").read_text() + done.stdout


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    done, _ = session(tmp_path, "/no/such/nccl-tests", STEPS="beside-nccl-tests")
    assert done.returncode == 1 and "no folder /no/such/nccl-tests" in done.stdout
