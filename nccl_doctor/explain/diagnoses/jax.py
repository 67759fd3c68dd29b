"""JAX: who came to its coordinator and its barriers, and who left."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.hang import CRASHED
from nccl_doctor.explain.lines import later, shape, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.facts.fold import few

_DEADLINE = re.compile(r"DEADLINE_EXCEEDED|Deadline Exceeded")
_TASK = re.compile(r"/(task:\d+)\s*$")
_LATE = re.compile(
    r"timed out task names:((?:(?:\\n| )/job:\S+?/task:\d+)+)", re.IGNORECASE
)  # an exception's text in one line
_GONE = re.compile(r"eartbeat|died|unhealthy|UNAVAILABLE|disconnect")
_MISSED = re.compile(r"heartbeat timeout|stopped sending heartbeats")  # whenever that is told
_NOT_CONNECTED = re.compile(r"[Ff]ailed to connect|No route to host|Connection refused|unreachable")
_NUMBER = re.compile(r"\b(\d{1,6})\s*$")
_FEW = 3  # tasks: of more, what they have in common ended them


def _after(hit: Hit, others: list[Hit]) -> bool:
    return any(later(hit, one) for one in others)


def _late_tasks(text: str) -> list[str]:
    """Which tasks a line says were late at a barrier: one a line, or all behind their heading."""
    inline = _LATE.search(text)
    return re.findall(r"/(task:\d+)", inline[1]) if inline else _TASK.findall(text)


@diagnosis
def jax_barrier(case: Case) -> Iterable[Candidate]:
    """JAX's coordinator counts who came to a barrier: the first one is the registration, a later one a step of the program.

    It hears the heartbeats of its tasks: who is missed at a barrier only is alive, and late.
    """
    hits, registration = case.hits("jax-barrier-count"), case.hits("jax-registration")
    if not hits and not registration:
        call = case.hits("jax-register-call")
        late = [hit for hit in case.hits("coordination-service") if _DEADLINE.search(hit.text)] if call else []
        if late and not case.has("grpc-unavailable"):
            title = "registering with JAX's coordinator took too long: tasks are missing, or it cannot be reached"
            strengths = {"launch.world-size": 0.46, "net.master-unreachable": 0.44}
            yield from rivals(strengths, title, [*late[:2], *call[:2]], *speakers(late))
        return
    counted = f"only {hits[0].groups['joined']} of {hits[0].groups['world']} tasks" if hits else "not all tasks"
    refused = [hit for hit in case.hits("grpc-unavailable") if _NOT_CONNECTED.search(hit.text)]
    if registration and refused:
        title = f"{counted} registered with JAX's coordinator, and another cannot connect to it"
        yield Candidate("net.master-unreachable", 0.78, title, [*refused[:3], *hits, *registration], *speakers(refused))
    elif registration:
        told = [*case.hits("jax-barrier-count-rows"), *(hit for hit in registration if _LATE.search(hit.text))]
        missing = {int(task.partition(":")[2]) for hit in told for task in _late_tasks(hit.text)}
        title = f"{counted} registered with JAX's coordinator"
        yield Candidate("launch.world-size", 0.74, title, [*hits, *registration], missing)
    else:
        rows = [hit for hit in (*case.hits("jax-barrier-count-rows"), *hits) if _late_tasks(hit.text)]
        # What is said of the service after the time-out tells that this ended it.
        told = case.hits("coordination-service", "grpc-unavailable", "jax-task-silent")
        silent = any(_GONE.search(hit.text) and (not _after(hit, hits) or _MISSED.search(hit.text)) for hit in told)
        crashed = any(not _after(hit, hits) for hit in case.hits(*CRASHED))
        late = [] if silent or crashed else rows
        ranks: set[int] = set()
        title = f"{counted} reached a barrier of JAX's coordinator in time"
        if late:
            missed = dict.fromkeys(task for hit in late for task in _late_tasks(hit.text))
            title += f": {', '.join(list(missed)[:4])} did not, and none of its heartbeats is missed"
            ranks = {int(task.partition(":")[2]) for task in missed}
        yield Candidate(
            "app.straggler-timeout", 0.72 if late else 0.46, title, [*hits[:1], *rows[:4], *hits[1:]], ranks
        )


@diagnosis
def silent_task(case: Case) -> Iterable[Candidate]:
    """The coordinator tells by its number which task it no longer hears: that one died, was stopped, or was cut off."""
    heads = [shape(hit.text) for hit in case.hits("jax-unhealthy")]
    rows = []
    for hit in case.hits("jax-unhealthy-rows"):
        found = _NUMBER.search(hit.text)
        # Nothing else on the line, but for what stands before every line.
        if found and any(head.startswith(shape(hit.text[: found.start()])) for head in heads):
            rows.append((hit, int(found[1])))
    missed = case.hits("jax-heartbeat-missed")
    tasks = {number for _, number in rows} | {int(hit.groups["task"]) for hit in missed}
    if 0 < len(tasks) <= _FEW:
        title = f"task {few(sorted(tasks))} of the JAX job stopped answering its coordinator"
        hits = [*missed[:2], *case.hits("jax-unhealthy")[:1], *(hit for hit, _ in rows[:2])]
        yield Candidate("net.peer-lost", 0.52, title, hits, tasks)


@diagnosis
def process_of_jax_left(case: Case) -> Iterable[Candidate]:
    """A process of JAX came to its end while another was still to meet it in a collective: they ran different programs, or
    one had fewer steps."""
    waits = [hit for hit in case.hits("xla-rendezvous") if "Termination timeout" in hit.text]
    gave_up = max((wait.seconds for wait in waits if wait.seconds is not None), default=0.0)
    left = [hit for hit in case.hits("xla-process-leaves") if hit.seconds is not None and hit.seconds < gave_up]
    if left:
        tail = case.summary.tails.get(left[0].file, [])
        last = [hit for hit in tail if later(left[0], hit) and hit.host == left[0].host]
        title = "a process of JAX left while another waited for it in a collective"
        strengths = {"app.collective-mismatch": 0.64, "app.uneven-inputs": 0.5}
        yield from rivals(strengths, title, [*left[:1], *last[-2:], *waits[:2]], *speakers(left))
