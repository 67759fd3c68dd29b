"""Facts about InfiniBand, RoCE and EFA devices: what sysfs says, and what ibstat, ibv_devinfo and show_gids print."""

from __future__ import annotations

import functools
import math
from typing import Annotated, ClassVar

import msgspec

from nccl_doctor.facts.model import Amount, Count, Fact
from nccl_doctor.facts.system import Container

ETHERNET = "Ethernet"  # as sysfs names the link layer


class Gid(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a port's GID table. ``type`` is sysfs's text: ``IB/RoCE v1`` or ``RoCE v2``."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]  # the table is walked up to the last one
    gid: str
    type: str | None = None


class NetDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The Ethernet interface (or IPoIB) of an RDMA device."""

    name: str
    mtu: Count | None = None
    master: str | None = None


@functools.lru_cache(256)
def _gbps(rate: str) -> float | None:
    """The first word of sysfs's ``400 Gb/sec (4X NDR)``; a fleet has a handful of rates, and asks for them often."""
    try:
        value = float(rate.split()[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    """One port, in sysfs's words: ``state`` is ``4: ACTIVE``, ``rate`` is ``400 Gb/sec (4X NDR)``.

    ``counters_before`` was read ``counters_interval_s`` seconds before ``counters``.
    """

    port: Count
    state: str | None = None
    phys_state: str | None = None
    rate: str | None = None
    link_layer: str | None = None
    gids: tuple[Gid, ...] = ()
    counters: dict[str, Count] = {}
    counters_before: dict[str, Count] = {}
    counters_interval_s: Amount = 0.0

    @property
    def active(self) -> bool:
        """The port's state is ACTIVE: NCCL uses no other."""
        return (self.state or "").upper().endswith("ACTIVE")

    @property
    def linked(self) -> bool | None:
        """Whether the port has had a link since its counters began (the driver's start); None where they do not tell."""
        if any(self.counters.get(name) for name in ("link_downed", "port_rcv_packets")):
            return True
        return False if "port_rcv_packets" in self.counters else None

    @property
    def gbps(self) -> float | None:
        """The active rate in Gb/s, or None."""
        return _gbps(self.rate or "")


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One RDMA device."""

    name: str
    fw_ver: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    node_guid: str | None = None
    bus_id: str | None = None
    slot: str | None = None  # the platform's name of the PCIe slot
    path: tuple[str, ...] = ()
    pci_device: str | None = None
    pci_vendor: str | None = None
    netdevs: tuple[NetDevice, ...] = ()
    ports: tuple[Port, ...] = ()
    source: str = "sysfs"  # or the tool whose word stands in for it, see infiniband_witness


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a further witness printed."""

    outcome: str
    detail: str = ""
    text: str = ""


class PciNic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A NIC on the bus that can do RDMA, and the driver bound to it."""

    bus_id: str
    vendor: str | None = None
    device: str | None = None
    driver: str | None = None
    kind: str | None = msgspec.field(default=None, name="class")  # PCI class: 0x0207.. InfiniBand, 0x0200.. Ethernet


class Memlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """RLIMIT_MEMLOCK in bytes; None is unlimited."""

    soft: int | None = None
    hard: int | None = None


class InfinibandFact(Fact, frozen=True, omit_defaults=True, dict=True):
    """All RDMA devices of one host. No device at all is a fact, too."""

    PROBE: ClassVar[str] = "infiniband"

    devices: tuple[Device, ...]
    uverbs: tuple[str, ...] = ()
    uverbs_expected: tuple[str, ...] = ()
    memlock_bytes: Memlock = Memlock()
    container: Container = Container()  # who is bound by that limit
    uptime_s: Amount | None = None
    default_route_devices: tuple[str, ...] = ()
    pci_rdma: tuple[PciNic, ...] = ()
    witnesses: dict[str, Tool] = msgspec.field(default_factory=dict)

    @functools.cached_property
    def ports_but_front_end(self) -> tuple[tuple[Device, Port], ...]:
        """All ports in PCI order, but those of an interface with a default route: the front end, whatever its card."""
        return tuple(
            (device, port)
            for device in sorted(self.devices, key=lambda item: (item.path, item.bus_id or "", item.name))
            for port in device.ports
            if not (port.link_layer == ETHERNET and self.carries_default_route(device))
        )

    def carries_default_route(self, device: Device) -> bool:
        """Whether a default route leads through an interface of this device, or through the bond it is a port of."""
        routed = self.default_route_devices
        return any(interface.name in routed or interface.master in routed for interface in device.netdevs)

    def completed(self) -> InfinibandFact:
        """Where sysfs shows no device: with those that ibstat, ibv_devinfo and show_gids list."""
        if self.devices or not self.witnesses:
            return self
        from nccl_doctor.facts.infiniband_witness import completed

        return completed(self)
