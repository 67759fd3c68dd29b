"""What others measured on the same hardware: the table of expected bus bandwidths, with the source of each number."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from nccl_doctor.bench.sizes import parse_size
from nccl_doctor.facts.files import read_yaml

TABLE = Path(__file__).parent / "data" / "expected_busbw.yaml"


class Expected(msgspec.Struct, frozen=True):
    """One published number: bus bandwidth in GB/s on a kind of machine, as somebody measured it."""

    gpu: str
    fabric: str
    hosts: int
    gpus_per_host: int
    collective: str
    size: int
    value: float
    source: str
    read: str


@functools.cache
def table() -> tuple[Expected, ...]:
    """All entries; raises on a malformed table, which the tests forbid."""
    rows = [dict(row, size=parse_size(str(row["size"])), read=str(row["read"])) for row in read_yaml(TABLE)]
    return msgspec.convert(rows, tuple[Expected, ...])


def find(gpu: str, fabric: str, hosts: int, gpus_per_host: int, collective: str, size: int) -> tuple[Expected, ...]:
    """Numbers measured on such machines, for sizes from half of ``size`` to ``size``."""
    return tuple(
        item
        for item in table()
        if re.search(rf"\b{re.escape(item.gpu)}\b", gpu, re.IGNORECASE)  # a GH200 is no H200
        and (item.fabric, item.hosts, item.gpus_per_host, item.collective) == (fabric, hosts, gpus_per_host, collective)
        and size // 2 <= item.size <= size
    )
