"""The pieces of docs/integrations that need no Slurm, run as published: each script line, each launch line, each file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import pieces
from tests.pieces import smaller

from .lab import Lab

# The lab has no GPUs: what is required of them is unknown there, and never go.
GPUS = ("gpus=8,same=torch,nccl,driver", "cpus=1,same=torch")
# What DeepSpeed takes as a line of a hostfile (its launcher/runner.py, _parse_hostfile, read 2026-11).
DEEPSPEED_LINE = re.compile(r"(\S+)\s+slots=(\d+)")


@pytest.fixture
def place(lab: Lab, tmp_path: Path) -> Path:
    """A working directory with the tool in .venv, a policy that keeps the runs short, and hostfiles."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(lab.controller.bin / "nccl-doctor", tmp_path / ".venv/bin/nccl-doctor")
    (tmp_path / "nccl-doctor.toml").write_text('profile = "quick"\n')
    (tmp_path / "hosts.txt").write_text("".join(f"{name}\n" for name in lab.hostnames))
    (tmp_path / "hostfile").write_text("".join(f"{name} slots=8\n" for name in lab.hostnames))
    shutil.copy(tmp_path / "hosts.txt", tmp_path / "pods.txt")
    return tmp_path


def stub(place: Path, name: str, script: str) -> None:
    path = place / ".venv/bin" / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def shell(lab: Lab, place: Path, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A script as a runner's shell runs it, with the tool of .venv first on the PATH."""
    found = lab._controller_environment()["PATH"]
    return lab.run(["bash", "-e", "-c", script], cwd=place, env={"PATH": f"{place}/.venv/bin:{found}", **env})


def test_the_github_step(lab: Lab, place: Path) -> None:
    script, artifacts = pieces.github_step()
    env = {"HOSTS": "gpu[01-04]", "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(place / "summary.md")}
    with lab.fault("own-name-loopback", "gpu02"):
        done = shell(lab, place, smaller(script, GPUS), **env)
    assert done.returncode == 11, done.stderr
    assert re.search(r"^::error [^\n]*::[^\n]*gpu02", done.stdout, re.M)
    assert "gpu02" in (place / "summary.md").read_text()
    assert {name for name in artifacts if not (place / name).exists()} == set()
    assert (place / "good-hosts.txt").read_text() == "gpu[01,03-04]\n"
    done = shell(lab, place, script, **env)  # as published: nobody knows of these GPUs, so nobody passes
    assert done.returncode in (4, 11) and (place / "good-hosts.txt").read_text() == "", done.stderr
    assert "gpus=8" in done.stdout


def test_the_gitlab_job_and_the_one_after_it(lab: Lab, place: Path) -> None:
    (install, preflight), artifacts = pieces.gitlab_job()
    assert install.endswith("pip install nccl-doctor")
    done = shell(lab, place, smaller(preflight, GPUS))
    assert done.returncode == 0, done.stderr
    assert {name for name in artifacts if not (place / name).exists()} == set()
    assert ElementTree.parse(place / "preflight.xml").getroot().tag == "testsuites"
    assert json.loads((place / "preflight-quality.json").read_text()) == []
    (place / "launch.sh").write_text('#!/bin/sh\ncat "$1"\n')
    (place / "launch.sh").chmod(0o755)
    (pipeline,) = pieces.documents("gitlab-ci.yml")
    assert shell(lab, place, *pipeline["train"]["script"]).stdout.split() == lab.hostnames


def test_the_init_container(lab: Lab, place: Path) -> None:
    """On one node, as in a pod: go where all is there, no-go for what is not, and a mistake fails the Job at once."""
    words, _, at_once = pieces.pod()
    pod = lab.host("gpu01")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        directory = ["env", f"--chdir={pod.home}", f"PYTHONPATH={Path(__file__).resolve().parents[2]}"]
        return lab.on("gpu01", [*directory, *shlex.split(line)])

    shutil.copy(place / ".venv/bin/nccl-doctor", pod.bin)
    try:
        published = shlex.join(words)
        fit = run(smaller(published, ("gpus=8,shm=16G,memory=64G", "cpus=1,shm=1G,memory=1G")))
        assert fit.returncode == 0 and "GO: 1 of 1" in fit.stdout, (fit.stdout, fit.stderr)
        unfit = run(published)
        assert unfit.returncode in (4, 11) and unfit.returncode not in at_once, unfit.stderr
        assert "gpus=8" in unfit.stdout
        mistaken = run(smaller(published, ("gpus=8", "gpu=8")))
        assert mistaken.returncode in at_once and "gpu=8" in mistaken.stderr
    finally:
        (pod.bin / "nccl-doctor").unlink()


def test_deepspeed_gets_a_hostfile_that_it_takes(lab: Lab, place: Path) -> None:
    stub(place, "deepspeed", 'echo "deepspeed ${*:3}"; [ "$1" = --hostfile ] && cat "$2"')
    line = smaller(pieces.launch_lines()["DeepSpeed"], ("--min-hosts 4", "--min-hosts 3"))
    with lab.fault("own-name-loopback", "gpu03"):
        done = shell(lab, place, line)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    started = told.index("deepspeed train.py --deepspeed_config ds.json")
    found = [DEEPSPEED_LINE.fullmatch(row) for row in told[started + 1 :]]
    assert [row and row.groups() for row in found] == [("gpu01", "8"), ("gpu02", "8"), ("gpu04", "8")]


@pytest.mark.parametrize(
    ("heading", "changes"),
    [("torchrun, one machine", [("gpus=8", "cpus=1")]), ("torchrun, where another preflight has said go", [])],
)
def test_torchrun_on_one_machine(lab: Lab, place: Path, heading: str, changes: list[tuple[str, str]]) -> None:
    """The real torchrun, two ranks on this machine."""
    line = smaller(pieces.launch_lines()[heading], *changes, ("node 8", "node 2"))
    (place / "train.py").write_text(
        "import os; print('rank ' + os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE'])"
    )
    done = shell(lab, place, line)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"]


def test_pods_are_reached_through_kubectl(lab: Lab, place: Path) -> None:
    """A kubectl that enters the lab's hosts; words reach them one by one, as with the real one."""
    ways = "\n".join(f'  {name}) exec {shlex.join(lab.host(name).entering())} "$@" ;;' for name in lab.hostnames)
    stub(place, "kubectl", f'[ "$1 $2 $4" = "exec -i --" ] || exit 9\nhost=$3; shift 4\ncase $host in\n{ways}\nesac')
    with lab.fault("small-shm", "gpu04"):
        done = shell(lab, place, pieces.launch_lines()["Between Kubernetes pods"])
    assert done.returncode == 11, (done.stdout, done.stderr)
    assert (place / "good-pods.txt").read_text().split() == ["gpu01", "gpu02", "gpu03"]
