"""Lint of what single values mean: default restated, leftover debugging, pins, dangerous ones."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.env import number, versions
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.knowledge import Answer, Risk, Variable
from nccl_doctor.env.lint import Context, Edit, Said, doubtful, worth_knowing, wrong
from nccl_doctor.env.lint_syntax import NO, YES


def is_default(item: Assignment, answer: Answer) -> bool:
    """Whether the value only says what holds anyway at this version."""
    variable, value = answer.variable, item.value
    if variable is None or value is None:
        return False
    if value in variable.neutral:
        return True
    default = answer.default
    if number.is_number(default) and number.is_number(value):
        return number.as_read(default) == number.as_read(value)
    return default not in ("", "unset") and default.split(" ")[0].casefold() == value.casefold()


def shown(item: Assignment) -> str:
    """``NAME=value``, or the name where the value is computed."""
    return item.name if item.value is None else f"{item.name}={item.value}"


def leftover(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Debugging settings that were forgotten."""
    variable, value = answer.variable, item.value
    if variable is None or value is None:
        return
    why = next((said for known, said in variable.leftover.items() if _same(known, value, variable)), "")
    if why:
        yield doubtful(
            "leftover-debugging",
            f"{item.name}={value} is a debugging setting: {why}",
            fix=_fix("Remove it.", variable, ""),
            edit=Edit(),
        )


def _same(known: str, value: str, variable: Variable) -> bool:
    if variable.values and variable.values.kind == "boolean":
        return value.lower() in (YES if known == "1" else NO)
    if number.is_number(known) and number.is_number(value):
        return number.as_read(known) == number.as_read(value)
    return known.casefold() == value.casefold()


def pinned(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Settings that fix by hand what NCCL tunes itself."""
    variable = answer.variable
    if variable is None or variable.risk is not Risk.PIN or is_default(item, answer) or item.value == "":
        return
    value = "" if item.value is None else f"={item.value}"
    vendor = context.vendors.get(item.scope, "")
    if vendor:
        yield worth_knowing(
            "pinned",
            f"{item.name}{value} overrides NCCL's tuning; {vendor} prescribes such settings: follow its profile",
        )
        return
    if item.name == "NCCL_IB_GID_INDEX" and not context.nccl_at_least("2.21.5"):
        yield worth_knowing(
            "pinned",
            f"{item.name}{value}: right for RoCE before NCCL 2.21 (default: index 0), if every host's table agrees",
            fix="Remove it when NCCL 2.21 or later is used: it then finds the RoCE v2 IPv4 GID itself.",
        )
        return
    why = variable.pin or "an internal setting that NCCL chooses for each GPU generation and network"
    yield doubtful(
        "pinned",
        f"{item.name}{value} fights NCCL's own choice: {why}",
        fix=_fix("Remove it, or keep the measurement that proves it beside it.", variable),
        edit=Edit(),
    )


def no_ring(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """NCCL_ALGO without Ring: since 2.24 nothing falls back to Ring by itself."""
    value = (item.value or "").casefold()
    if item.name != "NCCL_ALGO" or not value or value[:1] == "^" or ":" in value or not context.nccl_at_least("2.24.3"):
        return
    if "ring" not in value.split(","):
        yield wrong(
            "algo-without-ring",
            f"{item.name}={item.value}: since NCCL 2.24 an operation that none of these can do ends the job "
            "(Tree has all-reduce only)",
            fix="Remove it, or add Ring.",
            edit=Edit(),
            confidence=1.0 if context.nccl_version else 0.9,
        )


def _fix(what: str, variable: Variable, only: str = "Set it only when: ") -> str:
    """What to do, and when the variable is right."""
    if variable.set_when.startswith("To "):
        return f"{what} Set it only to {variable.set_when.removeprefix('To ')}"
    return f"{what} {only}{variable.set_when}" if variable.set_when else what


def dangerous(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Settings that can corrupt data, hang or break a job."""
    variable = answer.variable
    if variable is None or variable.risk is not Risk.DANGEROUS or is_default(item, answer) or item.value == "":
        return
    yield doubtful(
        "dangerous",
        f"{shown(item)} can break a job: {variable.never or variable.meaning}",
        fix=_fix("Remove it.", variable),
    )


def restated(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """Values that say what holds anyway, or what held in an older release."""
    variable, value = answer.variable, item.value
    if variable is None or value is None or item.how is How.LOG or not (variable.of_nccl or variable.of_torch):
        return
    if is_default(item, answer):
        release = variable.history[-1][0] if variable.history and answer.assumed else ""
        since = f" since {release}" if release else f" in {answer.version}" if answer.version else ""
        yield worth_knowing(
            "default-restated",
            f"{item.name}={value} is the default{since}: it does nothing, until the default changes and it is wrong",
            fix="Remove it.",
            edit=Edit(),
        )
        return
    past = [release for release, default in variable.history if default == value and default not in ("-1", "-2")]
    if past and variable.values and variable.values.kind == "integer":
        later = next((r for r, _ in variable.history if versions.parse(r) > versions.parse(past[-1])), "")
        if later and versions.at_least(versions.parse(answer.version), later):
            yield worth_knowing(
                "default-restated",
                f"{item.name}={value} was the default until {later}; it is {answer.default} now",
                fix="Remove it, unless the old behaviour is wanted.",
                edit=Edit(),
            )


def outdated(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """A number that was chosen to raise an earlier default, and is below today's: NCCL_IB_TIMEOUT=16."""
    variable, value = answer.variable, item.value or ""
    if variable is None or not number.is_number(value) or not answer.default.isdigit():
        return
    defaults = [int(default) for _, default in variable.history if default.isdigit()]
    past = [default for default in defaults if default < int(answer.default)]
    if defaults != sorted(defaults) or not past or past[0] < 1 or number.as_read(value) in past:
        return
    if past[0] < number.as_read(value) < int(answer.default):
        yield doubtful(
            "outdated-value",
            f"{item.name}={value} was above the default once ({past[0]}); now it lowers it ({answer.default})",
            fix=_fix("Remove it.", variable),
            edit=Edit(),
        )


def shared_log(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """NCCL_DEBUG_FILE without the process in its name: each rank opens the file anew, and what was in it is gone."""
    if item.name == "NCCL_DEBUG_FILE" and item.value and "%p" not in item.value and not item.value.startswith("/dev/"):
        host = "" if "%h" in item.value else ".%h"
        yield doubtful(
            "shared-log",
            f"{shown(item)} is one file for {'all ranks of a host' if not host else 'all ranks that see it'}: each opens "
            "it anew and empties it",
            fix=f"Write {item.name}={item.value}{host}.%p (%h: host, %p: process)",
            edit=Edit(value=f"{item.value}{host}.%p"),
            confidence=0.9,
        )


RULES = (leftover, pinned, no_ring, dangerous, restated, outdated, shared_log)
