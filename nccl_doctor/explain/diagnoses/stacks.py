"""What the stacks of several hanging processes say together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.hang import CRASHED
from nccl_doctor.explain.lines import later, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.summary import KEEP_PER_FILE
from nccl_doctor.facts.fold import few

_FUNCTION = re.compile(r"(\w+) \(torch/distributed/|line \d+ in (\w+)\s*$")
_WAITS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|synchronize|\brecv|\bsend\b"
)
_PROCESS = re.compile(r"\bProcess (\d+): \S")
_FRAME = re.compile(r"\S \([^()]+\)\s*$")
_PYTHON_FRAME = re.compile(r"\.py:\d+\)\s*$")
# Main threads that wait for no rank, or that may wait for the GPU and with it for a collective: they prove nothing.
_ELSEWHERE = re.compile(
    r"\(lib(?:cuda|nccl|torch)|_utils/worker\.py|torch/distributed/(?:elastic|launcher|run)|torch/cuda/|\b(?:_engine_run_backward|synchronize|item|cpu) \("
)
_OWN_CALL = re.compile(
    r"\s*(\w*(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|recv|send)\w*) \("
)
_FOR_GPUS = re.compile(r"\b(?:_value|block_until_ready) \(jax/_src/")  # results of what all GPUs compute together
_NOT_ITS_OWN = re.compile(r"/|<module>")  # of a library, or only the name of the program
_BETWEEN_TWO = re.compile("send|recv")
_STAGE = re.compile(r"\bPP\d+|(?<=_)PP\d+")  # SGLang's and vLLM's names of the processes of a pipeline
_NEAR = 6  # frames of torch.distributed between a call and its caller
_NOT_CALLS = frozenset(("wrapper", "wait", "_wait", "inner"))  # what stands inside of every call


_CALL = re.compile(r"\b(?:nccl|P?MPI_)[A-Z_]\w*")
_HELPERS = re.compile(r"Proxy|Thread|Async|Ras|Progress|Service")  # NCCL's own threads, which wait most of the time


@diagnosis
def held_in_native_code(case: Case) -> Iterable[Candidate]:
    """A debugger was attached to a process of a job that stands still. The call in which it waits is shown; which rank does
    not come to it, or came to another, the stacks of the others tell."""
    attached = [hit for hit in case.hang.stacks if hit.signature == "stack-debugger"]
    calls = [hit for hit in case.hits("nccl-frame", "stack-mpi") if not _HELPERS.search(hit.text)]
    if not attached or case.has(*CRASHED):
        return
    call = _CALL.search(calls[-1].text) if calls else None
    shown = f"a process that waits in {call.group()}" if call else "no thread that calls a collective"
    title = f"a debugger shows {shown}; the other ranks' stacks decide"
    yield from rivals({"app.straggler-timeout": 0.32, "app.collective-mismatch": 0.3}, title, calls[:2] or attached)


@diagnosis
def different_stacks(case: Case) -> Iterable[Candidate]:
    """Stacks of hanging processes (py-spy, faulthandler): one waits in another collective than the others.

    Each process's innermost call of torch.distributed counts. Different calls at the same time mean that the ranks went
    different ways through the code. One and the same call proves only that somebody looked at a job that stood still.
    """
    calls: dict[tuple[str, str], tuple[str, Hit]] = {}
    process = ""
    surely = True
    heading = "stack-process" if case.has("stack-process") else "stack-main"  # of a dump cut to its main threads
    for hit in case.hits(heading, "stack-frame"):
        if hit.signature == heading:
            process = hit.groups.get("pid") or hit.groups["id"]
            surely &= heading == "stack-main" or "command" in hit.groups  # threads may be those of one process
            continue
        found = _FUNCTION.search(hit.text)
        name = (found.group(1) or found.group(2)) if found else ""
        if name and name not in _NOT_CALLS:
            calls.setdefault((hit.file, process or str(hit.rank)), (name, hit))
    names = sorted({name for name, _ in calls.values()})
    if len(names) > 1:
        hits = [hit for _, hit in calls.values()]
        usual = Counter(name for name, _ in calls.values())
        seldom = sorted(calls.values(), key=lambda call: usual[call[0]])
        callers = [caller for _, hit in seldom for caller in _callers(case, hit)]
        title = f"the processes wait in different collectives: {' / '.join(names)[:160]}"
        proof = [*(hit for _, hit in seldom[:2]), *callers[:2], *(hit for _, hit in seldom[2:]), *callers[2:]]
        yield Candidate("app.collective-mismatch", 0.8 if surely else 0.66, title, proof, ranks_of(hits))
    elif names and case.hang.stacks:
        title = f"the processes whose stacks were taken wait in {names[0]}; for whom, the stacks do not say"
        strengths = {"app.straggler-timeout": 0.4, "app.collective-mismatch": 0.37}
        yield from rivals(strengths, title, [hit for _, hit in calls.values()], vague=True)


def _callers(case: Case, call: Hit) -> list[Hit]:
    """The first frame outside of torch.distributed below this one: who called it."""
    below = (hit for hit in case.hits("stack-main-rows") if later(hit, call) and _FRAME.search(hit.text))
    return [hit for hit in itertools.islice(below, _NEAR) if "torch/distributed/" not in hit.text][:1]


def _main_stacks(case: Case) -> list[tuple[str, list[Hit]]]:
    """py-spy's processes, each with the frames of its main thread; a pid may be that of several hosts' processes."""
    stacks: list[tuple[str, list[Hit]]] = []
    main = False  # whether frames of a main thread are being read
    lines = {place(hit): hit for hit in case.hits("stack-process", "stack-main", "stack-main-rows")}
    for hit in lines.values():  # a line may be a row of the stack above and the heading of its own
        if _PROCESS.search(hit.text):
            stacks.append((hit.text, []))
        if main and stacks and _FRAME.search(hit.text):
            stacks[-1][1].append(hit)
        else:
            main = hit.text.endswith('"MainThread"')
    if stacks and len(lines) >= KEEP_PER_FILE:
        stacks.pop()  # its frames may be cut
    return stacks


@diagnosis
def different_waits(case: Case) -> Iterable[Candidate]:
    """py-spy's stacks, all with their innermost frames in a program's own communication: processes of one pipeline stage
    wait in different calls of it, and none does anything that the others could be waiting for.

    Stages wait for each other in other calls than the ranks of one stage do: without a stage's name in the process's, a send
    or receive is not compared with a collective.
    """
    stages: dict[str, dict[str, list[Hit]]] = {}
    for process, frames in _main_stacks(case):
        found = _OWN_CALL.match(frames[0].text) if frames else None
        if not found:
            return
        if "torch/distributed/" not in frames[0].text:
            stage = _STAGE.search(process)
            kind = "" if stage else "between two" if _BETWEEN_TWO.search(found.group(1)) else "of all"
            stages.setdefault(stage.group() if stage else kind, {}).setdefault(found.group(1), []).append(frames[0])
    for among, calls in stages.items():
        if len(calls) > 1:
            rarest = sorted(calls.values(), key=len)
            hits = [hits[0] for hits in rarest] + [hit for hits in rarest for hit in hits[1:]]
            where = f" of {among}" if _STAGE.search(among) else ""
            title = f"the processes{where} wait in different calls: {' / '.join(sorted(calls))[:160]}"
            yield Candidate("app.collective-mismatch", 0.64, title, hits, ranks_of(hits))


@diagnosis
def abort_stands(case: Case) -> Iterable[Candidate]:
    """A debugger's stacks of a process that stands still in ncclCommAbort: that call waits for no other rank."""
    hits = case.hits("stack-abort") if case.hang.stacks else []
    if hits:
        title = "ncclCommAbort does not return: NCCL waits for a thread or a kernel of its own"
        proof = [*hits[:3], *case.hang.stacks[:2]]
        yield from rivals({"sw.nccl-bug": 0.6, "app.pg-misuse": 0.45}, title, proof, *speakers(hits))


