"""The collectives as they are named and counted: bus-bandwidth factors, names in nccl-tests, aliases."""

from __future__ import annotations

import difflib

import msgspec

from nccl_doctor.agent.collective.operations import OPERATIONS


class Collective(msgspec.Struct, frozen=True):
    """One collective: ``bus_numerator(n) / n`` is the factor from algorithm to bus bandwidth."""

    name: str
    title: str
    nccl_tests: str
    ring: str  # which published factor: "2(n-1)/n", "(n-1)/n" or "1"

    def bus_factor(self, ranks: int) -> float:
        """busbw / algbw for ``ranks`` ranks (nccl-tests, PERFORMANCE.md); 0 for the data-free case of one rank."""
        if self.ring == "2(n-1)/n":
            return 2.0 * (ranks - 1) / ranks
        if self.ring == "(n-1)/n":
            return (ranks - 1) / ranks
        return 1.0


COLLECTIVES: dict[str, Collective] = {
    item.name: item
    for item in (
        Collective("allreduce", "all-reduce", "all_reduce_perf", "2(n-1)/n"),
        Collective("allgather", "all-gather", "all_gather_perf", "(n-1)/n"),
        Collective("reducescatter", "reduce-scatter", "reduce_scatter_perf", "(n-1)/n"),
        Collective("broadcast", "broadcast", "broadcast_perf", "1"),
        Collective("reduce", "reduce", "reduce_perf", "1"),
        Collective("alltoall", "all-to-all", "alltoall_perf", "(n-1)/n"),
        Collective("sendrecv", "send/recv ring", "sendrecv_perf", "1"),
        Collective("gather", "gather", "gather_perf", "(n-1)/n"),
        Collective("scatter", "scatter", "scatter_perf", "(n-1)/n"),
    )
}
if COLLECTIVES.keys() != OPERATIONS.keys():  # the worker and the controller must speak of the same collectives
    raise AssertionError("collectives of the controller and of the worker differ")

GEMM = "gemm"
ALL = "all"


class UnknownCollective(ValueError):
    """Not a collective; the message says what was probably meant, and what there is."""


def parse_collectives(text: str) -> tuple[str, ...]:
    """Names of the collectives asked for: one, several with commas, ``all`` or ``gemm``. Spelling is lenient."""
    names: list[str] = []
    for part in text.split(","):
        names.extend(_one(part.strip()))
    return tuple(dict.fromkeys(names))


def _one(text: str) -> tuple[str, ...]:
    plain = text.lower().replace("_", "").replace("-", "").replace("/", "").removesuffix("perf")
    if plain == ALL:
        return tuple(COLLECTIVES)
    if plain in COLLECTIVES or plain == GEMM:
        return (plain,)
    known = (*COLLECTIVES, ALL, GEMM)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UnknownCollective(f"no collective {text!r}{hint} There are: {', '.join(known)}")
