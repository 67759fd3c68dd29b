"""The hosts of the Slurm job that this process runs in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nccl_doctor.inventory import names, nodesets
from nccl_doctor.inventory.model import HostEntry, InventoryError
from nccl_doctor.inventory.names import BadName

SOURCE = "SLURM_JOB_NODELIST"
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?\Z", re.ASCII)


def tasks_per_node(text: str) -> list[int]:
    """``8(x2),4`` -> [8, 8, 4]; raises :class:`BadName`."""
    counts: list[int] = []
    for piece in text.split(","):
        found = _TASKS.match(piece)
        repeat = int(found[2] or 1) if found else 0
        if not found or repeat > nodesets.MOST:
            raise BadName("expected SLURM_TASKS_PER_NODE like 8(x2),4")
        counts += [int(found[1])] * repeat
    return counts


def entries(environment: Mapping[str, str]) -> list[HostEntry]:
    """The job's nodes, with the tasks per node as slots; raises :class:`InventoryError` outside a job.

    One task gives no slot: it is Slurm's default, and what starts torchrun, which starts the ranks. It says nothing of them.
    """
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    if not text:
        expected = "not set: --slurm works inside a job (sbatch, salloc, srun); elsewhere give --hosts or -H"
        raise InventoryError(SOURCE, None, "", expected)
    try:
        hosts = [names.host(name) for name in nodesets.expand(text)]
        tasks = environment.get("SLURM_TASKS_PER_NODE", "")
        slots = [count if count > 1 else None for count in tasks_per_node(tasks)] if tasks else []
    except BadName as error:
        raise InventoryError(SOURCE, None, text, str(error)) from error
    if len(slots) != len(hosts):
        slots = [None] * len(hosts)
    return [HostEntry(host, slots=count) for host, count in zip(hosts, slots, strict=True)]
