"""The listening half of what hosts measure of each other: every agent listens, for real.

The controller hands each agent one secret token per run; a stranger that connects without it is dropped. Nothing
listens longer than the agent lives.
"""

import contextlib
import errno
import json
import os
import pwd
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.probing import probe, read_text
from nccl_doctor.agent.redaction import redact_argv

MAGIC = b"NCCL-DOCTOR-1 "
MESSAGE = 64  # bytes of one paced message


def retransmitted(connection: socket.socket) -> int:
    """Segments that this end sent again because they were lost, from struct tcp_info (linux/tcp.h).

    tcpi_total_retrans also counts those sent again for nothing: where the peer's CPU is busy its answer is late, the
    kernel takes the segment for lost, and the peer reports that it came twice (tcpi_dsack_dups, Linux 4.19).
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 220)
    again = int(struct.unpack_from("I", info, 100)[0]) if len(info) >= 104 else 0
    twice = int(struct.unpack_from("I", info, 216)[0]) if len(info) >= 220 else 0
    return max(0, again - twice)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """This many bytes, or fewer where the stream ends."""
    parts = []  # type: List[bytes]
    while size:
        part = connection.recv(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_line(connection: socket.socket) -> bytes:
    """A line of at most 256 bytes, or what came before the stream ended; nothing behind it is taken."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 256:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line


