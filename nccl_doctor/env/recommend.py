"""The smallest set of variables these hosts need, each line with the fact that calls for it, and what was left alone.

Pure: :class:`HostNeeds` in, :class:`Advice` out. NCCL's defaults are right on most clusters, so on most clusters the
answer is "none".
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from nccl_doctor.env import gid, knowledge, lint, nccl_conf, versions
from nccl_doctor.env import hosts as fleet
from nccl_doctor.env.assignments import Assignment
from nccl_doctor.env.gid import GidEntry
from nccl_doctor.env.interface_advice import IFNAME, Attempt, Recommendation, Station, decide, half_reached
from nccl_doctor.env.lint_names import TIMEOUT_CODE
from nccl_doctor.env.nccl_conf import Setting
from nccl_doctor.env.socket_interface import Choice, gloo_interfaces, needs_resolver
from nccl_doctor.env.versions import Version, at_least
from nccl_doctor.facts.fold import few
from nccl_doctor.facts.interfaces import Interfaces
from nccl_doctor.findings.model import EnvAdvice, Severity
from nccl_doctor.findings.playbooks import EnvEntry

# A smaller /dev/shm is what Docker gives by default (64 MiB); NCCL and data loaders fill it.
SMALL_SHM_BYTES = 1 << 30

# libfabric, aws-ofi-nccl: the name its network gives itself.
AWS_PLUGIN = "aws-ofi-nccl"


class Purpose(enum.Enum):
    """What the set is for: an ordinary run, or finding out why a job hangs."""

    RUN = "run"
    HANG = "hang"


class FabricPort(msgspec.Struct, frozen=True):
    """One RDMA port. ``rail``: it belongs to the training network, not to the front end. ``gbps`` None: unknown."""

    device: str
    port: int
    active: bool
    ethernet: bool
    rail: bool
    gbps: float | None = None
    efa: bool = False
    default_route: bool = False
    gids: tuple[GidEntry, ...] = ()

    @property
    def label(self) -> str:
        """How it is quoted: ``mlx5_0:1 (InfiniBand, 400 Gb/s)``."""
        kind = "EFA" if self.efa else "RoCE" if self.ethernet else "InfiniBand"
        rate = f", {self.gbps:g} Gb/s" if self.gbps else ""
        return f"{self.device}:{self.port} ({kind}{rate})"


class HostNeeds(msgspec.Struct, frozen=True):
    """What is known of one host, as far as it bears on variables. None and empty: not known."""

    host: str
    interfaces: Interfaces | None = None
    own_addresses: tuple[str, ...] | None = None  # what its own name resolves to
    ports: tuple[FabricPort, ...] | None = None
    nccl_version: str = ""
    torch_version: str = ""
    net_plugins: tuple[str, ...] = ()
    container: bool = False
    shm_bytes: int | None = None
    memlock_bytes: int | None = None  # -1: unlimited
    environment: Mapping[str, str] = {}
    job_environment: Mapping[str, str] = {}  # what the job will be started with: it wins
    rdma: bool = False  # it has an RDMA device
    devices: lint.Devices = lint.Devices()

    @property
    def version(self) -> Version:
        """The NCCL release to judge by; the newest whose rules are known if none was found."""
        return knowledge.nccl_release(self.nccl_version)

    @property
    def layers(self) -> list[tuple[str, tuple[Assignment, ...]]]:
        """What a job there sees set, by source, the one that wins first."""
        return fleet.layers_of("", self.environment, self.interfaces, self.nccl_version, self.job_environment)

    @property
    def station(self) -> Station | None:
        """The host as far as its interface choice goes; None where that is not known."""
        if self.interfaces is None:
            return None
        files = self.interfaces.conf_files
        settings = nccl_conf.effective(self.environment, files, self.version, self.job_environment)
        comm_id = settings.get("NCCL_COMM_ID")
        if comm_id is not None and needs_resolver(comm_id.value):
            return None
        return Station(self.interfaces, self.version, settings, self.rdma)


class Line(msgspec.Struct, frozen=True):
    """One variable to set or to remove. ``fact`` is the quoted fact that calls for it."""

    advice: EnvAdvice
    confidence: float
    fact: str


class Left(msgspec.Struct, frozen=True):
    """A variable that people set and that is deliberately left alone here, with the reason."""

    name: str
    why: str


class Note(msgspec.Struct, frozen=True):
    """What is needed and is no variable: a mount option, a limit, a line of code. ``command`` can be pasted."""

    text: str
    command: str = ""


class Advice(msgspec.Struct, frozen=True):
    """The recommendation for a set of hosts. ``unknown``: facts that were missing, so that nothing was decided."""

    hosts: tuple[str, ...]
    purpose: Purpose
    lines: tuple[Line, ...]
    left: tuple[Left, ...]
    notes: tuple[Note, ...]
    unknown: tuple[str, ...]
    judged_for: str


class _Draft:
    """Lines collected by the parts below."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.left: list[Left] = []
        self.notes: list[Note] = []
        self.unknown: list[str] = []

    def add(
        self,
        name: str,
        value: str,
        reason: str,
        fact: str,
        *,
        confidence: float,
        releases: str = "any",
        risky: bool = False,
        only: Iterable[str] = (),
    ) -> None:
        advice = EnvAdvice(name, value, reason, versions=releases, risky=risky, hosts=tuple(only))
        self.lines.append(Line(advice, confidence, fact))

    def leave(self, name: str, why: str) -> None:
        self.left.append(Left(name, why))

    def note(self, text: str, command: str = "") -> None:
        self.notes.append(Note(text, command))


