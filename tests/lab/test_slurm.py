"""``preflight --slurm`` inside an allocation of a real Slurm: slurmctld on the lab's controller, a slurmd on each host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.pieces import PIECES, launch_lines, smaller

from . import machine
from .lab import Lab

PROLOG, BATCH = PIECES / "slurm-prolog.sh", PIECES / "slurm-sbatch.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
LIMIT_S = 240.0  # for Slurm to do its part; a job imports torch on every host
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
FirstJobId={first}
PartitionName=all Nodes={names} Default=YES MaxTime=10 State=UP
"""


@pytest.fixture
def slurm(lab: Lab) -> Iterator[dict[str, str]]:
    """A running Slurm over the lab's hosts; the environment its commands need. Everything ends with the test."""
    missing = [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing:
        pytest.skip(f"Slurm is not installed (slurm-wlm, munge): no {', '.join(missing)}")
    directory = lab.shared / "slurm"
    directory.mkdir()
    pids: list[int] = []
    try:
        pids = start(lab, directory)
        yield {"SLURM_CONF": str(directory / "slurm.conf"), "LAB_SLURM": str(directory)}
    finally:
        machine.end(pids)
        for name in (*lab.hostnames, "controller"):
            while left := lab.processes(name):  # a job's step may be about to start another
                machine.end(process.pid for process in left)
        shutil.rmtree(directory)


def first_job(lab: Lab) -> int:
    """The number of a Slurm's first job; jobs of another worker's Slurm, which are seen here as well, have others."""
    return 1000 * (1 + lab.number)


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
        controller=lab.address("controller"),
        directory=directory,
        nodes=nodes,
        names=",".join(lab.hostnames),
        first=first_job(lab),
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
    end = time.monotonic() + LIMIT_S
    while not ready():  # type: ignore[operator]
        if time.monotonic() > end:
            logs = [path.read_text()[-800:] for path in directory.glob("*.log")] if directory else []
            raise AssertionError(f"no {what} after {LIMIT_S:.0f} s: {logs}")
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


def test_launch_lines_start_their_launcher_on_good_nodes_only(lab: Lab, slurm: dict[str, str]) -> None:
    """Each line as published, but for launchers that tell how they were called; gpu02 is bad."""
    directory = Path(slurm["LAB_SLURM"])
    stubs = directory / "bin"
    stubs.mkdir()
    for name in ("torchrun", "accelerate", "ray", "python"):
        (stubs / name).write_text(f'#!/bin/sh\necho "$(hostname): {name} $*"\n')
        (stubs / name).chmod(0o755)
    (directory / "nccl-doctor.toml").write_text("profile = 'quick'\nmin-hosts = 3\n")
    lines = launch_lines()
    wanted = {
        "torchrun, under Slurm": "{host}: torchrun --nnodes 3 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id {job} "
        "--rdzv-endpoint gpu01:29500 train.py",
        "Accelerate, under Slurm": "{host}: accelerate launch --num_machines 3 --num_processes 24 --machine_rank {rank} "
        "--main_process_ip gpu01 --main_process_port 29500 train.py",
    }
    script = f"PATH={stubs}:$PATH; echo job $SLURM_JOB_ID\n" + "\n".join(
        [
            *(lines[heading] for heading in wanted),
            smaller(lines["Ray, under Slurm"], ("--min-hosts 2", "--min-hosts 3")),
        ]
    )
    with lab.fault("own-name-loopback", "gpu02"):
        done = command(lab, directory, "salloc", "--nodes=4", "--quiet", "bash", "-e", "-c", script)
    assert done.returncode == 0, (done.stdout, done.stderr)
    told = done.stdout.splitlines()
    job = next(line.split()[1] for line in told if line.startswith("job "))
    good = list(enumerate(["gpu01", "gpu03", "gpu04"]))
    for text in wanted.values():
        assert {text.format(host=host, job=job, rank=rank) for rank, host in good} <= set(told), done.stdout
    ray = [f"gpu0{number}: ray start --address gpu01:6379" for number in (3, 4)]
    assert {"gpu01: ray start --head --port 6379", "gpu01: python train.py", *ray} <= set(told), done.stdout
    assert not [line for line in told if line.startswith("gpu02:")]


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


TRAIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(f"rank {dist.get_rank()} of {int(one.item())} on {os.uname().nodename}", flush=True)
dist.destroy_process_group()
if os.path.exists("poison") and os.environ["RANK"] == "0":
    raise KeyError("image_00931")
"""
# What the lab has not: 17 nodes, GPUs. The rest of the published script runs as it is.
SMALLER = (
    ("--nodes=17", "--nodes=4"),
    ("--gpus-per-node=8", "--comment=no-gpus"),
    ("--min-hosts 16", "--min-hosts 3"),
    ("gpus=8,same=torch,nccl,driver", "cpus=1,same=torch"),
    ("--nproc-per-node 8", "--nproc-per-node 1"),
)


@pytest.fixture
def submit(lab: Lab, slurm: dict[str, str]) -> Iterator[Callable[[], tuple[int, str]]]:
    """Hand the published batch script to sbatch and wait: the job's exit status, what it printed."""
    directory = Path(slurm["LAB_SLURM"])
    (directory / "train.sbatch").write_text(smaller(BATCH.read_text(), *SMALLER))
    (directory / "train.py").write_text(TRAIN)
    (directory / "nccl-doctor.toml").write_text('profile = "quick"\n')  # where the job is submitted
    ways_in = [lab.host(name).home / ".ssh" for name in lab.hostnames]  # users of a cluster get from node to node
    for way in ways_in:
        shutil.copytree(lab.home / ".ssh", way, dirs_exist_ok=True)
    (directory / "bin").mkdir()
    shutil.copy(lab.controller.bin / "nccl-doctor", directory / "bin")

    def run() -> tuple[int, str]:
        environment = lab.host("gpu01").environment()
        environment["PATH"] = f"{directory}/bin:{Path(sys.executable).parent}:{environment['PATH']}"
        words = ["sbatch", "--parsable", "--output=out", "train.sbatch"]
        done = lab.run(words, env=environment | slurm, cwd=directory, timeout=60)
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        ended = []

        def over() -> bool:  # sbatch --wait would look every 32 s
            told = command(lab, directory, "scontrol", "show", "job", "--oneliner", number).stdout
            ended[:] = re.findall(r"JobState=(?:COMPLETED|FAILED) .*ExitCode=([0-9]+):0", told)
            return bool(ended)

        wait_for(over, f"end of job {number}", directory)
        return int(ended[0]), (directory / "out").read_text()

    yield run
    for way in ways_in:
        shutil.rmtree(way)
        way.mkdir(mode=0o700)


def test_the_batch_script_trains_on_good_nodes_only(
    lab: Lab, slurm: dict[str, str], submit: Callable[[], tuple[int, str]]
) -> None:
    directory = Path(slurm["LAB_SLURM"])
    status, out = submit()  # all are good: one of four is the spare
    assert status == 0, out
    trained = sorted(line for line in out.splitlines() if line.startswith("rank "))
    assert trained == ["rank 0 of 3 on gpu01", "rank 1 of 3 on gpu02", "rank 2 of 3 on gpu03"], out
    with lab.fault("own-name-loopback", "gpu02"):
        (directory / "poison").touch()
        status, out = submit()  # without gpu02; there the training fails, and is explained
        assert status not in (0, 11), out
        assert {line.split()[-1] for line in out.splitlines() if line.startswith("rank ")} == {
            "gpu01",
            "gpu03",
            "gpu04",
        }
        assert "the job failed; its output says" in out and "image_00931" in out.split("its output says")[1]
        (directory / "poison").unlink()
        with lab.fault("own-name-loopback", "gpu03"):
            status, out = submit()  # two left, three needed: refused
    assert status == 11 and "NO-GO" in out and "rank 0" not in out, out
    assert "sbatch --exclude=gpu[02-03] train.sbatch" in out
    jobs = sorted(path.suffix for path in directory.glob("bad.*"))
    assert [(directory / f"bad{job}").read_text() for job in jobs] == ["", "gpu02\n", "gpu[02-03]\n"]
    assert [(directory / f"good{job}").read_text() for job in jobs] == [
        "gpu[01-03]\n",
        "gpu[01,03-04]\n",
        "gpu[01,04]\n",
    ]
    assert all(ElementTree.parse(directory / f"preflight{job}.xml").getroot().tag == "testsuites" for job in jobs)


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


def test_hosts_are_reached_through_srun_from_within_a_step(lab: Lab, slurm: dict[str, str]) -> None:
    """Where only the scheduler starts processes; the step that asks holds a node of its own."""
    directory = Path(slurm["LAB_SLURM"])
    step = [
        "salloc",
        "--nodes=2",
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "python3",
        "-m",
        "nccl_doctor",
        "check",
        "--slurm",
    ]
    through = ["--transport", "command=srun --overlap -N1 -n1 -w {host}"]
    done = command(lab, directory, *step, *through, "--stage", "system", "--format", "json")
    report = json.loads(done.stdout)
    assert (report["verdict"], report["reached"]) == ("healthy", ["gpu01", "gpu02"]), (report, done.stderr)


HANGING = """
import os, sys, time, torch, torch.distributed as dist
rank, what = int(os.environ["SLURM_PROCID"]), sys.argv[1]
if (rank, what) == (2, "ends"):
    sys.exit(3)
dist.init_process_group("gloo", "tcp://" + sys.argv[2], rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
def evaluate():
    time.sleep(3600)
if rank == 2:
    evaluate()
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(("what", "id"), [("sleeps", "hang.elsewhere"), ("ends", "hang.rank-gone.host")])
def test_hang_finds_the_ranks_of_srun(lab: Lab, slurm: dict[str, str], what: str, id: str) -> None:
    """No variable but Slurm's: the program gives rank, world and the store's port itself. Rank 2 does not come."""
    directory = Path(slurm["LAB_SLURM"])
    (directory / "train.py").write_text(HANGING)
    options = ["--nodes=3", "--nodelist=gpu[01-03]", "--ntasks=3", "--kill-on-bad-exit=0"]
    words = ["srun", *options, sys.executable, "train.py", what, f"{lab.address('gpu01')}:29611"]
    step = lab.spawn("controller", ["env", f"--chdir={directory}", f"SLURM_CONF={slurm['SLURM_CONF']}", *words])
    told: list[dict[str, Any]] = []

    def held() -> bool:
        job = ("--job", f"slurm:{first_job(lab)}.0")
        done = lab.run(["nccl-doctor", "hang", "-H", "gpu[01-03]", "--interval", "0.5", *job, "--format", "json"])
        told.append(json.loads(done.stdout))
        findings = told[-1]["findings"]
        of_job = [
            item for item in findings if item["id"].startswith(("hang.", "app.")) and not item.get("folded_under")
        ]
        # While ranks 0 and 1 start, one of them may be missing, or at work; this machine's own kills tell nothing.
        return findings[:1] == of_job and [(item["id"], item["hosts"]) for item in of_job] == [(id, ["gpu03"])]

    try:
        machine.wait_for(held, f"{id} alone", 120)
    finally:
        machine.end([step])
    found, (job,) = told[-1]["findings"][0], told[-1]["jobs"]
    assert [place["rank"] for place in found["places"]] == [2]
    assert told[-1]["verdict"] == "held" and job["world"] == 3
