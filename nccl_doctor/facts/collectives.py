"""Facts of collective runs: what the ranks of one host did, as the launcher on that host told it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from nccl_doctor.facts.model import Count, Fact

MOST_RANKS = 1 << 20  # what is beyond is no world size, and rules that count through it would not end
Positive = Annotated[float, msgspec.Meta(gt=0)]

# Bus bandwidth over algorithm bandwidth for n ranks, by collective (nccl-tests, doc/PERFORMANCE.md).
BUS_FACTORS = {
    "allreduce": "2(n-1)/n",
    "allgather": "(n-1)/n",
    "reducescatter": "(n-1)/n",
    "alltoall": "(n-1)/n",
    "gather": "(n-1)/n",
    "scatter": "(n-1)/n",
    "broadcast": "1",
    "reduce": "1",
    "sendrecv": "1",
}


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw; 0 for one rank, which sends nothing, where the factor depends on n. ``KeyError`` if unknown."""
    share = (ranks - 1) / ranks
    return {"2(n-1)/n": 2.0 * share, "(n-1)/n": share, "1": 1.0}[BUS_FACTORS[collective]]


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stage a rank was in when it was last heard of; ``iterations`` were finished in a timed loop."""

    stage: str = "spawn"
    detail: str = ""
    step_s: float = 0.0
    iterations: int | None = None

    @property
    def words(self) -> str:
        """``measure (allreduce 1048576 B in place, 37 iterations done)``."""
        parts = [self.detail] if self.detail else []
        if self.iterations is not None:
            parts.append(f"{self.iterations} iterations done")
        return self.stage + (f" ({', '.join(parts)})" if parts else "")


class RankError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a rank said that it failed: ``kind`` is a word of the worker or an exception's name."""

    event: str
    kind: str = ""
    text: str = ""
    missing: tuple[int, ...] | None = None
    dialling: tuple[str, ...] = ()  # address:port of connections that nobody answered


class RankEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one rank ended. ``signal`` only where it was not us who sent it; ``killed`` says why we did.

    ``state`` is the kernel's (``T`` stopped, ``D`` uninterruptible); ``output`` stderr and NCCL's log, its beginning
    and end; ``stack`` by py-spy.
    """

    rank: int
    pid: int = 0
    where: Where = Where()
    finished: bool = False
    exit: int | None = None
    signal: str = ""
    killed: str = ""
    state: str = ""
    error: RankError | None = None
    stack: str = ""
    output: str = ""
    output_cut: int = 0


class Event(msgspec.Struct, frozen=True):
    """What a rank told while it measured."""

    KIND: ClassVar[str]


class Size(Event, frozen=True):
    """One size of one collective: each rank's mean time, and how many elements came out wrong there.

    ``wrong`` None: not compared with what they must be.
    """

    KIND: ClassVar[str] = "size"
    collective: str
    size: Annotated[int, msgspec.Meta(gt=0)]  # bytes
    rank_means_us: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]
    wrong: tuple[Count, ...] | None = None


class HostPair(Event, frozen=True):
    """``size`` bytes, exchanged by two ranks of different hosts, each way at the same time."""

    KIND: ClassVar[str] = "link"
    first: Count
    second: Count
    size: Count
    seconds: Positive


class GemmEnd(msgspec.Struct, frozen=True):
    """One rank's matrix products; ``wrong`` None: not compared."""

    wrong: Count | None = None


class Gemm(Event, frozen=True):
    """Matrix products of ``edge`` x ``edge`` on every rank."""

    KIND: ClassVar[str] = "gemm"
    edge: Count
    ranks: tuple[GemmEnd, ...]


class Connection(msgspec.Struct, frozen=True):
    """Connections of a rank through one interface; None where none of the host's has that address."""

    interface: str | None = None


class Card(msgspec.Struct, frozen=True):
    """An interface in use, and the line rate that its driver claims."""

    physical: bool = False
    speed_mbps: float | None = None


class Path(Event, frozen=True):
    """What a rank's data went over."""

    KIND: ClassVar[str] = "path"
    connections: tuple[Connection, ...]
    interfaces: dict[str, Card]


E = TypeVar("E", bound=Event)


class Collectives(Fact, frozen=True, omit_defaults=True):
    """One host's part of a run. ``events`` hold what rank 0 measured (world, size, skip, link) and each rank's path."""

    PROBE: ClassVar[str] = "collectives"

    host: str
    python: str = ""
    seconds: float = 0.0
    ranks: tuple[RankEnd, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    backend: str = ""
    backend_why: str = ""
    world: Annotated[int, msgspec.Meta(ge=0, le=MOST_RANKS)] = 0
    master: str = ""
    master_addr: str = ""
    master_port: int = 0

    def told(self, kind: type[E]) -> Iterator[E]:
        """The events of this kind, in their order; ``msgspec.ValidationError`` where one is none."""
        for event in self.events:
            if event.get("event") == kind.KIND:
                yield msgspec.convert(event, kind)

    def completed(self) -> Collectives:
        """The same; ``ValueError`` or ``msgspec.ValidationError`` where an event cannot be what it is told as."""
        for kind in (HostPair, Gemm, Path):
            list(self.told(kind))
        for event in self.told(Size):
            if event.collective not in BUS_FACTORS:
                raise ValueError(f"{event.collective!r} is no collective")
        return self
