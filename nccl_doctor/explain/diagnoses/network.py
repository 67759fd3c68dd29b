"""Interfaces, firewalls and what stands on the way: what the addresses in the lines say together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis, rivals
from nccl_doctor.explain.diagnoses.addresses import address_of, is_local_only, is_unroutable, network_of, several_hosts
from nccl_doctor.explain.lines import hosts_of, later, ranks_of, speakers
from nccl_doctor.explain.model import Hit

_VIRTUAL = re.compile(
    r"^(?:docker|virbr|br-|lxcbr|lxdbr|veth|cni|cali|flannel|tun|tap|wg|tailscale|zt|podman|kube-|vmnet|vboxnet|lo$|ppp|nerdctl|utun|cilium|weave|usb|vnic|dummy|ip6tnl|sit\d|gre\d|vxlan)"
)
_UNREACHABLE = ("connect-timeout", "connect-noroute", "connect-refused", "connect-aborted")
_UNANSWERED = re.compile("timed out|No route")  # one that is refused may only be early
_TRY = re.compile(r"retrying \((\d+)/")
_FAILING = (
    *_UNREACHABLE,
    "connect-gave-up",
    "peer-closed",
    "gloo-connect-failed",
    "gloo-closed",
    "master-timeout",
    "watchdog-timeout",
    "socket-timeout",
    "unique-id",
    "nccl-error-text",
    "heartbeat",
)


@diagnosis
def bootstrap_addresses(case: Case) -> Iterable[Candidate]:
    """Two hosts bootstrap on the same address, or on an interface that exists only inside a host.

    docker0, virbr0, bridges, tunnels and loopback have addresses that other hosts cannot reach, often the same on each.
    """
    by_host: dict[str, Hit] = {}
    for hit in case.hits("bootstrap-using"):
        by_host.setdefault(hit.host, hit)
    lost = [*case.hits(*_FAILING), *(hit for hit in case.hits("connect-retry") if _UNANSWERED.search(hit.text))][:3]
    if case.nodes < 2 or _joined(case) or not lost:
        return
    by_address: dict[str, list[Hit]] = defaultdict(list)
    for hit in by_host.values():
        by_address[hit.groups["address"]].append(hit)
    shared = next((hits for hits in by_address.values() if len(hits) > 1), [])
    inside = [
        hit for address, hits in by_address.items() for hit in hits if _inside_a_host(hit.groups["interface"], address)
    ]
    interfaces = sorted({hit.groups["interface"] for hit in by_host.values()})
    networks = {network_of(address) for address in by_address} - {None}
    if shared:
        first = shared[0].groups
        title = f"several hosts advertise the same address {first['address']} on {first['interface']}"
        hosts = {hit.host for hit in shared}
        yield Candidate("net.wrong-interface", 0.93, title, [*shared, *lost], hosts=hosts, final=True)
    elif inside:
        names = ", ".join(sorted({hit.groups["interface"] for hit in inside}))
        title = f"NCCL chose {names}, which other hosts cannot reach"
        yield Candidate("net.wrong-interface", 0.86, title, [*inside, *lost], hosts=hosts_of(inside))
    elif len(networks) > 1 and len(interfaces) > 1 and case.has(*_UNREACHABLE, "peer-closed"):
        yield Candidate(
            "net.wrong-interface",
            0.75,
            f"the hosts chose interfaces in different networks ({', '.join(interfaces)})",
            [*by_host.values(), *case.hits(*_UNREACHABLE)[:4]],
            hosts=set(by_host),
            why="Hosts that bootstrap on differently named interfaces in unrelated networks usually cannot reach each other.",
        )


def _inside_a_host(interface: str, address: str) -> bool:
    return bool(_VIRTUAL.match(interface)) or is_unroutable(address)


_BEYOND_BOOTSTRAP = re.compile(r"cliqueSize|\btransport/(?:p2p|shm|nvls)\.cc:|\bmnnvl\.cc:")


def _joined(case: Case) -> bool:
    """Whether a communicator was completed, or got beyond its bootstrap: then the addresses work.

    That ranks share a GPU or run different versions, or that MNNVL does not work among them, NCCL knows from all of them.
    """
    beyond = case.has("nccl-init-complete", "channel-net", "nccl-nodes", "nccl-mismatch", "duplicate-gpu")
    return beyond or any(_BEYOND_BOOTSTRAP.search(hit.text) for hit in case.hits("imex", "nccl-warn"))


@diagnosis
def connect_target(case: Case) -> Iterable[Candidate]:
    """The address that cannot be reached tells why: loopback or docker means a wrong interface, else a firewall."""
    called = case.hits("mpi-daemon-address") if case.has("mpi-connect") else []
    alone = [hit for hit in called if re.fullmatch(r"[\d.]+:\d+.*", hit.groups["addresses"])]
    hits = case.hits(*_UNREACHABLE, "mpi-connect-address")
    odd = [hit for hit in hits if is_local_only(hit.groups.get("address", ""))]
    if any(is_local_only(hit.groups["addresses"]) for hit in alone):
        title = f"mpirun calls its daemons back to {alone[0].groups['addresses'][:40]}, an address that exists only inside its host"
        yield Candidate("net.wrong-interface", 0.8, title, [*alone[:2], *case.hits("mpi-connect")[:2]])
    if odd and case.nodes != 1 and not case.env.get("NCCL_COMM_ID"):
        title = f"a peer advertised {odd[0].groups['address'][:60]}, an address that exists only inside its host"
        yield Candidate("net.wrong-interface", 0.8, title, [*odd, *case.hits("bootstrap-using")[:4]], ranks_of(odd))


@diagnosis
def connect_never_succeeds(case: Case) -> Iterable[Candidate]:
    """Connection retries that go on until the end, without any communicator completed: unreachable, not merely late."""
    retries = case.hits("connect-retry")
    if not retries or case.has("nccl-init-complete", "channel-net", "progress"):
        return
    timed_out = [hit for hit in retries if _UNANSWERED.search(hit.text)]
    local = [hit for hit in case.hits("bootstrap-using") if hit.groups["address"].startswith("169.254.")]
    tries = [int(number) for hit in case.lasts("connect-retry") for number in _TRY.findall(hit.text)]
    if local and max([case.count("connect-retry"), *tries]) > 2:
        title = f"NCCL chose {local[0].groups['interface']}, whose link-local address a peer on another host takes for one of its own"
        yield Candidate("net.wrong-interface", 0.76, title, [*local[:2], *retries[:3]], *speakers(local))
    elif timed_out:
        title = "connections to peers time out again and again: dropped by a firewall, or the wrong interface"
        yield Candidate("net.firewall", 0.58, title, timed_out[:6], *speakers(timed_out))
    elif case.count("connect-retry") > 8:
        title = "a peer refuses connections again and again: it is gone or listens on another address"
        yield Candidate("net.peer-lost", 0.45, title, retries[:6])
        yield Candidate(
            "net.wrong-interface", 0.4, "a peer advertises an address where it does not listen", retries[:4]
        )


@diagnosis
def memory_offered_to_nobody(case: Case) -> Iterable[Candidate]:
    """Transfers of KV caches fail, and a transfer engine had offered its memory under an address that exists only inside its host."""
    odd = [hit for hit in case.hits("mooncake-name") if is_local_only(hit.groups["address"])]
    failed = case.hits("kv-transfer-failed", "kv-peer-lost", "mooncake-handshake", "mooncake-transfer")
    if odd and failed:
        title = f"a transfer engine offers its memory under {odd[0].groups['address']}, an address that exists only inside its host"
        yield Candidate("net.wrong-interface", 0.8, title, [*odd, *failed[:3]], ranks_of(odd))


@diagnosis
def first_attempt_failed(case: Case) -> Iterable[Candidate]:
    """NCCL 2.12 to 2.23 calls connect() again on a socket whose first attempt failed, and the system answers ECONNABORTED
    ('Software caused connection abort'): whether the peer had refused or nobody had answered is lost."""
    hits = case.hits("connect-aborted")
    if hits:
        address = hits[0].groups["address"][:60]
        title = f"the first attempt to connect to {address} was not answered (a firewall, a wrong address)"
        yield Candidate("net.firewall", 0.56, title, hits, *speakers(hits))
        yield Candidate("net.peer-lost", 0.5, "it was refused, because nobody listens there (any more)", hits)


_OWN_ADDRESS = re.compile(r"\[\d+\](?P<interface>[^\s:]+):(?P<address>\S+?)<\d+>")


@diagnosis
def same_address_on_several_hosts(case: Case) -> Iterable[Candidate]:
    """NET/Socket takes an interface that has the same address on several hosts, and connections to that address fail.

    Each host reaches itself under it: a bridge of containers or virtual machines, whatever its name is.
    """
    owners: dict[tuple[str, str], dict[str, Hit]] = defaultdict(dict)
    for hit in case.hits("net-socket-using"):
        for found in _OWN_ADDRESS.finditer(hit.text) if hit.host else ():
            owners[found["address"], found["interface"]].setdefault(hit.host, hit)
    for (address, interface), hosts in owners.items():
        own = address_of(address)
        failed = [hit for hit in case.hits(*_UNREACHABLE) if own and address_of(hit.groups.get("address", "")) == own]
        if len(hosts) > 1 and failed:
            title = f"NCCL also uses {interface}, which has the same address {address} on several hosts"
            shown = [*hosts.values()][:2]
            yield Candidate("net.wrong-interface", 0.93, title, [*shown, *failed], hosts=set(hosts), final=True)


@diagnosis
def few_ports_open(case: Case) -> Iterable[Candidate]:
    """A host's firewall was listed and lets in little, and connections to ports that NCCL or Gloo chose are not answered."""
    rules, hits = case.hits("open-ports"), case.hits(*_UNREACHABLE, "master-timeout", "gloo-connect-failed")
    hits += [hit for hit in case.hits("connect-gave-up") if _UNANSWERED.search(hit.text)]
    if rules and hits and not case.has("nccl-init-complete"):
        title = "a host's firewall lets in a few ports only, and the ranks listen on others"
        yield Candidate("net.firewall", 0.82, title, [*hits[:2], *rules[:4]], *speakers(hits))


