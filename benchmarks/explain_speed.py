"""How fast ``explain`` reads, beside ripgrep on the same files in the same run.

    python benchmarks/explain_speed.py [--size 2G] [--ranks 512] [--keep DIR] [--cold]

Writes a tree of one log per rank on the spot (initialisation at INFO, training steps, data loader chatter, and in one rank
an exception that the others time out on), warms the page cache, then times several times each, alternating:
``rg -c 'NCCL|Error|Xid|Traceback|timeout'`` and ``nccl-doctor explain``. Printed: for both the median time, the seconds
summed over all cores, and their ratios; the most memory all processes of ``explain`` held together; the same for one small
file, which is what starting costs; and whether the cause was found. Nothing is judged but the ratio: machines differ.
``explain`` runs as it does when installed: with its modules compiled. ``--cold``: the files are taken out of the page cache
before each run, so that both read them from the disk, as logs are read that other machines wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nccl_doctor.explain.files import explain_paths

PATTERN = "NCCL|Error|Xid|Traceback|timeout"
OWED = 2.0


def size(text: str) -> int:
    """``2G`` -> 2,000,000,000 bytes."""
    scale = {"K": 1000, "M": 1000**2, "G": 1000**3}
    return int(float(text[:-1]) * scale[text[-1].upper()]) if text[-1].upper() in scale else int(text)


def _head(rank: int, ranks: int) -> str:
    host, device, pid = f"gpu{rank // 8:03d}", rank % 8, 4000 + rank
    lines = [
        f"{host}:{pid}:{pid} [{device}] NCCL INFO Bootstrap: Using bond0:10.1.{rank // 8}.1<0>",
        f"{host}:{pid}:{pid} [{device}] NCCL INFO NCCL version 2.27.5+cuda12.9",
        f"{host}:{pid}:{pid} [{device}] NCCL INFO ncclCommInitRankConfig comm 0x55d{rank:05x} rank {rank} nranks {ranks} "
        f"cudaDev {device} nvmlDev {device} busId {device}b000 commId 0x1f2e3d4c5b6a7988 - Init START",
    ]
    lines += [
        f"{host}:{pid}:{pid} [{device}] NCCL INFO Channel {channel:02d}/0 : {rank}[{device}] -> {(rank + 1) % ranks}[{(device + 1) % 8}] "
        + ("via P2P/CUMEM/read" if device < 7 else "[send] via NET/IB/0/GDRDMA")
        for channel in range(16)
    ]
    lines.append(
        f"{host}:{pid}:{pid} [{device}] NCCL INFO ncclCommInitRankConfig comm 0x55d{rank:05x} rank {rank} nranks {ranks} "
        f"cudaDev {device} nvmlDev {device} busId {device}b000 commId 0x1f2e3d4c5b6a7988 - Init COMPLETE"
    )
    return "\n".join(lines) + "\n"


def body(rank: int, count: int, seed: int) -> str:
    """``count`` bytes of ordinary training output."""
    chance = random.Random(seed * 1000 + rank)
    lines = []
    written = 0
    step = 0
    while written < count:
        step += 1
        clock = f"2026-11-20 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
        line = (
            f"[{clock}] iteration {step:8d}/ 500000 | consumed samples: {step * 2048:12d} | elapsed time per iteration (ms): "
            f"{3100 + chance.random() * 90:.1f} | learning rate: 6.000E-05 | global batch size: 2048 | lm loss: "
            f"{1.5 + chance.random():.6E} | grad norm: {chance.random():.3f} | number of skipped iterations: 0 |"
        )
        if step % 17 == 0:
            line = f"[{clock}] [loader] worker {step % 8}: opened part-{chance.randrange(99999):05d}.tar, 1024 samples, prefetch 6"
        lines.append(line)
        written += len(line) + 1
    return "\n".join(lines) + "\n"


def _end(rank: int, ranks: int, culprit: int) -> str:
    if rank == culprit:
        return (
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/job/data/loader.py", line 88, in fetch\n'
            f"[rank{rank}]:     return self.table[key]\n"
            f"[rank{rank}]: KeyError: 'image_00931'\n"
        )
    tag = f"[rank{rank}]:[E1120 03:32:42.123456789 ProcessGroupNCCL.cpp:632]"
    return (
        f"{tag} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=58213, OpType=ALLREDUCE, "
        f"NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
        f"{tag} [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: 58213 PG status: "
        f"last enqueued work: 58213, last completed work: 58212\n"
    )


def write(directory: Path, total: int, ranks: int) -> int:
    """Write the tree; returns its size in bytes. Bodies of eight ranks are reused: only the reading is timed."""
    each = max(4096, total // ranks)
    bodies = [body(rank, each, 7) for rank in range(8)]
    written = 0
    for rank in range(ranks):
        text = _head(rank, ranks) + bodies[rank % 8] + _end(rank, ranks, 17 % ranks)
        path = directory / f"node{rank // 8:03d}"
        path.mkdir(exist_ok=True)
        (path / f"rank{rank}.log").write_text(text)
        written += len(text)
    return written


class Run(NamedTuple):
    """One run of a command: elapsed and summed-up seconds, and the most memory of all its processes (bytes)."""

    wall: float
    cpu: float
    memory: int


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(pid: int) -> int:
    """Proportional memory of a process and those it started; what forked processes share counts once."""
    total = 0
    with contextlib.suppress(psutil.Error, OSError):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss
    return total


def _timed(command: list[str], environment: dict[str, str], watch: bool = False) -> Run:
    before, started, memory = _cpu(), time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        while watch and process.poll() is None:
            memory = max(memory, _memory(process.pid))
            time.sleep(0.02)
        process.wait()
        return Run(time.perf_counter() - started, _cpu() - before, memory)


def _forget(directory: Path) -> None:
    """Take the files out of the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _median(runs: list[Run]) -> Run:
    """The medians of all but the first, which warmed up."""
    kept = runs[1:]
    return Run(statistics.median(run.wall for run in kept), statistics.median(run.cpu for run in kept), 0)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size, default=size("2G"), help="bytes in all, such as 200M (default 2G)")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the tree here and keep it")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not from the page cache")
    options = parser.parse_args()
    compiled = tempfile.TemporaryDirectory(prefix="explain-speed-modules-")
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="explain-speed-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        total = write(directory, options.size, options.ranks)
        ripgrep = shutil.which("rg")
        explain = [sys.executable, "-m", "nccl_doctor", "explain", "--format", "json"]
        small = directory / "node000" / "rank0.log.head"
        small.write_bytes((directory / "node000" / "rank0.log").read_bytes()[:4000])
        ours, theirs, start = [], [], []
        for _ in range(options.rounds + 1):
            if options.cold:
                _forget(directory)
            if ripgrep:
                theirs.append(_timed([ripgrep, "-c", PATTERN, str(directory)], environment))
            if options.cold:
                _forget(directory)
            ours.append(_timed([*explain, str(directory)], environment))
            start.append(_timed([*explain, str(small)], environment))
        mine, fixed = _median(ours), _median(start)
        memory = _timed([*explain, str(directory)], environment, watch=True).memory
        found = explain_paths([str(directory)])
        print(
            f"{options.ranks} files, {total / 1e9:.2f} GB {'from the disk' if options.cold else 'in memory'}, {os.cpu_count()} cores; medians of {options.rounds} after a warm-up round"
        )
        print("            elapsed   over all cores")
        print(f"explain   {mine.wall:7.2f} s   {mine.cpu:7.2f} s   {total / mine.cpu / 1e6:8.0f} MB/s per core")
        print(f"  of which starting: {fixed.wall:.2f} s, {fixed.cpu:.2f} s (one file of 4 kB)")
        if ripgrep:
            rg = _median(theirs)
            print(f"ripgrep   {rg.wall:7.2f} s   {rg.cpu:7.2f} s   {total / rg.cpu / 1e6:8.0f} MB/s per core")
            print(
                f"ratio     {mine.wall / rg.wall:7.2f}     {mine.cpu / rg.cpu:7.2f}       owed: at most {OWED} elapsed"
            )
            print(
                f"  but for starting: {(mine.wall - fixed.wall) / rg.wall:.2f} elapsed, {(mine.cpu - fixed.cpu) / rg.cpu:.2f} over cores"
            )
        else:
            print("ripgrep   not installed: no ratio")
        print(f"memory    {memory / 1e6:7.0f} MB at most, all processes together (proportional set size)")
        print(f"verdict   {found.verdict.value}: {found.sentence}")
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
        compiled.cleanup()


if __name__ == "__main__":
    main()
