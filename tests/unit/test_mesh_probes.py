"""What the agents measure of each other, on loopback sockets: a busy host loses nothing, a lossy link is no black hole."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nccl_doctor.agent.probes import bench, listening, mesh, path_mtu

HEADERS = 28
Loses = Callable[[int], bool]


def test_a_blackhole_route_is_told_as_unreachable() -> None:
    assert mesh._outcome(OSError(22, "Invalid argument")) == "unreachable"


def test_a_kernel_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Booted with ipv6.disable=1; a port where a connection waits out its time is as free as to torch's store."""
    real = socket.socket

    def without_ipv6(family: int, *rest: int, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest, **more)

    monkeypatch.setattr(listening.socket, "socket", without_ipv6)
    with listening.bound(socket.SOCK_STREAM, 0) as taken:
        port = taken.getsockname()[1]
        assert taken.family == socket.AF_INET
        taken.listen(1)
        assert not bench._is_free(port)
        with real(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.connect(("127.0.0.1", port))
            taken.accept()[0].close()  # this end closes first, and its port waits
            assert client.recv(1) == b""
    assert bench._is_free(port)


@pytest.fixture
def size_towards() -> Iterator[Callable[[Loses, float], dict[str, Any]]]:
    """The path size towards a peer that loses those packets (sizes in bytes), and answers after a first delay."""
    opened: list[socket.socket] = []

    def measure(loses: Loses, delay_s: float = 0.0) -> dict[str, Any]:
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.bind(("127.0.0.1", 0))
        opened.append(peer)

        def echo() -> None:
            time.sleep(delay_s)
            while True:
                datagram, sender = peer.recvfrom(65535)
                if datagram == b"end":
                    return
                if not loses(len(datagram) + HEADERS):
                    peer.sendto(b"%d" % len(datagram), sender)

        threading.Thread(target=echo, daemon=True).start()
        host, port = peer.getsockname()
        return path_mtu._path_size({"peer": "there", "address": host, "port": port}, b"token")

    yield measure
    for peer in opened:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", peer.getsockname())


@pytest.fixture(autouse=True)
def small_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_mtu, "_interface_mtu", lambda connection, ipv6: 1500)


def test_the_exact_size_from_which_on_packets_vanish(size_towards: Callable[..., dict[str, Any]]) -> None:
    found = size_towards(lambda size: size > 1433)
    assert (found["outcome"], found["largest_passed"], found["smallest_lost"]) == ("black-hole", 1433, 1434)


def test_large_packets_lost_by_accident_are_no_black_hole(size_towards: Callable[..., dict[str, Any]]) -> None:
    """All three tries of the largest size are lost, once in a thousand pairs on a link that loses a tenth."""
    seen: list[int] = []

    def unlucky(size: int) -> bool:
        seen.append(size)
        return size > 1480 and seen.count(size) <= 5

    found = size_towards(unlucky)
    assert (found["outcome"], found["largest_passed"]) == ("ok", 1500)


def test_a_third_of_all_packets_lost_is_no_black_hole(size_towards: Callable[..., dict[str, Any]]) -> None:
    dice = random.Random(7)
    assert size_towards(lambda size: dice.random() < 1 / 3)["outcome"] == "ok"


def test_a_peer_that_answers_late_is_no_silence(size_towards: Callable[..., dict[str, Any]]) -> None:
    found = size_towards(lambda size: False, 1.1)
    assert (found["outcome"], found["largest_passed"]) == ("ok", 1500)


def test_where_everything_is_lost_nothing_is_concluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_mtu, "_answered", lambda connection, end: None)
    monkeypatch.setattr(path_mtu, "time", SimpleNamespace(monotonic=itertools.count(0.0, 0.1).__next__))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(("127.0.0.1", 9))
        assert path_mtu._arrives(connection, b"token", 1472, 1448) is None


