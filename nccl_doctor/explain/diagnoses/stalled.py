"""A job that had begun to work and stands still on every rank: who or what holds it, its log seldom tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain import trouble
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, falling, rivals
from nccl_doctor.explain.hang import SIGINT
from nccl_doctor.explain.lines import ending, later, place, ranks_of
from nccl_doctor.explain.model import Role
from nccl_doctor.explain.watchdogs import ASYMMETRIC
from nccl_doctor.facts.fold import ranges

_FAILED = ("nccl-error-text", "nccl-warn", "mpi-abort", "sigkill", "segfault")  # such a run does not hang
_INSIDE = " between the GPUs of the host"
_ON_A_HOST = ("gpu.p2p", "gpu.nvlink", "sw.nccl-bug")


def _on_the_way(case: Case, passed: bool) -> tuple[tuple[str, ...], str]:
    """What may hold all data back, and where, in a communicator whose connections stand; ``passed``: once it went through."""
    if not case.between_hosts:
        return _ON_A_HOST, _INSIDE if case.nodes == 1 else ""
    used = " ".join(hit.text for hit in case.hits("channel-net"))
    if "NET/IB" in used or case.has("net-ib-using"):
        verbs = ("ib.port-down", "ib.retry-exceeded") if passed else ("ib.retry-exceeded", "net.mtu")
        return (*(("ib.gdr",) if "GDRDMA" in used and not passed else ()), *verbs), " between the hosts"
    return ("net.firewall", "net.peer-lost") if passed else ("net.mtu", "net.firewall"), " between the hosts"


@diagnosis
def later_work_never_ends(case: Case) -> Iterable[Candidate]:
    """Every rank of the job gave up in the same work of its group, which is not the first, and none is behind the others.

    All had launched it, so no program went another way. Its data did not pass, or the GPU of one rank never came to it: the
    launch is no proof that the kernel ran. Which, the flight recorder's times, NCCL's warnings and the path's tests tell.
    """
    waits = case.waits
    calls = Counter((item.group, item.sequence, item.operation, item.elements) for item in waits)
    ranks = {item.rank for item in waits}
    alike = len(calls) == len({item.group for item in waits}) and min(calls.values(), default=0) > 1
    behind = any(item.hit is None or item.enqueued < item.sequence for item in case.work)
    first = any(item.sequence <= 1 for item in waits)
    if not alike or behind or first or len(ranks) < case.world or any(item.operation in ASYMMETRIC for item in waits):
        return
    causes, where = _on_the_way(case, case.has("progress"))
    title = f"all {len(ranks)} ranks had launched the collective that they wait in: no data passes{where}, or one GPU never came to it"
    hits = [hit for item in waits for hit in item.hits]
    yield from rivals(falling(causes, 0.4, 0.03), title, hits, ranks)


@diagnosis
def tests_stop_at_a_size(case: Case) -> Iterable[Candidate]:
    """The table of nccl-tests ends in the middle: the sizes up to its last row pass, the next one does not come back.

    Small messages take another protocol, and fit into one packet: that large ones alone are lost is what a path's MTU does,
    or GPUDirect RDMA. Where the log was only cut, there is nothing to find.
    """
    last, stopped = case.hang.stopped_tables[-1:], case.hang.interrupted
    if not last or case.has(*_FAILED):
        return
    ends = {place(hit) for hit in stopped}
    if any(later(hit, last[0]) and place(hit) not in ends for hit in trouble.lines(case)):
        return
    size = last[0].groups.get("size")
    causes, where = _on_the_way(case, passed=False)
    if not size:
        causes = causes if where == _INSIDE else ("net.firewall", "net.wrong-interface", "ib.qp-connect")
    came = f"came up to {size} bytes" if size else "gave no result"
    title = f"nccl-tests {came}: " + (f"it stood still{where}" if stopped else f"it hangs{where}, or its log was cut")
    hits = [*last, *case.hits("tests-range")[-1:], *stopped[:1]]
    yield from rivals(falling(causes, 0.4, 0.03), title, hits)


@diagnosis
def stopped_while_it_hung(case: Case) -> Iterable[Candidate]:
    """Somebody pressed Ctrl-C, or the scheduler's time was over, in a job that stood still: why it did, and who waited for
    whom, the end does not tell. The stacks of all ranks, taken while it hangs, or the flight recorder would."""
    hits = [] if case.hang.unfinished or case.hang.stopped_tables else case.hang.interrupted
    by_hand = any("^C" in hit.text or SIGINT.search(hit.text) for hit in hits)
    if hits:
        lost = "net.peer-lost" if case.has("progress") else "net.firewall"
        strengths = {"app.straggler-timeout": 0.4, "app.collective-mismatch": 0.37, lost: 0.34}
        title = f"the job stood still until {'somebody interrupted it' if by_hand else 'its time was over'}: for what, it does not say"
        proof = [*hits[:3], *filter(None, [case.last("progress") or case.last("nccl-init-complete")])]
        yield from rivals(strengths, title, proof, ranks_of(hits))


@diagnosis
def interrupted_by_hand(case: Case) -> Iterable[Candidate]:
    """Somebody pressed Ctrl-C, or sent the same signal, and nothing shows that the job stood still before."""
    hits = case.hits("signal-exception", "cancelled")
    if hits and all(SIGINT.search(hit.text) for hit in hits) and not case.hang.interrupted:
        strength = max(case.signatures[hit.signature].strength for hit in hits)
        title = "somebody interrupted the job (Ctrl-C or SIGINT)"
        yield Candidate("launch.killed", strength + 0.001, title, hits, ranks_of(hits), page="launch.killed.by-hand")


@diagnosis
def experts_wait(case: Case) -> Iterable[Candidate]:
    """DeepEP's ranks wait for each other's tokens: a rank is late (compilation) or dead, or RDMA between hosts (NVSHMEM,
    IBGDA) delivers nothing. The logs of the rank that does not speak, and NVSHMEM_DEBUG=INFO, would tell."""
    hits = case.hits("deepep-timeout")
    strengths = {"app.straggler-timeout": 0.4, "app.rank-exception": 0.38}
    if any("RDMA" in hit.text for hit in hits):
        strengths |= {"ib.qp-connect": 0.36, "ib.gdr": 0.34}
    yield from rivals(strengths, "DeepEP's ranks wait for each other in vain", hits, ranks_of(hits))


@diagnosis
def signals_wait(case: Case) -> Iterable[Candidate]:
    """Ranks wait in a kernel of torch's symmetric memory for a signal of a peer. Who is waited for and does not wait itself
    is late, dead, or in another call; its own log would tell which."""
    hits = case.hits("symmetric-signal-timeout")
    waiting = {int(hit.groups["waiting"]) for hit in hits}
    late = {int(hit.groups["peer"]) for hit in hits} - waiting
    who = f"rank {ranges(sorted(late))} sends none" if late else "they wait for each other"
    strengths = {"app.straggler-timeout": 0.42, "app.rank-exception": 0.4, "app.collective-mismatch": 0.38}
    yield from rivals(strengths, f"ranks wait for a signal in symmetric memory, and {who}", hits, late)


@diagnosis
def engine_waits(case: Case) -> Iterable[Candidate]:
    """A serving engine's workers stop answering: one is slow or dead, or they hang in a collective or a kernel.

    Neither the engine's watchdog nor its reports of requests without tokens tell which. The workers' stacks, NCCL's own
    lines and the kernel's log would.
    """
    told = [] if case.course.overcome("serving-watchdog") else case.hits("serving-watchdog")
    hits = told or case.hang.idle_engine
    if told:
        title = "workers of the serving engine do not answer, and do not say why"
    else:
        title = "the serving engine has requests and writes nothing: a worker is slow or hangs"
    causes = ("app.straggler-timeout", "app.collective-mismatch", "sw.nccl-bug", "gpu.fell-off-bus")
    yield from rivals(falling(causes, 0.34, 0.02), title, hits, ranks_of(hits))


_WAITS = re.compile(
    r"\b(?:hang(?:s|ing)?|hung|stuck|stalled)\b|\bno (?:step|progress|update)s? for\b|\bwait(?:s|ing|ed)?\b.{0,60}\b(?:barrier|collective|all_?reduce|ranks?|peers?|workers|sync)\b",
    re.IGNORECASE,
)


@diagnosis
def last_line_waits(case: Case) -> Iterable[Candidate]:
    """The log ends while the program says that it waits for other ranks: who does not come, only their logs can say."""
    calm = {place(hit) for harmless in case.seen(Role.HARMLESS) for hit in case.lasts(harmless.name)}
    last = [hits[-1] for hits in case.summary.tails.values() if hits]
    ends = [hit for hit in last if _WAITS.search(hit.text) and place(hit) not in calm]
    if ends and not case.course.recovered:
        strengths = {"app.straggler-timeout": 0.3, "app.collective-mismatch": 0.28, "app.rank-exception": 0.26}
        title = f"the log ends while a rank waits for others: {ending(ends[0].text, 110)}"
        yield from rivals(strengths, title, ends, ranks_of(ends))
