"""``nccl-doctor playbook``: list the playbooks, or show one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from nccl_doctor.cli import _hosts, app


@app.command(short_help="What does a finding mean, and how is it fixed?")
def playbook(
    id: Annotated[
        str | None,
        typer.Argument(
            help="A finding's or playbook's id; the beginning of one, such as net, lists those; without, all are listed."
        ),
    ] = None,
) -> None:
    """Show what a finding means, how to confirm it, and how to fix it."""
    from nccl_doctor.findings import playbooks

    if id is None:
        _list(playbooks.names())
        return
    name = playbooks.for_finding(id)
    if not name:
        if below := [name for name in playbooks.names() if name.startswith(f"{id}.")]:
            _list(below)
            return
        near = difflib.get_close_matches(id, playbooks.names(), n=3, cutoff=0.6)
        _hosts.stop(f"no playbook {id!r}" + (f"; did you mean: {', '.join(near)}?" if near else ""))
    if name != id:
        typer.echo(f"{id} has no page of its own; this is {name}", err=True)
    from nccl_doctor.report.playbook import WIDTH, text

    typer.echo(text(playbooks.load(name), _hosts.columns(WIDTH)), nl=False)


def _list(names: Sequence[str]) -> None:
    from nccl_doctor.findings import playbooks

    width = max(map(len, names))
    for name in names:
        typer.echo(f"{name:<{width}}  {playbooks.load(name).title}")
