"""Whether this process runs in a container, by what signs, and what it may do in it."""

import os
import re
from typing import Any, Dict, List, Optional

from nccl_doctor.agent.probing import first_line, path, readable

_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
# Variables that only say in what kind of container this is.
_VARIABLES = (
    "KUBERNETES_SERVICE_HOST",
    "SINGULARITY_NAME",
    "SINGULARITY_CONTAINER",
    "APPTAINER_NAME",
    "APPTAINER_CONTAINER",
    "ENROOT_ROOTFS",
    "container",
    "PODMAN_VERSION",
)

GVISOR = "gVisor"
# What every gVisor says of its kernel's build; the release before it was 4.4.0, and is 4.19.0-gvisor since April 2026
# (google/gvisor, pkg/sentry/kernel/version/version.go, ee08a593a).
_GVISOR_BUILD = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
_CONTAINER_WORDS = re.compile(r"docker|kubepods|libpod|lxc|containerd|containers/storage|enroot|apptainer|singularity")
_INITS = ("systemd", "init", "runit", "s6-svscan", "openrc-init", "dinit", "shepherd", "finit", "busybox")


def container() -> Dict[str, Any]:
    """The signs that this is a container, each with where it was seen, and what this process may do in it."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", readable("/proc/self/status"), re.M)
    return {
        "hints": _signs(),
        "capabilities": capabilities.group(1) if capabilities else "",
        "user_namespace": _is_mapped(readable("/proc/self/uid_map")),
    }


def _is_mapped(uid_map: str) -> Optional[bool]:
    """Whether users are mapped, as in a user namespace of one's own; None where the kernel does not tell."""
    return uid_map.split() != ["0", "0", "4294967295"] if uid_map else None


def in_container() -> Optional[str]:
    """The sign by which this process runs in a container, or None. ``pid 1 is ...`` is a weak sign, the others sure."""
    for sign in _signs():
        return sign
    first = first_line("/proc/1/comm")
    return "pid 1 is %s" % first if first and first not in _INITS else None


def _signs() -> List[str]:
    """All sure signs. A login by ssh has no variables of its container, and cgroups of version 2 no name of it: then its mounts tell."""
    signs = [GVISOR] if _GVISOR_BUILD in (first_line("/proc/version") or "") else []
    signs += [absolute for absolute in _FILES if os.path.exists(path(absolute))]
    signs += ["$" + name for name in _VARIABLES if os.environ.get(name)]
    roots = [line for line in readable("/proc/self/mountinfo", 1 << 20).splitlines() if line.split()[4:5] == ["/"]]
    for name, text in (("/proc/1/cgroup", readable("/proc/1/cgroup")), ("/proc/self/mountinfo", "\n".join(roots))):
        word = _CONTAINER_WORDS.search(text)
        if word:
            signs.append("%s: %s" % (name, word.group()))
    return signs
