"""Steps that take too long: since when, and which part of them: waiting for data, for other ranks, or for a compiler."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.speed import complaints, times_by_name
from nccl_doctor.explain.lines import by_file, in_order, later, place, ranks_of, shortened, speakers
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.slowdown import slower_steps

_NO_PART_KNOWN = ("gpu.thermal-power", "net.slow", "app.straggler-timeout")
# What may have slowed down, by the part of a step that grew; the first that fits.
_BY_PART = (
    (r"data|load|input|h2d", ("app.straggler-timeout", "sys.clock-or-dns-or-fs", "app.dataloader-worker")),
    (r"fwd|forward", _NO_PART_KNOWN),
    (r"", ("net.slow", "gpu.thermal-power", "gpu.nvlink", "ib.retry-exceeded")),  # communication, or what hides it
)


@diagnosis
def steps_slowed_down(case: Case) -> Iterable[Candidate]:
    """The steps take far longer at the end of the log than at its beginning, and nothing says why: a GPU, a link or a
    file may have slowed. Clocks, link counters and the times of each rank would tell."""
    if shifted := case.hits(PACE_LEFT):
        yield from _left_its_pace(shifted)
    elif hits := slower_steps(case):
        title = f"the steps have slowed down for good: {shortened(hits[-1].text, 110)}"
        yield from rivals(falling(_NO_PART_KNOWN, 0.34, 0.02), title, hits)


def _left_its_pace(hits: list[Hit]) -> Iterable[Candidate]:
    told = hits[0].groups
    title = f"the pace fell for good: {told['name']} was {told['before']}, and is {told['after']}"
    if told["returned"] == "True":
        title = f"the pace fell for a while: {told['name']} was {told['before']}, then {told['after']}, and came back"
    if told["grew"]:
        rest = f", not {told['stayed']}" if told["stayed"] else ""
        title += f" (longer takes {told['grew']}{rest})"
    parts = (causes for words, causes in _BY_PART if re.search(words, told["grew"], re.IGNORECASE))
    causes = next(parts) if told["grew"] else _NO_PART_KNOWN
    # Who reports the steps is not who holds them up.
    yield from rivals(falling(causes, 0.42, 0.02), title, [hits[1], hits[0], *hits[2:]])


_LIMIT = 8  # times: torch.compile's own limit for a function, unless somebody raised it
_COMPILED = 5.0  # times as long as a step that compiles nothing


@diagnosis
def compiled_step_after_step(case: Case) -> Iterable[Candidate]:
    """torch.compile compiles anew and again, and the steps that do take many times as long as later ones, or somebody says that it
    is too slow; or it does so at most of its steps, to the log's end. That the first step compiles, or that a function is left
    uncompiled, costs a job little."""
    hits = case.hits("compiled-again")
    if not hits:
        return
    told = complaints(case)
    first, last = hits[0], hits[-1]
    steps = in_order([*case.hits("progress"), *case.tail])
    times = [(max(found), hit) for hit in steps if (found := [time for _, time in times_by_name(hit.text)])]
    usual = statistics.median(time for time, _ in times[-_SOME:]) if times else 0.0
    held = [hit for time, hit in times if later(hit, first) and time >= _COMPILED * usual]
    ends = set(map(place, case.tail))
    count = case.count("compiled-again")
    to_the_end = count > _LIMIT and any(place(hit) in ends for hit in case.lasts("compiled-again"))
    if told or len(held) >= _SOME or (to_the_end and 2 * count > case.count("progress")):
        title = "torch.compile compiles anew for each new shape, step after step"
        title += " until its limit" * ("limit" in last.text)
        yield Candidate("app.straggler-timeout", 0.62, title, [last, first, *held[-2:], *told[:2]], slows=True)


_OFTEN = 5  # reports
_LATELY = 30  # lines before the end
_RETRIES = re.compile(r"(\d{1,18}) CUDA memory allocation retries")


@diagnosis
def allocator_gives_back(case: Case) -> Iterable[Candidate]:
    """PyTorch gives its cached memory back, and allocates it again, step by step: the GPU's memory is at its limit, and each
    time all of the GPU's work is waited for."""
    for name in ("allocator-flushes", "allocator-retries"):
        for file, hits in by_file((*case.hits(name), *case.lasts(name))).items():
            last = hits[-1]
            end = max((hit.line for hit in case.summary.tails.get(file, ())), default=0)
            grew = name == "allocator-flushes" or _retries(last) > _retries(hits[0])
            times = case.count(name)
            if times >= _OFTEN and grew and end - last.line <= _LATELY:
                what = "gives its cached memory back" if name == "allocator-flushes" else "tries allocations again"
                title = f"PyTorch {what} step after step ({times} reports of it): the GPU's memory is at its limit"
                # It makes a job slow; that it fails is another matter.
                failed = case.has("watchdog-timeout") or bool(case.summary.tracebacks)
                yield Candidate("gpu.oom", 0.44 if failed else 0.56, title, [last, *hits[:3]], slows=True)
                return


def _retries(hit: Hit) -> int:
    found = _RETRIES.search(hit.text)
    return int(found[1]) if found else 0


_STEP = re.compile(r"(?<!\w)(?:step_|batch_|iter_)?[tT]ime\W{1,4}(\d+(?:\.\d+)?)")
_DATA = re.compile(r"(?<!\w)(?:data_time|[dD]ata)\W{1,4}(\d+(?:\.\d+)?)")
_MOST = 0.7  # of a step
_SOME = 3  # steps
_SECOND = 1.0
_MUCH_LONGER = 10.0  # times


