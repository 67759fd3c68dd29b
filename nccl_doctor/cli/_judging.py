"""How a site judges what was collected, where it is kept, and how it is told."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nccl_doctor.cli._tell import say, stop

if TYPE_CHECKING:
    from nccl_doctor.facts.model import Bundle
    from nccl_doctor.findings.exit_codes import ExitCode
    from nccl_doctor.rules.gate import Gate
    from nccl_doctor.rules.judge import Report
    from nccl_doctor.rules.policy import Policy
    from nccl_doctor.rules.thresholds import Overrides


def load_policy(path: Path | None) -> Policy:
    """The policy of this file, or of the working directory; an empty one without either."""
    from nccl_doctor.rules import policy

    found = path or policy.find(Path())
    if found is None:
        return policy.Policy()
    try:
        return policy.load(found)
    except policy.PolicyError as error:
        stop(str(error))


def load_thresholds(file: Path | None, values: Mapping[str, float] | None = None) -> Overrides | None:
    """The thresholds to judge by: the default ones, those of a policy in their place, and those of a file in theirs."""
    from nccl_doctor.rules import thresholds

    try:
        rows = thresholds.with_values(values, "policy file") if values else None
        return rows if file is None else thresholds.load(file, rows)
    except (thresholds.ThresholdError, OSError) as error:
        stop(str(error))


def site_judge(policy: Path | None, thresholds: Path | None) -> Callable[[Bundle], Report]:
    """How a site judges bundles: by its policy and thresholds."""
    rules = load_policy(policy)
    rows = load_thresholds(thresholds, rules.thresholds)
    return lambda bundle: judged(bundle, rules, rows)


def judged(bundle: Bundle, policy: Policy, rows: Overrides | None) -> Report:
    """The report of a bundle under a site's policy, today."""
    from nccl_doctor.rules.judge import judge
    from nccl_doctor.rules.policy import apply

    return apply(judge(bundle, rows), policy, datetime.date.today())


def requiring(bundle: Bundle, needs: tuple[str, ...]) -> Bundle:
    """A saved run, to be decided by these requirements where there are any."""
    import msgspec

    return msgspec.structs.replace(
        bundle, plan=msgspec.structs.replace(bundle.plan, require=needs or bundle.plan.require)
    )


def save_bundle(bundle: Bundle, path: Path | None) -> str:
    """Where the bundle was written; empty if it was not, which is told: the result is, too."""
    if path is None:
        return ""
    from nccl_doctor.facts import bundle as bundles

    try:
        bundles.write(bundle, path)
    except OSError as error:
        say(f"--save {path}: {error.strerror or error}")
        return ""
    return str(path)


def keep(path: Path | None, bundle: Bundle, report: Report, command: str, gate: Gate | None = None) -> bool:
    """Append the run to a history; whether it is there, if one was named: a failure is told, and never loses the result."""
    if path is None:
        return True
    from nccl_doctor.history import store
    from nccl_doctor.history.record import run_of

    try:
        store.append(path, run_of(bundle, report, command, gate))
    except store.HistoryError as error:
        say(f"--history {error}")
        return False
    return True


def print_report(
    format: str, judged: Report, gate: Gate, bundle: Bundle, code: ExitCode, *, verbose: bool = False, saved: str = ""
) -> None:
    """Print a decision in one of the report formats; what people read is as wide as their terminal."""
    from nccl_doctor.report import formats

    if format != "text":
        sys.stdout.write(formats.render(format, judged, gate, bundle))
        return
    from nccl_doctor.report.console import render_gate
    from nccl_doctor.report.terminal import stdout_console

    render_gate(judged, gate, stdout_console(), verbose=verbose, saved=saved, exit_code=code)


def step_summary(report: Report, gate: Gate) -> None:
    """Inside a GitHub job, append the summary to the file that the runner names."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path and os.environ.get("GITHUB_ACTIONS") == "true":
        from nccl_doctor.report.formats.github import SUMMARY_BYTES, summary

        with contextlib.suppress(OSError), Path(path).open("a", encoding="utf-8") as stream:
            stream.write(summary(report, gate, SUMMARY_BYTES - stream.tell()))
