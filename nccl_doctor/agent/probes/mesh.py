"""What hosts measure of each other: every agent listens, and every agent connects, for real.

The controller hands each agent one secret token per run; a stranger that connects without it is dropped. Nothing
listens longer than the agent lives.
"""

import contextlib
import errno
import json
import os
import pwd
import select
import socket
import struct
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from nccl_doctor.agent.probing import ProbeTrouble, probe, read_text
from nccl_doctor.agent.redaction import redact_argv

MAGIC = b"NCCL-DOCTOR-1 "
MESSAGE = 64  # bytes of one paced message
BLOCK = b"\0" * (256 << 10)
UNDER_WAY = 8  # paced messages sent and not yet answered, at most
CONFIRMED = 8  # times that a size must be lost while a smaller one sent after it arrives
ANSWER_S = 6.0  # for the first answer of a peer that is connected
RETRY_S = 0.5  # a connect without an answer is joined by another one after this time

# Linux values that Python's socket module does not name.
IP_MTU_DISCOVER = 10
IPV6_MTU_DISCOVER = 23
PMTUDISC_PROBE = 3  # set don't-fragment, and ignore the cached path MTU

# Sizes (IP packet, bytes) at which real networks break: IPv6 minimum, VPN and overlay overheads, 1500, 4K, jumbo.
USUAL_SIZES = (
    576,
    1280,
    1400,
    1420,
    1450,
    1472,
    1476,
    1480,
    1492,
    1500,
    2044,
    4096,
    4200,
    8500,
    8900,
    8950,
    8972,
    9000,
)


# ---------------------------------------------------------------------------------------------------- names


