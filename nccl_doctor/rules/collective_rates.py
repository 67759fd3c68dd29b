"""What collectives measured: bus bandwidths, wrong results, and hosts or pairs that are slow. For `check` and for `bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_high

import msgspec

from nccl_doctor.facts.collectives import Collectives, E, Gemm, HostPair, Path, Size, bus_factor
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.localise import blame

# A pair that is slow alone: on a busy machine single pairs came out at 0.33 to 0.4 of the others, although each counts
# with the best of five exchanges.
SLOW_PAIR_SHARE = 0.25
SLOW_HOST_SHARE = 0.4  # a host whose best pair is below this share of the other hosts' median pair is slow
# A lone pair has only its line rate to be held against. One TCP stream with small buffers reaches a quarter of 10 Gb/s
# on any host, but not of 100 Gb/s; and no data network is slower than 1 Gb/s, whatever an interface says of itself.
SLOW_LINE_SHARE, LEAST_LINE_GBPS, MOST_LINE_GBPS = 0.25, 1.0, 10.0
_EXCHANGE = "exchange of host pairs"


def events(facts: Mapping[str, Collectives], kind: type[E]) -> Iterator[E]:
    """What the ranks of all hosts told of this kind, in their order."""
    for fact in facts.values():
        yield from fact.told(kind)


class BusBandwidth(msgspec.Struct, frozen=True):
    """One measured size: bytes, ranks, the mean time of an operation in us over all ranks, busbw in GB/s (1e9 B/s)."""

    collective: str
    size: int
    ranks: int
    time_us: float
    gbs: float


def bus_bandwidths(facts: Mapping[str, Collectives]) -> list[BusBandwidth]:
    """What rank 0 measured, in its order."""
    return [bus_bandwidth(size) for size in events(facts, Size)]


def bus_bandwidth(told: Size) -> BusBandwidth:
    """The bus bandwidth of one measured size."""
    ranks = len(told.rank_means_us)
    time_us = sum(told.rank_means_us) / ranks
    gbs = told.size / time_us / 1e3 * bus_factor(told.collective, ranks)
    return BusBandwidth(told.collective, told.size, ranks, time_us, gbs)


def host_of(facts: Mapping[str, Collectives], rank: int) -> str:
    """The inventory name of the host a rank ran on."""
    return next((host for host, fact in facts.items() for end in fact.ranks if end.rank == rank), "")


def wrong_results(facts: Mapping[str, Collectives]) -> Iterator[Finding]:
    """Elements that are not what they must be: corrupt data, one finding for all sizes and matrix products."""
    counts = [(f"{told.collective} of {told.size} B", told.wrong or ()) for told in events(facts, Size)]
    for gemm in events(facts, Gemm):
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
        for pair in events(facts, HostPair)
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
    upper = median_high(sorted(rates.values())[len(rates) // 2 :])  # one slow host of four slows down half of the pairs
    typical = median_high(gbs for gbs in rates.values() if gbs >= share * upper)
    others = rate(median_high(gbs for gbs in rates.values() if gbs >= share * typical))
    both_ways = {**rates, **{pair[::-1]: gbs for pair, gbs in rates.items()}}
    for culprit in blame({pair: gbs < share * typical for pair, gbs in both_ways.items()}):
        pairs = sorted({(min(pair), max(pair)) for pair in culprit.pairs})
        quoted = [Evidence(f"{a} <-> {b}: {rate(both_ways[a, b])}", source=_EXCHANGE) for a, b in pairs[:6]]
        if culprit.known_end:
            best = rate(max(both_ways[pair] for pair in pairs))
            yield finding(
                "collectives.slow-host",
                Severity.WARN,
                f"every exchange with {culprit.names} is slow: {best} at best, and {others} between the other hosts (median)",
                quoted,
                hosts=culprit.hosts,
                confidence=0.9,
            )
        elif min(both_ways[pair] for pair in pairs) < SLOW_PAIR_SHARE * typical:
            client, server = culprit.pairs[0]
            yield _slow_pair(
                culprit.names,
                culprit.hosts,
                f"only the exchange between them is slow: {others} for the other pairs (median)",
                [*quoted, Evidence("each is as fast as others with other hosts", source=_EXCHANGE)],
                Fix("look at what lies between them alone", f"traceroute -n {shell_word(server)}", host=client),
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
        why = f"less than {SLOW_LINE_SHARE * 100:.0f} % of {line:g} Gb/s"
        said = f"{where} claims {claimed:g} Gb/s" if where else "no interface in use tells its line rate"
        proof = Evidence(f"{said}; held against {line:g} Gb/s", source="/sys/class/net/*/speed")
    else:
        return
    yield _slow_pair(
        " and ".join(pair),
        pair,
        f"{why}; two hosts cannot tell which of them, or what lies between, is slow",
        [Evidence(f"{pair[0]} <-> {pair[1]}: {rate(gbs)}", source=_EXCHANGE), proof],
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


def rate(gbs: float) -> str:
    """A rate in GB/s (1e9 bytes) for people, in bits as well."""
    return f"{gbs:.2f} GB/s ({gbs * 8:.1f} Gb/s)" if gbs >= 0.1 else f"{gbs * 1e3:.1f} MB/s ({gbs * 8e3:.0f} Mb/s)"
