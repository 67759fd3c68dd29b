"""bench beside nccl-tests' own binaries, with the same NCCL library, sizes, ranks and iterations, in turns.

    make -C nccl-tests MPI=1 MPI_HOME=... NCCL_HOME=... NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90
    python benchmarks/bench_beside_nccl_tests.py nccl-tests/build [--ranks 2] [--sizes 1M,8M,64M] [--rounds 3]

nccl-tests is not part of this project. Several ranks need binaries built with MPI, and ``--mpiexec``; one rank needs neither. Where the
machine has fewer GPUs than ranks, all use GPU 0 and claim different hosts (NCCL_HOSTID): NCCL then runs over its network
transport, for both alike. Printed is the median of the rounds' ratios of the time per call (ours / theirs) with its
extremes. Owed: within 3 % at 1 MiB and above. Exit status 1 if a median lies beyond.

Each size is a run of its own for nccl-tests: within one run it walks through the largest size's buffer, we do not.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nccl_doctor.agent.collective import launch  # noqa: E402
from nccl_doctor.bench.collectives import COLLECTIVES  # noqa: E402
from nccl_doctor.bench.model import Collector  # noqa: E402
from nccl_doctor.bench.sizes import format_size, parse_sizes  # noqa: E402

BOUND = 0.03
# The way both have: torch reduces in place, and gathers out of place.
MODES = {"allreduce": "in", "allgather": "out", "reducescatter": "out"}
TIME_COLUMN = {"out": 5, "in": 9}  # of nccl-tests' 13: the time of its two blocks
ON_ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # as tests/gpu/worlds.py
# Their ranks' NCCL_HOSTID, by whichever launcher it is.
EACH_ITS_HOST = 'NCCL_HOSTID=rank${PMI_RANK:-$OMPI_COMM_WORLD_RANK} exec "$@"'


def nccl_library() -> Path | None:
    """The directory of the libnccl that torch brings along, if it is a package of its own."""
    import torch

    found = sorted(Path(torch.__file__).parents[1].glob("nvidia/nccl*/lib/libnccl.so.2"))
    return found[0].parent if found else None


def theirs(options: argparse.Namespace, collective: str, size: int) -> float:
    """Microseconds per call by nccl-tests."""
    command = [str(options.build / COLLECTIVES[collective].nccl_tests), "-g", "1", "-c", "0"]
    command += ["-b", str(size), "-e", str(size), "-n", str(options.iters), "-w", str(options.warmup)]
    env = dict(os.environ)
    library = nccl_library()
    if library:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(library), env.get("LD_LIBRARY_PATH", "")]))
    if options.ranks > 1:
        if options.same_gpu:
            env.update(ON_ONE_GPU, NCCL_TESTS_DEVICE="0")
            command = ["sh", "-c", EACH_ITS_HOST, "rank", *command]
        command = [*shlex.split(options.mpiexec), "-n", str(options.ranks), *command]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=options.limit)
    rows = [line.split() for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]
    rows = [row for row in rows if len(row) >= 13 and row[0] == str(size)]
    if done.returncode or len(rows) != 1:
        raise SystemExit(f"{shlex.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return float(rows[0][TIME_COLUMN[MODES[collective]]])


def ours(options: argparse.Namespace, collective: str, sizes: list[int]) -> dict[int, float]:
    """Microseconds per call by bench, for every size."""
    collector = Collector(options.ranks)
    plan = {
        "collectives": [collective], "sizes": sizes, "modes": [MODES[collective]], "iters": options.iters,
        "warmup": options.warmup, "budget_s": 600.0, "backend": options.backend, "same_gpu": options.same_gpu,
    }  # fmt: skip
    done = launch.launch(
        {
            "plan": plan, "world": options.ranks, "first_rank": 0, "local_world": options.ranks,
            "master_addr": "127.0.0.1", "master_port": launch.free_port(), "limit_s": options.limit,
            "env": ON_ONE_GPU if options.same_gpu else {},
            "env_per_rank": {"NCCL_HOSTID": "rank{rank}"} if options.same_gpu else {},
        },
        collector.take,
    )  # fmt: skip
    found = {item.size: item.time_us for item in collector.measurements}
    if sorted(found) != sorted(sizes) or any(item.wrong for item in collector.measurements):
        raise SystemExit(f"bench measured {sorted(found)} of {sizes}\n{done['ranks'][0]['output'][-3000:]}")
    return found


def main() -> int:
    """Run the rounds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="the folder of all_reduce_perf and its kind")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="1M,8M,64M")
    parser.add_argument("--collectives", default="allreduce,allgather")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iters", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per run at most")
    parser.add_argument("--backend", default="nccl", help="gloo: to try this program where there is no GPU")
    options = parser.parse_args()
    names, sizes = options.collectives.split(","), list(parse_sizes(options.sizes))
    missing = [name for name in names if not (options.build / COLLECTIVES[name].nccl_tests).is_file()]
    if missing:
        parser.error(f"{options.build}: no {COLLECTIVES[missing[0]].nccl_tests} there")
    if options.ranks > 1 and shutil.which(shlex.split(options.mpiexec)[0]) is None:
        parser.error(f"--mpiexec {options.mpiexec}: not found; nccl-tests needs MPI for more than one rank")
    options.same_gpu = options.backend == "nccl" and gpus() < options.ranks
    print(
        f"{options.ranks} ranks{', all on GPU 0 (NCCL_HOSTID)' if options.same_gpu else ''}, {options.rounds} rounds, {options.iters} iterations, NCCL of {nccl_library() or 'the system'}"
    )
    print(f"{'':<14}{'size':>6}  {'nccl-tests':>12}  {'bench':>12}  {'ratio':>6}   extremes")
    beyond = 0
    for name in names:
        mine: list[dict[int, float]] = []
        other: list[dict[int, float]] = []
        for number in range(options.rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                if which:
                    mine.append(ours(options, name, sizes))
                else:
                    other.append({size: theirs(options, name, size) for size in sizes})
        for size in sizes:
            ratios = sorted(b[size] / a[size] for a, b in zip(other, mine, strict=True))
            first, second = median([item[size] for item in other]), median([item[size] for item in mine])
            ratio = median(ratios)
            beyond += abs(ratio - 1) > BOUND
            print(
                f"{name:<14}{format_size(size):>6}  {first:>9.1f} us  {second:>9.1f} us  {ratio:>6.3f}   "
                f"{ratios[0]:.3f} - {ratios[-1]:.3f}   {'beyond' if abs(ratio - 1) > BOUND else 'within'} {BOUND * 100:g} %",
                flush=True,
            )
    return 1 if beyond else 0


def gpus() -> int:
    """GPUs that torch sees."""
    import torch

    return int(torch.cuda.device_count())


if __name__ == "__main__":
    sys.exit(main())
