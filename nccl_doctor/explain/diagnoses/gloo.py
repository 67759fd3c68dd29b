"""Gloo: which addresses its ranks tell each other, and why they cannot connect."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.addresses import is_local_only, network_of, several_hosts
from nccl_doctor.explain.lines import ranks_of, speakers
from nccl_doctor.facts.fold import few

# A connection that was read from, or that a store answered on, had been reached: its address is not the trouble.
_ESTABLISHED = re.compile(r"Read error|Write error|Connection closed by peer|SocketImpl\(")


@diagnosis
def gloo_loopback(case: Case) -> Iterable[Candidate]:
    """Gloo connects to 127.x although the job has several hosts: the own name resolves to loopback, or was told to.

    Without GLOO_SOCKET_IFNAME Gloo resolves the host's own name; Debian's ``127.0.1.1 hostname`` in /etc/hosts makes it
    advertise loopback. With GLOO_SOCKET_IFNAME=lo the interface is wrong.
    """
    loop = [
        hit
        for hit in case.hits("gloo-endpoint", "connect-refused")
        if re.search(r"\[?127\.\d+\.\d+\.\d+", hit.groups.get("address", ""))
        and not _ESTABLISHED.search(hit.text)
        and "NCCL " not in hit.text
    ]
    failing = case.has("connect-refused", "gloo-connect-failed", "gloo-closed", "socket-timeout")
    unresolved = case.hits("hostname-loopback")
    if failing and loop and (told := case.value("GLOO_SOCKET_IFNAME")):
        title = f"GLOO_SOCKET_IFNAME={told} makes Gloo use loopback"
        yield Candidate("net.wrong-interface", 0.9, title, [*loop[:4], *case.env["GLOO_SOCKET_IFNAME"][:2]])
        yield Candidate("net.hostname-resolution", 0.55, "Gloo advertises a loopback address", loop[:4])
    elif failing and loop:
        single = case.nodes == 1 and not several_hosts(case)
        title = "Gloo connects to a loopback address: a host's own name resolves to loopback"
        yield Candidate("net.hostname-resolution", 0.62 if single else 0.9, title, loop[:6], ranks_of(loop))
        yield Candidate("net.wrong-interface", 0.6, "Gloo's peers advertise loopback", loop[:4])
    elif failing and unresolved:
        title = "a host's own name does not resolve: Gloo fell back to loopback"
        yield Candidate("net.hostname-resolution", 0.85, title, unresolved, *speakers(unresolved))


_GLOO_ENDS = re.compile(
    r"local=\[([\d.]+)\].*remote=\[([\d.]+)\].*(Connection refused|timed out|No route to host)", re.I
)


@diagnosis
def gloo_peer_in_own_network(case: Case) -> Iterable[Candidate]:
    """Gloo cannot connect to an address of its own network: no wrong interface, but something on the way or a dead peer.

    The peer has told the address after it listened there. Refused or unanswered it is where a packet filter rejects or
    drops, or where the peer's process has ended since.
    """
    ends = [(hit, found) for hit in case.hits("gloo-endpoint") if (found := _GLOO_ENDS.search(hit.text))]
    near = [
        (hit, found)
        for hit, found in ends
        if network_of(found[1]) == network_of(found[2]) and found[1] != found[2] and not is_local_only(found[2])
    ]
    if not near or len(near) < len(ends):
        return
    remotes = sorted({found[2] for _, found in near})
    hits = [hit for hit, _ in near]
    title = f"Gloo cannot connect to {', '.join(remotes[:4])} ({near[0][1][3].lower()}): a firewall there, or its rank has ended"
    yield Candidate("net.firewall", 0.65, title, [*hits[:4], *case.hits("gloo-connect-failed")[:2]], *speakers(hits))


@diagnosis
def gloo_odd_family(case: Case) -> Iterable[Candidate]:
    """Gloo's ranks disagree on IPv4 or IPv6, and the fewer of them are odd: their hosts' own names resolve otherwise."""
    hits = case.hits("gloo-families")
    first = [hit for hit in hits if hit.groups["own"] == hits[0].groups["own"]]
    others = [hit for hit in hits if hit not in first]
    odd = min(first, others, key=len)
    if odd and len(first) != len(others):
        family = {"2": "IPv4", "10": "IPv6"}.get(odd[0].groups["own"], "another family's")
        title = (
            f"Gloo listens on an {family} address there, unlike all others: what does the host's own name resolve to?"
        )
        yield Candidate("net.hostname-resolution", 0.9, title, odd, *speakers(odd))


@diagnosis
def gloo_connect_without_address(case: Case) -> Iterable[Candidate]:
    """Gloo's full mesh failed and no address was printed (old versions): an unreachable advertised address."""
    if not case.has("gloo-connect-failed") or case.hits("gloo-endpoint"):
        return
    told = case.value("GLOO_SOCKET_IFNAME")
    hits = case.hits("gloo-connect-failed")
    if told:
        title = f"Gloo cannot connect over GLOO_SOCKET_IFNAME={told}"
        yield Candidate("net.wrong-interface", 0.75, title, [*hits[:4], *case.env["GLOO_SOCKET_IFNAME"][:2]])
    else:
        title = "Gloo's peers advertise addresses that the others cannot reach (names resolving to loopback?)"
        yield Candidate("net.hostname-resolution", 0.56, title, hits[:6])


@diagnosis
def one_rank_was_done(case: Case) -> Iterable[Candidate]:
    """torchrun's table lists ranks that lost a connection, and not a rank that spoke in the same log: that one had ended with
    code 0 when the others still communicated. It had less data, or left the loop by a way of its own."""
    listed = {int(hit.groups["rank"]) for hit in case.hits("torchrun-rank")}
    done = set(case.summary.ranks) - listed
    lost = case.hits("gloo-closed")
    complete = listed | done == set(range(case.world))
    raised = {item.hit.rank for item in case.summary.tracebacks}  # perhaps of a node whose table is not in the log
    if done and len(done) < len(listed) and complete and lost and not (case.exceptions.ordinary or done & raised):
        who = f"rank{'s' * (len(done) > 1)} {few(sorted(done))}"
        title = f"{who} had ended without an error while the others still communicated"
        last = [said for rank in done if (said := case.summary.last_of_rank.get(rank))]
        strengths = {"app.uneven-inputs": 0.46, "app.collective-mismatch": 0.43}
        yield from rivals(strengths, title, [*last, *lost[:2], *case.hits("torchrun-rank")[:2]], done)


@diagnosis
def gloo_interface_syntax(case: Case) -> Iterable[Candidate]:
    """GLOO_SOCKET_IFNAME carries NCCL's syntax (``^``, ``=``) or a blank: Gloo takes it as a name."""
    for hit in case.hits("gloo-no-interface"):
        name = hit.groups.get("interface", "")
        if name[:1] in "^=" or "*" in name or " " in name.strip():
            title = f"GLOO_SOCKET_IFNAME has NCCL's syntax: Gloo looks for an interface named {name!r}"
            yield Candidate("env.bad-nccl-var", 0.97, title, [hit], final=True)
            return