@pytest.mark.parametrize(("size", "lost"), [(232, 2), (220, 2), (192, 5), (104, 5), (100, 0)])
def test_what_a_busy_peer_got_twice_was_not_lost(size: int, lost: int) -> None:
    """Five segments were sent again, three of them for nothing: older kernels have no field that says so."""
    info = bytearray(232)
    struct.pack_into("I", info, 100, 5)
    struct.pack_into("I", info, 216, 3)
    kernel = SimpleNamespace(getsockopt=lambda level, option, limit: bytes(info[: min(size, limit)]))
    assert listening.retransmitted(kernel) == lost


def test_the_master_port_is_let_go_when_nobody_connects_to_it_any_more() -> None:
    """Another run beside this one, or the job itself, can have it; the other ports go on listening."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opened = listening.listening({"token": "t", "name": "h", "master_port": port, "ephemeral": 1})
    assert opened["master"] == {"port": port, "outcome": "ok"}
    served = socket.create_connection(("127.0.0.1", port), 5)  # one that is still being talked to holds nobody up
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
        other.listen()
    listening.release({"port": port})
    with socket.socket() as other, served:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
    socket.create_connection(("127.0.0.1", opened["ephemeral"][0]), 5).close()
    listening._STATE.pop("listener").close()


def test_neighbours_of_both_families_are_read_from_the_kernels_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_indextoname", {10: "eth0"}.__getitem__)

    def row(family: int, address: str, mac: bytes, state: int, cut: int = 0) -> bytes:
        target = socket.inet_pton(family, address)
        values = struct.pack("=HH", 4 + len(target), 1) + target + struct.pack("=HH", 4 + len(mac), 2) + mac + b"\0\0"
        body = struct.pack("=BxxxiHBB", family, 10, state, 0, 1) + (values if not cut else values[:cut])
        return struct.pack("=IHHII", 16 + len(body), 28, 2, 1, 0) + body

    mac = bytes.fromhex("020000000099")
    data = row(socket.AF_INET6, "fd77::3", mac, 0x80) + row(socket.AF_INET, "10.0.0.2", mac, 0x04)
    data += row(socket.AF_INET, "10.0.0.3", mac, 0x20) + row(socket.AF_INET, "10.0.0.4", mac, 0x02)  # failed; not asked
    data += row(socket.AF_INET, "10.0.0.5", mac, 0x02, cut=6)
    found: list[dict[str, Any]] = []
    assert mesh._take_neighbours(data, {"fd77::3", "10.0.0.2", "10.0.0.3", "10.0.0.5"}, found)
    assert [(row["address"], row["mac"], row["interface"], row["permanent"]) for row in found] == [
        ("fd77::3", "02:00:00:00:00:99", "eth0", True),
        ("10.0.0.2", "02:00:00:00:00:99", "eth0", False),
    ]
    assert not mesh._take_neighbours(struct.pack("=IHHIII", 20, 3, 2, 1, 0, 0), set(), found)  # NLMSG_DONE
    assert mesh._neighbours({"203.0.113.77"}) == []  # this machine's kernel answers, and to its end


@pytest.mark.parametrize(
    ("seen", "outcome", "looks"),
    [
        # another run lets go between our bind and our look at /proc: with its socket still listed, or without
        ([{"user": "root"}, {}, None], "ok", 2),
        ([{"pid": 7, "command": f"python3 -c {listening.AGENT_MARK}"}, {}, None], "ok", 2),
        ([{"user": "alice"}] * 9, "in-use", listening.UNSEEN),
        ([{}, {"pid": 7, "command": "python3 train.py"}], "in-use", 2),
    ],
)
def test_a_holder_of_the_master_port_that_is_not_seen_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, seen: list[dict[str, Any] | None], outcome: str, looks: int
) -> None:
    holders, looked = iter(seen), []

    def open_tcp(port: int) -> int:
        looked.append(next(holders))
        if looked[-1] is None:
            return port
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(listening, "TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(listening, "_holder", lambda port: looked[-1])
    found = listening._open_master(SimpleNamespace(open_tcp=open_tcp), 29500)  # type: ignore[arg-type]
    assert found["outcome"] == outcome
    assert len([holder for holder in looked if holder is not None]) == looks


def test_a_peer_that_cannot_be_answered_does_not_silence_the_listener() -> None:
    class Receiver:
        """Two datagrams, of which the first one's sender has no route back."""

        def __init__(self) -> None:
            self.waiting, self.answered = [("far", 1), ("near", 2)], []

        def recvmsg(self, size: int, more: int) -> tuple[bytes, list[Any], int, tuple[str, int]]:
            if not self.waiting:
                raise OSError
            return b"t....", [], 0, self.waiting.pop(0)

        def sendmsg(self, parts: list[bytes], more: list[Any], flags: int, sender: tuple[str, int]) -> None:
            if sender[0] == "far":
                raise OSError(113, "No route to host")
            self.answered.append((b"".join(parts), sender))

    receiver: Any = Receiver()
    listening.Listener("t", "h")._count(receiver)
    assert receiver.answered == [(b"5", ("near", 2))]


