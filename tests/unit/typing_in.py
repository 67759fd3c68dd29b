"""Type a command line, in this process: all commands are known, and what they print is caught."""

from __future__ import annotations

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from nccl_doctor import cli

cli._load_commands()


def typed(line: str, *words: object, **more: Any) -> Result:
    """``nccl-doctor`` with the words of ``line``, and then these as they are; ``more``: ``env``, ``input`` and the like."""
    return CliRunner().invoke(cli.app, [*line.split(), *map(str, words)], **more)
