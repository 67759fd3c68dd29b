"""Report formats: one module each, a pure function ``render(report, gate, bundle) -> str``. Found by being here."""

from __future__ import annotations

import importlib
import pkgutil

from nccl_doctor.facts.model import Bundle
from nccl_doctor.rules.gate import Gate
from nccl_doctor.rules.judge import Report


def names() -> tuple[str, ...]:
    """The formats there are."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def render(name: str, report: Report, gate: Gate, bundle: Bundle) -> str:
    """The report in one format; ``KeyError`` for a format there is not."""
    if name not in names():
        raise KeyError(name)
    text: str = importlib.import_module(f"{__name__}.{name}").render(report, gate, bundle)
    return text
