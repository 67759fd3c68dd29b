"""Some incidents for real: torchrun, gloo, this machine. All of them: ``python -m tests.incidents``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.incidents.catalogue import INCIDENTS, Incident
from tests.incidents.run import attempt


@pytest.mark.parametrize("incident", [pytest.param(item, id=item.name) for item in INCIDENTS if item.quick])
def test_explain_names_what_really_happened(tmp_path: Path, incident: Incident) -> None:
    result = attempt(incident, tmp_path, keep=False, note=False)
    if result.state == "skipped":
        pytest.skip(result.text)
    assert result.state == "right", result.text
