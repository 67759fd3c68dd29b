"""What ``env recommend`` is asked and what it answers: the needs of each host, and the advice for all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from nccl_doctor.env import hosts as fleet
from nccl_doctor.env import knowledge, lint, nccl_conf
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.env.gid import GidEntry
from nccl_doctor.env.interface_advice import Station
from nccl_doctor.env.socket_interface import needs_resolver
from nccl_doctor.env.versions import Version
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.findings.model import EnvAdvice


class Purpose(enum.Enum):
    """What the set is for: an ordinary run, or finding out why a job hangs."""

    RUN = "run"
    HANG = "hang"


class FabricPort(msgspec.Struct, frozen=True):
    """One RDMA port. ``rail``: it belongs to the training network, not to the front end. ``gbps`` None: unknown."""

    device: str
    port: int
    active: bool
    ethernet: bool
    rail: bool
    gbps: float | None = None
    efa: bool = False
    default_route: bool = False
    gids: tuple[GidEntry, ...] = ()

    @property
    def label(self) -> str:
        """How it is quoted: ``mlx5_0:1 (InfiniBand, 400 Gb/s)``."""
        kind = "EFA" if self.efa else "RoCE" if self.ethernet else "InfiniBand"
        rate = f", {self.gbps:g} Gb/s" if self.gbps else ""
        return f"{self.device}:{self.port} ({kind}{rate})"


class HostNeeds(msgspec.Struct, frozen=True):
    """What is known of one host, as far as it bears on variables. None and empty: not known."""

    host: str
    interfaces: Interfaces | None = None
    own_addresses: tuple[str, ...] | None = None  # what its own name resolves to
    ports: tuple[FabricPort, ...] | None = None
    nccl_version: str = ""
    torch_version: str = ""
    net_plugins: tuple[str, ...] = ()
    container: bool = False
    shm_bytes: int | None = None
    memlock_bytes: int | None = None  # the limit on locked memory where it is too small for RDMA
    environment: Mapping[str, str] = {}
    job_environment: Mapping[str, str] = {}  # what the job will be started with: it wins
    rdma: bool = False  # it has an RDMA device
    devices: lint.Devices = lint.Devices()

    @property
    def version(self) -> Version:
        """The NCCL release to judge by; the newest whose rules are known if none was found."""
        return knowledge.nccl_release(self.nccl_version)

    @property
    def layers(self) -> list[tuple[str, tuple[Assignment, ...]]]:
        """What a job there sees set, by source, the one that wins first."""
        return fleet.layers_of("", self.environment, self.interfaces, self.nccl_version, self.job_environment)

    @property
    def station(self) -> Station | None:
        """The host as far as its interface choice goes; None where that is not known."""
        if self.interfaces is None:
            return None
        files = self.interfaces.conf_files
        settings = nccl_conf.effective(self.environment, files, self.version, self.job_environment)
        comm_id = settings.get("NCCL_COMM_ID")
        if comm_id is not None and needs_resolver(comm_id.value):
            return None
        return Station(self.interfaces, self.version, settings, self.rdma)


class Line(msgspec.Struct, frozen=True):
    """One variable to set or to remove. ``fact`` is the quoted fact that calls for it."""

    advice: EnvAdvice
    confidence: float
    fact: str


class Left(msgspec.Struct, frozen=True):
    """A variable that people set and that is deliberately left alone here, with the reason."""

    name: str
    why: str


class Note(msgspec.Struct, frozen=True):
    """What is needed and is no variable: a mount option, a limit, a line of code. ``command`` can be pasted."""

    text: str
    command: str = ""


class Advice(msgspec.Struct, frozen=True):
    """The recommendation for a set of hosts. ``unknown``: facts that were missing, so that nothing was decided."""

    hosts: tuple[str, ...]
    purpose: Purpose
    lines: tuple[Line, ...]
    left: tuple[Left, ...]
    notes: tuple[Note, ...]
    unknown: tuple[str, ...]
    judged_for: str


class Draft:
    """A recommendation while it is drawn up: each part adds its lines, notes, what it leaves alone and what it lacks."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.left: list[Left] = []
        self.notes: list[Note] = []
        self.unknown: list[str] = []

    def add(self, advice: EnvAdvice, confidence: float, fact: str) -> None:
        self.lines.append(Line(advice, confidence, fact))

    def leave(self, name: str, why: str) -> None:
        self.left.append(Left(name, why))

    def note(self, text: str, command: str = "") -> None:
        self.notes.append(Note(text, command))


def some(names: Iterable[str]) -> str:
    """The first of these names, each once, and how many more there are."""
    return few(list(dict.fromkeys(names)))
