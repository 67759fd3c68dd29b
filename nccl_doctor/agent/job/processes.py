"""Which processes of this host are ranks of a job, what belongs to them, and who started them."""

import contextlib
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from nccl_doctor.agent.collective.ranks import inside_srun
from nccl_doctor.agent.job import stacks, variables
from nccl_doctor.agent.probing import first_line, link, listed, path, read_text, stat_fields, uptime
from nccl_doctor.agent.redaction import redact_text

PROCESSES = 1024  # of jobs, on one host
MARK = "NCCL_DOCTOR_RUN"  # given to a command by ``run``; whatever inherits it belongs to that command
STARTED_S = 60.0  # by then torch's mp.spawn has given a process its number

# No other variable of a process leaves the host.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
VARIABLES = (
    *RANK_VARIABLES,
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE",
    "PMIX_NAMESPACE",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
    MARK,
    "CUDA_VISIBLE_DEVICES",
    "NCCL_RAS_ADDR",
    "NCCL_RAS_ENABLE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
)
_PLACED = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_PORT")  # Lightning's: the rank follows from them
_DUMP_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# Of torchrun's options, those that say whom it waits for.
_OPTIONS = ("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port", "rdzv-endpoint", "rdzv-id")
_TORCHRUN = ("torchrun", "-m torch.distributed.")
_WRAPPERS = re.compile(
    r"(ba|da|z|k|fi|c|tc)?sh|env|numactl|taskset|timeout|time|nice|stdbuf|sudo|srun|slurmstepd|torchrun|tini|dumb-init|"
    r"mpirun|mpiexec|orted|prted|hydra_pmi_proxy|tee|nsys|ncu|perf|strace|gdb|ssh"
)

Processes = List[Dict[str, Any]]
Numbers = Dict[Tuple[int, int], Dict[str, str]]


def find(py_spy: str, told: Optional[Numbers] = None) -> Tuple[Processes, Dict[str, Any]]:
    """The processes that are ranks or launchers, each with its role; and how many could not be read well enough to tell.

    ``told`` keeps what py-spy said, by process and start: a caller that looks often passes it, and no process is asked twice.
    """
    found: Dict[int, Dict[str, Any]] = {}
    spawned: Dict[int, Dict[str, Any]] = {}
    refused: List[str] = []
    for name in listed("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or len(found) >= PROCESSES:
            continue
        try:
            process = _candidate(int(name))
        except PermissionError:
            if (first_line("/proc/%s/comm" % name) or "").startswith(("python", "pt_main")):
                refused.append(name)
            continue
        if process:
            (spawned if process["spawned"] else found)[int(name)] = process
    for pid, numbers in _spawned_numbers(py_spy, spawned, {} if told is None else told).items():
        spawned[pid]["environment"].update(numbers)
        found[pid] = dict(spawned[pid], script=_script(_argv(spawned[pid]["parent"])))
    _give_roles(found)
    for process in found.values():
        parent = process["parent"]
        process["launcher"] = "" if parent in found else (first_line("/proc/%d/comm" % parent) or "")[:40]
    unread = {
        "refused": {"count": len(refused), "pids": [int(pid) for pid in refused[:8]]},
        "unnumbered": sum(pid not in found for pid in spawned),
    }
    return [found[pid] for pid in sorted(found)], unread


def bearing(mark: str) -> List[int]:
    """The processes here that were started with this mark, as far as this user may see that."""
    found = []
    for name in listed("/proc"):
        with contextlib.suppress(PermissionError):
            if name.isdigit() and (variables.at_start(int(name)) or {}).get(MARK) == mark:
                found.append(int(name))
    return found


def _spawned_numbers(py_spy: str, spawned: Dict[int, Dict[str, Any]], told: Numbers) -> Dict[int, Dict[str, str]]:
    """The rank numbers that mp.spawn gave out. py-spy is asked only about parents that have started another process since."""
    keys = {pid: (pid, process["start_ticks"]) for pid, process in spawned.items()}
    new = {process["parent"] for pid, process in spawned.items() if keys[pid] not in told}
    in_order = sorted(spawned, key=lambda pid: (spawned[pid]["start_ticks"], pid))
    asked = {pid: spawned[pid]["parent"] for pid in in_order if spawned[pid]["parent"] in new}
    answers = stacks.spawned(py_spy, asked)
    for pid in asked:
        if pid in answers or (py_spy and spawned[pid]["age_s"] > STARTED_S):
            told[keys[pid]] = answers.get(pid, {})
    for gone in told.keys() - set(keys.values()):
        del told[gone]
    return {pid: told[keys[pid]] for pid in in_order if told.get(keys[pid])}


def age_s(start_ticks: int) -> float:
    """For how long a process has run, now."""
    return (uptime() or 0.0) - start_ticks / float(os.sysconf("SC_CLK_TCK"))


def _candidate(pid: int) -> Optional[Dict[str, Any]]:
    """The process, if it bears a rank, may have one from mp.spawn (which tells it to no variable), or is a torchrun."""
    environment = variables.at_start(pid)
    if environment is None:
        return None
    program = os.path.basename(link("/proc/%d/exe" % pid))
    argv = _argv(pid)
    python = program.startswith("python")
    if python:
        environment = variables.now(pid) or environment
    placed = python and not _bears_rank(environment) and all(environment.get(name, "").isdigit() for name in _PLACED)
    if placed:
        environment["RANK"] = environment["LOCAL_RANK"]  # on its host: who sees all hosts counts on
    options = _torchrun_options(argv, environment) if python else None
    spawned = python and not _bears_rank(environment) and "--multiprocessing-fork" in argv
    if not (_bears_rank(environment) or spawned or options is not None):
        return None
    process = _describe(pid, environment, argv)
    return process and dict(process, program=program[:80], spawned=spawned, placed=placed, options=options or {})


def _argv(pid: int) -> List[str]:
    return [word for word in (read_text("/proc/%d/cmdline" % pid, 1 << 16) or "").split("\0") if word]


def _bears_rank(environment: Dict[str, str]) -> bool:
    named = [variable for variable in RANK_VARIABLES if environment.get(variable, "").isdigit()]
    return bool(named) and (named != ["SLURM_PROCID"] or inside_srun(environment))


def _describe(pid: int, environment: Dict[str, str], argv: List[str]) -> Optional[Dict[str, Any]]:
    """What does not change while a process lives; None where it has just ended."""
    fields = stat_fields(pid)
    try:
        uid = os.stat(path("/proc/%d" % pid)).st_uid
    except OSError:
        return None
    if not fields:
        return None
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "comm": first_line("/proc/%d/comm" % pid) or "",
        "script": redact_text(_script(argv))[:200],
        "uid": uid,
        "start_ticks": int(fields[19]),
        "age_s": round(age_s(int(fields[19])), 1),
        "namespace": link("/proc/%d/ns/net" % pid),
        "environment": {name: redact_text(environment[name][:300]) for name in VARIABLES if name in environment},
        "dump_prefixes": _dump_prefixes(environment),
    }


