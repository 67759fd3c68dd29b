"""A recommendation, in the formats of what sets variables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nccl_doctor.env.recommend_model import Advice, Line
from nccl_doctor.facts.fold import counted, fold
from nccl_doctor.findings.model import shell_word
from nccl_doctor.report.env import WIDTH, head_lines, wrapped
from nccl_doctor.report.safe_text import visible


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
    lines = head_lines(head, width)
    for line in advice.lines:
        risk = "risky" if line.advice.risky else "safe"
        name = visible(line.advice.name)
        lines.append(f"  unset {name}" if line.advice.unset else f"  export {name}={shell_word(line.advice.value)}")
        lines += wrapped(_comment(line), width, " " * 9)
        lines.append(f"{' ' * 9}[{line.advice.versions}; {risk}; confidence {line.confidence:.2f}]")
        lines.append("")
    for note in advice.notes:
        lines += wrapped(visible(note.text), width, "  also   ")
        if note.command:
            lines.append(f"{' ' * 9}{visible(note.command)}")
        lines.append("")
    for unknown in advice.unknown:
        lines += wrapped(visible(unknown), width, "  ?      ")
    if advice.unknown:
        lines.append("")
    lines.append("  left alone")
    for left in advice.left:
        lines += wrapped(visible(f"{left.name}: {left.why}"), width, " " * 4 + "- ")
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
