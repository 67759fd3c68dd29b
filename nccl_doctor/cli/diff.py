"""``nccl-doctor diff``: what changed between two runs, or between hosts of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import _inputs, _judging, _options, _tell, app, examples


@app.command(
    short_help="What changed between two saved runs, or between hosts of one?",
    epilog=examples(
        {
            "diff good.ndb today.ndb": "",
            "diff today.ndb --hosts gpu01,gpu[02-04]": "",
        }
    ),
)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The bundle before: what check or preflight --save wrote.")],
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="The bundle after.")] = None,
    hosts: Annotated[
        str,
        typer.Option("--hosts", "-H", metavar="HOSTS", help="Compare hosts of A: the first with each of the others."),
    ] = "",
    policy: _options.PolicyFile = None,
    thresholds: _options.Thresholds = None,
    format: _options.Format = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All changes.")] = False,
) -> None:
    """Show what changed between two bundles (yesterday's good run and today's), most important first.

    Exit code 0: nothing new fails; 11: a failing finding is new; 4: something was not measured again; 3: no common host.
    """
    import msgspec

    from nccl_doctor.facts.files import printed_json
    from nccl_doctor.rules import compare

    if (b is None) == (not hosts):
        _tell.stop("give two bundles, or one bundle and --hosts HOST,HOST")
    judge = _judging.site_judge(policy, thresholds)
    before = _inputs.read_bundle(a)
    after = _inputs.read_bundle(b) if b is not None else None
    try:
        if after is not None:
            found = compare.bundles(before, after, (str(a), str(b)), judge)
        else:
            found = compare.hosts(before, _names(hosts), judge)
    except compare.CompareError as error:
        _tell.stop(f"{a}: {error}")
    if format == "json":
        data = {**msgspec.to_builtins(found), "exit_code": found.exit_code.value}
        _tell.print_json(printed_json(data))
    else:
        from nccl_doctor.report.comparison import render
        from nccl_doctor.report.terminal import stdout_console

        render(found, stdout_console(), verbose=verbose)
    raise typer.Exit(found.exit_code)


def _names(hosts: str) -> list[str]:
    """The hosts in the order given: node sets are expanded, a comma within brackets belongs to its node set."""
    from nccl_doctor.inventory import from_list

    with _inputs.bad_input_stops():
        return [entry.name for entry in from_list(hosts, "--hosts").entries]
