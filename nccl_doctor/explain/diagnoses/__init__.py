"""Diagnoses: what several lines prove together. One module per area, found by being here; see ``case.diagnosis``."""

from __future__ import annotations

import functools
import importlib
import pkgutil


@functools.cache
def load() -> None:
    """Import every module of this package, so that each diagnosis is declared."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        importlib.import_module(f"{__name__}.{module.name}")
