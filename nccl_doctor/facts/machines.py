"""Names of a host list that lead to one machine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Reached(msgspec.Struct, frozen=True):
    """Where ssh reached a host, what it calls itself, and the addresses that its interfaces carry.

    ``address`` is empty where no address leads there: a transport's command.
    """

    calls_itself: str
    address: str
    port: int
    addresses: frozenset[str] = frozenset()


def one_machine(hosts: Mapping[str, Reached]) -> list[tuple[str, ...]]:
    """The hosts that are one machine under several names, each group once.

    They call themselves alike, and were reached at one port: of one address, or of addresses that each of them has. Containers
    behind one address have ports of their own; those behind the same private address on several machines are reached elsewhere.
    """
    at: dict[tuple[str, str, int], Reached] = {}
    for host in hosts.values():
        at.setdefault((host.address, host.calls_itself, host.port), host)
    machines: dict[tuple[str, str, int], list[str]] = {}
    for name, host in hosts.items():
        if not host.address:
            continue
        places = {(address, host.calls_itself, host.port) for address in host.addresses}
        others = {place for place in places & at.keys() if host.address in at[place].addresses}
        machines.setdefault(min({(host.address, host.calls_itself, host.port), *others}), []).append(name)
    return [tuple(names) for names in machines.values() if len(names) > 1]
