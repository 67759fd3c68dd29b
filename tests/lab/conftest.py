"""Fixtures of the lab tests: one clean lab per test process, a check after every test that it is clean again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from . import machine
from .lab import Lab, Process, missing_requirements


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


@dataclass(frozen=True)
class CleanRun:
    """A check of all hosts in all stages, with nothing broken, and what it left on the hosts."""

    done: subprocess.CompletedProcess[str]
    files_before: dict[str, str]
    files_after: dict[str, str]
    left: dict[str, list[Process]]

    @property
    def report(self) -> dict[str, Any]:
        """What it found."""
        assert self.done.stdout, self.done.stderr
        return dict(json.loads(self.done.stdout))


@pytest.fixture(scope="session")
def clean_run(whole_lab: Lab) -> CleanRun:
    """One run for all tests that look at a clean lab: every rank of its collectives starts torch."""

    def files() -> dict[str, str]:
        show = "find /etc /tmp /dev/shm /var/tmp $HOME -xdev -printf '%p %s %T@\\n' | sort"
        return {name: whole_lab.on(name, ["sh", "-c", show], check=True).stdout for name in whole_lab.hostnames}

    before = files()
    done = whole_lab.run(["nccl-doctor", "check", "--hosts", str(whole_lab.hostfile), "--format", "json"])
    left = {name: whole_lab.settled_processes(name, machine.soon_s()) for name in whole_lab.hostnames}
    return CleanRun(done, before, files(), left)


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """The session's lab, clean. What a test leaves applied is undone, and what it leaves running fails it."""
    yield whole_lab
    whole_lab.clear_faults()
    left = {name: whole_lab.settled_processes(name, 15.0) for name in (*whole_lab.hostnames, "controller")}
    machine.end(process.pid for found in left.values() for process in found)  # one failure is enough
    assert not any(left.values()), f"left running: { {name: list(map(str, found)) for name, found in left.items()} }"
