"""What the kernel did for want of memory on a host where a job runs: one answer for ``watch`` and ``hang``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from nccl_doctor.facts.fold import counted
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity
from nccl_doctor.rules.engine import Host
from nccl_doctor.rules.job_words import logged
from nccl_doctor.rules.thresholds import value
from nccl_doctor.rules.units import duration

WHO_HAS_IT = Fix("see who has the memory", "ps -eo pid,user,rss,comm --sort=-rss | head; df -h /dev/shm")
_QUOTED = 3
# Killed process 4242 (python) ..., and before it: oom-kill:constraint=CONSTRAINT_MEMCG,...,task=python,pid=4242,uid=0
_VICTIM = re.compile(r"(?:Killed process |oom-kill:.{0,900},pid=)([0-9]{1,10})\b")
_HOST_FULL = "Out of memory: "  # of a group it is: Memory cgroup out of memory (mm/oom_kill.c)


def was_it_killed(host: str) -> Fix:
    """How to see whether a process that is gone was killed."""
    return Fix("was it killed?", "sudo dmesg -T | grep -iE 'killed process|oom|segfault'", host)


class Kill(NamedTuple):
    """A line of the kernel log about a process that it killed for want of memory."""

    pid: int
    line: Evidence


def kills(host: Host, since_s: float = 0.0) -> list[Kill]:
    """What the host's kernel log says of it since that second after the boot."""
    return [Kill(int(victim[1]), line) for victim, line in logged(host, since_s, _VICTIM)]


class Counts(NamedTuple):
    """By how much the kernel's counts of what it killed rose in so many seconds: on the host, and in the ranks' control groups.

    ``all_groups``: every rank lived to the end, and its group told; else what was killed elsewhere may be the job's.
    """

    seconds: float
    on_host: int
    in_groups: Mapping[str, int]
    all_groups: bool


def killed(host: Host, counts: Counts, ranks: Collection[int], lines: list[Kill]) -> Iterator[Finding]:
    """What was killed of the job, a fault; and what was killed beside it, which is held against nobody.

    The job's are the ``ranks`` (process ids), and what is killed in their control groups. Where these do not tell, it is not
    known whose the others were: a warning, as where the host itself had no memory left.
    """
    lines = sorted(lines, key=lambda kill: kill.pid in ranks)  # the last ones are quoted
    own = max(sum(counts.in_groups.values()), len({kill.pid for kill in lines}.intersection(ranks)))
    others = max(0, counts.on_host - own)
    if own:
        yield _killed(host, Severity.FAIL, f"{counted(own, 'process')} of the job", counts, lines)
    if others:
        severity, whose = Severity.INFO, " outside the job's control groups"
        if not counts.all_groups:
            severity, whose = Severity.WARN, ", it is not known whose,"
        elif any(_HOST_FULL in kill.line.text for kill in lines):
            severity = Severity.WARN
        rest = [kill for kill in lines if kill.pid not in ranks]
        yield _killed(host, severity, counted(others, "process") + whose, counts, rest)


def _killed(host: Host, severity: Severity, which: str, counts: Counts, lines: list[Kill]) -> Finding:
    groups = [(f"oom_kill +{count}", file) for file, count in sorted(counts.in_groups.items()) if count]
    return host.finding(
        "sys.host-oom.killed-now",
        severity,
        f"the kernel killed {which} for want of memory in {duration(counts.seconds)}",
        [*(kill.line for kill in lines[-_QUOTED:]), (f"oom_kill +{counts.on_host}", "/proc/vmstat"), *groups[:_QUOTED]],
        Fix("see which", "sudo dmesg -T | grep -i 'killed process'"),
        explains=("hang.rank-gone", "hang.waiting") if severity is Severity.FAIL else (),
    )


def swapping(host: Host, pages: int, seconds: float, proof: str) -> Iterator[Finding]:
    """A host that swaps ``pages``, in and out, in that time."""
    if pages > value("watch.swapped") * max(1.0, seconds):
        yield host.finding(
            "sys.host-oom.swapping",
            Severity.WARN,
            f"the host swaps: {pages} pages in {duration(seconds)}",
            (f"pswpin, pswpout +{pages} pages{proof}", "/proc/vmstat"),
            WHO_HAS_IT,
        )
