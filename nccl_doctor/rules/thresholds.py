"""Thresholds: one YAML file of id -> value, unit, source, date; single rows can be replaced by a user's file."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).parent / "thresholds.yaml"


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line that a rule draws, and why there."""

    value: float
    unit: str
    source: str
    date: datetime.date


class ThresholdError(ValueError):
    """A thresholds file that cannot be used; says which file, and what is wrong."""


Overrides = Mapping[str, Threshold]


def parse(text: str, name: str) -> dict[str, Threshold]:
    """The rows of one file; ``ThresholdError`` names the file and the row."""
    import yaml

    try:
        raw: Any = yaml.safe_load(text)
        return msgspec.convert(raw or {}, dict[str, Threshold])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ThresholdError(f"{name}: {error}") from error


@functools.cache
def defaults() -> dict[str, Threshold]:
    """The rows that come with nccl-doctor."""
    return parse(FILE.read_text(encoding="utf-8"), FILE.name)


def load(file: Path) -> dict[str, Threshold]:
    """The default rows with those of ``file`` in their place; an id that no rule knows is an error."""
    given = parse(file.read_text(encoding="utf-8"), str(file))
    strange = sorted(set(given) - set(defaults()))
    if strange:
        raise ThresholdError(f"{file}: no threshold is called {strange[0]!r}; known: {', '.join(sorted(defaults()))}")
    return {**defaults(), **given}


def value(id: str, rows: Overrides | None = None) -> float:
    """The number of a threshold; ``KeyError`` for an unknown id (a mistake in a rule)."""
    return (rows or defaults())[id].value
