"""``nccl-doctor explain``: from log files to the cause."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from nccl_doctor.cli import app
from nccl_doctor.findings.exit_codes import ExitCode


class _Format(str, enum.Enum):
    console = "console"
    json = "json"


@app.command()
def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="Log files, directories or globs; '-' is standard input. .gz, .xz, .bz2, .zst are read too."
        ),
    ],
    format: Annotated[_Format, typer.Option(help="console, or json for programs.")] = _Format.console,
    workers: Annotated[
        int, typer.Option(min=0, max=256, help="Processes that read files (default: one per core).")
    ] = 0,
) -> None:
    """Name the cause of a failed, slow or hung job from its logs, with the lines that prove it and what to do."""
    import time

    from nccl_doctor.explain.files import explain_paths
    from nccl_doctor.report import explanation as report
    from nccl_doctor.report.console import stdout_console

    started = time.monotonic()
    found = explain_paths(logs, workers or None)
    code = report.exit_code(found)
    if format is _Format.json:
        typer.echo(report.to_json(found))
    elif code is not ExitCode.NOTHING_CHECKED:  # advice on a case that nobody has read would be none
        report.print_explanation(found, stdout_console(), time.monotonic() - started)
    if code is ExitCode.NOTHING_CHECKED:
        from nccl_doctor.report.safe_text import visible

        for problem in found.problems or ():
            typer.echo(f"nccl-doctor: {visible(problem.name)}: {visible(problem.problem)}", err=True)
        typer.echo("nccl-doctor: nothing could be read: there is no verdict", err=True)
    raise typer.Exit(code)