@diagnosis
def bootstrap_stands(case: Case) -> Iterable[Candidate]:
    """A debugger's stacks of a process that stands still in NCCL's bootstrap: other ranks have not come, or do not reach it."""
    hits = case.hits("stack-bootstrap") if case.hang.stacks else []
    if hits:
        title = "ranks wait in NCCL's bootstrap for others that have not come there"
        strengths = {"app.straggler-timeout": 0.42, "launch.world-size": 0.4, "net.firewall": 0.38}
        yield from rivals(strengths, title, [*hits[:3], *case.hang.stacks[:2]])


@diagnosis
def one_is_elsewhere(case: Case) -> Iterable[Candidate]:
    """py-spy's stacks of hanging processes: most wait in a collective, or for JAX's results, and the main threads of a few do
    something else.

    Those few are who the others wait for. Whether they come late (a checkpoint, a slow disk) or never (they took
    another branch) is not in the stacks: a second look a minute later tells.
    """
    stacks = [(found.group(1), frames) for process, frames in _main_stacks(case) if (found := _PROCESS.search(process))]
    waiting = [frames for _, frames in stacks if any("distributed_c10d.py:" in hit.text for hit in frames)]
    place_of = "in a collective" if waiting else "for the GPUs"
    waiting = waiting or [frames for _, frames in stacks if any(_FOR_GPUS.search(hit.text) for hit in frames)]
    away = [
        # a line of the user's own code
        (pid, next((hit for hit in python if not _NOT_ITS_OWN.search(hit.text)), python[0]))
        for pid, frames in stacks
        if (python := [hit for hit in frames if _PYTHON_FRAME.search(hit.text)])
        and frames not in waiting
        and not any(_ELSEWHERE.search(hit.text) for hit in frames)
    ]
    if 0 < len(away) <= len(waiting):
        many, own = len(waiting) > 1, [hit for _, hit in away]
        yield Candidate(
            "app.straggler-timeout",
            0.45,  # who, not why: late, or on another way through the code
            f"{len(waiting)} process{'es' * many} wait{'s' * (not many)} {place_of}, "
            f"and process{'es' * (len(away) > 1)} {few([pid for pid, _ in away])} "
            f"{'do' if len(away) > 1 else 'does'} not: {own[0].text.strip()}",
            [*own, *(frames[0] for frames in waiting[:3])],
            ranks_of(own),
        )


@diagnosis
def stack_of_one_side(case: Case) -> Iterable[Candidate]:
    """Somebody took the stack of a process that waits for other ranks. What those do, only their own stacks can say."""
    waiting = [hit for hit in case.hits("stack-main-rows") if _WAITS.search(hit.text)] if case.hang.stacks else []
    if waiting:
        title = (
            f"a process waits for other ranks ({shortened(waiting[0].text, 80)}); what they do, their stacks would tell"
        )
        hits = [*waiting[:6], *case.hang.stacks[:2]]
        yield from rivals({"app.collective-mismatch": 0.34, "app.straggler-timeout": 0.32}, title, hits, ranks_of(hits))
