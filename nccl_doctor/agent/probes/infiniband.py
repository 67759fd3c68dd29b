"""InfiniBand, RoCE and EFA devices: everything from sysfs; ibstat, ibv_devinfo and show_gids as further witnesses."""

import os
import resource
import time
from typing import Any, Dict, List, Optional

from nccl_doctor.agent.containers import container
from nccl_doctor.agent.pci import AWS, MELLANOX, pci_path, slot_of
from nccl_doctor.agent.probes.interfaces import routes
from nccl_doctor.agent.probing import (
    first_line,
    in_parallel,
    link_name,
    listed,
    path,
    probe,
    run_command,
    uptime,
    whole_number,
)

GID_LIMIT = 256
INTERVAL_S = 1.0
_PORT_FILES = ("state", "phys_state", "rate", "link_layer")
_DEVICE_FILES = ("fw_ver", "hca_type", "board_id", "node_guid")
_WITNESSES = ("ibstat", "ibv_devinfo", "show_gids")
WITNESS_LIMIT_S = 20.0  # show_gids starts a program for each entry of each table: 256 for a RoCE port


@probe("infiniband", "infiniband", limit_s=35.0)
def infiniband(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """All RDMA devices with their ports, GID tables and two readings of the error counters ``interval_s`` apart."""
    names = listed("/sys/class/infiniband")
    interval_s = float(arguments.get("interval_s", INTERVAL_S))
    first = {name: _counters(name) for name in names}
    started = time.monotonic()
    data: Dict[str, Any] = {
        "devices": [_device(name) for name in names],
        "uverbs": [name for name in listed("/dev/infiniband") if name.startswith("uverbs")],
        "uverbs_expected": [name for name in listed("/sys/class/infiniband_verbs") if name.startswith("uverbs")],
        "memlock_bytes": _memlock(),
        "container": container(),
        "uptime_s": uptime(),
        "default_route_devices": _default_routes(),
        "pci_rdma": _pci_without_driver(),
        "witnesses": {},
    }
    if not (names or data["uverbs"] or data["pci_rdma"]):
        return data
    data["witnesses"] = dict(zip(_WITNESSES, in_parallel(list(_WITNESSES), _witness, len(_WITNESSES))))
    left = started + interval_s - time.monotonic()
    if left > 0 and names:
        time.sleep(left)
    second = {name: _counters(name) for name in names}
    elapsed = time.monotonic() - started
    for device in data["devices"]:
        for port in device["ports"]:
            number = str(port["port"])
            port["counters"] = second[device["name"]].get(number, {})
            port["counters_before"] = first[device["name"]].get(number, {})
            port["counters_interval_s"] = round(elapsed, 3)
    return data


def _witness(tool: str) -> Dict[str, str]:
    result = run_command([tool], WITNESS_LIMIT_S, limit_bytes=1 << 20)
    return {"outcome": result.outcome, "detail": result.detail, "text": result.stdout}


def ports_of(name: str) -> List[str]:
    """The numbers of an RDMA device's ports, in order."""
    ports = [port for port in listed("/sys/class/infiniband/%s/ports" % name) if port.isdecimal()]
    return sorted(ports, key=int)


def _device(name: str) -> Dict[str, Any]:
    base = "/sys/class/infiniband/" + name
    device: Dict[str, Any] = {"name": name}
    for field in _DEVICE_FILES:
        device[field] = first_line("%s/%s" % (base, field))
    real = os.path.realpath(path(base + "/device"))
    device["bus_id"] = os.path.basename(real) if os.path.isdir(real) else None
    device["slot"] = slot_of(device["bus_id"]) if device["bus_id"] else None
    device["path"] = pci_path(base + "/device")
    device["pci_device"] = first_line(base + "/device/device")
    device["pci_vendor"] = first_line(base + "/device/vendor")
    device["numa_node"] = whole_number(first_line(base + "/device/numa_node"))
    device["netdevs"] = [_netdev(interface) for interface in listed(base + "/device/net")]
    device["ports"] = [_port(name, number) for number in ports_of(name)]
    return device


def _netdev(interface: str) -> Dict[str, Any]:
    base = "/sys/class/net/" + interface
    return {
        "name": interface,
        "operstate": first_line(base + "/operstate"),
        "mtu": whole_number(first_line(base + "/mtu")),
        "master": link_name(base + "/master") or None,
    }


def _port(name: str, number: str) -> Dict[str, Any]:
    base = "/sys/class/infiniband/%s/ports/%s" % (name, number)
    port: Dict[str, Any] = {"port": int(number)}
    for field in _PORT_FILES:
        port[field] = first_line("%s/%s" % (base, field))
    port["gids"] = _gids(base)
    return port


def _gids(base: str) -> List[Dict[str, Any]]:
    """The port's GIDs that are not empty; ``type`` (IB/RoCE v1, RoCE v2) and ``netdev`` are None where not told."""
    found = []
    indices = [name for name in listed(base + "/gids") if name.isdecimal()]
    for name in sorted(indices, key=int)[:GID_LIMIT]:
        gid = first_line("%s/gids/%s" % (base, name))
        if not gid or not gid.replace(":", "").strip("0"):
            continue
        found.append(
            {
                "index": int(name),
                "gid": gid,
                "type": first_line("%s/gid_attrs/types/%s" % (base, name)),
                "netdev": first_line("%s/gid_attrs/ndevs/%s" % (base, name)),
            }
        )
    return found


def _counters(name: str) -> Dict[str, Dict[str, int]]:
    """Port -> counter -> value, of ``counters`` and ``hw_counters`` (device-wide ones under every port)."""
    found: Dict[str, Dict[str, int]] = {}
    for number in ports_of(name):
        base = "/sys/class/infiniband/%s/ports/%s" % (name, number)
        values: Dict[str, int] = {}
        for folder in ("counters", "hw_counters"):
            for counter in listed("%s/%s" % (base, folder)):
                value = whole_number(first_line("%s/%s/%s" % (base, folder, counter)))
                if value is not None and value >= 0:
                    values[counter] = value
        found[number] = values
    return found


def _memlock() -> Dict[str, Optional[int]]:
    """The lock limit of this process in bytes; None is unlimited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "soft": None if soft == resource.RLIM_INFINITY else soft,
        "hard": None if hard == resource.RLIM_INFINITY else hard,
    }


def _default_routes() -> List[str]:
    """The interfaces of the best default route, and what these stand on (a VLAN's bond, its ports): the front end.

    IPv6's count where there is none of IPv4: switches announce one on each rail.
    """
    ways = [way for way in routes() if not (way["prefix"] or way["reject"] or way["interface"] in ("*", "lo"))]
    ways = [way for way in ways if way["family"] == ways[0]["family"]]
    best = min((way["metric"] for way in ways), default=0)
    found = [way["interface"] for way in ways if way["metric"] == best]
    for name in found:  # grows while it is walked
        lower = [entry[6:] for entry in listed("/sys/class/net/" + name) if entry.startswith("lower_")]
        found += [below for below in lower if below not in found]
    return sorted(set(found))


def _pci_without_driver() -> List[Dict[str, Optional[str]]]:
    """NICs on the PCI bus that can do RDMA (Mellanox/NVIDIA, AWS EFA), with the driver that is bound, if any."""
    found = []
    for address in listed("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + address
        vendor, device = first_line(base + "/vendor"), first_line(base + "/device") or ""
        kind = first_line(base + "/class") or ""
        network = kind.startswith("0x02")
        if not ((vendor == MELLANOX and network) or (vendor == AWS and device.startswith("0xefa"))):
            continue
        driver = link_name(base + "/driver") or None
        found.append({"bus_id": address, "vendor": vendor, "device": device, "driver": driver, "class": kind})
    return found
