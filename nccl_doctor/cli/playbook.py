"""``nccl-doctor playbook``: list the playbooks, or show one."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from nccl_doctor.cli import app
from nccl_doctor.findings.exit_codes import ExitCode


@app.command()
def playbook(
    id: Annotated[str | None, typer.Argument(help="A finding's or playbook's id; without one, all are listed.")] = None,
) -> None:
    """Show what a finding means, how to confirm it, and how to fix it."""
    from nccl_doctor.findings import playbooks

    if id is None:
        width = max((len(name) for name in playbooks.names()), default=0)
        for name in playbooks.names():
            typer.echo(f"{name:<{width}}  {playbooks.load(name).title}")
        return
    name = playbooks.for_finding(id)
    if not name:
        near = difflib.get_close_matches(id, playbooks.names(), n=3, cutoff=0.4)
        typer.echo(f"no playbook {id!r}" + (f"; did you mean: {', '.join(near)}?" if near else ""), err=True)
        raise typer.Exit(ExitCode.USAGE)
    if name != id:
        typer.echo(f"{id} has no page of its own; this is {name}", err=True)
    found = playbooks.load(name)
    typer.echo(f"# {found.title}  ({found.id}, {found.severity})\n\n{found.body}", nl=False)
