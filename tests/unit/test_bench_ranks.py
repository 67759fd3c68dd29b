"""Who am I: every launcher's variables, and never a silent world of one."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from nccl_doctor.agent import children
from nccl_doctor.agent.collective import launch
from nccl_doctor.agent.collective.launch import py_spy
from nccl_doctor.agent.collective.ranks import Identity, RankError, detect, first_host, local_size_of_slurm

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1",
    "MASTER_PORT": "29501", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def test_nothing_is_nothing() -> None:
    assert detect({"PATH": "/bin"}) is None


def test_torchrun() -> None:
    assert detect(TORCHRUN) == Identity(3, 4, 1, 2, "n1", 29501, "torchrun", True, "2")


def test_srun_takes_the_step_and_its_first_host() -> None:
    assert detect(SRUN) == Identity(2, 4, 0, 2, "gpu03", 29500, "srun")


def test_two_jobs_on_one_host_share_neither_port_nor_keys() -> None:
    for env, name in ((SRUN, "SLURM_JOB_ID"), (OPEN_MPI, "PMIX_NAMESPACE")):
        first, again, second = (detect({**env, name: job}) for job in ("71", "71", "72"))
        assert first == again and first is not None and second is not None
        assert first.master_port != second.master_port and first.attempt != second.attempt
        assert 29500 <= first.master_port < 30000
        given = detect({**env, name: "71", "MASTER_PORT": "1234"})
        assert given is not None and given.master_port == 1234


def test_a_batch_script_is_no_rank() -> None:
    assert detect({name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"}) is None


def test_open_mpi_on_one_host_meets_on_loopback_and_needs_an_address_otherwise() -> None:
    assert detect(OPEN_MPI) == Identity(1, 2, 1, 2, "127.0.0.1", 29500, "mpirun (Open MPI)")
    wide = dict(OPEN_MPI, OMPI_COMM_WORLD_SIZE="4")
    with pytest.raises(RankError, match="MASTER_ADDR"):
        detect(wide)
    found = detect(dict(wide, MASTER_ADDR="n1", MASTER_PORT="1234"))
    assert found is not None and (found.master_addr, found.master_port) == ("n1", 1234)


def test_pmi() -> None:
    found = detect({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"})
    assert found is not None and (found.rank, found.world, found.launcher) == (0, 2, "mpiexec (PMI)")


@pytest.mark.parametrize(
    ("env", "word"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        (dict(TORCHRUN, RANK="4"), "not a rank"),
        (dict(TORCHRUN, RANK="-1"), "RANK='-1'"),
        (dict(TORCHRUN, WORLD_SIZE="0", RANK="0"), "not a rank"),
        (dict(TORCHRUN, LOCAL_WORLD_SIZE="9"), "contradicting"),
        (dict(TORCHRUN, MASTER_PORT="http"), "MASTER_PORT"),
        ({name: value for name, value in SRUN.items() if "NODELIST" not in name}, "MASTER_ADDR is not set"),
        ({"PMIX_RANK": "1"}, "how many ranks"),
        ({"PMI_RANK": "1"}, "PMI_SIZE"),
    ],
)
def test_unclear_worlds_are_errors_that_name_the_variable(env: dict[str, str], word: str) -> None:
    with pytest.raises(RankError, match=word):
        detect(env)


def test_slurm_lists() -> None:
    assert first_host("gpu[03-05,9],x") == "gpu03"
    assert first_host("a,b") == "a"
    assert first_host("n[1]-ib") == "n1-ib"
    assert local_size_of_slurm({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}) == 1
    assert local_size_of_slurm({"SLURM_STEP_TASKS_PER_NODE": "?", "SLURM_NODEID": "3"}) == 0


def test_a_ranks_environment_has_one_launcher_and_the_whole_log_of_nccl() -> None:
    from nccl_doctor.agent.collective.launch import rank_environment

    theirs = {
        "RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_SUBSYS": "COLL",
        "PATH": "/bin",
    }
    found = rank_environment(theirs, {"NCCL_IB_HCA": "mlx5"})
    assert not {"RANK", "OMPI_COMM_WORLD_SIZE"} & set(found)
    assert (found["NCCL_DEBUG"], found["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,BOOTSTRAP,ENV")
    assert found["NCCL_DEBUG_FILE"] == "/proc/self/fd/2"  # /dev/stderr is not there everywhere
    assert (found["PATH"], found["NCCL_IB_HCA"]) == ("/bin", "mlx5")


def test_of_py_spys_answer_the_stacks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(
        "#!/bin/sh\necho Process 7: python -c\necho import sys\necho\necho Thread 7: MainThread\necho '    wait'\n"
    )
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert py_spy(7) == "Thread 7: MainThread\n    wait\n"  # not our bootstrap, which is the command line


def test_stacks_of_many_ranks_take_no_longer_than_those_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that came late with its answer, for the sake of stacks, would be called lost."""
    monkeypatch.setattr(launch, "STACKS_S", 0.3)
    monkeypatch.setattr(launch, "py_spy", lambda pid: time.sleep(0.2) or f"stack of {pid}")
    run = launch.Launch({}, lambda event: None)
    for number in range(8):
        process = children.spawn(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        run.ranks.append(launch.Rank(number, process))
    run._end_with_evidence("the test is over")
    stacks = [rank.stack for rank in run.ranks]
    assert stacks[0] and not stacks[-1]
    assert all(rank.killed and rank.process.poll() is not None for rank in run.ranks)
