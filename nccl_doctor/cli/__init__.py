"""The command line. One module per command, found by being in this package; parse, call, render, and no logic."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nccl_doctor import __version__
from nccl_doctor.cli import _signals, _streams
from nccl_doctor.findings.exit_codes import ExitCode

DEBUG = "NCCL_DOCTOR_DEBUG"  # set: an internal error shows its whole traceback
REPORT_AT = "the project's issue tracker"


def examples(lines: dict[str, str], codes: str = "") -> str:
    """What stands under a command's help: lines to copy, each with a word on it, and what the exit codes say."""
    width = max((len(line) for line, what in lines.items() if what), default=0)
    told = "\n".join(f"  nccl-doctor {line:<{width}}  {what}".rstrip() for line, what in lines.items())
    return f"\b\nExamples:\n{told}" + (f"\n\nExit codes: {codes}; all: nccl-doctor docs exit-codes." if codes else "")


class _Commands(TyperGroup):
    """The commands; Ctrl-C in any of them, or a signal in its place, says so and exits with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            by = _signals.interrupted_by()
            typer.echo(f"\nnccl-doctor: {by}; nothing of it runs on, here or on any host", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    name="nccl-doctor",
    cls=_Commands,
    help="Multi-node diagnostics for NCCL training clusters: to the guilty host, with quoted proof and a fix.",
    epilog=examples(
        {
            "explain logs/": "a job died: why?",
            "hang --hosts hostfile": "a job hangs: who holds it?",
            "check --hosts hostfile": "which host is to blame?",
            "preflight --slurm -- srun ...": "go or no-go, then run it",
            "run -- torchrun ...": "run it: what holds it?",
            "playbook net.mtu": "what to do about a finding",
            "docs first-aid": "what to type, and in which order",
        }
    ),
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
def _before_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


def _load_commands(wanted: str = "") -> None:
    """Import the wanted command's module, or all; each registers itself on ``app``, heavy packages come when it runs."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    for name in [wanted] if wanted in names else names:
        importlib.import_module(f"{__name__}.{name}")


def _refuse_empty(words: list[str]) -> None:
    """Stop at an empty word: a gate whose variable is unset would else go by the default, and measure something else."""
    before = "nccl-doctor"
    for word in words:
        if word == "--":  # of a job's own words nothing is known
            return
        if not word or re.fullmatch(r"--[\w-]+=", word):
            typer.echo(f"nccl-doctor: an empty value after {word or before}: is a variable unset?", err=True)
            sys.exit(ExitCode.USAGE)
        before = word


def _internal_error(error: Exception) -> None:
    """One line for a defect of ours: what, where in our code, and what to do with it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    safe = what.encode("ascii", "backslashreplace").decode().replace("\x1b", "\\e")
    typer.echo(
        f"nccl-doctor: internal error{where}: {safe}\n"
        f"nccl-doctor: please report it at {REPORT_AT} with the output of the same command under {DEBUG}=1",
        err=True,
    )


def main() -> None:
    """Entry point of ``nccl-doctor``. A defect gives exit code 1 and two lines, never a traceback that nobody asked for."""
    _streams.open_all()
    try:
        try:
            _refuse_empty(sys.argv[1:])
            _load_commands(sys.argv[1] if len(sys.argv) > 1 else "")
            app()
        finally:
            sys.stdout.flush()  # what cannot be told shall be known before the exit code is
    except KeyboardInterrupt:  # while the command's own packages were loading
        typer.echo("\nnccl-doctor: interrupted before it began", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except _streams.NotToldError as error:
        typer.echo(f"nccl-doctor: the output cannot be written: {error.strerror}", err=True)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - what is left would fail again at the exit
        sys.exit(ExitCode.INTERNAL_ERROR)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # no name of a file: words, or a list
            typer.echo(f"nccl-doctor: {str(error.filename)[:60]!r}...: {error.strerror}", err=True)
            sys.exit(ExitCode.USAGE)
        if os.environ.get(DEBUG):
            raise
        _internal_error(error)
        sys.exit(ExitCode.INTERNAL_ERROR)
    finally:
        gc.freeze()  # the interpreter ends without a search for cycles in all that is left: a fifth of a short run's time
