"""SIGTERM, as a scheduler sends it at its time limit, ends a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from nccl_doctor.cli import _signals

BOTH = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_signals, "_told", [])
    before = {number: signal.signal(number, signal.SIG_DFL) for number in BOTH}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_it_interrupts_once_and_by_its_name(number: signal.Signals) -> None:
    _signals.end_like_ctrl_c()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        os.kill(os.getpid(), number)
    assert _signals.interrupted_by() == f"interrupted by {number.name}"
    os.kill(os.getpid(), number)  # while it is told what was measured


def test_under_nohup_a_hangup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _signals.end_like_ctrl_c()
    os.kill(os.getpid(), signal.SIGHUP)
