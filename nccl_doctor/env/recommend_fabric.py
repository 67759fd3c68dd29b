"""Whether NCCL has to be told which RDMA ports and GIDs to use, and which network plugin is missing."""

from __future__ import annotations

from collections.abc import Sequence

from nccl_doctor.env import gid, versions
from nccl_doctor.env.gid import GidEntry
from nccl_doctor.env.recommend_model import Draft, FabricPort, HostNeeds, some
from nccl_doctor.env.versions import at_least
from nccl_doctor.findings.model import EnvAdvice

# libfabric, aws-ofi-nccl: the name its network gives itself.
AWS_PLUGIN = "aws-ofi-nccl"


def adapters(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """NCCL_IB_HCA only where an active port is not of the training network: NCCL would use it as well."""
    name = "NCCL_IB_HCA"
    known = [(host, host.ports) for host in hosts if host.ports is not None]
    if len(known) < len(hosts):
        lacking = some(host.host for host in hosts if host.ports is None)
        draft.unknown.append(f"{name}: the RDMA devices of {lacking} are not known")
    with_ports = [(host, [port for port in ports if port.active]) for host, ports in known]
    if not any(ports for _, ports in with_ports):
        if known:
            draft.leave(name, "no host has an active RDMA port")
        return
    without = [host.host for host, ports in with_ports if not any(port.rail for port in ports)]
    if without:
        draft.note(f"{some(without)} have no active rail, others do: the whole job would run over TCP")
    strays = [(host, port) for host, ports in with_ports for port in ports if not port.rail and not port.efa]
    if not strays:
        counts = " or ".join(map(str, sorted({sum(port.rail for port in ports) for _, ports in with_ports})))
        draft.leave(name, f"all active RDMA ports are rails ({counts} per host): NCCL uses them all")
        return
    rails = {host.host: {port.device for port in ports if port.rail} for host, ports in with_ports}
    odd = sorted({port.device for _, port in strays})
    everywhere = sorted(set().union(*rails.values()))
    if not any(device in names for device in odd for names in rails.values()):
        value = f"={','.join(everywhere)}" if len(everywhere) <= 16 else f"^={','.join(odd)}"
        host, port = strays[0]
        why = "it carries the default route" if port.default_route else "it is of another kind than the rails"
        reason = "keep NCCL off ports that are not of the training network"
        fact = f"{host.host}: {port.label} is active and no rail: {why}"
        draft.add(EnvAdvice(name, value, reason, versions=">=2.5.6"), 0.85, fact)
    else:
        both = f"{', '.join(odd)} is a rail on some hosts and none on others"
        draft.unknown.append(f"{name}: {both}; name the HCAs alike first")


def gids(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """NCCL_IB_GID_INDEX only where NCCL's own choice is wrong on a RoCE port, and one index is right on all."""
    name = "NCCL_IB_GID_INDEX"
    ports = [(host, port) for host in hosts for port in host.ports or () if port.active and port.rail and not port.efa]
    roce = [(host, port) for host, port in ports if port.ethernet]
    if ports and not roce:
        draft.leave(name, "the rails are InfiniBand: the variable is ignored there since NCCL 2.22")
        return
    if not roce:
        return
    if any(not port.gids for _, port in roce):
        draft.unknown.append(f"{name}: the GID tables of some RoCE ports are not known")
        return
    wrong = [(host, port) for host, port in roce if not _usable(_chosen(host, port))]
    if not wrong:
        draft.leave(name, "NCCL finds a RoCE v2 GID by itself on every rail; a fixed index would break first")
        return
    host, port = wrong[0]
    seen = _chosen(host, port)
    fact = f"{host.host} {port.label}: NCCL {versions.show(host.version)} would take GID {seen.index}" + (
        f" ({seen.gid}, RoCE v{seen.version})" if seen in port.gids else " (empty)"
    )
    right = {next((entry.index for entry in port.gids if _usable(entry) and entry.is_ipv4), None) for _, port in roce}
    index = right.pop() if len(right) == 1 else None
    since = gid.AUTOMATIC_SINCE
    if index is not None:
        automatic = at_least(host.version, since)
        reason, releases = "the RoCE v2 IPv4 entry on every rail", "any" if automatic else f"<{since}"
        draft.add(EnvAdvice(name, str(index), reason, releases, risky=True), 0.9, fact)
        if not automatic:
            draft.note(f"NCCL {since} and later finds this GID by itself: upgrade, drop {name}")
    elif all(at_least(host.version, since) and _ipv6_works(host, port) for host, port in wrong):
        reason = "the rails have RoCE v2 GIDs for IPv6 only"
        draft.add(EnvAdvice("NCCL_IB_ADDR_FAMILY", "AF_INET6", reason, f">={since}"), 0.8, fact)
    else:
        draft.unknown.append(
            f"{name}: {fact}, and no one index is right on every rail; give the RoCE interfaces IPv4 addresses"
        )


def _chosen(host: HostNeeds, port: FabricPort, ipv6: bool = False) -> GidEntry:
    """The GID that this host's NCCL takes on a RoCE port by itself; one that is not valid where the table has none."""
    index = gid.choose(port.gids, ethernet=True, nccl_version=host.version, ipv6=ipv6)
    return next((entry for entry in port.gids if entry.index == index), GidEntry(index, "::"))


def _usable(entry: GidEntry) -> bool:
    return entry.version == 2 and entry.is_valid


def _ipv6_works(host: HostNeeds, port: FabricPort) -> bool:
    entry = _chosen(host, port, ipv6=True)
    return _usable(entry) and not entry.is_ipv4


def plugins(hosts: Sequence[HostNeeds], draft: Draft) -> None:
    """EFA and Google's TCPX need a network plugin; the plugin then sets what it needs itself."""
    efa = [host for host in hosts if any(port.efa for port in host.ports or ())]
    bare = [host.host for host in efa if not host.net_plugins]
    if bare:
        draft.note(
            f"{some(bare)} have EFA devices and no network plugin is found: NCCL would run over TCP. Install "
            f"{AWS_PLUGIN} (part of the EFA installer and of the AWS deep-learning images); no variable replaces it"
        )
    elif efa:
        draft.leave(
            "FI_PROVIDER, FI_EFA_*, NCCL_PROTO, NCCL_BUFFSIZE", f"{AWS_PLUGIN} sets what its instance type needs"
        )
    gve = [host for host in hosts if host.interfaces and sum(d.driver == "gve" for d in host.interfaces.devices) >= 4]
    if gve and not any(host.net_plugins for host in gve):
        draft.note(
            f"{some(h.host for h in gve)} have four or more Google gVNIC interfaces and no network plugin: on A3 "
            "machines install GPUDirect-TCPX(O) and source its nccl-env-profile.sh; its variables are a contract"
        )
    if any("sharp" in plugin for host in hosts for plugin in host.net_plugins):
        why = "a SHARP plugin is there; that the switches offer SHARP is not known from the hosts"
        draft.leave("NCCL_COLLNET_ENABLE", why)
