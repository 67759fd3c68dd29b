"""What became of a network interface or RDMA device that is not in this network namespace any more."""

import os
import re
from typing import Dict, Tuple

from nccl_doctor.agent.probing import first_line, link, link_name, listed, path, readable, real

_OWN_SYS = re.compile(r"^\S+ \S+ \S+ \S+ /sys .* - sysfs ", re.M)  # nothing else is walked into: it may hang


def directory_of(nic: str) -> str:
    """Where sysfs has an interface (``eth0``) or the device of an RDMA port (``mlx5_0/1``)."""
    device, slash, _ = nic.partition("/")
    return ("/sys/class/infiniband/" if slash else "/sys/class/net/") + device


def device_of(nic: str) -> str:
    """Where sysfs has the device behind it, which stays where it is moved or renamed; empty where it has none."""
    directory = directory_of(nic)
    return real(directory + "/device") if link(directory + "/device") else ""


def whereabouts(nic: str, device: str) -> Dict[str, str]:
    """``state`` and its proof: ``moved`` to another namespace, ``lost`` with its device or driver, else ``unknown``.

    ``device``: what was behind it. A driver that is still bound may have taken it down, or it is in a namespace that is not
    seen from here. What has no device (a bridge, a tunnel) is lost where no namespace has one of its name, which may be another.
    """
    name = os.path.basename(device)
    if holder := _holder(directory_of(nic), name):
        which = "it" if device else "one of its name"
        proof = "%s is in the network namespace of process %s (%s)" % (which, *holder)
        return {"state": "moved" if device else "unknown", "proof": proof}
    if not device:
        return {"state": "lost", "proof": "not in /sys"}
    if not os.path.exists(path(device)):
        return {"state": "lost", "proof": "its device %s is gone" % name}
    driver = link_name(device + "/driver")
    if not driver:
        return {"state": "lost", "proof": "its device %s has no driver" % name}
    return {"state": "unknown", "proof": "its device %s still has its driver %s" % (name, driver)}


def _holder(directory: str, device: str) -> Tuple[str, ...]:
    """A process in whose network namespace it is, and that one's name; empty where there is none to be seen.

    A container's own ``/sys`` shows what is in its namespace, and is seen from outside beneath the root of its processes.
    """
    kind, name = os.path.split(directory)
    seen = {"", link("/proc/self/ns/net")}
    for pid in filter(str.isdigit, listed("/proc")):
        namespace = link("/proc/%s/ns/net" % pid)
        if namespace in seen or not _OWN_SYS.search(readable("/proc/%s/mountinfo" % pid)):
            continue
        seen.add(namespace)
        inside = "/proc/%s/root%s" % (pid, kind)
        for other in listed(inside):
            behind = link_name("%s/%s/device" % (inside, other))
            if behind == device if device else other == name:
                return pid, first_line("/proc/%s/comm" % pid) or "?"
    return ()
