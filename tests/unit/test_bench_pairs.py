"""The exchange of a pair of ranks ends on both sides alike, however late one of them comes."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

from nccl_doctor.agent.collective.worker import LINK_ENOUGH_S, Worker


def paired() -> tuple[Any, Any]:
    """Two workers whose messages go through queues; a message that does not come within 5 s is an error."""
    towards = (queue.Queue(), queue.Queue())  # type: tuple[queue.Queue[Any], queue.Queue[Any]]
    torch = SimpleNamespace(
        full=lambda shape, value, **_: SimpleNamespace(value=value, item=lambda: value),
        empty_like=lambda _: SimpleNamespace(value=None),
    )
    pair = []
    for number in (0, 1):
        one = object.__new__(Worker)
        one.torch, one.dtype, one.device = torch, None, None

        def swap(send: Any, receive: Any, peer: int) -> None:
            towards[peer].put(send.value)
            receive.value = towards[1 - peer].get(timeout=5)
            receive.item = lambda: receive.value

        one._swap = swap  # type: ignore[method-assign]
        pair.append((one, 1 - number))
    return pair[0], pair[1]


def test_a_rank_that_comes_late_and_one_that_waited_for_it_do_the_same_number_of_exchanges() -> None:
    (early, its_peer), (late, other) = paired()
    buffer = SimpleNamespace(value=7)
    took: list[float] = []

    def exchange(worker: Any, peer: int) -> None:
        took.append(worker._exchange(buffer, SimpleNamespace(value=None), peer))

    first = threading.Thread(target=exchange, args=(early, its_peer))
    first.start()
    time.sleep(LINK_ENOUGH_S + 0.1)
    second = threading.Thread(target=exchange, args=(late, other))
    second.start()
    first.join(10)
    second.join(10)
    assert len(took) == 2 and min(took) < LINK_ENOUGH_S
