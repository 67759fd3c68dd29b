"""The software a job would run with on a host (probe ``software``); read from files, nothing was imported."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from nccl_doctor.facts.model import Fact


class Python(msgspec.Struct, frozen=True):
    """The Python that was examined."""

    version: str
    executable: str
    prefix: str = ""


class Torch(msgspec.Struct, frozen=True):
    """The torch package this Python would import. ``cuda`` and ``hip`` are empty in a CPU-only build.

    ``nccl_link``: ``shared`` loads libnccl.so.2, ``built-in`` has NCCL inside libtorch_cuda.so (version not readable),
    ``none`` has no CUDA part, ``unknown`` could not be read.
    """

    path: str
    version: str
    cuda: str = ""
    hip: str = ""
    nccl_link: Literal["shared", "built-in", "none", "unknown"] = "unknown"


class NcclCopy(msgspec.Struct, frozen=True):
    """One libnccl on this host. ``found_by``: the loader's rule or place. ``wins``: the one torch would get."""

    path: str
    real_path: str
    version: str = ""  # empty: not readable
    cuda: str = ""  # the CUDA version it was built for
    found_by: str = ""
    loadable: bool = False
    wins: bool = False


class Plugin(msgspec.Struct, frozen=True):
    """A plugin NCCL would find by name. ``kind``: net, tuner, profiler, env, ..."""

    name: str
    kind: str
    path: str
    real_path: str


class Library(msgspec.Struct, frozen=True):
    """A user-space library of the driver and the version in its file name."""

    path: str
    version: str = ""


class Driver(msgspec.Struct, frozen=True):
    """The NVIDIA driver. ``version`` is that of the loaded kernel module, empty if none is loaded."""

    version: str = ""
    line: str = ""  # /proc/driver/nvidia/version, verbatim
    open: bool = False
    libraries: dict[str, Library] = {}
    gpus: int = 0  # that the driver serves
    pci_gpus: tuple[str, ...] = ()  # that are on the PCI bus, served or not


class System(msgspec.Struct, frozen=True):
    """Kernel release, C library, distribution."""

    kernel: str = ""
    glibc: str = ""
    distribution: str = ""
    architecture: str = ""


class Software(Fact, frozen=True):
    """Versions of everything between Python and the wire."""

    PROBE: ClassVar[str] = "software"
    python: Python
    distributions: dict[str, str]
    nccl: tuple[NcclCopy, ...]
    driver: Driver
    torch: Torch | None = None
    torch_wants_nccl: str = ""
    plugins: tuple[Plugin, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    cuda_toolkit: str = ""
    cudnn: str = ""
    ofed: dict[str, str] = msgspec.field(default_factory=dict)
    system: System = System()

    @property
    def winner(self) -> NcclCopy | None:
        """The libnccl that torch on this host would load; None if there is none, or torch has its own built in."""
        if self.torch is not None and self.torch.nccl_link in ("built-in", "none"):
            return None
        return next((copy for copy in self.nccl if copy.wins), None)

    @property
    def nccl_version(self) -> str:
        """The NCCL version that a job on this host would use; empty if that is not known."""
        return self.winner.version if self.winner else ""

    @property
    def installed_nccl(self) -> str:
        """The NCCL version a job would use, or where torch would use none (a CPU build), one that is installed."""
        installed = [copy.version for copy in self.nccl if copy.version]
        installed += [found for name, found in sorted(self.distributions.items()) if name.startswith("nvidia-nccl-cu")]
        return self.nccl_version or (installed[0] if installed else "")

    @property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA GPU is in this machine, with or without a working driver."""
        return bool(self.driver.pci_gpus or self.driver.gpus)
