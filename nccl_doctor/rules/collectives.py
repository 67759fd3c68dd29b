"""Rules of the collectives stage, and the localisation of failed runs that ``bench`` uses as well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from nccl_doctor.facts.collectives import Collectives, E, Gemm, HostPair, Path, RankEnd, Size, bus_factor
from nccl_doctor.facts.fold import few, fold
from nccl_doctor.facts.gpu import GpuFact
from nccl_doctor.facts.mesh import Names
from nccl_doctor.facts.model import Outcome, ProbeResult
from nccl_doctor.facts.software import Software
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.engine import Fleet, MissingFact, SkipRule, fleet_rule
from nccl_doctor.rules.localise import blame

# The road of a rank. One that stuck further back than others is what the others wait for.
ROAD = ("spawn", "import", "store", "process-group", "first-collective", "links", "gemm", "measure", "end")
STUCK_IDS = {
    "spawn": "collectives.stuck.spawn",
    "import": "collectives.stuck.import",
    "store": "collectives.stuck.store",
    "process-group": "collectives.stuck.process-group",
    "first-collective": "collectives.stuck.first-collective",
}
_WHAT = {
    "spawn": "starting Python",
    "import": "importing torch",
    "store": "reaching the store",
    "process-group": "forming the process group",
    "first-collective": "the first collective",
    "links": "measuring host pairs",
    "gemm": "the matrix products",
    "measure": "a measured collective",
    "end": "leaving",
}
# What other ranks say when a peer is gone or silent: a consequence, wherever the cause is known.
_PEER_GONE = re.compile(
    r"onnection (closed|reset|refused)|roken pipe|onnection was likely closed|timed out|imeout|remote process exited"
    r"|remote error|ncclRemoteError|failed to recv|Socket Timeout|Application timeout|wait timeout",
)
# A pair that is slow alone: on a busy machine single pairs came out at 0.33 to 0.4 of the others, although each counts
# with the best of five exchanges.
SLOW_PAIR_SHARE = 0.25
SLOW_HOST_SHARE = 0.4  # a host whose best pair is below this share of the other hosts' median pair is slow
# A lone pair has only its line rate to be held against. One TCP stream with small buffers reaches a quarter of 10 Gb/s
# on any host, but not of 100 Gb/s; and no data network is slower than 1 Gb/s, whatever an interface says of itself.
SLOW_LINE_SHARE, LEAST_LINE_GBPS, MOST_LINE_GBPS = 0.25, 1.0, 10.0
SHORT_RUN = ("allreduce", "allgather")  # what `check` measures
QUOTE_LINES = 6
LEAST_CONFIDENCE = 0.6  # of a cause from the ranks' output, to be named beside what the launcher saw
# The ranks run our own code: causes in an application or its launcher are echoes of the same stop, as is a lost peer.
_CAUSE_AREAS = ("net.", "ib.", "gpu.", "sw.", "sys.", "env.")
# What the first rank that is ended does to the connections of the others.
_ECHOES = ("net.peer-lost", "net.firewall")
_DIALLED = "/proc/net/tcp"
# Gloo's, of a connection that the other side's kernel or packet filter rejects.
_REFUSED = re.compile(r"SO_ERROR: ([^,\n]{1,80}), remote=\[?([0-9a-fA-F.:]{2,45})\]?:([0-9]{1,5})")
_DUMP = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+[^\n]*most recent call first\):\n", re.M)  # faulthandler
# Lines that give no reason: NCCL's chatter, a warning, the code in a traceback.
_CHATTER = re.compile(r"NCCL INFO|hostname of the client socket cannot be retrieved|^ {4}")


class RankOnHost:
    """A rank's end with the host (inventory name) it was on."""

    def __init__(self, host: str, end: RankEnd, fact: Collectives) -> None:
        self.host, self.end, self.fact = host, end, fact

    @property
    def label(self) -> str:
        return f"rank {self.end.rank} on {self.host}"

    @property
    def kind(self) -> str:
        return self.end.error.kind if self.end.error else ""

    @property
    def text(self) -> str:
        return self.end.error.text if self.end.error else ""

    @property
    def place(self) -> Place:
        return Place(host=self.host, rank=self.end.rank)

    def evidence(self, text: str, source: str = "") -> Evidence:
        return Evidence(text, source=source or "launcher", host=self.host, rank=self.end.rank)

    @property
    def progress(self) -> tuple[int, int]:
        """How far along the road: stage, then iterations done."""
        where = self.end.where
        stage = ROAD.index(where.stage) if where.stage in ROAD else len(ROAD)
        return stage, where.iterations or 0


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
    *STUCK_IDS.values(),
    "collectives.stuck.measure",
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


