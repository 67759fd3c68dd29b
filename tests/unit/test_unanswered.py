"""Whom a stuck rank dials in vain: seen in the kernel's table, and laid at the right door."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from nccl_doctor.agent.collective.sockets import _place, dialling
from nccl_doctor.facts.collectives import Collectives, RankEnd, RankError, Where
from nccl_doctor.rules.collective_failures import failures

ADDRESSES = {f"gpu{number:02d}": [f"10.0.0.{number}", "172.17.0.1"] for number in range(1, 5)}


def test_a_connection_that_nobody_answers_is_seen_and_an_open_one_is_not() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # the queue is full after the first: what comes then is dropped
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        stack.enter_context(socket.create_connection(listener.getsockname()))
        assert dialling() == []
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        end = time.monotonic() + 30
        while place not in dialling() and time.monotonic() < end:
            time.sleep(0.02)
        assert dialling() == [place]
    assert dialling() == []


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("0302000A:7530", "10.0.2.3:30000"),
        ("0000000000000000FFFF00000302000A:0016", "10.0.2.3:22"),
        ("B80D0120000000000000000001000000:0050", "[2001:db8::1]:80"),
    ],
)
def test_the_kernels_spelling_is_read(remote: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.byteorder", "little")
    assert _place(remote) == shown


def stuck(dials: dict[int, list[int]], ranks: int = 4) -> dict[str, Collectives]:
    """Each rank on its host, stuck in forming the group; ``dials``: rank -> the ranks it dials in vain."""
    facts = {}
    for rank in range(ranks):
        places = tuple(f"10.0.0.{other + 1}:40001" for other in dials.get(rank, ()))
        where = Where("process-group", "gloo", 15.0)
        error = RankError("stuck", dialling=places)
        facts[f"gpu{rank + 1:02d}"] = Collectives(
            f"gpu{rank + 1:02d}", ranks=(RankEnd(rank, where=where, exit=70, error=error),), world=ranks
        )
    return facts


@pytest.mark.parametrize(
    ("dials", "guilty", "told"),
    [
        ({2: [1], 3: [1]}, ("gpu02",), "gpu02 accepts no connection"),
        ({3: [0, 1, 2]}, ("gpu04",), "no connection from gpu04 is accepted"),
        ({3: [2]}, ("gpu03", "gpu04"), "gpu04 gets no connection to gpu03"),
        ({0: [1], 1: [2], 2: [3], 3: [0]}, tuple(ADDRESSES), "gpu[01-04] get no connection to gpu[01-04]"),
    ],
)
def test_the_silent_host_is_guilty_and_not_those_who_wait_for_it(
    dials: dict[int, list[int]], guilty: tuple[str, ...], told: str
) -> None:
    (found,) = failures(stuck(dials), None, ADDRESSES)
    assert found.id == "collectives.stuck.process-group" and found.hosts == guilty and told in found.title
    assert any("SYN_SENT" in proof.text for proof in found.evidence)


GLOO = (
    "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: No route to host, remote=[10.0.0.{}]:53127$2"
)
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:62685."


@pytest.mark.parametrize(
    ("refused", "guilty", "told"),
    [
        ({2: 2, 3: 2}, ("gpu02",), "gpu02 accepts no connection"),
        ({2: 2}, ("gpu02", "gpu03"), "gpu03 gets no connection to gpu02"),
        ({2: 2, 3: 3}, ("gpu02", "gpu03"), "gpu03 gets no connection to gpu02"),  # gpu03's rank had ended
    ],
)
def test_a_host_that_rejects_connections_is_guilty_and_not_those_whose_ranks_fail(
    refused: dict[int, int], guilty: tuple[str, ...], told: str
) -> None:
    """As a packet filter did that came between check's connects and its collectives; the other ranks were ended."""
    facts = stuck({})
    for rank in range(4):
        error, killed = None, "a rank on gpu03 had failed"
        if rank in refused:
            error, killed = RankError("error", "RuntimeError", GLOO.format(refused[rank])), ""
        elif rank == 0:
            error = RankError("error", "RuntimeError", CLOSED)
        end = RankEnd(rank, where=Where("process-group", "gloo", 0.1), exit=1, error=error, killed=killed)
        facts[f"gpu{rank + 1:02d}"] = Collectives(f"gpu{rank + 1:02d}", ranks=(end,), world=4)
    (found,) = failures(facts, None, ADDRESSES)
    assert found.id == "collectives.stuck.process-group" and found.hosts == guilty and told in found.title
    assert any("connect 10.0.0.2:53127: No route to host" in proof.text for proof in found.evidence)


def test_an_address_of_nobody_or_of_several_accuses_nobody() -> None:
    (found,) = failures(stuck({2: [1], 3: [1]}), None, {})
    assert found.hosts == tuple(ADDRESSES) and "stuck in forming the process group" in found.title
