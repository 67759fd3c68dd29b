"""What a step of training hands to collectives: which, how much, in how many calls, by the way of parallelism."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Literal

import msgspec

from nccl_doctor.bench.collectives import COLLECTIVES
from nccl_doctor.facts.files import read_yaml

TABLE = Path(__file__).parent / "data" / "parallelism.yaml"
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_ACTIVATIONS = "sends activations, and the number of parameters does not tell their size"
REFUSED = {  # what people ask for too, and why its volume is not known here
    "tp": f"tensor parallelism {_ACTIVATIONS}",
    "pp": f"pipeline parallelism {_ACTIVATIONS}",
    "ep": f"expert parallelism {_ACTIVATIONS}",
    "cp": f"context parallelism {_ACTIVATIONS}",
    "hsdp": "hybrid sharding uses two groups of ranks at once, and bench measures one",
}


class Traffic(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One collective of a way: all ``what`` ``times`` times, each step or micro-batch."""

    collective: str
    what: Literal["parameters", "gradients"]
    times: int
    each: Literal["step", "micro-batch", "choice"]
    after_optimizer: bool = False


class Bucket(msgspec.Struct, frozen=True):
    """How much a call sends where the user says nothing; one of the two."""

    bytes: int = 0
    elements: int = 0


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way of data parallelism, and the source of what is said of it."""

    way: str
    calls: Literal["bucket", "layer"]
    sends: tuple[Traffic, ...]
    source: str
    read: str
    default_bucket: Bucket = Bucket()
    note: str = ""

    @property
    def has_choice(self) -> bool:
        """Whether it is the user's to send gradients once a step or for every micro-batch."""
        return any(item.each == "choice" for item in self.sends)


class Model(msgspec.Struct, frozen=True):
    """What is trained: ``params`` in number; data types as they are sent; ``bucket`` in bytes, 0: the way's default."""

    params: int
    dtype: str
    grad_dtype: str
    accumulate: int = 1
    sync_each: bool = False
    bucket: int = 0
    layers: int = 0


class Volume(msgspec.Struct, frozen=True):
    """One collective in one step: ``calls`` of ``call_bytes`` each (the size as bench and nccl-tests count it)."""

    collective: str
    what: str
    calls: int
    call_bytes: float
    window: float  # the share of the step's computation that it can run beside: 1, that of the last micro-batch, or 0

    def sent(self, ranks: int) -> float:
        """Bytes that each of ``ranks`` GPUs sends a step in a ring: 2(n-1)/n or (n-1)/n of the size."""
        return self.calls * self.call_bytes * COLLECTIVES[self.collective].bus_factor(ranks)


@functools.cache
def ways() -> dict[str, Way]:
    """All of the table by name; raises on a malformed one, which the tests forbid."""
    rows = [dict(row, read=str(row["read"])) for row in read_yaml(TABLE)]
    return {item.way: item for item in msgspec.convert(rows, tuple[Way, ...])}


def volumes(way: Way, model: Model) -> tuple[Volume, ...]:
    """What a step hands to each collective. Independent of the number of ranks, as sizes are counted."""
    found = []
    for item in way.sends:
        dtype = model.grad_dtype if item.what == "gradients" else model.dtype
        total = model.params * DTYPE_BYTES[dtype]
        if way.calls == "layer":
            parts = model.layers
        else:
            default = way.default_bucket
            parts = math.ceil(total / (model.bucket or default.bytes or default.elements * DTYPE_BYTES[dtype]))
        often = item.each == "micro-batch" or (item.each == "choice" and model.sync_each)
        found.append(
            Volume(
                item.collective,
                item.what,
                parts * item.times * (model.accumulate if often else 1),
                total / parts,
                0.0 if item.after_optimizer else 1.0 if often else 1.0 / model.accumulate,
            )
        )
    return tuple(found)
