"""What rules on the links between hosts share: pairs without any connection, and findings laid at a culprit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Links
from nccl_doctor.facts.model import Plan
from nccl_doctor.findings.model import Evidence, Finding, Fix, Place, Severity, finding, shell_word
from nccl_doctor.rules.engine import Fleet, Host, facts_of
from nccl_doctor.rules.localise import Blame, Pair


class Trouble(NamedTuple):
    """What is wrong with links, and how it was measured.

    ``sure``: the confidence where it is known which end of the links is to blame, and where it is not.
    """

    id: str
    source: str
    severity: Severity = Severity.FAIL
    sure: tuple[float, float] = (1.0, 0.9)
    explains: tuple[str, ...] = ("collectives",)


def laid_at(culprit: Blame, trouble: Trouble, title: str, told: Callable[[Pair], str], fix: Fix) -> Finding:
    """A finding about the culprit's links, with what was told of each of them."""
    return finding(
        trouble.id,
        trouble.severity,
        title,
        [
            Evidence(f"{pair[0]} -> {pair[1]}: {told(pair)}", source=trouble.source, host=pair[0])
            for pair in culprit.pairs
        ],
        confidence=trouble.sure[0] if culprit.known_end else trouble.sure[1],
        places=[Place(host=host) for host in culprit.hosts],
        fixes=[fix],
        explains=trouble.explains,
    )


def fix_at(fleet: Fleet, culprit: Blame, addresses: Mapping[Pair, str], text: str, command: str) -> Fix:
    """A fix on the host at fault; INTERFACE becomes the one that its links to these addresses go through."""
    host = next((host for host in fleet.hosts if host.name == culprit.host), None)
    links, interfaces = (host.want(Links), host.want(Interfaces)) if host else (None, None)
    ends = {addresses[pair] for pair in culprit.pairs}
    ends |= {link.source for link in links.links if link.address in ends} if links else set()
    used = {address.name for address in interfaces.addresses if address.address in ends} if interfaces else set()
    name = shell_word(used.pop()) if len(used) == 1 else "INTERFACE"
    return Fix(text, command.replace("INTERFACE", name), culprit.host)


def cut_pairs(fleet: Fleet) -> frozenset[Pair]:
    """Pairs without any connection, where the ports stage says so: nothing more can be measured between them."""
    return fleet.once(_unconnected)


def _unconnected(hosts: tuple[Host, ...], plan: Plan) -> frozenset[Pair]:
    if "ports" not in plan.stages:
        return frozenset()
    connected: dict[Pair, bool] = {}
    for host, fact in facts_of(hosts, Links).items():
        for link in fact.links:
            pair = (host, link.peer)
            connected[pair] = connected.get(pair, False) or link.outcome == "ok"
    return frozenset(pair for pair, through in connected.items() if not through)
