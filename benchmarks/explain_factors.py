"""Choose the few literals that ``explain`` looks for first, and write them to ``nccl_doctor/explain/readers/factors.json``.

    python benchmarks/explain_factors.py [--check]

Each anchor of a signature is stood for by one of its own pieces (a *factor*): where no factor is, no anchor can be. A few
hundred factors that are rare in ordinary output are found three times as fast as all anchors (docs/decisions/0023).
Several ways to choose are tried and the fastest is taken: the engine's speed varies between sets that look alike by a
fifth (docs/decisions/0026). Run it after adding signatures, on a quiet machine; an anchor without a factor is looked for itself, so a stale file costs speed and nothing
else. ``--check`` writes nothing and says how many anchors have no factor.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from explain_speed import body  # noqa: E402

from nccl_doctor.explain.matcher import FACTORS, STRIDE, HyperscanEngine, _database, factors  # noqa: E402
from nccl_doctor.explain.readers.plan import plan  # noqa: E402

SIZES = ((5, 5), (5, 6), (5, 7), (6, 6), (6, 7), (7, 7), (7, 8))  # of the shortest and the longest factor
WEIGHTS = (0.3, 1.0, 3.0)  # of a pair of letters that ordinary output has, too
ROUNDS = 60  # short ones, the least counts: other load on the machine does little
PIECE = 256 << 10
# What most lines of a large log look like. A factor should share as few pairs of letters with them as can be.
ORDINARY = """
[2026-11-20 03:14:07] iteration     1234/ 500000 | consumed samples:      2527232 | elapsed time per iteration (ms): 3188.1 | \
learning rate: 6.000E-05 | global batch size: 2048 | lm loss: 1.512345E+00 | loss scale: 1.0 | grad norm: 0.712 | \
number of skipped iterations: 0 | number of nan iterations: 0 | throughput per GPU (TFLOP/s/GPU): 412.7 |
[2026-11-20 03:14:07] [loader] worker 3: opened part-00931.tar, 1024 samples, prefetch 6
{'loss': 2.1043, 'grad_norm': 1.237, 'learning_rate': 4.9e-05, 'epoch': 0.31}
  3%|3         | 312/10000 [02:11<1:08:10,  2.37it/s, loss=2.104, v_num=12]
