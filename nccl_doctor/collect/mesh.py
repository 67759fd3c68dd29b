"""What the hosts measure of each other: names, ports, paths, throughput; each in its stage, by the plan of ``mesh_plan``."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nccl_doctor.agent.probes.mesh import AT_ONCE, RETRY_S
from nccl_doctor.collect import mesh_plan
from nccl_doctor.collect.mesh_plan import Listeners
from nccl_doctor.collect.run import DEADLINE_PASSED, Run
from nccl_doctor.facts.mesh import Links, Listening, Names, Resolver, Throughput
from nccl_doctor.facts.model import HostFacts, Outcome, ProbeResult
from nccl_doctor.rules.engine import Host, MissingFact
from nccl_doctor.rules.interface_view import view
from nccl_doctor.rules.localise import Pair
from nccl_doctor.rules.mesh_pairs import late_hosts, pairs, perhaps_limited, shifts
from nccl_doctor.transport.session import Session

# Asked of a host for the sake of the mesh alone, never by themselves.
PROBES = ("names", "time", "listening", "links", "path-mtu", "throughput")
CONNECT_TIMEOUT_S = 3.0  # the agent connects anew each half second: six chances and more within it
CONNECTS = int(CONNECT_TIMEOUT_S / RETRY_S)  # of a target that never answers
AGAIN_S = 12.0  # for each host whose unanswered connects are tried again, one at a time


class Mesh:
    """One run's measurements between hosts. ``first``: the probes of each host itself that they need, with their limits."""

    def __init__(self, run: Run, first: Mapping[str, float]) -> None:
        self.run, self.plan, self.first = run, run.options.plan, first
        self.token = secrets.token_hex(16)
        self.names = sorted(run.sessions)
        self.master = self.plan.master if self.plan.master in run.sessions else ""
        self.listeners = Listeners({}, {})

    def measure(self) -> None:
        """All of it, as far as the plan's stages ask for it."""
        self._prepare()
        if len(self.names) > 1 and {"connectivity", "ports", "interfaces"} & set(self.plan.stages):
            self._measure_each_other()
        else:
            self._release_master_port()

    def _prepare(self) -> None:
        """What each host tells of itself: its clock, the names it resolves, the ports it listens on."""
        run = self.run
        run.progress.begin("host facts", len(self.names))
        reference = self.master or self.names[0]
        run.ask(reference, run.sessions[reference], "names", {"names": self.names}, 20.0)
        told = run.facts(Names).get(reference)
        same_as = {name: answer.addresses for name, answer in told.resolved.items()} if told else {}

        def prepare(host: str, session: Session) -> None:
            self._measure_clock(host, session)
            trouble = run.ask_all(host, session, self.first)
            if host != reference:
                asked = {"names": self.names, "same_as": same_as, "reference": reference}
                run.ask(host, session, "names", asked, 20.0)
            arguments = {
                "token": self.token,
                "name": host,
                "master_port": self.plan.master_port if host == self.master else None,
                "ephemeral": mesh_plan.port_count(len(self.names)),
                "share": self.names.index(host) / len(self.names),
            }
            run.ask(host, session, "listening", arguments, 10.0)
            run.progress.advance("host facts", host, trouble)

        run.each(prepare, run.sessions)
        run.progress.end("host facts")

    def _release_master_port(self) -> None:
        """Stop listening on the master port: nobody connects to it any more, and another run may wait for it."""
        if self.master:
            session = self.run.sessions[self.master]
            session.probe("release", {"port": self.plan.master_port}, self.run.left(5.0))

    def _measure_clock(self, host: str, session: Session) -> None:
        """Offset against this machine's clock, by the exchange with the shortest round trip of three."""
        best: tuple[float, float] | None = None
        for _ in range(3):
            before = time.time()
            result = session.probe("time", {}, self.run.left(5.0))
            after = time.time()
            if result.outcome is not Outcome.OK:
                self.run.keep(host, "clock", result)
                return
            trip = after - before
            if best is None or trip / 2 < best[1]:
                best = (float(result.data["time"]) - (before + after) / 2, trip / 2)
        assert best is not None
        data = {"offset": round(best[0], 6), "uncertainty": round(best[1], 6)}
        self.run.keep(host, "clock", ProbeResult(Outcome.OK, data))

    def _measure_each_other(self) -> None:
        run = self.run
        names, listening = run.facts(Names), run.facts(Listening)
        resolver = Resolver(names)
        reached_at = {host: session.reach.address for host, session in run.sessions.items()}
        self.listeners = Listeners(
            listening,
            {host: mesh_plan.data_address(host, names.get(host), resolver, reached_at) for host in self.names},
        )
        peers = mesh_plan.by_source(pairs(self.names, self.plan.mesh))
        chosen = self._nccl_addresses()

        def connect(host: str, session: Session) -> None:
            targets = mesh_plan.link_targets(host, peers[host], resolver, self.listeners, chosen, self.master)
            run.keep(host, Links.PROBE, self._connect(session, targets))

        def connect_more() -> None:
            self._sweep()
            self.connect_again()
            self._release_master_port()

        run.stage("ports", connect, connect_more)
        if "connectivity" not in self.plan.stages:
            return
        links = run.facts(Links)

        def measure_paths(host: str, session: Session) -> None:
            answering = [peer for peer in peers[host] if peer in listening and listening[peer].udp]
            targets = [self._bulk_target(host, peer, listening[peer].udp, links) for peer in answering]
            run.ask(host, session, "path-mtu", {"token": self.token, "targets": targets}, 20.0)

        run.stage("paths", measure_paths)
        if not self.plan.quick:
            self._measure_throughput(links)

    def _bulk_target(self, host: str, peer: str, port: int, links: Mapping[str, Links]) -> dict[str, Any]:
        return {"peer": peer, "address": mesh_plan.best_address(host, peer, links, self.listeners), "port": port}

    def _connect(self, session: Session, targets: Sequence[dict[str, Any]]) -> ProbeResult:
        if self.run.over:
            return ProbeResult(Outcome.NOT_RUN, None, DEADLINE_PASSED)
        limit_s = 15.0 + CONNECT_TIMEOUT_S * (3 + len(targets) // AT_ONCE)
        arguments = {"token": self.token, "timeout_s": CONNECT_TIMEOUT_S, "targets": targets}
        return session.probe(Links.PROBE, arguments, self.run.left(limit_s))

    def _sweep(self) -> None:
        """The further ports: only now, when no host's first connects can meet these at a limit on new connections."""
        first = self.run.facts(Links)
        targets = {host: mesh_plan.sweep(host, self.listeners, first) for host in first}

        def sweep(host: str, session: Session) -> None:
            self._keep_more(host, self._connect(session, targets[host]))

        self.run.each(sweep, {host: self.run.sessions[host] for host in first if targets[host]})

    def _keep_more(self, host: str, more: ProbeResult) -> None:
        """Add to a host's links. If these could not be measured, all links of the host count as not measured."""
        if more.outcome is Outcome.OK:
            before = self.run.results[host][Links.PROBE].data
            more = msgspec.structs.replace(more, data=mesh_plan.merged(before, more.data["links"], CONNECTS))
        self.run.keep(host, Links.PROBE, more)

    def connect_again(self) -> None:
        """What was never answered by a host that answered others late is tried again, one at a time for each such host.

        A limit on new connections lets them pass then, and a closed port stays closed. Where a limit kept all from the
        further ports, one host tries these in the same way.
        """
        facts = self.run.facts(Links)
        todo: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for source, link in perhaps_limited(facts):
            todo.setdefault(link.peer, []).append((source, mesh_plan.again(link, self.listeners)))
        for host in late_hosts(facts):
            peers = sorted(source for source, fact in facts.items() if any(link.peer == host for link in fact.links))
            if not any(facts[source].swept.get(host) for source in peers):
                targets = mesh_plan.further(host, self.listeners)
                todo.setdefault(host, []).extend((peers[0], target) for target in targets)
        answers: list[tuple[str, ProbeResult]] = []

        def again(host: str, _: Session) -> None:
            until = time.monotonic() + AGAIN_S
            for source, target in todo[host]:
                if time.monotonic() < until:
                    answers.append((source, self._connect(self.run.sessions[source], [target])))

        self.run.each(again, {host: self.run.sessions[host] for host in todo})
        for source, answer in answers:
            if answer.outcome is Outcome.OK:
                answer.data["links"][0].setdefault("attempts", CONNECTS)  # where it failed, it did so alone
                self._keep_more(source, answer)

    def _nccl_addresses(self) -> dict[str, tuple[str, ...]]:
        """The addresses that NCCL on each host would hand to its peers; hosts where that cannot be told are left out."""
        found: dict[str, tuple[str, ...]] = {}
        for name, session in self.run.sessions.items():
            host = Host(HostFacts(name, session.reach, dict(self.run.results[name])))
            try:
                used = view(host, self.plan).used
            except MissingFact:
                continue  # the interface rules will say so
            found[name] = tuple(address.address for address in used if not address.link_local)
        return found

    def _measure_throughput(self, links: Mapping[str, Links]) -> None:
        open_pairs = {(host, link.peer) for host, fact in links.items() for link in fact.links if link.outcome == "ok"}
        flows = mesh_plan.by_source(pair for pair in shifts(self.names) if pair in open_pairs)

        def transfer(host: str, session: Session) -> None:
            if not self._transfer(host, flows.get(host, ()), links):
                why = "no peer could be connected to" if host in links else "its connects were not measured"
                self.run.keep(host, Throughput.PROBE, ProbeResult(Outcome.NOT_RUN, None, why))

        self.run.stage("throughput", transfer, lambda: self._time_again(links))

    def _transfer(self, host: str, peers: Sequence[str], links: Mapping[str, Links]) -> bool:
        """Time the transfers of a host to these peers; whether any of them could be asked for."""
        ports = self.listeners.ports
        targets = [self._bulk_target(host, peer, ports[peer].ephemeral[0], links) for peer in peers if peer in ports]
        if targets:
            arguments = {"token": self.token, "targets": targets, "seconds": 0.3, "limit_bytes": 64 << 20}
            limit_s = 10.0 * (1 + len(targets))
            self.run.ask(host, self.run.sessions[host], Throughput.PROBE, arguments, limit_s)
        return bool(targets)

    def _time_again(self, links: Mapping[str, Links]) -> None:
        """Measure the transfers that look slow a second and a third time (see :data:`mesh_plan.DOUBT_SHARES`)."""
        for share, alone in mesh_plan.DOUBT_SHARES:
            tried: Counter[Pair] = Counter()
            # Asked anew each time: where one comes out faster, others look slow beside it.
            while slow := [
                pair
                for pair in mesh_plan.doubtful(self.run.facts(Throughput), share)
                if tried[pair] < mesh_plan.TIMES_AGAIN
            ]:
                tried.update(slow)
                for batch in [[pair] for pair in slow] if alone and len(slow) <= mesh_plan.FEW else [slow]:
                    self._transfer_again(mesh_plan.by_source(batch), links)

    def _transfer_again(self, slow: Mapping[str, Sequence[str]], links: Mapping[str, Links]) -> None:
        """Time these transfers again and keep the faster ones; a host that is silent now is not measured."""

        def again(host: str, _: Session) -> None:
            before = self.run.results[host][Throughput.PROBE]
            if before.outcome is not Outcome.OK or not self._transfer(host, slow[host], links):
                return
            after = self.run.results[host][Throughput.PROBE]
            if after.outcome in (Outcome.OK, Outcome.NOT_RUN):
                flows = mesh_plan.faster(before.data["flows"], after.data["flows"] if after.data else ())
                kept = msgspec.structs.replace(before, data={**before.data, "flows": flows})
                self.run.keep(host, Throughput.PROBE, kept)

        self.run.each(again, {host: self.run.sessions[host] for host in slow})
