"""Path MTU between hosts: large packets that vanish, and interfaces whose MTUs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nccl_doctor.facts.fold import fold
from nccl_doctor.facts.mesh import Links, PathMtu, PathSize
from nccl_doctor.findings.model import Evidence, Finding, Severity, finding
from nccl_doctor.rules.engine import Fleet, facts_of, fleet_rule
from nccl_doctor.rules.link_view import Trouble, cut_pairs, fix_at, laid_at
from nccl_doctor.rules.localise import Blame, Pair, blame
from nccl_doctor.rules.mesh_pairs import untried

# What IP_MTU says of Linux's loopback interface (65536, capped); the largest of real interfaces is IPoIB's 65520.
LOOPBACK_MTU = 65535

_BLACK_HOLE = Trouble(
    "net.mtu.black-hole", "UDP with don't-fragment", explains=("collectives", "net.slow", "net.packet-loss")
)


@fleet_rule("connectivity", "net.mtu.mismatch", "net.mtu.black-hole")
def path_mtu(fleet: Fleet) -> Iterator[Finding]:
    """Large packets vanish, or the hosts' interfaces have different MTUs.

    Every pair was tried with don't-fragment set. A black hole is a size below the sender's interface MTU from which
    on nothing arrives and no ICMP says why. Where the receiver's interface is exactly that small, the MTUs just differ.
    """
    fleet.need_several()
    paths = {(host, path.peer): path for host, fact in fleet.every(PathMtu).items() for path in fact.paths}
    _note_gaps(fleet, paths)
    yield from _different_mtu(fleet, paths)
    for culprit in blame(_judged(paths)):
        yield _black_hole(fleet, culprit, paths)


def _note_gaps(fleet: Fleet, paths: Mapping[Pair, PathSize]) -> None:
    """Note the paths that were not measured, and the hosts to which no peer answered over UDP at all."""
    cut = cut_pairs(fleet)
    untried(fleet, cut | set(paths), "path MTU to", "not measured")
    heard = {host for (host, _), path in paths.items() if path.outcome != "blocked"}
    silent = {host for host, _ in paths} - heard
    for host in sorted(silent):
        fleet.lack("path MTU", "no UDP datagram was answered by any peer", host)
    for (host, peer), path in paths.items():
        if path.outcome not in ("ok", "black-hole") and host not in silent and (host, peer) not in cut:
            why = f"{path.outcome}: {path.detail}" if path.detail else path.outcome
            fleet.lack(f"path MTU to {peer}", why, host)
        elif path.outcome != "blocked" and not path.interface_mtu:
            fleet.lack(f"path MTU to {peer}", "the interface's own MTU is not known", host)


def _judged(paths: Mapping[Pair, PathSize]) -> dict[Pair, bool]:
    """Pair -> whether its path is a black hole; pairs of which that is not known, or that cannot tell, are left out."""
    own: dict[str, int] = {}
    for (host, _), path in paths.items():
        if 0 < path.interface_mtu < LOOPBACK_MTU:  # from a machine to itself, which was named twice
            own[host] = max(own.get(host, 0), path.interface_mtu)
    bad = {
        pair: path.outcome == "black-hole" and path.largest_passed < min(own.get(pair[0], 0), own.get(pair[1], 1 << 30))
        for pair, path in paths.items()
        if path.outcome in ("ok", "black-hole")
    }
    lost: dict[str, int] = {}  # host -> the smallest packet that vanished on any of its paths, in bytes
    for pair in (pair for pair, is_bad in bad.items() if is_bad):
        for host in pair:
            lost[host] = min(lost.get(host, 1 << 30), paths[pair].smallest_lost)
    # A path that carries no packet of the sizes that vanish elsewhere speaks for nobody.
    return {
        pair: is_bad
        for pair, is_bad in bad.items()
        if is_bad or paths[pair].interface_mtu >= min((lost[host] for host in pair if host in lost), default=0)
    }


def _different_mtu(fleet: Fleet, paths: Mapping[Pair, PathSize]) -> Iterator[Finding]:
    """Interfaces at the two ends of a path that differ; towards another peer, or back, another one may be used."""
    mtus = {pair: path.interface_mtu for pair, path in paths.items() if 0 < path.interface_mtu < LOOPBACK_MTU}
    every = facts_of(fleet.hosts, Links).items()
    sources = {(name, link.address): link.source for name, fact in every for link in fact.links if link.source}

    def is_way_back(pair: Pair) -> bool:
        back = paths[pair[::-1]].address
        return sources.get((pair[0], paths[pair].address), back) == back

    unequal = {
        pair: mtu
        for pair, mtu in mtus.items()
        if mtus.get(back := pair[::-1], mtu) != mtu and is_way_back(pair) and is_way_back(back)
    }
    if not unequal:
        return
    by_mtu: dict[int, set[str]] = {}
    for (host, _), mtu in unequal.items():
        by_mtu.setdefault(mtu, set()).add(host)
    most = max(map(len, by_mtu.values()))
    everyone = set().union(*by_mtu.values())
    odd = sorted(set().union(*(hosts for hosts in by_mtu.values() if len(hosts) < most)) or everyone)
    usual = max(by_mtu, key=lambda mtu: (len(by_mtu[mtu]), mtu))
    culprit = Blame(tuple(odd), "both", tuple(sorted(pair for pair in unequal if pair[0] in odd)))
    yield finding(
        "net.mtu.mismatch",
        Severity.WARN,
        "interfaces towards the peers have different MTUs: " + ", ".join(f"{mtu} B" for mtu in sorted(by_mtu)),
        [
            Evidence(f"MTU {mtu} B on {fold(hosts)}", source="IP_MTU towards the peers")
            for mtu, hosts in sorted(by_mtu.items())
        ],
        hosts=odd,
        fixes=[
            fix_at(
                fleet,
                culprit,
                {pair: path.address for pair, path in paths.items()},
                f"give all hosts (and the switch ports between them) the same MTU, here {usual} B",
                f"ip -br link; sudo ip link set dev INTERFACE mtu {usual}",
            )
        ],
    )


def _black_hole(fleet: Fleet, culprit: Blame, paths: Mapping[Pair, PathSize]) -> Finding:
    """``paths`` are those of all pairs. The MTU to keep to is what passes on every path of the culprit."""
    of_culprit = [paths[pair] for pair in culprit.pairs]
    passes = min(path.largest_passed for path in of_culprit)

    def told(pair: Pair) -> str:
        path = paths[pair]
        sizes = f"{path.largest_passed} B arrive, {path.smallest_lost} B do not, interface MTU {path.interface_mtu} B"
        return f"{sizes} (to {path.address})"

    return laid_at(
        culprit,
        _BLACK_HOLE,
        f"packets above {passes} B vanish {culprit.where} (interface MTU {of_culprit[0].interface_mtu} B)",
        told,
        fix_at(
            fleet,
            culprit,
            {pair: path.address for pair, path in paths.items()},
            f"until the path is mended, keep to what passes: MTU {passes} B"
            + (" (below 1280 B the kernel takes IPv6 off the interface)" if passes < 1280 else ""),
            f"sudo ip link set dev INTERFACE mtu {passes}",
        ),
    )