def test_who_counts_datagrams_ends_with_its_socket() -> None:
    listener = listening.Listener("token", "h")
    with listening.bound(socket.SOCK_DGRAM, 0) as receiver:
        counting = threading.Thread(target=listener._count, args=(receiver,), daemon=True)
        counting.start()
        with contextlib.suppress(OSError):  # it has no peer, and is shut down all the same
            receiver.shutdown(socket.SHUT_RDWR)
        counting.join(30)
        assert not counting.is_alive()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_host_with_two_addresses_answers_from_the_one_that_was_asked(
    family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the answer comes from the address that its routes prefer, and who asked takes it for a stranger's."""

    def bound(kind: int, port: int) -> socket.socket:
        opened = socket.socket(family, kind)
        opened.bind(("", port))
        return opened

    monkeypatch.setattr(listening, "bound", bound)
    listener = listening.Listener("token", "h")
    port = listener.open_udp()
    try:
        asked = {"peer": "there", "address": "127.0.0.2", "port": port}
        assert path_mtu._path_size(asked, b"token")["outcome"] == "ok"
    finally:
        listener.close()


# ------------------------------------------------------------------------------------------ which ports are tried


class Ports:
    """A listener that opens every port but those that are taken."""

    def __init__(self, *taken: int) -> None:
        self.taken = taken

    def open_tcp(self, port: int) -> int:
        if port in self.taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return port


@pytest.mark.parametrize(("count", "share"), [(16, 0.0), (16, 0.9999), (16, 0.5), (3, 0.25)])
def test_no_part_of_the_range_as_wide_as_the_ports_lie_apart_is_missed(count: int, share: float) -> None:
    low, high = 32768, 60999
    ports = listening._open_spread(Ports(), count, share, [low, high])
    gaps = [after - before - 1 for before, after in itertools.pairwise([low - 1, *ports, high + 1])]
    assert len(ports) == count and max(gaps) < -(-(high - low + 1) // count)


def test_a_port_that_is_taken_gives_way_to_the_next() -> None:
    assert listening._open_spread(Ports(*range(40000, 40100)), 3, 0.0, [40000, 40299]) == [0, 40100, 40200]
    assert listening._open_spread(Ports(40150), 3, 0.5, [40000, 40299]) == [40050, 40151, 40250]


def test_a_small_range_is_left_to_the_job() -> None:
    assert len(listening._open_spread(Ports(), 16, 0.0, [40000, 40003])) == 3


def test_the_listeners_of_one_host_lie_in_both_halves_of_its_range() -> None:
    """Left to the kernel they would not: it gives a socket with SO_REUSEADDR a port of the lower half only."""
    opened = listening.listening({"token": "t", "name": "h", "ephemeral": 4, "share": 0.5})
    low, high = opened["port_range"]
    assert min(opened["ephemeral"]) < (low + high) // 2 < max(opened["ephemeral"])
    listening._STATE.pop("listener").close()


def test_what_the_peer_did_not_tell_is_not_counted_as_nothing_lost() -> None:
    """The connection is cut before the peer says how many segments it sent again."""
    door = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(door.getsockname())
    server, _ = door.accept()

    def cut() -> None:
        server.sendall(server.recv(listening.MESSAGE))
        server.close()

    threading.Thread(target=cut, daemon=True).start()
    with door, client:
        assert mesh._pace(client, 1)["lost_back"] is None
