"""``preflight --slurm`` inside an allocation of a real Slurm: slurmctld on the lab's controller, a slurmd on each host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import machine
from .lab import Lab

PROLOG = Path(__file__).resolve().parents[2] / "docs" / "integrations" / "slurm-prolog.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
CONF = """
ClusterName=lab
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SelectType=select/linear
Prolog={directory}/prolog.sh
PrologFlags=Alloc
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=10 State=UP
"""


@pytest.fixture
def slurm(lab: Lab) -> Iterator[dict[str, str]]:
    """A running Slurm over the lab's hosts; the environment its commands need. Everything ends with the test."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing:
        pytest.skip(f"Slurm is not installed (slurm-wlm, munge): no {', '.join(missing)}")
    directory = Path(tempfile.mkdtemp(prefix="nccl-doctor-slurm-", dir="/var/tmp"))
    pids: list[int] = []
    try:
        pids = start(lab, directory)
        yield {"SLURM_CONF": str(directory / "slurm.conf"), "LAB_SLURM": str(directory)}
    finally:
        machine.end(pids)
        for name in (*lab.hostnames, "controller"):
            machine.end(process.pid for process in lab.processes(name))
        shutil.rmtree(directory, ignore_errors=True)


def start(lab: Lab, directory: Path) -> list[int]:
    directory.chmod(0o755)
    (directory / "key").write_bytes(os.urandom(1024))
    (directory / "key").chmod(0o600)
    (directory / "state").mkdir()
    for name in lab.hostnames:
        (directory / f"spool-{name}").mkdir()
    # The published prolog; its nccl-doctor is replaced by one that finds what the test says.
    (directory / "prolog.sh").write_text(PROLOG.read_text().replace("PATH=/opt/nccl-doctor/bin", f"PATH={directory}"))
    (directory / "prolog.sh").chmod(0o755)
    (directory / "nccl-doctor").write_text(
        f"#!/bin/sh\n[ ! -e {directory}/unfit-$(hostname) ] || exit $(cat {directory}/unfit-$(hostname))\n"
    )
    (directory / "nccl-doctor").chmod(0o755)
    nodes = "\n".join(f"NodeName={name} NodeAddr={lab.address(name)} CPUs=1 State=UNKNOWN" for name in lab.hostnames)
    conf = CONF.format(
        controller=lab.address("controller"), directory=directory, nodes=nodes, names=",".join(lab.hostnames)
    )
    (directory / "slurm.conf").write_text(conf)
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    files = [f"--{name}={directory}/{name.split('-')[0]}" for name in ("key-file", "pid-file", "log-file", "seed-file")]
    munged = ["/usr/sbin/munged", "--foreground", "--force", f"--socket={directory}/munge.socket", *files]
    pids = [lab.spawn("controller", munged)]
    wait_for((directory / "munge.socket").exists, "munged")
    config = ["-f", str(directory / "slurm.conf")]
    pids.append(lab.spawn("controller", ["/usr/sbin/slurmctld", "-D", *config]))
    pids += [lab.spawn(name, ["/usr/sbin/slurmd", "-D", "-N", name, *config]) for name in lab.hostnames]

    def all_idle() -> bool:
        done = command(lab, directory, "sinfo", "--noheader", "--Node", "--format=%t")
        return done.stdout.split() == ["idle"] * len(lab.hostnames)

    wait_for(all_idle, "idle nodes", directory)
    return pids


def command(lab: Lab, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.run(words, env={"SLURM_CONF": str(directory / "slurm.conf")}, cwd=directory, timeout=60)


def wait_for(ready: object, what: str, directory: Path | None = None) -> None:
    end = time.monotonic() + 30
    while not ready():  # type: ignore[operator]
        if time.monotonic() > end:
            logs = [path.read_text()[-800:] for path in directory.glob("*.log")] if directory else []
            raise AssertionError(f"no {what} after 30 s: {logs}")
        time.sleep(0.2)


def test_a_bad_node_of_the_allocation_is_named_in_the_words_of_exclude(lab: Lab, slurm: dict[str, str]) -> None:
    directory = Path(slurm["LAB_SLURM"])
    preflight = "nccl-doctor preflight --slurm --profile quick --min-hosts 3 --good-hosts good --bad-hosts bad -- "
    with lab.fault("own-name-loopback", "gpu02"):
        done = command(
            lab, directory, "salloc", "--nodes=4", "--quiet", "sh", "-c",
            preflight + "srun --nodes={nnodes} --ntasks={nnodes} --nodelist={hosts} hostname",
        )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("gpu0")) == ["gpu01", "gpu03", "gpu04"]
    assert (directory / "bad").read_text() == "gpu02\n" and (directory / "good").read_text() == "gpu[01,03-04]\n"
    exclude = (directory / "bad").read_text().strip()
    again = command(lab, directory, "srun", "--nodes=3", f"--exclude={exclude}", "hostname")
    assert sorted(again.stdout.split()) == ["gpu01", "gpu03", "gpu04"], again.stderr


def test_the_prolog_drains_the_unfit_node_alone(lab: Lab, slurm: dict[str, str]) -> None:
    directory = Path(slurm["LAB_SLURM"])
    (directory / "unfit-gpu02").write_text("11")
    (directory / "unfit-gpu03").write_text("2")  # the gate's own trouble: not the node's
    command(lab, directory, "timeout", "5", "srun", "--nodes=4", "touch", f"{directory}/ran")

    def drained() -> bool:
        done = command(lab, directory, "sinfo", "--noheader", "--Node", "--format=%N %t")
        states = dict(line.split() for line in done.stdout.splitlines())
        return states["gpu02"] in ("drain", "drng") and {states[name] for name in ("gpu01", "gpu03", "gpu04")} == {
            "idle"
        }

    wait_for(drained, "drained gpu02", directory)
    assert not (directory / "ran").exists()
    rest = command(lab, directory, "srun", "--nodes=3", "hostname")
    assert sorted(rest.stdout.split()) == ["gpu01", "gpu03", "gpu04"], rest.stderr


def test_bench_under_srun_is_one_world(lab: Lab, slurm: dict[str, str]) -> None:
    """Rank, world size and the first host from what a real srun sets; no port and no address are given."""
    directory = Path(slurm["LAB_SLURM"])
    bench = ["python3", "-m", "nccl_doctor.bench", "allreduce", "--sizes", "4K,64K", "--iters", "3"]
    done = command(lab, directory, "srun", "--nodes=3", "--ntasks=3", *bench, "--format", "json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = json.loads(done.stdout)  # one document: only rank 0 prints
    assert found["complete"] and found["world"]["backend_why"].endswith("started by srun")
    assert [(share["name"], share["ranks"]) for share in found["world"]["shares"]] == [
        ("gpu01", 1), ("gpu02", 1), ("gpu03", 1),
    ]  # fmt: skip
    assert [item["wrong"] for item in found["results"]["measurements"]] == [0, 0]
    assert found["path"]["proved"] and set(found["path"]["gloo"]["interfaces"]) == {"eth0"}