def recommend(hosts: Sequence[HostNeeds], attempts: Sequence[Attempt] = (), purpose: Purpose = Purpose.RUN) -> Advice:
    """The smallest set for these hosts. ``attempts``: the connections that were tried between them."""
    draft = _Draft()
    taken = _interface(hosts, attempts, draft)
    _gloo(hosts, taken, draft)
    _adapters(hosts, draft)
    _gids(hosts, draft)
    _plugins(hosts, draft)
    _containers(hosts, draft)
    _removals(hosts, draft)
    if purpose is Purpose.HANG:
        _hang(hosts, draft)
    _always_left(draft)
    releases = ", ".join(sorted({host.nccl_version for host in hosts} - {""}))
    releases = releases or f"{knowledge.NEWEST_NCCL} (none found: the newest known)"
    torch = ", ".join(sorted({host.torch_version for host in hosts} - {""})) or "none found"
    return Advice(
        tuple(sorted(host.host for host in hosts)),
        purpose,
        tuple(draft.lines),
        tuple(draft.left),
        tuple(draft.notes),
        tuple(draft.unknown),
        f"NCCL {releases}; PyTorch {torch}",
    )


# ------------------------------------------------------------------------------------------------------ interfaces


def _interface(hosts: Sequence[HostNeeds], attempts: Sequence[Attempt], draft: _Draft) -> dict[str, str]:
    """NCCL_SOCKET_IFNAME only where NCCL's own choice does not reach every peer; NCCL_SOCKET_FAMILY where mixed.

    Gives the interface that each host ends up with, as far as that is decided.
    """
    stations = {host.host: station for host in hosts if (station := host.station) is not None}
    missing = [host.host for host in hosts if host.host not in stations]
    if missing:
        draft.unknown.append(f"{IFNAME}: what NCCL would choose on {_some(missing)} is not known")
    if len(stations) < 2:
        if not missing:
            draft.leave(IFNAME, "one host: nothing leaves it")
        return {}
    found = decide(stations, attempts)
    unproved = [host for host in half_reached(attempts) if host in stations]
    if unproved:
        draft.unknown.append(
            f"{IFNAME}: at no address do all peers reach {_some(unproved)}; {'its' if len(unproved) == 1 else 'their'} "
            "interfaces are judged by their networks alone"
        )
    if not found.works:
        draft.unknown.append(f"{IFNAME}: {found.reason}")
        return {}
    choices = found.bare
    if found.harmful:
        _wrongly_set(stations, found, draft)
    elif found.advice is not None:
        taken = {f"{choice.address.name} on {host}" for host, choice in choices.items() if choice.address is not None}
        fact = f"without it NCCL takes {_some(sorted(taken)) or 'nothing'}; {found.reason}"
        draft.lines.append(Line(found.advice, 0.95 if attempts and not unproved else 0.6, fact))
        value = Setting(IFNAME, found.advice.value, "recommended")
        choices = {
            host: msgspec.structs.replace(station, settings={**station.settings, IFNAME: value}).handed_out()
            for host, station in stations.items()
        }
    elif found.set_on:
        for place, names in _places(stations, found.set_on):
            draft.note(f"{place} on {_some(names)} is not needed: NCCL chooses right by itself")
    if found.harmful or found.advice is None:
        draft.leave(IFNAME, found.reason)
        _family(choices, {host: station.facts for host, station in stations.items()}, draft)
    return {host: choice.address.name for host, choice in choices.items() if choice.address is not None}


