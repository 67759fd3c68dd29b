"""The page of one variable: what it does, in which versions, what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nccl_doctor.env.knowledge import Answer, Risk, Status, Variable, beginning
from nccl_doctor.env.lint_names import TIMEOUT_CODE
from nccl_doctor.report.env import wrapped

_RISK = {
    Risk.SAFE: "safe",
    Risk.DEBUGGING: "debugging only: not in production, or only as a workaround",
    Risk.PIN: "performance pin: overrides what NCCL tunes itself",
    Risk.DANGEROUS: "dangerous: can corrupt data, hang or break a job",
}


def answer_json(answer: Answer) -> dict[str, Any]:
    """The machine-readable page of one name. ``first`` and ``last`` are null where nothing ever read it."""
    variable = answer.variable
    page: dict[str, Any] = {
        "name": answer.name,
        "status": answer.status.value,
        "first": (variable.first or None) if variable else None,
        "last": (variable.last or None) if variable else None,
        "legacy_backend_since": (variable.legacy_since or None) if variable else None,
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
    if answer.only_legacy:
        return f"read by {who} only where TORCH_DIST_USE_NCCL2=0 chooses the legacy NCCL backend"
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


def answer_text(answer: Answer, width: int) -> str:
    """The page of one name for a terminal."""
    lines = [answer.name]
    for label, said in _rows(answer):
        lines += wrapped(said, width, f"  {label:<13} ", 16)
    return "\n".join(lines) + "\n"
