"""Fixtures of the lab tests: one clean lab per test process, a check after every test that it is clean again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import machine
from .lab import Lab, missing_requirements


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that asks for a lab bears the marker ``lab``."""
    for item in items:
        if "whole_lab" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def whole_lab() -> Iterator[Lab]:
    """Four clean hosts and a controller, for the whole test session. Tests use ``lab``."""
    missing = missing_requirements()
    if missing:
        pytest.skip("no lab can stand here: " + "; ".join(missing))
    with Lab(hosts=4) as lab:
        yield lab


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """The session's lab, clean. What a test leaves applied is undone, and what it leaves running fails it."""
    yield whole_lab
    whole_lab.clear_faults()
    left = {name: whole_lab.settled_processes(name) for name in (*whole_lab.hostnames, "controller")}
    machine.end(process.pid for found in left.values() for process in found)  # one failure is enough
    assert not any(left.values()), f"left running: { {name: list(map(str, found)) for name, found in left.items()} }"
