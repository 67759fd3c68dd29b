"""The watchdog of a rank: what it takes for stuck."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from nccl_doctor.agent.collective.channel import Progress


def test_a_step_is_not_held_to_the_limit_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank goes on while the watchdog looks: an import of 0.3 s is within its own limit, not within the store's."""
    told: list[dict[str, Any]] = []
    second = threading.Event()

    def sink(event: dict[str, Any]) -> None:
        told.append(event)
        beats = [item for item in told if item["event"] == "beat"]
        if event["event"] == "beat" and len(beats) == 1:
            progress.stage("store", 0.1)
        elif len(beats) == 2:
            second.set()

    monkeypatch.setattr(os, "_exit", lambda status: None)
    progress = Progress(0, sink, beat_s=0.3)
    progress.stage("import", 100.0)
    assert second.wait(10)
    progress.finish()
    assert [item["stage"] for item in told if item["event"] == "beat"][:2] == ["import", "store"]
    assert "import" not in {item["stage"] for item in told if item["event"] == "stuck"}
