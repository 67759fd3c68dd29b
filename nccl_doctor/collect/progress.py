"""What a run tells while it runs. Rendering is the report room's."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receiver of progress; called from several threads."""

    def begin(self, stage: str, total: int) -> None:
        """A stage starts on ``total`` hosts."""

    def advance(self, stage: str, host: str, trouble: str = "") -> None:
        """A host is through; ``trouble`` says what went wrong there, if anything."""

    def end(self, stage: str) -> None:
        """The stage is over."""


class Silent:
    """Tells nothing."""

    def begin(self, stage: str, total: int) -> None:
        """Nothing."""

    def advance(self, stage: str, host: str, trouble: str = "") -> None:
        """Nothing."""

    def end(self, stage: str) -> None:
        """Nothing."""
