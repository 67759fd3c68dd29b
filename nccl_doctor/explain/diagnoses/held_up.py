"""Slow runs: what holds the steps up, by the counters and timers that tell it."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.diagnoses.speed import complaints, times_by_name
from nccl_doctor.explain.diagnoses.tables import below
from nccl_doctor.explain.lines import by_file, hosts_of, in_order, just_below, place, ranks_of, shortened
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.slowdown import slower_steps
from nccl_doctor.facts.fold import ranges

_TIMER = re.compile(r"([\w-]+) \.{2,}: ?\((\d+(?:\.\d+)?), (\d+(?:\.\d+)?)\)")
_LATE = 1000.0  # ms that the slowest rank needs for its batch: a loader that keeps up has it ready
_APART = 10.0  # times as long as the fastest rank
_OF_A_STEP = 0.2


@diagnosis
def late_batches(case: Case) -> Iterable[Candidate]:
    """Megatron's timers: one rank waits seconds for its batch, another gets it at once, and every step waits for the last one.

    Other parts differ between the stages of a pipeline by design, or are waiting themselves; batch-generator is neither.
    """
    headings, rows = case.hits("timers-across-ranks"), case.hits("timers-across-ranks-rows")
    late = []
    for heading in headings:
        timed = [(found, hit) for hit in below(heading, headings, rows) if (found := _TIMER.search(hit.text))]
        whole = max((float(found[3]) for found, _ in timed), default=0.0)
        for found, hit in timed:
            least, most = float(found[2]), float(found[3])
            if found[1] == "batch-generator" and most >= max(_LATE, _APART * least, _OF_A_STEP * whole):
                late.append((least, most, hit))
    if 2 * len(late) > len(headings):  # a first one is slow anywhere, and one may be
        least, most, hit = late[-1]
        title = f"a rank waits {most / 1000:.1f} s for its batch in each step, the fastest {least:.0f} ms"
        proof = [hit, *(one for _, _, one in late), *headings[-1:]]
        strengths = {"app.straggler-timeout": 0.62, "sys.clock-or-dns-or-fs": 0.48}
        yield from rivals(strengths, title, proof, slows=True)


_COMMS = re.compile(
    r"(?<!\S)(\d+(?:\.\d+)? [KMGT]?B)\s+(\d+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s*$"
)
_CALLS = 20  # the first ones wait for set-up
_WAITED = 3.0  # times as long as the data took
_LONG = 100.0  # ms


@diagnosis
def late_for_collectives(case: Case) -> Iterable[Candidate]:
    """DeepSpeed's comms summary: of a call's time, the most is waiting for the last rank, and little the exchange of data."""
    rows = case.hits("comms-straggler-rows")
    waits = []
    for above, hit in itertools.pairwise(rows):
        if found := _COMMS.search(hit.text):
            calls, _, total, own, waited = map(float, found.groups()[1:])
            if calls >= _CALLS and waited >= max(_LONG, _WAITED * own):
                waits.append((total, prefix.parse(above.text).body.strip(), own, waited, hit))
    if waits:
        _, call, own, waited, hit = max(waits, key=lambda wait: wait[0])
        title = f"each {call} waits {waited:.0f} ms for the last rank, and takes {own:.0f} ms: the network is not slow, a rank is late"
        yield Candidate("app.straggler-timeout", 0.62, title, [hit, *case.hits("comms-straggler")[:1]], slows=True)
        yield Candidate("gpu.thermal-power", 0.46, title, [hit], slows=True)


_LIST = re.compile(r"(?:\d+(?:\.\d+)?%?[ ,]+){3,}\d+(?:\.\d+)?")
_CROWDED = 4.0  # times what the middle one gets
_GREW = 1.5


@diagnosis
def crowded_rank(case: Case) -> Iterable[Candidate]:
    """The router of a mixture of experts sends one rank, or one expert, a share of the tokens that is many times the others',
    and grew: its computation is what everybody waits for."""
    loads = []
    for hit in in_order((*case.hits("load-of-ranks"), *case.lasts("load-of-ranks"))):
        if found := _LIST.findall(hit.text):
            parts = [float(part.rstrip("%")) for part in re.split(r"[ ,]+", max(found, key=len))]
            loads.append((parts, max(parts) / (sum(parts) or 1.0), hit))
    if len(loads) < 2:
        return
    (first, before, _), (last, share, hit) = loads[0], loads[-1]
    if (
        len(first) == len(last)
        and share >= _GREW * before > 0
        and max(last) >= _CROWDED * max(statistics.median(last), 1e-9)
    ):
        title = f"number {last.index(max(last))} of {len(last)} gets {share:.0%} of the tokens (at first the most was {before:.0%}): the others wait for it"
        proof = [hit, *(one for _, _, one in loads[:-1])]
        yield from rivals({"app.straggler-timeout": 0.62, "app.nan-or-data": 0.46}, title, proof, slows=True)


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
        yield from rivals(falling(_NO_PART_KNOWN, 0.34, 0.02), title, hits, ranks_of(hits))


# "[13]", or "{StragglerId(rank=13, node='gpu02'), ...}"
_STRAGGLERS = re.compile(r"(?:rank=|[\[ ])(\d+)(?=[,\]])")


@diagnosis
def gpus_told_slow(case: Case) -> Iterable[Candidate]:
    """The straggler detection of NVIDIA's resiliency extension names ranks whose kernels take longer. It times the GPU's own
    work, without the waiting for others; heat, power, memory errors or a second process there are what it does not tell."""
    hits = case.hits("straggler-report")
    ranks = {int(rank) for hit in hits for rank in _STRAGGLERS.findall(hit.groups["ranks"])}
    title = f"GPU work takes longer on rank {ranges(sorted(ranks))} than on others, or than before"
    if ranks:
        strengths = {"gpu.thermal-power": 0.44, "gpu.ecc": 0.42, "app.straggler-timeout": 0.4}
        yield from rivals(strengths, title, hits, ranks)


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
    yield from rivals(falling(causes, 0.42, 0.02), title, [hits[1], hits[0], *hits[2:]], ranks_of(hits))


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
    steps = in_order([*case.hits("progress"), *case.tail])
    times = [(max(found), hit) for hit in steps if (found := [time for _, time in times_by_name(hit.text)])]
    usual = statistics.median(time for time, _ in times[-_SOME:]) if times else 0.0
    first, last = hits[0], hits[-1]
    held = [
        hit for time, hit in times if hit.file == first.file and hit.line > first.line and time >= _COMPILED * usual
    ]
    count = case.count("compiled-again")
    lasts = any(place(hit) in set(map(place, case.tail)) for hit in case.lasts("compiled-again"))
    if told or len(held) >= _SOME or (lasts and count > _LIMIT and 2 * count > case.count("progress")):
        title = "torch.compile compiles anew for each new shape, step after step" + " until its limit" * (
            "limit" in last.text
        )
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


_THROTTLED = 0.5  # of its periods: a quota that only cuts peaks throttles few
_PERIODS = 100


@diagnosis
def cpu_quota(case: Case) -> Iterable[Candidate]:
    """cpu.stat of a container: in most of the periods its processes had used up the CPU quota, and stood still for the rest."""
    for hit in case.hits("cpu-throttled"):
        periods = [one for one in case.hits("cpu-periods") if just_below(hit, one, 2)]
        total, held = (int(periods[-1].groups["periods"]) if periods else 0), int(hit.groups["throttled"])
        if total >= _PERIODS and held >= _THROTTLED * total:
            title = f"the container's CPU quota was used up in {held} of {total} periods: its processes are throttled"
            yield Candidate("sys.container", 0.76, title, [hit, *periods[-1:]], hosts=hosts_of([hit]), slows=True)
            return


_SWAPPED = 10_000  # KiB/s both ways, as vmstat counts: what is written is needed again
_VMSTAT = re.compile(r"(?<!\S)(?:\d+ +){6}(\d+) +(\d+)(?: +\d+){8,10}\s*$")  # r b swpd free buff cache si so ...
_SIZE = re.compile(r"(?:Mem|Swap):\s")


@diagnosis
def host_swaps(case: Case) -> Iterable[Candidate]:
    """vmstat: memory is read from swap and written to it at the same time, more than ten megabytes a second: what the
    processes work with does not fit into the host."""
    busy = []
    for hit in case.hits("vmstat-rows"):
        found = _VMSTAT.search(hit.text)
        if found and min(int(found[1]), int(found[2])) >= _SWAPPED:
            busy.append((int(found[1]), hit))
    if len(busy) > 1:  # one may be the mean since the host was started
        sizes = [hit for hit in case.hits("free-rows") if _SIZE.search(hit.text)]
        most = max(read for read, _ in busy)
        title = f"the host swaps: {most // 1000} MB/s are read back from swap while as much is written to it"
        yield Candidate("sys.host-oom", 0.76, title, [*(hit for _, hit in busy), *sizes], slows=True)


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


def starving(case: Case) -> list[Hit]:
    """The last steps that tell of waiting for data most of their time, or many times as long as at first."""
    told = _data_times(case)
    last = [hit for waited, hit in told[-_SOME:] if waited]
    if len(last) == _SOME < len(told):  # the first steps are slow anywhere
        return last
    waits = case.hits("data-wait")
    seconds = [float(hit.groups["seconds"]) for hit in waits]
    if len(waits) < 2 * _SOME:
        return []
    before = statistics.median(seconds[:_SOME])
    return waits[-_SOME:] if min(seconds[-_SOME:]) >= max(_SECOND, _MUCH_LONGER * before) else []


@diagnosis
def steps_wait_for_data(case: Case) -> Iterable[Candidate]:
    """Steps tell that they consist of waiting for the next batch: the file system or object store, the host's cores, or a
    loader with few workers. What the store answers, and what the cores do, would tell."""
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