Epoch 3: 17%|#7        | 170/1000 [00:51<04:11,  3.30it/s, v_num=0, train_loss=0.451, train_acc=0.871]
INFO 11-20 03:14:07 metrics.py:455] Avg prompt throughput: 1812.4 tokens/s, Avg generation throughput: 611.0 tokens/s, \
Running: 61 reqs, Pending: 0 reqs, GPU KV cache usage: 41.2%
INFO:     10.1.4.7:51312 - "POST /v1/chat/completions HTTP/1.1" 200 OK
2026-11-20 03:14:07,123 - INFO - train.py:212 - step: 1200 lr: 3.0e-4 loss: 2.331 ppl: 10.28 tokens/sec: 181321 mfu: 0.43
[2026-11-20 03:14:07,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=1200, skipped=0, lr=[3e-04], mom=[(0.9, 0.95)]
[2026-11-20 03:14:07,123] [INFO] [timer.py:258:stop] epoch=0/micro_step=1200/global_step=1200, RunningAvgSamplesPerSec=812.1
time (ms) | forward-compute: 1011.21 | backward-compute: 2011.13 | optimizer: 31.02 | batch-generator: 2.11
saving checkpoint at iteration    1200 to /data/checkpoints/run17/iter_0001200 in torch_dist format
successfully saved checkpoint from iteration    1200 to /data/checkpoints/run17 [ t 1/8, p 1/4 ]
validation loss at iteration 1200 | lm loss value: 2.101233E+00 | lm loss PPL: 8.176253E+00 |
gpu000:4000:4012 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
gpu000:4000:4012 [0] NCCL INFO Channel 07/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA
gpu000:4000:4012 [0] NCCL INFO AllReduce: opCount 4d2 sendbuff 0x7f3a12000000 recvbuff 0x7f3a12000000 acc 0 count 4194304 \
datatype 9 op 0 root 0 comm 0x55d00000 [nranks=512] stream 0x55d11111
"""


def choose(anchors: tuple[bytes, ...], shortest: int, longest: int, weight: float) -> dict[bytes, bytes]:
    """A factor for each anchor: greedy, most anchors for the least likeness to ordinary output first.

    Pieces that ordinary output has, and numbers, which any log holds by chance, are none: an anchor of such is its own.
    """
    ordinary = ORDINARY.encode()
    pairs = {ordinary[at : at + 2] for at in range(len(ordinary) - 1)}
    holders: dict[bytes, set[bytes]] = defaultdict(set)
    whole = [anchor for anchor in anchors if len(anchor) < shortest]
    chosen = {anchor: short for anchor in anchors for short in whole if short in anchor}
    for anchor in anchors:
        if anchor not in chosen:
            for size in range(shortest, longest + 1):
                for at in range(len(anchor) - size + 1):
                    holders[anchor[at : at + size]].add(anchor)

    def cost(piece: bytes) -> float:
        return 1.0 + weight * sum(piece[at : at + 2] in pairs for at in range(len(piece) - 1))

    costs = {piece: cost(piece) for piece in holders if piece not in ordinary and piece.strip(b"0123456789. ")}
    heap = [(-len(holders[piece]) / costs[piece], -len(piece), piece) for piece in costs]
    heapq.heapify(heap)
    while heap:
        gain, size, piece = heapq.heappop(heap)
        left = [anchor for anchor in holders[piece] if anchor not in chosen]
        now = -len(left) / costs[piece]
        if left and now > gain:
            heapq.heappush(heap, (now, size, piece))  # others took some of its anchors: back into the line
        elif left:
            chosen.update(dict.fromkeys(left, piece))
    return {anchor: chosen.get(anchor, anchor) for anchor in anchors}


def fastest(anchors: tuple[bytes, ...]) -> tuple[dict[bytes, bytes], float]:
    """The choice whose factors are found fastest in ordinary output that holds no anchor, and its speed in GB/s.

    What counts is the slower of two texts: lines of all kinds, and the steps that explain_speed.py's logs consist of.
    """
    engine = HyperscanEngine(anchors)
    lines = [line for line in ORDINARY.encode().splitlines(keepends=True) if not engine.find(line)]
    texts = [b"".join(lines) * (PIECE // len(b"".join(lines))), body(0, PIECE, 7).encode()]
    choices = [choose(anchors, *size, weight) for size, weight in itertools.product(SIZES, WEIGHTS)]
    databases = [_database((*sorted(set(chosen.values())), STRIDE)) for chosen in choices]
    seconds = {(index, text): float("inf") for index in range(len(choices)) for text in texts}
    for _ in range(ROUNDS):
        for index, text in seconds:
            started = time.perf_counter()
            databases[index].scan(text, match_event_handler=lambda *_: None)
            seconds[index, text] = min(seconds[index, text], time.perf_counter() - started)
    speeds = [min(len(text) / seconds[index, text] for text in texts) for index in range(len(choices))]
    best = speeds.index(max(speeds))
    return choices[best], speeds[best] / 1e9


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    anchors = plan().anchors
    if options.check:
        missing = [anchor for anchor in anchors if anchor not in factors()]
        print(f"{len(anchors)} anchors, {len(missing)} without a factor")
        return
    chosen, speed = fastest(anchors)
    by_factor: dict[str, list[str]] = defaultdict(list)
    for anchor, factor in sorted(chosen.items()):
        by_factor[factor.decode("latin-1")].append(anchor.decode("latin-1"))
    document = {"generated by": "benchmarks/explain_factors.py", "factors": dict(sorted(by_factor.items()))}
    FACTORS.write_text(json.dumps(document, indent=0, ensure_ascii=True) + "\n", encoding="utf-8")
    sizes = Counter(len(factor) for factor in by_factor)
    lengths = dict(sorted(sizes.items()))
    print(f"{len(anchors)} anchors, {len(by_factor)} factors, by length {lengths}: {speed:.2f} GB/s")


if __name__ == "__main__":
    main()