class Listener:
    """The listening half: TCP ports that echo or swallow for whoever knows the token, and a UDP port that counts."""

    def __init__(self, token: str, name: str) -> None:
        self.token = token.encode("ascii")
        self.name = name
        self.sockets = []  # type: List[socket.socket]
        self._slots = threading.BoundedSemaphore(512)

    def open_tcp(self, port: int) -> int:
        """Listen on ``port`` (0: any) on every address; the port, or ``OSError``."""
        listener = bound(socket.SOCK_STREAM, port)
        listener.listen(512)
        self.sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def open_udp(self) -> int:
        """Answer datagrams with the size that arrived; the port."""
        receiver = bound(socket.SOCK_DGRAM, 0)
        receiver.setsockopt(*_ASK_FOR_ADDRESS[receiver.family], 1)
        self.sockets.append(receiver)
        threading.Thread(target=self._count, args=(receiver,), daemon=True).start()
        return int(receiver.getsockname()[1])

    def close(self, port: int = 0) -> None:
        """Listen no more: on this TCP port, or (0) on all."""
        for opened in list(self.sockets):
            if not port or (opened.type == socket.SOCK_STREAM and opened.getsockname()[1] == port):
                self.sockets.remove(opened)
                with contextlib.suppress(OSError):  # a thread that accepts holds the port until it is woken
                    opened.shutdown(socket.SHUT_RDWR)
                opened.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(20.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = read_line(connection)
            if not head.startswith(MAGIC + self.token + b" "):
                return
            # Who answers is told, so that a stale address that leads to another host is seen as such.
            connection.sendall(json.dumps({"name": self.name}).encode() + b"\n")
            if head.endswith(b" echo\n"):
                self._echo(connection)
            elif head.endswith(b" sink\n"):
                self._swallow(connection)
        except OSError:
            pass
        finally:
            connection.close()
            self._slots.release()

    def _echo(self, connection: socket.socket) -> None:
        while True:
            message = connection.recv(65536)
            if not message:
                break
            connection.sendall(message)
        trailer = json.dumps({"retransmitted": retransmitted(connection)}).encode()
        connection.sendall(trailer.ljust(MESSAGE))

    def _swallow(self, connection: socket.socket) -> None:
        total, first, last = 0, 0.0, 0.0
        buffer = bytearray(1 << 20)
        while True:
            got = connection.recv_into(buffer)
            last = time.monotonic()
            if not got:
                break
            first = first or last
            total += got
        connection.sendall(json.dumps({"bytes": total, "seconds": last - first}).encode() + b"\n")

    def _count(self, receiver: socket.socket) -> None:
        while True:
            try:
                datagram, told, _, sender = receiver.recvmsg(65535, 128)
            except OSError:
                return
            if sender is None:  # shut down: to ask again could ask another socket, opened since under the same number
                return
            if datagram.startswith(self.token):
                with contextlib.suppress(OSError):  # no route back to this one says nothing of the others
                    receiver.sendmsg([b"%d" % len(datagram)], _from_there(told), 0, sender)


# Family -> the option that tells to which of the host's addresses a datagram came: IPV6_RECVPKTINFO, IP_PKTINFO.
_ASK_FOR_ADDRESS = {socket.AF_INET6: (socket.IPPROTO_IPV6, 49), socket.AF_INET: (socket.IPPROTO_IP, 8)}


def _from_there(told: List[Tuple[int, int, bytes]]) -> List[Tuple[int, int, bytes]]:
    """Ancillary data that make an answer come from the address that was asked, as with TCP; else it may be any of the host's.

    It is that of the datagram itself (struct in6_pktinfo, struct in_pktinfo), without the interface that it came by.
    """
    return [
        (level, kind, data[:16] + bytes(4) if level == socket.IPPROTO_IPV6 else bytes(4) + data[4:])
        for level, kind, data in told
    ]


def bound(kind: int, port: int) -> socket.socket:
    """A socket bound to ``port`` on all addresses, of both families where the kernel has IPv6; or ``OSError``."""
    try:
        return _bound(socket.AF_INET6, kind, port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise
        return _bound(socket.AF_INET, kind, port)


def _bound(family: int, kind: int, port: int) -> socket.socket:
    one = socket.socket(family, kind)
    try:
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("", port))
    except OSError:
        one.close()
        raise
    return one


def _holder(port: int) -> Dict[str, Any]:
    """The process that listens on a TCP port, through /proc; empty where it is another user's and not readable."""
    inodes = {}  # type: Dict[str, int]
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read_text(table, 8 << 20) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == "0A" and int(words[1].rsplit(":", 1)[1], 16) == port:
                inodes["socket:[%s]" % words[9]] = int(words[7])
    found = {}  # type: Dict[str, Any]
    for uid in inodes.values():
        try:
            found["user"] = pwd.getpwuid(uid).pw_name
        except KeyError:
            found["user"] = str(uid)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for descriptor in os.listdir("/proc/%s/fd" % pid):
                if os.readlink("/proc/%s/fd/%s" % (pid, descriptor)) in inodes:
                    found["pid"], found["command"] = int(pid), _command(pid)
                    return found
        except OSError:
            continue
    return found


def _command(pid: str) -> str:
    """A process's command line, secrets blacked out: "python" alone does not tell a stale rank from a notebook."""
    with open("/proc/%s/cmdline" % pid, "rb") as stream:
        argv = stream.read(4096).decode("utf-8", "replace").rstrip("\0").split("\0")
    return " ".join(redact_argv(argv))[:200] or (read_text("/proc/%s/comm" % pid) or "").strip()


_STATE = {}  # type: Dict[str, Listener]  # the one listener of this agent: it must outlive the request that opened it


@probe("listening", stage="ports", limit_s=10.0)
def listening(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Open the listeners.

    Arguments: token, name, master_port (None where this host is not the master), ephemeral (how many ports) and share
    (0 up to 1, another one on each host: where in its part of the range each port lies).
    """
    if "listener" in _STATE:
        _STATE.pop("listener").close()
    listener = Listener(str(arguments["token"]), str(arguments["name"]))
    _STATE["listener"] = listener
    result = {"ephemeral": [], "udp": 0, "master": None, "port_range": None}  # type: Dict[str, Any]
    port = arguments.get("master_port")
    if port is not None:
        result["master"] = _open_master(listener, int(port))
    # NCCL, Gloo and the store take their other ports from this range, so the ports tried are taken from it too.
    words = (read_text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    if len(words) == 2:
        result["port_range"] = [int(words[0]), int(words[1])]
    count, share = int(arguments.get("ephemeral", 3)), float(arguments.get("share", 0.0))
    result["ephemeral"] = _open_spread(listener, count, share, result["port_range"])
    result["udp"] = listener.open_udp()
    return result


LEAVE_FREE = 64  # ports of the range for each one listened on, beyond the first three: a small range is the job's


def _open_spread(listener: Listener, count: int, share: float, port_range: Optional[List[int]]) -> List[int]:
    """Listen on ports at equal distances over the range: no closed part of it as wide as that distance is missed.

    The kernel would not spread them: a socket with SO_REUSEADDR gets a port of the lower half of the range only.
    """
    if port_range is None:
        return [listener.open_tcp(0) for _ in range(count)]
    low, size = port_range[0], port_range[1] - port_range[0] + 1
    count = min(count, max(3, size // LEAVE_FREE))
    ports = []
    for part in range(count):
        start, end = low + part * size // count, low + (part + 1) * size // count
        wanted = start + int(share * (end - start))
        ports.append(_open_near(listener, [*range(wanted, end), *range(start, wanted)]))
    return ports


def _open_near(listener: Listener, candidates: List[int]) -> int:
    """Listen on the first of these ports that is free, or on any if none is."""
    for port in candidates:
        try:
            return listener.open_tcp(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return listener.open_tcp(0)


@probe("release", stage="", limit_s=5.0)
def release(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Listen no more on ``arguments["port"]``, the master port: another run, or the job, may need it."""
    if "listener" in _STATE:
        _STATE["listener"].close(int(arguments["port"]))
    return {}


# In the command line of every agent (nccl_doctor.transport.launch): another run beside this one.
AGENT_MARK = 'exec(getattr(sys.stdin,"buffer"'
OTHER_RUN_S = 6.0  # how long such a run's hold on the master port is waited for
# A holder that is not found belongs to another user, or let go between our bind and our look, as another run does.
UNSEEN = 4
TRY_AGAIN_S = 0.4


def _open_master(listener: Listener, port: int) -> Dict[str, Any]:
    until, unseen = time.monotonic() + OTHER_RUN_S, 0
    try:
        while True:
            try:
                listener.open_tcp(port)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                holder = _holder(port)
                unseen = 0 if "pid" in holder else unseen + 1
                another_run = AGENT_MARK in holder.get("command", "") and time.monotonic() <= until
                if not another_run and not 0 < unseen < UNSEEN:
                    return {"port": port, "outcome": "in-use", "detail": str(error), "holder": holder}
                time.sleep(TRY_AGAIN_S)
    except OSError as error:
        outcome = "not-permitted" if error.errno in (errno.EACCES, errno.EPERM) else "failed"
        return {"port": port, "outcome": outcome, "detail": str(error)}
    return {"port": port, "outcome": "ok"}
