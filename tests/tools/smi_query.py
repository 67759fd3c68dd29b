"""Parse ``nvidia-smi -q`` (whole or with ``-d``): an indented tree of ``name : value`` lines per GPU."""

from __future__ import annotations

import re

import msgspec

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")


class SmiQueryError(ValueError):
    """The text is not the output of ``nvidia-smi -q``."""


class SmiGpu(msgspec.Struct, frozen=True):
    """One GPU: its PCI address and (section, ..., name) -> value. Of equal paths (processes) the first is kept."""

    bus_id: str
    values: dict[tuple[str, ...], str]
    processes: tuple[dict[str, str], ...] = ()

    def get(self, *path: str) -> str | None:
        """The value whose path ends with ``path``; None if it is not there or ``N/A``."""
        for key, value in self.values.items():
            if key[-len(path) :] == path:
                return None if value in ("N/A", "[N/A]") else value
        return None


class SmiQuery(msgspec.Struct, frozen=True):
    """The head and the GPUs. ``attached`` is the number nvidia-smi gives, which may be more than are shown (``-i``)."""

    driver: str | None
    cuda: str | None
    attached: int | None
    gpus: tuple[SmiGpu, ...]


class _Gpu:
    """One GPU while it is read."""

    def __init__(self, bus_id: str) -> None:
        self.bus_id = bus_id
        self.values: dict[tuple[str, ...], str] = {}
        self.processes: list[dict[str, str]] = []

    def put(self, section: tuple[str, ...], name: str, value: str) -> None:
        if section[:1] != ("Processes",):
            self.values.setdefault((*section, name), value)
            return
        if name == "Process ID":
            self.processes.append({})
        if self.processes:
            self.processes[-1][name] = value


def parse(text: str) -> SmiQuery:
    """The tree in the text; ``SmiQueryError`` if it has neither a head nor a GPU."""
    head: dict[str, str] = {}
    gpus: list[_Gpu] = []
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare:
            continue
        if found := _GPU.match(bare):
            gpus.append(_Gpu(found.group(1).lower()))
            stack = []
            continue
        indent = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        name, separator, value = bare.partition(" : ")
        name, value = name.strip(), value.strip()
        if not separator:
            stack.append((indent, bare.rstrip(":").strip()))
            continue
        if not gpus:
            head.setdefault(name, value)
        else:
            gpus[-1].put(tuple(part for _, part in stack), name, value)
        if not value:
            stack.append((indent, name))
    if not gpus and "Driver Version" not in head:
        raise SmiQueryError("neither a driver version nor a GPU: this is not the output of nvidia-smi -q")
    attached = head.get("Attached GPUs", "")
    return SmiQuery(
        head.get("Driver Version"),
        head.get("CUDA Version"),
        int(attached) if attached.isdecimal() else None,
        tuple(SmiGpu(gpu.bus_id, gpu.values, tuple(gpu.processes)) for gpu in gpus),
    )