class BusBandwidth(msgspec.Struct, frozen=True):
    """One measured size: bytes, ranks, the mean time of an operation in us over all ranks, busbw in GB/s (1e9 B/s)."""

    collective: str
    size: int
    ranks: int
    time_us: float
    gbs: float


def bus_bandwidths(facts: Mapping[str, Collectives]) -> list[BusBandwidth]:
    """What rank 0 measured, in its order."""
    return [_bus_bandwidth(size) for size in _told(facts, Size)]


def _bus_bandwidth(told: Size) -> BusBandwidth:
    ranks = len(told.rank_means_us)
    time_us = sum(told.rank_means_us) / ranks
    gbs = told.size / time_us / 1e3 * bus_factor(told.collective, ranks)
    return BusBandwidth(told.collective, told.size, ranks, time_us, gbs)


def _not_measured(facts: Mapping[str, Collectives]) -> str:
    """What is not known of a run in which no rank failed; empty if all of it is."""
    ranks, sizes = ranks_of(facts), list(_told(facts, Size))
    world = max(fact.world for fact in facts.values())
    if not world:
        return "nobody told how many ranks there are"
    if absent := _absent(ranks):
        return (
            f"nothing was heard of rank{'s' if len(absent) > 1 else ''} {few(absent, 8)}, which the others waited for"
        )
    if missing := [name for name in SHORT_RUN if name not in {size.collective for size in sizes}]:
        return f"no {' and no '.join(missing)} was measured"
    products = [end for gemm in _told(facts, Gemm) for end in gemm.ranks]
    if any(size.wrong is None or len(size.wrong) != len(size.rank_means_us) for size in sizes) or any(
        end.wrong is None for end in products
    ):
        return "what came out was not compared on all ranks"
    if any(len(size.rank_means_us) != world for size in sizes):
        return "not all ranks took part in each collective"
    return ""


def _other_pythons(fleet: Fleet, facts: Mapping[str, Collectives]) -> list[str]:
    """The Pythons that ran the ranks in the place of the examined ones."""
    examined = {host.name: fact.python.executable for host in fleet.hosts if (fact := host.want(Software))}
    return sorted({fact.python for name, fact in facts.items() if fact.python != examined.get(name, fact.python)})


def _measured(facts: Mapping[str, Collectives], others: Sequence[str]) -> Iterator[Finding]:
    """What was measured and over what, for the record; with ``others`` than the examined Pythons, if any."""
    evidence = []
    for told in _told(facts, Size):
        item = _bus_bandwidth(told)
        text = f"{item.collective} of {item.size} B: {item.time_us:.0f} us, busbw {rate(item.gbs)}"
        checked = "not compared" if told.wrong is None else "WRONG" if any(told.wrong) else "right on all ranks"
        evidence.append(Evidence(f"{text}, {checked}", source="measurement"))
    if not evidence:
        return
    fact = next(iter(facts.values()))
    used = sorted({item.interface or "?" for path in _told(facts, Path) for item in path.connections})
    over = f" over {', '.join(used)}" if used else ""
    by = f"; with {few(others)}, not with the Python that was examined" if others else ""
    yield finding(
        "collectives.measured",
        Severity.INFO,
        f"all-reduce and all-gather work: {fact.world} ranks, {fact.backend}{over} ({fact.backend_why}){by}",
        evidence,
        hosts=sorted(facts),
    )


