"""Why collectives failed: from the ends of all ranks to the one that is to blame. For `check` and for `bench`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.model import Outcome, ProbeResult
from nccl_doctor.findings.model import Evidence, Finding, Fix, Severity, finding, shell_word
from nccl_doctor.rules.localise import blame
from nccl_doctor.rules.rank_ends import RankOnHost, numbers, others, printed, ranks_of, unheard

# What other ranks say when a peer is gone or silent: a consequence, wherever the cause is known.
_PEER_GONE = re.compile(
    r"onnection (closed|reset|refused)|roken pipe|onnection was likely closed|timed out|imeout|remote process exited"
    r"|remote error|ncclRemoteError|failed to recv"
)
LEAST_CONFIDENCE = 0.6  # of a cause from the ranks' output, to be named beside what the launcher saw
# The ranks run our own code: causes in an application or its launcher are echoes of the same stop, as is a lost peer.
_CAUSE_AREAS = ("net.", "ib.", "gpu.", "sw.", "sys.", "env.")
# What the other ranks see of their connections when the first rank is ended.
_ECHOES = ("net.peer-lost", "net.firewall")
_DIALLED = "/proc/net/tcp"
# Gloo's, of a connection that the other side's kernel or packet filter rejects.
_REFUSED = re.compile(r"SO_ERROR: ([^,\n]{1,80}), remote=\[?([0-9a-fA-F.:]{2,45})\]?:([0-9]{1,5})")


def _owners(addresses: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Address -> the host that has it. Addresses that several hosts have (docker0) are left out."""
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
    for judge in (_setup, _died, _stopped, _wrong_first):
        if found := list(judge(ranks, bad)):
            yield from found
            return
    found = list(_own_error(ranks, bad))
    if not found and not unheard(ranks):
        found = list(_unanswered(ranks, bad, _owners(addresses or {}))) or [_stuck(ranks, bad)]
    yield from found
    if found:
        yield from _explained(bad)


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
            [Evidence(reason, source="connection to the host", host=host), *others(ranks, ())],
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
            [rank.evidence(rank.first_line[:400] or title, rank.fact.python) for rank in guilty[:4]],
            places=[rank.place for rank in guilty],
            fixes=fixes,
        )
        return


