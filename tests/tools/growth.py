"""Whether time grows with the length of a text as a line does, told apart from a parabola on any machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

TIMES = 16  # as much text; a parabola takes 256 times as long
ALLOWED = 100
LEAST_S = 1e-3  # what is shorter is noise
ROUNDS = 3  # the least of them counts


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of this thread for one call: neighbours on the machine do not count, nor what other tests left running."""
    gc.disable()
    try:
        started = time.thread_time()
        call()
        return time.thread_time() - started
    finally:
        gc.enable()


def is_linear(call: Callable[[str], object], text: Callable[[int], str], length: int = 20_000) -> bool:
    """Judges ``call(text(length))`` beside ``call(text(16 * length))``; asks again only while it looks like more."""
    short, long = text(length), text(TIMES * length)
    once = min(cpu_seconds(lambda: call(short)) for _ in range(ROUNDS))
    return any(cpu_seconds(lambda: call(long)) < ALLOWED * max(once, LEAST_S) for _ in range(ROUNDS))
