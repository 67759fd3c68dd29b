"""How `nccl-doctor env` tells its answers: one variable's page, lint findings, recommendations."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nccl_doctor.bench.sizes import format_size
from nccl_doctor.env.knowledge import Answer, Risk, Status, Variable, beginning
from nccl_doctor.env.lint_names import TIMEOUT_CODE
from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.findings import playbooks
from nccl_doctor.findings.model import Severity, shell_word
from nccl_doctor.report.safe_text import visible

if TYPE_CHECKING:  # `env show` needs none of these: they would be half of its time
    from nccl_doctor.bench.tune import Change, Trial, Tuning
    from nccl_doctor.env.examine import Examination
    from nccl_doctor.env.lint import Remark
    from nccl_doctor.env.recommend_model import Advice, Line

_RISK = {
    Risk.SAFE: "safe",
    Risk.DEBUGGING: "debugging only: not in production, or only as a workaround",
    Risk.PIN: "performance pin: overrides what NCCL tunes itself",
    Risk.DANGEROUS: "dangerous: can corrupt data, hang or break a job",
}

WIDTH = 100  # columns at most
QUOTE_WIDTH = 110  # characters of a quoted line


def answer_json(answer: Answer) -> dict[str, Any]:
    """The machine-readable page of one name. ``first`` and ``last`` are null where nothing ever read it."""
    variable = answer.variable
    page: dict[str, Any] = {
        "name": answer.name,
        "status": answer.status.value,
        "first": (variable.first or None) if variable else None,
        "last": (variable.last or None) if variable else None,
        "default": answer.default or None,
        "replaced_by": answer.replaced_by or None,
        "version": answer.version or None,
        "version_assumed": answer.assumed,
        "newer_than": answer.beyond or None,
        "did_you_mean": list(answer.near),
    }
    if variable:
        page |= {
            "reader": variable.reader,
            "type": variable.type,
            "values": variable.values.describe() if variable.values else "",
            "documented": variable.documented,
            "category": variable.category,
            "risk": variable.risk.value,
            "default_history": [{"since": since, "default": value} for since, value in variable.history],
            "replaced_in": variable.replaced_in or None,
            "meaning": variable.meaning,
            "set_when": variable.set_when,
            "never": variable.never,
            "source": variable.source,
        }
    elif answer.nobody:
        page |= {"meaning": truth(answer), "source": answer.nobody.source}
    elif answer.family:
        page |= {"reader": answer.family.reader, "source": answer.family.source}
    return page


def truth(answer: Answer) -> str:
    """What there is to say of a name nobody reads."""
    nobody = answer.nobody
    assert nobody is not None
    said = nobody.truth or "No effect: no known release of NCCL or PyTorch reads it."
    if nobody.timeout:
        said += f" What sets the time-out is code: {TIMEOUT_CODE}"
    return said


def status_line(answer: Answer) -> str:
    """What becomes of the variable, in one sentence."""
    variable = answer.variable
    if variable is None:
        if answer.nobody is not None:
            return "read by nobody: setting it does nothing"
        if answer.status is Status.CURRENT and answer.family:
            return f"belongs to {answer.family.reader} (by its prefix {answer.family.prefix}); not described here"
        return "unknown: no known release of NCCL, PyTorch or a known plugin reads it"
    who = variable.reader
    if variable.of_torch or variable.of_nccl:
        known = " (the newest known)" if answer.assumed else ""
        known = f" (as far as {answer.beyond}, the newest known, tells)" if answer.beyond else known
        who = f"{who} {answer.version}{known}"
    if answer.status is Status.CURRENT:
        return f"read by {who}"
    if answer.status is Status.READ_BY_NOBODY:
        return f"not read by {who}: it first appears in {variable.first}"
    if answer.status is Status.RENAMED:
        if not variable.last:
            since = f" since {variable.replaced_in}" if variable.replaced_in else ""
            return f"renamed {variable.replaced_by}{since}; {who} still accepts the old name, the new one wins"
        return f"renamed {variable.replaced_by}; {who} no longer reads this name (last: {variable.last})"
    return f"removed: {who} no longer reads it (last: {variable.last}); setting it does nothing"


def _rows(answer: Answer) -> Iterator[tuple[str, str]]:
    yield "status", status_line(answer)
    variable = answer.variable
    if variable is not None:
        yield from _variable_rows(answer, variable)
    elif answer.nobody is not None:
        yield "truth", truth(answer)
        if answer.replaced_by:
            yield "use instead", answer.replaced_by
        yield "source", answer.nobody.source
    elif answer.near:
        yield "did you mean", ", ".join(answer.near) + "?"
    elif names := beginning(answer.name):
        yield "known names", ", ".join(names)


def _variable_rows(answer: Answer, variable: Variable) -> Iterator[tuple[str, str]]:
    if variable.meaning:
        yield "what it is", variable.meaning
    if variable.first:
        span = f"{variable.first} to {variable.last}" if variable.last else f"{variable.first} and later"
        yield "versions", span
    if variable.values and variable.values.describe():
        beyond = f"; anything else {variable.values.otherwise}" if variable.values.otherwise else ""
        yield "values", variable.values.describe() + beyond
    default = answer.default
    if default:
        automatic = " (automatic)" if default in ("-1", "-2") else ""
        past = ", ".join(f"{value} since {since}" for since, value in variable.history)
        yield "default", default + automatic + (f"   ({past})" if past else "")
    if answer.replaced_by:
        since = f" (since {variable.replaced_in})" if variable.replaced_in else ""
        yield "use instead", answer.replaced_by + since
    yield "documented", "yes" if variable.documented else "no"
    if answer.status is not Status.REMOVED:
        yield "risk", _RISK[variable.risk] + (f". {variable.pin[0].upper()}{variable.pin[1:]}." if variable.pin else "")
    if variable.set_when:
        yield "set it when", variable.set_when
    if variable.never:
        yield "never", variable.never
    for value, why in variable.leftover.items():
        yield f"not with {value}" if value != "*" else "not left on", why
    yield "source", variable.source


def answer_text(answer: Answer, width: int = WIDTH) -> str:
    """The page of one name for a terminal."""
    lines = [answer.name]
    for label, said in _rows(answer):
        lines += _wrapped(said, width, f"  {label:<13} ", 16)
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------- lint

_MARK = {Severity.FAIL: "✗", Severity.WARN: "!", Severity.INFO: "·"}


def lint_json(result: Examination) -> dict[str, Any]:
    """The machine-readable result of a lint run."""
    return {
        "judged_for": result.judged_for,
        "looked_at": list(result.looked_at),
        "problems": [{"file": item.file, "why": item.why} for item in result.problems],
        "summary": {severity.value: result.count(severity) for severity in Severity},
        "findings": [
            {
                "id": item.finding.id,
                "severity": item.finding.severity.value,
                "confidence": item.finding.confidence,
                "name": item.assignment.name,
                "value": item.assignment.value,
                "file": item.assignment.file or None,
                "line": item.assignment.line,
                "hosts": list(item.finding.hosts),
                "title": item.finding.title,
                "evidence": [
                    {"text": proof.text, "source": proof.source, "line": proof.line, "host": proof.host}
                    for proof in item.finding.evidence
                ],
                "fix": [{"text": fix.text, "command": fix.command} for fix in item.finding.fixes],
                "playbook": playbooks.for_finding(item.finding.id) or None,
            }
            for item in result.remarks
        ],
    }


def lint_text(result: Examination, show_info: bool = True, width: int = WIDTH) -> str:
    """The result of a lint run for a terminal: verdict first, then file by file."""
    head = (_verdict(result), f"judged for {result.judged_for}")
    lines = [*(row for line in head for row in textwrap.wrap(line, width, subsequent_indent="  ")), ""]
    place = None
    hidden = 0
    for item in result.remarks:
        if item.finding.severity is Severity.INFO and not show_info:
            hidden += 1
            continue
        proof = item.finding.evidence[0]
        here = proof.host or proof.source
        if here != place:
            lines += [visible(here)]
            place = here
        lines += _finding_lines(item, width)
    for problem in result.problems:
        lines += textwrap.wrap(f"? {visible(problem.file)} {visible(problem.why)}", width, subsequent_indent="    ")
    if result.problems:
        lines.append("")
    if hidden:
        lines += [f"{hidden} remarks hidden (--info shows them)", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _verdict(result: Examination) -> str:
    fails, warns, infos = (result.count(severity) for severity in (Severity.FAIL, Severity.WARN, Severity.INFO))
    variables, sources = counted(len(result.assignments), "variable"), counted(len(result.looked_at), "source")
    read = f"{variables} set in {sources}"
    unread = f", {len(result.problems)} not readable" if result.problems else ""
    if fails:
        return f"✗ {fails} wrong, {warns} doubtful, {infos} worth knowing; {read}{unread}"
    if warns:
        return f"! nothing wrong, {warns} doubtful, {infos} worth knowing; {read}{unread}"
    if not result.looked_at:
        return f"? nothing could be read{unread}: no verdict"
    known = f", {infos} worth knowing" if infos else ""
    if result.problems:
        return f"? nothing wrong in what could be read{known}; {read}{unread}"
    return f"✓ nothing wrong{known}; {read}"


def _finding_lines(item: Remark, width: int) -> list[str]:
    found = item.finding
    where = f"{found.evidence[0].line}:" if found.evidence[0].line else ""
    head = f"  {where:<5}{_MARK[found.severity]} "
    lines = _wrapped(visible(found.title), width, head)
    indent = " " * 9
    lines.append(f"{indent}{_quoted(found.evidence[0].text)}")
    for other in found.evidence[1:4]:
        place = f"{other.host or other.source}{f':{other.line}' if other.line else ''}"
        lines.append(f"{indent}{_quoted(other.text)}   ({visible(place)})")
    for fix in found.fixes:
        lines += _wrapped(visible(fix.text), width, f"{indent}fix: ")
        if fix.command:
            lines.append(f"{indent}     {visible(fix.command)}")
    lines += [f"{indent}[{found.id}]", ""]
    return lines


def _quoted(text: str) -> str:
    told = visible(text)
    return told if len(told) <= QUOTE_WIDTH else f"{told[: QUOTE_WIDTH - 1]}…"


def _wrapped(text: str, width: int, first: str, indent: int = 9) -> list[str]:
    beneath = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=beneath, break_long_words=False, break_on_hyphens=False
    )


# -------------------------------------------------------------------------------------------------------- recommend


def _set_lines(advice: Advice) -> tuple[Line, ...]:
    return tuple(line for line in advice.lines if not line.advice.unset)


def _comment(line: Line) -> str:
    only = f"; only on {fold(line.advice.hosts)}" if line.advice.hosts else ""
    return visible(f"{line.advice.reason} ({line.fact}){only}")


def advice_json(advice: Advice) -> dict[str, Any]:
    """The recommendation, machine-readable."""
    return {
        "hosts": list(advice.hosts),
        "purpose": advice.purpose.value,
        "judged_for": advice.judged_for,
        "set": [
            {
                "name": line.advice.name,
                "value": line.advice.value,
                "unset": line.advice.unset,
                "reason": line.advice.reason,
                "fact": line.fact,
                "versions": line.advice.versions,
                "confidence": line.confidence,
                "risky": line.advice.risky,
                "only": list(line.advice.hosts),
            }
            for line in advice.lines
        ],
        "left_alone": [{"name": left.name, "why": left.why} for left in advice.left],
        "notes": [{"text": note.text, "command": note.command} for note in advice.notes],
        "unknown": list(advice.unknown),
    }


def advice_text(advice: Advice, width: int = WIDTH) -> str:
    """The recommendation for a terminal: what to set and why, what else is needed, what was left alone."""
    nothing = "not known whether anything needs setting" if advice.unknown else "nothing needs setting"
    what = f"change {counted(len(advice.lines), 'variable')}" if advice.lines else nothing
    head = (f"{what} on {visible(fold(advice.hosts))}", f"judged for {visible(advice.judged_for)}")
    lines = [*(row for line in head for row in textwrap.wrap(line, width, subsequent_indent="  ")), ""]
    for line in advice.lines:
        risk = "risky" if line.advice.risky else "safe"
        name = visible(line.advice.name)
        lines.append(f"  unset {name}" if line.advice.unset else f"  export {name}={shell_word(line.advice.value)}")
        lines += _wrapped(_comment(line), width, " " * 9)
        lines.append(f"{' ' * 9}[{line.advice.versions}; {risk}; confidence {line.confidence:.2f}]")
        lines.append("")
    for note in advice.notes:
        lines += _wrapped(visible(note.text), width, "  also   ")
        if note.command:
            lines.append(f"{' ' * 9}{visible(note.command)}")
        lines.append("")
    for unknown in advice.unknown:
        lines += _wrapped(visible(unknown), width, "  ?      ")
    if advice.unknown:
        lines.append("")
    lines.append("  left alone")
    for left in advice.left:
        lines += _wrapped(visible(f"{left.name}: {left.why}"), width, " " * 4 + "- ")
    return "\n".join(lines) + "\n"


def advice_shell(advice: Advice) -> str:
    """export and unset lines."""
    return "".join(f"# {_comment(line)}\n{line.advice.shell}\n" for line in advice.lines)


def not_shown(advice: Advice, format: str) -> tuple[str, ...]:
    """What this format has no words for: it goes to standard error."""
    if format in ("text", "json"):
        return ()
    removed = [line for line in advice.lines if line.advice.unset and format not in ("shell", "sbatch")]
    said = [f"take {line.advice.name} away: {_comment(line)}" for line in removed]
    notes = (f"{note.text}: {note.command}" if note.command else note.text for note in advice.notes)
    return (*said, *(visible(text) for text in (*notes, *advice.unknown)))


def advice_conf(advice: Advice) -> str:
    """nccl.conf: plain NAME=VALUE; what NCCL does not read stays a comment."""
    parts = []
    for line in _set_lines(advice):
        item = line.advice
        mine = item.name.startswith("NCCL_")
        prefix = "" if mine else "# not read from nccl.conf, set it in the environment: "
        parts.append(f"# {_comment(line)}\n{prefix}{item.name}={item.value}\n")
    return "".join(parts)


def advice_sbatch(advice: Advice) -> str:
    """export lines for the body of a batch script: srun passes them on."""
    return "#!/bin/bash\n#SBATCH --export=ALL\n" + advice_shell(advice)


def advice_docker(advice: Advice) -> str:
    """docker run options."""
    words = [f" \\\n  -e {line.advice.name}={shell_word(line.advice.value)}" for line in _set_lines(advice)]
    return f"docker run{''.join(words)}\n"


def advice_k8s(advice: Advice) -> str:
    """The env list of a container."""
    items = [
        f"  # {_comment(line)}\n  - name: {line.advice.name}\n    value: {json.dumps(line.advice.value)}\n"
        for line in _set_lines(advice)
    ]
    return "env:\n" + "".join(items) if items else "env: []\n"


ADVICE_FORMATS: dict[str, Callable[[Advice], str]] = {
    "text": advice_text,
    "shell": advice_shell,
    "nccl.conf": advice_conf,
    "sbatch": advice_sbatch,
    "docker": advice_docker,
    "k8s": advice_k8s,
    "json": lambda advice: json.dumps(advice_json(advice), indent=2) + "\n",
}


# ------------------------------------------------------------------------------------------------------------- tune


def _percent(change: Change) -> str:
    return f"{change.mean:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"


def tuning_json(result: Tuning) -> dict[str, Any]:
    """The result of a tuning run: changes are relative times per call (-0.1: a tenth faster).

    Nothing recommended means that the defaults are best only where it is ``decided``.
    """
    return {
        "recommended": dict(result.best.candidate.env) if result.best else None,
        "trusted": result.trusted,
        "decided": result.decided,
        "rounds": result.rounds,
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
        lines.append(f"? cannot tell: a gain of up to {result.hidden:.0%} may hide in the noise; try more --rounds")
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
    lines.append(f"  change of the time per call (less is better), with {result.confidence:.1%} intervals")
    return "\n".join(lines) + "\n"
