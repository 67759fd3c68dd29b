"""What a step of training hands to collectives: which, how much, in how many calls, by the way of parallelism."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Literal

import msgspec

from nccl_doctor.facts.collectives import bus_factor
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
    """One collective of a way: all ``what`` ``times`` times, each step or micro-batch. A call sends a bucket, in bytes or in
    elements; where neither is given, a module's share of the parameters."""

    collective: str
    what: Literal["parameters", "gradients"]
    times: int
    each: Literal["step", "micro-batch"]
    bucket_bytes: int = 0
    bucket_elements: int = 0
    after_optimizer: bool = False


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way of data parallelism, and the source of what is said of it."""

    way: str
    sends: tuple[Traffic, ...]
    source: str
    read: str
    note: str = ""

    @property
    def by_layer(self) -> bool:
        """Whether modules are sent one at a time, so that their number counts."""
        return not all(item.bucket_bytes or item.bucket_elements for item in self.sends)


class Model(msgspec.Struct, frozen=True):
    """What is trained: ``params`` in number; data types as they are sent; ``accumulate``: micro-batches of a step."""

    params: int
    dtype: str
    grad_dtype: str
    accumulate: int = 1
    layers: int = 0  # modules that are sent one at a time


class Volume(msgspec.Struct, frozen=True):
    """One collective in one step: ``calls`` of ``call_bytes`` each (the size as bench and nccl-tests count it)."""

    collective: str
    what: str
    calls: int
    call_bytes: float
    window: float  # the share of the step's computation that it can run beside: 1, that of the last micro-batch, or 0

    def sent(self, ranks: int) -> float:
        """Bytes that each of ``ranks`` GPUs sends a step in a ring: 2(n-1)/n or (n-1)/n of the size."""
        return self.calls * self.call_bytes * bus_factor(self.collective, ranks)


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
        bucket = item.bucket_bytes or item.bucket_elements * DTYPE_BYTES[dtype]
        parts = math.ceil(total / bucket) if bucket else model.layers
        often = item.each == "micro-batch"
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