@functools.lru_cache(maxsize=1)
def _data_times(case: Case) -> list[tuple[bool, Hit]]:
    """The steps that tell how long they waited for data, and whether that was the most of their time and a second at least."""
    steps = [hit for hit in (*case.hits("progress"), *case.tail) if "ata" in hit.text]
    return [
        (float(data[1]) >= max(_MOST * float(whole[1]), _SECOND), hit)
        for hit in in_order(steps)
        if (data := _DATA.search(hit.text)) and (whole := _STEP.search(hit.text))
    ]


def last_waited(case: Case) -> list[Hit]:
    """The last step that tells of it, if it consisted of waiting for data: beside another proof one is enough."""
    return [hit for waited, hit in _data_times(case)[-1:] if waited]


_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3})?) ?(?:%|\|?\s*$)")
_CELLS = re.compile(r"\|\s*(\d+(?:\.\d+)?)\s*\|\s*(\d+)\s*\|\s*(\d+(?:\.\d+)?)\s*\|\s*(\d+(?:\.\d+)?)\s*\|?\s*$")
_HALF = 50.0  # percent: a loader that keeps up has the next batch ready
_FEW_CALLS = 10


def _profiled(case: Case) -> list[Hit]:
    """The rows of a profile (Lightning's simple profiler, torch.profiler) in which the loop waited for its next batch in half of
    the time and more, the longest first."""
    told = []
    for hit in case.hits("data-share"):
        cells, percent = _CELLS.search(hit.text), _PERCENT.search(hit.text)
        share = float(cells[4]) if cells else float(percent[1]) if percent else 0.0
        if share >= _HALF and (not cells or int(cells[2]) >= _FEW_CALLS):
            told.append((share, hit))
    return [hit for _, hit in sorted(told, key=lambda pair: -pair[0])]


def starving(case: Case) -> list[Hit]:
    """The last steps that tell of waiting for data most of their time, or many times as long as at first; or a profile's rows."""
    told = _data_times(case)
    last = [hit for waited, hit in told[-_SOME:] if waited]
    if len(last) == _SOME < len(told):  # the first steps are slow anywhere
        return last
    waits = case.hits("data-wait")
    seconds = [float(hit.groups["seconds"]) for hit in waits]
    if len(waits) >= 2 * _SOME and min(seconds[-_SOME:]) >= max(
        _SECOND, _MUCH_LONGER * statistics.median(seconds[:_SOME])
    ):
        return waits[-_SOME:]
    return _profiled(case)


@diagnosis
def steps_wait_for_data(case: Case) -> Iterable[Candidate]:
    """Steps, or a profile, tell that they consist of waiting for the next batch: the file system or object store, the host's cores,
    or a loader with few workers. What the store answers, and what the cores do, would tell."""
    waiting = starving(case)
    store = case.hits("store-throttles")
    if store and (waiting or case.has(PACE_LEFT)):
        title = "the object store refuses requests because there are too many, and the steps wait for their data"
        proof = [*store[-3:], *waiting[-1:], *case.hits(PACE_LEFT)[1:2]]
        yield Candidate("sys.clock-or-dns-or-fs", 0.76, title, proof, slows=True)
    elif waiting:
        title = f"the steps consist of waiting for data: {shortened(waiting[-1].text, 110)}"
        causes = ("sys.clock-or-dns-or-fs", "app.dataloader-worker", "app.straggler-timeout", "sys.container")
        yield from rivals(falling(causes, 0.42, 0.02), title, waiting, slows=True)


# Who waits for a late rank, for a slow link or for a wrong path says the same.
_WAITED_FOR = ("net.slow", "app.straggler-timeout", "ib.gdr", "gpu.nvlink")


@diagnosis
def steps_are_communication(case: Case) -> Iterable[Candidate]:
    """Steps tell that they consist of communication, and NCCL's network is not TCP sockets, or it is not told: who waits for
    a late rank, for a slow link or for a wrong path says the same. The ranks' own times, and a benchmark, would tell."""
    told = [] if case.sockets else case.communicating
    if told:
        title = f"the steps consist of communication, or of waiting in it: {shortened(told[-1].text, 110)}"
        yield from rivals(falling(_WAITED_FOR, 0.42, 0.02), title, told[-4:], ranks_of(told))


_PART = re.compile(r"\b([a-z][a-z_-]*): ?(\d+(?:\.\d+)?)")
_EXCHANGE = re.compile(r"all-?reduce|reduce-?scatter|all-?gather|grads-sync", re.IGNORECASE)
_SECONDS = 5000.0  # ms: even large models exchange their gradients in less over any network made for it


@diagnosis
def step_of_waiting(case: Case) -> Iterable[Candidate]:
    """A framework's own timers say that nearly all of a step, seconds of it, is exchange of gradients between hosts."""
    slow = []
    for hit in case.hits("step-timers"):
        parts = {name: float(time) for name, time in _PART.findall(hit.text)}
        exchange = max((time for name, time in parts.items() if _EXCHANGE.search(name)), default=0.0)
        whole = max((time for name, time in parts.items() if not _EXCHANGE.search(name)), default=0.0)
        if exchange > max(_SECONDS, _MOST * whole) and whole:
            slow.append((exchange / 1000, hit))
    worst, longest = max(slow, key=lambda pair: pair[0], default=(0.0, None))
    if longest and case.between_hosts and not case.summary.tracebacks:
        title = f"the exchange of gradients takes {worst:.0f} s of each step"
        yield Candidate("net.slow", 0.58, title, [longest, *(hit for _, hit in slow[:3])], *speakers([longest]))
    elif len(slow) >= _SOME:  # the first steps are slow anywhere
        title = f"the exchange of gradients, or waiting in it, takes {worst:.1f} s of each step"
        yield from rivals(falling(_WAITED_FOR, 0.42, 0.02), title, [hit for _, hit in slow[-4:]], slows=True)