@diagnosis
def comm_id_address(case: Case) -> Iterable[Candidate]:
    """NCCL_COMM_ID is set, and binding or connecting to its address fails: the variable names the wrong address."""
    hits = case.env.get("NCCL_COMM_ID", [])
    if hits and case.has(
        "no-same-subnet", "cannot-assign", "connect-refused", "connect-timeout", "bad-comm-id", "nccl-error-text"
    ):
        title = f"NCCL_COMM_ID={case.value('NCCL_COMM_ID')} does not fit this host"
        proof = [*hits, *case.hits("cannot-assign", "no-same-subnet")[:3]]
        yield Candidate("env.bad-nccl-var", 0.9, title, proof, final=True)


@diagnosis
def foreign_program(case: Case) -> Iterable[Candidate]:
    """What connected to a port of NCCL spoke first, and in letters: a port scanner, a probe or a scraper of metrics.

    NCCL drops such a connection. A job that hangs from then on met a release that waits for its rest.
    """
    for hit in case.hits("nccl-magic"):
        told = int(hit.groups["got"], 16).to_bytes(8, "little").rstrip(b"\0")
        if len(told) > 3 and all(32 <= byte < 127 for byte in told):
            title = f"a program that is not NCCL connected to one of its ports: it said {told.decode()!r}"
            yield Candidate("sw.nccl-bug", 0.46, title, [hit], *speakers([hit]))
            return


