"""What a sample of ``nccl-doctor watch`` costs the host that is watched: CPU time of the agent and its NVML child.

Watches this machine, as it is and with the tests' stand-in NVML of eight GPUs, which costs what pynvml and our own code
do; what a real driver adds is measured by running this on a GPU machine (``--real``: without the stand-in).

``python benchmarks/watch_cost.py [--seconds 30] [--real]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

EVERY_S = 0.5


def cost(environment: dict[str, str], seconds: int) -> tuple[float, dict[str, Any]]:
    """Milliseconds of CPU for a sample, and what was seen."""
    words = [sys.executable, "-m", "nccl_doctor", "watch", "--every", str(EVERY_S), "--for", str(seconds)]
    done = subprocess.run(
        [*words, "--format", "json"], env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=seconds + 60
    )
    (series,) = json.loads(done.stdout)["series"].values()
    return 10 * series["cost_percent"] * EVERY_S, series


def main() -> None:
    """Print one line for each kind of host."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--real", action="store_true", help="this machine's own GPUs, no stand-in")
    asked = parser.parse_args()
    processes = sum(path.name.isdigit() for path in Path("/proc").iterdir())
    own = {**os.environ, "PYTHONPATH": str(PROJECT)}
    spent, series = cost(own, asked.seconds)
    print(f"{len(series['gpus'])} GPUs, {processes} processes: {spent:.1f} ms of CPU for a sample")
    if not asked.real:
        from tests.hardware_kit.machines import Machine

        with tempfile.TemporaryDirectory() as directory:
            machine = Machine(Path(directory))
            machine.write()
            spent, series = cost({**machine.environment(), "PYTHONPATH": str(PROJECT)}, asked.seconds)
        print(f"{len(series['gpus'])} GPUs of the stand-in, 8 RDMA ports: {spent:.1f} ms of CPU for a sample")


if __name__ == "__main__":
    main()
