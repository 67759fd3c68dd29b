"""``nccl-doctor history``: what a series of runs says of a host, a GPU or a NIC."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import _options, _tell, app
from nccl_doctor.findings.exit_codes import ExitCode


@app.command(short_help="What keeps failing, and where does bandwidth go?")
def history(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="What --history of check or preflight named: a directory or a file.")
    ],
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Only what concerns this host.")] = "",
    format: _options.Format = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All runs and trends.")] = False,
) -> None:
    """Show what keeps failing, which runs passed because they avoided a bad host, and where bandwidth goes.

    Exit code 0, whatever is shown; 3 if the history has no runs; 2 for a file that is no history.
    """
    from nccl_doctor.facts.files import printed_json
    from nccl_doctor.history import store
    from nccl_doctor.history.analyse import analyse

    try:
        runs = store.read(path)
    except store.HistoryError as error:
        _tell.stop(str(error))
    if host and not any(item.host == host for run in runs for item in run.hosts):
        _tell.stop(f"{store.file_of(path)}: host {host!r} is in no run")
    if not runs:
        _tell.stop(f"{store.file_of(path)}: no runs", ExitCode.NOTHING_CHECKED)
    found = analyse(runs, host)
    if format == "json":
        _tell.print_json(printed_json(found))
    else:
        from nccl_doctor.report.history import render
        from nccl_doctor.report.terminal import stdout_console

        render(found, stdout_console(), host=host, verbose=verbose)
