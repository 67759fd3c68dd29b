"""What sysfs says of PCI functions: which of them are GPUs, their links, their slots, and the way down to them."""

from typing import Any, Dict, List, Optional, Tuple

from nccl_doctor.agent.probing import first_line, link_name, listed, real, whole_number

NVIDIA, MELLANOX, AWS = "0x10de", "0x15b3", "0x1d0f"  # PCI vendors
DISPLAYS = ("0x0300", "0x0302")  # PCI classes of GPUs: display controller, 3D controller
BRIDGES = ("0x0680",)  # and of NVSwitches


def pci_function(address: str) -> Dict[str, Any]:
    """What sysfs says of a PCI function whatever it is: address, device id, NUMA node, link as it is and could be."""
    base = "/sys/bus/pci/devices/" + address
    return {
        "bus_id": address.lower(),
        "device": first_line(base + "/device"),
        "numa_node": whole_number(first_line(base + "/numa_node")),
        "link_speed": first_line(base + "/current_link_speed"),
        "link_speed_max": first_line(base + "/max_link_speed"),
        "link_width": first_line(base + "/current_link_width"),
        "link_width_max": first_line(base + "/max_link_width"),
    }


def nvidia_devices(classes: Tuple[str, ...]) -> List[Dict[str, Any]]:
    """NVIDIA's PCI functions whose class begins with one of ``classes``, with link and NUMA node, by address."""
    found = []
    for address in listed("/sys/bus/pci/devices"):
        base = "/sys/bus/pci/devices/" + address
        if first_line(base + "/vendor") != NVIDIA:
            continue
        kind = first_line(base + "/class") or ""
        if not kind.startswith(classes):
            continue
        found.append(
            {
                **pci_function(address),
                "class": kind,
                "driver": link_name(base + "/driver") or None,
                "slot": slot_of(address),
            }
        )
    return found


def slot_of(address: str) -> Optional[str]:
    """The name of the physical slot that holds this address, where the platform names its slots."""
    stem = address.rsplit(".", 1)[0]
    for name in listed("/sys/bus/pci/slots"):
        if first_line("/sys/bus/pci/slots/%s/address" % name) == stem:
            return name
    return None


def pci_path(absolute: str) -> List[str]:
    """The PCI addresses from the root complex down to a device, as sysfs nests them (``pci0000:15`` first)."""
    parts = real(absolute).split("/")
    start = next((index for index, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return [part for part in parts[start:] if part.startswith("pci") or part.count(":") == 2]
