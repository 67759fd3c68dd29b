"""TCP connections as the kernel keeps them: state, queues, retransmissions, and when bytes last moved.

The kernel's own question (``sock_diag``) also tells bytes and times; /proc/PID/net/tcp, which any namespace has, only
state and queues. Both are keyed by the socket's inode, as /proc/PID/fd shows it.
"""

import ctypes
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, Optional, Set

from nccl_doctor.agent.collective.sockets import decode, spelled
from nccl_doctor.agent.probing import link, listed, read_text

STATES = {
    1: "ESTABLISHED",
    2: "SYN_SENT",
    3: "SYN_RECV",
    4: "FIN_WAIT1",
    5: "FIN_WAIT2",
    6: "TIME_WAIT",
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
}
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INET_DIAG_INFO = 2
_ANY_STATE = 0xFFFFFFFF
_LISTENS = 1 << 10
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIMIT_S = 3.0
CONNECTIONS = 600  # of one rank: a full mesh of thousands of ranks would be more than a reply holds

Table = Dict[int, Dict[str, Any]]


def own_namespace() -> Table:
    """All TCP sockets of this network namespace, by inode. ``OSError`` where the kernel does not answer."""
    found: Table = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in _dump(family):
            entry = _entry(message)
            found[entry.pop("inode")] = entry
    return found


def of_namespace(pid: int) -> Table:
    """All TCP sockets of a process's network namespace (a container's), by inode; ``OSError`` where only root may.

    A thread of its own goes there, and ends: no other part of this program leaves its place.
    """

    def there() -> Table:
        descriptor = os.open("/proc/%d/ns/net" % pid, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)
        return own_namespace()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(there).result()


def of_process(pid: int) -> Table:
    """All TCP sockets of a process's network namespace, by inode, as /proc has them: no bytes, no times."""
    found: Table = {}
    for name in ("tcp", "tcp6"):
        text = read_text("/proc/%d/net/%s" % (pid, name), 16 << 20) or ""
        for line in text.splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[9] == "0":
                continue
            send, _, receive = fields[4].partition(":")
            found[int(fields[9])] = {
                "local": "%s:%d" % decode(fields[1]),
                "peer": "%s:%d" % decode(fields[2]),
                "state": STATES.get(int(fields[3], 16), fields[3]),
                "unsent_bytes": int(send, 16),
                "unread_bytes": int(receive, 16),
                "timeouts": int(fields[6], 16),
            }
    return found


def listening() -> Optional[List[int]]:
    """The TCP ports of this network namespace on which somebody listens; None where the kernel does not answer."""
    try:
        told = [_entry(item) for family in (socket.AF_INET, socket.AF_INET6) for item in _dump(family, _LISTENS)]
    except OSError:
        return None
    return sorted({int(entry["local"].rpartition(":")[2]) for entry in told})


def _dump(family: int, states: int = _ANY_STATE) -> Iterator[bytes]:
    """The kernel's messages, one a socket."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as asked:  # NETLINK_SOCK_DIAG
        asked.settimeout(_LIMIT_S)
        request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, states)
        request += b"\0" * 48  # of any address
        asked.send(struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            block = asked.recv(1 << 20)
            while len(block) >= 16:
                length, kind = struct.unpack_from("=IH", block)
                if kind == 3:  # NLMSG_DONE
                    return
                if kind == 2:  # NLMSG_ERROR
                    code = -struct.unpack_from("=i", block, 16)[0]
                    raise OSError(code, "sock_diag: error %d" % code)
                yield block[16:length]
                block = block[(length + 3) & ~3 :]


def _entry(message: bytes) -> Dict[str, Any]:
    """One ``inet_diag_msg`` with its ``tcp_info``."""
    family, state, _, timeouts = struct.unpack_from("=BBBB", message)
    size = 4 if family == socket.AF_INET else 16  # bytes of an address
    ports = struct.unpack_from(">HH", message, 4)
    unread, unsent, _, inode = struct.unpack_from("=IIII", message, 56)
    entry: Dict[str, Any] = {
        "inode": inode,
        "local": "%s:%d" % (spelled(message[8 : 8 + size]), ports[0]),
        "peer": "%s:%d" % (spelled(message[24 : 24 + size]), ports[1]),
        "state": STATES.get(state, str(state)),
        "unsent_bytes": unsent,
        "unread_bytes": unread,
        "timeouts": timeouts,
    }
    info = _attribute(message, _INET_DIAG_INFO)
    if len(info) >= 104:
        entry["timeouts"] = info[2]  # retransmissions in a row without an answer
        entry["sent_ago_ms"], _, entry["received_ago_ms"], _ = struct.unpack_from("=IIII", info, 44)
        entry["retransmitted"] = struct.unpack_from("=I", info, 100)[0]  # segments, in the connection's life
    if len(info) >= 136:
        entry["acked_bytes"], entry["received_bytes"] = struct.unpack_from("=QQ", info, 120)
    return entry


def _attribute(message: bytes, wanted: int) -> bytes:
    at = 72
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        if kind == wanted:
            return message[at + 4 : at + length]
        at += (length + 3) & ~3
    return b""


def opened(pid: int) -> List[str]:
    """The targets of a process's open file descriptors."""
    return [link("/proc/%d/fd/%s" % (pid, name)) for name in listed("/proc/%d/fd" % pid)]


def inodes_of(links: List[str]) -> Set[int]:
    """The inodes of the sockets among them."""
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def devices(links: List[str]) -> List[str]:
    """The kinds of devices among them through which ranks can talk: with one of them TCP is not their only way."""
    kinds = (("gpu", "/dev/nvidia"), ("rdma", "/dev/infiniband/uverbs"))
    return [kind for kind, prefix in kinds if any(link.startswith(prefix) for link in links)]


def tables(inodes: Dict[int, Set[int]]) -> Dict[int, Dict[int, Dict[str, Any]]]:
    """Process id -> its TCP sockets by inode. The kernel is asked once for each network namespace."""
    by_namespace: Dict[str, Table] = {}
    own = link("/proc/self/ns/net")
    found = {}
    for pid, wanted in inodes.items():
        namespace = link("/proc/%d/ns/net" % pid) or own
        if namespace not in by_namespace:
            try:
                by_namespace[namespace] = own_namespace() if namespace == own else of_namespace(pid)
            except OSError:
                by_namespace[namespace] = of_process(pid)
        found[pid] = {inode: entry for inode, entry in by_namespace[namespace].items() if inode in wanted}
    return found


def compared(pid: int, first: Dict[str, Any], second: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The sockets of a process at the second reading, with what the first said of them."""
    before, now = (look["connections"].get(pid, {}) for look in (first, second))
    told = []
    for inode, entry in sorted(now.items()):
        earlier = before.get(inode, {})
        moved = None
        if "acked_bytes" in entry and "acked_bytes" in earlier:
            moved = sum(entry[name] - earlier[name] for name in ("acked_bytes", "received_bytes"))
        queues = {"before_" + name: earlier[name] for name in ("unsent_bytes", "unread_bytes") if name in earlier}
        told.append(dict(entry, moved_bytes=moved, **queues))
    told.sort(key=_is_quiet)
    return told[:CONNECTIONS]


def _is_quiet(entry: Dict[str, Any]) -> bool:
    """Whether a connection is only there: nothing queued, timed out or moved."""
    full = entry["timeouts"] or entry["unsent_bytes"] or entry["unread_bytes"]
    return entry["state"] in ("ESTABLISHED", "LISTEN") and not full and not entry["moved_bytes"]
