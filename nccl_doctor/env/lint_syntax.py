"""Lint of how values are written: those that the reader does not understand, or understands otherwise than it looks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.env import number
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.knowledge import Answer, Variable
from nccl_doctor.env.lint import Context, Edit, Said, doubtful, wrong
from nccl_doctor.env.nccl_conf import CARRIAGE_RETURN_CUT_SINCE
from nccl_doctor.findings.model import shell_word

# PyTorch's own words for yes and no (2.2 and later); anything else raises.
YES, NO = frozenset({"y", "yes", "1", "t", "true"}), frozenset({"n", "no", "0", "f", "false"})

_SILENCE = "an empty set of subsystems silences everything, WARN lines too"

# What people take for the name of a network: NCCL_NET wants the name a network gives itself.
_NOT_A_NETWORK = frozenset(
    {"efa", "aws", "aws-ofi", "aws-ofi-nccl", "rdma", "roce", "infiniband", "tcp", "eth", "ethernet", "verbs"}
)


def not_text(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """A value that must be a string and is not."""
    if not item.not_text:
        return
    if item.how is How.PYTHON:
        what = f"os.environ takes strings only: this line raises TypeError ({item.not_text} found)"
    else:
        who = "Kubernetes and compose refuse" if item.not_text == "boolean" else "Kubernetes refuses"
        what = f"the value is read as {item.not_text}, not as a string: {who} it"
    quoted = f'"{item.value}"'
    yield wrong("not-a-string", f"{item.name}: {what}", fix=f"Quote it: {quoted}", edit=Edit(value=quoted))


def conf_value(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """nccl.conf takes everything after the equals sign as it is."""
    value = item.value
    if item.how is not How.CONF or value is None:
        return
    plain = re.split(r"\s#", value.strip())[0].strip().strip("\"'")
    trouble = ""
    number_of_nccl = answer.variable is not None and answer.variable.kind == "integer"
    windows = item.text.endswith("\r") and not context.nccl_at_least(CARRIAGE_RETURN_CUT_SINCE)
    if windows and not number_of_nccl:  # after a number it is passed over
        trouble, value = "the Windows line end becomes", f"{value}\r"
    elif value.strip()[:1] in ("'", '"'):
        trouble = "the quotes become"
    elif re.search(r"\s#", value):
        trouble = "the comment becomes"
    elif value != value.strip():
        trouble = "the blanks become"
    elif re.search(r"\$[{(A-Za-z_]", value):
        trouble = "no $ is filled in, it becomes"
    if trouble:
        filled = "$" not in plain
        yield wrong(
            "conf-syntax",
            f"{item.name}: in nccl.conf {trouble} part of the value ({value!r})",
            fix=f"Write {item.name}={plain}"
            if filled
            else "Write the value itself, or set it in the job's environment.",
            edit=Edit(value=plain) if filled else None,
        )
    variable = answer.variable
    if variable is not None and (variable.of_torch or item.name in ("NCCL_CONF_FILE", "HOME")):
        who = "PyTorch has read its variables" if variable.of_torch else "NCCL has decided which file to read"
        yield wrong(
            "conf-too-late",
            f"{item.name} has no effect in nccl.conf: by the time NCCL reads the file, {who}",
            fix="Set it in the environment of the job.",
            confidence=0.9,
        )


def windows_line_end(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """A shell takes the carriage return of a Windows line end for a part of the line's last word.

    Who reads an env file is not known: Docker cuts it off (Go's bufio.ScanLines), a shell that sources the file does not.
    """
    value, line, variable = item.value, item.text.removesuffix("\r"), answer.variable
    if not value or line == item.text or item.how is How.CONF:
        return
    values = variable.values if variable else None
    trimmed = bool(values and values.trimmed_since and context.nccl_at_least(values.trimmed_since))
    if trimmed or (variable is not None and variable.kind == "integer"):  # after a number it is passed over
        return
    if line.endswith((value, f"{value}'", f'{value}"')):
        taken = f"{value}\r"
        unsure = item.how is How.ENV_FILE
        who = "a shell that reads this file (. FILE, export $(cat FILE))" if unsure else "a shell"
        yield (doubtful if unsure else wrong)(
            "windows-line-end",
            f"{item.name}: {who} takes the Windows line end into the value ({taken!r})",
            fix="Give the file the line ends of Unix.",
            code=rf"sed -i 's/\r$//' {shell_word(item.file)}" if item.file else "",
        )


def invalid(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """A value the reader does not understand, or understands otherwise than it looks."""
    variable, value = answer.variable, item.value
    if variable is None or value is None or item.not_text or (item.how is How.CONF and value != value.strip()):
        return
    if item.how is How.LOG:
        return  # NCCL has printed what it made of it
    kind = variable.kind
    if not value:
        trouble = _empty(variable)
    elif kind in ("word", "word-list", "tuning-list", "pattern"):
        trouble = _words(variable, value, context)
    elif kind == "boolean":
        trouble = _raises(variable) if _by_getcvar(variable) and value.lower() not in YES | NO else ""
    elif kind == "integer":
        trouble = _integer(variable, value, answer.default, context)
    elif kind == "path" and value.startswith("~") and item.how not in (How.EXPORT, How.PREFIX):
        trouble = "~ is not expanded here"
    else:
        trouble = ""
    if item.name == "NCCL_NET" and value.casefold() in _NOT_A_NETWORK:
        trouble = "is no network's name, so initialisation fails: IB, Socket, or what a plugin calls itself"
    if trouble:
        yield wrong(
            "invalid-value.fatal" if _fatal(variable, trouble, context) else "invalid-value",
            f"{item.name}={value}: {trouble}",
            fix=_valid(variable),
            edit=Edit() if not variable.replaced_by and kind == "word" and value == "" else None,
        )


def _fatal(variable: Variable, trouble: str, context: Context) -> bool:
    """Whether the bad value ends the job, rather than being ignored."""
    values = variable.values
    since = values.fatal_since if values else ""
    return (
        "raises" in trouble
        or "initialisation fails" in trouble
        or bool(values and values.fatal)
        or bool(since and context.nccl_at_least(since))
    )


def _valid(variable: Variable) -> str:
    said = variable.values.describe() if variable.values else "an integer (no suffixes)"
    return f"Valid: {said}." if said else (variable.never or "Remove it.")


def _by_getcvar(variable: Variable) -> bool:
    """Whether PyTorch reads it with getCvarBool or getCvarInt, which raise at what they do not understand."""
    return variable.of_torch and variable.name.startswith(("TORCH_NCCL_", "NCCL_", "TORCH_FR_"))


def _empty(variable: Variable) -> str:
    """Set but empty is the same as not set, but for a few."""
    if variable.name == "NCCL_DEBUG_SUBSYS":
        return _SILENCE
    if variable.values is not None and variable.values.fatal and variable.of_torch:
        return f"empty is none of its values; it {variable.values.otherwise}"
    return _raises(variable) if _by_getcvar(variable) and variable.kind in ("boolean", "integer") else ""


def _raises(variable: Variable) -> str:
    return f'PyTorch raises "Invalid value for environment variable: {variable.name}"'


def _words(variable: Variable, value: str, context: Context) -> str:
    values, kind = variable.values, variable.kind
    if values is None:
        return ""
    if kind == "pattern":
        flags = re.IGNORECASE if values.folds_case else 0
        return "" if re.fullmatch(values.pattern, value, flags) else values.otherwise
    if variable.name == "NCCL_DEBUG_SUBSYS" and value.upper() == "^ALL":
        return _SILENCE
    if values.trimmed_since and context.nccl_at_least(values.trimmed_since):
        value = value.strip()
    entries = [value]
    if kind == "word-list":
        entries = value.removeprefix("^").split(",")
    elif kind == "tuning-list":
        lists = [part.rpartition(":") for part in value.split(";")]
        functions = {name.casefold() for name in values.functions}
        strange = [name for name, colon, _ in lists if colon and name.casefold() not in functions]
        if strange:
            return f"{strange[0]!r} is no operation; it {values.otherwise}"
        entries = [entry for _, _, part in lists for entry in part.removeprefix("^").split(",")]
    newer = [word for word, first in values.newer.items() if context.nccl_at_least(first)]
    older = [word for word, last in values.older.items() if context.nccl_at_most(last)]
    known = {word.casefold() if values.folds_case else word for word in (*values.words, *newer, *older)}
    bad = [entry for entry in entries if (entry.casefold() if values.folds_case else entry) not in known]
    if values.numbers:
        bad = [entry for entry in bad if not re.match(r"[0-9]", entry)]
    if not bad:
        return ""
    shown = " and ".join(repr(entry) for entry in bad[:3])
    return f"{shown} {'are' if len(bad) > 1 else 'is'} not known; it {values.otherwise or 'is not understood'}"


def _integer(variable: Variable, value: str, default: str, context: Context) -> str:
    if not number.is_number(value):
        if variable.of_torch:
            return _torch_integer(variable, value)
        if not number.has_digits(value) and context.nccl_at_least(number.NO_DIGITS_REFUSED_SINCE):
            return f"is no number: NCCL refuses it, and its default{f' ({default})' if default else ''} holds"
        read = number.as_read(value)
        return f"read as {read}: NCCL takes the digits at the start and ignores the rest"
    if not variable.of_torch and not number.fits(value):
        return f"does not fit into 64 bits: NCCL refuses it, and its default{f' ({default})' if default else ''} holds"
    values, count = variable.values, number.as_read(value)
    if values is None or count in values.also:
        return ""
    consequence = f"; it {values.otherwise}" if values.otherwise else ""
    if values.least is not None and count < values.least:
        return f"below the least value {values.least}{consequence}"
    if values.most is not None and count > values.most:
        return f"above the greatest value {values.most}{consequence}"
    if count % values.multiple:
        return f"no multiple of {values.multiple}{consequence}"
    if re.match(r"\s*[+-]?0[0-9]+\s*\Z", value):
        return f"a leading 0 makes it octal: {count}"
    return ""


def _torch_integer(variable: Variable, value: str) -> str:
    """PyTorch uses std::stoi: decimal digits at the start, and an error without any."""
    if variable.category == "torchrun":
        return ""
    digits = re.match(r"\s*[+-]?[0-9]+", value)
    if digits:
        return f"read as {int(digits[0])}: PyTorch takes the digits at the start and ignores the rest"
    return _raises(variable)


RULES = (not_text, conf_value, windows_line_end, invalid)
