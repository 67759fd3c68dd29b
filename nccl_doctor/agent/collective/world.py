"""The ranks of a world tell each other who they are, and rank 0 whether that is the world that was asked for."""

import contextlib
import os
import socket
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

if TYPE_CHECKING:
    from .worker import Worker


def describe(worker: "Worker") -> Dict[str, Any]:
    """Who and where this rank is."""
    torch, device = worker.torch, worker.device
    record: Dict[str, Any] = {
        "rank": worker.me.rank,
        "local_rank": worker.identity.local_rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot": boot_id(),
        "python": sys.executable,
        "torch": str(torch.__version__),
        "device": str(device),
        "device_name": "",
        "device_id": "",
        "nccl": "",
        "world": worker.me.world,
        "backend": worker.plan["backend"],
    }
    if device.type == "cuda":
        record["device_name"] = torch.cuda.get_device_name(device)
        properties = torch.cuda.get_device_properties(device)
        record["device_id"] = str(getattr(properties, "uuid", ""))
        with contextlib.suppress(Exception):
            record["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return record


def problem(records: List[Dict[str, Any]], expected: int, per_host: int, same_gpu: bool) -> str:
    """Why these ranks, in order, are not the world that was ``expected``, ``per_host`` of them on each host (0: any
    number); empty if they are."""
    size = len(records)
    if expected and expected != size:
        return "%d ranks were asked for, the launcher made %d" % (expected, size)
    odd = [record["rank"] for record in records if record["world"] != size]
    if odd:
        return "ranks %s believe in another world size" % odd
    odd = [record["rank"] for record in records if record["backend"] != records[0]["backend"]]
    if odd:  # inside another launcher each rank chooses by what its host has
        return "ranks %s chose another backend than rank 0, %s: name one with --backend" % (odd, records[0]["backend"])
    hosts = Counter((record["boot"], record["host"]) for record in records)
    odd = sorted("%s has %d" % (host, ranks) for (_, host), ranks in hosts.items() if per_host and ranks != per_host)
    if odd:
        return "%d ranks a host were asked for: %s" % (per_host, ", ".join(odd[:8]))
    processes: Dict[Tuple[str, int], int] = {}
    devices: Dict[Tuple[str, str], int] = {}
    for record in records:
        process = (record["boot"] + record["host"], record["pid"])
        if process in processes:
            return "ranks %d and %d are the same process" % (processes[process], record["rank"])
        processes[process] = record["rank"]
        if record["device_id"] and not same_gpu:
            device = (record["boot"], record["device_id"])
            if device in devices:
                return "ranks %d and %d both use GPU %s on %s" % (
                    devices[device], record["rank"], record["device_id"], record["host"],
                )  # fmt: skip
            devices[device] = record["rank"]
    return ""


def boot_id() -> str:
    """What tells this machine, as it runs now, from all others; empty where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().split()[0]
    except (OSError, IndexError):
        return ""
