"""The command line. One module per command, found by being in this package; parse, call, render, and no logic."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Annotated

import typer

from nccl_doctor import __version__

app = typer.Typer(
    name="nccl-doctor",
    help="Multi-node diagnostics for NCCL training clusters: to the guilty host, with quoted proof and a fix.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nccl-doctor {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def _load_commands() -> None:
    """Import every command module; each registers itself on ``app``. They import heavy packages only when run."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda item: item.name):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")


def main() -> None:
    """Entry point of ``nccl-doctor``."""
    _load_commands()
    app()
