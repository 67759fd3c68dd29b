"""Network interfaces as NCCL and Gloo see them: getifaddrs in kernel order, sysfs, routes, and interface settings.

NCCL takes the first suitable entry of getifaddrs, so the order of ``addresses`` is a fact of its own.
"""

import ctypes
import ctypes.util
import ipaddress
import os
import pwd
import re
import socket
import struct
import time
from typing import Any, Dict, List, Optional, Tuple, Union

from nccl_doctor.agent.probing import (
    ProbeTrouble,
    first_line,
    link_name,
    listed,
    path,
    probe,
    read_text,
    uptime,
    whole_number,
)
from nccl_doctor.agent.redaction import redact_environment, redact_text

# Only these are read from the environment: they decide the interface. Nothing else of the environment is collected.
VARIABLES = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_COMM_ID",
    "NCCL_OOB_NET_IFNAME",
    "NCCL_CONF_FILE",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
)
IFF_UP, IFF_LOOPBACK, IFF_POINTOPOINT, IFF_RUNNING = 0x1, 0x8, 0x10, 0x40
# A setting NCCL would read, or a line its author meant as one (blanks, export): the second kind has no effect, and
# that is worth telling. Lines about anything but NCCL_* stay on the host.
# Also lines that NCCL passes over, for want of a = or because of a byte order mark: somebody meant to set something.
CONF_LINE = re.compile(r"\ufeff?\s*(?:export\s+)?NCCL_[A-Za-z0-9_]*\s*[=:\s]")


