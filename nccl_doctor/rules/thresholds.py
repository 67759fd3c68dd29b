"""Thresholds: one YAML file of id -> value, unit, source, date; single rows can be replaced by a user's file."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import difflib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nccl_doctor.facts.files import SETTINGS_BYTES, content, read_yaml

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


def _given(file: Path) -> dict[str, Any]:
    """The rows of a user's file as plain data, by id; ``ThresholdError`` names the file and the place."""
    import yaml

    try:
        text = content(file, SETTINGS_BYTES).decode()
        node, raw = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except OSError as error:
        raise ThresholdError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ThresholdError(f"{file}: byte {error.start} is no UTF-8 text") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: the 40th of May, 5,000 digits
        raise ThresholdError(f"{file}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw or {}, dict):
        raise ThresholdError(f"{file}: expected lines of `id: number`")
    seen: set[str] = set()
    for key, _ in node.value if node and raw else ():
        if key.value in seen:  # YAML silently takes the last
            raise ThresholdError(f"{file}: line {key.start_mark.line + 1}: {key.value!r} stands there twice")
        seen.add(key.value)
    return {str(id): row for id, row in (raw or {}).items()}


def _row(id: str, row: Any, name: str) -> Threshold:
    """One row of a user's file: a number, or all four fields; where it says no more, the rest is the default's."""
    told = msgspec.structs.replace(defaults()[id], source=name)
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # YAML takes 1e-12 for a text, as it has no dot
        row = row if isinstance(row, bool | list | dict) else float(row)
    try:
        told = msgspec.structs.replace(told, value=row) if isinstance(row, float) else msgspec.convert(row, Threshold)
    except msgspec.ValidationError as error:
        raise ThresholdError(
            f"{name}: {id}: {str(error).partition(' - at ')[0]}; give a number, or value, unit, source and date"
        ) from error
    if not told.value >= 0:  # NaN, too: whatever is compared with it is false
        raise ThresholdError(f"{name}: {id}: {told.value:g} is no threshold; give a number from 0 on, or inf: never")
    return told


@functools.cache
def defaults() -> dict[str, Threshold]:
    """The rows that come with nccl-doctor."""
    return msgspec.convert(read_yaml(FILE), dict[str, Threshold])


def load(file: Path, rows: Overrides | None = None) -> dict[str, Threshold]:
    """The rows (None: the default ones) with those of ``file`` in their place; an id that no rule knows is an error."""
    given = _given(file)
    for id in sorted(set(given) - set(defaults())):
        near = difflib.get_close_matches(id, list(defaults()), n=1)
        known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(defaults()))}"
        raise ThresholdError(f"{file}: no threshold is called {id!r}; {known}")
    return {**(rows or defaults()), **{id: _row(id, row, str(file)) for id, row in given.items()}}


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
    """The default rows with other numbers for some, as a policy file gives them; ``ThresholdError`` as in :func:`load`."""
    return {**defaults(), **{id: _row(id, number, source) for id, number in values.items()}}


def value(id: str) -> float:
    """The number of a threshold now in force; ``KeyError`` for an unknown id (a mistake in a rule)."""
    return (_IN_FORCE.get() or defaults())[id].value
