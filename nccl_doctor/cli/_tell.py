"""What a command says: messages on standard error, documents on standard output."""

from __future__ import annotations

import math
import shutil
import sys
from typing import NoReturn

import typer

from nccl_doctor.findings.exit_codes import ExitCode


def say(message: str) -> None:
    """A message on stderr; what came from hosts and files in it drives no terminal."""
    from nccl_doctor.report.safe_text import lines

    typer.echo(f"nccl-doctor: {lines(message)}", err=True)


def stop(message: str, code: ExitCode = ExitCode.USAGE) -> NoReturn:
    """End with a message on stderr."""
    say(message)
    raise typer.Exit(code)


def print_json(document: bytes) -> None:
    """A JSON document on stdout; nothing in it drives a terminal."""
    from nccl_doctor.report.safe_text import json_text

    sys.stdout.write(json_text(document))


def columns(most: int) -> int:
    """How wide prose may be: as the terminal, where there is one."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def rows() -> float:
    """How many lines stay in sight: those of the terminal, where there is one."""
    return shutil.get_terminal_size().lines if sys.stdout.isatty() else math.inf
