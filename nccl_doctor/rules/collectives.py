"""The rule of the collectives stage: a short run over all hosts, its failures, wrong answers and slow pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nccl_doctor.facts.collectives import Collectives, Gemm, HostPair, Path, Size
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.mesh import Names
from nccl_doctor.facts.model import Outcome
from nccl_doctor.facts.software import Software
from nccl_doctor.findings.model import Evidence, Finding, Severity, finding
from nccl_doctor.rules.collective_failures import failures, lost_hosts
from nccl_doctor.rules.collective_rates import bus_bandwidth, events, rate, slow_hosts, wrong_results
from nccl_doctor.rules.engine import Fleet, MissingFact, SkipRule, facts_of, fleet_rule
from nccl_doctor.rules.rank_ends import STUCK_IDS, ranks_of, unheard

SHORT_RUN = ("allreduce", "allgather")  # what `check` measures


@fleet_rule(
    "collectives",
    "collectives.host-lost",
    "collectives.rank-died",
    "collectives.rank-stopped",
    "collectives.wrong-result",
    "collectives.failed",
    "collectives.world",
    "collectives.slow-host",
    "collectives.slow-pair",
    "collectives.measured",
    "net.port-in-use.store",
    *STUCK_IDS,
)
def short_run(fleet: Fleet) -> Iterator[Finding]:
    """A short all-reduce and all-gather over all hosts must give the right answer, in time.

    One rank a host (gloo), or one a GPU (NCCL), with the Python that was named; where that has no torch, with
    nccl-doctor's own, if it is there, which is said. Each stage of a job's start has its own
    time limit: reaching the store, forming the process group, the first collective, each size. Where it ends without
    success, the rank that did not get as far as the others is named, with its stack and what it printed. Answers are
    compared with what they must be; the slowest pair of hosts is compared with the others, and where two hosts are all
    there are, with the line rate that their interfaces claim.
    """
    _torchless_machine(fleet)
    facts = fleet.every(Collectives)
    if not facts:
        if fleet.missing:
            return  # each host's own reason is told
        raise MissingFact("collectives", "no host ran its ranks")
    probes = {
        host.name: host.facts.probes[Collectives.PROBE]
        for host in fleet.hosts
        if Collectives.PROBE in host.facts.probes
    }
    found = list(failures(facts, lost_hosts(probes), _addresses(fleet)))
    yield from found
    if not found and (gap := _not_measured(facts)):
        fleet.lack("collectives", gap, *facts)
    yield from wrong_results(facts)
    yield from slow_hosts(facts)
    yield from _measured(facts, _other_pythons(fleet, facts))


def _torchless_machine(fleet: Fleet) -> None:
    """One machine without torch and without a GPU (a laptop, a login node) trains nothing: no collective is missing.

    Raises ``SkipRule`` only where both were looked at and neither is there; with GPUs or other hosts it stays unknown.
    """
    if len(fleet.hosts) != 1:
        return
    host = fleet.hosts[0]
    result = host.facts.probes.get(Collectives.PROBE)
    if result is None or result.outcome is not Outcome.TOOL_MISSING:
        return
    gpu = host.want(GpuFact)
    if gpu is not None and not gpu.has_hardware:
        raise SkipRule("no torch and no NVIDIA GPU on this host; name the job's Python with --python")


def _not_measured(facts: Mapping[str, Collectives]) -> str:
    """What is not known of a run in which no rank failed; empty if all of it is."""
    sizes = list(events(facts, Size))
    world = max(fact.world for fact in facts.values())
    if not world:
        return "nobody told how many ranks there are"
    if silent := unheard(ranks_of(facts)):
        return (
            f"nothing was heard of rank{'s' if len(silent) > 1 else ''} {few(silent, 8)}, which the others waited for"
        )
    if missing := [name for name in SHORT_RUN if name not in {size.collective for size in sizes}]:
        return f"no {' and no '.join(missing)} was measured"
    products = [end for gemm in events(facts, Gemm) for end in gemm.ranks]
    if any(size.wrong is None or len(size.wrong) != len(size.rank_means_us) for size in sizes) or any(
        end.wrong is None for end in products
    ):
        return "what came out was not compared on all ranks"
    if any(len(size.rank_means_us) != world for size in sizes):
        return "not all ranks took part in each collective"
    if len(facts) > 1 and not any(events(facts, HostPair)):
        return "no pair of hosts was timed"
    return ""


def _other_pythons(fleet: Fleet, facts: Mapping[str, Collectives]) -> list[str]:
    """The Pythons that ran the ranks in the place of the examined ones."""
    examined = {host: fact.python.executable for host, fact in facts_of(fleet.hosts, Software).items()}
    return sorted({fact.python for name, fact in facts.items() if fact.python != examined.get(name, fact.python)})


def _measured(facts: Mapping[str, Collectives], others: Sequence[str]) -> Iterator[Finding]:
    """What was measured and over what, for the record; with ``others`` than the examined Pythons, if any."""
    evidence = []
    for told in events(facts, Size):
        item = bus_bandwidth(told)
        text = f"{item.collective} of {item.size} B: {item.time_us:.0f} us, busbw {rate(item.gbs)}"
        checked = "not compared" if told.wrong is None else "WRONG" if any(told.wrong) else "right on all ranks"
        evidence.append(Evidence(f"{text}, {checked}", source="measurement"))
    if not evidence:
        return
    fact = next(iter(facts.values()))
    used = sorted({item.interface or "?" for path in events(facts, Path) for item in path.connections})
    over = f" over {', '.join(used)}" if used else ""
    by = f"; with {few(others)}, not with the Python that was examined" if others else ""
    done = f"all-reduce and all-gather work: {fact.world} ranks, {fact.backend}{over}"
    if fact.world == 1:  # the one GPU of the one host
        done = f"{fact.backend} starts and its answers are right; one rank alone communicated with nobody"
    yield finding(
        "collectives.measured",
        Severity.INFO,
        f"{done} ({fact.backend_why}){by}",
        evidence,
        hosts=sorted(facts),
    )


def _addresses(fleet: Fleet) -> dict[str, list[str]]:
    found = {}
    for host in fleet.hosts:
        names = host.want(Names)
        found[host.name] = [host.facts.reach.address, *(names.addresses if names else ())]
    return found
