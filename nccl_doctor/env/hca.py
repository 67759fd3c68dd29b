"""Which RDMA ports NCCL uses: active ports, filtered by NCCL_IB_HCA (rule of NCCL 2.18.5 to 2.30)."""

from __future__ import annotations

import msgspec

LIST_LIMIT = 32  # entries of NCCL_IB_HCA since 2.18.5


class HcaFilter(msgspec.Struct, frozen=True):
    """A parsed NCCL_IB_HCA: ``^`` (exclude) and ``=`` (exact) hold for the whole list; ports are None for all."""

    entries: tuple[tuple[str, int | None], ...]
    exclude: bool = False
    exact: bool = False

    def matches(self, device: str, port: int) -> bool:
        """Whether NCCL keeps this port. An empty list matches everything; ``^`` alone therefore keeps nothing."""
        if not self.entries:
            return not self.exclude
        hit = any(
            (device == name if self.exact else device.startswith(name)) and number in (None, port)
            for name, number in self.entries
        )
        return hit != self.exclude


def parse(value: str) -> HcaFilter:
    """Parse NCCL_IB_HCA as NCCL does: blanks are not trimmed, ``^`` and ``=`` count only at the very beginning."""
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries: list[tuple[str, int | None]] = []
    for part in rest.split(",")[:LIST_LIMIT]:
        name, _, number = part.partition(":")
        port = number.split(":")[0]
        if name:
            entries.append((name, int(port) if port.isdecimal() else None))
    return HcaFilter(tuple(entries), exclude, exact)
