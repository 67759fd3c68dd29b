"""``nccl-doctor report``: render a saved bundle in any report format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nccl_doctor.cli import _inputs, _judging, _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

ENDINGS = {
    ".html": "html",
    ".txt": "text",
    ".xml": "junit",
    ".json": "json",
    ".sarif": "sarif",
    ".prom": "prometheus",
}


@app.command(
    short_help="A saved run as HTML, JUnit, JSON, SARIF, Prometheus, ...",
    epilog=examples(
        {
            "report run.ndb -o report.html": "",
            "report run.ndb --format sarif > run.sarif": "",
        }
    ),
)
def report(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file that check or preflight --save wrote.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to; standard output without it.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            parser=_options.report_format,
            metavar="FORMAT",
            help="Report format [default: by the output's ending; html without one].",
        ),
    ] = "",
    policy: _options.PolicyFile = None,
    thresholds: _options.Thresholds = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--bench", metavar="FILE", help="A run that bench --save wrote: its curves are drawn (repeatable)."
        ),
    ] = None,
) -> None:
    """Render a saved bundle: html, text, junit, json, sarif, github, gitlab, prometheus, nhc.

    Exit code 0 once it is written, whatever it says: who decides by a saved run asks preflight --from, or check --from.
    """
    from nccl_doctor.facts import files
    from nccl_doctor.report import formats
    from nccl_doctor.rules.gate import asking_all, decide, exit_code

    name = format or _format_of(output)
    if runs and name != "html":
        _tell.stop(f"--bench draws curves, and {name} has none: html does")
    if output is not None:
        read = {"BUNDLE": bundle, "--policy": policy, "--thresholds": thresholds}
        _inputs.check_writable(output, "--output", read | {f"--bench {run}": run for run in runs or []})
    rules = _judging.load_policy(policy)
    rows = _judging.load_thresholds(thresholds, rules.thresholds)
    facts = _judging.requiring(_inputs.read_bundle(bundle), rules.require)
    judged = _judging.judged(facts, rules, rows)
    if name != "html":  # which shows what the run saw; the others tell a decision
        judged = asking_all(judged, facts.plan, rules.profile)
    gate = decide(judged, min_hosts=rules.min_hosts, strict=rules.strict)
    if name == "text" and output is None:
        _judging.print_report(name, judged, gate, facts, exit_code(judged, gate))
        return
    if name == "html":
        from nccl_doctor.report import html

        text = html.render(judged, facts, None, [(path.stem, _inputs.saved_run(path)) for path in runs or []])
    else:
        text = formats.render(name, judged, gate, facts)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        files.write(output, text.encode())
    except OSError as error:
        _tell.stop(f"{output}: {error.strerror or error}", ExitCode.INTERNAL_ERROR)


def _format_of(output: Path | None) -> str:
    """The format that this file's ending tells; HTML without one."""
    ending = output.suffix.lower() if output else ""
    if ending and ending not in ENDINGS:
        known = ", ".join(ENDINGS)
        _tell.stop(f"--output {output}: no format has this ending (known: {known}); name one with --format")
    return ENDINGS.get(ending, "html")
