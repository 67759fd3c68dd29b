"""Whether a job's steps became slower, or consist of waiting: by what it reports of them."""

from __future__ import annotations

import functools

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.lines import by_file, place, shape
from nccl_doctor.explain.logs import Logs
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT
from nccl_doctor.explain.readers.pace import did_more
from nccl_doctor.explain.signatures.facts import OF_NSYS

_SLOWED = 1.6  # no noise of a step's time, and less than what half of the links, or a throttled GPU, costs
_STEP_TIME = re.compile(r"(?<!\d)\d+(?:\.\d+)?(?= ?m?s(?:ec)?/(?:step|it))|(?<=per iteration \(ms\): )\d+(?:\.\d+)?")
_STEP_RATE = re.compile(
    r"(?<![\d.])(?<!prompt throughput: )\d+(?:\.\d+)?(?= ?(?:it|steps?|samples|tokens|tok|im(?:age|g)s?)/s)"
)
_NOBODY_WAITS = re.compile(r"(?:Waiting|Pending|queue-req): 0\b")  # a server that has nothing to do is not slow
_RUNNING = re.compile(r"[Rr]unning(?:-req)?: (\d+)")
_SOME = 3  # lines
_STEADY = 6  # so many steps at a log's end were slow


def slowed(logs: Logs) -> bool:
    """Whether the last step that was reported took far longer than the first one."""
    if logs.has(PACE_LEFT):
        return True
    told = by_file((*logs.hits("progress"), *logs.tail)).values()
    return any(_slower([hit.text for hit in hits]) for hits in told)


@functools.lru_cache(maxsize=1)  # the verdict asks as well
def slower_steps(logs: Logs) -> list[Hit]:
    """A first step and the last ones, of one shape, where all of the last took far longer, and about the same time."""
    tails: dict[str, list[tuple[float, Hit]]] = {}
    for first in logs.hits("progress"):
        pace, tail = _pace(first.text), logs.summary.tails.get(first.file, [])
        if not pace or not tail or first.line >= tail[0].line:
            continue
        if first.file not in tails:
            tails[first.file] = [(_pace(hit.text), hit) for hit in tail]
        if len([hit for its, hit in tails[first.file] if its > _SLOWED * pace]) < _STEADY:
            continue
        alike = shape(first.text)
        last = [(its, hit) for its, hit in tails[first.file] if shape(hit.text) == alike]
        paces = [its for its, _ in last]
        slow = len(last) >= _STEADY and _SLOWED * max(pace, max(paces) / _SLOWED**2) < min(paces)
        if slow and not any(did_more(first.text, hit.text) for _, hit in last):
            return [first, *(hit for _, hit in last)]
    return []


_PART = re.compile(r"([A-Za-z][\w+ -]{1,24}?)[:= ]{1,2}(\d+(?:\.\d+)?) ?(m?s|%)(?![\w/])")
_COMMUNICATION = re.compile(  # its time or share; not its efficiency, say
    r"(?:(?<![a-z])comm(?:s|unicat\w*)?(?![a-z])|all_?-?reduce|reduce_?-?scatter)"
    r"(?![\w+ -]*(?:effic|overlap|hid|band|bw|vol|byte|count|size|speed|flop))",
    re.I,
)
_STEP = re.compile(r"(?<![a-z])(?:step|iter(?:ation)?|batch|total|elapsed)(?:[_ ]time)?$|^time$", re.I)
_SECONDS = {"s": 1.0, "ms": 0.001}
MOSTLY = 0.7  # of a step: no computation hides so much of it
_TOLD = 3  # steps: the first ones are slow anywhere


def communicating(logs: Logs) -> list[Hit]:
    """The steps that tell that most of their time was communication, where most of those that tell it say so."""
    told = [hit for hit in (*logs.hits("progress"), *logs.tail) if "omm" in hit.text or "educe" in hit.text]
    told = [hit for hit in told if "overlap" not in hit.text]  # such communication costs the step nothing
    steps = sorted({place(hit): hit for hit in told}.items())
    shares = [(share, hit) for _, hit in steps if (share := communication_share(hit.text)) is not None]
    most = [hit for share, hit in shares if share >= MOSTLY]
    return most if len(most) >= _TOLD and 2 * len(most) > len(shares) else _profiled(logs)


_KERNEL = re.compile(r"\b((nccl:|nccl\w{0,20}Kernel)\w{0,80})[^%]{1,200}?(?<![\d.])(\d{1,3}(?:\.\d{1,2})?) ?%")
_LAST_SHARE = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,2})?) ?%[^%]*$")


def _profiled(logs: Logs) -> list[Hit]:
    """Lines of a profile of the GPU in which NCCL's kernels took most of the time. torch's table names each twice: as the
    operation and as the kernel; each rank may print its own."""
    shares: dict[bool, dict[str, float]] = {True: {}, False: {}}  # of the operations, and of the kernels
    hits = logs.hits("kernel-shares")
    for hit in hits:
        named, last = _KERNEL.findall(hit.text), _LAST_SHARE.search(hit.text)
        if first := OF_NSYS.search(hit.text):
            named, last = [(hit.text[first.end() :], "nsys", first[1])], None
        for name, kind, share in named:
            own = (
                last[1] if last and len(named) == 1 else share
            )  # a table's row: the last share is that of the GPU's time
            of_kind = shares[kind == "nccl:"]
            of_kind[name] = max(of_kind.get(name, 0.0), float(own))
    return hits if max(sum(of_kind.values()) for of_kind in shares.values()) >= 100 * MOSTLY else []


def communication_share(text: str) -> float | None:
    """What part of a step was communication, as the step's own line tells: in per cent, or beside the time of all of it."""
    parts = _PART.findall(text)
    own = [part for part in parts if _COMMUNICATION.search(part[0])]
    shares = [float(number) / 100 for _, number, unit in own if unit == "%"]
    if shares:
        return max(shares)
    told, whole = (
        max((float(number) * _SECONDS[unit] for _, number, unit in some if unit != "%"), default=0.0)
        for some in (own, [part for part in parts if _STEP.search(part[0])])
    )
    return told / whole if 0 < told < whole else None


def _slower(lines: list[str]) -> bool:
    told = [line for line in lines if _STEP_TIME.search(line) or _STEP_RATE.search(line)]
    if not told or (_NOBODY_WAITS.search(told[-1]) and not _as_many_run(told)):
        return False
    steps = "\n".join(told)
    times = [float(found) for found in _STEP_TIME.findall(steps)]
    rates = [float(found) for found in _STEP_RATE.findall(steps)]
    return (bool(times) and times[-1] > _SLOWED * times[0]) or (bool(rates) and rates[0] > _SLOWED * rates[-1])


def _as_many_run(told: list[str]) -> bool:
    """Whether a server works, in the last lines that tell it, at no fewer requests than in the first one: one that has just come, or
    is about to end, makes a single line slow."""
    counts = [int(found[1]) for line in told if (found := _RUNNING.search(line))]
    return len(counts) > _SOME and min(counts[-_SOME:]) >= max(counts[0], 1)


def _pace(text: str) -> float:
    """How long a step took, in the line's own unit; zero where it does not tell. A rate may be a server's load."""
    time = _STEP_TIME.search(text)
    return float(time.group()) if time else 0.0