def _places(stations: Mapping[str, Station], hosts: Iterable[str]) -> list[tuple[str, list[str]]]:
    """(``place: NCCL_SOCKET_IFNAME=value``, the hosts where it stands so)."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        setting = stations[host].settings[IFNAME]
        found.setdefault(f"{setting.place}: {setting.quote}", []).append(host)
    return sorted(found.items())


def _wrongly_set(stations: Mapping[str, Station], found: Recommendation, draft: _Draft) -> None:
    """A setting that keeps NCCL from working, where without it NCCL would."""
    broken = [host for host in found.set_on if not stations[host].handed_out().addresses]
    why = f"it matches no interface on {_some(broken)}: NCCL cannot start" if broken else "peers do not reach it"
    said = "; ".join(f"{place} on {_some(hosts)}" for place, hosts in _places(stations, found.set_on))
    if found.advice is not None:
        advice = msgspec.structs.replace(found.advice, reason=f"{why}; without it NCCL chooses right")
        draft.lines.append(Line(advice, 0.95, said))
    for place, hosts in _places(stations, [host for host in found.set_on if stations[host].settings[IFNAME].line]):
        draft.note(f"remove {place} on {_some(hosts)}: {why}")


def _family(choices: Mapping[str, Choice], known: Mapping[str, Interfaces], draft: _Draft) -> None:
    """All hosts must hand out addresses of one family, and one that every host has."""
    families = Counter(choice.address.family for choice in choices.values() if choice.address is not None)
    if set(families) == {"inet6"}:
        why = "the hosts have only IPv6 addresses there: NCCL takes them by itself"
        draft.leave("NCCL_SOCKET_FAMILY", why)
    if len(families) < 2:
        return
    rare = families.most_common()[-1][0]
    said = {"inet": "IPv4", "inet6": "IPv6"}
    fact = f"{families[rare]} of {sum(families.values())} hosts would hand out an {said[rare]} address, the others not"
    for family, value in (("inet", "AF_INET"), ("inet6", "AF_INET6")):
        if all(
            any(item.family == family and not item.loopback and not item.link_local for item in facts.addresses)
            for facts in known.values()
        ):
            reason = "hosts would hand out addresses of different families"
            draft.add("NCCL_SOCKET_FAMILY", value, reason, fact, confidence=0.7)
            return
    draft.unknown.append(f"NCCL_SOCKET_FAMILY: {fact}, and no family is there on every host")


def _gloo(hosts: Sequence[HostNeeds], taken: Mapping[str, str], draft: _Draft) -> None:
    """GLOO_SOCKET_IFNAME where the host's own name resolves to loopback; /etc/hosts is the better place to mend it."""
    name = "GLOO_SOCKET_IFNAME"
    if len(hosts) < 2:
        return
    bad: list[str] = []
    for host in hosts:
        if host.interfaces is None or host.own_addresses is None:
            draft.unknown.append(f"{name}: what {host.host}'s own name resolves to is not known")
            return
        choice = gloo_interfaces(host.interfaces.addresses, None, host.own_addresses)
        if choice is not None and choice.address is not None and choice.address.loopback:
            bad.append(host.host)
    if not bad:
        draft.leave(name, "every host's own name resolves to an address its peers know")
        return
    interfaces = {taken.get(host, "") for host in bad}
    if len(interfaces) == 1 and "" not in interfaces:
        draft.add(
            name,
            interfaces.pop(),
            "else Gloo hands loopback addresses to its peers",
            f"the own name of {_some(bad)} resolves to loopback",
            confidence=0.85,
            only=bad if len(bad) < len(hosts) else (),
        )
    draft.note(
        f"better than {name}: mend the host's own name on {_some(bad)}, so that no job needs it",
        "sudo sed -i 's/^127\\.0\\.1\\.1/#&/' /etc/hosts; getent ahosts $(hostname)",
    )


