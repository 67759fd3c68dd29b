"""The connecting half of what hosts measure of each other: TCP connects, paced messages, transfers."""

import contextlib
import errno
import json
import os
import select
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Set, Tuple

from nccl_doctor.agent.probes.listening import MAGIC, MESSAGE, read_exactly, read_line, retransmitted
from nccl_doctor.agent.probing import ProbeTrouble, in_parallel, probe

BLOCK = b"\0" * (256 << 10)
INTERVAL_S = 0.002  # between two paced messages
UNDER_WAY = 8  # paced messages sent and not yet answered, at most
ANSWER_S = 6.0  # for the first answer of a peer that is connected
RETRY_S = 0.5  # a connect without an answer is joined by another one after this time
AT_ONCE = 32  # targets

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
        answer = read_line(connection)
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


def _pace(connection: socket.socket, messages: int) -> Dict[str, Any]:
    """Send small messages at a steady pace and read them back: round-trip times, and what had to be sent again.

    Small and paced, so that a full queue is not mistaken for a lossy link. Each is one segment (TCP_NODELAY), and no
    more than a few are under way: the kernel would join those that wait behind a lost one, and hide further losses.
    """
    sent = []  # type: List[float]
    back = []  # type: List[float]
    deadline = time.monotonic() + messages * INTERVAL_S + 3.0
    buffered = b""
    before = retransmitted(connection)
    while len(back) < messages and time.monotonic() < deadline:
        wait = 0.1
        if len(sent) < messages and len(sent) - len(back) < UNDER_WAY:
            wait = max(0.0, sent[-1] + INTERVAL_S - time.monotonic()) if sent else 0.0
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
    lost_forward = retransmitted(connection) - before
    connection.shutdown(socket.SHUT_WR)
    lost_back = None  # a cut connection: only this direction's count is known
    try:
        connection.settimeout(2.0)
        trailer = read_exactly(connection, MESSAGE * (len(sent) - len(back) + 1))[-MESSAGE:]
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


@probe("links", stage="ports", limit_s=30.0)
def links(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Connect to every target. Arguments: token, targets [{peer, address, port, purpose, messages}], timeout_s."""
    token, timeout = str(arguments["token"]), float(arguments.get("timeout_s", 3.0))
    targets = list(arguments["targets"])
    tried = in_parallel(targets, lambda one: _connect(one, token, timeout, int(one.get("messages", 0))), AT_ONCE)
    failed = {link["address"] for link in tried if link["outcome"] in ("timed-out", "unreachable")}
    return {"links": tried, "neighbours": _neighbours(failed)}


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
            answer = json.loads(read_line(connection).decode("ascii"))
            flow.update(outcome="ok", bytes=int(answer["bytes"]), seconds=float(answer["seconds"]))
            flow["retransmitted"] = retransmitted(connection)
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