def _script(words: List[str]) -> str:
    """What a Python runs: the script, ``-m module`` or ``-c``; of any other program its name."""
    name = os.path.basename(words[0]) if words else ""
    for number, word in enumerate(words[1:] if name.startswith("python") else (), 1):
        if word in ("-m", "-c"):
            return "-m " + words[number + 1] if word == "-m" and number + 1 < len(words) else word
        if not word.startswith("-"):
            return os.path.basename(word)
    return name


def _torchrun_options(argv: List[str], environment: Dict[str, str]) -> Optional[Dict[str, str]]:
    """What a torchrun was told of hosts and ports, by words or by PET_ variables; None where the process is none."""
    if not any(os.path.basename(word) == "torchrun" or word.startswith("torch.distributed.") for word in argv[:6]):
        return None
    told: Dict[str, str] = {}
    for word, behind in zip(argv, [*argv[1:], ""]):
        if word.endswith(".py"):
            break  # the user's program, and its own options
        name, sign, value = word.partition("=")
        name = name.lstrip("-").replace("_", "-")
        if word.startswith("--") and name in _OPTIONS:
            told.setdefault(name, redact_text(value if sign else behind)[:200])
    for name in _OPTIONS:
        value = environment.get("PET_" + name.upper().replace("-", "_"), "")
        if value:
            told.setdefault(name, redact_text(value)[:200])
    return told


def _dump_prefixes(environment: Dict[str, str]) -> List[str]:
    """Where a rank's torch writes its dump, but for the rank at the end: as told, or by the defaults of all releases."""
    told = [environment[name] for name in _DUMP_PREFIXES if environment.get(name)]
    cache = environment.get("XDG_CACHE_HOME") or environment.get("HOME", "/root") + "/.cache"
    names = ("/tmp/nccl_trace_rank_", cache + "/torch/nccl_trace_rank_", cache + "/torch/comm_lib_trace_rank_")
    return told or list(names)


def _give_roles(found: Dict[int, Dict[str, Any]]) -> None:
    """``rank``: the topmost process of its rank that is no shell, launcher or pinning tool; what is above: ``wrapper``.

    A ``launcher`` is a torchrun, with a number of its own (a scheduler's) or none.
    """
    wrappers = {pid for pid, process in found.items() if _is_wrapper(process)}
    wrappers.update(_starters(found))
    for pid, process in found.items():
        own = [above for above in _ancestors(process, found) if above["pid"] not in wrappers]
        above = [other for other in own if _rank_of(other) == _rank_of(process) != ""]
        if pid in wrappers and not above:
            process["role"] = "launcher" if process["script"].startswith(_TORCHRUN) else "wrapper"
            continue
        process["rank_pid"] = above[-1]["pid"] if above else pid
        process["role"] = "child" if above else "rank"


def _starters(found: Dict[int, Dict[str, Any]]) -> Set[int]:
    """Processes that have no ``RANK`` of their own and started some that have: accelerate, deepspeed, ..."""
    return {
        above["pid"]
        for process in found.values()
        if process["environment"].get("RANK")
        for above in _ancestors(process, found)
        if not above["environment"].get("RANK")
    }


def _ancestors(process: Dict[str, Any], found: Dict[int, Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    above = found.get(process["parent"])
    while above is not None:
        yield above
        above = found.get(above["parent"])


def _rank_of(process: Dict[str, Any]) -> str:
    """The first variable that names a rank, with its value."""
    environment = process["environment"]
    return next((name + environment[name] for name in RANK_VARIABLES if environment.get(name, "").isdigit()), "")


def _is_wrapper(process: Dict[str, Any]) -> bool:
    names = (process["program"] or process["comm"], process["script"])
    return any(_WRAPPERS.fullmatch(name) for name in names) or process["script"].startswith(_TORCHRUN)
