"""bench beside PARAM's comms benchmark (facebookresearch/param, MIT), gloo, in turns within one world of ranks.

    git clone https://github.com/facebookresearch/param /tmp/param
    python benchmarks/bench_beside_param.py /tmp/param [--ranks 2] [--sizes 1M:64M:x4] [--seconds 0.05] [--limit 60]

PARAM is not part of this project; it needs numpy. Every rank runs PARAM's own ``comms.py``: its command line, its set-up, its process
group and tensors, blocking mode (``--z 1``). Where it would measure a size (``runColl``), its measurement and the worker's
timed loop take turns on its tensors, in short blocks in random order (see paired.py). bench times calls back to back, as
nccl-tests does; so does PARAM with ``--num-coll``, which is what it is asked for here. ``--barrier call`` asks for its
default instead, a barrier before each call, which is another quantity. Owed: within 5 % for all-reduce and all-gather,
1 MiB to 64 MiB. Exit status 1 if an interval lies beyond.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import paired  # noqa: E402

from nccl_doctor.agent.collective import launch, operations, timing  # noqa: E402
from nccl_doctor.agent.collective.board import Board  # noqa: E402
from nccl_doctor.agent.collective.ranks import Identity  # noqa: E402
from nccl_doctor.agent.collective.worker import Worker  # noqa: E402
from nccl_doctor.bench.sizes import format_size, parse_sizes  # noqa: E402

BOUND = 0.05
# Ours: theirs, and our way to do what theirs does: all-reduce in place, all-gather into one tensor.
COLLECTIVES = {"allreduce": ("all_reduce", "in"), "allgather": ("all_gather_base", "out")}


def rank_main(options: argparse.Namespace) -> None:
    """One rank: PARAM's main with its measurement of a size replaced by the comparison."""
    sizes = parse_sizes(options.sizes)
    values = {"RANK": options.rank, "WORLD_SIZE": options.ranks, "LOCAL_RANK": options.rank, "LOCAL_SIZE": options.ranks,
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": options.port}  # fmt: skip
    os.environ.update({name: str(value) for name, value in values.items()})
    from param_bench.train.comms.pt import comms

    identity = Identity(
        options.rank, options.ranks, options.rank, options.ranks, "127.0.0.1", options.port, "benchmark"
    )
    worker = Worker({"limit_s": 600.0, "backend": "gloo"}, identity, lambda event: None)
    worker._import()
    theirs = comms.commsCollBench.runColl

    def compare(self: Any, comm_fn: Any = None, dcheck: bool = False) -> Any:
        arguments = self.collectiveArgs
        name = next(key for key, value in COLLECTIVES.items() if value[0] == arguments.collective)
        receive = arguments.ipTensor if name == "allreduce" else arguments.opTensor
        call = operations.caller(
            worker.dist,
            operations.OPERATIONS[name],
            COLLECTIVES[name][1],
            operations.Buffers(arguments.ipTensor, receive),
            worker.me,
            "sum",
        )
        size = receive.numel() * receive.element_size()
        key = f"{name}/{size}"
        board = Board(worker.dist.PrefixStore(key, self.backendFuncs.tcp_store), identity, 600.0)
        arguments.numWarmupIters, arguments.numIters = 3, 5
        guess = theirs(self, comm_fn, dcheck)["timeUS"] / 1e6
        iterations = board.decide("iterations", guess, lambda values: max(1, int(options.seconds / max(values))))
        arguments.numWarmupIters, arguments.numIters = 0, iterations
        if options.barrier == "block":
            arguments.numIters, arguments.numCollPerIter = 1, iterations

        def second() -> float:
            times = timing.timed(worker, call, iterations, "benchmark", 600.0)
            return sum(times) / len(times)

        found = paired.alternate(
            board, key, lambda: theirs(self, comm_fn, dcheck)["timeUS"] / 1e6, second, BOUND, options.limit
        )
        if options.rank == 0:
            print("paired:" + json.dumps([name, size, found]), flush=True)
        return theirs(self, comm_fn, dcheck)

    comms.commsCollBench.runColl = compare
    sys.argv = [
        "comms.py", "--master-ip", "127.0.0.1", "--master-port", str(options.port), "--backend", "gloo", "--device", "cpu",
        "--z", "1", "--collective", COLLECTIVES[options.collective][0], "--ss", ",".join(map(str, sizes)),
    ]  # fmt: skip
    comms.main()
    sys.stdout.flush()
    os._exit(0)


def main() -> int:
    """Start the ranks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="1M:64M:x4")
    parser.add_argument("--seconds", type=float, default=0.05, help="per block")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per size at most")
    parser.add_argument("--barrier", choices=["block", "call"], default="block", help="where PARAM's barrier stands")
    parser.add_argument("--collective", choices=list(COLLECTIVES), help="only this one")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.checkout / "train/comms/pt/comms.py").is_file():
        parser.error(f"{options.checkout}: no checkout of facebookresearch/param (no train/comms/pt/comms.py)")
    if options.rank is not None:
        rank_main(options)
    print(paired.HEAD.format("PARAM", "bench"))
    beyond = 0
    with tempfile.TemporaryDirectory() as top:
        (Path(top) / "param_bench").symlink_to(options.checkout.resolve())  # the name its modules import each other by
        os.environ["PYTHONPATH"] = os.pathsep.join([top, str(ROOT)])
        for name in [options.collective] if options.collective else COLLECTIVES:
            lines = []
            for line in paired.ranks(__file__, options.ranks, launch.free_port(), ["--collective", name]):
                lines.append(line)
                if line.startswith("paired:"):
                    collective, size, values = json.loads(line.removeprefix("paired:"))
                    found = paired.Paired(*values)
                    beyond += found.within(BOUND) == "beyond"
                    print(paired.row(collective, format_size(size), found, BOUND), flush=True)
            if not any(line.startswith("paired:") for line in lines):
                raise SystemExit(f"PARAM measured nothing for {name}:\n{''.join(lines)[-3000:]}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
