"""The mesh probes' connect: what loses a packet is not a firewall, and what is closed is said at once."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nccl_doctor.agent.collective import sockets
from nccl_doctor.agent.probes import mesh


@pytest.fixture
def full() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A listener whose queue is full, so that the kernel drops every further SYN, and the connect that fills it."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()) as first,
    ):
        yield listener, first


def test_a_lost_syn_is_not_a_closed_port(
    full: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three connects are lost; a further one finds room."""
    listener, _ = full
    tries: list[None] = []

    def waited(*arguments: Any) -> Any:
        tries.append(None)
        if len(tries) == 3:
            listener.accept()[0].close()
        return select.select(*arguments)

    monkeypatch.setattr(mesh, "RETRY_S", 0.03)
    monkeypatch.setattr(mesh, "select", SimpleNamespace(select=waited))
    connection, attempts = mesh._dial(*listener.getsockname(), timeout=30.0)
    with connection:
        assert attempts > 3
        assert connection.getpeername() == listener.getsockname()
        assert connection.gettimeout() == 30.0


def test_silence_is_a_time_out_that_says_how_often_it_was_tried(
    full: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "RETRY_S", 0.05)
    started = time.monotonic()
    with pytest.raises(socket.timeout, match=r"no answer to \d+ connects within 0\.2 s"):
        mesh._dial(*full[0].getsockname(), timeout=0.2)
    assert time.monotonic() - started >= 0.2


def test_a_closed_port_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
    with pytest.raises(ConnectionRefusedError):
        mesh._dial(*place, timeout=60.0)


def test_a_peer_that_is_connected_and_silent_is_busy_and_not_behind_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, port = listener.getsockname()
        target = {"peer": "gpu02", "address": address, "port": port, "purpose": "ephemeral"}
        link = mesh._connect(target, "token", timeout=3.0, messages=0)
    assert link["outcome"] == "failed" and "connected, and then no answer" in link["detail"]


def test_a_knock_tells_an_open_door_from_a_closed_one_and_from_silence(
    full: tuple[socket.socket, socket.socket],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        assert sockets.knock(*place) == "open"
    assert sockets.knock(*place) == "refused"
    assert sockets.knock(*full[0].getsockname(), limit_s=0.1) == ""
