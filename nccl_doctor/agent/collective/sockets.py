"""Which interfaces this process really talks over: its own established TCP connections, with the interface of each.

This is the proof of gloo's path: gloo prints nothing, but its connections can be read from the kernel.
"""

import contextlib
import os
import re
import socket
import struct
from typing import Any, Dict, List, Set, Tuple


def addresses() -> Dict[str, str]:
    """Local address -> interface name, IPv4 and IPv6."""
    import fcntl

    found: Dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found[socket.inet_ntoa(reply[20:24])] = name
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:
        for line in table:
            fields = line.split()
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))] = fields[5]
    return found


def interface_of(address: str, known: Dict[str, str]) -> str:
    """The interface that carries a local address; the whole of 127/8 is the loopback's."""
    if address.startswith("127.") or address == "::1":
        return "lo"
    return known.get(address, "")


def decode(text: str) -> Tuple[str, int]:
    """Address and port as /proc/net/tcp and tcp6 write them."""
    raw, port = text.split(":")
    words = [bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return socket.inet_ntoa(packed), int(port, 16)
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        return socket.inet_ntoa(packed[12:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, packed), int(port, 16)


def _own_inodes() -> Set[str]:
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            match = re.match(r"socket:\[(\d+)\]", os.readlink("/proc/self/fd/" + name))
            if match:
                own.add(match.group(1))
    return own


def knock(address: str, port: int, limit_s: float = 0.5) -> str:
    """``open`` where something listens there, ``refused`` where the host says that nothing does, else empty."""
    try:
        socket.create_connection((address, port), limit_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return ""
    return "open"


def connections(ignored_port: int) -> List[Dict[str, Any]]:
    """Established TCP connections of this process but those to or from ``ignored_port`` (the store's), counted by
    interface, local and remote address: ``{"interface", "local", "remote", "count"}``."""
    own, known = _own_inodes(), addresses()
    counts: Dict[Tuple[str, str, str], int] = {}
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as stream:
            next(stream, None)
            for line in stream:
                fields = line.split()
                if len(fields) < 10 or fields[3] != "01" or fields[9] not in own:
                    continue
                (local, local_port), (remote, remote_port) = decode(fields[1]), decode(fields[2])
                if ignored_port in (local_port, remote_port):
                    continue
                key = (interface_of(local, known), local, remote)
                counts[key] = counts.get(key, 0) + 1
    return [
        {"interface": interface, "local": local, "remote": remote, "count": count}
        for (interface, local, remote), count in sorted(counts.items())
    ]


def interface_facts(names: Set[str]) -> Dict[str, Dict[str, Any]]:
    """Speed in Mb/s as the driver claims it, and whether real hardware stands behind the interface."""
    facts: Dict[str, Dict[str, Any]] = {}
    for name in sorted(names):
        base = "/sys/class/net/" + name
        speed = None
        with contextlib.suppress(OSError, ValueError), open(base + "/speed") as stream:
            speed = int(stream.read())
        facts[name] = {
            "speed_mbps": speed if speed and speed > 0 else None,
            "physical": os.path.exists(base + "/device"),
        }
    return facts