class _Ifaddrs(ctypes.Structure):
    """struct ifaddrs of <ifaddrs.h>."""


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("union", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def _sockaddr(pointer: Optional[int]) -> Tuple[int, bytes, int]:
    """Family, raw address and scope id of a struct sockaddr; family 0 for none."""
    if not pointer:
        return 0, b"", 0
    family = struct.unpack("=H", ctypes.string_at(pointer, 2))[0]
    if family == socket.AF_INET:
        return family, ctypes.string_at(pointer + 4, 4), 0
    if family == socket.AF_INET6:
        scope = struct.unpack("=I", ctypes.string_at(pointer + 24, 4))[0]
        return family, ctypes.string_at(pointer + 8, 16), scope
    return family, b"", 0


def kernel_addresses() -> List[Dict[str, Any]]:
    """All IPv4 and IPv6 entries of getifaddrs(3), in its order, with the flags of the interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        raise ProbeTrouble("failed", "getifaddrs: %s" % os.strerror(ctypes.get_errno()))
    found = []
    try:
        entry = head
        while entry:
            item = entry.contents
            family, raw, scope = _sockaddr(item.address)
            if raw:
                mask = _sockaddr(item.netmask)[1]
                found.append(
                    {
                        "name": (item.name or b"").decode("utf-8", "replace"),
                        "family": "inet" if family == socket.AF_INET else "inet6",
                        "address": socket.inet_ntop(family, raw),
                        "prefix": sum(bin(byte).count("1") for byte in mask),
                        "scope": scope,
                        "up": bool(item.flags & IFF_UP),
                        "running": bool(item.flags & IFF_RUNNING),
                        "loopback": bool(item.flags & IFF_LOOPBACK),
                        "point_to_point": bool(item.flags & IFF_POINTOPOINT),
                    }
                )
            entry = item.next
    finally:
        libc.freeifaddrs(head)
    return found


def _kind(base: str, arp_type: Optional[int]) -> str:
    """What sort of interface it is: loopback, bridge, bond, vlan, tun, wireguard, ..., virtual or physical."""
    if arp_type == 772:
        return "loopback"
    for kind in ("bridge", "bonding"):
        if os.path.isdir(path(base + "/" + kind)):
            return "bond" if kind == "bonding" else kind
    if os.path.exists(path(base + "/tun_flags")):
        return "tun"
    declared = re.search(r"^DEVTYPE=(\w+)", read_text(base + "/uevent") or "", re.M)
    if declared and declared.group(1) not in ("wlan", "wwan"):
        return declared.group(1)  # vlan, vxlan, wireguard, macvlan, ...
    if arp_type in (65534, 768, 776, 778):
        return "tun"  # a device without a link layer: tun, ipip, sit, gre
    if declared:
        return "wireless"
    if os.path.exists(path(base + "/device")):
        return "physical"
    return "virtual"


def devices() -> List[Dict[str, Any]]:
    """Every interface in /sys/class/net."""
    found = []
    try:
        names = sorted(os.listdir(path("/sys/class/net")))
    except FileNotFoundError:
        return []
    for name in names:
        base = "/sys/class/net/" + name
        if not os.path.isdir(path(base)):
            continue  # bonding_masters is a file
        arp_type = whole_number(first_line(base + "/type"))
        found.append(
            {
                "name": name,
                "operstate": first_line(base + "/operstate") or "",
                "carrier": {"1": True, "0": False}.get(first_line(base + "/carrier") or ""),
                "mtu": whole_number(first_line(base + "/mtu")),
                "speed_mbps": speed_mbps(base),
                "mac": first_line(base + "/address") or "",
                "arp_type": arp_type,
                "kind": _kind(base, arp_type),
                "driver": link_name(base + "/device/driver"),
                "pci": _pci(link_name(base + "/device")),
                "master": link_name(base + "/master"),
                "lower": [entry[6:] for entry in listed(base) if entry.startswith("lower_")],
                "losses": losses(base),
            }
        )
    return found


def speed_mbps(base: str) -> Optional[int]:
    """Mb/s as the driver tells it; None where it does not (also for -1, with a sign or without)."""
    speed = whole_number(first_line(base + "/speed"))
    return speed if speed and 0 < speed < 4294967295 else None


def losses(base: str) -> Optional[int]:
    """How often the link went down; before Linux 4.16 half the number of its changes. None where neither is counted."""
    downs = whole_number(first_line(base + "/carrier_down_count"))
    changes = whole_number(first_line(base + "/carrier_changes"))
    return downs if downs is not None else changes // 2 if changes is not None else None


def _pci(device: str) -> str:
    return device if re.match(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$", device) else ""


def _ipv4_from_route(word: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(word, 16)))


ROUTES = 500  # told, at most; Kubernetes has one for each other host or pod
TABLE_BYTES = 16 << 20  # of a routing table's text: some 130,000 routes


def routes() -> List[Dict[str, Any]]:
    """The main IPv4 and IPv6 routing tables of /proc/net (policy routing tables are not in it)."""
    found = []
    ipv4 = (read_text("/proc/net/route", TABLE_BYTES) or "").splitlines()[1:]
    ipv6 = (read_text("/proc/net/ipv6_route", TABLE_BYTES) or "").splitlines()
    for lines, parse in ((ipv4, _ipv4_route), (ipv6, _ipv6_route)):
        for line in lines:
            try:
                route = parse(line.split())
            except (ValueError, IndexError, OSError, struct.error):
                continue  # the last line, where the table was too long
            if route:
                found.append(route)
    return found


def _ipv4_route(word: List[str]) -> Optional[Dict[str, Any]]:
    flags = int(word[3], 16)
    if not flags & 1:
        return None
    return {
        "family": "inet",
        "interface": word[0],
        "destination": _ipv4_from_route(word[1]),
        "prefix": bin(int(word[7], 16)).count("1"),
        "gateway": "" if int(word[2], 16) == 0 else _ipv4_from_route(word[2]),
        "metric": int(word[6]),
        "reject": bool(flags & 0x200),
    }


def _ipv6_route(word: List[str]) -> Optional[Dict[str, Any]]:
    flags = int(word[8], 16)
    up, reject = flags & 1, flags & 0x200  # a rejecting route is not "up"
    # The host's own addresses, and the kernel's last resort, which rejects; other rejecting routes are somebody's.
    if (word[9] == "lo" or not up) and (not reject or word[5] == "ffffffff"):
        return None
    gateway = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word[4]))
    return {
        "family": "inet6",
        "interface": word[9],
        "destination": socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word[0])),
        "prefix": int(word[1], 16),
        "gateway": "" if gateway == "::" else gateway,
        "metric": int(word[5], 16),
        "reject": bool(reject),
    }


def that_matter(found: List[Dict[str, Any]], addresses: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Of many routes those that may lead to a peer's address, or reject it: the rest says nothing of this network.

    They meet one of the host's own networks, or a route that rejects; and the default routes.
    """
    if len(found) <= ROUTES:
        return found

    def network(address: str, prefix: int) -> "Union[ipaddress.IPv4Network, ipaddress.IPv6Network]":
        return ipaddress.ip_interface("%s/%d" % (address, prefix)).network

    own = {network(address["address"], address["prefix"]) for address in addresses}
    met = {one for one in own if not one.is_loopback and not one.is_link_local}
    rejecting = [route for route in found if route["prefix"] and (route["reject"] or route["interface"] == "*")]
    met |= {network(route["destination"], route["prefix"]) for route in rejecting}

    def matters(route: Dict[str, Any]) -> bool:
        to = network(route["destination"], route["prefix"])
        return not route["prefix"] or any(one.version == to.version and one.overlaps(to) for one in met)

    return [route for route in found if matters(route)]


def _password_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def conf_files() -> List[Dict[str, Any]]:
    """NCCL's configuration files: which are there, and their NCCL_* lines with their numbers, verbatim (but for secrets).

    ``role`` says which rule of precedence applies: ``environment`` (NCCL_CONF_FILE), ``home`` ($HOME/.nccl.conf, read
    by NCCL 2.30.3 and newer), ``passwd-home`` (read by older ones), ``system`` (/etc/nccl.conf).
    """
    wanted = [("system", "/etc/nccl.conf")]
    home, password_home = os.environ.get("HOME", ""), _password_home()
    if home:
        wanted.append(("home", os.path.join(home, ".nccl.conf")))
    if password_home:
        wanted.append(("passwd-home", os.path.join(password_home, ".nccl.conf")))
    if os.environ.get("NCCL_CONF_FILE"):
        wanted.append(("environment", os.environ["NCCL_CONF_FILE"]))
    return [_conf_file(role, name) for role, name in wanted]


def _conf_file(role: str, name: str) -> Dict[str, Any]:
    lines = []  # type: List[Dict[str, Any]]
    try:
        # newline is kept apart from the text, but a carriage return is part of it
        text = read_text(os.path.abspath(name) if not name.startswith("/") else name)
        outcome = "absent" if text is None else "ok"
    except PermissionError:
        text, outcome = None, "not-permitted"
    for number, line in enumerate((text or "").split("\n"), 1):
        if CONF_LINE.match(line):
            lines.append({"line": number, "text": redact_text(line[:1024])})
    return {"role": role, "path": name, "outcome": outcome, "lines": lines[:200]}


def settings() -> Dict[str, str]:
    """The interface variables of the environment this agent (and so the job, with --env-setup) runs in."""
    return redact_environment({name: os.environ[name] for name in VARIABLES if name in os.environ})


@probe("interfaces", stage="interfaces", limit_s=20.0)
def interfaces(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Addresses in kernel order, devices, routes, and every setting that steers the choice of an interface."""
    addresses = kernel_addresses()
    ways = that_matter(routes(), addresses)
    return {
        "hostname": socket.gethostname(),
        "addresses": addresses,
        "devices": devices(),
        "routes": ways[:ROUTES],
        "routes_cut": len(ways[ROUTES:]),
        "environment": settings(),
        "conf_files": conf_files(),
        "uptime_s": uptime(),
        "read_at_s": time.monotonic(),
    }


@probe("carriers", limit_s=10.0)
def carriers(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """How often each link has gone down by now: the second reading beside the one in ``interfaces``."""
    names = [name for name in listed("/sys/class/net") if os.path.isdir(path("/sys/class/net/" + name))]
    found = {name: losses("/sys/class/net/" + name) for name in names}
    return {
        "losses": {name: count for name, count in found.items() if count is not None},
        "read_at_s": time.monotonic(),
    }