def _resolve(name: str) -> Dict[str, Any]:
    """What getaddrinfo says, in its order: the same call that torch and NCCL make."""
    result = {"addresses": [], "error": ""}  # type: Dict[str, Any]
    try:
        answers = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError as error:
        result["error"] = str(error)
    else:
        for answer in answers:
            address = str(answer[4][0])
            if address not in result["addresses"]:
                result["addresses"].append(address)
    for number, line in enumerate((read_text("/etc/hosts") or "").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if name in words[1:] and (not result["addresses"] or words[0] in result["addresses"]):
            result["quoted"], result["line"] = line.strip(), number
            break
    return result


def _own_addresses() -> List[str]:
    """Every address of this network namespace, from the kernel's own tables (no tool needed)."""
    found = []  # type: List[str]
    for line in (read_text("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if words:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    # fib_trie lists an IPv4 address on the line above "/32 host LOCAL"
    previous = ""
    for line in (read_text("/proc/net/fib_trie") or "").splitlines():
        if "/32 host LOCAL" in line and previous not in found:
            found.append(previous)
        previous = line.split()[-1] if line.split() else ""
    return found


@probe("names", stage="connectivity", limit_s=20.0)
def names(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Resolve the host's own name and every name in ``arguments["names"]``, as the training job would.

    With ``arguments["same_as"]`` (name -> addresses, the table of the host ``arguments["reference"]``) only the names
    that resolve otherwise here are told.
    """
    own = socket.gethostname()
    resolved = {}  # type: Dict[str, Any]
    wanted = list({own, *arguments.get("names", ())})
    took = []  # type: List[float]
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not wanted:
                    return
                name = wanted.pop()
            started = time.monotonic()
            answer = _resolve(name)
            with lock:
                took.append(time.monotonic() - started)
                resolved[name] = answer

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(16, len(wanted)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    same_as = arguments.get("same_as", {})
    told = {name: resolved[name] for name in arguments.get("names", ())}
    told = {name: answer for name, answer in told.items() if answer["addresses"] != same_as.get(name)}
    result = {"host_name": own, "own": resolved[own], "resolved": told, "addresses": _own_addresses()}
    result["lookup_s"] = round(sorted(took)[len(took) // 2], 3)
    lines = (read_text("/etc/resolv.conf") or "").splitlines()
    result["resolver"] = [line.strip() for line in lines if line.startswith("nameserver")][:3]
    if same_as:
        result["reference"] = arguments["reference"]
    return result


@probe("time", stage="", limit_s=5.0)
def now(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The host's wall clock, seconds since the epoch. The controller computes the offset."""
    return {"time": time.time()}


# ------------------------------------------------------------------------------------------------ listening


def _retransmitted(connection: socket.socket) -> int:
    """Segments that this end sent again because they were lost, from struct tcp_info (linux/tcp.h).

    tcpi_total_retrans also counts those sent again for nothing: where the peer's CPU is busy its answer is late, the
    kernel takes the segment for lost, and the peer reports that it came twice (tcpi_dsack_dups, Linux 4.19).
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 220)
    again = int(struct.unpack_from("I", info, 100)[0]) if len(info) >= 104 else 0
    twice = int(struct.unpack_from("I", info, 216)[0]) if len(info) >= 220 else 0
    return max(0, again - twice)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = []  # type: List[bytes]
    while size:
        part = connection.recv(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _read_line(connection: socket.socket) -> bytes:
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
        listener = _bound(socket.SOCK_STREAM, port)
        listener.listen(512)
        self.sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def open_udp(self) -> int:
        """Answer datagrams with the size that arrived; the port."""
        receiver = _bound(socket.SOCK_DGRAM, 0)
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
            head = _read_line(connection)
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
        trailer = json.dumps({"retransmitted": _retransmitted(connection)}).encode()
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
                datagram, sender = receiver.recvfrom(65535)
            except OSError:
                return
            if datagram.startswith(self.token):
                with contextlib.suppress(OSError):  # no route back to this one says nothing of the others
                    receiver.sendto(b"%d" % len(datagram), sender)


def _bound(kind: int, port: int) -> socket.socket:
    """A socket bound to ``port`` on all addresses, both families where the kernel has IPv6."""
    families = [socket.AF_INET6, socket.AF_INET] if os.path.exists("/proc/net/if_inet6") else [socket.AF_INET]
    for family in families:
        bound = socket.socket(family, kind)
        try:
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if kind == socket.SOCK_STREAM:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("", port))
            return bound
        except OSError as error:
            bound.close()
            if family == families[-1] or error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise OSError(errno.EAFNOSUPPORT, "no address family to listen on")


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


# ----------------------------------------------------------------------------------------------- connecting


_CONNECT_ERRORS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "timed-out",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EINVAL: "unreachable",  # what connecting over a blackhole route gives
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
}


def _outcome(error: OSError) -> str:
    if isinstance(error, socket.timeout):
        return "timed-out"
    return _CONNECT_ERRORS.get(error.errno or 0, "failed")


def _dial(address: str, port: int, timeout: float) -> Tuple[socket.socket, int]:
    """Connect, by a further connection each half second until one is answered: loss is not a firewall.

    The kernel itself sends a lost SYN again after a whole second only; a link that loses 15 % of the round trips would
    look closed on one port in fifty. The connection, and how many were tried. ``OSError`` as
    ``socket.create_connection`` raises it.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)[0]
    deadline = time.monotonic() + timeout
    waiting = []  # type: List[socket.socket]
    try:
        while time.monotonic() < deadline:
            waiting.append(socket.socket(family, kind, protocol))
            waiting[-1].setblocking(False)
            errors = [waiting[-1].connect_ex(place)]
            answered = select.select([], waiting, [], min(RETRY_S, max(0.0, deadline - time.monotonic())))[1]
            errors += [one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for one in answered]
            for error in errors:
                if error not in (0, errno.EINPROGRESS):
                    raise OSError(error, os.strerror(error))
            if answered:
                tried = len(waiting)
                waiting.remove(answered[0])
                answered[0].settimeout(timeout)
                return answered[0], tried
        raise socket.timeout("no answer to %d connects within %.1f s" % (len(waiting), timeout))
    finally:
        for one in waiting:
            one.close()


class Opened(NamedTuple):
    """A connection to a peer's listener: who answered there, after how many ms, and at which attempt to connect."""

    connection: socket.socket
    name: str
    connect_ms: float
    attempts: int


def _open(target: Dict[str, Any], token: str, mode: str, timeout: float) -> Opened:
    """Connect and say hello. ``OSError`` on any failure.

    A peer that is connected and answers late is busy: that is no firewall, and no outcome that looks like one.
    """
    started = time.monotonic()
    connection, attempts = _dial(target["address"], int(target["port"]), timeout)
    try:
        elapsed = (time.monotonic() - started) * 1e3
        connection.settimeout(ANSWER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(MAGIC + token.encode("ascii") + b" " + mode.encode("ascii") + b"\n")
        answer = _read_line(connection)
        name = str(json.loads(answer.decode("utf-8"))["name"]) if answer else ""
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        if isinstance(error, socket.timeout):
            raise OSError(errno.EPROTO, "connected, and then no answer within %.0f s" % ANSWER_S) from error
        if isinstance(error, OSError):
            raise
        raise OSError(errno.EPROTO, "something else answers on this port") from error
    return Opened(connection, name, elapsed, attempts)


def _connect(target: Dict[str, Any], token: str, timeout: float, messages: int) -> Dict[str, Any]:
    link = {key: target[key] for key in ("peer", "address", "port", "purpose")}  # type: Dict[str, Any]
    try:
        opened = _open(target, token, "echo", timeout)
    except OSError as error:
        link.update(outcome=_outcome(error), detail=str(error) or "timed out after %.1f s" % timeout)
        return link
    connection = opened.connection
    with connection:
        link.update(outcome="ok", connect_ms=opened.connect_ms, source=connection.getsockname()[0])
        link["attempts"] = opened.attempts
        if opened.name != target["peer"]:
            link.update(outcome="wrong-peer", detail="%s answered" % (opened.name or "a program without the token"))
        elif messages:
            try:
                link.update(_pace(connection, messages))
            except OSError as error:
                link.update(outcome=_outcome(error), detail="connected, then: %s" % error)
    return link


def _pace(connection: socket.socket, messages: int, interval: float = 0.002) -> Dict[str, Any]:
    """Send small messages at a steady pace and read them back: round-trip times, and what had to be sent again.

    Small and paced, so that a full queue is not mistaken for a lossy link. Each is one segment (TCP_NODELAY), and no
    more than a few are under way: the kernel would join those that wait behind a lost one, and hide further losses.
    """
    sent = []  # type: List[float]
    back = []  # type: List[float]
    deadline = time.monotonic() + messages * interval + 3.0
    buffered = b""
    before = _retransmitted(connection)
    while len(back) < messages and time.monotonic() < deadline:
        wait = 0.1
        if len(sent) < messages and len(sent) - len(back) < UNDER_WAY:
            wait = max(0.0, sent[-1] + interval - time.monotonic()) if sent else 0.0
            if not wait:
                sent.append(time.monotonic())
                connection.sendall(struct.pack("!I", len(sent)).ljust(MESSAGE))
        if select.select([connection], [], [], wait)[0]:
            part = connection.recv(65536)
            if not part:
                break
            buffered += part
            while len(buffered) >= MESSAGE:
                buffered = buffered[MESSAGE:]
                back.append((time.monotonic() - sent[len(back)]) * 1e3)
    lost_forward = _retransmitted(connection) - before
    connection.shutdown(socket.SHUT_WR)
    lost_back = None  # a cut connection: only this direction's count is known
    try:
        connection.settimeout(2.0)
        trailer = _read_exactly(connection, MESSAGE * (len(sent) - len(back) + 1))[-MESSAGE:]
        lost_back = int(json.loads(trailer.decode("ascii"))["retransmitted"])
    except (OSError, ValueError, KeyError):
        pass
    back.sort()
    return {
        "messages": len(sent),
        "answered": len(back),
        "lost_forward": lost_forward,
        "lost_back": lost_back,
        "rtt_min_ms": back[0] if back else None,
        "rtt_p50_ms": back[len(back) // 2] if back else None,
        "rtt_p99_ms": back[min(len(back) - 1, int(len(back) * 0.99))] if back else None,
    }


def _in_parallel(items: List[Any], work: Any, width: int) -> List[Any]:
    """``work`` applied to all items by at most ``width`` threads; results in the items' order."""
    results = [None] * len(items)  # type: List[Any]
    todo = list(range(len(items)))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not todo:
                    return
                index = todo.pop(0)
            results[index] = work(items[index])

    workers = [threading.Thread(target=run, daemon=True) for _ in range(min(width, len(items)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@probe("links", stage="ports", limit_s=30.0)
def links(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Connect to every target, and where that went well to the peers' further ports.

    Arguments: token, targets [{peer, address, port, purpose, messages}], sweep [{peer, address, ports}], timeout_s.
    """
    token, timeout = str(arguments["token"]), float(arguments.get("timeout_s", 3.0))
    targets = list(arguments["targets"])
    tried = _in_parallel(targets, lambda one: _connect(one, token, timeout, int(one.get("messages", 0))), 32)
    failed = {link["address"] for link in tried if link["outcome"] in ("timed-out", "unreachable")}
    neighbours = _neighbours(failed)
    # A port that is closed, or answers late, is proof enough: more connects would cost time, or meet the same limit.
    hard = {link["peer"] for link in tried if link["outcome"] != "ok" or link["attempts"] > 1}
    swept, more = _sweep([one for one in arguments.get("sweep", ()) if one["peer"] not in hard], token, timeout)
    return {"links": tried + more, "swept": swept, "neighbours": neighbours}


def _sweep(peers: List[Dict[str, Any]], token: str, timeout: float) -> Tuple[Dict[str, int], List[Dict[str, Any]]]:
    """How many further ports of each peer answer, and the links to those that do not.

    Many connects at once can meet a limit on new ones, which is no closed port: of the ports that fail one of each peer
    is tried again, and where it answers then, that is the link that is told.
    """
    targets = [
        {"peer": one["peer"], "address": one["address"], "port": port, "purpose": "ephemeral"}
        for one in peers
        for port in one["ports"]
    ]
    started = time.monotonic()
    tried = _in_parallel(targets, lambda one: _connect(one, token, timeout, 0), 64)
    took = time.monotonic() - started
    closed = {}  # type: Dict[str, List[Dict[str, Any]]]
    for link in tried:
        if link["outcome"] != "ok":
            closed.setdefault(link["peer"], []).append(link)
    first = [links[0] for links in closed.values()]
    told = []  # type: List[Dict[str, Any]]
    for again in _in_parallel(first, lambda one: _connect(one, token, timeout, 0), 32):
        if again["outcome"] == "ok":
            again.update(attempts=again["attempts"] + 1, connect_ms=again["connect_ms"] + took * 1e3)
            told.append(again)
        else:
            told += closed[again["peer"]]
    return {one["peer"]: len(one["ports"]) - len(closed.get(one["peer"], ())) for one in peers}, told


def _neighbours(addresses: Set[str]) -> List[Dict[str, Any]]:
    """What the kernel takes for the hardware addresses of these, over netlink: /proc tells IPv4's only."""
    found = []  # type: List[Dict[str, Any]]
    # RTM_GETNEIGH, NLM_F_REQUEST | NLM_F_DUMP, of all families
    request = struct.pack("=IHHII", 28, 30, 0x301, 1, 0) + bytes(12)
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(2.0)
        kernel.sendto(request, (0, 0))
        while addresses and _take_neighbours(kernel.recv(1 << 16), addresses, found):
            pass
    return found


RESOLVED = 0x02 | 0x04 | 0x08 | 0x10 | 0x80  # NUD_REACHABLE, _STALE, _DELAY, _PROBE, _PERMANENT


def _take_neighbours(data: bytes, addresses: Set[str], found: List[Dict[str, Any]]) -> bool:
    """Read one datagram of RTM_NEWNEIGH messages; False with the last one (NLMSG_DONE, NLMSG_ERROR)."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind != 28 or length < 28:
            return False
        family, index, state = struct.unpack_from("=BxxxiH", data, at + 16)
        values, place = {}, at + 28
        while place + 4 <= at + length:
            size, name = struct.unpack_from("=HH", data, place)
            values[name] = data[place + 4 : place + max(4, size)]
            place += max(4, (size + 3) & ~3)
        target, mac = values.get(1, b""), values.get(2, b"")  # NDA_DST, NDA_LLADDR
        if state & RESOLVED and mac and len(target) == {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family):
            address = socket.inet_ntop(family, target)
            if address in addresses:
                interface, permanent = socket.if_indextoname(index), bool(state & 0x80)
                lladdr = ":".join("%02x" % byte for byte in mac)
                found.append({"address": address, "mac": lladdr, "interface": interface, "permanent": permanent})
        at += (length + 3) & ~3
    return True


# ------------------------------------------------------------------------------------------------- path MTU


def _interface_mtu(connection: socket.socket, ipv6: bool) -> int:
    """The MTU that the kernel uses towards the connected peer, before it has learned anything of the path."""
    option = 24 if ipv6 else 14  # IPV6_MTU, IP_MTU
    return connection.getsockopt(socket.IPPROTO_IPV6 if ipv6 else socket.IPPROTO_IP, option)


def _passing(connection: socket.socket, token: bytes, payloads: List[int]) -> List[int]:
    """Which payload sizes arrive: each is sent up to three times."""
    passed: Set[int] = set()
    refused: Set[int] = set()
    for attempt in range(3):
        missing = [size for size in payloads if size not in passed and size not in refused]
        if not missing:
            break
        for size in missing:
            try:
                connection.send(token.ljust(size, b"."))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    refused.add(size)
                # ECONNREFUSED and the like are the echo of an earlier datagram; this one is tried again
        end = time.monotonic() + 0.15 * (attempt + 1)
        while time.monotonic() < end and len(passed) + len(refused) < len(payloads):
            answered = _answered(connection, end)
            if answered is not None:
                passed.add(answered)
    return sorted(passed)


def _answered(connection: socket.socket, end: float) -> Optional[int]:
    """The payload size that the peer says arrived; None where nothing sensible comes until ``end``."""
    if select.select([connection], [], [], max(0.0, end - time.monotonic()))[0]:
        try:
            return int(connection.recv(32))
        except (OSError, ValueError):
            pass
    return None


def _arrives(connection: socket.socket, token: bytes, payload: int, passing: int) -> Optional[bool]:
    """Whether a size that seemed lost arrives after all; None where that cannot be told.

    The link may lose packets of any size, and a busy peer answers late. So each datagram is followed by one a little
    smaller than ``passing``, of a size of its own: only where that one is answered is the first one known to be lost.
    """
    overtaken = 0
    for smaller in range(passing - 1, passing - 1 - 2 * CONFIRMED, -1):
        for size in (payload, smaller):
            with contextlib.suppress(OSError):  # the echo of an earlier datagram
                connection.send(token.ljust(size, b"."))
        end, answered = time.monotonic() + 0.3, None
        while answered != smaller and time.monotonic() < end:
            answered = _answered(connection, end)
            if answered == payload:
                return True
        overtaken += answered == smaller
        if overtaken == CONFIRMED:
            return False
    return None


def _path_size(target: Dict[str, Any], token: bytes) -> Dict[str, Any]:
    result = {"peer": target["peer"], "address": target["address"], "outcome": "blocked"}  # type: Dict[str, Any]
    ipv6 = ":" in target["address"]
    headers = 48 if ipv6 else 28
    connection = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    with connection:
        try:
            if ipv6:
                connection.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            else:
                connection.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
            connection.connect((target["address"], int(target["port"])))
            mtu = _interface_mtu(connection, ipv6)
        except OSError as error:
            result["detail"] = str(error)
            return result
        result["interface_mtu"] = mtu
        top = min(mtu, 65535)
        sizes = sorted({size for size in USUAL_SIZES if size < top} | {top})
        payloads = [size - headers for size in sizes]
        passed = _passing(connection, token, payloads) or _passing(connection, token, payloads)
        if not passed:
            result["detail"] = "no UDP datagram of any size was answered"
            return result
        largest = max(passed) + headers
        lost = [size for size in sizes if size > largest]
        for _ in range(3):  # narrow the gap between what passes and what is lost, sixteen sizes at a time
            if not lost or lost[0] - largest <= 1:
                break
            step = max(1, (lost[0] - largest) // 16)
            tries = list(range(largest + step, lost[0], step))[:32]
            passed = _passing(connection, token, [size - headers for size in tries])
            largest = max([largest] + [size + headers for size in passed])
            lost = sorted([size for size in tries if size > largest] + lost)
        while lost:
            arrives = _arrives(connection, token, lost[0] - headers, largest - headers)
            if arrives is None:
                result["detail"] = "too many datagrams of every size are lost"
                return result
            if not arrives:
                break
            largest = lost.pop(0)
        result["largest_passed"] = largest
        if lost:
            result.update(outcome="black-hole", smallest_lost=lost[0])
        else:
            result["outcome"] = "ok"
    return result


@probe("path-mtu", stage="connectivity", limit_s=20.0)
def path_mtu(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The largest packet that reaches each target with don't-fragment set.

    Arguments: token, targets [{peer, address, port}].
    """
    token = str(arguments["token"]).encode("ascii")
    return {"paths": _in_parallel(list(arguments["targets"]), lambda one: _path_size(one, token), 16)}


# ----------------------------------------------------------------------------------------------- throughput


def _transfer(target: Dict[str, Any], token: str, seconds: float, limit: int) -> Dict[str, Any]:
    flow = {"peer": target["peer"], "address": target["address"]}  # type: Dict[str, Any]
    try:
        connection = _open(target, token, "sink", 5.0).connection
    except OSError as error:
        flow.update(outcome=_outcome(error), detail=str(error))
        return flow
    with connection:
        try:
            end, sent = time.monotonic() + seconds, 0
            connection.settimeout(max(5.0, seconds * 4))
            while sent < limit and time.monotonic() < end:
                sent += connection.send(BLOCK)
            connection.shutdown(socket.SHUT_WR)
            answer = json.loads(_read_line(connection).decode("ascii"))
            flow.update(outcome="ok", bytes=int(answer["bytes"]), seconds=float(answer["seconds"]))
            flow["retransmitted"] = _retransmitted(connection)
        except (OSError, ValueError, KeyError) as error:
            outcome = _outcome(error) if isinstance(error, OSError) else "failed"
            # No byte count here: gaps that differ only in it would each be told apart.
            flow.update(outcome=outcome, detail="the transfer stopped in the middle: %s" % (error or "no answer"))
    return flow


@probe("throughput", stage="connectivity", limit_s=30.0)
def throughput(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Send to one target after the other. Arguments: token, targets, seconds (each), limit_bytes (each)."""
    token = str(arguments["token"])
    seconds, limit = float(arguments.get("seconds", 0.4)), int(arguments.get("limit_bytes", 64 << 20))
    if not arguments["targets"]:
        raise ProbeTrouble("not-supported", "this host has no peer to send to")
    return {"flows": [_transfer(target, token, seconds, limit) for target in arguments["targets"]]}
