"""Topology: nvidia-smi's matrix, and what sysfs says of PCI paths, NUMA nodes, ACS, the IOMMU and kernel modules."""

import os
import platform
import struct
from typing import Any, Dict, List, Optional, Set

from nccl_doctor.agent.gpu_holders import gpu_names
from nccl_doctor.agent.pci import BRIDGES, DISPLAYS, MELLANOX, NVIDIA, pci_function, pci_path
from nccl_doctor.agent.probing import first_line, is_loaded, link_name, listed, path, probe, read_text, run_command

SMI_LIMIT_S = 15.0
_MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "gdrdrv",
    "mlx5_core",
    "mlx5_ib",
    "ib_uverbs",
    "ib_core",
    "ib_umad",
    "rdma_ucm",
    "efa",
    "nvidia_fs",
)
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECT = 0x000C  # P2P request redirect and completion redirect of the ACS control register


@probe("topology", "topology", limit_s=25.0)
def topology(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The matrix text with how it was got, and the PCI devices that matter to NCCL: GPUs, RDMA NICs, NVSwitches."""
    devices = _devices()
    data: Dict[str, Any] = {
        "devices": devices,
        "acs": _acs(devices),
        "iommu": _iommu(devices),
        "modules": {name: is_loaded(name) for name in _MODULES},
        "kernel": (read_text("/proc/sys/kernel/osrelease", 256) or platform.release()).strip(),
        "boot_options": _boot_options(),
        "hypervisor": _hypervisor(),
        "cpu": _cpu(),
    }
    if not (gpu_names() or any(device["kind"] == "gpu" for device in devices)):
        data["matrix"] = {"outcome": "not-run", "detail": "no NVIDIA GPU on this host", "text": ""}
        return data
    result = run_command(["nvidia-smi", "topo", "-m"], float(arguments.get("smi_limit_s", SMI_LIMIT_S)), 1 << 20)
    data["matrix"] = {"outcome": result.outcome, "detail": result.detail, "text": result.stdout}
    return data


def _verbs_names() -> Dict[str, List[str]]:
    """PCI address -> names of its RDMA devices."""
    names: Dict[str, List[str]] = {}
    for name in listed("/sys/class/infiniband"):
        address = os.path.basename(os.path.realpath(path("/sys/class/infiniband/%s/device" % name)))
        names.setdefault(address, []).append(name)
    return names


def _kind(vendor: Optional[str], kind: str, address: str, verbs: Dict[str, List[str]]) -> Optional[str]:
    if vendor == NVIDIA and kind.startswith(DISPLAYS):
        return "gpu"
    if vendor == NVIDIA and kind.startswith(BRIDGES):
        return "nvswitch"
    if address in verbs or (vendor == MELLANOX and kind.startswith("0x02")):
        return "nic"
    return None


def _devices() -> List[Dict[str, Any]]:
    verbs = _verbs_names()
    found = []
    for address in listed("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + address
        vendor = first_line(base + "/vendor")
        kind = _kind(vendor, first_line(base + "/class") or "", address, verbs)
        if kind is None:
            continue
        found.append(
            {
                **pci_function(address),
                "kind": kind,
                "vendor": vendor,
                "verbs": verbs.get(address, []),
                "netdevs": listed(base + "/net"),
                "cpus": first_line(base + "/local_cpulist"),
                "path": pci_path(base),
            }
        )
    return found


def _acs(devices: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Ports of PCIe switches above GPUs and NICs whose ACS control redirects peer-to-peer requests to the root complex.

    Needs root to read; a path begins with the root bus and the root port, whose redirect changes nothing.
    """
    above = {step for device in devices if device["kind"] in ("gpu", "nic") for step in device["path"][2:-1]}
    redirecting: List[Dict[str, str]] = []
    outcome = "ok"
    for address in sorted(above):
        control = acs_control(_config("/sys/bus/pci/devices/%s/config" % address))
        if control is None:
            outcome = "not-permitted"
        elif control & _ACS_REDIRECT:
            redirecting.append({"bus_id": address.lower(), "control": "0x%04x" % control})
    return {"outcome": outcome, "redirecting": redirecting}


def _config(absolute: str) -> bytes:
    try:
        with open(path(absolute), "rb") as stream:
            return stream.read(4096)
    except OSError:
        return b""


def acs_control(config: bytes) -> Optional[int]:
    """The ACS control register; 0 where the device has no ACS; None where extended configuration is not readable."""
    if len(config) < 0x104:
        return None
    offset = 0x100
    seen: Set[int] = set()
    while offset >= 0x100 and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        header = struct.unpack_from("<I", config, offset)[0]
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20 & 0xFFC
    return 0


def _iommu(devices: List[Dict[str, Any]]) -> Dict[str, Any]:
    """IOMMU groups: how many there are, and the type (identity, DMA, DMA-FQ) of those that hold a GPU or NIC."""
    groups = listed("/sys/kernel/iommu_groups")
    types: Dict[str, str] = {}
    for device in devices:
        group = link_name("/sys/bus/pci/devices/%s/iommu_group" % device["bus_id"])
        if group:
            types[device["bus_id"]] = first_line("/sys/kernel/iommu_groups/%s/type" % group) or "unknown"
    return {"groups": len(groups), "types": types}


def _boot_options() -> List[str]:
    """The boot options about the IOMMU, PCI and NUMA; the rest of the command line is nobody's business."""
    words = (read_text("/proc/cmdline", 8192) or "").split()
    return [word for word in words if "iommu" in word or word.startswith(("pci", "numa", "vfio"))]


def _hypervisor() -> Optional[str]:
    """The sign that this is a virtual machine: the CPU's hypervisor flag, with the vendor where DMI tells it."""
    for line in (read_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            if " hypervisor" not in line:
                return None
            return first_line("/sys/class/dmi/id/sys_vendor") or "hypervisor"
    return None


def _cpu() -> Dict[str, Optional[str]]:
    found: Dict[str, Optional[str]] = {"vendor": None, "model": None, "architecture": platform.machine()}
    for line in (read_text("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "vendor_id" and found["vendor"] is None:
            found["vendor"] = value.strip()
        elif name.strip() == "model name" and found["model"] is None:
            found["model"] = value.strip()
    return found
