"""Facts from the kernel log: the lines the agent kept, and the Xid and SXid events in them."""

from __future__ import annotations

import re
from typing import ClassVar

import msgspec

from nccl_doctor.facts.model import Fact

# NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.   (older: no "pid=" part)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})[^)]{0,40}\): ([0-9]{1,4})(?:,| |$)(.{0,400})")
# nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): ([0-9]{1,6})(?:,| |$)(.{0,400})")

# The driver writes up to three lines for one SXid: the event, then these two.
_SXID_DETAILS = ("Severity ", "Data {")


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line and the second since boot at which it was written (None where the source does not tell)."""

    text: str
    at_s: float | None = None


class KernelLogFact(Fact, frozen=True, omit_defaults=True):
    """The lines about GPUs, RDMA devices, PCIe and killed processes, oldest first; ``left_off``: how many more there are."""

    PROBE: ClassVar[str] = "kernel_log"

    source: str
    lines: tuple[LogLine, ...]
    total: int = 0
    first_s: float | None = None
    uptime_s: float | None = None
    left_off: int = 0


class XidEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Xid (``switch`` false) or SXid: its number, the PCI address as sysfs writes it, and the line it stands in."""

    number: int
    bus_id: str
    line: LogLine
    switch: bool = False


def xid_events(lines: tuple[LogLine, ...]) -> list[XidEvent]:
    """The Xid and SXid events among the lines, in order."""
    found = []
    for line in lines:
        text = line.text[:1024]
        if "Xid" not in text:
            continue
        switch = "SXid" in text
        match = (_SXID if switch else _XID).search(text)
        if match and not (switch and match.group(3).lstrip().startswith(_SXID_DETAILS)):
            found.append(XidEvent(int(match.group(2)), _address(match.group(1)), line, switch))
    return found


def _address(text: str) -> str:
    """``0000:3B:00`` (a Xid line names no function) becomes ``0000:3b:00.0``."""
    address = text.lower().strip(".:")
    if address.count(":") == 1:
        address = "0000:" + address
    return address if "." in address else address + ".0"