def _died(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Iterator[Finding]:
    guilty = [rank for rank in bad if rank.end.signal] or [
        rank for rank in bad if rank.end.exit not in (None, 0, 1, 70) and not rank.end.killed
    ]
    alike: dict[tuple[str, str], list[RankOnHost]] = {}
    for rank in guilty:
        how = f"killed by {rank.end.signal}" if rank.end.signal else f"ended with status {rank.end.exit}"
        alike.setdefault((rank.host, how), []).append(rank)
    for (host, how), dead in alike.items():
        one = len(dead) == 1
        was = ("was " if one else "were ") if how.startswith("killed") else ""
        where = dead[0].end.where.words if one else " and ".join(sorted({rank.stage for rank in dead}))
        yield finding(
            "collectives.rank-died",
            Severity.FAIL,
            f"rank{'' if one else 's'} {numbers(dead)} on {host} {was}{how} in {where}",
            [
                *(
                    rank.evidence(f"process {rank.end.pid} {how}, last heard of in stage {rank.end.where.words}")
                    for rank in dead
                ),
                *printed(dead[0]),
                *others(ranks, guilty),
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
                *others(ranks, guilty),
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
    own = [
        rank
        for rank in bad
        if rank.raised and not _PEER_GONE.search(rank.text) and rank.kind not in ("ranks-missing", "store")
    ]
    if not own:
        return
    first = own[0]
    yield finding(
        "collectives.failed",
        Severity.FAIL,
        f"{first.label} failed in {first.task}: {first.first_line[:160] or first.kind}",
        [first.evidence(f"{first.kind}: {first.first_line[:400]}", "exception"), *printed(first), *others(ranks, own)],
        places=[rank.place for rank in own],
    )


def _unanswered(ranks: list[RankOnHost], bad: list[RankOnHost], owners: Mapping[str, str]) -> Iterator[Finding]:
    """Ranks that ask for connections which nobody answers, or which are refused: the host they all ask is the guilty one.

    A host that is asked by several is to blame; one that several do not answer has its own way out blocked. Of one
    connection between two hosts nobody can say which end it is. A rank that has failed refuses whoever comes later.
    """
    failed = {rank.host for rank in bad if rank.raised}
    asked: dict[tuple[str, str], list[tuple[RankOnHost, Evidence]]] = {}
    for rank in bad:
        for address, proof in _not_connected(rank):
            peer = owners.get(address, "")
            if peer and peer != rank.host and (peer not in failed or proof.source == _DIALLED):
                asked.setdefault((rank.host, peer), []).append((rank, proof))
    for culprit in blame(dict.fromkeys(asked, True)):
        calls = [call for pair in culprit.pairs for call in asked[pair]]
        first = calls[0][0]
        if not culprit.known_end:
            callers = sorted({rank.host for rank, _ in calls})
            silent = sorted({peer for _, peer in culprit.pairs})
            title = f"{fold(callers)} get{'s' * (len(callers) == 1)} no connection to {fold(silent)}"
        elif culprit.direction == "out":
            title = f"no connection from {culprit.names} is accepted"
        else:
            title = f"{culprit.names} accepts no connection"
        yield finding(
            first.stuck_id,
            Severity.FAIL,
            f"{title}: the ranks are stuck in {first.task}",
            [*[proof for _, proof in calls[:6]], *others(ranks, [rank for rank, _ in calls])],
            hosts=culprit.hosts,
            fixes=[
                Fix(
                    "ask which ports are blocked, and in which direction",
                    f"nccl-doctor check --stage ports --stage connectivity -H '{fold({rank.host for rank in ranks})}'",
                )
            ],
            confidence=0.95 if culprit.known_end else 0.9,
        )


def _not_connected(rank: RankOnHost) -> Iterator[tuple[str, Evidence]]:
    """The addresses that a rank could not connect to, with what says so."""
    for place in (rank.end.error.dialling if rank.end.error else None) or ():
        yield (place.rpartition(":")[0].strip("[]"), rank.evidence(f"connect {place}: no answer (SYN_SENT)", _DIALLED))
    if rank.raised:
        for why, address, port in _REFUSED.findall(rank.text):
            yield address, rank.evidence(f"connect {address}:{port}: {why}", "exception")


def _stuck(ranks: list[RankOnHost], bad: list[RankOnHost]) -> Finding:
    """No rank died: the others wait for those that are furthest back."""
    guilty = _furthest_back(bad)
    first = guilty[0]
    told = [rank for rank in guilty if rank.end.error is not None]
    everyone = len(guilty) == len(ranks)
    ended = first.stage == "spawn" and first.end.exit not in (None, 0) and not first.end.killed
    who = f"all {len(ranks)} ranks" if everyone else ", ".join(rank.label for rank in guilty[:4])
    store = f" ({first.fact.master_addr} port {first.fact.master_port} on {first.fact.master})"
    evidence = []
    for rank in (told or guilty)[:4]:
        said = f": {rank.first_line[:300]}" if rank.first_line else ""
        how = f"{'ended' if ended else 'stuck'} in {rank.end.where.words}"
        evidence.append(rank.evidence(f"{how} after {rank.end.where.step_s:.0f} s{said}"))
    said_last = printed(first)
    # What ended a Python that ran no line of ours is in its last line.
    evidence += (said_last[::-1] if ended else said_last) + others(ranks, guilty)
    return finding(
        first.stuck_id,
        Severity.FAIL,
        f"{who} {'ended while' if ended else 'stuck in'} {first.task}{store if first.stage == 'store' else ''}",
        evidence,
        places=[rank.place for rank in guilty],
        fixes=[_start_by_hand(first)] if ended else [],
        confidence=0.8 if everyone else 0.9,
    )


def _furthest_back(bad: list[RankOnHost]) -> list[RankOnHost]:
    """The ranks that the others miss, by name, or those that got least far."""
    missing = {number for rank in bad for number in (rank.end.error.missing if rank.end.error else None) or ()}
    if missing:
        return [rank for rank in bad if rank.end.rank in missing] or bad
    least = min(rank.progress for rank in bad)
    guilty = [rank for rank in bad if rank.progress == least]
    # A rank that waits for others in the store's terms is not one that they wait for.
    return [rank for rank in guilty if not rank.end.where.detail.startswith("waiting")] or guilty


def _start_by_hand(rank: RankOnHost) -> Fix:
    text = "start that Python by hand, and look for what PYTHONPATH or PYTHONHOME put in its way"
    return Fix(text, f"{shell_word(rank.fact.python or 'python3')} -c 'import tempfile, torch'", rank.host)
