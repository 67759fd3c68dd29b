"""Lint of names: misspelled, read by nobody, removed, renamed, not yet there, lost on the way to the job."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.env import knowledge, versions
from nccl_doctor.env.assignments import Assignment, How
from nccl_doctor.env.knowledge import Answer, Nobody, Status
from nccl_doctor.env.lint import Context, Edit, Said, doubtful, worth_knowing, wrong
from nccl_doctor.findings.model import EnvAdvice, Severity, shell_word

TIMEOUT_CODE = 'torch.distributed.init_process_group("nccl", timeout=datetime.timedelta(minutes=30))'


def judge(item: Assignment, answer: Answer) -> Iterator[Said]:
    """What is wrong with the name. At most one remark about its status, and one about it being lost."""
    if item.written and item.how is How.CONF:
        yield from _conf_name(item)
        return
    if item.lost and answer.status is not Status.UNKNOWN:
        yield from _lost(item, answer)
    if answer.nobody is not None:
        if item.how is not How.PLAIN:  # not exported: somebody's own shell variable is not our business
            yield from _nobody(item, answer.nobody)
    elif answer.status is Status.UNKNOWN:
        yield from _unknown(item, answer)
    elif answer.variable is not None:
        yield from _dated(item, answer)


def _conf_name(item: Assignment) -> Iterator[Said]:
    value = (item.value or "").strip()
    seen = f" (NCCL sees a variable {item.written!r})"
    if "=" not in item.text:
        what, seen = "without '=' the line is skipped", ""
    elif item.written.startswith("\ufeff"):
        what = "the byte order mark at the start of the file belongs to the first name"
    elif item.written.lstrip().startswith("export"):
        what = "export is not understood"
    else:
        what = "blanks belong to the name"
    yield wrong(
        "conf-syntax",
        f"{item.name} has no effect: nccl.conf is no shell script, {what}{seen}",
        fix=f"Write {item.name}={value}",
        edit=Edit(name=item.name, value=value),
    )


def _lost(item: Assignment, answer: Answer) -> Iterator[Said]:
    if answer.nobody is not None or answer.variable is None or answer.variable.category in ("rendezvous", "torchrun"):
        return  # a dead name is reported as such; MASTER_PORT and the like are ordinary shell variables in scripts
    marked = "byte order mark" in item.lost
    fix = "Save the file without it." if marked else f"export {item.name}"
    yield doubtful(
        "not-exported",
        f"{item.name} never reaches the job as it stands: {item.lost}",
        fix=f"ENV {item.name}={item.value or ''}" if "ENV" in item.lost else fix,
        code=rf"sed -i '1s/^\xEF\xBB\xBF//' {shell_word(item.file)}" if marked and item.file else "",
        confidence=0.85,
    )


def _nobody(item: Assignment, nobody: Nobody) -> Iterator[Said]:
    if nobody.timeout:
        yield wrong(
            "timeout-does-nothing",
            f"{item.name} does nothing: the time-out of collectives is an argument in code",
            fix="Set it where the process group is made (Lightning, Accelerate, DeepSpeed, Trainer: see the playbook):",
            code=TIMEOUT_CODE,
            edit=Edit(),
        )
        return
    instead = f"; {nobody.instead} is read" if nobody.instead else ""
    yield doubtful(
        "read-by-nobody",
        f"{item.name} does nothing: no release of NCCL or PyTorch reads it{instead}",
        fix=nobody.truth or "Remove it" + (f", or set {nobody.instead}." if nobody.instead else "."),
        edit=Edit(),
    )


_OURS = "NCCL_DOCTOR_"


def _unknown(item: Assignment, answer: Answer) -> Iterator[Said]:
    if item.name.startswith(_OURS):
        return
    first = answer.near[0] if answer.near else ""
    if first in knowledge.load().variables:
        yield wrong(
            "misspelled",
            f"{item.name} is read by nobody; did you mean {' or '.join(answer.near)}?",
            fix=f"Write {first}",
            edit=Edit(name=first) if len(answer.near) == 1 else None,
            confidence=0.95,
        )
    elif item.lost:
        return  # somebody's own shell variable is not our business
    elif first:  # another spelling of what nobody reads either
        yield from _nobody(item, knowledge.load().nobody[first])
    else:
        yield doubtful(
            "unknown-name",
            f"{item.name} is read by no known release of NCCL, PyTorch or a known plugin",
            fix="Remove it, unless a plugin or a private build of yours reads it.",
            confidence=0.7,
        )


def _dated(item: Assignment, answer: Answer) -> Iterator[Said]:
    variable = answer.variable
    assert variable is not None
    reader = "PyTorch" if variable.of_torch else "NCCL" if variable.of_nccl else variable.reader
    who = f"{reader} {answer.version}".strip()
    if answer.status is Status.REMOVED:
        yield doubtful(
            "removed",
            f"{item.name} does nothing: {who} no longer reads it (last: {variable.last})",
            fix=variable.never or (f"Use {variable.replaced_by}." if variable.replaced_by else "Remove it."),
            edit=Edit(),
        )
    elif answer.status is Status.RENAMED:
        yield from _renamed(item, answer, who)
    elif answer.status is Status.READ_BY_NOBODY:
        yield doubtful(
            "too-new",
            f"{item.name} does nothing yet: {who} does not read it (first: {variable.first})",
            fix=f"Remove it, or use {reader} {variable.first} or later.",
        )
    elif variable.replaced_in and versions.at_least(versions.parse(answer.version or "0.0"), variable.replaced_in):
        yield worth_knowing(
            "renamed",
            f"{item.name} is still read; {variable.replaced_by} took its place in {variable.replaced_in}",
            fix=f"Write {variable.replaced_by}",
        )


def of_the_legacy_backend(item: Assignment, answer: Answer, context: Context) -> Iterator[Said]:
    """What PyTorch's default NCCL backend does not read any more."""
    if answer.only_legacy and item.scope not in context.legacy:
        yield worth_knowing(
            "removed",
            f"{item.name} does nothing: the default NCCL backend of PyTorch {answer.version}, nccl2, does not read it",
            fix="Remove it; TORCH_DIST_USE_NCCL2=0 chooses the legacy backend, which reads it.",
            edit=Edit(),
        )


def _renamed(item: Assignment, answer: Answer, who: str) -> Iterator[Said]:
    variable = answer.variable
    assert variable is not None
    alive = versions.at_most(versions.parse(answer.version), variable.last)
    since = f" in {variable.replaced_in}" if variable.replaced_in else ""
    says = f"{who} still accepts the old name, but the new one wins" if alive else f"{who} no longer reads this name"
    looks_like_nccl = item.name.startswith("NCCL_") and variable.of_torch
    yield Said(
        "renamed",
        f"{item.name} was renamed {variable.replaced_by}{since}: {says}",
        severity=Severity.WARN if looks_like_nccl or not alive else Severity.INFO,
        fix=variable.never or f"Write {variable.replaced_by}",
        edit=Edit(name=variable.replaced_by),
        advice=EnvAdvice(variable.replaced_by, item.value or "", f"the name since {variable.replaced_in or who}"),
    )
