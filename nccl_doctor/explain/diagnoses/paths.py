"""The way that a job's data takes, where a faster one is there: settings that forbid it, plugins and interfaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nccl_doctor.explain import lazy_re as re
from nccl_doctor.explain.case import Case
from nccl_doctor.explain.diagnoses import Candidate, diagnosis
from nccl_doctor.explain.diagnoses.bandwidth import SOCKET_INTERFACE, busbw, gpus_per_host, slow_rows
from nccl_doctor.explain.diagnoses.speed import communication_complaints, times_by_name
from nccl_doctor.explain.diagnoses.steps import starving
from nccl_doctor.explain.hang import SIGINT
from nccl_doctor.explain.lines import hosts_of, in_order
from nccl_doctor.explain.model import Hit
from nccl_doctor.explain.readers import prefix

# Bus bandwidth in GB/s: less than half of what eight GPUs on NVSwitches reach since the first of them (V100, 130 GB/s).
_NVLINK = 60.0
_NO_PEERS = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}  # level 1 (NVL) is that of NVLinks
# Few thread blocks that copy, a protocol that sends a flag with every four bytes: then NVLinks carry a fraction.
_SLOW_LINKS = {"NCCL_MAX_NCHANNELS": ("1", "2"), "NCCL_MAX_CTAS": ("1", "2"), "NCCL_PROTO": ("LL",)}
_SXM = re.compile(r"SXM|HBM3\b")
_NVLINKS = re.compile(r"\bNV\d")


def _set_to(case: Case, values: dict[str, tuple[str, ...]]) -> list[Hit]:
    """The lines that set one of these variables to one of these values."""
    return [hit for name, some in values.items() if case.value(name) in some for hit in case.env[name]]


@diagnosis
def links_held_back(case: Case) -> Iterable[Candidate]:
    """The GPUs of one host have NVLink, and a variable keeps them from it, or from its speed: nccl-tests reaches less than half of
    what NVSwitches do, or the data of GPUs that may not reach their peers goes through host memory.

    That the GPUs have NVLink is told by NVLS, which needs NVSwitches, by their model (SXM), or by a matrix. Another run in the
    same logs that is fast shows that somebody compares on purpose.
    """
    no_peers, matrix = _set_to(case, _NO_PEERS), [hit for hit in case.hits("topo-row") if _NVLINKS.search(hit.text)]
    linked = [hit for hit in case.hits("gpu-model", "tests-device") if _SXM.search(hit.text)]
    linked = case.hits("nvls-available") or linked or matrix
    forbidden, rows, shared = no_peers or _set_to(case, _SLOW_LINKS), slow_rows(case), case.hits("channel-shm")
    best = max(map(busbw, (*case.hits("busbw-row"), *case.lasts("busbw-row"))), default=0.0)
    measured = bool(rows) and best < _NVLINK and case.nodes == 1
    if forbidden and linked and (measured or (no_peers and matrix and shared)):
        name = forbidden[0].groups["name"]
        title = f"{name}={case.value(name)} keeps the GPUs of one host from {'' if no_peers else 'the speed of '}their NVLinks: "
        title += f"{best:.1f} GB/s bus bandwidth" if measured else "their data goes through host memory"
        more = case.env.get("NCCL_SHM_DISABLE", ())  # then not even host memory is left
        proof = [
            *forbidden[:1],
            *more[:1],
            *rows[-2:],
            *(matrix or linked)[:1],
            *case.hits("channel-net")[:1],
            *shared[:2],
        ]
        yield Candidate(
            "env.bad-nccl-var", 0.72 if measured else 0.62, title, proof, hosts=hosts_of(forbidden), slows=True
        )


_OF_STEP = re.compile(r"step|iter|/it\b")
_TOO_LONG = 5.0  # seconds for a step of one host, which somebody did not wait for


@diagnosis
def host_talks_over_its_network(case: Case) -> Iterable[Candidate]:
    """NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 together leave the ranks of one host no way to each other but its network. That alone
    may be meant, as a test of the network; somebody found this job too slow, or stopped it at steps that take long."""
    off = [hit for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE") for hit in _set_to(case, {name: ("1",)})[:1]]
    channels = case.hits("channel-net")
    if len(off) < 2 or not channels or case.nodes != 1 or len(hosts_of(case.hits("bootstrap-using"))) != 1:
        return
    stopped = [hit for hit in case.hits("signal-exception", "cancelled") if SIGINT.search(hit.text)]
    in_loader = any("torch/utils/data/" in frame for item in case.summary.tracebacks for frame in item.frames)
    steps = [told for hit in case.tail for told in times_by_name(hit.text) if _OF_STEP.search(told[0])]
    times = [value / (1000 if "ms" in name else 1) for name, value in steps]
    slow = not in_loader and max(times, default=0.0) >= _TOO_LONG
    told = [*communication_complaints(case)[:2], *(stopped[:1] if slow else [])]
    if told:
        title = (
            "the GPUs of one host talk over the network: NCCL_P2P_DISABLE and NCCL_SHM_DISABLE leave them no other way"
        )
        yield Candidate("env.bad-nccl-var", 0.76, title, [*off, *channels[:2], *told], hosts=hosts_of(off), slows=True)


@diagnosis
def network_held_back(case: Case) -> Iterable[Candidate]:
    """A variable leaves NCCL one or two channels, or the protocol for small messages, and the job of several hosts is told to be
    slower than another one; its steps do not wait for data."""
    held, told = _set_to(case, _SLOW_LINKS), communication_complaints(case)
    if held and told and case.between_hosts and not starving(case):
        names = " and ".join(sorted({f"{hit.groups['name']}={case.value(hit.groups['name'])}" for hit in held}))
        firsts = list({hit.groups["name"]: hit for hit in reversed(held)}.values())
        yield Candidate(
            "env.bad-nccl-var",
            0.7,
            f"{names}: too few channels, or the wrong protocol, for large messages",
            [*firsts, *told[:2]],
            slows=True,
        )


_FORBIDS = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket"))


@diagnosis
def adapters_forbidden(case: Case) -> Iterable[Candidate]:
    """NCCL_IB_DISABLE=1 or NCCL_NET=Socket sends the data of several hosts over TCP sockets, and a listing shows RDMA adapters that
    are up, or the plugin for libfabric found some; or somebody tells of them; or it is slow, and the hosts have eight GPUs: such are not joined by TCP."""
    for name, value in _FORBIDS:
        if (case.value(name) or "").casefold() != value:
            continue
        forbidden = case.env[name]
        up = case.hits("adapter-up", "ofi-adapters") or case.hits("adapters-told")
        complaint = communication_complaints(case)
        several = case.nodes > 1 or len(hosts_of(case.sockets)) > 1
        by_plugin = any("ibfabric" in hit.text for hit in case.hits("network-used"))  # which reads none of these
        if (up or (complaint and gpus_per_host(case) >= 8)) and case.sockets and several and not by_plugin:
            what = "RDMA adapters that are there" if up else "any RDMA adapter"
            title = f"{name}={case.value(name)} keeps NCCL from {what}: the nodes talk over TCP sockets"
            proof = [*forbidden[:2], *up[:2], *complaint[:2], *case.sockets[:1]]
            strength = 0.72 if complaint else 0.66 if case.has("watchdog-timeout") else 0.6
            yield Candidate("env.bad-nccl-var", strength, title, proof, hosts=hosts_of(forbidden), slows=True)


_SOME_ROWS = 3
_LOCAL = re.compile(r"//(?:localhost|127\.|\[::1\])")
_TOKENS = re.compile(r"Avg generation throughput: (\d+(?:\.\d+)?) tokens/s, Running: (\d+)")
_READABLE = 10.0  # tokens a second for each request: a reader's pace, which a model in one host leaves far behind


@diagnosis
def tensor_parallel_over_sockets(case: Case) -> Iterable[Candidate]:
    """vLLM spreads tensor parallelism over hosts, which exchange each layer's results over TCP sockets, and serves slowly.

    Each token waits for two exchanges a layer: it is the delay of the network that counts. Pipeline parallelism between the
    hosts needs one for each of them."""
    spread, rates = case.hits("tensor-parallel-spread"), []
    for hit in case.tail if spread and case.sockets else ():
        found = _TOKENS.search(hit.text)
        if found and int(found[2]):
            rates.append((float(found[1]) / int(found[2]), hit))
    if rates and max(rate for rate, _ in rates) < _READABLE:
        title = f"tensor parallelism goes over TCP sockets between hosts: {rates[-1][0]:.1f} tokens/s for each request"
        proof = [*spread[:1], *case.sockets[:2], *(hit for _, hit in rates[-2:]), *case.hits("link-speed")[:1]]
        yield Candidate("net.slow", 0.66, title, proof)


_XFER = re.compile(r"Avg xfer time \(ms\)=(\d+(?:\.\d+)?)")
_NOTICED = 500.0  # ms: what who waits for the first word notices; small caches come in less, whatever the rate
_KV_SLOW = 1250.0  # MB/s: ten-gigabit Ethernet, which nobody buys for this; hundreds of gigabits carry 10,000 and more


def _took_long(hit: Hit) -> bool:
    found = _XFER.search(hit.text)
    return found is not None and float(found[1]) >= _NOTICED


@diagnosis
def caches_come_slowly(case: Case) -> Iterable[Candidate]:
    """vLLM's decode instance waits long for KV caches, which reach it at less than ten-gigabit Ethernet's rate, most of the time."""
    rates = [
        (float(hit.groups["rate"]), hit) for hit in in_order((*case.hits("kv-transfer"), *case.lasts("kv-transfer")))
    ]
    slow = [hit for rate, hit in rates if 0 < rate < _KV_SLOW and _took_long(hit)]
    over = case.hits("ucx-over-tcp")
    if len(slow) >= _SOME_ROWS and 2 * len(slow) > len(rates):
        title = f"KV caches reach the decode instance at {slow[-1].groups['rate']} MB/s"
        title += f": UCX goes over TCP ({over[0].groups['interface'].strip('()')})" if over else ""
        yield Candidate("net.slow", 0.72 if over else 0.56, title, [slow[-1], *over[:2], slow[0]], slows=True)


@diagnosis
def plugin_over_tcp(case: Case) -> Iterable[Candidate]:
    """The plugin for libfabric found no adapter and goes over TCP: on hosts with eight GPUs, or instances, which have such adapters,
    or in a job that is too slow. A small cloud machine has none."""
    hits, complaint = case.hits("ofi-over-tcp"), communication_complaints(case)
    several = case.between_hosts or len(hosts_of(hits)) > 1
    ranks = max(Counter(host for host, _ in {(hit.host, hit.pid) for hit in hits}).values(), default=0)
    if hits and several and (complaint or case.has("efa-instance") or max(ranks, gpus_per_host(case)) >= 8):
        title = "the plugin for libfabric found no adapter of its kind: the nodes talk over its provider of TCP"
        proof = [*hits[:2], *complaint[:2], *case.hits("efa-instance", "channel-net")[:2]]
        yield Candidate("net.plugin", 0.72 if complaint else 0.62, title, proof, hosts=hosts_of(hits), slows=True)


_GIGABIT = 1000.0  # Mb/s: a GPU's gradients of one step are worth many seconds of it
_MANY_TIMES = 10  # as fast: no choice that somebody makes on purpose
_ETHTOOL = 30  # lines: what it prints of an interface before the speed
_NAME = re.compile(r"\s*([a-z][\w.-]{1,14})\s*:?\s*(?:Speed: \d{1,7}Mb/s|$)")


def _speeds(case: Case) -> Iterable[tuple[str, float, list[Hit]]]:
    """The speeds of interfaces in Mb/s that ethtool or iperf told, with the interface, which the line or one above may name."""
    name, head = "", None
    for hit in case.hits("ethtool-asked", "ethtool-loop-rows", "link-speed"):
        if hit.signature == "ethtool-asked":
            name, head = hit.groups["interface"], hit
        elif hit.signature == "ethtool-loop-rows":
            if found := _NAME.match(prefix.parse(hit.text).body.strip('" ')):
                name, head = found[1], hit
        elif told := hit.groups.get("speed") or hit.groups.get("gigabits"):
            named = head and head.file == hit.file and 0 <= hit.line - head.line <= _ETHTOOL
            speed = float(told) * (1000 if "gigabits" in hit.groups else 1)
            yield name if named else "", speed, [head, hit] if head and named else [hit]


@diagnosis
def slow_interface(case: Case) -> Iterable[Candidate]:
    """Hosts talk over TCP sockets, and somebody looked up (ethtool, iperf) that the interface has no more than gigabit Ethernet, or
    that another one is many times as fast."""
    told, using = list(_speeds(case)), case.hits("net-socket-using")
    used = {name for hit in using for name in SOCKET_INTERFACE.findall(hit.text)}
    own = [each for each in told if not used or each[0] in {"", *used}]
    slow = [(speed, hits) for _, speed, hits in own if 0 < speed <= _GIGABIT]
    unclear = len(slow) < len(own) and not all(name in used for name, _, _ in own)  # which of them the job uses
    fastest = sorted((each for each in told if each[0]), key=lambda each: -each[1])
    mine, other = (
        [each for each in fastest if each[0] in used][:1],
        [each for each in fastest if each[0] not in used][:1],
    )
    sockets = case.sockets + [hit for hit in case.hits("channel-net") if hit.groups["network"].startswith("Socket")]
    if mine and other and case.sockets and other[0][1] >= _MANY_TIMES * mine[0][1]:
        (name, speed, hits), (faster, most, more) = mine[0], other[0]
        title = f"the hosts talk over {name} ({speed:.0f} Mb/s), and {faster} has {most:.0f} Mb/s"
        proof = [*using[:1], *hits, *more, *case.env.get("NCCL_SOCKET_IFNAME", ())[:1]]
        yield Candidate("net.wrong-interface", 0.74, title, proof, hosts=hosts_of(case.sockets), slows=True)
    elif slow and not unclear and (sockets or using or case.has("gloo-connected")):
        title = f"the hosts talk over an interface of {slow[0][0]:.0f} Mb/s"
        proof = [*(hit for _, hits in slow[:2] for hit in hits[-1:]), *sockets[:2], *using[:2]]
        yield Candidate("net.slow", 0.68, title, proof, hosts=hosts_of(sockets))


@diagnosis
def side_channel_of_another_engine(case: Case) -> Iterable[Candidate]:
    """vLLM's decode engine asks for a peer's cache where the peer said, and another engine answers: it computes everything anew."""
    hits = case.hits("nixl-other-engine")
    if hits:
        asked = case.hits("nixl-asks")
        title = "another engine answers where a peer's NIXL side channel is looked for"
        if asked and _LOCAL.search(asked[0].text):
            title += ": its address is localhost (VLLM_NIXL_SIDE_CHANNEL_HOST)"
        yield Candidate("net.wrong-interface", 0.78, title, [*hits[:2], *asked[:2], *hits[2:4]], slows=True)
