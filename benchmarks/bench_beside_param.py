"""bench beside PARAM's comms benchmark (facebookresearch/param, MIT), gloo, on one machine, run in turns.

    python benchmarks/bench_beside_param.py PATH_OF_A_PARAM_CHECKOUT [--ranks 2] [--rounds 5]

PARAM is not part of this project: clone it yourself; it needs numpy and pydot. Each round starts PARAM's ``comms.py`` and a
world of our workers, in alternating order, for all-reduce and all-gather of 1 MiB to 64 MiB with the same elements per rank
and iterations. Printed is the median of the rounds' ratios of the median times (ours / PARAM's), with their extremes.
Owed: within 5 %. Different processes at different moments: on a busy machine the extremes are wide.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nccl_doctor.agent.collective import launch  # noqa: E402
from nccl_doctor.bench.model import Collector  # noqa: E402

COLLECTIVES = {"allreduce": "all_reduce", "allgather": "all_gather_base"}
SIZES = [1 << 20, 8 << 20, 64 << 20]
ITERATIONS = 20
_RESULT = re.compile(r"COMMS-RES-\S+\s+(\d+)\s+(\d+)\s+([0-9.]+)")

Times = dict[tuple[str, int], float]  # collective, elements per rank -> median in microseconds


def param(checkout: Path, ranks: int) -> Times:
    """Median times by PARAM."""
    found: Times = {}
    with tempfile.TemporaryDirectory() as top:
        (Path(top) / "param_bench").symlink_to(checkout.resolve())  # the name its modules import each other by
        for ours, theirs in COLLECTIVES.items():
            port = str(launch.free_port())
            command = [
                sys.executable,
                "comms.py",
                "--master-ip",
                "127.0.0.1",
                "--b",
                "1M",
                "--e",
                "64M",
                "--f",
                "8",
                "--n",
                str(ITERATIONS),
                "--z",
                "1",
                "--collective",
                theirs,
                "--backend",
                "gloo",
                "--device",
                "cpu",
            ]
            children = []
            for rank in range(ranks):
                values = {
                    "RANK": rank,
                    "WORLD_SIZE": ranks,
                    "LOCAL_RANK": rank,
                    "OMPI_COMM_WORLD_RANK": rank,
                    "OMPI_COMM_WORLD_SIZE": ranks,
                    "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                    "OMPI_COMM_WORLD_LOCAL_SIZE": ranks,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                }
                env = {**os.environ, **{name: str(value) for name, value in values.items()}}
                env["PYTHONPATH"] = f"{top}:{checkout.resolve()}"
                children.append(
                    subprocess.Popen(
                        command,
                        cwd=checkout / "train/comms/pt",
                        env=env,
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
                )
            text, *_ = [child.communicate(timeout=300)[0] for child in children]
            rows = _RESULT.findall(text)
            if not rows:
                raise SystemExit(f"PARAM gave no result for {theirs}:\n{text[-3000:]}")
            found.update({(ours, int(elements)): float(median) for _, elements, median in rows})
    return found


def bench(ranks: int, wanted: set[tuple[str, int]]) -> Times:
    """Median times by our worker for the same elements per rank."""
    found: Times = {}
    for collective in COLLECTIVES:
        parts = ranks if collective == "allgather" else 1
        collector = Collector(ranks)
        plan = {
            "collectives": [collective],
            "sizes": sorted(n * 4 * parts for name, n in wanted if name == collective),
            "iters": ITERATIONS,
            "warmup": 5,
            "budget_s": 600.0,
            "check": False,
        }
        launch.launch(
            {
                "plan": plan,
                "world": ranks,
                "first_rank": 0,
                "local_world": ranks,
                "master_addr": "127.0.0.1",
                "master_port": launch.free_port(),
                "limit_s": 600.0,
            },
            collector.take,
        )
        found.update({(collective, item.count): item.spread.median_us for item in collector.measurements})
    return found


def main() -> None:
    """Run the rounds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    theirs: list[Times] = [param(options.checkout, options.ranks)]
    ours: list[Times] = [bench(options.ranks, set(theirs[0]))]
    for number in range(1, options.rounds):
        if number % 2:
            ours.append(bench(options.ranks, set(theirs[0])))
            theirs.append(param(options.checkout, options.ranks))
        else:
            theirs.append(param(options.checkout, options.ranks))
            ours.append(bench(options.ranks, set(theirs[0])))
    print(f"{'collective':<10}  {'elements/rank':>13}  {'PARAM':>12}  {'bench':>12}  {'bench / PARAM':>13}   extremes")
    for key in sorted(theirs[0]):
        ratios = sorted(b[key] / a[key] for a, b in zip(theirs, ours, strict=True))
        plain, own = (statistics.median(item[key] for item in items) for items in (theirs, ours))
        print(
            f"{key[0]:<10}  {key[1]:>13}  {plain:>9.0f} us  {own:>9.0f} us  {statistics.median(ratios):>13.3f}   "
            f"{ratios[0]:.3f} - {ratios[-1]:.3f}"
        )


if __name__ == "__main__":
    main()
