"""Whether a job's steps became slower: by what it reports of its first and its last ones."""

from __future__ import annotations

import re

from nccl_doctor.explain.case import Case
from nccl_doctor.explain.lines import by_file, shape
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers.pace import SIGNATURE as PACE_LEFT

_SLOWED = 1.6  # no noise of a step's time, and less than what half of the links, or a throttled GPU, costs
_STEP_TIME = re.compile(r"(?<!\d)\d+(?:\.\d+)?(?= ?m?s(?:ec)?/(?:step|it))|(?<=per iteration \(ms\): )\d+(?:\.\d+)?")
_STEP_RATE = re.compile(r"(?<!\d)\d+(?:\.\d+)?(?= ?(?:it|steps?|samples|tokens|tok|im(?:age|g)s?)/s)")
_STEADY = 6  # so many steps at a log's end were slow


def slowed(case: Case) -> bool:
    """Whether the last step that was reported took far longer than the first one."""
    if case.has(PACE_LEFT):
        return True
    told = by_file((*case.hits("progress"), *case.tail)).values()
    return any(_slower("\n".join(hit.text for hit in hits)) for hits in told)


def slower_steps(case: Case) -> list[Hit]:
    """A first step and the last ones, of one shape, where all of the last took far longer, and about the same time."""
    for first in case.hits("progress"):
        pace, tail = _pace(first.text), case.summary.tails.get(first.file, [])
        if not pace or not tail or first.line >= tail[0].line:
            continue
        alike = shape(first.text)
        last = [hit for hit in tail if shape(hit.text) == alike]
        paces = [_pace(hit.text) for hit in last]
        if len(last) >= _STEADY and _SLOWED * max(pace, max(paces) / _SLOWED**2) < min(paces):
            return [first, *last]
    return []


def _slower(steps: str) -> bool:
    times = [float(found) for found in _STEP_TIME.findall(steps)]
    rates = [float(found) for found in _STEP_RATE.findall(steps)]
    return (bool(times) and times[-1] > _SLOWED * times[0]) or (bool(rates) and rates[0] > _SLOWED * rates[-1])


def _pace(text: str) -> float:
    """How long a step took, in the line's own unit; zero where it does not tell. A rate may be a server's load."""
    time = _STEP_TIME.search(text)
    return float(time.group()) if time else 0.0
