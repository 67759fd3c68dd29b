"""What the stacks of several hanging processes say together."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_doctor.explain.case import Candidate, Case, diagnosis, ranks_of
from nccl_doctor.explain.model import Hit

_FUNCTION = re.compile(r"(\w+) \(torch/distributed/|line \d+ in (\w+)\s*$")
_WAITS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|synchronize|\brecv|\bsend\b"
)
_NOT_CALLS = frozenset(("wrapper", "wait", "_wait", "inner"))  # what stands inside of every call


@diagnosis
def different_stacks(case: Case) -> Iterable[Candidate]:
    """Stacks of hanging processes (py-spy, faulthandler): one waits in another collective than the others.

    Each process's innermost call of torch.distributed counts. Different calls at the same time mean that the ranks went
    different ways through the code; one and the same call proves nothing.
    """
    calls: dict[tuple[str, str], tuple[str, Hit]] = {}
    process = ""
    surely = True
    for hit in case.hits("stack-process", "stack-frame"):
        if hit.signature == "stack-process":
            process = hit.groups["pid"]
            surely &= "command" in hit.groups  # threads may be those of one process
            continue
        found = _FUNCTION.search(hit.text)
        name = (found.group(1) or found.group(2)) if found else ""
        if name and name not in _NOT_CALLS:
            calls.setdefault((hit.file, process or str(hit.rank)), (name, hit))
    names = sorted({name for name, _ in calls.values()})
    if len(names) > 1:
        hits = [hit for _, hit in calls.values()]
        yield Candidate(
            "app.collective-mismatch",
            0.8 if surely else 0.66,
            f"the processes wait in different collectives: {' / '.join(names)[:160]}",
            hits,
            ranks_of(hits),
            why=different_stacks.__doc__ or "",
        )


@diagnosis
def stack_of_one_side(case: Case) -> Iterable[Candidate]:
    """Somebody took the stack of a process that waits for other ranks. What those do, only their own stacks can say."""
    waiting = [hit for hit in case.hits("stack-process-rows") if _WAITS.search(hit.text)] if case.stands else []
    for place, cause in enumerate(("app.collective-mismatch", "app.straggler-timeout") if waiting else ()):
        title = (
            f"a process waits for other ranks ({waiting[0].text.strip()[:80]}); what they do, their stacks would tell"
        )
        hits = [*waiting[:6], *case.stands[:2]]
        yield Candidate(cause, 0.34 - 0.02 * place, title, hits, ranks_of(hits), why=stack_of_one_side.__doc__ or "")
