"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was measured is told and kept, no host runs on."""

from __future__ import annotations

import signal
from types import FrameType


def as_ctrl_c() -> None:
    """From now on they raise ``KeyboardInterrupt`` with the signal's name, in the main thread.

    A signal that whoever started us ignores (``nohup``), or that somebody handles, stays as it is.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def name_of(interrupt: KeyboardInterrupt) -> str:
    """Who ended it: ``Ctrl-C``, or the signal's name."""
    return str(interrupt) or "Ctrl-C"


def _interrupt(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: a second one must not break off the telling
    raise KeyboardInterrupt(signal.Signals(number).name)