@diagnosis
def interface_filter(case: Case) -> Iterable[Candidate]:
    """No interface matches, and the variable that filters is known: say its value; exclusion lists that let lo through."""
    value = case.value("NCCL_SOCKET_IFNAME")
    chosen_lo = [hit for hit in case.hits("bootstrap-using") if hit.groups["interface"] == "lo"]
    chosen_lo += [hit for hit in case.hits("net-socket-using") if hit.groups["interfaces"].startswith("[0]lo:")]
    if value is None:
        if chosen_lo and case.nodes != 1 and case.hang.unfinished:
            title = "NCCL begins with loopback, which no other host can reach: an exclusion list lets lo through"
            yield Candidate("net.wrong-interface", 0.47, title, chosen_lo, *speakers(chosen_lo))
        return
    hits = case.env["NCCL_SOCKET_IFNAME"]
    if unmatched := case.hits("no-socket-interface"):
        title = f"NCCL_SOCKET_IFNAME={value} matches no interface on this host"
        yield Candidate("net.wrong-interface", 0.95, title, [*unmatched[:4], *hits[:2]], *speakers(unmatched))
    if chosen_lo and value.startswith("^") and case.nodes != 1:
        title = f"NCCL_SOCKET_IFNAME={value} replaces the default exclusions, so loopback was chosen"
        yield Candidate("net.wrong-interface", 0.9, title, [*chosen_lo, *hits[:2]])


