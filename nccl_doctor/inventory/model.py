"""What an inventory gives: hosts to examine, what was noticed on the way, and how the input was written."""

from __future__ import annotations

import msgspec


class HostEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A host: ``name`` as written (it is also how peers will resolve it), and what the line said beside it.

    ``address`` is where to connect when that is not the name (Ansible's ``ansible_host``).
    """

    name: str
    user: str = ""
    port: int | None = None
    slots: int | None = None
    line: int | None = None  # where it stood in the hostfile, counted from 1
    address: str = ""


class Inventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hosts of a run, in the order they were named, each once.

    ``format`` is one of :data:`FORMATS`: a list of good hosts is written back in it. ``notices`` are sentences.
    """

    entries: tuple[HostEntry, ...]
    notices: tuple[str, ...] = ()
    format: str = "plain"


FORMATS = ("plain", "openmpi", "mpich", "nodeset", "slurm", "ansible", "local")


class InventoryError(Exception):
    """Input that names no hosts we would connect to. The message says where, what was read, and what was expected."""

    def __init__(self, source: str, line: int | None, text: str, expected: str) -> None:
        place = f"{source}:{line}" if line else source
        shown = f": {quoted(text)}" if text else ""
        super().__init__(f"{place}{shown}: {expected}")
        self.source = source
        self.line = line


def quoted(text: str, limit: int = 120) -> str:
    """Hostile text as one printable, quoted piece: control characters and non-ASCII escaped, cut at ``limit``."""
    short = text if len(text) <= limit else text[:limit] + "..."
    return ascii(short)
