"""Facts about topology: the matrix as nvidia-smi prints it, PCI paths, ACS, IOMMU and modules from sysfs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nccl_doctor.facts.model import Fact


class MatrixText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ``nvidia-smi topo -m`` gave. Parse ``text`` with :func:`nccl_doctor.facts.topology_matrix.parse`."""

    outcome: str
    detail: str = ""
    text: str = ""


class PciDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU, RDMA NIC or NVSwitch: its PCI path from the root complex down, and the names it goes by."""

    bus_id: str
    kind: str  # gpu, nic, nvswitch
    verbs: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    numa_node: int | None = None
    cpus: str | None = None
    path: tuple[str, ...] = ()
    link_width: str | None = None
    link_width_max: str | None = None


class AcsBridge(msgspec.Struct, frozen=True):
    """A PCI bridge whose ACS control register redirects peer-to-peer traffic."""

    bus_id: str
    control: str


class Acs(msgspec.Struct, frozen=True, omit_defaults=True):
    """ACS on the PCI bridges; ``outcome`` not-permitted: of some it is not known, as reading it needs root."""

    outcome: str
    redirecting: tuple[AcsBridge, ...]


class Iommu(msgspec.Struct, frozen=True, omit_defaults=True):
    """The type of each GPU's and NIC's IOMMU group, by PCI address."""

    types: dict[str, str] = {}


class TopologyFact(Fact, frozen=True, omit_defaults=True):
    """How the devices of one host hang together."""

    PROBE: ClassVar[str] = "topology"

    matrix: MatrixText
    devices: tuple[PciDevice, ...] = ()
    acs: Acs = Acs("not-run", ())
    iommu: Iommu = Iommu()
    modules: dict[str, bool] = msgspec.field(default_factory=dict)
    kernel: str = ""
    boot_options: tuple[str, ...] = ()
    hypervisor: str | None = None