@diagnosis
def reset_while_all_alive(case: Case) -> Iterable[Candidate]:
    """Connections are reset in the middle of the run, and no process of any rank died before: something on the way did it.

    A reset without a death (no exception, no signal, no kill) on either side comes from a firewall or middlebox that
    lost or expired its state. With only some ranks' logs at hand the peer may have died unseen.
    """
    resets = [hit for hit in case.hits("gloo-closed", "store-closed", "peer-closed") if "eset by peer" in hit.text]
    if not resets:
        return
    if case.nodes == 1 and not several_hosts(case):
        return
    both_sides = 1 < case.world <= len(case.summary.ranks)
    died = case.has(
        "sigkill", "oom-killer", "signal-exception", "cancelled", "hangup", "segfault", "bus-error", "node-failure"
    ) or bool(case.exceptions.ordinary)
    if both_sides and not died:
        title = "established connections were reset although no process had died: a firewall or middlebox on the way"
        yield Candidate("net.firewall", 0.62, title, resets, ranks_of(resets))


# EFA's own words and codes (libfabric's efa_errno.h and efa_strerror.c, August 2026). The peer answered before: 8, 9, 13,
# 4124, 4127. Its adapter answers but its process does not: 4126. Nothing ever came back: 15, 13 of older firmware.
_EFA_GONE = re.compile(
    r"previously (?:responsive|established)|reset by remote peer|QP does not exist|peer closed its|\b412[47]\b",
    re.IGNORECASE,
)
_EFA_SILENT = re.compile(r"handshake failed|\b4126\b", re.IGNORECASE)
# 5, 7 and 14, in older words too: an adapter answers, and what it was asked for is not registered (any more).
_EFA_REFUSED = re.compile(
    r"memory registration is invalid|Invalid (?:address|lkey)\b|No valid address handle", re.IGNORECASE
)
_EFA_NEVER = re.compile(r"never (?:received|established)|Unreachable remote", re.IGNORECASE)


def _of_slingshot(hit: Hit) -> bool:
    """Whether a failed request is one of HPE Slingshot's adapters: they tell a return code, EFA tells a sentence."""
    return "UNDELIVERABLE" in hit.text


@diagnosis
def slingshot_could_not_deliver(case: Case) -> Iterable[Candidate]:
    """A Slingshot adapter sent a message again and again and got no answer: the peer's adapter is not reached, or its node is gone."""
    hits = [hit for hit in case.hits("ofi-error") if _of_slingshot(hit)]
    title = "a Slingshot adapter could not deliver: the peer's adapter is not reached, or its node is gone"
    yield from rivals({"ib.retry-exceeded": 0.62, "net.peer-lost": 0.45}, title, hits, *speakers(hits))


@diagnosis
def efa_request_failed(case: Case) -> Iterable[Candidate]:
    """EFA requests fail on several live ranks at their first traffic: the security group lets TCP pass but not EFA.

    EFA needs a rule that allows all traffic of the security group to and from itself; TCP bootstrap works without it. If
    only one peer is affected it may have died; where EFA says that the peer answered before, or where the job had made
    steps, the network had let it through.
    """
    hits = case.hits("ofi-error")
    if not hits or any(map(_of_slingshot, hits)):
        return
    places = {(hit.host, hit.rank) for hit in hits}
    gone, silent, never = (
        [hit for hit in hits if words.search(hit.text)] for words in (_EFA_GONE, _EFA_SILENT, _EFA_NEVER)
    )
    if silent and not never and not gone:
        title = "a peer's EFA device answers and its process does not: it hangs, died, or runs another libfabric"
        strengths = {"net.peer-lost": 0.46, "sys.node-failure": 0.42, "net.plugin": 0.38}
        yield from rivals(strengths, title, silent, *speakers(silent))
        return
    if gone and not never:
        yield Candidate(
            "net.peer-lost",
            0.64,
            "an EFA peer that had answered before answers no more: its process or its node is gone",
            gone,
            *speakers(gone),
        )
    refused = [hit for hit in hits if _EFA_REFUSED.search(hit.text)]
    if refused and not never and not gone:
        title = "an EFA request was refused: its memory is no longer registered, or not for this use"
        yield from rivals({"net.plugin": 0.47, "net.peer-lost": 0.43}, title, refused, *speakers(refused))
        return
    passed_once = case.has("progress")  # the job's steps went over it
    if passed_once and not gone:
        title = "an EFA peer can no longer be reached, after steps that went well: its process or its node may be gone"
        yield Candidate("net.peer-lost", 0.48, title, hits, *speakers(hits))
    strength = 0.4 if passed_once or (gone and not never) else 0.66 if len(places) > 1 or never else 0.52
    title = "EFA requests fail between the instances: EFA traffic is filtered (security group), or the peer is gone"
    yield Candidate("net.firewall", strength, title, hits, *speakers(hits))
    yield Candidate("net.plugin", 0.35 if gone or never else 0.5, "the EFA plugin's requests fail", hits)


