"""The exchange of a pair of ranks ends on both sides alike, however late one of them comes."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nccl_doctor.agent.collective import pairs


def test_what_the_first_message_takes_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NCCL it makes the connection: as part of the time it would be a slow pair, and not measured again."""
    takes = iter([pairs.ENOUGH_S + 0.1])
    monkeypatch.setattr(pairs, "swap", lambda *_: time.sleep(next(takes, 0.001)))
    said = SimpleNamespace(item=lambda: 0)
    torch = SimpleNamespace(full=lambda *_, **__: said, empty_like=lambda _: said)
    worker: Any = SimpleNamespace(torch=torch, dtype=None, device=None)
    assert pairs.exchange(worker, None, None, 1) < 0.1


def test_a_rank_that_comes_late_and_one_that_waited_for_it_do_the_same_number_of_exchanges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages go through queues; one that does not come within 20 s is an error."""
    monkeypatch.setattr(pairs, "ENOUGH_S", 1.5)  # far longer than an exchange takes on a busy machine
    towards = (queue.Queue(), queue.Queue())  # type: tuple[queue.Queue[Any], queue.Queue[Any]]
    torch = SimpleNamespace(
        full=lambda shape, value, **_: SimpleNamespace(value=value, item=lambda: value),
        empty_like=lambda _: SimpleNamespace(value=None),
    )

    def swap(worker: Any, send: Any, receive: Any, peer: int) -> None:
        towards[peer].put(send.value)
        receive.value = towards[1 - peer].get(timeout=20)
        receive.item = lambda: receive.value

    monkeypatch.setattr(pairs, "swap", swap)
    worker: Any = SimpleNamespace(torch=torch, dtype=None, device=None)
    took: list[float] = []

    def exchange(peer: int) -> None:
        took.append(pairs.exchange(worker, SimpleNamespace(value=7), SimpleNamespace(value=None), peer))

    early, late = (threading.Thread(target=exchange, args=(peer,)) for peer in (1, 0))
    early.start()
    time.sleep(pairs.ENOUGH_S + 0.1)
    late.start()
    early.join(60)
    late.join(60)
    assert len(took) == 2 and min(took) < pairs.ENOUGH_S
