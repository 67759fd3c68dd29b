"""Facts of collective runs: what the ranks of one host did, as the launcher on that host told it."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from nccl_doctor.facts.model import Fact

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
    stage: str = ""
    kind: str = ""
    text: str = ""
    missing: tuple[int, ...] | None = None
    limit_s: float = 0.0
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
    world: int = 0
    master: str = ""
    master_addr: str = ""
    master_port: int = 0
