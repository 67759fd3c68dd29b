"""Thresholds: one YAML file of id -> value, unit, source, date; single rows can be replaced by a user's file."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
from collections.abc import Iterator, Mapping
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


_IN_FORCE: contextvars.ContextVar[Overrides | None] = contextvars.ContextVar("thresholds", default=None)


@contextlib.contextmanager
def using(rows: Overrides | None) -> Iterator[None]:
    """Judge by ``rows`` (None: the default ones) within this context."""
    token = _IN_FORCE.set(rows)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def with_values(values: Mapping[str, float], source: str) -> dict[str, Threshold]:
    """The default rows with other numbers for some, as a policy file gives them."""
    rows = defaults()
    return {
        **rows,
        **{id: msgspec.structs.replace(rows[id], value=number, source=source) for id, number in values.items()},
    }


def value(id: str, rows: Overrides | None = None) -> float:
    """The number of a threshold now in force; ``KeyError`` for an unknown id (a mistake in a rule)."""
    return (rows or _IN_FORCE.get() or defaults())[id].value
