"""Told to end from outside: SIGTERM and SIGHUP do what Ctrl-C does, so that a time limit loses nothing measured."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_told: list[str] = []


def end_like_ctrl_c() -> None:
    """From now on a time limit (Slurm, CI, ``timeout``) or a closed terminal is a Ctrl-C; only the first of them is.

    ``timeout`` sends SIGTERM twice, and the second must not cut off what the first one set going. What was ignored when
    the program started (SIGHUP under nohup) stays ignored.
    """
    us = os.getpid()

    def hand_over(number: int, frame: object) -> None:
        if os.getpid() != us:  # a process forked from us ends as any other
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        _told.append(signal.Signals(number).name)
        if len(_told) == 1:
            ctrl_c = signal.getsignal(signal.SIGINT)
            if callable(ctrl_c) and ctrl_c is not signal.default_int_handler:
                ctrl_c(number, frame)  # type: ignore[arg-type]
            else:  # a shell's background job is started with Ctrl-C ignored
                raise KeyboardInterrupt(_told[0])

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, hand_over)


def interrupted_by() -> str:
    """``Ctrl-C``, or the signal that came in its place."""
    return f"interrupted by {_told[0] if _told else 'Ctrl-C'}"


@contextlib.contextmanager
def handled_by(handler: Callable[[int, object], None], *numbers: int) -> Iterator[None]:
    """These signals are the handler's business. What is ignored (SIGHUP under nohup) stays so, for a job as well."""
    previous = {
        number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
