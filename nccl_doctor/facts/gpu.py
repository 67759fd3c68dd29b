"""Facts about GPUs: what the agent's ``gpu`` probe collected. None means not supported, not permitted or not known."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import msgspec

from nccl_doctor.facts.model import Amount, Count, Fact


class NvLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """One NVLink of a GPU. The counters are totals since the driver was loaded."""

    link: Count
    active: bool
    remote: str | None = None  # PCI address of the other end
    remote_type: str | None = None  # gpu, switch, ibmnpu, unknown
    replay: Count | None = None
    recovery: Count | None = None
    crc_flit: Count | None = None
    crc_data: Count | None = None
    recovery_failed: Count | None = None  # NVLink 5 has these two instead of the four above
    integrity: Count | None = None


class Fabric(msgspec.Struct, frozen=True, omit_defaults=True):
    """Registration with the NVSwitch fabric. ``state``: not-supported, not-started, in-progress, completed."""

    state: str
    status: int = 0  # an NVML return code, 0 is success; meaningful when completed
    cluster: str = ""  # 32 hex digits; all zero on one node
    degraded_bandwidth: bool | None = None
    route_recovery: bool | None = None  # under way
    route_unhealthy: bool | None = None
    access_timeout: bool | None = None  # its recovery is under way
    mistake: str | None = None  # what is configured wrongly, in words


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process on a GPU as the driver lists it; ``name`` and ``uid`` are None where /proc does not show it."""

    pid: int
    kind: str = "compute"
    memory_bytes: int | None = None
    name: str | None = None
    uid: int | None = None


class GpuDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as NVML describes it. Units are in the names; temperatures in degrees Celsius."""

    index: int
    bus_id: str | None = None
    uuid: str | None = None
    name: str | None = None
    serial: str | None = None
    vbios: str | None = None
    inforom: str | None = None
    gsp_firmware: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: Count | None = None
    memory_used_bytes: Count | None = None
    memory_numa_node: int | None = None  # -1, or the host's NUMA node that the GPU's memory is (GH200, GB200)
    utilization_percent: Count | None = None
    pcie_gen: Count | None = None
    pcie_gen_max: Count | None = None  # what GPU and slot can do together
    pcie_gen_gpu_max: Count | None = None  # what the GPU alone can do
    pcie_width: Count | None = None
    pcie_width_max: Count | None = None
    pcie_replays: Count | None = None
    temperature_c: Count | None = None
    temperature_slowdown_c: Count | None = None
    temperature_memory_c: Count | None = None
    temperature_memory_max_c: Count | None = None
    temperature_margin_c: int | None = None  # to the nearest slowdown
    power_w: Amount | None = None
    power_limit_w: Amount | None = None
    power_default_w: Amount | None = None
    clock_sm_mhz: Count | None = None
    clock_sm_max_mhz: Count | None = None
    clock_sm_application_mhz: Count | None = None
    clock_memory_max_mhz: Count | None = None
    performance_state: Count | None = None
    throttle_reasons: Count | None = None  # bit mask, see rules/nvidia.py
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    ecc_mode: bool | None = None
    ecc_corrected_volatile: Count | None = None
    ecc_uncorrected_volatile: Count | None = None
    ecc_uncorrected_aggregate: Count | None = None
    retired_pages_pending: bool | None = None
    remapped_correctable: Count | None = None
    remapped_uncorrectable: Count | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    sram_threshold_exceeded: bool | None = None  # the field diagnostic's; reading it needs root
    recovery_action: str | None = None
    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    fabric: Fabric | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    not_supported: tuple[str, ...] = ()
    not_permitted: tuple[str, ...] = ()
    errors: dict[str, str] = {}

    @property
    def label(self) -> str:
        """How a finding names it: index and PCI address."""
        return f"{self.index} ({self.bus_id})" if self.bus_id else str(self.index)


class GpuPair(msgspec.Struct, frozen=True, omit_defaults=True):
    """P2P status of two GPUs (OK, CNS, GNS, TNS, DR, NS, U) and their nearest common ancestor (PIX ... SYS)."""

    a: int
    b: int
    read: str | None = None
    write: str | None = None
    nvlink: str | None = None
    level: str | None = None
    errors: dict[str, str] = {}


class Witness(msgspec.Struct, frozen=True, omit_defaults=True):
    """How NVML or nvidia-smi answered. ``call`` and ``code`` name NVML's failing call and its error code."""

    outcome: str
    detail: str = ""
    seconds: float = 0.0
    call: str = ""
    code: int | None = None
    gpus: tuple[dict[str, str], ...] = ()
    lines: tuple[str, ...] = ()


class PciGpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """An NVIDIA display-class PCI function, from sysfs."""

    bus_id: str
    device: str | None = None
    driver: str | None = None
    slot: str | None = None
    kind: str | None = msgspec.field(default=None, name="class")  # PCI class: 0x0300.. display, 0x0302.. 3D controller


class System(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NVML says of the driver. ``count`` is the number of GPUs NVML sees."""

    driver: str | None = None
    library: str | None = None
    cuda_driver: str | None = None
    count: Count | None = None


class FabricManager(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fabric manager as this host (or container) sees it; ``running`` None: other users' processes are hidden."""

    running: bool | None = None
    version: str | None = None


class GpuFact(Fact, frozen=True, omit_defaults=True, dict=True):
    """Four witnesses of a host's GPUs: NVML (``gpus``), nvidia-smi (``smi``), /proc/driver/nvidia, the PCI bus."""

    PROBE: ClassVar[str] = "gpu"

    nvml: Witness
    smi: Witness
    system: System = System()
    gpus: tuple[GpuDevice, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    pci_gpus: tuple[PciGpu, ...] = ()
    proc_gpus: tuple[dict[str, Any], ...] = ()
    nvswitches: int = 0
    module_version: str | None = None
    module_flavor: str | None = None
    device_nodes: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    container: str | None = None
    fabric_manager: FabricManager = FabricManager()
    imex_channels: tuple[str, ...] = ()

    @functools.cached_property
    def answering(self) -> tuple[GpuDevice, ...]:
        """The GPUs that NVML gave a handle for: one without is lost, or not ours to see."""
        return tuple(
            gpu
            for gpu in self.gpus
            if "handle" not in gpu.errors and "handle" not in gpu.not_permitted and "handle" not in gpu.not_supported
        )

    @property
    def has_hardware(self) -> bool:
        """A GPU is on the bus or known to the driver (an installed library alone is no GPU)."""
        return bool(self.pci_gpus or self.proc_gpus or self.gpus or any(_is_gpu_node(n) for n in self.device_nodes))

    @property
    def gone(self) -> str:
        """What tells that there were GPUs, although none is seen; empty where nothing does.

        The kernel module does not load without a GPU or an NVSwitch (``nvidia_init_module`` gives ENODEV: kernel-open/nvidia/nv.c
        of open-gpu-kernel-modules, 2026-11-23); a virtual machine may have the NVSwitches alone.
        """
        if self.has_hardware or not self.module_version or self.nvswitches:
            return ""
        said = f" ({self.nvml.detail})" if self.nvml.detail else ""
        return (
            f"the nvidia kernel module {self.module_version} is loaded, which takes a GPU, and none is seen now{said}"
        )

    @property
    def surely_contained(self) -> bool:
        """A sure sign says that this is a container: ``pid 1 is ...`` is a weak one."""
        return self.container is not None and not self.container.startswith("pid 1")

    def count(self) -> tuple[int | None, str]:
        """How many GPUs NVML sees, and in one sentence why none (or that nothing can be said)."""
        if self.nvml.outcome == "not-run":
            return 0, self.nvml.detail
        if self.system.count is None:
            return None, self.nvml.detail or self.nvml.outcome
        return self.system.count, "" if self.system.count else "NVML answers, and lists no GPU"


def _is_gpu_node(name: str) -> bool:
    return name.startswith("nvidia") and name[6:].isdecimal()
