"""``nccl-doctor explain``: from log files to the cause."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from nccl_doctor.cli import _options, _tell, app, examples
from nccl_doctor.findings.exit_codes import ExitCode

if TYPE_CHECKING:
    from nccl_doctor.bench.outcome import Outcome
    from nccl_doctor.explain.model import Explanation
    from nccl_doctor.explain.saved_runs import SavedRun
    from nccl_doctor.facts.model import Bundle


@app.command(
    short_help="Why did this job fail, hang or crawl? From its logs.",
    epilog=examples(
        {
            "explain logs/": "all ranks' logs, and dumps beside them",
            "explain slurm-4711.out": "",
            "explain run.ndb logs/": "with what check saved of the hosts",
        },
        codes="11 a cause was found, 12 undecided, 0 healthy, 3 nothing to read",
    ),
)
def explain(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS...",
            help="Log files, directories or globs; '-' is standard input. .gz, .xz, .bz2, .zst are read too, and what "
            "check or bench saved.",
        ),
    ],
    format: _options.Format = "text",
    workers: Annotated[int, _options.count("Processes that read files [default: one per core].", most=256)] = 0,
) -> None:
    """Name the cause of a failed, slow or hung job from its logs, with the lines that prove it and what to do."""
    import gc
    import time

    from nccl_doctor.explain.files import explain_paths
    from nccl_doctor.report import explanation as report

    gc.disable()  # no cycles come from reading; looking for them took a tenth of what is not in parallel
    started = time.monotonic()
    names, benches = _bench_runs(logs)
    found = explain_paths(names, workers or None, meanwhile=_terminal if format == "text" else None)
    code = report.exit_code(found)
    if found.saved_runs or benches:
        found, code = _with_saved_runs(found, benches)
    why = ""
    if code is ExitCode.NOTHING_CHECKED:
        why = ("nothing could be read" if found.problems else "the input is empty") + ": there is no verdict"
        found = msgspec.structs.replace(found, sentence=why, next=())
    if format == "json":
        _tell.print_json(report.to_json(found).encode())
    elif not why:
        from nccl_doctor.report.terminal import stdout_console

        _terminal().print_explanation(found, stdout_console(), time.monotonic() - started)
    if why:
        for problem in found.problems:
            _tell.say(f"{problem.name}: {problem.problem}")
        _tell.say(why)
    raise typer.Exit(code)


def keep(names: list[str]) -> None:
    """Explain what a job printed: kept in the working directory as text and as JSON, and told after that: the terminal may
    have gone."""
    import io
    import time

    from nccl_doctor.cli import _streams
    from nccl_doctor.explain.files import explain_paths
    from nccl_doctor.facts import files
    from nccl_doctor.report import explanation as report
    from nccl_doctor.report.safe_text import json_text
    from nccl_doctor.report.terminal import stdout_console, text_console

    _streams.open_all()
    started = time.monotonic()
    found = explain_paths(names)
    seconds = time.monotonic() - started
    text = io.StringIO()
    _terminal().print_explanation(found, text_console(text), seconds)
    for name, content in (
        ("explanation.json", json_text(report.to_json(found).encode())),
        ("explanation.txt", text.getvalue()),
    ):
        try:
            files.write(Path(name), content.encode(), private=True)
        except OSError as error:
            _tell.say(f"{name}: {error.strerror or error}")
    _terminal().print_explanation(found, stdout_console(), seconds)


def _terminal() -> ModuleType:
    """How an explanation is told on a terminal. Imported while other processes read the logs."""
    from nccl_doctor.report import explanation_text

    return explanation_text


def _bench_runs(names: list[str]) -> tuple[list[str], dict[str, Outcome]]:
    """The files that ``bench --save`` wrote, read, and the other names."""
    if not any(name.endswith(".json") for name in names):
        return names, {}
    from nccl_doctor.bench import outcome

    runs = {}
    for name in names:
        if name.endswith(".json"):
            with contextlib.suppress(outcome.BaselineError):  # some other JSON: a flight-recorder dump, a RAS report
                runs[name] = outcome.read(Path(name))
    return [name for name in names if name not in runs], runs


def _with_saved_runs(found: Explanation, benches: dict[str, Outcome]) -> tuple[Explanation, ExitCode]:
    """The explanation with what saved runs found, and the exit code of both."""
    from nccl_doctor.explain import saved_runs
    from nccl_doctor.explain.model import InputProblem, Verdict
    from nccl_doctor.facts import bundle as bundles
    from nccl_doctor.report import explanation as report

    runs = []
    problems = list(found.problems)
    for name in found.saved_runs:
        try:
            bundle = bundles.read(Path(name))
        except bundles.BundleError as error:
            problems.append(InputProblem(name, str(error).removeprefix(f"{name}: ")))
            continue
        runs.append(_of_bundle(name, bundle))
    runs += [_of_bench(name, run) for name, run in benches.items()]
    logs = found.read.files > len(found.saved_runs) and found.read.bytes > 0
    problems += [InputProblem(run.name, item) for run in runs for item in run.open]
    found = msgspec.structs.replace(found, problems=tuple(problems))
    if not runs or not (logs or any(run.hosts for run in runs)):
        return found, ExitCode.NOTHING_CHECKED
    told = saved_runs.tell(found, runs, logs)
    code = report.exit_code(told)
    if not logs and told.verdict is Verdict.UNDECIDED:
        code = ExitCode.INCOMPLETE  # nothing failed, not all was measured
    return told, code


def _of_bundle(name: str, bundle: Bundle) -> SavedRun:
    """What was found by a check, or a look at a job, and what it left open."""
    from nccl_doctor.explain.saved_runs import SavedRun
    from nccl_doctor.findings.model import Severity
    from nccl_doctor.rules.judge import anything, judge

    judged = judge(bundle)
    left = [f"not measured: {item.what}: {item.why}" for item in judged.unknown]
    if {"job", "watch"}.intersection(bundle.plan.stages):
        if not any(item.severity is Severity.FAIL for item in judged.findings):
            left.append("not judged: a look at a job is no proof that it runs")
    elif not anything(judged.stages):
        left.append("not measured: no stage that was asked for applies to these hosts")
    steps = tuple(item.next for item in judged.unknown if item.next)
    return SavedRun(name, judged.findings, len(judged.reached), tuple(left), steps)


def _of_bench(name: str, run: Outcome) -> SavedRun:
    """What was found by a benchmark, and what it left open."""
    from nccl_doctor.bench.verdict import together
    from nccl_doctor.explain.saved_runs import SavedRun

    left = [f"not judged: {told}" for kind, told in together(run.verdicts, run.ceiling) if kind == "cannot-judge"]
    if not run.complete:
        left.append("not measured: not every rank finished")
    return SavedRun(name, run.findings, len(run.world.per_host), tuple(left))
