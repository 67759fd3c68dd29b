"""Which GID index NCCL picks on a port (checked against 2.30.7 and the change history of the rule).

InfiniBand: index 0 (NCCL_IB_GID_INDEX is not looked at since 2.22.3). RoCE: NCCL_IB_GID_INDEX where it is set,
otherwise, since 2.21.5, a walk over the table that ends on an IPv4 RoCE v2 entry if there is one; before, index 0.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable

import msgspec

from nccl_doctor.env.versions import Version, at_least

AUTOMATIC_SINCE = "2.21.5"
IGNORED_ON_INFINIBAND_SINCE = "2.22.3"


class GidEntry(msgspec.Struct, frozen=True):
    """One table entry: its index, the GID as sysfs writes it, and 1 or 2 for the RoCE version (None: untold)."""

    index: int
    gid: str
    version: int | None = None

    @property
    def is_ipv4(self) -> bool:
        """The GID is a v4-mapped address (``::ffff:a.b.c.d``)."""
        return _address(self.gid).ipv4_mapped is not None

    @property
    def is_valid(self) -> bool:
        """Neither zero nor link-local (fe80::/64): NCCL prefers such an entry."""
        value = int(_address(self.gid))
        return value != 0 and value >> 64 != 0xFE80 << 48


@functools.lru_cache(4096)  # a table is walked several times
def _address(gid: str) -> ipaddress.IPv6Address:
    try:
        return ipaddress.IPv6Address(gid)
    except ValueError:
        return ipaddress.IPv6Address(0)


def roce_version(kind: str | None) -> int | None:
    """1 or 2 from sysfs's text (``IB/RoCE v1``, ``RoCE v2``) or show_gids's (``v1``); None if it is neither."""
    text = (kind or "").strip()
    if text.endswith("v2"):
        return 2
    return 1 if text.endswith("v1") else None


def choose(
    entries: Iterable[GidEntry],
    *,
    ethernet: bool,
    gid_index: int = -1,
    nccl_version: Version | None = None,
    ipv6: bool = False,
) -> int:
    """The index NCCL uses. ``gid_index`` is NCCL_IB_GID_INDEX (-1: unset), ``ipv6`` NCCL_IB_ADDR_FAMILY=AF_INET6.

    ``nccl_version`` None means a current one. Indices without an entry are empty. NCCL_IB_ROCE_VERSION_NUM is taken for
    unset (2).
    """
    automatic = nccl_version is None or at_least(nccl_version, AUTOMATIC_SINCE)
    if not ethernet:
        legacy = nccl_version is not None and not at_least(nccl_version, IGNORED_ON_INFINIBAND_SINCE)
        return gid_index if legacy and gid_index >= 0 else 0
    if gid_index >= 0:
        return gid_index
    if not automatic:
        return 0
    table = {entry.index: entry for entry in entries}
    current = table.get(0, GidEntry(0, "::"))
    for index in range(1, max(table, default=0) + 1):
        candidate = table.get(index, GidEntry(index, "::"))
        wanted = candidate.is_ipv4 != ipv6
        better = candidate.version == 2 and (current.version != 2 or not current.is_valid)
        if wanted and (candidate.is_ipv4 != current.is_ipv4 or (candidate.is_valid and better)):
            current = candidate
    return current.index
