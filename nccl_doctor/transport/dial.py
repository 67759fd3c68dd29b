"""TCP connections with one limit for resolving and connecting, and errors sorted into outcomes."""

from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from typing import Any

from nccl_doctor.facts.model import NO_WAY_OUT, OURS, Reach, ReachOutcome
from nccl_doctor.inventory.names import is_address
from nccl_doctor.transport.base import Unreachable

_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_NO_ROUTE = frozenset(
    (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM)
)
# No descriptor, memory or port left here, no such family, no interface named. Others (ENOPROTOOPT, say) come by ICMP, too.
_OURS = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
)


def resolve(host: str, port: int, family: str, limit_s: float) -> list[Any]:
    """getaddrinfo within a limit, which it has not by itself; raises :class:`Unreachable`."""
    answer: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask(flags: int = 0) -> None:
        wanted = _FAMILIES.get(family, socket.AF_UNSPEC)
        try:
            answer.put(list(socket.getaddrinfo(host, port, wanted, socket.SOCK_STREAM, 0, flags)))
        except (OSError, UnicodeError) as error:
            answer.put(error if isinstance(error, OSError) else OSError(str(error)))

    if is_address(host):
        ask(socket.AI_NUMERICHOST)  # without the name service: at once
    else:
        threading.Thread(target=ask, daemon=True, name="resolve").start()
    try:
        found = answer.get(timeout=limit_s)
    except queue.Empty:
        detail = f"the name service did not answer for {host} within {limit_s:.0f} s"
        raise Unreachable(ReachOutcome.NAME_UNRESOLVED, detail, f"getaddrinfo({host}): no answer") from None
    if isinstance(found, OSError):
        text = found.strerror or str(found)
        raise Unreachable(ReachOutcome.NAME_UNRESOLVED, f"{host} does not resolve here", f"getaddrinfo({host}): {text}")
    return found


def connect(host: str, port: int, family: str, limit_s: float) -> socket.socket:
    """A connected socket, trying the addresses in order; raises :class:`Unreachable` with what each of them gave.

    That this machine has no way to one address (no IPv6 here) says nothing of the host, where it has one to another.
    """
    end = time.monotonic() + limit_s
    addresses = resolve(host, port, family, limit_s)
    troubles: list[Reach] = []
    for place, (kind, _, protocol, _, target) in enumerate(addresses):
        left = max(0.1, (end - time.monotonic()) / (len(addresses) - place))
        try:
            return _connected(socket.socket(kind, socket.SOCK_STREAM, protocol), target, left)
        except OSError as error:
            troubles.append(_sorted(error, kind, target, left).reach)
    told = [reach for reach in troubles if NO_WAY_OUT not in reach.detail] or troubles
    seen = [text for reach in troubles for text in reach.evidence]
    last = told[-1]
    raise Unreachable(last.outcome, last.detail, *seen, address=last.address, port=port)


def _connected(made: socket.socket, target: Any, limit_s: float) -> socket.socket:
    try:
        made.settimeout(limit_s)
        made.connect(target)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        made.close()
        raise
    return made


def _has_way(family: int, target: Any) -> bool:
    """Whether this machine's own routes lead to an address: to connect a UDP socket looks them up, and sends nothing.

    A TCP connect fails with the same errors where a router or a firewall on the way answers so (ICMP).
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.connect(target)
    except OSError:
        return False
    return True


def _sorted(error: OSError, family: int, target: Any, limit_s: float) -> Unreachable:
    port = int(target[1])
    zoned = any(target[3:])  # without the zone, no command reaches a link-local address
    address = socket.getnameinfo(target, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0] if zoned else str(target[0])
    text = f"connect {address} port {port}: {error.strerror or error}"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        detail = f"no answer to TCP connects within {limit_s:.1f} s: host down, or a firewall that drops"
        return Unreachable(ReachOutcome.TIMED_OUT, detail, text, address=address, port=port)
    if isinstance(error, ConnectionRefusedError):
        detail = f"nothing listens on port {port}: sshd down, another port, or a firewall that rejects"
        return Unreachable(ReachOutcome.REFUSED, detail, text, address=address, port=port)
    if error.errno in _NO_ROUTE:
        detail = f"{'no route' if _has_way(family, target) else NO_WAY_OUT} to {address}"
        return Unreachable(ReachOutcome.NO_ROUTE, detail, text, address=address, port=port)
    detail = f"{OURS} cannot connect" if error.errno in _OURS else "the connection failed"
    return Unreachable(ReachOutcome.TRANSPORT_FAILED, detail, text, address=address, port=port)
