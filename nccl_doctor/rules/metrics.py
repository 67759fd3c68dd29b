"""The few numbers of a host that are worth following over runs; most are noisy, none is a verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec

from nccl_doctor.facts.collectives import Collectives
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.facts.mesh import Links, Throughput
from nccl_doctor.rules.collective_rates import bus_bandwidths
from nccl_doctor.rules.engine import Host, facts_of


class Metric(msgspec.Struct, frozen=True):
    """One number with its unit. ``name``: ``round-trip``, ``tcp``, ``link-losses <interface>`` or ``busbw <collective>``."""

    name: str
    value: float
    unit: str
    higher_is_better: bool
    exact: bool = False  # a count: any change is one


def of_host(host: Host) -> Iterator[Metric]:
    """Round trip (ms) and TCP rate (GB/s) to its peers, each the median of them, and how often its links went down.

    What was not measured is not there. The fastest round trip to each peer counts: the others tell how busy the two hosts
    were.
    """
    links = host.want(Links)
    times = [link.rtt_min_ms for link in links.links if link.rtt_min_ms] if links else []
    if times:
        yield Metric("round-trip", statistics.median(times), "ms", False)
    flows = host.want(Throughput)
    rates = [flow.rate / 1e9 for flow in flows.flows if flow.outcome == "ok" and flow.rate > 0] if flows else []
    if rates:
        yield Metric("tcp", statistics.median(rates), "GB/s", True)
    interfaces = host.want(Interfaces)
    if interfaces is not None:
        named = {address.name for address in interfaces.addresses}
        for device in interfaces.devices:
            if (
                device.losses is not None
                and device.kind in ("physical", "bond")
                and {device.name, device.master} & named
            ):
                yield Metric(f"link-losses {device.name}", device.losses, "losses", False, exact=True)


def of_run(hosts: tuple[Host, ...]) -> Iterator[Metric]:
    """Bus bandwidth (GB/s) of each collective at its largest size, over all hosts of the run together."""
    best: dict[str, tuple[int, float]] = {}
    for item in bus_bandwidths(facts_of(hosts, Collectives)):
        best[item.collective] = max(best.get(item.collective, (0, 0.0)), (item.size, item.gbs))
    for collective, (_, busbw) in sorted(best.items()):
        if busbw > 0:
            yield Metric(f"busbw {collective}", busbw, "GB/s", True)
