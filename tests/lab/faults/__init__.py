"""The faults, by family. ``all_faults()`` is the list; a fault is found by being in a module of this package."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from .base import FAULTS, Fault

if TYPE_CHECKING:
    from ..lab import Lab

__all__ = ["Fault", "all_faults", "from_record", "make", "parse_parameters"]


def all_faults() -> dict[str, type[Fault]]:
    """Name -> fault, sorted by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(FAULTS.items()))


def make(lab: Lab, name: str, host: str, parameters: dict[str, Any]) -> Fault:
    """A fault ready to be applied; ``ValueError`` for an unknown name or parameter, or a missing program."""
    if name not in all_faults():
        raise ValueError(f"no fault {name!r}; there are: {', '.join(all_faults())}")
    kind = FAULTS[name]
    unknown = set(parameters) - set(kind.parameters())
    if unknown:
        raise ValueError(f"{name} has no parameter {sorted(unknown)}; it has {sorted(kind.parameters())}")
    if kind.missing():
        raise ValueError("; ".join(kind.missing()))
    return kind(lab, lab.host(host), **parameters)


def from_record(lab: Lab, record: dict[str, Any]) -> Fault:
    """An applied fault, from the plain data that :meth:`Fault.record` gave."""
    kind = all_faults()[record["name"]]
    return kind(lab, lab.host(record["host"]), key=record["key"], memory=record["memory"], **record["parameters"])


def parse_parameters(name: str, words: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` words from the command line, as the types of the fault's defaults."""
    if name not in all_faults():
        raise ValueError(f"no fault {name!r}; there are: {', '.join(all_faults())}")
    defaults = FAULTS[name].parameters()
    parsed: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in defaults:
            raise ValueError(
                f"{word!r}: expected one of {', '.join(f'{known}=...' for known in defaults) or 'nothing'}"
            )
        kind = type(defaults[key])
        parsed[key] = value.lower() in ("1", "true", "yes") if kind is bool else kind(value)
    return parsed
