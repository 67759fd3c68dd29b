"""One host to examine, as the inventory names it."""

from __future__ import annotations

import msgspec


class HostEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A host: ``name`` as written (it is also how peers will resolve it), and what the line said beside it."""

    name: str
    user: str = ""
    port: int | None = None
    slots: int | None = None
    line: int | None = None  # where it stood in the hostfile, counted from 1