# ----------------------------------------------------------------------------------------------- what is set and harms


def _taken_away(
    items: Sequence[Assignment], nccl_version: str, torch_version: str, devices: lint.Devices | None = None
) -> Iterator[tuple[Assignment, str]]:
    """(what lint would take away, why): debugging settings left over, pins, dead names, lists that match nothing."""
    known = {"": devices} if devices else None
    for made in lint.remarks(items, nccl_version, torch_version, known):
        if made.edit is not None and made.edit.removes and made.finding.severity is not Severity.INFO:
            yield made.assignment, made.finding.env[0].reason if made.finding.env else made.finding.title


def removals(
    items: Sequence[Assignment], nccl_version: str = "", torch_version: str = "", failed: Collection[str] = ()
) -> tuple[EnvAdvice, ...]:
    """The variables to take away of those that are set, each once. ``failed``: lists of interfaces seen to be wrong."""
    why: dict[str, str] = {}
    for item, reason in _taken_away(items, nccl_version, torch_version):
        why.setdefault(item.name, reason)
    for name in failed:
        why.setdefault(name, "it leads to the wrong interface; `env recommend` says what the hosts need")
    return tuple(EnvAdvice(name, "", reason, unset=True) for name, reason in why.items())


def workarounds(
    entries: Iterable[EnvEntry], nccl_version: str, set_here: Mapping[str, str] | None = None
) -> tuple[EnvAdvice, ...]:
    """Of the variables a playbook names, those that would change something: read and not the default at this release,
    not set already, and with a value (IFACE stands for a name that only the hosts can tell: :func:`recommend`).
    """
    version = versions.parse(nccl_version) if nccl_version else None
    kept = []
    for entry in entries:
        answer = knowledge.lookup(entry.name, nccl_version)
        if (
            "IFACE" not in entry.value
            and versions.in_range(entry.versions, version)
            and (set_here or {}).get(entry.name) != entry.value
            and answer.status is knowledge.Status.CURRENT
            and (not nccl_version or answer.default != entry.value)
        ):
            kept.append(EnvAdvice(entry.name, entry.value, entry.when, entry.versions))
    return tuple(kept)


