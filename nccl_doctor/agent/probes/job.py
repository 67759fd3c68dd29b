"""The processes of a distributed job as they are now: read twice, never touched (no signal, no ptrace stop)."""

import os
import time
from typing import Any, Dict, List, Set

from nccl_doctor.agent.cgroups import oom_file_of, oom_kills
from nccl_doctor.agent.job import connections, processes, readings, stacks, witnesses
from nccl_doctor.agent.probes.system import memory
from nccl_doctor.agent.probing import link, probe

INTERVAL_S = 3.0
CHILDREN_STACKS = 64


@probe("job", "job", limit_s=40.0)
def job(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Every process that bears a rank, its children, their connections, stacks, memory and dumps.

    Arguments: ``interval_s`` between the two readings, ``stacks`` (take them), ``machine`` (the processor for which
    the controller has a py-spy to send, if asked for it by ``tool-missing``) and ``py_spy`` (that program, packed).
    """
    program, no_stacks = stacks.program(arguments) if arguments.get("stacks", True) else ("", "left out")
    found, unread = processes.find(program)
    pids = {role: [item["pid"] for item in found if item["role"] == role] for role in ("rank", "child", "launcher")}
    ranks = pids["rank"]
    opened = {pid: connections.opened(pid) for pid in ranks}
    inodes = {pid: connections.inodes_of(links) for pid, links in opened.items()}
    every, started = [item["pid"] for item in found], time.monotonic()
    groups = {oom_file_of(pid) for pid in ranks}
    first = _look(every, inodes, groups, program, ranks + pids["launcher"])
    interval_s = float(arguments.get("interval_s", INTERVAL_S)) if ranks or pids["launcher"] else 0.0
    time.sleep(max(0.0, interval_s - (time.monotonic() - started)))
    second = _look(every, inodes, groups, program, ranks + pids["launcher"] + pids["child"][:CHILDREN_STACKS])
    for process in found:
        process["readings"] = [look["processes"].get(process["pid"]) for look in (first, second)]
        process["stacks"] = [look["stacks"].get(process["pid"]) for look in (first, second)]
        process["connections"] = connections.compared(process["pid"], first, second)
        process["devices"] = connections.devices(opened.get(process["pid"], []))
    dumps, dump_problems = witnesses.dumps_of(found)
    for process in found:
        process.pop("dump_prefixes", None)
    return {
        "uid": os.geteuid(),
        "namespace": link("/proc/self/ns/net"),
        "interval_s": round(second["at"] - first["at"], 3),
        "processes": found,
        "listening": connections.listening(),
        **unread,
        "no_stacks": no_stacks if ranks else "",
        "ras": witnesses.ras_reports(found, second, interval_s),
        "dumps": dumps,
        "dump_problems": dump_problems,
        "memory": [first["memory"], second["memory"]],
        "killed": [first["killed"], second["killed"]],
        "pressure": readings.pressure(),
        "total_memory": memory(),
    }


def _look(
    pids: List[int], inodes: Dict[int, Set[int]], groups: Set[str], program: str, with_stacks: List[int]
) -> Dict[str, Any]:
    """Everything that changes, of all processes, as near to one moment as possible."""
    look: Dict[str, Any] = {"at": time.monotonic(), "processes": {}, "memory": readings.swapping()}
    look["killed"] = {file: oom_kills(file) if file else None for file in groups}
    for pid in pids:
        look["processes"][pid] = readings.reading(pid)
    look["connections"] = connections.tables(inodes)
    look["stacks"] = stacks.take(program, with_stacks) if program and with_stacks else {}
    return look
