"""Path MTU: the largest packet that reaches each peer's UDP listener, don't-fragment set."""

import contextlib
import errno
import select
import socket
import time
from typing import Any, Dict, List, Optional, Set

from nccl_doctor.agent.probing import in_parallel, probe

CONFIRMED = 8  # times that a size must be lost while a smaller one sent after it arrives

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
    return {"paths": in_parallel(list(arguments["targets"]), lambda one: _path_size(one, token), 16)}
