"""``nccl-doctor env``: what a variable does, what is wrong with those that are set, which ones these hosts need."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer

from nccl_doctor.cli import app
from nccl_doctor.findings.exit_codes import ExitCode

env = typer.Typer(
    name="env",
    help="NCCL and PyTorch environment variables: what each does, what is wrong with those set, which ones are needed.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(env)


class Format(str, enum.Enum):
    """How to print."""

    TEXT = "text"
    JSON = "json"


NcclVersion = Annotated[
    str,
    typer.Option("--nccl-version", metavar="X.Y.Z", help="Judge for this NCCL release (default: the newest known)."),
]
TorchVersion = Annotated[
    str,
    typer.Option("--torch-version", metavar="X.Y.Z", help="Judge for this PyTorch release (default: newest known)."),
]


def _usage(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(ExitCode.USAGE)


@env.command()
def show(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="One or more variables.")],
    nccl_version: NcclVersion = "",
    torch_version: TorchVersion = "",
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """What a variable does: versions, values, default, when to set it, when never. Exit status 0 if it is known."""
    from nccl_doctor.env import knowledge
    from nccl_doctor.report import env as report

    try:
        answers = [knowledge.lookup(name.strip().split("=", 1)[0], nccl_version, torch_version) for name in names]
    except ValueError as error:
        raise _usage(str(error)) from None
    if format is Format.JSON:
        pages = [report.answer_json(answer) for answer in answers]
        typer.echo(json.dumps(pages[0] if len(pages) == 1 else pages, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(report.answer_text(answer) for answer in answers), nl=False)
    if any(answer.status is knowledge.Status.UNKNOWN for answer in answers):
        raise typer.Exit(ExitCode.USAGE)


@env.command()
def lint(
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="PATH",
            help="Script, env file, nccl.conf, Dockerfile, YAML, Python; or a directory or glob. Repeatable.",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="PATH", help="A log: what NCCL itself reported as set. Repeatable."),
    ] = None,
    bundle: Annotated[
        str, typer.Option("--from", metavar="BUNDLE", help="A saved bundle: the environment of each of its hosts.")
    ] = "",
    nccl_version: NcclVersion = "",
    torch_version: TorchVersion = "",
    fix: Annotated[bool, typer.Option("--fix", help="Show what would be changed, as a unified diff.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --fix: write the corrected file beside it, as NAME.fixed.")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="With --fix: change the files themselves.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 10 where there are only warnings.")] = False,
    show_info: Annotated[
        bool, typer.Option("--info/--no-info", help="Show remarks that are only worth knowing.")
    ] = True,
    format: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """What is wrong with the variables that are set: in files, a log, hosts, or (without options) this environment."""
    from nccl_doctor.env import examine
    from nccl_doctor.env import fix as fixing
    from nccl_doctor.report import env as report

    if (write or in_place) and not fix:
        raise _usage("--write and --in-place need --fix")
    if fix and not file:
        raise _usage("--fix needs --file: only files can be corrected")
    try:
        result = examine.examine(file or (), log or (), bundle, nccl_version, torch_version)
    except ValueError as error:
        raise _usage(str(error)) from None
    if fix:
        for change in fixing.changes(result.remarks):
            typer.echo(change.diff, nl=False)
            for kept in change.left:
                typer.echo(f"left for you: {kept}", err=True)
            if in_place:
                fixing.write(change, change.file)
            elif write:
                typer.echo(f"wrote {fixing.write(change, change.file + '.fixed')}", err=True)
    elif format is Format.JSON:
        typer.echo(json.dumps(report.lint_json(result), indent=2, ensure_ascii=False))
    else:
        typer.echo(report.lint_text(result, show_info), nl=False)
    code = result.exit_code(strict)
    if code is not ExitCode.HEALTHY:
        raise typer.Exit(code)
