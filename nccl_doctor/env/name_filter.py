"""The filter syntax of NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_OOB_NET_IFNAME.

``^`` (exclude) only as the first character, then ``=`` (exact names), then a comma list; blanks are part of a name, a
``:port`` after a name is split off. Source: NCCL src/misc/utils.cc parseStringList; runs of 2.18.1 to 2.32.3.
"""

from __future__ import annotations

import msgspec


class NameFilter(msgspec.Struct, frozen=True):
    """A parsed filter. ``names`` in the order written, ports split off."""

    names: tuple[str, ...]
    exclude: bool = False
    exact: bool = False

    def takes(self, name: str) -> bool:
        """Whether a device of this name passes."""
        hit = any(name == entry if self.exact else name.startswith(entry) for entry in self.names)
        return hit != self.exclude

    def hits(self, entry: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names that one entry stands for."""
        return tuple(name for name in names if (name == entry if self.exact else name.startswith(entry)))


def parse(text: str) -> NameFilter:
    """Parse a filter as NCCL does: empty entries are dropped."""
    exclude = text.startswith("^")
    text = text[1:] if exclude else text
    exact = text.startswith("=")
    text = text[1:] if exact else text
    return NameFilter(tuple(entry.split(":", 1)[0] for entry in text.split(",") if entry), exclude, exact)
