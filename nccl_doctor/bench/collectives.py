"""The collectives by name: as users may write them, for people, and in nccl-tests."""

from __future__ import annotations

import difflib

import msgspec

from nccl_doctor.agent.collective.operations import OPERATIONS


class Collective(msgspec.Struct, frozen=True):
    """One collective: its name here, its name for people, and the nccl-tests program that measures it."""

    name: str
    title: str
    nccl_tests: str


COLLECTIVES: dict[str, Collective] = {
    item.name: item
    for item in (
        Collective("allreduce", "all-reduce", "all_reduce_perf"),
        Collective("allgather", "all-gather", "all_gather_perf"),
        Collective("reducescatter", "reduce-scatter", "reduce_scatter_perf"),
        Collective("broadcast", "broadcast", "broadcast_perf"),
        Collective("reduce", "reduce", "reduce_perf"),
        Collective("alltoall", "all-to-all", "alltoall_perf"),
        Collective("sendrecv", "send/recv ring", "sendrecv_perf"),
        Collective("gather", "gather", "gather_perf"),
        Collective("scatter", "scatter", "scatter_perf"),
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
    hint = f"; did you mean {near[0]}? There are" if near else "; there are"
    raise UnknownCollective(f"no collective {text!r}{hint}: {', '.join(known)}")