def _removals(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
    """What is set on the hosts and better were not."""
    decided = {line.advice.name for line in draft.lines} | {IFNAME}
    judged: dict[object, list[tuple[Assignment, str]]] = {}
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for host in hosts:
        items = tuple(item for _, layer in host.layers for item in layer)
        if not items:
            continue
        key = items, host.devices, host.nccl_version, host.torch_version
        if key not in judged:  # on most clusters all hosts are set alike
            judged[key] = list(_taken_away(items, host.nccl_version, host.torch_version, host.devices))
        for wrong, reason in judged[key]:
            if wrong.name not in decided:
                where = f"{wrong.file}:{wrong.line}" if wrong.line else ""
                found.setdefault((wrong.name, wrong.value or "", where, reason), []).append(host.host)
    lines: dict[str, Line] = {}
    for (name, value, where, reason), names in sorted(found.items()):
        if where:
            draft.note(f"remove {where}: {name}={value} on {_some(names)}: {reason}")
        elif name not in lines:
            own = tuple(names) if len(names) < len(hosts) else ()
            advice = EnvAdvice(name, "", reason, unset=True, hosts=own)
            lines[name] = Line(advice, 0.9, f"{name}={value} is set on {_some(names)}")
        else:
            before = lines[name].advice
            own = tuple(sorted({*before.hosts, *names})) if before.hosts else ()
            lines[name] = msgspec.structs.replace(lines[name], advice=msgspec.structs.replace(before, hosts=own))
    draft.lines += lines.values()


# ---------------------------------------------------------------------------------------------------------- fabric


def _adapters(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
    """NCCL_IB_HCA only where an active port is not of the training network: NCCL would use it as well."""
    name = "NCCL_IB_HCA"
    known = [(host, host.ports) for host in hosts if host.ports is not None]
    if len(known) < len(hosts):
        lacking = _some(host.host for host in hosts if host.ports is None)
        draft.unknown.append(f"{name}: the RDMA devices of {lacking} are not known")
    with_ports = [(host, [port for port in ports if port.active]) for host, ports in known]
    if not any(ports for _, ports in with_ports):
        if known:
            draft.leave(name, "no host has an active RDMA port")
        return
    without = [host.host for host, ports in with_ports if not any(port.rail for port in ports)]
    if without:
        draft.note(f"{_some(without)} have no active rail, others do: the whole job would run over TCP")
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
        draft.add(
            name,
            value,
            "keep NCCL off ports that are not of the training network",
            f"{host.host}: {port.label} is active and no rail: {why}",
            confidence=0.85,
            releases=">=2.5.6",
        )
    else:
        both = f"{', '.join(odd)} is a rail on some hosts and none on others"
        draft.unknown.append(f"{name}: {both}; name the HCAs alike first")


def _gids(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
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
    if index is not None:
        draft.add(
            name,
            str(index),
            "the RoCE v2 IPv4 entry on every rail",
            fact,
            confidence=0.9,
            releases="any" if at_least(host.version, gid.AUTOMATIC_SINCE) else f"<{gid.AUTOMATIC_SINCE}",
            risky=True,
        )
        if not at_least(host.version, gid.AUTOMATIC_SINCE):
            draft.note(f"NCCL {gid.AUTOMATIC_SINCE} and later finds this GID by itself: upgrade, drop {name}")
    elif all(at_least(host.version, gid.AUTOMATIC_SINCE) and _ipv6_works(host, port) for host, port in wrong):
        draft.add(
            "NCCL_IB_ADDR_FAMILY",
            "AF_INET6",
            "the rails have RoCE v2 GIDs for IPv6 only",
            fact,
            confidence=0.8,
            releases=">=2.21.5",
        )
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


def _plugins(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
    """EFA and Google's TCPX need a network plugin; the plugin then sets what it needs itself."""
    efa = [host for host in hosts if any(port.efa for port in host.ports or ())]
    bare = [host.host for host in efa if not host.net_plugins]
    if bare:
        draft.note(
            f"{_some(bare)} have EFA devices and no network plugin is found: NCCL would run over TCP. Install "
            f"{AWS_PLUGIN} (part of the EFA installer and of the AWS deep-learning images); no variable replaces it"
        )
    elif efa:
        draft.leave(
            "FI_PROVIDER, FI_EFA_*, NCCL_PROTO, NCCL_BUFFSIZE", f"{AWS_PLUGIN} sets what its instance type needs"
        )
    gve = [host for host in hosts if host.interfaces and sum(d.driver == "gve" for d in host.interfaces.devices) >= 4]
    if gve and not any(host.net_plugins for host in gve):
        draft.note(
            f"{_some(h.host for h in gve)} have four or more Google gVNIC interfaces and no network plugin: on A3 "
            "machines install GPUDirect-TCPX(O) and source its nccl-env-profile.sh; its variables are a contract"
        )
    if any("sharp" in plugin for host in hosts for plugin in host.net_plugins):
        why = "a SHARP plugin is there; that the switches offer SHARP is not known from the hosts"
        draft.leave("NCCL_COLLNET_ENABLE", why)


def _containers(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
    """Shared memory and locked memory are no variables: say what to do instead."""
    small = [host for host in hosts if host.shm_bytes is not None and 0 < host.shm_bytes < SMALL_SHM_BYTES]
    if small:
        draft.note(
            f"/dev/shm is only {(small[0].shm_bytes or 0) / 2**20:.0f} MiB on {_some(h.host for h in small)}; "
            "NCCL_SHM_DISABLE=1 would hide that and cost bandwidth. Enlarge it",
            "docker run --shm-size=16g ...   # Kubernetes: an emptyDir of medium Memory mounted at /dev/shm"
            if any(host.container for host in small)
            else "sudo mount -o remount,size=16G /dev/shm",
        )
    locked = [
        host
        for host in hosts
        if host.memlock_bytes is not None and host.memlock_bytes >= 0 and any(port.active for port in host.ports or ())
    ]
    if locked:
        draft.note(
            f"locked memory is limited to {(locked[0].memlock_bytes or 0) / 1024:.0f} KiB on "
            f"{_some(h.host for h in locked)}: registering buffers with the HCA fails; no variable helps",
            "docker run --ulimit memlock=-1 ...   # host: memlock unlimited in limits.conf; LimitMEMLOCK=infinity",
        )


# ------------------------------------------------------------------------------------------------------------ hang


def _hang(hosts: Sequence[HostNeeds], draft: _Draft) -> None:
    """What leaves evidence behind when a job hangs, by PyTorch release."""
    for name, value, reason, confidence in (
        ("NCCL_DEBUG", "INFO", "interfaces, HCAs, paths and errors in each rank's log", 1.0),
        ("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET,GRAPH", "what INFO tells, without a line per call", 1.0),
        ("NCCL_DEBUG_FILE", "/tmp/nccl-%h-%p.log", "one file per rank, so that lines do not mix", 0.9),
    ):
        draft.add(name, value, reason, "asked for: a hung job", confidence=confidence)
    found = sorted({host.torch_version for host in hosts if host.torch_version}, key=versions.parse)
    if not found:
        draft.unknown.append("flight recorder: no PyTorch was found, its variables depend on the release")
    else:
        _recorder(versions.parse(found[0]), found[0], draft)
    draft.note(
        "the time-out is code; a longer one cures stragglers only, and a shorter one makes a hang show sooner",
        TIMEOUT_CODE,
    )


def recorder(torch_version: str) -> tuple[EnvAdvice, ...]:
    """What to set so that this PyTorch leaves evidence of a hang behind; nothing where it cannot."""
    draft = _Draft()
    _recorder(versions.parse(torch_version), torch_version, draft)
    return tuple(line.advice for line in draft.lines)


def _recorder(release: tuple[int, ...], said: str, draft: _Draft) -> None:
    fact = f"PyTorch {said}"
    if not at_least(release, "2.2"):
        draft.leave("TORCH_NCCL_TRACE_BUFFER_SIZE", f"{fact} has no flight recorder (2.2 and later)")
        return
    new = at_least(release, "2.8")
    size = "TORCH_FR_BUFFER_SIZE" if new else "TORCH_NCCL_TRACE_BUFFER_SIZE"
    if at_least(release, "2.11"):
        draft.leave(size, f"{fact}: the flight recorder is on by default (2000 entries)")
    else:
        why = "the flight recorder is off by default before 2.11"
        draft.add(size, "2000", why, fact, confidence=0.95, releases="torch 2.2-2.10")
    dump = "TORCH_NCCL_DUMP_ON_TIMEOUT"
    if at_least(release, "2.7"):
        draft.leave(dump, f"{fact}: on by default")
    else:
        draft.add(dump, "1", "off by default before 2.7", fact, confidence=0.95, releases="torch 2.2-2.6")
    draft.add(
        "TORCH_FR_DUMP_TEMP_FILE" if new else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "/tmp/nccl_trace_rank_",
        "a known place for the dumps (the rank is appended); better on a shared file system",
        fact,
        confidence=0.9,
        releases="torch >=2.8" if new else "torch 2.2-2.7",
    )
    if at_least(release, "2.15"):
        why = f"{fact}: the default backend nccl2 does not read it (TORCH_DIST_USE_NCCL2=0 brings the old one back)"
        draft.leave("TORCH_NCCL_DESYNC_DEBUG", why)
        return
    draft.add(
        "TORCH_NCCL_DESYNC_DEBUG",
        "1",
        "the watchdog says which ranks diverged; every collective writes to the store, so only while hunting",
        fact,
        confidence=0.8,
        releases="torch >=2.2",
        risky=True,
    )


def _always_left(draft: _Draft) -> None:
    """What cheat sheets set and this tool does not, unless a fact called for it above."""
    said = {line.advice.name for line in draft.lines} | {left.name for left in draft.left}
    for names, why in (
        (
            "NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE, NCCL_*_NCHANNELS",
            "NCCL tunes these itself; no fact speaks against it",
        ),
        ("NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL", "NCCL knows the distances; no fact speaks against its limits"),
        (
            "NCCL_TIMEOUT, TORCH_DISTRIBUTED_TIMEOUT",
            "nobody reads them; the time-out is an argument of init_process_group",
        ),
        ("NCCL_ASYNC_ERROR_HANDLING", "on by default, and torchrun sets the new name"),
    ):
        if not any(name in said for name in names.split(", ")):
            draft.leave(names, why)


def _some(names: Iterable[str]) -> str:
    return few(list(dict.fromkeys(names)))