_PING = re.compile(r"\bping6? (?!statistics)(?:.*-s ?(?P<size>\d+))?|\bPING \S+ .*\((?P<whole>\d+)\) ")
_USUAL_SIZE = 56  # bytes
_SMALLEST_MTU = 1280  # bytes, IPv6's (RFC 8200): what is smaller passes every path that works at all


@diagnosis
def large_packets_lost(case: Case) -> Iterable[Candidate]:
    """Hand-made probes: large pings are lost."""
    lost = case.hits("ping-loss")
    typed = [*(hit for hits in case.summary.heads.values() for hit in hits), *case.tail] if lost else []
    pings = [(hit, ping) for hit in typed if (ping := _PING.search(hit.text))]
    for answer in lost:
        above = [one for one in pings if one[0].file == answer.file and one[0].line <= answer.line]
        hit, ping = max(above, key=lambda one: one[0].line, default=(answer, None))
        if ping and int(ping["size"] or ping["whole"] or _USUAL_SIZE) > _SMALLEST_MTU:
            yield Candidate("net.mtu", 0.85, "large packets do not pass between the hosts", [hit, answer])
            return


_INTERFACE = re.compile(r"(?<!\S)([A-Za-z][\w.-]*)(?:@\S+)?: (?:<|flags=)")  # as ip link and ifconfig print it


@diagnosis
def mtu_of_interfaces(case: Case) -> Iterable[Candidate]:
    """An interface has different MTUs on different hosts, and ranks wait for each other in vain or lose a connection.

    Interfaces of one host differ by design: Docker's bridge has 1500 bytes beside any other.
    """
    told: dict[str, dict[str, Hit]] = defaultdict(dict)
    for hit in case.hits("ip-link-mtu"):
        found = _INTERFACE.search(hit.text)
        if found and not _VIRTUAL.match(found[1]):
            told[found[1]].setdefault(hit.groups["mtu"], hit)
    failing = case.has("watchdog-timeout", "connect-timeout", "socket-timeout", "peer-closed")
    for name, by_mtu in told.items():
        hits = list(by_mtu.values())
        if failing and len(hosts_of(hits)) > 1:
            title = f"{name} has different MTUs on different hosts ({', '.join(sorted(by_mtu))})"
            yield Candidate("net.mtu", 0.62, title, hits, hosts=hosts_of(hits))
            return


@diagnosis
def no_address_of_its_own(case: Case) -> Iterable[Candidate]:
    """A socket's address is empty and no chosen interface was reported: NCCL_SOCKET_IFNAME may match none on that host.

    Some releases (2.27.7 among them) do not stop when no interface is found, and go on with an address never filled in.
    """
    hits = case.hits("garbage-address", "socket-family")
    told = case.env.get("NCCL_SOCKET_IFNAME", [])
    if hits and told and not case.has("bootstrap-using"):
        title = "no interface seems to match NCCL_SOCKET_IFNAME: NCCL goes on with an empty address"
        yield Candidate("net.wrong-interface", 0.68, title, [*hits[:3], *told[:3]], *speakers(told))


