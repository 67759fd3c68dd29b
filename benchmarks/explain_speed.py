"""How fast ``explain`` reads, beside ripgrep on the same files in the same run.

    python benchmarks/explain_speed.py [--size 2G] [--ranks 512] [--keep DIR]

Writes a tree of one log per rank on the spot (initialisation at INFO, training steps, data loader chatter, and in one rank
an exception that the others time out on), warms the page cache, then times three times each, alternating:
``rg -c 'NCCL|Error|Xid|Traceback|timeout'`` and ``nccl-doctor explain``. Printed: both medians, their ratio, the largest
memory of one process, and whether the cause was found. Nothing is judged but the ratio: machines differ.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def _body(rank: int, count: int, seed: int) -> str:
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
    bodies = [_body(rank, each, 7) for rank in range(8)]
    written = 0
    for rank in range(ranks):
        text = _head(rank, ranks) + bodies[rank % 8] + _end(rank, ranks, 17 % ranks)
        path = directory / f"node{rank // 8:03d}"
        path.mkdir(exist_ok=True)
        (path / f"rank{rank}.log").write_text(text)
        written += len(text)
    return written


def _timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return time.perf_counter() - started


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=size, default=size("2G"), help="bytes in all, such as 200M (default 2G)")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the tree here and keep it")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="explain-speed-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        total = write(directory, options.size, options.ranks)
        ripgrep = shutil.which("rg")
        ours, theirs = [], []
        for _ in range(options.rounds + 1):
            if ripgrep:
                theirs.append(_timed([ripgrep, "-c", PATTERN, str(directory)]))
            ours.append(_timed([sys.executable, "-m", "nccl_doctor", "explain", "--format", "json", str(directory)]))
        found = explain_paths([str(directory)])
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        mine = statistics.median(ours[1:])
        print(f"{options.ranks} files, {total / 1e9:.2f} GB; medians of {options.rounds} after a warm-up round")
        print(f"explain   {mine:7.2f} s   {total / mine / 1e6:8.0f} MB/s   largest process {peak / 1024:.0f} MiB")
        if ripgrep:
            rg = statistics.median(theirs[1:])
            print(f"ripgrep   {rg:7.2f} s   {total / rg / 1e6:8.0f} MB/s")
            print(f"ratio     {mine / rg:7.2f}     owed: at most {OWED}")
        else:
            print("ripgrep   not installed: no ratio")
        print(f"verdict   {found.verdict.value}: {found.sentence}")
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
