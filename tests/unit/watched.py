"""Hosts that were watched: samples as agents send them, folded as the controller folds them, and their bundle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nccl_doctor.collect.watch_series import HostSeries
from nccl_doctor.facts.model import Bundle, HostFacts, Outcome, Plan, ProbeResult, Reach, ReachOutcome

GIB = 1 << 30
EVERY_S = 5.0
OOM_FILE = "/sys/fs/cgroup/job/memory.events"

Change = Callable[[float, dict[str, Any]], None]  # seconds since the watch began, the sample: changed in place


def gpu_sample(index: int) -> dict[str, Any]:
    """A busy H100 in good health."""
    return {
        "index": index, "bus_id": f"0000:{index:02x}:00.0", "utilization_percent": 97, "temperature_c": 61 + index % 3,
        "power_w": 540.0 + index, "power_limit_w": 700.0, "clock_sm_mhz": 1755, "throttle_reasons": 0x4,
        "memory_used_bytes": 60 * GIB, "memory_total_bytes": 80 * GIB, "pcie_replays": 67, "ecc_uncorrected_volatile": 0,
        "nvlink_replays": 0, "nvlink_recoveries": 0, "refused": {},
    }  # fmt: skip


def rank_process(rank: int, world: int, local: int, each: int) -> dict[str, Any]:
    """What the finder of ranks tells of one."""
    environment = {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": "gpu01", "MASTER_PORT": "29500",
    }  # fmt: skip
    return {
        "pid": 4000 + rank, "parent": 1, "role": "rank", "comm": "python", "program": "python3.11", "script": "train.py",
        "launcher": "torchrun", "uid": 1000, "start_ticks": 100, "age_s": 600.0, "namespace": "net:[1]", "rank_pid": 4000 + rank,
        "environment": environment, "spawned": False, "placed": False,
    }  # fmt: skip


def host_sample(at_s: float, ranks: range, world: int) -> dict[str, Any]:
    """A busy host in good health."""
    nic = {
        "speed_mbps": 25000, "received_bytes": int(at_s * 1e8), "sent_bytes": int(at_s * 1e8),
        "errors": {"rx_errors": 0, "tx_errors": 0, "losses": 1},
    }  # fmt: skip
    names = ("symbol_error", "port_rcv_errors", "port_xmit_discards", "link_error_recovery", "link_downed")
    port = {
        "rate": "400 Gb/sec (4X NDR)", "received_bytes": int(at_s * 4e9), "sent_bytes": int(at_s * 4e9),
        "errors": dict.fromkeys(names, 0),
    }  # fmt: skip
    busy = {"state": "R", "cpu_s": at_s, "resident_bytes": 9 * GIB, "oom_file": OOM_FILE}
    own = {str(4000 + rank): dict(busy) for rank in ranks}
    log = {"source": "/dev/kmsg", "total": 0, "first_s": None, "uptime_s": 9e5, "lines": [], "left_off": 0}
    return {
        "at_s": at_s,
        "cpu": [int(at_s * 3000), int(at_s * 6400)],
        "memory": {"MemTotal": 1000 * GIB, "MemAvailable": 800 * GIB + (int(at_s) % 7) * (1 << 20)},
        "kernel": {"pswpin": 0, "pswpout": 0, "oom_kill": 0},
        "waiting": {"cpu": 1.0, "io": 0.5, "memory": 0.0},
        "nics": {"eth0": nic, "mlx5_0/1": port}, "gone": {},
        "ranks": own,
        "killed": {OOM_FILE: 3},
        "job": {
            "processes": [rank_process(rank, world, rank - ranks.start, len(ranks)) for rank in ranks],
            "namespace": "net:[1]", "uid": 0, "refused": {"count": 0, "pids": []}, "unnumbered": 0,
        },
        "log": {"outcome": "ok", "told": log},
        "named": {"calls_itself": f"node{ranks.start}", "addresses": [f"10.0.0.{ranks.start + 1}"]},
        "cost_s": at_s / 1000,
    }  # fmt: skip


def series(
    name: str, ranks: range, world: int, samples: int, change: Change | None, gpu_change: Change | None, gpus: int
) -> tuple[HostSeries, float]:
    """The host's series, and the moment at which they end."""
    told = HostSeries(name, EVERY_S)
    told.began_s = 0.0
    for number in range(samples):
        now_s = (number + 1) * EVERY_S
        sample = host_sample(now_s, ranks, world)
        if change:
            change(now_s, sample)
        if sample:
            told.take(sample, now_s)
        if gpus:
            step = {"at_s": now_s, "cost_s": now_s / 1000, "samples": [gpu_sample(index) for index in range(gpus)]}
            if gpu_change:
                gpu_change(now_s, step)
            if step:
                told.take_gpus(step, now_s)
    return told, samples * EVERY_S + 1.0


def gpu_fact(gpus: int) -> dict[str, Any]:
    """What the probe ``gpu`` tells of a host with so many."""
    nodes = [f"nvidia{index}" for index in range(gpus)]
    devices = [
        {
            "index": index, "name": "NVIDIA H100 80GB HBM3", "bus_id": f"0000:{index:02x}:00.0", "power_default_w": 700.0,
            "clock_sm_max_mhz": 1980, "power_limit_w": 700.0,
        }
        for index in range(gpus)
    ]  # fmt: skip
    return {"nvml": {"outcome": "ok"}, "smi": {"outcome": "not-run"}, "gpus": devices, "device_nodes": nodes}


def bundle(
    changes: dict[str, Change] | None = None,
    gpu_changes: dict[str, Change] | None = None,
    *,
    hosts: int = 2,
    samples: int = 30,
    gpus: int = 4,
    ranks: int = 4,
    silent: dict[str, str] | None = None,
) -> Bundle:
    """Hosts of one job, each with so many GPUs and ranks, watched for so many samples."""
    return Bundle(
        1, "test", "2026-11-22T00:00:00+00:00", Plan(stages=("watch",)),
        tuple(_facts(f"gpu{number + 1:02}", number, hosts, samples, gpus, ranks, changes or {}, gpu_changes or {}, silent or {})
              for number in range(hosts)),
        seconds=samples * EVERY_S,
    )  # fmt: skip


def _facts(
    name: str, number: int, hosts: int, samples: int, gpus: int, each: int,
    changes: dict[str, Change], gpu_changes: dict[str, Change], silent: dict[str, str],
) -> HostFacts:  # fmt: skip
    ranks = range(number * each, number * each + each)
    told, now_s = series(name, ranks, hosts * each, samples, changes.get(name), gpu_changes.get(name), gpus)
    if name in silent:
        told.fall_silent(now_s, silent[name])
        now_s += 60.0
    results = {**told.results(now_s), "gpu": ProbeResult(Outcome.OK, gpu_fact(gpus))}
    return HostFacts(name, Reach(ReachOutcome.OK), results)


def one_gpu(index: int, **values: Any) -> Change:
    """A change of one GPU's samples."""

    def change(now_s: float, step: dict[str, Any]) -> None:
        step["samples"][index].update(values)

    return change


def all_gpus(**values: Any) -> Change:
    """A change of all GPUs' samples."""

    def change(now_s: float, step: dict[str, Any]) -> None:
        for sample in step["samples"]:
            sample.update(values)

    return change


def both(*changes: Change) -> Change:
    """One after the other."""

    def change(now_s: float, step: dict[str, Any]) -> None:
        for each in changes:
            each(now_s, step)

    return change
