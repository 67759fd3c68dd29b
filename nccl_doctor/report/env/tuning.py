"""What measured settings do to the time of a call."""

from __future__ import annotations

from typing import Any

from nccl_doctor.bench.sizes import format_size
from nccl_doctor.bench.tune import Change, Trial, Tuning
from nccl_doctor.findings.model import shell_word
from nccl_doctor.report.safe_text import visible


def _percent(change: Change) -> str:
    return f"{change.mean * 100:+.1f} % [{change.low * 100:+.1f} %, {change.high * 100:+.1f} %]"


def tuning_json(result: Tuning) -> dict[str, Any]:
    """The result of a tuning run: changes are relative times per call (-0.1: a tenth faster).

    Nothing recommended means that the defaults are best only where it is ``decided``.
    """
    return {
        "recommended": dict(result.best.candidate.env) if result.best else None,
        "trusted": result.trusted,
        "decided": result.decided,
        "rounds": result.rounds,
        "interrupted": result.interrupted,
        "confidence": result.confidence,
        "path": result.path,
        "trials": [_trial_json(trial) for trial in result.trials],
        "control": _trial_json(result.control),
        "notes": list(result.notes),
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "env": dict(trial.candidate.env),
        "verdict": trial.verdict.value,
        "failure": trial.failure,
        "change": _change_json(trial.overall) if trial.overall else None,
        "sizes": [
            {"collective": item.collective, "size": item.size, **_change_json(item.change)} for item in trial.sizes
        ],
    }


def _change_json(change: Change) -> dict[str, float]:
    return {name: round(getattr(change, name), 5) for name in ("mean", "low", "high")}


def tuning_text(result: Tuning) -> str:
    """The result of a tuning run for a terminal: verdict first."""
    lines = []
    if not result.trusted:
        shown = _percent(result.control.overall) if result.control.overall else result.control.failure
        lines.append(f"? cannot tell: the default against itself differs by {shown}; the cluster is not quiet enough")
    elif result.best and result.best.overall:
        for name, value in result.best.candidate.env.items():
            lines.append(f"✓ export {visible(name)}={shell_word(value)}")
        lines.append(
            f"  time per call {_percent(result.best.overall)} against the default, {result.rounds} paired rounds"
        )
    elif not result.compared:
        lines.append("? cannot tell: no candidate could be measured")
    elif not result.decided:
        lines.append(
            f"? cannot tell: a gain of up to {result.hidden * 100:.0f} % may hide in the noise; try more --rounds"
        )
    else:
        what = "no candidate is faster beyond the noise and slower at no size"
        lines.append(f"✓ defaults are best: {what} ({result.rounds} paired rounds)")
    if result.path:
        lines.append(f"  {visible(result.path)}")
    lines.append("")
    width = max(len(trial.candidate.label) for trial in (*result.trials, result.control))
    for trial in result.trials:
        said = visible(trial.failure) if trial.overall is None else _percent(trial.overall)
        lines.append(f"  {visible(trial.candidate.label):<{width}}  {trial.verdict.value:<13}  {said}")
        for item in trial.sizes:
            if item.change.faster or item.change.slower:
                lines.append(f"  {'':<{width}}    {item.collective} {format_size(item.size)}: {_percent(item.change)}")
    if result.control.overall:
        lines.append(f"  {'default again':<{width}}  control        {_percent(result.control.overall)}")
    lines += [f"  note: {visible(note)}" for note in result.notes]
    lines.append("")
    lines.append(f"  change of the time per call (less is better), with {result.confidence * 100:.1f} % intervals")
    return "\n".join(lines) + "\n"
