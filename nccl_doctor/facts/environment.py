"""The variables a job on a host would be started with (probe ``environment``): allow-listed and redacted."""

from __future__ import annotations

from typing import ClassVar

from nccl_doctor.facts.model import Fact


class Environment(Fact, frozen=True):
    """Name -> value, of the agent's own environment."""

    PROBE: ClassVar[str] = "environment"
    variables: dict[str, str]