@diagnosis
def other_family_only(case: Case) -> Iterable[Candidate]:
    """Sockets of the wanted IP family cannot be created: NCCL_SOCKET_FAMILY asks for one that this host lacks.

    Without that variable a container may lack IPv6, or have no network of its own at all.
    """
    hits = case.hits("socket-family")
    told = case.env.get("NCCL_SOCKET_FAMILY", [])
    if hits and told:
        title = f"NCCL_SOCKET_FAMILY={case.value('NCCL_SOCKET_FAMILY')} asks for a family that this host does not have"
        yield Candidate("env.bad-nccl-var", 0.78, title, [*told[:2], *hits[:3]], *speakers(hits))
    elif hits:
        title = "the container has no network interface, or none with IPv6"
        yield Candidate("sys.container", 0.5, title, hits, *speakers(hits))


@diagnosis
def different_networks(case: Case) -> Iterable[Candidate]:
    """Hosts of one job use different networks (InfiniBand here, sockets there), which cannot connect to each other.

    Each process chooses for itself: where the adapter is missing or filtered, or the plugin does not load, it takes sockets.
    """
    used: dict[str, dict[str, Hit]] = {}
    for hit in case.hits("network-used"):
        used.setdefault(hit.groups["network"], {}).setdefault(hit.host or str(hit.rank), hit)
    lacking = used.get("Socket", {})
    others = {name: hosts for name, hosts in used.items() if name != "Socket" and hosts.keys() - lacking.keys()}
    clash = [hit for hit in case.hits("net-types-differ") if {hit.groups["got"], hit.groups["wanted"]} == {"3", "4"}]
    failing = case.has(*_FAILING) or case.hang.unfinished
    if not (lacking and others) and not clash:
        if len(others) > 1 and not lacking and len(set().union(*others.values())) == sum(map(len, others.values())):
            title = f"hosts use different network code ({' and '.join(sorted(others))}): a plugin is loaded on a part of them"
            lines = [hit for hosts in others.values() for hit in list(hosts.values())[:2]]
            yield Candidate("net.plugin", 0.66 if failing else 0.45, title, lines, hosts=hosts_of(lines))
        return
    verbs = not others or any(name.startswith("IB") for name in others)
    lines = [hit for hosts in ({"Socket": lacking} | others).values() for hit in list(hosts.values())[:2]]
    yield Candidate(
        "ib.device-not-found" if verbs else "net.plugin",
        0.8 if clash else 0.7 if failing else 0.4,
        "some processes use sockets, others "
        + (next(iter(others)) if others else "InfiniBand")
        + ": they cannot connect to each other",
        [*clash[:2], *lines[:6]],
        hosts=hosts_of(lacking.values()),
    )


@diagnosis
def ipv6_unreachable(case: Case) -> Iterable[Candidate]:
    """Connections to an IPv6 address fail as unreachable: names or interfaces give IPv6 addresses that are not routed.

    A link-local address (fe80::) is never valid beyond its link; a global one needs a route on every host.
    """
    hits = [
        hit
        for hit in case.hits(*_UNREACHABLE, "connect-retry")
        if (address := address_of(hit.groups.get("address", ""))) is not None
        and address.version == 6
        and address.ipv4_mapped is None
    ]
    if not hits:
        return
    local = [hit for hit in case.hits("bootstrap-using") if is_unroutable(hit.groups["address"])]
    # No name resolves to a link-local address: the peer's own NCCL advertised it.
    advertised = [
        hit
        for hit in case.hits("connect-noroute", "connect-timeout", "connect-aborted")
        if is_unroutable(hit.groups.get("address", ""))
    ]
    if not local and not advertised:
        title = "a peer is addressed by IPv6, which is not routed between the hosts"
        yield Candidate("net.hostname-resolution", 0.72, title, hits[:6], *speakers(hits))
    yield Candidate(
        "net.wrong-interface",
        0.76 if local or advertised else 0.6,
        "a peer advertised a link-local or loopback IPv6 address, which other hosts cannot reach"
        if advertised
        else "the chosen interface has only an IPv6 address that peers cannot reach",
        [*hits[:2], *local[:2], *hits[2:4]],
    )


