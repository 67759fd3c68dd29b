"""This process's own TCP connections: which interfaces it talks over, and whom it asks in vain.

This is the proof of gloo's path: gloo prints nothing, but its connections can be read from the kernel.
"""

import contextlib
import os
import re
import socket
import struct
import sys
from typing import Any, Dict, List, Set, Tuple

ESTABLISHED, SYN_SENT = "01", "02"  # states, as /proc/net/tcp writes them


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


def spelled(packed: bytes) -> str:
    """An address of 4 or 16 bytes as people write it; IPv4 through an IPv6 socket is IPv4."""
    if packed[:12] == bytes(10) + b"\xff\xff":
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def decode(text: str) -> Tuple[str, int]:
    """Address and port as /proc/net/tcp and tcp6 write them: ``0300A4C0:7530``, 32-bit words of this machine's order."""
    words, port = text.split(":")
    packed = b"".join(int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8))
    return spelled(packed), int(port, 16)


def _own_inodes() -> Set[str]:
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            match = re.match(r"socket:\[(\d+)\]", os.readlink("/proc/self/fd/" + name))
            if match:
                own.add(match.group(1))
    return own


def _own(state: str) -> List[List[str]]:
    """The rows of /proc/net/tcp and tcp6 about this process's own sockets in this state."""
    rows: List[List[str]] = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError), open(table) as stream:
            next(stream, None)
            rows += [fields for fields in map(str.split, stream) if len(fields) > 9 and fields[3] == state]
    own = _own_inodes() if rows else set()
    return [fields for fields in rows if fields[9] in own]


def dialling() -> List[str]:
    """``address:port`` of every TCP connection that this process has asked for and nobody has answered."""
    return sorted({_place(fields[2]) for fields in _own(SYN_SENT)})


def _place(text: str) -> str:
    address, port = decode(text)
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


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
    known = addresses()
    counts: Dict[Tuple[str, str, str], int] = {}
    for fields in _own(ESTABLISHED):
        (local, local_port), (remote, remote_port) = decode(fields[1]), decode(fields[2])
        if ignored_port not in (local_port, remote_port):
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
