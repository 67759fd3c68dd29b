"""What the variables of a rank's process say of it: its number, the world, and its place on its host."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.agent.job.processes import RANK_VARIABLES
from nccl_doctor.facts.job import Process
from nccl_doctor.inventory import slurm
from nccl_doctor.inventory.names import BadName

_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_LOCAL_WORLD = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"


def number(process: Process) -> int | None:
    """Its number in the whole job."""
    return _first_of(process, RANK_VARIABLES)


def world(process: Process) -> int | None:
    """How many ranks there are."""
    return _first_of(process, _WORLD)


def local_rank(process: Process) -> int | None:
    """Its number on its host."""
    return _first_of(process, _LOCAL)


def local_world(process: Process) -> int | None:
    """How many ranks its host has."""
    return _first_of(process, _LOCAL_WORLD) or _slurm_tasks(process)


def node_rank(process: Process) -> int | None:
    """The number of its host."""
    return _first_of(process, ("NODE_RANK",))


def _first_of(process: Process, names: Iterable[str]) -> int | None:
    """The first of these variables that is a number."""
    texts = (process.environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal() and len(text) < 8), None)


def _slurm_tasks(process: Process) -> int | None:
    """How many tasks Slurm has started on its host, where each is a rank: else a task has started the ranks itself."""
    task, node = (_first_of(process, (name,)) for name in ("SLURM_PROCID", "SLURM_NODEID"))
    try:
        counts = slurm.tasks_per_node(process.environment.get(_SLURM_TASKS, ""))
    except BadName:
        return None
    each_is_one = task == number(process) and sum(counts) == world(process)
    return counts[node] if each_is_one and node is not None and node < len(counts) else None


def told_local_world(process: Process) -> str:
    """The variable that says how many ranks its host has, as it stands."""
    return _as_it_stands(process, (*_LOCAL_WORLD, _SLURM_TASKS))


def told_world(process: Process) -> str:
    """The variable that says how many ranks there are, as it stands."""
    return _as_it_stands(process, _WORLD)


def _as_it_stands(process: Process, names: Iterable[str]) -> str:
    return next((f"{name}={process.environment[name]}" for name in names if name in process.environment), "")
