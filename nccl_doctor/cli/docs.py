"""``nccl-doctor docs``: the documentation, where only a terminal is at hand."""

from __future__ import annotations

from typing import Annotated

import typer

from nccl_doctor.cli import _tell, app


def _names(incomplete: str) -> list[str]:
    """The pages that begin so, for a shell's Tab."""
    from nccl_doctor.findings import manual

    return [name for name in manual.pages() if name.startswith(incomplete)]


@app.command(short_help="The documentation: hostfiles, exit codes, policies, reports, ...")
def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", autocompletion=_names, help="A page; without, all are listed.")
    ] = None,
) -> None:
    """Show a page of the documentation on the terminal."""
    from nccl_doctor.findings import manual
    from nccl_doctor.report.playbook import WIDTH, told

    pages = manual.pages()
    if not pages:
        _tell.stop("the pages are missing: the installation is incomplete, reinstall nccl-doctor")
    if page is None:
        for name, text in pages.items():
            typer.echo(f"{name:<16}  {text.splitlines()[0].removeprefix('# ').replace('`', '')}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        _tell.stop(f"no page {page!r}; the pages are: {', '.join(pages)}")
    typer.echo(told(pages[name], _tell.columns(WIDTH)), nl=False)
