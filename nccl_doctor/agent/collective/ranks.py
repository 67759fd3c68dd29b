"""Who am I: rank, world size and rendezvous address, from whatever started this process.

Never a silent one-rank world: a process that a launcher started, but whose variables contradict each other or are
incomplete, is an error that says which variables were seen.
"""

import re
import zlib
from typing import Dict, List, Mapping, NamedTuple, Optional

DEFAULT_PORT, PORTS = 29500, 500  # where the launcher names none: one of these, by the job
# What all processes of one job share, and no two jobs of a host. Not mixed: orted of mpirun may be a step of Slurm's.
_JOB = {"srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"), "mpirun (Open MPI)": ("PMIX_NAMESPACE",)}


class RankError(Exception):
    """The environment does not say which rank this process is, or says two different things."""


class Identity(NamedTuple):
    """One process of the world. ``store_is_hosted`` means that the launcher (torchrun) serves the TCPStore itself."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    master_addr: str
    master_port: int
    launcher: str
    store_is_hosted: bool = False
    attempt: str = "0"


# launcher, rank, world size, local rank, local world size: the first whose rank variable is set decides.
_MPI = (
    ("mpirun (Open MPI)", *("OMPI_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    ("mpirun (MVAPICH)", *("MV2_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("mpiexec (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """The identity that the environment gives, or None where no launcher has left a trace. ``RankError`` if unclear."""
    if "RANK" in env or "WORLD_SIZE" in env:
        return _from_torchrun(env)
    for launcher, rank, world, local_rank, local_world in _MPI:
        if launcher == "srun" and not inside_srun(env):
            continue
        if rank in env:
            size = env.get(world) or (env.get("SLURM_NTASKS", "") if launcher == "srun" else "")
            values = dict(env)
            values[world] = size
            return _from_mpi(values, launcher, rank, world, local_rank, local_world)
    if "PMIX_RANK" in env:
        raise RankError(
            "PMIX_RANK=%s is set but nothing says how many ranks there are; start with srun or Open MPI's mpirun, "
            "or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT" % env["PMIX_RANK"]
        )
    return None


def inside_srun(env: Mapping[str, str]) -> bool:
    """Whether it is a task of a step: a batch script itself has SLURM_PROCID=0 and SLURM_NTASKS=N, too."""
    return "SLURM_PROCID" in env and env.get("SLURM_STEP_ID", "") not in ("", "4294967291")


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    if not re.match(r"[0-9]{1,9}\Z", text):
        raise RankError("%s=%r is not a number" % (name, text) if text else "%s is not set" % name)
    return int(text)


def _checked(identity: Identity) -> Identity:
    if identity.world < 1 or not 0 <= identity.rank < identity.world:
        raise RankError("rank %d of a world of %d: not a rank" % (identity.rank, identity.world))
    if identity.local_world > identity.world or identity.local_rank >= max(identity.local_world, 1):
        raise RankError(
            "local rank %d of %d on this host in a world of %d: contradicting variables"
            % (identity.local_rank, identity.local_world, identity.world)
        )
    return identity


def _from_torchrun(env: Mapping[str, str]) -> Identity:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise RankError(
            "%s set, but %s not: start with torchrun, or set all four of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
            % (", ".join(name for name in ("RANK", "WORLD_SIZE") if name in env), ", ".join(missing))
        )
    rank, world = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK") if "LOCAL_RANK" in env else rank
    local_world = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else max(local_rank + 1, 1)
    return _checked(
        Identity(
            rank,
            world,
            local_rank,
            local_world,
            env["MASTER_ADDR"],
            _number(env, "MASTER_PORT"),
            "torchrun" if "TORCHELASTIC_RUN_ID" in env else "RANK/WORLD_SIZE",
            env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    )


def _from_mpi(env: Dict[str, str], launcher: str, rank: str, world: str, local_rank: str, local_world: str) -> Identity:
    me, size = _number(env, rank), _number(env, world)
    local = _number(env, local_rank) if local_rank in env else me
    if local_world and local_world in env:
        local_size = _number(env, local_world)
    else:
        local_size = local_size_of_slurm(env) or local + 1
    address = env.get("MASTER_ADDR", "")
    if not address:
        hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or ""
        if size == local_size:
            address = "127.0.0.1"
        elif launcher == "srun" and hosts:
            address = first_host(hosts)
        else:
            raise RankError("MASTER_ADDR is not set: add -x MASTER_ADDR=HOST (the host of rank 0) to %s" % launcher)
    names = _JOB.get(launcher, ())
    job = "/".join(env[name] for name in names) if names and all(env.get(name) for name in names) else ""
    chosen = DEFAULT_PORT + (zlib.crc32(job.encode()) % PORTS if job else 0)
    port = _number(env, "MASTER_PORT") if env.get("MASTER_PORT") else chosen
    # The job's name goes into every key: a rank that meets another job's store must not join its world.
    return _checked(Identity(me, size, local, local_size, address, port, launcher, attempt=job or "0"))


def local_size_of_slurm(env: Mapping[str, str]) -> int:
    """Tasks on this node from ``SLURM_STEP_TASKS_PER_NODE`` such as ``2(x3),1``; 0 if it does not say."""
    sizes: List[int] = []
    for part in filter(None, env.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        match = re.match(r"(\d+)(?:\(x(\d+)\))?\Z", part)
        if not match:
            return 0
        sizes.extend([int(match.group(1))] * int(match.group(2) or 1))
    node = env.get("SLURM_NODEID", "")
    return sizes[int(node)] if node.isdigit() and int(node) < len(sizes) else 0


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``gpu[03-05,9],x`` gives ``gpu03``."""
    match = re.match(r"([^,\[\]]*)(?:\[(\d+)[^\]]*\])?([^,\[\]]*)", nodelist)
    host = "".join(part or "" for part in match.groups()) if match else ""
    if not host:
        raise RankError("no first host in the node list %r" % nodelist)
    return host
