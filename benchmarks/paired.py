"""Two ways to do the same thing, compared within one world of ranks: short blocks in random order, ratios of neighbours.

Noise of a busy machine comes and goes within seconds and hits neighbours alike; a stolen time slice hits single blocks.
So: blocks of some milliseconds, one of each kind a round, which one is first drawn by lot; the median of the rounds'
ratios; its 95 % interval by bootstrap. Rounds go on until the interval is narrow enough, or the time is up.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

RESAMPLES = 1000
BATCH, LEAST = 25, 50  # rounds between two looks at the interval, and before the first


class Paired(NamedTuple):
    """``ratio`` is second / first: the median over rounds with its 95 % interval; times in microseconds a call."""

    ratio: float
    low: float
    high: float
    rounds: int
    first_us: float
    second_us: float

    def within(self, bound: float) -> str:
        """``within``, ``beyond`` or ``open``: where the whole interval lies as to 1 +- ``bound``."""
        if 1 - bound <= self.low and self.high <= 1 + bound:
            return "within"
        return "beyond" if self.low > 1 + bound or self.high < 1 - bound else "open"


def summarise(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Seconds a call of each round, both ways; the same input gives the same interval."""
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    chance = random.Random(1)
    medians = sorted(median(chance.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = medians[round(RESAMPLES * 0.025)], medians[round(RESAMPLES * 0.975) - 1]
    return Paired(
        math.exp(median(logs)), math.exp(low), math.exp(high), len(logs), median(first) * 1e6, median(second) * 1e6
    )


def alternate(
    board: Any, key: str, first: Callable[[], float], second: Callable[[], float], bound: float, limit_s: float
) -> Paired:
    """Run on every rank: both give seconds a call. Rank 0's times count; it decides when it is enough."""
    lot = random.Random(key)  # the same on all ranks
    times: tuple[list[float], list[float]] = ([], [])
    end = time.monotonic() + limit_s
    while True:
        for _ in range(BATCH):
            for which in (0, 1) if lot.random() < 0.5 else (1, 0):
                times[which].append((first, second)[which]())
        found = summarise(*times)
        narrow = (found.high - found.low) / 2 < bound / 3 and found.rounds >= LEAST
        if board.decide(f"{key}/{found.rounds}", narrow or time.monotonic() > end, lambda values: values[0]):
            return found


def ranks(file: str, count: int, port: int, more: Sequence[str] = ()) -> Iterator[str]:
    """Start this program once a rank (``--rank N --port P`` are added); the lines that rank 0 prints."""
    command = [sys.executable, file, *sys.argv[1:], *more, "--port", str(port), "--rank"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    others = [subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.DEVNULL) for rank in range(1, count)]
    leader = subprocess.Popen([*command, "0"], env=env, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    try:
        yield from leader.stdout
        if leader.wait(60):
            raise SystemExit(f"rank 0 ended with status {leader.returncode}")
    finally:
        for child in (leader, *others):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


HEAD = f"{'':<10} {'size':>7}  {'{0}':>12}  {'{1}':>12}  {'ratio':>6}   {'95 % interval':<13}  {'rounds':>6}"


def row(name: str, size: str, found: Paired, bound: float) -> str:
    """One line of the table."""
    return (
        f"{name:<10} {size:>7}  {found.first_us:>9.1f} us  {found.second_us:>9.1f} us  {found.ratio:>6.3f}   "
        f"{found.low:.3f} - {found.high:.3f}  {found.rounds:>6}  {found.within(bound)} {bound * 100:g} %"
    )
