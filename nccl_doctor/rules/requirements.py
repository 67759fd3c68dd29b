"""What the job needs, said by the user: ``--require gpus=8,ib-ports=8,shm=16G,min-busbw=40,same=torch+driver``.

A requirement that could not be measured is unknown, and so is the verdict.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.infiniband import InfinibandFact
from nccl_doctor.facts.model import Plan
from nccl_doctor.facts.software import Software
from nccl_doctor.facts.system import System
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding
from nccl_doctor.rules.collective_rates import bus_bandwidths, rate
from nccl_doctor.rules.engine import Fleet, Host, MissingFact, SkipRule, fleet_rule, host_rule
from nccl_doctor.rules.rank_ends import ranks_of
from nccl_doctor.rules.software_drift import drift_table, subjects
from nccl_doctor.rules.system import limits_of_cgroup, usable_memory
from nccl_doctor.rules.units import BINARY

COUNTS = ("gpus", "ib-ports", "cpus")
SIZES = ("shm", "disk", "memory")
# Requirement -> the stage whose rules look at it.
STAGE_OF = {
    "gpus": "gpu",
    "ib-ports": "infiniband",
    **dict.fromkeys(("cpus", *SIZES), "system"),
    "same": "software",
    "min-busbw": "collectives",
}


class RequirementError(ValueError):
    """A requirement that is not understood; says what is."""


class Requirement(msgspec.Struct, frozen=True):
    """One parsed requirement: ``amount`` is a count, bytes or GB/s; ``subjects`` for ``same``."""

    name: str
    text: str
    amount: float = 0.0
    subjects: tuple[str, ...] = ()


FORMS = {
    **{name: f"{name}=N" for name in COUNTS},
    **{name: f"{name}=SIZE (a number with K, M, G or T, binary)" for name in SIZES},
    "min-busbw": "min-busbw=GB/s (decimal, of the largest all-reduce)",
    "same": "same=NAME,NAME",
}


def parse(text: str) -> Requirement:
    """One ``name=value``; ``RequirementError`` says what was expected."""
    name, _, value = text.strip().partition("=")
    if name not in FORMS:
        near = difflib.get_close_matches(name, FORMS, n=1)
        hint = f"did you mean {FORMS[near[0]]}?" if near else f"expected {', '.join(FORMS.values())}"
        raise RequirementError(f"require {text!r}: no such requirement; {hint}")
    if name in COUNTS and value.isascii() and value.isdecimal():
        return Requirement(name, text, float(value))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", value, re.ASCII)
    if name in SIZES and match:
        amount = float(match.group(1)) * BINARY[match.group(2)]
        if 0 < amount < BINARY["M"] and not match.group(2):  # 16 for 16G: every host has so many bytes
            raise RequirementError(f"require {text!r}: {value} would be bytes; expected {FORMS[name]}")
        return Requirement(name, text, amount)
    rate_match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:GB/s)?", value, re.ASCII)
    if name == "min-busbw" and rate_match and float(rate_match.group(1)) > 0:
        return Requirement(name, text, float(rate_match.group(1)))
    if name == "same" and value.strip("+"):
        return Requirement(name, text, subjects=tuple(_subject(part, text) for part in value.split("+") if part))
    raise RequirementError(f"require {text!r}: expected {FORMS[name]}")


def _subject(name: str, text: str) -> str:
    """What ``same`` may compare: the subjects of the drift table, in lower case."""
    known = sorted(subject.lower() for subject in subjects())
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise RequirementError(f"require {text.replace('+', ',')!r}: nothing is called {name!r}; {hint}")
    return name.lower()


def stage_of(need: str) -> str:
    """The stage whose rules look at a requirement; empty for one that nobody knows."""
    return STAGE_OF.get(need.partition("=")[0].strip(), "")


def split(text: str) -> tuple[str, ...]:
    """The comma list of ``--require``, where ``same=torch,nccl,driver`` may use commas as well."""
    parts: list[str] = []
    for word in filter(None, (piece.strip() for piece in text.split(","))):
        if "=" not in word and parts and parts[-1].startswith("same="):
            parts[-1] += f"+{word}"
        else:
            parts.append(word)
    return tuple(parts)


def _wanted(plan: Plan, *names: str) -> list[Requirement]:
    found = [item for item in map(parse, plan.require) if item.name in names]
    if not found:
        raise SkipRule("")  # nothing was asked for: no reason worth telling
    return found


def _short(host: Host, need: Requirement, have: str, source: str, seen: str = "") -> Finding:
    """``seen``: what was read of ``source``, where ``have`` does not stand there."""
    return host.finding(
        f"require.{need.name}",
        Severity.FAIL,
        f"{host.name} does not meet {need.text}: it has {have}",
        (seen or have, source),
        Fix("leave the host out, or ask for less"),
        places=[Place(host=host.name)],
    )


def gib(amount: float) -> str:
    """Bytes for people: ``15.5 GiB``."""
    return f"{amount / (1 << 30):.1f} GiB"


@host_rule("gpu", "require.gpus")
def gpus(host: Host, plan: Plan) -> Iterator[Finding]:
    """The host has at least as many GPUs that NVML can open as ``--require gpus=N`` asks for."""
    for need in _wanted(plan, "gpus"):
        fact = host.need(GpuFact)
        if fact.has_hardware and fact.nvml.outcome != "ok":
            raise MissingFact(need.text, f"NVML: {fact.nvml.detail or fact.nvml.outcome}")
        count = len(fact.answering)
        if count < need.amount:
            # Where there is nothing of NVIDIA's, NVML was not asked: what was looked for instead is the proof.
            yield _short(host, need, f"{count} GPUs", "NVML", "" if fact.has_hardware else fact.nvml.detail)


@host_rule("infiniband", "require.ib-ports")
def ib_ports(host: Host, plan: Plan) -> Iterator[Finding]:
    """The host has at least as many active RDMA ports, of devices that can be opened, as ``--require ib-ports=N`` asks for."""
    for need in _wanted(plan, "ib-ports"):
        fact = host.need(InfinibandFact)
        active = sorted(sum(port.active for port in device.ports) for device in fact.devices)
        total = sum(len(device.ports) for device in fact.devices)
        have, source = f"{sum(active)} active of {total} RDMA ports", "/sys/class/infiniband"
        least = most = sum(active)
        if absent := set(fact.uverbs_expected).difference(
            fact.uverbs
        ):  # whose they are is not told: the worst and the best case
            opened = max(0, len(active) - len(absent))
            least, most = sum(active[:opened]), sum(active[len(absent) :])
            if most < need.amount <= sum(active):
                have, source = f"device files for {opened} of {len(active)} RDMA devices", "/dev/infiniband"
        if most < need.amount:
            yield _short(host, need, have, source)
        elif least < need.amount:
            raise MissingFact(need.text, f"which RDMA devices can be opened: {len(absent)} device files are missing")


@host_rule("system", "require.shm", "require.disk", "require.memory", "require.cpus")
def room(host: Host, plan: Plan) -> Iterator[Finding]:
    """Free shared memory, free disk (temp and cache directories), available memory and usable CPUs suffice.

    Memory and CPUs are those that the cgroup leaves (a container's limit, a Slurm job's), not the machine's.
    """
    gap: MissingFact | None = None
    for need in _wanted(plan, "shm", "disk", "memory", "cpus"):
        try:
            yield from _room(host, need, host.need(System))
        except MissingFact as missing:  # what is not known of one says nothing of the others
            gap = gap or missing
    if gap:
        raise gap


def _room(host: Host, need: Requirement, system: System) -> Iterator[Finding]:
    if need.name == "disk":
        for entry in system.filesystems:
            if entry.outcome == "ok" and entry.free_bytes < need.amount:
                yield _short(host, need, f"{gib(entry.free_bytes)} free at {entry.path}", "statvfs")
        if untold := [entry for entry in system.filesystems if entry.outcome != "ok"]:
            raise MissingFact(need.text, f"{untold[0].path}: {untold[0].outcome}")
    elif need.name == "cpus":
        if system.usable_cpus < need.amount:
            yield _short(host, need, f"{system.usable_cpus:g} usable CPUs", "sched_getaffinity, cgroup cpu")
        limits_of_cgroup(system)
    elif need.name == "shm":
        if system.shm.free_bytes < need.amount:
            yield _short(host, need, f"{gib(system.shm.free_bytes)} free in /dev/shm", "/dev/shm")
    else:
        available = usable_memory(system)
        if available < need.amount:
            yield _short(host, need, f"{gib(available)} of memory available", "/proc/meminfo, cgroup memory")


@fleet_rule("software", "require.same")
def same(fleet: Fleet) -> Iterator[Finding]:
    """What ``--require same=...`` names is equal on all hosts."""
    needs = _wanted(fleet.plan, "same")
    every = fleet.every(Software)
    table: dict[str, Any] = {item.subject.lower(): item for item in drift_table(every)}
    for need in needs:
        for subject in need.subjects:
            row = table.get(subject)
            if row is None:
                fleet.lack(f"same={subject}", "found on no host", *every)
            elif not row.equal:
                yield finding(
                    "require.same",
                    Severity.FAIL,
                    f"{row.subject} is not the same on all hosts",
                    [
                        Evidence(f"{row.subject} {value or 'none'}: {', '.join(hosts)}", source="software")
                        for value, hosts in row.values
                    ],
                    hosts=row.differing,
                    fixes=[Fix("bring the odd hosts to the others' version, or leave them out")],
                )


@fleet_rule("collectives", "require.min-busbw")
def min_busbw(fleet: Fleet) -> Iterator[Finding]:
    """The largest all-reduce of the short run reaches the bus bandwidth that ``--require min-busbw=GB/s`` asks for.

    Bus bandwidth as nccl-tests defines it, 2(n-1)/n times bytes over time, from rank 0's clock of all ranks' means. A
    ring is as slow as its slowest link, so the shortfall is held against all hosts that took part (where one is
    slower than the others, ``collectives.slow-host`` names it). One rank alone has no bus, and measures none.
    """
    needs = _wanted(fleet.plan, "min-busbw")
    facts = fleet.every(Collectives)
    if any(not rank.end.finished for rank in ranks_of(facts)):
        raise MissingFact(needs[0].text, "the collectives did not finish")
    measured = [item for item in bus_bandwidths(facts) if item.collective == "allreduce" and item.ranks > 1]
    if not measured:
        raise MissingFact(needs[0].text, "no all-reduce between ranks was measured")
    largest = max(item.size for item in measured)
    slowest = min((item for item in measured if item.size == largest), key=lambda item: item.gbs)
    backend = next(iter(facts.values())).backend
    have = f"{rate(slowest.gbs)} in the all-reduce of {largest} B over {slowest.ranks} ranks ({backend})"
    for need in needs:
        if slowest.gbs < need.amount:
            yield finding(
                "require.min-busbw",
                Severity.FAIL,
                f"busbw is below {need.amount:g} GB/s: {have}",
                Evidence(f"{have}: {slowest.time_us:.0f} us; {need.text} asks for more", source="measurement"),
                hosts=sorted(facts),
                fixes=[
                    Fix("measure more sizes and every pair of hosts", "nccl-doctor bench --hosts FILE"),
                    Fix("leave out the hosts that it names as slow, or ask for less"),
                ],
                confidence=0.9,  # that all are to blame is not known
            )