@diagnosis
def service_mesh_in_between(case: Case) -> Iterable[Candidate]:
    """The pods run a service mesh's sidecar, and connections are accepted and closed, or refused: the proxy answers.

    A sidecar takes every TCP connection of the pod; raw protocols such as the store's, Gloo's and NCCL's do not pass it.
    """
    mesh = case.hits("service-mesh")
    failing = (
        "store-closed",
        "rdzv-connection",
        "rdzv-timeout",
        "gloo-closed",
        "peer-closed",
        "connect-refused",
        "master-timeout",
        "master-refused",
        "socket-timeout",
        "gloo-connect-failed",
    )
    if mesh and case.has(*failing):
        title = "a service mesh's proxy in the pods answers instead of the job's processes"
        proof = [*mesh[:4], *case.hits(*failing)[:4]]
        yield Candidate("net.firewall", 0.86, title, proof, hosts=hosts_of(mesh), final=True)


@diagnosis
def plugin_lacks_a_library(case: Case) -> Iterable[Candidate]:
    """The network plugin cannot be loaded because a library that it needs is missing (another CUDA's runtime, libfabric), and
    NCCL takes TCP sockets. Where it takes its own InfiniBand instead, the plugin was not needed."""
    hits = case.hits("plugin-lacks")
    if hits and case.sockets:
        title = f"the network plugin cannot be loaded: {hits[0].groups['library']} is missing; NCCL takes TCP sockets"
        rows = case.hits("busbw-row")[-2:]
        proof = [*hits[:4], *case.sockets[:2], *rows]
        yield Candidate("net.plugin", 0.84 if rows else 0.7, title, proof, hosts=hosts_of(hits))


_SLINGSHOT = re.compile(r"\bhsn\d")


@diagnosis
def fabric_without_its_plugin(case: Case) -> Iterable[Candidate]:
    """Slingshot interfaces (hsn0...) or EFA instances, no network plugin found, and plain sockets are used.

    These fabrics are reached only through libfabric's plugin (aws-ofi-nccl, for AMD aws-ofi-rccl).
    """
    sockets = [hit for hit in case.hits("net-socket-using", "bootstrap-using") if _SLINGSHOT.search(hit.text)]
    without = case.hits("no-net-plugin")
    if sockets and without and case.sockets:
        trouble = case.has("nccl-warn", "peer-closed", "watchdog-timeout", "slow-complaint", "nccl-error-text")
        title = "a Slingshot system without the libfabric plugin: plain sockets are used"
        proof = [*without[:4], *sockets[:4]]
        yield Candidate("net.plugin", 0.74 if trouble else 0.55, title, proof, hosts=hosts_of(sockets))


_FROM_PEER = re.compile(r"NCCL WARN .{0,120}?(?:from|peer) \[?([\w.:-]{2,64}?)\]?<\d+>")


@diagnosis
def host_that_went_first(case: Case) -> Iterable[Candidate]:
    """Several hosts lost their connections to one and the same peer, of which nothing is heard, before a collective ran out of time:
    its processes were gone before anybody had waited that long. Why, only its own log tells."""
    ends = {end.file: end for end in reversed(case.hits("watchdog-timeout"))}  # the first of each file
    lost: dict[str, list[Hit]] = defaultdict(list)
    for hit in case.hits("gloo-closed", "peer-closed") if ends else ():
        if told := _FROM_PEER.search(hit.text):
            lost[told[1]].append(hit)
    heard = {hit.groups["address"].strip("[]") for hit in case.hits("bootstrap-using")} | case.summary.hosts
    for peer, hits in lost.items():
        end = ends.get(hits[0].file)
        if peer not in heard and len(hosts_of(hits)) > 1 and end and later(end, hits[0]):
            title = f"{len(hosts_of(hits))} hosts lost their connections to {peer}, of which nothing is heard, before a collective ran out of time"
            yield Candidate("net.peer-lost", 0.62, title, [*hits[:6], end], hosts={peer})


@diagnosis
def established_but_silent(case: Case) -> Iterable[Candidate]:
    """A connection that worked gets no answers any more, neither data nor a close: nobody said goodbye.

    A process that dies closes its sockets. Silence means that its host vanished, or that a firewall or NAT between
    forgot the connection.
    """
    hits = case.hits("established-timeout")
    if not hits:
        return
    ranks = ranks_of(hits)
    title = "an established connection fell silent: a firewall or NAT dropped it, or the peer's host vanished"
    yield Candidate("net.firewall", 0.54, title, hits, ranks)
    yield Candidate("net.peer-lost", 0.5, "a peer's host stopped answering", hits, ranks)