def ranks_of(facts: Mapping[str, Collectives]) -> list[RankOnHost]:
    """All ranks of all hosts, in order of rank."""
    found = [RankOnHost(host, end, fact) for host, fact in facts.items() for end in fact.ranks]
    return sorted(found, key=lambda item: item.end.rank)


def _addresses(fleet: Fleet) -> dict[str, list[str]]:
    found = {}
    for host in fleet.hosts:
        names = host.want(Names)
        found[host.name] = [host.facts.reach.address, *(names.addresses if names else ())]
    return found


def _owners(addresses: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Address -> the host that has it; not those that several have (docker0)."""
    owners: dict[str, set[str]] = {}
    for host, its in addresses.items():
        for address in its:
            owners.setdefault(address, set()).add(host)
    return {address: next(iter(hosts)) for address, hosts in owners.items() if len(hosts) == 1}


def failures(
    facts: Mapping[str, Collectives],
    lost: Mapping[str, str] | None = None,
    addresses: Mapping[str, Iterable[str]] | None = None,
) -> Iterator[Finding]:
    """Why a run did not end well: the root only; nothing if every rank finished.

    ``lost`` are the hosts whose connection was lost while their ranks ran, with the reason; ``addresses`` are those of
    each host.
    """
    ranks = ranks_of(facts)
    if lost:
        yield from _host_lost(ranks, lost)
        return
    bad = [rank for rank in ranks if not rank.end.finished]
    if not bad:
        return

    def unanswered(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
        return _unanswered(ranks, bad, _owners(addresses or {}))

    own = (_setup, _died, _stopped, _wrong_first, _own_error)
    for judge in own if _absent(ranks) else (*own, unanswered, _stuck):
        found = list(judge(ranks, bad))
        if found:
            yield from found
            if judge in (_own_error, unanswered, _stuck):
                yield from _explained(bad)
            return


def _absent(ranks: list[RankOnHost]) -> list[int]:
    """Ranks of the world of which nothing is known (their host fell silent): who waits is then no proof of anything."""
    known = {rank.end.rank for rank in ranks}
    return [number for number in range(ranks[0].fact.world if ranks else 0) if number not in known]


def _explained(bad: list[RankOnHost]) -> Iterator[Finding]:
    """What ``explain`` makes of what the ranks printed, where it decides on a cause.

    Shown beside the place where it stuck, not above it: that was seen, this is concluded.
    """
    from nccl_doctor.explain.api import analyse
    from nccl_doctor.explain.model import LogSource, Verdict

    sources = [LogSource(f"rank{rank.end.rank}", rank.end.output, rank.end.rank, rank.host) for rank in bad]
    explanation = analyse(sources)
    if explanation.verdict is not Verdict.CAUSE_FOUND or not explanation.causes:
        return
    cause = explanation.causes[0]
    if cause.confidence < LEAST_CONFIDENCE or not cause.id.startswith(_CAUSE_AREAS) or cause.id in _ECHOES:
        return
    hosts = {rank.host for rank in bad if rank.end.rank in cause.ranks} | (set(cause.hosts) & {r.host for r in bad})
    yield msgspec.structs.replace(cause.to_finding(), hosts=tuple(sorted(hosts)))


def _host_lost(ranks: list[RankOnHost], lost: Mapping[str, str]) -> Iterator[Finding]:
    for host, reason in sorted(lost.items()):
        yield finding(
            "collectives.host-lost",
            Severity.FAIL,
            f"{host} was lost while its ranks ran",
            [Evidence(reason, source="connection to the host", host=host), *_others(ranks, ())],
            hosts=(host,),
        )


def lost_hosts(probes: Mapping[str, ProbeResult]) -> dict[str, str]:
    """Hosts whose connection went away while the probe ran: name -> what is known."""
    return {
        host: result.detail
        for host, result in probes.items()
        if (result.outcome is Outcome.FAILED and result.detail.startswith("connection lost"))
        or (
            result.outcome is Outcome.TIMED_OUT
            and result.detail.startswith(("no answer", "the agent did not answer"))  # its launcher keeps its own limit
        )
    }


def _others(ranks: Iterable[RankOnHost], guilty: Iterable[RankOnHost]) -> list[Evidence]:
    """What the other ranks said, shortest way round: one line for each different answer."""
    names = {rank.end.rank for rank in guilty}
    groups: dict[str, list[RankOnHost]] = {}
    for rank in ranks:
        if rank.end.rank not in names and not rank.end.finished:
            said = rank.text.splitlines()[0][:200] if rank.text else f"was in {rank.end.where.words}"
            groups.setdefault(said, []).append(rank)
    return [
        members[0].evidence(said, "other ranks")
        if len(members) == 1
        else Evidence(f"{said} (ranks {_numbers(members)})", source="other ranks")
        for said, members in sorted(groups.items(), key=lambda item: -len(item[1]))[:3]
    ]


def _numbers(ranks: Iterable[RankOnHost]) -> str:
    return few([rank.end.rank for rank in ranks], 8)


def _printed(rank: RankOnHost) -> list[Evidence]:
    """The last lines a rank printed before its stack was taken, and the stack."""
    before = _DUMP.split(rank.end.output)[0]
    lines = [line for line in before.splitlines() if line.strip() and not _CHATTER.search(line)][-QUOTE_LINES:]
    found = [rank.evidence(line[:300], "stderr") for line in lines]
    stack = main_stack(rank.end.output)
    if stack:
        found.append(rank.evidence(stack, "stack, innermost first"))
    if rank.end.stack:
        found.append(rank.evidence("\n".join(rank.end.stack.splitlines()[:12]), "py-spy dump"))
    return found


def main_stack(output: str, frames: int = 5) -> str:
    """The innermost frames of the main thread from a faulthandler dump, on one line; empty if there is none."""
    blocks = _DUMP.split(output)
    if len(blocks) < 2:
        return ""
    found = re.findall(r'^  File "([^"\n]{1,400})", line (\d+) in (\S{1,100})', blocks[-1], flags=re.M)
    return " <- ".join(f"{name} ({path.rpartition('/')[2]}:{line})" for path, line, name in found[:frames])


_SETUP = {
    "torch-missing": ("sw.torch-missing.import-fails", "torch cannot be imported"),
    "backend-missing": ("sw.no-nccl-backend", "torch has no such backend"),
    "no-gpu": ("gpu.not-visible.torch", "torch sees no GPU for a rank"),
    "dtype": ("collectives.failed", "torch has no such data type"),
    "world": ("collectives.world", "the world is not what was asked for"),
    "port-in-use": ("net.port-in-use.store", "the store's port is in use"),
}


def _setup(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    for kind, (id, title) in _SETUP.items():
        guilty = [rank for rank in bad if rank.kind == kind]
        if not guilty:
            continue
        hosts = sorted({rank.host for rank in guilty})
        first = guilty[0]
        fixes = []
        if kind == "torch-missing":
            fixes = [Fix("name the Python of the training job", "nccl-doctor check --python /path/to/python")]
        if kind == "port-in-use":
            command = f"ss -ltnp 'sport = :{first.fact.master_port}'"
            fixes = [Fix("see who holds it, or choose another with --master-port", command, host=first.host)]
        yield finding(
            id,
            Severity.FAIL,
            f"{title} ({first.label})",
            [rank.evidence(rank.text.splitlines()[0][:400], rank.fact.python) for rank in guilty[:4]],
            hosts=hosts,
            places=[rank.place for rank in guilty],
            fixes=fixes,
        )
        return


def _died(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    guilty = [rank for rank in bad if rank.end.signal]
    silent = [
        rank for rank in bad if rank.end.exit not in (None, 0, 1, 70) and not rank.end.signal and not rank.end.killed
    ]
    if not guilty and not silent:
        return
    alike: dict[tuple[str, str], list[RankOnHost]] = {}
    for rank in guilty or silent:
        how = f"killed by {rank.end.signal}" if rank.end.signal else f"ended with status {rank.end.exit}"
        alike.setdefault((rank.host, how), []).append(rank)
    for (host, how), dead in alike.items():
        one = len(dead) == 1
        was = ("was " if one else "were ") if how.startswith("killed") else ""
        where = dead[0].end.where.words if one else " and ".join(sorted({rank.end.where.stage for rank in dead}))
        yield finding(
            "collectives.rank-died",
            Severity.FAIL,
            f"rank{'' if one else 's'} {_numbers(dead)} on {host} {was}{how} in {where}",
            [
                *(
                    rank.evidence(f"process {rank.end.pid} {how}, last heard of in stage {rank.end.where.words}")
                    for rank in dead
                ),
                *_printed(dead[0]),
                *_others(ranks, guilty or silent),
            ],
            places=[rank.place for rank in dead],
            fixes=[
                Fix(
                    "look for the out-of-memory killer and for drivers' errors around that time",
                    "sudo journalctl -k --since '-15 min' | grep -iE 'oom|killed process|xid|segfault'",
                    host=host,
                )
            ],
        )


def _stopped(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    guilty = [rank for rank in bad if rank.end.state == "T"]
    for rank in guilty:
        yield finding(
            "collectives.rank-stopped",
            Severity.FAIL,
            f"{rank.label} is stopped (state T) in {rank.end.where.words}",
            [
                rank.evidence(
                    f"process {rank.end.pid}: state T (stopped), last heard of in {rank.end.where.words}",
                    f"/proc/{rank.end.pid}/stat",
                ),
                *_others(ranks, guilty),
            ],
            places=[rank.place],
        )  # fmt: skip


def _wrong_first(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    guilty = [rank for rank in bad if rank.kind == "wrong-result"]
    if guilty:
        yield finding(
            "collectives.wrong-result",
            Severity.FAIL,
            "the first all-reduce gave a wrong answer",
            [rank.evidence(rank.text[:300], "first all-reduce") for rank in guilty[:4]],
            places=[rank.place for rank in guilty],
        )


def _own_error(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    """An exception that is not the echo of another rank's trouble."""
    errors = [rank for rank in bad if rank.end.error is not None and rank.end.error.event == "error"]
    own = [rank for rank in errors if not _PEER_GONE.search(rank.text) and rank.kind not in ("ranks-missing", "store")]
    if not own:
        return
    first = own[0]
    yield finding(
        "collectives.failed",
        Severity.FAIL,
        f"{first.label} failed in {_WHAT.get(first.end.where.stage, first.end.where.stage)}: "
        + (first.text.splitlines()[0][:160] if first.text else first.kind),
        [
            first.evidence(f"{first.kind}: {first.text.splitlines()[0][:400] if first.text else ''}", "exception"),
            *_printed(first),
            *_others(ranks, own),
        ],
        places=[rank.place for rank in own],
    )


def _unanswered(ranks: list[RankOnHost], bad: list[RankOnHost], owners: Mapping[str, str]) -> Iterator[Finding]:
    """Ranks that ask for connections which nobody answers, or which are refused: the host they all ask is the guilty one.

    A host that is asked by several is to blame; one that several do not answer has its own way out blocked. Of one
    connection between two hosts nobody can say which end it is. A rank that has failed refuses whoever comes later.
    """
    failed = {rank.host for rank in bad if _failed_alone(rank)}
    asked: dict[tuple[str, str], list[tuple[RankOnHost, Evidence]]] = {}
    for rank in bad:
        for address, proof in _not_connected(rank):
            peer = owners.get(address, "")
            if peer and peer != rank.host and (peer not in failed or proof.source == _DIALLED):
                asked.setdefault((rank.host, peer), []).append((rank, proof))
    for culprit in blame(dict.fromkeys(asked, True)):
        calls = [call for pair in culprit.pairs for call in asked[pair]]
        stage = calls[0][0].end.where.stage
        if not culprit.known_end:
            callers = sorted({rank.host for rank, _ in calls})
            silent = sorted({peer for _, peer in culprit.pairs})
            title = f"{fold(callers)} get{'s' * (len(callers) == 1)} no connection to {fold(silent)}"
        elif culprit.direction == "out":
            title = f"no connection from {culprit.names} is accepted"
        else:
            title = f"{culprit.names} accepts no connection"
        yield finding(
            STUCK_IDS.get(stage, "collectives.stuck.measure"),
            Severity.FAIL,
            f"{title}: the ranks are stuck in {_WHAT.get(stage, stage)}",
            [*[proof for _, proof in calls[:6]], *_others(ranks, [rank for rank, _ in calls])],
            hosts=culprit.hosts,
            fixes=[
                Fix(
                    "ask which ports are blocked, and in which direction",
                    f"nccl-doctor check --stage ports --stage connectivity -H '{fold({rank.host for rank in ranks})}'",
                )
            ],
            confidence=0.95 if culprit.known_end else 0.9,
        )


def _failed_alone(rank: RankOnHost) -> bool:
    """Whether its error is its own: nobody had ended it, and it was not stuck."""
    return rank.end.error is not None and rank.end.error.event == "error" and not rank.end.killed


def _not_connected(rank: RankOnHost) -> Iterator[tuple[str, Evidence]]:
    """The addresses that a rank could not connect to, with what says so."""
    for place in (rank.end.error.dialling if rank.end.error else None) or ():
        yield (
            place.rpartition(":")[0].strip("[]"),
            rank.evidence(f"connect {place}: no answer (SYN_SENT)", _DIALLED),
        )
    if _failed_alone(rank):
        for why, address, port in _REFUSED.findall(rank.text):
            yield address, rank.evidence(f"connect {address}:{port}: {why}", "exception")


def _stuck(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    """Nobody died: the ranks that are furthest back are what the others wait for."""
    missing = {number for rank in bad for number in (rank.end.error.missing if rank.end.error else None) or ()}
    guilty = [rank for rank in bad if rank.end.rank in missing] or bad
    if len(guilty) == len(bad) and not missing:
        least = min(rank.progress for rank in bad)
        guilty = [rank for rank in bad if rank.progress == least]
        # A rank that waits for others in the store's terms is not one that they wait for.
        guilty = [rank for rank in guilty if not rank.end.where.detail.startswith("waiting")] or guilty
    first = guilty[0]
    stage = first.end.where.stage
    told = [rank for rank in guilty if rank.end.error is not None]
    everyone = len(guilty) == len(ranks)
    ended = stage == "spawn" and first.end.exit not in (None, 0) and not first.end.killed
    who = f"all {len(ranks)} ranks" if everyone else ", ".join(rank.label for rank in guilty[:4])
    evidence = []
    for rank in (told or guilty)[:4]:
        error = rank.end.error
        said = f": {error.text.splitlines()[0][:300]}" if error and error.text else ""
        how = f"ended in {rank.end.where.words}" if ended else f"stuck in {rank.end.where.words}"
        evidence.append(rank.evidence(f"{how} after {rank.end.where.step_s:.0f} s{said}"))
    printed = _printed(first)
    # What ended a Python that ran no line of ours is in its last line.
    evidence += (printed[::-1] if ended else printed) + _others(ranks, guilty)
    fact = first.fact
    yield finding(
        STUCK_IDS.get(stage, "collectives.stuck.measure"),
        Severity.FAIL,
        f"{who} {'ended while' if ended else 'stuck in'} {_WHAT.get(stage, stage)}"
        + (f" ({fact.master_addr} port {fact.master_port} on {fact.master})" if stage == "store" else ""),
        evidence,
        hosts=() if not everyone else sorted({rank.host for rank in ranks}),
        places=[rank.place for rank in guilty],
        fixes=_start_by_hand(first) if ended else (),
        confidence=0.9 if not everyone else 0.8,
    )


def _start_by_hand(rank: RankOnHost) -> tuple[Fix, ...]:
    command = f"{shell_word(rank.fact.python or 'python3')} -c 'import tempfile, torch'"
    return (
        Fix("start that Python by hand, and look for what PYTHONPATH or PYTHONHOME put in its way", command, rank.host),
    )


def _told(facts: Mapping[str, Collectives], kind: type[E]) -> Iterator[E]:
    for fact in facts.values():
        yield from fact.told(kind)


def host_of(facts: Mapping[str, Collectives], rank: int) -> str:
    """The inventory name of the host a rank ran on."""
    return next((host for host, fact in facts.items() for end in fact.ranks if end.rank == rank), "")


def wrong_results(facts: Mapping[str, Collectives]) -> Iterator[Finding]:
    """Elements that are not what they must be: corrupt data, one finding for all sizes and matrix products."""
    counts = [(f"{told.collective} of {told.size} B", told.wrong or ()) for told in _told(facts, Size)]
    for gemm in _told(facts, Gemm):
        counts.append((f"gemm of {gemm.edge} x {gemm.edge}", tuple(end.wrong or 0 for end in gemm.ranks)))
    evidence: list[Evidence] = []
    places: dict[int, Place] = {}
    for what, wrong in counts:
        for rank, count in enumerate(wrong):
            if count:
                host = host_of(facts, rank)
                places[rank] = Place(host=host, rank=rank)
                text = f"{what}: {count} wrong elements"
                evidence.append(Evidence(text, source="comparison with the computed answer", host=host, rank=rank))
    if evidence:
        yield finding(
            "collectives.wrong-result",
            Severity.FAIL,
            f"wrong results on rank{'s' if len(places) > 1 else ''} {', '.join(map(str, sorted(places)))}",
            evidence[:8],
            places=[places[rank] for rank in sorted(places)],
        )


def pair_rates(facts: Mapping[str, Collectives]) -> dict[tuple[str, str], float]:
    """What pairs of hosts exchanged through the collectives' own transport, each way at the same time, in GB/s.

    Of a host that was lost afterwards it is not known which ranks it had.
    """
    hosts = {end.rank: host for host, fact in facts.items() for end in fact.ranks}  # 1,000 hosts are 500,000 pairs
    return {
        (hosts[pair.first], hosts[pair.second]): pair.size / pair.seconds / 1e9
        for pair in _told(facts, HostPair)
        if pair.first in hosts and pair.second in hosts
    }


def slow_hosts(facts: Mapping[str, Collectives], before_gbs: float = 0.0) -> Iterator[Finding]:
    """Hosts whose every pair is far slower than the pairs of the others, and pairs that are slow alone.

    Two hosts are one pair: it is compared with ``before_gbs`` (a baseline's pair, GB/s) or with its line rate.
    """
    rates = pair_rates(facts)
    if len(rates) == 1:
        ((pair, gbs),) = rates.items()
        yield from _lone_pair(facts, pair, gbs, before_gbs)
    if len(rates) < 2:
        return
    # Of three hosts, one that is slow leaves a single pair to compare with, and that may have been lucky.
    share = SLOW_HOST_SHARE if len(rates) > 3 else SLOW_PAIR_SHARE
    upper = _median(sorted(rates.values())[len(rates) // 2 :])  # one slow host of four slows down half of the pairs
    typical = _median(sorted(rate for rate in rates.values() if rate >= share * upper))
    slow = {pair: rate < share * typical for pair, rate in rates.items()}
    both = {**slow, **{(b, a): bad for (a, b), bad in slow.items()}}
    for culprit in blame(both):
        pairs = sorted({tuple(sorted(pair)) for pair in culprit.pairs})
        quoted = [
            Evidence(f"{a} <-> {b}: {rate(rates.get((a, b), rates.get((b, a), 0.0)))}", source="exchange of host pairs")
            for a, b in pairs[:6]
        ]
        good = [rate for pair, rate in rates.items() if not slow[pair]]
        if not culprit.known_end:
            if min(rates.get(pair, rates.get(pair[::-1], 0.0)) for pair in culprit.pairs) >= SLOW_PAIR_SHARE * typical:
                continue
            yield _slow_pair(
                culprit.names,
                culprit.hosts,
                f"only the exchange between them is slow: {rate(_median(sorted(good)))} for the other pairs (median)",
                [*quoted, Evidence("each is as fast as others with other hosts", source="exchange of host pairs")],
                Fix(
                    "look at what lies between them alone",
                    f"traceroute -n {shell_word(culprit.pairs[0][1])}",
                    host=culprit.pairs[0][0],
                ),
            )
            continue
        best = rate(max(rates.get((a, b), rates.get((b, a), 0.0)) for a, b in pairs))
        others = f"{rate(_median(sorted(good)))} between the other hosts (median)"
        yield finding(
            "collectives.slow-host",
            Severity.WARN,
            f"every exchange with {culprit.names} is slow: {best} at best, and {others}",
            quoted,
            hosts=culprit.hosts,
            confidence=0.9,
        )


def _lone_pair(
    facts: Mapping[str, Collectives], pair: tuple[str, str], gbs: float, before_gbs: float
) -> Iterator[Finding]:
    claims = _line_rates(facts)
    claimed, where = min(claims) if claims else (0.0, "")
    line = min(max(claimed, LEAST_LINE_GBPS), MOST_LINE_GBPS)
    if before_gbs and gbs < SLOW_HOST_SHARE * before_gbs:
        why = f"the baseline has {rate(before_gbs)}"
        proof = Evidence(f"{rate(before_gbs)} in the baseline", source="--baseline")
    elif gbs < SLOW_LINE_SHARE * line / 8:
        why = f"less than {SLOW_LINE_SHARE:.0%} of {line:g} Gb/s".replace("%", " %")
        said = f"{where} claims {claimed:g} Gb/s" if where else "no interface in use tells its line rate"
        proof = Evidence(f"{said}; held against {line:g} Gb/s", source="/sys/class/net/*/speed")
    else:
        return
    yield _slow_pair(
        " and ".join(pair),
        pair,
        f"{why}; two hosts cannot tell which of them, or what lies between, is slow",
        [Evidence(f"{pair[0]} <-> {pair[1]}: {rate(gbs)}", source="exchange of host pairs"), proof],
        Fix(
            "a third host tells the two apart",
            f"nccl-doctor bench allreduce -H {shell_word(','.join(pair))},THIRD_HOST",
        ),
    )


def _slow_pair(names: str, hosts: tuple[str, ...], why: str, evidence: list[Evidence], fix: Fix) -> Finding:
    return finding(
        "collectives.slow-pair",
        Severity.WARN,
        f"{names} exchange slowly: {why}",
        evidence,
        hosts=sorted(hosts),
        fixes=[fix],
        confidence=0.75,
    )


def _line_rates(facts: Mapping[str, Collectives]) -> list[tuple[float, str]]:
    """Gb/s that the drivers of the real interfaces in use claim, and which one on which host."""
    return [
        (card.speed_mbps / 1e3, f"{name} on {host}")
        for host, fact in facts.items()
        for path in fact.told(Path)
        for name, card in path.interfaces.items()
        if card.physical and card.speed_mbps
    ]


def _median(ordered: list[float]) -> float:
    return ordered[len(ordered) // 2] if ordered else 0.0


def rate(gbs: float) -> str:
    """A rate in GB/s (1e9 bytes) for people, in bits as well."""
    return f"{gbs:.2f} GB/s ({gbs * 8:.1f} Gb/s)" if gbs >= 0.1 else f"{gbs * 1e3:.1f} MB/s ({gbs * 8e3:.0f} Mb/s)"
