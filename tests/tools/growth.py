"""Whether time grows with the length of a text as a line does, told apart from a parabola on any machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

TIMES = 16  # as much text; a parabola takes 256 times as long
ALLOWED = 100
LEAST_S = 1e-3  # what is shorter is noise


def cpu_seconds(call: Callable[[], object], rounds: int = 3) -> float:
    """CPU time of this process for one call, the least of some rounds: neighbours on the machine do not count."""
    taken = []
    for _ in range(rounds):
        gc.collect()
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return min(taken)


def is_linear(call: Callable[[str], object], text: Callable[[int], str], length: int = 20_000) -> bool:
    """Judges ``call(text(length))`` beside ``call(text(16 * length))``."""
    short, long = text(length), text(TIMES * length)
    return cpu_seconds(lambda: call(long)) < ALLOWED * max(cpu_seconds(lambda: call(short)), LEAST_S)
