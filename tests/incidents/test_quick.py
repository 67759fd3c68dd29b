"""Some incidents for real: torchrun, gloo, this machine. All of them: ``python -m tests.incidents``."""

from __future__ import annotations

import concurrent.futures
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.incidents.catalogue import INCIDENTS
from tests.incidents.run import Result, attempt

QUICK = [incident for incident in INCIDENTS if incident.quick]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """All quick incidents, two at a time."""
    directory = Path(tmp_path_factory.mktemp("incidents"))
    with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        done = list(pool.map(lambda incident: attempt(incident, directory, keep=False, note=False), QUICK))
    return {result.incident.name: result for result in done}


@pytest.mark.parametrize("name", [incident.name for incident in QUICK])
def test_explain_names_what_really_happened(results: dict[str, Result], name: str) -> None:
    result = results[name]
    if result.state == "skipped":
        pytest.skip(result.text)
    assert result.state == "right", result.text
